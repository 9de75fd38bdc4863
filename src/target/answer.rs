//! Answers as bytes: heads, the JSON bodies of the modes, and the events of a stream. Nothing here knows a socket.

use std::io::Write as _;

use crate::data::results::WrongBody;

/// How the connection goes on after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Kept, as HTTP/1.1 does without a word.
    Keep,
    /// Kept, and said so for a client of HTTP/1.0.
    KeepSaid,
    /// Closed, and said so.
    Close,
}

/// How a body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// `Content-Length`.
    Bytes(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Until the close, for HTTP/1.0.
    UntilClose,
    /// No body whatever follows: 204, 304.
    None,
}

/// The small body of `mode=null`.
pub const NULL_BODY: &[u8] = b"{\"ok\":true}";
const JSON: &str = "application/json";

/// True for statuses whose answers have no body.
pub const fn is_bodyless(status: u16) -> bool {
    matches!(status, 204 | 304)
}

/// The body of `mode=null` at a length, the small one without. JSON where the length allows it.
pub fn null_body(bytes: Option<u64>) -> Vec<u8> {
    let Some(bytes) = bytes.map(|b| usize::try_from(b).unwrap_or(usize::MAX)) else { return NULL_BODY.to_vec() };
    match bytes.checked_sub(NULL_BODY.len()) {
        // Spaces may stand before a JSON value.
        Some(spaces) => [&vec![b' '; spaces], NULL_BODY].concat(),
        // Below its 11 bytes a number is the only thing that fits.
        None => vec![b'1'; bytes],
    }
}

/// Appends a head.
pub fn head(out: &mut Vec<u8>, status: u16, content_type: &str, length: Length, after: After) {
    // Writing to a Vec cannot fail.
    let _ = write!(out, "HTTP/1.1 {status} {}\r\n", reason(status));
    let _ = match length {
        Length::Bytes(n) => write!(out, "Content-Type: {content_type}\r\nContent-Length: {n}\r\n"),
        Length::Chunked => write!(out, "Content-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n"),
        Length::UntilClose => write!(out, "Content-Type: {content_type}\r\n"),
        Length::None => Ok(()),
    };
    out.extend_from_slice(match after {
        After::Keep => b"\r\n",
        After::KeepSaid => b"Connection: keep-alive\r\n\r\n",
        After::Close => b"Connection: close\r\n\r\n",
    });
}

/// Appends a JSON answer, head and body; returns the length of the body.
pub fn json(out: &mut Vec<u8>, status: u16, body: &[u8], after: After) -> usize {
    if is_bodyless(status) {
        head(out, status, JSON, Length::None, after);
        return 0;
    }
    head(out, status, JSON, Length::Bytes(body.len() as u64), after);
    out.extend_from_slice(body);
    body.len()
}

/// The body of a refusal or an injected error, in the form that clients of LLM servers know.
pub fn error_body(status: u16, what: &str) -> Vec<u8> {
    format!("{{\"error\":{{\"message\":\"{what}\",\"type\":\"ringload_target\",\"code\":{status}}}}}").into_bytes()
}

/// The body of `mode=check` for a body that differed.
pub fn wrong_body(w: &WrongBody) -> Vec<u8> {
    let record = w.record.map_or_else(|| "null".to_owned(), |r| r.to_string());
    format!(
        "{{\"ok\":false,\"record\":{record},\"expected_bytes\":{},\"seen_bytes\":{},\"expected_xxh3\":\"{:016x}\",\"seen_xxh3\":\"{:016x}\"}}",
        w.expected_bytes, w.seen_bytes, w.expected_xxh3, w.seen_xxh3
    )
    .into_bytes()
}

const fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        204 => "No Content",
        304 => "Not Modified",
        400 => "Bad Request",
        404 => "Not Found",
        413 => "Content Too Large",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Status",
    }
}

/// The words of completions, one a token, in turn. None needs escaping in JSON.
const WORDS: [&str; 16] = [
    " the", " load", " is", " even", " and", " every", " event", " comes", " at", " its", " own", " time", " as",
    " it", " was", " due",
];

/// A chat completion.
pub fn chat(tokens: u32, prompt_tokens: u64, created_s: u64) -> Vec<u8> {
    let mut body = Vec::with_capacity(400 + 6 * tokens as usize);
    let _ = write!(
        body,
        "{{\"id\":\"chatcmpl-ringload\",\"object\":\"chat.completion\",\"created\":{created_s},\"model\":\"ringload\",\"choices\":[{{\"index\":0,\
         \"message\":{{\"role\":\"assistant\",\"content\":\""
    );
    for k in 0..tokens as usize {
        body.extend_from_slice(WORDS[k % WORDS.len()].as_bytes());
    }
    let _ = write!(body, "\"}},\"finish_reason\":\"length\"}}],\"usage\":{}}}", usage(tokens, prompt_tokens));
    body
}

fn usage(tokens: u32, prompt_tokens: u64) -> String {
    let total = prompt_tokens.saturating_add(u64::from(tokens));
    format!("{{\"prompt_tokens\":{prompt_tokens},\"completion_tokens\":{tokens},\"total_tokens\":{total}}}")
}

/// `usage.prompt_tokens` for a body of so many bytes: about four bytes of English text are a token.
pub const fn prompt_tokens(body_bytes: u64) -> u64 {
    body_bytes.div_ceil(4)
}

/// The events of a stream, made once: an event is one chunk, so that any number of them is a plain copy.
#[derive(Debug)]
pub struct Events {
    role: Vec<u8>,
    words: Vec<Vec<u8>>,
    finish: Vec<u8>,
    error: Vec<u8>,
    created_s: u64,
}

