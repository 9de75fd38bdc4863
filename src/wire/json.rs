//! A JSON value in one pass, resumable at any byte, that remembers only what a stream event means.
//!
//! The scanner checks the whole grammar (RFC 8259) and follows the member names along the few paths that matter; what it
//! finds on them becomes flags and counts, of which nothing holds before the value is whole and well-formed. It is lenient
//! in two points: control bytes inside strings pass (the lines of an event are joined with one), and UTF-8 is not checked.
//! Values nested deeper than [`DEPTH_MAX`] count as malformed.

use super::words::{self, Kind, KindSpelling, Spelling, Word, word};

/// Levels of nesting: one bit each. The deepest path that matters has eight.
pub(super) const DEPTH_MAX: u8 = 64;

/// Non-empty output: `delta.content`, a tool call's name or arguments, `choices[].text`.
pub(super) const OUTPUT: u16 = 1 << 0;
/// Non-empty reasoning: `delta.reasoning_content`, `delta.reasoning`.
pub(super) const REASONING: u16 = 1 << 1;
/// `error`, not null, false or empty.
pub(super) const ERROR: u16 = 1 << 2;
/// A reason for the end.
pub(super) const FINISHED: u16 = 1 << 3;
/// `[DONE]`.
pub(super) const DONE: u16 = 1 << 4;
/// Non-empty top-level `delta`, which is output under a `response.*.delta` type.
const DELTA: u16 = 1 << 5;
/// Non-empty `delta.text` or `delta.partial_json`, output under `content_block_delta`.
const BLOCK_TEXT: u16 = 1 << 6;
/// Non-empty `delta.thinking`, reasoning under `content_block_delta`.
const BLOCK_THINKING: u16 = 1 << 7;
/// Non-empty `token.text`, output unless the token is special.
const TOKEN_TEXT: u16 = 1 << 8;
/// `token.special`.
const TOKEN_SPECIAL: u16 = 1 << 9;
/// There is something in `counts`.
const COUNTED: u16 = 1 << 10;
/// The value was not JSON.
pub(super) const MALFORMED: u16 = 1 << 11;

/// What a token count counts; the synonyms of servers fall together here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Count {
    /// Prompt tokens, cached ones included.
    Prompt,
    /// Prompt tokens, those read from or written to a cache apart.
    Input,
    CacheRead,
    CacheWrite,
    Output,
    Reasoning,
}

/// Token counts by [`Count`]; `u32::MAX` is none. A count that large in one answer is nonsense, and read as none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts([u32; 6]);

impl Counts {
    pub(super) const NONE: Self = Self([u32::MAX; 6]);

    fn set(&mut self, count: Count, n: u64) {
        if n < u64::from(u32::MAX) {
            self.0[count as usize] = n as u32;
        }
    }

    pub(super) fn get(&self, count: Count) -> Option<u64> {
        let n = self.0[count as usize];
        (n != u32::MAX).then_some(u64::from(n))
    }

    /// Field by field, the later ones win.
    pub(super) fn merge(&mut self, later: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(later.0) {
            if theirs != u32::MAX {
                *mine = theirs;
            }
        }
    }
}

/// The container that the scanner stands in, where its members matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Outside of the value.
    Root,
    /// A list at the top: some servers answer with one.
    RootList,
    Top,
    Choices,
    Choice,
    /// `choices[].delta`.
    Delta,
    ToolCalls,
    ToolCall,
    Function,
    Usage,
    UsageDetails,
    /// `response` of a Responses API event.
    Response,
    /// `message` of a Messages API event.
    Message,
    /// Top-level `delta` of a Messages API event.
    BlockDelta,
    /// `details` of a generate answer.
    Details,
    /// `token` of a generate event.
    Token,
}

const PLACES: [Place; 16] = [
    Place::Root,
    Place::RootList,
    Place::Top,
    Place::Choices,
    Place::Choice,
    Place::Delta,
    Place::ToolCalls,
    Place::ToolCall,
    Place::Function,
    Place::Usage,
    Place::UsageDetails,
    Place::Response,
    Place::Message,
    Place::BlockDelta,
    Place::Details,
    Place::Token,
];

