//! How a tree is brought to its end: decided here, carried out elsewhere.
//!
//! ```text
//!   begin, grace > 0          kill_at                    give_up_at
//!  ──────────────────► asked ─────────► killing ──────────────────► given up
//!   (graceful signal)  (newcomers        ▲   (SIGKILL, again and      │ (what is left is named;
//!                      when the leader   │    again for new forks)    │  waited for all the same)
//!                      has gone)         │                            │
//!  ──────────────────────────────────────┴───────── a new Stop ◄──────┘
//!   begin, grace 0
//!  from each of them: the tree is empty ──► over
//! ```

use mcp_restart_process::tree::ORPHANS_COME_BACK;
use std::time::{Duration, Instant};

/// After SIGKILL for so long, then what is left is named.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at who is left, each pause twice the last: when something goes on by itself there.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// How far the end of a tree has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The graceful signal was sent. Once the leader has gone there are looks for newcomers: a shell's
    /// child forgets the signal between its fork and its exec.
    Asked { kill_at: Instant, looks: Option<Looks> },
    /// SIGKILL was sent; what forked meanwhile gets it with the next look.
    Killing { give_up_at: Instant, looks: Looks },
    /// It was said what is left. There are looks at it, ever fewer, if no child's end tells of its end.
    GivenUp { looks: Option<Looks> },
}

/// When to look again at who is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Looks {
    next_at: Instant,
    pause: Duration,
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
            Some(kill_at) => (Self::Asked { kill_at, looks: None }, Order::Ask),
            // A grace period beyond what the clock can count: longer than anybody waits.
            None => Self::begin(now, Duration::from_secs(u32::MAX.into())),
        }
    }

    /// Another stop: it shortens the grace period or changes nothing; after it was given up, it is tried
    /// again.
    pub(crate) fn stop(&mut self, now: Instant, grace: Duration) -> Option<Order> {
        match self {
            Self::Asked { kill_at, .. } => {
                *kill_at = now.checked_add(grace).map_or(*kill_at, |sooner| sooner.min(*kill_at));
                self.due(now)
            }
            Self::Killing { .. } => None,
            Self::GivenUp { .. } => {
                *self = Self::killing(now);
                Some(Order::Kill)
            }
        }
    }

    /// What has become due.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Order> {
        match self {
            Self::Asked { kill_at, .. } if *kill_at <= now => {
                *self = Self::killing(now);
                Some(Order::Kill)
            }
            Self::Asked { looks, .. } => looks.as_mut()?.due(now).then_some(Order::AskNewcomers),
            Self::Killing { give_up_at, .. } if *give_up_at <= now => {
                *self = Self::GivenUp { looks: (!ORPHANS_COME_BACK).then(|| Looks::with(PATIENCE, now)) };
                Some(Order::GiveUp)
            }
            Self::Killing { looks, .. } => looks.due(now).then_some(Order::Kill),
            Self::GivenUp { looks } => looks.as_mut()?.due(now).then_some(Order::Kill),
        }
    }

    /// A child ended, others live, and so may some that were forked since the last signals.
    pub(crate) fn child_ended(&mut self, now: Instant, leader_lives: bool) -> Option<Order> {
        match self {
            // A leader that is still at it may need its helpers to clean up. Without it they are orphans.
            Self::Asked { looks, .. } if !leader_lives => {
                looks.get_or_insert(Looks::from(now));
                Some(Order::AskNewcomers)
            }
            Self::GivenUp { .. } => Some(Order::Kill),
            Self::Asked { .. } | Self::Killing { .. } => None,
        }
    }

    /// When something becomes due, if nothing happens before.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        match *self {
            Self::Asked { kill_at, looks } => Some(looks.map_or(kill_at, |looks| looks.next_at.min(kill_at))),
            Self::Killing { give_up_at, looks } => Some(looks.next_at.min(give_up_at)),
            Self::GivenUp { looks } => looks.map(|looks| looks.next_at),
        }
    }

    fn killing(now: Instant) -> Self {
        Self::Killing { give_up_at: now + PATIENCE, looks: Looks::from(now) }
    }
}

impl Looks {
    fn from(now: Instant) -> Self {
        Self::with(FIRST_PAUSE, now)
    }

    fn with(pause: Duration, now: Instant) -> Self {
        Self { next_at: now + pause, pause: pause * 2 }
    }

    fn due(&mut self, now: Instant) -> bool {
        let due = self.next_at <= now;
        if due {
            self.next_at = now + self.pause;
            self.pause = self.pause.saturating_mul(2);
        }
        due
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
        while let Some(next) = ending.wake_at().filter(|_| !matches!(ending, Ending::GivenUp { .. })) {
            orders.push((next, ending.due(next).unwrap()));
        }
        assert_eq!(ending.wake_at().is_none(), ORPHANS_COME_BACK);
        let (last, rest) = orders.split_last().unwrap();
        assert_eq!(*last, (begin + PATIENCE, Order::GiveUp));
        assert!(rest.iter().all(|(_, order)| *order == Order::Kill));
        assert!((5..30).contains(&rest.len()), "{}", rest.len());
    }

    #[test]
    fn who_is_forked_while_the_leader_obeys_is_asked_when_it_has_gone() {
        let now = Instant::now();
        let mut ending = asked(now);
        assert_eq!(ending.child_ended(now, true), None);
        assert_eq!(ending.wake_at(), Some(now + GRACE));
        assert_eq!(ending.child_ended(now, false), Some(Order::AskNewcomers));
        let mut looks = 0;
        loop {
            let next = ending.wake_at().unwrap();
            match ending.due(next).unwrap() {
                Order::AskNewcomers => looks += 1,
                order => {
                    assert_eq!((order, next), (Order::Kill, now + GRACE));
                    break;
                }
            }
        }
        assert!((5..30).contains(&looks), "{looks}");
    }

    #[test]
    fn a_stop_after_giving_up_tries_again() {
        let now = Instant::now();
        let mut ending = Ending::GivenUp { looks: None };
        assert_eq!(ending.child_ended(now, false), Some(Order::Kill));
        assert_eq!(ending.stop(now, GRACE), Some(Order::Kill));
        assert_eq!(ending.child_ended(now, false), None);
        assert!(ending.wake_at().is_some());
    }

    #[test]
    fn the_longest_grace_period_is_no_overflow() {
        let (ending, order) = Ending::begin(Instant::now(), Duration::MAX);
        assert_eq!(order, Order::Ask);
        assert!(ending.wake_at().is_some());
    }
}
