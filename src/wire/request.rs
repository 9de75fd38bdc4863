//! The request head: built once for a target or a template of the dataset, written once a request.
//!
//! A [`HeadTemplate`] is the finished text of a head with holes for what differs from request to request (length, record,
//! digest); writing one is a few copies, with no formatting machinery and no allocation. All that a user can get wrong in a
//! head is refused here, when the template is made. Imports nothing but `data`.

use crate::data::{
    Error, RecordId, Result, limits,
    plan::{RequestHead, Target},
    record::RequestLine,
};

/// Digits of the largest `u64`.
const LENGTH_DIGITS: usize = 20;
/// Digits of the largest [`RecordId`].
const RECORD_DIGITS: usize = 10;
/// Hexadecimal digits of an xxh3 digest.
const DIGEST_DIGITS: usize = 16;

/// What goes into a hole of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hole {
    /// The body's length, decimal.
    Length,
    /// The record's number, decimal.
    Record,
    /// The body's digest, 16 hexadecimal digits.
    Digest,
}

impl Hole {
    const fn bytes_max(self) -> usize {
        match self {
            Self::Length => LENGTH_DIGITS,
            Self::Record => RECORD_DIGITS,
            Self::Digest => DIGEST_DIGITS,
        }
    }
}

/// A request head with holes.
///
/// ```text
/// POST /v1/x HTTP/1.1 .. Content-Length: [Length] CRLF X-Ringload-Record: [Record] .. [Digest] CRLF .. CRLF CRLF
/// '------------ text[0..at] ------------'       '------- text[at..] -------'
/// ```
#[derive(Clone, Debug)]
pub struct HeadTemplate {
    method: String,
    /// The head without what goes into the holes.
    text: Vec<u8>,
    /// Rising offsets into `text`; at most one of each kind.
    holes: Vec<(usize, Hole)>,
    bytes_max: usize,
}

/// A field of the head that is being put together.
struct Field<'a> {
    name: &'a str,
    value: Value<'a>,
}

