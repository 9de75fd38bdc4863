//! The lines of an event stream, cut into the parts that matter, resumable at any byte.
//!
//! The grammar is that of the HTML standard, § Server-sent events: LF, CRLF and CR end lines, one blank behind the colon is
//! optional, a byte order mark at the start is dropped, a blank line ends an event, and an event without data is none.
//! Beyond it, `event: error` without data is reported too: no server means anything else by it.

/// A part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Bytes of the event's data; never empty.
    Data(&'a [u8]),
    /// Another `data` line of the same event begins: its data goes on with a line feed.
    NextLine,
    /// A comment line begins.
    Comment,
    /// The event is whole.
    End(End),
}

/// What an event was, beside its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// It had a `data` line, even an empty one.
    pub(super) has_data: bool,
    /// Its `event` was `error`.
    pub(super) is_error: bool,
}

/// Where in a line the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    LineStart,
    /// In a field name that began in an earlier read, or is none of the frequent ones.
    Name,
    /// Behind the colon, where one blank is dropped.
    ValueStart,
    Value,
}

/// What the line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Data,
    Event,
    /// Comments, `id`, `retry` and whatever else there is.
    Other,
}

/// Mark of a name or value that matches nothing any more.
const NO_MATCH: u8 = u8::MAX;
const BOM: [u8; 3] = [0xef, 0xbb, 0xbf];

/// The splitter: eight bytes that say where the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    state: State,
    field: Field,
    /// Bytes matched of the field's name, or of `error` in the value of `event`; or [`NO_MATCH`].
    matched: u8,
    /// Bytes of the byte order mark so far; its length once it is behind.
    bom: u8,
    /// The last line ended with CR: a LF right behind belongs to it.
    after_cr: bool,
    has_data: bool,
    is_error: bool,
}

impl Lines {
    pub(super) const START: Self = Self {
        state: State::LineStart,
        field: Field::Other,
        matched: 0,
        bom: 0,
        after_cr: false,
        has_data: false,
        is_error: false,
    };

