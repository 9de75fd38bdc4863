//! What a worker shows of itself while it runs: plain counters on cache lines of its own, one writer each.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::data::results::{LATENCY_CELLS, latency_cell, latency_cell_floor_ns};

/// Counters of one worker, written by it once a turn and read by the control thread.
#[derive(Debug)]
#[repr(align(128))]
pub struct Live {
    issued: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    missed: AtomicU64,
    in_flight: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    connections: AtomicU64,
    /// Where the worker is in the order of the records: its phase in the upper bits, its next unit in the lower ones.
    position: AtomicU64,
    /// Latencies of the successes on the coarse scale of the timeline.
    cells: [AtomicU32; LATENCY_CELLS],
}

/// How the requests of one worker and phase have ended so far, for `--max-errors`: written by the worker, read by all when one
/// has failed.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Ends {
    succeeded: AtomicU64,
    failed: AtomicU64,
}

impl Ends {
    /// Shows new counts.
    #[inline]
    pub fn show(&self, succeeded: u64, failed: u64) {
        self.succeeded.store(succeeded, Ordering::Relaxed);
        self.failed.store(failed, Ordering::Relaxed);
    }

    /// Succeeded and failed over all workers.
    pub fn total(workers: &[Self]) -> (u64, u64) {
        let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
        workers.iter().fold((0, 0), |(s, f), e| (s + load(&e.succeeded), f + load(&e.failed)))
    }
}

/// Where the workers meet at the end of a phase.
#[derive(Debug, Default)]
pub struct Meeting {
    arrived: AtomicUsize,
    end_ns: AtomicU64,
}

impl Meeting {
    /// One worker's part of the phase ended at this time.
    pub fn arrive(&self, end_ns: u64) {
        self.end_ns.fetch_max(end_ns, Ordering::Relaxed);
        self.arrived.fetch_add(1, Ordering::Release);
    }

    /// When the last of so many workers ended; none until all have.
    pub fn ended(&self, workers: usize) -> Option<u64> {
        (self.arrived.load(Ordering::Acquire) >= workers).then(|| self.end_ns.load(Ordering::Relaxed))
    }
}

/// More units than any run plays; the phases are in the bits above.
const UNIT_BITS: u32 = 48;
const UNIT_MASK: u64 = (1 << UNIT_BITS) - 1;

