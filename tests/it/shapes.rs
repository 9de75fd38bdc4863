//! Load shapes and run control, seen from the server's side: who came when, over which connection, and what the report says.
//!
//! This file is long because it holds one test for each shape and each way to end a run.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{OK, Server, adds_up, ringload, run};

/// Writes sessions of so many turns; each body says which session and turn it is.
fn sessions(dir: &Path, count: usize, turns: usize, delay_ms: u64) -> PathBuf {
    let mut text = String::new();
    for k in 0..turns {
        for s in 0..count {
            let time = if k == 0 { "\"timestamp\":0".to_owned() } else { format!("\"delay\":{delay_ms}") };
            writeln!(text, "{{\"session_id\":\"s{s}\",{time},\"payload\":{{\"s\":{s},\"k\":{k}}}}}").unwrap();
        }
    }
    let path = dir.join("sessions.jsonl");
    std::fs::write(&path, text).unwrap();
    path
}

fn bodies(dir: &Path, count: usize) -> PathBuf {
    let path = dir.join("bodies.jsonl");
    std::fs::write(&path, (0..count).map(|i| format!("{{\"i\":{i}}}\n")).collect::<String>()).unwrap();
    path
}

fn field(body: &[u8], name: &str) -> u64 {
    serde_json::from_slice::<Value>(body).unwrap()[name].as_u64().unwrap()
}

/// One line of the built-in target's log.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first_ns: u64,
    answered_ns: u64,
    thread: u64,
    connection: u64,
    record: u64,
}

/// Runs against the built-in target; the summary, and what the server saw in the order in which it came.
fn run_logged(dir: &Path, options: &str, args: &[&str]) -> (Value, Vec<Seen>) {
    let log = dir.join("target.log");
    let url = format!("builtin:?log={}&{options}", log.display());
    let (code, summary) = run(dir, &url, &[args, &["--body-digest"]].concat());
    assert_eq!(code, 0, "{summary}");
    adds_up(&summary);
    let text = std::fs::read_to_string(log).unwrap();
    let mut seen: Vec<Seen> = text
        .lines()
        .skip(1)
        .map(|line| {
            let f: Vec<u64> = line.split('\t').map(|f| f.parse().unwrap_or(u64::MAX)).collect();
            Seen { first_ns: f[0], answered_ns: f[2], thread: f[3], connection: f[4], record: f[5] }
        })
        .collect();
    seen.sort_by_key(|s| s.first_ns);
    (summary, seen)
}

fn count(summary: &Value, bucket: &str) -> u64 {
    summary["requests"][bucket].as_u64().unwrap_or(0)
}

/// A server that answers after a time, and knows how many it had at once.
struct Gauge {
    server: Server,
    peak: Arc<AtomicI64>,
    now: Arc<AtomicI64>,
}

impl Gauge {
    fn start(service: Duration) -> Self {
        let (now, peak) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
        let (n, p) = (now.clone(), peak.clone());
        let server = Server::start(move |conn| {
            while conn.request().is_some() {
                p.fetch_max(n.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(service);
                n.fetch_sub(1, Ordering::SeqCst);
                conn.send(OK);
            }
        });
        Self { server, peak, now }
    }
}

#[test]
fn a_count_of_sessions_ends_the_run_after_their_last_turns() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let data = sessions(dir.path(), 5, 3, 0);
    for (threads, shape) in
        [("1", vec!["-c", "4"]), ("2", vec!["-R", "500"]), ("2", vec!["-c", "3", "--repeat", "forever"])]
    {
        let before = server.requests().len();
        let args = [&["-f", data.to_str().unwrap(), "--sessions", "4", "-t", threads][..], &shape].concat();
        let (code, summary) = run(dir.path(), &server.url(), &args);
        adds_up(&summary);
        assert_eq!(
            (code, count(&summary, "succeeded"), summary["ended_by"].as_str()),
            (0, 12, Some("requests")),
            "{args:?}"
        );
        let mut turns = HashMap::new();
        for r in &server.requests()[before..] {
            *turns.entry(field(&r.body, "s")).or_insert(0) += 1;
        }
        assert_eq!(turns.len(), 4, "whole sessions only: {turns:?}");
        assert!(turns.values().all(|&n| n == 3), "{turns:?}");
    }
}

