//! What a run does to its peers beside what public reports met (those are in `net`): sockets and their options, bodies that are
//! empty, URLs that share a host, streams of other kinds.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::support::{OK, Server, adds_up, ringload, run};

#[test]
fn an_empty_body_that_was_given_is_posted_with_its_length() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("empty"), "").unwrap();
    for (args, line, length) in [
        (&["-b", ""][..], "POST /v1/x ", true),
        (&["-B", "empty"], "POST /v1/x ", true),
        (&["-b", "", "-m", "DELETE"], "DELETE /v1/x ", false),
        (&[], "GET /v1/x ", false),
    ] {
        let server = Server::always(OK);
        let (code, summary) = run(dir.path(), &server.url(), &[args, &["-c", "1", "-n", "2"]].concat());
        assert_eq!(code, 0, "{summary}");
        let head = server.requests()[0].head.clone();
        assert!(head.starts_with(line), "{args:?}: {head}");
        assert_eq!(head.contains("\r\nContent-Length: 0\r\n"), length, "{args:?}: {head}");
    }
}

#[test]
fn connects_that_had_to_knock_twice_are_told() {
    let dir = tempfile::tempdir().unwrap();
    // The kernel completes two handshakes that nobody accepts, and drops what knocks meanwhile.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    socket.listen(1).unwrap();
    let listener = std::net::TcpListener::from(socket);
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let served = thread::spawn(move || {
        thread::sleep(Duration::from_millis(400));
        let serve = |mut stream: std::net::TcpStream| {
            let mut chunk = [0; 1000];
            while stream.read(&mut chunk).is_ok_and(|n| n > 0) {
                let _ = stream.write_all(OK);
            }
        };
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    let (code, summary) = run(dir.path(), &url, &["-c", "8", "-n", "8", "--cold", "--timeout", "9s"]);
    assert_eq!(code, 0, "{summary}");
    let notes = summary["notes"].to_string();
    assert!(notes.contains("a connect took") && notes.contains("backlog"), "{notes}");
    let server = Server::always(OK);
    let (_, summary) = run(dir.path(), &server.url(), &["-c", "8", "-n", "8", "--cold"]);
    assert!(!summary["notes"].to_string().contains("backlog"), "{summary}");
    assert!(!served.is_finished());
}

/// Client ports, and the paths that were asked for over each.
type Paths = Arc<Mutex<BTreeSet<(u16, String)>>>;

/// A server that notes which of its connections carried which path.
fn notes_paths() -> (Server, Paths) {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let all = seen.clone();
    let server = Server::start(move |conn| {
        let port = conn.stream.peer_addr().unwrap().port();
        while let Some(request) = conn.request() {
            let path = request.head.split(' ').nth(1).unwrap_or_default().to_owned();
            all.lock().unwrap().insert((port, path));
            conn.send(OK);
        }
    });
    (server, seen)
}

#[test]
fn urls_of_one_origin_share_their_connections_and_others_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let (server, seen) = notes_paths();
    let (a, b) = (format!("http://{}/a", server.address), format!("http://{}/b", server.address));
    let args = ["-b", "{}", "-c", "1", "-n", "20", "-t", "1", "--json", "-q"];
    let go = |urls: &[&str]| -> serde_json::Value {
        let out = ringload(dir.path(), &[&["run"], urls, &args[..]].concat());
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        let summary = serde_json::from_slice(&out.stdout).unwrap();
        adds_up(&summary);
        summary
    };
    assert_eq!(go(&[&a, &b])["connections"]["opened"], 1);
    let paths: Vec<String> = seen.lock().unwrap().iter().map(|(_, path)| path.clone()).collect();
    assert_eq!(paths, ["/a", "/b"], "one connection carried both");
    assert_eq!(server.requests().iter().filter(|r| r.head.starts_with("POST /a ")).count(), 10);
    // Another name is another origin, though the address is the same: a server may tell them apart by it.
    let c = format!("http://localhost:{}/c", server.address.port());
    assert!(go(&[&a, &c])["connections"]["opened"].as_u64().unwrap() > 1);
}

/// The timer of the other end of a connection, as /proc/net/tcp shows it: 2 is the one of keep-alive probes.
fn timer(client: u16, server: u16) -> Option<u8> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let row = table.lines().map(|l| l.split_whitespace().collect::<Vec<_>>()).find(|f| {
        let ends = |at: usize, port: u16| f.get(at).is_some_and(|end| end.ends_with(&format!(":{port:04X}")));
        ends(1, client) && ends(2, server)
    })?;
    row.get(5)?.split(':').next()?.parse().ok()
}

