//! The memo of input digests: `inputs/<device>-<inode>` in the cache directory, so that a file that nobody touched is not
//! hashed again.
//!
//! Promises: a memo is believed only when device, inode, size, mtime and ctime are all the same *and* the file was last changed
//! clearly before its hashing began. So an edit in the same tick of the file system's clock, or one that puts size and mtime
//! back, is hashed again: ctime cannot be put back. Nor can it be kept from moving by writing through a map: the file's times
//! are armed before it is hashed (`sys::fs::arm_times`). Anything odd about a memo means hashing; failing to write one means nothing.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use xxhash_rust::xxh3::xxh3_64;

use super::{input::Stamp, spec::Digest};

/// How long a file must have been at rest: more than the tick of any file system that has a ctime (ext3 and old NFS: 1 s).
const AT_REST_NS: i128 = 2_000_000_000;
/// Files below this are hashed faster than a memo is read.
const MEMO_BYTES_MIN: u64 = 1 << 20;
/// Longest memo.
const TEXT_BYTES_MAX: u64 = 4096;
/// First word of a memo; a change of what a digest means is a new number.
const MAGIC: &str = "ringload-memo-2";

/// What of an entry was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checked {
    /// The columns of its index.
    Index,
    /// Every byte of its data.
    Data,
}

impl Checked {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Index => "e-",
            Self::Data => "d-",
        }
    }
}

/// The memos of one cache directory; none when there is no directory to keep them in.
#[derive(Debug)]
pub(super) struct Memo {
    folder: Option<PathBuf>,
}

impl Memo {
    pub(super) fn none() -> Self {
        Self { folder: None }
    }

    pub(super) fn in_cache(cache: &Path) -> Self {
        Self { folder: Some(cache.join("inputs")) }
    }

    /// Nanoseconds since 1970 by the clock that file systems use.
    pub(super) fn now_ns() -> i128 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i128)
    }

    fn path(&self, stamp: &Stamp, kind: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{kind}{:x}-{:x}", stamp.device, stamp.inode)))
    }

    /// The digest of a file that is as it was when it was hashed.
    pub(super) fn recall(&self, stamp: &Stamp, file: Option<&File>) -> Option<Digest> {
        if stamp.bytes < MEMO_BYTES_MIN || !file.is_some_and(has_ctime) {
            return None;
        }
        Digest::parse(&read(&self.path(stamp, "")?, stamp)?)
    }

    /// Keeps the digest of a file whose hashing began at `began_ns`, unless it changed too shortly before.
    pub(super) fn keep(&self, stamp: &Stamp, file: &File, digest: Digest, began_ns: i128) {
        if stamp.bytes >= MEMO_BYTES_MIN && at_rest(stamp, began_ns) && has_ctime(file) {
            self.write(stamp, "", &digest.to_string(), began_ns);
        }
    }

    /// True when the two files of an entry are those that were checked before.
    pub(super) fn was_checked(&self, what: Checked, index: &Stamp, data: &Stamp, index_file: &File) -> bool {
        let kept = self.path(index, what.prefix()).and_then(|path| read(&path, index));
        kept.is_some_and(|text| text == stamp_text(data)) && has_ctime(index_file)
    }

    /// Keeps that the two files of an entry were checked, beginning at `began_ns`.
    pub(super) fn keep_checked(&self, what: Checked, index: &Stamp, data: &Stamp, index_file: &File, began_ns: i128) {
        if at_rest(index, began_ns) && at_rest(data, began_ns) && has_ctime(index_file) {
            self.write(index, what.prefix(), &stamp_text(data), began_ns);
        }
    }

    fn write(&self, stamp: &Stamp, kind: &str, value: &str, began_ns: i128) {
        let Some((path, folder)) = self.path(stamp, kind).zip(self.folder.as_ref()) else { return };
        let text = format!("{MAGIC} {} {began_ns} {value}", stamp_text(stamp));
        let text = format!("{text} {:016x}\n", xxh3_64(text.as_bytes()));
        let temporary = folder.join(format!(".{}.{:x}", std::process::id(), stamp.inode));
        // A memo saves work and nothing more: what cannot be written is hashed again next time.
        let _ = super::folder::create(folder)
            .and_then(|()| File::create(&temporary))
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| std::fs::rename(&temporary, &path))
            .inspect_err(|_| drop(std::fs::remove_file(&temporary)));
    }
}

fn stamp_text(stamp: &Stamp) -> String {
    let Stamp { device, inode, bytes, mtime_ns, ctime_ns } = stamp;
    format!("{device}/{inode}/{bytes}/{mtime_ns}/{ctime_ns}")
}

