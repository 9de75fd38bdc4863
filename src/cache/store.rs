//! Looking after a cache directory: what is in it, is it whole, and what may go. Gives data; printing is the caller's.
//!
//! Promises: an entry is removed by a rename, so that nobody sees half of one; a run that has it mapped goes on. `gc` never
//! takes one that is in use. An imported entry was checked to its last byte before it gets its name.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::Serialize;

use super::{
    How,
    check::Check,
    entry::{self, Depth, Doubt, Wanted},
    folder::{self, Temporary},
    manifest::Manifest,
    memo::Memo,
    pack,
    publish::{Published, publish},
    spec::{Key, Store},
    view::View,
};
use crate::data::{Error, Result};

/// First bytes of an exported entry, inside its zstd stream.
const EXPORT_MAGIC: &[u8; 17] = b"ringload-entry 1\n";
/// Longest manifest of an imported entry.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Copied at a time.
const BLOCK_BYTES: usize = 1 << 20;
/// Memos of digests that nobody wrote for so long are of files that are gone, or cheap to hash again.
const MEMO_AGE_MAX: Duration = Duration::from_secs(180 * 86_400);

/// One entry of a cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryInfo {
    /// Its name.
    pub key: Key,
    /// Bytes of its files.
    pub bytes: u64,
    /// Format of the dataset; empty when the manifest cannot be read.
    pub format: String,
    /// Records.
    pub records: u64,
    /// Body bytes, summed over records.
    pub body_bytes: u64,
    /// Bytes stored for them.
    pub stored_bytes: u64,
    /// Its data is kept compressed, and was not unpacked since.
    pub packed: bool,
    /// It points into the user's own file.
    pub reference: bool,
    /// A run or a builder has it open.
    pub in_use: bool,
    /// When it was built, UTC.
    pub made_at: String,
    /// When it was last opened, UTC.
    pub used_at: String,
    /// Why it cannot be used, as far as that is seen without reading it.
    pub problem: Option<String>,
    /// Its folder.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// The same as `used_at`.
    #[serde(skip)]
    pub used: Option<SystemTime>,
}

fn as_text<S: serde::Serializer>(path: &Path, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// The entries of a cache, the last used first. A cache that is not there has none.
pub fn list(cache: &Path) -> Result<Vec<EntryInfo>> {
    let mut entries = Vec::new();
    let found = match std::fs::read_dir(cache) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(entries),
        found => found.map_err(|e| Error::file("cannot read the cache", cache, e))?,
    };
    for entry in found {
        let entry = entry.map_err(|e| Error::file("cannot read the cache", cache, e))?;
        if let Some(key) = entry.file_name().to_str().and_then(Key::parse) {
            entries.push(info(&entry.path(), key));
        }
    }
    entries.sort_by(|a, b| b.used.cmp(&a.used).then(a.key.cmp(&b.key)));
    Ok(entries)
}

fn info(path: &Path, key: Key) -> EntryInfo {
    let there = |name: &str| std::fs::symlink_metadata(path.join(name)).ok();
    let used = there(entry::MANIFEST).and_then(|meta| meta.modified().ok());
    let stamp = |at: SystemTime| jiff::Timestamp::try_from(at).map(|t| t.to_string()).unwrap_or_default();
    let mut info = EntryInfo {
        key,
        bytes: files_of(path).iter().map(|(_, bytes)| bytes).sum(),
        format: String::new(),
        records: 0,
        body_bytes: 0,
        stored_bytes: 0,
        packed: there(entry::DATA).is_none() && there(pack::PACKED).is_some(),
        reference: false,
        in_use: entry::in_use(path),
        made_at: String::new(),
        used_at: used.map(stamp).unwrap_or_default(),
        problem: None,
        path: path.to_path_buf(),
        used,
    };
    match entry::read_manifest(path) {
        Ok(manifest) => {
            info.format = manifest.spec.format;
            info.records = manifest.records;
            info.body_bytes = manifest.body_bytes;
            info.stored_bytes = manifest.data_bytes;
            info.made_at = manifest.made_at;
            info.reference = manifest.spec.store == Store::Reference;
            info.problem = (manifest.key != key).then(|| format!("manifest.json is of another key, {}", manifest.key));
        }
        Err(doubt) => info.problem = Some(reason(doubt)),
    }
    info
}

