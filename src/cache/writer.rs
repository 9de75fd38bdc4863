//! Takes over batches in the order of the input, finds what is stored already, and writes the rest.
//!
//! Bodies are gathered into windows of a fixed size and each window is looked through from its end: the last turn of a session
//! is stored whole, and each earlier one is then the front of it and a few bytes of its own. So a body that repeats a history
//! is two spans and not one a turn. What is stored goes out in the order of the input.
//!
//! Promises: deterministic: windows are cut by bytes, tables are bounded by rows, and nothing depends on threads or time. What
//! is shared was compared byte by byte. Memory is bounded: one window and two tables.
//!
//! This file is long because every way that equal stretches are found ends in the one writer that must be deterministic.

use std::{fs::File, io::IoSlice, io::Write, os::unix::fs::FileExt, path::Path};

use super::{
    anchors,
    batch::{Batch, Item, MORE_MODELS},
    check::Check,
    layout,
    recent::{ByDigest, Recent},
    report::{BuildReport, Gather},
    rows::{Body, Row, Rows},
    sharing,
    spec::{Dedup, Reading},
};
use crate::{
    data::{Error, Result, Span, error::Place, limits::BAD_RECORDS_SHOWN},
    sys,
};

/// Bodies that are looked through together, in bytes of memory. Long enough to hold the turns of a session that a server saw close together.
const WINDOW_BYTES: usize = 32 << 20;
/// What a body of the window takes beside its bytes, about: without it, 10 million bodies of 27 bytes took 1.1 GiB.
const ITEM_BYTES: usize = 256;
/// A shared stretch inside a body makes two spans more; below this, copying it again is cheaper than sending it by itself
/// (a blocking scattered send: 16 spans cost a 100 KB body about 30 % more than one span, 4 spans about 5 %).
const RUN_BYTES_MIN: usize = 16 << 10;
/// A shared stretch at the front of a body, or behind another one there, makes one span more, and is what sessions repeat.
const FRONT_BYTES_MIN: usize = 4 << 10;
/// Spans of a body. One send takes 64; one of them is the head.
const SPANS_MAX: usize = 48;
/// Bytes read at a time when a body is compared with what is stored.
const COMPARE_BYTES: usize = 64 << 10;
/// Bytes after which the kernel is asked to begin writing.
const WRITEBACK_BYTES: u64 = 8 << 20;

/// What a build gave, beside the files.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) report: BuildReport,
    pub(super) totals: layout::Totals,
    pub(super) skipped: u64,
    pub(super) index_bytes: u64,
    /// Checksum of the header of the index.
    pub(super) index_check: u64,
}

/// Where body bytes go.
pub(super) enum Target<'a> {
    /// Into a file of our own, written from its start.
    File(&'a File, &'a Path),
    /// They stay in the user's file.
    Reference,
}

/// See the head of this file.
pub(super) struct Writer<'a> {
    target: Target<'a>,
    /// Bytes written.
    at: u64,
    asked: u64,
    check: Check,
    rows: Rows,
    gather: Gather,
    sharing: sharing::Count,
    due_ns_max: u64,
    dedup: Dedup,
    reading: Reading,
    /// Records by digest and length of the body.
    equal: Recent<u32>,
    /// Places in the data by anchor.
    anchored: Recent<u64>,
    window: Vec<Batch>,
    window_bytes: usize,
    /// Records taken over, those in the window too.
    taken: u64,
    /// Number of the record that [`Item::after`] counts from.
    numbers_from: u64,
    bad: Vec<(Place, String)>,
    bad_count: u64,
}

/// What the builder does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    More,
    /// `--limit` is reached.
    Enough,
}

/// A part of a body of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// To be written: place in the body, length, and where it goes.
    Own { start: usize, bytes: usize, offset: u64 },
    /// Written before this window.
    Stored { offset: u64, bytes: usize },
    /// An own part of a body of this window.
    Window { at: u64, bytes: usize },
}

impl Part {
    const fn bytes(self) -> usize {
        match self {
            Self::Own { bytes, .. } | Self::Stored { bytes, .. } | Self::Window { bytes, .. } => bytes,
        }
    }
}

