//! What an earlier daemon left running, taken on again.

use super::handoff;
use super::link::Link;
use super::members::Members;
use super::store::Store;
use mcp_restart_config::lookup;
use mcp_restart_process::Lost;
use mcp_restart_protocol::agent::{AgentState, ExitReason, LastExit};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::shim::{FromShim, ShimFacts, ToShim};
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_shim::{Facts, FoundShim, RunFiles};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;

/// How long a living shim may take to describe itself.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(2);
/// The same for one that has written down what it would say.
const DESCRIBE_LIMIT_IF_KNOWN: Duration = Duration::from_millis(250);
/// A shim that was told to launch when its daemon died has a socket some milliseconds later.
const SOCKET_PAUSE: Duration = Duration::from_millis(10);

/// Connects to every shim that lives, and records how the agents of those that do not have ended. A shim
/// lives while it holds its lock: that outlives whatever became of its files.
pub(super) async fn adopt(members: &mut Members, store: &mut Store) {
    let found = match mcp_restart_shim::find_shims(members.state_dir()) {
        Ok(found) => found,
        Err(error) => {
            tracing::error!(%error, "what still runs cannot be looked up");
            return;
        }
    };
    for FoundShim { id, holder, facts } in found {
        let files = RunFiles::new(members.state_dir(), &id);
        let facts = match facts {
            Some(Err(error)) => {
                tracing::error!(error = &error as &dyn std::error::Error, "the facts of a shim");
                None
            }
            Some(Ok(facts)) => Some(facts),
            None => None,
        };
        match (holder, facts) {
            (Some(shim_pid), facts) => take_on(members, store, &files, shim_pid, facts).await,
            (None, Some(facts)) => record_end(members.state_dir(), store, &files, &facts),
            (None, None) => remove(&files),
        }
    }
}

/// Ends what a shim that is gone has left of its agent, and gives how many processes that were.
pub(super) fn end_lost(state_dir: &Path, agent: &str, generation: u64) -> u32 {
    let socket = lookup::socket(state_dir);
    let lost = Lost { socket: &socket.to_string_lossy(), agent, generation };
    u32::try_from(mcp_restart_process::end_lost(RestartPath::LostSweep, lost)).unwrap_or(u32::MAX)
}

async fn take_on(
    members: &mut Members,
    store: &mut Store,
    files: &RunFiles,
    shim_pid: u32,
    facts: Option<Facts>,
) {
    let known = facts.map(|facts| as_described(facts, shim_pid));
    let limit = if known.is_some() { DESCRIBE_LIMIT_IF_KNOWN } else { DESCRIBE_LIMIT };
    let mut link = None;
    let described = timeout(limit, describe(files, &mut link)).await.ok().flatten();
    // One that is stopped says nothing now; it is taken at its written word until it does.
    if let (Some(facts), Some(link)) = (described.or(known), link) {
        tracing::info!(agent = facts.name, pid = facts.pid, generation = facts.generation, "adopted");
        if handoff::has_next(members.state_dir(), &facts.name) {
            tracing::warn!(
                agent = facts.name,
                "a restart was accepted and not carried out before the daemon died"
            );
        }
        let record = store.agent_mut(&facts.name);
        record.generation = record.generation.max(facts.generation);
        let last_exit = record.last_exit.clone();
        members.adopt(&facts, link, last_exit);
    } else {
        // Its lock keeps a second process from being started beside it.
        tracing::error!(shim_pid, lock = %files.lock.display(), "a shim lives but cannot be reached");
    }
}

/// Connects and asks, as often as it takes; the connection stays with the caller if time runs out.
async fn describe(files: &RunFiles, link: &mut Option<Link>) -> Option<ShimFacts> {
    loop {
        if let Ok(mut connected) = Link::connect(&files.socket).await
            && connected.send(ToShim::Describe).await.is_ok()
        {
            match link.insert(connected).next().await {
                Some(FromShim::Facts(facts)) => return Some(*facts),
                said => {
                    tracing::warn!(?said, socket = %files.socket.display(), "a shim does not describe itself");
                }
            }
        }
        tokio::time::sleep(SOCKET_PAUSE).await;
    }
}

fn as_described(facts: Facts, shim_pid: u32) -> ShimFacts {
    ShimFacts {
        name: facts.name,
        generation: facts.generation,
        launch_hash: facts.launch_hash,
        shim_pid,
        pid: facts.agent.pid,
        started_at: facts.started_at,
        tty: false,
        log_file: Vec::new(),
        stopping: false,
        exit: None,
    }
}

/// The shim is gone: either nobody acknowledged its exit before the machine went down, or it was killed.
fn record_end(state_dir: &Path, store: &mut Store, files: &RunFiles, facts: &Facts) {
    let record = store.agent_mut(&facts.name);
    record.generation = record.generation.max(facts.generation);
    record.state = Some(AgentState::Exited);
    record.last_exit = Some(if let Some(exit) = &facts.exit {
        LastExit::of(exit, ExitReason::Exited)
    } else {
        let leftovers = end_lost(state_dir, &facts.name, facts.generation);
        LastExit { leftovers, ..LastExit::unseen(Timestamp::now(), ExitReason::Lost) }
    });
    tracing::warn!(agent = facts.name, generation = facts.generation, exit = ?record.last_exit, "its shim is gone");
    remove(files);
}

fn remove(files: &RunFiles) {
    for file in [&files.facts, &files.socket] {
        if let Err(error) = std::fs::remove_file(file)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file = %file.display(), %error, "cannot be removed");
        }
    }
}
