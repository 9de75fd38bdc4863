//! The bytes of `index.dat`, version 2. Little endian; columns start at multiples of 64.
//!
//! ```text
//! offset  bytes  header
//!      0      8  magic "ringload"
//!      8      4  layout version
//!     12      4  columns in the directory
//!     16     32  key of the entry
//!     48      8  records
//!     56      8  spans
//!     64      8  body bytes, summed over records
//!     72      8  length of dataset.dat
//!     80      8  checksum of dataset.dat
//!     88      8  smallest due time, nanoseconds of the format's clock; dues in the column count from it when shown
//!     96      8  sessions
//!    104      8  templates
//!    112      8  bits: 1 = predecessors and successors are lists, 2 = sessions are named
//!    120   n*32  directory, one row a column, in the order of `Id`
//!              8  checksum of all header bytes before it
//!
//! directory row
//!      0      4  shape: 0 every row is `value`, 1 row n is n, 2 stored
//!      4      4  bytes of a row
//!      8      8  rows
//!     16      8  offset in the file, when stored
//!     24      8  checksum of the stored bytes; or the value
//! ```
//!
//! Checksums are those of `check`. A number that is not there is all ones.

use std::io::{self, Write};

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use super::{
    check::{self, Check},
    spool::{Column, Shape, Spool},
};

#[cfg(target_endian = "big")]
compile_error!("spans are used in place as little-endian numbers");

/// Version of everything in an entry: index, data and manifest. A change of any of them, or of what a build makes from the
/// same `Spec`, is a new number, and old entries are then misses.
pub const VERSION: u32 = 2;
/// First bytes of an index.
pub const MAGIC: [u8; 8] = *b"ringload";
/// A number that is not there, in a column of four bytes.
pub const NONE_32: u64 = u32::MAX as u64;
/// A number that is not there, in a column of eight bytes.
pub const NONE_64: u64 = u64::MAX;
/// Start of every stored column, so that a row never straddles two cache lines.
const ALIGN: u64 = 64;

/// Bit of the header: `Predecessors` and `Successors` are lists that `*First` point into.
pub const BIT_LISTS: u64 = 1;
/// Bit of the header: sessions have names in the string pool.
pub const BIT_NAMES: u64 = 2;

/// Bits of each count in the column of media. More of one kind than they hold are shown as the most they hold.
const MEDIA_BITS: u32 = 21;

/// Images, audios and videos as one number of the column.
pub fn media_of(counts: [u32; 3]) -> u64 {
    let most = (1 << MEDIA_BITS) - 1;
    counts.iter().rev().fold(0, |all, &count| all << MEDIA_BITS | u64::from(count.min(most)))
}

/// The counts that [`media_of`] made one number of.
pub fn media_counts(all: u64) -> [u32; 3] {
    [0, 1, 2].map(|k| (all >> (k * MEDIA_BITS)) as u32 & ((1 << MEDIA_BITS) - 1))
}

/// The columns, in the order of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Id {
    /// offset and bytes, 16 a span
    Spans,
    /// u32 a record
    FirstSpan,
    /// u32 a record
    SpanCount,
    /// u64 a record
    BodyXxh3,
    /// u64 a record, nanoseconds
    Due,
    /// u64 a record, nanoseconds
    Delay,
    /// u32 a record
    Session,
    /// u32 a record
    Turn,
    /// u32 a record: the only predecessor; or, with lists, the first row of its list (one row more than records)
    Previous,
    /// u32 a record, as `Previous`
    Next,
    /// u32 each
    Predecessors,
    /// u32 each
    Successors,
    /// u32 a record
    InputTokens,
    /// u32 a record
    OutputCap,
    /// u32 a record
    Flags,
    /// u32 a record
    Template,
    /// u64 a record: where in the body a marker goes
    Marker,
    /// u64 a record: images, audios and videos in the body, 21 bits each from the lowest on
    Media,
    /// u64 a session and one more: ends of the names
    SessionNameAt,
    /// bytes
    SessionNames,
    /// u64 a template and one more
    TemplateAt,
    /// bytes
    Templates,
}

