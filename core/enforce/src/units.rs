//! Quantities of the compute controller.

/// Nanoseconds: a point on the monotonic clock, or a length of time; which one, the name of the field says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// Parts per million of a card's time; at most [`Ppm::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ppm(u32);

impl Nanos {
    /// None.
    pub const ZERO: Self = Self(0);
    /// The end of time.
    pub const MAX: Self = Self(u64::MAX);

    /// So many microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// So many milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// The sum; the end of time where it is beyond.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference; none where `other` is greater.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// As a signed amount, for sums that may pass zero.
    #[must_use]
    pub fn signed(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

impl Ppm {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// All of it.
    pub const ALL: Self = Self(1_000_000);

    /// So many parts; more than all is all.
    #[must_use]
    pub const fn new(parts: u32) -> Self {
        if parts > Self::ALL.0 { Self::ALL } else { Self(parts) }
    }

    /// The number of parts.
    #[must_use]
    pub const fn parts(self) -> u32 {
        self.0
    }

    /// How much `part` is of `whole`; all of it where it is more, or there is no whole.
    #[must_use]
    pub fn of(part: Nanos, whole: Nanos) -> Self {
        let parts = (u128::from(part.0) * 1_000_000).checked_div(u128::from(whole.0));
        parts.and_then(|parts| u32::try_from(parts).ok()).map_or(Self::ALL, Self::new)
    }

    /// This part of a length of time, rounded down.
    #[must_use]
    pub fn times(self, whole: Nanos) -> Nanos {
        if let Some(product) = whole.0.checked_mul(u64::from(self.0)) {
            return Nanos(product / 1_000_000);
        }
        let part = u128::from(whole.0) * u128::from(self.0) / 1_000_000;
        Nanos(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// How long it takes at this share to earn `amount`; the end of time at no share.
    #[must_use]
    pub fn earns(self, amount: Nanos) -> Nanos {
        let time = (u128::from(amount.0) * 1_000_000).checked_div(u128::from(self.0));
        Nanos(time.and_then(|time| u64::try_from(time).ok()).unwrap_or(u64::MAX))
    }

    /// The sum, at most all.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self::new(self.0.saturating_add(other.0))
    }

    /// The difference, at least nothing.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}
