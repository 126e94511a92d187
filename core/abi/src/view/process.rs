//! One slot of the usage file.

use core::sync::atomic::{AtomicU32, AtomicU64};

use super::bytes::Bytes;
use crate::layout::slot;

/// One process slot.
#[derive(Clone, Copy)]
pub struct SlotView<'a> {
    bytes: Bytes<'a>,
    at: usize,
}

impl<'a> SlotView<'a> {
    /// At an offset of a slot.
    pub(super) const fn at(bytes: Bytes<'a>, at: usize) -> Self {
        Self { bytes, at }
    }

    /// [`slot::OWNER`]
    #[must_use]
    pub fn owner(self) -> &'a AtomicU64 {
        self.bytes.word(self.at + slot::OWNER)
    }

    /// [`slot::START_TIME`]
    #[must_use]
    pub fn start_time(self) -> &'a AtomicU64 {
        self.bytes.word(self.at + slot::START_TIME)
    }

    /// [`slot::PID_NAMESPACE`]
    #[must_use]
    pub fn pid_namespace(self) -> &'a AtomicU64 {
        self.bytes.word(self.at + slot::PID_NAMESPACE)
    }

    /// [`slot::INSIDE`]
    #[must_use]
    pub fn inside(self) -> &'a AtomicU32 {
        self.bytes.half(self.at + slot::INSIDE)
    }

    /// [`slot::USED`]
    #[must_use]
    pub fn used(self) -> &'a AtomicU64 {
        self.bytes.word(self.at + slot::USED)
    }

    /// [`slot::DEVICE_NANOS`]
    #[must_use]
    pub fn device_nanos(self) -> &'a AtomicU64 {
        self.bytes.word(self.at + slot::DEVICE_NANOS)
    }

    /// [`slot::UNBILLED_SINCE`]
    #[must_use]
    pub fn unbilled_since(self) -> &'a AtomicU64 {
        self.bytes.word(self.at + slot::UNBILLED_SINCE)
    }

    /// [`slot::OWED`]
    #[must_use]
    pub fn owed(self) -> &'a AtomicU64 {
        self.bytes.word(self.at + slot::OWED)
    }

    /// [`slot::PRESUMED`]
    #[must_use]
    pub fn presumed(self) -> &'a AtomicU64 {
        self.bytes.word(self.at + slot::PRESUMED)
    }

    /// [`slot::SIGN`]
    #[must_use]
    pub fn sign(self) -> &'a AtomicU64 {
        self.bytes.word(self.at + slot::SIGN)
    }

    /// [`slot::BEGUN`]
    #[must_use]
    pub fn begun(self) -> &'a AtomicU32 {
        self.bytes.half(self.at + slot::BEGUN)
    }

    /// [`slot::ENDED`]
    #[must_use]
    pub fn ended(self) -> &'a AtomicU32 {
        self.bytes.half(self.at + slot::ENDED)
    }

    /// [`slot::LOOSE`]
    #[must_use]
    pub fn loose(self) -> &'a AtomicU32 {
        self.bytes.half(self.at + slot::LOOSE)
    }

    /// [`slot::KIND`]
    #[must_use]
    pub fn kind(self) -> &'a AtomicU32 {
        self.bytes.half(self.at + slot::KIND)
    }

    /// [`slot::TAG`]
    #[must_use]
    pub fn tag(self) -> &'a AtomicU64 {
        self.bytes.word(self.at + slot::TAG)
    }
}
