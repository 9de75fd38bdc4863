//! `records.parquet`: a small writer of the Apache Parquet format, for the fixed columns of [`super::records`].
//!
//! Written by hand because the columns are few and flat, and the library for it would be the heaviest dependency of the
//! program. Layout (`parquet-format`, `README.md` and `parquet.thrift`), all integers little-endian:
//!
//! ```text
//! "PAR1" | row group | row group | ... | FileMetaData (thrift compact) | u32 its length | "PAR1"
//! row group = a column chunk each:  PageHeader (thrift compact) | zstd( levels | values )
//! levels    = u32 length | one run of definition levels, 1 where there is a value
//! values    = PLAIN: those that there are, 8 bytes each, bits for booleans, u32 length + bytes for texts
//! ```
//!
//! Every column is optional, one data page (version 1) a row group. With `--chunk-times` there is one list column more, with
//! repetition levels (0 where a row begins) before the definition levels (0 null, 1 empty, 2 an element), two bits each.
//! Memory is one row group, whatever the run's length; a group ends early where its lists are long.

use std::io::Write as _;

use crate::data::Result;

use super::{
    dir::PartFile,
    records::{COLUMNS, Kind, TIMES, Value, times_of},
    spools::Rows,
};

/// Rows of a row group: 64 Ki rows of 36 columns are about 20 MiB in memory, and enough for readers to skip by.
const GROUP_ROWS: usize = 1 << 16;
/// List elements of a row group: 8 MiB of stamps.
const GROUP_TIMES: usize = 1 << 20;
/// The level that the reference tools use.
const ZSTD_LEVEL: i32 = 1;
const MAGIC: &[u8; 4] = b"PAR1";

/// Numbers of `parquet.thrift`.
mod code {
    pub const BOOLEAN: i64 = 0;
    pub const INT64: i64 = 2;
    pub const DOUBLE: i64 = 5;
    pub const BYTE_ARRAY: i64 = 6;
    pub const REQUIRED: i64 = 0;
    pub const OPTIONAL: i64 = 1;
    pub const REPEATED: i64 = 2;
    pub const UTF8: i64 = 0;
    pub const LIST: i64 = 3;
    pub const PLAIN: i64 = 0;
    pub const RLE: i64 = 3;
    pub const ZSTD: i64 = 6;
    pub const DATA_PAGE: i64 = 0;
}

fn type_code(kind: Kind) -> i64 {
    match kind {
        Kind::Int => code::INT64,
        Kind::Double => code::DOUBLE,
        Kind::Bool => code::BOOLEAN,
        Kind::Text => code::BYTE_ARRAY,
    }
}

/// One column of the row group that is being filled.
#[derive(Default)]
struct Buffer {
    /// Bit a row, least significant first: 1 where there is a value.
    present: Vec<u8>,
    rows: usize,
    values: usize,
    plain: Vec<u8>,
}

impl Buffer {
    fn clear(&mut self) {
        self.present.clear();
        self.plain.clear();
        (self.rows, self.values) = (0, 0);
    }

    fn push(&mut self, value: Value) {
        push_bit(&mut self.present, self.rows, value != Value::None);
        self.rows += 1;
        match value {
            Value::None => return,
            Value::Int(v) => self.plain.extend(v.to_le_bytes()),
            Value::Double(v) => self.plain.extend(v.to_le_bytes()),
            Value::Bool(v) => push_bit(&mut self.plain, self.values, v),
            Value::Text(v) => {
                self.plain.extend((v.len() as u32).to_le_bytes());
                self.plain.extend(v.as_bytes());
            }
        }
        self.values += 1;
    }

