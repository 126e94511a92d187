//! Where the content of device memory lies: a sparse file a seat, addresses that map nothing, and what else of the
//! operating system this library needs.

// UNSAFETY: sparse files, address reservations and copies through the kernel have no safe interface in std.
#![expect(unsafe_code, reason = "memfd, mmap, pread and pwrite are libc calls")]

use crate::code::{Answer, INVALID_VALUE, OUT_OF_MEMORY, UNKNOWN};
use crate::word::Width;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Addresses set aside for a card: many times its memory, so that a freed range of one size need not fit another.
const SPAN: u64 = 4 << 40;
/// Granularity of everything mapped, in bytes.
pub(crate) const BIG_PAGE: u64 = 2 << 20;
const PAGE: u64 = 4096;
/// Bytes moved at a time between two device ranges, or set.
const CHUNK: u64 = 1 << 20;

/// Content of device memory.
#[derive(Debug)]
pub(crate) struct Content {
    file: OwnedFd,
}

/// A range of content.
#[derive(Clone, Debug)]
pub(crate) struct Backing {
    pub(crate) content: Arc<Content>,
    /// Where it begins, in bytes.
    pub(crate) offset: u64,
    /// Whether anything was written: what was not need not be cleaned.
    pub(crate) touched: Arc<AtomicBool>,
}

/// The addresses and the content of one card in this process.
#[derive(Debug)]
pub(crate) struct Heap {
    content: Arc<Content>,
    area: Area,
}

/// Addresses of a card, and where their content lies.
#[derive(Debug)]
struct Area {
    base: u64,
    span: u64,
    /// Pages of the card, to which large ranges are aligned.
    page: u64,
    ranges: Mutex<AddressRanges>,
}

#[derive(Debug, Default)]
struct AddressRanges {
    next: u64,
    free: BTreeMap<u64, Vec<u64>>,
}

/// The size of range in which `bytes` are put: few sizes, so that a freed one fits again, and whole pages, so that managed
/// memory can be mapped without its neighbours.
fn class(bytes: u64) -> u64 {
    let step = (bytes.next_power_of_two() / 16).max(PAGE);
    bytes.max(1).next_multiple_of(step)
}

impl Area {
    const fn new(base: u64, span: u64, page: u64) -> Self {
        Self { base, span, page, ranges: Mutex::new(AddressRanges { next: 0, free: BTreeMap::new() }) }
    }

    /// A range: its distance from the first address.
    fn take(&self, class: u64) -> Answer<u64> {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(offset) = ranges.free.get_mut(&class).and_then(Vec::pop) {
            return Ok(offset);
        }
        let pages = (1 << class.trailing_zeros().min(63)).clamp(PAGE, self.page);
        let align = if class >= BIG_PAGE { pages.max(BIG_PAGE) } else { pages };
        let offset = ranges.next.next_multiple_of(align);
        if offset.saturating_add(class) > self.span {
            return Err(OUT_OF_MEMORY);
        }
        ranges.next = offset + class;
        Ok(offset)
    }

    fn give(&self, class: u64, offset: u64) {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.free.entry(class).or_default().push(offset);
    }
}

impl Heap {
    /// A card's heap, with content in `file`; `page` bytes are the card's pages.
    pub(crate) fn new(file: &Path, page: u64) -> Answer<Self> {
        let content = Arc::new(Content::create(file, SPAN)?);
        let page = page.max(BIG_PAGE);
        Ok(Self { content, area: Area::new(reserve_aligned(SPAN, page)?, SPAN, page) })
    }

    /// A range of addresses with content.
    pub(crate) fn take(&self, bytes: u64) -> Answer<(u64, Backing)> {
        let offset = self.area.take(class(bytes))?;
        let (content, touched) = (Arc::clone(&self.content), Arc::new(AtomicBool::new(false)));
        Ok((self.area.base + offset, Backing { content, offset, touched }))
    }

    /// Takes a range back.
    pub(crate) fn give(&self, bytes: u64, backing: &Backing) {
        if backing.touched.load(Ordering::Relaxed) {
            backing.content.forget(backing.offset, class(bytes));
        }
        self.area.give(class(bytes), backing.offset);
    }
}

fn offset(at: u64) -> libc::off_t {
    libc::off_t::try_from(at).unwrap_or(libc::off_t::MAX)
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn pointer(address: u64) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(length(address))
}

impl Content {
    /// The sparse file of a seat.
    fn create(path: &Path, bytes: u64) -> Answer<Self> {
        // One of an earlier process with the same number and seat may still be there, and open elsewhere.
        drop(std::fs::remove_file(path));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file = file.and_then(|file| file.set_len(bytes).map(|()| file));
        file.map(|file| Self { file: file.into() }).map_err(|_| UNKNOWN)
    }

