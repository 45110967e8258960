//! What the daemon answers.

use crate::agent::{AgentView, LastExit};
use crate::codec::{Decode, Encode};
use crate::stdio::{StdioRestarted, StdioServer};
use crate::timestamp::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One message of the daemon; `id` is that of the request it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct ServerFrame {
    /// The id from the `ClientFrame`.
    pub id: u64,
    /// The message.
    pub body: ServerBody,
}

/// What a [`ServerFrame`] says.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum ServerBody {
    /// The one answer to a request.
    Answer(Answer),
    /// The one answer to a request that was refused or failed.
    Failed(Failure),
    /// One of many messages to a subscriber.
    Event(Event),
}

/// The answer to a request that was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Answer {
    /// To `List`.
    Agents(Vec<AgentView>),
    /// To `Status`.
    Status(Box<ServerStatus>),
    /// To `Start` and `Stop`.
    Agent(Box<AgentAnswer>),
    /// To `Restart`.
    Restarted(Box<RestartAnswer>),
    /// To `Handoff`.
    Handoff(Box<Handoff>),
    /// To `Logs`.
    Logs(LogLines),
    /// To `StdioServers`.
    StdioServers(Vec<StdioServer>),
    /// To `RestartStdioServers`.
    StdioRestarted(Box<StdioRestarted>),
    /// To `Terminal`.
    Terminal(Terminal),
    /// To `McpConfig`: the file's content as JSON text, and the environment variables that go with it.
    McpConfig(McpConfig),
    /// To `Protected`.
    Protected {
        /// The processes.
        processes: Vec<ProtectedProcess>,
        /// The endpoint's port, if it is served.
        port: Option<u16>,
    },
    /// To `Delivered` and `MarkerChanged`.
    Done,
    /// To `Authenticate`: who asks. It holds for as long as the caller's connection.
    Admitted(Caller),
}

/// A process of the supervisor or of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct ProtectedProcess {
    /// Its process id.
    pub pid: u32,
    /// Its parent.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// What `ps` and its like call it.
    pub names: Vec<String>,
    /// Its whole command line.
    pub command: String,
    /// What it belongs to.
    pub owner: Owner,
}

/// What a [`ProtectedProcess`] belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum Owner {
    /// It is the daemon.
    Daemon,
    /// It is the bridge.
    Bridge,
    /// It is the agent of this name, or its shim.
    Agent(String),
}

/// See [`Answer::Agent`].
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AgentAnswer {
    /// The agent after the operation.
    pub agent: AgentView,
    /// Set when the caller stopped itself: the stop waits until this number was reported delivered.
    #[serde(skip)]
    pub delivery: Option<u64>,
}

/// See [`Answer::Restarted`].
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RestartAnswer {
    /// The restart will happen whatever becomes of the caller; when the caller is not the target, it has.
    pub accepted: bool,
    /// The number that the new process has or will have.
    pub generation: u64,
    /// The agent, after the restart or, for a caller that restarts itself, before it.
    pub agent: AgentView,
    /// The process that was replaced.
    pub previous: Option<Previous>,
    /// Names of the fields in which the new launch differs from the old one.
    pub config_diff: Vec<String>,
    /// Whether the new launch did not live and the last good one was started instead.
    pub rolled_back: bool,
    /// What came out otherwise than one might expect, a sentence each.
    pub warnings: Vec<String>,
    /// The answer of an earlier request with the same `requestId`, repeated.
    pub replayed: bool,
    /// When that earlier request was accepted.
    pub replayed_at: Option<Timestamp>,
    /// Set when the caller restarted itself: the stop waits until this number was reported delivered.
    #[serde(skip)]
    pub delivery: Option<u64>,
}

/// The process that a restart replaced.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Previous {
    /// Its process id.
    pub pid: u32,
    /// How it ended; not known yet to a caller that restarts itself.
    pub exit: Option<LastExit>,
}

/// The daemon itself.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    /// Version of the running daemon.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// The MCP endpoint, once it listens.
    pub url: Option<String>,
    /// Milliseconds since the daemon started.
    pub uptime_ms: u64,
    /// The config file that it serves.
    pub config_file: String,
    /// Why that file cannot be used at present; the last good one is in force.
    pub config_error: Option<String>,
    /// Its state dir.
    pub state_dir: String,
    /// Why it cannot write down there what it does: the daemon after it would not know of that.
    pub state_error: Option<String>,
    /// Why the running programs are not those on disk, with the remedy.
    pub stale: Option<String>,
    /// Why the MCP endpoint is not served at present.
    pub endpoint_error: Option<String>,
    /// That the guard has refused a command, and which.
    pub contaminated: Option<String>,
    /// Fields whose change waits for the next start of the daemon.
    pub pending_config: Vec<String>,
    /// Agents whose present process an earlier daemon started.
    pub adopted: Vec<String>,
    /// What became of what the daemon before had left. What is about an agent is told until that agent goes
    /// on to another process, or to none.
    pub recovered: Vec<Recovered>,
    /// Running agents that this daemon can show and stop, but not more, until they are restarted.
    pub need_restart: Vec<NeedRestart>,
    /// Agents whose shim is another program than this daemon, which an upgrade leaves behind. They lack nothing: the next
    /// restart of each renews it.
    pub stale_shims: Vec<String>,
    /// The agents of the config.
    pub agents: Vec<AgentView>,
    /// Agents that run on after their entry was removed.
    pub unlisted: Vec<AgentView>,
    /// Who the daemon takes the caller for.
    pub caller: Caller,
}

