//! `har`: HTTP archives of browsers and proxies (HAR 1.2), one JSON document.
//!
//! Each entry of `log.entries` is a request: method, path of its URL, fields, body, and the time it was started. Requests are
//! independent of each other and in the order of the file. Framing and hop-by-hop fields are left out, as is the host: the
//! run's URL says where they go.

use std::{borrow::Cow, io::Read as Input};

use super::{
    fields::{Fields, Read, Stop, keys_seen, wrong},
    requests,
    stream::Stream,
    times::date_time_ns,
};
use crate::data::{
    Error, base64,
    error::Place,
    json::{Kind, Value},
    record::{RequestLine, Sink},
};

pub(super) fn document(file: &str, input: &mut dyn Input, sink: &mut dyn Sink) -> Result<(), Error> {
    let mut entries = 0u64;
    let found = Stream::new(file, input).array_in_object("log.entries", |line, text| {
        entries += 1;
        match entry(line, text, sink) {
            Ok(()) => Ok(()),
            Err(Stop::Bad(what)) => sink.bad(Place::line(file, line), format!("log.entries[{}]: {what}", entries - 1)),
            Err(Stop::End(error)) => Err(error),
        }
    })?;
    match found {
        true => Ok(()),
        false => {
            Err(Error::dataset(Place::file(file), "no \"log\" with \"entries\" at the top, expected a HAR document"))
        }
    }
}

fn entry(line: u64, text: &[u8], sink: &mut dyn Sink) -> Read<()> {
    let fields = Fields::parse(&["request", "startedDateTime"], text)?;
    let request = fields.object("request")?;
    let request = request.ok_or_else(|| Stop::Bad(format!("no request; {}", keys_seen(text))))?;
    let of = |name: &str| request.member(name).filter(|v| !v.is_null());
    let string = |name: &'static str| -> Read<Cow<'_, str>> {
        let value = of(name).ok_or_else(|| Stop::Bad(format!("request has no {name}")))?;
        value.string().ok_or_else(|| wrong(&format!("request.{name}"), value, "a string"))
    };
    let (method, url) = (string("method")?, string("url")?);
    if !requests::is_token(&method) {
        return Err(Stop::Bad(format!(
            "request.method is \"{}\", expected GET, POST or the like",
            method.escape_debug()
        )));
    }
    let path = requests::path_of(&url).map(encoded).filter(|path| requests::sendable(path));
    let path =
        path.ok_or_else(|| Stop::Bad(format!("request.url is \"{}\", expected http://host/path", url.escape_debug())))?;
    let mut headers = Vec::new();
    for field in of("headers").into_iter().flat_map(Value::elements) {
        let part = |name: &str| field.member(name).and_then(Value::string);
        let (Some(name), Some(value)) = (part("name"), part("value")) else {
            return Err(wrong("request.headers", field, "objects of name and value"));
        };
        if value.bytes().any(|c| matches!(c, b'\r' | b'\n' | 0)) {
            return Err(Stop::Bad(format!("request.headers: {} has a line end in it", name.escape_debug())));
        }
        if requests::kept(&name) && requests::is_token(&name) {
            headers.push((name, value));
        }
    }
    let body = body(of("postData"))?;
    let request = RequestLine { method: Some(method), path: Some(Cow::Owned(path)), headers };
    let mut record = requests::record(line, body, request);
    if let Some(started) = fields.string("startedDateTime")? {
        let ns = date_time_ns(&started);
        record.due_ns =
            Some(ns.ok_or_else(|| {
                Stop::Bad(format!("startedDateTime is \"{started}\", expected 2024-01-31T12:00:00Z"))
            })?);
    }
    requests::note_cap(&mut record);
    Ok(sink.record(record)?)
}

/// A captured path with its spaces and letters percent-encoded: some tools write URLs as people read them.
fn encoded(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for c in path.bytes() {
        match c {
            b'!'..=b'~' => out.push(char::from(c)),
            _ => out.push_str(&format!("%{c:02X}")),
        }
    }
    out
}

