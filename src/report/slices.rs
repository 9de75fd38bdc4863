//! `--slice`: the run in slices of time, every figure of requests in each. A request belongs to the slice of its start (of its
//! end when it never started). Slices count from the begin of the measured window; the last one ends with the run.
//!
//! `slices.json`, schema `ringload/slices/1`: `{"schema", "width_s", "slices": [{"slice", "from_s", "to_s", "complete",
//! "requests", "errors", "rate", "throughput", "goodput", "metrics"}]}`, with the words and units of `summary.json`;
//! `slices.csv` has a line a slice and figure: `slice,from_s,to_s,metric,unit,stat,value`. With `--aiperf-artifacts` the same in
//! that tool's two files. The table of a few figures is in the summary, too.
//!
//! Memory is that of a few slices: the rows are read once for each batch of them.

use std::{fmt::Write as _, io::Write as _};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::data::{
    Result,
    metric::{Metric, Series},
    outcome::{ErrorClass, Outcome},
    rows::Row,
    units::SECOND,
};

use super::{
    aiperf::{self, EXTRAS, Whole},
    csv::field,
    dir::{PartFile, RunDir},
    merge::Merged,
    percentile::{Percentile, Stats},
    spools::{Rows, Spools},
    summary::{Summary, ratio},
    sweep,
    table::Table,
};

/// Slices that are in memory at a time, with up to 40 histograms of 280 KB each.
const AT_ONCE: u64 = 8;
/// Slices of a run. More are no help to anybody, and the rows are read once for eight of them.
pub const SLICES_MAX: u64 = 10_000;

/// `slices` of `summary.json`: a few figures of each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slices {
    /// `--slice`, seconds.
    pub width_s: f64,
    /// One a slice, in order.
    pub rows: Vec<SliceRow>,
}

/// One slice in short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SliceRow {
    /// Its begin, seconds since the begin of the measured window.
    pub from_s: f64,
    /// Its end.
    pub to_s: f64,
    /// False for a last slice that the end of the run cut short.
    pub complete: bool,
    /// Requests that started in it.
    pub issued: u64,
    /// Those of them that succeeded.
    pub succeeded: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// Succeeded a second of the slice.
    pub succeeded_rps: Option<f64>,
    /// Output tokens of those that started in it, a second of the slice.
    pub output_tokens_per_s: Option<f64>,
    /// Median latency, milliseconds.
    pub latency_p50_ms: Option<f64>,
    /// 99th percentile of it.
    pub latency_p99_ms: Option<f64>,
    /// 99th percentile of the time to the first token.
    pub ttft_p99_ms: Option<f64>,
    /// 99th percentile of the time between tokens.
    pub itl_p99_ms: Option<f64>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Sliced<'a> {
    /// `--slice`, nanoseconds.
    pub width_ns: u64,
    /// The percentiles of the run.
    pub percentiles: &'a [Percentile],
    /// Also as AIPerf writes them.
    pub aiperf: bool,
}

/// One slice while it is filled. Histograms are taken when they are first needed.
struct Slice {
    series: Vec<Option<Box<Series>>>,
    extras: Vec<Option<Box<Series>>>,
    errors: Vec<u64>,
    succeeded: u64,
    failed: u64,
    cut: u64,
    good: u64,
}

impl Slice {
    fn new() -> Self {
        Self {
            series: (0..Metric::COUNT).map(|_| None).collect(),
            extras: EXTRAS.iter().map(|_| None).collect(),
            errors: vec![0; ErrorClass::COUNT],
            succeeded: 0,
            failed: 0,
            cut: 0,
            good: 0,
        }
    }

    fn add(&mut self, row: &Row, times: &[u64], goodput: &[(Metric, u64)], extras: bool) {
        if row.start.is_some() && row.due.is_some() {
            self.record(Metric::ScheduleLag, row.value(Metric::ScheduleLag));
        }
        for metric in [Metric::ConnectTime, Metric::TlsTime] {
            self.record(metric, row.value(metric));
        }
        match Outcome::from_code(row.outcome) {
            Some(Outcome::Succeeded) => {
                self.succeeded += 1;
                self.add_success(row, times, goodput);
            }
            Some(Outcome::Cut) => self.cut += 1,
            Some(Outcome::Failed(class)) => {
                self.failed += 1;
                self.errors[class as usize] += 1;
            }
            None => self.failed += 1,
        }
        if extras {
            for (extra, series) in EXTRAS.iter().zip(&mut self.extras) {
                if let Some(value) = extra.value(row) {
                    series.get_or_insert_with(Box::default).record(value);
                }
            }
        }
    }

