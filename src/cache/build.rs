//! Input to bodies to files: pieces of whole lines are parsed by all threads, and taken over by `writer` in the order of the
//! input by whichever thread has the next one.
//!
//! Promises: sees the `Spec`, the input and what makes bodies, and nothing else that could reach the bytes: [`How`] only says
//! with how many threads, and when to stop.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Duration,
};

use super::{
    How,
    batch::{Batch, Filler, Piece},
    body::Bodies,
    input::{Input, PIECE_BYTES, Packing, Source},
    spec::{Spec, Store},
    writer::{Next, Writer},
};
use crate::{
    data::{Error, Result, error::Place, record::Sink},
    formats::{self, Format, ReadOptions, Shape},
};

/// Bytes in which the header line of a table must begin and end.
const HEADER_BYTES_MAX: usize = 1 << 20;
/// Bytes of lines that one thread parses at a time where a line of lengths becomes a body some 200 times as long.
const GROWING_BYTES: usize = 16 << 10;
/// Batches that wait for an earlier one, for each thread, before nobody reads on.
const AHEAD_PER_THREAD: usize = 2;

/// Everything that a build is made from.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) spec: &'a Spec,
    pub(super) format: Format,
    pub(super) input: &'a Input,
    /// None for a dataset whose records are bodies.
    pub(super) maker: Option<&'a Bodies<'a>>,
}

/// Reads the whole input into the writer.
pub(super) fn run<'w>(work: Work<'_>, writer: Writer<'w>, how: &How<'_>) -> Result<Writer<'w>> {
    let writer = match formats::shape(work.format) {
        Shape::Lines { header } => lines(work, header, writer, how)?,
        Shape::Document | Shape::Pools => documents(work, writer, how)?,
    };
    work.input.sources.iter().try_for_each(Source::check_unchanged)?;
    Ok(writer)
}

/// How the lines of one file are read.
struct Manner {
    source: usize,
    options: ReadOptions,
    /// Lines up to this one, from 1, are no records: the header of a table.
    skip_through: u64,
}

impl Manner {
    /// Lines without those that are no records, and the number of the first.
    fn lines_of<'b>(&self, bytes: &'b [u8], first_line: u64) -> (&'b [u8], u64) {
        let (mut lines, mut first_line) = (bytes, first_line);
        while first_line <= self.skip_through && !lines.is_empty() {
            lines = &lines[memchr::memchr(b'\n', lines).map_or(lines.len(), |end| end + 1)..];
            first_line += 1;
        }
        (lines, first_line)
    }
}

/// What one thread parses at a time.
enum Task {
    /// A range of a plain file, which the thread reads itself.
    Range(Range<u64>),
    /// Unpacked bytes.
    Bytes(Vec<u8>),
}

/// Deals out tasks in the order of the input.
struct Feed<'a> {
    work: Work<'a>,
    header: bool,
    next_source: usize,
    number: u64,
    state: State<'a>,
    /// What is left of a piece that is dealt out in steps of [`GROWING_BYTES`].
    rest: Option<Rest>,
}

/// Lines that are read and not yet dealt out.
struct Rest {
    manner: Arc<Manner>,
    bytes: Vec<u8>,
    at: usize,
    line: u64,
}

impl Rest {
    /// The next few lines and the number of the first; none at the end.
    fn next(&mut self) -> Option<(Vec<u8>, u64)> {
        let left = self.bytes.get(self.at..).filter(|left| !left.is_empty())?;
        let from = GROWING_BYTES.min(left.len());
        let end = memchr::memchr(b'\n', &left[from..]).map_or(left.len(), |end| from + end + 1);
        let (few, line) = (left[..end].to_vec(), self.line);
        self.line += memchr::memchr_iter(b'\n', &few).count() as u64;
        self.at += end;
        Some((few, line))
    }
}

enum State<'a> {
    Idle,
    Ranges(Arc<Manner>, std::vec::IntoIter<(Range<u64>, u64)>),
    Stream(Arc<Manner>, Stream<'a>),
}

/// A packed file that is being unpacked.
struct Stream<'a> {
    reader: Box<dyn Read + Send + 'a>,
    /// What stands behind the last line end.
    rest: Vec<u8>,
    line: u64,
}

/// A task and where it belongs.
struct Dealt {
    number: u64,
    manner: Arc<Manner>,
    task: Task,
    first_line: u64,
}

