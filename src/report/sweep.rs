//! Figures weighted by time: how many requests were in flight, how many tokens, how fast tokens came and went, at every moment
//! of the measured window. Names and formulas are AIPerf's sweep lines; where they differ `docs/aiperf-differences.md` says so.
//!
//! A request is in flight from its start to its end, whatever that was; before its first token it prefills, after it, up to its
//! last token, it decodes. Its input tokens are held from its start to its end, its output tokens from when they came: they
//! come in eight equal steps between the first and the last token.
//!
//! Rows come in the order of their ends, the sweep wants them in the order of their starts: they are sorted in runs of a
//! million, which beyond the first go to files without a name in the run directory, and merged. So memory is bounded.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{
    data::{
        Error, Nanos, Result,
        metric::Series,
        rows::{NONE_U32, Row},
        units::SECOND,
    },
    sys::fs::unnamed_file,
};

use super::{
    percentile::{Percentile, mean, std_deviation, value_at},
    records::between,
    spools::Rows,
    table::Table,
};

/// A figure weighted by time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weighted {
    /// `requests`, `tokens`, `tokens/s`, `tokens/s/user`.
    pub unit: String,
    /// Its mean over the time.
    pub mean: f64,
    /// Its population standard deviation.
    pub std: f64,
    /// Its lowest value that held for any time.
    pub min: f64,
    /// Its highest.
    pub max: f64,
    /// The value that it did not exceed for half of the time.
    pub p50: f64,
    /// For 90 % of it.
    pub p90: f64,
    /// For 95 %.
    pub p95: f64,
    /// For 99 %.
    pub p99: f64,
}

/// Rows that are sorted at a time: 32 MiB.
const RUN_ROWS: usize = 1 << 20;
/// Rows that are read at a time of a run in a file.
const READ_ROWS: usize = 2048;
/// Steps in which the output tokens of a request come.
const STEPS: u32 = 8;

/// What the sweep must know of a request; 32 bytes. Times are nanoseconds since the run's anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Life {
    start: u64,
    end: u64,
    /// Time from the start to the first token; [`NONE_U32`] without one. A microsecond is exact enough, and 71 minutes are
    /// longer than any request is waited for.
    prefill_us: u32,
    /// Time from the first token to the last, microseconds.
    decode_us: u32,
    input_tokens: u32,
    output_tokens: u32,
}

impl Life {
    fn of(row: &Row) -> Option<Self> {
        let start = row.start.get()?;
        let us = |ns: u64| u32::try_from(ns / 1_000).unwrap_or(NONE_U32 - 1);
        let known = |n: u32| if n == NONE_U32 { 0 } else { n };
        let prefill = between(row.start, row.first_token);
        Some(Self {
            start,
            end: row.done.get()?.max(start),
            prefill_us: prefill.map_or(NONE_U32, us),
            decode_us: between(row.first_token, row.last_token).map_or(0, us),
            input_tokens: known(row.input_tokens),
            output_tokens: prefill.map_or(0, |_| known(row.output_tokens)),
        })
    }

    fn first_token(&self) -> Option<u64> {
        (self.prefill_us != NONE_U32).then(|| (self.start + u64::from(self.prefill_us) * 1_000).min(self.end))
    }

    fn last_token(&self, first: u64) -> u64 {
        (first + u64::from(self.decode_us) * 1_000).min(self.end)
    }

    /// Thousandths of an input token a second while it prefills.
    fn prefill_rate(&self) -> i64 {
        rate(u64::from(self.input_tokens), u64::from(self.prefill_us))
    }

    /// Thousandths of an output token a second while it decodes, without the first.
    fn decode_rate(&self) -> i64 {
        rate(u64::from(self.output_tokens.saturating_sub(1)), u64::from(self.decode_us))
    }
}

fn rate(tokens: u64, us: u64) -> i64 {
    (tokens * 1_000_000_000).checked_div(us).map_or(0, |r| r as i64)
}

