//! `--aiperf-artifacts`: `profile_export.jsonl`, `profile_export_aiperf.json` (shape 1.4) and `profile_export_aiperf.csv`, with
//! `--slice` its time slices too, with the names, units and formulas of AIPerf 0.13, so that what reads its files reads these.
//!
//! `docs/aiperf-differences.md` says where a figure differs and why. Memory is that of one row and of the histograms.
//!
//! This file is long because it is one list of names, from the rows to three files.

use std::{fmt::Write as _, io::Write as _};

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::data::{
    Result,
    metric::{Metric, Series},
    outcome::{ErrorClass, Outcome},
    rows::{NONE_U32, Row},
    units::SECOND,
};

use super::{
    csv::field,
    dir::RunDir,
    merge::Merged,
    percentile::{Percentile, mean, std_deviation, values_at_ranks},
    records::{between, inter_token_ns, latency_ns, succeeded, ttft_ns},
    spools::{Rows, Spools},
    summary::{ADJUSTED, Status, Summary},
};

/// The version whose shape is written; readers parse it as a version, so ours is its local part.
const AIPERF_VERSION: &str = concat!("0.13.0+ringload.", env!("CARGO_PKG_VERSION"));
const SHAPE: &str = "1.4";

/// The statistics of a distribution, in the order of the JSON.
const PERCENTILES: [&str; 9] = ["1", "5", "10", "25", "50", "75", "90", "95", "99"];

/// A figure of one request that the workers keep no series of; counted while the rows are read.
pub(super) struct Extra {
    tag: &'static str,
    header: &'static str,
    unit: &'static str,
    divisor: f64,
    requests: Requests,
    of: fn(&Row) -> Option<u64>,
}

/// Which requests have a figure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Requests {
    Succeeded,
    Failed,
    /// All that ended by themselves.
    Ended,
}

impl Extra {
    /// Its value of a row; none where the row has none.
    pub(super) fn value(&self, row: &Row) -> Option<u64> {
        let of = match Outcome::from_code(row.outcome) {
            Some(Outcome::Succeeded) => self.requests != Requests::Failed,
            Some(Outcome::Cut) => false,
            Some(Outcome::Failed(_)) | None => self.requests != Requests::Succeeded,
        };
        if of { (self.of)(row) } else { None }
    }
}

fn known(count: u32) -> Option<u64> {
    (count != NONE_U32).then_some(u64::from(count))
}

fn connecting(r: &Row) -> u64 {
    let part = |ns: u64| if ns == u64::MAX { 0 } else { ns };
    part(r.connect_ns) + part(r.tls_ns)
}

/// Thousandths of `count` a second.
fn rate(count: u32, ns: Option<u64>) -> Option<u64> {
    let (count, ns) = (known(count)?, ns.filter(|&ns| ns > 0)?);
    u64::try_from(u128::from(count) * 1000 * u128::from(SECOND) / u128::from(ns)).ok()
}

fn end(r: &Row) -> crate::data::Nanos {
    if r.last_token.is_some() { r.last_token } else { r.done }
}

const fn extra(
    tag: &'static str,
    header: &'static str,
    unit: &'static str,
    divisor: f64,
    of: fn(&Row) -> Option<u64>,
) -> Extra {
    Extra { tag, header, unit, divisor, requests: Requests::Succeeded, of }
}

const fn of_others(requests: Requests, extra: Extra) -> Extra {
    Extra { requests, ..extra }
}

