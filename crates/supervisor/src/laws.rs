//! The laws of the machine, over random sequences of events in a world that plays the shims.

use crate::{Ask, Effect, Event, Machine, Mode, Outcome, Plan, StopAsk, StopPlan, Ticket, Trial, UnderWay};
use mcp_restart_protocol::agent::{AgentState, ExitReason, LastExit};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::shim::ShimExit;
use mcp_restart_protocol::timestamp::Timestamp;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const STOP: StopPlan = StopPlan {
    path: RestartPath::CtlStop,
    signal: 15,
    grace: Duration::from_secs(10),
    own_delay: Duration::from_millis(500),
};
const SETTLE: Duration = Duration::from_millis(200);
const TRIAL: Duration = Duration::from_secs(15);
/// The fallback of a launch is that with this much added to it.
const FALLBACK: u64 = 1_000_000;

#[derive(Debug, Clone)]
enum Move {
    Start(Mode),
    Restart(Mode),
    RestartOnTrial(Mode),
    Stop(Mode),
    StopFirst,
    Shutdown,
    Hurry,
    Deliver,
    ShimStarts,
    ShimFails,
    TreeEnds,
    ProcessEndsByItself,
    /// So many milliseconds after it was started.
    ProcessEndedAfter(u64),
    ShimDies,
    StopIncomplete,
    OldNews,
    TimePasses(u64),
}

/// Everything around the machine: the one shim that can hold the lock, the requests and the clock.
struct World {
    machine: Machine<u64>,
    now: Instant,
    next_ticket: u64,
    /// How each request was answered so far.
    answers: BTreeMap<Ticket, Option<Outcome>>,
    last_own: Option<Ticket>,
    /// Launches that were asked for and have neither failed nor ended.
    living: Vec<(u64, bool)>,
    stop_asked: bool,
    closing: bool,
    highest: u64,
    launched: Vec<u64>,
}

