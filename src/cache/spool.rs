//! A growing run of bytes that stays in memory while it is small and goes on in an unlinked file beside the entry when it is
//! not: columns of an index that is being built, whose length nobody knows before the end.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::data::{Error, Result};

/// Bytes kept in memory before a spool moves to its file. Some twenty columns of this size stay far under the builder's bound.
const MEMORY_BYTES: usize = 1 << 20;

/// See the head of this file.
#[derive(Debug)]
pub struct Spool {
    /// The end of the run, not yet in the file.
    tail: Vec<u8>,
    /// Bytes in the file, which come before `tail`.
    flushed: u64,
    file: Option<File>,
    /// Where the file goes; none keeps everything in memory.
    folder: Option<PathBuf>,
}

impl Spool {
    /// An empty spool whose file, if it comes to one, is made in `folder`; without a folder it stays in memory.
    pub fn new(folder: Option<&Path>) -> Self {
        Self { tail: Vec::new(), flushed: 0, file: None, folder: folder.map(Path::to_path_buf) }
    }

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.flushed + self.tail.len() as u64
    }

    /// True before the first byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.tail.extend_from_slice(bytes);
        match &self.folder {
            Some(folder) if self.tail.len() >= MEMORY_BYTES => {
                Self::flush(&mut self.file, folder, &self.tail, self.flushed)?;
                self.flushed += self.tail.len() as u64;
                self.tail.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn flush(file: &mut Option<File>, folder: &Path, tail: &[u8], at: u64) -> Result<()> {
        let path = folder.join("spool");
        if file.is_none() {
            let open = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
            *file = Some(open.map_err(|e| Error::file("cannot create", &path, e))?);
            // Without a name nothing is left over, whatever becomes of us.
            std::fs::remove_file(&path).map_err(|e| Error::file("cannot remove", &path, e))?;
        }
        match file {
            Some(file) => file.write_all_at(tail, at).map_err(|e| Error::file("cannot write", &path, e)),
            None => Ok(()),
        }
    }

    /// Reads `out.len()` bytes from `at`, which must lie inside.
    pub fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let end = at.checked_add(out.len() as u64).filter(|&end| end <= self.len());
        let Some(_) = end else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        let in_file = (self.flushed.saturating_sub(at) as usize).min(out.len());
        if let (Some(file), true) = (&self.file, in_file > 0) {
            file.read_exact_at(&mut out[..in_file], at)?;
        }
        let from = (at + in_file as u64).saturating_sub(self.flushed) as usize;
        let rest = &mut out[in_file..];
        rest.copy_from_slice(&self.tail[from..from + rest.len()]);
        Ok(())
    }

    /// Overwrites bytes that are there.
    pub fn patch(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > self.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let in_file = (self.flushed.saturating_sub(at) as usize).min(bytes.len());
        if let (Some(file), true) = (&self.file, in_file > 0) {
            file.write_all_at(&bytes[..in_file], at)?;
        }
        let from = (at + in_file as u64).saturating_sub(self.flushed) as usize;
        let rest = &bytes[in_file..];
        self.tail[from..from + rest.len()].copy_from_slice(rest);
        Ok(())
    }

    /// Writes everything to `out`.
    pub fn copy_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut buffer = vec![0; MEMORY_BYTES];
        let mut at = 0;
        while at < self.len() {
            let now = (self.len() - at).min(MEMORY_BYTES as u64) as usize;
            self.read_at(at, &mut buffer[..now])?;
            out.write_all(&buffer[..now])?;
            at += now as u64;
        }
        Ok(())
    }
}

/// One number a record, stored only when it has to be: a column whose values are all the same, or are the row's own number,
/// costs nothing, whatever the number of records.
#[derive(Debug)]
pub struct Column {
    width: Width,
    rows: u64,
    shape: Shape,
    spool: Spool,
}

/// Bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// u32
    Four,
    /// u64
    Eight,
}

impl Width {
    /// Bytes of one number.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// What a column has come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Every row has this value. A column without rows is `Constant(0)`.
    Constant(u64),
    /// Row n has value n.
    Identity,
    /// Every row is written out.
    Stored,
}

impl Column {
    /// An empty column.
    pub fn new(width: Width, folder: Option<&Path>) -> Self {
        Self { width, rows: 0, shape: Shape::Constant(0), spool: Spool::new(folder) }
    }