    fn add_success(&mut self, row: &Row, times: &[u64], goodput: &[(Metric, u64)]) {
        for metric in Metric::ALL {
            if !matches!(metric, Metric::ScheduleLag | Metric::ConnectTime | Metric::TlsTime) {
                self.record(metric, row.value(metric));
            }
        }
        for gap in times.windows(2) {
            self.record(Metric::InterChunkLatency, Some(gap[1].saturating_sub(gap[0])));
        }
        let met = |&(metric, limit): &(Metric, u64)| row.value(metric).is_some_and(|v| v <= limit);
        self.good += u64::from(!goodput.is_empty() && goodput.iter().all(met));
    }

    fn record(&mut self, metric: Metric, value: Option<u64>) {
        if let Some(value) = value {
            self.series[metric as usize].get_or_insert_with(Box::default).record(value);
        }
    }

    fn issued(&self) -> u64 {
        self.succeeded + self.failed + self.cut
    }
}

/// Where the slices lie, nanoseconds since the run's anchor.
#[derive(Clone, Copy)]
struct Grid {
    from: u64,
    to: u64,
    width: u64,
}

impl Grid {
    fn count(self) -> u64 {
        (self.to - self.from).div_ceil(self.width).max(1)
    }

    fn of(self, row: &Row) -> u64 {
        let at = row.start.get().or(row.done.get()).unwrap_or(self.from);
        (at.saturating_sub(self.from) / self.width).min(self.count() - 1)
    }

    fn ends(self, slice: u64) -> (u64, u64) {
        let from = self.from + slice * self.width;
        (from, (from + self.width).min(self.to))
    }
}

/// Writes the files of the slices, and returns the table for the summary. None when nothing was measured.
///
/// Errors: more slices than anybody reads; a spool that cannot be read, a file that cannot be written.
pub fn write(
    dir: &mut RunDir,
    spools: &Spools,
    summary: &Summary,
    merged: &Merged,
    asked: &Sliced<'_>,
) -> Result<Option<Slices>> {
    let Some((from, to)) = sweep::window(merged.last_done, summary.duration_s).filter(|(from, to)| from < to) else {
        return Ok(None);
    };
    let mut grid = Grid { from, to, width: asked.width_ns };
    // The load is over: figures in wider slices than were asked for are worth more than none.
    while grid.count() > SLICES_MAX {
        grid.width = grid.width.saturating_mul(2);
    }
    let goodput: Vec<(Metric, u64)> = summary
        .plan
        .goodput
        .iter()
        .filter_map(|(name, limit)| {
            let metric = Metric::parse(name)?;
            Some((metric, (limit * metric.unit().divisor()).round() as u64))
        })
        .collect();
    let mut out = Files::begin(dir, grid.width, asked.aiperf)?;
    let mut table = Slices { width_s: grid.width as f64 / SECOND as f64, rows: Vec::new() };
    for first in (0..grid.count()).step_by(AT_ONCE as usize) {
        let last = (first + AT_ONCE).min(grid.count());
        let mut slices: Vec<Slice> = (first..last).map(|_| Slice::new()).collect();
        let mut rows = Rows::open(spools)?;
        let mut anchor_unix_ns = 0;
        while let Some((row, anchor)) = rows.next_row()? {
            anchor_unix_ns = anchor;
            let slice = grid.of(&row);
            if (first..last).contains(&slice) {
                slices[(slice - first) as usize].add(&row, rows.times(), &goodput, asked.aiperf);
            }
        }
        for (slice, of) in (first..last).zip(&slices) {
            table.rows.push(out.put(grid, slice, of, anchor_unix_ns, asked, !goodput.is_empty())?);
        }
    }
    out.end(dir, summary)?;
    Ok(Some(table))
}

