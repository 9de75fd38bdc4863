//! The input of a build: what files it is, their bytes as they were when they were hashed, and the digest that names them.
//!
//! Promises: what is hashed is what is parsed. A file is read twice, once to be named and once to be parsed; the first reading
//! leaves a checksum of every stretch that the second one reads, and a stretch that differs is an error, as is a file whose
//! size or time moves. The digest knows content only; of a directory, also the names below it, which name sessions.
//!
//! This file is long because opening, unpacking, cutting and hashing an input once is one promise: what is hashed is parsed.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    ops::Range,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, poll},
};
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_64;

use super::{How, gzip::Members, memo::Memo, spec::Digest};
use crate::{
    data::{Error, Result, error::Place},
    sys,
};

/// Bytes of one piece: hashed by one core at a time. Part of what a digest means.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// Standard input that is kept in memory; more of it goes to an unlinked file.
const MEMORY_BYTES: usize = 16 << 20;
/// Milliseconds between two looks for an interrupt while a pipe is silent.
const PIPE_LOOK_MS: u8 = 50;
/// Files of a directory that are held open from the hashing to the parsing; the rest is opened again and held to its checksums.
const OPEN_FILES_MAX: usize = 64;
/// Files of a directory. More is a mistake such as a home directory.
const FILES_MAX: usize = 1 << 20;
/// Endings (before `.gz` or `.zst`) of the files that a directory is searched for.
const ENDINGS: [&str; 5] = ["jsonl", "ndjson", "json", "csv", "har"];

/// Where an input comes from, as the user said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file or a directory.
    Path(PathBuf),
    /// Standard input, until its end.
    Stdin,
}

impl Origin {
    /// `-` is standard input.
    pub fn of(text: &Path) -> Self {
        if text == Path::new("-") { Self::Stdin } else { Self::Path(text.to_path_buf()) }
    }
}

/// How a file is compressed, told by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// What the first reading keeps of a piece for the second one.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    sha: [u8; 32],
    /// Line ends in it.
    newlines: u32,
    /// Bytes up to and with its last line end; 0 when it has none.
    lines_bytes: u32,
    /// xxh3 of those bytes.
    lines_xxh3: u64,
    /// xxh3 of the rest.
    rest_xxh3: u64,
}

/// Where bytes are read from.
#[derive(Clone, Debug)]
enum Bytes {
    Open(Arc<File>),
    Closed(PathBuf),
    Memory(Arc<Vec<u8>>),
}

impl Bytes {
    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Open(file) => file.read_exact_at(out, at),
            Self::Closed(path) => File::open(path)?.read_exact_at(out, at),
            Self::Memory(all) => {
                let part = all.get(at as usize..).and_then(|rest| rest.get(..out.len()));
                out.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
}

/// Identity of a file's content, as far as the file system tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) bytes: u64,
    /// Nanoseconds since 1970.
    pub(super) mtime_ns: i128,
    /// Nanoseconds since 1970.
    pub(super) ctime_ns: i128,
}

impl Stamp {
    pub(super) fn of(meta: &std::fs::Metadata) -> Self {
        let ns = |s: i64, ns: i64| i128::from(s) * 1_000_000_000 + i128::from(ns);
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            bytes: meta.size(),
            mtime_ns: ns(meta.mtime(), meta.mtime_nsec()),
            ctime_ns: ns(meta.ctime(), meta.ctime_nsec()),
        }
    }
}

impl Stamp {
    /// All of it but the device, whose number may be another after a restart.
    pub(super) fn identity(&self) -> String {
        let Self { device: _, inode, bytes, mtime_ns, ctime_ns } = self;
        format!("{inode}/{bytes}/{mtime_ns}/{ctime_ns}")
    }
}

/// One file of the input.
#[derive(Debug)]
pub(super) struct Source {
    /// As it is shown in errors: what the user wrote, and the name below it.
    pub(super) name: String,
    /// Name below the directory; empty for a file that was named itself.
    relative: String,
    bytes: Bytes,
    stamp: Stamp,
    pub(super) packing: Packing,
    /// Empty until it was hashed.
    pieces: Vec<Piece>,
    digest: Option<Digest>,
}

/// The whole input.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) sources: Vec<Source>,
    /// True when a directory was named: its files may be sessions.
    pub(super) directory: bool,
    several: bool,
}

