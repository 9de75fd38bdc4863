//! `single_turn`: one turn of texts and media a line.
//!
//! Rows with one `session_id` are turns of one session in the order of the file, each with its own content and no history.

use std::borrow::Cow;

use super::{
    ReadOptions,
    content::{self, NAMES},
    fields::{Fields, Read, Stop, wrong},
};
use crate::data::record::{Payload, Record, Sink};

pub(super) fn line(options: &ReadOptions, number: u64, line: &[u8], sink: &mut dyn Sink) -> Read<()> {
    let fields = Fields::parse(&NAMES, line)?;
    if let Some(kind) = fields.get("type")
        && kind.string().as_deref() != Some("single_turn")
    {
        return Err(wrong("type", kind, "\"single_turn\" or no type"));
    }
    let mut record = Record::new(number, Payload::Content(content::content(&fields, "", line)?));
    times_and_caps(&fields, &mut record)?;
    record.session = fields.label("session_id")?.or(options.session.as_deref().map(Cow::Borrowed));
    Ok(sink.record(record)?)
}

/// What `single_turn` and the turns of `multi_turn` share.
pub(super) fn times_and_caps<'a>(fields: &Fields<'a, 16>, record: &mut Record<'a>) -> Read<()> {
    record.due_ns = fields.time_ns("timestamp", 6)?;
    record.delay_ns = fields.time_ns("delay", 6)?;
    if record.due_ns.is_some_and(|t| t > 0) && record.delay_ns.is_some_and(|t| t > 0) {
        return Err(Stop::bad("timestamp and delay are there, expected one of them"));
    }
    record.output_tokens = match fields.tokens("output_length")? {
        Some(0) => return Err(Stop::bad("output_length is 0, expected 1 or more")),
        other => other,
    };
    record.extra = fields.object("extra")?.map(|v| Cow::Borrowed(v.bytes()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Format, testing::*};
    use super::*;
    use crate::data::record::{Content, Media};

    fn media(name: &'static str, value: &'static str, uuid: &'static str) -> Media<'static> {
        Media { name: name.into(), value: value.into(), uuid: uuid.into() }
    }

    #[test]
    fn texts_and_media_in_every_spelling() {
        let text = r#"{"text":"What is DNS?","output_length":32,"extra":{"temperature":0}}
{"texts":["a","b"],"image":"cat.png","session_id":"s","delay":5,"role":"assistant"}
{"texts":[{"name":"query","contents":["q"]},{"name":"passages","contents":["x","y"]}]}
{"images":["http://i",""],"image_uuids":["u1","u2"],"audios":["wav,AA"],"video":"v.mp4"}
{"image_uuids":["only"]}"#;
        let kept = lines(Format::SingleTurn, text.as_bytes());
        assert_eq!(kept.bad, Vec::<String>::new());
        let contents: Vec<_> = kept
            .records
            .iter()
            .map(|r| match &r.payload {
                Payload::Content(c) => c.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(contents[0], Content::text("What is DNS?"));
        assert_eq!(
            (kept.records[0].output_tokens, kept.records[0].extra.as_deref()),
            (Some(32), Some(&br#"{"temperature":0}"#[..]))
        );
        assert_eq!((contents[1].texts.len(), &contents[1].images), (2, &vec![media("", "cat.png", "")]));
        assert_eq!((contents[1].role.as_deref(), kept.records[1].delay_ns), (Some("assistant"), Some(5_000_000)));
        assert_eq!(
            contents[2].texts,
            [media("query", "q", ""), media("passages", "x", ""), media("passages", "y", "")]
        );
        assert_eq!(contents[3].images, [media("", "http://i", "u1"), media("", "", "u2")]);
        assert_eq!(contents[4].images, [media("", "", "only")]);
    }

    #[test]
    fn refusals_name_the_field() {
        for (text, want) in [
            (r#"{"text":"a","texts":["b"]}"#, "text and texts are there"),
            (r#"{"text":""}"#, "none of text, image, audio or video is there; keys seen: text"),
            (r#"{"texts":[3]}"#, "texts[0] is 3, expected a string"),
            (r#"{"texts":[{"name":"q"}]}"#, "texts[0] is {\"name\":\"q\"}, expected an object with a list of contents"),
            (r#"{"images":["a"],"image_uuids":["x","y"]}"#, "image_uuids has 2 entries, expected 1"),
            (r#"{"image":"a","image_uuids":["x"]}"#, "image_uuids is given beside image"),
            (r#"{"image_uuids":[""]}"#, "image_uuids[0] is \"\""),
            (r#"{"text":"a","timestamp":1,"delay":2}"#, "timestamp and delay are there"),
            (r#"{"text":"a","output_length":0}"#, "output_length is 0, expected 1 or more"),
            (r#"{"text":"a","extra":[]}"#, "extra is [], expected an object"),
            (r#"{"text":5}"#, "text is 5, expected a string"),
        ] {
            let kept = lines(Format::SingleTurn, text.as_bytes());
            assert!(kept.records.is_empty() && kept.bad[0].contains(want), "{text}: {:?}", kept.bad);
        }
    }
}
