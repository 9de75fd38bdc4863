//! The workers' spools as `records.jsonl` or `records.parquet`: one record an issued request, in the order in which the
//! requests ended (over all workers; ties by worker). Warm-up requests are left out, as everywhere.
//!
//! Memory is bounded by the number of spools and the size of a row group, not by the run. Columns, in both formats:
//!
//! | column | |
//! | --- | --- |
//! | `record`, `session`, `turn`, `instance` | which request of the dataset, and in which pass; from 0 |
//! | `worker`, `target`, `connection`, `connection_use`, `reused` | where it went; requests that its connection had carried |
//! | `outcome`, `error`, `status` | `succeeded`, `failed` or `cut`; class of a failure; status when one came |
//! | `start_unix_ns` | wall clock of the start |
//! | `due_ns` ... `done_ns` | the stamps, nanoseconds since the run's anchor; null when they did not happen |
//! | `connect_ns`, `tls_ns` | lengths, when a connection was opened on its behalf |
//! | `bytes_sent`, `bytes_received`, `zero_copy` | with heads |
//! | `input_tokens`, `input_tokens_from`, `output_tokens`, `reasoning_tokens`, `content_events` | null when not known |
//! | `output_tokens_from` | `server` (its usage) or `counted` (after the run, `--tokenize-after`) |
//! | `request_latency_ms`, `time_to_first_token_ms`, `inter_token_latency_ms`, `schedule_lag_us` | by the metrics' formulas, of successes |
//! | `content_ns` | with `--chunk-times`: the stamp of every content event; null where the answer was no stream |

use std::io::Write;

use crate::data::{
    Nanos, Result,
    outcome::Outcome,
    rows::{NONE_U32, Row},
};

use super::{
    dir::RunDir,
    parquet,
    spools::{Rows, Spools},
};

/// What the records are written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Jsonl,
    /// Apache Parquet, for data frames and SQL.
    Parquet,
}

/// A value of a record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Int(u64),
    Double(f64),
    Bool(bool),
    Text(&'static str),
}

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int,
    Double,
    Bool,
    Text,
}

/// A column: its name, its type, and how a row gives it. The second argument is the wall clock of stamp 0.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) of: fn(&Row, u64) -> Value,
}

const fn column(name: &'static str, kind: Kind, of: fn(&Row, u64) -> Value) -> Column {
    Column { name, kind, of }
}

fn stamp(nanos: Nanos) -> Value {
    nanos.get().map_or(Value::None, Value::Int)
}

fn known(count: u32) -> Value {
    if count == NONE_U32 { Value::None } else { Value::Int(u64::from(count)) }
}

fn length(ns: u64) -> Value {
    if ns == u64::MAX { Value::None } else { Value::Int(ns) }
}

fn shown(ns: Option<u64>, divisor: f64) -> Value {
    ns.map_or(Value::None, |ns| Value::Double(ns as f64 / divisor))
}

/// Every column, in the order in which it is written.
pub(super) const COLUMNS: [Column; 37] = [
    column("record", Kind::Int, |r, _| Value::Int(r.record.into())),
    column("session", Kind::Int, |r, _| known(r.session)),
    column("turn", Kind::Int, |r, _| Value::Int(r.turn.into())),
    column("instance", Kind::Int, |r, _| Value::Int(r.instance.into())),
    column("worker", Kind::Int, |r, _| Value::Int(r.worker.into())),
    column("target", Kind::Int, |r, _| Value::Int(r.target.into())),
    column("connection", Kind::Int, |r, _| known(r.connection)),
    column("connection_use", Kind::Int, |r, _| Value::Int(r.connection_use.into())),
    column("reused", Kind::Bool, |r, _| Value::Bool(r.has(Row::REUSED))),
    column("outcome", Kind::Text, |r, _| Value::Text(outcome(r))),
    column("error", Kind::Text, |r, _| match Outcome::from_code(r.outcome) {
        Some(Outcome::Failed(class)) => Value::Text(class.name()),
        _ => Value::None,
    }),
    column("status", Kind::Int, |r, _| if r.status == 0 { Value::None } else { Value::Int(r.status.into()) }),
    column("start_unix_ns", Kind::Int, |r, anchor| match r.start.get() {
        Some(ns) => Value::Int(anchor.saturating_add(ns)),
        None => Value::None,
    }),
    column("due_ns", Kind::Int, |r, _| stamp(r.due)),
    column("start_ns", Kind::Int, |r, _| stamp(r.start)),
    column("sent_ns", Kind::Int, |r, _| stamp(r.sent)),
    column("first_byte_ns", Kind::Int, |r, _| stamp(r.first_byte)),
    column("first_token_ns", Kind::Int, |r, _| stamp(r.first_token)),
    column("first_output_token_ns", Kind::Int, |r, _| stamp(r.first_output)),
    column("second_token_ns", Kind::Int, |r, _| stamp(r.second_token)),
    column("last_token_ns", Kind::Int, |r, _| stamp(r.last_token)),
    column("done_ns", Kind::Int, |r, _| stamp(r.done)),
    column("connect_ns", Kind::Int, |r, _| length(r.connect_ns)),
    column("tls_ns", Kind::Int, |r, _| length(r.tls_ns)),
    column("bytes_sent", Kind::Int, |r, _| Value::Int(r.bytes_sent)),
    column("bytes_received", Kind::Int, |r, _| Value::Int(r.bytes_received)),
    column("zero_copy", Kind::Bool, |r, _| Value::Bool(r.has(Row::ZERO_COPY))),
    column("input_tokens", Kind::Int, |r, _| known(r.input_tokens)),
    column("input_tokens_from", Kind::Text, |r, _| match (r.input_tokens, r.has(Row::INPUT_FROM_INDEX)) {
        (NONE_U32, _) => Value::None,
        (_, true) => Value::Text("index"),
        (_, false) => Value::Text("server"),
    }),
    column("output_tokens", Kind::Int, |r, _| known(r.output_tokens)),
    column("output_tokens_from", Kind::Text, |r, _| match (r.output_tokens, r.has(Row::OUTPUT_COUNTED)) {
        (NONE_U32, _) => Value::None,
        (_, true) => Value::Text("counted"),
        (_, false) => Value::Text("server"),
    }),
    column("reasoning_tokens", Kind::Int, |r, _| known(r.reasoning_tokens)),
    column("content_events", Kind::Int, |r, _| known(r.content_events)),
    column("request_latency_ms", Kind::Double, |r, _| shown(latency_ns(r), 1e6)),
    column("time_to_first_token_ms", Kind::Double, |r, _| shown(ttft_ns(r), 1e6)),
    column("inter_token_latency_ms", Kind::Double, |r, _| {
        inter_token_ns(r).map_or(Value::None, |ns| Value::Double(ns / 1e6))
    }),
    column("schedule_lag_us", Kind::Double, |r, _| shown(between(r.due, r.start), 1e3)),
];