impl Input {
    /// Finds and opens the files. Standard input is read to its end, into `folder` when it is long.
    pub(super) fn open(origins: &[Origin], folder: &Path, how: &How<'_>) -> Result<Self> {
        let mut sources = Vec::new();
        let mut directory = false;
        for origin in origins {
            match origin {
                Origin::Stdin => {
                    let stdin = io::stdin();
                    let mut pipe = Patient { wait: stdin.as_fd(), from: stdin.lock(), how };
                    sources.push(read_pipe_to_end(&mut pipe, "-".into(), folder, how)?);
                }
                Origin::Path(path) => {
                    let meta = std::fs::metadata(path).map_err(|e| Error::file("cannot open", path, e))?;
                    if meta.is_dir() {
                        directory = true;
                        for file in files_of(path)? {
                            let relative = file.strip_prefix(path).unwrap_or(&file).to_string_lossy().into_owned();
                            let open = sources.len() < OPEN_FILES_MAX;
                            sources.push(open_file(&file, relative, open)?);
                        }
                    } else if meta.is_file() {
                        sources.push(open_file(path, String::new(), true)?);
                    } else {
                        sources.push(open_pipe(path, folder, how)?);
                    }
                }
            }
        }
        if sources.is_empty() {
            return Err(Error::usage("no dataset is named"));
        }
        Ok(Self { sources, directory, several: origins.len() > 1 })
    }

    /// The content of a pipe, to its end.
    #[cfg(test)]
    pub(super) fn of_pipe(pipe: &mut dyn Read, folder: &Path, how: &How<'_>) -> Result<Self> {
        Ok(Self { sources: vec![read_pipe_to_end(pipe, "-".into(), folder, how)?], directory: false, several: false })
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.sources.iter().map(|s| s.stamp.bytes).sum()
    }

    /// The digest, from memos where they can be trusted, else by reading everything with all threads.
    pub(super) fn digest(&mut self, memo: &Memo, how: &How<'_>) -> Result<Digest> {
        for source in &mut self.sources {
            source.digest = memo.recall(&source.stamp, source.memoable());
        }
        if self.sources.iter().any(|s| s.digest.is_none()) {
            let began_ns = Memo::now_ns();
            for file in self.sources.iter().filter(|s| s.digest.is_none()).filter_map(Source::memoable) {
                sys::fs::arm_times(file);
            }
            self.hash(how, |source| source.digest.is_none())?;
            for source in self.sources.iter().filter(|s| !s.pieces.is_empty()) {
                if let (Some(digest), Some(path)) = (source.digest, source.memoable()) {
                    memo.keep(&source.stamp, path, digest, began_ns);
                }
            }
        }
        Ok(self.combined())
    }

    /// Reads what only a memo knows until now, so that it can be parsed: the memo must turn out to have been right.
    pub(super) fn make_ready(&mut self, want: Digest, how: &How<'_>) -> Result<()> {
        self.hash(how, |source| source.pieces.is_empty())?;
        match self.combined() == want {
            true => Ok(()),
            // The file changed between the look at its times and the reading.
            false => Err(self.sources[0].changed()),
        }
    }

    fn combined(&self) -> Digest {
        let digests = || self.sources.iter().map(|s| (s, s.digest.unwrap_or(Digest([0; 32]))));
        if let ([_], false) = (self.sources.as_slice(), self.directory) {
            return digests().next().map_or(Digest([0; 32]), |(_, digest)| digest);
        }
        let mut all = Sha256::new();
        all.update(if self.directory { &b"ringload directory 1"[..] } else { b"ringload inputs 1" });
        all.update(if self.several { [1] } else { [0] });
        for (source, digest) in digests() {
            all.update((source.relative.len() as u64).to_le_bytes());
            all.update(source.relative.as_bytes());
            all.update(digest.0);
        }
        Digest(all.finalize().into())
    }