fn reason(doubt: Doubt) -> String {
    match doubt {
        Doubt::Absent => "it is not there".into(),
        Doubt::Bad(why) => why,
    }
}

fn files_of(folder: &Path) -> Vec<(PathBuf, u64)> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| Some((file.path(), file.metadata().ok()?.len()))).collect()
}

/// The one entry whose key begins so: at least four digits.
pub fn find(cache: &Path, start: &str) -> Result<EntryInfo> {
    let start = start.to_ascii_lowercase();
    if start.len() < 4 || !start.bytes().all(|c| c.is_ascii_hexdigit()) {
        return Err(Error::usage(format!("\"{start}\" is no key; expected at least 4 of its hexadecimal digits")));
    }
    let mut found = list(cache)?;
    found.retain(|entry| entry.key.to_string().starts_with(&start));
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(Error::usage(format!("no entry of {} begins with {start}", cache.display()))),
        n => Err(Error::usage(format!("{n} entries of {} begin with {start}; give more digits", cache.display()))),
    }
}

/// Opens an entry by itself, without the dataset that it was built from.
pub fn open(cache: &Path, key: Key, how: &How<'_>) -> Result<View> {
    let path = entry::path(cache, key);
    let view = open_at(&path, key, Depth::Index, &Memo::in_cache(cache), how.threads);
    let view = view.map_err(|doubt| Error::Failed(format!("entry {key} cannot be used: {}", reason(doubt))))?;
    entry::touch(&path);
    Ok(view)
}

fn open_at(path: &Path, key: Key, depth: Depth, memo: &Memo, threads: usize) -> Result<View, Doubt> {
    let reference = match entry::read_manifest(path) {
        Ok(Manifest { reference: Some(file), .. }) => Some(file),
        _ => None,
    };
    let file = reference.map(|path| {
        let opened = File::open(&path).map(Arc::new);
        opened.map_err(|e| Doubt::Bad(format!("the dataset {} cannot be opened: {e}", path.display())))
    });
    let file = file.transpose()?;
    let view = entry::open(&Wanted { folder: path, key, reference: file.as_ref() }, depth, memo, threads)?;
    // Nobody looked at the digest of the user's file: its bytes are what is known of it.
    if file.is_some() && depth == Depth::Index && !view.data_is_whole(threads) {
        return Err(Doubt::Bad("the dataset that it points into is another now".into()));
    }
    Ok(view)
}

/// What a check of an entry found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Its name.
    pub key: Key,
    /// What is wrong; none when it is whole.
    pub problem: Option<String>,
}

/// Checks every byte of some entries, or of all when none is named. Nothing is changed.
pub fn verify(cache: &Path, keys: &[Key], how: &How<'_>) -> Result<Vec<Verdict>> {
    let mut verdicts = Vec::new();
    for entry in list(cache)? {
        if !keys.is_empty() && !keys.contains(&entry.key) {
            continue;
        }
        how.check()?;
        let problem = if entry.packed { verify_packed(&entry, how) } else { verify_plain(&entry, how) };
        // Removed while the others were checked: it is no entry any more.
        if problem.is_some() && std::fs::symlink_metadata(&entry.path).is_err() {
            continue;
        }
        verdicts.push(Verdict { key: entry.key, problem });
    }
    if let Some(missing) = keys.iter().find(|&key| verdicts.iter().all(|v| v.key != *key)) {
        return Err(Error::usage(format!("there is no entry {missing}")));
    }
    Ok(verdicts)
}

fn verify_plain(entry: &EntryInfo, how: &How<'_>) -> Option<String> {
    open_at(&entry.path, entry.key, Depth::Bodies, &Memo::none(), how.threads).err().map(reason)
}