/// A body of the window.
#[derive(Clone, Copy)]
struct Place1 {
    batch: usize,
    item: usize,
    /// Place of its first byte when all bodies of the window stand one after the other.
    base: u64,
}

/// What a body of the window is to be.
enum Fate {
    /// Equal to an earlier body of the window.
    Twin(usize),
    /// Equal to the body of a record that is in the index.
    Known(u32),
    Parts(Vec<Part>),
}

impl<'a> Writer<'a> {
    /// `folder` takes columns that grow long.
    pub(super) fn new(target: Target<'a>, folder: Option<&Path>, dedup: Dedup, reading: Reading) -> Self {
        Self {
            target,
            at: 0,
            asked: 0,
            check: Check::default(),
            rows: Rows::new(folder),
            gather: Gather::new(),
            sharing: sharing::Count::default(),
            due_ns_max: 0,
            dedup,
            reading,
            equal: Recent::default(),
            anchored: Recent::default(),
            window: Vec::new(),
            window_bytes: 0,
            taken: 0,
            numbers_from: 0,
            bad: Vec::new(),
            bad_count: 0,
        }
    }

    /// Takes over the next batch of the input.
    pub(super) fn take(&mut self, mut batch: Batch) -> Result<Next> {
        let left = self
            .reading
            .limit
            .map_or(usize::MAX, |limit| usize::try_from(limit.saturating_sub(self.taken)).unwrap_or(usize::MAX));
        let enough = batch.items.len() >= left;
        if enough {
            batch.items.truncate(left);
            batch.bad.retain(|bad| bad.before < left);
        }
        if batch.numbers_begin {
            self.numbers_from = self.taken;
        }
        self.taken += batch.items.len() as u64;
        for after in batch.items.iter_mut().filter_map(|item| item.after.as_mut()) {
            after.iter_mut().for_each(|number| *number = number.saturating_add(self.numbers_from));
        }
        self.bad_count += batch.bad.len() as u64;
        let room = BAD_RECORDS_SHOWN.saturating_sub(self.bad.len());
        self.bad.extend(batch.bad.drain(..).take(room).map(|bad| (bad.place, bad.what)));
        if let Target::Reference = self.target {
            self.check.push(&batch.raw);
            self.at += batch.raw.len() as u64;
            batch.raw = Vec::new();
        }
        // A dataset with a bad record is refused at its end, with the count of all of them: nothing more is written.
        if self.bad_count == 0 || self.reading.skip_bad {
            self.window_bytes += batch.bytes.len() + batch.items.len() * ITEM_BYTES;
            self.window.push(batch);
            if self.window_bytes >= WINDOW_BYTES {
                self.flush()?;
            }
        }
        Ok(if enough { Next::Enough } else { Next::More })
    }

    /// Ends the input: writes the rest, then the index into `index`.
    pub(super) fn finish(
        mut self,
        key: [u8; 32],
        index: (&File, &Path),
        folder: Option<&Path>,
        first_file: &str,
    ) -> Result<Written> {
        if self.bad_count > 0 && !self.reading.skip_bad {
            return Err(Error::BadRecords { first: self.bad, count: self.bad_count });
        }
        if self.taken == 0 {
            let skipped = match self.bad_count {
                0 => String::new(),
                n => format!(" ({n} bad ones were left out, the first: {}: {})", self.bad[0].0, self.bad[0].1),
            };
            return Err(Error::dataset(Place::file(first_file), format!("no records{skipped}")));
        }
        self.flush()?;
        let failed = |e| Error::file("cannot write", index.1, e);
        let mut report = self.gather.finish();
        report.sharing = self.sharing.finish();
        let check = self.check.finish();
        let mut out =
            std::io::BufWriter::with_capacity(1 << 20, Counted { file: index.0, at: layout::HEADER_BYTES as u64 });
        let (header, totals) = self.rows.finish(&mut out, key, self.at, check, folder).map_err(|e| match e {
            Error::File { source, .. } => failed(source),
            other => other,
        })?;
        report.sessions = totals.sessions;
        report.due_ns_max = self.due_ns_max.saturating_sub(totals.due_base_ns);
        let counted = out.into_inner().map_err(|e| failed(e.into_error()))?;
        index.0.write_all_at(&header, 0).map_err(failed)?;
        let index_check = super::check::of(&header);
        Ok(Written { report, totals, skipped: self.bad_count, index_bytes: counted.at, index_check })
    }

