//! Request bodies of the model APIs: content of a record -> the bytes of a body.
//!
//! Key order, defaults and merging are those of AIPerf 0.13, so that both tools send the same: the endpoint's own members, then
//! `--extra-inputs`, then the record's `extra`, each replacing a member of that name where it stands; JSON without spaces, as
//! little escaped as the grammar allows. What a dataset brings as JSON is spliced in as it stands.
//!
//! A text that is made elsewhere (a synthesized prompt) is a hole: its place is told, so that long texts are never copied
//! through here. Pure; must not import `formats`.

use std::borrow::Cow;

use crate::data::{
    Error,
    json::{self, Kind, Value},
    record::{Content, Media},
};

mod messages;
mod multipart;
mod object;
mod simple;
mod template;

use object::Object;
pub use template::Template;

/// The APIs whose bodies can be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// OpenAI chat completions.
    #[default]
    Chat,
    /// OpenAI completions.
    Completions,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Messages,
    /// OpenAI embeddings.
    Embeddings,
    /// Embeddings from chat messages (vLLM).
    ChatEmbeddings,
    /// NIM embeddings, with images.
    NimEmbeddings,
    /// NIM ranking.
    NimRankings,
    /// Cohere rerank.
    CohereRankings,
    /// Hugging Face TEI rerank.
    TeiRankings,
    /// Hugging Face TGI generate.
    Generate,
    /// OpenAI image generation.
    ImageGeneration,
    /// OpenAI image edit, multipart.
    ImageEdit,
    /// OpenAI and SGLang video generation.
    VideoGeneration,
    /// OpenAI audio transcription, multipart.
    AudioTranscription,
    /// NIM image retrieval.
    ImageRetrieval,
    /// Solido RAG.
    SolidoRag,
    /// A MiniJinja template of the user's.
    Template,
    /// None: records must bring their bodies.
    Raw,
}

impl Endpoint {
    /// All of them, in the order in which they are listed for people.
    pub const ALL: [Self; 19] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Embeddings,
        Self::ChatEmbeddings,
        Self::NimEmbeddings,
        Self::NimRankings,
        Self::CohereRankings,
        Self::TeiRankings,
        Self::Generate,
        Self::ImageGeneration,
        Self::ImageEdit,
        Self::VideoGeneration,
        Self::AudioTranscription,
        Self::ImageRetrieval,
        Self::SolidoRag,
        Self::Template,
        Self::Raw,
    ];

    /// The name on the command line and in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::ChatEmbeddings => "chat_embeddings",
            Self::NimEmbeddings => "nim_embeddings",
            Self::NimRankings => "nim_rankings",
            Self::CohereRankings => "cohere_rankings",
            Self::TeiRankings => "tei_rankings",
            Self::Generate => "generate",
            Self::ImageGeneration => "image_generation",
            Self::ImageEdit => "image_edit",
            Self::VideoGeneration => "video_generation",
            Self::AudioTranscription => "audio_transcription",
            Self::ImageRetrieval => "image_retrieval",
            Self::SolidoRag => "solido_rag",
            Self::Template => "template",
            Self::Raw => "raw",
        }
    }

    /// The endpoint of that name, AIPerf's names among them; the error lists all.
    pub fn parse(name: &str) -> Result<Self, Error> {
        let plain = name.trim().to_ascii_lowercase().replace('-', "_");
        let plain = match plain.as_str() {
            "anthropic_messages" => "messages",
            "hf_tei_rankings" => "tei_rankings",
            "huggingface_generate" => "generate",
            other => other,
        };
        Self::ALL.into_iter().find(|e| e.name() == plain).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::usage(format!("no endpoint is called \"{name}\"; expected one of {names}"))
        })
    }

    /// `Content-Type` of its bodies when that is not JSON.
    pub const fn content_type(self) -> Option<&'static str> {
        match self {
            Self::ImageEdit | Self::AudioTranscription => Some(multipart::CONTENT_TYPE),
            _ => None,
        }
    }

    /// Whether a system prompt has a place in its bodies.
    pub const fn takes_system(self) -> bool {
        matches!(self, Self::Chat | Self::ChatEmbeddings | Self::Responses | Self::Messages)
    }

    /// Whether its answers can be streams.
    pub const fn streams(self) -> bool {
        matches!(
            self,
            Self::Chat
                | Self::Completions
                | Self::Responses
                | Self::Messages
                | Self::Generate
                | Self::ImageGeneration
                | Self::SolidoRag
                | Self::Template
                | Self::Raw
        )
    }

    /// Whether a `messages` array has a place in its bodies.
    pub const fn takes_messages(self) -> bool {
        self.takes_system()
    }
}

