//! Prompts out of lengths and block hashes: the text that a trace tells only the size of.
//!
//! A text is cut from a corpus in *units*. With a tokenizer a unit is a token: either a word that is one token wherever it
//! stands (so that any row of units has exactly as many tokens), or, where a corpus has too few of those, a token of the corpus
//! as it was encoded. With `approx` there is no tokenizer and a token is so many bytes.
//!
//! The text of a block is a pure function of (seed, trace or global scope, hash id, block size, corpus, tokenizer):
//!
//! ```text
//! base  = xxh3(seed ++ digest of the trace, or zeros)          key = xxh3(kind ++ id, seeded with base)
//! block = segments of block_size/4 tokens (8 to 64), each from a start drawn by SplitMix64(key): a short last block is a prefix
//! tail  = the same, of what is longer than the blocks, keyed by all ids; a prompt without ids by its file and line
//! ```
//!
//! Several segments rather than one window, since a corpus of a million starts gives thousands of equal windows to the 182,790
//! blocks of a real trace, and equal blocks would be prefix hits that the trace does not have.

use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3;

use super::{
    prompt_aiperf::{self as aiperf, Twister},
    prompt_corpus::{self as corpus, Mix},
    prompt_tokenizer::Tokenizer,
};
use crate::data::{Error, json};

/// Version of everything in this file and its corpus that reaches the bytes.
pub const RECIPE: u32 = 1;
/// Tokens of one segment, at most.
const SEGMENT: u32 = 64;
/// And at least: two windows of 8 tokens still make some 10^10 blocks of 16, while shorter ones cut too many words.
const SEGMENT_MIN: u32 = 8;
/// Bytes a token of `--tokenizer approx`.
pub const BYTES_PER_TOKEN: f64 = 4.4;

/// Where token counts come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TokenizerSpec {
    /// So many bytes a token.
    Approx(f64),
    /// A `tokenizer.json` of this SHA-256.
    File(String),
}

impl TokenizerSpec {
    /// A short name for people.
    pub fn name(&self) -> String {
        match self {
            Self::Approx(ratio) => format!("approx:{ratio}"),
            Self::File(sha256) => format!("tokenizer {:.12}", sha256),
        }
    }
}

/// How the text of a block follows from its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Derivation {
    /// As told at the head of this file.
    #[default]
    Segments,
    /// As AIPerf 0.13 does.
    Aiperf,
}

/// Everything that shapes synthesized prompts; all of it is in the key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Synthesis {
    /// [`RECIPE`].
    pub recipe: u32,
    /// Counts.
    pub tokenizer: TokenizerSpec,
    /// SHA-256 of the user's corpus; none is the one built in.
    pub corpus: Option<String>,
    /// Seed of all texts.
    pub seed: u64,
    /// Equal ids are equal text over traces too, not only within one.
    pub global_blocks: bool,
    /// Tokens of a whole block.
    pub block_size: u32,
    /// From ids to text.
    pub derivation: Derivation,
    /// Text in front of each block in AIPerf's derivation, which counts as one of its tokens; empty for none.
    pub separator: String,
}

/// The trace that is made into prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Digest of its content.
    pub digest: [u8; 32],
    /// Plain SHA-256 of its file, which AIPerf's derivation names it by.
    pub file_sha256: Option<[u8; 32]>,
}

/// One prompt to write.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Tokens of all of it.
    pub tokens: u32,
    /// Its blocks.
    pub ids: &'a [u64],
    /// Tells this record from all others of the trace.
    pub place: u64,
}

/// How many tokens prompts have when they are encoded again, over how many they were to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LengthReport {
    /// Prompts looked at.
    pub checked: u64,
    /// How many are off by so many tokens.
    pub off: std::collections::BTreeMap<i64, u64>,
}

