//! `series.json`, schema `ringload/series/1`: the merged tables of a run, whole, so that a finished run can be drawn again,
//! compared and merged from its directory, with the same figures byte for byte.
//!
//! ```text
//! { "schema": "ringload/series/1",
//!   "buckets": {..}, "errors": {"<class>": n}, "statuses": {"200": n}, "bytes": {..}, "connections": {..},
//!   "good": n, "input_tokens": n, "output_tokens": n, "first_start_ns": n | null, "last_done_ns": n | null,
//!   "workers": [{"worker": n, "core": n | null, "issued": n, "cost": {..}, "lag_p50_ns": n | null, ..}],
//!   "series": {"<metric>": {"sum": "n", "sum_sq": "n", "min": n, "max": n, "counts": [value, count, value, count, ..]}},
//!   "timeline": {"width_ns": n, "rows": [[issued, succeeded, failed, body_bytes, received_bytes, output_tokens,
//!                                         latency_sum_ns, in_flight_ns, cell, count, cell, count, ..]]} }
//! ```
//!
//! Values are in recorded units (nanoseconds, tokens, thousandths); a value names its histogram bucket. Sums are texts, as
//! they outgrow what JSON readers hold. Metrics without samples are left out.

use serde::{Deserialize, Serialize};

use crate::data::{
    ids::Nanos,
    metric::{Metric, Series},
    outcome::ErrorClass,
    results::{Buckets, Bytes, Connections, LATENCY_CELLS, Timeline, TimelineRow},
};

use super::{
    merge::{Merged, WorkerFigures},
    table::Table,
};

const SCHEMA: &str = "ringload/series/1";

#[derive(Serialize, Deserialize)]
struct Stored {
    schema: String,
    buckets: Buckets,
    errors: Table<u64>,
    statuses: Table<u64>,
    bytes: Bytes,
    connections: Connections,
    good: u64,
    input_tokens: u64,
    output_tokens: u64,
    first_start_ns: Option<u64>,
    last_done_ns: Option<u64>,
    workers: Vec<WorkerFigures>,
    series: Table<StoredSeries>,
    timeline: StoredTimeline,
}

