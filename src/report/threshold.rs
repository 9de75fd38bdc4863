//! `--fail-if 'request_latency.p99>200ms'` and `--goodput 'ttft:200ms itl:50ms'`: read, checked, judged.
//!
//! ```text
//! condition = figure op value          op = > | >= | < | <=
//! figure    = [adj_] metric . stat     stat = min | max | mean | std | count | pN with N from 0 to 100
//!           | error_rate | rps | achieved_rps | goodput | body_throughput | *_token_throughput
//!           | scheduled | issued | succeeded | failed | cut | missed | errors.<class>
//! ```
//!
//! A value carries the unit of its figure: a time its `us`, `ms` or `s` (a bare number would be read as seconds by one and
//! as milliseconds by another, so it is refused), a share its `%`. A condition on a figure without samples holds, so that
//! a server that answers nothing does not pass; its value is then null.

use serde::{Deserialize, Serialize};

use crate::data::{
    metric::{Metric, Unit},
    nearest::did_you_mean,
    outcome::ErrorClass,
    plan::GoodputLimit,
    units::{parse_count, parse_duration, parse_rate, parse_size},
};

use super::{
    merge::Merged,
    percentile::{Percentile, Stats},
    summary::{ADJUSTED, Summary},
};

/// A condition under which a run is held to have failed (exit 99).
#[derive(Clone, Debug)]
pub struct Threshold {
    /// As written.
    pub expr: String,
    figure: Figure,
    op: Op,
    /// In the shown unit of the figure.
    limit: f64,
}

#[derive(Clone, Copy, Debug)]
enum Figure {
    Stat { metric: Metric, adjusted: bool, stat: Stat },
    Scalar(Scalar),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stat {
    Min,
    Max,
    Mean,
    Std,
    Count,
    At(Percentile),
}

#[derive(Clone, Copy, Debug)]
enum Scalar {
    ErrorPercent,
    SucceededRps,
    AchievedRps,
    GoodPercent,
    GoodRps,
    Throughput(&'static str),
    Bucket(fn(&Summary) -> u64),
    Errors(ErrorClass),
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl Op {
    /// In the order in which they are looked for: the longer one first where both begin alike.
    const ALL: [(&'static str, Self); 4] =
        [(">=", Self::AtLeast), ("<=", Self::AtMost), (">", Self::Above), ("<", Self::Below)];

    fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::Above => value > limit,
            Self::AtLeast => value >= limit,
            Self::Below => value < limit,
            Self::AtMost => value <= limit,
        }
    }
}

/// What became of a condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The condition as written.
    pub expr: String,
    /// The figure, in `unit`; null without samples (or where failures make it infinite).
    pub value: Option<f64>,
    /// Unit of the value.
    pub unit: String,
    /// False when the condition held: the run failed by it.
    pub ok: bool,
}

/// The names of figures without a statistic.
const SCALARS: [(&str, Scalar); 15] = [
    ("error_rate", Scalar::ErrorPercent),
    ("rps", Scalar::SucceededRps),
    ("request_throughput", Scalar::SucceededRps),
    ("succeeded_rps", Scalar::SucceededRps),
    ("achieved_rps", Scalar::AchievedRps),
    ("body_throughput", Scalar::Throughput("body_throughput")),
    ("input_token_throughput", Scalar::Throughput("input_token_throughput")),
    ("output_token_throughput", Scalar::Throughput("output_token_throughput")),
    ("total_token_throughput", Scalar::Throughput("total_token_throughput")),
    ("scheduled", Scalar::Bucket(|s| s.requests.scheduled)),
    ("issued", Scalar::Bucket(|s| s.requests.issued)),
    ("succeeded", Scalar::Bucket(|s| s.requests.succeeded)),
    ("failed", Scalar::Bucket(|s| s.requests.failed)),
    ("cut", Scalar::Bucket(|s| s.requests.cut)),
    ("missed", Scalar::Bucket(|s| s.requests.missed)),
];

const SHORT: [&str; 7] = ["latency", "e2el", "ttft", "ttfo", "ttfb", "itl", "icl"];

fn metric_names() -> impl Iterator<Item = &'static str> + Clone {
    Metric::ALL.into_iter().map(Metric::name).chain(SHORT)
}

fn figure_names() -> impl Iterator<Item = &'static str> + Clone {
    metric_names().chain(SCALARS.iter().map(|(name, _)| *name)).chain(["goodput"])
}

impl Threshold {
    /// Reads a condition. The error quotes it and says what is wrong with it.
    pub fn parse(expr: &str) -> Result<Self, String> {
        Self::read(expr).map_err(|why| format!("--fail-if {expr:?}: {why}"))
    }