#[test]
fn users_send_their_turns_a_constant_time_apart_and_together_at_the_asked_rate() {
    let dir = tempfile::tempdir().unwrap();
    let data = sessions(dir.path(), 100, 4, 0);
    let args = ["-f", data.to_str().unwrap(), "-R", "100", "--user-centric", "10", "-d", "2s", "-t", "2"];
    let (summary, seen) = run_logged(dir.path(), "mode=null&delay=2ms", &args);
    assert_eq!((count(&summary, "succeeded"), seen.len()), (200, 200), "a slot each 10 ms");
    assert_eq!(summary["rate"]["achieved_rps"].as_f64().unwrap().round(), 100.0);
    // Record k * 100 + s is turn k of session s. Each user's turns are 100 ms apart.
    let mut by_session: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for s in &seen {
        by_session.entry(s.record % 100).or_default().push(s.first_ns);
    }
    assert!(by_session.len() > 50, "sessions of users follow each other: {}", by_session.len());
    let gaps: Vec<u64> = by_session.values().flat_map(|at| at.windows(2).map(|w| w[1] - w[0])).collect();
    let even = gaps.iter().filter(|&&gap| gap.abs_diff(100_000_000) < 20_000_000).count();
    // Other tests run beside this one: most gaps, not all.
    assert!(even * 4 >= gaps.len() * 3, "{even} of {}: {gaps:?}", gaps.len());
}

#[test]
fn users_whose_answers_are_late_are_late_and_no_due_time_moves() {
    let dir = tempfile::tempdir().unwrap();
    let server = Gauge::start(Duration::from_millis(150));
    let data = sessions(dir.path(), 8, 4, 0);
    // Two users with a slot each 100 ms, and answers that take 150 ms: turn k is 50 k ms late.
    let args = ["-f", data.to_str().unwrap(), "-R", "20", "--user-centric", "2", "--sessions", "2", "--drain", "5s"];
    let (code, summary) = run(dir.path(), &server.server.url(), &args);
    adds_up(&summary);
    assert_eq!(code, 0);
    let from_schedule = summary["metrics"]["request_latency_from_schedule"]["max"].as_f64().unwrap();
    let service = summary["metrics"]["request_latency"]["max"].as_f64().unwrap();
    // A busy machine makes answers later than 150 ms, and what waits behind them later still.
    assert!(from_schedule > 280.0 && from_schedule > service + 100.0, "{service} {from_schedule}");
}