/// The first stands among the core figures, the others behind them.
pub(super) const EXTRAS: [Extra; 22] = [
    extra("output_token_count", "Output Token Count", "tokens", 1.0, |r| {
        Some(known(r.output_tokens)?.saturating_sub(known(r.reasoning_tokens).unwrap_or(0))).filter(|&n| n > 0)
    }),
    of_others(
        Requests::Failed,
        extra("error_isl", "Error Input Sequence Length", "tokens", 1.0, |r| known(r.input_tokens)),
    ),
    // Names are looked up once, before the run, and no request waits for a slot of a pool.
    extra("http_req_dns_lookup", "HTTP DNS Lookup", "ms", 1e6, |_| Some(0)),
    extra("http_req_blocked", "HTTP Blocked", "ms", 1e6, |_| Some(0)),
    extra("http_req_connecting", "HTTP Connecting", "ms", 1e6, |r| Some(connecting(r))),
    extra("http_req_connection_overhead", "HTTP Connection Overhead", "ms", 1e6, |r| Some(connecting(r))),
    extra("http_req_sending", "HTTP Sending", "ms", 1e6, |r| between(r.start, r.sent)),
    extra("http_req_waiting", "HTTP Waiting (TTFB)", "ms", 1e6, |r| between(r.sent, r.first_byte)),
    extra("http_req_receiving", "HTTP Receiving", "ms", 1e6, |r| between(r.first_byte, r.done)),
    extra("http_req_duration", "HTTP Duration (excl. conn)", "ms", 1e6, |r| between(r.start, r.done)),
    extra("http_req_total", "HTTP Total Time", "ms", 1e6, |r| Some(between(r.start, r.done)? + connecting(r))),
    extra("http_req_connection_reused", "HTTP Connection Reused", "ratio", 1.0, |r| Some(r.has(Row::REUSED).into())),
    extra("http_req_data_sent", "HTTP Data Sent", "KB", 1024.0, |r| Some(r.bytes_sent)),
    extra("http_req_data_received", "HTTP Data Received", "KB", 1024.0, |r| Some(r.bytes_received)),
    extra("decode_duration", "Decode Duration", "ms", 1e6, |r| between(r.first_token, r.last_token)),
    extra("e2e_output_token_throughput", "E2E Output Token Throughput", "tokens/sec/user", 1e3, |r| {
        rate(r.output_tokens, latency_ns(r))
    }),
    extra("prefill_throughput_per_user", "Prefill Throughput Per User", "tokens/sec/user", 1e3, |r| {
        rate(r.input_tokens, ttft_ns(r))
    }),
    extra("usage_prompt_tokens", "Usage Prompt Tokens", "tokens", 1.0, usage_prompt),
    extra("usage_completion_tokens", "Usage Completion Tokens", "tokens", 1.0, usage_completion),
    extra("usage_total_tokens", "Usage Total Tokens", "tokens", 1.0, |r| Some(usage_prompt(r)? + usage_completion(r)?)),
    of_others(
        Requests::Ended,
        extra("credit_to_start_latency", "Credit-to-Start Latency", "ms", 1e6, |r| between(r.due, r.start)),
    ),
    of_others(
        Requests::Ended,
        extra("effective_latency", "Effective Latency (CO-aware)", "ms", 1e6, |r| between(r.due, end(r))),
    ),
];

fn usage_prompt(r: &Row) -> Option<u64> {
    known(r.input_tokens).filter(|_| !r.has(Row::INPUT_FROM_INDEX))
}

fn usage_completion(r: &Row) -> Option<u64> {
    known(r.output_tokens).filter(|_| !r.has(Row::OUTPUT_COUNTED))
}

/// One figure as it is shown.
struct Shown {
    tag: String,
    header: String,
    unit: &'static str,
    stats: Stats,
}

enum Stats {
    Single(f64),
    /// Name and value, in order; `count` and `sum` last.
    Spread(Vec<(String, f64)>),
}

/// Writes the three files from the spools of a run and its figures.
///
/// Errors: a spool that cannot be read, a file that cannot be written.
pub fn write(dir: &mut RunDir, spools: &Spools, summary: &Summary, merged: &Merged) -> Result<()> {
    let mut rows = Rows::open(spools)?;
    let mut extras: Vec<Series> = EXTRAS.iter().map(|_| Series::new()).collect();
    let mut part = dir.create("profile_export.jsonl")?;
    let mut number = 0;
    while let Some((row, anchor)) = rows.next_row()? {
        for (extra, series) in EXTRAS.iter().zip(&mut extras) {
            if let Some(value) = extra.value(&row) {
                series.record(value);
            }
        }
        let mut line = record(&row, rows.times(), anchor, number, summary.plan.seed).to_string();
        line.push('\n');
        part.write_all(line.as_bytes()).map_err(|e| part.error(e))?;
        number += 1;
    }
    let (core, rest) = figures(summary, &Whole::of(summary, merged, &extras));
    let mut json_part = dir.create("profile_export_aiperf.json")?;
    let text = summary_json(summary, &core, &rest);
    json_part.write_all(text.as_bytes()).map_err(|e| json_part.error(e))?;
    let mut csv_part = dir.create("profile_export_aiperf.csv")?;
    let text = summary_csv(core.iter().chain(&rest));
    csv_part.write_all(text.as_bytes()).map_err(|e| csv_part.error(e))?;
    dir.commit(vec![part, json_part, csv_part])
}

