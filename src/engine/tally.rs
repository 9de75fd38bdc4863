//! Counts what has ended: one row in, series, buckets, timeline and samples out. Allocates nothing after it is made.

use super::stamps::{Chain, Stamps};
use crate::data::{
    Nanos,
    metric::Metric,
    outcome::{ErrorClass, Outcome},
    plan::GoodputLimit,
    results::{Sample, TimelineRow, WorkerResult, latency_cell},
    rows::{NONE_U32, Row},
};
use crate::data::{RecordId, WorkerId, limits};

/// A worker's result while it grows.
#[derive(Debug)]
pub struct Tally {
    /// What is counted so far.
    pub result: WorkerResult,
    goodput: Vec<GoodputLimit>,
    /// Zero of the timeline: when measuring began.
    measured_from: Nanos,
    samples_by_class: [u32; ErrorClass::COUNT],
    /// Samples with their memory taken, not used yet.
    spare: Vec<Sample>,
}

/// What a failure leaves for its sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence<'a> {
    /// What went wrong, in words; may be empty.
    pub what: &'a str,
    /// First bytes of the response.
    pub first: &'a [u8],
    /// Last bytes of the response.
    pub last: &'a [u8],
}

impl Tally {
    /// An empty tally.
    pub fn new(worker: WorkerId, core: Option<u32>, goodput: Vec<GoodputLimit>) -> Self {
        let mut result = WorkerResult::new(worker, core, limits::TIMELINE_ROWS);
        let most = limits::SAMPLES_PER_CLASS as usize * ErrorClass::COUNT;
        result.samples.reserve_exact(most);
        let spare = || Sample {
            class: ErrorClass::Reset,
            record: RecordId(0),
            at_ns: 0,
            status: 0,
            what: String::with_capacity(128),
            first_bytes: Vec::with_capacity(limits::SAMPLE_BYTES),
            last_bytes: Vec::with_capacity(limits::SAMPLE_BYTES),
        };
        Self {
            result,
            goodput,
            measured_from: Nanos::NONE,
            samples_by_class: [0; ErrorClass::COUNT],
            spare: (0..most).map(|_| spare()).collect(),
        }
    }

    /// Measuring begins: the timeline's zero.
    pub fn measure_from(&mut self, from: Nanos) {
        self.measured_from = from;
    }

    /// True once measuring began.
    #[inline]
    pub fn measuring(&self) -> bool {
        self.measured_from.is_some()
    }

    /// The timeline's slice at a time; none before measuring began.
    #[inline]
    pub fn slice(&mut self, at: Nanos) -> Option<&mut TimelineRow> {
        if !self.measured_from.is_some() {
            return None;
        }
        Some(self.result.timeline.at(at.since(self.measured_from)))
    }

    /// Adds that `requests` were in flight from `from` to `to`, each slice its part; what was before measuring is left out.
    #[inline]
    pub fn in_flight(&mut self, from: Nanos, to: Nanos, requests: u64) {
        if !self.measured_from.is_some() || requests == 0 {
            return;
        }
        let (mut at, end) = (from.since(self.measured_from), to.since(self.measured_from));
        while at < end {
            // Looked at after the slice was touched: touching it may double the width.
            self.result.timeline.at(at);
            let width = self.result.timeline.width_ns;
            let next = end.min((at / width + 1) * width);
            self.result.timeline.at(at).in_flight_ns += (next - at) * requests;
            at = next;
        }
    }

    /// True while samples of a class are still kept.
    #[inline]
    pub fn wants_sample(&self, class: ErrorClass) -> bool {
        self.samples_by_class[class as usize] < limits::SAMPLES_PER_CLASS
    }

    /// True while samples of any class that a response's bytes could belong to are still kept.
    #[inline]
    pub fn wants_bytes(&self) -> bool {
        !self.spare.is_empty()
    }

    /// Counts the gaps between the content events of a stream that succeeded.
    #[inline]
    pub(super) fn count_gaps(&mut self, stamps: &Stamps, times: &Chain) {
        let gaps = &mut self.result.series[Metric::InterChunkLatency as usize];
        stamps.gaps(times, |gap| gaps.record(gap));
    }

    /// Counts one request that has ended. Warm-up requests are in no figure.
    #[inline]
    pub fn count(&mut self, row: &Row, body_bytes: u64, outcome: Outcome, evidence: Evidence<'_>) {
        if row.has(Row::WARMUP) {
            return;
        }
        let result = &mut self.result;
        result.buckets.issued += 1;
        result.buckets.scheduled += 1;
        if let Some(start) = row.start.get() {
            if start < result.first_start.0 {
                result.first_start = row.start;
            }
            if !result.last_start.is_some() || result.last_start < row.start {
                result.last_start = row.start;
            }
            if let Some(due) = row.due.get() {
                result.series[Metric::ScheduleLag as usize].record(start.saturating_sub(due));
            }
        }
        if row.status > 0
            && outcome != Outcome::Cut
            && let Some(count) = result.statuses.get_mut(row.status as usize)
        {
            *count += 1;
        }
        let done = row.done;
        if outcome != Outcome::Cut && (!result.last_done.is_some() || result.last_done < done) {
            result.last_done = done;
        }
        match outcome {
            Outcome::Succeeded => self.count_success(row, body_bytes),
            Outcome::Failed(class) => self.count_failure(row, class, evidence),
            Outcome::Cut => {
                result.buckets.cut += 1;
                result.buckets.cancelled += u64::from(row.has(Row::CANCELLED));
            }
        }
    }

