//! Requests and answers of one client.
//!
//! ```text
//!  socket ─► read ─┬─► request task ─┬─► outgoing (bounded) ─► write ─► socket
//!                  ├─► request task ─┤
//!                  └─► subscription ─┘
//! ```
//!
//! Requests run side by side and are answered in the order in which they end. A request that was read is
//! carried out whatever becomes of its client. A client that does not read its answers fills `outgoing`, then
//! no more of its requests are read; when a write makes no headway it is dropped.

use super::Context;
use super::requests::From;
use futures_util::{SinkExt, StreamExt};
use mcp_restart_protocol::answer::{Answer, ErrorCode, Failure, ServerBody, ServerFrame};
use mcp_restart_protocol::codec::{CodecError, Frames};
use mcp_restart_protocol::halves::{self, ReadingHalf, WritingHalf};
use mcp_restart_protocol::request::{ClientFrame, Credential, Request};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, FramedWrite};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// How many requests of one client are carried out at the same time. The bridge has all of its callers
/// on one connection.
const UNDER_WAY_MAX: usize = 512;
/// How many answers of one client wait to be written.
const OUTGOING_MAX: usize = 16;
/// How long the client may take to read one answer.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);
/// The first size in bytes of the buffer for what is read; it grows with what comes.
const BUFFER: usize = 1024;

struct Outgoing {
    frame: ServerFrame,
    /// The stop that waits for this frame to be written.
    delivery: Option<u64>,
    _under_way: Option<UnderWay>,
}

/// A request of this connection, and of the daemon, that is not answered yet.
struct UnderWay {
    _connection: TaskTrackerToken,
    _daemon: TaskTrackerToken,
}

/// Serves requests until the client leaves and all that it asked for is answered.
pub(super) async fn serve(
    stream: UnixStream,
    from: From,
    requests: TaskTracker,
    context: Arc<Context>,
) -> io::Result<()> {
    let (reading, writing) = halves::split(stream)?;
    let (outgoing, to_write) = mpsc::channel(OUTGOING_MAX);
    let write = write(writing, to_write, &context);
    tokio::pin!(write);
    tokio::select! {
        () = &mut write => return Ok(()),
        () = read(reading, from, &requests, &context, outgoing) => {}
    }
    write.await;
    Ok(())
}

async fn read(
    reading: ReadingHalf,
    from: From,
    requests: &TaskTracker,
    context: &Arc<Context>,
    outgoing: mpsc::Sender<Outgoing>,
) {
    let mut frames =
        FramedRead::with_capacity(reading, Frames::<ClientFrame, ServerFrame>::default(), BUFFER);
    let free = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    let from = Arc::new(from);
    // These end with the connection, unlike the requests.
    let mut subscriptions = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        // A client that does not read has to stop asking: its answers would pile up.
        if outgoing.reserve().await.is_err() {
            return;
        }
        let frame = match frames.next().await {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                tracing::debug!(%error, "a client sent something that cannot be read");
                return;
            }
            None => return,
        };
        let (context, from, outgoing) = (Arc::clone(context), Arc::clone(&from), outgoing.clone());
        let connection = requests.token();
        if matches!(frame.request, Request::Subscribe) {
            subscriptions.spawn(async move {
                subscribe(frame, &from, &context, &outgoing).await;
                drop((permit, connection));
            });
        } else {
            let under_way = UnderWay { _connection: connection, _daemon: context.under_way.token() };
            tokio::spawn(async move {
                answer(frame, under_way, &from, &context, &outgoing).await;
                drop(permit);
            });
        }
    }
}

async fn answer(
    frame: ClientFrame,
    under_way: UnderWay,
    from: &From,
    context: &Context,
    outgoing: &mpsc::Sender<Outgoing>,
) {
    let ClientFrame { id, credential, allows_stale, request } = frame;
    // Over HTTP it is the bridge that writes the answer to the caller, and says when it has.
    let ours_to_deliver = !is_over_http(&credential);
    let result = context.answer(from, credential, allows_stale, request).await;
    let delivery = result.as_ref().ok().and_then(delivery_of).filter(|_| ours_to_deliver);
    let frame = ServerFrame { id, body: result.map_or_else(ServerBody::Failed, ServerBody::Answer) };
    // Fails only when the client is gone.
    let _ = outgoing.send(Outgoing { frame, delivery, _under_way: Some(under_way) }).await;
}

async fn subscribe(frame: ClientFrame, from: &From, context: &Context, outgoing: &mpsc::Sender<Outgoing>) {
    let send = async |body| {
        let frame = ServerFrame { id: frame.id, body };
        outgoing.send(Outgoing { frame, delivery: None, _under_way: None }).await.is_ok()
    };
    if let Err(failure) = context.identification.caller(&from.process, frame.credential).await {
        send(ServerBody::Failed(failure)).await;
        return;
    }
    let mut subscription = context.fleet.subscribe();
    while let Some(event) = subscription.next().await {
        if !send(ServerBody::Event(event)).await {
            return;
        }
    }
}

async fn write(writing: WritingHalf, mut to_write: mpsc::Receiver<Outgoing>, context: &Context) {
    let mut frames = FramedWrite::new(writing, Frames::<ClientFrame, ServerFrame>::default());
    while let Some(outgoing) = to_write.recv().await {
        let id = outgoing.frame.id;
        let written = match timeout(WRITE_DEADLINE, frames.send(outgoing.frame)).await {
            Ok(Err(error @ (CodecError::TooLong | CodecError::Malformed(_)))) => {
                let failure =
                    Failure::new(ErrorCode::Internal, format!("the answer cannot be sent: {error}"));
                let frame = ServerFrame { id, body: ServerBody::Failed(failure) };
                timeout(WRITE_DEADLINE, frames.send(frame)).await
            }
            other => other,
        };
        if !matches!(written, Ok(Ok(()))) {
            tracing::debug!("a client did not take its answer");
            return;
        }
        if let Some(delivery) = outgoing.delivery {
            context.fleet.delivered(delivery);
        }
    }
}

/// Whether the caller is one of the bridge's.
pub(super) fn is_over_http(credential: &Credential) -> bool {
    matches!(credential, Credential::Http { .. } | Credential::Admitted(_))
}

fn delivery_of(answer: &Answer) -> Option<u64> {
    match answer {
        Answer::Restarted(answer) => answer.delivery,
        Answer::Agent(answer) => answer.delivery,
        Answer::StdioRestarted(answer) => answer.delivery,
        _ => None,
    }
}
