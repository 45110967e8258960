//! What an earlier daemon left running, taken on again.

use super::intent::{Finish, Goal, Intent, Living};
use super::link::{Link, RESERVE, is_understood};
use super::members::Members;
use super::store::{AgentRecord, Store};
use super::tokens;
use futures_util::future::join_all;
use mcp_restart_process::{boot_id, leave_descriptors};
use mcp_restart_protocol::agent::{AgentState, ExitReason, LastExit};
use mcp_restart_protocol::answer::Recovered;
use mcp_restart_protocol::shim::{FromShim, ShimExit, ShimFacts, ToShim};
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_shim::{Facts, FoundShim, RunFiles};
use std::collections::BTreeMap;
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

/// What was taken on.
#[derive(Debug, Default)]
pub(super) struct Adopted {
    /// The agents that live.
    pub living: BTreeMap<String, Living>,
    /// Those that do not, and have left word of their end.
    pub ended: BTreeMap<String, Facts>,
    /// What there is to tell about it.
    pub told: Vec<Recovered>,
}

/// A shim that was found, and what it said.
struct Reached {
    files: RunFiles,
    /// The process id of the shim that lives, or why that cannot be told.
    lock: io::Result<Option<u32>>,
    facts: Option<Facts>,
    /// Whether the facts were there and the system did not let them be read.
    is_unread: bool,
    described: Option<ShimFacts>,
    link: Option<Link>,
    /// Why there is no connection.
    fault: Option<io::Error>,
}

/// Connects to every shim that lives, and records how the agents of those that do not have ended. A shim
/// lives while it holds its lock: that outlives whatever became of its files.
pub(super) async fn adopt(members: &mut Members, store: &mut Store) -> Adopted {
    let mut adopted = Adopted::default();
    let found = match mcp_restart_shim::find_shims(members.state_dir()) {
        Ok(found) => found,
        Err(error) => {
            adopted.told.push(trouble(format!("what still runs cannot be looked up: {error}")));
            return adopted;
        }
    };
    // At the same time: one that says nothing holds nobody up.
    let state_dir = members.state_dir().to_owned();
    let known: &Store = store;
    let reached = join_all(found.into_iter().map(async |shim| {
        let mut shim = reach(&state_dir, shim).await;
        (!acknowledge_known(known, &mut shim).await).then_some(shim)
    }))
    .await;
    for mut shim in reached.into_iter().flatten() {
        let facts = shim.facts.take();
        match (&shim.lock, facts) {
            (Err(error), _) => adopted.told.push(trouble(format!(
                "whether anybody holds {} cannot be told ({error}): an agent may run, and is left alone",
                shim.files.lock.display()
            ))),
            (&Ok(Some(shim_pid)), facts) => take_on(members, store, shim, shim_pid, facts, &mut adopted),
            (Ok(None), Some(facts)) => {
                // After a new boot nothing can be left of it, and its numbers are those of strangers.
                let leftovers = if facts.exit.is_none() && facts.boot_id == boot_id() {
                    members.end_lost(&facts.name, facts.generation).await
                } else {
                    0
                };
                adopted.told.extend(record_end(store, &facts, leftovers));
                remove(&shim.files);
                adopted.ended.insert(facts.name.clone(), facts);
            }
            (Ok(None), None) if shim.is_unread => {}
            (Ok(None), None) => remove(&shim.files),
        }
    }
    adopted.take_back_numbers(store);
    super::trials::take_back_numbers(&adopted.living, store);
    adopted
}

impl Adopted {
    /// What is left to do of an intent.
    pub(super) fn finish(&self, name: &str, intent: &Intent) -> Finish {
        let ended = self.ended.get(name).map(|facts| facts.generation);
        intent.finish(self.living.get(name).copied(), ended)
    }

    /// A launch that was ordered and never happened gives its number back: its callers know it.
    fn take_back_numbers(&self, store: &mut Store) {
        for (name, intent) in store.intents() {
            if matches!(self.finish(&name, &intent), Finish::Launch { .. }) {
                let record = store.agent_mut(&name);
                record.generation = record.generation.min(intent.generation.saturating_sub(1));
            }
        }
    }
}

