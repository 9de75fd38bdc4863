//! The response: where its head ends, what it says about the body, and where the body ends.
//!
//! [`parse_head`] reads a head that the caller has gathered; [`Body`] follows the body's framing over any split of its
//! bytes and hands out the payload. Both follow RFC 9112 §6 to the letter where the letter decides what is body and what is
//! the next response, and are lenient where leniency changes nothing that is counted. Nothing here keeps a byte.

use std::mem::MaybeUninit;

use super::request::is_token_byte;
use crate::data::{limits, outcome::ErrorClass};

/// Why a response cannot be read on; the connection is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct WireError {
    /// The class that the request fails with.
    pub class: ErrorClass,
    /// What was wrong, for the error sample.
    pub reason: &'static str,
}

impl WireError {
    const fn new(class: ErrorClass, reason: &'static str) -> Self {
        Self { class, reason }
    }

    const fn framing(reason: &'static str) -> Self {
        Self::new(ErrorClass::Framing, reason)
    }
}

/// How far a head has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadStep {
    /// Nothing wrong so far; call again with these bytes and more.
    Partial,
    /// A 1xx response of so many bytes: the head behind it is the next to parse. The caller bounds their number
    /// ([`limits::INTERIM_RESPONSES_MAX`]).
    Interim {
        /// Bytes of it.
        consumed: usize,
    },
    /// The head of the final response.
    Final(Head),
}

/// What the head of a final response says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the head, its blank line included; the body begins there.
    pub consumed: usize,
    /// Status code, 200 to 999.
    pub status: u16,
    /// How the body ends.
    pub framing: Framing,
    /// True when the connection may carry another request after this response.
    pub keep_alive: bool,
    /// What kind of body was announced.
    pub content: Content,
    /// True when the payload is compressed or otherwise encoded, so that it cannot be looked into.
    pub encoded: bool,
    /// `timeout` of a `Keep-Alive` field, seconds: how long the server keeps an idle connection.
    pub keep_alive_timeout_s: Option<u32>,
}

/// How a body ends (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none: HEAD, 204, 304.
    None,
    /// After so many bytes.
    Length(u64),
    /// With the last chunk and its trailers.
    Chunked,
    /// With the connection.
    UntilClose,
}

/// The media type of a body, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// `text/event-stream`.
    EventStream,
    /// `application/json` or `application/*+json`.
    Json,
    /// Anything else, or nothing said.
    Other,
}

/// Empty lines before a status line that are forgiven: what some servers send after a body (RFC 9112 §2.2).
const EMPTY_LINES_MAX: usize = 2;