#[test]
fn no_more_requests_than_asked_are_without_a_first_token() {
    let dir = tempfile::tempdir().unwrap();
    let (waiting, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let (streaming, streams) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let (w, m, s, t) = (waiting, most.clone(), streaming, streams.clone());
    let server = Server::start(move |conn| {
        if conn.request().is_some() {
            m.fetch_max(w.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            conn.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n");
            std::thread::sleep(Duration::from_millis(15));
            // The client may start the next as soon as it has the token.
            w.fetch_sub(1, Ordering::SeqCst);
            t.fetch_max(s.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            conn.send(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n");
            std::thread::sleep(Duration::from_millis(80));
            s.fetch_sub(1, Ordering::SeqCst);
            conn.send(b"data: [DONE]\n\n");
        }
    });
    let args = ["-b", "{}", "-c", "12", "--prefill-concurrency", "2", "-n", "30", "-t", "2"];
    let (code, summary) = run(dir.path(), &server.url(), &args);
    adds_up(&summary);
    assert_eq!((code, count(&summary, "succeeded")), (0, 30), "{summary}");
    assert!(most.load(Ordering::SeqCst) <= 2, "{most:?}");
    assert!(streams.load(Ordering::SeqCst) >= 4, "the cap is on the first token alone: {streams:?}");
}

#[test]
fn requests_are_broken_off_by_share_and_are_no_errors() {
    let dir = tempfile::tempdir().unwrap();
    let closed = Arc::new(AtomicU64::new(0));
    let seen = closed.clone();
    let server = Server::start(move |conn| {
        while conn.request().is_some() {
            std::thread::sleep(Duration::from_millis(60));
            conn.send(OK);
            // Whoever was broken off has closed its connection by now.
            conn.stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            let mut byte = [0];
            if matches!(conn.stream.peek(&mut byte), Ok(0)) || conn.stream.take_error().unwrap().is_some() {
                seen.fetch_add(1, Ordering::SeqCst);
                break;
            }
            conn.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
    });
    let mut cancelled = Vec::new();
    for threads in ["1", "2"] {
        let out = dir.path().join(threads);
        let args = [
            "-b",
            "{}",
            "-c",
            "6",
            "-n",
            "60",
            "--cancel-rate",
            "40%",
            "--cancel-after",
            "10ms",
            "-t",
            threads,
            "-o",
            out.to_str().unwrap(),
            "--records",
            "jsonl",
        ];
        let (code, summary) = run(dir.path(), &server.url(), &args);
        adds_up(&summary);
        let n = count(&summary, "cancelled");
        assert_eq!((code, n, count(&summary, "failed")), (0, count(&summary, "cut"), 0), "{summary}");
        assert_eq!(count(&summary, "succeeded") + n, 60);
        assert!((12..=36).contains(&n), "{n} of 60 at 40 %");
        assert_eq!(summary["metrics"]["request_latency"]["count"].as_u64(), Some(60 - n));
        let records = std::fs::read_to_string(out.join("records.jsonl")).unwrap();
        assert_eq!(records.matches("\"outcome\":\"cancelled\"").count() as u64, n);
        cancelled.push(n);
    }
    assert_eq!(cancelled[0], cancelled[1], "which ones is a matter of the seed, not of the workers");
    let deadline = Instant::now() + Duration::from_secs(5);
    while closed.load(Ordering::SeqCst) < cancelled[0] + cancelled[1] && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(closed.load(Ordering::SeqCst) >= cancelled[0] + cancelled[1], "{closed:?} {cancelled:?}");
}

#[test]
fn an_answer_before_the_breaking_off_counts() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let args = ["-b", "{}", "-c", "2", "-n", "20", "--cancel-rate", "100", "--cancel-after", "5s"];
    let (code, summary) = run(dir.path(), &server.url(), &args);
    assert_eq!((code, count(&summary, "succeeded"), count(&summary, "cancelled")), (0, 20, 0), "{summary}");
}

#[test]
fn concurrency_goes_up_with_the_ramp_and_follows_its_stages() {
    let dir = tempfile::tempdir().unwrap();
    let gauge = Gauge::start(Duration::from_millis(10));
    let watch = |args: &[&str]| {
        let (url, now) = (gauge.server.url(), gauge.now.clone());
        let stop = Arc::new(AtomicU64::new(0));
        let halted = stop.clone();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = seen.clone();
        let sampler = std::thread::spawn(move || {
            let mut first = None;
            while halted.load(Ordering::SeqCst) == 0 {
                let n = now.load(Ordering::SeqCst);
                if n > 0 {
                    let at = *first.get_or_insert_with(Instant::now);
                    kept.lock().unwrap().push((at.elapsed().as_millis() as u64, n));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let (code, summary) = run(dir.path(), &url, args);
        stop.store(1, Ordering::SeqCst);
        sampler.join().unwrap();
        adds_up(&summary);
        assert_eq!(code, 0, "{summary}");
        let seen = seen.lock().unwrap().clone();
        move |from: u64, to: u64| seen.iter().filter(|s| (from..to).contains(&s.0)).map(|s| s.1).max().unwrap_or(0)
    };
    let most = watch(&["-b", "{}", "-c", "16", "--ramp-up", "1500ms", "-d", "2s", "-t", "2"]);
    assert!(most(0, 300) <= 6 && most(300, 700) <= 10, "{} {}", most(0, 300), most(300, 700));
    assert!(most(1_500, 2_000) >= 14, "{}", most(1_500, 2_000));
    let most = watch(&["-b", "{}", "--stages", "500ms:c3,500ms:c9,500ms:c2", "-t", "2"]);
    assert!(
        most(0, 450) <= 3 && (7..=9).contains(&most(600, 950)) && most(1_100, 1_450) <= 2,
        "{} {}",
        most(0, 450),
        most(1_100, 1_450)
    );
    assert!(gauge.peak.load(Ordering::SeqCst) <= 16);
}

#[test]
fn a_rate_series_is_played_from_point_to_point() {
    let dir = tempfile::tempdir().unwrap();
    let series = dir.path().join("rates.json");
    std::fs::write(
        &series,
        r#"{"points": [{"time_s": 0, "qps": 50}, {"time_s": 1, "qps": 150}, {"time_s": 1.5, "qps": 0}]}"#,
    )
    .unwrap();
    let args = ["-b", "{}", "--rate-series", series.to_str().unwrap(), "-t", "2"];
    let (summary, seen) = run_logged(dir.path(), "mode=null", &args);
    // 100 in the first second, 37.5 in the half second after it.
    assert_eq!(count(&summary, "succeeded"), 138, "{}", summary["requests"]);
    let begun = seen[0].first_ns;
    let before = |s: f64| seen.iter().filter(|e| ((e.first_ns - begun) as f64) < s * 1e9).count();
    assert!(before(0.5).abs_diff(38) <= 3 && before(1.0).abs_diff(100) <= 3, "{} {}", before(0.5), before(1.0));
}

#[test]
fn each_session_has_its_own_connection_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let data = sessions(dir.path(), 12, 3, 10);
    for shape in [&["-c", "4"][..], &["-R", "300"], &["--schedule"]] {
        let args = [&["-f", data.to_str().unwrap(), "--reuse", "session", "-t", "2"], shape].concat();
        let (summary, seen) = run_logged(dir.path(), "mode=null&delay=1ms", &args);
        assert_eq!(count(&summary, "succeeded"), 36, "{summary}");
        let mut sessions_of: BTreeMap<(u64, u64), Vec<u64>> = BTreeMap::new();
        for s in &seen {
            sessions_of.entry((s.thread, s.connection)).or_default().push(s.record);
        }
        assert_eq!(sessions_of.len(), 12, "{shape:?}: {sessions_of:?}");
        for records in sessions_of.values() {
            let first = records[0];
            assert_eq!(*records, [first, first + 12, first + 24], "turns of one session, in order, alone on it");
        }
    }
    // Connections that the server closes between turns are opened again.
    let args = ["-f", data.to_str().unwrap(), "--reuse", "session", "-c", "3"];
    let (summary, seen) = run_logged(dir.path(), "mode=null&close_every=1", &args);
    assert_eq!((count(&summary, "succeeded"), seen.len()), (36, 36));
}

#[test]
fn phases_have_figures_of_their_own_and_begin_when_the_one_before_is_drained() {
    let dir = tempfile::tempdir().unwrap();
    let server = Gauge::start(Duration::from_millis(300));
    for (start, overlap) in [("drained", false), ("seamless", true)] {
        let config = dir.path().join("phases.toml");
        let text = format!(
            "threads = 2\n[[phase]]\nname = \"low\"\nrate = 20\nduration = \"500ms\"\n\
             [[phase]]\nname = \"closed\"\nconcurrency = 3\nrequests = 6\nstart = \"{start}\"\n"
        );
        std::fs::write(&config, text).unwrap();
        let out = dir.path().join(start);
        let (url, out_text) = (server.server.url(), out.to_str().unwrap().to_owned());
        let args = [
            "run",
            &url,
            "-b",
            "{}",
            "--json",
            "--quiet",
            "--config",
            config.to_str().unwrap(),
            "-o",
            &out_text,
            "--records",
            "jsonl",
        ];
        let got = ringload(dir.path(), &args);
        assert_eq!(got.status.code(), Some(0), "{}", String::from_utf8_lossy(&got.stderr));
        let summaries: Value = serde_json::from_slice(&got.stdout).unwrap();
        let [low, closed] = summaries.as_array().unwrap().as_slice() else { panic!("two phases: {summaries}") };
        for (summary, name, n) in [(low, "low", 10), (closed, "closed", 6)] {
            adds_up(summary);
            assert_eq!((summary["plan"]["phase"].as_str(), count(summary, "succeeded")), (Some(name), n), "{summary}");
            let records = std::fs::read_to_string(out.join(name).join("records.jsonl")).unwrap();
            assert_eq!(records.lines().count() as u64, n, "{start} {name}");
            assert!(out.join(name).join("summary.json").exists());
        }
        assert_eq!((low["ended_by"].as_str(), closed["ended_by"].as_str()), (Some("duration"), Some("requests")));
        let time = |s: &Value, of: &str| s[of].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond();
        let gap = time(closed, "started_at") - (time(low, "started_at") + 500);
        if overlap {
            assert!(gap.abs() < 60, "seamless: {gap} ms after the end of the first");
        } else {
            assert!((200..600).contains(&gap), "drained: {gap} ms after the end of the first");
        }
    }
}

#[test]
fn an_interrupt_in_a_phase_keeps_the_figures_of_those_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let config = dir.path().join("p.toml");
    std::fs::write(
        &config,
        "[[phase]]\nrequests = 20\n[[phase]]\nrate = 200\nduration = '30s'\n[[phase]]\nrequests = 5\n",
    )
    .unwrap();
    let args = ["run", &server.url(), "-b", "{}", "--config", config.to_str().unwrap(), "--json", "--quiet"];
    let (code, out) = interrupted(dir.path(), &args, || server.requests().len() > 60);
    let summaries: Value = serde_json::from_slice(&out).unwrap();
    let all = summaries.as_array().unwrap();
    assert_eq!((code, all.len()), (130, 2), "{summaries}");
    assert_eq!((all[0]["status"].as_str(), all[0]["ended_by"].as_str()), (Some("complete"), Some("requests")));
    assert_eq!((all[1]["status"].as_str(), all[1]["ended_by"].as_str()), (Some("partial"), Some("interrupt")));
}

#[test]
fn an_interrupt_in_the_drain_of_a_phase_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|conn| {
        while conn.request().is_some() {
            std::thread::sleep(Duration::from_millis(1_500));
            conn.send(OK);
        }
    });
    let config = dir.path().join("p.toml");
    std::fs::write(&config, "[[phase]]\nrequests = 2\nconcurrency = 2\n[[phase]]\nrequests = 2\n").unwrap();
    let args = ["run", &server.url(), "-b", "{}", "-t", "1", "--config", config.to_str().unwrap(), "--json", "--quiet"];
    let (code, out) = interrupted(dir.path(), &args, || server.requests().len() == 2);
    let summaries: Value = serde_json::from_slice(&out).unwrap();
    let all = summaries.as_array().unwrap();
    assert_eq!((code, all.len()), (130, 1), "{summaries}");
    assert_eq!((all[0]["status"].as_str(), all[0]["ended_by"].as_str()), (Some("partial"), Some("interrupt")));
}

#[test]
fn a_phase_that_cannot_be_leaves_no_folder_of_any() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let phases = "[[phase]]\nname = \"a\"\nrequests = 1\n[[phase]]\nname = \"b\"\nschedule = true\n";
    std::fs::write(dir.path().join("phases.toml"), phases).unwrap();
    let out = ringload(dir.path(), &["run", &server.url(), "-b", "{}", "--config", "phases.toml", "-o", "out"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(2) && said.contains("phase b"), "{said}");
    assert!(!dir.path().join("out").exists() && server.requests().is_empty());
}

/// Starts the program, sends SIGINT once a condition holds, and returns its exit status and stdout.
fn interrupted(dir: &Path, args: &[&str], ready: impl Fn() -> bool) -> (i32, Vec<u8>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ringload"))
        .args(args)
        .env("RINGLOAD_CACHE_DIR", dir.join("cache"))
        .current_dir(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !ready() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    (child.wait().unwrap().code().unwrap_or(-1), out)
}

#[test]
fn an_interrupted_run_is_measured_to_the_interrupt() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let url = server.url();
    let begun = Instant::now();
    let args = ["run", &url, "-b", "{}", "-R", "100", "-d", "60s", "-t", "1", "--json", "--quiet"];
    let (code, out) = interrupted(dir.path(), &args, || server.requests().len() >= 100);
    let summary: Value = serde_json::from_slice(&out).unwrap();
    adds_up(&summary);
    assert_eq!((code, summary["status"].as_str()), (130, Some("partial")));
    let window = summary["issue_window_s"].as_f64().unwrap();
    assert!(window >= 0.9 && window < begun.elapsed().as_secs_f64(), "{window}");
    let achieved = summary["rate"]["achieved_rps"].as_f64().unwrap();
    assert!((90.0..=105.0).contains(&achieved), "{achieved}/s over the time that it ran, not over the asked 60 s");
    assert!(summary["duration_s"].as_f64().unwrap() < 5.0, "{}", summary["duration_s"]);
}

#[test]
fn achieved_rates_are_those_that_were_asked_for_when_nothing_holds_them_up() {
    let dir = tempfile::tempdir().unwrap();
    for (args, asked) in [
        (&["-R", "200", "-n", "101"][..], 200.0),
        (&["-R", "37.5", "-d", "2s", "-t", "2"], 37.5),
        (&["-R", "300", "-n", "200", "--warmup", "300ms"], 300.0),
    ] {
        let (code, summary) = run(dir.path(), "builtin:", &[&["-b", "{}"], args].concat());
        let rate = &summary["rate"];
        let achieved = rate["achieved_rps"].as_f64().unwrap();
        assert_eq!((code, rate["asked_rps"].as_f64()), (0, Some(asked)), "{args:?}");
        assert!((achieved / asked - 1.0).abs() < 0.03, "{args:?}: {achieved}");
        let succeeded = rate["succeeded_rps"].as_f64().unwrap();
        assert!((succeeded / asked - 1.0).abs() < 0.05, "{args:?}: the window reaches to the stop: {succeeded}");
    }
}

#[test]
fn a_cap_that_holds_a_rate_down_is_named_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let server = Gauge::start(Duration::from_millis(95));
    // 50 a second for 4 s at 2 in flight and 95 ms an answer: about 21 a second go out.
    let base = ["-b", "{}", "-R", "50", "-c", "2", "-d", "2s", "-t", "1"];
    let (_, kept) = run(dir.path(), &server.server.url(), &[&base[..], &["--drain", "10s"]].concat());
    adds_up(&kept);
    assert_eq!((count(&kept, "scheduled"), count(&kept, "succeeded"), count(&kept, "missed")), (100, 100, 0));
    let (_, dropped) = run(dir.path(), &server.server.url(), &[&base[..], &["--catch-up", "off"]].concat());
    adds_up(&dropped);
    assert_eq!(count(&dropped, "scheduled"), 100);
    assert!((50..=66).contains(&count(&dropped, "missed")), "{}", dropped["requests"]);
    let got =
        ringload(dir.path(), &[&["run", &server.server.url(), "--quiet"][..], &base, &["--catch-up", "off"]].concat());
    let text = String::from_utf8_lossy(&got.stdout).into_owned();
    assert!(text.contains("below what was asked by") && text.contains("found no free slot"), "{text}");
    assert!(!text.contains("the client, not the server"), "{text}");
}

#[test]
fn a_run_of_a_millisecond_sends_something() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    for args in [&["-c", "1", "-d", "1ms"][..], &["-R", "10", "-d", "1ms"], &["-c", "4", "-d", "100us", "-t", "2"]] {
        let (code, summary) = run(dir.path(), &server.url(), &[&["-b", "{}"], args].concat());
        assert_eq!(code, 0, "{args:?} {summary}");
        assert!(count(&summary, "succeeded") >= 1, "{args:?}");
    }
}

#[test]
fn a_bound_of_errors_is_kept_to_the_request() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n");
    let failed = |args: &[&str]| {
        let (code, summary) = run(dir.path(), &server.url(), &[&["-b", "{}", "-c", "1"], args].concat());
        adds_up(&summary);
        assert_eq!((code, summary["ended_by"].as_str()), (1, Some("error")), "{args:?} {summary}");
        count(&summary, "failed")
    };
    assert_eq!(failed(&["--max-errors", "7", "-n", "10k"]), 7);
    assert_eq!(failed(&["--max-errors", "25%", "-n", "40"]), 10, "30 more successes would still leave 25 %");
    assert_eq!(failed(&["--max-errors", "50%", "-d", "20s"]), 100, "a share needs 100 to speak of");
    assert_eq!(failed(&["--max-errors", "0%", "-n", "20"]), 1);
    // Workers hold the bound together.
    let n = failed(&["--max-errors", "50", "-n", "100k", "-c", "8", "-t", "2"]);
    assert!((50..=80).contains(&n), "{n}");
    // And none is no reason to end.
    let fine = Server::always(OK);
    let (code, _) = run(dir.path(), &fine.url(), &["-b", "{}", "-n", "300", "--max-errors", "0%"]);
    assert_eq!(code, 0);
}

#[test]
fn a_reset_inside_an_upload_is_a_reset() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|conn| {
        let mut some = [0u8; 4096];
        let _ = conn.stream.read(&mut some);
        // Closing with bytes unread and no linger resets the connection while the client is sending.
        socket2::SockRef::from(&conn.stream).set_linger(Some(Duration::ZERO)).unwrap();
        let dead = conn.stream.try_clone().unwrap();
        drop(std::mem::replace(&mut conn.stream, dead));
        socket2::SockRef::from(&conn.stream).shutdown(std::net::Shutdown::Read).unwrap();
    });
    let body = dir.path().join("big");
    std::fs::write(&body, vec![b'x'; 40 << 20]).unwrap();
    let args = ["-B", body.to_str().unwrap(), "-c", "1", "-n", "3", "--timeout", "10s"];
    let (code, summary) = run(dir.path(), &server.url(), &args);
    adds_up(&summary);
    assert_eq!((code, summary["errors"]["reset"].as_u64()), (1, Some(3)), "{}", summary["errors"]);
}

