//! Which layout a card gets: the policy's, as far as card and server can carry it.
//!
//! ```text
//!  auto ─┬ templates, counters affordable ─▶ dynamic      dynamic ─ no templates, or counters lost ─▶ shared
//!        ├ instances on the card already  ─▶ split        shared  ─ nothing enforces, or shares lost ─▶ whole
//!        ├ shim can hold limits           ─▶ shared       split, slots ─ impossible ─▶ not offered, and says so
//!        └ else                           ─▶ whole
//!
//!  affordable: from 1.37 on; from 1.36.2 on while few nodes of the cluster have counters
//! ```
//!
//! A layout that *hands out less* than was asked for is a fallback; one that would hand out something else than the
//! admin drew up (another recipe, the whole card instead of slots) is not: such a card is withheld.

use std::fmt;

use super::counters;
use super::order::{self, TemplatePlacement};
use super::policy::{Layout, LayoutKind, ShareTerms, Slot, SplitPiece, SplitPlace, SplitRecipe};
use super::problem::OfferProblem;
use super::server::{CounterNodes, ServerVersion};
use super::tables::Tables;
use crate::card::{Card, Partitioning, Supply};
use crate::partition::{CounterVector, Part, PartitionTable, ShareSupport};
use crate::units::Bytes;

/// Steps of the search for a split, after which it counts as impossible. Real recipes need fewer than 1,000.
const SPLIT_STEPS_MAX: u32 = 200_000;

/// What a card is published as, with everything decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ResolvedLayout {
    Whole,
    Shared(ShareTerms),
    Split(Vec<TemplatePlacement>, ShareTerms),
    Slots(Vec<Slot>),
    Dynamic(ShareTerms),
}

/// Why a card has its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutReason {
    /// The policy says so.
    Policy,
    /// `auto`: it has templates and this server's scheduler counts cheaply.
    CountersAreCheap,
    /// `auto`: it has templates, and so many nodes have counters, which the scheduler affords.
    FewCounterNodes(u32),
    /// `auto`: it has templates, and so many nodes have counters, which the scheduler does not afford.
    ManyCounterNodes(u32),
    /// `auto`: it has templates, and the nodes with counters cannot be counted.
    UncountedNodes,
    /// `auto`: it carries instances already.
    CarriesInstances,
    /// `auto`: limits of shares can be held on it.
    SharesCanBeHeld,
    /// `auto`: nothing else is possible.
    NothingElse,
    /// The policy's layout cannot be had; the problems say why.
    FellBack,
    /// Claims hold it in this layout; the policy's follows when they are gone.
    Busy,
    /// It is not offered; the problems say why.
    Withheld,
}

/// A choice with its reason and what to tell the admin; no layout means that the card is withheld.
pub(super) struct LayoutChoice {
    pub(super) chosen: Option<ResolvedLayout>,
    pub(super) reason: LayoutReason,
    pub(super) problems: Vec<OfferProblem>,
}

/// Decides the layout of one card.
pub(super) fn choose(
    card: &Card,
    layout: &Layout,
    tables: &Tables<'_>,
    server: ServerVersion,
) -> LayoutChoice {
    let (wanted, reason) = match layout {
        Layout::Auto(terms) => resolve_auto(card, terms, server),
        asked => (asked.clone(), LayoutReason::Policy),
    };
    let choice = match wanted {
        Layout::Dynamic(terms) => dynamic_or_less(card, terms, tables, server, reason),
        Layout::Shared(terms) => shared_or_less(card, terms, server, reason, LayoutKind::Shared),
        Layout::Whole | Layout::Auto(_) => LayoutChoice::made(ResolvedLayout::Whole, reason),
        Layout::Split { recipe, terms } => match split(card, recipe.as_ref(), tables) {
            Ok(places) => LayoutChoice::made(ResolvedLayout::Split(places, terms), reason),
            Err(problem) => LayoutChoice::withheld(problem),
        },
        Layout::Slots(slots) => match check_slots(card, &slots) {
            Ok(()) => LayoutChoice::made(ResolvedLayout::Slots(slots), reason),
            Err(problem) => LayoutChoice::withheld(problem),
        },
    };
    match (card.supply, &choice.chosen) {
        (
            Supply::NewParts,
            Some(ResolvedLayout::Whole | ResolvedLayout::Shared(_) | ResolvedLayout::Slots(_)),
        ) => LayoutChoice::withheld(OfferProblem::PartsOnly),
        _ => choice,
    }
}

