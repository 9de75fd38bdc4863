//! Bodies of every API, held against what AIPerf 0.13 sends for the same input.

use super::*;

fn settings(endpoint: Endpoint) -> Settings {
    Settings { endpoint, ..Settings::default() }
}

fn extra(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// The body with `<>` in each hole.
fn made(settings: Settings, request: Request<'_>) -> Result<String, String> {
    let mut out = Formatted::default();
    Formatter::new(settings).unwrap().format(&request, &mut out)?;
    let mut text = out.bytes;
    for &hole in out.holes.iter().rev() {
        text.splice(hole..hole, *b"<>");
    }
    Ok(String::from_utf8(text).unwrap())
}

fn content(settings: Settings, content: &Content<'_>, cap: Option<u32>, extra: Option<&str>) -> Result<String, String> {
    let turns = [Turn::Content(content)];
    made(settings, Request { turns: &turns, model: "m", output_tokens: cap, extra: extra.map(str::as_bytes) })
}

fn prompt(settings: Settings, cap: Option<u32>) -> String {
    made(settings, Request { turns: &[Turn::Prompt], model: "m", output_tokens: cap, extra: None }).unwrap()
}

fn named(pairs: &[(&'static str, &'static str)]) -> Content<'static> {
    let texts = pairs.iter().map(|&(name, value)| Media { name: name.into(), value: value.into(), ..Media::default() });
    Content { texts: texts.collect(), ..Content::default() }
}

