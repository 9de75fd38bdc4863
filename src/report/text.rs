//! The report that a person reads first: did it go as asked, what did users feel, what failed and why, and was the client
//! or the server the limit. At most 96 columns; no escape codes unless colour is asked for.
//!
//! This file is long because it is the one page that a person reads, section by section.

use std::fmt::Write as _;

use crate::data::{
    metric::Metric,
    outcome::ErrorClass,
    results::Sample,
    units::{show_count, show_duration, show_size},
};

use super::{
    client,
    escape::{escape, printable, shorten},
    percentile::{Percentile, Stats},
    summary::{Status, Summary},
};

/// Whether escape codes may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// None: a pipe, a file, `NO_COLOR`.
    Off,
    /// Bold, red and yellow.
    On,
}

/// Width that lines are kept to.
const WIDTH: usize = 96;
/// A percentile with fewer samples than this beyond it is a matter of chance.
const BEYOND_MIN: u64 = 10;

/// The whole report, ending in a newline. `samples` are the kept failures.
pub fn render(summary: &Summary, samples: &[Sample], colour: Colour) -> String {
    let mut out = Out { text: String::new(), colour };
    head(&mut out, summary);
    findings(&mut out, summary);
    latency(&mut out, summary);
    streams(&mut out, summary);
    errors(&mut out, summary, samples);
    weighted(&mut out, summary);
    slices(&mut out, summary);
    thresholds(&mut out, summary);
    machine(&mut out, summary);
    notes(&mut out, summary);
    out.text
}

#[derive(Clone, Copy)]
enum Tone {
    Plain,
    Strong,
    Bad,
    Warn,
}

struct Out {
    text: String,
    colour: Colour,
}

impl Out {
    fn line(&mut self, text: &str) {
        self.text.push_str(text.trim_end());
        self.text.push('\n');
    }

    fn toned(&mut self, tone: Tone, text: &str) -> String {
        let code = match (self.colour, tone) {
            (Colour::Off, _) | (_, Tone::Plain) => return text.to_owned(),
            (_, Tone::Strong) => "1",
            (_, Tone::Bad) => "1;31",
            (_, Tone::Warn) => "33",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// `  label        text`, continued under itself at spaces where it is too long.
    fn item(&mut self, label: &str, tone: Tone, text: &str) {
        const INDENT: usize = 15;
        let mut label = label;
        for line in wrap(text, WIDTH - INDENT) {
            let body = self.toned(tone, &line);
            self.line(&format!("  {label:<13}{body}"));
            label = "";
        }
    }

    fn heading(&mut self, text: &str) {
        let text = self.toned(Tone::Strong, text);
        self.line("");
        self.line(&text);
    }
}

/// Text broken at spaces so that no line is longer than `width`, unless a single word is.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        let last = lines.len() - 1;
        if used > 0 && used + 1 + length > width {
            lines.push(word.to_owned());
            used = length;
        } else {
            if used > 0 {
                lines[last].push(' ');
                used += 1;
            }
            lines[last].push_str(word);
            used += length;
        }
    }
    lines
}

