//! What a build saw in the bodies: said before anything is sent, kept in the manifest, so that a hit says it too.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::flags::Flags;
use crate::data::units::{show_count, show_size};

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
        if self.media > 0 {
            lines.push(format!("{} carry images, audio or video", of(self.media)));
        }
        lines
    }
}

/// Gathers a report, record by record, in order.
pub struct Gather {
    report: BuildReport,
    /// Up to 1 TiB, three digits: it does not grow, as a saturating record would not make it. None is never: the bounds are
    /// valid.
    sizes: Option<Histogram<u64>>,
    bytes: u64,
}

impl Default for Gather {
    fn default() -> Self {
        Self { report: BuildReport::default(), sizes: Histogram::new_with_bounds(1, 1 << 40, 3).ok(), bytes: 0 }
    }
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
        }
        if let Some(model) = model {
            count_model(r, model);
        }
        self.bytes += bytes;
        if let Some(sizes) = &mut self.sizes {
            sizes.saturating_record(bytes);
        }
        r.body.min = if r.records == 1 { bytes } else { r.body.min.min(bytes) };
        r.body.max = r.body.max.max(bytes);
    }

    /// The counts that the builder keeps itself.
    pub fn report(&mut self) -> &mut BuildReport {
        &mut self.report
    }

    /// The report.
    pub fn finish(mut self) -> BuildReport {
        let body = &mut self.report.body;
        let (min, max) = (body.min, body.max);
        let at = |q| self.sizes.as_ref().map_or(0, |sizes| sizes.value_at_quantile(q)).clamp(min, max);
        (body.p50, body.p90, body.p99) = (at(0.5), at(0.9), at(0.99));
        body.mean = self.bytes as f64 / self.report.records.max(1) as f64;
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
}
