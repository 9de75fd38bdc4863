//! The report layer as a whole: a made-up minute of load with a stall, through every output.
//!
//! The run is made from a seeded generator: latencies with a long tail, a server that stops for two seconds, one in fifty
//! requests failing. What other tools must read (a browser, a JSON Schema, HdrHistogram) is held against the files here.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use ringload::{
    data::{
        Nanos, RecordId, WorkerId,
        metric::Metric,
        outcome::{ErrorClass, Outcome},
        plan::{
            Address, Arrival, CatchUp, GoodputLimit, Order, Pace, Plan, RequestHead, Reuse, Secret, Segment, SendPath,
            Shape, Stop, StreamMode, Target, Timeouts, Tls, Warmup,
        },
        results::{
            Bytes, CacheState, Connections, Cost, DatasetFacts, EndedBy, RunResult, Sample, TargetCounts, WorkerResult,
            latency_cell,
        },
        rows::{Row, Spool, SpoolHeader},
        units::{MILLISECOND, SECOND},
    },
    report::{self, Asked, Percentile, RunDir, Threshold, records, spools::Spools, text},
};
use serde_json::Value;
use zerocopy::IntoBytes;

const RATE: u64 = 400;
const LENGTH_S: u64 = 60;

fn plan() -> Plan {
    let rate = RATE as f64;
    Plan {
        phase: None,
        ramp: Vec::new(),
        prefill: None,
        cancel: None,
        targets: vec![Target {
            url: "http://user:hunter22@inference.example:8000/v1/chat/completions".into(),
            host: "inference.example:8000".into(),
            path: "/v1/chat/completions".into(),
            addresses: vec![Address::Tcp(([127, 0, 0, 1], 8000).into())],
            tls: false,
            local: true,
        }],
        head: RequestHead { bearer: Some(Secret("s3cr3t-token".into())), ..RequestHead::default() },
        shape: Shape::Rate {
            arrival: Arrival::Poisson,
            curve: vec![Segment { duration_ns: SECOND, from: rate, to: rate }],
        },
        catch_up: CatchUp::On,
        concurrency: 256,
        concurrency_asked: true,
        connections: 256,
        stop: Stop {
            sessions: None,
            requests: None,
            duration_ns: Some(LENGTH_S * SECOND),
            passes: None,
            drain_ns: 5 * SECOND,
            max_errors: None,
        },
        warmup: Warmup::Time(5 * SECOND),
        order: Order::Shuffle,
        seed: 7,
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
        cores: vec![Some(2), Some(3)],
        goodput: vec![GoodputLimit { metric: Metric::TimeToFirstToken, limit: 400 * MILLISECOND }],
        preconnect: true,
        ignore_delays: false,
        delay_cap_ns: u64::MAX,
        stop_session_on_failure: false,
        tls: Tls::default(),
        net: ringload::data::net::Net::default(),
    }
}

fn dataset() -> DatasetFacts {
    DatasetFacts {
        format: "mooncake_trace".into(),
        records: 12_031,
        cache: CacheState::Hit,
        key: "3f9a4c1e77d20b58".into(),
        body_bytes: 1_234_567_890,
        stored_bytes: 345_678_901,
        skipped: 0,
        token_source: "tokenizer".into(),
    }
}

/// One request that succeeded as a stream of 33 tokens.
fn stream(w: &mut WorkerResult, at: u64, wait: u64, ttft: u64, itl: u64) {
    const TOKENS: u64 = 33;
    let latency = ttft + itl * (TOKENS - 1);
    w.buckets.succeeded += 1;
    for (metric, value) in [
        (Metric::RequestLatency, latency),
        (Metric::RequestLatencyFromSchedule, latency + wait),
        (Metric::TimeToFirstByte, ttft * 9 / 10),
        (Metric::SendTime, 40_000 + at % 9_000),
        (Metric::ScheduleLag, wait),
        (Metric::TimeToFirstToken, ttft),
        (Metric::TimeToFirstTokenFromSchedule, ttft + wait),
        (Metric::TimeToFirstOutputToken, ttft),
        (Metric::TimeToSecondToken, itl),
        (Metric::InterTokenLatency, itl),
        (Metric::StreamEndLatency, latency + MILLISECOND / 5),
        (Metric::OutputSequenceLength, TOKENS),
        (Metric::InputSequenceLength, 1024),
        (Metric::OutputTokenThroughputPerUser, 1_000_000_000_000 / itl),
    ] {
        w.series[metric as usize].record(value);
    }
    for gap in 1..TOKENS {
        w.series[Metric::InterChunkLatency as usize].record(itl * (gap % 3 + 1) / 2);
    }
    w.output_tokens += TOKENS;
    w.input_tokens += 1024;
    w.good += u64::from(ttft <= 400 * MILLISECOND);
    let row = w.timeline.at(at + latency);
    row.succeeded += 1;
    row.latency_sum_ns += latency;
    row.output_tokens += TOKENS;
    row.received_bytes += 9_000;
    row.cells[latency_cell(latency)] += 1;
    w.timeline.at(at + latency / 2).in_flight_ns += latency;
}

