//! How much of a capacity a share takes: Kubernetes' request policies (KEP-5075), to the unit.
//!
//! ```text
//!            not asked ──▶ default, else the whole value
//!   asked ─▶ no policy ──▶ as asked
//!            range     ──▶ raised to min ─▶ up to min + k·step ─▶ refused above max
//!            values    ──▶ the next listed value ─▶ refused above the last
//! ```
//!
//! The grid is the API server's: `min`, `step` and the request count as whole units, fractions rounded up, in 64-bit
//! integers. An amount that the grid produced is binary (`10Gi`); any other keeps the format it was written in.
//!
//! [`consumption`] is what the scheduler charges; [`policy_problems`] is what the API server refuses to store. A policy
//! without problems never makes [`consumption`] fail for its own default.

use std::fmt;

use crate::dra::{CapacityPolicy, CapacityRestriction, DeviceCapacity, Sharing};
use crate::quantity::{Format, NANOS_PER_UNIT, Quantity};

/// Most entries that `validValues` may have.
pub const VALID_VALUES_MAX: usize = 10;

/// Why a device cannot serve an amount; the device is then not eligible for the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAllowed {
    /// Rounded up, the amount passes the largest one allowed.
    #[error("asked {asked}, which takes {takes}, but at most {max} may be asked ({grid})")]
    AboveMax {
        /// The request.
        asked: Quantity,
        /// What that comes to on the grid.
        takes: Quantity,
        /// The range's largest amount.
        max: Quantity,
        /// The range's smallest amount and grid.
        grid: Box<Grid>,
    },
    /// The amount is not `min` + k·`step`; happens to raised or defaulted amounts of a malformed policy.
    #[error("{asked} is not on the grid of {min} plus multiples of {step}")]
    OffGrid {
        /// The request, or the amount taken without one.
        asked: Quantity,
        /// The range's smallest amount.
        min: Quantity,
        /// The range's grid.
        step: Quantity,
    },
    /// No listed value is large enough.
    #[error("asked {asked}, but the largest of the {count} values that may be asked is {largest}")]
    AboveValues {
        /// The request.
        asked: Quantity,
        /// How many values there are.
        count: usize,
        /// The last of them.
        largest: Quantity,
    },
    /// The step is zero, so there is no grid; the API server refuses such a policy from 1.37 on.
    #[error("asked {asked}, but the step {step} is not a positive number of units")]
    NoGrid {
        /// The request.
        asked: Quantity,
        /// The step as published.
        step: Quantity,
    },
    /// The grid point lies beyond 2^63 − 1 units.
    #[error("asked {asked}, and the next step of {step} above that is beyond 2^63 - 1")]
    TooLarge {
        /// The request.
        asked: Quantity,
        /// The range's grid.
        step: Quantity,
    },
}

/// The amounts a range allows below its maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The smallest amount.
    pub min: Quantity,
    /// The distance between amounts, if they are bound to a grid.
    pub step: Option<Quantity>,
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(step) => write!(f, "min {}, step {step}", self.min),
            None => write!(f, "min {}", self.min),
        }
    }
}

/// What a share takes of `capacity` when a request asks for `asked` of it, or does not name it (`None`).
///
/// Uses the policy alone: the ledger checks whether that much is left.
///
/// # Errors
/// The device is not eligible for the request: above the maximum, off the grid, or no listed value is large enough.
pub fn consumption(capacity: &DeviceCapacity, asked: Option<Quantity>) -> Result<Quantity, NotAllowed> {
    let Some(policy) = &capacity.policy else {
        return Ok(asked.unwrap_or(capacity.value));
    };
    let Some(asked) = asked else {
        return match policy.default {
            // The default is taken as it stands, even where the API server would not have accepted it.
            Some(default) => Ok(default),
            None => permitted(policy, capacity.value, capacity.value),
        };
    };
    let takes = match &policy.restriction {
        CapacityRestriction::None => asked,
        CapacityRestriction::Range { min, .. } if asked < *min => *min,
        CapacityRestriction::Range { step: None, .. } => asked,
        CapacityRestriction::Range { min, step: Some(step), .. } => up_to_grid(asked, *min, *step)?,
        CapacityRestriction::Values(values) => {
            values.iter().copied().find(|value| asked <= *value).unwrap_or(asked)
        }
    };
    permitted(policy, asked, takes)
}

