//! What is left of an agent whose shim was killed.
//!
//! Its descendants have gone to init, so no tree leads to them. They are known by their environment: the
//! one place where processes are looked for by anything but their descent.

use crate::facts;
use crate::signal::Signal;
use crate::system::{ProcessHandle, wait_for_an_end};
use crate::tree::{self, Delivery, Process};
use mcp_restart_paths::RestartPath;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// As long as a stop waits for what it has killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The agent, as its processes carry it in their environment.
#[derive(Debug, Clone, Copy)]
pub struct Lost<'a> {
    /// `MCP_RESTART_SOCKET`.
    pub socket: &'a str,
    /// `MCP_RESTART_AGENT`.
    pub agent: &'a str,
    /// `MCP_RESTART_GENERATION`, and every number before it.
    pub generation: u64,
}

/// Kills every process that carries these marks, and what those start meanwhile, and waits until they are gone, for
/// five seconds at most. Returns how many.
pub fn end_lost(path: RestartPath, lost: Lost<'_>) -> usize {
    let deadline = Instant::now() + PATIENCE;
    let mut ended = HashSet::new();
    loop {
        let found = facts::pids().filter(|pid| lost.owns(*pid)).filter_map(Process::of);
        // Of those that may be signalled: nobody waits for another user's.
        let dying: Vec<ProcessHandle> = found
            .filter(|process| tree::signal(path, process, Signal::KILL) == Delivery::Sent)
            .filter_map(|process| {
                ended.insert((process.pid, process.start_time));
                ProcessHandle::open(process.pid, process.start_time)
            })
            .collect();
        let left = deadline.saturating_duration_since(Instant::now());
        if dying.is_empty() || left.is_zero() {
            return ended.len();
        }
        wait_for_an_end(&dying.iter().collect::<Vec<_>>(), left);
    }
}

impl Lost<'_> {
    /// The value of a variable in the environment that a process was started with, if it carries these marks.
    pub fn variable(self, pid: u32, name: &str) -> Option<String> {
        let environment = facts::environment(pid)?;
        let value = value_in(&environment, name).filter(|_| self.is_marked(&environment))?;
        String::from_utf8(value.to_owned()).ok()
    }

    fn owns(self, pid: u32) -> bool {
        pid != std::process::id()
            && facts::environment(pid).is_some_and(|environment| self.is_marked(&environment))
    }

    fn is_marked(self, environment: &[u8]) -> bool {
        let value = |name: &str| value_in(environment, name);
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
        value("MCP_RESTART_SOCKET") == Some(self.socket.as_bytes())
            && value("MCP_RESTART_AGENT") == Some(self.agent.as_bytes())
            && value("MCP_RESTART_GENERATION")
                .and_then(number)
                .is_some_and(|number| number <= self.generation)
    }
}

fn value_in<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut variables = environment.split(|byte| *byte == 0);
    variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::{Command, Stdio};

    #[test]
    #[cfg(target_os = "linux")]
    #[expect(
        clippy::disallowed_methods,
        reason = "one process, without any of this crate's ways to start it"
    )]
    fn a_process_is_known_also_in_the_middle_of_its_exec() {
        let script = r#"[ "$1" = 0 ] || exec sh -c "$0" "$0" $(($1 - 1)); read end"#;
        let mut command = Command::new("sh");
        command.args(["-c", script, script, "500"]).stdin(Stdio::piped());
        command.env("MCP_RESTART_SOCKET", "/s/sock").env("MCP_RESTART_AGENT", "a");
        let mut child = command.env("MCP_RESTART_GENERATION", "1").spawn().unwrap();
        let lost = Lost { socket: "/s/sock", agent: "a", generation: 1 };
        let program = || fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
        while !program().ends_with(b"\x000\0") {
            assert!(lost.owns(child.id()));
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn only_the_same_agent_of_the_same_state_dir_and_no_later_generation_is_meant() {
        let lost = Lost { socket: "/s/sock", agent: "a", generation: 3 };
        let environment = |socket: &str, agent: &str, generation: &str| {
            format!(
                "PATH=/bin\0MCP_RESTART_SOCKET={socket}\0MCP_RESTART_AGENT={agent}\0MCP_RESTART_GENERATION={generation}\0"
            )
        };
        let table = [
            ("/s/sock", "a", "3", true),
            ("/s/sock", "a", "1", true),
            ("/s/sock", "a", "4", false),
            ("/s/sock", "ab", "3", false),
            ("/other", "a", "3", false),
            ("/s/sock", "a", "x", false),
        ];
        for (socket, agent, generation, meant) in table {
            let environment = environment(socket, agent, generation);
            assert_eq!(lost.is_marked(environment.as_bytes()), meant, "{environment:?}");
        }
        assert!(!lost.is_marked(b""));
    }
}