/// A line of `profile_export.jsonl`.
fn record(row: &Row, times: &[u64], anchor: u64, number: u64, seed: u64) -> Value {
    let wall = |stamp: crate::data::Nanos| stamp.get().map(|ns| anchor.saturating_add(ns));
    let session = if row.session == NONE_U32 { row.record } else { row.session };
    let correlation = uuid(&[1, session.into(), row.instance.into()], seed);
    let (start, finish) = (wall(row.start), wall(end(row)).or(wall(row.done)));
    let cut = row.outcome == Outcome::Cut.code();
    let mut metadata = json!({
        "session_num": number,
        "x_request_id": uuid(&[2, number, row.worker.into()], seed),
        "x_correlation_id": correlation,
        "conversation_id": format!("{}-{session}", if row.session == NONE_U32 { "record" } else { "session" }),
        "turn_index": row.turn,
        "credit_issued_ns": wall(row.due),
        // A request whose connection failed has no start; its end stands for it, so that no duration is made up.
        "request_start_ns": start.or(finish).unwrap_or(anchor),
        "request_ack_ns": wall(row.first_byte),
        "request_end_ns": finish.or(start).unwrap_or(anchor),
        "worker_id": format!("worker_{}", row.worker),
        "record_processor_id": "ringload",
        "benchmark_phase": "profiling",
        "phase_index": 0,
        "profiling_index": 0,
        "phase_name": "profiling",
        "phase_kind": "profiling",
        "was_cancelled": cut,
        "context_overflow_skip": false,
        "agent_depth": 0,
        "root_correlation_id": correlation,
    });
    if cut && let (Some(map), Some(at)) = (metadata.as_object_mut(), wall(row.done)) {
        map.insert("cancellation_time_ns".to_owned(), at.into());
    }
    if let Some(map) = metadata.as_object_mut() {
        map.retain(|_, v| !v.is_null());
    }
    let mut line = json!({ "metadata": metadata, "metrics": metrics(row, times) });
    if let (Some(error), Some(map)) = (error(row), line.as_object_mut()) {
        map.insert("error".to_owned(), error);
    }
    line
}

fn metrics(row: &Row, times: &[u64]) -> Map<String, Value> {
    let mut map = Map::new();
    let mut put = |tag: &str, value: Option<f64>, unit: &str| {
        if let Some(value) = value.filter(|v| v.is_finite()) {
            map.insert(tag.to_owned(), json!({ "value": value, "unit": unit }));
        }
    };
    if !succeeded(row) {
        put("error_isl", known(row.input_tokens).map(|n| n as f64), "tokens");
        return map;
    }
    let ms = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e6);
    let itl = inter_token_ns(row);
    put("request_latency", ms(latency_ns(row)), "ms");
    put("time_to_first_token", ms(ttft_ns(row)), "ms");
    put("time_to_first_output_token", ms(between(row.start, row.first_output)), "ms");
    put("time_to_second_token", ms(between(row.first_token, row.second_token)), "ms");
    put("inter_token_latency", itl.map(|ns| ns / 1e6), "ms");
    put("output_token_throughput_per_user", itl.map(|ns| 1e9 / ns), "tokens/sec/user");
    put("input_sequence_length", known(row.input_tokens).map(|n| n as f64), "tokens");
    put("output_sequence_length", known(row.output_tokens).map(|n| n as f64), "tokens");
    put("reasoning_token_count", known(row.reasoning_tokens).map(|n| n as f64), "tokens");
    for extra in EXTRAS.iter().filter(|e| e.requests == Requests::Succeeded) {
        put(extra.tag, extra.value(row).map(|v| v as f64 / extra.divisor), extra.unit);
    }
    if times.len() > 1 {
        let gaps: Vec<f64> = times.windows(2).map(|w| w[1].saturating_sub(w[0]) as f64 / 1e6).collect();
        map.insert(Metric::InterChunkLatency.name().to_owned(), json!({ "value": gaps, "unit": "ms" }));
    }
    map
}

fn error(row: &Row) -> Option<Value> {
    match Outcome::from_code(row.outcome) {
        Some(Outcome::Succeeded) => None,
        Some(Outcome::Cut) => Some(json!({
            "code": 499, "type": "RequestCancellationError", "message": "in flight when the drain ended",
        })),
        Some(Outcome::Failed(class)) => {
            let code = (row.status > 0).then_some(row.status);
            Some(json!({ "code": code, "type": class.name(), "message": message(class) }))
        }
        None => Some(json!({ "type": "unknown", "message": "an outcome of another version" })),
    }
}

fn message(class: ErrorClass) -> String {
    let hint = class.hint();
    if hint.is_empty() { class.name().replace('_', " ") } else { hint.to_owned() }
}