fn head(out: &mut Out, s: &Summary) {
    let url = s.plan.urls.first().map_or("", String::as_str);
    let more = match s.plan.urls.len() {
        0 | 1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let title = out.toned(Tone::Strong, &shorten(&printable(url), WIDTH - 20));
    out.line(&format!("{title}{more}"));
    let (tone, verdict) = verdict(s);
    out.item("outcome", tone, &verdict);
    out.item("asked", Tone::Plain, &asked(s));
    out.item("rate", Tone::Plain, &rate(s));
    if let Some(gap) = rate_gap(s) {
        out.item("", Tone::Warn, &gap);
    }
    out.item("requests", Tone::Plain, &requests(s));
    if !s.status_codes.is_empty() {
        let codes: Vec<_> = s.status_codes.iter().map(|(code, &n)| format!("{code}: {}", show_count(n))).collect();
        out.item("status", Tone::Plain, &codes.join(", "));
    }
    out.item("bytes", Tone::Plain, &bytes(s));
    if let Some(goodput) = goodput(s) {
        out.item("goodput", Tone::Plain, &goodput);
    }
    if !s.dataset.format.is_empty() {
        out.item("dataset", Tone::Plain, &dataset(s));
    }
}

/// The three questions of a reader, answered.
fn findings(out: &mut Out, s: &Summary) {
    let f = &s.findings;
    out.heading("in short");
    let tone = if f.limit == "client" { Tone::Warn } else { Tone::Plain };
    out.item("the limit", tone, &f.limit_why);
    out.item("what failed", if s.requests.failed > 0 { Tone::Bad } else { Tone::Plain }, &f.failures);
    out.item("users felt", Tone::Plain, &f.users);
}

/// How the run went, in a sentence.
pub fn verdict_text(s: &Summary) -> String {
    verdict(s).1
}

fn verdict(s: &Summary) -> (Tone, String) {
    let ran = seconds(s.duration_s);
    let held = s.thresholds.iter().filter(|t| !t.ok).count();
    match s.status {
        Status::Partial => {
            let signal = s.signal.as_deref().unwrap_or("a signal");
            (Tone::Warn, format!("PARTIAL: {signal} ended it after {ran}; the figures are of what ran until then"))
        }
        Status::Failed if s.ended_by == "error" => {
            (Tone::Bad, format!("FAILED: ended by an error after {ran} (--max-errors, or it could not go on)"))
        }
        Status::Failed if s.requests.succeeded > 0 => {
            (Tone::Bad, "FAILED: the target received bodies that differ from what was sent".to_owned())
        }
        Status::Failed if s.requests.issued == 0 => (Tone::Bad, format!("FAILED: nothing was issued in {ran}")),
        Status::Failed => (Tone::Bad, format!("FAILED: no request succeeded in {ran}")),
        Status::Complete if held > 0 => {
            (Tone::Bad, format!("complete in {ran}, but {held} of {} --fail-if held", s.thresholds.len()))
        }
        Status::Complete => {
            let why = match s.ended_by.as_str() {
                "duration" => "its duration was over",
                "requests" => "all its requests were issued",
                _ => "the dataset was sent to its end",
            };
            (Tone::Strong, format!("complete in {ran}: {why}"))
        }
    }
}

/// What was asked for, in a sentence.
pub(super) fn asked(s: &Summary) -> String {
    let p = &s.plan;
    let phase = p.phase.as_ref().map_or_else(String::new, |name| format!("phase {name}: "));
    let shape = match p.shape.as_str() {
        "rate" => {
            let rate = p.rate_rps.map_or_else(String::new, number);
            format!("open loop, {rate} requests/s {}", p.arrival.as_deref().unwrap_or(""))
        }
        "users" => format!(
            "{} users, {} turns/s in all",
            p.users.map_or_else(String::new, show_count),
            p.rate_rps.map_or_else(String::new, number)
        ),
        "schedule" => match p.speedup {
            Some(x) if x != 1.0 => format!("open loop, the dataset's schedule, {} times as fast", number(x)),
            _ => "open loop, the dataset's schedule".to_owned(),
        },
        _ => "closed loop".to_owned(),
    };
    let mut text = format!("{phase}{shape}");
    if p.concurrency_asked || p.shape == "closed" {
        let _ = write!(text, ", at most {} in flight", show_count(p.concurrency));
    }
    if p.connections != p.concurrency {
        let _ = write!(text, " over {} connections", show_count(p.connections));
    }
    if let Some(d) = p.duration_s {
        let _ = write!(text, ", {}", seconds(d));
    }
    if let Some(n) = p.requests {
        let _ = write!(text, ", {} requests", show_count(n));
    }
    if let Some(n) = p.sessions {
        let _ = write!(text, ", {} sessions", show_count(n));
    }
    if let Some(n) = p.prefill_concurrency {
        let _ = write!(text, ", at most {} without a first token", show_count(n));
    }
    if let Some(share) = p.cancel_percent {
        let _ = write!(text, ", {} broken off", percent(share));
    }
    if let Some(n) = p.repeat {
        let _ = write!(text, ", {} through the dataset", if n == 1 { "once".to_owned() } else { format!("{n} times") });
    }
    if p.warmup != "none" {
        let _ = write!(text, ", after a warm-up of {} (left out)", p.warmup);
    }
    if p.reuse != "keep-alive" {
        let _ = write!(text, ", connections: {}", p.reuse);
    }
    let random = p.order != "sequential" || p.arrival.as_deref().is_some_and(|a| a != "constant");
    if random {
        let _ = write!(text, ", order {}, seed {}", p.order, p.seed);
    }
    let _ = write!(text, "; {} worker{}", p.workers, if p.workers == 1 { "" } else { "s" });
    text
}

fn rate(s: &Summary) -> String {
    let show = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |r| format!("{}/s", number(r)));
    let mut text = String::new();
    if let Some(asked) = s.rate.asked_rps {
        let _ = write!(text, "{}/s asked, ", number(asked));
    }
    let _ = write!(text, "{} issued, {} succeeded", show(s.rate.achieved_rps), show(s.rate.succeeded_rps));
    if let Some(in_flight) = s.throughput.get("effective_concurrency").and_then(|f| f.value) {
        let _ = write!(text, "; {} in flight on average", number(in_flight));
    }
    text
}