impl<'a> Feed<'a> {
    fn next(&mut self) -> Result<Option<Dealt>> {
        loop {
            if let Some(rest) = &mut self.rest {
                match rest.next() {
                    Some((bytes, first_line)) => {
                        let (manner, task) = (rest.manner.clone(), Task::Bytes(bytes));
                        self.number += 1;
                        return Ok(Some(Dealt { number: self.number - 1, manner, task, first_line }));
                    }
                    None => self.rest = None,
                }
            }
            let dealt = match &mut self.state {
                State::Idle => None,
                State::Ranges(manner, ranges) => {
                    ranges.next().map(|(range, line)| (manner.clone(), Task::Range(range), line))
                }
                State::Stream(manner, stream) => {
                    let source = &self.work.input.sources[manner.source];
                    let piece = stream.next().map_err(|e| source.read_error(e))?;
                    piece.map(|(bytes, line)| (manner.clone(), Task::Bytes(bytes), line))
                }
            };
            if let Some((manner, task, first_line)) = dealt {
                if matches!(self.work.format.bodies(), formats::Bodies::Synthesized { .. }) {
                    let bytes = match task {
                        Task::Bytes(bytes) => bytes,
                        Task::Range(range) => {
                            let mut bytes = Vec::new();
                            self.work.input.sources[manner.source].read_lines(&range, &mut bytes)?;
                            bytes
                        }
                    };
                    self.rest = Some(Rest { manner, bytes, at: 0, line: first_line });
                    continue;
                }
                self.number += 1;
                return Ok(Some(Dealt { number: self.number - 1, manner, task, first_line }));
            }
            let Some(source) = self.work.input.sources.get(self.next_source) else { return Ok(None) };
            let manner = Arc::new(self.manner(source)?);
            self.next_source += 1;
            self.state = match source.packing {
                Packing::Plain => State::Ranges(manner, source.line_ranges().into_iter()),
                Packing::Gzip | Packing::Zstd => {
                    State::Stream(manner, Stream { reader: source.reader()?, rest: Vec::new(), line: 1 })
                }
            };
        }
    }

    fn manner(&self, source: &Source) -> Result<Manner> {
        let mut options = options(self.work, source);
        let mut skip_through = 0;
        if self.header {
            let first = source.first_bytes(HEADER_BYTES_MAX)?;
            let mut lines = first.split(|&byte| byte == b'\n').zip(1u64..);
            if let Some((line, number)) = lines.find(|(line, _)| !line.trim_ascii().is_empty()) {
                options.columns = formats::parse_header(self.work.format, &source.name, line, number)?;
                skip_through = number;
            }
        }
        Ok(Manner { source: self.next_source, options, skip_through })
    }
}

impl Stream<'_> {
    /// The next piece of whole lines and the number of its first; none at the end.
    fn next(&mut self) -> io::Result<Option<(Vec<u8>, u64)>> {
        let mut piece = std::mem::take(&mut self.rest);
        let mut searched = 0;
        loop {
            let more = (PIECE_BYTES.saturating_sub(piece.len())).max(PIECE_BYTES / 4);
            let read = (&mut self.reader).take(more as u64).read_to_end(&mut piece)?;
            if read < more {
                break;
            }
            if let Some(end) = memchr::memrchr(b'\n', &piece[searched..]) {
                self.rest = piece.split_off(searched + end + 1);
                break;
            }
            searched = piece.len();
        }
        if piece.is_empty() {
            return Ok(None);
        }
        let line = self.line;
        self.line += memchr::memchr_iter(b'\n', &piece).count() as u64;
        Ok(Some((piece, line)))
    }
}

fn options(work: Work<'_>, source: &Source) -> ReadOptions {
    let session = work.input.directory && work.format == Format::RawPayload;
    let reading = &work.spec.reading;
    ReadOptions {
        verbatim_lines: reading.verbatim_lines,
        reformat: reading.reformat,
        synthesized_answers: reading.synthesized_answers,
        entries: reading.entries,
        seed: reading.draw_seed,
        session: session.then(|| source.stem().to_owned()),
        ..ReadOptions::default()
    }
}

/// What the threads share.
struct Shared<'w> {
    state: Mutex<Taken<'w>>,
    changed: Condvar,
}

