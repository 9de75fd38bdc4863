//! The index while it is being built: one row a record, in order, written out at the end.

use std::{
    collections::HashMap,
    io::{self, Write},
    path::Path,
};

use xxhash_rust::xxh3::xxh3_128;
use zerocopy::IntoBytes;

use super::{
    flags::Flags,
    layout::{self, COLUMNS, NONE_32, NONE_64, Source, Totals},
    spool::{Column, Spool, Width},
};
use crate::data::{
    Error, Result, Span,
    limits::RECORDS_MAX,
    record::{Link, RequestLine},
};

/// One record, as the index keeps it.
#[derive(Clone, Debug, Default)]
pub struct Row<'a> {
    /// Digest of the body.
    pub xxh3: u64,
    /// Time on the format's clock.
    pub due_ns: Option<u64>,
    /// Wait after the predecessors.
    pub delay_ns: Option<u64>,
    /// Name of its session; none is a session of its own, by the record's number.
    pub session: Option<&'a str>,
    /// Records that come first; none: the one before in its session.
    pub after: Option<&'a [u32]>,
    /// Its place in a tree of records, which then tells its session.
    pub link: Option<Link>,
    /// Prompt tokens.
    pub input_tokens: Option<u32>,
    /// Cap of the output, tokens.
    pub output_cap: Option<u32>,
    /// What was seen in the body.
    pub flags: Flags,
    /// Images, audios and videos in the body.
    pub media: [u32; 3],
    /// Its own method, path and headers.
    pub request: Option<&'a RequestLine<'a>>,
}

/// Spans of a new row.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// These, newly written down.
    Spans(&'a [Span]),
    /// Those of an earlier record, as `(first, count)`.
    Same(u32, u32),
}

/// What is known of a session by its name.
#[derive(Clone, Copy, Debug)]
struct Session {
    id: u32,
    turns: u32,
    last: u32,
}

/// What a row became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Session.
    pub session: u32,
    /// Turn within it, from 0.
    pub turn: u32,
    /// True when something comes before it.
    pub follows: bool,
}

/// See the head of this file.
pub struct Rows {
    spans: Spool,
    span_rows: u64,
    first_span: Column,
    span_count: Column,
    xxh3: Column,
    due: Column,
    delay: Column,
    session: Column,
    turn: Column,
    previous: Column,
    next: Column,
    input_tokens: Column,
    output_cap: Column,
    flags: Column,
    template: Column,
    marker: Column,
    media: Column,
    sessions: Pool,
    templates: Pool,
    by_name: HashMap<u128, Session>,
    by_template: HashMap<u128, u32>,
    named: bool,
    /// Predecessors of each record, once a record named its own: `(record, predecessor)` in order of the record.
    edges: Option<Vec<(u32, u32)>>,
    /// Links with their record, in order, when the format tells sessions by them.
    links: Vec<(u32, Link)>,
    body_bytes: u64,
    due_base_ns: u64,
}

/// Strings one after the other, with the end of each.
struct Pool {
    ends: Column,
    bytes: Spool,
    count: u64,
}

impl Pool {
    fn new(folder: Option<&Path>) -> Self {
        Self { ends: Column::new(Width::Eight, folder), bytes: Spool::new(folder), count: 0 }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<u32> {
        if self.count == 0 {
            self.ends.push(0)?;
        }
        let id = self.count as u32;
        self.count += 1;
        self.bytes.push(bytes)?;
        self.ends.push(self.bytes.len())?;
        Ok(id)
    }
}

impl Rows {
    /// No rows yet. Columns that grow long go on in unlinked files in `folder`; without one they stay in memory.
    pub fn new(folder: Option<&Path>) -> Self {
        let four = || Column::new(Width::Four, folder);
        let eight = || Column::new(Width::Eight, folder);
        Self {
            spans: Spool::new(folder),
            span_rows: 0,
            first_span: four(),
            span_count: four(),
            xxh3: eight(),
            due: eight(),
            delay: eight(),
            session: four(),
            turn: four(),
            previous: four(),
            next: four(),
            input_tokens: four(),
            output_cap: four(),
            flags: four(),
            template: four(),
            marker: eight(),
            media: eight(),
            sessions: Pool::new(folder),
            templates: Pool::new(folder),
            by_name: HashMap::new(),
            by_template: HashMap::new(),
            named: false,
            edges: None,
            links: Vec::new(),
            body_bytes: 0,
            due_base_ns: u64::MAX,
        }
    }

    /// Records so far.
    pub fn len(&self) -> u32 {
        self.flags.rows() as u32
    }

