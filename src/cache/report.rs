//! What a build saw in the bodies: said before anything is sent, kept in the manifest, so that a hit says it too.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::{flags::Flags, prompt::LengthReport, sharing::Sharing};
use crate::data::units::{show_count, show_duration, show_size};

/// Distinct models that are counted by name; the rest is one number.
const MODELS_MAX: usize = 32;
/// Bytes of a model's name that are kept.
const MODEL_BYTES_MAX: usize = 200;

/// See the head of this file. Counts are of records unless said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuildReport {
    /// All of them.
    pub records: u64,
    /// Sessions.
    pub sessions: u64,
    /// Bodies that are requests of an LLM API.
    pub llm: u64,
    /// Bodies that ask for a stream.
    pub stream: u64,
    /// Bodies that ask for usage in the stream.
    pub usage: u64,
    /// Bodies with an image, audio or video.
    pub media: u64,
    /// Images in all bodies.
    pub images: u64,
    /// Audios in all bodies.
    pub audios: u64,
    /// Videos in all bodies.
    pub videos: u64,
    /// Bodies by model.
    pub models: BTreeMap<String, u64>,
    /// Bodies with a model beyond the first distinct ones.
    pub models_more: u64,
    /// Bodies with a token cap.
    pub capped: u64,
    /// Smallest cap; 0 when none has one.
    pub cap_min: u64,
    /// Largest cap.
    pub cap_max: u64,
    /// Tokens of the prompts, where the input tells them or they were synthesized.
    pub input_tokens: Tokens,
    /// What the caps of the output allow.
    pub output_tokens: Tokens,
    /// Where counts of synthesized prompts come from: `approx:4.4`, or the digest of a tokenizer; empty when none was.
    pub token_source: String,
    /// How many tokens synthesized prompts have when a tokenizer encodes them again; none without one.
    pub lengths: Option<Lengths>,
    /// What prompts share.
    pub sharing: Sharing,
    /// Sizes of the bodies.
    pub body: Sizes,
    /// Spans of the body with the most.
    pub spans_max: u64,
    /// Spans, summed over records.
    pub spans: u64,
    /// Records that share all their bytes with an earlier one.
    pub equal: u64,
    /// Records with a time of their own.
    pub dated: u64,
    /// Records with a delay after those before.
    pub delayed: u64,
    /// Records that nothing waits for though something follows.
    pub background: u64,
    /// First turns that have none, while others do: a dataset with such is no schedule.
    pub undated_first_turns: u64,
    /// The first of those: which input, from 0, and its line.
    pub first_undated: Option<(u64, u64)>,
    /// Latest time of a record, nanoseconds after the earliest.
    pub due_ns_max: u64,
}

/// A distribution of sizes, bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Sizes {
    pub min: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub max: u64,
    pub mean: f64,
}

/// A distribution of token counts, over the records that have one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Tokens {
    pub records: u64,
    pub total: u64,
    pub min: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub max: u64,
}

/// How far prompts are from the tokens they were to have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    /// Prompts that were encoded again.
    pub checked: u64,
    /// Those with exactly their count.
    pub exact: u64,
    /// Prompts by how many tokens they have too many.
    pub off: BTreeMap<i64, u64>,
}

impl From<LengthReport> for Lengths {
    fn from(report: LengthReport) -> Self {
        let exact = report.off.get(&0).copied().unwrap_or(0);
        Self { checked: report.checked, exact, off: report.off }
    }
}