impl Place {
    const fn is_list(self) -> bool {
        matches!(self, Self::RootList | Self::Choices | Self::ToolCalls)
    }
}

/// What a value means by where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Skip,
    /// A container whose members matter.
    Inside(Place),
    /// The value itself.
    Root,
    /// Sets the flag with a string or container that is not empty.
    Filled(u16),
    /// Top-level `delta`: a string in one API, a container in another.
    Delta,
    /// Finished, unless null, false or an empty string.
    Finish,
    /// Finished, unless null or false.
    Ended,
    Error,
    Type,
    Special,
    Count(Count),
}

/// What a member means by its name and the object that it is in.
const fn role(place: Place, word: Word) -> Role {
    match (place, word) {
        (Place::Top, word) => top_role(word),
        (Place::Choice, Word::Delta) => Role::Inside(Place::Delta),
        (Place::Choice, Word::Text) => Role::Filled(OUTPUT),
        (Place::Choice | Place::Details, Word::FinishReason) => Role::Finish,
        (Place::Delta, Word::Content) => Role::Filled(OUTPUT),
        (Place::Delta, Word::ReasoningContent | Word::Reasoning) => Role::Filled(REASONING),
        (Place::Delta, Word::ToolCalls) => Role::Inside(Place::ToolCalls),
        (Place::Delta, Word::FunctionCall) | (Place::ToolCall, Word::Function) => Role::Inside(Place::Function),
        (Place::Function, Word::Name | Word::Arguments) => Role::Filled(OUTPUT),
        (Place::Usage, word) => usage_role(word),
        (Place::UsageDetails, Word::ReasoningTokens) => Role::Count(Count::Reasoning),
        (Place::Response | Place::Message, Word::Usage) => Role::Inside(Place::Usage),
        (Place::BlockDelta, Word::Text | Word::PartialJson) => Role::Filled(BLOCK_TEXT),
        (Place::BlockDelta, Word::Thinking) => Role::Filled(BLOCK_THINKING),
        (Place::BlockDelta, Word::StopReason) => Role::Finish,
        (Place::Details, Word::GeneratedTokens) => Role::Count(Count::Output),
        (Place::Token, Word::Text) => Role::Filled(TOKEN_TEXT),
        (Place::Token, Word::Special) => Role::Special,
        _ => Role::Skip,
    }
}

/// [`role`] by word and place, as a table: a load in place of a chain of comparisons.
static ROLES: [[Role; PLACES.len()]; words::COUNT] = roles();

const fn roles() -> [[Role; PLACES.len()]; words::COUNT] {
    let mut roles = [[Role::Skip; PLACES.len()]; words::COUNT];
    let mut word = 0;
    while word < words::COUNT {
        let mut place = 0;
        while place < PLACES.len() {
            roles[words::at(word) as usize][PLACES[place] as usize] = role(PLACES[place], words::at(word));
            place += 1;
        }
        word += 1;
    }
    roles
}

#[inline]
fn role_of(place: Place, word: Option<Word>) -> Role {
    word.map_or(Role::Skip, |word| ROLES[word as usize][place as usize])
}

const fn top_role(word: Word) -> Role {
    match word {
        Word::Choices => Role::Inside(Place::Choices),
        Word::Usage | Word::UsageMetadata => Role::Inside(Place::Usage),
        Word::Error => Role::Error,
        Word::Type => Role::Type,
        Word::Delta => Role::Delta,
        Word::Response => Role::Inside(Place::Response),
        Word::Message => Role::Inside(Place::Message),
        Word::StopReason => Role::Finish,
        Word::Details => Role::Inside(Place::Details),
        Word::GeneratedText => Role::Ended,
        Word::Token => Role::Inside(Place::Token),
        _ => Role::Skip,
    }
}

