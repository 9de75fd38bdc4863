//! `inputs_json`: `{"data":[{"session_id":"s1","payloads":[{...},{...}]},...]}`, one document.
//!
//! Each entry is a session and its payloads are the turns in order, sent with the very bytes that they have in the file,
//! pretty-printed or not. One entry at a time is in memory.

use std::{borrow::Cow, collections::HashSet, io::Read};

use super::{
    ReadOptions, facts,
    fields::{Fields, Stop, keys_seen, wrong},
    stream::Stream,
};
use crate::data::{
    Error,
    error::Place,
    json::{Kind, Value},
    record::{Payload, Record, Sink},
};

pub(super) fn document(_: &ReadOptions, file: &str, input: &mut dyn Read, sink: &mut dyn Sink) -> Result<(), Error> {
    let mut stream = Stream::new(file, input);
    let (mut names, mut entries) = (HashSet::new(), 0u64);
    let found = stream.array_in_object("data", |line, text| {
        let index = entries;
        entries += 1;
        match entry(index, line, text, &mut names, sink) {
            Ok(()) => Ok(()),
            Err(Stop::Bad(what)) => sink.bad(Place::line(file, line), format!("data[{index}]: {what}")),
            Err(Stop::End(error)) => Err(error),
        }
    })?;
    match found {
        true => Ok(()),
        false => Err(Error::dataset(Place::file(file), "no \"data\" array at the top, expected {\"data\":[...]}")),
    }
}

fn entry(index: u64, line: u64, text: &[u8], names: &mut HashSet<String>, sink: &mut dyn Sink) -> Result<(), Stop> {
    let fields = Fields::parse(&["session_id", "payloads"], text)?;
    let session = match fields.label("session_id")? {
        Some(name) => name.into_owned(),
        None => format!("session_{index:06}"),
    };
    let Some(payloads) = fields.array("payloads")? else {
        return Err(Stop::Bad(format!("no payloads, expected an array of bodies; {}", keys_seen(text))));
    };
    for (i, body) in payloads.elements().enumerate() {
        if body.kind() != Kind::Object {
            return Err(wrong(&format!("payloads[{i}]"), body, "an object"));
        }
    }
    if payloads.elements().next().is_none() {
        return Err(Stop::bad("payloads is [], expected at least one body"));
    }
    if !names.insert(session.clone()) {
        return Err(Stop::Bad(format!("session_id is \"{session}\", expected one that no entry before has")));
    }
    let (mut at, mut line) = (0, line);
    for body in payloads.elements() {
        // Where the body stands in the entry, for its line number: both are slices of the same text.
        let start = offset(text, body);
        line += memchr::memchr_iter(b'\n', &text[at..start]).count() as u64;
        at = start;
        let mut record = Record::new(line, Payload::Verbatim(Cow::Borrowed(body.bytes())));
        record.session = Some(Cow::Borrowed(&session));
        let facts = facts::of(body.bytes());
        record.output_tokens = facts.output_cap;
        record.facts = Some(facts);
        sink.record(record)?;
    }
    Ok(())
}

/// Offset of a value in the text that it was cut from; 0 for any other.
fn offset(text: &[u8], value: Value<'_>) -> usize {
    let at = (value.bytes().as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
    if at <= text.len() { at } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, testing::document};
    use super::*;

    #[test]
    fn each_payload_keeps_its_bytes_and_its_session() {
        let text = "{\n \"x\": [1, {}], \"data\": [\n  {\n \"payloads\": [\n {\"a\": 1.10,\n \"b\": \"\\u00e9\"},\n{\"stream\":true} ], \"session_id\": \"s1\"\n },\n{\"payloads\":[{\"c\":1}]}]\n}\n";
        let kept = document(Format::InputsJson, text.as_bytes()).unwrap();
        assert_eq!(kept.bad, Vec::<String>::new());
        let bodies: Vec<_> = kept.records.iter().map(|r| (r.payload.clone(), r.session.as_deref(), r.line)).collect();
        let verbatim = |b: &'static [u8]| Payload::Verbatim(Cow::Borrowed(b));
        assert_eq!(
            bodies,
            [
                (verbatim(b"{\"a\": 1.10,\n \"b\": \"\\u00e9\"}"), Some("s1"), 5),
                (verbatim(b"{\"stream\":true}"), Some("s1"), 7),
                (verbatim(b"{\"c\":1}"), Some("session_000001"), 9),
            ]
        );
    }

    #[test]
    fn wrong_documents_and_entries_are_told() {
        let end = |text: &str| document(Format::InputsJson, text.as_bytes()).map(|_| ()).unwrap_err().to_string();
        assert!(end("{\"dat\":[]}").contains("no \"data\" array"), "{}", end("{\"dat\":[]}"));
        assert!(end("[1]").contains("f:1: "), "{}", end("[1]"));
        assert!(end("{\"data\":[{\"payloads\":[{}]}").contains("f:1"), "{}", end("{\"data\":[{\"payloads\":[{}]}"));
        assert!(end("{\"data\":3}").contains("expected an array"), "{}", end("{\"data\":3}"));
        let kept = document(
            Format::InputsJson,
            b"{\"data\":[{\"session_id\":\"a\",\"payloads\":[{}]},\n{\"session_id\":\"a\",\"payloads\":[{}]},{\"payloads\":[]},{\"payloads\":[3]},{\"q\":1},7]}",
        )
        .unwrap();
        assert_eq!(kept.records.len(), 1);
        assert_eq!(
            kept.bad,
            [
                "f:2: data[1]: session_id is \"a\", expected one that no entry before has",
                "f:2: data[2]: payloads is [], expected at least one body",
                "f:2: data[3]: payloads[0] is 3, expected an object",
                "f:2: data[4]: no payloads, expected an array of bodies; keys seen: q",
                "f:2: data[5]: a number, expected a JSON object",
            ]
        );
    }
}
