//! A Unix connection as two halves, each of which wakes its task for its own direction only.
//!
//! A stream of tokio is registered for both directions at once, and the system reports a Unix socket writable
//! again each time its peer has read something: every request and every answer would wake its sender a
//! second time, for nothing. Here the writing half is registered only while the peer does not read.

use std::io::{self, Write};
use std::os::unix::net::UnixStream as Socket;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf, pipe};

/// What comes in.
#[derive(Debug)]
pub struct ReadingHalf(Reading);

#[derive(Debug)]
enum Reading {
    // A pipe's end is what tokio registers for one direction; it reads and writes a socket just as well.
    Apart(pipe::Receiver),
    /// There was no descriptor for that.
    Shared(OwnedReadHalf),
}

/// What goes out. The connection closes when both halves are dropped.
#[derive(Debug)]
pub struct WritingHalf(Writing);

#[derive(Debug)]
enum Writing {
    Apart {
        socket: Socket,
        /// Another descriptor of the same socket, held while the peer does not read.
        full: Option<pipe::Sender>,
    },
    Shared(OwnedWriteHalf),
}

/// The two halves of `stream`. If the system has no other descriptor for it, they share the one that there is.
pub fn split(stream: UnixStream) -> io::Result<(ReadingHalf, WritingHalf)> {
    let socket = stream.into_std()?;
    let Ok(copy) = socket.try_clone() else {
        let (reading, writing) = UnixStream::from_std(socket)?.into_split();
        return Ok((ReadingHalf(Reading::Shared(reading)), WritingHalf(Writing::Shared(writing))));
    };
    let reading = pipe::Receiver::from_owned_fd_unchecked(copy.into())?;
    Ok((ReadingHalf(Reading::Apart(reading)), WritingHalf(Writing::Apart { socket, full: None })))
}

impl AsyncRead for ReadingHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Reading::Apart(reading) => Pin::new(reading).poll_read(context, buffer),
            Reading::Shared(reading) => Pin::new(reading).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for WritingHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let (socket, full) = match &mut self.0 {
            Writing::Apart { socket, full } => (socket, full),
            Writing::Shared(writing) => return Pin::new(writing).poll_write(context, bytes),
        };
        loop {
            if let Some(duplicate) = full {
                let written = ready!(Pin::new(duplicate).poll_write(context, bytes));
                *full = None;
                return Poll::Ready(written);
            }
            match socket.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let duplicate = socket.try_clone()?;
                    *full = Some(pipe::Sender::from_owned_fd_unchecked(duplicate.into())?);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Writing::Apart { socket, .. } => Poll::Ready(socket.shutdown(std::net::Shutdown::Write)),
            Writing::Shared(writing) => Pin::new(writing).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn halves() -> ((ReadingHalf, WritingHalf), UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (split(ours).unwrap(), theirs)
    }

    #[tokio::test]
    async fn what_does_not_fit_waits_for_the_reader_and_arrives_whole() {
        let ((_reading, mut writing), mut peer) = halves();
        let sent: Vec<u8> = (0..4_000_000_u32).map(|number| u8::try_from(number % 251).unwrap()).collect();
        let expected = sent.clone();
        let write = tokio::spawn(async move {
            writing.write_all(&sent).await.unwrap();
            writing
        });
        let mut received = vec![0; expected.len()];
        peer.read_exact(&mut received).await.unwrap();
        assert!(received == expected);
        let written = write.await.unwrap();
        let is_watched = matches!(written.0, Writing::Apart { full: Some(_), .. });
        assert!(!is_watched, "it is watched only while the peer does not read");
    }

    #[tokio::test]
    async fn what_comes_is_read_and_the_end_is_seen() {
        let ((mut reading, _writing), mut peer) = halves();
        let read = tokio::spawn(async move {
            let mut all = Vec::new();
            reading.read_to_end(&mut all).await.unwrap();
            all
        });
        peer.write_all(b"one").await.unwrap();
        peer.write_all(b" two").await.unwrap();
        drop(peer);
        assert_eq!(read.await.unwrap(), b"one two");
    }

    #[tokio::test]
    async fn a_writer_that_waits_learns_that_its_peer_is_gone() {
        let ((_reading, mut writing), peer) = halves();
        let write = tokio::spawn(async move { writing.write_all(&vec![0; 4_000_000]).await });
        tokio::task::yield_now().await;
        drop(peer);
        write.await.unwrap().unwrap_err();
    }

    #[tokio::test]
    async fn the_peer_sees_the_end_when_both_halves_are_gone() {
        let ((reading, writing), mut peer) = halves();
        drop(reading);
        drop(writing);
        assert_eq!(peer.read(&mut [0]).await.unwrap(), 0);
    }
}
