//! What a client asks of the daemon.

use crate::agent::Resume;
use crate::answer::Caller;
use crate::codec::{Decode, Encode};
use crate::stdio::StdioRestartRequest;
use std::net::SocketAddr;

/// The longest note of a restart, in bytes.
pub const NOTE_MAX: usize = 8 * 1024;
/// The most lines that [`Request::Logs`] gives.
pub const LOG_LINES_MAX: u32 = 1000;
/// The most bytes of log text that [`Request::Logs`] gives.
pub const LOG_BYTES_MAX: usize = 64 * 1024;

/// One request on a connection; `id` is the client's, and its answers carry it again.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct ClientFrame {
    /// Chosen by the client, unique among its requests under way.
    pub id: u64,
    /// Who asks.
    pub credential: Credential,
    /// Whether the environment of the command consents to what a daemon that is no longer the program on disk does.
    pub allows_stale: bool,
    /// What for.
    pub request: Request,
}

/// By what the daemon finds out who asks.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Credential {
    /// The process at the other end of this socket connection.
    Peer,
    /// A token: the operator's, or an agent's own (`mra_…`).
    Token(String),
    /// A caller over HTTP, as the bridge saw it.
    Http {
        /// The bearer token, if it sent one.
        token: Option<String>,
        /// Its end of the TCP connection.
        peer: SocketAddr,
        /// The bridge's end of it.
        local: SocketAddr,
    },
    /// A caller over HTTP without a token, whom the daemon has found out about on that TCP connection before.
    Admitted(Caller),
}

/// What the daemon can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Request {
    /// Every agent; those that are no longer in the config only with `all`. Answer: `Agents`.
    List {
        /// With the unlisted ones.
        all: bool,
    },
    /// The daemon itself. Answer: `Status`.
    Status,
    /// Start one agent. Answer: `Agent`.
    Start {
        /// Id of the restart path taken.
        path: String,
        /// The agent.
        name: String,
        /// Also with a launch that is known to be bad.
        force: bool,
        /// Whether to answer only when the process was seen to live.
        wait: bool,
    },
    /// Stop one agent. Answer: `Agent`.
    Stop {
        /// Id of the restart path taken.
        path: String,
        /// The agent.
        name: String,
        /// Whether to answer only when its tree is gone.
        wait: bool,
    },
    /// Restart one agent. Answer: `Restarted`.
    Restart(RestartRequest),
    /// The note of the restart that made the agent's present process. Answer: `Handoff`.
    Handoff {
        /// The agent; without a name, the caller.
        name: Option<String>,
    },
    /// The newest lines of an agent's log. Answer: `Logs`.
    Logs {
        /// The agent.
        name: String,
        /// How many, at most [`LOG_LINES_MAX`].
        lines: u32,
    },
    /// The stdio MCP servers of the config that run. Answer: `StdioServers`.
    StdioServers,
    /// End such servers and see whether their clients start them again. Answer: `StdioRestarted`.
    RestartStdioServers(StdioRestartRequest),
    /// Where to attach to an agent's terminal. Answer: `Terminal`.
    Terminal {
        /// The agent.
        name: String,
    },
    /// The MCP server entry as an agent's CLI would be given it. Answer: `McpConfig`.
    McpConfig {
        /// The agent.
        name: String,
    },
    /// Every change of an agent from now on, as `Event` frames with this request's id, the present state
    /// of each agent first.
    Subscribe,
    /// Whether the caller is let in at all: the bridge asks this before it looks at what a caller sent.
    /// Answer: `Admitted`, or a failure `NotAllowed` for a wrong token, or for a missing one where one is needed.
    Authenticate,
    /// Every process that must not be killed by name, pattern or number. Answer: `Protected`.
    Protected,
    /// The marker of the guard was written or removed: it is to be noted. Answer: `Done`.
    MarkerChanged,
    /// The last byte of an answer that carried this delivery number was written to its caller.
    Delivered {
        /// The number from `RestartAnswer::delivery` or `Answer::Agent`'s.
        delivery: u64,
    },
    /// The calling agent's client has told which conversation it is in. Answer: `Done`; from others, and for what
    /// cannot be the id of one, it means nothing.
    Session {
        /// Its id.
        id: String,
    },
}

/// See [`Request::Restart`].
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct RestartRequest {
    /// Id of the restart path taken.
    pub path: String,
    /// The agent; without a name, the caller.
    pub name: Option<String>,
    /// A note for the next incarnation, at most [`NOTE_MAX`] bytes.
    pub note: Option<String>,
    /// What to do with the conversation, if not what the config says.
    pub resume: Option<Resume>,
    /// The same id from the same caller gets the first answer again and restarts nothing.
    pub request_id: Option<String>,
    /// Also with a launch that is known to be bad.
    pub force: bool,
    /// Whether to answer only when the new process was seen to live.
    pub wait: bool,
}
