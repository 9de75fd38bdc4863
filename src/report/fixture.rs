//! A small run for the tests of this layer: two workers, 90 successes from 10 to 99 ms, 10 failures, two seconds.

use crate::data::{
    Nanos, RecordId, WorkerId,
    metric::Metric,
    outcome::ErrorClass,
    plan::{
        Address, CatchUp, Order, Pace, Plan, RequestHead, Reuse, SendPath, Shape, Stop, StreamMode, Target, Timeouts,
        Tls, Warmup,
    },
    results::{
        Bytes, CacheState, Connections, Cost, DatasetFacts, EndedBy, RunResult, Sample, WorkerResult, latency_cell,
    },
    units::{MILLISECOND, SECOND},
};

use super::{Asked, Merged, Percentile, Summary, merge};

pub fn plan() -> Plan {
    Plan {
        phase: None,
        targets: vec![Target {
            url: "http://127.0.0.1:8080/v1/chat/completions".into(),
            host: "127.0.0.1:8080".into(),
            path: "/v1/chat/completions".into(),
            addresses: vec![Address::Tcp(([127, 0, 0, 1], 8080).into())],
            tls: false,
            local: true,
        }],
        head: RequestHead::default(),
        shape: Shape::Closed,
        catch_up: CatchUp::On,
        concurrency: 4,
        concurrency_asked: true,
        ramp: Vec::new(),
        prefill: None,
        cancel: None,
        connections: 4,
        stop: Stop {
            requests: Some(100),
            duration_ns: None,
            sessions: None,
            passes: None,
            drain_ns: 5 * SECOND,
            max_errors: None,
        },
        warmup: Warmup::None,
        order: Order::Sequential,
        seed: 42,
        timeouts: Timeouts {
            connect_ns: 10 * SECOND,
            first_byte_ns: u64::MAX,
            idle_ns: u64::MAX,
            request_ns: 600 * SECOND,
        },
        reuse: Reuse::KeepAlive,
        send: SendPath::Auto,
        stream: StreamMode::Auto,
        stream_end_any: false,
        pace: Pace::Hybrid,
        cores: vec![Some(0), Some(1)],
        goodput: Vec::new(),
        preconnect: false,
        ignore_delays: false,
        delay_cap_ns: u64::MAX,
        stop_session_on_failure: false,
        tls: Tls::default(),
        net: crate::data::net::Net::default(),
    }
}

pub fn dataset() -> DatasetFacts {
    DatasetFacts {
        format: "raw_payload".into(),
        records: 5,
        cache: CacheState::Hit,
        key: "0123abcd".into(),
        body_bytes: 5000,
        stored_bytes: 4096,
        skipped: 0,
        token_source: String::new(),
    }
}

pub fn sample(class: ErrorClass, record: RecordId) -> Sample {
    Sample {
        class,
        record,
        at_ns: 1_500 * MILLISECOND,
        status: 503,
        what: String::new(),
        first_bytes: b"HTTP/1.1 503 Busy\r\n\r\n<b>\x1b[31m\xff".to_vec(),
        last_bytes: Vec::new(),
    }
}

