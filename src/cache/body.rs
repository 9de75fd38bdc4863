//! Record -> body: settings that the user asked for, what of them reaches the bytes of a format, and the maker that a build
//! calls for every record that brings no body of its own.
//!
//! [`resolve`] turns flags into a [`Shaping`], which is all of them that matter for the format and goes into the key, and
//! [`Resources`], the contents of the files that it has the digests of. [`Bodies`] sees nothing else.

use std::{
    borrow::Cow,
    collections::HashMap,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3;

use super::{
    body_media::Files,
    prompt::{BYTES_PER_TOKEN, Derivation, LengthReport, Prompts, RECIPE, Synthesis, TokenizerSpec, Trace, Wanted},
    prompt_tokenizer::{self, Tokenizer},
    spec::Reading,
};
use crate::{
    data::{
        Error,
        error::Place,
        limits,
        record::{self as data, Payload, Record, RequestLine, Sink},
    },
    formats::{Bodies as Kind, Format},
    wire::api::{self, Endpoint, Formatted, Formatter, Turn},
};

/// The model that bodies name when the user names none.
pub const DEFAULT_MODEL: &str = "default";

/// Which prompts are encoded again to see how many tokens they really have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckLengths {
    /// All of them.
    All,
    /// One of 512.
    #[default]
    Sample,
    /// None.
    Off,
}

/// What the flags say. Defaults are those of the command line.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// `--endpoint`
    pub endpoint: Endpoint,
    /// `--model`, in order; records take them in turn.
    pub models: Vec<String>,
    /// `--streaming`
    pub streaming: bool,
    /// `--use-legacy-max-tokens`
    pub legacy_max_tokens: bool,
    /// `--use-server-token-count`
    pub server_token_count: bool,
    /// `--per-chunk-usage`
    pub per_chunk_usage: bool,
    /// `--extra-inputs`, as written.
    pub extra_inputs: Vec<String>,
    /// Text of `--system-prompt` or `--system-prompt-file`.
    pub system_prompt: Option<String>,
    /// Text of `--template`.
    pub template: Option<String>,
    /// `--osl`: cap of the output of records that give none.
    pub output_tokens: Option<u32>,
    /// `--tokenizer FILE|DIR|approx[:BYTES_PER_TOKEN]`
    pub tokenizer: Option<String>,
    /// `--corpus FILE`
    pub corpus: Option<PathBuf>,
    /// `--seed`
    pub seed: u64,
    /// `--block-size`
    pub block_size: Option<u32>,
    /// `--block-scope global`
    pub global_blocks: bool,
    /// `--derivation`
    pub derivation: Derivation,
    /// `--prefix-len-multiplier` and its like.
    pub multipliers: Multipliers,
    /// `--check-lengths`
    pub check_lengths: CheckLengths,
}

/// What a trace's lengths and blocks are changed by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Multipliers {
    /// Of the shared blocks in front of a prompt.
    pub prefix_len: f64,
    /// Of what comes after them.
    pub prompt_len: f64,
    /// Of the output.
    pub output_len: f64,
    /// Independent copies of all prefixes, over which records are spread.
    pub prefix_roots: u32,
    /// Longest prompt, tokens.
    pub max_isl: Option<u32>,
    /// Longest output, tokens.
    pub max_osl: Option<u32>,
}

impl Default for Multipliers {
    fn default() -> Self {
        Self { prefix_len: 1.0, prompt_len: 1.0, output_len: 1.0, prefix_roots: 1, max_isl: None, max_osl: None }
    }
}

