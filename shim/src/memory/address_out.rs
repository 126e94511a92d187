//! Where the vendor writes a handle or an address for the caller.

use crate::sys;

/// Where the vendor writes an address.
#[derive(Clone, Copy)]
pub(crate) struct AddressOut(pub(crate) *mut u64);

impl AddressOut {
    /// Whether the caller gave none.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// What stands there before a call that may be wrong in other ways, too: of a place that is none the vendor knows what to
    /// say, and this is 0.
    #[inline(never)]
    pub(crate) fn before(self) -> u64 {
        if sys::is_list(self.0, 1) { self.read() } else { 0 }
    }

    /// What stood there before a call that failed stands there again.
    #[inline(never)]
    pub(crate) fn put_back(self, before: u64) {
        if self.before() != before {
            self.write(before);
        }
    }

    #[expect(unsafe_code, reason = "the caller's out-parameter")]
    pub(crate) fn read(self) -> u64 {
        // SAFETY: not null, and a place for an address by the vendor's contract.
        unsafe { self.0.read_unaligned() }
    }

    #[expect(unsafe_code, reason = "the caller's out-parameter")]
    pub(crate) fn write(self, address: u64) {
        // SAFETY: not null, and a place for an address by the vendor's contract.
        unsafe { self.0.write_unaligned(address) }
    }
}
