//! Request bytes to steps: an incremental HTTP/1.1 parser (RFC 9112), resumable at any byte.
//!
//! Keeps no byte of a body. A head that comes in one piece is parsed where it lies; only a head in pieces is gathered.
//! Strict on purpose: a load generator that is slightly wrong must hear of it here, not at the server that it is meant for.

use memchr::{memchr, memrchr};

/// A request head, with the chunk lines and trailers of a body counted apart. The same bound that the client puts on responses.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// A chunk-size line with its extension.
const CHUNK_LINE_BYTES_MAX: u32 = 4 << 10;
/// Trailers of a chunked body.
const TRAILER_BYTES_MAX: u32 = 64 << 10;

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    #[default]
    None,
    /// `Content-Length`.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// What the target needs to know of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The method is HEAD: the answer has no body.
    pub head_only: bool,
    /// HTTP/1.0: no chunked answers, and closed unless kept alive by name.
    pub http10: bool,
    /// The connection ends after the answer.
    pub close: bool,
    /// The client waits for a 100.
    pub expect_continue: bool,
    /// How the body ends.
    pub framing: Framing,
    /// `X-Ringload-Record`.
    pub record: Option<u64>,
    /// `X-Ringload-Xxh3`.
    pub digest: Option<u64>,
    /// `X-Ringload-Bytes`: the length of the body apart from its framing.
    pub bytes: Option<u64>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad {
    /// Status of the answer.
    pub status: u16,
    /// What is wrong, for the answer's body.
    pub what: &'static str,
}

const fn bad(what: &'static str) -> Bad {
    Bad { status: 400, what }
}

/// What a call of [`Parser::step`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// All was used; more input is needed.
    More,
    /// A head is whole.
    Head(Head),
    /// The last so many of the used bytes are bytes of the body.
    Body(usize),
    /// The request is whole.
    Whole,
    /// Not a request; the connection cannot be used any further.
    Bad(Bad),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Length(u64),
    Size {
        value: u64,
        digits: u32,
        line: u32,
    },
    Extension {
        value: u64,
        line: u32,
    },
    SizeEnd {
        value: u64,
    },
    Data(u64),
    DataCr,
    DataLf,
    Trailer {
        bytes: u32,
        line: u32,
    },
    TrailerEnd {
        bytes: u32,
        line: u32,
    },
    Done,
    Dead,
}

/// The parser of one connection.
#[derive(Clone, Debug, Default)]
pub struct Parser {
    state: State,
    /// A head in pieces, as far as it came.
    gathered: Vec<u8>,
    /// Bytes of it that hold no end.
    scanned: usize,
}

impl Parser {
    /// True between two requests: nothing of the next one was seen.
    pub fn at_start(&self) -> bool {
        self.state == State::Head && self.gathered.is_empty()
    }

    /// Bytes of a body with a length that are still to come: what may be dropped without looking, see [`Parser::skip`].
    pub fn length_left(&self) -> u64 {
        if let State::Length(left) = self.state { left } else { 0 }
    }

    /// Takes note of body bytes that were dropped by the caller; at most [`Parser::length_left`].
    pub fn skip(&mut self, bytes: u64) {
        if let State::Length(left) = self.state {
            debug_assert!(bytes <= left);
            self.state = length_state(left.saturating_sub(bytes));
        }
    }

    /// Finds the next step in `input`; returns how many bytes of it are used up.
    pub fn step(&mut self, input: &[u8]) -> (usize, Step) {
        match self.state {
            State::Head => self.head(input),
            State::Length(left) => {
                let n = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                if n == 0 {
                    return (0, Step::More);
                }
                self.state = length_state(left - n as u64);
                (n, Step::Body(n))
            }
            State::Done => {
                self.state = State::Head;
                (0, Step::Whole)
            }
            State::Dead => (input.len(), Step::More),
            _ => self.chunked(input),
        }
    }