/// Everything that shapes bodies, for a format that has any to make; all of it is in the key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shaping {
    /// Name of the API.
    pub endpoint: String,
    /// In the order in which records take them.
    pub models: Vec<String>,
    /// Bodies ask for a stream.
    pub streaming: bool,
    /// Chat's cap has its old name.
    pub legacy_max_tokens: bool,
    /// A stream of the responses API is asked for usage.
    pub server_token_count: bool,
    /// A chat stream is asked for usage in each chunk.
    pub per_chunk_usage: bool,
    /// Names and JSON texts of what is merged into each body.
    pub extra_inputs: Vec<(String, String)>,
    /// In front of each conversation.
    pub system_prompt: Option<String>,
    /// Text of the template.
    pub template: Option<String>,
    /// Cap of records that give none.
    pub output_tokens: Option<u32>,
    /// Digest of the local files that records name; none when they name none.
    pub media: Option<String>,
    /// None when no record of the format is synthesized.
    pub synthesis: Option<Synthesis>,
    /// None when they change nothing.
    pub multipliers: Option<Multipliers>,
}

/// Contents of the files that a shaping has the digests of, and what reaches no byte.
#[derive(Debug, Default)]
pub struct Resources {
    /// Of `tokenizer.json`.
    pub tokenizer: Option<Vec<u8>>,
    /// Of the corpus.
    pub corpus: Option<String>,
    /// How much of the prompts is checked.
    pub check_lengths: CheckLengths,
    /// Local files that records name.
    pub media: Files,
}

/// Sorts out what of the flags matters for a format. None for a format whose records are bodies.
pub fn resolve(asked: &Asked, format: Format, reading: &Reading) -> Result<Option<(Shaping, Resources)>, Error> {
    let kind = match format.bodies() {
        Kind::Verbatim if reading.reformat && format == Format::SagemakerDataCapture => Kind::Formatted,
        // Answers are cut from the corpus too.
        Kind::Formatted if reading.synthesized_answers && matches!(format, Format::MultiTurn | Format::DagJsonl) => {
            Kind::Synthesized { block_size: 1 }
        }
        kind => kind,
    };
    if kind == Kind::Verbatim {
        return Ok(None);
    }
    let chat = matches!(asked.endpoint, Endpoint::Chat | Endpoint::ChatEmbeddings);
    let mut resources = Resources { check_lengths: asked.check_lengths, ..Resources::default() };
    let synthesis = match kind {
        Kind::Synthesized { block_size } => Some(synthesis(asked, block_size, &mut resources)?),
        Kind::Verbatim | Kind::Formatted => None,
    };
    let models = match asked.models.as_slice() {
        [] => vec![DEFAULT_MODEL.to_owned()],
        models => models.to_vec(),
    };
    let multipliers = checked(&asked.multipliers)?;
    let shaping = Shaping {
        endpoint: asked.endpoint.name().to_owned(),
        models,
        streaming: asked.streaming,
        legacy_max_tokens: asked.legacy_max_tokens && chat,
        server_token_count: asked.server_token_count && asked.endpoint == Endpoint::Responses,
        per_chunk_usage: asked.per_chunk_usage && chat,
        extra_inputs: api::parse_extra_inputs(&asked.extra_inputs)?,
        system_prompt: asked.system_prompt.clone(),
        template: asked.template.clone(),
        output_tokens: asked.output_tokens,
        media: None,
        synthesis,
        multipliers,
    };
    // What cannot be is said before anything is read or locked.
    Formatter::new(settings(&shaping)?)?;
    Ok(Some((shaping, resources)))
}

fn checked(m: &Multipliers) -> Result<Option<Multipliers>, Error> {
    for (flag, value, least) in [
        ("--prefix-len-multiplier", m.prefix_len, f64::MIN_POSITIVE),
        ("--prompt-len-multiplier", m.prompt_len, f64::MIN_POSITIVE),
        ("--output-len-multiplier", m.output_len, 0.0),
    ] {
        if !(value >= least && value <= 1e6) {
            let from = if least > 0.0 { "over 0" } else { "0 or more" };
            return Err(Error::usage(format!("{flag} is {value}, expected a number {from} and up to a million")));
        }
    }
    if m.prefix_roots == 0 || m.max_isl == Some(0) || m.max_osl == Some(0) {
        return Err(Error::usage("--prefix-roots, --max-isl and --max-osl are 1 or more"));
    }
    Ok((*m != Multipliers::default()).then(|| m.clone()))
}

