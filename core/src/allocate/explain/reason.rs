//! Why a device does not serve a request, as data and as a sentence.

use std::fmt;

use crate::allocate::refusal::{SelectorOrigin, Shortage};
use crate::dra::{AttributeValue, ConstraintRule, DeviceId, Taint, TaintEffect};
use crate::quantity::{Quantity, in_one_unit};
use crate::rounding::NotAllowed;

/// The first reason why a device does not serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The device says that it is for other nodes.
    OtherNode,
    /// A selector says no.
    Selector {
        /// The object the selector belongs to.
        origin: SelectorOrigin,
        /// The selector.
        expression: String,
    },
    /// A selector cannot be evaluated on the device; a search that reaches it ends.
    SelectorFails {
        /// The object the selector belongs to.
        origin: SelectorOrigin,
        /// The selector.
        expression: String,
        /// What the evaluator says.
        message: String,
    },
    /// Claims hold the device, and it cannot be shared.
    Held {
        /// The claims, as namespace/name.
        by: Vec<String>,
    },
    /// The request names a capacity that the device does not have.
    NoSuchCapacity {
        /// The requested capacity.
        capacity: String,
        /// What the device has.
        published: Vec<String>,
    },
    /// The policy of a capacity does not allow the amount.
    Policy {
        /// The capacity.
        capacity: String,
        /// Why not.
        why: NotAllowed,
    },
    /// Less of a capacity is left than the request takes.
    Capacity {
        /// The capacity.
        capacity: String,
        /// What the request takes, and what is left.
        shortage: Shortage,
        /// What an unheld device has.
        whole: Quantity,
        /// Claims that hold some, as namespace/name.
        by: Vec<String>,
    },
    /// Less of a counter is left than the device draws.
    Counter {
        /// The counter set.
        set: String,
        /// The counter.
        counter: String,
        /// What the device draws, and what is left; the left amount is negative when claims have overdrawn it.
        shortage: Shortage,
        /// What an unheld set has.
        total: Quantity,
        /// Claims that draw on it, as namespace/name.
        by: Vec<String>,
    },
    /// What draws on a counter set has no compatibility group in common with the device.
    Groups {
        /// The counter set.
        set: String,
        /// The device's groups.
        groups: Vec<String>,
        /// Claims that draw on the set, as namespace/name.
        by: Vec<String>,
    },
    /// A taint is not tolerated.
    Taint {
        /// The taint.
        taint: Taint,
    },
    /// A constraint of the claim forbids the device beside those chosen before it.
    Constraint {
        /// The rule.
        rule: ConstraintRule,
        /// The device's value; `None`: it does not carry the attribute.
        value: Option<AttributeValue>,
        /// The chosen device that it clashes with, and its value.
        against: Option<(DeviceId, AttributeValue)>,
    },
}

/// A kind of reason, to count devices by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReasonGroup {
    /// For other nodes.
    OtherNode,
    /// This selector says no.
    Selector {
        /// The object the selector belongs to.
        origin: SelectorOrigin,
        /// The selector.
        expression: String,
    },
    /// This selector cannot be evaluated.
    SelectorFails {
        /// The object the selector belongs to.
        origin: SelectorOrigin,
        /// The selector.
        expression: String,
    },
    /// Held as a whole.
    Held,
    /// Without this capacity.
    NoSuchCapacity {
        /// The capacity.
        capacity: String,
    },
    /// The policy of this capacity does not allow the amount.
    Policy {
        /// The capacity.
        capacity: String,
    },
    /// Too little left of this capacity.
    Capacity {
        /// The capacity.
        capacity: String,
    },
    /// Too little left of this counter.
    Counter {
        /// The counter.
        counter: String,
    },
    /// Other compatibility groups than what draws on this counter set.
    Groups {
        /// The counter set.
        set: String,
    },
    /// A taint of this key.
    Taint {
        /// The key.
        key: String,
    },
    /// A constraint over this attribute.
    Constraint {
        /// The attribute, fully qualified.
        attribute: String,
    },
}

