//! `report.html`: the whole report as one file. No script, nothing from the network; light or dark as the reader's system
//! is; readable from a phone's width up. Charts are [`super::svg`].
//!
//! This file is long because it is one page, section by section.

use std::fmt::Write as _;

use crate::data::{
    metric::{Metric, Series},
    results::{LATENCY_CELLS, TimelineRow, latency_cell_floor_ns},
    units::{SECOND, show_count},
};

use super::{
    escape::{escape, html, shorten},
    merge::Merged,
    percentile::{Percentile, Stats, values_at_ranks},
    summary::{Status, Summary},
    svg::{Axis, Chart, count_label, seconds_label, time_label},
    text,
};

/// Slices that a chart over time shows at most; more are joined.
const SLICES_MAX: usize = 120;
/// Bars of a distribution.
const BARS: usize = 40;
/// Bytes of a kept failure that are shown.
const SAMPLE_CHARS: usize = 600;

/// The page.
pub fn page(summary: &Summary, merged: &Merged) -> String {
    let mut out = String::with_capacity(256 << 10);
    let url = summary.plan.urls.first().map_or("", String::as_str);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>ringload: {}</title><style>{STYLE}</style></head><body>\n",
        html(url)
    );
    head(&mut out, summary);
    tiles(&mut out, summary);
    out.push_str("<main class=\"charts\">");
    over_time(&mut out, summary, merged);
    spectrum(&mut out, summary, merged);
    distributions(&mut out, merged);
    out.push_str("</main>\n");
    errors(&mut out, summary, merged);
    thresholds(&mut out, summary);
    metrics(&mut out, summary);
    weighted(&mut out, summary);
    slice_table(&mut out, summary);
    client(&mut out, summary);
    facts(&mut out, summary);
    out.push_str("</body></html>\n");
    out
}

fn head(out: &mut String, s: &Summary) {
    let class = match s.status {
        Status::Complete if s.thresholds.iter().all(|t| t.ok) => "good",
        Status::Partial => "warn",
        _ => "bad",
    };
    let urls: Vec<_> = s.plan.urls.iter().take(4).map(|u| html(u)).collect();
    let _ = write!(
        out,
        "<header><p class=\"status {class}\">{}</p><h1>{}</h1><p>Asked: {}.</p><p class=\"quiet\">{} to {}, ringload {}</p>",
        html(&text::verdict_text(s)),
        urls.join("<br>"),
        html(&text::asked(s)),
        html(&s.started_at),
        html(&s.ended_at),
        html(&s.version)
    );
    if let Some(gap) = text::rate_gap(s) {
        let _ = write!(out, "<p class=\"status warn\">The rate was {}</p>", html(&gap));
    }
    let f = &s.findings;
    out.push_str("<dl class=\"findings\">");
    for (question, answer, warn) in [
        ("What was the limit?", &f.limit_why, f.limit == "client"),
        ("What failed, and why?", &f.failures, s.requests.failed > 0),
        ("What did users feel?", &f.users, false),
    ] {
        let class = if warn { " class=\"warn\"" } else { "" };
        let _ = write!(out, "<dt>{question}</dt><dd{class}>{}</dd>", html(answer));
    }
    out.push_str("</dl>");
    out.push_str("</header>\n");
}

