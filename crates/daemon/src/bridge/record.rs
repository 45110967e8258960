//! `bridge.json`: which bridge served last, so that the next daemon knows whom to wait for.

use mcp_restart_process::tree::Process;
use mcp_restart_process::{Identity, read_regular, write_atomically};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A bridge that a daemon of this state dir started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pid: u32,
    start_time: u64,
    boot_id: String,
    /// Where it listens.
    pub(super) address: SocketAddr,
}

impl Record {
    /// Of the process that has this number now.
    pub(super) fn of(pid: u32, address: SocketAddr) -> Option<Self> {
        let Identity { pid, start_time, boot_id } = Identity::of(pid)?;
        Some(Self { pid, start_time, boot_id, address })
    }

    /// The record of the last daemon, if its bridge still lives.
    pub(super) fn read(state_dir: &Path) -> Option<Self> {
        let record: Self = serde_json::from_slice(&read_regular(&file(state_dir)).ok()?).ok()?;
        record.is_alive().then_some(record)
    }

    pub(super) fn write(&self, state_dir: &Path) -> io::Result<()> {
        write_atomically(&file(state_dir), &serde_json::to_vec(self)?)
    }

    pub(super) fn remove(state_dir: &Path) {
        let _ = fs::remove_file(file(state_dir));
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn is_alive(&self) -> bool {
        Identity { pid: self.pid, start_time: self.start_time, boot_id: self.boot_id.clone() }.is_alive()
    }

    /// The process to signal, unless it is gone and a stranger has its number.
    pub(super) fn process(&self) -> Option<Process> {
        Process::of(self.pid).filter(|process| process.start_time == self.start_time && self.is_alive())
    }
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("bridge.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> SocketAddr {
        "127.0.0.1:4310".parse().unwrap()
    }

    #[test]
    fn a_living_bridge_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let record = Record::of(std::process::id(), address()).unwrap();
        record.write(folder.path()).unwrap();
        assert_eq!(Record::read(folder.path()), Some(record));
    }

    #[test]
    fn a_stranger_with_the_number_of_a_dead_bridge_is_not_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let own = Record::of(std::process::id(), address()).unwrap();
        let dead = Record { start_time: own.start_time + 1, ..own };
        dead.write(folder.path()).unwrap();
        assert_eq!(Record::read(folder.path()), None);
        assert_eq!(dead.process(), None);
    }

    #[test]
    fn a_record_that_cannot_be_read_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(folder.path()), None);
        fs::write(file(folder.path()), "{").unwrap();
        assert_eq!(Record::read(folder.path()), None);
    }
}
