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
//! Every column is optional, one data page (version 1) a row group. Memory is one row group, whatever the run's length.

use std::io::Write as _;

use crate::data::Result;

use super::{
    dir::PartFile,
    records::{COLUMNS, Kind, Rows, Value},
};

/// Rows of a row group: 64 Ki rows of 36 columns are about 20 MiB in memory, and enough for readers to skip by.
const GROUP_ROWS: usize = 1 << 16;
/// The level that the reference tools use.
const ZSTD_LEVEL: i32 = 1;
const MAGIC: &[u8; 4] = b"PAR1";

/// Numbers of `parquet.thrift`.
mod code {
    pub const BOOLEAN: i64 = 0;
    pub const INT64: i64 = 2;
    pub const DOUBLE: i64 = 5;
    pub const BYTE_ARRAY: i64 = 6;
    pub const OPTIONAL: i64 = 1;
    pub const UTF8: i64 = 0;
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
    rows: u64,
}

/// Writes every row; returns the finished (not yet committed) file and the number of rows.
pub(super) fn write(part: PartFile, rows: &mut Rows) -> Result<(PartFile, u64)> {
    let mut out = Output { part, offset: 0 };
    out.put(MAGIC)?;
    let mut buffers: Vec<Buffer> = COLUMNS.iter().map(|_| Buffer::default()).collect();
    let mut groups: Vec<Vec<Chunk>> = Vec::new();
    let mut total = 0;
    loop {
        let mut filled = 0;
        while filled < GROUP_ROWS
            && let Some((row, anchor)) = rows.next()?
        {
            for (buffer, column) in buffers.iter_mut().zip(&COLUMNS) {
                buffer.push((column.of)(&row, anchor));
            }
            filled += 1;
        }
        if filled == 0 {
            break;
        }
        total += filled as u64;
        groups.push(buffers.iter_mut().map(|buffer| write_chunk(&mut out, buffer)).collect::<Result<_>>()?);
    }
    let footer = footer(&groups, total);
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

fn write_chunk(out: &mut Output, buffer: &mut Buffer) -> Result<Chunk> {
    let page = buffer.page();
    let packed = zstd::bulk::compress(&page, ZSTD_LEVEL).map_err(|e| out.part.error(e))?;
    let mut head = Thrift::default();
    head.int32(1, code::DATA_PAGE);
    head.int32(2, page.len() as i64);
    head.int32(3, packed.len() as i64);
    head.begin(5);
    head.int32(1, buffer.rows as i64);
    head.int32(2, code::PLAIN);
    head.int32(3, code::RLE);
    head.int32(4, code::RLE);
    head.end();
    let head = head.finish();
    let chunk = Chunk {
        offset: out.offset,
        uncompressed: (head.len() + page.len()) as u64,
        compressed: (head.len() + packed.len()) as u64,
        rows: buffer.rows as u64,
    };
    out.put(&head)?;
    out.put(&packed)?;
    buffer.clear();
    Ok(chunk)
}

/// FileMetaData.
fn footer(groups: &[Vec<Chunk>], rows: u64) -> Vec<u8> {
    let mut t = Thrift::default();
    t.int32(1, 1);
    t.list(2, Thrift::STRUCT, COLUMNS.len() + 1);
    t.begin_element();
    t.text(4, "record");
    t.int32(5, COLUMNS.len() as i64);
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
    t.int64(3, rows as i64);
    t.list(4, Thrift::STRUCT, groups.len());
    for chunks in groups {
        t.begin_element();
        t.list(1, Thrift::STRUCT, chunks.len());
        for (chunk, column) in chunks.iter().zip(&COLUMNS) {
            t.begin_element();
            t.int64(2, chunk.offset as i64);
            t.begin(3);
            t.int32(1, type_code(column.kind));
            t.list(2, Thrift::I32, 2);
            t.element(code::PLAIN);
            t.element(code::RLE);
            t.list(3, Thrift::BINARY, 1);
            t.bytes(column.name.as_bytes());
            t.int32(4, code::ZSTD);
            t.int64(5, chunk.rows as i64);
            t.int64(6, chunk.uncompressed as i64);
            t.int64(7, chunk.compressed as i64);
            t.int64(9, chunk.offset as i64);
            t.end();
            t.end();
        }
        t.int64(2, chunks.iter().map(|c| c.uncompressed as i64).sum());
        t.int64(3, chunks.first().map_or(0, |c| c.rows as i64));
        t.end();
    }
    t.text(6, concat!("ringload version ", env!("CARGO_PKG_VERSION")));
    t.finish()
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
            records::{
                self, Format,
                tests::{row, spool},
            },
        },
    };

    fn file(rows: &[Row]) -> Vec<u8> {
        let temp = tempfile::tempdir().unwrap();
        let mut dir = RunDir::prepare(temp.path()).unwrap();
        let path = spool(temp.path(), 0, rows);
        assert_eq!(records::write(&mut dir, Format::Parquet, &[path]).unwrap(), rows.len() as u64);
        std::fs::read(temp.path().join("records.parquet")).unwrap()
    }

    #[test]
    fn the_frame_is_that_of_the_format() {
        for count in [0, 1, 9] {
            let rows: Vec<_> = (0..count).map(|i| row(0, i, 100_000 + u64::from(i))).collect();
            let bytes = file(&rows);
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
        let bytes = file(&rows);
        // Both groups name every column once in the footer, the schema once more.
        assert_eq!(memchr::memmem::find_iter(&bytes, b"content_events").count(), 3);
    }

    #[test]
    fn thrift_numbers_are_zigzag_varints() {
        let mut t = Thrift::default();
        t.int64(1, 300);
        t.int32(3, -1);
        assert_eq!(t.finish(), [0x16, 0xd8, 0x04, 0x25, 0x01, 0x00]);
    }
}
