//! One look into a body: which API it is for, what it asks, how many media it holds.

use crate::data::{
    json::{self, JsonError, Kind, Value, Visit},
    record::Facts,
};

/// Caps of the output by the names that the APIs give them.
const CAPS: [&str; 4] = ["max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens"];
/// Members that make a body one of a language-model API.
const LLM: [&str; 6] = ["messages", "prompt", "input", "inputs", "query", "contents"];

/// Checks that `body` is JSON and gives what is in it, with the value. One pass.
pub fn look(body: &[u8]) -> Result<(Value<'_>, Facts<'_>), JsonError> {
    let mut look = Look { facts: Facts::default(), start: body.as_ptr() as usize };
    let value = json::walk(body, &mut look)?;
    Ok((value, look.facts))
}

/// What is in a body that may be anything; nothing is seen in what is no JSON.
pub fn of(body: &[u8]) -> Facts<'_> {
    match body.iter().find(|c| !c.is_ascii_whitespace()) {
        Some(b'{') => look(body).map(|(_, facts)| facts).unwrap_or_default(),
        _ => Facts::default(),
    }
}

struct Look<'a> {
    facts: Facts<'a>,
    /// Address of the body, to tell places in it.
    start: usize,
}

impl<'a> Visit<'a> for Look<'a> {
    #[inline]
    fn member(&mut self, depth: u32, key: &'a [u8], value: Value<'a>) {
        if depth == 1 {
            self.top(key, value);
        } else if key == b"type" && value.kind() == Kind::String {
            self.part(value);
        }
    }
}

impl<'a> Look<'a> {
    fn top(&mut self, key: &'a [u8], value: Value<'a>) {
        let start = self.start;
        let facts = &mut self.facts;
        match key {
            b"model" => facts.model = value.string(),
            b"stream" => facts.stream = value.bool() == Some(true),
            b"stream_options" => facts.usage = value.member("include_usage").and_then(Value::bool) == Some(true),
            b"parameters" => {
                let cap = value.member("max_new_tokens").and_then(cap);
                facts.output_cap = facts.output_cap.or(cap);
            }
            _ if CAPS.iter().any(|name| key == name.as_bytes()) => facts.output_cap = facts.output_cap.or(cap(value)),
            _ if LLM.iter().any(|name| key == name.as_bytes()) => {
                if !facts.llm || key == b"messages" {
                    let at = value.bytes().as_ptr() as usize - start;
                    facts.prompt = at..at + value.bytes().len();
                }
                facts.llm = true;
            }
            _ => {}
        }
    }

    /// A content part inside messages, by its `type`.
    fn part(&mut self, value: Value<'a>) {
        let facts = &mut self.facts;
        match value.bytes() {
            br#""image_url""# | br#""input_image""# | br#""image""# => facts.images += 1,
            br#""input_audio""# | br#""audio""# | br#""audio_url""# => facts.audios += 1,
            br#""video_url""# | br#""video""# | br#""input_video""# => facts.videos += 1,
            _ => {}
        }
    }
}

fn cap(value: Value<'_>) -> Option<u32> {
    value.integer().filter(|&n| n > 0).and_then(|n| u32::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_chat_body_asks() {
        let body = br#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}},
            {"type":"input_audio","input_audio":{}},{"type":"video_url"}]}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":0,
            "max_completion_tokens":7}"#;
        let (_, facts) = look(body).unwrap();
        let want = Facts {
            model: Some("m".into()),
            stream: true,
            usage: true,
            output_cap: Some(7),
            llm: true,
            images: 1,
            audios: 1,
            videos: 1,
            prompt: 24..facts.prompt.end,
        };
        assert_eq!(facts, want);
        assert!(body[24..].starts_with(b"[{\"role\"") && body[..facts.prompt.end].ends_with(b"}]}]"));
    }

    #[test]
    fn other_bodies() {
        assert_eq!(of(br#"{"a":{"stream":true,"messages":1,"max_tokens":3},"stream":"true"}"#), Facts::default());
        assert_eq!(of(b"\xff"), Facts::default());
        assert_eq!(of(br#"{"inputs":"x","parameters":{"max_new_tokens":5}}"#).output_cap, Some(5));
        assert!(of(br#"{"inputs":"x"}"#).llm);
        assert_eq!(of(br#"{"prompt":"xy","messages":[]}"#).prompt, 26..28);
        assert_eq!(of(br#"{"input":"xy","query":"z"}"#).prompt, 9..13);
        assert_eq!(of(br#"{"model":"\u0041"}"#).model.as_deref(), Some("A"));
    }
}
