//! The daemon's door: connections on its socket, and what is asked over them.
//!
//! ```text
//!  accept ─ own uid or root? ─► hello ─┬─ talk ──────► requests ─ who asks? ─► fleet ─► answers
//!                                      ├─ status ────► one JSON text
//!                                      ├─ shutdown ──► one JSON text, then the end of the daemon
//!                                      ├─ upgrade ───► an offer, then it makes way
//!                                      └─ bridge ────► announcement and listener ─► bridge keeper
//! ```
//!
//! Each connection is one task; what goes wrong on it costs nobody else anything.

mod callers;
mod connection;
mod identification;
mod json_text;
mod requests;
mod room;
mod talk;
#[cfg(test)]
mod tests;
mod verbs;

use crate::bridge::Bridge;
use crate::fleet::Fleet;
use crate::governance::{Gate, Journal};
use crate::program::Program;
use crate::successor::Manager;
use mcp_restart_process::peer::SocketPeer;
use mcp_restart_process::{effective_uid, peer_of_socket};
use mcp_restart_protocol::answer::Failure;
use mcp_restart_protocol::paths::RestartPath;
use room::{Admission, Guest, first_to_go};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::task::TaskTracker;

pub(crate) use identification::Identification;
pub(crate) use room::Room;
pub(crate) use verbs::ended_meanwhile;

/// How long no connection is accepted after the system had no descriptor or memory for one, unless another
/// connection gives way before.
const PATIENCE: Duration = Duration::from_millis(100);

/// Shortages that follow each other sooner than this are one, which is logged once.
const EPISODE: Duration = Duration::from_secs(60);

/// What every connection needs.
#[derive(Debug)]
pub(crate) struct Context {
    /// The agents.
    pub(crate) fleet: Fleet,
    /// The keeper of the MCP endpoint.
    pub(crate) bridge: Bridge,
    /// Finds out who asks.
    pub(crate) identification: Identification,
    /// Which lifecycle requests are refused whatever they are.
    pub(crate) gate: Gate,
    /// What happens is written down there.
    pub(crate) journal: Journal,
    /// The program of this daemon.
    pub(crate) program: Program,
    /// The config file that the daemon serves.
    pub(crate) config_file: PathBuf,
    /// Its state dir.
    pub(crate) state_dir: PathBuf,
    /// When it started.
    pub(crate) started: Instant,
    /// Who starts the next daemon, if not whoever has this one make way.
    pub(crate) manager: Option<Manager>,
    /// Takes the wish that the daemon ends; closed once it does.
    pub(crate) wishes: mpsc::Sender<Wish>,
    /// Counts the requests whose answers are not written yet.
    pub(crate) under_way: TaskTracker,
}

/// How the daemon is to end.
#[derive(Debug)]
pub(crate) enum Wish {
    /// With every agent stopped.
    End(RestartPath),
    /// With every agent left running.
    MakeWay(Asker),
}

/// Whoever asked the daemon to make way, and is told what becomes of that. It is closed once they are gone.
pub(crate) type Asker = mpsc::Sender<Word>;

/// What whoever asked the daemon to make way is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// It does as soon as nothing is under way.
    Leaving,
    /// It does not, or not for them.
    Refused(Failure),
}

/// Accepts connections for as long as it is polled, as many as there is room for. The latest listener that it was given
/// is the one.
pub(crate) async fn serve(mut listeners: mpsc::Receiver<UnixListener>, room: Room, context: Arc<Context>) {
    let Some(mut listener) = listeners.recv().await else { return };
    let mut door = Door { room, context, served: JoinSet::new(), guests: Vec::new() };
    let mut last_shortage: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(another) = listeners.recv() => {
                listener = another;
                continue;
            }
            Some(ended) = door.served.join_next_with_id() => {
                door.forget(ended.map_or_else(|error| error.id(), |(id, ())| id));
                continue;
            }
        };
        match accepted {
            Ok((stream, _)) => door.receive(stream),
            Err(error) if is_passing(&error) => {}
            Err(error) => {
                let earlier = last_shortage.replace(Instant::now());
                if earlier.is_none_or(|earlier| earlier.elapsed() > EPISODE) {
                    tracing::error!(%error, "connections wait to be accepted");
                }
                door.make_room().await;
            }
        }
    }
}

/// Those who are served, in the order in which they came.
struct Door {
    room: Room,
    context: Arc<Context>,
    served: JoinSet<()>,
    guests: Vec<Served>,
}

struct Served {
    pid: u32,
    /// What is under way on this connection.
    requests: TaskTracker,
    task: AbortHandle,
}

impl Door {
    fn receive(&mut self, stream: UnixStream) {
        let Some(peer) = peer_of_socket(&stream).ok().filter(|peer| is_ours(*peer)) else {
            tracing::warn!("closed a connection from another user");
            return;
        };
        match self.room.admit(&self.guests(), peer.pid) {
            Admission::Admitted => {}
            Admission::InPlaceOf(index) => self.close(index),
            Admission::Refused => {
                tracing::warn!(pid = peer.pid, "refused a connection: there are too many");
                return;
            }
        }
        let requests = TaskTracker::new();
        let serve = connection::serve(stream, requests.clone(), Arc::clone(&self.context));
        let task = self.served.spawn(serve);
        self.guests.push(Served { pid: peer.pid, requests, task });
    }

    /// The system has no descriptor for a newcomer: an idle connection goes, or some other ends by itself.
    async fn make_room(&mut self) {
        if let Some(index) = first_to_go(&self.guests()) {
            self.close(index);
        }
        let ended = async {
            match self.served.join_next_with_id().await {
                Some(ended) => ended.map_or_else(|error| error.id(), |(id, ())| id),
                None => std::future::pending().await,
            }
        };
        if let Ok(ended) = tokio::time::timeout(PATIENCE, ended).await {
            self.forget(ended);
        }
    }

    fn guests(&self) -> Vec<Guest> {
        let guest = |served: &Served| Guest { pid: served.pid, idle: served.requests.is_empty() };
        self.guests.iter().map(guest).collect()
    }

    fn close(&mut self, index: usize) {
        let goes = self.guests.remove(index);
        tracing::debug!(pid = goes.pid, "closed an idle connection to make room");
        goes.task.abort();
    }

    fn forget(&mut self, ended: tokio::task::Id) {
        self.guests.retain(|guest| guest.task.id() != ended);
    }
}

fn is_ours(peer: SocketPeer) -> bool {
    peer.uid == effective_uid() || peer.uid == 0
}

/// The client gave up before it was accepted.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}
