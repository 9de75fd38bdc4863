//! `sagemaker_data_capture`: what Amazon SageMaker's data capture writes, one JSON object a line.
//!
//! The captured request goes out with the very bytes that were captured; `--reformat` keeps only its messages and tools and
//! wraps them anew, as AIPerf does. Times without a zone are UTC.

use std::borrow::Cow;

use super::{
    ReadOptions, facts,
    fields::{Fields, Read, Stop, keys_seen, messages, wrong},
    times::date_time_ns,
};
use crate::data::{
    base64,
    json::{Kind, Value},
    record::{Payload, Record, Sink},
};

pub(super) fn line(options: &ReadOptions, number: u64, line: &[u8], sink: &mut dyn Sink) -> Read<()> {
    let fields = Fields::parse(&["captureData", "eventMetadata"], line)?;
    let need = |name: &'static str| -> Read<Value<'_>> {
        fields.object(name)?.ok_or_else(|| Stop::Bad(format!("no {name}, which a capture has; {}", keys_seen(line))))
    };
    let (capture, event) = (need("captureData")?, need("eventMetadata")?);
    let id = event.member("eventId").map(|v| format!(" (eventId {})", v.text())).unwrap_or_default();
    let of = |what: String| Stop::Bad(format!("{what}{id}"));
    let time = event.member("inferenceTime").and_then(Value::string);
    let time = time.ok_or_else(|| of("no eventMetadata.inferenceTime".into()))?;
    let due_ns = date_time_ns(&time)
        .ok_or_else(|| of(format!("eventMetadata.inferenceTime is {time}, expected 2024-01-31T12:00:00Z")))?;
    let input = capture.member("endpointInput").filter(|v| v.kind() == Kind::Object);
    let input = input.ok_or_else(|| of("no captureData.endpointInput".into()))?;
    let body = decoded(input).map_err(|e| of(format!("captureData.endpointInput: {e}")))?;
    let (value, facts) = facts::look(&body)
        .map_err(|e| of(format!("the captured request is no JSON: {} at byte {}", e.what, e.at + 1)))?;
    let cap = facts.output_cap;
    let mut record = if options.reformat {
        reformatted(number, value).map_err(|stop| match stop {
            Stop::Bad(what) => of(what),
            end @ Stop::End(_) => end,
        })?
    } else {
        Record { facts: Some(facts), ..Record::new(number, Payload::Verbatim(Cow::Borrowed(&body))) }
    };
    record.due_ns = Some(due_ns);
    record.output_tokens = cap;
    // The answer is only asked for its count: one that is a stream or no JSON has none.
    record.input_tokens = capture.member("endpointOutput").and_then(|out| prompt_tokens(&decoded(out).ok()?));
    Ok(sink.record(record)?)
}

/// The bytes of a captured side.
fn decoded(side: Value<'_>) -> Result<Vec<u8>, String> {
    let data = side.member("data").and_then(Value::string).ok_or("no data, expected a string")?;
    match side.member("encoding").and_then(Value::string).as_deref() {
        None | Some("BASE64") => base64::decode(&data),
        Some("JSON") => Ok(data.into_owned().into_bytes()),
        Some(other) => Err(format!("encoding is \"{other}\", expected BASE64 or JSON")),
    }
}

fn prompt_tokens(answer: &[u8]) -> Option<u32> {
    let usage = Value::parse(answer).ok()?.member("usage")?;
    usage.member("prompt_tokens")?.integer().and_then(|n| u32::try_from(n).ok())
}

