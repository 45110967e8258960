//! Who is let in, and who has to go for it. Decisions only.
//!
//! ```text
//!  newcomer ─► its process has too many? ─► the oldest idle one of that process goes, or the newcomer
//!          └─► the room is full? ─────────► the oldest idle one of the process with the most goes, or the newcomer
//! ```
//!
//! So no program that forgets its connections, or opens them in a loop, keeps others out.

use std::collections::HashMap;

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// Altogether.
    pub(super) total: usize,
    /// From one process.
    pub(super) per_process: usize,
}

/// A connection that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Guest {
    /// The process that opened it.
    pub(super) pid: u32,
    /// Nothing that came over it is being carried out or waits to be written.
    pub(super) idle: bool,
}

/// What becomes of a newcomer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is served.
    Admitted,
    /// It is served in the place of the guest with this index.
    InPlaceOf(usize),
    /// It is closed.
    Refused,
}

impl Room {
    /// As much room as a daemon that may have so many descriptors can give: half of them are for its agents,
    /// and a connection has two, one for each direction.
    pub(crate) fn within(descriptors: u64) -> Self {
        const TOTAL: usize = 1024;
        let quarter = usize::try_from(descriptors / 4).unwrap_or(TOTAL);
        let total = quarter.min(TOTAL);
        // The bridge alone has two.
        Self { total, per_process: (total / 8).max(4) }
    }

    /// Decides about a newcomer of the process `pid`; the guests are in the order in which they came.
    pub(super) fn admit(self, guests: &[Guest], pid: u32) -> Admission {
        let goes = if guests.iter().filter(|guest| guest.pid == pid).count() >= self.per_process {
            guests.iter().position(|guest| guest.idle && guest.pid == pid)
        } else if guests.len() >= self.total {
            first_to_go(guests)
        } else {
            return Admission::Admitted;
        };
        goes.map_or(Admission::Refused, Admission::InPlaceOf)
    }
}

/// The index of the oldest idle guest of the process that has the most, if any guest is idle.
pub(super) fn first_to_go(guests: &[Guest]) -> Option<usize> {
    let mut counts = HashMap::new();
    for guest in guests {
        *counts.entry(guest.pid).or_insert(0_usize) += 1;
    }
    let idle = guests.iter().enumerate().filter(|(_, guest)| guest.idle);
    // The last of several that are equal is taken: backwards that is the oldest.
    idle.rev().max_by_key(|(_, guest)| counts.get(&guest.pid)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { total: 6, per_process: 3 };

    fn guests(each: &[(u32, bool)]) -> Vec<Guest> {
        each.iter().map(|(pid, idle)| Guest { pid: *pid, idle: *idle }).collect()
    }

    #[test]
    fn a_process_that_has_too_many_gives_up_its_own_oldest_idle_one() {
        let two = guests(&[(1, true), (1, false)]);
        assert_eq!(ROOM.admit(&two, 1), Admission::Admitted);
        let three = guests(&[(2, true), (1, false), (1, true), (1, true)]);
        assert_eq!(ROOM.admit(&three, 1), Admission::InPlaceOf(2));
        assert_eq!(ROOM.admit(&three, 2), Admission::Admitted);
        let busy = guests(&[(2, true), (1, false), (1, false), (1, false)]);
        assert_eq!(ROOM.admit(&busy, 1), Admission::Refused);
    }

    #[test]
    fn a_full_room_takes_the_place_from_whoever_has_the_most() {
        let full = guests(&[(1, true), (2, true), (3, false), (3, true), (3, true), (1, true)]);
        assert_eq!(ROOM.admit(&full, 4), Admission::InPlaceOf(3));
        let busy = guests(&[(1, false); 3].into_iter().chain([(2, false); 3]).collect::<Vec<_>>());
        assert_eq!(ROOM.admit(&busy, 4), Admission::Refused);
    }

    #[test]
    fn without_descriptors_only_an_idle_one_goes() {
        assert_eq!(first_to_go(&guests(&[(1, true), (2, false), (2, true), (2, true)])), Some(2));
        assert_eq!(first_to_go(&guests(&[(1, false), (2, false)])), None);
    }

    #[test]
    fn of_those_that_have_as_many_the_oldest_goes() {
        let full = guests(&[(1, false), (2, true), (3, true), (4, true), (5, true), (6, true)]);
        assert_eq!(ROOM.admit(&full, 7), Admission::InPlaceOf(1));
    }

    #[test]
    fn a_daemon_with_few_descriptors_has_less_room() {
        assert_eq!(Room::within(1_048_576), Room { total: 1024, per_process: 128 });
        assert_eq!(Room::within(1024), Room { total: 256, per_process: 32 });
        assert_eq!(Room::within(48), Room { total: 12, per_process: 4 });
    }
}