fn resolve_auto(card: &Card, terms: &ShareTerms, server: ServerVersion) -> (Layout, LayoutReason) {
    let instances = card.found.iter().any(|part| matches!(part, Part::Partition { .. }))
        || matches!(&card.partitioning, Partitioning::Modes { current: Some(_), .. });
    let withheld = match counters_of(card, server) {
        AutoCounters::Used(reason) => return (Layout::Dynamic(terms.clone()), reason),
        AutoCounters::Withheld(reason) => Some(reason),
        AutoCounters::Impossible => None,
    };
    if instances {
        (Layout::Split { recipe: None, terms: terms.clone() }, LayoutReason::CarriesInstances)
    } else if card.shareable == ShareSupport::Enforceable && server.shares.is_kept() {
        (Layout::Shared(terms.clone()), withheld.unwrap_or(LayoutReason::SharesCanBeHeld))
    } else {
        (Layout::Whole, withheld.unwrap_or(LayoutReason::NothingElse))
    }
}

/// What `auto` makes of counters on a card.
pub(super) enum AutoCounters {
    /// It uses them.
    Used(LayoutReason),
    /// It does without, by the number of nodes.
    Withheld(LayoutReason),
    /// The card has no templates, or the server keeps no counters, or its scheduler forgets them.
    Impossible,
}

pub(super) fn counters_of(card: &Card, server: ServerVersion) -> AutoCounters {
    let templates = matches!(&card.partitioning, Partitioning::Templates(t) if !t.templates.is_empty());
    if !templates || !server.counters.is_kept() || server.forgets_counters() {
        return AutoCounters::Impossible;
    }
    match server.counter_nodes {
        _ if server.counters_are_cheap() => AutoCounters::Used(LayoutReason::CountersAreCheap),
        CounterNodes::Few(count) => AutoCounters::Used(LayoutReason::FewCounterNodes(count)),
        CounterNodes::Many(count) => AutoCounters::Withheld(LayoutReason::ManyCounterNodes(count)),
        CounterNodes::Unknown => AutoCounters::Withheld(LayoutReason::UncountedNodes),
    }
}

fn dynamic_or_less(
    card: &Card,
    terms: ShareTerms,
    tables: &Tables<'_>,
    server: ServerVersion,
    reason: LayoutReason,
) -> LayoutChoice {
    let because = if card.table().is_none_or(|table| table.templates.is_empty()) {
        "the card has no templates"
    } else if !server.counters.is_kept() {
        "this server drops shared counters"
    } else if tables.facts(card).is_none_or(|(_, facts)| !counters::fits(&facts.counters)) {
        "its parts need none, or more than the 32 counters that a set may have"
    } else {
        let mut choice = LayoutChoice::made(ResolvedLayout::Dynamic(terms), reason);
        if server.forgets_counters() {
            choice.problems.push(OfferProblem::ForgetfulScheduler { server: server.to_string() });
        }
        return choice;
    };
    let mut choice = shared_or_less(card, terms, server, LayoutReason::FellBack, LayoutKind::Dynamic);
    let given = choice.chosen.as_ref().map_or(LayoutKind::Whole, ResolvedLayout::kind);
    choice.problems.insert(0, OfferProblem::FellBack { asked: LayoutKind::Dynamic, because, given });
    choice
}

fn shared_or_less(
    card: &Card,
    terms: ShareTerms,
    server: ServerVersion,
    reason: LayoutReason,
    asked: LayoutKind,
) -> LayoutChoice {
    let because = if card.shareable == ShareSupport::No {
        "nothing can hold a limit on this card"
    } else if !server.shares.is_kept() {
        "this server drops shared devices"
    } else {
        return LayoutChoice::made(ResolvedLayout::Shared(terms), reason);
    };
    let mut choice = LayoutChoice::made(ResolvedLayout::Whole, LayoutReason::FellBack);
    if asked == LayoutKind::Shared {
        choice.problems.push(OfferProblem::FellBack { asked, because, given: LayoutKind::Whole });
    }
    choice
}

// === slots ===

fn check_slots(card: &Card, slots: &[Slot]) -> Result<(), OfferProblem> {
    if card.shareable == ShareSupport::No {
        return Err(OfferProblem::SlotsNotEnforceable);
    }
    let memory = slots.iter().map(|s| u128::from(s.memory.0) * u128::from(s.copies)).sum::<u128>();
    let cores = slots.iter().map(|s| u64::from(s.cores.percent()) * u64::from(s.copies)).sum::<u64>();
    if memory > u128::from(card.memory.0) || cores > 100 {
        let memory = Bytes(u64::try_from(memory).unwrap_or(u64::MAX));
        return Err(OfferProblem::SlotsExceedCard { memory, cores, card_memory: card.memory });
    }
    Ok(())
}

