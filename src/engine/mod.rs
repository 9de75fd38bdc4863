//! Layer 5: the workers. A plan and a mapped dataset in, the results of a run out.
//!
//! One thread, one ring, one core a worker; nothing is shared while the load runs but counters that one side writes and the
//! other reads. The calling thread is the control thread: it watches signals, error bounds and progress.
//!
//! This file is a little long: it is the one place that knows how a run is put together, from the plan to the merged results.

mod ahead;
mod conn;
mod dispatch;
pub mod io;
pub mod live;
mod phases;
mod preview;
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

use conn::Dead;
use live::{Control, Counts, Ends, Halt, Live, Meeting};
use phases::{Leg, Part};
pub use preview::{Preview, preview};
use tally::Tally;
pub use tls::check as check_tls;
use worker::{Heads, SendRule, Shared, Worker};

use crate::{
    cache::View,
    data::{
        Error, Nanos, RecordId, Result, WorkerId, limits,
        metric::Metric,
        plan::{MaxErrors, Plan, Reuse, Shape, Warmup},
        results::{EndedBy, RunResult, WorkerResult},
        rows::Keep,
    },
    pace::{Agenda, Edges, Graph, Place, Roots},
    sys::{
        clock::{self, Clock},
        cpu, limit,
        resident::Resident,
        ring::{Ring, RingConfig},
        signal,
    },
    wire::request::HeadTemplate,
};

/// How often the control thread looks.
const LOOK: Duration = Duration::from_millis(20);
/// From the look that found the cache entry changed to the end of the run.
const CHANGED_TOLD_NS: u64 = 100_000_000;
/// When a connect's first packet is sent again, less a little for the clock (RFC 6298 §2.1: a second).
const SYN_AGAIN_NS: u64 = 990_000_000;
/// Fewer pages than these are the program's own, read when they are first used.
const FAULTS_TOLD: u64 = 32;
/// How long before the start the workers are released: enough for all of them to wake.
const LEAD_NS: u64 = 2_000_000;
/// Send-area bytes for small bodies over all connections of a worker: 4 MiB, so that 10,000 connections stay within 8 MiB.
const COPY_ROOM_TOTAL: usize = 4 << 20;

/// What the control thread tells while the run goes on.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The phase that is played, from 0.
    pub phase: usize,
    /// Time since the start, warm-up included.
    pub elapsed_ns: u64,
    /// Counters over all workers.
    pub counts: Counts,
    /// 99th percentile of the latencies so far, to the half octave.
    pub p99_ns: Option<u64>,
}

/// One phase of a run: a load of its own over the same connections.
#[derive(Clone, Debug)]
pub struct Phase {
    /// All phases have targets, heads, time-outs, TLS, reuse and seed of the first.
    pub plan: Plan,
    /// The next phase begins when every request of this one is issued; else when none is in flight.
    pub seamless: bool,
    /// What is kept of each request, and where; none keeps nothing.
    pub keep: Option<Keep>,
}

/// Runs a plan over a dataset to its end.
///
/// `keep` says what is kept of each request, and where; none keeps nothing. `observe` is called about every 20 ms.
///
/// Errors: what the environment refuses before anything was sent, or a ring that broke. A run in which every request failed is
/// a result, not an error.
pub fn run(plan: Plan, view: Arc<View>, keep: Option<&Keep>, observe: &mut dyn FnMut(&Progress)) -> Result<RunResult> {
    let phase = Phase { plan, seamless: false, keep: keep.cloned() };
    let mut results = run_phases(vec![phase], view, observe)?;
    results.pop().ok_or(Error::Interrupted)
}

