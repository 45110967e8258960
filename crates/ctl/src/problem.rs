//! What can go wrong on the command line: a sentence, a remedy and an exit code.

use mcp_restart_config::{Fault, LoadError, lookup::NoStateDir};
use mcp_restart_protocol::answer::{ErrorCode, Failure};
use serde::Serialize;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// The exit codes of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// It was done, or it was so already.
    Done = 0,
    /// It failed.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// No daemon runs.
    NotRunning = 3,
    /// There is no such agent.
    UnknownAgent = 4,
    /// The caller may not do that.
    NotAllowed = 5,
    /// The config file cannot be used, or is not the one that the daemon serves.
    ConfigInvalid = 6,
    /// The time that `--timeout` gives ran out, or the daemon does not answer.
    TimedOut = 7,
    /// The user ended the waiting: what a shell shows for a program that Ctrl-C ended.
    Interrupted = 130,
}

/// Why a command ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    /// Something to tell.
    Told {
        /// The exit code.
        exit: Exit,
        /// The kind of failure, where the daemon gave it.
        code: Option<ErrorCode>,
        /// What happened.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// Whoever read the output has seen enough.
    ReaderGone,
}

impl Problem {
    /// A problem without a remedy.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self::Told { exit, code: None, message: message.into(), hint: None }
    }

    /// `what`, and the chain of errors that caused it.
    pub(crate) fn caused(exit: Exit, what: impl Into<String>, error: &dyn Error) -> Self {
        let mut message = what.into();
        let mut cause = Some(error);
        while let Some(error) = cause {
            message.push_str(": ");
            message.push_str(&error.to_string());
            cause = error.source();
        }
        Self::new(exit, message)
    }

    /// That standard output took no more; no problem at all if nobody reads it any longer.
    pub(crate) fn of_output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ReaderGone,
            _ => Self::caused(Exit::Failed, "cannot write to standard output", error),
        }
    }

    /// The same problem with a remedy, if it has none yet.
    #[must_use]
    pub(crate) fn hint(mut self, remedy: impl Into<String>) -> Self {
        if let Self::Told { hint: hint @ None, .. } = &mut self {
            *hint = Some(remedy.into());
        }
        self
    }

    /// The exit code that it ends the program with.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Told { exit, .. } => *exit,
            Self::ReaderGone => Exit::Done,
        }
    }
}

/// A problem as programs see it: the fields of a failure over MCP.
#[derive(Debug, Serialize)]
pub(crate) struct Shown<'a> {
    error: ShownError<'a>,
}

