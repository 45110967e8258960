//! What an earlier daemon left running, taken on again.

use super::link::Link;
use super::members::Members;
use super::store::Store;
use mcp_restart_config::lookup;
use mcp_restart_process::Lost;
use mcp_restart_protocol::agent::{AgentState, ExitReason, LastExit};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::shim::{FromShim, ShimFacts, ToShim};
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_shim::{Facts, FoundFacts, RunFiles};
use std::io;
use std::path::Path;
use std::time::Duration;

/// How long a living shim may take to describe itself.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(2);

/// Connects to every shim that lives, and records how the agents of those that do not have ended.
pub(super) async fn adopt(members: &mut Members, store: &mut Store) {
    let found = match mcp_restart_shim::read_facts(members.state_dir()) {
        Ok(found) => found,
        Err(error) => {
            tracing::error!(%error, "what still runs cannot be looked up");
            return;
        }
    };
    for FoundFacts { id, facts } in found {
        let files = RunFiles::new(members.state_dir(), &id);
        match facts {
            Ok(facts) if facts.shim_identity().is_alive() => take_on(members, store, &files, &facts).await,
            Ok(facts) => record_end(members.state_dir(), store, &files, &facts),
            Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "the facts of a shim"),
        }
    }
}

/// Ends what a shim that is gone has left of its agent, and gives how many processes that were.
pub(super) fn end_lost(state_dir: &Path, agent: &str, generation: u64) -> u32 {
    let socket = lookup::socket(state_dir);
    let lost = Lost { socket: &socket.to_string_lossy(), agent, generation };
    u32::try_from(mcp_restart_process::end_lost(RestartPath::LostSweep, lost)).unwrap_or(u32::MAX)
}

async fn take_on(members: &mut Members, store: &mut Store, files: &RunFiles, facts: &Facts) {
    match tokio::time::timeout(DESCRIBE_LIMIT, describe(files)).await.unwrap_or_else(|late| Err(late.into()))
    {
        Ok((link, facts)) => {
            tracing::info!(agent = facts.name, pid = facts.pid, generation = facts.generation, "adopted");
            let record = store.agent_mut(&facts.name);
            record.generation = record.generation.max(facts.generation);
            let last_exit = record.last_exit.clone();
            members.adopt(&facts, link, last_exit);
        }
        // Its lock keeps a second process from being started beside it.
        Err(error) => tracing::error!(agent = facts.name, %error, "its shim lives but does not answer"),
    }
}

async fn describe(files: &RunFiles) -> io::Result<(Link, ShimFacts)> {
    let mut link = Link::connect(&files.socket).await?;
    link.send(ToShim::Describe).await?;
    match link.next().await {
        Some(FromShim::Facts(facts)) => Ok((link, *facts)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it does not describe itself")),
    }
}

/// The shim is gone: either nobody acknowledged its exit before the machine went down, or it was killed.
fn record_end(state_dir: &Path, store: &mut Store, files: &RunFiles, facts: &Facts) {
    let record = store.agent_mut(&facts.name);
    record.generation = record.generation.max(facts.generation);
    record.state = Some(AgentState::Exited);
    record.last_exit = Some(match &facts.exit {
        Some(exit) => LastExit::of(exit, ExitReason::Exited),
        None => {
            let leftovers = end_lost(state_dir, &facts.name, facts.generation);
            LastExit { leftovers, ..LastExit::unseen(Timestamp::now(), ExitReason::Lost) }
        }
    });
    tracing::warn!(agent = facts.name, generation = facts.generation, exit = ?record.last_exit, "its shim is gone");
    for file in [&files.facts, &files.socket] {
        if let Err(error) = std::fs::remove_file(file)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file = %file.display(), %error, "cannot be removed");
        }
    }
}
