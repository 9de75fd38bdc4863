//! The text of a whole response body, parsed in full: what a kept response is looked at and its tokens counted by, after the
//! run. What has text here is what [`super::scan`] counts as content: its property tests hold the two to each other.

use serde_json::Value;

/// What a response put out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// Text that is no reasoning: content, and names and arguments of tool calls.
    pub output: String,
    /// Reasoning.
    pub reasoning: String,
}

/// The text of an event stream. What is no JSON gives none, as in the scan.
pub fn of_stream(body: &[u8]) -> Texts {
    let mut texts = Texts::default();
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let mut data: Option<Vec<u8>> = None;
    for line in lines(body) {
        if line.is_empty() {
            if let Some(data) = data.take() {
                texts.event(&data);
            }
        } else if let Some(rest) = line.strip_prefix(b"data")
            && let Some(value) = if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b":") }
        {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match &mut data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend(value);
                }
                none => *none = Some(value.to_vec()),
            }
        }
    }
    if let Some(data) = data {
        texts.event(&data);
    }
    texts
}

/// The text of a body that is one JSON value.
pub fn of_json(body: &[u8]) -> Texts {
    let mut texts = Texts::default();
    if let Ok(value) = serde_json::from_slice::<Value>(body) {
        texts.whole(&value);
    }
    texts
}

/// Lines that end with LF, CR LF or CR, without their ends.
fn lines(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = body;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = &rest[..end];
        let after = &rest[end..];
        rest = after.strip_prefix(b"\r\n").or_else(|| after.get(1..)).unwrap_or_default();
        Some(line)
    })
}

impl Texts {
    fn event(&mut self, data: &[u8]) {
        match serde_json::from_slice::<Value>(data) {
            Ok(Value::Array(list)) => list.iter().for_each(|value| self.top(value)),
            Ok(value) => self.top(&value),
            Err(_) => {}
        }
    }

    fn top(&mut self, top: &Value) {
        let kind = top["type"].as_str().unwrap_or_default();
        if kind == "content_block_delta" {
            push(&mut self.output, &top["delta"]["text"]);
            push(&mut self.output, &top["delta"]["partial_json"]);
            push(&mut self.reasoning, &top["delta"]["thinking"]);
        }
        if kind.starts_with("response.") && kind.ends_with(".delta") {
            let to = if kind.contains("reasoning") { &mut self.reasoning } else { &mut self.output };
            push(to, &top["delta"]);
        }
        if top["token"]["special"] != true {
            push(&mut self.output, &top["token"]["text"]);
        }
        for choice in top["choices"].as_array().into_iter().flatten() {
            push(&mut self.output, &choice["text"]);
            self.message(&choice["delta"]);
        }
    }

    /// A chat message, or the delta of one.
    fn message(&mut self, message: &Value) {
        push(&mut self.output, &message["content"]);
        push(&mut self.reasoning, &message["reasoning_content"]);
        push(&mut self.reasoning, &message["reasoning"]);
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            self.function(&call["function"]);
        }
        self.function(&message["function_call"]);
    }

    fn function(&mut self, function: &Value) {
        push(&mut self.output, &function["name"]);
        push(&mut self.output, &function["arguments"]);
    }

    /// A body that is no stream: chat and completions, messages, responses, generate.
    fn whole(&mut self, top: &Value) {
        for choice in top["choices"].as_array().into_iter().flatten() {
            push(&mut self.output, &choice["text"]);
            self.message(&choice["message"]);
        }
        self.parts(&top["content"]);
        for item in top["output"].as_array().into_iter().flatten() {
            self.parts(&item["content"]);
            self.parts(&item["summary"]);
            self.function(item);
        }
        let one = std::slice::from_ref(top);
        for value in top.as_array().map_or(one, Vec::as_slice) {
            push(&mut self.output, &value["generated_text"]);
        }
    }

    /// A list of content parts.
    fn parts(&mut self, parts: &Value) {
        for part in parts.as_array().into_iter().flatten() {
            let kind = part["type"].as_str().unwrap_or_default();
            let to =
                if matches!(kind, "summary_text" | "reasoning_text") { &mut self.reasoning } else { &mut self.output };
            push(to, &part["text"]);
            push(&mut self.reasoning, &part["thinking"]);
            push(&mut self.output, &part["name"]);
            if kind == "tool_use" {
                push(&mut self.output, &part["input"]);
            }
        }
    }
}

/// Adds what a value says: a text as it is, parts of a list by their texts, anything else as it is written.
fn push(to: &mut String, value: &Value) {
    match value {
        Value::String(text) => to.push_str(text),
        Value::Array(list) if !list.is_empty() => list.iter().for_each(|part| match &part["text"] {
            Value::String(text) => to.push_str(text),
            _ => to.push_str(&part.to_string()),
        }),
        Value::Object(members) if !members.is_empty() => to.push_str(&value.to_string()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(texts: &Texts) -> (&str, &str) {
        (&texts.output, &texts.reasoning)
    }

    #[test]
    fn streams_of_every_api_give_their_text() {
        let chat = b": hello\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
                     data:{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\r\n\r\n\
                     data: {\"choices\":[{\"delta\":{\"content\":\"a \\u2615\"}}]}\r\r\
                     data: {\"choices\":[{\"delta\":\ndata: {\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}}]}\n\n\
                     data: {not json\n\ndata: [DONE]\n\n";
        assert_eq!(both(&of_stream(chat)), ("a \u{2615}f{}", "hm"));
        let messages =
            b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"x\"}}\n\n\
                         data: {\"type\":\"content_block_delta\",\"delta\":{\"thinking\":\"y\"}}\n\n";
        assert_eq!(both(&of_stream(messages)), ("x", "y"));
        let responses = b"data: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n\
                          data: {\"type\":\"response.reasoning_text.delta\",\"delta\":\"y\"}\n\n";
        assert_eq!(both(&of_stream(responses)), ("x", "y"));
        let generate = b"data:{\"token\":{\"text\":\"x\",\"special\":false}}\n\ndata:{\"token\":{\"text\":\"</s>\",\"special\":true}}";
        assert_eq!(both(&of_stream(generate)), ("x", ""));
    }

    #[test]
    fn bodies_of_every_api_give_their_text() {
        for (body, want) in [
            (r#"{"choices":[{"message":{"content":"a","reasoning_content":"b"}}]}"#, ("a", "b")),
            (r#"{"choices":[{"text":"a"},{"text":"b"}]}"#, ("ab", "")),
            (r#"{"content":[{"type":"thinking","thinking":"b"},{"type":"text","text":"a"}]}"#, ("a", "b")),
            (
                r#"{"output":[{"type":"reasoning","summary":[{"type":"summary_text","text":"b"}]},
                   {"type":"message","content":[{"type":"output_text","text":"a"}]}]}"#,
                ("a", "b"),
            ),
            (r#"[{"generated_text":"a"}]"#, ("a", "")),
            (r#"{"generated_text":"a"}"#, ("a", "")),
            ("{", ("", "")),
        ] {
            assert_eq!(both(&of_json(body.as_bytes())), want, "{body}");
        }
    }
}