fn tiles(out: &mut String, s: &Summary) {
    let ms = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{} ms", text::number(v)));
    let per_s = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{}/s", text::number(v)));
    let latency = s.stats(Metric::RequestLatency);
    let at = |p| ms(latency.and_then(|l| l.at(p)));
    let asked = s.rate.asked_rps.map_or_else(String::new, |r| format!("{}/s asked", text::number(r)));
    let r = &s.requests;
    let mut tiles = vec![
        ("issued", per_s(s.rate.achieved_rps), asked),
        ("succeeded", per_s(s.rate.succeeded_rps), format!("{} requests", show_count(r.succeeded))),
        (
            "failed",
            s.rate.error_percent.map_or_else(|| "-".to_owned(), |p| format!("{} %", text::number(p))),
            format!("{} failed, {} cut, {} missed", show_count(r.failed), show_count(r.cut), show_count(r.missed)),
        ),
        ("latency p50", at(Percentile::P50), format!("mean {}", ms(latency.and_then(|l| l.mean)))),
        ("latency p99", at(Percentile::P99), format!("max {}", ms(latency.and_then(|l| l.max)))),
    ];
    if let Some(ttft) = s.stats(Metric::TimeToFirstToken) {
        tiles.push(("first token p99", ms(ttft.at(Percentile::P99)), format!("p50 {}", ms(ttft.at(Percentile::P50)))));
    }
    if let Some(goodput) = s.goodput {
        let share = goodput.fraction.map_or_else(|| "-".to_owned(), |f| format!("{} %", text::number(100.0 * f)));
        tiles.push(("goodput", share, per_s(goodput.rps)));
    }
    let busy = s.client.busy_max.map_or_else(String::new, |b| format!("busiest worker {:.0} %", 100.0 * b));
    let cpu = s.client.cpu_us_per_request.map_or_else(|| "-".to_owned(), |c| format!("{} us", text::number(c)));
    tiles.push(("client CPU a request", cpu, busy));
    out.push_str("<section class=\"tiles\">");
    for (name, value, more) in tiles {
        let _ = write!(out, "<div><span>{name}</span><b>{}</b><span>{}</span></div>", html(&value), html(&more));
    }
    out.push_str("</section>\n");
}

fn figure(out: &mut String, title: &str, about: &str, chart: Chart) {
    let _ =
        writeln!(out, "<figure><figcaption>{title}<small>{about}</small></figcaption>{}</figure>", chart.finish(title));
}

/// A slice of the timeline as it is drawn: begin and end in seconds, and what happened in it.
struct Slice {
    from: f64,
    to: f64,
    row: TimelineRow,
}

impl Slice {
    fn per_second(&self, count: u64) -> f64 {
        count as f64 / (self.to - self.from)
    }
}

/// At most [`SLICES_MAX`] slices. The last one ends where the run ended; one too short for a rate joins the one before.
fn slices(merged: &Merged, duration_s: f64) -> Vec<Slice> {
    let rows = merged.timeline.rows();
    let joined = rows.len().div_ceil(SLICES_MAX).max(1);
    let width = merged.timeline.width_ns as f64 / SECOND as f64;
    let mut slices: Vec<Slice> = Vec::new();
    for (i, chunk) in rows.chunks(joined).enumerate() {
        let from = (i * joined) as f64 * width;
        let full = chunk.len() as f64 * width;
        let length = (duration_s - from).min(full);
        let mut row = TimelineRow::default();
        chunk.iter().for_each(|r| row.add(r));
        match slices.last_mut() {
            Some(last) if length < 0.3 * full => {
                last.row.add(&row);
                last.to += length.max(0.0);
            }
            // Without a measured end the slice is as long as its width.
            _ => slices.push(Slice { from, to: from + if length > 0.0 { length } else { full }, row }),
        }
    }
    slices
}