#[test]
fn flags_that_would_do_nothing_are_refused_with_the_cure() {
    let dir = tempfile::tempdir().unwrap();
    let flat = bodies(dir.path(), 3);
    let turns = sessions(dir.path(), 2, 2, 0);
    let (flat, turns) = (flat.to_str().unwrap(), turns.to_str().unwrap());
    for (args, said) in [
        (vec!["--arrival", "poisson"], "--arrival goes with a rate: -R"),
        (vec!["-f", turns, "-R", "5", "--user-centric", "2", "--arrival", "poisson"], "evenly spaced"),
        (vec!["-f", flat, "-R", "5", "--user-centric", "2"], "no record has a later turn"),
        (vec!["--user-centric", "2"], "--rate <RPS>"),
        (vec!["--speedup", "2"], "--speedup goes with --schedule"),
        (vec!["--catch-up", "off"], "--catch-up: nothing is overdue in a closed loop"),
        (vec!["-f", turns, "--schedule", "--ramp-up", "1s"], "--ramp-up: a schedule"),
        (vec!["--pace", "spin"], "--pace: a closed loop"),
        (vec!["-f", flat, "--on-failed-turn", "stop"], "--on-failed-turn: no record has a later turn"),
        (vec!["-f", flat, "--ignore-delays"], "--ignore-delays: no record has a later turn"),
        (vec!["-f", turns, "--ignore-delays", "--delay-cap", "1s"], "--delay-cap: --ignore-delays leaves no delay"),
        (vec!["--sessions", "3"], "without one give -n"),
        (vec!["-f", flat, "--reuse", "session"], "--reuse session: no record has a later turn"),
        (vec!["-c", "4", "--stages", "1s:c3"], "-c: the stages say"),
        (vec!["--stages", "1s:c3,1s:10"], "all as requests in flight"),
        (vec!["-c", "4", "--connections", "2"], "--connections: fewer than -c"),
        (vec!["-c", "4", "--prefill-concurrency", "5"], "more than -c"),
        (vec!["--prefill-concurrency", "5", "--stream", "off"], "a first token is seen in a stream alone"),
        (vec!["--cancel-after", "1s"], "--cancel-after goes with --cancel-rate"),
        (vec!["--cancel-rate", "0%"], "a share above 0%"),
        (vec!["--cold", "--reuse", "never"], "--cold: with --reuse never"),
        (vec!["--stream", "off", "--stream-end", "any"], "--stream-end: with --stream off"),
        (vec!["--order", "shuffle"], "--order: there is one body"),
        (vec!["-f", turns, "--schedule", "--order", "shuffle"], "--order: a schedule has one order"),
        (vec!["--limit", "3"], "--limit goes with a dataset"),
        (vec!["--resolve", "a:1:127.0.0.1"], "--resolve 'a:1:127.0.0.1': builtin: has no host name"),
        (vec!["--json", "--format-out", "text"], "--json: contradicts --format-out text"),
        (vec!["--rate-series", "none.json", "-R", "5"], "cannot be used with"),
        (vec!["--rate-series", "none.json"], "cannot read the rate series none.json"),
        (vec!["-R", "20m"], "at most 10 million a second"),
        (vec!["-n", "-5"], "invalid value '-5' for '--requests <N>': expected a whole number"),
        (vec!["-R", "-1"], "invalid value '-1' for '--rate <RPS>': expected a rate"),
        (vec!["-c", "-1"], "invalid value '-1' for '--concurrency <N>'"),
        (vec!["-d", "-1s"], "invalid value '-1s' for '--duration <TIME>': expected a duration"),
    ] {
        let args = [&["run", "builtin:", "--quiet"][..], &args].concat();
        let out = ringload(dir.path(), &args);
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!((out.status.code(), err.contains(said)), (Some(2), true), "{args:?}: wanted '{said}', got {err}");
    }
    let out = ringload(dir.path(), &["run", "builtin:", "--cores", "900", "-n", "1"]);
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((out.status.code(), err.contains("core 900") && err.contains("allowed")), (Some(3), true), "{err}");
}

