//! Harnesses for the fuzzer, beside the code that they hold: any bytes, cut anyhow, end in one verdict and never in a panic.
//!
//! `tests/fuzz` calls them with what a fuzzer finds; the unit tests here call them with a seeded corpus on a stable
//! toolchain. The reader in this file does with the bytes of a connection what an engine does.

use super::{
    response::{Body, Content, Framing, Head, HeadStep, WireError, parse_head},
    scan::{Scan, Seen, Usage},
};
use crate::data::{limits, outcome::ErrorClass};

/// A response in which any byte may be anything. The first byte says how the rest is cut; the verdict must not depend on it.
///
/// # Panics
///
/// When the code does not hold what it promises.
pub fn fuzz_response(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else { return };
    let method_is_head = how & 0x80 != 0;
    let whole = read(bytes, usize::MAX, method_is_head);
    assert!(whole.consumed <= bytes.len());
    assert_eq!(read(bytes, 1 + usize::from(how & 0x7f), method_is_head), whole);
    if bytes.len() < 512 {
        assert_eq!(read(bytes, 1, method_is_head), whole);
    }
    if let Ok(Some(head)) = whole.end {
        let longer = read(&[bytes, b"HTTP/1.1 500 Stray\r\n\r\n"].concat(), usize::MAX, method_is_head);
        if head.framing != Framing::UntilClose {
            assert_eq!(longer, whole, "bytes behind a complete response changed it");
        }
    }
}

/// A payload in which any byte may be anything, as an event stream and as JSON. The first byte says how the rest is cut.
///
/// # Panics
///
/// When the code does not hold what it promises.
pub fn fuzz_scan(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else { return };
    for scan in [Scan::stream(), Scan::json()] {
        let whole = scan_all(scan, bytes, usize::MAX);
        assert_eq!(scan_all(scan, bytes, 1 + usize::from(how)), whole);
        assert_eq!(scan_all(scan, bytes, 1), whole);
        assert!(whole.seen.output_events <= whole.seen.content_events);
        assert!(whole.seen.content_events <= whole.seen.events);
        assert!(!whole.done_marker || whole.finished);
    }
}

/// What a scan says in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    seen: Seen,
    usage: Usage,
    error: bool,
    done_marker: bool,
    finished: bool,
    comments: u32,
    malformed: u32,
}

impl Told {
    fn of(scan: &Scan, seen: Seen) -> Self {
        assert_eq!(seen.events, scan.events());
        Self {
            seen,
            usage: scan.usage(),
            error: scan.error(),
            done_marker: scan.done_marker(),
            finished: scan.finished(),
            comments: scan.comments(),
            malformed: scan.malformed(),
        }
    }
}

fn scan_all(mut scan: Scan, bytes: &[u8], piece: usize) -> Told {
    let mut seen = Seen::default();
    for read in bytes.chunks(piece) {
        seen += scan.feed(read);
    }
    seen += scan.finish();
    Told::of(&scan, seen)
}

/// What became of the bytes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    /// The head of the complete response, none when the connection ended before a byte of one, or why it failed.
    end: Result<Option<Head>, WireError>,
    /// Bytes that belong to the response, where there is one.
    consumed: usize,
    payload_bytes: u64,
    told: Told,
}

/// Reads one response off a connection that brings `bytes`, at most `piece` at once, and then closes.
fn read(bytes: &[u8], piece: usize, method_is_head: bool) -> Verdict {
    let mut verdict = Verdict { end: Ok(None), consumed: 0, payload_bytes: 0, told: Told::default() };
    let mut ends = (0..bytes.len()).step_by(piece).map(|start| bytes.len().min(start.saturating_add(piece)));
    let mut have = 0;
    let mut interims = 0;
    let head = loop {
        match parse_head(&bytes[verdict.consumed..have], method_is_head) {
            Ok(HeadStep::Final(head)) => break head,
            Ok(HeadStep::Interim { consumed }) => {
                assert!(0 < consumed);
                verdict.consumed += consumed;
                interims += 1;
                if interims > limits::INTERIM_RESPONSES_MAX {
                    verdict.end = Err(WireError { class: ErrorClass::Framing, reason: "too many interim responses" });
                    return verdict;
                }
            }
            Ok(HeadStep::Partial) => {
                assert!(have - verdict.consumed < limits::RESPONSE_HEAD_BYTES_MAX);
                let Some(end) = ends.next() else {
                    if verdict.consumed < bytes.len() {
                        verdict.end = Err(WireError { class: ErrorClass::Truncated, reason: "closed inside a head" });
                    }
                    return verdict;
                };
                have = end;
            }
            Err(error) => {
                verdict.end = Err(error);
                return verdict;
            }
        }
    };
    verdict.consumed += head.consumed;
    assert!(verdict.consumed <= have);
    let mut pieces = vec![&bytes[verdict.consumed..have]];
    pieces.extend(ends.scan(have, |start, end| Some(&bytes[std::mem::replace(start, end)..end])));
    read_body(&head, &pieces, &mut verdict);
    verdict
}