    fn place(window: &[Batch]) -> Vec<Place1> {
        let mut base = 0;
        let mut places = Vec::with_capacity(window.iter().map(|b| b.items.len()).sum());
        for (batch, b) in window.iter().enumerate() {
            for (item, i) in b.items.iter().enumerate() {
                places.push(Place1 { batch, item, base });
                base += (i.end - i.start) as u64;
            }
        }
        places
    }

    /// Writes the window down.
    fn flush(&mut self) -> Result<()> {
        let window = std::mem::take(&mut self.window);
        self.window_bytes = 0;
        if let Target::Reference = self.target {
            return self.flush_reference(&window);
        }
        let places = Self::place(&window);
        let bodies = Bodies { window: &window, places: &places };
        let mut fates = self.find_equal(&bodies)?;
        if self.dedup == Dedup::Off {
            fates.iter_mut().enumerate().for_each(|(k, fate)| *fate = Fate::Parts(whole(bodies.body(k).len())));
        } else {
            self.find_shared(&bodies, &mut fates)?;
        }
        self.write_own(&bodies, &mut fates)?;
        self.remember(&bodies, &fates);
        self.write_rows(&bodies, &fates)
    }

    /// Finds bodies that are equal to an earlier one.
    fn find_equal(&self, bodies: &Bodies<'_>) -> Result<Vec<Fate>> {
        let mut here: ByDigest<usize> = ByDigest::default();
        let mut fates = Vec::with_capacity(bodies.places.len());
        let mut scratch = Scratch::default();
        for k in 0..bodies.places.len() {
            let (body, key) = (bodies.body(k), bodies.equal_key(k));
            let mut fate = Fate::Parts(Vec::new());
            if self.dedup != Dedup::Off && !body.is_empty() {
                if let Some(&twin) = here.get(&key) {
                    if bodies.body(twin) == body {
                        fate = Fate::Twin(twin);
                    }
                } else if let Some(record) = self.equal.get(key)
                    && self.is_stored_as(body, record, &mut scratch)?
                {
                    fate = Fate::Known(record);
                }
                if matches!(fate, Fate::Parts(_)) {
                    here.entry(key).or_insert(k);
                }
            }
            fates.push(fate);
        }
        Ok(fates)
    }

    fn is_stored_as(&self, body: &[u8], record: u32, scratch: &mut Scratch) -> Result<bool> {
        let Some(rows) = self.rows.body_of(record) else { return Ok(false) };
        let spans = self.rows.spans(rows).map_err(|e| Error::file("cannot read back", Path::new("spool"), e))?;
        if spans.iter().map(|s| s.bytes).sum::<u64>() != body.len() as u64 {
            return Ok(false);
        }
        let mut at = 0;
        for span in spans {
            let part = &body[at..at + span.bytes as usize];
            if self.same_ahead(part, span.offset, scratch)? != part.len() {
                return Ok(false);
            }
            at += part.len();
        }
        Ok(true)
    }

    /// Finds what bodies share, from the last to the first.
    fn find_shared(&self, bodies: &Bodies<'_>, fates: &mut [Fate]) -> Result<()> {
        let mut fresh: ByDigest<u64> = ByDigest::default();
        let mut scratch = Scratch::default();
        for k in (0..fates.len()).rev() {
            if !matches!(fates[k], Fate::Parts(_)) {
                continue;
            }
            let parts = self.parts_of(bodies, k, fates, &fresh, &mut scratch)?;
            // What is stored once more is found from now on, also by the digest of where an own part begins: no body knows
            // that place beforehand, but whoever shares what is before it will ask for it next.
            let (base, mut at) = (bodies.places[k].base, 0);
            for part in &parts {
                if let (Part::Own { start, bytes, .. }, true) = (*part, part.bytes() >= anchors::ANCHOR_BYTES) {
                    let inside = bodies.anchors(k).iter().filter(|a| start <= a.at && a.at < start + bytes);
                    for anchor in inside {
                        fresh.entry(anchor.digest).or_insert(base + anchor.at as u64);
                    }
                    if let (Some(digest), true) = (anchors::digest_at(bodies.body(k), start), start > 0) {
                        fresh.entry(digest).or_insert(base + start as u64);
                    }
                }
                at += part.bytes();
            }
            debug_assert_eq!(at, bodies.body(k).len());
            fates[k] = Fate::Parts(parts);
        }
        Ok(())
    }

