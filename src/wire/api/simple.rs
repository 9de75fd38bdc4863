//! The APIs that take one turn: completions, embeddings, rankings, generate and the generators of media.

use super::{
    Endpoint, Formatted, Object, Request, Settings, Text, Turn, images, merge_record, merged, messages::truth,
    object::UsageRule, only, texts,
};

type Written = Result<(), String>;

pub(super) fn completions(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let texts = texts(only(request, "completions")?);
    let mut body = Object::new(out, merged(settings, request));
    body.member("prompt", |out| {
        match texts.as_slice() {
            &[text] => out.string(text),
            many => out.list(many, |out, text| out.string(*text)),
        }
        Ok::<_, String>(())
    })?;
    body.string("model", Text::Plain(request.model));
    body.json("stream", truth(settings.streaming));
    if let Some(cap) = request.output_tokens {
        body.json("max_tokens", cap.max(1).to_string().as_bytes());
    }
    body.close(Some(UsageRule { stream: settings.streaming, per_chunk: false }));
    Ok(())
}

pub(super) fn embeddings(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let texts = texts(only(request, "embeddings")?);
    let mut body = Object::new(out, merged(settings, request));
    body.string("model", Text::Plain(request.model));
    body.member("input", |out| {
        out.list(texts, |out, text| out.string(text));
        Ok::<_, String>(())
    })?;
    body.close(None);
    Ok(())
}

pub(super) fn nim_embeddings(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let turn = only(request, "nim_embeddings")?;
    let (texts, images) = (texts(turn), images(turn).map(|m| m.value.as_ref()).collect::<Vec<_>>());
    if !texts.is_empty() && !images.is_empty() && texts.len() != images.len() {
        return Err(format!("{} texts and {} images, expected as many of each", texts.len(), images.len()));
    }
    let mut body = Object::new(out, merged(settings, request));
    body.string("model", Text::Plain(request.model));
    body.member("input", |out| {
        out.list(0..texts.len().max(images.len()), |out, i| {
            out.push(b"\"");
            if let Some(&text) = texts.get(i) {
                out.inner(text);
            }
            if let Some(image) = images.get(i) {
                out.push(if texts.is_empty() { b"" } else { b" " });
                out.inner(Text::Plain(image));
            }
            out.push(b"\"");
        });
        Ok::<_, String>(())
    })?;
    body.close(None);
    Ok(())
}

pub(super) fn rankings(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let named = |wanted: &'static [&str]| {
        let texts = match request.turns {
            [Turn::Content(content)] => content.texts.as_slice(),
            _ => &[],
        };
        texts.iter().filter(move |m| wanted.contains(&m.name.as_ref())).map(|m| Text::Plain(&m.value))
    };
    only(request, settings.endpoint.name())?;
    let query = named(&["query", "queries"])
        .next()
        .ok_or("there is no text named query or queries, which rankings need beside those named passages")?;
    let passages = || named(&["passages"]);
    let mut body = Object::new(out, merged(settings, request));
    match settings.endpoint {
        Endpoint::NimRankings => {
            body.string("model", Text::Plain(request.model));
            let text = |out: &mut Formatted, text: Text<'_>| {
                out.push(br#"{"text":"#);
                out.string(text);
                out.push(b"}");
            };
            body.member("query", |out| {
                text(out, query);
                Ok::<_, String>(())
            })?;
            body.member("passages", |out| {
                out.list(passages(), text);
                Ok::<_, String>(())
            })?;
        }
        Endpoint::CohereRankings => {
            body.string("model", Text::Plain(request.model));
            body.string("query", query);
            body.member("documents", |out| {
                out.list(passages(), |out, text| out.string(text));
                Ok::<_, String>(())
            })?;
        }
        _ => {
            body.string("query", query);
            body.member("texts", |out| {
                out.list(passages(), |out, text| out.string(text));
                Ok::<_, String>(())
            })?;
        }
    }
    body.close(None);
    Ok(())
}

pub(super) fn generate(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let texts = texts(only(request, "generate")?);
    // The run's extra inputs are generation parameters here, the record's own are members of the body.
    let mut own = Vec::new();
    merge_record(&mut own, request);
    let mut body = Object::new(out, own);
    body.member("inputs", |out| {
        out.push(b"\"");
        for (i, text) in texts.iter().enumerate() {
            out.push(if i > 0 { b" " } else { b"" });
            out.inner(*text);
        }
        out.push(b"\"");
        Ok::<_, String>(())
    })?;
    body.member("parameters", |out| {
        let run = Request { extra: None, ..*request };
        let mut parameters = Object::new(out, merged(settings, &run));
        if let Some(cap) = request.output_tokens {
            parameters.json("max_new_tokens", cap.max(1).to_string().as_bytes());
        }
        parameters.close(None);
        Ok::<_, String>(())
    })?;
    body.close(None);
    Ok(())
}

pub(super) fn generation(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let prompt = prompt(request, settings.endpoint.name())?;
    let mut body = Object::new(out, merged(settings, request));
    body.string("prompt", prompt);
    body.string("model", Text::Plain(request.model));
    if settings.endpoint == Endpoint::ImageGeneration {
        body.string("response_format", Text::Plain("b64_json"));
        body.json("n", b"1");
        if settings.streaming {
            body.json("stream", b"true");
        }
    }
    body.close(None);
    Ok(())
}

/// The first text of a turn, which the generators of media need.
pub(super) fn prompt<'a>(request: &Request<'a>, api: &str) -> Result<Text<'a>, String> {
    match only(request, api)? {
        Turn::Content(content) => content
            .texts
            .first()
            .map(|m| Text::Plain(&m.value))
            .ok_or_else(|| format!("there is no text, which {api} needs")),
        _ => Ok(Text::Hole),
    }
}

pub(super) fn image_retrieval(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let turn = only(request, "image_retrieval")?;
    if images(turn).next().is_none() {
        return Err("there is no image, which image_retrieval needs".into());
    }
    let mut body = Object::new(out, merged(settings, request));
    body.member("input", |out| {
        out.list(images(turn), |out, image| {
            out.push(br#"{"type":"image_url","url":"#);
            out.string(Text::Plain(&image.value));
            out.push(b"}");
        });
        Ok::<_, String>(())
    })?;
    body.close(None);
    Ok(())
}

pub(super) fn solido_rag(settings: &Settings, request: &Request<'_>, out: &mut Formatted) -> Written {
    let texts = texts(only(request, "solido_rag")?);
    let mut body = Object::new(out, merged(settings, request));
    body.member("query", |out| {
        out.list(texts, |out, text| out.string(text));
        Ok::<_, String>(())
    })?;
    body.json("filters", br#"{"family":"Solido","tool":"SDE"}"#);
    body.string("inference_model", Text::Plain(request.model));
    body.close(None);
    Ok(())
}