/// Whether the scheduler of 1.37 gives the claim up for this amount: it is negative, or on a grid beyond 2^63 - 1 units.
#[must_use]
pub fn is_out_of_range(capacity: &DeviceCapacity, asked: Option<Quantity>) -> bool {
    let restriction = capacity.policy.as_ref().map(|policy| &policy.restriction);
    match (restriction, asked) {
        (Some(CapacityRestriction::Range { min, step: Some(step), .. }), Some(asked)) if asked >= *min => {
            let most = i128::from(i64::MAX) * NANOS_PER_UNIT;
            asked.nanos() > most || matches!(up_to_grid(asked, *min, *step), Err(NotAllowed::TooLarge { .. }))
        }
        _ => consumption(capacity, asked).is_ok_and(|takes| takes.nanos() < 0),
    }
}

/// The grid point at or above `asked`, which is at least `min`.
fn up_to_grid(asked: Quantity, min: Quantity, step: Quantity) -> Result<Quantity, NotAllowed> {
    let (start, width) = (min.units_rounded_up(), step.units_rounded_up());
    if width <= 0 {
        return Err(NotAllowed::NoGrid { asked, step });
    }
    let above = i128::from(asked.units_rounded_up()) - i128::from(start);
    let width = i128::from(width);
    let steps = above.div_euclid(width) + i128::from(above.rem_euclid(width) != 0);
    i64::try_from(i128::from(start) + steps * width)
        .map(|units| Quantity::from_units(units, Format::BinarySi))
        .map_err(|_| NotAllowed::TooLarge { asked, step })
}

/// `takes`, if the policy lets a share have exactly that.
fn permitted(policy: &CapacityPolicy, asked: Quantity, takes: Quantity) -> Result<Quantity, NotAllowed> {
    match &policy.restriction {
        CapacityRestriction::None => Ok(takes),
        CapacityRestriction::Range { min, max, step } => {
            if let Some(max) = max
                && takes > *max
            {
                let grid = Box::new(Grid { min: *min, step: *step });
                return Err(NotAllowed::AboveMax { asked, takes, max: *max, grid });
            }
            match step {
                Some(step) if !on_grid(takes, *min, *step) => {
                    Err(NotAllowed::OffGrid { asked, min: *min, step: *step })
                }
                _ => Ok(takes),
            }
        }
        // An empty list restricts nothing.
        CapacityRestriction::Values(values) => match values.last() {
            Some(largest) if !values.contains(&takes) => {
                Err(NotAllowed::AboveValues { asked, count: values.len(), largest: *largest })
            }
            _ => Ok(takes),
        },
    }
}

/// Whether `amount` is `min` + k·`step`, in whole units. Nothing is on a grid of width zero.
fn on_grid(amount: Quantity, min: Quantity, step: Quantity) -> bool {
    let above = i128::from(amount.units_rounded_up()) - i128::from(min.units_rounded_up());
    above.checked_rem(i128::from(step.units_rounded_up())) == Some(0)
}

/// One thing the API server would refuse in a capacity's policy; prints as the API server's own message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {fault}")]
pub struct PolicyProblem {
    /// Path below the capacity, such as `requestPolicy.validRange.min`.
    pub field: String,
    /// What is wrong there.
    pub fault: PolicyFault,
}