fn over_time(out: &mut String, s: &Summary, merged: &Merged) {
    let slices = slices(merged, s.duration_s);
    let Some(end) = slices.last().map(|s| s.to) else { return };
    let time = || Axis::time(end, "seconds since the start", seconds_label);
    let steps = |f: &dyn Fn(&Slice) -> f64| slices.iter().map(|s| (s.from, s.to, f(s))).collect::<Vec<_>>();
    let highest = |steps: &[(f64, f64, f64)]| steps.iter().map(|s| s.2).fold(0.0, f64::max);

    let issued = steps(&|s| s.per_second(s.row.issued));
    let succeeded = steps(&|s| s.per_second(s.row.succeeded));
    let failed = steps(&|s| s.per_second(s.row.failed));
    let top = highest(&issued).max(highest(&succeeded)).max(s.rate.asked_rps.unwrap_or(0.0));
    let mut chart = Chart::new(time(), Axis::from_zero(top, "requests/s", count_label));
    if let Some(asked) = s.rate.asked_rps {
        chart.level("s4", "asked (mean)", asked);
    }
    chart.steps("s2", "issued", &issued);
    chart.steps("s1", "succeeded", &succeeded);
    if s.requests.failed > 0 {
        chart.steps("s3", "failed", &failed);
    }
    figure(out, "Asked against achieved", "requests issued and ended, a second", chart);

    heat_map(out, &slices, end);

    let in_flight = steps(&|s| s.row.in_flight_ns as f64 / 1e9 / (s.to - s.from));
    if highest(&in_flight) > 0.0 {
        let cap = s.plan.concurrency as f64;
        let capped = s.plan.concurrency_asked || s.plan.shape == "closed";
        let near = capped && highest(&in_flight) > cap / 4.0;
        let top = if near { highest(&in_flight).max(cap) } else { highest(&in_flight) };
        let mut chart = Chart::new(time(), Axis::from_zero(top, "requests", count_label));
        chart.steps("s1", "in flight", &in_flight);
        if near {
            chart.level("s4", "at most", cap);
        }
        figure(out, "In flight", "mean number of requests between start and end", chart);
    }

    let bytes = steps(&|s| s.per_second(s.row.body_bytes));
    let received = steps(&|s| s.per_second(s.row.received_bytes));
    let mut chart =
        Chart::new(time(), Axis::from_zero(highest(&bytes).max(highest(&received)), "bytes/s", count_label));
    chart.steps("s1", "bodies sent", &bytes);
    chart.steps("s2", "received", &received);
    figure(out, "Bytes", "body bytes of the requests issued, bytes received, a second", chart);

    let tokens = steps(&|s| s.per_second(s.row.output_tokens));
    if highest(&tokens) > 0.0 {
        let mut chart = Chart::new(time(), Axis::from_zero(highest(&tokens), "tokens/s", count_label));
        chart.steps("s1", "output tokens", &tokens);
        figure(out, "Output tokens", "of the requests that ended, a second", chart);
    }
}

/// Latency of the successes over time: a column a slice, a row a half octave, the darker the more requests.
fn heat_map(out: &mut String, slices: &[Slice], end: f64) {
    let used = |cell: usize| slices.iter().any(|s| s.row.cells[cell] > 0);
    let Some(low) = (0..LATENCY_CELLS).find(|&c| used(c)) else { return };
    let high = (0..LATENCY_CELLS).rfind(|&c| used(c)).unwrap_or(low);
    let (floor, ceiling) = (latency_cell_floor_ns(low), latency_cell_floor_ns(high + 1));
    let mut chart = Chart::new(
        Axis::time(end, "seconds since the start", seconds_label),
        Axis::log(floor, ceiling, "latency", time_label),
    );
    for slice in slices {
        // Each column by its own total: the spread stays visible where the rate changes.
        let total: u64 = slice.row.cells.iter().map(|&c| u64::from(c)).sum();
        for cell in low..=high {
            let count = slice.row.cells[cell];
            if count == 0 {
                continue;
            }
            let (a, b) = (latency_cell_floor_ns(cell), latency_cell_floor_ns(cell + 1));
            // A lone outlier among thousands must still be seen.
            let strength = 0.15 + 0.85 * (f64::from(count) / total as f64).sqrt();
            let title = format!(
                "{} of {} requests from {} to {}, at {:.1} s",
                show_count(u64::from(count)),
                show_count(total),
                time_label(a),
                time_label(b),
                slice.from
            );
            chart.cell("heat", (slice.from, slice.to), (a, b), strength, &title);
        }
    }
    figure(out, "Latency over time", "share of a column's requests by latency: the stronger, the more", chart);
}

/// Points of a percentile spectrum: `(decades of 1/(1-p), value)`.
fn spectrum_points(series: &Series) -> Vec<(f64, f64)> {
    const STEPS_PER_DECADE: f64 = 20.0;
    let decades = (series.count.max(1) as f64).log10();
    let steps = (decades * STEPS_PER_DECADE).ceil() as u32;
    let at: Vec<f64> = (0..=steps).map(|i| (f64::from(i) / STEPS_PER_DECADE).min(decades)).collect();
    let rank = |x: f64| {
        let share = 1.0 - 10f64.powf(-x);
        ((share * series.count as f64).ceil() as u64).clamp(1, series.count.max(1))
    };
    let mut ranks: Vec<u64> = at.iter().map(|&x| rank(x)).collect();
    // The line ends at the maximum, which a run of n samples has at 1 - 1/n.
    if let Some(last) = ranks.last_mut() {
        *last = series.count;
    }
    let values = values_at_ranks(series, &ranks);
    at.into_iter().zip(values).filter_map(|(x, v)| v.map(|v| (x, v as f64))).collect()
}

