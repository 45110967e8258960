//! Waiting for several descriptors in one thread.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// A descriptor and what to wait for on it.
#[derive(Debug, Clone, Copy)]
pub struct Watch<'a> {
    /// The descriptor.
    pub descriptor: BorrowedFd<'a>,
    /// Wake up when there is something to read.
    pub read: bool,
    /// Wake up when there is room to write.
    pub write: bool,
}

/// What a descriptor is ready for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ready {
    /// A read does not wait: bytes, the end or an error are there.
    pub read: bool,
    /// A write does not wait: there is room or an error.
    pub write: bool,
    /// The other side is gone. Told also where nothing was asked for.
    pub hang_up: bool,
}

/// Waits until a descriptor is ready or the time has come, however early a signal interrupts it.
/// The result has an entry for each watch, in their order.
pub fn wait(watches: &[Watch<'_>], until: Option<Instant>) -> io::Result<Vec<Ready>> {
    let mut polled: Vec<PollFd<'_>> =
        watches.iter().map(|watch| PollFd::new(watch.descriptor, interest(*watch))).collect();
    loop {
        match nix::poll::poll(&mut polled, timeout(until, Instant::now())) {
            Ok(_) => return Ok(polled.iter().map(ready).collect()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn interest(watch: Watch<'_>) -> PollFlags {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::POLLIN, watch.read);
    flags.set(PollFlags::POLLOUT, watch.write);
    flags
}

fn ready(polled: &PollFd<'_>) -> Ready {
    let flags = polled.revents().unwrap_or(PollFlags::empty());
    let gone = flags.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL);
    Ready {
        read: gone || flags.contains(PollFlags::POLLIN),
        write: gone || flags.contains(PollFlags::POLLOUT),
        hang_up: gone,
    }
}

/// Rounded up: to wake up before the time is to wake up twice.
fn timeout(until: Option<Instant>, now: Instant) -> PollTimeout {
    let Some(until) = until else { return PollTimeout::NONE };
    let millis = until.saturating_duration_since(now).as_micros().div_ceil(1000);
    PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn each_watch_gets_its_own_answer() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (quiet, _other) = UnixStream::pair().unwrap();
        drop(theirs);
        let watch =
            |stream: &'static UnixStream| Watch { descriptor: stream.as_fd(), read: true, write: false };
        let (ours, quiet) = (&*Box::leak(Box::new(ours)), &*Box::leak(Box::new(quiet)));
        let ready = wait(&[watch(quiet), watch(ours)], None).unwrap();
        assert_eq!(ready.iter().map(|ready| ready.read).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn a_wait_is_over_no_earlier_than_its_time() {
        let until = Instant::now() + Duration::from_micros(1500);
        wait(&[], Some(until)).unwrap();
        assert!(Instant::now() >= until);
    }
}