fn media(value: &'static str) -> Vec<Media<'static>> {
    vec![Media { value: value.into(), ..Media::default() }]
}

#[test]
fn a_stream_is_asked_only_of_apis_that_have_them() {
    for endpoint in Endpoint::ALL {
        let template = (endpoint == Endpoint::Template).then(|| "{}".to_owned());
        let made = Formatter::new(Settings { streaming: true, template, ..settings(endpoint) });
        assert_eq!(made.is_ok(), endpoint.streams(), "{}", endpoint.name());
    }
    let error = Formatter::new(Settings { streaming: true, ..settings(Endpoint::ChatEmbeddings) }).unwrap_err();
    assert!(error.to_string().contains("--streaming: chat_embeddings has no streams"), "{error}");
}

#[test]
fn the_examples_that_were_measured() {
    let hi = Content::text("hi");
    let chat = Settings { streaming: true, extra: extra(&[("temperature", "0")]), ..settings(Endpoint::Chat) };
    assert_eq!(
        content(chat, &hi, Some(4), None).unwrap(),
        r#"{"messages":[{"role":"user","content":"hi"}],"model":"m","stream":true,"max_completion_tokens":4,"temperature":0,"stream_options":{"include_usage":true}}"#
    );
    let completions = Settings { streaming: true, ..settings(Endpoint::Completions) };
    assert_eq!(
        content(completions, &hi, Some(4), None).unwrap(),
        r#"{"prompt":"hi","model":"m","stream":true,"max_tokens":4,"stream_options":{"include_usage":true}}"#
    );
    let messages = Settings { streaming: true, ..settings(Endpoint::Messages) };
    assert_eq!(
        content(messages, &hi, None, None).unwrap(),
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":1024,"stream":true}"#
    );
}

#[test]
fn holes_stand_where_the_prompt_goes() {
    assert_eq!(
        prompt(settings(Endpoint::Chat), Some(0)),
        r#"{"messages":[{"role":"user","content":"<>"}],"model":"m","stream":false,"max_completion_tokens":1}"#
    );
    assert_eq!(prompt(settings(Endpoint::Completions), None), r#"{"prompt":"<>","model":"m","stream":false}"#);
    assert_eq!(prompt(settings(Endpoint::Embeddings), None), r#"{"model":"m","input":["<>"]}"#);
    assert_eq!(prompt(settings(Endpoint::Generate), Some(3)), r#"{"inputs":"<>","parameters":{"max_new_tokens":3}}"#);
    assert_eq!(
        prompt(settings(Endpoint::Responses), Some(3)),
        r#"{"input":[{"role":"user","content":"<>","type":"message"}],"model":"m","stream":false,"max_output_tokens":3}"#
    );
    let template = Settings {
        template: Some(r#"{"t": {{ text|tojson }}, "n": {{ max_tokens }} }"#.into()),
        ..settings(Endpoint::Template)
    };
    assert_eq!(prompt(template, Some(3)), r#"{"t": "<>", "n": 3 }"#);
    let turns = [Turn::Prompt, Turn::Answer, Turn::Prompt];
    let chat = made(settings(Endpoint::Chat), Request { turns: &turns, model: "m", output_tokens: None, extra: None });
    assert_eq!(
        chat.unwrap(),
        r#"{"messages":[{"role":"user","content":"<>"},{"role":"assistant","content":"<>"},{"role":"user","content":"<>"}],"model":"m","stream":false}"#
    );
}

#[test]
fn merging_replaces_in_place_and_appends_in_order() {
    let hi = Content::text("h\"i\u{1}é");
    let s =
        Settings { extra: extra(&[("stream", "true"), ("seed", "1"), ("model", "\"x\"")]), ..settings(Endpoint::Chat) };
    assert_eq!(
        content(s, &hi, None, Some(r#"{"seed": 2,"top_k":3}"#)).unwrap(),
        r#"{"messages":[{"role":"user","content":"h\"i\u0001é"}],"model":"x","stream":true,"seed":2,"top_k":3,"stream_options":{"include_usage":true}}"#
    );
    // The author's stream options are kept, null counts as absent, and without a stream there are none.
    let options = |text: &str| Settings {
        streaming: true,
        extra: extra(&[("stream_options", text)]),
        ..settings(Endpoint::Completions)
    };
    let tail = |s: Settings| content(s, &hi, None, None).unwrap().split_once(r#""stream":"#).unwrap().1.to_owned();
    assert_eq!(tail(options("null")), r#"true,"stream_options":{"include_usage":true}}"#);
    assert_eq!(tail(options(r#"{"include_usage":false}"#)), r#"true,"stream_options":{"include_usage":false}}"#);
    assert_eq!(tail(options(r#"{"a":1}"#)), r#"true,"stream_options":{"a":1,"include_usage":true}}"#);
    assert_eq!(tail(options("7")), r#"true,"stream_options":7}"#);
    let off = Settings { streaming: true, extra: extra(&[("stream", "false")]), ..settings(Endpoint::Chat) };
    assert_eq!(tail(off), "false}");
    let chunks = Settings { streaming: true, per_chunk_usage: true, ..settings(Endpoint::Chat) };
    assert_eq!(tail(chunks), r#"true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#);
    let responses = Settings { streaming: true, server_token_count: true, ..settings(Endpoint::Responses) };
    assert_eq!(tail(responses), r#"true,"stream_options":{"include_usage":true}}"#);
}

#[test]
fn messages_go_out_with_their_own_bytes() {
    let messages = br#"[ {"role":"system", "content":"S"}, {"role":"user","content":"u"} ]"#;
    let turns = [Turn::Messages { messages, tools: Some(br#"[{"type": "function"}]"#) }];
    let request = Request { turns: &turns, model: "m", output_tokens: None, extra: None };
    let legacy = Settings { legacy_max_tokens: true, ..settings(Endpoint::Chat) };
    assert_eq!(
        made(legacy, Request { output_tokens: Some(2), ..request }).unwrap(),
        r#"{"messages":[ {"role":"system", "content":"S"}, {"role":"user","content":"u"} ],"model":"m","stream":false,"tools":[{"type": "function"}],"max_tokens":2}"#
    );
    let system = Settings { system: Some("P".into()), ..settings(Endpoint::Chat) };
    assert_eq!(
        made(system.clone(), request).unwrap(),
        r#"{"messages":[{"role":"system","content":"P\n\nS"},{"role":"user","content":"u"}],"model":"m","stream":false,"tools":[{"type": "function"}]}"#
    );
    let parts = [Turn::Messages {
        messages: br#"[{"role":"system","content":[{"type":"text","text":"S"}],"x":1}]"#,
        tools: None,
    }];
    assert_eq!(
        made(system.clone(), Request { turns: &parts, ..request }).unwrap(),
        r#"{"messages":[{"role":"system","content":[{"type":"text","text":"P"},{"type":"text","text":"S"}],"x":1}],"model":"m","stream":false}"#
    );
    let user = [Turn::Messages { messages: br#"[{"role":"user","content":"u"}]"#, tools: None }];
    assert_eq!(
        made(system.clone(), Request { turns: &user, ..request }).unwrap(),
        r#"{"messages":[{"role":"system","content":"P"},{"role":"user","content":"u"}],"model":"m","stream":false}"#
    );
    let anthropic = Settings { endpoint: Endpoint::Messages, ..system };
    assert_eq!(
        made(anthropic, Request { turns: &user, ..request }).unwrap(),
        r#"{"model":"m","messages":[{"role":"user","content":"u"}],"max_tokens":1024,"system":"P"}"#
    );
    let replay =
        [Turn::Messages { messages: br#"[{"type":"reasoning","id":1}, {"role":"user","content":"u"}]"#, tools: None }];
    assert_eq!(
        made(settings(Endpoint::Responses), Request { turns: &replay, ..request }).unwrap(),
        r#"{"input":[{"role":"user","content":"u"}],"model":"m","stream":false}"#
    );
}

#[test]
fn media_are_parts_in_the_words_of_each_api() {
    let all = Content {
        texts: media("t"),
        images: vec![Media { value: "data:image/png;base64,AA".into(), uuid: "u1".into(), ..Media::default() }],
        audios: media("data:audio/mp3;base64,BB"),
        videos: media("http://v"),
        ..Content::default()
    };
    assert_eq!(
        content(settings(Endpoint::Chat), &all, None, None).unwrap(),
        concat!(
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"t"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"},"uuid":"u1"},"#,
            r#"{"type":"input_audio","input_audio":{"data":"BB","format":"mp3"}},{"type":"video_url","video_url":{"url":"http://v"}}]}],"model":"m","stream":false}"#
        )
    );
    let image = Content { images: media("data:image/png;base64,AA"), ..Content::default() };
    assert_eq!(
        content(settings(Endpoint::Messages), &image, None, None).unwrap(),
        r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA"}}]}],"max_tokens":1024}"#
    );
    assert_eq!(
        content(settings(Endpoint::Responses), &image, None, None).unwrap(),
        r#"{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AA"}],"type":"message"}],"model":"m","stream":false}"#
    );
    assert!(content(settings(Endpoint::Messages), &all, None, None).unwrap_err().contains("audio has no place"));
    assert!(content(settings(Endpoint::Responses), &all, None, None).unwrap_err().contains("video has no place"));
    let none = Content { texts: vec![Media::default(), Media::default()], ..Content::default() };
    assert!(content(settings(Endpoint::Chat), &none, None, None).unwrap().contains(r#""content":"""#));
    let bad = Content { audios: media("xyz"), ..Content::default() };
    assert!(content(settings(Endpoint::Chat), &bad, None, None).unwrap_err().contains("\"xyz\", expected wav,BASE64"));
}

#[test]
fn rankings_embeddings_and_generators() {
    let ranked = named(&[("query", "q"), ("passages", "a"), ("passages", "b"), ("other", "z")]);
    for (endpoint, want) in [
        (Endpoint::NimRankings, r#"{"model":"m","query":{"text":"q"},"passages":[{"text":"a"},{"text":"b"}]}"#),
        (Endpoint::CohereRankings, r#"{"model":"m","query":"q","documents":["a","b"]}"#),
        (Endpoint::TeiRankings, r#"{"query":"q","texts":["a","b"]}"#),
        (Endpoint::Embeddings, r#"{"model":"m","input":["q","a","b","z"]}"#),
        (
            Endpoint::SolidoRag,
            r#"{"query":["q","a","b","z"],"filters":{"family":"Solido","tool":"SDE"},"inference_model":"m"}"#,
        ),
        (Endpoint::ImageGeneration, r#"{"prompt":"q","model":"m","response_format":"b64_json","n":1}"#),
        (Endpoint::VideoGeneration, r#"{"prompt":"q","model":"m"}"#),
        (Endpoint::Completions, r#"{"prompt":["q","a","b","z"],"model":"m","stream":false}"#),
    ] {
        assert_eq!(content(settings(endpoint), &ranked, None, None).unwrap(), want);
    }
    let plain = Content::text("x");
    assert!(content(settings(Endpoint::TeiRankings), &plain, None, None).unwrap_err().contains("named query"));
    let generate = Settings { extra: extra(&[("top_k", "5")]), ..settings(Endpoint::Generate) };
    assert_eq!(
        content(generate, &named(&[("", "a"), ("", "b")]), Some(7), Some(r#"{"stream":true}"#)).unwrap(),
        r#"{"inputs":"a b","parameters":{"max_new_tokens":7,"top_k":5},"stream":true}"#
    );
    let mut pair = Content::text("t");
    pair.images = media("data:x");
    assert_eq!(
        content(settings(Endpoint::NimEmbeddings), &pair, None, None).unwrap(),
        r#"{"model":"m","input":["t data:x"]}"#
    );
    pair.texts.clear();
    assert_eq!(
        content(settings(Endpoint::ImageRetrieval), &pair, None, None).unwrap(),
        r#"{"input":[{"type":"image_url","url":"data:x"}]}"#
    );
}

#[test]
fn what_has_no_place_is_said() {
    let messages = [Turn::Messages { messages: b"[]", tools: None }];
    let request = Request { turns: &messages, model: "m", output_tokens: None, extra: None };
    assert!(made(settings(Endpoint::Completions), request).unwrap_err().contains("--endpoint chat takes it"));
    let two = [Turn::Prompt, Turn::Prompt];
    assert!(made(settings(Endpoint::Embeddings), Request { turns: &two, ..request }).unwrap_err().contains("2 turns"));
    assert!(made(settings(Endpoint::Raw), request).unwrap_err().contains("--endpoint raw"));
    assert!(Formatter::new(Settings { system: Some("x".into()), ..settings(Endpoint::Embeddings) }).is_err());
    assert!(Formatter::new(settings(Endpoint::Template)).is_err());
    assert!(Formatter::new(Settings { template: Some("{{".into()), ..settings(Endpoint::Template) }).is_err());
    let broken = Settings { template: Some("{{ text }}".into()), ..settings(Endpoint::Template) };
    assert!(content(broken, &Content::text("x"), None, None).unwrap_err().contains("no JSON object"));
}

#[test]
fn forms_are_encoded_with_a_fixed_boundary() {
    let mut edit = Content::text("a \"cat\"");
    edit.images = media("data:image/png;base64,iVBORw0KGgo=");
    let s = Settings {
        extra: extra(&[("size", "\"64x64\""), ("n", "2"), ("image", "1")]),
        ..settings(Endpoint::ImageEdit)
    };
    let mut out = Formatted::default();
    let turns = [Turn::Content(&edit)];
    let request = Request { turns: &turns, model: "m", output_tokens: None, extra: None };
    Formatter::new(s).unwrap().format(&request, &mut out).unwrap();
    let b = "--ringload-form-f3b1c9a07d52e846\r\nContent-Disposition: form-data; name=";
    let want = format!(
        "{b}\"prompt\"\r\n\r\na \"cat\"\r\n{b}\"model\"\r\n\r\nm\r\n{b}\"response_format\"\r\n\r\nb64_json\r\n{b}\"n\"\r\n\r\n2\r\n\
         {b}\"image\"; filename=\"image.png\"\r\nContent-Type: image/png\r\n\r\nPNG8\r\n{b}\"size\"\r\n\r\n64x64\r\n--ringload-form-f3b1c9a07d52e846--\r\n"
    );
    let want: Vec<u8> = want.into_bytes();
    let at = memchr::memmem::find(&want, b"PNG8").unwrap();
    let want = [&want[..at], b"\x89PNG\r\n\x1a\n", &want[at + 4..]].concat();
    assert_eq!(out.bytes, want);
    let speech = Content { audios: media("wav,UklGRg=="), ..Content::default() };
    let turns = [Turn::Content(&speech)];
    Formatter::new(settings(Endpoint::AudioTranscription))
        .unwrap()
        .format(&Request { turns: &turns, ..request }, &mut out)
        .unwrap();
    let text = String::from_utf8_lossy(&out.bytes).into_owned();
    assert!(
        text.contains("name=\"file\"; filename=\"audio.wav\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n"),
        "{text}"
    );
    assert_eq!(
        Endpoint::AudioTranscription.content_type().unwrap().split('=').nth(1).unwrap(),
        "ringload-form-f3b1c9a07d52e846"
    );
}

#[test]
fn extra_inputs_as_people_write_them() {
    let parse = |flags: &[&str]| parse_extra_inputs(&flags.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>());
    let got = parse(&["a:1,b:-0.5,c:True,d:none,e:x y,f:01,g:1.2.3,h:0.10,i:", r#"{"j":{"k": [1]},"a":"z"}"#]).unwrap();
    let want = [
        ("a", "\"z\""),
        ("b", "-0.5"),
        ("c", "true"),
        ("d", "null"),
        ("e", "\"x y\""),
        ("f", "\"01\""),
        ("g", "\"1.2.3\""),
        ("h", "0.10"),
        ("i", "\"\""),
        ("j", r#"{"k": [1]}"#),
    ];
    assert_eq!(got, extra(&want));
    assert!(parse(&["novalue"]).unwrap_err().to_string().contains("`novalue` is no name:value"));
    assert!(parse(&["{\"a\":"]).unwrap_err().to_string().contains("no JSON"));
}

#[test]
fn names_are_their_own_inverse() {
    for endpoint in Endpoint::ALL {
        assert_eq!(Endpoint::parse(endpoint.name()).unwrap(), endpoint);
    }
    assert_eq!(Endpoint::parse("huggingface-generate").unwrap(), Endpoint::Generate);
    assert!(Endpoint::parse("chats").unwrap_err().to_string().contains("chat, completions"));
}