    /// Cuts a body into what is there already and what is its own.
    fn parts_of(
        &self,
        bodies: &Bodies<'_>,
        k: usize,
        fates: &[Fate],
        fresh: &ByDigest<u64>,
        scratch: &mut Scratch,
    ) -> Result<Vec<Part>> {
        let (body, anchors) = (bodies.body(k), bodies.anchors(k));
        let mut parts = Vec::new();
        // Up to here the body is in `parts`.
        let mut done = 0;
        let mut next = 0;
        // A place to look at that is no anchor of the body: the end of the last run.
        let mut extra = None;
        loop {
            let (at, digest) = match extra.take() {
                Some(found) => found,
                None => match anchors.get(next) {
                    Some(anchor) => {
                        next += 1;
                        (anchor.at, anchor.digest)
                    }
                    None => break,
                },
            };
            if at < done || parts.len() + 2 > SPANS_MAX {
                continue;
            }
            let run = match (fresh.get(&digest), self.anchored.get(digest)) {
                (Some(&place), _) => bodies.run_in_window(k, at, done, place, fates),
                (None, Some(offset)) => self.run_in_store(body, at, done, offset, scratch)?,
                (None, None) => None,
            };
            let history = parts.iter().all(|part| !matches!(part, Part::Own { .. }));
            let Some(run) = run.filter(|run| worth(run, done, body.len(), history)) else { continue };
            if done < run.start {
                parts.push(Part::Own { start: done, bytes: run.start - done, offset: 0 });
            }
            parts.push(run.part);
            done = run.start + run.part.bytes();
            extra = anchors::digest_at(body, done).map(|digest| (done, digest));
        }
        if done < body.len() {
            parts.push(Part::Own { start: done, bytes: body.len() - done, offset: 0 });
        }
        Ok(parts)
    }

    /// Grows a match of `body[at..]` with the stored bytes at `offset` to both sides.
    fn run_in_store(
        &self,
        body: &[u8],
        at: usize,
        done: usize,
        offset: u64,
        scratch: &mut Scratch,
    ) -> Result<Option<Run>> {
        let ahead = self.same_ahead(&body[at..], offset, scratch)?;
        if ahead < anchors::ANCHOR_BYTES.min(body.len() - at) {
            return Ok(None);
        }
        let behind = self.same_behind(&body[done..at], offset, scratch)?;
        let part = Part::Stored { offset: offset - behind as u64, bytes: behind + ahead };
        Ok(Some(Run { start: at - behind, part }))
    }

    /// How many bytes are the same from the start of `body` and from `offset` of what is written.
    fn same_ahead(&self, body: &[u8], offset: u64, scratch: &mut Scratch) -> Result<usize> {
        let most = (self.at.saturating_sub(offset)).min(body.len() as u64) as usize;
        let mut same = 0;
        while same < most {
            let now = scratch.step(most - same, same == 0);
            self.read_back(offset + same as u64, scratch.part(now))?;
            let equal = equal_front(&body[same..same + now], scratch.part(now));
            same += equal;
            if equal < now {
                break;
            }
        }
        Ok(same)
    }

    /// How many bytes are the same before the end of `body` and before `offset` of what is written.
    fn same_behind(&self, body: &[u8], offset: u64, scratch: &mut Scratch) -> Result<usize> {
        let most = offset.min(body.len() as u64) as usize;
        let mut same = 0;
        while same < most {
            let now = scratch.step(most - same, same == 0);
            self.read_back(offset - (same + now) as u64, scratch.part(now))?;
            let end = body.len() - same;
            let equal = equal_back(&body[end - now..end], scratch.part(now));
            same += equal;
            if equal < now {
                break;
            }
        }
        Ok(same)
    }

