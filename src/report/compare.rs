//! Runs against a base: what changed, by how much, and how sure that is.
//!
//! A difference of means is given with its 95 % interval (Welch: unequal variances) when both sides have two runs or more.
//! The samples of one run are no repeats: they share its server, its warm caches and its noise, so a single run has no
//! interval, and the comparison says so.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::data::{Error, Result, metric::Metric};

use super::{
    dir::{self, Run},
    merge::Merged,
    percentile::Percentile,
    summary::{Status, Summary, ratio},
    text::number,
    threshold::Threshold,
};

/// The runs of a path: itself, or, where it holds the repeats of one command, the runs in its folders by number, then name.
pub fn load_all(path: &Path) -> Result<Vec<Run>> {
    if path.join("summary.json").exists() {
        return Ok(vec![dir::load(path)?]);
    }
    let inside = |e: fs::DirEntry| Some(e.path()).filter(|p| p.join("summary.json").is_file());
    let mut paths: Vec<PathBuf> = match fs::read_dir(path) {
        Ok(entries) => entries.flatten().filter_map(inside).collect(),
        Err(e) => return Err(Error::file("cannot read", path, e)),
    };
    if paths.is_empty() {
        return Err(Error::usage(format!(
            "{} is not the directory of a finished run, nor does it hold any: no summary.json",
            path.display()
        )));
    }
    let order = |p: &PathBuf| {
        let name = p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        (name.parse::<u64>().unwrap_or(u64::MAX), name)
    };
    paths.sort_by_key(order);
    paths.iter().map(|p| dir::load(p)).collect()
}

/// The shards of one distributed run as one run; none without runs.
///
/// Counts, histograms and rates add up. Each timeline begins with its own shard, so shards that began at different times
/// are told so in a note.
pub fn join(runs: &[Run], thresholds: &[Threshold]) -> Option<(Summary, Merged)> {
    let (first, others) = runs.split_first()?;
    let mut merged = first.merged.clone();
    for run in others {
        merged.add(&run.merged);
    }
    let parts: Vec<&Summary> = runs.iter().map(|r| &r.summary).collect();
    let mut summary = Summary::joined(&parts, &merged, thresholds)?;
    let starts = || parts.iter().filter_map(|p| p.started_at.parse::<jiff::Timestamp>().ok());
    if let (Some(a), Some(b)) = (starts().min(), starts().max())
        && b.as_millisecond() - a.as_millisecond() > 1000
    {
        summary.notes.push(format!(
            "the {} shards began up to {:.1} s apart: their rates are added as if they had begun together",
            runs.len(),
            (b.as_millisecond() - a.as_millisecond()) as f64 / 1e3
        ));
    }
    if let Some(other) = parts.iter().find(|p| p.dataset.key != first.summary.dataset.key) {
        summary.notes.push(format!(
            "the shards sent different datasets: {:?} and {:?}",
            first.summary.dataset.key, other.dataset.key
        ));
    }
    Some((summary, merged))
}

/// What a change of a figure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It improved, beyond what chance explains where that is known.
    Better,
    /// It got worse, likewise.
    Worse,
    /// The interval holds zero, or nothing changed.
    Same,
    /// One side has no value.
    Unknown,
}

/// One figure on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// As in `request_latency.p99`.
    pub figure: String,
    /// Its unit.
    pub unit: String,
    /// Mean over the base's runs.
    pub base: Option<f64>,
    /// Mean over the new runs.
    pub new: Option<f64>,
    /// From base to new, percent of the base; of a share (`error_rate`), percentage points.
    pub change_percent: Option<f64>,
    /// Lower end of the 95 % interval of that; null without repeats on both sides.
    pub low_percent: Option<f64>,
    /// Upper end.
    pub high_percent: Option<f64>,
    /// What it means.
    pub verdict: Verdict,
    /// Worse by more than `--max-regression`, and not by chance as far as repeats tell.
    pub regression: bool,
}

