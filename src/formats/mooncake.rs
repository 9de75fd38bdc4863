//! `mooncake_trace`: one JSON object a line, with a time and exactly one of four contents.
//!
//! | field | meaning |
//! | --- | --- |
//! | `payload` | the body, sent with the very bytes that it has in the file |
//! | `messages`, `tools` | spliced into a formatted body |
//! | `text_input` | the prompt of a formatted body |
//! | `input_length`, `hash_ids` | a prompt to synthesize: tokens, and the ids of its blocks |
//! | `timestamp`, `delay` | milliseconds, fractions allowed |
//! | `session_id`, `output_length`, `extra` | session, cap of the output, members merged last into a formatted body |

use std::borrow::Cow;

use super::{
    ReadOptions, facts,
    fields::{Fields, Read, Stop, keys_seen, messages, wrong},
};
use crate::data::{
    json::Value,
    record::{Content, Payload, Record, Sink},
};

/// Every field of the format.
pub(super) const NAMES: [&str; 12] = [
    "type",
    "timestamp",
    "delay",
    "session_id",
    "output_length",
    "payload",
    "messages",
    "tools",
    "text_input",
    "input_length",
    "hash_ids",
    "extra",
];
/// The fields that say what to send.
const CONTENTS: [&str; 4] = ["input_length", "text_input", "messages", "payload"];

pub(super) fn line(options: &ReadOptions, number: u64, line: &[u8], sink: &mut dyn Sink) -> Read<()> {
    let fields = Fields::parse(&NAMES, line)?;
    if let Some(kind) = fields.get("type")
        && kind.string().as_deref() != Some("mooncake_trace")
    {
        return Err(wrong("type", kind, "\"mooncake_trace\" or no type"));
    }
    let mut block_ids = Vec::new();
    let mut record = Record::new(number, payload(&fields, line, &mut block_ids)?);
    if let Payload::Verbatim(Cow::Borrowed(body)) = record.payload {
        record.facts = Some(facts::of(body));
    }
    record.due_ns = fields.time_ns("timestamp", 6)?;
    record.delay_ns = fields.time_ns("delay", 6)?;
    record.session = fields.label("session_id")?.or(options.session.as_deref().map(Cow::Borrowed));
    record.output_tokens = fields.tokens("output_length")?.or_else(|| record.facts.as_ref().and_then(|f| f.output_cap));
    record.extra = fields.object("extra")?.map(|v| Cow::Borrowed(v.bytes()));
    Ok(sink.record(record)?)
}

/// The one content of a line.
fn payload<'a>(fields: &Fields<'a, 12>, line: &[u8], block_ids: &mut Vec<u64>) -> Read<Payload<'a>> {
    let there: Vec<_> = CONTENTS.into_iter().filter(|name| fields.has(name)).collect();
    let &[content] = there.as_slice() else {
        let seen =
            if there.is_empty() { "none is there".to_owned() } else { format!("{} are there", there.join(" and ")) };
        let keys = if there.is_empty() { format!("; {}", keys_seen(line)) } else { String::new() };
        return Err(Stop::Bad(format!("expected exactly one of {}, {seen}{keys}", CONTENTS.join(", "))));
    };
    for (only, with) in [("hash_ids", "input_length"), ("tools", "messages")] {
        if content != with && fields.has(only) {
            return Err(Stop::Bad(format!("{only} is given beside {content}, expected it only with {with}")));
        }
    }
    Ok(match content {
        "payload" => {
            let body = fields.object("payload")?.filter(|v| v.members().next().is_some());
            let body = body.ok_or_else(|| Stop::bad("payload is {}, expected an object with members"))?;
            Payload::Verbatim(Cow::Borrowed(body.bytes()))
        }
        "messages" => {
            let array = fields.get("messages");
            array.map(|v| messages("messages", v)).transpose()?;
            Payload::Messages { messages: bytes(array), tools: tools(fields)? }
        }
        "text_input" => Payload::Content(Content::text(fields.string("text_input")?.unwrap_or_default())),
        _ => {
            let input_tokens = fields.tokens("input_length")?.unwrap_or_default();
            if let Some(ids) = fields.array("hash_ids")? {
                hash_ids(ids, block_ids)?;
            }
            Payload::Lengths { input_tokens, block_ids: Cow::Owned(std::mem::take(block_ids)) }
        }
    })
}

fn bytes(value: Option<Value<'_>>) -> Cow<'_, [u8]> {
    Cow::Borrowed(value.map_or(b"[]", Value::bytes))
}

fn tools<'a, const N: usize>(fields: &Fields<'a, N>) -> Read<Option<Cow<'a, [u8]>>> {
    match fields.array("tools")? {
        Some(v) if v.elements().next().is_none() => Err(wrong("tools", v, "at least one tool")),
        other => Ok(other.map(|v| Cow::Borrowed(v.bytes()))),
    }
}

