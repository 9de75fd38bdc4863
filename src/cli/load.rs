//! Load flags to the shape of a run, and the refusal of those that would do nothing in it.

use std::path::Path;

use super::{
    flags::{LoadFlags, OnOff, OrderFlag, Repeat, ReuseFlag, RunFlags, Stages, StreamEnd, StreamFlag},
    plan::Sent,
};
use crate::{
    data::{
        Error, Result, limits,
        plan::{Arrival, Cancel, Segment, Shape, Stop},
        units::{self, SECOND},
    },
    pace,
};

/// The shape of a run, with what follows from it.
#[derive(Clone, Debug)]
pub struct Load {
    /// When requests are due.
    pub shape: Shape,
    /// How the bound of a closed loop changes; empty when it does not.
    pub ramp: Vec<Segment>,
    /// How long its stages or its series take, nanoseconds.
    pub length_ns: Option<u64>,
}

impl Load {
    /// What the flags ask for.
    ///
    /// Errors: flags that contradict each other or do nothing here, a rate series that cannot be read.
    pub fn new(flags: &RunFlags, sent: Sent) -> Result<Self> {
        let load = &flags.load;
        let made = Self::shape_of(load, sent)?;
        refuse_useless(flags, sent, &made.shape)?;
        Ok(made)
    }

    fn shape_of(load: &LoadFlags, sent: Sent) -> Result<Self> {
        let plain = |shape| Self { shape, ramp: Vec::new(), length_ns: None };
        if load.schedule {
            if sent == Sent::Inline {
                return Err(Error::usage(
                    "--schedule: there are no times without a dataset; give one with -f, or a rate with -R",
                ));
            }
            let (from_ns, to_ns) = (load.from.unwrap_or(0), load.to.unwrap_or(u64::MAX));
            if to_ns < from_ns {
                return Err(Error::usage("--to comes before --from"));
            }
            let max_gap_ns = load.max_gap.unwrap_or(u64::MAX);
            let speedup = load.speedup.unwrap_or(1.0);
            return Ok(plain(Shape::Schedule { speedup, from_ns, to_ns, max_gap_ns }));
        }
        if let (Some(users), Some(rps)) = (load.user_centric, load.rate) {
            let users = u32::try_from(users).ok().filter(|&u| u <= limits::USERS_MAX).ok_or_else(|| {
                Error::usage(format!("--user-centric {users}: at most {} users are laid out", limits::USERS_MAX))
            })?;
            return Ok(plain(Shape::Users { users, rps }));
        }
        let arrival = load.arrival.unwrap_or(Arrival::Constant);
        let sum = |segments: &[Segment]| Some(segments.iter().map(|s| s.duration_ns).sum::<u64>());
        if let Some(path) = &load.rate_series {
            let curve = series(path)?;
            return Ok(Self { length_ns: sum(&curve), ramp: Vec::new(), shape: Shape::Rate { arrival, curve } });
        }
        let ramp_ns = load.ramp_up.unwrap_or(0);
        match (&load.stages, load.rate) {
            (Some(Stages::Rate(curve)), _) => Ok(Self {
                length_ns: sum(curve),
                ramp: Vec::new(),
                shape: Shape::Rate { arrival, curve: curve.clone() },
            }),
            (Some(Stages::Concurrency(ramp)), _) => {
                Ok(Self { length_ns: sum(ramp), ramp: ramp.clone(), shape: Shape::Closed })
            }
            (None, Some(rate)) => {
                let full = Segment { duration_ns: 0, from: rate, to: rate };
                let ramp = Segment { duration_ns: ramp_ns, from: 0.0, to: rate };
                let curve = if ramp_ns > 0 { vec![ramp, full] } else { vec![full] };
                Ok(plain(Shape::Rate { arrival, curve }))
            }
            (None, None) => {
                let full = load.concurrency.unwrap_or(super::plan::CONCURRENCY);
                let ramp = if ramp_ns > 0 { pace::ramp_of_slots(full as u32, ramp_ns) } else { Vec::new() };
                Ok(Self { ramp, ..plain(Shape::Closed) })
            }
        }
    }

