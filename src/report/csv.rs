//! Tables as CSV: the timeline of a run, and the figures of one or more runs.

use std::fmt::Write as _;

use crate::data::{results::Timeline, units::SECOND};

use super::{
    percentile::{Percentile, Stats},
    summary::Summary,
};

/// `timeline.csv`: a row a slice, which is a second long unless the run outlasted the table (see `width_s`).
///
/// | column | |
/// | --- | --- |
/// | `second` | begin of the slice, seconds since the start |
/// | `issued`, `succeeded`, `failed` | what happened in it |
/// | `width_s` | length of the slice; the last one of a run may have been shorter |
/// | `in_flight` | mean number of requests in flight |
/// | `body_bytes`, `received_bytes`, `output_tokens` | of the requests issued, received, ended in it |
/// | `latency_mean_ms` | of the successes in it; empty without any |
pub fn timeline(timeline: &Timeline) -> String {
    let mut out = String::from(
        "second,issued,succeeded,failed,width_s,in_flight,body_bytes,received_bytes,output_tokens,latency_mean_ms\n",
    );
    let width_s = timeline.width_ns as f64 / SECOND as f64;
    for (i, row) in timeline.rows().iter().enumerate() {
        let in_flight = row.in_flight_ns as f64 / timeline.width_ns as f64;
        let mean = match row.succeeded {
            0 => String::new(),
            n => format!("{:.6}", row.latency_sum_ns as f64 / n as f64 / 1e6),
        };
        let _ = writeln!(
            out,
            "{},{},{},{},{width_s},{in_flight:.3},{},{},{},{mean}",
            i as f64 * width_s,
            row.issued,
            row.succeeded,
            row.failed,
            row.body_bytes,
            row.received_bytes,
            row.output_tokens,
        );
    }
    out
}

/// The figures of runs, one line a run and metric: `run,metric,unit,count,mean,std,min,max,p50,...`, and one line a run and
/// throughput with its value in the column `mean`. Empty where there is no value.
pub fn summaries(runs: &[(String, &Summary)]) -> String {
    let mut percentiles: Vec<Percentile> = runs
        .iter()
        .flat_map(|(_, s)| s.metrics.iter().flat_map(|(_, m)| m.percentiles.iter().map(|(p, _)| *p)))
        .collect();
    percentiles.sort_unstable();
    percentiles.dedup();
    let mut out = String::from("run,metric,unit,count,mean,std,min,max");
    for p in &percentiles {
        let _ = write!(out, ",{}", p.name());
    }
    out.push('\n');
    for (name, summary) in runs {
        let name = field(name);
        for (metric, stats) in summary.metrics.iter() {
            row(&mut out, &name, metric, stats, &percentiles);
        }
        for (figure, value) in summary.throughput.iter() {
            let empty = ",".repeat(3 + percentiles.len());
            let _ = writeln!(out, "{name},{figure},{},,{}{empty}", value.unit, number(value.value));
        }
    }
    out
}

fn row(out: &mut String, run: &str, metric: &str, stats: &Stats, percentiles: &[Percentile]) {
    let _ = write!(out, "{run},{metric},{},{}", stats.unit, stats.count);
    for value in [stats.mean, stats.std, stats.min, stats.max] {
        let _ = write!(out, ",{}", number(value));
    }
    for p in percentiles {
        let _ = write!(out, ",{}", number(stats.at(*p)));
    }
    out.push('\n');
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |v| v.to_string())
}

/// A field, quoted where RFC 4180 section 2 asks for it.
pub(super) fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn timeline_rows_add_up_to_the_buckets() {
        let (_, merged) = fixture::summary();
        let text = timeline(&merged.timeline);
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let head: Vec<_> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        assert_eq!(head[..4], ["second", "issued", "succeeded", "failed"]);
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        let sum = |column: usize| rows.iter().map(|r| r[column].parse::<u64>().unwrap()).sum::<u64>();
        assert_eq!((sum(1), sum(2), sum(3)), (100, 90, 10));
        assert_eq!(&rows[1][0], "1");
    }

    #[test]
    fn figures_of_runs_are_one_table() {
        let (a, _) = fixture::summary();
        let (b, _) = fixture::summarize(&fixture::plan(), &fixture::streaming());
        let text = summaries(&[("a,\"x\"".into(), &a), ("b".into(), &b)]);
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        assert!(rows.iter().any(|r| &r[0] == "a,\"x\"" && &r[1] == "request_latency" && &r[4] == "54.5"), "{text}");
        assert!(rows.iter().any(|r| &r[0] == "b" && &r[1] == "time_to_first_token"));
        assert!(rows.iter().any(|r| &r[1] == "request_throughput" && &r[4] == "45"));
    }
}
