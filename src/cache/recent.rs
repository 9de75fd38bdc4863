//! A table of bounded size that remembers what was put into it lately: two generations, of which the older one is dropped when
//! the younger is full. What it forgets is stored again, which costs room and never correctness.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// Rows of a generation: what fills a hash table of 2^20 buckets, 17 MiB with eight bytes a value.
const GENERATION_ROWS: usize = (1 << 20) / 8 * 7;

/// Keys are digests already.
#[derive(Default)]
pub(super) struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map whose keys are digests.
pub(super) type ByDigest<V> = HashMap<u64, V, BuildHasherDefault<Identity>>;

/// See the head of this file.
#[derive(Default)]
pub(super) struct Recent<V> {
    young: ByDigest<V>,
    old: ByDigest<V>,
}

impl<V: Copy> Recent<V> {
    pub(super) fn get(&self, key: u64) -> Option<V> {
        self.young.get(&key).or_else(|| self.old.get(&key)).copied()
    }

    /// Puts a value that is not there yet; the first one of a key stays.
    pub(super) fn put(&mut self, key: u64, value: V) {
        if self.young.contains_key(&key) || self.old.contains_key(&key) {
            return;
        }
        self.replace(key, value);
    }

    /// Puts a value, whatever was there.
    pub(super) fn replace(&mut self, key: u64, value: V) {
        if self.young.len() >= GENERATION_ROWS {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_stays_and_the_oldest_are_forgotten() {
        let mut table = Recent::default();
        table.put(7, 1);
        table.put(7, 2);
        assert_eq!(table.get(7), Some(1));
        let digest = |k: u64| xxhash_rust::xxh3::xxh3_64(&k.to_le_bytes());
        (0..2 * GENERATION_ROWS as u64 + 1).for_each(|k| table.put(digest(k), 0));
        assert_eq!(table.get(7), None);
        assert!(table.young.len() + table.old.len() <= 2 * GENERATION_ROWS);
    }
}
