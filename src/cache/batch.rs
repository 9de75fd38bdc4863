//! What one thread makes of one piece of the input: bodies one after the other, what is known of each, and what was bad. Made
//! in parallel, taken over in the order of the input by `writer`.

use xxhash_rust::xxh3::xxh3_64;

use super::{
    anchors::{self, Anchor},
    body::Bodies,
    flags::Flags,
    sharing,
    spec::Dedup,
};
use crate::{
    data::{
        Error,
        error::Place,
        limits::BAD_RECORDS_SHOWN,
        record::{Facts, Link, Payload, Record, RequestLine, Sink},
    },
    formats,
};

/// Bodies shorter than this are looked up whole and not searched for shared stretches: what could be saved is less than what
/// another span costs (0.4 us a span, 16 KiB copied in 0.8 us).
const SEARCH_BYTES_MIN: usize = 4 << 10;

/// Body bytes after which a batch of a whole document is handed over.
const BATCH_BYTES: usize = 1 << 20;

/// Distinct models of a batch that are kept by name.
const MODELS_MAX: usize = 64;
/// Row of a model beyond those.
pub(super) const MORE_MODELS: u16 = u16::MAX;

/// One record of a batch.
#[derive(Debug)]
pub(super) struct Item {
    /// The body in [`Batch::bytes`].
    pub(super) start: usize,
    pub(super) end: usize,
    /// Its anchors in [`Batch::anchors`].
    pub(super) anchors: (u32, u32),
    /// Where the body stands in the user's own file; only for an entry that points into it.
    pub(super) reference: u64,
    pub(super) xxh3: u64,
    pub(super) line: u64,
    pub(super) due_ns: Option<u64>,
    pub(super) delay_ns: Option<u64>,
    pub(super) session: Option<Box<str>>,
    /// Running numbers from the first record of this batch's input.
    pub(super) after: Option<Box<[u64]>>,
    pub(super) input_tokens: Option<u32>,
    pub(super) output_cap: Option<u32>,
    pub(super) flags: Flags,
    /// Images, audios and videos.
    pub(super) media: [u32; 3],
    /// The fronts of its prompt in [`Batch::fronts`], and whether they are by hash id.
    pub(super) fronts: (u32, u32, bool),
    /// In [`Batch::models`], or [`MORE_MODELS`].
    pub(super) model: Option<u16>,
    pub(super) request: Option<Box<RequestLine<'static>>>,
    pub(super) link: Option<Link>,
}

/// A bad record.
#[derive(Debug)]
pub(super) struct Bad {
    /// Good records of the batch before it.
    pub(super) before: usize,
    pub(super) place: Place,
    pub(super) what: String,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) items: Vec<Item>,
    pub(super) anchors: Vec<Anchor>,
    /// See [`sharing`].
    pub(super) fronts: Vec<u64>,
    pub(super) models: Vec<Box<str>>,
    /// The first ones in full; the rest is only placed among the records.
    pub(super) bad: Vec<Bad>,
    /// Which file of the input.
    pub(super) source: usize,
    /// True when the numbers in [`Item::after`] begin again here.
    pub(super) numbers_begin: bool,
    /// For an entry that points into the user's file: the bytes of the file that this batch was made from.
    pub(super) raw: Vec<u8>,
}

/// A stretch of the user's own file that bodies are to point into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    address: usize,
    bytes: usize,
    offset: u64,
}

impl Piece {
    /// `bytes` stand at `offset` of the file.
    pub(super) fn of(bytes: &[u8], offset: u64) -> Self {
        Self { address: bytes.as_ptr() as usize, bytes: bytes.len(), offset }
    }

    /// Where in the file a slice of the piece stands; none when it is no slice of it.
    fn place(&self, part: &[u8]) -> Option<u64> {
        let at = (part.as_ptr() as usize).checked_sub(self.address)?;
        (at + part.len() <= self.bytes).then_some(self.offset + at as u64)
    }
}

/// Takes over a batch that is full.
pub(super) type Full<'a> = dyn FnMut(Batch) -> Result<(), Error> + 'a;

/// Fills batches from a reader.
pub(super) struct Filler<'a> {
    pub(super) batch: Batch,
    file: &'a str,
    maker: Option<&'a Bodies<'a>>,
    dedup: Dedup,
    piece: Option<Piece>,
    full: Option<&'a mut Full<'a>>,
}