/// What happens to a request, in the order in which it does at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    FirstToken,
    Tokens(u32),
    LastToken,
    End,
}

/// The state at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    requests: i64,
    prefilling: i64,
    decoding: i64,
    prefill_rate: i64,
    decode_rate: i64,
    /// Thousandths of a token.
    tokens: i64,
}

const CURVES: usize = 14;
/// Name, unit, what a recorded value is divided by.
const NAMES: [(&str, &str, f64); CURVES] = [
    ("effective_concurrency", "requests", 1.0),
    ("effective_prefill_concurrency", "requests", 1.0),
    ("effective_decode_concurrency", "requests", 1.0),
    ("effective_prefill_throughput", "tokens/s", 1e3),
    ("effective_decode_throughput", "tokens/s", 1e3),
    ("effective_total_throughput", "tokens/s", 1e3),
    ("effective_prefill_throughput_per_user", "tokens/s/user", 1e3),
    ("effective_decode_throughput_per_user", "tokens/s/user", 1e3),
    ("tokens_in_flight", "tokens", 1e3),
    ("active_prefill_throughput", "tokens/s", 1e3),
    ("active_decode_throughput", "tokens/s", 1e3),
    ("active_total_throughput", "tokens/s", 1e3),
    ("active_prefill_throughput_per_user", "tokens/s/user", 1e3),
    ("active_decode_throughput_per_user", "tokens/s/user", 1e3),
];
/// Curves that every run has; the others need a first token.
const OF_EVERY_RUN: usize = 1;
/// From here on a curve counts only while it is active: prefill while a request prefills, decode while one decodes.
const ACTIVE: usize = 9;

impl State {
    fn values(&self) -> [u64; CURVES] {
        let shown = |v: i64| v.max(0) as u64;
        let per_user = |rate: i64, users: i64| if users > 0 { shown(rate / users) } else { 0 };
        let prefill = per_user(self.prefill_rate, self.prefilling);
        let decode = per_user(self.decode_rate, self.decoding);
        let rates = [
            shown(self.prefill_rate),
            shown(self.decode_rate),
            shown(self.prefill_rate + self.decode_rate),
            prefill,
            decode,
        ];
        let mut values = [0; CURVES];
        values[..3].copy_from_slice(&[shown(self.requests), shown(self.prefilling), shown(self.decoding)]);
        values[3..8].copy_from_slice(&rates);
        values[8] = shown(self.tokens);
        values[ACTIVE..].copy_from_slice(&rates);
        values
    }

    fn counts(&self) -> [bool; CURVES] {
        let (prefill, decode) = (self.prefilling > 0, self.decoding > 0);
        let mut counts = [true; CURVES];
        counts[ACTIVE..].copy_from_slice(&[prefill, decode, self.requests > 0, prefill, decode]);
        counts
    }

    fn start(&mut self, life: &Life) {
        self.requests += 1;
        self.tokens += i64::from(life.input_tokens) * 1_000;
        if life.prefill_us != NONE_U32 {
            self.prefilling += 1;
            self.prefill_rate += life.prefill_rate();
        }
    }

    fn turn(&mut self, turn: Turn, life: &Life) {
        match turn {
            Turn::FirstToken => {
                self.prefilling -= 1;
                self.prefill_rate -= life.prefill_rate();
                self.decoding += 1;
                self.decode_rate += life.decode_rate();
            }
            Turn::Tokens(_) => self.tokens += i64::from(life.output_tokens) * 1_000 / i64::from(STEPS),
            Turn::LastToken => {
                self.decoding -= 1;
                self.decode_rate -= life.decode_rate();
            }
            Turn::End => {
                let steps = if life.prefill_us == NONE_U32 { 0 } else { i64::from(STEPS) };
                let output = i64::from(life.output_tokens) * 1_000 / i64::from(STEPS) * steps;
                self.tokens -= i64::from(life.input_tokens) * 1_000 + output;
                self.requests -= 1;
            }
        }
    }
}

