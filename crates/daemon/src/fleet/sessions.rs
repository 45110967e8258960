//! Which conversation the next process of an agent has, and which one the present one is found to have.
//!
//! ```text
//!  start, fresh ────────────────────────────► New (another id)
//!  same ─┬─ nothing known ──────────────────► New (another id)
//!        ├─ another agent has it ───────────► New (another id), with a warning
//!        ├─ nothing was said in it ─────────► New (its id)
//!        ├─ its folder is gone ─────────────► New (another id), with a warning
//!        └─ else ───────────────────────────► Resumed, in the folder that it was begun in
//! ```

use super::launch;
use super::task::FleetTask;
use mcp_restart_agents::{Conversation, Transcripts};
use mcp_restart_config::{Agent, Resume};
use mcp_restart_process::preflight::check_folder;
use mcp_restart_process::{boot_id, boot_time, read_regular};
use mcp_restart_protocol::agent;
use mcp_restart_protocol::answer::Caller;
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_shim::Facts;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The times of files may lie so far behind the clock, in milliseconds.
const CLOCK_GRAIN_MS: u64 = 1000;

/// A conversation that an agent has or had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Session {
    /// Its id, as the agent's CLI has it.
    pub id: String,
    /// The folder that it was begun in: it can be resumed in no other.
    pub cwd: PathBuf,
}

/// What a launch is to do about the conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// The conversation's id.
    pub id: String,
    /// Whether there is something to resume.
    pub resumed: bool,
    /// The working directory.
    pub cwd: PathBuf,
    /// What came out otherwise than one might expect.
    pub warning: Option<String>,
}

impl Choice {
    pub(super) fn conversation(&self) -> Conversation<'_> {
        if self.resumed { Conversation::Resumed(&self.id) } else { Conversation::New(&self.id) }
    }

    fn new(id: String, agent: &Agent) -> Self {
        Self { id, resumed: false, cwd: agent.cwd.clone(), warning: None }
    }

    fn warned(self, warning: String) -> Self {
        Self { warning: Some(warning), ..self }
    }
}

/// What is found out about a conversation that might be resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found<'a> {
    /// Another agent that has it at present.
    taken_by: Option<&'a str>,
    /// Whether anything was said in it.
    said: bool,
    /// Whether its folder can be entered.
    folder: bool,
}

/// A process of an agent, and the time in which what has its number was written by it.
struct Incarnation {
    pid: u32,
    generation: u64,
    since: Timestamp,
    until: Option<SystemTime>,
}

impl Incarnation {
    /// One that was killed leaves its file to whoever gets its number.
    fn may_have_written(&self, file: &Path) -> bool {
        let Ok(written) = std::fs::metadata(file).and_then(|metadata| metadata.modified()) else {
            return false;
        };
        let latest = Timestamp::from(written).0.saturating_add(CLOCK_GRAIN_MS);
        latest >= self.since.0 && self.until.is_none_or(|until| written < until)
    }
}

impl FleetTask {
    /// The conversation of the next process.
    pub(super) fn choose_session(&mut self, agent: &Agent, resume: Resume) -> io::Result<Choice> {
        let new_id = new_uuid()?;
        if resume == Resume::Fresh || mcp_restart_agents::chooses_conversation(agent) {
            return Ok(Choice::new(new_id, agent));
        }
        // The others' too: one of them may have taken up this agent's conversation.
        self.look_up_sessions();
        let known = self.store.agent(&agent.name).and_then(|record| record.session.as_ref());
        let Some(known) = known.filter(|known| mcp_restart_agents::is_session_id(agent.kind, &known.id))
        else {
            return Ok(Choice::new(new_id, agent));
        };
        let found = Found {
            taken_by: self.holder_of(&known.id, &agent.name),
            said: self.was_said(agent, &known.id),
            folder: check_folder(&known.cwd).is_ok(),
        };
        Ok(choose(agent, known, found, new_id))
    }

