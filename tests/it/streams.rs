//! Streams whose times are known, and what a run keeps of them.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    report::follows_the_schema,
    support::{Conn, OK, Server, adds_up, ringload, run},
};

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const END: &[u8] = b"0\r\n\r\n";

fn event(data: &str) -> Vec<u8> {
    let event = format!("data: {data}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
}

fn content(text: &str) -> Vec<u8> {
    event(&format!("{{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}"))
}

fn finish() -> Vec<u8> {
    event("{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}")
}

fn usage(tokens: u32) -> Vec<u8> {
    event(&format!("{{\"choices\":[],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{tokens}}}}}"))
}

/// Sends each part, and gives the time after each.
fn send_all(conn: &mut Conn, parts: &[(u64, Vec<u8>)]) -> Vec<Instant> {
    // Each part goes out by itself: the kernel must not wait for more to send.
    conn.stream.set_nodelay(true).unwrap();
    let mut times = Vec::new();
    for (pause_ms, bytes) in parts {
        thread::sleep(Duration::from_millis(*pause_ms));
        conn.send(bytes);
        times.push(Instant::now());
    }
    times
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))).unwrap()
}

/// A stream of known times, twenty times over: the median (or the minimum) of every metric is within a millisecond of that of
/// what the server did, worked out by hand from its own clock. This machine may be busy with other tests: that moves some of the
/// runs, and a wrong formula moves all of them, by five milliseconds or more.
#[test]
fn every_metric_is_within_a_millisecond_of_its_value_by_hand() {
    const RUNS: usize = 21;
    let dir = tempfile::tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = seen.clone();
    let server = Server::start(move |conn| {
        while conn.request().is_some() {
            let got = Instant::now();
            let role = event("{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}");
            let think = event("{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}");
            let parts = [
                (10, HEAD.to_vec()),
                (5, role),
                (15, think),
                (20, content("a")),
                (10, content("b c")),
                (10, finish()),
                (5, usage(9)),
                (5, event("[DONE]")),
                (5, END.to_vec()),
            ];
            let times = send_all(conn, &parts);
            let ms = |to: Instant, from: Instant| (to - from).as_secs_f64() * 1e3;
            let at = |k: usize| ms(times[k], got);
            all.lock().unwrap().push([
                ("time_to_first_byte", at(0)),
                ("time_to_first_token", at(2)),
                ("time_to_first_output_token", at(3)),
                ("time_to_second_token", ms(times[3], times[2])),
                ("request_latency", at(4)),
                ("stream_end_latency", at(8)),
                // Nine tokens have eight gaps.
                ("inter_token_latency", ms(times[4], times[2]) / 8.0),
                ("output_token_throughput_per_user", 8.0 / ms(times[4], times[2]) * 1e3),
            ]);
        }
    });
    let n = RUNS.to_string();
    let (code, s) = run(dir.path(), &server.url(), &["-b", "{\"messages\":[],\"stream\":true}", "-c", "1", "-n", &n]);
    assert_eq!((code, s["requests"]["succeeded"].as_u64()), (0, Some(RUNS as u64)), "{s}");
    let seen = seen.lock().unwrap();
    for k in 0..seen[0].len() {
        let mut values: Vec<f64> = seen.iter().map(|run| run[k].1).collect();
        values.sort_by(f64::total_cmp);
        let (name, want) = (seen[0][k].0, [values[RUNS / 2], values[0]]);
        let got = ["p50", "min"].map(|stat| s["metrics"][name][stat].as_f64().unwrap());
        let near = |(got, want): (f64, f64)| {
            let tolerance = if name.ends_with("per_user") { want * 0.05 } else { 1.0 };
            (got - want).abs() <= tolerance
        };
        assert!(got.into_iter().zip(want).any(near), "{name}: {got:?}, by hand {want:?}");
    }
    for (name, want) in [("output_sequence_length", 9.0), ("input_sequence_length", 7.0)] {
        assert_eq!(s["metrics"][name]["mean"], want, "{name}");
    }
    assert_eq!(s["metrics"]["inter_chunk_latency"]["count"], 2 * RUNS);
}

#[test]
fn gaps_of_a_stream_that_fails_are_in_no_figure() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|conn| {
        let mut good = false;
        while conn.request().is_some() {
            let last = if good { finish() } else { event("{\"error\":{\"code\":500,\"message\":\"boom\"}}") };
            let gap = if good { 5 } else { 60 };
            send_all(
                conn,
                &[(0, HEAD.to_vec()), (0, content("a")), (gap, content("b")), (gap, content("c")), (0, last)],
            );
            conn.send(END);
            good = true;
        }
    });
    let (code, s) = run(dir.path(), &server.url(), &["-b", "{\"messages\":[],\"stream\":true}", "-c", "1", "-n", "2"]);
    assert_eq!((code, &s["errors"]["stream_error"]), (0, &1.into()), "{s}");
    let gaps = &s["metrics"]["inter_chunk_latency"];
    assert_eq!(gaps["count"], 2, "{gaps}");
    assert!(gaps["max"].as_f64().unwrap() < 50.0, "{gaps}");
    assert!(s["findings"]["failures"].as_str().unwrap().contains("stream_error"), "{}", s["findings"]);
}

