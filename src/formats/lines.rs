//! Cuts a piece of whole lines into records: LF ends a line; CR before it, a BOM at its start and blank lines are no part of
//! a record.

use crate::data::Error;

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
