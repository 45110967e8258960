//! The client of the daemon's socket.

use crate::answer::{Answer, Failure, ServerBody, ServerFrame};
use crate::codec::{CodecError, Frames};
use crate::hello::{HELLO_LEN, Hello, HelloError, PROTOCOL, Verb};
use crate::request::{ClientFrame, Credential, Request};
use futures_util::{SinkExt, StreamExt};
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::codec::Framed;

/// How long a daemon may take for its hello, and for whatever it has to wait for nothing for. One that takes
/// longer is stopped, or its machine is.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Why the daemon could not be asked.
#[derive(Debug)]
pub enum ClientError {
    /// Nobody listens on the socket.
    Unreachable(io::Error),
    /// What listens there is no daemon of ours.
    Hello(HelloError),
    /// The daemon speaks another protocol number.
    Mismatch {
        /// The daemon's version.
        daemon_version: String,
        /// Its protocol number.
        daemon_protocol: u32,
    },
    /// The daemon went away before it answered.
    Closed,
    /// The daemon is there and says nothing for [`PATIENCE`].
    Silent {
        /// Its process id, if the system tells.
        pid: Option<i32>,
    },
    /// The connection carried something else than the protocol.
    Codec(CodecError),
    /// The daemon refused, or it failed.
    Refused(Failure),
}

/// One connection to the daemon that asks one thing after the other.
#[derive(Debug)]
pub struct Client {
    frames: Framed<UnixStream, Frames<ServerFrame, ClientFrame>>,
    credential: Credential,
    next_id: u64,
}

/// Connects, exchanges hellos and gives the stream with the daemon's hello, whatever its protocol number.
pub async fn greet(socket: &Path, verb: Verb) -> Result<(UnixStream, Hello), ClientError> {
    let mut stream = UnixStream::connect(socket).await.map_err(ClientError::Unreachable)?;
    stream.write_all(&Hello::ours(verb).to_bytes()).await.map_err(ClientError::Unreachable)?;
    let silent = ClientError::silent(&stream);
    let mut bytes = [0; HELLO_LEN];
    let read = timeout(PATIENCE, stream.read_exact(&mut bytes)).await.map_err(|_| silent)?;
    read.map_err(|_| ClientError::Closed)?;
    let hello = Hello::from_bytes(&bytes).map_err(ClientError::Hello)?;
    Ok((stream, hello))
}

/// Connects for [`Verb::Talk`]; frames of [`ClientFrame`] and [`ServerFrame`] follow.
pub async fn connect(socket: &Path) -> Result<UnixStream, ClientError> {
    let (stream, hello) = greet(socket, Verb::Talk).await?;
    if hello.protocol != PROTOCOL {
        return Err(ClientError::Mismatch { daemon_version: hello.version, daemon_protocol: hello.protocol });
    }
    Ok(stream)
}

impl ClientError {
    /// That whoever is at the other end of this connection does not answer.
    pub fn silent(stream: &UnixStream) -> Self {
        Self::Silent { pid: stream.peer_cred().ok().and_then(|peer| peer.pid()) }
    }
}

impl Client {
    /// Connects to the daemon; each request will carry `credential`.
    pub async fn connect(socket: &Path, credential: Credential) -> Result<Self, ClientError> {
        let frames = Framed::new(connect(socket).await?, Frames::default());
        Ok(Self { frames, credential, next_id: 0 })
    }

    /// Sends a request and waits for its answer.
    pub async fn ask(&mut self, request: Request) -> Result<Answer, ClientError> {
        self.send(request).await?;
        match self.next().await? {
            ServerBody::Answer(answer) => Ok(answer),
            ServerBody::Failed(failure) => Err(ClientError::Refused(failure)),
            ServerBody::Event(_) => {
                Err(ClientError::Codec(CodecError::Malformed("an event for an answer".into())))
            }
        }
    }

    /// Sends a request; what comes for it is read by [`Client::next`].
    pub async fn send(&mut self, request: Request) -> Result<(), ClientError> {
        self.next_id += 1;
        let frame = ClientFrame {
            id: self.next_id,
            credential: self.credential.clone(),
            allows_stale: false,
            request,
        };
        match self.frames.send(frame).await {
            Err(CodecError::Io(_)) => Err(ClientError::Closed),
            other => other.map_err(ClientError::Codec),
        }
    }

    /// The next message for the request that was sent last.
    pub async fn next(&mut self) -> Result<ServerBody, ClientError> {
        loop {
            match self.frames.next().await {
                Some(Ok(frame)) if frame.id == self.next_id => return Ok(frame.body),
                Some(Ok(_)) => {}
                Some(Err(CodecError::Io(_))) | None => return Err(ClientError::Closed),
                Some(Err(error)) => return Err(ClientError::Codec(error)),
            }
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(_) => f.write_str("the daemon is not running"),
            Self::Hello(_) => f.write_str("the socket does not belong to a daemon of mcp-restart"),
            Self::Mismatch { daemon_version, daemon_protocol } => write!(
                f,
                "the running daemon is version {daemon_version} and speaks protocol {daemon_protocol}, \
                 this program is version {} and speaks protocol {PROTOCOL}",
                env!("CARGO_PKG_VERSION")
            ),
            Self::Closed => f.write_str("the daemon closed the connection"),
            Self::Silent { pid: Some(pid) } => write!(f, "the daemon (pid {pid}) does not answer"),
            Self::Silent { pid: None } => f.write_str("the daemon does not answer"),
            Self::Codec(_) => f.write_str("the daemon sent something that cannot be read"),
            Self::Refused(failure) => failure.fmt(f),
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreachable(error) => Some(error),
            Self::Hello(error) => Some(error),
            Self::Codec(error) => Some(error),
            Self::Mismatch { .. } | Self::Closed | Self::Silent { .. } | Self::Refused(_) => None,
        }
    }
}