    fn refuse(&mut self, used: usize, why: Bad) -> (usize, Step) {
        self.state = State::Dead;
        self.gathered = Vec::new();
        (used, Step::Bad(why))
    }

    fn head(&mut self, input: &[u8]) -> (usize, Step) {
        if !self.gathered.is_empty() {
            return self.gathered_head(input);
        }
        // An empty line before the request line is ignored (RFC 9112 section 2.2): some clients end a body with one.
        let blank = input.iter().take_while(|&&b| b == b'\r' || b == b'\n').count();
        let rest = &input[blank..];
        match find_end(rest, 0) {
            Err(why) => self.refuse(blank, why),
            Ok(Some(end)) if end <= HEAD_BYTES_MAX => {
                let found = parse_head(&rest[..end]);
                self.found(blank + end, found)
            }
            Ok(None) if rest.len() <= HEAD_BYTES_MAX => {
                self.gathered.extend_from_slice(rest);
                self.scanned = last_line_start(rest);
                (input.len(), Step::More)
            }
            Ok(_) => self.refuse(blank, TOO_LARGE),
        }
    }

    fn gathered_head(&mut self, input: &[u8]) -> (usize, Step) {
        let had = self.gathered.len();
        let room = (HEAD_BYTES_MAX + 1).saturating_sub(had);
        let taken = input.len().min(room);
        self.gathered.extend_from_slice(&input[..taken]);
        match find_end(&self.gathered, self.scanned) {
            Err(why) => self.refuse(taken, why),
            Ok(Some(end)) if end <= HEAD_BYTES_MAX => {
                let found = parse_head(&self.gathered[..end]);
                self.gathered.clear();
                self.scanned = 0;
                // The end was not in what was there before, so it lies in this input.
                self.found(end.saturating_sub(had), found)
            }
            Ok(None) if self.gathered.len() <= HEAD_BYTES_MAX => {
                self.scanned = last_line_start(&self.gathered);
                (taken, Step::More)
            }
            Ok(_) => self.refuse(taken, TOO_LARGE),
        }
    }

    fn found(&mut self, used: usize, found: Result<Head, Bad>) -> (usize, Step) {
        match found {
            Err(why) => self.refuse(used, why),
            Ok(head) => {
                self.state = match head.framing {
                    Framing::None => State::Done,
                    Framing::Length(n) => length_state(n),
                    Framing::Chunked => State::Size { value: 0, digits: 0, line: 0 },
                };
                (used, Step::Head(head))
            }
        }
    }

    fn chunked(&mut self, input: &[u8]) -> (usize, Step) {
        let mut used = 0;
        while let Some(&byte) = input.get(used) {
            if let State::Data(left) = self.state {
                let n = (input.len() - used).min(usize::try_from(left).unwrap_or(usize::MAX));
                self.state = if left == n as u64 { State::DataCr } else { State::Data(left - n as u64) };
                return (used + n, Step::Body(n));
            }
            used += 1;
            match chunk_byte(self.state, byte) {
                Ok(next) => self.state = next,
                Err(why) => return self.refuse(used, why),
            }
            if self.state == State::Done {
                self.state = State::Head;
                return (used, Step::Whole);
            }
        }
        (used, Step::More)
    }
}

const TOO_LARGE: Bad = Bad { status: 431, what: "the request head is larger than 64 KiB" };

const fn length_state(left: u64) -> State {
    if left == 0 { State::Done } else { State::Length(left) }
}