#[test]
fn a_wrong_value_that_nobody_typed_says_where_it_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_ringload"))
        .args(["run", "builtin:", "-n", "1"])
        .env("RINGLOAD_CONCURRENCY", "lots")
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2));
    assert!(err.contains("'lots'") && err.contains("the environment variable RINGLOAD_CONCURRENCY"), "{err}");
    let config = dir.path().join("c.toml");
    std::fs::write(&config, "concurrency = 'many'\n").unwrap();
    let out = ringload(dir.path(), &["run", "builtin:", "-n", "1", "--config", config.to_str().unwrap()]);
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(err.contains("'many'") && err.contains("c.toml: concurrency"), "{err}");
}

#[test]
fn a_dry_run_tells_counts_due_times_memory_and_send_paths() {
    let dir = tempfile::tempdir().unwrap();
    let out = ringload(
        dir.path(),
        &["run", "builtin:", "-b", "{}", "-R", "100", "-n", "7", "-c", "5", "-t", "2", "--dry-run"],
    );
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    for said in [
        "nothing is sent",
        "3 in flight over 3 connections, 4 requests, first due at 0 ns, 20.0 ms, 40.0 ms, 60.0 ms",
        "2 in flight over 2 connections, 3 requests, first due at 10.0 ms, 30.0 ms, 50.0 ms",
        "bodies sent  1 behind their heads",
        "memory       bodies (mapped)",
    ] {
        assert!(text.contains(said), "'{said}' is not in\n{text}");
    }
}

