//! Cards in use: a governor for each card or partition of which a claim holds a share, and the watches of all cards.
//!
//! ```text
//!  state ─┬▶ grants ─▶ by visible card ─▶ governor: reaps exited processes, hands out compute time; leads by right
//!         └▶ cards ──▶ watch: notes what the card reports of itself in the health book, and wakes the state task
//! ```
//!
//! A governor ends with the last grant of its card. A watch stays: a card's health matters with and without tenants.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::card::Inventory;
use aliquot_core::grant::Grant;
use aliquot_core::id::CardUuid;
use tokio::sync::Notify;

use super::card_figures::{CardFigures, FigureReader};
use super::card_watches::CardWatches;
use super::observe::{DormantUses, GovernorReports, ReadShare, ShareUse};
use super::store::{NodeStore, NodeView};
use crate::region;
use crate::run::cards::{Cards, Reporter};
use crate::run::governor::{Governor, Scope, leader_locks};

/// What governs the node's cards. Its calls block for a few milliseconds.
pub trait CardsInUse: Send + 'static {
    /// Follows the cards and grants as they are now, and reads what they use.
    fn follow(&mut self, view: &NodeView, node: &dyn NodeStore) -> ObservedUse;

    /// Notified after a card has reported something that was not known of it.
    fn recorded(&self) -> Arc<Notify>;
}

/// What grants and cards use, at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedUse {
    /// Shares.
    pub shares: Vec<ShareUse>,
    /// Cards and partitions, as drivers report them.
    pub cards: CardFigures,
}

/// Governors and watches of a node's cards.
pub struct Governors {
    state: PathBuf,
    grants: PathBuf,
    cards: Arc<dyn Cards + Send + Sync>,
    running: BTreeMap<CardUuid, Governor>,
    watches: CardWatches,
    dormant: DormantUses,
    figures: FigureReader,
}

/// A card of which shares are limited.
struct LimitedCard<'s> {
    visible: CardUuid,
    /// One of its shares.
    grant: &'s Grant,
    place: &'s region::GrantPaths,
    /// Directories of all.
    shares: BTreeSet<PathBuf>,
}

// === impl Governors ===

impl Governors {
    /// Governors for the grants of a state directory.
    #[must_use]
    pub fn new(state: PathBuf, grants: PathBuf, cards: Arc<dyn Cards + Send + Sync>) -> Self {
        let watches = CardWatches::new(Arc::clone(&cards), &state);
        let figures = FigureReader::new(grants.clone(), Arc::clone(&cards));
        let dormant = DormantUses::default();
        Self { state, grants, cards, running: BTreeMap::new(), watches, dormant, figures }
    }

    /// The same; a lost card is on trial for so long.
    #[must_use]
    pub fn with_trial(mut self, trial: Duration) -> Self {
        self.watches.trial = trial;
        self
    }

    fn start(&mut self, limited: &LimitedCard<'_>, cards: &Inventory) {
        let LimitedCard { visible, grant, place, shares } = limited;
        let (meter, processes) = match self.cards.reach(grant, visible, cards) {
            Ok(reach) => (reach.meter, reach.processes),
            Err(error) => {
                tracing::warn!(card = %visible, "compute time and memory beyond the shim cannot be measured: {error}");
                (None, None)
            }
        };
        let scope = Scope {
            visible: visible.to_string(),
            grants: self.grants.clone(),
            share: place.dir.clone(),
            writers: place.lock.clone(),
            election: leader_locks(&self.state).join(visible.as_str()),
            meter,
            processes,
        };
        match Governor::start_of_owner(scope, shares.clone()) {
            Ok(governor) => drop(self.running.insert(visible.clone(), governor)),
            Err(error) => {
                tracing::error!(card = %visible, "no governor, so limits of time are not renewed: {error}");
            }
        }
        if self.cards.reporter(grant) == Reporter::Part {
            let cards = Arc::clone(&self.cards);
            self.watches.follow_part(&grant.card, visible, || cards.follow(grant, visible));
        }
    }
}

/// The cards of which these shares are limited.
fn limited<'s>(shares: &'s [ReadShare<'_>]) -> BTreeMap<CardUuid, LimitedCard<'s>> {
    let mut cards = BTreeMap::new();
    for ReadShare { grant, place, limits } in shares {
        // A claim in the making, or one without limits, has none.
        let Ok(limits) = limits else { continue };
        let Ok(visible) = CardUuid::new(limits.card.as_str()) else { continue };
        let shares = BTreeSet::new();
        let card = cards.entry(visible.clone()).or_insert(LimitedCard { visible, grant, place, shares });
        card.shares.insert(place.dir.clone());
    }
    cards
}

impl CardsInUse for Governors {
    fn follow(&mut self, view: &NodeView, node: &dyn NodeStore) -> ObservedUse {
        let notes = self.watches.follow(view, node);
        let shares = ReadShare::all(&self.grants, &view.claims);
        let limited = limited(&shares);
        self.running.retain(|visible, _| limited.contains_key(visible));
        for (visible, limited) in &limited {
            match self.running.get(visible) {
                Some(governor) => governor.register(limited.shares.clone()),
                None if view.inventory.card(&limited.grant.card).is_some() => {
                    self.start(limited, &view.inventory);
                }
                None => {}
            }
        }
        let reports = GovernorReports {
            unshimmed: self.running.values().flat_map(Governor::unshimmed).collect(),
            dormant: self.running.values().map(Governor::dormant).collect(),
        };
        let shares = self.dormant.observe(&shares, &reports);
        ObservedUse { shares, cards: self.figures.read(view, &notes) }
    }

    fn recorded(&self) -> Arc<Notify> {
        Arc::clone(&self.watches.recorded)
    }
}
