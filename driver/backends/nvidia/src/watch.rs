//! Events that a card reports during a wait: Xids, and the loss of the card. A waiter sleeps in the library
//! until an event comes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aliquot_core::health::Cause;
use aliquot_core::id::CardUuid;
use aliquot_core::partition::Part;
use aliquot_core::ports::{BackendError, CardEvent, CardEvents, DeviceBackend as _};

use crate::NvidiaNode;
use crate::ffi::{Event, EventSet, Fault};
use crate::health;

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
    /// Instances at the start of the watch: one may be gone when its event arrives.
    instances: Vec<(u32, Part)>,
}

// === impl NvidiaNode ===

impl NvidiaNode {
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
        let mut watch = Watch { node, card: card.clone(), set, session, instances: Vec::new() };
        // An instance may be gone when an event names it.
        watch.learn();
        Ok(watch)
    }
}

// === impl Watch ===

impl Watch {
    /// The partition that is, or was last, an instance with this number.
    fn part(&mut self, id: u32) -> Part {
        self.learn();
        let known = self.instances.iter().find(|(known, _)| *known == id);
        known.map_or(Part::Card, |(_, part)| part.clone())
    }

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

    /// Lists the present instances, to identify them in later events.
    fn learn(&mut self) {
        // A card that does not answer now had what it had.
        for live in self.node.partitions().unwrap_or_default() {
            if live.at.card == self.card {
                self.instances.retain(|(id, _)| *id != live.handle.id);
                self.instances.push((live.handle.id, live.at.part()));
            }
        }
    }
}

impl CardEvents for Watch {
    fn next(&mut self, longest: Duration) -> Result<Option<CardEvent>, BackendError> {
        let millis = u32::try_from(longest.min(WAIT).as_millis()).unwrap_or(u32::MAX);
        let event = |cause, part| Ok(Some(CardEvent { cause, part }));
        match self.wait(millis) {
            Ok(None) => Ok(None),
            Ok(Some(Event { xid, instance: None })) => event(Cause::Code(xid), Part::Card),
            Ok(Some(Event { xid, instance: Some(id) })) => event(Cause::Code(xid), self.part(id)),
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