/// Reads a response head. `bytes` begin with its first byte and may go on past its end.
///
/// What can never become an HTTP/1.x head fails at once, from its first wrong byte on; it is never waited for a blank line
/// that will not come. Accepted beyond the grammar: no reason phrase, bare LF as line end, blanks before a colon, folded
/// lines, several blanks in the status line, two empty lines in front. The verdict depends on the bytes alone, not on how
/// many calls it took to gather them.
pub fn parse_head(bytes: &[u8], method_is_head: bool) -> Result<HeadStep, WireError> {
    let bytes = &bytes[..bytes.len().min(limits::RESPONSE_HEAD_BYTES_MAX)];
    let skipped = match skip_empty_lines(bytes)? {
        Some(skipped) => skipped,
        None => return Ok(HeadStep::Partial),
    };
    let mut fields = [const { MaybeUninit::uninit() }; limits::RESPONSE_FIELDS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let mut config = httparse::ParserConfig::default();
    config
        .allow_spaces_after_header_name_in_responses(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .allow_multiple_spaces_in_response_status_delimiters(true);
    let parsed = config.parse_response_with_uninit_headers(&mut response, &bytes[skipped..], &mut fields);
    let consumed = match parsed {
        Ok(httparse::Status::Complete(length)) => skipped + length,
        Ok(httparse::Status::Partial) if bytes.len() < limits::RESPONSE_HEAD_BYTES_MAX => return Ok(HeadStep::Partial),
        Ok(httparse::Status::Partial) => {
            return Err(WireError::new(ErrorClass::HeadersTooLarge, "response head over 64 KiB"));
        }
        Err(error) => return Err(head_error(error)),
    };
    let status = response.code.unwrap_or_default();
    match status {
        101 => Err(WireError::new(ErrorClass::UnexpectedUpgrade, "101, which nobody asked for")),
        100..200 => Ok(HeadStep::Interim { consumed }),
        200.. => {
            let version = response.version.unwrap_or_default();
            read_fields(response.headers, status, version, method_is_head, consumed).map(HeadStep::Final)
        }
        _ => Err(WireError::framing("status code under 100")),
    }
}

/// Bytes of the empty lines in front; none while it is not clear whether another follows.
fn skip_empty_lines(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    let mut at = 0;
    for _ in 0..=EMPTY_LINES_MAX {
        at += match bytes[at..] {
            [] | [b'\r'] => return Ok(None),
            [b'\n', ..] => 1,
            [b'\r', b'\n', ..] => 2,
            _ => return Ok(Some(at)),
        };
    }
    Err(WireError::framing("empty lines in place of a status line"))
}

fn head_error(error: httparse::Error) -> WireError {
    match error {
        httparse::Error::Version => WireError::framing("no HTTP/1.x status line"),
        httparse::Error::Status => WireError::framing("bad status line"),
        httparse::Error::HeaderName => WireError::framing("bad field name"),
        httparse::Error::HeaderValue => WireError::framing("bad byte in a field value"),
        httparse::Error::NewLine => WireError::framing("bad line end in the head"),
        httparse::Error::TooManyHeaders => {
            WireError::new(ErrorClass::HeadersTooLarge, "more than 128 fields in a response head")
        }
        httparse::Error::Token => WireError::framing("bad byte in the head"),
    }
}

/// What the fields of a head said, before the rules that weigh them against each other.
#[derive(Default)]
struct Fields {
    length: Option<Result<u64, WireError>>,
    transfer: Transfer,
    /// A coding other than `chunked` and `identity` was named.
    encoded: bool,
    close: bool,
    keep_alive: bool,
    keep_alive_timeout_s: Option<u32>,
    content: Option<Content>,
}

/// What `Transfer-Encoding` said, over all of its lines.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Transfer {
    /// No coding at all (`identity`, withdrawn since RFC 7230, is none).
    #[default]
    Absent,
    /// The last coding is `chunked`.
    Chunked,
    /// `chunked` twice.
    ChunkedTwice,
    /// The last coding is another one.
    Other,
}

fn read_fields(
    headers: &[httparse::Header<'_>],
    status: u16,
    version: u8,
    method_is_head: bool,
    consumed: usize,
) -> Result<Head, WireError> {
    let mut fields = Fields::default();
    for header in headers {
        fields.read(header.name, header.value);
    }
    let framing = match fields.transfer {
        _ if method_is_head || matches!(status, 204 | 304) => Framing::None,
        Transfer::ChunkedTwice => return Err(WireError::framing("chunked twice")),
        Transfer::Chunked => Framing::Chunked,
        Transfer::Other => Framing::UntilClose,
        Transfer::Absent => match fields.length {
            Some(length) => Framing::Length(length?),
            None => Framing::UntilClose,
        },
    };
    // Both a length and a coding, or a coding in HTTP/1.0: read as chunked, and never trusted again (RFC 9112 §6.1, §6.3).
    let doubtful = fields.transfer != Transfer::Absent && (fields.length.is_some() || version == 0);
    let wanted = !fields.close && (version > 0 || fields.keep_alive);
    Ok(Head {
        consumed,
        status,
        framing,
        keep_alive: wanted && !doubtful && framing != Framing::UntilClose,
        content: fields.content.unwrap_or(Content::Other),
        encoded: fields.encoded,
        keep_alive_timeout_s: fields.keep_alive_timeout_s,
    })
}

impl Fields {
    fn read(&mut self, name: &str, value: &[u8]) {
        // The length tells most names apart before a byte is compared.
        match name.len() {
            10 if name.eq_ignore_ascii_case("connection") => {
                for option in list(value) {
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            10 if name.eq_ignore_ascii_case("keep-alive") => {
                let timeout = list(value).filter_map(keep_alive_timeout).next();
                self.keep_alive_timeout_s = timeout.or(self.keep_alive_timeout_s);
            }
            12 if name.eq_ignore_ascii_case("content-type") => self.content = Some(content(value)),
            14 if name.eq_ignore_ascii_case("content-length") => self.read_length(value),
            16 if name.eq_ignore_ascii_case("content-encoding") => {
                self.encoded |= list(value).any(|coding| !coding.eq_ignore_ascii_case(b"identity"));
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => self.read_transfer(value),
            _ => {}
        }
    }

    /// Equal values are one value, over lines and in a list (RFC 9110 §8.6); anything else is an error.
    fn read_length(&mut self, value: &[u8]) {
        for element in value.split(|&b| b == b',') {
            let length = match number(trim(element)) {
                Some(length) => match self.length {
                    Some(Ok(earlier)) if earlier != length => Err(WireError::framing("conflicting lengths")),
                    Some(Err(error)) => Err(error),
                    _ => Ok(length),
                },
                None => Err(WireError::framing("bad length")),
            };
            self.length = Some(length);
        }
    }

    fn read_transfer(&mut self, value: &[u8]) {
        for coding in list(value) {
            self.transfer = match self.transfer {
                Transfer::ChunkedTwice => Transfer::ChunkedTwice,
                before if coding.eq_ignore_ascii_case(b"identity") => before,
                Transfer::Chunked if coding.eq_ignore_ascii_case(b"chunked") => Transfer::ChunkedTwice,
                _ if coding.eq_ignore_ascii_case(b"chunked") => Transfer::Chunked,
                _ => {
                    self.encoded = true;
                    Transfer::Other
                }
            };
        }
    }
}

/// The elements of a comma-separated list, trimmed; empty ones are skipped (RFC 9110 §5.6.1).
fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(trim).filter(|element| !element.is_empty())
}

/// Without blanks and the line ends of folded lines at both ends.
fn trim(bytes: &[u8]) -> &[u8] {
    bytes.trim_ascii()
}

/// Digits only: no sign, no blank, no overflow.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |n, &digit| match digit {
        b'0'..=b'9' => n.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

fn keep_alive_timeout(parameter: &[u8]) -> Option<u32> {
    let at = parameter.iter().position(|&b| b == b'=')?;
    let (name, value) = parameter.split_at(at);
    if !trim(name).eq_ignore_ascii_case(b"timeout") {
        return None;
    }
    number(trim(&value[1..])).map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX))
}

fn content(value: &[u8]) -> Content {
    let media = trim(value.split(|&b| b == b';').next().unwrap_or_default());
    let ends_with = |suffix: &[u8]| {
        media.len().checked_sub(suffix.len()).is_some_and(|at| media[at..].eq_ignore_ascii_case(suffix))
    };
    if media.eq_ignore_ascii_case(b"text/event-stream") {
        Content::EventStream
    } else if ends_with(b"/json") || ends_with(b"+json") {
        Content::Json
    } else {
        Content::Other
    }
}

/// What one [`Body::feed`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fed {
    /// Bytes that belong to the body, framing included; the rest is surplus.
    pub consumed: usize,
    /// True when the body is complete. A body that ends with the connection never is, before [`Body::at_close`].
    pub done: bool,
}

/// A body on its way: follows the framing, hands out the payload, keeps no bytes. 24 bytes, in every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    /// Payload bytes left of the body or of the chunk; the size so far while its digits are read.
    remaining: u64,
    /// Bytes of the chunk-size line so far.
    line_bytes: u32,
    /// Bytes of the trailer section so far.
    trailer_bytes: u32,
    state: State,
}

