//! Pulls one JSON document out of a stream, an array element at a time, so that a file of any size fits.
//!
//! The document's outer objects are walked byte by byte; each element that is wanted is captured whole and handed over as it
//! stands in the file (its grammar is the taker's to check), the rest is skipped unkept.

use std::io::{ErrorKind, Read};

use crate::data::{Error, error::Place, json};

/// Read from the stream at once.
const STEP: usize = 256 << 10;

/// Takes the line and the text of an element.
type Element<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Error> + 'a;

/// A document being read.
pub(super) struct Stream<'r> {
    file: String,
    input: &'r mut dyn Read,
    buffer: Vec<u8>,
    /// Next byte of `buffer` to look at; what lies before is done with.
    at: usize,
    /// Line of that byte, from 1.
    line: u64,
    ended: bool,
}

impl<'r> Stream<'r> {
    pub(super) fn new(file: &str, input: &'r mut dyn Read) -> Self {
        Self { file: file.to_owned(), input, buffer: Vec::with_capacity(STEP), at: 0, line: 1, ended: false }
    }

    /// Walks the outermost object and calls `element` with the line and the text of each element of the array named `name`,
    /// which may also be a path of objects, as in `log.entries`. Gives whether that array was there.
    pub(super) fn array_in_object(
        &mut self,
        name: &str,
        mut element: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        self.byte_order_mark()?;
        let found = self.find(name, &mut element)?;
        self.space()?;
        match self.peek()? {
            None => Ok(found),
            Some(_) => Err(self.error("expected nothing after the document")),
        }
    }

    fn find(&mut self, path: &str, element: &mut Element<'_>) -> Result<bool, Error> {
        let (name, inner) = path.split_once('.').map_or((path, None), |(name, inner)| (name, Some(inner)));
        let mut found = false;
        self.expect(b'{', "expected an object")?;
        self.space()?;
        if self.peek()? == Some(b'}') {
            self.at += 1;
            return Ok(false);
        }
        loop {
            self.space()?;
            if self.peek()? != Some(b'"') {
                return Err(self.error("expected a key in double quotes"));
            }
            let (start, end) = self.capture()?;
            let wanted = json::key_is(&self.buffer[start + 1..end - 1], name);
            self.expect(b':', "expected `:` after a key")?;
            self.space()?;
            match inner {
                Some(inner) if wanted => found |= self.find(inner, element)?,
                None if wanted => {
                    self.elements(element)?;
                    found = true;
                }
                _ => self.skip()?,
            }
            self.space()?;
            match self.next()? {
                Some(b',') => {}
                Some(b'}') => return Ok(found),
                _ => return Err(self.before("expected `,` or `}`")),
            }
        }
    }

