//! Events that a card reports during a wait: Xids, and the loss of the card. A waiter sleeps in the library
//! until an event comes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use aliquot_core::health::Cause;
use aliquot_core::id::CardUuid;
use aliquot_core::partition::Part;
use aliquot_core::ports::{BackendError, CardEvent, CardEvents};

use crate::NvidiaNode;
use crate::ffi::{Event, EventSet, Fault};
use crate::health;
use crate::partition::OneCard;
use crate::probe::Discovery;

/// Longest wait in the library, which cannot be initialised anew meanwhile.
const WAIT: Duration = Duration::from_secs(5);

/// One card that is watched, from when that began.
#[derive(Debug)]
pub struct Watch {
    node: Arc<NvidiaNode>,
    card: CardUuid,
    set: EventSet,
    /// The library's initialisation to which the set belongs.
    session: u64,
}

// === impl NvidiaNode ===

impl NvidiaNode {
    /// Keeps which partitions the present instances are, to identify them in later events.
    pub(super) fn remember(&self, found: &Discovery) {
        let cards = found.cards.iter().zip(&found.facts);
        let live = cards.flat_map(|(card, facts)| OneCard { card, facts }.partitions());
        let named = live.map(|live| ((live.at.card.clone(), live.handle.id), live.at.part()));
        self.instances.lock().unwrap_or_else(PoisonError::into_inner).extend(named);
    }

    /// The partition of an event that names an instance; the card, if no look at the card has ever found the instance.
    fn part(&self, card: &CardUuid, id: u32) -> Part {
        // A card that does not answer now has what it had.
        drop(self.card(card));
        let instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.get(&(card.clone(), id)).cloned().unwrap_or(Part::Card)
    }

    /// Watches a card from now on.
    ///
    /// # Errors
    /// The driver has no events, or the card has none.
    pub(crate) fn watch(&self, card: &CardUuid) -> Result<Watch, BackendError> {
        let gone = || BackendError::Unsupported { what: format!("events of card {card}") };
        let node = self.own.upgrade().ok_or_else(gone)?;
        let session = self.session.number();
        let set = self.session.call(|library| library.watch(card.as_str()));
        let set = set.map_err(|fault| health::error("its events".to_owned(), fault))?;
        // An instance may be gone when an event names it, so those of now are seen first.
        drop(self.card(card));
        Ok(Watch { node, card: card.clone(), set, session })
    }
}

// === impl Watch ===

impl Watch {
    /// The next event of a set that is registered now.
    fn wait(&mut self, millis: u32) -> Result<Option<Event>, Fault> {
        let node = Arc::clone(&self.node);
        node.session.call(|library| {
            // No other initialisation comes during a call.
            let session = node.session.number();
            if self.session != session {
                self.set = library.watch(self.card.as_str())?;
                self.session = session;
            }
            library.next_event(&self.set, millis)
        })
    }
}

impl CardEvents for Watch {
    fn next(&mut self, longest: Duration) -> Result<Option<CardEvent>, BackendError> {
        let millis = u32::try_from(longest.min(WAIT).as_millis()).unwrap_or(u32::MAX);
        let event = |cause, part| Ok(Some(CardEvent { cause, part }));
        match self.wait(millis) {
            Ok(None) => Ok(None),
            Ok(Some(Event { xid, instance: None })) => event(Cause::Code(xid), Part::Card),
            Ok(Some(Event { xid, instance: Some(id) })) => {
                event(Cause::Code(xid), self.node.part(&self.card, id))
            }
            Err(fault) if fault.is_lost() => {
                self.node.changes.fetch_add(1, Ordering::AcqRel);
                event(Cause::Lost, Part::Card)
            }
            Err(fault) => Err(health::error(format!("wait for events of card {}", self.card), fault)),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // A set of an earlier initialisation is gone.
        let freed = self.node.session.call(|library| {
            if self.session == self.node.session.number() {
                library.unwatch(&self.set);
            }
            Ok(())
        });
        match freed {
            Ok(()) | Err(_) => {}
        }
    }
}