    /// Hashes the files that are `wanted`, piece by piece, with all threads.
    fn hash(&mut self, how: &How<'_>, wanted: impl Fn(&Source) -> bool) -> Result<()> {
        let mut work: Vec<(usize, Range<u64>)> = Vec::new();
        for (index, source) in self.sources.iter().enumerate().filter(|(_, s)| wanted(s)) {
            let bytes = source.stamp.bytes;
            let pieces = bytes.div_ceil(PIECE_BYTES as u64).max(1);
            work.extend((0..pieces).map(|k| {
                let start = k * PIECE_BYTES as u64;
                (index, start..(start + PIECE_BYTES as u64).min(bytes))
            }));
        }
        let total: u64 = work.iter().map(|(_, range)| range.end - range.start).sum();
        how.begin();
        let (next, sources) = (AtomicUsize::new(0), &self.sources);
        let one = || -> Result<Vec<(usize, Piece)>> {
            let mut buffer = vec![0; PIECE_BYTES];
            let mut done = Vec::new();
            loop {
                let k = next.fetch_add(1, Ordering::Relaxed);
                let Some((index, range)) = work.get(k) else { return Ok(done) };
                how.check()?;
                done.push((k, sources[*index].hash_piece(range.clone(), &mut buffer)?));
                how.progress("reading", range.end - range.start, total);
            }
        };
        let threads = how.threads.min(work.len()).max(1);
        let parts: Vec<Result<Vec<(usize, Piece)>>> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(one)).collect();
            let mut parts = vec![one()];
            parts.extend(others.into_iter().map(|o| o.join().unwrap_or(Err(Error::Interrupted))));
            parts
        });
        let mut pieces: Vec<(usize, Piece)> = Vec::with_capacity(work.len());
        for part in parts {
            pieces.extend(part?);
        }
        pieces.sort_unstable_by_key(|&(k, _)| k);
        let mut left = pieces.into_iter().map(|(k, piece)| (work[k].0, piece)).peekable();
        while let Some(&(index, _)) = left.peek() {
            let source = &mut self.sources[index];
            source.pieces.clear();
            while let Some((_, piece)) = left.next_if(|&(i, _)| i == index) {
                source.pieces.push(piece);
            }
            source.digest = Some(source.digest_of_pieces());
            source.check_unchanged()?;
        }
        Ok(())
    }
}

impl Source {
    /// The path by which the kernel knows it, when it is a file.
    fn memoable(&self) -> Option<&File> {
        match &self.bytes {
            Bytes::Open(file) if self.stamp.inode != 0 => Some(file),
            _ => None,
        }
    }

    /// The open file of a plain input, for an entry that only points into it.
    pub(super) fn file(&self) -> Option<&Arc<File>> {
        match &self.bytes {
            Bytes::Open(file) if self.stamp.inode != 0 && self.packing == Packing::Plain => Some(file),
            _ => None,
        }
    }

