//! `ringload run` against servers that do what a test says.

use std::{io::Write, thread, time::Duration};

use crate::support::{OK, Server, adds_up, ringload, run};

#[test]
fn bodies_go_out_byte_for_byte_in_order_over_one_kept_connection() {
    let dir = tempfile::tempdir().unwrap();
    let lines = [r#"{ "b":1, "a" : 1e0 }"#, r#"{"id":4634343214213523454123,"t":1.10,"t":2}"#, r#"{"x":"\u00e9 \/"}"#];
    std::fs::write(dir.path().join("d.jsonl"), lines.join("\n")).unwrap();
    let server = Server::always(OK);
    let (code, summary) = run(dir.path(), &server.url(), &["-f", "d.jsonl", "-c", "1"]);
    assert_eq!(code, 0, "{summary}");
    let sent: Vec<_> = server.requests().into_iter().map(|r| String::from_utf8(r.body).unwrap()).collect();
    assert_eq!(sent, lines);
    assert_eq!(summary["connections"]["opened"], 1);
    assert_eq!(summary["bytes"]["bodies"], lines.iter().map(|l| l.len()).sum::<usize>());
    adds_up(&summary);
}

#[test]
fn counts_are_exact_over_workers_that_do_not_divide_them() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    for (threads, slots, requests) in [("2", "7", 41), ("2", "1", 5), ("3", "3", 100)] {
        let before = server.requests().len();
        let n = requests.to_string();
        let (code, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-t", threads, "-c", slots, "-n", &n]);
        assert_eq!((code, summary["requests"]["succeeded"].as_u64()), (0, Some(requests)));
        assert_eq!(server.requests().len() - before, requests as usize);
        adds_up(&summary);
    }
}

#[test]
fn a_response_in_single_bytes_is_the_same_response() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|conn| {
        while conn.request().is_some() {
            let whole = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=\"\\\"\"\r\nhello\r\n0\r\nA: b\r\n\r\n";
            for byte in whole {
                conn.send(&[*byte]);
            }
        }
    });
    let (code, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "-n", "3", "--timeout", "10s"]);
    assert_eq!(code, 0, "{summary}");
    assert_eq!(summary["status_codes"]["200"], 3);
    assert_eq!(summary["connections"]["opened"], 1);
}

#[test]
fn failures_have_the_class_of_their_cause() {
    let dir = tempfile::tempdir().unwrap();
    for (answer, class) in [
        (&b""[..], "no_response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", "truncated"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "truncated"),
        (b"SSH-2.0-x\r\n", "framing"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", "framing"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "unexpected_upgrade"),
        (b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "http_4xx"),
        (b"HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "http_3xx"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", "stream_empty"),
    ] {
        let server = Server::start(move |conn| {
            conn.request();
            conn.send(answer);
        });
        let (code, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "-n", "2", "--timeout", "10s"]);
        assert_eq!(code, 1, "{class}");
        assert_eq!(summary["errors"], serde_json::json!({ class: 2 }), "{}", String::from_utf8_lossy(answer));
        adds_up(&summary);
    }
}

#[test]
fn an_early_answer_is_classed_by_its_status_and_not_as_a_reset() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("big"), vec![b'x'; 24 << 20]).unwrap();
    let server = Server::start(|conn| {
        conn.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        thread::sleep(Duration::from_millis(50));
    });
    let (_, summary) = run(dir.path(), &server.url(), &["-B", "big", "-c", "1", "-n", "2", "--timeout", "10s"]);
    assert_eq!(summary["errors"], serde_json::json!({ "http_4xx": 2 }), "{summary}");
}

#[test]
fn a_large_body_to_a_slow_reader_arrives_whole() {
    let dir = tempfile::tempdir().unwrap();
    let body: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    std::fs::write(dir.path().join("big"), &body).unwrap();
    let server = Server::start(|conn| {
        let small = nix::sys::socket::sockopt::RcvBuf;
        nix::sys::socket::setsockopt(&conn.stream, small, &16_384).unwrap();
        while conn.request().is_some() {
            conn.send(OK);
        }
    });
    let record = format!("{{\"x\":\"{}\"}}", "0123456789".repeat(300_000));
    std::fs::write(dir.path().join("big.jsonl"), record.clone() + "\n").unwrap();
    let file: &[&str] = &["-f", "big.jsonl", "--cache-dir", "cache"];
    let paths = ["auto", "copy", "zerocopy", "sendfile"];
    let inline: &[&str] = &["-B", "big"];
    for (source, path) in paths.iter().flat_map(|path| [(inline, path), (file, path)]) {
        let more = ["-c", "1", "-n", "1", "--send", path, "--drain", "60s"];
        let (code, summary) = run(dir.path(), &server.url(), &[source, &more].concat());
        assert_eq!(code, 0, "{path}: {summary}");
        let want = if source == file { record.as_bytes() } else { &body };
        assert!(server.requests().last().unwrap().body == want, "{path}");
        let bytes = |name: &str| summary["bytes"][name].as_u64().unwrap();
        assert_eq!(bytes("sent_zero_copy") + bytes("sent_copied") + bytes("sent_file"), bytes("sent"), "{path}");
        let by_file = source == file && *path == "sendfile";
        assert_eq!(bytes("sent_file"), if by_file { want.len() as u64 } else { 0 }, "{path}");
    }
}

