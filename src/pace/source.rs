//! One worker's part of the roots, one after the other, with their due times.

use std::sync::Arc;

use super::{
    arrival::Arrivals,
    lanes::{Lanes, Sitting},
    order,
    roots::Roots,
};
use crate::data::{
    RecordId, Result,
    plan::{Order, Plan, Shape},
};

/// A root that is to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Running number over all workers and passes.
    pub index: u64,
    /// The record.
    pub record: RecordId,
    /// Slot of its first turn and how many turns are played, where users have slots; else 0 and all.
    pub slot: u64,
    /// See `slot`.
    pub turns: u32,
}

/// When the next root may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// As soon as a slot is free.
    WhenFree,
    /// At this time from the start, nanoseconds.
    At(u64),
    /// Not at all: every pass is done.
    Never,
}

/// The roots of one worker. Allocates nothing after it is made.
#[derive(Clone, Debug)]
pub struct Source {
    roots: Arc<Roots>,
    arrivals: Option<Arrivals>,
    lanes: Option<Lanes>,
    /// What `lanes` said last.
    sitting: Sitting,
    order: Order,
    seed: u64,
    /// Next root, and next arrival of an arrival process; both step by `stride`.
    unit: u64,
    arrival: u64,
    stride: u64,
    /// First root that is not played.
    end: u64,
    /// Due time of the next arrival, once computed.
    due_ns: Option<u64>,
}

/// Which record a root of a plan is, known ahead of its turn; none when it is not played.
pub fn record_ahead(roots: &Roots, plan: &Plan, unit: u64) -> Option<RecordId> {
    let n = roots.count();
    let played = n > 0 && plan.stop.passes.is_none_or(|passes| unit < passes.saturating_mul(n));
    played.then(|| record_of(roots, order_of(roots, plan), plan.seed, unit))
}

/// A schedule has one order: that of its times.
fn order_of(roots: &Roots, plan: &Plan) -> Order {
    if roots.timed() { Order::Sequential } else { plan.order }
}

#[inline]
fn record_of(roots: &Roots, order: Order, seed: u64, unit: u64) -> RecordId {
    let n = roots.count();
    roots.record(order::position(order, seed, n, unit / n, unit % n))
}

impl Source {
    /// The part of worker `worker` of `workers`.
    ///
    /// Errors: an arrival process or a rate curve that cannot be.
    pub fn new(roots: Arc<Roots>, plan: &Plan, worker: usize, workers: usize) -> Result<Self> {
        let arrivals = match &plan.shape {
            Shape::Rate { arrival, curve } => Some(Arrivals::new(*arrival, curve, plan.seed)?),
            Shape::Closed | Shape::Schedule { .. } | Shape::Users { .. } => None,
        };
        let lanes = match plan.shape {
            Shape::Users { users, rps } => Some(Lanes::new(users, rps, worker, workers)),
            _ => None,
        };
        let end = plan.stop.passes.map_or(u64::MAX, |passes| passes.saturating_mul(roots.count()));
        let mut source = Self {
            order: order_of(&roots, plan),
            seed: plan.seed,
            arrivals,
            lanes,
            sitting: Sitting { unit: 0, slot: 0, turns: u32::MAX },
            unit: worker as u64,
            arrival: worker as u64,
            stride: workers as u64,
            end: if roots.count() == 0 { 0 } else { end },
            roots,
            due_ns: None,
        };
        source.sit();
        Ok(source)
    }

    /// Finds the next session of the worker's users, where there are users.
    fn sit(&mut self) {
        let Some(lanes) = &mut self.lanes else { return };
        let (roots, n) = (&self.roots, self.roots.count());
        let turns_of = |unit: u64| roots.turns(order::position(self.order, self.seed, n, unit / n, unit % n));
        match lanes.next(self.end, turns_of) {
            Some(sitting) => (self.sitting, self.unit) = (sitting, sitting.unit),
            None => self.unit = self.end,
        }
    }

    /// When a turn of a user's session is due, nanoseconds from the start; none where there are no users.
    #[inline]
    pub fn turn_ns(&self, slot: u64, turn: u32) -> Option<u64> {
        self.lanes
            .as_ref()
            .map(|lanes| lanes.due_ns(slot.saturating_add(u64::from(turn).saturating_mul(lanes.users()))))
    }

    /// Uses up the roots due before `end_ns`, at most `most`, and counts them, where that takes no walk.
    pub fn skip_arrivals(&mut self, end_ns: u64, most: u64) -> Option<u64> {
        let left = if self.lanes.is_none() && self.roots.timed() {
            self.roots.first_at(end_ns).saturating_sub(self.unit).div_ceil(self.stride)
        } else {
            let after = self.arrivals.as_mut()?.first_at(end_ns)?;
            after.saturating_sub(self.arrival).div_ceil(self.stride)
        };
        let roots = (self.end.saturating_sub(self.unit)).div_ceil(self.stride);
        let n = left.min(roots).min(most);
        self.arrival += n * self.stride;
        self.unit = self.unit.saturating_add(n.saturating_mul(self.stride));
        self.due_ns = None;
        Some(n)
    }

    /// Running number of the next root.
    #[inline]
    pub const fn next_unit(&self) -> u64 {
        self.unit
    }

