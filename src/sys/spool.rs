//! Files that a worker appends to through its ring: rows, chunk times, responses.
//!
//! Bytes are gathered in blocks of memory taken at set-up; a full block goes to its file in one write of the ring while the
//! next one fills, so that a slow disk never stops the worker. Only when every block of a file is still in the kernel does the
//! worker write one itself, and counts it. After a write that failed nothing more goes to that file, and it is cut back to
//! what is whole.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd, RawFd},
        unix::fs::FileExt,
    },
};

use memmap2::MmapMut;

/// Bytes of a block: 400 rows. A buffered write of this size takes about 20 us.
pub const BLOCK_BYTES: usize = 64 << 10;
/// Blocks of a file: half a megabyte, which a disk of 100 MB/s takes in 5 ms.
const BLOCKS: usize = 8;

/// One write for the ring. The bytes lie in the memory of [`Spools`] and do not change until [`Spools::written`].
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockWrite {
    pub fd: RawFd,
    pub bytes: *const u8,
    pub length: u32,
    pub offset: u64,
    /// What [`Spools::written`] is told.
    pub block: u32,
}

/// A block that is in the kernel: where it goes, how long it is, how much of it was written.
#[derive(Clone, Copy, Debug, Default)]
struct Going {
    offset: u64,
    length: usize,
    done: usize,
    busy: bool,
}

#[derive(Debug)]
struct Spool {
    file: File,
    /// Where the block that fills begins in the file.
    offset: u64,
    current: usize,
    used: usize,
    going: [Going; BLOCKS],
    /// What failed first, and up to where the file is whole.
    failed: Option<(io::Error, u64)>,
}

/// The files of one worker and their blocks.
#[derive(Debug)]
pub(super) struct Spools {
    memory: MmapMut,
    spools: Vec<Spool>,
    waits: u64,
}

impl Spools {
    /// Takes the memory. Files are written from their beginning.
    pub fn new(files: Vec<File>) -> io::Result<Self> {
        let memory = MmapMut::map_anon((files.len() * BLOCKS * BLOCK_BYTES).max(1))?;
        let spool =
            |file| Spool { file, offset: 0, current: 0, used: 0, going: [Going::default(); BLOCKS], failed: None };
        Ok(Self { memory, spools: files.into_iter().map(spool).collect(), waits: 0 })
    }

    /// Adds bytes to a file, at most a block of them. Returns the write that became due, if one did.
    #[inline]
    pub fn append(&mut self, spool: usize, bytes: &[u8]) -> Option<BlockWrite> {
        assert!(bytes.len() <= BLOCK_BYTES, "more than a block at once");
        let s = &mut self.spools[spool];
        let room = BLOCK_BYTES - s.used;
        let (now, rest) = bytes.split_at(bytes.len().min(room));
        let at = (spool * BLOCKS + s.current) * BLOCK_BYTES + s.used;
        self.memory[at..at + now.len()].copy_from_slice(now);
        s.used += now.len();
        if s.used < BLOCK_BYTES {
            return None;
        }
        let write = self.turn(spool);
        let s = &mut self.spools[spool];
        let at = (spool * BLOCKS + s.current) * BLOCK_BYTES;
        self.memory[at..at + rest.len()].copy_from_slice(rest);
        s.used = rest.len();
        write
    }

    /// The write of what is gathered, at the end.
    pub fn flush(&mut self, spool: usize) -> Option<BlockWrite> {
        if self.spools[spool].used == 0 { None } else { self.turn(spool) }
    }

    /// Hands the current block over and makes a free one current.
    #[cold]
    fn turn(&mut self, spool: usize) -> Option<BlockWrite> {
        let s = &mut self.spools[spool];
        let (block, length, offset) = (s.current, std::mem::take(&mut s.used), s.offset);
        if s.failed.is_some() {
            return None;
        }
        s.offset += length as u64;
        let at = (spool * BLOCKS + block) * BLOCK_BYTES;
        let Some(free) = (0..BLOCKS).find(|&b| b != block && !s.going[b].busy) else {
            self.waits += 1;
            if let Err(error) = s.file.write_all_at(&self.memory[at..at + length], offset) {
                fail(s, error, offset);
            }
            return None;
        };
        s.current = free;
        s.going[block] = Going { offset, length, done: 0, busy: true };
        Some(self.write_of(spool, block))
    }

    fn write_of(&self, spool: usize, block: usize) -> BlockWrite {
        let s = &self.spools[spool];
        let going = s.going[block];
        let at = (spool * BLOCKS + block) * BLOCK_BYTES;
        BlockWrite {
            fd: s.file.as_raw_fd(),
            bytes: self.memory[at + going.done..at + going.length].as_ptr(),
            length: (going.length - going.done) as u32,
            offset: going.offset + going.done as u64,
            block: (spool * BLOCKS + block) as u32,
        }
    }

    /// A write of a block completed. Returns the write of what a short one left over.
    pub fn written(&mut self, block: u32, result: i32) -> Option<BlockWrite> {
        let (spool, block) = (block as usize / BLOCKS, block as usize % BLOCKS);
        let s = self.spools.get_mut(spool)?;
        let going = &mut s.going[block];
        if result > 0 {
            going.done += result as usize;
        }
        let again = result > 0 || matches!(-result, libc::EINTR | libc::EAGAIN);
        if again && going.done < going.length {
            return Some(self.write_of(spool, block));
        }
        going.busy = false;
        let offset = going.offset + going.done as u64;
        if !again {
            let error =
                if result == 0 { io::ErrorKind::WriteZero.into() } else { io::Error::from_raw_os_error(-result) };
            fail(s, error, offset);
        }
        None
    }

