//! How the fleet task takes requests: who may, with which config, and what is written before the running
//! process is touched.

use super::agent::Order;
use super::config_watch::Entry;
use super::intent::{Goal, Intent};
use super::launch::{self, Launch, Surroundings};
use super::repetition::{self, ReplayKey};
use super::store::AgentRecord;
use super::task::{Audience, FleetTask, Pending};
use super::{Lifecycle, Reply, handoff, rights, sessions};
use mcp_restart_agents::Restart;
use mcp_restart_config::{self as config, Agent, Control};
use mcp_restart_protocol::agent::Resume;
use mcp_restart_protocol::answer::{AgentAnswer, Caller, ErrorCode, Failure, Handoff, Note, RestartAnswer};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::request::{NOTE_MAX, RestartRequest};
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_supervisor::{Ask, Event as MachineEvent, Mode, Plan, StopAsk, StopPlan, Ticket, Trial};
use std::sync::Arc;
use std::time::Duration;

impl FleetTask {
    pub(super) fn start(&mut self, request: &Lifecycle, reply: Reply<AgentAnswer>) {
        let prepared = self
            .admit(&request.caller, &request.name)
            .and_then(|()| self.entry_read_again(&request.name))
            .and_then(|entry| self.check_known_bad(&entry.agent, request.force).map(|()| entry))
            .and_then(|entry| self.prepare_start(&entry, request.path).map(|launch| (entry, launch)));
        match prepared {
            Ok((entry, launch)) => {
                let name = entry.agent.name.clone();
                if self.members.is_idle(&name) && self.restart_under_way(&name).is_none() {
                    handoff::discard_next(&self.state_dir, &name);
                }
                if self.restart_under_way(&name).is_none() {
                    self.order_launch(&entry, None);
                }
                self.begin_launch(&name, Goal::Start, request.path);
                let pending = Pending::Agent { name: name.clone(), entry: Some(entry.agent), reply };
                let mode = if request.wait { Mode::Wait } else { Mode::NoWait };
                let ask = self.ask(pending, launch, request.path, mode);
                self.members.order(&name, Order::event(MachineEvent::Start(ask)));
            }
            Err(failure) => {
                let _ = reply.send(Err(failure));
            }
        }
    }

    pub(super) fn stop(&mut self, request: &Lifecycle, reply: Reply<AgentAnswer>) {
        let Lifecycle { caller, path, name, wait, .. } = request;
        let admitted = self.admit(caller, name).and_then(|()| {
            self.refresh();
            if self.members.contains(name) { Ok(()) } else { Err(self.unknown(name)) }
        });
        if let Err(failure) = admitted {
            let _ = reply.send(Err(failure));
            return;
        }
        handoff::discard_next(&self.state_dir, name);
        // It may take that away when it ends.
        self.look_up_session(name);
        self.waiting.remove(name);
        self.store.agent_mut(name).launches.end_trial();
        self.store.begin(name, Intent::stop(*path, self.members.generation(name)));
        let entry = self.entry_or_launched(name);
        let stop = self.members.as_possible(name, stop_plan(entry.as_deref(), *path));
        let ticket = self.ticket(Pending::Agent { name: name.clone(), entry, reply });
        let mode = mode(caller, name, *wait);
        self.members.order(name, Order::event(MachineEvent::Stop(StopAsk { ticket, stop, mode })));
    }

    pub(super) fn restart(
        &mut self,
        caller: &Caller,
        path: RestartPath,
        request: &RestartRequest,
        reply: Reply<RestartAnswer>,
    ) {
        match self.accept_restart(caller, path, request) {
            Ok(Accepted::Replayed(answer)) => {
                let _ = reply.send(Ok(*answer));
            }
            Ok(Accepted::UnderWay(ticket)) => {
                if let Some(Pending::Restart { repeated, .. }) = self.pending.get_mut(&ticket) {
                    repeated.push(reply);
                }
            }
            Ok(Accepted::Anew { entry, launch, trial, config_diff, replay }) => {
                let (name, entry) = (entry.agent.name.clone(), entry.agent);
                let warnings = launch.warnings.clone();
                let pending = Pending::Restart {
                    name: name.clone(),
                    entry,
                    config_diff,
                    warnings,
                    replay: self.begin_restart(&name, path, request.resume, replay),
                    audience: Audience::Caller(reply),
                    repeated: Vec::new(),
                };
                let mode = mode(caller, &name, request.wait);
                let mut ask = self.ask(pending, *launch, path, mode);
                ask.plan.trial = trial;
                self.members.order(&name, Order::event(MachineEvent::Restart(ask)));
            }
            Err(failure) => {
                let _ = reply.send(Err(failure));
            }
        }
    }

