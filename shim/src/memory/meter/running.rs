//! Operations of meters under way, and those that wait for room.

use core::sync::atomic::Ordering;

use aliquot_enforce::growth::{AccountingChange, Growth};

use super::{CallEnd, Meter, RunningCall, TRIES_MAX, UNIT, UNIT_MOST, learn};
use crate::accounting::account::{Bytes, Ledger};
use crate::loader::vendor::SUCCESS;

impl RunningCall {
    /// The ledger that is charged.
    pub(crate) fn ledger(&self) -> Ledger {
        self.ledger
    }

    /// The meter of the memory that it takes.
    pub(crate) fn meter(&self) -> Meter {
        self.meter
    }

    /// The vendor's call is over, with this answer.
    pub(crate) fn end(self, answer: i32) -> CallEnd {
        // If no other operation has ended since this one began, none did between the question and its use.
        let mut stamp = self.begun.or_else(|| self.meter.change(|growth| growth.stamp()));
        for _ in 0..TRIES_MAX {
            let Some(before) = stamp else { break };
            let Some(reserved) = self.meter.reserved() else { break };
            let settle = |growth: &mut Growth| {
                let settled = growth.settle(before, self.operation, reserved);
                (settled, growth.stamp())
            };
            match self.meter.change(settle) {
                Some((AccountingChange::Release(bytes), _)) => {
                    learn(reserved);
                    if bytes > 0 {
                        self.ledger.release(Bytes(bytes));
                    }
                    return CallEnd::Fits;
                }
                Some((AccountingChange::Charge(bytes), _)) => return self.charge(Bytes(bytes)),
                Some((AccountingChange::Stale, now)) => stamp = Some(now),
                None => break,
            }
        }
        self.end_unasked(answer);
        CallEnd::Fits
    }

    /// The driver does not tell: what it refused took nothing, and what it granted may have taken the worst.
    #[cold]
    fn end_unasked(&self, answer: i32) {
        let end = if answer == SUCCESS { Growth::keep } else { Growth::cancel };
        let is_known = self.meter.change(|growth| end(growth, self.operation)).is_some();
        if answer != SUCCESS || !is_known {
            self.ledger.release(Bytes(self.operation.worst));
        }
    }

    /// It grew by more than was reserved: the unit is larger than was known.
    #[cold]
    fn charge(&self, bytes: Bytes) -> CallEnd {
        let unit = UNIT.load(Ordering::Relaxed);
        UNIT.store(unit.saturating_mul(2).min(UNIT_MOST), Ordering::Relaxed);
        if self.ledger.reserve_now(bytes).is_ok() {
            return CallEnd::Grew;
        }
        self.ledger.charge(bytes);
        CallEnd::Over
    }
}
