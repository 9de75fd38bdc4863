//! An entry on disk: is it whole, is it the one that was asked for, and may it be used.
//!
//! Promises: an entry is used only when its manifest, sizes, header, columns and spans all agree with each other and with the
//! key. Any doubt is a miss with a reason, never an error. Body bytes are checked on request, and when the file system says that
//! somebody touched their file since it was built. The checksums of a large index
//! are checked once: as long as the two files keep inode, size and times they are those that were checked.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{
    check,
    input::Stamp,
    layout,
    manifest::Manifest,
    memo::{Checked, Memo},
    pack,
    spec::{Key, Store},
    view::View,
};
use crate::{cache::folder, sys::mem::Map};

/// An index of this size is read and checked in less than 10 ms each time; a larger one is checked once and then known by its
/// stamp.
const ALWAYS_CHECKED_BYTES: u64 = 32 << 20;
/// An index of this size is copied: then nothing done to the file can be seen by a run, and reads cost no page faults.
const COPIED_BYTES: u64 = 4 << 20;
/// Tries for a lock that nobody holds for long.
const TRIES: usize = 20;
/// Between two of them.
const PAUSE: Duration = Duration::from_micros(500);
/// Longest manifest.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// Names of the files of an entry.
pub(super) const DATA: &str = "dataset.dat";
/// See [`DATA`].
pub(super) const INDEX: &str = "index.dat";
/// See [`DATA`].
pub(super) const MANIFEST: &str = "manifest.json";

/// Why an entry is not used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// There is none.
    Absent,
    /// There is something, but.
    Bad(String),
}

impl From<&str> for Doubt {
    fn from(why: &str) -> Self {
        Self::Bad(why.to_owned())
    }
}

/// How much is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// All but the bytes of the bodies, which are believed when their file is as the builder left it.
    Index,
    /// Everything.
    Bodies,
}

/// What is opened.
pub(super) struct Wanted<'a> {
    pub(super) folder: &'a Path,
    pub(super) key: Key,
    /// The user's file, for an entry that points into it.
    pub(super) reference: Option<&'a Arc<File>>,
}

/// Opens an entry.
pub(super) fn open(wanted: &Wanted<'_>, depth: Depth, memo: &Memo, threads: usize) -> Result<View, Doubt> {
    let directory = match open_in(wanted.folder, None) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Doubt::Absent),
        opened => opened.map_err(|e| Doubt::Bad(format!("its folder cannot be opened: {e}")))?,
    };
    owned(&directory, "the folder")?;
    // For as long as the view lives `gc` sees that the entry is in use. Without locks it is removed under us, and goes on.
    mark_in_use(&directory);
    let manifest = read_manifest(wanted.folder)?;
    if manifest.key != wanted.key {
        return Err(format!("manifest.json is of another key, {}", manifest.key).as_str().into());
    }
    let index = file_of(wanted.folder, INDEX, manifest.index_bytes)?;
    let data = match (manifest.spec.store, wanted.reference) {
        (Store::Copy, _) => {
            unpack_missing(wanted.folder, &manifest)?;
            file_of(wanted.folder, DATA, manifest.data_bytes)?
        }
        (Store::Reference, Some(file)) => {
            file.try_clone().map_err(|e| Doubt::Bad(format!("the dataset cannot be opened: {e}")))?
        }
        (Store::Reference, None) => return Err("it points into a dataset that was not given".into()),
    };
    let stamps = stamp(&index).zip(stamp(&data));
    let began_ns = Memo::now_ns();
    let (index_kept, data_kept) = (index.try_clone(), data.try_clone());
    let map = if manifest.index_bytes <= COPIED_BYTES {
        Map::copy_of(&index, manifest.index_bytes)
    } else {
        Map::file(index, manifest.index_bytes)
    };
    let map = map.map_err(|e| Doubt::Bad(format!("index.dat cannot be read: {e}")))?;
    let data_map =
        Map::file(data, manifest.data_bytes).map_err(|e| Doubt::Bad(format!("the data cannot be mapped: {e}")))?;
    // Nobody may have written between the look above and the map's own, from which on it sees changes by itself.
    let still =
        data_kept.ok().and_then(|file| stamp(&file)).filter(|now| Some(now) == stamps.as_ref().map(|(_, data)| data));
    let large = manifest.index_bytes > ALWAYS_CHECKED_BYTES && depth == Depth::Index;
    let mut view = View::new(map, Arc::new(data_map), Some(manifest))?;
    agree(&view)?;
    view.keep_open(directory);
    let was_checked = |what| match (&stamps, &index_kept) {
        (Some((index, data)), Ok(file)) => memo.was_checked(what, index, data, file),
        _ => false,
    };
    let keep_checked = |what| {
        if let (Some((index, data)), Ok(file)) = (&stamps, &index_kept) {
            memo.keep_checked(what, index, data, file, began_ns);
        }
    };
    if !(large && was_checked(Checked::Index)) {
        view.check_columns(threads)?;
        if large {
            keep_checked(Checked::Index);
        }
    }
    if depth == Depth::Bodies {
        check_bodies(&view, threads)?;
    } else if touched(&view, still.as_ref()) && (still.is_none() || !was_checked(Checked::Data)) {
        if !view.data_is_whole(threads) {
            return Err("dataset.dat is damaged".into());
        }
        view.note_data_was_checked();
        keep_checked(Checked::Data);
    }
    if view.damaged() {
        return Err("its files were cut short while they were read".into());
    }
    Ok(view)
}

