//! The workers' tables of one run (or of several runs) as one table.
//!
//! Everything is integers, so the order of merging does not matter, and percentiles come from merged histograms, never
//! from averaged percentiles.

use crate::data::{
    ids::Nanos,
    limits::SAMPLES_PER_CLASS,
    metric::{Metric, Series},
    outcome::ErrorClass,
    plan::RequestHead,
    results::{Buckets, Bytes, Connections, Cost, RunResult, Sample, Timeline, WorkerResult},
};

use super::percentile::{Percentile, value_at};

/// A whole run. Tables by metric, class and status have the lengths of their worker twins.
#[derive(Clone, Debug)]
pub struct Merged {
    /// Buckets.
    pub buckets: Buckets,
    /// Failures by class.
    pub errors: Vec<u64>,
    /// Complete responses by status.
    pub statuses: Vec<u64>,
    /// Bytes.
    pub bytes: Bytes,
    /// Connections. The peak is the sum of the workers' peaks.
    pub connections: Connections,
    /// Samples by metric.
    pub series: Vec<Series>,
    /// What happened when.
    pub timeline: Timeline,
    /// Kept failures, by class and then by time; at most four times [`SAMPLES_PER_CLASS`] of a class.
    pub samples: Vec<Sample>,
    /// Successes that met every limit of `--goodput`.
    pub good: u64,
    /// Input tokens of the successes whose count is known.
    pub input_tokens: u64,
    /// Output tokens of the successes whose count is known.
    pub output_tokens: u64,
    /// First start of a measured request.
    pub first_start: Nanos,
    /// Last end of a measured request.
    pub last_done: Nanos,
    /// What each worker cost, in worker order.
    pub workers: Vec<WorkerFigures>,
}

/// One worker's own figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WorkerFigures {
    /// Which worker, from 0.
    pub worker: u16,
    /// The core it was pinned to.
    pub core: Option<u32>,
    /// Requests that it issued.
    pub issued: u64,
    /// Cost.
    pub cost: Cost,
    /// Median of start - due, nanoseconds.
    pub lag_p50_ns: Option<u64>,
    /// 99th percentile of the same.
    pub lag_p99_ns: Option<u64>,
    /// Maximum of the same.
    pub lag_max_ns: Option<u64>,
}

impl Merged {
    /// A run in which nothing happened.
    pub(super) fn empty(timeline: Timeline) -> Self {
        Self {
            buckets: Buckets::default(),
            errors: vec![0; ErrorClass::COUNT],
            statuses: vec![0; 1000],
            bytes: Bytes::default(),
            connections: Connections::default(),
            series: (0..Metric::COUNT).map(|_| Series::new()).collect(),
            timeline,
            samples: Vec::new(),
            good: 0,
            input_tokens: 0,
            output_tokens: 0,
            first_start: Nanos::NONE,
            last_done: Nanos::NONE,
            workers: Vec::new(),
        }
    }

    /// The series of a metric.
    pub fn series(&self, metric: Metric) -> &Series {
        &self.series[metric as usize]
    }

    /// Failures of a class.
    pub fn errors_of(&self, class: ErrorClass) -> u64 {
        self.errors[class as usize]
    }

    /// Adds another run's: the shards of a distributed run, or repeats that are looked at as one.
    pub fn add(&mut self, other: &Self) {
        self.buckets.add(&other.buckets);
        add_each(&mut self.errors, &other.errors);
        add_each(&mut self.statuses, &other.statuses);
        add_bytes(&mut self.bytes, &other.bytes);
        add_connections(&mut self.connections, &other.connections);
        for (a, b) in self.series.iter_mut().zip(&other.series) {
            a.merge(b);
        }
        self.timeline.merge(&other.timeline);
        self.samples.extend(other.samples.iter().cloned());
        sort_samples(&mut self.samples);
        self.good += other.good;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.first_start = self.first_start.min(other.first_start);
        self.last_done = later(self.last_done, other.last_done);
        self.workers.extend(&other.workers);
        self.check();
    }

    /// Replaces every secret of the plan's head (the bearer token, the values of sensitive fields) in the kept failures: a
    /// server may well echo what it was sent.
    pub fn hide_secrets(&mut self, head: &RequestHead) {
        let secrets = secrets(head);
        for sample in &mut self.samples {
            for secret in &secrets {
                hide(&mut sample.first_bytes, secret);
                hide(&mut sample.last_bytes, secret);
                if let Ok(text) = std::str::from_utf8(secret)
                    && sample.what.contains(text)
                {
                    sample.what = sample.what.replace(text, HIDDEN);
                }
            }
        }
    }

