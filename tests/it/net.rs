//! Connections and responses as users of other tools met them: each case of the public reports, groups A to D, by its number,
//! and what the flags of connections do. TLS is in `tls` (cases 71 and 73). Which test holds which case: `docs/reported-cases.md`.
//! Long, as the cases stand together.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::UnixListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ringload::{cache::View, data::plan::Shape, engine};
use serde_json::json;

use crate::{
    alloc,
    support::{OK, Request, Server, adds_up, ringload, run},
};

/// What the server sends to the k-th request of all, in parts; a part that is empty closes the connection.
type Responses = Vec<Vec<Vec<u8>>>;

fn parts(all: &[&[&[u8]]]) -> Responses {
    all.iter().map(|parts| parts.iter().map(|p| p.to_vec()).collect()).collect()
}

/// A server that says them, with a pause between parts.
fn says(responses: Responses, pause: Duration) -> Server {
    let next = AtomicUsize::new(0);
    Server::start(move |conn| {
        while conn.request().is_some() {
            let Some(parts) = responses.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            for (k, part) in parts.iter().enumerate() {
                if part.is_empty() {
                    return;
                }
                if k > 0 {
                    thread::sleep(pause);
                }
                conn.send(part);
            }
        }
    })
}

const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const CLOSES: &[u8] = b"";
const LONG: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";

struct Case {
    number: u32,
    responses: Responses,
    more: &'static [&'static str],
    succeeded: usize,
    errors: serde_json::Value,
    statuses: serde_json::Value,
    opened: u64,
}

fn case(number: u32, responses: &[&[&[u8]]], statuses: serde_json::Value) -> Case {
    let n = responses.len();
    Case { number, responses: parts(responses), more: &[], succeeded: n, errors: json!({}), statuses, opened: 1 }
}

/// A number of 1xx heads.
fn interim(count: usize, status: u16) -> Vec<u8> {
    format!("HTTP/1.1 {status} Soon\r\nX: y\r\n\r\n").repeat(count).into_bytes()
}