#[test]
fn a_dag_runs_in_its_order_as_the_server_saw_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for g in 0..40 {
        let turn =
            |of: &str, more: &str| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{of}\"}}]{more}}}");
        let id = |name: &str| format!("g{g}-{name}");
        let (a, b, c) = (id("a"), id("b"), id("c"));
        // The root's first turn spawns two children, which its second turn waits for; the second forks a third.
        writeln!(
            text,
            "{{\"session_id\":\"{}\",\"turns\":[{},{},{}]}}",
            id("root"),
            turn(&id("0"), &format!(",\"spawns\":[\"{a}\",\"{b}\"]")),
            turn(&id("1"), ""),
            turn(&id("2"), &format!(",\"forks\":[\"{c}\"]")),
        )
        .unwrap();
        for (child, turns) in [(&a, 2), (&b, 1), (&c, 2)] {
            let turns: Vec<String> = (0..turns).map(|t| turn(&format!("{child}-{t}"), "")).collect();
            writeln!(text, "{{\"session_id\":\"{child}\",\"turns\":[{}]}}", turns.join(",")).unwrap();
        }
    }
    let path = dir.path().join("dag.jsonl");
    std::fs::write(&path, text).unwrap();
    let edges = edges_of(dir.path(), &path);
    assert_eq!(edges.len(), 40 * 8, "each graph has eight requests");
    for shape in [&["-c", "16"][..], &["-R", "800"]] {
        let args = [&["-f", path.to_str().unwrap(), "--format", "dag_jsonl", "-t", "2"], shape].concat();
        let (summary, seen) = run_logged(dir.path(), "mode=null&delay=1ms&jitter=4ms", &args);
        assert_eq!((count(&summary, "succeeded"), seen.len()), (320, 320));
        in_order(&edges, &seen);
    }
}

