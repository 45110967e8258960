//! `bridge.json`: which bridge served last, so that the next daemon knows whom to wait for.

use crate::program::Program;
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
    /// What it runs; not known of one that an earlier version recorded.
    #[serde(default)]
    pub(super) program: Option<Program>,
}

impl Record {
    /// Of the process that has this number now.
    pub(super) fn of(pid: u32, address: SocketAddr, program: Program) -> Option<Self> {
        let Identity { pid, start_time, boot_id } = Identity::of(pid)?;
        Some(Self { pid, start_time, boot_id, address, program: Some(program) })
    }

    /// Whether it runs what is on disk there now.
    pub(super) fn runs(&self, program: &Path) -> bool {
        self.program.as_ref().is_some_and(|own| own.path() == program && own.change().is_none())
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

    /// Of this very process.
    fn own() -> Record {
        let program = Program::at(std::env::current_exe().unwrap()).unwrap();
        Record::of(std::process::id(), "127.0.0.1:4310".parse().unwrap(), program).unwrap()
    }

    #[test]
    fn a_living_bridge_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let record = own();
        record.write(folder.path()).unwrap();
        assert_eq!(Record::read(folder.path()), Some(record));
    }

    #[test]
    fn a_bridge_runs_what_is_on_disk_until_that_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, "one").unwrap();
        let record = Record { program: Some(Program::at(path.clone()).unwrap()), ..own() };
        assert!(record.runs(&path));
        assert!(!record.runs(&folder.path().join("other")));
        fs::write(folder.path().join("next"), "two").unwrap();
        fs::rename(folder.path().join("next"), &path).unwrap();
        assert!(!record.runs(&path));
        assert!(!Record { program: None, ..record }.runs(&path));
    }

    #[test]
    fn a_stranger_with_the_number_of_a_dead_bridge_is_not_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let own = own();
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
