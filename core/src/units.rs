//! Quantities of a card with their unit in the type: memory in bytes, compute in percent of a whole card, fractions.

use std::fmt;

use crate::quantity::{Format, Quantity};

/// Bytes of device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// Compute in percent of the *whole card*, 0 to 100; 0 is best effort: idle compute only, no guarantee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cores(u8);

/// A part of a card, in lowest terms; more than nothing, at most the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fraction {
    numerator: u32,
    denominator: u32,
}

// === impl Bytes ===

impl Bytes {
    /// One mebibyte: the grid on which memory shares are handed out.
    pub const MIB: Self = Self(1 << 20);

    /// This many mebibytes; `None` on overflow.
    #[must_use]
    pub const fn from_mib(mib: u64) -> Option<Self> {
        match mib.checked_mul(1 << 20) {
            Some(bytes) => Some(Self(bytes)),
            None => None,
        }
    }

    /// Without what is less than a mebibyte: what is published, since Kubernetes rounds shares in whole steps.
    #[must_use]
    pub const fn whole_mib(self) -> Self {
        Self(self.0 - self.0 % Self::MIB.0)
    }

    /// As a Kubernetes quantity in binary form; amounts of 2^63 and more are capped.
    #[must_use]
    pub fn quantity(self) -> Quantity {
        Quantity::from_units(i64::try_from(self.0).unwrap_or(i64::MAX), Format::BinarySi)
    }

    /// The sum; `None` on overflow.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(bytes) => Some(Self(bytes)),
            None => None,
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.quantity().to_string())
    }
}

// === impl Cores ===

impl Cores {
    /// All of a card.
    pub const ALL: Self = Self(100);
    /// Best effort.
    pub const NONE: Self = Self(0);

    /// This many percent; `None` above 100.
    #[must_use]
    pub const fn new(percent: u8) -> Option<Self> {
        if percent <= 100 { Some(Self(percent)) } else { None }
    }

    /// Percent of the whole card.
    #[must_use]
    pub const fn percent(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}%", self.0))
    }
}

// === impl Fraction ===

impl Fraction {
    /// The whole card.
    pub const WHOLE: Self = Self { numerator: 1, denominator: 1 };

    /// `numerator/denominator` in lowest terms; `None` if it is nothing, more than the whole, or divides by zero.
    #[must_use]
    pub const fn new(numerator: u32, denominator: u32) -> Option<Self> {
        if numerator == 0 || denominator == 0 || numerator > denominator {
            return None;
        }
        let (mut a, mut b) = (numerator, denominator);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Some(Self { numerator: numerator / a, denominator: denominator / a })
    }

    /// Upper part.
    #[must_use]
    pub const fn numerator(self) -> u32 {
        self.numerator
    }

    /// Lower part.
    #[must_use]
    pub const fn denominator(self) -> u32 {
        self.denominator
    }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Fraction {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let left = u64::from(self.numerator) * u64::from(other.denominator);
        left.cmp(&(u64::from(other.numerator) * u64::from(self.denominator)))
    }
}

impl fmt::Display for Fraction {
    /// `1` for the whole, else `n/d`: the spelling of the published attribute.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => f.pad("1"),
            d => f.pad(&format!("{}/{d}", self.numerator)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_in_lowest_terms_and_ordered() {
        assert_eq!(Fraction::new(2, 8), Fraction::new(1, 4));
        assert_eq!(Fraction::new(2, 8).unwrap().to_string(), "1/4");
        assert_eq!(Fraction::WHOLE.to_string(), "1");
        assert!(Fraction::new(3, 8) > Fraction::new(1, 4));
        for (n, d) in [(0, 4), (1, 0), (5, 4)] {
            assert_eq!(Fraction::new(n, d), None);
        }
    }
}
