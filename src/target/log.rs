//! `log=FILE`: a line a request, for proofs of order and of arrival times.
//!
//! ```text
//! first_ns  whole_ns  answered_ns  thread  connection  record  body_bytes  status
//! ```
//!
//! Separated by tabs, under a line with these names. Times are nanoseconds of CLOCK_MONOTONIC, so that they compare with any
//! process of the machine: the read that brought the first byte, the read that made the request whole, the moment the
//! answer's last byte was put up for sending (never after the client can have seen it). `record` is the value of
//! `X-Ringload-Record` or `-`; `status` 0 is a request that got no whole answer. Lines of one thread are in the order of
//! their answers; the threads' lines are mixed in blocks.

use std::{fmt::Write as _, fs::File, io::Write as _, path::Path, sync::Arc};

use crate::data::{Error, Result};

use super::tally::Tally;

/// Lines are written in blocks of about this size: one call of the system for about 800 requests.
const BLOCK_BYTES: usize = 64 << 10;

/// One request, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// When its first byte was read.
    pub first_ns: u64,
    /// When it was whole.
    pub whole_ns: u64,
    /// When its answer was put up for sending.
    pub answered_ns: u64,
    /// Number of the connection within its thread, from 0.
    pub connection: u64,
    /// The record that the client named.
    pub record: Option<u64>,
    /// Length of its body.
    pub body_bytes: u64,
    /// Status of the answer; 0 when there was none.
    pub status: u16,
}

/// The log of one thread. Blocks are appended to a file that all threads share; each block ends at a line's end.
#[derive(Debug)]
pub struct Log {
    file: Arc<File>,
    thread: usize,
    block: String,
    lines: u64,
}

/// Creates the file with its first line.
pub fn create(path: &Path) -> Result<Arc<File>> {
    let mut file = File::create(path).map_err(|e| Error::file("cannot create", path, e))?;
    let names = "first_ns\twhole_ns\tanswered_ns\tthread\tconnection\trecord\tbody_bytes\tstatus\n";
    file.write_all(names.as_bytes()).map_err(|e| Error::file("cannot write", path, e))?;
    // Opened again to append: blocks of several threads then never overwrite each other.
    let file = File::options().append(true).open(path).map_err(|e| Error::file("cannot open", path, e))?;
    Ok(Arc::new(file))
}

impl Log {
    /// The log of a thread.
    pub fn new(file: Arc<File>, thread: usize) -> Self {
        Self { file, thread, block: String::with_capacity(BLOCK_BYTES + 256), lines: 0 }
    }

    /// Adds a line; writes the block when it is full.
    pub fn line(&mut self, line: &Line, tally: &Tally) {
        let Line { first_ns, whole_ns, answered_ns, connection, body_bytes, status, .. } = line;
        let thread = self.thread;
        let _ = write!(self.block, "{first_ns}\t{whole_ns}\t{answered_ns}\t{thread}\t{connection}\t");
        let _ = match line.record {
            Some(record) => write!(self.block, "{record}"),
            None => self.block.write_char('-'),
        };
        let _ = writeln!(self.block, "\t{body_bytes}\t{status}");
        self.lines += 1;
        if self.block.len() >= BLOCK_BYTES {
            self.flush(tally);
        }
    }

    /// True when lines wait to be written.
    pub fn is_pending(&self) -> bool {
        !self.block.is_empty()
    }

    /// Writes what is there. A failure is counted, not fatal: the load goes on.
    pub fn flush(&mut self, tally: &Tally) {
        if (&*self.file).write_all(self.block.as_bytes()).is_err() {
            tally.log_lines_lost.add(self.lines);
        }
        self.block.clear();
        self.lines = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_two_threads_end_at_line_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("requests.log");
        let file = create(&path).unwrap();
        let tally = Tally::default();
        let mut logs = [Log::new(file.clone(), 0), Log::new(file, 1)];
        for i in 0..5_000u64 {
            let record = (i % 2 == 0).then_some(i);
            logs[(i % 2) as usize].line(&Line { first_ns: i, record, status: 200, ..Line::default() }, &tally);
        }
        for log in &mut logs {
            log.flush(&tally);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 5_001);
        assert!(text.lines().skip(1).all(|l| l.split('\t').count() == 8 && l.ends_with("\t200")));
        assert!(text.contains("\t1\t0\t-\t0\t200\n"));
        assert_eq!(tally.log_lines_lost.value(), 0);
    }
}
