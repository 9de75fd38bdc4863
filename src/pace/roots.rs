//! The records that may start on their own, in the order in which they are due.

use crate::data::{Error, RecordId, Result, limits, plan::Shape, units::show_duration};

/// Roots of a run: single records, first turns, graph roots. Read-only after start-up, shared by all workers.
#[derive(Clone, Debug)]
pub struct Roots {
    /// Root records in order; none when every record is a root and the order is the dataset's.
    records: Option<Box<[u32]>>,
    count: u64,
    /// Due times from the start, nanoseconds, rising, as long as `count`; empty when the dataset's times are not played.
    due_ns: Box<[u64]>,
    /// What one pass over the schedule takes until the next may begin, nanoseconds.
    period_ns: u64,
    /// Turns of each root's session, as long as `count`; empty where nobody asks.
    turns: Box<[u32]>,
}

/// What a record says about its place in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// False for a record outside the played window.
    pub inside: bool,
    /// How many records of the window must be answered before it.
    pub predecessors: usize,
    /// Its time in the trace, nanoseconds from the trace's first.
    pub due_ns: Option<u64>,
}

impl Roots {
    /// Finds the roots among `records` records and, for a schedule, cuts, compresses and sorts their times.
    ///
    /// Errors: a schedule in which a root has no time, or whose window holds none.
    pub fn new(records: u32, place: impl Fn(RecordId) -> Place, chained: bool, shape: &Shape) -> Result<Self> {
        debug_assert!(u64::from(records) <= limits::RECORDS_MAX);
        match shape {
            Shape::Schedule { speedup, from_ns, to_ns, max_gap_ns } => {
                let mut timed = Vec::new();
                let (mut last, mut span) = (0, 0);
                for r in 0..records {
                    let place = place(RecordId(r));
                    span = span.max(place.due_ns.unwrap_or(0));
                    if !place.inside {
                        continue;
                    }
                    last = last.max(place.due_ns.unwrap_or(0));
                    if place.predecessors > 0 {
                        continue;
                    }
                    let due = place.due_ns.ok_or_else(|| {
                        Error::usage(format!("--schedule: record {r} has no timestamp; each first turn needs one"))
                    })?;
                    timed.push((due, r));
                }
                if timed.is_empty() {
                    return Err(Error::usage(format!(
                        "--schedule: no record from {} to {}; the offsets count from the trace's first, and its last is at {}",
                        show_duration(*from_ns),
                        show_duration((*to_ns).min(span)),
                        show_duration(span)
                    )));
                }
                // Stable, so that ties keep the file's order. Nearly always sorted already, which costs one pass.
                timed.sort_by_key(|&(due, _)| due);
                Ok(Self::scheduled(&timed, last, *speedup, *max_gap_ns))
            }
            _ if !chained => Ok(Self {
                records: None,
                count: u64::from(records),
                due_ns: Box::default(),
                period_ns: 0,
                turns: Box::default(),
            }),
            _ => {
                let roots: Box<[u32]> = (0..records).filter(|&r| place(RecordId(r)).predecessors == 0).collect();
                Ok(Self {
                    count: roots.len() as u64,
                    records: Some(roots),
                    due_ns: Box::default(),
                    period_ns: 0,
                    turns: Box::default(),
                })
            }
        }
    }

    /// `timed` is not empty and in order; `last` is the latest time of any record of the window, later turns too.
    fn scheduled(timed: &[(u64, u32)], last: u64, speedup: f64, max_gap_ns: u64) -> Self {
        let first = timed.first().map_or(0, |&(due, _)| due);
        let (mut before, mut at) = (first, 0u64);
        let mut due_ns = Vec::with_capacity(timed.len());
        let mut records = Vec::with_capacity(timed.len());
        for &(due, record) in timed {
            at = at.saturating_add((due - before).min(max_gap_ns));
            before = due;
            due_ns.push((at as f64 / speedup) as u64);
            records.push(record);
        }
        let last_root = due_ns.last().copied().unwrap_or(0);
        let whole = if max_gap_ns == u64::MAX { (last.saturating_sub(first) as f64 / speedup) as u64 } else { 0 };
        // The next pass begins one mean gap after the last of this one, so that repeating keeps the rate.
        let period_ns = last_root.max(whole).saturating_add(last_root / (due_ns.len() as u64 - 1).max(1));
        Self {
            count: records.len() as u64,
            records: Some(records.into()),
            due_ns: due_ns.into(),
            period_ns,
            turns: Box::default(),
        }
    }

    /// The same with the length of each root's session, in turns.
    ///
    /// Errors: those of `turns`.
    pub fn with_turns(mut self, turns: impl Fn(RecordId) -> Result<u32>) -> Result<Self> {
        self.turns = (0..self.count).map(|p| turns(self.record(p))).collect::<Result<_>>()?;
        Ok(self)
    }

    /// Turns of the session at a position; 1 where nobody asked.
    #[inline]
    pub fn turns(&self, position: u64) -> u32 {
        self.turns.get(position as usize).copied().unwrap_or(1)
    }

    /// How many roots a pass has.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The record at a position in the order of a pass.
    #[inline]
    pub fn record(&self, position: u64) -> RecordId {
        match &self.records {
            None => RecordId(position as u32),
            Some(records) => RecordId(records[position as usize]),
        }
    }

    /// True when the dataset's own times are played.
    pub const fn timed(&self) -> bool {
        !self.due_ns.is_empty()
    }

