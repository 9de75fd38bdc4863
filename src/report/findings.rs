//! The three questions that a report must answer by itself, in sentences: was the server or the client the limit, what failed
//! and why, what did users feel at p99.

use serde::{Deserialize, Serialize};

use crate::data::{metric::Metric, outcome::ErrorClass, units::show_count};

use super::{
    percentile::Percentile,
    summary::Summary,
    text::{number, rate_gap, slots_were_full},
};

/// `findings` of `summary.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// `server` (or the way to it), `client`, `load` (neither: all that was asked for was done) or `unknown`.
    pub limit: String,
    /// Why, in a sentence.
    pub limit_why: String,
    /// What failed and why, in a sentence.
    pub failures: String,
    /// What users felt, in a sentence.
    pub users: String,
}

/// Answers them from a summary that is complete but for this.
pub(super) fn find(s: &Summary) -> Findings {
    let (limit, limit_why) = limit(s);
    Findings { limit: limit.to_owned(), limit_why, failures: failures(s), users: users(s) }
}

/// A closed loop whose slots were this full all the time was limited by the answers.
const FULL: f64 = 0.9;

fn limit(s: &Summary) -> (&'static str, String) {
    let busy =
        s.client.busy_max.map_or_else(String::new, |b| format!("; the busiest worker was busy {:.0} %", 100.0 * b));
    if s.requests.issued == 0 {
        return ("unknown", "nothing was issued".to_owned());
    }
    if s.client.limited_by_client {
        let why = s.client.limits.join("; ");
        return ("client", format!("the client may have been it: {why}; try more cores (-t), or another machine"));
    }
    if s.requests.succeeded == 0 {
        return ("server", format!("no request succeeded{busy}"));
    }
    if s.plan.is_open_loop() {
        return open_loop(s, &busy);
    }
    let slots = s.plan.concurrency.min(s.connections.established_peak.max(1)) as f64;
    let in_flight = s.throughput.get("effective_concurrency").and_then(|f| f.value).unwrap_or(0.0);
    if in_flight >= FULL * slots {
        let slots = show_count(slots as u64);
        return (
            "server",
            format!("the server, or the way to it: all {slots} slots waited for answers all the time{busy}"),
        );
    }
    let text = format!(
        "{} of {} slots were in use on average: the run was too short to fill them, or sessions waited for their delays{busy}",
        number(in_flight),
        number(slots)
    );
    ("unknown", text)
}

fn open_loop(s: &Summary, busy: &str) -> (&'static str, String) {
    match (rate_gap(s), s.rate.asked_rps) {
        (Some(gap), _) if slots_were_full(s) => ("server", format!("{gap}{busy}")),
        (Some(gap), _) => ("unknown", format!("{gap}{busy}")),
        (None, _) if s.requests.missed > 0 => {
            let missed = show_count(s.requests.missed);
            if slots_were_full(s) {
                let why = format!("{missed} due requests found no free slot in time: answers came too slowly{busy}");
                return ("server", why);
            }
            let why =
                format!("{missed} due requests were overdue and dropped: no slot was free, or the client was late");
            ("unknown", format!("{why}{busy}"))
        }
        (None, Some(rate)) => {
            ("load", format!("neither: the {}/s that were asked for were reached{busy}", number(rate)))
        }
        (None, None) => ("load", format!("neither: every request was sent at its time of the schedule{busy}")),
    }
}

fn failures(s: &Summary) -> String {
    /// Classes that are told; the rest is a number.
    const TOLD: usize = 3;
    let r = &s.requests;
    let cut = match r.cut {
        0 => String::new(),
        n => format!("; {} were still in flight when the drain ended, and were cut", show_count(n)),
    };
    if r.failed == 0 {
        return format!("nothing failed{cut}");
    }
    let mut classes: Vec<(&str, u64)> = s.errors.iter().map(|(name, &n)| (name, n)).collect();
    classes.sort_by_key(|&(name, n)| (std::cmp::Reverse(n), name.to_owned()));
    let more = classes.len().saturating_sub(TOLD);
    let told: Vec<String> = classes
        .iter()
        .take(TOLD)
        .map(|&(name, n)| {
            let hint = ErrorClass::ALL.into_iter().find(|c| c.name() == name).map_or("", ErrorClass::hint);
            let hint = if hint.is_empty() { String::new() } else { format!(" ({hint})") };
            format!("{} {name}{hint}", show_count(n))
        })
        .collect();
    let more = if more > 0 { format!(", and {more} classes more") } else { String::new() };
    let share = s.rate.error_percent.map_or_else(String::new, |p| format!(", {} %", number(p)));
    format!("{} of {}{share}: {}{more}{cut}", show_count(r.failed), show_count(r.issued), told.join(", "))
}