    /// The most that its stages want in flight; none without stages of it.
    pub fn concurrency(&self, load: &LoadFlags) -> Option<u64> {
        match &load.stages {
            Some(Stages::Concurrency(stages)) => Some(stages.iter().map(|s| s.to).fold(1.0, f64::max) as u64),
            _ => load.concurrency,
        }
    }

    /// What ends the run.
    pub fn stop(&self, flags: &RunFlags, sent: Sent) -> Stop {
        let load = &flags.load;
        let bounded = load.duration.is_some() || load.requests.is_some() || load.sessions.is_some();
        let passes = match flags.source.repeat {
            Some(Repeat::Times(n)) => Some(n),
            Some(Repeat::Forever) => None,
            // A schedule is played once; a dataset goes on for as long as a time or a count says.
            None if matches!(self.shape, Shape::Schedule { .. }) => Some(1),
            None if sent != Sent::Inline && !bounded && self.length_ns.is_none() => Some(1),
            None => None,
        };
        let endless = !bounded && passes.is_none();
        let duration_ns = load.duration.or(self.length_ns).or(endless.then_some(10 * SECOND));
        Stop {
            requests: load.requests,
            duration_ns,
            sessions: load.sessions,
            passes,
            drain_ns: load.drain,
            max_errors: load.max_errors,
        }
    }
}

/// `--cancel-rate` and `--cancel-after`.
pub fn cancel(load: &LoadFlags) -> Option<Cancel> {
    load.cancel_rate.map(|percent| Cancel { share: percent / 100.0, after_ns: load.cancel_after.unwrap_or(0) })
}

/// A flag that changes nothing is a mistake that the figures would not show: it is refused, with what to do.
fn refuse_useless(flags: &RunFlags, sent: Sent, shape: &Shape) -> Result<()> {
    let (load, request) = (&flags.load, &flags.request);
    let closed = matches!(shape, Shape::Closed);
    let rate = matches!(shape, Shape::Rate { .. });
    let users = matches!(shape, Shape::Users { .. });
    let turns = sent == Sent::Sessions;
    let concurrency_stages = matches!(load.stages, Some(Stages::Concurrency(_)));
    let order = flags.source.order.is_some_and(|o| o != OrderFlag::Sequential);
    let never = request.reuse == ReuseFlag::Never;
    let no_stream = request.stream == StreamFlag::Off;
    let inline = sent == Sent::Inline;
    let few = load.concurrency.zip(load.connections).is_some_and(|(c, n)| n < c);
    let prefill = load.concurrency.zip(load.prefill_concurrency).is_some_and(|(c, p)| c < p);
    let cases = [
        (load.arrival.is_some() && users, "--arrival: the slots of --user-centric are evenly spaced; leave it out"),
        (load.arrival.is_some() && !rate, "--arrival goes with a rate: -R, --stages or --rate-series"),
        (load.speedup.is_some() && !load.schedule, "--speedup goes with --schedule"),
        (
            load.catch_up == Some(OnOff::Off) && closed,
            "--catch-up: nothing is overdue in a closed loop; it goes with -R, --stages, --rate-series or --schedule",
        ),
        (load.ramp_up.is_some() && load.schedule, "--ramp-up: a schedule has its own times; it goes with -R or -c"),
        (
            load.pace.is_some() && closed && !turns,
            "--pace: a closed loop without delays waits for no due time; it goes with -R or --schedule",
        ),
        (load.on_failed_turn.is_some() && !turns, "--on-failed-turn: no record has a later turn"),
        (load.ignore_delays && !turns, "--ignore-delays: no record has a later turn that could have a delay"),
        (load.delay_cap.is_some() && !turns, "--delay-cap: no record has a later turn that could have a delay"),
        (load.delay_cap.is_some() && load.ignore_delays, "--delay-cap: --ignore-delays leaves no delay to cap"),
        (load.delay_cap.is_some() && users, "--delay-cap: the turns of --user-centric have slots in place of delays"),
        (load.ignore_delays && users, "--ignore-delays: the turns of --user-centric have slots in place of delays"),
        (load.sessions.is_some() && inline, "--sessions counts those of a dataset; without one give -n"),
        (
            request.reuse == ReuseFlag::Session && !turns,
            "--reuse session: no record has a later turn; use keep-alive or never",
        ),
        (load.concurrency.is_some() && concurrency_stages, "-c: the stages say how many are in flight; leave it out"),
        (few, "--connections: fewer than -c, and each request in flight needs one; raise it, or lower -c"),
        (prefill, "--prefill-concurrency: more than -c, so that it would never hold; lower it, or leave it out"),
        (
            load.prefill_concurrency.is_some() && no_stream,
            "--prefill-concurrency: a first token is seen in a stream alone; leave --stream off out",
        ),
        (load.cancel_after.is_some() && load.cancel_rate.is_none(), "--cancel-after goes with --cancel-rate P%"),
        (flags.net.cold && never, "--cold: with --reuse never every connection is opened when it is needed"),
        (request.stream_end == StreamEnd::Any && no_stream, "--stream-end: with --stream off no stream is looked into"),
        (order && inline, "--order: there is one body, and so one order; give a dataset with -f"),
        (order && load.schedule, "--order: a schedule has one order, that of its times"),
        (inline && flags.shaping.format != "auto", "--format goes with a dataset; give one with -f"),
        (inline && flags.shaping.limit.is_some(), "--limit goes with a dataset; give one with -f"),
        (inline && flags.shaping.skip_bad, "--skip-bad goes with a dataset; give one with -f"),
        (inline && flags.cache.verify, "--verify checks a dataset's stored bodies; give one with -f"),
    ];
    match cases.into_iter().find(|&(useless, _)| useless) {
        Some((_, why)) => Err(Error::usage(why)),
        None => Ok(()),
    }
}