impl LengthReport {
    /// One sentence for people.
    pub fn line(&self) -> String {
        let exact = self.off.get(&0).copied().unwrap_or(0);
        let worst = self.off.keys().copied().max_by_key(|off| off.abs()).unwrap_or(0);
        match self.checked {
            0 => "no prompt was encoded again".into(),
            n if n == exact => format!("{n} prompts encoded again: all have exactly the tokens that the trace says"),
            n => {
                let sum: i64 = self.off.iter().map(|(off, count)| off * *count as i64).sum();
                let mean = sum as f64 / n as f64;
                format!("{n} prompts encoded again: {exact} exact, mean error {mean:+.2} tokens, worst {worst:+}")
            }
        }
    }
}

/// Writes prompts.
#[derive(Debug)]
pub struct Prompts {
    units: Units,
    base: u64,
    block_size: u32,
    derivation: Derivation,
    separator: Vec<u8>,
    /// AIPerf's component seed and the trace's name.
    component: (u64, String),
    /// AIPerf's sequence of windows that no id gives: used by one prompt after the other.
    sequence: Mutex<Twister>,
    tokenizer: Option<Tokenizer>,
    /// Which prompts are encoded again: one of so many, and the first few.
    check_every: u64,
    lengths: Mutex<LengthReport>,
}

/// A corpus cut into units.
#[derive(Debug)]
struct Units {
    /// Inside of a JSON string, escaped.
    text: Vec<u8>,
    /// Where each unit starts, and where the last one ends. With `ratio`: where segments may start.
    starts: Vec<u32>,
    /// Bytes a token, when a token is nothing else.
    ratio: Option<f64>,
    /// Tokens of one segment, at most: units that are not words only hold together in one window.
    segment: u32,
    /// The space in front of the first word of a prompt is left out: the tokenizer puts one there by itself.
    drop_first_space: bool,
}

impl Prompts {
    /// Prepares the corpus. `tokenizer` and `corpus` are the contents that `spec` has the digests of.
    pub fn new(
        spec: &Synthesis,
        tokenizer: Option<Tokenizer>,
        corpus: Option<&str>,
        trace: &Trace,
        threads: usize,
    ) -> Result<Self, Error> {
        let built_in;
        let corpus = match corpus {
            Some(text) => text,
            None => {
                built_in = corpus::built_in();
                &built_in
            }
        };
        let units = match (&spec.tokenizer, &tokenizer, spec.derivation) {
            (TokenizerSpec::Approx(_), _, Derivation::Aiperf) => {
                return Err(Error::usage("--derivation aiperf needs --tokenizer FILE"));
            }
            (TokenizerSpec::Approx(ratio), ..) => Units::bytes(corpus, *ratio),
            (TokenizerSpec::File(_), None, _) => return Err(Error::usage("the tokenizer's file was not read")),
            (TokenizerSpec::File(_), Some(t), Derivation::Aiperf) => Units::tokens(t, corpus, threads)?,
            (TokenizerSpec::File(_), Some(t), Derivation::Segments) => match Units::words(t, corpus) {
                Some(units) => units,
                None => Units::tokens(t, corpus, threads)?,
            },
        };
        if units.starts.len() < 2 {
            return Err(Error::usage("--corpus has no text to cut prompts from"));
        }
        let mut seed = spec.seed.to_le_bytes().to_vec();
        seed.extend_from_slice(if spec.global_blocks { &[0; 32] } else { &trace.digest });
        let component = aiperf::component_seed(spec.seed);
        let name = match (spec.derivation, trace.file_sha256) {
            (Derivation::Segments, _) => String::new(),
            (Derivation::Aiperf, Some(sha256)) => aiperf::trace_id(&sha256),
            (Derivation::Aiperf, None) => {
                return Err(Error::usage("--derivation aiperf needs the SHA-256 of one file"));
            }
        };
        Ok(Self {
            units,
            base: xxh3::xxh3_64(&seed),
            block_size: spec.block_size,
            derivation: spec.derivation,
            separator: escaped(&spec.separator),
            component: (component, name),
            sequence: Mutex::new(Twister::new(component)),
            tokenizer,
            check_every: 512,
            lengths: Mutex::default(),
        })
    }

