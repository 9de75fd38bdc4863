//! The scan against tables, against a full JSON parser, and against every way to cut a stream.
//!
//! A long file: the model that the scan is held to, and the writer of what it reads, belong beside the cases.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// All that a scan says about a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    seen: Seen,
    usage: Usage,
    error: bool,
    done_marker: bool,
    finished: bool,
    comments: u32,
    malformed: u32,
}

/// Feeds `bytes` in pieces that end at `cuts` and at the end.
fn told(mut scan: Scan, bytes: &[u8], cuts: &[usize]) -> Told {
    let (mut seen, mut at) = (Seen::default(), 0);
    for &cut in cuts.iter().chain([&bytes.len()]) {
        seen += scan.feed(&bytes[at.min(cut)..cut]);
        at = cut;
    }
    seen += scan.finish();
    assert_eq!(seen.events, scan.events());
    Told {
        seen,
        usage: scan.usage(),
        error: scan.error(),
        done_marker: scan.done_marker(),
        finished: scan.finished(),
        comments: scan.comments(),
        malformed: scan.malformed(),
    }
}

fn stream(bytes: &[u8]) -> Told {
    told(Scan::stream(), bytes, &[])
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// (content events, output events) of one event.
fn content(value: Value) -> (u32, u32) {
    let told = stream(event(&value).as_bytes());
    assert_eq!((told.seen.events, told.malformed), (1, 0), "{value}");
    (told.seen.content_events, told.seen.output_events)
}

fn delta(value: Value) -> Value {
    json!({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": value, "finish_reason": null}]})
}

const NO: (u32, u32) = (0, 0);
const REASONING: (u32, u32) = (1, 0);
const OUTPUT: (u32, u32) = (1, 1);

#[test]
fn chat_content_is_what_carries_output() {
    for (value, expect) in [
        (json!({"content": "a"}), OUTPUT),
        (json!({"content": "\u{0}"}), OUTPUT),
        (json!({"content": "\""}), OUTPUT),
        (json!({"content": "caf\u{e9} \u{1f600}", "role": "assistant"}), OUTPUT),
        (json!({"content": [{"type": "text", "text": "a"}]}), OUTPUT),
        (json!({"role": "assistant", "content": ""}), NO),
        (json!({"role": "assistant", "content": null}), NO),
        (json!({"role": "assistant"}), NO),
        (json!({"content": []}), NO),
        (json!({}), NO),
        (json!({"reasoning_content": "hm"}), REASONING),
        (json!({"reasoning": "hm", "content": null}), REASONING),
        (json!({"reasoning_content": "", "reasoning": null}), NO),
        (json!({"reasoning_content": "hm", "content": "a"}), OUTPUT),
        (json!({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}]}), OUTPUT),
        (json!({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}), OUTPUT),
        (json!({"tool_calls": [{"index": 0, "function": {"name": null, "arguments": ""}}]}), NO),
        (json!({"tool_calls": [{"index": 0, "id": "x", "type": "function"}]}), NO),
        (json!({"tool_calls": []}), NO),
        (json!({"tool_calls": null, "function_call": {"name": "f"}}), OUTPUT),
        (json!({"logprobs": {"content": [{"token": "a"}]}}), NO),
    ] {
        assert_eq!(content(delta(value.clone())), expect, "{value}");
    }
    assert_eq!(content(json!({"choices": [], "usage": {"prompt_tokens": 1}})), NO);
    assert_eq!(content(json!({"choices": [{"delta": {}}, {"delta": {"content": "b"}}]})), OUTPUT);
    assert_eq!(content(json!({"content": "a", "delta": {"content": "a"}})), NO);
    assert_eq!(content(json!({"x": {"choices": [{"delta": {"content": "a"}}]}})), NO);
    assert_eq!(content(json!({"choices": {"delta": {"content": "a"}}})), NO);
    assert_eq!(content(json!({"choices": [[{}], {"delta": {"content": "a"}}]})), OUTPUT);
    assert_eq!(content(json!({"choices": [[{"delta": {"content": "a"}}], [1, {"delta": {"content": "a"}}]]})), NO);
}

#[test]
fn content_of_the_other_apis() {
    for (value, expect) in [
        (json!({"choices": [{"text": " a", "index": 0}]}), OUTPUT),
        (json!({"choices": [{"text": "", "finish_reason": "stop"}]}), NO),
        (json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}), OUTPUT),
        (json!({"delta": {"partial_json": "{", "type": "input_json_delta"}, "type": "content_block_delta"}), OUTPUT),
        (json!({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": ""}}), NO),
        (json!({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}}), REASONING),
        (json!({"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "x"}}), NO),
        (json!({"type": "content_block_start", "content_block": {"type": "text", "text": "x"}}), NO),
        (json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "text": "x"}}), NO),
        (json!({"type": "ping"}), NO),
        (json!({"type": "response.output_text.delta", "delta": "Hi", "item_id": "x"}), OUTPUT),
        (json!({"delta": "Hi", "type": "response.output_text.delta"}), OUTPUT),
        (json!({"type": "response.output_text.delta", "delta": ""}), NO),
        (json!({"type": "response.reasoning_text.delta", "delta": "hm"}), REASONING),
        (json!({"type": "response.reasoning_summary_text.delta", "delta": "hm"}), REASONING),
        (json!({"type": "response.function_call_arguments.delta", "delta": "{\"a\""}), OUTPUT),
        (json!({"type": "response.output_text.done", "text": "Hi", "delta": "Hi"}), NO),
        (json!({"type": "other.output_text.delta", "delta": "Hi"}), NO),
        (json!({"index": 1, "token": {"id": 5, "text": " a", "special": false}, "generated_text": null}), OUTPUT),
        (json!({"token": {"special": true, "text": "</s>"}, "generated_text": "a"}), NO),
    ] {
        assert_eq!(content(value.clone()), expect, "{value}");
    }
}

#[test]
fn objects_of_a_list_are_taken_each_by_itself() {
    let error = json!({"type": "error"});
    let stop = json!({"type": "message_stop", "delta": {"text": "no content"}});
    let block = json!({"type": "content_block_delta", "delta": {"text": ""}});
    let special = json!({"token": {"text": "</s>", "special": true}});
    let token = json!({"token": {"text": "a"}});
    let told = stream(event(&json!([error, stop, block, special])).as_bytes());
    assert!(told.error && told.finished && told.seen.content_events == 0);
    assert_eq!(content(json!([special, token])), OUTPUT);
    assert_eq!(content(json!([token, special])), OUTPUT);
}

#[test]
fn errors_are_seen_at_the_top_only() {
    for (value, expect) in [
        (json!({"error": {"code": 500, "message": "boom"}}), true),
        (json!({"error": "boom", "choices": []}), true),
        (json!({"error": 500}), true),
        (json!({"error": true}), true),
        (json!({"error": {}}), true),
        (json!([{"error": "boom"}]), true),
        (json!({"error": null}), false),
        (json!({"error": ""}), false),
        (json!({"error": false}), false),
        (json!({"choices": [{"error": "x", "delta": {"error": "x", "content": "\"error\":\"x\""}}]}), false),
        (json!({"type": "error", "message": "x"}), true),
        (json!({"type": "errors"}), false),
        (json!({"type": "response.failed", "response": {"error": {"code": "x"}}}), true),
        (json!({"type": "response.completed", "response": {"error": null}}), false),
    ] {
        assert_eq!(stream(event(&value).as_bytes()).error, expect, "{value}");
    }
    for (text, expect) in [
        ("event: error\ndata: {\"message\":\"x\"}\n\n", true),
        ("data: {}\nevent:ERROR \n\n", true),
        ("event: error\n\n", true),
        ("event: error\nevent: ok\ndata: {}\n\n", false),
        ("event: error\nevent\ndata: {}\n\n", false),
        ("event: error\nevent:\ndata: {}\n\n", false),
        ("data: {\"\\u0165rror\":1}\n\n", false),
        ("data: {\"\\u0065rror\":1}\n\n", true),
        ("event: errors\ndata: {}\n\n", false),
        ("event: terror\ndata: {}\n\n", false),
        ("id: error\ndata: {}\n\n", false),
        (": event: error\n\n", false),
    ] {
        assert_eq!(stream(text.as_bytes()).error, expect, "{text:?}");
    }
    assert_eq!(stream(b"event: error\n\n").seen.events, 0);
}

#[test]
fn ends_on_purpose_are_seen() {
    for (value, expect) in [
        (json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}), true),
        (json!({"choices": [{"delta": {}, "finish_reason": null}]}), false),
        (json!({"choices": [{"delta": {}, "finish_reason": ""}]}), false),
        (json!({"choices": [{"text": "a", "finish_reason": {"type": "stop"}}]}), true),
        (json!({"finish_reason": "stop"}), false),
        (json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}), true),
        (json!({"type": "message_delta", "delta": {"stop_reason": null}}), false),
        (json!({"type": "message_start", "message": {"stop_reason": "x"}}), false),
        (json!({"type": "message_stop"}), true),
        (json!({"type": "response.completed"}), true),
        (json!({"type": "response.incomplete"}), true),
        (json!({"type": "response.failed"}), true),
        (json!({"type": "response.in_progress"}), false),
        (json!({"token": {"text": "a"}, "generated_text": "", "details": null}), true),
        (json!({"generated_text": null, "details": {"finish_reason": "length"}}), true),
        (json!({"generated_text": null, "details": {"generated_tokens": 4}}), false),
    ] {
        let told = stream(event(&value).as_bytes());
        assert_eq!((told.finished, told.done_marker), (expect, false), "{value}");
    }
    for (text, expect) in [
        ("data: [DONE]\n\n", true),
        ("data:[DONE]", true),
        ("data:  [DONE] \r\n\r\n", true),
        ("data: [DONE] x\n\n", false),
        ("data: [DONE,1]\n\n", false),
        ("data: [[DONE]]\n\n", false),
        ("data: {\"a\":[DONE]}\n\n", false),
        ("data: [DON]\n\n", false),
        ("data: \"[DONE]\"\n\n", false),
        ("id: [DONE]\n\n", false),
    ] {
        let told = stream(text.as_bytes());
        assert_eq!((told.done_marker, told.finished), (expect, expect), "{text:?}");
    }
}