impl Events {
    /// The events of a server that started at this time (seconds since the Unix epoch).
    pub fn new(created_s: u64) -> Self {
        let delta = |delta: &str, finish: &str| {
            framed(&format!(
                "{},\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}",
                stem(created_s)
            ))
        };
        Self {
            role: delta("{\"role\":\"assistant\",\"content\":\"\"}", "null"),
            words: WORDS.iter().map(|w| delta(&format!("{{\"content\":\"{w}\"}}"), "null")).collect(),
            finish: delta("{}", "\"length\""),
            error: framed("{\"error\":{\"message\":\"injected\",\"type\":\"ringload_target\",\"code\":500}}"),
            created_s,
        }
    }

    /// The first event, without content.
    pub fn role(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.role);
    }

    /// Content event `k`, from 0.
    pub fn word(&self, out: &mut Vec<u8>, k: u64) {
        out.extend_from_slice(&self.words[k as usize % WORDS.len()]);
    }

    /// What follows the last content event: finish reason, usage, `[DONE]`, the last chunk.
    pub fn end(&self, out: &mut Vec<u8>, tokens: u32, prompt_tokens: u64) {
        out.extend_from_slice(&self.finish);
        let stem = stem(self.created_s);
        out.extend_from_slice(&framed(&format!("{stem},\"choices\":[],\"usage\":{}}}", usage(tokens, prompt_tokens))));
        out.extend_from_slice(&framed("[DONE]"));
        out.extend_from_slice(LAST_CHUNK);
    }

    /// An error inside the stream, and its end.
    pub fn error(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.error);
        out.extend_from_slice(LAST_CHUNK);
    }
}

const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

fn stem(created_s: u64) -> String {
    format!(
        "{{\"id\":\"chatcmpl-ringload\",\"object\":\"chat.completion.chunk\",\"created\":{created_s},\"model\":\"ringload\""
    )
}

fn framed(data: &str) -> Vec<u8> {
    let event = format!("data: {data}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
}

/// Takes the chunk lines out of framed events, in place of which an HTTP/1.0 client reads until the close.
pub fn unframed(chunks: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(chunks.len());
    let mut rest = chunks;
    while let Some(at) = memchr::memchr(b'\n', rest) {
        let size = rest[..at]
            .trim_ascii()
            .iter()
            .fold(0usize, |n, &b| n * 16 + (b as char).to_digit(16).unwrap_or(0) as usize);
        let data = at + 1;
        let Some(chunk) = rest.get(data..data + size) else { break };
        out.extend_from_slice(chunk);
        rest = rest.get(data + size + 2..).unwrap_or(&[]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json_and_say_what_they_should() {
        let chat: serde_json::Value = serde_json::from_slice(&chat(20, 7, 1)).unwrap();
        assert_eq!(chat["usage"]["completion_tokens"], 20);
        assert_eq!(chat["usage"]["total_tokens"], 27);
        assert_eq!(chat["choices"][0]["message"]["content"].as_str().unwrap().split(' ').count(), 21);
        let wrong = WrongBody { record: Some(3), expected_xxh3: 255, ..WrongBody::default() };
        let wrong: serde_json::Value = serde_json::from_slice(&wrong_body(&wrong)).unwrap();
        assert_eq!((wrong["record"].as_u64(), wrong["expected_xxh3"].as_str()), (Some(3), Some("00000000000000ff")));
        let error: serde_json::Value = serde_json::from_slice(&error_body(400, "no")).unwrap();
        assert_eq!(error["error"]["code"], 400);
        for bytes in (1..40).chain([1000]) {
            let body = null_body(Some(bytes));
            assert_eq!(body.len() as u64, bytes);
            assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
        }
        assert_eq!(null_body(None), NULL_BODY);
    }

    #[test]
    fn heads_frame_as_asked() {
        let text = |length, after| {
            let mut out = Vec::new();
            head(&mut out, 200, "text/plain", length, after);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            text(Length::Bytes(5), After::Keep),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n"
        );
        assert!(
            text(Length::Chunked, After::Close).ends_with("Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        );
        assert!(text(Length::UntilClose, After::KeepSaid).contains("keep-alive"));
        let mut out = Vec::new();
        assert_eq!(json(&mut out, 204, b"{}", After::Keep), 0);
        assert_eq!(out, b"HTTP/1.1 204 No Content\r\n\r\n");
    }

    #[test]
    fn a_stream_is_chunks_of_events_that_parse() {
        let events = Events::new(1);
        let mut out = Vec::new();
        events.role(&mut out);
        for k in 0..20 {
            events.word(&mut out, k);
        }
        events.end(&mut out, 20, 9);
        assert!(out.ends_with(b"0\r\n\r\n"));
        let plain = String::from_utf8(unframed(&out)).unwrap();
        let data: Vec<_> =
            plain.split("\n\n").filter(|e| !e.is_empty()).map(|e| e.strip_prefix("data: ").unwrap()).collect();
        assert_eq!((data.len(), data[23]), (24, "[DONE]"));
        let parsed: Vec<serde_json::Value> = data[..23].iter().map(|d| serde_json::from_str(d).unwrap()).collect();
        assert_eq!(parsed[0]["choices"][0]["delta"]["content"], "");
        assert!(parsed[1..21].iter().all(|e| !e["choices"][0]["delta"]["content"].as_str().unwrap().is_empty()));
        assert_eq!(parsed[21]["choices"][0]["finish_reason"], "length");
        assert_eq!(parsed[22]["usage"]["completion_tokens"], 20);
    }
}