/// Number of columns.
pub const COLUMNS: usize = Id::Templates as usize + 1;
/// Bytes of the header with its directory.
pub const HEADER_BYTES: usize = size_of::<Header>();

/// One row of the directory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Entry {
    shape: U32,
    width: U32,
    rows: U64,
    at: U64,
    value: U64,
}

/// The header as it lies in the file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    magic: [u8; 8],
    version: U32,
    columns: U32,
    /// Key of the entry.
    pub key: [u8; 32],
    records: U64,
    spans: U64,
    body_bytes: U64,
    data_bytes: U64,
    data_check: U64,
    due_base_ns: U64,
    sessions: U64,
    templates: U64,
    bits: U64,
    directory: [Entry; COLUMNS],
    check: U64,
}

const _: () = assert!(HEADER_BYTES == 120 + COLUMNS * 32 + 8);

/// The numbers of a header, in this machine's form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records.
    pub records: u64,
    /// Rows of the span column.
    pub spans: u64,
    /// Body bytes, summed over records.
    pub body_bytes: u64,
    /// Length of `dataset.dat`.
    pub data_bytes: u64,
    /// Checksum of `dataset.dat`.
    pub data_check: u64,
    /// Smallest due time.
    pub due_base_ns: u64,
    /// Sessions.
    pub sessions: u64,
    /// Templates.
    pub templates: u64,
    /// `BIT_*`.
    pub bits: u64,
}

/// Where a column is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its shape.
    pub shape: Shape,
    /// Its rows.
    pub rows: u64,
    /// Bytes of a row.
    pub width: u32,
    /// Offset in the file; 0 unless stored.
    pub at: u64,
    /// Checksum of the stored bytes; 0 unless stored.
    pub check: u64,
}

impl Place {
    /// Bytes in the file.
    pub const fn bytes(&self) -> u64 {
        match self.shape {
            Shape::Stored => self.rows * self.width as u64,
            _ => 0,
        }
    }
}

impl Header {
    /// Takes a header off the front of an index of `file_bytes` bytes. The error says in a few words what is wrong with it.
    pub fn read(index: &[u8]) -> Result<Self, &'static str> {
        let (header, _) = Self::read_from_prefix(index).map_err(|_| "index.dat is shorter than its header")?;
        if header.magic != MAGIC {
            return Err("index.dat is no index of ringload");
        }
        if header.version.get() != VERSION || header.columns.get() as usize != COLUMNS {
            return Err("index.dat has another layout version");
        }
        let covered = HEADER_BYTES - size_of::<U64>();
        if check::of(&header.as_bytes()[..covered]) != header.check.get() {
            return Err("the header of index.dat is damaged");
        }
        Ok(header)
    }

    /// The numbers.
    pub fn totals(&self) -> Totals {
        Totals {
            records: self.records.get(),
            spans: self.spans.get(),
            body_bytes: self.body_bytes.get(),
            data_bytes: self.data_bytes.get(),
            data_check: self.data_check.get(),
            due_base_ns: self.due_base_ns.get(),
            sessions: self.sessions.get(),
            templates: self.templates.get(),
            bits: self.bits.get(),
        }
    }

    /// Where a column is; an error when it does not lie in a file of so many bytes.
    pub fn place(&self, id: Id, file_bytes: u64) -> Result<Place, &'static str> {
        const OUTSIDE: &str = "a column of index.dat is outside the file";
        let row = &self.directory[id as usize];
        let (rows, width) = (row.rows.get(), row.width.get());
        let mut place = Place { shape: Shape::Identity, rows, width, at: 0, check: 0 };
        match row.shape.get() {
            0 => place.shape = Shape::Constant(row.value.get()),
            1 => {}
            2 => {
                place.shape = Shape::Stored;
                place.at = row.at.get();
                place.check = row.value.get();
                let bytes = rows.checked_mul(u64::from(width)).ok_or(OUTSIDE)?;
                let end = place.at.checked_add(bytes).ok_or(OUTSIDE)?;
                if end > file_bytes || !place.at.is_multiple_of(ALIGN) {
                    return Err(OUTSIDE);
                }
            }
            _ => return Err("a column of index.dat has an unknown shape"),
        }
        Ok(place)
    }

    /// Length that the file must have by this header: the end of its last column.
    pub fn file_bytes(&self) -> Option<u64> {
        self.directory.iter().filter(|row| row.shape.get() == 2).try_fold(HEADER_BYTES as u64, |end, row| {
            let bytes = row.rows.get().checked_mul(u64::from(row.width.get()))?;
            Some(end.max(row.at.get().checked_add(bytes)?))
        })
    }
}

