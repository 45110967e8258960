//! What must not be hit.

use mcp_restart_protocol::answer::Owner;
use regex_lite::RegexBuilder;

/// The processes that must not be hit, and the endpoint's port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Protected {
    /// The processes, or what they would be called if they ran.
    pub(crate) processes: Vec<Process>,
    /// Where the endpoint listens.
    pub(crate) port: Option<u16>,
    /// The agent whose command is judged, if it is one's.
    pub(crate) own: Option<String>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    /// None if it does not run.
    pub(crate) pid: Option<u32>,
    /// Its parent.
    pub(crate) parent: Option<u32>,
    /// Its process group.
    pub(crate) group: Option<u32>,
    /// What `ps` and its like call it.
    pub(crate) names: Vec<String>,
    /// Its whole command line.
    pub(crate) command: String,
    /// What it belongs to.
    pub(crate) owner: Owner,
}

/// How a pattern is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Pattern {
    /// Against the whole command line.
    pub(crate) full: bool,
    /// The whole of the name or command line.
    pub(crate) exact: bool,
    /// Upper and lower case are the same.
    pub(crate) ignore_case: bool,
    /// Those that it does not fit.
    pub(crate) inverse: bool,
}

/// As much of a name as the kernel keeps.
const NAME_MAX: usize = 15;

impl Protected {
    /// All of them.
    pub(crate) fn everything(&self) -> Vec<Owner> {
        self.matching(|_| true)
    }

    /// Those of which something holds, each once.
    pub(crate) fn matching(&self, holds: impl Fn(&Process) -> bool) -> Vec<Owner> {
        let mut hits: Vec<_> = self
            .processes
            .iter()
            .filter(|process| holds(process))
            .map(|process| process.owner.clone())
            .collect();
        hits.sort();
        hits.dedup();
        hits
    }

    /// The one with that number.
    pub(crate) fn number(&self, pid: u32) -> Vec<Owner> {
        self.matching(|process| process.pid == Some(pid))
    }

    /// The process of the agent whose command is judged: the one of it that its shim has started.
    pub(crate) fn own_process(&self) -> Option<u32> {
        let own = self.own.as_ref()?;
        let is_own = |process: &&Process| matches!(&process.owner, Owner::Agent(name) if name == own);
        let own: Vec<_> = self.processes.iter().filter(is_own).collect();
        let below =
            |process: &&&Process| own.iter().any(|above| above.pid.is_some() && above.pid == process.parent);
        own.iter().find(below).or(own.first())?.pid
    }

    /// Those with exactly that name, be it cut as the kernel does it.
    pub(crate) fn named(&self, name: &str, ignore_case: bool) -> Vec<Owner> {
        let name = name.rsplit('/').next().unwrap_or(name);
        let cut: String = name.chars().take(NAME_MAX).collect();
        let same = |own: &String| {
            if ignore_case {
                own.eq_ignore_ascii_case(name) || own.eq_ignore_ascii_case(&cut)
            } else {
                own == name || *own == cut
            }
        };
        self.matching(|process| process.names.iter().any(same))
    }

    /// Those that a regular expression fits. One that cannot be understood is taken as text.
    pub(crate) fn fitting(&self, pattern: &str, how: Pattern) -> Vec<Owner> {
        let anchored = if how.exact { format!("^(?:{pattern})$") } else { pattern.to_owned() };
        let expression = RegexBuilder::new(&anchored).case_insensitive(how.ignore_case).build();
        let fits = |text: &str| match &expression {
            Ok(expression) => expression.is_match(text),
            Err(_) => text.contains(pattern),
        };
        self.matching(|process| {
            let found = process.names.iter().any(|name| fits(name)) || how.full && fits(&process.command);
            found != how.inverse
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protected() -> Protected {
        let process = |pid, name: &str, command: &str, owner| Process {
            pid: Some(pid),
            parent: Some(1),
            group: Some(pid),
            names: vec![name.to_owned()],
            command: command.to_owned(),
            owner,
        };
        Protected {
            processes: vec![
                process(10, "mcp-restart-http", "mcp-restart-http --port 4310", Owner::Bridge),
                process(20, "node", "node /opt/gemini.js", Owner::Agent("g".into())),
            ],
            port: None,
            own: None,
        }
    }

    #[test]
    fn a_pattern_fits_names_and_on_demand_whole_command_lines() {
        let protected = protected();
        let agent = vec![Owner::Agent("g".into())];
        let full = Pattern { full: true, ..Pattern::default() };
        let exact = Pattern { exact: true, ..Pattern::default() };
        assert_eq!(protected.fitting("^no[d]e$", Pattern::default()), agent);
        assert_eq!(protected.fitting("gemini", Pattern::default()), []);
        assert_eq!(protected.fitting("gem.ni", full), agent);
        assert_eq!(protected.fitting("nod", exact), []);
        assert_eq!(protected.fitting("NODE", Pattern { ignore_case: true, ..exact }), agent);
        assert_eq!(protected.fitting("vim", Pattern { inverse: true, ..full }), protected.everything());
        assert_eq!(protected.fitting("(", full), []);
    }

    #[test]
    fn a_name_may_be_a_path_and_may_be_cut() {
        let mut protected = protected();
        assert_eq!(protected.named("/usr/bin/node", false), [Owner::Agent("g".into())]);
        assert_eq!(protected.named("nodes", false), []);
        protected.processes[0].names = vec!["mcp-restart-htt".into()];
        assert_eq!(protected.named("mcp-restart-http", false), [Owner::Bridge]);
    }
}
