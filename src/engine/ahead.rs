//! The thread that reads bodies into memory before workers send them, one a run.
//!
//! It follows each worker's place in the order of the records: far ahead it has the kernel begin to read, and in order it waits for
//! what was begun, maps it and says so in [`Resident`](crate::sys::resident::Resident). Where the whole file fits into memory it
//! reads all the rest of it too, and is done then. A worker that is ahead of it, or that plays an order that nobody knows
//! before (the turns of sessions), asks the kernel by itself: nothing depends on this thread but how often that happens.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, Thread},
    time::Duration,
};

use super::worker::Shared;
use crate::{
    data::{
        RecordId, Span,
        limits::{AHEAD_BYTES, AHEAD_RECORDS, FETCH_BYTES_MAX},
    },
    pace::record_ahead,
    sys::cpu,
};

/// How long it sleeps when the workers have not moved on.
const LOOK: Duration = Duration::from_millis(1);
/// Records of a session that are read with its first one.
const TURNS: usize = 32;
/// Bytes that are mapped between two looks at the workers.
const PIECE_BYTES: u64 = 2 << 20;
const _: () = assert!(PIECE_BYTES <= FETCH_BYTES_MAX);

/// Tells the thread that the run is over, also when it ends by a panic.
#[derive(Debug)]
pub(super) struct Over<'a> {
    pub flag: &'a AtomicBool,
    pub thread: Option<Thread>,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.flag.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

/// Reads ahead until everything is in memory, or the run is over.
pub(super) fn run(shared: &Shared, over: &AtomicBool) {
    cpu::stand_back();
    let workers = shared.plan.workers();
    let mut cursors: Vec<Cursor> = (0..workers).map(Cursor::new).collect();
    let mut sweep = Sweep { at: 0, begun: 0, whole: shared.resident.fits() };
    while !over.load(Ordering::Relaxed) && !shared.resident.all() {
        shared.resident.turn_over();
        let mut moved = false;
        for cursor in &mut cursors {
            moved |= cursor.step(shared, AHEAD_BYTES / workers as u64);
        }
        moved |= sweep.step(shared);
        if !moved {
            thread::park_timeout(LOOK);
        }
    }
}

/// Brings a stretch in and says so. False when the file has it no more: whoever sends it will be told.
fn bring(shared: &Shared, range: Range<u64>) -> bool {
    let whole = shared.resident.map().populate(range.clone());
    if whole {
        shared.resident.mark(range);
    }
    whole
}

/// Has the kernel begin to read what of a span is not in memory.
fn announce(shared: &Shared, span: &Span) {
    let mut from = span.offset;
    while let Some(range) = shared.resident.unknown(from..span.end()) {
        from = range.end;
        if !shared.resident.is_in_memory(range.clone()) {
            shared.resident.map().will_need(range);
        }
    }
}

/// What is read ahead of one worker.
#[derive(Debug)]
struct Cursor {
    worker: usize,
    phase: usize,
    /// The next unit to announce.
    next: u64,
    /// Units announced from the worker's place on, with their bytes; the first `brought` of them are in memory.
    announced: VecDeque<(u64, u64)>,
    brought: usize,
    bytes: u64,
}

impl Cursor {
    fn new(worker: usize) -> Self {
        let announced = VecDeque::with_capacity(AHEAD_RECORDS);
        Self { worker, phase: 0, next: worker as u64, announced, brought: 0, bytes: 0 }
    }

    /// One step ahead of the worker: announces as far as it may, and brings in the next unit. False when there was nothing to do.
    fn step(&mut self, shared: &Shared, most_bytes: u64) -> bool {
        self.follow(shared.live[self.worker].position());
        let Some(leg) = shared.legs.get(self.phase) else { return false };
        while self.announced.len() < AHEAD_RECORDS && self.bytes < most_bytes {
            let Some(root) = record_ahead(&leg.roots, &leg.plan, self.next) else { break };
            let mut bytes = 0;
            for record in turns(shared, root) {
                shared.view.spans(record).iter().for_each(|span| announce(shared, span));
                bytes += shared.view.body_bytes(record);
            }
            self.announced.push_back((self.next, bytes));
            self.bytes += bytes;
            self.next += leg.active as u64;
        }
        let Some(&(unit, _)) = self.announced.get(self.brought) else { return false };
        self.brought += 1;
        let Some(root) = record_ahead(&leg.roots, &leg.plan, unit) else { return false };
        for span in turns(shared, root).flat_map(|record| shared.view.spans(record)) {
            let mut from = span.offset;
            while let Some(range) = shared.resident.unknown(from..span.end()) {
                from = range.end;
                bring(shared, range);
            }
        }
        true
    }

    /// Forgets what the worker has behind it.
    fn follow(&mut self, (phase, unit): (usize, u64)) {
        let at = unit.max(self.worker as u64);
        if phase != self.phase {
            *self = Self { phase, ..Self::new(self.worker) };
        }
        while let Some(&(first, bytes)) = self.announced.front()
            && first < at
        {
            self.announced.pop_front();
            self.bytes -= bytes;
            self.brought = self.brought.saturating_sub(1);
        }
        self.next = self.next.max(at);
    }
}

/// A root and the turns that follow it, one after the other, as far as they are read ahead.
fn turns(shared: &Shared, root: RecordId) -> impl Iterator<Item = RecordId> + use<'_> {
    std::iter::successors(Some(root), |&record| shared.view.successors(record).first().map(|&r| RecordId(r)))
        .take(TURNS)
}

/// The whole file, from its front to its end, where it fits into memory.
#[derive(Debug)]
struct Sweep {
    at: u64,
    /// Up to where the kernel was told to read.
    begun: u64,
    /// Everything so far was brought in.
    whole: bool,
}

impl Sweep {
    /// Brings in the next piece. False when there is none.
    fn step(&mut self, shared: &Shared) -> bool {
        let end = shared.resident.map().len();
        if !self.whole || self.at >= end {
            return false;
        }
        while self.begun < end.min(self.at + AHEAD_BYTES / 4) {
            announce(shared, &Span { offset: self.begun, bytes: PIECE_BYTES.min(end - self.begun) });
            self.begun += PIECE_BYTES;
        }
        let to = end.min(self.at + PIECE_BYTES);
        while let Some(range) = shared.resident.unknown(self.at..to) {
            self.whole &= bring(shared, range.clone());
            self.at = range.end;
        }
        self.at = to;
        if self.whole && self.at >= end {
            shared.resident.mark_all();
        }
        true
    }
}