    /// True when it looks at the goodput, which needs `--goodput`.
    pub fn needs_goodput(&self) -> bool {
        matches!(self.figure, Figure::Scalar(Scalar::GoodPercent | Scalar::GoodRps))
    }

    fn read(expr: &str) -> Result<Self, String> {
        let (name, op, value) = split(expr)?;
        if name == "goodput" {
            let (scalar, limit) = read_goodput(value)?;
            return Ok(Self { expr: expr.to_owned(), figure: Figure::Scalar(scalar), op, limit });
        }
        let figure = read_figure(name)?;
        let limit = read_value(figure, value)?;
        Ok(Self { expr: expr.to_owned(), figure, op, limit })
    }

    /// Holds the condition to a run's figures.
    pub(super) fn judge(&self, summary: &Summary, merged: &Merged) -> Verdict {
        let (value, unit) = self.figure.value(summary, merged);
        let held = value.is_none_or(|v| self.op.holds(v, self.limit));
        Verdict { expr: self.expr.clone(), value, unit: unit.to_owned(), ok: !held }
    }
}

fn split(expr: &str) -> Result<(&str, Op, &str), String> {
    let at =
        expr.find(['<', '>']).ok_or("expected FIGURE>VALUE, as in request_latency.p99>200ms or error_rate>0.1%")?;
    let (name, rest) = expr.split_at(at);
    let (sign, op) = Op::ALL.into_iter().find(|(sign, _)| rest.starts_with(sign)).ok_or("expected > >= < or <=")?;
    let value = rest[sign.len()..].trim();
    if value.is_empty() {
        return Err(format!("a value is missing after {sign}"));
    }
    if name.trim().is_empty() {
        return Err(format!("a figure is missing before {sign}, as in request_latency.p99"));
    }
    Ok((name.trim(), op, value))
}

fn read_figure(name: &str) -> Result<Figure, String> {
    if let Some((_, scalar)) = SCALARS.iter().find(|(n, _)| *n == name) {
        return Ok(Figure::Scalar(*scalar));
    }
    let Some((head, stat)) = name.split_once('.') else {
        return Err(match Metric::parse(name.strip_prefix("adj_").unwrap_or(name)) {
            Some(_) => format!("{name} is a distribution: say which figure of it, as in {name}.p99 or {name}.mean"),
            None => unknown(name, "figure", figure_names()),
        });
    };
    if head == "errors" {
        let class = ErrorClass::ALL.into_iter().find(|c| c.name() == stat);
        let names = ErrorClass::ALL.into_iter().map(ErrorClass::name);
        return class.map(|c| Figure::Scalar(Scalar::Errors(c))).ok_or_else(|| unknown(stat, "error class", names));
    }
    let (plain, adjusted) = head.strip_prefix("adj_").map_or((head, false), |m| (m, true));
    let metric = Metric::parse(plain).ok_or_else(|| unknown(plain, "metric", metric_names()))?;
    if adjusted && !ADJUSTED.contains(&metric) {
        return Err(format!("{plain} has no adj_ twin: those have one that a server is judged by, as request_latency"));
    }
    Ok(Figure::Stat { metric, adjusted, stat: read_stat(stat)? })
}

/// Words for a name that is none: the nearest one, and all that there are.
fn unknown(name: &str, what: &str, names: impl Iterator<Item = &'static str> + Clone) -> String {
    let all: Vec<&str> = names.clone().collect();
    format!("{name:?} is no {what}{}; expected one of {}", did_you_mean(name, names), all.join(", "))
}

fn read_stat(text: &str) -> Result<Stat, String> {
    Ok(match text {
        "min" => Stat::Min,
        "max" => Stat::Max,
        "mean" | "avg" => Stat::Mean,
        "std" => Stat::Std,
        "count" => Stat::Count,
        p if p.starts_with('p') && p[1..].starts_with(|c: char| c.is_ascii_digit()) => Stat::At(Percentile::parse(p)?),
        other => {
            let names = ["min", "max", "mean", "std", "count", "p50", "p99"];
            let hint = did_you_mean(other, names);
            return Err(format!("{other:?} is no statistic: expected min, max, mean, std, count or pN{hint}"));
        }
    })
}

