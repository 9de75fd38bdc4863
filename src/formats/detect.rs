//! `--format auto`: an order instead of a complaint.
//!
//! The first record's `type` field, then the formats with marks of their own, the broadest last: any other JSON object is a
//! raw payload. Looks at the first bytes only; a first record that is longer than them is judged by what is there.

use std::borrow::Cow;

use super::{Format, mooncake, table};
use crate::data::{Error, error::Place, json};

/// What the dataset's path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A file or a pipe.
    File,
    /// A directory; the bytes are those of its first file.
    Directory,
}

/// Tells the format by the first bytes (decompressed, 64 KiB or more when the file has them) of the input called `file`.
pub fn detect(file: &str, input: Input, first: &[u8]) -> Result<Format, Error> {
    let start = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first).trim_ascii_start();
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    match start.first() {
        None => Err(Error::dataset(Place::file(file), "no records: it is empty")),
        Some(b'{') => Ok(of_object(input, &outline(start))),
        Some(_) => {
            let line = start.split(|&c| c == b'\n').next().unwrap_or_default();
            table::format_of(line).ok_or_else(|| unknown(file, line))
        }
    }
}

fn of_object(input: Input, members: &[(Cow<'_, str>, &[u8])]) -> Format {
    let get = |name: &str| members.iter().find(|(key, _)| key == name).map(|&(_, value)| value);
    let has = |name: &str| get(name).is_some();
    let starts = |name: &str, with: &[u8]| get(name).is_some_and(|value| value.starts_with(with));
    if let Some(kind) = get("type")
        && let Some(name) = json::Value::parse(kind).ok().and_then(json::Value::string)
        && let Some(&format) = Format::ALL.iter().find(|f| f.name() == name)
    {
        return format;
    }
    if has("captureData") && has("eventMetadata") {
        return Format::SagemakerDataCapture;
    }
    if get("data").is_some_and(|data| first_element(data).iter().any(|(key, _)| key == "payloads")) {
        return Format::InputsJson;
    }
    if starts("log", b"{") {
        return Format::Har;
    }
    if has("method") && starts("url", b"\"") {
        return Format::Vegeta;
    }
    if starts("path", b"\"/") || (has("method") && (has("path") || has("headers"))) || has("body_base64") {
        return Format::HttpRequests;
    }
    // Marks of the formats further down, which share names with mooncake's.
    let chats = has("chat_id");
    let turns = starts("turns", b"[") || (starts("turns", b"") && has("orchestrator")) || has("orchestrator");
    let content = ["text", "texts", "image", "images", "audio", "audios", "video", "videos", "image_uuids"];
    let content = content.into_iter().any(has);
    // `messages` alone is a chat body, and `type` of any other value says nothing.
    let own = |name: &str| !matches!(name, "messages" | "tools" | "type" | "extra") && has(name);
    let sources = ["payload", "text_input", "input_length", "hash_ids", "messages"].into_iter().any(has);
    if mooncake::NAMES.iter().any(|name| own(name)) && !chats && (sources || !(turns || content)) {
        return Format::MooncakeTrace;
    }
    if chats {
        return Format::BailianTrace;
    }
    if turns {
        let first = get("turns").map(first_element).unwrap_or_default();
        let first_has = |name: &str| first.iter().any(|(key, _)| key == name);
        let dag = first_has("messages") || first_has("forks") || first_has("spawns") || has("orchestrator");
        return if dag { Format::DagJsonl } else { Format::MultiTurn };
    }
    match (content, input) {
        // A directory of content is a set of pools, as AIPerf takes it.
        (true, Input::Directory) => Format::RandomPool,
        (true, Input::File) => Format::SingleTurn,
        (false, _) => Format::RawPayload,
    }
}

fn unknown(file: &str, line: &[u8]) -> Error {
    let shown: String = String::from_utf8_lossy(&line[..line.len().min(60)]).escape_debug().collect();
    let what = format!(
        "the first line `{shown}` is neither a JSON object nor a header that is known; name the format with --format, or send the lines as \
         they are with --format raw_payload --verbatim-lines"
    );
    Error::dataset(Place::file(file), what)
}

/// The members of the object at the start of a text that may break off; the last one's value may be cut short.
fn outline(text: &[u8]) -> Vec<(Cow<'_, str>, &[u8])> {
    let mut members = Vec::new();
    let mut at = 1;
    let space = |at: usize| at + text.get(at..).map_or(0, |rest| rest.len() - rest.trim_ascii_start().len());
    loop {
        at = space(at);
        if text.get(at) == Some(&b',') {
            at = space(at + 1);
        }
        let key = at;
        if text.get(key) != Some(&b'"') {
            return members;
        }
        let Ok(Some(end)) = json::value_end(text, key) else { return members };
        let name = json::unescape(&text[key + 1..end - 1]);
        at = space(end);
        if text.get(at) != Some(&b':') {
            return members;
        }
        let value = space(at + 1);
        match json::value_end(text, value) {
            Ok(Some(end)) => {
                members.push((name, &text[value..end]));
                at = end;
            }
            _ => {
                members.push((name, &text[value.min(text.len())..]));
                return members;
            }
        }
    }
}

/// The members of the first element of an array, when that is an object.
fn first_element(array: &[u8]) -> Vec<(Cow<'_, str>, &[u8])> {
    match array.split_first() {
        Some((b'[', rest)) => match rest.trim_ascii_start() {
            object @ [b'{', ..] => outline(object),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        match detect("f", Input::File, text.as_bytes()) {
            Ok(format) => format.name().to_owned(),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn first_record_tells_the_format() {
        for (text, want) in [
            (r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#, "raw_payload"),
            (r#"{"timestamp":0,"payload":{"prompt":"x"}}"#, "mooncake_trace"),
            (r#"{"input_length":3,"hash_ids":[1]}"#, "mooncake_trace"),
            (r#"{"messages":[],"session_id":"a"}"#, "mooncake_trace"),
            ("{\n  \"data\": [\n    {\n      \"session_id\": \"s1\",\n \"payloads\": [ {\"a\": 1", "inputs_json"),
            (r#"{"prompt":"x"}"#, "raw_payload"),
            (r#"{"type":"mooncake_trace","text_input":"x"}"#, "mooncake_trace"),
            ("\u{feff}\n\n  {\"a\":1}", "raw_payload"),
            (r#"{"messages":[{"role":"user","content":"cut of"#, "raw_payload"),
            (r#"{"timestamp":1,"foo":2}"#, "mooncake_trace"),
            (
                r#"{"chat_id":1,"parent_chat_id":-1,"timestamp":1,"input_length":2,"output_length":1,"hash_ids":[1]}"#,
                "bailian_trace",
            ),
            (r#"{"chat_id":1,"timestamp":1,"input_length":2,"output_length":1,"type":"text"}"#, "bailian_trace"),
            ("Timestamp,Model,Request tokens,Response tokens\n1,a,2,3", "burst_gpt_trace"),
            ("\u{feff}TIMESTAMP,ContextTokens,GeneratedTokens\r\n", "azure_llm_trace"),
            (r#"{"captureData":{},"eventMetadata":{}}"#, "sagemaker_data_capture"),
            (r#"{"text":"a","output_length":32,"timestamp":1}"#, "single_turn"),
            (r#"{"session_id":"a","turns":[{"text":"x"}]}"#, "multi_turn"),
            (r#"{"session_id":"a","turns":[{"messages":[]}]}"#, "dag_jsonl"),
            (r#"{"session_id":"a","orchestrator":true,"spawns":["b"]}"#, "dag_jsonl"),
            (r#"{"type":"random_pool","text":"a"}"#, "random_pool"),
            (r#"{"method":"GET","path":"/x","timestamp":1}"#, "http_requests"),
            (r#"{"method":"GET","url":"http://h/"}"#, "vegeta"),
            ("{\"log\": {\"version\":\"1.2\",\"entries\":[", "har"),
        ] {
            assert_eq!(of(text), want, "{text}");
        }
    }

    #[test]
    fn a_directory_of_content_is_a_set_of_pools() {
        assert_eq!(detect("f", Input::Directory, br#"{"text":"a"}"#).unwrap(), Format::RandomPool);
        assert_eq!(detect("f", Input::Directory, br#"{"messages":[]}"#).unwrap(), Format::RawPayload);
    }

    #[test]
    fn what_is_no_dataset_is_said() {
        assert_eq!(of("\n \n"), "f: no records: it is empty");
        assert!(of("[1,2]").contains("`[1,2]` is neither a JSON object"), "{}", of("[1,2]"));
        assert!(of("{not json").contains("raw_payload"));
    }
}
