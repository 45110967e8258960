//! Accepting connections, a bounded number of them, and leaving without any of them noticing.
//!
//! ```text
//!  Serving ── told to end ──► Leaving ── nothing under way, and a second more ──► Closing ──► gone
//!   accepts                    accepts nothing; streams end, each       ends the idle connections
//!                              answer closes its connection
//! ```
//!
//! The second is for a client that sends its next request on a connection that it has kept open, just when we leave:
//! it gets its answer, and a new connection goes to whoever listens next. If nobody does, there is no such second.

use crate::delivery::{Handed, Watched};
use crate::http::{Connection, Endpoint};
use crate::room::{Place, first_to_go};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use mcp_restart_protocol::request::{Credential, Request};
use nix::sys::resource::{Resource, getrlimit};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::timeout;

/// How long the head of a request may take, and how long a connection may wait for its next request.
const HEAD_DEADLINE: Duration = Duration::from_secs(60);
const HEADERS_MAX: usize = 64;
const HEAD_MAX: usize = 16 * 1024;
/// How long requests under way may take when the bridge is told to end: a stop waits for its agent.
const FINISH: Duration = Duration::from_secs(15);
/// How long connections may stay open without a request when the bridge leaves.
const LINGER: Duration = Duration::from_secs(1);
/// How long connections may take to close.
const CLOSE: Duration = Duration::from_secs(1);
/// How long to wait for a descriptor when the system has none left.
const SCARCITY: Duration = Duration::from_millis(100);

/// What comes after this bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Another one, on the same listening socket.
    HandOver,
    /// Nothing.
    ForGood,
}

/// The most connections that the system's limit of descriptors allows; half of them are for everything else.
pub(crate) fn connections_max() -> usize {
    const MOST: usize = 512;
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    usize::try_from(descriptors / 2).unwrap_or(MOST).clamp(1, MOST)
}

/// Serves `most` connections at a time until `stop`, then accepts nothing more and returns when what was under way is
/// answered.
pub(crate) async fn serve(
    listener: TcpListener,
    endpoint: Arc<Endpoint>,
    most: usize,
    stop: impl Future<Output = Ending>,
) {
    let mut door = Door::new(endpoint, most);
    tokio::pin!(stop);
    let ending = loop {
        let accepted = tokio::select! {
            // Those who have gone first, then those who come.
            biased;
            ending = &mut stop => break ending,
            Some(ended) = door.tasks.join_next_with_id() => {
                door.forget(ended.map_or_else(|error| error.id(), |(id, ())| id));
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => door.receive(stream, peer),
            // The client gave up while it waited in the queue.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted");
                door.make_room().await;
            }
        }
    };
    drop(listener);
    door.leave(ending).await;
}

/// Those who are connected.
struct Door {
    endpoint: Arc<Endpoint>,
    http: http1::Builder,
    most: usize,
    clock: Arc<AtomicU64>,
    graceful: GracefulShutdown,
    tasks: JoinSet<()>,
    guests: Vec<(AbortHandle, Arc<Place>)>,
}

impl Door {
    fn new(endpoint: Arc<Endpoint>, most: usize) -> Self {
        Self {
            endpoint,
            http: builder(),
            most,
            clock: Arc::default(),
            graceful: GracefulShutdown::new(),
            tasks: JoinSet::new(),
            guests: Vec::new(),
        }
    }

    fn receive(&mut self, stream: TcpStream, peer: SocketAddr) {
        if self.guests.len() >= self.most && !self.let_one_go() {
            tracing::warn!(%peer, "refused a connection: all others are being answered");
            return;
        }
        let place = Place::new(Arc::clone(&self.clock));
        let (io, connection) = match connection(&self.endpoint, stream, peer, &place) {
            Ok(connection) => connection,
            Err(error) => return tracing::debug!(%error, %peer, "a connection was gone at once"),
        };
        let service = service_fn(move |request| {
            let connection = Arc::clone(&connection);
            async move { Ok::<_, Infallible>(connection.answer(request).await) }
        });
        let served = self.graceful.watch(self.http.serve_connection(io, service));
        let task = self.tasks.spawn(async move {
            if let Err(error) = served.await {
                tracing::debug!(%error, %peer, "a connection ended early");
            }
        });
        self.guests.push((task, place));
    }

    /// Closes a connection that has to go, if there is one.
    fn let_one_go(&mut self) -> bool {
        let Some(index) = first_to_go(self.guests.iter().map(|(_, place)| place.guest())) else {
            return false;
        };
        self.guests.swap_remove(index).0.abort();
        true
    }

    /// The system has no descriptor for a newcomer: an idle connection goes, or some other ends by itself.
    async fn make_room(&mut self) {
        self.let_one_go();
        let ended = async {
            match self.tasks.join_next_with_id().await {
                Some(ended) => ended.map_or_else(|error| error.id(), |(id, ())| id),
                None => std::future::pending().await,
            }
        };
        if let Ok(ended) = timeout(SCARCITY, ended).await {
            self.forget(ended);
        }
    }

    fn forget(&mut self, ended: Id) {
        self.guests.retain(|(task, _)| task.id() != ended);
    }

    async fn leave(mut self, ending: Ending) {
        let under_way = self.endpoint.leave();
        let answered = async {
            under_way.wait().await;
            if ending == Ending::ForGood {
                return;
            }
            // Whoever has no open connection any more has nothing to say on one.
            let _ = timeout(LINGER, async { while self.tasks.join_next().await.is_some() {} }).await;
            under_way.wait().await;
        };
        if timeout(FINISH, answered).await.is_err() {
            tracing::warn!("ended with requests under way");
        }
        self.endpoint.close();
        let _ = timeout(CLOSE, self.graceful.shutdown()).await;
    }
}

type Io = Watched<TokioIo<TcpStream>, Box<dyn Fn(u64) + Send>>;

fn connection(
    endpoint: &Arc<Endpoint>,
    stream: TcpStream,
    peer: SocketAddr,
    place: &Arc<Place>,
) -> io::Result<(Io, Arc<Connection>)> {
    stream.set_nodelay(true)?;
    let local = stream.local_addr()?;
    let handed = Handed::new();
    let daemon = endpoint.daemon().clone();
    let report = move |delivery| {
        let daemon = daemon.clone();
        tokio::spawn(async move {
            // Without the word the daemon stops the agent a moment later.
            let _ = daemon.ask(Credential::Peer, Request::Delivered { delivery }).await;
        });
    };
    let io = Watched::new(TokioIo::new(stream), handed.clone(), Box::new(report) as Box<dyn Fn(u64) + Send>);
    let connection = Connection::new(Arc::clone(endpoint), (peer, local), handed, Arc::clone(place));
    Ok((io, Arc::new(connection)))
}

fn builder() -> http1::Builder {
    let mut http = http1::Builder::new();
    // A client that has sent its request and closed its side, or its connection, has still asked: hyper looks
    // at the connection again only when there is an answer, so a caller that goes away cancels nothing.
    http.half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_MAX);
    http
}