async fn reach(state_dir: &Path, mut found: FoundShim) -> Reached {
    let files = RunFiles::new(state_dir, &found.id);
    let (mut link, mut described) = (None, None);
    let mut fault = leave_descriptors(RESERVE).err();
    if fault.is_none() && matches!(found.lock, Ok(Some(_))) {
        match &found.facts {
            Some(Ok(facts)) if !is_understood(facts) => {
                match timeout(DESCRIBE_LIMIT, Link::connect_foreign(&files, facts)).await {
                    Ok(Ok(connected)) => link = Some(connected),
                    Ok(Err(error)) => fault = Some(error),
                    Err(_) => fault = Some(io::ErrorKind::TimedOut.into()),
                }
            }
            facts => {
                let limit =
                    if matches!(facts, Some(Ok(_))) { DESCRIBE_LIMIT_IF_KNOWN } else { DESCRIBE_LIMIT };
                described = timeout(limit, describe(&files, &mut link, &mut fault)).await.ok();
                if described.is_none() {
                    // The daemon before may have let it go a moment ago.
                    let now = FoundShim::look(state_dir, found.id.clone());
                    if !now.may_live() {
                        found = now;
                    }
                }
            }
        }
    }
    let mut is_unread = false;
    let facts = found.facts.and_then(|facts| {
        let facts = facts.inspect_err(|error| {
            is_unread = error.is_of_system();
            tracing::error!(error = error as &dyn std::error::Error, "the facts of a shim");
        });
        facts.ok()
    });
    Reached { files, lock: found.lock, facts, is_unread, described, link, fault }
}

/// Lets a shim go whose exit is stored already: the daemon died before it could say so.
async fn acknowledge_known(store: &Store, shim: &mut Reached) -> bool {
    let Some(facts) = &shim.described else { return false };
    let record = store.agent(&facts.name);
    let known = facts.exit.is_some()
        && record.is_some_and(|record| is_known(record, facts.generation, facts.started_at));
    match &mut shim.link {
        Some(link) if known => timeout(DESCRIBE_LIMIT_IF_KNOWN, let_go(link)).await.unwrap_or(false),
        _ => false,
    }
}

/// Whether the shim takes the acknowledgement and ends: until then no other can be started for its agent.
async fn let_go(link: &mut Link) -> bool {
    if link.send(ToShim::Acknowledge).await.is_err() {
        return false;
    }
    loop {
        match link.next().await {
            None => return true,
            Some(FromShim::Refused { .. }) => return false,
            Some(_) => {}
        }
    }
}

/// Whether the end of a process is stored.
fn is_known(record: &AgentRecord, generation: u64, started_at: Timestamp) -> bool {
    record.state.is_some()
        && record.generation >= generation
        && record.last_exit.as_ref().is_some_and(|exit| exit.at >= started_at)
}

/// Connects and asks, as often as it takes; if time runs out, the caller is left with the connection, or with why
/// there is none.
async fn describe(files: &RunFiles, link: &mut Option<Link>, fault: &mut Option<io::Error>) -> ShimFacts {
    loop {
        match Link::connect(&files.socket).await {
            Ok(connected) => {
                let connected = link.insert(connected);
                if connected.send(ToShim::Describe).await.is_ok() {
                    match connected.next().await {
                        Some(FromShim::Facts(facts)) => return *facts,
                        said => {
                            tracing::warn!(?said, socket = %files.socket.display(), "a shim does not describe itself");
                        }
                    }
                }
            }
            Err(error) => *fault = Some(error),
        }
        tokio::time::sleep(SOCKET_PAUSE).await;
    }
}