/// Messages and tools of a captured chat request.
fn reformatted(number: u64, value: Value<'_>) -> Read<Record<'_>> {
    let Some(array) = value.member("messages").filter(|_| value.kind() == Kind::Object) else {
        return Err(Stop::bad("no messages in the captured request, which --reformat takes"));
    };
    messages("messages", array)?;
    let tools = match value.member("tools").filter(|v| !v.is_null()) {
        Some(tools) if tools.kind() != Kind::Array => return Err(wrong("tools", tools, "an array")),
        tools => tools.map(|v| Cow::Borrowed(v.bytes())),
    };
    Ok(Record::new(number, Payload::Messages { messages: Cow::Borrowed(array.bytes()), tools }))
}

#[cfg(test)]
mod tests {
    use super::super::{Format, parse_lines, testing::*};
    use super::*;

    fn capture(data: &str, encoding: &str, output: &str) -> String {
        let mut quoted = Vec::new();
        crate::data::json::push_string(&mut quoted, data);
        let data = String::from_utf8(quoted).unwrap();
        format!(
            r#"{{"captureData":{{"endpointInput":{{"observedContentType":"application/json","mode":"INPUT","data":{data},"encoding":"{encoding}"}}{output}}},"eventMetadata":{{"eventId":"e1","inferenceTime":"2024-01-31T12:00:00Z"}},"eventVersion":"0"}}"#
        )
    }

    const BODY: &str =
        "{ \"messages\": [{\"role\":\"user\",\"content\":\"\\u00e9\"}],\"temperature\":0.10,\"max_tokens\":5}";

    #[test]
    fn captured_requests_go_out_as_they_were() {
        let coded = base64::encode(BODY.as_bytes());
        let answer = base64::encode(br#"{"usage":{"prompt_tokens":11}}"#);
        let output = format!(r#","endpointOutput":{{"data":"{answer}","encoding":"BASE64"}}"#);
        for text in [capture(BODY, "JSON", &output), capture(&coded, "BASE64", &output)] {
            let kept = lines(Format::SagemakerDataCapture, text.as_bytes());
            assert_eq!(kept.bad, Vec::<String>::new());
            assert_eq!(kept.records[0].payload, Payload::Verbatim(Cow::Borrowed(BODY.as_bytes())));
            assert_eq!((kept.records[0].output_tokens, kept.records[0].input_tokens), (Some(5), Some(11)));
            assert_eq!(kept.records[0].due_ns, Some(1_706_702_400_000_000_000));
        }
        let stream = r#","endpointOutput":{"data":"data: {}\n\n","encoding":"JSON"}"#;
        assert_eq!(lines(Format::SagemakerDataCapture, capture(BODY, "JSON", stream).as_bytes()).records.len(), 1);
    }

    #[test]
    fn reformat_keeps_messages_and_tools() {
        let options = ReadOptions { reformat: true, ..ReadOptions::default() };
        let mut kept = Kept::default();
        parse_lines(Format::SagemakerDataCapture, &options, "f", capture(BODY, "JSON", "").as_bytes(), 1, &mut kept)
            .unwrap();
        let messages = Cow::Borrowed(&br#"[{"role":"user","content":"\u00e9"}]"#[..]);
        assert_eq!(kept.records[0].payload, Payload::Messages { messages, tools: None });
        let mut kept = Kept::default();
        let no = capture("{\"prompt\":\"x\"}", "JSON", "");
        parse_lines(Format::SagemakerDataCapture, &options, "f", no.as_bytes(), 1, &mut kept).unwrap();
        assert_eq!(kept.bad, ["f:1: no messages in the captured request, which --reformat takes (eventId \"e1\")"]);
    }

    #[test]
    fn a_bad_capture_names_its_event() {
        let bad = |text: &str| lines(Format::SagemakerDataCapture, text.as_bytes()).bad.remove(0);
        assert!(
            bad(&capture("{", "JSON", ""))
                .contains("the captured request is no JSON: ends too early at byte 2 (eventId \"e1\")")
        );
        assert!(bad(&capture("!", "BASE64", "")).contains("no base64: the character `!` (eventId"));
        assert!(bad(&capture("a,b", "CSV", "")).contains("encoding is \"CSV\", expected BASE64 or JSON"));
        assert!(
            bad(&capture("{}", "JSON", "").replace("2024-01-31T", "yesterday")).contains("inferenceTime is yesterday")
        );
        assert!(bad(r#"{"captureData":{}}"#).contains("no eventMetadata, which a capture has; keys seen: captureData"));
    }
}
