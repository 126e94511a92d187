//! One request against every device of a node, in the state as it is.

use super::change::attribute;
use super::reason::RejectReason;
use super::request::{Rejection, RequestExplanation};
use crate::allocate::constraints::lookup;
use crate::allocate::demand::DemandNo;
use crate::allocate::index::{CounterUse, DeviceEntry, DeviceNo, EntryNo, NumberMap, SlotNo, VersionNo};
use crate::allocate::named::NamedAlternative;
use crate::allocate::named::name_of;
use crate::allocate::numbers::NodeIndex;
use crate::allocate::options::Release;
use crate::allocate::pools::device_concerns;
use crate::allocate::refusal::Shortage;
use crate::allocate::selectors::{EvaluatedDevice, SelectorOutcome};
use crate::allocate::taints;
use crate::allocate::world::World;
use crate::dra::{
    Access, AllocationMode, AllocationResult, AttributeValue, ConstraintRule, DeviceId, ExactRequest,
    RequestKind, Sharing,
};
use crate::quantity::Quantity;
use crate::rounding;

/// What draws on the counters of a node, found once for each pool that is asked about.
#[derive(Default)]
struct Draws(NumberMap<VersionNo, NumberMap<SlotNo, Vec<DeviceNo>>>);

/// A constraint that covers the request, with the devices chosen under it.
struct CoveringConstraint {
    rule: ConstraintRule,
    chosen: Vec<(DeviceId, AttributeValue)>,
}

impl World {
    /// Judges every device of the node for one alternative; `own` is what the claim's earlier requests were given.
    pub(super) fn judge(
        &mut self,
        node: NodeIndex,
        at: NamedAlternative<'_>,
        own: Option<&AllocationResult>,
    ) -> RequestExplanation {
        let request = match &at.claim.requests[at.request].kind {
            RequestKind::Exactly(exact) => exact,
            RequestKind::FirstAvailable(subs) => &subs[at.alternative].request,
        };
        let demand = self.demands.demand(request, &self.classes, &mut self.selectors);
        let mut covering = self.covering(at, own);
        let mut explained = RequestExplanation {
            claim: name_of(at.claim),
            request: at.name(),
            wanted: request.mode,
            usable: Vec::new(),
            rejected: Vec::new(),
        };
        let view = self.view(node).unwrap_or_default();
        let mut draws = Draws::default();
        self.work += view.entries.len() as u64;
        for entry in &view.entries {
            let device = self.index.id(self.index.entries[entry.at()].device);
            let reason = self
                .unfit(node, *entry, demand)
                .or_else(|| self.taken(*entry, request))
                .or_else(|| self.lacking(*entry, request))
                .or_else(|| self.overdrawn(*entry, &mut draws))
                .or_else(|| self.incompatible(*entry))
                .or_else(|| self.tainted(*entry, request))
                .or_else(|| self.clashing(*entry, &covering));
            match reason {
                Some(reason) => explained.rejected.push(Rejection { device, reason }),
                None => {
                    self.choose(*entry, &device, &mut covering, request.mode, explained.usable.len());
                    explained.usable.push(device);
                }
            }
        }
        explained
    }

    /// The claim's constraints over this request, with what earlier requests were given.
    fn covering(&self, at: NamedAlternative<'_>, own: Option<&AllocationResult>) -> Vec<CoveringConstraint> {
        let (name, full) = (&at.claim.requests[at.request].name, at.name());
        let covers = |names: &[String], asked: &str| {
            let parent = asked.split_once('/').map_or(asked, |(parent, _)| parent);
            names.is_empty() || names.iter().any(|known| known == asked || known == parent)
        };
        let relevant =
            at.claim.constraints.iter().filter(|constraint| {
                covers(&constraint.requests, &full) || constraint.requests.contains(name)
            });
        let chosen = |names: &[String], rule: &ConstraintRule| {
            let results = own.map(|result| result.devices.as_slice()).unwrap_or_default();
            let covered = results.iter().filter(|result| covers(names, &result.request));
            covered
                .filter_map(|result| {
                    let id = &result.device;
                    let device = self.index.device(&id.driver, &id.pool, &id.device)?;
                    let entry = self.index.entries_of(device).last()?;
                    Some((id.clone(), lookup(attribute(rule), entry, &self.index)?.clone()))
                })
                .collect()
        };
        relevant
            .map(|constraint| CoveringConstraint {
                rule: constraint.rule.clone(),
                chosen: chosen(&constraint.requests, &constraint.rule),
            })
            .collect()
    }

