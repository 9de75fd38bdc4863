//! The data of an entry compressed at rest (`--compress zstd`): `dataset.dat.zst` in the place of `dataset.dat`. The key and
//! the index are the same; a run unpacks it again, once, and maps that.

use std::{
    fs::{File, OpenOptions},
    hash::{BuildHasher, RandomState},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{check::Check, entry::DATA, folder, manifest::Manifest};
use crate::data::{Error, Result};

/// Name of the compressed data.
pub(super) const PACKED: &str = "dataset.dat.zst";
/// Beginning of the name of either while it is being made.
const HALF: &str = "half.tmp.";
/// Nobody has written to a half-made file for so long: whoever did is dead.
const HALF_AGE_MAX: Duration = Duration::from_secs(60);
/// The reference library's default: about 400 MB a second a core, and text to a third.
const LEVEL: i32 = 3;
/// Read and written at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// Puts the compressed data in the place of the plain one. A run that has mapped it goes on.
pub(super) fn pack(entry: &Path) -> Result<()> {
    let (plain, half) = (entry.join(DATA), half(entry));
    let made = (|| {
        let input = File::open(&plain)?;
        let bytes = input.metadata()?.len();
        let mut out = zstd::stream::write::Encoder::new(create(&half)?, LEVEL)?;
        out.include_checksum(true)?;
        out.set_pledged_src_size(Some(bytes))?;
        io::copy(&mut io::BufReader::with_capacity(BLOCK_BYTES, input), &mut out)?;
        out.finish()?.sync_all()
    })();
    let placed = made.and_then(|()| std::fs::rename(&half, entry.join(PACKED)));
    placed.inspect_err(|_| drop(std::fs::remove_file(&half))).map_err(|e| Error::file("cannot compress", &plain, e))?;
    folder::sync(entry)?;
    match std::fs::remove_file(&plain) {
        // Another one that compresses it was faster.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|e| Error::file("cannot remove", &plain, e)),
    }
}

/// Puts the plain data beside the compressed one, held to the manifest's length and checksum. The error is a reason.
pub(super) fn unpack(entry: &Path, manifest: &Manifest) -> Result<(), String> {
    // Several may unpack at once: each into its own file, and the last one wins with the same bytes.
    let half = half(entry);
    let result = unpack_to(entry, &half, manifest).and_then(|()| {
        std::fs::rename(&half, entry.join(DATA)).map_err(|e| format!("dataset.dat cannot be unpacked: {e}"))
    });
    result.inspect_err(|_| drop(std::fs::remove_file(&half)))
}

fn unpack_to(entry: &Path, half: &Path, manifest: &Manifest) -> Result<(), String> {
    let failed = |e: io::Error| format!("dataset.dat.zst cannot be unpacked: {e}");
    let packed = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(entry.join(PACKED));
    let mut input = zstd::stream::read::Decoder::new(packed.map_err(failed)?).map_err(failed)?;
    let mut out = create(half).map_err(failed)?;
    let (mut check, mut bytes) = (Check::default(), 0u64);
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let now = input.read(&mut block).map_err(failed)?;
        bytes += now as u64;
        // A bomb ends here, not at the end of the disk.
        if now == 0 || bytes > manifest.data_bytes {
            break;
        }
        check.push(&block[..now]);
        out.write_all(&block[..now]).map_err(failed)?;
    }
    if bytes != manifest.data_bytes || format!("{:016x}", check.finish()) != manifest.data_check {
        return Err("dataset.dat.zst does not hold the data that its manifest says".into());
    }
    out.sync_all().map_err(failed)
}

/// A name that nobody has: not by the process's number alone, which another one has in another container.
fn half(entry: &Path) -> PathBuf {
    entry.join(format!("{HALF}{:016x}", RandomState::new().hash_one(std::process::id())))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Removes half-made files that nobody writes to any more.
pub(super) fn sweep(entry: &Path) {
    for file in std::fs::read_dir(entry).into_iter().flatten().flatten() {
        let half = file.file_name().to_string_lossy().starts_with(HALF);
        let age = file.metadata().and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
        if half && age.is_some_and(|age| age > HALF_AGE_MAX) {
            // What cannot be removed now is there next time.
            let _ = std::fs::remove_file(file.path());
        }
    }
}
