//! Bytes of a server as text that is safe to print: no terminal ever sees an escape code that a server sent.

use std::fmt::Write as _;

/// Printable ASCII as it is, `\` doubled, line ends and tabs by name, everything else as `\xNN`.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &b in bytes {
        match b {
            b'\\' => out.push_str("\\\\"),
            b'\r' => out.push_str("\\r"),
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            0x20..=0x7e => out.push(b as char),
            _ => {
                let _ = write!(out, "\\x{b:02x}");
            }
        }
    }
    out
}

/// The bytes that [`escape`] made a text of; what it never writes is taken as it stands.
pub fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&b, tail)) = rest.split_first() {
        let (byte, used) = match (b, tail) {
            (b'\\', [b'\\', ..]) => (b'\\', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [b'x', high, low, ..]) => match (hex(*high), hex(*low)) {
                (Some(h), Some(l)) => (h << 4 | l, 4),
                _ => (b, 1),
            },
            _ => (b, 1),
        };
        out.push(byte);
        rest = &rest[used..];
    }
    out
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|d| d as u8)
}

/// Text with control characters replaced, for names and notes that may hold anything.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The text cut to `most` characters, with `...` in place of what is left out.
pub fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(3)).collect();
    format!("{kept}...")
}

/// Text for HTML and SVG, in elements and in quoted attributes.
pub fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn escaped_bytes_come_back(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
            let text = escape(&bytes);
            proptest::prop_assert!(text.bytes().all(|b| (0x20..0x7f).contains(&b)));
            proptest::prop_assert_eq!(unescape(&text), bytes);
        }

        #[test]
        fn any_text_is_taken(text in "\\PC{0,40}") {
            unescape(&text);
        }
    }

    #[test]
    fn nothing_a_server_sends_reaches_the_terminal_raw() {
        assert_eq!(escape(b"a\x1b[31m\\\r\n\t\xff"), "a\\x1b[31m\\\\\\r\\n\\t\\xff");
        assert_eq!(printable("a\u{1b}[1mb\n"), "a\u{fffd}[1mb\u{fffd}");
        assert_eq!(html("<b a=\"'\">&"), "&lt;b a=&quot;&#39;&quot;&gt;&amp;");
        assert_eq!((shorten("abcdef", 5), shorten("abc", 5)), ("ab...".to_owned(), "abc".to_owned()));
    }
}
