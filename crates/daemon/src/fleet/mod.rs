//! The agents of one daemon.
//!
//! ```text
//!  server ─ Fleet (handle) ─► fleet task ─ one channel each ─► agent task ─ Link ─► shim
//!                               │  ▲ reports                    Machine
//!                               ▼  │
//!                          state.json, subscribers
//! ```
//!
//! The fleet task owns the config in force, the stored intent and the published views; each agent task
//! owns the state of its agent and the connection to its shim. A report reaches the fleet task before the
//! answer to the request that caused it is sent, so whoever got an answer sees its effect in every list.

mod adopt;
mod agent;
mod answers;
mod config_watch;
mod finish;
mod foreign;
mod handoff;
mod intent;
mod launch;
mod leave;
mod link;
mod logs;
mod members;
mod reading;
mod repetition;
mod requests;
mod rights;
mod rollback;
mod sessions;
mod stdio;
mod store;
mod task;
mod tokens;
mod trials;

pub(crate) use leave::another_upgrade;
pub(crate) use stdio::{Awaited, Lease, StdioGrant};
pub(crate) use store::check as check_stored;

use crate::children::Children;
use crate::last_good::FirstConfig;
use mcp_restart_config::Environment;
use mcp_restart_protocol::agent::{AgentView, LastExit};
use mcp_restart_protocol::answer::{
    AgentAnswer, Caller, ErrorCode, Event, Failure, Handoff, LogLines, McpConfig, NeedRestart, Recovered,
    RestartAnswer, Terminal,
};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::request::RestartRequest;
use mcp_restart_stdio::Scope;
use std::path::PathBuf;
use tokio::sync::{mpsc, oneshot};

/// What the fleet needs to begin.
#[derive(Debug)]
pub(crate) struct FleetSetup {
    /// The config in force at the start of the daemon.
    pub first: FirstConfig,
    /// With what the config is read again.
    pub environment: Environment,
    /// The state dir, which the caller holds the lock of.
    pub state_dir: PathBuf,
    /// The socket that the daemon serves.
    pub socket: PathBuf,
    /// Starts and reaps shims.
    pub children: Children,
}

/// A handle on the fleet; it talks to the fleet task by channel.
#[derive(Debug, Clone)]
pub(crate) struct Fleet {
    // Unbounded, since fleet and agent tasks talk to each other in both directions; the server bounds how
    // many requests are under way.
    messages: mpsc::UnboundedSender<Message>,
}

/// What `server_status` shows of the agents.
#[derive(Debug, Clone)]
pub(crate) struct FleetStatus {
    /// The agents of the config.
    pub agents: Vec<AgentView>,
    /// Agents that run on after their entry was removed.
    pub unlisted: Vec<AgentView>,
    /// Why the config file cannot be used at present.
    pub config_error: Option<String>,
    /// Why the state cannot be stored at present.
    pub state_error: Option<String>,
    /// Fields whose change waits for the next start of the daemon.
    pub pending_config: Vec<String>,
    /// Agents whose present process an earlier daemon started.
    pub adopted: Vec<String>,
    /// What became of what the daemon before left.
    pub recovered: Vec<Recovered>,
    /// Agents that this daemon can only show and stop.
    pub need_restart: Vec<NeedRestart>,
}

/// The changes of all agents from some moment on.
#[derive(Debug)]
pub(crate) struct Subscription {
    events: mpsc::Receiver<Event>,
}

/// A request to start or stop one agent.
#[derive(Debug, Clone)]
pub(crate) struct Lifecycle {
    /// Who asks.
    pub caller: Caller,
    /// The way that it takes.
    pub path: RestartPath,
    /// The agent.
    pub name: String,
    /// Also with a launch that is known to be bad.
    pub force: bool,
    /// Whether to answer only when it is done.
    pub wait: bool,
}

/// What an agent is at, for the record.
#[derive(Debug, Clone, Default)]
pub(crate) struct Glance {
    /// Its process.
    pub pid: Option<u32>,
    /// Hash of the entry that this was launched with.
    pub launch: Option<String>,
    /// How the one before ended.
    pub last_exit: Option<LastExit>,
}

type Reply<T> = oneshot::Sender<Result<T, Failure>>;