fn verify_packed(entry: &EntryInfo, how: &How<'_>) -> Option<String> {
    let checked = (|| {
        let manifest = entry::read_manifest(&entry.path).map_err(reason)?;
        if manifest.key != entry.key {
            return Err(format!("manifest.json is of another key, {}", manifest.key));
        }
        let failed = |e: io::Error| format!("dataset.dat.zst cannot be unpacked: {e}");
        let packed = File::open(entry.path.join(pack::PACKED)).map_err(failed)?;
        let mut input = zstd::stream::read::Decoder::new(packed).map_err(failed)?;
        let (mut check, mut bytes) = (Check::default(), 0);
        let mut block = vec![0; BLOCK_BYTES];
        loop {
            how.check().map_err(|e| e.to_string())?;
            match input.read(&mut block).map_err(failed)? {
                0 => break,
                n => {
                    bytes += n as u64;
                    check.push(&block[..n]);
                }
            }
        }
        if bytes != manifest.data_bytes || format!("{:016x}", check.finish()) != manifest.data_check {
            return Err("dataset.dat.zst does not hold the data that its manifest says".into());
        }
        Ok(())
    })();
    checked.err()
}

/// What `gc` keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Bytes of all entries together, the last used first.
    pub max_size: Option<u64>,
    /// Time since the last use.
    pub max_age: Option<Duration>,
    /// True to say what would go, and leave it.
    pub dry_run: bool,
}

/// What `gc` did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Collected {
    /// Entries that went, with the reason.
    pub removed: Vec<(Key, String)>,
    /// Entries that would have gone but are in use, or could not be removed.
    pub kept: Vec<(Key, String)>,
    /// Temporary folders of dead builders.
    pub leftovers: u64,
    /// Bytes that are free now.
    pub freed_bytes: u64,
    /// Bytes of the entries that are left.
    pub bytes: u64,
}

/// Removes what dead builders left, and entries that are not to be kept. Never one that is in use.
pub fn gc(cache: &Path, keep: &Keep) -> Result<Collected> {
    let mut done = Collected::default();
    let leftovers = folder::leftovers(cache, None);
    done.leftovers = leftovers.len() as u64;
    done.freed_bytes = leftovers.iter().flat_map(|l| files_of(&l.path)).map(|(_, bytes)| bytes).sum();
    if !keep.dry_run {
        folder::remove_leftovers(&leftovers);
        sweep_memos(&cache.join("inputs"));
    }
    let now = SystemTime::now();
    for entry in list(cache)? {
        if !keep.dry_run {
            pack::sweep(&entry.path);
        }
        // A time in the future is one of a clock that was put back: the entry is young.
        let age = entry.used.and_then(|used| now.duration_since(used).ok()).unwrap_or_default();
        let why = if keep.max_age.is_some_and(|max| max < age) {
            format!("last used {} days ago", age.as_secs() / 86_400)
        } else if keep.max_size.is_some_and(|max| max < done.bytes + entry.bytes) {
            "over --max-size".to_owned()
        } else {
            done.bytes += entry.bytes;
            continue;
        };
        if entry.in_use {
            done.bytes += entry.bytes;
            done.kept.push((entry.key, "in use".into()));
        } else if keep.dry_run || folder::remove_entry(cache, &entry.path, entry.key).is_ok() {
            done.freed_bytes += entry.bytes;
            done.removed.push((entry.key, why));
        } else {
            done.bytes += entry.bytes;
            done.kept.push((entry.key, "it cannot be removed".into()));
        }
    }
    Ok(done)
}

