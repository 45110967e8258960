//! The connection to one shim.

use super::foreign::Foreign;
use crate::children::Children;
use futures_util::{SinkExt, StreamExt};
use mcp_restart_process::Signal;
use mcp_restart_protocol::codec::{CodecError, Frames};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::shim::{FromShim, SHIM_HELLO_LEN, SHIM_PROTOCOL, ShimHello, ToShim};
use mcp_restart_shim::{Facts, RunFiles, ShimArgs};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio_util::bytes::BytesMut;
use tokio_util::codec::{Decoder, Encoder, Framed};

/// A shim reads what it is sent at once; one that does not for so long is stuck.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// The first size of either buffer, in bytes: what a shim says is short, and each agent holds both for as long as it lives.
const BUFFER: usize = 512;

/// So many descriptors are left for clients and files when agents take them: a daemon that cannot be asked, or cannot
/// write down what it does, is worse than one that starts no more agents.
pub(super) const RESERVE: u64 = 16;

/// The way to one shim.
#[derive(Debug)]
pub(super) struct Link {
    shim_pid: Option<u32>,
    talk: Talk,
}

#[derive(Debug)]
enum Talk {
    /// Its words are known.
    Words(Box<Framed<UnixStream, ShimCodec>>),
    /// They are not.
    Foreign(Foreign),
}

/// Whether this version knows the words of the shim that has written down these facts.
pub(super) fn is_understood(facts: &Facts) -> bool {
    ShimHello { protocol: facts.protocol }.is_understood()
}

impl Link {
    /// Starts a shim that waits for its launch.
    pub(super) async fn spawn(children: &Children, path: RestartPath, shim: &ShimArgs) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let pid = children.shim(path, shim, OwnedFd::from(theirs)).await?;
        Ok(Self::over(UnixStream::from_std(ours)?, Some(pid)))
    }

    /// Connects to a shim that an earlier daemon started.
    pub(super) async fn connect(socket: &Path) -> io::Result<Self> {
        Ok(Self::over(UnixStream::connect(socket).await?, None))
    }

    /// Connects to a shim that has written down these facts, whatever its words are.
    pub(super) async fn reach(files: RunFiles, facts: Option<&Facts>) -> io::Result<Self> {
        match facts.filter(|facts| !is_understood(facts)) {
            Some(facts) => Self::connect_foreign(&files, facts).await,
            None => Self::connect(&files.socket).await,
        }
    }

    /// Connects to a shim whose words this version does not know.
    pub(super) async fn connect_foreign(files: &RunFiles, facts: &Facts) -> io::Result<Self> {
        let foreign = Foreign::connect(files.clone(), facts).await?;
        Ok(Self { shim_pid: None, talk: Talk::Foreign(foreign) })
    }

    /// The number of the words that it speaks, if this version does not know them.
    pub(super) fn foreign_protocol(&self) -> Option<u32> {
        match &self.talk {
            Talk::Words(_) => None,
            Talk::Foreign(foreign) => Some(foreign.protocol()),
        }
    }

    fn over(stream: UnixStream, shim_pid: Option<u32>) -> Self {
        Self {
            shim_pid,
            talk: Talk::Words(Box::new(Framed::with_capacity(stream, ShimCodec::default(), BUFFER))),
        }
    }

    /// The shim's process id, of a shim that this daemon started.
    pub(super) fn shim_pid(&self) -> Option<u32> {
        self.shim_pid
    }

    /// Ends a shim that does not do its work; its agent dies with it.
    pub(super) fn end(self, children: &Children) {
        if let Some(pid) = self.shim_pid {
            children.signal(RestartPath::AbandonedShim, pid, Signal::KILL);
        }
    }

    /// Tells the shim something.
    pub(super) async fn send(&mut self, message: ToShim) -> io::Result<()> {
        let frames = match &mut self.talk {
            Talk::Words(frames) => frames,
            Talk::Foreign(foreign) => return foreign.send(&message),
        };
        match tokio::time::timeout(SEND_LIMIT, frames.send(message)).await {
            Ok(sent) => sent.map_err(io::Error::other),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the shim does not read")),
        }
    }

    /// What the shim says next; none when it is gone, or no longer understood. May be dropped at any await.
    pub(super) async fn next(&mut self) -> Option<FromShim> {
        let frames = match &mut self.talk {
            Talk::Words(frames) => frames,
            Talk::Foreign(foreign) => return foreign.next().await,
        };
        match frames.next().await? {
            Ok(message) => Some(message),
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a shim is not understood");
                None
            }
        }
    }
}

/// The hello of each side, then frames.
#[derive(Debug, Default)]
struct ShimCodec {
    sent_hello: bool,
    seen_hello: bool,
    frames: Frames<FromShim, ToShim>,
}

impl Decoder for ShimCodec {
    type Item = FromShim;
    type Error = CodecError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<FromShim>, CodecError> {
        if !self.seen_hello {
            let Some(hello) = source.first_chunk::<SHIM_HELLO_LEN>().copied() else { return Ok(None) };
            let _ = source.split_to(SHIM_HELLO_LEN);
            match ShimHello::from_bytes(hello) {
                Some(ShimHello { protocol: SHIM_PROTOCOL }) => self.seen_hello = true,
                Some(ShimHello { protocol }) => {
                    return Err(CodecError::Malformed(format!("it speaks shim protocol {protocol}")));
                }
                None => return Err(CodecError::Malformed("not a shim's hello".to_owned())),
            }
        }
        self.frames.decode(source)
    }
}

impl Encoder<ToShim> for ShimCodec {
    type Error = CodecError;

    fn encode(&mut self, message: ToShim, target: &mut BytesMut) -> Result<(), CodecError> {
        if !self.sent_hello {
            target.extend_from_slice(&ShimHello::OURS.to_bytes());
            self.sent_hello = true;
        }
        self.frames.encode(message, target)
    }
}