    #[inline]
    fn count_success(&mut self, row: &Row, _body_bytes: u64) {
        self.result.buckets.succeeded += 1;
        for metric in OF_A_REQUEST {
            if let Some(value) = row.value(metric) {
                self.result.series[metric as usize].record(value);
            }
        }
        if row.content_events != NONE_U32 {
            for metric in OF_A_STREAM {
                if let Some(value) = row.value(metric) {
                    self.result.series[metric as usize].record(value);
                }
            }
        }
        for metric in OF_TOKENS {
            if let Some(value) = row.value(metric) {
                self.result.series[metric as usize].record(value);
            }
        }
        self.result.input_tokens += if row.input_tokens == NONE_U32 { 0 } else { u64::from(row.input_tokens) };
        let output = if row.output_tokens == NONE_U32 { 0 } else { u64::from(row.output_tokens) };
        self.result.output_tokens += output;
        if !self.goodput.is_empty() && self.goodput.iter().all(|l| row.value(l.metric).is_some_and(|v| v <= l.limit)) {
            self.result.good += 1;
        }
        let latency = row.value(Metric::RequestLatency).unwrap_or(0);
        if let Some(slice) = self.slice(row.done) {
            slice.succeeded += 1;
            slice.latency_sum_ns += latency;
            slice.output_tokens += output;
            slice.cells[latency_cell(latency)] += 1;
        }
    }

    #[cold]
    fn count_failure(&mut self, row: &Row, class: ErrorClass, evidence: Evidence<'_>) {
        self.result.buckets.failed += 1;
        self.result.errors[class as usize] += 1;
        let unsent = !row.start.is_some();
        if let Some(slice) = self.slice(row.done) {
            slice.failed += 1;
            // A connection that failed on the request's behalf: it counts as issued when it failed.
            slice.issued += u64::from(unsent);
        }
        if !self.wants_sample(class) {
            return;
        }
        let Some(mut sample) = self.spare.pop() else { return };
        self.samples_by_class[class as usize] += 1;
        sample.class = class;
        sample.record = RecordId(row.record);
        sample.at_ns = row.done.since(if self.measured_from.is_some() { self.measured_from } else { row.done });
        sample.status = row.status;
        sample.what.push_str(evidence.what.get(..evidence.what.len().min(128)).unwrap_or(""));
        sample.first_bytes.extend_from_slice(&evidence.first[..evidence.first.len().min(limits::SAMPLE_BYTES)]);
        sample.last_bytes.extend_from_slice(&evidence.last[..evidence.last.len().min(limits::SAMPLE_BYTES)]);
        self.result.samples.push(sample);
    }
}

const OF_A_REQUEST: [Metric; 4] =
    [Metric::RequestLatency, Metric::RequestLatencyFromSchedule, Metric::TimeToFirstByte, Metric::SendTime];

const OF_A_STREAM: [Metric; 7] = [
    Metric::TimeToFirstToken,
    Metric::TimeToFirstTokenFromSchedule,
    Metric::TimeToFirstOutputToken,
    Metric::TimeToSecondToken,
    Metric::InterTokenLatency,
    Metric::StreamEndLatency,
    Metric::OutputTokenThroughputPerUser,
];

const OF_TOKENS: [Metric; 3] = [Metric::OutputSequenceLength, Metric::InputSequenceLength, Metric::ReasoningTokenCount];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_in_flight_are_spread_over_the_slices_that_they_were_in() {
        let second = 1_000_000_000;
        let mut t = Tally::new(WorkerId(0), None, Vec::new());
        t.in_flight(Nanos(0), Nanos(5), 1);
        t.measure_from(Nanos(second));
        t.in_flight(Nanos(second / 2), Nanos(3 * second + second / 10), 3);
        let of: Vec<u64> = t.result.timeline.rows().iter().map(|row| row.in_flight_ns).collect();
        assert_eq!(of, [3 * second, 3 * second, 3 * second / 10], "none of what was before measuring began");
    }

    #[test]
    fn buckets_add_up_and_failures_stay_out_of_the_latency_figures() {
        let mut t = Tally::new(WorkerId(0), None, vec![GoodputLimit { metric: Metric::TimeToFirstToken, limit: 200 }]);
        t.measure_from(Nanos(0));
        t.count(&Row::for_tests(), 0, Outcome::Succeeded, Evidence::default());
        let evidence = Evidence { what: "reset", first: b"HTTP/1.1 2", last: b"" };
        for _ in 0..10 {
            t.count(&Row::for_tests(), 0, Outcome::Failed(ErrorClass::Reset), evidence);
        }
        t.count(&Row::for_tests(), 0, Outcome::Cut, Evidence::default());
        t.count(&Row { flags: Row::WARMUP, ..Row::for_tests() }, 0, Outcome::Succeeded, Evidence::default());
        let r = &t.result;
        assert!(r.buckets.add_up());
        assert_eq!((r.buckets.issued, r.buckets.succeeded, r.buckets.failed, r.buckets.cut), (12, 1, 10, 1));
        assert_eq!(r.series[Metric::RequestLatency as usize].count, 1);
        assert_eq!(r.samples.len(), limits::SAMPLES_PER_CLASS as usize);
        assert_eq!(r.samples[0].first_bytes, b"HTTP/1.1 2");
        assert_eq!(r.good, 1);
        assert_eq!(r.statuses[200], 11);
    }
}
