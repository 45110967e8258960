//! What an earlier daemon had begun and did not live to finish, and the agents that start with the daemon.

use super::adopt::Adopted;
use super::agent::Order;
use super::config_watch::Entry;
use super::handoff;
use super::intent::{Finish, Goal, Intent};
use super::requests::{is_own, stop_plan};
use super::task::{Audience, FleetTask, Pending};
use mcp_restart_protocol::answer::{ErrorCode, Failure, Recovered, RestartAnswer};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_supervisor::{Event as MachineEvent, Mode, StopAsk, StopPlan};

impl FleetTask {
    /// Takes up what is written down of each agent. Stops go on at once; launches wait for the endpoint, so
    /// that an agent has its tools from the moment it comes up. With `autostart` the agents that ask for it
    /// are to be launched too.
    pub(super) fn take_up(&mut self, adopted: Adopted, autostart: bool) {
        for (name, intent) in self.store.intents() {
            match adopted.finish(&name, &intent) {
                Finish::Done => self.note_done(&name, intent),
                Finish::Stop => self.stop_again(&name, intent),
                Finish::Launch { stop_begun } => {
                    if stop_begun {
                        let stop = self.stop_of(&name, &intent);
                        self.members.order(&name, Order::event(MachineEvent::StopFirst(stop)));
                    }
                    self.waiting.insert(name);
                }
            }
        }
        let fault = self.store.take_fault();
        let fault = fault.map(|text| Recovered { agent: None, text, attention: true });
        for told in fault.into_iter().chain(adopted.told) {
            self.tell(told);
        }
        self.discard_unconfirmed();
        if autostart {
            self.await_autostart();
        }
        self.find_trials(&adopted.living);
        if self.url.is_some() {
            self.launch_waiting();
        }
    }

