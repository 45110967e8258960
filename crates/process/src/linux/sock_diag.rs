//! Asking the kernel for one TCP socket by its two addresses, over netlink.
//!
//! ```text
//!  0        16   20          24    26    28     44     60   64       72
//!  ├ header ┼ family, protocol ┼ port ┼ port ┼ address ┼ address ┼ if ┼ cookie ┤      the request
//!  ├ header ┼ family, state …┼ port ┼ port ┼ address ┼ address ┼ if ┼ cookie ┼ … ┼ uid ┼ inode ┤
//!  0        16              20     22     24        40        56   60       68   80    84      88
//! ```

use super::tcp::Socket;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;

const REQUEST: usize = 72;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UID: usize = 80;
const INODE: usize = 84;

/// The socket between these addresses. `None`: there is none, or the kernel does not answer such questions.
pub(super) fn ask(its_local: SocketAddr, its_remote: SocketAddr) -> Option<Socket> {
    let kernel = socket(
        AddressFamily::Netlink,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkSockDiag,
    )
    .ok()?;
    let request = request(its_local, its_remote);
    send(kernel.as_raw_fd(), &request, MsgFlags::empty()).ok()?;
    let mut answer = [0; 1024];
    // The kernel has answered before it returns from the sending.
    let length = recv(kernel.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT).ok()?;
    read(answer.get(..length)?, &request)
}

fn request(its_local: SocketAddr, its_remote: SocketAddr) -> [u8; REQUEST] {
    const NLM_F_REQUEST: u16 = 1;
    const IPPROTO_TCP: u8 = 6;
    const ANY_STATE: u32 = u32::MAX;
    const ANY_INTERFACE: u32 = 0;
    const NO_COOKIE: u64 = u64::MAX;
    // A socket of both families is found by the family that it speaks.
    let (local, remote) = (its_local.ip().to_canonical(), its_remote.ip().to_canonical());
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = Vec::with_capacity(REQUEST);
    bytes.extend(u32::try_from(REQUEST).unwrap_or_default().to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([u8::try_from(family).unwrap_or_default(), IPPROTO_TCP, 0, 0]);
    bytes.extend(ANY_STATE.to_ne_bytes());
    bytes.extend(its_local.port().to_be_bytes());
    bytes.extend(its_remote.port().to_be_bytes());
    bytes.extend(words(local));
    bytes.extend(words(remote));
    bytes.extend(ANY_INTERFACE.to_ne_bytes());
    bytes.extend(NO_COOKIE.to_ne_bytes());
    let mut request = [0; REQUEST];
    request.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    request
}

fn words(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

fn read(answer: &[u8], request: &[u8; REQUEST]) -> Option<Socket> {
    let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    // Where nobody has connected, the kernel takes whoever listens there: the addresses tell.
    if answer.get(4..6)? != SOCK_DIAG_BY_FAMILY.to_ne_bytes() || answer.get(20..56)? != request.get(24..60)? {
        return None;
    }
    let (uid, inode) = (number(UID)?, number(INODE)?);
    // A socket that nobody has open any more has no inode, and says root.
    (inode != 0).then_some(Socket { uid, inode: inode.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn inode_of(socket: &impl AsRawFd) -> u64 {
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let link = link.to_str().unwrap().to_owned();
        link.trim_start_matches("socket:[").trim_end_matches(']').parse().unwrap()
    }

    #[test]
    fn one_end_of_a_connection_is_told_from_the_other_and_from_whoever_listens() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(bind) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (served, peer) = listener.accept().unwrap();
            let local = served.local_addr().unwrap();
            // A kernel that does not answer such questions leaves us its tables.
            let Some(found) = ask(peer, local) else { continue };
            assert_eq!(found.inode, inode_of(&client));
            assert_eq!(ask(local, peer).unwrap().inode, inode_of(&served));
            // Nobody has connected from this port: only the listener is there.
            let nobody = SocketAddr::new(peer.ip(), 1);
            assert_eq!(ask(local, nobody), None);
        }
    }

    #[test]
    fn what_is_no_answer_is_none() {
        let (local, remote) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        let request = request(local, remote);
        for garbage in [&[][..], &[0; 16], &[0xff; 88], &request] {
            assert_eq!(read(garbage, &request), None);
        }
    }
}
