//! One worker: the loop, and how requests begin. What completions do is in `dispatch`, what connections do in `slots`, and what
//! turns one phase into the next in `phases`. The file is a little long, as the loop and its start are read as one.
//!
//! After [`Worker::new`] nothing here allocates, locks, logs or formats.

use super::{
    conn::{Conn, Dead, IdleRing, State, Stream, Trip, flag, mark},
    io::Io,
    live::{Control, Counts, Halt, Live},
    phases::{Leg, Part},
    quiet::Quiet,
    rows::Kept,
    stamps::Stamps,
    tally::Tally,
    tls::{Sessions, Settings},
};
use std::sync::Arc;

use crate::{
    cache::View,
    data::{
        ConnId, Nanos, Result, limits,
        plan::{Pace, Plan, SendPath},
        results::EndedBy,
    },
    pace::{Agenda, Free, Pick, Work, draw},
    sys::{
        area::Area,
        clock::Clock,
        cpu,
        resident::Resident,
        ring::{Completion, Copying, Op},
        signal,
    },
    wire::{request::HeadTemplate, scan::Scan},
};

/// Bodies from this size on go out zero-copy to another machine (`--send auto`). On loopback the kernel copies them anyway,
/// at 1.1 to 1.3 times the cost of a plain send; the size is where liburing's own measurements on a NIC break even.
const ZERO_COPY_BYTES_MIN: u64 = 32 << 10;
/// How long before a due time a hybrid wait leaves the kernel and spins: a timer of the ring comes 5 to 20 us late (p50) and
/// 17 to 60 us (p99), measured at 1k to 50k requests a second.
const SPIN_NS: u64 = 50_000;

/// What all workers of a run share, read-only.
#[derive(Debug)]
pub(super) struct Shared {
    /// What all phases have in common: the first one's.
    pub plan: Plan,
    pub legs: Vec<Leg>,
    pub view: Arc<View>,
    /// Heads: by target, and by target and record template where records bring their own.
    pub heads: Heads,
    /// First address of each target in the ring's list, and how many it has.
    pub addresses: Vec<(u16, u16)>,
    /// The first target with the origin of each: they share connections.
    pub peers: Vec<u16>,
    pub control: Control,
    pub live: Vec<Live>,
    pub clock: Clock,
    /// None where no target has TLS.
    pub tls: Option<Settings>,
    /// What of the bodies is in memory.
    pub resident: Arc<Resident>,
}

/// Request heads, made at set-up: `templates + 1` a target, the run's own first.
#[derive(Debug)]
pub(super) struct Heads {
    pub templates: Vec<HeadTemplate>,
    /// Templates of records, each as many as the dataset has.
    pub by_record: usize,
}

impl Heads {
    #[inline]
    pub fn of(&self, target: u16, template: Option<u32>) -> &HeadTemplate {
        &self.templates[target as usize * (self.by_record + 1) + template.map_or(0, |t| t as usize + 1)]
    }

    /// Bytes of the longest head.
    pub fn bytes_max(&self) -> usize {
        self.templates.iter().map(HeadTemplate::bytes_max).max().unwrap_or(0)
    }
}

/// How bodies of one worker go out, decided at set-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendRule {
    /// Bodies up to this size are copied behind their head.
    pub copy_max: u64,
    /// Bodies from this size on are sent without copying.
    pub zero_copy_min: u64,
    /// Bodies go by `sendfile`.
    pub by_file: bool,
}