    /// Launches what waits for the endpoint.
    pub(super) fn launch_waiting(&mut self) {
        self.resume_trials();
        if self.waiting.is_empty() || self.check_open().is_err() {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let readable = self.read_config();
        for name in waiting {
            let Some(intent) = self.store.intent(&name).cloned() else { continue };
            let launched = readable.clone().and_then(|()| self.launch_by_intent(&name, &intent));
            if let Err(failure) = launched {
                self.give_up(&name, &intent, &failure);
            }
        }
    }

    /// Says something about the daemon before: in the log, and to whoever asks for the status.
    pub(super) fn tell(&mut self, told: Recovered) {
        if told.attention {
            tracing::warn!("{}", told.text);
        } else {
            tracing::info!("{}", told.text);
        }
        self.recovered.push(told);
    }

    /// How something came out that nobody waits for any more.
    pub(super) fn tell_outcome(&mut self, name: &str, begun: &Intent, failure: Option<&Failure>) {
        let what = begun.what();
        // Whoever asked for something else since then has what they wanted.
        let attention = failure.is_some_and(|failure| failure.code != ErrorCode::Superseded);
        match failure {
            Some(failure) if begun.path() == RestartPath::Autostart && attention => {
                tracing::error!(agent = name, "autostart: {failure}");
            }
            Some(failure) if begun.path() == RestartPath::Autostart => {
                tracing::info!(agent = name, "autostart: {failure}");
            }
            None if begun.path() == RestartPath::Autostart => {}
            failure => {
                let came_out =
                    failure.map_or_else(|| "is done".to_owned(), |failure| format!("failed: {failure}"));
                self.tell(Recovered {
                    agent: Some(name.to_owned()),
                    text: format!("the {what} of {name}, which the daemon before had begun, {came_out}"),
                    attention,
                });
            }
        }
    }

    fn await_autostart(&mut self) {
        let entries = self.config.entries().iter().filter(|entry| entry.agent.autostart);
        let names: Vec<String> = entries.map(|entry| entry.agent.name.clone()).collect();
        for name in names {
            if !self.members.is_idle(&name) || self.waiting.contains(&name) {
                continue;
            }
            let generation = self.members.generation(&name).saturating_add(1);
            // Written down as well: a daemon that dies before has not started them.
            self.store.begin(&name, Intent::launch(Goal::Start, RestartPath::Autostart, generation));
            self.waiting.insert(name);
        }
    }

    fn launch_by_intent(&mut self, name: &str, intent: &Intent) -> Result<(), Failure> {
        let entry = self.config.entry(name).cloned().ok_or_else(|| self.unknown(name))?;
        match intent.goal {
            Goal::Restart => self.restart_again(&entry, intent),
            Goal::Start | Goal::Stop => self.start_again(&entry, intent),
        }
    }

    fn start_again(&mut self, entry: &Entry, intent: &Intent) -> Result<(), Failure> {
        let (name, path) = (&entry.agent.name, intent.path());
        let entry = &if path == RestartPath::Autostart { self.autostarted(entry) } else { entry.clone() };
        let launch = self.prepare_plain_start(entry, path)?;
        handoff::discard_next(&self.state_dir, name);
        self.order_launch(entry, None);
        let pending = Pending::Unattended {
            name: name.clone(),
            entry: Some(entry.agent.clone()),
            begun: Box::new(intent.clone()),
        };
        let ask = self.ask(pending, launch, path, Mode::Wait);
        let event =
            if self.members.is_idle(name) { MachineEvent::Start(ask) } else { MachineEvent::Restart(ask) };
        self.members.order(name, Order::event(event));
        Ok(())
    }

    fn restart_again(&mut self, entry: &Entry, intent: &Intent) -> Result<(), Failure> {
        let (name, path) = (&entry.agent.name, intent.path());
        let mut handoff = handoff::take_back(&self.state_dir, name, intent.generation);
        if !self.members.is_idle(name) {
            handoff.config_diff = self.config_diff(name, entry);
        }
        let asker = handoff::asker(&handoff);
        let own = handoff.notes.iter().any(|note| is_own(&note.from, name));
        let trial = self.prepare_trial(entry, &handoff, &asker, own);
        let launch = self.prepare_restart(entry, path, &handoff, &asker, intent.resume)?;
        self.order_launch(entry, trial.as_deref());
        let pending = Pending::Restart {
            name: name.clone(),
            entry: entry.agent.clone(),
            config_diff: handoff.config_diff,
            warnings: launch.warnings.clone(),
            replay: intent.requests.clone(),
            audience: Audience::Everybody(Box::new(intent.clone())),
            repeated: Vec::new(),
        };
        let mut ask = self.ask(pending, launch, path, Mode::Wait);
        ask.plan.trial = trial;
        self.members.order(name, Order::event(MachineEvent::Restart(ask)));
        Ok(())
    }

    /// The launch is refused: a process that runs is left as it is.
    fn give_up(&mut self, name: &str, intent: &Intent, failure: &Failure) {
        self.tell_outcome(name, intent, Some(failure));
        handoff::discard_next(&self.state_dir, name);
        self.store.forget_intent(name);
        if failure.code == ErrorCode::ConfigInvalid || failure.code == ErrorCode::UnknownAgent {
            let refused = MachineEvent::Refused { at: Timestamp::now(), why: failure.message.clone() };
            self.members.order(name, Order::event(refused));
        }
    }

    fn stop_again(&mut self, name: &str, intent: Intent) {
        let stop = self.stop_of(name, &intent);
        let entry = self.entry_or_launched(name);
        let ticket =
            self.ticket(Pending::Unattended { name: name.to_owned(), entry, begun: Box::new(intent) });
        let ask = StopAsk { ticket, stop, mode: Mode::Wait };
        self.members.order(name, Order::event(MachineEvent::Stop(ask)));
    }

    fn stop_of(&self, name: &str, intent: &Intent) -> StopPlan {
        let stop = stop_plan(self.entry_or_launched(name).as_deref(), intent.path());
        self.members.as_possible(name, stop)
    }

    /// It was done when the daemon died, but for the answers: whoever asks again gets them.
    fn note_done(&mut self, name: &str, intent: Intent) {
        self.store.forget_intent(name);
        let Some(agent) = self.members.view(name, self.config.entry(name)) else { return };
        let handoff = handoff::read_present(&self.state_dir, name);
        let handoff = handoff.filter(|handoff| handoff.generation == intent.generation);
        let answer = RestartAnswer {
            accepted: true,
            generation: intent.generation,
            agent,
            previous: None,
            config_diff: handoff.map(|handoff| handoff.config_diff).unwrap_or_default(),
            rolled_back: false,
            warnings: Vec::new(),
            replayed: false,
            replayed_at: None,
            delivery: None,
        };
        for key in intent.requests {
            key.remember(&mut self.store, &answer, intent.at);
        }
    }

    /// The note of a restart whose request was never accepted: the daemon died before that, or what it had
    /// written down is lost.
    fn discard_unconfirmed(&mut self) {
        let names: Vec<String> = self.members.iter().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            if self.store.intent(&name).is_none() && handoff::has_next(&self.state_dir, &name) {
                self.tell(Recovered {
                    text: format!(
                        "a restart of {name} was asked for and not begun when the daemon before died; it is not \
                         carried out"
                    ),
                    agent: Some(name.clone()),
                    attention: true,
                });
                handoff::discard_next(&self.state_dir, &name);
            }
        }
    }
}