// === split ===

/// The places of a split, in publication order.
fn split(
    card: &Card,
    recipe: Option<&SplitRecipe>,
    tables: &Tables<'_>,
) -> Result<Vec<TemplatePlacement>, OfferProblem> {
    let Some((table, facts)) = tables.facts(card) else {
        return Err(match recipe {
            Some(recipe) => impossible(recipe.pieces.first(), "the card has no templates".to_owned()),
            None => OfferProblem::SplitWithoutRecipe,
        });
    };
    let order = &facts.order;
    let pieces = match recipe {
        Some(recipe) => recipe.pieces.clone(),
        None => pieces_found(card, table),
    };
    if pieces.is_empty() {
        return Err(OfferProblem::SplitWithoutRecipe);
    }
    let search = SplitSearch::of(table, order, &pieces)?;
    let mut places = search.run(&pieces)?;
    places.sort_by_key(|place| order.iter().position(|p| p == place));
    Ok(places)
}

/// What a card without a recipe is split into: the instances on it, or all of its current mode.
fn pieces_found(card: &Card, table: &PartitionTable) -> Vec<SplitPiece> {
    let at = |template: &crate::id::TemplateName, placement: &crate::partition::PlacementName| SplitPiece {
        template: template.clone(),
        place: SplitPlace::At(placement.clone()),
    };
    match &card.partitioning {
        Partitioning::Modes { .. } => table.partitions().map(|(t, p)| at(&t.name, &p.name)).collect(),
        Partitioning::None | Partitioning::Templates(_) => card
            .found
            .iter()
            .filter_map(|part| match part {
                Part::Partition { template, placement } => Some((template, placement)),
                Part::Card | Part::Slot { .. } => None,
            })
            .filter(|(template, placement)| table.consumption(template, placement).is_some())
            .map(|(template, placement)| at(template, placement))
            .collect(),
    }
}

fn impossible(piece: Option<&SplitPiece>, because: String) -> OfferProblem {
    OfferProblem::ImpossibleSplit {
        piece: piece.map_or_else(|| "empty".to_owned(), ToString::to_string),
        because,
    }
}

/// Depth-first search for places of all pieces; copies of one template are laid in publication order, which leaves out
/// nothing and tries no set twice.
struct SplitSearch<'a> {
    table: &'a PartitionTable,
    /// For each partition still to lay: its candidates with what they take, and whether it equals the one before.
    wanted: Vec<PieceCandidates>,
    steps: u32,
}

struct PieceCandidates {
    candidates: Vec<(TemplatePlacement, CounterVector)>,
    /// Whether it is a further copy of the one before it, and so lies later in the same candidates.
    follows: bool,
    size: u64,
}

impl<'a> SplitSearch<'a> {
    fn of(
        table: &'a PartitionTable,
        order: &[TemplatePlacement],
        pieces: &[SplitPiece],
    ) -> Result<Self, OfferProblem> {
        let mut wanted = Vec::new();
        for piece in pieces {
            let candidates = candidates(table, order, piece)?;
            let copies = match piece.place {
                SplitPlace::Anywhere { copies } => copies,
                SplitPlace::At(_) => 1,
            };
            if usize::try_from(copies).is_ok_and(|copies| copies > candidates.len()) {
                let because =
                    format!("the template has {} placements, expected at most so many", candidates.len());
                return Err(impossible(Some(piece), because));
            }
            for copy in 0..copies {
                let size = order::size(table, candidates[0].0);
                wanted.push(PieceCandidates { candidates: candidates.clone(), follows: copy > 0, size });
            }
        }
        // Fewest choices first, then the largest; copies stay together, since the sort is stable and they are equal.
        wanted.sort_by_key(|w| (w.candidates.len() > 1, std::cmp::Reverse(w.size), w.candidates[0].0));
        Ok(Self { table, wanted, steps: 0 })
    }

    fn run(mut self, pieces: &[SplitPiece]) -> Result<Vec<TemplatePlacement>, OfferProblem> {
        let mut laid = Vec::new();
        if self.lay(0, &self.table.totals.clone(), &mut laid) {
            return Ok(laid.iter().map(|(place, _)| *place).collect());
        }
        let all: Vec<String> = pieces.iter().map(ToString::to_string).collect();
        let because = "these do not fit on the card together; take one away, or see `aliquot devices`";
        Err(OfferProblem::ImpossibleSplit { piece: all.join(" + "), because: because.to_owned() })
    }

