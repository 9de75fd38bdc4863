//! A JSON value in one pass, resumable at any byte, that remembers only what a stream event means.
//!
//! The scanner checks the whole grammar (RFC 8259) and follows the member names along the few paths that matter; what it
//! finds on them becomes flags and counts, of which nothing holds before the value is whole and well-formed. It is lenient
//! in two points: control bytes inside strings pass (the lines of an event are joined with one), and UTF-8 is not checked.
//! Values nested deeper than [`DEPTH_MAX`] count as malformed.

mod paths;
mod plain;
mod swar;

use paths::{
    BLOCK_TEXT, BLOCK_THINKING, COUNTED, DELTA, Place, Role, TOKEN_SPECIAL, TOKEN_TEXT, element_role, role_of,
};
pub(super) use paths::{Count, Counts, DONE, ERROR, FINISHED, MALFORMED, OUTPUT, REASONING};
use swar::string_stop;

use super::words::{Kind, KindSpelling, Spelling, Word, word};

/// Levels of nesting: one bit each. The deepest path that matters has eight.
pub(super) const DEPTH_MAX: u8 = 64;

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
            State::End => self.flags,
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

    /// The object at the top is whole: resolves what holds only under its `type`, or only for a token that is not special.
    #[inline]
    fn resolve(&mut self) {
        let has = |flag| self.flags & flag != 0;
        let mut found = 0;
        match self.kind {
            Kind::Other => {}
            Kind::Error => found |= ERROR,
            Kind::Failed => found |= ERROR | FINISHED,
            Kind::Stop => found |= FINISHED,
            Kind::BlockDelta if has(BLOCK_TEXT) => found |= OUTPUT,
            Kind::BlockDelta if has(BLOCK_THINKING) => found |= REASONING,
            Kind::ResponseDelta if has(DELTA) => found |= OUTPUT,
            Kind::ResponseReasoning if has(DELTA) => found |= REASONING,
            Kind::BlockDelta | Kind::ResponseDelta | Kind::ResponseReasoning => {}
        }
        if has(TOKEN_TEXT) && !has(TOKEN_SPECIAL) {
            found |= OUTPUT;
        }
        // Another object of a list begins anew.
        self.flags = (self.flags & !(DELTA | BLOCK_TEXT | BLOCK_THINKING | TOKEN_TEXT | TOKEN_SPECIAL)) | found;
        self.kind = Kind::Other;
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
            if self.place == Place::Top {
                self.resolve();
            }
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
