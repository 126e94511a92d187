//! Watches of a node's cards, with or without claims, and the proof that a lost card works again.
//!
//! ```text
//!                  registered under its UUID                    the driver reports a loss, which is noted
//!   not watched ────────────────────────────────▶ watched ──────────────────────────────────────────▶ not watched
//!                     │ it was lost: notes up to the loss are cleared, the loss stays
//!                     ▼
//!                 on trial ── its partitions are as journalled, and TRIAL is over ──▶ the loss is cleared
//! ```
//!
//! A driver reports a loss until the card was reset, so a lost card that answers was reset. A card that is lost again during
//! its trial starts over. An error that it reports meanwhile is noted as any other, and keeps the card unhealthy after its
//! trial. Another load of the driver makes every watch anew: it starts a new era of notes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aliquot_core::health::{Era, Notes};
use aliquot_core::id::CardUuid;
use tokio::sync::Notify;

use super::store::{NodeStore, NodeView};
use crate::clock;
use crate::error_text::chain;
use crate::hardware::vendors::without_signals;
use crate::health::{HealthBook, era};
use crate::run::cards::{Cards, Events};
use crate::run::watch::{self, EventSource};

/// A card that was lost is watched for so long before it takes claims again, in service: two looks at the node's state.
const TRIAL: Duration = Duration::from_secs(10);

/// Watches of the cards of a node, and of parts that report for themselves.
pub(super) struct CardWatches {
    cards: Arc<dyn Cards + Send + Sync>,
    book: HealthBook,
    era: Era,
    watches: BTreeMap<CardUuid, Watch>,
    /// Notified after a watch has recorded something new.
    pub(super) recorded: Arc<Notify>,
    /// How long a card that was lost is on trial.
    pub(super) trial: Duration,
    /// What the log says of cards without a watch.
    said: BTreeMap<CardUuid, String>,
}

/// A watch of a card or part.
struct Watch {
    thread: JoinHandle<()>,
    replaced: Arc<AtomicBool>,
    /// Since when the card has been on trial; `None`: it was not lost.
    trial: Option<Instant>,
}

// === impl CardWatches ===

impl CardWatches {
    pub(super) fn new(cards: Arc<dyn Cards + Send + Sync>, state: &Path) -> Self {
        let (book, era) = (HealthBook::of(state), era(cards.driver_load()));
        let (watches, said, recorded) = (BTreeMap::new(), BTreeMap::new(), Arc::default());
        Self { cards, book, era, watches, recorded, trial: TRIAL, said }
    }

    /// Watches every card that answers, and ends the loss of those that are proved to work; returns what was noted of cards.
    pub(super) fn follow(&mut self, view: &NodeView, node: &dyn NodeStore) -> Notes {
        self.follow_driver();
        // Unreadable notes keep every card from new claims until a person clears them.
        let notes = self.book.notes(&self.era).unwrap_or_default();
        for card in &view.inventory.cards {
            if self.is_watched(&card.uuid) {
                self.try_card(&card.uuid, &notes, node);
                continue;
            }
            self.watches.remove(&card.uuid);
            let cards = &self.cards;
            let events = without_signals(|| cards.follow_card(&card.uuid, &view.inventory));
            self.watch(&card.uuid, &card.uuid, events);
            self.try_card(&card.uuid, &notes, node);
        }
        notes
    }

    /// Watches a part that reports for itself; `visible` is the part's own UUID.
    pub(super) fn follow_part(
        &mut self,
        card: &CardUuid,
        visible: &CardUuid,
        events: impl FnOnce() -> Result<Box<dyn Events>, String>,
    ) {
        if !self.is_watched(visible) {
            let events = without_signals(events);
            self.watch(card, visible, events);
        }
    }

    /// Starts over if the driver was loaded anew.
    fn follow_driver(&mut self) {
        let now = era(self.cards.driver_load());
        if now == self.era {
            return;
        }
        tracing::info!(
            "the driver was loaded anew; cards are watched anew, and earlier errors count no more"
        );
        for watch in self.watches.values() {
            watch.replaced.store(true, Ordering::Release);
        }
        self.watches.clear();
        self.said.clear();
        self.era = now;
    }

    fn is_watched(&self, card: &CardUuid) -> bool {
        self.watches.get(card).is_some_and(|watch| !watch.thread.is_finished())
    }

    /// Starts a watch after its driver answered.
    fn watch(&mut self, card: &CardUuid, visible: &CardUuid, events: Result<Box<dyn Events>, String>) {
        let replaced = Arc::new(AtomicBool::new(false));
        let started = events.and_then(|events| {
            // The watch is registered: what the card reports from now on is noted behind this.
            if card == visible {
                self.book.answers_again(card).map_err(|error| chain(&error))?;
            }
            let (book, era) = (self.book.clone(), self.era.clone());
            let (replaced, recorded) = (Arc::clone(&replaced), Arc::clone(&self.recorded));
            let followed = EventSource { card: card.clone(), events, book, era, replaced, recorded };
            watch::start(followed).map_err(|error| error.to_string())
        });
        match started {
            Ok(thread) => {
                self.said.remove(visible);
                self.watches.insert(visible.clone(), Watch { thread, replaced, trial: None });
            }
            Err(why) if self.said.get(visible) != Some(&why) => {
                tracing::warn!(card = %visible, "the card's events are not received: {why}");
                self.said.insert(visible.clone(), why);
            }
            Err(_) => {}
        }
    }

    /// Ends the loss of a card that is proved to work.
    fn try_card(&mut self, card: &CardUuid, notes: &Notes, node: &dyn NodeStore) {
        let Some(watch) = self.watches.get_mut(card) else { return };
        if !notes.was_lost(card) {
            watch.trial = None;
            return;
        }
        let now = clock::now();
        if now.duration_since(*watch.trial.get_or_insert(now)) < self.trial {
            return;
        }
        match node.missing_partitions(card) {
            Ok(missing) if missing.is_empty() => {}
            Ok(missing) => {
                let partitions: Vec<String> = missing.iter().map(ToString::to_string).collect();
                tracing::debug!(card = %card, "answers again without {}", partitions.join(", "));
                return;
            }
            Err(error) => {
                tracing::debug!(card = %card, "its partitions cannot be listed: {}", chain(&error));
                return;
            }
        }
        match self.book.proven(card) {
            Ok(()) => tracing::info!(
                card = %card,
                "the loss is over: it answers under its UUID, has its partitions and was watched for {} s",
                self.trial.as_secs()
            ),
            Err(error) => tracing::error!(card = %card, "its loss cannot be cleared: {}", chain(&error)),
        }
    }
}