#[derive(Debug)]
enum Message {
    List {
        all: bool,
        reply: oneshot::Sender<Vec<AgentView>>,
    },
    Status {
        reply: oneshot::Sender<FleetStatus>,
    },
    Start {
        request: Lifecycle,
        reply: Reply<AgentAnswer>,
    },
    Stop {
        request: Lifecycle,
        reply: Reply<AgentAnswer>,
    },
    Restart {
        caller: Caller,
        path: RestartPath,
        request: RestartRequest,
        reply: Reply<RestartAnswer>,
    },
    Glance {
        name: String,
        reply: oneshot::Sender<Glance>,
    },
    Handoff {
        caller: Caller,
        name: Option<String>,
        reply: Reply<Handoff>,
    },
    Terminal {
        name: String,
        reply: Reply<Terminal>,
    },
    McpConfig {
        caller: Caller,
        name: String,
        reply: Reply<McpConfig>,
    },
    Logs {
        caller: Caller,
        name: String,
        lines: u32,
        reply: Reply<LogLines>,
    },
    Delivered {
        delivery: u64,
    },
    Session {
        caller: Caller,
        id: String,
    },
    Connected {
        agent: String,
    },
    AgentOfToken {
        token: String,
        reply: oneshot::Sender<Option<String>>,
    },
    AgentOfProcess {
        pid: u32,
        reply: oneshot::Sender<Option<String>>,
    },
    Shims {
        reply: oneshot::Sender<Vec<(String, u32)>>,
    },
    Subscribe {
        events: mpsc::Sender<Event>,
    },
    Endpoint {
        url: String,
    },
    ShutDown {
        path: RestartPath,
        reply: oneshot::Sender<()>,
    },
    Hurry,
    MayUpgrade {
        caller: Caller,
        managed: bool,
        reply: Reply<()>,
    },
    MakeWay {
        reply: oneshot::Sender<()>,
    },
    Stay,
    WriteAgain,
    StdioScope {
        reply: oneshot::Sender<Scope>,
    },
    RestartStdio {
        caller: Caller,
        lease: stdio::Lease,
        reply: Reply<StdioGrant>,
    },
    /// A lease was given back.
    StdioRestarted,
    AwaitDelivery {
        reply: oneshot::Sender<Awaited>,
    },
    /// From an agent task.
    Report(agent::Report),
}

/// Adopts the shims that live and starts the fleet task.
pub(crate) async fn start(setup: FleetSetup) -> Fleet {
    let (messages, inbox) = mpsc::unbounded_channel();
    let fleet = Fleet { messages };
    let task = task::FleetTask::new(setup, fleet.messages.clone()).await;
    tokio::spawn(task.run(inbox));
    fleet
}

impl Fleet {
    /// The agents of the config, with `all` also those that run on without an entry.
    pub(crate) async fn list(&self, all: bool) -> Vec<AgentView> {
        self.ask(|reply| Message::List { all, reply }).await.unwrap_or_default()
    }

    /// The agents and the state of the config.
    pub(crate) async fn status(&self) -> Result<FleetStatus, Failure> {
        self.ask(|reply| Message::Status { reply }).await.ok_or_else(gone)
    }

    /// Starts an agent under the config read again.
    pub(crate) async fn start(&self, request: Lifecycle) -> Result<AgentAnswer, Failure> {
        self.ask_fallible(|reply| Message::Start { request, reply }).await
    }

    /// Stops an agent.
    pub(crate) async fn stop(&self, request: Lifecycle) -> Result<AgentAnswer, Failure> {
        self.ask_fallible(|reply| Message::Stop { request, reply }).await
    }

    /// Restarts an agent under the config read again.
    pub(crate) async fn restart(
        &self,
        caller: Caller,
        path: RestartPath,
        request: RestartRequest,
    ) -> Result<RestartAnswer, Failure> {
        self.ask_fallible(|reply| Message::Restart { caller, path, request, reply }).await
    }

    /// What an agent is at; nothing for a name that nobody has.
    pub(crate) async fn glance(&self, name: String) -> Glance {
        self.ask(|reply| Message::Glance { name, reply }).await.unwrap_or_default()
    }

    /// The note of the restart that made an agent's present process.
    pub(crate) async fn handoff(&self, caller: Caller, name: Option<String>) -> Result<Handoff, Failure> {
        self.ask_fallible(|reply| Message::Handoff { caller, name, reply }).await
    }

    /// Where an agent's terminal can be attached to.
    pub(crate) async fn terminal(&self, name: String) -> Result<Terminal, Failure> {
        self.ask_fallible(|reply| Message::Terminal { name, reply }).await
    }

    /// The MCP config that an agent is given.
    pub(crate) async fn mcp_config(&self, caller: Caller, name: String) -> Result<McpConfig, Failure> {
        self.ask_fallible(|reply| Message::McpConfig { caller, name, reply }).await
    }

    /// The newest lines of an agent's log.
    pub(crate) async fn logs(&self, caller: Caller, name: String, lines: u32) -> Result<LogLines, Failure> {
        self.ask_fallible(|reply| Message::Logs { caller, name, lines, reply }).await
    }

    /// The last byte of the answer with this number was written to its caller.
    pub(crate) fn delivered(&self, delivery: u64) {
        self.tell(Message::Delivered { delivery });
    }

    /// The client of this caller told the conversation that it is in.
    pub(crate) fn session(&self, caller: Caller, id: String) {
        self.tell(Message::Session { caller, id });
    }

    /// This agent has just reached the MCP endpoint.
    pub(crate) fn connected(&self, agent: String) {
        self.tell(Message::Connected { agent });
    }

