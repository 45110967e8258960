//! A copy of this process that has the same parent, and the memory in which the kernel finds its arguments.

use crate::sibling::Fork;
use nix::errno::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

/// Whether [`crate::sibling::fork`] can work.
pub const CAN_FORK_SIBLINGS: bool = true;

pub(crate) fn fork_sibling() -> io::Result<Fork> {
    // A link for the folder, one for itself, and one for the folder of each thread.
    if fs::metadata("/proc/self/task")?.nlink() != 3 {
        return Err(Errno::EDEADLK.into());
    }
    // SAFETY: zeros are valid for each field: no stack and nowhere to write a number to.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    // Its end is told by the signal by which that of this process is.
    arguments.flags = libc::CLONE_PARENT as u64;
    // SAFETY: the arguments outlive the call. Nobody shares memory with the copy, and no other thread was in the
    // middle of anything: the copy may do whatever this process may.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of_val(&arguments)) };
    match Errno::result(pid)? {
        0 => Ok(Fork::Sibling),
        pid => Ok(Fork::Caller(u32::try_from(pid).map_err(io::Error::other)?)),
    }
}

pub(crate) fn address_of_argument(text: &str) -> Option<u64> {
    let line = fs::read("/proc/self/cmdline").ok()?;
    let mut place = 0;
    for argument in line.split(|&byte| byte == 0) {
        if argument == text.as_bytes() {
            return Some(arguments_begin()? + place);
        }
        place += u64::try_from(argument.len()).ok()? + 1;
    }
    None
}

pub(crate) fn write_own_memory(address: u64, bytes: &[u8]) -> io::Result<()> {
    File::options().write(true).open("/proc/self/mem")?.write_all_at(bytes, address)
}

/// The address of the first of them, by the 48th field of the manual page. The command name before may contain anything.
fn arguments_begin() -> Option<u64> {
    const AFTER_THE_NAME: usize = 3;
    let line = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = line.rsplit_once(')')?;
    fields.split_whitespace().nth(48 - AFTER_THE_NAME)?.parse().ok()
}
