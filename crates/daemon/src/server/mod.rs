//! The daemon's door: connections on its socket, and what is asked over them.
//!
//! ```text
//!  accept ─ own uid or root? ─► hello ─┬─ talk ──────► requests ─ who asks? ─► fleet ─► answers
//!                                      ├─ status ────► one JSON text
//!                                      ├─ shutdown ──► one JSON text, then the end of the daemon
//!                                      └─ bridge ────► announcement and listener ─► bridge keeper
//! ```
//!
//! Each connection is one task; what goes wrong on it costs nobody else anything.

mod callers;
mod connection;
mod identification;
mod json_text;
mod requests;
mod talk;
#[cfg(test)]
mod tests;
mod verbs;

use crate::bridge::Bridge;
use crate::fleet::Fleet;
use crate::program::Program;
use mcp_restart_process::{effective_uid, peer_of_socket};
use mcp_restart_protocol::paths::RestartPath;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::TaskTracker;

pub(crate) use identification::Identification;

/// How many connections are served at the same time; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 512;
/// How long no connection is accepted after the system had no descriptor or memory for one.
const PATIENCE: Duration = Duration::from_millis(100);

/// What every connection needs.
#[derive(Debug)]
pub(crate) struct Context {
    /// The agents.
    pub(crate) fleet: Fleet,
    /// The keeper of the MCP endpoint.
    pub(crate) bridge: Bridge,
    /// Finds out who asks.
    pub(crate) identification: Identification,
    /// The program of this daemon.
    pub(crate) program: Program,
    /// The config file that the daemon serves.
    pub(crate) config_file: PathBuf,
    /// Its state dir.
    pub(crate) state_dir: PathBuf,
    /// When it started.
    pub(crate) started: Instant,
    /// Takes the wish that the daemon ends.
    pub(crate) shutdown: mpsc::Sender<RestartPath>,
    /// Counts the requests whose answers are not written yet.
    pub(crate) under_way: TaskTracker,
}

/// Accepts connections for as long as it is polled.
pub(crate) async fn serve(listener: UnixListener, context: Arc<Context>) {
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut short_of_room = false;
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        let accepted = listener.accept().await;
        let was_short = std::mem::replace(&mut short_of_room, accepted.is_err());
        match accepted {
            Ok((stream, _)) if is_ours(&stream) => {
                let context = Arc::clone(&context);
                tokio::spawn(async move {
                    connection::serve(stream, context).await;
                    drop(permit);
                });
            }
            Ok(_) => tracing::warn!("closed a connection from another user"),
            Err(error) if is_passing(&error) => {}
            Err(error) => {
                if !was_short {
                    tracing::error!(%error, "connections wait to be accepted");
                }
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }
}

fn is_ours(stream: &UnixStream) -> bool {
    peer_of_socket(stream).is_ok_and(|peer| peer.uid == effective_uid() || peer.uid == 0)
}

/// The client gave up before it was accepted.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}
