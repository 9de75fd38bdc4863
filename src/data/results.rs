//! What a run leaves behind: one [`WorkerResult`] a worker, merged into a [`RunResult`] after the end.
//!
//! The report layer sees these tables and the plan, never the engine.

use super::{
    ids::{Nanos, RecordId, WorkerId},
    metric::{Metric, Series},
    outcome::ErrorClass,
};

/// The buckets of scheduled requests. Always `scheduled = issued + missed` and `issued = succeeded + failed + cut`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Buckets {
    /// The plan called for it.
    pub scheduled: u64,
    /// Its first byte was handed to the kernel, or its connection failed on its behalf.
    pub issued: u64,
    /// 2xx, complete, and good as a stream if it was one.
    pub succeeded: u64,
    /// Ended in an error class.
    pub failed: u64,
    /// In flight when the drain ended, or broken off on purpose.
    pub cut: u64,
    /// Of the cut: broken off on purpose, by `--cancel-rate`.
    #[serde(default)]
    pub cancelled: u64,
    /// Overdue and dropped, or still waiting when the drain was over.
    pub missed: u64,
}

impl Buckets {
    /// Adds another worker's.
    pub fn add(&mut self, other: &Self) {
        self.scheduled += other.scheduled;
        self.issued += other.issued;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.cut += other.cut;
        self.cancelled += other.cancelled;
        self.missed += other.missed;
    }

    /// True when nothing is lost and nothing is counted twice.
    pub const fn add_up(&self) -> bool {
        self.scheduled == self.issued + self.missed
            && self.issued == self.succeeded + self.failed + self.cut
            && self.cancelled <= self.cut
    }
}

/// Bytes of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Bytes {
    /// Body bytes that the kernel took.
    pub bodies: u64,
    /// All bytes that the kernel took, heads included.
    pub sent: u64,
    /// All bytes received.
    pub received: u64,
    /// Sent through a zero-copy send that the kernel did not copy.
    pub sent_zero_copy: u64,
    /// Sent by copy, or by a zero-copy send that the kernel copied all the same.
    pub sent_copied: u64,
    /// Sent by `sendfile(2)` from the page cache.
    #[serde(default)]
    pub sent_file: u64,
}

/// Connections of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Connections {
    /// The most that may be open at once, as asked for.
    pub asked: u64,
    /// The most that were open at once.
    pub established_peak: u64,
    /// Connections that were opened.
    pub opened: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Requests that were sent again because their kept connection was closed (`--resend-stale`).
    #[serde(default)]
    pub resent: u64,
    /// TLS handshakes that took up an earlier session (`--tls-resume on`).
    #[serde(default)]
    pub resumed: u64,
}

/// One row of the timeline: what happened in one slice of the run.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TimelineRow {
    /// Requests whose first byte was handed to the kernel in this slice.
    pub issued: u64,
    /// Requests that ended well in this slice.
    pub succeeded: u64,
    /// Requests that failed in this slice.
    pub failed: u64,
    /// Body bytes of the requests that were issued in this slice.
    pub body_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Output tokens of the requests that ended in this slice.
    pub output_tokens: u64,
    /// Sum of the request latencies of the successes in this slice, nanoseconds.
    pub latency_sum_ns: u64,
    /// Time integral of the requests in flight over the slice, request-nanoseconds.
    pub in_flight_ns: u64,
    /// Latencies of the successes by [`latency_cell`].
    pub cells: [u32; LATENCY_CELLS],
}

/// Cells of the coarse latency scale of a timeline row: half octaves from 1 us.
pub const LATENCY_CELLS: usize = 64;

/// The cell of a latency: cell `k` holds `[1 us * 2^(k/2), 1 us * 2^((k+1)/2))`, the ends hold what lies outside.
#[inline]
pub const fn latency_cell(ns: u64) -> usize {
    // The square is compared in octaves: log2(x^2) has half-octave steps of x, without floating point.
    let us_sq = {
        let us = (ns / 1_000) as u128;
        us * us
    };
    if us_sq == 0 {
        return 0;
    }
    let cell = us_sq.ilog2() as usize;
    if cell < LATENCY_CELLS { cell } else { LATENCY_CELLS - 1 }
}

/// Lower edge of a latency cell, nanoseconds.
pub fn latency_cell_floor_ns(cell: usize) -> f64 {
    1_000.0 * 2f64.powf(cell as f64 / 2.0)
}

