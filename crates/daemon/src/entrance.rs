//! The socket under its name, and the state dir that it lies in.
//!
//! A daemon whose socket or state dir somebody has removed lives on and cannot be told anything, and the next one would
//! not find its agents. It hears of that and puts everything back.

use crate::bridge::Bridge;
use crate::fleet::Fleet;
use crate::start_error::StartError;
use crate::state_dir::{Socket, StateDir};
use mcp_restart_process::wait_for_removal;
use mcp_restart_shim::run_dir;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::thread;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

/// Whoever removes the whole state dir is through with it by then.
const PAUSE: Duration = Duration::from_secs(1);

/// What the thread that waits needs, in bytes.
const STACK: usize = 64 * 1024;

/// Keeps the socket where clients look for it.
#[derive(Debug)]
pub(crate) struct Entrance {
    state_dir: StateDir,
    /// Its file is removed with this.
    socket: Socket,
    listeners: mpsc::Sender<UnixListener>,
}

impl Entrance {
    /// Listens, and gives what it listens with: one now, and another whenever that lost its name.
    pub(crate) fn open(state_dir: StateDir) -> Result<(Self, mpsc::Receiver<UnixListener>), StartError> {
        let (listener, socket) = state_dir.listen()?;
        let (listeners, given) = mpsc::channel(1);
        let entrance = Self { state_dir, socket, listeners };
        entrance.give(listener)?;
        Ok((entrance, given))
    }

    /// Puts back whatever is removed. Where nobody tells of that, or it cannot be done, it stays away.
    pub(crate) async fn keep(&mut self, fleet: &Fleet, bridge: &Bridge) -> Infallible {
        loop {
            if let Err(error) = self.wait_until_gone().await {
                tracing::debug!(%error, "nobody tells when the socket is removed");
                return pending().await;
            }
            tokio::time::sleep(PAUSE).await;
            if let Err(error) = self.put_back() {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the socket or the state dir was removed, and no client finds this daemon any more"
                );
                return pending().await;
            }
            fleet.write_again();
            bridge.write_again().await;
            tracing::warn!("the socket or the state dir had been removed, and is put back");
        }
    }

    /// Takes the socket away. The lock on the state dir is held as long as what is returned.
    pub(crate) fn close(self) -> StateDir {
        self.state_dir
    }

    fn is_there(&self) -> bool {
        self.socket.is_there() && run_dir(self.state_dir.path()).is_dir()
    }

    async fn wait_until_gone(&self) -> io::Result<()> {
        while self.is_there() {
            let paths = [self.socket.path().to_owned(), run_dir(self.state_dir.path())];
            let (tell, told) = oneshot::channel();
            // A thread of its own: the runtime would wait at its end for one that it lent.
            thread::Builder::new().name("socket-watch".into()).stack_size(STACK).spawn(move || {
                let _ = tell.send(wait_for_removal(&paths));
            })?;
            match told.await {
                Ok(Err(error)) if self.is_there() => return Err(error),
                // It may have gone before it was watched.
                _ => {}
            }
        }
        Ok(())
    }

    fn put_back(&mut self) -> Result<(), StartError> {
        self.state_dir.put_back()?;
        if !self.socket.is_there() {
            let (listener, socket) = self.state_dir.listen()?;
            // The old listener is still open, so the two sockets cannot be taken for each other.
            self.socket = socket;
            self.give(listener)?;
        }
        Ok(())
    }

    fn give(&self, listener: std::os::unix::net::UnixListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        self.listeners.try_send(UnixListener::from_std(listener)?).map_err(io::Error::other)
    }
}
