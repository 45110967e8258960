//! Who is at the other end of a connection.

use crate::facts;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

pub use crate::system::tcp::{is_open_below, listener_on, owner_of_socket, tcp_peer};

/// The process at the other end of a Unix socket, as it was when it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketPeer {
    /// Its user.
    pub uid: u32,
    /// Its process id.
    pub pid: u32,
}

/// Who is at the other end of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpPeer {
    /// A process of this machine.
    Local {
        /// The user who opened the socket.
        uid: u32,
        /// The socket's inode, by which its owner can be found: [`is_open_below`], [`owner_of_socket`].
        inode: u64,
    },
    /// Nobody on this machine, or nobody any more.
    Nobody,
    /// The system does not tell.
    Untold,
}

/// The user that this process acts as.
pub fn effective_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Who connected to, or made, this Unix socket.
pub fn peer_of_socket(socket: &impl AsFd) -> io::Result<SocketPeer> {
    facts::peer_of_socket(socket)
}

/// Whether the other end of a stream socket is closed and everything that it sent was read.
pub fn has_hung_up(socket: &impl AsFd) -> bool {
    let look = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    // One that ended without reading what it was sent is an error here, once.
    !matches!(recv(socket.as_fd().as_raw_fd(), &mut [0], look), Ok(1..) | Err(Errno::EAGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    #[test]
    fn an_end_that_closed_has_hung_up_whether_or_not_it_had_read_everything() {
        for unread in [false, true] {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            assert!(!has_hung_up(&ours));
            if unread {
                ours.write_all(b"unread").unwrap();
            } else {
                theirs.write_all(b"x").unwrap();
            }
            drop(theirs);
            if !unread {
                assert!(!has_hung_up(&ours), "there is something to read first");
                ours.read_exact(&mut [0]).unwrap();
            }
            assert!(has_hung_up(&ours));
        }
    }
}
