//! The MCP endpoint: who listens there, and the bridge that serves it.
//!
//! ```text
//!  bridge.json names a living bridge                 otherwise             --no-bridge
//!            │                                           │                      │
//!            ▼                                           ▼                      ▼
//!        Awaiting ──── dead, or silent for 2 s ───────► Child ◄── due ──┐    Elsewhere
//!         │    ▲                                         │              │
//!   announces  └─ connection gone ─ Adopted              └── ends ─► Waiting
//!         └────────────────────────────▲
//! ```
//!
//! The listening socket is the daemon's: a bridge that ends is replaced by one that gets the same socket, and no
//! caller is refused in between. A bridge outlives its daemon and hands the socket to the next one when
//! it announces itself.

mod backoff;
mod keeper;
mod listen;
pub(crate) mod probe;
pub(crate) mod program;
mod record;

use std::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use keeper::{Beginning, Setup, keep};
pub(crate) use listen::{EndpointError, begin};

/// A bridge that has connected to the daemon.
#[derive(Debug)]
pub(crate) struct Announcement {
    /// Its process, as the system tells it.
    pub(crate) pid: u32,
    /// Its program version.
    pub(crate) version: String,
    /// The protocol number that it speaks.
    pub(crate) protocol: u32,
    /// The endpoint that it serves.
    pub(crate) url: String,
    /// A duplicate of its listening socket.
    pub(crate) listener: TcpListener,
}

/// A handle on the keeper of the endpoint.
#[derive(Debug, Clone)]
pub(crate) struct Bridge {
    messages: mpsc::Sender<Message>,
    published: watch::Receiver<Published>,
}

#[derive(Debug)]
enum Message {
    /// A bridge connected; the reply is the number of its connection.
    Announced(Announcement, oneshot::Sender<u64>),
    /// The connection with this number ended.
    Gone(u64),
    /// `bridge.json` is gone.
    WriteAgain,
    /// End the bridge.
    End(oneshot::Sender<()>),
}

/// What others may know of the endpoint.
#[derive(Debug, Default)]
struct Published {
    url: Option<String>,
    program: Option<crate::program::Program>,
    trouble: Option<String>,
}

impl Bridge {
    /// The MCP endpoint, once a bridge serves it.
    pub(crate) fn url(&self) -> Option<String> {
        self.published.borrow().url.clone()
    }

    /// Its port.
    pub(crate) fn port(&self) -> Option<u16> {
        let url = self.url()?;
        url.strip_prefix("http://")?.split('/').next()?.rsplit(':').next()?.parse().ok()
    }

    /// Why the endpoint is not served.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.published.borrow().trouble.clone()
    }

    /// What became of the bridge's program on disk since it was started, if anything.
    pub(crate) fn stale(&self) -> Option<crate::program::Change> {
        self.published.borrow().program.as_ref()?.change()
    }

    /// A bridge connected. The result is the number to report its leaving by.
    pub(crate) async fn announced(&self, announcement: Announcement) -> Option<u64> {
        let (reply, connection) = oneshot::channel();
        self.messages.send(Message::Announced(announcement, reply)).await.ok()?;
        connection.await.ok()
    }

    /// A bridge's connection ended.
    pub(crate) async fn gone(&self, connection: u64) {
        // Without a keeper the daemon is ending.
        let _ = self.messages.send(Message::Gone(connection)).await;
    }

    /// Writes down again which bridge serves.
    pub(crate) async fn write_again(&self) {
        let _ = self.messages.send(Message::WriteAgain).await;
    }

    /// Ends the bridge and returns when it is gone.
    pub(crate) async fn end(&self) {
        let (reply, ended) = oneshot::channel();
        if self.messages.send(Message::End(reply)).await.is_ok() {
            let _ = ended.await;
        }
    }
}