    /// Holds the invariants: nothing is lost and nothing counted twice.
    pub(super) fn check(&self) {
        let b = &self.buckets;
        assert!(b.scheduled == b.issued + b.missed, "scheduled = issued + missed: {b:?}");
        assert!(b.issued == b.succeeded + b.failed + b.cut, "issued = succeeded + failed + cut: {b:?}");
        assert!(self.errors.iter().sum::<u64>() == b.failed, "every failure has one class: {b:?} {:?}", self.errors);
        assert!(self.good <= b.succeeded, "good requests are successes");
    }
}

/// The tables of one run's workers as one. Panics when a worker's buckets do not add up: that is a mistake of ours, and a
/// wrong number is worse than none.
pub fn merge(result: &RunResult) -> Merged {
    let rows = result.workers.iter().map(|w| w.timeline.rows().len()).max().unwrap_or(0);
    let width = result.workers.iter().map(|w| w.timeline.width_ns).max().unwrap_or(crate::data::units::SECOND);
    let mut all = Merged::empty(Timeline::new(width, rows));
    for worker in &result.workers {
        add_worker(&mut all, worker);
    }
    sort_samples(&mut all.samples);
    all.check();
    all
}

fn add_worker(all: &mut Merged, worker: &WorkerResult) {
    assert!(worker.buckets.add_up(), "the buckets of worker {} add up: {:?}", worker.worker, worker.buckets);
    assert!(worker.series.len() == Metric::COUNT && worker.errors.len() == ErrorClass::COUNT);
    all.buckets.add(&worker.buckets);
    add_each(&mut all.errors, &worker.errors);
    add_each(&mut all.statuses, &worker.statuses);
    add_bytes(&mut all.bytes, &worker.bytes);
    add_connections(&mut all.connections, &worker.connections);
    for (a, b) in all.series.iter_mut().zip(&worker.series) {
        assert!(b.count == b.hist.len(), "a series and its histogram count the same");
        a.merge(b);
    }
    all.timeline.merge(&worker.timeline);
    all.samples.extend(worker.samples.iter().cloned());
    all.good += worker.good;
    all.input_tokens += worker.input_tokens;
    all.output_tokens += worker.output_tokens;
    all.first_start = all.first_start.min(worker.first_start);
    all.last_done = later(all.last_done, worker.last_done);
    let lag = &worker.series[Metric::ScheduleLag as usize];
    all.workers.push(WorkerFigures {
        worker: worker.worker.0,
        core: worker.core,
        issued: worker.buckets.issued,
        cost: worker.cost,
        lag_p50_ns: value_at(lag, Percentile::P50),
        lag_p99_ns: value_at(lag, Percentile::P99),
        lag_max_ns: (lag.count > 0).then_some(lag.max),
    });
}

/// What stands where a secret stood.
const HIDDEN: &str = "***";
/// Shorter values are not looked for: they would turn up by chance.
const SECRET_BYTES_MIN: usize = 4;

/// The values that no output may show, the longest first, so that a part of one never hides only a part of it.
pub(super) fn secrets(head: &RequestHead) -> Vec<Vec<u8>> {
    const FIELDS: [&str; 5] = ["auth", "cookie", "key", "secret", "token"];
    let mut secrets: Vec<Vec<u8>> = head.bearer.iter().map(|s| s.0.clone().into_bytes()).collect();
    for (name, value) in &head.headers {
        let name = name.to_ascii_lowercase();
        if FIELDS.iter().any(|f| name.contains(f)) {
            // `Bearer x` is hidden as `x` too: a server may take it apart.
            secrets.extend(value.split_once(' ').map(|(_, rest)| rest.as_bytes().to_vec()));
            secrets.push(value.clone().into_bytes());
        }
    }
    secrets.retain(|s| s.len() >= SECRET_BYTES_MIN);
    secrets.sort_by_key(|s| std::cmp::Reverse(s.len()));
    secrets
}

pub(super) fn hide(bytes: &mut Vec<u8>, secret: &[u8]) {
    let mut from = 0;
    while let Some(at) = memchr::memmem::find(&bytes[from..], secret) {
        bytes.splice(from + at..from + at + secret.len(), HIDDEN.bytes());
        from += at + HIDDEN.len();
    }
    // What was cut off at the end may end in the beginning of one.
    let most = secret.len().min(bytes.len());
    if let Some(n) = (SECRET_BYTES_MIN..most).rev().find(|&n| bytes.ends_with(&secret[..n])) {
        bytes.truncate(bytes.len() - n);
        bytes.extend(HIDDEN.bytes());
    }
}

fn later(a: Nanos, b: Nanos) -> Nanos {
    match (a.get(), b.get()) {
        (None, _) => b,
        (_, None) => a,
        (Some(x), Some(y)) => Nanos(x.max(y)),
    }
}

