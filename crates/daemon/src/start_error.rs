//! Why the daemon does not start, and what to do about it.

use crate::bridge::EndpointError;
use crate::bridge::probe::UnfitBridge;
use crate::state_dir::StateDirError;
use mcp_restart_config::LoadError;
use mcp_restart_config::lookup::NoStateDir;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why the daemon does not start.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The config file cannot be used.
    Config(LoadError),
    /// There is no place for the state dir.
    NoStateDir(NoStateDir),
    /// The state dir cannot be used.
    StateDir(StateDirError),
    /// The stored state cannot be taken on: the file, and why.
    State(PathBuf, String),
    /// The log cannot be written.
    Log(PathBuf, io::Error),
    /// The MCP endpoint cannot be listened on.
    Endpoint(EndpointError),
    /// The bridge's program is in neither place where it is looked for.
    NoBridge,
    /// It is there and cannot be used.
    UnfitBridge(UnfitBridge),
    /// The system refused something that a program always may.
    System(io::Error),
}

impl StartError {
    /// The exit code: 6 for what the config file is to blame for.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 6,
            _ => 1,
        }
    }

    fn hint(&self) -> String {
        match self {
            Self::Config(error) if !error.file.exists() => {
                "mcp-restartctl init writes a config file; --config names one".to_owned()
            }
            Self::Config(_) => "mend the file; mcp-restartctl config check tells when it is right".to_owned(),
            Self::NoStateDir(_) => "use --state-dir or MCP_RESTART_STATE_DIR, or set HOME".to_owned(),
            Self::StateDir(error) => error.hint(),
            Self::State(..) => {
                "a daemon that starts sets it aside and begins anew; move it away if that is what you want"
                    .to_owned()
            }
            Self::Log(..) => "make it writable, or move it away".to_owned(),
            Self::Endpoint(error) => error.hint().to_owned(),
            Self::NoBridge | Self::UnfitBridge(_) => {
                "put the mcp-restart-http of the same version beside mcp-restartd, or use --no-bridge"
                    .to_owned()
            }
            Self::System(_) => "look at the limits of this user and at the memory that is free".to_owned(),
        }
    }

    /// The error with what caused it, and the remedy: what is printed.
    pub(crate) fn report(&self) -> String {
        let mut causes = vec![self.to_string()];
        let mut source = self.source();
        while let Some(cause) = source {
            causes.push(cause.to_string());
            source = cause.source();
        }
        format!("error: {}\nhint: {}\n", causes.join(": "), self.hint())
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::NoStateDir(error) => error.fmt(f),
            Self::StateDir(error) => error.fmt(f),
            Self::State(file, why) => write!(f, "{} cannot be taken on: {why}", file.display()),
            Self::Log(path, _) => write!(f, "cannot write the log {}", path.display()),
            Self::Endpoint(error) => error.fmt(f),
            Self::NoBridge => {
                f.write_str("mcp-restart-http is neither in the folder of mcp-restartd nor on PATH")
            }
            Self::UnfitBridge(error) => error.fmt(f),
            Self::System(_) => f.write_str("the system refused what a daemon needs"),
        }
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(error) => error.source(),
            Self::NoStateDir(error) => error.source(),
            Self::StateDir(error) => error.source(),
            Self::Endpoint(error) => error.source(),
            Self::UnfitBridge(error) => error.source(),
            Self::Log(_, error) | Self::System(error) => Some(error),
            Self::State(..) | Self::NoBridge => None,
        }
    }
}

impl From<LoadError> for StartError {
    fn from(error: LoadError) -> Self {
        Self::Config(error)
    }
}

impl From<NoStateDir> for StartError {
    fn from(error: NoStateDir) -> Self {
        Self::NoStateDir(error)
    }
}

impl From<StateDirError> for StartError {
    fn from(error: StateDirError) -> Self {
        Self::StateDir(error)
    }
}

impl From<EndpointError> for StartError {
    fn from(error: EndpointError) -> Self {
        Self::Endpoint(error)
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}