#[test]
fn usage_is_read_by_every_name_and_merged_field_by_field() {
    let usage = |input, output, reasoning| Usage { input, output, reasoning };
    let of = |values: &[Value]| stream(values.iter().map(event).collect::<String>().as_bytes()).usage;
    let chat = json!({"usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10,
        "completion_tokens_details": {"reasoning_tokens": 2}, "prompt_tokens_details": {"cached_tokens": 5}}});
    assert_eq!(of(std::slice::from_ref(&chat)), usage(Some(7), Some(3), Some(2)));
    assert_eq!(
        of(&[chat, json!({"usage": null}), json!({"usage": {"completion_tokens": 4, "prompt_tokens": null}})]),
        usage(Some(7), Some(4), Some(2))
    );
    let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 9, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 1}}});
    let end = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}});
    assert_eq!(of(&[start, end]), usage(Some(129), Some(5), None));
    let response = json!({"type": "response.completed", "response": {"usage": {"input_tokens": 4, "output_tokens": 6, "output_tokens_details": {"reasoning_tokens": 0}}}});
    assert_eq!(of(&[response]), usage(Some(4), Some(6), Some(0)));
    assert_eq!(
        of(&[json!({"details": {"finish_reason": "length", "generated_tokens": 12}})]),
        usage(None, Some(12), None)
    );
    for (input, output) in [
        ("promptTokenCount", "candidatesTokenCount"),
        ("inputTokens", "outputTokens"),
        ("input_token_count", "generated_token_count"),
    ] {
        assert_eq!(of(&[json!({"usageMetadata": {input: 1, output: 2}})]), usage(Some(1), Some(2), None));
    }
    let nested = json!({"choices": [[{"delta": {}}], [[{}]]], "details": {"generated_tokens": 3}, "usage": {"prompt_tokens": 1}});
    assert_eq!(of(&[nested]), usage(Some(1), Some(3), None));
    for value in [
        json!({"prompt_tokens": 1}),
        json!({"choices": [{"usage": {"prompt_tokens": 1}}]}),
        json!({"usage": {"x": {"prompt_tokens": 1}}}),
        json!({"usage": {"prompt_tokens": "1", "completion_tokens": -1}}),
        json!({"usage": {"prompt_tokens": 1.5, "completion_tokens": 9_999_999_999_u64}}),
        json!({"usage": [{"prompt_tokens": 1}]}),
    ] {
        assert_eq!(of(std::slice::from_ref(&value)), Usage::default(), "{value}");
    }
}

