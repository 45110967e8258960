//! Descriptors: passed to another process over a Unix socket, or never to be waited for.

use crate::system;
use nix::cmsg_space;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Above every number that a program of ours is ever given.
const BEYOND_ALL: RawFd = 65_536;

/// Sends bytes and, with the first of them, a duplicate of a descriptor. Returns how many bytes were
/// taken; `WouldBlock` as any send.
pub fn send_with_descriptor(
    socket: &impl AsFd,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    let descriptors = [descriptor.as_raw_fd()];
    let message = [ControlMessage::ScmRights(&descriptors)];
    let socket = socket.as_fd().as_raw_fd();
    // No flag against SIGPIPE, which not every system has: the runtime ignores that signal.
    Ok(sendmsg::<()>(socket, &[IoSlice::new(bytes)], &message, MsgFlags::empty(), None)?)
}

/// From now on reads and writes answer `WouldBlock` where they would wait.
pub fn set_nonblocking(descriptor: &impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GETFL)?);
    fcntl(descriptor, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Makes a descriptor close itself on exec.
pub(crate) fn set_close_on_exec(descriptor: &impl AsFd) -> io::Result<()> {
    fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(())
}

/// A duplicate with a number that is at least `beyond`; it closes itself on exec.
pub(crate) fn duplicate_beyond(descriptor: BorrowedFd<'_>, beyond: RawFd) -> io::Result<OwnedFd> {
    let duplicate = fcntl(descriptor, FcntlArg::F_DUPFD_CLOEXEC(beyond))?;
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(duplicate) })
}

/// Makes every descriptor from `first` on close itself on exec, one by one.
pub(crate) fn mark_each_from(first: RawFd) {
    for descriptor in first..BEYOND_ALL {
        // SAFETY: it sets a flag of a descriptor, or fails for one that is not open.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Closes every descriptor from `first` on, one by one, for a program that has opened none yet.
pub(crate) fn close_each_from(first: RawFd) {
    for descriptor in first..BEYOND_ALL {
        // SAFETY: by the contract above nobody owns it yet; it fails for one that is not open.
        unsafe { libc::close(descriptor) };
    }
}

/// Receives bytes and the descriptor that came with them, if one did; it closes itself on exec.
/// Zero bytes are the end of the stream.
pub fn receive_with_descriptor(
    socket: &impl AsFd,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = cmsg_space!(RawFd);
    let mut parts = [IoSliceMut::new(buffer)];
    let socket = socket.as_fd().as_raw_fd();
    let message = recvmsg::<()>(socket, &mut parts, Some(&mut space), system::RECEIVE_FLAGS)?;
    let mut received = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = part {
            // SAFETY: the kernel has just made these descriptors for us; nobody else owns them.
            received.extend(descriptors.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
        }
    }
    // Where no flag has said so from the first moment on.
    received.iter().try_for_each(set_close_on_exec)?;
    Ok((message.bytes, received.into_iter().next()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_arrives_with_its_bytes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = UnixStream::pair().unwrap();
        assert_eq!(send_with_descriptor(&ours, b"hello", writer.as_fd()).unwrap(), 5);
        drop(writer);
        let mut buffer = [0; 16];
        let (read, descriptor) = receive_with_descriptor(&theirs, &mut buffer).unwrap();
        assert_eq!(buffer.get(..read), Some(&b"hello"[..]));
        // The passed duplicate is the last one: once it is closed, the reader is at the end.
        drop(descriptor.unwrap());
        assert_eq!(reader.read(&mut buffer).unwrap(), 0);
        drop(ours);
        assert!(matches!(receive_with_descriptor(&theirs, &mut buffer), Ok((0, None))));
    }
}