/// The files while they are written.
struct Files {
    json: PartFile,
    csv: PartFile,
    aiperf: Option<(PartFile, PartFile)>,
    empty: Series,
}

impl Files {
    fn begin(dir: &RunDir, width_ns: u64, aiperf: bool) -> Result<Self> {
        let mut files = Self {
            json: dir.create("slices.json")?,
            csv: dir.create("slices.csv")?,
            aiperf: None,
            empty: Series::new(),
        };
        let width_s = width_ns as f64 / SECOND as f64;
        let head = format!("{{\"schema\":\"ringload/slices/1\",\"width_s\":{width_s},\"slices\":[");
        put(&mut files.json, &head)?;
        put(&mut files.csv, "slice,from_s,to_s,metric,unit,stat,value\n")?;
        if aiperf {
            let mut json = dir.create("profile_export_aiperf_timeslices.json")?;
            let mut csv = dir.create("profile_export_aiperf_timeslices.csv")?;
            put(&mut json, "{\"timeslices\":[")?;
            put(&mut csv, "Timeslice,Start_NS,End_NS,Metric,Unit,Stat,Value\r\n")?;
            files.aiperf = Some((json, csv));
        }
        Ok(files)
    }

    fn put(
        &mut self,
        grid: Grid,
        slice: u64,
        of: &Slice,
        anchor_unix_ns: u64,
        asked: &Sliced<'_>,
        goodput: bool,
    ) -> Result<SliceRow> {
        let (from, to) = grid.ends(slice);
        let seconds = (to - from) as f64 / SECOND as f64;
        let complete = to - from == grid.width;
        let since = |ns: u64| (ns - grid.from) as f64 / SECOND as f64;
        let comma = if slice > 0 { ",\n" } else { "\n" };
        let row = SliceRow {
            from_s: since(from),
            to_s: since(to),
            complete,
            issued: of.issued(),
            succeeded: of.succeeded,
            failed: of.failed,
            succeeded_rps: ratio(of.succeeded as f64, seconds),
            output_tokens_per_s: sum(of, Metric::OutputSequenceLength).and_then(|n| ratio(n, seconds)),
            ..SliceRow::default()
        };
        let metrics = statistics(of, asked.percentiles);
        let at = |metric: Metric, p| metrics.get(metric.name()).and_then(|stats| stats.at(p));
        let row = SliceRow {
            latency_p50_ms: at(Metric::RequestLatency, Percentile::P50),
            latency_p99_ms: at(Metric::RequestLatency, Percentile::P99),
            ttft_p99_ms: at(Metric::TimeToFirstToken, Percentile::P99),
            itl_p99_ms: at(Metric::InterTokenLatency, Percentile::P99),
            ..row
        };
        put(&mut self.json, &format!("{comma}{}", as_json(slice, of, &row, &metrics, goodput)))?;
        put(&mut self.csv, &as_csv(slice, &row, &metrics))?;
        if let Some((json, csv)) = &mut self.aiperf
            // That tool leaves empty slices out.
            && of.issued() > 0
        {
            let series = of.series.iter().map(|s| s.as_deref().unwrap_or(&self.empty)).collect();
            let extras = of.extras.iter().map(|s| s.as_deref().unwrap_or(&self.empty)).collect();
            let good = goodput.then_some(of.good);
            let whole = Whole { series, extras, succeeded: of.succeeded, failed: of.failed, good, seconds };
            let wall = (anchor_unix_ns + from, anchor_unix_ns + to);
            let (value, lines) = aiperf::slice(&whole, slice, wall, complete);
            put(json, &format!("{comma}{value}"))?;
            put(csv, &lines)?;
        }
        Ok(row)
    }

    fn end(mut self, dir: &mut RunDir, summary: &Summary) -> Result<()> {
        put(&mut self.json, "\n]}\n")?;
        let mut parts = vec![self.json, self.csv];
        if let Some((mut json, csv)) = self.aiperf {
            put(&mut json, &format!("\n],\"input_config\":{}}}\n", aiperf::config(summary)))?;
            parts.extend([json, csv]);
        }
        dir.commit(parts)
    }
}

fn put(part: &mut PartFile, text: &str) -> Result<()> {
    part.write_all(text.as_bytes()).map_err(|e| part.error(e))
}