/// One worker thread's whole state.
#[derive(Debug)]
pub(super) struct Worker<'a, I: Io> {
    pub shared: &'a Shared,
    pub io: I,
    pub index: usize,
    pub agenda: Agenda,
    pub tally: Tally,
    pub rule: SendRule,
    /// Requests in flight, at most, in this turn.
    pub slots_now: u32,
    /// Requests without a first token, at most, and how many there are.
    pub prefill_max: u32,
    pub prefilling: u32,
    pub holds: Vec<u32>,
    /// The phase whose part stands in the worker's fields, and the one that is played. They differ only while a request of an
    /// earlier phase is looked at.
    pub phase: usize,
    pub playing: usize,
    /// The parts of the other phases.
    pub parked: Vec<Option<Part>>,
    /// When what is in flight of an earlier phase is cut; none when nothing is.
    pub old_until: Nanos,
    /// The turn is the first of its phase.
    pub first_turn: bool,
    pub conns: Box<[Conn]>,
    pub trips: Box<[Trip]>,
    pub streams: Box<[Stream]>,
    /// When each slot must have moved on; swept.
    pub deadlines: Box<[Nanos]>,
    pub next_sweep: Nanos,
    /// Heads that came in pieces.
    pub carry: Area,
    /// First and last bytes of responses, for error samples.
    pub kept: Area,
    pub tls: Sessions,
    pub idle: Box<[IdleRing]>,
    /// Slots without a socket.
    pub closed: Vec<u32>,
    /// Slots whose receive ended for want of buffers.
    pub starved: Vec<u32>,
    /// Address of each target that answered last.
    pub good_address: Box<[u16]>,
    /// Connects that failed, by address.
    pub dead: Box<[Dead]>,
    /// The target whose turn it is.
    pub next_target: u16,
    pub counts: Counts,
    /// Of the requests in flight, those of the warm-up.
    pub warm_in_flight: u64,
    /// Until when the requests in flight are accounted.
    pub accounted: Nanos,
    /// The start of the run, once it is known.
    pub start: Nanos,
    /// When completions were dispatched last: slots became free then.
    pub dispatched: Nanos,
    /// Time spent spinning for a due time, nanoseconds.
    pub spun_ns: u64,
    pub ended: Option<EndedBy>,
    /// When the loop was left.
    pub ended_at: Nanos,
    pub pending: Box<[Completion]>,
    /// Times of content events of the streams in flight.
    pub stamps: Stamps,
    /// What is kept of each request.
    pub rows: Option<Kept>,
    /// The payload of one read, on its way to the spool of responses.
    pub piece: Vec<u8>,
}

impl<'a, I: Io> Worker<'a, I> {
    /// Takes all memory of the worker: `connections` slots, and its parts of the phases, of which there is at least one.
    pub fn new(
        shared: &'a Shared,
        io: I,
        index: usize,
        first: Part,
        later: Vec<Part>,
        rule: SendRule,
        connections: u32,
    ) -> Result<Self> {
        let n = connections as usize;
        let blank = Completion {
            op: Op::Cancel,
            conn: ConnId(0),
            generation: 0,
            result: 0,
            more: false,
            notification: false,
            buffer: None,
        };
        let targets = shared.addresses.len();
        Ok(Self {
            io,
            index,
            agenda: first.agenda,
            tally: first.tally,
            rows: first.rows,
            prefill_max: first.prefill_max,
            holds: first.holds,
            rule,
            slots_now: 0,
            prefilling: 0,
            phase: 0,
            playing: 0,
            parked: std::iter::once(None).chain(later.into_iter().map(Some)).collect(),
            old_until: Nanos::NONE,
            first_turn: true,
            conns: vec![Conn::CLOSED; n].into(),
            trips: vec![Trip::EMPTY; n].into(),
            streams: vec![Stream::new(Scan::stream()); n].into(),
            deadlines: vec![Nanos::NONE; n].into(),
            next_sweep: Nanos::NONE,
            carry: Area::new(n, limits::RESPONSE_HEAD_BYTES_MAX)?,
            kept: Area::new(n, 2 * limits::SAMPLE_BYTES)?,
            tls: Sessions::new(shared.tls.as_ref(), n),
            idle: (0..targets).map(|_| IdleRing::new(connections)).collect(),
            closed: (0..connections).rev().collect(),
            starved: Vec::with_capacity(n),
            good_address: vec![0; targets].into(),
            dead: vec![Dead::default(); shared.addresses.last().map_or(0, |a| usize::from(a.0 + a.1))].into(),
            next_target: 0,
            counts: Counts::default(),
            warm_in_flight: 0,
            accounted: Nanos::ZERO,
            start: Nanos::NONE,
            dispatched: Nanos::ZERO,
            spun_ns: 0,
            ended: None,
            ended_at: Nanos::ZERO,
            pending: vec![blank; limits::COMPLETIONS_PER_TURN].into(),
            stamps: Stamps::new(n)?,
            piece: Vec::with_capacity(limits::TLS_READ_BYTES.max(limits::RECV_BUFFER_BYTES)),
            shared,
        })
    }

