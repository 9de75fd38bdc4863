//! The plan in short, as `summary.json` keeps it: enough to know what was asked, nothing secret.

use serde::{Deserialize, Serialize};

use crate::data::{
    plan::{Arrival, CatchUp, Order, Plan, Reuse, Segment, SendPath, Shape, StreamMode, Warmup},
    units::SECOND,
};

use super::table::Table;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// Name of the phase, in a run of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// As the user wrote them, without passwords.
    pub urls: Vec<String>,
    /// `closed`, `rate`, `schedule` or `users`.
    pub shape: String,
    /// Arrival process of a rate: `constant`, `poisson`, `gamma:2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrival: Option<String>,
    /// Rate at the end of the curve, requests a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_rps: Option<f64>,
    /// `--user-centric`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<u64>,
    /// `--prefill-concurrency`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_concurrency: Option<u64>,
    /// `--cancel-rate`, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_percent: Option<f64>,
    /// `--sessions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u64>,
    /// `--speedup` of a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
    /// Requests in flight, at most.
    pub concurrency: u64,
    /// True when that was asked for.
    pub concurrency_asked: bool,
    /// Connections, at most.
    pub connections: u64,
    /// Workers.
    pub workers: u64,
    /// `-d`.
    pub duration_s: Option<f64>,
    /// `-n`.
    pub requests: Option<u64>,
    /// `--repeat`.
    pub repeat: Option<u64>,
    /// `--drain`.
    pub drain_s: f64,
    /// `--warmup`: `5s`, `100 requests` or `none`.
    pub warmup: String,
    /// `sequential`, `shuffle` or `random`.
    pub order: String,
    /// Seed of everything random.
    pub seed: u64,
    /// `on` or `off`.
    pub catch_up: String,
    /// `keep-alive`, `never` or `session`.
    pub reuse: String,
    /// `auto`, `copy`, `zerocopy` or `sendfile`.
    pub send: String,
    /// `auto`, `sse` or `off`.
    pub stream: String,
    /// `--goodput`: limit by metric, in the metric's shown unit.
    pub goodput: Table<f64>,
}

impl Planned {
    /// A plan in short.
    pub fn of(plan: &Plan) -> Self {
        let (arrival, rate_rps, speedup) = match &plan.shape {
            Shape::Closed => (None, None, None),
            Shape::Rate { arrival, curve } => (Some(arrival_name(*arrival)), curve.last().map(|s| s.to), None),
            Shape::Schedule { speedup, .. } => (None, None, Some(*speedup)),
            Shape::Users { rps, .. } => (None, Some(*rps), None),
        };
        let users = if let Shape::Users { users, .. } = plan.shape { Some(u64::from(users)) } else { None };
        let seconds = |ns: u64| ns as f64 / SECOND as f64;
        Self {
            phase: plan.phase.clone(),
            urls: plan.targets.iter().map(|t| without_password(&t.url)).collect(),
            shape: shape_name(&plan.shape).to_owned(),
            arrival,
            rate_rps,
            users,
            prefill_concurrency: plan.prefill.map(u64::from),
            cancel_percent: plan.cancel.map(|c| c.share * 100.0),
            sessions: plan.stop.sessions,
            speedup,
            concurrency: u64::from(plan.concurrency),
            concurrency_asked: plan.concurrency_asked,
            connections: u64::from(plan.connections),
            workers: plan.workers() as u64,
            duration_s: plan.stop.duration_ns.map(seconds),
            requests: plan.stop.requests,
            repeat: plan.stop.passes,
            drain_s: seconds(plan.stop.drain_ns),
            warmup: match plan.warmup {
                Warmup::None => "none".to_owned(),
                Warmup::Time(ns) => format!("{}s", seconds(ns)),
                Warmup::Requests(n) => format!("{n} requests"),
            },
            order: match plan.order {
                Order::Sequential => "sequential",
                Order::Shuffle => "shuffle",
                Order::Random => "random",
            }
            .to_owned(),
            seed: plan.seed,
            catch_up: if plan.catch_up == CatchUp::On { "on" } else { "off" }.to_owned(),
            reuse: match plan.reuse {
                Reuse::KeepAlive => "keep-alive",
                Reuse::Never => "never",
                Reuse::Session => "session",
            }
            .to_owned(),
            send: match plan.send {
                SendPath::Auto => "auto",
                SendPath::Copy => "copy",
                SendPath::ZeroCopy => "zerocopy",
                SendPath::File => "sendfile",
            }
            .to_owned(),
            stream: match plan.stream {
                StreamMode::Auto => "auto",
                StreamMode::Sse => "sse",
                StreamMode::Off => "off",
            }
            .to_owned(),
            goodput: Table(
                plan.goodput
                    .iter()
                    .map(|g| (g.metric.name().to_owned(), g.limit as f64 / g.metric.unit().divisor()))
                    .collect(),
            ),
        }
    }