/// Value of a field.
enum Value<'a> {
    Text(&'a str),
    /// `Bearer <token>`; kept apart so that no message can show it.
    Bearer(&'a str),
    Hole(Hole),
}

impl HeadTemplate {
    /// The head for a target: defaults, then the run's fields, then those that a record brings (`own`), each of which
    /// overrides what came before: the last of a name wins, and an empty value removes the field.
    ///
    /// Order of the defaults: `Host`, `User-Agent`, `Accept`, `Authorization` (with a bearer), `Content-Type`,
    /// `Content-Length`; an overridden default keeps its place. Without a body there is no `Content-Type`, and
    /// `Content-Length: 0` for POST, PUT and PATCH only (RFC 9110 §8.6). A usage error names what cannot be sent.
    pub fn new(
        target: &Target,
        head: &RequestHead,
        has_body: bool,
        own: Option<&RequestLine<'_>>,
    ) -> Result<Self, Error> {
        let own_method = own.and_then(|line| line.method.as_deref());
        let method = own_method.or(head.method.as_deref()).unwrap_or(if has_body { "POST" } else { "GET" });
        check_method(method)?;
        let path = own.and_then(|line| line.path.as_deref()).unwrap_or(&target.path);
        let path = request_target(path, method)?;

        let mut fields = default_fields(target, head, has_body, method);
        for (name, value) in &head.headers {
            set_field(&mut fields, name, value, head.body_digest)?;
        }
        for (name, value) in own.iter().flat_map(|line| &line.headers) {
            set_field(&mut fields, name, value, head.body_digest)?;
        }

        let mut template = Self { method: method.to_owned(), text: Vec::new(), holes: Vec::new(), bytes_max: 0 };
        for part in [method, " ", &path, " HTTP/1.1\r\n"] {
            template.text.extend_from_slice(part.as_bytes());
        }
        for field in &fields {
            template.push_field(field)?;
        }
        template.text.extend_from_slice(b"\r\n");
        template.bytes_max =
            template.text.len() + template.holes.iter().map(|(_, hole)| hole.bytes_max()).sum::<usize>();
        if template.bytes_max > limits::REQUEST_HEAD_BYTES_MAX {
            return Err(Error::usage(format!(
                "request head has {} bytes, at most {} are sent: shorten the path or the headers",
                template.bytes_max,
                limits::REQUEST_HEAD_BYTES_MAX
            )));
        }
        Ok(template)
    }

    fn push_field(&mut self, field: &Field<'_>) -> Result<(), Error> {
        self.text.extend_from_slice(field.name.as_bytes());
        self.text.extend_from_slice(b": ");
        match field.value {
            Value::Text(text) => {
                check_value(field.name, text)?;
                self.text.extend_from_slice(text.as_bytes());
            }
            Value::Bearer(token) => {
                check_value(field.name, token)?;
                self.text.extend_from_slice(b"Bearer ");
                self.text.extend_from_slice(token.as_bytes());
            }
            Value::Hole(hole) => self.holes.push((self.text.len(), hole)),
        }
        self.text.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// The most bytes that [`HeadTemplate::write`] puts out; never over [`limits::REQUEST_HEAD_BYTES_MAX`].
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The method, as it is sent.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// True for HEAD, whose responses have no body whatever their fields say. Methods are case-sensitive (RFC 9110 §9.1).
    pub fn method_is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// Writes the head of one request to the front of `out` and returns its length.
    ///
    /// # Panics
    ///
    /// When `out` is shorter than [`HeadTemplate::bytes_max`]: the caller sized its buffer wrongly.
    #[inline]
    pub fn write(&self, out: &mut [u8], body_bytes: u64, record: RecordId, xxh3: u64) -> usize {
        let out = &mut out[..self.bytes_max];
        let (mut from, mut to) = (0, 0);
        for &(at, hole) in &self.holes {
            to = put(out, to, &self.text[from..at]);
            from = at;
            to = match hole {
                Hole::Length => put_decimal(out, to, body_bytes),
                Hole::Record => put_decimal(out, to, u64::from(record.0)),
                Hole::Digest => put_digest(out, to, xxh3),
            };
        }
        put(out, to, &self.text[from..])
    }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    let end = at + bytes.len();
    out[at..end].copy_from_slice(bytes);
    end
}

/// Decimal digits without the formatting machinery, which costs more than all the rest of a head.
fn put_decimal(out: &mut [u8], at: usize, mut n: u64) -> usize {
    let mut digits = [0; LENGTH_DIGITS];
    let mut first = LENGTH_DIGITS;
    loop {
        first -= 1;
        digits[first] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return put(out, at, &digits[first..]);
        }
    }
}

fn put_digest(out: &mut [u8], at: usize, n: u64) -> usize {
    let mut digits = [0; DIGEST_DIGITS];
    for (i, digit) in digits.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(n >> (60 - 4 * i)) as usize & 15];
    }
    put(out, at, &digits)
}

fn default_fields<'a>(target: &'a Target, head: &'a RequestHead, has_body: bool, method: &str) -> Vec<Field<'a>> {
    let mut fields = Vec::with_capacity(10);
    let mut push = |name, value| fields.push(Field { name, value });
    push("Host", Value::Text(&target.host));
    push("User-Agent", Value::Text(concat!("ringload/", env!("CARGO_PKG_VERSION"))));
    push("Accept", Value::Text(if head.accept_stream { "text/event-stream" } else { "*/*" }));
    if let Some(bearer) = &head.bearer {
        push("Authorization", Value::Bearer(&bearer.0));
    }
    if has_body {
        push("Content-Type", Value::Text("application/json"));
        push("Content-Length", Value::Hole(Hole::Length));
    } else if matches!(method, "POST" | "PUT" | "PATCH") {
        push("Content-Length", Value::Text("0"));
    }
    if has_body && head.body_digest {
        push(RECORD_FIELD, Value::Hole(Hole::Record));
        push(DIGEST_FIELD, Value::Hole(Hole::Digest));
    }
    fields
}

/// The field that carries the record's number to a target that checks bodies.
pub const RECORD_FIELD: &str = "X-Ringload-Record";
/// The field that carries the xxh3 digest of the body, 16 hexadecimal digits.
pub const DIGEST_FIELD: &str = "X-Ringload-Xxh3";