/// One byte of the lines between the chunks (RFC 9112 section 7.1).
fn chunk_byte(state: State, byte: u8) -> Result<State, Bad> {
    Ok(match (state, byte) {
        (State::Size { value, digits, line }, b) if b.is_ascii_hexdigit() => {
            if digits >= 15 {
                return Err(bad("a chunk size has more than 15 digits"));
            }
            let digit = (b as char).to_digit(16).unwrap_or(0);
            State::Size { value: value << 4 | u64::from(digit), digits: digits + 1, line: line + 1 }
        }
        (State::Size { value, digits: 1.., .. }, b'\r') => State::SizeEnd { value },
        (State::Size { value, digits: 1.., line }, b';' | b' ' | b'\t') => State::Extension { value, line },
        (State::Extension { value, .. }, b'\r') => State::SizeEnd { value },
        (State::Extension { value, line }, b) if b != b'\n' && line < CHUNK_LINE_BYTES_MAX => {
            State::Extension { value, line: line + 1 }
        }
        (State::SizeEnd { value: 0 }, b'\n') => State::Trailer { bytes: 0, line: 0 },
        (State::SizeEnd { value }, b'\n') => State::Data(value),
        (State::DataCr, b'\r') => State::DataLf,
        (State::DataLf, b'\n') => State::Size { value: 0, digits: 0, line: 0 },
        (State::Trailer { bytes, line }, b'\r') => State::TrailerEnd { bytes: bytes + 1, line },
        (State::Trailer { bytes, line }, b) if b != b'\n' && bytes < TRAILER_BYTES_MAX => {
            State::Trailer { bytes: bytes + 1, line: line + 1 }
        }
        (State::TrailerEnd { line: 0, .. }, b'\n') => State::Done,
        (State::TrailerEnd { bytes, .. }, b'\n') => State::Trailer { bytes: bytes + 1, line: 0 },
        (State::Size { .. } | State::Extension { .. } | State::SizeEnd { .. }, _) => {
            return Err(bad("a chunk-size line is malformed"));
        }
        (State::DataCr | State::DataLf, _) => return Err(bad("a chunk is not followed by CRLF")),
        _ => return Err(bad("the trailers of a chunked body are malformed")),
    })
}

/// Finds the end of a head: the index behind its empty line. `from` is the start of a line, nothing before it is the end.
fn find_end(bytes: &[u8], from: usize) -> Result<Option<usize>, Bad> {
    let mut line = from;
    while let Some(at) = memchr(b'\n', &bytes[line..]) {
        let lf = line + at;
        if at == 0 || bytes[lf - 1] != b'\r' {
            return Err(bad("a line of the head ends without CR"));
        }
        if at == 1 {
            return Ok(Some(lf + 1));
        }
        line = lf + 1;
    }
    Ok(None)
}

fn last_line_start(bytes: &[u8]) -> usize {
    memrchr(b'\n', bytes).map_or(0, |at| at + 1)
}

/// Parses a whole head, its empty line included.
fn parse_head(bytes: &[u8]) -> Result<Head, Bad> {
    let mut head = Head::default();
    let mut fields = Fields::default();
    let mut rest = bytes;
    let mut first = true;
    while let Some(at) = memchr(b'\n', rest) {
        // Every line ends in CRLF: find_end saw to it.
        let line = &rest[..at.saturating_sub(1)];
        rest = &rest[at + 1..];
        if first {
            request_line(line, &mut head)?;
            first = false;
        } else if !line.is_empty() {
            field(line, &mut head, &mut fields)?;
        }
    }
    fields.apply(&mut head)?;
    Ok(head)
}

fn request_line(line: &[u8], head: &mut Head) -> Result<(), Bad> {
    let sp1 = memchr(b' ', line).ok_or(bad("the request line has no target"))?;
    let sp2 = memrchr(b' ', line).filter(|&at| at > sp1).ok_or(bad("the request line has no version"))?;
    let (method, target, version) = (&line[..sp1], &line[sp1 + 1..sp2], &line[sp2 + 1..]);
    if method.is_empty() || !method.iter().all(|&b| is_token(b)) {
        return Err(bad("the method is not a token"));
    }
    if target.is_empty() || !target.iter().all(|&b| b > b' ' && b != 0x7f) {
        return Err(bad("the request target is empty or has a space or control character"));
    }
    match version {
        b"HTTP/1.1" => {}
        b"HTTP/1.0" => head.http10 = true,
        v if v.starts_with(b"HTTP/") => return Err(Bad { status: 505, what: "the version is not HTTP/1.1 or 1.0" }),
        _ => return Err(bad("the request line does not end in an HTTP version")),
    }
    head.head_only = method == b"HEAD";
    Ok(())
}