fn spectrum(out: &mut String, s: &Summary, merged: &Merged) {
    let open = s.plan.is_open_loop();
    let lines = [
        ("s1", "from the start", Metric::RequestLatency, true),
        ("s2", "from when it was due", Metric::RequestLatencyFromSchedule, open),
        ("s5", "first token", Metric::TimeToFirstToken, true),
    ];
    let lines: Vec<_> = lines
        .into_iter()
        .filter(|(_, _, m, wanted)| *wanted && merged.series(*m).count > 0)
        .map(|(class, name, m, _)| (class, name, spectrum_points(merged.series(m))))
        .collect();
    let all = || lines.iter().flat_map(|(_, _, points)| points.iter());
    let low = all().map(|p| p.1).fold(f64::INFINITY, f64::min).max(1_000.0);
    let high = all().map(|p| p.1).fold(0.0, f64::max);
    if high <= 0.0 {
        return;
    }
    let decades = all().map(|p| p.0).fold(0.0, f64::max);
    let mut ticks = vec![(0.0, "0".to_owned())];
    for p in ["50", "90", "99", "99.9", "99.99", "99.999", "99.9999", "99.99999"] {
        let share = p.parse::<f64>().unwrap_or(0.0) / 100.0;
        let x = -(1.0 - share).log10();
        if x <= decades + 1e-6 {
            ticks.push((x, p.to_owned()));
        }
    }
    let y = if high / low > 10.0 {
        Axis::log(low, high, "latency", time_label)
    } else {
        Axis::from_zero(high, "latency", time_label)
    };
    let mut chart = Chart::new(Axis::with_ticks(0.0, decades.max(0.3), "percentile", ticks), y);
    for (class, name, points) in &lines {
        chart.line(class, name, points);
    }
    figure(out, "Percentile spectrum", "latency that a share of the successes did not exceed", chart);
}

fn distributions(out: &mut String, merged: &Merged) {
    for (metric, title, about) in [
        (Metric::RequestLatency, "Request latency", "number of successes by latency"),
        (Metric::TimeToFirstToken, "Time to first token", "number of streams by the time to the first content"),
        (Metric::InterTokenLatency, "Inter-token latency", "number of streams by their mean time between tokens"),
        (Metric::InterChunkLatency, "Inter-chunk latency", "number of gaps between content events"),
    ] {
        let series = merged.series(metric);
        if series.count > 0 {
            figure(out, title, about, distribution(series));
        }
    }
}

/// Bars of equal width on a log scale, with the median and the 99th percentile marked.
fn distribution(series: &Series) -> Chart {
    let low = (series.min.max(100)) as f64;
    let high = (series.max as f64).max(low * 1.1);
    let step = (high / low).powf(1.0 / BARS as f64);
    let mut bars = [0u64; BARS];
    for point in series.hist.iter_recorded() {
        let value = (point.value_iterated_to() as f64).clamp(low, high);
        let bar = ((value / low).ln() / step.ln()) as usize;
        bars[bar.min(BARS - 1)] += point.count_at_value();
    }
    let most = bars.iter().max().copied().unwrap_or(0);
    let mut chart = Chart::new(
        Axis::log(low, high, "time, log scale", time_label),
        Axis::from_zero(most as f64, "count", count_label),
    );
    for (i, &count) in bars.iter().enumerate().filter(|&(_, &n)| n > 0) {
        let (a, b) = (low * step.powi(i as i32), low * step.powi(i as i32 + 1));
        let title = format!("{} from {} to {}", show_count(count), time_label(a), time_label(b));
        chart.bar("b1", (a, b), count as f64, &title);
    }
    let p99 = Percentile::P99.rank(series.count);
    let values = values_at_ranks(series, &[Percentile::P50.rank(series.count), p99]);
    for (value, name) in values.into_iter().zip(["p50", "p99"]) {
        if let Some(value) = value {
            chart.mark_x(value as f64, name);
        }
    }
    chart
}

