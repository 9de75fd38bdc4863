//! The server of a simulated connection: reads requests byte by byte, holds each to what is stored, and answers well or badly.

use rand::RngExt;

use super::{Event, Part, SimRing};
use crate::data::{ConnId, RecordId};

/// What a response says when its last byte was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub record: RecordId,
    pub status: u16,
    /// Whole and well framed, so that a client must take it for what it says.
    pub whole: bool,
}

/// What all servers of a ring saw.
#[derive(Debug)]
pub(super) struct Log {
    /// Heads that came, by record.
    pub heads: Vec<u64>,
    /// Requests that came whole, by record; each body was compared byte by byte.
    pub whole: Vec<u64>,
    /// Responses whose last byte was handed to the client, by record, whatever they say.
    pub answers: Vec<u64>,
    /// Whole 2xx responses that were read to their end, and other whole ones.
    pub good_read: u64,
    pub status_read: [u64; 6],
    /// Records in the order in which their heads came, with the answers to each predecessor by then.
    pub too_early: Vec<RecordId>,
}

impl Log {
    pub fn new(records: u32) -> Self {
        let n = records as usize;
        Self {
            heads: vec![0; n],
            whole: vec![0; n],
            answers: vec![0; n],
            good_read: 0,
            status_read: [0; 6],
            too_early: Vec::new(),
        }
    }

    /// The client has the last byte of a response.
    pub fn read(&mut self, tag: Option<Tag>) {
        let Some(tag) = tag else { return };
        self.answers[tag.record.index()] += 1;
        match tag.status {
            200..300 if tag.whole => self.good_read += 1,
            300..600 if tag.whole => self.status_read[usize::from(tag.status / 100)] += 1,
            _ => {}
        }
    }
}

/// What a server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Length,
    Chunked,
    UntilClose,
    LastOfConnection,
    KeptFor(u32),
    Interim,
    Stream,
    // From here on: faults.
    Status(u16),
    EarlyRefusal,
    EarlyAnswer,
    Reset,
    ResetInside,
    CloseUnanswered,
    CloseInside,
    Garbage,
    Stall,
    HugeHead,
    Upgrade,
    Surplus,
    IdleClose,
    StreamError,
    StreamCut,
}

/// One connection's server side.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub generation: u16,
    /// It has reset the connection.
    pub reset: bool,
    /// It reads and answers nothing more.
    done: bool,
    incoming: Vec<u8>,
    now: Option<Request>,
    /// When its last part leaves.
    leaves_ns: u64,
    /// When it closes the connection if no request has come by then; 0 for never.
    kept_until_ns: u64,
}

/// The request that is being read.
#[derive(Clone, Copy, Debug)]
struct Request {
    record: RecordId,
    head: usize,
    total: usize,
    manner: Manner,
    answered: bool,
}

fn field<'a>(head: &'a str, name: &str) -> &'a str {
    let mut found = head.lines().filter_map(|l| l.split_once(": ")).filter(|(n, _)| *n == name).map(|(_, v)| v);
    let value = found.next().unwrap_or_else(|| panic!("{name} is missing in {head:?}"));
    assert!(found.next().is_none(), "{name} twice in {head:?}");
    value
}

