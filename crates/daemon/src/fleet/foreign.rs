//! A shim of a version whose words this one does not know: what all shims have in common is enough to see the end
//! of its agent, and to bring it about.
//!
//! ```text
//!            the connection ends: the exit stands in the facts        Acknowledge
//!  Running ────────────────────────────────────────────────► Ended ────────────────► Gone
//!     │ Stop: SIGTERM to the shim        ▲
//!     └──────────────────────────────────┘
//! ```

use mcp_restart_process::Signal;
use mcp_restart_process::tree::{self, Process};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::shim::{FromShim, ShimHello, ToShim};
use mcp_restart_shim::{Facts, RunFiles};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The way to such a shim.
#[derive(Debug)]
pub(super) struct Foreign {
    protocol: u32,
    shim: Process,
    files: RunFiles,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Running(UnixStream),
    /// The agent has ended, which is not stored yet.
    Ended,
    Gone,
}

impl Foreign {
    /// Connects to the shim that has written down these facts, and says nothing but hello.
    pub(super) async fn connect(files: RunFiles, facts: &Facts) -> io::Result<Self> {
        let shim = Process::of(facts.shim.pid).filter(|shim| shim.start_time == facts.shim.start_time);
        let shim = shim.ok_or(io::ErrorKind::NotFound)?;
        let mut stream = UnixStream::connect(&files.socket).await?;
        stream.write_all(&ShimHello::OURS.to_bytes()).await?;
        Ok(Self { protocol: facts.protocol, shim, files, stage: Stage::Running(stream) })
    }

    /// The number of its words.
    pub(super) fn protocol(&self) -> u32 {
        self.protocol
    }

    /// Does what can be done of what it would be told.
    pub(super) fn send(&mut self, message: &ToShim) -> io::Result<()> {
        match message {
            ToShim::Stop { path, .. } => {
                let path = RestartPath::from_id(path).map_err(io::Error::other)?;
                tree::signal(path, &self.shim, Signal::TERMINATE);
            }
            ToShim::Acknowledge => {
                // The next shim may have written down its own by now.
                if self.facts().is_some_and(|facts| facts.shim.pid == self.shim.pid) {
                    let _ = std::fs::remove_file(&self.files.facts);
                }
                self.stage = Stage::Gone;
            }
            _ => {}
        }
        Ok(())
    }

    /// What it would say: how its agent ended; none when it is gone. May be dropped at any await.
    pub(super) async fn next(&mut self) -> Option<FromShim> {
        match &mut self.stage {
            Stage::Running(stream) => until_closed(stream).await,
            Stage::Ended => return std::future::pending().await,
            Stage::Gone => return None,
        }
        self.stage = Stage::Ended;
        let exit = self.facts().and_then(|facts| facts.exit)?;
        // It waits for somebody to take note of that, in words that it knows.
        tree::signal(RestartPath::AbandonedShim, &self.shim, Signal::TERMINATE);
        Some(FromShim::Exited(exit))
    }

    fn facts(&self) -> Option<Facts> {
        serde_json::from_slice(&std::fs::read(&self.files.facts).ok()?).ok()
    }
}

async fn until_closed(stream: &mut UnixStream) {
    let mut ignored = [0; 64];
    while matches!(stream.read(&mut ignored).await, Ok(1..)) {}
}
