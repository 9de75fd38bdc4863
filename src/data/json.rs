//! JSON as bytes: one pass that checks a text and shows its members, and borrowed values cut from a checked text.
//!
//! Owns the grammar of RFC 8259 on byte slices. Promises: no value tree, no allocation but for unescaped strings, no recursion
//! deeper than [`DEPTH_MAX`], no panic on any bytes. A text that passes is valid UTF-8. Numbers are kept as text, so that none
//! loses a digit; duplicate members are all shown, in order.
//!
//! This file is long because the scanner, its fast paths and its errors are one automaton.

use std::borrow::Cow;

/// Nesting of arrays and objects. Bodies that people send have less than 20; the bound keeps the recursion's stack small.
pub const DEPTH_MAX: u32 = 256;

/// Why a text is no JSON, and at which byte of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// Offset of the byte that cannot be, from 0; the text's length when it ends too early.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// Sees each member of each object, after its value was checked: inner ones before the outer one that holds them.
pub trait Visit<'a> {
    /// One member. `depth` is 1 for members of an outermost object; `key` is the text between its quotes, still escaped;
    /// `value` has no space around it.
    fn member(&mut self, depth: u32, key: &'a [u8], value: Value<'a>);
}

/// Sees nothing: for a check alone.
impl Visit<'_> for () {
    #[inline]
    fn member(&mut self, _: u32, _: &[u8], _: Value<'_>) {}
}

/// Checks that a text is one JSON value with nothing but space around it, and shows every member of it. Gives the value.
pub fn walk<'a, V: Visit<'a>>(text: &'a [u8], visit: &mut V) -> Result<Value<'a>, JsonError> {
    let mut scan = Scan { text, at: 0, high: 0 };
    scan.space();
    let start = scan.at;
    scan.value(1, visit)?;
    let end = scan.at;
    scan.space();
    if scan.at < text.len() {
        return Err(scan.error("expected nothing after the value"));
    }
    scan.utf8()?;
    Ok(Value(&text[start..end]))
}

/// Checks a text and shows the members of its outermost object only; any other value is an error.
pub fn object<'a>(text: &'a [u8], mut member: impl FnMut(&'a [u8], Value<'a>)) -> Result<Value<'a>, JsonError> {
    struct Top<F>(F);
    impl<'a, F: FnMut(&'a [u8], Value<'a>)> Visit<'a> for Top<F> {
        #[inline]
        fn member(&mut self, depth: u32, key: &'a [u8], value: Value<'a>) {
            if depth == 1 {
                (self.0)(key, value);
            }
        }
    }
    let value = walk(text, &mut Top(&mut member))?;
    match value.kind() {
        Kind::Object => Ok(value),
        _ => Err(JsonError { at: 0, what: "expected a JSON object" }),
    }
}

/// Reads one value from the start of a text that may go on or break off: the value's end, or none when it is cut short.
pub fn value_end(text: &[u8], from: usize) -> Result<Option<usize>, JsonError> {
    let mut scan = Scan { text, at: from, high: 0 };
    scan.space();
    match scan.value(1, &mut ()) {
        // A number or word at the very end may go on in what is not there yet.
        Ok(()) if scan.at == text.len() && !matches!(text.last(), Some(b'}' | b']' | b'"')) => Ok(None),
        Ok(()) => Ok(Some(scan.at)),
        Err(e) if e.at >= text.len() => Ok(None),
        Err(e) => Err(e),
    }
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number
    Number,
    /// A string
    String,
    /// An array
    Array,
    /// An object
    Object,
}

impl Kind {
    /// The word for it, with its article.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        }
    }
}

/// A value inside a checked text: its bytes, with no space around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<'a>(&'a [u8]);

impl<'a> Value<'a> {
    /// Checks a text that holds one value.
    pub fn parse(text: &'a [u8]) -> Result<Self, JsonError> {
        walk(text, &mut ())
    }

    /// The bytes as they stand in the text.
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The bytes as text; a checked text is UTF-8.
    pub fn text(self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }

