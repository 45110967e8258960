//! What the daemon tells about an agent.

use crate::codec::{Decode, Encode};
use crate::shim::ShimExit;
use crate::timestamp::Timestamp;
use serde::{Deserialize, Serialize};

/// One agent as every door shows it: MCP, `--json` and the events.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AgentView {
    /// The unique name from the config.
    pub name: String,
    /// The kind of agent CLI: `claude`, `codex`, …, `generic`.
    pub kind: String,
    /// Where the agent is in its life.
    pub state: AgentState,
    /// The agent's process id while it runs.
    pub pid: Option<u32>,
    /// How often this agent was launched; it never goes down.
    pub generation: u64,
    /// When the running process was started.
    pub started_at: Option<Timestamp>,
    /// Milliseconds since then.
    pub uptime_ms: Option<u64>,
    /// Whether it is started with the daemon.
    pub autostart: bool,
    /// Whether it runs in a pseudo-terminal that can be attached to.
    pub tty: bool,
    /// The conversation it has, where known.
    pub session_id: Option<String>,
    /// When this process last reached the MCP endpoint.
    pub connected_at: Option<Timestamp>,
    /// The entry on disk is no longer the one that the process was launched with.
    pub config_changed: bool,
    /// False for an agent that runs on after its entry was removed.
    pub listed: bool,
    /// Where its output goes.
    pub log_file: String,
    /// How the last process ended.
    pub last_exit: Option<LastExit>,
}

/// Where an agent is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AgentState {
    /// Never started, or stopped on request.
    Stopped,
    /// Its process lives.
    Running,
    /// It was asked to end and its tree is not empty yet.
    Stopping,
    /// It ended by itself.
    Exited,
    /// It could not be started.
    Failed,
}

/// How a process of an agent ended.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LastExit {
    /// Exit code, if it exited.
    pub code: Option<i32>,
    /// Name of the signal that killed it (`SIGTERM`), if one did.
    pub signal: Option<String>,
    /// When.
    pub at: Timestamp,
    /// Why.
    pub reason: ExitReason,
    /// Whether SIGKILL was needed.
    pub forced: bool,
    /// How many descendants had to be killed after the grace period, or after it ended by itself.
    pub leftovers: u32,
    /// The system's reason why it could not be started.
    pub message: Option<String>,
}

impl LastExit {
    /// The exit that a shim has seen.
    pub fn of(exit: &ShimExit, reason: ExitReason) -> Self {
        Self {
            code: exit.code,
            signal: exit.signal.map(signal_name),
            at: exit.at,
            reason,
            forced: exit.forced,
            leftovers: exit.leftovers,
            message: None,
        }
    }

    /// An end of which nothing but the time and the reason is known.
    pub fn unseen(at: Timestamp, reason: ExitReason) -> Self {
        Self { code: None, signal: None, at, reason, forced: false, leftovers: 0, message: None }
    }
}

/// Why a process of an agent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ExitReason {
    /// A stop was requested.
    Stop,
    /// A restart was requested.
    Restart,
    /// By itself.
    Exited,
    /// It never ran: the program could not be executed.
    SpawnFailed,
    /// The daemon was shut down.
    Shutdown,
    /// Its launch was rolled back.
    RolledBack,
    /// Its shim died, or the machine did; nobody saw how it ended.
    Lost,
}

/// What a restart does with the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Resume {
    /// Resume exactly the conversation that the agent had.
    Same,
    /// Start a new one.
    Fresh,
}

/// The name of a signal whose number is the same on every Linux and macOS; else its number.
fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        other => return format!("SIG{other}"),
    };
    name.to_owned()
}