/// Sweeps over every row, within a window of nanoseconds since the run's anchor. None without a window. `folder` is where runs
/// of rows are sorted that do not fit in memory.
///
/// Errors: a file that cannot be read or written.
pub fn sweep(rows: &mut Rows, window: (u64, u64), folder: &Path) -> Result<Option<Table<Weighted>>> {
    let mut sorted = Sorted::new(folder);
    while let Some((row, _)) = rows.next_row()? {
        if let Some(life) = Life::of(&row) {
            sorted.push(life)?;
        }
    }
    curves(sorted, window)
}

fn curves(sorted: Sorted, (from, to): (u64, u64)) -> Result<Option<Table<Weighted>>> {
    if from >= to {
        return Ok(None);
    }
    let mut lives = sorted.merge()?;
    let mut series: Vec<Series> = (0..CURVES).map(|_| Series::new()).collect();
    let mut turns: BinaryHeap<Reverse<(u64, Turn, Life)>> = BinaryHeap::new();
    let mut state = State::default();
    let (mut at, mut streamed) = (0u64, false);
    let mut next = lives.next()?;
    while at < to {
        let due = turns.peek().map_or(u64::MAX, |Reverse((t, ..))| *t);
        let until = due.min(next.map_or(u64::MAX, |life| life.start)).min(to).max(at);
        let held = until.saturating_sub(at.max(from));
        if held > 0 {
            let values = state.values().into_iter().zip(state.counts());
            for (series, (value, _)) in series.iter_mut().zip(values).filter(|(_, (_, counts))| *counts) {
                series.record_n(value, held);
            }
        }
        at = until;
        if due <= at {
            if let Some(Reverse((_, turn, life))) = turns.pop() {
                state.turn(turn, &life);
            }
        } else if let Some(life) = next.take_if(|life| life.start <= at) {
            state.start(&life);
            streamed |= life.prefill_us != NONE_U32;
            plan(&life, &mut turns);
            next = lives.next()?;
        }
    }
    let shown = if streamed { CURVES } else { OF_EVERY_RUN };
    let table = NAMES.iter().zip(&series).take(shown).filter(|(_, s)| s.count > 0);
    Ok(Some(Table(table.map(|(&(name, unit, by), s)| (name.to_owned(), weighted(s, unit, by))).collect())))
}

/// All that will happen to a request that has started.
fn plan(life: &Life, turns: &mut BinaryHeap<Reverse<(u64, Turn, Life)>>) {
    if let Some(first) = life.first_token() {
        let last = life.last_token(first);
        turns.push(Reverse((first, Turn::FirstToken, *life)));
        for step in 0..STEPS {
            // In the middle of its share, so that the mean is that of tokens which come evenly.
            let share = u64::from(2 * step + 1) * (last - first) / u64::from(2 * STEPS);
            turns.push(Reverse((first + share, Turn::Tokens(step), *life)));
        }
        turns.push(Reverse((last, Turn::LastToken, *life)));
    }
    turns.push(Reverse((life.end, Turn::End, *life)));
}

fn weighted(series: &Series, unit: &str, by: f64) -> Weighted {
    let at = |p: Percentile| value_at(series, p).unwrap_or(0) as f64 / by;
    let percentile = |text: &str| Percentile::parse(text).map_or(0.0, at);
    Weighted {
        unit: unit.to_owned(),
        mean: mean(series) / by,
        std: std_deviation(series) / by,
        min: series.min as f64 / by,
        max: series.max as f64 / by,
        p50: percentile("50"),
        p90: percentile("90"),
        p95: percentile("95"),
        p99: percentile("99"),
    }
}

/// The measured window of a run: what ended last, and how long it was.
pub fn window(last_done: Nanos, duration_s: f64) -> Option<(u64, u64)> {
    let to = last_done.get()?;
    Some((to.saturating_sub((duration_s * SECOND as f64).round() as u64), to))
}