    /// The folder of the file; none for a pipe.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        match self.stamp.inode {
            0 => None,
            _ => Path::new(&self.name).parent().map(Path::to_path_buf),
        }
    }

    /// Name below its directory without `.gz` and ending: of the session that a file of a directory is.
    pub(super) fn stem(&self) -> &str {
        let name = self.relative.as_str();
        let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
        match name.rsplit_once('.') {
            Some((stem, _)) if !stem.is_empty() => stem,
            _ => name,
        }
    }

    fn digest_of_pieces(&self) -> Digest {
        let mut all = Sha256::new();
        all.update(b"ringload file 1");
        all.update((PIECE_BYTES as u64).to_le_bytes());
        all.update(self.stamp.bytes.to_le_bytes());
        self.pieces.iter().for_each(|piece| all.update(piece.sha));
        Digest(all.finalize().into())
    }

    fn read_exact(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.bytes.read_at(at, out).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => self.changed(),
            _ => Error::file("cannot read", Path::new(&self.name), e),
        })
    }

    fn hash_piece(&self, range: Range<u64>, buffer: &mut [u8]) -> Result<Piece> {
        let bytes = &mut buffer[..(range.end - range.start) as usize];
        self.read_exact(range.start, bytes)?;
        let last = match self.packing {
            Packing::Plain => memchr::memrchr(b'\n', bytes).map_or(0, |at| at + 1),
            _ => 0,
        };
        let newlines = if last == 0 { 0 } else { memchr::memchr_iter(b'\n', bytes).count() };
        Ok(Piece {
            sha: Sha256::digest(&*bytes).into(),
            newlines: newlines as u32,
            lines_bytes: last as u32,
            lines_xxh3: xxh3_64(&bytes[..last]),
            rest_xxh3: xxh3_64(&bytes[last..]),
        })
    }

    /// An error when the file below is not what it was when it was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let now = match &self.bytes {
            Bytes::Memory(_) => return Ok(()),
            Bytes::Open(_) if self.stamp.inode == 0 => return Ok(()),
            Bytes::Open(file) => file.metadata(),
            Bytes::Closed(path) => std::fs::metadata(path),
        };
        match now.map(|meta| Stamp::of(&meta)) {
            // A link made or rights changed move ctime and no byte; bytes are held to their checksums anyway.
            Ok(now) if Stamp { ctime_ns: self.stamp.ctime_ns, ..now } == self.stamp => Ok(()),
            _ => Err(self.changed()),
        }
    }

    /// An error when anything at all was done to an open file since: for bytes that are mapped and not held to a checksum.
    pub(super) fn check_untouched(&self) -> Result<()> {
        match self.file().map(|file| file.metadata()) {
            Some(Ok(meta)) if Stamp::of(&meta) == self.stamp => Ok(()),
            _ => Err(self.changed()),
        }
    }

    pub(super) fn changed(&self) -> Error {
        Error::dataset(
            Place::file(&self.name),
            "it changed while it was read; nothing was kept, run again once nobody writes to it",
        )
    }

    /// The pieces of whole lines, each with the number of its first line: at most so many bytes, unless a line is longer.
    /// The last one ends with the file.
    pub(super) fn line_ranges(&self) -> Vec<(Range<u64>, u64)> {
        let mut ranges = Vec::new();
        let (mut start, mut line) = (0, 1);
        let mut newlines = 0;
        for (k, piece) in self.pieces.iter().enumerate() {
            newlines += u64::from(piece.newlines);
            if piece.lines_bytes > 0 {
                let end = k as u64 * PIECE_BYTES as u64 + u64::from(piece.lines_bytes);
                ranges.push((start..end, line));
                (start, line) = (end, 1 + newlines);
            }
        }
        if start < self.stamp.bytes {
            ranges.push((start..self.stamp.bytes, line));
        }
        ranges
    }

    /// Reads one of [`Source::line_ranges`] and holds it to the checksums of the first reading.
    pub(super) fn read_lines(&self, range: &Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        out.resize((range.end - range.start) as usize, 0);
        self.read_exact(range.start, out)?;
        let mut at = range.start;
        while at < range.end {
            let k = (at / PIECE_BYTES as u64) as usize;
            let piece_start = k as u64 * PIECE_BYTES as u64;
            let piece = self.pieces.get(k).ok_or_else(|| self.changed())?;
            let lines_end = piece_start + u64::from(piece.lines_bytes);
            // A range takes the rest of a piece, or its lines; from its very start it takes the lines if it has any.
            let (end, want) = if at < lines_end {
                (lines_end, piece.lines_xxh3)
            } else {
                ((piece_start + PIECE_BYTES as u64).min(self.stamp.bytes), piece.rest_xxh3)
            };
            let part = &out[(at - range.start) as usize..(end.min(range.end) - range.start) as usize];
            if xxh3_64(part) != want {
                return Err(self.changed());
            }
            at = end;
        }
        Ok(())
    }

    /// The content from its start, unpacked, each piece held to its checksum when the file was hashed before.
    pub(super) fn reader(&self) -> Result<Box<dyn Read + Send + '_>> {
        let pieces = Pieces { source: self, buffer: Vec::new(), at: 0, next: 0 };
        Ok(match self.packing {
            Packing::Plain => Box::new(pieces),
            Packing::Gzip => Box::new(Members::new(io::BufReader::with_capacity(1 << 16, pieces))),
            Packing::Zstd => {
                let decoder = zstd::stream::read::Decoder::new(pieces);
                Box::new(decoder.map_err(|e| Error::file("cannot unpack", Path::new(&self.name), e))?)
            }
        })
    }

    /// The first bytes of the content, unpacked; fewer when it has no more.
    pub(super) fn first_bytes(&self, max: usize) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.reader()?.take(max as u64).read_to_end(&mut out).map_err(|e| self.read_error(e))?;
        Ok(out)
    }

    /// SHA-256 of the file as it is stored.
    pub(super) fn plain_sha256(&self) -> Result<[u8; 32]> {
        let mut pieces = Pieces { source: self, buffer: Vec::new(), at: 0, next: 0 };
        let mut hash = Sha256::new();
        let mut block = vec![0; PIECE_BYTES];
        loop {
            match pieces.read(&mut block).map_err(|e| self.read_error(e))? {
                0 => return Ok(hash.finalize().into()),
                n => hash.update(&block[..n]),
            }
        }
    }

    /// What an error of [`Source::reader`] means.
    pub(super) fn read_error(&self, e: io::Error) -> Error {
        if e.get_ref().is_some_and(|inner| inner.is::<Moved>()) {
            return self.changed();
        }
        match self.packing {
            Packing::Plain => Error::file("cannot read", Path::new(&self.name), e),
            Packing::Gzip | Packing::Zstd => {
                let kind = if self.packing == Packing::Gzip { "gzip" } else { "zstd" };
                let cut = e.kind() == io::ErrorKind::UnexpectedEof;
                let cure = if cut { "; the file is cut short, copy it again" } else { "" };
                Error::dataset(Place::file(&self.name), format!("cannot unpack the {kind} data: {e}{cure}"))
            }
        }
    }
}