    fn elements(&mut self, element: &mut Element<'_>) -> Result<(), Error> {
        self.expect(b'[', "expected an array")?;
        self.space()?;
        if self.peek()? == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.space()?;
            let line = self.line;
            let (start, end) = self.capture()?;
            element(line, &self.buffer[start..end])?;
            self.space()?;
            match self.next()? {
                Some(b',') => {}
                Some(b']') => return Ok(()),
                _ => return Err(self.before("expected `,` or `]`")),
            }
        }
    }

    fn byte_order_mark(&mut self) -> Result<(), Error> {
        while self.buffer.len() < 3 && self.fill()? {}
        if self.buffer.starts_with(b"\xef\xbb\xbf") {
            self.at = 3;
        }
        Ok(())
    }

    /// Takes the value that starts here; gives where it lies in the buffer until the next call.
    fn capture(&mut self) -> Result<(usize, usize), Error> {
        self.forget();
        let mut state = Extent::default();
        let mut seen = 0;
        loop {
            if let Some(end) = state.feed(&self.buffer[seen..]) {
                let end = seen + end;
                self.line += memchr::memchr_iter(b'\n', &self.buffer[..end]).count() as u64;
                self.at = end;
                return if end > 0 { Ok((0, end)) } else { Err(self.error("expected a JSON value")) };
            }
            seen = self.buffer.len();
            if !self.fill()? {
                self.at = seen;
                return match state.at_end() {
                    true if seen > 0 => Ok((0, seen)),
                    _ => Err(self.error("ends too early")),
                };
            }
        }
    }

    /// Passes over the value that starts here without keeping it.
    fn skip(&mut self) -> Result<(), Error> {
        let mut state = Extent::default();
        let mut any = false;
        loop {
            if self.at == self.buffer.len() && !self.fill()? {
                return if state.at_end() && any { Ok(()) } else { Err(self.error("ends too early")) };
            }
            let window = &self.buffer[self.at..];
            let (used, done) = state.feed(window).map_or((window.len(), false), |end| (end, true));
            any |= used > 0;
            self.line += memchr::memchr_iter(b'\n', &window[..used]).count() as u64;
            self.at += used;
            if done {
                return if any { Ok(()) } else { Err(self.error("expected a JSON value")) };
            }
        }
    }

    fn space(&mut self) -> Result<(), Error> {
        while let Some(c @ (b' ' | b'\n' | b'\r' | b'\t')) = self.peek()? {
            self.line += u64::from(c == b'\n');
            self.at += 1;
        }
        Ok(())
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), Error> {
        self.space()?;
        if self.peek()? != Some(byte) {
            return Err(self.error(what));
        }
        self.at += 1;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<u8>, Error> {
        let c = self.peek()?;
        self.at += usize::from(c.is_some());
        Ok(c)
    }

    fn peek(&mut self) -> Result<Option<u8>, Error> {
        if self.at == self.buffer.len() {
            self.forget();
            self.fill()?;
        }
        Ok(self.buffer.get(self.at).copied())
    }

    /// Drops what was looked at.
    fn forget(&mut self) {
        self.buffer.drain(..self.at);
        self.at = 0;
    }

    /// Appends what the stream gives next; false at its end.
    fn fill(&mut self) -> Result<bool, Error> {
        if self.at == self.buffer.len() {
            self.forget();
        }
        let have = self.buffer.len();
        // A long value doubles the step, so that it is not copied over and over.
        self.buffer.resize(have + STEP.max(have / 2), 0);
        let got = loop {
            match self.input.read(&mut self.buffer[have..]) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let got = got.map_err(|e| Error::file("cannot read", self.file.as_ref(), e))?;
        self.buffer.truncate(have + got);
        self.ended |= got == 0;
        Ok(got > 0)
    }

    fn before(&mut self, what: &'static str) -> Error {
        self.at = self.at.saturating_sub(1);
        self.error(what)
    }

    fn error(&self, what: &'static str) -> Error {
        let place = Place::line(&self.file, self.line);
        match self.buffer.get(self.at..).filter(|rest| !rest.is_empty()) {
            Some(rest) => {
                let near = String::from_utf8_lossy(&rest[..rest.len().min(12)]).escape_debug().to_string();
                Error::dataset(place, format!("no JSON: {what} at `{near}`"))
            }
            None => Error::dataset(place, "no JSON: the file ends too early"),
        }
    }
}

/// Finds the end of a value by its brackets and quotes alone, over any pieces.
#[derive(Default)]
struct Extent {
    depth: u32,
    string: bool,
    escaped: bool,
    /// Inside a number or word, which ends at the first byte that cannot be part of it.
    word: bool,
}

impl Extent {
    /// Takes more bytes; gives the value's end within them once it is there.
    fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(&c) = bytes.get(at) {
            if self.string {
                if self.escaped {
                    self.escaped = false;
                    at += 1;
                    continue;
                }
                at += memchr::memchr2(b'"', b'\\', &bytes[at..])?;
                self.escaped = bytes[at] == b'\\';
                self.string = self.escaped;
                at += 1;
                if !self.string && self.depth == 0 {
                    return Some(at);
                }
                continue;
            }
            match c {
                b'"' if !self.word => self.string = true,
                b'{' | b'[' if !self.word => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ if self.depth > 0 => {}
                b' ' | b'\n' | b'\r' | b'\t' | b',' | b']' | b'}' | b':' | b'"' | b'{' | b'[' => return Some(at),
                _ => self.word = true,
            }
            at += 1;
        }
        None
    }

    /// True when the end of the input also ends the value.
    fn at_end(&self) -> bool {
        self.depth == 0 && !self.string
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time.
    struct Drip<'a>(&'a [u8]);

    impl Read for Drip<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let n = self.0.len().min(out.len()).min(1);
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    fn elements(text: &str, path: &str, drip: bool) -> Result<(bool, Vec<(u64, String)>), String> {
        let (mut slow, mut fast) = (Drip(text.as_bytes()), text.as_bytes());
        let input: &mut dyn Read = if drip { &mut slow } else { &mut fast };
        let mut seen = Vec::new();
        let found = Stream::new("f", input)
            .array_in_object(path, |line, text| {
                seen.push((line, String::from_utf8_lossy(text).into_owned()));
                Ok(())
            })
            .map_err(|e| e.to_string())?;
        Ok((found, seen))
    }

    #[test]
    fn elements_come_whole_however_the_stream_is_cut() {
        let text = "\u{feff}{\"x\":{\"data\":[9]},\n\"n\":-1.5e3,\"t\":true, \"d\\u0061ta\" : [ {\"a\":\"}]\\\"\"} ,\n[1,[2]], 12 ,\"s\\\\\", null]\n , \"z\":\"\"}\n";
        for drip in [false, true] {
            let (found, seen) = elements(text, "data", drip).unwrap();
            assert!(found);
            let want = [(2, r#"{"a":"}]\""}"#), (3, "[1,[2]]"), (3, "12"), (3, r#""s\\""#), (3, "null")];
            assert_eq!(seen, want.map(|(n, t)| (n, t.to_owned())));
            assert_eq!(elements(text, "x.data", drip).unwrap(), (true, vec![(1, "9".to_owned())]));
            assert!(!elements("{}", "data", drip).unwrap().0);
        }
    }

    #[test]
    fn broken_documents_name_the_line() {
        for (text, want) in [
            ("", "f:1: no JSON: the file ends too early"),
            ("\n\n[]", "f:3: no JSON: expected an object at `[]`"),
            ("{\"data\":[1 2]}", "f:1: no JSON: expected `,` or `]` at `2]}`"),
            ("{\"data\":[1\n", "f:2: no JSON: the file ends too early"),
            ("{\"data\":[{\"a\":1\n", "f:1: no JSON: the file ends too early"),
            ("{\"data\":[]} x", "f:1: no JSON: expected nothing after the document at `x`"),
            ("{\"a\" 1}", "f:1: no JSON: expected `:` after a key at `1}`"),
            ("{\"data\":[,]}", "f:1: no JSON: expected a JSON value at `,]}`"),
            ("{\"a\":}", "f:1: no JSON: expected a JSON value at `}`"),
        ] {
            for drip in [false, true] {
                let got = elements(text, "data", drip).unwrap_err();
                // Fed a byte at a time the text after the place is not there yet.
                let same = if drip { got.split(" at `").next() == want.split(" at `").next() } else { got == want };
                assert!(same, "{text:?} {drip}: {got}");
            }
        }
    }
}