    /// Encodes one prompt of so many again, 0 for none, 1 for all; it shows in [`Self::lengths`] and nowhere else.
    pub fn check_every(mut self, every: u64) -> Self {
        self.check_every = every;
        self
    }

    /// True when the text of a record hangs on those before it: AIPerf draws what no hash id gives from one sequence.
    pub fn in_order(&self) -> bool {
        self.derivation == Derivation::Aiperf
    }

    /// What encoding again has shown so far; none without a tokenizer.
    pub fn lengths(&self) -> Option<LengthReport> {
        self.tokenizer.as_ref()?;
        Some(lock(&self.lengths).clone())
    }

    /// Appends a prompt as it stands between the quotes of a JSON string; `block` is told where each block begins and an id
    /// that stands for its bytes. The error says what cannot be.
    pub fn write(
        &self,
        wanted: Wanted<'_>,
        out: &mut Vec<u8>,
        mut block: impl FnMut(usize, u64),
    ) -> Result<(), String> {
        let from = out.len();
        let sizes = Sizes::of(wanted, self.block_size)?;
        for (i, &id) in wanted.ids.iter().enumerate() {
            let size = if i + 1 == wanted.ids.len() { sizes.last } else { self.block_size };
            // A short last block is other bytes than the whole one.
            block(out.len(), if size == self.block_size { id } else { self.key(Kind::Short(size), &[id]) });
            self.block(id, size, out);
        }
        match (self.derivation, sizes.tail) {
            (_, 0) => {}
            (Derivation::Segments, tail) if wanted.ids.is_empty() => {
                self.segments(self.key(Kind::Prompt, &[wanted.place]), tail, SEGMENT, out);
            }
            (Derivation::Segments, tail) => self.segments(self.key(Kind::Tail, wanted.ids), tail, SEGMENT, out),
            (Derivation::Aiperf, tail) if wanted.ids.is_empty() => self.exact_window(tail, out)?,
            (Derivation::Aiperf, tail) => {
                let start = lock(&self.sequence).below(self.units.count());
                self.units.push(start as usize, tail as usize, out);
            }
        }
        if self.units.drop_first_space && out.get(from) == Some(&b' ') {
            out.remove(from);
        }
        self.check(wanted, &out[from..]);
        Ok(())
    }

    /// Appends so many tokens of text that belongs to a place and no block: an answer of an assistant.
    pub fn write_plain(&self, tokens: u32, place: u64, out: &mut Vec<u8>) {
        self.segments(self.key(Kind::Answer, &[place]), tokens, SEGMENT, out);
    }

    fn key(&self, kind: Kind, ids: &[u64]) -> u64 {
        let (kind, number) = match kind {
            Kind::Block => (1, 0),
            Kind::Tail => (2, 0),
            Kind::Prompt => (3, 0),
            Kind::Short(size) => (4, size),
            Kind::Answer => (5, 0),
        };
        let mut bytes = Vec::with_capacity(16 + ids.len() * 8);
        bytes.extend_from_slice(&u64::to_le_bytes(kind << 32 | u64::from(number)));
        ids.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
        xxh3::xxh3_64_with_seed(&bytes, self.base)
    }

    fn block(&self, id: u64, size: u32, out: &mut Vec<u8>) {
        match self.derivation {
            Derivation::Segments => {
                let segment = (self.block_size / 4).clamp(SEGMENT_MIN, SEGMENT);
                self.segments(self.key(Kind::Block, &[id]), size, segment, out);
            }
            Derivation::Aiperf => {
                out.extend_from_slice(&self.separator);
                let own = size - u32::from(!self.separator.is_empty()).min(size);
                let (component, trace) = &self.component;
                let start = aiperf::block_start(*component, trace, id, self.units.count());
                self.units.push(start as usize, own as usize, out);
            }
        }
    }