fn sort_samples(samples: &mut Vec<Sample>) {
    samples.sort_by_key(|s| (s.class, s.at_ns, s.record));
    // Workers keep a few each; more than this over all of them tells nothing new.
    let most = SAMPLES_PER_CLASS as usize * 4;
    let mut seen = [0usize; ErrorClass::COUNT];
    samples.retain(|s| {
        seen[s.class as usize] += 1;
        seen[s.class as usize] <= most
    });
}

fn add_each(to: &mut [u64], from: &[u64]) {
    for (a, b) in to.iter_mut().zip(from) {
        *a += b;
    }
}

fn add_bytes(to: &mut Bytes, from: &Bytes) {
    to.bodies += from.bodies;
    to.sent += from.sent;
    to.received += from.received;
    to.sent_zero_copy += from.sent_zero_copy;
    to.sent_copied += from.sent_copied;
    to.sent_file += from.sent_file;
}

fn add_connections(to: &mut Connections, from: &Connections) {
    to.asked += from.asked;
    to.established_peak += from.established_peak;
    to.opened += from.opened;
    to.failed += from.failed;
    to.resent += from.resent;
    to.resumed += from.resumed;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::{RecordId, WorkerId, results::EndedBy},
        report::fixture,
    };

    #[test]
    fn percentiles_come_from_merged_histograms() {
        // One worker at 1 ms, one at 100 ms: the mean of their p90s would be 50 ms.
        let mut result = fixture::result();
        for (worker, ms) in result.workers.iter_mut().zip([1, 100]) {
            worker.series[Metric::RequestLatency as usize].clear();
            for _ in 0..50 {
                worker.series[Metric::RequestLatency as usize].record(ms * 1_000_000);
            }
        }
        let merged = merge(&result);
        assert_eq!(merged.series(Metric::RequestLatency).count, 100);
        assert_eq!(
            value_at(merged.series(Metric::RequestLatency), Percentile::parse("90").unwrap()),
            Some(100_000_000)
        );
    }

    #[test]
    fn order_of_workers_does_not_change_the_figures() {
        let mut result = fixture::result();
        let a = merge(&result);
        result.workers.reverse();
        let b = merge(&result);
        assert_eq!((a.buckets, &a.errors, a.bytes, a.connections), (b.buckets, &b.errors, b.bytes, b.connections));
        assert_eq!(a.samples, b.samples);
        for (x, y) in a.series.iter().zip(&b.series) {
            assert_eq!((x.count, x.sum, x.sum_sq, x.min, x.max), (y.count, y.sum, y.sum_sq, y.min, y.max));
            assert_eq!(x.hist, y.hist);
        }
    }

    #[test]
    #[should_panic(expected = "add up")]
    fn lost_requests_are_never_reported() {
        let mut result = fixture::result();
        result.workers[0].buckets.succeeded -= 1;
        merge(&result);
    }

    #[test]
    fn secrets_are_in_no_sample() {
        let mut merged = merge(&fixture::result());
        let mut sample = fixture::sample(ErrorClass::Reset, RecordId(1));
        sample.first_bytes = b"you sent Bearer s3cr3t-tok and key-12345; again s3cr3t-to".to_vec();
        sample.last_bytes = b"s3cr3t-tok".to_vec();
        sample.what = "echo s3cr3t-tok".into();
        merged.samples = vec![sample];
        let head = RequestHead {
            bearer: Some(crate::data::plan::Secret("s3cr3t-tok".into())),
            headers: vec![("X-Api-Key".into(), "key-12345".into()), ("Accept".into(), "you sent".into())],
            ..RequestHead::default()
        };
        merged.hide_secrets(&head);
        let sample = &merged.samples[0];
        assert_eq!(String::from_utf8_lossy(&sample.first_bytes), "you sent Bearer *** and ***; again ***");
        assert_eq!((sample.last_bytes.as_slice(), sample.what.as_str()), (b"***".as_slice(), "echo ***"));
        // A secret that its replacement contains ends all the same.
        let mut stars = b"*****".to_vec();
        hide(&mut stars, b"****");
        assert_eq!(stars, b"****");
    }

    #[test]
    fn samples_are_bounded_over_many_workers() {
        let mut result = fixture::result();
        result.ended_by = EndedBy::Requests;
        for n in 0..100 {
            let mut worker = WorkerResult::new(WorkerId(n), None, 2);
            worker.samples = vec![fixture::sample(ErrorClass::Reset, RecordId(u32::from(n))); 3];
            result.workers.push(worker);
        }
        let resets = merge(&result).samples.iter().filter(|s| s.class == ErrorClass::Reset).count();
        assert_eq!(resets, SAMPLES_PER_CLASS as usize * 4);
    }
}