#[test]
fn nothing_is_left_open_when_a_server_closes_after_each_answer() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|conn| {
        if conn.request().is_some() {
            conn.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let (code, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "8", "-n", "200"]);
    assert_eq!(code, 0, "{summary}");
    assert_eq!(summary["requests"]["succeeded"], 200);
    assert_eq!(summary["connections"]["established_peak"], 8);
}

#[test]
fn a_server_that_hangs_ends_in_time_outs_and_the_run_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|conn| while conn.request().is_some() {});
    for (flag, class) in [("--timeout", "request_timeout"), ("--first-byte-timeout", "first_byte_timeout")] {
        let (code, summary) =
            run(dir.path(), &server.url(), &["-b", "{}", "-c", "4", "-n", "8", flag, "200ms", "--drain", "1s"]);
        assert_eq!(code, 1);
        assert_eq!(summary["errors"], serde_json::json!({ class: 8 }), "{summary}");
        assert!(summary["metrics"]["request_latency"]["p99"].is_null());
    }
    let server = Server::start(|conn| {
        while conn.request().is_some() {
            conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
        }
    });
    let (_, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "-n", "2", "--idle-timeout", "200ms"]);
    assert_eq!(summary["errors"], serde_json::json!({ "idle_timeout": 2 }), "{summary}");
}

#[test]
fn what_is_in_flight_when_the_drain_ends_is_cut_and_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|conn| while conn.request().is_some() {});
    let (code, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "3", "-d", "300ms", "--drain", "200ms"]);
    assert_eq!((code, &summary["requests"]["cut"]), (1, &serde_json::json!(3)), "{summary}");
    assert_eq!(summary["errors"], serde_json::json!({}));
    adds_up(&summary);
}

#[test]
fn too_many_errors_end_the_run_as_failed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n");
    let (code, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "-d", "30s", "--max-errors", "5"]);
    assert_eq!(code, 1);
    assert_eq!((&summary["ended_by"], &summary["status"]), (&"error".into(), &"failed".into()));
    assert!(summary["duration_s"].as_f64().unwrap() < 20.0);
}

#[test]
fn a_first_sigint_ends_with_a_partial_report() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_ringload"))
        .args(["run", &server.url(), "-b", "{}", "-c", "2", "-d", "60s", "-t", "1", "--json", "--quiet"])
        .env("RINGLOAD_CACHE_DIR", dir.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while server.requests().len() < 10 {
        thread::sleep(Duration::from_millis(5));
    }
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let summary: serde_json::Value = serde_json::from_reader(child.stdout.take().unwrap()).unwrap();
    assert_eq!((&summary["status"], &summary["ended_by"]), (&"partial".into(), &"interrupt".into()));
    adds_up(&summary);
}

#[test]
fn the_built_in_target_verifies_every_body_and_counts_as_the_client_does() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = std::fs::File::create(dir.path().join("d.jsonl")).unwrap();
    for i in 0..50 {
        writeln!(data, r#"{{"n":{i},"x":"{}"}}"#, "y".repeat(i * 1500)).unwrap();
    }
    let (code, summary) = run(dir.path(), "builtin:?mode=check", &["-f", "d.jsonl", "-c", "8", "-n", "500"]);
    assert_eq!(code, 0, "{summary}");
    let target = &summary["target"];
    assert_eq!((&target["requests"], &target["verified"], &target["wrong"]), (&500.into(), &500.into(), &0.into()));
    assert_eq!(target["body_bytes"], summary["bytes"]["bodies"]);
}

#[test]
fn wrong_urls_and_flags_are_refused_with_the_reason_before_anything_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    for (args, said) in [
        (&["run", "ftp://127.0.0.1/x", "-b", "{}"][..], "ftp"),
        (&["run", "http://127.0.0.1:99999/"], "99999"),
        (&["run", "builtin:", "-b", "{}", "-q", "50"], "--rate"),
        (&["run", "builtin:", "-b", "{}", "-z", "3s"], "--duration"),
        (&["run", "builtin:", "-b", "{}", "--schedule"], "dataset"),
        (&["run", "builtin:", "-b", "{}", "-H", "X: a\nY: b"], "line break"),
        (&["run", "builtin:", "-B", "missing.bin"], "missing.bin"),
        (&["run", "builtin:", "-f", "missing.jsonl"], "missing.jsonl"),
        (&["run", "builtin:?mod=null", "-b", "{}"], "mode"),
        (&["run", "builtin:", "-b", "{}", "--fail-if", "nonsense"], "nonsense"),
        (&["run", "builtin:", "-b", "{}", "--cores", "4000"], "--cores"),
    ] {
        let out = ringload(dir.path(), args);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(said) && !text.contains("panicked"), "{args:?}: {text}");
    }
}