    /// What it is, by its first byte.
    pub fn kind(self) -> Kind {
        match self.0.first() {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'"') => Kind::String,
            Some(b't' | b'f') => Kind::Bool,
            Some(b'n') | None => Kind::Null,
            _ => Kind::Number,
        }
    }

    /// True for `null`.
    pub fn is_null(self) -> bool {
        self.kind() == Kind::Null
    }

    /// A boolean's value.
    pub fn bool(self) -> Option<bool> {
        match self.0 {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }
    }

    /// A string's text, unescaped; a lone surrogate becomes U+FFFD.
    pub fn string(self) -> Option<Cow<'a, str>> {
        match self.0 {
            [b'"', inner @ .., b'"'] => Some(unescape(inner)),
            _ => None,
        }
    }

    /// A whole number: `12`, also written `12.0` or `1.2e1`. None for what is not whole, not a number or beyond 128 bits.
    pub fn integer(self) -> Option<i128> {
        let d = Decimal::parse(self.0)?;
        d.scaled(0).filter(|&(_, exact)| exact).map(|(n, _)| if d.negative { -n } else { n })
    }

    /// A number times `10^shift`, rounded half up to a whole: a time in milliseconds with shift 6 is nanoseconds, exactly.
    pub fn scaled(self, shift: i32) -> Option<i128> {
        let d = Decimal::parse(self.0)?;
        d.scaled(shift).map(|(n, _)| if d.negative { -n } else { n })
    }

    /// Members of an object in order, keys unescaped; nothing for another kind.
    pub fn members(self) -> impl Iterator<Item = (Cow<'a, str>, Value<'a>)> {
        Items::new(self, Kind::Object).map(|(key, value)| (unescape(key), value))
    }

    /// The last member of that name, as most parsers keep it.
    pub fn member(self, name: &str) -> Option<Value<'a>> {
        Items::new(self, Kind::Object).filter(|(key, _)| key_is(key, name)).last().map(|(_, value)| value)
    }

    /// Elements of an array in order; nothing for another kind.
    pub fn elements(self) -> impl Iterator<Item = Value<'a>> {
        Items::new(self, Kind::Array).map(|(_, value)| value)
    }
}

/// True when a still escaped key means `name`.
#[inline]
pub fn key_is(key: &[u8], name: &str) -> bool {
    key == name.as_bytes() || (key.contains(&b'\\') && unescape(key) == name)
}

/// The text of what stands between two quotes. Borrowed when there is no escape in it.
pub fn unescape(inner: &[u8]) -> Cow<'_, str> {
    if memchr::memchr(b'\\', inner).is_none() {
        return String::from_utf8_lossy(inner);
    }
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.push_str(&String::from_utf8_lossy(&rest[..at]));
        let used = match rest.get(at + 1) {
            Some(b'u') => {
                let (c, used) = unicode(&rest[at..]);
                out.push(c);
                used
            }
            Some(&c) => {
                out.push(match c {
                    b'b' => '\u{8}',
                    b'f' => '\u{c}',
                    b'n' => '\n',
                    b'r' => '\r',
                    b't' => '\t',
                    other => char::from(other),
                });
                2
            }
            None => 1,
        };
        rest = &rest[(at + used).min(rest.len())..];
    }
    out.push_str(&String::from_utf8_lossy(rest));
    Cow::Owned(out)
}

/// The character of a `\uXXXX` at the start of `text`, a surrogate pair taken together, and the bytes it took.
fn unicode(text: &[u8]) -> (char, usize) {
    let unit = |at: usize| {
        let digits = text.get(at + 2..at + 6).filter(|_| text.get(at..at + 2) == Some(br"\u"))?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    match (unit(0), unit(6)) {
        (Some(high @ 0xD800..0xDC00), Some(low @ 0xDC00..0xE000)) => {
            let code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
            (char::from_u32(code).unwrap_or('\u{FFFD}'), 12)
        }
        (Some(code), _) => (char::from_u32(code).unwrap_or('\u{FFFD}'), 6),
        (None, _) => ('\u{FFFD}', 2),
    }
}

/// Appends a string with its quotes, escaped as little as the grammar allows: `"`, `\` and control characters.
pub fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    push_escaped(out, text.as_bytes());
    out.push(b'"');
}

/// Appends what stands between the quotes of a string.
pub fn push_escaped(out: &mut Vec<u8>, text: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut rest = text;
    loop {
        let (plain, _) = plain_run(rest);
        out.extend_from_slice(&rest[..plain]);
        let Some(&c) = rest.get(plain) else { return };
        match c {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', c]),
            b'\n' => out.extend_from_slice(br"\n"),
            b'\r' => out.extend_from_slice(br"\r"),
            b'\t' => out.extend_from_slice(br"\t"),
            8 => out.extend_from_slice(br"\b"),
            12 => out.extend_from_slice(br"\f"),
            _ => out.extend_from_slice(&[b'\\', b'u', b'0', b'0', HEX[usize::from(c >> 4)], HEX[usize::from(c & 15)]]),
        }
        rest = &rest[plain + 1..];
    }
}

/// A number's digits and exponent, as they are written.
struct Decimal<'a> {
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
}