    /// What another process keeps in its file.
    pub(crate) fn of_process(path: &Path) -> Answer<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        file.map(|file| Self { file: file.into() }).map_err(|_| INVALID_VALUE)
    }

    /// A private buffer for a copy in flight.
    fn scratch(bytes: u64) -> Answer<Self> {
        let file = scratch_file()?;
        // SAFETY: an open descriptor.
        if unsafe { libc::ftruncate(file.as_raw_fd(), offset(bytes)) } != 0 {
            return Err(UNKNOWN);
        }
        Ok(Self { file })
    }

    fn forget(&self, at: u64, bytes: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: an open descriptor; without success the old content stays, which device memory may.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset(at), offset(bytes)) };
    }

    fn write_from(&self, at: u64, source: u64, bytes: u64) -> Answer {
        let mut moved = 0;
        while moved < bytes {
            let (from, size) = (pointer(source + moved), length(bytes - moved));
            // SAFETY: the kernel reads the caller's memory and answers EFAULT where there is none.
            let got = unsafe { libc::pwrite(self.file.as_raw_fd(), from, size, offset(at + moved)) };
            moved += u64::try_from(got).ok().filter(|got| *got > 0).ok_or(INVALID_VALUE)?;
        }
        Ok(())
    }

    fn read_to(&self, at: u64, target: u64, bytes: u64) -> Answer {
        let mut moved = 0;
        while moved < bytes {
            let (to, size) = (pointer(target + moved), length(bytes - moved));
            // SAFETY: the kernel writes where the caller said, as the call's contract is, and answers EFAULT elsewhere.
            let got = unsafe { libc::pread(self.file.as_raw_fd(), to, size, offset(at + moved)) };
            moved += u64::try_from(got).ok().filter(|got| *got > 0).ok_or(INVALID_VALUE)?;
        }
        Ok(())
    }
}

impl Backing {
    /// A part of it, from `at` on, which was not written yet.
    pub(crate) fn part(&self, at: u64) -> Self {
        let (content, touched) = (Arc::clone(&self.content), Arc::new(AtomicBool::new(false)));
        Self { content, offset: self.offset + at, touched }
    }

    /// What was written to its first `bytes` is lost.
    pub(crate) fn forget(&self, bytes: u64) {
        if self.touched.load(Ordering::Relaxed) {
            self.content.forget(self.offset, bytes);
        }
    }

    fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }

    /// Copies in from host memory.
    pub(crate) fn write(&self, at: u64, host: u64, bytes: u64) -> Answer {
        self.touch();
        self.content.write_from(self.offset + at, host, bytes)
    }

    /// Copies out to host memory.
    pub(crate) fn read(&self, at: u64, host: u64, bytes: u64) -> Answer {
        self.content.read_to(self.offset + at, host, bytes)
    }

    /// Copies in from another range, or from this one.
    pub(crate) fn copy_from(&self, at: u64, source: &Self, source_at: u64, bytes: u64) -> Answer {
        let mut buffer = vec![0_u8; length(bytes.min(CHUNK))];
        let place = u64::try_from(buffer.as_mut_ptr().expose_provenance()).unwrap_or(0);
        let mut moved = 0;
        while moved < bytes {
            let size = (bytes - moved).min(CHUNK);
            source.read(source_at + moved, place, size)?;
            self.write(at + moved, place, size)?;
            moved += size;
        }
        Ok(())
    }

    /// Fills with a repeated pattern; the pattern's length divides `bytes`.
    pub(crate) fn fill(&self, at: u64, pattern: &[u8], bytes: u64) -> Answer {
        if !self.touched.load(Ordering::Relaxed) && pattern.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let width = u64::try_from(pattern.len()).unwrap_or(1).max(1);
        let unit = CHUNK - CHUNK % width;
        let buffer = pattern.iter().copied().cycle().take(length(bytes.min(unit))).collect::<Vec<_>>();
        let place = u64::try_from(buffer.as_ptr().expose_provenance()).unwrap_or(0);
        let mut done = 0;
        while done < bytes {
            let size = (bytes - done).min(unit);
            self.write(at + done, place, size)?;
            done += size;
        }
        Ok(())
    }

    /// A word.
    pub(crate) fn load(&self, at: u64, width: Width) -> Answer<u64> {
        let mut word = [0_u8; 8];
        let place = u64::try_from(word.as_mut_ptr().expose_provenance()).unwrap_or(0);
        self.read(at, place, width.bytes())?;
        Ok(u64::from_le_bytes(word))
    }

    /// Writes a word.
    pub(crate) fn store(&self, at: u64, width: Width, value: u64) -> Answer {
        let word = value.to_le_bytes();
        let place = u64::try_from(word.as_ptr().expose_provenance()).unwrap_or(0);
        self.write(at, place, width.bytes())
    }

    /// Maps the range for the host at `address`, over its reservation.
    pub(crate) fn map_for_host(&self, address: u64, bytes: u64) -> Answer {
        self.touch();
        let (start, size) = (pointer(address), length(bytes.next_multiple_of(PAGE)));
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the addresses are this heap's own reservation for this range.
        let got = unsafe {
            libc::mmap(start, size, access, flags, self.content.file.as_raw_fd(), offset(self.offset))
        };
        if got == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(()) }
    }
}

