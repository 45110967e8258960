//! The bridge's link to the daemon.
//!
//! ```text
//!               announced and talking           not back in 5 s          nobody answers for `patience`
//!  Connecting ───────────────────────► Up ──EOF──► Connecting ───► Down ─────────────────────────────► given up
//!      │ nobody answers                ▲               │             │
//!      └──────────────► Down           └───────────────┴─────────────┘ tried again every 20, later 250 ms
//! ```
//!
//! Whoever asks waits while it is connecting: a daemon that was upgraded, or crashed and is started again, is not
//! missed by anybody. What changes nothing is asked again if its answer was lost on the way.
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

/// How long a daemon that went away is waited for before callers hear of it.
const COMEBACK: Duration = Duration::from_secs(5);
/// How often it is looked for until then.
const QUICK_RETRY: Duration = Duration::from_millis(20);
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

/// Why there is no answer.
enum Unanswered {
    /// There is no daemon.
    Away(Arc<str>),
    /// It went away before it answered.
    Lost(&'static str),
    /// It has refused or failed.
    Failed(Failure),
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
        let again = changes_nothing(&request).then(|| (credential.clone(), request.clone()));
        match (self.ask_once(credential, request).await, again) {
            (Err(Unanswered::Lost(_)), Some((credential, request))) => {
                self.ask_once(credential, request).await.map_err(|why| self.failure(why))
            }
            (answer, _) => answer.map_err(|why| self.failure(why)),
        }
    }

    async fn ask_once(&self, credential: Credential, request: Request) -> Result<Answer, Unanswered> {
        let (reply, answer) = oneshot::channel();
        let asks = match self.settled().await {
            State::Up { asks, .. } => asks,
            State::Down { why } => return Err(Unanswered::Away(why)),
            State::Connecting => return Err(Unanswered::Away("the bridge is ending".into())),
        };
        if asks.send(Ask { credential, request, reply }).await.is_err() {
            return Err(Unanswered::Lost("the daemon went away"));
        }
        match answer.await {
            Ok(ServerBody::Answer(answer)) => Ok(answer),
            Ok(ServerBody::Failed(failure)) => Err(Unanswered::Failed(failure)),
            Ok(ServerBody::Event(_)) => {
                let message = "the daemon sent an event for an answer";
                Err(Unanswered::Failed(Failure::new(ErrorCode::Internal, message)))
            }
            Err(_) => Err(Unanswered::Lost(
                "the daemon went away before it answered; list_agents shows what was carried out once it is back",
            )),
        }
    }

    /// Every change of an agent from now on; of each agent one when the daemon comes back.
    pub(crate) fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// The state once it is known, so that what comes in meanwhile waits for the daemon.
    async fn settled(&self) -> State {
        let mut state = self.state.clone();
        match state.wait_for(|state| !matches!(state, State::Connecting)).await {
            Ok(state) => state.clone(),
            Err(_) => State::Connecting,
        }
    }

    fn failure(&self, why: Unanswered) -> Failure {
        let why = match why {
            Unanswered::Failed(failure) => return failure,
            Unanswered::Lost(why) => why.into(),
            Unanswered::Away(why) => why,
        };
        Failure::new(ErrorCode::DaemonUnavailable, &*why)
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
        let mut was_up = false;
        let mut session = 0;
        loop {
            session += 1;
            let why = match timeout(GREETING, self.announce()).await {
                Ok(Ok(announced)) => {
                    let why = self.be_up(session, announced).await;
                    lost_at = Instant::now();
                    was_up = matches!(*self.state.borrow(), State::Up { .. });
                    why
                }
                Ok(Err(error)) => describe(&error),
                Err(_) => "the daemon does not answer".to_owned(),
            };
            tracing::debug!(%why, "no link to the daemon");
            let is_awaited = was_up && lost_at.elapsed() < COMEBACK;
            let state = if is_awaited { State::Connecting } else { State::Down { why: why.into() } };
            self.state.send_replace(state);
            if self.patience.is_some_and(|patience| lost_at.elapsed() >= patience) {
                return;
            }
            sleep(if is_awaited { QUICK_RETRY } else { RETRY }).await;
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

/// Whether it may be asked twice.
fn changes_nothing(request: &Request) -> bool {
    matches!(
        request,
        Request::Authenticate
            | Request::List { .. }
            | Request::Status
            | Request::Logs { .. }
            | Request::StdioServers
    )
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
