//! The answer to a call that is refused: it is counted and recorded for the host, which shows it.

use core::sync::atomic::Ordering;

use aliquot_abi::refusal::{Refusal, RefusedCall};
use aliquot_enforce::memory::bytes_in;

use super::Ledger;
use crate::loader::vendor::OUT_OF_MEMORY;
use crate::sys::{self, KeepErrno};

impl Ledger {
    /// The vendor's number for too little memory. Called once for each refused call: the tries to serve it are not counted.
    #[cold]
    pub(crate) fn refuse(self, call: RefusedCall) -> i32 {
        let _errno = KeepErrno::new();
        let view = self.usage.view;
        view.denied().fetch_add(1, Ordering::Relaxed);
        view.refusals().record(&Refusal {
            call,
            at_nanos: sys::now(),
            reserved_bytes: bytes_in(view.total().load(Ordering::Relaxed)),
            residue_bytes: self.grant.residue(),
            limit_bytes: self.limit().0,
            pid: sys::pid(),
        });
        OUT_OF_MEMORY
    }
}
