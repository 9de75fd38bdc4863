//! What a response body says about tokens: events of a stream as they become whole, usage, errors, how it ended.
//!
//! A [`Scan`] takes the payload of a response as it comes and answers, for each read, how many events became whole in it
//! and how many of them carry output. It keeps no bytes and allocates nothing.
//!
//! An event is *content* when it carries output: non-empty `choices[].delta.content`, `reasoning_content` or `reasoning`, a
//! tool call with a name or arguments, `choices[].text`; text, thinking or JSON in a `content_block_delta` (Messages API);
//! a non-empty `delta` under `response.*.delta` (Responses API); `token.text` of a token that is not special (generate).
//! Null equals absent, and so does an empty string. Content that is reasoning only is told apart.
//!
//! Usage is merged field by field over all events, the last one that is not null wins. Of an event that is not JSON nothing
//! is taken but its number; an event longer than [`limits::EVENT_BYTES_MAX`] counts, unread, as content.

use super::{
    json::{self, Count, Counts, Json},
    sse::{End, Lines, Part},
};
use crate::data::limits;

/// What became whole in one read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Events with data, `[DONE]` included.
    pub events: u32,
    /// Events with content.
    pub content_events: u32,
    /// Events with content that is not reasoning.
    pub output_events: u32,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.content_events += other.content_events;
        self.output_events += other.output_events;
    }
}

/// Token counts that the server gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, those from a cache included.
    pub input: Option<u64>,
    /// Tokens put out, reasoning included.
    pub output: Option<u64>,
    /// Reasoning tokens among them.
    pub reasoning: Option<u64>,
}

/// What kind of body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Stream,
    Json,
}

/// The reader of one response body; 152 bytes, made anew for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    json: Json,
    counts: Counts,
    /// Data bytes of the event so far.
    event_bytes: u32,
    events: u32,
    comments: u32,
    malformed: u32,
    /// [`json::ERROR`], [`json::DONE`] and [`json::FINISHED`] of all events so far.
    marks: u16,
    lines: Lines,
    mode: Mode,
}

const _: () = assert!(size_of::<Scan>() <= 152);
const _: () = assert!(limits::EVENT_BYTES_MAX < u32::MAX as u64);

impl Scan {
    const fn new(mode: Mode) -> Self {
        Self {
            json: Json::START,
            counts: Counts::NONE,
            event_bytes: 0,
            events: 0,
            comments: 0,
            malformed: 0,
            marks: 0,
            lines: Lines::START,
            mode,
        }
    }

    /// For a `text/event-stream` body.
    pub const fn stream() -> Self {
        Self::new(Mode::Stream)
    }

    /// For a body that is one JSON value: its usage and its error are read, there are no events.
    pub const fn json() -> Self {
        Self::new(Mode::Json)
    }

    /// Takes the next bytes of the payload, and says what became whole in them.
    #[inline]
    pub fn feed(&mut self, payload: &[u8]) -> Seen {
        let mut rest = self.lines.skip_bom(payload);
        let mut seen = Seen::default();
        if self.mode == Mode::Json {
            self.json.feed(rest);
            return seen;
        }
        while let Some(part) = self.lines.next(&mut rest) {
            match part {
                Part::Data(bytes) => self.data(bytes),
                Part::NextLine => self.data(b"\n"),
                Part::Comment => self.comments += 1,
                Part::End(end) => seen += self.end_event(end),
            }
        }
        seen
    }

    /// The body is complete by its framing: what became whole by that. A last event without its blank line counts.
    pub fn finish(&mut self) -> Seen {
        match self.mode {
            Mode::Stream => self.lines.finish().map_or_else(Seen::default, |end| self.end_event(end)),
            Mode::Json => {
                self.take_value();
                Seen::default()
            }
        }
    }

    #[inline]
    fn data(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.event_bytes = self.event_bytes.saturating_add(length);
        if u64::from(self.event_bytes) <= limits::EVENT_BYTES_MAX {
            self.json.feed(bytes);
        }
    }

    #[inline]
    fn end_event(&mut self, end: End) -> Seen {
        if end.is_error {
            self.marks |= json::ERROR;
        }
        if !end.has_data {
            return Seen::default();
        }
        self.events += 1;
        if u64::from(std::mem::take(&mut self.event_bytes)) > limits::EVENT_BYTES_MAX {
            self.json = Json::START;
            return Seen { events: 1, content_events: 1, output_events: 1 };
        }
        let flags = self.take_value();
        Seen {
            events: 1,
            content_events: u32::from(flags & (json::OUTPUT | json::REASONING) != 0),
            output_events: u32::from(flags & json::OUTPUT != 0),
        }
    }

    #[inline]
    fn take_value(&mut self) -> u16 {
        let flags = self.json.end(&mut self.counts);
        self.malformed += u32::from(flags == json::MALFORMED);
        self.marks |= flags & (json::ERROR | json::DONE | json::FINISHED);
        flags
    }

    /// The server's token counts so far. Where prompt tokens are counted apart from those read from or written to a cache
    /// (Messages API), `input` is the sum.
    pub fn usage(&self) -> Usage {
        let count = |count| self.counts.get(count);
        let with_cache = |n| n + count(Count::CacheRead).unwrap_or(0) + count(Count::CacheWrite).unwrap_or(0);
        Usage {
            input: count(Count::Prompt).or_else(|| count(Count::Input).map(with_cache)),
            output: count(Count::Output),
            reasoning: count(Count::Reasoning),
        }
    }

    /// True after an error in the body: a top-level `error` that is not null, false or empty, a `type` of `error` or
    /// `response.failed`, an `event: error`.
    pub const fn error(&self) -> bool {
        self.marks & json::ERROR != 0
    }

    /// True after `[DONE]`.
    pub const fn done_marker(&self) -> bool {
        self.marks & json::DONE != 0
    }

    /// True after anything that ends a stream on purpose: `[DONE]`, a finish or stop reason, `message_stop`,
    /// `response.completed`, `response.incomplete`, `response.failed`, `generated_text`.
    pub const fn finished(&self) -> bool {
        self.marks & (json::DONE | json::FINISHED) != 0
    }

    /// Events with data so far, `[DONE]` included.
    pub const fn events(&self) -> u32 {
        self.events
    }

    /// Comment lines so far.
    pub const fn comments(&self) -> u32 {
        self.comments
    }

    /// Events, or the one value of [`Scan::json`], that were not JSON.
    pub const fn malformed(&self) -> u32 {
        self.malformed
    }
}

#[cfg(test)]
mod tests;