/// Lives on their way from any order to that of their starts.
struct Sorted {
    folder: PathBuf,
    run: Vec<Life>,
    most: usize,
    files: Vec<File>,
}

impl Sorted {
    fn new(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf(), run: Vec::new(), most: RUN_ROWS, files: Vec::new() }
    }

    fn push(&mut self, life: Life) -> Result<()> {
        self.run.push(life);
        if self.run.len() < self.most {
            return Ok(());
        }
        self.run.sort_unstable();
        let failed = |e| Error::file("cannot write a file in", &self.folder, e);
        let file = unnamed_file(&self.folder).map_err(failed)?;
        file.write_all_at(self.run.as_bytes(), 0).map_err(failed)?;
        self.files.push(file);
        self.run.clear();
        Ok(())
    }

    fn merge(mut self) -> Result<Merge> {
        self.run.sort_unstable();
        let mut runs = vec![Run { file: None, lives: self.run, at: 0, offset: 0 }];
        for file in self.files {
            runs.push(Run { file: Some(file), lives: Vec::new(), at: 0, offset: 0 });
        }
        let mut merge = Merge { folder: self.folder, runs, heads: BinaryHeap::new() };
        for run in 0..merge.runs.len() {
            merge.feed(run)?;
        }
        Ok(merge)
    }
}

/// A sorted run: in memory, or in a file that is read a part at a time.
struct Run {
    file: Option<File>,
    lives: Vec<Life>,
    at: usize,
    offset: u64,
}

struct Merge {
    folder: PathBuf,
    runs: Vec<Run>,
    heads: BinaryHeap<Reverse<(Life, usize)>>,
}

impl Merge {
    fn next(&mut self) -> Result<Option<Life>> {
        let Some(Reverse((life, run))) = self.heads.pop() else { return Ok(None) };
        self.feed(run)?;
        Ok(Some(life))
    }

    fn feed(&mut self, run: usize) -> Result<()> {
        let r = &mut self.runs[run];
        if r.at == r.lives.len()
            && let Some(file) = &r.file
        {
            let mut lives = vec![Life::new_zeroed_life(); READ_ROWS];
            let n = read_at(file, lives.as_mut_bytes(), r.offset)
                .map_err(|e| Error::file("cannot read a file in", &self.folder, e))?;
            lives.truncate(n / size_of::<Life>());
            r.offset += n as u64;
            (r.lives, r.at) = (lives, 0);
        }
        if let Some(life) = r.lives.get(r.at) {
            r.at += 1;
            self.heads.push(Reverse((*life, run)));
        }
        Ok(())
    }
}

impl Life {
    const fn new_zeroed_life() -> Self {
        Self { start: 0, end: 0, prefill_us: 0, decode_us: 0, input_tokens: 0, output_tokens: 0 }
    }
}

