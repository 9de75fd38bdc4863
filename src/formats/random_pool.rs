//! `random_pool`: files of texts and media from which requests are drawn with replacement.
//!
//! Each file is a pool, named by its stem; the k-th draws of all pools are merged into one request. What an entry gives without
//! a name has the name of its pool (rankings take `query` and `passages` by name). Draws come from the seed alone.

use std::io::Read as Input;

use super::{
    ReadOptions,
    content::{self, NAMES},
    fields::{Fields, Read, Stop, wrong},
    lines,
};
use crate::data::{
    Error,
    error::Place,
    limits::HELD_BYTES_MAX,
    record::{Content, Payload, Record, Sink},
};

/// Requests that are drawn when nobody says how many.
pub(super) const ENTRIES: u64 = 100;

/// The lines of one file.
struct Pool<'a> {
    name: &'a str,
    text: Vec<u8>,
    /// Number, start and end of each good line.
    lines: Vec<(u64, usize, usize)>,
}

pub(super) fn pools(
    options: &ReadOptions,
    files: &mut [(&str, &mut dyn Input)],
    sink: &mut dyn Sink,
) -> Result<(), Error> {
    let mut pools = Vec::new();
    let mut held = 0;
    for (name, input) in files {
        let pool = read(name, input, sink)?;
        held += pool.text.len() as u64;
        if held > HELD_BYTES_MAX {
            return Err(Error::dataset(Place::file(*name), format!("pools are over {HELD_BYTES_MAX} bytes in all")));
        }
        if !pool.lines.is_empty() {
            pools.push(pool);
        }
    }
    if pools.is_empty() {
        return Ok(());
    }
    let mut draws = Draws(options.seed);
    for _ in 0..options.entries.unwrap_or(ENTRIES) {
        let mut merged = Content::default();
        let mut first = None;
        for pool in &pools {
            let (number, start, end) = pool.lines[draws.below(pool.lines.len())];
            first.get_or_insert(number);
            // Every line was read once before, so none fails here.
            if let Ok(content) = entry(pool.name, &pool.text[start..end]) {
                merged.texts.extend(content.texts);
                merged.images.extend(content.images);
                merged.audios.extend(content.audios);
                merged.videos.extend(content.videos);
            }
        }
        sink.record(Record::new(first.unwrap_or(1), Payload::Content(merged)))?;
    }
    Ok(())
}

fn read<'a>(name: &'a str, input: &mut dyn Input, sink: &mut dyn Sink) -> Result<Pool<'a>, Error> {
    let mut pool = Pool { name: stem(name), text: Vec::new(), lines: Vec::new() };
    lines::each_of(name, input, |number, line| match entry(pool.name, line) {
        Ok(_) => {
            let start = pool.text.len();
            pool.text.extend_from_slice(line);
            pool.lines.push((number, start, pool.text.len()));
            match pool.text.len() as u64 > HELD_BYTES_MAX {
                true => Err(Error::dataset(Place::file(name), format!("a pool is over {HELD_BYTES_MAX} bytes"))),
                false => Ok(()),
            }
        }
        Err(Stop::Bad(what)) => sink.bad(Place::line(name, number), what),
        Err(Stop::End(error)) => Err(error),
    })?;
    Ok(pool)
}

fn entry<'a>(pool: &'a str, line: &'a [u8]) -> Read<Content<'a>> {
    let fields = Fields::parse(&NAMES, line)?;
    if let Some(kind) = fields.get("type")
        && kind.string().as_deref() != Some("random_pool")
    {
        return Err(wrong("type", kind, "\"random_pool\" or no type"));
    }
    content::content(&fields, pool, line)
}

pub(super) fn stem(name: &str) -> &str {
    let name = name.rsplit('/').next().unwrap_or(name);
    let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

/// SplitMix64: the same draws on every machine.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(z ^ (z >> 31)) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::{parse_pools, testing::Kept};
    use super::*;

    fn drawn(options: &ReadOptions, files: &[(&str, &str)]) -> Kept {
        let mut readers: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_bytes())).collect();
        let mut inputs: Vec<(&str, &mut dyn Input)> =
            readers.iter_mut().map(|(n, r)| (*n, r as &mut dyn Input)).collect();
        let mut kept = Kept::default();
        parse_pools(super::super::Format::RandomPool, options, &mut inputs, &mut kept).unwrap();
        kept
    }

    fn texts(kept: &Kept) -> Vec<Vec<(String, String)>> {
        let all = kept.records.iter().map(|r| match &r.payload {
            Payload::Content(c) => c.texts.iter().map(|m| (m.name.to_string(), m.value.to_string())).collect(),
            other => panic!("{other:?}"),
        });
        all.collect()
    }

    #[test]
    fn draws_of_all_pools_are_merged_and_named() {
        let files = [
            ("d/query.jsonl", "{\"text\":\"q1\"}\n{\"text\":\"q2\"}\n"),
            ("d/passages.jsonl", "{\"texts\":[\"a\",\"b\"]}\n"),
        ];
        let options = ReadOptions { entries: Some(40), seed: 3, ..ReadOptions::default() };
        let got = texts(&drawn(&options, &files));
        assert_eq!(got.len(), 40);
        for request in &got {
            assert_eq!(request[0].0, "query");
            assert_eq!(request[1..], [("passages".into(), "a".into()), ("passages".into(), "b".into())]);
        }
        let firsts = got.iter().filter(|r| r[0].1 == "q1").count();
        assert!((5..35).contains(&firsts), "{firsts}");
        assert_eq!(got, texts(&drawn(&options, &files)));
        assert_ne!(got, texts(&drawn(&ReadOptions { seed: 4, ..options }, &files)));
        assert_eq!(drawn(&ReadOptions::default(), &files).records.len(), 100);
    }

    #[test]
    fn bad_entries_are_told_and_never_drawn() {
        let kept = drawn(&ReadOptions::default(), &[("p.jsonl", "{\"text\":\"ok\"}\n{\"foo\":1}\n")]);
        assert_eq!(kept.bad, ["p.jsonl:2: none of text, image, audio or video is there; keys seen: foo"]);
        assert!(texts(&kept).iter().all(|r| r[0].1 == "ok"));
        assert!(drawn(&ReadOptions::default(), &[("p.jsonl", "\n")]).records.is_empty());
    }
}