fn read_body(head: &Head, pieces: &[&[u8]], verdict: &mut Verdict) {
    let mut body = Body::new(head.framing);
    let mut scan = if head.content == Content::EventStream { Scan::stream() } else { Scan::json() };
    let mut seen = Seen::default();
    for piece in pieces {
        let payload_bytes = &mut verdict.payload_bytes;
        let fed = body.feed(piece, |payload| {
            *payload_bytes += payload.len() as u64;
            seen += scan.feed(payload);
        });
        match fed {
            Ok(fed) => {
                assert!(fed.consumed <= piece.len());
                assert!(fed.done || fed.consumed == piece.len());
                verdict.consumed += fed.consumed;
                if fed.done {
                    break;
                }
            }
            Err(error) => {
                verdict.consumed = 0;
                verdict.end = Err(error);
                break;
            }
        }
    }
    if verdict.end.is_ok() {
        verdict.end = body.at_close().map(|()| Some(*head));
    }
    if verdict.end.is_ok() {
        seen += scan.finish();
    }
    verdict.told = Told::of(&scan, seen);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Responses of every kind that is expected, and of some that are not.
    const RESPONSES: &[&[u8]] = &[
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"ok\":true}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 74\r\nContent-Type: application/json\r\n\r\n{\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2},\"a\":[1,2]}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;name=\"v\\\"\"\r\nhello\r\nA ;x\r\n0123456789\r\n0\r\nServer-Timing: a\r\nx-sum:\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n10\r\ndata: {\"choices\"\r\n36\r\n:[{\"delta\":{\"content\":\"h\xc3\xa9 \\u00e9\"}}]}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hi\r\n\r\nevent: message_delta\r\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n",
        b"HTTP/1.1 200\nContent-Length: 2\n\nok",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2, 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nKeep-Alive: timeout=5\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x15\x03\x03\x00\x02\x02\x46",
        b"",
    ];

    /// What mutations put in: the words and bytes that the parsers branch on.
    const PIECES: &[&[u8]] = &[
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b":",
        b";",
        b",",
        b" ",
        b"\"",
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b"0",
        b"5",
        b"f",
        b"-1",
        b"\x00",
        b"\xff",
        b"data:",
        b"event: error",
        b"\xef\xbb\xbf",
        b"[DONE]",
        b"null",
        b"\\u0065",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100\r\n\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"18446744073709551615",
        b"{\"choices\":[{\"delta\":{\"content\":\"",
        b"\"usage\":{\"prompt_tokens\":7}",
        b"\"error\":",
        b"\"type\":\"response.x.delta\"",
        b"0\r\n\r\n",
    ];

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as usize % n.max(1)
        }

        fn mutated(&mut self, from: &[u8]) -> Vec<u8> {
            let mut bytes = vec![self.below(256) as u8];
            bytes.extend_from_slice(from);
            for _ in 0..self.below(4) {
                let at = 1 + self.below(bytes.len());
                let end = bytes.len().min(at + self.below(4));
                let piece = PIECES[self.below(PIECES.len())];
                match self.below(5) {
                    0 if at < bytes.len() => bytes[at] = self.below(256) as u8,
                    1 => bytes.truncate(at),
                    2 if at < end => drop(bytes.drain(at..end)),
                    3 if at < end => drop(bytes.splice(at..end, piece.iter().copied())),
                    _ => drop(bytes.splice(at..at, piece.iter().copied())),
                }
            }
            bytes
        }
    }

    #[test]
    fn every_response_of_the_corpus_is_the_same_however_it_is_cut() {
        for response in RESPONSES {
            for how in [0, 1, 2, 6, 16, 0x80, 0x83] {
                fuzz_response(&[&[how], *response].concat());
                fuzz_scan(&[&[how], *response].concat());
            }
            // A piece of every length cuts at every byte.
            for piece in 1..response.len() {
                assert_eq!(read(response, piece, false), read(response, usize::MAX, false), "{piece}");
            }
        }
    }

    #[test]
    fn the_corpus_is_read_as_it_is_meant() {
        let ends: Vec<_> = RESPONSES
            .iter()
            .map(|response| match read(response, 7, false).end {
                Ok(Some(head)) => i32::from(head.status),
                Ok(None) => 0,
                Err(error) => -(error.class as i32),
            })
            .collect();
        let (framing, truncated) = (-(ErrorClass::Framing as i32), -(ErrorClass::Truncated as i32));
        let upgrade = -(ErrorClass::UnexpectedUpgrade as i32);
        #[rustfmt::skip]
        assert_eq!(ends, [
            200, 200, 200, 200, 200, 200, 204, 304, 200, 200, 200, framing, 200, framing, truncated, upgrade, 429, framing,
            framing, 0,
        ]);
        let stream = read(RESPONSES[3], 5, false).told;
        assert_eq!(stream.seen, Seen { events: 2, content_events: 1, output_events: 1 });
        assert!(stream.done_marker && read(RESPONSES[4], 5, false).told.finished);
        assert_eq!(read(RESPONSES[1], 5, false).told.usage.input, Some(4));
    }

    #[test]
    fn a_seeded_corpus_of_damaged_responses_ends_in_verdicts() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for round in 0..20_000 {
            let bytes = random.mutated(RESPONSES[round % RESPONSES.len()]);
            fuzz_response(&bytes);
            fuzz_scan(&bytes);
        }
    }
}