fn read_value(figure: Figure, text: &str) -> Result<f64, String> {
    let plain = |text: &str| text.trim().parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0);
    match figure {
        Figure::Stat { stat: Stat::Count, .. } | Figure::Scalar(Scalar::Bucket(_) | Scalar::Errors(_)) => {
            parse_count(text).map(|n| n as f64).map_err(|why| format!("{text:?}: {why}"))
        }
        Figure::Stat { metric, .. } => match metric.unit() {
            unit @ (Unit::Milliseconds | Unit::Microseconds) => Ok(read_time(text)? / unit.divisor()),
            Unit::Tokens => plain(text.trim_end_matches("tokens"))
                .ok_or_else(|| format!("{text:?}: expected a number of tokens, as in 128")),
            Unit::TokensPerSecond => plain(text.trim_end_matches("/s").trim_end_matches("tokens"))
                .ok_or_else(|| format!("{text:?}: expected tokens a second, as in 50 or 50/s")),
        },
        Figure::Scalar(Scalar::ErrorPercent | Scalar::GoodPercent) => read_percent(text),
        Figure::Scalar(Scalar::Throughput("body_throughput")) => parse_size(text.strip_suffix("/s").unwrap_or(text))
            .map(|n| n as f64)
            .map_err(|why| format!("{text:?}: {why}")),
        Figure::Scalar(Scalar::SucceededRps | Scalar::AchievedRps | Scalar::GoodRps | Scalar::Throughput(_)) => {
            parse_rate(text).map_err(|why| format!("{text:?}: {why}"))
        }
    }
}

/// Nanoseconds. A bare number is refused: it says no unit.
fn read_time(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(0.0) => Ok(0.0),
        Ok(_) => Err(format!("{text:?} has no unit: write {text}ms or {text}s")),
        Err(_) => parse_duration(text)
            .map(|ns| ns as f64)
            .map_err(|_| format!("{text:?} is no time: expected one such as 200ms, 50us or 1.5s")),
    }
}

fn read_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>();
    match number {
        Ok(v) if (0.0..=100.0).contains(&v) => Ok(v),
        _ => Err(format!("{text:?}: expected a share from 0% to 100%")),
    }
}

fn read_goodput(text: &str) -> Result<(Scalar, f64), String> {
    if text.ends_with('%') {
        return Ok((Scalar::GoodPercent, read_percent(text)?));
    }
    if text.ends_with("/s") {
        return parse_rate(text).map(|rate| (Scalar::GoodRps, rate)).map_err(|why| format!("{text:?}: {why}"));
    }
    Err(format!("{text:?} has no unit: write a share of the issued as in 95%, or a rate as in 100/s"))
}

impl Figure {
    fn value(self, summary: &Summary, merged: &Merged) -> (Option<f64>, &'static str) {
        match self {
            Self::Stat { metric, adjusted, stat } => stat_value(merged, metric, adjusted, stat),
            Self::Scalar(scalar) => scalar.value(summary, merged),
        }
    }
}

fn stat_value(merged: &Merged, metric: Metric, adjusted: bool, stat: Stat) -> (Option<f64>, &'static str) {
    let percentiles = if let Stat::At(p) = stat { vec![p] } else { Vec::new() };
    let series = merged.series(metric);
    let stats = if adjusted && merged.buckets.failed > 0 {
        Stats::adjusted(series, merged.buckets.failed, metric.unit(), &percentiles)
    } else {
        Stats::of(series, metric.unit(), &percentiles)
    };
    let value = match stat {
        Stat::Count => return (Some(stats.count as f64), "samples"),
        Stat::Min => stats.min,
        Stat::Max => stats.max,
        Stat::Mean => stats.mean,
        Stat::Std => stats.std,
        Stat::At(p) => stats.at(p),
    };
    (value, metric.unit().name())
}

impl Scalar {
    fn value(self, summary: &Summary, merged: &Merged) -> (Option<f64>, &'static str) {
        match self {
            Self::ErrorPercent => (summary.rate.error_percent, "%"),
            Self::SucceededRps => (summary.rate.succeeded_rps, "requests/s"),
            Self::AchievedRps => (summary.rate.achieved_rps, "requests/s"),
            Self::GoodPercent => (summary.goodput.and_then(|g| g.fraction).map(|f| 100.0 * f), "%"),
            Self::GoodRps => (summary.goodput.and_then(|g| g.rps), "requests/s"),
            Self::Throughput(name) => {
                let unit = if name == "body_throughput" { "bytes/s" } else { "tokens/s" };
                (summary.throughput.get(name).and_then(|f| f.value), unit)
            }
            Self::Bucket(bucket) => (Some(bucket(summary) as f64), "requests"),
            Self::Errors(class) => (Some(merged.errors_of(class) as f64), "requests"),
        }
    }
}

