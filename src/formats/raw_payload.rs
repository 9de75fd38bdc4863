//! `raw_payload`: each line is a whole body, sent byte for byte.
//!
//! A line must be a JSON object of any API; `--verbatim-lines` takes any bytes. A directory has one session a file, named by
//! its stem; its lines are the turns in order.

use std::borrow::Cow;

use super::{
    ReadOptions, facts,
    fields::{Read, Stop, not_json},
};
use crate::data::{
    json::Kind,
    record::{Payload, Record, Sink},
};

pub(super) fn line(options: &ReadOptions, number: u64, line: &[u8], sink: &mut dyn Sink) -> Read<()> {
    let facts = if options.verbatim_lines {
        None
    } else {
        const CURE: &str = "; --verbatim-lines sends any bytes";
        let (value, facts) = facts::look(line).map_err(|e| not_json(line, e, CURE))?;
        if value.kind() != Kind::Object {
            return Err(Stop::Bad(format!("{}, expected a JSON object{CURE}", value.kind().name())));
        }
        Some(facts)
    };
    let mut record = Record::new(number, Payload::Verbatim(Cow::Borrowed(line)));
    record.session = options.session.as_deref().map(Cow::Borrowed);
    record.output_tokens = facts.as_ref().and_then(|f| f.output_cap);
    record.facts = facts;
    Ok(sink.record(record)?)
}

#[cfg(test)]
mod tests {
    use super::super::{Format, parse_lines, testing::*};
    use super::*;

    #[test]
    fn a_line_is_its_bytes_whatever_is_in_it() {
        let text = b"\xef\xbb\xbf{ \"model\": \"m\", \"n\":4634343214213523454,\"t\":1.10, \"e\":\"\\u00e9\"}\r\n\n{\"prompt\":\"x\",\"prompt\":1e5} ";
        let kept = lines(Format::RawPayload, text);
        let bodies: Vec<_> = kept.records.iter().map(|r| r.payload.clone()).collect();
        let want: [&[u8]; 2] = [
            br#"{ "model": "m", "n":4634343214213523454,"t":1.10, "e":"\u00e9"}"#,
            b"{\"prompt\":\"x\",\"prompt\":1e5} ",
        ];
        assert_eq!(bodies, want.map(|b| Payload::Verbatim(Cow::Borrowed(b))));
        assert_eq!(kept.records[1].line, 3);
        assert_eq!(kept.records[0].facts.as_ref().unwrap().model.as_deref(), Some("m"));
        assert!(kept.bad.is_empty());
    }

    #[test]
    fn what_is_no_object_is_told_with_its_place() {
        let kept = lines(Format::RawPayload, b"{}\n[1]\n{\"a\":\n\"x\"\n{\"a\":\"\xff\"}\n");
        assert_eq!(kept.records.len(), 1);
        assert_eq!(
            kept.bad,
            [
                "f:2: an array, expected a JSON object; --verbatim-lines sends any bytes",
                "f:3: no JSON: ends too early at byte 6; --verbatim-lines sends any bytes",
                "f:4: a string, expected a JSON object; --verbatim-lines sends any bytes",
                "f:5: no JSON: bytes that are no UTF-8 at byte 7 (`\u{FFFD}\\\"}`); --verbatim-lines sends any bytes",
            ]
        );
    }

    #[test]
    fn verbatim_lines_take_any_bytes_and_a_file_can_be_a_session() {
        let options = ReadOptions { verbatim_lines: true, session: Some("s".into()), ..Default::default() };
        let mut kept = Kept::default();
        parse_lines(Format::RawPayload, &options, "f", b"\xff\xfe not json\n{not json\n", 5, &mut kept).unwrap();
        assert_eq!(kept.records[0].payload, Payload::Verbatim(Cow::Borrowed(b"\xff\xfe not json")));
        assert_eq!(kept.records[1].session.as_deref(), Some("s"));
        assert_eq!(kept.records[1].line, 6);
    }
}