impl BuildReport {
    /// What there is to say, one sentence a line.
    pub fn lines(&self) -> Vec<String> {
        let of = |n: u64| match n {
            n if n == self.records => "all".to_owned(),
            n => show_count(n),
        };
        let mut lines = vec![format!(
            "{} bodies of {} to {} (median {}, p99 {})",
            show_count(self.records),
            show_size(self.body.min),
            show_size(self.body.max),
            show_size(self.body.p50),
            show_size(self.body.p99)
        )];
        if self.llm > 0 {
            lines.push(format!(
                "{} are LLM requests; {} ask for a stream, {} for usage in it",
                of(self.llm),
                of(self.stream),
                of(self.usage)
            ));
        }
        if !self.models.is_empty() {
            let mut names: Vec<_> = self.models.iter().collect();
            names.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
            let shown: Vec<_> = names.iter().take(4).map(|(name, n)| format!("{name} ({})", of(**n))).collect();
            let more = names.len().saturating_sub(4);
            lines.push(format!(
                "models: {}{}",
                shown.join(", "),
                if more > 0 || self.models_more > 0 { ", and more" } else { "" }
            ));
        }
        if self.capped > 0 {
            lines.push(format!("{} cap their output, at {} to {} tokens", of(self.capped), self.cap_min, self.cap_max));
        }
        lines.extend(self.input_tokens.line("prompts", &self.token_source));
        lines.extend(self.sharing.lines(self.records));
        if self.media > 0 {
            let counts = [(self.images, "images"), (self.audios, "audios"), (self.videos, "videos")];
            let counts: Vec<_> =
                counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", show_count(*n))).collect();
            lines.push(format!("{} carry media: {}", of(self.media), counts.join(", ")));
        }
        if self.sessions != self.records || self.background > 0 {
            let background = match self.background {
                0 => String::new(),
                n => format!("; {} run in the background", of(n)),
            };
            lines.push(format!("{} sessions{background}", show_count(self.sessions)));
        }
        if self.dated > 0 || self.delayed > 0 {
            lines.push(format!(
                "{} have a time of their own, over {}; {} have a delay",
                of(self.dated),
                show_duration(self.due_ns_max),
                of(self.delayed)
            ));
        }
        lines
    }

    /// What a run of these bodies cannot measure, and why.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let cure = "add it to the bodies, or --streaming where ringload makes them";
        match self.stream {
            _ if self.llm == 0 => {}
            0 => warnings.push(format!(
                "no body asks for a stream, so there is no time to first token and between tokens: \"stream\":true is missing; {cure}"
            )),
            n if n < self.llm => warnings.push(format!(
                "{} of {} LLM requests do not ask for a stream: token times are of the others alone",
                show_count(self.llm - n),
                show_count(self.llm)
            )),
            _ => {}
        }
        if self.usage < self.stream {
            warnings.push(format!(
                "{} of {} streams do not ask for usage: their tokens are counted by events, unless the server sends usage by itself; \
                 \"stream_options\":{{\"include_usage\":true}} asks for it",
                show_count(self.stream - self.usage),
                show_count(self.stream)
            ));
        }
        if self.dated > 0 && self.undated_first_turns > 0 {
            warnings.push(format!(
                "{} first turns have no time though others do: this dataset cannot be played with --schedule",
                show_count(self.undated_first_turns)
            ));
        }
        warnings
    }
}

impl Tokens {
    fn line(&self, what: &str, source: &str) -> Option<String> {
        if self.records == 0 {
            return None;
        }
        let source = if source.is_empty() { String::new() } else { format!(" by {source}") };
        Some(format!(
            "{what} of {} tokens{source}: {} to {} (median {}, p99 {})",
            show_count(self.total),
            show_count(self.min),
            show_count(self.max),
            show_count(self.p50),
            show_count(self.p99)
        ))
    }
}

/// Gathers one distribution of counts.
struct Spread {
    /// Three digits, up to 1 Ti: it does not grow, as a saturating record would not make it. None is never: the bounds are valid.
    histogram: Option<Histogram<u64>>,
    seen: Tokens,
}

impl Default for Spread {
    fn default() -> Self {
        Self { histogram: Histogram::new_with_bounds(1, 1 << 40, 3).ok(), seen: Tokens::default() }
    }
}

impl Spread {
    fn push(&mut self, n: u64) {
        let seen = &mut self.seen;
        seen.min = if seen.records == 0 { n } else { seen.min.min(n) };
        seen.max = seen.max.max(n);
        seen.records += 1;
        seen.total += n;
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(n);
        }
    }

    fn finish(mut self) -> Tokens {
        let (min, max) = (self.seen.min, self.seen.max);
        let at = |q| self.histogram.as_ref().map_or(0, |h| h.value_at_quantile(q)).clamp(min, max);
        (self.seen.p50, self.seen.p90, self.seen.p99) = (at(0.5), at(0.9), at(0.99));
        self.seen
    }
}

