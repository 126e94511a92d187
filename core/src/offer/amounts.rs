//! Amounts that a request may ask for and cannot mean: a unit was forgotten, or a fraction was written for percent.
//!
//! The API server stores them and the scheduler rounds them up, so a share of a few bytes becomes one of 1Mi without a word.
//! Commands and the agent say so by this one rule.

use std::fmt;

use super::{CAPACITY_CORES, CAPACITY_MEMORY, DRIVER};
use crate::dra::{DeviceRequest, ExactRequest, RequestKind, ResourceClaim};
use crate::quantity::{NANOS_PER_UNIT, Quantity};
use crate::units::Bytes;

/// Numbers without a unit up to this one are taken for Gi in the example of a message, larger ones for Mi.
const GIBIBYTES_MAX: u64 = 256;
/// From this number on it is neither: no card has as many Mi.
const MEBIBYTES_END: u64 = 1 << 19;
/// Percent of a whole card.
const PERCENT: i128 = 100;

/// What makes an amount doubtful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmountDoubt {
    /// Less memory than the smallest share.
    MemoryBelowLeast(Quantity),
    /// A part of a byte.
    PartOfByte(Quantity),
    /// Compute that is no whole percent.
    PartOfPercent(Quantity),
}

/// A doubtful amount of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoubtfulAmount {
    /// Request, or `request/alternative`.
    pub request: String,
    /// Name of the capacity, as written.
    pub capacity: String,
    /// Why.
    pub doubt: AmountDoubt,
}

/// Why `asked` of a capacity cannot be meant; `None` for other capacities and plausible amounts. Negative amounts are refused
/// elsewhere.
#[must_use]
pub fn doubt(capacity: &str, asked: Quantity) -> Option<AmountDoubt> {
    let own = capacity.strip_prefix(DRIVER).and_then(|rest| rest.strip_prefix('/')).unwrap_or(capacity);
    match own {
        _ if asked < Quantity::ZERO => None,
        CAPACITY_MEMORY if !asked.is_whole() => Some(AmountDoubt::PartOfByte(asked)),
        CAPACITY_MEMORY if asked < Bytes::MIB.quantity() => Some(AmountDoubt::MemoryBelowLeast(asked)),
        CAPACITY_CORES if !asked.is_whole() => Some(AmountDoubt::PartOfPercent(asked)),
        _ => None,
    }
}

/// The doubtful amounts of a claim's requests that this driver's devices were allocated for.
#[must_use]
pub fn doubtful_amounts(claim: &ResourceClaim) -> Vec<DoubtfulAmount> {
    let results = claim.allocation.iter().flat_map(|allocation| &allocation.devices);
    let ours: Vec<&str> =
        results.filter(|r| r.device.driver == DRIVER).map(|result| result.request.as_str()).collect();
    let asked =
        claim.requests.iter().flat_map(alternatives).filter(|(name, _)| ours.contains(&name.as_str()));
    let doubtful = asked.flat_map(|(request, exact)| {
        exact.capacity.iter().filter_map(move |(capacity, asked)| {
            let doubt = doubt(capacity, *asked)?;
            Some(DoubtfulAmount { request: request.clone(), capacity: capacity.clone(), doubt })
        })
    });
    doubtful.collect()
}

fn alternatives(request: &DeviceRequest) -> Vec<(String, &ExactRequest)> {
    match &request.kind {
        RequestKind::Exactly(exact) => vec![(request.name.clone(), exact)],
        RequestKind::FirstAvailable(list) => {
            list.iter().map(|sub| (format!("{}/{}", request.name, sub.name), &sub.request)).collect()
        }
    }
}

/// The amount with the unit that was probably left out.
fn with_unit(bytes: u64) -> String {
    match bytes {
        1..=GIBIBYTES_MAX => format!("{bytes}Gi"),
        0 | MEBIBYTES_END.. => "8Gi".to_owned(),
        _ => format!("{bytes}Mi"),
    }
}

// === impl AmountDoubt ===

impl fmt::Display for AmountDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemoryBelowLeast(asked) => {
                let bytes = u64::try_from(asked.units_rounded_up()).unwrap_or(0);
                let (least, example) = (Bytes::MIB, with_unit(bytes));
                let noun = if bytes == 1 { "byte" } else { "bytes" };
                write!(
                    f,
                    "found {bytes} {noun}, less than {least}, which a share has at least; write it with its unit, such as {example}"
                )
            }
            Self::PartOfByte(asked) => {
                write!(f, "found {asked}, expected whole bytes; write it with a unit, such as 512Mi")
            }
            Self::PartOfPercent(asked) => {
                let whole = asked.nanos() / NANOS_PER_UNIT + 1;
                write!(f, "found {asked}, expected whole percent of a card; {whole} is the next")?;
                let percent = asked.nanos() * PERCENT;
                // A fraction of a card.
                match percent % NANOS_PER_UNIT {
                    0 if asked.nanos() < NANOS_PER_UNIT => {
                        write!(f, ", and {} is that part of a card", percent / NANOS_PER_UNIT)
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

// === impl DoubtfulAmount ===

impl fmt::Display for DoubtfulAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request `{}`: {}: {}", self.request, self.capacity, self.doubt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(capacity: &str, asked: &str) -> Option<String> {
        doubt(capacity, asked.parse().unwrap()).map(|doubt| doubt.to_string())
    }

    #[test]
    fn doubtful_amounts_are_said_with_their_remedy() {
        let cases = [
            (
                "memory",
                "8000",
                "found 8000 bytes, less than 1Mi, which a share has at least; write it with its unit, such as 8000Mi",
            ),
            (
                "aliquot.dev/memory",
                "16",
                "found 16 bytes, less than 1Mi, which a share has at least; write it with its unit, such as 16Gi",
            ),
            ("memory", "0", "found 0 bytes, less than 1Mi"),
            ("memory", "1", "found 1 byte, less"),
            // Mega, written as milli.
            ("memory", "8000m", "found 8 bytes, less than 1Mi"),
            ("memory", "8k", "found 8000 bytes, less than 1Mi"),
            ("memory", "1023Ki", "such as 8Gi"),
            ("memory", "8000000001m", "expected whole bytes; write it with a unit, such as 512Mi"),
            (
                "cores",
                "0.3",
                "found 300m, expected whole percent of a card; 1 is the next, and 30 is that part of a card",
            ),
            ("cores", "500m", "1 is the next, and 50 is that part of a card"),
            ("aliquot.dev/cores", "12.5", "found 12500m, expected whole percent of a card; 13 is the next"),
        ];
        for (capacity, asked, expected) in cases {
            let found = words(capacity, asked).unwrap_or_default();
            assert!(found.contains(expected), "{capacity} {asked}: {found}");
        }
    }

    #[test]
    fn plausible_amounts_and_other_capacities_are_no_doubt() {
        let cases = [
            ("memory", "1Mi"),
            ("memory", "8G"),
            ("memory", "1048576"),
            ("memory", "-1"),
            ("cores", "0"),
            ("cores", "25"),
            ("cores", "100"),
            ("cpu.example.com/memory", "8000"),
            ("slots", "0.5"),
        ];
        for (capacity, asked) in cases {
            assert_eq!(words(capacity, asked), None, "{capacity} {asked}");
        }
    }
}