    /// The device is one of those that the request would take: later ones are judged beside it.
    fn choose(
        &self,
        entry: EntryNo,
        device: &DeviceId,
        covering: &mut [CoveringConstraint],
        mode: AllocationMode,
        before: usize,
    ) {
        let wanted = match mode {
            AllocationMode::ExactCount(count) => count as usize,
            AllocationMode::All => usize::MAX,
        };
        // Beyond the last one wanted nothing is taken, so nothing more is in the way.
        if before + 1 >= wanted {
            return;
        }
        for constraint in covering {
            if let Some(value) = lookup(attribute(&constraint.rule), entry, &self.index) {
                constraint.chosen.push((device.clone(), value.clone()));
            }
        }
    }

    fn unfit(&mut self, node: NodeIndex, entry: EntryNo, demand: DemandNo) -> Option<RejectReason> {
        let described = self.nodes.get(node.0 as usize)?;
        if !device_concerns(&self.index, entry, described) {
            return Some(RejectReason::OtherNode);
        }
        let selectors = self.demands.base_of(demand).selectors.as_deref().unwrap_or_default();
        for (origin, number) in selectors {
            let verdict = self.selectors.verdict(*number, &mut EvaluatedDevice::new(&self.index, entry));
            let (origin, expression) = (origin.clone(), || self.selectors.text(*number).to_owned());
            match verdict {
                SelectorOutcome::Passes => {}
                SelectorOutcome::Fails | SelectorOutcome::Unknown => {
                    return Some(RejectReason::Selector { origin, expression: expression() });
                }
                SelectorOutcome::Broken => {
                    let message = self.selectors.failure(*number, &self.index, entry);
                    return Some(RejectReason::SelectorFails { origin, expression: expression(), message });
                }
            }
        }
        None
    }

    fn taken(&self, entry: EntryNo, request: &ExactRequest) -> Option<RejectReason> {
        let device = self.index.entries[entry.at()].device;
        let held = request.access == Access::Normal && self.state.in_use(device).is_some();
        held.then(|| RejectReason::Held { by: self.held.of([device]) })
    }

    fn lacking(&self, entry: EntryNo, request: &ExactRequest) -> Option<RejectReason> {
        let described = self.index.described(entry);
        let facts = &self.index.entries[entry.at()];
        if let Some(unknown) = request.capacity.keys().find(|name| !described.capacity.contains_key(*name)) {
            let published = described.capacity.keys().cloned().collect();
            return Some(RejectReason::NoSuchCapacity { capacity: unknown.clone(), published });
        }
        for ((name, capacity), used) in described.capacity.iter().zip(&self.state.used[facts.amounts()..]) {
            let takes = match rounding::consumption(capacity, request.capacity.get(name).copied()) {
                Ok(takes) => takes,
                Err(why) => return Some(RejectReason::Policy { capacity: name.clone(), why }),
            };
            if used + takes.nanos() > capacity.value.nanos() {
                let left = Quantity::from_nanos(capacity.value.nanos() - used, capacity.value.format());
                let by = match facts.sharing {
                    Sharing::Shareable if *used != 0 => self.held.of([facts.device]),
                    _ => Vec::new(),
                };
                let shortage = Shortage { asked: takes, left };
                return Some(RejectReason::Capacity {
                    capacity: name.clone(),
                    shortage,
                    whole: capacity.value,
                    by,
                });
            }
        }
        None
    }

    fn overdrawn(&self, entry: EntryNo, draws: &mut Draws) -> Option<RejectReason> {
        let facts = &self.index.entries[entry.at()];
        if facts.counted == CounterUse::No || self.state.counters_are_paid(facts) {
            return None;
        }
        let drawn = |slot: SlotNo| {
            let draws = self.index.draws(facts).filter(|draw| draw.slot == slot);
            draws.map(|draw| draw.nanos).sum::<i128>()
        };
        let all = self.index.versions[facts.version.at()].slots.clone().map(SlotNo);
        let own = self.index.draws(facts).map(|draw| draw.slot);
        // Its own counters first; then those of others that are below zero, which stop the whole pool.
        let slot = own.chain(all).find(|slot| self.state.available[slot.at()] < drawn(*slot))?;
        let counter = self.index.counter(self.index.slots[slot.at()]);
        let format = counter.total.format();
        Some(RejectReason::Counter {
            set: counter.set.clone(),
            counter: counter.counter.clone(),
            shortage: Shortage {
                asked: Quantity::from_nanos(drawn(slot), format),
                left: Quantity::from_nanos(self.state.available[slot.at()], format),
            },
            total: counter.total,
            by: self.held.of(draws.on(slot, facts, self)),
        })
    }

