//! How many requests one worker of a closed loop may have in flight, over time: `--ramp-up` and stages of `-c`.

use crate::data::{
    plan::{Plan, Segment},
    units::SECOND,
};

/// One worker's share of a bound that follows a curve. Steps happen at the time at which the curve reaches the next whole number.
#[derive(Clone, Debug)]
pub(super) struct Cap {
    /// Empty for a bound that does not change.
    curve: Vec<Segment>,
    worker: usize,
    workers: usize,
    now: u32,
    /// From when on `now` is out of date, nanoseconds from the start.
    until_ns: u64,
}

impl Cap {
    /// The share of `worker` of `workers`; `full` is it where the plan's bound does not change.
    pub fn new(plan: &Plan, worker: usize, workers: usize, full: u32) -> Self {
        let fixed = plan.ramp.is_empty();
        let until_ns = if fixed { u64::MAX } else { 0 };
        Self { curve: plan.ramp.clone(), worker, workers, now: if fixed { full } else { 0 }, until_ns }
    }

    /// The bound at a time, which must not fall from call to call.
    #[inline]
    pub fn at(&mut self, now_ns: u64) -> u32 {
        if self.until_ns <= now_ns {
            self.step(now_ns);
        }
        self.now
    }

    /// The bound as it was last asked for.
    #[inline]
    pub const fn last(&self) -> u32 {
        self.now
    }

    /// When it changes next, nanoseconds from the start; `u64::MAX` for never.
    #[inline]
    pub const fn until_ns(&self) -> u64 {
        self.until_ns
    }

    fn step(&mut self, now_ns: u64) {
        let mut begun_ns = 0u64;
        for s in &self.curve {
            let end_ns = begun_ns.saturating_add(s.duration_ns);
            if now_ns < end_ns {
                let slope = (s.to - s.from) / s.duration_ns as f64;
                // A millionth more, so that a whole number is reached in spite of rounding.
                let whole = (s.from + slope * (now_ns - begun_ns) as f64 + 1e-6).floor();
                let next = if slope > 0.0 { whole + 1.0 } else { whole - 1.0 };
                let reached_ns = if slope == 0.0 { f64::INFINITY } else { ((next - s.from) / slope).ceil() };
                self.now = self.share(whole);
                self.until_ns = end_ns.min(begun_ns.saturating_add(reached_ns as u64)).max(now_ns + 1);
                return;
            }
            begun_ns = end_ns;
        }
        self.now = self.share(self.curve.last().map_or(1.0, |s| s.to));
        self.until_ns = u64::MAX;
    }

    /// The run as a whole has at least one in flight.
    fn share(&self, total: f64) -> u32 {
        Plan::share(total.max(1.0) as u64, self.worker, self.workers) as u32
    }
}

/// The curve of `--ramp-up`: from one in flight to `full` over `over_ns`, each step at an equal distance from the last.
pub fn ramp_of_slots(full: u32, over_ns: u64) -> Vec<Segment> {
    vec![Segment { duration_ns: over_ns.max(SECOND / 1_000), from: 1.0, to: f64::from(full) }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ramp: Vec<Segment>) -> Plan {
        Plan { ramp, ..Plan::for_tests() }
    }

    #[test]
    fn a_ramp_goes_up_one_by_one_at_equal_distances_and_stays() {
        let plan = plan(ramp_of_slots(5, 4 * SECOND));
        let mut cap = Cap::new(&plan, 0, 1, 5);
        let (mut seen, mut now) = (Vec::new(), 0);
        while cap.until_ns() < u64::MAX {
            seen.push((now / 1_000_000, cap.at(now)));
            now = cap.until_ns();
        }
        assert_eq!(seen, [(0, 1), (1_000, 2), (2_000, 3), (3_000, 4), (4_000, 5)]);
        assert_eq!(cap.at(900 * SECOND), 5);
    }

    #[test]
    fn workers_have_shares_that_add_up_at_every_time() {
        let plan = plan(ramp_of_slots(100, 10 * SECOND));
        let mut caps: Vec<_> = (0..3).map(|w| Cap::new(&plan, w, 3, 34)).collect();
        for ms in (0..11_000).step_by(7) {
            let total: u32 = caps.iter_mut().map(|c| c.at(ms * 1_000_000)).sum();
            let want = (1.0 + 99.0 * (ms as f64 / 10_000.0).min(1.0) + 1e-6).floor() as u32;
            assert_eq!(total, want, "{ms} ms");
        }
    }

    #[test]
    fn stages_go_up_and_down() {
        let stage = |seconds: u64, n: f64| Segment { duration_ns: seconds * SECOND, from: n, to: n };
        let plan = plan(vec![stage(1, 8.0), stage(2, 2.0), stage(1, 4.0)]);
        let mut cap = Cap::new(&plan, 0, 1, 8);
        let seen: Vec<_> = [0, 999, 1_000, 2_999, 3_000, 9_000].map(|ms| cap.at(ms * 1_000_000)).into();
        assert_eq!(seen, [8, 8, 2, 2, 4, 4]);
    }
}
