//! What is below a process, and signals that never hit a stranger.

use crate::facts::{self, Stat, State};
use crate::peer::effective_uid;
use crate::signal::Signal;
use crate::system::ProcessHandle;
use mcp_restart_paths::RestartPath;
use nix::errno::Errno;

pub use crate::system::tree::{Family, ORPHANS_COME_BACK};

/// A process as it was when it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// When it started, in the system's own unit.
    pub start_time: u64,
    /// Its process group.
    pub group: u32,
    /// Its command name, at most 15 bytes of it.
    pub command: String,
    state: State,
}

/// Those who were found.
#[derive(Debug, Default)]
pub struct Tree {
    /// Every descendant that is not spared, parents before their children.
    pub members: Vec<Process>,
    /// Those that are spared. What is below them is spared with them and not listed.
    pub spared: Vec<Process>,
}

/// What became of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It was sent.
    Sent,
    /// The process is no more; another one may have its number.
    Gone,
    /// The process belongs to another user.
    NotPermitted,
}

impl Process {
    /// The process that has this number now.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self::new(pid, facts::stat(pid)?))
    }

    pub(crate) fn new(pid: u32, stat: Stat) -> Self {
        let Stat { command, state, group, start_time, .. } = stat;
        Self { pid, start_time, group, command, state }
    }

    /// The base name of the program that it runs, where that may be known.
    pub fn program(&self) -> Option<String> {
        facts::program(self.pid)
    }

    /// Whether it has ended and only waits for its parent's notice.
    pub fn is_zombie(&self) -> bool {
        self.state == State::Zombie
    }

    /// Whether this user may not signal it.
    pub fn is_out_of_reach(&self) -> bool {
        // The owner alone proves nothing: root may be named for a process of ours.
        facts::owner(self.pid).is_some_and(|owner| owner != effective_uid())
            && ProcessHandle::open(self.pid, self.start_time)
                .is_some_and(|handle| handle.send(0) == Delivery::NotPermitted)
    }

    /// Why it does not end, for a person.
    pub fn obstacle(&self) -> String {
        match (facts::tracer(self.pid), self.state) {
            (Some(tracer), _) => format!("traced by process {tracer}"),
            (None, State::Uninterruptible) => {
                "uninterruptible: it waits for a device or a file system".to_owned()
            }
            (None, State::Stopped) => {
                format!("stopped by a signal: `kill -CONT {}` lets it go on", self.pid)
            }
            (None, _) => "it has not ended yet".to_owned(),
        }
    }
}

/// Sends a signal to exactly this process.
pub fn signal(_path: RestartPath, process: &Process, signal: Signal) -> Delivery {
    // To a zombie a signal could be sent, too; but it is gone.
    ProcessHandle::open(process.pid, process.start_time)
        .filter(ProcessHandle::is_running)
        .map_or(Delivery::Gone, |handle| handle.send(signal.number()))
}

/// Sends a signal to a whole process group at once, so that no fork in it escapes.
///
/// A group's number stays taken as long as it has a member: the caller has just seen one.
pub fn signal_group(_path: RestartPath, group: u32, signal: Signal) -> Delivery {
    let Ok(group) = i32::try_from(group) else { return Delivery::Gone };
    // Groups 0 and 1 mean our own and everybody's.
    if group <= 1 {
        return Delivery::Gone;
    }
    // SAFETY: kill takes two numbers and touches no memory.
    delivery(Errno::result(unsafe { libc::kill(-group, signal.number()) }).map(drop))
}

pub(crate) fn delivery(result: nix::Result<()>) -> Delivery {
    match result {
        Ok(()) => Delivery::Sent,
        Err(Errno::EPERM) => Delivery::NotPermitted,
        // ESRCH; the arguments are ours, so nothing else can come.
        Err(_) => Delivery::Gone,
    }
}