    /// Drops a byte order mark at the very start; the rest when it is certain that there is none, or no more of it.
    #[inline]
    pub(super) fn skip_bom<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while (self.bom as usize) < BOM.len()
            && let [first, rest @ ..] = bytes
        {
            if *first != BOM[self.bom as usize] {
                if self.bom > 0 {
                    // The bytes held for a mark were the beginning of a name that means nothing.
                    (self.state, self.matched) = (State::Name, NO_MATCH);
                }
                self.bom = BOM.len() as u8;
                break;
            }
            self.bom += 1;
            bytes = rest;
        }
        bytes
    }

    /// The next part of `rest`, which moves on behind it; none when all of it is read.
    #[inline]
    pub(super) fn next<'a>(&mut self, rest: &mut &'a [u8]) -> Option<Part<'a>> {
        while let [byte, behind @ ..] = *rest {
            match self.state {
                State::LineStart => {
                    if let Some(part) = self.line_start(*byte, rest) {
                        return Some(part);
                    }
                }
                State::Name => {
                    if let Some(part) = self.name(*byte, rest) {
                        return Some(part);
                    }
                }
                State::ValueStart => {
                    if *byte == b' ' {
                        *rest = behind;
                    }
                    self.state = State::Value;
                }
                State::Value => {
                    let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
                    let (value, behind) = rest.split_at(end);
                    *rest = behind;
                    if let [line_end, behind @ ..] = behind
                        && value.is_empty()
                    {
                        *rest = behind;
                        self.end_line(*line_end);
                    } else if self.field == Field::Data {
                        return Some(Part::Data(value));
                    } else if self.field == Field::Event {
                        self.event_value(value);
                    }
                }
            }
        }
        None
    }

    #[inline]
    fn line_start<'a>(&mut self, byte: u8, rest: &mut &'a [u8]) -> Option<Part<'a>> {
        if std::mem::take(&mut self.after_cr) && byte == b'\n' {
            *rest = &rest[1..];
            return None;
        }
        if let Some(value) = rest.strip_prefix(b"data:") {
            *rest = value;
            self.state = State::ValueStart;
            return self.begin_data();
        }
        if let Some(value) = rest.strip_prefix(b"event:") {
            *rest = value;
            (self.state, self.field, self.matched, self.is_error) = (State::ValueStart, Field::Event, 0, false);
            return None;
        }
        match byte {
            b'\n' | b'\r' => {
                *rest = &rest[1..];
                self.after_cr = byte == b'\r';
                self.end_event()
            }
            b':' => {
                *rest = &rest[1..];
                (self.state, self.field) = (State::Value, Field::Other);
                Some(Part::Comment)
            }
            _ => {
                (self.state, self.field, self.matched) = (State::Name, Field::Other, 0);
                None
            }
        }
    }

    fn begin_data<'a>(&mut self) -> Option<Part<'a>> {
        self.field = Field::Data;
        std::mem::replace(&mut self.has_data, true).then_some(Part::NextLine)
    }

    #[inline]
    fn end_event<'a>(&mut self) -> Option<Part<'a>> {
        let end = End { has_data: self.has_data, is_error: self.is_error };
        (self.has_data, self.is_error) = (false, false);
        (end.has_data || end.is_error).then_some(Part::End(end))
    }

    /// One byte of a field name. A line without a colon is a name with an empty value.
    fn name<'a>(&mut self, byte: u8, rest: &mut &'a [u8]) -> Option<Part<'a>> {
        *rest = &rest[1..];
        match byte {
            b':' | b'\n' | b'\r' => {
                let part = self.name_end();
                if byte == b':' {
                    self.state = State::ValueStart;
                } else {
                    self.end_line(byte);
                }
                part
            }
            _ => {
                // `field` holds the only name that can still match.
                if self.matched == 0 {
                    self.field = match byte {
                        b'd' => Field::Data,
                        b'e' => Field::Event,
                        _ => Field::Other,
                    };
                }
                self.matched = match_next(self.field.name(), self.matched, byte);
                None
            }
        }
    }

    fn name_end<'a>(&mut self) -> Option<Part<'a>> {
        if self.matched as usize != self.field.name().len() {
            self.field = Field::Other;
        }
        self.matched = 0;
        match self.field {
            Field::Data => self.begin_data(),
            Field::Event => {
                self.is_error = false;
                None
            }
            Field::Other => None,
        }
    }

    /// More of the value of `event`; blanks around it do not matter, nor does case.
    fn event_value(&mut self, value: &[u8]) {
        const ERROR: &[u8] = b"error";
        for byte in value {
            if self.matched == NO_MATCH {
                break;
            }
            self.matched = match byte {
                b' ' | b'\t' if self.matched == 0 || self.matched as usize == ERROR.len() => self.matched,
                _ => match_next(ERROR, self.matched, byte.to_ascii_lowercase()),
            };
        }
        self.is_error = self.matched as usize == ERROR.len();
    }

    fn end_line(&mut self, line_end: u8) {
        (self.state, self.after_cr) = (State::LineStart, line_end == b'\r');
    }

    /// The stream is complete: what an event that lacks its blank line was, as if the line were there. The standard drops
    /// such an event; servers that forget the line mean it.
    pub(super) fn finish(&mut self) -> Option<End> {
        if self.state == State::Name {
            let _ = self.name_end();
        }
        self.end_line(b'\n');
        match self.end_event() {
            Some(Part::End(end)) => Some(end),
            _ => None,
        }
    }
}

impl Field {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Data => b"data",
            Self::Event => b"event",
            Self::Other => b"",
        }
    }
}

/// One more byte of `text` matched, or no match any more.
fn match_next(text: &[u8], matched: u8, byte: u8) -> u8 {
    if text.get(matched as usize) == Some(&byte) { matched + 1 } else { NO_MATCH }
}