impl World {
    fn new() -> Self {
        Self {
            machine: Machine::new(AgentState::Stopped, 0, None),
            now: Instant::now(),
            next_ticket: 0,
            answers: BTreeMap::new(),
            last_own: None,
            living: Vec::new(),
            stop_asked: false,
            closing: false,
            highest: 0,
            launched: Vec::new(),
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.answers.insert(Ticket(self.next_ticket), None);
        Ticket(self.next_ticket)
    }

    fn ask(&mut self, mode: Mode) -> Ask<u64> {
        let ticket = self.ticket();
        if mode == Mode::Own {
            self.last_own = Some(ticket);
        }
        Ask { ticket, plan: Plan { launch: ticket.0, settle: SETTLE, trial: None }, stop: STOP, mode }
    }

    fn ask_on_trial(&mut self, mode: Mode) -> Ask<u64> {
        let mut ask = self.ask(mode);
        let fallback = ask.plan.launch + FALLBACK;
        ask.plan.trial = Some(Box::new(Trial { within: TRIAL, fallback, settle: SETTLE }));
        ask
    }

    fn feed(&mut self, event: Event<u64>) {
        let effects = self.machine.handle(event, self.now);
        for effect in effects {
            self.carry_out(effect);
        }
        self.check();
    }

    fn carry_out(&mut self, effect: Effect<u64>) {
        match effect {
            Effect::Launch { generation, launch } => {
                assert!(!self.closing, "launched after shutdown began");
                assert!(self.living.is_empty(), "launched {generation} beside {:?}", self.living);
                assert!(generation > self.highest, "generation {generation} after {}", self.highest);
                self.highest = generation;
                self.living.push((generation, false));
                if launch >= FALLBACK {
                    assert_eq!(
                        self.launched.last(),
                        Some(&(launch - FALLBACK)),
                        "the fallback of another launch"
                    );
                    assert!(!self.machine.is_on_trial(), "a fallback is on no trial");
                    assert_eq!(
                        self.machine.last_exit().map(|exit| exit.reason),
                        Some(ExitReason::RolledBack)
                    );
                    assert!(!self.stop_asked, "a process that was to be stopped is not rolled back");
                }
                self.launched.push(launch);
                self.stop_asked = false;
            }
            Effect::StopTree { generation, .. } => {
                assert_eq!(self.living.first().map(|(living, _)| *living), Some(generation));
                self.stop_asked = true;
            }
            Effect::Abandon { generation } => self.living.retain(|(living, _)| *living != generation),
            Effect::Answer(ticket, outcome) => {
                let slot = self.answers.get_mut(&ticket).expect("an answer to a request that was made");
                assert!(slot.is_none(), "{ticket:?} answered twice: {slot:?}, {outcome:?}");
                *slot = Some(outcome);
            }
        }
    }

    fn check(&self) {
        let waiting = self.answers.values().any(Option::is_none);
        if waiting || self.machine.state() == AgentState::Stopping && self.machine.deadline().is_some() {
            assert!(
                self.machine.deadline().is_some(),
                "somebody waits and nothing is due: {:?}",
                self.machine
            );
        }
        assert_eq!(self.machine.generation(), self.highest);
        match self.machine.under_way() {
            // A daemon that dies now leaves nothing to be finished.
            None => assert!(!waiting, "somebody waits and nothing is under way: {:?}", self.machine),
            Some(UnderWay::Launch { generation }) => {
                assert!((self.highest..=self.highest + 1).contains(&generation));
            }
            Some(UnderWay::Stop { generation }) => assert_eq!(generation, self.highest),
        }
        assert!(self.machine.process().is_none_or(|(_, generation, _)| generation == self.highest));
    }

    /// What the shim of the living launch may truthfully say at this moment.
    fn step(&mut self, step: &Move) {
        let generation = self.highest;
        let living = self.living.first().copied();
        match (step, living) {
            (Move::Start(mode), _) => {
                let ask = self.ask(*mode);
                self.feed(Event::Start(ask));
            }
            (Move::Restart(mode), _) => {
                let ask = self.ask(*mode);
                self.feed(Event::Restart(ask));
            }
            (Move::RestartOnTrial(mode), _) => {
                let ask = self.ask_on_trial(*mode);
                self.feed(Event::Restart(ask));
            }
            (Move::Stop(mode), _) => {
                let ask = self.ask(*mode);
                self.feed(Event::Stop(StopAsk { ticket: ask.ticket, stop: STOP, mode: *mode }));
            }
            (Move::StopFirst, _) => self.feed(Event::StopFirst(STOP)),
            (Move::Shutdown, _) => {
                self.closing = true;
                self.feed(Event::Shutdown(STOP));
            }
            (Move::Hurry, _) => self.feed(Event::Hurry),
            (Move::Deliver, _) => {
                if let Some(ticket) = self.last_own {
                    self.feed(Event::Delivered(ticket));
                }
            }
            (Move::ShimStarts, Some((_, false))) => {
                self.living = vec![(generation, true)];
                self.feed(Event::Started { generation, pid: 100, at: Timestamp(1) });
            }
            (Move::ShimFails, Some((_, false))) => {
                self.living.clear();
                self.feed(Event::SpawnFailed { generation, at: Timestamp(1), why: "no".into() });
            }
            (Move::TreeEnds, Some((_, true))) if self.stop_asked => self.end(generation, false, 1),
            (Move::ProcessEndsByItself, Some((_, true))) => self.end(generation, true, 1),
            (Move::ProcessEndedAfter(millis), Some((_, true))) => self.end(generation, true, *millis),
            (Move::ShimDies, Some(_)) => {
                self.living.clear();
                self.feed(Event::Lost { generation, at: Timestamp(2), leftovers: 1 });
            }
            (Move::StopIncomplete, Some((_, true))) if self.stop_asked => {
                self.feed(Event::StopIncomplete { generation, left: "7 (sh), uninterruptible".into() });
            }
            (Move::OldNews, _) if generation > 1 => {
                self.feed(Event::Exited { generation: generation - 1, exit: exit(true) });
            }
            (Move::TimePasses(millis), _) => {
                self.now += Duration::from_millis(*millis);
                self.feed(Event::Tick);
            }
            _ => {}
        }
    }

    fn end(&mut self, generation: u64, by_itself: bool, after_millis: u64) {
        self.living.clear();
        let exit = ShimExit { at: Timestamp(1 + after_millis), ..exit(by_itself) };
        self.feed(Event::Exited { generation, exit });
    }

    /// Lets the world play fair until nothing is due any more.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.step(&Move::ShimStarts);
            self.step(&Move::TreeEnds);
            self.step(&Move::TimePasses(1_500));
        }
    }
}

