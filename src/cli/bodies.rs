//! Flags of how records become bodies, for `run`, `build` and `inspect` alike.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use crate::{
    cache::{Asked, CheckLengths, Multipliers, prompt::Derivation},
    data::{Error, Result, units},
    wire::api::Endpoint,
};

/// How bodies are made of records that bring none. None of it touches records that are bodies already.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Bodies")]
pub struct BodyFlags {
    /// API of the bodies: chat, completions, responses, messages, embeddings, generate, template, ...
    #[arg(long, value_name = "API", default_value = "chat")]
    pub endpoint: String,
    /// Model that bodies name; more than one are taken in turn [default: default]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub model: Vec<String>,
    /// Bodies ask for a stream
    #[arg(long)]
    pub streaming: bool,
    /// Members merged into every body: name:value[,...] or a JSON object
    #[arg(long, value_name = "K:V|JSON")]
    pub extra_inputs: Vec<String>,
    /// Chat's cap is max_tokens, not max_completion_tokens
    #[arg(long)]
    pub use_legacy_max_tokens: bool,
    /// A stream of the responses API is asked for usage
    #[arg(long)]
    pub use_server_token_count: bool,
    /// A chat stream is asked for usage in each chunk
    #[arg(long)]
    pub per_chunk_usage: bool,
    /// Text in front of every conversation
    #[arg(long, value_name = "TEXT", conflicts_with = "system_prompt_file")]
    pub system_prompt: Option<String>,
    /// File with the text in front of every conversation
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub system_prompt_file: Option<PathBuf>,
    /// MiniJinja template of the body, for --endpoint template
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub template: Option<PathBuf>,
    /// Cap of the output of records that give none, tokens
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    pub osl: Option<u32>,
    /// Counts of synthesized prompts: a tokenizer.json, its folder, or approx[:BYTES_PER_TOKEN] [default: approx:4.4]
    #[arg(long, value_name = "FILE|approx", value_hint = ValueHint::AnyPath)]
    pub tokenizer: Option<String>,
    /// Text that prompts are cut from [default: built in]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub corpus: Option<PathBuf>,
    /// Tokens of a block that a hash id stands for [default: the format's]
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    pub block_size: Option<u32>,
    /// Whether equal ids are equal text within one trace or over all
    #[arg(long, value_name = "SCOPE", default_value = "trace")]
    pub block_scope: BlockScope,
    /// How text follows from ids: ringload's own way, or AIPerf's
    #[arg(long, value_name = "WAY", default_value = "segments")]
    pub derivation: DerivationFlag,
    /// Factor of the length of shared prefixes
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub prefix_len_multiplier: f64,
    /// Factor of the length of what comes after the shared prefix
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub prompt_len_multiplier: f64,
    /// Factor of the length of outputs
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub output_len_multiplier: f64,
    /// Independent copies of all prefixes, over which records are spread
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub prefix_roots: u32,
    /// Longest synthesized prompt, tokens
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    pub max_isl: Option<u32>,
    /// Longest output, tokens
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    pub max_osl: Option<u32>,
    /// What stands between the turns of a conversation: nothing, or synthesized answers
    #[arg(long, value_name = "HOW", default_value = "none")]
    pub assistant: AssistantFlag,
    /// Requests to draw from a random_pool [default: 100]
    #[arg(long, value_name = "N", value_parser = units::parse_positive_count)]
    pub entries: Option<u64>,
    /// Captured requests are taken apart and wrapped anew (sagemaker_data_capture)
    #[arg(long)]
    pub reformat: bool,
    /// Which prompts are encoded again to see how many tokens they have
    #[arg(long, value_name = "WHICH", default_value = "sample")]
    pub check_lengths: CheckFlag,
}

/// `--block-scope`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BlockScope {
    /// Within one trace
    Trace,
    /// Over all traces
    Global,
}

/// `--derivation`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DerivationFlag {
    /// Ringload's own
    Segments,
    /// As AIPerf 0.13
    Aiperf,
}

/// `--assistant`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AssistantFlag {
    /// Authored turns only
    None,
    /// Answers of each turn's output_length
    Synth,
}

/// `--check-lengths`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckFlag {
    /// Every prompt
    All,
    /// One of 512
    Sample,
    /// None
    Off,
}

fn tokens(text: &str) -> Result<u32, String> {
    let n = units::parse_positive_count(text)?;
    u32::try_from(n).map_err(|_| format!("expected 1..={}", u32::MAX))
}

impl BodyFlags {
    /// What the flags say, with the texts of the files they name.
    ///
    /// Errors: an unknown endpoint, a file that cannot be read.
    pub fn asked(&self, seed: u64) -> Result<Asked> {
        let text = |path: &PathBuf| std::fs::read_to_string(path).map_err(|e| Error::file("cannot read", path, e));
        Ok(Asked {
            endpoint: Endpoint::parse(&self.endpoint)?,
            models: self.model.clone(),
            streaming: self.streaming,
            legacy_max_tokens: self.use_legacy_max_tokens,
            server_token_count: self.use_server_token_count,
            per_chunk_usage: self.per_chunk_usage,
            extra_inputs: self.extra_inputs.clone(),
            system_prompt: match &self.system_prompt_file {
                Some(path) => Some(text(path)?),
                None => self.system_prompt.clone(),
            },
            template: self.template.as_ref().map(text).transpose()?,
            output_tokens: self.osl,
            tokenizer: self.tokenizer.clone(),
            corpus: self.corpus.clone(),
            seed,
            block_size: self.block_size,
            global_blocks: self.block_scope == BlockScope::Global,
            derivation: match self.derivation {
                DerivationFlag::Segments => Derivation::Segments,
                DerivationFlag::Aiperf => Derivation::Aiperf,
            },
            multipliers: Multipliers {
                prefix_len: self.prefix_len_multiplier,
                prompt_len: self.prompt_len_multiplier,
                output_len: self.output_len_multiplier,
                prefix_roots: self.prefix_roots,
                max_isl: self.max_isl,
                max_osl: self.max_osl,
            },
            check_lengths: match self.check_lengths {
                CheckFlag::All => CheckLengths::All,
                CheckFlag::Sample => CheckLengths::Sample,
                CheckFlag::Off => CheckLengths::Off,
            },
        })
    }
}
