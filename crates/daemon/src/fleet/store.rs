//! `state.json`: what the daemon must not forget between its lives.

use super::intent::Intent;
use super::rollback::{self, Launches};
use super::sessions::Session;
use mcp_restart_process::read_regular;
use mcp_restart_protocol::agent::{AgentState, ExitReason, LastExit};
use mcp_restart_protocol::answer::RestartAnswer;
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_supervisor::UnderWay;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;
/// How long the answer to a request id is kept, in milliseconds.
const REPLAY_MS: u64 = 60 * 60 * 1000;
/// How exactly it is stored when an agent last reached the endpoint, in milliseconds.
const CONNECTED_MS: u64 = 60 * 1000;
/// How many answers are kept at most.
const REPLAY_MAX: usize = 200;

/// The stored state, written whole and atomically after each batch of changes.
#[derive(Debug)]
pub(super) struct Store {
    file: PathBuf,
    state: Stored,
    dirty: bool,
    /// Why what was stored could not be used.
    fault: Option<String>,
    /// Why the present state could not be stored.
    unsaved: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    version: u32,
    boot_id: String,
    /// Whether the daemon that wrote this had stopped everything before it ended.
    clean: bool,
    #[serde(default)]
    agents: BTreeMap<String, AgentRecord>,
    #[serde(default)]
    replays: VecDeque<Replay>,
}

/// What is kept of one agent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AgentRecord {
    /// The number of the last launch.
    pub generation: u64,
    /// The agent's own token.
    pub token: String,
    /// How it was left: stopped, exited or failed. A process that runs is found by its shim.
    #[serde(default)]
    pub state: Option<AgentState>,
    /// What is under way.
    #[serde(default)]
    pub intent: Option<Intent>,
    /// How its last process ended.
    pub last_exit: Option<LastExit>,
    /// Which of its launches stayed up, and which did not.
    #[serde(default, deserialize_with = "rollback::lenient")]
    pub launches: Launches,
    /// The generation that reached the MCP endpoint, and when it did so last, give or take a minute.
    #[serde(default)]
    pub connected: Option<(u64, Timestamp)>,
    /// The conversation that its present or last process has or had.
    #[serde(default)]
    pub session: Option<Session>,
    /// The number of the launch that ended with the machine, or with its container.
    #[serde(default)]
    pub interrupted: Option<u64>,
    /// When it restarted itself, within the window of its limit.
    #[serde(default)]
    pub self_restarts: VecDeque<Timestamp>,
}

impl AgentRecord {
    /// Whether the last process ended with the machine: whoever starts the agent again lets it go on.
    pub(super) fn was_interrupted(&self) -> bool {
        self.interrupted == Some(self.generation)
    }

    /// The machine was started anew: what the daemon's shutdown ended was ended for that.
    fn note_shutdown(&mut self) {
        if self.last_exit.as_ref().is_some_and(|exit| exit.reason == ExitReason::Shutdown) {
            self.interrupted = Some(self.generation);
        }
    }
}

/// The answer to a restart with a request id.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Replay {
    /// Who asked, as text.
    pub caller: String,
    /// The caller's id.
    pub request_id: String,
    /// Hash of the agent's entry at that time.
    pub launch_hash: u64,
    /// When.
    pub at: Timestamp,
    /// What was answered.
    pub answer: RestartAnswer,
}

