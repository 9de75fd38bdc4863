//! Due times of one thread: a heap in front of one timerfd, armed with absolute times of the monotonic clock.
//!
//! A timerfd runs on a high-resolution timer without slack, so that a thread can sleep to within microseconds of a due time
//! and its core stays idle until then; `epoll_wait`'s own time-out has a grain of a millisecond.

use std::{cmp::Reverse, collections::BinaryHeap, os::fd::AsFd, os::fd::BorrowedFd};

use nix::{
    sys::{
        time::TimeSpec,
        timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
    },
    time::clock_gettime,
};

use crate::data::units::SECOND;

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn monotonic_ns() -> u64 {
    // CLOCK_MONOTONIC exists on every Linux; the call cannot fail with it.
    let now = clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap_or_else(|_| TimeSpec::new(0, 0));
    now.tv_sec() as u64 * SECOND + now.tv_nsec() as u64
}

/// Due times with a value each. Equal times come out in the order of their values.
#[derive(Debug)]
pub struct Timers<T> {
    heap: BinaryHeap<Reverse<(u64, T)>>,
    timer: TimerFd,
    /// What the timerfd is set to; `u64::MAX` when it is not set, or when it has gone off.
    armed_ns: u64,
}

impl<T: Ord + Copy> Timers<T> {
    /// An empty table with its timerfd.
    pub fn new() -> nix::Result<Self> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        Ok(Self { heap: BinaryHeap::new(), timer, armed_ns: u64::MAX })
    }

    /// The descriptor that becomes readable when something is due; it is never read, so it wants an edge-triggered wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// True when nothing is due ever.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Adds a due time.
    pub fn push(&mut self, due_ns: u64, value: T) {
        self.heap.push(Reverse((due_ns, value)));
    }

    /// Takes the earliest that is due at `now`, with its due time.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<(u64, T)> {
        let &Reverse((due_ns, value)) = self.heap.peek()?;
        if now_ns < due_ns {
            return None;
        }
        self.heap.pop();
        Some((due_ns, value))
    }

    /// Sets the timerfd to the earliest due time, when it is not set to that already. To be called before each wait, after
    /// everything due was taken.
    pub fn arm(&mut self, now_ns: u64) -> nix::Result<()> {
        let Some(&Reverse((due_ns, _))) = self.heap.peek() else { return Ok(()) };
        // A timer that has gone off does so once: it is set anew even to the same time.
        if due_ns == self.armed_ns && now_ns < self.armed_ns {
            return Ok(());
        }
        self.armed_ns = due_ns;
        // 0 would switch the timer off; a time in the past goes off at once.
        let due_ns = due_ns.max(1);
        let at = TimeSpec::new((due_ns / SECOND) as i64, (due_ns % SECOND) as i64);
        self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn what_is_due_comes_out_in_order_and_the_timer_goes_off_for_the_earliest() {
        let mut timers = Timers::new().unwrap();
        let start = monotonic_ns();
        timers.push(start + 10 * SECOND, 3u32);
        timers.push(start + 3_000_000, 2);
        timers.push(start + 1_000_000, 1);
        timers.arm(start).unwrap();
        assert_eq!(timers.pop_due(start), None);
        let mut fds = [PollFd::new(timers.fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(5000u16)), Ok(1));
        let now = monotonic_ns();
        assert!(now >= start + 1_000_000 && now < start + SECOND);
        assert_eq!(timers.pop_due(now), Some((start + 1_000_000, 1)));
        assert_eq!(timers.pop_due(start + SECOND), Some((start + 3_000_000, 2)));
        assert_eq!(timers.pop_due(start + SECOND), None);
        assert!(!timers.is_empty());
    }
}