impl<'a> Filler<'a> {
    /// An empty batch of a file of the input. Without a maker every record must be a body already; with a piece the bodies
    /// are not copied, but point into the user's file.
    pub(super) fn new(
        (source, file): (usize, &'a str),
        maker: Option<&'a Bodies<'a>>,
        dedup: Dedup,
        piece: Option<Piece>,
    ) -> Self {
        let batch = Batch { source, numbers_begin: true, ..Batch::default() };
        Self { batch, file, maker, dedup, piece, full: None }
    }

    /// Hands batches over as they fill up, for readers that give many records in one call.
    pub(super) fn into_many(mut self, full: &'a mut Full<'a>) -> Self {
        self.full = Some(full);
        self
    }

    /// Writes the body; gives where it stands in the user's file, if it is not copied.
    fn body(&mut self, record: &Record<'_>) -> Result<Result<u64, String>, Error> {
        let batch = &mut self.batch;
        let start = batch.bytes.len();
        match (&record.payload, self.piece) {
            (Payload::Verbatim(body), Some(piece)) => match piece.place(body) {
                Some(place) => Ok(Ok(place)),
                None => Err(Error::usage(
                    "--store reference needs bodies that stand in the file as they are sent, as in raw_payload",
                )),
            },
            (Payload::Verbatim(body), None) => {
                batch.bytes.extend_from_slice(body);
                Ok(Ok(0))
            }
            (_, Some(_)) => Err(Error::usage("--store reference needs records that are bodies, as in raw_payload")),
            (_, None) => {
                let Some(maker) = self.maker else {
                    return Ok(Err("it has no body, and nothing says how to make one".into()));
                };
                let (blocks, anchors) = (self.dedup != Dedup::Off, &mut batch.anchors);
                let first = batch.fronts.len();
                let fronts = &mut batch.fronts;
                let block = |at: usize, id: u64| {
                    sharing::push_id(fronts, first, id);
                    if blocks {
                        anchors.push(Anchor { at: at - start, digest: anchors::digest_of_block(id) });
                    }
                };
                Ok(maker.make(record, batch.source, &mut batch.bytes, block).map(|()| 0))
            }
        }
    }

    /// Finds what the body may share with others.
    fn search(&mut self, record: &Record<'_>, start: usize, first_anchor: usize) {
        let batch = &mut self.batch;
        let body = &batch.bytes[start..];
        if self.dedup == Dedup::Off || body.len() < SEARCH_BYTES_MIN {
            batch.anchors.truncate(first_anchor);
            return;
        }
        let told = batch.anchors.len() > first_anchor;
        if let Some(session) = &record.session {
            batch.anchors.push(Anchor { at: 0, digest: anchors::digest_of_session(session) });
        }
        let by_content = match self.dedup {
            Dedup::Chunk => true,
            Dedup::Auto => !told,
            Dedup::Exact | Dedup::Off => false,
        };
        if by_content {
            anchors::find(body, &mut batch.anchors);
        }
        batch.anchors[first_anchor..].sort_by_key(|a| a.at);
    }

    fn item(
        &mut self,
        record: Record<'_>,
        start: usize,
        reference: u64,
        (first_anchor, first_front): (usize, usize),
    ) -> Item {
        let Batch { bytes, models, anchors, fronts, .. } = &mut self.batch;
        let body = match (&record.payload, self.piece) {
            (Payload::Verbatim(body), Some(_)) => &body[..],
            _ => &bytes[start..],
        };
        let made: Facts<'_>;
        let facts = match &record.facts {
            Some(facts) => facts,
            None => {
                made = formats::facts::of(body);
                &made
            }
        };
        let by_id = fronts.len() > first_front;
        if !by_id && let Some(text) = body.get(facts.prompt.clone()) {
            sharing::push_text(fronts, text);
        }
        Item {
            start,
            end: start + body.len(),
            anchors: (first_anchor as u32, anchors.len() as u32),
            reference,
            xxh3: xxh3_64(body),
            line: record.line,
            due_ns: record.due_ns,
            delay_ns: record.delay_ns,
            input_tokens: record.input_tokens.filter(|&n| n < u32::MAX),
            output_cap: record.output_tokens.or(facts.output_cap).filter(|&n| n < u32::MAX),
            flags: Flags::of(facts, record.background),
            media: [facts.images, facts.audios, facts.videos],
            fronts: (first_front as u32, fronts.len() as u32, by_id),
            model: facts.model.as_deref().map(|name| row_of(models, name)),
            session: record.session.map(|s| s.into_owned().into_boxed_str()),
            after: record.after.map(|a| a.into_owned().into_boxed_slice()),
            request: record.request.map(|r| Box::new(r.into_owned())),
            link: record.link,
        }
    }

    /// The last batch.
    pub(super) fn finish(self) -> Batch {
        self.batch
    }
}

/// The row of a name, which is added when it is new; the rows are few.
fn row_of(names: &mut Vec<Box<str>>, name: &str) -> u16 {
    match names.iter().position(|n| **n == *name) {
        Some(row) => row as u16,
        None if names.len() < MODELS_MAX => {
            names.push(name.into());
            names.len() as u16 - 1
        }
        None => MORE_MODELS,
    }
}

impl Sink for Filler<'_> {
    fn record(&mut self, record: Record<'_>) -> Result<(), Error> {
        let mut record = record;
        if let Some(maker) = self.maker
            && let Err(what) = maker.prepare(&mut record, self.batch.source)
        {
            return self.bad(Place::line(self.file, record.line), what);
        }
        let (start, first_anchor, first_front) =
            (self.batch.bytes.len(), self.batch.anchors.len(), self.batch.fronts.len());
        let reference = match self.body(&record)? {
            Ok(reference) => reference,
            Err(what) => {
                self.batch.bytes.truncate(start);
                self.batch.anchors.truncate(first_anchor);
                self.batch.fronts.truncate(first_front);
                return self.bad(Place::line(self.file, record.line), what);
            }
        };
        if self.piece.is_none() {
            self.search(&record, start, first_anchor);
        }
        let item = self.item(record, start, reference, (first_anchor, first_front));
        self.batch.items.push(item);
        if self.batch.bytes.len() >= BATCH_BYTES
            && let Some(full) = &mut self.full
        {
            let next = Batch { source: self.batch.source, ..Batch::default() };
            full(std::mem::replace(&mut self.batch, next))?;
        }
        Ok(())
    }

    fn bad(&mut self, place: Place, what: String) -> Result<(), Error> {
        let shown = self.batch.bad.len() < BAD_RECORDS_SHOWN;
        let (place, what) = if shown { (place, what) } else { Default::default() };
        self.batch.bad.push(Bad { before: self.batch.items.len(), place, what });
        Ok(())
    }
}