fn synthesis(asked: &Asked, block_size: u32, resources: &mut Resources) -> Result<Synthesis, Error> {
    let mut separator = String::new();
    let tokenizer = match asked.tokenizer.as_deref().map(|text| (text, text.split_once(':'))) {
        None | Some(("approx", _)) => TokenizerSpec::Approx(BYTES_PER_TOKEN),
        Some((_, Some(("approx", ratio)))) => match ratio.parse::<f64>() {
            Ok(ratio) if (0.25..=64.0).contains(&ratio) => TokenizerSpec::Approx(ratio),
            _ => {
                return Err(Error::usage(format!(
                    "--tokenizer approx:{ratio}, expected bytes a token from 0.25 to 64"
                )));
            }
        },
        Some((path, _)) => {
            let path = Path::new(path);
            let folder = path.is_dir();
            let file = if folder { path.join("tokenizer.json") } else { path.to_path_buf() };
            let content = read(&file)?;
            if asked.derivation == Derivation::Aiperf {
                let beside = if folder { path } else { path.parent().unwrap_or(Path::new("")) };
                let config = std::fs::read(beside.join("tokenizer_config.json")).unwrap_or_default();
                separator = prompt_tokenizer::separator(&config).unwrap_or_default();
            }
            let digest = hex(&content);
            resources.tokenizer = Some(content);
            TokenizerSpec::File(digest)
        }
    };
    let corpus = match &asked.corpus {
        None => None,
        Some(path) => {
            let content = read(path)?;
            let digest = hex(&content);
            let text = String::from_utf8(content).map_err(|e| {
                Error::usage(format!(
                    "--corpus {}: no UTF-8 at byte {}",
                    path.display(),
                    e.utf8_error().valid_up_to() + 1
                ))
            })?;
            resources.corpus = Some(text);
            Some(digest)
        }
    };
    let block_size = asked.block_size.unwrap_or(block_size);
    if block_size == 0 || block_size > limits::TOKENS_MAX {
        return Err(Error::usage(format!("--block-size is {block_size}, expected 1..={}", limits::TOKENS_MAX)));
    }
    Ok(Synthesis {
        recipe: RECIPE,
        tokenizer,
        corpus,
        seed: asked.seed,
        global_blocks: asked.global_blocks,
        block_size,
        derivation: asked.derivation,
        separator,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|e| Error::file("cannot read", path, e))
}

fn hex(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn settings(shaping: &Shaping) -> Result<api::Settings, Error> {
    Ok(api::Settings {
        endpoint: Endpoint::parse(&shaping.endpoint)?,
        streaming: shaping.streaming,
        legacy_max_tokens: shaping.legacy_max_tokens,
        server_token_count: shaping.server_token_count,
        per_chunk_usage: shaping.per_chunk_usage,
        extra: shaping.extra_inputs.clone(),
        system: shaping.system_prompt.clone(),
        template: shaping.template.clone(),
    })
}

/// Makes the bodies of one build.
#[derive(Debug)]
pub struct Bodies<'r> {
    formatter: Formatter,
    models: Vec<String>,
    output_tokens: Option<u32>,
    prompts: Option<Prompts>,
    multipliers: Option<Multipliers>,
    block_size: u32,
    media: &'r Files,
    /// Ids that occur more than once, once a survey was made.
    shared: HashMap<u64, bool>,
    /// Records so far, where that decides something.
    count: AtomicU64,
}

impl<'r> Bodies<'r> {
    /// Prepares corpus, tokenizer and template. `trace` names the input that is made into bodies.
    pub fn new(shaping: &Shaping, resources: &'r Resources, trace: &Trace, threads: usize) -> Result<Self, Error> {
        let prompts = match &shaping.synthesis {
            None => None,
            Some(spec) => {
                let tokenizer = resources.tokenizer.as_deref().map(Tokenizer::new).transpose()?;
                let every = match resources.check_lengths {
                    CheckLengths::All => 1,
                    CheckLengths::Sample => 512,
                    CheckLengths::Off => 0,
                };
                let prompts = Prompts::new(spec, tokenizer, resources.corpus.as_deref(), trace, threads)?;
                Some(prompts.check_every(every))
            }
        };
        Ok(Self {
            formatter: Formatter::new(settings(shaping)?)?,
            models: shaping.models.clone(),
            output_tokens: shaping.output_tokens,
            prompts,
            multipliers: shaping.multipliers.clone(),
            block_size: shaping.synthesis.as_ref().map_or(1, |s| s.block_size),
            media: &resources.media,
            shared: HashMap::new(),
            count: AtomicU64::new(0),
        })
    }

    /// True when bodies hang on the order of the records: then one thread makes them, in the order of the input.
    pub fn in_order(&self) -> bool {
        self.models.len() > 1 || self.prompts.as_ref().is_some_and(Prompts::in_order)
    }

    /// A sink for a first pass over all records, when the bodies hang on all of them; give it to [`Self::surveyed`].
    pub fn survey(&self) -> Option<Survey> {
        let m = self.multipliers.as_ref()?;
        let wanted = m.prefix_len != 1.0 || m.prompt_len != 1.0;
        (wanted && self.prompts.is_some()).then(Survey::default)
    }

    /// Takes what the first pass has seen.
    pub fn surveyed(&mut self, survey: Survey) {
        self.shared = survey.seen;
    }

    /// Settles what a record is before its body is made: lengths after multipliers, caps, the content type of a form. `source`
    /// is its file's number in the input.
    pub fn prepare(&self, record: &mut Record<'_>, source: usize) -> Result<(), String> {
        if matches!(record.payload, Payload::Verbatim(_)) {
            return Ok(());
        }
        self.media.put(record)?;
        record.output_tokens = record.output_tokens.or(self.output_tokens);
        if let Some(m) = &self.multipliers {
            if let (Some(tokens), true) = (record.output_tokens, m.output_len != 1.0) {
                record.output_tokens = Some(scaled(tokens, m.output_len).max(1));
            }
            record.output_tokens = record.output_tokens.map(|n| n.min(m.max_osl.unwrap_or(n)));
            self.multiply(m, record, source)?;
        }
        if let Payload::Lengths { input_tokens, .. } = record.payload {
            record.input_tokens = Some(input_tokens);
        }
        if let Some(kind) = self.formatter.settings().endpoint.content_type() {
            let line = record.request.get_or_insert_with(RequestLine::default);
            line.headers.push(("Content-Type".into(), kind.into()));
        }
        Ok(())
    }

    /// Appends the body of a prepared record; `block` is told where in `out` each shared block begins and an id that stands
    /// for its bytes. The error says what is wrong with the record.
    pub fn make(
        &self,
        record: &Record<'_>,
        source: usize,
        out: &mut Vec<u8>,
        block: impl FnMut(usize, u64),
    ) -> Result<(), String> {
        let turn = match &record.payload {
            Payload::Verbatim(body) => {
                out.extend_from_slice(body);
                return Ok(());
            }
            Payload::Messages { messages, tools } => Turn::Messages { messages, tools: tools.as_deref() },
            Payload::Content(content) => Turn::Content(content),
            Payload::Lengths { .. } => Turn::Prompt,
            Payload::Turns(turns) => return self.make_turns(record, turns, source, out),
        };
        let mut body = Formatted::default();
        self.formatter.format(&self.request(record, &[turn]), &mut body)?;
        let mut from = 0;
        let mut block = block;
        for &hole in &body.holes {
            out.extend_from_slice(&body.bytes[from..hole]);
            from = hole;
            if let (Payload::Lengths { input_tokens, block_ids }, Some(prompts)) = (&record.payload, &self.prompts) {
                let wanted = Wanted { tokens: *input_tokens, ids: block_ids, place: place(record, source) };
                prompts.write(wanted, out, &mut block)?;
            }
        }
        out.extend_from_slice(&body.bytes[from..]);
        Ok(())
    }

    /// A body of several turns; its holes are answers.
    fn make_turns(
        &self,
        record: &Record<'_>,
        turns: &[data::Turn<'_>],
        source: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let mut answers = Vec::new();
        let borrowed: Vec<_> = turns
            .iter()
            .map(|turn| match turn {
                data::Turn::Messages { messages, tools } => Turn::Messages { messages, tools: tools.as_deref() },
                data::Turn::Content(content) => Turn::Content(content),
                data::Turn::Answer { tokens } => {
                    answers.push(*tokens);
                    Turn::Answer
                }
            })
            .collect();
        let mut body = Formatted::default();
        self.formatter.format(&self.request(record, &borrowed), &mut body)?;
        let session = record.session.as_deref().map_or(place(record, source), |s| xxh3::xxh3_64(s.as_bytes()));
        let mut from = 0;
        for (k, (&hole, tokens)) in body.holes.iter().zip(answers).enumerate() {
            out.extend_from_slice(&body.bytes[from..hole]);
            from = hole;
            if let Some(prompts) = &self.prompts {
                // The same answer in every later turn of its session.
                prompts.write_plain(tokens, session.wrapping_add(k as u64), out);
            }
        }
        out.extend_from_slice(&body.bytes[from..]);
        Ok(())
    }

    fn request<'a>(&'a self, record: &'a Record<'_>, turns: &'a [Turn<'a>]) -> api::Request<'a> {
        let number = if self.models.len() > 1 { self.count.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let model = self.models.get(number as usize % self.models.len().max(1)).map_or(DEFAULT_MODEL, String::as_str);
        api::Request {
            turns,
            model: record.model.as_deref().unwrap_or(model),
            output_tokens: record.output_tokens,
            extra: record.extra.as_deref(),
        }
    }

    /// What encoding prompts again has shown.
    pub fn lengths(&self) -> Option<LengthReport> {
        self.prompts.as_ref()?.lengths()
    }

    /// Lengths and blocks after the multipliers. The shared prefix is the leading ids that occur more than once, and never
    /// longer than the prompt; ids that are new are hashes with the top bit set, which no trace has in practice.
    fn multiply(&self, m: &Multipliers, record: &mut Record<'_>, source: usize) -> Result<(), String> {
        let place = place(record, source);
        let session = record.session.as_deref().map(|s| xxh3::xxh3_64(s.as_bytes()));
        let Payload::Lengths { input_tokens, block_ids } = &mut record.payload else { return Ok(()) };
        let size = u64::from(self.block_size);
        let mut ids = block_ids.to_vec();
        let mut tokens = u64::from(*input_tokens);
        if m.prefix_len != 1.0 || m.prompt_len != 1.0 {
            let shared = ids.iter().take_while(|id| self.shared.get(id) == Some(&true)).count();
            let prefix = (shared as u64 * size).min(tokens);
            let short = shared as u64 * size - prefix;
            // Grown blocks are rounded up, cut ones down but not to none, as AIPerf has it.
            let blocks = shared as f64 * m.prefix_len;
            let blocks = (if m.prefix_len > 1.0 { blocks.ceil() } else { blocks.floor() } as usize).max(shared.min(1));
            let fresh = |of: u64, k: usize| xxh3::xxh3_64_with_seed(&of.to_le_bytes(), k as u64 + 1) | 1 << 63;
            let repeat = (m.prefix_len.floor() as usize).max(1);
            let stretched =
                ids[..shared].iter().flat_map(|&id| (0..repeat).map(move |k| if k == 0 { id } else { fresh(id, k) }));
            let mut prefix_ids: Vec<_> = stretched.take(blocks).collect();
            let last = prefix_ids.last().copied().unwrap_or(0);
            let missing = blocks - prefix_ids.len();
            prefix_ids.extend((0..missing).map(|k| fresh(last, repeat + k)));
            let rest = (((tokens - prefix) as f64) * m.prompt_len).floor() as u64;
            let had_ids = !ids.is_empty();
            let own = if had_ids { rest.div_ceil(size) as usize } else { 0 };
            let mut own_ids = ids.split_off(shared);
            own_ids.truncate(own);
            let missing = own - own_ids.len();
            own_ids.extend((0..missing).map(|k| fresh(place, k)));
            tokens = (blocks as u64 * size).saturating_sub(short) + rest;
            ids = prefix_ids;
            ids.extend(own_ids);
        }
        if m.prefix_roots > 1 {
            let root = xxh3::xxh3_64(&session.unwrap_or(place).to_le_bytes()) % u64::from(m.prefix_roots);
            if root > 0 {
                ids.iter_mut().for_each(|id| *id = xxh3::xxh3_64_with_seed(&id.to_le_bytes(), !root) | 1 << 63);
            }
        }
        if let Some(most) = m.max_isl.map(u64::from)
            && tokens > most
        {
            tokens = most;
            ids.truncate(most.div_ceil(size) as usize);
        }
        if tokens > u64::from(limits::TOKENS_MAX) {
            return Err(format!("input_length is {tokens} after its multipliers, expected 0..={}", limits::TOKENS_MAX));
        }
        *input_tokens = tokens as u32;
        *block_ids = Cow::Owned(ids);
        Ok(())
    }
}