    /// True before the first record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Body bytes so far, summed over records.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Where the spans of a record are written down, as `(first, count)`.
    pub fn body_of(&self, record: u32) -> Option<(u32, u32)> {
        Some((self.first_span.get(u64::from(record))? as u32, self.span_count.get(u64::from(record))? as u32))
    }

    /// Spans that were written down.
    pub fn spans(&self, (first, count): (u32, u32)) -> io::Result<Vec<Span>> {
        let mut spans = vec![Span::default(); count as usize];
        self.spans.read_at(u64::from(first) * size_of::<Span>() as u64, spans.as_mut_bytes())?;
        Ok(spans)
    }

    /// Appends a record.
    pub fn push(&mut self, row: &Row<'_>, body: Body<'_>, body_bytes: u64) -> Result<Placed> {
        if u64::from(self.len()) >= RECORDS_MAX || self.span_rows >= u64::from(u32::MAX) - (1 << 20) {
            return Err(Error::usage(format!("a dataset has at most {RECORDS_MAX} records; take fewer with --limit")));
        }
        let (first, count) = match body {
            Body::Same(first, count) => (first, count),
            Body::Spans(spans) => {
                let first = self.span_rows as u32;
                self.spans.push(spans.as_bytes())?;
                self.span_rows += spans.len() as u64;
                (first, spans.len() as u32)
            }
        };
        self.first_span.push(u64::from(first))?;
        self.span_count.push(u64::from(count))?;
        self.body_bytes += body_bytes;
        self.xxh3.push(row.xxh3)?;
        self.due.push(row.due_ns.unwrap_or(NONE_64))?;
        self.due_base_ns = self.due_base_ns.min(row.due_ns.unwrap_or(NONE_64));
        self.delay.push(row.delay_ns.unwrap_or(NONE_64))?;
        self.input_tokens.push(row.input_tokens.map_or(NONE_32, u64::from))?;
        self.output_cap.push(row.output_cap.map_or(NONE_32, u64::from))?;
        let template = row.request.map_or(Ok(NONE_32), |request| self.template(request).map(u64::from))?;
        self.template.push(template)?;
        self.marker.push(NONE_64)?;
        self.media.push(layout::media_of(row.media))?;
        let placed = self.place(row)?;
        // Last, since `len` counts this column.
        self.flags.push(u64::from(row.flags.0))?;
        Ok(placed)
    }

    /// Puts the record into its session and behind its predecessors.
    fn place(&mut self, row: &Row<'_>) -> Result<Placed> {
        let record = self.len();
        if let Some(link) = row.link {
            self.links.push((record, link));
        }
        let (session, turn, last) = match row.session {
            Some(name) => self.named_session(name, record)?,
            // The name is the record's number, which is the session's own until the first session has a name.
            None if self.named => (self.sessions.push(record.to_string().as_bytes())?, 0, None),
            None => (self.sessions.push(b"")?, 0, None),
        };
        self.session.push(u64::from(session))?;
        self.turn.push(u64::from(turn))?;
        if row.after.is_some() && self.edges.is_none() {
            // Until now every record had one predecessor or none: these become lists.
            let before = (0..record).filter_map(|r| match self.previous.get(u64::from(r)) {
                Some(NONE_32) | None => None,
                Some(p) => Some((r, p as u32)),
            });
            self.edges = Some(before.collect());
        }
        let follows = match (row.after, &mut self.edges) {
            (Some(after), Some(edges)) => {
                edges.extend(after.iter().map(|&p| (record, p)));
                !after.is_empty()
            }
            (_, Some(edges)) => {
                edges.extend(last.map(|p| (record, p)));
                last.is_some()
            }
            (_, None) => {
                self.previous.push(last.map_or(NONE_32, u64::from))?;
                self.next.push(NONE_32)?;
                if let Some(p) = last {
                    self.next.set(u64::from(p), u64::from(record))?;
                }
                last.is_some()
            }
        };
        Ok(Placed { session, turn, follows: follows || row.link.is_some_and(|link| link.parent.is_some()) })
    }

    fn named_session(&mut self, name: &str, record: u32) -> Result<(u32, u32, Option<u32>)> {
        self.named = true;
        // 128 bits tell the names of a dataset apart, and keep the table small for millions of long ones.
        if let Some(session) = self.by_name.get_mut(&xxh3_128(name.as_bytes())) {
            session.turns += 1;
            let last = std::mem::replace(&mut session.last, record);
            return Ok((session.id, session.turns - 1, Some(last)));
        }
        let id = self.sessions.push(name.as_bytes())?;
        self.by_name.insert(xxh3_128(name.as_bytes()), Session { id, turns: 1, last: record });
        Ok((id, 0, None))
    }

