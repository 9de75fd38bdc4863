//! Read-only memory: a file mapped as it is, or a private anonymous copy, behind one type.
//!
//! Promises: reading a [`Map`] never ends the process. A file that was cut short under its map makes the kernel raise SIGBUS on
//! a read; one handler for the whole process answers faults inside a live map with a page of zeros and marks that map as
//! damaged, and whoever read asks for the mark afterwards. A fault anywhere else gets the default action, as if we were not here.
//!
//! A pointer leaves this file only towards the ring (`as_ptr`, visible in `sys`).

use std::{
    fs::File,
    io,
    ops::Range,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
    sync::{
        Once,
        atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence},
    },
};

use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// File maps alive at once. A run holds two; the rest is room for tests that run side by side.
const MAPS_MAX: usize = 1024;
/// Marks a slot of the registry that is being filled: no address is 1.
const TAKEN: usize = 1;

/// One live file map as the handler sees it: plain atomics, so that it may be read inside a signal.
struct Slot {
    /// First address; 0 for a free slot.
    start: AtomicUsize,
    /// First address behind it, whole pages.
    end: AtomicUsize,
    damaged: AtomicBool,
}

static SLOTS: [Slot; MAPS_MAX] =
    [const { Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), damaged: AtomicBool::new(false) } };
        MAPS_MAX];
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// What a read finds out when the file under a map was cut short or its disk failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mapped file changed while it was in use")]
pub struct Changed;

/// Identity of a file's content by what the file system says: any of these differs after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Stamp {
    fn of(file: &File) -> io::Result<Self> {
        let m = file.metadata()?;
        Ok(Self {
            device: m.dev(),
            inode: m.ino(),
            bytes: m.size(),
            mtime: (m.mtime(), m.mtime_nsec()),
            ctime: (m.ctime(), m.ctime_nsec()),
        })
    }
}

/// Read-only bytes at a fixed address: a shared map of a file, or anonymous memory of our own.
#[derive(Debug)]
pub struct Map {
    memory: Mmap,
    /// Bytes that are the user's; an empty map has a page behind it all the same.
    bytes: usize,
    /// Registry slot, the open file and its stamp at that time; none for anonymous memory.
    backing: Option<(usize, File, Stamp)>,
}

impl Map {
    /// Maps the first `bytes` bytes of `file`, shared and read-only. Fails when the file is shorter.
    pub fn file(file: File, bytes: u64) -> io::Result<Self> {
        install_handler()?;
        let stamp = Stamp::of(&file)?;
        let len = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        if stamp.bytes < bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if len == 0 {
            return Self::anonymous(&[]);
        }
        // SAFETY: the map is read-only and is only read as plain bytes; a file cut short is answered by the SIGBUS handler
        // (`register`), and bytes that another process changes are still bytes: every number read from them is range-checked.
        let memory = unsafe { MmapOptions::new().len(len).map(&file)? };
        let slot = register(memory.as_ptr() as usize, len)?;
        Ok(Self { memory, bytes: len, backing: Some((slot, file, stamp)) })
    }

    /// A private copy of `content`.
    pub fn anonymous(content: &[u8]) -> io::Result<Self> {
        let mut memory = MmapMut::map_anon(content.len().max(1))?;
        memory[..content.len()].copy_from_slice(content);
        Ok(Self { memory: memory.make_read_only()?, bytes: content.len(), backing: None })
    }

    /// Reads the first `bytes` bytes of `file` into private memory, so that nothing done to the file later is seen.
    pub fn copy_of(file: &File, bytes: u64) -> io::Result<Self> {
        let len = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let mut memory = MmapMut::map_anon(len.max(1))?;
        std::os::unix::fs::FileExt::read_exact_at(file, &mut memory[..len], 0)?;
        Ok(Self { memory: memory.make_read_only()?, bytes: len, backing: None })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.bytes as u64
    }