/// A count times a factor, rounded; halves go to the even neighbour, as AIPerf's do.
fn scaled(count: u32, factor: f64) -> u32 {
    (f64::from(count) * factor).round_ties_even().min(f64::from(limits::TOKENS_MAX)) as u32
}

/// Tells a record from all others of its input, whatever is before it.
fn place(record: &Record<'_>, source: usize) -> u64 {
    (source as u64) << 40 | record.line
}

/// Counts ids over all records: which occur more than once.
#[derive(Debug, Default)]
pub struct Survey {
    seen: HashMap<u64, bool>,
}

impl Sink for Survey {
    fn record(&mut self, record: Record<'_>) -> Result<(), Error> {
        if let Payload::Lengths { block_ids, .. } = &record.payload {
            for id in block_ids.iter() {
                self.seen.entry(*id).and_modify(|again| *again = true).or_insert(false);
            }
        }
        Ok(())
    }

    fn bad(&mut self, _: Place, _: String) -> Result<(), Error> {
        // Told when the records are read for good.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked { models: vec!["m".into()], ..Asked::default() }
    }

    fn bodies(asked: &Asked) -> Bodies<'static> {
        let (shaping, resources) = resolve(asked, Format::MooncakeTrace, &Reading::default()).unwrap().unwrap();
        Bodies::new(&shaping, Box::leak(Box::new(resources)), &Trace::default(), 1).unwrap()
    }

    fn lengths(line: u64, input_tokens: u32, ids: &[u64]) -> Record<'static> {
        let block_ids = Cow::Owned(ids.to_vec());
        Record { output_tokens: Some(10), ..Record::new(line, Payload::Lengths { input_tokens, block_ids }) }
    }

    fn made(bodies: &Bodies<'_>, mut record: Record<'_>) -> (String, Vec<(usize, u64)>) {
        let (mut out, mut blocks) = (Vec::new(), Vec::new());
        bodies.prepare(&mut record, 0).unwrap();
        bodies.make(&record, 0, &mut out, |at, id| blocks.push((at, id))).unwrap();
        (String::from_utf8(out).unwrap(), blocks)
    }

    #[test]
    fn a_prompt_of_blocks_in_a_chat_body() {
        let b = bodies(&Asked { block_size: Some(10), ..asked() });
        let (body, blocks) = made(&b, lengths(1, 25, &[7, 8, 9]));
        let head = r#"{"messages":[{"role":"user","content":""#;
        assert!(body.starts_with(head), "{body}");
        assert!(body.ends_with(r#""}],"model":"m","stream":false,"max_completion_tokens":10}"#), "{body}");
        let at: Vec<_> = blocks.iter().map(|&(at, _)| at - head.len()).collect();
        assert_eq!(at, [0, 44, 88]);
        assert_eq!((blocks[0].1, blocks[1].1), (7, 8));
        assert!(body.len() - head.len() > 88 + 22);
    }

    #[test]
    fn a_format_of_bodies_knows_no_setting() {
        let loud =
            Asked { streaming: true, extra_inputs: vec!["a:1".into()], tokenizer: Some("/nowhere".into()), ..asked() };
        assert!(resolve(&loud, Format::RawPayload, &Reading::default()).unwrap().is_none());
        assert!(resolve(&loud, Format::InputsJson, &Reading::default()).unwrap().is_none());
        assert!(
            resolve(&loud, Format::MooncakeTrace, &Reading::default()).unwrap_err().to_string().contains("/nowhere")
        );
    }

    #[test]
    fn every_setting_is_in_the_shaping() {
        let text = |asked: &Asked| {
            serde_json::to_string(&resolve(asked, Format::MooncakeTrace, &Reading::default()).unwrap().unwrap().0)
                .unwrap()
        };
        let plain = text(&asked());
        let folder = tempfile::tempdir().unwrap();
        let corpus = folder.path().join("c.txt");
        std::fs::write(&corpus, "some words").unwrap();
        let m = |change: fn(&mut Multipliers)| {
            let mut multipliers = Multipliers::default();
            change(&mut multipliers);
            Asked { multipliers, ..asked() }
        };
        let changes = [
            Asked { endpoint: Endpoint::Completions, ..asked() },
            Asked { models: vec!["n".into()], ..asked() },
            Asked { streaming: true, ..asked() },
            Asked { legacy_max_tokens: true, ..asked() },
            Asked { per_chunk_usage: true, ..asked() },
            Asked { extra_inputs: vec!["a:1".into()], ..asked() },
            Asked { system_prompt: Some("s".into()), ..asked() },
            Asked { output_tokens: Some(3), ..asked() },
            Asked { tokenizer: Some("approx:4".into()), ..asked() },
            Asked { corpus: Some(corpus), ..asked() },
            Asked { seed: 1, ..asked() },
            Asked { block_size: Some(16), ..asked() },
            Asked { global_blocks: true, ..asked() },
            Asked { derivation: Derivation::Aiperf, ..asked() },
            m(|m| m.prefix_len = 2.0),
            m(|m| m.prompt_len = 2.0),
            m(|m| m.output_len = 2.0),
            m(|m| m.prefix_roots = 2),
            m(|m| m.max_isl = Some(1)),
            m(|m| m.max_osl = Some(1)),
        ];
        let mut seen = vec![plain.clone()];
        for change in &changes {
            let changed = text(change);
            assert!(!seen.contains(&changed), "{change:?}");
            seen.push(changed);
        }
        let responses = |server_token_count| Asked { endpoint: Endpoint::Responses, server_token_count, ..asked() };
        assert_ne!(text(&responses(true)), text(&responses(false)));
        let same = [
            Asked { tokenizer: Some("approx".into()), ..asked() },
            Asked { tokenizer: Some("approx:4.4".into()), ..asked() },
            Asked { check_lengths: CheckLengths::All, ..asked() },
            Asked { server_token_count: true, ..asked() },
        ];
        same.iter().for_each(|same| assert_eq!(text(same), plain));
    }

    #[test]
    fn models_go_round_in_the_order_of_the_records() {
        let b = bodies(&Asked { models: vec!["a".into(), "b".into()], ..Asked::default() });
        assert!(b.in_order());
        let models: Vec<_> =
            (1..=3).map(|line| made(&b, lengths(line, 1, &[])).0.contains("\"model\":\"a\"")).collect();
        assert_eq!(models, [true, false, true]);
        assert!(!bodies(&asked()).in_order());
    }

    fn multiplied(change: impl FnOnce(&mut Multipliers), records: &[Record<'static>]) -> Vec<(u32, Vec<u64>, u32)> {
        let mut multipliers = Multipliers::default();
        change(&mut multipliers);
        let mut b = bodies(&Asked { block_size: Some(10), multipliers, ..asked() });
        if let Some(mut survey) = b.survey() {
            records.iter().for_each(|r| survey.record(r.clone()).unwrap());
            b.surveyed(survey);
        }
        let changed = records.iter().map(|record| {
            let mut record = record.clone();
            b.prepare(&mut record, 0).unwrap();
            let Payload::Lengths { input_tokens, block_ids } = &record.payload else { panic!() };
            assert_eq!(record.input_tokens, Some(*input_tokens));
            // What comes out can be made.
            b.make(&record, 0, &mut Vec::new(), |_, _| {}).unwrap();
            (*input_tokens, block_ids.to_vec(), record.output_tokens.unwrap())
        });
        changed.collect()
    }

    #[test]
    fn multipliers_act_on_lengths_and_blocks() {
        // Two records share ids 1 and 2; the second's prompt ends inside its shared part.
        let records = [lengths(1, 35, &[1, 2, 3, 4]), lengths(2, 15, &[1, 2])];
        let grown = multiplied(|m| m.prefix_len = 2.0, &records);
        assert_eq!((grown[0].0, grown[0].1.len()), (55, 6));
        assert_eq!((grown[1].0, grown[1].1.len()), (35, 4));
        assert_eq!(grown[0].1[..4], grown[1].1[..], "what was shared still is");
        assert_eq!(grown[0].1[4..], [3, 4]);
        let cut = multiplied(|m| m.prefix_len = 0.5, &records);
        assert_eq!((cut[0].0, &cut[0].1[..], cut[1].0, &cut[1].1[..]), (25, &[1, 3, 4][..], 5, &[1][..]));
        let longer = multiplied(|m| m.prompt_len = 3.0, &records);
        assert_eq!((longer[0].0, longer[0].1.len(), longer[1].0), (65, 7, 15));
        assert_eq!(longer[0].1[..4], [1, 2, 3, 4]);
        assert_eq!(multiplied(|m| m.prompt_len = 0.5, &records)[0], (27, vec![1, 2, 3], 10));
        assert_eq!(multiplied(|m| m.output_len = 0.25, &records)[0].2, 2);
        assert_eq!(multiplied(|m| m.max_osl = Some(3), &records)[0].2, 3);
        assert_eq!(multiplied(|m| m.max_isl = Some(20), &records)[0], (20, vec![1, 2], 10));
        let roots = multiplied(|m| m.prefix_roots = 1000, &records);
        assert_ne!(roots[0].1[0], roots[1].1[0]);
        assert_eq!(multiplied(|m| m.prompt_len = 2.0, &[lengths(1, 7, &[])])[0], (14, vec![], 10));
    }

    #[test]
    fn settings_that_cannot_be_are_said() {
        let says = |asked: Asked| {
            resolve(&asked, Format::MooncakeTrace, &Reading::default()).map(|_| ()).unwrap_err().to_string()
        };
        let m = |multipliers| says(Asked { multipliers, ..asked() });
        assert!(m(Multipliers { prefix_len: 0.0, ..Default::default() }).contains("--prefix-len-multiplier is 0"));
        assert!(
            m(Multipliers { output_len: f64::NAN, ..Default::default() }).contains("--output-len-multiplier is NaN")
        );
        assert!(m(Multipliers { prefix_roots: 0, ..Default::default() }).contains("--prefix-roots"));
        assert!(says(Asked { tokenizer: Some("approx:0".into()), ..asked() }).contains("bytes a token"));
        assert!(says(Asked { block_size: Some(0), ..asked() }).contains("--block-size is 0"));
        let aiperf = Asked { derivation: Derivation::Aiperf, ..asked() };
        let (shaping, resources) = resolve(&aiperf, Format::MooncakeTrace, &Reading::default()).unwrap().unwrap();
        let error = Bodies::new(&shaping, &resources, &Trace::default(), 1).unwrap_err();
        assert!(error.to_string().contains("--tokenizer FILE"));
    }
}
