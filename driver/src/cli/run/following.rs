//! Follows the events of a run's card while the command runs.

use std::sync::Arc;

use aliquot_core::grant::Grant;
use aliquot_core::health::{Cause, NoteOutcome, Subject};
use aliquot_core::id::CardUuid;
use aliquot_core::partition::Part;

use crate::checkpoint::PartitionProgress;
use crate::clock;
use crate::hardware::vendors::without_signals;
use crate::health::HealthBook;
use crate::node::Node;
use crate::run::watch::EventSource;

use super::super::failure::Failure;
use super::super::output::Terminal;
use super::home::Home;
use crate::error_text::chain;

/// Follows the card of a grant from now on; `None`: it reports no events, with one note for each load of its driver.
pub(super) fn followed(
    home: &Home,
    node: &Node,
    grant: &Grant,
    visible: &CardUuid,
    terminal: &mut Terminal<'_>,
) -> Result<Option<EventSource>, Failure> {
    let (card, book, era) = (grant.card.clone(), HealthBook::of(&home.state), node.era());
    match without_signals(|| home.cards.follow(grant, visible)) {
        Ok(events) => {
            // A card of a node description has no driver and was not queried.
            if let Some(Err(error)) = era.driver.as_ref().map(|_| book.answers(&card)) {
                terminal.note(format_args!(
                    "warning: card {card} answers again after a loss, but its health records cannot be cleared, so that new events do \
                     not count: {}",
                    chain(&error)
                ))?;
            }
            Ok(Some(EventSource {
                card,
                events,
                book,
                era,
                replaced: Arc::default(),
                recorded: Arc::default(),
            }))
        }
        Err(why) => {
            let of = Subject { card: card.clone(), part: Part::Card };
            // If the note cannot be recorded, it is repeated each time.
            if !matches!(book.note(&era, of, Cause::Silent, clock::unix()), Ok(NoteOutcome::Known)) {
                terminal.note(format_args!(
                    "note: card {card} does not report its errors ({why}): what happens to it is recorded only once it is lost"
                ))?;
            }
            Ok(None)
        }
    }
}

/// The UUID under which the tenant sees a part without limits.
pub(super) fn visible_of(node: &Node, grant: &Grant) -> CardUuid {
    let at = grant.partition();
    let made = node.partitions().find_map(|(place, making)| match making {
        PartitionProgress::Made(handle) if Some(place) == at.as_ref() => Some(handle.uuid.clone()),
        PartitionProgress::Made(_) | PartitionProgress::Planned => None,
    });
    made.unwrap_or_else(|| grant.card.clone())
}