impl<'a> Decimal<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        let (negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            _ => (false, text),
        };
        let (mantissa, exponent) = match text.iter().position(|c| matches!(c, b'e' | b'E')) {
            Some(e) => (&text[..e], std::str::from_utf8(&text[e + 1..]).ok()?),
            None => (text, "0"),
        };
        // An exponent too long for 64 bits is as good as the largest that fits: both are out of every range.
        let exponent = exponent.parse().unwrap_or(if exponent.starts_with('-') { i64::MIN / 4 } else { i64::MAX / 4 });
        let (whole, fraction) = match mantissa.iter().position(|&c| c == b'.') {
            Some(dot) => (&mantissa[..dot], &mantissa[dot + 1..]),
            None => (mantissa, &mantissa[..0]),
        };
        let digits = |s: &[u8]| s.iter().all(u8::is_ascii_digit);
        (!whole.is_empty() && digits(whole) && digits(fraction)).then_some(Self { negative, whole, fraction, exponent })
    }

    /// The magnitude times `10^shift`, rounded half up, and whether nothing was rounded.
    fn scaled(&self, shift: i32) -> Option<(i128, bool)> {
        let point = self.exponent.checked_add(i64::from(shift))?.checked_add(self.whole.len() as i64)?;
        let (mut n, mut exact, mut half) = (0i128, true, false);
        let digits = self.whole.iter().chain(self.fraction).map(|c| c - b'0');
        let count = (self.whole.len() + self.fraction.len()) as i64;
        for (i, digit) in (0i64..).zip(digits) {
            if i < point {
                n = n.checked_mul(10)?.checked_add(i128::from(digit))?;
            } else {
                half |= i == point && digit >= 5;
                exact &= digit == 0;
            }
        }
        if n != 0 {
            for _ in count..point {
                n = n.checked_mul(10)?;
            }
        }
        Some((n + i128::from(half), exact))
    }
}

/// Walks the items of an array or object whose text was checked before.
struct Items<'a> {
    scan: Scan<'a>,
    object: bool,
}

impl<'a> Items<'a> {
    fn new(value: Value<'a>, kind: Kind) -> Self {
        let text = if value.kind() == kind { &value.0[1..] } else { &[] };
        Self { scan: Scan { text, at: 0, high: 0 }, object: kind == Kind::Object }
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = (&'a [u8], Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let s = &mut self.scan;
        s.space();
        if s.peek() == Some(b',') {
            s.at += 1;
            s.space();
        }
        if matches!(s.peek(), None | Some(b']' | b'}')) {
            return None;
        }
        let key = if self.object {
            let key = s.string().ok()?;
            s.space();
            s.at += 1;
            s.space();
            key
        } else {
            &[]
        };
        let start = s.at;
        s.value(1, &mut ()).ok()?;
        Some((key, Value(&s.text[start..s.at])))
    }
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    /// Or of every byte inside strings: its top bit says whether UTF-8 must be looked at.
    high: u8,
}

impl<'a> Scan<'a> {
    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    #[cold]
    fn error(&self, what: &'static str) -> JsonError {
        JsonError {
            at: self.at.min(self.text.len()),
            what: if self.at < self.text.len() { what } else { "ends too early" },
        }
    }

    #[inline]
    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn utf8(&self) -> Result<(), JsonError> {
        if self.high & 0x80 == 0 {
            return Ok(());
        }
        std::str::from_utf8(self.text)
            .map(|_| ())
            .map_err(|e| JsonError { at: e.valid_up_to(), what: "bytes that are no UTF-8" })
    }

