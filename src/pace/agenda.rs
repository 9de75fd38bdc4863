//! One worker's scheduler: what starts next, and when. One loop carries every shape; the shapes differ in what a root and a
//! later turn wait for.
//!
//! Times are nanoseconds from the start of the run. Nothing here reads a clock, and after set-up nothing allocates as long as
//! no more sessions wait for their next turn than [`LATER_RESERVED`].

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use super::{Graph, Next, Roots, Source};
use crate::data::{
    RecordId, Result,
    plan::{CatchUp, Plan, Shape, Warmup},
    results::EndedBy,
};

/// Later turns whose delay runs at the same time, for which memory is taken at set-up, at most: 24 MiB a worker.
pub const LATER_RESERVED: usize = 1 << 20;

/// How late a start is still no late start: twice what a busy turn of the loop takes.
const LATE_NS: u64 = 10_000_000;

/// No session instance: the record stands alone.
pub const ALONE: u32 = u32::MAX;

/// A request that is to be started now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The record.
    pub record: RecordId,
    /// Running number of its root over all workers and passes.
    pub unit: u64,
    /// Its session instance, or [`ALONE`].
    pub instance: u32,
    /// When it was due; none when it starts because a slot is free.
    pub due_ns: Option<u64>,
    /// Left out of every figure.
    pub warmup: bool,
}

/// What a worker should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Start this.
    Start(Work),
    /// Nothing is due before this time.
    At(u64),
    /// Nothing until a slot is free or an answer has come.
    Wait,
    /// Nothing more, unless an answer in flight brings a later turn.
    Done,
}

/// A later turn that waits for its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Later {
    due_ns: u64,
    /// Keeps ties in order.
    order: u64,
    record: u32,
    instance: u32,
}

/// A session or graph in progress.
#[derive(Clone, Copy, Debug, Default)]
struct Instance {
    unit: u64,
    /// Its records in flight or waiting.
    live: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Closed,
    Rate,
    Schedule,
}

/// One worker's scheduler.
#[derive(Debug)]
pub struct Agenda {
    source: Source,
    graph: Option<Arc<Graph>>,
    kind: Kind,
    later: BinaryHeap<Reverse<Later>>,
    order: u64,
    instances: Vec<Instance>,
    free_instances: Vec<u32>,
    /// Predecessors still missing, `joins_max` an instance.
    joins: Vec<u16>,
    /// Sessions in progress, and the most of a closed loop.
    live: u32,
    live_max: u32,
    /// Measured requests that may still be issued.
    budget: u64,
    /// Warm-up requests that are left, or the time until which requests are warm-up.
    warm_left: u64,
    warm_until_ns: u64,
    duration_ns: u64,
    /// Roots and arrivals from this time on are not scheduled.
    stop_ns: u64,
    /// When the first measured request could start; none while the warm-up runs.
    measured_from_ns: Option<u64>,
    catch_up: CatchUp,
    stop_on_failure: bool,
    missed: u64,
    shut: bool,
    /// Time, and not the end of the dataset, said that nothing more is scheduled.
    out_of_time: bool,
}

impl Agenda {
    /// The agenda of worker `worker` of `workers`, which may have `slots` requests in flight.
    ///
    /// Errors: as [`Source::new`].
    pub fn new(
        plan: &Plan,
        roots: Arc<Roots>,
        graph: Option<Arc<Graph>>,
        worker: usize,
        workers: usize,
        slots: u32,
    ) -> Result<Self> {
        let source = Source::new(roots.clone(), plan, worker, workers)?;
        let kind = match plan.shape {
            Shape::Closed => Kind::Closed,
            Shape::Rate { .. } => Kind::Rate,
            Shape::Schedule { .. } => Kind::Schedule,
        };
        let (warm_left, warm_until_ns) = match plan.warmup {
            Warmup::None => (0, 0),
            Warmup::Time(ns) => (0, ns),
            Warmup::Requests(n) => (Plan::share(n, worker, workers), 0),
        };
        let sessions = match (&graph, kind) {
            (None, _) => 0,
            (Some(_), Kind::Closed) => slots as usize,
            (Some(_), _) => (roots.count() as usize).min(LATER_RESERVED),
        };
        let joins = graph.as_ref().map_or(0, |g| sessions * g.joins_max() as usize);
        let duration_ns = plan.stop.duration_ns.unwrap_or(u64::MAX);
        let mut agenda = Self {
            source,
            kind,
            later: BinaryHeap::with_capacity(sessions),
            order: 0,
            instances: vec![Instance::default(); sessions],
            free_instances: (0..sessions as u32).rev().collect(),
            joins: vec![0; joins],
            live: 0,
            live_max: if kind == Kind::Closed { slots } else { u32::MAX },
            budget: plan.stop.requests.map_or(u64::MAX, |n| Plan::share(n, worker, workers)),
            warm_left,
            warm_until_ns,
            duration_ns,
            stop_ns: u64::MAX,
            measured_from_ns: None,
            catch_up: plan.catch_up,
            stop_on_failure: plan.stop_session_on_failure,
            missed: 0,
            shut: false,
            out_of_time: false,
            graph,
        };
        if warm_left == 0 {
            agenda.begin_measuring(warm_until_ns);
        }
        Ok(agenda)
    }