    fn segments(&self, key: u64, tokens: u32, segment: u32, out: &mut Vec<u8>) {
        let mut mix = Mix(key);
        let (mut left, step) = match self.units.ratio {
            Some(ratio) => (bytes_of(tokens, ratio), bytes_of(segment, ratio).max(1)),
            None => (tokens as usize, segment.min(self.units.segment) as usize),
        };
        // With no words to cut at, one window is what stays closest to its count.
        let step = if self.units.segment == u32::MAX { left } else { step };
        while left > 0 {
            let now = step.min(left);
            self.units.push(mix.below(self.units.count() as usize), now, out);
            left -= now;
        }
    }

    /// AIPerf's window without ids: encoded again and trimmed or filled up until it has its count, ten times at most.
    fn exact_window(&self, tokens: u32, out: &mut Vec<u8>) -> Result<(), String> {
        const TRIES: usize = 10;
        let Some(tokenizer) = &self.tokenizer else { return Err("there is no tokenizer".into()) };
        let mut sequence = lock(&self.sequence);
        let mut draw = |count: usize| {
            let mut text = Vec::new();
            // AIPerf takes no more than the corpus once.
            let count = count.min(self.units.count() as usize);
            self.units.push(sequence.below(self.units.count()) as usize, count, &mut text);
            json::unescape(&text).into_owned()
        };
        let mut text = draw(tokens as usize);
        for _ in 0..TRIES {
            let ends = tokenizer.ends(&text)?;
            match ends.len().cmp(&(tokens as usize)) {
                std::cmp::Ordering::Equal => break,
                std::cmp::Ordering::Greater => text.truncate(ends[tokens as usize - 1] as usize),
                std::cmp::Ordering::Less => text.push_str(&draw(tokens as usize - ends.len())),
            }
        }
        json::push_escaped(out, text.as_bytes());
        Ok(())
    }

    fn check(&self, wanted: Wanted<'_>, text: &[u8]) {
        let (Some(tokenizer), 1..) = (&self.tokenizer, self.check_every) else { return };
        if !self.key(Kind::Prompt, &[wanted.place]).is_multiple_of(self.check_every) {
            return;
        }
        if let Ok(ends) = tokenizer.ends(&json::unescape(text)) {
            let mut lengths = lock(&self.lengths);
            lengths.checked += 1;
            *lengths.off.entry(ends.len() as i64 - i64::from(wanted.tokens)).or_default() += 1;
        }
    }
}

/// What a key is for.
#[derive(Clone, Copy)]
enum Kind {
    Block,
    Tail,
    Prompt,
    Short(u32),
    Answer,
}

/// Tokens of the last block and of what comes after the blocks.
struct Sizes {
    last: u32,
    tail: u32,
}

impl Sizes {
    fn of(wanted: Wanted<'_>, block_size: u32) -> Result<Self, String> {
        let (n, size, count) = (u64::from(wanted.tokens), u64::from(block_size), wanted.ids.len() as u64);
        let Some(before_last) = count.checked_sub(1).map(|k| k * size) else {
            return Ok(Self { last: 0, tail: wanted.tokens });
        };
        if n <= before_last {
            return Err(format!(
                "input_length is {n}, too short for {count} hash_ids of {size} tokens, expected more than {before_last}; --block-size \
                 sets the tokens of a block"
            ));
        }
        let last = (n - before_last).min(size);
        Ok(Self { last: last as u32, tail: (n - before_last - last) as u32 })
    }
}

/// A lock whose holder cannot leave anything half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn bytes_of(tokens: u32, ratio: f64) -> usize {
    (f64::from(tokens) * ratio).round() as usize
}

fn escaped(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    json::push_escaped(&mut out, text.as_bytes());
    out
}

impl Units {
    /// Bytes for tokens. Quotes and backslashes become marks that need no escape, so that a byte of text is a byte of body.
    fn bytes(corpus: &str, ratio: f64) -> Self {
        let plain = corpus.split_whitespace().collect::<Vec<_>>().join(" ");
        let text: String = plain
            .chars()
            .map(|c| match c {
                '"' => '\'',
                '\\' => '/',
                c if c.is_control() => ' ',
                c => c,
            })
            .collect();
        let text = text.into_bytes();
        let mut starts: Vec<u32> = memchr::memchr_iter(b' ', &text).map(|at| at as u32).collect();
        if starts.is_empty() && !text.is_empty() {
            starts.push(0);
        }
        starts.push(text.len() as u32);
        Self { text, starts, ratio: Some(ratio), segment: SEGMENT, drop_first_space: false }
    }

