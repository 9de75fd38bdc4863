//! Calls on files that the standard library has no name for.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{OpenOptionsExt, PermissionsExt},
    },
    path::Path,
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

/// Asks the kernel to begin writing a range of a file to its disk, and returns. The sync at the end then has less to wait for.
pub fn begin_writeback(file: &File, offset: u64, bytes: u64) {
    // SAFETY: the descriptor is open for the whole call; no memory is involved. Failing only means a longer sync later.
    let _ =
        unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, bytes as i64, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Makes the kernel notice every change of a file from now on. A page that is written through a map moves the file's times
/// only at the first write since it was last given to the disk: so what is dirty is handed over now, and the next write of
/// any page moves them again. Nothing is waited for but pages that are on their way. Useless on tmpfs, which has no disk.
pub fn arm_times(file: &File) {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: the descriptor is open for the whole call; no memory is involved. Zero bytes mean up to the end.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
}

/// A file without a name in `folder`, read and write. It is gone when it is closed, whatever ends us.
pub fn unnamed_file(folder: &Path) -> io::Result<File> {
    let open = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(folder);
    match open {
        // Not every file system has O_TMPFILE, and an old kernel takes the flag for O_DIRECTORY.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
            for attempt in 0..100u32 {
                let path = folder.join(format!(".ringload.tmp.{}.{attempt}", std::process::id()));
                match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
                    Ok(file) => return std::fs::remove_file(&path).map(|()| file),
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(e) => return Err(e),
                }
            }
            Err(io::ErrorKind::AlreadyExists.into())
        }
        open => open,
    }
}

/// Swaps two names in one step. Not every file system can.
pub fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    Ok(renameat2(AT_FDCWD, a, AT_FDCWD, b, RenameFlags::RENAME_EXCHANGE)?)
}

/// Renames, and fails when the new name is taken, also by an empty folder.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
        Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOSYS) => std::fs::rename(from, to),
        result => Ok(result?),
    }
}

/// True when nobody but its owner may write to what the metadata is of.
pub fn only_owner_writes(meta: &std::fs::Metadata) -> bool {
    meta.permissions().mode() & 0o022 == 0
}

/// True for errors that say that locks are not there at all: the file system, or the kernel, has none.
pub fn locks_missing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::ENOLCK | libc::EOPNOTSUPP | libc::EINVAL))
}

/// True for errors that say that nothing can be written there, whatever room there is.
pub fn not_writable(e: &io::Error) -> bool {
    let denied = [libc::EROFS, libc::EACCES, libc::EPERM, libc::ELOOP, libc::ENOTDIR, libc::EISDIR, libc::ENXIO];
    e.raw_os_error().is_some_and(|code| denied.contains(&code))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_write_through_a_map_moves_the_times_of_an_armed_file() {
        use std::os::unix::fs::MetadataExt;

        let file = tempfile::tempfile_in(".").unwrap();
        file.set_len(8192).unwrap();
        // SAFETY: the file is this test's own and is not cut short.
        let mut map = unsafe { memmap2::MmapMut::map_mut(&file).unwrap() };
        map[0] = 1;
        let before = file.metadata().unwrap();
        arm_times(&file);
        // The kernel's clock for files ticks every few milliseconds.
        let begun = std::time::Instant::now();
        loop {
            map[1] = map[1].wrapping_add(1);
            let now = file.metadata().unwrap();
            if (now.mtime(), now.mtime_nsec()) != (before.mtime(), before.mtime_nsec()) {
                break;
            }
            assert!(begun.elapsed().as_secs() < 5, "the write was not noticed");
            arm_times(&file);
        }
    }

    #[test]
    fn an_unnamed_file_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let file = unnamed_file(folder.path()).unwrap();
        file.write_all_at(b"abc", 0).unwrap();
        begin_writeback(&file, 0, 3);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn names_are_swapped_or_taken_in_one_step() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&a, "1").unwrap();
        std::fs::create_dir(&b).unwrap();
        assert!(rename_new(&a, &b).is_err());
        exchange(&a, &b).unwrap();
        assert!(a.is_dir() && b.is_file());
    }
}
