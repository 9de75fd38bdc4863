//! The times of content events, held from the event to the end of its stream: only then is it known whether its gaps count.
//!
//! A stream has a chain of blocks out of one pool, so that memory follows what is in flight and not the longest stream that
//! each slot ever had. The pool costs address space until it is touched.

use crate::{
    data::{Nanos, Result, limits},
    sys::area::Area,
};

/// Stamps of a block: 1 KiB, so that a stream of 256 events takes two and an idle slot none.
const PER_BLOCK: usize = 128;
/// Blocks of a pool, at most: 4 GiB of address space, half a billion events in flight.
const BLOCKS_MAX: usize = 4 << 20;
/// No block.
const NONE: u32 = u32::MAX;

/// The times of one stream so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    first: u32,
    last: u32,
    /// How many.
    pub count: u32,
}

impl Chain {
    pub const EMPTY: Self = Self { first: NONE, last: NONE, count: 0 };
}

/// The pool of one worker.
#[derive(Debug)]
pub(super) struct Stamps {
    memory: Area,
    /// The next block of a chain, or of the free list.
    next: Box<[u32]>,
    free: u32,
    /// Blocks from here on were never used.
    fresh: u32,
    /// Events whose time found no room.
    pub lost: u64,
}

impl Stamps {
    /// Takes the memory for so many slots.
    ///
    /// Errors: no address space left for it.
    pub fn new(slots: usize) -> Result<Self> {
        let blocks = slots.saturating_mul(limits::STAMPS_PER_SLOT / PER_BLOCK).min(BLOCKS_MAX.max(slots));
        Ok(Self {
            memory: Area::new(blocks, PER_BLOCK * size_of::<u64>())?,
            next: vec![0; blocks].into(),
            free: NONE,
            fresh: 0,
            lost: 0,
        })
    }

    /// Adds a time to a chain.
    #[inline]
    pub fn push(&mut self, chain: &mut Chain, at: Nanos) {
        let place = chain.count as usize % PER_BLOCK;
        if place == 0 && !self.extend(chain) {
            self.lost += 1;
            return;
        }
        let bytes = size_of::<u64>();
        self.memory.slot_mut(chain.last as usize)[place * bytes..(place + 1) * bytes]
            .copy_from_slice(&at.0.to_ne_bytes());
        chain.count += 1;
    }

    fn extend(&mut self, chain: &mut Chain) -> bool {
        let block = if self.free != NONE {
            let block = self.free;
            self.free = self.next[block as usize];
            block
        } else if (self.fresh as usize) < self.next.len() {
            self.fresh += 1;
            self.fresh - 1
        } else {
            return false;
        };
        self.next[block as usize] = NONE;
        if chain.first == NONE {
            chain.first = block;
        } else {
            self.next[chain.last as usize] = block;
        }
        chain.last = block;
        true
    }

    /// The times of a chain in their order, as bytes of this machine's own order, some at a time.
    #[inline]
    pub fn each(&self, chain: &Chain, mut f: impl FnMut(&[u8])) {
        let (mut block, mut left) = (chain.first, chain.count as usize);
        while left > 0 {
            let here = left.min(PER_BLOCK);
            f(&self.memory.slot(block as usize)[..here * size_of::<u64>()]);
            left -= here;
            block = self.next[block as usize];
        }
    }

    /// The gaps between the times of a chain, nanoseconds.
    #[inline]
    pub fn gaps(&self, chain: &Chain, mut f: impl FnMut(u64)) {
        let mut before = None;
        self.each(chain, |bytes| {
            for stamp in bytes.as_chunks::<8>().0 {
                let at = u64::from_ne_bytes(*stamp);
                if let Some(before) = before.replace(at) {
                    f(at.saturating_sub(before));
                }
            }
        });
    }

    /// Gives the blocks of a chain back.
    #[inline]
    pub fn release(&mut self, chain: &mut Chain) {
        if chain.first != NONE {
            self.next[chain.last as usize] = self.free;
            self.free = chain.first;
        }
        *chain = Chain::EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stamps: &Stamps, chain: &Chain) -> Vec<u64> {
        let mut all = Vec::new();
        stamps.each(chain, |bytes| all.extend(bytes.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b))));
        all
    }

    #[test]
    fn chains_that_grow_side_by_side_keep_their_own_times() {
        let mut stamps = Stamps::new(4).unwrap();
        for round in 0..3u64 {
            let mut chains = [Chain::EMPTY; 3];
            for i in 0..1000u64 {
                for (k, chain) in chains.iter_mut().enumerate() {
                    if i % (k as u64 + 1) == 0 {
                        stamps.push(chain, Nanos(round + i * 10 + k as u64));
                    }
                }
            }
            for (k, chain) in chains.iter().enumerate() {
                let want: Vec<u64> =
                    (0..1000).filter(|i| i % (k as u64 + 1) == 0).map(|i| round + i * 10 + k as u64).collect();
                assert_eq!(read(&stamps, chain), want);
                let mut gaps = Vec::new();
                stamps.gaps(chain, |gap| gaps.push(gap));
                assert_eq!(gaps, vec![10 * (k as u64 + 1); want.len() - 1]);
            }
            chains.iter_mut().for_each(|chain| stamps.release(chain));
        }
        // 8 + 4 + 3 blocks, used three times.
        assert_eq!((stamps.fresh, stamps.lost), (15, 0));
    }

    #[test]
    fn a_pool_that_is_full_counts_what_it_cannot_hold() {
        let mut stamps = Stamps::new(1).unwrap();
        let mut chain = Chain::EMPTY;
        (0..limits::STAMPS_PER_SLOT as u64 + 5).for_each(|i| stamps.push(&mut chain, Nanos(i)));
        assert_eq!((chain.count as usize, stamps.lost), (limits::STAMPS_PER_SLOT, 5));
        let mut other = Chain::EMPTY;
        stamps.push(&mut other, Nanos(1));
        assert_eq!((other.count, stamps.lost), (0, 6));
        stamps.release(&mut chain);
        stamps.push(&mut other, Nanos(1));
        assert_eq!(read(&stamps, &other), [1]);
        let mut none = 0;
        stamps.gaps(&other, |_| none += 1);
        assert_eq!(none, 0);
    }
}
