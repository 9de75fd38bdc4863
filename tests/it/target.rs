//! The built-in target over real sockets: what a client of any quality gets from it, byte for byte, and what it counts.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use ringload::{
    data::results::TargetCounts,
    target::{self, Listen, Options, Running},
};
use xxhash_rust::xxh3::xxh3_64;

/// Everything here answers in milliseconds; a hang fails.
const LIMIT: Duration = Duration::from_secs(20);

fn start(query: &str) -> Running {
    let options = Options::parse(query).unwrap();
    target::start(Listen::Tcp("127.0.0.1:0".parse().unwrap()), &options, &[None]).unwrap()
}

fn address(running: &Running) -> SocketAddr {
    match running.addr() {
        Listen::Tcp(address) => *address,
        Listen::Unix(path) => panic!("{path:?}"),
    }
}

fn connect(running: &Running) -> TcpStream {
    let stream = TcpStream::connect(address(running)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

/// Reads one answer: by length, chunked, or until the close.
fn read_answer(stream: &mut impl Read, has_body: bool) -> std::io::Result<Answer> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head[9..12].parse().unwrap();
    let field = |name: &str| head.lines().find_map(|l| l.strip_prefix(name));
    let mut body = Vec::new();
    if !has_body {
    } else if let Some(length) = field("Content-Length: ") {
        body.resize(length.parse().unwrap(), 0);
        stream.read_exact(&mut body)?;
    } else if field("Transfer-Encoding: ").is_some() {
        while let Some(mut piece) = read_chunk(stream)? {
            body.append(&mut piece);
        }
    } else if status != 204 && status != 304 && status != 100 {
        stream.read_to_end(&mut body)?;
    }
    Ok(Answer { status, head, body })
}

fn read_chunk(stream: &mut impl Read) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
    let mut piece = vec![0; size + 2];
    stream.read_exact(&mut piece)?;
    piece.truncate(size);
    Ok(if size == 0 { None } else { Some(piece) })
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn post(body: &[u8], fields: &str) -> Vec<u8> {
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n{fields}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn ask(stream: &mut TcpStream, request: &[u8]) -> Answer {
    stream.write_all(request).unwrap();
    read_answer(stream, true).unwrap()
}

fn is_closed(stream: &mut impl Read) -> bool {
    matches!(stream.read(&mut [0; 16]), Ok(0))
}

fn is_reset(stream: &mut impl Read) -> bool {
    matches!(stream.read(&mut [0; 16]), Err(e) if e.kind() == ErrorKind::ConnectionReset)
}

/// Waits for counts, which a thread publishes while it works.
fn await_counts(running: &Running, holds: impl Fn(&TargetCounts) -> bool) -> TargetCounts {
    let start = Instant::now();
    loop {
        let counts = running.counts();
        if holds(&counts) {
            return counts;
        }
        assert!(start.elapsed() < LIMIT, "{counts:?}");
        std::thread::yield_now();
    }
}

#[test]
fn null_answers_pipelined_requests_in_one_go_and_counts_them() {
    let t = start("");
    let mut s = connect(&t);
    let body = vec![b'x'; 100_000];
    let batch = [GET, &post(&body, ""), GET, &post(b"abc", "")].concat();
    s.write_all(&batch).unwrap();
    for _ in 0..4 {
        let a = read_answer(&mut s, true).unwrap();
        assert_eq!((a.status, a.body.as_slice()), (200, &b"{\"ok\":true}"[..]));
    }
    drop(s);
    let counts = t.stop();
    assert_eq!((counts.requests, counts.answers, counts.body_bytes), (4, 4, 100_003));
    assert_eq!((counts.connections, counts.aborted, counts.bad_requests), (1, 0, 0));
    assert!(counts.cpu_ns > 0);
}

#[test]
fn requests_in_single_bytes_and_chunked_bodies_are_read() {
    let t = start("mode=echo");
    let mut s = connect(&t);
    let request = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nT: v\r\n\r\n";
    for byte in request {
        s.write_all(&[*byte]).unwrap();
    }
    assert_eq!(read_answer(&mut s, true).unwrap().body, b"hello world");
    let large: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
    let mut writer = s.try_clone().unwrap();
    let sent = post(&large, "");
    let writing = std::thread::spawn(move || writer.write_all(&sent));
    assert!(read_answer(&mut s, true).unwrap().body == large);
    writing.join().unwrap().unwrap();
}

#[test]
fn check_compares_digests_however_a_body_comes() {
    let t = start("mode=check");
    let mut s = connect(&t);
    let body: Vec<u8> = (0..1_000_000u32).map(|i| (i % 253) as u8).collect();
    for length in [0, 1, 300, 20_000, 1_000_000] {
        let body = &body[..length];
        let fields = format!("X-Ringload-Record: 5\r\nX-Ringload-Xxh3: {:016x}\r\n", xxh3_64(body));
        assert_eq!(ask(&mut s, &post(body, &fields)).status, 200, "{length}");
        let chunked = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n{fields}\r\n");
        let mut request = chunked.into_bytes();
        for piece in body.chunks(70_000) {
            request.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            request.extend_from_slice(piece);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\n\r\n");
        assert_eq!(ask(&mut s, &request).status, 200, "{length} chunked");
    }
    let a =
        ask(&mut s, &post(b"abd", &format!("X-Ringload-Record: 9\r\nX-Ringload-Xxh3: {:016x}\r\n", xxh3_64(b"abc"))));
    assert_eq!(a.status, 422);
    assert!(String::from_utf8(a.body).unwrap().contains("\"record\":9"));
    let short = format!("X-Ringload-Bytes: 4\r\nX-Ringload-Xxh3: {:016x}\r\n", xxh3_64(b"abc"));
    assert_eq!(ask(&mut s, &post(b"abc", &short)).status, 422);
    assert_eq!(ask(&mut s, &post(b"abc", "")).status, 200);
    drop(s);
    let counts = t.stop();
    assert_eq!((counts.requests, counts.verified, counts.wrong), (13, 12, 2));
    let wrong = counts.first_wrong.unwrap();
    assert_eq!((wrong.record, wrong.expected_bytes, wrong.seen_bytes), (Some(9), 3, 3));
    assert_eq!((wrong.expected_xxh3, wrong.seen_xxh3), (xxh3_64(b"abc"), xxh3_64(b"abd")));
}

#[test]
fn chat_counts_tokens_and_head_gets_no_body() {
    let t = start("mode=chat&tokens=5");
    let mut s = connect(&t);
    let a = ask(&mut s, &post(&[b'x'; 41], ""));
    let json: serde_json::Value = serde_json::from_slice(&a.body).unwrap();
    assert_eq!(
        (json["usage"]["prompt_tokens"].as_u64(), json["usage"]["completion_tokens"].as_u64()),
        (Some(11), Some(5))
    );
    s.write_all(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let head = read_answer(&mut s, false).unwrap();
    assert!(head.head.contains("Content-Length: "), "{}", head.head);
    // Nothing of a body is in the way of the next answer.
    assert_eq!(ask(&mut s, GET).status, 200);
}

#[test]
fn a_100_is_sent_to_who_waits_for_it() {
    for query in ["mode=echo", "mode=sse&ttft=0&itl=0&tokens=2"] {
        let t = start(query);
        let mut s = connect(&t);
        s.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n").unwrap();
        assert_eq!(read_answer(&mut s, true).unwrap().status, 100, "{query}");
        assert_eq!(ask(&mut s, b"abc").status, 200, "{query}");
    }
}

#[test]
fn connections_close_when_asked_to_and_say_so() {
    let t = start("close_every=3");
    for request in [&b"GET / HTTP/1.0\r\n\r\n"[..], b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"] {
        let mut s = connect(&t);
        assert!(ask(&mut s, request).head.contains("Connection: close"));
        assert!(is_closed(&mut s));
    }
    let mut s = connect(&t);
    let kept = ask(&mut s, b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert!(kept.head.contains("Connection: keep-alive"));
    assert!(!ask(&mut s, GET).head.contains("Connection"));
    assert!(ask(&mut s, GET).head.contains("Connection: close"));
    assert!(is_closed(&mut s));
    // What is pipelined behind the last answer is dropped without losing that answer.
    let mut s = connect(&t);
    s.write_all(&GET.repeat(100)).unwrap();
    for _ in 0..3 {
        assert_eq!(read_answer(&mut s, true).unwrap().status, 200);
    }
    assert!(is_closed(&mut s));
    assert_eq!(t.stop().closed, 2);
}

#[test]
fn what_is_no_request_gets_a_status_and_a_close() {
    for query in ["", "mode=sse"] {
        let t = start(query);
        let long = [b"GET / HTTP/1.1\r\nA: ".to_vec(), vec![b'x'; 200_000]].concat();
        for (status, bytes) in [
            (400, &b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\n"[..]),
            (400, b"GET / HTTP/1.1\r\n\r\n"),
            (505, b"GET / HTTP/3.0\r\nHost: a\r\n\r\n"),
            (501, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n"),
            (400, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            (431, &long),
        ] {
            let mut s = connect(&t);
            s.write_all(bytes).unwrap();
            let a = read_answer(&mut s, true).unwrap();
            assert_eq!(a.status, status, "{query} {:?}", &bytes[..bytes.len().min(40)]);
            assert!(serde_json::from_slice::<serde_json::Value>(&a.body).is_ok());
            assert!(is_closed(&mut s));
        }
        let counts = t.stop();
        assert_eq!((counts.bad_requests, counts.requests, counts.aborted), (6, 0, 0), "{query}");
    }
}

#[test]
fn large_answers_come_whole_and_are_json() {
    for bytes in [32_768, 65_536, 10_000_000] {
        let t = start(&format!("bytes={bytes}"));
        let mut s = connect(&t);
        s.write_all(&GET.repeat(3)).unwrap();
        for _ in 0..3 {
            let a = read_answer(&mut s, true).unwrap();
            assert_eq!(a.body.len(), bytes);
            assert!(serde_json::from_slice::<serde_json::Value>(&a.body).is_ok());
        }
        assert_eq!(await_counts(&t, |c| c.answers == 3).requests, 3);
    }
}

#[test]
fn injected_faults_happen_as_often_as_counted() {
    let t = start("error=20%&reset=20%&truncate=20%&seed=5");
    let mut seen = [0u64; 4];
    for _ in 0..200 {
        let mut s = connect(&t);
        s.write_all(GET).unwrap();
        match read_answer(&mut s, true) {
            Ok(a) if a.status == 500 => seen[0] += 1,
            Ok(_) => seen[3] += 1,
            Err(e) if e.kind() == ErrorKind::ConnectionReset => seen[1] += 1,
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => seen[2] += 1,
            Err(e) => panic!("{e}"),
        }
    }
    let counts = t.stop();
    let counted = [counts.errors_injected, counts.resets_injected, counts.truncations_injected];
    assert_eq!(counted, seen[..3]);
    assert!(seen.iter().all(|&n| n > 15), "{seen:?}");
    assert_eq!(counts.requests, 200);
}

#[test]
fn delays_hold_answers_back_in_order_and_lateness_is_told() {
    let t = start("delay=20ms");
    let mut s = connect(&t);
    let begin = Instant::now();
    s.write_all(&GET.repeat(3)).unwrap();
    for k in 1..=3u32 {
        read_answer(&mut s, true).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(20) * k);
    }
    // A client that only closed its sending side still gets its answer.
    s.write_all(GET).unwrap();
    s.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_answer(&mut s, true).unwrap().status, 200);
    assert!(is_closed(&mut s));
    let counts = t.stop();
    assert_eq!((counts.timed, counts.answers, counts.aborted), (4, 4, 0));
    assert!(counts.late_p50_ns > 0 && counts.late_p50_ns <= counts.late_max_ns);
}

#[test]
fn one_stall_holds_everything_until_its_end() {
    let t = start("stall=300ms@0");
    let mut s = connect(&t);
    let begin = Instant::now();
    ask(&mut s, GET);
    assert!(begin.elapsed() >= Duration::from_millis(300));
    ask(&mut s, GET);
    let counts = t.stop();
    assert_eq!((counts.stalled, counts.timed), (1, 1));
}

#[test]
fn idle_connections_are_closed_and_busy_ones_are_not() {
    for query in ["idle_close=60ms&delay=100ms", "mode=sse&ttft=100ms&tokens=1&idle_close=60ms"] {
        let t = start(query);
        let mut s = connect(&t);
        // Busy for longer than the idle time.
        assert_eq!(ask(&mut s, GET).status, 200);
        let begin = Instant::now();
        assert!(is_closed(&mut s), "{query}");
        assert!(begin.elapsed() >= Duration::from_millis(40), "{query}");
        assert_eq!(t.stop().closed, 1, "{query}");
    }
}

#[test]
fn slow_reads_take_their_time() {
    let t = start("slow_read=1MB");
    let mut s = connect(&t);
    let begin = Instant::now();
    let body = vec![b'x'; 300_000];
    assert_eq!(ask(&mut s, &post(&body, "")).status, 200);
    assert!(begin.elapsed() >= Duration::from_millis(250), "{:?}", begin.elapsed());
    assert_eq!(t.stop().body_bytes, 300_000);
}

#[test]
fn statuses_without_a_body_have_none() {
    for query in ["status=204", "mode=sse&status=204"] {
        let t = start(query);
        let mut s = connect(&t);
        s.write_all(&GET.repeat(2)).unwrap();
        for _ in 0..2 {
            let a = read_answer(&mut s, true).unwrap();
            assert!(a.status == 204 && !a.head.contains("Content-Length"), "{query}");
        }
    }
    let t = start("status=503");
    assert_eq!(ask(&mut connect(&t), GET).status, 503);
}

/// Reads a stream's events with the time of each since `begin`.
fn read_events(stream: &mut impl Read, begin: Instant) -> std::io::Result<Vec<(Duration, String)>> {
    let head = read_answer(stream, false)?;
    assert!(head.head.contains("text/event-stream"), "{}", head.head);
    let mut events = Vec::new();
    while let Some(chunk) = read_chunk(stream)? {
        let text = String::from_utf8(chunk).unwrap();
        events.push((begin.elapsed(), text.strip_prefix("data: ").unwrap().trim_end().to_owned()));
    }
    Ok(events)
}

fn has_content(event: &str) -> bool {
    event.contains("\"content\":\" ")
}

#[test]
fn a_stream_has_its_events_at_their_times() {
    let t = start("mode=sse&ttft=60ms&itl=10ms&tokens=8");
    let mut s = connect(&t);
    for _ in 0..2 {
        let begin = Instant::now();
        s.write_all(&post(b"{\"stream\":true}", "")).unwrap();
        let events = read_events(&mut s, begin).unwrap();
        assert_eq!(events.len(), 1 + 8 + 3);
        assert!(events[0].1.contains("\"role\":\"assistant\""));
        assert!(events[0].0 < Duration::from_millis(60));
        for (k, (at, event)) in events[1..9].iter().enumerate() {
            assert!(has_content(event), "{event}");
            assert!(*at >= Duration::from_millis(60 + 10 * k as u64), "event {k} came at {at:?}");
        }
        assert!(events[9].1.contains("\"finish_reason\":\"length\""));
        assert!(events[10].1.contains("\"prompt_tokens\":4,\"completion_tokens\":8,\"total_tokens\":12"));
        assert_eq!(events[11].1, "[DONE]");
    }
    drop(s);
    let counts = t.stop();
    assert_eq!((counts.requests, counts.answers, counts.events, counts.timed), (2, 2, 16, 16));
    assert_eq!((counts.aborted, counts.body_bytes), (0, 30));
}

#[test]
fn pipelined_streams_come_in_order_and_http_1_0_gets_no_chunks() {
    let t = start("mode=sse&ttft=1ms&itl=1ms&tokens=3");
    let mut s = connect(&t);
    s.write_all(&post(&[b'x'; 300_000], "").repeat(2)).unwrap();
    for _ in 0..2 {
        assert_eq!(read_events(&mut s, Instant::now()).unwrap().len(), 7);
    }
    let mut s = connect(&t);
    let a = ask(&mut s, b"GET / HTTP/1.0\r\n\r\n");
    let text = String::from_utf8(a.body).unwrap();
    assert_eq!(text.matches("data: ").count(), 7);
    assert!(text.ends_with("data: [DONE]\n\n"));
    let mut s = connect(&t);
    s.write_all(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(read_answer(&mut s, false).unwrap().status, 200);
}

#[test]
fn a_client_that_leaves_ends_its_stream_at_once() {
    let t = start("mode=sse&ttft=1ms&itl=1h&tokens=1000");
    let mut s = connect(&t);
    s.write_all(GET).unwrap();
    read_answer(&mut s, false).unwrap();
    drop(s);
    let counts = await_counts(&t, |c| c.aborted == 1);
    assert_eq!((counts.answers, counts.requests), (0, 1));
}

#[test]
fn streams_break_off_in_each_injected_way() {
    for (fault, count) in [("truncate", 5), ("reset", 5), ("stream_error", 7), ("error", 0)] {
        let t = start(&format!("mode=sse&ttft=1ms&itl=1ms&tokens=8&{fault}=100%"));
        // Also on a connection that has had a stream before, where it can have one.
        for _ in 0..2 {
            let mut s = connect(&t);
            s.write_all(GET).unwrap();
            if fault == "error" {
                assert_eq!(read_answer(&mut s, true).unwrap().status, 500);
                continue;
            }
            read_answer(&mut s, false).unwrap();
            let mut chunks = 0;
            let end = loop {
                match read_chunk(&mut s) {
                    Ok(Some(_)) => chunks += 1,
                    other => break other.map_err(|e| e.kind()),
                }
            };
            match fault {
                "truncate" => assert_eq!((chunks, end), (count, Err(ErrorKind::UnexpectedEof))),
                "reset" => assert_eq!(end, Err(ErrorKind::ConnectionReset)),
                _ => assert_eq!((chunks, end), (6, Ok(None))),
            }
        }
        let c = t.stop();
        let counted = [c.truncations_injected, c.resets_injected, c.stream_errors_injected, c.errors_injected];
        assert_eq!(counted.iter().sum::<u64>(), 2, "{fault} {counted:?}");
    }
}

#[test]
fn stopping_ends_at_once_whatever_is_under_way() {
    for query in ["delay=1h", "mode=sse&ttft=1h", "mode=sse&ttft=0&itl=0&tokens=10m", "bytes=64MB", "mode=echo"] {
        let t = start(query);
        let mut kept = Vec::new();
        for _ in 0..20 {
            let mut s = connect(&t);
            // Never read, and for some half a request.
            s.write_all(GET).unwrap();
            s.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Le").unwrap();
            kept.push(s);
        }
        await_counts(&t, |c| c.requests >= 20);
        let begin = Instant::now();
        let counts = t.stop();
        assert!(begin.elapsed() < Duration::from_secs(2), "{query}: {:?}", begin.elapsed());
        assert_eq!(counts.connections, 20, "{query}");
    }
}

#[test]
fn several_threads_share_a_port_and_a_taken_port_is_refused() {
    for mode in ["null", "sse&ttft=0&itl=0&tokens=1"] {
        let options = Options::parse(&format!("mode={mode}")).unwrap();
        let any = Listen::Tcp("127.0.0.1:0".parse().unwrap());
        let t = target::start(any, &options, &[None, None, None]).unwrap();
        assert_eq!(t.thread_ids.len(), 3);
        let mut streams: Vec<_> = (0..60).map(|_| connect(&t)).collect();
        for s in &mut streams {
            assert_eq!(ask(s, GET).status, 200);
        }
        let taken = target::start(t.addr().clone(), &options, &[None, None]).unwrap_err();
        assert!(taken.exit_code() == 3 && taken.to_string().contains("choose another"), "{taken}");
        assert_eq!(t.stop().requests, 60);
    }
}

#[test]
fn unix_sockets_by_path_and_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.sock");
    for query in ["bytes=100000", "mode=sse&ttft=0&itl=0&tokens=2"] {
        // A file that a dead server left is no obstacle.
        drop(std::os::unix::net::UnixListener::bind(&path));
        let options = Options::parse(query).unwrap();
        let listen = Listen::Unix(path.clone());
        let t = target::start(listen.clone(), &options, &[None, None]).unwrap();
        assert!(target::start(listen, &options, &[None]).is_err(), "a live server keeps its path");
        let mut s = UnixStream::connect(&path).unwrap();
        s.set_read_timeout(Some(LIMIT)).unwrap();
        for _ in 0..2 {
            s.write_all(&post(&[b'x'; 50_000], "")).unwrap();
            assert_eq!(read_answer(&mut s, true).unwrap().status, 200);
        }
        assert_eq!(t.stop().requests, 2);
        assert!(!path.exists());
    }
    let name = format!("unix:@ringload-{}", std::process::id());
    let t = target::start(Listen::parse(&name).unwrap(), &Options::default(), &[None]).unwrap();
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name["unix:@".len()..]).unwrap();
    let mut s = UnixStream::connect_addr(&address).unwrap();
    s.write_all(GET).unwrap();
    assert_eq!(read_answer(&mut s, true).unwrap().status, 200);
    drop(t);
}

#[test]
fn the_log_has_a_line_a_request_in_the_clients_clock() {
    let dir = tempfile::tempdir().unwrap();
    for mode in ["chat", "sse&ttft=1ms&itl=1ms"] {
        let path = dir.path().join("requests.log");
        let t = start(&format!("mode={mode}&tokens=2&log={}", path.display()));
        let mut s = connect(&t);
        for record in 0..3 {
            ask(&mut s, &post(b"abcd", &format!("X-Ringload-Record: {record}\r\n")));
        }
        drop(s);
        t.stop();
        let text = std::fs::read_to_string(&path).unwrap();
        let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|l| l.split('\t').collect()).collect();
        assert_eq!(rows.len(), 3, "{text}");
        let mut before = 0u64;
        for (record, row) in rows.iter().enumerate() {
            let stamps: Vec<u64> = row[..3].iter().map(|n| n.parse().unwrap()).collect();
            assert!(before <= stamps[0] && stamps[0] <= stamps[1] && stamps[1] <= stamps[2], "{text}");
            before = stamps[2];
            assert_eq!(row[5..], [&record.to_string(), "4", "200"]);
        }
    }
}

#[test]
fn any_bytes_leave_the_target_serving() {
    for query in ["", "mode=echo", "mode=check", "mode=sse&ttft=0&itl=0&tokens=1"] {
        let t = start(query);
        let good = post(b"0123456789", "X-Ringload-Xxh3: 0000000000000000\r\n");
        let mut seed = 1u64;
        for round in 0..300 {
            let mut bytes = good.repeat(2);
            for _ in 0..1 + round % 4 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = (seed >> 25) as u8;
            }
            let mut s = connect(&t);
            // Refused before all is sent: the write may fail, which is fine.
            let _ = s.write_all(&bytes);
            if round % 3 == 0 {
                let _ = s.shutdown(Shutdown::Write);
            }
            if round % 5 == 0 {
                let _ = read_answer(&mut s, true);
            }
        }
        assert!(ask(&mut connect(&t), &good).status >= 200, "{query}");
        let begin = Instant::now();
        t.stop();
        assert!(begin.elapsed() < Duration::from_secs(2));
    }
}

#[test]
fn a_thousand_streams_at_once_all_end_well() {
    let t = start("mode=sse&ttft=50ms&itl=2ms&tokens=20");
    let mut streams: Vec<_> = (0..1000).map(|_| connect(&t)).collect();
    for s in &mut streams {
        s.write_all(GET).unwrap();
    }
    for s in &mut streams {
        assert_eq!(read_events(s, Instant::now()).unwrap().len(), 24);
    }
    let counts = t.stop();
    assert_eq!((counts.answers, counts.events, counts.aborted), (1000, 20_000, 0));
}

#[test]
fn a_reset_reaches_a_client_that_waits() {
    let t = start("reset=100%&delay=10ms");
    let mut s = connect(&t);
    s.write_all(GET).unwrap();
    assert!(is_reset(&mut s));
    assert_eq!(t.stop().resets_injected, 1);
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    std::fs::write(&path, "precious").unwrap();
    let listen = format!("unix:{}", path.display());
    let out = crate::support::ringload(dir.path(), &["target", "--listen", &listen, "-d", "10ms"]);
    assert_ne!(out.status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    let out = crate::support::ringload(dir.path(), &["run", "builtin:?bytes=100GB", "-n", "1"]);
    assert_eq!(out.status.code(), Some(2), "{}", String::from_utf8_lossy(&out.stderr));
}
