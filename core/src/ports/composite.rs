//! Several vendors on one node, behind one backend.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::{
    BackendError, CardEvents, CardUsage, DeviceAccess, DeviceBackend, ExpectedPartition, LivePartition,
    PartitionAt, Samples,
};
use crate::card::{Card, Health, Inventory};
use crate::health::{Harm, Meaning};
use crate::id::CardUuid;
use crate::partition::Part;
use crate::units::Bytes;

/// One vendor of a node.
#[derive(Clone)]
pub struct Member {
    /// Vendor or library, for messages.
    pub name: String,
    /// Its cards.
    pub backend: Arc<dyn DeviceBackend>,
}

/// Several backends as one. Each call goes to the backend that owns the card. A backend that fails takes only its own cards
/// out of service: discovery reports them as it found them last, unhealthy, and the failure in [`DeviceBackend::trouble`].
pub struct Composite {
    members: Vec<Member>,
    /// Vendors that are out of service as a whole, one line each.
    closed: Vec<String>,
    /// The member that owns a card or a visible UUID, as discovery and [`DeviceBackend::partitions`] found it last.
    owners: RwLock<BTreeMap<CardUuid, usize>>,
    /// What failed at the latest discovery, by member.
    failed: RwLock<BTreeMap<usize, String>>,
    /// The cards of each member, as it found them last.
    last: RwLock<BTreeMap<usize, Vec<Card>>>,
}

// === impl Composite ===

impl Composite {
    /// Joins backends. Cards keep the order of the backends.
    #[must_use]
    pub fn new(members: Vec<Member>) -> Self {
        let (owners, failed, last) = (RwLock::default(), RwLock::default(), RwLock::default());
        Self { members, closed: Vec::new(), owners, failed, last }
    }

    /// The same, with vendors that could not be opened; one line each.
    #[must_use]
    pub fn without(self, closed: Vec<String>) -> Self {
        Self { closed, ..self }
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    fn index(&self, uuid: &CardUuid) -> Option<usize> {
        self.owners.read().unwrap_or_else(PoisonError::into_inner).get(uuid).copied()
    }

    fn known(&self, uuid: &CardUuid) -> Option<&Member> {
        self.index(uuid).and_then(|index| self.members.get(index))
    }

    /// The member that owns a card or partition. An unknown UUID is looked for once.
    fn owner(&self, uuid: &CardUuid) -> Result<&Member, BackendError> {
        if let Some(member) = self.known(uuid) {
            return Ok(member);
        }
        drop(self.discover()?);
        if self.known(uuid).is_none() {
            drop(self.partitions()?);
        }
        self.known(uuid).ok_or_else(|| BackendError::UnknownCard(uuid.clone()))
    }

    fn learn(&self, uuid: &CardUuid, index: usize) {
        if self.index(uuid) != Some(index) {
            self.owners.write().unwrap_or_else(PoisonError::into_inner).insert(uuid.clone(), index);
        }
    }

    fn note(&self, index: usize, failure: Option<String>) {
        let mut failed = self.failed.write().unwrap_or_else(PoisonError::into_inner);
        match failure {
            Some(text) => failed.insert(index, text),
            None => failed.remove(&index),
        };
    }

    /// The cards of a member that cannot be asked now. None of their partitions is known to exist.
    fn silent(&self, index: usize) -> Vec<Card> {
        let failed = self.failed.read().unwrap_or_else(PoisonError::into_inner).get(&index).cloned();
        let health = Health::Unhealthy(failed.unwrap_or_default());
        let last = self.last.read().unwrap_or_else(PoisonError::into_inner);
        let cards = last.get(&index).into_iter().flatten().cloned();
        cards.map(|card| Card { health: health.clone(), found: Vec::new(), ..card }).collect()
    }

    /// Asks every member. Fails only if all of them fail.
    fn of_all<T>(
        &self,
        ask: impl Fn(&dyn DeviceBackend) -> Result<T, BackendError>,
    ) -> Result<Vec<(usize, T)>, BackendError> {
        let mut answers = Vec::new();
        let mut first = None;
        for (index, member) in self.members.iter().enumerate() {
            match ask(member.backend.as_ref()) {
                Ok(answer) => {
                    self.note(index, None);
                    answers.push((index, answer));
                }
                Err(error) => {
                    self.note(index, Some(format!("{}: out of service: {error}", member.name)));
                    first.get_or_insert(error);
                }
            }
        }
        match first {
            Some(error) if answers.is_empty() => Err(error),
            _ => Ok(answers),
        }
    }
}

impl DeviceBackend for Composite {
    fn discover(&self) -> Result<Inventory, BackendError> {
        let mut cards: Vec<Card> = Vec::new();
        let answers: Vec<(usize, Inventory)> = self.of_all(|backend| backend.discover())?;
        let found: BTreeMap<usize, Vec<Card>> =
            answers.into_iter().map(|(index, inventory)| (index, inventory.cards)).collect();
        let all: Vec<Vec<Card>> = (0..self.members.len())
            .map(|index| found.get(&index).cloned().unwrap_or_else(|| self.silent(index)))
            .collect();
        self.last.write().unwrap_or_else(PoisonError::into_inner).extend(found);
        for (index, of_member) in all.into_iter().enumerate() {
            // Each vendor counts its cards from 0; on the node every card has its own number.
            let first = cards.iter().map(|card| card.index.saturating_add(1)).max().unwrap_or(0);
            for card in of_member {
                self.learn(&card.uuid, index);
                cards.push(Card { index: card.index.saturating_add(first), ..card });
            }
        }
        Ok(Inventory { cards })
    }