    fn template(&mut self, request: &RequestLine<'_>) -> Result<u32> {
        let bytes = encode_template(request);
        let digest = xxh3_128(&bytes);
        if let Some(&id) = self.by_template.get(&digest) {
            return Ok(id);
        }
        let id = self.templates.push(&bytes)?;
        self.by_template.insert(digest, id);
        Ok(id)
    }

    /// Writes the columns to `out`, behind the place of the header, and gives back the header and its totals.
    pub fn finish(
        mut self,
        out: &mut dyn Write,
        key: [u8; 32],
        data_bytes: u64,
        data_check: u64,
        folder: Option<&Path>,
    ) -> Result<(Vec<u8>, Totals)> {
        if !self.links.is_empty() {
            self.resolve_links(folder)?;
        }
        let records = u64::from(self.len());
        let lists = self.lists(folder)?;
        if !self.named {
            // Sessions that nobody named are the records themselves: no pool.
            self.sessions.ends = Column::new(Width::Eight, None);
            self.sessions.bytes = Spool::new(None);
        }
        let bits = if lists.is_some() { layout::BIT_LISTS } else { 0 } | if self.named { layout::BIT_NAMES } else { 0 };
        let totals = Totals {
            records,
            spans: self.span_rows,
            body_bytes: self.body_bytes,
            data_bytes,
            data_check,
            due_base_ns: if self.due_base_ns == NONE_64 { 0 } else { self.due_base_ns },
            sessions: self.sessions.count,
            templates: self.templates.count,
            bits,
        };
        let empty = Column::new(Width::Four, None);
        let [previous, next, predecessors, successors] = match &lists {
            Some(lists) => [&lists[0], &lists[1], &lists[2], &lists[3]],
            None => [&self.previous, &self.next, &empty, &empty],
        };
        // In the order of `Id`.
        let columns: [Source<'_>; COLUMNS] = [
            Source::Rows(&self.spans, size_of::<Span>() as u32),
            Source::Numbers(&self.first_span),
            Source::Numbers(&self.span_count),
            Source::Numbers(&self.xxh3),
            Source::Numbers(&self.due),
            Source::Numbers(&self.delay),
            Source::Numbers(&self.session),
            Source::Numbers(&self.turn),
            Source::Numbers(previous),
            Source::Numbers(next),
            Source::Numbers(predecessors),
            Source::Numbers(successors),
            Source::Numbers(&self.input_tokens),
            Source::Numbers(&self.output_cap),
            Source::Numbers(&self.flags),
            Source::Numbers(&self.template),
            Source::Numbers(&self.marker),
            Source::Numbers(&self.media),
            Source::Numbers(&self.sessions.ends),
            Source::Rows(&self.sessions.bytes, 1),
            Source::Numbers(&self.templates.ends),
            Source::Rows(&self.templates.bytes, 1),
        ];
        let header = layout::write_columns(out, key, &totals, columns)
            .map_err(|e| Error::file("cannot write", Path::new("index.dat"), e))?;
        Ok((header, totals))
    }

    /// Makes sessions of linked records: one a root, its members in the order of their turns, ties by the order of the input.
    fn resolve_links(&mut self, folder: Option<&Path>) -> Result<()> {
        let records = self.len();
        let mut members = roots(&self.links);
        let linked = members.len();
        // Records without a link stay by themselves.
        let with: std::collections::HashSet<u32> = self.links.iter().map(|&(record, _)| record).collect();
        members.extend((0..records).filter(|r| !with.contains(r)).map(|r| (Root::Alone(r), 0, r)));
        debug_assert!(linked <= records as usize);
        // Sessions count in the order of their first record.
        let mut first: HashMap<Root, u32> = HashMap::new();
        for &(root, _, record) in &members {
            first.entry(root).and_modify(|f| *f = record.min(*f)).or_insert(record);
        }
        members.sort_by_key(|&(root, turn, record)| (first[&root], turn, record));
        let mut columns = vec![[NONE_32; 4]; records as usize];
        let (mut session, mut turn) = (0u64, 0);
        for (k, &(root, _, record)) in members.iter().enumerate() {
            let before = k.checked_sub(1).map(|k| members[k]).filter(|&(r, ..)| r == root);
            (session, turn) = match before {
                Some(_) => (session, turn + 1),
                None => (if k == 0 { 0 } else { session + 1 }, 0),
            };
            columns[record as usize] = [session, turn, NONE_32, NONE_32];
            if let Some((_, _, p)) = before {
                columns[record as usize][2] = u64::from(p);
                columns[p as usize][3] = u64::from(record);
            }
        }
        let [mut a, mut b, mut c, mut d] = [(); 4].map(|()| Column::new(Width::Four, folder));
        for row in columns {
            for (column, value) in [&mut a, &mut b, &mut c, &mut d].into_iter().zip(row) {
                column.push(value)?;
            }
        }
        (self.session, self.turn, self.previous, self.next) = (a, b, c, d);
        self.sessions = Pool::new(folder);
        self.sessions.count = if records == 0 { 0 } else { session + 1 };
        (self.named, self.edges) = (false, None);
        Ok(())
    }