/// What fields said that can only be judged when all are in.
#[derive(Default)]
struct Fields {
    hosts: u32,
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
}

impl Fields {
    fn apply(&self, head: &mut Head) -> Result<(), Bad> {
        if self.hosts > 1 || (self.hosts == 0 && !head.http10) {
            return Err(bad("a request of HTTP/1.1 needs exactly one Host field"));
        }
        head.framing = match (self.length, self.chunked) {
            (Some(_), true) => return Err(bad("both Content-Length and Transfer-Encoding are given")),
            (None, true) if head.http10 => return Err(bad("HTTP/1.0 has no Transfer-Encoding")),
            (None, true) => Framing::Chunked,
            (Some(n), false) => Framing::Length(n),
            (None, false) => Framing::None,
        };
        head.close = self.close || (head.http10 && !self.keep_alive);
        Ok(())
    }
}

fn field(line: &[u8], head: &mut Head, fields: &mut Fields) -> Result<(), Bad> {
    let colon = memchr(b':', line).ok_or(bad("a header field has no colon"))?;
    let name = &line[..colon];
    if name.is_empty() || !name.iter().all(|&b| is_token(b)) {
        return Err(bad("a header field's name is not a token"));
    }
    let value = line[colon + 1..].trim_ascii();
    if value.iter().any(|&b| (b < b' ' && b != b'\t') || b == 0x7f) {
        return Err(bad("a header field's value has a control character"));
    }
    let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
    match name.len() {
        4 if is(b"host") => fields.hosts += 1,
        6 if is(b"expect") => {
            if !value.eq_ignore_ascii_case(b"100-continue") {
                return Err(Bad { status: 417, what: "the only expectation known is 100-continue" });
            }
            head.expect_continue = true;
        }
        10 if is(b"connection") => connection_options(value, fields),
        14 if is(b"content-length") => {
            let length = decimal(value).ok_or(bad("Content-Length is not a number"))?;
            if fields.length.replace(length).is_some() {
                return Err(bad("Content-Length is given twice"));
            }
        }
        15 if is(b"x-ringload-xxh3") => {
            head.digest = Some(digest(value).ok_or(bad("X-Ringload-Xxh3 is not 16 hexadecimal digits"))?);
        }
        16 if is(b"x-ringload-bytes") => {
            head.bytes = Some(decimal(value).ok_or(bad("X-Ringload-Bytes is not a number"))?);
        }
        17 if is(b"x-ringload-record") => {
            head.record = Some(decimal(value).ok_or(bad("X-Ringload-Record is not a number"))?);
        }
        17 if is(b"transfer-encoding") => {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Bad { status: 501, what: "the only transfer encoding known is chunked" });
            }
            if std::mem::replace(&mut fields.chunked, true) {
                return Err(bad("Transfer-Encoding is given twice"));
            }
        }
        _ => {}
    }
    Ok(())
}

fn connection_options(value: &[u8], fields: &mut Fields) {
    for option in value.split(|&b| b == b',') {
        let option = option.trim_ascii();
        fields.close |= option.eq_ignore_ascii_case(b"close");
        fields.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
    }
}