    /// Appends one row. The value must fit the width.
    pub fn push(&mut self, value: u64) -> Result<()> {
        debug_assert!(self.width == Width::Eight || value <= u64::from(u32::MAX));
        let row = self.rows;
        self.rows += 1;
        match self.shape {
            Shape::Constant(_) if row == 0 => self.shape = Shape::Constant(value),
            Shape::Constant(held) if held == value => {}
            Shape::Constant(0) if row == 1 && value == 1 => self.shape = Shape::Identity,
            Shape::Identity if value == row => {}
            Shape::Stored => return self.write(value),
            _ => {
                self.store(row)?;
                return self.write(value);
            }
        }
        Ok(())
    }

    fn write(&mut self, value: u64) -> Result<()> {
        self.spool.push(&value.to_le_bytes()[..self.width.bytes()])
    }

    /// Writes out the first `rows` rows, which had a shape until now.
    fn store(&mut self, rows: u64) -> Result<()> {
        let shape = std::mem::replace(&mut self.shape, Shape::Stored);
        for row in 0..rows {
            match shape {
                Shape::Constant(value) => self.write(value)?,
                Shape::Identity => self.write(row)?,
                Shape::Stored => {}
            }
        }
        Ok(())
    }

    /// Changes one row that is there.
    pub fn set(&mut self, row: u64, value: u64) -> Result<()> {
        if self.get(row) == Some(value) {
            return Ok(());
        }
        if self.shape != Shape::Stored {
            self.store(self.rows)?;
        }
        let bytes = self.width.bytes();
        let patched = self.spool.patch(row * bytes as u64, &value.to_le_bytes()[..bytes]);
        patched.map_err(|e| Error::file("cannot write", Path::new("spool"), e))
    }

    /// Writes every row out, also where a shape would do: for columns that are used in place.
    pub fn store_all(&mut self) -> Result<()> {
        match self.shape {
            Shape::Stored => Ok(()),
            _ => self.store(self.rows),
        }
    }

    /// The value of a row; none outside, or when the disk fails.
    pub fn get(&self, row: u64) -> Option<u64> {
        if row >= self.rows {
            return None;
        }
        match self.shape {
            Shape::Constant(value) => Some(value),
            Shape::Identity => Some(row),
            Shape::Stored => {
                let mut out = [0; 8];
                let bytes = self.width.bytes();
                self.spool.read_at(row * bytes as u64, &mut out[..bytes]).ok()?;
                Some(u64::from_le_bytes(out))
            }
        }
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// What it has come to be.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Bytes of a number.
    pub fn width(&self) -> Width {
        self.width
    }

    /// The rows as they are stored; empty unless the shape is [`Shape::Stored`].
    pub fn stored(&self) -> &Spool {
        &self.spool
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_spool_over_its_memory_goes_on_in_a_file_without_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::new(Some(folder.path()));
        let all: Vec<u8> = (0..3 * MEMORY_BYTES + 5).map(|i| (i % 253) as u8).collect();
        all.chunks(70_001).for_each(|c| spool.push(c).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let mut copy = Vec::new();
        spool.copy_to(&mut copy).unwrap();
        assert_eq!(copy, all);
        let at = spool.flushed - 3;
        spool.patch(at, b"abcdef").unwrap();
        let mut out = [0; 8];
        spool.read_at(at - 1, &mut out).unwrap();
        assert_eq!(&out[1..7], b"abcdef");
        assert!(spool.read_at(spool.len() - 3, &mut out).is_err() && spool.patch(spool.len(), b"x").is_err());
    }

    #[test]
    fn columns_of_one_value_or_of_row_numbers_cost_nothing() {
        let mut same = Column::new(Width::Four, None);
        let mut number = Column::new(Width::Eight, None);
        for row in 0..1000 {
            same.push(7).unwrap();
            number.push(row).unwrap();
        }
        assert_eq!((same.shape(), number.shape()), (Shape::Constant(7), Shape::Identity));
        assert!(same.stored().is_empty() && number.stored().is_empty());
    }

    proptest! {
        #[test]
        fn a_column_holds_what_was_pushed_and_set(
            values in prop::collection::vec(0u64..4, 1..40),
            sets in prop::collection::vec((0usize..40, 0u64..50), 0..4),
            identity in 0usize..30,
        ) {
            let mut want: Vec<u64> = (0..identity as u64).chain(values).collect();
            let mut column = Column::new(Width::Four, None);
            want.iter().for_each(|&v| column.push(v).unwrap());
            for (row, value) in sets {
                if row < want.len() {
                    want[row] = value;
                    column.set(row as u64, value).unwrap();
                }
            }
            let got: Vec<u64> = (0..column.rows()).map(|r| column.get(r).unwrap()).collect();
            prop_assert_eq!(got, want);
            prop_assert_eq!(column.get(column.rows()), None);
        }
    }
}