    /// Opens `wanted` connections before the clock starts, and waits for them until the connect time-out. A connection that
    /// fails here is tried again on behalf of the first request that needs it.
    pub fn preconnect(&mut self, wanted: u32) -> Result<()> {
        // Connects under way at once, over all workers: below the smallest listen backlog that is common.
        let at_once = (limits::CONNECTS_AT_ONCE / self.shared.plan.workers().max(1) as u32).max(1);
        let now = self.shared.clock.now();
        let until = now.plus(self.shared.plan.timeouts.connect_ns.min(10_000_000_000));
        let (mut begun, mut opening) = (0, 0);
        loop {
            let now = self.shared.clock.now();
            while begun < wanted && opening < at_once {
                let Some(slot) = self.closed.pop() else { break };
                let targets = self.idle.len() as u32;
                self.open(ConnId(slot), (begun % targets) as u16, now);
                begun += 1;
                opening += 1;
            }
            self.io.submit_and_wait(limits::WAIT_MAX_NS / 10)?;
            self.reap();
            self.sweep(self.shared.clock.now());
            let opens = |c: &&Conn| matches!(c.state, State::Connecting | State::Handshaking | State::Closing);
            opening = self.conns.iter().filter(opens).count() as u32;
            let all = begun >= wanted || self.closed.is_empty();
            if (all && opening == 0) || now >= until || signal::asked().is_some() {
                return Ok(());
            }
        }
    }

    /// Runs from `start` to the end, one phase after the other, drains included. The tallies are complete after it.
    pub fn run(&mut self, start: Nanos) -> Result<()> {
        while let left @ 1.. = start.since(self.shared.clock.now()) {
            if left > 200_000 {
                std::thread::sleep(std::time::Duration::from_nanos(left - 100_000));
            }
        }
        self.dispatched = start;
        self.accounted = start;
        let quiet = Quiet::begin();
        let mut begin = start;
        loop {
            self.play(begin)?;
            match self.meet()? {
                Some(next) => begin = next,
                None => break,
            }
        }
        let now = self.shared.clock.now();
        self.cut_all(now);
        drop(quiet);
        self.finish();
        Ok(())
    }

    /// Plays one phase from its start to its end.
    fn play(&mut self, start: Nanos) -> Result<()> {
        let usage = cpu::thread_usage();
        self.start = start;
        self.first_turn = true;
        self.spun_ns = 0;
        if let Some(from) = self.agenda.measured_from_ns() {
            self.tally.measure_from(start.plus(from));
        }
        let open = self.counts.connections;
        self.tally.result.connections.established_peak = self.tally.result.connections.established_peak.max(open);
        let mut drain_until = Nanos::NONE;
        loop {
            let now = self.shared.clock.now();
            self.account_turn(now);
            let pick = self.start_due(now);
            if self.ended.is_some() && !drain_until.is_some() {
                drain_until = now.plus(self.shared.legs[self.phase].plan.stop.drain_ns);
            }
            if self.is_over(pick, now, drain_until) {
                break;
            }
            self.wait(pick, now, drain_until)?;
            self.look();
        }
        self.ended_at = self.shared.clock.now();
        let missed = self.agenda.missed();
        let result = &mut self.tally.result;
        result.buckets.missed += missed;
        result.buckets.scheduled += missed;
        self.cost(usage, start);
        Ok(())
    }

