//! One process from which shims are forked: each of them in about a quarter of the time that a program takes to start.
//!
//! ```text
//!  daemon                              fork server                     shim
//!  id, path, its socket ─────────────► forks a copy of itself ───────► takes socket and id
//!  number of the process, or errno ◄── closes its copy of the socket
//! ```
//!
//! The shims are children of the daemon, not of the fork server, so nothing depends on it: it is a shim without an id,
//! holds nothing, ends when its daemon does, and where it is missing shims are started as programs. What a shim has of
//! whoever started it (limits, umask, what its score is when memory is short) it has through both ways alike.

use crate::ShimArgs;
use crate::shim::{Ground, Shim};
use mcp_restart_paths::RestartPath;
use mcp_restart_process::session::{self, take_stdin};
use mcp_restart_process::sibling::{Fork, ShownArgument, fork};
use mcp_restart_process::{EINVAL, receive_with_descriptor};
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;

/// What stands for an id where none is given yet. As long as an id.
pub(crate) const NO_ID: &str = "--------";

/// A request for a shim. The shim's end of its socket pair goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkRequest {
    /// See [`ShimArgs::id`].
    pub id: String,
    /// The way by which it came about.
    pub path: RestartPath,
}

/// The answer to one request; the answers come in the order of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkAnswer {
    /// The shim's process id.
    Forked(u32),
    /// The system's error number.
    Refused(i32),
}

/// Forks shims for whoever has the other end of descriptor 0, until that is closed.
pub(crate) fn serve(args: &ShimArgs) -> io::Result<()> {
    let ground = Ground::prepare(args)?;
    session::set_name(c"mcp-shim-fork")?;
    let mut daemon = UnixStream::from(take_stdin()?);
    let shown_id = ShownArgument::find(NO_ID);
    let mut buffer = [0; ForkRequest::MAX];
    loop {
        // A message that brings a descriptor is received alone: one is one request.
        let (length, control) = receive_with_descriptor(&daemon, &mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        let request = buffer.get(..length).and_then(ForkRequest::from_bytes);
        let (Some(request), Some(control)) = (request, control) else {
            daemon.write_all(&ForkAnswer::Refused(EINVAL).to_bytes())?;
            continue;
        };
        let answer = match fork(request.path) {
            Ok(Fork::Caller(pid)) => ForkAnswer::Forked(pid),
            Ok(Fork::Sibling) => {
                drop(daemon);
                // It is for whoever looks, and nothing depends on it.
                let _ = shown_id.map(|shown| shown.show(&request.id));
                let args = ShimArgs { id: request.id, ..args.clone() };
                return Shim::set_up(&args, ground, control.into())?.run();
            }
            Err(error) => ForkAnswer::Refused(error.raw_os_error().unwrap_or(EINVAL)),
        };
        daemon.write_all(&answer.to_bytes())?;
    }
}

impl ForkRequest {
    /// The longest one, in bytes.
    pub const MAX: usize = 64;

    /// The bytes to send, in one message.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.id.as_bytes(), self.path.id().as_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (id, path) = std::str::from_utf8(bytes).ok()?.split_at_checked(NO_ID.len())?;
        Some(Self { id: id.to_owned(), path: RestartPath::from_id(path).ok()? })
    }
}

impl ForkAnswer {
    /// How many bytes it has.
    pub const LENGTH: usize = 4;

    /// Reads one.
    pub fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        let number = i32::from_le_bytes(bytes);
        u32::try_from(number).map_or(Self::Refused(-number), Self::Forked)
    }

    fn to_bytes(self) -> [u8; Self::LENGTH] {
        match self {
            Self::Forked(pid) => pid.to_le_bytes(),
            Self::Refused(errno) => (-errno).to_le_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_understood_again() {
        for path in RestartPath::ALL {
            let request = ForkRequest { id: "00c0ffee".to_owned(), path };
            let bytes = request.to_bytes();
            assert!(bytes.len() <= ForkRequest::MAX, "{path}");
            assert_eq!(ForkRequest::from_bytes(&bytes), Some(request));
        }
        assert_eq!(ForkRequest::from_bytes(b"00c0ffeeno_such_path"), None);
        for answer in [ForkAnswer::Forked(4_194_303), ForkAnswer::Refused(11)] {
            assert_eq!(ForkAnswer::from_bytes(answer.to_bytes()), answer);
        }
    }
}
