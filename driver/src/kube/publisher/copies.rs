//! The server's copies of this node's slices, from watch events and from the answers to own writes. Pure.
//!
//! Both sources tell of one object in either order, so the newer version of an object stays: the echo of an own write
//! changes nothing, and a late event never brings back an older content.

use std::collections::{BTreeMap, BTreeSet};

use ::kube::runtime::watcher::Event;
use aliquot_core::dra::ResourceSlice;
use aliquot_core::offer::CounterStance;
use k8s_openapi::api::resource::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::kube::{convert, counter_nodes};

/// One slice as the server has it.
#[derive(Clone, Debug)]
pub(super) struct ServerSlice {
    object: api::ResourceSlice,
    content: Option<ResourceSlice>,
}

/// All of them, by name.
#[derive(Clone, Debug)]
pub(super) struct ServerCopies {
    driver: String,
    node: String,
    known: BTreeMap<String, ServerSlice>,
    /// Objects of a listing in progress.
    listing: Option<BTreeMap<String, ServerSlice>>,
    /// UIDs of deleted objects, of which late events may tell.
    deleted: BTreeSet<String>,
    /// The highest version of the server's state that an object or a list had.
    highest: u64,
}

/// What a list says of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListVerdict {
    /// Its objects are the copies.
    Same,
    /// It has other objects, or other versions of them.
    Differs,
    /// The server's state is of an earlier version than one that it had.
    Older {
        /// Version of the list.
        found: u64,
        /// The highest version before.
        known: u64,
    },
}

/// What an event meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A listing goes on: copies are not complete.
    Listing,
    /// A listing is complete.
    Listed,
    /// A copy differs from what was known.
    Changed,
    /// Nothing new.
    Known,
}

// === impl ServerSlice ===

impl ServerSlice {
    pub(super) fn new(object: api::ResourceSlice) -> Self {
        let content = convert::from_api(&object);
        Self { object, content }
    }

    pub(super) fn object(&self) -> &api::ResourceSlice {
        &self.object
    }

    /// The plain value; `None` if it has what cannot be read, and so differs from everything.
    pub(super) fn content(&self) -> Option<&ResourceSlice> {
        self.content.as_ref()
    }

    pub(super) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn uid(&self) -> &str {
        self.object.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(super) fn resource_version(&self) -> &str {
        self.object.metadata.resource_version.as_deref().unwrap_or_default()
    }

    pub(super) fn pool(&self) -> &str {
        &self.object.spec.pool.name
    }

    pub(super) fn generation(&self) -> i64 {
        self.object.spec.pool.generation
    }

    pub(super) fn slice_count(&self) -> i64 {
        self.object.spec.pool.resource_slice_count
    }

    /// UID of the Node that owns it.
    pub(super) fn owner(&self) -> Option<&str> {
        let owners = self.object.metadata.owner_references.as_deref().unwrap_or_default();
        owners.iter().find(|owner| owner.kind == "Node").map(|owner| owner.uid.as_str())
    }

    /// What it says of its node's counters.
    pub(super) fn stance(&self) -> Option<CounterStance> {
        counter_nodes::stance_of(std::iter::once(&self.object.metadata))
    }

    /// Whether this version of the object is of a later write than the other one.
    fn is_newer_than(&self, other: &Self) -> bool {
        match (number(self.resource_version()), number(other.resource_version())) {
            (Some(own), Some(others)) => own > others,
            // Versions that are no numbers have no order: the event counts.
            _ => self.resource_version() != other.resource_version(),
        }
    }
}

// === impl ServerCopies ===

impl ServerCopies {
    pub(super) fn new(driver: &str, node: &str) -> Self {
        Self {
            driver: driver.to_owned(),
            node: node.to_owned(),
            known: BTreeMap::new(),
            listing: None,
            deleted: BTreeSet::new(),
            highest: 0,
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&ServerSlice> {
        self.known.get(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ServerSlice> {
        self.known.values()
    }

    /// Compares them with a list that began after the last of them was learned.
    pub(super) fn judge(&mut self, list: &[&ObjectMeta], version: Option<&str>) -> ListVerdict {
        if let Some(found) = version.and_then(number) {
            if found < self.highest {
                return ListVerdict::Older { found, known: self.highest };
            }
            self.highest = found;
        }
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let listed: BTreeSet<_> = list
            .iter()
            .map(|meta| (text(&meta.name), text(&meta.uid), text(&meta.resource_version)))
            .collect();
        let known = self.known.values().map(|slice| &slice.object.metadata);
        let known = known.map(|meta| (text(&meta.name), text(&meta.uid), text(&meta.resource_version)));
        if known.collect::<BTreeSet<_>>() == listed { ListVerdict::Same } else { ListVerdict::Differs }
    }

    /// Versions are counted from this one on: the server's state is an earlier one.
    pub(super) fn restored(&mut self, version: u64) {
        self.highest = version;
    }

    fn note_version(&mut self, object: &api::ResourceSlice) {
        let version = object.metadata.resource_version.as_deref().and_then(number);
        self.highest = self.highest.max(version.unwrap_or(0));
    }

    /// Takes an event of the watch.
    pub(super) fn observe(&mut self, event: Event<api::ResourceSlice>) -> Seen {
        if let Event::InitApply(object) | Event::Apply(object) | Event::Delete(object) = &event {
            self.note_version(object);
        }
        match event {
            Event::Init => {
                self.listing = Some(BTreeMap::new());
                Seen::Listing
            }
            Event::InitApply(object) => {
                if self.is_ours(&object) {
                    let slice = ServerSlice::new(object);
                    self.listing.get_or_insert_default().insert(slice.name().to_owned(), slice);
                }
                Seen::Listing
            }
            Event::InitDone => {
                self.known = self.listing.take().unwrap_or_default();
                self.deleted.clear();
                Seen::Listed
            }
            Event::Apply(object) if self.is_ours(&object) => self.take(ServerSlice::new(object)),
            Event::Delete(object) if self.is_ours(&object) => {
                let gone = ServerSlice::new(object);
                self.deleted.insert(gone.uid().to_owned());
                match self.known.get(gone.name()) {
                    Some(known) if known.uid() == gone.uid() => {
                        self.known.remove(gone.name());
                        Seen::Changed
                    }
                    _ => Seen::Known,
                }
            }
            Event::Apply(_) | Event::Delete(_) => Seen::Known,
        }
    }

    /// Takes an object that the server returned. An object of another driver or node is left out.
    pub(super) fn take(&mut self, slice: ServerSlice) -> Seen {
        self.note_version(&slice.object);
        if self.deleted.contains(slice.uid()) || !self.is_ours(&slice.object) {
            return Seen::Known;
        }
        match self.known.get(slice.name()) {
            Some(known) if !slice.is_newer_than(known) => Seen::Known,
            _ => {
                self.known.insert(slice.name().to_owned(), slice);
                Seen::Changed
            }
        }
    }

    /// Notes that the server has no object of this name any more.
    pub(super) fn remove(&mut self, name: &str) {
        if let Some(gone) = self.known.remove(name) {
            self.deleted.insert(gone.uid().to_owned());
        }
    }

    pub(super) fn is_ours(&self, object: &api::ResourceSlice) -> bool {
        object.spec.driver == self.driver && object.spec.node_name.as_deref() == Some(self.node.as_str())
    }
}

/// A version that has an order.
fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

#[cfg(test)]
mod tests;