    /// Reads what came, and ends what is late.
    pub(super) fn look(&mut self) {
        self.reap();
        if self.next_sweep <= self.dispatched {
            self.sweep(self.dispatched);
        }
        if self.old_until <= self.dispatched {
            self.cut_old(self.dispatched);
            self.old_until = Nanos::NONE;
        }
    }

    /// Shows the other workers how this one's requests have ended, where that can end the run.
    #[inline]
    pub(super) fn show_ends(&self) {
        let leg = &self.shared.legs[self.phase];
        if leg.plan.stop.max_errors.is_some() {
            let buckets = &self.tally.result.buckets;
            leg.ends[self.index].show(buckets.succeeded, buckets.failed);
        }
    }

    /// Accounts the time since the last turn to the timeline.
    #[inline]
    fn account_turn(&mut self, now: Nanos) {
        let cost = &mut self.tally.result.cost;
        cost.longest_batch_ns = cost.longest_batch_ns.max(now.since(self.dispatched));
        self.account_in_flight(now);
        self.tally.result.cost.turns += 1;
        let live = &self.shared.live[self.index];
        live.show(&self.counts);
        if !self.shared.resident.all() {
            live.show_position(self.phase, self.agenda.next_unit());
        }
        self.show_ends();
    }

    /// Adds the requests in flight since the last look, those of the warm-up left out. Called before anything begins or ends.
    #[inline]
    fn account_in_flight(&mut self, now: Nanos) {
        let measured = self.counts.in_flight - self.warm_in_flight;
        self.tally.in_flight(self.accounted, now, measured);
        self.accounted = now;
    }

    /// Starts what is due, at most [`limits::STARTS_PER_TURN`]. Returns what the agenda said last.
    #[inline]
    fn start_due(&mut self, now: Nanos) -> Pick {
        if let Some(how) = self.shared.control.asked() {
            self.agenda.stop(now.since(self.start));
            self.agenda.shut(now.since(self.start));
            self.ended.get_or_insert(EndedBy::Interrupt);
            if how == Halt::Now {
                self.cut_all(now);
            }
        }
        // A worker that wakes late begins with what was due at the start, however short the run is.
        let offset = if std::mem::take(&mut self.first_turn) { 0 } else { now.since(self.start) };
        self.slots_now = self.agenda.slots(offset);
        let mut begun = 0;
        loop {
            if begun >= limits::STARTS_PER_TURN {
                return Pick::At(0);
            }
            let free = self.free();
            let pick = self.agenda.pick(offset, free);
            if !self.holds.is_empty() {
                self.close_dropped();
            }
            match pick {
                Pick::Start(work) => {
                    self.start_work(work, now);
                    begun += 1;
                }
                Pick::Done => {
                    if self.ended.is_none() {
                        self.ended = Some(self.agenda.ended_by(offset));
                    }
                    return pick;
                }
                Pick::At(_) | Pick::Wait => {
                    if self.ended.is_none() && self.agenda.stop_ns().is_some_and(|stop| offset >= stop) {
                        self.ended = Some(EndedBy::Duration);
                    }
                    return pick;
                }
            }
        }
    }