impl Default for Live {
    fn default() -> Self {
        Self {
            issued: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            position: AtomicU64::new(0),
            cells: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

/// The counters at one moment, of one worker or summed over all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests begun, warm-up included.
    pub issued: u64,
    /// Ended well.
    pub succeeded: u64,
    /// Failed.
    pub failed: u64,
    /// Missed.
    pub missed: u64,
    /// On their way.
    pub in_flight: u64,
    /// Bytes that the kernel took.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Connections open.
    pub connections: u64,
}

impl Live {
    /// Shows new counts. No read-modify-write: this worker alone writes here.
    #[inline]
    pub fn show(&self, counts: &Counts) {
        self.issued.store(counts.issued, Ordering::Relaxed);
        self.succeeded.store(counts.succeeded, Ordering::Relaxed);
        self.failed.store(counts.failed, Ordering::Relaxed);
        self.missed.store(counts.missed, Ordering::Relaxed);
        self.in_flight.store(counts.in_flight, Ordering::Relaxed);
        self.sent_bytes.store(counts.sent_bytes, Ordering::Relaxed);
        self.received_bytes.store(counts.received_bytes, Ordering::Relaxed);
        self.connections.store(counts.connections, Ordering::Relaxed);
    }

    /// Shows where the worker is in the order of the records.
    #[inline]
    pub fn show_position(&self, phase: usize, unit: u64) {
        self.position.store((phase as u64) << UNIT_BITS | (unit & UNIT_MASK), Ordering::Relaxed);
    }

    /// Phase and next unit, as shown last; 0 and 0 before.
    pub fn position(&self) -> (usize, u64) {
        let at = self.position.load(Ordering::Relaxed);
        ((at >> UNIT_BITS) as usize, at & UNIT_MASK)
    }

    /// Adds one latency.
    #[inline]
    pub fn latency(&self, ns: u64) {
        let cell = &self.cells[latency_cell(ns)];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Adds this worker's counts to a sum.
    pub fn add_to(&self, sum: &mut Counts) {
        sum.issued += self.issued.load(Ordering::Relaxed);
        sum.succeeded += self.succeeded.load(Ordering::Relaxed);
        sum.failed += self.failed.load(Ordering::Relaxed);
        sum.missed += self.missed.load(Ordering::Relaxed);
        sum.in_flight += self.in_flight.load(Ordering::Relaxed);
        sum.sent_bytes += self.sent_bytes.load(Ordering::Relaxed);
        sum.received_bytes += self.received_bytes.load(Ordering::Relaxed);
        sum.connections += self.connections.load(Ordering::Relaxed);
    }
}

/// Counts over all workers.
pub fn total(workers: &[Live]) -> Counts {
    let mut sum = Counts::default();
    for live in workers {
        live.add_to(&mut sum);
    }
    sum
}

/// The latency, in nanoseconds, that 99 of 100 successes so far stayed below, to the half octave; none without successes.
pub fn p99_so_far(workers: &[Live]) -> Option<u64> {
    let mut cells = [0u64; LATENCY_CELLS];
    for live in workers {
        for (sum, cell) in cells.iter_mut().zip(&live.cells) {
            *sum += u64::from(cell.load(Ordering::Relaxed));
        }
    }
    let count: u64 = cells.iter().sum();
    let rank = count - count / 100;
    let mut below = 0;
    for (cell, n) in cells.iter().enumerate() {
        below += n;
        if count > 0 && below >= rank {
            return Some(latency_cell_floor_ns(cell + 1) as u64);
        }
    }
    None
}

/// Asks the workers to stop.
#[derive(Debug, Default)]
pub struct Control {
    asked: AtomicU8,
    errors: AtomicBool,
    changed: AtomicBool,
}

/// How workers are asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// Issue nothing more, wait for those in flight.
    Drain,
    /// End at once; those in flight are cut.
    Now,
}

impl Control {
    /// Asks; [`Halt::Now`] is never taken back.
    pub fn halt(&self, how: Halt) {
        let level = match how {
            Halt::Drain => 1,
            Halt::Now => 2,
        };
        self.asked.fetch_max(level, Ordering::Relaxed);
    }

    /// Asks because too many requests failed.
    pub fn halt_for_errors(&self) {
        self.errors.store(true, Ordering::Relaxed);
        self.halt(Halt::Drain);
    }

    /// True when too many requests failed.
    pub fn halted_for_errors(&self) -> bool {
        self.errors.load(Ordering::Relaxed)
    }

    /// Says that the files of the cache entry are others now: no request that begins from here on may be sent.
    pub fn entry_changed(&self) {
        self.changed.store(true, Ordering::Relaxed);
    }

    /// True when the bytes that would be sent may not be those that were stored.
    #[inline]
    pub fn is_entry_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// What was asked so far.
    #[inline]
    pub fn asked(&self) -> Option<Halt> {
        match self.asked.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Halt::Drain),
            _ => Some(Halt::Now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p99_so_far_is_within_half_an_octave() {
        let live = Live::default();
        assert_eq!(p99_so_far(std::slice::from_ref(&live)), None);
        for _ in 0..990 {
            live.latency(100_000);
        }
        for _ in 0..10 {
            live.latency(5_000_000);
        }
        let p = p99_so_far(std::slice::from_ref(&live)).unwrap();
        assert!((100_000..200_000).contains(&p), "{p}");
        for _ in 0..10 {
            live.latency(5_000_000);
        }
        let p = p99_so_far(&[live]).unwrap();
        assert!((5_000_000..8_000_000).contains(&p), "{p}");
    }

    #[test]
    fn a_halt_is_never_weakened() {
        let control = Control::default();
        assert_eq!(control.asked(), None);
        control.halt(Halt::Now);
        control.halt(Halt::Drain);
        assert_eq!(control.asked(), Some(Halt::Now));
    }
}