/// Gathers a report, record by record, in order.
#[derive(Default)]
pub struct Gather {
    report: BuildReport,
    sizes: Spread,
    input_tokens: Spread,
    output_tokens: Spread,
}

impl Gather {
    /// Nothing seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one body.
    pub fn body(&mut self, bytes: u64, flags: Flags, output_cap: Option<u32>, model: Option<&str>) {
        let r = &mut self.report;
        r.records += 1;
        r.llm += u64::from(flags.llm());
        r.stream += u64::from(flags.stream());
        r.usage += u64::from(flags.usage());
        r.media += u64::from(flags.media());
        if let Some(cap) = output_cap.map(u64::from) {
            r.cap_min = if r.capped == 0 { cap } else { r.cap_min.min(cap) };
            r.cap_max = r.cap_max.max(cap);
            r.capped += 1;
            self.output_tokens.push(cap);
        }
        if let Some(model) = model {
            count_model(r, model);
        }
        self.sizes.push(bytes);
    }

    /// Takes the count of one prompt.
    pub fn input_tokens(&mut self, tokens: Option<u32>) {
        if let Some(tokens) = tokens {
            self.input_tokens.push(u64::from(tokens));
        }
    }

    /// The counts that the builder keeps itself.
    pub fn report(&mut self) -> &mut BuildReport {
        &mut self.report
    }

    /// The report.
    pub fn finish(mut self) -> BuildReport {
        let Tokens { records, total, min, p50, p90, p99, max } = self.sizes.finish();
        self.report.body = Sizes { min, p50, p90, p99, max, mean: total as f64 / records.max(1) as f64 };
        self.report.input_tokens = self.input_tokens.finish();
        self.report.output_tokens = self.output_tokens.finish();
        self.report
    }
}

fn count_model(report: &mut BuildReport, model: &str) {
    let room = report.models.len() < MODELS_MAX;
    let name = &model[..(0..=MODEL_BYTES_MAX.min(model.len())).rev().find(|&k| model.is_char_boundary(k)).unwrap_or(0)];
    match report.models.get_mut(name) {
        Some(count) => *count += 1,
        None if room => {
            report.models.insert(name.to_owned(), 1);
        }
        None => report.models_more += 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_large_bodies_are_those_of_their_sizes() {
        let mut gather = Gather::new();
        for i in 1..=100u64 {
            gather.body(i * 100_000, Flags::default(), None, None);
        }
        let body = gather.finish().body;
        assert_eq!((body.min, body.max), (100_000, 10_000_000));
        for (got, want) in [(body.p50, 5_000_000), (body.p90, 9_000_000), (body.p99, 9_900_000)] {
            assert!(got.abs_diff(want) * 1000 <= want, "{got} {want}");
        }
    }

    #[test]
    fn what_cannot_be_measured_is_said() {
        let of = |stream, usage| BuildReport { records: 10, llm: 10, stream, usage, ..BuildReport::default() };
        assert!(of(10, 10).warnings().is_empty());
        assert!(of(0, 0).warnings()[0].contains("no time to first token"));
        assert!(of(7, 7).warnings()[0].starts_with("3 of 10 LLM requests do not ask for a stream"));
        assert!(of(10, 4).warnings()[0].starts_with("6 of 10 streams do not ask for usage"));
        assert!(BuildReport { records: 10, ..BuildReport::default() }.warnings().is_empty(), "no LLM, no tokens");
        let part = BuildReport { dated: 3, undated_first_turns: 2, ..of(10, 10) };
        assert!(part.warnings()[0].contains("--schedule"));
    }

    #[test]
    fn tokens_are_summed_exactly() {
        let mut gather = Gather::new();
        for n in [5, 1, 126_195] {
            gather.body(1, Flags::default(), Some(n), None);
            gather.input_tokens(Some(n));
        }
        gather.input_tokens(None);
        let report = gather.finish();
        let t = &report.input_tokens;
        assert_eq!((t.records, t.total, t.min, t.max), (3, 126_201, 1, 126_195));
        assert_eq!(report.output_tokens, *t);
        assert!(report.lines().iter().any(|line| line.starts_with("prompts of 126,201 tokens: 1 to 126,195")));
    }
}
