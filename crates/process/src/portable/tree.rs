//! Trees put together from what every process tells of itself, and processes known by number and start.
//!
//! A process is of the family if one of these holds:
//!
//! ```text
//!  its parent is, or is the shim
//!  it is in the agent's session, or in one that somebody of the family leads or has led
//!  it carries the agent's marks in its environment
//!  it was of the family when it was last seen
//! ```

use super::marks::Marks;
use crate::facts::{self, Stat, State};
use crate::tree::{Delivery, Process, Tree, delivery};
use nix::errno::Errno;
use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

/// Whether every descendant whose parent has ended becomes a child of the subreaper above it.
pub const ORPHANS_COME_BACK: bool = false;

/// An agent and all that comes from it, as far as it can be found.
#[derive(Debug)]
pub struct Family {
    root: u32,
    /// The agent's start: nobody of its family is older.
    begin: u64,
    marks: Option<Marks>,
    /// Sessions of the family, by their leaders' number, and when those started.
    sessions: HashMap<u32, u64>,
    /// Who was found, and when they started.
    seen: HashMap<u32, u64>,
}

/// Every process that can be seen, by its number.
type Everybody = HashMap<u32, Stat>;

/// What a process is to the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kin {
    Stranger,
    Member,
    /// It is left alone with all that is below it.
    Spared,
}

impl Family {
    /// Of the agent that this process has started: the leader of a session, with this environment.
    pub fn new(leader: u32, environment: &[(OsString, OsString)]) -> Self {
        let begin = facts::stat(leader).map_or(0, |stat| stat.start_time);
        Self {
            root: std::process::id(),
            begin,
            marks: Marks::of(environment),
            sessions: HashMap::from([(leader, begin)]),
            seen: HashMap::new(),
        }
    }

    /// Finds everybody. Who is spared is left out with all that is below.
    pub fn walk(&mut self, spares: impl FnMut(&Process) -> bool) -> Tree {
        let everybody = facts::pids().filter_map(|pid| Some((pid, facts::stat(pid)?))).collect();
        self.find(&everybody, spares)
    }

    fn find(&mut self, everybody: &Everybody, mut spares: impl FnMut(&Process) -> bool) -> Tree {
        self.forget_who_is_gone(everybody);
        loop {
            let known = self.sessions.len();
            let tree = self.descend(everybody, &mut spares);
            // Somebody may have been passed by before its session was known.
            if self.sessions.len() == known {
                return tree;
            }
        }
    }

    /// Numbers are given away again: a session's when nobody is in it any more.
    fn forget_who_is_gone(&mut self, everybody: &Everybody) {
        let is = |pid: u32, start_time: u64| everybody.get(&pid).map(|stat| stat.start_time == start_time);
        self.seen.retain(|pid, start_time| is(*pid, *start_time) == Some(true));
        self.sessions.retain(|session, start_time| {
            is(*session, *start_time)
                .unwrap_or_else(|| everybody.values().any(|stat| stat.session == *session))
        });
    }

    /// From the first processes down, so that everybody is judged after their parent.
    fn descend(&mut self, everybody: &Everybody, spares: &mut impl FnMut(&Process) -> bool) -> Tree {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut unvisited = Vec::new();
        for (pid, stat) in everybody {
            if stat.parent != *pid && everybody.contains_key(&stat.parent) {
                children.entry(stat.parent).or_default().push(*pid);
            } else {
                unvisited.push((*pid, Kin::Stranger));
            }
        }
        let mut tree = Tree::default();
        while let Some((pid, parent)) = unvisited.pop() {
            let Some(stat) = everybody.get(&pid) else { continue };
            let kin = self.judge(pid, stat, parent, spares, &mut tree);
            unvisited.extend(children.remove(&pid).into_iter().flatten().map(|child| (child, kin)));
        }
        tree
    }

    fn judge(
        &mut self,
        pid: u32,
        stat: &Stat,
        parent: Kin,
        spares: &mut impl FnMut(&Process) -> bool,
        tree: &mut Tree,
    ) -> Kin {
        if pid == self.root {
            return Kin::Member;
        }
        if parent == Kin::Spared || parent == Kin::Stranger && !self.owns(pid, stat) {
            return parent;
        }
        let process = Process::new(pid, stat.clone());
        if spares(&process) {
            tree.spared.push(process);
            return Kin::Spared;
        }
        self.seen.insert(pid, stat.start_time);
        if stat.session == pid {
            self.sessions.insert(pid, stat.start_time);
        }
        if stat.state != State::Zombie {
            tree.members.push(process);
        }
        Kin::Member
    }

    /// Whether somebody whose parent is a stranger is of the family all the same.
    fn owns(&self, pid: u32, stat: &Stat) -> bool {
        stat.start_time >= self.begin
            && (self.sessions.contains_key(&stat.session)
                || self.seen.get(&pid) == Some(&stat.start_time)
                || self.marks.as_ref().is_some_and(|marks| marks.are_carried_by(pid)))
    }
}

/// The process, its parent, and so on up to the first process; the nearest first. The parent of an orphan
/// is the leader of its session.
pub(crate) fn ancestors(pid: u32) -> Vec<u32> {
    let mut line = Vec::new();
    let mut next = pid;
    // A number that is given away while we climb could close a circle.
    while next != 0 && !line.contains(&next) {
        let Some(stat) = facts::stat(next) else { break };
        line.push(next);
        let orphan = stat.parent == 1 && stat.session != next;
        next = if orphan { stat.session } else { stat.parent };
    }
    line
}

