//! A single change that places refused claims, as data and as words.

use std::fmt;

use crate::allocate::refusal::SelectorOrigin;
use crate::dra::{ConstraintRule, Taint};
use crate::quantity::Quantity;

/// What the search for a change has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangesTried {
    /// Every change that this module knows.
    All,
    /// As many as a bounded amount of work allows.
    Some,
}

/// A single change that places refused claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The request tolerates this taint.
    TolerateTaint {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// The taint.
        taint: Taint,
    },
    /// The request asks for less of a capacity.
    LowerCapacity {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// The capacity.
        capacity: String,
        /// What it asks for; `None`: it names none and takes the default.
        from: Option<Quantity>,
        /// The most that fits.
        to: Quantity,
    },
    /// The request asks for fewer devices.
    LowerCount {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// How many it asks for.
        from: u32,
        /// The most that fit.
        to: u32,
    },
    /// A selector that fails where a device lacks a key asks first whether the device has it.
    GuardSelector {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// The object the selector belongs to.
        origin: SelectorOrigin,
        /// The question that comes first.
        guard: String,
    },
    /// The request does without one of its selectors.
    DropSelector {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// The selector.
        expression: String,
    },
    /// The claim does without one of its constraints.
    DropConstraint {
        /// The claim, as namespace/name.
        claim: String,
        /// Which, from 0.
        index: usize,
        /// The rule.
        rule: ConstraintRule,
    },
    /// A claim that holds something is released.
    ReleaseClaim {
        /// The claim, as namespace/name.
        claim: String,
        /// How many devices and shares it holds.
        holds: usize,
    },
    /// The drivers publish what is missing of their pools.
    CompletePools {
        /// The pools, as driver/name.
        pools: Vec<String>,
    },
}

// === impl Change ===

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TolerateTaint { claim, request, taint } => {
                write!(
                    f,
                    "let request `{request}` of {claim} tolerate the taint {}={}",
                    taint.key, taint.value
                )
            }
            Self::LowerCapacity { claim, request, capacity, from: Some(from), to } => {
                write!(f, "let request `{request}` of {claim} ask for {to} of `{capacity}` instead of {from}")
            }
            Self::LowerCapacity { claim, request, capacity, from: None, to } => {
                write!(f, "let request `{request}` of {claim} ask for {to} of `{capacity}`")
            }
            Self::LowerCount { claim, request, from, to } => {
                let devices = if *to == 1 { "device" } else { "devices" };
                write!(f, "let request `{request}` of {claim} ask for {to} {devices} instead of {from}")
            }
            Self::GuardSelector { claim, request, origin: SelectorOrigin::Request { index }, guard } => {
                write!(f, "let selector {index} of request `{request}` of {claim} be {guard} && (…)")
            }
            Self::GuardSelector { origin, guard, .. } => write!(f, "let {origin} be {guard} && (…)"),
            Self::DropSelector { claim, request, expression } => {
                write!(f, "drop the selector {expression} from request `{request}` of {claim}")
            }
            Self::DropConstraint { claim, index, rule } => {
                write!(f, "drop constraint {index} ({}) from {claim}", attribute(rule))
            }
            Self::ReleaseClaim { claim, holds } => {
                write!(f, "release {claim}, which holds {holds} device{}", if *holds == 1 { "" } else { "s" })
            }
            Self::CompletePools { pools } => {
                write!(f, "wait until the driver has published all of {}", pools.join(", "))
            }
        }
    }
}

/// The attribute of a constraint.
pub(super) fn attribute(rule: &ConstraintRule) -> &str {
    match rule {
        ConstraintRule::Match(name) | ConstraintRule::Distinct(name) => name,
    }
}