/// Why the achieved rate differs from the asked one; none when it does not.
///
/// Less than 1 % or one request is no difference, nor, of a random arrival process, less than three standard deviations.
pub(super) fn rate_gap(s: &Summary) -> Option<String> {
    let (asked, achieved) = (s.rate.asked_rps?, s.rate.achieved_rps.unwrap_or(0.0));
    let planned = asked * s.issue_window_s;
    let missing = (asked - achieved) * s.issue_window_s;
    let chance = if s.plan.arrival.as_deref() == Some("constant") { 1.5 } else { 3.0 * planned.max(1.0).sqrt() };
    if missing <= chance || missing < planned * 0.01 {
        return None;
    }
    let (full, missed) = (slots_taken(s), show_count(s.requests.missed));
    let cause = if full.is_some() && s.requests.missed > 0 {
        format!("{missed} due requests found no free slot and were dropped as missed")
    } else if let Some(taken) = full {
        taken
    } else if s.client.limited_by_client {
        format!("the client fell behind: {}", s.client.limits.join("; "))
    } else if s.requests.missed > 0 {
        format!("{missed} due requests were overdue and dropped as missed: no slot was free, or the client was late")
    } else if s.connections.established_peak < s.connections.asked && s.requests.failed > 0 {
        "connections failed: see the errors".to_owned()
    } else {
        "the cause is not among those that the client can see".to_owned()
    };
    Some(format!("below what was asked by {:.1} %: {cause}", 100.0 * missing / planned))
}

/// True when every slot was taken for a whole slice of the timeline.
pub(super) fn slots_were_full(s: &Summary) -> bool {
    let fullest = s.throughput.get("effective_concurrency_max").and_then(|f| f.value).unwrap_or(0.0);
    fullest >= 0.9 * s.plan.concurrency as f64
}

/// That every slot was taken at some time, in words: what is due then waits for an answer, not for the client.
fn slots_taken(s: &Summary) -> Option<String> {
    if !slots_were_full(s) {
        return None;
    }
    let cap = if s.plan.concurrency_asked { "-c" } else { "the cap without -c" };
    let slots = match s.plan.concurrency {
        1 => "the one slot".to_owned(),
        n => format!("all {n} slots"),
    };
    let were = if s.plan.concurrency == 1 { "was" } else { "were" };
    Some(format!("{slots} ({cap}) {were} taken: answers came too slowly for this rate"))
}

fn requests(s: &Summary) -> String {
    let r = &s.requests;
    let mut text = format!("{} scheduled = {} issued", show_count(r.scheduled), show_count(r.issued));
    let _ = write!(text, " + {} missed; issued = {} succeeded", show_count(r.missed), show_count(r.succeeded));
    let share =
        s.rate.error_percent.filter(|_| r.failed > 0).map_or_else(String::new, |p| format!(" ({})", percent(p)));
    let _ = write!(text, " + {} failed{share} + {} cut", show_count(r.failed), show_count(r.cut));
    if r.cancelled > 0 {
        let _ = write!(text, " ({} broken off on purpose)", show_count(r.cancelled));
    }
    text
}

fn bytes(s: &Summary) -> String {
    let rate = |name: &str| {
        let value = s.throughput.get(name).and_then(|f| f.value);
        value.map_or_else(String::new, |v| format!(" ({}/s)", show_size(v as u64)))
    };
    let mut text = format!(
        "{} of bodies{}, {} sent, {} received{}",
        show_size(s.bytes.bodies),
        rate("body_throughput"),
        show_size(s.bytes.sent),
        show_size(s.bytes.received),
        rate("received_throughput"),
    );
    for (bytes, path) in [(s.bytes.sent_zero_copy, "zero-copy"), (s.bytes.sent_file, "by sendfile")] {
        if bytes > 0 {
            let _ = write!(text, "; {} {path}, {} copied", show_size(bytes), show_size(s.bytes.sent_copied));
        }
    }
    text
}