/// Overrides, adds or, with an empty value, removes a field. Values are checked when the text is put together.
fn set_field<'a>(fields: &mut Vec<Field<'a>>, name: &'a str, value: &'a str, digest: bool) -> Result<(), Error> {
    check_name(name)?;
    let ours = |own: &str| name.eq_ignore_ascii_case(own);
    if ours("Content-Length") || ours("Transfer-Encoding") {
        return Err(Error::usage(format!(
            "header {name:?} cannot be set: a body is sent with the one Content-Length that is its own"
        )));
    }
    if digest && (ours(RECORD_FIELD) || ours(DIGEST_FIELD)) {
        return Err(Error::usage(format!(
            "header {name:?} cannot be set: it carries the number or digest of each body"
        )));
    }
    let value = value.trim_matches([' ', '\t']);
    match fields.iter().position(|field| field.name.eq_ignore_ascii_case(name)) {
        Some(at) if value.is_empty() => drop(fields.remove(at)),
        Some(at) => fields[at] = Field { name, value: Value::Text(value) },
        None if value.is_empty() => {}
        None => fields.push(Field { name, value: Value::Text(value) }),
    }
    Ok(())
}

/// True for the characters of a token (RFC 9110 §5.6.2): what methods and field names are made of.
pub(super) const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_token_byte)
}

fn check_method(method: &str) -> Result<(), Error> {
    if !is_token(method) {
        return Err(Error::usage(format!("method {method:?} is not a token, expected one such as GET or POST")));
    }
    if method == "CONNECT" {
        // Its 2xx answer turns the connection into a tunnel: nothing after it would be a response.
        return Err(Error::usage("method \"CONNECT\" opens a tunnel and is not a request that can be repeated"));
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), Error> {
    if is_token(name) {
        return Ok(());
    }
    Err(Error::usage(format!("header name {name:?} is not a token, expected letters, digits and '-'")))
}

/// The value is not repeated in the message: it may be a secret.
fn check_value(name: &str, value: &str) -> Result<(), Error> {
    match value.bytes().find(|&b| (b < b' ' && b != b'\t') || b == 0x7f) {
        None => Ok(()),
        Some(b'\r' | b'\n') => Err(Error::usage(format!("header {name:?}: its value has a line break"))),
        Some(0) => Err(Error::usage(format!("header {name:?}: its value has a NUL byte"))),
        Some(byte) => Err(Error::usage(format!("header {name:?}: its value has the control character 0x{byte:02x}"))),
    }
}

/// The request target in origin form (RFC 9112 §3.2.1). Bytes over 0x7f are percent-encoded, as URL rules say; blanks,
/// control characters and fragments are refused, since each is more often a slip than meant.
fn request_target(path: &str, method: &str) -> Result<String, Error> {
    if path == "*" && method == "OPTIONS" {
        return Ok(path.to_owned());
    }
    if !path.starts_with('/') {
        return Err(Error::usage(format!("path {path:?} does not begin with '/'")));
    }
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b' ' => return Err(Error::usage(format!("path {path:?} has a blank: write %20"))),
            b'#' => {
                return Err(Error::usage(format!("path {path:?} has a fragment, which is never sent: leave it out")));
            }
            0..=0x1f | 0x7f => {
                return Err(Error::usage(format!("path {path:?} has a control character: write %{byte:02X}")));
            }
            0x80.. => out.push_str(&format!("%{byte:02X}")),
            _ => out.push(char::from(byte)),
        }
    }
    Ok(out)
}