#[test]
fn an_event_that_is_not_json_gives_nothing_but_its_number() {
    for data in [
        "{\"error\":{}",
        "{\"usage\":{\"prompt_tokens\":1},}",
        "{\"choices\":[{\"finish_reason\":\"stop\",\"delta\":{\"content\":\"a\"}}]]",
        "hello",
        "{}{}",
        "{\"a\":01}",
        "{\"a\":1.}",
        "{\"a\" 1}",
        "{\"a\":\"\\x\"}",
        "nul",
        "1e",
        "-",
        "[1 2]",
    ] {
        let told = stream(format!("data: {data}\n\ndata: {{\"usage\":{{\"completion_tokens\":1}}}}\n\n").as_bytes());
        let seen = Seen { events: 2, ..Seen::default() };
        let usage = Usage { output: Some(1), ..Usage::default() };
        assert_eq!(told, Told { seen, usage, malformed: 1, ..Told::default() }, "{data}");
    }
    // A byte that is a digit but for its high bit.
    assert_eq!(stream(b"data: {\"a\":1\xb2,\"b\":1\xb22222222222222,\"c\":2}\n\n").malformed, 1);
    for data in ["", " ", "1", "-0.5e+7", "null", "\"x\"", "[]", "{ }", "\t{\"a\" : [ 1 , 2 ] }"] {
        let told = stream(format!("data:{data}\n\n").as_bytes());
        assert_eq!((told.seen.events, told.malformed), (1, 0), "{data:?}");
    }
    let deep = |levels: usize| format!("data: {}{}\n\n", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(stream(deep(json::DEPTH_MAX as usize).as_bytes()).malformed, 0);
    assert_eq!(stream(deep(json::DEPTH_MAX as usize + 1).as_bytes()).malformed, 1);
}

#[test]
fn lines_fields_and_comments_are_those_of_the_standard() {
    const A: &str = "{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}";
    for (text, events, comments) in [
        (format!("data: {A}\n\ndata:{A}\n\n"), 2, 0),
        (format!("data: {A}\r\n\r\ndata: {A}\r\n\r\n"), 2, 0),
        (format!("data: {A}\r\rdata: {A}\r\r"), 2, 0),
        (format!("data: {A}\r\n\ndata: {A}\n\r\n"), 2, 0),
        (format!(": keep-alive\n\nevent: x\nid: 3\nretry: 10\ndata: {A}\n\n:\n"), 1, 2),
        (format!("\u{feff}data: {A}\n\n"), 1, 0),
        (format!("\u{feff}\u{feff}data: {A}\n\n"), 0, 0),
        (format!("Data: {A}\n\ndat: {A}\n\ndatas: {A}\n\n data: {A}\n\n"), 0, 0),
        (format!("data: {A}"), 1, 0),
        (format!("data: {A}\n"), 1, 0),
        (format!("\n\n\ndata: {A}\n\n\n\n"), 1, 0),
        ("data: {\"choices\":[{\ndata:\"delta\":\ndata: {\"content\":\"a\"}}]}\n\n".into(), 1, 0),
        ("data: {\"choices\":[{\nid: 7\n: c\ndata:\"delta\":{\"content\":\"a\"}}]}\n\n".into(), 1, 1),
    ] {
        let told = stream(text.as_bytes());
        assert_eq!((told.seen.output_events, told.comments, told.malformed), (events, comments, 0), "{text:?}");
    }
    // A line feed between two lines of data is a blank, and parts what it stands in.
    assert_eq!(stream(b"data: {\"a\":1\ndata: 2}\n\n").malformed, 1);
    assert_eq!(stream(b"data\n\ndata:\n\ndata\ndata\n\nid\n\n").seen.events, 3);
    // A last line without its end counts as if it had one.
    assert_eq!((stream(b"data").seen.events, stream(b"dat").seen.events), (1, 0));
    assert!(stream(b"event: error").error && !stream(b"event: error\nevent").error);
    // A mark that breaks off is the beginning of a name.
    assert_eq!(stream(b"\xef\xbbdata: {}\n\n\xefdata: {}\n\ndata: {}\n\n").seen.events, 1);
}

#[test]
fn a_json_body_has_usage_and_errors_and_no_events() {
    let body = json!({"id": "x", "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}});
    for text in [body.to_string(), format!("\u{feff}{body:#}\n")] {
        let told = told(Scan::json(), text.as_bytes(), &[]);
        let usage = Usage { input: Some(4), output: Some(2), reasoning: None };
        assert_eq!(told, Told { usage, finished: true, ..Told::default() });
    }
    let list = json!([{"generated_text": "hi", "details": {"finish_reason": "length", "generated_tokens": 20}}]);
    assert_eq!(told(Scan::json(), list.to_string().as_bytes(), &[]).usage.output, Some(20));
    assert!(told(Scan::json(), b"{\"error\":{\"message\":\"x\"}}", &[]).error);
    let cut = told(Scan::json(), b"{\"usage\":{\"prompt_tokens\":4}", &[]);
    assert_eq!((cut.malformed, cut.usage), (1, Usage::default()));
    assert_eq!(told(Scan::json(), b"<html>", &[]).malformed, 1);
    assert_eq!(told(Scan::json(), b"", &[]), Told::default());
}

#[test]
fn a_large_event_is_read_to_its_end() {
    let text = "x\\n".repeat(1 << 20);
    let data =
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":\"stop\"}}]}}\n\n");
    let mut scan = Scan::stream();
    let mut seen = Seen::default();
    for piece in data.as_bytes().chunks(4096) {
        seen += scan.feed(piece);
    }
    assert_eq!(seen, Seen { events: 1, content_events: 1, output_events: 1 });
    assert!(scan.finished() && scan.malformed() == 0);
}

/// Eight times the bytes take about eight times as long; what is quadratic takes sixty-four times as long. The best of five of
/// each, as the machine may be busy.
#[test]
fn an_event_of_four_mebibytes_takes_time_in_proportion() {
    let best_ns = |bytes: usize| {
        let data =
            format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "a\\n".repeat(bytes / 3));
        let scan = || {
            let begin = std::time::Instant::now();
            let mut scan = Scan::stream();
            let events: u32 = data.as_bytes().chunks(4096).map(|piece| scan.feed(piece).content_events).sum();
            assert_eq!(events, 1);
            begin.elapsed().as_nanos()
        };
        (0..5).map(|_| scan()).min().unwrap()
    };
    let (small, large) = (best_ns(512 << 10), best_ns(4 << 20));
    assert!(large < 32 * small, "512 KiB in {small} ns, 4 MiB in {large} ns");
}

#[test]
fn an_event_over_the_limit_counts_unread_as_content() {
    let blanks = vec![b' '; 1 << 20];
    let mut scan = Scan::stream();
    let mut seen = scan.feed(b"data: {\"error\":1,");
    for _ in 0..limits::EVENT_BYTES_MAX >> 20 {
        seen += scan.feed(&blanks);
    }
    assert_eq!(seen, Seen::default());
    seen += scan.feed(b"\n\ndata: {\"type\":\"message_stop\"}\n\n");
    assert_eq!(seen, Seen { events: 2, content_events: 1, output_events: 1 });
    assert!(!scan.error() && scan.finished() && scan.malformed() == 0);
}

const CORPUS: &[&str] = &[
    "\u{feff}: hi\r\ndata: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"h\u{e9}llo \u{2615} \\u00e9\\n\\\"\"}}]}\r\n\r\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":20}}\r\n\r\ndata: [DONE]\r\n\r\n",
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\nevent: error\ndata: {\"type\":\"error\"}\n\n",
    "data: {\"t\\u0079pe\":\"respo\\u006ese.reasoning_text.\\u0064elta\",\"delta\":\"x\"}\r\rdata: {\"\\u0065rror\":null,\"choices\":[{\"te\\u0078t\":\"\\u0000\"}]}\r\r",
    "data: {\"token\":{\"special\":false,\"text\":\"a\"},\"generated_text\":null,\"a\":[true,false,null,-1.5e-3,[[]],{}]}\n\ndata:{\"details\":{\"finish_reason\":\"length\",\"generated_tokens\":12},\"generated_text\":\"x\"}",
    "data: {\"choices\":[{\ndata: \"delta\":{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"content\\\":1}\"}}]}}]}\n\ndata: {broken\n\nda",
];

