//! Trees whose every orphan comes to the subreaper above it, and processes held by their descriptors.

use crate::facts::{self, State};
use crate::tree::{Delivery, Process, Tree, delivery};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

/// Whether every descendant whose parent has ended becomes a child of the subreaper above it.
pub const ORPHANS_COME_BACK: bool = true;

/// An agent and all that comes from it: what is below the subreaper that started it.
#[derive(Debug)]
pub struct Family {
    root: u32,
}

impl Family {
    /// Of the agent that this process has started: the leader of a session, with this environment.
    pub fn new(_leader: u32, _environment: &[(OsString, OsString)]) -> Self {
        Self { root: std::process::id() }
    }

    /// Finds everybody. Who is spared is left out with all that is below.
    pub fn walk(&mut self, spares: impl FnMut(&Process) -> bool) -> Tree {
        below(self.root, spares)
    }
}

/// Walks down from `root`, which is not part of the result.
pub(super) fn below(root: u32, mut spares: impl FnMut(&Process) -> bool) -> Tree {
    let (listing, mut unvisited) = match children(root) {
        Some(children) => (Listing::Kernel, children),
        None => Listing::of_everybody(root),
    };
    let mut tree = Tree::default();
    while let Some(pid) = unvisited.pop() {
        let Some(process) = Process::of(pid) else { continue };
        if spares(&process) {
            tree.spared.push(process);
        } else {
            unvisited.extend(listing.children(pid));
            tree.members.push(process);
        }
    }
    tree
}

/// The process, its parent, and so on up to the first process; the nearest first.
pub(crate) fn ancestors(pid: u32) -> Vec<u32> {
    let mut line = Vec::new();
    let mut next = pid;
    // A number that is given away while we climb could close a circle.
    while next != 0 && !line.contains(&next) {
        let Some(stat) = facts::stat(next) else { break };
        line.push(next);
        next = stat.parent;
    }
    line
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
        (facts::stat(pid)?.start_time == start_time).then_some(Self { pid, descriptor })
    }

    pub(crate) fn is_running(&self) -> bool {
        let Some(descriptor) = &self.descriptor else {
            return facts::stat(self.pid).is_some_and(|stat| stat.state != State::Zombie);
        };
        let mut ended = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
        nix::poll::poll(&mut ended, PollTimeout::ZERO) == Ok(0)
    }

    /// Number 0 is no signal: it asks whether one may be sent.
    pub(crate) fn send(&self, number: i32) -> Delivery {
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

/// Returns as soon as one of them has ended, or when the time is over.
pub(crate) fn wait_for_an_end(handles: &[&ProcessHandle], limit: Duration) {
    // Of the end of one that has no descriptor nothing tells.
    const LOOK_AGAIN: Duration = Duration::from_millis(20);
    let descriptors: Vec<_> = handles.iter().filter_map(|handle| handle.descriptor.as_ref()).collect();
    let limit = if descriptors.len() == handles.len() { limit } else { limit.min(LOOK_AGAIN) };
    let mut ended: Vec<_> =
        descriptors.iter().map(|descriptor| PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)).collect();
    // A wait that is cut short is no matter: whoever waits looks again.
    let millis = PollTimeout::try_from(limit + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    let _ = nix::poll::poll(&mut ended, millis);
}

/// The children of processes, from the kernel's own lists or else from everybody's parent.
enum Listing {
    Kernel,
    Everybody(HashMap<u32, Vec<u32>>),
}

impl Listing {
    fn of_everybody(root: u32) -> (Self, Vec<u32>) {
        let children = children_by_parent();
        let of_root = children.get(&root).cloned().unwrap_or_default();
        (Self::Everybody(children), of_root)
    }

    fn children(&self, pid: u32) -> Vec<u32> {
        match self {
            Self::Kernel => children(pid),
            Self::Everybody(children) => children.get(&pid).cloned(),
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

/// The children of a process, however many threads of it had them. `None` if the process is gone, or if
/// the kernel was built without these lists.
fn children(pid: u32) -> Option<Vec<u32>> {
    let of_thread = |thread: u32| -> Option<Vec<u32>> {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).ok()?;
        Some(list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
    };
    let of_first = of_thread(pid);
    let tasks = format!("/proc/{pid}/task");
    // Its link count is that of a folder with a folder for each thread in it.
    if fs::metadata(&tasks).ok()?.nlink() == 3 {
        return of_first;
    }
    let others = fs::read_dir(tasks).ok()?;
    let others = others.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    let others = others.filter(|&thread| thread != pid).filter_map(of_thread).flatten();
    // A first thread that has ended has no children: the others have them.
    Some(of_first.unwrap_or_default().into_iter().chain(others).collect())
}

/// The children of every process that can be seen, by their parent.
fn children_by_parent() -> HashMap<u32, Vec<u32>> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in facts::pids() {
        if let Some(stat) = facts::stat(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    children
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybodys_children_are_found_without_the_kernels_lists() {
        let own = std::process::id();
        assert!(children_by_parent().get(&std::os::unix::process::parent_id()).unwrap().contains(&own));
    }
}