fn goodput(s: &Summary) -> Option<String> {
    let g = s.goodput?;
    let limits: Vec<_> = s
        .plan
        .goodput
        .iter()
        .map(|(name, limit)| {
            let unit = Metric::parse(name).map_or("", |m| m.unit().name());
            format!("{name} <= {} {unit}", number(*limit))
        })
        .collect();
    let share = g.fraction.map_or_else(|| "-".to_owned(), |f| percent(100.0 * f));
    let rate = g.rps.map_or_else(|| "-".to_owned(), number);
    Some(format!("{} of the issued ({share}), {rate}/s, met {}", show_count(g.good), limits.join(", ")))
}

fn dataset(s: &Summary) -> String {
    let d = &s.dataset;
    let mut text = format!("{}, {} record{}", d.format, show_count(d.records), if d.records == 1 { "" } else { "s" });
    let _ = write!(text, ", {} of bodies", show_size(d.body_bytes));
    if d.stored_bytes > 0 && d.stored_bytes < d.body_bytes {
        let _ = write!(text, " stored in {}", show_size(d.stored_bytes));
    }
    if !d.key.is_empty() {
        let _ = write!(text, ", cache {} ({})", d.cache, shorten(&d.key, 16));
    }
    if d.skipped > 0 {
        let _ = write!(text, "; {} bad records were skipped", show_count(d.skipped));
    }
    text
}

/// The percentile columns: those that were chosen, or the five that matter.
fn columns(s: &Summary) -> Vec<Percentile> {
    let chosen = s.chosen_percentiles();
    let mut columns =
        if chosen == Percentile::DEFAULT || chosen.is_empty() { Percentile::FIXED[..5].to_vec() } else { chosen };
    // More do not fit the width; the tail is what people look for.
    let surplus = columns.len().saturating_sub(6);
    columns.drain(..surplus);
    columns
}

const LABEL: usize = 24;

fn table_head(columns: &[Percentile], title: &str) -> String {
    let mut line = format!("{title:<LABEL$}{:>9}", "mean");
    for p in columns {
        let _ = write!(line, "{:>9}", p.name());
    }
    let _ = write!(line, "{:>9}{:>9}", "max", "samples");
    line
}

fn table_row(columns: &[Percentile], label: &str, stats: &Stats) -> String {
    // Whole tokens are shown whole; times keep their digits, so that a column lines up.
    let show = |v: Option<f64>| if stats.unit == "tokens" { v.map_or_else(|| "-".to_owned(), number) } else { cell(v) };
    let mut line = format!("  {label:<width$}{:>9}", show(stats.mean), width = LABEL - 2);
    for &p in columns {
        let _ = write!(line, "{:>9}", show(stats.at(p)));
    }
    let _ = write!(line, "{:>9}{:>9}", show(stats.max), show_count(stats.count));
    line
}

fn latency(out: &mut Out, s: &Summary) {
    let columns = columns(s);
    out.heading(&table_head(&columns, "time (ms)"));
    let open = s.plan.is_open_loop();
    for (name, label, wanted) in [
        ("request_latency", "request latency", true),
        ("request_latency_from_schedule", "  from when it was due", open),
        ("adj_request_latency", "  failures as infinite", true),
        ("time_to_first_byte", "first byte", true),
        ("send_time", "send", true),
        ("connect_time", "connect", true),
        ("tls_time", "TLS handshake", true),
    ] {
        if let Some(stats) = s.metrics.get(name).filter(|_| wanted) {
            out.line(&table_row(&columns, label, stats));
        }
    }
    if let Some(note) = s.stats(Metric::RequestLatency).and_then(|stats| few_samples(&columns, stats)) {
        out.line(&format!("  {note}"));
    }
}

/// Names the lowest shown percentile above the median that rests on hardly any samples.
fn few_samples(columns: &[Percentile], stats: &Stats) -> Option<String> {
    let thin = columns.iter().find(|p| **p > Percentile::P50 && p.beyond(stats.count) < BEYOND_MIN)?;
    (stats.count > 0).then(|| {
        format!(
            "{} and above rest on fewer than {BEYOND_MIN} of {} samples: chance decides them; run longer",
            thin.name(),
            show_count(stats.count)
        )
    })
}

