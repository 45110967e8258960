//! What a shim does to itself, and how it learns what became of its descendants.

use crate::child::{self, Exit};
use crate::signal::Signal;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

/// Leaves the session of whoever started this process, so that their terminal and group are not ours.
pub fn start_session() -> io::Result<()> {
    match nix::unistd::setsid() {
        // EPERM: it already leads a group, so somebody gave it one of its own.
        Ok(_) | Err(Errno::EPERM) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes every orphan below this process its child.
pub fn become_subreaper() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// Sets the name that `ps` and `pkill` know this process by, at most 15 bytes of it.
pub fn set_name(name: &CStr) -> io::Result<()> {
    Ok(prctl::set_name(name)?)
}

/// Gives up what a daemon or a shim must not keep of whoever started it: every descriptor from 3 on, and
/// blocked signals. For the first moment of a program, when nothing of its own is open yet.
pub fn forget_inherited() -> io::Result<()> {
    // SAFETY: close_range takes three numbers. By the contract above nobody owns these descriptors yet.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if done != 0 {
        // A kernel before 5.9. Whatever is open is far below this number.
        for descriptor in 3..65_536 {
            // SAFETY: as above.
            unsafe { libc::close(descriptor) };
        }
    }
    Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?)
}

/// Takes over what this process has as descriptor 0, which becomes `/dev/null`.
pub fn take_stdin() -> io::Result<OwnedFd> {
    let taken = io::stdin().as_fd().try_clone_to_owned()?;
    let null = File::open("/dev/null")?;
    // SAFETY: both are numbers. Descriptor 0 stays open, so whoever holds it as stdin is not betrayed.
    Errno::result(unsafe { libc::dup2(null.as_raw_fd(), 0) })?;
    Ok(taken)
}

/// The signals of this process, read from a descriptor.
#[derive(Debug)]
pub struct Signals {
    descriptor: SignalFd,
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
    /// From now on these signals come only here, every other that somebody could send to end the process
    /// is ignored, and what was inherited (signals ignored or blocked) holds no more.
    pub fn take(signals: &[Signal]) -> io::Result<Self> {
        let mut mask = SigSet::empty();
        for number in 1..=libc::SIGRTMAX() {
            if signals.iter().any(|signal| signal.number() == number) {
                set_disposition(number, libc::SIG_DFL);
                mask.add(number.try_into()?);
            } else if !LEFT_ALONE.contains(&number) {
                set_disposition(number, libc::SIG_IGN);
            }
        }
        let descriptor = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        Ok(Self { descriptor })
    }

    /// The next signal that has come, if one has.
    pub fn next(&self) -> Option<Signal> {
        let info = self.descriptor.read_signal().ok()??;
        Signal::from_number(info.ssi_signo.cast_signed())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
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

fn set_disposition(number: i32, disposition: libc::sighandler_t) {
    // SAFETY: the dispositions used are the two that run no code of ours. The system refuses the few
    // numbers that it keeps for itself, which is as well.
    unsafe { libc::signal(number, disposition) };
}
