//! What is said about stdio MCP servers: processes that MCP clients start and talk to by pipes.

use crate::codec::{Decode, Encode};
use crate::timestamp::Timestamp;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// How long a restart watches whether clients start their servers again, in milliseconds, if not told.
pub const RESPAWN_WAIT_MS: u64 = 3_000;
/// The longest that it may be told to watch.
pub const RESPAWN_WAIT_MS_MAX: u64 = 60_000;
/// The time between the delivery of the answer and the end of the server that asked, in milliseconds, if not
/// told.
pub const SELF_DELAY_MS: u64 = 500;
/// The longest that it may be told to be.
pub const SELF_DELAY_MS_MAX: u64 = 60_000;

/// A server that runs.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StdioServer {
    /// The name of its entry in `stdioServers` of the config.
    pub name: String,
    /// Its process id: of its processes the one closest to the client.
    pub pid: u32,
    /// The id of that process's parent.
    pub ppid: u32,
    /// Its command line, with what looks like a secret left out.
    pub command: String,
    /// When it started.
    pub started_at: Timestamp,
    /// Who started it and talks to it; null if that is gone or cannot be seen.
    pub client: Option<StdioClient>,
    /// Whether its client is gone.
    pub orphaned: bool,
    /// Whether its program or script on disk is newer than the process, or gone.
    pub stale: bool,
}

/// The program that a server belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StdioClient {
    /// Its program.
    pub program: String,
    /// Its process id.
    pub pid: u32,
    /// The supervised agent that it is, or is part of.
    pub agent: Option<String>,
}

/// Which servers to restart, and how.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct StdioRestartRequest {
    /// Id of the restart path taken.
    pub path: String,
    /// The entries of the config that are meant; none: all.
    pub names: Vec<String>,
    /// Of these only those that are stale.
    pub stale_only: bool,
    /// Of these only those that are orphaned.
    pub orphaned_only: bool,
    /// Also the server through which the request came, after its answer.
    pub include_self: bool,
    /// Only tell what would be done.
    pub dry_run: bool,
    /// How long to watch whether clients start them again, at most [`RESPAWN_WAIT_MS_MAX`].
    pub respawn_wait_ms: u64,
    /// The time between the delivery of the answer and the end of the server that asked, at most
    /// [`SELF_DELAY_MS_MAX`].
    pub self_delay_ms: u64,
    /// The caller's end of its TCP connection and the bridge's, if it came over HTTP: by them the server through
    /// which it came is found.
    pub connection: Option<(SocketAddr, SocketAddr)>,
}

/// What became of a restart of servers.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StdioRestarted {
    /// How it came out as a whole.
    pub status: StdioStatus,
    /// How many servers were ended, other than the one that asked.
    pub killed_other: u32,
    /// Their process ids.
    pub killed: Vec<u32>,
    /// Those that could not be ended.
    pub failed: Vec<StdioFailure>,
    /// Those that their clients started again.
    pub respawned: Vec<Respawned>,
    /// Those that their clients had not started again when the watch ended.
    pub not_respawned: Vec<NotRespawned>,
    /// Whether the server through which the request came ends after this answer.
    pub self_exit_scheduled: bool,
    /// What this means and what there is to do, for a person or a model.
    pub note: String,
    /// Set when the server that asked is ended: that waits until this number was reported delivered.
    #[serde(skip)]
    pub delivery: Option<u64>,
}

/// How a restart of servers came out as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StdioStatus {
    /// Every server that was meant was ended; perhaps there was none.
    Success,
    /// Some were ended and some could not be.
    Partial,
    /// None of them could be ended.
    Failed,
    /// Nothing was touched: the note tells what would have been.
    DryRun,
}

/// A server that could not be ended.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StdioFailure {
    /// The process that is left.
    pub pid: u32,
    /// Why.
    pub error: String,
}

/// A server that its client started again.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Respawned {
    /// The process that was ended.
    pub old_pid: u32,
    /// The one in its place.
    pub new_pid: u32,
    /// Who started both.
    pub client: StdioClient,
}

/// A server that its client did not start again.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NotRespawned {
    /// The process that was ended.
    pub pid: u32,
    /// Whose it was.
    pub client: StdioClient,
}