    /// True when there is no byte.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// True once a read met a page that its file no longer has. Zeros were read in its place.
    pub fn damaged(&self) -> bool {
        // Keeps the reads that came before from being moved behind the look at the mark, which the same thread's signal sets.
        compiler_fence(Ordering::SeqCst);
        self.backing.as_ref().is_some_and(|(slot, ..)| SLOTS[*slot].damaged.load(Ordering::Acquire))
    }

    /// True when the file below has another size, time or place than when it was mapped. A look at the file system, not for
    /// the loop; anonymous memory never changes.
    pub fn changed(&self) -> bool {
        self.damaged()
            || self.backing.as_ref().is_some_and(|(_, file, stamp)| {
                // Unlinking moves ctime; an entry that was removed under a run is still whole.
                !Stamp::of(file).is_ok_and(|now| Stamp { ctime: stamp.ctime, ..now } == *stamp)
            })
    }

    /// True when anything at all was done to the file below since it was mapped: what [`Map::changed`] sees, and what moves
    /// nothing but its ctime, as a removal does, or a write whose time was put back. Only a look at the bytes tells which.
    pub fn touched(&self) -> bool {
        self.damaged()
            || self.backing.as_ref().is_some_and(|(_, file, stamp)| !Stamp::of(file).is_ok_and(|now| now == *stamp))
    }

    /// Copies bytes out. An error when the range is outside or the file was cut short; `out` is then not to be used.
    pub fn copy_to(&self, offset: u64, out: &mut [u8]) -> Result<(), Changed> {
        let from = self.range(offset, out.len() as u64).ok_or(Changed)?;
        out.copy_from_slice(&self.memory[from]);
        if self.damaged() { Err(Changed) } else { Ok(()) }
    }

    /// Reads `range` in place. An error when it is outside, or when the file was cut short: what `read` gave is then dropped.
    pub fn read<R>(&self, range: Range<u64>, read: impl FnOnce(&[u8]) -> R) -> Result<R, Changed> {
        let bytes = range.end.checked_sub(range.start).ok_or(Changed)?;
        let at = self.range(range.start, bytes).ok_or(Changed)?;
        let result = read(&self.memory[at]);
        if self.damaged() { Err(Changed) } else { Ok(result) }
    }

    /// Everything, in place. Reads zeros where the file was cut short: ask [`Map::damaged`] before a value is believed.
    pub fn as_bytes(&self) -> &[u8] {
        &self.memory[..self.bytes]
    }

