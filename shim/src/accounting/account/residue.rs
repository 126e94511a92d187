//! What only the driver knows of this process's memory: presumed, and lowered to what the driver shows by the governor's next look
//! ([`aliquot_enforce::residue`]).
//!
//! ```text
//!   reserve ─▶ vendor call ─▶ presume ─▶ a look lowers it ─▶ withdraw, when it is gone
//! ```
//!
//! Residue and presumptions are as right as the last look. Before they refuse anything, the governor is woken and a later look is
//! awaited, for a bounded time and under no lock: what was just freed refuses nothing. There is no wait if
//!
//! - the bytes do not fit beside what is reserved, or, if something was presumed or withdrawn since the last look, known;
//! - no governor looked since the last wait, which was in vain.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aliquot_abi::view::SlotView;
use aliquot_enforce::memory::bytes_in;
use aliquot_enforce::residue::Presumption;

use super::{Bytes, Ledger, OutOfMemory, Private, private};
use crate::accounting::life;
use crate::grants::GRANTS_MAX;
use crate::sys::{self, KeepErrno};

/// Longest wait for a later look: two of them.
const WAIT_NANOS_MAX: u64 = 100_000_000;
const WAIT_STEP_NANOS: u64 = 500_000;

/// By grant, the time of the last look before a wait that no look ended.
static IN_VAIN: [AtomicU64; GRANTS_MAX] = [const { AtomicU64::new(0) }; GRANTS_MAX];

impl Ledger {
    /// Marks reserved bytes as presumed.
    pub(crate) fn presume(self, bytes: Bytes) {
        if let (Some(private), Some(slot)) = (private(self.grant.number), self.slot()) {
            presumption(private, slot).add(bytes.0);
            self.want_look();
        }
    }

    /// What was presumed is gone: gives back what is reserved of it.
    pub(crate) fn withdraw(self, bytes: Bytes) {
        if let (Some(private), Some(slot)) = (private(self.grant.number), self.slot()) {
            see_lowered(private, slot);
            self.release(Bytes(presumption(private, slot).take(bytes.0)));
            self.want_look();
        }
    }

    /// Has the governor look soon.
    fn want_look(self) {
        let wanted = self.usage.view.look_wanted();
        wanted.fetch_add(1, Ordering::SeqCst);
        sys::wake_all(wanted);
    }

    /// Reserves after a later look, if the last one is in the way.
    #[cold]
    pub(super) fn reserve_after_look(self, bytes: Bytes) -> Result<(), OutOfMemory> {
        if self.look_again(bytes) { self.reserve_now(bytes) } else { Err(OutOfMemory) }
    }

    /// Waits for a later look at the driver, if what the last one found or what is presumed may be all that is in the way of these
    /// bytes. Whether there was one.
    #[cold]
    pub(crate) fn look_again(self, bytes: Bytes) -> bool {
        let _errno = KeepErrno::new();
        let (looked_at, begun) = (self.grant.looked_at(), sys::now());
        let Some(in_vain) = IN_VAIN.get(self.grant.number) else { return false };
        let is_governed = looked_at != 0 && in_vain.load(Ordering::Relaxed) != looked_at;
        if !is_governed || !self.may_fit_after_a_look(bytes) {
            return false;
        }
        // The caller's call has moved nothing yet, or what it moved is reserved: the look is not to take it for under way.
        let _resting = self.resting();
        self.want_look();
        while self.grant.looked_at() < begun {
            if sys::now().saturating_sub(begun) > WAIT_NANOS_MAX {
                in_vain.store(self.grant.looked_at(), Ordering::Relaxed);
                return false;
            }
            sys::wait_while(&AtomicU32::new(0), 0, WAIT_STEP_NANOS);
        }
        true
    }

    /// The caller's call, which has moved nothing yet, counts as over while this is there.
    pub(crate) fn resting(self) -> RestingCall {
        RestingCall::begin(self.slot())
    }

    /// Whether only the last look, or presumptions that it does not have, are in the way of these bytes.
    fn may_fit_after_a_look(self, bytes: Bytes) -> bool {
        let total = bytes_in(self.usage.view.total().load(Ordering::SeqCst));
        let is_news = self.usage.view.look_wanted().load(Ordering::SeqCst) != self.grant.looked_for();
        let presumed = if is_news { life::presumed(*self.usage) } else { 0 };
        total.saturating_sub(presumed).saturating_add(bytes.0) <= self.limit().0
    }
}

/// This process's words.
fn presumption<'a>(private: &'a Private, slot: SlotView<'a>) -> Presumption<'a> {
    Presumption { shown: slot.presumed(), own: &private.presumed }
}

/// Takes off what the governor took off since.
#[inline]
pub(super) fn see_lowered(private: &Private, slot: SlotView<'_>) {
    if private.presumed.load(Ordering::Relaxed) != 0 {
        private.less(&private.own, Bytes(presumption(private, slot).lowered()));
    }
}

/// A call under way of this thread that counts as over for a moment.
#[must_use]
pub(crate) struct RestingCall(Option<SlotView<'static>>);

impl RestingCall {
    fn begin(slot: Option<SlotView<'static>>) -> Self {
        let is_in_call =
            |slot: &SlotView<'_>| slot.begun().load(Ordering::SeqCst) != slot.ended().load(Ordering::SeqCst);
        Self(slot.filter(is_in_call).inspect(|slot| {
            slot.ended().fetch_add(1, Ordering::SeqCst);
        }))
    }
}

impl Drop for RestingCall {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.begun().fetch_add(1, Ordering::SeqCst);
        }
    }
}