/// Takes a shared lock on the folder. Whoever holds it alone does so for a moment, to ask whether it is in use: so a few tries,
/// or the run would go on unseen by `gc`.
fn mark_in_use(directory: &File) {
    for _ in 0..TRIES {
        match directory.try_lock_shared() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            _ => return,
        }
    }
}

/// True when a view of the entry is open anywhere.
pub(super) fn in_use(folder: &Path) -> bool {
    let Ok(directory) = File::open(folder) else { return false };
    // A process that is being started holds the locks of the one that starts it until it runs its own program.
    for _ in 0..TRIES {
        match directory.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            _ => return false,
        }
    }
    true
}

/// True when the data file is not as the builder left it: copied, unpacked, restored, or edited.
fn touched(view: &View, data: Option<&Stamp>) -> bool {
    let Some(manifest) = view.manifest() else { return true };
    // The user's own file is known by its digest.
    manifest.spec.store == Store::Copy
        && (manifest.data_stamp.is_none() || manifest.data_stamp != data.map(Stamp::identity))
}

/// Holds the manifest to the index.
fn agree(view: &View) -> Result<(), Doubt> {
    let Some(manifest) = view.manifest() else { return Err("it has no manifest".into()) };
    let totals = view.totals();
    let same = manifest.key == view.key()
        && manifest.records == totals.records
        && manifest.body_bytes == totals.body_bytes
        && manifest.data_check == format!("{:016x}", totals.data_check)
        && manifest.index_check == format!("{:016x}", check::of(view.header_bytes()));
    if same { Ok(()) } else { Err("manifest.json and index.dat are not of the same build".into()) }
}

/// Every byte of the data against its checksums.
fn check_bodies(view: &View, threads: usize) -> Result<(), Doubt> {
    let reference = view.manifest().is_some_and(|m| m.spec.store == Store::Reference);
    if !reference && !view.data_is_whole(threads) {
        let bad = view.check_bodies(threads, &Default::default(), 3);
        let records: Vec<_> = bad.iter().map(ToString::to_string).collect();
        let of = if records.is_empty() { String::new() } else { format!(" (record {}, ...)", records.join(", ")) };
        return Err(Doubt::Bad(format!("dataset.dat is damaged{of}")));
    }
    match view.check_bodies(threads, &Default::default(), 1).first() {
        Some(record) => Err(Doubt::Bad(format!("the body of record {record} is damaged"))),
        None => Ok(()),
    }
}

/// Reads and checks the manifest of an entry.
pub(super) fn read_manifest(folder: &Path) -> Result<Manifest, Doubt> {
    let mut text = Vec::new();
    let file =
        open_in(folder, Some(MANIFEST)).map_err(|e| Doubt::Bad(format!("manifest.json cannot be opened: {e}")))?;
    owned(&file, MANIFEST)?;
    let read = file.take(MANIFEST_BYTES_MAX).read_to_end(&mut text);
    read.map_err(|e| Doubt::Bad(format!("manifest.json cannot be read: {e}")))?;
    Manifest::parse(&text).map_err(Doubt::Bad)
}

/// Opens the folder or a file of it; a symlink in either's place is not followed.
fn open_in(folder: &Path, name: Option<&str>) -> io::Result<File> {
    let path = name.map_or_else(|| folder.to_path_buf(), |name| folder.join(name));
    let kind = if name.is_none() { libc::O_DIRECTORY } else { libc::O_NONBLOCK };
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | kind).open(path)
}

fn owned(file: &File, what: &str) -> Result<(), Doubt> {
    let meta = file.metadata().map_err(|e| Doubt::Bad(format!("{what} cannot be looked at: {e}")))?;
    match folder::foreign(&meta) {
        Some(why) => Err(Doubt::Bad(format!("{what} is not trusted: {why}"))),
        None => Ok(()),
    }
}

fn file_of(folder: &Path, name: &str, bytes: u64) -> Result<File, Doubt> {
    let file = open_in(folder, Some(name)).map_err(|e| Doubt::Bad(format!("{name} cannot be opened: {e}")))?;
    owned(&file, name)?;
    match file.metadata() {
        Ok(meta) if meta.is_file() && meta.len() == bytes => Ok(file),
        Ok(meta) => Err(Doubt::Bad(format!("{name} has {} bytes, its manifest says {bytes}", meta.len()))),
        Err(e) => Err(Doubt::Bad(format!("{name} cannot be looked at: {e}"))),
    }
}

fn stamp(file: &File) -> Option<Stamp> {
    file.metadata().ok().map(|meta| Stamp::of(&meta))
}

/// Unpacks the data of an entry that is kept compressed.
fn unpack_missing(folder: &Path, manifest: &Manifest) -> Result<(), Doubt> {
    let there = |name: &str| std::fs::symlink_metadata(folder.join(name)).is_ok();
    if there(DATA) || !there(pack::PACKED) {
        return Ok(());
    }
    pack::unpack(folder, manifest).map_err(Doubt::Bad)
}

/// Says that an entry was used now: `gc` keeps what was used last. Where that cannot be written, nobody will remove it either.
pub(super) fn touch(folder: &Path) {
    let _ = open_in(folder, Some(MANIFEST)).and_then(|file| file.set_modified(std::time::SystemTime::now()));
}

/// Path of an entry.
pub(super) fn path(cache: &Path, key: Key) -> PathBuf {
    cache.join(key.to_string())
}

const _: () = assert!(layout::HEADER_BYTES < COPIED_BYTES as usize && COPIED_BYTES < ALWAYS_CHECKED_BYTES);