#[derive(Serialize, Deserialize)]
struct StoredSeries {
    sum: String,
    sum_sq: String,
    min: u64,
    max: u64,
    counts: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
struct StoredTimeline {
    width_ns: u64,
    rows: Vec<Vec<u64>>,
}

/// The text of `series.json`.
pub fn to_json(merged: &Merged) -> String {
    let seen = Metric::ALL.into_iter().filter(|&m| merged.series(m).count > 0);
    let stored = Stored {
        schema: SCHEMA.to_owned(),
        buckets: merged.buckets,
        errors: Table(
            ErrorClass::ALL
                .into_iter()
                .filter(|&c| merged.errors_of(c) > 0)
                .map(|c| (c.name().to_owned(), merged.errors_of(c)))
                .collect(),
        ),
        statuses: Table(
            (0..)
                .zip(&merged.statuses)
                .filter(|&(_, &n)| n > 0)
                .map(|(code, &n): (u32, _)| (code.to_string(), n))
                .collect(),
        ),
        bytes: merged.bytes,
        connections: merged.connections,
        good: merged.good,
        input_tokens: merged.input_tokens,
        output_tokens: merged.output_tokens,
        first_start_ns: merged.first_start.get(),
        last_done_ns: merged.last_done.get(),
        workers: merged.workers.clone(),
        series: Table(seen.map(|m| (m.name().to_owned(), store_series(merged.series(m)))).collect()),
        timeline: StoredTimeline {
            width_ns: merged.timeline.width_ns,
            rows: merged.timeline.rows().iter().map(store_row).collect(),
        },
    };
    let mut text = serde_json::to_string(&stored).unwrap_or_else(|_| unreachable!("plain data"));
    text.push('\n');
    text
}

fn store_series(series: &Series) -> StoredSeries {
    let counts = series.hist.iter_recorded().flat_map(|step| [step.value_iterated_to(), step.count_at_value()]);
    StoredSeries {
        sum: series.sum.to_string(),
        sum_sq: series.sum_sq.to_string(),
        min: series.min,
        max: series.max,
        counts: counts.collect(),
    }
}

fn store_row(row: &TimelineRow) -> Vec<u64> {
    let mut out = vec![
        row.issued,
        row.succeeded,
        row.failed,
        row.body_bytes,
        row.received_bytes,
        row.output_tokens,
        row.latency_sum_ns,
        row.in_flight_ns,
    ];
    for (cell, &count) in row.cells.iter().enumerate().filter(|&(_, &n)| n > 0) {
        out.extend([cell as u64, u64::from(count)]);
    }
    out
}

/// Reads `series.json` back. The error says what is wrong with it, without its name.
pub fn from_json(text: &str) -> Result<Merged, String> {
    let stored: Stored = serde_json::from_str(text).map_err(|e| e.to_string())?;
    if stored.schema != SCHEMA {
        return Err(format!("its schema is {:?}, expected {SCHEMA:?}", stored.schema));
    }
    let mut merged = Merged::empty(load_timeline(&stored.timeline)?);
    for (name, &count) in stored.errors.iter() {
        let class = ErrorClass::ALL.into_iter().find(|c| c.name() == name);
        let class = class.ok_or_else(|| format!("{name:?} is no error class"))?;
        merged.errors[class as usize] = count;
    }
    for (code, &count) in stored.statuses.iter() {
        let slot = code.parse::<usize>().ok().and_then(|code| merged.statuses.get_mut(code));
        *slot.ok_or_else(|| format!("{code:?} is no status"))? = count;
    }
    for (name, series) in stored.series.iter() {
        let metric = Metric::parse(name).ok_or_else(|| format!("{name:?} is no metric"))?;
        merged.series[metric as usize] = load_series(series).ok_or_else(|| format!("{name} is damaged"))?;
    }
    merged.buckets = stored.buckets;
    merged.bytes = stored.bytes;
    merged.connections = stored.connections;
    merged.good = stored.good;
    merged.input_tokens = stored.input_tokens;
    merged.output_tokens = stored.output_tokens;
    merged.first_start = stored.first_start_ns.map_or(Nanos::NONE, Nanos);
    merged.last_done = stored.last_done_ns.map_or(Nanos::NONE, Nanos);
    merged.workers = stored.workers;
    if !merged.buckets.add_up()
        || merged.errors.iter().try_fold(0u64, |sum, &n| sum.checked_add(n)) != Some(merged.buckets.failed)
        || merged.good > merged.buckets.succeeded
    {
        return Err("its counts do not add up".to_owned());
    }
    Ok(merged)
}

/// None when the parts contradict each other.
fn load_series(stored: &StoredSeries) -> Option<Series> {
    let mut series = Series::new();
    if stored.counts.is_empty() || !stored.counts.len().is_multiple_of(2) || stored.min > stored.max {
        return None;
    }
    for pair in stored.counts.chunks_exact(2) {
        series.count = series.count.checked_add(pair[1])?;
        series.hist.saturating_record_n(pair[0], pair[1]);
    }
    series.sum = stored.sum.parse().ok()?;
    series.sum_sq = stored.sum_sq.parse().ok()?;
    series.min = stored.min;
    series.max = stored.max;
    (series.count == series.hist.len()).then_some(series)
}

/// Rows of a timeline that are believed when it is read back: those of the longest run, with room.
const ROWS_MAX: usize = 4 * crate::data::limits::TIMELINE_ROWS;

fn load_timeline(stored: &StoredTimeline) -> Result<Timeline, String> {
    let damaged = || "its timeline is damaged".to_owned();
    if stored.width_ns == 0 || stored.rows.len() > ROWS_MAX || stored.width_ns.checked_mul(ROWS_MAX as u64).is_none() {
        return Err(damaged());
    }
    let mut timeline = Timeline::new(stored.width_ns, stored.rows.len());
    for (i, values) in stored.rows.iter().enumerate() {
        let row = load_row(values).ok_or_else(damaged)?;
        *timeline.at(i as u64 * stored.width_ns) = row;
    }
    Ok(timeline)
}

fn load_row(values: &[u64]) -> Option<TimelineRow> {
    let (fixed, cells) = values.split_first_chunk::<8>()?;
    let mut row = TimelineRow {
        issued: fixed[0],
        succeeded: fixed[1],
        failed: fixed[2],
        body_bytes: fixed[3],
        received_bytes: fixed[4],
        output_tokens: fixed[5],
        latency_sum_ns: fixed[6],
        in_flight_ns: fixed[7],
        cells: [0; LATENCY_CELLS],
    };
    for pair in cells.chunks(2) {
        let [cell, count] = *pair else { return None };
        *row.cells.get_mut(usize::try_from(cell).ok()?)? = u32::try_from(count).ok()?;
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn a_run_is_read_back_whole() {
        let (_, mut merged) = fixture::summarize(&fixture::plan(), &fixture::streaming());
        merged.series[Metric::SendTime as usize].record(Series::MAX * 3);
        let text = to_json(&merged);
        let back = from_json(&text).unwrap();
        assert_eq!(to_json(&back), text);
        for (a, b) in merged.series.iter().zip(&back.series) {
            assert_eq!((a.count, a.sum, a.sum_sq, a.min, a.max), (b.count, b.sum, b.sum_sq, b.min, b.max));
            assert_eq!(a.hist, b.hist);
        }
    }

    #[test]
    fn damage_is_told_and_never_a_panic() {
        let text = to_json(&fixture::summary().1);
        for (from, to) in [
            ("ringload/series/1", "ringload/series/9"),
            ("\"succeeded\":90", "\"succeeded\":91"),
            ("http_5xx", "http_6xx"),
            ("\"200\"", "\"2000\""),
            ("\"width_ns\":1000000000", "\"width_ns\":0"),
            ("\"width_ns\":1000000000", "\"width_ns\":18446744073709551615"),
            ("\"counts\":[", "\"counts\":[7,"),
            ("request_latency\"", "request_latencies\""),
            ("\"errors\":{", "\"errors\":{\"framing\":18446744073709551615,"),
        ] {
            let damaged = text.replacen(from, to, 1);
            assert_ne!(damaged, text, "{from}");
            assert!(from_json(&damaged).is_err(), "{from} -> {to}");
        }
        assert!(from_json("").is_err() && from_json("[]").is_err());
    }
}