    /// The agent that a token belongs to.
    pub(crate) async fn agent_of_token(&self, token: String) -> Option<String> {
        self.ask(|reply| Message::AgentOfToken { token, reply }).await.flatten()
    }

    /// The agent below whose shim a process is.
    pub(crate) async fn agent_of_process(&self, pid: u32) -> Option<String> {
        self.ask(|reply| Message::AgentOfProcess { pid, reply }).await.flatten()
    }

    /// The agents that have processes, and the shim above each.
    pub(crate) async fn shims(&self) -> Vec<(String, u32)> {
        self.ask(|reply| Message::Shims { reply }).await.unwrap_or_default()
    }

    /// Every change from now on, the present state of each agent first. A subscriber that falls far
    /// behind is dropped.
    pub(crate) fn subscribe(&self) -> Subscription {
        const BACKLOG: usize = 1024;
        let (sender, events) = mpsc::channel(BACKLOG);
        self.tell(Message::Subscribe { events: sender });
        Subscription { events }
    }

    /// The endpoint listens there: injection uses it, and autostart begins.
    pub(crate) fn endpoint(&self, url: String) {
        self.tell(Message::Endpoint { url });
    }

    /// Refuses everything from now on, and returns when every agent is stopped.
    pub(crate) async fn shut_down(&self, path: RestartPath) {
        let _ = self.ask(|reply| Message::ShutDown { path, reply }).await;
    }

    /// Skips the grace periods of a shutdown.
    pub(crate) fn hurry(&self) {
        self.tell(Message::Hurry);
    }

    /// Whether this caller may have the daemon make way; `managed`: a service manager starts its successor.
    pub(crate) async fn may_upgrade(&self, caller: Caller, managed: bool) -> Result<(), Failure> {
        self.ask_fallible(|reply| Message::MayUpgrade { caller, managed, reply }).await
    }

    /// Refuses everything new from now on, and returns when nothing is under way: no start, no stop, no
    /// restart. Every agent runs on.
    pub(crate) async fn make_way(&self) {
        let _ = self.ask(|reply| Message::MakeWay { reply }).await;
    }

    /// Takes requests again after [`Fleet::make_way`].
    pub(crate) fn stay(&self) {
        self.tell(Message::Stay);
    }

    /// What was written under the state dir is gone: writes it again, and has the shims do so.
    pub(crate) fn write_again(&self) {
        self.tell(Message::WriteAgain);
    }

    fn tell(&self, message: Message) {
        let _ = self.messages.send(message);
    }

    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.tell(message(reply));
        answer.await.ok()
    }

    async fn ask_fallible<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Result<T, Failure> {
        self.ask(message).await.unwrap_or_else(|| Err(gone()))
    }
}

impl Subscription {
    /// The next change; none when the daemon ends, or when the subscriber fell too far behind.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

/// The answer when the task that should have given one is gone.
fn gone() -> Failure {
    Failure::new(ErrorCode::Internal, "the supervisor dropped the request")
        .hint("see mcp-restart.log in the state dir")
}

#[cfg(test)]
mod laws;

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_restart_config::{Environment, lookup};

    /// A fleet with an agent `a` that cannot come up: its shim would be this test program.
    async fn fleet(folder: &std::path::Path) -> Fleet {
        let file = folder.join("config.json");
        let text = r#"{ "agents": [{ "name": "a", "command": "sleep", "args": ["1000"] }] }"#;
        std::fs::write(&file, text).unwrap();
        std::fs::create_dir_all(folder.join("logs")).unwrap();
        let environment = Environment { cwd: folder.to_owned(), ..Environment::default() };
        let config = mcp_restart_config::load(&file, &environment).unwrap();
        start(FleetSetup {
            first: FirstConfig { config, text: Ok(text.to_owned()) },
            environment,
            state_dir: folder.to_owned(),
            socket: lookup::socket(folder),
            children: Children::start(1024).unwrap(),
        })
        .await
    }

    #[tokio::test]
    async fn a_start_that_comes_right_after_a_restart_does_not_take_its_note_away() {
        let folder = tempfile::tempdir().unwrap();
        let fleet = fleet(folder.path()).await;
        let caller = Caller::Operator;
        let request = RestartRequest {
            path: RestartPath::CtlRestart.id().to_owned(),
            name: Some("a".to_owned()),
            note: Some("read me".to_owned()),
            resume: None,
            request_id: None,
            force: false,
            wait: false,
        };
        let path = RestartPath::CtlStart;
        let name = "a".to_owned();
        let start = Lifecycle { caller: caller.clone(), path, name, force: false, wait: false };
        // Both are told to the fleet before the agent has reported anything.
        let (restarted, _) =
            tokio::join!(fleet.restart(caller, RestartPath::CtlRestart, request), fleet.start(start));
        restarted.unwrap();
        let handoff = handoff::read_present(folder.path(), "a").unwrap();
        assert_eq!(handoff.notes.first().and_then(|note| note.text.as_deref()), Some("read me"));
    }
}
