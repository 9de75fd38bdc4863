//! `burst_gpt_trace` and `azure_llm_trace`: tables of times and lengths with a header line, one record a line.
//!
//! | format | columns (in any order, others are ignored) | time |
//! | --- | --- | --- |
//! | burst_gpt_trace | `Timestamp`, `Request tokens`, `Response tokens` | seconds |
//! | azure_llm_trace | `TIMESTAMP`, `ContextTokens`, `GeneratedTokens` | date and time, to 100 ns |
//!
//! A field may be in double quotes (RFC 4180), but not hold a line end.

use std::borrow::Cow;

use super::{
    Columns, Format, ReadOptions,
    fields::{Read, Stop},
    lines,
    times::date_time_ns,
};
use crate::data::{
    Error,
    error::Place,
    json::Value,
    limits::TOKENS_MAX,
    record::{Payload, Record, Sink},
};

/// Time, input and output columns of the formats.
const BURST: [&str; 3] = ["Timestamp", "Request tokens", "Response tokens"];
const AZURE: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];

/// Which format a header line is of.
pub(super) fn format_of(header: &[u8]) -> Option<Format> {
    let cells = cells(lines::trim(header));
    let all = |wanted: [&str; 3]| wanted.iter().all(|name| cells.iter().any(|cell| cell.trim() == *name));
    match (all(BURST), all(AZURE)) {
        (true, _) => Some(Format::BurstGptTrace),
        (_, true) => Some(Format::AzureLlmTrace),
        _ => None,
    }
}

/// Where the columns stand.
pub(super) fn header(format: Format, file: &str, line: &[u8], number: u64) -> Result<Columns, Error> {
    let names = if format == Format::AzureLlmTrace { AZURE } else { BURST };
    let cells = cells(lines::trim(line));
    let places: Vec<_> = names.iter().map(|name| cells.iter().position(|cell| cell.trim() == *name)).collect();
    if let Some(missing) = places.iter().position(Option::is_none) {
        let seen: Vec<_> = cells.iter().map(|cell| cell.chars().take(30).collect::<String>()).take(12).collect();
        let what = format!("no column \"{}\" in the header, which has {}", names[missing], seen.join(", "));
        return Err(Error::dataset(Place::line(file, number), what));
    }
    Ok(Columns(places.into_iter().flatten().collect()))
}

pub(super) fn line(format: Format, options: &ReadOptions, number: u64, line: &[u8], sink: &mut dyn Sink) -> Read<()> {
    let cells = cells(line);
    let names = if format == Format::AzureLlmTrace { AZURE } else { BURST };
    let cell = |k: usize| -> Read<&str> {
        let at = options.columns.0.get(k).copied().unwrap_or(k);
        let text = cells.get(at).map(|cell| cell.trim());
        text.ok_or_else(|| Stop::Bad(format!("{} fields, expected {} in field {}", cells.len(), names[k], at + 1)))
    };
    let tokens = |k: usize| -> Read<u32> {
        let text = cell(k)?;
        let n = Value::parse(text.as_bytes()).ok().and_then(Value::integer);
        match n {
            Some(n) if (0..=i128::from(TOKENS_MAX)).contains(&n) => Ok(n as u32),
            _ => Err(Stop::Bad(format!("{} is {}, expected 0..={TOKENS_MAX}", names[k], shown(text)))),
        }
    };
    let time = cell(0)?;
    let due_ns = if format == Format::AzureLlmTrace {
        date_time_ns(time).ok_or_else(|| {
            Stop::Bad(format!("{} is {}, expected 2023-11-16 18:17:03.9799600", names[0], shown(time)))
        })?
    } else {
        let seconds = Value::parse(time.as_bytes()).ok().filter(|v| !v.bytes().starts_with(b"-"));
        let ns = seconds.and_then(|v| v.scaled(9)).and_then(|ns| u64::try_from(ns).ok()).filter(|&ns| ns < u64::MAX);
        ns.ok_or_else(|| Stop::Bad(format!("{} is {}, expected seconds, 0 or more", names[0], shown(time))))?
    };
    let payload = Payload::Lengths { input_tokens: tokens(1)?, block_ids: Cow::Borrowed(&[]) };
    let mut record = Record::new(number, payload);
    record.due_ns = Some(due_ns);
    record.output_tokens = Some(tokens(2)?);
    Ok(sink.record(record)?)
}

