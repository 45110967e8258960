//! What only Linux has: subreapers, death signals, process and signal descriptors, memory shared until exec.

mod launch;
mod removal;
mod sibling;
mod signals;
mod sock_diag;
pub(crate) mod tcp;
pub(crate) mod tree;

pub(crate) use launch::{close_on_exec_from, die_with, start};
pub use removal::wait_for_removal;
pub use sibling::CAN_FORK_SIBLINGS;
pub(crate) use sibling::{address_of_argument, fork_sibling, write_own_memory};
pub(crate) use signals::SignalSource;
pub(crate) use tree::{ProcessHandle, ancestors, wait_for_an_end};

use crate::descriptor;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::pty::PtyMaster;
use nix::sys::prctl;
use nix::sys::socket::MsgFlags;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::path::PathBuf;

/// Makes a descriptor that is received close itself on exec, from its first moment on.
pub(crate) const RECEIVE_FLAGS: MsgFlags = MsgFlags::MSG_CMSG_CLOEXEC;

/// The program that this process runs, under a name that it keeps when it is replaced on disk.
#[expect(clippy::unnecessary_wraps, reason = "it can fail on other systems")]
pub(crate) fn own_executable() -> io::Result<PathBuf> {
    Ok(PathBuf::from("/proc/self/exe"))
}

/// Makes every orphan below this process its child.
pub fn become_subreaper() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// Sets the name that `ps` and `pkill` know this process by, at most 15 bytes of it.
pub fn set_name(name: &CStr) -> io::Result<()> {
    Ok(prctl::set_name(name)?)
}

/// Closes every descriptor from `first` on, for a program that has opened none yet.
pub(crate) fn close_from(first: RawFd) {
    // SAFETY: close_range takes three numbers. By the contract above nobody owns these descriptors yet.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first.cast_unsigned(), libc::c_uint::MAX, 0) };
    if done != 0 {
        // A kernel before 5.9.
        descriptor::close_each_from(first);
    }
}

/// The other end of a pseudo-terminal.
pub(crate) fn open_slave(master: &PtyMaster) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    // SAFETY: the request takes open flags by value; it needs no path, so a missing /dev/pts is no matter.
    let slave = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags.bits()) };
    let slave = Errno::result(slave)?;
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(slave) })
}