/// Runs against a base.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// `ringload/comparison/1`.
    pub schema: String,
    /// Directories of the base.
    pub base: Vec<String>,
    /// Directories that are held against it.
    pub new: Vec<String>,
    /// `--max-regression`, percent.
    pub max_regression_percent: Option<f64>,
    /// The figures.
    pub changes: Vec<Change>,
    /// What makes the two sides hard to compare.
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, PartialEq)]
enum Good {
    High,
    Low,
}

struct Figure {
    name: &'static str,
    unit: &'static str,
    good: Good,
    /// Held against `--max-regression`.
    guarded: bool,
    of: fn(&Summary) -> Option<f64>,
}

fn stat(s: &Summary, metric: Metric, percentile: &str) -> Option<f64> {
    s.stats(metric)?.at(Percentile::parse(percentile).ok()?)
}

const FIGURES: [Figure; 16] = {
    use Good::{High, Low};
    const fn f(
        name: &'static str,
        unit: &'static str,
        good: Good,
        guarded: bool,
        of: fn(&Summary) -> Option<f64>,
    ) -> Figure {
        Figure { name, unit, good, guarded, of }
    }
    [
        f("succeeded_rps", "requests/s", High, true, |s| s.rate.succeeded_rps),
        f("error_rate", "%", Low, true, |s| s.rate.error_percent),
        f("request_latency.mean", "ms", Low, false, |s| s.stats(Metric::RequestLatency)?.mean),
        f("request_latency.p50", "ms", Low, true, |s| stat(s, Metric::RequestLatency, "50")),
        f("request_latency.p90", "ms", Low, false, |s| stat(s, Metric::RequestLatency, "90")),
        f("request_latency.p99", "ms", Low, true, |s| stat(s, Metric::RequestLatency, "99")),
        f("request_latency.p99.9", "ms", Low, false, |s| stat(s, Metric::RequestLatency, "99.9")),
        f("request_latency_from_schedule.p99", "ms", Low, true, |s| stat(s, Metric::RequestLatencyFromSchedule, "99")),
        f("time_to_first_token.p50", "ms", Low, true, |s| stat(s, Metric::TimeToFirstToken, "50")),
        f("time_to_first_token.p99", "ms", Low, true, |s| stat(s, Metric::TimeToFirstToken, "99")),
        f("inter_token_latency.p50", "ms", Low, true, |s| stat(s, Metric::InterTokenLatency, "50")),
        f("inter_token_latency.p99", "ms", Low, true, |s| stat(s, Metric::InterTokenLatency, "99")),
        f("output_token_throughput", "tokens/s", High, true, |s| s.throughput.get("output_token_throughput")?.value),
        f("body_throughput", "bytes/s", High, false, |s| s.throughput.get("body_throughput")?.value),
        f("goodput", "%", High, true, |s| s.goodput?.fraction.map(|g| 100.0 * g)),
        f("cpu_us_per_request", "us", Low, false, |s| s.client.cpu_us_per_request),
    ]
};

/// Holds runs against a base. `max_regression` is in percent.
pub fn compare(base: &[Run], new: &[Run], max_regression: Option<f64>) -> Comparison {
    let changes = FIGURES.iter().filter_map(|figure| change(figure, base, new, max_regression)).collect();
    let names = |runs: &[Run]| runs.iter().map(|r| r.name.clone()).collect();
    Comparison {
        schema: "ringload/comparison/1".to_owned(),
        base: names(base),
        new: names(new),
        max_regression_percent: max_regression,
        changes,
        warnings: warnings(base, new),
    }
}

impl Comparison {
    /// 99 when a figure regressed, 0 otherwise.
    pub fn exit_code(&self) -> u8 {
        if self.changes.iter().any(|c| c.regression) { 99 } else { 0 }
    }

    /// As JSON, with a newline at the end.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("plain data"));
        text.push('\n');
        text
    }
}