fn errors(out: &mut String, s: &Summary, merged: &Merged) {
    if s.errors.is_empty() {
        return;
    }
    let most = s.errors.iter().map(|(_, &n)| n).max().unwrap_or(1);
    out.push_str("<section><h2>Errors</h2><div class=\"wide\"><table><tr><th>class<th class=\"n\">count<th>share<th>what to do</tr>");
    for (name, &n) in s.errors.iter() {
        let hint =
            crate::data::outcome::ErrorClass::ALL.into_iter().find(|c| c.name() == name).map_or("", |c| c.hint());
        let _ = write!(
            out,
            "<tr><td>{}<td class=\"n\">{}<td><i class=\"meter\" style=\"width:{:.1}%\"></i><td>{}</tr>",
            html(name),
            show_count(n),
            100.0 * n as f64 / most as f64,
            html(hint)
        );
    }
    out.push_str("</table></div>");
    for (i, sample) in merged.samples.iter().enumerate() {
        // The first of each class: the rest is in errors.jsonl.
        if i > 0 && merged.samples[i - 1].class == sample.class {
            continue;
        }
        let mut what =
            format!("{}: record {} at {:.3} s", sample.class.name(), sample.record, sample.at_ns as f64 / 1e9);
        if sample.status > 0 {
            let _ = write!(what, ", status {}", sample.status);
        }
        if !sample.what.is_empty() {
            let _ = write!(what, ", {}", sample.what);
        }
        let bytes = shorten(&escape(&sample.first_bytes), SAMPLE_CHARS);
        let _ = write!(out, "<p>{}</p>", html(&what));
        if !bytes.is_empty() {
            let _ = write!(out, "<pre>{}</pre>", html(&bytes));
        }
    }
    out.push_str("</section>\n");
}

fn thresholds(out: &mut String, s: &Summary) {
    if s.thresholds.is_empty() {
        return;
    }
    out.push_str(
        "<section><h2>Fail if</h2><div class=\"wide\"><table><tr><th>condition<th class=\"n\">value<th>held</tr>",
    );
    for t in &s.thresholds {
        let value = t.value.map_or_else(|| "no samples".to_owned(), |v| format!("{} {}", text::number(v), t.unit));
        let held = if t.ok { "no" } else { "<b class=\"bad\">yes: failed</b>" };
        let _ = write!(out, "<tr><td>{}<td class=\"n\">{}<td>{held}</tr>", html(&t.expr), html(&value));
    }
    out.push_str("</table></div></section>\n");
}

fn metrics(out: &mut String, s: &Summary) {
    let percentiles: Vec<Percentile> =
        s.metrics.0.first().map_or_else(Vec::new, |(_, m)| m.percentiles.iter().map(|(p, _)| *p).collect());
    out.push_str("<section><h2>Figures</h2><div class=\"wide\"><table><tr><th>metric<th>unit<th class=\"n\">count");
    for name in ["mean", "std", "min"] {
        let _ = write!(out, "<th class=\"n\">{name}");
    }
    for p in &percentiles {
        let _ = write!(out, "<th class=\"n\">{}", p.name());
    }
    out.push_str("<th class=\"n\">max</tr>");
    for (name, stats) in s.metrics.iter() {
        metric_row(out, name, stats, &percentiles);
    }
    out.push_str("</table></div><div class=\"wide\"><table><tr><th>over the run<th class=\"n\">value<th>unit</tr>");
    for (name, value) in s.throughput.iter() {
        let shown = text::cell(value.value);
        let _ = write!(out, "<tr><td>{}<td class=\"n\">{}<td>{}</tr>", html(name), html(&shown), html(&value.unit));
    }
    out.push_str("</table></div></section>\n");
}