    /// What one pass of a schedule takes, nanoseconds; 0 when all its roots are due at one time, or without a schedule.
    pub const fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Due time of a position in a pass, nanoseconds from the start.
    #[inline]
    pub fn due_ns(&self, pass: u64, position: u64) -> u64 {
        self.period_ns.saturating_mul(pass).saturating_add(self.due_ns[position as usize])
    }

    /// Running number of the first root, over all passes, that is due at `at_ns` or later.
    pub fn first_at(&self, at_ns: u64) -> u64 {
        let pass = at_ns.checked_div(self.period_ns).unwrap_or(0);
        let within = at_ns - pass * self.period_ns;
        // The pass before may reach into this one by nothing: its last root is due before its period is over.
        pass.saturating_mul(self.count).saturating_add(self.due_ns.partition_point(|&due| due < within) as u64)
    }

    /// Due time of the last root of a pass, nanoseconds from the start; 0 without a schedule.
    pub fn last_due_ns(&self) -> u64 {
        self.due_ns.last().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::units::{MILLISECOND, SECOND};

    fn schedule(from_ns: u64, to_ns: u64, max_gap_ns: u64, speedup: f64) -> Shape {
        Shape::Schedule { speedup, from_ns, to_ns, max_gap_ns }
    }

    fn roots(times_ms: &[Option<u64>], shape: &Shape) -> Result<Roots> {
        let Shape::Schedule { from_ns, to_ns, .. } = *shape else { unreachable!() };
        let place = |r: RecordId| {
            let due_ns = times_ms[r.index()].map(|t| t * MILLISECOND);
            let inside = due_ns.is_none_or(|t| (from_ns..=to_ns).contains(&t));
            Place { inside, predecessors: 0, due_ns }
        };
        Roots::new(times_ms.len() as u32, place, false, shape)
    }

    fn play(r: &Roots) -> Vec<(u32, u64)> {
        (0..r.count()).map(|p| (r.record(p).0, r.due_ns(0, p) / MILLISECOND)).collect()
    }

    #[test]
    fn disorder_is_sorted_ties_keep_file_order_and_speed_divides() {
        let times = [Some(0), Some(300), Some(300), Some(1100), Some(600)];
        let r = roots(&times, &schedule(0, u64::MAX, u64::MAX, 2.0)).unwrap();
        assert_eq!(play(&r), [(0, 0), (1, 150), (2, 150), (4, 300), (3, 550)]);
    }

    #[test]
    fn both_ends_of_the_window_are_in_and_its_first_is_due_at_once() {
        let times = [Some(0), Some(400), Some(800), Some(1200), Some(5000)];
        let r = roots(&times, &schedule(400 * MILLISECOND, 1200 * MILLISECOND, u64::MAX, 1.0)).unwrap();
        assert_eq!(play(&r), [(1, 0), (2, 400), (3, 800)]);
        assert!(roots(&times, &schedule(6 * SECOND, 7 * SECOND, u64::MAX, 1.0)).is_err());
    }

    #[test]
    fn long_gaps_are_shortened_and_the_rest_keeps_its_spacing() {
        let times = [Some(0), Some(10), Some(60_010), Some(60_020)];
        let r = roots(&times, &schedule(0, u64::MAX, SECOND, 1.0)).unwrap();
        assert_eq!(play(&r), [(0, 0), (1, 10), (2, 1010), (3, 1020)]);
    }

    #[test]
    fn a_root_without_a_time_is_refused_by_number() {
        let error = roots(&[Some(0), None], &schedule(0, u64::MAX, u64::MAX, 1.0)).unwrap_err().to_string();
        assert!(error.contains("record 1"), "{error}");
    }

    #[test]
    fn later_turns_are_no_roots() {
        let place =
            |r: RecordId| Place { inside: true, predecessors: usize::from(!r.0.is_multiple_of(3)), due_ns: None };
        let r = Roots::new(7, place, true, &Shape::Closed).unwrap();
        assert_eq!((0..r.count()).map(|p| r.record(p).0).collect::<Vec<_>>(), [0, 3, 6]);
    }

    #[test]
    fn the_first_root_at_a_time_is_found_over_passes() {
        let r = roots(&[Some(0), Some(100), Some(200)], &schedule(0, u64::MAX, u64::MAX, 1.0)).unwrap();
        let due = |unit: u64| r.due_ns(unit / 3, unit % 3);
        for at_ms in 0..1_500 {
            let first = r.first_at(at_ms * MILLISECOND);
            assert!(
                due(first) >= at_ms * MILLISECOND && (first == 0 || due(first - 1) < at_ms * MILLISECOND),
                "{at_ms}"
            );
        }
        let fast = roots(&[Some(0), Some(100), Some(200)], &schedule(0, u64::MAX, u64::MAX, 1e8)).unwrap();
        assert!(fast.first_at(100 * SECOND) > 1_000_000_000, "and takes no walk");
    }

    #[test]
    fn repeated_passes_follow_each_other_without_a_gap_or_an_overlap() {
        let r = roots(&[Some(0), Some(100), Some(200)], &schedule(0, u64::MAX, u64::MAX, 1.0)).unwrap();
        assert_eq!(r.due_ns(1, 0), 300 * MILLISECOND);
        assert_eq!(r.due_ns(2, 1), 700 * MILLISECOND);
    }
}