    /// Levels and values of a data page.
    fn page(&self) -> Vec<u8> {
        let mut levels = Vec::with_capacity(self.present.len() + 8);
        if self.values == self.rows || self.values == 0 {
            // One repeated run: count << 1, then the level in one byte.
            varint(&mut levels, (self.rows as u64) << 1);
            levels.push(u8::from(self.values > 0));
        } else {
            // One bit-packed run: groups of eight << 1 | 1, then the bits.
            varint(&mut levels, (self.present.len() as u64) << 1 | 1);
            levels.extend(&self.present);
        }
        let mut page = Vec::with_capacity(4 + levels.len() + self.plain.len());
        page.extend((levels.len() as u32).to_le_bytes());
        page.extend(&levels);
        page.extend(&self.plain);
        page
    }
}

/// The list column of the row group that is being filled.
#[derive(Default)]
struct Lists {
    /// Bit an entry: 0 where a row begins.
    repetition: Vec<u8>,
    /// Two bits an entry.
    definition: Vec<u8>,
    entries: usize,
    plain: Vec<u8>,
}

impl Lists {
    fn push(&mut self, list: Option<&[u64]>) {
        match list {
            None => self.entry(false, 0),
            Some([]) => self.entry(false, 1),
            Some(list) => {
                for (i, value) in list.iter().enumerate() {
                    self.entry(i > 0, 2);
                    self.plain.extend(value.to_le_bytes());
                }
            }
        }
    }

    fn entry(&mut self, repeated: bool, definition: u8) {
        push_bit(&mut self.repetition, self.entries, repeated);
        push_bit(&mut self.definition, 2 * self.entries, definition & 1 != 0);
        push_bit(&mut self.definition, 2 * self.entries + 1, definition & 2 != 0);
        self.entries += 1;
    }

    /// Both levels, bit-packed in whole groups of eight, and the values of a data page.
    fn page(&self) -> Vec<u8> {
        let groups = self.entries.div_ceil(8);
        let mut page = Vec::with_capacity(16 + 3 * groups + self.plain.len());
        for (bits, width) in [(&self.repetition, 1), (&self.definition, 2)] {
            let mut levels = Vec::with_capacity(8 + groups * width);
            varint(&mut levels, (groups as u64) << 1 | 1);
            levels.extend(bits);
            levels.resize(levels.len() + groups * width - bits.len(), 0);
            page.extend((levels.len() as u32).to_le_bytes());
            page.extend(&levels);
        }
        page.extend(&self.plain);
        page
    }

    fn clear(&mut self) {
        self.repetition.clear();
        self.definition.clear();
        self.plain.clear();
        self.entries = 0;
    }
}

fn push_bit(bits: &mut Vec<u8>, at: usize, bit: bool) {
    if at.is_multiple_of(8) {
        bits.push(0);
    }
    if let Some(last) = bits.last_mut() {
        *last |= u8::from(bit) << (at % 8);
    }
}

/// Where a column chunk lies.
struct Chunk {
    offset: u64,
    uncompressed: u64,
    compressed: u64,
    /// Values, nulls included: as many as rows, but for the list column.
    entries: u64,
}

/// A row group in the footer.
struct Group {
    rows: u64,
    chunks: Vec<Chunk>,
}

/// Writes every row; returns the finished (not yet committed) file and the number of rows.
pub(super) fn write(part: PartFile, rows: &mut Rows, timed: bool) -> Result<(PartFile, u64)> {
    let mut out = Output { part, offset: 0 };
    out.put(MAGIC)?;
    let mut buffers: Vec<Buffer> = COLUMNS.iter().map(|_| Buffer::default()).collect();
    let mut lists = Lists::default();
    let mut groups: Vec<Group> = Vec::new();
    loop {
        let mut filled = 0;
        while filled < GROUP_ROWS
            && lists.entries < GROUP_TIMES
            && let Some((row, anchor)) = rows.next_row()?
        {
            for (buffer, column) in buffers.iter_mut().zip(&COLUMNS) {
                buffer.push((column.of)(&row, anchor));
            }
            if timed {
                lists.push(times_of(&row, rows));
            }
            filled += 1;
        }
        if filled == 0 {
            break;
        }
        let mut chunks = Vec::with_capacity(buffers.len() + 1);
        for buffer in &mut buffers {
            chunks.push(write_chunk(&mut out, &buffer.page(), buffer.rows)?);
            buffer.clear();
        }
        if timed {
            chunks.push(write_chunk(&mut out, &lists.page(), lists.entries)?);
            lists.clear();
        }
        groups.push(Group { rows: filled as u64, chunks });
    }
    let total = groups.iter().map(|g| g.rows).sum();
    let footer = footer(&groups, total, timed);
    out.put(&footer)?;
    out.put(&(footer.len() as u32).to_le_bytes())?;
    out.put(MAGIC)?;
    Ok((out.part, total))
}