    /// A client told the conversation that it is in.
    pub(super) fn note_session(&mut self, caller: &Caller, id: String) {
        let Caller::Agent { name } = caller else { return };
        let Some(agent) = self.entry_or_launched(name) else { return };
        if !mcp_restart_agents::is_session_id(agent.kind, &id) {
            return;
        }
        let known = self.store.agent(name).and_then(|record| record.session.clone());
        if known.as_ref().is_none_or(|known| known.id != id) {
            let cwd = known.map_or_else(|| agent.cwd.clone(), |known| known.cwd);
            self.store.agent_mut(name).session = Some(Session { id, cwd });
        }
    }

    /// Learns the conversations of all agents whose processes run.
    pub(super) fn look_up_sessions(&mut self) {
        for name in self.members.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>() {
            self.look_up_session(&name);
        }
    }

    /// Learns the conversation of an agent whose process runs, or has just ended, from what its CLI has written down.
    pub(super) fn look_up_session(&mut self, name: &str) {
        let process = self.members.get(name).and_then(|member| member.report.process);
        if let Some((pid, generation, since)) = process {
            self.look_up(name, &Incarnation { pid, generation, since, until: None });
        }
    }

    /// The same of one whose process ended when no daemon ran.
    pub(super) fn look_up_last_session(&mut self, facts: &Facts) {
        let until = if facts.boot_id == boot_id() {
            None
        } else {
            // By now others have the numbers of that time.
            let Some(boot) = boot_time() else { return };
            Some(boot)
        };
        let (pid, generation, since) = (facts.agent.pid, facts.generation, facts.started_at);
        self.look_up(&facts.name, &Incarnation { pid, generation, since, until });
    }

    fn look_up(&mut self, name: &str, of: &Incarnation) {
        let &Incarnation { pid, generation, .. } = of;
        // Of a process that an earlier daemon launched the entry is in the store alone.
        let stored = || self.store.agent(name)?.launches.entry(generation).cloned();
        let Some(agent) = self.members.launched_entry(name).or_else(stored) else { return };
        let variable = |name: &str| self.variable(&agent, name);
        let mcp_config = launch::mcp_config_file(&self.state_dir, name);
        let file =
            mcp_restart_agents::live_session_file(agent.kind, variable, pid, &mcp_config.to_string_lossy());
        let text = file.filter(|file| of.may_have_written(file)).and_then(|file| read_regular(&file).ok());
        let id = text.and_then(|text| mcp_restart_agents::live_session(agent.kind, &text, generation));
        if let Some(id) = id {
            self.note_session(&Caller::Agent { name: name.to_owned() }, id);
        }
    }

    fn was_said(&self, agent: &Agent, id: &str) -> bool {
        let place = mcp_restart_agents::transcripts(agent.kind, |name| self.variable(agent, name), id);
        place.is_none_or(|place| has_transcript(&place))
    }

    fn holder_of(&self, id: &str, not: &str) -> Option<&str> {
        let mut living = self.members.iter().filter(|(name, _)| *name != not && !self.members.is_idle(name));
        let has = |name: &str| self.store.agent(name)?.session.as_ref().map(|session| session.id == id);
        living.find(|(name, _)| has(name) == Some(true)).map(|(name, _)| name)
    }

    /// What an agent finds in its environment under this name.
    fn variable(&self, agent: &Agent, name: &str) -> Option<String> {
        let inherited = || {
            let found = self.inherited.iter().find(|(inherited, _)| inherited == name);
            found.and_then(|(_, value)| value.clone().into_string().ok())
        };
        agent.env.get(name).cloned().or_else(inherited)
    }
}

fn has_transcript(place: &Transcripts) -> bool {
    let entries = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut files = entries(place.folder.clone()).flat_map(|folder| entries(folder.path().join(place.below)));
    files.any(|file| {
        file.file_name().to_string_lossy().ends_with(&place.ending)
            && (place.sign.is_empty() || contains(&file.path(), place.sign))
    })
}