    fn incompatible(&self, entry: EntryNo) -> Option<RejectReason> {
        let facts = &self.index.entries[entry.at()];
        if facts.counted == CounterUse::No || self.state.counters_are_paid(facts) {
            return None;
        }
        let compatibility = &self.index.compatibility;
        let clash = self.state.groups.clash(compatibility.draws(facts))?;
        let consumption = self.index.described(entry).consumes.get(clash.consumption)?;
        let draws_on_set =
            |other: &&DeviceEntry| compatibility.draws(other).iter().any(|draw| draw.set == clash.set);
        let held = self.index.beside(facts).filter(|other| self.state.is_held(other.device));
        Some(RejectReason::Groups {
            set: consumption.counter_set.clone(),
            groups: consumption.compatibility_groups.clone(),
            by: self.held.of(held.filter(draws_on_set).map(|other| other.device)),
        })
    }

    fn tainted(&self, entry: EntryNo, request: &ExactRequest) -> Option<RejectReason> {
        let taint = taints::in_the_way(self.index.described(entry), &request.tolerations)?;
        Some(RejectReason::Taint { taint: taint.clone() })
    }

    fn clashing(&self, entry: EntryNo, covering: &[CoveringConstraint]) -> Option<RejectReason> {
        covering.iter().find_map(|constraint| {
            let rule = &constraint.rule;
            let reason =
                |value, against| Some(RejectReason::Constraint { rule: rule.clone(), value, against });
            let Some(value) = lookup(attribute(rule), entry, &self.index) else { return reason(None, None) };
            let against = match rule {
                ConstraintRule::Match(_) => self.unlike(value, &constraint.chosen),
                ConstraintRule::Distinct(_) => {
                    let is_list = self.release == Release::V1_36 && value.members().is_some();
                    constraint.chosen.iter().find(|(_, other)| is_list || self.are_alike(&[value, other]))
                }
            };
            reason(Some(value.clone()), Some(against?.clone()))
        })
    }
}

// === impl World ===

impl World {
    /// Whether values match: are equal, or from 1.37 on have a member in common.
    fn are_alike(&self, values: &[&AttributeValue]) -> bool {
        let [first, others @ ..] = values else { return true };
        match self.release {
            Release::V1_36 => first.members().is_none() && others.iter().all(|other| other == first),
            Release::V1_37 => {
                let members: Vec<Vec<AttributeValue>> = others.iter().map(|other| other.each()).collect();
                first.each().iter().any(|member| members.iter().all(|other| other.contains(member)))
            }
        }
    }

    /// The chosen device that a value does not match, or the last of them if it is all of them together.
    fn unlike<'c>(
        &self,
        value: &AttributeValue,
        chosen: &'c [(DeviceId, AttributeValue)],
    ) -> Option<&'c (DeviceId, AttributeValue)> {
        let all: Vec<&AttributeValue> =
            std::iter::once(value).chain(chosen.iter().map(|(_, other)| other)).collect();
        if chosen.is_empty() || self.are_alike(&all) {
            return None;
        }
        chosen.iter().find(|(_, other)| !self.are_alike(&[value, other])).or_else(|| chosen.last())
    }
}

// === impl Draws ===

impl Draws {
    /// The held devices that draw on a counter of the entry's pool.
    fn on(&mut self, slot: SlotNo, entry: &DeviceEntry, world: &World) -> Vec<DeviceNo> {
        let of_pool = self.0.entry(entry.version).or_insert_with(|| {
            let mut by_slot: NumberMap<SlotNo, Vec<DeviceNo>> = NumberMap::default();
            let held = world.index.beside(entry).filter(|other| world.state.is_held(other.device));
            for other in held {
                for draw in world.index.draws(other) {
                    by_slot.entry(draw.slot).or_default().push(other.device);
                }
            }
            by_slot
        });
        of_pool.get(&slot).cloned().unwrap_or_default()
    }
}
