//! The bytes of a mapped region, with a checked header.

// UNSAFETY: shared memory is reached through a raw pointer; there is no safe way to say that other processes write it.
#![expect(unsafe_code, reason = "mapped memory that other processes write")]

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::layout::{MAGIC, MIN_READER, VERSION, header};

/// Why mapped bytes are not a region that this version can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionFault {
    /// The mapping is shorter than this version needs.
    Short {
        /// Bytes mapped.
        found: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// The mapping does not begin on an 8-byte boundary.
    Unaligned,
    /// Not a region of ours.
    Magic,
    /// The other file of the pair.
    Kind {
        /// Kind found.
        found: u32,
    },
    /// Written for a later reader.
    Version {
        /// Oldest reader that may use it.
        min_reader: u32,
    },
}

impl core::fmt::Display for RegionFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Short { found, needed } => write!(f, "region: {found} bytes mapped, {needed} needed"),
            Self::Unaligned => f.write_str("region: the mapping is not aligned to 8 bytes"),
            Self::Magic => f.write_str("region: the first bytes are not those of an Aliquot region"),
            Self::Kind { found } => {
                write!(f, "region: file of kind {found} where the other one was expected")
            }
            Self::Version { min_reader } => {
                write!(f, "region: written for readers of version {min_reader} and newer; this is {VERSION}")
            }
        }
    }
}

/// Bytes of one mapping; private, so that offsets stay below the checked size.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a> {
    pub(super) base: NonNull<u8>,
    mapping: PhantomData<&'a AtomicU64>,
}

// SAFETY: the mapping is shared memory reached through atomics alone, from whichever thread.
unsafe impl Send for Bytes<'_> {}
// SAFETY: the mapping is shared memory reached through atomics alone, from whichever thread.
unsafe impl Sync for Bytes<'_> {}

impl<'a> Bytes<'a> {
    /// Those from an address on, of which nothing is known yet.
    pub(super) const fn from(base: NonNull<u8>) -> Self {
        Self { base, mapping: PhantomData }
    }

    pub(super) fn word(self, at: usize) -> &'a AtomicU64 {
        // SAFETY: `at` is a multiple of 8 below the size that the view's constructor checked; the base is aligned to 8.
        let place = unsafe { self.base.add(at) }.cast::<AtomicU64>();
        // SAFETY: the mapping lives for 'a by the constructor's contract, and atomics may be shared.
        unsafe { place.as_ref() }
    }

    pub(super) fn signed(self, at: usize) -> &'a AtomicI64 {
        // SAFETY: `at` is a multiple of 8 below the checked size; the base is aligned to 8.
        let place = unsafe { self.base.add(at) }.cast::<AtomicI64>();
        // SAFETY: the mapping lives for 'a by the constructor's contract, and atomics may be shared.
        unsafe { place.as_ref() }
    }

    pub(super) fn half(self, at: usize) -> &'a AtomicU32 {
        // SAFETY: `at` is a multiple of 4 below the checked size; the base is aligned to 8.
        let place = unsafe { self.base.add(at) }.cast::<AtomicU32>();
        // SAFETY: the mapping lives for 'a by the constructor's contract, and atomics may be shared.
        unsafe { place.as_ref() }
    }

    /// Checks size, alignment and header.
    pub(super) fn check(self, length: usize, needed: usize, kind: u32) -> Result<Self, RegionFault> {
        if length < needed {
            return Err(RegionFault::Short { found: length, needed });
        }
        if !self.base.addr().get().is_multiple_of(8) {
            return Err(RegionFault::Unaligned);
        }
        if self.word(header::MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(RegionFault::Magic);
        }
        let found = self.half(header::KIND).load(Ordering::Relaxed);
        if found != kind {
            return Err(RegionFault::Kind { found });
        }
        let min_reader = self.half(header::MIN_READER).load(Ordering::Relaxed);
        if min_reader > VERSION {
            return Err(RegionFault::Version { min_reader });
        }
        Ok(self)
    }

    pub(super) fn write_header(self, kind: u32, size: u32) {
        self.half(header::KIND).store(kind, Ordering::Relaxed);
        self.half(header::VERSION).store(VERSION, Ordering::Relaxed);
        self.half(header::SIZE).store(size, Ordering::Relaxed);
        self.half(header::MIN_READER).store(MIN_READER, Ordering::Relaxed);
        // Pairs with the load in `check`: a reader that sees the magic sees the rest.
        self.word(header::MAGIC).store(MAGIC, Ordering::Release);
    }
}
