//! What a format reader hands over: one [`Record`] a request, borrowed from the input, in input order.
//!
//! Readers (`formats`) know nothing of caches, bodies or time lines; the builder (`cache`) knows nothing of formats.

use std::borrow::Cow;

use super::{Error, error::Place};

/// What the body of a record is made from.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload<'a> {
    /// The very bytes to send.
    Verbatim(Cow<'a, [u8]>),
    /// A `messages` array, and `tools` if there are any, as the JSON text that stands in the input; a formatter wraps them.
    Messages {
        /// JSON array text.
        messages: Cow<'a, [u8]>,
        /// JSON array text.
        tools: Option<Cow<'a, [u8]>>,
    },
    /// Content by modality, which a formatter wraps into one user turn.
    Content(Content<'a>),
    /// A conversation: all turns but the last are history.
    Turns(Vec<Turn<'a>>),
    /// A prompt to synthesize: so many tokens, and the ids of its blocks when the trace gives them (empty otherwise).
    Lengths {
        /// Tokens of the whole prompt.
        input_tokens: u32,
        /// One id a block, in prompt order; equal ids are equal text.
        block_ids: Cow<'a, [u64]>,
    },
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn<'a> {
    /// JSON text of a `messages` array, and of `tools`.
    Messages {
        /// JSON array text.
        messages: Cow<'a, [u8]>,
        /// JSON array text.
        tools: Option<Cow<'a, [u8]>>,
    },
    /// Texts and media.
    Content(Content<'a>),
    /// An assistant's answer to synthesize, of so many tokens.
    Answer {
        /// Tokens.
        tokens: u32,
    },
}

/// One user turn: texts and media. A plain prompt is one unnamed text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content<'a> {
    /// Role of the turn; none is `user`.
    pub role: Option<Cow<'a, str>>,
    /// A system message in front of it.
    pub system: Option<Cow<'a, str>>,
    /// Texts, in order.
    pub texts: Vec<Media<'a>>,
    /// Image URLs or data URLs, in order.
    pub images: Vec<Media<'a>>,
    /// `format,base64` audio, in order.
    pub audios: Vec<Media<'a>>,
    /// Video URLs or data URLs, in order.
    pub videos: Vec<Media<'a>>,
}

/// One text or medium, with the name of the pool or list it belongs to (rankings use `query` and `passages`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Media<'a> {
    /// Name of its group; empty when there is none.
    pub name: Cow<'a, str>,
    /// The text, URL, data URL or base64.
    pub value: Cow<'a, str>,
    /// The provider's id of an image; empty when there is none.
    pub uuid: Cow<'a, str>,
}

impl<'a> Content<'a> {
    /// A plain prompt.
    pub fn text(value: impl Into<Cow<'a, str>>) -> Self {
        Self { texts: vec![Media { value: value.into(), ..Media::default() }], ..Self::default() }
    }
}

/// Method, path and headers of a record that brings its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestLine<'a> {
    /// `GET`, `POST`, ...; none keeps the run's.
    pub method: Option<Cow<'a, str>>,
    /// Path with query; none keeps the run's.
    pub path: Option<Cow<'a, str>>,
    /// Fields that override the run's, in order.
    pub headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

/// Place in a tree of records that are told apart by number: a trace that names each record's parent. The builder makes
/// sessions of it, one a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// This record's number.
    pub id: u64,
    /// The record that it continues; none is a root.
    pub parent: Option<u64>,
    /// Position among the members of its session: they are sorted by it, ties by input order.
    pub turn: u32,
}

/// What one look into a body of JSON saw: kept in the index and told in the build report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    /// `model` at the top level.
    pub model: Option<Cow<'a, str>>,
    /// Top-level `"stream": true`.
    pub stream: bool,
    /// `stream_options.include_usage` is true.
    pub usage: bool,
    /// First positive cap among `max_tokens`, `max_completion_tokens`, `max_output_tokens`, `max_new_tokens`.
    pub output_cap: Option<u32>,
    /// It has `messages`, `prompt`, `input`, `inputs`, `query` or `contents` at the top level: a body of a language-model API.
    pub llm: bool,
    /// Image parts.
    pub images: u32,
    /// Audio parts.
    pub audios: u32,
    /// Video parts.
    pub videos: u32,
    /// Where the value of `messages`, or else of the first other of those members, stands in the body; empty when none is there.
    pub prompt: std::ops::Range<usize>,
}