    fn read_back(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self.target {
            Target::File(file, path) => {
                file.read_exact_at(out, offset).map_err(|e| Error::file("cannot read back", path, e))
            }
            Target::Reference => Ok(()),
        }
    }

    /// Gives every own part its place and writes them, in the order of the input.
    fn write_own(&mut self, bodies: &Bodies<'_>, fates: &mut [Fate]) -> Result<()> {
        // Own parts that stand one after the other in a batch are one write: usually whole batches.
        let mut pending: Vec<(usize, usize, usize)> = Vec::new();
        let mut at = self.at;
        for (k, fate) in fates.iter_mut().enumerate() {
            let Fate::Parts(parts) = fate else { continue };
            let Place1 { batch, item, .. } = bodies.places[k];
            let first = bodies.window[batch].items[item].start;
            for part in parts {
                let Part::Own { start, bytes, offset } = part else { continue };
                *offset = at;
                at += *bytes as u64;
                let (from, to) = (first + *start, first + *start + *bytes);
                match pending.last_mut() {
                    Some((b, _, end)) if *b == batch && *end == from => *end = to,
                    _ => pending.push((batch, from, to)),
                }
            }
        }
        let slices: Vec<&[u8]> = pending.iter().map(|&(b, from, to)| &bodies.window[b].bytes[from..to]).collect();
        slices.iter().for_each(|slice| self.check.push(slice));
        if let Target::File(mut file, path) = self.target {
            let mut vectors: Vec<IoSlice<'_>> = slices.iter().map(|slice| IoSlice::new(slice)).collect();
            write_all(&mut file, &mut vectors).map_err(|e| Error::file("cannot write", path, e))?;
            self.at = at;
            if self.at - self.asked >= WRITEBACK_BYTES {
                sys::fs::begin_writeback(file, self.asked, self.at - self.asked);
                self.asked = self.at;
            }
        }
        Ok(())
    }

    /// Puts what was written into the tables.
    fn remember(&mut self, bodies: &Bodies<'_>, fates: &[Fate]) {
        if self.dedup == Dedup::Off {
            return;
        }
        for (k, fate) in fates.iter().enumerate() {
            let Fate::Parts(parts) = fate else { continue };
            let body = bodies.body(k);
            let mut anchors = bodies.anchors(k).iter().peekable();
            for part in parts {
                let Part::Own { start, bytes, offset } = *part else { continue };
                while let Some(anchor) = anchors.next_if(|a| a.at < start + bytes) {
                    if start <= anchor.at {
                        self.anchored.put(anchor.digest, offset + (anchor.at - start) as u64);
                    }
                }
                if let (Some(digest), true) = (anchors::digest_at(body, start), start > 0) {
                    self.anchored.put(digest, offset);
                }
            }
        }
    }

    fn write_rows(&mut self, bodies: &Bodies<'_>, fates: &[Fate]) -> Result<()> {
        let first = self.rows.len();
        let mut spans = Vec::new();
        for (k, fate) in fates.iter().enumerate() {
            let Place1 { batch, item, .. } = bodies.places[k];
            let earlier = match *fate {
                Fate::Twin(twin) => Some(first + twin as u32),
                Fate::Known(record) => Some(record),
                Fate::Parts(_) => None,
            };
            let body = match (earlier.and_then(|record| self.rows.body_of(record)), fate) {
                (Some((row, count)), _) => {
                    self.gather.report().equal += 1;
                    Body::Same(row, count)
                }
                (None, fate) => {
                    spans.clear();
                    if let Fate::Parts(parts) = fate {
                        parts.iter().for_each(|part| push_merged(&mut spans, bodies.span(*part, fates)));
                    }
                    if self.dedup != Dedup::Off {
                        self.equal.put(bodies.equal_key(k), first + k as u32);
                    }
                    Body::Spans(&spans)
                }
            };
            let count = match body {
                Body::Same(_, count) => u64::from(count),
                Body::Spans(spans) => spans.len() as u64,
            };
            self.write_row(&bodies.window[batch], item, body, count)?;
        }
        Ok(())
    }