fn take_on(
    members: &mut Members,
    store: &mut Store,
    shim: Reached,
    shim_pid: u32,
    facts: Option<Facts>,
    adopted: &mut Adopted,
) {
    // One that is stopped says nothing now; it is taken at its written word until it does.
    let written = facts.filter(|facts| facts.shim.pid == shim_pid && facts.shim_identity().is_alive());
    let silent = shim.described.is_none();
    let Some(facts) = shim.described.or_else(|| written.map(as_described)) else {
        // Its lock keeps a second process from being started beside it.
        adopted.told.push(trouble(format!(
            "the process {shim_pid} holds {} and cannot be reached: its agent may run, and cannot be started anew",
            shim.files.lock.display()
        )));
        return;
    };
    let protocol = shim.link.as_ref().and_then(Link::foreign_protocol);
    tracing::info!(agent = facts.name, pid = facts.pid, generation = facts.generation, protocol, "adopted");
    if silent && protocol.is_none() {
        let fault = shim.fault.as_ref().map(tracing::field::display);
        tracing::warn!(
            agent = facts.name,
            shim_pid,
            fault,
            "its shim does not answer: its written word is taken for true"
        );
    }
    let token = tokens::of_process(members.state_dir(), &facts);
    let record = store.agent_mut(&facts.name);
    record.generation = record.generation.max(facts.generation);
    record.launches.lives(facts.generation, facts.launch_hash, facts.started_at);
    if record.token.is_empty() {
        record.token = token.unwrap_or_default();
    }
    let stopping = facts.stopping || facts.exit.as_ref().is_some_and(|exit| !exit.by_itself);
    adopted.living.insert(facts.name.clone(), Living { generation: facts.generation, stopping });
    members.adopt(&facts, shim.link, record);
}

/// What a shim would say of itself, as far as its facts tell.
pub(super) fn as_described(facts: Facts) -> ShimFacts {
    ShimFacts {
        name: facts.name,
        generation: facts.generation,
        launch_hash: facts.launch_hash,
        shim_pid: facts.shim.pid,
        pid: facts.agent.pid,
        started_at: facts.started_at,
        tty: false,
        log_file: Vec::new(),
        stopping: false,
        exit: facts.exit,
    }
}

/// The shim is gone: either nobody acknowledged its exit before the machine went down, or it was killed, and then so
/// many processes were left.
fn record_end(store: &mut Store, facts: &Facts, leftovers: u32) -> Option<Recovered> {
    let Facts { name, generation, .. } = facts;
    let record = store.agent_mut(name);
    record.launches.lives(*generation, facts.launch_hash, facts.started_at);
    if facts.boot_id != boot_id() {
        // What the end of the machine ended is started by nobody but `autostart`.
        record.launches.end_trial();
    }
    if is_known(record, *generation, facts.started_at) {
        return None;
    }
    let seen = facts.exit.as_ref().map(|exit| seen_end(record, exit));
    let (state, exit) = seen.unwrap_or_else(|| {
        let lost = LastExit::unseen(Timestamp::now(), ExitReason::Lost);
        (AgentState::Exited, LastExit { leftovers, ..lost })
    });
    let text = format!("{name} ended while no daemon ran: generation {generation}, {}", how(&exit));
    record.generation = record.generation.max(*generation);
    if facts.boot_id != boot_id() && exit.reason == ExitReason::Lost {
        record.interrupted = Some(*generation);
    }
    record.state = Some(state);
    record.last_exit = Some(exit);
    Some(Recovered { agent: Some(name.clone()), text, attention: false })
}

/// What somebody has to look into.
fn trouble(text: String) -> Recovered {
    Recovered { agent: None, text, attention: true }
}

/// A process that did not end by itself ended by what an earlier daemon had begun.
fn seen_end(record: &AgentRecord, exit: &ShimExit) -> (AgentState, LastExit) {
    let goal = record.intent.as_ref().map_or(Goal::Stop, |intent| intent.goal);
    let (state, reason) = match goal {
        _ if exit.by_itself => (AgentState::Exited, ExitReason::Exited),
        Goal::Stop => (AgentState::Stopped, ExitReason::Stop),
        Goal::Start | Goal::Restart => (AgentState::Stopped, ExitReason::Restart),
    };
    (state, LastExit::of(exit, reason))
}

fn how(exit: &LastExit) -> String {
    match (exit.code, &exit.signal) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by {signal}"),
        (None, None) => "nobody saw how".to_owned(),
    }
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
