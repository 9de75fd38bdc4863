//! One worker's scheduler: what starts next, and when. One loop carries every shape; the shapes differ in what a root and a
//! later turn wait for.
//!
//! Times are nanoseconds from the start of the run. Nothing here reads a clock, and after set-up nothing allocates as long as
//! no more sessions wait for their next turn than [`LATER_RESERVED`].

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use super::{Graph, Next, Roots, Source, Unit, cap::Cap};
use crate::data::{
    RecordId, Result,
    plan::{CatchUp, Plan, Shape, Warmup},
    results::EndedBy,
};

/// Later turns whose delay runs at the same time, for which memory is taken at set-up, at most: 24 MiB a worker.
pub const LATER_RESERVED: usize = 1 << 20;

/// Sessions at the same time for which an open loop takes memory at set-up, where the dataset has no more: 3 MiB a worker.
const SESSIONS_RESERVED: usize = 1 << 16;

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

/// What could be started now, as far as slots go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// A root.
    pub root: bool,
    /// The later turn that is due first ([`Agenda::later_instance`]).
    pub later: bool,
}

impl Free {
    /// Both, or neither.
    pub const fn all(free: bool) -> Self {
        Self { root: free, later: free }
    }
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

/// A session of a user, where users have slots: its first slot, the turn that was released last, and how many are played.
#[derive(Clone, Copy, Debug, Default)]
struct Seat {
    slot: u64,
    turn: u32,
    turns: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Closed,
    Rate,
    /// Roots, and later turns, have times of their own.
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
    /// As long as `instances` where users have slots, else empty.
    seats: Vec<Seat>,
    /// Instances that ended without a request of theirs having ended, for whoever holds something of them.
    dropped: Vec<u32>,
    free_instances: Vec<u32>,
    /// Predecessors still missing, `joins_max` an instance.
    joins: Vec<u16>,
    /// Sessions in progress; in a closed loop at most `cap`.
    live: u32,
    cap: Cap,
    /// Measured sessions that may still be begun.
    sessions: u64,
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
    /// Sessions that had a turn to come when one failed.
    broken: u64,
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
            Shape::Schedule { .. } | Shape::Users { .. } => Kind::Schedule,
        };
        let (warm_left, warm_until_ns) = match plan.warmup {
            Warmup::None => (0, 0),
            Warmup::Time(ns) => (0, ns),
            Warmup::Requests(n) => (Plan::share(n, worker, workers), 0),
        };
        let passes = plan.stop.passes.unwrap_or(u64::MAX);
        let begun = roots.count().saturating_mul(passes).min(plan.stop.sessions.unwrap_or(u64::MAX));
        let sessions = match (&graph, kind, &plan.shape) {
            (None, ..) => 0,
            (Some(_), Kind::Closed, _) => slots as usize,
            (Some(_), _, Shape::Users { users, .. }) => (4 * *users as usize).max(SESSIONS_RESERVED),
            (Some(_), ..) => (begun as usize).min(SESSIONS_RESERVED.max(roots.count() as usize)),
        };
        let sessions = sessions.min(LATER_RESERVED);
        let waiting = graph.as_ref().map_or(0, |g| sessions.max(g.edges()).min(LATER_RESERVED));
        let joins = graph.as_ref().map_or(0, |g| sessions * g.joins_max() as usize);
        let duration_ns = plan.stop.duration_ns.unwrap_or(u64::MAX);
        let mut agenda = Self {
            source,
            kind,
            later: BinaryHeap::with_capacity(waiting),
            order: 0,
            instances: vec![Instance::default(); sessions],
            seats: vec![Seat::default(); if matches!(plan.shape, Shape::Users { .. }) { sessions } else { 0 }],
            dropped: Vec::with_capacity(sessions),
            free_instances: (0..sessions as u32).rev().collect(),
            joins: vec![0; joins],
            live: 0,
            cap: Cap::new(plan, worker, workers, slots),
            sessions: plan.stop.sessions.map_or(u64::MAX, |n| Plan::share(n, worker, workers)),
            budget: plan.stop.requests.map_or(u64::MAX, |n| Plan::share(n, worker, workers)),
            warm_left,
            warm_until_ns,
            duration_ns,
            stop_ns: u64::MAX,
            measured_from_ns: None,
            catch_up: plan.catch_up,
            stop_on_failure: plan.stop_session_on_failure,
            missed: 0,
            broken: 0,
            shut: false,
            out_of_time: false,
            graph,
        };
        if warm_left == 0 {
            agenda.begin_measuring(warm_until_ns);
        }
        Ok(agenda)
    }

    /// The agenda of a worker that has no part in a plan: it is done before it begins.
    pub fn none(plan: &Plan, roots: Arc<Roots>) -> Result<Self> {
        let still = Plan { warmup: Warmup::None, shape: Shape::Closed, ..plan.clone() };
        let mut agenda = Self::new(&still, roots, None, 0, 1, 0)?;
        (agenda.shut, agenda.stop_ns) = (true, u64::MAX);
        agenda.measured_from_ns = None;
        Ok(agenda)
    }

    fn begin_measuring(&mut self, from_ns: u64) {
        self.measured_from_ns = Some(from_ns);
        self.stop_ns = self.stop_ns.min(from_ns.saturating_add(self.duration_ns));
    }

    /// Requests that may be in flight at a time, which must not fall from call to call.
    #[inline]
    pub fn slots(&mut self, now_ns: u64) -> u32 {
        self.cap.at(now_ns)
    }

    /// When [`Agenda::slots`] changes next; `u64::MAX` for never.
    #[inline]
    pub const fn slots_until_ns(&self) -> u64 {
        self.cap.until_ns()
    }

    /// Running number of the next root, over all workers and passes.
    #[inline]
    pub const fn next_unit(&self) -> u64 {
        self.source.next_unit()
    }

    /// Session instance of the later turn that is due first.
    #[inline]
    pub fn later_instance(&self) -> Option<u32> {
        self.later.peek().map(|Reverse(l)| l.instance)
    }

    /// The next instance that ended while nothing of it was in flight: whoever holds something of it lets go.
    #[inline]
    pub fn next_dropped(&mut self) -> Option<u32> {
        self.dropped.pop()
    }

    /// How many session instances there are memory for; more than that come only when a run has more at once than foreseen.
    pub fn instances(&self) -> usize {
        self.instances.len()
    }

    /// Memory taken at set-up, bytes.
    pub fn bytes(&self) -> u64 {
        let later = self.later.capacity() * size_of::<Reverse<Later>>();
        let instances = self.instances.capacity() * size_of::<Instance>() + self.seats.capacity() * size_of::<Seat>();
        let ids = (self.free_instances.capacity() + self.dropped.capacity()) * size_of::<u32>();
        (later + instances + ids + self.joins.capacity() * size_of::<u16>()) as u64
    }

    #[inline]
    fn has_roots(&self) -> bool {
        self.sessions > 0 && self.source.has_roots()
    }

    /// What to do at `now_ns`; `free` says what could be started.
    #[inline]
    pub fn pick(&mut self, now_ns: u64, free: Free) -> Pick {
        if self.shut || self.budget == 0 {
            return Pick::Done;
        }
        match self.kind {
            Kind::Closed => self.pick_closed(now_ns, free),
            Kind::Rate => self.pick_rate(now_ns, free),
            Kind::Schedule => self.pick_scheduled(now_ns, free),
        }
    }

    #[inline]
    fn pick_closed(&mut self, now_ns: u64, free: Free) -> Pick {
        if now_ns >= self.stop_ns {
            return Pick::Done;
        }
        let later_ns = self.later_ns();
        let root = self.has_roots() && (self.graph.is_none() || self.live < self.cap.last());
        match later_ns {
            Some(due) if due <= now_ns => {
                if free.later {
                    return Pick::Start(self.start_later(now_ns, due));
                }
                Pick::Wait
            }
            _ if root && free.root => Pick::Start(self.start_root(now_ns, None)),
            // It may have a connection of its own, though there is none for a root.
            Some(due) => Pick::At(due),
            None if !self.has_roots() && self.live == 0 => Pick::Done,
            _ => Pick::Wait,
        }
    }

    fn pick_rate(&mut self, now_ns: u64, free: Free) -> Pick {
        loop {
            let roots = self.has_roots();
            if !roots && self.live == 0 {
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
            let later = self.later_ns().filter(|&ready| ready <= now_ns);
            let slot = if later.is_some() { free.later } else { free.root };
            if !slot || self.too_late(due, now_ns) {
                if self.catch_up == CatchUp::On || !self.miss_root() {
                    return self.wait_for_later(now_ns);
                }
                if self.budget == 0 {
                    return Pick::Done;
                }
                continue;
            }
            match (later, self.later_ns()) {
                (Some(ready), _) => {
                    self.source.take_arrival();
                    return Pick::Start(self.start_later(now_ns, ready.max(due)));
                }
                _ if roots => return Pick::Start(self.start_root(now_ns, Some(due))),
                (None, Some(ready)) => return Pick::At(ready),
                (None, None) => return Pick::Wait,
            }
        }
    }

    fn pick_scheduled(&mut self, now_ns: u64, free: Free) -> Pick {
        loop {
            let root_ns = self.root_ns();
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
            // A root that finds no connection does not hold up a turn that has its own.
            let turn = later_ns <= root_ns || (!free.root && free.later && later_ns <= now_ns);
            let due = if turn { later_ns } else { root_ns };
            let slot = if turn { free.later } else { free.root };
            if slot && !self.too_late(due, now_ns) {
                let work = if turn { self.start_later(now_ns, due) } else { self.start_root(now_ns, Some(due)) };
                return Pick::Start(work);
            }
            if self.catch_up == CatchUp::On {
                return self.wait_for_later(now_ns);
            }
            if turn {
                self.miss_later();
            } else {
                self.miss_root();
            }
            if self.budget == 0 {
                return Pick::Done;
            }
        }
    }

    /// What is due has no slot: one comes with an answer, or a turn that has a connection of its own comes due.
    fn wait_for_later(&self, now_ns: u64) -> Pick {
        match self.later_ns() {
            Some(due) if due > now_ns => Pick::At(due),
            _ => Pick::Wait,
        }
    }

    /// Without catching up, what is overdue by more than a moment is missed, even when a slot is free by now.
    #[inline]
    fn too_late(&self, due_ns: u64, now_ns: u64) -> bool {
        self.catch_up == CatchUp::Off && now_ns - due_ns > LATE_NS
    }

    /// Due time of the next root; `u64::MAX` when there is none with a time.
    #[inline]
    fn root_ns(&mut self) -> u64 {
        match self.source.next_root() {
            Next::At(due) if self.sessions > 0 => due,
            _ => u64::MAX,
        }
    }

    /// Due time of the next later turn.
    #[inline]
    fn later_ns(&self) -> Option<u64> {
        self.later.peek().map(|Reverse(l)| l.due_ns)
    }

    #[inline]
    fn start_root(&mut self, now_ns: u64, due_ns: Option<u64>) -> Work {
        let unit = self.source.take();
        let instance = self.open_instance(&unit);
        let warmup = self.count_root(due_ns.unwrap_or(now_ns));
        Work { record: unit.record, unit: unit.index, instance, due_ns, warmup }
    }

    fn start_later(&mut self, _now_ns: u64, due_ns: u64) -> Work {
        let later = self.later.pop().map_or_else(|| unreachable!("peeked before"), |Reverse(l)| l);
        let warmup = self.count(due_ns);
        let unit = self.instances[later.instance as usize].unit;
        Work { record: RecordId(later.record), unit, instance: later.instance, due_ns: Some(due_ns), warmup }
    }

    /// As [`Agenda::count`], for the first request of a session.
    #[inline]
    fn count_root(&mut self, at_ns: u64) -> bool {
        let warmup = self.count(at_ns);
        self.sessions -= u64::from(!warmup);
        warmup
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

    fn open_instance(&mut self, unit: &Unit) -> u32 {
        let Some(graph) = &self.graph else { return ALONE };
        let instance = self.free_instances.pop().unwrap_or_else(|| {
            // More sessions at once than were foreseen: the table grows, which is rare and better than a wrong schedule.
            let id = self.instances.len() as u32;
            self.instances.push(Instance::default());
            if !self.seats.is_empty() {
                self.seats.push(Seat::default());
            }
            self.joins.resize(self.joins.len() + graph.joins_max() as usize, 0);
            id
        });
        let joins = graph.joins_max() as usize;
        self.joins[instance as usize * joins..(instance as usize + 1) * joins].fill(0);
        self.instances[instance as usize] = Instance { unit: unit.index, live: 1 };
        if let Some(seat) = self.seats.get_mut(instance as usize) {
            *seat = Seat { slot: unit.slot, turn: 0, turns: unit.turns };
        }
        self.live += 1;
        instance
    }

    /// A request of this record ended at `end_ns`: its later turns may become due. True when its session goes on.
    #[inline]
    pub fn ended(&mut self, record: RecordId, instance: u32, succeeded: bool, end_ns: u64) -> bool {
        if instance == ALONE {
            return false;
        }
        if succeeded || !self.stop_on_failure {
            self.follow(record, instance, end_ns);
        } else if self.graph.as_ref().is_some_and(|graph| !graph.successors(record).is_empty()) {
            self.broken += 1;
        }
        self.release(instance)
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
            let Some(due_ns) = self.due_of(&graph, next_id, instance, end_ns) else { continue };
            self.instances[instance as usize].live += 1;
            self.order += 1;
            let later = Later { due_ns, order: self.order, record: next, instance };
            self.later.push(Reverse(later));
        }
    }

    /// When a turn is due whose predecessors have all ended, the last at `end_ns`; none when it is not played. A user's turn has
    /// its slot: it was due then, however late the answer before it came.
    fn due_of(&mut self, graph: &Graph, record: RecordId, instance: u32, end_ns: u64) -> Option<u64> {
        if let Some(seat) = self.seats.get_mut(instance as usize) {
            seat.turn += 1;
            return if seat.turn < seat.turns { self.source.turn_ns(seat.slot, seat.turn) } else { None };
        }
        let pass_ns = self.source.pass_ns(self.instances[instance as usize].unit);
        Some(graph.due_ns(record, end_ns, pass_ns))
    }

    /// One request less of an instance. True when it goes on.
    fn release(&mut self, instance: u32) -> bool {
        let entry = &mut self.instances[instance as usize];
        entry.live -= 1;
        if entry.live > 0 {
            return true;
        }
        self.live -= 1;
        self.free_instances.push(instance);
        false
    }

    /// Drops the next root as missed. False when there is none.
    fn miss_root(&mut self) -> bool {
        if !self.has_roots() {
            return false;
        }
        let due = match self.source.next_root() {
            Next::At(due) => due,
            Next::WhenFree | Next::Never => 0,
        };
        self.source.take();
        if !self.count_root(due) {
            self.missed += 1;
        }
        true
    }

    fn miss_later(&mut self) {
        if let Some(Reverse(later)) = self.later.pop() {
            if !self.count(later.due_ns) {
                self.missed += 1;
            }
            if !self.release(later.instance) && self.dropped.len() < self.dropped.capacity() {
                self.dropped.push(later.instance);
            }
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
        self.miss_all_before(end_ns);
        while self.budget > 0 {
            if self.root_ns() >= end_ns || !self.miss_root() {
                break;
            }
        }
        if self.kind == Kind::Schedule {
            while self.budget > 0 && self.later_ns().is_some_and(|due| due < end_ns) {
                self.miss_later();
            }
        }
    }

    /// Misses the roots of an even process in one step, which at a high rate and a long stall are millions.
    fn miss_all_before(&mut self, end_ns: u64) {
        // What is left of the warm-up goes one by one.
        if self.warm_left > 0 || self.root_ns() < self.warm_until_ns {
            return;
        }
        if let Some(n) = self.source.skip_arrivals(end_ns, self.budget.min(self.sessions)) {
            self.missed += n;
            self.budget -= n;
            self.sessions -= n;
        }
    }

    /// Why nothing more is scheduled, once [`Pick::Done`] was said at `now_ns`.
    pub fn ended_by(&self, now_ns: u64) -> EndedBy {
        if self.budget == 0 || self.sessions == 0 {
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

    /// Failed turns whose successors were not played because of it.
    pub const fn broken(&self) -> u64 {
        self.broken
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
        Plan { stop: Stop { requests, passes, duration_ns, ..Plan::for_tests().stop }, ..Plan::for_tests() }
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
        linked_part(records, edges, delay_ns, plan, slots, (0, 1))
    }

    /// The same for one worker of several.
    fn linked_part(
        records: u32,
        edges: &[(u32, u32)],
        delay_ns: u64,
        plan: &Plan,
        slots: u32,
        (worker, workers): (usize, usize),
    ) -> Agenda {
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
        let roots = match (&graph, &plan.shape) {
            (Some(graph), Shape::Users { .. }) => roots.with_turns(|root| Ok(graph.turns(root).unwrap())).unwrap(),
            _ => roots,
        };
        Agenda::new(plan, Arc::new(roots), graph, worker, workers, slots).unwrap()
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
            assert_eq!(a.pick(5, Free::all(false)), Pick::Wait);
            assert_eq!(started(a.pick(5, Free::all(true))).record.0, want);
        }
        assert_eq!(a.pick(5, Free::all(true)), Pick::Done);
        assert_eq!(a.ended_by(5), EndedBy::Requests);
    }

    #[test]
    fn a_duration_ends_a_closed_loop_and_a_pass_ends_a_dataset() {
        let mut a = alone(3, &closed(None, None, Some(100)), 1);
        started(a.pick(99, Free::all(true)));
        assert_eq!(a.pick(100, Free::all(true)), Pick::Done);
        assert_eq!(a.ended_by(100), EndedBy::Duration);
        let mut a = alone(1, &closed(None, Some(1), None), 1);
        started(a.pick(0, Free::all(true)));
        assert_eq!(a.pick(0, Free::all(true)), Pick::Done);
        assert_eq!(a.ended_by(0), EndedBy::Dataset);
    }

    #[test]
    fn what_waits_for_a_slot_keeps_its_due_time_and_is_missed_at_the_end() {
        let mut a = alone(3, &rate(10.0, closed(None, None, Some(1_000 * MS))), 1);
        assert_eq!(started(a.pick(0, Free::all(true))).due_ns, Some(0));
        assert_eq!(a.pick(0, Free::all(true)), Pick::At(100 * MS));
        assert_eq!(a.pick(450 * MS, Free::all(false)), Pick::Wait);
        assert_eq!(started(a.pick(450 * MS, Free::all(true))).due_ns, Some(100 * MS));
        // After the stop the overdue may still start, what comes later may not.
        assert_eq!(started(a.pick(1_200 * MS, Free::all(true))).due_ns, Some(200 * MS));
        a.shut(1_500 * MS);
        assert_eq!(a.missed(), 7);
        assert_eq!(a.pick(1_500 * MS, Free::all(true)), Pick::Done);
        assert_eq!(a.ended_by(1_500 * MS), EndedBy::Duration);
    }

    #[test]
    fn without_catching_up_the_overdue_are_missed_at_once() {
        let plan = Plan { catch_up: CatchUp::Off, ..rate(10.0, closed(Some(8), None, None)) };
        let mut a = alone(3, &plan, 1);
        started(a.pick(0, Free::all(true)));
        assert_eq!(a.pick(350 * MS, Free::all(false)), Pick::At(400 * MS));
        assert_eq!(a.missed(), 3);
        assert_eq!(a.pick(350 * MS, Free::all(true)), Pick::At(400 * MS));
        assert_eq!(started(a.pick(400 * MS, Free::all(true))).due_ns, Some(400 * MS));
        assert_eq!(a.pick(10_000 * MS, Free::all(false)), Pick::Done);
        assert_eq!(a.missed(), 6, "eight in all: two issued, six missed");
    }

    #[test]
    fn the_warm_up_is_in_no_budget_and_time_begins_after_it() {
        let plan = Plan { warmup: Warmup::Requests(2), ..closed(Some(3), None, Some(100)) };
        let mut a = alone(10, &plan, 1);
        assert!(started(a.pick(10, Free::all(true))).warmup && started(a.pick(20, Free::all(true))).warmup);
        assert_eq!(a.stop_ns(), Some(120));
        assert_eq!((0..3).filter(|_| started(a.pick(30, Free::all(true))).warmup).count(), 0);
        assert_eq!(a.pick(30, Free::all(true)), Pick::Done);
        let plan = Plan { warmup: Warmup::Time(1_000 * MS), ..rate(20.0, closed(None, None, Some(2_000 * MS))) };
        let mut a = alone(10, &plan, 1);
        let works: Vec<_> = (0..60).map(|_| started(a.pick(3_000 * MS, Free::all(true)))).collect();
        assert_eq!(works.iter().filter(|w| w.warmup).count(), 20);
        assert_eq!(a.pick(3_000 * MS, Free::all(true)), Pick::Done);
    }

    #[test]
    fn turns_wait_for_the_answer_and_the_delay_and_hold_their_slot_in_a_closed_loop() {
        let plan = closed(None, Some(1), None);
        let mut a = linked(4, &[(0, 1), (2, 3)], 200, &plan, 1);
        let first = started(a.pick(0, Free::all(true)));
        assert_eq!(first.record.0, 0);
        assert_eq!(a.pick(50, Free::all(true)), Pick::Wait, "one user: the second session waits for the first to end");
        a.ended(first.record, first.instance, true, 100);
        assert_eq!(a.pick(100, Free::all(true)), Pick::At(300));
        let second = started(a.pick(300, Free::all(true)));
        assert_eq!((second.record.0, second.due_ns, second.unit), (1, Some(300), first.unit));
        a.ended(second.record, second.instance, true, 400);
        let third = started(a.pick(400, Free::all(true)));
        assert_eq!(third.record.0, 2);
        a.ended(third.record, third.instance, false, 500);
        assert_eq!(a.pick(900, Free::all(true)), Pick::Done, "a failed turn ends its session");
    }

    #[test]
    fn an_arrival_goes_to_a_waiting_turn_before_a_new_session() {
        let plan = rate(1_000.0, closed(None, Some(1), None));
        let mut a = linked(3, &[(0, 1)], 0, &plan, 8);
        let first = started(a.pick(0, Free::all(true)));
        assert_eq!(a.pick(0, Free::all(true)), Pick::At(MS));
        a.ended(first.record, first.instance, true, MS / 2);
        assert_eq!(started(a.pick(MS, Free::all(true))).record.0, 1);
        assert_eq!(started(a.pick(2 * MS, Free::all(true))).record.0, 2);
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

    #[test]
    fn lateness_has_a_bound_with_a_free_slot_and_at_the_end() {
        let plan = Plan { catch_up: CatchUp::Off, ..rate(10.0, closed(None, None, Some(1_000 * MS))) };
        let mut a = alone(3, &plan, 1);
        assert_eq!(started(a.pick(LATE_NS, Free::all(true))).due_ns, Some(0), "late by a turn of the loop, no more");
        assert_eq!(a.pick(100 * MS + LATE_NS + 1, Free::all(true)), Pick::At(200 * MS));
        assert_eq!(a.missed(), 1);
        // What came due within the last moment before an interrupt had no turn yet.
        a.stop(305 * MS);
        a.shut(305 * MS);
        assert_eq!(a.missed(), 2, "200 ms is missed, 300 ms is not scheduled");
    }

    #[test]
    fn missing_millions_takes_no_walk_and_counts_them_all() {
        let plan = rate(5e6, closed(None, None, Some(3_600_000 * MS)));
        let mut a = alone(3, &plan, 1);
        started(a.pick(0, Free::all(true)));
        let begun = std::time::Instant::now();
        a.shut(3_600_000 * MS);
        assert_eq!(a.missed(), 5_000_000 * 3_600 - 1 - 50_000, "all but the first, and the last moment's");
        assert!(begun.elapsed().as_millis() < 500, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_users_turns_have_slots_and_a_late_answer_moves_none() {
        let shape = Shape::Users { users: 2, rps: 10.0 };
        let plan = Plan { shape, ..closed(None, None, Some(2_000 * MS)) };
        // Two sessions of four turns each.
        let turns: Vec<(u32, u32)> = (0..8).filter(|r| r % 4 < 3).map(|r| (r, r + 1)).collect();
        let mut a = linked(8, &turns, 77, &plan, 8);
        let first = started(a.pick(0, Free::all(true)));
        assert_eq!((first.record.0, first.due_ns), (0, Some(0)));
        assert_eq!(a.pick(0, Free::all(true)), Pick::At(100 * MS));
        let other = started(a.pick(100 * MS, Free::all(true)));
        assert_eq!((other.record.0, other.due_ns), (4, Some(100 * MS)));
        // The answer comes after the next turn's slot at 200 ms: it is late and keeps that due time.
        a.ended(first.record, first.instance, true, 350 * MS);
        assert_eq!(started(a.pick(350 * MS, Free::all(true))).due_ns, Some(200 * MS));
        // An early answer does not make the next turn early.
        a.ended(other.record, other.instance, true, 110 * MS);
        let next = started(a.pick(350 * MS, Free::all(true)));
        assert!([Some(300 * MS)].contains(&next.due_ns), "{next:?}");
    }

    #[test]
    fn a_count_of_sessions_is_whole_sessions() {
        let base = closed(None, None, None);
        let plan = Plan { stop: Stop { sessions: Some(2), ..base.stop }, ..base };
        let mut a = linked(6, &[(0, 1), (2, 3), (4, 5)], 0, &plan, 4);
        let (x, y) = (started(a.pick(0, Free::all(true))), started(a.pick(0, Free::all(true))));
        assert_eq!(a.pick(0, Free::all(true)), Pick::Wait, "two have begun");
        a.ended(x.record, x.instance, true, 5);
        a.ended(y.record, y.instance, true, 5);
        let later = [started(a.pick(5, Free::all(true))), started(a.pick(5, Free::all(true)))];
        for w in later {
            assert!(!a.ended(w.record, w.instance, true, 9), "the session is over");
        }
        assert_eq!((a.pick(9, Free::all(true)), a.ended_by(9)), (Pick::Done, EndedBy::Requests));
    }

    proptest! {
        /// Over random graphs, in a closed and in an open loop, over one worker and several: nothing starts before its
        /// predecessors ended, nothing is lost, nothing comes twice.
        #[test]
        fn graphs_run_in_order_and_whole(
            records in 1u32..40,
            graphs in 1u32..5,
            picks in proptest::collection::vec((0u32..40, 0u32..40), 0..80),
            slots in 1u32..5,
            delay in 0u64..30,
            open in any::<bool>(),
            workers in 1usize..4,
            seed in any::<u64>(),
        ) {
            let graphs = graphs.min(records);
            let mut edges: Vec<(u32, u32)> = picks
                .into_iter()
                .map(|(a, b)| (a % records, b % records))
                .filter(|(a, b)| a < b && a % graphs == b % graphs && *b >= graphs)
                .collect();
            let lone = (graphs..records).filter(|r| edges.iter().all(|e| e.1 != *r));
            edges.extend(lone.map(|r| (r % graphs, r)).collect::<Vec<_>>());
            edges.sort_unstable();
            edges.dedup();
            let plan = closed(None, Some(2), None);
            let plan = if open { rate(1e7, plan) } else { plan };
            let mut count = vec![0; records as usize];
            for worker in 0..workers {
                let mut a = linked_part(records, &edges, delay, &plan, slots, (worker, workers));
                let mut ended = vec![vec![None; records as usize]; 2 * graphs as usize];
                let (mut flying, mut now, mut random) = (Vec::new(), 0u64, seed);
                loop {
                    match a.pick(now, Free::all(flying.len() < slots as usize)) {
                        Pick::Start(work) => {
                            count[work.record.index()] += 1;
                            prop_assert_eq!(work.unit as usize % workers, worker, "a whole graph on one worker");
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
            }
            prop_assert_eq!(count, vec![2; records as usize]);
        }
    }
}