    fn discover_card(&self, card: &CardUuid) -> Result<Card, BackendError> {
        self.owner(card)?.backend.discover_card(card)
    }

    fn partitions(&self) -> Result<Vec<LivePartition>, BackendError> {
        let mut all = Vec::new();
        for (index, partitions) in self.of_all(|backend| backend.partitions())? {
            for live in partitions {
                self.learn(&live.at.card, index);
                self.learn(&live.handle.uuid, index);
                all.push(live);
            }
        }
        Ok(all)
    }

    fn partitions_on(&self, card: &CardUuid) -> Result<Vec<LivePartition>, BackendError> {
        let live = self.owner(card)?.backend.partitions_on(card)?;
        if let Some(index) = self.index(card) {
            live.iter().for_each(|live| self.learn(&live.handle.uuid, index));
        }
        Ok(live)
    }

    fn create_partition(&self, at: &PartitionAt) -> Result<LivePartition, BackendError> {
        self.owner(&at.card)?.backend.create_partition(at)
    }

    fn destroy_partition(&self, at: &PartitionAt, handle: &ExpectedPartition) -> Result<(), BackendError> {
        self.owner(&at.card)?.backend.destroy_partition(at, handle)
    }

    fn driver_load(&self) -> Option<String> {
        let loads: Vec<String> =
            self.members.iter().filter_map(|member| member.backend.driver_load()).collect();
        (!loads.is_empty()).then(|| loads.join("+"))
    }

    fn generation(&self) -> Option<u64> {
        self.members
            .iter()
            .try_fold(0_u64, |sum, member| Some(sum.wrapping_add(member.backend.generation()?)))
    }

    fn trouble(&self) -> Vec<String> {
        let failed = self.failed.read().unwrap_or_else(PoisonError::into_inner);
        let own = self.members.iter().flat_map(|member| member.backend.trouble());
        self.closed.iter().cloned().chain(failed.values().cloned()).chain(own).collect()
    }

    fn no_partitions(&self) -> Vec<String> {
        let reasons: Vec<Vec<String>> =
            self.members.iter().map(|member| member.backend.no_partitions()).collect();
        // One vendor that gives them is enough.
        if reasons.iter().any(Vec::is_empty) { Vec::new() } else { reasons.concat() }
    }

    fn usage(&self, visible: &CardUuid) -> Result<CardUsage, BackendError> {
        self.owner(visible)?.backend.usage(visible)
    }

    fn samples(&self, visible: &CardUuid, since_micros: u64) -> Result<Option<Samples>, BackendError> {
        self.owner(visible)?.backend.samples(visible, since_micros)
    }

    fn events(&self, card: &CardUuid) -> Result<Box<dyn CardEvents>, BackendError> {
        self.owner(card)?.backend.events(card)
    }

    fn context_size(&self, visible: &CardUuid) -> Option<Bytes> {
        self.owner(visible).ok()?.backend.context_size(visible)
    }

    fn meaning(&self, card: &CardUuid, code: u64) -> Meaning {
        match self.owner(card) {
            Ok(member) => member.backend.meaning(card, code),
            Err(_) => {
                Meaning { name: format!("error {code}"), what: "its card is unknown", harm: Harm::Card }
            }
        }
    }

    fn variables(&self, card: &CardUuid, part: &Part) -> Result<Vec<(String, String)>, BackendError> {
        self.owner(card)?.backend.variables(card, part)
    }

