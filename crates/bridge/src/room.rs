//! Which connection has to go when there are too many. Decisions, and what they are made from.
//!
//! ```text
//!  newcomer ─► full? ─► the one that was let in by nobody and came first
//!                   └─► else the one that has been idle for longest
//!                   └─► else, all of them being answered, the newcomer
//! ```
//!
//! So those who never send a whole request, or whom the daemon does not let in, take nobody's place but each other's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// A connection, as far as its place is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guest {
    /// A whole request of it is being answered.
    pub(crate) busy: bool,
    /// The daemon has let it in.
    pub(crate) let_in: bool,
    /// When it came or was answered last, in an order that all connections share.
    pub(crate) last: u64,
}

/// The index of the guest that goes first, if one may.
pub(crate) fn first_to_go(guests: impl Iterator<Item = Guest>) -> Option<usize> {
    let idle = guests.enumerate().filter(|(_, guest)| !guest.busy);
    idle.min_by_key(|(_, guest)| (guest.let_in, guest.last)).map(|(index, _)| index)
}

/// What a connection and whoever decides about it share.
#[derive(Debug)]
pub(crate) struct Place {
    clock: Arc<AtomicU64>,
    last: AtomicU64,
    let_in: AtomicBool,
    requests: AtomicUsize,
}

/// Marks a connection as busy while it exists.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Place>);

impl Place {
    /// The place of a connection that has just come; `clock` orders all of them.
    pub(crate) fn new(clock: Arc<AtomicU64>) -> Arc<Self> {
        let last = AtomicU64::new(clock.fetch_add(1, Ordering::Relaxed));
        Arc::new(Self { clock, last, let_in: AtomicBool::new(false), requests: AtomicUsize::new(0) })
    }

    /// The daemon has let it in.
    pub(crate) fn let_in(&self) {
        self.let_in.store(true, Ordering::Relaxed);
    }

    /// A whole request of it begins to be answered.
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// How it stands now.
    pub(crate) fn guest(&self) -> Guest {
        Guest {
            busy: self.requests.load(Ordering::Relaxed) > 0,
            let_in: self.let_in.load(Ordering::Relaxed),
            last: self.last.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.last.store(self.0.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(guests: &[(bool, bool, u64)]) -> Option<usize> {
        let guests =
            guests.iter().map(|(busy, let_in, last)| Guest { busy: *busy, let_in: *let_in, last: *last });
        first_to_go(guests)
    }

    #[test]
    fn whoever_was_never_let_in_goes_before_whoever_was_and_the_oldest_first() {
        assert_eq!(first(&[(false, true, 1), (false, false, 9), (false, false, 3)]), Some(2));
        assert_eq!(first(&[(false, true, 4), (false, true, 2)]), Some(1));
    }

    #[test]
    fn whoever_is_being_answered_stays() {
        assert_eq!(first(&[(true, false, 1), (false, true, 2)]), Some(1));
        assert_eq!(first(&[(true, true, 1)]), None);
        assert_eq!(first(&[]), None);
    }

    #[test]
    fn an_answer_moves_a_connection_to_the_end() {
        let clock = Arc::default();
        let (one, other) = (Place::new(Arc::clone(&clock)), Place::new(clock));
        assert!(one.guest().last < other.guest().last);
        let busy = one.begin();
        assert!(one.guest().busy);
        drop(busy);
        assert!(!one.guest().busy && one.guest().last > other.guest().last);
    }
}
