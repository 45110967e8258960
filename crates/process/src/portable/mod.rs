//! What every Unix has: sessions, parents, environments, a fork that copies, signals by handler and pipe.
//!
//! It holds less than what only Linux has. Who has left the agent's session and lost its parent is found by
//! its environment, or not at all; a process is signalled by its number a moment after that was checked; an
//! agent does not die with its shim; and who is at the other end of a TCP connection is not known.

mod launch;
mod marks;
mod signals;
pub(crate) mod tcp;
pub(crate) mod tree;

pub(crate) use launch::{close_on_exec_from, die_with, start};
pub(crate) use signals::SignalSource;
pub(crate) use tree::{ProcessHandle, ancestors, wait_for_an_end};

use crate::descriptor;
use crate::sibling::Fork;
use nix::pty::{PtyMaster, ptsname};
use nix::sys::socket::MsgFlags;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// A process can only fork children of its own.
pub const CAN_FORK_SIBLINGS: bool = false;

/// No flag.
pub(crate) const RECEIVE_FLAGS: MsgFlags = MsgFlags::empty();

/// The program that this process runs, or what has been put in its place on disk.
pub(crate) fn own_executable() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// Orphans below this process become children of the first process: see [`ORPHANS_COME_BACK`].
///
/// [`ORPHANS_COME_BACK`]: tree::ORPHANS_COME_BACK
pub fn become_subreaper() -> io::Result<()> {
    Ok(())
}

/// Nobody tells when the name of a file goes.
pub fn wait_for_removal(_: &[impl AsRef<Path>]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// See [`CAN_FORK_SIBLINGS`].
pub(crate) fn fork_sibling() -> io::Result<Fork> {
    Err(io::ErrorKind::Unsupported.into())
}

/// There is no common way to find it.
pub(crate) fn address_of_argument(_text: &str) -> Option<u64> {
    None
}

/// Nor to change it.
pub(crate) fn write_own_memory(_address: u64, _bytes: &[u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The process keeps the name of its program: there is no common way to change it.
pub fn set_name(_name: &CStr) -> io::Result<()> {
    Ok(())
}

/// Closes every descriptor from `first` on, for a program that has opened none yet.
pub(crate) fn close_from(first: RawFd) {
    descriptor::close_each_from(first);
}

/// The other end of a pseudo-terminal.
pub(crate) fn open_slave(master: &PtyMaster) -> io::Result<OwnedFd> {
    // SAFETY: the name is copied from the C library's buffer before another thread could ask for one: only
    // shims open terminals, and they have one thread.
    let name = unsafe { ptsname(master) }?;
    let slave = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(name)?;
    Ok(slave.into())
}