/// None when neither side has the figure.
fn change(figure: &Figure, base: &[Run], new: &[Run], max_regression: Option<f64>) -> Option<Change> {
    let values = |runs: &[Run]| runs.iter().filter_map(|r| (figure.of)(&r.summary)).collect::<Vec<f64>>();
    let (old, now) = (Sample::of(&values(base)), Sample::of(&values(new)));
    if old.is_none() && now.is_none() {
        return None;
    }
    let mut change = Change {
        figure: figure.name.to_owned(),
        unit: figure.unit.to_owned(),
        base: old.map(|s| s.mean),
        new: now.map(|s| s.mean),
        change_percent: None,
        low_percent: None,
        high_percent: None,
        verdict: Verdict::Unknown,
        regression: false,
    };
    let (Some(old), Some(now)) = (old, now) else {
        // A server that stopped to give a figure that it gave did not stay the same.
        change.regression = figure.guarded && max_regression.is_some() && now.is_none();
        return Some(change);
    };
    // A share is compared in points: from 0 % to 1 % is no percentage of 0.
    let scale = if figure.unit == "%" { 1.0 } else { 100.0 / old.mean };
    let shown = |difference: f64| Some(difference * scale).filter(|v| v.is_finite());
    let difference = now.mean - old.mean;
    change.change_percent = if difference == 0.0 { Some(0.0) } else { shown(difference) };
    if let Some(margin) = margin(&old, &now) {
        change.low_percent = shown(difference - margin);
        change.high_percent = shown(difference + margin);
    }
    let by_chance = matches!((change.low_percent, change.high_percent), (Some(l), Some(h)) if l <= 0.0 && 0.0 <= h);
    change.verdict = match (difference > 0.0, figure.good) {
        _ if difference == 0.0 || by_chance => Verdict::Same,
        (true, Good::High) | (false, Good::Low) => Verdict::Better,
        _ => Verdict::Worse,
    };
    let beyond = max_regression.is_some_and(|most| change.change_percent.is_none_or(|c| c.abs() > most));
    change.regression = figure.guarded && change.verdict == Verdict::Worse && beyond;
    Some(change)
}

/// Mean and variance of one side's repeats.
#[derive(Clone, Copy)]
struct Sample {
    count: f64,
    mean: f64,
    /// With `count - 1` below.
    variance: f64,
}

impl Sample {
    fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        let mean = ratio(values.iter().sum(), count)?;
        let square: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        Some(Self { count, mean, variance: if values.len() > 1 { square / (count - 1.0) } else { 0.0 } })
    }
}

/// Half the 95 % interval of the difference of two means (Welch 1947); none without two values on each side.
fn margin(a: &Sample, b: &Sample) -> Option<f64> {
    if a.count < 2.0 || b.count < 2.0 {
        return None;
    }
    let (va, vb) = (a.variance / a.count, b.variance / b.count);
    if va + vb == 0.0 {
        return Some(0.0);
    }
    let freedom = (va + vb).powi(2) / (va * va / (a.count - 1.0) + vb * vb / (b.count - 1.0));
    Some(student_95(freedom) * (va + vb).sqrt())
}

/// Two-sided 95 % quantile of Student's distribution; between table rows the lower (wider) one holds.
fn student_95(freedom: f64) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ];
    match freedom as usize {
        0 => TABLE[0],
        n if n <= 30 => TABLE[n - 1],
        31..60 => 2.042,
        60..120 => 2.000,
        _ => 1.980,
    }
}

fn warnings(base: &[Run], new: &[Run]) -> Vec<String> {
    let mut warnings = Vec::new();
    let (Some(a), Some(b)) = (base.first(), new.first()) else { return warnings };
    let (p, q) = (&a.summary.plan, &b.summary.plan);
    let text = |v: &Option<f64>| v.map_or_else(|| "none".to_owned(), number);
    let mut differs = |what: &str, x: String, y: String| {
        if x != y {
            warnings.push(format!("the two sides differ in {what}: {x} against {y}"));
        }
    };
    differs("shape", p.shape.clone(), q.shape.clone());
    differs("rate", text(&p.rate_rps), text(&q.rate_rps));
    differs("concurrency", p.concurrency.to_string(), q.concurrency.to_string());
    differs("duration", text(&p.duration_s), text(&q.duration_s));
    let dataset = |s: &Summary| match s.dataset.key.as_str() {
        "" => format!("{} of {} bytes", s.dataset.format, s.dataset.body_bytes),
        key => key.to_owned(),
    };
    differs("dataset", dataset(&a.summary), dataset(&b.summary));
    for run in base.iter().chain(new) {
        if run.summary.status != Status::Complete {
            warnings.push(format!("{} is {}", run.name, run.summary.status.name()));
        }
        if run.summary.client.limited_by_client {
            warnings.push(format!("{}: the client may have been the limit", run.name));
        }
    }
    if base.len() < 2 || new.len() < 2 {
        warnings.push(format!(
            "{} and {} runs: without two or more on both sides no interval can be given (run --repeats 5)",
            base.len(),
            new.len()
        ));
    }
    warnings
}