fn streams(out: &mut Out, s: &Summary) {
    let columns = columns(s);
    let open = s.plan.is_open_loop();
    let reasoning = s.metrics.get("reasoning_token_count").is_some_and(|r| r.max.unwrap_or(0.0) > 0.0);
    if s.metrics.get("time_to_first_token").is_some() {
        out.heading(&table_head(&columns, "stream (ms)"));
        for (name, label, wanted) in [
            ("time_to_first_token", "first token", true),
            ("time_to_first_token_from_schedule", "  from when it was due", open),
            ("adj_time_to_first_token", "  failures as infinite", true),
            ("time_to_first_output_token", "first output token", reasoning),
            ("time_to_second_token", "second after first", true),
            ("inter_token_latency", "between tokens", true),
            ("inter_chunk_latency", "between events", true),
            ("stream_end_latency", "end of stream", true),
        ] {
            if let Some(stats) = s.metrics.get(name).filter(|_| wanted) {
                out.line(&table_row(&columns, label, stats));
            }
        }
    }
    let rows = [
        ("input_sequence_length", "in a request"),
        ("output_sequence_length", "out a request"),
        ("reasoning_token_count", "  of it reasoning"),
        ("output_token_throughput_per_user", "out a second and user"),
    ];
    if rows[..2].iter().any(|(name, _)| s.metrics.get(name).is_some()) {
        out.heading(&table_head(&columns, "tokens"));
        for (name, label) in rows {
            if let Some(stats) = s.metrics.get(name) {
                out.line(&table_row(&columns, label, stats));
            }
        }
        out.item("tokens/s", Tone::Plain, &token_rates(s));
    }
}

fn token_rates(s: &Summary) -> String {
    let rate = |name: &str| s.throughput.get(name).and_then(|f| f.value).map_or_else(|| "-".to_owned(), number);
    let source = match s.dataset.token_source.as_str() {
        "" => "counts from the server's usage".to_owned(),
        source => format!("counts from the server's usage, those of the input from the {source} where it gives none"),
    };
    let source = match &s.counted_tokens {
        Some(c) if c.requests > 0 => {
            format!("{source}; the outputs of {} by {}, after the run", show_count(c.requests), c.by)
        }
        _ => source,
    };
    format!(
        "{} out, {} in, {} in all; {source}",
        rate("output_token_throughput"),
        rate("input_token_throughput"),
        rate("total_token_throughput")
    )
}

fn errors(out: &mut Out, s: &Summary, samples: &[Sample]) {
    if s.errors.is_empty() {
        return;
    }
    let share = s.rate.error_percent.map_or_else(String::new, |p| format!(", {} of the issued", percent(p)));
    out.heading(&format!("errors: {} failed{share}", show_count(s.requests.failed)));
    for (name, &n) in s.errors.iter() {
        let class = ErrorClass::ALL.into_iter().find(|c| c.name() == name);
        let title = out.toned(Tone::Bad, &format!("{name:<22}"));
        out.line(&format!("  {title}{:>12}", show_count(n)));
        let hint = class.map_or("", ErrorClass::hint);
        if !hint.is_empty() {
            out.line(&format!("    {hint}"));
        }
        if let Some(sample) = samples.iter().find(|sample| Some(sample.class) == class) {
            for line in wrap(&show_sample(sample), WIDTH - 6) {
                out.line(&format!("    {line}"));
            }
        }
    }
}

/// One kept failure in words, its bytes escaped.
pub(super) fn show_sample(sample: &Sample) -> String {
    let mut text = format!("for instance record {} at {}", sample.record, show_duration(sample.at_ns));
    if sample.status > 0 {
        let _ = write!(text, ", status {}", sample.status);
    }
    if !sample.what.is_empty() {
        let _ = write!(text, ", {}", shorten(&printable(&sample.what), 160));
    }
    if !sample.first_bytes.is_empty() {
        let _ = write!(text, ": {}", shorten(&escape(&sample.first_bytes), 160));
    }
    text
}

