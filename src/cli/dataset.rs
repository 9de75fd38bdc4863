//! Flags to dataset: which entry is asked for, and what is said while it is found or built.

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    bodies::AssistantFlag,
    flags::{CacheUseFlags, CompressFlag, DedupFlag, ShapingFlags, StoreFlag},
    terminal::{self, ProgressLine},
};
use crate::{
    cache::{self, BuildRequest, Dedup, Event, How, Opened, Origin, Reading, Store, WhenFull},
    data::{
        Error, Result,
        results::{CacheState, DatasetFacts},
        units::show_size,
    },
    formats::Format,
    sys::{cpu, signal},
};

/// Where entries live: `--cache-dir`, else `$XDG_CACHE_HOME/ringload`, else `~/.cache/ringload`.
///
/// Errors: none of them is known.
pub fn cache_dir(asked: Option<&Path>) -> Result<PathBuf> {
    if let Some(dir) = asked {
        return Ok(dir.to_path_buf());
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|base| base.join("ringload"))
        .ok_or_else(|| {
            Error::usage("no cache directory: set HOME or XDG_CACHE_HOME, give --cache-dir, or use --no-cache")
        })
}

/// What is asked of the cache.
///
/// Errors: an unknown format; flags that have no use together.
pub fn request(
    dataset: &Path,
    shaping: &ShapingFlags,
    cache: &CacheUseFlags,
    seed: u64,
    when_full: WhenFull,
) -> Result<BuildRequest> {
    useless(shaping, cache)?;
    let dir = if cache.no_cache { None } else { Some(cache_dir(cache.cache_dir.as_deref())?) };
    let format = match shaping.format.as_str() {
        "auto" => None,
        name => Some(Format::parse(name)?),
    };
    Ok(BuildRequest {
        format,
        reading: Reading {
            limit: shaping.limit,
            skip_bad: shaping.skip_bad,
            verbatim_lines: shaping.verbatim_lines,
            reformat: shaping.bodies.reformat,
            synthesized_answers: shaping.bodies.assistant == AssistantFlag::Synth,
            entries: shaping.bodies.entries,
            draw_seed: seed,
            ..Reading::default()
        },
        shaping: shaping.bodies.asked(seed)?,
        dedup: match shaping.dedup {
            DedupFlag::Auto => Dedup::Auto,
            DedupFlag::Exact => Dedup::Exact,
            DedupFlag::Chunk => Dedup::Chunk,
            DedupFlag::Off => Dedup::Off,
        },
        store: match shaping.store {
            StoreFlag::Copy => Store::Copy,
            StoreFlag::Reference => Store::Reference,
        },
        compress: cache.compress == CompressFlag::Zstd,
        verify: cache.verify,
        lock_timeout: Duration::from_nanos(cache.lock_timeout),
        when_full,
        ..BuildRequest::new(vec![Origin::of(dataset)], dir)
    })
}

/// Flags that the others leave nothing to do are refused by name.
fn useless(shaping: &ShapingFlags, cache: &CacheUseFlags) -> Result<()> {
    let reference = shaping.store == StoreFlag::Reference;
    let refuse = |what: &str| Err(Error::usage(what));
    if cache.compress == CompressFlag::Zstd && cache.no_cache {
        return refuse("--compress zstd: --no-cache keeps nothing that could be compressed; drop one of them");
    }
    if cache.compress == CompressFlag::Zstd && reference {
        return refuse("--compress zstd: --store reference keeps no data that could be compressed; drop one of them");
    }
    if reference && matches!(shaping.dedup, DedupFlag::Exact | DedupFlag::Chunk) {
        return refuse("--dedup: --store reference leaves every body where it stands in the dataset; drop one of them");
    }
    Ok(())
}

/// Finds or builds, with a progress line on a terminal. An interrupt ends it.
///
/// Errors: as [`cache::open_or_build`].
pub fn open(request: &BuildRequest, threads: Option<u64>, quiet: bool) -> Result<Opened> {
    let cancel = AtomicBool::new(false);
    let line = Mutex::new((!quiet && terminal::stderr_is_terminal()).then(ProgressLine::new));
    let tell = |event: Event| match event {
        Event::Notice(text) => {
            if let Ok(mut line) = line.lock()
                && let Some(line) = line.as_mut()
            {
                line.clear();
            }
            terminal::say(&text);
        }
        Event::Progress { step, bytes, total } => {
            if let Ok(mut line) = line.lock()
                && let Some(line) = line.as_mut()
            {
                line.show(&format!("{step}  {} of {}", show_size(bytes), show_size(total)));
            }
        }
    };
    let threads = threads.map_or_else(|| cpu::allowed().len(), |n| n as usize);
    let how = How::new(threads, &cancel, &tell);
    let opened = interruptible(&cancel, || cache::open_or_build(request, &how));
    if let Ok(mut line) = line.lock()
        && let Some(line) = line.as_mut()
    {
        line.clear();
    }
    opened
}

/// How long work that was asked to end has for it. What does not hear (a file whose open waits for another process) is then
/// left where it stands, which the cache is made to survive.
const END_WITHIN: Duration = Duration::from_secs(3);

/// Does `work`, and sets `cancel` once a signal asks for an end.
pub fn interruptible<T>(cancel: &AtomicBool, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    let hold = signal::hold();
    let result = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut asked: Option<Instant> = None;
            while !done.load(Ordering::Relaxed) {
                match asked {
                    None if signal::asked().is_some() => {
                        cancel.store(true, Ordering::Relaxed);
                        asked = Some(Instant::now());
                    }
                    Some(at) if at.elapsed() >= END_WITHIN => signal::quit_now(),
                    _ => {}
                }
                thread::park_timeout(Duration::from_millis(20));
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        result
    });
    drop(hold);
    // A signal that came too late to be heard by the work: what is next may not hear it either.
    signal::quit_now();
    result
}

/// What the summary says about an opened dataset.
pub fn facts(opened: &Opened) -> DatasetFacts {
    DatasetFacts {
        format: opened.format.name().to_owned(),
        records: u64::from(opened.view.records()),
        cache: match opened.state {
            cache::CacheState::Hit => CacheState::Hit,
            cache::CacheState::Miss => CacheState::Miss,
            cache::CacheState::Off => CacheState::Off,
        },
        key: opened.key.to_string(),
        body_bytes: opened.view.body_bytes_total(),
        stored_bytes: opened.view.stored_bytes(),
        skipped: opened.skipped,
        token_source: opened.report.token_source.clone(),
    }
}
