//! Checksums of what is stored: xxh3 over blocks, then over the block sums, so that a file is checked by all cores at once
//! and written by one pass. Against damage, not against malice: the key is what names content.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::sys::mem::{Changed, Map};

/// Bytes of one block: large enough that its sum costs nothing, small enough that a column of a few MiB keeps two cores busy.
const BLOCK_BYTES: usize = 1 << 20;

/// A running checksum of bytes that come in pieces of any size.
pub struct Check {
    block: Box<Xxh3>,
    filled: usize,
    sums: Box<Xxh3>,
}

impl Default for Check {
    fn default() -> Self {
        Self { block: Box::new(Xxh3::new()), filled: 0, sums: Box::new(Xxh3::new()) }
    }
}

impl Check {
    /// Takes the next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.filled));
            if now.len() == BLOCK_BYTES {
                // A whole block at once skips the buffering of the streaming form.
                self.sums.update(&xxh3_64(now).to_le_bytes());
            } else {
                self.block.update(now);
                self.filled += now.len();
                if self.filled == BLOCK_BYTES {
                    self.close_block();
                }
            }
            bytes = rest;
        }
    }

    fn close_block(&mut self) {
        self.sums.update(&self.block.digest().to_le_bytes());
        self.block.reset();
        self.filled = 0;
    }

    /// The sum of everything pushed.
    pub fn finish(mut self) -> u64 {
        if self.filled > 0 {
            self.close_block();
        }
        self.sums.digest()
    }
}

/// The same sum over bytes that are all there.
pub fn of(bytes: &[u8]) -> u64 {
    let mut check = Check::default();
    check.push(bytes);
    check.finish()
}

/// The same sum over a part of a map, by so many threads. An error when the file changes under it.
pub fn of_map(map: &Map, range: Range<u64>, threads: usize) -> Result<u64, Changed> {
    let sum_of =
        |_: &mut Vec<u8>, block: Range<u64>| map.read(range.start + block.start..range.start + block.end, xxh3_64);
    of_blocks(range.end - range.start, threads, &sum_of, || Changed)
}

/// The same sum over the first bytes of a file, read piece by piece: a map's pages would count as this process's memory.
pub fn of_file(file: &File, bytes: u64, threads: usize) -> io::Result<u64> {
    let sum_of = |buffer: &mut Vec<u8>, block: Range<u64>| {
        buffer.resize((block.end - block.start) as usize, 0);
        file.read_exact_at(buffer, block.start).map(|()| xxh3_64(buffer))
    };
    of_blocks(bytes, threads, &sum_of, || io::Error::other("a thread ended"))
}

/// The sum over all blocks, each summed by whichever thread comes to it, with a buffer that is the thread's own.
fn of_blocks<E: Send>(
    bytes: u64,
    threads: usize,
    sum_of: &(impl Fn(&mut Vec<u8>, Range<u64>) -> Result<u64, E> + Sync),
    died: impl Fn() -> E,
) -> Result<u64, E> {
    let blocks = bytes.div_ceil(BLOCK_BYTES as u64) as usize;
    let next = AtomicUsize::new(0);
    let sums: Vec<AtomicU64> = (0..blocks).map(|_| AtomicU64::new(0)).collect();
    let work = || {
        let mut buffer = Vec::new();
        loop {
            let k = next.fetch_add(1, Ordering::Relaxed);
            let Some(sum) = sums.get(k) else { return Ok(()) };
            let start = k as u64 * BLOCK_BYTES as u64;
            let end = (start + BLOCK_BYTES as u64).min(bytes);
            sum.store(sum_of(&mut buffer, start..end)?, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(blocks)).map(|_| scope.spawn(work)).collect();
        let mine = work();
        others.into_iter().fold(mine, |result, other| result.and(other.join().unwrap_or_else(|_| Err(died()))))
    })?;
    let mut all = Xxh3::new();
    for sum in &sums {
        all.update(&sum.load(Ordering::Relaxed).to_le_bytes());
    }
    Ok(all.digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_threads_give_the_same_sum() {
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES + 777).map(|i| (i * 31 % 251) as u8).collect();
        let want = of(&bytes);
        for piece in [1000, BLOCK_BYTES, BLOCK_BYTES + 1] {
            let mut check = Check::default();
            bytes.chunks(piece).for_each(|c| check.push(c));
            assert_eq!(check.finish(), want, "{piece}");
        }
        let map = Map::anonymous(&bytes).unwrap();
        for threads in [1, 2, 5] {
            assert_eq!(of_map(&map, 0..bytes.len() as u64, threads), Ok(want));
        }
        assert_eq!(of_map(&map, 5..5, 2), Ok(of(b"")));
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        assert_eq!(of_file(&file, bytes.len() as u64, 2).unwrap(), want);
        assert!(of_file(&file, bytes.len() as u64 + 1, 2).is_err());
        let mut flipped = bytes;
        flipped[2 * BLOCK_BYTES] ^= 1;
        assert_ne!(of(&flipped), want);
    }
}