#[test]
fn a_stream_split_at_every_byte_says_the_same() {
    for text in CORPUS {
        let whole = stream(text.as_bytes());
        assert!(whole.seen.events > 0 && whole.seen.content_events > 0, "{text}");
        for first in 0..=text.len() {
            assert_eq!(told(Scan::stream(), text.as_bytes(), &[first]), whole, "{first} {text:?}");
        }
        let all: Vec<_> = (0..text.len()).collect();
        assert_eq!(told(Scan::stream(), text.as_bytes(), &all), whole, "{text:?}");
        let json = told(Scan::json(), text.as_bytes(), &[]);
        assert_eq!(told(Scan::json(), text.as_bytes(), &all), json, "{text:?}");
    }
}

/// What a full parser and a plain walk say about one event, in place of the scanner.
#[derive(Default)]
struct Model {
    output: bool,
    reasoning: bool,
    error: bool,
    finished: bool,
    counts: Vec<(&'static str, u64)>,
}

fn filled(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(members) => !members.is_empty(),
        _ => false,
    }
}

fn says_something(value: &Value) -> bool {
    !(value.is_null() || *value == Value::Bool(false) || *value == Value::String(String::new()))
}

impl Model {
    fn of(value: &Value) -> Self {
        let mut model = Self::default();
        match value {
            Value::Array(list) => list.iter().for_each(|element| model.top(element)),
            top => model.top(top),
        }
        model
    }