/// A UUID (version 8, RFC 9562 section 5.8) that is the same for the same run: no randomness without a seed.
fn uuid(parts: &[u64], seed: u64) -> String {
    let bytes: Vec<u8> = parts.iter().flat_map(|p| p.to_le_bytes()).collect();
    let hash = xxh3_128_with_seed(&bytes, seed);
    let (high, low) = ((hash >> 64) as u64, hash as u64);
    format!(
        "{:08x}-{:04x}-8{:03x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low >> 48 & 0x3fff | 0x8000,
        low & 0xffff_ffff_ffff
    )
}

/// What figures are made of: a whole run, or a slice of one.
pub(super) struct Whole<'a> {
    pub series: Vec<&'a Series>,
    pub extras: Vec<&'a Series>,
    pub succeeded: u64,
    pub failed: u64,
    /// Successes that met every limit of `--goodput`; none without it.
    pub good: Option<u64>,
    /// What rates are divided by.
    pub seconds: f64,
}

impl<'a> Whole<'a> {
    fn of(s: &Summary, merged: &'a Merged, extras: &'a [Series]) -> Self {
        Self {
            series: merged.series.iter().collect(),
            extras: extras.iter().collect(),
            succeeded: s.requests.succeeded,
            failed: s.requests.failed,
            good: s.goodput.map(|g| g.good),
            seconds: s.duration_s,
        }
    }

    fn spread(&self, metric: Metric, header: &str, unit: &'static str) -> Option<Shown> {
        let series = self.series[metric as usize];
        (series.count > 0).then(|| shown_spread(metric.name(), header, unit, series, metric.unit().divisor()))
    }

    fn sum(&self, metric: Metric) -> Option<f64> {
        let series = self.series[metric as usize];
        (series.count > 0).then_some(series.sum as f64)
    }

    fn per_second(&self, n: Option<f64>) -> Option<f64> {
        n.map(|n| n / self.seconds).filter(|r| r.is_finite())
    }

    fn extra(&self, tag: &str) -> Option<Shown> {
        let (extra, series) = EXTRAS.iter().zip(&self.extras).find(|(e, _)| e.tag == tag)?;
        (series.count > 0).then(|| shown_spread(extra.tag, extra.header, extra.unit, series, extra.divisor))
    }

    fn extra_sum(&self, tag: &str) -> Option<f64> {
        let (_, series) = EXTRAS.iter().zip(&self.extras).find(|(e, _)| e.tag == tag)?;
        (series.count > 0).then_some(series.sum as f64)
    }
}

fn single(tag: &str, header: &str, unit: &'static str, value: Option<f64>) -> Option<Shown> {
    value.map(|v| Shown { tag: tag.to_owned(), header: header.to_owned(), unit, stats: Stats::Single(v) })
}

/// Every figure: those that stand before `input_config` in the JSON, and the rest.
fn figures(s: &Summary, w: &Whole<'_>) -> (Vec<Shown>, Vec<Shown>) {
    let mut rest = of_requests(w);
    rest.extend(s.time_weighted.iter().flat_map(super::table::Table::iter).map(|(tag, figure)| weighted(tag, figure)));
    if w.failed > 0 {
        rest.extend(adjusted(s).flatten());
    }
    let mut core = core(w);
    let at = core.iter().position(|f| f.tag == "total_isl").unwrap_or(core.len());
    let duration = single("benchmark_duration", "Benchmark Duration", "sec", Some(s.duration_s));
    core.splice(at..at, duration);
    (core, rest)
}

