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
//! | `request_latency_ms`, `time_to_first_token_ms`, `inter_token_latency_ms`, `schedule_lag_us` | by the metrics' formulas, of successes |

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use zerocopy::FromBytes;

use crate::data::{
    Error, Nanos, Result,
    outcome::Outcome,
    rows::{NONE_U32, Row, SpoolHeader},
};

use super::{dir::RunDir, parquet};

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
pub(super) const COLUMNS: [Column; 36] = [
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
    column("reasoning_tokens", Kind::Int, |r, _| known(r.reasoning_tokens)),
    column("content_events", Kind::Int, |r, _| known(r.content_events)),
    column("request_latency_ms", Kind::Double, |r, _| shown(latency_ns(r), 1e6)),
    column("time_to_first_token_ms", Kind::Double, |r, _| shown(ttft_ns(r), 1e6)),
    column("inter_token_latency_ms", Kind::Double, |r, _| {
        inter_token_ns(r).map_or(Value::None, |ns| Value::Double(ns / 1e6))
    }),
    column("schedule_lag_us", Kind::Double, |r, _| shown(between(r.due, r.start), 1e3)),
];

fn outcome(row: &Row) -> &'static str {
    match Outcome::from_code(row.outcome) {
        Some(Outcome::Succeeded) => "succeeded",
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

/// Rows that one spool reads at a time.
const BLOCK_ROWS: usize = 1024;

/// A spool that is being read: its rows, one after the other.
struct Spool {
    path: PathBuf,
    file: BufReader<File>,
    anchor_unix_ns: u64,
    next: Option<Row>,
}

impl Spool {
    /// Opens a spool at its first row; none when it was never begun.
    fn open(path: &Path) -> Result<Option<Self>> {
        let file = File::open(path).map_err(|e| Error::file("cannot open", path, e))?;
        let mut file = BufReader::with_capacity(BLOCK_ROWS * size_of::<Row>(), file);
        let mut head = [0; size_of::<SpoolHeader>()];
        match read_whole(&mut file, &mut head) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(e) => return Err(Error::file("cannot read", path, e)),
        }
        let head = SpoolHeader::read_from_bytes(&head).unwrap_or_else(|_| unreachable!("the length is its own"));
        if head.magic != SpoolHeader::MAGIC || head.row_bytes as usize != size_of::<Row>() {
            return Err(Error::usage(format!("{}: it is no spool of rows of this version", path.display())));
        }
        let mut spool = Self { path: path.to_path_buf(), file, anchor_unix_ns: head.anchor_unix_ns, next: None };
        spool.advance()?;
        Ok(Some(spool))
    }

    /// Goes to the next row that is not of the warm-up. A row that was not written whole is the end.
    fn advance(&mut self) -> Result<()> {
        let mut bytes = [0; size_of::<Row>()];
        self.next = None;
        while self.next.is_none() {
            match read_whole(&mut self.file, &mut bytes) {
                Ok(true) => {
                    let row = Row::read_from_bytes(&bytes).unwrap_or_else(|_| unreachable!("the length is its own"));
                    self.next = Some(row).filter(|r| !r.has(Row::WARMUP));
                }
                Ok(false) => return Ok(()),
                Err(e) => return Err(Error::file("cannot read", &self.path, e)),
            }
        }
        Ok(())
    }
}

/// Fills the buffer; false when the file ends before.
fn read_whole(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

/// The rows of several spools in the order of their ends, each with the wall clock of its stamp 0.
pub(super) struct Rows {
    spools: Vec<Spool>,
}

impl Rows {
    /// Opens spools. There are as many as workers, so the earliest is found by looking at each.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self> {
        let mut spools = Vec::with_capacity(paths.len());
        for path in paths {
            spools.extend(Spool::open(path)?);
        }
        Ok(Self { spools })
    }

    /// The next row, none at the end.
    pub(super) fn next(&mut self) -> Result<Option<(Row, u64)>> {
        let heads = self.spools.iter_mut().filter_map(|s| s.next.map(|row| (row, s)));
        match heads.min_by_key(|(row, _)| (row.done, row.worker)) {
            None => Ok(None),
            Some((row, spool)) => {
                let anchor = spool.anchor_unix_ns;
                spool.advance()?;
                Ok(Some((row, anchor)))
            }
        }
    }
}

/// The spools in a run directory, by worker.
pub fn spools(dir: &RunDir) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir.path()).map_err(|e| Error::file("cannot read", dir.path(), e))?;
    let worker = |path: &Path| -> Option<u32> {
        path.file_name()?.to_str()?.strip_prefix("rows-")?.strip_suffix(".spool")?.parse().ok()
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| worker(p).is_some()).collect();
    paths.sort_by_key(|p| worker(p));
    Ok(paths)
}