struct Output {
    part: PartFile,
    offset: u64,
}

impl Output {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.part.write_all(bytes).map_err(|e| self.part.error(e))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

fn write_chunk(out: &mut Output, page: &[u8], entries: usize) -> Result<Chunk> {
    let packed = zstd::bulk::compress(page, ZSTD_LEVEL).map_err(|e| out.part.error(e))?;
    let mut head = Thrift::default();
    head.int32(1, code::DATA_PAGE);
    head.int32(2, page.len() as i64);
    head.int32(3, packed.len() as i64);
    head.begin(5);
    head.int32(1, entries as i64);
    head.int32(2, code::PLAIN);
    head.int32(3, code::RLE);
    head.int32(4, code::RLE);
    head.end();
    let head = head.finish();
    let chunk = Chunk {
        offset: out.offset,
        uncompressed: (head.len() + page.len()) as u64,
        compressed: (head.len() + packed.len()) as u64,
        entries: entries as u64,
    };
    out.put(&head)?;
    out.put(&packed)?;
    Ok(chunk)
}

/// FileMetaData.
fn footer(groups: &[Group], rows: u64, timed: bool) -> Vec<u8> {
    let mut t = Thrift::default();
    let list = usize::from(timed);
    t.int32(1, 1);
    t.list(2, Thrift::STRUCT, COLUMNS.len() + 1 + 3 * list);
    schema(&mut t, timed);
    t.int64(3, rows as i64);
    t.list(4, Thrift::STRUCT, groups.len());
    for group in groups {
        t.begin_element();
        t.list(1, Thrift::STRUCT, group.chunks.len());
        let flat = COLUMNS.iter().map(|c| (type_code(c.kind), vec![c.name]));
        let lists = timed.then(|| (code::INT64, vec![TIMES, "list", "element"]));
        for (chunk, (kind, path)) in group.chunks.iter().zip(flat.chain(lists)) {
            column(&mut t, chunk, kind, &path);
        }
        t.int64(2, group.chunks.iter().map(|c| c.uncompressed as i64).sum());
        t.int64(3, group.rows as i64);
        t.end();
    }
    t.text(6, concat!("ringload version ", env!("CARGO_PKG_VERSION")));
    t.finish()
}

/// The schema, depth first: the root, the flat columns, the three levels of the list.
fn schema(t: &mut Thrift, timed: bool) {
    t.begin_element();
    t.text(4, "record");
    t.int32(5, (COLUMNS.len() + usize::from(timed)) as i64);
    t.end();
    for column in &COLUMNS {
        t.begin_element();
        t.int32(1, type_code(column.kind));
        t.int32(3, code::OPTIONAL);
        t.text(4, column.name);
        if column.kind == Kind::Text {
            t.int32(6, code::UTF8);
        }
        t.end();
    }
    if timed {
        t.begin_element();
        t.int32(3, code::OPTIONAL);
        t.text(4, TIMES);
        t.int32(5, 1);
        t.int32(6, code::LIST);
        t.end();
        t.begin_element();
        t.int32(3, code::REPEATED);
        t.text(4, "list");
        t.int32(5, 1);
        t.end();
        t.begin_element();
        t.int32(1, code::INT64);
        t.int32(3, code::REQUIRED);
        t.text(4, "element");
        t.end();
    }
}

/// ColumnChunk.
fn column(t: &mut Thrift, chunk: &Chunk, kind: i64, path: &[&str]) {
    t.begin_element();
    t.int64(2, chunk.offset as i64);
    t.begin(3);
    t.int32(1, kind);
    t.list(2, Thrift::I32, 2);
    t.element(code::PLAIN);
    t.element(code::RLE);
    t.list(3, Thrift::BINARY, path.len());
    path.iter().for_each(|name| t.bytes(name.as_bytes()));
    t.int32(4, code::ZSTD);
    t.int64(5, chunk.entries as i64);
    t.int64(6, chunk.uncompressed as i64);
    t.int64(7, chunk.compressed as i64);
    t.int64(9, chunk.offset as i64);
    t.end();
    t.end();
}

/// A writer of the thrift compact protocol: structs with ascending field numbers, lists, integers, texts.
struct Thrift {
    out: Vec<u8>,
    /// The last field number of each struct that is open.
    last: Vec<i16>,
}

impl Default for Thrift {
    fn default() -> Self {
        Self { out: Vec::new(), last: vec![0] }
    }
}

impl Thrift {
    const I32: u8 = 5;
    const I64: u8 = 6;
    const BINARY: u8 = 8;
    const LIST: u8 = 9;
    const STRUCT: u8 = 12;

