//! What a worker keeps of each request while the load runs: rows, times of content events, responses. All of it goes to spools
//! in the run directory through the worker's own ring, from memory taken at set-up.

use std::fs::File;

use zerocopy::IntoBytes;

use super::{
    io::Io,
    stamps::{Chain, Stamps},
};
use crate::data::{
    Error, Result, WorkerId, limits,
    plan::Plan,
    rows::{Keep, PieceHead, Row, Spool, SpoolHeader},
};

/// Which spools a worker has, by their index in its ring.
#[derive(Debug)]
pub(super) struct Kept {
    kinds: Vec<Spool>,
    /// Index of the first: those of the phases stand in the ring one after the other.
    base: usize,
    chunks: Option<usize>,
    responses: Option<usize>,
    /// Responses that may still be kept.
    responses_left: u64,
    rows: u64,
}

impl Kept {
    /// Creates the spools of a worker. The files are for its ring, in this order, behind `base` others.
    ///
    /// Errors: a file that cannot be created.
    pub fn create(keep: &Keep, worker: WorkerId, workers: usize, base: usize) -> Result<(Self, Vec<File>)> {
        let mut kept = Self {
            kinds: vec![Spool::Rows],
            base,
            chunks: None,
            responses: None,
            responses_left: match keep.responses {
                u64::MAX => u64::MAX,
                n => Plan::share(n, worker.0 as usize, workers),
            },
            rows: 0,
        };
        if keep.chunk_times {
            kept.chunks = Some(base + kept.kinds.len());
            kept.kinds.push(Spool::Chunks);
        }
        if keep.responses > 0 {
            kept.responses = Some(base + kept.kinds.len());
            kept.kinds.push(Spool::Responses);
        }
        let mut files = Vec::with_capacity(kept.kinds.len());
        for kind in &kept.kinds {
            let path = keep.folder.join(kind.name(worker.0));
            files.push(File::create(&path).map_err(|e| Error::file("cannot create", &path, e))?);
        }
        Ok((kept, files))
    }

    /// Begins every spool.
    pub fn begin(&self, io: &mut impl Io, worker: WorkerId, anchor_unix_ns: u64) {
        for (spool, &kind) in self.kinds.iter().enumerate() {
            io.append(self.base + spool, SpoolHeader::new(kind, worker.0, anchor_unix_ns).as_bytes());
        }
    }

    /// True when one more response is to be kept; it is counted.
    #[inline]
    pub fn takes_response(&mut self) -> bool {
        if self.responses.is_none() || self.responses_left == 0 {
            return false;
        }
        self.responses_left = self.responses_left.saturating_sub(u64::from(self.responses_left != u64::MAX));
        true
    }

    /// A piece of a response's body that is kept; `had` is what was kept of it before. Returns what is kept now.
    #[inline]
    pub fn piece(&self, io: &mut impl Io, connection: u32, bytes: &[u8], had: u64) -> u64 {
        let room = limits::KEPT_RESPONSE_BYTES_MAX.saturating_sub(had);
        let bytes = &bytes[..bytes.len().min(room as usize)];
        if let Some(spool) = self.responses
            && !bytes.is_empty()
        {
            io.append(spool, PieceHead { connection, bytes: bytes.len() as u32, row: 0 }.as_bytes());
            io.append(spool, bytes);
        }
        had + bytes.len() as u64
    }

    /// A request that has ended, with the times of its content events, and whether its response was kept.
    #[inline]
    pub fn push(&mut self, io: &mut impl Io, row: &mut Row, stamps: &Stamps, chain: &Chain, response: bool) {
        if let Some(spool) = self.chunks {
            row.stamps = chain.count;
            stamps.each(chain, |bytes| io.append(spool, bytes));
        }
        io.append(self.base, row.as_bytes());
        if let Some(spool) = self.responses.filter(|_| response) {
            let end = PieceHead { connection: row.connection, bytes: PieceHead::END, row: self.rows };
            io.append(spool, end.as_bytes());
            io.append(spool, row.as_bytes());
        }
        self.rows += 1;
    }

    /// Hands over what the spools hold.
    pub fn flush(&self, io: &mut impl Io) {
        io.flush_spools(self.base + self.kinds.len());
    }

    /// Ends the spools; nothing may be in the kernel. Returns what the user should know.
    pub fn close(&self, io: &mut impl Io, worker: usize) -> Vec<String> {
        let (failed, waits) = io.close_spools(self.base + self.kinds.len());
        let mut notes: Vec<String> = self
            .kinds
            .iter()
            .zip(failed.into_iter().skip(self.base))
            .filter_map(|(kind, error)| Some(format!("{} of worker {worker} are not whole: {}", kind.stem(), error?)))
            .collect();
        if waits > 0 {
            notes.push(format!(
                "the disk was slower than the run: worker {worker} wrote {waits} blocks of 64 KiB of its {} itself, \
                 and waited for each",
                if self.responses.is_some() { "rows and responses" } else { "rows" }
            ));
        }
        notes
    }
}
