//! Kept responses: `responses.jsonl`, and the tokens that `--tokenize-after` counts in them.
//!
//! | field | is |
//! | --- | --- |
//! | `record`, `session`, `turn`, `instance`, `worker` | which request it answers, as in the records |
//! | `outcome`, `error`, `status`, `start_unix_ns` | as in the records |
//! | `bytes`, `whole` | bytes of `body`; false when the response was longer than what is kept of one |
//! | `body` | the body without its framing; null when it is no UTF-8 |
//! | `body_escaped` | then this, with `\xNN` for what is not printable |

use std::io::Write;

use serde::{Deserialize, Serialize};

use crate::{
    data::{
        Nanos, Result,
        metric::Metric,
        outcome::Outcome,
        plan::{GoodputLimit, RequestHead},
        rows::{NONE_U32, Row},
    },
    wire::text,
};

use super::{
    dir::RunDir,
    escape::escape,
    merge::{Merged, hide, secrets},
    records::{outcome, succeeded},
    spools::{self, Patches, Response, Spools},
};

#[derive(Serialize)]
struct Line<'a> {
    record: u32,
    session: Option<u32>,
    turn: u32,
    instance: u32,
    worker: u16,
    outcome: &'a str,
    error: Option<&'a str>,
    status: Option<u16>,
    start_unix_ns: Option<u64>,
    bytes: usize,
    whole: bool,
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_escaped: Option<String>,
}

/// Writes `responses.jsonl` and returns how many there are. Secrets of the request head are hidden: a server may well echo
/// what it was sent.
///
/// Errors: a spool that cannot be read, a file that cannot be written.
pub fn write(dir: &mut RunDir, spools: &Spools, head: &RequestHead) -> Result<u64> {
    let secrets = secrets(head);
    let mut part = dir.create("responses.jsonl")?;
    let mut count = 0;
    spools::responses(spools, |response, _| {
        let mut body = response.body.to_vec();
        secrets.iter().for_each(|secret| hide(&mut body, secret));
        let mut text = serde_json::to_string(&line(response, &body)).unwrap_or_else(|_| unreachable!("plain data"));
        text.push('\n');
        count += 1;
        part.write_all(text.as_bytes()).map_err(|e| part.error(e))
    })?;
    dir.commit(vec![part])?;
    Ok(count)
}

fn line<'a>(response: &Response<'_>, body: &'a [u8]) -> Line<'a> {
    let row = response.row;
    let text = std::str::from_utf8(body).ok();
    Line {
        record: row.record,
        session: (row.session != NONE_U32).then_some(row.session),
        turn: row.turn,
        instance: row.instance,
        worker: row.worker,
        outcome: outcome(row),
        error: match Outcome::from_code(row.outcome) {
            Some(Outcome::Failed(class)) => Some(class.name()),
            _ => None,
        },
        status: (row.status > 0).then_some(row.status),
        start_unix_ns: row.start.get().map(|ns| response.anchor_unix_ns.saturating_add(ns)),
        bytes: body.len(),
        whole: !row.has(Row::KEPT_IN_PART),
        body: text,
        body_escaped: text.is_none().then(|| escape(body)),
    }
}

/// What `--tokenize-after` counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Responses whose tokens were counted, as their server gave no usage.
    pub requests: u64,
    /// Their tokens, reasoning included.
    pub tokens: u64,
    /// By what: `tokenizer`, or `approx:` and the bytes a token.
    pub by: String,
}

/// Counts the tokens of the kept responses whose server gave no usage: rows and tables are then as if it had.
/// `started_unix_ns` is the wall clock of the timeline's zero.
///
/// Errors: a spool that cannot be read or written, a tokenizer that failed.
pub fn count_tokens(
    spools: &Spools,
    merged: &mut Merged,
    goodput: &[GoodputLimit],
    started_unix_ns: u64,
    count: &dyn Fn(&str) -> Result<u64>,
) -> Result<Counted> {
    let mut counted = Counted::default();
    let mut patches = Patches::default();
    spools::responses(spools, |response, rows| {
        let before = response.row;
        if !succeeded(before) || before.output_tokens != NONE_U32 || before.has(Row::WARMUP | Row::KEPT_IN_PART) {
            return Ok(());
        }
        let stream = before.content_events != NONE_U32;
        let texts = if stream { text::of_stream(response.body) } else { text::of_json(response.body) };
        let reasoning = count(&texts.reasoning)?;
        let tokens = count(&texts.output)? + reasoning;
        if tokens == 0 && !stream {
            // No answer of a language model: there is nothing to count.
            return Ok(());
        }
        let known = |n: u64| n.min(u64::from(NONE_U32 - 1)) as u32;
        let mut row = *before;
        row.output_tokens = known(tokens);
        row.reasoning_tokens = known(reasoning);
        row.flags |= Row::OUTPUT_COUNTED;
        patches.put(rows, response.at, &row)?;
        let measured_from = Nanos(started_unix_ns.saturating_sub(response.anchor_unix_ns));
        tell(merged, before, &row, goodput, measured_from);
        counted.requests += 1;
        counted.tokens += tokens;
        Ok(())
    })?;
    Ok(counted)
}

