//! The lines of `events.jsonl`: what was asked for, what became of it, and what happened unasked.

use crate::agent::LastExit;
use crate::answer::{Caller, ErrorCode};
use crate::timestamp::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// One line. What does not apply is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// When it was written.
    pub at: Timestamp,
    /// What it is about.
    pub event: Happening,
    /// The agent that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Id of the restart path that was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_id: Option<String>,
    /// Who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Caller>,
    /// The process at the other end of the daemon's socket; for a caller over HTTP that is the bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Peer>,
    /// What became of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// What there is to say in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The process before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_pid: Option<u32>,
    /// The process after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_pid: Option<u32>,
    /// The number of the agent's launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// How the process before ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<LastExit>,
    /// From the request to its outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Hash of the config entry that the process before was launched with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_before: Option<String>,
    /// The same of the process after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_after: Option<String>,
}

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Happening {
    /// A daemon began to serve.
    DaemonStarted,
    /// The daemon before was killed, not stopped.
    UncleanShutdown,
    /// The daemon ended with every agent stopped.
    DaemonStopped,
    /// The daemon ended and left every agent running.
    DaemonMadeWay,
    /// A start, stop or restart, or the end of the daemon, was asked for: who, by which path, and what became of it.
    Requested,
    /// A process of an agent was found running when the daemon started.
    Adopted,
    /// A process of an agent was started.
    Started,
    /// A process of an agent ended.
    Ended,
    /// An agent could not be started.
    Failed,
    /// The bridge was started.
    BridgeStarted,
    /// The bridge ended.
    BridgeEnded,
    /// A stdio MCP server was ended.
    ServerEnded,
    /// A command that would have hit the supervisor or an agent was refused by the guard.
    Contaminated,
    /// The operator has cleared that.
    Cleared,
}

/// What became of a request: a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Outcome {
    /// It will be, or was, carried out.
    Well(Well),
    /// It was refused, or failed.
    Failed(ErrorCode),
}

/// How well a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Well {
    /// It was carried out.
    Done,
    /// It is carried out once its caller, whose own process it ends, has the answer.
    Accepted,
}

/// A process at the other end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its process id, 0 if it is in another pid namespace.
    pub pid: u32,
}

impl Line {
    /// A line about this, now, with nothing else said.
    pub fn now(event: Happening) -> Self {
        Self {
            at: Timestamp::now(),
            event,
            agent: None,
            path_id: None,
            caller: None,
            peer: None,
            outcome: None,
            message: None,
            old_pid: None,
            new_pid: None,
            generation: None,
            exit: None,
            duration_ms: None,
            config_before: None,
            config_after: None,
        }
    }
}

/// The file in a state dir.
pub fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("events.jsonl")
}

/// The file that it was before, once it had become too large.
pub fn older_file(state_dir: &Path) -> PathBuf {
    state_dir.join("events.jsonl.1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_a_word() {
        for (outcome, word) in [
            (Outcome::Well(Well::Accepted), "\"accepted\""),
            (Outcome::Failed(ErrorCode::NotAllowed), "\"not_allowed\""),
        ] {
            assert_eq!(serde_json::to_string(&outcome).unwrap(), word);
            assert_eq!(serde_json::from_str::<Outcome>(word).unwrap(), outcome);
        }
    }

    #[test]
    fn a_line_says_what_applies_and_no_more() {
        let line =
            Line { at: Timestamp(0), agent: Some("a".into()), ..Line::now(Happening::UncleanShutdown) };
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(text, r#"{"at":"1970-01-01T00:00:00.000Z","event":"unclean_shutdown","agent":"a"}"#);
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
    }
}