/// Everything that a run directory can hold, of a run against the built-in target.
#[test]
fn what_was_asked_for_is_in_the_run_directory_and_agrees() {
    let dir = tempfile::tempdir().unwrap();
    let bodies: Vec<String> =
        (0..4).map(|k| format!("{{\"messages\":[], \"k\":{k}, \"stream\":true,\"n\":1.10}}")).collect();
    std::fs::write(dir.path().join("d.jsonl"), bodies.join("\n")).unwrap();
    let args = [
        ["-f", "d.jsonl"],
        ["-c", "3"],
        ["-n", "40"],
        ["--repeat", "forever"],
        ["--order", "sequential"],
        ["-o", "out"],
        ["--records", "jsonl"],
        ["--keep-responses", "5"],
        ["--slice", "100ms"],
    ];
    let mut args = args.concat();
    args.extend(["--chunk-times", "--aiperf-artifacts", "--aiperf-inputs"]);
    let (code, _) = run(dir.path(), "builtin:?mode=sse&ttft=20ms&itl=2ms&tokens=6", &args);
    assert_eq!(code, 0);
    let out = dir.path().join("out");
    let summary = json(&out.join("summary.json"));
    follows_the_schema(&summary);
    adds_up(&summary);

    let records = lines(&out.join("records.jsonl"));
    assert_eq!(records.len(), 40);
    for r in &records {
        let times: Vec<u64> = r["content_ns"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
        assert_eq!(times.len() as u64, r["content_events"].as_u64().unwrap());
        assert!(times.is_sorted());
        assert_eq!((&r["content_ns"][0], times.last().copied()), (&r["first_token_ns"], r["last_token_ns"].as_u64()));
    }
    let gaps: usize = records.iter().map(|r| r["content_ns"].as_array().unwrap().len() - 1).sum();
    assert_eq!(summary["metrics"]["inter_chunk_latency"]["count"], gaps);

    let kept = lines(&out.join("responses.jsonl"));
    assert_eq!(kept.len(), 5);
    assert!(kept.iter().all(|r| r["body"].as_str().unwrap().contains("[DONE]") && r["whole"] == true));

    let weighted = &summary["time_weighted"];
    let concurrency = weighted["effective_concurrency"]["mean"].as_f64().unwrap();
    let timeline = summary["throughput"]["effective_concurrency"]["value"].as_f64().unwrap();
    assert!((concurrency - timeline).abs() < 0.3 && concurrency <= 3.0, "{concurrency} {timeline}");
    assert_eq!(weighted["effective_concurrency"]["max"], 3.0);
    assert!(weighted["tokens_in_flight"]["mean"].as_f64().unwrap() > 0.0);

    let slices = &summary["slices"]["rows"];
    let issued: u64 = slices.as_array().unwrap().iter().map(|r| r["issued"].as_u64().unwrap()).sum();
    assert!(issued == 40 && slices.as_array().unwrap().len() > 1, "{slices}");
    assert_eq!(json(&out.join("slices.json"))["slices"].as_array().unwrap().len(), slices.as_array().unwrap().len());

    let theirs = lines(&out.join("profile_export.jsonl"));
    assert_eq!(theirs.len(), 40);
    assert_eq!(theirs[0]["metrics"]["inter_chunk_latency"]["value"].as_array().unwrap().len(), 5);
    let theirs = json(&out.join("profile_export_aiperf.json"));
    assert_eq!((&theirs["schema_version"], &theirs["request_latency"]["count"]), (&"1.4".into(), &40.into()));
    assert_eq!(theirs["effective_concurrency"]["avg"], weighted["effective_concurrency"]["mean"]);
    for file in [
        "profile_export_aiperf.csv",
        "profile_export_aiperf_timeslices.json",
        "profile_export_aiperf_timeslices.csv",
        "slices.csv",
        "summary.csv",
    ] {
        assert!(out.join(file).metadata().unwrap().len() > 100, "{file}");
    }
    let names: Vec<_> =
        std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!names.iter().any(|n| n.ends_with(".spool") || n.ends_with(".part")), "{names:?}");

    exported(dir.path(), &bodies);
}