fn worker(n: u16) -> WorkerResult {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(u64::from(n));
    let service = LogNormal::new((90.0f64).ln(), 0.45).unwrap();
    let mut w = WorkerResult::new(WorkerId(n), Some(u32::from(n) + 2), 128);
    for i in 0..RATE / 2 * LENGTH_S {
        let at = i * 2 * SECOND / RATE + u64::from(n) * SECOND / RATE;
        // The server stops from 30 s to 32 s; what arrives then waits for its end.
        let stall = if (30 * SECOND..32 * SECOND).contains(&at) { 32 * SECOND - at } else { 0 };
        let ttft = (service.sample(&mut random) * 1e6) as u64 + stall;
        let itl = 8 * MILLISECOND + random.random_range(0..6 * MILLISECOND);
        w.buckets.scheduled += 1;
        w.buckets.issued += 1;
        let row = w.timeline.at(at);
        row.issued += 1;
        row.body_bytes += 102_400;
        if i % 50 == 7 {
            w.buckets.failed += 1;
            let class = if i % 100 == 7 { ErrorClass::Http5xx } else { ErrorClass::StreamIncomplete };
            w.errors[class as usize] += 1;
            w.timeline.at(at + ttft).failed += 1;
        } else {
            stream(&mut w, at, 20_000 + random.random_range(0..30_000), ttft, itl);
        }
    }
    w.statuses[200] = w.buckets.succeeded + w.errors[ErrorClass::StreamIncomplete as usize];
    w.statuses[503] = w.errors[ErrorClass::Http5xx as usize];
    w.bytes = Bytes {
        bodies: 102_400 * w.buckets.issued,
        sent: 102_700 * w.buckets.issued,
        received: 9_000 * w.buckets.succeeded,
        sent_zero_copy: 0,
        sent_copied: 102_700 * w.buckets.issued,
        sent_file: 0,
    };
    w.connections = Connections { asked: 128, established_peak: 128, opened: 140, ..Connections::default() };
    for _ in 0..140 {
        w.series[Metric::ConnectTime as usize].record(120_000 + random.random_range(0..80_000));
    }
    w.samples = vec![Sample {
        class: ErrorClass::Http5xx,
        record: RecordId(207),
        at_ns: 1_035 * MILLISECOND,
        status: 503,
        what: String::new(),
        first_bytes:
            b"HTTP/1.1 503 Service Unavailable\r\n\r\n{\"error\":\"<overloaded>\",\"you\":\"Bearer s3cr3t-token\"}"
                .to_vec(),
        last_bytes: Vec::new(),
    }];
    w.cost = Cost {
        cpu_user_ns: 900 * MILLISECOND,
        cpu_system_ns: 2_400 * MILLISECOND,
        wall_ns: (LENGTH_S + 1) * SECOND,
        idle_ns: 56 * SECOND,
        longest_batch_ns: 310_000,
        turns: 400_000,
        completions: 700_000,
        switches_voluntary: 300_000,
        ..Cost::default()
    };
    w.first_start = Nanos(0);
    w.last_done = Nanos(LENGTH_S * SECOND + 600 * MILLISECOND);
    w
}

fn result() -> RunResult {
    RunResult {
        workers: vec![worker(0), worker(1)],
        ended_by: EndedBy::Duration,
        started_unix_ns: 1_800_000_000_000_000_000,
        duration_ns: LENGTH_S * SECOND + 600 * MILLISECOND,
        issue_window_ns: LENGTH_S * SECOND,
        notes: vec!["bodies over 64 KiB are sent by copy: the target is on this machine".into()],
        target: Some(TargetCounts { requests: 24_000, verified: 24_000, ..TargetCounts::default() }),
    }
}

fn write(path: &Path) -> (report::Summary, report::Merged) {
    let (plan, facts) = (plan(), dataset());
    let exprs = ["ttft.p99>300ms", "error_rate>5%"];
    let thresholds = exprs.map(|e| Threshold::parse(e).unwrap());
    let asked = Asked { plan: &plan, dataset: &facts, percentiles: &Percentile::DEFAULT, thresholds: &thresholds };
    let (summary, merged) = report::finish(&asked, &result());
    let mut dir = RunDir::prepare(path).unwrap();
    for worker in 0..2 {
        let mut spool = SpoolHeader::new(Spool::Rows, worker, 1_800_000_000_000_000_000).as_bytes().to_vec();
        spool.extend(rows(worker).as_bytes());
        fs::write(path.join(Spool::Rows.name(worker)), spool).unwrap();
    }
    let spools = Spools::find(path).unwrap();
    for format in [records::Format::Jsonl, records::Format::Parquet] {
        assert_eq!(records::write(&mut dir, format, &spools).unwrap(), RATE * LENGTH_S);
    }
    spools.remove().unwrap();
    dir.write_run(&summary, &merged).unwrap();
    (summary, merged)
}

