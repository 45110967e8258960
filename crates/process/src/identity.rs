//! A process number is given to somebody else later; number, start time and boot together are not.

use crate::facts;
use crate::system::{self, ProcessHandle};
use std::time::SystemTime;

/// One process, told apart from every other that has or had its number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The process id.
    pub pid: u32,
    /// When it started, in the system's own unit.
    pub start_time: u64,
    /// The boot, and the pid namespace, in which that number is its own: see [`boot_id`].
    pub boot_id: String,
}

impl Identity {
    /// The process that has this number now.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start_time: facts::stat(pid)?.start_time, boot_id: boot_id() })
    }

    /// Whether this very process lives. A zombie does not; a process whose first thread alone has
    /// ended does, though /proc shows it as a zombie.
    pub fn is_alive(&self) -> bool {
        self.boot_id == boot_id()
            && ProcessHandle::open(self.pid, self.start_time).is_some_and(|handle| handle.is_running())
    }
}

/// Names this boot of the system and the pid namespace that the caller lives in, so that it changes with
/// either (a container's restart is a new boot to those inside).
pub fn boot_id() -> String {
    facts::boot_id()
}

/// When that boot or that namespace began, if its first process can be looked at.
pub fn boot_time() -> Option<SystemTime> {
    Identity::of(1).map(|first| facts::start_clock()(first.start_time))
}

/// The process, its parent, and so on up to the first process; the nearest first.
pub fn ancestors(pid: u32) -> Vec<u32> {
    system::ancestors(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_stranger_with_the_same_number_is_not_taken_for_the_process() {
        let own = Identity::of(std::process::id()).unwrap();
        assert!(own.is_alive());
        assert!(!Identity { start_time: own.start_time + 1, ..own.clone() }.is_alive());
        assert!(!Identity { boot_id: "another".to_owned(), ..own }.is_alive());
    }

    #[test]
    fn the_line_of_ancestors_begins_with_the_process_itself() {
        let own = std::process::id();
        let line = ancestors(own);
        assert_eq!(line.get(..2), Some(&[own, std::os::unix::process::parent_id()][..]));
        assert_eq!(ancestors(0), Vec::<u32>::new());
    }
}