    fn flush_reference(&mut self, window: &[Batch]) -> Result<()> {
        for batch in window {
            for (k, item) in batch.items.iter().enumerate() {
                let span = Span { offset: item.reference, bytes: (item.end - item.start) as u64 };
                let spans = [span];
                self.write_row(batch, k, Body::Spans(if span.bytes == 0 { &[] } else { &spans }), 1)?;
            }
        }
        Ok(())
    }

    fn write_row(&mut self, batch: &Batch, k: usize, body: Body<'_>, spans: u64) -> Result<()> {
        let item: &Item = &batch.items[k];
        let bytes = (item.end - item.start) as u64;
        let model = match item.model {
            Some(MORE_MODELS) => None,
            model => model.and_then(|m| batch.models.get(m as usize)).map(|m| &**m),
        };
        self.gather.body(bytes, item.flags, item.output_cap, model);
        self.gather.input_tokens(item.input_tokens);
        let (from, to, by_id) = item.fronts;
        self.sharing.take(&batch.fronts[from as usize..to as usize], by_id);
        let after: Option<Vec<u32>> = item.after.as_ref().map(|after| {
            // A number beyond all records stays beyond them, and is refused at the end.
            after.iter().map(|&number| u32::try_from(number).unwrap_or(u32::MAX)).collect()
        });
        let row = Row {
            xxh3: item.xxh3,
            due_ns: item.due_ns,
            delay_ns: item.delay_ns,
            session: item.session.as_deref(),
            after: after.as_deref(),
            link: item.link,
            input_tokens: item.input_tokens,
            output_cap: item.output_cap,
            flags: item.flags,
            media: item.media,
            request: item.request.as_deref(),
        };
        let placed = self.rows.push(&row, body, bytes)?;
        let report = self.gather.report();
        report.models_more += u64::from(item.model == Some(MORE_MODELS));
        report.spans += spans;
        report.spans_max = report.spans_max.max(spans);
        report.dated += u64::from(item.due_ns.is_some());
        report.delayed += u64::from(item.delay_ns.is_some());
        report.background += u64::from(item.flags.background());
        for (sum, count) in [&mut report.images, &mut report.audios, &mut report.videos].into_iter().zip(item.media) {
            *sum += u64::from(count);
        }
        self.due_ns_max = self.due_ns_max.max(item.due_ns.unwrap_or(0));
        if item.due_ns.is_none() && !placed.follows {
            report.undated_first_turns += 1;
            report.first_undated.get_or_insert((batch.source as u64, item.line));
        }
        Ok(())
    }
}

/// A stretch of a body that is there already.
struct Run {
    /// Place in the body.
    start: usize,
    part: Part,
}

/// True when sharing a run costs less than storing it again. `done` bytes of the body are dealt with, all of them by sharing
/// when it is a `history` so far.
fn worth(run: &Run, done: usize, body: usize, history: bool) -> bool {
    let bytes = run.part.bytes();
    // The history of a session was stored in pieces, one a window. A piece that is refused would be stored again in each
    // later window, with all that follows it.
    let front = history && run.start == done;
    bytes >= RUN_BYTES_MIN || front && (bytes >= FRONT_BYTES_MIN || bytes == body)
}

fn whole(bytes: usize) -> Vec<Part> {
    if bytes == 0 { Vec::new() } else { vec![Part::Own { start: 0, bytes, offset: 0 }] }
}

fn push_merged(spans: &mut Vec<Span>, span: Span) {
    match spans.last_mut() {
        Some(last) if last.end() == span.offset => last.bytes += span.bytes,
        _ => spans.push(span),
    }
}

/// The bodies of a window.
struct Bodies<'a> {
    window: &'a [Batch],
    places: &'a [Place1],
}

