//! Who has a TCP socket of this machine: the kernel's tables, then the descriptors of processes.

use super::{sock_diag, tree};
use crate::facts;
use crate::peer::TcpPeer;
use crate::tree::Process;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Who connected from `peer` to our `local`.
pub fn tcp_peer(local: SocketAddr, peer: SocketAddr) -> TcpPeer {
    let socket = sock_diag::ask(peer, local).or_else(|| look_through(peer, local));
    socket.map_or(TcpPeer::Nobody, |Socket { uid, inode }| TcpPeer::Local { uid, inode })
}

/// Whether a process below `root` has this socket open.
pub fn is_open_below(root: u32, inode: u64) -> bool {
    let below = tree::below(root, |_| false).members;
    owner_of_inode(inode, below.into_iter().map(|process| process.pid)).is_some()
}

/// The process that has this socket open, the one with the lowest number if there are more: those that
/// inherited it come later. `None` also if no process that has it may be looked at.
pub fn owner_of_socket(inode: u64) -> Option<u32> {
    owner_of_inode(inode, facts::pids())
}

/// Which of these processes has the socket open.
fn owner_of_inode(inode: u64, pids: impl IntoIterator<Item = u32>) -> Option<u32> {
    let wanted = format!("socket:[{inode}]");
    pids.into_iter().find(|pid| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
        descriptors.into_iter().flatten().flatten().any(|descriptor| {
            fs::read_link(descriptor.path()).is_ok_and(|target| target.as_os_str() == &*wanted)
        })
    })
}

/// Who listens on this TCP address, or on its port at every address, where the system tells.
pub fn listener_on(address: SocketAddr) -> Option<Process> {
    let everywhere = match address {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    // The other end of a listening socket is nowhere.
    let nowhere = SocketAddr::new(everywhere, 0);
    let socket = [address.ip(), everywhere]
        .into_iter()
        .find_map(|ip| look_through(SocketAddr::new(ip, address.port()), nowhere))?;
    Process::of(owner_of_socket(socket.inode)?)
}

/// One end of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) uid: u32,
    pub(super) inode: u64,
}

/// Reads the tables of all sockets, which also tell of those that listen.
fn look_through(its_local: SocketAddr, its_remote: SocketAddr) -> Option<Socket> {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .find_map(|table| find_socket(&table, its_local, its_remote))
}

fn find_socket(table: &str, its_local: SocketAddr, its_remote: SocketAddr) -> Option<Socket> {
    let wanted = (canonical(its_local), canonical(its_remote));
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let address = |index: usize| parse_address(fields.get(index)?);
        if (address(1)?, address(2)?) != wanted {
            return None;
        }
        let inode = fields.get(9)?.parse().ok()?;
        let uid = fields.get(7)?.parse().ok()?;
        // A socket that nobody has open any more has no inode, and says root.
        (inode != 0).then_some(Socket { uid, inode })
    })
}

fn canonical(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

/// `0100007F:1F90`: the words of the address in the machine's byte order, then the port.
fn parse_address(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |index: usize| {
        let digits = address.get(index * 8..index * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let mut bytes = [0; 16];
            bytes.iter_mut().zip(words.into_iter().flatten()).for_each(|(to, from)| *to = from);
            Ipv6Addr::from(bytes).into()
        }
        _ => return None,
    };
    Some((ip.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effective_uid;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    fn the_client_is_found(bind: &str, connect: impl Fn(u16) -> SocketAddr) {
        let Ok(listener) = TcpListener::bind(bind) else { return };
        let client = TcpStream::connect(connect(listener.local_addr().unwrap().port())).unwrap();
        let (served, peer) = listener.accept().unwrap();
        let found = tcp_peer(served.local_addr().unwrap(), peer);
        let TcpPeer::Local { uid, inode } = found else { panic!("{found:?}") };
        assert_eq!(uid, effective_uid());
        // Where the kernel is not asked, its tables tell the same.
        let in_the_tables = look_through(peer, served.local_addr().unwrap());
        assert_eq!(in_the_tables, Some(Socket { uid, inode }));
        let link = fs::read_link(format!("/proc/self/fd/{}", client.as_raw_fd())).unwrap();
        assert_eq!(link.to_str().unwrap(), format!("socket:[{inode}]"));
        let own = std::process::id();
        assert_eq!(owner_of_inode(inode, [1, own]), Some(own));
        assert_eq!(owner_of_socket(inode), Some(own));
        assert_eq!(owner_of_inode(inode, []), None);
    }

    #[test]
    fn the_client_of_an_ipv4_connection_is_found() {
        the_client_is_found("127.0.0.1:0", |port| (Ipv4Addr::LOCALHOST, port).into());
    }

    #[test]
    fn the_client_of_an_ipv6_connection_is_found() {
        the_client_is_found("[::1]:0", |port| (Ipv6Addr::LOCALHOST, port).into());
    }

    #[test]
    fn an_ipv4_client_of_an_ipv6_listener_is_found() {
        the_client_is_found("[::]:0", |port| (Ipv4Addr::LOCALHOST, port).into());
    }

    #[test]
    fn who_listens_on_a_port_is_found() {
        for bound in ["127.0.0.1:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(bound).unwrap();
            let port = listener.local_addr().unwrap().port();
            let found = listener_on((Ipv4Addr::LOCALHOST, port).into()).unwrap();
            assert_eq!(found.pid, std::process::id());
            drop(listener);
            assert_eq!(listener_on((Ipv4Addr::LOCALHOST, port).into()), None);
        }
    }

    #[test]
    fn a_socket_that_nobody_holds_is_nobodys() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 0100007F:C350 0100007F:10D6 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0\n";
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        assert_eq!(find_socket(table, at(50000), at(4310)), None);
    }
}
