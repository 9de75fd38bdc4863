//! Whole HTTP requests: `http_requests` (ours), `vegeta` (its JSON targets) and what `har` shares with them.
//!
//! | http_requests | meaning |
//! | --- | --- |
//! | `method`, `path` | none keeps the run's; a path begins with `/` |
//! | `headers` | an object of strings, or of lists of strings |
//! | `body` | a string: its text; anything else: its bytes in the file |
//! | `body_base64` | any bytes |
//! | `timestamp`, `delay` | milliseconds |
//! | `session_id` | session |
//!
//! Framing and hop-by-hop fields (RFC 9110 §7.6.1) are left out: they are made anew for the connection that is really used.

use std::borrow::Cow;

use super::{
    ReadOptions, facts,
    fields::{Fields, Read, Stop, keys_seen, wrong},
};
use crate::data::{
    base64,
    json::{Kind, Value},
    record::{Payload, Record, RequestLine, Sink},
};

/// Fields that belong to one connection or one framing.
const DROPPED: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Whether a captured field is sent again.
pub(super) fn kept(name: &str) -> bool {
    !name.starts_with(':') && !DROPPED.contains(&name.to_ascii_lowercase().as_str())
}

/// Path and query of a URL, or of what is a path already.
pub(super) fn path_of(url: &str) -> Option<&str> {
    let path = match url.split_once("://") {
        Some(("http" | "https", rest)) => {
            let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            if at == 0 {
                return None;
            }
            &rest[at..]
        }
        Some(_) => return None,
        None => url,
    };
    let path = path.split('#').next().unwrap_or(path);
    match path {
        "" => Some("/"),
        path if path.starts_with('/') => Some(path),
        _ => None,
    }
}

/// A token of RFC 9110 §5.6.2: what a method or a field name is.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c))
}

fn method<'a>(fields: &Fields<'a, 9>) -> Read<Option<Cow<'a, str>>> {
    match fields.string("method")? {
        Some(method) if !is_token(&method) => {
            Err(Stop::Bad(format!("method is \"{}\", expected GET, POST or the like", method.escape_debug())))
        }
        other => Ok(other),
    }
}

/// Names and values of an object of fields.
fn headers<'a>(name: &str, object: Value<'a>) -> Read<Vec<(Cow<'a, str>, Cow<'a, str>)>> {
    let mut out = Vec::new();
    for (key, value) in object.members() {
        if !is_token(&key) {
            return Err(Stop::Bad(format!("{name} has the name \"{}\", expected a field name", key.escape_debug())));
        }
        let mut put = |value: Value<'a>| -> Read<()> {
            let text = match value.kind() {
                Kind::String => value.string().unwrap_or_default(),
                Kind::Number | Kind::Bool => value.text(),
                _ => return Err(wrong(&format!("{name}.{key}"), value, "a string or a list of strings")),
            };
            if text.bytes().any(|c| matches!(c, b'\r' | b'\n' | 0)) {
                return Err(Stop::Bad(format!("{name}.{key} has a line end in it")));
            }
            if kept(&key) {
                out.push((key.clone(), text));
            }
            Ok(())
        };
        if value.kind() == Kind::Array {
            value.elements().try_for_each(&mut put)?;
        } else {
            put(value)?;
        }
    }
    Ok(out)
}

/// A record of a body that may be anything.
pub(super) fn record<'a>(number: u64, body: Cow<'a, [u8]>, request: RequestLine<'a>) -> Record<'a> {
    Record { request: Some(request), ..Record::new(number, Payload::Verbatim(body)) }
}

pub(super) fn line(options: &ReadOptions, number: u64, line: &[u8], sink: &mut dyn Sink) -> Read<()> {
    static NAMES: [&str; 9] =
        ["method", "path", "headers", "body", "body_base64", "timestamp", "session_id", "delay", "type"];
    let fields = Fields::parse(&NAMES, line)?;
    if let Some(kind) = fields.get("type")
        && kind.string().as_deref() != Some("http_requests")
    {
        return Err(wrong("type", kind, "\"http_requests\" or no type"));
    }
    if !["method", "path", "body", "body_base64"].into_iter().any(|name| fields.has(name)) {
        return Err(Stop::Bad(format!("none of method, path, body or body_base64 is there; {}", keys_seen(line))));
    }
    let path = match fields.string("path")? {
        Some(path) if !sendable(&path) => {
            let shown = path.escape_debug().take(60).collect::<String>();
            return Err(Stop::Bad(format!("path is \"{shown}\", expected one that begins with / and has no space")));
        }
        other => other,
    };
    let body = match (fields.get("body"), fields.string("body_base64")?) {
        (Some(_), Some(_)) => return Err(Stop::bad("body and body_base64 are there, expected one of them")),
        (None, None) => Cow::Borrowed(&b""[..]),
        (None, Some(text)) => Cow::Owned(base64::decode(&text).map_err(|e| Stop::Bad(format!("body_base64: {e}")))?),
        (Some(value), None) => match value.string() {
            Some(Cow::Borrowed(text)) => Cow::Borrowed(text.as_bytes()),
            Some(Cow::Owned(text)) => Cow::Owned(text.into_bytes()),
            None => Cow::Borrowed(value.bytes()),
        },
    };
    let headers = fields.object("headers")?.map(|v| headers("headers", v)).transpose()?.unwrap_or_default();
    let mut record = record(number, body, RequestLine { method: method(&fields)?, path, headers });
    record.due_ns = fields.time_ns("timestamp", 6)?;
    record.delay_ns = fields.time_ns("delay", 6)?;
    record.session = fields.label("session_id")?.or(options.session.as_deref().map(Cow::Borrowed));
    note_cap(&mut record);
    Ok(sink.record(record)?)
}