#[test]
fn a_schedule_whose_pass_takes_no_time_is_refused_and_repeats_follow_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    std::fs::write(dir.path().join("one.jsonl"), "{\"timestamp\":0,\"payload\":{\"i\":0}}\n").unwrap();
    let args = ["run", &server.url(), "-f", "one.jsonl", "--schedule", "--repeat", "forever", "-d", "300ms", "-q"];
    let out = ringload(dir.path(), &args);
    assert_eq!(out.status.code(), Some(2), "{}", String::from_utf8_lossy(&out.stderr));
    let rows: String = (0..3)
        .map(|turn| format!("{{\"session_id\":\"s\",\"timestamp\":{},\"payload\":{{\"t\":{turn}}}}}\n", turn * 60))
        .collect();
    let rows = rows + "{\"session_id\":\"z\",\"timestamp\":40,\"payload\":{\"t\":9}}\n";
    std::fs::write(dir.path().join("two.jsonl"), rows).unwrap();
    let (code, summary) = run(dir.path(), &server.url(), &["-f", "two.jsonl", "--schedule", "--repeat", "2"]);
    assert_eq!(code, 0, "{summary}");
    let order: Vec<_> = server.requests().iter().map(|r| String::from_utf8_lossy(&r.body).into_owned()).collect();
    assert_eq!(order.len(), 8, "{order:?}");
    let first_pass: Vec<_> = order[..4].to_vec();
    assert!(first_pass.contains(&"{\"t\":2}".to_owned()), "a pass ends before the next begins: {order:?}");
}

#[test]
fn a_window_of_the_schedule_cuts_later_turns_too() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let rows: String = (0..4)
        .map(|turn| format!("{{\"session_id\":\"s\",\"timestamp\":{},\"payload\":{{\"t\":{turn}}}}}\n", turn * 50))
        .collect();
    std::fs::write(dir.path().join("s.jsonl"), rows).unwrap();
    let (code, summary) =
        run(dir.path(), &server.url(), &["-f", "s.jsonl", "--schedule", "--from", "50ms", "--to", "100ms"]);
    assert_eq!((code, &summary["requests"]["succeeded"]), (0, &2.into()), "{summary}");
    let sent: Vec<_> = server.requests().iter().map(|r| String::from_utf8_lossy(&r.body).into_owned()).collect();
    assert_eq!(sent, ["{\"t\":1}", "{\"t\":2}"]);
}

#[test]
fn two_targets_take_turns_and_a_dead_one_is_not_hidden() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Server::always(OK), Server::always(OK));
    let (url_a, url_b) = (a.url(), b.url());
    let out =
        ringload(dir.path(), &["run", &url_a, &url_b, "-b", "x", "-n", "20", "-c", "1", "-t", "1", "-q", "--json"]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!((a.requests().len(), b.requests().len()), (10, 10));
    let dead = { std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let dead = format!("http://{dead}/");
    let out =
        ringload(dir.path(), &["run", &url_a, &dead, "-b", "x", "-n", "20", "-c", "4", "-t", "1", "-q", "--json"]);
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(summary["errors"], serde_json::json!({ "connect_refused": 10 }), "{summary}");
}

#[test]
fn an_interim_answer_does_not_switch_off_the_first_byte_time_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|conn| {
        while conn.request().is_some() {
            conn.send(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
    });
    let (_, summary) =
        run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "-n", "2", "--first-byte-timeout", "200ms"]);
    assert_eq!(summary["errors"], serde_json::json!({ "first_byte_timeout": 2 }), "{summary}");
}

#[test]
fn the_warm_up_is_in_no_row_of_the_timeline() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let (code, summary) =
        run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "--warmup", "30", "-n", "50", "-o", "out"]);
    assert_eq!((code, &summary["requests"]["issued"]), (0, &50.into()), "{summary}");
    let csv = std::fs::read_to_string(dir.path().join("out/timeline.csv")).unwrap();
    let issued: u64 = csv.lines().skip(1).map(|l| l.split(',').nth(1).unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(issued, 50, "{csv}");
}

#[test]
fn requests_in_flight_are_those_that_were_on_their_way() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|conn| {
        while conn.request().is_some() {
            thread::sleep(Duration::from_millis(20));
            conn.send(OK);
        }
    });
    for (slots, warmup, asked) in [("1", "0", 1.0), ("4", "0", 4.0), ("4", "8", 4.0)] {
        let args = ["-b", "{}", "-t", "1", "-c", slots, "-n", "40", "--warmup", warmup];
        let (code, summary) = run(dir.path(), &server.url(), &args);
        assert_eq!(code, 0, "{summary}");
        let mean = summary["throughput"]["effective_concurrency"]["value"].as_f64().unwrap();
        // A little less while the last ones end, never more.
        assert!((asked * 0.6..=asked + 0.001).contains(&mean), "{slots} slots, warm-up {warmup}: {mean}");
    }
}

#[test]
fn a_body_file_without_an_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = ringload(dir.path(), &["run", "http://127.0.0.1:1/", "-B", "/dev/zero", "-n", "1"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("more than 1024 MiB"), "{text}");
}