fn exit(by_itself: bool) -> ShimExit {
    ShimExit { code: Some(0), signal: None, at: Timestamp(2), by_itself, forced: false, leftovers: 0 }
}

fn any_move() -> impl Strategy<Value = Move> {
    let mode = prop_oneof![Just(Mode::Wait), Just(Mode::NoWait), Just(Mode::Own)];
    prop_oneof![
        2 => mode.clone().prop_map(Move::Start),
        4 => mode.clone().prop_map(Move::Restart),
        3 => mode.clone().prop_map(Move::RestartOnTrial),
        3 => mode.prop_map(Move::Stop),
        1 => Just(Move::StopFirst),
        1 => Just(Move::Hurry),
        2 => Just(Move::Deliver),
        6 => Just(Move::ShimStarts),
        1 => Just(Move::ShimFails),
        4 => Just(Move::TreeEnds),
        1 => Just(Move::ProcessEndsByItself),
        1 => (0_u64..30_000).prop_map(Move::ProcessEndedAfter),
        1 => Just(Move::ShimDies),
        1 => Just(Move::StopIncomplete),
        1 => Just(Move::OldNews),
        3 => (1_u64..30_000).prop_map(Move::TimePasses),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(500), ..ProptestConfig::default() })]

    /// The assertions in `World` are the laws: at most one process, exactly one answer, generations
    /// that never go down, a deadline whenever somebody waits, nothing launched after shutdown began.
    #[test]
    fn the_laws_hold_in_every_order_of_events(moves in proptest::collection::vec(any_move(), 1..60), shutdown in any::<bool>()) {
        let mut world = World::new();
        for step in &moves {
            world.step(step);
        }
        if shutdown {
            world.step(&Move::Shutdown);
        }
        world.settle();
        let unanswered: Vec<_> = world.answers.iter().filter(|(_, outcome)| outcome.is_none()).collect();
        prop_assert!(unanswered.is_empty(), "{unanswered:?} never answered: {:?}", world.machine);
        if shutdown {
            prop_assert!(world.machine.is_idle(), "{:?}", world.machine);
        }
    }
}

fn running() -> World {
    let mut world = World::new();
    world.step(&Move::Start(Mode::Wait));
    world.step(&Move::ShimStarts);
    world.step(&Move::TimePasses(200));
    assert_eq!(world.answers[&Ticket(1)], Some(Outcome::Started));
    world
}

#[test]
fn two_restarts_are_one_and_use_the_newest_launch() {
    let mut world = running();
    world.step(&Move::Restart(Mode::Wait));
    world.step(&Move::Restart(Mode::Wait));
    world.step(&Move::TreeEnds);
    world.step(&Move::ShimStarts);
    world.step(&Move::TimePasses(200));
    assert_eq!(world.launched, [1, 3]);
    for ticket in [2, 3] {
        assert!(matches!(
            world.answers[&Ticket(ticket)],
            Some(Outcome::Restarted { previous: Some(_), rolled_back: false })
        ));
    }
}

