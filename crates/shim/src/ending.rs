//! How a tree is brought to its end: decided here, carried out elsewhere.
//!
//! ```text
//!   begin, grace > 0          kill_at                    give_up_at
//!  ──────────────────► asked ─────────► killing ──────────────────► given up
//!   (graceful signal)                    ▲   │ (SIGKILL, again and    │ (what is left is named;
//!  ──────────────────────────────────────┘   │  again for new forks)  │  waited for all the same)
//!   begin, grace 0                       ▲   ▼                        │
//!                                        └──────── a new Stop ◄───────┘
//!  from each of them: the tree is empty ──► over
//! ```

use std::time::{Duration, Instant};

/// After SIGKILL for so long, then what is left is named.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between the first two waves of SIGKILL; each pause is twice the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How far the end of a tree has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The graceful signal was sent.
    Asked { kill_at: Instant },
    /// SIGKILL was sent; what forked meanwhile gets it with the next wave.
    Killing { give_up_at: Instant, again_at: Instant, pause: Duration },
    /// It was said what is left.
    GivenUp,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Send the graceful signal to the whole tree.
    Ask,
    /// Send the graceful signal to who did not get it yet.
    AskNewcomers,
    /// Send SIGKILL to the whole tree.
    Kill,
    /// Say what is left.
    GiveUp,
}

impl Ending {
    /// Begins to end a tree that gets this long to do so itself.
    pub(crate) fn begin(now: Instant, grace: Duration) -> (Self, Order) {
        match now.checked_add(grace) {
            _ if grace.is_zero() => (Self::killing(now), Order::Kill),
            Some(kill_at) => (Self::Asked { kill_at }, Order::Ask),
            // A grace period beyond what the clock can count: as long as it can.
            None => (Self::Asked { kill_at: now + Duration::from_secs(u32::MAX.into()) }, Order::Ask),
        }
    }

    /// Another stop: it shortens the grace period or changes nothing; after it was given up, it is tried
    /// again.
    pub(crate) fn stop(&mut self, now: Instant, grace: Duration) -> Option<Order> {
        match self {
            Self::Asked { kill_at } => {
                *kill_at = now.checked_add(grace).map_or(*kill_at, |sooner| sooner.min(*kill_at));
                self.due(now)
            }
            Self::Killing { .. } => None,
            Self::GivenUp => {
                *self = Self::killing(now);
                Some(Order::Kill)
            }
        }
    }

    /// What has become due.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Order> {
        match self {
            Self::Asked { kill_at } if *kill_at <= now => {
                *self = Self::killing(now);
                Some(Order::Kill)
            }
            Self::Killing { give_up_at, .. } if *give_up_at <= now => {
                *self = Self::GivenUp;
                Some(Order::GiveUp)
            }
            Self::Killing { again_at, pause, .. } if *again_at <= now => {
                *again_at = now + *pause;
                *pause = (*pause * 2).min(LONGEST_PAUSE);
                Some(Order::Kill)
            }
            Self::Asked { .. } | Self::Killing { .. } | Self::GivenUp => None,
        }
    }

    /// A child ended, others live, and so may some that were forked since the last signals.
    pub(crate) fn child_ended(&self, leader_lives: bool) -> Option<Order> {
        match self {
            // A leader that is still at it may need its helpers to clean up. Without it they are orphans.
            Self::Asked { .. } if !leader_lives => Some(Order::AskNewcomers),
            Self::GivenUp => Some(Order::Kill),
            Self::Asked { .. } | Self::Killing { .. } => None,
        }
    }

    /// When something becomes due, if nothing happens before.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        match *self {
            Self::Asked { kill_at } => Some(kill_at),
            Self::Killing { give_up_at, again_at, .. } => Some(give_up_at.min(again_at)),
            Self::GivenUp => None,
        }
    }

    fn killing(now: Instant) -> Self {
        Self::Killing { give_up_at: now + PATIENCE, again_at: now + FIRST_PAUSE, pause: FIRST_PAUSE * 2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    fn asked(now: Instant) -> Ending {
        let (ending, order) = Ending::begin(now, GRACE);
        assert_eq!(order, Order::Ask);
        ending
    }

    #[test]
    fn without_a_grace_period_it_kills_at_once() {
        let (_, order) = Ending::begin(Instant::now(), Duration::ZERO);
        assert_eq!(order, Order::Kill);
    }

    #[test]
    fn a_second_stop_only_shortens() {
        let now = Instant::now();
        let mut ending = asked(now);
        assert_eq!(ending.stop(now, GRACE * 2), None);
        assert_eq!(ending.wake_at(), Some(now + GRACE));
        assert_eq!(ending.stop(now, GRACE / 2), None);
        assert_eq!(ending.wake_at(), Some(now + GRACE / 2));
        assert_eq!(ending.stop(now, Duration::ZERO), Some(Order::Kill));
        assert_eq!(ending.stop(now, GRACE), None);
    }

    #[test]
    fn nothing_is_due_before_its_time_and_waiting_has_no_ticks() {
        let now = Instant::now();
        let mut ending = asked(now);
        assert_eq!(ending.due(now + GRACE / 2), None);
        assert_eq!(ending.wake_at(), Some(now + GRACE));
    }

    #[test]
    fn it_kills_again_until_it_gives_up_and_then_sleeps() {
        let now = Instant::now();
        let mut ending = asked(now);
        let begin = now + GRACE;
        assert_eq!(ending.due(begin), Some(Order::Kill));
        let mut orders = Vec::new();
        while let Some(next) = ending.wake_at() {
            orders.push((next, ending.due(next).unwrap()));
        }
        let (last, rest) = orders.split_last().unwrap();
        assert_eq!(*last, (begin + PATIENCE, Order::GiveUp));
        assert!(rest.iter().all(|(_, order)| *order == Order::Kill));
        assert!((5..30).contains(&rest.len()), "{}", rest.len());
    }

    #[test]
    fn who_is_forked_while_the_leader_obeys_is_asked_when_it_has_gone() {
        let ending = asked(Instant::now());
        assert_eq!(ending.child_ended(true), None);
        assert_eq!(ending.child_ended(false), Some(Order::AskNewcomers));
    }

    #[test]
    fn a_stop_after_giving_up_tries_again() {
        let now = Instant::now();
        let mut ending = Ending::GivenUp;
        assert_eq!(ending.child_ended(false), Some(Order::Kill));
        assert_eq!(ending.stop(now, GRACE), Some(Order::Kill));
        assert_eq!(ending.child_ended(false), None);
        assert!(ending.wake_at().is_some());
    }

    #[test]
    fn the_longest_grace_period_is_no_overflow() {
        let (ending, order) = Ending::begin(Instant::now(), Duration::MAX);
        assert_eq!(order, Order::Ask);
        assert!(ending.wake_at().is_some());
    }
}