#[test]
fn probes_are_on_where_they_were_asked_for_alone() {
    let dir = tempfile::tempdir().unwrap();
    for (more, probes) in [(&["--tcp-keepalive", "30s"][..], true), (&[], false)] {
        let saw = Arc::new(Mutex::new(BTreeSet::new()));
        let all = saw.clone();
        let server = Server::start(move |conn| {
            let ports = (conn.stream.peer_addr().unwrap().port(), conn.stream.local_addr().unwrap().port());
            while conn.request().is_some() {
                // Until the request is acknowledged the timer is that of sending it again.
                let until = Instant::now() + Duration::from_millis(if probes { 5_000 } else { 300 });
                while Instant::now() < until {
                    let timer = timer(ports.0, ports.1);
                    all.lock().unwrap().extend(timer);
                    if timer == Some(2) {
                        break;
                    }
                    thread::sleep(Duration::from_millis(5));
                }
                conn.send(OK);
            }
        });
        let (code, summary) = run(dir.path(), &server.url(), &[&["-b", "{}", "-c", "1", "-n", "1"], more].concat());
        assert_eq!(code, 0, "{summary}");
        let saw = saw.lock().unwrap();
        assert!(!saw.is_empty() && saw.contains(&2) == probes, "{more:?}: timers {saw:?}");
    }
}

#[test]
fn busy_polling_goes_with_a_run_or_is_refused_with_its_cure() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let args = ["run", &server.url(), "-b", "{}", "-c", "2", "-n", "20", "-t", "1", "--busy-poll", "50us", "-q"];
    let out = ringload(dir.path(), &args);
    let text = String::from_utf8_lossy(&out.stderr);
    match out.status.code() {
        Some(0) => assert_eq!(server.requests().len(), 20),
        Some(3) => assert!(text.contains("--busy-poll") && text.contains("CAP_NET_ADMIN"), "{text}"),
        other => panic!("{other:?}: {text}"),
    }
}

#[test]
fn a_buffer_larger_than_the_kernel_gives_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    for (flag, limit) in [("--sndbuf", "wmem_max"), ("--rcvbuf", "rmem_max")] {
        let args = ["run", &server.url(), "-b", "{}", "-c", "1", "-n", "2", "-t", "1", flag, "1GiB", "-q"];
        let out = ringload(dir.path(), &args);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(0), "{text}");
        assert!(text.contains(flag) && text.contains(limit) && text.contains("the kernel gives"), "{text}");
    }
}

#[test]
fn sources_that_no_connection_comes_from_are_refused_with_the_cure() {
    let dir = tempfile::tempdir().unwrap();
    for (source, said) in [("224.0.0.1", "multicast"), ("0.0.0.0", "any address"), ("::", "any address")] {
        let out = ringload(dir.path(), &["run", "http://127.0.0.1:1/", "-b", "{}", "-n", "1", "--source-ip", source]);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{text}");
        assert!(text.contains(source) && text.contains(said) && text.contains("ip addr"), "{text}");
    }
}

#[test]
fn a_stream_that_is_no_chat_needs_no_end_marker_and_a_chat_stream_does() {
    let dir = tempfile::tempdir().unwrap();
    const TICKS: &str = "event: tick\ndata: {\"n\":1}\n\ndata: plain words\n\n";
    const CHAT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    const DONE: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n";
    for (stream, more, errors) in [
        (TICKS, &[][..], json!({})),
        (TICKS, &["--stream", "sse"], json!({})),
        (CHAT, &[], json!({ "stream_incomplete": 2 })),
        (CHAT, &["--stream-end", "any"], json!({})),
        (DONE, &[], json!({})),
    ] {
        let server = Server::start(move |conn| {
            if conn.request().is_some() {
                conn.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
                conn.send(stream.as_bytes());
            }
        });
        let (_, summary) = run(dir.path(), &server.url(), &[&["-b", "{}", "-c", "1", "-n", "2"], more].concat());
        assert_eq!(summary["errors"], errors, "{more:?}: {stream}");
        adds_up(&summary);
    }
}

#[test]
fn a_variable_that_is_set_to_nothing_is_as_if_it_were_not_set() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    std::fs::write(dir.path().join("run.toml"), "requests = 3\n").unwrap();
    let url = server.url();
    let go = |value: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ringload"));
        command.args(["run", &url, "-b", "{}", "-t", "1", "-q", "--config", "run.toml"]).current_dir(dir.path());
        for name in ["TIMEOUT", "REQUESTS", "RATE", "SNI", "DATASET", "JSON"] {
            command.env(format!("RINGLOAD_{name}"), value);
        }
        command.output().unwrap()
    };
    let out = go("");
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(server.requests().len(), 3, "the config file is heard");
    let out = go("x");
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(2) && text.contains("'x'"), "{text}");
}
