//! `ringload build` and `ringload inspect`: entries are made and looked at, nothing is sent.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    dataset,
    flags::{BuildFlags, CacheUseFlags, InspectFlags},
    terminal,
};
use crate::{
    cache::{Digest, How, Opened, WhenFull, store},
    data::{Error, RecordId, Result, units},
};

/// What `build --json` prints.
#[derive(Serialize)]
struct Built<'a> {
    key: String,
    cache: &'static str,
    format: &'static str,
    records: u32,
    body_bytes: u64,
    stored_bytes: u64,
    skipped: u64,
    seconds: f64,
    entry: Option<String>,
    report: &'a crate::cache::BuildReport,
    warnings: Vec<String>,
    notices: &'a [String],
}

/// Builds an entry, or finds it.
///
/// Errors: as [`dataset::open`].
pub fn build(flags: &BuildFlags) -> Result<u8> {
    let request = dataset::request(&flags.dataset, &flags.shaping, &flags.cache, flags.seed, WhenFull::Fail)?;
    let opened = dataset::open(&request, flags.threads, flags.json)?;
    let text = if flags.json { json(&built(&opened)) } else { in_words(&opened) };
    terminal::result(&text)?;
    Ok(0)
}

fn built(opened: &Opened) -> Built<'_> {
    Built {
        key: opened.key.to_string(),
        cache: opened.state.name(),
        format: opened.format.name(),
        records: opened.view.records(),
        body_bytes: opened.view.body_bytes_total(),
        stored_bytes: opened.view.stored_bytes(),
        skipped: opened.skipped,
        seconds: opened.seconds,
        entry: opened.entry.as_ref().map(|p| p.display().to_string()),
        report: &opened.report,
        warnings: opened.report.warnings(),
        notices: &opened.notices,
    }
}

fn json(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

fn in_words(opened: &Opened) -> String {
    let view = &opened.view;
    let (body, stored) = (view.body_bytes_total(), view.stored_bytes());
    let mut lines = vec![
        format!("format       {}", opened.format.name()),
        format!("cache        {} in {}", opened.state.name(), units::show_duration((opened.seconds * 1e9) as u64)),
        format!("key          {}", opened.key),
        format!(
            "bytes        {} of bodies, {} stored ({:.1} %)",
            units::show_size(body),
            units::show_size(stored),
            stored as f64 * 100.0 / body.max(1) as f64
        ),
    ];
    if let Some(entry) = &opened.entry {
        lines.push(format!("entry        {}", entry.display()));
    }
    if opened.skipped > 0 {
        lines.push(format!("skipped      {} bad records", units::show_count(opened.skipped)));
    }
    lines.extend(opened.report.lines().into_iter().map(|line| format!("seen         {line}")));
    lines.extend(opened.report.warnings().into_iter().map(|line| format!("warning      {line}")));
    lines.push(String::new());
    lines.join("\n")
}

/// One record, for `inspect --record N --json`.
#[derive(Serialize)]
struct Shown<'a> {
    record: u32,
    session: std::borrow::Cow<'a, str>,
    turn: u32,
    body_bytes: u64,
    xxh3: String,
    due_ms: Option<f64>,
    delay_ms: Option<f64>,
    input_tokens: Option<u32>,
    output_cap: Option<u32>,
    stream: bool,
    usage: bool,
    images: u32,
    audios: u32,
    videos: u32,
    background: bool,
    predecessors: &'a [u32],
    successors: &'a [u32],
    spans: Vec<(u64, u64)>,
}

