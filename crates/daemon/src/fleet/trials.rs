//! How the fleet task has launches tried, refuses those that failed, and goes on with the trials of the daemon before.

use super::agent::{Order, Report};
use super::config_watch::Entry;
use super::handoff;
use super::intent::{Goal, Living};
use super::launch::Launch;
use super::rollback::Unfinished;
use super::store::Store;
use super::task::FleetTask;
use mcp_restart_config::Agent;
use mcp_restart_protocol::agent::{AgentState, ExitReason};
use mcp_restart_protocol::answer::{Caller, ErrorCode, Failure, Handoff, Recovered};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_supervisor::{Event as MachineEvent, Trial};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

impl FleetTask {
    /// Refuses a launch that was rolled back and has not changed since.
    pub(super) fn check_known_bad(&self, agent: &Agent, force: bool) -> Result<(), Failure> {
        let name = &agent.name;
        let Some(record) = self.store.agent(name).filter(|_| !force) else { return Ok(()) };
        if !record.launches.is_known_bad(agent) {
            return Ok(());
        }
        let mut message = format!("this launch of {name} was rolled back before, and has not changed since");
        if let Some(good) = record.launches.last_good() {
            let fields = good.diff(agent).join(", ");
            message = format!("{message}; from the last launch that stayed up it differs in {fields}");
        }
        Err(Failure::new(ErrorCode::LaunchKnownBad, message).hint(format!(
            "mend the entry of {name}; if it is what it runs that was mended, `mcp-restartctl restart {name} --force`"
        )))
    }

    /// What takes the place of a restart's launch if that does not live; none, if it is not on trial.
    pub(super) fn prepare_trial(
        &mut self,
        entry: &Entry,
        handoff: &Handoff,
        asker: &Caller,
        own: bool,
    ) -> Option<Box<Trial<Launch>>> {
        let launches = &mut self.store.agent_mut(&entry.agent.name).launches;
        if own {
            launches.asks_for_itself();
        }
        let (within, good) = launches.trial_of(&entry.agent, own)?;
        let next = Handoff { generation: handoff.generation.saturating_add(1), ..handoff.clone() };
        self.trial(within, &good, next, asker)
    }

    /// What is started with the daemon: the entry, or what stayed up before, if that launch is known to be bad.
    pub(super) fn autostarted(&mut self, entry: &Entry) -> Entry {
        let name = &entry.agent.name;
        let Err(known_bad) = self.check_known_bad(&entry.agent, false) else { return entry.clone() };
        let good = self.store.agent(name).and_then(|record| record.launches.last_good()).cloned();
        let Some(agent) = good else { return entry.clone() };
        self.tell(Recovered {
            agent: Some(name.clone()),
            text: format!("{}; that last one was started", known_bad.message),
            attention: true,
        });
        Entry { hash: agent.fingerprint(), agent }
    }

    /// Writes down which entry is about to be launched.
    pub(super) fn order_launch(&mut self, entry: &Entry, trial: Option<&Trial<Launch>>) {
        let launches = &mut self.store.agent_mut(&entry.agent.name).launches;
        launches.order(&entry.agent, trial.map(|trial| trial.within));
    }

    /// Names of the fields in which an entry differs from the launch of the running process.
    pub(super) fn config_diff(&self, name: &str, entry: &Entry) -> Vec<String> {
        let record = self.store.agent(name).filter(|_| self.members.process(name).is_some());
        match record.and_then(|record| record.launches.entry(self.members.generation(name))) {
            Some(present) => present.diff(&entry.agent),
            _ => self.members.diff(name, entry),
        }
    }

    /// Brings what is kept of an agent's launches to what its task tells.
    pub(super) fn note_launch(&mut self, report: &Report) {
        let Report { name, generation, .. } = report;
        let Some(record) = self.store.agent(name) else { return };
        let launches = &record.launches;
        let is_new = launches.generation().is_none_or(|earlier| earlier < *generation);
        let is_proved = report.stays_up && (is_new || launches.is_to_prove(*generation));
        let is_over = report.process.is_none() && report.under_way.is_none() && !self.trials.contains(name);
        let is_ended = is_over && launches.unfinished().is_some();
        let is_quiet =
            report.under_way.is_none() && self.members.is_latest(report) && !self.waiting.contains(name);
        let is_forgotten = is_quiet && launches.something_comes();
        let falls_back = report.last_exit.as_ref().is_some_and(|exit| exit.reason == ExitReason::RolledBack);
        if is_new && falls_back {
            self.note_rollback(name, *generation);
        }
        if is_new && let (Some((.., started_at)), Some(launched)) = (report.process, &report.launched) {
            self.store.agent_mut(name).launches.lives(*generation, launched.hash, started_at);
        }
        if is_forgotten {
            self.store.agent_mut(name).launches.nothing_comes();
        }
        if is_proved {
            self.store.agent_mut(name).launches.stays_up(*generation);
        }
        if is_ended {
            self.store.agent_mut(name).launches.end_trial();
        }
    }

