//! The socket under its name.
//!
//! A daemon whose socket somebody has removed lives on and cannot be told anything. It hears of that and listens again.

use crate::start_error::StartError;
use crate::state_dir::{Socket, StateDir};
use mcp_restart_process::wait_for_removal;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::thread;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

/// Whoever removes the whole state dir is through with it by then, and is not disturbed.
const PAUSE: Duration = Duration::from_secs(1);

/// What the thread that waits needs, in bytes.
const STACK: usize = 64 * 1024;

/// Keeps the socket where clients look for it.
#[derive(Debug)]
pub(crate) struct Entrance<'a> {
    state_dir: &'a StateDir,
    /// Its file is removed with this.
    socket: Socket,
    listeners: mpsc::Sender<UnixListener>,
}

impl<'a> Entrance<'a> {
    /// Listens, and gives what it listens with: one now, and another whenever that lost its name.
    pub(crate) fn open(state_dir: &'a StateDir) -> Result<(Self, mpsc::Receiver<UnixListener>), StartError> {
        let (listener, socket) = state_dir.listen()?;
        let (listeners, given) = mpsc::channel(1);
        let entrance = Self { state_dir, socket, listeners };
        entrance.give(listener)?;
        Ok((entrance, given))
    }

    /// Listens again whenever the name is gone. Where nobody tells of that, or it cannot be done, it stays away.
    pub(crate) async fn keep(&mut self) -> Infallible {
        loop {
            if let Err(error) = self.wait_until_gone().await {
                tracing::debug!(%error, "nobody tells when the socket is removed");
                return pending().await;
            }
            tokio::time::sleep(PAUSE).await;
            match self.listen_again() {
                Ok(()) => tracing::warn!("the socket had been removed: listening again"),
                Err(error) => {
                    tracing::error!(%error, "the socket was removed, and no client finds this daemon any more");
                    return pending().await;
                }
            }
        }
    }

    async fn wait_until_gone(&self) -> io::Result<()> {
        while self.socket.is_there() {
            let path = self.socket.path().to_owned();
            let (tell, told) = oneshot::channel();
            // A thread of its own: the runtime would wait at its end for one that it lent.
            thread::Builder::new().name("socket-watch".into()).stack_size(STACK).spawn(move || {
                let _ = tell.send(wait_for_removal(&path));
            })?;
            match told.await {
                Ok(Err(error)) if self.socket.is_there() => return Err(error),
                // It may have gone before it was watched.
                _ => {}
            }
        }
        Ok(())
    }

    fn listen_again(&mut self) -> Result<(), StartError> {
        self.state_dir.check_lock()?;
        let (listener, socket) = self.state_dir.listen()?;
        // The old listener is still open, so the two sockets cannot be taken for each other.
        self.socket = socket;
        Ok(self.give(listener)?)
    }

    fn give(&self, listener: std::os::unix::net::UnixListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        self.listeners.try_send(UnixListener::from_std(listener)?).map_err(io::Error::other)
    }
}