    /// Begins one request on a free slot, or opens a connection for it.
    #[inline]
    fn start_work(&mut self, work: Work, now: Nanos) {
        if !self.tally.measuring()
            && let Some(from) = self.agenda.measured_from_ns()
        {
            self.tally.measure_from(self.start.plus(from));
        }
        let Some((conn, target)) = self.take_slot(work.instance, work.unit) else {
            unreachable!("free() found one in this turn")
        };
        let c = &mut self.conns[conn.index()];
        c.record = work.record;
        c.instance = work.instance;
        c.status = 0;
        c.interim = 0;
        c.carried = 0;
        c.start = Nanos::NONE;
        c.first_byte = Nanos::NONE;
        c.clear(flag::OF_REQUEST);
        c.marks &= !mark::OF_REQUEST;
        if work.warmup {
            c.set(flag::WARMUP);
        } else if let Some(cancel) = self.shared.legs[self.phase].plan.cancel
            && (draw(self.shared.plan.seed, work.unit, work.record.0) as f64) < cancel.share * 2f64.powi(64)
        {
            c.marks |= mark::CANCEL;
        }
        if self.prefill_max != u32::MAX {
            c.marks |= mark::PREFILL;
            self.prefilling += 1;
        }
        let trip = &mut self.trips[conn.index()];
        trip.due = work.due_ns.map_or(self.dispatched.min(now), |due| self.start.plus(due));
        trip.unit = work.unit;
        trip.phase = self.phase as u16;
        trip.sent = Nanos::NONE;
        (trip.sent_bytes, trip.total_bytes, trip.received_bytes) = (0, 0, 0);
        (trip.kept_first, trip.kept_last) = (0, 0);
        (trip.connect_ns, trip.tls_ns) = (u64::MAX, u64::MAX);
        trip.last_byte = Nanos::NONE;
        self.counts.in_flight += 1;
        self.warm_in_flight += u64::from(work.warmup);
        self.counts.issued += 1;
        match c.state {
            State::Idle if self.shared.peers[usize::from(c.target)] == self.shared.peers[usize::from(target)] => {
                c.target = target;
                self.begin(conn, now);
            }
            State::Idle => self.close_and_reopen(conn, target),
            _ => {
                c.set(flag::WAITED);
                trip.tried = 0;
                self.open(conn, target, now);
            }
        }
    }

    /// Hands the first bytes of a request to the ring, once its body is in memory. The connection is open and free.
    #[inline]
    pub(super) fn begin(&mut self, conn: ConnId, now: Nanos) {
        let shared = self.shared;
        let c = &self.conns[conn.index()];
        if !shared.resident.all()
            && !c.is(mark::BLIND)
            && let Some(range) = self.io.cold(shared.view.spans(c.record))
        {
            return self.fetch(conn, range);
        }
        let c = &mut self.conns[conn.index()];
        debug_assert!(matches!(c.state, State::Idle | State::Fetching) && !c.has(flag::SEND));
        c.state = State::Busy;
        c.clear(flag::WAITED);
        let again = c.start.is_some();
        if !again {
            c.start = now;
        }
        let (record, target, generation) = (c.record, c.target, c.generation);
        let template = shared.heads.of(target, shared.view.template(record));
        let body = shared.view.body_bytes(record);
        let secure = self.tls.on(conn);
        let area = if secure { self.tls.piece_mut() } else { self.io.head_mut(conn) };
        let head = template.write(area, body, record, shared.view.body_xxh3(record));
        let trip = &mut self.trips[conn.index()];
        trip.head_bytes = head as u32;
        trip.total_bytes = head as u64 + body;
        if !again
            && !self.conns[conn.index()].has(flag::WARMUP)
            && let Some(slice) = self.tally.slice(now)
        {
            slice.issued += 1;
            slice.body_bytes += body;
        }
        self.deadlines[conn.index()] = self.deadline(conn, now);
        self.next_sweep = self.next_sweep.min(self.deadlines[conn.index()]);
        if shared.control.is_entry_changed() {
            return self.fail_changed(conn, now);
        }
        let spans = shared.view.spans(record);
        let by_file = self.rule.by_file && body > 0 && !secure;
        self.trips[conn.index()].by_file = by_file;
        let sent = if secure {
            return self.begin_tls(conn, head, now);
        } else if body == 0 {
            self.io.send_area(conn, generation, 0, head);
            Ok(())
        } else if body <= self.rule.copy_max {
            self.io.append_body(conn, head, spans).map(|end| self.io.send_area(conn, generation, 0, end))
        } else if by_file {
            self.io.send_file(conn, generation, (0, head), spans, 0)
        } else {
            let copying = if body >= self.rule.zero_copy_min { Copying::Zero } else { Copying::Copy };
            self.io.send_vector(conn, generation, (0, head), spans, 0, copying).map(drop)
        };
        match sent {
            Ok(()) => self.asked(conn, flag::SEND),
            Err(_) => self.fail_changed(conn, now),
        }
    }