pub(super) fn outcome(row: &Row) -> &'static str {
    match Outcome::from_code(row.outcome) {
        Some(Outcome::Succeeded) => "succeeded",
        Some(Outcome::Cut) if row.has(Row::CANCELLED) => "cancelled",
        Some(Outcome::Cut) => "cut",
        Some(Outcome::Failed(_)) | None => "failed",
    }
}

pub(super) fn succeeded(row: &Row) -> bool {
    row.outcome == Outcome::Succeeded.code()
}

/// `to - from`, where both happened.
pub(super) fn between(from: Nanos, to: Nanos) -> Option<u64> {
    (from.is_some() && to.is_some()).then(|| to.since(from))
}

/// (last token, or done where there is no stream) - start, of a success.
pub(super) fn latency_ns(row: &Row) -> Option<u64> {
    let end = if row.last_token.is_some() { row.last_token } else { row.done };
    between(row.start, end).filter(|_| succeeded(row))
}

/// First token - start, of a success.
pub(super) fn ttft_ns(row: &Row) -> Option<u64> {
    between(row.start, row.first_token).filter(|_| succeeded(row))
}

/// (last token - first token) / (tokens - 1), of a success with two tokens or more.
pub(super) fn inter_token_ns(row: &Row) -> Option<f64> {
    let span = between(row.first_token, row.last_token).filter(|_| succeeded(row))?;
    (row.output_tokens != NONE_U32 && row.output_tokens >= 2).then(|| span as f64 / f64::from(row.output_tokens - 1))
}

/// Name of the list column that is there with `--chunk-times`.
pub(super) const TIMES: &str = "content_ns";

/// The stamps of a row's content events, where the spools hold them and the answer was a stream.
pub(super) fn times_of<'a>(row: &Row, rows: &'a Rows) -> Option<&'a [u64]> {
    (row.content_events != NONE_U32).then(|| rows.times())
}

/// Turns spools into the records file of a run directory and returns the number of records. The spools stay.
///
/// Errors: a spool that cannot be read, a file that cannot be written.
pub fn write(dir: &mut RunDir, format: Format, spools: &Spools) -> Result<u64> {
    let mut rows = Rows::open(spools)?;
    let timed = !spools.chunks.is_empty();
    match format {
        Format::Jsonl => {
            let mut part = dir.create("records.jsonl")?;
            let mut count = 0;
            let mut line = Vec::with_capacity(1024);
            while let Some((row, anchor)) = rows.next_row()? {
                line.clear();
                write_json(&mut line, &row, anchor, timed.then(|| times_of(&row, &rows)));
                part.write_all(&line).map_err(|e| part.error(e))?;
                count += 1;
            }
            dir.commit(vec![part])?;
            Ok(count)
        }
        Format::Parquet => {
            let part = dir.create("records.parquet")?;
            let (part, count) = parquet::write(part, &mut rows, timed)?;
            dir.commit(vec![part])?;
            Ok(count)
        }
    }
}