    fn top(&mut self, top: &Value) {
        let kind = top["type"].as_str().unwrap_or_default();
        self.error |= says_something(&top["error"]) || matches!(kind, "error" | "response.failed");
        self.finished |= says_something(&top["stop_reason"])
            || !matches!(top["generated_text"], Value::Null | Value::Bool(false))
            || says_something(&top["details"]["finish_reason"])
            || (top["delta"].is_object() && says_something(&top["delta"]["stop_reason"]))
            || matches!(kind, "message_stop" | "response.completed" | "response.incomplete" | "response.failed");
        if kind == "content_block_delta" && top["delta"].is_object() {
            self.output |= filled(&top["delta"]["text"]) || filled(&top["delta"]["partial_json"]);
            self.reasoning |= filled(&top["delta"]["thinking"]);
        }
        if kind.starts_with("response.") && kind.ends_with(".delta") && filled(&top["delta"]) {
            if kind.contains("reasoning") { self.reasoning = true } else { self.output = true }
        }
        self.output |= filled(&top["token"]["text"]) && top["token"]["special"] != true;
        for choice in top["choices"].as_array().into_iter().flatten() {
            self.choice(choice);
        }
        // In the order of the text: the map of the parser is sorted, and so is what the test writes.
        for (name, value) in top.as_object().into_iter().flatten() {
            match name.as_str() {
                "usage" | "usageMetadata" => self.usage(value),
                "response" | "message" => self.usage(&value["usage"]),
                "details" => self.count("output", &value["generated_tokens"]),
                _ => {}
            }
        }
    }