    /// What the agenda may be asked for.
    #[inline]
    fn free(&mut self) -> Free {
        if self.counts.in_flight >= u64::from(self.slots_now) || self.prefilling >= self.prefill_max {
            return Free::all(false);
        }
        let any = self.any_slot();
        let own =
            !any && !self.holds.is_empty() && self.agenda.later_instance().is_some_and(|i| self.held(i).is_some());
        Free { root: any, later: any || own }
    }

    /// True when nothing is left to do.
    fn is_over(&mut self, pick: Pick, now: Nanos, drain_until: Nanos) -> bool {
        if self.ended.is_none() {
            return false;
        }
        let goes_on = self.phase + 1 < self.shared.legs.len() && self.shared.control.asked().is_none();
        let seamless = goes_on && self.shared.legs[self.phase].seamless;
        if matches!(pick, Pick::Done) && (self.counts.in_flight == 0 || seamless) {
            return true;
        }
        if now < drain_until {
            return false;
        }
        self.agenda.shut(now.since(self.start));
        if !seamless {
            self.cut_all(now);
        }
        true
    }

    /// Submits, and waits for what comes first: a completion, the next due time, the next sweep, the end of the drain.
    fn wait(&mut self, pick: Pick, now: Nanos, drain_until: Nanos) -> Result<()> {
        let due = match pick {
            Pick::At(offset) => self.start.plus(offset),
            Pick::Start(_) | Pick::Wait | Pick::Done => Nanos::NONE,
        };
        let slots = self.agenda.slots_until_ns();
        let slots = if slots == u64::MAX { Nanos::NONE } else { self.start.plus(slots) };
        let mut until = due.min(self.next_sweep).min(drain_until).min(slots).min(self.old_until);
        until = until.min(now.plus(limits::WAIT_MAX_NS));
        if self.ended.is_none()
            && let Some(stop) = self.agenda.stop_ns()
        {
            until = until.min(self.start.plus(stop));
        }
        let early = match self.shared.legs[self.phase].plan.pace {
            Pace::Sleep => 0,
            Pace::Hybrid => SPIN_NS,
            Pace::Spin => u64::MAX,
        };
        if due.is_some() && due == until && early > 0 {
            let sleep = until.since(now).saturating_sub(early);
            self.io.submit_and_wait(sleep)?;
            let awake = self.shared.clock.now();
            let mut looked = awake;
            while !self.io.has_completions() && looked < until {
                std::hint::spin_loop();
                looked = self.shared.clock.now();
            }
            self.spun_ns += looked.since(awake);
            return Ok(());
        }
        // Rounded up: a wait that ends a moment early would only turn the loop once more.
        self.io.submit_and_wait(until.since(now))?;
        Ok(())
    }

    /// Reads and dispatches what has completed.
    #[inline]
    fn reap(&mut self) {
        let mut now = self.shared.clock.now();
        let mut pending = std::mem::take(&mut self.pending);
        loop {
            let n = self.io.completions(&mut pending);
            self.tally.result.cost.completions += n as u64;
            self.account_in_flight(now);
            for completion in &pending[..n] {
                self.dispatch(completion, now);
            }
            self.io.publish();
            self.feed_starved();
            if n < pending.len() {
                break;
            }
            now = self.shared.clock.now();
        }
        self.pending = pending;
        self.dispatched = now;
    }