    /// True when requests have due times of their own.
    pub fn is_open_loop(&self) -> bool {
        self.shape != "closed"
    }
}

fn shape_name(shape: &Shape) -> &'static str {
    match shape {
        Shape::Closed => "closed",
        Shape::Rate { .. } => "rate",
        Shape::Schedule { .. } => "schedule",
        Shape::Users { .. } => "users",
    }
}

fn arrival_name(arrival: Arrival) -> String {
    match arrival {
        Arrival::Constant => "constant".to_owned(),
        Arrival::Poisson => "poisson".to_owned(),
        Arrival::Gamma(shape) => format!("gamma:{shape}"),
    }
}

/// `http://user:secret@host/` as `http://***@host/`.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..authority].rfind('@') {
        Some(at) => format!("{scheme}://***{}", &rest[at..]),
        None => url.to_owned(),
    }
}

/// Mean of the rate curve over the issue window, requests a second; none without a rate or a window.
///
/// The curve begins with the warm-up, the window after it.
pub(super) fn asked_rps(plan: &Plan, window_ns: u64) -> Option<f64> {
    let curve = match &plan.shape {
        Shape::Rate { curve, .. } => curve,
        Shape::Users { rps, .. } => return Some(*rps),
        Shape::Closed | Shape::Schedule { .. } => return None,
    };
    let from = if let Warmup::Time(ns) = plan.warmup { ns } else { 0 };
    let window = window_ns as f64;
    if window_ns == 0 || curve.iter().all(|s| s.from == s.to && s.to == curve[0].to) {
        return curve.last().map(|s| s.to).filter(|r| r.is_finite());
    }
    let mean = (area(curve, from.saturating_add(window_ns)) - area(curve, from)) / window;
    mean.is_finite().then_some(mean)
}

/// Integral of a rate curve from 0 to a time, in requests a second times nanoseconds; past its end its last value holds.
fn area(curve: &[Segment], until_ns: u64) -> f64 {
    let mut left = until_ns as f64;
    let mut sum = 0.0;
    for segment in curve {
        let length = (segment.duration_ns as f64).min(left);
        if segment.duration_ns > 0 {
            let end = segment.from + (segment.to - segment.from) * length / segment.duration_ns as f64;
            sum += (segment.from + end) / 2.0 * length;
        }
        left -= length;
    }
    sum + left * curve.last().map_or(0.0, |s| s.to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn passwords_are_left_out_of_urls() {
        assert_eq!(without_password("http://u:p@h:1/x@y"), "http://***@h:1/x@y");
        assert_eq!(without_password("http://h/x@y"), "http://h/x@y");
        assert_eq!(without_password("http://h?next=a@b"), "http://h?next=a@b");
        assert_eq!(without_password("unix:/tmp/a@b:/x"), "unix:/tmp/a@b:/x");
    }

    #[test]
    fn asked_rate_of_a_ramp_is_its_mean_over_the_window() {
        let mut plan = fixture::plan();
        let ramp = Segment { duration_ns: 2 * SECOND, from: 0.0, to: 100.0 };
        let flat = Segment { duration_ns: SECOND, from: 100.0, to: 100.0 };
        plan.shape = Shape::Rate { arrival: Arrival::Constant, curve: vec![ramp, flat] };
        assert_eq!(asked_rps(&plan, 4 * SECOND), Some(75.0));
        assert_eq!(asked_rps(&plan, SECOND), Some(25.0));
        plan.warmup = Warmup::Time(2 * SECOND);
        assert_eq!(asked_rps(&plan, SECOND), Some(100.0));
        plan.shape = Shape::Closed;
        assert_eq!(asked_rps(&plan, SECOND), None);
    }
}
