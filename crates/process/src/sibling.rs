//! Forking a process of one thread: for what is to be started in less time than a program takes.

use crate::system;
use mcp_restart_paths::RestartPath;
use std::io;

pub use crate::system::CAN_FORK_SIBLINGS;

/// Where [`fork`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// In the process that called it. The new one, with this number, is a child of its parent, not of it.
    Caller(u32),
    /// In the new process, a copy of the caller that has the caller's descriptors too.
    Sibling,
}

/// Makes a copy of this process, to be waited for by whoever waits for this one. A process with other threads is
/// refused with an error, and so is every process where [`CAN_FORK_SIBLINGS`] is false.
pub fn fork(_path: RestartPath) -> io::Result<Fork> {
    system::fork_sibling()
}

/// Where an argument of this process is in its memory, to be replaced in its copies.
#[derive(Debug, Clone, Copy)]
pub struct ShownArgument {
    address: u64,
    length: usize,
}

impl ShownArgument {
    /// The argument with this text.
    pub fn find(text: &str) -> Option<Self> {
        let address = system::address_of_argument(text)?;
        Some(Self { address, length: text.len() })
    }

    /// Shows another text of the same length in its place, to `ps` and its like.
    pub fn show(self, text: &str) -> io::Result<()> {
        if text.len() != self.length {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        system::write_own_memory(self.address, text.as_bytes())
    }
}