struct Taken<'w> {
    /// The batch that is taken over next.
    next: u64,
    ready: BTreeMap<u64, Result<Batch>>,
    /// None while a thread takes batches over.
    writer: Option<Writer<'w>>,
    stop: bool,
    error: Option<Error>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked has left the state between two batches: what follows fails with its own error.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn lines<'w>(work: Work<'_>, header: bool, writer: Writer<'w>, how: &How<'_>) -> Result<Writer<'w>> {
    let feed = Mutex::new(Feed { work, header, next_source: 0, number: 0, state: State::Idle, rest: None });
    let state = Taken { next: 0, ready: BTreeMap::new(), writer: Some(writer), stop: false, error: None };
    let shared = Shared { state: Mutex::new(state), changed: Condvar::new() };
    how.begin();
    let one = || {
        let mut buffer = Vec::new();
        while let Some(result) = shared.wait_for_room(how).and_then(|()| lock(&feed).next()).transpose() {
            let (number, result) = match result {
                Ok(dealt) => (dealt.number, parse(work, dealt, &mut buffer, how)),
                // Nothing comes after it: it takes the place of the batch that could not be read.
                Err(error) => (shared.end(error), Ok(Batch::default())),
            };
            if shared.put(number, result) {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = if work.maker.is_some_and(Bodies::in_order) { 1 } else { how.threads };
        (1..threads.max(1)).for_each(|_| drop(scope.spawn(one)));
        one();
    });
    let state = shared.state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    match (state.error, state.writer) {
        (Some(error), _) => Err(error),
        (None, Some(writer)) => Ok(writer),
        (None, None) => Err(Error::Interrupted),
    }
}

impl<'w> Shared<'w> {
    /// Waits until not too many batches wait for an earlier one.
    fn wait_for_room(&self, how: &How<'_>) -> Result<()> {
        let mut state = lock(&self.state);
        while !state.stop && state.ready.len() > AHEAD_PER_THREAD * how.threads {
            how.check()?;
            let waited = self.changed.wait_timeout(state, Duration::from_millis(50));
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        how.check()
    }

    /// Stops everybody with an error of the feed.
    fn end(&self, error: Error) -> u64 {
        let mut state = lock(&self.state);
        state.stop = true;
        state.error.get_or_insert(error);
        u64::MAX
    }

    /// Puts a batch, and takes over what can be. True when everybody is to stop.
    fn put(&self, number: u64, batch: Result<Batch>) -> bool {
        let mut state = lock(&self.state);
        state.ready.insert(number, batch);
        loop {
            let next = state.next;
            if state.stop || state.writer.is_none() {
                break;
            }
            let Some(batch) = state.ready.remove(&next) else { break };
            let Some(mut writer) = state.writer.take() else { break };
            drop(state);
            let taken = batch.and_then(|batch| writer.take(batch));
            state = lock(&self.state);
            state.writer = Some(writer);
            state.next += 1;
            match taken {
                Ok(Next::More) => {}
                Ok(Next::Enough) => state.stop = true,
                Err(error) => {
                    state.stop = true;
                    state.error.get_or_insert(error);
                }
            }
            self.changed.notify_all();
        }
        state.stop
    }
}

fn parse(work: Work<'_>, dealt: Dealt, buffer: &mut Vec<u8>, how: &How<'_>) -> Result<Batch> {
    let source = &work.input.sources[dealt.manner.source];
    let (bytes, offset): (&[u8], u64) = match &dealt.task {
        Task::Bytes(bytes) => (bytes, 0),
        Task::Range(range) => {
            source.read_lines(range, buffer)?;
            (buffer, range.start)
        }
    };
    let (lines, first_line) = dealt.manner.lines_of(bytes, dealt.first_line);
    let reference = work.spec.store == Store::Reference;
    let piece = reference.then(|| Piece::of(bytes, offset));
    let name = (dealt.manner.source, source.name.as_str());
    let mut filler = Filler::new(name, work.maker, work.spec.dedup, piece);
    if !reference {
        filler.batch.bytes.reserve(lines.len());
    }
    formats::parse_lines(work.format, &dealt.manner.options, &source.name, lines, first_line, &mut filler)?;
    let mut batch = filler.finish();
    if reference {
        batch.raw = bytes.to_vec();
    }
    how.progress("building", bytes.len() as u64, work.input.bytes());
    Ok(batch)
}

/// Reads files that are one document each, one after the other, or all at once where that is the format's way.
fn documents<'w>(work: Work<'_>, mut writer: Writer<'w>, how: &How<'_>) -> Result<Writer<'w>> {
    if work.spec.store == Store::Reference {
        return Err(Error::usage(format!(
            "--store reference needs a format of lines whose records are bodies, not {}",
            work.format.name()
        )));
    }
    how.begin();
    let total = work.input.bytes();
    for files in work.groups() {
        let mut enough = false;
        let mut full = |batch: Batch| match writer.take(batch)? {
            Next::More => Ok(()),
            Next::Enough => {
                enough = true;
                // Ends the reader; told from an interrupt by `enough`.
                Err(Error::Interrupted)
            }
        };
        let (index, first) = (files.start, &work.input.sources[files.start]);
        let filler = Filler::new((index, &first.name), work.maker, work.spec.dedup, None);
        let mut filler = filler.into_many(&mut full);
        let parsed = work.read(files, how, total, &mut filler);
        let last = filler.finish();
        match parsed {
            Err(_) if enough => return Ok(writer),
            // The document breaks off, but the records before are told with what is wrong with them.
            Err(Error::Dataset { place, what }) if !last.bad.is_empty() => {
                let mut last = last;
                last.bad.push(super::batch::Bad { before: last.items.len(), place, what });
                writer.take(last)?;
                return Ok(writer);
            }
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        if writer.take(last)? == Next::Enough {
            return Ok(writer);
        }
    }
    Ok(writer)
}