// === impl RejectReason ===

impl RejectReason {
    /// The kind, to count by.
    #[must_use]
    pub fn group(&self) -> ReasonGroup {
        match self {
            Self::OtherNode => ReasonGroup::OtherNode,
            Self::Selector { origin, expression } => {
                ReasonGroup::Selector { origin: origin.clone(), expression: expression.clone() }
            }
            Self::SelectorFails { origin, expression, .. } => {
                ReasonGroup::SelectorFails { origin: origin.clone(), expression: expression.clone() }
            }
            Self::Held { .. } => ReasonGroup::Held,
            Self::NoSuchCapacity { capacity, .. } => {
                ReasonGroup::NoSuchCapacity { capacity: capacity.clone() }
            }
            Self::Policy { capacity, .. } => ReasonGroup::Policy { capacity: capacity.clone() },
            Self::Capacity { capacity, .. } => ReasonGroup::Capacity { capacity: capacity.clone() },
            Self::Counter { counter, .. } => ReasonGroup::Counter { counter: counter.clone() },
            Self::Groups { set, .. } => ReasonGroup::Groups { set: set.clone() },
            Self::Taint { taint } => ReasonGroup::Taint { key: taint.key.clone() },
            Self::Constraint { rule, .. } => {
                ReasonGroup::Constraint { attribute: attribute_of(rule).to_owned() }
            }
        }
    }
}

fn attribute_of(rule: &ConstraintRule) -> &str {
    match rule {
        ConstraintRule::Match(attribute) | ConstraintRule::Distinct(attribute) => attribute,
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherNode => f.write_str("it is for other nodes"),
            Self::Selector { origin, expression } => write!(f, "{origin} says no: {expression}"),
            Self::SelectorFails { origin, expression, message } => {
                write!(f, "{origin} cannot be evaluated: {expression}: {message}")
            }
            Self::Held { by } => write!(f, "held by {}", Names(by)),
            Self::NoSuchCapacity { capacity, published } => {
                write!(f, "it has no capacity `{capacity}`; it has {}", Names(published))
            }
            Self::Policy { capacity, why } => write!(f, "`{capacity}`: {why}"),
            Self::Capacity { capacity, shortage, whole, by } => {
                let [asked, left, whole] = in_one_unit([shortage.asked, shortage.left, *whole]);
                write!(f, "`{capacity}`: {asked} asked, {left} left of {whole}")?;
                if by.is_empty() { Ok(()) } else { write!(f, ", the rest held by {}", Names(by)) }
            }
            // A counter of one is a place on the card, such as `mem4`.
            Self::Counter { counter, shortage, total, by, .. }
                if *total == Quantity::from_units(1, total.format())
                    && shortage.left == Quantity::ZERO
                    && !by.is_empty() =>
            {
                write!(f, "{} is held by {}", CounterText(counter), Names(by))
            }
            Self::Counter { set, counter, shortage, total, by } => {
                let [asked, left, total] = in_one_unit([shortage.asked, shortage.left, *total]);
                write!(f, "counter `{counter}` of `{set}`: {asked} needed, {left} left of {total}")?;
                if by.is_empty() { Ok(()) } else { write!(f, ", the rest drawn by {}", Names(by)) }
            }
            Self::Groups { set, groups, by } => {
                let holders = Names(by);
                match groups.as_slice() {
                    [] => write!(
                        f,
                        "counter set `{set}`: what {holders} holds has compatibility groups, it has none"
                    ),
                    groups => write!(
                        f,
                        "counter set `{set}`: it has no compatibility group ({}) in common with what {holders} holds",
                        groups.join(", ")
                    ),
                }
            }
            Self::Taint { taint: Taint { key, value, effect } } => {
                write!(f, "taint {key}={value}:{} is not tolerated", EffectText(effect))
            }
            Self::Constraint { rule, value, against } => {
                constraint(f, rule, value.as_ref(), against.as_ref())
            }
        }
    }
}

