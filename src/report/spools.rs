//! The spools of a run, read back: rows in the order of their ends over all workers, with the times of their content events,
//! and responses put together out of their pieces.
//!
//! Memory is that of one read buffer a spool, of one row's times, and of the responses that were in flight at one time.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use zerocopy::{FromBytes, IntoBytes};

use crate::data::{
    Error, Result,
    rows::{PieceHead, Row, Spool, SpoolHeader},
};

/// The spools in a run directory, by worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spools {
    /// Of each worker its rows.
    pub rows: Vec<PathBuf>,
    /// Of each worker the times of its content events; empty without `--chunk-times`.
    pub chunks: Vec<PathBuf>,
    /// Of each worker its responses; empty without `--keep-responses`.
    pub responses: Vec<PathBuf>,
}

impl Spools {
    /// Looks for them.
    ///
    /// Errors: a folder that cannot be read.
    pub fn find(folder: &Path) -> Result<Self> {
        let entries = fs::read_dir(folder).map_err(|e| Error::file("cannot read", folder, e))?;
        let paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
        let of = |kind: Spool| {
            let mut found: Vec<_> = paths.iter().filter_map(|p| Some((worker_of(p, kind)?, p.clone()))).collect();
            found.sort();
            found.into_iter().map(|(_, path)| path).collect()
        };
        Ok(Self { rows: of(Spool::Rows), chunks: of(Spool::Chunks), responses: of(Spool::Responses) })
    }