    fn access(&self, card: &CardUuid, part: &Part) -> Result<DeviceAccess, BackendError> {
        self.owner(card)?.backend.access(card, part)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::card::Topology;
    use crate::catalogue::{CardIdentity, Catalogue};

    struct Broken;

    fn broken<T>() -> Result<T, BackendError> {
        Err(BackendError::Busy { what: "library".to_owned() })
    }

    impl DeviceBackend for Broken {
        fn discover(&self) -> Result<Inventory, BackendError> {
            broken()
        }

        fn partitions(&self) -> Result<Vec<LivePartition>, BackendError> {
            broken()
        }

        fn create_partition(&self, _: &PartitionAt) -> Result<LivePartition, BackendError> {
            broken()
        }

        fn destroy_partition(&self, _: &PartitionAt, _: &ExpectedPartition) -> Result<(), BackendError> {
            broken()
        }

        fn access(&self, _: &CardUuid, _: &Part) -> Result<DeviceAccess, BackendError> {
            broken()
        }
    }

    /// A vendor without cards.
    struct Empty;

    impl DeviceBackend for Empty {
        fn discover(&self) -> Result<Inventory, BackendError> {
            Ok(Inventory::default())
        }

        fn partitions(&self) -> Result<Vec<LivePartition>, BackendError> {
            Ok(Vec::new())
        }

        fn create_partition(&self, at: &PartitionAt) -> Result<LivePartition, BackendError> {
            Err(BackendError::UnknownCard(at.card.clone()))
        }

        fn destroy_partition(&self, at: &PartitionAt, _: &ExpectedPartition) -> Result<(), BackendError> {
            Err(BackendError::UnknownCard(at.card.clone()))
        }

        fn access(&self, card: &CardUuid, _: &Part) -> Result<DeviceAccess, BackendError> {
            Err(BackendError::UnknownCard(card.clone()))
        }
    }

    fn member(name: &str, backend: impl DeviceBackend + 'static) -> Member {
        Member { name: name.to_owned(), backend: Arc::new(backend) }
    }

    #[test]
    fn composite_with_broken_vendor_reports_it_and_serves_others() {
        let both = Composite::new(vec![member("one", Broken), member("two", Empty)]);
        let both = both.without(vec!["three: no library".to_owned()]);
        assert_eq!(both.discover().unwrap(), Inventory::default());
        let trouble = ["three: no library", "one: out of service: library: the hardware is busy; try again"];
        assert_eq!(both.trouble(), trouble);
        let card = CardUuid::new("GPU-1").unwrap();
        assert!(matches!(both.access(&card, &Part::Card), Err(BackendError::UnknownCard(_))));
    }

    /// A vendor with one card, which can be asked while `answers`.
    struct Flaky {
        answers: AtomicBool,
    }

    impl DeviceBackend for Flaky {
        fn discover(&self) -> Result<Inventory, BackendError> {
            if !self.answers.load(Ordering::Relaxed) {
                return broken();
            }
            let catalogue = Catalogue::embedded();
            let card = catalogue.resolve("nvidia-t4-16gb")[0].card(CardIdentity {
                uuid: CardUuid::new("GPU-1").unwrap(),
                index: 0,
                product_name: None,
                memory: None,
                driver_version: "1".to_owned(),
                pci: None,
                pcie_root: None,
                numa_node: None,
                topology: Topology::default(),
                mode: None,
                health: Health::Healthy,
                found: Vec::new(),
            });
            Ok(Inventory { cards: vec![card] })
        }

        fn partitions(&self) -> Result<Vec<LivePartition>, BackendError> {
            broken()
        }

        fn create_partition(&self, _: &PartitionAt) -> Result<LivePartition, BackendError> {
            broken()
        }

        fn destroy_partition(&self, _: &PartitionAt, _: &ExpectedPartition) -> Result<(), BackendError> {
            broken()
        }

        fn access(&self, _: &CardUuid, _: &Part) -> Result<DeviceAccess, BackendError> {
            broken()
        }
    }

    #[test]
    fn cards_of_a_vendor_that_fails_stay_unhealthy_until_it_answers() {
        let flaky = Arc::new(Flaky { answers: AtomicBool::new(true) });
        let both = Composite::new(vec![member("one", Arc::clone(&flaky)), member("two", Empty)]);
        let well = both.discover().unwrap();
        assert_eq!(well.cards[0].health, Health::Healthy);
        flaky.answers.store(false, Ordering::Relaxed);
        let mut silent = both.discover().unwrap();
        let why = "one: out of service: library: the hardware is busy; try again";
        assert_eq!(silent.cards[0].health, Health::Unhealthy(why.to_owned()));
        silent.cards[0].health = Health::Healthy;
        assert_eq!(silent, well);
        flaky.answers.store(true, Ordering::Relaxed);
        assert_eq!(both.discover().unwrap(), well);
    }

    #[test]
    fn composite_with_all_vendors_broken_fails() {
        let both = Composite::new(vec![member("one", Broken), member("two", Broken)]);
        assert!(matches!(both.discover(), Err(BackendError::Busy { .. })));
    }
}