/// Reads every `--fail-if`; those on the goodput need `--goodput`.
pub fn parse_all<'a>(
    exprs: impl IntoIterator<Item = &'a str>,
    goodput: &[GoodputLimit],
) -> Result<Vec<Threshold>, String> {
    let list = exprs.into_iter().map(Threshold::parse).collect::<Result<Vec<_>, _>>()?;
    match list.iter().find(|t| t.needs_goodput()) {
        Some(t) if goodput.is_empty() => {
            Err(format!("--fail-if {:?}: goodput needs limits, as in --goodput 'latency:200ms'", t.expr))
        }
        _ => Ok(list),
    }
}

/// True for metrics with one sample a request whose limit can be told when the request ends.
const fn can_limit(metric: Metric) -> bool {
    !matches!(
        metric,
        Metric::ConnectTime
            | Metric::TlsTime
            | Metric::InterChunkLatency
            | Metric::OutputSequenceLength
            | Metric::InputSequenceLength
            | Metric::ReasoningTokenCount
    )
}

/// Reads `--goodput 'ttft:200ms itl:50ms'`: limits separated by spaces or commas. A limit on
/// `output_token_throughput_per_user`, of which more is better, becomes the one on the inter-token latency that it is.
pub fn parse_goodput(text: &str) -> Result<Vec<GoodputLimit>, String> {
    let mut limits: Vec<GoodputLimit> = Vec::new();
    for part in text.split([' ', ',', '\t']).filter(|p| !p.is_empty()) {
        let limit = read_limit(part).map_err(|why| format!("--goodput {text:?}: {why}"))?;
        if limits.iter().any(|l| l.metric == limit.metric) {
            return Err(format!("--goodput {text:?}: {} has two limits", limit.metric.name()));
        }
        limits.push(limit);
    }
    if limits.is_empty() {
        return Err("--goodput: expected METRIC:LIMIT, as in 'ttft:200ms itl:50ms'".to_owned());
    }
    Ok(limits)
}

