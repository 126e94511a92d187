//! What a Pod requests of its node, as the scheduler counts it.
//!
//! Containers run together. Init containers run one after the other; those with `restartPolicy: Always` stay beside all
//! that start later. So a Pod requests of each resource
//! `max(containers + sidecars, each init container + the sidecars before it) + overhead`,
//! where an amount of `spec.resources` takes the place of the maximum.

use std::collections::BTreeMap;

use aliquot_core::quantity::Quantity;

use super::{Context, Path, YamlNode};

/// Amounts by resource.
pub(super) type Amounts = BTreeMap<String, Quantity>;

/// When a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerRole {
    /// With all others.
    Main,
    /// Before the others, and ends.
    Init,
    /// From its turn on, beside all that start later.
    Sidecar,
}

/// The sum so far. Containers may come before the init containers.
#[derive(Default)]
pub(super) struct RequestSum {
    main: Amounts,
    sidecars: Amounts,
    init_peak: Amounts,
    pub(super) overhead: Amounts,
    pub(super) of_pod: Amounts,
}

/// The amounts of a map of resources; a negative one is an error.
pub(super) fn amounts(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Amounts {
    let mut amounts = Amounts::new();
    // Resources with a domain are checked among the limits.
    for entry in cx.entries(node, path).filter(|entry| !entry.key.contains('/')) {
        let at = path.key(entry);
        let Some(amount) = cx.quantity(&entry.value, &at) else { continue };
        if amount < Quantity::ZERO {
            cx.error(&at, format!("found {amount}, expected 0 or more"));
        } else if amount > Quantity::ZERO {
            amounts.insert(entry.key.to_string(), amount);
        }
    }
    amounts
}

/// The requests of `spec.resources`, which limits stand for where there are none.
pub(super) fn of_pod(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Amounts {
    let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
    for entry in cx.entries(node, path) {
        match entry.key.as_ref() {
            "requests" => requests = amounts(cx, &entry.value, &path.key(entry)),
            "limits" => limits = amounts(cx, &entry.value, &path.key(entry)),
            _ => {}
        }
    }
    complete(&mut requests, limits, &Amounts::new());
    requests
}

/// A limit stands for a request that is not there; of extended resources both are the same.
pub(super) fn complete(requests: &mut Amounts, limits: Amounts, extended: &Amounts) {
    let extended = extended.iter().map(|(resource, amount)| (resource.clone(), *amount));
    for (resource, limit) in limits.into_iter().chain(extended) {
        requests.entry(resource).or_insert(limit);
    }
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (resource, amount) in more {
        match sum.get_mut(resource) {
            Some(known) => *known = known.plus(*amount),
            None => {
                sum.insert(resource.clone(), *amount);
            }
        }
    }
}

fn raise(peak: &mut Amounts, other: Amounts) {
    for (resource, amount) in other {
        let known = peak.entry(resource).or_insert(amount);
        *known = amount.max(*known);
    }
}

// === impl RequestSum ===

impl RequestSum {
    pub(super) fn add(&mut self, role: ContainerRole, requests: &Amounts) {
        match role {
            ContainerRole::Main => add(&mut self.main, requests),
            ContainerRole::Sidecar => {
                add(&mut self.sidecars, requests);
                raise(&mut self.init_peak, self.sidecars.clone());
            }
            ContainerRole::Init => {
                let mut beside = self.sidecars.clone();
                add(&mut beside, requests);
                raise(&mut self.init_peak, beside);
            }
        }
    }

    pub(super) fn total(self) -> Amounts {
        let Self { mut main, sidecars, init_peak, overhead, of_pod } = self;
        add(&mut main, &sidecars);
        raise(&mut main, init_peak);
        main.extend(of_pod);
        add(&mut main, &overhead);
        main
    }
}