    /// Everything that is checked and written before the running process is touched.
    fn accept_restart(
        &mut self,
        caller: &Caller,
        path: RestartPath,
        request: &RestartRequest,
    ) -> Result<Accepted, Failure> {
        let name = match (&request.name, caller) {
            (Some(name), _) | (None, Caller::Agent { name }) => name.clone(),
            (None, _) => {
                return Err(invalid("no agent is named, and the caller is none")
                    .hint("name the agent; only an agent may leave its own name out"));
            }
        };
        self.admit(caller, &name)?;
        check_note(request.note.as_deref())?;
        let entry = self.entry_read_again(&name)?;
        let replay = ReplayKey::of(caller, request, entry.hash)?;
        if let Some(answer) = replay.as_ref().and_then(|key| key.answer(&self.store, Timestamp::now())) {
            return Ok(Accepted::Replayed(Box::new(answer)));
        }
        if let Some(ticket) = replay.as_ref().and_then(|key| self.under_way(key)) {
            return Ok(Accepted::UnderWay(ticket));
        }
        self.check_known_bad(&entry.agent, request.force)?;
        let now = Timestamp::now();
        let own = is_own(caller, &name);
        if own {
            repetition::check_self_restarts(&mut self.store, &entry.agent, now)?;
        }
        let config_diff = self.config_diff(&name, &entry);
        let note = Note { from: caller.clone(), text: request.note.clone() };
        let generation = self.members.generation(&name).saturating_add(1);
        let request_id = request.request_id.clone();
        let intent = self.store.intent(&name).filter(|intent| intent.goal != Goal::Stop);
        let launching = intent.map(|intent| intent.generation);
        let resume = request.resume.or(intent.and_then(|intent| intent.resume));
        let handoff =
            handoff::compose(&self.state_dir, &name, generation, note, &config_diff, request_id, launching);
        let trial = self.prepare_trial(&entry, &handoff, caller, own);
        let launch = self.prepare_restart(&entry, path, &handoff, caller, resume)?;
        handoff::write_next(&self.state_dir, &handoff).map_err(|error| {
            Failure::new(ErrorCode::Internal, format!("the hand-off for {name} could not be stored: {error}"))
        })?;
        if own {
            self.store.agent_mut(&name).self_restarts.push_back(now);
        }
        self.order_launch(&entry, trial.as_deref());
        Ok(Accepted::Anew { entry, launch: Box::new(launch), trial, config_diff, replay })
    }

    /// Writes down that a launch is about to be begun.
    fn begin_launch(&mut self, name: &str, goal: Goal, path: RestartPath) {
        self.waiting.remove(name);
        let generation = self.members.generation(name).saturating_add(1);
        self.store.begin(name, Intent::launch(goal, path, generation));
    }

    /// The same for a restart. Gives the requests that its outcome answers: its own, and those of the
    /// restart that an earlier daemon had accepted and that it takes the place of.
    fn begin_restart(
        &mut self,
        name: &str,
        path: RestartPath,
        resume: Option<Resume>,
        own: Option<ReplayKey>,
    ) -> Vec<ReplayKey> {
        let inherits = self.waiting.contains(name);
        self.begin_launch(name, Goal::Restart, path);
        let Some(intent) = self.store.intent_mut(name) else { return own.into_iter().collect() };
        intent.resume = resume.or(intent.resume);
        intent.requests.extend(own.clone());
        if inherits { intent.requests.clone() } else { own.into_iter().collect() }
    }