fn constraint(
    f: &mut fmt::Formatter<'_>,
    rule: &ConstraintRule,
    value: Option<&AttributeValue>,
    against: Option<&(DeviceId, AttributeValue)>,
) -> fmt::Result {
    let (name, relation) = match rule {
        ConstraintRule::Match(_) => ("matchAttribute", "but"),
        ConstraintRule::Distinct(_) => ("distinctAttribute", "and so"),
    };
    let attribute = attribute_of(rule);
    match (value, against) {
        (None, _) => write!(f, "{name} {attribute}: it does not carry the attribute"),
        (Some(value), None) => write!(f, "{name} {attribute}: {} cannot be compared", ValueText(value)),
        (Some(value), Some((device, other))) => write!(
            f,
            "{name} {attribute}: it has {}, {relation} has {device} with {}",
            ValueText(value),
            ValueText(other)
        ),
    }
}

impl ReasonGroup {
    /// How far a device of the group is from serving the request: what is held may be released, a selector stays.
    #[must_use]
    pub const fn distance(&self) -> u8 {
        match self {
            Self::SelectorFails { .. } => 0,
            Self::Capacity { .. } | Self::Counter { .. } | Self::Groups { .. } => 1,
            Self::Held => 2,
            Self::Taint { .. } => 3,
            Self::Constraint { .. } => 4,
            Self::Policy { .. } => 5,
            Self::NoSuchCapacity { .. } => 6,
            Self::OtherNode => 7,
            Self::Selector { .. } => 8,
        }
    }
}

impl fmt::Display for ReasonGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherNode => f.write_str("for other nodes"),
            Self::Selector { origin, expression } => write!(f, "{origin} says no: {expression}"),
            Self::SelectorFails { origin, expression } => {
                write!(f, "{origin} cannot be evaluated: {expression}")
            }
            Self::Held => f.write_str("held by a claim"),
            Self::NoSuchCapacity { capacity } => write!(f, "without a capacity `{capacity}`"),
            Self::Policy { capacity } => write!(f, "amount of `{capacity}` not allowed"),
            Self::Capacity { capacity } => write!(f, "too little `{capacity}` left"),
            Self::Counter { counter } => write!(f, "too little of {} left", CounterText(counter)),
            Self::Groups { set } => write!(f, "other compatibility groups on counter set `{set}`"),
            Self::Taint { key } => write!(f, "taint `{key}` not tolerated"),
            Self::Constraint { attribute } => write!(f, "constraint over `{attribute}`"),
        }
    }
}

struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A card with hundreds of shares should not fill the screen.
        const SHOWN: usize = 4;
        match self.0 {
            [] => f.write_str("none"),
            names if names.len() <= SHOWN => f.write_str(&names.join(", ")),
            names => write!(f, "{} and {} more", names[..SHOWN].join(", "), names.len() - SHOWN),
        }
    }
}

/// A counter of one in the card's words.
struct CounterText<'a>(&'a str);

impl fmt::Display for CounterText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0.strip_prefix("mem").filter(|number| number.parse::<u8>().is_ok());
        match number {
            Some(number) => write!(f, "memory slice {number}"),
            None => write!(f, "`{}` of the card", self.0),
        }
    }
}

struct EffectText<'a>(&'a TaintEffect);

impl fmt::Display for EffectText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            TaintEffect::None => "None",
            TaintEffect::NoSchedule => "NoSchedule",
            TaintEffect::NoExecute => "NoExecute",
            TaintEffect::Other(text) => text,
        })
    }
}

struct ValueText<'a>(&'a AttributeValue);

impl fmt::Display for ValueText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            AttributeValue::Int(value) => write!(f, "{value}"),
            AttributeValue::Bool(value) => write!(f, "{value}"),
            AttributeValue::String(value) => write!(f, "`{value}`"),
            AttributeValue::Version(value) => write!(f, "{value}"),
            AttributeValue::Ints(values) => write!(f, "{values:?}"),
            AttributeValue::Bools(values) => write!(f, "{values:?}"),
            AttributeValue::Strings(values) | AttributeValue::Versions(values) => write!(f, "{values:?}"),
        }
    }
}
