//! Events of the node: a card that takes no new claims, a layout that waits, slices that are refused; and the end of each.
//!
//! ```text
//!  views ────────┐
//!                ├─▶ conditions that hold now ─ those before ─▶ begun: Warning, ended: Normal
//!  publication ──┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::card::Card;
use aliquot_core::disposition::Disposition;
use aliquot_core::id::CardUuid;
use aliquot_core::offer::{CardOutcome, CounterNodes, LayoutReason, OfferProblem};
use aliquot_core::partition::Part;
use tokio::sync::watch;

use super::layouts::PolicyOutcome;
use super::store::NodeView;
use crate::ports::{AgentEvent, EventObject, EventSeverity, EventSink, Publication};
use crate::printable;

/// Longest text of a condition, in characters.
const TEXT_MAX: usize = 600;

/// What can be wrong with a node or a card of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ConditionKind {
    Unhealthy,
    Gone,
    LayoutWaits,
    CountersWithheld,
    NotPublished,
    PolicyRefused,
}

/// Something that is wrong now: the object in words, and why.
type CardCondition = (ConditionKind, String, String);

/// Publishes Events of the node until its views end.
pub(super) async fn run(
    (mut views, mut publication): (watch::Receiver<Option<Arc<NodeView>>>, watch::Receiver<Publication>),
    policy: PolicyOutcome,
    events: Arc<dyn EventSink>,
) {
    let (mut cards, refused) = (BTreeSet::new(), policy.refused.map(policy_refused));
    // An earlier agent has said so.
    let before = policy.refused_before.filter(|_| refused.is_none());
    let mut known: BTreeSet<CardCondition> = before.map(policy_refused).into_iter().collect();
    loop {
        let view = views.borrow_and_update().clone();
        let observed = publication.borrow_and_update().clone();
        if let Some(view) = view {
            let mut now = conditions(&view, &observed, &mut cards);
            now.extend(refused.clone());
            tell(&known, &now, events.as_ref());
            known = now;
        }
        tokio::select! {
            changed = views.changed() => if changed.is_err() { return },
            Ok(()) = publication.changed() => {}
        }
    }
}

fn tell(before: &BTreeSet<CardCondition>, now: &BTreeSet<CardCondition>, events: &dyn EventSink) {
    let publish = |severity, reason, message: String| {
        let message = printable::line_of(&message, TEXT_MAX);
        events.publish(AgentEvent { about: EventObject::Node, severity, reason, message });
    };
    for (kind, what, why) in now.difference(before) {
        publish(EventSeverity::Warning, kind.begins(), format!("{what}: {why}; {}", kind.remedy()));
    }
    for (kind, what, why) in before.difference(now) {
        // Another cause of the same kind has told that it goes on.
        if !now.iter().any(|(other, of, _)| (other, of) == (kind, what)) {
            publish(EventSeverity::Normal, kind.ends(), format!("{what}: over: {why}"));
        }
    }
}

/// What holds now. `cards` are those that were ever seen.
fn conditions(
    view: &NodeView,
    publication: &Publication,
    cards: &mut BTreeSet<CardUuid>,
) -> BTreeSet<CardCondition> {
    let mut parts: BTreeMap<&CardUuid, BTreeSet<&Part>> = BTreeMap::new();
    for part in view.offers.parts.values() {
        parts.entry(&part.card).or_default().insert(&part.part);
    }
    let mut now = BTreeSet::new();
    for card in &view.inventory.cards {
        let of = parts.get(&card.uuid).into_iter().flatten().copied();
        now.extend(of.chain([&Part::Card]).filter_map(|part| unhealthy(card, part)));
        cards.insert(card.uuid.clone());
    }
    for card in cards.iter().filter(|uuid| view.inventory.card(uuid).is_none()) {
        now.insert((ConditionKind::Gone, format!("card {card}"), "it does not answer any more".to_owned()));
    }
    now.extend(view.offers.cards.iter().flat_map(layout_waits));
    now.extend(view.offers.cards.iter().filter_map(counters_withheld));
    if let Some(error) = publication.error.as_ref().filter(|error| error.disposition != Disposition::Retry) {
        now.insert((ConditionKind::NotPublished, "slices of this node".to_owned(), error.message.clone()));
    }
    now
}

fn policy_refused(why: String) -> CardCondition {
    (ConditionKind::PolicyRefused, "layout policy".to_owned(), why)
}

fn unhealthy(card: &Card, part: &Part) -> Option<CardCondition> {
    let why = card.why_unwell(part)?.to_string();
    Some((ConditionKind::Unhealthy, format!("card {} ({})", card.uuid, card.product_name), why))
}

fn layout_waits(outcome: &CardOutcome) -> impl Iterator<Item = CardCondition> {
    let waits = |problem: &&OfferProblem| matches!(problem, OfferProblem::LayoutWaits { .. });
    let condition = |problem: &OfferProblem| {
        (ConditionKind::LayoutWaits, format!("card {}", outcome.card), problem.to_string())
    };
    outcome.problems.iter().filter(waits).map(condition).collect::<Vec<_>>().into_iter()
}

/// One condition for all cards, in words that do not change with every count.
fn counters_withheld(outcome: &CardOutcome) -> Option<CardCondition> {
    let withheld = matches!(outcome.reason, LayoutReason::ManyCounterNodes(_));
    let why = format!(
        "more than {} nodes have counters, which slow the scheduler down before Kubernetes 1.37; idle cards are not cut \
         on demand",
        CounterNodes::FEW_MAX
    );
    withheld.then(|| (ConditionKind::CountersWithheld, "layout auto".to_owned(), why))
}

// === impl ConditionKind ===

impl ConditionKind {
    const fn begins(self) -> &'static str {
        match self {
            Self::Unhealthy => "CardUnhealthy",
            Self::Gone => "CardGone",
            Self::LayoutWaits => "LayoutWaits",
            Self::CountersWithheld => "CountersWithheld",
            Self::NotPublished => "SlicesNotPublished",
            Self::PolicyRefused => "PolicyRefused",
        }
    }

    const fn ends(self) -> &'static str {
        match self {
            Self::Unhealthy => "CardRecovered",
            Self::Gone => "CardReturned",
            Self::LayoutWaits => "LayoutChanged",
            Self::CountersWithheld => "CountersPublished",
            Self::NotPublished => "SlicesPublished",
            Self::PolicyRefused => "PolicyAccepted",
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::Unhealthy => {
                "it takes no new claims, claims on it keep it; `aliquot health` says what is known, and clears it"
            }
            Self::Gone => "see what the kernel's log says of it; claims on it keep their devices",
            Self::LayoutWaits => "drain its Pods to change it now",
            Self::CountersWithheld => "a policy with layout dynamic cuts them all the same",
            Self::NotPublished => "the agent's log has the details",
            Self::PolicyRefused => "`aliquot policy --check FILE` checks a file before it is installed",
        }
    }
}