/// A column as it is handed to the writer.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Numbers.
    Numbers(&'a Column),
    /// Rows of so many bytes each.
    Rows(&'a Spool, u32),
}

impl Source<'_> {
    fn entry(&self) -> Entry {
        let (shape, width, rows, value) = match *self {
            Self::Rows(spool, width) => (2, width, spool.len() / u64::from(width), 0),
            Self::Numbers(column) => {
                let (shape, value) = match column.shape() {
                    Shape::Constant(value) => (0, value),
                    Shape::Identity => (1, 0),
                    Shape::Stored => (2, 0),
                };
                (shape, column.width().bytes() as u32, column.rows(), value)
            }
        };
        Entry { shape: shape.into(), width: width.into(), rows: rows.into(), at: 0.into(), value: value.into() }
    }

    fn stored(&self) -> &Spool {
        match self {
            Self::Numbers(column) => column.stored(),
            Self::Rows(spool, _) => spool,
        }
    }
}

/// Writes an index: the columns from `HEADER_BYTES` on to `out`, which must be there already, and gives back the header to
/// put in front of them.
pub fn write_columns(
    out: &mut dyn Write,
    key: [u8; 32],
    totals: &Totals,
    columns: [Source<'_>; COLUMNS],
) -> io::Result<Vec<u8>> {
    let mut at = HEADER_BYTES as u64;
    let mut directory = columns.map(|column| column.entry());
    for (entry, column) in directory.iter_mut().zip(&columns) {
        if entry.shape.get() != 2 {
            continue;
        }
        let start = at.next_multiple_of(ALIGN);
        out.write_all(&[0; ALIGN as usize][..(start - at) as usize])?;
        let mut sum = Summed { out, check: Check::default() };
        column.stored().copy_to(&mut sum)?;
        entry.value = sum.check.finish().into();
        entry.at = start.into();
        at = start + column.stored().len();
    }
    let mut header = Header {
        magic: MAGIC,
        version: VERSION.into(),
        columns: (COLUMNS as u32).into(),
        key,
        records: totals.records.into(),
        spans: totals.spans.into(),
        body_bytes: totals.body_bytes.into(),
        data_bytes: totals.data_bytes.into(),
        data_check: totals.data_check.into(),
        due_base_ns: totals.due_base_ns.into(),
        sessions: totals.sessions.into(),
        templates: totals.templates.into(),
        bits: totals.bits.into(),
        directory,
        check: 0.into(),
    };
    header.check = check::of(&header.as_bytes()[..HEADER_BYTES - size_of::<U64>()]).into();
    Ok(header.as_bytes().to_vec())
}

struct Summed<'a> {
    out: &'a mut dyn Write,
    check: Check,
}

impl Write for Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write_all(bytes)?;
        self.check.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_media_come_back_up_to_what_their_bits_hold() {
        for counts in [[0, 0, 0], [1, 2, 3], [2_097_151, 0, 2_097_151]] {
            assert_eq!(media_counts(media_of(counts)), counts);
        }
        assert_eq!(media_counts(media_of([u32::MAX, 0, 7])), [2_097_151, 0, 7]);
    }
}