const _: () = assert!(size_of::<Body>() <= 24);

/// Where in the framing the next byte stands.
///
/// ```text
/// SizeFirst Size SizeBlank Extension [Quoted [QuotedPair]] SizeLf
///     '1'    'a'    ' '      ;x=        "..     \"         LF    Data DataCr DataLf -> SizeFirst, or after size 0:
/// TrailerFirst TrailerName TrailerValue TrailerLf -> TrailerFirst;  TrailerFirst EndLf -> Done
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Done,
    Length,
    UntilClose,
    SizeFirst,
    Size,
    SizeBlank,
    Extension,
    Quoted,
    QuotedPair,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerFirst,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
}

impl Body {
    /// The body behind a head with this framing.
    pub const fn new(framing: Framing) -> Self {
        let (remaining, state) = match framing {
            Framing::None | Framing::Length(0) => (0, State::Done),
            Framing::Length(length) => (length, State::Length),
            Framing::Chunked => (0, State::SizeFirst),
            Framing::UntilClose => (0, State::UntilClose),
        };
        Self { remaining, line_bytes: 0, trailer_bytes: 0, state }
    }

    /// True when the body is complete and nothing more of it will come.
    pub const fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Takes the next bytes of the connection, calls `content` with each stretch of payload in them, and consumes nothing
    /// past the end of the body. Costs nothing a byte for payload that `content` does not look at.
    #[inline]
    pub fn feed(&mut self, bytes: &[u8], mut content: impl FnMut(&[u8])) -> Result<Fed, WireError> {
        let mut at = 0;
        while at < bytes.len() && self.state != State::Done {
            match self.state {
                State::Length | State::Data => {
                    let rest = &bytes[at..];
                    let payload = usize::try_from(self.remaining).map_or(rest, |n| &rest[..n.min(rest.len())]);
                    content(payload);
                    at += payload.len();
                    self.remaining -= payload.len() as u64;
                    if self.remaining == 0 {
                        self.state = if self.state == State::Length { State::Done } else { State::DataCr };
                    }
                }
                State::UntilClose => {
                    content(&bytes[at..]);
                    at = bytes.len();
                }
                _ => {
                    self.step(bytes[at])?;
                    at += 1;
                }
            }
        }
        Ok(Fed { consumed: at, done: self.is_done() })
    }