fn worker(n: u16, latencies_ms: impl Iterator<Item = u64>, failed: [u64; 2]) -> WorkerResult {
    let mut w = WorkerResult::new(WorkerId(n), Some(u32::from(n)), 16);
    for (i, ms) in latencies_ms.enumerate() {
        let ns = ms * MILLISECOND;
        w.buckets.succeeded += 1;
        for m in [Metric::RequestLatency, Metric::RequestLatencyFromSchedule, Metric::TimeToFirstByte] {
            w.series[m as usize].record(ns);
        }
        w.series[Metric::SendTime as usize].record(20_000);
        w.series[Metric::ScheduleLag as usize].record(3_000 + i as u64);
        let row = w.timeline.at(i as u64 * 40 * MILLISECOND);
        row.issued += 1;
        row.succeeded += 1;
        row.latency_sum_ns += ns;
        row.in_flight_ns += ns;
        row.body_bytes += 1000;
        row.received_bytes += 300;
        row.cells[latency_cell(ns)] += 1;
    }
    w.buckets.failed = failed.iter().sum();
    w.errors[ErrorClass::Http5xx as usize] = failed[0];
    w.errors[ErrorClass::Reset as usize] = failed[1];
    w.timeline.at(SECOND).failed += w.buckets.failed;
    w.timeline.at(SECOND).issued += w.buckets.failed;
    w.buckets.issued = w.buckets.succeeded + w.buckets.failed;
    w.buckets.scheduled = w.buckets.issued;
    w.statuses[200] = w.buckets.succeeded;
    w.statuses[503] = failed[0];
    w.bytes = Bytes {
        bodies: 1000 * w.buckets.issued,
        sent: 1200 * w.buckets.issued,
        received: 300 * w.buckets.succeeded,
        sent_zero_copy: 0,
        sent_copied: 1200 * w.buckets.issued,
        sent_file: 0,
    };
    w.connections = Connections { asked: 2, established_peak: 2, opened: 3, ..Connections::default() };
    w.series[Metric::ConnectTime as usize].record(150_000);
    w.cost = Cost {
        cpu_user_ns: 20 * MILLISECOND,
        cpu_system_ns: 30 * MILLISECOND,
        wall_ns: 2 * SECOND,
        idle_ns: 1_900 * MILLISECOND,
        longest_batch_ns: 90_000,
        turns: 500,
        completions: 400,
        ..Cost::default()
    };
    w.first_start = Nanos(1000);
    w.last_done = Nanos(2 * SECOND);
    w
}

pub fn result() -> RunResult {
    let mut a = worker(0, (10..55).map(|ms| ms * 2 - 10), [8, 0]);
    let b = worker(1, (10..55).map(|ms| ms * 2 - 9), [0, 2]);
    a.samples = vec![sample(ErrorClass::Http5xx, RecordId(3))];
    RunResult {
        workers: vec![a, b],
        ended_by: EndedBy::Requests,
        started_unix_ns: 1_800_000_000_123_000_000,
        duration_ns: 2 * SECOND,
        issue_window_ns: 1_900 * MILLISECOND,
        notes: Vec::new(),
        target: None,
    }
}

pub fn summarize(plan: &Plan, result: &RunResult) -> (Summary, Merged) {
    let merged = merge(result);
    let asked = Asked { plan, dataset: &dataset(), percentiles: &Percentile::DEFAULT, thresholds: &[] };
    (Summary::new(&asked, result, &merged), merged)
}

pub fn summary() -> (Summary, Merged) {
    summarize(&plan(), &result())
}

/// The same run of streams: every success has a first token at half its latency, 11 tokens and 11 events.
pub fn streaming() -> RunResult {
    let mut result = result();
    for w in &mut result.workers {
        let latencies: Vec<u64> =
            w.series[Metric::RequestLatency as usize].hist.iter_recorded().map(|v| v.value_iterated_to()).collect();
        for ns in latencies {
            let ttft = ns / 2;
            w.series[Metric::TimeToFirstToken as usize].record(ttft);
            w.series[Metric::TimeToFirstOutputToken as usize].record(ttft);
            w.series[Metric::TimeToSecondToken as usize].record(ttft / 10);
            w.series[Metric::InterTokenLatency as usize].record(ttft / 10);
            for _ in 0..10 {
                w.series[Metric::InterChunkLatency as usize].record(ttft / 10);
            }
            w.series[Metric::StreamEndLatency as usize].record(ns + 100_000);
            w.series[Metric::OutputSequenceLength as usize].record(11);
            w.series[Metric::InputSequenceLength as usize].record(250);
            w.series[Metric::OutputTokenThroughputPerUser as usize].record(1_000_000_000_000 / (ttft / 10));
            w.output_tokens += 11;
            w.input_tokens += 250;
        }
    }
    result
}
