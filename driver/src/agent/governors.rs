//! Cards in use: a governor and a follower for each card or partition of which a claim holds a share.
//!
//! ```text
//!  state ─▶ grants ─▶ by visible card ─┬─▶ governor: reaps exited processes, hands out compute time; leads by right
//!                                      └─▶ follower: notes what the card reports of itself in the health book
//! ```
//!
//! A governor ends with the last grant of its card. A follower stays: a card's health matters after its tenants are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use aliquot_core::card::Inventory;
use aliquot_core::grant::Grant;
use aliquot_core::id::CardUuid;

use super::observe::{ShareUse, observe};
use super::store::{HeldClaim, NodeView};
use crate::grant_file;
use crate::health::{HealthBook, era};
use crate::region;
use crate::run::cards::Cards;
use crate::run::governor::{Governor, Scope, leader_locks};
use crate::run::watch::{self, EventSource};

/// What governs the node's cards. Its calls block for a few milliseconds.
pub trait CardsInUse: Send + 'static {
    /// Follows the grants as they are now, and reads what they use.
    fn follow(&mut self, view: &NodeView) -> Vec<ShareUse>;
}

/// Governors and followers of a node's cards.
pub struct Governors {
    state: PathBuf,
    grants: PathBuf,
    cards: Arc<dyn Cards + Send + Sync>,
    /// Which load of the driver reports.
    driver: Option<String>,
    running: BTreeMap<CardUuid, Governor>,
    followed: BTreeSet<CardUuid>,
}

/// A card of which shares are limited.
struct LimitedCard<'g> {
    visible: CardUuid,
    /// One of its shares.
    grant: &'g Grant,
    place: region::GrantPaths,
    /// Directories of all.
    shares: BTreeSet<PathBuf>,
}

// === impl Governors ===

impl Governors {
    /// Governors for the grants of a state directory.
    #[must_use]
    pub fn new(
        state: PathBuf,
        grants: PathBuf,
        cards: Arc<dyn Cards + Send + Sync>,
        driver: Option<String>,
    ) -> Self {
        Self { state, grants, cards, driver, running: BTreeMap::new(), followed: BTreeSet::new() }
    }

    fn limited<'v>(&self, claims: &'v [HeldClaim]) -> BTreeMap<CardUuid, LimitedCard<'v>> {
        let mut cards = BTreeMap::new();
        for grant in claims.iter().flat_map(|claim| &claim.grants) {
            let place = grant_file::place(&self.grants, &grant.claim, &grant.share);
            // A claim in the making, or one without limits, has none.
            let Ok(limits) = region::read(&place.limits()) else { continue };
            let Ok(visible) = CardUuid::new(limits.card.as_str()) else { continue };
            let dir = place.dir.clone();
            let shares = BTreeSet::new();
            let card = cards.entry(visible.clone()).or_insert(LimitedCard { visible, grant, place, shares });
            card.shares.insert(dir);
        }
        cards
    }

    fn start(&mut self, limited: &LimitedCard<'_>, cards: &Inventory) {
        let LimitedCard { visible, grant, place, shares } = limited;
        let meter = match self.cards.reach(grant, visible, cards) {
            Ok(reach) => reach.meter,
            Err(error) => {
                tracing::warn!(card = %visible, "compute time cannot be measured: {error}");
                None
            }
        };
        let scope = Scope {
            visible: visible.to_string(),
            grants: self.grants.clone(),
            share: place.dir.clone(),
            writers: place.lock.clone(),
            election: leader_locks(&self.state).join(visible.as_str()),
            meter,
        };
        match Governor::start_of_owner(scope, shares.clone()) {
            Ok(governor) => drop(self.running.insert(visible.clone(), governor)),
            Err(error) => {
                tracing::error!(card = %visible, "no governor, so limits of time are not renewed: {error}");
            }
        }
        if !self.followed.insert(visible.clone()) {
            return;
        }
        let started = self.cards.follow(grant, visible).and_then(|events| {
            let (book, era) = (HealthBook::of(&self.state), era(self.driver.clone()));
            let followed = EventSource { card: grant.card.clone(), events, book, era };
            watch::start(followed).map_err(|error| error.to_string())
        });
        if let Err(error) = started {
            tracing::warn!(card = %visible, "the card's events are not received: {error}");
        }
    }
}

impl CardsInUse for Governors {
    fn follow(&mut self, view: &NodeView) -> Vec<ShareUse> {
        let limited = self.limited(&view.claims);
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
        observe(&self.grants, &view.claims)
    }
}
