//! The words of shim protocol 1, frozen: shims speak them for as long as their agents live.

use crate::codec::{Decode, Encode};
use crate::timestamp::Timestamp;
use serde::{Deserialize, Serialize};

/// The number of these words.
pub const NUMBER: u32 = 1;
/// The longest frame that a shim takes over its socket, in bytes: keys go in pieces. A `Launch`, over
/// descriptor 0, may be as long as any frame.
pub const SHIM_FRAME_MAX: usize = 64 * 1024;

/// What a shim is told.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum ToShim {
    /// Start the agent. Taken once, and only over descriptor 0. Answer: `Started` or `SpawnFailed`.
    /// The paths of this protocol number are those that its shims know.
    Launch(Box<ShimLaunch>),
    /// Say how things are; the sender is the shim's daemon from now on. Answer: `Facts`, then what was
    /// told to an earlier daemon and still holds (`StopIncomplete`, `Exited`).
    Describe,
    /// End the whole tree: the signal, the grace period, SIGKILL. A later `Stop` can only shorten the
    /// grace period that is left. Answer: `Exited`, or `StopIncomplete` and an `Exited` when it is done.
    Stop {
        /// Id of the restart path taken.
        path: String,
        /// Number of the graceful signal.
        signal: i32,
        /// Milliseconds until SIGKILL.
        grace_ms: u64,
    },
    /// The exit status is in safe hands: the shim removes its socket and facts and ends.
    Acknowledge,
    /// Show me the terminal from now on, in this size. Answer: `Output`, the present screen first.
    Attach {
        /// Rows of the client's terminal.
        rows: u16,
        /// Columns of it.
        columns: u16,
    },
    /// Keys that an attached client typed.
    Input(Vec<u8>),
    /// The attached client's terminal has a new size.
    Resize {
        /// Rows.
        rows: u16,
        /// Columns.
        columns: u16,
    },
}

/// Everything that a shim needs to start its agent.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct ShimLaunch {
    /// The agent's name.
    pub name: String,
    /// The number of this incarnation.
    pub generation: u64,
    /// Hash of the launch, by which a later daemon sees whether the entry changed.
    pub launch_hash: u64,
    /// Id of the restart path taken.
    pub path: String,
    /// Absolute path of the program.
    pub program: Vec<u8>,
    /// `argv`, the name of the program included.
    pub argv: Vec<Vec<u8>>,
    /// The whole environment.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// The working directory.
    pub cwd: Vec<u8>,
    /// Rows and columns of the pseudo-terminal, if it gets one.
    pub terminal: Option<(u16, u16)>,
    /// Where the output goes.
    pub log_file: Vec<u8>,
    /// Size at which the log is rotated, in bytes.
    pub log_max_bytes: u64,
    /// How many rotated logs are kept.
    pub log_keep: u32,
    /// Programs whose processes may outlive an agent that ended by itself.
    pub keep_children: KeepChildren,
}

/// Which descendants of an agent that ended by itself are left alone.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum KeepChildren {
    /// All.
    All,
    /// Those whose program has one of these base names.
    Named(Vec<String>),
}

/// What a shim says.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum FromShim {
    /// To `Describe`.
    Facts(Box<ShimFacts>),
    /// To `Launch`: the program was executed.
    Started {
        /// The agent's process id.
        pid: u32,
        /// When.
        at: Timestamp,
    },
    /// To `Launch`: the program could not be executed. The shim ends by itself.
    SpawnFailed {
        /// What was tried, for a person: `execute /usr/bin/x`.
        step: String,
        /// The system's error number.
        errno: i32,
    },
    /// The agent ended and nothing of its tree is left. Repeated to each daemon until acknowledged.
    Exited(ShimExit),
    /// Five seconds after SIGKILL these still live; or all that is left belongs to another user, which
    /// is not waited for: then `Exited` follows at once.
    StopIncomplete {
        /// The processes.
        left: Vec<Leftover>,
    },
    /// Bytes of the terminal, to an attached client.
    Output(Vec<u8>),
    /// The agent of an attached client has ended, or has no terminal: nothing more comes.
    Detached {
        /// Why, for a person.
        reason: String,
    },
    /// What was asked is not done: an unknown restart path, a second launch, an acknowledgement of
    /// nothing, a stop by somebody who is not the daemon.
    Refused {
        /// Why, for a person.
        reason: String,
    },
}

/// What a shim knows about its agent.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct ShimFacts {
    /// The agent's name.
    pub name: String,
    /// The number of this incarnation.
    pub generation: u64,
    /// From the launch.
    pub launch_hash: u64,
    /// The shim's own process id.
    pub shim_pid: u32,
    /// The agent's process id.
    pub pid: u32,
    /// When the agent was started.
    pub started_at: Timestamp,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Where the output goes.
    pub log_file: Vec<u8>,
    /// Whether a stop is under way.
    pub stopping: bool,
    /// Set when it ended and nothing of its tree is left.
    pub exit: Option<ShimExit>,
}

/// How an agent ended.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShimExit {
    /// Exit code, if it exited.
    pub code: Option<i32>,
    /// Number of the signal that killed it, if one did.
    pub signal: Option<i32>,
    /// When.
    pub at: Timestamp,
    /// Whether it ended by itself, not by a `Stop`.
    pub by_itself: bool,
    /// Whether SIGKILL was needed.
    pub forced: bool,
    /// How many descendants had to be killed after the grace period; after it ended by itself, how many
    /// had to be told to end.
    pub leftovers: u32,
}

/// A process that could not be ended.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Leftover {
    /// Its id.
    pub pid: u32,
    /// Its command name.
    pub command: String,
    /// Why: uninterruptible, traced, another user's.
    pub reason: String,
}
