//! The run directory of a run that has ended: what is made of its spools, and the files that are made of its figures.

use std::io::Write as _;

use crate::{
    cache::View,
    data::{RecordId, Result, plan::RequestHead},
};

use super::{
    aiperf,
    dir::RunDir,
    merge::Merged,
    records::{self, Format},
    requests::{self, Shape},
    responses,
    slices::{self, Sliced},
    spools::{Rows, Spools},
    summary::Summary,
    sweep,
};

/// What is wanted beside the files that every run directory has.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// `--records`.
    pub records: Option<Format>,
    /// `--keep-responses`.
    pub responses: bool,
    /// `--slice`.
    pub slices: Option<Sliced<'a>>,
    /// `--aiperf-artifacts`.
    pub aiperf: bool,
    /// `--aiperf-inputs`: the bodies that were sent.
    pub inputs: Option<&'a View>,
    /// Whose secrets are hidden in kept responses.
    pub head: &'a RequestHead,
}

/// Makes all files of a run. What of it is a figure comes into the summary. The spools are gone after it, whatever happens: a
/// full disk must not stay full of them; and what can be written is written, whatever could not.
///
/// Errors: the first thing that could not be done.
pub fn keep(dir: &mut RunDir, wanted: &Wanted<'_>, summary: &mut Summary, merged: &Merged) -> Result<()> {
    let mut first = Ok(());
    let mut told = |result: Result<()>| {
        if first.is_ok() {
            first = result;
        }
    };
    match Spools::find(dir.path()) {
        Err(error) => told(Err(error)),
        Ok(spools) => {
            if !spools.rows.is_empty() {
                told(from_rows(dir, &spools, wanted, summary, merged));
            }
            told(spools.remove());
        }
    }
    if let Some(view) = wanted.inputs {
        told(inputs(dir, view));
    }
    told(dir.write_run(summary, merged));
    first
}

fn from_rows(
    dir: &mut RunDir,
    spools: &Spools,
    wanted: &Wanted<'_>,
    summary: &mut Summary,
    merged: &Merged,
) -> Result<()> {
    // Each is tried, whatever became of those before.
    let swept = weigh(dir, spools, summary, merged);
    let records = wanted.records.map_or(Ok(()), |format| records::write(dir, format, spools).map(drop));
    let responses = if wanted.responses { responses::write(dir, spools, wanted.head).map(drop) } else { Ok(()) };
    let sliced = wanted.slices.map_or(Ok(()), |asked| {
        summary.slices = slices::write(dir, spools, summary, merged, &asked)?;
        Ok(())
    });
    let aiperf = if wanted.aiperf { aiperf::write(dir, spools, summary, merged) } else { Ok(()) };
    swept.and(records).and(responses).and(sliced).and(aiperf)
}

fn weigh(dir: &RunDir, spools: &Spools, summary: &mut Summary, merged: &Merged) -> Result<()> {
    if let Some(window) = sweep::window(merged.last_done, summary.duration_s) {
        summary.time_weighted = sweep::sweep(&mut Rows::open(spools)?, window, dir.path())?;
    }
    Ok(())
}

fn inputs(dir: &mut RunDir, view: &View) -> Result<()> {
    let mut part = dir.create("inputs.json")?;
    let all: Vec<RecordId> = view.ids().collect();
    requests::write(view, &all, Shape::InputsJson, &mut part)?;
    part.flush().map_err(|e| part.error(e))?;
    dir.commit(vec![part])
}