    /// The launch of a start. One that joins a restart is as that one was to be: who starts an agent does not
    /// take its conversation away.
    fn prepare_start(&mut self, entry: &Entry, path: RestartPath) -> Result<Launch, Failure> {
        let name = &entry.agent.name;
        let joined = self.restart_under_way(name).and_then(|generation| {
            // One that an earlier daemon had begun may have its note in place already.
            let waits = self.waiting.contains(name);
            if waits {
                Some(handoff::take_back(&self.state_dir, name, generation))
            } else {
                handoff::read_next(&self.state_dir, name)
            }
        });
        match joined {
            Some(handoff) => {
                let resume = self.store.intent(name).and_then(|intent| intent.resume);
                self.prepare_restart(entry, path, &handoff, &handoff::asker(&handoff), resume)
            }
            None => self.prepare_plain_start(entry, path),
        }
    }

    /// The launch of a restart, whose prompt says who asked for it and what they wrote.
    /// The launch of a start that joins nothing. An agent whose last process ended with the machine goes on as its entry
    /// says of restarts, with the notes that it had not read.
    pub(super) fn prepare_plain_start(
        &mut self,
        entry: &Entry,
        path: RestartPath,
    ) -> Result<Launch, Failure> {
        let name = &entry.agent.name;
        if !self.store.agent(name).is_some_and(AgentRecord::was_interrupted) {
            return self.prepare(entry, path, None);
        }
        let generation = self.members.generation(name).saturating_add(1);
        let unread = handoff::read_present(&self.state_dir, name).filter(|present| present.read_at.is_none());
        let notes = unread.as_ref().map(|present| handoff::notes_for_prompt(present, name));
        let prompt = mcp_restart_agents::reboot_prompt(generation, &notes.unwrap_or_default());
        let restart =
            (entry.agent.resume == config::Resume::Same).then_some((None, Restart { prompt: Some(&prompt) }));
        let launch = self.prepare(entry, path, restart)?;
        Ok(Launch { handoff: unread.map(Box::new), ..launch })
    }

    pub(super) fn prepare_restart(
        &mut self,
        entry: &Entry,
        path: RestartPath,
        handoff: &Handoff,
        asker: &Caller,
        resume: Option<Resume>,
    ) -> Result<Launch, Failure> {
        let name = &entry.agent.name;
        let notes = handoff::notes_for_prompt(handoff, name);
        let asker = describe(asker, name);
        let prompt = if handoff.rolled_back {
            mcp_restart_agents::rollback_prompt(&asker, handoff.generation, &notes, &handoff.config_diff)
        } else {
            mcp_restart_agents::restart_prompt(&asker, handoff.generation, &notes, &handoff.config_diff)
        };
        let restart = Restart { prompt: Some(&prompt) };
        let launch = self.prepare(entry, path, Some((resume, restart)))?;
        Ok(Launch { handoff: Some(Box::new(handoff.clone())), ..launch })
    }

    fn under_way(&self, key: &ReplayKey) -> Option<Ticket> {
        let mut pending = self.pending.iter();
        pending.find_map(|(ticket, pending)| match pending {
            Pending::Restart { replay, .. } if replay.contains(key) => Some(*ticket),
            _ => None,
        })
    }

    /// The number of the launch that a restart under way leads to. Its note is not left over from an earlier one.
    fn restart_under_way(&self, name: &str) -> Option<u64> {
        let intent = self.store.intent(name).filter(|intent| intent.goal == Goal::Restart);
        intent.map(|intent| intent.generation)
    }

    fn admit(&self, caller: &Caller, target: &str) -> Result<(), Failure> {
        self.check_open()?;
        rights::may_control(caller, self.control(caller), target)
    }

    /// What the config grants a calling agent; one that runs on without an entry may do as it could. Somebody
    /// who may be any agent has what each of them has, or nothing.
    pub(super) fn control(&self, caller: &Caller) -> Control {
        match caller {
            Caller::Agent { name } => {
                self.entry_or_launched(name).map_or(Control::SelfOnly, |agent| agent.control)
            }
            Caller::Unknown if self.restricts_anybody() => Control::None,
            Caller::Unknown | Caller::Operator | Caller::LocalUser { .. } | Caller::Supervisor => {
                Control::All
            }
        }
    }

