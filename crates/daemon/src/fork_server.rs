//! The daemon's side of the process from which shims are forked.
//!
//! Requests are sent without waiting for the answers, which come in the same order; so a hundred agents that are
//! restarted at once wait for each other no longer than the forks take.

use mcp_restart_paths::RestartPath;
use mcp_restart_process::{Child, own_executable, send_with_descriptor, spawn};
use mcp_restart_shim::{ForkAnswer, ForkRequest, ShimArgs};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

/// A fork takes less than a millisecond; whoever answers nothing for so long was stopped.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who waits for a shim's process id.
pub(crate) type Reply = oneshot::Sender<io::Result<u32>>;

/// A fork server that runs. Whatever is wrong with it is an error to those who wait; they start their shims without it.
#[derive(Debug)]
pub(crate) struct ForkServer {
    pid: u32,
    stream: UnixStream,
    /// Who waits for an answer, the first one first, and since when.
    waiting: VecDeque<(Reply, Instant)>,
}

impl ForkServer {
    /// Starts one from which shims like this are forked: all of a daemon's have the same folder and limit.
    pub(crate) fn start(path: RestartPath, shim: &ShimArgs) -> io::Result<(Self, Child)> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let child = spawn(path, shim.fork_server().spawn(own_executable()?, theirs.into()))?;
        let stream = UnixStream::from_std(ours)?;
        Ok((Self { pid: child.pid(), stream, waiting: VecDeque::new() }, child))
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks for a shim. One that has no room for the request has been asked for hundreds already.
    pub(crate) fn ask(&mut self, request: &ForkRequest, control: &OwnedFd, reply: Reply) {
        match send_with_descriptor(&self.stream, &request.to_bytes(), control.as_fd()) {
            Ok(_) => self.waiting.push_back((reply, Instant::now())),
            // Nobody may wait any more.
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// The next answer, and who waits for it. Fails when there will be none. May be dropped at any await.
    pub(crate) async fn answer(&mut self) -> io::Result<(Reply, ForkAnswer)> {
        let mut bytes = [0; ForkAnswer::LENGTH];
        let read = self.stream.read(&mut bytes);
        let read = match self.waiting.front() {
            Some((_, since)) => timeout_at((*since + PATIENCE).into(), read).await?,
            None => read.await,
        };
        // An answer is written whole, and so it is read.
        if read? < bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (reply, _) = self.waiting.pop_front().ok_or(io::ErrorKind::InvalidData)?;
        Ok((reply, ForkAnswer::from_bytes(bytes)))
    }
}