    fn choice(&mut self, choice: &Value) {
        self.finished |= says_something(&choice["finish_reason"]);
        let delta = &choice["delta"];
        let function = |call: &Value| filled(&call["name"]) || filled(&call["arguments"]);
        let calls = delta["tool_calls"].as_array().into_iter().flatten();
        self.output |= filled(&choice["text"])
            || filled(&delta["content"])
            || calls.into_iter().any(|call| function(&call["function"]))
            || function(&delta["function_call"]);
        self.reasoning |= filled(&delta["reasoning_content"]) || filled(&delta["reasoning"]);
    }

    fn usage(&mut self, usage: &Value) {
        for (name, value) in usage.as_object().into_iter().flatten() {
            match name.as_str() {
                "prompt_tokens" | "promptTokenCount" => self.count("prompt", value),
                "input_tokens" | "inputTokens" | "input_token_count" => self.count("input", value),
                "cache_read_input_tokens" | "cacheReadInputTokens" => self.count("read", value),
                "cache_creation_input_tokens" | "cacheWriteInputTokens" => self.count("write", value),
                "completion_tokens"
                | "output_tokens"
                | "outputTokens"
                | "candidatesTokenCount"
                | "generated_token_count" => {
                    self.count("output", value);
                }
                "completion_tokens_details" | "output_tokens_details" => {
                    self.count("reasoning", &value["reasoning_tokens"])
                }
                "reasoning_tokens" => self.count("reasoning", value),
                _ => {}
            }
        }
    }

    fn count(&mut self, name: &'static str, value: &Value) {
        self.counts.extend(value.as_u64().filter(|&n| n < u64::from(u32::MAX)).map(|n| (name, n)));
    }
}

fn model_of_stream(values: &[Value]) -> Told {
    let mut told = Told::default();
    let mut counts = std::collections::BTreeMap::new();
    for model in values.iter().map(Model::of) {
        told.seen += Seen {
            events: 1,
            content_events: u32::from(model.output || model.reasoning),
            output_events: u32::from(model.output),
        };
        told.error |= model.error;
        told.finished |= model.finished;
        counts.extend(model.counts);
    }
    let count = |name| counts.get(name).copied();
    let with_cache = |n| n + count("read").unwrap_or(0) + count("write").unwrap_or(0);
    told.usage = Usage {
        input: count("prompt").or(count("input").map(with_cache)),
        output: count("output"),
        reasoning: count("reasoning"),
    };
    told
}

/// Names that matter somewhere, so that decoys in the wrong place are common.
const NAMES: &[&str] = &[
    "choices",
    "usage",
    "usageMetadata",
    "error",
    "type",
    "delta",
    "response",
    "message",
    "stop_reason",
    "details",
    "generated_text",
    "token",
    "text",
    "finish_reason",
    "content",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "function_call",
    "function",
    "name",
    "arguments",
    "thinking",
    "partial_json",
    "prompt_tokens",
    "promptTokenCount",
    "input_tokens",
    "inputTokens",
    "input_token_count",
    "completion_tokens",
    "output_tokens",
    "outputTokens",
    "candidatesTokenCount",
    "generated_token_count",
    "completion_tokens_details",
    "output_tokens_details",
    "reasoning_tokens",
    "cache_read_input_tokens",
    "cacheReadInputTokens",
    "cache_creation_input_tokens",
    "cacheWriteInputTokens",
    "generated_tokens",
    "special",
    "id",
    "index",
    "",
    "caf\u{e9}",
    "a\"b\\",
];
const STRINGS: &[&str] = &[
    "",
    "",
    "a",
    "\"error\":1",
    "{\"choices\":[{\"delta\":{\"content\":\"x\"}}]}",
    "\u{0}",
    "line\nline",
    "caf\u{e9} \u{2615}",
    "\\",
    "\"",
    "stop",
    "error",
    "content_block_delta",
    "message_stop",
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.output_text.delta",
    "response.reasoning_text.delta",
    "response.output_text.done",
    "a longer text, so that it is more than the thirty-two bytes that are looked at by words: \"quoted\" at its end",
];

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => prop::sample::select(STRINGS).prop_map(Value::from),
        1 => "\\PC{0,12}".prop_map(Value::from),
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        3 => (0u64..5000).prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
    ]
}