const fn usage_role(word: Word) -> Role {
    match word {
        Word::PromptTokens | Word::PromptTokenCount => Role::Count(Count::Prompt),
        Word::InputTokens | Word::InputTokensCamel | Word::InputTokenCount => Role::Count(Count::Input),
        Word::CacheReadInputTokens | Word::CacheReadInputTokensCamel => Role::Count(Count::CacheRead),
        Word::CacheCreationInputTokens | Word::CacheWriteInputTokensCamel => Role::Count(Count::CacheWrite),
        Word::CompletionTokens
        | Word::OutputTokens
        | Word::OutputTokensCamel
        | Word::CandidatesTokenCount
        | Word::GeneratedTokenCount => Role::Count(Count::Output),
        Word::ReasoningTokens => Role::Count(Count::Reasoning),
        Word::CompletionTokensDetails | Word::OutputTokensDetails => Role::Inside(Place::UsageDetails),
        _ => Role::Skip,
    }
}

/// What the elements of a list mean.
const fn element_role(place: Place) -> Role {
    match place {
        Place::RootList => Role::Inside(Place::Top),
        Place::Choices => Role::Inside(Place::Choice),
        Place::ToolCalls => Role::Inside(Place::ToolCall),
        _ => Role::Skip,
    }
}

/// What the next byte is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    FirstElement,
    FirstKey,
    Key,
    Colon,
    /// Behind a value in a container.
    After,
    /// Behind the whole value.
    End,
    KeyString,
    KeyEscape,
    KeyHex,
    ValueString,
    ValueEscape,
    ValueHex,
    Literal,
    /// Behind `[DONE`.
    AfterDone,
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    Malformed,
}

/// A word without quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Literal {
    True,
    False,
    Null,
    Done,
}

impl Literal {
    const fn text(self) -> &'static [u8] {
        match self {
            Self::True => b"true",
            Self::False => b"false",
            Self::Null => b"null",
            Self::Done => b"DONE",
        }
    }
}

/// The scanner of one value after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Json {
    /// One bit a level, the innermost lowest: 1 in an object, 0 in a list.
    objects: u64,
    /// Digits of an integer so far; `u64::MAX` when there was a sign.
    integer: u64,
    /// A name that a read has cut or that has escapes.
    name: Spelling,
    counts: Counts,
    /// The places outside of `place`, by depth.
    outer: [Place; 8],
    flags: u16,
    /// Code unit of a `\u` escape so far.
    unit: u16,
    role: Role,
    /// A value of `type` that a read has cut or that has escapes.
    type_name: KindSpelling,
    kind: Kind,
    place: Place,
    depth: u8,
    /// Levels entered of a container that does not matter, itself included.
    skipped: u8,
    /// Hexadecimal digits missing in an escape, or bytes matched of a literal.
    step: u8,
    literal: Literal,
    /// The string that is being read has something in it.
    filled: bool,
    state: State,
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

impl Json {
    pub(super) const START: Self = Self {
        objects: 0,
        integer: 0,
        name: Spelling::START,
        counts: Counts::NONE,
        outer: [Place::Root; 8],
        flags: 0,
        unit: 0,
        role: Role::Root,
        type_name: KindSpelling::START,
        kind: Kind::Other,
        place: Place::Root,
        depth: 0,
        skipped: 0,
        step: 0,
        literal: Literal::Null,
        filled: false,
        state: State::Value,
    };