fn contains(file: &Path, sign: &str) -> bool {
    read_regular(file).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(sign))
}

/// What a restart does with the conversation: what was asked for, else what the entry says.
pub(super) fn resume(agent: &Agent, asked: Option<agent::Resume>) -> Resume {
    match asked {
        Some(agent::Resume::Fresh) => Resume::Fresh,
        Some(agent::Resume::Same) => Resume::Same,
        None => agent.resume,
    }
}

fn choose(agent: &Agent, known: &Session, found: Found<'_>, new_id: String) -> Choice {
    let new = |id| Choice::new(id, agent);
    match found {
        Found { taken_by: Some(other), .. } => new(new_id).warned(format!(
            "the agent {other} is in the conversation of {}: it begins a new one",
            agent.name
        )),
        Found { said: false, .. } => new(known.id.clone()),
        Found { folder: false, .. } => new(new_id).warned(format!(
            "the conversation of {} was begun in {}, which cannot be entered any more: it begins a new one",
            agent.name,
            known.cwd.display()
        )),
        _ => {
            let resumed =
                Choice { id: known.id.clone(), resumed: true, cwd: known.cwd.clone(), warning: None };
            if known.cwd == agent.cwd {
                return resumed;
            }
            resumed.warned(format!(
                "the conversation of {} goes on in {}, where it was begun; the changed cwd {} holds for a fresh one",
                agent.name,
                known.cwd.display(),
                agent.cwd.display()
            ))
        }
    }
}

/// A random UUID (version 4).
fn new_uuid() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let number = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let digits = format!("{number:032x}");
    let mut uuid = String::with_capacity(36);
    for (at, digit) in digits.char_indices() {
        if matches!(at, 8 | 12 | 16 | 20) {
            uuid.push('-');
        }
        uuid.push(digit);
    }
    Ok(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_restart_config::{Environment, Kind, from_text};

    fn agent() -> Agent {
        let text = r#"{ "agents": [{ "name": "a", "command": "claude" }] }"#;
        from_text(text, Path::new("/here/c.json"), &Environment::default()).unwrap().agents.remove(0)
    }

    fn choice(cwd: &str, found: Found<'_>) -> Choice {
        choose(&agent(), &Session { id: "known".into(), cwd: cwd.into() }, found, "new".into())
    }

    #[test]
    fn a_conversation_is_resumed_exactly_where_it_was_begun_and_never_by_two() {
        let fine = Found { taken_by: None, said: true, folder: true };
        let said = |choice: &Choice| (choice.id.clone(), choice.resumed, choice.cwd.display().to_string());
        let plain = choice("/here", fine);
        assert_eq!(said(&plain), ("known".into(), true, "/here".into()));
        assert_eq!(plain.warning, None);
        let moved = choice("/elsewhere", fine);
        assert_eq!(said(&moved), ("known".into(), true, "/elsewhere".into()));
        assert!(moved.warning.is_some());
        let gone = choice("/elsewhere", Found { folder: false, ..fine });
        assert_eq!(said(&gone), ("new".into(), false, "/here".into()));
        assert!(gone.warning.is_some());
        let unsaid = choice("/elsewhere", Found { said: false, ..fine });
        assert_eq!(said(&unsaid), ("known".into(), false, "/here".into()));
        let taken = choice("/here", Found { taken_by: Some("b"), ..fine });
        assert_eq!(said(&taken), ("new".into(), false, "/here".into()));
        assert!(taken.warning.unwrap().contains("the agent b"));
    }

    #[test]
    fn a_new_id_is_a_random_uuid() {
        let (one, other) = (new_uuid().unwrap(), new_uuid().unwrap());
        assert!(mcp_restart_agents::is_session_id(Kind::Claude, &one) && one != other);
        assert_eq!(one.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&one.as_bytes()[19]));
    }
}