#[test]
fn group_a_responses_are_read_as_they_are_meant() {
    let long_trailer = [b"0\r\nx: ".to_vec(), vec![b'y'; 70_000], b"\r\n\r\n".to_vec()].concat();
    let cases = [
        case(1, &[&[CHUNKED, b"5\r\nhello\r\n0\r\n", b"\r\n"], &[OK]], json!({ "200": 2 })),
        case(5, &[&[CHUNKED, b"5;name=val\r\nhello\r\n0;x\r\n\r\n"], &[OK]], json!({ "200": 2 })),
        Case {
            succeeded: 0,
            errors: json!({ "framing": 1 }),
            ..case(9, &[&[CHUNKED, b"FFFFFFFFFFFFFFFFF\r\nx"]], json!({ "200": 1 }))
        },
        case(11, &[&[CHUNKED, b"0\r\nServer-Timing: x\r\nx-checksum: 1\r\n\r\n"], &[OK]], json!({ "200": 2 })),
        Case {
            succeeded: 0,
            errors: json!({ "framing": 1 }),
            ..case(11, &[&[CHUNKED, &long_trailer]], json!({ "200": 1 }))
        },
        case(
            12,
            &[&[b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"], &[OK]],
            json!({ "200": 2 }),
        ),
        Case {
            succeeded: 0,
            errors: json!({ "framing": 1 }),
            ..case(12, &[&[&b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(70)]], json!({}))
        },
        // As many interim responses as are read, of every status that has no meaning of its own.
        case(12, &[&[&interim(64, 100), OK], &[&interim(1, 102), &interim(1, 199), OK]], json!({ "200": 2 })),
        Case {
            succeeded: 0,
            errors: json!({ "framing": 1 }),
            ..case(12, &[&[&interim(65, 102), OK]], json!({}))
        },
        Case {
            succeeded: 0,
            errors: json!({ "unexpected_upgrade": 1 }),
            ..case(12, &[&[b"HTTP/1.1 101 Switching Protocols\r\n\r\n", OK]], json!({}))
        },
        case(15, &[&[b"HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\n", OK], &[OK]], json!({ "200": 2 })),
        case(
            15,
            &[&[b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"], &[OK]],
            json!({ "204": 1, "200": 1 }),
        ),
        Case {
            succeeded: 2,
            errors: json!({ "http_3xx": 1 }),
            ..case(
                15,
                &[
                    &[b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"],
                    &[b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n"],
                    &[OK],
                ],
                json!({ "204": 1, "304": 1, "200": 1 }),
            )
        },
        Case {
            more: &["-m", "HEAD"],
            ..case(16, &[&[LONG], &[LONG]], json!({ "200": 2 }))
        },
        case(17, &[&[b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"], &[OK]], json!({ "200": 2 })),
        case(19, &[&[b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok"], &[OK]], json!({ "200": 2 })),
        Case {
            succeeded: 0,
            errors: json!({ "framing": 1 }),
            ..case(19, &[&[CHUNKED, b"5\nhello\n0\n\n"]], json!({ "200": 1 }))
        },
        Case {
            opened: 3,
            ..case(
                24,
                &[
                    &[b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
                    &[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
                    &[OK],
                ],
                json!({ "200": 3 }),
            )
        },
        case(25, &[&[b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello"], &[OK]], json!({ "200": 2 })),
        Case {
            succeeded: 1,
            errors: json!({ "framing": 1 }),
            opened: 2,
            ..case(
                25,
                &[&[b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"], &[OK]],
                json!({ "200": 1 }),
            )
        },
        case(25, &[&[b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello"], &[OK]], json!({ "200": 2 })),
        Case {
            succeeded: 1,
            errors: json!({ "framing": 1 }),
            opened: 2,
            ..case(25, &[&[b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello"], &[OK]], json!({ "200": 1 }))
        },
        Case {
            opened: 2,
            ..case(33, &[&[b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody", CLOSES], &[OK]], json!({ "200": 2 }))
        },
        Case {
            succeeded: 0,
            errors: json!({ "truncated": 1 }),
            ..case(34, &[&[b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", CLOSES]], json!({ "200": 1 }))
        },
    ];
    let dir = tempfile::tempdir().unwrap();
    for c in cases {
        let n = c.responses.len();
        let server = says(c.responses, Duration::from_millis(20));
        let count = n.to_string();
        let body: &[&str] = if c.more.is_empty() { &["-b", "{}"] } else { &[] };
        let args = [&["-c", "1", "-n", &count, "--timeout", "8s"], body, c.more].concat();
        let began = Instant::now();
        let (_, summary) = run(dir.path(), &server.url(), &args);
        let k = c.number;
        assert_eq!(summary["requests"]["succeeded"], c.succeeded, "case {k}: {summary}");
        assert_eq!(summary["errors"], c.errors, "case {k}");
        assert_eq!(summary["status_codes"], c.statuses, "case {k}");
        assert_eq!(summary["connections"]["opened"], c.opened, "case {k}");
        assert_eq!(server.requests().len(), n, "case {k}: requests that the server saw");
        assert!(began.elapsed() < Duration::from_secs(7), "case {k} waited for its time-out");
        adds_up(&summary);
    }
}

#[test]
fn case_1_bytes_behind_a_response_are_in_no_other_one_and_end_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    const NEXT: &[u8] = b"HTTP/1.1 500 Not asked\r\nContent-Length: 0\r\n\r\n";
    // In the same read as the response, and behind it, while nothing is asked.
    for parts in [vec![[OK, NEXT].concat()], vec![[OK, b"\0"].concat()], vec![OK.to_vec(), NEXT.to_vec()]] {
        let server = says(vec![parts; 3], Duration::from_millis(30));
        let (code, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "-R", "5", "-n", "3"]);
        assert_eq!((code, &summary["status_codes"]), (0, &json!({ "200": 3 })), "{summary}");
        assert_eq!(summary["connections"]["opened"], 3, "{summary}");
    }
}

#[test]
fn case_4_a_late_first_chunk_is_no_error_and_the_first_byte_is_the_heads() {
    let dir = tempfile::tempdir().unwrap();
    let server = says(parts(&[&[CHUNKED, b"2\r\nok\r\n0\r\n\r\n"]]), Duration::from_millis(300));
    let (code, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "-n", "1"]);
    assert_eq!(code, 0, "{summary}");
    let (first, whole) = (&summary["metrics"]["time_to_first_byte"], &summary["metrics"]["request_latency"]);
    assert!(first["max"].as_f64().unwrap() < 200.0 && whole["min"].as_f64().unwrap() >= 300.0, "{first} {whole}");
}

#[test]
fn case_30_a_head_in_single_bytes_is_the_same_head() {
    let dir = tempfile::tempdir().unwrap();
    let head = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 2\r\n\r\nok";
    let split = head.iter().map(|b| vec![*b]).collect();
    let server = says(vec![split, vec![head.to_vec()]], Duration::from_millis(1));
    let (code, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "-n", "2", "--timeout", "9s"]);
    assert_eq!((code, &summary["connections"]["opened"]), (0, &json!(1)), "{summary}");
}

#[test]
fn case_30_a_response_split_at_every_byte_is_the_same_response() {
    let dir = tempfile::tempdir().unwrap();
    let whole = b"HTTP/1.1 103 Soon\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 2\r\n\r\nok";
    let splits = (1..whole.len()).map(|at| vec![whole[..at].to_vec(), whole[at..].to_vec()]).collect();
    let server = says(splits, Duration::from_millis(2));
    let count = (whole.len() - 1).to_string();
    let args = ["-b", "{}", "-c", "1", "-n", &count, "--timeout", "5s", "--max-errors", "1"];
    let (code, summary) = run(dir.path(), &server.url(), &args);
    assert_eq!((code, &summary["status_codes"]), (0, &json!({ "200": whole.len() - 1 })), "{summary}");
    assert_eq!(summary["connections"]["opened"], 1, "no byte was left over: {summary}");
}

#[test]
fn case_32_what_is_not_http_fails_at_once_and_shows_its_first_bytes() {
    let dir = tempfile::tempdir().unwrap();
    for (k, (says_what, shown)) in
        [(&b"SSH-2.0-x\r\n"[..], "SSH-2.0-x"), (b"\x15\x03\x01\x00\x02\x02\x46", "\\x15\\x03\\x01")]
            .into_iter()
            .enumerate()
    {
        let server = says(parts(&[&[says_what]]), Duration::ZERO);
        let out = format!("out{k}");
        let began = Instant::now();
        let (code, summary) =
            run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "-n", "1", "--timeout", "8s", "-o", &out]);
        assert_eq!((code, &summary["errors"]), (1, &json!({ "framing": 1 })), "{summary}");
        assert!(began.elapsed() < Duration::from_secs(6));
        let kept = std::fs::read_to_string(dir.path().join(out).join("errors.jsonl")).unwrap();
        let kept: serde_json::Value = serde_json::from_str(kept.lines().next().unwrap()).unwrap();
        assert!(kept.to_string().replace("\\\\", "\\").contains(shown), "{kept}");
    }
}

/// Answers the first request of each connection, and closes as the second comes.
fn closes_on_the_second() -> Server {
    Server::start(|conn| {
        if conn.request().is_some() {
            conn.send(OK);
            conn.request();
        }
    })
}

#[test]
fn case_43_a_stale_connection_is_its_own_class_and_resent_only_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let server = closes_on_the_second();
    let args = ["-b", "{}", "-c", "1", "-n", "10"];
    let (_, summary) = run(dir.path(), &server.url(), &args);
    assert_eq!(summary["errors"], json!({ "stale_connection": 5 }), "{summary}");
    assert_eq!((server.requests().len(), &summary["connections"]["resent"]), (10, &json!(0)), "nothing is sent twice");
    let server = closes_on_the_second();
    let (code, summary) = run(dir.path(), &server.url(), &[&args[..], &["--resend-stale"]].concat());
    assert_eq!((code, &summary["requests"]["succeeded"]), (0, &json!(10)), "{summary}");
    assert_eq!(summary["connections"]["resent"], 9);
    assert_eq!(server.requests().len(), 19, "each that was resent came twice");
    adds_up(&summary);
    // Once, and no more: the second try is on a fresh connection.
    let number = AtomicUsize::new(0);
    let server = Server::start(move |conn| {
        let first = number.fetch_add(1, Ordering::Relaxed) == 0;
        if conn.request().is_some() && first {
            conn.send(OK);
            conn.request();
        }
    });
    let (_, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "-n", "2", "--resend-stale"]);
    assert_eq!((&summary["errors"], server.requests().len()), (&json!({ "no_response": 1 }), 3), "{summary}");
    // A response that began is never thrown away for another try.
    let server = Server::start(|conn| {
        conn.request();
        conn.send(OK);
        conn.request();
        conn.send(b"HTTP/1.1 200");
    });
    let (_, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "-n", "2", "--resend-stale"]);
    assert_eq!((&summary["errors"], server.requests().len()), (&json!({ "truncated": 1 }), 2), "{summary}");
}

#[test]
fn case_43_a_close_that_came_before_a_send_is_seen_and_nothing_is_stale() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|conn| {
        conn.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        while conn.request().is_some() {
            conn.send(OK);
        }
    });
    let (code, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "1", "-R", "4", "-n", "5"]);
    assert_eq!((code, &summary["errors"]), (0, &json!({})), "{summary}");
    assert_eq!(summary["connections"]["opened"], 5);
}

#[test]
fn case_43_a_reset_is_stale_only_on_a_kept_connection_and_before_a_byte() {
    let dir = tempfile::tempdir().unwrap();
    for (kept, begins, class) in
        [(true, &b""[..], "stale_connection"), (true, b"HTTP/1.1 200 OK\r\nContent-Le", "reset"), (false, b"", "reset")]
    {
        let server = Server::start(move |conn| {
            conn.request();
            if kept {
                conn.send(OK);
                conn.request();
            }
            if !begins.is_empty() {
                conn.send(begins);
                thread::sleep(Duration::from_millis(50));
            }
            socket2::SockRef::from(&conn.stream).set_linger(Some(Duration::ZERO)).unwrap();
            // A descriptor that is shut down says FIN: closing it alone resets.
            conn.stream = TcpStream::connect(conn.stream.local_addr().unwrap()).unwrap();
        });
        let count = if kept { "2" } else { "1" };
        let args = ["-b", "{}", "-c", "1", "-n", count, "--timeout", "9s"];
        let (_, summary) = run(dir.path(), &server.url(), &args);
        assert_eq!(summary["errors"], json!({ class: 1 }), "kept {kept}: {summary}");
    }
}

#[test]
fn case_43_the_servers_keep_alive_time_is_learnt() {
    let dir = tempfile::tempdir().unwrap();
    for (field, opened) in [("timeout=1", 3), ("timeout=0", 3), ("timeout=60, max=9", 1), ("max=9", 1)] {
        let answer = format!("HTTP/1.1 200 OK\r\nKeep-Alive: {field}\r\nContent-Length: 0\r\n\r\n");
        let server = Server::start(move |conn| {
            while conn.request().is_some() {
                conn.send(answer.as_bytes());
            }
        });
        let (code, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-R", "1", "-n", "3", "-c", "1"]);
        assert_eq!((code, &summary["connections"]["opened"]), (0, &json!(opened)), "{field}: {summary}");
    }
}

#[test]
fn case_47_fewer_connections_than_asked_are_told() {
    let dir = tempfile::tempdir().unwrap();
    // The kernel completes backlog + 1 handshakes that nobody accepts; later ones hang.
    let listen = || {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
        socket.listen(1).unwrap();
        let url = format!("http://{}/", socket.local_addr().unwrap().as_socket().unwrap());
        (socket, url)
    };
    let args = ["-b", "{}", "-c", "8", "-d", "600ms", "--connect-timeout", "200ms", "--drain", "300ms"];
    let (_socket, url) = listen();
    let (_, summary) = run(dir.path(), &url, &args);
    let c = &summary["connections"];
    let peak = c["established_peak"].as_u64().unwrap();
    assert!(c["asked"] == 8 && (1..8).contains(&peak), "{summary}");
    let (_socket, url) = listen();
    let out = ringload(dir.path(), &[&["run", &url, "-t", "1", "-q"], &args[..]].concat());
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("8 asked") && text.contains("fewer than asked"), "{text}");
}

#[test]
fn case_48_our_side_of_a_connection_that_the_server_closed_is_closed_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (open, peak, closed) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (o, p, c) = (open.clone(), peak.clone(), closed.clone());
    let server = Server::start(move |conn| {
        p.fetch_max(o.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        if conn.request().is_some() {
            conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            let _ = conn.stream.shutdown(Shutdown::Write);
        }
        // The client's end, which a socket in CLOSE_WAIT would not send.
        let ended = std::io::copy(&mut conn.stream, &mut std::io::sink()).is_ok();
        c.fetch_add(usize::from(ended), Ordering::SeqCst);
        o.fetch_sub(1, Ordering::SeqCst);
    });
    let began = Instant::now();
    let (_, summary) = run(dir.path(), &server.url(), &["-b", "{}", "-c", "20", "-n", "500"]);
    assert_eq!(summary["requests"]["issued"], 500, "{summary}");
    assert!(peak.load(Ordering::SeqCst) <= 60, "connections pile up: {}", peak.load(Ordering::SeqCst));
    assert!(began.elapsed() < Duration::from_secs(15));
    let until = Instant::now() + Duration::from_secs(5);
    while open.load(Ordering::SeqCst) > 0 && Instant::now() < until {
        thread::yield_now();
    }
    assert_eq!(closed.load(Ordering::SeqCst) as u64, summary["connections"]["opened"].as_u64().unwrap());
}

#[test]
fn case_54_the_path_of_a_body_is_told_in_bytes_and_loopback_is_never_zero_copy_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    for bytes in [200, 4 << 10, 32 << 10, 1 << 20] {
        std::fs::write(dir.path().join("body"), vec![b'x'; bytes]).unwrap();
        for path in ["auto", "zerocopy"] {
            let args = ["-B", "body", "-c", "1", "-n", "4", "--send", path];
            let (code, summary) = run(dir.path(), &server.url(), &args);
            let b = |name: &str| summary["bytes"][name].as_u64().unwrap();
            assert_eq!((code, b("bodies")), (0, 4 * bytes as u64), "{summary}");
            assert_eq!(b("sent_zero_copy") + b("sent_copied"), b("sent"));
            // The kernel copies on loopback though zero-copy was asked for, and says so: that is what is told.
            assert_eq!(b("sent_zero_copy"), 0, "{path}: {summary}");
        }
    }
}

#[test]
fn case_56_a_mebibyte_each_way_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let body: Vec<u8> = (0..1u32 << 20).map(|i| (i % 253) as u8).collect();
    std::fs::write(dir.path().join("body"), &body).unwrap();
    let server = Server::start(|conn| {
        while let Some(request) = conn.request() {
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len()).as_bytes());
            conn.send(&request.body);
        }
    });
    let (code, summary) = run(dir.path(), &server.url(), &["-B", "body", "-c", "2", "-n", "8"]);
    assert_eq!((code, &summary["requests"]["succeeded"]), (0, &json!(8)), "{summary}");
    assert!(server.requests().iter().all(|r| r.body == body));
    assert!(summary["bytes"]["received"].as_u64().unwrap() > 8 << 20);
}

#[test]
fn case_57_short_writes_go_on_at_the_right_byte() {
    let dir = tempfile::tempdir().unwrap();
    let body: Vec<u8> = (0..5_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(dir.path().join("body"), &body).unwrap();
    let server = Server::start(|conn| {
        while conn.request().is_some() {
            conn.send(OK);
        }
    });
    for path in ["copy", "zerocopy"] {
        let args = ["-B", "body", "-c", "1", "-n", "1", "--sndbuf", "4KiB", "--send", path, "--drain", "60s"];
        let (code, summary) = run(dir.path(), &server.url(), &args);
        assert_eq!(code, 0, "{path}: {summary}");
        assert!(server.requests().last().unwrap().body == body, "{path}: the body differs");
    }
}

#[test]
fn case_58_connections_spread_over_the_sources_and_a_slot_keeps_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let peers = Arc::new(Mutex::new(Vec::new()));
    let seen = peers.clone();
    let server = Server::start(move |conn| {
        let peer = conn.stream.peer_addr().unwrap();
        while conn.request().is_some() {
            seen.lock().unwrap().push(peer);
            conn.send(OK);
        }
    });
    for (sources, threads) in [("127.0.0.2,127.0.0.3", "1"), ("127.0.0.2-5", "2")] {
        peers.lock().unwrap().clear();
        let args = ["-b", "{}", "-c", "8", "-n", "200", "--source-ip", sources, "-t", threads];
        let (code, summary) = run(dir.path(), &server.url(), &args);
        assert_eq!(code, 0, "{summary}");
        let peers = peers.lock().unwrap();
        let sockets: BTreeSet<_> = peers.iter().collect();
        let of: Vec<usize> =
            (2..=5).map(|k| sockets.iter().filter(|s| s.ip().to_string() == format!("127.0.0.{k}")).count()).collect();
        assert_eq!(of, if threads == "1" { [4, 4, 0, 0] } else { [2, 2, 2, 2] }, "{sockets:?}");
    }
    let out = ringload(dir.path(), &["run", &server.url(), "-b", "{}", "-n", "1", "--source-ip", "192.0.2.9"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(3) && text.contains("192.0.2.9") && text.contains("ip addr add"), "{text}");
}

#[test]
fn case_60_used_up_local_ports_are_their_own_class_with_a_cure_and_the_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    // The kernel takes a socket's range only inside its own.
    let own = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let last: u32 = own.split_whitespace().nth(1).unwrap().parse().unwrap();
    let range = format!("{}-{last}", last - 49);
    let args = ["-b", "{}", "-c", "60", "-n", "2000", "--local-ports", &range];
    let out = ringload(dir.path(), &[&["run", &server.url(), "-t", "1", "-q"], &args[..]].concat());
    if String::from_utf8_lossy(&out.stderr).contains("6.3") {
        return; // A kernel without a port range a socket: nothing can be shown there.
    }
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("no_local_port") && text.contains("--source-ip"), "{text}");
    // The ports of the first run are in TIME_WAIT towards its server: another one is another peer.
    let server = Server::always(OK);
    let (_, summary) = run(dir.path(), &server.url(), &args);
    let failed = summary["errors"]["no_local_port"].as_u64().unwrap();
    let succeeded = summary["requests"]["succeeded"].as_u64().unwrap();
    assert!(succeeded > 0 && failed > 0 && succeeded + failed == 2000, "{summary}");
    assert!(summary["connections"]["established_peak"].as_u64().unwrap() <= 50, "{summary}");
}

#[test]
fn case_61_an_ipv6_literal_is_bracketed_in_the_host_field() {
    if TcpListener::bind("[::1]:0").is_err() {
        return; // A machine without IPv6.
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on("[::1]:0", |conn| {
        while conn.request().is_some() {
            conn.send(OK);
        }
    });
    let url = format!("http://[::1]:{}/", server.address.port());
    let (code, _) = run(dir.path(), &url, &["-b", "{}", "-c", "1", "-n", "1"]);
    assert_eq!(code, 0);
    assert!(server.requests()[0].head.contains(&format!("\r\nHost: [::1]:{}\r\n", server.address.port())));
    let (code, _) = run(dir.path(), &url, &["-b", "{}", "-c", "1", "-n", "1", "--source-ip", "::1"]);
    assert_eq!(code, 0, "a source of that family");
}

#[test]
fn case_62_every_address_of_a_name_is_tried_and_the_dead_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let port = server.address.port();
    let resolve = format!("many.test:{port}:127.0.0.9,127.0.0.1");
    let args = ["-b", "{}", "-c", "4", "-n", "40", "--resolve", &resolve];
    let (code, summary) = run(dir.path(), &format!("http://many.test:{port}/"), &args);
    assert_eq!((code, &summary["requests"]["succeeded"]), (0, &json!(40)), "{summary}");
    assert!(server.requests()[0].head.contains(&format!("\r\nHost: many.test:{port}\r\n")));
    let notes = summary["notes"].to_string();
    assert!(notes.contains("127.0.0.9") && notes.contains("refused") && !notes.contains("127.0.0.1:"), "{notes}");
    // Once an address has answered, later connections begin there.
    let args = ["-b", "{}", "-c", "1", "-n", "20", "--reuse", "never", "--resolve", &resolve];
    let (code, summary) = run(dir.path(), &format!("http://many.test:{port}/"), &args);
    let notes = summary["notes"].to_string();
    assert!(code == 0 && notes.contains("failed 1 of its connects"), "{notes}");
    let (code, _) = run(dir.path(), &format!("http://localhost:{port}/"), &["-b", "{}", "-c", "1", "-n", "2"]);
    assert_eq!(code, 0, "localhost, on one family");
}

#[test]
fn case_65_a_unix_target_has_a_valid_host_field() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let served = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut buffer, mut chunk) = (Vec::new(), [0; 4096]);
        loop {
            if let Some(request) = Request::take(&mut buffer) {
                let _ = stream.write_all(OK);
                return request;
            }
            let n = stream.read(&mut chunk).unwrap();
            buffer.extend_from_slice(&chunk[..n]);
        }
    });
    let url = format!("unix:{}:/v1/x", path.display());
    let (code, summary) = run(dir.path(), &url, &["-b", "{}", "-c", "1", "-n", "1"]);
    assert_eq!(code, 0, "{summary}");
    let head = served.join().unwrap().head;
    assert!(head.starts_with("POST /v1/x HTTP/1.1\r\n") && head.contains("\r\nHost: localhost\r\n"), "{head}");
}

#[test]
fn cases_67_and_68_a_header_overrides_removes_and_splits_at_its_first_colon() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let fields = ["Host: a", "Content-Type: x/y", "User-Agent:", "Cookie: a=1; b=2:3"];
    let flags: Vec<&str> = fields.iter().flat_map(|f| ["-H", f]).collect();
    let (code, _) = run(dir.path(), &server.url(), &[&["-b", "{}", "-c", "1", "-n", "1"], &flags[..]].concat());
    assert_eq!(code, 0);
    let head = server.requests()[0].head.clone();
    let all = |name: &str| -> Vec<String> {
        let lines = head.lines().filter_map(|l| l.split_once(": ")).filter(|(n, _)| n.eq_ignore_ascii_case(name));
        lines.map(|(_, v)| v.to_owned()).collect()
    };
    assert_eq!((all("host"), all("content-type")), (vec!["a".to_owned()], vec!["x/y".to_owned()]), "{head}");
    assert_eq!(all("cookie"), ["a=1; b=2:3"]);
    assert!(!head.to_ascii_lowercase().contains("user-agent"), "{head}");
}

#[test]
fn a_detour_connects_elsewhere_under_the_same_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let detour = format!("api.test:80:127.0.0.1:{}", server.address.port());
    let args = ["-b", "{}", "-c", "1", "-n", "2", "--connect-to", &detour];
    let (code, summary) = run(dir.path(), "http://api.test/v1/x", &args);
    assert_eq!(code, 0, "{summary}");
    assert!(server.requests()[0].head.contains("\r\nHost: api.test\r\n"));
}

#[test]
fn all_turns_of_a_session_go_to_one_url_with_the_strategy_session() {
    let dir = tempfile::tempdir().unwrap();
    let rows: String = (0..36)
        .map(|k| format!("{{\"session_id\":\"s{}\",\"payload\":{{\"s\":{},\"t\":{}}}}}\n", k % 12, k % 12, k / 12))
        .collect();
    std::fs::write(dir.path().join("s.jsonl"), rows).unwrap();
    for threads in ["1", "2"] {
        let (a, b) = (Server::always(OK), Server::always(OK));
        let (url_a, url_b) = (a.url(), b.url());
        let args = [
            "run",
            &url_a,
            &url_b,
            "-f",
            "s.jsonl",
            "--url-strategy",
            "session",
            "-c",
            "3",
            "-t",
            threads,
            "--json",
            "-q",
        ];
        let out = ringload(dir.path(), &args);
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        let sessions = |server: &Server| -> BTreeSet<u64> {
            let body = |r: &Request| serde_json::from_slice::<serde_json::Value>(&r.body).unwrap();
            server.requests().iter().map(|r| body(r)["s"].as_u64().unwrap()).collect()
        };
        let (of_a, of_b) = (sessions(&a), sessions(&b));
        assert!(of_a.is_disjoint(&of_b), "{of_a:?} {of_b:?}");
        assert_eq!((of_a.len(), of_b.len()), (6, 6), "sessions take turns");
        assert_eq!(a.requests().len() + b.requests().len(), 36);
    }
}

#[test]
fn cold_runs_open_inside_the_measured_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    for (more, connects) in
        [(&[][..], 0), (&["--cold"], 1), (&["--preconnect", "off"], 1), (&["--preconnect", "on"], 0)]
    {
        let args = [&["-b", "{}", "-c", "1", "-n", "5", "-o", "out", "--records", "jsonl"], more].concat();
        let _ = std::fs::remove_dir_all(dir.path().join("out"));
        let (code, summary) = run(dir.path(), &server.url(), &args);
        assert_eq!(code, 0, "{summary}");
        let rows = std::fs::read_to_string(dir.path().join("out/records.jsonl")).unwrap();
        let on_behalf = rows
            .lines()
            .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap())
            .filter(|row| row["connect_ns"].is_number())
            .count();
        assert_eq!(on_behalf, connects, "{more:?}: {rows}");
    }
}

#[test]
fn flags_of_connections_that_cannot_be_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    for (args, said) in [
        (&["--url-strategy", "session"][..], "more than one URL"),
        (&["--resend-stale", "--reuse", "never"], "--resend-stale"),
        (&["--preconnect", "on", "--reuse", "never"], "--preconnect"),
        (&["--preconnect", "on", "--cold"], "--cold"),
        (&["--source-ip", "127.0.0.1-::1"], "family"),
        (&["--source-ip", "::1"], "no source is of the address family"),
        (&["--connect-to", "other.test:80:127.0.0.1:80"], "no URL has"),
        (&["--resolve", "other.test:80:127.0.0.1"], "no URL has"),
        (&["--local-ports", "9-5"], "range of ports"),
        (&["--local-ports", "1-65535"], "ip_local_port_range"),
        (&["--tls-resume", "on"], "--tls-resume"),
        (&["--sndbuf", "0"], "size"),
    ] {
        let all = [&["run", "http://127.0.0.1:1/", "-b", "{}", "-n", "1"], args].concat();
        let out = ringload(dir.path(), &all);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(said) && !text.contains("panicked"), "{args:?}: {text}");
    }
}

#[test]
fn socket_options_go_with_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::always(OK);
    let args = ["-b", "{}", "-c", "2", "-n", "20", "--sndbuf", "64KiB", "--rcvbuf", "64KiB", "--tcp-keepalive", "30s"];
    let (code, summary) = run(dir.path(), &server.url(), &args);
    assert_eq!((code, &summary["requests"]["succeeded"]), (0, &json!(20)), "{summary}");
}

/// Files of this process.
fn files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn no_file_is_left_open_after_any_run() {
    // Other tests open files meanwhile: the count is taken in a process of its own, which runs this test alone.
    const ALONE: &str = "RINGLOAD_TEST_COUNTS_FILES";
    if std::env::var_os(ALONE).is_none() {
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "net::no_file_is_left_open_after_any_run", "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        return;
    }
    let closes = Server::start(|conn| {
        if conn.request().is_some() {
            conn.send(OK);
        }
    });
    let resets = Server::start(|conn| {
        let _ = conn.stream.read(&mut [0; 10]);
        let _ = socket2::SockRef::from(&conn.stream).set_linger(Some(Duration::ZERO));
    });
    let hangs = Server::start(|conn| while conn.request().is_some() {});
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let view = Arc::new(View::inline(&vec![b'x'; 100_000]).unwrap());
    let before = files();
    let go = |address, requests, stale: bool| {
        let mut plan = alloc::plan(address, Shape::Closed);
        plan.stop.requests = Some(requests);
        plan.stop.duration_ns = Some(1_000_000_000);
        plan.stop.drain_ns = 100_000_000;
        plan.net.resend_stale = stale;
        engine::run(plan, view.clone(), None, &mut |_| {}).unwrap()
    };
    let settled = |most: usize| {
        // The servers' threads let go of their ends a moment after ours are closed.
        let until = Instant::now() + Duration::from_secs(10);
        while files() > most && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        files()
    };
    for (address, stale) in [
        (closes.address, false),
        (closes.address, true),
        (resets.address, false),
        (hangs.address, false),
        (dead, false),
    ] {
        let result = go(address, 300, stale);
        assert_eq!(settled(before), before, "{:?}", result.workers[0].buckets);
    }
}
