//! The monotonic clock, counted from the run's anchor, and the wall clock that belongs to it.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

use crate::data::Nanos;

/// `CLOCK_MONOTONIC` from an anchor. A read costs about 33 ns, so the loop takes one a batch.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    anchor_ns: u64,
    /// Where a simulation keeps its time.
    #[cfg(test)]
    driven: Option<&'static std::sync::atomic::AtomicU64>,
}

impl Clock {
    /// A clock whose zero is now.
    pub fn start() -> Self {
        Self {
            anchor_ns: monotonic_ns(),
            #[cfg(test)]
            driven: None,
        }
    }

    /// A clock that shows what a simulation sets.
    #[cfg(test)]
    pub fn driven(time_ns: &'static std::sync::atomic::AtomicU64) -> Self {
        Self { anchor_ns: 0, driven: Some(time_ns) }
    }

    /// Time since the anchor.
    #[inline]
    pub fn now(&self) -> Nanos {
        #[cfg(test)]
        if let Some(time_ns) = self.driven {
            return Nanos(time_ns.load(std::sync::atomic::Ordering::Relaxed));
        }
        Nanos(monotonic_ns().saturating_sub(self.anchor_ns))
    }

    /// The anchor on `CLOCK_MONOTONIC` itself, which other processes of this machine share.
    pub const fn anchor_ns(&self) -> u64 {
        self.anchor_ns
    }
}

/// `CLOCK_MONOTONIC`, nanoseconds.
#[inline]
pub fn monotonic_ns() -> u64 {
    // The call cannot fail for this clock on Linux; 0 would only shorten a wait.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

/// Wall clock, nanoseconds since the Unix epoch; 0 for a clock before it.
pub fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_starts_at_its_anchor_and_never_goes_back() {
        let clock = Clock::start();
        let a = clock.now();
        let b = clock.now();
        assert!(a <= b && b.0 < 1_000_000_000);
    }
}