/// Tells a change under the reader from a failure of the disk, through the error type of `Read`.
#[derive(Debug, thiserror::Error)]
#[error("the input changed while it was read")]
struct Moved;

/// Reads a source piece by piece.
struct Pieces<'a> {
    source: &'a Source,
    buffer: Vec<u8>,
    at: usize,
    next: u64,
}

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.buffer.len() {
            let start = self.next * PIECE_BYTES as u64;
            let bytes = self.source.stamp.bytes.saturating_sub(start).min(PIECE_BYTES as u64);
            if bytes == 0 {
                return Ok(0);
            }
            self.buffer.resize(bytes as usize, 0);
            self.at = 0;
            self.source.bytes.read_at(start, &mut self.buffer).map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::other(Moved),
                _ => e,
            })?;
            if let Some(piece) = self.source.pieces.get(self.next as usize) {
                let (lines, rest) = self.buffer.split_at((piece.lines_bytes as usize).min(self.buffer.len()));
                if xxh3_64(lines) != piece.lines_xxh3 || xxh3_64(rest) != piece.rest_xxh3 {
                    return Err(io::Error::other(Moved));
                }
            }
            self.next += 1;
        }
        let now = out.len().min(self.buffer.len() - self.at);
        out[..now].copy_from_slice(&self.buffer[self.at..self.at + now]);
        self.at += now;
        Ok(now)
    }
}

fn open_file(path: &Path, relative: String, keep_open: bool) -> Result<Source> {
    let open = |e| Error::file("cannot open", path, e);
    let file = File::open(path).map_err(open)?;
    let meta = file.metadata().map_err(open)?;
    let name = path.to_string_lossy().into_owned();
    let mut first = [0; 16];
    let mut have = 0;
    while have < first.len() {
        match file.read_at(&mut first[have..], have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::file("cannot read", path, e)),
        }
    }
    let packing = packing(&first[..have], &name)?;
    let bytes = if keep_open { Bytes::Open(Arc::new(file)) } else { Bytes::Closed(path.to_path_buf()) };
    Ok(Source { name, relative, bytes, stamp: Stamp::of(&meta), packing, pieces: Vec::new(), digest: None })
}

/// A path that is a pipe or a device: read like standard input.
fn open_pipe(path: &Path, folder: &Path, how: &How<'_>) -> Result<Source> {
    // Not to wait here for somebody to write: that is waited for below, where an interrupt is heard.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(|e| Error::file("cannot open", path, e))?;
    let mut pipe = Patient { wait: file.as_fd(), from: &file, how };
    read_pipe_to_end(&mut pipe, path.to_string_lossy().into_owned(), folder, how)
}

/// Reads a pipe that may be silent for long, and hears an interrupt meanwhile.
struct Patient<'a, R> {
    wait: BorrowedFd<'a>,
    from: R,
    how: &'a How<'a>,
}

impl<R: Read> Read for Patient<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.how.check().is_err() {
                // The caller asks by itself, and ends.
                return Err(io::ErrorKind::Interrupted.into());
            }
            let mut fds = [PollFd::new(self.wait, PollFlags::POLLIN)];
            match poll(&mut fds, PIPE_LOOK_MS) {
                Ok(0) | Err(Errno::EINTR) => continue,
                // What cannot be waited for can be read all the same.
                Ok(_) | Err(_) => {}
            }
            match self.from.read(out) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

fn in_memory(all: Vec<u8>, name: String) -> Result<Source> {
    let packing = packing(&all[..all.len().min(16)], &name)?;
    let stamp = Stamp { bytes: all.len() as u64, ..Stamp::default() };
    let bytes = Bytes::Memory(Arc::new(all));
    Ok(Source { name, relative: String::new(), bytes, stamp, packing, pieces: Vec::new(), digest: None })
}

