//! The bridge's link to the daemon.
//!
//! ```text
//!               announced and talking                 nobody answers for `patience`
//!  Connecting ───────────────────────► Up ──EOF──► Down ───────────────────────────► given up
//!      │ nobody answers                ▲             │
//!      └─────────────────► Down        └─────────────┘ tried again every 250 ms
//! ```
//!
//! Two connections make it up. On the first the bridge announces itself and hands a duplicate of its
//! listening socket over, so that a new daemon takes that socket on instead of binding the port anew; it
//! stays open and its end is the end of the daemon. On the second, requests of every caller are under
//! way at the same time.

use crate::changes::Change;
use futures_util::{SinkExt, StreamExt};
use mcp_restart_protocol::answer::{Answer, ErrorCode, Failure, ServerBody, ServerFrame};
use mcp_restart_protocol::client::{self, ClientError};
use mcp_restart_protocol::codec::Frames;
use mcp_restart_protocol::halves::{self, ReadingHalf, WritingHalf};
use mcp_restart_protocol::hello::{PROTOCOL, Verb};
use mcp_restart_protocol::request::{ClientFrame, Credential, Request};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use serde_json::json;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::codec::{FramedRead, FramedWrite};

const RETRY: Duration = Duration::from_millis(250);
/// A daemon that does not greet within this time is as good as none.
const GREETING: Duration = Duration::from_secs(2);
const QUEUE: usize = 64;
/// How many changes wait for a stream that is slow.
const BACKLOG: usize = 64;
/// The id of the one request that has many answers.
const SUBSCRIPTION: u64 = 0;

/// The handle by which requests reach the daemon.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    state: watch::Receiver<State>,
    changes: broadcast::Sender<Change>,
    up_command: Arc<str>,
}

/// The task that keeps the link.
pub(crate) struct Link {
    /// The daemon's socket.
    pub(crate) socket: PathBuf,
    /// What is announced and handed over.
    pub(crate) listener: TcpListener,
    /// The endpoint's URL.
    pub(crate) url: String,
    /// After how long without a daemon to give up; never without it.
    pub(crate) patience: Option<Duration>,
    state: watch::Sender<State>,
    changes: broadcast::Sender<Change>,
}

#[derive(Debug, Clone)]
enum State {
    Connecting,
    Down { why: Arc<str> },
    Up { session: u64, asks: mpsc::Sender<Ask> },
}

#[derive(Debug)]
struct Ask {
    credential: Credential,
    request: Request,
    reply: oneshot::Sender<ServerBody>,
}

type Incoming = FramedRead<ReadingHalf, Frames<ServerFrame, ClientFrame>>;
type Outgoing = FramedWrite<WritingHalf, Frames<ServerFrame, ClientFrame>>;

impl Daemon {
    /// Whether the daemon answers at present.
    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), State::Up { .. })
    }

    /// The number of the present connection to the daemon: another one means another daemon, or the same
    /// one with all forgotten.
    pub(crate) async fn session(&self) -> Option<u64> {
        match self.settled().await {
            State::Up { session, .. } => Some(session),
            State::Connecting | State::Down { .. } => None,
        }
    }

    /// Asks the daemon. Once the request is on its way it is carried out, whether or not anybody still
    /// waits for the answer. Without a daemon: `DaemonUnavailable`.
    pub(crate) async fn ask(&self, credential: Credential, request: Request) -> Result<Answer, Failure> {
        let (reply, answer) = oneshot::channel();
        let asks = match self.settled().await {
            State::Up { asks, .. } => asks,
            State::Down { why } => return Err(self.unavailable(&why)),
            State::Connecting => return Err(self.unavailable("the bridge is ending")),
        };
        if asks.send(Ask { credential, request, reply }).await.is_err() {
            return Err(self.unavailable("the daemon went away"));
        }
        match answer.await {
            Ok(ServerBody::Answer(answer)) => Ok(answer),
            Ok(ServerBody::Failed(failure)) => Err(failure),
            Ok(ServerBody::Event(_)) => {
                Err(Failure::new(ErrorCode::Internal, "the daemon sent an event for an answer"))
            }
            Err(_) => Err(self.unavailable(
                "the daemon went away before it answered; list_agents shows what was carried out once it is back",
            )),
        }
    }

    /// Every change of an agent from now on; of each agent one when the daemon comes back.
    pub(crate) fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// The state once the first attempt to connect is over, so that what comes in meanwhile waits for it.
    async fn settled(&self) -> State {
        let mut state = self.state.clone();
        match state.wait_for(|state| !matches!(state, State::Connecting)).await {
            Ok(state) => state.clone(),
            Err(_) => State::Connecting,
        }
    }

    fn unavailable(&self, why: &str) -> Failure {
        Failure::new(ErrorCode::DaemonUnavailable, why)
            .hint(format!("outside of any agent, start the daemon with: {}", self.up_command))
    }
}

impl Link {
    /// A link that is not yet up, and the handle to it. `up_command` starts the daemon.
    pub(crate) fn new(
        socket: PathBuf,
        listener: TcpListener,
        url: String,
        patience: Option<Duration>,
        up_command: &str,
    ) -> (Self, Daemon) {
        let (state, watching) = watch::channel(State::Connecting);
        let (changes, _) = broadcast::channel(BACKLOG);
        let daemon = Daemon { state: watching, changes: changes.clone(), up_command: up_command.into() };
        (Self { socket, listener, url, patience, state, changes }, daemon)
    }

