//! Whether lifecycle requests are taken at all: not by a daemon that is no longer the program on disk, and not after an attempt to
//! kill by name, if the config is strict about that.

use mcp_restart_config::Strictness;
use mcp_restart_protocol::answer::{Caller, ErrorCode, Failure};
use mcp_restart_protocol::contamination::Contamination;
use std::fmt::Display;

/// What the config demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gate {
    /// Of a daemon that is no longer the program on disk.
    pub(crate) stale: Strictness,
    /// After the guard has refused a command.
    pub(crate) contamination: Strictness,
}

/// What there is to judge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Who asks.
    pub(crate) caller: &'a Caller,
    /// Whether their environment consents.
    pub(crate) allows_stale: bool,
    /// Which program is not the one on disk.
    pub(crate) stale: Option<&'a str>,
    /// The marker of the guard.
    pub(crate) contamination: Option<&'a Contamination>,
}

impl Gate {
    /// Refuses a start, stop or restart if the config says so.
    pub(crate) fn check(self, request: Request<'_>) -> Result<(), Failure> {
        if self.contamination == Strictness::Refuse
            && let Some(contamination) = request.contamination
        {
            return Err(Failure::new(ErrorCode::Contaminated, refused(contamination)).hint(
                "the operator looks at what happened and runs `mcp-restartctl clear` outside any agent",
            ));
        }
        // An agent's environment is not the operator's.
        let consents = request.allows_stale && !matches!(request.caller, Caller::Agent { .. });
        if self.stale == Strictness::Refuse
            && !consents
            && let Some(stale) = request.stale
        {
            return Err(Failure::new(ErrorCode::StaleDaemon, refused(stale))
                .hint("or once, by the operator: MCP_RESTART_ALLOW_STALE=1 mcp-restartctl …"));
        }
        Ok(())
    }
}

fn refused(why: impl Display) -> String {
    format!("nothing is started or stopped any more, as the config wants it: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_restart_protocol::timestamp::Timestamp;

    const STRICT: Gate = Gate { stale: Strictness::Refuse, contamination: Strictness::Refuse };
    const LENIENT: Gate = Gate { stale: Strictness::Warn, contamination: Strictness::Warn };

    fn code(gate: Gate, request: Request<'_>) -> Option<ErrorCode> {
        gate.check(request).err().map(|failure| failure.code)
    }

    #[test]
    fn a_strict_config_refuses_and_a_lenient_one_does_not() {
        let marker = Contamination {
            at: Timestamp(0),
            command: "pkill claude".into(),
            would_hit: vec!["agent claude".into()],
            agent: None,
        };
        let clean =
            Request { caller: &Caller::Operator, allows_stale: false, stale: None, contamination: None };
        let stale = Request { stale: Some("replaced"), ..clean };
        let contaminated = Request { contamination: Some(&marker), ..clean };
        for (request, expected) in [
            (clean, None),
            (stale, Some(ErrorCode::StaleDaemon)),
            (contaminated, Some(ErrorCode::Contaminated)),
        ] {
            assert_eq!(code(STRICT, request), expected);
            assert_eq!(code(LENIENT, request), None);
        }
    }

    #[test]
    fn an_agent_cannot_consent_to_a_stale_daemon() {
        let agent = Caller::Agent { name: "a".into() };
        let user = Caller::LocalUser { pid: Some(1) };
        for (caller, expected) in
            [(&user, None), (&Caller::Operator, None), (&agent, Some(ErrorCode::StaleDaemon))]
        {
            let request =
                Request { caller, allows_stale: true, stale: Some("replaced"), contamination: None };
            assert_eq!(code(STRICT, request), expected, "{caller:?}");
        }
    }
}