/// One request of a dataset as its format describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record<'a> {
    /// Line in its file where it starts, from 1.
    pub line: u64,
    /// What the body is made from.
    pub payload: Payload<'a>,
    /// Session that the record is a turn of; none is a session of its own.
    pub session: Option<Cow<'a, str>>,
    /// Scheduled time in nanoseconds on the format's own clock; the builder subtracts the smallest.
    pub due_ns: Option<u64>,
    /// Wait after the predecessor's end, nanoseconds.
    pub delay_ns: Option<u64>,
    /// Recorded prompt tokens, where the format tells them apart from the payload.
    pub input_tokens: Option<u32>,
    /// Cap or recorded length of the output, tokens.
    pub output_tokens: Option<u32>,
    /// Model of this record; none keeps the build's.
    pub model: Option<Cow<'a, str>>,
    /// A JSON object (its text) that is merged last into a formatted body.
    pub extra: Option<Cow<'a, [u8]>>,
    /// Its own method, path and headers.
    pub request: Option<RequestLine<'a>>,
    /// The records that must be answered first, as running numbers of this input's records from 0; none: the record before
    /// it in its session.
    pub after: Option<Cow<'a, [u64]>>,
    /// True when nothing waits for this record (a background child).
    pub background: bool,
    /// Its place in a tree of records, when the format tells sessions so; then `session` is none.
    pub link: Option<Link>,
    /// What is in a verbatim body, when the reader looked into it anyway; else the builder looks.
    pub facts: Option<Facts<'a>>,
}

impl<'a> Record<'a> {
    /// A record with a payload and nothing else.
    pub fn new(line: u64, payload: Payload<'a>) -> Self {
        Self {
            line,
            payload,
            session: None,
            due_ns: None,
            delay_ns: None,
            input_tokens: None,
            output_tokens: None,
            model: None,
            extra: None,
            request: None,
            after: None,
            background: false,
            link: None,
            facts: None,
        }
    }
}

impl Record<'_> {
    /// The same record on its own, borrowing nothing.
    pub fn into_owned(self) -> Record<'static> {
        Record {
            line: self.line,
            payload: self.payload.into_owned(),
            session: self.session.map(own),
            due_ns: self.due_ns,
            delay_ns: self.delay_ns,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            model: self.model.map(own),
            extra: self.extra.map(own),
            request: self.request.map(RequestLine::into_owned),
            after: self.after.map(own),
            background: self.background,
            link: self.link,
            facts: self.facts.map(|f| Facts { model: f.model.map(own), ..f }),
        }
    }
}

impl Payload<'_> {
    /// The same payload on its own.
    pub fn into_owned(self) -> Payload<'static> {
        match self {
            Self::Verbatim(body) => Payload::Verbatim(own(body)),
            Self::Messages { messages, tools } => Payload::Messages { messages: own(messages), tools: tools.map(own) },
            Self::Content(content) => Payload::Content(content.into_owned()),
            Self::Turns(turns) => Payload::Turns(turns.into_iter().map(Turn::into_owned).collect()),
            Self::Lengths { input_tokens, block_ids } => Payload::Lengths { input_tokens, block_ids: own(block_ids) },
        }
    }
}

impl Turn<'_> {
    fn into_owned(self) -> Turn<'static> {
        match self {
            Self::Messages { messages, tools } => Turn::Messages { messages: own(messages), tools: tools.map(own) },
            Self::Content(content) => Turn::Content(content.into_owned()),
            Self::Answer { tokens } => Turn::Answer { tokens },
        }
    }
}

impl Content<'_> {
    /// The same turn on its own.
    pub fn into_owned(self) -> Content<'static> {
        let media = |list: Vec<Media<'_>>| list.into_iter().map(Media::into_owned).collect();
        Content {
            role: self.role.map(own),
            system: self.system.map(own),
            texts: media(self.texts),
            images: media(self.images),
            audios: media(self.audios),
            videos: media(self.videos),
        }
    }
}

impl Media<'_> {
    fn into_owned(self) -> Media<'static> {
        Media { name: own(self.name), value: own(self.value), uuid: own(self.uuid) }
    }
}

impl RequestLine<'_> {
    /// The same on its own.
    pub fn into_owned(self) -> RequestLine<'static> {
        RequestLine {
            method: self.method.map(own),
            path: self.path.map(own),
            headers: self.headers.into_iter().map(|(name, value)| (own(name), own(value))).collect(),
        }
    }
}

fn own<T: ToOwned + ?Sized + 'static>(value: Cow<'_, T>) -> Cow<'static, T> {
    Cow::Owned(value.into_owned())
}

/// Takes what a reader finds, in input order.
pub trait Sink {
    /// One good record.
    fn record(&mut self, record: Record<'_>) -> Result<(), Error>;

    /// One bad record. Returns an error to stop at once (too many already), or goes on: the sink decides what `--skip-bad`
    /// means and lists the first ten.
    fn bad(&mut self, place: Place, what: String) -> Result<(), Error>;
}