/// Shows an entry, or the entry of a dataset, or one record of it.
///
/// Errors: as [`dataset::open`]; a record that is not there.
pub fn inspect(flags: &InspectFlags) -> Result<u8> {
    let view = match entry_named(&flags.what, &flags.cache)? {
        Some((cache, entry)) => {
            if flags.record.is_none() {
                terminal::result(&if flags.json { json(&entry) } else { entry_in_words(&entry) })?;
                return Ok(0);
            }
            let (cancel, tell) = (std::sync::atomic::AtomicBool::new(false), |_| {});
            std::sync::Arc::new(store::open(&cache, entry.key, &How::new(1, &cancel, &tell))?)
        }
        None => {
            let opened = open_dataset(flags)?;
            if flags.record.is_none() {
                terminal::result(&if flags.json { json(&built(&opened)) } else { in_words(&opened) })?;
                return Ok(0);
            }
            opened.view
        }
    };
    let view = &view;
    let n = flags.record.unwrap_or(0);
    if n >= u64::from(view.records()) {
        return Err(Error::usage(format!("--record {n}: there are {} records, counted from 0", view.records())));
    }
    let record = RecordId(n as u32);
    let mut body = Vec::new();
    let changed =
        |_| Error::Failed("the entry's data file was changed or truncated; run `ringload cache verify`".into());
    if flags.body {
        view.body_to(record, &mut body).map_err(changed)?;
        terminal::bytes(&body)?;
        return Ok(0);
    }
    let ms = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e6);
    let [images, audios, videos] = view.media(record);
    let shown = Shown {
        record: record.0,
        session: view.session_name(view.session(record)),
        turn: view.turn(record),
        body_bytes: view.body_bytes(record),
        xxh3: format!("{:016x}", view.body_xxh3(record)),
        due_ms: ms(view.due_ns(record)),
        delay_ms: ms(view.delay_ns(record)),
        input_tokens: view.input_tokens(record),
        output_cap: view.output_cap(record),
        stream: view.flags(record).stream(),
        usage: view.flags(record).usage(),
        images,
        audios,
        videos,
        background: view.flags(record).background(),
        predecessors: view.predecessors(record),
        successors: view.successors(record),
        spans: view.spans(record).iter().map(|s| (s.offset, s.bytes)).collect(),
    };
    if flags.json {
        terminal::result(&json(&shown))?;
        return Ok(0);
    }
    view.body_to(record, &mut body).map_err(changed)?;
    terminal::result(&record_in_words(&shown, &body))?;
    Ok(0)
}

fn record_in_words(s: &Shown<'_>, body: &[u8]) -> String {
    /// Bytes of a body that are shown.
    const SHOWN: usize = 2000;
    let known = |what: Option<String>| what.unwrap_or_else(|| "none".into());
    let shown = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]);
    let more = if body.len() > SHOWN {
        format!("\n... {} bytes more; --body writes all", body.len() - SHOWN)
    } else {
        String::new()
    };
    format!(
        "record       {}, turn {} of session {}\nbody         {} bytes in {} spans, xxh3 {}\ndue          {}\ndelay        {}\ntokens       input {}, cap of the output {}\nasks for     stream {}, usage {}\nmedia        {} images, {} audios, {} videos{}\n\n{shown}{more}\n",
        s.record,
        s.turn,
        s.session,
        s.body_bytes,
        s.spans.len(),
        s.xxh3,
        known(s.due_ms.map(|ms| format!("{ms} ms"))),
        known(s.delay_ms.map(|ms| format!("{ms} ms"))),
        known(s.input_tokens.map(|n| n.to_string())),
        known(s.output_cap.map(|n| n.to_string())),
        if s.stream { "yes" } else { "no" },
        if s.usage { "yes" } else { "no" },
        s.images,
        s.audios,
        s.videos,
        if s.background { "\nbackground   nothing waits for it" } else { "" },
    )
}

/// The entry that is named by its folder, its key or the beginning of one, and the cache it is in; none for a dataset.
pub(super) fn entry_named(what: &Path, cache: &CacheUseFlags) -> Result<Option<(PathBuf, store::EntryInfo)>> {
    if what.join("manifest.json").is_file()
        && let (Some(cache), Some(key)) = (what.parent(), what.file_name().and_then(|n| n.to_str()))
        && Digest::parse(key).is_some()
    {
        let cache = if cache.as_os_str().is_empty() { PathBuf::from(".") } else { cache.to_path_buf() };
        let entry = store::find(&cache, key)?;
        return Ok(Some((cache, entry)));
    }
    let text = what.to_string_lossy();
    let hexadecimal = text.len() >= 6 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if hexadecimal && !what.exists() {
        let cache = dataset::cache_dir(cache.cache_dir.as_deref())?;
        let entry = store::find(&cache, &text)?;
        return Ok(Some((cache, entry)));
    }
    Ok(None)
}

fn entry_in_words(entry: &store::EntryInfo) -> String {
    format!(
        "format       {}\nkey          {}\nrecords      {}\nbytes        {} of bodies, {} stored\nentry        {}\nmade         {}, last used {}\n{}",
        entry.format,
        entry.key,
        units::show_count(entry.records),
        units::show_size(entry.body_bytes),
        units::show_size(entry.stored_bytes),
        entry.path.display(),
        entry.made_at,
        entry.used_at,
        entry.problem.as_ref().map_or(String::new(), |p| format!("problem      {p}\n")),
    )
}

/// The entry of a dataset.
fn open_dataset(flags: &InspectFlags) -> Result<Opened> {
    let request = dataset::request(&flags.what, &flags.shaping, &flags.cache, flags.seed, WhenFull::BuildPrivately)?;
    dataset::open(&request, None, true)
}
