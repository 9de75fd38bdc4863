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
    /// Captured requests are taken apart and wrapped anew.
    pub reformat: bool,
    /// Conversations get a synthesized answer after each turn.
    pub synthesized_answers: bool,
    /// Requests that are drawn from pools; none is the format's own.
    pub entries: Option<u64>,
    /// Seed of those draws.
    pub draw_seed: u64,
    /// Names of the pools, which are those of their files: the one place where the name of an input reaches a body.
    pub pools: Vec<String>,
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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::cache::{
        body::Multipliers,
        prompt::{Derivation, Synthesis, TokenizerSpec},
    };

    /// A spec in which every option is something, so that every leaf is there to be changed.
    fn full() -> Spec {
        let synthesis = Synthesis {
            recipe: 1,
            tokenizer: TokenizerSpec::File("ab".into()),
            corpus: Some("cd".into()),
            seed: 7,
            global_blocks: false,
            block_size: 512,
            derivation: Derivation::Segments,
            separator: "</s>".into(),
        };
        let shaping = Shaping {
            endpoint: "chat".into(),
            models: vec!["a".into(), "b".into()],
            streaming: true,
            legacy_max_tokens: false,
            server_token_count: false,
            per_chunk_usage: true,
            extra_inputs: vec![("x".into(), "1".into()), ("y".into(), "2".into())],
            system_prompt: Some("be brief".into()),
            template: Some("{}".into()),
            output_tokens: Some(5),
            media: Some("m".into()),
            synthesis: Some(synthesis),
            multipliers: Some(Multipliers {
                prefix_len: 1.5,
                prompt_len: 2.5,
                output_len: 3.5,
                prefix_roots: 2,
                max_isl: Some(1000),
                max_osl: Some(100),
            }),
        };
        Spec {
            reading: Reading {
                limit: Some(5),
                skip_bad: true,
                verbatim_lines: false,
                reformat: false,
                synthesized_answers: false,
                entries: Some(7),
                draw_seed: 1,
                pools: vec!["query".into(), "passages".into()],
            },
            shaping: Some(shaping),
            ..Spec::verbatim(Digest([7; 32]), "mooncake_trace")
        }
    }

    /// Every value below, with each of its leaves changed in turn.
    fn changed(value: &Value) -> Vec<Value> {
        let inner = |key: &dyn Fn(&mut Value) -> &mut Value, child: &Value| -> Vec<Value> {
            let put = |new: Value| {
                let mut whole = value.clone();
                *key(&mut whole) = new;
                whole
            };
            changed(child).into_iter().map(put).collect()
        };
        match value {
            Value::Object(map) => {
                map.iter().flat_map(|(name, child)| inner(&|w| &mut w[name.as_str()], child)).collect()
            }
            Value::Array(list) => {
                let mut all: Vec<_> = (0..list.len()).flat_map(|k| inner(&|w| &mut w[k], &list[k])).collect();
                all.extend([Value::Array(list[1..].to_vec()), Value::Array(list.iter().rev().cloned().collect())]);
                all
            }
            Value::Bool(b) => vec![Value::Bool(!b)],
            Value::Number(n) => vec![n.as_u64().map_or_else(|| (n.as_f64().unwrap() + 1.0).into(), |n| (n + 1).into())],
            Value::String(s) => match (Digest::parse(s), s.as_str()) {
                (Some(digest), _) => vec![Digest([digest.0[0] ^ 1; 32]).to_string().into()],
                (None, "auto") => ["exact", "chunk", "off"].map(Value::from).into(),
                (None, "copy") => vec!["reference".into()],
                (None, "segments") => vec!["aiperf".into()],
                (None, text) => vec![format!("{text}x").into()],
            },
            Value::Null => Vec::new(),
        }
    }

    #[test]
    fn a_change_of_any_field_is_another_key() {
        let spec = full();
        let value = serde_json::to_value(&spec).unwrap();
        let mut all = changed(&value);
        // An option that is none, and a value of another kind, are other values too.
        for path in [
            "/reading/limit",
            "/reading/entries",
            "/shaping",
            "/shaping/system_prompt",
            "/shaping/template",
            "/shaping/output_tokens",
            "/shaping/media",
            "/shaping/synthesis",
            "/shaping/synthesis/corpus",
            "/shaping/multipliers",
            "/shaping/multipliers/max_isl",
            "/shaping/multipliers/max_osl",
        ] {
            let mut none = value.clone();
            *none.pointer_mut(path).unwrap() = Value::Null;
            all.push(none);
        }
        let mut approx = value.clone();
        approx["shaping"]["synthesis"]["tokenizer"] = serde_json::json!({ "approx": 4.4 });
        all.extend(changed(&approx).into_iter().filter(|v| v["shaping"]["synthesis"]["tokenizer"]["approx"] != 4.4));
        all.push(approx);
        // A pair that lost its other half is no spec at all.
        let specs = all.into_iter().filter_map(|value| serde_json::from_value::<Spec>(value).ok());
        let mut keys: Vec<Key> = specs.map(|spec| spec.key()).collect();
        assert!(keys.len() >= 50, "{}", keys.len());
        keys.push(spec.key());
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn no_field_is_left_out_of_what_is_hashed() {
        // The patterns name every field, so a new one breaks them and is then looked for in what is hashed; one that were
        // skipped in the writing would be missing there.
        let Spec { layout: _, input: _, format: _, reading, dedup: _, store: _, shaping } = full();
        let Reading { limit: _, skip_bad: _, verbatim_lines: _, reformat: _, .. } = &reading;
        let Reading { synthesized_answers: _, entries: _, draw_seed: _, pools: _, .. } = reading;
        let Some(Shaping { endpoint: _, models: _, streaming: _, legacy_max_tokens: _, server_token_count: _, .. }) =
            &shaping
        else {
            panic!()
        };
        let Some(Shaping {
            per_chunk_usage: _,
            extra_inputs: _,
            system_prompt: _,
            template: _,
            output_tokens: _,
            media: _,
            ..
        }) = &shaping
        else {
            panic!()
        };
        let Some(Shaping { synthesis: Some(synthesis), multipliers: Some(multipliers), .. }) = shaping else {
            panic!()
        };
        let Synthesis { recipe: _, tokenizer: _, corpus: _, seed: _, global_blocks: _, block_size: _, .. } = &synthesis;
        let Synthesis { derivation: _, separator: _, .. } = synthesis;
        let Multipliers { prefix_len: _, prompt_len: _, output_len: _, prefix_roots: _, max_isl: _, max_osl: _ } =
            multipliers;
        let text = String::from_utf8(full().canonical()).unwrap();
        let names = "layout input format reading limit skip_bad verbatim_lines reformat synthesized_answers entries draw_seed pools media dedup store shaping endpoint models streaming \
                     legacy_max_tokens server_token_count per_chunk_usage extra_inputs system_prompt template output_tokens \
                     synthesis recipe tokenizer corpus seed global_blocks block_size derivation separator multipliers \
                     prefix_len prompt_len output_len prefix_roots max_isl max_osl";
        for name in names.split_whitespace() {
            assert!(text.contains(&format!("\"{name}\":")), "{name}");
        }
        let leaves = serde_json::to_value(full()).unwrap();
        assert_eq!(
            count_names(&leaves),
            names.split_whitespace().count() + 1,
            "file, of the tokenizer, is the one more"
        );
    }

    fn count_names(value: &Value) -> usize {
        match value {
            Value::Object(map) => map.len() + map.values().map(count_names).sum::<usize>(),
            Value::Array(list) => list.iter().map(count_names).sum(),
            _ => 0,
        }
    }

    #[test]
    fn a_spec_reads_back_as_itself() {
        let spec = full();
        let back: Spec = serde_json::from_slice(&spec.canonical()).unwrap();
        assert_eq!((back.key(), &back), (spec.key(), &spec));
        assert_eq!(Digest::parse(&spec.key().to_string()), Some(spec.key()));
        assert!(Digest::parse(&"F".repeat(64)).is_none() && Digest::parse("ab").is_none());
    }
}