/// The figures that stand first, in their order.
fn core(w: &Whole<'_>) -> Vec<Shown> {
    let (isl, osl) = (w.sum(Metric::InputSequenceLength), w.sum(Metric::OutputSequenceLength));
    let reasoning = w.sum(Metric::ReasoningTokenCount);
    let (n, good) = (w.succeeded as f64, w.good.map(|g| g as f64));
    [
        single("request_throughput", "Request Throughput", "requests/sec", w.per_second(Some(n))),
        w.spread(Metric::RequestLatency, "Request Latency", "ms"),
        single("request_count", "Request Count", "requests", Some(n)),
        w.spread(Metric::TimeToFirstToken, "Time to First Token", "ms"),
        w.spread(Metric::TimeToSecondToken, "Time to Second Token", "ms"),
        w.spread(Metric::InterTokenLatency, "Inter Token Latency", "ms"),
        single("output_token_throughput", "Output Token Throughput", "tokens/sec", w.per_second(osl)),
        w.spread(Metric::OutputTokenThroughputPerUser, "Output Token Throughput Per User", "tokens/sec/user"),
        w.spread(Metric::OutputSequenceLength, "Output Sequence Length", "tokens"),
        w.spread(Metric::InputSequenceLength, "Input Sequence Length", "tokens"),
        single("goodput", "Goodput", "requests/sec", w.per_second(good)),
        single("good_request_count", "Good Request Count", "requests", good),
        w.extra("output_token_count"),
        w.spread(Metric::ReasoningTokenCount, "Reasoning Token Count", "tokens"),
        w.spread(Metric::InterChunkLatency, "Inter Chunk Latency", "ms"),
        single("total_output_tokens", "Total Output Tokens", "tokens", osl.map(|n| n - reasoning.unwrap_or(0.0))),
        single("total_reasoning_tokens", "Total Reasoning Tokens", "tokens", reasoning),
        single("total_isl", "Total Input Sequence Length", "tokens", isl),
        single("total_osl", "Total Output Sequence Length", "tokens", osl),
        single("error_request_count", "Error Request Count", "requests", (w.failed > 0).then_some(w.failed as f64)),
        w.extra("error_isl"),
        single("total_error_isl", "Total Error Input Sequence Length", "tokens", w.extra_sum("error_isl")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The other figures of requests.
fn of_requests(w: &Whole<'_>) -> Vec<Shown> {
    let (isl, osl) = (w.sum(Metric::InputSequenceLength), w.sum(Metric::OutputSequenceLength));
    let ended = (w.succeeded + w.failed) as f64;
    let all = match (isl, osl) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(0.0) + b.unwrap_or(0.0)),
    };
    let total = |tag, header, of: &str| single(tag, header, "tokens", w.extra_sum(of));
    let error_rate = Some(100.0 * w.failed as f64 / ended).filter(|r| r.is_finite());
    let good_share = w.good.map(|g| g as f64 / ended).filter(|r| r.is_finite());
    let mut list = vec![
        w.spread(Metric::TimeToFirstOutputToken, "Time to First Output Token", "ms"),
        single("good_request_fraction", "Good Request Fraction", "ratio", good_share),
        single("request_error_rate", "Request Error Rate", "%", error_rate),
        single("completed_request_count", "Completed Requests (Success + Error)", "requests", Some(ended)),
        single("total_token_throughput", "Total Token Throughput", "tokens/sec", w.per_second(all)),
        single("input_token_throughput", "Input Token Throughput", "tokens/sec", w.per_second(isl)),
        total("total_usage_prompt_tokens", "Total Usage Prompt Tokens", "usage_prompt_tokens"),
        total("total_usage_completion_tokens", "Total Usage Completion Tokens", "usage_completion_tokens"),
        total("total_usage_total_tokens", "Total Usage Total Tokens", "usage_total_tokens"),
    ];
    list.extend(EXTRAS.iter().skip(2).map(|e| w.extra(e.tag)));
    list.into_iter().flatten().collect()
}

/// A figure weighted by time.
fn weighted(tag: &str, figure: &super::sweep::Weighted) -> Shown {
    let unit = match figure.unit.as_str() {
        "tokens/s" => "tokens/sec",
        "tokens/s/user" => "tokens/sec/user",
        "tokens" => "tokens",
        _ => "requests",
    };
    let f = figure;
    let stats = [
        ("avg", f.mean),
        ("p50", f.p50),
        ("p90", f.p90),
        ("p95", f.p95),
        ("p99", f.p99),
        ("min", f.min),
        ("max", f.max),
        ("std", f.std),
    ];
    let header: Vec<String> = tag.split('_').map(|word| word[..1].to_ascii_uppercase() + &word[1..]).collect();
    Shown {
        tag: tag.to_owned(),
        header: header.join(" "),
        unit,
        stats: Stats::Spread(stats.map(|(name, value)| (name.to_owned(), value)).into()),
    }
}

/// A time slice in the JSON of slices, and its lines in the CSV: `Timeslice,Start_NS,End_NS,Metric,Unit,Stat,Value`.
pub(super) fn slice(w: &Whole<'_>, index: u64, (start_ns, end_ns): (u64, u64), complete: bool) -> (Value, String) {
    let mut map = Map::new();
    map.insert("start_ns".to_owned(), start_ns.into());
    map.insert("end_ns".to_owned(), end_ns.into());
    if !complete {
        map.insert("is_complete".to_owned(), false.into());
    }
    let mut lines = String::new();
    for figure in core(w).iter().chain(&of_requests(w)) {
        map.insert(figure.tag.clone(), json_figure(figure));
        let single;
        let stats = match &figure.stats {
            Stats::Single(value) => {
                single = [("avg".to_owned(), *value)];
                &single[..]
            }
            Stats::Spread(stats) => stats,
        };
        for (stat, value) in stats {
            let _ = write!(
                lines,
                "{index},{start_ns},{end_ns},{},{},{stat},{value:.2}\r\n",
                field(&figure.header),
                figure.unit
            );
        }
    }
    (Value::Object(map), lines)
}

/// The part of the plan that is in the JSON of slices, too.
pub(super) fn config(s: &Summary) -> Value {
    input_config(s)
}

fn shown_spread(tag: &str, header: &str, unit: &'static str, series: &Series, divisor: f64) -> Shown {
    let percentiles: Vec<Percentile> = PERCENTILES.iter().filter_map(|p| Percentile::parse(p).ok()).collect();
    let ranks: Vec<u64> = percentiles.iter().map(|p| p.rank(series.count)).collect();
    let mut stats = vec![("avg".to_owned(), mean(series) / divisor)];
    for (p, value) in percentiles.iter().zip(values_at_ranks(series, &ranks)) {
        stats.extend(value.map(|v| (p.name(), v as f64 / divisor)));
    }
    stats.extend([
        ("min".to_owned(), series.min as f64 / divisor),
        ("max".to_owned(), series.max as f64 / divisor),
        ("std".to_owned(), std_deviation(series) / divisor),
        ("count".to_owned(), series.count as f64),
        ("sum".to_owned(), series.sum as f64 / divisor),
    ]);
    Shown { tag: tag.to_owned(), header: header.to_owned(), unit, stats: Stats::Spread(stats) }
}

/// The `adj_` twins that the summary has; what is infinite is left out.
fn adjusted(s: &Summary) -> impl Iterator<Item = Option<Shown>> {
    ADJUSTED.into_iter().filter(|m| !m.name().ends_with("_from_schedule")).map(|metric| {
        let tag = format!("adj_{}", metric.name());
        let stats = s.metrics.get(&tag)?;
        let mut list: Vec<(String, f64)> =
            PERCENTILES.iter().filter_map(|p| Some((format!("p{p}"), stats.at(Percentile::parse(p).ok()?)?))).collect();
        list.extend(stats.min.map(|v| ("min".to_owned(), v)));
        list.push(("count".to_owned(), stats.count as f64));
        let header = format!("Error-Adjusted {}", metric.name().replace('_', " "));
        Some(Shown { tag, header, unit: "ms", stats: Stats::Spread(list) })
    })
}

fn summary_json(s: &Summary, core: &[Shown], rest: &[Shown]) -> String {
    let id = uuid(&[3, s.requests.issued], s.plan.seed).replace('-', "")[..12].to_owned();
    let mut members: Vec<(String, Value)> = vec![
        ("schema_version".to_owned(), SHAPE.into()),
        ("aiperf_version".to_owned(), AIPERF_VERSION.into()),
        ("benchmark_id".to_owned(), id.as_str().into()),
    ];
    members.extend(core.iter().map(|f| (f.tag.clone(), json_figure(f))));
    let errors: Vec<Value> = s
        .errors
        .iter()
        .map(|(name, count)| {
            let class = ErrorClass::ALL.into_iter().find(|c| c.name() == name);
            let details = json!({ "type": name, "message": class.map_or_else(String::new, message) });
            json!({ "error_details": details, "count": count })
        })
        .collect();
    members.extend([
        ("input_config".to_owned(), input_config(s)),
        (
            "run_info".to_owned(),
            json!({ "benchmark_id": id, "random_seed": s.plan.seed, "trial": 0,
                    "cli_command": format!("ringload run {}", s.plan.urls.join(" ")) }),
        ),
        ("was_cancelled".to_owned(), (s.status == Status::Partial).into()),
        ("is_complete".to_owned(), (s.status == Status::Complete).into()),
        ("error_summary".to_owned(), errors.into()),
        ("start_time".to_owned(), without_zone(&s.started_at).into()),
        ("end_time".to_owned(), without_zone(&s.ended_at).into()),
    ]);
    members.extend(rest.iter().map(|f| (f.tag.clone(), json_figure(f))));
    let mut text =
        serde_json::to_string_pretty(&super::table::Table(members)).unwrap_or_else(|_| unreachable!("plain data"));
    text.push('\n');
    text
}

fn json_figure(figure: &Shown) -> Value {
    let mut map = Map::new();
    map.insert("unit".to_owned(), figure.unit.into());
    match &figure.stats {
        Stats::Single(value) => {
            map.insert("avg".to_owned(), json!(value));
        }
        Stats::Spread(stats) => {
            for (name, value) in stats {
                let value = if name == "count" { json!(*value as u64) } else { json!(value) };
                map.insert(name.clone(), value);
            }
        }
    }
    Value::Object(map)
}

/// The part of the plan that its readers look at.
fn input_config(s: &Summary) -> Value {
    let p = &s.plan;
    let shape = match (p.shape.as_str(), p.arrival.as_deref()) {
        ("schedule", _) => "fixed_schedule",
        ("rate", Some(a)) if a.starts_with("gamma") => "gamma",
        ("rate", Some("poisson")) => "poisson",
        ("rate", _) => "constant",
        _ => "concurrency",
    };
    let mut phase = json!({ "name": "profiling", "kind": "profiling", "type": shape });
    if let Some(map) = phase.as_object_mut() {
        for (name, value) in [
            ("requests", p.requests.map(Value::from)),
            ("duration", p.duration_s.map(Value::from)),
            ("rate", p.rate_rps.map(Value::from)),
            ("concurrency", (p.concurrency_asked || shape == "concurrency").then(|| p.concurrency.into())),
        ] {
            map.extend(value.map(|v| (name.to_owned(), v)));
        }
    }
    json!({
        "endpoint": { "urls": p.urls, "streaming": s.metrics.get("time_to_first_token").is_some() },
        "datasets": [{ "name": "main", "type": "file", "format": s.dataset.format, "entries": s.dataset.records }],
        "phases": [phase],
    })
}

/// `2026-11-30T14:52:36.810` of a UTC stamp: its own have no zone.
fn without_zone(stamp: &str) -> &str {
    stamp.trim_end_matches('Z')
}

/// Two tables: distributions by tag, then single values by header; two decimals, empty where there is none.
fn summary_csv<'a>(figures: impl Iterator<Item = &'a Shown>) -> String {
    const COLUMNS: [&str; 14] =
        ["avg", "min", "max", "sum", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "std"];
    let (mut spreads, mut singles): (Vec<&Shown>, Vec<&Shown>) =
        figures.partition(|f| matches!(f.stats, Stats::Spread(_)));
    spreads.sort_by(|a, b| a.header.cmp(&b.header));
    singles.sort_by(|a, b| a.header.cmp(&b.header));
    let name = |f: &Shown| match f.unit {
        "requests" | "count" => field(&f.header),
        unit => field(&format!("{} ({unit})", f.header)),
    };
    let mut out = format!("Metric,{}\r\n", COLUMNS.join(","));
    for figure in spreads {
        out.push_str(&name(figure));
        if let Stats::Spread(stats) = &figure.stats {
            for column in COLUMNS {
                out.push(',');
                if let Some((_, value)) = stats.iter().find(|(n, _)| n == column) {
                    let _ = write!(out, "{value:.2}");
                }
            }
        }
        out.push_str("\r\n");
    }
    out.push_str("\r\nMetric,Value\r\n");
    for figure in singles {
        if let Stats::Single(value) = figure.stats {
            let _ = write!(out, "{},{value:.2}\r\n", name(figure));
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

    fn rows() -> Vec<Row> {
        let stream = Row {
            first_token: Nanos(1_020_010),
            first_output: Nanos(1_020_010),
            second_token: Nanos(1_520_010),
            last_token: Nanos(3_020_010),
            output_tokens: 5,
            input_tokens: 7,
            reasoning_tokens: 2,
            session: 4,
            turn: 1,
            content_events: 3,
            stamps: 3,
            flags: Row::REUSED,
            ..row(0, 0, 4_000_000)
        };
        let failed = Row {
            outcome: Outcome::Failed(ErrorClass::Http5xx).code(),
            status: 503,
            input_tokens: 9,
            ..row(0, 1, 5_000_000)
        };
        let refused = Row {
            outcome: Outcome::Failed(ErrorClass::ConnectRefused).code(),
            status: 0,
            start: Nanos::NONE,
            ..row(0, 2, 6_000_000)
        };
        let cut = Row { outcome: Outcome::Cut.code(), status: 0, first_byte: Nanos::NONE, ..row(0, 3, 7_000_000) };
        vec![stream, failed, refused, cut]
    }

    fn files() -> (Vec<Value>, Value, String) {
        let temp = tempfile::tempdir().unwrap();
        let mut dir = RunDir::prepare(temp.path()).unwrap();
        spool(temp.path(), 0, &rows());
        chunks(temp.path(), 0, &[1_020_010, 1_520_010, 3_020_010]);
        let (summary, merged) = fixture::summarize(&fixture::plan(), &fixture::streaming());
        write(&mut dir, &Spools::find(temp.path()).unwrap(), &summary, &merged).unwrap();
        let read = |name: &str| std::fs::read_to_string(temp.path().join(name)).unwrap();
        let lines = read("profile_export.jsonl").lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        (lines, serde_json::from_str(&read("profile_export_aiperf.json")).unwrap(), read("profile_export_aiperf.csv"))
    }

    #[test]
    fn records_have_its_names_units_and_formulas() {
        let (lines, _, _) = files();
        let (meta, m) = (&lines[0]["metadata"], &lines[0]["metrics"]);
        let value = |tag: &str| m[tag]["value"].as_f64().unwrap();
        assert_eq!((value("request_latency"), value("time_to_first_token")), (3.0, 1.0));
        assert_eq!((value("time_to_second_token"), value("inter_token_latency")), (0.5, 0.5));
        assert_eq!((value("decode_duration"), value("output_token_throughput_per_user")), (2.0, 2000.0));
        assert_eq!((value("output_sequence_length"), value("output_token_count")), (5.0, 3.0));
        assert_eq!(value("prefill_throughput_per_user"), 7000.0);
        assert_eq!(m["inter_chunk_latency"], json!({ "value": [0.5, 1.5], "unit": "ms" }));
        assert_eq!(meta["request_end_ns"].as_u64().unwrap() - meta["request_start_ns"].as_u64().unwrap(), 3_000_000);
        assert_eq!((&meta["conversation_id"], &meta["turn_index"]), (&"session-4".into(), &1.into()));
        let failed = &lines[1];
        assert_eq!(failed["error"]["code"], 503);
        assert_eq!(failed["metrics"], json!({ "error_isl": { "value": 9.0, "unit": "tokens" } }));
        assert_eq!(lines[2]["metadata"]["request_start_ns"], lines[2]["metadata"]["request_end_ns"]);
        assert_eq!((&lines[3]["metadata"]["was_cancelled"], &lines[3]["error"]["code"]), (&true.into(), &499.into()));
        let ids: std::collections::HashSet<_> =
            lines.iter().map(|l| l["metadata"]["x_request_id"].to_string()).collect();
        assert_eq!(ids.len(), 4);
    }

    #[test]
    fn the_summary_has_its_shape() {
        let (_, v, csv) = files();
        assert_eq!(
            (&v["schema_version"], &v["is_complete"], &v["was_cancelled"]),
            (&"1.4".into(), &true.into(), &false.into())
        );
        assert_eq!(v["request_latency"]["count"], 90);
        assert_eq!((&v["request_latency"]["sum"], &v["request_count"]["avg"]), (&4905.0.into(), &90.0.into()));
        assert_eq!(v["request_throughput"], json!({ "unit": "requests/sec", "avg": 45.0 }));
        assert_eq!(v["http_req_waiting"]["count"], 1);
        assert_eq!(v["credit_to_start_latency"]["count"], 2);
        assert_eq!((&v["error_isl"]["sum"], &v["total_error_isl"]["avg"]), (&9.0.into(), &9.0.into()));
        assert!(v["adj_request_latency"].get("p99").is_none() && v["adj_request_latency"]["p50"].is_f64());
        assert_eq!(v["start_time"], "2027-01-15T08:00:00.123");
        let head = csv.split("\r\n").next().unwrap();
        assert_eq!(head, "Metric,avg,min,max,sum,p1,p5,p10,p25,p50,p75,p90,p95,p99,std");
        assert!(csv.contains("\r\nRequest Latency (ms),54.50,10.00,99.00,4905.00,"), "{csv}");
        assert!(csv.contains("\r\n\r\nMetric,Value\r\n") && csv.contains("\r\nRequest Count,90.00\r\n"), "{csv}");
    }

    #[test]
    fn ids_are_uuids_and_stable() {
        let id = uuid(&[1, 2], 3);
        assert_eq!(id, uuid(&[1, 2], 3));
        assert_ne!(id, uuid(&[1, 2], 4));
        let parts: Vec<_> = id.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert!(id.as_bytes()[14] == b'8' && matches!(id.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{id}");
    }
}