fn sum(of: &Slice, metric: Metric) -> Option<f64> {
    of.series[metric as usize].as_ref().map(|s| s.sum as f64)
}

fn statistics(of: &Slice, chosen: &[Percentile]) -> Table<Stats> {
    let percentiles = Percentile::with_fixed(chosen);
    let seen = Metric::ALL.into_iter().filter_map(|m| Some((m, of.series[m as usize].as_ref()?)));
    Table(seen.map(|(m, s)| (m.name().to_owned(), Stats::of(s, m.unit(), &percentiles))).collect())
}

fn as_json(slice: u64, of: &Slice, row: &SliceRow, metrics: &Table<Stats>, goodput: bool) -> String {
    let seen = ErrorClass::ALL.into_iter().filter(|&c| of.errors[c as usize] > 0);
    let seconds = row.to_s - row.from_s;
    let mut value = json!({
        "slice": slice,
        "from_s": row.from_s,
        "to_s": row.to_s,
        "complete": row.complete,
        "requests": { "issued": row.issued, "succeeded": row.succeeded, "failed": row.failed, "cut": of.cut },
        "errors": Table(seen.map(|c| (c.name().to_owned(), of.errors[c as usize])).collect()),
        "rate": {
            "issued_rps": ratio(row.issued as f64, seconds),
            "succeeded_rps": row.succeeded_rps,
            "error_percent": ratio(100.0 * row.failed as f64, row.issued as f64),
        },
        "throughput": {
            "output_token_throughput": row.output_tokens_per_s,
            "input_token_throughput": sum(of, Metric::InputSequenceLength).and_then(|n| ratio(n, seconds)),
        },
        "metrics": metrics,
    });
    if goodput && let Some(map) = value.as_object_mut() {
        let fraction = ratio(of.good as f64, row.issued as f64);
        let good = json!({ "good": of.good, "fraction": fraction, "rps": ratio(of.good as f64, seconds) });
        map.insert("goodput".to_owned(), good);
    }
    value.to_string()
}