/// A process held by its number and its start: between a look at it and a signal to it there is a moment
/// in which it could end and its number be given away.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    pid: u32,
    start_time: u64,
}

impl ProcessHandle {
    /// Takes hold of the process with this number, if it is the one that started then.
    pub(crate) fn open(pid: u32, start_time: u64) -> Option<Self> {
        let handle = Self { pid, start_time };
        handle.stat().map(|_| handle)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.stat().is_some_and(|stat| stat.state != State::Zombie)
    }

    /// Number 0 is no signal: it asks whether one may be sent.
    pub(crate) fn send(&self, number: i32) -> Delivery {
        if self.stat().is_none() {
            return Delivery::Gone;
        }
        // SAFETY: kill takes two numbers and touches no memory.
        delivery(Errno::result(unsafe { libc::kill(self.pid.cast_signed(), number) }).map(drop))
    }

    fn stat(&self) -> Option<Stat> {
        facts::stat(self.pid).filter(|stat| stat.start_time == self.start_time)
    }
}

/// Returns soon: of the end of a process that is no child of ours nothing tells.
pub(crate) fn wait_for_an_end(_handles: &[&ProcessHandle], limit: Duration) {
    const LOOK_AGAIN: Duration = Duration::from_millis(20);
    std::thread::sleep(limit.min(LOOK_AGAIN));
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIM: u32 = 10;
    const AGENT: u32 = 20;

    fn family() -> Family {
        Family {
            root: SHIM,
            begin: 100,
            marks: None,
            sessions: HashMap::from([(AGENT, 100)]),
            seen: HashMap::new(),
        }
    }

    /// Each as its number, parent, session and start.
    fn world(processes: &[(u32, u32, u32, u64)]) -> Everybody {
        let first = [(1, 0, 1, 1), (SHIM, 1, SHIM, 90), (AGENT, SHIM, AGENT, 100)];
        let stat = |&(pid, parent, session, start_time): &(u32, u32, u32, u64)| {
            let command = pid.to_string();
            (pid, Stat { command, state: State::Alive, parent, group: session, session, start_time })
        };
        first.iter().chain(processes).map(stat).collect()
    }

    fn found(family: &mut Family, everybody: &Everybody) -> Vec<u32> {
        let mut members: Vec<u32> =
            family.find(everybody, |_| false).members.iter().map(|member| member.pid).collect();
        members.sort_unstable();
        members
    }

    #[test]
    fn descendants_are_found_in_whatever_session_they_are() {
        let everybody = world(&[(21, AGENT, AGENT, 101), (22, 21, 22, 102), (23, 22, 22, 103)]);
        assert_eq!(found(&mut family(), &everybody), [AGENT, 21, 22, 23]);
    }

    #[test]
    fn orphans_are_found_by_the_agents_session() {
        let everybody = world(&[(21, 1, AGENT, 101), (22, 21, 22, 102), (30, 1, 30, 103)]);
        assert_eq!(found(&mut family(), &everybody), [AGENT, 21, 22]);
    }

    #[test]
    fn who_was_of_the_family_stays_so_and_so_does_its_session() {
        let mut family = family();
        found(&mut family, &world(&[(21, AGENT, AGENT, 101), (22, 21, 22, 102), (23, 22, 22, 103)]));
        // The leader of session 22 has ended, and its child has started another that moved out.
        let later = world(&[(23, 1, 22, 103), (24, 1, 22, 104), (25, 24, 25, 105)]);
        assert_eq!(found(&mut family, &later), [AGENT, 23, 24, 25]);
    }

    #[test]
    fn a_session_that_is_found_late_brings_those_who_were_passed_by() {
        // An orphan in a session that somebody below the agent leads, whichever is looked at first.
        for orphan in [5, 30] {
            let everybody = world(&[(orphan, 1, 22, 103), (22, AGENT, 22, 102)]);
            assert!(found(&mut family(), &everybody).contains(&orphan));
        }
    }

    #[test]
    fn a_stranger_with_the_number_of_one_who_is_gone_is_not_taken_for_it() {
        let mut family = family();
        found(&mut family, &world(&[(22, AGENT, 22, 102)]));
        assert_eq!(found(&mut family, &world(&[(22, 1, 22, 200), (23, 22, 22, 201)])), [AGENT]);
        // Not even once that stranger has ended, too.
        assert_eq!(found(&mut family, &world(&[(23, 1, 22, 201)])), [AGENT]);
    }

    #[test]
    fn who_is_older_than_the_agent_is_none_of_its_family() {
        assert_eq!(found(&mut family(), &world(&[(21, 1, AGENT, 99)])), [AGENT]);
    }

    #[test]
    fn below_who_is_spared_everybody_is_even_in_the_agents_session() {
        let everybody = world(&[(21, AGENT, AGENT, 101), (22, 21, AGENT, 102)]);
        let tree = family().find(&everybody, |process| process.pid == 21);
        let pids = |processes: &[Process]| processes.iter().map(|process| process.pid).collect::<Vec<_>>();
        assert_eq!((pids(&tree.members), pids(&tree.spared)), (vec![AGENT], vec![21]));
    }
}
