//! What of a node is the same for as long as it is open: hardware, directories, seams. Every thread shares it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aliquot_cdi::{CdiDir, ClaimSpec};
use aliquot_core::card::{Card, Health, Inventory};
use aliquot_core::grant::Grant;
use aliquot_core::id::{CardUuid, ClaimUid};
use aliquot_core::plan::Plan;
use aliquot_core::ports::{BackendError, DISCOVERY_AGE_MAX, PartitionAt};
use parking_lot::Mutex;

use super::parts::NodeParts;
use super::turns::Turns;
use crate::clock;
use crate::disk::Disk;
use crate::health::{HealthBook, LossEnds};
use crate::prepare::{Hands, SharedShim};

/// Longest wait of a discovery for the one in progress, which may wait for a card that hangs.
const DISCOVERY_WAIT: Duration = Duration::from_secs(20);

/// The fixed parts of an open node.
pub(crate) struct Site {
    pub(super) parts: NodeParts,
    /// State directory.
    pub(super) state: PathBuf,
    pub(super) grants: PathBuf,
    pub(super) cdi: CdiDir,
    /// The disk for files of claims.
    files: Disk,
    /// The shim of containers.
    shim: SharedShim,
    /// What was observed of the cards.
    pub(super) health: HealthBook,
    loss: LossEnds,
    /// The next operation, by claim and by card.
    pub(super) turns: Turns,
    /// Files of claims that monitor, which the journal does not know.
    pub(super) monitors: Mutex<BTreeMap<ClaimUid, ClaimSpec>>,
    /// The latest discovery.
    seen: Mutex<Option<Discovery>>,
    /// Locked while every card is asked.
    discovers: Mutex<()>,
}

/// What was found of the cards.
struct Discovery {
    /// The backend's generation before; `None`: it does not tell whether the discovery still holds, or a card has changed.
    generation: Option<u64>,
    at: Instant,
    cards: Inventory,
}

// === impl Site ===

impl Site {
    pub(super) fn new(parts: NodeParts, state: PathBuf, grants: PathBuf, cdi: CdiDir) -> Self {
        let health = HealthBook::of(&state);
        let files = parts.disk.clone();
        let shim = SharedShim::of(&state, parts.shim);
        Self {
            parts,
            state,
            grants,
            cdi,
            files,
            shim,
            health,
            loss: LossEnds::ByAnswer,
            turns: Turns::default(),
            monitors: Mutex::default(),
            seen: Mutex::new(None),
            discovers: Mutex::new(()),
        }
    }

    /// The same for a process that recovers the node before containers start: files of claims need not outlast a power failure,
    /// since the journal does and recovery compares each file with it. It follows every card, so a loss ends by its proof.
    pub(super) fn for_service(mut self) -> Self {
        self.files = self.files.until_power_fails();
        self.loss = LossEnds::ByProof;
        if let Err(error) = self.parts.selinux.label_tree(&self.grants) {
            tracing::error!("SELinux is enforcing; shares with limits are refused: {error}");
        }
        self.hold_shim();
        self
    }

    /// Keeps the shim's file open from now on, for claims to share it.
    pub(super) fn hold_shim(&self) {
        if let Err(error) = self.shim.hold(&self.files, &self.parts.selinux) {
            tracing::warn!("the shim of containers is not in place yet: {error}");
        }
    }