fn shown(text: &str) -> String {
    if text.is_empty() { "empty".into() } else { text.chars().take(40).collect() }
}

/// The fields of a line.
fn cells(line: &[u8]) -> Vec<Cow<'_, str>> {
    let mut cells = Vec::new();
    let mut rest = line;
    loop {
        let quoted = rest.strip_prefix(b"\"");
        let (cell, tail) = match quoted {
            Some(inner) => {
                let (mut text, mut at) = (Vec::new(), 0);
                while let Some(end) = memchr::memchr(b'"', &inner[at..]) {
                    text.extend_from_slice(&inner[at..at + end]);
                    at += end + 1;
                    if inner.get(at) != Some(&b'"') {
                        break;
                    }
                    text.push(b'"');
                    at += 1;
                }
                let tail = &inner[at..];
                let end = memchr::memchr(b',', tail).unwrap_or(tail.len());
                (Cow::Owned(String::from_utf8_lossy(&text).into_owned()), &tail[end..])
            }
            None => {
                let end = memchr::memchr(b',', rest).unwrap_or(rest.len());
                (String::from_utf8_lossy(&rest[..end]), &rest[end..])
            }
        };
        cells.push(cell);
        match tail.split_first() {
            Some((b',', next)) => rest = next,
            _ => return cells,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{parse_header, parse_lines, testing::Kept};
    use super::*;

    fn table(format: Format, text: &str) -> Kept {
        let (head, rows) = text.split_once('\n').unwrap();
        let columns = parse_header(format, "f", head.as_bytes(), 1).unwrap();
        let options = ReadOptions { columns, ..ReadOptions::default() };
        let mut kept = Kept::default();
        parse_lines(format, &options, "f", rows.as_bytes(), 2, &mut kept).unwrap();
        kept
    }

    #[test]
    fn rows_of_both_tables() {
        let burst = table(
            Format::BurstGptTrace,
            "\u{feff}Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n5,ModelA,472,18,490,Conversation log\r\n0.25,\"a,\"\"b\",0,0,0,\r\n",
        );
        assert_eq!(burst.bad, Vec::<String>::new());
        let got: Vec<_> = burst.records.iter().map(|r| (r.line, r.due_ns, r.output_tokens)).collect();
        assert_eq!(got, [(2, Some(5_000_000_000), Some(18)), (3, Some(250_000_000), Some(0))]);
        let azure = table(
            Format::AzureLlmTrace,
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8",
        );
        assert_eq!(azure.records[1].due_ns.unwrap() - azure.records[0].due_ns.unwrap(), 52_000_000);
        assert_eq!(azure.records[0].payload, Payload::Lengths { input_tokens: 4808, block_ids: Cow::Borrowed(&[]) });
    }

    #[test]
    fn wrong_rows_and_headers_are_told() {
        let burst =
            table(Format::BurstGptTrace, "Timestamp,Request tokens,Response tokens\nx,1,2\n-1,1,2\n1,1.5,2\n1,1\n1,,2");
        assert_eq!(
            burst.bad,
            [
                "f:2: Timestamp is x, expected seconds, 0 or more",
                "f:3: Timestamp is -1, expected seconds, 0 or more",
                "f:4: Request tokens is 1.5, expected 0..=16777216",
                "f:5: 2 fields, expected Response tokens in field 3",
                "f:6: Request tokens is empty, expected 0..=16777216",
            ]
        );
        let azure = table(Format::AzureLlmTrace, "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2");
        assert_eq!(azure.bad, ["f:2: TIMESTAMP is yesterday, expected 2023-11-16 18:17:03.9799600"]);
        let error = parse_header(Format::BurstGptTrace, "f", b"Timestamp,Tokens", 1).unwrap_err().to_string();
        assert_eq!(error, "f:1: no column \"Request tokens\" in the header, which has Timestamp, Tokens");
    }

    #[test]
    fn headers_tell_the_format() {
        assert_eq!(format_of(b"TIMESTAMP,ContextTokens,GeneratedTokens\r"), Some(Format::AzureLlmTrace));
        assert_eq!(format_of(b"Timestamp,Model,Request tokens,Response tokens,X"), Some(Format::BurstGptTrace));
        assert_eq!(format_of(b"a,b"), None);
    }
}
