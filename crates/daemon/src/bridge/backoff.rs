//! How long to wait before a bridge that ended is started again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);
/// A bridge that lived this long has proved itself.
const PROVED: Duration = Duration::from_secs(60);
/// From this many quick ends on, people are told that something is wrong.
const LOOP: u32 = 5;

/// The quick ends in a row so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Backoff {
    quick_ends: u32,
}

impl Backoff {
    /// A bridge ended that had lived this long: how long to wait before the next is started.
    pub(super) fn ended(&mut self, lived: Duration) -> Duration {
        self.quick_ends = if lived >= PROVED { 1 } else { self.quick_ends.saturating_add(1) };
        match self.quick_ends {
            // Once is an accident, and callers wait.
            1 => Duration::ZERO,
            times => FIRST.saturating_mul(1 << (times - 2).min(16)).min(LONGEST),
        }
    }

    /// The number of quick ends, when they have become a loop.
    pub(super) fn crash_loop(self) -> Option<u32> {
        (self.quick_ends >= LOOP).then_some(self.quick_ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_end_costs_no_wait_and_each_quick_one_after_it_doubles_it_up_to_half_a_minute() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..10).map(|_| backoff.ended(Duration::ZERO).as_millis()).collect();
        assert_eq!(waits, [0, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000]);
    }

    #[test]
    fn a_bridge_that_lived_a_minute_starts_the_count_anew() {
        let mut backoff = Backoff::default();
        for _ in 0..100 {
            backoff.ended(Duration::ZERO);
        }
        assert_eq!(backoff.ended(PROVED), Duration::ZERO);
        assert_eq!(backoff.crash_loop(), None);
    }

    #[test]
    fn five_quick_ends_are_a_loop() {
        let mut backoff = Backoff::default();
        let loops: Vec<Option<u32>> = (0..6)
            .map(|_| {
                backoff.ended(Duration::from_secs(1));
                backoff.crash_loop()
            })
            .collect();
        assert_eq!(loops, [None, None, None, None, Some(5), Some(6)]);
    }
}
