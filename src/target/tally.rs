//! What one thread counts, readable by any other while it runs.
//!
//! Each tally has one writer, its own thread: a count is a plain load, add and store, without a bus lock. Readers may see one
//! count a little older than another; after the thread has ended they agree.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use crate::data::results::{TargetCounts, WrongBody};

/// A count with one writer.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds; only for the thread that owns the tally.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The value so far.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Replaces it.
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }
}

/// Sub-buckets of an octave: values are known within 1/16.
const PER_OCTAVE: usize = 16;
const CELLS: usize = 61 * PER_OCTAVE;

/// The counts of one thread; the names are those of [`TargetCounts`]. Aligned so that two threads never share a line pair.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Tally {
    pub requests: Count,
    pub body_bytes: Count,
    pub verified: Count,
    pub wrong: Count,
    pub first_wrong: OnceLock<WrongBody>,
    pub connections: Count,
    pub answers: Count,
    pub events: Count,
    pub bad_requests: Count,
    pub aborted: Count,
    pub errors_injected: Count,
    pub resets_injected: Count,
    pub truncations_injected: Count,
    pub stream_errors_injected: Count,
    pub stalled: Count,
    pub closed: Count,
    pub log_lines_lost: Count,
    pub cpu_ns: Count,
    late: Late,
}

#[derive(Debug)]
struct Late {
    cells: Box<[AtomicU32; CELLS]>,
    most_ns: Count,
}

impl Default for Late {
    fn default() -> Self {
        Self { cells: Box::new([const { AtomicU32::new(0) }; CELLS]), most_ns: Count::default() }
    }
}

impl Tally {
    /// Notes how late something with a due time was handed to the kernel.
    pub fn late(&self, ns: u64) {
        let cell = &self.late.cells[cell(ns)];
        cell.store(cell.load(Relaxed).wrapping_add(1), Relaxed);
        if self.late.most_ns.value() < ns {
            self.late.most_ns.set(ns);
        }
    }

    /// Notes a body that differed.
    pub fn wrong_body(&self, seen: WrongBody) {
        self.wrong.add(1);
        // Only the first is kept.
        let _ = self.first_wrong.set(seen);
    }
}

/// The sum over the threads.
pub fn sum<'a>(tallies: impl Iterator<Item = &'a Tally>) -> TargetCounts {
    let mut out = TargetCounts::default();
    let mut cells = vec![0u64; CELLS];
    for t in tallies {
        out.requests += t.requests.value();
        out.body_bytes += t.body_bytes.value();
        out.verified += t.verified.value();
        out.wrong += t.wrong.value();
        out.first_wrong = out.first_wrong.or(t.first_wrong.get().copied());
        out.connections += t.connections.value();
        out.answers += t.answers.value();
        out.events += t.events.value();
        out.bad_requests += t.bad_requests.value();
        out.aborted += t.aborted.value();
        out.errors_injected += t.errors_injected.value();
        out.resets_injected += t.resets_injected.value();
        out.truncations_injected += t.truncations_injected.value();
        out.stream_errors_injected += t.stream_errors_injected.value();
        out.stalled += t.stalled.value();
        out.closed += t.closed.value();
        out.log_lines_lost += t.log_lines_lost.value();
        out.cpu_ns += t.cpu_ns.value();
        out.late_max_ns = out.late_max_ns.max(t.late.most_ns.value());
        for (sum, cell) in cells.iter_mut().zip(t.late.cells.iter()) {
            *sum += u64::from(cell.load(Relaxed));
        }
    }
    out.timed = cells.iter().sum();
    out.late_p50_ns = quantile(&cells, out.timed, 50).min(out.late_max_ns);
    out.late_p99_ns = quantile(&cells, out.timed, 99).min(out.late_max_ns);
    out
}

/// Cell of a value: exact below 16, then 16 cells an octave.
const fn cell(ns: u64) -> usize {
    if ns < PER_OCTAVE as u64 {
        return ns as usize;
    }
    let octave = ns.ilog2() as usize - 4;
    (octave + 1) * PER_OCTAVE + (ns >> octave) as usize % PER_OCTAVE
}

/// The highest value of a cell.
const fn cell_top(cell: usize) -> u64 {
    if cell < PER_OCTAVE {
        return cell as u64;
    }
    let octave = cell / PER_OCTAVE - 1;
    let top = ((PER_OCTAVE + cell % PER_OCTAVE) as u64 + 1) as u128;
    ((top << octave) - 1) as u64
}

fn quantile(cells: &[u64], total: u64, percent: u64) -> u64 {
    let rank = (total * percent).div_ceil(100).max(1);
    let mut below = 0;
    for (i, &n) in cells.iter().enumerate() {
        below += n;
        if rank <= below {
            return cell_top(i);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_within_a_sixteenth_and_cover_every_value() {
        for shift in 0..64 {
            for ns in [1u64 << shift, (1u64 << shift) + (1u64 << shift) / 3, u64::MAX >> shift] {
                let cell = cell(ns);
                assert!(cell < CELLS && ns <= cell_top(cell));
                assert!(cell_top(cell) - ns <= ns / 16, "{ns}");
            }
        }
    }

    #[test]
    fn lateness_over_threads_is_ranked_together() {
        let tallies = [Tally::default(), Tally::default()];
        for ns in 1..=50u64 {
            tallies[0].late(ns * 1000);
            tallies[1].late((ns + 50) * 1000);
        }
        let counts = sum(tallies.iter());
        assert_eq!((counts.timed, counts.late_max_ns), (100, 100_000));
        assert!((50_000..54_000).contains(&counts.late_p50_ns));
        assert!((99_000..=100_000).contains(&counts.late_p99_ns));
        assert_eq!(sum(std::iter::empty()), TargetCounts::default());
    }
}
