//! Histograms for other tools: the percentile text of HdrHistogram (`latency.hgrm`) and its V2 interval log
//! (`latency.hlog`).

use std::{
    fmt::Write as _,
    time::{Duration, UNIX_EPOCH},
};

use hdrhistogram::serialization::{
    V2DeflateSerializer,
    interval_log::{IntervalLogWriterBuilder, Tag},
};

use crate::data::metric::{Metric, Series};

use super::{
    merge::Merged,
    percentile::{mean, std_deviation},
    summary::Summary,
};

/// Lines each time the distance to 100 % halves; what HdrHistogram's own tools use.
const TICKS_PER_HALF_DISTANCE: u32 = 5;

/// The percentile text of a series of times, in milliseconds. Without samples it has no lines and no figures in its foot.
pub fn percentile_text(series: &Series) -> String {
    let ms = |ns: f64| ns / 1e6;
    let mut out = format!("{:>14} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let some = series.count > 0;
    if some {
        let mut seen = 0;
        for step in series.hist.iter_quantiles(TICKS_PER_HALF_DISTANCE) {
            seen += step.count_since_last_iteration();
            let value = series.hist.highest_equivalent(step.value_iterated_to()).clamp(series.min, series.max);
            let value = if seen == series.count { series.max } else { value };
            let quantile = step.quantile_iterated_to();
            let _ = write!(out, "{:>14.6} {quantile:>14.12} {seen:>10}", ms(value as f64));
            // The last line has no fourth column, as in the Java tools: it would be infinite.
            if quantile < 1.0 {
                let _ = write!(out, " {:>14.2}", 1.0 / (1.0 - quantile));
            }
            out.push('\n');
        }
    }
    let foot = |v: f64| if some { format!("{:>14.6}", ms(v)) } else { format!("{:>14}", "-") };
    let _ = writeln!(out, "#[Mean    = {}, StdDeviation   = {}]", foot(mean(series)), foot(std_deviation(series)));
    let _ = writeln!(out, "#[Max     = {}, Total count    = {:>14}]", foot(series.max as f64), series.count);
    let _ = writeln!(out, "#[Buckets = {:>14}, SubBuckets     = {:>14}]", series.hist.buckets(), 2048);
    out
}

/// The interval log: one line a metric with samples, tagged with its name, over the whole run. Values are in recorded units
/// (nanoseconds for times), the maximum column in millions of them.
pub fn interval_log(merged: &Merged, summary: &Summary) -> Vec<u8> {
    let start = summary.started_at.parse::<jiff::Timestamp>().map_or(0, |t| t.as_millisecond());
    let start = UNIX_EPOCH + Duration::from_millis(u64::try_from(start).unwrap_or(0));
    let length = Duration::try_from_secs_f64(summary.duration_s).unwrap_or_default();
    let mut out = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder
        .add_comment("[Histogram log format version 1.3]")
        .add_comment("[Logged by ringload; values of time metrics are nanoseconds]")
        .with_start_time(start)
        .with_base_time(start)
        .with_max_value_divisor(1e6);
    // Writing to memory does not fail, and every histogram fits the format.
    if let Ok(mut log) = builder.begin_log_with(&mut out, &mut serializer) {
        for metric in Metric::ALL {
            let series = merged.series(metric);
            if series.count > 0 {
                let written = log.write_histogram(&series.hist, Duration::ZERO, length, Tag::new(metric.name()));
                debug_assert!(written.is_ok());
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn percentile_text_has_head_lines_and_foot_in_milliseconds() {
        let (_, merged) = fixture::summary();
        let text = percentile_text(merged.series(Metric::RequestLatency));
        let lines: Vec<_> = text.lines().collect();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(lines[0]), ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]);
        assert_eq!(words(lines[2])[..2], ["10.002431", "0.000000000000"]);
        let last = words(lines.iter().rfind(|l| !l.starts_with('#')).unwrap());
        assert_eq!(last, ["99.000000", "1.000000000000", "90"]);
        assert!(text.contains("#[Mean    =      54.500000,"), "{text}");
        let values: Vec<f64> = lines[2..lines.len() - 3].iter().map(|l| words(l)[0].parse().unwrap()).collect();
        assert!(values.is_sorted() && values.len() > 10);
    }

    #[test]
    fn no_samples_no_figures() {
        let text = percentile_text(&Series::new());
        assert!(
            !text.contains("NaN") && !text.contains("inf") && text.contains("Total count    =              0"),
            "{text}"
        );
    }

    #[test]
    fn the_log_holds_the_very_histograms() {
        let (summary, merged) = fixture::summary();
        let log = interval_log(&merged, &summary);
        let mut tags = Vec::new();
        for entry in IntervalLogIterator::new(&log) {
            if let LogEntry::Interval(i) = entry.unwrap() {
                tags.push(i.tag().unwrap().as_str().to_owned());
                assert_eq!(i.duration(), Duration::from_secs(2));
            }
        }
        let seen: Vec<_> = Metric::ALL.into_iter().filter(|&m| merged.series(m).count > 0).map(Metric::name).collect();
        assert_eq!(tags, seen);
    }
}