#[test]
fn a_stop_during_a_restart_wins() {
    let mut world = running();
    world.step(&Move::Restart(Mode::Wait));
    world.step(&Move::Stop(Mode::Wait));
    assert_eq!(world.answers[&Ticket(2)], Some(Outcome::Superseded));
    world.step(&Move::TreeEnds);
    assert_eq!(world.answers[&Ticket(3)], Some(Outcome::Stopped));
    assert_eq!(world.machine.state(), AgentState::Stopped);
    assert_eq!(world.launched, [1]);
}

#[test]
fn a_stop_that_is_the_first_half_of_a_restart_is_told_as_one_whenever_the_launch_comes() {
    let reason = |world: &World| world.machine.last_exit().map(|exit| exit.reason);
    let mut world = running();
    world.step(&Move::StopFirst);
    assert_eq!(world.machine.under_way(), Some(UnderWay::Launch { generation: 2 }));
    world.step(&Move::TreeEnds);
    assert_eq!(reason(&world), Some(ExitReason::Restart));
    world.step(&Move::Restart(Mode::Wait));
    assert_eq!(world.launched, [1, 2]);

    let mut world = running();
    world.step(&Move::StopFirst);
    world.step(&Move::Stop(Mode::Wait));
    world.step(&Move::TreeEnds);
    assert_eq!(reason(&world), Some(ExitReason::Stop), "a stop wins");
}

#[test]
fn a_start_during_a_stop_follows_it() {
    let mut world = running();
    world.step(&Move::Stop(Mode::Wait));
    world.step(&Move::Start(Mode::Wait));
    world.step(&Move::TreeEnds);
    assert_eq!(world.answers[&Ticket(2)], Some(Outcome::Stopped));
    world.step(&Move::ShimStarts);
    world.step(&Move::TimePasses(200));
    assert_eq!(world.answers[&Ticket(3)], Some(Outcome::Started));
}

#[test]
fn a_process_that_restarts_itself_is_answered_first_and_stopped_after_the_delay() {
    let mut world = running();
    world.step(&Move::Restart(Mode::Own));
    let accepted = Outcome::Accepted { generation: 2, previous_pid: Some(100), awaits_delivery: true };
    assert_eq!(world.answers[&Ticket(2)], Some(accepted));
    world.step(&Move::TimePasses(900));
    assert!(!world.stop_asked, "stopped before the delivery");
    world.step(&Move::Deliver);
    world.step(&Move::TimePasses(499));
    assert!(!world.stop_asked, "stopped before the delay had passed");
    world.step(&Move::TimePasses(1));
    assert!(world.stop_asked);
}

#[test]
fn an_answer_that_is_never_delivered_counts_as_delivered_after_a_second() {
    let mut world = running();
    world.step(&Move::Restart(Mode::Own));
    world.step(&Move::TimePasses(1_499));
    assert!(!world.stop_asked);
    world.step(&Move::TimePasses(1));
    assert!(world.stop_asked);
}

#[test]
fn a_process_that_ends_before_its_own_stop_is_started_all_the_same() {
    let mut world = running();
    world.step(&Move::Restart(Mode::Own));
    world.step(&Move::ProcessEndsByItself);
    assert_eq!(world.launched, [1, 2]);
    assert_eq!(world.machine.last_exit().map(|exit| exit.reason), Some(ExitReason::Restart));
}

#[test]
fn a_process_that_ends_while_it_settles_makes_the_start_an_error() {
    let mut world = World::new();
    world.step(&Move::Start(Mode::Wait));
    world.step(&Move::ShimStarts);
    world.step(&Move::ProcessEndsByItself);
    assert!(matches!(world.answers[&Ticket(1)], Some(Outcome::ExitedEarly(_))));
    assert_eq!(world.machine.state(), AgentState::Exited);
}

#[test]
fn nothing_is_started_beside_what_could_not_be_ended() {
    let mut world = running();
    world.step(&Move::Restart(Mode::Wait));
    world.step(&Move::StopIncomplete);
    assert!(matches!(world.answers[&Ticket(2)], Some(Outcome::StopIncomplete(_))));
    world.step(&Move::TreeEnds);
    assert_eq!(world.launched, [1]);
    assert_eq!(world.machine.state(), AgentState::Stopped);
}