impl Store {
    /// Reads the state dir's file. One that cannot be used is set aside and reported, never fatal. The
    /// flag says whether agents with `autostart` are to be started: at the first start, after a clean end
    /// and after a new boot, but not when it is unknown what was running.
    pub(super) fn open(state_dir: &Path, boot_id: &str) -> (Self, bool) {
        let file = state_dir.join("state.json");
        let found = match read_regular(&file) {
            Ok(bytes) => parse(&bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let (found, fault) = match found {
            Ok(found) => (found, None),
            Err(why) => (None, Some(set_aside(&file, &why))),
        };
        let autostart = match &found {
            Some(stored) => stored.clean || stored.boot_id != boot_id,
            None => fault.is_none(),
        };
        let mut state = found.unwrap_or_default();
        if state.boot_id != boot_id {
            state.agents.values_mut().for_each(AgentRecord::note_shutdown);
        }
        state.version = VERSION;
        boot_id.clone_into(&mut state.boot_id);
        state.clean = false;
        (Self { file, state, dirty: true, fault, unsaved: None }, autostart)
    }

    /// Why what was stored could not be used, to be told once.
    pub(super) fn take_fault(&mut self) -> Option<String> {
        self.fault.take()
    }

    /// The record of an agent, if it ever had one.
    pub(super) fn agent(&self, name: &str) -> Option<&AgentRecord> {
        self.state.agents.get(name)
    }

    /// The record of an agent, to be changed.
    pub(super) fn agent_mut(&mut self, name: &str) -> &mut AgentRecord {
        self.dirty = true;
        self.state.agents.entry(name.to_owned()).or_default()
    }

    /// Whether it is worth storing that an agent has reached the endpoint: it may do so many times a second.
    pub(super) fn is_news(&self, name: &str, generation: u64, now: Timestamp) -> bool {
        let stored = self.agent(name).and_then(|record| record.connected);
        stored.is_none_or(|(of, at)| of != generation || now.millis_since(at) >= CONNECTED_MS)
    }

    /// Writes down what is about to be begun; what is under way already is joined or replaced.
    pub(super) fn begin(&mut self, name: &str, intent: Intent) {
        let record = self.agent_mut(name);
        record.intent = Some(intent.after(record.intent.as_ref()));
    }

    /// What is under way of an agent.
    pub(super) fn intent(&self, name: &str) -> Option<&Intent> {
        self.agent(name)?.intent.as_ref()
    }

    /// The same, to be changed.
    pub(super) fn intent_mut(&mut self, name: &str) -> Option<&mut Intent> {
        self.agent_mut(name).intent.as_mut()
    }

    /// Every agent of which something is under way, with that.
    pub(super) fn intents(&self) -> Vec<(String, Intent)> {
        let records = self.agents();
        records.filter_map(|(name, record)| Some((name.to_owned(), record.intent.clone()?))).collect()
    }

    /// It is done, or given up.
    pub(super) fn forget_intent(&mut self, name: &str) {
        if self.intent(name).is_some() {
            self.agent_mut(name).intent = None;
        }
    }

    /// Brings what is written down to what the agent's machine says; nothing under way, nothing to finish.
    pub(super) fn follow(&mut self, name: &str, under_way: Option<UnderWay>) {
        let Some(intent) = self.agent(name).and_then(|record| record.intent.clone()) else { return };
        let followed = under_way.map(|under_way| intent.clone().following(under_way));
        if followed.as_ref() != Some(&intent) {
            self.agent_mut(name).intent = followed;
        }
    }

    /// Every agent that has a record.
    pub(super) fn agents(&self) -> impl Iterator<Item = (&str, &AgentRecord)> {
        self.state.agents.iter().map(|(name, record)| (name.as_str(), record))
    }

    /// The agent's token, made at its first use.
    pub(super) fn token(&mut self, name: &str) -> io::Result<String> {
        if let Some(record) = self.agent(name).filter(|record| !record.token.is_empty()) {
            return Ok(record.token.clone());
        }
        let token = new_token()?;
        self.agent_mut(name).token.clone_from(&token);
        Ok(token)
    }

    /// The answer that this caller already got for this id under this config.
    pub(super) fn replay(
        &self,
        caller: &str,
        request_id: &str,
        launch_hash: u64,
        now: Timestamp,
    ) -> Option<&Replay> {
        self.state.replays.iter().find(|replay| {
            replay.caller == caller
                && replay.request_id == request_id
                && replay.launch_hash == launch_hash
                && now.millis_since(replay.at) < REPLAY_MS
        })
    }

    /// Keeps an answer for an hour.
    pub(super) fn remember(&mut self, replay: Replay) {
        let now = replay.at;
        self.state.replays.retain(|earlier| now.millis_since(earlier.at) < REPLAY_MS);
        while self.state.replays.len() >= REPLAY_MAX {
            self.state.replays.pop_front();
        }
        self.state.replays.push_back(replay);
        self.dirty = true;
    }

    /// The restart that was answered so did not live: whoever repeats the request is told.
    pub(super) fn note_rolled_back(&mut self, name: &str, generation: u64) {
        for replay in &mut self.state.replays {
            if replay.answer.agent.name == name && replay.answer.generation == generation {
                replay.answer.rolled_back = true;
                self.dirty = true;
            }
        }
    }

    /// Marks that every agent was stopped before the daemon ended.
    pub(super) fn mark_clean(&mut self) {
        self.state.clean = true;
        self.dirty = true;
    }

    /// The file is gone.
    pub(super) fn write_again(&mut self) {
        self.dirty = true;
    }

    /// Why the file does not say what it should, if it does not.
    pub(super) fn unsaved(&self) -> Option<&str> {
        self.unsaved.as_deref()
    }

    /// Writes the file if something changed. What it said before stands until that succeeds.
    pub(super) fn save(&mut self) {
        if !self.dirty {
            return;
        }
        let written = serde_json::to_vec(&self.state)
            .map_err(io::Error::other)
            .and_then(|bytes| mcp_restart_process::write_atomically(&self.file, &bytes));
        match written {
            Ok(()) => {
                self.dirty = false;
                if self.unsaved.take().is_some() {
                    tracing::info!(file = %self.file.display(), "the state is stored again");
                }
            }
            Err(error) => {
                let why = format!("{}: {error}", self.file.display());
                if self.unsaved.as_ref() != Some(&why) {
                    tracing::error!("the state cannot be stored: {why}");
                }
                self.unsaved = Some(why);
            }
        }
    }
}

/// Whether [`Store::open`] would take on what is stored. The error names the file and says why not.
pub(crate) fn check(state_dir: &Path) -> Result<(), (PathBuf, String)> {
    let file = state_dir.join("state.json");
    let checked = match read_regular(&file) {
        Ok(bytes) => parse(&bytes).map(drop),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    checked.map_err(|why| (file, why))
}

fn parse(bytes: &[u8]) -> Result<Stored, String> {
    let stored: Stored = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if stored.version > VERSION {
        return Err(format!("it is of the newer version {}", stored.version));
    }
    Ok(stored)
}

fn set_aside(file: &Path, why: &str) -> String {
    let mut aside = file.as_os_str().to_owned();
    aside.push(format!(".corrupt-{}", Timestamp::now().0));
    let where_to = match std::fs::rename(file, &aside) {
        Ok(()) => format!("was set aside as {}", Path::new(&aside).display()),
        Err(error) => format!("could not be set aside: {error}"),
    };
    format!("{} could not be used ({why}) and {where_to}", file.display())
}

/// 160 random bits behind the prefix that agent tokens have.
fn new_token() -> io::Result<String> {
    let mut bytes = [0_u8; 20];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let mut token = mcp_restart_config::AGENT_TOKEN_PREFIX.to_owned();
    for byte in bytes {
        let _ = write!(token, "{byte:02x}");
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_was_killed_starts_nothing_by_autostart_in_the_same_boot() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, autostart) = Store::open(dir.path(), "boot-1");
        assert!(autostart, "a first start is a clean one");
        store.save();
        assert!(!Store::open(dir.path(), "boot-1").1);
        assert!(Store::open(dir.path(), "boot-2").1, "a new boot is a clean start");
        store.mark_clean();
        store.save();
        assert!(Store::open(dir.path(), "boot-1").1);
    }

    #[test]
    fn tokens_survive_and_a_torn_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(dir.path(), "boot");
        let token = store.token("a").unwrap();
        assert!(token.starts_with("mra_"));
        store.save();
        assert_eq!(Store::open(dir.path(), "boot").0.token("a").unwrap(), token);

        check(dir.path()).unwrap();
        std::fs::write(dir.path().join("state.json"), "{\"version\":1,").unwrap();
        assert_eq!(check(dir.path()).unwrap_err().0, dir.path().join("state.json"));
        let (store, autostart) = Store::open(dir.path(), "boot");
        assert!(store.agent("a").is_none());
        assert!(!autostart, "what was stopped stays stopped");
        let aside = std::fs::read_dir(dir.path()).unwrap().filter_map(Result::ok);
        assert!(
            aside
                .into_iter()
                .any(|entry| entry.file_name().to_string_lossy().contains("state.json.corrupt-"))
        );
    }
}
