//! What a shim does to itself, and how it learns what became of its descendants.

use crate::child::{self, Exit};
use crate::facts;
use crate::signal::Signal;
use crate::system::{self, SignalSource};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

pub use crate::system::{become_subreaper, set_name};

/// Leaves the session of whoever started this process, so that their terminal and group are not ours.
pub fn start_session() -> io::Result<()> {
    match nix::unistd::setsid() {
        // EPERM: it already leads a group, so somebody gave it one of its own.
        Ok(_) | Err(Errno::EPERM) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Gives up what a daemon or a shim must not keep of whoever started it: every descriptor from 3 on, and
/// blocked signals. For the first moment of a program, when nothing of its own is open yet.
pub fn forget_inherited() -> io::Result<()> {
    system::close_from(3);
    Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?)
}

/// From now on freed memory goes back to the system: a process that lives long does not stay as large as it was in
/// its largest moment. Other C libraries than glibc do so by themselves.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    for threshold in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        const SIZE: libc::c_int = 64 * 1024;
        // SAFETY: it takes two numbers, and sets one of the allocator's own.
        unsafe { libc::mallopt(threshold, SIZE) };
    }
}

/// Takes over what this process has as descriptor 0, which becomes `/dev/null`.
pub fn take_stdin() -> io::Result<OwnedFd> {
    let taken = io::stdin().as_fd().try_clone_to_owned()?;
    let null = File::open("/dev/null")?;
    // SAFETY: both are numbers. Descriptor 0 stays open, so whoever holds it as stdin is not betrayed.
    Errno::result(unsafe { libc::dup2(null.as_raw_fd(), 0) })?;
    Ok(taken)
}

/// From now on every signal that somebody could send to end this process is ignored, but for these.
pub fn ignore_signals_except(signals: &[Signal]) {
    let excepted = |number: i32| signals.iter().any(|signal| signal.number() == number);
    for number in (1..=facts::last_signal()).filter(|number| !excepted(*number)) {
        if !LEFT_ALONE.contains(&number) {
            set_disposition(number, libc::SIG_IGN);
        }
    }
}

/// The signals of this process, read from a descriptor.
#[derive(Debug)]
pub struct Signals {
    source: SignalSource,
}

/// Faults of the program itself, job control, and what does nothing by default.
const LEFT_ALONE: [i32; 16] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGURG,
    libc::SIGWINCH,
];

impl Signals {
    /// From now on these signals come only here, whether they were ignored or blocked before.
    pub fn take(signals: &[Signal]) -> io::Result<Self> {
        Ok(Self { source: SignalSource::of(signals)? })
    }

    /// The next signal that has come, if one has.
    pub fn next(&self) -> Option<Signal> {
        self.source.next()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

/// What [`reap`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaped {
    /// This child ended.
    Ended {
        /// Its process id; from now on it may be somebody else's.
        pid: u32,
        /// How.
        exit: Exit,
    },
    /// No other child has ended.
    OthersLive,
    /// There is no child. For a subreaper: there is no descendant.
    NoChild,
}

/// Takes the exit status of one child, whichever ended. Only for a program that waits for its children
/// nowhere else.
pub fn reap() -> Reaped {
    match child::wait_without_blocking(-1) {
        Ok(Some((pid, exit))) => Reaped::Ended { pid, exit },
        Ok(None) => Reaped::OthersLive,
        // ECHILD; the arguments are ours, so nothing else can come.
        Err(_) => Reaped::NoChild,
    }
}

pub(crate) fn set_disposition(number: i32, disposition: libc::sighandler_t) {
    // SAFETY: the dispositions used are the two that run no code of ours. The system refuses the few
    // numbers that it keeps for itself, which is as well.
    unsafe { libc::signal(number, disposition) };
}
