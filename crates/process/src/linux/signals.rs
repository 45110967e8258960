//! Signals that are blocked and read from a descriptor of the kernel's.

use crate::session::set_disposition;
use crate::signal::Signal;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Where the signals of this process come.
#[derive(Debug)]
pub(crate) struct SignalSource {
    descriptor: SignalFd,
}

impl SignalSource {
    pub(crate) fn of(signals: &[Signal]) -> io::Result<Self> {
        let mut mask = SigSet::empty();
        for signal in signals {
            set_disposition(signal.number(), libc::SIG_DFL);
            mask.add(signal.number().try_into()?);
        }
        let descriptor = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        Ok(Self { descriptor })
    }

    pub(crate) fn next(&self) -> Option<Signal> {
        let info = self.descriptor.read_signal().ok()??;
        Signal::from_number(info.ssi_signo.cast_signed())
    }
}

impl AsFd for SignalSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