    /// Brings the pages of a range into this process, so that no later read waits or faults. Outside the map it does nothing.
    /// Returns false when the kernel could not (the file was cut short, or its disk failed).
    pub fn populate(&self, range: Range<u64>) -> bool {
        let Some(range) = self.clip(range) else { return true };
        match self.memory.advise_range(Advice::PopulateRead, range.start, range.len()) {
            Ok(()) => true,
            // Before Linux 5.14 the advice is not known: touch a byte of each page instead.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                let page = PAGE_BYTES.load(Ordering::Relaxed);
                let sum = self.memory[range].iter().step_by(page).fold(0u8, |sum, byte| sum ^ byte);
                std::hint::black_box(sum);
                !self.damaged()
            }
            Err(_) => false,
        }
    }

    /// Tells the kernel that a range will be read soon; it starts the reads and returns.
    pub fn will_need(&self, range: Range<u64>) {
        if let Some(range) = self.clip(range) {
            // Advice only: a kernel that refuses it reads the pages when they are touched.
            let _ = self.memory.advise_range(Advice::WillNeed, range.start, range.len());
        }
    }

    /// True when the kernel tells this process which pages of the file are in memory: of a file that is another user's, and that
    /// this one may not write, it says that all are (`mincore(2)`). Anonymous memory is nobody else's.
    pub fn tells_residency(&self) -> bool {
        let Some((_, file, _)) = &self.backing else { return true };
        let user = nix::unistd::geteuid();
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        user.is_root()
            || file.metadata().is_ok_and(|m| m.uid() == user.as_raw())
            || nix::unistd::access(path.as_str(), nix::unistd::AccessFlags::W_OK).is_ok()
    }

    /// True when every page of a range is in memory, read or not by this process; what is outside the map does not count. False
    /// when the kernel does not say.
    pub fn is_in_memory(&self, range: Range<u64>) -> bool {
        /// Pages asked about in one call, on the stack: 1 MiB of the common page size.
        const PAGES: usize = 256;
        let Some(range) = self.clip(range) else { return true };
        let page = PAGE_BYTES.load(Ordering::Relaxed);
        let mut present = [0u8; PAGES];
        let mut at = range.start;
        while at < range.end {
            let bytes = (range.end - at).min(PAGES * page);
            let address = self.memory[at..].as_ptr().cast_mut().cast();
            // SAFETY: `at` is a page of this live map and `bytes` stay inside it (clip); the call writes a byte for each of at
            // most PAGES pages.
            let said = unsafe { libc::mincore(address, bytes, present.as_mut_ptr()) };
            if said != 0 || present[..bytes.div_ceil(page)].iter().any(|p| p & 1 == 0) {
                return false;
            }
            at += bytes;
        }
        true
    }

    /// The file below; none for anonymous memory.
    pub fn file_below(&self) -> Option<BorrowedFd<'_>> {
        self.backing.as_ref().map(|(_, file, _)| file.as_fd())
    }

    /// First address. Valid for [`Map::len`] bytes as long as the map lives.
    #[allow(dead_code)]
    pub(in crate::sys) fn as_ptr(&self) -> *const u8 {
        self.memory.as_ptr()
    }

    fn range(&self, offset: u64, bytes: u64) -> Option<Range<usize>> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes as u64).then_some(offset as usize..end as usize)
    }

    /// The part of a range that is inside and not empty, its start moved down to a page as madvise asks.
    fn clip(&self, range: Range<u64>) -> Option<Range<usize>> {
        let end = range.end.min(self.bytes as u64) as usize;
        let start = range.start.min(end as u64) as usize / PAGE_BYTES.load(Ordering::Relaxed)
            * PAGE_BYTES.load(Ordering::Relaxed);
        (start < end).then_some(start..end)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if let Some((slot, ..)) = &self.backing {
            // Freed before the memory is unmapped (fields drop after this): the addresses may be another map's a moment later.
            SLOTS[*slot].start.store(0, Ordering::Release);
        }
    }
}

fn register(start: usize, bytes: usize) -> io::Result<usize> {
    let page = PAGE_BYTES.load(Ordering::Relaxed);
    for (index, slot) in SLOTS.iter().enumerate() {
        if slot.start.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            slot.damaged.store(false, Ordering::Relaxed);
            slot.end.store(start + bytes.next_multiple_of(page), Ordering::Relaxed);
            slot.start.store(start, Ordering::Release);
            return Ok(index);
        }
    }
    Err(io::Error::other(format!("more than {MAPS_MAX} files are mapped")))
}

fn install_handler() -> io::Result<()> {
    static INSTALL: Once = Once::new();
    static FAILED: AtomicBool = AtomicBool::new(false);
    INSTALL.call_once(|| {
        if let Ok(Some(bytes)) = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE) {
            PAGE_BYTES.store(bytes as usize, Ordering::Relaxed);
        }
        let action = SigAction::new(
            SigHandler::SigAction(on_sigbus),
            SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK,
            SigSet::empty(),
        );
        // SAFETY: `on_sigbus` calls only what is allowed inside a signal: atomics, mmap, sigaction; it keeps errno.
        let installed = unsafe { sigaction(Signal::SIGBUS, &action) };
        FAILED.store(installed.is_err(), Ordering::Relaxed);
    });
    match FAILED.load(Ordering::Relaxed) {
        true => Err(io::Error::other("sigaction refused a handler for SIGBUS")),
        false => Ok(()),
    }
}