/// What became of something that the daemon before had left.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Recovered {
    /// The agent that it is about; none if it is about more than one.
    pub agent: Option<String>,
    /// What happened, for a person.
    pub text: String,
    /// Whether it came to less than what was wanted, so that somebody had better look.
    pub attention: bool,
}

/// An agent whose shim is of a version that the daemon does not understand.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NeedRestart {
    /// The agent's name.
    pub name: String,
    /// Why, for a person.
    pub reason: String,
}

/// Who asked for something.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum Caller {
    /// Whoever holds the operator token.
    Operator,
    /// A process of the daemon's user, or root's.
    LocalUser {
        /// Its process id, where known.
        pid: Option<u32>,
    },
    /// An agent, or a process below it.
    Agent {
        /// The agent's name.
        name: String,
    },
    /// The daemon itself, when it starts agents by `autostart`.
    Supervisor,
    /// Somebody on this machine, where the system does not tell which process.
    Unknown,
}

/// What one incarnation left for the next.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Handoff {
    /// The agent that it is for.
    pub agent: String,
    /// The generation that it is for.
    pub generation: u64,
    /// When the restart was accepted.
    pub at: Timestamp,
    /// The notes, in the order in which they came: more than one when restarts were joined.
    pub notes: Vec<Note>,
    /// Names of the fields in which this launch differs from the one before.
    pub config_diff: Vec<String>,
    /// The caller's id of the request, if it gave one.
    pub request_id: Option<String>,
    /// Whether this process runs the last good launch because a newer one did not live.
    pub rolled_back: bool,
    /// When the agent itself first read this.
    pub read_at: Option<Timestamp>,
}

/// One request of a restart, in a [`Handoff`].
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// Who asked for the restart.
    pub from: Caller,
    /// What they wrote, if anything.
    pub text: Option<String>,
}

/// The newest lines of a log.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LogLines {
    /// The lines, oldest first, without escape sequences.
    pub lines: Vec<String>,
    /// Whether fewer came than were asked for, since they would have been too long.
    pub truncated: bool,
}

/// Where to attach to an agent's terminal.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Terminal {
    /// Path of the shim's socket.
    pub socket: String,
    /// The generation that this shim holds.
    pub generation: u64,
}

/// See [`Answer::McpConfig`].
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct McpConfig {
    /// Path of the generated file.
    pub file: String,
    /// Its content.
    pub content: String,
}

/// A change of one agent.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Goes up by one with every change that this daemon publishes.
    pub revision: u64,
    /// The agent after the change.
    pub agent: AgentView,
}

/// Why a request was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The kind of failure.
    pub code: ErrorCode,
    /// What happened, a sentence for a person.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// The same failure with a remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Daemon => f.write_str("the supervisor"),
            Self::Bridge => f.write_str("the MCP endpoint"),
            Self::Agent(name) => write!(f, "agent {name}"),
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// No agent of that name.
    UnknownAgent,
    /// Start of an agent that runs.
    AlreadyRunning,
    /// Stop of an agent that does not run.
    NotRunning,
    /// The config file cannot be used.
    ConfigInvalid,
    /// The program could not be executed.
    SpawnFailed,
    /// The new process ended within its `settleMs`.
    ExitedEarly,
    /// Processes are left that could not be ended.
    StopIncomplete,
    /// A later request took precedence.
    Superseded,
    /// The launch was rolled back before and has not changed since.
    LaunchKnownBad,
    /// The caller may not do that, or is not known.
    NotAllowed,
    /// The agent restarted itself too often.
    TooManyRestarts,
    /// A broad kill was attempted and the operator has not cleared it.
    Contaminated,
    /// The program on disk is not the one that runs.
    StaleDaemon,
    /// The request names no registered restart path.
    UnknownRestartPath,
    /// The daemon is shutting down.
    ShuttingDown,
    /// The daemon cannot be reached.
    DaemonUnavailable,
    /// An argument is missing or wrong.
    InvalidArgument,
    /// A fault of mcp-restart.
    Internal,
}
