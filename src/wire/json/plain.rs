//! The short way through a value: whole tokens in their plainest form, which is nearly all that servers write.
//!
//! What is not so, an escape, a token that the read has cut, a blank where few write one, is left to the states of the
//! scanner, before anything of it is taken. So this file can only be faster than the states, never say something else.

use super::{
    Json, State,
    paths::{Role, TOKEN_SPECIAL, role_of},
    swar::{at_or_zero, digits_stop, string_stop},
};
use crate::wire::words::{Kind, word};

impl Json {
    /// The short way: members and containers one after the other, as long as each token lies whole in `bytes` and in its
    /// plainest form. Whatever is not so is left to the states, byte by byte, before anything of it is taken. It begins
    /// where a name should stand; `state` is set only where it ends.
    #[inline]
    pub(super) fn members(&mut self, bytes: &[u8], mut at: usize) -> usize {
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