impl TimelineRow {
    const ZERO: Self = Self {
        issued: 0,
        succeeded: 0,
        failed: 0,
        body_bytes: 0,
        received_bytes: 0,
        output_tokens: 0,
        latency_sum_ns: 0,
        in_flight_ns: 0,
        cells: [0; LATENCY_CELLS],
    };

    /// Adds another worker's row of the same slice, or the neighbouring slice.
    pub fn add(&mut self, other: &Self) {
        self.issued += other.issued;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.body_bytes += other.body_bytes;
        self.received_bytes += other.received_bytes;
        self.output_tokens += other.output_tokens;
        self.latency_sum_ns += other.latency_sum_ns;
        self.in_flight_ns += other.in_flight_ns;
        for (a, b) in self.cells.iter_mut().zip(&other.cells) {
            *a = a.saturating_add(*b);
        }
    }
}

impl Default for TimelineRow {
    fn default() -> Self {
        Self::ZERO
    }
}

/// A run in slices of equal width. All memory is taken at set-up; a run that outlasts it folds pairs of slices and goes on
/// with slices of twice the width.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Width of a slice, nanoseconds.
    pub width_ns: u64,
    rows: Vec<TimelineRow>,
    used: usize,
}

impl Timeline {
    /// An empty timeline of at most `capacity` slices (an even number of at least 2).
    pub fn new(width_ns: u64, capacity: usize) -> Self {
        let capacity = capacity.max(2).next_multiple_of(2);
        Self { width_ns: width_ns.max(1), rows: vec![TimelineRow::ZERO; capacity], used: 0 }
    }

    /// The slice at a time since the start. Never allocates.
    #[inline]
    pub fn at(&mut self, offset_ns: u64) -> &mut TimelineRow {
        let mut slot = (offset_ns / self.width_ns) as usize;
        while slot >= self.rows.len() {
            self.fold();
            slot = (offset_ns / self.width_ns) as usize;
        }
        self.used = self.used.max(slot + 1);
        &mut self.rows[slot]
    }

    #[cold]
    fn fold(&mut self) {
        let half = self.rows.len() / 2;
        for i in 0..half {
            let mut row = self.rows[2 * i];
            row.add(&self.rows[2 * i + 1]);
            self.rows[i] = row;
        }
        self.rows[half..].fill(TimelineRow::ZERO);
        self.used = self.used.div_ceil(2);
        self.width_ns *= 2;
    }

    /// The slices from the start to the last with anything in it.
    pub fn rows(&self) -> &[TimelineRow] {
        &self.rows[..self.used]
    }

    /// Adds another worker's timeline; the wider width wins.
    pub fn merge(&mut self, other: &Self) {
        let mut other = other.clone();
        while self.width_ns < other.width_ns {
            self.fold();
        }
        while other.width_ns < self.width_ns {
            other.fold();
        }
        for i in 0..other.used {
            let row = other.rows[i];
            let width = self.width_ns;
            self.at(i as u64 * width).add(&row);
        }
    }

    /// Forgets everything, keeping memory and width.
    pub fn clear(&mut self) {
        self.rows[..self.used].fill(TimelineRow::ZERO);
        self.used = 0;
    }
}

/// What one worker cost and how it fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cost {
    /// User CPU of the worker thread over the run, nanoseconds.
    pub cpu_user_ns: u64,
    /// System CPU of the worker thread over the run, nanoseconds.
    pub cpu_system_ns: u64,
    /// Time from the start to the worker's end, nanoseconds.
    pub wall_ns: u64,
    /// Of that, time with nothing to do, nanoseconds: waiting in the kernel, or spinning until the next due time.
    pub idle_ns: u64,
    /// Longest time between two looks at the completions, nanoseconds.
    pub longest_batch_ns: u64,
    /// Turns of the loop.
    pub turns: u64,
    /// Times the submission queue was full.
    pub sq_full: u64,
    /// Completion queue overflows.
    pub cq_overflow: u64,
    /// Times the provided receive buffers ran out.
    pub buffers_out: u64,
    /// Completions of a slot's earlier use.
    pub stale_completions: u64,
    /// Completions read.
    pub completions: u64,
    /// Requests whose body had to be read from the disk before it could be sent.
    pub cold_slices: u64,
    /// Times that the worker itself touched a page that was on the disk, and stood still with all its connections.
    #[serde(default)]
    pub major_faults: u64,
    /// Voluntary context switches.
    pub switches_voluntary: u64,
    /// Involuntary context switches.
    pub switches_involuntary: u64,
    /// Responses that came with a content encoding, whose stream could not be looked into.
    pub encoded_streams: u64,
}

