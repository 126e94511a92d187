//! Region files in memory: mapped to share them, copied to read them.
//!
//! A tenant may truncate its usage file at any moment; the next access to a mapping of it then raises SIGBUS. The handler replaces
//! the pages of a mapping made here by zeros and marks it [`Mapping::torn`], so that no tenant can end a process of the host. Any
//! other SIGBUS goes to the earlier handler.

// UNSAFETY: mapping a file and catching the signal of a vanished page have no safe interface; the views of
// `aliquot_abi` ask for a promise about mapped memory, which is given here.
#![expect(unsafe_code, reason = "shared mappings and the signal that a tenant can raise through them")]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{self, Read};
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use aliquot_abi::layout;
use aliquot_abi::limits::Limits;
use aliquot_abi::view::{LimitsView, LimitsWriter, RegionFault, UsageView};
use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::opening::{fault, open_to_look};

/// Most mappings of one process: regions that one governor watches, limits and usage.
const MAPPINGS_MAX: usize = 4096;

/// A mapping that is registered with the signal handler.
struct RegisteredMapping {
    /// 0: free.
    base: AtomicUsize,
    length: AtomicUsize,
    torn: AtomicBool,
}

static ENTRIES: [RegisteredMapping; MAPPINGS_MAX] = [const {
    RegisteredMapping { base: AtomicUsize::new(0), length: AtomicUsize::new(0), torn: AtomicBool::new(false) }
}; MAPPINGS_MAX];

/// The earlier action of SIGBUS, or the reason why the handler is not installed.
static EARLIER: OnceLock<Result<SigAction, Errno>> = OnceLock::new();

/// A shared mapping of a region file; dropping the value unmaps it.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    entry: usize,
}

// SAFETY: the mapped memory is accessed through atomics alone, from any thread.
unsafe impl Send for Mapping {}
// SAFETY: the mapped memory is accessed through atomics alone, also by several threads at once.
unsafe impl Sync for Mapping {}

/// Bytes of a region file in private memory, aligned like a mapping.
#[derive(Debug)]
pub(super) struct Image(Vec<AtomicU64>);

// === impl Mapping ===