impl Bodies<'_> {
    fn item(&self, k: usize) -> &Item {
        let Place1 { batch, item, .. } = self.places[k];
        &self.window[batch].items[item]
    }

    fn body(&self, k: usize) -> &[u8] {
        let item = self.item(k);
        &self.window[self.places[k].batch].bytes[item.start..item.end]
    }

    fn anchors(&self, k: usize) -> &[anchors::Anchor] {
        let (first, end) = self.item(k).anchors;
        &self.window[self.places[k].batch].anchors[first as usize..end as usize]
    }

    /// Bodies with another key are not equal.
    fn equal_key(&self, k: usize) -> u64 {
        let item = self.item(k);
        item.xxh3 ^ ((item.end - item.start) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The own part of a body that a place of the window lies in: the body, the part's start and length, and where it goes.
    fn own_at(&self, place: u64, fates: &[Fate]) -> Option<(usize, usize, usize, u64)> {
        // Empty bodies share their base with the next one; the last of those is the one that has bytes.
        let k = self.places.partition_point(|p| p.base <= place).checked_sub(1)?;
        let at = (place - self.places[k].base) as usize;
        let Fate::Parts(parts) = &fates[k] else { return None };
        parts.iter().find_map(|part| match *part {
            Part::Own { start, bytes, offset } if start <= at && at < start + bytes => Some((k, start, bytes, offset)),
            _ => None,
        })
    }

    /// Grows a match of `body(k)[at..]` with an own part of a later body to both sides, not below `done`.
    fn run_in_window(&self, k: usize, at: usize, done: usize, place: u64, fates: &[Fate]) -> Option<Run> {
        let (other, start, bytes, _) = self.own_at(place, fates)?;
        let there = (place - self.places[other].base) as usize;
        let (mine, theirs) = (self.body(k), &self.body(other)[start..start + bytes]);
        let ahead = equal_front(&mine[at..], &theirs[there - start..]);
        if ahead < anchors::ANCHOR_BYTES.min(mine.len() - at) {
            return None;
        }
        let behind = equal_back(&mine[done..at], &theirs[..there - start]);
        Some(Run { start: at - behind, part: Part::Window { at: place - behind as u64, bytes: behind + ahead } })
    }

    fn span(&self, part: Part, fates: &[Fate]) -> Span {
        match part {
            Part::Own { bytes, offset, .. } | Part::Stored { offset, bytes } => Span { offset, bytes: bytes as u64 },
            Part::Window { at, bytes } => {
                let own = self.own_at(at, fates);
                debug_assert!(
                    own.is_some_and(
                        |(k, start, len, _)| at + bytes as u64 <= self.places[k].base + (start + len) as u64
                    )
                );
                let (k, start, _, offset) = own.unwrap_or_default();
                Span { offset: offset + (at - self.places[k].base) - start as u64, bytes: bytes as u64 }
            }
        }
    }
}

/// Room for what is read back.
#[derive(Default)]
struct Scratch(Vec<u8>);

impl Scratch {
    /// Bytes of the next step: few at first, since most comparisons end soon.
    fn step(&mut self, most: usize, first: bool) -> usize {
        if self.0.is_empty() {
            self.0 = vec![0; COMPARE_BYTES];
        }
        most.min(if first { COMPARE_BYTES / 16 } else { COMPARE_BYTES })
    }

    fn part(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.0[..bytes]
    }
}

fn equal_front(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 128;
    let steps = a.chunks_exact(STEP).zip(b.chunks_exact(STEP)).take_while(|(a, b)| a == b).count() * STEP;
    steps + a[steps..].iter().zip(&b[steps..]).take_while(|(a, b)| a == b).count()
}

fn equal_back(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 128;
    let steps = a.rchunks_exact(STEP).zip(b.rchunks_exact(STEP)).take_while(|(a, b)| a == b).count() * STEP;
    let (a, b) = (&a[..a.len() - steps], &b[..b.len() - steps]);
    steps + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

/// Writes all slices, in order.
fn write_all(file: &mut &File, mut slices: &mut [IoSlice<'_>]) -> std::io::Result<()> {
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut slices, n),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes at a place that moves on, and counts.
struct Counted<'a> {
    file: &'a File,
    at: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.file.write_at(bytes, self.at)?;
        self.at += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
