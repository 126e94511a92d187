//! One device: a part of a card with its attributes, capacities, counters and taints.

use std::collections::{BTreeMap, BTreeSet};

use super::OfferedPart;
use super::attributes::{CardAttributes, Kind, PublishedFacts, extras_of_card};
use super::counters::CardCounters;
use super::names::{self, PartHash};
use super::order::TemplatePlacement;
use super::policy::{LayoutKind, ShareTerms, Slot};
use super::problem::OfferProblem;
use super::server::{ServerVersion, Support};
use crate::card::{Card, NotedFault, Supply};
use crate::dra::{CapacityPolicy, CapacityRestriction, Device, DeviceCapacity, Sharing, Taint, TaintEffect};
use crate::id::NodeName;
use crate::partition::{CounterVector, Isolation, Part, PartitionTable, Placement, ShareSupport, Template};
use crate::quantity::{Format, Quantity};
use crate::units::{Bytes, Cores, Fraction};

/// Capacity of memory, in bytes.
pub const CAPACITY_MEMORY: &str = "memory";
/// Capacity of compute, in percent of the whole card.
pub const CAPACITY_CORES: &str = "cores";
/// Taint of a card, or of a part of it, that does not work.
pub const TAINT_UNHEALTHY: &str = "aliquot.dev/unhealthy";
/// Taint of what overlaps parts that this agent did not make.
pub const TAINT_OCCUPIED: &str = "aliquot.dev/occupied";

/// Taint of devices that claims hold on a card that changes its layout when they are gone.
pub const TAINT_LAYOUT: &str = "aliquot.dev/layout-change";

/// A device and which part of the card it stands for.
pub(super) struct PartDevice {
    pub(super) device: Device,
    pub(super) offered: OfferedPart,
}

/// Makes the devices of one card.
pub(super) struct Maker<'a> {
    card: &'a Card,
    setting: CardContext<'a>,
    attributes: CardAttributes,
    occupied: ForeignUse,
    /// What there is to tell the admin.
    pub(super) problems: Vec<OfferProblem>,
}

/// What holds for all devices of a card.
pub(super) struct CardContext<'a> {
    /// The card's layout.
    pub(super) layout: LayoutKind,
    /// How shareable devices are shared.
    pub(super) terms: ShareTerms,
    /// Whether the server keeps shared devices.
    pub(super) shares: Support,
    /// Present on dynamic cards.
    pub(super) counters: Option<CardCounters<'a>>,
    /// Faults that end the Pods on what is broken.
    pub(super) evict: &'a BTreeSet<NotedFault>,
}

/// What parts that are not ours leave free.
enum ForeignUse {
    Nothing,
    Some {
        free: CounterVector,
        parts: Vec<Part>,
    },
    /// Something that the table does not know: nothing else can be relied on.
    Unknown {
        parts: Vec<Part>,
    },
}

// === impl Maker ===

impl<'a> Maker<'a> {
    pub(super) fn new(
        card: &'a Card,
        setting: CardContext<'a>,
        node: &NodeName,
        server: ServerVersion,
    ) -> Self {
        let mut problems = Vec::new();
        let attributes = CardAttributes::of_card(card, node, server, &mut problems);
        let occupied = ForeignUse::of(card, &mut problems);
        Self { card, setting, attributes, occupied, problems }
    }

    /// The card itself.
    pub(super) fn card(&mut self, sharing: Sharing) -> PartDevice {
        let isolation = match sharing {
            Sharing::Exclusive => Isolation::Hardware,
            Sharing::Shareable => Isolation::Cooperative,
        };
        let face = PublishedFacts {
            kind: Kind::Card,
            profile: "whole",
            fraction: Some(Fraction::WHOLE),
            isolation,
            sharing,
            hash: PartHash::of_card(&self.card.uuid),
            extra: extras_of_card(self.card),
        };
        let takes = self.card.table().map(|t| t.totals.clone()).unwrap_or_default();
        let mut built = self.build("card", &face, Part::Card, self.card.memory, Cores::ALL);
        built.device.consumes =
            self.setting.counters.as_ref().map(CardCounters::of_card).unwrap_or_default().into();
        built.offered.takes = takes;
        self.taint_if_occupied(&mut built);
        built
    }

    /// Templates at placements, in the given order.
    pub(super) fn partitions(&mut self, places: &[TemplatePlacement]) -> Vec<PartDevice> {
        let templates = self.card.table().map_or(&[] as &[Template], |table| &table.templates);
        let at = |place: &TemplatePlacement| {
            let template = templates.get(place.template)?;
            Some((template, template.placements.get(place.placement)?))
        };
        places.iter().filter_map(at).filter_map(|(t, p)| self.partition(t, p)).collect()
    }