/// The comparison as a table, at most 96 columns.
pub fn render(c: &Comparison) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "base  {}", c.base.join(", "));
    let _ = writeln!(out, "new   {}\n", c.new.join(", "));
    let _ = writeln!(out, "{:<39}{:>10}{:>10}{:>10}  {:<20}", "", "base", "new", "change", "95 % interval");
    for change in &c.changes {
        let unit = if change.unit == "%" { " pt" } else { " %" };
        let signed = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:+.1}{unit}"));
        let interval = match (change.low_percent, change.high_percent) {
            (Some(low), Some(high)) => format!("{low:+.1} .. {high:+.1}"),
            _ => "-".to_owned(),
        };
        let word = match (change.regression, change.verdict) {
            (true, _) => "REGRESSED",
            (_, Verdict::Worse) => "worse",
            (_, Verdict::Better) => "better",
            _ => "",
        };
        let cell = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), number);
        let _ = writeln!(
            out,
            "{:<39}{:>10}{:>10}{:>10}  {interval:<16}{word}",
            format!("{} ({})", change.figure, change.unit),
            cell(change.base),
            cell(change.new),
            signed(change.change_percent),
        );
    }
    for warning in &c.warnings {
        let _ = writeln!(out, "\nwarning: {warning}");
    }
    let text: Vec<_> = out.lines().map(str::trim_end).collect();
    text.join("\n") + "\n"
}

