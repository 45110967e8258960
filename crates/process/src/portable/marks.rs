//! What the processes of one incarnation of an agent carry in their environment.

use crate::facts;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

/// Together they name one incarnation of one agent of one daemon.
const NAMES: [&str; 3] = ["MCP_RESTART_SOCKET", "MCP_RESTART_AGENT", "MCP_RESTART_GENERATION"];

/// The assignments that only the family of one agent has.
#[derive(Debug)]
pub(crate) struct Marks(Vec<Vec<u8>>);

impl Marks {
    /// The marks in the environment of an agent, if it has all of them.
    pub(crate) fn of(environment: &[(OsString, OsString)]) -> Option<Self> {
        let assignment = |wanted: &str| {
            let (name, value) = environment.iter().find(|(name, _)| name == wanted)?;
            Some([name.as_bytes(), b"=", value.as_bytes()].concat())
        };
        NAMES.into_iter().map(assignment).collect::<Option<_>>().map(Self)
    }

    /// Whether a process has them, as far as the system shows it.
    pub(crate) fn are_carried_by(&self, pid: u32) -> bool {
        facts::environment(pid).is_some_and(|environment| self.are_in(&environment))
    }

    fn are_in(&self, environment: &[u8]) -> bool {
        self.0.iter().all(|mark| environment.split(|byte| *byte == 0).any(|variable| variable == mark))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_incarnation_of_one_agent_is_meant_and_no_other() {
        let environment = |generation: &str| -> Vec<(OsString, OsString)> {
            let values = ["/s/sock", "a", generation];
            NAMES.into_iter().zip(values).map(|(name, value)| (name.into(), value.into())).collect()
        };
        let marks = Marks::of(&environment("3")).unwrap();
        let block = |generation: &str| {
            format!(
                "A=1\0MCP_RESTART_SOCKET=/s/sock\0MCP_RESTART_AGENT=a\0MCP_RESTART_GENERATION={generation}\0"
            )
        };
        assert!(marks.are_in(block("3").as_bytes()));
        assert!(!marks.are_in(block("2").as_bytes()));
        assert!(!marks.are_in(b"MCP_RESTART_AGENT=a\0"));
        assert!(Marks::of(environment("3").get(..2).unwrap()).is_none());
    }
}
