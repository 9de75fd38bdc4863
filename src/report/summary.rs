//! `summary.json`, schema `ringload/summary/1`: the figures of a run, in a fixed order of fields.
//!
//! Pure functions of the plan, the dataset's facts and the merged results: no clock, no file. `docs/summary.schema.json`
//! describes what is written here; a change of one changes both. Figures without samples are null, never 0 and never NaN.
//!
//! This file is long because the schema is one list of fields.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::SerializeMap as _};

use crate::data::{
    metric::Metric,
    outcome::ErrorClass,
    plan::Plan,
    results::{DatasetFacts, EndedBy, RunResult, TargetCounts},
    units::SECOND,
};

use super::{
    client::{self, Client},
    findings::{self, Findings},
    merge::Merged,
    percentile::{Percentile, Stats},
    planned::Planned,
    responses::Counted,
    slices::Slices,
    sweep::Weighted,
    table::Table,
    threshold::{Threshold, Verdict},
};

/// Name and version of the schema.
pub const SCHEMA: &str = "ringload/summary/1";

/// What a summary is made from, beside the results.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The dataset.
    pub dataset: &'a DatasetFacts,
    /// `--percentiles`; those that every summary has are added.
    pub percentiles: &'a [Percentile],
    /// `--fail-if`.
    pub thresholds: &'a [Threshold],
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// To its planned end.
    Complete,
    /// A signal ended it early.
    Partial,
    /// No request succeeded, the run could not go on, or the target found wrong bodies.
    Failed,
}

impl Status {
    /// The word in `summary.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Partial => "partial",
            Self::Failed => "failed",
        }
    }
}

/// The whole of `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the program that made the run.
    pub version: String,
    /// How it went.
    pub status: Status,
    /// Why it stopped issuing: [`EndedBy::name`].
    pub ended_by: String,
    /// `SIGINT` or `SIGTERM` when one ended it.
    pub signal: Option<String>,
    /// Buckets.
    pub requests: Requests,
    /// Failures by class; only classes that were seen.
    pub errors: Table<u64>,
    /// Complete responses by status; only codes that were seen.
    pub status_codes: Table<u64>,
    /// Bytes.
    pub bytes: Bytes,
    /// Connections.
    pub connections: Connections,
    /// Asked and achieved rates.
    pub rate: Rate,
    /// The measured window: after the warm-up to the last end.
    pub duration_s: f64,
    /// After the warm-up to the moment of the stop.
    pub issue_window_s: f64,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// RFC 3339, UTC.
    pub ended_at: String,
    /// The dataset.
    pub dataset: Dataset,
    /// Statistics by metric.
    pub metrics: Table<Stats>,
    /// Figures over the measured window.
    pub throughput: Table<Figure>,
    /// `--goodput`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<Goodput>,
    /// What the client cost, and whether it was the limit.
    pub client: Client,
    /// What a reader asks first, answered in sentences.
    #[serde(default)]
    pub findings: Findings,
    /// Figures weighted by time; only with rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_weighted: Option<Table<Weighted>>,
    /// `--slice`: a few figures of each slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<Slices>,
    /// `--tokenize-after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_tokens: Option<Counted>,
    /// `--fail-if`.
    pub thresholds: Vec<Verdict>,
    /// The built-in target's side of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// What was asked for.
    pub plan: Planned,
    /// The percentiles of this run's text report.
    pub percentiles: Vec<String>,
    /// Facts that are no figures.
    pub notes: Vec<String>,
}