    fn field(&mut self, number: i16, kind: u8) {
        // Short form: the distance to the field before in the upper half; ours are all within it.
        if let Some(last) = self.last.last_mut() {
            let step = number - *last;
            debug_assert!((1..=15).contains(&step));
            self.out.push((step as u8) << 4 | kind);
            *last = number;
        }
    }

    fn int32(&mut self, number: i16, value: i64) {
        self.field(number, Self::I32);
        self.element(value);
    }

    fn int64(&mut self, number: i16, value: i64) {
        self.field(number, Self::I64);
        self.element(value);
    }

    fn text(&mut self, number: i16, value: &str) {
        self.field(number, Self::BINARY);
        self.bytes(value.as_bytes());
    }

    fn list(&mut self, number: i16, kind: u8, length: usize) {
        self.field(number, Self::LIST);
        if length < 15 {
            self.out.push((length as u8) << 4 | kind);
        } else {
            self.out.push(0xf0 | kind);
            varint(&mut self.out, length as u64);
        }
    }

    fn begin(&mut self, number: i16) {
        self.field(number, Self::STRUCT);
        self.begin_element();
    }

    fn begin_element(&mut self) {
        self.last.push(0);
    }

    fn end(&mut self) {
        self.out.push(0);
        self.last.pop();
    }

    fn element(&mut self, value: i64) {
        varint(&mut self.out, ((value << 1) ^ (value >> 63)) as u64);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        varint(&mut self.out, bytes.len() as u64);
        self.out.extend(bytes);
    }

    fn finish(mut self) -> Vec<u8> {
        self.end();
        debug_assert!(self.last.is_empty());
        self.out
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::{Nanos, rows::Row},
        report::{
            RunDir,
            records::{self, Format},
            spools::{
                Spools,
                tests::{chunks, row, spool},
            },
        },
    };

    fn file(rows: &[Row], times: Option<&[u64]>) -> Vec<u8> {
        let temp = tempfile::tempdir().unwrap();
        let mut dir = RunDir::prepare(temp.path()).unwrap();
        spool(temp.path(), 0, rows);
        if let Some(times) = times {
            chunks(temp.path(), 0, times);
        }
        let spools = Spools::find(temp.path()).unwrap();
        assert_eq!(records::write(&mut dir, Format::Parquet, &spools).unwrap(), rows.len() as u64);
        std::fs::read(temp.path().join("records.parquet")).unwrap()
    }

