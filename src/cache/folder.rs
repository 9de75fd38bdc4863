//! The cache directory: where it is, whether it is to be trusted, and the temporary folders in it.
//!
//! Promises: nothing is written outside the directory; a temporary folder is removed when its owner lets go of it, and one
//! whose owner was killed is told apart by its lock, which the kernel lets go.

use std::{
    fs::{DirBuilder, File},
    hash::{BuildHasher, RandomState},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use super::spec::Key;
use crate::{
    data::{Error, Result},
    sys,
};

/// Makes a folder and those above it, for us alone.
pub(super) fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Why a folder or a file is not to be trusted: it is another user's.
pub(super) fn foreign(meta: &std::fs::Metadata) -> Option<String> {
    let me = nix::unistd::geteuid().as_raw();
    (meta.uid() != me).then(|| format!("it belongs to user {}, not to {me}", meta.uid()))
}

/// Whether a cache directory can be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// It is there and ours.
    Ours,
    /// It is not there and cannot be made, or is another user's. The reason.
    No(String),
}

/// Looks at a cache directory, making it when it is not there.
pub(super) fn trust(cache: &Path) -> Trust {
    if let Err(e) = create(cache) {
        return Trust::No(format!("it cannot be made: {e}"));
    }
    match std::fs::metadata(cache) {
        Err(e) => Trust::No(e.to_string()),
        Ok(meta) => foreign(&meta).map_or(Trust::Ours, Trust::No),
    }
}

/// A temporary folder beside the entries: `.<key>.tmp.<pid>.<random>`. Removed when dropped.
#[derive(Debug)]
pub(super) struct Temporary {
    path: PathBuf,
    /// Its lock says that we are alive.
    _alive: Option<File>,
}

impl Temporary {
    pub(super) fn new(cache: &Path, key: Key) -> Result<Self> {
        let path = Self::name(cache, key);
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| Error::file("cannot make the folder", &path, e))?;
        let alive = File::open(&path).ok().filter(|folder| folder.try_lock().is_ok());
        Ok(Self { path, _alive: alive })
    }

    /// A name that nobody has.
    pub(super) fn name(cache: &Path, key: Key) -> PathBuf {
        let random = RandomState::new().hash_one(std::process::id());
        cache.join(format!(".{key}.tmp.{}.{random:016x}", std::process::id()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename the name is gone, or is that of the entry that was replaced; either way nothing may be left.
        let _ = remove_all(&self.path);
    }
}

/// Removes an entry: it is gone at once, by a rename, and its files then.
pub(super) fn remove_entry(cache: &Path, entry: &Path, key: Key) -> io::Result<()> {
    let aside = Temporary::name(cache, key);
    std::fs::rename(entry, &aside)?;
    remove_all(&aside)
}

/// A folder, or a file where a folder should be.
fn remove_all(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path),
        _ => std::fs::remove_file(path),
    }
}

/// A temporary folder left in a cache directory.
#[derive(Debug)]
pub(super) struct Leftover {
    pub(super) path: PathBuf,
}

/// Temporary folders whose builder is dead: all, or those of one key.
pub(super) fn leftovers(cache: &Path, of: Option<Key>) -> Vec<Leftover> {
    let Ok(entries) = std::fs::read_dir(cache) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some((key, pid)) = name.to_str().and_then(parse_temporary) else { continue };
        if of.is_none_or(|of| of == key) && is_dead(&entry.path(), pid) {
            found.push(Leftover { path: entry.path() });
        }
    }
    found
}

/// Removes them. What cannot be removed now is there next time.
pub(super) fn remove_leftovers(found: &[Leftover]) {
    found.iter().for_each(|leftover| drop(remove_all(&leftover.path)));
}

fn parse_temporary(name: &str) -> Option<(Key, i32)> {
    let (key, rest) = name.strip_prefix('.')?.split_once(".tmp.")?;
    let pid = rest.split('.').next()?;
    Some((Key::parse(key)?, pid.parse().ok()?))
}

/// How long a folder with a free lock and a living process of its number is left alone: its builder may be about to lock it.
const YOUNG: Duration = Duration::from_secs(60);

/// A builder holds a lock on its folder for as long as it lives. Where there are no locks, its process is asked for.
fn is_dead(path: &Path, pid: i32) -> bool {
    let Ok(folder) = File::open(path) else { return true };
    let gone = || nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None) == Err(nix::errno::Errno::ESRCH);
    match folder.try_lock() {
        Ok(()) => {
            let changed = folder.metadata().and_then(|meta| meta.modified());
            gone() || changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > YOUNG))
        }
        Err(std::fs::TryLockError::Error(e)) if sys::fs::locks_missing(&e) => gone(),
        Err(_) => false,
    }
}

/// Makes what is in a folder durable: its names.
pub(super) fn sync(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|f| f.sync_all());
    match synced {
        // A folder on some file systems cannot be synced; its files were.
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        result => result.map_err(|e| Error::file("cannot sync", folder, e)),
    }
}