    /// All copies of all slots.
    pub(super) fn slots(&mut self, slots: &[Slot]) -> Vec<PartDevice> {
        let copies = slots.iter().flat_map(|slot| (0..slot.copies).map(move |copy| (slot, copy)));
        copies.map(|(slot, copy)| self.slot(slot, copy)).collect()
    }

    /// A template at a placement.
    fn partition(&mut self, template: &Template, placement: &Placement) -> Option<PartDevice> {
        let part = Part::Partition { template: template.name.clone(), placement: placement.name.clone() };
        let takes = template.consumes.plus(&placement.consumes)?;
        let sharing = self.sharing(template.shareable, template.memory);
        let face = PublishedFacts {
            kind: Kind::Partition,
            profile: template.name.as_str(),
            fraction: Some(template.fraction),
            isolation: template.isolation,
            sharing,
            hash: PartHash::of_partition(&self.card.uuid, &template.name, &placement.name),
            extra: match sharing {
                Sharing::Exclusive => template.extra_capacity.clone(),
                Sharing::Shareable => BTreeMap::new(),
            },
        };
        let (memory, cores) = (template.memory, template.cores);
        let mut built = self.build(template.name.as_str(), &face, part, memory, cores);
        built.device.consumes =
            self.setting.counters.as_ref().map(|c| c.of_part(&takes, memory)).unwrap_or_default().into();
        built.offered.takes = takes;
        self.taint_if_occupied(&mut built);
        Some(built)
    }

    /// One copy of a slot.
    fn slot(&mut self, slot: &Slot, copy: u32) -> PartDevice {
        let face = PublishedFacts {
            kind: Kind::Slot,
            profile: &slot.name,
            fraction: fraction_of(slot.memory, self.card.memory),
            isolation: Isolation::Cooperative,
            sharing: Sharing::Exclusive,
            hash: PartHash::of_slot(&self.card.uuid, slot, copy),
            extra: BTreeMap::new(),
        };
        let part = Part::Slot { name: slot.name.clone(), copy };
        let name = format!("slot-{}", slot.name);
        let mut built = self.build(&name, &face, part, slot.memory, slot.cores);
        self.taint_if_occupied(&mut built);
        built
    }

    /// Whether the card itself is shared.
    pub(super) fn sharing_of_card(&self) -> Sharing {
        self.sharing(self.card.shareable, self.card.memory)
    }

    /// Whether a device of this much memory is shared: something must hold the limits, and the grid of 1Mi needs two
    /// points.
    fn sharing(&self, held: ShareSupport, memory: Bytes) -> Sharing {
        let both = held == ShareSupport::Enforceable && self.setting.shares.is_kept();
        if both && memory.0 >= 2 * Bytes::MIB.0 { Sharing::Shareable } else { Sharing::Exclusive }
    }

    fn build(
        &mut self,
        prefix: &str,
        face: &PublishedFacts<'_>,
        part: Part,
        memory: Bytes,
        cores: Cores,
    ) -> PartDevice {
        let sharing = face.sharing;
        let mut device = Device::named(names::device_name(prefix, &face.hash));
        device.attributes = self.attributes.of_device(face, &mut self.problems).into();
        device.sharing = sharing;
        let memory = memory.whole_mib();
        device.capacity = BTreeMap::from([
            (CAPACITY_MEMORY.to_owned(), self.memory_capacity(&part, memory, sharing)),
            (CAPACITY_CORES.to_owned(), self.cores_capacity(&part, cores, sharing)),
        ])
        .into();
        if self.card.why_unwell(&part).is_some() {
            device.taints.push(no_schedule(TAINT_UNHEALTHY));
            if !self.card.noted_of(&part).is_disjoint(self.setting.evict) {
                // Beside the other taint: a Pod that tolerates this one stays, and no new claim comes.
                device.taints.push(Taint { effect: TaintEffect::NoExecute, ..no_schedule(TAINT_UNHEALTHY) });
            }
        }
        let card = self.card.uuid.clone();
        let layout = self.setting.layout;
        let takes = CounterVector::default();
        PartDevice { device, offered: OfferedPart { card, part, layout, sharing, memory, cores, takes } }
    }