    /// Everything with side effects that plans reach.
    pub(crate) fn hands(&self) -> Hands<'_> {
        Hands {
            disk: &self.files,
            backend: self.parts.backend.as_ref(),
            grants: self.grants.clone(),
            cdi: &self.cdi,
            shim: &self.shim,
            selinux: &self.parts.selinux,
            host: &self.parts.host,
        }
    }

    pub(super) fn grants_dir(&self) -> &Path {
        &self.grants
    }

    /// The cards as they are now, with what was observed of them. The hardware is asked only if it may have changed.
    pub(super) fn look(&self) -> Result<Inventory, BackendError> {
        let cards = match self.current() {
            Some(cards) => cards,
            None => self.discover()?,
        };
        Ok(self.with_health(cards))
    }

    /// These cards as they are now, since another program may have changed them without a sign; the others as the latest discovery
    /// found them, so that one that hangs delays no claim elsewhere.
    pub(super) fn look_at(&self, asked: &BTreeSet<CardUuid>) -> Result<Inventory, BackendError> {
        if asked.is_empty() {
            return self.look();
        }
        let cards = match self.known_with(asked) {
            Some(cards) => cards,
            None => self.discover()?,
        };
        Ok(self.with_health(cards))
    }

    fn with_health(&self, mut cards: Inventory) -> Inventory {
        self.health.hold_against(&mut cards, self.parts.backend.driver_load(), self.loss);
        cards
    }

    /// The latest discovery, if it still holds.
    fn current(&self) -> Option<Inventory> {
        let (generation, now) = (self.parts.backend.generation()?, clock::now());
        let holds = |seen: &&Discovery| {
            seen.generation == Some(generation) && now.duration_since(seen.at) < DISCOVERY_AGE_MAX
        };
        self.seen.lock().as_ref().filter(holds).map(|seen| seen.cards.clone())
    }

    /// Asks every card. One caller at a time does: behind a card that hangs, the others end with an error.
    fn discover(&self) -> Result<Inventory, BackendError> {
        let waited = DISCOVERY_WAIT.as_secs();
        let busy = || BackendError::Busy {
            what: format!("discover cards: another discovery has not ended within {waited} s"),
        };
        let _turn = self.discovers.try_lock_for(DISCOVERY_WAIT).ok_or_else(busy)?;
        let backend = self.parts.backend.as_ref();
        let (generation, at) = (backend.generation(), clock::now());
        let cards = backend.discover()?;
        *self.seen.lock() = Some(Discovery { generation, at, cards: cards.clone() });
        Ok(cards)
    }

    /// The latest discovery with these cards asked anew; `None`: there is none, or it takes another one to say what became of a card.
    fn known_with(&self, asked: &BTreeSet<CardUuid>) -> Option<Inventory> {
        let (mut cards, at) = self.seen.lock().as_ref().map(|seen| (seen.cards.clone(), seen.at))?;
        let mut has_changed = false;
        for uuid in asked {
            let known = cards.cards.iter_mut().find(|card| card.uuid == *uuid);
            match (known, self.parts.backend.discover_card(uuid)) {
                (Some(known), Ok(card)) => {
                    // Where several vendors are on one node, the index is not the vendor's.
                    let card = Card { index: known.index, ..card };
                    has_changed |= *known != card;
                    *known = card;
                }
                (None, Err(BackendError::UnknownCard(_))) => {}
                (_, Ok(_) | Err(_)) => return None,
            }
        }
        if has_changed && let Some(seen) = self.seen.lock().as_mut().filter(|seen| seen.at == at) {
            seen.generation = None;
        }
        Some(cards)
    }

    /// The cards as the holder of a plan finds them: an unhealthy card refuses new claims, not those on it. A partition that
    /// is gone would be made again, so there its claim is as new as any. Each exception is noted.
    pub(super) fn as_held(&self, mut cards: Inventory, plan: &Plan, notes: &mut Vec<String>) -> Inventory {
        for card in &mut cards.cards {
            let on_it = || plan.grants.iter().filter(|grant| grant.card == card.uuid);
            let Some(why) = on_it().find_map(|grant| card.why_unwell(&grant.part)).map(str::to_owned) else {
                continue;
            };
            let mut held = on_it().filter_map(Grant::partition).peekable();
            // If they cannot be listed, none is known to exist.
            let live = match held.peek() {
                Some(_) => self.parts.backend.partitions_on(&card.uuid).unwrap_or_default(),
                None => Vec::new(),
            };
            if !held.all(|at| live.iter().any(|live| live.at == at)) {
                continue;
            }
            notes.push(format!(
                "claim {}: card {} is not healthy: {why}; the claim keeps what it has there",
                plan.name, card.uuid
            ));
            (card.health, card.unwell) = (Health::Healthy, Vec::new());
        }
        cards
    }

    /// Partitions of these places that do not exist now. No other card is asked: one that hangs delays nothing here.
    pub(super) fn vanished(
        &self,
        used: &BTreeSet<PartitionAt>,
    ) -> Result<BTreeSet<PartitionAt>, BackendError> {
        let backend = &self.parts.backend;
        let cards: BTreeSet<&CardUuid> = used.iter().map(|at| &at.card).collect();
        let mut there = BTreeSet::new();
        for card in cards {
            match backend.partitions_on(card) {
                Ok(live) => there.extend(live.into_iter().map(|live| live.at)),
                Err(BackendError::UnknownCard(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(used.difference(&there).cloned().collect())
    }
}
