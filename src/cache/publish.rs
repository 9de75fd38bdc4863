//! A finished folder gets its name, or another's stays: the one step that decides what an entry is.

use std::{io, path::Path};

use super::{
    folder::{self, Temporary},
    spec::Key,
};
use crate::{
    data::{Error, Result},
    sys,
};

/// Tries, each against another's rename in the same moment.
const TRIES: usize = 8;

/// Whose entry it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    /// Ours was renamed.
    Ours,
    /// A good one was there first.
    Theirs,
}

/// Renames a finished folder to the name of its entry. What is there stays when it is `good`, and is replaced otherwise.
pub(super) fn publish(
    temporary: &Temporary,
    entry: &Path,
    cache: &Path,
    key: Key,
    mut good: impl FnMut() -> Result<bool>,
) -> Result<Published> {
    let failed = |e| Error::file("cannot rename to", entry, e);
    for _ in 0..TRIES {
        match sys::fs::rename_new(temporary.path(), entry) {
            Ok(()) => {
                folder::sync(cache)?;
                return Ok(Published::Ours);
            }
            Err(e) if !taken(&e) => return Err(failed(e)),
            Err(_) => {}
        }
        if good()? {
            return Ok(Published::Theirs);
        }
        // What is there is no good: it moves to our temporary name, and goes with it.
        if sys::fs::exchange(temporary.path(), entry).is_ok() {
            folder::sync(cache)?;
            return Ok(Published::Ours);
        }
        // Where names cannot be swapped it is removed first. If another was faster, the next try sees it.
        let _ = folder::remove_entry(cache, entry, key);
    }
    Err(failed(io::ErrorKind::AlreadyExists.into()))
}

fn taken(e: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
    matches!(e.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory)
}