/// One point of a rate series.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    time_s: f64,
    #[serde(alias = "rate", alias = "rps")]
    qps: f64,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Points {
    List(Vec<Point>),
    #[serde(rename_all = "snake_case")]
    Named {
        points: Vec<Point>,
    },
}

/// The curve of `--rate-series`: straight lines from point to point, even before the first.
///
/// Errors: a file that cannot be read, or that is neither JSON points nor lines of `SECONDS,RATE`, with its line or point.
fn series(path: &Path) -> Result<Vec<Segment>> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::file("cannot read the rate series", path, e))?;
    let points =
        if text.trim_start().starts_with(['[', '{']) { json_points(path, &text)? } else { csv_points(path, &text)? };
    if points.len() < 2 {
        return Err(Error::usage(format!(
            "{}: {} points; a rate series has at least two, such as 0,100 and 60,500",
            path.display(),
            points.len()
        )));
    }
    let wrong = |place: &str, what: String| Error::usage(format!("{}{place}: {what}", path.display()));
    let mut curve = Vec::with_capacity(points.len());
    let mut before: Option<Point> = None;
    for (place, p) in &points {
        if !(0.0..=1e7).contains(&p.qps) {
            return Err(wrong(place, format!("rate {}, expected 0 to 10 million a second", p.qps)));
        }
        let from = before.unwrap_or(Point { time_s: 0.0, qps: p.qps });
        // A time that comes twice is a step.
        if !p.time_s.is_finite() || p.time_s < from.time_s || p.time_s > 1e9 {
            return Err(wrong(place, format!("time {} s, expected {} s or later", p.time_s, from.time_s)));
        }
        let duration_ns = ((p.time_s - from.time_s) * SECOND as f64).round() as u64;
        if duration_ns > 0 {
            curve.push(Segment { duration_ns, from: from.qps, to: p.qps });
        }
        before = Some(*p);
    }
    if curve.is_empty() {
        return Err(Error::usage(format!(
            "{}: every point is at 0 s; a rate series goes on for some time, such as 0,100 and 60,500",
            path.display()
        )));
    }
    let last = before.map_or(0.0, |p| p.qps);
    curve.push(Segment { duration_ns: 0, from: last, to: last });
    Ok(curve)
}

