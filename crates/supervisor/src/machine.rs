//! The machine drawn in the crate's documentation.

mod trial;

use crate::after::{AfterStart, AfterStop, Ending, Waiter};
use crate::event::{Ask, Effect, Event, Mode, Outcome, Plan, StopAsk, StopPlan, Ticket, Trial, UnderWay};
use mcp_restart_protocol::agent::{AgentState, ExitReason, LastExit};
use mcp_restart_protocol::answer::Previous;
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::timestamp::Timestamp;
use std::time::{Duration, Instant};

/// How long a shim may take from its launch to the execution of the program: it waits up to ten seconds for
/// its predecessor's lock.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long after the end of the grace period a shim may take to report: five seconds of SIGKILL, and slack.
const KILL_LIMIT: Duration = Duration::from_secs(7);
/// Its number is the same on every system.
const SIGTERM: i32 = 15;
/// An answer that nobody reports as delivered counts as delivered after this time.
const DELIVERY_LIMIT: Duration = Duration::from_secs(1);

/// The state of one agent; see the drawing in the crate's documentation.
#[derive(Debug)]
pub struct Machine<L> {
    state: State<L>,
    generation: u64,
    last_exit: Option<LastExit>,
    closing: bool,
}

#[derive(Debug)]
enum State<L> {
    Idle(AgentState),
    Starting {
        before: AgentState,
        deadline: Instant,
        settle: Duration,
        trial: Option<Box<Trial<L>>>,
        waiters: Vec<Waiter>,
        after: AfterStart<L>,
    },
    Running {
        process: Process,
        settling: Option<Settling>,
        trial: Option<OnTrial<L>>,
        leaving: Option<Leaving<L>>,
    },
    Stopping {
        process: Process,
        deadline: Option<Instant>,
        tickets: Vec<Ticket>,
        then: AfterStop<L>,
    },
}

#[derive(Debug, Clone, Copy)]
struct Process {
    generation: u64,
    pid: u32,
    started_at: Timestamp,
}

#[derive(Debug)]
struct Settling {
    until: Instant,
    waiters: Vec<Waiter>,
}

/// The process has yet to live long enough for its launch to be one that stays up.
#[derive(Debug)]
struct OnTrial<L> {
    until: Instant,
    trial: Box<Trial<L>>,
}

/// The process asked for its own stop, which waits for the delivery of the answer.
#[derive(Debug)]
struct Leaving<L> {
    awaits: Option<Ticket>,
    due: Instant,
    stop: StopPlan,
    then: AfterStop<L>,
}

impl<L> Machine<L> {
    /// An agent that does not run.
    pub fn new(state: AgentState, generation: u64, last_exit: Option<LastExit>) -> Self {
        let state = match state {
            AgentState::Exited | AgentState::Failed => state,
            AgentState::Stopped | AgentState::Running | AgentState::Stopping => AgentState::Stopped,
        };
        Self { state: State::Idle(state), generation, last_exit, closing: false }
    }

    /// An agent whose process was started by an earlier daemon and lives.
    pub fn adopted(generation: u64, pid: u32, started_at: Timestamp, last_exit: Option<LastExit>) -> Self {
        let process = Process { generation, pid, started_at };
        let state = State::Running { process, settling: None, trial: None, leaving: None };
        Self { state, generation, last_exit, closing: false }
    }

    /// The state that users see; while a process is being started it is the state before.
    pub fn state(&self) -> AgentState {
        match &self.state {
            State::Idle(state) | State::Starting { before: state, .. } => *state,
            State::Running { .. } => AgentState::Running,
            State::Stopping { .. } => AgentState::Stopping,
        }
    }

    /// The process, its generation and its start, while there is one.
    pub fn process(&self) -> Option<(u32, u64, Timestamp)> {
        match &self.state {
            State::Running { process, .. } | State::Stopping { process, .. } => {
                Some((process.pid, process.generation, process.started_at))
            }
            State::Idle(_) | State::Starting { .. } => None,
        }
    }