    /// The connection has ended: nothing more will come. An error of class `truncated` when the body is not complete.
    pub const fn at_close(&self) -> Result<(), WireError> {
        match self.state {
            State::Done | State::UntilClose => Ok(()),
            State::Length => Err(WireError::new(ErrorClass::Truncated, "closed before the length was reached")),
            _ => Err(WireError::new(ErrorClass::Truncated, "closed before the last chunk")),
        }
    }

    /// One byte of chunk framing (RFC 9112 §7.1).
    fn step(&mut self, byte: u8) -> Result<(), WireError> {
        match self.state {
            State::DataCr if byte == b'\r' => self.state = State::DataLf,
            State::DataLf if byte == b'\n' => self.begin_chunk(),
            State::DataCr | State::DataLf => return Err(WireError::framing("no line end after a chunk")),
            State::TrailerFirst | State::TrailerName | State::TrailerValue | State::TrailerLf | State::EndLf => {
                self.step_trailer(byte)?;
            }
            _ => self.step_size_line(byte)?,
        }
        Ok(())
    }

    const fn begin_chunk(&mut self) {
        (self.remaining, self.line_bytes, self.state) = (0, 0, State::SizeFirst);
    }

    fn step_size_line(&mut self, byte: u8) -> Result<(), WireError> {
        self.line_bytes += 1;
        if self.line_bytes > limits::CHUNK_LINE_BYTES_MAX {
            return Err(WireError::framing("chunk-size line over 4 KiB"));
        }
        self.state = match (self.state, byte) {
            (State::SizeFirst | State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                if self.remaining >> 60 != 0 {
                    return Err(WireError::framing("chunk size does not fit"));
                }
                let digit = match byte {
                    b'0'..=b'9' => byte - b'0',
                    _ => (byte | 0x20) - b'a' + 10,
                };
                self.remaining = self.remaining << 4 | u64::from(digit);
                State::Size
            }
            (State::SizeFirst, _) => return Err(WireError::framing("no chunk size")),
            (State::Size | State::SizeBlank | State::Extension, b'\r') => State::SizeLf,
            (State::Size | State::SizeBlank, b';') => State::Extension,
            // Blanks behind the size are bad whitespace that must be read (RFC 9112 §7.1.1); some servers pad with them.
            (State::Size | State::SizeBlank, b' ' | b'\t') => State::SizeBlank,
            (State::Size | State::SizeBlank, _) => return Err(WireError::framing("bad chunk size")),
            (State::SizeLf, b'\n') if self.remaining == 0 => State::TrailerFirst,
            (State::SizeLf, b'\n') => State::Data,
            (State::SizeLf, _) => return Err(WireError::framing("bad line end after a chunk size")),
            (State::QuotedPair, b'\t' | b' '..=b'~' | 0x80..) => State::Quoted,
            (State::Quoted, b'\\') => State::QuotedPair,
            (State::Quoted, b'"') => State::Extension,
            (State::Quoted, b'\t' | b' '..=b'~' | 0x80..) => State::Quoted,
            (State::Extension, b'"') => State::Quoted,
            (State::Extension, b'\t' | b' '..=b'~' | 0x80..) => State::Extension,
            _ => return Err(WireError::framing("bad byte in a chunk extension")),
        };
        Ok(())
    }