    fn restricts_anybody(&self) -> bool {
        let listed = self.config.entries().iter().map(|entry| &*entry.agent);
        listed.chain(self.members.launched_entries()).any(|agent| agent.control != Control::All)
    }

    pub(super) fn entry_or_launched(&self, name: &str) -> Option<Arc<Agent>> {
        let entry = self.config.entry(name).map(|entry| Arc::clone(&entry.agent));
        entry.or_else(|| self.members.launched_entry(name))
    }

    /// Reads the config again, whatever its file looks like.
    pub(super) fn read_config(&mut self) -> Result<(), Failure> {
        if let Err(error) = self.config.read() {
            return Err(Failure::new(
                ErrorCode::ConfigInvalid,
                format!("the config cannot be used:\n{error}"),
            )
            .hint("nothing was stopped or started; mend the file and ask again"));
        }
        self.enlist();
        Ok(())
    }

    fn entry_read_again(&mut self, name: &str) -> Result<Entry, Failure> {
        self.read_config()?;
        self.config.entry(name).cloned().ok_or_else(|| self.unknown(name))
    }

    pub(super) fn prepare(
        &mut self,
        entry: &Entry,
        path: RestartPath,
        restart: Option<(Option<Resume>, Restart<'_>)>,
    ) -> Result<Launch, Failure> {
        let internal = |error| Failure::new(ErrorCode::Internal, format!("there is no randomness: {error}"));
        // A start begins a new conversation.
        let asked = restart.map_or(Some(Resume::Fresh), |(asked, _)| asked);
        let resume = sessions::resume(&entry.agent, asked);
        let choice = self.choose_session(&entry.agent, resume).map_err(internal)?;
        let restart = restart.map(|(_, restart)| restart);
        let token = self
            .store
            .token(&entry.agent.name)
            .map_err(|error| Failure::new(ErrorCode::Internal, format!("no token could be made: {error}")))?;
        let around = Surroundings {
            state_dir: &self.state_dir,
            socket: &self.socket,
            config_file: &self.config.in_force().file,
            url: self.url.as_deref(),
            token: &token,
            inherited: &self.inherited,
        };
        let prepared = self
            .check_namesake(&entry.agent.name)
            .and_then(|()| launch::prepare(&entry.agent, around, path, &choice, restart));
        if let Err(failure) = &prepared {
            let why = launch::bare_reason(&entry.agent, failure).to_owned();
            let refused = MachineEvent::Refused { at: Timestamp::now(), why };
            self.members.order(&entry.agent.name, Order::event(refused));
        }
        prepared
    }

    fn check_namesake(&self, name: &str) -> Result<(), Failure> {
        match self.members.namesake(name) {
            Some(other) => Err(Failure::new(
                ErrorCode::SpawnFailed,
                format!("{other} still runs, with which it would share its files"),
            )
            .hint(format!("`mcp-restartctl stop {other}` first"))),
            None => Ok(()),
        }
    }

    pub(super) fn ask(
        &mut self,
        pending: Pending,
        launch: Launch,
        path: RestartPath,
        mode: Mode,
    ) -> Ask<Launch> {
        let stop = self.members.as_possible(&launch.agent.name, stop_plan(Some(&launch.agent), path));
        let settle = launch.agent.settle;
        Ask { ticket: self.ticket(pending), plan: Plan { launch, settle, trial: None }, stop, mode }
    }

    pub(super) fn ticket(&mut self, pending: Pending) -> Ticket {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.pending.insert(ticket, pending);
        ticket
    }

    /// The failure for a name that nobody has.
    pub(super) fn unknown(&self, name: &str) -> Failure {
        if self.members.get(name).is_some_and(|member| member.report.process.is_some()) {
            return Failure::new(
                ErrorCode::UnknownAgent,
                format!("{name} runs, but is no longer in the config"),
            )
            .hint(format!("add it again, or end it with `mcp-restartctl stop {name}`"));
        }
        let names: Vec<&str> = self.config.entries().iter().map(|entry| &*entry.agent.name).collect();
        let hint = if names.is_empty() {
            format!("{} has no agents", self.config.in_force().file.display())
        } else {
            format!("the agents are: {}", names.join(", "))
        };
        Failure::new(ErrorCode::UnknownAgent, format!("there is no agent {name:?}")).hint(hint)
    }

    /// Whether the caller may read what is an agent's own.
    pub(super) fn check_reader(&self, caller: &Caller, name: &str) -> Result<(), Failure> {
        if !self.members.contains(name) {
            return Err(self.unknown(name));
        }
        rights::may_read(caller, self.control(caller), name)
    }

    /// The token of an agent and the endpoint, once it listens.
    pub(super) fn endpoint_of(&mut self, name: &str) -> std::io::Result<(String, Option<String>)> {
        Ok((self.store.token(name)?, self.url.clone()))
    }
}

/// What became of a restart that was asked for.
enum Accepted {
    Replayed(Box<RestartAnswer>),
    UnderWay(Ticket),
    Anew {
        entry: Entry,
        launch: Box<Launch>,
        trial: Option<Box<Trial<Launch>>>,
        config_diff: Vec<String>,
        replay: Option<ReplayKey>,
    },
}

/// A process that runs on without an entry, launched by an earlier daemon, is stopped by the defaults.
pub(super) fn stop_plan(agent: Option<&Agent>, path: RestartPath) -> StopPlan {
    const SIGTERM: i32 = 15;
    const GRACE: Duration = Duration::from_secs(10);
    const OWN_DELAY: Duration = Duration::from_millis(500);
    StopPlan {
        path,
        signal: agent.map_or(SIGTERM, |agent| agent.stop_signal.number()),
        grace: agent.map_or(GRACE, |agent| agent.graceful_timeout),
        own_delay: agent.map_or(OWN_DELAY, |agent| agent.self_restart_delay),
    }
}

/// Whether the agent asks for itself.
pub(super) fn is_own(caller: &Caller, target: &str) -> bool {
    matches!(caller, Caller::Agent { name } if name == target)
}

fn mode(caller: &Caller, target: &str, wait: bool) -> Mode {
    match caller {
        caller if is_own(caller, target) => Mode::Own,
        _ if wait => Mode::Wait,
        _ => Mode::NoWait,
    }
}

/// Who asked for a restart, in the words of the prompt.
fn describe(caller: &Caller, target: &str) -> String {
    match caller {
        Caller::Agent { name } if name == target => "yourself".to_owned(),
        Caller::Agent { name } => format!("the agent {name}"),
        Caller::Operator => "the operator".to_owned(),
        Caller::LocalUser { .. } => "a user of this machine".to_owned(),
        Caller::Supervisor => "the supervisor".to_owned(),
        Caller::Unknown => "somebody on this machine".to_owned(),
    }
}

fn check_note(note: Option<&str>) -> Result<(), Failure> {
    let Some(note) = note else { return Ok(()) };
    if note.len() > NOTE_MAX {
        return Err(invalid(&format!("the note has {} bytes, at most {NOTE_MAX} are kept", note.len())));
    }
    match note.chars().find(|character| character.is_control() && !matches!(character, '\n' | '\t')) {
        Some(character) => Err(invalid(&format!("the note contains the control character {character:?}"))),
        None => Ok(()),
    }
}

fn invalid(message: &str) -> Failure {
    Failure::new(ErrorCode::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_short_text() {
        assert!(check_note(Some("two\nlines\tand a tab")).is_ok());
        assert!(check_note(Some("\u{1b}[2J")).is_err());
        assert!(check_note(Some(&"x".repeat(NOTE_MAX))).is_ok());
        assert!(check_note(Some(&"x".repeat(NOTE_MAX + 1))).is_err());
    }

    #[test]
    fn who_restarts_itself_is_answered_first_whatever_it_says_about_waiting() {
        let own = Caller::Agent { name: "a".into() };
        assert_eq!(mode(&own, "a", true), Mode::Own);
        assert_eq!(mode(&own, "b", true), Mode::Wait);
        assert_eq!(mode(&Caller::Operator, "a", false), Mode::NoWait);
    }
}