    /// Takes the next bytes of the value.
    #[inline]
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            at = match self.state {
                State::Value | State::FirstElement => self.value(bytes, at),
                State::FirstKey | State::Key => self.members(bytes, at),
                State::After => self.after(bytes, at),
                State::Colon if bytes[at] == b':' => self.go(State::Value, at + 1),
                State::Colon | State::End if is_blank(bytes[at]) => at + 1,
                State::KeyString => self.key_string(bytes, at),
                State::ValueString => self.value_string(bytes, at),
                State::KeyEscape | State::ValueEscape => self.escape(bytes[at], at),
                State::KeyHex | State::ValueHex => self.hex_digit(bytes[at], at),
                State::Literal => self.literal(bytes, at),
                State::AfterDone => self.after_done(bytes[at], at),
                State::Colon | State::End | State::Malformed => self.malformed(),
                _ => self.number(bytes, at),
            };
        }
    }

    /// Ends the value: what it meant, and the counts in it. The scanner is then at the start of the next.
    #[inline]
    pub(super) fn end(&mut self, totals: &mut Counts) -> u16 {
        if self.depth == 0 && self.number_may_end() {
            self.number_end();
        }
        let flags = match self.state {
            State::End => self.meaning(),
            // Nothing but blanks is no value, and nothing is wrong with that.
            State::Value if self.depth == 0 => 0,
            _ => MALFORMED,
        };
        if flags & COUNTED != 0 {
            totals.merge(&self.counts);
        }
        if self.flags & COUNTED != 0 {
            self.counts = Counts::NONE;
        }
        (self.objects, self.flags, self.role, self.kind) = (0, 0, Role::Root, Kind::Other);
        (self.place, self.depth, self.skipped, self.state) = (Place::Root, 0, 0, State::Value);
        flags
    }

    /// The flags, with what holds only under a certain `type` resolved.
    fn meaning(&self) -> u16 {
        let has = |flag| self.flags & flag != 0;
        let mut flags = self.flags;
        match self.kind {
            Kind::Other => {}
            Kind::Error => flags |= ERROR,
            Kind::Failed => flags |= ERROR | FINISHED,
            Kind::Stop => flags |= FINISHED,
            Kind::BlockDelta if has(BLOCK_TEXT) => flags |= OUTPUT,
            Kind::BlockDelta if has(BLOCK_THINKING) => flags |= REASONING,
            Kind::ResponseDelta if has(DELTA) => flags |= OUTPUT,
            Kind::ResponseReasoning if has(DELTA) => flags |= REASONING,
            Kind::BlockDelta | Kind::ResponseDelta | Kind::ResponseReasoning => {}
        }
        if has(TOKEN_TEXT) && !has(TOKEN_SPECIAL) {
            flags |= OUTPUT;
        }
        flags
    }

    fn go(&mut self, state: State, at: usize) -> usize {
        self.state = state;
        at
    }

    /// Past every end: the rest of the value is not looked at.
    #[cold]
    fn malformed(&mut self) -> usize {
        self.state = State::Malformed;
        usize::MAX
    }

    #[inline]
    fn behind_value(&mut self, at: usize) -> usize {
        self.state = if self.depth == 0 { State::End } else { State::After };
        at
    }

    #[inline]
    fn value(&mut self, bytes: &[u8], at: usize) -> usize {
        let byte = bytes[at];
        if is_blank(byte) {
            return at + 1;
        }
        if self.state == State::FirstElement {
            if byte == b']' {
                return self.close(at);
            }
            if byte == b'D' && self.place == Place::RootList && self.skipped == 0 {
                return self.begin_literal(Literal::Done, bytes, at);
            }
            self.fill();
            self.next_element();
        }
        match byte {
            b'"' => self.begin_string(at + 1),
            b'{' => self.open_object(at),
            b'[' => self.open_list(at),
            b'n' => self.begin_literal(Literal::Null, bytes, at),
            b't' => self.begin_literal(Literal::True, bytes, at),
            b'f' => self.begin_literal(Literal::False, bytes, at),
            b'-' => {
                self.integer = u64::MAX;
                self.go(State::Minus, at + 1)
            }
            b'0'..=b'9' => {
                self.integer = u64::from(byte - b'0');
                self.state = if byte == b'0' { State::Zero } else { State::Integer };
                self.number(bytes, at + 1)
            }
            _ => self.malformed(),
        }
    }

    #[inline]
    fn next_element(&mut self) {
        self.role = if self.skipped == 0 { element_role(self.place) } else { Role::Skip };
    }

    #[inline]
    fn after(&mut self, bytes: &[u8], at: usize) -> usize {
        let in_object = self.objects & 1 == 1;
        match bytes[at] {
            b',' if in_object => self.state = State::Key,
            b',' => {
                self.next_element();
                self.state = State::Value;
            }
            b'}' if in_object => return self.close(at),
            b']' if !in_object => return self.close(at),
            byte if is_blank(byte) => {}
            _ => return self.malformed(),
        }
        at + 1
    }

    fn open_object(&mut self, at: usize) -> usize {
        let inside = match self.role {
            Role::Inside(place) if !place.is_list() => Some(place),
            Role::Root => Some(Place::Top),
            Role::Delta => Some(Place::BlockDelta),
            _ => None,
        };
        if !self.open(inside) {
            return self.malformed();
        }
        self.objects |= 1;
        self.go(State::FirstKey, at + 1)
    }

    fn open_list(&mut self, at: usize) -> usize {
        let inside = match self.role {
            Role::Inside(place) if place.is_list() => Some(place),
            Role::Root => Some(Place::RootList),
            _ => None,
        };
        if !self.open(inside) {
            return self.malformed();
        }
        self.go(State::FirstElement, at + 1)
    }

    /// Goes one level down; false when that is too deep.
    #[inline]
    fn open(&mut self, inside: Option<Place>) -> bool {
        if self.depth == DEPTH_MAX {
            return false;
        }
        match self.role {
            Role::Error => self.flags |= ERROR,
            Role::Finish | Role::Ended => self.flags |= FINISHED,
            _ => {}
        }
        match inside {
            // A role that leads inside is only given where nothing is skipped, so depth counts the places: at most eight.
            Some(place) => {
                self.outer[self.depth as usize & 7] = self.place;
                self.place = place;
            }
            None => self.skipped += 1,
        }
        self.objects <<= 1;
        self.depth += 1;
        true
    }

    fn close(&mut self, at: usize) -> usize {
        self.leave();
        self.behind_value(at + 1)
    }

    /// Goes one level up.
    #[inline]
    fn leave(&mut self) {
        self.depth -= 1;
        self.objects >>= 1;
        if self.skipped > 0 {
            self.skipped -= 1;
        } else {
            self.place = self.outer[self.depth as usize & 7];
        }
    }

    /// The container that was opened last has something in it.
    #[inline]
    fn fill(&mut self) {
        match self.role {
            Role::Filled(flag) => self.flags |= flag,
            Role::Delta => self.flags |= DELTA,
            _ => {}
        }
    }

    /// The short way: members and containers one after the other, as long as each token lies whole in `bytes` and in its
    /// plainest form. Whatever is not so is left to the states, byte by byte, before anything of it is taken. It begins
    /// where a name should stand; `state` is set only where it ends.
    #[inline]
    fn members(&mut self, bytes: &[u8], mut at: usize) -> usize {
        if bytes[at] != b'"' {
            return self.no_key(bytes, at);
        }
        if self.state == State::FirstKey {
            self.fill();
        }
        loop {
            let name = &bytes[at + 1..];
            let end = string_stop(name);
            let Some(&[b'"', b':', mut first]) = name.get(end..).and_then(|behind| behind.first_chunk::<3>()) else {
                return self.begin_key(name, end, at + 1);
            };
            at += end + 3;
            if first == b' ' {
                at += 1;
                first = at_or_zero(bytes, at);
            }
            // Null means nothing anywhere, so that its name need not be known.
            let known = first != b'n' && self.skipped == 0;
            let role = if known { role_of(self.place, word(name, end)) } else { Role::Skip };
            let step = match first {
                b'{' | b'[' => self.plain_open(bytes, at, role),
                _ => match plain_end(&bytes[at..], first) {
                    Some(length) => self.plain_value(bytes, at, length, role),
                    None => {
                        (self.role, self.state) = (role, State::Value);
                        return at;
                    }
                },
            };
            match step {
                Ok(name_at) => at = name_at,
                Err(stopped_at) => return stopped_at,
            }
        }
    }

    /// Opens the container at `at`, and the object at the front of a list. Where the first name of an object then stands,
    /// or where the states go on.
    #[inline]
    fn plain_open(&mut self, bytes: &[u8], mut at: usize, role: Role) -> Result<usize, usize> {
        self.role = role;
        if bytes[at] == b'[' {
            at = self.open_list(at);
            if at_or_zero(bytes, at) != b'{' {
                return Err(at);
            }
            self.fill();
            self.next_element();
        }
        at = self.open_object(at);
        if at_or_zero(bytes, at) != b'"' {
            return Err(at);
        }
        self.fill();
        Ok(at)
    }

    /// Takes the plain value of so many bytes at `at`, and goes on behind it, over the ends of containers. Where the next
    /// name stands, or where the states go on.
    #[inline]
    fn plain_value(&mut self, bytes: &[u8], at: usize, length: usize, role: Role) -> Result<usize, usize> {
        if role != Role::Skip {
            self.plain_meaning(&bytes[at..at + length], role);
        }
        let at = at + length;
        if at_or_zero(bytes, at) == b',' { self.plain_next(bytes, at + 1) } else { self.plain_close(bytes, at) }
    }

    /// Behind the comma of an object.
    #[inline]
    fn plain_next(&mut self, bytes: &[u8], mut at: usize) -> Result<usize, usize> {
        let mut next = at_or_zero(bytes, at);
        if next == b' ' {
            at += 1;
            next = at_or_zero(bytes, at);
        }
        if next == b'"' {
            return Ok(at);
        }
        self.state = State::Key;
        Err(at)
    }

    /// Behind a value that no comma follows: over the ends of containers.
    fn plain_close(&mut self, bytes: &[u8], mut at: usize) -> Result<usize, usize> {
        loop {
            let in_object = self.objects & 1 == 1;
            match at_or_zero(bytes, at) {
                b',' if in_object => return self.plain_next(bytes, at + 1),
                b'}' if in_object => self.leave(),
                b']' if !in_object => self.leave(),
                _ => return Err(self.behind_value(at)),
            }
            at += 1;
            if self.depth == 0 {
                return Err(self.behind_value(at));
            }
        }
    }

    fn plain_meaning(&mut self, value: &[u8], role: Role) {
        match value {
            [b'"', text @ .., _] => self.string_end(role, !text.is_empty(), || Kind::of(text)),
            b"true" if role == Role::Special => self.flags |= TOKEN_SPECIAL,
            b"true" => self.scalar(role),
            b"false" => {}
            digits => {
                self.integer =
                    digits.iter().fold(0, |n: u64, digit| n.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
                self.integer_end(role);
            }
        }
    }

    /// What stands where a name should.
    fn no_key(&mut self, bytes: &[u8], at: usize) -> usize {
        match bytes[at] {
            b'}' if self.state == State::FirstKey => self.close(at),
            byte if is_blank(byte) => at + 1,
            _ => self.malformed(),
        }
    }

    /// A name of which the end, or what is behind it, is not there yet or is not the usual; `at` is its first byte.
    fn begin_key(&mut self, name: &[u8], end: usize, at: usize) -> usize {
        if name.get(end) == Some(&b'"') {
            self.name_end(if self.skipped == 0 { word(name, end) } else { None });
            return at + end + 1;
        }
        self.name = Spelling::START;
        self.go(State::KeyString, at)
    }

    #[inline]
    fn name_end(&mut self, word: Option<Word>) {
        self.role = role_of(self.place, word);
        self.state = State::Colon;
    }

    fn key_string(&mut self, bytes: &[u8], at: usize) -> usize {
        let rest = &bytes[at..];
        let end = string_stop(rest);
        if self.skipped == 0 {
            rest[..end].iter().for_each(|&byte| self.name.push(byte));
        }
        match rest.get(end) {
            Some(b'"') => self.name_end(if self.skipped == 0 { self.name.word() } else { None }),
            Some(_) => self.state = State::KeyEscape,
            None => {}
        }
        at + end + 1
    }

    fn begin_string(&mut self, at: usize) -> usize {
        (self.filled, self.type_name, self.state) = (false, KindSpelling::START, State::ValueString);
        at
    }

    fn value_string(&mut self, bytes: &[u8], at: usize) -> usize {
        let rest = &bytes[at..];
        let end = string_stop(rest);
        self.filled |= end > 0;
        if self.role == Role::Type {
            rest[..end].iter().for_each(|&byte| self.type_name.push(byte));
        }
        match rest.get(end) {
            Some(b'"') => {
                let kind = self.type_name;
                self.string_end(self.role, self.filled, || kind.kind());
                self.behind_value(at + end + 1)
            }
            Some(_) => {
                self.filled = true;
                self.go(State::ValueEscape, at + end + 1)
            }
            None => at + end,
        }
    }

    #[inline]
    fn string_end(&mut self, role: Role, filled: bool, kind: impl FnOnce() -> Kind) {
        match role {
            Role::Filled(flag) if filled => self.flags |= flag,
            Role::Delta if filled => self.flags |= DELTA,
            Role::Finish if filled => self.flags |= FINISHED,
            Role::Ended => self.flags |= FINISHED,
            Role::Error if filled => self.flags |= ERROR,
            Role::Type => self.kind = kind(),
            _ => {}
        }
    }

    /// The byte behind a backslash.
    fn escape(&mut self, byte: u8, at: usize) -> usize {
        let decoded = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                (self.unit, self.step) = (0, 4);
                self.state = if self.state == State::KeyEscape { State::KeyHex } else { State::ValueHex };
                return at + 1;
            }
            _ => return self.malformed(),
        };
        self.unescaped(decoded, self.state == State::KeyEscape);
        at + 1
    }

    fn hex_digit(&mut self, byte: u8, at: usize) -> usize {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' | b'A'..=b'F' => (byte | 0x20) - b'a' + 10,
            _ => return self.malformed(),
        };
        self.unit = self.unit << 4 | u16::from(digit);
        self.step -= 1;
        if self.step == 0 {
            // No word has a byte over 0x7f, so one of them stands for all that is not ASCII.
            let decoded = if self.unit < 0x80 { self.unit as u8 } else { 0xff };
            self.unescaped(decoded, self.state == State::KeyHex);
        }
        at + 1
    }

    fn unescaped(&mut self, decoded: u8, in_key: bool) {
        if in_key {
            self.name.push(decoded);
            self.state = State::KeyString;
        } else {
            self.type_name.push(decoded);
            self.state = State::ValueString;
        }
    }

    fn begin_literal(&mut self, literal: Literal, bytes: &[u8], at: usize) -> usize {
        (self.literal, self.step, self.state) = (literal, 0, State::Literal);
        self.literal(bytes, at)
    }

    #[inline]
    fn literal(&mut self, bytes: &[u8], at: usize) -> usize {
        let wanted = &self.literal.text()[self.step as usize..];
        let rest = &bytes[at..];
        let length = wanted.len().min(rest.len());
        if rest[..length] != wanted[..length] {
            return self.malformed();
        }
        self.step += length as u8;
        if length < wanted.len() {
            return at + length;
        }
        match (self.literal, self.role) {
            (Literal::Done, _) => return self.go(State::AfterDone, at + length),
            (Literal::True, Role::Special) => self.flags |= TOKEN_SPECIAL,
            (Literal::True, role) => self.scalar(role),
            (Literal::False | Literal::Null, _) => {}
        }
        self.behind_value(at + length)
    }

    /// `[DONE]` is no JSON, but what a stream ends with: alone in its list, and nothing behind it.
    fn after_done(&mut self, byte: u8, at: usize) -> usize {
        if byte != b']' {
            return self.malformed();
        }
        self.flags |= DONE;
        self.close(at)
    }

    /// A number, or true: neither null nor empty.
    fn scalar(&mut self, role: Role) {
        match role {
            Role::Error => self.flags |= ERROR,
            Role::Finish | Role::Ended => self.flags |= FINISHED,
            _ => {}
        }
    }

    fn integer_end(&mut self, role: Role) {
        if let Role::Count(count) = role {
            self.counts.set(count, self.integer);
            self.flags |= COUNTED;
        }
        self.scalar(role);
    }

    fn number(&mut self, bytes: &[u8], mut at: usize) -> usize {
        while let Some(&byte) = bytes.get(at) {
            self.state = match (self.state, byte) {
                (State::Integer, b'0'..=b'9') => {
                    self.integer = self.integer.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
                    State::Integer
                }
                (State::Minus, b'0') => State::Zero,
                (State::Minus, b'1'..=b'9') => State::Integer,
                (State::Zero | State::Integer, b'.') => State::Point,
                (State::Point | State::Fraction, b'0'..=b'9') => State::Fraction,
                (State::Zero | State::Integer | State::Fraction, b'e' | b'E') => State::Exponent,
                (State::Exponent, b'+' | b'-') => State::ExponentSign,
                (State::Exponent | State::ExponentSign | State::ExponentDigits, b'0'..=b'9') => State::ExponentDigits,
                _ if self.number_may_end() => {
                    self.number_end();
                    return at;
                }
                _ => return self.malformed(),
            };
            at += 1;
        }
        at
    }

    const fn number_may_end(&self) -> bool {
        matches!(self.state, State::Zero | State::Integer | State::Fraction | State::ExponentDigits)
    }

    /// Counts are whole numbers of 0 or more; others (`7.0`, `-1`) are read as none.
    fn number_end(&mut self) {
        match self.state {
            State::Zero | State::Integer => self.integer_end(self.role),
            _ => self.scalar(self.role),
        }
        self.behind_value(0);
    }
}

