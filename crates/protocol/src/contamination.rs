//! The durable marker of a command that the guard refused. The command line writes and removes it; the daemon reads it.

use crate::timestamp::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The first attempt since the operator last cleared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Contamination {
    /// When it was refused.
    pub at: Timestamp,
    /// The beginning of the command.
    pub command: String,
    /// What it would have hit.
    pub would_hit: Vec<String>,
    /// The agent whose command it was, as far as its environment tells.
    pub agent: Option<String>,
}

/// The marker in a state dir.
pub fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("contaminated.json")
}

impl Contamination {
    /// The marker of a state dir, if there is one. One that cannot be read is one all the same.
    pub fn of(state_dir: &Path) -> Option<Self> {
        let bytes = std::fs::read(file(state_dir)).ok()?;
        Some(serde_json::from_slice(&bytes).unwrap_or_else(|_| Self {
            at: Timestamp(0),
            command: "unknown: the marker cannot be read".to_owned(),
            would_hit: Vec::new(),
            agent: None,
        }))
    }
}

impl std::fmt::Display for Contamination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let who = self.agent.as_ref().map_or_else(String::new, |agent| format!(" by agent {agent}"));
        write!(
            f,
            "a command that would have hit {} was refused{who} at {}: {}",
            self.would_hit.join(", "),
            self.at,
            self.command
        )
    }
}
