//! Computes a picture from two looks; pure.
//!
//! | source | content | trust |
//! |---|---|---|
//! | journal | shares and partitions | trusted |
//! | limits file | present limits | trusted |
//! | usage file | use of each process | written by the tenant: any value is possible |
//! | driver | memory and time on the card | trusted |
//!
//! If usage file and driver differ, both are shown. A process uses the shim if it has a live slot in the usage file of its grant.
//! A process of a grant that is on the card without a slot bypasses its limits. Figures of the driver beyond the usage file, or
//! beyond the limits, contradict it.

mod contradiction;
mod looks;
mod place;
mod rate;
mod rows;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_core::card::{Card, Health as Found, Unwell};
use aliquot_core::health::Rediscovery as Answers;
use aliquot_core::id::CardUuid;
use aliquot_core::partition::Part;
use aliquot_core::units::Cores;

use super::snapshot::{CardAnswer, CardRecords, PartitionView, ShareView, Snapshot, StateView};
use crate::checkpoint::Phase;

use looks::SnapshotPair;
pub use looks::ViewProblem;
pub use rate::TimeRate;
use rows::Spot;
pub use rows::{CardPart, DriverRow, Enforcement, ProcessRow, ShareRow, Shim};

/// The whole picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Cards, by their index where it is known.
    pub cards: Vec<CardRow>,
    /// State directories, in the order in which they were named.
    pub states: Vec<StateRow>,
    /// Homes of state with a directory that another user does not let this one read.
    pub closed: Vec<PathBuf>,
    /// Unreadable sources and impossible values.
    pub problems: Vec<ViewProblem>,
}

/// One card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardRow {
    /// UUID.
    pub uuid: String,
    /// Index, where the node is described.
    pub index: Option<u32>,
    /// Product name or model, where it is known.
    pub name: Option<String>,
    /// State directory of its simulation.
    pub state: Option<PathBuf>,
    /// Its health, if known.
    pub health: CardHealthView,
    /// Use of the card itself.
    pub place: CardPart,
    /// Its partitions.
    pub partitions: Vec<PartitionRow>,
}

/// Health of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardHealthView {
    /// No source reports it.
    Unknown,
    /// Healthy.
    Well,
    /// Unhealthy, and the reason.
    Unwell(String),
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionRow {
    /// Template.
    pub template: String,
    /// Placement.
    pub placement: String,
    /// UUID that its tenant reads; `None`: it is not created yet.
    pub uuid: Option<String>,
    /// Its own health if unhealthy, else its card's.
    pub health: CardHealthView,
    /// Use of the partition.
    pub place: CardPart,
}

/// One state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRow {
    /// Its path.
    pub dir: PathBuf,
    /// Number of its shares; `None`: it cannot be read.
    pub shares: Option<usize>,
}

/// A card of one simulation or of the machine: simulations in two state directories may use one UUID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    uuid: &'a str,
    state: Option<&'a Path>,
}

/// The picture of a look. Rates need the previous look.
#[must_use]
pub fn picture(before: Option<&Snapshot>, now: &Snapshot) -> Picture {
    let looks = SnapshotPair { before, now };
    let mut problems: Vec<ViewProblem> =
        now.unusable.iter().map(|(subject, why)| ViewProblem::new(subject, why)).collect();
    let mut states = Vec::new();
    for state in &now.states {
        let shares = state.promised.as_ref().map(|promised| promised.shares.len());
        problems.extend(
            shares
                .as_ref()
                .err()
                .map(|why| ViewProblem::new(format!("state directory {}", state.dir.display()), *why)),
        );
        let against = state.against.as_ref().err();
        problems.extend(
            against.map(|why| ViewProblem::new(format!("state directory {}", state.dir.display()), why)),
        );
        states.push(StateRow { dir: state.dir.clone(), shares: shares.ok() });
    }
    let cards = keys(now).into_iter().map(|key| card(looks, &key, &mut problems)).collect();
    Picture { cards, states, closed: now.closed.clone(), problems }
}

/// All known cards: those of drivers, of the node description and of grants, by index.
fn keys(now: &Snapshot) -> Vec<Key<'_>> {
    let mut keys: Vec<Key<'_>> = Vec::new();
    let known: BTreeSet<&str> =
        now.promised().flat_map(|(_, p)| &p.partitions).filter_map(|p| p.uuid.as_deref()).collect();
    for driver in &now.drivers {
        let stray = !driver.processes.is_empty() && !known.contains(driver.uuid.as_str());
        let key = Key { uuid: &driver.uuid, state: driver.state.as_deref() };
        if (driver.whole || stray) && !keys.contains(&key) {
            keys.push(key);
        }
    }
    let granted = now.promised().flat_map(|(dir, promised)| {
        let shares = promised.shares.iter().map(|share| &share.grant.card);
        let partitions = promised.partitions.iter().map(|partition| &partition.at.card);
        shares.chain(partitions).map(move |card| (dir, card))
    });
    for (dir, card) in granted {
        let key = now.key(dir, card);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    for card in &now.inventory.cards {
        if !keys.iter().any(|key| key.uuid == card.uuid.as_str()) {
            keys.push(Key { uuid: card.uuid.as_str(), state: None });
        }
    }
    let index = |key: &Key<'_>| now.described(key.uuid).map_or(u32::MAX, |card| card.index);
    keys.sort_by_key(index);
    keys
}

