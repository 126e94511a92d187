//! Fault events that the library delivers of a chip.

use std::sync::PoisonError;
use std::time::Duration;

use aliquot_core::health::Cause;
use aliquot_core::id::CardUuid;
use aliquot_core::partition::Part;
use aliquot_core::ports::{BackendError, CardEvent, CardEvents};

use crate::ffi::event::{FaultEvent, Watcher};
use crate::{AscendNode, health};

/// The fault events of one chip.
#[derive(Debug)]
pub struct Watch(Watcher);

// === impl AscendNode ===

impl AscendNode {
    /// Watches the fault events of a chip from now on.
    ///
    /// # Errors
    /// As [`AscendNode::cards`]; [`BackendError::Unsupported`] if the library has no events.
    pub fn watch(&self, card: &CardUuid) -> Result<Watch, BackendError> {
        let chip = self.chip(card)?;
        let mut subscribed = self.subscribed.lock().unwrap_or_else(PoisonError::into_inner);
        let watcher = Watcher::of(chip.facts.logic);
        if !subscribed.contains(&chip.facts.at) {
            let what = format!("events of card {card}");
            self.library.subscribe(chip.facts.at).map_err(|fault| match fault {
                fault if fault.is_unsupported() => BackendError::Unsupported { what },
                fault => health::error(what, fault),
            })?;
            subscribed.insert(chip.facts.at);
        }
        Ok(Watch(watcher))
    }
}

// === impl Watch ===

impl Watch {
    /// The next fault event; `None`: none for so long.
    #[must_use]
    pub fn next_fault(&self, longest: Duration) -> Option<FaultEvent> {
        self.0.next(longest)
    }
}

impl CardEvents for Watch {
    fn next(&mut self, longest: Duration) -> Result<Option<CardEvent>, BackendError> {
        // Lesser faults end by themselves and are in the health of the next look.
        let critical = self.next_fault(longest).filter(|event| event.severity >= 3 && event.assertion != 0);
        let cause = |event: FaultEvent| Cause::Code(u64::from(event.code));
        Ok(critical.map(|event| CardEvent { cause: cause(event), part: Part::Card }))
    }
}
