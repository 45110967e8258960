//! What comes after a start and after a stop, and who waits for it.

use crate::event::{Effect, Outcome, Plan, StopPlan, Ticket, UnderWay};
use mcp_restart_protocol::agent::{ExitReason, LastExit};
use mcp_restart_protocol::answer::Previous;
use mcp_restart_protocol::shim::ShimExit;
use mcp_restart_protocol::timestamp::Timestamp;

/// What happens as soon as the program was executed.
#[derive(Debug)]
pub(crate) enum AfterStart<L> {
    Run,
    Stop { stop: StopPlan, tickets: Vec<Ticket>, then: AfterStop<L> },
}

/// What happens as soon as the tree is gone.
#[derive(Debug)]
pub(crate) enum AfterStop<L> {
    Stay,
    /// A launch, which is not known yet.
    Later,
    Start {
        plan: Plan<L>,
        waiters: Vec<Waiter>,
    },
}

/// Somebody who waits until a new process lives.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) ticket: Ticket,
    pub(crate) restart: bool,
    pub(crate) previous: Option<Previous>,
    pub(crate) rolled_back: bool,
}

impl<L> AfterStart<L> {
    pub(crate) fn stop(&mut self, stop: StopPlan, mut tickets: Vec<Ticket>, effects: &mut Vec<Effect<L>>) {
        match self {
            Self::Run => *self = Self::Stop { stop, tickets, then: AfterStop::Stay },
            Self::Stop { stop: earlier, tickets: waiting, then } => {
                *earlier = stop;
                waiting.append(&mut tickets);
                then.supersede(&Outcome::Superseded, effects);
            }
        }
    }
}

impl<L> AfterStop<L> {
    /// The newest launch is used, and everybody who waited still does.
    pub(crate) fn join(&mut self, newest: Plan<L>, mut more: Vec<Waiter>) {
        match self {
            Self::Stay | Self::Later => *self = Self::Start { plan: newest, waiters: more },
            Self::Start { plan, waiters } => {
                *plan = newest;
                waiters.append(&mut more);
            }
        }
    }

    /// What it comes to, when the present launch has this number.
    pub(crate) fn leads_to(&self, generation: u64) -> UnderWay {
        match self {
            Self::Stay => UnderWay::Stop { generation },
            Self::Later | Self::Start { .. } => UnderWay::Launch { generation: generation.saturating_add(1) },
        }
    }

    pub(crate) fn supersede(&mut self, outcome: &Outcome, effects: &mut Vec<Effect<L>>) {
        if let Self::Start { waiters, .. } = std::mem::replace(self, Self::Stay) {
            effects.extend(waiters.into_iter().map(|waiter| Effect::Answer(waiter.ticket, outcome.clone())));
        }
    }
}

impl Waiter {
    pub(crate) fn new(ticket: Ticket, restart: bool) -> Self {
        Self { ticket, restart, previous: None, rolled_back: false }
    }

    pub(crate) fn succeed<L>(self) -> Effect<L> {
        let Self { ticket, restart, previous, rolled_back } = self;
        let outcome = if restart { Outcome::Restarted { previous, rolled_back } } else { Outcome::Started };
        Effect::Answer(ticket, outcome)
    }
}

/// How the end of a process became known.
pub(crate) enum Ending {
    Seen(ShimExit),
    Lost { at: Timestamp, leftovers: u32 },
}

impl Ending {
    pub(crate) fn at(&self) -> Timestamp {
        match self {
            Self::Seen(exit) => exit.at,
            Self::Lost { at, .. } => *at,
        }
    }

    pub(crate) fn into_last_exit(self, reason: ExitReason) -> LastExit {
        match self {
            Self::Seen(exit) => LastExit::of(&exit, reason),
            Self::Lost { at, leftovers } => {
                LastExit { leftovers, forced: leftovers > 0, ..LastExit::unseen(at, ExitReason::Lost) }
            }
        }
    }
}
