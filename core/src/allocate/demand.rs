//! Requests and claims with their names taken off: what is the same for the search is the same number.
//!
//! A *demand* is one exact request (class, selectors, count, tolerations, capacity). Its *base* is that without count
//! and capacity: which devices it may pick from at all. A *shape* is a whole claim: its demands and which constraints
//! cover which. Ten thousand claims of one template have one shape, so whatever was learnt from the first holds for
//! all; ten thousand claims of different sizes still have one base.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::index::{Index, ProfileNo, numbered};
use super::refusal::SelectorOrigin;
use super::selectors::{SelectorNo, Selectors};
use crate::dra::{
    Access, AllocationMode, ConstraintRule, DeviceCapacity, DeviceClass, DeviceRequest, ExactRequest,
    RequestKind, ResourceClaim, Toleration,
};
use crate::rounding;

numbered! {
    /// A distinct exact request.
    DemandNo,
    /// A distinct request, count and capacity apart.
    BaseNo,
    /// A distinct claim, names apart.
    ShapeNo,
}

/// All demands and shapes seen so far.
#[derive(Debug, Default)]
pub(super) struct Demands {
    pub(super) demands: Vec<Demand>,
    pub(super) bases: Vec<Base>,
    pub(super) shapes: Vec<Arc<Shape>>,
    numbers: HashMap<ExactRequest, DemandNo>,
    base_numbers: HashMap<BaseKey, BaseNo>,
    shape_numbers: HashMap<Arc<Shape>, ShapeNo>,
}

type BaseKey = (String, Vec<String>, Access, Vec<Toleration>);

/// One exact request.
#[derive(Debug)]
pub(super) struct Demand {
    pub(super) request: ExactRequest,
    pub(super) base: BaseNo,
    /// By profile, as far as requested.
    amounts: Vec<Amounts>,
    /// By profile, prepared with the amounts.
    ranges: Vec<InRange>,
}

/// What a request would take of a device with a certain profile, in nano-units by capacity.
#[derive(Clone, Debug)]
enum Amounts {
    Unknown,
    /// The device cannot serve the request at all.
    Never,
    These(Box<[i128]>),
}

/// Whether the amounts of a request can be represented on a device; from 1.37 on one that cannot ends the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InRange {
    Yes,
    No,
}

/// Which devices a request may pick from.
#[derive(Debug)]
pub(super) struct Base {
    /// Class selectors, then request selectors; `None`: the class does not exist.
    pub(super) selectors: Option<Vec<(SelectorOrigin, SelectorNo)>>,
    pub(super) tolerations: Vec<Toleration>,
}

/// One claim, names apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) requests: Vec<RequestShape>,
    pub(super) constraints: Vec<ConstraintShape>,
    /// Whether holding more can make a refused claim fit.
    pub(super) trend: Trend,
}

/// How fitting depends on what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Trend {
    /// The more is held, the less fits.
    Monotone,
    /// Not so: with mode `All` an exhausted device drops out of "all", and fewer are easier to get.
    Free,
}

/// One request, names apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RequestShape {
    Exactly(DemandNo),
    FirstAvailable(Vec<DemandNo>),
}

/// One constraint, names apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConstraintShape {
    pub(super) rule: ConstraintRule,
    /// By request, then by alternative.
    pub(super) covers: Vec<Vec<bool>>,
}

// === impl Demands ===

impl Demands {
    /// The number of an exact request.
    pub(super) fn demand(
        &mut self,
        request: &ExactRequest,
        classes: &BTreeMap<String, DeviceClass>,
        selectors: &mut Selectors,
    ) -> DemandNo {
        if let Some(known) = self.numbers.get(request) {
            return *known;
        }
        let number = DemandNo::after(self.demands.len());
        let base = self.base(request, classes, selectors);
        self.numbers.insert(request.clone(), number);
        self.demands.push(Demand { request: request.clone(), base, amounts: Vec::new(), ranges: Vec::new() });
        number
    }

    fn base(
        &mut self,
        request: &ExactRequest,
        classes: &BTreeMap<String, DeviceClass>,
        selectors: &mut Selectors,
    ) -> BaseNo {
        let ExactRequest { device_class, selectors: own, access, tolerations, .. } = request.clone();
        let key = (device_class, own, access, tolerations);
        if let Some(known) = self.base_numbers.get(&key) {
            return *known;
        }
        let number = BaseNo::after(self.bases.len());
        let in_order = classes.get(&request.device_class).map(|class| {
            let of_class = class.selectors.iter().enumerate().map(|(index, text)| {
                (SelectorOrigin::Class { class: class.name.clone(), index }, selectors.number(text))
            });
            let mut all: Vec<_> = of_class.collect();
            all.extend(
                request
                    .selectors
                    .iter()
                    .enumerate()
                    .map(|(index, text)| (SelectorOrigin::Request { index }, selectors.number(text))),
            );
            all
        });
        self.bases.push(Base { selectors: in_order, tolerations: key.3.clone() });
        self.base_numbers.insert(key, number);
        number
    }

