//! Accepting connections, a bounded number of them, and letting them finish at the end.

use crate::delivery::{Handed, Watched};
use crate::http::{Connection, Endpoint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use mcp_restart_protocol::request::{Credential, Request};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// More wait in the system's queue. Half of the descriptors that a process usually may have.
const CONNECTIONS_MAX: usize = 512;
/// How long the head of a request may take, and how long a connection may wait for its next request.
const HEAD_DEADLINE: Duration = Duration::from_secs(60);
const HEADERS_MAX: usize = 64;
const HEAD_MAX: usize = 64 * 1024;
/// How long requests under way may take when the bridge is told to end.
const FINISH: Duration = Duration::from_secs(5);
/// How long to wait when the system has no descriptor left.
const SCARCITY: Duration = Duration::from_millis(100);

/// Serves until `stop`, then accepts nothing more and returns when what was under way is answered.
pub(crate) async fn serve(listener: TcpListener, endpoint: Arc<Endpoint>, stop: impl Future<Output = ()>) {
    let connections = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let http = builder();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &slots) => accepted,
            () = &mut stop => break,
        };
        match accepted {
            Ok((stream, peer, slot)) => match connection(&endpoint, stream, peer, slot) {
                Ok((io, connection)) => {
                    let service = service_fn(move |request| {
                        let connection = Arc::clone(&connection);
                        async move { Ok::<_, Infallible>(connection.answer(request).await) }
                    });
                    let served = connections.watch(http.serve_connection(io, service));
                    tokio::spawn(async move {
                        if let Err(error) = served.await {
                            tracing::debug!(%error, %peer, "a connection ended early");
                        }
                    });
                }
                Err(error) => tracing::debug!(%error, %peer, "a connection was gone at once"),
            },
            // The client gave up while it waited in the queue.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted");
                sleep(SCARCITY).await;
            }
        }
    }
    drop(listener);
    if timeout(FINISH, connections.shutdown()).await.is_err() {
        tracing::warn!("ended with requests under way");
    }
}

type Io = Watched<TokioIo<TcpStream>, Box<dyn Fn(u64) + Send>>;

fn connection(
    endpoint: &Arc<Endpoint>,
    stream: TcpStream,
    peer: SocketAddr,
    slot: OwnedSemaphorePermit,
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
    let connection = Connection::new(Arc::clone(endpoint), (peer, local), handed, slot);
    Ok((io, Arc::new(connection)))
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, slot))
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