/// One kept sample of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its class.
    pub class: ErrorClass,
    /// Which record it was.
    pub record: RecordId,
    /// When it failed, nanoseconds since the start.
    pub at_ns: u64,
    /// Status, 0 when none came.
    pub status: u16,
    /// What went wrong, in words (errno, parser's reason); may be empty.
    pub what: String,
    /// First bytes of the response, as many as were kept.
    pub first_bytes: Vec<u8>,
    /// Last bytes of the response, as many as were kept.
    pub last_bytes: Vec<u8>,
}

/// Everything that one worker counted.
#[derive(Clone, Debug)]
pub struct WorkerResult {
    /// Which worker.
    pub worker: WorkerId,
    /// The core it was pinned to; none without pinning.
    pub core: Option<u32>,
    /// Buckets.
    pub buckets: Buckets,
    /// Failures by class; length [`ErrorClass::COUNT`].
    pub errors: Vec<u64>,
    /// Complete responses by status; length 1000.
    pub statuses: Vec<u64>,
    /// Bytes.
    pub bytes: Bytes,
    /// Connections.
    pub connections: Connections,
    /// Samples by metric; length [`Metric::COUNT`].
    pub series: Vec<Series>,
    /// What happened when.
    pub timeline: Timeline,
    /// A few failures of each class.
    pub samples: Vec<Sample>,
    /// Successes that met every limit of `--goodput`.
    pub good: u64,
    /// Input tokens of the successes whose count is known.
    pub input_tokens: u64,
    /// Output tokens of the successes whose count is known.
    pub output_tokens: u64,
    /// Cost.
    pub cost: Cost,
    /// First start of a measured request.
    pub first_start: Nanos,
    /// Last start of a measured request.
    pub last_start: Nanos,
    /// Last end of a measured request (cut ones not counted).
    pub last_done: Nanos,
}

impl WorkerResult {
    /// An empty result; `timeline_rows` slices of one second.
    pub fn new(worker: WorkerId, core: Option<u32>, timeline_rows: usize) -> Self {
        Self {
            worker,
            core,
            buckets: Buckets::default(),
            errors: vec![0; ErrorClass::COUNT],
            statuses: vec![0; 1000],
            bytes: Bytes::default(),
            connections: Connections::default(),
            series: (0..Metric::COUNT).map(|_| Series::new()).collect(),
            timeline: Timeline::new(super::units::SECOND, timeline_rows),
            samples: Vec::new(),
            good: 0,
            input_tokens: 0,
            output_tokens: 0,
            cost: Cost::default(),
            first_start: Nanos::NONE,
            last_start: Nanos::NONE,
            last_done: Nanos::NONE,
        }
    }
}

/// Why a run stopped issuing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// `-d` was over.
    Duration,
    /// `-n` were issued.
    Requests,
    /// Every pass over the dataset (or the whole schedule) was issued.
    Dataset,
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// `--max-errors` was reached, or the run could not go on.
    Error,
}

impl EndedBy {
    /// The name in `summary.json`; both signals are an interrupt there, and differ in the exit status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Duration => "duration",
            Self::Requests => "requests",
            Self::Dataset => "dataset",
            Self::Interrupt | Self::Terminate => "interrupt",
            Self::Error => "error",
        }
    }
}

/// What the built-in target counted, when the run had one: the server's side of the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// Requests whose head and body came whole.
    pub requests: u64,
    /// Body bytes of those.
    pub body_bytes: u64,
    /// Bodies compared with the length and digest that the client announced (`mode=check`).
    pub verified: u64,
    /// Of those, bodies that differed.
    pub wrong: u64,
    /// The first of them that was seen.
    pub first_wrong: Option<WrongBody>,
    /// Connections accepted.
    pub connections: u64,
    /// Answers whose last byte was handed to the kernel, injected errors included.
    pub answers: u64,
    /// Content events handed to the kernel (`mode=sse`).
    pub events: u64,
    /// Malformed requests, refused with a status of the target's own.
    pub bad_requests: u64,
    /// Requests or answers that the client broke off.
    pub aborted: u64,
    /// Injected: answers with status 500 (`error`).
    pub errors_injected: u64,
    /// Injected: connections reset instead of an answer, or inside a stream (`reset`).
    pub resets_injected: u64,
    /// Injected: answers that end early (`truncate`).
    pub truncations_injected: u64,
    /// Injected: error events inside a stream with status 200 (`stream_error`).
    pub stream_errors_injected: u64,
    /// Injected: answers held back by `stall`.
    pub stalled: u64,
    /// Connections that the target closed on its own between requests (`close_every`, `idle_close`).
    pub closed: u64,
    /// Answers and events that had a due time of their own; the lateness figures are over these.
    pub timed: u64,
    /// Median of how late those were handed to the kernel, nanoseconds; within 7 %.
    pub late_p50_ns: u64,
    /// 99th percentile of it.
    pub late_p99_ns: u64,
    /// The most, exact.
    pub late_max_ns: u64,
    /// Lines of `log` that could not be written.
    pub log_lines_lost: u64,
    /// User and system CPU of the server's threads, nanoseconds.
    pub cpu_ns: u64,
}

