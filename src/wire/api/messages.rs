//! The APIs that take a conversation: chat, responses, messages.

use super::{Formatted, Object, Request, Settings, Text, Turn, merged, object::UsageRule};
use crate::data::{
    json::{Kind, Value},
    record::{Content, Media},
};

/// Between a system prompt of the run's and one of the dataset's.
const SYSTEM_JOIN: &str = "\n\n";
/// Cap of a messages body that has none: the API wants one.
const ANTHROPIC_CAP: u32 = 1024;
/// Output items of the responses API that it does not take back as input.
const NOT_INPUT: [&[u8]; 6] = [
    br#""web_search_call""#,
    br#""file_search_call""#,
    br#""image_generation_call""#,
    br#""code_interpreter_call""#,
    br#""computer_call""#,
    br#""reasoning""#,
];

/// How an API writes a message and its parts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Chat,
    Responses,
    Anthropic,
}

type Written = Result<(), String>;

pub(super) fn chat(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let mut body = Object::new(out, merged(settings, request));
    let system = system(settings, request);
    body.member("messages", |out| list(Dialect::Chat, request, system.as_deref(), out))?;
    body.string("model", Text::Plain(request.model));
    body.json("stream", truth(settings.streaming));
    if let Some(tools) = tools(request) {
        body.json("tools", tools);
    }
    if let Some(cap) = request.output_tokens {
        let name = if settings.legacy_max_tokens { "max_tokens" } else { "max_completion_tokens" };
        body.json(name, cap.max(1).to_string().as_bytes());
    }
    body.close(Some(UsageRule { stream: settings.streaming, per_chunk: settings.per_chunk_usage }));
    Ok(())
}

pub(super) fn responses(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let mut body = Object::new(out, merged(settings, request));
    body.member("input", |out| list(Dialect::Responses, request, None, out))?;
    body.string("model", Text::Plain(request.model));
    body.json("stream", truth(settings.streaming));
    if let Some(system) = system(settings, request) {
        body.string("instructions", Text::Plain(&system));
    }
    if let Some(cap) = request.output_tokens {
        body.json("max_output_tokens", cap.max(1).to_string().as_bytes());
    }
    if let Some(tools) = tools(request) {
        body.json("tools", tools);
    }
    let usage = settings.streaming && settings.server_token_count;
    body.close(usage.then_some(UsageRule { stream: true, per_chunk: false }));
    Ok(())
}

pub(super) fn anthropic(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let mut body = Object::new(out, merged(settings, request));
    body.string("model", Text::Plain(request.model));
    body.member("messages", |out| list(Dialect::Anthropic, request, None, out))?;
    body.json("max_tokens", request.output_tokens.unwrap_or(ANTHROPIC_CAP).max(1).to_string().as_bytes());
    if settings.streaming {
        body.json("stream", b"true");
    }
    if let Some(system) = system(settings, request) {
        body.string("system", Text::Plain(&system));
    }
    if let Some(tools) = tools(request) {
        body.json("tools", tools);
    }
    body.close(None);
    Ok(())
}

pub(super) const fn truth(value: bool) -> &'static [u8] {
    if value { b"true" } else { b"false" }
}

/// The conversation's system message: the run's, then the dataset's.
fn system(settings: &Settings, request: &Request<'_>) -> Option<String> {
    let own = request.turns.iter().find_map(|turn| match turn {
        Turn::Content(content) => content.system.as_deref(),
        _ => None,
    });
    match (settings.system.as_deref(), own) {
        (Some(run), Some(own)) => Some([run, own].join(SYSTEM_JOIN)),
        (one, other) => one.or(other).map(str::to_owned),
    }
}

/// The tools of the latest turn that has them.
fn tools<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    request.turns.iter().rev().find_map(|turn| match turn {
        Turn::Messages { tools, .. } => *tools,
        _ => None,
    })
}

