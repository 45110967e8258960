//! What the endpoint begins with: a listening socket, a bridge of a previous daemon, or nothing.

use super::keeper::Beginning;
use super::record::Record;
use mcp_restart_process::peer::listener_on;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

/// Why the endpoint cannot be served.
#[derive(Debug)]
pub(crate) enum EndpointError {
    /// Somebody else listens there.
    Taken {
        /// Host and port.
        address: SocketAddr,
        /// Who, where the system tells: `node (pid 4711)`.
        owner: Option<String>,
    },
    /// The address cannot be listened on.
    Bind {
        /// Host and port.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
}

/// Finds out whether a bridge of a previous daemon serves `address`; else listens there.
pub(crate) fn begin(state_dir: &Path, address: SocketAddr) -> Result<Beginning, EndpointError> {
    match Record::read(state_dir) {
        Some(record) if suits(record.address, address) => Ok(Beginning::Previous(record)),
        Some(record) => listen(address).map(|listener| Beginning::Replace(record, listener)),
        None => listen(address).map(Beginning::Listener),
    }
}

/// Listens on an address, port 0 meaning any that is free.
pub(super) fn listen(address: SocketAddr) -> Result<TcpListener, EndpointError> {
    TcpListener::bind(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => {
            let owner = listener_on(address).map(|owner| format!("{} (pid {})", owner.command, owner.pid));
            EndpointError::Taken { address, owner }
        }
        _ => EndpointError::Bind { address, source },
    })
}

/// Whether the endpoint of a previous daemon is where the config wants it.
fn suits(found: SocketAddr, wanted: SocketAddr) -> bool {
    found.ip() == wanted.ip() && (wanted.port() == 0 || found.port() == wanted.port())
}

impl EndpointError {
    /// What to do about it.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::Taken { .. } => {
                "end it, or set another port in the config (0 takes any that is free); beside a bridge that \
                 runs on its own the daemon needs --no-bridge"
            }
            Self::Bind { .. } => "set a host and a port in the config that this user may listen on",
        }
    }
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { address, owner: Some(owner) } => {
                write!(f, "{owner} listens on {address}, where the MCP endpoint shall be")
            }
            Self::Taken { address, owner: None } => {
                write!(f, "somebody listens on {address}, where the MCP endpoint shall be")
            }
            Self::Bind { address, .. } => write!(f, "cannot listen on {address} for the MCP endpoint"),
        }
    }
}

impl std::error::Error for EndpointError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind { source, .. } => Some(source),
            Self::Taken { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(state_dir: &Path, address: SocketAddr) -> Beginning {
        begin(state_dir, address).unwrap()
    }

    #[test]
    fn a_taken_port_names_its_owner() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = listen(taken.local_addr().unwrap()).unwrap_err();
        assert!(error.to_string().contains(&format!("(pid {})", std::process::id())), "{error}");
    }

    #[test]
    fn a_living_bridge_is_awaited_where_the_config_wants_it_and_replaced_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        assert!(matches!(begun(folder.path(), any), Beginning::Listener(_)));

        let address: SocketAddr = "127.0.0.1:4310".parse().unwrap();
        let program = crate::program::Program::at(std::env::current_exe().unwrap()).unwrap();
        let record = Record::of(std::process::id(), address, program).unwrap();
        record.write(folder.path()).unwrap();
        assert!(matches!(begun(folder.path(), address), Beginning::Previous(_)));
        assert!(matches!(begun(folder.path(), any), Beginning::Previous(_)));
        let elsewhere = "[::1]:0".parse().unwrap();
        assert!(matches!(begin(folder.path(), elsewhere), Ok(Beginning::Replace(..)) | Err(_)));
    }
}
