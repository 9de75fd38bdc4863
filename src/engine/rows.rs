//! Writes rows of ended requests to the worker's spool, in blocks, from memory taken at set-up.

use std::{fs::File, io::Write, path::Path};

use zerocopy::IntoBytes;

use crate::data::{
    Error, Result, WorkerId,
    rows::{Row, SpoolHeader, spool_name},
};

/// Bytes of a block: 400 rows, one write. A write of this size into the page cache takes about 20 us.
const BLOCK_BYTES: usize = 64 << 10;

/// A worker's open spool.
#[derive(Debug)]
pub struct RowWriter {
    file: File,
    block: Vec<u8>,
    /// The first write that failed; nothing is written after it, and the run says so.
    failed: Option<std::io::Error>,
}

impl RowWriter {
    /// Creates the spool of a worker in a folder.
    ///
    /// Errors: the file cannot be created.
    pub fn create(folder: &Path, worker: WorkerId, anchor_unix_ns: u64) -> Result<Self> {
        let path = folder.join(spool_name(worker.0));
        let file = File::create(&path).map_err(|e| Error::file("cannot create", &path, e))?;
        let mut block = Vec::with_capacity(BLOCK_BYTES + size_of::<Row>());
        block.extend_from_slice(SpoolHeader::new(worker.0, anchor_unix_ns).as_bytes());
        Ok(Self { file, block, failed: None })
    }

    /// Adds a row.
    #[inline]
    pub fn push(&mut self, row: &Row) {
        self.block.extend_from_slice(row.as_bytes());
        if self.block.len() >= BLOCK_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.failed.is_none()
            && let Err(error) = self.file.write_all(&self.block)
        {
            self.failed = Some(error);
        }
        self.block.clear();
    }

    /// Writes what is left.
    pub fn finish(&mut self) {
        self.flush();
    }

    /// The first write that failed.
    pub const fn failed(&self) -> Option<&std::io::Error> {
        self.failed.as_ref()
    }
}