/// Bytes of the value in front, when it is one of the plainest and lies whole in `bytes`: a string without escapes, a whole
/// number without a sign that something follows, true, false, null.
#[inline]
fn plain_end(bytes: &[u8], first: u8) -> Option<usize> {
    match first {
        b'"' => {
            let end = 1 + string_stop(&bytes[1..]);
            (at_or_zero(bytes, end) == b'"').then_some(end + 1)
        }
        b'0'..=b'9' => {
            let end = digits_stop(bytes);
            (matches!(at_or_zero(bytes, end), b',' | b'}') && (end == 1 || first != b'0')).then_some(end)
        }
        b'n' if bytes.starts_with(b"null") => Some(4),
        b't' if bytes.starts_with(b"true") => Some(4),
        b'f' if bytes.starts_with(b"false") => Some(5),
        _ => None,
    }
}

/// The byte at an index; 0, which is no part of JSON's grammar, past the end.
#[inline]
fn at_or_zero(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

/// One in each byte of a word, and the high bit of each.
const ONES: u64 = u64::from_ne_bytes([1; 8]);
const HIGHS: u64 = ONES << 7;

/// Index of the first quote or backslash; the length when there is neither.
///
/// Most strings are shorter than a call into a search routine is worth, so the first bytes are looked at eight at a time.
#[inline(always)]
fn string_stop(bytes: &[u8]) -> usize {
    match bytes.first_chunk::<8>().map(string_stops) {
        Some(stops) if stops != 0 => stops.trailing_zeros() as usize / 8,
        Some(_) => 8 + string_stop_far(&bytes[8..]),
        None => string_stop_far(bytes),
    }
}

/// Index of the first byte that is no digit; the length when all are.
#[inline]
fn digits_stop(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(eight) = bytes[at..].first_chunk::<8>() {
        // A digit becomes 0 to 9, and 118 more reach the high bit from 10 on; no byte carries into the next.
        let word = u64::from_le_bytes(*eight) ^ (ONES * b'0' as u64);
        let stops = (((word & !HIGHS) + ONES * 118) | word) & HIGHS;
        if stops != 0 {
            return at + stops.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count()
}

#[inline(never)]
fn string_stop_far(bytes: &[u8]) -> usize {
    let mut at = 0;
    while at < 32
        && let Some(eight) = bytes[at..].first_chunk::<8>()
    {
        let stops = string_stops(eight);
        if stops != 0 {
            return at + stops.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    memchr::memchr2(b'"', b'\\', &bytes[at..]).map_or(bytes.len(), |n| at + n)
}

/// The high bit of the first byte that is a quote or a backslash is set, and none before it; 0 when there is neither.
#[inline(always)]
fn string_stops(eight: &[u8; 8]) -> u64 {
    let word = u64::from_le_bytes(*eight);
    let quotes = (word ^ (ONES * b'"' as u64)).wrapping_sub(ONES);
    let slashes = (word ^ (ONES * b'\\' as u64)).wrapping_sub(ONES);
    // A byte over 0x7f is neither, and a borrow can only come from a byte that is one.
    (quotes | slashes) & !word & HIGHS
}
