//! Layer 5: the workers. A plan and a mapped dataset in, the results of a run out.
//!
//! One thread, one ring, one core a worker; nothing is shared while the load runs but counters that one side writes and the
//! other reads. The calling thread is the control thread: it watches signals, error bounds and progress.

mod conn;
mod dispatch;
pub mod io;
pub mod live;
pub mod quiet;
mod rows;
mod secure;
#[cfg(test)]
mod sim;
mod slots;
mod stamps;
pub mod tally;
mod tls;
mod worker;

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use live::{Control, Counts, Halt, Live};
pub use tls::check as check_tls;
use worker::{Heads, SendRule, Shared, Worker};

use crate::{
    cache::View,
    data::{
        Error, Nanos, RecordId, Result, WorkerId, limits,
        plan::{MaxErrors, Plan, Shape, Warmup},
        results::{EndedBy, RunResult, WorkerResult},
        rows::Keep,
    },
    pace::{Agenda, Edges, Graph, Place, Roots},
    sys::{
        clock::{self, Clock},
        cpu,
        ring::{Ring, RingConfig},
        signal,
    },
    wire::request::HeadTemplate,
};

/// How often the control thread looks.
const LOOK: Duration = Duration::from_millis(20);
/// From the look that found the cache entry changed to the end of the run.
const CHANGED_TOLD_NS: u64 = 100_000_000;
/// How long before the start the workers are released: enough for all of them to wake.
const LEAD_NS: u64 = 2_000_000;
/// Send-area bytes for small bodies over all connections of a worker: 4 MiB, so that 10,000 connections stay within 8 MiB.
const COPY_ROOM_TOTAL: usize = 4 << 20;

/// What the control thread tells while the run goes on.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time since the start, warm-up included.
    pub elapsed_ns: u64,
    /// Counters over all workers.
    pub counts: Counts,
    /// 99th percentile of the latencies so far, to the half octave.
    pub p99_ns: Option<u64>,
}