/// Fills the buffer, or as much of it as the file has.
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut n = 0;
    while n < bytes.len() {
        match file.read_at(&mut bytes[n..], offset + n as u64) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A stream from `start` to `end` with its first and last token, in milliseconds.
    fn life(start: u64, first: u64, last: u64, end: u64, tokens: (u32, u32)) -> Life {
        Life {
            start: start * MS,
            end: end * MS,
            prefill_us: ((first - start) * 1_000) as u32,
            decode_us: ((last - first) * 1_000) as u32,
            input_tokens: tokens.0,
            output_tokens: tokens.1,
        }
    }

    fn sorted(lives: &[Life], most: usize) -> Sorted {
        let mut sorted = Sorted { most, ..Sorted::new(&std::env::temp_dir()) };
        lives.iter().for_each(|&l| sorted.push(l).unwrap());
        sorted
    }

    fn table(lives: &[Life], window_ms: (u64, u64)) -> Table<Weighted> {
        curves(sorted(lives, 100), (window_ms.0 * MS, window_ms.1 * MS)).unwrap().unwrap()
    }

    #[test]
    fn one_stream_is_worked_out_by_hand() {
        // 100 ms of prefill of 50 tokens, 200 ms of decoding 21, 100 ms to its end, in a window of a second.
        let t = table(&[life(100, 200, 400, 500, (50, 21))], (0, 1000));
        let mean = |name: &str| t.get(name).unwrap().mean;
        assert!((mean("effective_concurrency") - 0.4).abs() < 1e-9);
        assert!((mean("effective_prefill_concurrency") - 0.1).abs() < 1e-9);
        assert!((mean("effective_decode_concurrency") - 0.2).abs() < 1e-9);
        // 500 tokens/s for a tenth, 100 tokens/s for a fifth of the time.
        assert!((mean("effective_prefill_throughput") - 50.0).abs() < 1e-9);
        assert!((mean("effective_decode_throughput") - 20.0).abs() < 1e-9);
        assert!((mean("effective_total_throughput") - 70.0).abs() < 1e-9);
        assert!((mean("active_total_throughput") - 70.0 / 0.4).abs() < 1e-6);
        assert_eq!((mean("active_prefill_throughput"), mean("active_decode_throughput")), (500.0, 100.0));
        // 50 for 0.4 s; 21 that come evenly in 0.2 s and stay for 0.1 s.
        assert!((mean("tokens_in_flight") - (20.0 + 2.1 + 2.1)).abs() < 1e-6, "{}", mean("tokens_in_flight"));
        let c = t.get("effective_concurrency").unwrap();
        assert_eq!((c.min, c.max, c.p50, c.p90), (0.0, 1.0, 0.0, 1.0));
        assert_eq!(t.get("tokens_in_flight").unwrap().unit, "tokens");
    }

    #[test]
    fn requests_that_overlap_add_up_and_the_window_cuts() {
        let lives: Vec<_> = (0..10).map(|k| life(k * 10, k * 10 + 20, k * 10 + 90, k * 10 + 100, (8, 8))).collect();
        // From 90 ms to 100 ms all ten are in flight.
        let t = table(&lives, (90, 100));
        let c = t.get("effective_concurrency").unwrap();
        assert_eq!((c.min, c.max, c.mean, c.std), (10.0, 10.0, 10.0, 0.0));
        let user = t.get("effective_decode_throughput_per_user").unwrap();
        assert!((user.mean - 100.0).abs() < 0.2, "{user:?}");
        // Everything has ended at the end: nothing is left over, whatever was added and taken away.
        assert_eq!(table(&lives, (190, 300)).get("tokens_in_flight").unwrap().max, 0.0);
    }

    #[test]
    fn what_is_no_stream_has_a_concurrency_alone() {
        let plain = Life { prefill_us: NONE_U32, output_tokens: 0, ..life(0, 0, 0, 10, (5, 0)) };
        let t = table(&[plain], (0, 10));
        assert_eq!(t.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["effective_concurrency"]);
        assert_eq!(t.get("effective_concurrency").unwrap().mean, 1.0);
        assert!(curves(sorted(&[plain], 9), (5, 5)).unwrap().is_none());
    }

    #[test]
    fn lives_in_files_come_in_the_same_order_as_those_in_memory() {
        let lives: Vec<_> =
            (0..10_000u64).map(|i| life(i * 7919 % 10_007, i * 7919 % 10_007 + 3, 10_100, 10_200, (1, 2))).collect();
        let mut want = lives.clone();
        want.sort_unstable();
        for most in [97, 1_000, 3_333, 100_000] {
            let mut merge = sorted(&lives, most).merge().unwrap();
            let mut got = Vec::new();
            while let Some(life) = merge.next().unwrap() {
                got.push(life);
            }
            assert!(got == want, "runs of {most}");
        }
    }

    #[test]
    fn the_window_ends_with_what_ended_last() {
        assert_eq!(window(Nanos(5 * SECOND), 2.0), Some((3 * SECOND, 5 * SECOND)));
        assert_eq!(window(Nanos::NONE, 2.0), None);
    }
}
