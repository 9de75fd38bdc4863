//! Places in a body that the same bytes have in any other body: where to look for what is stored already.
//!
//! Places are chosen by content (a gear hash of the 64 bytes before them), so that text that moved is found again; an anchor is
//! the digest of the bytes behind such a place. It only proposes: what is shared is then compared byte by byte and grown to
//! both sides, so a chance equality of digests costs a comparison and nothing else.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes that an anchor's digest covers. Long enough that a phrase of everyday JSON is none, short against the runs that are
/// worth sharing.
pub(super) const ANCHOR_BYTES: usize = 1 << 10;
/// Bytes passed over behind an anchor before the next is looked for: halves the work.
const SKIP_BYTES: usize = 3 << 10;
/// Bits of the hash that must be 0: one place in 2,048 bytes, so an anchor every 5 KiB, three in the shortest run worth sharing.
const MASK: u64 = 0x7ff << 53;

/// One anchor of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Anchor {
    /// Place in the body.
    pub(super) at: usize,
    pub(super) digest: u64,
}

/// The digest of the bytes at a place; none when there are too few.
pub(super) fn digest_at(body: &[u8], at: usize) -> Option<u64> {
    body.get(at..at + ANCHOR_BYTES).map(xxh3_64)
}

/// The digest of a shared block, by its id: blocks are told apart by the format, so their bytes need no look.
pub(super) fn digest_of_block(id: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&id.to_le_bytes(), 0x0062_6c6f_636b)
}

/// The digest of the start of a session's bodies.
pub(super) fn digest_of_session(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(name.as_bytes(), 0x7365_7373)
}

/// Appends the anchors of a body, by rising place; the first is at its start.
pub(super) fn find(body: &[u8], anchors: &mut Vec<Anchor>) {
    let Some(last) = body.len().checked_sub(ANCHOR_BYTES) else { return };
    let mut put = |at: usize| anchors.push(Anchor { at, digest: xxh3_64(&body[at..at + ANCHOR_BYTES]) });
    put(0);
    let mut from = SKIP_BYTES;
    while from < last {
        // The hash forgets a byte after 64 more: warmed up on those, it depends on nothing before them.
        let mut hash = body[from - 64..from].iter().fold(0u64, |h, &byte| roll(h, byte));
        let found = body[from..last].iter().position(|&byte| {
            hash = roll(hash, byte);
            hash & MASK == 0
        });
        let Some(found) = found else { return };
        put(from + found + 1);
        from += found + 1 + SKIP_BYTES;
    }
}

#[inline(always)]
fn roll(hash: u64, byte: u8) -> u64 {
    (hash << 1).wrapping_add(GEAR[byte as usize])
}

/// A random number a byte.
static GEAR: [u64; 256] = gear();

const fn gear() -> [u64; 256] {
    let mut table = [0; 256];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut k = 0;
    while k < 256 {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[k] = z ^ (z >> 31);
        k += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(seed: u64, bytes: usize) -> Vec<u8> {
        (0..bytes as u64).map(|k| (xxh3_64(&(seed << 32 | k).to_le_bytes()) % 64 + 32) as u8).collect()
    }

    #[test]
    fn moved_text_has_the_same_anchors_soon_after_the_change() {
        let base = text(1, 200_000);
        let mut moved = text(2, 777);
        moved.extend(&base);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        find(&base, &mut a);
        find(&moved, &mut b);
        assert!(a.len() > 20 && a[0].at == 0, "{}", a.len());
        let shared: Vec<_> =
            b.iter().filter(|x| a.iter().any(|y| y.digest == x.digest && y.at + 777 == x.at)).collect();
        assert!(shared.len() + 8 >= a.len() && shared[0].at < 40_000, "{} of {}", shared.len(), a.len());
    }

    #[test]
    fn places_rise_and_lie_inside() {
        for bytes in [0, 1, ANCHOR_BYTES - 1, ANCHOR_BYTES, ANCHOR_BYTES + 1, 5000, 100_000] {
            let (body, mut found) = (text(3, bytes), Vec::new());
            find(&body, &mut found);
            assert!(found.windows(2).all(|w| w[0].at < w[1].at));
            assert!(found.iter().all(|a| digest_at(&body, a.at) == Some(a.digest)), "{bytes}");
            assert_eq!(found.is_empty(), bytes < ANCHOR_BYTES);
        }
    }
}
