//! `bailian_trace`: one JSON object a line, times in seconds, blocks of 16 tokens, sessions by the root of `parent_chat_id`.
//!
//! Lengths and blocks describe the whole prompt of a turn, so each turn is self-contained.

use std::borrow::Cow;

use super::{
    fields::{Fields, Read, Stop, keys_seen, wrong},
    mooncake::hash_ids,
};
use crate::data::record::{Link, Payload, Record, Sink};

/// Fields that the format needs in every line.
const NEEDED: [&str; 4] = ["chat_id", "timestamp", "input_length", "output_length"];

pub(super) fn line(number: u64, line: &[u8], sink: &mut dyn Sink) -> Read<()> {
    static NAMES: [&str; 7] =
        ["chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "turn", "hash_ids"];
    let fields = Fields::parse(&NAMES, line)?;
    if let Some(missing) = NEEDED.into_iter().find(|name| !fields.has(name)) {
        return Err(Stop::Bad(format!("no {missing}, which every line has; {}", keys_seen(line))));
    }
    let mut ids = Vec::new();
    if let Some(array) = fields.array("hash_ids")? {
        hash_ids(array, &mut ids)?;
    }
    let input_tokens = fields.tokens("input_length")?.unwrap_or_default();
    let mut record = Record::new(number, Payload::Lengths { input_tokens, block_ids: Cow::Owned(ids) });
    record.due_ns = fields.time_ns("timestamp", 9)?;
    record.output_tokens = fields.tokens("output_length")?;
    let id = chat(&fields, "chat_id")?.unwrap_or_default();
    let parent = match fields.get("parent_chat_id") {
        Some(value) if value.integer() == Some(-1) => None,
        _ => chat(&fields, "parent_chat_id")?,
    };
    let turn = fields.tokens("turn")?.unwrap_or(1);
    record.link = Some(Link { id, parent, turn });
    Ok(sink.record(record)?)
}

fn chat<const N: usize>(fields: &Fields<'_, N>, name: &'static str) -> Read<Option<u64>> {
    fields
        .get(name)
        .map(|v| {
            let id = v.integer().and_then(|n| u64::try_from(n).ok());
            id.ok_or_else(|| wrong(name, v, "a whole number from 0 to 2^64-1 (a parent may be -1)"))
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::super::{Format, testing::*};
    use super::*;

    #[test]
    fn a_line_is_a_prompt_and_a_link() {
        let text = br#"{"chat_id":7,"parent_chat_id":-1,"timestamp":0.5,"input_length":40,"output_length":6,"type":"text","turn":1,"hash_ids":[1,2,3]}
{"chat_id":8,"parent_chat_id":7,"timestamp":61.114,"input_length":41,"output_length":0,"type":"search","turn":2}"#;
        let kept = lines(Format::BailianTrace, text);
        assert_eq!(kept.bad, Vec::<String>::new());
        let [a, b] = &kept.records[..] else { panic!() };
        assert_eq!(a.payload, Payload::Lengths { input_tokens: 40, block_ids: Cow::Borrowed(&[1, 2, 3]) });
        assert_eq!((a.due_ns, a.output_tokens), (Some(500_000_000), Some(6)));
        assert_eq!(a.link, Some(Link { id: 7, parent: None, turn: 1 }));
        assert_eq!((b.due_ns, b.link), (Some(61_114_000_000), Some(Link { id: 8, parent: Some(7), turn: 2 })));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let kept = lines(
            Format::BailianTrace,
            b"{\"chat_id\":1,\"timestamp\":1,\"input_length\":2}\n{\"chat_id\":-2,\"timestamp\":1,\"input_length\":2,\"output_length\":1}",
        );
        assert_eq!(
            kept.bad[0],
            "f:1: no output_length, which every line has; keys seen: chat_id, timestamp, input_length"
        );
        assert!(kept.bad[1].starts_with("f:2: chat_id is -2, expected a whole number"), "{}", kept.bad[1]);
    }
}