/// The buckets: `scheduled = issued + missed`, `issued = succeeded + failed + cut`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Requests {
    pub scheduled: u64,
    pub issued: u64,
    pub succeeded: u64,
    pub failed: u64,
    pub cut: u64,
    pub missed: u64,
    /// Of the cut: broken off on purpose.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cancelled: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for a reference
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Bytes; see [`crate::data::results::Bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Bytes {
    pub bodies: u64,
    pub sent: u64,
    pub received: u64,
    pub sent_zero_copy: u64,
    pub sent_copied: u64,
    #[serde(default)]
    pub sent_file: u64,
}

/// Connections; see [`crate::data::results::Connections`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Connections {
    pub asked: u64,
    pub established_peak: u64,
    pub opened: u64,
    pub failed: u64,
    #[serde(default)]
    pub resent: u64,
    #[serde(default)]
    pub resumed: u64,
}

/// Rates over the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Mean of the rate curve over the issue window; null without `-R`.
    pub asked_rps: Option<f64>,
    /// Issued a second: see [`achieved_rps`].
    pub achieved_rps: Option<f64>,
    /// Succeeded a second of the measured window.
    pub succeeded_rps: Option<f64>,
    /// Failed over issued, percent; null when nothing was issued.
    pub error_percent: Option<f64>,
}

/// The dataset; see [`DatasetFacts`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Dataset {
    pub format: String,
    pub records: u64,
    pub cache: String,
    pub key: String,
    pub body_bytes: u64,
    pub stored_bytes: u64,
    pub skipped: u64,
    /// Where input token counts come from when the server gives none; empty for nowhere.
    pub token_source: String,
}

/// One value with its unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// `requests/s`, `bytes/s`, `tokens/s`, `requests`.
    pub unit: String,
    /// Null when nothing was counted.
    pub value: Option<f64>,
}

/// `--goodput`: successes that met every limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// How many.
    pub good: u64,
    /// Of the issued; null when nothing was issued.
    pub fraction: Option<f64>,
    /// A second of the measured window.
    pub rps: Option<f64>,
}

/// The built-in target's counts, warm-up included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Requests whose head and body came whole.
    pub requests: u64,
    /// Body bytes of those.
    pub body_bytes: u64,
    /// Bodies compared with the announced length and digest.
    pub verified: u64,
    /// Bodies that differed.
    pub wrong: u64,
    /// Connections accepted.
    pub connections: u64,
    /// CPU microseconds a request; null without requests.
    pub cpu_us_per_request: Option<f64>,
}

impl Summary {
    /// The figures of a run.
    pub fn new(asked: &Asked<'_>, result: &RunResult, merged: &Merged) -> Self {
        let planned = Planned::of(asked.plan);
        let (buckets, duration_ns) = (&merged.buckets, result.duration_ns);
        let asked_rps = super::planned::asked_rps(asked.plan, result.issue_window_ns);
        let mut summary = Self {
            schema: SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            status: status(result.ended_by, buckets.succeeded, result.target.as_ref()),
            ended_by: result.ended_by.name().to_owned(),
            signal: signal(result.ended_by),
            requests: requests(merged),
            errors: errors(merged),
            status_codes: status_codes(merged),
            bytes: bytes(merged),
            connections: connections(merged),
            rate: Rate {
                asked_rps,
                achieved_rps: achieved_rps(&planned, result.ended_by, buckets.issued, result),
                succeeded_rps: per_second(buckets.succeeded as f64, duration_ns),
                error_percent: ratio(100.0 * buckets.failed as f64, buckets.issued as f64),
            },
            duration_s: seconds(duration_ns),
            issue_window_s: seconds(result.issue_window_ns),
            started_at: utc(result.started_unix_ns),
            ended_at: utc(result.started_unix_ns.saturating_add(duration_ns)),
            dataset: dataset(asked.dataset),
            metrics: Table::default(),
            throughput: throughput(merged, duration_ns),
            goodput: (!planned.goodput.is_empty()).then(|| Goodput {
                good: merged.good,
                fraction: ratio(merged.good as f64, buckets.issued as f64),
                rps: per_second(merged.good as f64, duration_ns),
            }),
            client: client::figures(merged),
            findings: Findings::default(),
            time_weighted: None,
            slices: None,
            counted_tokens: None,
            thresholds: Vec::new(),
            target: result.target.as_ref().map(target),
            plan: planned,
            percentiles: asked.percentiles.iter().map(|p| p.name()).collect(),
            notes: result.notes.clone(),
        };
        summary.finish(asked.percentiles, asked.thresholds, merged);
        summary
    }

    /// The figures of several runs as one: the shards of a distributed run, in the order given. Rates of shards that ran at
    /// the same time add up; `merged` holds all of them. None without parts.
    pub fn joined(parts: &[&Self], merged: &Merged, thresholds: &[Threshold]) -> Option<Self> {
        let first = *parts.first()?;
        let mut all = first.clone();
        let longest = |f: fn(&Self) -> f64| parts.iter().map(|p| f(p)).fold(0.0, f64::max);
        let sum = |f: fn(&Rate) -> Option<f64>| parts.iter().map(|p| f(&p.rate)).sum::<Option<f64>>();
        all.duration_s = longest(|p| p.duration_s);
        all.issue_window_s = longest(|p| p.issue_window_s);
        all.started_at = parts.iter().map(|p| p.started_at.clone()).min().unwrap_or_default();
        all.ended_at = parts.iter().map(|p| p.ended_at.clone()).max().unwrap_or_default();
        all.status = parts.iter().map(|p| p.status).max_by_key(|s| *s as u8).unwrap_or(first.status);
        all.signal = parts.iter().find_map(|p| p.signal.clone());
        if let Some(ended_early) = parts.iter().find(|p| p.status != Status::Complete) {
            all.ended_by.clone_from(&ended_early.ended_by);
        }
        let b = &merged.buckets;
        let duration_ns = (all.duration_s * SECOND as f64) as u64;
        all.requests = requests(merged);
        all.errors = errors(merged);
        all.status_codes = status_codes(merged);
        all.bytes = bytes(merged);
        all.connections = connections(merged);
        all.rate = Rate {
            asked_rps: sum(|r| r.asked_rps),
            achieved_rps: sum(|r| r.achieved_rps),
            succeeded_rps: per_second(b.succeeded as f64, duration_ns),
            error_percent: ratio(100.0 * b.failed as f64, b.issued as f64),
        };
        all.throughput = throughput(merged, duration_ns);
        all.goodput = first.goodput.map(|_| Goodput {
            good: merged.good,
            fraction: ratio(merged.good as f64, b.issued as f64),
            rps: per_second(merged.good as f64, duration_ns),
        });
        all.client = client::figures(merged);
        all.target = None;
        // Neither can be had from the parts.
        (all.time_weighted, all.slices) = (None, None);
        all.counted_tokens = None;
        all.notes = parts.iter().flat_map(|p| p.notes.iter().cloned()).collect();
        all.notes.sort();
        all.notes.dedup();
        all.plan.concurrency = parts.iter().map(|p| p.plan.concurrency).sum();
        all.plan.connections = parts.iter().map(|p| p.plan.connections).sum();
        all.plan.workers = parts.iter().map(|p| p.plan.workers).sum();
        all.finish(&first.chosen_percentiles(), thresholds, merged);
        Some(all)
    }

    /// The percentiles that the text report shows.
    pub fn chosen_percentiles(&self) -> Vec<Percentile> {
        self.percentiles.iter().filter_map(|p| Percentile::parse(p).ok()).collect()
    }

    /// Fills in what needs the rest: the statistics, why the client may have been the limit, and the thresholds.
    fn finish(&mut self, percentiles: &[Percentile], thresholds: &[Threshold], merged: &Merged) {
        self.metrics = metrics(merged, percentiles);
        client::judge(self, merged);
        self.findings = findings::find(self);
        self.thresholds = thresholds.iter().map(|t| t.judge(self, merged)).collect();
    }

    /// The statistics of a metric.
    pub fn stats(&self, metric: Metric) -> Option<&Stats> {
        self.metrics.get(metric.name())
    }

    /// `summary.json`: two-space indent, one newline at the end.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("a summary is plain data"));
        text.push('\n');
        text
    }
}

fn status(ended_by: EndedBy, succeeded: u64, target: Option<&TargetCounts>) -> Status {
    match ended_by {
        EndedBy::Interrupt | EndedBy::Terminate => Status::Partial,
        EndedBy::Error => Status::Failed,
        _ if succeeded == 0 || target.is_some_and(|t| t.wrong > 0) => Status::Failed,
        _ => Status::Complete,
    }
}

fn signal(ended_by: EndedBy) -> Option<String> {
    match ended_by {
        EndedBy::Interrupt => Some("SIGINT".to_owned()),
        EndedBy::Terminate => Some("SIGTERM".to_owned()),
        _ => None,
    }
}

/// Issued requests a second.
///
/// A run that `-d` or a signal stopped: issued over the issue window. An open loop that ran out of requests: `n` starts span
/// `n - 1` gaps, so `n - 1` over the window from the start to the last issue. A closed loop that ran out: over the measured
/// window, as its issue window ends while the last ones are still in flight.
fn achieved_rps(planned: &Planned, ended_by: EndedBy, issued: u64, result: &RunResult) -> Option<f64> {
    let ran_out = matches!(ended_by, EndedBy::Requests | EndedBy::Dataset);
    match (ran_out, planned.is_open_loop()) {
        (false, _) => per_second(issued as f64, result.issue_window_ns),
        (true, true) if issued > 1 => per_second((issued - 1) as f64, result.issue_window_ns),
        (true, true) => None,
        (true, false) => per_second(issued as f64, result.duration_ns),
    }
}

fn requests(merged: &Merged) -> Requests {
    let b = &merged.buckets;
    Requests {
        scheduled: b.scheduled,
        issued: b.issued,
        succeeded: b.succeeded,
        failed: b.failed,
        cut: b.cut,
        missed: b.missed,
        cancelled: b.cancelled,
    }
}

fn errors(merged: &Merged) -> Table<u64> {
    let seen = ErrorClass::ALL.into_iter().filter(|&c| merged.errors_of(c) > 0);
    Table(seen.map(|c| (c.name().to_owned(), merged.errors_of(c))).collect())
}

fn status_codes(merged: &Merged) -> Table<u64> {
    let seen = merged.statuses.iter().enumerate().filter(|&(_, &n)| n > 0);
    Table(seen.map(|(code, &n)| (code.to_string(), n)).collect())
}

fn bytes(merged: &Merged) -> Bytes {
    let b = &merged.bytes;
    Bytes {
        bodies: b.bodies,
        sent: b.sent,
        received: b.received,
        sent_zero_copy: b.sent_zero_copy,
        sent_copied: b.sent_copied,
        sent_file: b.sent_file,
    }
}

fn connections(merged: &Merged) -> Connections {
    let c = &merged.connections;
    Connections {
        asked: c.asked,
        established_peak: c.established_peak,
        opened: c.opened,
        failed: c.failed,
        resent: c.resent,
        resumed: c.resumed,
    }
}

fn dataset(d: &DatasetFacts) -> Dataset {
    Dataset {
        format: d.format.clone(),
        records: d.records,
        cache: d.cache.name().to_owned(),
        key: d.key.clone(),
        body_bytes: d.body_bytes,
        stored_bytes: d.stored_bytes,
        skipped: d.skipped,
        token_source: d.token_source.clone(),
    }
}

fn target(t: &TargetCounts) -> Target {
    Target {
        requests: t.requests,
        body_bytes: t.body_bytes,
        verified: t.verified,
        wrong: t.wrong,
        connections: t.connections,
        cpu_us_per_request: ratio(t.cpu_ns as f64 / 1e3, t.requests as f64),
    }
}

/// Metrics with an `adj_` twin where requests failed: those by which a server is judged.
pub const ADJUSTED: [Metric; 5] = [
    Metric::RequestLatency,
    Metric::RequestLatencyFromSchedule,
    Metric::TimeToFirstToken,
    Metric::TimeToFirstTokenFromSchedule,
    Metric::InterTokenLatency,
];

fn metrics(merged: &Merged, chosen: &[Percentile]) -> Table<Stats> {
    let percentiles = Percentile::with_fixed(chosen);
    let mut table = Vec::new();
    for metric in Metric::ALL {
        let series = merged.series(metric);
        if series.count == 0 && !metric.of_every_request() {
            continue;
        }
        table.push((metric.name().to_owned(), Stats::of(series, metric.unit(), &percentiles)));
        if merged.buckets.failed > 0 && ADJUSTED.contains(&metric) {
            let adjusted = Stats::adjusted(series, merged.buckets.failed, metric.unit(), &percentiles);
            table.push((format!("adj_{}", metric.name()), adjusted));
        }
    }
    Table(table)
}

fn throughput(merged: &Merged, duration_ns: u64) -> Table<Figure> {
    let tokens = |metric: Metric, sum: u64| {
        (merged.series(metric).count > 0).then_some(sum).and_then(|sum| per_second(sum as f64, duration_ns))
    };
    let input = tokens(Metric::InputSequenceLength, merged.input_tokens);
    let output = tokens(Metric::OutputSequenceLength, merged.output_tokens);
    let total = match (input, output) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(0.0) + b.unwrap_or(0.0)),
    };
    let in_flight: u64 = merged.timeline.rows().iter().map(|r| r.in_flight_ns).sum();
    let row = |name: &str, unit: &str, value| (name.to_owned(), Figure { unit: unit.to_owned(), value });
    Table(vec![
        row("request_throughput", "requests/s", per_second(merged.buckets.succeeded as f64, duration_ns)),
        row("body_throughput", "bytes/s", per_second(merged.bytes.bodies as f64, duration_ns)),
        row("received_throughput", "bytes/s", per_second(merged.bytes.received as f64, duration_ns)),
        row("input_token_throughput", "tokens/s", input),
        row("output_token_throughput", "tokens/s", output),
        row("total_token_throughput", "tokens/s", total),
        row(
            "effective_concurrency",
            "requests",
            (in_flight > 0).then(|| ratio(in_flight as f64, duration_ns as f64)).flatten(),
        ),
        row("effective_concurrency_max", "requests", client::fullest_slice(merged, duration_ns)),
    ])
}

/// `a / b`; none when that is no number.
pub(super) fn ratio(a: f64, b: f64) -> Option<f64> {
    let r = a / b;
    r.is_finite().then_some(r)
}

fn per_second(n: f64, window_ns: u64) -> Option<f64> {
    ratio(n * SECOND as f64, window_ns as f64)
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / SECOND as f64
}

/// RFC 3339 in UTC with milliseconds; a time past what the calendar holds is its last.
pub(super) fn utc(unix_ns: u64) -> String {
    let stamp = jiff::Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or(jiff::Timestamp::MAX);
    format!("{stamp:.3}")
}

impl Serialize for Stats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(6 + self.percentiles.len()))?;
        map.serialize_entry("unit", &self.unit)?;
        map.serialize_entry("count", &self.count)?;
        map.serialize_entry("mean", &self.mean)?;
        map.serialize_entry("std", &self.std)?;
        map.serialize_entry("min", &self.min)?;
        map.serialize_entry("max", &self.max)?;
        for (percentile, value) in &self.percentiles {
            map.serialize_entry(&percentile.name(), value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Stats {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = Table::<serde_json::Value>::deserialize(deserializer)?;
        let number = |name: &str| table.get(name).and_then(serde_json::Value::as_f64);
        let text = table.get("unit").and_then(serde_json::Value::as_str);
        let count = table.get("count").and_then(serde_json::Value::as_u64);
        let percentiles = table.iter().filter_map(|(name, value)| {
            let percentile = name.strip_prefix('p').and_then(|p| Percentile::parse(p).ok())?;
            Some((percentile, value.as_f64()))
        });
        Ok(Self {
            unit: text.ok_or_else(|| D::Error::missing_field("unit"))?.to_owned(),
            count: count.ok_or_else(|| D::Error::missing_field("count"))?,
            mean: number("mean"),
            std: number("std"),
            min: number("min"),
            max: number("max"),
            percentiles: percentiles.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::{
            plan::{Arrival, GoodputLimit, Segment, Shape},
            results::WorkerResult,
        },
        report::{fixture, merge},
    };

    fn json(summary: &Summary) -> serde_json::Value {
        let text = summary.to_json();
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_fixed_part_is_as_the_contract_has_it() {
        let v = json(&fixture::summary().0);
        assert_eq!(
            (&v["schema"], &v["status"], &v["ended_by"]),
            (&SCHEMA.into(), &"complete".into(), &"requests".into())
        );
        assert_eq!(v["requests"]["issued"], 100);
        assert_eq!(v["errors"], serde_json::json!({"reset": 2, "http_5xx": 8}));
        assert_eq!(v["status_codes"], serde_json::json!({"200": 90, "503": 8}));
        assert_eq!(v["bytes"]["bodies"], 100_000);
        assert_eq!(v["rate"]["asked_rps"], serde_json::Value::Null);
        assert_eq!((&v["rate"]["achieved_rps"], &v["rate"]["succeeded_rps"]), (&50.0.into(), &45.0.into()));
        assert_eq!(
            (v["started_at"].as_str(), v["ended_at"].as_str()),
            (Some("2027-01-15T08:00:00.123Z"), Some("2027-01-15T08:00:02.123Z"))
        );
        assert_eq!(v["client"]["cores"], serde_json::json!([0, 1]));
        assert_eq!(v["client"]["cpu_us_per_request"], 1000.0);
        assert_eq!(v["client"]["limited_by_client"], false);
        let latency = &v["metrics"]["request_latency"];
        assert_eq!((&latency["unit"], &latency["count"], &latency["max"]), (&"ms".into(), &90.into(), &99.0.into()));
        for key in
            ["mean", "std", "min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99"]
        {
            assert!(latency[key].is_f64(), "{key}");
        }
        assert_eq!(v["metrics"]["adj_request_latency"]["p95"], serde_json::Value::Null);
        assert!(v.get("goodput").is_none() && v["metrics"].get("time_to_first_token").is_none());
    }

    #[test]
    fn nothing_succeeded_is_nulls_and_failed() {
        let mut result = fixture::result();
        result.workers = vec![WorkerResult::new(crate::data::WorkerId(0), None, 2)];
        result.duration_ns = 0;
        result.issue_window_ns = 0;
        let (summary, _) = fixture::summarize(&fixture::plan(), &result);
        let v = json(&summary);
        assert_eq!(v["status"], "failed");
        for m in Metric::ALL.into_iter().filter(|m| m.of_every_request()) {
            assert_eq!(
                (&v["metrics"][m.name()]["count"], &v["metrics"][m.name()]["p99"]),
                (&0.into(), &serde_json::Value::Null)
            );
        }
        assert_eq!(
            (&v["rate"]["achieved_rps"], &v["client"]["busy"]),
            (&serde_json::Value::Null, &serde_json::Value::Null)
        );
    }

    #[test]
    fn other_percentiles_join_the_fixed_ones() {
        let (plan, result, data) = (fixture::plan(), fixture::result(), fixture::dataset());
        let chosen = Percentile::parse_list("42,99.5").unwrap();
        let asked = Asked { plan: &plan, dataset: &data, percentiles: &chosen, thresholds: &[] };
        let v = json(&Summary::new(&asked, &result, &merge(&result)));
        let keys: Vec<_> =
            v["metrics"]["send_time"].as_object().unwrap().keys().filter(|k| k.starts_with('p')).cloned().collect();
        assert_eq!(keys, ["p42", "p50", "p90", "p95", "p99", "p99.5", "p99.9", "p99.99"]);
        assert_eq!(v["percentiles"], serde_json::json!(["p42", "p99.5"]));
    }

    #[test]
    fn a_summary_is_read_back_as_it_was_written() {
        let mut plan = fixture::plan();
        plan.goodput = vec![GoodputLimit { metric: Metric::RequestLatency, limit: 50_000_000 }];
        let (mut summary, merged) = fixture::summarize(&plan, &fixture::streaming());
        summary.thresholds = vec![Threshold::parse("ttft.p99>1s").unwrap().judge(&summary, &merged)];
        let back: Summary = serde_json::from_str(&summary.to_json()).unwrap();
        assert_eq!(back, summary);
        assert_eq!(back.to_json(), summary.to_json());
    }

    #[test]
    fn a_busy_worker_or_late_starts_tell_on_the_client() {
        let mut result = fixture::result();
        result.workers[1].cost.idle_ns = 40_000_000;
        let (summary, _) = fixture::summarize(&fixture::plan(), &result);
        assert!(summary.client.limited_by_client && summary.client.limits[0].contains("98 %"), "{:?}", summary.client);
        // The lag counts in an open loop only.
        let mut result = fixture::result();
        for _ in 0..10 {
            result.workers[0].series[Metric::ScheduleLag as usize].record(5_000_000);
        }
        assert!(!fixture::summarize(&fixture::plan(), &result).0.client.limited_by_client);
        let mut plan = fixture::plan();
        plan.shape =
            Shape::Rate { arrival: Arrival::Poisson, curve: vec![Segment { duration_ns: 1, from: 50.0, to: 50.0 }] };
        let (summary, _) = fixture::summarize(&plan, &result);
        assert!(summary.client.limited_by_client, "{:?}", summary.client);
        assert_eq!(summary.rate.asked_rps, Some(50.0));
    }

    #[test]
    fn requests_that_were_dropped_while_slots_were_free_tell_on_the_client() {
        let mut plan = fixture::plan();
        let flat = Segment { duration_ns: 1, from: 50.0, to: 50.0 };
        plan.shape = Shape::Rate { arrival: Arrival::Constant, curve: vec![flat] };
        let mut result = fixture::result();
        for w in &mut result.workers {
            (w.buckets.scheduled, w.buckets.missed) = (w.buckets.scheduled + 10, 10);
        }
        assert!(!fixture::summarize(&plan, &result).0.client.limited_by_client, "all four slots were used");
        result.workers[0].connections.established_peak = 1;
        let (summary, _) = fixture::summarize(&plan, &result);
        assert!(summary.client.limits.iter().any(|l| l.contains("20 due requests")), "{:?}", summary.client.limits);
        assert_eq!(summary.findings.limit, "client");
    }

    #[test]
    fn achieved_rate_counts_gaps_where_the_run_ran_out() {
        let mut plan = fixture::plan();
        plan.shape =
            Shape::Rate { arrival: Arrival::Constant, curve: vec![Segment { duration_ns: 1, from: 10.0, to: 10.0 }] };
        let mut result = fixture::result();
        // 100 requests at 10 a second: the last one starts after 9.9 s.
        (result.issue_window_ns, result.duration_ns) = (9_900_000_000, 10_000_000_000);
        assert_eq!(fixture::summarize(&plan, &result).0.rate.achieved_rps, Some(10.0));
        result.ended_by = EndedBy::Duration;
        result.issue_window_ns = 10_000_000_000;
        assert_eq!(fixture::summarize(&plan, &result).0.rate.achieved_rps, Some(10.0));
    }

    #[test]
    fn shards_become_one_run() {
        let (a, m) = fixture::summary();
        let mut merged = m.clone();
        merged.add(&m);
        let joined = Summary::joined(&[&a, &a], &merged, &[]).unwrap();
        assert_eq!((joined.requests.issued, joined.plan.concurrency), (200, 8));
        assert_eq!(joined.rate.achieved_rps, Some(100.0));
        assert_eq!(joined.stats(Metric::RequestLatency).unwrap().count, 180);
        assert_eq!(joined.stats(Metric::RequestLatency).unwrap().max, Some(99.0));
        assert_eq!(joined.client.workers.len(), 4);
        assert!(Summary::joined(&[], &merged, &[]).is_none());
    }
}
