//! Who asks: from what is known of the other end to the [`Caller`] or a refusal.
//!
//! ```text
//!  credential ─► facts (token looked up, process at the other end followed) ─► decide ─► Caller
//! ```
//!
//! Strongest first: a token names its holder, whatever process shows it. Without one the process at the
//! other end counts: below an agent's shim it *is* that agent, else it is a local user.

use mcp_restart_protocol::answer::{Caller, ErrorCode, Failure};

/// Whom a token belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The operator.
    Operator,
    /// The agent of this name.
    Agent(String),
    /// Nobody.
    Nobody,
}

/// The process at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Process {
    /// It is below the shim of the agent of this name.
    Below(String),
    /// Another process of the daemon's user, or root's; its id where the system tells.
    Local(Option<u32>),
    /// A process of another user.
    Foreign(u32),
    /// Gone, or nothing that the system tells about.
    Unknown,
    /// One of this machine that the system does not tell of, or that hides what it has open. It may be below an
    /// agent.
    Untold,
}

/// What is known of whoever asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Facts {
    /// A token was shown.
    Token(Holder),
    /// The process at the other end of the daemon's socket.
    Socket(Process),
    /// Over HTTP without a token, from a connection whose process was found before.
    Admitted(Caller),
    /// Over HTTP without a token.
    Http {
        /// Whether the config demands the operator's token.
        token_needed: bool,
        /// Whether the other end is on this machine.
        loopback: bool,
        /// The process there.
        process: Process,
    },
}

/// The caller that these facts make, or why there is none.
pub(crate) fn decide(facts: Facts) -> Result<Caller, Failure> {
    match facts {
        Facts::Token(Holder::Operator) => Ok(Caller::Operator),
        Facts::Token(Holder::Agent(name)) => Ok(Caller::Agent { name }),
        Facts::Token(Holder::Nobody) => Err(refused("the token is wrong").hint(
            "an agent's token is in its MCP_RESTART_TOKEN, the operator's in the config, its tokenFile or the \
             daemon's MCP_RESTART_TOKEN",
        )),
        Facts::Admitted(caller) => match caller {
            Caller::Agent { .. } | Caller::LocalUser { .. } | Caller::Unknown => Ok(caller),
            Caller::Operator | Caller::Supervisor => Err(refused("no process is found to be that")),
        },
        Facts::Http { token_needed: true, .. } => {
            Err(refused("a token is needed").hint("send the header `Authorization: Bearer TOKEN`"))
        }
        Facts::Http { loopback: false, .. } => {
            Err(refused("without a token only callers on this machine are let in")
                .hint("set a token in the config and send it as `Authorization: Bearer TOKEN`"))
        }
        Facts::Socket(process) | Facts::Http { process, .. } => by_process(process),
    }
}

fn by_process(process: Process) -> Result<Caller, Failure> {
    match process {
        Process::Below(name) => Ok(Caller::Agent { name }),
        Process::Local(pid) => Ok(Caller::LocalUser { pid }),
        Process::Foreign(uid) => Err(refused(format!("uid {uid} is another user than the daemon's"))),
        Process::Untold => Ok(Caller::Unknown),
        Process::Unknown => Err(refused("the process that asks cannot be found").hint("show a token")),
    }
}

fn refused(message: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::NotAllowed, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes() -> [Process; 6] {
        [
            Process::Below("claude".into()),
            Process::Local(Some(7)),
            Process::Local(None),
            Process::Foreign(1000),
            Process::Unknown,
            Process::Untold,
        ]
    }

    fn http(token_needed: bool, loopback: bool, process: Process) -> Result<Caller, Failure> {
        decide(Facts::Http { token_needed, loopback, process })
    }

    #[test]
    fn a_token_names_its_holder() {
        assert_eq!(decide(Facts::Token(Holder::Operator)), Ok(Caller::Operator));
        let claude = Caller::Agent { name: "claude".into() };
        assert_eq!(decide(Facts::Token(Holder::Agent("claude".into()))), Ok(claude));
    }

    #[test]
    fn a_wrong_token_is_refused_even_where_none_is_needed() {
        assert_eq!(decide(Facts::Token(Holder::Nobody)).unwrap_err().code, ErrorCode::NotAllowed);
    }

    #[test]
    fn a_process_below_an_agent_is_that_agent_at_every_door() {
        let (below, claude) = (Process::Below("claude".into()), Caller::Agent { name: "claude".into() });
        assert_eq!(decide(Facts::Socket(below.clone())), Ok(claude.clone()));
        assert_eq!(http(false, true, below), Ok(claude));
    }

    #[test]
    fn a_process_of_another_user_or_of_nobody_is_never_a_caller() {
        for process in [Process::Foreign(1000), Process::Unknown] {
            assert!(decide(Facts::Socket(process.clone())).is_err());
            assert!(http(false, true, process).is_err());
        }
    }

    #[test]
    fn where_the_system_does_not_tell_the_process_nobody_passes_for_a_local_user() {
        assert_eq!(http(false, true, Process::Untold), Ok(Caller::Unknown));
    }

    #[test]
    fn no_process_gets_in_over_http_without_a_token_that_is_needed_or_from_another_machine() {
        for process in processes() {
            assert!(http(true, true, process.clone()).is_err());
            assert!(http(true, false, process.clone()).is_err());
            assert!(http(false, false, process).is_err());
        }
    }

    #[test]
    fn who_was_found_before_is_the_same_again() {
        let claude = Caller::Agent { name: "claude".into() };
        assert_eq!(decide(Facts::Admitted(claude.clone())), Ok(claude));
        assert_eq!(decide(Facts::Admitted(Caller::Unknown)), Ok(Caller::Unknown));
        for strong in [Caller::Operator, Caller::Supervisor] {
            assert!(decide(Facts::Admitted(strong)).is_err());
        }
    }

    #[test]
    fn without_a_token_nobody_is_the_operator() {
        for process in processes() {
            assert_ne!(decide(Facts::Socket(process.clone())), Ok(Caller::Operator));
            assert_ne!(http(false, true, process), Ok(Caller::Operator));
        }
    }
}
