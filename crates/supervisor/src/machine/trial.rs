//! A launch on trial: if its process ends by itself too soon, the last launch that stayed up takes its place, once.
//!
//! ```text
//!  Starting { trial } ── Started ──► Running { trial } ── its time has passed ──► Running: it stays up
//!        │ SpawnFailed                     │ Exited by itself within its time
//!        └───────────────┬─────────────────┘
//!                        ▼
//!              Starting (the fallback, on no trial)
//! ```
//!
//! A stop, or a restart that takes the place of the process, ends the trial. So does a fault that is not the launch's:
//! a shim that is killed, or that does not report.

use super::{Machine, OnTrial, Process, State};
use crate::after::{Ending, Waiter};
use crate::event::{Effect, Plan, Trial};
use mcp_restart_protocol::agent::{AgentState, ExitReason};
use mcp_restart_protocol::timestamp::Timestamp;
use std::time::{Duration, Instant};

/// The end of a process becomes known when its tree is gone: so long after it at most, in a world that is no
/// slower than it should be. Until then nobody knows that it stayed up.
const NEWS_LIMIT: Duration = Duration::from_secs(7);

impl<L> Machine<L> {
    /// Whether the launch of the process has yet to prove itself.
    pub fn is_on_trial(&self) -> bool {
        matches!(self.state, State::Starting { trial: Some(_), .. } | State::Running { trial: Some(_), .. })
    }

    /// Whether the process lives, has settled and is on no trial: its launch is one that stays up.
    pub fn stays_up(&self) -> bool {
        matches!(self.state, State::Running { settling: None, trial: None, .. })
    }

    /// Goes on with the trial of a process that an earlier daemon launched. One that has ended by then is judged
    /// by the time at which it did.
    pub(super) fn resume_trial(
        &mut self,
        started_at: Timestamp,
        left: Duration,
        resumed: Box<Trial<L>>,
        now: Instant,
        effects: &mut Vec<Effect<L>>,
    ) {
        match &mut self.state {
            State::Running { trial, .. } => {
                *trial = Some(OnTrial { until: now + left + NEWS_LIMIT, trial: resumed });
            }
            State::Idle(AgentState::Exited) if !self.closing => {
                let ended = self.last_exit.as_ref().filter(|exit| exit.reason == ExitReason::Exited);
                if ended.is_some_and(|exit| resumed.covers(started_at, exit.at)) {
                    self.roll_back(*resumed, Vec::new(), now, effects);
                }
            }
            State::Idle(_) | State::Starting { .. } | State::Stopping { .. } => {}
        }
    }

    /// Starts what stayed up before. Whoever waits for the launch that failed waits for this one.
    pub(super) fn roll_back(
        &mut self,
        trial: Trial<L>,
        mut waiters: Vec<Waiter>,
        now: Instant,
        effects: &mut Vec<Effect<L>>,
    ) {
        for waiter in &mut waiters {
            waiter.rolled_back = true;
        }
        if let Some(exit) = &mut self.last_exit {
            exit.reason = ExitReason::RolledBack;
        }
        let Trial { fallback, settle, .. } = trial;
        let plan = Plan { launch: fallback, settle, trial: None };
        self.launch(AgentState::Stopping, plan, waiters, now, effects);
    }

    /// What goes wrong with a start now is not the fault of its launch.
    pub(super) fn drop_trial(&mut self) {
        if let State::Starting { trial, .. } = &mut self.state {
            *trial = None;
        }
    }
}

impl<L> OnTrial<L> {
    pub(super) fn begin(trial: Box<Trial<L>>, now: Instant) -> Self {
        Self { until: now + trial.within + NEWS_LIMIT, trial }
    }

    /// Whether this end of the process is that of a launch that does not live.
    pub(super) fn is_failed_by(&self, ending: &Ending, process: Process) -> bool {
        match ending {
            Ending::Seen(exit) => exit.by_itself && self.trial.covers(process.started_at, exit.at),
            Ending::Lost { .. } => false,
        }
    }
}

impl<L> Trial<L> {
    /// Whether a process that lived from the one moment to the other has lived too short.
    fn covers(&self, started_at: Timestamp, ended_at: Timestamp) -> bool {
        u128::from(ended_at.millis_since(started_at)) < self.within.as_millis()
    }
}