    /// First rows and lists of predecessors and successors, when a record named its own. Edges to records that do not exist
    /// are an error.
    fn lists(&mut self, folder: Option<&Path>) -> Result<Option<[Column; 4]>> {
        let Some(mut edges) = self.edges.take() else { return Ok(None) };
        let records = self.len();
        if let Some(&(record, p)) = edges.iter().find(|&&(record, p)| p >= records || p == record) {
            return Err(Error::usage(format!("record {record} waits for record {p}, which is not there")));
        }
        let mut out = [(); 4].map(|()| Column::new(Width::Four, folder));
        for (side, column) in [(0, 2), (1, 3)] {
            if side == 1 {
                edges.iter_mut().for_each(|edge| *edge = (edge.1, edge.0));
            }
            edges.sort_unstable();
            edges.dedup();
            let mut rest = edges.as_slice();
            out[side].push(0)?;
            for record in 0..records {
                let mine = rest.partition_point(|&(from, _)| from <= record);
                rest[..mine].iter().try_for_each(|&(_, to)| out[column].push(u64::from(to)))?;
                rest = &rest[mine..];
                let end = out[column].rows();
                out[side].push(end)?;
            }
            out[column].store_all()?;
        }
        Ok(Some(out))
    }
}

/// What the members of a session have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Root {
    /// The number of the first record, which may itself be missing from the input.
    Id(u64),
    /// A record without a link.
    Alone(u32),
}

/// Root, turn and record of each linked record.
fn roots(links: &[(u32, Link)]) -> Vec<(Root, u32, u32)> {
    let mut parents: HashMap<u64, Option<u64>> = HashMap::with_capacity(links.len());
    for (_, link) in links {
        parents.entry(link.id).or_insert(link.parent);
    }
    let mut known: HashMap<u64, u64> = HashMap::new();
    let mut path = Vec::new();
    let mut out = Vec::with_capacity(links.len());
    for &(record, link) in links {
        let mut at = link.id;
        path.clear();
        // A circle has no root: it ends where the walk has made as many steps as there are records.
        let root = loop {
            if let Some(&root) = known.get(&at) {
                break root;
            }
            path.push(at);
            match parents.get(&at).copied().flatten() {
                Some(parent) if path.len() <= links.len() => at = parent,
                _ => break at,
            }
        };
        known.extend(path.iter().map(|&id| (id, root)));
        out.push((Root::Id(root), link.turn, record));
    }
    out
}

/// `method, path, field, value, field, value, ...`, each a length of four bytes and the bytes; a length of all ones is none.
fn encode_template(request: &RequestLine<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |text: Option<&str>| {
        let bytes = text.map_or(u32::MAX, |t| t.len() as u32);
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(text.unwrap_or_default().as_bytes());
    };
    put(request.method.as_deref());
    put(request.path.as_deref());
    for (name, value) in &request.headers {
        put(Some(name));
        put(Some(value));
    }
    out
}

/// Reads what [`encode_template`] wrote; none when it is damaged.
pub(super) fn decode_template(mut bytes: &[u8]) -> Option<RequestLine<'_>> {
    fn take<'a>(bytes: &mut &'a [u8]) -> Option<Option<&'a str>> {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let len = u32::from_le_bytes(*len);
        if len == u32::MAX {
            *bytes = rest;
            return Some(None);
        }
        let (text, rest) = rest.split_at_checked(len as usize)?;
        *bytes = rest;
        Some(Some(std::str::from_utf8(text).ok()?))
    }
    let method = take(&mut bytes)?.map(Into::into);
    let path = take(&mut bytes)?.map(Into::into);
    let mut headers = Vec::new();
    while !bytes.is_empty() {
        headers.push((take(&mut bytes)??.into(), take(&mut bytes)??.into()));
    }
    Some(RequestLine { method, path, headers })
}