/// The records that each record waits for, out of `inspect`.
fn edges_of(dir: &Path, data: &Path) -> Vec<Vec<u64>> {
    let mut edges = Vec::new();
    loop {
        let n = edges.len().to_string();
        let args = ["inspect", data.to_str().unwrap(), "--format", "dag_jsonl", "--record", &n, "--json"];
        let out = ringload(dir, &args);
        if !out.status.success() {
            return edges;
        }
        let record: Value = serde_json::from_slice(&out.stdout).unwrap();
        edges.push(record["predecessors"].as_array().unwrap().iter().map(|p| p.as_u64().unwrap()).collect());
    }
}

/// Each record once, and none before the answers to all that it waits for.
fn in_order(edges: &[Vec<u64>], seen: &[Seen]) {
    let by_record: HashMap<u64, &Seen> = seen.iter().map(|s| (s.record, s)).collect();
    assert_eq!(by_record.len(), edges.len());
    let mut joins = 0;
    for (record, before) in edges.iter().enumerate() {
        joins += usize::from(before.len() > 1);
        for p in before {
            let (first, answered) = (by_record[&(record as u64)].first_ns, by_record[p].answered_ns);
            assert!(answered <= first, "record {record} came {} ns before the answer to {p}", answered - first);
        }
    }
    assert!(joins > 0, "the dataset has joins");
}

#[test]
fn turns_that_a_failed_one_kept_from_being_played_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let sessions = dir.path().join("sessions");
    std::fs::create_dir(&sessions).unwrap();
    for s in 0..3 {
        std::fs::write(sessions.join(format!("{s}.jsonl")), "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n").unwrap();
    }
    let server = Server::always(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
    let (_, summary) = run(dir.path(), &server.url(), &["-f", "sessions", "-c", "1"]);
    assert_eq!(summary["requests"]["issued"], 3, "{summary}");
    let notes = summary["notes"].to_string();
    assert!(notes.contains("3 failed requests had a turn after them, which was not scheduled"), "{notes}");
}
