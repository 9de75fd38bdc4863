//! `multi_turn`: `{"session_id":"a","turns":[...]}` a line, each turn as `single_turn` has it.
//!
//! A turn's body has all authored turns before it. Live answers are never spliced in: a replay is of bytes known before the
//! run. `--assistant synth` puts a synthesized answer of the turn's `output_length` after each. A leading turn of role `system`
//! with only text is the conversation's system message.

use std::{borrow::Cow, collections::HashSet, io::Read as Input};

use super::{
    ReadOptions,
    content::{self, NAMES},
    fields::{Fields, Read, Stop, keys_seen, wrong},
    lines,
    single_turn::times_and_caps,
};
use crate::data::{
    Error,
    error::Place,
    json::Kind,
    record::{Content, Payload, Record, Sink, Turn},
};

/// Tokens of a synthesized answer when a turn says nothing.
pub(super) const ANSWER_TOKENS: u32 = 128;

pub(super) fn document(
    options: &ReadOptions,
    file: &str,
    input: &mut dyn Input,
    sink: &mut dyn Sink,
) -> Result<(), Error> {
    let mut names = HashSet::new();
    let mut number = 0u64;
    lines::each_of(file, input, |place, line| {
        number += 1;
        match session(options, number - 1, place, line, &mut names, sink) {
            Ok(()) => Ok(()),
            Err(Stop::Bad(what)) => sink.bad(Place::line(file, place), what),
            Err(Stop::End(error)) => Err(error),
        }
    })
}

fn session(
    options: &ReadOptions,
    number: u64,
    place: u64,
    line: &[u8],
    names: &mut HashSet<String>,
    sink: &mut dyn Sink,
) -> Read<()> {
    let fields = Fields::parse(&["session_id", "turns", "type"], line)?;
    if let Some(kind) = fields.get("type")
        && kind.string().as_deref() != Some("multi_turn")
    {
        return Err(wrong("type", kind, "\"multi_turn\" or no type"));
    }
    let turns = fields.array("turns")?;
    let turns = turns.ok_or_else(|| Stop::Bad(format!("no turns, expected a list of them; {}", keys_seen(line))))?;
    let name = match fields.label("session_id")? {
        Some(name) => name.into_owned(),
        None => format!("session_{number:06}"),
    };
    let mut read = Vec::new();
    for (i, turn) in turns.elements().enumerate() {
        let at = |stop| match stop {
            Stop::Bad(what) => Stop::Bad(format!("turns[{i}]: {what}")),
            end @ Stop::End(_) => end,
        };
        if turn.kind() != Kind::Object {
            return Err(wrong(&format!("turns[{i}]"), turn, "an object"));
        }
        let fields = Fields::parse(&NAMES, turn.bytes()).map_err(at)?;
        let content = content::content(&fields, "", turn.bytes()).map_err(at)?;
        let mut record = Record::new(place, Payload::Content(content));
        times_and_caps(&fields, &mut record).map_err(at)?;
        read.push(record);
    }
    if read.is_empty() {
        return Err(Stop::bad("turns is [], expected at least one turn"));
    }
    if !names.insert(name.clone()) {
        return Err(Stop::Bad(format!("session_id is \"{name}\", expected one that no line before has")));
    }
    let system = lifted_system(&mut read);
    emit(options, &name, system, read, sink)
}

/// Takes a leading system turn out, unless it is all there is or another follows.
fn lifted_system<'a>(turns: &mut Vec<Record<'a>>) -> Option<Cow<'a, str>> {
    let plain = |record: &Record<'_>| match &record.payload {
        Payload::Content(c) if c.role.as_deref() == Some("system") => {
            c.texts.len() == 1 && c.images.len() + c.audios.len() + c.videos.len() == 0
        }
        _ => false,
    };
    let is_system =
        |record: &Record<'_>| matches!(&record.payload, Payload::Content(c) if c.role.as_deref() == Some("system"));
    let first = turns.first()?;
    let bare = first.due_ns.or(first.delay_ns).is_none() && first.output_tokens.is_none() && first.extra.is_none();
    if !bare || !plain(first) || turns.get(1).is_none_or(is_system) {
        return None;
    }
    match turns.remove(0).payload {
        Payload::Content(mut content) => content.texts.pop().map(|text| text.value),
        _ => None,
    }
}

