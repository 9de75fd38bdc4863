//! The users of `--user-centric`: who sends which turn of which session, and when.
//!
//! Slot `i` of the run is due at `i / rps`, and belongs to user `i % users`; so each user has a slot every `users / rps`
//! seconds and the turns of all are evenly spaced, whatever the sessions' lengths. A session takes one slot a turn, and a new
//! one begins at its user's next slot: both are known before the run, so a slow answer moves no due time but makes its own
//! session's next turn late.
//!
//! At the start every user is in the middle of a session, so that the mix of first and later turns is from the first slot on what
//! it is later: the first session of a user has been cut to what an evenly spread age leaves of it.

use std::{cmp::Reverse, collections::BinaryHeap};

/// One session that a user begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sitting {
    /// Running number of the session over all users.
    pub unit: u64,
    /// Slot of its first turn.
    pub slot: u64,
    /// How many turns are played.
    pub turns: u32,
}

/// The sessions of one worker's users, in the order in which they begin. Every worker walks those of all users and takes its
/// own, so nothing is shared and the union is the same whatever their number. Allocates nothing after it is made.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    users: u64,
    rps: f64,
    /// Each user's next free slot.
    free: BinaryHeap<Reverse<u64>>,
    worker: u64,
    workers: u64,
    unit: u64,
    /// Steps between the ages of neighbouring users: coprime with their number, so that every age comes once.
    stride: u64,
}

impl Lanes {
    /// The users of `worker` of `workers`, of which there must be no more than users.
    pub fn new(users: u32, rps: f64, worker: usize, workers: usize) -> Self {
        debug_assert!(workers <= users as usize);
        let users = u64::from(users);
        // Near the golden section neighbours get ages far apart, and new sessions come evenly spread.
        let golden = ((users as f64 * 0.618_034) as u64).max(1);
        let stride = (golden..=golden + users).find(|&s| gcd(s, users) == 1).unwrap_or(1);
        Self {
            users,
            rps,
            free: (0..users).map(Reverse).collect(),
            worker: worker as u64,
            workers: workers as u64,
            unit: 0,
            stride,
        }
    }

    /// The worker's next session among those below `end`; none when there are no more. `turns_of` is the length of a session by
    /// its running number.
    pub fn next(&mut self, end: u64, turns_of: impl Fn(u64) -> u32) -> Option<Sitting> {
        while self.unit < end {
            let Reverse(slot) = self.free.pop()?;
            let unit = self.unit;
            self.unit += 1;
            let whole = turns_of(unit).max(1);
            let turns = if slot < self.users { whole - self.age(slot, whole) } else { whole };
            self.free.push(Reverse(slot.saturating_add(u64::from(turns).saturating_mul(self.users))));
            if (slot % self.users) % self.workers == self.worker {
                return Some(Sitting { unit, slot, turns });
            }
        }
        None
    }

    /// Turns that a user's first session has behind it at the start.
    fn age(&self, user: u64, turns: u32) -> u32 {
        let place = (user * self.stride) % self.users;
        (place * u64::from(turns) / self.users) as u32
    }

    /// When a slot is due, nanoseconds from the start.
    #[inline]
    pub fn due_ns(&self, slot: u64) -> u64 {
        (slot as f64 / self.rps * 1e9) as u64
    }

    /// Slots from one turn of a user to the next.
    #[inline]
    pub const fn users(&self) -> u64 {
        self.users
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every slot that is used, with the session and the turn that it is for.
    fn slots(users: u32, workers: usize, sessions: u64, turns_of: impl Fn(u64) -> u32 + Copy) -> Vec<(u64, u64, u32)> {
        let mut used = Vec::new();
        for worker in 0..workers {
            let mut lanes = Lanes::new(users, 10.0, worker, workers);
            while let Some(s) = lanes.next(sessions, turns_of) {
                used.extend((0..s.turns).map(|t| (s.slot + u64::from(t) * u64::from(users), s.unit, t)));
            }
        }
        used.sort_unstable();
        used
    }

    #[test]
    fn each_slot_is_used_once_and_none_is_left_out_whatever_the_workers() {
        for (users, lengths) in [(1u32, 3u64), (4, 4), (7, 5), (10, 2), (16, 9)] {
            let turns_of = move |unit: u64| 1 + (unit % lengths) as u32;
            let whole = slots(users, 1, 200, turns_of);
            for (i, &(slot, ..)) in whole.iter().enumerate().take(150) {
                assert_eq!(slot, i as u64, "{users} users");
            }
            for workers in 2..=3.min(users as usize) {
                assert_eq!(slots(users, workers, 200, turns_of), whole);
            }
        }
    }

    #[test]
    fn from_the_first_round_on_as_many_sessions_begin_as_later() {
        let used = slots(20, 1, 300, |_| 5);
        for round in 1..10u64 {
            let first = used.iter().filter(|u| u.0 / 20 == round && u.2 == 0).count();
            assert_eq!(first, 4, "20 users with 5 turns each begin 4 sessions a round");
        }
        // And they are spread over the round: never two neighbours with so few of them.
        let begins: Vec<u64> = used.iter().filter(|u| u.0 / 20 == 3 && u.2 == 0).map(|u| u.0).collect();
        assert!(begins.windows(2).all(|w| w[1] - w[0] >= 3), "{begins:?}");
    }
}