#[test]
fn a_restart_of_a_process_that_starts_or_settles_takes_those_who_wait_for_it_along() {
    for second in
        [[Move::Restart(Mode::Wait), Move::ShimStarts], [Move::ShimStarts, Move::Restart(Mode::Wait)]]
    {
        let mut world = running();
        world.step(&Move::Restart(Mode::Wait));
        world.step(&Move::TreeEnds);
        for step in &second {
            world.step(step);
        }
        assert_eq!(world.answers[&Ticket(2)], None);
        world.step(&Move::TreeEnds);
        world.step(&Move::ShimStarts);
        world.step(&Move::TimePasses(200));
        for ticket in [2, 3] {
            assert!(matches!(world.answers[&Ticket(ticket)], Some(Outcome::Restarted { .. })));
        }
        assert_eq!(world.launched, [1, 2, 3]);
    }
}

#[test]
fn a_start_that_is_refused_shows_as_failed_and_touches_no_process() {
    let mut world = running();
    world.feed(Event::Refused { at: Timestamp(9), why: "no".into() });
    assert_eq!(world.machine.state(), AgentState::Running);
    let mut world = World::new();
    world.feed(Event::Refused { at: Timestamp(9), why: "no".into() });
    assert_eq!(world.machine.state(), AgentState::Failed);
    assert_eq!(world.machine.last_exit().unwrap().message.as_deref(), Some("no"));
}

#[test]
fn a_stop_right_after_a_start_is_not_lost() {
    let mut world = World::new();
    world.step(&Move::Start(Mode::Wait));
    world.step(&Move::Stop(Mode::Wait));
    world.step(&Move::ShimStarts);
    assert!(world.stop_asked);
    world.step(&Move::TreeEnds);
    assert_eq!(world.answers[&Ticket(1)], Some(Outcome::Superseded));
    assert_eq!(world.answers[&Ticket(2)], Some(Outcome::Stopped));
}

/// A restart on trial whose process runs; its launch is 2.
fn on_trial(mode: Mode) -> World {
    let mut world = running();
    world.step(&Move::RestartOnTrial(mode));
    world.step(&Move::Deliver);
    world.step(&Move::TimePasses(500));
    world.step(&Move::TreeEnds);
    world.step(&Move::ShimStarts);
    assert!(world.machine.is_on_trial());
    world
}

#[test]
fn a_launch_on_trial_whose_process_ends_by_itself_is_replaced_by_the_one_that_stayed_up_once() {
    let mut world = on_trial(Mode::Own);
    world.step(&Move::ProcessEndedAfter(14_999));
    assert_eq!(world.launched, [1, 2, 2 + FALLBACK]);
    assert_eq!(world.machine.last_exit().map(|exit| exit.reason), Some(ExitReason::RolledBack));
    assert_eq!(world.machine.under_way(), Some(UnderWay::Launch { generation: 3 }));
    world.step(&Move::ShimStarts);
    world.step(&Move::ProcessEndsByItself);
    assert_eq!(world.launched.len(), 3, "once");
    assert_eq!(world.machine.state(), AgentState::Exited);
}

#[test]
fn a_program_that_cannot_be_executed_is_rolled_back_too() {
    let mut world = running();
    world.step(&Move::RestartOnTrial(Mode::NoWait));
    world.step(&Move::TreeEnds);
    world.step(&Move::ShimFails);
    assert_eq!(world.launched, [1, 2, 2 + FALLBACK]);
    let exit = world.machine.last_exit().unwrap();
    assert_eq!((exit.reason, exit.message.as_deref()), (ExitReason::RolledBack, Some("no")));
}