    fn value<V: Visit<'a>>(&mut self, depth: u32, visit: &mut V) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'"') => self.string().map(|_| ()),
            Some(b'{') => self.object(depth, visit),
            Some(b'[') => self.array(depth, visit),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word(b"true"),
            Some(b'f') => self.word(b"false"),
            Some(b'n') => self.word(b"null"),
            _ => Err(self.error("expected a JSON value")),
        }
    }

    fn object<V: Visit<'a>>(&mut self, depth: u32, visit: &mut V) -> Result<(), JsonError> {
        if depth > DEPTH_MAX {
            return Err(self.error("nested too deep"));
        }
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a key in double quotes"));
            }
            let key = self.string()?;
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.error("expected `:` after a key"));
            }
            self.at += 1;
            self.space();
            let start = self.at;
            self.value(depth + 1, visit)?;
            visit.member(depth, key, Value(&self.text[start..self.at]));
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.error("expected `,` or `}`")),
            }
            self.space();
        }
    }

    fn array<V: Visit<'a>>(&mut self, depth: u32, visit: &mut V) -> Result<(), JsonError> {
        if depth > DEPTH_MAX {
            return Err(self.error("nested too deep"));
        }
        self.at += 1;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(depth + 1, visit)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.error("expected `,` or `]`")),
            }
            self.space();
        }
    }

    fn word(&mut self, word: &'static [u8]) -> Result<(), JsonError> {
        for &c in word {
            if self.peek() != Some(c) {
                return Err(self.error("expected a JSON value"));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.error("expected a digit"));
        }
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// Reads a string from its opening quote on; gives what stands between the quotes.
    fn string(&mut self) -> Result<&'a [u8], JsonError> {
        self.at += 1;
        let start = self.at;
        loop {
            let (plain, high) = plain_run(&self.text[self.at.min(self.text.len())..]);
            self.at += plain;
            self.high |= high;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(&self.text[start..self.at - 1]);
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return Err(self.error("a control character in a string, expected it escaped")),
                None => return Err(self.error("")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !matches!(self.peek(), Some(c) if c.is_ascii_hexdigit()) {
                        return Err(self.error("expected four hexadecimal digits after \\u"));
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.error("no such escape in JSON")),
        }
        Ok(())
    }
}

/// How many bytes at the start of `text` are neither `"`, `\` nor a control character, and the or of at least those bytes.
///
/// The step of 32 compiles to vector compares; the step of 8 finds the byte inside it.
#[inline]
fn plain_run(text: &[u8]) -> (usize, u8) {
    let (mut at, mut high) = (0, 0u8);
    while let Some(step) = text.get(at..at + 32) {
        let (mut stop, mut or) = (0u8, 0u8);
        for &c in step {
            stop |= u8::from(c == b'"') | u8::from(c == b'\\') | u8::from(c < 0x20);
            or |= c;
        }
        if stop != 0 {
            break;
        }
        high |= or;
        at += 32;
    }
    while let Some(step) = text.get(at..at + 8) {
        let Ok(step) = <[u8; 8]>::try_from(step) else { break };
        let word = u64::from_le_bytes(step);
        let stop = stops(word);
        high |= (word & 0x8080_8080_8080_8080 != 0) as u8 * 0x80;
        if stop != 0 {
            return (at + (stop.trailing_zeros() / 8) as usize, high);
        }
        at += 8;
    }
    while let Some(&c) = text.get(at) {
        if c == b'"' || c == b'\\' || c < 0x20 {
            break;
        }
        high |= c;
        at += 1;
    }
    (at, high)
}