/// Runs several phases, one after the other. There is one result for each that was begun.
///
/// Errors: as [`run`].
pub fn run_phases(phases: Vec<Phase>, view: Arc<View>, observe: &mut dyn FnMut(&Progress)) -> Result<Vec<RunResult>> {
    let Some(first) = phases.first() else { return Err(Error::usage("a run has at least one phase")) };
    let plan = first.plan.clone();
    let workers = plan.workers();
    let addresses = addresses(&plan)?;
    let keep: Vec<Option<Keep>> = phases.iter().map(|p| p.keep.clone()).collect();
    let shared = Shared {
        heads: heads(&plan, &view)?,
        addresses,
        peers: peers(&plan),
        control: Control::default(),
        live: (0..workers).map(|_| Live::default()).collect(),
        legs: phases.into_iter().map(|p| leg(p, &view, workers)).collect::<Result<_>>()?,
        clock: Clock::start(),
        tls: tls::Settings::new(&plan)?,
        resident: Arc::new(Resident::new(view.map().clone(), limit::page_memory())),
        view,
        plan,
    };
    let keep = &keep;
    let started_unix_ns = clock::unix_ns();
    let gate = Gate {
        barrier: Barrier::new(workers + 1),
        start: AtomicU64::new(0),
        abort: AtomicBool::new(false),
        working: AtomicUsize::new(workers),
    };
    let control_thread = thread::current();
    let over = AtomicBool::new(false);
    let ended = thread::scope(|scope| -> Result<Vec<Vec<Ended>>> {
        // It begins before the workers do: they take some milliseconds to be ready, in which it brings in hundreds of megabytes
        // that the page cache has. Without it they ask the kernel for each body, and go on.
        let mut over = ahead::Over { flag: &over, thread: None };
        if !shared.resident.all() {
            let (shared, flag) = (&shared, over.flag);
            let spawned =
                thread::Builder::new().name("read-ahead".into()).spawn_scoped(scope, || ahead::run(shared, flag));
            over.thread = spawned.ok().map(|handle| handle.thread().clone());
        }
        let (ready, readies) = mpsc::channel();
        let mut threads = Vec::new();
        for index in 0..workers {
            let (ready, shared, gate) = (ready.clone(), &shared, &gate);
            let control_thread = &control_thread;
            let body = move || {
                let ended = work(index, shared, gate, keep, started_unix_ns, &ready);
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
                Ok(Ok(ended)) => results.push(ended),
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
    let mut ended: Vec<_> = ended.into_iter().map(Vec::into_iter).collect();
    let mut results = Vec::with_capacity(shared.legs.len());
    for leg in &shared.legs {
        let of_phase: Vec<Ended> = ended.iter_mut().filter_map(Iterator::next).filter(|e| e.start.is_some()).collect();
        if let Some(start) = of_phase.iter().map(|e| e.start).min() {
            results.push(gather(of_phase, &shared, leg, start, started_unix_ns));
        }
    }
    // A signal in the drain of a phase keeps the later ones from being played: the last that was played is where it ended.
    let unplayed = shared.legs.len() - results.len();
    if let (1.., Some(asked), Some(last)) = (unplayed, signal::asked(), results.last_mut())
        && !matches!(last.ended_by, EndedBy::Error)
    {
        last.ended_by = match asked {
            signal::Asked::Terminate => EndedBy::Terminate,
            signal::Asked::Interrupt => EndedBy::Interrupt,
        };
        last.notes.push(format!("a signal ended the run: {unplayed} later phases were not played"));
    }
    Ok(results)
}

/// First address of each target in the ring's list, and how many it has.
fn addresses(plan: &Plan) -> Result<Vec<(u16, u16)>> {
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
    Ok(addresses)
}

/// The first target of the same origin, for each: same addresses, same Host field, and TLS to the same name or none.
fn peers(plan: &Plan) -> Vec<u16> {
    let name = |k: usize| plan.tls.names.get(k).filter(|_| plan.targets[k].tls);
    let same = |a: usize, b: usize| {
        let (x, y) = (&plan.targets[a], &plan.targets[b]);
        x.addresses == y.addresses && x.host == y.host && x.tls == y.tls && name(a) == name(b)
    };
    (0..plan.targets.len()).map(|k| (0..k).find(|&first| same(first, k)).unwrap_or(k) as u16).collect()
}

/// What is decided once for all workers of a phase.
fn leg(phase: Phase, view: &View, workers: usize) -> Result<Leg> {
    let Phase { plan: of, seamless, .. } = phase;
    let plan = &of;
    let window = Window::new(plan, view);
    let place = |r: RecordId| Place {
        inside: window.holds(r.0),
        predecessors: view.predecessors(r).iter().filter(|&&p| window.holds(p)).count(),
        due_ns: view.due_ns(r),
    };
    let roots = Roots::new(view.records(), place, !view.is_flat(), &plan.shape)?;
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
    let graph =
        if view.is_flat() { None } else { Graph::new(view.records(), edges, |r| window.holds(r), plan)?.map(Arc::new) };
    let roots = match plan.shape {
        Shape::Users { .. } => roots.with_turns(|root| turns(graph.as_deref(), root))?,
        _ => roots,
    };
    if graph.is_none() && plan.reuse == Reuse::Session {
        return Err(Error::usage(
            "--reuse session: no record has a later turn, so each would be a session; use --reuse never or keep-alive",
        ));
    }
    // A worker without a slot, or without a user, has no part in the phase.
    let users = if let Shape::Users { users, .. } = plan.shape { users } else { u32::MAX };
    let most = plan.concurrency.min(plan.connections).min(plan.prefill.unwrap_or(u32::MAX)).min(users);
    let active = workers.min(most as usize).max(1);
    let ends = (0..workers).map(|_| Ends::default()).collect();
    let (roots, meeting) = (Arc::new(roots), Meeting::default());
    Ok(Leg { roots, graph, seamless, active, ends, meeting, plan: of })
}

/// Turns of a user's session.
fn turns(graph: Option<&Graph>, root: RecordId) -> Result<u32> {
    let graph = graph.ok_or_else(|| {
        Error::usage("--user-centric: no record has a later turn; a user needs sessions of several, or use -R alone")
    })?;
    graph.turns(root).ok_or_else(|| {
        Error::usage(format!(
            "--user-centric: the graph that begins at record {root} forks or joins; users have one turn after the other"
        ))
    })
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
    /// When the phase began; none when it did not.
    start: Nanos,
    measured_from_ns: Option<u64>,
    stop_ns: Option<u64>,
    /// Failed turns whose successors were not played.
    broken: u64,
    end: Nanos,
    notes: Vec<String>,
    /// Connects that failed, by address.
    dead: Box<[Dead]>,
}

/// A worker thread from its birth to its end: one entry a phase, or none when the run was given up before its start.
fn work(
    index: usize,
    shared: &Shared,
    gate: &Gate,
    keep: &[Option<Keep>],
    anchor_unix_ns: u64,
    ready: &mpsc::Sender<Result<()>>,
) -> Result<Vec<Ended>> {
    let made = make(index, shared, keep, anchor_unix_ns);
    let (mut worker, notes) = match made {
        Ok(made) => {
            let _ = ready.send(Ok(()));
            made
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            gate.barrier.wait();
            return Ok(Vec::new());
        }
    };
    gate.barrier.wait();
    if gate.abort.load(Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    // Nobody waits at the end of a phase for a worker that is gone.
    worker.run(Nanos(gate.start.load(Ordering::Relaxed))).inspect_err(|_| shared.control.halt(Halt::Now))?;
    let mut notes = notes;
    if worker.stamps.lost > 0 {
        notes.push(format!(
            "{} content events of worker {index} found no room for their times: their gaps are in no figure",
            worker.stamps.lost
        ));
    }
    // Connections outlive phases: the first one's notes name the dead addresses of all.
    let mut dead = std::mem::take(&mut worker.dead);
    let (mut io, parts) = worker.into_parts();
    let mut ended = |part: Part| {
        let mut notes = notes.clone();
        if let Some(kept) = &part.rows {
            notes.extend(kept.close(&mut io, index));
        }
        Ended {
            by: part.ended.unwrap_or(EndedBy::Dataset),
            start: part.start,
            measured_from_ns: part.agenda.measured_from_ns(),
            stop_ns: part.agenda.stop_ns(),
            broken: part.agenda.broken(),
            end: part.ended_at,
            result: part.tally.result,
            notes,
            dead: std::mem::take(&mut dead),
        }
    };
    Ok(parts.into_iter().map(&mut ended).collect())
}

/// A worker's part of a phase, with all its memory.
fn part(index: usize, leg: &Leg, rows: Option<rows::Kept>) -> Result<Part> {
    let plan = &leg.plan;
    let active = leg.active;
    let share = |n: u32| if index < active { Plan::share(u64::from(n), index, active) as u32 } else { 0 };
    let slots = share(plan.concurrency.min(plan.connections));
    let agenda = if index < active {
        Agenda::new(plan, leg.roots.clone(), leg.graph.clone(), index, active, slots)?
    } else {
        Agenda::none(plan, leg.roots.clone())?
    };
    let core = plan.cores.get(index).copied().flatten();
    let id = WorkerId(index as u16);
    let mut tally = Tally::new(id, core, plan.goodput.clone());
    tally.result.connections.asked = u64::from(share(plan.connections));
    let holds = if plan.reuse == Reuse::Session { agenda.instances() } else { 0 };
    Ok(Part {
        tally,
        rows,
        start: Nanos::NONE,
        ended: None,
        ended_at: Nanos::ZERO,
        prefill_max: plan.prefill.map_or(u32::MAX, share),
        holds: vec![slots::NOTHING; holds],
        agenda,
    })
}

/// Pins the thread, takes all memory, opens connections.
fn make<'a>(
    index: usize,
    shared: &'a Shared,
    keep: &[Option<Keep>],
    anchor_unix_ns: u64,
) -> Result<(Worker<'a, Ring>, Vec<String>)> {
    let plan = &shared.plan;
    if let Some(core) = plan.cores[index] {
        cpu::pin(core)?;
    }
    let workers = plan.workers();
    // As many as the phase with the most gives this worker.
    let share = |leg: &Leg| Plan::share(u64::from(leg.plan.connections), index, leg.active) as u32;
    let connections = shared.legs.iter().filter(|leg| index < leg.active).map(share).max().unwrap_or(1).max(1);
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
        sources: plan.net.sources_of(index, workers),
        options: plan.net.options,
    };
    let id = WorkerId(index as u16);
    let (mut kept, mut spools) = (Vec::with_capacity(keep.len()), Vec::new());
    for keep in keep {
        let made = keep.as_ref().map(|keep| rows::Kept::create(keep, id, workers, spools.len())).transpose()?;
        kept.push(made.map(|(of_phase, files)| {
            spools.extend(files);
            of_phase
        }));
    }
    let mut ring = Ring::new(&config, shared.resident.clone(), spools)?;
    for of_phase in kept.iter().flatten() {
        of_phase.begin(&mut ring, id, anchor_unix_ns);
    }
    let notes = ring.notes().to_vec();
    let local = plan.targets.iter().all(|t| t.local);
    let file = shared.view.map().file_below().is_some();
    let rule = SendRule::new(plan.send, local, ring.zero_copy(), file, plain_bytes - head_max);
    let mut parts = Vec::with_capacity(shared.legs.len());
    for (leg, kept) in shared.legs.iter().zip(kept) {
        parts.push(part(index, leg, kept)?);
    }
    let first = parts.remove(0);
    let mut worker = Worker::new(shared, ring, index, first, parts, rule, connections)?;
    if plan.preconnect && index < shared.legs[0].active {
        worker.preconnect(preconnects(&shared.legs[0], connections, workers))?;
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
fn preconnects(leg: &Leg, connections: u32, workers: usize) -> u32 {
    let plan = &leg.plan;
    let requests = plan.stop.requests.unwrap_or(u64::MAX);
    let passes = plan.stop.passes.map_or(u64::MAX, |p| p.saturating_mul(leg.roots.count()));
    // What another phase has more is opened when that one needs it.
    let connections = connections.min(plan.connections.div_ceil(leg.active as u32));
    let most = requests.min(passes).div_ceil(workers as u64).min(u64::from(connections)) as u32;
    match &plan.shape {
        Shape::Closed => most,
        Shape::Rate { curve, .. } => {
            let peak = curve.iter().map(|s| s.from.max(s.to)).fold(0.0, f64::max);
            most.min((peak / workers as f64 * 0.02).ceil() as u32).max(1)
        }
        Shape::Users { rps, .. } => most.min((rps / workers as f64 * 0.02).ceil() as u32).max(1),
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
        let workers = shared.plan.workers();
        let phase = shared.legs.iter().take_while(|leg| leg.meeting.ended(workers).is_some()).count();
        let elapsed_ns = shared.clock.now().since(start);
        observe(&Progress { phase, elapsed_ns, counts, p99_ns: live::p99_so_far(&shared.live) });
    }
}

/// True when so many failures end a run. A share of them does when enough have ended to speak of one, or when it cannot come
/// below the bound any more because no more than `planned` will ever be issued.
fn too_many_errors(bound: MaxErrors, succeeded: u64, failed: u64, planned: Option<u64>) -> bool {
    match bound {
        MaxErrors::Count(n) => failed >= n,
        MaxErrors::Percent(p) => {
            let ended = succeeded + failed;
            let of = if ended >= limits::ERROR_SHARE_FLOOR { Some(ended) } else { planned };
            failed > 0 && of.is_some_and(|of| failed as f64 * 100.0 >= p * of.max(ended) as f64)
        }
    }
}

/// One result out of the workers'. The buckets of each must add up.
fn gather(ended: Vec<Ended>, shared: &Shared, leg: &Leg, start: Nanos, started_unix_ns: u64) -> RunResult {
    let measured_from = start.plus(ended.iter().filter_map(|e| e.measured_from_ns).min().unwrap_or(0));
    let last_done = ended.iter().filter_map(|e| e.result.last_done.get()).max();
    let last_start = ended.iter().filter_map(|e| e.result.last_start.get()).max();
    let mut by = reason(shared, leg, &ended);
    let stop = ended.iter().filter_map(|e| e.stop_ns).max().map(|ns| start.plus(ns));
    let end = ended.iter().map(|e| e.end).max().unwrap_or(measured_from);
    let last_done = last_done.map_or(end, Nanos);
    // An open loop is measured to its stop at least, though its last answer came before: nothing was due in between.
    let open_loop = !matches!(leg.plan.shape, Shape::Closed);
    let measured_to = match (by, stop) {
        (EndedBy::Requests | EndedBy::Dataset, _) | (_, None) => last_done,
        (_, Some(stop)) if open_loop => last_done.max(stop),
        _ => last_done,
    };
    let duration_ns = measured_to.since(measured_from);
    let issue_window_ns = match (&leg.plan.shape, by, stop) {
        (Shape::Closed, ..) => duration_ns,
        // The overdue may start after the stop, within the drain: then the window reaches to the last of them.
        (_, EndedBy::Requests | EndedBy::Dataset, _) | (.., None) => {
            last_start.map_or(0, |t| Nanos(t).since(measured_from))
        }
        (_, _, Some(stop)) => stop.max(last_start.map_or(stop, Nanos)).min(end.max(stop)).since(measured_from),
    };
    let mut notes: Vec<String> = Vec::new();
    let broken: u64 = ended.iter().map(|e| e.broken).sum();
    if broken > 0 {
        notes.push(format!(
            "{broken} failed {} a turn after {}, which was not scheduled: --on-failed-turn continue plays on",
            if broken == 1 { "request had" } else { "requests had" },
            if broken == 1 { "it" } else { "them" },
        ));
    }
    let tls = shared.tls.iter().flat_map(|tls| &tls.notes);
    for note in ended.iter().flat_map(|e| &e.notes).chain(tls) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    notes.extend(dead_notes(&shared.plan, &ended));
    notes.extend(slow_connect_note(&ended));
    notes.extend(cold_note(shared, &ended));
    let workers: Vec<WorkerResult> = ended.into_iter().map(|e| e.result).collect();
    for w in &workers {
        assert!(w.buckets.add_up(), "worker {}: {:?} do not add up", w.worker, w.buckets);
    }
    let issued: u64 = workers.iter().map(|w| w.buckets.scheduled).sum();
    if issued == 0 && leg.plan.warmup != Warmup::None {
        notes.push("nothing was measured: the warm-up took every request; make it shorter, or the run longer".into());
    }
    if let Some(told) = changed_note(&shared.view) {
        notes.push(told);
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

/// Says that connects took as long as a first packet that was dropped makes them. Latency begins at the send, so that it does not
/// show in it.
fn slow_connect_note(ended: &[Ended]) -> Option<String> {
    let connects = ended.iter().map(|e| &e.result.series[Metric::ConnectTime as usize]);
    let slow: u64 = connects.clone().map(|s| s.hist.len() - s.hist.count_between(0, SYN_AGAIN_NS - 1)).sum();
    let longest_ms = connects.map(|s| s.max).max().unwrap_or(0) / 1_000_000;
    (slow > 0).then(|| {
        format!(
            "a connect took {longest_ms} ms, and {slow} took a second or more: their first packet was dropped, as by a full listen \
             backlog, and sent again; it is in connect_time, not in latency"
        )
    })
}

/// What is to be known about bodies that came from the disk, and what can be done about it.
fn cold_note(shared: &Shared, ended: &[Ended]) -> Option<String> {
    let sum = |of: fn(&crate::data::results::Cost) -> u64| ended.iter().map(|e| of(&e.result.cost)).sum::<u64>();
    let (cold, faults) = (sum(|c| c.cold_slices), sum(|c| c.major_faults));
    if cold == 0 && faults < FAULTS_TOLD {
        return None;
    }
    let cure = if shared.resident.fits() {
        "they are in memory now: run it again, or give a --warmup"
    } else {
        "the dataset is larger than half of the memory that is free: use a machine with more, or replay fewer bytes"
    };
    let mut note = format!(
        "{cold} bodies were not in memory and waited for the client's disk: the wait is before their start, in schedule_lag \
         and in the figures from the schedule, and in no other latency; {cure}"
    );
    if faults >= FAULTS_TOLD {
        note.push_str(&format!("; {faults} times a worker itself stood still for the disk, with all its connections"));
    }
    Some(note)
}

/// Names the dead among several addresses of a target; where there is one alone, its error class says all.
fn dead_notes(plan: &Plan, ended: &[Ended]) -> Vec<String> {
    let mut notes = Vec::new();
    let mut at = 0;
    for target in &plan.targets {
        let all = &target.addresses;
        for (address, k) in all.iter().zip(at..).filter(|_| all.len() > 1) {
            let (mut connects, mut errno) = (0, 0);
            for dead in ended.iter().filter_map(|e| e.dead.get(k)).filter(|d| d.connects > 0) {
                (connects, errno) = (connects + dead.connects, dead.errno);
            }
            if connects > 0 {
                let why = slots::errno_text(errno);
                notes.push(format!("{}: address {address} failed {connects} of its connects ({why})", target.url));
            }
        }
        at += all.len();
    }
    notes
}

/// What is known about bodies that were sent while the files of their entry changed; none when they did not. A file whose size
/// and time stand as they were may have been removed, which is no harm, or written to and its time put back: all of its bodies
/// are then held to their digests.
fn changed_note(view: &View) -> Option<String> {
    if !view.touched() {
        return None;
    }
    let changed = view.changed();
    let ended = if changed { ", which was ended" } else { ", and their time was put back" };
    let told = format!(
        "the entry's files were changed under the run{ended}; requests of the last moments before may have carried other bodies \
         than those stored"
    );
    match view.first_damaged() {
        Some(record) => Some(format!("{told}; the body of record {record} is one that is now another")),
        None if changed => Some(format!("{told}; every body is now as it was stored")),
        None => None,
    }
}

fn reason(shared: &Shared, leg: &Leg, ended: &[Ended]) -> EndedBy {
    let sum = |of: fn(&crate::data::results::Buckets) -> u64| ended.iter().map(|e| of(&e.result.buckets)).sum::<u64>();
    // At the end the share counts, however few there were.
    let (succeeded, failed) = (sum(|b| b.succeeded), sum(|b| b.failed));
    if leg.plan.stop.max_errors.is_some_and(|bound| too_many_errors(bound, succeeded, failed, Some(succeeded + failed)))
    {
        return EndedBy::Error;
    }
    // A phase that was over before the signal came was not ended by it.
    let stopped = ended.iter().any(|e| e.by == EndedBy::Interrupt);
    if stopped && shared.control.halted_for_errors() {
        return EndedBy::Error;
    }
    match signal::asked().filter(|_| stopped || leg.meeting.ended(shared.plan.workers()).is_none()) {
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