/// The figures weighted by time, but for those that follow from others.
fn weighted(out: &mut Out, s: &Summary) {
    let Some(table) = &s.time_weighted else { return };
    let heads = ["mean", "min", "p50", "p90", "p95", "p99", "max"].map(|name| format!("{name:>9}")).concat();
    out.heading(&format!("{:<LABEL$}{heads}", "over time"));
    for (name, label) in [
        ("effective_concurrency", "requests in flight"),
        ("effective_prefill_concurrency", "  before the first token"),
        ("effective_decode_concurrency", "  after it"),
        ("effective_prefill_throughput", "tokens/s in"),
        ("effective_decode_throughput", "tokens/s out"),
        ("tokens_in_flight", "tokens in flight"),
    ] {
        if let Some(w) = table.get(name) {
            let values = [w.mean, w.min, w.p50, w.p90, w.p95, w.p99, w.max];
            let cells = values.map(|v| format!("{:>9}", number(v))).concat();
            out.line(&format!("  {label:<width$}{cells}", width = LABEL - 2));
        }
    }
}

fn slices(out: &mut Out, s: &Summary) {
    /// Slices that are shown; all are in `slices.csv`.
    const SHOWN: usize = 40;
    let Some(slices) = &s.slices else { return };
    let streams = slices.rows.iter().any(|r| r.ttft_p99_ms.is_some());
    let last = if streams { ["ttft p99", "itl p99", "tokens/s"] } else { [""; 3] };
    let mut head = format!("{:<LABEL$}", format!("slices of {} s", number(slices.width_s)));
    for name in ["issued", "good/s", "failed", "p50 ms", "p99 ms"].iter().chain(&last) {
        let _ = write!(head, "{name:>9}");
    }
    out.heading(&head);
    for row in slices.rows.iter().take(SHOWN) {
        let ends =
            format!("{} to {} s{}", number(row.from_s), number(row.to_s), if row.complete { "" } else { ", cut" });
        let mut line = format!("  {ends:<width$}{:>9}", show_count(row.issued), width = LABEL - 2);
        let _ = write!(line, "{:>9}{:>9}", cell(row.succeeded_rps), show_count(row.failed));
        let _ = write!(line, "{:>9}{:>9}", cell(row.latency_p50_ms), cell(row.latency_p99_ms));
        if streams {
            let _ = write!(line, "{:>9}{:>9}", cell(row.ttft_p99_ms), cell(row.itl_p99_ms));
            let _ = write!(line, "{:>9}", cell(row.output_tokens_per_s));
        }
        out.line(&line);
    }
    if slices.rows.len() > SHOWN {
        out.line(&format!("  ... and {} more, all in slices.csv", slices.rows.len() - SHOWN));
    }
}

fn thresholds(out: &mut Out, s: &Summary) {
    if s.thresholds.is_empty() {
        return;
    }
    out.heading("fail if");
    for t in &s.thresholds {
        let value = t.value.map_or_else(|| "no samples".to_owned(), |v| format!("{} {}", number(v), t.unit));
        let (tone, word) = if t.ok { (Tone::Plain, "no") } else { (Tone::Bad, "YES: failed") };
        let word = out.toned(tone, word);
        out.line(&format!("  {:<40} {value:>18}   {word}", shorten(&printable(&t.expr), 40)));
    }
}