/// What shapes the bodies beside the records. All of it reaches the bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The API.
    pub endpoint: Endpoint,
    /// Bodies ask for a stream.
    pub streaming: bool,
    /// Chat's cap is called `max_tokens`, not `max_completion_tokens`.
    pub legacy_max_tokens: bool,
    /// A stream of the responses API is asked for usage too.
    pub server_token_count: bool,
    /// A chat stream is asked for usage in each chunk (vLLM, TensorRT-LLM).
    pub per_chunk_usage: bool,
    /// Members merged into every body: name and JSON text, as [`parse_extra_inputs`] gives them.
    pub extra: Vec<(String, String)>,
    /// System prompt in front of every conversation.
    pub system: Option<String>,
    /// Text of the template of [`Endpoint::Template`].
    pub template: Option<String>,
}

/// One turn of a conversation.
#[derive(Clone, Copy, Debug)]
pub enum Turn<'a> {
    /// JSON text of a `messages` array, and of `tools`.
    Messages {
        /// An array.
        messages: &'a [u8],
        /// An array.
        tools: Option<&'a [u8]>,
    },
    /// Texts and media.
    Content(&'a Content<'a>),
    /// A user's text that is a hole.
    Prompt,
    /// An assistant's text that is a hole.
    Answer,
}

/// What one body is made of.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The conversation so far; the last turn is asked now.
    pub turns: &'a [Turn<'a>],
    /// The model's name.
    pub model: &'a str,
    /// Cap of the output.
    pub output_tokens: Option<u32>,
    /// JSON object merged last, as text.
    pub extra: Option<&'a [u8]>,
}

/// A body with holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Formatted {
    /// All bytes but those of the holes.
    pub bytes: Vec<u8>,
    /// Offsets into `bytes` where a text goes, in order: what stands between the quotes of a JSON string.
    pub holes: Vec<usize>,
}

/// Makes bodies of one API.
#[derive(Debug)]
pub struct Formatter {
    settings: Settings,
    template: Option<Template>,
}

impl Formatter {
    /// Checks the settings against each other and compiles the template.
    pub fn new(settings: Settings) -> Result<Self, Error> {
        let endpoint = settings.endpoint;
        if settings.system.is_some() && !endpoint.takes_system() {
            return Err(Error::usage(format!("--system-prompt has no place in {} bodies", endpoint.name())));
        }
        if settings.streaming && !endpoint.streams() {
            return Err(Error::usage(format!("--streaming: {} has no streams, leave it out", endpoint.name())));
        }
        if settings.system.as_deref().is_some_and(|text| text.trim().is_empty()) {
            return Err(Error::usage("--system-prompt is blank"));
        }
        let template = match (&settings.template, endpoint) {
            (Some(text), Endpoint::Template) => Some(Template::new(text)?),
            (None, Endpoint::Template) => return Err(Error::usage("--endpoint template needs --template FILE")),
            (Some(_), _) => {
                return Err(Error::usage(format!("--template is for --endpoint template, not {}", endpoint.name())));
            }
            (None, _) => None,
        };
        Ok(Self { settings, template })
    }

    /// The settings it was made with.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Writes one body over `out`. The error says what the record lacks.
    pub fn format(&self, request: &Request<'_>, out: &mut Formatted) -> Result<(), String> {
        out.bytes.clear();
        out.holes.clear();
        let s = &self.settings;
        match s.endpoint {
            Endpoint::Chat | Endpoint::ChatEmbeddings => messages::chat(s, request, out),
            Endpoint::Responses => messages::responses(s, request, out),
            Endpoint::Messages => messages::anthropic(s, request, out),
            Endpoint::Completions => simple::completions(s, request, out),
            Endpoint::Embeddings => simple::embeddings(s, request, out),
            Endpoint::NimEmbeddings => simple::nim_embeddings(s, request, out),
            Endpoint::NimRankings | Endpoint::CohereRankings | Endpoint::TeiRankings => {
                simple::rankings(s, request, out)
            }
            Endpoint::Generate => simple::generate(s, request, out),
            Endpoint::ImageGeneration | Endpoint::VideoGeneration => simple::generation(s, request, out),
            Endpoint::ImageRetrieval => simple::image_retrieval(s, request, out),
            Endpoint::SolidoRag => simple::solido_rag(s, request, out),
            Endpoint::ImageEdit => multipart::image_edit(s, request, out),
            Endpoint::AudioTranscription => multipart::audio_transcription(s, request, out),
            Endpoint::Template => match &self.template {
                Some(template) => template.format(s, request, out),
                None => Err("there is no template".into()),
            },
            Endpoint::Raw => Err("it brings no body of its own, which --endpoint raw needs".into()),
        }
    }
}

/// A text: there, or a hole.
#[derive(Clone, Copy)]
enum Text<'a> {
    Plain(&'a str),
    Hole,
}

impl Text<'_> {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Plain(""))
    }
}

impl Formatted {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn string(&mut self, text: Text<'_>) {
        self.push(b"\"");
        self.inner(text);
        self.push(b"\"");
    }

    /// What stands between the quotes.
    fn inner(&mut self, text: Text<'_>) {
        match text {
            Text::Plain(text) => json::push_escaped(&mut self.bytes, text.as_bytes()),
            Text::Hole => self.holes.push(self.bytes.len()),
        }
    }