    /// True while a block is in the kernel.
    pub fn writing(&self) -> bool {
        self.spools.iter().any(|s| s.going.iter().any(|g| g.busy))
    }

    /// Cuts files whose writing failed back to what is whole. A block that is still in the kernel counts as failed.
    pub fn close(&mut self) {
        for s in &mut self.spools {
            if let Some(offset) = s.going.iter().filter(|g| g.busy).map(|g| g.offset).min() {
                fail(s, io::ErrorKind::TimedOut.into(), offset);
            }
            if let Some((_, whole)) = &s.failed {
                // The reader stops at the end of the file; where even this fails it finds rows of zeros and stops there.
                let _ = s.file.set_len(*whole);
            }
        }
    }

    /// The first write to a file that failed.
    pub fn failed(&self, spool: usize) -> Option<&io::Error> {
        self.spools.get(spool)?.failed.as_ref().map(|(error, _)| error)
    }

    /// Blocks that the worker had to write itself.
    pub fn waits(&self) -> u64 {
        self.waits
    }
}

fn fail(spool: &mut Spool, error: io::Error, offset: u64) {
    match &mut spool.failed {
        Some((_, whole)) => *whole = offset.min(*whole),
        none => *none = Some((error, offset)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does what the kernel would, `most` bytes a write.
    fn perform(spools: &mut Spools, file: &File, mut write: Option<BlockWrite>, most: usize) {
        while let Some(w) = write {
            let start = w.block as usize * BLOCK_BYTES;
            let inside = w.bytes as usize - spools.memory.as_ptr() as usize;
            assert!((start..start + BLOCK_BYTES).contains(&inside));
            let n = (w.length as usize).min(most);
            file.write_all_at(&spools.memory[inside..inside + n], w.offset).unwrap();
            write = spools.written(w.block, n as i32);
        }
    }

    fn pieces() -> Vec<Vec<u8>> {
        (0..3_000u32).map(|i| vec![i as u8; (i as usize * 37) % 700]).collect()
    }

    #[test]
    fn every_byte_comes_to_its_place_whatever_the_order_of_the_writes() {
        let file = tempfile::tempfile().unwrap();
        let mut spools = Spools::new(vec![tempfile::tempfile().unwrap(), file.try_clone().unwrap()]).unwrap();
        let mut waiting = Vec::new();
        for (i, piece) in pieces().iter().enumerate() {
            waiting.extend(spools.append(1, piece));
            // Completions come late, and not in order.
            if i % 500 == 499 {
                while let Some(w) = waiting.pop() {
                    perform(&mut spools, &file, Some(w), 10_000);
                }
            }
        }
        waiting.extend(spools.flush(1));
        for w in waiting {
            perform(&mut spools, &file, Some(w), usize::MAX);
        }
        spools.close();
        let want = pieces().concat();
        let mut got = vec![0; want.len()];
        file.read_exact_at(&mut got, 0).unwrap();
        assert!(got == want && file.metadata().unwrap().len() == want.len() as u64);
        assert_eq!(spools.waits(), 0);
    }

    #[test]
    fn without_a_free_block_the_worker_writes_itself() {
        let file = tempfile::tempfile().unwrap();
        let mut spools = Spools::new(vec![file.try_clone().unwrap()]).unwrap();
        let block = vec![7u8; BLOCK_BYTES];
        let stuck: Vec<_> = (0..BLOCKS + 3).filter_map(|_| spools.append(0, &block)).collect();
        assert_eq!((stuck.len(), spools.waits()), (BLOCKS - 1, 4));
        for w in stuck {
            perform(&mut spools, &file, Some(w), usize::MAX);
        }
        assert_eq!(file.metadata().unwrap().len(), ((BLOCKS + 3) * BLOCK_BYTES) as u64);
    }

    #[test]
    fn a_full_disk_leaves_what_is_whole() {
        let file = tempfile::tempfile().unwrap();
        let mut spools = Spools::new(vec![file.try_clone().unwrap()]).unwrap();
        let block = vec![7u8; BLOCK_BYTES];
        let writes: Vec<_> = (0..3).filter_map(|_| spools.append(0, &block)).collect();
        perform(&mut spools, &file, Some(writes[0]), usize::MAX);
        perform(&mut spools, &file, Some(writes[2]), usize::MAX);
        assert!(spools.written(writes[1].block, -libc::ENOSPC).is_none());
        assert_eq!(spools.failed(0).unwrap().raw_os_error(), Some(libc::ENOSPC));
        assert!(spools.append(0, &block).is_none(), "nothing more goes to a file that failed");
        spools.close();
        assert_eq!(file.metadata().unwrap().len(), BLOCK_BYTES as u64);
    }

    #[test]
    fn a_block_that_never_ends_is_cut_off() {
        let file = tempfile::tempfile().unwrap();
        let mut spools = Spools::new(vec![file.try_clone().unwrap()]).unwrap();
        let block = vec![7u8; BLOCK_BYTES];
        let writes: Vec<_> = (0..2).filter_map(|_| spools.append(0, &block)).collect();
        perform(&mut spools, &file, Some(writes[0]), usize::MAX);
        assert!(spools.writing());
        spools.close();
        assert_eq!(spools.failed(0).unwrap().kind(), io::ErrorKind::TimedOut);
        assert_eq!(file.metadata().unwrap().len(), BLOCK_BYTES as u64);
    }
}