/// The cap of the output, where the body says one.
pub(super) fn note_cap(record: &mut Record<'_>) {
    if let Payload::Verbatim(body) = &record.payload {
        record.output_tokens = facts::of(body).output_cap;
    }
}

/// A path that a request line can have.
pub(super) fn sendable(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|c| c > b' ' && c < 0x7F)
}

pub(super) fn vegeta_line(number: u64, line: &[u8], sink: &mut dyn Sink) -> Read<()> {
    static NAMES: [&str; 9] = ["method", "url", "header", "body", "", "", "", "", ""];
    let fields = Fields::parse(&NAMES, line)?;
    let url = fields.string("url")?;
    let url = url.ok_or_else(|| Stop::Bad(format!("no url, which a target has; {}", keys_seen(line))))?;
    let path = path_of(&url).filter(|path| sendable(path)).map(str::to_owned);
    let path =
        path.ok_or_else(|| Stop::Bad(format!("url is \"{}\", expected http://host/path", url.escape_debug())))?;
    let body = fields.string("body")?.unwrap_or_default();
    let body = base64::decode(&body).map_err(|e| Stop::Bad(format!("body: {e}")))?;
    let headers = fields.object("header")?.map(|v| headers("header", v)).transpose()?.unwrap_or_default();
    let method = method(&fields)?;
    let method = method.ok_or_else(|| Stop::Bad(format!("no method, which a target has; {}", keys_seen(line))))?;
    let request = RequestLine { method: Some(method), path: Some(Cow::Owned(path)), headers };
    let mut record = record(number, Cow::Owned(body), request);
    note_cap(&mut record);
    Ok(sink.record(record)?)
}

#[cfg(test)]
mod tests {
    use super::super::{Format, testing::*};
    use super::*;

    fn shown(record: &Record<'_>) -> String {
        let request = record.request.as_ref().unwrap();
        let Payload::Verbatim(body) = &record.payload else { panic!() };
        let headers: Vec<_> = request.headers.iter().map(|(k, v)| format!("{k}: {v}")).collect();
        format!(
            "{} {} [{}] {}",
            request.method.as_deref().unwrap_or("-"),
            request.path.as_deref().unwrap_or("-"),
            headers.join(", "),
            String::from_utf8_lossy(body)
        )
    }

    #[test]
    fn requests_of_any_api() {
        let text = r#"{"method":"PUT","path":"/a?b=c","headers":{"X-A":"1","Content-Length":"9","x-list":["p","q"],"n":5},"body":"text \u00e9","timestamp":1.5}
{"body":{"max_tokens": 7, "z":1.10},"session_id":"s","delay":2}
{"path":"/bin","body_base64":"AAEC"}
{"method":"GET","path":"/"}"#;
        let kept = lines(Format::HttpRequests, text.as_bytes());
        assert_eq!(kept.bad, Vec::<String>::new());
        let got: Vec<_> = kept.records.iter().map(shown).collect();
        assert_eq!(
            got,
            [
                "PUT /a?b=c [X-A: 1, x-list: p, x-list: q, n: 5] text é",
                "- - [] {\"max_tokens\": 7, \"z\":1.10}",
                "- /bin [] \u{0}\u{1}\u{2}",
                "GET / [] ",
            ]
        );
        assert_eq!(kept.records[0].due_ns, Some(1_500_000));
        assert_eq!((kept.records[1].delay_ns, kept.records[1].output_tokens), (Some(2_000_000), Some(7)));
    }

    #[test]
    fn vegeta_targets() {
        let text = r#"{"method":"POST","url":"http://host:80/p/q?x=1#f","header":{"Content-Type":["text/plain"],"Host":["h"]},"body":"aGk="}
{"method":"GET","url":"https://host"}
{"method":"GET","url":"ftp://host/x"}
{"method":"G T","url":"http://host/x"}
{"url":"http://host/x"}"#;
        let kept = lines(Format::Vegeta, text.as_bytes());
        let got: Vec<_> = kept.records.iter().map(shown).collect();
        assert_eq!(got, ["POST /p/q?x=1 [Content-Type: text/plain] hi", "GET / [] "]);
        assert_eq!(
            kept.bad,
            [
                "f:3: url is \"ftp://host/x\", expected http://host/path",
                "f:4: method is \"G T\", expected GET, POST or the like",
                "f:5: no method, which a target has; keys seen: url",
            ]
        );
    }

    #[test]
    fn what_cannot_be_a_request_is_said() {
        for (text, want) in [
            (r#"{"path":"a"}"#, "path is \"a\", expected one that begins with /"),
            (r#"{"path":"/a b"}"#, "path is \"/a b\""),
            (r#"{"foo":1}"#, "none of method, path, body or body_base64 is there; keys seen: foo"),
            (r#"{"body":"a","body_base64":"YQ=="}"#, "body and body_base64 are there"),
            (r#"{"body_base64":"?"}"#, "body_base64: no base64: the character `?`"),
            (r#"{"body":"a","headers":{"a b":"c"}}"#, "headers has the name \"a b\""),
            (r#"{"body":"a","headers":{"a":"c\r\nd"}}"#, "headers.a has a line end in it"),
            (r#"{"body":"a","headers":{"a":{}}}"#, "headers.a is {}, expected a string"),
            (r#"{"body":"a","headers":[]}"#, "headers is [], expected an object"),
        ] {
            let kept = lines(Format::HttpRequests, text.as_bytes());
            assert!(kept.records.is_empty() && kept.bad[0].contains(want), "{text}: {:?}", kept.bad);
        }
    }
}
