//! `ringload report`: finished runs, printed again.

use super::{flags::ReportFlags, terminal};
use crate::{
    data::Result,
    report::{self, text},
};

/// Prints each run.
///
/// Errors: a folder that is no run.
pub fn report(flags: &ReportFlags) -> Result<u8> {
    let colour = if terminal::colour() { text::Colour::On } else { text::Colour::Off };
    for (i, dir) in flags.dirs.iter().enumerate() {
        let run = report::load(dir)?;
        let shown =
            if flags.json { run.summary.to_json() } else { text::render(&run.summary, &run.merged.samples, colour) };
        if i > 0 {
            terminal::result("\n")?;
        }
        terminal::result(&shown)?;
    }
    Ok(0)
}