fn users(s: &Summary) -> String {
    let open = s.plan.is_open_loop();
    let p99 = |metric: Metric| s.stats(metric).and_then(|stats| stats.at(Percentile::P99)).map(number);
    let (latency, first, since) = if open {
        (Metric::RequestLatencyFromSchedule, Metric::TimeToFirstTokenFromSchedule, " from when they were due")
    } else {
        (Metric::RequestLatency, Metric::TimeToFirstToken, "")
    };
    let Some(whole) = p99(latency) else { return "no request was answered".to_owned() };
    let mut text = format!("99 of 100 answers were whole within {whole} ms{since}");
    if let Some(first) = p99(first) {
        text.push_str(&format!(", their first token was there within {first} ms"));
        if let Some(gap) = p99(Metric::InterTokenLatency) {
            text.push_str(&format!(", and 99 of 100 streams had {gap} ms or less from token to token"));
        }
    }
    let adjusted = s.metrics.get(&format!("adj_{}", latency.name()));
    match adjusted.map(|stats| stats.at(Percentile::P99)) {
        Some(None) => text.push_str("; with the failures counted as never answered, no time holds for 99 of 100"),
        Some(Some(p99)) => text.push_str(&format!("; {} ms with the failures counted as never answered", number(p99))),
        None => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::{
            plan::{Arrival, Segment, Shape},
            units::SECOND,
        },
        report::fixture,
    };

    #[test]
    fn a_closed_loop_with_full_slots_waited_for_the_server() {
        let (mut s, _) = fixture::summary();
        s.throughput
            .0
            .iter_mut()
            .filter(|(name, _)| name == "effective_concurrency")
            .for_each(|(_, f)| f.value = Some(3.9));
        let found = find(&s);
        assert_eq!(found.limit, "server");
        assert!(found.limit_why.contains("all 4 slots"), "{found:?}");
        assert!(found.failures.starts_with("10 of 100, 10 %: 8 http_5xx, 2 reset"), "{found:?}");
        assert!(found.users.contains("within 99 ms") && found.users.contains("no time holds"), "{found:?}");
        s.throughput.0.iter_mut().for_each(|(_, f)| f.value = Some(0.5));
        assert_eq!(find(&s).limit, "unknown");
        s.client.limited_by_client = true;
        s.client.limits = vec!["a worker was busy 99 % of the time".into()];
        let found = find(&s);
        assert!(found.limit == "client" && found.limit_why.contains("busy 99 %"), "{found:?}");
        s.requests.issued = 0;
        assert_eq!(find(&s).limit, "unknown");
    }

    #[test]
    fn an_open_loop_that_was_kept_had_no_limit() {
        let mut plan = fixture::plan();
        let flat = Segment { duration_ns: SECOND, from: 50.0, to: 50.0 };
        plan.shape = Shape::Rate { arrival: Arrival::Constant, curve: vec![flat] };
        let (mut s, _) = fixture::summarize(&plan, &fixture::streaming());
        s.rate.achieved_rps = Some(50.0);
        let found = find(&s);
        assert_eq!(found.limit, "load", "{found:?}");
        s.requests.missed = 7;
        let found = find(&s);
        assert!(found.limit == "unknown" && found.limit_why.contains("7 due requests"), "{found:?}");
        let full = |name: &str| name == "effective_concurrency_max";
        s.throughput.0.iter_mut().filter(|(name, _)| full(name)).for_each(|(_, f)| f.value = Some(4.0));
        assert_eq!(find(&s).limit, "server");
        assert!(found.users.contains("from when they were due"), "{found:?}");
    }

    #[test]
    fn a_run_without_failures_says_so() {
        let (mut s, _) = fixture::summarize(&fixture::plan(), &fixture::streaming());
        s.requests.failed = 0;
        s.requests.cut = 3;
        s.metrics.0.retain(|(name, _)| !name.starts_with("adj_"));
        let found = find(&s);
        assert!(found.failures.starts_with("nothing failed; 3 were still in flight"), "{found:?}");
        assert!(found.users.contains("first token") && !found.users.contains("no time holds"), "{found:?}");
        s.metrics.0.clear();
        assert_eq!(find(&s).users, "no request was answered");
    }
}
