//! Signals that a handler puts into a pipe, from which they are read.

use crate::signal::Signal;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd as _, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The pipe's writing end. A handler is given nothing but a number, so it has to find this by itself.
static WRITER: AtomicI32 = AtomicI32::new(NONE);
const NONE: RawFd = -1;

/// Where the signals of this process come.
#[derive(Debug)]
pub(crate) struct SignalSource {
    reader: PipeReader,
}

impl SignalSource {
    pub(crate) fn of(signals: &[Signal]) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        crate::descriptor::set_nonblocking(&reader)?;
        crate::descriptor::set_nonblocking(&writer)?;
        // It stays open: a handler may run at any time from now on.
        WRITER.store(writer.into_raw_fd(), Ordering::Relaxed);
        for signal in signals {
            handle(*signal)?;
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        Ok(Self { reader })
    }

    pub(crate) fn next(&self) -> Option<Signal> {
        let mut number = [0];
        let [number] = (&self.reader).read_exact(&mut number).ok().map(|()| number)?;
        Signal::from_number(number.into())
    }
}

impl AsFd for SignalSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

fn handle(signal: Signal) -> io::Result<()> {
    // SAFETY: zeros are valid for each field: no flag, and a mask that sigemptyset may fill.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the set outlives the call.
    unsafe { libc::sigemptyset(&raw mut action.sa_mask) };
    // SAFETY: the action outlives the call, and its handler calls only what is async-signal-safe.
    Errno::result(unsafe { libc::sigaction(signal.number(), &raw const action, std::ptr::null_mut()) })?;
    Ok(())
}

/// The handler. A pipe that is full holds thousands that were not looked at: one more would change nothing.
extern "C" fn note(number: libc::c_int) {
    let interrupted = Errno::last_raw();
    let [byte, ..] = number.to_le_bytes();
    // SAFETY: the byte outlives the call; the descriptor is the pipe's, which is never closed.
    unsafe { libc::write(WRITER.load(Ordering::Relaxed), (&raw const byte).cast(), 1) };
    // Whoever was interrupted may be about to read it.
    Errno::set_raw(interrupted);
}