/// The array of messages, with a system message in front or in the one that is there.
fn list(dialect: Dialect, request: &Request<'_>, system: Option<&str>, out: &mut Formatted) -> Written {
    // The plain case goes out with the very bytes that the dataset has, spaces too.
    if let (&[Turn::Messages { messages, .. }], None) = (request.turns, system)
        && kept(dialect, messages).all(|(_, keep)| keep)
    {
        out.push(messages);
        return Ok(());
    }
    let mut any = false;
    let mut next = |out: &mut Formatted| {
        out.push(if std::mem::replace(&mut any, true) { b"," } else { b"" });
    };
    out.push(b"[");
    let mut system = system;
    if let Some(text) = system.take_if(|_| !leads_with_system(request)) {
        next(out);
        out.push(br#"{"role":"system","content":"#);
        out.string(Text::Plain(text));
        out.push(b"}");
    }
    for turn in request.turns {
        match turn {
            Turn::Messages { messages, .. } => {
                for (item, _) in kept(dialect, messages).filter(|&(_, keep)| keep) {
                    next(out);
                    match system.take() {
                        Some(text) => with_system(item, text, out),
                        None => out.push(item.bytes()),
                    }
                }
            }
            Turn::Content(content) => {
                next(out);
                one(dialect, content, system.take(), out)?;
            }
            Turn::Prompt => {
                next(out);
                hole(dialect, "user", out);
            }
            Turn::Answer => {
                next(out);
                hole(dialect, "assistant", out);
            }
        }
    }
    out.push(b"]");
    Ok(())
}

/// The items of a messages array, each with whether the API takes it.
fn kept(dialect: Dialect, messages: &[u8]) -> impl Iterator<Item = (Value<'_>, bool)> {
    let items = Value::parse(messages).ok();
    items.into_iter().flat_map(Value::elements).map(move |item| {
        let refused =
            dialect == Dialect::Responses && item.member("type").is_some_and(|kind| NOT_INPUT.contains(&kind.bytes()));
        (item, !refused)
    })
}

fn leads_with_system(request: &Request<'_>) -> bool {
    match request.turns.first() {
        Some(Turn::Messages { messages, .. }) => kept(Dialect::Chat, messages)
            .next()
            .and_then(|(item, _)| item.member("role"))
            .and_then(Value::string)
            .is_some_and(|role| role == "system"),
        Some(Turn::Content(content)) => content.role.as_deref() == Some("system"),
        _ => false,
    }
}

/// A system message of the dataset's with the run's prompt in front of its content.
fn with_system(item: Value<'_>, text: &str, out: &mut Formatted) {
    let mut members: Vec<_> = item.members().collect();
    if !members.iter().any(|(name, _)| name == "content") {
        members.push(("content".into(), item));
    }
    out.push(b"{");
    for (i, (name, value)) in members.iter().enumerate() {
        out.push(if i > 0 { b"," } else { b"" });
        out.string(Text::Plain(name));
        out.push(b":");
        match (name.as_ref(), value.kind(), value.string()) {
            ("content", Kind::Array, _) => {
                out.push(br#"[{"type":"text","text":"#);
                out.string(Text::Plain(text));
                out.push(b"}");
                for part in value.elements() {
                    out.push(b",");
                    out.push(part.bytes());
                }
                out.push(b"]");
            }
            ("content", _, Some(own)) if !own.is_empty() => {
                out.string(Text::Plain(&[text, &own].join(SYSTEM_JOIN)));
            }
            ("content", ..) => out.string(Text::Plain(text)),
            _ => out.push(value.bytes()),
        }
    }
    out.push(b"}");
}

fn hole(dialect: Dialect, role: &str, out: &mut Formatted) {
    out.push(br#"{"role":"#);
    out.string(Text::Plain(role));
    out.push(br#","content":"#);
    out.string(Text::Hole);
    end(dialect, out);
}

fn end(dialect: Dialect, out: &mut Formatted) {
    out.push(if dialect == Dialect::Responses { br#","type":"message"}"# } else { b"}" });
}

/// One message of texts and media.
fn one(dialect: Dialect, content: &Content<'_>, system: Option<&str>, out: &mut Formatted) -> Written {
    out.push(br#"{"role":"#);
    out.string(Text::Plain(content.role.as_deref().unwrap_or("user")));
    out.push(br#","content":"#);
    let media = content.images.len() + content.audios.len() + content.videos.len();
    match (content.texts.as_slice(), media, system) {
        ([text], 0, None) => out.string(Text::Plain(&text.value)),
        ([text], 0, Some(system)) => out.string(Text::Plain(&[system, &text.value].join(SYSTEM_JOIN))),
        _ => parts(dialect, content, system, out)?,
    }
    end(dialect, out);
    Ok(())
}

/// The content of a message as a list of parts: texts, images, audios, videos; an empty string when there are none.
fn parts(dialect: Dialect, content: &Content<'_>, system: Option<&str>, out: &mut Formatted) -> Written {
    let start = out.bytes.len();
    let mut any = false;
    let mut next = |out: &mut Formatted| {
        out.push(if std::mem::replace(&mut any, true) { b"," } else { b"[" });
    };
    let there = |list: &'_ [Media<'_>]| list.iter().any(|m| !m.value.is_empty());
    let refused = match dialect {
        Dialect::Anthropic if there(&content.audios) => Some("audio has no place in messages bodies"),
        Dialect::Anthropic if there(&content.videos) => Some("video has no place in messages bodies"),
        Dialect::Responses if there(&content.videos) => Some("video has no place in responses bodies"),
        _ => None,
    };
    if let Some(what) = refused {
        return Err(format!("{what}; --endpoint chat takes it"));
    }
    let text_part = if dialect == Dialect::Responses { "input_text" } else { "text" };
    let texts = system.into_iter().chain(content.texts.iter().map(|m| m.value.as_ref())).filter(|t| !t.is_empty());
    for text in texts {
        next(out);
        out.push(br#"{"type":"#);
        out.string(Text::Plain(text_part));
        out.push(br#","text":"#);
        out.string(Text::Plain(text));
        out.push(b"}");
    }
    for medium in content.images.iter().filter(|m| !m.value.is_empty() || !m.uuid.is_empty()) {
        next(out);
        image(dialect, medium, out);
    }
    for medium in content.audios.iter().filter(|m| !m.value.is_empty()) {
        next(out);
        audio(&medium.value, out)?;
    }
    for medium in content.videos.iter().filter(|m| !m.value.is_empty()) {
        next(out);
        out.push(br#"{"type":"video_url","video_url":{"url":"#);
        out.string(Text::Plain(&medium.value));
        out.push(b"}}");
    }
    out.push(if out.bytes.len() == start { br#""""# } else { b"]" });
    Ok(())
}

fn image(dialect: Dialect, medium: &Media<'_>, out: &mut Formatted) {
    let url = medium.value.as_ref();
    match dialect {
        Dialect::Chat => {
            out.push(br#"{"type":"image_url","image_url":{"url":"#);
            out.string(Text::Plain(url));
            out.push(b"}");
            if !medium.uuid.is_empty() {
                out.push(br#","uuid":"#);
                out.string(Text::Plain(&medium.uuid));
            }
        }
        Dialect::Responses => {
            out.push(br#"{"type":"input_image","image_url":"#);
            out.string(Text::Plain(url));
        }
        Dialect::Anthropic => {
            out.push(br#"{"type":"image","source":{"type":"#);
            match url.strip_prefix("data:").and_then(|rest| rest.split_once(',')) {
                Some((header, data)) => {
                    let kind = header.split(';').next().filter(|kind| !kind.is_empty()).unwrap_or("image/png");
                    out.push(br#""base64","media_type":"#);
                    out.string(Text::Plain(kind));
                    out.push(br#","data":"#);
                    out.string(Text::Plain(data));
                }
                None => {
                    out.push(br#""url","url":"#);
                    out.string(Text::Plain(url));
                }
            }
            out.push(b"}");
        }
    }
    out.push(b"}");
}

/// `wav,BASE64` or a data URL.
fn audio(value: &str, out: &mut Formatted) -> Written {
    let Some((header, data)) = value.split_once(',') else {
        let shown: String = value.chars().take(40).collect();
        return Err(format!("audio is \"{shown}\", expected wav,BASE64 or data:audio/wav;base64,BASE64"));
    };
    let format = match header.strip_prefix("data:audio/") {
        Some(rest) => rest.split(';').next().filter(|f| !f.is_empty()).unwrap_or("wav"),
        None => header,
    };
    out.push(br#"{"type":"input_audio","input_audio":{"data":"#);
    out.string(Text::Plain(data));
    out.push(br#","format":"#);
    out.string(Text::Plain(format));
    out.push(b"}}");
    Ok(())
}
