//! Files that a command writes where the user said: whole or not at all, whatever ends the command.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::Mutex,
};

use crate::data::{Error, Result};

/// What a signal has to remove.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file on its way: under a name of its own until [`OutFile::finish`], gone when that is never called. What is no regular
/// file (a pipe, a device) is written to as it stands.
#[derive(Debug)]
pub struct OutFile {
    to: PathBuf,
    part: Option<PathBuf>,
    file: BufWriter<File>,
}

impl OutFile {
    /// Begins the file `path`. An old one of that name stays until the new one is whole.
    ///
    /// Errors: a folder that is not there or cannot be written to. Opening a pipe waits for its reader.
    pub fn create(path: &Path) -> Result<Self> {
        let failed = |e| Error::file("cannot create", path, e);
        // Through links, so that it is the file behind one that is replaced, and not the link.
        let to = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let special = fs::metadata(&to).is_ok_and(|meta| !meta.is_file());
        let name = to.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let part = to.with_file_name(format!(".{name}.{}.part", std::process::id()));
        let opened = if special { None } else { OpenOptions::new().write(true).create_new(true).open(&part).ok() };
        match opened {
            Some(file) => {
                if let Ok(mut unfinished) = UNFINISHED.lock() {
                    unfinished.push(part.clone());
                }
                Ok(Self { to, part: Some(part), file: buffered(file) })
            }
            // A file in a folder where no other may be made is written in place.
            None => Ok(Self { file: buffered(File::create(&to).map_err(failed)?), to, part: None }),
        }
    }

    /// Puts the file under its name, on the disk.
    ///
    /// Errors: a write that failed; nothing is left of the file then.
    pub fn finish(mut self) -> Result<()> {
        let failed = |e| Error::file("cannot write", &self.to, e);
        self.file.flush().map_err(failed)?;
        let Some(part) = &self.part else { return Ok(()) };
        self.file.get_ref().sync_all().map_err(failed)?;
        fs::rename(part, &self.to).map_err(failed)?;
        forget(part);
        self.part = None;
        Ok(())
    }
}

fn buffered(file: File) -> BufWriter<File> {
    BufWriter::with_capacity(256 << 10, file)
}

fn forget(part: &Path) {
    if let Ok(mut unfinished) = UNFINISHED.lock() {
        unfinished.retain(|p| p != part);
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            let _ = fs::remove_file(&part);
            forget(&part);
        }
    }
}

/// Removes what is not finished: the process ends now.
pub fn remove_unfinished() {
    // Whoever holds the lock is adding or taking a name: not worth to wait for.
    if let Ok(unfinished) = UNFINISHED.try_lock() {
        for part in unfinished.iter() {
            let _ = fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_or_not_at_all_and_an_old_one_stays_until_then() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("out"), folder.path().join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut file = OutFile::create(&link).unwrap();
        file.write_all(b"half").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "what was begun is gone");
        let mut file = OutFile::create(&link).unwrap();
        file.write_all(b"new").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(link.is_symlink() && fs::read_dir(folder.path()).unwrap().count() == 2);
    }

    #[test]
    fn what_is_no_regular_file_is_written_to_as_it_stands() {
        let mut null = OutFile::create(Path::new("/dev/null")).unwrap();
        null.write_all(b"x").unwrap();
        null.finish().unwrap();
        assert!(fs::metadata("/dev/null").is_ok_and(|m| !m.is_file()));
        let error = OutFile::create(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.contains("cannot create /nowhere/at/all"), "{error}");
    }
}
