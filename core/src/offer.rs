//! What the scheduler may pick: cards and an admin's policy in, `ResourceSlice`s and `DeviceClass`es out.
//!
//! ```text
//!  Inventory ─┐                    per card                              per node
//!  policy ────┼▶ choose: layout ─▶ device: attributes, capacity, ─▶ slices: pools, chunks, names
//!  server ────┘                    counters, taints, in the order of [`order`]
//! ```
//!
//! - [`policy`], [`text`]: what the admin wants, and how the file reads;
//! - `busy`: a card that claims hold keeps its layout until they are gone;
//! - [`amounts`]: amounts of requests that cannot be meant;
//! - [`server`]: what this Kubernetes keeps of what is written;
//! - [`order`]: the order of placements, which is the packing policy;
//! - [`mod@classes`]: the `DeviceClass`es of what is offered;
//! - [`validate`]: every limit of the API, also for slices that others have made.
//!
//! Invariants: the result depends on what the cards are, never on the order in which they were found; one bad card,
//! attribute or rule never loses another; all that is returned passes [`validate::violations`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

pub mod amounts;
mod attributes;
mod busy;
mod card_devices;
mod choose;
pub mod classes;
mod copies;
mod counters;
mod device;
pub mod legacy;
mod names;
mod offered;
pub mod order;
pub mod policy;
mod problem;
pub mod server;
mod slices;
mod tables;
pub mod text;
pub mod validate;

pub use busy::HeldDevice;
pub use choose::LayoutReason;
pub use classes::classes;
pub use device::{CAPACITY_CORES, CAPACITY_MEMORY, TAINT_LAYOUT, TAINT_OCCUPIED, TAINT_UNHEALTHY};
pub use names::{is_pool_of, pool_on};
pub use offered::{CardOutcome, DRIVER, OfferedPart, Offers};
pub use policy::{Layout, LayoutKind, LayoutPolicy, ShareTerms};
pub use problem::OfferProblem;
pub use server::{CounterNodes, CounterStance, ServerVersion, Support};

use crate::card::{Card, Health, Inventory, NotedFault, Supply, Unwell};
use crate::dra::Sharing;
use crate::id::{CardUuid, NodeName};
use crate::units::Bytes;

use card_devices::{CardDevices, CardPools, DeviceGroup};
use choose::{AutoCounters, LayoutChoice, ResolvedLayout};
use counters::CardCounters;
use device::{CardContext, Maker, PartDevice};
use names::{PoolKey, PoolKind, PoolNaming, pool_name};
use slices::{PoolDraft, Rank};
use tables::Tables;

/// What is held of each card now: the fullest cards are offered first, and cards that are held keep their layout. Cards
/// that are absent count as free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageHint {
    /// Memory held, by card.
    pub held: BTreeMap<CardUuid, Bytes>,
    /// Devices held, by card.
    pub devices: BTreeMap<CardUuid, Vec<HeldDevice>>,
}

/// Makes the offers of a node. Pure: equal cards, policy, server and usage give equal slices, in whatever order the
/// cards were found.
#[must_use]
pub fn offers(
    node: &NodeName,
    inventory: &Inventory,
    policy: &LayoutPolicy,
    server: ServerVersion,
    usage: &UsageHint,
) -> Offers {
    let mut offers = Offers {
        slices: Vec::new(),
        parts: BTreeMap::new(),
        cards: Vec::new(),
        problems: policy_problems(policy, inventory),
        other_parts: BTreeMap::new(),
        counter_stance: None,
    };
    let tables = Tables::of(inventory);
    let mut pools = BTreeMap::new();
    for card in in_order(inventory, usage, &mut offers.problems) {
        let (layout, rule) = policy.layout_of(card);
        let choice = with_health(choose::choose(card, layout, &tables, server), card, server);
        let asked = PolicyLayout { layout: layout.kind(), rule: rule.map(|number| number + 1) };
        let held = usage.devices.get(&card.uuid).map_or(&[] as &[HeldDevice], Vec::as_slice);
        let naming = busy::naming_of(held, node);
        let around = Surroundings { node, card, tables: &tables, server, evict: &policy.evict, naming };
        let made = choice.chosen.as_ref().map(|chosen| make(chosen, &around));
        let other = other_of_auto(layout, &around);
        if held.is_empty() {
            for other in other.iter().map(|(_, made)| made) {
                offers.other_parts.extend(other.parts(node).chain(other.old_parts(node)));
            }
            offers.other_parts.extend(made.iter().flat_map(|made| made.old_parts(node)));
        }
        offers.counter_stance =
            offers.counter_stance.max(counter_stance(layout, made.as_ref(), card, server));
        let (choice, made) = keep_busy(choice, made, other, asked, held, &around);
        offers.cards.push(publish(node, card, asked, choice, made, &mut pools));
    }
    offers.cards.sort_by_key(|outcome| outcome.index);
    if pools.is_empty() {
        // A node without anything still says so, with one empty slice.
        pools.insert(PoolKey::nothing(), PoolDraft::default());
    }
    for (key, draft) in pools {
        let (slices, parts) = draft.finish(node, &key);
        offers.slices.extend(slices);
        offers.parts.extend(parts);
    }
    offers
}