    #[test]
    fn the_frame_is_that_of_the_format() {
        for count in [0, 1, 9] {
            let rows: Vec<_> = (0..count).map(|i| row(0, i, 100_000 + u64::from(i))).collect();
            let bytes = file(&rows, None);
            assert!(bytes.starts_with(MAGIC) && bytes.ends_with(MAGIC));
            let length = u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap()) as usize;
            let footer = &bytes[bytes.len() - 8 - length..bytes.len() - 8];
            assert_eq!(footer[0], 1 << 4 | Thrift::I32);
            assert_eq!(*footer.last().unwrap(), 0);
            for column in &COLUMNS {
                assert!(memchr::memmem::find(footer, column.name.as_bytes()).is_some(), "{}", column.name);
            }
        }
    }

    #[test]
    fn pages_hold_levels_and_values() {
        let mut buffer = Buffer::default();
        for value in [Value::Int(7), Value::None, Value::Int(9)] {
            buffer.push(value);
        }
        let page = buffer.page();
        // Length 2, one bit-packed group 0b101, then two 8-byte values.
        assert_eq!(page[..6], [2, 0, 0, 0, 3, 0b101]);
        assert_eq!(page[6..], [7u64.to_le_bytes(), 9u64.to_le_bytes()].concat());
        buffer.clear();
        (0..300).for_each(|_| buffer.push(Value::Bool(true)));
        // All there: one repeated run of 300 (600 as varint), then 300 bits.
        assert_eq!(buffer.page()[..7], [3, 0, 0, 0, 0xd8, 0x04, 1]);
        assert_eq!(buffer.page().len(), 7 + 38);
        buffer.clear();
        buffer.push(Value::None);
        assert_eq!(buffer.page(), [2, 0, 0, 0, 2, 0]);
        buffer.clear();
        buffer.push(Value::Text("ab"));
        assert_eq!(buffer.page()[6..], [2, 0, 0, 0, b'a', b'b']);
    }

    #[test]
    fn groups_are_bounded_and_nothing_is_lost() {
        let rows: Vec<_> =
            (0..GROUP_ROWS as u32 + 3).map(|i| Row { done: Nanos(u64::from(i)), ..row(0, i, 1000) }).collect();
        let bytes = file(&rows, None);
        // Both groups name every column once in the footer, the schema once more.
        assert_eq!(memchr::memmem::find_iter(&bytes, b"content_events").count(), 3);
    }

    #[test]
    fn lists_have_levels_of_their_own() {
        let mut lists = Lists::default();
        lists.push(Some(&[7, 9]));
        lists.push(None);
        lists.push(Some(&[]));
        // Repetition 0 1 0 0, definition 2 2 0 1, each one group of eight.
        let page = lists.page();
        assert_eq!(page[..6], [2, 0, 0, 0, 3, 0b0010]);
        assert_eq!(page[6..13], [3, 0, 0, 0, 3, 0b0100_1010, 0]);
        assert_eq!(page[13..], [7u64.to_le_bytes(), 9u64.to_le_bytes()].concat());
        lists.clear();
        assert_eq!(lists.page(), [1, 0, 0, 0, 1, 1, 0, 0, 0, 1]);
    }

    #[test]
    fn a_group_ends_where_its_lists_are_long() {
        let stamps = (GROUP_TIMES / 2 + 1) as u32;
        let rows: Vec<_> =
            (0..3).map(|i| Row { content_events: stamps, stamps, ..row(0, i, 1000 + u64::from(i)) }).collect();
        let times: Vec<u64> = (0..3 * u64::from(stamps)).collect();
        let bytes = file(&rows, Some(&times));
        // Two groups: the column's path in both, its name once more in the schema.
        assert_eq!(memchr::memmem::find_iter(&bytes, TIMES.as_bytes()).count(), 3);
    }

    #[test]
    fn thrift_numbers_are_zigzag_varints() {
        let mut t = Thrift::default();
        t.int64(1, 300);
        t.int32(3, -1);
        assert_eq!(t.finish(), [0x16, 0xd8, 0x04, 0x25, 0x01, 0x00]);
    }
}