    /// Removes them all.
    ///
    /// Errors: a file that cannot be removed.
    pub fn remove(&self) -> Result<()> {
        for path in self.rows.iter().chain(&self.chunks).chain(&self.responses) {
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::file("cannot remove", path, e)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The worker whose spool of a kind a file is.
fn worker_of(path: &Path, kind: Spool) -> Option<u32> {
    let rest = path.file_name()?.to_str()?.strip_prefix(kind.stem())?;
    rest.strip_prefix('-')?.strip_suffix(".spool")?.parse().ok()
}

/// True for the name of a spool.
pub(super) fn is_spool(name: &str) -> bool {
    [Spool::Rows, Spool::Chunks, Spool::Responses].into_iter().any(|kind| worker_of(Path::new(name), kind).is_some())
}

/// Bytes that one spool reads at a time.
const READ_BYTES: usize = 160 << 10;

/// A spool behind its header; none when it was never begun.
fn open(path: &Path, kind: Spool) -> Result<Option<(BufReader<File>, SpoolHeader)>> {
    let file = File::open(path).map_err(|e| Error::file("cannot open", path, e))?;
    let mut file = BufReader::with_capacity(READ_BYTES, file);
    let mut head = [0; size_of::<SpoolHeader>()];
    match read_whole(&mut file, &mut head) {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(e) => return Err(Error::file("cannot read", path, e)),
    }
    let head = SpoolHeader::read_from_bytes(&head).unwrap_or_else(|_| unreachable!("the length is its own"));
    if head.magic != kind.magic() || head.row_bytes != SpoolHeader::new(kind, 0, 0).row_bytes {
        return Err(Error::usage(format!("{}: it is no spool of {} of this version", path.display(), kind.stem())));
    }
    Ok(Some((file, head)))
}

/// Fills the buffer; false when the file ends before.
fn read_whole(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

/// A spool of rows that is being read: its rows, one after the other.
struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    /// The times that belong to it, with their own path.
    times: Option<(PathBuf, BufReader<File>)>,
    anchor_unix_ns: u64,
    next: Option<Row>,
}

impl Reader {
    /// Opens a spool at its first row; none when it was never begun.
    fn open(path: &Path, times: Option<&PathBuf>) -> Result<Option<Self>> {
        let Some((file, head)) = open(path, Spool::Rows)? else { return Ok(None) };
        let times = match times {
            None => None,
            Some(path) => open(path, Spool::Chunks)?.map(|(file, _)| (path.clone(), file)),
        };
        let mut reader =
            Self { path: path.to_path_buf(), file, times, anchor_unix_ns: head.anchor_unix_ns, next: None };
        reader.advance()?;
        Ok(Some(reader))
    }

    /// Goes to the next row that is not of the warm-up. A row that was not written whole is the end.
    fn advance(&mut self) -> Result<()> {
        let mut bytes = [0; size_of::<Row>()];
        self.next = None;
        while self.next.is_none() {
            match read_whole(&mut self.file, &mut bytes) {
                Ok(true) => {
                    let row = Row::read_from_bytes(&bytes).unwrap_or_else(|_| unreachable!("the length is its own"));
                    if row.has(Row::WARMUP) {
                        self.read_times(row.stamps, &mut Vec::new())?;
                    } else {
                        self.next = Some(row);
                    }
                }
                Ok(false) => return Ok(()),
                Err(e) => return Err(Error::file("cannot read", &self.path, e)),
            }
        }
        Ok(())
    }

    /// Reads the times of the row that was read last; fewer where their spool ends early.
    fn read_times(&mut self, count: u32, out: &mut Vec<u64>) -> Result<()> {
        out.clear();
        if let Some((path, file)) = &mut self.times {
            let mut bytes = [0; size_of::<u64>()];
            for _ in 0..count {
                match read_whole(file, &mut bytes) {
                    Ok(true) => out.push(u64::from_ne_bytes(bytes)),
                    Ok(false) => break,
                    Err(e) => return Err(Error::file("cannot read", path, e)),
                }
            }
        }
        Ok(())
    }
}

/// The rows of several spools in the order of their ends, each with the wall clock of its stamp 0.
pub struct Rows {
    readers: Vec<Reader>,
    times: Vec<u64>,
}

impl Rows {
    /// Opens spools. There are as many as workers, so the earliest is found by looking at each.
    ///
    /// Errors: a file that cannot be read, or is no spool.
    pub fn open(spools: &Spools) -> Result<Self> {
        let mut readers = Vec::with_capacity(spools.rows.len());
        for path in &spools.rows {
            let worker = worker_of(path, Spool::Rows);
            let times = spools.chunks.iter().find(|p| worker_of(p, Spool::Chunks) == worker);
            readers.extend(Reader::open(path, times)?);
        }
        Ok(Self { readers, times: Vec::new() })
    }

    /// The next row, none at the end.
    ///
    /// Errors: a file that cannot be read.
    pub fn next_row(&mut self) -> Result<Option<(Row, u64)>> {
        let heads = self.readers.iter_mut().filter_map(|s| s.next.map(|row| (row, s)));
        match heads.min_by_key(|(row, _)| (row.done, row.worker)) {
            None => Ok(None),
            Some((row, reader)) => {
                let anchor = reader.anchor_unix_ns;
                reader.read_times(row.stamps, &mut self.times)?;
                reader.advance()?;
                Ok(Some((row, anchor)))
            }
        }
    }

    /// Times of the content events of the row that [`Rows::next_row`] gave last, nanoseconds since the run's anchor.
    pub fn times(&self) -> &[u64] {
        &self.times
    }
}

/// One kept response.
#[derive(Debug)]
pub struct Response<'a> {
    /// Its request.
    pub row: &'a Row,
    /// Which row of its worker's spool that is.
    pub at: u64,
    /// Wall clock of stamp 0.
    pub anchor_unix_ns: u64,
    /// Its body, without the framing.
    pub body: &'a [u8],
}

/// Gives every kept response to `f`, worker by worker, in the order of their ends. The last argument of `f` is the spool of
/// rows that the response's row is in.
///
/// Errors: a file that cannot be read; what `f` says.
pub fn responses(spools: &Spools, mut f: impl FnMut(&Response<'_>, &Path) -> Result<()>) -> Result<()> {
    for path in &spools.responses {
        let worker = worker_of(path, Spool::Responses);
        let Some(rows) = spools.rows.iter().find(|p| worker_of(p, Spool::Rows) == worker) else { continue };
        let Some((mut file, head)) = open(path, Spool::Responses)? else { continue };
        let failed = |e| Error::file("cannot read", path, e);
        let mut bodies: HashMap<u32, Vec<u8>> = HashMap::new();
        let mut piece = [0; size_of::<PieceHead>()];
        while read_whole(&mut file, &mut piece).map_err(failed)? {
            let piece = PieceHead::read_from_bytes(&piece).unwrap_or_else(|_| unreachable!("the length is its own"));
            if piece.bytes == PieceHead::END {
                let mut bytes = [0; size_of::<Row>()];
                if !read_whole(&mut file, &mut bytes).map_err(failed)? {
                    break;
                }
                let row = Row::read_from_bytes(&bytes).unwrap_or_else(|_| unreachable!("the length is its own"));
                let body = bodies.remove(&piece.connection).unwrap_or_default();
                let anchor_unix_ns = head.anchor_unix_ns;
                f(&Response { row: &row, at: piece.row, anchor_unix_ns, body: &body }, rows)?;
            } else {
                let body = bodies.entry(piece.connection).or_default();
                let whole = body.len() as u64 + u64::from(piece.bytes);
                file.by_ref().take(piece.bytes.into()).read_to_end(body).map_err(failed)?;
                if (body.len() as u64) < whole {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Spools of rows that are changed in place after the run.
#[derive(Debug, Default)]
pub struct Patches {
    files: Vec<(PathBuf, File)>,
}

impl Patches {
    /// Puts a row in the place of the one there.
    ///
    /// Errors: a file that cannot be written.
    pub fn put(&mut self, spool: &Path, at: u64, row: &Row) -> Result<()> {
        let failed = |e| Error::file("cannot write", spool, e);
        let place = match self.files.iter().position(|(path, _)| path == spool) {
            Some(place) => place,
            None => {
                let file = OpenOptions::new().write(true).open(spool).map_err(failed)?;
                self.files.push((spool.to_path_buf(), file));
                self.files.len() - 1
            }
        };
        let offset = size_of::<SpoolHeader>() as u64 + at * size_of::<Row>() as u64;
        self.files[place].1.write_all_at(row.as_bytes(), offset).map_err(failed)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::data::Nanos;

    pub(in crate::report) const ANCHOR: u64 = 1_800_000_000_000_000_000;

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

    fn file(dir: &Path, kind: Spool, worker: u16, content: &[u8]) -> PathBuf {
        let path = dir.join(kind.name(worker));
        let mut bytes = SpoolHeader::new(kind, worker, ANCHOR).as_bytes().to_vec();
        bytes.extend(content);
        fs::write(&path, bytes).unwrap();
        path
    }

    pub(in crate::report) fn spool(dir: &Path, worker: u16, rows: &[Row]) -> PathBuf {
        file(dir, Spool::Rows, worker, rows.as_bytes())
    }

    pub(in crate::report) fn chunks(dir: &Path, worker: u16, times: &[u64]) -> PathBuf {
        file(dir, Spool::Chunks, worker, times.as_bytes())
    }

    fn head(connection: u32, bytes: u32, row: u64) -> Vec<u8> {
        PieceHead { connection, bytes, row }.as_bytes().to_vec()
    }

    /// Responses of one worker: each of one piece, on its row's own connection.
    pub(in crate::report) fn responses_of(dir: &Path, worker: u16, of: &[(Row, &[u8])]) -> PathBuf {
        let mut bytes = Vec::new();
        for (i, (row, body)) in of.iter().enumerate() {
            bytes.extend(head(row.connection, body.len() as u32, 0));
            bytes.extend(*body);
            bytes.extend(head(row.connection, PieceHead::END, i as u64));
            bytes.extend(row.as_bytes());
        }
        file(dir, Spool::Responses, worker, &bytes)
    }

    #[test]
    fn rows_come_in_the_order_of_their_ends_with_their_own_times() {
        let temp = tempfile::tempdir().unwrap();
        let timed = |mut row: Row, stamps| {
            row.stamps = stamps;
            row
        };
        let warm = timed(Row { flags: Row::WARMUP, ..row(0, 9, 90_000) }, 2);
        spool(temp.path(), 0, &[warm, timed(row(0, 0, 100_000), 1), timed(row(0, 1, 300_000), 2)]);
        chunks(temp.path(), 0, &[1, 2, 3, 4, 5]);
        spool(temp.path(), 10, &[row(10, 2, 100_000), timed(row(10, 3, 200_000), 3)]);
        chunks(temp.path(), 10, &[6, 7, 8]);
        spool(temp.path(), 2, &[]);
        let spools = Spools::find(temp.path()).unwrap();
        assert!(spools.rows[1].ends_with("rows-2.spool") && spools.rows.len() == 3 && spools.chunks.len() == 2);
        let mut rows = Rows::open(&spools).unwrap();
        let mut seen = Vec::new();
        while let Some((row, anchor)) = rows.next_row().unwrap() {
            assert_eq!(anchor, ANCHOR);
            seen.push((row.record, rows.times().to_vec()));
        }
        assert_eq!(seen, [(0, vec![3]), (2, vec![]), (3, vec![6, 7, 8]), (1, vec![4, 5])]);
        spools.remove().unwrap();
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
        spools.remove().unwrap();
    }

    #[test]
    fn responses_are_put_together_out_of_their_pieces() {
        let temp = tempfile::tempdir().unwrap();
        spool(temp.path(), 3, &[]);
        let mut bytes = Vec::new();
        for (connection, piece) in [(7, "he"), (9, "wor"), (7, "llo"), (9, "ld")] {
            bytes.extend(head(connection, piece.len() as u32, 0));
            bytes.extend(piece.as_bytes());
        }
        for (connection, at) in [(9, 4), (7, 5), (8, 6)] {
            bytes.extend(head(connection, PieceHead::END, at));
            bytes.extend(row(3, connection, 100_000).as_bytes());
        }
        let whole = bytes.len();
        // The second use of a connection's slot begins anew; the file ends inside a piece.
        bytes.extend(head(7, 5, 0));
        bytes.extend(b"agai");
        for cut in [whole, bytes.len()] {
            file(temp.path(), Spool::Responses, 3, &bytes[..cut]);
            let mut seen = Vec::new();
            let spools = Spools::find(temp.path()).unwrap();
            responses(&spools, |r, rows| {
                assert!(rows.ends_with("rows-3.spool"));
                seen.push((r.at, r.row.record, String::from_utf8(r.body.to_vec()).unwrap()));
                Ok(())
            })
            .unwrap();
            assert_eq!(seen, [(4, 9, "world".into()), (5, 7, "hello".into()), (6, 8, String::new())]);
        }
    }

    #[test]
    fn rows_are_changed_in_their_place() {
        let temp = tempfile::tempdir().unwrap();
        let path = spool(temp.path(), 0, &[row(0, 0, 100_000), row(0, 1, 200_000)]);
        let mut patches = Patches::default();
        patches.put(&path, 1, &Row { output_tokens: 7, ..row(0, 1, 200_000) }).unwrap();
        patches.put(&path, 0, &Row { output_tokens: 9, ..row(0, 0, 100_000) }).unwrap();
        let mut rows = Rows::open(&Spools::find(temp.path()).unwrap()).unwrap();
        let mut tokens = || rows.next_row().unwrap().map(|(row, _)| row.output_tokens);
        assert_eq!((tokens(), tokens(), tokens()), (Some(9), Some(7), None));
    }

    #[test]
    fn another_version_is_no_spool() {
        let temp = tempfile::tempdir().unwrap();
        let path = spool(temp.path(), 0, &[row(0, 0, 100_000)]);
        let mut bytes = fs::read(&path).unwrap();
        bytes[7] = b'1';
        fs::write(&path, bytes).unwrap();
        let why = Rows::open(&Spools::find(temp.path()).unwrap()).err().unwrap().to_string();
        assert!(why.contains("rows-0.spool") && why.contains("no spool of rows"), "{why}");
    }
}