/// What is wrong with a field of a request policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyFault {
    /// It may not be set here.
    #[error("Forbidden: {0}")]
    Forbidden(&'static str),
    /// It must be set here.
    #[error("Required value: {0}")]
    Required(&'static str),
    /// Its value breaks a rule.
    #[error("Invalid value: \"{found}\": {rule}")]
    Invalid {
        /// The offending amount.
        found: Quantity,
        /// The rule, with the amounts it compares to.
        rule: String,
    },
    /// The list is too long.
    #[error("Too many: {found}: must have at most {max} items")]
    TooMany {
        /// Entries found.
        found: usize,
        /// Entries allowed.
        max: usize,
    },
    /// The same amount, in whole units, is listed before.
    #[error("Duplicate value: \"{0}\"")]
    Duplicate(i64),
}

/// Everything that the API server would refuse in the policy of `capacity`: 1.36, and 1.37, which refuses steps of zero, on
/// which 1.36 crashes, and amounts that a grid cannot be computed with.
///
/// Empty for a capacity without a policy.
#[must_use]
pub fn policy_problems(capacity: &DeviceCapacity, sharing: Sharing) -> Vec<PolicyProblem> {
    let Some(policy) = &capacity.policy else {
        return Vec::new();
    };
    let mut report = PolicyReport::default();
    if sharing == Sharing::Exclusive {
        report.add("", PolicyFault::Forbidden("allowMultipleAllocations must be true"));
        return report.problems;
    }
    match (&policy.restriction, policy.default) {
        (CapacityRestriction::None, _) => {}
        (CapacityRestriction::Values(values), _) if values.is_empty() => {}
        (CapacityRestriction::Values(_), None) => {
            report.add(".default", PolicyFault::Required("required when validValues is defined"));
        }
        (CapacityRestriction::Range { .. }, None) => {
            report.add(".default", PolicyFault::Required("required when validRange is defined"));
        }
        (CapacityRestriction::Values(values), Some(default)) => {
            report.values(values, default, capacity.value);
        }
        (CapacityRestriction::Range { min, max, step }, Some(default)) => {
            report.range(*min, *max, default, capacity.value);
            if let Some(step) = step {
                report.step(*min, *max, *step, default, capacity.value);
            }
        }
    }
    report.problems
}

#[derive(Default)]
struct PolicyReport {
    problems: Vec<PolicyProblem>,
}

impl PolicyReport {
    fn add(&mut self, below_policy: &str, fault: PolicyFault) {
        self.problems.push(PolicyProblem { field: format!("requestPolicy{below_policy}"), fault });
    }

    fn invalid_if(&mut self, broken: RuleCheck, below_policy: &str, found: Quantity, rule: String) {
        if broken == RuleCheck::Yes {
            self.add(below_policy, PolicyFault::Invalid { found, rule });
        }
    }

    fn values(&mut self, values: &[Quantity], default: Quantity, whole: Quantity) {
        for (index, pair) in values.windows(2).enumerate() {
            let path = format!(".validValues[{}]", index + 1);
            let rule = "values must be sorted in ascending order".to_owned();
            self.invalid_if((pair[0] > pair[1]).into(), &path, pair[1], rule);
        }
        let too_many = values.len() > VALID_VALUES_MAX;
        if too_many {
            let fault = PolicyFault::TooMany { found: values.len(), max: VALID_VALUES_MAX };
            self.add(".validValues", fault);
        } else {
            for (index, value) in values.iter().enumerate() {
                let rule = format!("option is larger than capacity value: {whole}");
                let path = format!(".validValues[{index}]");
                self.invalid_if((*value > whole).into(), &path, *value, rule);
            }
            for (index, value) in values.iter().enumerate() {
                let units = value.units_rounded_up();
                if values[..index].iter().any(|earlier| earlier.units_rounded_up() == units) {
                    self.add(&format!(".validValues[{index}]"), PolicyFault::Duplicate(units));
                }
            }
        }
        let rule = "default value is not valid according to the requestPolicy".to_owned();
        self.invalid_if((too_many || !values.contains(&default)).into(), ".validValues", default, rule);
    }

    fn range(&mut self, min: Quantity, max: Option<Quantity>, default: Quantity, whole: Quantity) {
        let (at_min, at_max) = (".validRange.min", ".validRange.max");
        let rule = format!("min is larger than capacity value: {whole}");
        self.invalid_if((min > whole).into(), at_min, min, rule);
        self.invalid_if((default < min).into(), at_min, default, format!("default is less than min: {min}"));
        if let Some(max) = max {
            self.invalid_if((min > max).into(), at_max, min, format!("min is larger than max: {max}"));
            let rule = format!("max is larger than capacity value: {whole}");
            self.invalid_if((max > whole).into(), at_max, max, rule);
            let rule = format!("default is more than max: {max}");
            self.invalid_if((default > max).into(), at_max, default, rule);
        }
    }

    fn step(
        &mut self,
        min: Quantity,
        max: Option<Quantity>,
        step: Quantity,
        default: Quantity,
        whole: Quantity,
    ) {
        let path = ".validRange.step";
        let first = min.plus(step);
        let rule = format!("one step {first} is larger than capacity value: {whole}");
        self.invalid_if((first > whole).into(), path, step, rule);
        if step.units_rounded_up() <= 0 {
            self.add(path, PolicyFault::Invalid { found: step, rule: "must be greater than 0".to_owned() });
            return;
        }
        let amounts = [(".default", Some(default)), (".validRange.min", Some(min)), (".validRange.max", max)];
        let amounts = amounts.into_iter().chain([(path, Some(step))]);
        for (field, amount) in amounts.filter_map(|(field, amount)| Some((field, amount?))) {
            let rule = "must be greater than or equal to 0 beside a step".to_owned();
            self.invalid_if((amount.nanos() < 0).into(), field, amount, rule);
            let rule = format!("must not be larger than {} beside a step", i64::MAX);
            self.invalid_if(
                (amount > Quantity::from_units(i64::MAX, amount.format())).into(),
                field,
                amount,
                rule,
            );
        }
        for amount in std::iter::once(default).chain(max) {
            let rule = format!("value is not a multiple of a given step ({step}) from ({min})");
            self.invalid_if((!on_grid(amount, min, step)).into(), path, amount, rule);
        }
    }
}

/// Whether a rule is broken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleCheck {
    Yes,
    No,
}

impl From<bool> for RuleCheck {
    fn from(broken: bool) -> Self {
        if broken { Self::Yes } else { Self::No }
    }
}

#[cfg(test)]
mod tests;