    /// The number of a claim's shape.
    pub(super) fn shape(
        &mut self,
        claim: &ResourceClaim,
        classes: &BTreeMap<String, DeviceClass>,
        selectors: &mut Selectors,
    ) -> ShapeNo {
        let mut number = |request: &ExactRequest| self.demand(request, classes, selectors);
        let requests: Vec<RequestShape> = claim
            .requests
            .iter()
            .map(|request| match &request.kind {
                RequestKind::Exactly(exact) => RequestShape::Exactly(number(exact)),
                RequestKind::FirstAvailable(subs) => {
                    RequestShape::FirstAvailable(subs.iter().map(|sub| number(&sub.request)).collect())
                }
            })
            .collect();
        let constraints = claim
            .constraints
            .iter()
            .map(|constraint| ConstraintShape {
                rule: constraint.rule.clone(),
                covers: claim.requests.iter().map(|r| covers(&constraint.requests, r)).collect(),
            })
            .collect();
        let trend = self.trend(&requests);
        let shape = Shape { requests, constraints, trend };
        if let Some(known) = self.shape_numbers.get(&shape) {
            return *known;
        }
        let number = ShapeNo::after(self.shapes.len());
        let shape = Arc::new(shape);
        self.shape_numbers.insert(Arc::clone(&shape), number);
        self.shapes.push(shape);
        number
    }

    fn trend(&self, requests: &[RequestShape]) -> Trend {
        let mut demands = requests.iter().flat_map(RequestShape::demands);
        let monotone = demands.all(|demand| {
            let request = &self.demands[demand.at()].request;
            request.mode != AllocationMode::All && request.capacity.values().all(|q| q.nanos() >= 0)
        });
        if monotone { Trend::Monotone } else { Trend::Free }
    }

    /// The base of a demand.
    pub(super) fn base_of(&self, demand: DemandNo) -> &Base {
        &self.bases[self.demands[demand.at()].base.at()]
    }
}

/// Whether the constraint's list of names covers each alternative of a request.
fn covers(names: &[String], request: &DeviceRequest) -> Vec<bool> {
    let whole = names.is_empty() || names.contains(&request.name);
    match &request.kind {
        RequestKind::Exactly(_) => vec![whole],
        RequestKind::FirstAvailable(subs) => {
            let named = |sub: &str| {
                names.iter().any(|n| n.split_once('/').is_some_and(|(r, s)| r == request.name && s == sub))
            };
            subs.iter().map(|sub| whole || named(&sub.name)).collect()
        }
    }
}

// === impl RequestShape ===

impl RequestShape {
    /// The alternatives in order.
    pub(super) fn demands(&self) -> &[DemandNo] {
        match self {
            Self::Exactly(demand) => std::slice::from_ref(demand),
            Self::FirstAvailable(demands) => demands,
        }
    }
}

// === impl Demand ===

impl Demand {
    /// Works out the amounts for devices of this profile.
    pub(super) fn prepare(&mut self, profile: ProfileNo, index: &Index) {
        if self.amounts.len() <= profile.at() {
            self.amounts.resize(index.profiles.len(), Amounts::Unknown);
            self.ranges.resize(index.profiles.len(), InRange::Yes);
        }
        if matches!(self.amounts[profile.at()], Amounts::Unknown) {
            self.amounts[profile.at()] = self.round(profile, index).map_or(Amounts::Never, Amounts::These);
            self.ranges[profile.at()] = self.range(profile, index);
        }
    }

    /// What a device of this profile would give; `None`: it cannot serve the request at all. Prepared before.
    pub(super) fn amounts(&self, profile: ProfileNo) -> Option<&[i128]> {
        match self.amounts.get(profile.at()) {
            Some(Amounts::These(amounts)) => Some(amounts),
            Some(Amounts::Never | Amounts::Unknown) | None => None,
        }
    }

    /// Whether the amounts can be represented on a device of this profile. Prepared before.
    pub(super) fn is_in_range(&self, profile: ProfileNo) -> bool {
        self.ranges.get(profile.at()) != Some(&InRange::No)
    }

    fn range(&self, profile: ProfileNo, index: &Index) -> InRange {
        let capacities = &index.profiles[profile.at()].capacities;
        let asked = &self.request.capacity;
        let has_all = asked.keys().all(|name| capacities.iter().any(|(known, _)| known == name));
        let broken = |(name, capacity): &(String, DeviceCapacity)| {
            rounding::is_out_of_range(capacity, asked.get(name).copied())
        };
        if has_all && capacities.iter().any(broken) { InRange::No } else { InRange::Yes }
    }

    fn round(&self, profile: ProfileNo, index: &Index) -> Option<Box<[i128]>> {
        let capacities = &index.profiles[profile.at()].capacities;
        let asked = &self.request.capacity;
        if !asked.keys().all(|name| capacities.iter().any(|(known, _)| known == name)) {
            return None;
        }
        let amounts = capacities.iter().map(|(name, capacity)| {
            Some(rounding::consumption(capacity, asked.get(name).copied()).ok()?.nanos())
        });
        amounts.collect()
    }
}
