//! Signals to everything below the shim, and what is exempt from them.

use mcp_restart_paths::RestartPath;
use mcp_restart_process::tree::{Delivery, Family, ORPHANS_COME_BACK, Process, Tree, signal, signal_group};
use mcp_restart_process::{LockFile, Signal};
use mcp_restart_protocol::shim::{KeepChildren, Leftover};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::path::PathBuf;

/// Who forks while it is being killed is chased so often before the others get a turn.
const CHASES: usize = 32;

/// Ends the tree below this process, and remembers whom it met.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The lock of the daemon. Who was started inside an agent and is a daemon now is not the agent's.
    daemon_lock: PathBuf,
    /// The agent's process id, which is its group's too.
    leader: u32,
    family: Family,
    /// Set when the agent has ended by itself.
    keep: Option<KeepChildren>,
    /// Who got the graceful signal, and the command that it ran then: a shell's child that is asked
    /// between its fork and its exec forgets it.
    asked: HashMap<Key, String>,
    /// Who got SIGKILL, and the command.
    killed: HashMap<Key, String>,
    /// Whom this user may not signal.
    foreign: HashSet<Key>,
    /// Whether anybody is spared.
    spares: bool,
    /// Who was to be kept when this last looked.
    kept: Vec<Process>,
}

/// A process: its id and its start time.
type Key = (u32, u64);

impl Sweep {
    pub(crate) fn new(leader: u32, environment: &[(OsString, OsString)], daemon_lock: PathBuf) -> Self {
        Self {
            daemon_lock,
            leader,
            family: Family::new(leader, environment),
            keep: None,
            asked: HashMap::new(),
            killed: HashMap::new(),
            foreign: HashSet::new(),
            spares: false,
            kept: Vec::new(),
        }
    }

    /// The agent ended by itself: from now on these descendants are left alone.
    pub(crate) fn keep(&mut self, keep: KeepChildren) {
        self.keep = Some(keep);
    }

    /// A stop was asked for: nobody is kept.
    pub(crate) fn keep_nobody(&mut self) {
        self.keep = None;
    }

    /// Sends the graceful signal, once to each process, and wakes up those that were stopped.
    pub(crate) fn ask(&mut self, path: RestartPath, graceful: Signal) {
        let tree = self.walk();
        // To be asked twice means "at once" to many programs: hence the group or each, never both.
        if !self.owns_its_group(&tree) {
            return self.ask_newcomers(path, graceful);
        }
        signal_group(path, self.leader, graceful);
        signal_group(path, self.leader, Signal::CONTINUE);
        self.note_group(&tree);
        if tree.members.iter().any(|member| member.group != self.leader) {
            self.ask_newcomers(path, graceful);
        }
    }

    /// Sends the graceful signal to those who did not get it: who was forked meanwhile, or has become
    /// another program since.
    pub(crate) fn ask_newcomers(&mut self, path: RestartPath, graceful: Signal) {
        for _ in 0..CHASES {
            let mut news = false;
            for member in &self.walk().members {
                let asked = self.asked.get(&key(member)) == Some(&member.command);
                if !asked && !self.foreign.contains(&key(member)) && self.send(path, member, graceful) {
                    self.send(path, member, Signal::CONTINUE);
                    self.asked.insert(key(member), member.command.clone());
                    news = true;
                }
            }
            if !news {
                break;
            }
        }
    }

    /// Sends SIGKILL until no process is left that did not get it, or until the next wave's turn.
    pub(crate) fn kill(&mut self, path: RestartPath) {
        for _ in 0..CHASES {
            let tree = self.walk();
            let mut news = false;
            for member in &tree.members {
                if !self.killed.contains_key(&key(member)) && self.send(path, member, Signal::KILL) {
                    self.killed.insert(key(member), member.command.clone());
                    news = true;
                }
            }
            // The whole group at one moment: no fork in it escapes.
            if self.owns_its_group(&tree) {
                signal_group(path, self.leader, Signal::KILL);
            }
            if !news {
                break;
            }
        }
    }

    /// Whether the shim's children alone do not tell if somebody is left who is waited for: some may be
    /// exempt, or some who are left be nobody's children.
    pub(crate) fn has_to_look(&self) -> bool {
        self.spares || !self.foreign.is_empty() || !ORPHANS_COME_BACK
    }

