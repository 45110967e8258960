//! The table of processes, with what tells one program from another, and processes held to be signalled.

use crate::facts::{self, State};
use crate::peer::effective_uid;
use crate::signal::Signal;
use crate::system::{ProcessHandle, wait_for_an_end};
use crate::tree::Delivery;
use mcp_restart_paths::RestartPath;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A process at the moment when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its id.
    pub pid: u32,
    /// Its parent's id; 0 if that is in a pid namespace above.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// Its session.
    pub session: u32,
    /// When it started, in the system's own unit.
    pub start_time: u64,
    /// The same as a time, early by one [`TICK`] at most.
    pub started_at: SystemTime,
    /// Its command name, at most 15 bytes of it.
    pub command: String,
    /// What only the processes of our own user show.
    pub own: Option<Own>,
}

/// What only the processes of our own user show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Own {
    /// Its arguments, the program's name first, as they are now: a process may have put a title in their place.
    pub arguments: Vec<String>,
    /// The program that it runs, even if that has been removed.
    pub program: Option<PathBuf>,
    /// Its working directory.
    pub folder: Option<PathBuf>,
}

/// The unit in which the system tells when a process started.
pub const TICK: Duration = facts::TICK;

/// Every process that can be seen and has not ended. It takes some ten microseconds for each of our user's.
pub fn read() -> Vec<Row> {
    let (user, started_at) = (effective_uid(), facts::start_clock());
    let row = |pid| {
        let stat = facts::stat(pid)?;
        let own = (facts::effective_owner(pid) == Some(user)).then(|| Own {
            arguments: facts::arguments(pid).unwrap_or_default(),
            program: facts::program_file(pid),
            folder: facts::folder(pid),
        });
        (stat.state != State::Zombie).then(|| Row {
            pid,
            parent: stat.parent,
            group: stat.group,
            session: stat.session,
            start_time: stat.start_time,
            started_at: started_at(stat.start_time),
            command: stat.command,
            own,
        })
    };
    facts::pids().filter_map(row).collect()
}

/// Device and inode of the file that a process runs, whatever is in its place now; none where the system
/// does not tell.
pub fn running_file(pid: u32) -> Option<(u64, u64)> {
    let metadata = fs::metadata(facts::running_program(pid)?).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// The path by which we reach what a process sees under `path`, which is absolute.
pub fn as_seen_by(pid: u32, path: &Path) -> PathBuf {
    facts::root(pid).join(path.strip_prefix("/").unwrap_or(path))
}

/// A process held by what the system has for that: whatever is done to it is done to no other.
#[derive(Debug)]
pub struct Held(ProcessHandle);

impl Held {
    /// Takes hold of the process with this number, if it is the one that started then.
    pub fn take(pid: u32, start_time: u64) -> Option<Self> {
        ProcessHandle::open(pid, start_time).map(Self)
    }

    /// Whether it has ended. A zombie has.
    pub fn has_ended(&self) -> bool {
        !self.0.is_running()
    }

    /// Sends it a signal, unless it has ended.
    pub fn signal(&self, _path: RestartPath, signal: Signal) -> Delivery {
        if self.has_ended() { Delivery::Gone } else { self.0.send(signal.number()) }
    }

    /// Returns as soon as one of them has ended, or when the time is over.
    pub fn wait_for_an_end(held: &[&Self], limit: Duration) {
        let handles: Vec<&ProcessHandle> = held.iter().map(|held| &held.0).collect();
        wait_for_an_end(&handles, limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::{Spawn, spawn};
    use std::time::Instant;

    fn row_of(pid: u32) -> Option<Row> {
        read().into_iter().find(|row| row.pid == pid)
    }

    #[test]
    fn our_own_process_is_in_the_table_with_all_that_it_is_known_by() {
        let row = row_of(std::process::id()).unwrap();
        assert_eq!(row.parent, std::os::unix::process::parent_id());
        let age = SystemTime::now().duration_since(row.started_at).unwrap();
        assert!(age < Duration::from_secs(600), "{age:?}");
        let own = row.own.unwrap();
        assert_eq!(own.arguments, std::env::args().collect::<Vec<_>>());
        assert_eq!(own.program, std::env::current_exe().ok());
        assert_eq!(own.folder, std::env::current_dir().ok());
    }

    #[test]
    fn a_process_that_is_held_is_signalled_and_its_end_ends_the_wait() {
        let program = Spawn {
            program: "/bin/sh".into(),
            arg0: None,
            args: vec!["-c".into(), "exec sleep 60".into()],
            environment: Vec::new(),
            stdin: None,
            output: None,
            inherited: Vec::new(),
        };
        let mut child = spawn(RestartPath::BridgeChild, program).unwrap();
        let row = row_of(child.pid()).unwrap();
        assert!(Held::take(row.pid, row.start_time + 1).is_none());
        let held = Held::take(row.pid, row.start_time).unwrap();
        assert!(!held.has_ended());
        assert_eq!(held.signal(RestartPath::BridgeChild, Signal::TERMINATE), Delivery::Sent);
        let begun = Instant::now();
        while !held.has_ended() {
            Held::wait_for_an_end(&[&held], Duration::from_secs(20));
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
        // Nobody has waited for it yet: it is a zombie, which is dead.
        assert_eq!(held.signal(RestartPath::BridgeChild, Signal::KILL), Delivery::Gone);
        assert_eq!(row_of(row.pid), None);
        child.try_wait().unwrap();
    }

    #[test]
    fn the_file_that_a_process_runs_is_known_by_its_inode() {
        let own = std::process::id();
        let Some((device, inode)) = running_file(own) else { return };
        let program = as_seen_by(own, &std::env::current_exe().unwrap());
        let metadata = fs::metadata(program).unwrap();
        assert_eq!((device, inode), (metadata.dev(), metadata.ino()));
    }
}