/// At most 18 digits, so that no sum of lengths overflows.
fn decimal(text: &[u8]) -> Option<u64> {
    let fits = (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    fits.then(|| text.iter().fold(0, |n, &b| n * 10 + u64::from(b - b'0')))
}

fn digest(text: &[u8]) -> Option<u64> {
    let fits = text.len() == 16 && text.iter().all(u8::is_ascii_hexdigit);
    fits.then(|| text.iter().fold(0, |n, &b| n << 4 | u64::from((b as char).to_digit(16).unwrap_or(0))))
}

/// `tchar` of RFC 9110 section 5.6.2.
const fn is_token(byte: u8) -> bool {
    TOKEN[byte as usize]
}

const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut b = 0;
    while b < 256 {
        let byte = b as u8;
        table[b] = byte.is_ascii_alphanumeric()
            || matches!(
                byte,
                b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
            );
        b += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a stream of requests is, with the pieces of each body joined.
    #[derive(Debug, PartialEq, Eq)]
    enum Seen {
        Head(Head),
        Body(Vec<u8>),
        Whole,
        Bad(Bad),
    }

    fn run(pieces: &[&[u8]]) -> Vec<Seen> {
        let mut parser = Parser::default();
        let mut seen = Vec::new();
        for piece in pieces {
            let mut at = 0;
            loop {
                let (used, step) = parser.step(&piece[at..]);
                at += used;
                match step {
                    Step::More => break,
                    Step::Head(head) => seen.push(Seen::Head(head)),
                    Step::Whole => seen.push(Seen::Whole),
                    Step::Body(n) => match seen.last_mut() {
                        Some(Seen::Body(body)) => body.extend_from_slice(&piece[at - n..at]),
                        _ => seen.push(Seen::Body(piece[at - n..at].to_vec())),
                    },
                    Step::Bad(why) => {
                        seen.push(Seen::Bad(why));
                        return seen;
                    }
                }
            }
            assert_eq!(at, piece.len(), "More means that all is used");
        }
        seen
    }

    fn refusal(bytes: &[u8]) -> u16 {
        match run(&[bytes]).last() {
            Some(Seen::Bad(why)) => why.status,
            _ => 0,
        }
    }

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

    #[test]
    fn a_get_is_a_head_and_nothing_else() {
        assert_eq!(run(&[GET]), [Seen::Head(Head::default()), Seen::Whole]);
        assert_eq!(run(&[&[GET, GET].concat()]).len(), 4);
    }

    #[test]
    fn fields_that_matter_are_read_whatever_their_case() {
        let seen = run(&[b"POST /v1 HTTP/1.1\r\nhOST: a\r\nCONTENT-LENGTH:3\r\nX-Ringload-Record: 7\r\n\
            x-ringload-xxh3: 00000000000000ff\r\nX-Ringload-Bytes: 3\r\nexpect: 100-Continue\r\nConnection: foo, Close\r\n\r\nabc"]);
        let head = Head {
            close: true,
            expect_continue: true,
            framing: Framing::Length(3),
            record: Some(7),
            digest: Some(255),
            bytes: Some(3),
            ..Head::default()
        };
        assert_eq!(seen, [Seen::Head(head), Seen::Body(b"abc".to_vec()), Seen::Whole]);
    }

    #[test]
    fn http_1_0_closes_unless_kept_alive() {
        let close = |bytes: &[u8]| matches!(run(&[bytes])[0], Seen::Head(h) if h.close && h.http10);
        assert!(close(b"GET / HTTP/1.0\r\n\r\n"));
        assert!(!close(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
    }

    #[test]
    fn what_is_no_request_is_refused_with_the_right_status() {
        let with = |field: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n").into_bytes();
        for (status, bytes) in [
            (400, b"GET /\r\n\r\n".to_vec()),
            (400, b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
            (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n".to_vec()),
            (400, b"GET / HTTP/1.1\nHost: a\n\n".to_vec()),
            (400, b"GET / HTTP/1.1\r\n\r\n".to_vec()),
            (505, b"GET / HTTP/2.0\r\nHost: a\r\n\r\n".to_vec()),
            (400, with("Host: b")),
            (400, with("no colon")),
            (400, with("Name : x")),
            (400, with(" folded")),
            (400, with("A: b\0c")),
            (400, with("A: b\rc")),
            (400, with("Content-Length: -1")),
            (400, with("Content-Length: +1")),
            (400, with("Content-Length: 1\r\nContent-Length: 1")),
            (400, with("Content-Length: 1\r\nTransfer-Encoding: chunked")),
            (501, with("Transfer-Encoding: gzip, chunked")),
            (417, with("Expect: 200-ok")),
            (400, with("X-Ringload-Xxh3: 12")),
            (431, with(&format!("A: {}", "x".repeat(HEAD_BYTES_MAX)))),
        ] {
            assert_eq!(refusal(&bytes), status, "{}", String::from_utf8_lossy(&bytes[..bytes.len().min(80)]));
        }
    }

    #[test]
    fn a_head_that_never_ends_is_refused_at_64_kib_however_it_comes() {
        let long = [b"GET / HTTP/1.1\r\nA: ".to_vec(), vec![b'x'; 70_000]].concat();
        assert_eq!(refusal(&long), 431);
        let pieces: Vec<&[u8]> = long.chunks(1000).collect();
        assert_eq!(run(&pieces).last(), Some(&Seen::Bad(TOO_LARGE)));
    }

    #[test]
    fn chunked_bodies_with_extensions_and_trailers() {
        let post = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let run = |body: &[u8]| run(&[&[post.as_slice(), body].concat()]);
        let body = |seen: &[Seen]| match &seen[1] {
            Seen::Body(b) => b.clone(),
            _ => Vec::new(),
        };
        let seen = run(b"3\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n0\r\nT: v\r\n\r\n");
        assert_eq!((body(&seen), seen.len()), (b"abc0123456789".to_vec(), 3));
        for wrong in [&b"\r\n"[..], b"x\r\n", b"3\nabc", b"3\r\nabcd\r\n", b"0000000000000001\r\n", b"0\r\nT\n"] {
            assert!(matches!(run(wrong).last(), Some(Seen::Bad(_))), "{wrong:?}");
        }
        let long = [b"1;".to_vec(), vec![b'e'; 5000]].concat();
        assert!(matches!(run(&long).last(), Some(Seen::Bad(_))));
        let trailer = [b"0\r\nT: ".to_vec(), vec![b'e'; 70_000]].concat();
        assert!(matches!(run(&trailer).last(), Some(Seen::Bad(_))));
    }

    #[test]
    fn skipped_bytes_count_as_body() {
        let mut parser = Parser::default();
        let (used, _) = parser.step(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n");
        assert!(used > 0 && parser.length_left() == 10);
        parser.skip(4);
        parser.skip(6);
        assert_eq!(parser.step(GET), (0, Step::Whole));
        assert!(parser.at_start());
    }

    fn requests() -> Vec<u8> {
        [
            &b"\r\nPOST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello world"[..],
            b"POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;e\r\n world\r\n0\r\nT: v\r\n\r\n",
            GET,
            b"HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        ]
        .concat()
    }

    #[test]
    fn requests_split_at_every_byte_give_the_same_steps() {
        let all = requests();
        let whole = run(&[&all]);
        assert_eq!(whole.len(), 11);
        for at in 0..=all.len() {
            assert_eq!(run(&[&all[..at], &all[at..]]), whole, "split at {at}");
        }
        let single: Vec<&[u8]> = all.chunks(1).collect();
        assert_eq!(run(&single), whole);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_never_panic_and_mean_the_same(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            tail in any::<bool>(),
            size in 1usize..40,
            flip in any::<proptest::sample::Index>(),
        ) {
            if tail {
                let mut good = requests();
                let at = flip.index(good.len());
                good[at] ^= *bytes.first().unwrap_or(&1);
                bytes = good;
            }
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            let apart = run(&pieces);
            let whole = run(&[&bytes]);
            // A refusal may come earlier when more is seen at once, but never be another one.
            prop_assert_eq!(apart, whole);
        }
    }
}