impl Work<'_> {
    /// The files that are read at once.
    fn groups(&self) -> Vec<Range<usize>> {
        let count = self.input.sources.len();
        match formats::shape(self.format) {
            Shape::Pools => std::iter::once(0..count).collect(),
            Shape::Lines { .. } | Shape::Document => (0..count).map(|k| k..k + 1).collect(),
        }
    }

    /// Reads one document, or all files of a format that takes them at once, into a sink.
    fn read(&self, files: Range<usize>, how: &How<'_>, total: u64, sink: &mut dyn Sink) -> Result<()> {
        let sources = &self.input.sources[files];
        let mut inputs = Vec::new();
        for source in sources {
            inputs.push(Guarded { reader: source.reader()?, how, total, error: None, canceled: false });
        }
        let options = options(*self, &sources[0]);
        let parsed = match formats::shape(self.format) {
            Shape::Pools => {
                let named = sources.iter().zip(&mut inputs);
                let mut named: Vec<_> = named.map(|(s, input)| (s.name.as_str(), input as &mut dyn Read)).collect();
                formats::parse_pools(self.format, &options, &mut named, sink)
            }
            _ => formats::parse_document(self.format, &options, &sources[0].name, &mut inputs[0], sink),
        };
        for (source, input) in sources.iter().zip(&mut inputs) {
            if input.canceled {
                return Err(Error::Interrupted);
            }
            if let Some(error) = input.error.take() {
                return Err(source.read_error(error));
            }
        }
        parsed
    }
}

/// Keeps what went wrong with the reading, which a format could only pass on as text, and ends it on an interrupt.
struct Guarded<'a> {
    reader: Box<dyn Read + 'a>,
    how: &'a How<'a>,
    total: u64,
    error: Option<io::Error>,
    canceled: bool,
}

impl Read for Guarded<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.how.check().is_err() {
            self.canceled = true;
            // Not `Interrupted`, which readers answer by trying again.
            return Err(io::Error::other("interrupted"));
        }
        match self.reader.read(out) {
            Ok(n) => {
                self.how.progress("building", n as u64, self.total);
                Ok(n)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(e),
            Err(e) => {
                let text = e.to_string();
                self.error = Some(e);
                Err(io::Error::other(text))
            }
        }
    }
}

/// Reads all records into a sink that looks at them before any body is made. Bad ones are told when they are read for good.
pub(super) fn survey(input: &Input, format: Format, spec: &Spec, sink: &mut dyn Sink, how: &How<'_>) -> Result<()> {
    let work = Work { spec, format, input, maker: None };
    let Shape::Lines { header } = formats::shape(format) else {
        return work.groups().into_iter().try_for_each(|files| work.read(files, how, input.bytes(), sink));
    };
    let mut feed = Feed { work, header, next_source: 0, number: 0, state: State::Idle, rest: None };
    while let Some(dealt) = feed.next()? {
        how.check()?;
        let source = &input.sources[dealt.manner.source];
        let bytes = match dealt.task {
            Task::Bytes(bytes) => bytes,
            Task::Range(range) => {
                let mut bytes = Vec::new();
                source.read_lines(&range, &mut bytes)?;
                bytes
            }
        };
        let lines = dealt.manner.lines_of(&bytes, dealt.first_line);
        formats::parse_lines(format, &dealt.manner.options, &source.name, lines.0, lines.1, sink)?;
    }
    Ok(())
}

/// The format that the input says it is in by its first bytes.
pub(super) fn detect(input: &Input) -> Result<Format> {
    let kind = if input.directory { formats::Input::Directory } else { formats::Input::File };
    let Some(first) = input.sources.first() else { return Err(Error::usage("no dataset is named")) };
    // The first file with something in it: a segment may be empty.
    for source in &input.sources {
        let start = source.first_bytes(HEADER_BYTES_MAX)?;
        if !start.trim_ascii().is_empty() {
            return formats::detect(&source.name, kind, &start);
        }
    }
    Err(Error::dataset(Place::file(&first.name), "no records: it is empty"))
}