    /// Trailer fields are read and dropped. Their names are checked, so that a server that forgot the last line end is
    /// found at its next status line, and not waited for.
    fn step_trailer(&mut self, byte: u8) -> Result<(), WireError> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > limits::TRAILER_BYTES_MAX {
            return Err(WireError::framing("trailers over 64 KiB"));
        }
        self.state = match (self.state, byte) {
            (State::TrailerFirst, b'\r') => State::EndLf,
            (State::EndLf, b'\n') => State::Done,
            (State::TrailerFirst | State::TrailerName, byte) if is_token_byte(byte) => State::TrailerName,
            (State::TrailerName, b':') => State::TrailerValue,
            (State::TrailerValue, b'\r') => State::TrailerLf,
            (State::TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => State::TrailerValue,
            (State::TrailerLf, b'\n') => State::TrailerFirst,
            (State::TrailerFirst | State::TrailerName, _) => return Err(WireError::framing("bad trailer field")),
            _ => return Err(WireError::framing("bad line end in the trailers")),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(text: &str) -> Head {
        match parse_head(text.as_bytes(), false) {
            Ok(HeadStep::Final(head)) => head,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn class(text: &[u8]) -> ErrorClass {
        match parse_head(text, false) {
            Err(error) => error.class,
            other => panic!("{:?}: {other:?}", String::from_utf8_lossy(text)),
        }
    }

    fn framing_of(fields: &str) -> Result<(Framing, bool), ErrorClass> {
        let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        match parse_head(text.as_bytes(), false) {
            Ok(HeadStep::Final(head)) => Ok((head.framing, head.keep_alive)),
            Err(error) => Err(error.class),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_plain_head_says_all() {
        let text = "HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: 11\r\nKeep-Alive: timeout=5, max=100\r\n\r\n{}";
        assert_eq!(
            head(text),
            Head {
                consumed: text.len() - 2,
                status: 200,
                framing: Framing::Length(11),
                keep_alive: true,
                content: Content::Json,
                encoded: false,
                keep_alive_timeout_s: Some(5),
            }
        );
    }

    #[test]
    fn lenient_heads_are_read() {
        for text in [
            "HTTP/1.1 200\r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\nContent-Length: 2\n\n",
            "\r\nHTTP/1.1 200 OK\r\nCONTENT-LENGTH:2\r\n\r\n",
            "\n\r\nHTTP/1.1  200  OK\r\nContent-Length : 2 \t\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: caf\u{e9}\r\nContent-Length:\r\n 2\r\n\r\n",
            "HTTP/1.1 200 Na\u{ef}ve\r\nX:\r\nContent-Length: 2\r\n\r\n",
        ] {
            let head = head(text);
            assert_eq!((head.status, head.framing, head.keep_alive), (200, Framing::Length(2), true), "{text:?}");
            assert_eq!(head.consumed, text.len(), "{text:?}");
        }
    }

    #[test]
    fn what_is_not_http_fails_at_its_first_wrong_byte() {
        for (text, from) in [
            (&b"SSH-2.0-x\r\n"[..], 1),
            (b"\x15\x03\x01\x00\x02\x02\x28", 1),
            (b"<html>", 1),
            (b"HTTP/2.0 200 OK", 6),
            (b"HTTP/1.2 200 OK", 8),
            (b"HTTX", 4),
            (b"HTTP/1.1 2x0 OK", 11),
            (b"HTTP/1.1 2000 OK", 13),
            (b"HTTP/1.1 200 OK\r\nnocolon\r\n", 25),
            (b"HTTP/1.1 200 OK\r\nX: a\0b", 22),
            (b"HTTP/1.1 200 OK\rX", 17),
            (b"\r\n\r\n\r\nHTTP", 6),
        ] {
            for end in 0..from {
                assert_eq!(parse_head(&text[..end], false), Ok(HeadStep::Partial), "{end} {text:?}");
            }
            for end in from..=text.len() {
                assert_eq!(class(&text[..end]), ErrorClass::Framing, "{end} {text:?}");
            }
        }
        assert_eq!(class(b"HTTP/1.1 099 Low\r\n\r\n"), ErrorClass::Framing);
    }

    #[test]
    fn interim_responses_are_steps_and_an_upgrade_is_refused() {
        for code in ["100 Continue", "103 Early Hints", "199"] {
            let text = format!("HTTP/1.1 {code}\r\nLink: </a>\r\n\r\n");
            let more = format!("{text}HTTP/1.1 200 OK\r\n\r\n");
            assert_eq!(parse_head(more.as_bytes(), false), Ok(HeadStep::Interim { consumed: text.len() }));
        }
        assert_eq!(class(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"), ErrorClass::UnexpectedUpgrade);
    }

    #[test]
    fn no_body_behind_head_204_and_304_whatever_the_fields_say() {
        for status in ["204 No Content", "304 Not Modified"] {
            for fields in ["Content-Length: 5", "Transfer-Encoding: chunked", "Content-Length: x", "X: y"] {
                let head = head(&format!("HTTP/1.1 {status}\r\n{fields}\r\n\r\n"));
                assert_eq!((head.framing, head.keep_alive), (Framing::None, true), "{status} {fields}");
            }
        }
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
        assert!(
            matches!(parse_head(text, true), Ok(HeadStep::Final(head)) if head.framing == Framing::None && head.keep_alive)
        );
    }

    #[test]
    fn framing_follows_the_rfc() {
        use Framing::*;
        const BAD: ErrorClass = ErrorClass::Framing;
        for (fields, expect) in [
            ("Content-Length: 5\r\n", Ok((Length(5), true))),
            ("Content-Length: 5\r\nContent-Length: 5\r\n", Ok((Length(5), true))),
            ("Content-Length: 5, 5\r\nContent-Length: 05\r\n", Ok((Length(5), true))),
            ("Content-Length: 5\r\nContent-Length: 6\r\n", Err(BAD)),
            ("Content-Length: 5, 6, 5\r\n", Err(BAD)),
            ("Content-Length: 6\r\nContent-Length: 5\r\nContent-Length: 6\r\n", Err(BAD)),
            ("Content-Length: x\r\nContent-Length: 5\r\n", Err(BAD)),
            ("Content-Length: -1\r\n", Err(BAD)),
            ("Content-Length: +1\r\n", Err(BAD)),
            ("Content-Length: 1 1\r\n", Err(BAD)),
            ("Content-Length: \r\n", Err(BAD)),
            ("Content-Length: 0x5\r\n", Err(BAD)),
            ("Content-Length: 18446744073709551615\r\n", Ok((Length(u64::MAX), true))),
            ("Content-Length: 18446744073709551616\r\n", Err(BAD)),
            ("Transfer-Encoding: chunked\r\n", Ok((Chunked, true))),
            ("Transfer-Encoding: Chunked\r\nContent-Length: 3\r\n", Ok((Chunked, false))),
            ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", Ok((Chunked, false))),
            ("Content-Length: x\r\nTransfer-Encoding: chunked\r\n", Ok((Chunked, false))),
            ("Transfer-Encoding: gzip, chunked\r\n", Ok((Chunked, true))),
            ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", Ok((Chunked, true))),
            ("Transfer-Encoding: chunked, chunked\r\n", Err(BAD)),
            ("Transfer-Encoding: chunked, gzip\r\n", Ok((UntilClose, false))),
            ("Transfer-Encoding: gzip\r\nContent-Length: 5\r\n", Ok((UntilClose, false))),
            ("Transfer-Encoding: xchunked\r\n", Ok((UntilClose, false))),
            ("Transfer-Encoding: identity\r\nContent-Length: 5\r\n", Ok((Length(5), true))),
            ("Connection: close\r\nContent-Length: 5\r\n", Ok((Length(5), false))),
            ("Connection: x, Close\r\nContent-Length: 5\r\n", Ok((Length(5), false))),
            ("X: y\r\n", Ok((UntilClose, false))),
            ("", Ok((UntilClose, false))),
        ] {
            assert_eq!(framing_of(fields), expect, "{fields:?}");
        }
    }

    #[test]
    fn http_1_0_closes_unless_it_says_otherwise() {
        assert!(!head("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n").keep_alive);
        assert!(head("HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: Keep-Alive\r\n\r\n").keep_alive);
        let doubtful = head("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!((doubtful.framing, doubtful.keep_alive), (Framing::Chunked, false));
    }

    #[test]
    fn content_and_encoding_are_recognised() {
        for (value, expect) in [
            ("text/event-stream", Content::EventStream),
            ("Text/Event-Stream ; charset=utf-8", Content::EventStream),
            ("application/json;charset=utf-8", Content::Json),
            ("application/problem+JSON", Content::Json),
            ("text/event-streams", Content::Other),
            ("", Content::Other),
        ] {
            assert_eq!(head(&format!("HTTP/1.1 200 OK\r\nContent-Type: {value}\r\n\r\n")).content, expect, "{value}");
        }
        for (field, encoded) in [
            ("Content-Encoding: gzip", true),
            ("Content-Encoding: identity", false),
            ("Content-Encoding: identity, br", true),
            ("Content-Encoding: ", false),
            ("Transfer-Encoding: gzip, chunked", true),
            ("Transfer-Encoding: chunked", false),
        ] {
            assert_eq!(head(&format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n")).encoded, encoded, "{field}");
        }
        for (value, expect) in
            [("timeout=5", Some(5)), ("max=3, Timeout = 7", Some(7)), ("timeout=x", None), ("timeout", None)]
        {
            let head = head(&format!("HTTP/1.1 200 OK\r\nKeep-Alive: {value}\r\n\r\n"));
            assert_eq!(head.keep_alive_timeout_s, expect, "{value}");
        }
    }

    #[test]
    fn heads_over_the_limits_are_their_own_class() {
        let most = limits::RESPONSE_HEAD_BYTES_MAX;
        let with = |pad: usize| format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(pad));
        let fits = with(most - with(0).len());
        assert_eq!(fits.len(), most);
        assert_eq!(head(&fits).consumed, most);
        let over = with(most - with(0).len() + 1);
        for end in [most, most + 1] {
            assert_eq!(class(&over.as_bytes()[..end]), ErrorClass::HeadersTooLarge);
        }
        assert_eq!(parse_head(&over.as_bytes()[..most - 1], false), Ok(HeadStep::Partial));
        let fields = |n: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(n));
        assert_eq!(head(&fields(limits::RESPONSE_FIELDS_MAX)).status, 200);
        assert_eq!(class(fields(limits::RESPONSE_FIELDS_MAX + 1).as_bytes()), ErrorClass::HeadersTooLarge);
    }

    /// The payload, the bytes consumed and the verdict of a body fed in pieces that end at `cuts`.
    fn read(framing: Framing, bytes: &[u8], cuts: &[usize]) -> (Vec<u8>, usize, Result<bool, WireError>) {
        let (mut body, mut payload, mut at) = (Body::new(framing), Vec::new(), 0);
        for &cut in cuts.iter().chain([&bytes.len()]) {
            let piece = &bytes[at.min(cut)..cut];
            match body.feed(piece, |part| payload.extend_from_slice(part)) {
                Ok(fed) => {
                    at += fed.consumed;
                    assert_eq!(fed.done, body.is_done());
                    if fed.done {
                        return (payload, at, Ok(true));
                    }
                    assert_eq!(fed.consumed, piece.len());
                }
                Err(error) => return (payload, 0, Err(error)),
            }
        }
        (payload, at, Ok(false))
    }

    fn chunked(text: &[u8]) -> (Vec<u8>, usize, Result<bool, WireError>) {
        read(Framing::Chunked, text, &[])
    }

    #[test]
    fn chunked_bodies_end_where_they_end() {
        for text in [
            "5\r\nhello\r\n0\r\n\r\n",
            "5;name=val\r\nhello\r\n0;x\r\n\r\n",
            "5;n=\"a;\\\"\t\u{e9}\"\r\nhello\r\n0\r\n\r\n",
            "5 \t\r\nhello\r\n0 ; x\r\n\r\n",
            "0000000000000000005\r\nhello\r\n000\r\n\r\n",
            "2\r\nhe\r\n3\r\nllo\r\n0\r\nServer-Timing: a\r\nx-sum:\r\n\r\n",
        ] {
            let surplus = format!("{text}HTTP/1.1 200");
            assert_eq!(chunked(surplus.as_bytes()), (b"hello".to_vec(), text.len(), Ok(true)), "{text:?}");
        }
        assert_eq!(chunked(b"0\r\n\r\n"), (Vec::new(), 5, Ok(true)));
        assert_eq!(chunked(b"Ff\r\n").2, Ok(false));
    }

    #[test]
    fn bad_chunk_framing_fails_at_once() {
        for text in [
            "FFFFFFFFFFFFFFFFF",
            "g",
            "\r",
            ";",
            " ",
            "0x",
            "-",
            "5\n",
            "5\rx",
            "5 5",
            "5;\"a\r",
            "5;a\n",
            "5;\0",
            "5\r\nhelloX",
            "5\r\nhello\n",
            "5\r\nhello\rX",
            "0\r\n\n",
            "0\r\n\rX",
            "0\r\nX: a\n",
            "0\r\n:",
            "0\r\n ",
            "0\r\nHTTP/", // the next status line, where the last line end was forgotten
        ] {
            let error = chunked(text.as_bytes()).2.unwrap_err();
            assert_eq!(error.class, ErrorClass::Framing, "{text:?}");
            assert_eq!(chunked(&text.as_bytes()[..text.len() - 1]).2, Ok(false), "{text:?} failed too soon");
        }
    }

    #[test]
    fn chunk_lines_and_trailers_are_bounded() {
        let line = format!("5;{}\r\nhello\r\n", "x".repeat(limits::CHUNK_LINE_BYTES_MAX as usize));
        assert_eq!(chunked(line.as_bytes()).2.map_err(|e| e.class), Err(ErrorClass::Framing));
        let trailers = format!("0\r\n{}\r\n", "a: b\r\n".repeat(limits::TRAILER_BYTES_MAX as usize / 6 + 1));
        assert_eq!(chunked(trailers.as_bytes()).2.map_err(|e| e.class), Err(ErrorClass::Framing));
        // The bound of a line is each line's own.
        let many = format!("{}0\r\n\r\n", format!("1;{}\r\nx\r\n", "y".repeat(3000)).repeat(3));
        assert_eq!(chunked(many.as_bytes()).2, Ok(true));
    }

    #[test]
    fn length_bodies_are_skipped_in_one_call_and_leave_the_surplus() {
        assert_eq!(read(Framing::Length(2), b"okHTTP", &[]), (b"ok".to_vec(), 2, Ok(true)));
        assert_eq!(read(Framing::None, b"HTTP", &[]), (Vec::new(), 0, Ok(true)));
        assert_eq!(read(Framing::Length(0), b"HTTP", &[]), (Vec::new(), 0, Ok(true)));
        assert!(Body::new(Framing::None).is_done() && Body::new(Framing::Length(0)).is_done());
        let mut calls = 0;
        let mut body = Body::new(Framing::Length(u64::MAX));
        let fed = body.feed(&[0; 4096], |_| calls += 1);
        assert_eq!((fed, calls), (Ok(Fed { consumed: 4096, done: false }), 1));
    }

    #[test]
    fn a_close_completes_only_what_it_frames() {
        let after = |framing, bytes: &[u8]| {
            let mut body = Body::new(framing);
            body.feed(bytes, |_| ()).unwrap();
            body.at_close().map_err(|error| error.class)
        };
        assert_eq!(after(Framing::UntilClose, b"body"), Ok(()));
        assert_eq!(after(Framing::Length(4), b"body"), Ok(()));
        assert_eq!(after(Framing::Length(10), b"hello"), Err(ErrorClass::Truncated));
        for text in ["", "5", "5\r\nhello\r\n", "5\r\nhello\r\n0\r\n", "0\r\n\r"] {
            assert_eq!(after(Framing::Chunked, text.as_bytes()), Err(ErrorClass::Truncated), "{text:?}");
        }
    }

    const HEADS: [&[u8]; 8] = [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\r\nHTTP/1.0 404\nServer: x\nConnection: keep-alive\n\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: folded\r\n line\r\nContent-Length: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad line\r\n\r\n",
        b"\x15\x03\x03\x00\x02\x02\x46",
    ];

    #[test]
    fn a_head_gathered_byte_by_byte_gives_the_verdict_of_one_read() {
        for text in HEADS {
            let whole = parse_head(text, false);
            let first = (0..=text.len()).map(|end| parse_head(&text[..end], false)).find(|step| {
                *step != Ok(HeadStep::Partial) // what the caller acts on
            });
            assert_eq!(first, Some(whole), "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn chunked_body_split_at_every_byte_gives_same_payload() {
        for text in ["5;a=\"\\\"\"\r\nhello\r\nA\r\n0123456789\r\n0\r\nT: v\r\n\r\nHTTP", "5\r\nhello\r\n0\r\nHTTP/1.1"]
        {
            let whole = chunked(text.as_bytes());
            for cut in 0..=text.len() {
                assert_eq!(read(Framing::Chunked, text.as_bytes(), &[cut]), whole, "{cut}");
            }
            let all: Vec<_> = (0..text.len()).collect();
            assert_eq!(read(Framing::Chunked, text.as_bytes(), &all), whole);
        }
    }

    prop_compose! {
        fn encoded_chunks()(
            chunks in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..40), "(;[a-z]{0,5}(=\"[ -!#-\\[\\]-~]{0,5}\")?)?"), 0..6),
            trailers in prop::collection::vec("[A-Za-z-]{1,8}: ?[ -~]{0,8}", 0..3),
        ) -> (Vec<u8>, Vec<u8>) {
            let (mut wire, mut payload) = (Vec::new(), Vec::new());
            for (data, extension) in chunks {
                wire.extend_from_slice(format!("{:x}{extension}\r\n", data.len()).as_bytes());
                wire.extend_from_slice(&data);
                wire.extend_from_slice(b"\r\n");
                payload.extend_from_slice(&data);
            }
            wire.extend_from_slice(b"0\r\n");
            for trailer in trailers {
                wire.extend_from_slice(format!("{trailer}\r\n").as_bytes());
            }
            wire.extend_from_slice(b"\r\n");
            (wire, payload)
        }
    }

    proptest! {
        #[test]
        fn what_is_chunked_comes_back_under_any_split((wire, payload) in encoded_chunks(), mut cuts in prop::collection::vec(0usize..200, 0..12)) {
            let end = wire.len();
            let with_surplus = [&wire[..], b"HTTP/1.1 200 OK\r\n"].concat();
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(with_surplus.len()));
            cuts.sort_unstable();
            prop_assert_eq!(read(Framing::Chunked, &with_surplus, &cuts), (payload, end, Ok(true)));
        }

        #[test]
        fn any_bytes_end_in_the_same_verdict_under_any_split(bytes in prop::collection::vec(prop::sample::select(b"0123456789abcdefF\r\n;\"\\: x".to_vec()), 0..80), mut cuts in prop::collection::vec(0usize..80, 0..12)) {
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(bytes.len()));
            cuts.sort_unstable();
            prop_assert_eq!(read(Framing::Chunked, &bytes, &cuts), chunked(&bytes));
        }

        #[test]
        fn no_bytes_make_a_head_panic_and_no_error_is_taken_back(tail in prop::collection::vec(any::<u8>(), 0..60), keep in 0usize..90) {
            let head = HEADS[keep % HEADS.len()];
            let bytes = [&head[..keep.min(head.len())], &tail].concat();
            let whole = parse_head(&bytes, false);
            for end in 0..bytes.len() {
                let step = parse_head(&bytes[..end], false);
                prop_assert!(step == Ok(HeadStep::Partial) || step == whole, "{} {:?} {:?}", end, step, whole);
            }
        }
    }
}
