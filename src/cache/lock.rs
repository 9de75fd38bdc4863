//! The lock of a key: `<key>.lock` in the cache directory, held by whoever builds the entry. Never unlinked, so that two
//! builders always mean the same file.
//!
//! Promises: a lock that cannot be had never fails a run. The kernel lets go of it when its holder dies. It only saves work:
//! that entries are whole, and one, is the business of the rename.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{How, folder, spec::Key};
use crate::{data::Result, sys};

/// Between two tries.
const POLL: Duration = Duration::from_millis(20);
/// Between two looks for the entry while waiting: a holder that is stuck, or whose lock lies, may have finished all the same.
const LOOK: Duration = Duration::from_millis(500);

/// What came of asking for the lock.
pub(super) enum Lock<T> {
    /// Held until it is dropped.
    Held(#[allow(dead_code)] File),
    /// There are no locks here: the build goes on, and the rename decides.
    Missing,
    /// The entry appeared while we waited.
    Found(T),
    /// It cannot be had: the build is private. The reason.
    Denied(String),
}

/// Waits for the lock of a key, at most so long. `look` is asked now and then whether the entry is there meanwhile.
pub(super) fn wait<T>(
    cache: &Path,
    key: Key,
    timeout: Duration,
    how: &How<'_>,
    try_lock: impl Fn(&File) -> Result<(), TryLockError>,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<Lock<T>> {
    let path = path(cache, key);
    let mut file = match open(&path) {
        Ok(file) => file,
        Err(why) => return Ok(Lock::Denied(why)),
    };
    let (began, mut looked) = (Instant::now(), Instant::now());
    let mut said = false;
    loop {
        match try_lock(&file) {
            Ok(()) => {
                sign(&mut file);
                return Ok(Lock::Held(file));
            }
            Err(TryLockError::Error(e)) if sys::fs::locks_missing(&e) => return Ok(Lock::Missing),
            Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(e)) => {
                return Ok(Lock::Denied(format!("{} cannot be locked: {e}", path.display())));
            }
            Err(TryLockError::WouldBlock) => {}
        }
        how.check()?;
        if began.elapsed() >= timeout {
            let waited = timeout.as_secs_f64();
            return Ok(Lock::Denied(format!("{} was not free within {waited} s (--lock-timeout)", path.display())));
        }
        if !said && began.elapsed() > 5 * POLL {
            said = true;
            how.notice(format!(
                "waiting for {}, which builds the same entry; {} is its lock",
                holder(&mut file),
                path.display()
            ));
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            if let Some(found) = look()? {
                return Ok(Lock::Found(found));
            }
        }
        std::thread::sleep(POLL);
    }
}

/// Path of the lock of a key.
pub(super) fn path(cache: &Path, key: Key) -> PathBuf {
    cache.join(format!("{key}.lock"))
}

fn open(path: &Path) -> std::result::Result<File, String> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags)
        .open(path);
    let file = opened.map_err(|e| match e.raw_os_error() {
        Some(libc::ELOOP) => format!("{} is a symlink, which is not followed", path.display()),
        _ => format!("{} cannot be opened: {e}", path.display()),
    })?;
    let meta = file.metadata().map_err(|e| format!("{}: {e}", path.display()))?;
    if !meta.is_file() {
        return Err(format!("{} is no file", path.display()));
    }
    match folder::foreign(&meta) {
        Some(why) => Err(format!("{} is not trusted: {why}", path.display())),
        None => Ok(file),
    }
}

/// Writes who holds it, for those who wait.
fn sign(file: &mut File) {
    let text = format!("{}\n", std::process::id());
    // For people only.
    let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.take(32).read_to_string(&mut text));
    match text.trim().parse::<u32>() {
        Ok(pid) if read.is_ok() => format!("process {pid}"),
        _ => "another process".into(),
    }
}