/// What a card is published on.
struct Surroundings<'a> {
    node: &'a NodeName,
    card: &'a Card,
    tables: &'a Tables<'a>,
    server: ServerVersion,
    evict: &'a BTreeSet<NotedFault>,
    naming: PoolNaming,
}

/// What `auto` has for a card when it decides the other way about counters.
fn other_of_auto(layout: &Layout, around: &Surroundings<'_>) -> Option<(LayoutChoice, CardDevices)> {
    let Surroundings { card, tables, server, .. } = *around;
    let Layout::Auto(terms) = layout else { return None };
    let other = match choose::counters_of(card, server) {
        AutoCounters::Used(_) if server.counters_are_cheap() => return None,
        AutoCounters::Used(_) => choose::choose(card, layout, tables, server.among(CounterNodes::Unknown)),
        AutoCounters::Withheld(_) => choose::choose(card, &Layout::Dynamic(terms.clone()), tables, server),
        AutoCounters::Impossible => return None,
    };
    let made = make(other.chosen.as_ref()?, around);
    Some((other, made))
}

/// Whether a card makes its node one of those with counters.
fn counter_stance(
    layout: &Layout,
    made: Option<&CardDevices>,
    card: &Card,
    server: ServerVersion,
) -> Option<CounterStance> {
    let withheld = matches!(layout, Layout::Auto(_))
        && matches!(choose::counters_of(card, server), AutoCounters::Withheld(_));
    let published = made.is_some_and(CardDevices::is_dynamic);
    match (withheld, published) {
        (true, _) => Some(CounterStance::Withheld),
        (false, true) => Some(CounterStance::Published),
        (false, false) => None,
    }
}

/// Leaves a card that is held in the layout that it has, where the wanted one lacks what is held. The number of nodes,
/// which no admin of this node decides, closes no card: it stays as `auto` had it until it is idle.
fn keep_busy(
    mut choice: LayoutChoice,
    made: Option<CardDevices>,
    other: Option<(LayoutChoice, CardDevices)>,
    asked: PolicyLayout,
    held: &[HeldDevice],
    around: &Surroundings<'_>,
) -> (LayoutChoice, Option<CardDevices>) {
    let Surroundings { node, card, tables, server, .. } = *around;
    let closable = server.taints.is_kept() || (card.health == Health::Healthy && card.unwell.is_empty());
    if !closable || held.is_empty() || made.as_ref().is_some_and(|made| busy::has_all(made, held, node)) {
        return (choice, made);
    }
    if let Some((other, made)) = other.filter(|(_, made)| busy::has_all(made, held, node)) {
        let other = with_health(other, card, server);
        return (LayoutChoice { reason: LayoutReason::Busy, ..other }, Some(made));
    }
    let now = busy::layout_of(held, card, tables, node);
    let kept = now.map(|now| make(&now, around));
    let Some(kept) = kept.and_then(|kept| busy::closed(kept, held, node)) else { return (choice, made) };
    let wanted = choice.chosen.as_ref().map_or(asked.layout, ResolvedLayout::kind);
    choice.problems.push(OfferProblem::LayoutWaits { wanted, given: kept.layout });
    choice.reason = LayoutReason::Busy;
    (choice, Some(kept))
}

/// Cards in the order in which they should fill: the fullest first, then by what they are, never by index.
fn in_order<'a>(
    inventory: &'a Inventory,
    usage: &UsageHint,
    problems: &mut Vec<OfferProblem>,
) -> Vec<&'a Card> {
    let held = |card: &Card| usage.held.get(&card.uuid).copied().unwrap_or_default();
    let mut cards: Vec<&Card> = inventory.cards.iter().collect();
    cards.sort_by_key(|card| (Reverse(held(card)), &card.pci, &card.uuid, card.index));
    let mut seen = BTreeSet::new();
    cards.retain(|card| {
        let fresh = seen.insert(&card.uuid);
        if !fresh {
            problems.push(OfferProblem::DuplicateUuid { uuid: card.uuid.clone(), index: card.index });
        }
        fresh
    });
    cards
}

/// Rules that are of no use on this node.
fn policy_problems(policy: &LayoutPolicy, inventory: &Inventory) -> Vec<OfferProblem> {
    let mut problems = Vec::new();
    for (number, rule) in policy.rules.iter().enumerate() {
        let mut deciders =
            inventory.cards.iter().filter(|c| rule.selector.matches(c)).map(|c| policy.layout_of(c).1);
        let selector = rule.selector.to_string();
        match deciders.next() {
            None => problems.push(OfferProblem::RuleMatchesNothing { rule: number + 1, selector }),
            Some(Some(by)) if by != number && deciders.all(|d| d != Some(number)) => {
                problems.push(OfferProblem::RuleShadowed { rule: number + 1, selector, by: by + 1 });
            }
            Some(_) => {}
        }
    }
    problems
}

/// What the policy says about a card.
#[derive(Clone, Copy)]
struct PolicyLayout {
    layout: LayoutKind,
    /// From 1.
    rule: Option<usize>,
}