/// Rows of one worker: streams of 33 tokens and 503s, one each 5 ms.
fn rows(worker: u16) -> Vec<Row> {
    let row = |i: u64| {
        let start = i * 2 * SECOND / RATE;
        let base = Row {
            due: Nanos(start),
            start: Nanos(start + 20_000),
            sent: Nanos(start + 60_000),
            first_byte: Nanos(start + 80 * MILLISECOND),
            done: Nanos(start + 400 * MILLISECOND),
            bytes_sent: 102_700,
            bytes_received: 9_000,
            record: (i % 12_031) as u32,
            connection: (i % 128) as u32,
            connection_use: (i / 128) as u32,
            worker,
            status: 200,
            flags: if i < 128 { 0 } else { Row::REUSED },
            ..Row::EMPTY
        };
        if i % 50 == 7 {
            return Row { status: 503, outcome: Outcome::Failed(ErrorClass::Http5xx).code(), ..base };
        }
        Row {
            first_token: Nanos(start + 90 * MILLISECOND),
            first_output: Nanos(start + 90 * MILLISECOND),
            second_token: Nanos(start + 100 * MILLISECOND),
            last_token: Nanos(start + 390 * MILLISECOND),
            input_tokens: 1024,
            output_tokens: 33,
            content_events: 33,
            ..base
        }
    };
    (0..RATE / 2 * LENGTH_S).map(row).collect()
}

#[test]
fn a_run_directory_holds_no_secret_and_its_files_agree() {
    let temp = tempfile::tempdir().unwrap();
    let (summary, merged) = write(temp.path());
    for entry in fs::read_dir(temp.path()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("s3cr3t-token") && !text.contains("hunter22"), "{}", path.display());
        assert!(!text.contains("NaN"), "{}", path.display());
    }
    let run = report::load(temp.path()).unwrap();
    assert_eq!(run.summary, summary);
    assert_eq!(report::exit_code(&run.summary), 99);
    let again = text::render(&run.summary, &run.merged.samples, text::Colour::Off);
    assert_eq!(again, text::render(&summary, &merged.samples, text::Colour::Off));
    assert!(again.contains("***") && again.contains("YES: failed"), "{again}");
    let timeline = fs::read_to_string(temp.path().join("timeline.csv")).unwrap();
    let issued: u64 = timeline.lines().skip(1).map(|l| l.split(',').nth(1).unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(issued, summary.requests.issued);
}

/// A browser, when the machine has one.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .flat_map(|dir| ["chromium", "chromium-browser", "google-chrome"].map(|name| dir.join(name)))
        .find(|program| program.is_file())
}

/// Draws the page in a real browser at a desk's and a phone's width. They and the run go to `RINGLOAD_SCREENSHOTS` when
/// that is set, to be looked at.
#[test]
fn the_page_has_marks_in_a_browser_at_two_widths() {
    let Some(browser) = browser() else { return };
    let temp = tempfile::tempdir().unwrap();
    let shots = std::env::var_os("RINGLOAD_SCREENSHOTS").map_or_else(|| temp.path().to_path_buf(), PathBuf::from);
    write(&shots.join("run"));
    let page = shots.join("run/report.html");
    for (width, height) in [(1280, 2600), (500, 5200)] {
        let shot = shots.join(format!("report-{width}.png"));
        let ran = Command::new("timeout")
            .arg("60")
            .arg(&browser)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--hide-scrollbars",
            ])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .arg(format!("--user-data-dir={}", temp.path().join(format!("profile-{width}")).display()))
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--screenshot={}", shot.display()))
            .arg(format!("file://{}", page.display()))
            .output()
            .unwrap();
        let png = fs::read(&shot).unwrap_or_default();
        assert!(png.starts_with(b"\x89PNG"), "{}", String::from_utf8_lossy(&ran.stderr));
        // A page without marks is a few flat areas, which compress to next to nothing.
        assert!(png.len() > 60_000, "{} bytes at width {width}", png.len());
    }
}