    fn begin_measuring(&mut self, from_ns: u64) {
        self.measured_from_ns = Some(from_ns);
        self.stop_ns = self.stop_ns.min(from_ns.saturating_add(self.duration_ns));
    }

    /// What to do at `now_ns`; `slot_free` says whether a request could be started.
    #[inline]
    pub fn pick(&mut self, now_ns: u64, slot_free: bool) -> Pick {
        if self.shut || self.budget == 0 {
            return Pick::Done;
        }
        match self.kind {
            Kind::Closed => self.pick_closed(now_ns, slot_free),
            Kind::Rate => self.pick_rate(now_ns, slot_free),
            Kind::Schedule => self.pick_scheduled(now_ns, slot_free),
        }
    }

    #[inline]
    fn pick_closed(&mut self, now_ns: u64, slot_free: bool) -> Pick {
        if now_ns >= self.stop_ns {
            return Pick::Done;
        }
        let later_ns = self.later_ns();
        let root = self.source.has_roots() && (self.graph.is_none() || self.live < self.live_max);
        match later_ns {
            Some(due) if due <= now_ns => {
                if slot_free {
                    return Pick::Start(self.start_later(now_ns, due));
                }
                Pick::Wait
            }
            _ if root && slot_free => Pick::Start(self.start_root(now_ns, None)),
            Some(due) if !root => Pick::At(due),
            None if !self.source.has_roots() && self.live == 0 => Pick::Done,
            _ => Pick::Wait,
        }
    }

    fn pick_rate(&mut self, now_ns: u64, slot_free: bool) -> Pick {
        loop {
            if !self.source.has_roots() && self.live == 0 {
                return Pick::Done;
            }
            let due = self.source.arrival_ns();
            if due >= self.stop_ns {
                self.out_of_time = true;
                return Pick::Done;
            }
            if due > now_ns {
                return Pick::At(due);
            }
            if !slot_free || self.too_late(due, now_ns) {
                if self.catch_up == CatchUp::On {
                    return Pick::Wait;
                }
                if !self.miss_root() {
                    return Pick::Wait;
                }
                if self.budget == 0 {
                    return Pick::Done;
                }
                continue;
            }
            match self.later_ns() {
                Some(ready) if ready <= now_ns => {
                    self.source.take_arrival();
                    return Pick::Start(self.start_later(now_ns, ready.max(due)));
                }
                _ if self.source.has_roots() => return Pick::Start(self.start_root(now_ns, Some(due))),
                Some(ready) => return Pick::At(ready),
                None => return Pick::Wait,
            }
        }
    }

    fn pick_scheduled(&mut self, now_ns: u64, slot_free: bool) -> Pick {
        loop {
            let root_ns = match self.source.next_root() {
                Next::At(due) => due,
                Next::WhenFree | Next::Never => u64::MAX,
            };
            let later_ns = self.later_ns().unwrap_or(u64::MAX);
            let due = root_ns.min(later_ns);
            if due == u64::MAX {
                return if self.live == 0 { Pick::Done } else { Pick::Wait };
            }
            if due >= self.stop_ns {
                self.out_of_time = true;
                return Pick::Done;
            }
            if due > now_ns {
                return Pick::At(due);
            }
            if slot_free && !self.too_late(due, now_ns) {
                let work = if later_ns <= root_ns {
                    self.start_later(now_ns, due)
                } else {
                    self.start_root(now_ns, Some(due))
                };
                return Pick::Start(work);
            }
            if self.catch_up == CatchUp::On {
                return Pick::Wait;
            }
            if later_ns <= root_ns {
                self.miss_later();
            } else {
                self.miss_root();
            }
            if self.budget == 0 {
                return Pick::Done;
            }
        }
    }