/// Puts what was made into its pool and writes down what came of it.
fn publish(
    node: &NodeName,
    card: &Card,
    asked: PolicyLayout,
    choice: LayoutChoice,
    made: Option<CardDevices>,
    pools: &mut BTreeMap<PoolKey, PoolDraft>,
) -> CardOutcome {
    let mut outcome = CardOutcome {
        card: card.uuid.clone(),
        index: card.index,
        asked: asked.layout,
        rule: asked.rule,
        layout: None,
        reason: choice.reason,
        pool: None,
        devices: 0,
        problems: choice.problems,
    };
    let Some(made) = made else { return outcome };
    outcome.layout = Some(made.layout);
    outcome.pool = made.groups.first().map(|group| pool_name(node, &group.pool));
    outcome.problems.extend(made.problems);
    if let (Some(set), Some(group)) = (made.set, made.groups.first()) {
        pools.entry(group.pool.clone()).or_default().add_set(set);
    }
    for DeviceGroup { rank, pool, devices } in made.groups {
        outcome.devices += devices.len();
        for taken in pools.entry(pool).or_default().add(rank, devices) {
            outcome.devices -= 1;
            let part = taken.offered.part.to_string();
            let because = "another device of this node has its name";
            outcome.problems.push(OfferProblem::PartLeftOut { part, because });
        }
    }
    outcome
}

/// A card that does not work keeps its devices, tainted; where taints are lost it cannot.
fn with_health(mut choice: LayoutChoice, card: &Card, server: ServerVersion) -> LayoutChoice {
    if let Health::Unhealthy(why) = &card.health {
        let why = why.clone();
        if server.taints.is_kept() {
            choice.problems.push(OfferProblem::Unhealthy { why });
        } else {
            choice.chosen = None;
            choice.reason = LayoutReason::Withheld;
            choice.problems.push(OfferProblem::UnhealthyWithheld { why });
        }
    }
    choice
}

fn make(chosen: &ResolvedLayout, around: &Surroundings<'_>) -> CardDevices {
    let Surroundings { node, card, tables, server, evict, naming } = *around;
    let facts = tables.facts(card).map(|(_, facts)| facts);
    let counters = match (chosen, facts) {
        (ResolvedLayout::Dynamic(_), Some(facts)) => Some(CardCounters::of(card, facts)),
        _ => None,
    };
    let set = counters.as_ref().map(CardCounters::set);
    let layout = chosen.kind();
    let setting = CardContext { layout, terms: chosen.terms(), shares: server.shares, counters, evict };
    let mut maker = Maker::new(card, setting, node, server);
    let ranked = match chosen {
        ResolvedLayout::Whole => vec![(Rank::WholeCard, vec![maker.card(Sharing::Exclusive)])],
        ResolvedLayout::Shared(_) => vec![card_itself(&mut maker)],
        ResolvedLayout::Slots(slots) => vec![(Rank::Slot, maker.slots(slots))],
        ResolvedLayout::Split(places, _) => vec![(Rank::Partition, maker.partitions(places))],
        ResolvedLayout::Dynamic(_) => {
            let places = facts.map_or(&[] as &[order::TemplatePlacement], |facts| &facts.order);
            let itself = (card.supply == Supply::All).then(|| card_itself(&mut maker));
            [(Rank::Partition, maker.partitions(places))].into_iter().chain(itself).collect()
        }
    };
    let in_pools = |(rank, devices): (Rank, Vec<PartDevice>)| {
        let kind = match (rank, set.is_some()) {
            (_, true) => PoolKind::Dynamic,
            (Rank::Slot, false) => PoolKind::Slots,
            (Rank::Partition, false) => PoolKind::Split,
            (Rank::SharedCard, false) => PoolKind::Shared,
            (Rank::WholeCard, false) => PoolKind::Whole,
        };
        CardPools { naming, kind, model: &card.model }.group(rank, devices)
    };
    let mut groups: Vec<DeviceGroup> = ranked.into_iter().flat_map(in_pools).collect();
    let mut problems = maker.problems;
    problems.extend(card.unwell.iter().map(|Unwell { part, why, .. }| OfferProblem::PartUnhealthy {
        part: part.to_string(),
        why: why.clone(),
    }));
    if !server.taints.is_kept() {
        // Nothing else would keep claims off it.
        let well = |built: &PartDevice| card.why_unwell(&built.offered.part).is_none();
        groups.iter_mut().for_each(|group| group.devices.retain(well));
        groups.retain(|group| !group.devices.is_empty());
    }
    CardDevices { layout, groups, set, problems }
}

/// The card as a device, shared if limits can be held on it.
fn card_itself(maker: &mut Maker<'_>) -> (Rank, Vec<PartDevice>) {
    match maker.sharing_of_card() {
        Sharing::Shareable => (Rank::SharedCard, vec![maker.card(Sharing::Shareable)]),
        Sharing::Exclusive => (Rank::WholeCard, vec![maker.card(Sharing::Exclusive)]),
    }
}

#[cfg(test)]
mod tests;