/// One record a turn, each with the turns before it.
fn emit(
    options: &ReadOptions,
    name: &str,
    system: Option<Cow<'_, str>>,
    read: Vec<Record<'_>>,
    sink: &mut dyn Sink,
) -> Read<()> {
    let mut history: Vec<Turn<'_>> = Vec::new();
    for (i, mut record) in read.into_iter().enumerate() {
        let Payload::Content(mut content) = record.payload else { continue };
        if i == 0 {
            content.system = system.as_ref().map(|text| Cow::Borrowed(text.as_ref()));
        }
        if content.role.as_deref() == Some("assistant") && matches!(history.last(), Some(Turn::Answer { .. })) {
            // The answer is authored.
            history.pop();
        }
        history.push(Turn::Content(content));
        let answer = record.output_tokens.unwrap_or(ANSWER_TOKENS);
        record.payload = Payload::Turns(history.clone());
        record.session = Some(Cow::Borrowed(name));
        sink.record(record)?;
        if options.synthesized_answers && !is_assistant(&history) {
            history.push(Turn::Answer { tokens: answer });
        }
    }
    Ok(())
}

/// Whether the last turn is an answer by itself.
fn is_assistant(history: &[Turn<'_>]) -> bool {
    matches!(history.last(), Some(Turn::Content(Content { role: Some(role), .. })) if role == "assistant")
}

#[cfg(test)]
mod tests {
    use super::super::{Format, parse_document, testing::*};
    use super::*;

    fn roles(record: &Record<'_>) -> String {
        let Payload::Turns(turns) = &record.payload else { panic!() };
        let one = |turn: &Turn<'_>| match turn {
            Turn::Content(c) => format!(
                "{}{}:{}",
                c.system.as_deref().map(|s| format!("({s})")).unwrap_or_default(),
                c.role.as_deref().unwrap_or("user"),
                c.texts[0].value
            ),
            Turn::Answer { tokens } => format!("answer:{tokens}"),
            Turn::Messages { .. } => panic!(),
        };
        turns.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_turn_has_the_turns_before_it() {
        let text = br#"{"session_id":"a","turns":[{"text":"one","output_length":9},{"text":"two","delay":5}]}
{"turns":[{"role":"system","text":"S"},{"text":"x"},{"role":"assistant","text":"y"},{"text":"z"}]}"#;
        let kept = super::super::testing::document(Format::MultiTurn, text).unwrap();
        assert_eq!(kept.bad, Vec::<String>::new());
        let got: Vec<_> = kept.records.iter().map(roles).collect();
        assert_eq!(
            got,
            ["user:one", "user:one user:two", "(S)user:x", "(S)user:x assistant:y", "(S)user:x assistant:y user:z"]
        );
        let sessions: Vec<_> = kept.records.iter().map(|r| r.session.as_deref().unwrap()).collect();
        assert_eq!(sessions, ["a", "a", "session_000001", "session_000001", "session_000001"]);
        assert_eq!(kept.records[1].delay_ns, Some(5_000_000));
        let mut kept = Kept::default();
        let options = ReadOptions { synthesized_answers: true, ..ReadOptions::default() };
        parse_document(Format::MultiTurn, &options, "f", &mut &text[..], &mut kept).unwrap();
        assert_eq!(roles(&kept.records[1]), "user:one answer:9 user:two");
        assert_eq!(roles(&kept.records[4]), "(S)user:x assistant:y user:z");
    }

    #[test]
    fn a_system_turn_that_is_not_alone_or_bare_stays() {
        let text = br#"{"turns":[{"role":"system","text":"S"}]}
{"turns":[{"role":"system","text":"S"},{"role":"system","text":"T"},{"text":"x"}]}
{"turns":[{"role":"system","text":"S","output_length":1},{"text":"x"}]}"#;
        let kept = super::super::testing::document(Format::MultiTurn, text).unwrap();
        let got: Vec<_> = kept.records.iter().map(|r| roles(r).split(' ').next().unwrap().to_owned()).collect();
        assert!(got.iter().all(|first| first == "system:S"), "{got:?}");
    }

    #[test]
    fn refusals_name_turn_and_field() {
        let text = br#"{"session_id":"a","turns":[{"text":"x"}]}
{"session_id":"a","turns":[{"text":"x"}]}
{"turns":[]}
{"turns":[{"text":"x"},{"foo":1}]}
{"turns":[5]}
{"x":1}"#;
        let kept = super::super::testing::document(Format::MultiTurn, text).unwrap();
        assert_eq!(
            kept.bad,
            [
                "f:2: session_id is \"a\", expected one that no line before has",
                "f:3: turns is [], expected at least one turn",
                "f:4: turns[1]: none of text, image, audio or video is there; keys seen: foo",
                "f:5: turns[0] is 5, expected an object",
                "f:6: no turns, expected a list of them; keys seen: x",
            ]
        );
    }
}
