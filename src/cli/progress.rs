//! The line on stderr each second: rate, errors, in flight, p99 so far, bytes a second, how far.

use super::terminal::ProgressLine;
use crate::{
    data::{plan::Plan, units},
    engine::Progress,
};

/// Turns the control thread's counters into a line a second.
#[derive(Debug)]
pub struct Meter {
    line: ProgressLine,
    /// The counters at the last line.
    last: Option<Progress>,
    requests: Option<u64>,
    duration_ns: Option<u64>,
    records: Option<u64>,
}

impl Meter {
    /// A meter for the plans of all phases over `records` records.
    pub fn new(plans: &[&Plan], records: u64) -> Self {
        // The whole is known where every phase ends by the same measure.
        let sum = |of: fn(&Plan) -> Option<u64>| {
            plans.iter().map(|p| of(p)).try_fold(0u64, |sum, n| Some(sum.saturating_add(n?)))
        };
        Self {
            line: ProgressLine::new(),
            last: None,
            requests: sum(|p| p.stop.requests),
            duration_ns: sum(|p| p.stop.duration_ns),
            records: sum(|p| p.stop.passes).map(|p| p.saturating_mul(records)),
        }
    }

    /// Takes new counters; prints when a second is over.
    pub fn observe(&mut self, now: &Progress) {
        let (since_ns, last) = match &self.last {
            None => (now.elapsed_ns, Progress { phase: 0, elapsed_ns: 0, counts: Default::default(), p99_ns: None }),
            Some(last) => (now.elapsed_ns.saturating_sub(last.elapsed_ns), *last),
        };
        if since_ns < units::SECOND {
            return;
        }
        self.line.show(&self.text(now, &last, since_ns as f64 / 1e9));
        self.last = Some(*now);
    }

    fn text(&self, now: &Progress, last: &Progress, seconds: f64) -> String {
        let (c, l) = (&now.counts, &last.counts);
        let ended = (c.succeeded + c.failed).saturating_sub(l.succeeded + l.failed);
        let moved = (c.sent_bytes + c.received_bytes).saturating_sub(l.sent_bytes + l.received_bytes);
        let p99 = now.p99_ns.map_or("-".to_owned(), units::show_duration);
        format!(
            "{} {}  {}/s  errors {}  in flight {}  p99 <{p99}  {}/s",
            units::show_duration(now.elapsed_ns / units::SECOND * units::SECOND),
            self.how_far(now),
            units::show_count((ended as f64 / seconds) as u64),
            units::show_count(c.failed),
            units::show_count(c.in_flight),
            units::show_size((moved as f64 / seconds) as u64),
        )
    }

    /// The share of the nearest end, in percent; the count without one.
    fn how_far(&self, now: &Progress) -> String {
        let share = |done: u64, whole: Option<u64>| whole.map(|w| done as f64 * 100.0 / w.max(1) as f64);
        let shares = [
            share(now.counts.issued, self.requests),
            share(now.counts.issued, self.records),
            share(now.elapsed_ns, self.duration_ns),
        ];
        match shares.into_iter().flatten().reduce(f64::max) {
            Some(percent) => format!("{:>3.0}%", percent.min(100.0)),
            None => format!("{} requests", units::show_count(now.counts.issued)),
        }
    }

    /// Takes the line away.
    pub fn end(mut self) {
        self.line.clear();
    }
}
