//! Layer 6: results to numbers to outputs, one file an output.
//!
//! ```text
//! RunResult --merge--> Merged --+--> Summary --+--> text, JSON, CSV
//!               Plan, facts ----+              +--> run directory: summary.json, latency.hgrm, timeline.csv, report.html, ...
//! rows-N.spool, chunks-N.spool ----> records.*, slices.*, profile_export*, figures weighted by time
//! responses-N.spool ---------------> responses.jsonl, tokens counted after the run
//! ```
//!
//! Pure functions of plan, facts and results: no engine, no clock, no thread. The same results give the same bytes.

pub mod aiperf;
pub mod ceiling;
pub mod client;
pub mod compare;
pub mod csv;
pub mod dir;
pub mod escape;
pub mod findings;
pub mod hdr;
pub mod html;
pub mod keep;
pub mod merge;
mod parquet;
pub mod percentile;
pub mod planned;
pub mod records;
pub mod requests;
pub mod responses;
pub mod slices;
pub mod spools;
pub mod stored;
pub mod summary;
pub mod svg;
pub mod sweep;
pub mod table;
pub mod text;
pub mod threshold;

#[cfg(test)]
mod fixture;

pub use dir::{Run, RunDir, load};
pub use keep::{Wanted, keep};
pub use merge::{Merged, merge};
pub use percentile::Percentile;
pub use summary::{Asked, Status, Summary};
pub use threshold::Threshold;

use crate::data::results::RunResult;

/// A finished run's tables and figures: merged, freed of secrets, summarised.
pub fn finish(asked: &Asked<'_>, result: &RunResult) -> (Summary, Merged) {
    let mut merged = merge(result);
    merged.hide_secrets(&asked.plan.head);
    (Summary::new(asked, result, &merged), merged)
}

/// The exit status of a finished run: 130 or 143 after a signal, 1 when it failed, 99 when a `--fail-if` held, else 0.
pub fn exit_code(summary: &Summary) -> u8 {
    match (summary.signal.as_deref(), summary.status) {
        (Some("SIGTERM"), _) => 143,
        (Some(_), _) | (None, Status::Partial) => 130,
        (None, Status::Failed) => 1,
        (None, Status::Complete) if summary.thresholds.iter().any(|t| !t.ok) => 99,
        (None, Status::Complete) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::results::EndedBy;

    #[test]
    fn exit_codes_by_precedence() {
        let code = |ended_by, succeeded: u64, held: bool| {
            let mut result = fixture::result();
            result.ended_by = ended_by;
            if succeeded == 0 {
                for w in &mut result.workers {
                    w.buckets.cut += w.buckets.succeeded;
                    w.buckets.succeeded = 0;
                }
            }
            let (mut summary, merged) = fixture::summarize(&fixture::plan(), &result);
            let expr = if held { "failed>0" } else { "failed>1000" };
            summary.thresholds = vec![Threshold::parse(expr).unwrap().judge(&summary, &merged)];
            exit_code(&summary)
        };
        assert_eq!(code(EndedBy::Requests, 1, false), 0);
        assert_eq!(code(EndedBy::Duration, 1, true), 99);
        assert_eq!(code(EndedBy::Duration, 0, true), 1);
        assert_eq!(code(EndedBy::Error, 1, true), 1);
        assert_eq!(code(EndedBy::Interrupt, 0, true), 130);
        assert_eq!(code(EndedBy::Terminate, 1, true), 143);
    }
}
