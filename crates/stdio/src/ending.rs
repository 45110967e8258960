//! Ends servers: all at the same time, each with its own grace.
//!
//! ```text
//!  SIGTERM ──► grace ──► SIGKILL ──► 5 s ──► given up, and said why
//!      └───────── ended ────┴───────────┘
//! ```

use mcp_restart_paths::RestartPath;
use mcp_restart_process::Signal;
use mcp_restart_process::table::Held;
use mcp_restart_process::tree::{Delivery, Process};
use mcp_restart_protocol::stdio::StdioFailure;
use std::time::{Duration, Instant};

/// How long after SIGKILL a process is waited for.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// A server that is to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Its processes, by id and start, the one closest to the client first.
    pub(crate) members: Vec<(u32, u64)>,
    /// The time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

struct Living {
    held: Held,
    pid: u32,
    server: usize,
    /// When something has to be done about it.
    due: Instant,
    killed: bool,
}

/// Ends servers and says, for each, why it did not, if it did not.
pub(crate) fn end(path: RestartPath, targets: &[Target]) -> Vec<Option<StdioFailure>> {
    let mut failures = vec![None; targets.len()];
    let mut living: Vec<Living> =
        targets.iter().enumerate().flat_map(|(server, target)| hold(server, target)).collect();
    living.retain(|one| is_reached(one, one.held.signal(path, Signal::TERMINATE), &mut failures));
    loop {
        living.retain(|one| !one.held.has_ended());
        let now = Instant::now();
        living.retain_mut(|one| now < one.due || is_pursued(one, path, now, &mut failures));
        let Some(next) = living.iter().map(|one| one.due).min() else { return failures };
        let held: Vec<&Held> = living.iter().map(|one| &one.held).collect();
        Held::wait_for_an_end(&held, next.saturating_duration_since(now));
    }
}

/// Takes hold of what is left of a server; children first, so that they are asked before who waits for them.
fn hold(server: usize, target: &Target) -> Vec<Living> {
    let due = Instant::now() + target.grace;
    let take = |&(pid, start_time): &(u32, u64)| {
        Some(Living { held: Held::take(pid, start_time)?, pid, server, due, killed: false })
    };
    target.members.iter().rev().filter_map(take).collect()
}

/// Does what is due about a process; whether it is still waited for.
fn is_pursued(
    one: &mut Living,
    path: RestartPath,
    now: Instant,
    failures: &mut [Option<StdioFailure>],
) -> bool {
    if one.killed {
        let why = Process::of(one.pid).map_or_else(String::new, |process| process.obstacle());
        fail(one, why, failures);
        return false;
    }
    one.killed = true;
    one.due = now + AFTER_KILL;
    is_reached(one, one.held.signal(path, Signal::KILL), failures)
}

fn is_reached(one: &Living, delivery: Delivery, failures: &mut [Option<StdioFailure>]) -> bool {
    if delivery == Delivery::NotPermitted {
        fail(one, "it belongs to another user".to_owned(), failures);
    }
    delivery == Delivery::Sent
}

fn fail(one: &Living, error: String, failures: &mut [Option<StdioFailure>]) {
    if let Some(failure) = failures.get_mut(one.server) {
        *failure = Some(StdioFailure { pid: one.pid, error });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_restart_process::{Child, Exit, Spawn, spawn};
    use std::io::{BufRead as _, BufReader, pipe};

    const PATH: RestartPath = RestartPath::CtlRestartServers;

    /// A shell that has come as far as to say so.
    fn shell(script: &str) -> (Child, u64) {
        let (reader, writer) = pipe().unwrap();
        let program = Spawn {
            program: "/bin/sh".into(),
            arg0: None,
            args: vec!["-c".into(), script.into()],
            environment: Vec::new(),
            stdin: None,
            output: Some(writer.into()),
            inherited: Vec::new(),
        };
        let child = spawn(PATH, program).unwrap();
        BufReader::new(reader).read_line(&mut String::new()).unwrap();
        let start_time = Process::of(child.pid()).unwrap().start_time;
        (child, start_time)
    }

    fn target(shells: &[&(Child, u64)], grace: Duration) -> Target {
        Target { members: shells.iter().map(|(child, start)| (child.pid(), *start)).collect(), grace }
    }

    #[test]
    fn each_server_has_its_own_grace_and_all_are_asked_at_the_same_time() {
        let mut polite = shell("echo; exec sleep 60");
        let mut stubborn = shell("trap '' TERM; echo; while :; do sleep 0.01; done");
        let begun = Instant::now();
        let grace = Duration::from_millis(200);
        let targets = [target(&[&stubborn], grace), target(&[&polite], Duration::from_secs(60))];
        assert_eq!(end(PATH, &targets), [None, None]);
        assert!((grace..Duration::from_secs(10)).contains(&begun.elapsed()));
        assert_eq!(polite.0.try_wait().unwrap(), Some(Exit::Signal(Signal::TERMINATE)));
        assert_eq!(stubborn.0.try_wait().unwrap(), Some(Exit::Signal(Signal::KILL)));
    }

    #[test]
    fn another_process_with_the_number_of_one_that_ended_is_not_touched() {
        let mut stranger = shell("echo; exec sleep 60");
        let meant = Target { members: vec![(stranger.0.pid(), stranger.1 - 1)], grace: Duration::ZERO };
        assert_eq!(end(PATH, &[meant]), [None]);
        assert_eq!(stranger.0.try_wait().unwrap(), None);
        end(PATH, &[target(&[&stranger], Duration::from_secs(10))]);
        assert!(stranger.0.try_wait().unwrap().is_some());
    }
}