fn card(looks: SnapshotPair<'_>, key: &Key<'_>, problems: &mut Vec<ViewProblem>) -> CardRow {
    let now = looks.now;
    let described = now.described(key.uuid);
    let driver = now.driver(key.uuid, key.state);
    let answers = driver.map(|driver| driver.health);
    let against = now.against(key, answers);
    let of =
        |part: &Part| against.iter().find(|unwell| unwell.part == *part).map(|unwell| unwell.why.clone());
    let health = match (answers, described.map(|card| &card.health)) {
        (Some(CardAnswer::Lost), _) => CardHealthView::Unwell("lost".to_owned()),
        (_, Some(Found::Unhealthy(why))) => CardHealthView::Unwell(why.clone()),
        _ if of(&Part::Card).is_some() => CardHealthView::Unwell(of(&Part::Card).unwrap_or_default()),
        (Some(CardAnswer::Well), _) | (None, Some(Found::Healthy)) => CardHealthView::Well,
        (None, None) => CardHealthView::Unknown,
    };
    let memory = driver.map(|driver| driver.memory).or_else(|| described.map(|card| card.memory));
    let shares: Vec<&ShareView> =
        now.shares_of(key).filter(|share| share.grant.partition().is_none()).collect();
    let spot = Spot { uuid: key.uuid, state: key.state, memory, cores: Some(Cores::ALL) };
    let place = place::place(looks, spot, &shares, problems);
    let table = described.and_then(Card::table).or_else(|| now.tables.get(key.uuid).map(Arc::as_ref));
    let partitions: Vec<PartitionRow> = now
        .partitions_of(key)
        .into_iter()
        .map(|partition| {
            let template = table.and_then(|table| table.template(&partition.at.template));
            let uuid = partition.uuid.as_deref();
            let driver = uuid.and_then(|uuid| now.driver(uuid, key.state));
            let memory = driver.map(|driver| driver.memory).or_else(|| template.map(|t| t.memory));
            let inside = |share: &&ShareView| share.grant.partition().as_ref() == Some(&partition.at);
            let shares: Vec<&ShareView> = now.shares_of(key).filter(inside).collect();
            let cores = template.map(|template| template.cores);
            let spot = Spot { uuid: uuid.unwrap_or_default(), state: key.state, memory, cores };
            PartitionRow {
                template: partition.at.template.to_string(),
                placement: partition.at.placement.to_string(),
                uuid: partition.uuid.clone(),
                health: of(&partition.at.part()).map_or_else(|| health.clone(), CardHealthView::Unwell),
                place: place::place(looks, spot, &shares, problems),
            }
        })
        .collect();
    CardRow {
        uuid: key.uuid.to_owned(),
        index: described.map(|card| card.index),
        name: driver
            .map(|driver| driver.name.clone())
            .or_else(|| described.map(|card| card.product_name.clone())),
        state: key.state.map(Path::to_owned),
        health,
        place,
        partitions,
    }
}

// === impl Snapshot ===

impl Snapshot {
    fn described(&self, uuid: &str) -> Option<&Card> {
        self.inventory.cards.iter().find(|card| card.uuid.as_str() == uuid)
    }

    fn driver(&self, uuid: &str, state: Option<&Path>) -> Option<&super::snapshot::DriverView> {
        self.drivers.iter().find(|driver| driver.uuid == uuid && driver.state.as_deref() == state)
    }

    /// Health records of a card and its parts; a card that answers after a loss was reset.
    fn against(&self, key: &Key<'_>, answers: Option<CardAnswer>) -> Vec<Unwell> {
        let Ok(card) = CardUuid::new(key.uuid) else { return Vec::new() };
        let means = |state: &&StateView| self.key(&state.dir, &card) == *key;
        let held = |CardRecords { notes, xids }: &CardRecords| {
            let found =
                if answers == Some(CardAnswer::Well) { Answers::Answering } else { Answers::Described };
            notes.held_against(&card, found, xids)
        };
        self.states
            .iter()
            .filter(means)
            .filter_map(|state| state.against.as_ref().ok())
            .flat_map(held)
            .collect()
    }

    /// The card of a state directory: the one simulated there, if there is one.
    fn key<'a>(&'a self, dir: &'a Path, card: &'a CardUuid) -> Key<'a> {
        let simulated = self
            .drivers
            .iter()
            .any(|d| d.whole && d.state.as_deref() == Some(dir) && d.uuid == card.as_str());
        Key { uuid: card.as_str(), state: simulated.then_some(dir) }
    }

    fn shares_of(&self, key: &Key<'_>) -> impl Iterator<Item = &ShareView> {
        self.promised().flat_map(move |(dir, promised)| {
            promised.shares.iter().filter(move |share| self.key(dir, &share.grant.card) == *key)
        })
    }

    /// Partitions of the journals, and existing partitions that only a share names.
    fn partitions_of(&self, key: &Key<'_>) -> Vec<PartitionView> {
        let mut found: Vec<PartitionView> = Vec::new();
        for (dir, promised) in self.promised() {
            let named = promised.shares.iter().filter_map(|share| {
                Some(PartitionView { at: share.grant.partition()?, uuid: share.visible.clone() })
            });
            for partition in promised.partitions.iter().cloned().chain(named) {
                if self.key(dir, &partition.at.card) == *key && !found.iter().any(|f| f.at == partition.at) {
                    found.push(partition);
                }
            }
        }
        found
    }

    fn share(&self, dir: &Path) -> Option<&ShareView> {
        self.promised().flat_map(|(_, promised)| &promised.shares).find(|share| share.dir == dir)
    }
}

/// Phase of a claim, as a word.
#[must_use]
pub const fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Preparing => "preparing",
        Phase::Prepared => "prepared",
        Phase::Releasing => "releasing",
    }
}

#[cfg(test)]
mod tests;
