//! How large values may be, and costs that stop at the largest number instead of overflowing, as upstream counts them.

/// A tenth of a unit for each character, a quarter for each character of a pattern.
pub(super) const PER_CHARACTER: f64 = 0.1;
pub(super) const PER_PATTERN_CHARACTER: f64 = 0.25;

/// Smallest and largest size of a value: characters, bytes, elements or entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) min: u64,
    pub(super) max: u64,
}

/// Whether entries are those of a list or of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Container {
    List,
    Map,
}

/// Sizes of what is in a list or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) container: Container,
    pub(super) key: Size,
    pub(super) value: Size,
}

// === impl Size ===

impl Size {
    /// Of something that nothing is known about.
    pub(super) const UNKNOWN: Self = Self { min: 0, max: u64::MAX };
    pub(super) const ONE: Self = Self::exactly(1);
    /// Of the elements of an empty list, and of those met so far.
    pub(super) const NONE: Self = Self::exactly(0);

    pub(super) const fn exactly(size: u64) -> Self {
        Self { min: size, max: size }
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// The union of many; that of none is [`Self::NONE`].
    pub(super) fn of_all(sizes: impl IntoIterator<Item = Self>) -> Self {
        sizes.into_iter().reduce(Self::union).unwrap_or(Self::NONE)
    }

    pub(super) const fn add(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(super) const fn multiply(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// The largest cost of walking over it.
    pub(super) fn cost(self, factor: f64) -> u64 {
        scaled(self.max, factor)
    }

    pub(super) fn walk(self) -> u64 {
        self.cost(PER_CHARACTER)
    }
}

// === impl Entry ===

impl Entry {
    pub(super) fn union(self, other: Self) -> Self {
        Self {
            container: self.container,
            key: self.key.union(other.key),
            value: self.value.union(other.value),
        }
    }
}

/// A number times a factor, rounded up.
#[expect(clippy::cast_precision_loss, reason = "upstream's arithmetic, with its rounding")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the bounds are checked before")]
pub(super) fn scaled(number: u64, factor: f64) -> u64 {
    const BEYOND: f64 = 18_446_744_073_709_551_616.0;
    let number = number as f64;
    if number > 0.0 && factor > 0.0 && number > BEYOND / factor {
        return u64::MAX;
    }
    match (number * factor).ceil() {
        result if result >= BEYOND => u64::MAX,
        result => result as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_stop_at_the_largest_number() {
        assert_eq!(scaled(7, 0.1), 1);
        assert_eq!(scaled(64, 0.1), 7);
        assert_eq!(scaled(0, 0.1), 0);
        assert_eq!(scaled(u64::MAX, 1.0), u64::MAX);
        assert_eq!(scaled(u64::MAX, 2.0), u64::MAX);
        assert_eq!(scaled(u64::MAX, 0.1), 1_844_674_407_370_955_264);
        assert_eq!(Size::UNKNOWN.multiply(Size::exactly(2)).max, u64::MAX);
    }
}