    /// Words that are one token wherever they stand; none when the corpus or the tokenizer has too few.
    fn words(tokenizer: &Tokenizer, corpus: &str) -> Option<Self> {
        /// Fewer words in a row or fewer different ones make poor prompts: then the corpus is cut by its own tokens.
        const WORDS_MIN: usize = 4096;
        const DIFFERENT_MIN: usize = 200;
        let mut single = std::collections::HashMap::new();
        let (mut text, mut starts) = (Vec::new(), vec![0u32]);
        for (word, next) in words(corpus) {
            let one = *single.entry(word).or_insert_with(|| tokenizer.ends(word).is_ok_and(|ends| ends.len() == 1));
            if one && !matches!(next, Some('_' | '\'' | '’' | '-' | '0'..='9')) {
                text.extend_from_slice(word.as_bytes());
                starts.push(text.len() as u32);
            }
        }
        let different = single.values().filter(|one| **one).count();
        if starts.len() <= WORDS_MIN || different < DIFFERENT_MIN {
            return None;
        }
        let mut units = Self { text, starts, ratio: None, segment: SEGMENT, drop_first_space: false };
        units.hold(tokenizer).then_some(units)
    }

    /// Whether rows of words have as many tokens as words, with or without their first space.
    fn hold(&mut self, tokenizer: &Tokenizer) -> bool {
        let mut mix = Mix(0);
        let mut row = Vec::new();
        let mut count = 0;
        for length in [1usize, 3, 64, 500, 7] {
            self.push(mix.below(self.count() as usize), length, &mut row);
            count += length;
        }
        let row = String::from_utf8_lossy(&row);
        let exact = |text: &str| tokenizer.ends(text).is_ok_and(|ends| ends.len() == count);
        self.drop_first_space = !exact(&row) && exact(row.trim_start());
        self.drop_first_space || exact(&row)
    }

    /// The corpus by its own tokens, in the pieces of about 10,000 characters that AIPerf encodes by themselves.
    fn tokens(tokenizer: &Tokenizer, corpus: &str, threads: usize) -> Result<Self, Error> {
        let pieces = pieces(corpus);
        let encoded = tokenizer.ends_of_all(&pieces, threads).map_err(Error::usage)?;
        let (mut text, mut starts) = (Vec::new(), vec![0u32]);
        for (piece, ends) in pieces.iter().zip(encoded) {
            let mut from = 0;
            for end in ends {
                // A token that ends inside a character gets it whole, and the next one nothing of it.
                let mut end = (end as usize).clamp(from, piece.len());
                while !piece.is_char_boundary(end) {
                    end += 1;
                }
                json::push_escaped(&mut text, &piece.as_bytes()[from..end]);
                starts.push(u32::try_from(text.len()).map_err(|_| Error::usage("--corpus is over 4 GiB"))?);
                from = end;
            }
        }
        Ok(Self { text, starts, ratio: None, segment: u32::MAX, drop_first_space: false })
    }

    fn count(&self) -> u32 {
        (self.starts.len() - 1) as u32
    }

    /// Appends `amount` units, or bytes, from unit `from` on, going round at the end of the text.
    fn push(&self, from: usize, amount: usize, out: &mut Vec<u8>) {
        match self.ratio {
            Some(_) => self.push_bytes(self.starts[from] as usize, amount, out),
            None => {
                let (mut at, mut left, count) = (from, amount, self.count() as usize);
                while left > 0 {
                    let now = left.min(count - at);
                    out.extend_from_slice(&self.text[self.starts[at] as usize..self.starts[at + now] as usize]);
                    left -= now;
                    at = 0;
                }
            }
        }
    }