    /// True when there are roots left.
    #[inline]
    pub const fn has_roots(&self) -> bool {
        self.unit < self.end
    }

    /// When the next root may start.
    #[inline]
    pub fn next_root(&mut self) -> Next {
        if !self.has_roots() {
            return Next::Never;
        }
        if self.arrivals.is_some() {
            return Next::At(self.arrival_ns());
        }
        if let Some(due) = self.turn_ns(self.sitting.slot, 0) {
            return Next::At(due);
        }
        if self.roots.timed() {
            let n = self.roots.count();
            return Next::At(self.roots.due_ns(self.unit / n, self.unit % n));
        }
        Next::WhenFree
    }

    /// Due time of the next arrival of an arrival process, whoever takes it: a root, or a later turn of a session.
    #[inline]
    pub fn arrival_ns(&mut self) -> u64 {
        if let Some(due) = self.due_ns {
            return due;
        }
        let due = self.arrivals.as_mut().map_or(0, |a| a.due_ns(self.arrival));
        self.due_ns = Some(due);
        due
    }

    /// When the pass of a root began, nanoseconds from the start; 0 where the dataset's own times are not played.
    #[inline]
    pub fn pass_ns(&self, unit: u64) -> u64 {
        self.roots.period_ns().saturating_mul(unit / self.roots.count().max(1))
    }

    /// Uses up the next arrival.
    #[inline]
    pub fn take_arrival(&mut self) {
        self.arrival += self.stride;
        self.due_ns = None;
    }

    /// Takes the next root, and the arrival that goes with it. There must be one.
    #[inline]
    pub fn take(&mut self) -> Unit {
        debug_assert!(self.has_roots());
        let Sitting { slot, turns, .. } = self.sitting;
        let record = record_of(&self.roots, self.order, self.seed, self.unit);
        let unit = Unit { index: self.unit, record, slot, turns };
        if self.lanes.is_some() {
            self.sit();
        } else {
            self.unit += self.stride;
            self.take_arrival();
        }
        unit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{data::plan::*, pace::roots::Place};

    fn plan(shape: Shape, order: Order, passes: Option<u64>) -> Plan {
        Plan { shape, order, stop: Stop { passes, ..Plan::for_tests().stop }, ..Plan::for_tests() }
    }

    fn roots(n: u32, shape: &Shape) -> Arc<Roots> {
        Arc::new(
            Roots::new(
                n,
                |r| Place { inside: true, predecessors: 0, due_ns: Some(u64::from(r.0) * 1_000) },
                false,
                shape,
            )
            .unwrap(),
        )
    }

    #[test]
    fn every_pass_sends_each_record_exactly_once_whatever_the_threads() {
        for order in [Order::Sequential, Order::Shuffle] {
            for workers in [1usize, 2, 3, 7] {
                let p = plan(Shape::Closed, order, Some(3));
                let mut seen = [0u32; 10];
                let mut units = Vec::new();
                for w in 0..workers {
                    let mut s = Source::new(roots(10, &p.shape), &p, w, workers).unwrap();
                    while s.next_root() != Next::Never {
                        let ahead = record_ahead(&s.roots, &p, s.next_unit());
                        let u = s.take();
                        assert_eq!(ahead, Some(u.record));
                        seen[u.record.index()] += 1;
                        units.push(u.index);
                    }
                }
                assert_eq!(record_ahead(&roots(10, &p.shape), &p, 30), None, "three passes are thirty roots");
                units.sort_unstable();
                assert_eq!(units, (0..30).collect::<Vec<_>>());
                assert_eq!(seen, [3; 10], "{order:?} {workers}");
            }
        }
    }

    #[test]
    fn a_schedule_keeps_its_times_over_workers() {
        let shape = Shape::Schedule { speedup: 1.0, from_ns: 0, to_ns: u64::MAX, max_gap_ns: u64::MAX };
        let p = plan(shape, Order::Shuffle, Some(1));
        let mut played = Vec::new();
        for w in 0..3 {
            let mut s = Source::new(roots(10, &p.shape), &p, w, 3).unwrap();
            while let Next::At(due) = s.next_root() {
                played.push((due, s.take().record.0));
            }
        }
        played.sort_unstable();
        assert_eq!(played, (0..10).map(|i| (u64::from(i) * 1_000, i)).collect::<Vec<_>>());
    }

    #[test]
    fn an_arrival_taken_by_a_later_turn_leaves_the_roots_in_order() {
        let curve = vec![Segment { duration_ns: 0, from: 1_000.0, to: 1_000.0 }];
        let p = plan(Shape::Rate { arrival: Arrival::Constant, curve }, Order::Sequential, Some(1));
        let mut s = Source::new(roots(4, &p.shape), &p, 0, 1).unwrap();
        assert_eq!(s.next_root(), Next::At(0));
        assert_eq!(s.take().record.0, 0);
        assert_eq!(s.arrival_ns(), 1_000_000);
        s.take_arrival();
        assert_eq!(s.next_root(), Next::At(2_000_000));
        assert_eq!(s.take().record.0, 1);
    }

    #[test]
    fn an_empty_dataset_has_nothing_to_start() {
        let p = plan(Shape::Closed, Order::Sequential, None);
        let mut s = Source::new(roots(0, &p.shape), &p, 0, 1).unwrap();
        assert_eq!(s.next_root(), Next::Never);
    }
}