/// Answers a fault inside a registered map with a page of zeros; anything else gets the default action.
extern "C" fn on_sigbus(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo.
    let info = unsafe { &*info };
    // SAFETY: SIGBUS fills the address member.
    let address = unsafe { info.si_addr() } as usize;
    let page = PAGE_BYTES.load(Ordering::Relaxed);
    for slot in &SLOTS {
        let start = slot.start.load(Ordering::Acquire);
        if start <= TAKEN || address < start || slot.end.load(Ordering::Relaxed) <= address {
            continue;
        }
        slot.damaged.store(true, Ordering::Release);
        if zero_page(address / page * page, page) {
            return;
        }
    }
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: setting the default action installs no code; the faulting instruction runs again and ends the process.
    let _ = unsafe { sigaction(Signal::SIGBUS, &default) };
}

/// Puts an anonymous page of zeros at `address`, a page of a registered map. Keeps errno, which the interrupted code may be
/// about to read.
fn zero_page(address: usize, page: usize) -> bool {
    // SAFETY: the location is this thread's own and valid for its life.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    // SAFETY: the page lies inside a live map of ours (checked by the caller, and the map cannot be dropped while one of its
    // bytes is being read), so MAP_FIXED replaces nothing else.
    let mapped = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            page,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    // SAFETY: as above.
    unsafe { *errno = before };
    mapped != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file_of(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn a_map_reads_what_the_file_holds_and_nothing_outside() {
        let map = Map::file(file_of(b"hello world"), 11).unwrap();
        let mut out = [0; 5];
        map.copy_to(6, &mut out).unwrap();
        assert_eq!(&out, b"world");
        assert_eq!(map.copy_to(7, &mut out), Err(Changed));
        assert_eq!(map.copy_to(u64::MAX, &mut out), Err(Changed));
        assert_eq!(map.read(0..5, <[u8]>::to_vec), Ok(b"hello".to_vec()));
        assert!(map.populate(0..u64::MAX) && !map.damaged() && !map.changed());
        assert!(Map::file(file_of(b"short"), 6).is_err());
    }

    #[test]
    fn a_file_cut_short_under_its_map_is_an_error_and_no_signal() {
        let file = file_of(&vec![7; 3 * 65536]);
        let map = Map::file(file.try_clone().unwrap(), 3 * 65536).unwrap();
        let other = Map::file(file_of(&[1; 100]), 100).unwrap();
        let mut out = [0; 64];
        map.copy_to(2 * 65536, &mut out).unwrap();
        file.set_len(65536).unwrap();
        assert!(map.changed());
        assert_eq!(map.copy_to(0, &mut out), Ok(()), "what is still there is still read");
        assert_eq!(map.copy_to(2 * 65536, &mut out), Err(Changed));
        assert!(map.damaged() && !other.damaged(), "the mark is the map's own");
        assert!(!map.populate(0..3 * 65536) || map.damaged());
    }

    #[test]
    fn a_removed_file_goes_on_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, b"abc").unwrap();
        let map = Map::file(File::open(&path).unwrap(), 3).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(map.touched() && !map.changed());
        assert_eq!(map.as_bytes(), b"abc");
    }

    #[test]
    fn private_copies_do_not_see_later_changes() {
        let file = file_of(b"abc");
        let copy = Map::copy_of(&file, 3).unwrap();
        file.set_len(0).unwrap();
        assert_eq!(copy.as_bytes(), b"abc");
        assert!(!copy.changed());
        let empty = Map::anonymous(b"").unwrap();
        assert!(empty.is_empty() && empty.as_bytes().is_empty() && empty.populate(0..10));
        assert!(Map::file(file, 0).unwrap().is_empty());
    }

    #[test]
    fn slots_are_given_back() {
        for _ in 0..2 * MAPS_MAX {
            drop(Map::file(file_of(b"x"), 1).unwrap());
        }
    }
}
