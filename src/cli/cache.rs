//! `ringload cache`: looking after the cache directory.

use std::{
    fs::File,
    io::{BufReader, Read, Write},
    path::Path,
    sync::atomic::AtomicBool,
    time::Duration,
};

use serde::Serialize;

use super::{
    dataset,
    flags::{CacheDirFlags, CacheFlags, CacheVerb},
    output::OutFile,
    terminal,
};
use crate::{
    cache::{Event, How, Key, store},
    data::{Error, Result, units},
    sys::cpu,
};

/// Does one verb.
///
/// Errors: as the verbs of [`store`]; [`Error::Failed`] when `verify` finds a bad entry.
pub fn cache(flags: &CacheFlags) -> Result<u8> {
    match &flags.verb {
        CacheVerb::List(dir) => list(dir),
        CacheVerb::Path { key, dir } => path(key.as_deref(), dir),
        CacheVerb::Verify { keys, dir } => verify(keys, dir),
        CacheVerb::Gc { max_size, max_age, dry_run, dir } => {
            let keep =
                store::Keep { max_size: *max_size, max_age: max_age.map(Duration::from_nanos), dry_run: *dry_run };
            gc(&keep, dir)
        }
        CacheVerb::Rm { keys, dir } => rm(keys, dir),
        CacheVerb::Export { key, file, dir } => export(key, file, dir),
        CacheVerb::Import { file, dir } => import(file, dir),
    }
}

fn json(value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    terminal::result(&text)
}

fn list(dir: &CacheDirFlags) -> Result<u8> {
    let cache = dataset::cache_dir(dir.cache_dir.as_deref())?;
    let entries = store::list(&cache)?;
    if dir.json {
        json(&entries)?;
        return Ok(0);
    }
    let mut text = String::new();
    for e in &entries {
        let state = match (&e.problem, e.in_use) {
            (Some(problem), _) => problem.as_str(),
            (None, true) => "in use",
            (None, false) => "",
        };
        let key = e.key.to_string();
        text.push_str(&format!(
            "{}  {:>9}  {:>12} records  {:16}  used {}  {state}\n",
            &key[..16],
            units::show_size(e.bytes),
            units::show_count(e.records),
            e.format,
            e.used_at
        ));
    }
    let bytes = entries.iter().map(|e| e.bytes).sum();
    text.push_str(&format!("{} entries, {} in {}\n", entries.len(), units::show_size(bytes), cache.display()));
    terminal::result(&text)?;
    Ok(0)
}

fn path(key: Option<&str>, dir: &CacheDirFlags) -> Result<u8> {
    let cache = dataset::cache_dir(dir.cache_dir.as_deref())?;
    let path = match key {
        None => cache,
        Some(start) => store::find(&cache, start)?.path,
    };
    if dir.json {
        json(&serde_json::json!({ "path": path.display().to_string() }))?;
    } else {
        terminal::result(&format!("{}\n", path.display()))?;
    }
    Ok(0)
}

/// Keys by their beginnings.
fn keys(cache: &Path, starts: &[String]) -> Result<Vec<Key>> {
    starts.iter().map(|start| store::find(cache, start).map(|e| e.key)).collect()
}

/// Works with all cores; an interrupt ends it, and leaves nothing half done.
fn with_threads<T>(work: impl FnOnce(&How<'_>) -> Result<T>) -> Result<T> {
    let cancel = AtomicBool::new(false);
    let tell = |event: Event| {
        if let Event::Notice(text) = event {
            terminal::say(&text);
        }
    };
    let how = How::new(cpu::allowed().len(), &cancel, &tell);
    dataset::interruptible(&cancel, || work(&how))
}

fn verify(starts: &[String], dir: &CacheDirFlags) -> Result<u8> {
    let cache = dataset::cache_dir(dir.cache_dir.as_deref())?;
    let verdicts = with_threads(|how| store::verify(&cache, &keys(&cache, starts)?, how))?;
    if dir.json {
        json(&verdicts)?;
    } else {
        let mut text = String::new();
        for v in &verdicts {
            text.push_str(&format!("{}  {}\n", v.key, v.problem.as_deref().unwrap_or("good")));
        }
        terminal::result(&text)?;
    }
    let bad: Vec<String> = verdicts.iter().filter(|v| v.problem.is_some()).map(|v| v.key.to_string()).collect();
    if bad.is_empty() {
        return Ok(0);
    }
    Err(Error::Failed(format!("bad entries, which the next use rebuilds: {}", bad.join(", "))))
}

fn gc(keep: &store::Keep, dir: &CacheDirFlags) -> Result<u8> {
    let cache = dataset::cache_dir(dir.cache_dir.as_deref())?;
    let done = store::gc(&cache, keep)?;
    if dir.json {
        json(&done)?;
        return Ok(0);
    }
    let mut text = String::new();
    for (verb, entries) in [("removed", &done.removed), ("kept", &done.kept)] {
        for (key, why) in entries {
            text.push_str(&format!("{verb}  {key}  {why}\n"));
        }
    }
    text.push_str(&format!(
        "{}{} leftovers, {} freed, {} left\n",
        if keep.dry_run { "would remove " } else { "" },
        done.leftovers,
        units::show_size(done.freed_bytes),
        units::show_size(done.bytes)
    ));
    terminal::result(&text)?;
    Ok(0)
}

fn rm(starts: &[String], dir: &CacheDirFlags) -> Result<u8> {
    let cache = dataset::cache_dir(dir.cache_dir.as_deref())?;
    store::rm(&cache, &keys(&cache, starts)?)?;
    Ok(0)
}

fn export(start: &str, file: &Path, dir: &CacheDirFlags) -> Result<u8> {
    let cache = dataset::cache_dir(dir.cache_dir.as_deref())?;
    let key = store::find(&cache, start)?.key;
    if file == Path::new("-") {
        let mut out = std::io::stdout().lock();
        with_threads(|how| store::export(&cache, key, &mut out, how))?;
        out.flush().map_err(|e| Error::file("cannot write", file, e))?;
    } else {
        let mut out = OutFile::create(file)?;
        with_threads(|how| store::export(&cache, key, &mut out, how))?;
        out.finish()?;
    }
    Ok(0)
}

fn import(file: &Path, dir: &CacheDirFlags) -> Result<u8> {
    let cache = dataset::cache_dir(dir.cache_dir.as_deref())?;
    let mut input: Box<dyn Read> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(file).map_err(|e| Error::file("cannot open", file, e))?))
    };
    let key = with_threads(|how| store::import(&cache, &mut input, how))?;
    if dir.json {
        json(&serde_json::json!({ "key": key.to_string() }))?;
    } else {
        terminal::result(&format!("{key}\n"))?;
    }
    Ok(0)
}