    fn lay(&mut self, next: usize, room: &CounterVector, laid: &mut Vec<(TemplatePlacement, usize)>) -> bool {
        let Some(wanted) = self.wanted.get(next) else { return true };
        let from = match laid.last() {
            Some((_, index)) if wanted.follows => index + 1,
            _ => 0,
        };
        for index in from..self.wanted[next].candidates.len() {
            self.steps += 1;
            if self.steps > SPLIT_STEPS_MAX {
                return false;
            }
            let (place, takes) = &self.wanted[next].candidates[index];
            if laid.iter().any(|(other, _)| other == place) {
                continue;
            }
            let Some(left) = room.minus(takes) else { continue };
            laid.push((*place, index));
            if self.lay(next + 1, &left, laid) {
                return true;
            }
            laid.pop();
        }
        false
    }
}

fn candidates(
    table: &PartitionTable,
    order: &[TemplatePlacement],
    piece: &SplitPiece,
) -> Result<Vec<(TemplatePlacement, CounterVector)>, OfferProblem> {
    let Some(template) = table.template(&piece.template) else {
        let known: Vec<&str> = table.templates.iter().map(|t| t.name.as_str()).collect();
        let because = format!("the card has no such template, expected one of {}", known.join(", "));
        return Err(impossible(Some(piece), because));
    };
    let found: Vec<(TemplatePlacement, CounterVector)> = order
        .iter()
        .filter(|place| {
            let here = &table.templates[place.template];
            let placement = &here.placements[place.placement].name;
            here.name == template.name
                && match &piece.place {
                    SplitPlace::Anywhere { .. } => true,
                    SplitPlace::At(wanted) => placement == wanted,
                }
        })
        .filter_map(|place| order::takes(table, *place).map(|takes| (*place, takes)))
        .collect();
    if found.is_empty() {
        let known: Vec<&str> = template.placements.iter().map(|p| p.name.0.as_str()).collect();
        let because = format!("the template has no such placement, expected one of {}", known.join(", "));
        return Err(impossible(Some(piece), because));
    }
    Ok(found)
}

// === impl LayoutChoice ===

impl LayoutChoice {
    fn made(chosen: ResolvedLayout, reason: LayoutReason) -> Self {
        Self { chosen: Some(chosen), reason, problems: Vec::new() }
    }

    fn withheld(problem: OfferProblem) -> Self {
        Self { chosen: None, reason: LayoutReason::Withheld, problems: vec![problem] }
    }
}

impl ResolvedLayout {
    /// How what it publishes is shared.
    pub(super) fn terms(&self) -> ShareTerms {
        match self {
            Self::Shared(terms) | Self::Split(_, terms) | Self::Dynamic(terms) => terms.clone(),
            Self::Whole | Self::Slots(_) => ShareTerms::default(),
        }
    }

    pub(super) const fn kind(&self) -> LayoutKind {
        match self {
            Self::Whole => LayoutKind::Whole,
            Self::Shared(_) => LayoutKind::Shared,
            Self::Split(..) => LayoutKind::Split,
            Self::Slots(_) => LayoutKind::Slots,
            Self::Dynamic(_) => LayoutKind::Dynamic,
        }
    }
}

// === impl LayoutReason ===

impl fmt::Display for LayoutReason {
    /// For people, as the end of "layout dynamic: …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = CounterNodes::FEW_MAX;
        f.write_str(match self {
            Self::Policy => "the policy says so",
            Self::CountersAreCheap => "auto: it has templates, and this server counts cheaply",
            Self::FewCounterNodes(count) => {
                return write!(
                    f,
                    "auto: it has templates, and {} counters (before Kubernetes 1.37 at most {most} may)",
                    nodes_have(*count)
                );
            }
            Self::ManyCounterNodes(count) => {
                return write!(
                    f,
                    "auto: {} counters, and before Kubernetes 1.37 more than {most} slow the scheduler down; policy \
                     `dynamic` cuts it all the same",
                    nodes_have(*count)
                );
            }
            Self::UncountedNodes => {
                "auto: the nodes with counters cannot be counted, and before Kubernetes 1.37 many slow the scheduler \
                 down; policy `dynamic` cuts it all the same"
            }
            Self::CarriesInstances => "auto: it carries instances already",
            Self::SharesCanBeHeld => "auto: limits of shares can be held on it",
            Self::NothingElse => "auto: it can be neither shared nor cut here",
            Self::FellBack => "what the policy says is not possible here",
            Self::Busy => "claims hold it; what the policy says follows when they are gone",
            Self::Withheld => "not offered: what the policy says is not possible here",
        })
    }
}

/// `1 node has`, `12 nodes have`.
fn nodes_have(count: u32) -> String {
    if count == 1 { "1 node has".to_owned() } else { format!("{count} nodes have") }
}