/// One line; names and texts are plain, so nothing has to be escaped. `times` is none where the file has no such column.
fn write_json(line: &mut Vec<u8>, row: &Row, anchor: u64, times: Option<Option<&[u64]>>) {
    line.push(b'{');
    for (i, column) in COLUMNS.iter().enumerate() {
        // Writing to memory does not fail.
        let _ = write!(line, "{}\"{}\":", if i > 0 { "," } else { "" }, column.name);
        let _ = match (column.of)(row, anchor) {
            Value::None => line.write_all(b"null"),
            Value::Int(v) => write!(line, "{v}"),
            // Always with a point or an exponent, so that a column keeps its type.
            Value::Double(v) => write!(line, "{v:?}"),
            Value::Bool(v) => write!(line, "{v}"),
            Value::Text(v) => write!(line, "\"{v}\""),
        };
    }
    if let Some(times) = times {
        let _ = write!(line, ",\"{TIMES}\":");
        match times {
            None => line.extend(b"null"),
            Some(times) => {
                line.push(b'[');
                for (i, at) in times.iter().enumerate() {
                    let _ = write!(line, "{}{at}", if i > 0 { "," } else { "" });
                }
                line.push(b']');
            }
        }
    }
    line.extend(b"}\n");
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{
        data::{outcome::ErrorClass, rows::Spool},
        report::spools::tests::{chunks, row, spool},
    };

    fn lines(dir: &Path) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(dir.join("records.jsonl")).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    fn write_jsonl(temp: &Path) -> Result<u64> {
        let mut dir = RunDir::take(temp);
        write(&mut dir, Format::Jsonl, &Spools::find(temp)?)
    }

    #[test]
    fn a_record_tells_what_happened_and_null_what_did_not() {
        let temp = tempfile::tempdir().unwrap();
        let stream = Row {
            first_token: Nanos(1_020_010),
            last_token: Nanos(3_020_010),
            output_tokens: 5,
            input_tokens: 7,
            content_events: 3,
            flags: Row::REUSED | Row::INPUT_FROM_INDEX | Row::OUTPUT_COUNTED,
            ..row(0, 0, 4_000_000)
        };
        let failed = Row {
            outcome: Outcome::Failed(ErrorClass::ConnectRefused).code(),
            start: Nanos::NONE,
            status: 0,
            connection: NONE_U32,
            ..row(0, 1, 5_000_000)
        };
        let odd = Row { outcome: 255, ..row(0, 2, 6_000_000) };
        spool(temp.path(), 0, &[stream, failed, odd]);
        assert_eq!(write_jsonl(temp.path()).unwrap(), 3);
        let lines = lines(temp.path());
        let s = &lines[0];
        assert_eq!(
            (&s["outcome"], &s["error"], &s["reused"]),
            (&"succeeded".into(), &serde_json::Value::Null, &true.into())
        );
        assert_eq!(s["request_latency_ms"], 3.0);
        assert_eq!((&s["time_to_first_token_ms"], &s["inter_token_latency_ms"]), (&1.0.into(), &0.5.into()));
        assert_eq!((&s["schedule_lag_us"], &s["input_tokens_from"]), (&20.0.into(), &"index".into()));
        assert_eq!(s["output_tokens_from"], "counted");
        assert_eq!(s["start_unix_ns"], 1_800_000_000_000_020_010u64);
        assert!(s.get(TIMES).is_none(), "only with --chunk-times");
        let f = &lines[1];
        assert_eq!((&f["outcome"], &f["error"]), (&"failed".into(), &"connect_refused".into()));
        for name in
            ["status", "start_ns", "start_unix_ns", "request_latency_ms", "connection", "tls_ns", "output_tokens"]
        {
            assert!(f[name].is_null(), "{name}");
        }
        assert_eq!(lines[2]["outcome"], "failed");
    }

    #[test]
    fn times_of_content_events_are_a_list_and_null_where_there_was_no_stream() {
        let temp = tempfile::tempdir().unwrap();
        let stream = |record, stamps| Row { content_events: stamps, stamps, ..row(0, record, 100_000) };
        spool(temp.path(), 0, &[stream(0, 2), row(0, 1, 200_000), stream(2, 0)]);
        chunks(temp.path(), 0, &[5, 9]);
        write_jsonl(temp.path()).unwrap();
        let lists: Vec<_> = lines(temp.path()).iter().map(|l| l[TIMES].to_string()).collect();
        assert_eq!(lists, ["[5,9]", "null", "[]"]);
    }

    #[test]
    fn a_torn_spool_is_good_up_to_the_tear() {
        let temp = tempfile::tempdir().unwrap();
        let path = spool(temp.path(), 0, &[row(0, 0, 100_000), row(0, 1, 200_000)]);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 7]).unwrap();
        fs::write(temp.path().join(Spool::Rows.name(1)), &bytes[..5]).unwrap();
        assert_eq!(write_jsonl(temp.path()).unwrap(), 1);
        fs::write(&path, vec![b'x'; 400]).unwrap();
        assert!(write_jsonl(temp.path()).is_err());
    }
}