/// Removes memos that nobody wrote for long, and half-written ones.
fn sweep_memos(folder: &Path) {
    for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let age = file.metadata().and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
        let half = file.file_name().to_string_lossy().starts_with('.');
        if age > if half { Duration::from_secs(60) } else { MEMO_AGE_MAX } {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// Removes entries. A run that uses one goes on.
pub fn rm(cache: &Path, keys: &[Key]) -> Result<()> {
    for &key in keys {
        let path = entry::path(cache, key);
        if std::fs::symlink_metadata(&path).is_err() {
            return Err(Error::usage(format!("there is no entry {key}")));
        }
        folder::remove_entry(cache, &path, key).map_err(|e| Error::file("cannot remove", &path, e))?;
    }
    Ok(())
}

/// Writes an entry as one compressed file, for another machine. Every byte is checked on the way.
pub fn export(cache: &Path, key: Key, out: &mut dyn Write, how: &How<'_>) -> Result<()> {
    let path = entry::path(cache, key);
    let view = open_at(&path, key, Depth::Bodies, &Memo::in_cache(cache), how.threads);
    let view = view.map_err(|doubt| Error::Failed(format!("entry {key} cannot be exported: {}", reason(doubt))))?;
    let Some(manifest) = view.manifest() else { return Err(Error::usage("an entry without a manifest")) };
    if manifest.spec.store == Store::Reference {
        return Err(Error::usage(format!(
            "entry {key} points into a file of its own user; export one with --store copy"
        )));
    }
    let text = manifest.text();
    let write = (|| {
        let mut out = zstd::stream::write::Encoder::new(out, 3)?;
        out.include_checksum(true)?;
        out.write_all(EXPORT_MAGIC)?;
        out.write_all(&(text.len() as u64).to_le_bytes())?;
        out.write_all(text.as_bytes())?;
        for name in [entry::INDEX, entry::DATA] {
            let mut file = File::open(path.join(name))?;
            let mut block = vec![0; BLOCK_BYTES];
            loop {
                how.check().map_err(io::Error::other)?;
                match file.read(&mut block)? {
                    0 => break,
                    n => out.write_all(&block[..n])?,
                }
            }
        }
        out.finish()?.flush()
    })();
    how.check()?;
    write.map_err(|e| Error::file("cannot export", &path, e))
}

/// Takes an exported entry in. One that is there already stays.
pub fn import(cache: &Path, input: &mut dyn Read, how: &How<'_>) -> Result<Key> {
    folder::create(cache).map_err(|e| Error::file("cannot make the cache", cache, e))?;
    let bad = |why: &str| Error::Failed(format!("it is no exported entry of this version: {why}"));
    let broken = |e: io::Error| Error::Failed(format!("the exported entry cannot be read: {e}"));
    let mut input = zstd::stream::read::Decoder::new(input).map_err(broken)?;
    let mut magic = [0; EXPORT_MAGIC.len()];
    input.read_exact(&mut magic).map_err(|_| bad("its first bytes are others"))?;
    if magic != *EXPORT_MAGIC {
        return Err(bad("its first bytes are others"));
    }
    let mut length = [0; 8];
    input.read_exact(&mut length).map_err(broken)?;
    let length = u64::from_le_bytes(length);
    if length > MANIFEST_BYTES_MAX {
        return Err(bad("its manifest is too long"));
    }
    let mut text = vec![0; length as usize];
    input.read_exact(&mut text).map_err(broken)?;
    let manifest = Manifest::parse(&text).map_err(|why| bad(&why))?;
    let key = manifest.key;
    let temporary = Temporary::new(cache, key)?;
    for (name, bytes) in [(entry::INDEX, manifest.index_bytes), (entry::DATA, manifest.data_bytes)] {
        take(&mut input, &temporary.path().join(name), bytes, how)?;
    }
    // To the very end: only there does the decoder hold the whole against its checksum.
    match input.read(&mut [0]) {
        Ok(0) => {}
        Ok(_) => return Err(bad("there is more behind its end")),
        Err(error) => return Err(broken(error)),
    }
    take(&mut text.as_slice(), &temporary.path().join(entry::MANIFEST), length, how)?;
    folder::sync(temporary.path())?;
    let wanted = Wanted { folder: temporary.path(), key, reference: None };
    let whole = entry::open(&wanted, Depth::Bodies, &Memo::none(), how.threads);
    drop(whole.map_err(|doubt| bad(&reason(doubt)))?);
    let path = entry::path(cache, key);
    let good = || {
        let wanted = Wanted { folder: &path, key, reference: None };
        Ok(entry::open(&wanted, Depth::Bodies, &Memo::none(), how.threads).is_ok())
    };
    match publish(&temporary, &path, cache, key, good)? {
        Published::Ours | Published::Theirs => Ok(key),
    }
}

/// Writes the next `bytes` bytes of an import to a file, and syncs it.
fn take(input: &mut dyn Read, path: &Path, bytes: u64, how: &How<'_>) -> Result<()> {
    let failed = |e| Error::file("cannot write", path, e);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let mut block = vec![0; BLOCK_BYTES];
    let mut left = bytes;
    while left > 0 {
        how.check()?;
        let now = left.min(BLOCK_BYTES as u64) as usize;
        let read = input.read_exact(&mut block[..now]);
        read.map_err(|e| Error::Failed(format!("the exported entry ends too early: {e}")))?;
        file.write_all(&block[..now]).map_err(failed)?;
        left -= now as u64;
    }
    file.sync_all().map_err(failed)
}