fn machine(out: &mut Out, s: &Summary) {
    out.heading("machine");
    let c = &s.connections;
    let mut text = format!(
        "{} asked, {} open at the most, {} opened",
        show_count(c.asked),
        show_count(c.established_peak),
        show_count(c.opened)
    );
    if c.failed > 0 {
        let _ = write!(text, ", {} attempts failed", show_count(c.failed));
    }
    if c.resumed > 0 {
        let _ = write!(text, ", {} TLS sessions resumed", show_count(c.resumed));
    }
    if c.resent > 0 {
        let _ = write!(text, ", {} requests sent again on a new one", show_count(c.resent));
    }
    out.item("connections", Tone::Plain, &text);
    // An open loop opens what it needs; a closed loop that ran with fewer did not apply the load that was asked for.
    if !s.plan.is_open_loop() && c.established_peak < c.asked.min(s.requests.issued) {
        out.item("", Tone::Warn, "fewer than asked were ever open: the load was smaller than it says");
    }
    out.item("client", Tone::Plain, &client_cost(s));
    if let Some(lag) = s.stats(Metric::ScheduleLag).filter(|l| l.count > 0) {
        let text = format!(
            "p50 {} us, p99 {} us, max {} us after it was due",
            cell(lag.at(Percentile::P50)),
            cell(lag.at(Percentile::P99)),
            cell(lag.max)
        );
        out.item("start lag", Tone::Plain, &text);
    }
    if let (Some(share), Some(rps)) = (s.client.share_of_ceiling, s.client.ceiling_rps) {
        let cores = if s.plan.workers == 1 { "its core".to_owned() } else { format!("its {} cores", s.plan.workers) };
        let text = format!(
            "{:.0} % of the {}/s that {cores} reached with such bodies (ringload calibrate)",
            100.0 * share,
            show_count(rps as u64)
        );
        out.item("ceiling", Tone::Plain, &text);
    }
    let (tone, verdict) = if s.client.limited_by_client {
        let why = s.client.limits.join("; ");
        let busy = s.client.busy_max.is_some_and(|b| b > client::BUSY_MAX);
        match slots_taken(s).filter(|_| !busy && s.plan.is_open_loop()) {
            Some(taken) => (Tone::Warn, format!("the slots, not the client's speed: {why}; {taken}")),
            None => (Tone::Warn, format!("the client, not the server, may have been the limit: {why}")),
        }
    } else {
        (Tone::Plain, "no sign that the client was the limit".to_owned())
    };
    out.item("limit", tone, &verdict);
    if let Some(t) = &s.target {
        let (tone, text) = target(t);
        out.item("target", tone, &text);
    }
}

fn client_cost(s: &Summary) -> String {
    let c = &s.client;
    let mut text = c
        .cpu_us_per_request
        .map_or_else(|| "nothing was issued".to_owned(), |us| format!("{} us of CPU a request", number(us)));
    if let (Some(busy), Some(most)) = (c.busy, c.busy_max) {
        let _ = write!(text, ", busy {:.0} % of the time (busiest worker {:.0} %)", 100.0 * busy, 100.0 * most);
    }
    if !c.cores.is_empty() {
        let cores: Vec<_> = c.cores.iter().map(u32::to_string).collect();
        let _ = write!(text, ", on cores {}", shorten(&cores.join(","), 40));
    }
    let t = &c.totals;
    for (n, what) in [
        (t.sq_full, "times the submission queue was full"),
        (t.cq_overflow, "completion queue overflows"),
        (t.buffers_out, "times the receive buffers ran out"),
        (t.stale_completions, "stale completions"),
        (t.cold_slices, "bodies that waited for the disk"),
        (t.major_faults, "times a worker stood still for the disk"),
        (t.encoded_streams, "encoded streams that could not be looked into"),
    ] {
        if n > 0 {
            let _ = write!(text, "; {} {what}", show_count(n));
        }
    }
    text
}

fn target(t: &super::summary::Target) -> (Tone, String) {
    let cpu = t.cpu_us_per_request.map_or_else(String::new, |us| format!(", {} us of CPU each", number(us)));
    let mut text = format!("the built-in target answered {} requests{cpu}", show_count(t.requests));
    if t.verified == 0 {
        return (Tone::Plain, text);
    }
    if t.wrong == 0 {
        let _ = write!(text, "; all {} bodies arrived as they are stored", show_count(t.verified));
        return (Tone::Plain, text);
    }
    let _ = write!(text, "; {} of {} bodies DIFFER from what is stored", show_count(t.wrong), show_count(t.verified));
    (Tone::Bad, text)
}

fn notes(out: &mut Out, s: &Summary) {
    if s.notes.is_empty() {
        return;
    }
    out.heading("notes");
    for note in &s.notes {
        for (i, line) in wrap(&printable(note), WIDTH - 4).iter().enumerate() {
            out.line(&format!("  {} {line}", if i == 0 { "-" } else { " " }));
        }
    }
}

/// A table cell: about four digits; `-` without samples.
pub(super) fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), digits)
}

fn digits(v: f64) -> String {
    match v.abs() {
        0.0 => "0".to_owned(),
        s if s < 9.9995 => format!("{v:.3}"),
        s if s < 99.995 => format!("{v:.2}"),
        s if s < 999.95 => format!("{v:.1}"),
        s => format!("{}{}", if v < 0.0 { "-" } else { "" }, show_count(s.round() as u64)),
    }
}