/// A file without a name.
pub(crate) fn scratch_file() -> Answer<OwnedFd> {
    // SAFETY: a constant name and known flags. By its number: old C libraries have no function for it.
    let file = unsafe { libc::syscall(libc::SYS_memfd_create, c"aliquot-sim".as_ptr(), libc::MFD_CLOEXEC) };
    let file = i32::try_from(file).ok().filter(|&file| file >= 0).ok_or(UNKNOWN)?;
    // SAFETY: fresh and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// Closes a descriptor of the caller, which is the library's from now on.
pub(crate) fn close(descriptor: i32) {
    // SAFETY: the caller gave it away; one that was not open is an error of the call.
    unsafe { libc::close(descriptor) };
}

/// Copies between two host ranges, a bad one being an error.
pub(crate) fn copy_host(target: u64, source: u64, bytes: u64) -> Answer {
    let scratch = Content::scratch(bytes)?;
    scratch.write_from(0, source, bytes)?;
    scratch.read_to(0, target, bytes)
}

/// The word at an aligned host address, whole, after it was written where there is something to write; a bad one is an error.
pub(crate) fn host_word(address: u64, width: Width, write: Option<u64>) -> Answer<u64> {
    static SEEN: OnceLock<Answer<Content>> = OnceLock::new();
    let seen =
        SEEN.get_or_init(|| Content::scratch(width.bytes().max(8))).as_ref().map_err(|error| *error)?;
    seen.write_from(0, address, width.bytes())?;
    let at = pointer(address);
    match width {
        Width::Four => {
            // SAFETY: aligned, as the caller checked, and just read by the kernel: it is mapped, and what is pinned stays so.
            let word = unsafe { AtomicU32::from_ptr(at.cast()) };
            if let Some(value) = write {
                word.store(u32::try_from(width.cut(value)).unwrap_or(0), Ordering::SeqCst);
            }
            Ok(word.load(Ordering::SeqCst).into())
        }
        Width::Eight => {
            // SAFETY: aligned, as the caller checked, and just read by the kernel: it is mapped, and what is pinned stays so.
            let word = unsafe { AtomicU64::from_ptr(at.cast()) };
            if let Some(value) = write {
                word.store(value, Ordering::SeqCst);
            }
            Ok(word.load(Ordering::SeqCst))
        }
    }
}

fn map(address: u64, bytes: u64, access: libc::c_int, fixed: libc::c_int) -> Answer<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: a fresh mapping, or one over addresses that the caller reserved.
    let got = unsafe { libc::mmap(pointer(address), length(bytes), access, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    u64::try_from(got.expose_provenance()).map_err(|_| OUT_OF_MEMORY)
}

/// Addresses that nothing is behind, aligned to a big page.
pub(crate) fn reserve(bytes: u64) -> Answer<u64> {
    reserve_aligned(bytes, BIG_PAGE)
}

fn reserve_aligned(bytes: u64, page: u64) -> Answer<u64> {
    let asked = bytes.checked_add(page).ok_or(OUT_OF_MEMORY)?;
    let got = map(0, asked, libc::PROT_NONE, 0)?;
    let base = got.next_multiple_of(page);
    unmap(got, base - got);
    unmap(base + bytes, got + asked - base - bytes);
    Ok(base)
}

/// Takes the host's mapping away again; the addresses stay reserved.
pub(crate) fn unmap_from_host(address: u64, bytes: u64) -> Answer {
    map(address, bytes.next_multiple_of(PAGE), libc::PROT_NONE, libc::MAP_FIXED).map(|_| ())
}

/// Gives addresses back.
pub(crate) fn unmap(address: u64, bytes: u64) {
    if bytes > 0 {
        // SAFETY: this module mapped the addresses, and no reference to them is left.
        unsafe { libc::munmap(pointer(address), length(bytes)) };
    }
}

/// Host memory for cuMemAllocHost.
pub(crate) fn host_memory(bytes: u64) -> Answer<u64> {
    map(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0)
}

/// Has `run` called in every child of a fork.
pub(crate) fn in_forked_child(run: extern "C" fn()) {
    // SAFETY: a function that stays loaded; without success a forked child is taken for its parent.
    unsafe { libc::pthread_atfork(None, None, Some(run)) };
}
