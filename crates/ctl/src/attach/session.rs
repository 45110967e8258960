//! One connection to one shim: what is typed goes there, what comes is shown.

use crate::attach::keys::{DetachKeys, KeyFilter, Typed};
use crate::attach::terminal::{RawTerminal, Size};
use crate::problem::{Exit, Problem};
use futures_util::stream::SplitStream;
use futures_util::{FutureExt, SinkExt, StreamExt};
use mcp_restart_protocol::codec::Frames;
use mcp_restart_protocol::shim::{FromShim, SHIM_HELLO_LEN, SHIM_PROTOCOL, ShimHello, ToShim};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use tokio_util::codec::Framed;

/// A shim that does not greet within this time does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many bytes are typed at most while the shim takes none; more waits in the terminal, and with it the detach
/// keys.
const TYPED_AHEAD: usize = 1024 * 1024;

type Talk = Framed<UnixStream, Frames<FromShim, ToShim>>;

/// The user at the terminal.
pub(crate) struct User {
    terminal: RawTerminal,
    filter: KeyFilter,
    resized: Signal,
    ends: Ends,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The detach keys, or the end of the terminal.
    ByUser,
    /// A signal to this program.
    BySignal,
    /// The shim has nothing more to say.
    AgentGone,
}

struct Ends {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    quit: Signal,
}

impl User {
    /// Takes the terminal.
    pub(crate) fn enter(name: &str, keys: DetachKeys) -> Result<Self, Problem> {
        let ends = Ends {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
        };
        let resized = signal(SignalKind::window_change())?;
        let terminal = RawTerminal::enter(name)?;
        Ok(Self { terminal, filter: KeyFilter::new(keys), resized, ends })
    }

    /// Connects to a shim and stays until the user leaves or the agent is gone. The user may leave at any time,
    /// whatever the shim does meanwhile.
    pub(crate) async fn session(&mut self, socket: &Path) -> Result<Ended, Problem> {
        let Self { terminal, filter, resized, ends } = self;
        let (from_user, to_agent) = tokio::io::simplex(TYPED_AHEAD);
        let talk = talk(socket, terminal, resized, from_user);
        tokio::pin!(talk);
        let ended = tokio::select! {
            biased;
            () = ends.any() => Ok(Ended::BySignal),
            () = pass_keys(terminal, filter, to_agent) => Ok(Ended::ByUser),
            ended = &mut talk => return ended,
        };
        // What was typed before the detach keys goes as well, if the shim takes it at once.
        let _ = talk.now_or_never();
        ended
    }

    /// Between two sessions: undoes what the process that is gone did to the terminal and waits for something,
    /// unless the user leaves before.
    pub(crate) async fn meanwhile<T>(
        &mut self,
        awaited: impl Future<Output = Result<T, Problem>>,
    ) -> Result<Result<T, Ended>, Problem> {
        let Self { terminal, filter, ends, .. } = self;
        let awaited = async {
            terminal.reset_modes().await?;
            awaited.await
        };
        tokio::select! {
            biased;
            () = ends.any() => Ok(Err(Ended::BySignal)),
            () = pass_keys(terminal, filter, tokio::io::sink()) => Ok(Err(Ended::ByUser)),
            came = awaited => came.map(Ok),
        }
    }
}

/// Takes what is typed to there until the detach keys come, or the end of the terminal.
async fn pass_keys(terminal: &RawTerminal, filter: &mut KeyFilter, mut to: impl AsyncWrite + Unpin) {
    while let Ok(typed) = terminal.typed().await {
        match filter.take(&typed) {
            // Fails when nobody takes it any more; whoever does not says why.
            Typed::Send(bytes) => drop(to.write_all(&bytes).await),
            Typed::Detach(bytes) => {
                let _ = to.write_all(&bytes).now_or_never();
                return;
            }
        }
    }
}

/// Connects, passes on what is typed, and shows what comes.
async fn talk(
    socket: &Path,
    terminal: &RawTerminal,
    resized: &mut Signal,
    mut typed: impl AsyncRead + Unpin,
) -> Result<Ended, Problem> {
    let Some(frames) = greet_in_time(socket).await? else { return Ok(Ended::AgentGone) };
    let (mut to, mut from) = frames.split();
    let send = async {
        let Size { rows, columns } = terminal.size();
        let mut message = ToShim::Attach { rows, columns };
        let mut piece = vec![0; 4096];
        while to.send(message).await.is_ok() {
            message = tokio::select! {
                Ok(length @ 1..) = typed.read(&mut piece) => {
                    ToShim::Input(piece.get(..length).unwrap_or_default().to_vec())
                }
                _ = resized.recv() => {
                    let Size { rows, columns } = terminal.size();
                    ToShim::Resize { rows, columns }
                }
            };
        }
        // When the shim takes nothing any more, what it still sends says so.
        std::future::pending().await
    };
    tokio::select! {
        ended = show(terminal, &mut from) => Ok(ended),
        ended = send => Ok(ended),
    }
}

/// Shows what comes from the shim until there is nothing more, or no terminal.
async fn show(terminal: &RawTerminal, from: &mut SplitStream<Talk>) -> Ended {
    // The first output is a picture of the agent's screen.
    let mut is_picture = true;
    loop {
        match from.next().await {
            Some(Ok(FromShim::Output(bytes))) => {
                let shown = if std::mem::take(&mut is_picture) {
                    terminal.show_picture(&bytes).await
                } else {
                    terminal.show(&bytes).await
                };
                if shown.is_err() {
                    return Ended::ByUser;
                }
            }
            Some(Ok(FromShim::Detached { .. }) | Err(_)) | None => return Ended::AgentGone,
            Some(Ok(_)) => {}
        }
    }
}

impl Ends {
    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
            _ = self.quit.recv() => {}
        }
    }
}

/// `None`: an agent that just ended has taken its socket with it.
async fn greet_in_time(socket: &Path) -> Result<Option<Talk>, Problem> {
    match timeout(PATIENCE, greet(socket)).await {
        Ok(Ok(frames)) => Ok(Some(frames)),
        Ok(Err(error)) if is_gone(&error) => Ok(None),
        Ok(Err(error)) => {
            Err(Problem::caused(Exit::Failed, format!("cannot attach to {}", socket.display()), &error))
        }
        Err(_) => Err(Problem::new(
            Exit::TimedOut,
            format!("the agent's shim at {} does not answer", socket.display()),
        )
        .hint("perhaps it was stopped: ps -eo pid,stat,args | grep mcp-restart-shim")),
    }
}

async fn greet(socket: &Path) -> io::Result<Talk> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(&ShimHello::OURS.to_bytes()).await?;
    let mut bytes = [0; SHIM_HELLO_LEN];
    stream.read_exact(&mut bytes).await?;
    match ShimHello::from_bytes(bytes) {
        Some(hello) if hello.protocol == SHIM_PROTOCOL => Ok(Framed::new(stream, Frames::default())),
        Some(hello) => Err(io::Error::other(format!(
            "the agent's shim speaks protocol {}, this program {SHIM_PROTOCOL}: restart the agent",
            hello.protocol
        ))),
        None => Err(io::Error::other("that is no shim of mcp-restart")),
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotFound | UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    #[tokio::test(start_paused = true)]
    async fn a_shim_that_does_not_answer_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("shim.sock");
        assert!(greet_in_time(&socket).await.unwrap().is_none(), "one that is gone is another matter");
        let _silent = UnixListener::bind(&socket).unwrap();
        assert_eq!(greet_in_time(&socket).await.unwrap_err().exit(), Exit::TimedOut);
    }
}