/// A value for people: about four digits, thousands marked, a whole number without a point.
pub(super) fn number(v: f64) -> String {
    if v == v.trunc() && v.abs() < 1000.0 { format!("{v:.0}") } else { digits(v) }
}

fn percent(p: f64) -> String {
    if p > 0.0 && p < 0.01 { "under 0.01 %".to_owned() } else { format!("{} %", number(p)) }
}

fn seconds(s: f64) -> String {
    show_duration((s * 1e9).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::{
            RecordId,
            plan::{Arrival, Segment, Shape},
            results::{EndedBy, TargetCounts},
            units::SECOND,
        },
        report::fixture,
    };

    fn show(summary: &Summary, samples: &[Sample]) -> String {
        let text = render(summary, samples, Colour::Off);
        assert!(!text.contains('\x1b'), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf "), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{} columns: {line}", line.chars().count());
        }
        text
    }

    #[test]
    fn a_run_answers_what_people_ask_first() {
        let (summary, merged) = fixture::summary();
        let text = show(&summary, &merged.samples);
        for part in [
            "p99",
            "time (ms)",
            "100 scheduled = 100 issued + 0 missed",
            "90 succeeded + 10 failed (10 %)",
            "http_5xx",
            "\\x1b[31m\\xff",
            "no sign that the client was the limit",
            "failures as infinite",
            "fewer than 10 of 90 samples",
            "us of CPU a request",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains("stream (ms)"), "{text}");
    }

    #[test]
    fn colour_only_when_asked() {
        let (summary, merged) = fixture::summary();
        assert!(render(&summary, &merged.samples, Colour::On).contains("\x1b[1m"));
    }

    #[test]
    fn streams_have_their_own_table() {
        let (summary, merged) = fixture::summarize(&fixture::plan(), &fixture::streaming());
        let text = show(&summary, &merged.samples);
        for part in ["first token", "between tokens", "between events", "out a request", "tokens/s"] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn a_rate_that_was_not_reached_says_why() {
        let mut plan = fixture::plan();
        let flat = Segment { duration_ns: SECOND, from: 100.0, to: 100.0 };
        plan.shape = Shape::Rate { arrival: Arrival::Constant, curve: vec![flat] };
        let mut result = fixture::result();
        for w in &mut result.workers {
            w.timeline.at(0).in_flight_ns = 2 * SECOND;
        }
        let (summary, _) = fixture::summarize(&plan, &result);
        let text = show(&summary, &[]);
        assert!(text.contains("100/s asked") && text.contains("all 4 slots (-c) were taken"), "{text}");
        // Reached within 1 %: nothing to explain.
        let mut reached = summary;
        reached.rate.achieved_rps = Some(99.5);
        assert_eq!(rate_gap(&reached), None);
    }

    #[test]
    fn what_went_wrong_stands_at_the_top() {
        let plan = fixture::plan();
        let mut result = fixture::result();
        result.ended_by = EndedBy::Terminate;
        let text = show(&fixture::summarize(&plan, &result).0, &[]);
        assert!(text.lines().nth(1).unwrap().contains("PARTIAL: SIGTERM"), "{text}");
        result.ended_by = EndedBy::Requests;
        result.target = Some(TargetCounts { requests: 100, verified: 100, wrong: 3, ..TargetCounts::default() });
        let text = show(&fixture::summarize(&plan, &result).0, &[]);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("FAILED") && words.contains("3 of 100 bodies DIFFER"), "{text}");
    }

    #[test]
    fn nothing_from_outside_breaks_the_terminal() {
        let (mut summary, _) = fixture::summary();
        summary.notes.push("bad \x1b[2J note ".repeat(30));
        summary.plan.urls = vec!["http://h/\x1b[2J".into(), "http://b/".into()];
        let mut sample = fixture::sample(ErrorClass::Http5xx, RecordId(1));
        sample.what = "why\x07".into();
        show(&summary, &[sample]);
    }

    #[test]
    fn values_have_about_four_digits() {
        for (v, text) in [(0.0, "0"), (0.1234, "0.123"), (12.345, "12.35"), (123.45, "123.5"), (12345.6, "12,346")] {
            assert_eq!(number(v), text);
        }
        assert_eq!((cell(None), cell(Some(99.0))), ("-".to_owned(), "99.00".to_owned()));
    }
}
