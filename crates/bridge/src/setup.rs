//! What the bridge starts from: its listening socket, the daemon's socket, and why it may not start.

use mcp_restart_config::lookup::{self, NoStateDir};
use mcp_restart_config::{Config, Environment, LoadError};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A bridge that was given its socket has somebody who starts it again: it does not outlive its daemon long.
const CHILD_PATIENCE: Duration = Duration::from_secs(60);

/// What the bridge starts from.
#[derive(Debug)]
pub(crate) struct Setup {
    /// Bound and listening, not blocking.
    pub(crate) listener: TcpListener,
    /// The address it is bound to.
    pub(crate) bound: SocketAddr,
    /// The endpoint's URL.
    pub(crate) url: String,
    /// The daemon's socket.
    pub(crate) socket: PathBuf,
    /// After how long without a daemon to end.
    pub(crate) patience: Option<Duration>,
    /// The command that starts the daemon.
    pub(crate) up_command: String,
}

/// Why the bridge does not start.
#[derive(Debug)]
pub(crate) enum SetupError {
    /// The config file cannot be used.
    Config(LoadError),
    /// There is nowhere to look for the daemon's socket.
    StateDir(NoStateDir),
    /// The descriptor that was passed is no listening TCP socket.
    Inherited(io::Error),
    /// The address cannot be bound.
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Everybody on the network could restart agents.
    Exposed {
        /// The address.
        address: SocketAddr,
    },
    /// The system refused something that a program always may.
    System(io::Error),
}

/// Finds or binds everything. A socket that was passed (`LISTEN_FDS`) is taken, else the config's `host` and
/// `port` are bound.
pub(crate) fn prepare(
    config_file: Option<&Path>,
    state_dir: Option<&Path>,
    environment: &Environment,
) -> Result<Setup, SetupError> {
    let inherited = listenfd::ListenFd::from_env().take_tcp_listener(0).map_err(SetupError::Inherited)?;
    let patience = inherited.is_some().then_some(CHILD_PATIENCE);
    let load = || {
        let file = lookup::config_file(config_file, environment);
        mcp_restart_config::load(&file, environment).map_err(SetupError::Config)
    };
    let (listener, config) = if let Some(listener) = inherited {
        (listener, None)
    } else {
        let config = load()?;
        (bind(&config)?, Some(config))
    };
    listener.set_nonblocking(true).map_err(SetupError::System)?;
    let bound = listener.local_addr().map_err(SetupError::System)?;
    // A child is told its state dir, so that a config file that is broken at the moment does not end it.
    let config = match config {
        None if !bound.ip().is_loopback() || state_dir.is_none() => Some(load()?),
        config => config,
    };
    if !bound.ip().is_loopback() && config.as_ref().is_none_or(|config| config.token.is_none()) {
        return Err(SetupError::Exposed { address: bound });
    }
    let found = lookup::state_dir(state_dir, config.as_ref(), environment).map_err(SetupError::StateDir)?;
    Ok(Setup {
        url: lookup::bridge_url(bound.ip(), bound.port()),
        socket: lookup::socket(&found),
        up_command: up_command(config_file, state_dir),
        listener,
        bound,
        patience,
    })
}

fn bind(config: &Config) -> Result<TcpListener, SetupError> {
    let address = SocketAddr::new(config.host, config.port);
    if !config.host.is_loopback() && config.token.is_none() {
        return Err(SetupError::Exposed { address });
    }
    TcpListener::bind(address).map_err(|source| SetupError::Bind { address, source })
}

fn up_command(config_file: Option<&Path>, state_dir: Option<&Path>) -> String {
    let option = |name: &str, path: Option<&Path>| {
        path.map(|path| format!(" {name} {}", quoted(&path.to_string_lossy()))).unwrap_or_default()
    };
    let (config, state) = (option("--config", config_file), option("--state-dir", state_dir));
    format!("mcp-restartctl{config}{state} up")
}

/// The text as a shell takes it for one word.
fn quoted(text: &str) -> String {
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:@%,".contains(&byte);
    if !text.is_empty() && text.bytes().all(harmless) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

impl SetupError {
    /// The exit code of section 9 of the contract.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Exposed { .. } => 6,
            Self::StateDir(_) | Self::Inherited(_) | Self::Bind { .. } | Self::System(_) => 1,
        }
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Config(_) => Some("mcp-restartctl config check"),
            Self::StateDir(_) => Some("name one with --state-dir"),
            Self::Bind { source, .. } if source.kind() == io::ErrorKind::AddrInUse => Some(
                "a daemon keeps a bridge of its own running unless it has --no-bridge; else choose another port",
            ),
            Self::Exposed { .. } => Some("set token or tokenFile in the config file, or a loopback host"),
            Self::Inherited(_) | Self::Bind { .. } | Self::System(_) => None,
        }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::StateDir(error) => error.fmt(f),
            Self::Inherited(_) => f.write_str("the descriptor in LISTEN_FDS cannot be used"),
            Self::Bind { address, .. } => write!(f, "cannot listen on {address}"),
            Self::Exposed { address } => {
                write!(f, "{address} can be reached from other machines, and there is no token")
            }
            Self::System(_) => f.write_str("cannot set the bridge up"),
        }
    }
}

impl std::error::Error for SetupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Inherited(error) | Self::System(error) | Self::Bind { source: error, .. } => Some(error),
            Self::Config(_) | Self::StateDir(_) | Self::Exposed { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_starts_the_daemon_is_one_that_a_shell_takes() {
        assert_eq!(up_command(None, None), "mcp-restartctl up");
        assert_eq!(
            up_command(Some(Path::new("/my dir/it's.json")), Some(Path::new("/var/lib/x"))),
            r"mcp-restartctl --config '/my dir/it'\''s.json' --state-dir /var/lib/x up"
        );
    }
}