fn as_csv(slice: u64, row: &SliceRow, metrics: &Table<Stats>) -> String {
    let mut out = String::new();
    let mut line = |metric: &str, unit: &str, stat: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = writeln!(out, "{slice},{},{},{},{unit},{stat},{value}", row.from_s, row.to_s, field(metric));
        }
    };
    for (name, n) in [("issued", row.issued), ("succeeded", row.succeeded), ("failed", row.failed)] {
        line(name, "requests", "value", Some(n as f64));
    }
    line("request_throughput", "requests/s", "value", row.succeeded_rps);
    line("output_token_throughput", "tokens/s", "value", row.output_tokens_per_s);
    for (name, stats) in metrics.iter() {
        let s = stats;
        line(name, &s.unit, "count", Some(s.count as f64));
        for (stat, value) in [("mean", s.mean), ("std", s.std), ("min", s.min), ("max", s.max)] {
            line(name, &s.unit, stat, value);
        }
        for (p, value) in &s.percentiles {
            line(name, &s.unit, &p.name(), *value);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::Nanos,
        report::{
            fixture,
            spools::tests::{chunks, row, spool},
        },
    };

    fn at(record: u32, start_ms: u64, latency_ms: u64) -> Row {
        let start = start_ms * 1_000_000;
        Row {
            due: Nanos(start),
            start: Nanos(start),
            sent: Nanos(start),
            ..row(0, record, start + latency_ms * 1_000_000)
        }
    }

    /// A run of 2 s that ended at 2.5 s of its anchor.
    fn run(rows: &[Row], width_ns: u64) -> (tempfile::TempDir, Result<Option<Slices>>) {
        let temp = tempfile::tempdir().unwrap();
        spool(temp.path(), 0, rows);
        chunks(temp.path(), 0, &[1, 2_000_001]);
        let (summary, mut merged) = fixture::summary();
        merged.last_done = Nanos(2_500_000_000);
        let mut dir = RunDir::take(temp.path());
        let spools = Spools::find(temp.path()).unwrap();
        let asked = Sliced { width_ns, percentiles: &Percentile::DEFAULT, aiperf: true };
        let slices = write(&mut dir, &spools, &summary, &merged, &asked);
        (temp, slices)
    }

    fn rows() -> Vec<Row> {
        let stream = Row { content_events: 2, stamps: 2, output_tokens: 30, ..at(0, 510, 100) };
        let failed = Row { outcome: Outcome::Failed(ErrorClass::Http5xx).code(), ..at(1, 520, 7) };
        let refused =
            Row { outcome: Outcome::Failed(ErrorClass::ConnectRefused).code(), start: Nanos::NONE, ..at(2, 1_400, 9) };
        // Starts before the end of the slice and ends after it; starts at the very end of the run.
        vec![stream, failed, at(3, 1_299, 400), refused, at(4, 2_499, 30)]
    }

    #[test]
    fn a_request_belongs_to_the_slice_of_its_start() {
        let (temp, slices) = run(&rows(), 800_000_000);
        let slices = slices.unwrap().unwrap();
        assert_eq!(slices.width_s, 0.8);
        let got: Vec<_> = slices.rows.iter().map(|r| (r.issued, r.succeeded, r.failed, r.complete)).collect();
        assert_eq!(got, [(3, 2, 1, true), (1, 0, 1, true), (1, 1, 0, false)]);
        let first = &slices.rows[0];
        assert_eq!((first.from_s, first.to_s, first.latency_p99_ms), (0.0, 0.8, Some(400.0)));
        assert_eq!((first.succeeded_rps, first.output_tokens_per_s), (Some(2.5), Some(37.5)));
        assert!((slices.rows[2].to_s - 2.0).abs() < 1e-9);
        let v: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(temp.path().join("slices.json")).unwrap()).unwrap();
        assert_eq!(v["slices"][0]["errors"], json!({ "http_5xx": 1 }));
        assert_eq!(v["slices"][0]["metrics"]["inter_chunk_latency"]["max"], 2.0);
        assert_eq!(v["slices"][1]["metrics"].get("request_latency"), None);
        let text = std::fs::read_to_string(temp.path().join("slices.csv")).unwrap();
        assert!(text.contains("\n0,0,0.8,request_latency,ms,p99,400\n"), "{text}");
    }

    #[test]
    fn the_other_tools_slices_have_its_shape() {
        let (temp, _) = run(&rows(), 800_000_000);
        let read = |name: &str| std::fs::read_to_string(temp.path().join(name)).unwrap();
        let v: serde_json::Value = serde_json::from_str(&read("profile_export_aiperf_timeslices.json")).unwrap();
        let list = v["timeslices"].as_array().unwrap();
        assert_eq!(list.len(), 3);
        assert_eq!(list[0]["request_latency"]["count"], 2);
        assert_eq!(list[0]["request_throughput"]["avg"], 2.5);
        assert_eq!((list[0].get("is_complete"), &list[2]["is_complete"]), (None, &false.into()));
        assert_eq!(list[1]["start_ns"].as_u64().unwrap(), list[0]["end_ns"].as_u64().unwrap());
        assert!(v["input_config"]["phases"].is_array());
        let csv = read("profile_export_aiperf_timeslices.csv");
        assert!(csv.starts_with("Timeslice,Start_NS,End_NS,Metric,Unit,Stat,Value\r\n0,1800000000500000000,"), "{csv}");
    }

    #[test]
    fn every_batch_of_slices_holds_its_own_rows() {
        let rows: Vec<_> = (0..2_000).map(|i| at(i, 500 + u64::from(i), 1)).collect();
        let (_temp, slices) = run(&rows, 37_000_000);
        let slices = slices.unwrap().unwrap();
        assert_eq!(slices.rows.len(), 55);
        assert!(slices.rows[..54].iter().all(|r| r.issued == 37), "{:?}", slices.rows);
        assert_eq!(slices.rows.iter().map(|r| r.issued).sum::<u64>(), 2_000);
    }

    #[test]
    fn more_slices_than_anybody_reads_are_made_wider() {
        let (_temp, slices) = run(&rows(), 1_000);
        let slices = slices.unwrap().unwrap();
        assert!(slices.rows.len() as u64 <= SLICES_MAX && slices.width_s > 0.000_001, "{}", slices.width_s);
    }
}