#[derive(Debug, Serialize)]
struct ShownError<'a> {
    code: Code,
    message: &'a str,
    hint: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Code {
    Daemons(ErrorCode),
    Own(&'static str),
}

impl<'a> Shown<'a> {
    /// None if there is nothing to tell.
    pub(crate) fn of(problem: &'a Problem) -> Option<Self> {
        let Problem::Told { exit, code, message, hint } = problem else { return None };
        let code = code.map_or_else(|| own_code(*exit), Code::Daemons);
        Some(Self { error: ShownError { code, message, hint: hint.as_deref() } })
    }
}

/// What the daemon would have called it, where it has a word for it.
fn own_code(exit: Exit) -> Code {
    match exit {
        Exit::Usage => Code::Daemons(ErrorCode::InvalidArgument),
        Exit::NotRunning => Code::Daemons(ErrorCode::DaemonUnavailable),
        Exit::UnknownAgent => Code::Daemons(ErrorCode::UnknownAgent),
        Exit::NotAllowed => Code::Daemons(ErrorCode::NotAllowed),
        Exit::ConfigInvalid => Code::Daemons(ErrorCode::ConfigInvalid),
        Exit::TimedOut => Code::Own("timed_out"),
        Exit::Interrupted => Code::Own("interrupted"),
        Exit::Done | Exit::Failed => Code::Own("failed"),
    }
}

/// The exit code for a refusal or failure of the daemon.
pub(crate) fn exit_for(code: ErrorCode) -> Exit {
    match code {
        ErrorCode::UnknownAgent => Exit::UnknownAgent,
        ErrorCode::ConfigInvalid => Exit::ConfigInvalid,
        ErrorCode::InvalidArgument => Exit::Usage,
        ErrorCode::ShuttingDown | ErrorCode::DaemonUnavailable => Exit::NotRunning,
        ErrorCode::NotAllowed
        | ErrorCode::TooManyRestarts
        | ErrorCode::Contaminated
        | ErrorCode::StaleDaemon
        | ErrorCode::UnknownRestartPath => Exit::NotAllowed,
        ErrorCode::AlreadyRunning
        | ErrorCode::NotRunning
        | ErrorCode::SpawnFailed
        | ErrorCode::ExitedEarly
        | ErrorCode::StopIncomplete
        | ErrorCode::Superseded
        | ErrorCode::LaunchKnownBad
        | ErrorCode::Internal => Exit::Failed,
    }
}

/// What is wrong with a config file: one fault in a line, several in a line each below the file.
pub(crate) fn faults(error: &LoadError) -> String {
    let place = |fault: &Fault| match (fault.line, fault.column) {
        (Some(line), Some(column)) => format!("{line}:{column}: "),
        (Some(line), None) => format!("{line}: "),
        (None, _) => String::new(),
    };
    match error.faults.as_slice() {
        [_] => error.to_string(),
        faults => {
            let lines: Vec<_> = faults.iter().map(|fault| format!("\n  {}{fault}", place(fault))).collect();
            format!("{} has {} faults{}", error.file.display(), faults.len(), lines.concat())
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self::Told {
            exit: exit_for(failure.code),
            code: Some(failure.code),
            message: failure.message,
            hint: failure.hint,
        }
    }
}

impl From<LoadError> for Problem {
    fn from(error: LoadError) -> Self {
        let problem = Self::new(Exit::ConfigInvalid, faults(&error));
        if error.faults.iter().any(|fault| fault.field.is_some()) {
            return problem.hint("mcp-restartctl config schema describes every field");
        }
        problem
    }
}

impl From<NoStateDir> for Problem {
    fn from(error: NoStateDir) -> Self {
        Self::new(Exit::Failed, error.to_string()).hint("give --state-dir DIR, or set HOME")
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::new(Exit::Failed, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_failure_has_the_exit_code_of_the_contract() {
        let table = [
            (ErrorCode::UnknownAgent, 4),
            (ErrorCode::AlreadyRunning, 1),
            (ErrorCode::NotRunning, 1),
            (ErrorCode::ConfigInvalid, 6),
            (ErrorCode::SpawnFailed, 1),
            (ErrorCode::ExitedEarly, 1),
            (ErrorCode::StopIncomplete, 1),
            (ErrorCode::Superseded, 1),
            (ErrorCode::LaunchKnownBad, 1),
            (ErrorCode::NotAllowed, 5),
            (ErrorCode::TooManyRestarts, 5),
            (ErrorCode::Contaminated, 5),
            (ErrorCode::StaleDaemon, 5),
            (ErrorCode::UnknownRestartPath, 5),
            (ErrorCode::ShuttingDown, 3),
            (ErrorCode::DaemonUnavailable, 3),
            (ErrorCode::InvalidArgument, 2),
            (ErrorCode::Internal, 1),
        ];
        for (code, exit) in table {
            assert_eq!(exit_for(code) as u8, exit, "{code:?}");
        }
    }

    #[test]
    fn the_first_remedy_stays() {
        let problem = Problem::new(Exit::Failed, "x").hint("one").hint("two");
        let Problem::Told { hint, .. } = problem else { panic!("told") };
        assert_eq!(hint.as_deref(), Some("one"));
    }

    #[test]
    fn a_reader_that_left_is_no_failure() {
        let problem = Problem::of_output(&io::ErrorKind::BrokenPipe.into());
        assert_eq!(problem.exit(), Exit::Done);
        let Problem::Told { message, .. } = Problem::of_output(&io::ErrorKind::StorageFull.into()) else {
            panic!("told")
        };
        assert!(message.starts_with("cannot write to standard output: "), "{message}");
    }
}