/// The top bit of each byte of `word` that is `"`, `\` or below 0x20; of those, the lowest is exact.
#[inline]
fn stops(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    let zero = |x: u64| x.wrapping_sub(ONES) & !x & TOPS;
    let quote = zero(word ^ (ONES * b'"' as u64));
    let slash = zero(word ^ (ONES * b'\\' as u64));
    let control = word.wrapping_sub(ONES * 0x20) & !word & TOPS;
    quote | slash | control
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn valid(text: &[u8]) -> bool {
        walk(text, &mut ()).is_ok()
    }

    #[test]
    fn grammar_as_a_reference_parser_sees_it() {
        let good: &[&str] = &[
            "{}",
            "[]",
            "null",
            "true",
            "-0",
            "0.5e-3",
            "1E400",
            r#""a\u00e9\ud800""#,
            r#" { "a" : [ 1 , {"b":null} ] } "#,
            "\"é\"",
            "0",
            r#"{"a":1,"a":2}"#,
            r#""\/\b\f\n\r\t\"\\""#,
        ];
        let bad: &[&str] = &[
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "-",
            "nul",
            "NaN",
            "Infinity",
            "\"\n\"",
            r#""\x""#,
            r#""\u12g4""#,
            "\"",
            "{\"a\"}",
            "[1 2]",
            "{} {}",
            "'a'",
            "[",
            "{\"a\":",
            "tru",
            "{\"a\" 1}",
            "\u{feff}{}",
        ];
        for text in good {
            assert!(valid(text.as_bytes()), "{text}");
        }
        for text in bad {
            assert!(!valid(text.as_bytes()), "{text}");
        }
        assert_eq!(walk(b"\"\xff\"", &mut ()).unwrap_err().at, 1);
        assert!(!valid(&b"[".repeat(100_000)), "deep nesting is an error, not a stack overflow");
        assert!(valid(&[b"[".repeat(DEPTH_MAX as usize), b"]".repeat(DEPTH_MAX as usize)].concat()));
    }

    #[test]
    fn errors_point_at_the_byte() {
        assert_eq!(walk(br#"{"a":"#, &mut ()), Err(JsonError { at: 5, what: "ends too early" }));
        assert_eq!(walk(br#"{"a":1]"#, &mut ()).unwrap_err().at, 6);
        assert_eq!(walk(br#"{"a":x}"#, &mut ()).unwrap_err().at, 5);
    }

    #[test]
    fn numbers_keep_every_digit() {
        let value = |t: &'static str| Value::parse(t.as_bytes()).unwrap();
        assert_eq!(value("4634343214213523454").integer(), Some(4_634_343_214_213_523_454));
        assert_eq!(value("-3").integer(), Some(-3));
        assert_eq!(value("12.0").integer(), Some(12));
        assert_eq!(value("1.2e1").integer(), Some(12));
        assert_eq!(value("1200e-2").integer(), Some(12));
        assert_eq!(value("10.5").integer(), None);
        assert_eq!(value("\"10\"").integer(), None);
        assert_eq!(value("1e400").integer(), None);
        assert_eq!(value("0e400").integer(), Some(0));
        assert_eq!(value("1e99999999999999999999").scaled(6), None);
        assert_eq!(value("1e-99999999999999999999").scaled(6), Some(0));
        assert_eq!(value("1700000000000.123456").scaled(6), Some(1_700_000_000_000_123_456));
        assert_eq!(value("0.0000005").scaled(6), Some(1));
        assert_eq!(value("-0.4").scaled(0), Some(0));
        assert_eq!(value("5e-7").scaled(6), Some(1));
    }

    #[test]
    fn members_and_elements_are_cut_verbatim() {
        let value = Value::parse(br#"{ "a" : 1.10 , "b\u0063":[ 1, "x" ,{} ],"a":2}"#).unwrap();
        let seen: Vec<_> = value.members().map(|(k, v)| (k.into_owned(), v.text().into_owned())).collect();
        let want = [("a", "1.10"), ("bc", r#"[ 1, "x" ,{} ]"#), ("a", "2")];
        assert_eq!(seen, want.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(value.member("a").and_then(Value::integer), Some(2));
        let elements: Vec<_> = value.member("bc").unwrap().elements().map(|v| v.text().into_owned()).collect();
        assert_eq!(elements, ["1", "\"x\"", "{}"]);
        assert_eq!(value.member("a").unwrap().elements().count(), 0);
    }

    #[test]
    fn a_value_that_breaks_off_is_told_from_one_that_cannot_be() {
        assert_eq!(value_end(br#" {"a":1} x"#, 0), Ok(Some(8)));
        assert_eq!(value_end(br#"{"a":"#, 0), Ok(None));
        assert_eq!(value_end(b"12", 0), Ok(None));
        assert_eq!(value_end(b"tru", 0), Ok(None));
        assert!(value_end(br#"{"a"x"#, 0).is_err());
    }

    proptest! {
        #[test]
        fn same_verdict_and_strings_as_serde_json(text in r#"[\[\]{}:,"\\ a-cé0-9.eE+\-u\ntrlfs]{0,40}"#) {
            // serde_json refuses only two things that the grammar allows: lone surrogates and numbers beyond a float.
            let theirs = serde_json::from_str::<serde_json::Value>(&text);
            match theirs {
                Ok(_) => prop_assert!(valid(text.as_bytes()), "{text}"),
                Err(e) if e.to_string().contains("surrogate") || e.to_string().contains("out of range") || e.to_string().contains("hex escape") => {}
                Err(e) => prop_assert!(!valid(text.as_bytes()), "{text}: {e}"),
            }
        }

        #[test]
        fn strings_survive_escaping(text in any::<String>()) {
            let mut out = Vec::new();
            push_string(&mut out, &text);
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text.clone());
            prop_assert_eq!(Value::parse(&out).unwrap().string().unwrap(), text);
        }

        #[test]
        fn any_bytes_end_in_a_verdict(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let theirs = serde_json::from_slice::<&serde_json::value::RawValue>(&bytes).is_ok();
            prop_assert_eq!(valid(&bytes), theirs);
            let _ = value_end(&bytes, 0);
            let _ = unescape(&bytes);
        }

        #[test]
        fn runs_end_where_a_plain_loop_says(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let want = bytes.iter().position(|&c| c == b'"' || c == b'\\' || c < 0x20).unwrap_or(bytes.len());
            let (got, high) = plain_run(&bytes);
            prop_assert_eq!(got, want);
            prop_assert!(high & 0x80 != 0 || bytes[..got].is_ascii());
        }
    }
}
