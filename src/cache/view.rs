//! An entry as a run sees it: the data map, and the index used in place. Opening costs the same for any number of records;
//! nothing is parsed.
//!
//! Promises: no number read from an index is trusted: whatever its bytes are, every answer here is inside the maps or is none,
//! and nothing panics. What the numbers say is checked by `entry`, before a run begins.

use std::{
    borrow::Cow,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};
use zerocopy::FromBytes;

use super::{
    check,
    flags::Flags,
    layout::{BIT_LISTS, BIT_NAMES, COLUMNS, HEADER_BYTES, Header, Id, NONE_32, NONE_64, Place, Totals},
    manifest::Manifest,
    rows,
    spec::{Digest, Key},
    spool::Shape,
};
use crate::{
    data::{Error, RecordId, Result, Span, record::RequestLine},
    formats,
    sys::mem::{Changed, Map},
};

/// See the head of this file. Shared behind an [`Arc`] by all workers.
#[derive(Debug)]
pub struct View {
    index: Map,
    data: Arc<Map>,
    key: Key,
    totals: Totals,
    columns: [Place; COLUMNS],
    manifest: Option<Manifest>,
    /// The entry's folder, whose lock says that it is in use.
    folder: Option<std::fs::File>,
    /// Every byte of the data was read and is what was built.
    data_was_checked: bool,
}

