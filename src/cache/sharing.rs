//! What a perfect prefix cache would hit: how much of the prompts stands at the front of an earlier prompt too.
//!
//! A prompt is cut into blocks from its front: the blocks of its hash ids where it has some, else stretches of 1 KiB of the
//! prompt's JSON text (its `messages`, `prompt`, `input`, ...; what is left behind the last whole one is no block). A block hits
//! when it and all before it stood at the front of an earlier record's prompt. That is what a server with endless memory, which
//! has answered all earlier records, need not compute again.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3;

use super::recent::ByDigest;

/// Bytes of a block of text: some 256 tokens.
const TEXT_BYTES: usize = 1 << 10;
/// Distinct fronts that are remembered: what fills a hash table of 2^21 buckets, 19 MiB. Later records are not counted.
const FRONTS_MAX: usize = (1 << 21) / 8 * 7;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sharing {
    /// Records whose prompts were counted.
    pub records: u64,
    /// Blocks by hash id.
    pub id_blocks: u64,
    /// Those that hit.
    pub id_hits: u64,
    /// Blocks of 1 KiB of text, of prompts without ids.
    pub text_blocks: u64,
    /// Those that hit.
    pub text_hits: u64,
}

impl Sharing {
    /// One sentence; none when there are no blocks.
    pub fn lines(&self, of: u64) -> Vec<String> {
        let only = if self.records < of { format!(" (first {} records)", self.records) } else { String::new() };
        let says = |hits: u64, blocks: u64, what: &str| {
            let share = hits as f64 * 100.0 / blocks as f64;
            let (hits, blocks) = (crate::data::units::show_count(hits), crate::data::units::show_count(blocks));
            format!("a perfect prefix cache would hit {share:.1} % of the prompts: {hits} of {blocks} {what}{only}")
        };
        let mut lines = Vec::new();
        if self.id_blocks > 0 {
            lines.push(says(self.id_hits, self.id_blocks, "blocks by hash id"));
        }
        if self.text_blocks > 0 {
            lines.push(says(self.text_hits, self.text_blocks, "blocks of 1 KiB of text"));
        }
        lines
    }
}

/// Appends the next front of a prompt of blocks, which ends with the block that `id` stands for.
pub(super) fn push_id(fronts: &mut Vec<u64>, first: usize, id: u64) {
    let before = fronts[first..].last().copied().unwrap_or(0x6964);
    fronts.push(xxh3::xxh3_64_with_seed(&id.to_le_bytes(), before));
}

/// Appends the fronts of a prompt's text.
pub(super) fn push_text(fronts: &mut Vec<u64>, text: &[u8]) {
    let mut before = 0x7465_7874;
    for block in text.chunks_exact(TEXT_BYTES) {
        before = xxh3::xxh3_64_with_seed(block, before);
        fronts.push(before);
    }
}

/// Counts hits, record by record, in order.
#[derive(Default)]
pub(super) struct Count {
    seen: ByDigest<()>,
    /// No room was left for a record: it and all later ones are not counted, since a miss could be one of memory.
    full: bool,
    sharing: Sharing,
}

impl Count {
    /// Takes the fronts of one prompt, shortest first.
    pub(super) fn take(&mut self, fronts: &[u64], by_id: bool) {
        self.full |= self.seen.len() + fronts.len() > FRONTS_MAX;
        if self.full {
            return;
        }
        let hits = fronts.iter().take_while(|front| self.seen.contains_key(front)).count();
        self.seen.extend(fronts[hits..].iter().map(|&front| (front, ())));
        let s = &mut self.sharing;
        let (blocks, hit) =
            if by_id { (&mut s.id_blocks, &mut s.id_hits) } else { (&mut s.text_blocks, &mut s.text_hits) };
        *blocks += fronts.len() as u64;
        *hit += hits as u64;
        s.records += 1;
    }

    /// What was found.
    pub(super) fn finish(self) -> Sharing {
        self.sharing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(prompts: &[&[u64]]) -> Sharing {
        let mut count = Count::default();
        for ids in prompts {
            let mut fronts = vec![99];
            ids.iter().for_each(|&id| push_id(&mut fronts, 1, id));
            count.take(&fronts[1..], true);
        }
        count.finish()
    }

    #[test]
    fn only_what_stands_at_the_front_hits() {
        let s = count(&[&[1, 2, 3], &[1, 2, 4], &[2, 3], &[1, 2, 3, 5]]);
        assert_eq!((s.records, s.id_blocks, s.id_hits), (4, 12, 2 + 3), "a block behind another front is no hit");
        assert!(s.lines(4)[0].contains("41.7 %") && !s.lines(4)[0].contains("first"), "{:?}", s.lines(4));
        assert!(s.lines(9)[0].contains("first 4 records"));
    }

    #[test]
    fn text_is_shared_by_whole_blocks() {
        let mut count = Count::default();
        let text: Vec<u8> = (0..5000u32).map(|k| (k * 7 % 251) as u8).collect();
        for text in [&text[..], &text[..2048], &text[1..]] {
            let mut fronts = Vec::new();
            push_text(&mut fronts, text);
            count.take(&fronts, false);
        }
        let s = count.finish();
        assert_eq!((s.text_blocks, s.text_hits, s.id_blocks), (4 + 2 + 4, 2, 0));
    }

    #[test]
    fn memory_is_bounded_and_what_was_not_counted_is_told() {
        let mut count = Count::default();
        let ids: Vec<u64> = (0..FRONTS_MAX as u64).map(|k| xxh3::xxh3_64(&k.to_le_bytes())).collect();
        count.take(&ids, true);
        count.take(&[1], true);
        count.take(&[], true);
        assert_eq!(count.finish().records, 1);
    }
}
