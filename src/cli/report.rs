//! `ringload report` and `ringload merge`: finished runs, printed again, held against each other, made into one.

use std::{io::Write, path::Path};

use super::{
    flags::{MergeFlags, ReportFlags},
    output::OutFile,
    terminal,
};
use crate::{
    data::{Error, Result},
    report::{self, RunDir, compare, csv, html, text, threshold},
};

/// Prints each run, compares them with a base, or draws one.
///
/// Errors: a folder that is no run.
pub fn report(flags: &ReportFlags) -> Result<u8> {
    let mut runs = Vec::new();
    for dir in &flags.dirs {
        runs.extend(compare::load_all(dir)?);
    }
    if let Some(base) = &flags.compare {
        let comparison = compare::compare(&compare::load_all(base)?, &runs, flags.max_regression);
        terminal::result(&if flags.json { comparison.to_json() } else { compare::render(&comparison) })?;
        return Ok(comparison.exit_code());
    }
    if let Some(file) = &flags.html {
        let [run] = runs.as_slice() else {
            return Err(Error::usage(format!("--html draws one run, and {} were given", runs.len())));
        };
        let page = html::page(&run.summary, &run.merged);
        let mut out = OutFile::create(file)?;
        out.write_all(page.as_bytes()).map_err(|e| Error::file("cannot write", file, e))?;
        out.finish()?;
        return Ok(0);
    }
    if flags.csv {
        let named: Vec<_> = runs.iter().map(|run| (run.name.clone(), &run.summary)).collect();
        terminal::result(&csv::summaries(&named))?;
        return Ok(0);
    }
    let colour = if terminal::colour() { text::Colour::On } else { text::Colour::Off };
    for (i, run) in runs.iter().enumerate() {
        let shown =
            if flags.json { run.summary.to_json() } else { text::render(&run.summary, &run.merged.samples, colour) };
        terminal::result(&format!("{}{shown}", if i > 0 && !flags.json { "\n" } else { "" }))?;
    }
    if runs.len() > 1 && !flags.json {
        terminal::result(&format!("\n{}", compare::overview(&runs)))?;
    }
    Ok(0)
}

/// Makes one run out of shards.
///
/// Errors: a folder that is no run, thresholds that cannot be, an output folder that is something else.
pub fn merge(flags: &MergeFlags) -> Result<u8> {
    let thresholds = threshold::parse_all(flags.fail_if.iter().map(String::as_str), &[]).map_err(Error::usage)?;
    let same = |a: &Path, b: &Path| match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    for (i, dir) in flags.dirs.iter().enumerate() {
        if flags.dirs[..i].iter().any(|other| same(other, dir)) {
            return Err(Error::usage(format!("{} is given twice, and would be counted twice", dir.display())));
        }
        if same(dir, &flags.out) {
            return Err(Error::usage(format!("-o {} is one of the runs to merge; give another folder", dir.display())));
        }
    }
    let mut runs = Vec::new();
    for dir in &flags.dirs {
        runs.extend(compare::load_all(dir)?);
    }
    let Some((summary, merged)) = compare::join(&runs, &thresholds) else {
        return Err(Error::usage("no run to merge"));
    };
    RunDir::prepare(&flags.out)?.write_run(&summary, &merged)?;
    let colour = if terminal::colour() { text::Colour::On } else { text::Colour::Off };
    terminal::result(&if flags.json { summary.to_json() } else { text::render(&summary, &merged.samples, colour) })?;
    Ok(report::exit_code(&summary))
}