    fn memory_capacity(&mut self, part: &Part, memory: Bytes, sharing: Sharing) -> DeviceCapacity {
        let value = memory.quantity();
        if sharing == Sharing::Exclusive {
            return DeviceCapacity { value, policy: None };
        }
        let within = |bytes: Bytes| bytes.whole_mib().min(memory);
        // The API wants room for one step above the minimum.
        let min = within(self.setting.terms.memory_min).clamp(Bytes::MIB, Bytes(memory.0 - Bytes::MIB.0));
        let max = self.setting.terms.memory_max.map(|max| within(max).max(min)).filter(|max| *max < memory);
        if let Some(default) = self.setting.terms.memory_default.filter(|default| *default > memory) {
            let part = part.to_string();
            self.problems.push(OfferProblem::DefaultTooLarge { part, default, there: memory });
        }
        let default =
            within(self.setting.terms.memory_default.unwrap_or(memory)).clamp(min, max.unwrap_or(memory));
        DeviceCapacity {
            value,
            policy: Some(CapacityPolicy {
                default: Some(default.quantity()),
                restriction: CapacityRestriction::Range {
                    min: min.quantity(),
                    max: max.map(Bytes::quantity),
                    step: Some(Bytes::MIB.quantity()),
                },
            }),
        }
    }

    fn cores_capacity(&mut self, part: &Part, cores: Cores, sharing: Sharing) -> DeviceCapacity {
        let number = |percent: u8| Quantity::from_units(i64::from(percent), Format::DecimalSi);
        let value = number(cores.percent());
        if sharing == Sharing::Exclusive {
            return DeviceCapacity { value, policy: None };
        }
        let default = self.setting.terms.cores_default.min(cores);
        if default < self.setting.terms.cores_default {
            let (part, default) = (part.to_string(), self.setting.terms.cores_default);
            self.problems.push(OfferProblem::DefaultCoresTooLarge { part, default, there: cores });
        }
        // A step needs room above the minimum; a part without compute has none.
        let step = (cores > Cores::NONE).then(|| number(1));
        DeviceCapacity {
            value,
            policy: Some(CapacityPolicy {
                default: Some(number(default.percent())),
                restriction: CapacityRestriction::Range { min: Quantity::ZERO, max: None, step },
            }),
        }
    }

    /// What overlaps a part that is not ours could never be prepared.
    fn taint_if_occupied(&self, built: &mut PartDevice) {
        let part = &built.offered.part;
        let had = |parts: &[Part]| self.card.supply == Supply::All && parts.contains(part);
        let free = match &self.occupied {
            ForeignUse::Nothing => true,
            ForeignUse::Unknown { parts } => had(parts),
            ForeignUse::Some { free, parts } => {
                let fits = || match part {
                    Part::Partition { .. } => built.offered.takes.first_excess(free).is_none(),
                    Part::Card | Part::Slot { .. } => false,
                };
                had(parts) || fits()
            }
        };
        if !free {
            built.device.taints.push(no_schedule(TAINT_OCCUPIED));
        }
    }
}

// === impl ForeignUse ===

impl ForeignUse {
    fn of(card: &Card, problems: &mut Vec<OfferProblem>) -> Self {
        let parts = card.found.clone();
        if parts.is_empty() {
            return Self::Nothing;
        }
        problems.push(OfferProblem::Occupied { count: parts.len() });
        let mut free = card.table().map(|t| t.totals.clone()).unwrap_or_default();
        for part in &parts {
            match takes(card.table(), part).and_then(|takes| free.minus(&takes)) {
                Some(left) => free = left,
                None => {
                    problems.push(OfferProblem::UnknownPart { part: part.to_string() });
                    return Self::Unknown { parts };
                }
            }
        }
        Self::Some { free, parts }
    }
}

fn takes(table: Option<&PartitionTable>, part: &Part) -> Option<CounterVector> {
    match part {
        Part::Partition { template, placement } => table?.consumption(template, placement),
        Part::Card | Part::Slot { .. } => None,
    }
}

pub(super) fn no_schedule(key: &str) -> Taint {
    Taint { key: key.to_owned(), value: String::new(), effect: TaintEffect::NoSchedule }
}

/// The part of the card's memory that a slot is, if it is one that people would name: at most 1/64ths.
fn fraction_of(memory: Bytes, whole: Bytes) -> Option<Fraction> {
    (1..=64_u64).find_map(|denominator| {
        let share = u128::from(memory.0) * u128::from(denominator);
        let numerator = u32::try_from(share / u128::from(whole.0.max(1))).ok()?;
        let exact = u128::from(numerator) * u128::from(whole.0) == share;
        if exact { Fraction::new(numerator, u32::try_from(denominator).ok()?) } else { None }
    })
}