/// Reads a pipe to its end: into memory, or into a file without a name in `folder` once it is long.
fn read_pipe_to_end(input: &mut dyn Read, name: String, folder: &Path, how: &How<'_>) -> Result<Source> {
    let failed = |e| Error::file("cannot read", Path::new(if name == "-" { "standard input" } else { &name }), e);
    let mut start = Vec::new();
    let mut block = vec![0; PIECE_BYTES];
    let mut spill: Option<File> = None;
    let mut bytes = 0u64;
    loop {
        how.check()?;
        let now = match input.read(&mut block) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(failed(e)),
        };
        match &mut spill {
            None if start.len() + now <= MEMORY_BYTES => start.extend_from_slice(&block[..now]),
            None => {
                let file = sys::fs::unnamed_file(folder)
                    .map_err(|e| Error::file("cannot make a temporary file in", folder, e))?;
                file.write_all_at(&start, 0).map_err(|e| Error::file("cannot write to", folder, e))?;
                file.write_all_at(&block[..now], bytes).map_err(|e| Error::file("cannot write to", folder, e))?;
                spill = Some(file);
            }
            Some(file) => {
                file.write_all_at(&block[..now], bytes).map_err(|e| Error::file("cannot write to", folder, e))?;
            }
        }
        bytes += now as u64;
    }
    match spill {
        None => in_memory(start, name),
        Some(file) => {
            let packing = packing(&start[..start.len().min(16)], &name)?;
            let stamp = Stamp { bytes, ..Stamp::default() };
            let bytes = Bytes::Open(Arc::new(file));
            Ok(Source { name, relative: String::new(), bytes, stamp, packing, pieces: Vec::new(), digest: None })
        }
    }
}

/// The dataset files directly inside a directory, by name.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = files_in(folder)?;
    if files.is_empty() {
        // Captures lie in folders by year, month, day and hour, with nothing above them.
        let mut folders = vec![folder.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let entries =
                std::fs::read_dir(&folder).map_err(|e| Error::file("cannot read the directory", &folder, e))?;
            // A link to a folder may lead round in a circle.
            let below = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            for below in below.map(|entry| entry.path()) {
                files.extend(files_in(&below)?);
                folders.push(below);
            }
            if files.len() + folders.len() > FILES_MAX {
                return Err(Error::usage(format!("{} has more than {FILES_MAX} dataset files", folder.display())));
            }
        }
    }
    if files.is_empty() {
        let what = format!("no dataset files in this directory (*.{}, also .gz and .zst)", ENDINGS.join(", *."));
        return Err(Error::dataset(Place::file(folder.to_string_lossy()), what));
    }
    files.sort_unstable();
    Ok(files)
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e| Error::file("cannot read the directory", folder, e);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let plain = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
        let ending = plain.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        let wanted = !name.starts_with('.') && ending.is_some_and(|e| ENDINGS.contains(&e.as_str()));
        if wanted && std::fs::metadata(entry.path()).is_ok_and(|meta| meta.is_file()) {
            files.push(entry.path());
        }
        if files.len() > FILES_MAX {
            return Err(Error::usage(format!("{} has more than {FILES_MAX} dataset files", folder.display())));
        }
    }
    Ok(files)
}

fn packing(first: &[u8], name: &str) -> Result<Packing> {
    const OTHERS: [(&[u8], &str); 5] = [
        (b"\xfd7zXZ\0", "xz"),
        (b"PK\x03\x04", "zip"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"7z\xbc\xaf\x27\x1c", "7z"),
        (b"\x28\xb5\x2f\xfe", "an unfinished zstd"),
    ];
    if first.starts_with(b"\x1f\x8b") {
        return Ok(Packing::Gzip);
    }
    // A frame, or a skippable frame in front of one.
    if first.starts_with(b"\x28\xb5\x2f\xfd")
        || first.len() >= 4 && first[0] & 0xf0 == 0x50 && first[1..4] == *b"\x2a\x4d\x18"
    {
        return Ok(Packing::Zstd);
    }
    let bzip2 = first.starts_with(b"BZh") && first.get(4..10) == Some(b"1AY&SY");
    let other = OTHERS.iter().find(|(magic, _)| first.starts_with(magic)).map(|&(_, what)| what);
    match other.or(bzip2.then_some("bzip2")) {
        Some(what) => Err(Error::dataset(
            Place::file(name),
            format!("it is {what} data; plain, gzip and zstd are read: unpack it, or pipe it in with `-f -`"),
        )),
        None => Ok(Packing::Plain),
    }
}