/// Bodies come back byte for byte from the run, and from what AIPerf would load.
fn exported(dir: &Path, bodies: &[String]) {
    let all = ringload(dir, &["export-requests", "out"]);
    assert_eq!(String::from_utf8(all.stdout).unwrap(), bodies.join("\n") + "\n");
    let some = ringload(dir, &["export-requests", "out", "--records", "2,0"]);
    assert_eq!(String::from_utf8(some.stdout).unwrap(), format!("{}\n{}\n", bodies[2], bodies[0]));
    let to_file = ringload(dir, &["export-requests", "d.jsonl", "--as", "inputs_json", "-o", "again.json"]);
    assert!(to_file.status.success(), "{}", String::from_utf8_lossy(&to_file.stderr));
    assert_eq!(std::fs::read(dir.join("again.json")).unwrap(), std::fs::read(dir.join("out/inputs.json")).unwrap());
    let again = ringload(dir, &["export-requests", "again.json"]);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), bodies.join("\n") + "\n");
    let gone = ringload(dir, &["export-requests", "out", "--cache-dir", "elsewhere"]);
    let why = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert!(gone.status.code() == Some(2) && why.contains("ringload build"), "{why}");
}

#[test]
fn tokens_are_counted_after_the_run_where_the_server_gives_none() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|conn| {
        while conn.request().is_some() {
            send_all(conn, &[(0, HEAD.to_vec()), (5, content("abcd")), (10, content("efgh")), (0, finish())]);
            conn.send(END);
        }
    });
    let body = "{\"messages\":[],\"stream\":true}";
    let args = [
        "-b",
        body,
        "-c",
        "1",
        "-n",
        "5",
        "-o",
        "out",
        "--tokenize-after",
        "--tokenizer",
        "approx:2",
        "--records",
        "jsonl",
    ];
    let (code, s) = run(dir.path(), &server.url(), &args);
    assert_eq!(code, 0, "{s}");
    assert_eq!(s["metrics"]["output_sequence_length"]["mean"], 4.0);
    assert_eq!(s["counted_tokens"], serde_json::json!({ "requests": 5, "tokens": 20, "by": "approx:2" }));
    let itl = s["metrics"]["inter_token_latency"]["p50"].as_f64().unwrap();
    assert!((3.0..20.0).contains(&itl), "{itl}");
    follows_the_schema(&json(&dir.path().join("out/summary.json")));
    let records = lines(&dir.path().join("out/records.jsonl"));
    assert!(records.iter().all(|r| r["output_tokens"] == 4 && r["output_tokens_from"] == "counted"), "{records:?}");
    assert!(!dir.path().join("out/responses.jsonl").exists(), "only with --keep-responses");
}

#[test]
fn a_stream_that_is_encoded_has_no_token_figures_and_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
    );
    let args = [
        "-b",
        "{\"messages\":[],\"stream\":true}",
        "-c",
        "1",
        "-n",
        "3",
        "-t",
        "1",
        "-o",
        "out",
        "--keep-responses",
        "all",
    ];
    let out = ringload(dir.path(), &[&["run", &server.url()], &args[..]].concat());
    let text = String::from_utf8(out.stdout).unwrap();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("3 encoded streams that could not be looked into"), "{text}");
    let s = json(&dir.path().join("out/summary.json"));
    assert_eq!((&s["requests"]["succeeded"], s["metrics"].get("time_to_first_token")), (&3.into(), None));
    let kept = lines(&dir.path().join("out/responses.jsonl"));
    assert!(kept.iter().all(|r| r["body"].is_null() && r["body_escaped"] == "\\x1f\\x8b\\x08\\x00"), "{kept:?}");
}

#[test]
fn flags_of_the_run_directory_go_with_one() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    for flag in [
        &["--chunk-times"][..],
        &["--keep-responses", "3"],
        &["--tokenize-after"],
        &["--slice", "1s"],
        &["--aiperf-artifacts"],
    ] {
        let out = ringload(dir.path(), &[&["run", &server.url(), "-n", "1"], flag].concat());
        let why = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(2) && why.contains(flag[0]) && why.contains("-o DIR"), "{flag:?}: {why}");
    }
    let out = ringload(dir.path(), &["run", &server.url(), "-n", "1", "-o", "x", "--records", "off", "--chunk-times"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(server.requests().is_empty(), "nothing is sent");
}

#[test]
fn figures_come_as_csv_too() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let out =
        ringload(dir.path(), &["run", &server.url(), "-n", "9", "-c", "1", "-q", "-o", "a", "--format-out", "csv"]);
    let printed = String::from_utf8(out.stdout).unwrap();
    assert!(
        printed.starts_with("run,metric,unit,count,mean") && printed.contains("\n1,request_latency,ms,9,"),
        "{printed}"
    );
    let again = ringload(dir.path(), &["report", "a", "--csv"]);
    assert!(String::from_utf8(again.stdout).unwrap().contains("\na,request_latency,ms,9,"));
}