/// The value of a memo about just this stamp, whose file was at rest when it was hashed.
fn read(path: &Path, stamp: &Stamp) -> Option<String> {
    if std::fs::symlink_metadata(path).ok()?.len() > TEXT_BYTES_MAX {
        return None;
    }
    let text = std::fs::read_to_string(path).ok()?;
    // One flipped bit in a digest would name an input that there is not, and every run would be refused.
    let (text, check) = text.strip_suffix('\n')?.rsplit_once(' ')?;
    if format!("{:016x}", xxh3_64(text.as_bytes())) != check {
        return None;
    }
    let mut words = text.split(' ');
    let (magic, of, began, value) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let began_ns: i128 = began.parse().ok()?;
    let holds = magic == MAGIC && of == stamp_text(stamp) && at_rest(stamp, began_ns) && words.next().is_none();
    // A memo from the future was written under another clock.
    (holds && began_ns <= Memo::now_ns()).then(|| value.to_owned())
}

fn at_rest(stamp: &Stamp, at_ns: i128) -> bool {
    stamp.mtime_ns.max(stamp.ctime_ns) + AT_REST_NS <= at_ns
}

/// False for file systems whose ctime is not the time of the last change, or not kept by anybody we can trust; tmpfs does not
/// move it for writes through a map.
fn has_ctime(file: &File) -> bool {
    use nix::sys::statfs::{FUSE_SUPER_MAGIC, FsType, MSDOS_SUPER_MAGIC, SMB_SUPER_MAGIC, TMPFS_MAGIC, fstatfs};
    const V9FS_MAGIC: FsType = FsType(0x0102_1997);
    let odd = [FUSE_SUPER_MAGIC, MSDOS_SUPER_MAGIC, SMB_SUPER_MAGIC, TMPFS_MAGIC, V9FS_MAGIC];
    fstatfs(file).is_ok_and(|fs| !odd.contains(&fs.filesystem_type()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(ctime_ns: i128) -> Stamp {
        Stamp { device: 1, inode: 2, bytes: 5 << 20, mtime_ns: ctime_ns, ctime_ns }
    }

    #[test]
    fn a_memo_is_believed_only_for_the_same_file_that_was_at_rest() {
        let folder = tempfile::tempdir().unwrap();
        let memo = Memo::in_cache(folder.path());
        let file = tempfile::tempfile_in(folder.path()).unwrap();
        let (now, digest) = (Memo::now_ns(), Digest([7; 32]));
        let old = stamp(now - 10 * AT_REST_NS);
        memo.keep(&old, &file, digest, now);
        assert_eq!(memo.recall(&old, Some(&file)), Some(digest));
        for other in [
            Stamp { bytes: old.bytes + 1, ..old },
            Stamp { mtime_ns: old.mtime_ns + 1, ..old },
            Stamp { ctime_ns: old.ctime_ns + 1, ..old },
            Stamp { inode: 3, ..old },
            Stamp { device: 3, ..old },
        ] {
            assert_eq!(memo.recall(&other, Some(&file)), None, "{other:?}");
        }
        assert_eq!(Memo::none().recall(&old, Some(&file)), None);
    }

    #[test]
    fn a_file_changed_just_before_it_was_hashed_leaves_no_memo() {
        let folder = tempfile::tempdir().unwrap();
        let memo = Memo::in_cache(folder.path());
        let file = tempfile::tempfile_in(folder.path()).unwrap();
        let now = Memo::now_ns();
        let young = stamp(now - AT_REST_NS + 1);
        memo.keep(&young, &file, Digest([7; 32]), now);
        assert_eq!(memo.recall(&young, Some(&file)), None);
        // The clock was put back after the file was written: its change lies in the future.
        let ahead = stamp(now + AT_REST_NS);
        memo.keep(&ahead, &file, Digest([7; 32]), now);
        assert_eq!(memo.recall(&ahead, Some(&file)), None);
    }

    #[test]
    fn a_damaged_memo_or_one_from_the_future_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let memo = Memo::in_cache(folder.path());
        let file = tempfile::tempfile_in(folder.path()).unwrap();
        let now = Memo::now_ns();
        let old = stamp(now - 10 * AT_REST_NS);
        memo.keep(&old, &file, Digest([7; 32]), now + 3_600_000_000_000);
        assert_eq!(memo.recall(&old, Some(&file)), None);
        memo.keep(&old, &file, Digest([7; 32]), now);
        let path = memo.path(&old, "").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for bad in [&text[..text.len() / 2], "", "x y z w\n", &text.replace("ringload-memo-2", "ringload-memo-3")] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(memo.recall(&old, Some(&file)), None, "{bad:?}");
        }
        for at in 0..text.len() {
            let mut bad = text.clone().into_bytes();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            assert_eq!(memo.recall(&old, Some(&file)), None, "byte {at}");
        }
        std::fs::write(&path, &text).unwrap();
        assert_eq!(memo.recall(&old, Some(&file)), Some(Digest([7; 32])));
    }
}