/// Parses the value of `-H`: `Name: value`, split at the first colon. An empty value is kept: it removes a default.
pub fn parse_header_flag(text: &str) -> Result<(String, String), Error> {
    let Some((name, value)) = text.split_once(':') else {
        return Err(Error::usage(format!("header {text:?} has no colon, expected 'Name: value'")));
    };
    check_name(name)?;
    check_value(name, value)?;
    Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::plan::Secret;

    fn target(path: &str) -> Target {
        Target {
            url: String::new(),
            host: "h:8080".into(),
            path: path.into(),
            addresses: Vec::new(),
            tls: false,
            local: true,
        }
    }

    fn with_headers(headers: &[(&str, &str)]) -> RequestHead {
        let headers = headers.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        RequestHead { headers, ..RequestHead::default() }
    }

    fn written(template: &HeadTemplate, body_bytes: u64) -> String {
        let mut out = vec![0; template.bytes_max()];
        let n = template.write(&mut out, body_bytes, RecordId(7), 0xab);
        String::from_utf8(out[..n].to_vec()).unwrap()
    }

    fn text(head: &RequestHead, has_body: bool) -> String {
        written(&HeadTemplate::new(&target("/x?y=1"), head, has_body, None).unwrap(), 42)
    }

    fn refused(head: &RequestHead, path: &str) -> String {
        let error = HeadTemplate::new(&target(path), head, true, None).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    const AGENT: &str = concat!("User-Agent: ringload/", env!("CARGO_PKG_VERSION"), "\r\n");

    #[test]
    fn default_head_has_its_fields_in_order_and_one_length() {
        assert_eq!(
            text(&RequestHead::default(), true),
            format!(
                "POST /x?y=1 HTTP/1.1\r\nHost: h:8080\r\n{AGENT}Accept: */*\r\nContent-Type: application/json\r\nContent-Length: 42\r\n\r\n"
            )
        );
        assert_eq!(
            text(&RequestHead::default(), false),
            format!("GET /x?y=1 HTTP/1.1\r\nHost: h:8080\r\n{AGENT}Accept: */*\r\n\r\n")
        );
    }

    #[test]
    fn length_zero_only_where_a_body_is_expected() {
        for (method, zero) in
            [("POST", true), ("PUT", true), ("PATCH", true), ("GET", false), ("HEAD", false), ("DELETE", false)]
        {
            let head = RequestHead { method: Some(method.into()), ..RequestHead::default() };
            assert_eq!(text(&head, false).contains("Content-Length: 0\r\n"), zero, "{method}");
            assert!(!text(&head, false).contains("Content-Type"), "{method}");
        }
    }

    #[test]
    fn last_header_of_a_name_wins_and_an_empty_value_removes() {
        let head = with_headers(&[
            ("host", "a"),
            ("Content-Type", "x/y"),
            ("User-Agent", ""),
            ("Cookie", "a=1; b=2:3"),
            ("X-A", "1"),
            ("x-a", " 2 "),
        ]);
        assert_eq!(
            text(&head, true),
            "POST /x?y=1 HTTP/1.1\r\nhost: a\r\nAccept: */*\r\nContent-Type: x/y\r\nContent-Length: 42\r\nCookie: a=1; b=2:3\r\nx-a: 2\r\n\r\n"
        );
    }

    #[test]
    fn a_records_own_line_overrides_the_runs() {
        let head = with_headers(&[("X-A", "run")]);
        let own = RequestLine {
            method: Some("PUT".into()),
            path: Some("/own".into()),
            headers: vec![("x-a".into(), "record".into()), ("Accept".into(), "".into())],
        };
        let template = HeadTemplate::new(&target("/x"), &head, true, Some(&own)).unwrap();
        let text = written(&template, 0);
        assert!(text.starts_with("PUT /own HTTP/1.1\r\n"), "{text}");
        assert!(text.contains("x-a: record\r\n") && !text.contains("run\r\n") && !text.contains("Accept"), "{text}");
        assert!(text.contains("Content-Length: 0\r\n"), "{text}");
        assert_eq!(template.method(), "PUT");
    }

    #[test]
    fn bearer_is_sent_and_never_shown() {
        let mut head = RequestHead { bearer: Some(Secret("s3cret".into())), ..RequestHead::default() };
        assert!(text(&head, true).contains("\r\nAuthorization: Bearer s3cret\r\n"));
        head.bearer = Some(Secret("s3cret\r\nX: y".into()));
        let message = refused(&head, "/");
        assert!(message.contains("line break") && !message.contains("s3cret"), "{message}");
    }

    #[test]
    fn digest_fields_carry_number_and_digest() {
        let head = RequestHead { body_digest: true, ..RequestHead::default() };
        assert!(text(&head, true).contains("X-Ringload-Record: 7\r\nX-Ringload-Xxh3: 00000000000000ab\r\n\r\n"));
        assert!(!text(&head, false).contains("X-Ringload"));
        let head = RequestHead { body_digest: true, ..with_headers(&[("x-ringload-xxh3", "0")]) };
        assert!(refused(&head, "/").contains("x-ringload-xxh3"));
    }

    #[test]
    fn what_would_break_the_framing_is_refused_by_name() {
        for name in ["Content-Length", "transfer-encoding"] {
            assert!(refused(&with_headers(&[(name, "5")]), "/").contains(name));
        }
        assert!(refused(&with_headers(&[("X", "a\r\nY: b")]), "/").contains("line break"));
        assert!(refused(&with_headers(&[("X", "a\0")]), "/").contains("NUL"));
        assert!(refused(&with_headers(&[("X Y", "a")]), "/").contains("X Y"));
        for path in ["x", "/a b", "/a\r\nHost: b", "/a#b", "", "/\u{7f}"] {
            assert!(refused(&RequestHead::default(), path).contains("path"), "{path:?}");
        }
        for method in ["GE T", "", "CONNECT", "G\r\n"] {
            let head = RequestHead { method: Some(method.into()), ..RequestHead::default() };
            assert!(refused(&head, "/").contains("method"), "{method:?}");
        }
        let long = "x".repeat(limits::REQUEST_HEAD_BYTES_MAX);
        assert!(refused(&with_headers(&[("X", &long)]), "/").contains("at most 16384"));
    }

    #[test]
    fn path_bytes_outside_ascii_are_percent_encoded() {
        let template = HeadTemplate::new(&target("/caf\u{e9}?q=%zz"), &RequestHead::default(), true, None).unwrap();
        assert!(written(&template, 1).starts_with("POST /caf%C3%A9?q=%zz HTTP/1.1\r\n"));
        let options = RequestHead { method: Some("OPTIONS".into()), ..RequestHead::default() };
        let template = HeadTemplate::new(&target("*"), &options, false, None).unwrap();
        assert!(written(&template, 0).starts_with("OPTIONS * HTTP/1.1\r\n"));
    }

    #[test]
    fn head_is_told_from_other_methods() {
        let head = |m: &str| RequestHead { method: Some(m.into()), ..RequestHead::default() };
        assert!(HeadTemplate::new(&target("/"), &head("HEAD"), false, None).unwrap().method_is_head());
        assert!(!HeadTemplate::new(&target("/"), &head("GET"), false, None).unwrap().method_is_head());
    }

    #[test]
    fn header_flag_splits_at_the_first_colon() {
        let parse = |text: &str| parse_header_flag(text).map_err(|e| e.to_string());
        assert_eq!(parse("Cookie: a=1; b=2:3"), Ok(("Cookie".into(), "a=1; b=2:3".into())));
        assert_eq!(parse("User-Agent:"), Ok(("User-Agent".into(), String::new())));
        for text in ["no colon", ": x", "a b: c", "a: b\nc: d", "a : b", "a: \0"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_length_record_and_digest_is_written_as_the_standard_library_would(
            length: u64, record: u32, digest: u64
        ) {
            let head = RequestHead { body_digest: true, ..RequestHead::default() };
            let template = HeadTemplate::new(&target("/"), &head, true, None).unwrap();
            let mut out = vec![0; template.bytes_max()];
            let n = template.write(&mut out, length, RecordId(record), digest);
            let text = String::from_utf8(out[..n].to_vec()).unwrap();
            let tail = format!(
                "Content-Length: {length}\r\nX-Ringload-Record: {record}\r\nX-Ringload-Xxh3: {digest:016x}\r\n\r\n"
            );
            prop_assert!(text.ends_with(&tail));
        }

        #[test]
        fn any_header_is_refused_or_stays_one_line(name in "\\PC{0,12}", value: String) {
            let head = RequestHead { headers: vec![(name, value)], ..RequestHead::default() };
            if let Ok(template) = HeadTemplate::new(&target("/"), &head, false, None) {
                let text = written(&template, 0);
                let lines: Vec<_> = text.split("\r\n").collect();
                prop_assert!(lines.len() <= 7, "{}", text);
                prop_assert!(text.ends_with("\r\n\r\n"));
                prop_assert!(lines.iter().all(|line| !line.contains(['\r', '\n', '\0'])));
            }
        }
    }
}