    /// `[a,b,...]`
    fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut Self, T)) {
        self.push(b"[");
        for (i, item) in items.into_iter().enumerate() {
            if i > 0 {
                self.push(b",");
            }
            write(self, item);
        }
        self.push(b"]");
    }
}

/// The only turn of a request; for the APIs that know one.
fn only<'a>(request: &Request<'a>, api: &str) -> Result<Turn<'a>, String> {
    match request.turns {
        &[turn @ (Turn::Content(_) | Turn::Prompt)] => Ok(turn),
        &[Turn::Messages { .. }] => {
            Err(format!("a messages array has no place in {api} bodies; --endpoint chat takes it"))
        }
        turns => Err(format!("{} turns have no place in one {api} body; --endpoint chat takes them", turns.len())),
    }
}

/// The texts of a turn that are not empty.
fn texts(turn: Turn<'_>) -> Vec<Text<'_>> {
    match turn {
        Turn::Content(content) => {
            content.texts.iter().map(|m| Text::Plain(&m.value)).filter(|t| !t.is_empty()).collect()
        }
        Turn::Prompt | Turn::Answer => vec![Text::Hole],
        Turn::Messages { .. } => Vec::new(),
    }
}

/// A turn's images that are not empty.
fn images(turn: Turn<'_>) -> impl Iterator<Item = &Media<'_>> {
    let list: &[Media<'_>] = match turn {
        Turn::Content(content) => &content.images,
        _ => &[],
    };
    list.iter().filter(|m| !m.value.is_empty())
}

/// `--extra-inputs`: each `k:v[,k:v...]`, where `true`, `null` and numbers are taken as such, or a JSON object. Gives names and
/// JSON texts; a later one of a name replaces the value of an earlier one.
pub fn parse_extra_inputs(flags: &[String]) -> Result<Vec<(String, String)>, Error> {
    let mut out: Vec<(String, String)> = Vec::new();
    let mut put = |name: String, text: String| match out.iter_mut().find(|(n, _)| *n == name) {
        Some((_, old)) => *old = text,
        None => out.push((name, text)),
    };
    for flag in flags {
        let flag = flag.trim();
        if flag.starts_with('{') {
            let value = json::object(flag.as_bytes(), |_, _| {}).map_err(|e| {
                Error::usage(format!("--extra-inputs {flag}: no JSON: {} at byte {}", e.what, e.at + 1))
            })?;
            for (name, value) in value.members() {
                put(name.into_owned(), value.text().into_owned());
            }
            continue;
        }
        for item in flag.split(',') {
            let (name, value) = item.split_once(':').ok_or_else(|| {
                Error::usage(format!(
                    "--extra-inputs {flag}: `{item}` is no name:value; expected temperature:0 or a JSON object"
                ))
            })?;
            put(name.trim().to_owned(), coerced(value.trim()));
        }
    }
    Ok(out)
}

/// JSON text of a value that was written without quotes.
fn coerced(text: &str) -> String {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let lower = text.to_ascii_lowercase();
    let number = !digits.is_empty()
        && digits.bytes().all(|c| c.is_ascii_digit() || c == b'.')
        && (digits == "0" || !digits.starts_with('0') || digits.starts_with("0."));
    match lower.as_str() {
        "true" | "false" => lower,
        "none" | "null" => "null".into(),
        _ if number && Value::parse(text.as_bytes()).is_ok() => text.to_owned(),
        _ => {
            let mut out = Vec::new();
            json::push_string(&mut out, text);
            String::from_utf8_lossy(&out).into_owned()
        }
    }
}

/// The members that are merged over a body: the run's, and over them the record's.
fn merged<'a>(settings: &'a Settings, request: &Request<'a>) -> Vec<(Cow<'a, str>, &'a [u8])> {
    let run = settings.extra.iter().map(|(name, text)| (Cow::Borrowed(name.as_str()), text.as_bytes()));
    let mut members: Vec<_> = run.collect();
    merge_record(&mut members, request);
    members
}

fn merge_record<'a>(members: &mut Vec<(Cow<'a, str>, &'a [u8])>, request: &Request<'a>) {
    let Some(value) = request.extra.and_then(|extra| Value::parse(extra).ok()) else { return };
    for (name, value) in value.members() {
        match members.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = value.bytes(),
            None => members.push((name, value.bytes())),
        }
    }
}

/// What a dynamic language takes for true.
fn truthy(text: &[u8]) -> bool {
    let Ok(value) = Value::parse(text) else { return false };
    match value.kind() {
        Kind::Null => false,
        Kind::Bool => value.bool() == Some(true),
        Kind::Number => {
            value.bytes().iter().take_while(|c| !matches!(c, b'e' | b'E')).any(|c| (b'1'..=b'9').contains(c))
        }
        Kind::String => value.bytes().len() > 2,
        Kind::Array => value.elements().next().is_some(),
        Kind::Object => value.members().next().is_some(),
    }
}

#[cfg(test)]
mod tests;