impl SimRing<'_> {
    /// Bytes of a client came to its server.
    pub(super) fn serve(&mut self, conn: ConnId, bytes: &[u8]) {
        let peer = &mut self.socks[conn.index()].peer;
        if peer.done {
            // A closed socket answers data with a reset.
            if !peer.reset && self.rng.random_bool(0.5) {
                self.reset(conn);
            }
            return;
        }
        peer.incoming.extend_from_slice(bytes);
        while self.step(conn) {}
    }

    /// One step of reading; true when there may be another.
    fn step(&mut self, conn: ConnId) -> bool {
        let peer = &self.socks[conn.index()].peer;
        if peer.done {
            return false;
        }
        let Some(request) = peer.now else { return self.read_head(conn) };
        if request.manner == Manner::Reset && !request.answered {
            self.reset(conn);
            return false;
        }
        if peer.incoming.len() < request.total {
            return false;
        }
        let mut stored = Vec::new();
        self.view.body_to(request.record, &mut stored).expect("the map is whole");
        let peer = &mut self.socks[conn.index()].peer;
        assert!(peer.incoming[request.head..request.total] == stored, "other bytes than those of {}", request.record);
        peer.incoming.drain(..request.total);
        peer.now = None;
        assert!(peer.incoming.is_empty(), "bytes behind a request: {:?}", peer.incoming);
        self.log.whole[request.record.index()] += 1;
        if !request.answered {
            self.answer(conn, request.record, request.manner);
        }
        true
    }

    fn read_head(&mut self, conn: ConnId) -> bool {
        let peer = &self.socks[conn.index()].peer;
        let Some(end) = memchr::memmem::find(&peer.incoming, b"\r\n\r\n") else { return false };
        let head = std::str::from_utf8(&peer.incoming[..end]).expect("a head of text").to_owned();
        assert!(head.starts_with("POST /v1/x HTTP/1.1\r\n"), "{head:?}");
        let record = RecordId(field(&head, "X-Ringload-Record").parse().unwrap());
        let body: usize = field(&head, "Content-Length").parse().unwrap();
        assert_eq!(body as u64, self.view.body_bytes(record));
        assert_eq!(field(&head, "X-Ringload-Xxh3"), format!("{:016x}", self.view.body_xxh3(record)));
        let kept_until_ns = std::mem::take(&mut self.socks[conn.index()].peer.kept_until_ns);
        assert!(kept_until_ns == 0 || self.now() < kept_until_ns, "a request after the server's keep-alive time");
        self.log.heads[record.index()] += 1;
        if self.view.predecessors(record).iter().any(|&p| self.log.answers[p as usize] == 0) {
            self.log.too_early.push(record);
        }
        let manner = self.manner(record);
        let early = matches!(manner, Manner::EarlyRefusal | Manner::EarlyAnswer);
        let request = Request { record, head: end + 4, total: end + 4 + body, manner, answered: early };
        self.socks[conn.index()].peer.now = Some(request);
        if early {
            self.answer(conn, record, manner);
        }
        true
    }

    fn manner(&mut self, record: RecordId) -> Manner {
        if !self.chance(self.faults.server) {
            let good = [
                Manner::Length,
                Manner::Length,
                Manner::Chunked,
                Manner::UntilClose,
                Manner::LastOfConnection,
                Manner::KeptFor(0),
                Manner::KeptFor(1),
                Manner::Interim,
                Manner::Stream,
            ];
            return good[self.rng.random_range(0..good.len())];
        }
        let bad = [
            Manner::Status(301),
            Manner::Status(404),
            Manner::Status(503),
            Manner::EarlyRefusal,
            Manner::EarlyAnswer,
            Manner::Reset,
            Manner::ResetInside,
            Manner::CloseUnanswered,
            Manner::CloseInside,
            Manner::Garbage,
            Manner::Stall,
            Manner::HugeHead,
            Manner::Upgrade,
            Manner::Surplus,
            Manner::IdleClose,
            Manner::StreamError,
            Manner::StreamCut,
        ];
        let _ = record;
        bad[self.rng.random_range(0..bad.len())]
    }

    fn answer(&mut self, conn: ConnId, record: RecordId, manner: Manner) {
        let n =
            if self.rng.random_bool(0.2) { self.rng.random_range(0..30_000) } else { self.rng.random_range(0..300) };
        let body = vec![b'r'; n];
        let tag = |status, whole| Some(Tag { record, status, whole });
        match manner {
            Manner::Length | Manner::EarlyAnswer => self.say(conn, &with_length(200, "", &body), tag(200, true)),
            Manner::LastOfConnection => {
                self.say(conn, &with_length(200, "Connection: close\r\n", &body), tag(200, true));
                self.fin(conn, None);
            }
            // The connection is closed when its time is over, to the nanosecond.
            Manner::KeptFor(seconds) => {
                self.say(conn, &with_length(200, &format!("Keep-Alive: timeout={seconds}\r\n"), &body), tag(200, true));
                self.socks[conn.index()].peer.kept_until_ns = self.now() + u64::from(seconds) * 1_000_000_000;
            }
            Manner::Interim => {
                let mut all = Vec::new();
                for _ in 0..self.rng.random_range(1..4) {
                    all.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
                }
                all.extend(with_length(204, "", &[]));
                self.say(conn, &all, tag(204, true));
            }
            Manner::Chunked => {
                let all = self.chunked("text/plain", &body, true);
                self.say(conn, &all, tag(200, true));
            }
            Manner::UntilClose => {
                let mut all = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
                all.extend(body);
                self.say(conn, &all, None);
                self.fin(conn, tag(200, true));
            }
            Manner::Stream => {
                let all = self.chunked("text/event-stream", EVENTS, true);
                self.say(conn, &all, tag(200, true));
            }
            Manner::StreamError => {
                let all = self.chunked("text/event-stream", b"data: {\"error\":{\"message\":\"no\"}}\n\n", true);
                self.say(conn, &all, tag(200, false));
            }
            Manner::StreamCut => {
                let all = self.chunked("text/event-stream", EVENTS, false);
                self.say(conn, &all, None);
                self.fin(conn, tag(200, false));
            }
            Manner::Status(status) => self.say(conn, &with_length(status, "", &body), tag(status, true)),
            Manner::EarlyRefusal => {
                self.say(conn, &with_length(413, "Connection: close\r\n", &body), tag(413, true));
                self.fin(conn, None);
            }
            Manner::Reset => self.reset(conn),
            Manner::ResetInside => {
                let all = with_length(200, "", b"0123456789");
                let cut = self.rng.random_range(0..all.len());
                self.say(conn, &all[..cut], None);
                self.reset(conn);
            }
            Manner::CloseUnanswered => self.fin(conn, tag(0, false)),
            Manner::CloseInside => {
                let all = with_length(200, "", b"0123456789");
                let cut = self.rng.random_range(1..all.len());
                self.say(conn, &all[..cut], None);
                self.fin(conn, tag(0, false));
            }
            Manner::Garbage => self.say(conn, b"SSH-2.0-OpenSSH_9.9\r\n\r\n", tag(0, false)),
            Manner::Stall => self.socks[conn.index()].peer.done = true,
            Manner::HugeHead => {
                let mut all = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
                all.extend(vec![b'x'; 70_000]);
                self.say(conn, &all, tag(0, false));
            }
            Manner::Upgrade => self.say(
                conn,
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
                tag(0, false),
            ),
            Manner::Surplus => {
                self.say(conn, &with_length(200, "", &body), tag(200, true));
                self.say(conn, b"and more", None);
            }
            Manner::IdleClose => {
                self.say(conn, &with_length(200, "", &body), tag(200, true));
                self.socks[conn.index()].peer.leaves_ns += self.rng.random_range(0..2_000_000);
                self.fin(conn, None);
            }
        }
    }

    /// A chunked response, its last chunk included or not.
    fn chunked(&mut self, content: &str, body: &[u8], whole: bool) -> Vec<u8> {
        let mut all =
            format!("HTTP/1.1 200 OK\r\nContent-Type: {content}\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
        let mut rest = body;
        while !rest.is_empty() {
            let n = self.rng.random_range(1..=rest.len());
            let extension = if self.rng.random_bool(0.1) { ";a=b" } else { "" };
            all.extend(format!("{n:x}{extension}\r\n").into_bytes());
            all.extend_from_slice(&rest[..n]);
            all.extend_from_slice(b"\r\n");
            rest = &rest[n..];
        }
        if whole {
            all.extend_from_slice(if self.rng.random_bool(0.1) { b"0\r\nT: 1\r\n\r\n" } else { b"0\r\n\r\n" });
        }
        all
    }

    /// Sends bytes in a few parts; the last carries the tag.
    fn say(&mut self, conn: ConnId, bytes: &[u8], tag: Option<Tag>) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = if self.rng.random_bool(0.7) { rest.len() } else { self.rng.random_range(1..=rest.len()) };
            let last = n == rest.len();
            let part = Part::Bytes { bytes: rest[..n].to_vec(), at: 0, tag: if last { tag } else { None } };
            self.leave(conn, part);
            rest = &rest[n..];
        }
    }

    fn fin(&mut self, conn: ConnId, tag: Option<Tag>) {
        self.leave(conn, Part::Fin { tag });
        self.socks[conn.index()].peer.done = true;
    }

    fn reset(&mut self, conn: ConnId) {
        self.leave(conn, Part::Reset);
        let peer = &mut self.socks[conn.index()].peer;
        peer.done = true;
        peer.reset = true;
    }

    /// Parts arrive in the order in which they left.
    fn leave(&mut self, conn: ConnId, part: Part) {
        let delay = self.delay();
        let now = self.now();
        let peer = &mut self.socks[conn.index()].peer;
        peer.leaves_ns = peer.leaves_ns.max(now) + delay;
        let after = peer.leaves_ns - now;
        self.later(conn, after, Event::Arrives(part));
    }
}

const EVENTS: &[u8] = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n\
data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

fn with_length(status: u16, fields: &str, body: &[u8]) -> Vec<u8> {
    let length = if status == 204 { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let mut all = format!("HTTP/1.1 {status} Said\r\nContent-Type: text/plain\r\n{length}{fields}\r\n").into_bytes();
    all.extend_from_slice(body);
    all
}
