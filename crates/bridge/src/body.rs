//! Reading a request's body: in time, not too long, and few long ones at the same time.
//!
//! ```text
//!  frames ─► up to 32 KiB: read at once ─► longer: one of 8 places ─► whole, up to 1 MiB
//!                                               └── held until the request is answered
//! ```
//!
//! No call that means something needs more than 32 KiB, so those who send more wait for each other alone, and what all
//! bodies take together, and what is made of them, has a bound.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The longest body that is read, in bytes.
pub(crate) const BODY_MAX: usize = 1024 * 1024;
const SHORT_MAX: usize = 32 * 1024;
const LONG_AT_A_TIME: usize = 8;
const DEADLINE: Duration = Duration::from_secs(10);

/// The places for long bodies.
#[derive(Debug)]
pub(crate) struct Bodies {
    long: Arc<Semaphore>,
}

/// A whole body.
#[derive(Debug)]
pub(crate) struct Whole {
    /// Its bytes.
    pub(crate) bytes: Bytes,
    /// Its place, if it is a long one: to be held for as long as there is anything made of it.
    pub(crate) place: Option<OwnedSemaphorePermit>,
}

/// Why a body was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is longer than [`BODY_MAX`].
    TooLong,
    /// It did not come in time.
    TooSlow,
    /// It is malformed, or the connection broke.
    Unreadable(String),
}

impl Bodies {
    /// With all places free.
    pub(crate) fn new() -> Self {
        Self { long: Arc::new(Semaphore::new(LONG_AT_A_TIME)) }
    }

    /// The whole body.
    pub(crate) async fn read<B>(&self, body: B) -> Result<Whole, Fault>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if body.size_hint().lower() > BODY_MAX as u64 {
            return Err(Fault::TooLong);
        }
        timeout(DEADLINE, self.collect(body)).await.unwrap_or(Err(Fault::TooSlow))
    }

    async fn collect<B>(&self, body: B) -> Result<Whole, Fault>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        tokio::pin!(body);
        let mut bytes = BytesMut::new();
        let mut place = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Fault::Unreadable(error.into().to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            let length = bytes.len() + data.len();
            if length > BODY_MAX {
                return Err(Fault::TooLong);
            }
            if length > SHORT_MAX && place.is_none() {
                // Only what is closed has no places.
                place = Arc::clone(&self.long).acquire_owned().await.ok();
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Whole { bytes: bytes.freeze(), place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;
    use std::convert::Infallible;

    fn full(length: usize) -> Full<Bytes> {
        Full::new(Bytes::from(vec![b'x'; length]))
    }

    /// A body that begins so long and does not end.
    fn unfinished(length: usize) -> impl Body<Data = Bytes, Error = Infallible> {
        let frames = [Ok(Frame::data(Bytes::from(vec![b'x'; length])))];
        StreamBody::new(futures_util::StreamExt::chain(
            futures_util::stream::iter(frames),
            futures_util::stream::pending(),
        ))
    }

    #[tokio::test]
    async fn long_bodies_wait_for_each_other_and_short_ones_for_nobody() {
        let bodies = Bodies::new();
        let mut long = Vec::new();
        for _ in 0..LONG_AT_A_TIME {
            long.push(bodies.read(full(SHORT_MAX + 1)).await.unwrap());
        }
        let one_more = bodies.read(full(SHORT_MAX + 1));
        tokio::pin!(one_more);
        assert!(futures_util::poll!(&mut one_more).is_pending());
        assert_eq!(bodies.read(full(SHORT_MAX)).await.unwrap().bytes.len(), SHORT_MAX);
        long.pop();
        assert_eq!(one_more.await.unwrap().bytes.len(), SHORT_MAX + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_body_that_does_not_end_gives_its_place_back() {
        let bodies = Bodies::new();
        let slow = (0..LONG_AT_A_TIME).map(|_| bodies.read(unfinished(SHORT_MAX + 1)));
        for fault in futures_util::future::join_all(slow).await {
            assert_eq!(fault.unwrap_err(), Fault::TooSlow);
        }
        bodies.read(full(BODY_MAX)).await.unwrap();
    }

    #[tokio::test]
    async fn a_body_ends_at_its_limit_whether_or_not_it_says_how_long_it_is() {
        let bodies = Bodies::new();
        assert_eq!(bodies.read(full(BODY_MAX + 1)).await.unwrap_err(), Fault::TooLong);
        assert_eq!(bodies.read(unfinished(BODY_MAX + 1)).await.unwrap_err(), Fault::TooLong);
        assert_eq!(bodies.read(full(BODY_MAX)).await.unwrap().bytes.len(), BODY_MAX);
    }
}