fn json_points(path: &Path, text: &str) -> Result<Vec<(String, Point)>> {
    let points: Points = serde_json::from_str(text).map_err(|e| {
        Error::usage(format!(
            "{}:{}: expected a list of {{\"time_s\": 0, \"qps\": 100}}, alone or under \"points\": {e}",
            path.display(),
            e.line().max(1)
        ))
    })?;
    let (Points::List(list) | Points::Named { points: list }) = points;
    Ok(list.into_iter().enumerate().map(|(i, p)| (format!(": point {i}"), p)).collect())
}

fn csv_points(path: &Path, text: &str) -> Result<Vec<(String, Point)>> {
    let mut points = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        // A first line of names is no point.
        let names = points.is_empty() && line.starts_with(|c: char| c.is_ascii_alphabetic());
        if line.is_empty() || line.starts_with('#') || names {
            continue;
        }
        let place = format!(":{}", i + 1);
        let pair = line.split_once([',', '\t']).and_then(|(time, rate)| {
            let time_s = time.trim().parse().ok()?;
            let qps = if rate.trim() == "0" { 0.0 } else { units::parse_rate(rate.trim()).ok()? };
            Some(Point { time_s, qps })
        });
        match pair {
            Some(point) => points.push((place, point)),
            None => {
                let what = format!("'{line}', expected SECONDS,RATE such as 30,250");
                return Err(Error::usage(format!("{}{place}: {what}", path.display())));
            }
        }
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series_of(text: &str) -> Result<Vec<Segment>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rates");
        std::fs::write(&path, text).unwrap();
        series(&path)
    }

    #[test]
    fn a_series_that_takes_no_time_is_refused() {
        let error = series_of("0,100\n0,200\n").unwrap_err().to_string();
        assert!(error.contains("every point is at 0 s"), "{error}");
        assert_eq!(series_of("0,100\n0,200\n5,200\n").unwrap().len(), 2);
    }

    #[test]
    fn a_series_is_read_from_json_and_from_lines() {
        let want = vec![
            Segment { duration_ns: 2 * SECOND, from: 10.0, to: 10.0 },
            Segment { duration_ns: 3 * SECOND, from: 10.0, to: 50.0 },
            Segment { duration_ns: 0, from: 50.0, to: 50.0 },
        ];
        for text in [
            r#"[{"time_s": 2, "qps": 10}, {"time_s": 5, "qps": 50}]"#,
            r#"{"points": [{"time_s": 2, "rate": 10.0}, {"time_s": 5.0, "qps": 50}]}"#,
            "time_s,qps\n2,10\n\n# later\n5,50/s\n",
        ] {
            assert_eq!(series_of(text).unwrap(), want, "{text}");
        }
        let step = series_of("0,5\n4,5\n4,9\n6,0").unwrap();
        assert_eq!(step[1], Segment { duration_ns: 2 * SECOND, from: 9.0, to: 0.0 });
    }

    #[test]
    fn a_wrong_series_is_refused_with_its_place() {
        for (text, said) in [
            ("0,5\nx,6", "rates:2: 'x,6', expected SECONDS,RATE"),
            ("0,5\n5,6\n4,7", "rates:3: time 4 s, expected 5 s or later"),
            ("0,5", "1 points"),
            (r#"[{"time_s": 0, "qps": 1}, {"time_s": 1, "qps": -1}]"#, "point 1: rate -1"),
            (r#"[{"time": 0, "qps": 1}]"#, "expected a list of"),
            ("", "0 points"),
        ] {
            let error = series_of(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