fn body<'a>(post: Option<Value<'a>>) -> Read<Cow<'a, [u8]>> {
    let Some(post) = post.filter(|v| v.kind() == Kind::Object) else { return Ok(Cow::Borrowed(b"")) };
    let text = post.member("text").and_then(Value::string);
    let coded = post.member("encoding").and_then(Value::string).is_some_and(|e| e == "base64");
    match text {
        Some(text) if coded => {
            Ok(Cow::Owned(base64::decode(&text).map_err(|e| Stop::Bad(format!("request.postData: {e}")))?))
        }
        Some(Cow::Borrowed(text)) => Ok(Cow::Borrowed(text.as_bytes())),
        Some(Cow::Owned(text)) => Ok(Cow::Owned(text.into_bytes())),
        None => Ok(Cow::Owned(form(post).into_bytes())),
    }
}

/// `params` as `application/x-www-form-urlencoded`, for captures that only have them taken apart.
fn form(post: Value<'_>) -> String {
    let coded = |text: &str| {
        let byte = |c: u8| match c {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'*' | b'-' | b'.' | b'_' => char::from(c).to_string(),
            b' ' => "+".into(),
            _ => format!("%{c:02X}"),
        };
        text.bytes().map(byte).collect::<String>()
    };
    let pairs = post.member("params").into_iter().flat_map(Value::elements).map(|pair| {
        let part = |name: &str| pair.member(name).and_then(Value::string).unwrap_or_default();
        format!("{}={}", coded(&part("name")), coded(&part("value")))
    });
    pairs.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::super::{Format, testing::document};
    use crate::data::record::Payload;

    #[test]
    fn entries_become_requests() {
        let text = r#"{"log":{"version":"1.2","creator":{"name":"x"},"entries":[
 {"startedDateTime":"2024-01-31T12:00:00.250Z","time":5,"request":{"method":"POST","url":"https://h/a b?q=é#frag","httpVersion":"h2",
   "headers":[{"name":":authority","value":"h"},{"name":"Cookie","value":"a=b"},{"name":"content-length","value":"3"}],
   "postData":{"mimeType":"text/plain","text":"a\"b"}},"response":{"status":200}},
 {"startedDateTime":"2024-01-31T12:00:00Z","request":{"method":"POST","url":"http://h/","headers":[],"postData":{"params":[{"name":"a b","value":"c&d"}]}}},
 {"request":{"method":"POST","url":"http://h/z","postData":{"text":"AQI=","encoding":"base64"}}},
 {"request":{"method":"GET","url":"data:x"}},
 {"startedDateTime":"noon","request":{"method":"GET","url":"http://h/"}},
 {"response":{}}
]}}"#;
        let kept = document(Format::Har, text.as_bytes()).unwrap();
        let got: Vec<_> = kept
            .records
            .iter()
            .map(|r| {
                let Payload::Verbatim(body) = &r.payload else { panic!() };
                let line = r.request.as_ref().unwrap();
                (line.path.as_deref().unwrap(), line.headers.len(), String::from_utf8_lossy(body).into_owned(), r.line)
            })
            .collect();
        assert_eq!(
            got,
            [
                ("/a%20b?q=%C3%A9", 1, "a\"b".to_owned(), 2),
                ("/", 0, "a+b=c%26d".to_owned(), 5),
                ("/z", 0, "\u{1}\u{2}".to_owned(), 6),
            ]
        );
        assert_eq!(kept.records[0].due_ns.unwrap() - kept.records[1].due_ns.unwrap(), 250_000_000);
        assert_eq!(
            kept.bad,
            [
                "f:7: log.entries[3]: request.url is \"data:x\", expected http://host/path",
                "f:8: log.entries[4]: startedDateTime is \"noon\", expected 2024-01-31T12:00:00Z",
                "f:9: log.entries[5]: no request; keys seen: response",
            ]
        );
        assert!(document(Format::Har, b"{\"log\":{}}").unwrap_err().to_string().contains("expected a HAR document"));
    }
}