fn weighted(out: &mut String, s: &Summary) {
    let Some(table) = &s.time_weighted else { return };
    out.push_str("<section><h2>Weighted by time</h2><div class=\"wide\"><table><tr><th>figure<th>unit");
    for name in ["mean", "std", "min", "p50", "p90", "p95", "p99", "max"] {
        let _ = write!(out, "<th class=\"n\">{name}");
    }
    out.push_str("</tr>");
    for (name, w) in table.iter() {
        let _ = write!(out, "<tr><td>{}<td>{}", html(name), html(&w.unit));
        for value in [w.mean, w.std, w.min, w.p50, w.p90, w.p95, w.p99, w.max] {
            let _ = write!(out, "<td class=\"n\">{}", text::number(value));
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div></section>\n");
}

fn slice_table(out: &mut String, s: &Summary) {
    /// Slices that are shown; all are in `slices.csv`.
    const SHOWN: usize = 500;
    let Some(slices) = &s.slices else { return };
    let _ = write!(
        out,
        "<section><h2>Slices of {} s</h2><div class=\"wide\"><table><tr><th class=\"n\">seconds",
        text::number(slices.width_s)
    );
    for name in ["issued", "succeeded/s", "failed", "p50 ms", "p99 ms", "ttft p99 ms", "itl p99 ms", "output tokens/s"]
    {
        let _ = write!(out, "<th class=\"n\">{name}");
    }
    out.push_str("</tr>");
    for r in slices.rows.iter().take(SHOWN) {
        let cut = if r.complete { "" } else { " (cut by the end)" };
        let _ = write!(out, "<tr><td class=\"n\">{} to {}{cut}", text::number(r.from_s), text::number(r.to_s));
        let counts = [show_count(r.issued), text::cell(r.succeeded_rps), show_count(r.failed)];
        let figures = [r.latency_p50_ms, r.latency_p99_ms, r.ttft_p99_ms, r.itl_p99_ms, r.output_tokens_per_s];
        for value in counts.into_iter().chain(figures.map(text::cell)) {
            let _ = write!(out, "<td class=\"n\">{value}");
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div></section>\n");
}

fn metric_row(out: &mut String, name: &str, stats: &Stats, percentiles: &[Percentile]) {
    let _ = write!(out, "<tr><td>{}<td>{}<td class=\"n\">{}", html(name), html(&stats.unit), show_count(stats.count));
    let values = [stats.mean, stats.std, stats.min].into_iter();
    let values = values.chain(percentiles.iter().map(|p| stats.at(*p))).chain([stats.max]);
    for value in values {
        let _ = write!(out, "<td class=\"n\">{}", text::cell(value));
    }
    out.push_str("</tr>");
}

fn client(out: &mut String, s: &Summary) {
    let verdict = if s.client.limited_by_client {
        format!("The client may have been the limit: {}.", s.client.limits.join("; "))
    } else {
        "No sign that the client was the limit.".to_owned()
    };
    let _ = write!(out, "<section><h2>Client</h2><p>{}</p><div class=\"wide\"><table><tr>", html(&verdict));
    let heads = [
        "worker",
        "core",
        "issued",
        "busy %",
        "CPU us a request",
        "lag p50 us",
        "lag p99 us",
        "lag max us",
        "longest batch us",
        "buffers out",
        "queue full",
        "overflow",
        "stale",
    ];
    for name in heads {
        let _ = write!(out, "<th class=\"n\">{name}");
    }
    out.push_str("</tr>");
    for w in &s.client.workers {
        let core = w.core.map_or_else(|| "-".to_owned(), |c| c.to_string());
        let _ = write!(
            out,
            "<tr><td class=\"n\">{}<td class=\"n\">{core}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}",
            w.worker,
            show_count(w.issued),
            text::cell(w.busy.map(|b| 100.0 * b)),
            text::cell(w.cpu_us_per_request)
        );
        for value in [w.lag_p50_us, w.lag_p99_us, w.lag_max_us, Some(w.counters.longest_batch_us)] {
            let _ = write!(out, "<td class=\"n\">{}", text::cell(value));
        }
        let c = &w.counters;
        for count in [c.buffers_out, c.sq_full, c.cq_overflow, c.stale_completions] {
            let _ = write!(out, "<td class=\"n\">{}", show_count(count));
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div></section>\n");
}

fn facts(out: &mut String, s: &Summary) {
    let c = &s.connections;
    let d = &s.dataset;
    let mut rows = vec![
        (
            "connections".to_owned(),
            format!(
                "{} asked, {} open at the most, {} opened, {} attempts failed",
                show_count(c.asked),
                show_count(c.established_peak),
                show_count(c.opened),
                show_count(c.failed)
            ),
        ),
        (
            "status codes".to_owned(),
            s.status_codes.iter().map(|(code, n)| format!("{code}: {}", show_count(*n))).collect::<Vec<_>>().join(", "),
        ),
        (
            "dataset".to_owned(),
            format!(
                "{} {} records, {} body bytes, cache {} {}",
                d.format,
                show_count(d.records),
                show_count(d.body_bytes),
                d.cache,
                d.key
            ),
        ),
        (
            "bytes".to_owned(),
            format!(
                "{} of bodies, {} sent ({} zero-copy, {} by sendfile), {} received",
                show_count(s.bytes.bodies),
                show_count(s.bytes.sent),
                show_count(s.bytes.sent_zero_copy),
                show_count(s.bytes.sent_file),
                show_count(s.bytes.received)
            ),
        ),
        ("order, seed".to_owned(), format!("{}, {}", s.plan.order, s.plan.seed)),
    ];
    if let Some(t) = &s.target {
        rows.push((
            "target".to_owned(),
            format!(
                "{} requests, {} of {} bodies wrong",
                show_count(t.requests),
                show_count(t.wrong),
                show_count(t.verified)
            ),
        ));
    }
    rows.extend(s.notes.iter().map(|n| ("note".to_owned(), n.clone())));
    out.push_str("<section><h2>Run</h2><div class=\"wide\"><table>");
    for (name, value) in rows.iter().filter(|(_, v)| !v.is_empty()) {
        let _ = write!(out, "<tr><th>{}<td>{}</tr>", html(name), html(value));
    }
    out.push_str("</table></div></section>\n");
}

/// Colours were checked for contrast against both backgrounds; no meaning rests on colour alone.
const STYLE: &str = "\
:root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1b1c1e;--quiet:#5d6068;--line:#e3e4e8;--s1:#2a6fd0;--s2:#c2620c;\
--s3:#c8322b;--s4:#6d7078;--s5:#137d5b;--good:#137d5b;--warn:#8f5a00;--bad:#b4231c}\
@media(prefers-color-scheme:dark){:root{--bg:#131416;--card:#1b1c1f;--ink:#e9eaec;--quiet:#a2a5ad;--line:#303238;--s1:#6ba6f5;--s2:#ee9a4d;\
--s3:#f07a72;--s4:#9a9da6;--s5:#4cc39a;--good:#4cc39a;--warn:#e3b04b;--bad:#f07a72}}\
*{box-sizing:border-box}body{margin:0 auto;padding:1.2rem;max-width:78rem;background:var(--bg);color:var(--ink);\
font:15px/1.45 system-ui,-apple-system,'Segoe UI',sans-serif}\
h1{font-size:1.25rem;margin:.3rem 0;overflow-wrap:anywhere;font-weight:600}h2{font-size:1.05rem;margin:1.6rem 0 .5rem}p{margin:.3rem 0}\
.quiet,figcaption small{color:var(--quiet)}.status{border-left:4px solid var(--quiet);padding:.15rem .6rem;font-weight:600}\
.good{border-color:var(--good);color:var(--good)}.warn{border-color:var(--warn);color:var(--warn)}.bad{border-color:var(--bad);color:var(--bad)}\
.findings{display:grid;grid-template-columns:max-content 1fr;gap:.25rem .9rem;margin:.8rem 0}.findings dt{color:var(--quiet)}.findings dd{margin:0}\
@media(max-width:36rem){.findings{grid-template-columns:1fr}}\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.6rem;margin:1rem 0}\
.tiles div,figure{background:var(--card);border:1px solid var(--line);border-radius:6px}\
.tiles div{padding:.55rem .75rem;display:flex;flex-direction:column}.tiles span{color:var(--quiet);font-size:.82rem}\
.tiles b{font-size:1.3rem;font-weight:600;font-variant-numeric:tabular-nums}\
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:.8rem}\
figure{margin:0;padding:.7rem .8rem;min-width:0}figcaption{font-weight:600;margin-bottom:.3rem}figcaption small{display:block;font-weight:400}\
svg{display:block;width:100%;height:auto}svg text{fill:var(--quiet);font:11px system-ui,sans-serif;font-variant-numeric:tabular-nums}\
.grid{stroke:var(--line);fill:none}.axis,.tick{stroke:var(--quiet);fill:none;stroke-width:.8}.mark{stroke:var(--ink);fill:none;stroke-width:.8;stroke-dasharray:2 2}\
svg .note{fill:var(--ink)}.line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}.dash{stroke-dasharray:5 4}\
.line.s1{stroke:var(--s1)}.line.s2{stroke:var(--s2)}.line.s3{stroke:var(--s3)}.line.s4{stroke:var(--s4)}.line.s5{stroke:var(--s5)}\
.heat,.b1{fill:var(--s1)}.legend{display:flex;flex-wrap:wrap;gap:.1rem 1rem;margin:0 0 .2rem;font-size:.82rem;color:var(--quiet)}\
.legend i{display:inline-block;width:1.1em;height:0;border-top:2.5px solid;margin-right:.4em;vertical-align:middle}.legend i.dash{border-top-style:dashed}\
i.s1{border-color:var(--s1)}i.s2{border-color:var(--s2)}i.s3{border-color:var(--s3)}i.s4{border-color:var(--s4)}i.s5{border-color:var(--s5)}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;margin:.4rem 0}th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);\
text-align:left;vertical-align:top}th{color:var(--quiet);font-weight:500;white-space:nowrap}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
.meter{display:block;height:.7em;margin-top:.35em;min-width:2px;background:var(--s3);border-radius:2px}td:has(.meter){width:9rem}\
pre{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.6rem;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.8rem}\
@media print{body{max-width:none}figure{break-inside:avoid}}";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::{
            WorkerId,
            plan::{Arrival, Segment, Shape},
            results::WorkerResult,
        },
        report::fixture,
    };

    fn loads_nothing(page: &str) {
        for part in ["http-equiv", "<script", "<link", "<iframe", "src=", "url(", "@import", "fetch("] {
            assert!(!page.contains(part), "{part}");
        }
        assert!(!page.contains("NaN") && !page.contains(">inf"), "no figure is no number");
        assert!(page.trim_end().ends_with("</html>"));
    }

    #[test]
    fn a_page_has_its_charts_and_loads_nothing() {
        let mut plan = fixture::plan();
        let flat = Segment { duration_ns: SECOND, from: 60.0, to: 60.0 };
        plan.shape = Shape::Rate { arrival: Arrival::Constant, curve: vec![flat] };
        let (summary, merged) = fixture::summarize(&plan, &fixture::streaming());
        let text = page(&summary, &merged);
        loads_nothing(&text);
        for title in [
            "Asked against achieved",
            "Latency over time",
            "In flight",
            "Bytes",
            "Percentile spectrum",
            "Time to first token",
            "Inter-token latency",
            "Errors",
        ] {
            assert!(text.contains(title), "{title}");
        }
        assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count());
        assert!(text.contains("class=\"heat\"") && text.contains("class=\"b1\"") && text.contains("dash s4"));
        // What a server sent is text, not markup.
        assert!(!text.contains("<b>\\x1b") && text.contains("&lt;b&gt;\\x1b"));
        assert_eq!(text, page(&summary, &merged));
    }

    #[test]
    fn a_run_without_a_success_is_drawn_too() {
        let mut result = fixture::result();
        result.workers = vec![WorkerResult::new(WorkerId(0), None, 2)];
        result.duration_ns = 0;
        let (summary, merged) = fixture::summarize(&fixture::plan(), &result);
        loads_nothing(&page(&summary, &merged));
    }

    #[test]
    fn long_runs_have_bounded_pages() {
        let mut result = fixture::result();
        for second in 0..10_000u64 {
            let row = result.workers[0].timeline.at(second * SECOND);
            row.succeeded += 5;
            row.cells[20 + (second % 20) as usize] += 5;
        }
        result.duration_ns = 10_000 * SECOND;
        let (summary, merged) = fixture::summarize(&fixture::plan(), &result);
        let slices = slices(&merged, summary.duration_s);
        assert!(slices.len() <= SLICES_MAX);
        assert_eq!(
            slices.iter().map(|s| s.row.succeeded).sum::<u64>(),
            merged.timeline.rows().iter().map(|r| r.succeeded).sum::<u64>()
        );
        assert!(page(&summary, &merged).len() < 1 << 20);
    }

    #[test]
    fn spectrum_ends_at_the_maximum() {
        let (_, merged) = fixture::summary();
        let points = spectrum_points(merged.series(Metric::RequestLatency));
        assert_eq!(points.first().unwrap().1.round(), 10_002_431.0);
        assert_eq!(points.last().unwrap().1, 99e6);
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
    }
}