    /// Without catching up, what is overdue by more than a moment is missed, even when a slot is free by now.
    #[inline]
    fn too_late(&self, due_ns: u64, now_ns: u64) -> bool {
        self.catch_up == CatchUp::Off && now_ns - due_ns > LATE_NS
    }

    /// Due time of the next later turn.
    #[inline]
    fn later_ns(&self) -> Option<u64> {
        self.later.peek().map(|Reverse(l)| l.due_ns)
    }

    #[inline]
    fn start_root(&mut self, now_ns: u64, due_ns: Option<u64>) -> Work {
        let unit = self.source.take();
        let instance = self.open_instance(unit.index);
        let warmup = self.count(due_ns.unwrap_or(now_ns));
        Work { record: unit.record, unit: unit.index, instance, due_ns, warmup }
    }

    fn start_later(&mut self, _now_ns: u64, due_ns: u64) -> Work {
        let later = self.later.pop().map_or_else(|| unreachable!("peeked before"), |Reverse(l)| l);
        let warmup = self.count(due_ns);
        let unit = self.instances[later.instance as usize].unit;
        Work { record: RecordId(later.record), unit, instance: later.instance, due_ns: Some(due_ns), warmup }
    }

    /// Counts one request that is issued or missed; true for one of the warm-up.
    #[inline]
    fn count(&mut self, at_ns: u64) -> bool {
        if self.warm_left > 0 {
            self.warm_left -= 1;
            if self.warm_left == 0 {
                self.begin_measuring(at_ns);
            }
            return true;
        }
        if at_ns < self.warm_until_ns {
            return true;
        }
        self.budget -= 1;
        false
    }

    fn open_instance(&mut self, unit: u64) -> u32 {
        let Some(graph) = &self.graph else { return ALONE };
        let instance = self.free_instances.pop().unwrap_or_else(|| {
            // More sessions at once than were foreseen: the table grows, which is rare and better than a wrong schedule.
            let id = self.instances.len() as u32;
            self.instances.push(Instance::default());
            self.joins.resize(self.joins.len() + graph.joins_max() as usize, 0);
            id
        });
        let joins = graph.joins_max() as usize;
        self.joins[instance as usize * joins..(instance as usize + 1) * joins].fill(0);
        self.instances[instance as usize] = Instance { unit, live: 1 };
        self.live += 1;
        instance
    }

    /// A request of this record ended at `end_ns`: its later turns may become due.
    #[inline]
    pub fn ended(&mut self, record: RecordId, instance: u32, succeeded: bool, end_ns: u64) {
        if instance == ALONE {
            return;
        }
        if succeeded || !self.stop_on_failure {
            self.follow(record, instance, end_ns);
        }
        self.release(instance);
    }

    fn follow(&mut self, record: RecordId, instance: u32, end_ns: u64) {
        let Some(graph) = self.graph.clone() else { return };
        for &next in graph.successors(record) {
            let next_id = RecordId(next);
            if let Some(join) = graph.join(next_id) {
                let answered = &mut self.joins[instance as usize * graph.joins_max() as usize + join as usize];
                *answered += 1;
                if *answered < graph.predecessors(next_id) {
                    continue;
                }
            }
            self.instances[instance as usize].live += 1;
            self.order += 1;
            let pass_ns = self.source.pass_ns(self.instances[instance as usize].unit);
            let due_ns = graph.due_ns(next_id, end_ns, pass_ns);
            let later = Later { due_ns, order: self.order, record: next, instance };
            self.later.push(Reverse(later));
        }
    }

    fn release(&mut self, instance: u32) {
        let entry = &mut self.instances[instance as usize];
        entry.live -= 1;
        if entry.live == 0 {
            self.live -= 1;
            self.free_instances.push(instance);
        }
    }

