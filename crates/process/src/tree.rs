//! What is below a process, and signals to it that never hit a stranger.

use crate::peer::effective_uid;
use crate::procfs::{self, Stat};
use crate::signal::Signal;
use mcp_restart_paths::RestartPath;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

/// A process as it was when it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// When it started, in clock ticks since the system's boot.
    pub start_time: u64,
    /// Its process group.
    pub group: u32,
    /// Its command name, at most 15 bytes of it.
    pub command: String,
    state: char,
    threads: u32,
}

/// What is below a process.
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

impl Tree {
    /// Walks down from `root`, which is not part of the result.
    pub fn below(root: u32, mut spares: impl FnMut(&Process) -> bool) -> Self {
        let own_threads = procfs::stat(root).map_or(1, |stat| stat.threads);
        let (listing, mut unvisited) = match procfs::children(root, own_threads) {
            Some(children) => (Listing::Kernel, children),
            None => Listing::of_everybody(root),
        };
        let mut tree = Self::default();
        while let Some(pid) = unvisited.pop() {
            let Some(process) = Process::of(pid) else { continue };
            if spares(&process) {
                tree.spared.push(process);
            } else {
                unvisited.extend(listing.children(&process));
                tree.members.push(process);
            }
        }
        tree
    }
}

impl Process {
    /// The process that has this number now.
    pub fn of(pid: u32) -> Option<Self> {
        let Stat { command, state, group, threads, start_time, .. } = procfs::stat(pid)?;
        Some(Self { pid, start_time, group, command, state, threads })
    }

    /// The base name of the program that it runs, where that may be known.
    pub fn program(&self) -> Option<String> {
        let path = procfs::executable(self.pid)?;
        let name = path.file_name()?.to_string_lossy();
        Some(name.strip_suffix(" (deleted)").unwrap_or(&name).to_owned())
    }

    /// Whether it has ended and only waits for its parent's notice.
    pub fn is_zombie(&self) -> bool {
        self.state == 'Z'
    }

    /// Whether this user may not signal it.
    pub fn is_out_of_reach(&self) -> bool {
        let owner = fs::metadata(format!("/proc/{}", self.pid)).map(|metadata| metadata.uid());
        // The owner alone proves nothing: root owns what may not be dumped, too.
        owner.is_ok_and(|owner| owner != effective_uid())
            && ProcessHandle::open(self.pid, self.start_time)
                .is_some_and(|handle| handle.send(0) == Delivery::NotPermitted)
    }

    /// Why it does not end, for a person.
    pub fn obstacle(&self) -> String {
        match (procfs::tracer(self.pid), self.state) {
            (Some(tracer), _) => format!("traced by process {tracer}"),
            (None, 'D') => "uninterruptible: it waits for a device or a file system".to_owned(),
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

/// A process held by its descriptor, or by its number where the kernel has no process descriptors.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    pid: u32,
    descriptor: Option<OwnedFd>,
}

impl ProcessHandle {
    /// Takes hold of the process with this number, if it is the one that started then.
    pub(crate) fn open(pid: u32, start_time: u64) -> Option<Self> {
        let descriptor = open_descriptor(pid);
        // Read after the descriptor was opened: what it shows then is what the descriptor holds.
        (procfs::stat(pid)?.start_time == start_time).then_some(Self { pid, descriptor })
    }

    pub(crate) fn is_running(&self) -> bool {
        let Some(descriptor) = &self.descriptor else {
            return procfs::stat(self.pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'));
        };
        let mut ended = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
        nix::poll::poll(&mut ended, PollTimeout::ZERO) == Ok(0)
    }

    /// Number 0 is no signal: it asks whether one may be sent.
    fn send(&self, number: i32) -> Delivery {
        let result = match &self.descriptor {
            // SAFETY: the descriptor is open, the signal's details are absent (null), the flags are zero.
            Some(descriptor) => unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    descriptor.as_raw_fd(),
                    number,
                    std::ptr::null::<libc::siginfo_t>(),
                    0,
                )
            },
            // SAFETY: kill takes two numbers and touches no memory.
            None => i64::from(unsafe { libc::kill(self.pid.cast_signed(), number) }),
        };
        delivery(Errno::result(result).map(drop))
    }
}

/// The children of processes, from the kernel's own lists or else from everybody's parent.
enum Listing {
    Kernel,
    Everybody(HashMap<u32, Vec<u32>>),
}

impl Listing {
    fn of_everybody(root: u32) -> (Self, Vec<u32>) {
        let children = procfs::children_by_parent();
        let of_root = children.get(&root).cloned().unwrap_or_default();
        (Self::Everybody(children), of_root)
    }

    fn children(&self, process: &Process) -> Vec<u32> {
        match self {
            Self::Kernel => procfs::children(process.pid, process.threads),
            Self::Everybody(children) => children.get(&process.pid).cloned(),
        }
        .unwrap_or_default()
    }
}

fn open_descriptor(pid: u32) -> Option<OwnedFd> {
    // SAFETY: pidfd_open takes two numbers and touches no memory.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let descriptor = i32::try_from(descriptor).ok().filter(|&descriptor| descriptor >= 0)?;
    // SAFETY: the call returned a new descriptor that nobody else owns. It closes itself on exec.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn delivery(result: nix::Result<()>) -> Delivery {
    match result {
        Ok(()) => Delivery::Sent,
        Err(Errno::EPERM) => Delivery::NotPermitted,
        // ESRCH; the arguments are ours, so nothing else can come.
        Err(_) => Delivery::Gone,
    }
}