/// Turns spools into the records file of a run directory and returns the number of records. The spools stay; remove them
/// with [`remove_spools`] when nothing else reads them.
pub fn write(dir: &mut RunDir, format: Format, spools: &[PathBuf]) -> Result<u64> {
    let mut rows = Rows::open(spools)?;
    match format {
        Format::Jsonl => {
            let mut part = dir.create("records.jsonl")?;
            let mut count = 0;
            let mut line = Vec::with_capacity(1024);
            while let Some((row, anchor)) = rows.next()? {
                line.clear();
                write_json(&mut line, &row, anchor);
                part.write_all(&line).map_err(|e| part.error(e))?;
                count += 1;
            }
            dir.commit(vec![part])?;
            Ok(count)
        }
        Format::Parquet => {
            let part = dir.create("records.parquet")?;
            let (part, count) = parquet::write(part, &mut rows)?;
            dir.commit(vec![part])?;
            Ok(count)
        }
    }
}

/// Removes spools that were turned into records.
pub fn remove_spools(spools: &[PathBuf]) -> Result<()> {
    for path in spools {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::file("cannot remove", path, e)),
            _ => {}
        }
    }
    Ok(())
}

/// One line; names and texts are plain, so nothing has to be escaped.
fn write_json(line: &mut Vec<u8>, row: &Row, anchor: u64) {
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
    line.extend(b"}\n");
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::data::{outcome::ErrorClass, rows::spool_name};
    use zerocopy::IntoBytes;

    pub(in crate::report) fn row(worker: u16, record: u32, done: u64) -> Row {
        Row {
            due: Nanos(10),
            start: Nanos(20_010),
            sent: Nanos(30_000),
            first_byte: Nanos(done - 500),
            done: Nanos(done),
            bytes_sent: 1200,
            bytes_received: 300,
            record,
            connection: 1,
            status: 200,
            worker,
            ..Row::EMPTY
        }
    }

    pub(in crate::report) fn spool(dir: &Path, worker: u16, rows: &[Row]) -> PathBuf {
        let path = dir.join(spool_name(worker));
        let mut bytes = SpoolHeader::new(worker, 1_800_000_000_000_000_000).as_bytes().to_vec();
        bytes.extend(rows.as_bytes());
        fs::write(&path, bytes).unwrap();
        path
    }

    fn lines(dir: &RunDir) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(dir.path().join("records.jsonl")).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    #[test]
    fn rows_of_all_workers_come_in_the_order_of_their_ends() {
        let temp = tempfile::tempdir().unwrap();
        let mut dir = RunDir::prepare(temp.path()).unwrap();
        let warm = Row { flags: Row::WARMUP, ..row(0, 9, 90_000) };
        spool(temp.path(), 0, &[warm, row(0, 0, 100_000), row(0, 1, 300_000)]);
        spool(temp.path(), 10, &[row(10, 2, 100_000), row(10, 3, 200_000)]);
        spool(temp.path(), 2, &[]);
        let paths = spools(&dir).unwrap();
        assert!(paths[1].ends_with("rows-2.spool") && paths.len() == 3);
        assert_eq!(write(&mut dir, Format::Jsonl, &paths).unwrap(), 4);
        let records: Vec<_> = lines(&dir).iter().map(|l| l["record"].as_u64().unwrap()).collect();
        assert_eq!(records, [0, 2, 3, 1]);
        remove_spools(&paths).unwrap();
        assert!(spools(&dir).unwrap().is_empty());
    }

    #[test]
    fn a_record_tells_what_happened_and_null_what_did_not() {
        let temp = tempfile::tempdir().unwrap();
        let mut dir = RunDir::prepare(temp.path()).unwrap();
        let stream = Row {
            first_token: Nanos(1_020_010),
            last_token: Nanos(3_020_010),
            output_tokens: 5,
            input_tokens: 7,
            content_events: 3,
            flags: Row::REUSED | Row::INPUT_FROM_INDEX,
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
        let path = spool(temp.path(), 0, &[stream, failed, odd]);
        write(&mut dir, Format::Jsonl, &[path]).unwrap();
        let lines = lines(&dir);
        let s = &lines[0];
        assert_eq!(
            (&s["outcome"], &s["error"], &s["reused"]),
            (&"succeeded".into(), &serde_json::Value::Null, &true.into())
        );
        assert_eq!(s["request_latency_ms"], 3.0);
        assert_eq!((&s["time_to_first_token_ms"], &s["inter_token_latency_ms"]), (&1.0.into(), &0.5.into()));
        assert_eq!((&s["schedule_lag_us"], &s["input_tokens_from"]), (&20.0.into(), &"index".into()));
        assert_eq!(s["start_unix_ns"], 1_800_000_000_000_020_010u64);
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
    fn a_torn_spool_is_good_up_to_the_tear() {
        let temp = tempfile::tempdir().unwrap();
        let mut dir = RunDir::prepare(temp.path()).unwrap();
        let path = spool(temp.path(), 0, &[row(0, 0, 100_000), row(0, 1, 200_000)]);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 7]).unwrap();
        let begun = temp.path().join(spool_name(1));
        fs::write(&begun, &bytes[..5]).unwrap();
        assert_eq!(write(&mut dir, Format::Jsonl, &[path.clone(), begun]).unwrap(), 1);
        fs::write(&path, vec![b'x'; 400]).unwrap();
        assert!(write(&mut dir, Format::Jsonl, &[path]).is_err());
    }
}
