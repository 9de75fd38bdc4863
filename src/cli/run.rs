//! `ringload run`: the main job, from flags to exit status.

use std::sync::Arc;

use super::{
    flags::{FormatOut, RunFlags},
    plan::{self, Sent},
    progress::Meter,
    terminal,
    url::Url,
};
use crate::{
    cache::View,
    data::{
        Error, Result,
        plan::Plan,
        results::{CacheState, DatasetFacts, RunResult},
    },
    engine,
    report::{self, Asked, Percentile, Summary, Threshold, text, threshold},
    sys::signal,
};

/// Runs, prints, and returns the exit status.
///
/// Errors: whatever keeps the run from beginning.
pub fn run(flags: &RunFlags) -> Result<u8> {
    let urls = plan::urls(flags)?;
    let judged = Judged::new(flags)?;
    signal::watch()?;
    let builtin = match &urls[0] {
        Url::Builtin { path, options } => Some((path.clone(), options.clone())),
        _ => None,
    };
    let placement = plan::place(&flags.load, None)?;
    for warning in &placement.warnings {
        terminal::say(&format!("warning: {warning}"));
    }
    let body = plan::inline_body(flags.source.body.as_deref(), flags.source.body_file.as_deref())?;
    let view = Arc::new(View::inline(body.as_deref().unwrap_or_default())?);
    let facts = DatasetFacts {
        format: if body.is_some() { "inline".into() } else { String::new() },
        records: 1,
        cache: CacheState::Off,
        body_bytes: view.body_bytes_total(),
        stored_bytes: view.stored_bytes(),
        ..DatasetFacts::default()
    };
    let _ = builtin;
    let targets = plan::targets(&urls, &flags.request)?;
    let plan = plan::plan(flags, targets, Sent::Inline, &placement)?;
    let (result, plan) = drive(flags, plan, view, &facts)?;
    let merged = report::merge(&result);
    let asked =
        Asked { plan: &plan, dataset: &facts, percentiles: &judged.percentiles, thresholds: &judged.thresholds };
    let summary = Summary::new(&asked, &result, &merged);
    let shown = if flags.output.json || flags.output.format_out == FormatOut::Json {
        summary.to_json()
    } else {
        text::render(&summary, &merged.samples, if terminal::colour() { text::Colour::On } else { text::Colour::Off })
    };
    terminal::result(&shown)?;
    Ok(report::exit_code(&summary))
}

/// What the results are held against, parsed before anything is sent.
struct Judged {
    percentiles: Vec<Percentile>,
    thresholds: Vec<Threshold>,
}

impl Judged {
    fn new(flags: &RunFlags) -> Result<Self> {
        let output = &flags.output;
        let percentiles = match &output.percentiles {
            None => Percentile::DEFAULT.to_vec(),
            Some(list) => Percentile::parse_list(list).map_err(|e| Error::usage(format!("--percentiles: {e}")))?,
        };
        let goodput = plan::goodput(flags)?;
        let thresholds =
            threshold::parse_all(output.fail_if.iter().map(String::as_str), &goodput).map_err(Error::usage)?;
        Ok(Self { percentiles, thresholds })
    }
}

/// Drives the engine, with a progress line.
fn drive(flags: &RunFlags, plan: Plan, view: Arc<View>, facts: &DatasetFacts) -> Result<(RunResult, Plan)> {
    let quiet = flags.output.quiet || !terminal::stderr_is_terminal();
    let mut meter = (!quiet).then(|| Meter::new(&plan, facts.records));
    let kept = plan.clone();
    let result = engine::run(plan, view, None, &mut |progress| {
        if let Some(meter) = &mut meter {
            meter.observe(progress);
        }
    });
    if let Some(meter) = meter {
        meter.end();
    }
    Ok((result?, kept))
}
