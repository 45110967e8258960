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
use tokio::net::unix::pipe;

/// What comes in.
// A pipe's end is what tokio registers for one direction; it reads and writes a socket just as well.
#[derive(Debug)]
pub struct ReadingHalf(pipe::Receiver);

/// What goes out. The connection closes when both halves are dropped.
#[derive(Debug)]
pub struct WritingHalf {
    socket: Socket,
    /// Another descriptor of the same socket, held while the peer does not read.
    full: Option<pipe::Sender>,
}

/// The two halves of `stream`. Fails if the system has no room for another descriptor.
pub fn split(stream: UnixStream) -> io::Result<(ReadingHalf, WritingHalf)> {
    let socket = stream.into_std()?;
    let reading = pipe::Receiver::from_owned_fd_unchecked(socket.try_clone()?.into())?;
    Ok((ReadingHalf(reading), WritingHalf { socket, full: None }))
}

impl AsyncRead for ReadingHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for WritingHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(full) = &mut self.full {
                let written = ready!(Pin::new(full).poll_write(context, bytes));
                self.full = None;
                return Poll::Ready(written);
            }
            match self.socket.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let duplicate = self.socket.try_clone()?;
                    self.full = Some(pipe::Sender::from_owned_fd_unchecked(duplicate.into())?);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(std::net::Shutdown::Write))
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
        assert!(write.await.unwrap().full.is_none(), "it is watched only while the peer does not read");
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