    /// Keeps the link up for as long as there is a daemon; returns when there was none for `patience`.
    pub(crate) async fn keep(self) {
        let mut lost_at = Instant::now();
        let mut session = 0;
        loop {
            session += 1;
            let why = match timeout(GREETING, self.announce()).await {
                Ok(Ok(announced)) => {
                    let why = self.be_up(session, announced).await;
                    lost_at = Instant::now();
                    why
                }
                Ok(Err(error)) => describe(&error),
                Err(_) => "the daemon does not answer".to_owned(),
            };
            tracing::debug!(%why, "no link to the daemon");
            self.state.send_replace(State::Down { why: why.into() });
            if self.patience.is_some_and(|patience| lost_at.elapsed() >= patience) {
                return;
            }
            sleep(RETRY).await;
        }
    }

    /// Serves requests until the daemon is gone, and says why no more are served.
    async fn be_up(&self, session: u64, mut announced: UnixStream) -> String {
        let talk = match timeout(GREETING, client::connect(&self.socket)).await {
            Ok(Ok(talk)) => talk,
            Ok(Err(error)) => {
                let why = describe(&error);
                if matches!(error, ClientError::Mismatch { .. }) {
                    // This daemon will replace this bridge, or somebody will replace this daemon.
                    tracing::warn!(%why, "the daemon is of another version");
                    self.state.send_replace(State::Down { why: why.as_str().into() });
                    until_closed(&mut announced).await;
                }
                return why;
            }
            Err(_) => return "the daemon does not answer".to_owned(),
        };
        let (reading, writing) = match halves::split(talk) {
            Ok(halves) => halves,
            Err(error) => return error.to_string(),
        };
        let (asks, asked) = mpsc::channel(QUEUE);
        self.state.send_replace(State::Up { session, asks });
        tracing::info!(socket = %self.socket.display(), "connected to the daemon");
        tokio::select! {
            () = converse(reading, writing, asked, &self.changes) => {}
            () = until_closed(&mut announced) => {}
        }
        tracing::warn!("the daemon went away");
        "the daemon is not running".to_owned()
    }

    async fn announce(&self) -> Result<UnixStream, ClientError> {
        let (mut stream, _) = client::greet(&self.socket, Verb::Bridge).await?;
        let text = json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "url": self.url,
            "protocol": PROTOCOL,
        })
        .to_string();
        let mut frame = u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
        frame.extend_from_slice(text.as_bytes());
        self.hand_over(&mut stream, &frame).await.map_err(ClientError::Unreachable)?;
        Ok(stream)
    }

    /// Sends `frame` with a duplicate of the listening socket.
    async fn hand_over(&self, stream: &mut UnixStream, frame: &[u8]) -> io::Result<()> {
        let descriptors = [self.listener.as_raw_fd()];
        let to = stream.as_raw_fd();
        let sent = stream
            .async_io(Interest::WRITABLE, || {
                let rights = [ControlMessage::ScmRights(&descriptors)];
                sendmsg::<UnixAddr>(to, &[IoSlice::new(frame)], &rights, MsgFlags::empty(), None)
                    .map_err(io::Error::from)
            })
            .await?;
        stream.write_all(frame.get(sent..).unwrap_or_default()).await
    }
}

/// Sends what is asked and hands the answers out, until the connection or the asking ends.
async fn converse(
    reading: ReadingHalf,
    writing: WritingHalf,
    asked: mpsc::Receiver<Ask>,
    changes: &broadcast::Sender<Change>,
) {
    let (waits, owed) = mpsc::unbounded_channel();
    // Side by side, so that a daemon that is slow to read does not keep its own answers from being read.
    tokio::select! {
        () = send(FramedWrite::new(writing, Frames::default()), asked, waits) => {}
        () = receive(FramedRead::new(reading, Frames::default()), owed, changes) => {}
    }
}

async fn send(
    mut to_daemon: Outgoing,
    mut asked: mpsc::Receiver<Ask>,
    waits: mpsc::UnboundedSender<(u64, oneshot::Sender<ServerBody>)>,
) {
    let mut id = SUBSCRIPTION;
    let subscribe =
        ClientFrame { id, credential: Credential::Peer, allows_stale: false, request: Request::Subscribe };
    if to_daemon.send(subscribe).await.is_err() {
        return;
    }
    while let Some(Ask { credential, request, reply }) = asked.recv().await {
        id += 1;
        // Told before the request is sent: the answer finds it.
        let told = waits.send((id, reply));
        let sent = to_daemon.send(ClientFrame { id, credential, allows_stale: false, request }).await;
        if told.is_err() || sent.is_err() {
            return;
        }
    }
}

async fn receive(
    mut from_daemon: Incoming,
    mut waits: mpsc::UnboundedReceiver<(u64, oneshot::Sender<ServerBody>)>,
    changes: &broadcast::Sender<Change>,
) {
    let mut waiting = HashMap::new();
    while let Some(frame) = from_daemon.next().await {
        let ServerFrame { id, body } = match frame {
            Ok(frame) => frame,
            Err(error) => {
                tracing::warn!(%error, "an answer of the daemon could not be read");
                return;
            }
        };
        if let ServerBody::Event(event) = body {
            // Mostly nobody listens.
            let _ = changes.send(event.agent.name.into());
            continue;
        }
        while let Ok((id, reply)) = waits.try_recv() {
            waiting.insert(id, reply);
        }
        if let Some(reply) = waiting.remove(&id) {
            // Nobody waits for it any more when the bridge is ending.
            let _ = reply.send(body);
        }
    }
}

/// Waits for the end of a connection on which nothing is sent.
async fn until_closed(stream: &mut UnixStream) {
    let mut byte = [0];
    while matches!(stream.read(&mut byte).await, Ok(1..)) {}
}

/// The error with what caused it, in one line.
fn describe(error: &ClientError) -> String {
    match std::error::Error::source(error) {
        Some(source) if !matches!(error, ClientError::Unreachable(_)) => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}
