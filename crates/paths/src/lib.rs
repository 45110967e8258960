//! The registry of restart paths: every way in which a process here may be started, restarted, reloaded, stopped or killed.
//!
//! The functions of `mcp-restart-process` that start or signal demand a [`RestartPath`], so a way that is
//! not registered here does not compile. A request that comes from outside names its path by id, and an
//! id that nobody registered is refused ([`RestartPath::from_door`]). The ways that no code of ours takes (those that
//! are forbidden, removed, or up to the host) are in the [`registry`] all the same, each with what guards it.

mod registry;

pub use registry::{Classification, Entry, registry};

use std::fmt;

/// One registered way of starting, stopping or signalling processes.
///
/// There is no way to make one up:
///
/// ```compile_fail
/// let path = mcp_restart_paths::RestartPath::Pkill;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RestartPath {
    /// `start_agent` over MCP.
    McpStart,
    /// `stop_agent` over MCP.
    McpStop,
    /// `restart_agent` over MCP.
    McpRestart,
    /// `restart_stdio_servers` over MCP.
    McpRestartServers,
    /// `mcp-restartctl start`, and the start that `run` does.
    CtlStart,
    /// `mcp-restartctl stop`.
    CtlStop,
    /// `mcp-restartctl restart`.
    CtlRestart,
    /// `mcp-restartctl servers restart`.
    CtlRestartServers,
    /// `mcp-restartctl down`.
    CtlDown,
    /// `mcp-restartctl up`, and the daemon that `run` and `demo` bring up.
    CtlUp,
    /// `mcp-restartctl upgrade`: the daemon makes way, and the program on disk is started in its place.
    CtlUpgrade,
    /// Agents with `autostart` when the daemon starts clean.
    Autostart,
    /// A restart's launch did not live, and the last one that stayed up takes its place.
    Rollback,
    /// SIGTERM or SIGINT to the daemon: it stops every agent and the bridge.
    DaemonShutdown,
    /// The daemon starts its bridge, again when the bridge ended, and ends it with itself.
    BridgeChild,
    /// An agent ended by itself; its shim ends what it left behind.
    ExitSweep,
    /// A shim was killed; what its agent left is known by its environment and ended.
    LostSweep,
    /// A shim that never got its launch, or whose start failed, is ended by its daemon.
    AbandonedShim,
    /// SIGTERM or SIGINT to a shim: it ends its agent's tree before itself.
    ShimSignalled,
}

/// An id from outside that names no path of this registry, or none that a request may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownRestartPath {
    /// The id as it came.
    pub path_id: String,
}

impl RestartPath {
    /// Every path, in the order of the registry.
    pub const ALL: [Self; 19] = [
        Self::McpStart,
        Self::McpStop,
        Self::McpRestart,
        Self::McpRestartServers,
        Self::CtlStart,
        Self::CtlStop,
        Self::CtlRestart,
        Self::CtlRestartServers,
        Self::CtlDown,
        Self::CtlUp,
        Self::CtlUpgrade,
        Self::Autostart,
        Self::Rollback,
        Self::DaemonShutdown,
        Self::BridgeChild,
        Self::ExitSweep,
        Self::LostSweep,
        Self::AbandonedShim,
        Self::ShimSignalled,
    ];

    /// The id that requests, logs and events name this path by.
    pub const fn id(self) -> &'static str {
        self.entry().path_id
    }

    /// Whether a request that comes through the daemon's socket may name this path.
    pub const fn is_door(self) -> bool {
        matches!(
            self,
            Self::McpStart
                | Self::McpStop
                | Self::McpRestart
                | Self::McpRestartServers
                | Self::CtlStart
                | Self::CtlStop
                | Self::CtlRestart
                | Self::CtlRestartServers
                | Self::CtlDown
                | Self::CtlUpgrade
        )
    }

    /// The path that a component of ours names, a door or not, if it is registered.
    pub fn from_id(path_id: &str) -> Result<Self, UnknownRestartPath> {
        Self::ALL
            .into_iter()
            .find(|path| path.id() == path_id)
            .ok_or_else(|| UnknownRestartPath { path_id: path_id.to_owned() })
    }

    /// The path that a request from outside names, if it is registered and open to requests.
    pub fn from_door(path_id: &str) -> Result<Self, UnknownRestartPath> {
        Self::from_id(path_id)
            .ok()
            .filter(|path| path.is_door())
            .ok_or_else(|| UnknownRestartPath { path_id: path_id.to_owned() })
    }
}

impl fmt::Display for RestartPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl fmt::Display for UnknownRestartPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a registered restart path", self.path_id)
    }
}

impl std::error::Error for UnknownRestartPath {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_no_door_is_refused_from_outside() {
        for path in RestartPath::ALL {
            assert_eq!(RestartPath::from_door(path.id()).is_ok(), path.is_door(), "{path}");
        }
        assert_eq!(
            RestartPath::from_door("pkill").unwrap_err().to_string(),
            "\"pkill\" is not a registered restart path"
        );
    }
}