/// Several runs side by side, a line each.
pub fn overview(runs: &[Run]) -> String {
    let mut out = format!(
        "{:<32}{:>10}{:>11}{:>9}{:>11}{:>11}{:>11}\n",
        "run", "status", "ok/s", "failed %", "p50 ms", "p99 ms", "max ms"
    );
    for run in runs {
        let s = &run.summary;
        let latency = s.stats(Metric::RequestLatency);
        let cell = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), number);
        let name: String = run.name.chars().rev().take(31).collect::<Vec<_>>().into_iter().rev().collect();
        let _ = writeln!(
            out,
            "{name:<32}{:>10}{:>11}{:>9}{:>11}{:>11}{:>11}",
            s.status.name(),
            cell(s.rate.succeeded_rps),
            cell(s.rate.error_percent),
            cell(latency.and_then(|l| l.at(Percentile::P50))),
            cell(latency.and_then(|l| l.at(Percentile::P99))),
            cell(latency.and_then(|l| l.max)),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{RunDir, fixture};

    fn run(name: &str, rps: f64) -> Run {
        let (mut summary, merged) = fixture::summary();
        summary.rate.succeeded_rps = Some(rps);
        Run { name: name.to_owned(), summary, merged }
    }

    fn of<'a>(c: &'a Comparison, figure: &str) -> &'a Change {
        c.changes.iter().find(|c| c.figure == figure).unwrap()
    }

    #[test]
    fn repeats_give_an_interval_and_chance_is_no_regression() {
        let base = [100.0, 102.0, 98.0].map(|r| run("a", r));
        // 10 % slower, steadily.
        let c = compare(&base, &[90.0, 91.0, 89.0].map(|r| run("b", r)), Some(3.0));
        let rps = of(&c, "succeeded_rps");
        // Welch by hand: se = sqrt(4/3 + 1/3) = 1.291, df = 2.94, t(2) = 4.303: -10 +- 5.6.
        assert!((rps.change_percent.unwrap() + 10.0).abs() < 1e-9);
        assert!((rps.low_percent.unwrap() + 15.555).abs() < 0.01 && (rps.high_percent.unwrap() + 4.445).abs() < 0.01);
        assert_eq!((rps.verdict, rps.regression, c.exit_code()), (Verdict::Worse, true, 99));
        // The same mean loss with a spread that explains it.
        let c = compare(&base, &[70.0, 110.0, 90.0].map(|r| run("b", r)), Some(3.0));
        assert_eq!((of(&c, "succeeded_rps").verdict, c.exit_code()), (Verdict::Same, 0));
        // Real, but within what is allowed.
        let c = compare(&base, &[90.0, 91.0, 89.0].map(|r| run("b", r)), Some(20.0));
        assert_eq!((of(&c, "succeeded_rps").verdict, c.exit_code()), (Verdict::Worse, 0));
        assert!(c.warnings.is_empty(), "{:?}", c.warnings);
    }

    #[test]
    fn single_runs_are_compared_and_told_to_be_single() {
        let c = compare(&[run("a", 100.0)], &[run("b", 90.0)], Some(3.0));
        assert_eq!((of(&c, "succeeded_rps").low_percent, c.exit_code()), (None, 99));
        assert!(c.warnings[0].contains("--repeats"), "{:?}", c.warnings);
        assert_eq!(compare(&[run("a", 100.0)], &[run("b", 110.0)], Some(3.0)).exit_code(), 0);
        assert_eq!(compare(&[run("a", 100.0)], &[run("b", 90.0)], None).exit_code(), 0);
        let text = render(&c);
        assert!(text.contains("REGRESSED") && text.contains("-10.0 %"), "{text}");
        assert!(text.lines().filter(|l| !l.starts_with("warning")).all(|l| l.len() <= 96), "{text}");
    }

    #[test]
    fn errors_are_compared_in_points_and_a_lost_figure_is_a_regression() {
        let mut bad = run("b", 100.0);
        bad.summary.rate.error_percent = Some(14.0);
        let c = compare(&[run("a", 100.0)], std::slice::from_ref(&bad), Some(3.0));
        assert_eq!((of(&c, "error_rate").change_percent, of(&c, "error_rate").regression), (Some(4.0), true));
        bad.summary.rate.error_percent = Some(12.0);
        bad.summary.metrics.0.clear();
        let c = compare(&[run("a", 100.0)], &[bad], Some(3.0));
        assert!(!of(&c, "error_rate").regression && of(&c, "request_latency.p99").regression);
        serde_json::from_str::<serde_json::Value>(&c.to_json()).unwrap();
    }

    #[test]
    fn unlike_runs_are_told_apart() {
        let mut other = run("b", 100.0);
        other.summary.plan.concurrency = 64;
        other.summary.dataset.key = "ffff".into();
        let c = compare(&[run("a", 100.0)], &[other], None);
        assert!(c.warnings[0].contains("concurrency: 4 against 64") && c.warnings[1].contains("dataset"), "{c:?}");
    }

    #[test]
    fn repeats_are_found_in_their_folder_in_order() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["10", "9", "base"] {
            let (summary, merged) = fixture::summary();
            RunDir::prepare(&temp.path().join(name)).unwrap().write_run(&summary, &merged).unwrap();
        }
        std::fs::create_dir(temp.path().join("other")).unwrap();
        let runs = load_all(temp.path()).unwrap();
        let names: Vec<_> = runs.iter().map(|r| r.name.rsplit('/').next().unwrap()).collect();
        assert_eq!(names, ["9", "10", "base"]);
        assert_eq!(load_all(&temp.path().join("9")).unwrap().len(), 1);
        assert!(load_all(&temp.path().join("other")).is_err());
        let lines = overview(&runs);
        assert!(lines.lines().count() == 4 && lines.contains("complete"), "{lines}");
    }

    #[test]
    fn shards_join_and_odd_ones_are_noted() {
        let mut late = run("b", 45.0);
        late.summary.started_at = "2027-01-15T08:00:05.123Z".into();
        late.summary.dataset.key = "ffff".into();
        let (summary, merged) = join(&[run("a", 45.0), late], &[]).unwrap();
        assert_eq!((summary.requests.issued, merged.buckets.succeeded), (200, 180));
        assert!(summary.notes[0].contains("5.0 s apart") && summary.notes[1].contains("ffff"), "{:?}", summary.notes);
        assert!(join(&[], &[]).is_none());
    }
}