/// The tables with a row's tokens in them.
fn tell(merged: &mut Merged, before: &Row, row: &Row, goodput: &[GoodputLimit], measured_from: Nanos) {
    for metric in [
        Metric::OutputSequenceLength,
        Metric::ReasoningTokenCount,
        Metric::InterTokenLatency,
        Metric::OutputTokenThroughputPerUser,
    ] {
        if let Some(value) = row.value(metric) {
            merged.series[metric as usize].record(value);
        }
    }
    let good =
        |row: &Row| !goodput.is_empty() && goodput.iter().all(|l| row.value(l.metric).is_some_and(|v| v <= l.limit));
    merged.good = merged.good + u64::from(good(row)) - u64::from(good(before));
    merged.output_tokens += u64::from(row.output_tokens);
    merged.timeline.at(row.done.since(measured_from)).output_tokens += u64::from(row.output_tokens);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::{outcome::ErrorClass, plan::Secret},
        report::{
            fixture,
            spools::{
                Rows,
                tests::{responses_of, row, spool},
            },
        },
    };

    const CHAT: &[u8] = b"data: {\"choices\":[{\"delta\":{\"reasoning\":\"hm \"}}]}\n\n\
                          data: {\"choices\":[{\"delta\":{\"content\":\"one two three\"}}]}\n\ndata: [DONE]\n\n";

    fn words(text: &str) -> Result<u64> {
        Ok(text.split_whitespace().count() as u64)
    }

    fn stream(record: u32) -> Row {
        Row {
            content_events: 2,
            first_token: Nanos(1_020_010),
            last_token: Nanos(4_020_010),
            ..row(0, record, 5_000_000)
        }
    }

    #[test]
    fn responses_are_lines_with_their_body_and_no_secret() {
        let temp = tempfile::tempdir().unwrap();
        let failed = Row {
            outcome: Outcome::Failed(ErrorClass::Http5xx).code(),
            status: 503,
            connection: 2,
            ..row(0, 1, 9_000)
        };
        let part = Row { flags: Row::KEPT_IN_PART, connection: 3, ..row(0, 2, 9_000) };
        let kept: [(Row, &[u8]); 3] =
            [(stream(0), CHAT), (failed, b"no \"way\", s3cr3t-token"), (part, b"\x1f\x8b\xff")];
        spool(temp.path(), 0, &kept.map(|(row, _)| row));
        responses_of(temp.path(), 0, &kept);
        let head = RequestHead { bearer: Some(Secret("s3cr3t-token".into())), ..RequestHead::default() };
        let mut dir = RunDir::take(temp.path());
        assert_eq!(write(&mut dir, &Spools::find(temp.path()).unwrap(), &head).unwrap(), 3);
        let text = std::fs::read_to_string(temp.path().join("responses.jsonl")).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines[0]["body"].as_str().unwrap().as_bytes(), CHAT);
        assert_eq!((&lines[0]["outcome"], &lines[0]["whole"]), (&"succeeded".into(), &true.into()));
        assert_eq!((&lines[1]["error"], &lines[1]["body"]), (&"http_5xx".into(), &"no \"way\", ***".into()));
        assert_eq!((&lines[2]["body"], &lines[2]["whole"]), (&serde_json::Value::Null, &false.into()));
        assert_eq!(lines[2]["body_escaped"], "\\x1f\\x8b\\xff");
    }

    #[test]
    fn tokens_are_counted_where_the_server_gave_none() {
        let temp = tempfile::tempdir().unwrap();
        let given = Row { output_tokens: 9, ..stream(1) };
        let failed = Row { outcome: Outcome::Failed(ErrorClass::StreamError).code(), ..stream(2) };
        let json: &[u8] = br#"{"choices":[{"message":{"content":"a b"}}]}"#;
        let kept: [(Row, &[u8]); 5] =
            [(stream(0), CHAT), (given, CHAT), (failed, CHAT), (row(0, 3, 9_000), json), (row(0, 4, 9_000), b"{}")];
        spool(temp.path(), 0, &kept.map(|(row, _)| row));
        responses_of(temp.path(), 0, &kept);
        let spools = Spools::find(temp.path()).unwrap();
        let (_, mut merged) = fixture::summary();
        // 1 ms between tokens is within the limit only once there are tokens.
        let limit = [GoodputLimit { metric: Metric::InterTokenLatency, limit: 1_000_000 }];
        let good = merged.good;
        let counted = count_tokens(&spools, &mut merged, &limit, spools::tests::ANCHOR, &words).unwrap();
        assert_eq!((counted.requests, counted.tokens), (2, 6));
        assert_eq!((merged.output_tokens, merged.good), (6, good + 1));
        assert_eq!(merged.series(Metric::InterTokenLatency).max, 1_000_000);
        assert_eq!(merged.series(Metric::OutputSequenceLength).sum, 6);
        assert_eq!(merged.timeline.rows().iter().map(|r| r.output_tokens).sum::<u64>(), 6);
        let mut rows = Rows::open(&spools).unwrap();
        let mut seen = Vec::new();
        while let Some((row, _)) = rows.next_row().unwrap() {
            seen.push((row.record, row.output_tokens, row.reasoning_tokens, row.has(Row::OUTPUT_COUNTED)));
        }
        seen.sort_unstable();
        assert_eq!(
            seen,
            [
                (0, 4, 1, true),
                (1, 9, NONE_U32, false),
                (2, NONE_U32, NONE_U32, false),
                (3, 2, 0, true),
                (4, NONE_U32, NONE_U32, false)
            ]
        );
    }
}