impl View {
    /// Puts an index over its data. The error says in a few words what is wrong with the index: everything is checked here
    /// that can be in a time that does not grow with the number of records.
    pub fn new(index: Map, data: Arc<Map>, manifest: Option<Manifest>) -> Result<Self, &'static str> {
        let bytes = index.as_bytes();
        let header = Header::read(bytes)?;
        let totals = header.totals();
        if header.file_bytes() != Some(index.len()) {
            return Err("index.dat has not the length that its header says");
        }
        if totals.data_bytes != data.len() {
            return Err("the data has not the length that index.dat says");
        }
        if totals.records == 0 || totals.records > crate::data::limits::RECORDS_MAX {
            return Err("index.dat has an impossible number of records");
        }
        let mut columns = [Place { shape: Shape::Identity, rows: 0, width: 0, at: 0, check: 0 }; COLUMNS];
        for (id, place) in ALL.into_iter().zip(&mut columns) {
            *place = header.place(id, index.len())?;
            if place.width != width(id) || !rows_fit(id, place.rows, &totals) {
                return Err("a column of index.dat has not the rows that its header says");
            }
            if must_be_stored(id) && place.shape != Shape::Stored && place.rows > 0 {
                return Err("a column of index.dat has a shape that it cannot have");
            }
        }
        Ok(Self {
            key: Digest(header.key),
            index,
            data,
            totals,
            columns,
            manifest,
            folder: None,
            data_was_checked: false,
        })
    }

    /// A dataset of one body, for `-b` and `-B`. It has no entry and no key.
    pub fn inline(body: &[u8]) -> Result<Self> {
        let facts = formats::facts::of(body);
        let mut all = rows::Rows::new(None);
        let row = rows::Row {
            xxh3: xxh3_64(body),
            output_cap: facts.output_cap,
            flags: Flags::of(&facts, false),
            ..rows::Row::default()
        };
        let bytes = body.len() as u64;
        let spans = [Span { offset: 0, bytes }];
        all.push(&row, rows::Body::Spans(if bytes == 0 { &[] } else { &spans }), bytes)?;
        let mut columns = Vec::new();
        let (mut index, _) = all.finish(&mut columns, [0; 32], bytes, check::of(body), None)?;
        index.extend(columns);
        let memory = |what: &[u8]| Map::anonymous(what).map_err(|e| out_of_memory(&e));
        Self::new(memory(&index)?, Arc::new(memory(body)?), None).map_err(Error::usage)
    }

    /// Keeps a file open for as long as the view lives.
    pub(super) fn keep_open(&mut self, folder: std::fs::File) {
        self.folder = Some(folder);
    }

    /// Says that every byte of the data was read.
    pub(super) fn note_data_was_checked(&mut self) {
        self.data_was_checked = true;
    }

    /// True when opening it took a look at every byte.
    pub(super) fn data_was_checked(&self) -> bool {
        self.data_was_checked
    }

    /// The numbers of the header.
    pub(super) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Number of records, at least 1.
    pub fn records(&self) -> u32 {
        self.totals.records as u32
    }

    /// Every record, in the order of the input.
    pub fn ids(&self) -> impl Iterator<Item = RecordId> + use<> {
        (0..self.records()).map(RecordId)
    }

    /// Spans of all records together.
    pub fn spans_total(&self) -> u64 {
        self.totals.spans
    }

    /// The body bytes: what spans are cut from.
    pub fn map(&self) -> &Arc<Map> {
        &self.data
    }

    /// Name of the entry; zeros for an inline body.
    pub fn key(&self) -> Key {
        self.key
    }

    /// What made the entry; none for an inline body.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// Body bytes, summed over records.
    pub fn body_bytes_total(&self) -> u64 {
        self.totals.body_bytes
    }

    /// Bytes that are stored for them.
    pub fn stored_bytes(&self) -> u64 {
        self.totals.data_bytes
    }

    /// Number of sessions.
    pub fn sessions(&self) -> u32 {
        self.totals.sessions as u32
    }

    /// Parts of the body, in order; none of them empty, and none at all for an empty body. Empty for a record that is not there.
    pub fn spans(&self, record: RecordId) -> &[Span] {
        let first = self.number(Id::FirstSpan, record).unwrap_or(0);
        let count = self.number(Id::SpanCount, record).unwrap_or(0);
        let bytes = self.rows_of(Id::Spans, first..first.saturating_add(count));
        <[Span]>::ref_from_bytes(bytes).unwrap_or(&[])
    }

    /// Length of the body.
    pub fn body_bytes(&self, record: RecordId) -> u64 {
        self.spans(record).iter().fold(0, |sum, span| sum.saturating_add(span.bytes))
    }

    /// xxh3 of the body.
    pub fn body_xxh3(&self, record: RecordId) -> u64 {
        self.number(Id::BodyXxh3, record).unwrap_or(0)
    }

    /// Scheduled time in nanoseconds; the smallest of the dataset is 0.
    pub fn due_ns(&self, record: RecordId) -> Option<u64> {
        self.some(Id::Due, record, NONE_64).map(|due| due.saturating_sub(self.totals.due_base_ns))
    }

    /// The time that is 0 in [`View::due_ns`], on the format's own clock.
    pub fn due_base_ns(&self) -> u64 {
        self.totals.due_base_ns
    }

    /// Wait after the predecessors, nanoseconds.
    pub fn delay_ns(&self, record: RecordId) -> Option<u64> {
        self.some(Id::Delay, record, NONE_64)
    }

    /// Session of a record; sessions count from 0 in the order of their first record.
    pub fn session(&self, record: RecordId) -> u32 {
        self.number(Id::Session, record).unwrap_or(0) as u32
    }

    /// Turn within the session, from 0.
    pub fn turn(&self, record: RecordId) -> u32 {
        self.number(Id::Turn, record).unwrap_or(0) as u32
    }

    /// Records that must be answered before this one.
    pub fn predecessors(&self, record: RecordId) -> &[u32] {
        self.neighbours(record, Id::Previous, Id::Predecessors)
    }

    /// Records that wait for this one.
    pub fn successors(&self, record: RecordId) -> &[u32] {
        self.neighbours(record, Id::Next, Id::Successors)
    }

    /// True when no record waits for another.
    pub fn is_flat(&self) -> bool {
        self.totals.bits & BIT_LISTS == 0 && self.columns[Id::Previous as usize].shape == Shape::Constant(NONE_32)
    }

    /// True when some record has a time of its own.
    pub fn has_due(&self) -> bool {
        self.columns[Id::Due as usize].shape != Shape::Constant(NONE_64)
    }

    /// Prompt tokens, where they are known.
    pub fn input_tokens(&self, record: RecordId) -> Option<u32> {
        self.some(Id::InputTokens, record, NONE_32).map(|n| n as u32)
    }

    /// Cap of the output in tokens: of the trace, or of the body.
    pub fn output_cap(&self, record: RecordId) -> Option<u32> {
        self.some(Id::OutputCap, record, NONE_32).map(|n| n as u32)
    }

    /// What was seen in the body.
    pub fn flags(&self, record: RecordId) -> Flags {
        Flags(self.number(Id::Flags, record).unwrap_or(0) as u32)
    }

    /// Row of [`View::template_at`] with the record's own method, path and headers.
    pub fn template(&self, record: RecordId) -> Option<u32> {
        self.some(Id::Template, record, NONE_32).map(|n| n as u32)
    }

    /// Number of distinct templates.
    pub fn templates(&self) -> u32 {
        self.totals.templates as u32
    }

    /// Method, path and headers of a template; none when there is no such row.
    pub fn template_at(&self, template: u32) -> Option<RequestLine<'_>> {
        rows::decode_template(self.pooled(Id::TemplateAt, Id::Templates, template)?)
    }

    /// Where in the body a cache-bust marker goes.
    pub fn marker(&self, record: RecordId) -> Option<u64> {
        self.some(Id::Marker, record, NONE_64)
    }

    /// Images, audios and videos in the body.
    pub fn media(&self, record: RecordId) -> [u32; 3] {
        super::layout::media_counts(self.number(Id::Media, record).unwrap_or(0))
    }

    /// Name of a session: the input's, or its number where the input gives none.
    pub fn session_name(&self, session: u32) -> Cow<'_, str> {
        let name = match self.totals.bits & BIT_NAMES {
            0 => None,
            _ => self.pooled(Id::SessionNameAt, Id::SessionNames, session),
        };
        match name.map(String::from_utf8_lossy) {
            Some(name) if !name.is_empty() => name,
            _ => Cow::Owned(session.to_string()),
        }
    }

    /// Appends the body to `out`. An error when the data changed under the map.
    pub fn body_to(&self, record: RecordId, out: &mut Vec<u8>) -> Result<(), Changed> {
        self.each_span(record, |bytes| out.extend_from_slice(bytes))
    }

    /// True when the body has the digest that the index says.
    pub fn body_is_whole(&self, record: RecordId) -> bool {
        let spans = self.spans(record);
        let found = match spans {
            [] => Ok(xxh3_64(b"")),
            [span] => self.data.read(span.offset..span.end(), xxh3_64),
            _ => {
                let mut sum = Xxh3::new();
                self.each_span(record, |bytes| sum.update(bytes)).map(|()| sum.digest())
            }
        };
        record.0 < self.records() && found == Ok(self.body_xxh3(record))
    }

    /// True once a read of either map met a file that was cut short.
    pub fn damaged(&self) -> bool {
        self.data.damaged() || self.index.damaged()
    }

    /// True when a file of the entry was changed since it was opened. Asks the file system: not for the loop.
    pub fn changed(&self) -> bool {
        self.data.changed() || self.index.changed()
    }

    /// True when anything was done to a file of the entry since it was opened, a removal too. Asks the file system.
    pub fn touched(&self) -> bool {
        self.data.touched() || self.index.touched()
    }

    /// The first record whose body is not what was stored. Reads all of the data.
    pub fn first_damaged(&self) -> Option<RecordId> {
        self.ids().find(|&record| !self.body_is_whole(record))
    }

    fn each_span(&self, record: RecordId, mut take: impl FnMut(&[u8])) -> Result<(), Changed> {
        self.spans(record).iter().try_for_each(|span| self.data.read(span.offset..span.end(), &mut take))
    }

    /// A number of a record; none when the record is not there.
    fn number(&self, id: Id, record: RecordId) -> Option<u64> {
        self.number_at(id, u64::from(record.0))
    }

    #[inline]
    fn number_at(&self, id: Id, row: u64) -> Option<u64> {
        let place = &self.columns[id as usize];
        if row >= place.rows {
            return None;
        }
        match place.shape {
            Shape::Constant(value) => Some(value),
            Shape::Identity => Some(row),
            Shape::Stored => {
                let at = (place.at + row * u64::from(place.width)) as usize;
                let bytes = self.index.as_bytes();
                match place.width {
                    4 => bytes.get(at..)?.first_chunk().map(|b| u64::from(u32::from_le_bytes(*b))),
                    _ => bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b)),
                }
            }
        }
    }

    fn some(&self, id: Id, record: RecordId, none: u64) -> Option<u64> {
        self.number(id, record).filter(|&n| n != none)
    }

    /// Bytes of some rows of a stored column; empty when they are outside.
    fn rows_of(&self, id: Id, rows: Range<u64>) -> &[u8] {
        let place = &self.columns[id as usize];
        if place.shape != Shape::Stored || rows.start > rows.end || place.rows < rows.end {
            return &[];
        }
        let width = u64::from(place.width);
        let (start, end) = (place.at + rows.start * width, place.at + rows.end * width);
        self.index.as_bytes().get(start as usize..end as usize).unwrap_or(&[])
    }

    fn neighbours(&self, record: RecordId, first: Id, list: Id) -> &[u32] {
        let row = u64::from(record.0);
        let bytes = if self.totals.bits & BIT_LISTS == 0 {
            match self.number_at(first, row) {
                None | Some(NONE_32) => return &[],
                Some(_) => self.rows_of(first, row..row + 1),
            }
        } else {
            match (self.number_at(first, row), self.number_at(first, row + 1)) {
                (Some(start), Some(end)) => self.rows_of(list, start..end),
                _ => return &[],
            }
        };
        <[u32]>::ref_from_bytes(bytes).unwrap_or(&[])
    }

    fn pooled(&self, ends: Id, bytes: Id, row: u32) -> Option<&[u8]> {
        let start = self.number_at(ends, u64::from(row))?;
        let end = self.number_at(ends, u64::from(row) + 1)?;
        (start <= end).then(|| self.rows_of(bytes, start..end))
    }

    /// Checks what [`View::new`] leaves out because it grows with the number of records: the checksum of every column, and
    /// that every number points to something. The error says what is wrong.
    pub(super) fn check_columns(&self, threads: usize) -> Result<(), &'static str> {
        for place in self.columns.iter().filter(|p| p.shape == Shape::Stored) {
            let sum = check::of_map(&self.index, place.at..place.at + place.bytes(), threads);
            if sum != Ok(place.check) {
                return Err("a column of index.dat is damaged");
            }
        }
        let spans = self.rows_of(Id::Spans, 0..self.totals.spans);
        let spans = <[Span]>::ref_from_bytes(spans).map_err(|_| "the spans of index.dat are not aligned")?;
        let inside = |span: &Span| span.end() <= self.totals.data_bytes;
        if !in_parallel(spans, threads, inside) {
            return Err("a span of index.dat is outside the data");
        }
        let records = self.totals.records;
        let in_order = |id, limit| match self.columns[id as usize].shape {
            Shape::Constant(value) => value <= limit,
            Shape::Identity => records <= limit.saturating_add(1),
            Shape::Stored => true,
        };
        if !in_order(Id::FirstSpan, self.totals.spans) || !in_order(Id::SpanCount, self.totals.spans) {
            return Err("a record of index.dat has spans that are not there");
        }
        Ok(())
    }

    /// Checks every body against its digest, by so many threads, until `stop`; gives the first records found damaged.
    pub(super) fn check_bodies(&self, threads: usize, stop: &AtomicBool, found_max: usize) -> Vec<RecordId> {
        const BATCH: u32 = 64;
        let next = AtomicUsize::new(0);
        let bad = std::sync::Mutex::new(Vec::new());
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let start = next.fetch_add(BATCH as usize, Ordering::Relaxed);
                if start >= self.records() as usize {
                    return;
                }
                let end = (start as u32).saturating_add(BATCH).min(self.records());
                let found = (start as u32..end).map(RecordId).filter(|&r| !self.body_is_whole(r));
                let found: Vec<_> = found.collect();
                if let (Ok(mut bad), false) = (bad.lock(), found.is_empty()) {
                    bad.extend(found);
                    if bad.len() >= found_max {
                        return;
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        let mut bad = bad.into_inner().unwrap_or_default();
        bad.sort_unstable();
        bad.truncate(found_max);
        bad
    }

    /// Checksum of the data as a whole, as the header has it.
    pub(super) fn data_is_whole(&self, threads: usize) -> bool {
        check::of_map(&self.data, 0..self.data.len(), threads) == Ok(self.totals.data_check)
    }

    /// Bytes of the header.
    pub(super) fn header_bytes(&self) -> &[u8] {
        &self.index.as_bytes()[..HEADER_BYTES]
    }
}

fn in_parallel(spans: &[Span], threads: usize, holds: impl Fn(&Span) -> bool + Sync) -> bool {
    let part = spans.len().div_ceil(threads.max(1)).max(1 << 16);
    let all = |part: &[Span]| part.iter().fold(true, |ok, span| ok & holds(span));
    std::thread::scope(|scope| {
        let mut parts = spans.chunks(part);
        let first = parts.next().unwrap_or(&[]);
        let others: Vec<_> = parts.map(|part| scope.spawn(move || all(part))).collect();
        let mine = all(first);
        others.into_iter().fold(mine, |ok, other| ok & other.join().unwrap_or(false))
    })
}

fn out_of_memory(e: &std::io::Error) -> Error {
    Error::Environment { call: "mmap", what: e.to_string(), cure: "free some memory".into() }
}

const ALL: [Id; COLUMNS] = [
    Id::Spans,
    Id::FirstSpan,
    Id::SpanCount,
    Id::BodyXxh3,
    Id::Due,
    Id::Delay,
    Id::Session,
    Id::Turn,
    Id::Previous,
    Id::Next,
    Id::Predecessors,
    Id::Successors,
    Id::InputTokens,
    Id::OutputCap,
    Id::Flags,
    Id::Template,
    Id::Marker,
    Id::Media,
    Id::SessionNameAt,
    Id::SessionNames,
    Id::TemplateAt,
    Id::Templates,
];

fn width(id: Id) -> u32 {
    match id {
        Id::Spans => size_of::<Span>() as u32,
        Id::BodyXxh3 | Id::Due | Id::Delay | Id::Marker | Id::Media | Id::SessionNameAt | Id::TemplateAt => 8,
        Id::SessionNames | Id::Templates => 1,
        _ => 4,
    }
}

fn rows_fit(id: Id, rows: u64, totals: &Totals) -> bool {
    let lists = totals.bits & BIT_LISTS != 0;
    match id {
        Id::Spans => rows == totals.spans,
        Id::Previous | Id::Next => rows == totals.records + u64::from(lists),
        Id::Predecessors | Id::Successors => lists || rows == 0,
        Id::SessionNameAt => rows == if totals.bits & BIT_NAMES == 0 { 0 } else { totals.sessions + 1 },
        Id::TemplateAt => rows == if totals.templates == 0 { 0 } else { totals.templates + 1 },
        Id::SessionNames | Id::Templates => true,
        _ => rows == totals.records,
    }
}

const fn must_be_stored(id: Id) -> bool {
    matches!(id, Id::Spans | Id::Predecessors | Id::Successors | Id::SessionNames | Id::Templates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::rows::{Body, Row, Rows};

    fn view_of(rows: Rows, data: &[u8]) -> View {
        let mut columns = Vec::new();
        let (mut index, _) = rows.finish(&mut columns, [3; 32], data.len() as u64, check::of(data), None).unwrap();
        index.extend(columns);
        let view = View::new(Map::anonymous(&index).unwrap(), Arc::new(Map::anonymous(data).unwrap()), None).unwrap();
        view.check_columns(2).unwrap();
        view
    }

    #[test]
    fn an_inline_body_is_a_dataset_of_one() {
        let view = View::inline(b"{\"model\":\"m\",\"stream\":true,\"max_tokens\":7}").unwrap();
        let mut body = Vec::new();
        view.body_to(RecordId(0), &mut body).unwrap();
        assert_eq!((view.records(), body.len() as u64), (1, view.body_bytes(RecordId(0))));
        assert!(view.body_is_whole(RecordId(0)) && view.flags(RecordId(0)).stream());
        assert_eq!(view.output_cap(RecordId(0)), Some(7));
        assert_eq!(
            (view.due_ns(RecordId(0)), view.template(RecordId(0)), view.marker(RecordId(0))),
            (None, None, None)
        );
        assert!(view.spans(RecordId(1)).is_empty() && view.is_flat());
        let empty = View::inline(b"").unwrap();
        assert!(empty.spans(RecordId(0)).is_empty() && empty.body_is_whole(RecordId(0)));
        assert!(!empty.body_is_whole(RecordId(1)));
    }

    #[test]
    fn sessions_chains_times_and_templates_come_back() {
        let mut rows = Rows::new(None);
        let request = RequestLine {
            method: Some("PUT".into()),
            path: None,
            headers: vec![("X-A".into(), "1".into()), ("X-B".into(), "".into())],
        };
        let span = |k: u64| [Span { offset: k, bytes: 2 }];
        for (k, session) in [Some("a"), Some("b"), Some("a"), None, Some("a")].into_iter().enumerate() {
            let row = Row {
                session,
                due_ns: (k != 1).then_some(1000 + k as u64),
                delay_ns: (k == 2).then_some(5),
                request: (k >= 3).then_some(&request),
                ..Row::default()
            };
            let placed = rows.push(&row, Body::Spans(&span(k as u64)), 2).unwrap();
            assert_eq!(placed.follows, k == 2 || k == 4);
        }
        let view = view_of(rows, b"abcdefgh");
        let of = |r: u32| (view.session(RecordId(r)), view.turn(RecordId(r)));
        assert_eq!([of(0), of(1), of(2), of(3), of(4)], [(0, 0), (1, 0), (0, 1), (2, 0), (0, 2)]);
        assert_eq!(view.predecessors(RecordId(2)), [0]);
        assert_eq!(view.successors(RecordId(2)), [4]);
        assert!(view.predecessors(RecordId(3)).is_empty() && view.successors(RecordId(4)).is_empty());
        assert_eq!((view.due_ns(RecordId(4)), view.due_ns(RecordId(1)), view.due_base_ns()), (Some(4), None, 1000));
        assert_eq!((view.delay_ns(RecordId(2)), view.delay_ns(RecordId(3))), (Some(5), None));
        assert_eq!((view.session_name(1), view.session_name(2)), ("b".into(), "3".into()));
        assert_eq!((view.templates(), view.template(RecordId(4)), view.template(RecordId(0))), (1, Some(0), None));
        assert_eq!(view.template_at(0), Some(request));
        assert_eq!(view.template_at(1), None);
    }

    #[test]
    fn records_that_name_their_predecessors_are_lists_both_ways() {
        let mut rows = Rows::new(None);
        let after: [Option<&[u32]>; 5] = [None, None, Some(&[0]), Some(&[]), Some(&[2, 0, 2])];
        for (k, after) in after.into_iter().enumerate() {
            let session = if k < 2 { "s" } else { "t" };
            let row = Row { session: Some(session), after, ..Row::default() };
            rows.push(&row, Body::Spans(&[Span { offset: 0, bytes: 1 }]), 1).unwrap();
        }
        let view = view_of(rows, b"x");
        let before: Vec<_> = view.ids().map(|r| view.predecessors(r).to_vec()).collect();
        assert_eq!(before, [vec![], vec![0], vec![0], vec![], vec![0, 2]]);
        let behind: Vec<_> = view.ids().map(|r| view.successors(r).to_vec()).collect();
        assert_eq!(behind, [vec![1, 2, 4], vec![], vec![4], vec![], vec![]]);
        assert!(!view.is_flat());
    }

    #[test]
    fn a_predecessor_that_is_not_there_is_refused() {
        let mut rows = Rows::new(None);
        let row = Row { after: Some(&[7]), ..Row::default() };
        rows.push(&row, Body::Spans(&[Span { offset: 0, bytes: 1 }]), 1).unwrap();
        assert!(rows.finish(&mut Vec::new(), [0; 32], 1, 0, None).is_err());
    }

    #[test]
    fn any_flipped_byte_of_an_index_is_seen() {
        let mut rows = Rows::new(None);
        for k in 0..50u64 {
            let row = Row { session: Some(["a", "b", "c"][k as usize % 3]), xxh3: k * 77, ..Row::default() };
            rows.push(&row, Body::Spans(&[Span { offset: k, bytes: 3 }]), 3).unwrap();
        }
        let data = [9; 60];
        let mut columns = Vec::new();
        let (mut index, _) = rows.finish(&mut columns, [3; 32], 60, check::of(&data), None).unwrap();
        index.extend(columns);
        let padding = |k: usize, index: &[u8]| {
            // Bytes between two columns belong to nobody.
            let header = Header::read(index).unwrap();
            k >= HEADER_BYTES
                && ALL.iter().all(|&id| {
                    let place = header.place(id, index.len() as u64).unwrap();
                    !(place.at..place.at + place.bytes()).contains(&(k as u64))
                })
        };
        let data = Arc::new(Map::anonymous(&data).unwrap());
        for k in 0..index.len() {
            if padding(k, &index) {
                continue;
            }
            let mut bad = index.clone();
            bad[k] ^= 0x10;
            let opened = View::new(Map::anonymous(&bad).unwrap(), data.clone(), None);
            let found = opened.is_err_and(|why| !why.is_empty())
                || View::new(Map::anonymous(&bad).unwrap(), data.clone(), None)
                    .is_ok_and(|v| v.check_columns(1).is_err());
            assert!(found, "byte {k}");
        }
        for len in 0..index.len() {
            assert!(View::new(Map::anonymous(&index[..len]).unwrap(), data.clone(), None).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn nothing_in_an_unchecked_index_can_lead_outside() {
        let mut rows = Rows::new(None);
        for k in 0..8u64 {
            let row = Row { session: Some("s"), due_ns: Some(k), ..Row::default() };
            rows.push(&row, Body::Spans(&[Span { offset: k, bytes: 1 }, Span { offset: 0, bytes: k }]), k + 1).unwrap();
        }
        let data = [9; 16];
        let mut columns = Vec::new();
        let (mut index, _) = rows.finish(&mut columns, [3; 32], 16, check::of(&data), None).unwrap();
        index.extend(columns);
        let data = Arc::new(Map::anonymous(&data).unwrap());
        for seed in 0..200u64 {
            let mut bad = index.clone();
            bad[HEADER_BYTES..].iter_mut().zip(0u64..).for_each(|(byte, k)| {
                *byte ^= if xxh3_64(&(seed * 100_003 + k).to_le_bytes()).is_multiple_of(5) { 0xff } else { 0 };
            });
            let Ok(view) = View::new(Map::anonymous(&bad).unwrap(), data.clone(), None) else { continue };
            for r in (0..9).map(RecordId) {
                let mut out = Vec::new();
                let _ = (view.body_to(r, &mut out), view.body_bytes(r), view.predecessors(r), view.successors(r));
                let _ = (view.session_name(view.session(r)), view.template_at(r.0), view.due_ns(r));
            }
        }
    }
}