fn anything() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(6, 40, 6, |inner| {
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            3 => prop::collection::btree_map(prop::sample::select(NAMES), inner, 0..5)
                .prop_map(|map| map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

/// An object in which each of the names may be there, with a value that is likely for it.
fn object<const N: usize>(members: [(&'static str, BoxedStrategy<Value>); N]) -> BoxedStrategy<Value> {
    let members: Vec<_> = members
        .into_iter()
        .map(|(name, likely)| {
            prop_oneof![3 => likely.prop_map(Some), 4 => Just(None), 1 => anything().prop_map(Some)]
                .prop_map(move |value| value.map(|value| (name.to_owned(), value)))
        })
        .collect();
    members.prop_map(|members| members.into_iter().flatten().collect()).boxed()
}

fn list(of: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    prop::collection::vec(of, 0..3).prop_map(Value::from).boxed()
}

fn usage() -> BoxedStrategy<Value> {
    let n = || (0u64..100_000).prop_map(Value::from).boxed();
    object([
        ("prompt_tokens", n()),
        ("input_tokens", n()),
        ("cache_read_input_tokens", n()),
        ("completion_tokens", n()),
        ("output_tokens", n()),
        ("completion_tokens_details", object([("reasoning_tokens", n()), ("x", n())])),
        ("prompt_tokens_details", object([("reasoning_tokens", n())])),
    ])
}

/// An event of one of the APIs, or something like it.
fn api_event() -> BoxedStrategy<Value> {
    let text = || leaf().boxed();
    let function = object([("name", text()), ("arguments", text())]);
    let call = object([("id", text()), ("function", function.clone())]);
    let delta = object([
        ("role", text()),
        ("content", text()),
        ("reasoning_content", text()),
        ("reasoning", text()),
        ("tool_calls", list(call)),
        ("function_call", function),
    ]);
    let choice = object([
        ("index", text()),
        ("delta", delta),
        ("text", text()),
        ("finish_reason", text()),
        ("logprobs", anything().boxed()),
    ]);
    let chat = object([("id", text()), ("choices", list(choice)), ("usage", usage()), ("error", text())]);
    let block = object([
        ("type", text()),
        ("text", text()),
        ("thinking", text()),
        ("partial_json", text()),
        ("stop_reason", text()),
    ]);
    let inner = object([("usage", usage()), ("error", text())]);
    let typed = object([
        ("type", text()),
        ("delta", prop_oneof![block, text()].boxed()),
        ("message", inner.clone()),
        ("response", inner),
        ("usage", usage()),
    ]);
    let generate = object([
        ("token", object([("text", text()), ("special", any::<bool>().prop_map(Value::from).boxed())])),
        ("generated_text", text()),
        ("details", object([("finish_reason", text()), ("generated_tokens", text())])),
    ]);
    let one = prop_oneof![4 => chat, 4 => typed, 2 => generate, 2 => anything()].boxed();
    prop_oneof![9 => one.clone(), 1 => list(one)].boxed()
}

/// Writes a value as some server might: blanks or none, and any character as an escape.
struct Writer {
    seed: u64,
    escapes: bool,
    blanks: bool,
}

impl Writer {
    fn one_in(&mut self, n: u64) -> bool {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed.is_multiple_of(n)
    }

    fn blank(&mut self, out: &mut String) {
        if self.blanks && self.one_in(3) {
            out.push(if self.one_in(4) { '\t' } else { ' ' });
        }
    }

    fn string(&mut self, text: &str, out: &mut String) {
        out.push('"');
        for unit in text.chars() {
            let must = matches!(unit, '"' | '\\') || unit < ' ';
            if (u32::from(unit) < 0x800) && (must || (self.escapes && self.one_in(6))) {
                out.push_str(&format!("\\u{:04x}", u32::from(unit)));
            } else {
                out.push(unit);
            }
        }
        out.push('"');
    }

    fn value(&mut self, value: &Value, out: &mut String) {
        self.blank(out);
        match value {
            Value::String(text) => self.string(text, out),
            Value::Array(list) => {
                out.push('[');
                for (i, element) in list.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    self.value(element, out);
                }
                self.blank(out);
                out.push(']');
            }
            Value::Object(members) => {
                out.push('{');
                for (i, (name, member)) in members.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    self.blank(out);
                    self.string(name, out);
                    self.blank(out);
                    out.push(':');
                    self.value(member, out);
                }
                self.blank(out);
                out.push('}');
            }
            plain => out.push_str(&plain.to_string()),
        }
        self.blank(out);
    }
}

fn written(seed: u64, value: &Value) -> String {
    let mut writer = Writer { seed: seed | 1, escapes: seed & 2 != 0, blanks: seed & 4 != 0 };
    let mut out = String::new();
    writer.value(value, &mut out);
    out
}

fn sorted(mut cuts: Vec<usize>, length: usize) -> Vec<usize> {
    cuts.iter_mut().for_each(|cut| *cut %= length + 1);
    cuts.sort_unstable();
    cuts
}

fn assert_agrees(values: &[Value], seed: u64, cuts: Vec<usize>) {
    let end = ["\n", "\r\n", "\r"][(seed >> 3) as usize % 3];
    let text: String = values.iter().map(|value| format!("data: {}{end}{end}", written(seed, value))).collect();
    let parsed: Vec<Value> = values.iter().map(|v| serde_json::from_str(&written(seed, v)).unwrap()).collect();
    let expect = model_of_stream(&parsed);
    assert_eq!(stream(text.as_bytes()), expect, "{text}");
    // Where there is text, the scan saw content.
    let texts = crate::wire::text::of_stream(text.as_bytes());
    assert!(texts.output.is_empty() || expect.seen.output_events > 0, "{texts:?} {text}");
    assert!(texts.reasoning.is_empty() || expect.seen.content_events > 0, "{texts:?} {text}");
    let cuts = sorted(cuts, text.len());
    assert_eq!(told(Scan::stream(), text.as_bytes(), &cuts), expect, "{cuts:?} {text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn events_of_every_api_mean_what_a_full_parser_finds(
        values in prop::collection::vec(api_event(), 0..5), seed: u64, cuts in prop::collection::vec(0usize..4096, 0..9)
    ) {
        assert_agrees(&values, seed, cuts);
    }

    #[test]
    fn any_json_means_what_a_full_parser_finds(
        value in anything(), seed: u64, cuts in prop::collection::vec(0usize..512, 0..9)
    ) {
        assert_agrees(&[value], seed, cuts);
    }

    #[test]
    fn a_whole_json_body_means_what_a_full_parser_finds(
        value in api_event(), seed: u64, cuts in prop::collection::vec(0usize..4096, 0..9)
    ) {
        let text = written(seed, &value);
        let model = model_of_stream(&[serde_json::from_str(&text).unwrap()]);
        let expect = Told { seen: Seen::default(), ..model };
        prop_assert_eq!(told(Scan::json(), text.as_bytes(), &[]), expect, "{}", text);
        prop_assert_eq!(told(Scan::json(), text.as_bytes(), &sorted(cuts, text.len())), expect, "{}", text);
    }

    #[test]
    fn what_is_json_is_what_a_full_parser_takes(
        value in anything(), seed: u64, at: usize,
        change in prop::sample::select(&b"{}[]\",:0159eE+-.tfn\\ "[..]), how in 0..3u8
    ) {
        let mut text = written(seed & !2, &value).into_bytes();
        let at = at % text.len();
        match how {
            0 => text[at] = change,
            1 => text.insert(at, change),
            _ => drop(text.remove(at)),
        }
        let parsed = serde_json::from_slice::<Value>(&text);
        // Invalid UTF-8 and numbers beyond a float are the parser's to refuse; they are no concern of a scan.
        let excused = std::str::from_utf8(&text).is_err()
            || parsed.as_ref().is_err_and(|e| e.to_string().starts_with("number out of range"))
            || text.trim_ascii().is_empty();
        if !excused {
            let told = told(Scan::json(), &text, &[]);
            prop_assert_eq!(told.malformed, u32::from(parsed.is_err()), "{}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn any_bytes_say_the_same_under_any_split(
        parts in prop::collection::vec(prop::sample::select(&[
            "data", ":", " ", "\n", "\r", "\r\n", "\n\n", "event", "error", "\u{feff}", "{", "}", "[", "]", "\"", "\\", "u0065",
            ",", "choices", "[DONE]", "null", "1", "-", ".5", "e", "\"error\":", "\"type\":\"", "data: {}", "x",
        ][..]), 0..40),
        cuts in prop::collection::vec(0usize..200, 0..12)
    ) {
        let text = parts.concat();
        let cuts = sorted(cuts, text.len());
        for scan in [Scan::stream(), Scan::json()] {
            let whole = told(scan, text.as_bytes(), &[]);
            prop_assert_eq!(told(scan, text.as_bytes(), &cuts), whole, "{:?} {:?}", cuts, text);
        }
    }
}