    /// Drops the next root as missed. False when there is none.
    fn miss_root(&mut self) -> bool {
        if !self.source.has_roots() {
            return false;
        }
        let due = match self.source.next_root() {
            Next::At(due) => due,
            Next::WhenFree | Next::Never => 0,
        };
        self.source.take();
        if !self.count(due) {
            self.missed += 1;
        }
        true
    }

    fn miss_later(&mut self) {
        if let Some(Reverse(later)) = self.later.pop() {
            if !self.count(later.due_ns) {
                self.missed += 1;
            }
            self.release(later.instance);
        }
    }

    /// Nothing is scheduled from `now_ns` on; what was due before may still start.
    pub fn stop(&mut self, now_ns: u64) {
        self.stop_ns = self.stop_ns.min(now_ns);
    }

    /// Nothing starts any more. What was due before `now_ns` and the stop is missed.
    pub fn shut(&mut self, now_ns: u64) {
        if std::mem::replace(&mut self.shut, true) || self.kind == Kind::Closed {
            return;
        }
        // What came due within the last moment had no turn yet: an interrupt leaves it unscheduled, not missed.
        let end_ns = self.stop_ns.min(now_ns.saturating_sub(LATE_NS));
        while self.budget > 0 {
            let root_ns = match self.source.next_root() {
                Next::At(due) => due,
                Next::WhenFree | Next::Never => u64::MAX,
            };
            if root_ns >= end_ns || !self.miss_root() {
                break;
            }
        }
        if self.kind == Kind::Schedule {
            while self.budget > 0 && self.later_ns().is_some_and(|due| due < end_ns) {
                self.miss_later();
            }
        }
    }

    /// Why nothing more is scheduled, once [`Pick::Done`] was said at `now_ns`.
    pub fn ended_by(&self, now_ns: u64) -> EndedBy {
        if self.budget == 0 {
            EndedBy::Requests
        } else if now_ns >= self.stop_ns || self.out_of_time {
            EndedBy::Duration
        } else {
            EndedBy::Dataset
        }
    }

    /// Requests that were due and never issued.
    pub const fn missed(&self) -> u64 {
        self.missed
    }

    /// When measuring began; none while the warm-up runs.
    pub const fn measured_from_ns(&self) -> Option<u64> {
        self.measured_from_ns
    }