    /// Who is left, the spared aside: those who are waited for, and those of other users, who are not.
    pub(crate) fn remaining(&mut self) -> (Vec<Process>, Vec<Process>) {
        let tree = self.walk();
        tree.members.into_iter().partition(|member| !self.foreign.contains(&key(member)))
    }

    /// Names processes with the reason why they are still there.
    pub(crate) fn describe(&self, processes: &[Process]) -> Vec<Leftover> {
        processes
            .iter()
            .map(|process| Leftover {
                pid: process.pid,
                command: process.command.clone(),
                reason: if self.foreign.contains(&key(process)) {
                    "it belongs to another user".to_owned()
                } else {
                    process.obstacle()
                },
            })
            .collect()
    }

    /// Whether SIGKILL was needed.
    pub(crate) fn was_forced(&self) -> bool {
        !self.killed.is_empty()
    }

    /// How many descendants had to be killed; of an agent that ended by itself, how many were left.
    pub(crate) fn leftovers(&self, by_itself: bool) -> u32 {
        u32::try_from(self.ended(by_itself).len()).unwrap_or(u32::MAX)
    }

    /// Names those, and whoever was left alone, in lines for the log.
    pub(crate) fn tell(&self, by_itself: bool) -> Vec<String> {
        let ended = self.ended(by_itself);
        let kept = self.kept.iter().map(|process| (process.pid, process.command.as_str())).collect();
        let what = if by_itself { "ended what it had left behind" } else { "killed after the grace period" };
        [(what, ended), ("left alone, as keepChildren says", kept)]
            .into_iter()
            .filter(|(_, processes)| !processes.is_empty())
            .map(|(what, processes)| format!("{what}: {}", list(&processes)))
            .collect()
    }

    fn ended(&self, by_itself: bool) -> BTreeMap<u32, &str> {
        let asked = by_itself.then_some(&self.asked);
        let ended = self.killed.iter().chain(asked.into_iter().flatten());
        ended
            .filter(|((pid, _), _)| *pid != self.leader)
            .map(|((pid, _), command)| (*pid, command.as_str()))
            .collect()
    }

    /// Remembers who of the agent's group got the signal, and who could not.
    fn note_group(&mut self, tree: &Tree) {
        for member in tree.members.iter().filter(|member| member.group == self.leader && !member.is_zombie())
        {
            if member.is_out_of_reach() {
                self.foreign.insert(key(member));
            } else {
                self.asked.insert(key(member), member.command.clone());
            }
        }
    }

    fn send(&mut self, path: RestartPath, process: &Process, what: Signal) -> bool {
        match signal(path, process, what) {
            Delivery::Sent => true,
            Delivery::Gone => false,
            Delivery::NotPermitted => {
                self.foreign.insert(key(process));
                false
            }
        }
    }

    fn walk(&mut self) -> Tree {
        let daemon = LockFile::holder(&self.daemon_lock).ok().flatten();
        let keep = self.keep.as_ref();
        let tree = self
            .family
            .walk(|process| Some(process.pid) == daemon || keep.is_some_and(|keep| keeps(keep, process)));
        self.spares |= !tree.spared.is_empty();
        self.kept = tree.spared.iter().filter(|process| Some(process.pid) != daemon).cloned().collect();
        tree
    }

    /// Whether the agent's group can be signalled as one: somebody of it was just seen, so the number is
    /// still its own, and nobody in it is spared.
    fn owns_its_group(&self, tree: &Tree) -> bool {
        let in_group = |process: &Process| process.group == self.leader;
        tree.members.iter().any(in_group) && !tree.spared.iter().any(in_group)
    }
}

/// Processes by number and command, the first of them if there are many.
fn list(processes: &BTreeMap<u32, &str>) -> String {
    const MOST: usize = 20;
    // A process names itself as it likes.
    let named =
        processes.iter().take(MOST).map(|(pid, command)| format!("{pid} ({})", command.escape_debug()));
    let more = processes.len().checked_sub(MOST).filter(|more| *more > 0);
    named.chain(more.map(|more| format!("{more} more"))).collect::<Vec<_>>().join(", ")
}

fn keeps(keep: &KeepChildren, process: &Process) -> bool {
    match keep {
        KeepChildren::All => true,
        KeepChildren::Named(names) => {
            let program = process.program();
            names.iter().any(|name| *name == process.command || Some(name) == program.as_ref())
        }
    }
}

fn key(process: &Process) -> Key {
    (process.pid, process.start_time)
}
