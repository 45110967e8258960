//! Gathers what is known of whoever asks; what follows from it is decided in [`callers`](super::callers).

use super::callers::{Facts, Holder, Process, decide};
use crate::fleet::Fleet;
use mcp_restart_config::Secret;
use mcp_restart_process::peer::SocketPeer;
use mcp_restart_process::{TcpPeer, effective_uid, is_open_below, owner_of_socket, tcp_peer, tree};
use mcp_restart_protocol::answer::{Caller, ErrorCode, Failure};
use mcp_restart_protocol::request::Credential;
use std::net::SocketAddr;
use subtle::ConstantTimeEq;
use tokio::task::spawn_blocking;

/// Finds out who asks.
#[derive(Debug)]
pub(crate) struct Identification {
    fleet: Fleet,
    operator_token: Option<Secret>,
}

impl Identification {
    /// With the operator's token of the config, if it has one.
    pub(crate) fn new(fleet: Fleet, operator_token: Option<Secret>) -> Self {
        Self { fleet, operator_token }
    }

    /// Follows the process that connected to the daemon's socket.
    pub(super) async fn of_socket(&self, peer: SocketPeer) -> Process {
        match peer.pid {
            // A process that this pid namespace does not show is below none of our shims.
            0 => Process::Local(None),
            pid if tree::Process::of(pid).is_some() => self.of_pid(pid).await,
            _ => Process::Unknown,
        }
    }

    /// Who makes a request with this credential on a connection of that process.
    pub(super) async fn caller(
        &self,
        connection: &Process,
        credential: Credential,
    ) -> Result<Caller, Failure> {
        let facts = match credential {
            Credential::Peer => Facts::Socket(connection.clone()),
            Credential::Http { .. } | Credential::Admitted(_) if matches!(connection, Process::Below(_)) => {
                return Err(Failure::new(
                    ErrorCode::NotAllowed,
                    "a process of an agent may not speak for callers over HTTP",
                ));
            }
            Credential::Admitted(caller) => Facts::Admitted(caller),
            Credential::Token(token) | Credential::Http { token: Some(token), .. } => {
                Facts::Token(self.holder(token).await)
            }
            Credential::Http { token: None, peer, local } => Facts::Http {
                token_needed: self.operator_token.is_some(),
                loopback: peer.ip().to_canonical().is_loopback(),
                process: self.of_http(local, peer).await,
            },
        };
        decide(facts)
    }

    async fn holder(&self, token: String) -> Holder {
        if self.operator_token.as_ref().is_some_and(|operator| same(operator.expose(), &token)) {
            return Holder::Operator;
        }
        self.fleet.agent_of_token(token).await.map_or(Holder::Nobody, Holder::Agent)
    }

    async fn of_http(&self, local: SocketAddr, peer: SocketAddr) -> Process {
        // Not asked where it decides nothing: it costs more than all the rest of a request.
        if self.operator_token.is_some() || !peer.ip().to_canonical().is_loopback() {
            return Process::Unknown;
        }
        match tcp_peer(local, peer) {
            TcpPeer::Nobody => Process::Unknown,
            TcpPeer::Untold => Process::Untold,
            TcpPeer::Local { uid, .. } if uid != effective_uid() && uid != 0 => Process::Foreign(uid),
            TcpPeer::Local { uid, inode } => {
                let shims = self.fleet.shims().await;
                // It reads the descriptors of many processes: the others are not to wait for that.
                let found = spawn_blocking(move || find_owner(&shims, inode)).await;
                match found {
                    Ok(Owner::Agent(agent)) => Process::Below(agent),
                    Ok(Owner::Process(pid)) if tree::Process::of(pid).is_some() => self.of_pid(pid).await,
                    // Root's own descriptors are shown to nobody else.
                    Ok(Owner::Hidden) if uid == 0 && effective_uid() != 0 => Process::Local(None),
                    Ok(_) | Err(_) => Process::Untold,
                }
            }
        }
    }

    /// The process at the far end of the bridge's connection with these ends, where the system tells.
    pub(super) async fn process_at(&self, connection: Option<(SocketAddr, SocketAddr)>) -> Option<u32> {
        let (peer, local) = connection?;
        let found = spawn_blocking(move || match tcp_peer(local, peer) {
            TcpPeer::Local { inode, .. } => owner_of_socket(inode),
            TcpPeer::Nobody | TcpPeer::Untold => None,
        });
        found.await.ok().flatten()
    }

    async fn of_pid(&self, pid: u32) -> Process {
        match self.fleet.agent_of_process(pid).await {
            Some(agent) => Process::Below(agent),
            None => Process::Local(Some(pid)),
        }
    }
}

/// Whose a socket is.
enum Owner {
    Agent(String),
    Process(u32),
    /// Nobody's whose descriptors may be read.
    Hidden,
}

/// Looks for who has the socket open, first below the agents' shims.
fn find_owner(shims: &[(String, u32)], inode: u64) -> Owner {
    match shims.iter().find(|(_, shim)| is_open_below(*shim, inode)) {
        Some((agent, _)) => Owner::Agent(agent.clone()),
        None => owner_of_socket(inode).map_or(Owner::Hidden, Owner::Process),
    }
}

fn same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}
