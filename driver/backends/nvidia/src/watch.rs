//! What a card tells of itself while somebody waits for it: Xids, and that it is lost.
//!
//! Whoever waits sleeps in the library until something comes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::id::CardUuid;
use aliquot_core::partition::Part;
use aliquot_core::ports::{BackendError, DeviceBackend as _};

use crate::NvidiaNode;
use crate::ffi::{Event, EventSet};
use crate::health;

/// Where the kernel shows the driver. Made anew with each load of it, with another number.
const MODULE: &str = "/sys/module/nvidia";

/// One card that is watched, from when that began.
#[derive(Debug)]
pub struct Watch {
    node: Arc<NvidiaNode>,
    card: CardUuid,
    set: EventSet,
    /// Instances that were there: one may be gone when it is told of.
    instances: Vec<(u32, Part)>,
}

/// What a card told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// An Xid, of the card or of a partition of it. One that nobody finds any more is told of the card.
    Xid(u64, Part),
    /// It is there no more.
    Lost,
}

// === impl NvidiaNode ===

impl NvidiaNode {
    /// Watches a card from now on.
    ///
    /// # Errors
    /// The driver has no events, or the card has none.
    pub fn watch(self: &Arc<Self>, card: &CardUuid) -> Result<Watch, BackendError> {
        let set = self.library.watch(card.as_str());
        let set = set.map_err(|fault| health::error("its events".to_owned(), fault))?;
        Ok(Watch { node: Arc::clone(self), card: card.clone(), set, instances: Vec::new() })
    }

    /// The driver that serves the cards, and its load as the kernel numbers it, where it shows that.
    pub(crate) fn load(&self) -> String {
        let number = fs::metadata(MODULE).map_or(0, |module| module.ino());
        let plain = |c: char| if c.is_ascii_graphic() { c } else { '?' };
        format!("{}/{number}", self.driver().chars().take(64).map(plain).collect::<String>())
    }
}

// === impl Watch ===

impl Watch {
    /// What the card tells next; `None`: nothing for so long, or nothing of this kind.
    ///
    /// # Errors
    /// The library does not wait.
    pub fn next(&mut self, longest: Duration) -> Result<Option<Told>, BackendError> {
        let millis = u32::try_from(longest.as_millis()).unwrap_or(u32::MAX);
        match self.node.library.next_event(&self.set, millis) {
            Ok(None) => Ok(None),
            Ok(Some(Event { xid, instance: None })) => Ok(Some(Told::Xid(xid, Part::Card))),
            Ok(Some(Event { xid, instance: Some(id) })) => Ok(Some(Told::Xid(xid, self.part(id)))),
            Err(fault) if fault.is_lost() => Ok(Some(Told::Lost)),
            Err(fault) => Err(health::error(format!("wait for events of card {}", self.card), fault)),
        }
    }

    /// The partition that is, or was last, an instance with this number.
    fn part(&mut self, id: u32) -> Part {
        self.learn();
        let known = self.instances.iter().find(|(known, _)| *known == id);
        known.map_or(Part::Card, |(_, part)| part.clone())
    }

    /// Looks which instances there are, to know them when they are told of.
    pub fn learn(&mut self) {
        // A card that does not answer now had what it had.
        for live in self.node.partitions().unwrap_or_default() {
            if live.at.card == self.card {
                self.instances.retain(|(id, _)| *id != live.handle.id);
                self.instances.push((live.handle.id, live.at.part()));
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.node.library.unwatch(&self.set);
    }
}
