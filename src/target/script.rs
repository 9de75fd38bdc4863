//! What happens to which request: faults by share, think times, jitter and stalls, all from the seed.
//!
//! Request number n (in the order in which requests became whole, over all threads) always meets the same fate under the
//! same options and seed; the threads share nothing else. Due times are absolute: event k of a stream is due at
//! `whole + ttft + k * itl`, whatever happened to the events before it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::options::{Mode, Options, Stall};

/// What is done with one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Act {
    /// The answer of the mode.
    #[default]
    Answer,
    /// Status 500.
    Error,
    /// The connection is reset instead.
    Reset,
    /// The answer ends half way.
    Truncate,
    /// A stream ends half way in an error event.
    StreamError,
}

/// The fate of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What is done.
    pub act: Act,
    /// Its number, from 0.
    pub number: u64,
    /// What its due times count from, nanoseconds.
    pub base_ns: u64,
    /// True when a stall moved `base_ns`.
    pub stalled: bool,
}

/// The options with what the threads share.
#[derive(Debug)]
pub struct Script {
    /// As given.
    pub options: Options,
    /// When the first request was whole; `u64::MAX` before.
    first_ns: AtomicU64,
    numbers: AtomicU64,
}

impl Script {
    /// Nothing has happened yet.
    pub fn new(options: Options) -> Self {
        Self { options, first_ns: AtomicU64::new(u64::MAX), numbers: AtomicU64::new(0) }
    }

    /// True when every request is answered at once and alike: no number, no clock, nothing shared is touched then.
    pub fn is_plain(&self) -> bool {
        !self.is_timed() && !self.has_faults()
    }

    /// True when answers have due times.
    pub fn is_timed(&self) -> bool {
        let o = &self.options;
        o.mode == Mode::Sse || o.delay_ns > 0 || o.jitter_ns > 0 || o.stall != Stall::None
    }

    fn has_faults(&self) -> bool {
        let o = &self.options;
        [o.error, o.reset, o.truncate, o.stream_error].iter().any(|&share| share > 0.0)
    }

    /// The fate of the request that is whole at this time.
    pub fn verdict(&self, whole_ns: u64) -> Verdict {
        let number = self.numbers.fetch_add(1, Relaxed);
        if self.first_ns.load(Relaxed) == u64::MAX {
            // Whoever comes first in time wins; a loser's time is later by the length of a race.
            let _ = self.first_ns.compare_exchange(u64::MAX, whole_ns, Relaxed, Relaxed);
        }
        let mut verdict = Verdict { act: self.act(number), number, base_ns: whole_ns, stalled: false };
        if let Stall::Share { share, for_ns } = self.options.stall
            && self.chance(number, Draw::Stall) < share
        {
            verdict.base_ns += for_ns;
            verdict.stalled = true;
        }
        verdict
    }

    fn act(&self, number: u64) -> Act {
        if !self.has_faults() {
            return Act::Answer;
        }
        let o = &self.options;
        let mut chance = self.chance(number, Draw::Fault);
        for (share, act) in [
            (o.error, Act::Error),
            (o.reset, Act::Reset),
            (o.truncate, Act::Truncate),
            (o.stream_error, Act::StreamError),
        ] {
            if chance < share {
                return act;
            }
            chance -= share;
        }
        Act::Answer
    }

    /// When something is due that is due `offset` after the request, and whether the one stall moved it. `index` tells the
    /// events of a stream apart.
    pub fn due(&self, verdict: &Verdict, offset_ns: u64, index: u64) -> (u64, bool) {
        let mut due_ns = verdict.base_ns.saturating_add(offset_ns);
        if self.options.jitter_ns > 0 {
            due_ns += (self.chance(verdict.number, Draw::Jitter(index)) * self.options.jitter_ns as f64) as u64;
        }
        if let Stall::Once { for_ns, after_ns } = self.options.stall {
            let from = self.first_ns.load(Relaxed).saturating_add(after_ns);
            let to = from.saturating_add(for_ns);
            if from <= due_ns && due_ns < to {
                return (to, true);
            }
        }
        (due_ns, false)
    }

    /// A number in [0, 1) that depends on the seed, the request and the purpose, and on nothing else.
    fn chance(&self, number: u64, draw: Draw) -> f64 {
        let purpose = match draw {
            Draw::Fault => 1,
            Draw::Stall => 2,
            Draw::Jitter(index) => 3u64.wrapping_add(index),
        };
        let mixed = mix(mix(mix(self.options.seed) ^ number) ^ purpose);
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

enum Draw {
    Fault,
    Stall,
    Jitter(u64),
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014) behind its increment: equal steps in, independent bits out.
const fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(query: &str) -> Script {
        Script::new(Options::parse(query).unwrap())
    }

    #[test]
    fn shares_are_kept_and_the_same_for_the_same_seed() {
        let acts = |query: &str| {
            let s = script(query);
            (0..100_000).map(|_| s.verdict(0).act).collect::<Vec<_>>()
        };
        let a = acts("error=1%&reset=2%&seed=3");
        assert_eq!(a, acts("error=1%&reset=2%&seed=3"));
        assert_ne!(a, acts("error=1%&reset=2%&seed=4"));
        let count = |act| a.iter().filter(|&&x| x == act).count();
        assert!((850..1150).contains(&count(Act::Error)), "{}", count(Act::Error));
        assert!((1750..2250).contains(&count(Act::Reset)), "{}", count(Act::Reset));
        assert_eq!(count(Act::Truncate), 0);
        assert!(acts("error=100%").iter().all(|&a| a == Act::Error));
    }

    #[test]
    fn one_stall_moves_what_is_due_in_its_window_to_its_end() {
        let s = script("stall=200ms@1s");
        let ms = 1_000_000;
        let first = s.verdict(5_000 * ms);
        assert_eq!(s.due(&first, 0, 0), (5_000 * ms, false));
        let due = |at| s.due(&Verdict { base_ns: at, ..first }, 0, 0);
        assert_eq!(due(5_999 * ms), (5_999 * ms, false));
        assert_eq!(due(6_000 * ms), (6_200 * ms, true));
        assert_eq!(due(6_199 * ms), (6_200 * ms, true));
        assert_eq!(due(6_200 * ms), (6_200 * ms, false));
    }

    #[test]
    fn a_stalled_share_waits_longer_and_jitter_is_bounded() {
        let s = script("stall=10%:200ms&jitter=1ms");
        let verdicts: Vec<_> = (0..10_000).map(|_| s.verdict(7)).collect();
        let stalled = verdicts.iter().filter(|v| v.stalled && v.base_ns == 200_000_007).count();
        assert!((850..1150).contains(&stalled));
        let jitters: Vec<_> = verdicts.iter().map(|v| s.due(v, 0, 0).0 - v.base_ns).collect();
        assert!(jitters.iter().all(|&j| j < 1_000_000));
        let mean = jitters.iter().sum::<u64>() / 10_000;
        assert!((480_000..520_000).contains(&mean), "{mean}");
    }

    #[test]
    fn plain_targets_need_neither_number_nor_clock() {
        assert!(script("").is_plain() && script("mode=check").is_plain() && script("close_every=3").is_plain());
        assert!(!script("error=1%").is_plain() && !script("delay=1ms").is_plain() && !script("mode=sse").is_plain());
    }
}