    /// The number of the last launch.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// How the last process ended.
    pub fn last_exit(&self) -> Option<&LastExit> {
        self.last_exit.as_ref()
    }

    /// Whether neither a process nor the intent to start one is left.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle(_))
    }

    /// Whether it was told of the shutdown, so that nothing is launched any more.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether the end of the process is followed by a launch.
    pub fn will_launch(&self) -> bool {
        let then = match &self.state {
            State::Idle(_) | State::Starting { .. } | State::Running { leaving: None, .. } => return false,
            State::Running { leaving: Some(leaving), .. } => &leaving.then,
            State::Stopping { then, .. } => then,
        };
        matches!(then, AfterStop::Start { .. })
    }

    /// Whether a stop has given up on what is left of the tree.
    pub fn is_stuck(&self) -> bool {
        matches!(self.state, State::Stopping { deadline: None, .. })
    }

    /// Whether nothing is under way: no start, no stop that has not given up, no restart.
    pub fn is_steady(&self) -> bool {
        match &self.state {
            State::Idle(_) => true,
            State::Starting { .. } => false,
            State::Running { leaving, .. } => leaving.is_none(),
            State::Stopping { deadline, .. } => deadline.is_none(),
        }
    }

    /// What has been begun and has not come to its end, so that it has to be finished whatever happens.
    pub fn under_way(&self) -> Option<UnderWay> {
        let this = UnderWay::Launch { generation: self.generation };
        match &self.state {
            State::Idle(_) => None,
            State::Starting { after: AfterStart::Run, .. } => Some(this),
            State::Starting { after: AfterStart::Stop { then, .. }, .. }
            | State::Running { leaving: Some(Leaving { then, .. }), .. }
            | State::Stopping { then, .. } => Some(then.leads_to(self.generation)),
            State::Running { settling, leaving: None, .. } => settling.as_ref().map(|_| this),
        }
    }

    /// When [`Event::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Idle(_) => None,
            State::Starting { deadline, .. } => Some(*deadline),
            State::Running { settling, trial, leaving, .. } => {
                let settled = settling.as_ref().map(|settling| settling.until);
                let stayed_up = trial.as_ref().map(|trial| trial.until);
                let due = leaving.as_ref().map(|leaving| leaving.due);
                settled.into_iter().chain(stayed_up).chain(due).min()
            }
            State::Stopping { deadline, .. } => *deadline,
        }
    }

    /// Decides what an event leads to.
    pub fn handle(&mut self, event: Event<L>, now: Instant) -> Vec<Effect<L>> {
        let mut effects = Vec::new();
        match event {
            Event::Start(Ask { ticket, .. })
            | Event::Restart(Ask { ticket, .. })
            | Event::Stop(StopAsk { ticket, .. })
                if self.closing =>
            {
                effects.push(Effect::Answer(ticket, Outcome::ShuttingDown));
            }
            Event::Start(ask) => self.start(ask, now, &mut effects),
            Event::Restart(ask) => self.restart(ask, now, &mut effects),
            Event::Stop(ask) => self.stop(ask, now, &mut effects),
            Event::StopFirst(stop) if !self.closing => {
                self.begin_stop(stop, Vec::new(), AfterStop::Later, now, &mut effects);
            }
            Event::Shutdown(stop) => self.shut_down(stop, now, &mut effects),
            Event::Hurry => self.hurry(now, &mut effects),
            Event::Delivered(ticket) => self.delivered(ticket, now),
            Event::Started { generation, pid, at } if generation == self.generation => {
                self.started(Process { generation, pid, started_at: at }, now, &mut effects);
            }
            Event::SpawnFailed { generation, at, why } if generation == self.generation => {
                self.spawn_failed(at, &why, now, &mut effects);
            }
            Event::Exited { generation, exit } if generation == self.generation => {
                self.ended(Ending::Seen(exit), now, &mut effects);
            }
            Event::Lost { generation, at, leftovers } if generation == self.generation => {
                self.ended(Ending::Lost { at, leftovers }, now, &mut effects);
            }
            Event::OnTrial { generation, started_at, left, trial } if generation == self.generation => {
                self.resume_trial(started_at, left, trial, now, &mut effects);
            }
            Event::Refused { at, why } => self.refused(at, why),
            Event::StopIncomplete { generation, left } if generation == self.generation => {
                self.stop_incomplete(&Outcome::StopIncomplete(left), &mut effects);
            }
            Event::Tick => self.tick(now, &mut effects),
            // News of an earlier generation changes nothing.
            Event::StopFirst(_)
            | Event::Started { .. }
            | Event::SpawnFailed { .. }
            | Event::Exited { .. }
            | Event::Lost { .. }
            | Event::StopIncomplete { .. }
            | Event::OnTrial { .. } => {}
        }
        effects
    }

    fn start(&mut self, ask: Ask<L>, now: Instant, effects: &mut Vec<Effect<L>>) {
        match &self.state {
            State::Idle(_) | State::Stopping { .. } => self.launch_or_join(ask, false, now, effects),
            State::Starting { after: AfterStart::Stop { .. }, .. } => {
                self.launch_or_join(ask, false, now, effects);
            }
            State::Starting { after: AfterStart::Run, .. } | State::Running { .. } => {
                effects.push(Effect::Answer(ask.ticket, Outcome::AlreadyRunning));
            }
        }
    }

    fn restart(&mut self, ask: Ask<L>, now: Instant, effects: &mut Vec<Effect<L>>) {
        let State::Running { process, leaving, .. } = &mut self.state else {
            self.launch_or_join(ask, true, now, effects);
            return;
        };
        let previous_pid = Some(process.pid);
        let generation = self.generation.saturating_add(1);
        let awaits_delivery = ask.mode == Mode::Own;
        let Ask { ticket, plan, stop, mode } = ask;
        let waiters = match mode {
            Mode::Wait => vec![Waiter::new(ticket, true)],
            Mode::NoWait | Mode::Own => {
                effects.push(Effect::Answer(
                    ticket,
                    Outcome::Accepted { generation, previous_pid, awaits_delivery },
                ));
                Vec::new()
            }
        };
        match (leaving, mode) {
            (Some(leaving), _) => leaving.then.join(plan, waiters),
            (None, Mode::Own) => {
                let then = AfterStop::Start { plan, waiters };
                self.leave(ticket, stop, then, now);
            }
            (None, Mode::Wait | Mode::NoWait) => {
                self.begin_stop(stop, Vec::new(), AfterStop::Start { plan, waiters }, now, effects);
            }
        }
    }

    /// A start, or a restart of an agent that is not running at this moment.
    fn launch_or_join(&mut self, ask: Ask<L>, restart: bool, now: Instant, effects: &mut Vec<Effect<L>>) {
        let Ask { ticket, plan, stop, mode } = ask;
        let (generation, previous_pid) = match &self.state {
            State::Idle(_) | State::Starting { .. } => (self.generation.saturating_add(1), None),
            State::Running { process, .. } | State::Stopping { process, .. } => {
                (self.generation.saturating_add(1), Some(process.pid))
            }
        };
        let waiters = match mode {
            Mode::Wait => vec![Waiter::new(ticket, restart)],
            Mode::NoWait | Mode::Own => {
                let accepted = Outcome::Accepted { generation, previous_pid, awaits_delivery: false };
                effects.push(Effect::Answer(ticket, accepted));
                Vec::new()
            }
        };
        match &mut self.state {
            State::Idle(before) => {
                let before = *before;
                self.launch(before, plan, waiters, now, effects);
            }
            State::Starting { after: after @ AfterStart::Run, .. } => {
                *after =
                    AfterStart::Stop { stop, tickets: Vec::new(), then: AfterStop::Start { plan, waiters } };
            }
            State::Starting { after: AfterStart::Stop { then, .. }, .. } => then.join(plan, waiters),
            State::Stopping { process, deadline, then, .. } => {
                if deadline.is_none() {
                    // An earlier stop gave up on what is left; whoever asks now waits for another try.
                    *deadline = Some(now + stop.grace + KILL_LIMIT);
                    let generation = process.generation;
                    effects.push(stop.of(generation));
                }
                then.join(plan, waiters);
            }
            State::Running { .. } => {}
        }
    }

    fn stop(&mut self, ask: StopAsk, now: Instant, effects: &mut Vec<Effect<L>>) {
        let StopAsk { ticket, stop, mode } = ask;
        let previous_pid = self.process().map(|(pid, ..)| pid);
        if self.is_idle() {
            effects.push(Effect::Answer(ticket, Outcome::NotRunning));
            return;
        }
        let mut tickets = vec![ticket];
        if mode != Mode::Wait {
            let awaits_delivery = mode == Mode::Own && matches!(self.state, State::Running { .. });
            let accepted = Outcome::Accepted { generation: self.generation, previous_pid, awaits_delivery };
            effects.push(Effect::Answer(ticket, accepted));
            tickets.clear();
        }
        match &mut self.state {
            State::Idle(_) => {}
            State::Starting { after, .. } => after.stop(stop, tickets, effects),
            State::Running { leaving: Some(leaving), .. } if mode == Mode::Own => {
                leaving.then.supersede(&Outcome::Superseded, effects);
            }
            State::Running { .. } if mode == Mode::Own => self.leave(ticket, stop, AfterStop::Stay, now),
            State::Running { .. } => self.begin_stop(stop, tickets, AfterStop::Stay, now, effects),
            State::Stopping { process, deadline, tickets: waiting, then } => {
                then.supersede(&Outcome::Superseded, effects);
                waiting.append(&mut tickets);
                deadline.get_or_insert(now + stop.grace + KILL_LIMIT);
                effects.push(stop.of(process.generation));
            }
        }
    }

    fn shut_down(&mut self, stop: StopPlan, now: Instant, effects: &mut Vec<Effect<L>>) {
        self.closing = true;
        match &mut self.state {
            State::Idle(_) => {}
            State::Starting { after, .. } => after.stop(stop, Vec::new(), effects),
            State::Running { .. } => self.begin_stop(stop, Vec::new(), AfterStop::Stay, now, effects),
            State::Stopping { then, .. } => then.supersede(&Outcome::ShuttingDown, effects),
        }
    }

    fn hurry(&mut self, now: Instant, effects: &mut Vec<Effect<L>>) {
        match &mut self.state {
            State::Stopping { process, deadline, .. } => {
                *deadline = Some(now + KILL_LIMIT);
                effects.push(Effect::StopTree {
                    generation: process.generation,
                    path: RestartPath::DaemonShutdown,
                    signal: SIGTERM,
                    grace: Duration::ZERO,
                });
            }
            State::Starting { after: AfterStart::Stop { stop, .. }, .. } => stop.grace = Duration::ZERO,
            State::Idle(_) | State::Starting { .. } | State::Running { .. } => {}
        }
    }

    fn delivered(&mut self, ticket: Ticket, now: Instant) {
        if let State::Running { leaving: Some(leaving), .. } = &mut self.state
            && leaving.awaits == Some(ticket)
        {
            leaving.awaits = None;
            leaving.due = now + leaving.stop.own_delay;
        }
    }

    fn started(&mut self, process: Process, now: Instant, effects: &mut Vec<Effect<L>>) {
        let State::Starting { settle, trial, waiters, after, .. } = &mut self.state else { return };
        let (settle, trial, waiters) = (*settle, trial.take(), std::mem::take(waiters));
        let after = std::mem::replace(after, AfterStart::Run);
        let trial = trial.map(|trial| OnTrial::begin(trial, now));
        let settling = Some(Settling { until: now + settle, waiters });
        self.state = State::Running { process, settling, trial, leaving: None };
        match after {
            AfterStart::Stop { stop, tickets, then } => self.begin_stop(stop, tickets, then, now, effects),
            AfterStart::Run => self.tick(now, effects),
        }
    }

    fn spawn_failed(&mut self, at: Timestamp, why: &str, now: Instant, effects: &mut Vec<Effect<L>>) {
        let State::Starting { trial, waiters, after, .. } = &mut self.state else { return };
        let (trial, waiters) = (trial.take(), std::mem::take(waiters));
        let after = std::mem::replace(after, AfterStart::Run);
        self.state = State::Idle(AgentState::Failed);
        self.note_failure(at, why.to_owned());
        if let (Some(trial), AfterStart::Run) = (trial, &after) {
            return self.roll_back(*trial, waiters, now, effects);
        }
        effects.extend(
            waiters
                .into_iter()
                .map(|waiter| Effect::Answer(waiter.ticket, Outcome::SpawnFailed(why.to_owned()))),
        );
        if let AfterStart::Stop { tickets, then, .. } = after {
            effects.extend(tickets.into_iter().map(|ticket| Effect::Answer(ticket, Outcome::Stopped)));
            if let AfterStop::Start { plan, waiters } = then {
                self.launch(AgentState::Failed, plan, waiters, now, effects);
            }
        }
    }

    fn ended(&mut self, ending: Ending, now: Instant, effects: &mut Vec<Effect<L>>) {
        match std::mem::replace(&mut self.state, State::Idle(AgentState::Exited)) {
            idle @ State::Idle(_) => self.state = idle,
            starting @ State::Starting { .. } => {
                self.state = starting;
                self.drop_trial();
                self.spawn_failed(ending.at(), "the shim ended without a word", now, effects);
            }
            State::Running { process, settling, trial, leaving } => {
                let waiters = settling.map(|settling| settling.waiters).unwrap_or_default();
                let failed = trial.filter(|trial| leaving.is_none() && trial.is_failed_by(&ending, process));
                let (reason, then) = match leaving {
                    None => (ExitReason::Exited, None),
                    Some(Leaving { then: AfterStop::Stay, .. }) => (ExitReason::Stop, Some(AfterStop::Stay)),
                    Some(Leaving { then, .. }) => (ExitReason::Restart, Some(then)),
                };
                let exit = self.note_exit(ending, reason);
                if let Some(OnTrial { trial, .. }) = failed {
                    return self.roll_back(*trial, waiters, now, effects);
                }
                for waiter in waiters {
                    effects.push(Effect::Answer(waiter.ticket, Outcome::ExitedEarly(exit.clone())));
                }
                if let Some(then) = then {
                    self.after_stop(process, &exit, then, now, effects);
                }
            }
            State::Stopping { process, tickets, then, .. } => {
                let reason = match then {
                    AfterStop::Stay if self.closing => ExitReason::Shutdown,
                    AfterStop::Stay => ExitReason::Stop,
                    AfterStop::Later | AfterStop::Start { .. } => ExitReason::Restart,
                };
                let exit = self.note_exit(ending, reason);
                effects.extend(tickets.into_iter().map(|ticket| Effect::Answer(ticket, Outcome::Stopped)));
                self.after_stop(process, &exit, then, now, effects);
            }
        }
    }

    fn after_stop(
        &mut self,
        process: Process,
        exit: &LastExit,
        then: AfterStop<L>,
        now: Instant,
        effects: &mut Vec<Effect<L>>,
    ) {
        self.state = State::Idle(AgentState::Stopped);
        if let AfterStop::Start { plan, mut waiters } = then {
            for waiter in &mut waiters {
                waiter.previous = Some(Previous { pid: process.pid, exit: Some(exit.clone()) });
            }
            self.launch(AgentState::Stopping, plan, waiters, now, effects);
        }
    }

    fn stop_incomplete(&mut self, outcome: &Outcome, effects: &mut Vec<Effect<L>>) {
        let State::Stopping { deadline, tickets, then, .. } = &mut self.state else { return };
        *deadline = None;
        effects.extend(tickets.drain(..).map(|ticket| Effect::Answer(ticket, outcome.clone())));
        // A new process beside what is left of the old one would be a second one.
        then.supersede(outcome, effects);
    }

    fn tick(&mut self, now: Instant, effects: &mut Vec<Effect<L>>) {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        match &mut self.state {
            State::Idle(_) => {}
            State::Starting { .. } => {
                effects.push(Effect::Abandon { generation: self.generation });
                let seconds = START_LIMIT.as_secs();
                let why = format!("its shim did not report within {seconds} seconds");
                self.drop_trial();
                self.spawn_failed(Timestamp::now(), &why, now, effects);
            }
            State::Running { settling, trial, leaving, .. } => {
                trial.take_if(|trial| trial.until <= now);
                if let Some(settled) = settling.take_if(|settling| settling.until <= now) {
                    effects.extend(settled.waiters.into_iter().map(Waiter::succeed));
                }
                if let Some(Leaving { stop, then, .. }) = leaving.take_if(|leaving| leaving.due <= now) {
                    self.begin_stop(stop, Vec::new(), then, now, effects);
                }
            }
            State::Stopping { .. } => self.stop_incomplete(&Outcome::StopUnreported, effects),
        }
    }

    /// The process lives on until its answer was delivered, or is taken for delivered.
    fn leave(&mut self, ticket: Ticket, stop: StopPlan, then: AfterStop<L>, now: Instant) {
        if let State::Running { leaving, .. } = &mut self.state {
            let due = now + DELIVERY_LIMIT + stop.own_delay;
            *leaving = Some(Leaving { awaits: Some(ticket), due, stop, then });
        }
    }

    fn begin_stop(
        &mut self,
        stop: StopPlan,
        tickets: Vec<Ticket>,
        mut then: AfterStop<L>,
        now: Instant,
        effects: &mut Vec<Effect<L>>,
    ) {
        let State::Running { process, settling, leaving, .. } = &mut self.state else { return };
        let process = *process;
        let outcome = if self.closing { Outcome::ShuttingDown } else { Outcome::Superseded };
        let settling = settling.take().into_iter().flat_map(|settling| settling.waiters);
        match &mut then {
            // Whoever still waits for the process that is replaced wants one that lives.
            AfterStop::Start { waiters, .. } => waiters.extend(settling),
            AfterStop::Stay | AfterStop::Later => {
                effects.extend(settling.map(|waiter| Effect::Answer(waiter.ticket, outcome.clone())));
            }
        }
        if let Some(mut leaving) = leaving.take() {
            leaving.then.supersede(&outcome, effects);
        }
        let generation = process.generation;
        effects.push(stop.of(generation));
        self.state =
            State::Stopping { process, deadline: Some(now + stop.grace + KILL_LIMIT), tickets, then };
    }

    fn launch(
        &mut self,
        before: AgentState,
        plan: Plan<L>,
        waiters: Vec<Waiter>,
        now: Instant,
        effects: &mut Vec<Effect<L>>,
    ) {
        self.generation = self.generation.saturating_add(1);
        let Plan { launch, settle, trial } = plan;
        effects.push(Effect::Launch { generation: self.generation, launch });
        let (deadline, after) = (now + START_LIMIT, AfterStart::Run);
        self.state = State::Starting { before, deadline, settle, trial, waiters, after };
    }

    /// Whoever looks at an agent that does not run sees why it could not be started.
    fn refused(&mut self, at: Timestamp, why: String) {
        if let State::Idle(state) = &mut self.state {
            *state = AgentState::Failed;
            self.note_failure(at, why);
        }
    }

    fn note_failure(&mut self, at: Timestamp, why: String) {
        let exit = LastExit::unseen(at, ExitReason::SpawnFailed);
        self.last_exit = Some(LastExit { message: Some(why), ..exit });
    }

    fn note_exit(&mut self, ending: Ending, reason: ExitReason) -> LastExit {
        let exit = ending.into_last_exit(reason);
        self.last_exit = Some(exit.clone());
        exit
    }
}

impl StopPlan {
    fn of<L>(self, generation: u64) -> Effect<L> {
        Effect::StopTree { generation, path: self.path, signal: self.signal, grace: self.grace }
    }
}