/// The part of JSON Schema 2020-12 that `docs/summary.schema.json` uses. A keyword that is not known here is refused, so the
/// schema cannot promise what no test checks.
fn validate(root: &Value, schema: &Value, value: &Value, at: &str) {
    let check = |ok: bool, why: &str| assert!(ok, "{at}: {why}: {value}");
    for (keyword, rule) in schema.as_object().unwrap() {
        match keyword.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" | "format" | "patternProperties" => {}
            "$ref" => {
                let pointer = rule.as_str().unwrap().strip_prefix('#').unwrap();
                validate(root, root.pointer(pointer).unwrap(), value, at);
            }
            "const" => check(value == rule, "is another constant"),
            "enum" => check(rule.as_array().unwrap().contains(value), "is none of the values"),
            "type" => {
                let is = |name: &Value| match name.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    "number" => value.is_number(),
                    "integer" => value.is_u64() || value.is_i64(),
                    other => panic!("type {other}"),
                };
                check(rule.as_array().map_or_else(|| is(rule), |names| names.iter().any(is)), "has another type");
            }
            "minimum" => check(value.as_f64() >= rule.as_f64(), "is below the minimum"),
            "pattern" => check(pattern(rule.as_str().unwrap(), value.as_str().unwrap()), "does not match"),
            "propertyNames" => {
                let rule = rule["pattern"].as_str().unwrap();
                check(value.as_object().unwrap().keys().all(|k| pattern(rule, k)), "has a name that does not match");
            }
            "required" => {
                for name in rule.as_array().unwrap() {
                    check(value.get(name.as_str().unwrap()).is_some(), &format!("lacks {name}"));
                }
            }
            "items" => {
                for (i, item) in value.as_array().unwrap().iter().enumerate() {
                    validate(root, rule, item, &format!("{at}[{i}]"));
                }
            }
            "properties" | "additionalProperties" => {}
            other => panic!("{at}: keyword {other} is not known"),
        }
    }
    let (Some(members), true) = (value.as_object(), schema.is_object()) else { return };
    for (name, member) in members {
        let here = format!("{at}.{name}");
        if let Some(rule) = schema["properties"].get(name) {
            validate(root, rule, member, &here);
        } else if let Some((_, rule)) =
            schema["patternProperties"].as_object().into_iter().flatten().find(|(p, _)| pattern(p, name))
        {
            validate(root, rule, member, &here);
        } else {
            match schema.get("additionalProperties") {
                Some(Value::Bool(false)) => panic!("{here} is not in the schema"),
                Some(rule @ Value::Object(_)) => validate(root, rule, member, &here),
                _ => {}
            }
        }
    }
}

/// The four patterns of the schema.
fn pattern(pattern: &str, text: &str) -> bool {
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    match pattern {
        "^[a-z0-9_]+$" => !text.is_empty() && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_')),
        "^[0-9]{1,3}$" => text.len() <= 3 && digits(text),
        "^p[0-9.]+$" | "^p[0-9]+([.][0-9]+)?$" => text
            .strip_prefix('p')
            .is_some_and(|p| p.split_once('.').map_or_else(|| digits(p), |(a, b)| digits(a) && digits(b))),
        other => panic!("pattern {other}"),
    }
}

fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/summary.schema.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Holds the summary of a real run to the schema.
pub fn follows_the_schema(summary: &Value) {
    let schema = schema();
    validate(&schema, &schema, summary, "$");
}

#[test]
fn every_summary_is_as_the_schema_says() {
    let schema = schema();
    let summarize = |plan: &Plan, result: &RunResult| {
        let facts = dataset();
        let thresholds = [Threshold::parse("tls_time.p99>1s").unwrap()];
        let percentiles = Percentile::parse_list("12.5,99.999").unwrap();
        let asked = Asked { plan, dataset: &facts, percentiles: &percentiles, thresholds: &thresholds };
        serde_json::from_str::<Value>(&report::finish(&asked, result).0.to_json()).unwrap()
    };
    let full = summarize(&plan(), &result());
    validate(&schema, &schema, &full, "$");
    let mut closed = plan();
    closed.shape = Shape::Closed;
    closed.goodput.clear();
    let mut nothing = result();
    nothing.workers = vec![WorkerResult::new(WorkerId(0), None, 2)];
    (nothing.duration_ns, nothing.target, nothing.ended_by) = (0, None, EndedBy::Interrupt);
    validate(&schema, &schema, &summarize(&closed, &nothing), "$");
    // The validator does find what is wrong.
    for (pointer, wrong) in
        [("/requests/cut", Value::from(-1)), ("/status", "done".into()), ("/metrics/send_time/p50", "x".into())]
    {
        let mut broken = full.clone();
        *broken.pointer_mut(pointer).unwrap() = wrong;
        assert!(std::panic::catch_unwind(|| validate(&schema, &schema, &broken, "$")).is_err(), "{pointer}");
    }
}
