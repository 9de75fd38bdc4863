//! `Spec`: everything that shapes the bytes of an entry, and the key that is its hash.
//!
//! Promises: a build is given a `Spec` and an input and nothing else, so a setting that is not in here cannot reach the bytes,
//! and one that is in here cannot be left out of the key: the key hashes the whole of it, field by field, as it is written to
//! the manifest. What only changes when or how a request is sent is not in it; nor is the input's name or place.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{body::Shaping, layout};

/// A SHA-256, shown in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub [u8; 32]);

/// The name of an entry.
pub type Key = Digest;

impl Digest {
    /// The digest of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Reads 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let mut out = [0; 32];
        if bytes.len() != 64 {
            return None;
        }
        for (byte, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            let digit = |c: u8| match c {
                b'0'..=b'9' => Some(c - b'0'),
                b'a'..=b'f' => Some(c - b'a' + 10),
                _ => None,
            };
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(out))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("expected 64 hexadecimal digits, found {text:?}"))
    }
}

/// How equal stretches of bodies are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dedup {
    /// As exactly as the format tells, and by content where it does not.
    #[default]
    Auto,
    /// Equal bodies, blocks and session histories that the format tells; no search.
    Exact,
    /// By content, everywhere.
    Chunk,
    /// Every body by itself, one after the other.
    Off,
}

/// Where the bytes of an entry are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// In `dataset.dat`.
    #[default]
    Copy,
    /// In the user's own file; the entry is an index over it.
    Reference,
}

/// Everything that shapes the bytes. Each field is in the key; a field that matters only for some formats is none for the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Layout of the entry and behaviour of the builder.
    pub layout: u32,
    /// Content of the input.
    pub input: Digest,
    /// Name of the format.
    pub format: String,
    /// Which lines are records.
    pub reading: Reading,
    /// How they are stored.
    pub dedup: Dedup,
    /// Where they are stored.
    pub store: Store,
    /// How records become bodies; none for a format whose records are bodies already.
    pub shaping: Option<Shaping>,
}

/// Settings of the reading of an input.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// The first so many records; none is all.
    pub limit: Option<u64>,
    /// Bad records are left out.
    pub skip_bad: bool,
    /// Lines are bodies, whatever they hold.
    pub verbatim_lines: bool,
}

impl Spec {
    /// A spec of a dataset whose records are bodies already.
    pub fn verbatim(input: Digest, format: &str) -> Self {
        Self {
            layout: layout::VERSION,
            input,
            format: format.to_owned(),
            reading: Reading::default(),
            dedup: Dedup::default(),
            store: Store::default(),
            shaping: None,
        }
    }

    /// The bytes that the key hashes: the JSON text of the whole, in the order of the fields.
    pub fn canonical(&self) -> Vec<u8> {
        // Serialization of plain structs into memory has no way to fail; were it to, an empty text would only make a key that
        // no entry's manifest agrees with, which is a miss.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The name of the entry.
    pub fn key(&self) -> Key {
        Digest::of(&self.canonical())
    }
}