impl Mapping {
    /// Maps the first `length` bytes of a file that is at least as long now.
    pub(super) fn of(file: &File, length: usize) -> io::Result<Self> {
        catch_vanished_pages()?;
        let Some(size) = NonZeroUsize::new(length) else { return Err(io::ErrorKind::InvalidInput.into()) };
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh shared mapping at an address that the kernel picks.
        let base = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, file, 0) }?;
        let base = base.cast::<u8>();
        match enter(base.as_ptr().expose_provenance(), length) {
            Some(entry) => Ok(Self { base, length, entry }),
            None => {
                // SAFETY: mapped above, and not shared with any other code yet.
                unsafe { munmap(base.cast(), length) }?;
                Err(io::Error::other(format!("more than {MAPPINGS_MAX} regions are mapped")))
            }
        }
    }

    /// Whether pages vanished under the mapping: later reads are invalid.
    pub(super) fn torn(&self) -> bool {
        ENTRIES.get(self.entry).is_some_and(|entry| entry.torn.load(Ordering::Acquire))
    }

    /// As a usage file.
    pub(super) fn usage(&self) -> Result<UsageView<'_>, RegionFault> {
        // SAFETY: a writable mapping of `length` bytes that lives as long as `self`.
        unsafe { UsageView::new(self.base, self.length) }
    }

    /// Rewrites the header of a usage file; the rest stays.
    pub(super) fn mend_usage(&self) -> Result<(), RegionFault> {
        // SAFETY: a writable mapping of `length` bytes that lives as long as `self`; the header holds constants, which every writer
        // writes equally.
        unsafe { UsageView::create(self.base, self.length) }.map(|_| ())
    }

    /// As a limits file.
    pub(super) fn limits(&self) -> Result<LimitsView<'_>, RegionFault> {
        // SAFETY: a mapping of `length` bytes that lives as long as `self`; every writer uses atomic stores.
        unsafe { LimitsView::new(self.base, self.length) }
    }

    /// As a limits file, to write it.
    pub(super) fn limits_writer(&mut self) -> Result<LimitsWriter<'_>, RegionFault> {
        // SAFETY: a writable mapping of `length` bytes that outlives the writer; `&mut` and the lock of the caller make
        // it the only one of records.
        unsafe { LimitsWriter::new(self.base, self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(entry) = ENTRIES.get(self.entry) {
            entry.length.store(0, Ordering::Release);
            entry.base.store(0, Ordering::Release);
        }
        // SAFETY: mapped in `of`, and no view outlives `self`.
        let unmapped = unsafe { munmap(self.base.cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "a mapping can be unmapped");
    }
}

/// Registers a mapping with the signal handler.
fn enter(base: usize, length: usize) -> Option<usize> {
    let free = |entry: &RegisteredMapping| {
        entry.base.compare_exchange(0, base, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let place = ENTRIES.iter().position(free)?;
    let entry = ENTRIES.get(place)?;
    entry.torn.store(false, Ordering::Release);
    entry.length.store(length, Ordering::Release);
    Some(place)
}

/// Installs the handler, once a process.
fn catch_vanished_pages() -> io::Result<()> {
    let flags = SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK | SaFlags::SA_RESTART;
    let action = SigAction::new(SigHandler::SigAction(vanished), flags, SigSet::empty());
    // SAFETY: the handler makes system calls and touches atomics alone.
    let earlier = EARLIER.get_or_init(|| unsafe { sigaction(Signal::SIGBUS, &action) });
    earlier.as_ref().map(|_| ()).map_err(|errno| (*errno).into())
}

/// Puts zeros under a registered mapping with vanished pages; any other signal is left to the earlier action.
extern "C" fn vanished(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    let errno = Errno::last_raw();
    // SAFETY: the kernel passes a valid record, which for SIGBUS has an address.
    let address = unsafe { info.as_ref().map_or(0, |info| info.si_addr().addr()) };
    for entry in &ENTRIES {
        let (base, length) = (entry.base.load(Ordering::Acquire), entry.length.load(Ordering::Acquire));
        if base == 0 || address < base || address - base >= length {
            continue;
        }
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let place = std::ptr::with_exposed_provenance_mut(base);
        // SAFETY: exactly the pages of one registered mapping are replaced, and they stay mapped for views of it.
        let put = unsafe { libc::mmap(place, length, protection, flags, -1, 0) };
        if put != libc::MAP_FAILED {
            entry.torn.store(true, Ordering::Release);
            Errno::set_raw(errno);
            return;
        }
    }
    if let Some(Ok(earlier)) = EARLIER.get() {
        // SAFETY: the earlier action; the access is repeated and ends as without this handler.
        let restored = unsafe { sigaction(Signal::SIGBUS, earlier) };
        debug_assert!(restored.is_ok(), "an earlier action can be restored");
    }
    Errno::set_raw(errno);
}

// === impl Image ===

impl Image {
    /// A new limits file.
    pub(super) fn of_limits(limits: &Limits) -> io::Result<Self> {
        let image = Self::zeroed(layout::limits::BYTES);
        // SAFETY: as many bytes as requested, in memory that atomics may change; no other code has it.
        let mut writer = unsafe { LimitsWriter::new(image.base(), image.length()) }.map_err(fault)?;
        writer.write(limits);
        Ok(image)
    }

    /// A new usage file.
    pub(super) fn of_usage() -> io::Result<Self> {
        let image = Self::zeroed(layout::usage::BYTES);
        // SAFETY: `length` bytes that atomics may change and no other code has.
        unsafe { UsageView::create(image.base(), image.length()) }.map_err(fault)?;
        Ok(image)
    }

    /// The first `length` bytes of a file, or as many as it has.
    pub(super) fn read(path: &Path, length: usize) -> io::Result<Self> {
        Self::of(&open_to_look(path)?, length)
    }

    /// The same of an open file, from where it is read next.
    pub(super) fn of(mut file: &File, length: usize) -> io::Result<Self> {
        let there = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        let mut image = Self::zeroed(length.min(there));
        // A file that is truncated meanwhile is an error, as a short file is.
        file.read_exact(image.bytes())?;
        Ok(image)
    }

    /// So many bytes, down to whole words.
    fn zeroed(length: usize) -> Self {
        let mut words = ManuallyDrop::new(vec![0_u64; length / 8]);
        let (base, length, capacity) = (words.as_mut_ptr(), words.len(), words.capacity());
        // SAFETY: an atomic has size and alignment of its integer on every 64-bit machine, zeros are a value of it, and the new
        // vector owns the allocation.
        Self(unsafe { Vec::from_raw_parts(base.cast::<AtomicU64>(), length, capacity) })
    }

    /// The bytes.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        let length = self.length();
        // SAFETY: plain memory of `length` bytes, borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<u8>(), length) }
    }

    /// As a limits file.
    pub(super) fn limits(&self) -> Result<LimitsView<'_>, RegionFault> {
        // SAFETY: `length` bytes that live as long as `self`; atomics allow any writer.
        unsafe { LimitsView::new(self.base(), self.length()) }
    }

    /// As a usage file.
    pub(super) fn usage(&self) -> Result<UsageView<'_>, RegionFault> {
        // SAFETY: `length` bytes that live as long as `self`; atomics allow any writer.
        unsafe { UsageView::new(self.base(), self.length()) }
    }

    fn base(&self) -> NonNull<u8> {
        NonNull::from(self.0.as_slice()).cast()
    }

    fn length(&self) -> usize {
        self.0.len() * 8
    }
}