    /// Closes every connection, and waits a moment for the kernel to give everything back.
    fn finish(&mut self) {
        for slot in 0..self.conns.len() as u32 {
            if !matches!(self.conns[slot as usize].state, State::Closed | State::Closing) {
                self.begin_close(ConnId(slot));
            }
        }
        for phase in 0..=self.playing {
            self.switch(phase);
            if let Some(rows) = &self.rows {
                rows.flush(&mut self.io);
            }
        }
        // A tenth of a second in which nothing comes is enough for every completion but the notification of a peer that does not
        // acknowledge: such a connection is aborted. Turns that bring something do not count: a turn runs some twenty
        // completions of the kernel's, and ten thousand connections are to be closed as one is.
        let mut silent = 0;
        while silent < 100 {
            if silent == 10 {
                for slot in 0..self.conns.len() as u32 {
                    if self.conns[slot as usize].state == State::Closing {
                        self.io.abort(ConnId(slot));
                    }
                }
            }
            let before = self.io.in_kernel();
            if before == 0 || self.io.submit_and_wait(10_000_000).is_err() {
                break;
            }
            self.reap();
            silent += u32::from(self.io.in_kernel() >= before);
        }
        // A slow disk gets half a minute for the last half megabyte of each spool.
        for _ in 0..3_000 {
            if !self.io.writing() || self.io.submit_and_wait(10_000_000).is_err() {
                break;
            }
            self.reap();
        }
        self.shared.live[self.index].show(&self.counts);
    }

    fn cost(&mut self, before: cpu::Usage, start: Nanos) {
        let after = cpu::thread_usage();
        let (sq_full, cq_overflow) = self.io.pressure();
        let cost = &mut self.tally.result.cost;
        cost.cpu_user_ns = after.user_ns - before.user_ns;
        cost.cpu_system_ns = after.system_ns - before.system_ns;
        cost.switches_voluntary = after.voluntary - before.voluntary;
        cost.switches_involuntary = after.involuntary - before.involuntary;
        cost.major_faults = after.major_faults - before.major_faults;
        cost.wall_ns = self.shared.clock.now().since(start);
        // Spinning for a due time uses the core and is no work: a worker that spins is not busy.
        cost.idle_ns = cost.wall_ns.saturating_sub(cost.cpu_user_ns + cost.cpu_system_ns) + self.spun_ns;
        (cost.sq_full, cost.cq_overflow) = (sq_full, cq_overflow);
    }
}

impl SendRule {
    /// The rule for bodies that go to `local` targets, with `room` bytes behind the longest head; `file` says that bodies lie in
    /// a file.
    pub fn new(path: SendPath, local: bool, zero_copy: bool, file: bool, room: usize) -> Self {
        let never = u64::MAX;
        let copy = Self { copy_max: room as u64, zero_copy_min: never, by_file: false };
        match path {
            SendPath::Copy => copy,
            SendPath::ZeroCopy if zero_copy => Self { copy_max: 0, zero_copy_min: 0, ..copy },
            // Never by itself: measured on loopback (us of client CPU, copy against sendfile, 64 connections): 8 KiB 7.3 / 11.0,
            // 16 KiB 8.9 / 10.8, 64 KiB 14.2 / 15.7, 100 KiB 20.3 / 18.0, 1 MiB 221 / 296. It wakes the peer every 64 KiB.
            SendPath::File if file => Self { copy_max: 0, by_file: true, ..copy },
            SendPath::Auto if zero_copy && !local => Self { zero_copy_min: ZERO_COPY_BYTES_MIN, ..copy },
            SendPath::ZeroCopy | SendPath::File | SendPath::Auto => copy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_54_the_send_path_goes_by_size_and_peer() {
        let rule = |path, local, offered| {
            let r = SendRule::new(path, local, offered, false, 1_000);
            (r.copy_max, r.zero_copy_min)
        };
        assert_eq!(rule(SendPath::Auto, false, true), (1_000, 32 << 10), "to another machine, large bodies alone");
        assert_eq!(rule(SendPath::Auto, true, true), (1_000, u64::MAX), "the kernel would copy them all the same");
        assert_eq!(rule(SendPath::Auto, false, false), (1_000, u64::MAX), "not offered");
        assert_eq!(rule(SendPath::ZeroCopy, true, true), (0, 0), "asked for");
        assert_eq!(rule(SendPath::Copy, false, true), (1_000, u64::MAX));
    }
}