/// A body that was not what the client announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrongBody {
    /// The record that the client named; none without the field.
    pub record: Option<u64>,
    /// Length that the client announced.
    pub expected_bytes: u64,
    /// Length that came.
    pub seen_bytes: u64,
    /// XXH3-64 that the client announced.
    pub expected_xxh3: u64,
    /// XXH3-64 of what came.
    pub seen_xxh3: u64,
}

/// What the summary says about the dataset of a run; for `-b`, `-B` and GET runs there is one record (or none) and no cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetFacts {
    /// Format name; `inline` for `-b`/`-B`, empty without a body.
    pub format: String,
    /// Records.
    pub records: u64,
    /// How the cache answered.
    pub cache: CacheState,
    /// Key of the entry; empty without one.
    pub key: String,
    /// Sum of the body lengths.
    pub body_bytes: u64,
    /// Bytes of `dataset.dat`.
    pub stored_bytes: u64,
    /// Bad records left out by `--skip-bad`.
    pub skipped: u64,
    /// Where input token counts come from: `tokenizer`, `approx`, `trace`, or empty for none.
    pub token_source: String,
}

/// How the cache answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheState {
    /// A complete entry was there.
    Hit,
    /// It was built.
    Miss,
    /// A private build, kept nowhere.
    #[default]
    Off,
}

impl CacheState {
    /// The name in `summary.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Off => "off",
        }
    }
}

/// A finished run: the workers' tables and what the control thread knows.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// One a worker, in worker order.
    pub workers: Vec<WorkerResult>,
    /// Why it stopped issuing.
    pub ended_by: EndedBy,
    /// Wall clock at the start, nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// The measured window: from the start (after the warm-up) to the last end, nanoseconds.
    pub duration_ns: u64,
    /// From the start (after the warm-up) to the moment of the stop, nanoseconds: what issued requests are divided by.
    pub issue_window_ns: u64,
    /// Facts to tell the user that are not figures: fallbacks, missing opcodes, caps reached.
    pub notes: Vec<String>,
    /// The built-in target's counts.
    pub target: Option<TargetCounts>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_cells_are_half_octaves_and_never_out_of_range() {
        assert_eq!(latency_cell(0), 0);
        assert_eq!(latency_cell(1_000), 0);
        assert_eq!(latency_cell(2_000), 2);
        assert_eq!(latency_cell(1_000_000), 19);
        assert_eq!(latency_cell(u64::MAX), LATENCY_CELLS - 1);
        for cell in 4..40 {
            let floor = latency_cell_floor_ns(cell);
            assert_eq!(latency_cell((floor * 1.2) as u64), cell, "{cell}");
        }
    }

    #[test]
    fn timeline_folds_when_the_run_outlasts_it_and_loses_nothing() {
        let mut t = Timeline::new(10, 4);
        for i in 0..100 {
            t.at(i).issued += 1;
        }
        assert_eq!(t.rows().iter().map(|r| r.issued).sum::<u64>(), 100);
        assert_eq!(t.width_ns, 40);
        assert_eq!(t.rows().len(), 3);
    }

    #[test]
    fn timelines_of_different_widths_merge() {
        let mut a = Timeline::new(10, 4);
        a.at(35).issued = 1;
        let mut b = Timeline::new(10, 4);
        b.at(75).issued = 2;
        assert_ne!(a.width_ns, b.width_ns);
        a.merge(&b);
        assert_eq!(a.rows().iter().map(|r| r.issued).collect::<Vec<_>>(), [0, 1, 0, 2]);
    }
}
