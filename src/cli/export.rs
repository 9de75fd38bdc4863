//! `ringload export-requests`: request bodies, written out again from the cache.

use std::{
    io::{BufWriter, Write},
    path::Path,
    sync::Arc,
};

use super::{
    build, dataset,
    flags::{ExportFlags, ExportShape},
    output::OutFile,
    terminal,
};
use crate::{
    cache::{How, View, WhenFull, store},
    data::{Error, RecordId, Result},
    report::{self, requests},
};

/// Writes the bodies.
///
/// Errors: nothing of that name, records that are not there, bodies that the shape cannot carry.
pub fn export(flags: &ExportFlags) -> Result<u8> {
    let view = view(flags)?;
    let records = match &flags.records {
        None => view.ids().collect(),
        Some(list) => parse_records(list, view.records())?,
    };
    let shape = match flags.shape {
        ExportShape::RawPayload => requests::Shape::RawPayload,
        ExportShape::InputsJson => requests::Shape::InputsJson,
    };
    if flags.out == Path::new("-") {
        let mut bytes = BufWriter::with_capacity(256 << 10, Stdout);
        requests::write(&view, &records, shape, &mut bytes)?;
        return Ok(0);
    }
    let mut file = OutFile::create(&flags.out)?;
    let count = requests::write(&view, &records, shape, &mut file)?;
    file.finish()?;
    terminal::say(&format!("{count} requests in {}", flags.out.display()));
    Ok(0)
}

/// Standard output, whose end may be closed at any time.
struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        terminal::bytes(bytes).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn view(flags: &ExportFlags) -> Result<Arc<View>> {
    if flags.what.join("summary.json").is_file() {
        return of_run(flags);
    }
    if let Some((cache, entry)) = build::entry_named(&flags.what, &flags.cache)? {
        return open(&cache, entry.key);
    }
    let request = dataset::request(&flags.what, &flags.shaping, &flags.cache, flags.seed, WhenFull::BuildPrivately)?;
    Ok(dataset::open(&request, None, true)?.view)
}

/// The entry that a run was made from.
fn of_run(flags: &ExportFlags) -> Result<Arc<View>> {
    let run = report::load(&flags.what)?;
    let data = &run.summary.dataset;
    let place = flags.what.display();
    if data.key.is_empty() {
        return Err(Error::usage(format!(
            "{place}: the run had no dataset in the cache; its one body came from the command line"
        )));
    }
    let cache = dataset::cache_dir(flags.cache.cache_dir.as_deref())?;
    let entry = store::find(&cache, &data.key).map_err(|e| {
        Error::usage(format!(
            "{place}: its entry {} is not in {} any more ({e}); make it again with `ringload build`",
            data.key,
            cache.display()
        ))
    })?;
    open(&cache, entry.key)
}

fn open(cache: &Path, key: crate::cache::Key) -> Result<Arc<View>> {
    let (cancel, tell) = (std::sync::atomic::AtomicBool::new(false), |_| {});
    Ok(Arc::new(store::open(cache, key, &How::new(1, &cancel, &tell))?))
}

/// `0-9,12`, in the order given.
fn parse_records(list: &str, records: u32) -> Result<Vec<RecordId>> {
    let wrong = || Error::usage(format!("--records {list}: expected numbers from 0 and ranges of them, as 0-9,12"));
    let mut all = Vec::new();
    for part in list.split(',') {
        let (from, to) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        let (from, to): (u32, u32) = (from.parse().map_err(|_| wrong())?, to.parse().map_err(|_| wrong())?);
        if to < from {
            return Err(wrong());
        }
        if to >= records {
            return Err(Error::usage(format!("--records {list}: there are {records} records, counted from 0")));
        }
        all.extend((from..=to).map(RecordId));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_numbers_and_ranges() {
        let parse = |list: &str| parse_records(list, 20).map(|l| l.iter().map(|r| r.0).collect::<Vec<_>>());
        assert_eq!(parse("3, 0-2,19").unwrap(), [3, 0, 1, 2, 19]);
        for wrong in ["", "x", "3-1", "1-", "-3", "20", "0-20"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