/// Runs a plan over a dataset to its end.
///
/// `keep` says what is kept of each request, and where; none keeps nothing. `observe` is called about every 20 ms.
///
/// Errors: what the environment refuses before anything was sent, or a ring that broke. A run in which every request failed is
/// a result, not an error.
pub fn run(plan: Plan, view: Arc<View>, keep: Option<&Keep>, observe: &mut dyn FnMut(&Progress)) -> Result<RunResult> {
    let set_up = SetUp::new(&plan, &view)?;
    let workers = plan.workers();
    let shared = Shared {
        heads: heads(&plan, &view)?,
        addresses: set_up.addresses.clone(),
        control: Control::default(),
        live: (0..workers).map(|_| Live::default()).collect(),
        roots: set_up.roots.count(),
        clock: Clock::start(),
        tls: tls::Settings::new(&plan)?,
        view,
        plan,
    };
    let started_unix_ns = clock::unix_ns();
    let gate = Gate {
        barrier: Barrier::new(workers + 1),
        start: AtomicU64::new(0),
        abort: AtomicBool::new(false),
        working: AtomicUsize::new(workers),
    };
    let control_thread = thread::current();
    let ended = thread::scope(|scope| -> Result<Vec<Ended>> {
        let (ready, readies) = mpsc::channel();
        let mut threads = Vec::new();
        for index in 0..workers {
            let (ready, shared, set_up, gate) = (ready.clone(), &shared, &set_up, &gate);
            let control_thread = &control_thread;
            let body = move || {
                let ended = work(index, shared, set_up, gate, keep, started_unix_ns, &ready);
                gate.working.fetch_sub(1, Ordering::Release);
                control_thread.unpark();
                ended
            };
            let name = format!("worker-{index}");
            threads.push(thread::Builder::new().name(name).spawn_scoped(scope, body).map_err(|e| {
                Error::Environment {
                    call: "pthread_create",
                    what: e.to_string(),
                    cure: "use fewer workers with -t, or raise the thread limit (ulimit -u)".into(),
                }
            })?);
        }
        drop(ready);
        // Each worker reports once, or is gone with its sender.
        let mut first_error = None;
        for refused in readies.iter().take(workers).filter_map(Result::err) {
            first_error.get_or_insert(refused);
        }
        if signal::asked().is_some() {
            shared.control.halt(Halt::Drain);
        }
        gate.abort.store(first_error.is_some(), Ordering::Relaxed);
        gate.start.store(shared.clock.now().plus(LEAD_NS).0, Ordering::Relaxed);
        gate.barrier.wait();
        if first_error.is_none() {
            watch(&shared, &gate, &threads, observe);
        }
        let mut results = Vec::with_capacity(workers);
        for thread in threads {
            match thread.join() {
                Ok(Ok(ended)) => results.extend(ended),
                Ok(Err(error)) => {
                    first_error.get_or_insert(error);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        match first_error {
            Some(error) => Err(error),
            None => Ok(results),
        }
    })?;
    let start = Nanos(gate.start.load(Ordering::Relaxed));
    Ok(gather(ended, &shared, start, started_unix_ns))
}

/// What is decided once for all workers.
struct SetUp {
    roots: Arc<Roots>,
    graph: Option<Arc<Graph>>,
    addresses: Vec<(u16, u16)>,
}

impl SetUp {
    fn new(plan: &Plan, view: &View) -> Result<Self> {
        let window = Window::new(plan, view);
        let place = |r: RecordId| Place {
            inside: window.holds(r.0),
            predecessors: view.predecessors(r).iter().filter(|&&p| window.holds(p)).count(),
            due_ns: view.due_ns(r),
        };
        let roots = Arc::new(Roots::new(view.records(), place, !view.is_flat(), &plan.shape)?);
        if roots.timed() && roots.period_ns() == 0 && plan.stop.passes != Some(1) {
            return Err(Error::usage(
                "--repeat with --schedule: all first turns are due at one time, so a pass takes no time; give a rate with -R",
            ));
        }
        let edges = |r| Edges {
            predecessors: view.predecessors(r),
            successors: view.successors(r),
            delay_ns: view.delay_ns(r).unwrap_or(0),
            due_ns: view.due_ns(r),
        };
        let graph = if view.is_flat() {
            None
        } else {
            Graph::new(view.records(), edges, |r| window.holds(r), plan)?.map(Arc::new)
        };
        let mut addresses = Vec::new();
        let mut base = 0u16;
        for target in &plan.targets {
            let count = target.addresses.len() as u16;
            if count == 0 {
                return Err(Error::usage(format!("{}: no address", target.url)));
            }
            addresses.push((base, count));
            base = base.checked_add(count).ok_or_else(|| Error::usage("more than 65,535 addresses"))?;
        }
        Ok(Self { roots, graph, addresses })
    }
}

/// Which records a window of the schedule holds; a later turn without a time of its own goes with those before it.
struct Window(Option<Vec<bool>>);

impl Window {
    fn new(plan: &Plan, view: &View) -> Self {
        let Shape::Schedule { from_ns, to_ns, .. } = plan.shape else { return Self(None) };
        if from_ns == 0 && to_ns == u64::MAX {
            return Self(None);
        }
        let mut inside = vec![true; view.records() as usize];
        for r in view.ids() {
            inside[r.index()] = match view.due_ns(r) {
                Some(due) => (from_ns..=to_ns).contains(&due),
                None => view.predecessors(r).iter().all(|&p| p >= r.0 || inside[p as usize]),
            };
        }
        Self(Some(inside))
    }

    fn holds(&self, record: u32) -> bool {
        self.0.as_ref().is_none_or(|inside| inside[record as usize])
    }
}

/// Request heads by target and record template.
fn heads(plan: &Plan, view: &View) -> Result<Heads> {
    let has_body = view.body_bytes_total() > 0;
    let by_record = view.templates() as usize;
    let mut templates = Vec::with_capacity(plan.targets.len() * (by_record + 1));
    for target in &plan.targets {
        templates.push(HeadTemplate::new(target, &plan.head, has_body, None)?);
        for t in 0..view.templates() {
            let own = view.template_at(t);
            templates.push(HeadTemplate::new(target, &plan.head, has_body, own.as_ref())?);
        }
    }
    Ok(Heads { templates, by_record })
}

/// Holds the workers until all are ready.
struct Gate {
    barrier: Barrier,
    start: AtomicU64,
    abort: AtomicBool,
    /// Workers that have not come to their end; one that panics stays among them.
    working: AtomicUsize,
}

/// What a worker hands back.
struct Ended {
    result: WorkerResult,
    by: EndedBy,
    measured_from_ns: Option<u64>,
    stop_ns: Option<u64>,
    end: Nanos,
    notes: Vec<String>,
}

/// A worker thread from its birth to its end. None when the run was given up before its start.
fn work(
    index: usize,
    shared: &Shared,
    set_up: &SetUp,
    gate: &Gate,
    keep: Option<&Keep>,
    anchor_unix_ns: u64,
    ready: &mpsc::Sender<Result<()>>,
) -> Result<Option<Ended>> {
    let made = make(index, shared, set_up, keep, anchor_unix_ns);
    let (mut worker, notes) = match made {
        Ok(made) => {
            let _ = ready.send(Ok(()));
            made
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            gate.barrier.wait();
            return Ok(None);
        }
    };
    gate.barrier.wait();
    if gate.abort.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut notes = notes;
    worker.run(Nanos(gate.start.load(Ordering::Relaxed)))?;
    if let Some(kept) = worker.rows.take() {
        notes.extend(kept.close(&mut worker.io, index));
    }
    if worker.stamps.lost > 0 {
        notes.push(format!(
            "{} content events of worker {index} found no room for their times: their gaps are in no figure",
            worker.stamps.lost
        ));
    }
    let stop_ns = worker.agenda.stop_ns();
    let end = worker.ended_at;
    let (result, by, measured_from_ns) = worker.into_result();
    Ok(Some(Ended { result, by, measured_from_ns, stop_ns, end, notes }))
}

/// Pins the thread, takes all memory, opens connections.
fn make<'a>(
    index: usize,
    shared: &'a Shared,
    set_up: &SetUp,
    keep: Option<&Keep>,
    anchor_unix_ns: u64,
) -> Result<(Worker<'a, Ring>, Vec<String>)> {
    let plan = &shared.plan;
    if let Some(core) = plan.cores[index] {
        cpu::pin(core)?;
    }
    let workers = plan.workers();
    let share = |n: u32| Plan::share(u64::from(n), index, workers) as u32;
    let connections = share(plan.connections).max(1);
    let slots = share(plan.concurrency).clamp(1, connections);
    let head_max = shared.heads.bytes_max();
    let room = (COPY_ROOM_TOTAL / connections as usize).min(limits::COPY_BYTES_MAX);
    let plain_bytes = (head_max + room).next_multiple_of(64);
    let area_bytes = if shared.tls.is_some() { plain_bytes.max(limits::TLS_AREA_BYTES) } else { plain_bytes };
    let config = RingConfig {
        connections,
        head_bytes: area_bytes,
        spans: spans_per_send(&shared.view),
        recv_buffers: (2 * connections).clamp(limits::RECV_BUFFERS_MIN, limits::RECV_BUFFERS_MAX),
        addresses: plan.targets.iter().flat_map(|t| t.addresses.iter().cloned()).collect(),
    };
    let id = WorkerId(index as u16);
    let (kept, spools) = keep.map(|keep| rows::Kept::create(keep, id, workers)).transpose()?.unzip();
    let mut ring = Ring::new(&config, shared.view.map().clone(), spools.unwrap_or_default())?;
    if let Some(kept) = &kept {
        kept.begin(&mut ring, id, anchor_unix_ns);
    }
    let notes = ring.notes().to_vec();
    let local = plan.targets.iter().all(|t| t.local);
    let file = shared.view.map().file_below().is_some();
    let rule = SendRule::new(plan.send, local, ring.zero_copy(), file, plain_bytes - head_max);
    let agenda = Agenda::new(plan, set_up.roots.clone(), set_up.graph.clone(), index, workers, slots)?;
    let mut worker = Worker::new(shared, ring, index, agenda, rule, connections, kept)?;
    worker.slots_max = slots;
    worker.tally.result.connections.asked = u64::from(share(plan.connections));
    if plan.preconnect {
        worker.preconnect(preconnects(plan, set_up, connections, workers))?;
    }
    Ok((worker, notes))
}

/// Vector entries a connection needs: one where bodies are whole, so that 10,000 connections do not pay for shared stretches
/// that are not there. A body of more spans than a send carries goes out in several sends.
fn spans_per_send(view: &View) -> usize {
    if view.spans_total() <= u64::from(view.records()) { 1 } else { limits::SPANS_PER_SEND_MAX }
}

/// How many connections a worker opens before the clock starts: all of a closed loop (but no more than it has requests); of an
/// open loop what 20 ms of its rate need, and the rest as they are needed.
fn preconnects(plan: &Plan, set_up: &SetUp, connections: u32, workers: usize) -> u32 {
    let requests = plan.stop.requests.unwrap_or(u64::MAX);
    let passes = plan.stop.passes.map_or(u64::MAX, |p| p.saturating_mul(set_up.roots.count()));
    let most = requests.min(passes).div_ceil(workers as u64).min(u64::from(connections)) as u32;
    match &plan.shape {
        Shape::Closed => most,
        Shape::Rate { curve, .. } => {
            let peak = curve.iter().map(|s| s.from.max(s.to)).fold(0.0, f64::max);
            most.min((peak / workers as f64 * 0.02).ceil() as u32).max(1)
        }
        Shape::Schedule { .. } => most.min(8),
    }
}

/// The control thread's part while the load runs.
fn watch<T>(
    shared: &Shared,
    gate: &Gate,
    threads: &[thread::ScopedJoinHandle<'_, T>],
    observe: &mut dyn FnMut(&Progress),
) {
    let start = Nanos(gate.start.load(Ordering::Relaxed));
    let mut changed_ns = None;
    while gate.working.load(Ordering::Acquire) > 0 && !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
        // The last worker ends the wait, so that a short run is told at once.
        thread::park_timeout(LOOK);
        if signal::asked().is_some() {
            shared.control.halt(Halt::Drain);
        }
        let counts = live::total(&shared.live);
        match changed_ns {
            None if shared.view.changed() => {
                shared.control.entry_changed();
                changed_ns = Some(shared.clock.now());
            }
            // The requests that begin meanwhile say why it ends, each by its class.
            Some(seen) if shared.clock.now().since(seen) >= CHANGED_TOLD_NS => shared.control.halt(Halt::Drain),
            _ => {}
        }
        if too_many_errors(shared.plan.stop.max_errors, &counts) {
            shared.control.halt_for_errors();
        }
        let elapsed_ns = shared.clock.now().since(start);
        observe(&Progress { elapsed_ns, counts, p99_ns: live::p99_so_far(&shared.live) });
    }
}

fn too_many_errors(bound: Option<MaxErrors>, counts: &Counts) -> bool {
    match bound {
        None => false,
        Some(MaxErrors::Count(n)) => counts.failed >= n,
        Some(MaxErrors::Percent(p)) => {
            let done = counts.failed + counts.succeeded;
            done >= 100 && counts.failed as f64 * 100.0 >= p * done as f64
        }
    }
}

/// One result out of the workers'. The buckets of each must add up.
fn gather(ended: Vec<Ended>, shared: &Shared, start: Nanos, started_unix_ns: u64) -> RunResult {
    let measured_from = start.plus(ended.iter().filter_map(|e| e.measured_from_ns).min().unwrap_or(0));
    let last_done = ended.iter().filter_map(|e| e.result.last_done.get()).max();
    let last_start = ended.iter().filter_map(|e| e.result.last_start.get()).max();
    let mut by = reason(shared, &ended);
    let stop = ended.iter().filter_map(|e| e.stop_ns).max().map(|ns| start.plus(ns));
    let end = ended.iter().map(|e| e.end).max().unwrap_or(measured_from);
    let last_done = last_done.map_or(end, Nanos);
    let duration_ns = last_done.since(measured_from);
    let issue_window_ns = match (&shared.plan.shape, by, stop) {
        (Shape::Closed, ..) => duration_ns,
        // The overdue may start after the stop, within the drain: then the window reaches to the last of them.
        (_, EndedBy::Requests | EndedBy::Dataset, _) | (.., None) => {
            last_start.map_or(0, |t| Nanos(t).since(measured_from))
        }
        (_, _, Some(stop)) => stop.max(last_start.map_or(stop, Nanos)).min(end.max(stop)).since(measured_from),
    };
    let mut notes: Vec<String> = Vec::new();
    let tls = shared.tls.iter().flat_map(|tls| &tls.notes);
    for note in ended.iter().flat_map(|e| &e.notes).chain(tls) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    let workers: Vec<WorkerResult> = ended.into_iter().map(|e| e.result).collect();
    for w in &workers {
        assert!(w.buckets.add_up(), "worker {}: {:?} do not add up", w.worker, w.buckets);
    }
    let issued: u64 = workers.iter().map(|w| w.buckets.scheduled).sum();
    if issued == 0 && shared.plan.warmup != Warmup::None {
        notes.push("nothing was measured: the warm-up took every request; make it shorter, or the run longer".into());
    }
    if shared.view.changed() {
        notes.push(changed_note(&shared.view));
        by = EndedBy::Error;
    }
    let begun_ns = measured_from.since(Nanos::ZERO);
    RunResult {
        workers,
        ended_by: by,
        started_unix_ns: started_unix_ns + begun_ns,
        duration_ns,
        issue_window_ns,
        notes,
        target: None,
    }
}

/// What is known about bodies that were sent while the files of their entry changed.
fn changed_note(view: &View) -> String {
    let told = "the entry's files were changed under the run, which was ended; requests of the last moments before may have \
                carried other bodies than those stored";
    match view.first_damaged() {
        Some(record) => format!("{told}; the body of record {record} is one that is now another"),
        None => format!("{told}; every body is now as it was stored"),
    }
}

fn reason(shared: &Shared, ended: &[Ended]) -> EndedBy {
    if shared.control.halted_for_errors() {
        return EndedBy::Error;
    }
    match signal::asked() {
        Some(signal::Asked::Terminate) => return EndedBy::Terminate,
        Some(signal::Asked::Interrupt) => return EndedBy::Interrupt,
        None => {}
    }
    // Time ends a run when it ended any worker; else the count, when it ended any.
    for by in [EndedBy::Error, EndedBy::Terminate, EndedBy::Interrupt, EndedBy::Duration, EndedBy::Requests] {
        if ended.iter().any(|e| e.by == by) {
            return by;
        }
    }
    EndedBy::Dataset
}