    /// The launch before this one failed, and this one takes its place; nobody asked for it.
    fn note_rollback(&mut self, name: &str, generation: u64) {
        self.store.agent_mut(name).launches.fails();
        self.store.note_rolled_back(name, generation.saturating_sub(1));
        let begun = self.store.intent(name);
        if begun.is_some_and(|intent| intent.goal != Goal::Stop && intent.generation < generation) {
            // What failed is not to be begun once more by the next daemon.
            self.store.forget_intent(name);
        }
    }

    /// Finds the trials that the daemon before had begun, of processes that live and of those that ended within
    /// their time. Where something else is under way, that goes on instead.
    pub(super) fn find_trials(&mut self, living: &BTreeMap<String, Living>) {
        let records = self.store.agents();
        let unfinished =
            records.filter_map(|(name, record)| Some((name.to_owned(), record.launches.unfinished()?)));
        for (name, trial) in unfinished.collect::<Vec<_>>() {
            let is_overtaken = self.store.intent(&name).is_some() || self.waiting.contains(&name);
            let lives = living.get(&name).map(|living| living.generation);
            if !is_overtaken && lives.is_none_or(|generation| generation == trial.generation) {
                self.trials.push(name);
            }
        }
    }

    /// Goes on with those trials: what takes the place of a launch that fails is known by now.
    pub(super) fn resume_trials(&mut self) {
        for name in std::mem::take(&mut self.trials) {
            let unfinished = self.store.agent(&name).and_then(|record| record.launches.unfinished());
            let Some(Unfinished { generation, started_at, within, fallback }) = unfinished else { continue };
            let before = handoff::read_present(&self.state_dir, &name);
            let next = Handoff {
                generation: generation.saturating_add(1),
                ..before.unwrap_or_else(|| handoff::without_notes(&name, generation))
            };
            let asker = handoff::asker(&next);
            let Some(trial) = self.trial(within, &fallback, next, &asker) else { continue };
            let left =
                within.saturating_sub(Duration::from_millis(Timestamp::now().millis_since(started_at)));
            let event = MachineEvent::OnTrial { generation, started_at, left, trial };
            self.members.order(&name, Order::event(event));
        }
    }

    /// A fallback that cannot be launched is none: then there is no trial.
    fn trial(
        &mut self,
        within: Duration,
        good: &Arc<Agent>,
        next: Handoff,
        asker: &Caller,
    ) -> Option<Box<Trial<Launch>>> {
        let entry = Entry { agent: Arc::clone(good), hash: good.fingerprint() };
        let next = Handoff { rolled_back: true, read_at: None, ..next };
        match self.prepare_restart(&entry, RestartPath::Rollback, &next, asker, None) {
            Ok(fallback) => Some(Box::new(Trial { within, fallback, settle: good.settle })),
            Err(failure) => {
                tracing::warn!(agent = good.name, %failure, "the last launch that stayed up cannot be used again");
                None
            }
        }
    }
}

/// A launch that was ordered in the place of one that failed and never came gives its number back.
pub(super) fn take_back_numbers(living: &BTreeMap<String, Living>, store: &mut Store) {
    let records = store.agents();
    let found = records.filter_map(|(name, record)| {
        let trial = record.launches.unfinished()?;
        let lives = living.get(name).is_some_and(|living| living.generation > trial.generation);
        (!lives && record.intent.is_none() && record.generation > trial.generation)
            .then(|| (name.to_owned(), trial.generation))
    });
    for (name, generation) in found.collect::<Vec<_>>() {
        let record = store.agent_mut(&name);
        (record.generation, record.state) = (generation, Some(AgentState::Exited));
    }
}
