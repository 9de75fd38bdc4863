//! Fields of a record out of JSON, each with the text of what is wrong: name, value, what was expected.

use std::borrow::Cow;

use crate::data::{
    Error,
    json::{self, JsonError, Value},
    limits,
};

/// Why a record was not taken: it is bad, or everything ends.
pub(super) enum Stop {
    /// This record; the text says field, value and what was expected.
    Bad(String),
    /// The whole parse, as the sink says.
    End(Error),
}

impl Stop {
    pub(super) fn bad(what: impl Into<String>) -> Self {
        Self::Bad(what.into())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::End(error)
    }
}

pub(super) type Read<T> = Result<T, Stop>;

/// A value as an error shows it: its first characters, and what it is when that cannot be seen.
pub(super) fn shown(value: Value<'_>) -> String {
    const CHARS: usize = 40;
    let text = value.text();
    match text.char_indices().nth(CHARS) {
        Some((end, _)) => format!("{}... ({})", &text[..end], value.kind().name()),
        None => text.into_owned(),
    }
}

/// `name is VALUE, expected WHAT`.
pub(super) fn wrong(name: &str, value: Value<'_>, expected: &str) -> Stop {
    Stop::Bad(format!("{name} is {}, expected {expected}", shown(value)))
}

/// What is wrong with a line that is no JSON object.
pub(super) fn not_json(line: &[u8], error: JsonError, cure: &str) -> Stop {
    if error.at == 0 && error.what == "expected a JSON object" {
        let kind = Value::parse(line).map_or("no JSON", |v| v.kind().name());
        return Stop::Bad(format!("{kind}, expected a JSON object{cure}"));
    }
    if line.starts_with(b"\xff\xfe") || line.starts_with(b"\xfe\xff") {
        return Stop::Bad("this is UTF-16, expected UTF-8: `iconv -f utf-16 -t utf-8` makes it so".into());
    }
    let near = String::from_utf8_lossy(&line[error.at.min(line.len())..(error.at + 12).min(line.len())]);
    let near = if near.is_empty() { String::new() } else { format!(" (`{}`)", near.escape_debug()) };
    Stop::Bad(format!("no JSON: {} at byte {}{near}{cure}", error.what, error.at + 1))
}

/// The members of one record: the last of each known name that is not null, and whether any other was there.
pub(super) struct Fields<'a, const N: usize> {
    names: &'static [&'static str; N],
    values: [Option<Value<'a>>; N],
}

impl<'a, const N: usize> Fields<'a, N> {
    /// Checks a line and sorts its members under `names`.
    pub(super) fn parse(names: &'static [&'static str; N], line: &'a [u8]) -> Read<Self> {
        let mut values = [None; N];
        json::object(line, |key, value| {
            if let Some(at) = names.iter().position(|name| json::key_is(key, name)) {
                values[at] = (!value.is_null()).then_some(value);
            }
        })
        .map_err(|e| not_json(line, e, ""))?;
        Ok(Self { names, values })
    }

    /// The value of a name, none when absent or null. The name is one of those given.
    pub(super) fn get(&self, name: &str) -> Option<Value<'a>> {
        debug_assert!(self.names.contains(&name), "{name}");
        self.names.iter().position(|n| *n == name).and_then(|at| self.values[at])
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A count of tokens.
    pub(super) fn tokens(&self, name: &str) -> Read<Option<u32>> {
        self.get(name).map(|v| tokens(name, v)).transpose()
    }

    /// A time in units of `10^shift` nanoseconds, 0 or later.
    pub(super) fn time_ns(&self, name: &str, shift: i32) -> Read<Option<u64>> {
        self.get(name).map(|v| time_ns(name, v, shift)).transpose()
    }

    pub(super) fn string(&self, name: &str) -> Read<Option<Cow<'a, str>>> {
        self.get(name).map(|v| v.string().ok_or_else(|| wrong(name, v, "a string"))).transpose()
    }

    /// A name that people also write as a number.
    pub(super) fn label(&self, name: &str) -> Read<Option<Cow<'a, str>>> {
        self.get(name)
            .map(|v| match (v.string(), v.integer()) {
                (Some(text), _) => Ok(text),
                (None, Some(_)) => Ok(v.text()),
                (None, None) => Err(wrong(name, v, "a string")),
            })
            .transpose()
    }

    pub(super) fn object(&self, name: &str) -> Read<Option<Value<'a>>> {
        self.kind(name, json::Kind::Object)
    }

    pub(super) fn array(&self, name: &str) -> Read<Option<Value<'a>>> {
        self.kind(name, json::Kind::Array)
    }

    fn kind(&self, name: &str, kind: json::Kind) -> Read<Option<Value<'a>>> {
        match self.get(name) {
            Some(v) if v.kind() != kind => Err(wrong(name, v, &format!("{} as JSON", kind.name()))),
            other => Ok(other),
        }
    }
}

/// A count of tokens, 0 to [`limits::TOKENS_MAX`].
pub(super) fn tokens(name: &str, value: Value<'_>) -> Read<u32> {
    match value.integer() {
        Some(n) if (0..=i128::from(limits::TOKENS_MAX)).contains(&n) => Ok(n as u32),
        _ => Err(wrong(name, value, &format!("0..={}", limits::TOKENS_MAX))),
    }
}

/// A time in units of `10^shift` nanoseconds, from 0 to what 64 bits of nanoseconds hold (584 years).
pub(super) fn time_ns(name: &str, value: Value<'_>, shift: i32) -> Read<u64> {
    let unit = match shift {
        9 => "seconds",
        6 => "milliseconds",
        3 => "microseconds",
        _ => "nanoseconds",
    };
    // What rounds to 0 from below is still negative.
    let negative = value.bytes().first() == Some(&b'-') && value.scaled(shift) != Some(0);
    match value.scaled(shift) {
        Some(ns) if !negative && ns >= 0 && ns < i128::from(u64::MAX) => Ok(ns as u64),
        _ => Err(wrong(name, value, &format!("{unit} from 0 to {}", u64::MAX / 10u64.pow(shift.unsigned_abs())))),
    }
}

/// The keys of a record for an error: the first ten.
pub(super) fn keys_seen(line: &[u8]) -> String {
    const SHOWN: usize = 10;
    let Ok(value) = Value::parse(line) else { return String::new() };
    let keys: Vec<_> = value.members().map(|(key, _)| key.into_owned()).collect();
    if keys.is_empty() {
        return "no keys at all".into();
    }
    let more = keys.len().saturating_sub(SHOWN);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("keys seen: {}{tail}", keys[..keys.len().min(SHOWN)].join(", "))
}

/// Checks a `messages` array as the chat formats have it: not empty, each an object with a `role`.
pub(super) fn messages(name: &str, value: Value<'_>) -> Read<()> {
    if value.kind() != json::Kind::Array {
        return Err(wrong(name, value, "an array of messages"));
    }
    let mut count = 0;
    for (i, message) in value.elements().enumerate() {
        if message.kind() != json::Kind::Object {
            return Err(wrong(&format!("{name}[{i}]"), message, "an object with a role"));
        }
        match message.member("role") {
            Some(role) if role.kind() == json::Kind::String => {}
            Some(role) => return Err(wrong(&format!("{name}[{i}].role"), role, "a string")),
            None => return Err(wrong(&format!("{name}[{i}]"), message, "a role in it")),
        }
        count += 1;
    }
    if count == 0 { Err(wrong(name, value, "at least one message")) } else { Ok(()) }
}