fn read_limit(part: &str) -> Result<GoodputLimit, String> {
    let (name, value) =
        part.split_once(':').ok_or_else(|| format!("{part:?}: expected METRIC:LIMIT, as in ttft:200ms"))?;
    let names = Metric::ALL.into_iter().filter(|m| can_limit(*m)).map(Metric::name).chain(SHORT);
    let metric = Metric::parse(name).ok_or_else(|| unknown(name, "metric", names))?;
    if !can_limit(metric) {
        return Err(format!("{name} has not one time a request, so a request cannot be good or bad by it"));
    }
    if metric == Metric::OutputTokenThroughputPerUser {
        let rate = parse_rate(value).map_err(|why| format!("{value:?}: {why}"))?;
        return Ok(GoodputLimit { metric: Metric::InterTokenLatency, limit: (1e9 / rate) as u64 });
    }
    let limit = read_time(value)? as u64;
    if limit == 0 {
        Err(format!("{part:?}: expected a time longer than 0"))
    } else {
        Ok(GoodputLimit { metric, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    fn judged(expr: &str) -> Verdict {
        let (summary, merged) = fixture::summary();
        Threshold::parse(expr).unwrap().judge(&summary, &merged)
    }

    #[test]
    fn conditions_hold_or_do_not() {
        // 90 successes from 10 to 99 ms, 10 failures, 2 s.
        for (expr, ok, value) in [
            ("request_latency.p99>5ms", false, Some(99.0)),
            ("latency.max<=99ms", false, Some(99.0)),
            ("latency.min>=10.1ms", true, Some(10.0)),
            ("e2el.count<90", true, Some(90.0)),
            ("error_rate>10%", true, Some(10.0)),
            ("error_rate>=10%", false, Some(10.0)),
            ("error_rate > 0.1", false, Some(10.0)),
            ("rps<45", true, Some(45.0)),
            ("rps<46", false, Some(45.0)),
            ("failed>9", false, Some(10.0)),
            ("errors.http_5xx>0", false, Some(8.0)),
            ("missed>0", true, Some(0.0)),
            ("adj_request_latency.p50>1s", true, None),
        ] {
            let verdict = judged(expr);
            if let Some(want) = value {
                let got = verdict.value.unwrap();
                assert!((got - want).abs() <= want * 1e-3, "{expr}: {got}");
            }
            assert_eq!(verdict.ok, ok, "{expr}: {verdict:?}");
        }
    }

    #[test]
    fn a_condition_on_a_figure_without_samples_holds() {
        let verdict = judged("ttft.p95>150ms");
        assert_eq!((verdict.value, verdict.ok), (None, false));
        // 10 % failed: the 95th of all is a failure.
        let verdict = judged("adj_latency.p95>10s");
        assert_eq!((verdict.value, verdict.ok), (None, false));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        for (expr, word) in [
            ("p98765>1ms", "no figure"),
            ("request_latency.p98765>1ms", "no percentile"),
            ("request_latency.p99>1parsec", "1parsec"),
            ("no_such_metric.p99>1ms", "no metric"),
            ("nonsense", "expected"),
            ("request_latncy.p99>1ms", "request_latency"),
            ("request_latency.p9x>1ms", "no percentile"),
            ("request_latency.men>1ms", "mean"),
            ("request_latency>1ms", "request_latency.p99"),
            ("request_latency.p99>200", "unit"),
            ("request_latency.p99>", "missing"),
            (">1ms", "missing"),
            ("request_latency.p99>-1ms", "time"),
            ("request_latency.p99=1ms", "expected"),
            ("error_rate>250%", "100%"),
            ("error_rate>nan", "100%"),
            ("schedule_lag.p99>50", "unit"),
            ("goodput<95", "95%"),
            ("errors.http_6xx>1", "http_"),
            ("adj_send_time.p50>1ms", "adj_"),
            ("rps<abc", "rate"),
            ("failed>1.5", "whole"),
            ("latency.p99>é", "time"),
            ("latency.pé>1ms", "statistic"),
        ] {
            let why = Threshold::parse(expr).expect_err(expr);
            assert!(why.contains(word) && why.contains(expr), "{expr}: {why}");
        }
    }

    #[test]
    fn units_are_those_of_the_metric() {
        for (expr, limit) in [
            ("schedule_lag.p99>50us", 50.0),
            ("schedule_lag.p99>1ms", 1000.0),
            ("ttft.p95>1.5s", 1500.0),
            ("output_sequence_length.mean<128", 128.0),
            ("output_token_throughput_per_user.p50<50/s", 50.0),
            ("body_throughput<1MB/s", 1e6),
            ("output_token_throughput<3k", 3000.0),
            ("latency.p99.9>1s", 1000.0),
        ] {
            assert_eq!(Threshold::parse(expr).unwrap().limit, limit, "{expr}");
        }
    }

    #[test]
    fn a_name_that_is_none_gets_the_nearest_and_all_there_are() {
        for (error, near, also) in [
            (Threshold::parse("latncy.p99>1s").unwrap_err(), "\"latency\"", "time_to_first_token"),
            (Threshold::parse("eror_rate>1%").unwrap_err(), "\"error_rate\"", "request_throughput"),
            (Threshold::parse("errors.resett>1").unwrap_err(), "\"reset\"", "stale_connection"),
            (parse_goodput("tfft:200ms").unwrap_err(), "\"ttft\"", "inter_token_latency"),
        ] {
            assert!(error.contains(near) && error.contains("expected one of") && error.contains(also), "{error}");
        }
        let all = parse_goodput("nonsense:1s").unwrap_err();
        assert!(!all.contains("output_sequence_length"), "what has no limit is not offered: {all}");
    }

    #[test]
    fn goodput_limits() {
        let limits = parse_goodput("ttft:200ms itl:50ms,request_latency:1s").unwrap();
        assert_eq!(limits[0], GoodputLimit { metric: Metric::TimeToFirstToken, limit: 200_000_000 });
        assert_eq!(limits.len(), 3);
        let rate = parse_goodput("output_token_throughput_per_user:100").unwrap();
        assert_eq!(rate[0], GoodputLimit { metric: Metric::InterTokenLatency, limit: 10_000_000 });
        for bad in ["", "ttft", "ttft:5", "nope:5ms", "ttft:1ms ttft:2ms", "icl:5ms", "ttft:0ms", "ttft:-5ms"] {
            assert!(parse_goodput(bad).is_err(), "{bad}");
        }
        assert!(parse_all(["goodput<95%"], &[]).unwrap_err().contains("--goodput"));
        assert!(parse_all(["goodput<95%", "rps<1"], &limits).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}") {
            let _ = Threshold::parse(&text);
            let _ = parse_goodput(&text);
        }

        #[test]
        fn nearly_right_text_neither(name in "(adj_)?(ttft|latency|rps|goodput|errors)(\\.(p[0-9.]{0,8}|mean|x))?",
            op in "[<>=]{0,3}", value in "[0-9.e-]{0,6}(ms|s|%|/s|k)?") {
            let _ = Threshold::parse(&format!("{name}{op}{value}"));
        }
    }
}