    /// The time from which nothing is scheduled; none without one.
    pub const fn stop_ns(&self) -> Option<u64> {
        if self.stop_ns == u64::MAX { None } else { Some(self.stop_ns) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        data::plan::{Arrival, Segment, Stop},
        pace::{Edges, Place},
    };

    const MS: u64 = 1_000_000;

    fn closed(requests: Option<u64>, passes: Option<u64>, duration_ns: Option<u64>) -> Plan {
        Plan { stop: Stop { requests, passes, duration_ns, drain_ns: 0, max_errors: None }, ..Plan::for_tests() }
    }

    fn rate(rps: f64, plan: Plan) -> Plan {
        let curve = vec![Segment { duration_ns: 0, from: rps, to: rps }];
        Plan { shape: Shape::Rate { arrival: Arrival::Constant, curve }, ..plan }
    }

    fn alone(records: u32, plan: &Plan, slots: u32) -> Agenda {
        let roots =
            Roots::new(records, |_| Place { inside: true, predecessors: 0, due_ns: None }, false, &plan.shape).unwrap();
        Agenda::new(plan, Arc::new(roots), None, 0, 1, slots).unwrap()
    }

    /// A dataset of edges `from -> to`, with one wait for all.
    fn linked(records: u32, edges: &[(u32, u32)], delay_ns: u64, plan: &Plan, slots: u32) -> Agenda {
        let column = |pick: fn(&(u32, u32)) -> (u32, u32)| {
            let mut table = vec![Vec::new(); records as usize];
            for edge in edges {
                let (at, other) = pick(edge);
                table[at as usize].push(other);
            }
            table
        };
        let successors = column(|&(from, to)| (from, to));
        let predecessors = column(|&(from, to)| (to, from));
        let edge = |r: RecordId| Edges {
            predecessors: &predecessors[r.index()],
            successors: &successors[r.index()],
            delay_ns,
            due_ns: Some(0),
        };
        let graph = Graph::new(records, edge, |_| true, plan).unwrap().map(Arc::new);
        let place = |r: RecordId| Place { inside: true, predecessors: predecessors[r.index()].len(), due_ns: Some(0) };
        let roots = Roots::new(records, place, true, &plan.shape).unwrap();
        Agenda::new(plan, Arc::new(roots), graph, 0, 1, slots).unwrap()
    }

    fn started(pick: Pick) -> Work {
        match pick {
            Pick::Start(work) => work,
            other => panic!("expected a start, got {other:?}"),
        }
    }

    #[test]
    fn a_closed_loop_starts_when_a_slot_is_free_and_ends_after_its_count() {
        let mut a = alone(3, &closed(Some(4), None, None), 1);
        for want in [0, 1, 2, 0] {
            assert_eq!(a.pick(5, false), Pick::Wait);
            assert_eq!(started(a.pick(5, true)).record.0, want);
        }
        assert_eq!(a.pick(5, true), Pick::Done);
        assert_eq!(a.ended_by(5), EndedBy::Requests);
    }

    #[test]
    fn a_duration_ends_a_closed_loop_and_a_pass_ends_a_dataset() {
        let mut a = alone(3, &closed(None, None, Some(100)), 1);
        started(a.pick(99, true));
        assert_eq!(a.pick(100, true), Pick::Done);
        assert_eq!(a.ended_by(100), EndedBy::Duration);
        let mut a = alone(1, &closed(None, Some(1), None), 1);
        started(a.pick(0, true));
        assert_eq!(a.pick(0, true), Pick::Done);
        assert_eq!(a.ended_by(0), EndedBy::Dataset);
    }

    #[test]
    fn what_waits_for_a_slot_keeps_its_due_time_and_is_missed_at_the_end() {
        let mut a = alone(3, &rate(10.0, closed(None, None, Some(1_000 * MS))), 1);
        assert_eq!(started(a.pick(0, true)).due_ns, Some(0));
        assert_eq!(a.pick(0, true), Pick::At(100 * MS));
        assert_eq!(a.pick(450 * MS, false), Pick::Wait);
        assert_eq!(started(a.pick(450 * MS, true)).due_ns, Some(100 * MS));
        // After the stop the overdue may still start, what comes later may not.
        assert_eq!(started(a.pick(1_200 * MS, true)).due_ns, Some(200 * MS));
        a.shut(1_500 * MS);
        assert_eq!(a.missed(), 7);
        assert_eq!(a.pick(1_500 * MS, true), Pick::Done);
        assert_eq!(a.ended_by(1_500 * MS), EndedBy::Duration);
    }

    #[test]
    fn without_catching_up_the_overdue_are_missed_at_once() {
        let plan = Plan { catch_up: CatchUp::Off, ..rate(10.0, closed(Some(8), None, None)) };
        let mut a = alone(3, &plan, 1);
        started(a.pick(0, true));
        assert_eq!(a.pick(350 * MS, false), Pick::At(400 * MS));
        assert_eq!(a.missed(), 3);
        assert_eq!(a.pick(350 * MS, true), Pick::At(400 * MS));
        assert_eq!(started(a.pick(400 * MS, true)).due_ns, Some(400 * MS));
        assert_eq!(a.pick(10_000 * MS, false), Pick::Done);
        assert_eq!(a.missed(), 6, "eight in all: two issued, six missed");
    }

    #[test]
    fn the_warm_up_is_in_no_budget_and_time_begins_after_it() {
        let plan = Plan { warmup: Warmup::Requests(2), ..closed(Some(3), None, Some(100)) };
        let mut a = alone(10, &plan, 1);
        assert!(started(a.pick(10, true)).warmup && started(a.pick(20, true)).warmup);
        assert_eq!(a.stop_ns(), Some(120));
        assert_eq!((0..3).filter(|_| started(a.pick(30, true)).warmup).count(), 0);
        assert_eq!(a.pick(30, true), Pick::Done);
        let plan = Plan { warmup: Warmup::Time(1_000 * MS), ..rate(20.0, closed(None, None, Some(2_000 * MS))) };
        let mut a = alone(10, &plan, 1);
        let works: Vec<_> = (0..60).map(|_| started(a.pick(3_000 * MS, true))).collect();
        assert_eq!(works.iter().filter(|w| w.warmup).count(), 20);
        assert_eq!(a.pick(3_000 * MS, true), Pick::Done);
    }

    #[test]
    fn turns_wait_for_the_answer_and_the_delay_and_hold_their_slot_in_a_closed_loop() {
        let plan = closed(None, Some(1), None);
        let mut a = linked(4, &[(0, 1), (2, 3)], 200, &plan, 1);
        let first = started(a.pick(0, true));
        assert_eq!(first.record.0, 0);
        assert_eq!(a.pick(50, true), Pick::Wait, "one user: the second session waits for the first to end");
        a.ended(first.record, first.instance, true, 100);
        assert_eq!(a.pick(100, true), Pick::At(300));
        let second = started(a.pick(300, true));
        assert_eq!((second.record.0, second.due_ns, second.unit), (1, Some(300), first.unit));
        a.ended(second.record, second.instance, true, 400);
        let third = started(a.pick(400, true));
        assert_eq!(third.record.0, 2);
        a.ended(third.record, third.instance, false, 500);
        assert_eq!(a.pick(900, true), Pick::Done, "a failed turn ends its session");
    }

    #[test]
    fn an_arrival_goes_to_a_waiting_turn_before_a_new_session() {
        let plan = rate(1_000.0, closed(None, Some(1), None));
        let mut a = linked(3, &[(0, 1)], 0, &plan, 8);
        let first = started(a.pick(0, true));
        assert_eq!(a.pick(0, true), Pick::At(MS));
        a.ended(first.record, first.instance, true, MS / 2);
        assert_eq!(started(a.pick(MS, true)).record.0, 1);
        assert_eq!(started(a.pick(2 * MS, true)).record.0, 2);
    }

    #[test]
    fn a_join_over_two_graphs_is_refused() {
        let plan = closed(None, Some(1), None);
        let (predecessors, successors) = ([vec![], vec![], vec![0, 1]], [vec![2], vec![2], vec![]]);
        let edge = |r: RecordId| Edges {
            predecessors: &predecessors[r.index()],
            successors: &successors[r.index()],
            ..Edges::default()
        };
        assert!(Graph::new(3, edge, |_| true, &plan).unwrap_err().to_string().contains("two separate graphs"));
    }

    proptest! {
        /// Over random graphs: nothing starts before its predecessors ended, nothing is lost, nothing comes twice.
        #[test]
        fn graphs_run_in_order_and_whole(
            records in 1u32..40,
            picks in proptest::collection::vec((0u32..40, 0u32..40), 0..80),
            slots in 1u32..5,
            delay in 0u64..30,
            seed in any::<u64>(),
        ) {
            let mut edges: Vec<(u32, u32)> =
                picks.into_iter().map(|(a, b)| (a % records, b % records)).filter(|(a, b)| a < b).collect();
            edges.extend((1..records).filter(|r| edges.iter().all(|e| e.1 != *r)).map(|r| (0, r)).collect::<Vec<_>>());
            edges.sort_unstable();
            edges.dedup();
            let plan = closed(None, Some(2), None);
            let mut a = linked(records, &edges, delay, &plan, slots);
            let (mut ended, mut count, mut flying) = (vec![vec![None; records as usize]; 2], vec![0; records as usize], Vec::new());
            let (mut now, mut random) = (0u64, seed);
            loop {
                match a.pick(now, flying.len() < slots as usize) {
                    Pick::Start(work) => {
                        count[work.record.index()] += 1;
                        for &(from, _) in edges.iter().filter(|e| e.1 == work.record.0) {
                            let end: Option<u64> = ended[work.unit as usize][from as usize];
                            prop_assert!(end.is_some_and(|end| end + delay <= now));
                        }
                        flying.push(work);
                        continue;
                    }
                    Pick::Done if flying.is_empty() => break,
                    Pick::At(due) if flying.is_empty() => { now = now.max(due); continue; }
                    _ => {}
                }
                prop_assert!(!flying.is_empty(), "stuck");
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let work: Work = flying.swap_remove((random >> 33) as usize % flying.len());
                now += 7;
                ended[work.unit as usize][work.record.index()] = Some(now);
                a.ended(work.record, work.instance, true, now);
            }
            prop_assert_eq!(count, vec![2; records as usize]);
        }
    }
}
