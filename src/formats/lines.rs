//! Cuts a piece of whole lines into records: LF ends a line; CR before it, a BOM at its start and blank lines are no part of
//! a record.

use std::io::{ErrorKind, Read};

use crate::data::Error;

/// Read from a stream at once.
const STEP: usize = 256 << 10;

/// Calls `line` with the number and the bytes of each line that is not blank. A last line without LF counts.
pub(super) fn each(
    chunk: &[u8],
    first_line: u64,
    mut line: impl FnMut(u64, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut rest = chunk;
    let mut number = first_line;
    while !rest.is_empty() {
        let (this, next) = match memchr::memchr(b'\n', rest) {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None => (rest, &rest[..0]),
        };
        let this = trim(this);
        if !is_blank(this) {
            line(number, this)?;
        }
        rest = next;
        number += 1;
    }
    Ok(())
}

/// The same over a stream, holding no more of it than the longest line.
pub(super) fn each_of(
    file: &str,
    input: &mut dyn Read,
    mut line: impl FnMut(u64, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut buffer = Vec::new();
    let (mut number, mut searched) = (1u64, 0);
    loop {
        let have = buffer.len();
        // A long line doubles the step, so that it is not moved over and over.
        buffer.resize(have + STEP.max(have / 2), 0);
        let got = loop {
            match input.read(&mut buffer[have..]) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let got = got.map_err(|e| Error::file("cannot read", file.as_ref(), e))?;
        buffer.truncate(have + got);
        let whole = match memchr::memrchr(b'\n', &buffer[searched..]) {
            _ if got == 0 => buffer.len(),
            Some(end) => searched + end + 1,
            None => 0,
        };
        each(&buffer[..whole], number, &mut line)?;
        number += memchr::memchr_iter(b'\n', &buffer[..whole]).count() as u64;
        if got == 0 {
            return Ok(());
        }
        buffer.drain(..whole);
        searched = buffer.len();
    }
}

/// A line without its BOM and without the CR before its end.
pub(super) fn trim(line: &[u8]) -> &[u8] {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|c| matches!(c, b' ' | b'\t' | b'\r'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut seen = Vec::new();
        each(text, 1, |n, line| {
            seen.push((n, line.to_vec()));
            Ok(())
        })
        .unwrap();
        seen
    }

    #[test]
    fn line_ends_boms_and_blank_lines_are_no_part_of_a_record() {
        assert_eq!(cut(b""), []);
        assert_eq!(cut(b"\n \t\r\n\n"), []);
        assert_eq!(cut(b"a"), [(1, b"a".to_vec())]);
        assert_eq!(cut(b"\xef\xbb\xbfa\r\n\nb \n"), [(1, b"a".to_vec()), (3, b"b ".to_vec())]);
        assert_eq!(cut(b"\xef\xbb\xbf\na\r\r\n"), [(2, b"a\r".to_vec())]);
    }

    #[test]
    fn a_stream_gives_the_lines_of_its_bytes() {
        let long = "x".repeat(STEP + 7);
        let text = format!("\u{feff}a\r\n\n{long}\nb\n{long}");
        let mut seen = Vec::new();
        let mut input = std::io::Read::chain(&text.as_bytes()[..2], &text.as_bytes()[2..]);
        each_of("f", &mut input, |n, line| {
            seen.push((n, line.to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, cut(text.as_bytes()));
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn numbers_go_on_over_pieces() {
        let mut numbers = Vec::new();
        each(b"x\ny\n", 7, |n, _| {
            numbers.push(n);
            Ok(())
        })
        .unwrap();
        assert_eq!(numbers, [7, 8]);
    }
}