    fn push_bytes(&self, from: usize, amount: usize, out: &mut Vec<u8>) {
        let end = out.len() + amount;
        let mut at = from;
        while out.len() < end {
            let now = (end - out.len()).min(self.text.len() - at);
            out.extend_from_slice(&self.text[at..at + now]);
            at = 0;
        }
        // What is cut of a character is left out, and spaces keep the count.
        let cut = out[end - amount.min(4)..].utf8_chunks().last().map_or(0, |chunk| chunk.invalid().len());
        out.truncate(end - cut);
        out.resize(end, b' ');
    }
}

/// Each word with the space before it, and the character after it.
fn words(text: &str) -> impl Iterator<Item = (&str, Option<char>)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let at = memchr::memchr(b' ', rest.as_bytes())?;
            let word = &rest[at..];
            let letters = word[1..].bytes().take_while(u8::is_ascii_alphabetic).count();
            rest = &word[1 + letters..];
            let next = rest.chars().next();
            if letters > 0 && next.is_none_or(|c| !c.is_alphabetic()) {
                return Some((&word[..1 + letters], next));
            }
        }
    })
}

/// Lines without space around them, joined by one space into pieces that end once their lines have 10,000 characters.
fn pieces(corpus: &str) -> Vec<String> {
    const CHARACTERS: usize = 10_000;
    let (mut pieces, mut piece, mut count) = (Vec::new(), Vec::new(), 0);
    for line in corpus.lines().map(str::trim).filter(|line| !line.is_empty()) {
        piece.push(line);
        count += line.chars().count();
        if count >= CHARACTERS {
            pieces.push(piece.join(" "));
            piece.clear();
            count = 0;
        }
    }
    if !piece.is_empty() {
        pieces.push(piece.join(" "));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(super) fn spec(tokenizer: TokenizerSpec) -> Synthesis {
        Synthesis {
            recipe: RECIPE,
            tokenizer,
            corpus: None,
            seed: 7,
            global_blocks: false,
            block_size: 16,
            derivation: Derivation::Segments,
            separator: String::new(),
        }
    }

    fn approx() -> Prompts {
        Prompts::new(&spec(TokenizerSpec::Approx(4.4)), None, None, &Trace::default(), 1).unwrap()
    }

    fn written(prompts: &Prompts, tokens: u32, ids: &[u64], place: u64) -> (String, Vec<(usize, u64)>) {
        let (mut out, mut blocks) = (b"x".to_vec(), Vec::new());
        prompts.write(Wanted { tokens, ids, place }, &mut out, |at, id| blocks.push((at, id))).unwrap();
        (String::from_utf8(out).unwrap().split_off(1), blocks)
    }

    #[test]
    fn blocks_are_their_ids_and_a_short_one_is_a_prefix() {
        let p = approx();
        let (whole, blocks) = written(&p, 48, &[1, 2, 3], 1);
        assert_eq!(whole.len(), 3 * 70);
        assert_eq!(blocks, [(1, 1), (71, 2), (141, 3)]);
        let (other, _) = written(&p, 40, &[2, 3, 1], 2);
        assert_eq!(other[..140], whole[70..]);
        assert_eq!(other[140..], whole[..35]);
        let (_, short) = written(&p, 40, &[2, 3, 1], 2);
        assert_ne!(short[2].1, 1, "a short block is told apart from the whole one");
        let elsewhere = Trace { digest: [1; 32], ..Trace::default() };
        let same = Synthesis { global_blocks: true, ..spec(TokenizerSpec::Approx(4.4)) };
        let text = |s: &Synthesis, t: &Trace| written(&Prompts::new(s, None, None, t, 1).unwrap(), 16, &[1], 0).0;
        assert_ne!(text(&spec(TokenizerSpec::Approx(4.4)), &elsewhere), whole[..70]);
        assert_eq!(text(&same, &elsewhere), text(&same, &Trace::default()));
        let seeded = Synthesis { seed: 8, ..spec(TokenizerSpec::Approx(4.4)) };
        assert_ne!(text(&seeded, &Trace::default()), whole[..70]);
    }

    #[test]
    fn tails_hang_on_the_ids_and_plain_prompts_on_their_place() {
        let p = approx();
        assert_eq!(written(&p, 30, &[1], 1).0, written(&p, 30, &[1], 99).0);
        assert!(written(&p, 90, &[1], 1).0.starts_with(&written(&p, 30, &[1], 1).0));
        assert_ne!(written(&p, 30, &[], 1).0, written(&p, 30, &[], 2).0);
        assert_eq!(written(&p, 0, &[], 1).0, "");
    }

    #[test]
    fn too_short_for_its_blocks_is_said() {
        let p = approx();
        let error = p.write(Wanted { tokens: 32, ids: &[1, 2, 3], place: 0 }, &mut Vec::new(), |_, _| {}).unwrap_err();
        assert!(
            error.starts_with("input_length is 32, too short for 3 hash_ids of 16 tokens, expected more than 32"),
            "{error}"
        );
    }

    #[test]
    fn different_ids_are_different_texts() {
        let p = Prompts::new(
            &Synthesis { block_size: 16, ..spec(TokenizerSpec::Approx(4.4)) },
            None,
            None,
            &Trace::default(),
            1,
        )
        .unwrap();
        let mut seen = std::collections::HashSet::new();
        let mut out = Vec::new();
        for id in 0..100_000u64 {
            out.clear();
            p.block(id, 16, &mut out);
            assert!(seen.insert(xxh3::xxh3_64(&out)), "{id}");
        }
    }

    #[test]
    fn any_corpus_gives_the_count_of_bytes_and_valid_text() {
        let corpus = "naïve \"quoted\" back\\slash\ttab 日本語のテキスト \n\n end";
        let p = Prompts::new(&spec(TokenizerSpec::Approx(3.3)), None, Some(corpus), &Trace::default(), 1).unwrap();
        for tokens in 0..200 {
            let (text, _) = written(&p, tokens, &[], u64::from(tokens));
            assert_eq!(text.len(), bytes_of(tokens, 3.3));
            assert_eq!(escaped(&text), text.as_bytes());
        }
        assert!(Prompts::new(&spec(TokenizerSpec::Approx(3.3)), None, Some(" \n"), &Trace::default(), 1).is_err());
    }

    #[test]
    fn the_bytes_of_the_recipe() {
        // A change here is a change of every synthesized prompt: it goes with a new RECIPE.
        let (text, _) = written(&approx(), 100, &[1, 2, 3, 4, 5], 1);
        assert_eq!(xxh3::xxh3_64(text.as_bytes()), DIGEST, "{text}");
    }

    const DIGEST: u64 = 1_654_808_969_377_699_195;

    #[test]
    fn pieces_end_with_the_line_that_fills_them() {
        let text = format!("  a  \n\n{}\nb\n", "x".repeat(9_999));
        assert_eq!(pieces(&text), [format!("a {}", "x".repeat(9_999)), "b".to_owned()]);
    }

    #[test]
    fn words_stand_between_spaces_and_what_is_no_letter() {
        let got: Vec<_> = words("no one, two  three4 é x_y za").collect();
        assert_eq!(
            got,
            [(" one", Some(',')), (" two", Some(' ')), (" three", Some('4')), (" x", Some('_')), (" za", None)]
        );
    }

    proptest! {
        #[test]
        fn lengths_add_up(tokens in 1u32..5_000, count in 0usize..40) {
            static PROMPTS: std::sync::LazyLock<Prompts> = std::sync::LazyLock::new(approx);
            let p = &*PROMPTS;
            let ids: Vec<u64> = (0..count as u64).collect();
            let mut out = Vec::new();
            let wanted = Wanted { tokens, ids: &ids, place: 3 };
            match p.write(wanted, &mut out, |_, _| {}) {
                Ok(()) => prop_assert!((out.len() as f64 - f64::from(tokens) * 4.4).abs() <= count as f64 + 1.0),
                Err(_) => prop_assert!(tokens as usize <= (count - 1) * 16),
            }
        }
    }
}