/// Block ids of any trace: whole numbers of up to 64 bits.
pub(super) fn hash_ids(ids: Value<'_>, out: &mut Vec<u64>) -> Read<()> {
    // Nearly every element is a few plain digits: cut them without going through the general value.
    for id in ids.elements() {
        let plain = id.bytes().iter().try_fold(0u64, |n, c| match c {
            b'0'..=b'9' => n.checked_mul(10)?.checked_add(u64::from(c - b'0')),
            _ => None,
        });
        match plain.or_else(|| id.integer().and_then(|n| u64::try_from(n).ok())) {
            Some(n) => out.push(n),
            None => return Err(wrong(&format!("hash_ids[{}]", out.len()), id, "a whole number from 0 to 2^64-1")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Format, testing::*};
    use super::*;

    fn one(text: &str) -> Record<'static> {
        let mut kept = lines(Format::MooncakeTrace, text.as_bytes());
        assert_eq!(kept.bad, Vec::<String>::new());
        kept.records.remove(0)
    }

    fn refused(text: &str) -> String {
        let kept = lines(Format::MooncakeTrace, text.as_bytes());
        assert!(kept.records.is_empty(), "{text}");
        kept.bad[0].clone()
    }

    #[test]
    fn all_variants() {
        let r = one(r#"{"timestamp": 12.5, "input_length": 700, "output_length": 20, "hash_ids": [4, 9]}"#);
        assert_eq!(r.payload, Payload::Lengths { input_tokens: 700, block_ids: Cow::Borrowed(&[4, 9]) });
        assert_eq!((r.due_ns, r.output_tokens), (Some(12_500_000), Some(20)));
        let r = one(r#"{"text_input":"h\u00e9llo","delay":1,"session_id":"s","extra":{ "a":1}}"#);
        assert_eq!(r.payload, Payload::Content(Content::text("héllo")));
        assert_eq!((r.delay_ns, r.session.as_deref()), (Some(1_000_000), Some("s")));
        assert_eq!(r.extra.as_deref(), Some(&br#"{ "a":1}"#[..]));
        let r = one(r#"{"messages":[{"role":"user" ,"content":"hi"}],"tools":[{"a":1}],"session_id":7}"#);
        let messages = Cow::Borrowed(&br#"[{"role":"user" ,"content":"hi"}]"#[..]);
        assert_eq!(r.payload, Payload::Messages { messages, tools: Some(Cow::Borrowed(br#"[{"a":1}]"#)) });
        assert_eq!(r.session.as_deref(), Some("7"));
        let r = one(r#"{"payload":{"prompt": "x","max_tokens":7, "z":1.10},"timestamp":0}"#);
        assert_eq!(r.payload, Payload::Verbatim(Cow::Borrowed(br#"{"prompt": "x","max_tokens":7, "z":1.10}"#)));
        assert_eq!(r.output_tokens, Some(7));
    }

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        assert_eq!(
            one(r#"{"timestamp":1700000000000.123456,"input_length":1}"#).due_ns,
            Some(1_700_000_000_000_123_456)
        );
    }

    #[test]
    fn every_refusal_names_field_value_and_what_was_expected() {
        for (text, want) in [
            (r#"{"input_length":-3}"#, "f:1: input_length is -3, expected 0..=16777216"),
            (r#"{"input_length":10.5}"#, "f:1: input_length is 10.5, expected 0..=16777216"),
            (
                r#"{"timestamp":-5,"payload":{"a":1}}"#,
                "f:1: timestamp is -5, expected milliseconds from 0 to 18446744073709",
            ),
            (r#"{"timestamp":1e400,"payload":{"a":1}}"#, "f:1: timestamp is 1e400, expected milliseconds"),
            (r#"{"timestamp":-0.1,"payload":{"a":1}}"#, "f:1: timestamp is -0.1, expected"),
            (r#"{"foo":1}"#, "none is there; keys seen: foo"),
            ("{}", "none is there; no keys at all"),
            (r#"{"input_length":1,"payload":{"a":1}}"#, "input_length and payload are there"),
            (
                r#"{"text_input":"a","hash_ids":[1]}"#,
                "hash_ids is given beside text_input, expected it only with input_length",
            ),
            (r#"{"input_length":9,"hash_ids":[1,-2]}"#, "hash_ids[1] is -2, expected a whole number"),
            (r#"{"payload":{}}"#, "payload is {}, expected an object with members"),
            (r#"{"payload":"x"}"#, "payload is \"x\", expected an object"),
            (r#"{"messages":[]}"#, "messages is [], expected at least one message"),
            (r#"{"messages":[{"content":"x"}]}"#, r#"messages[0] is {"content":"x"}, expected a role in it"#),
            (r#"{"type":"x","input_length":1}"#, "type is \"x\", expected \"mooncake_trace\""),
            (r#"{"timestamp":"0","input_length":1}"#, "timestamp is \"0\", expected milliseconds"),
            ("[1]", "f:1: an array, expected a JSON object"),
        ] {
            let got = refused(text);
            assert!(got.contains(want), "{text}\n got {got}\nwant {want}");
        }
    }
}
