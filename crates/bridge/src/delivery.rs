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
#[derive(Debug)]
pub(crate) struct AnswerBody {
    inner: BoxBody<Bytes, Infallible>,
    at_the_end: Option<(AfterCall, Handed)>,
}

impl AnswerBody {
    /// A body whose delivery nobody waits for.
    pub(crate) fn plain(inner: BoxBody<Bytes, Infallible>) -> Self {
        Self { inner, at_the_end: None }
    }

    /// A body whose delivery is reported if `after` asks for it by the time the body ends.
    pub(crate) fn reported(inner: BoxBody<Bytes, Infallible>, after: AfterCall, handed: Handed) -> Self {
        Self { inner, at_the_end: Some((after, handed)) }
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
