//! Bodies by a template of the user's (MiniJinja), as AIPerf's template endpoint has it with Jinja.
//!
//! | name | value |
//! | --- | --- |
//! | `text`, `texts` | first and all texts; `image(s)`, `audio(s)`, `video(s)` likewise |
//! | `query`, `queries`, `passage`, `passages` | texts of those names |
//! | `model`, `max_tokens`, `stream`, `role` | of the record |
//! | `texts_by_name`, ... | maps from name to list |
//!
//! The text must come out as a JSON object. Nothing is escaped by itself: `{{ text|tojson }}` quotes.

use minijinja::{AutoEscape, Environment, Value as Jinja};

use super::{Formatted, Object, Request, Settings, Turn, merged};
use crate::data::{
    Error, json,
    record::{Content, Media},
};

/// Stands for a hole while the template runs: nothing in it is escaped by any filter.
const HOLE: &str = "ringloadholex7q2v9kd4";

/// Templates with a name of their own.
const NAMED: [(&str, &str); 1] = [("nv-embedqa", r#"{"text": {{ texts|tojson }}}"#)];

/// A compiled template.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
}

impl Template {
    /// Compiles a template's text, or one of the named ones.
    pub fn new(text: &str) -> Result<Self, Error> {
        let text = NAMED.iter().find(|(name, _)| *name == text.trim()).map_or(text, |(_, text)| text);
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment
            .add_template_owned("body", text.to_owned())
            .map_err(|e| Error::usage(format!("--template: {}", first_line(&e))))?;
        Ok(Self { environment })
    }

    pub(super) fn format(&self, settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Result<(), String> {
        let template = self.environment.get_template("body").map_err(|e| first_line(&e))?;
        let rendered =
            template.render(variables(settings, request)?).map_err(|e| format!("template: {}", first_line(&e)))?;
        let object = json::object(rendered.as_bytes(), |_, _| {}).map_err(|e| {
            let near: String = rendered.chars().take(60).collect();
            format!("the template gives no JSON object: {} at byte {} of `{}`", e.what, e.at + 1, near.escape_debug())
        })?;
        let extra = merged(settings, request);
        if extra.is_empty() {
            out.push(object.bytes());
        } else {
            let mut body = Object::new(out, extra);
            for (name, value) in object.members() {
                body.json(&name, value.bytes());
            }
            body.close(None);
        }
        cut_holes(out);
        Ok(())
    }
}

fn first_line(error: &minijinja::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Takes the stand-ins out of the bytes and leaves their places.
fn cut_holes(out: &mut Formatted) {
    let found: Vec<_> = memchr::memmem::find_iter(&out.bytes, HOLE).collect();
    if found.is_empty() {
        return;
    }
    let mut bytes = Vec::with_capacity(out.bytes.len());
    let mut from = 0;
    for at in found {
        bytes.extend_from_slice(&out.bytes[from..at]);
        out.holes.push(bytes.len());
        from = at + HOLE.len();
    }
    bytes.extend_from_slice(&out.bytes[from..]);
    out.bytes = bytes;
}

fn variables(settings: &Settings, request: &Request<'_>) -> Result<Jinja, String> {
    let hole = Content::text(HOLE);
    let content = match request.turns.last() {
        Some(Turn::Content(content)) => content,
        Some(Turn::Prompt | Turn::Answer) => &hole,
        Some(Turn::Messages { .. }) => {
            return Err("a messages array has no place in a template; --endpoint chat takes it".into());
        }
        None => return Err("there is no turn".into()),
    };
    let all = |list: &[Media<'_>]| list.iter().map(|m| Jinja::from(m.value.as_ref())).collect::<Vec<_>>();
    let named = |names: &[&str]| {
        let texts = content.texts.iter().filter(|m| names.contains(&m.name.as_ref()));
        texts.map(|m| Jinja::from(m.value.as_ref())).collect::<Vec<_>>()
    };
    let by_name = |list: &[Media<'_>]| {
        let mut map: Vec<(String, Vec<Jinja>)> = Vec::new();
        for m in list {
            match map.iter_mut().find(|(name, _)| *name == m.name) {
                Some((_, values)) => values.push(Jinja::from(m.value.as_ref())),
                None => map.push((m.name.to_string(), vec![Jinja::from(m.value.as_ref())])),
            }
        }
        Jinja::from_iter(map)
    };
    let first = |list: &[Jinja]| list.first().cloned().unwrap_or(Jinja::from(()));
    let (texts, images) = (all(&content.texts), all(&content.images));
    let (audios, videos) = (all(&content.audios), all(&content.videos));
    let queries = named(&["query"]);
    let passages = match named(&["passages"]) {
        list if list.is_empty() => named(&["passage"]),
        list => list,
    };
    Ok(minijinja::context! {
        text => first(&texts), image => first(&images), audio => first(&audios), video => first(&videos),
        query => first(&queries), passage => first(&passages),
        texts, images, audios, videos, queries, passages,
        texts_by_name => by_name(&content.texts), images_by_name => by_name(&content.images),
        audios_by_name => by_name(&content.audios), videos_by_name => by_name(&content.videos),
        model => request.model, max_tokens => request.output_tokens, stream => settings.streaming,
        role => content.role.as_deref(),
    })
}