#[test]
fn the_trial_is_judged_by_the_time_at_which_the_process_ended_and_not_by_that_of_the_news() {
    let mut world = on_trial(Mode::Own);
    world.step(&Move::TimePasses(20_000));
    assert!(!world.machine.stays_up(), "its end may not be known yet");
    world.step(&Move::ProcessEndedAfter(14_000));
    assert_eq!(world.launched.len(), 3);

    let mut world = on_trial(Mode::Own);
    world.step(&Move::ProcessEndedAfter(15_000));
    assert_eq!(world.launched, [1, 2]);
    assert_eq!(world.machine.last_exit().map(|exit| exit.reason), Some(ExitReason::Exited));
}

#[test]
fn a_launch_stays_up_when_it_has_settled_and_its_trial_is_over() {
    let mut world = running();
    assert!(world.machine.stays_up());
    world = on_trial(Mode::Own);
    world.step(&Move::TimePasses(1_000));
    assert!(!world.machine.stays_up());
    world.step(&Move::TimePasses(21_000));
    assert!(world.machine.stays_up() && !world.machine.is_on_trial());
}

#[test]
fn whoever_waits_for_a_launch_that_is_rolled_back_is_told_when_the_fallback_lives() {
    let mut world = on_trial(Mode::Wait);
    world.step(&Move::ProcessEndsByItself);
    assert_eq!(world.answers[&Ticket(2)], None);
    world.step(&Move::ShimStarts);
    world.step(&Move::TimePasses(200));
    assert!(matches!(
        world.answers[&Ticket(2)],
        Some(Outcome::Restarted { previous: Some(_), rolled_back: true })
    ));
}

#[test]
fn a_stop_and_the_restart_of_another_end_the_trial() {
    let mut world = on_trial(Mode::Own);
    world.step(&Move::Stop(Mode::Wait));
    world.step(&Move::ProcessEndsByItself);
    assert_eq!((world.launched.len(), world.machine.state()), (2, AgentState::Stopped));

    let mut world = on_trial(Mode::Own);
    world.step(&Move::Restart(Mode::NoWait));
    world.step(&Move::TreeEnds);
    world.step(&Move::ShimStarts);
    world.step(&Move::ProcessEndsByItself);
    assert_eq!((world.launched, world.machine.state()), (vec![1, 2, 3], AgentState::Exited));
}

#[test]
fn a_shim_that_is_killed_is_not_the_fault_of_the_launch() {
    let mut world = on_trial(Mode::Own);
    world.step(&Move::ShimDies);
    assert_eq!(world.launched, [1, 2]);
    assert_eq!(world.machine.last_exit().map(|exit| exit.reason), Some(ExitReason::Lost));
}

#[test]
fn the_next_daemon_goes_on_with_a_trial_and_judges_one_that_is_over() {
    let trial = || Box::new(Trial { within: TRIAL, fallback: 7, settle: SETTLE });
    let resume = |machine: &mut Machine<u64>, now| {
        let left = Duration::from_secs(5);
        let event = Event::OnTrial { generation: 2, started_at: Timestamp(1), left, trial: trial() };
        machine.handle(event, now)
    };
    let now = Instant::now();
    let mut alive = Machine::adopted(2, 100, Timestamp(1), None);
    assert_eq!(resume(&mut alive, now), []);
    assert!(alive.is_on_trial());
    let exit = ShimExit { at: Timestamp(14_000), ..exit(true) };
    let effects = alive.handle(Event::Exited { generation: 2, exit: exit.clone() }, now);
    assert_eq!(effects, [Effect::Launch { generation: 3, launch: 7 }]);

    let ended = |at| LastExit::of(&ShimExit { at: Timestamp(at), ..exit.clone() }, ExitReason::Exited);
    let mut gone = Machine::new(AgentState::Exited, 2, Some(ended(14_000)));
    assert_eq!(resume(&mut gone, now), [Effect::Launch { generation: 3, launch: 7 }]);
    let mut gone = Machine::new(AgentState::Exited, 2, Some(ended(16_000)));
    assert_eq!(resume(&mut gone, now), []);
    let mut stopped = Machine::new(AgentState::Stopped, 2, Some(ended(14_000)));
    assert_eq!(resume(&mut stopped, now), []);
}
