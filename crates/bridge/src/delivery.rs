//! When the last byte of an answer was written to its connection.
//!
//! ```text
//!  daemon's answer ─► AfterCall::Report(7) ─► rmcp ─► AnswerBody ─frames─► hyper's buffer ─► Watched ─► socket
//!                                                        │ at its end: Handed(7)               │ flushed: report 7
//!                                                        └────────────────────────────────────►┘
//! ```
//!
//! hyper takes a body's last frame, and drops the body, before it writes the bytes; only the connection
//! under hyper knows that they were written. hyper flushes that connection only when its own buffer is
//! empty, so the first flush after the body's end means that the whole answer is in the socket.

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use hyper::body::{Body, Frame, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

/// What is left to do when a tool has its answer; set by the tool, read by whoever sends the answer.
pub(crate) type AfterCall = Arc<OnceLock<Duty>>;

/// See [`AfterCall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Tell the daemon when the answer was written: it waits with a stop until then.
    Report(u64),
    /// The daemon refused the caller: find out whether it is let in at all.
    AskAgain,
}

/// The delivery number of an answer that hyper has taken wholly, on its way to [`Watched`].
#[derive(Debug, Clone)]
pub(crate) struct Handed(Arc<AtomicU64>);

const NOTHING: u64 = u64::MAX;

impl Handed {
    /// Nothing handed over yet.
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(NOTHING)))
    }

    fn put(&self, delivery: u64) {
        self.0.store(delivery, Ordering::Relaxed);
    }

    fn take(&self) -> Option<u64> {
        Some(self.0.swap(NOTHING, Ordering::Relaxed)).filter(|delivery| *delivery != NOTHING)
    }
}

/// The body of an answer, which says when hyper has taken its last frame.
pub(crate) struct AnswerBody {
    inner: BoxBody<Bytes, Infallible>,
    _held: Option<Box<dyn Send + Sync>>,
    at_the_end: Option<(AfterCall, Handed)>,
}

impl AnswerBody {
    /// A body whose delivery nobody waits for.
    pub(crate) fn plain(inner: BoxBody<Bytes, Infallible>) -> Self {
        Self { inner, _held: None, at_the_end: None }
    }

    /// A body whose delivery is reported if `after` asks for it by the time the body ends.
    pub(crate) fn reported(inner: BoxBody<Bytes, Infallible>, after: AfterCall, handed: Handed) -> Self {
        Self { inner, _held: None, at_the_end: Some((after, handed)) }
    }

    /// The same body, with something that exists for as long as it does.
    pub(crate) fn holding(self, held: Option<impl Send + Sync + 'static>) -> Self {
        Self { _held: held.map(|held| Box::new(held) as Box<dyn Send + Sync>), ..self }
    }

    fn ended(&mut self) {
        if let Some((after, handed)) = self.at_the_end.take()
            && let Some(Duty::Report(delivery)) = after.get()
        {
            handed.put(*delivery);
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        if frame.is_none() || self.inner.is_end_stream() {
            self.ended();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A connection that reports each answer when its bytes were written.
pub(crate) struct Watched<Io, Report> {
    io: Io,
    handed: Handed,
    report: Report,
}

impl<Io, Report: Fn(u64)> Watched<Io, Report> {
    /// Calls `report` with each delivery number that comes through `handed`.
    pub(crate) fn new(io: Io, handed: Handed, report: Report) -> Self {
        Self { io, handed, report }
    }
}

impl<Io: Read + Unpin, Report: Unpin> Read for Watched<Io, Report> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<Io: Write + Unpin, Report: Fn(u64) + Unpin> Write for Watched<Io, Report> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(context))?;
        if let Some(delivery) = self.handed.take() {
            (self.report)(delivery);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Full};
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    const BODY: usize = 10_000;
    const PIPE: usize = 64;

    /// A connection that holds 64 bytes, with an answer under way on it, and what is reported.
    async fn answering(duty: Option<Duty>) -> (DuplexStream, UnboundedReceiver<u64>) {
        let (mut client, server) = tokio::io::duplex(PIPE);
        let (reported, reports) = unbounded_channel();
        let handed = Handed::new();
        let io = Watched::new(TokioIo::new(server), handed.clone(), move |delivery| {
            reported.send(delivery).unwrap();
        });
        let service = service_fn(move |_: Request<hyper::body::Incoming>| {
            let after = AfterCall::default();
            let _ = duty.map(|duty| after.set(duty));
            let body =
                AnswerBody::reported(Full::new(Bytes::from(vec![b'x'; BODY])).boxed(), after, handed.clone());
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(io, service));
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        (client, reports)
    }

    async fn settle() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_answer_is_reported_when_its_last_byte_is_written_and_not_before() {
        let (mut client, mut reports) = answering(Some(Duty::Report(7))).await;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        // When more is left than the connection holds, the last byte cannot have been written.
        for left in (PIPE + 1..=BODY).rev() {
            settle().await;
            assert!(reports.is_empty(), "reported with {left} bytes to go");
            client.read_u8().await.unwrap();
        }
        settle().await;
        assert_eq!(reports.try_recv(), Ok(7));
        let mut rest = [0; PIPE];
        client.read_exact(&mut rest).await.unwrap();
        settle().await;
        assert!(reports.is_empty());
    }

    #[tokio::test]
    async fn an_answer_that_nobody_waits_for_is_not_reported() {
        for duty in [None, Some(Duty::AskAgain)] {
            let (mut client, mut reports) = answering(duty).await;
            let mut whole = vec![0; BODY];
            client.read_exact(&mut whole).await.unwrap();
            drop(client);
            assert_eq!(reports.recv().await, None);
        }
    }

    #[tokio::test]
    async fn an_answer_that_was_never_written_is_not_reported() {
        let (mut client, mut reports) = answering(Some(Duty::Report(7))).await;
        client.read_exact(&mut [0; 100]).await.unwrap();
        drop(client);
        assert_eq!(reports.recv().await, None);
    }
}
