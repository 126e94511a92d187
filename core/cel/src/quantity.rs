//! Kubernetes quantities: exact numbers with a unit suffix, as `resource.Quantity` reads and prints them.
//!
//! A quantity is an integer count of nano-units held in an `i128`, together with the suffix family it was written
//! in. `1Gi`, `1073741824` and `1.073741824G` are the same amount and compare equal; each prints in its own family.
//!
//! Invariants: the amount is exact to a nano-unit (finer input is rounded up in magnitude, as Kubernetes does);
//! `parse(print(q)) == q`; no operation wraps.

mod meant;

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Nano-units in one unit.
pub const NANOS_PER_UNIT: i128 = 1_000_000_000;

/// A binary quantity is capped at 2^63 − 1 units when it is read, as Kubernetes caps it.
const MAX_BINARY_NANOS: i128 = (i64::MAX as i128) * NANOS_PER_UNIT;

/// Any other amount is capped at 10^28 units, where Kubernetes has no bound; sums of two still fit.
const MAX_NANOS: i128 = 10_i128.pow(28) * NANOS_PER_UNIT;

/// The suffix family a quantity is printed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `Ki`, `Mi`, `Gi`, …: powers of 1024.
    BinarySi,
    /// `n`, `u`, `m`, none, `k`, `M`, `G`, …: powers of 1000.
    DecimalSi,
    /// `e3`, `E-3`, …: powers of 1000 written as an exponent.
    DecimalExponent,
}

/// An exact amount; see the module text. Ordering and equality look at the amount, never at the format.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a quantity: {why}; expected a number with an optional suffix such as 8Gi, 500m, 1e9{}",
    Instead(meant)
)]
pub struct QuantityError {
    /// The text as found (cut at 64 bytes).
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
    /// What it may stand for; empty where that is not clear.
    pub meant: Vec<String>,
}

/// What to write in the place of a text.
struct Instead<'a>(&'a [String]);

// === impl QuantityError ===

impl QuantityError {
    /// What is wrong, and what to write, for messages with the text in them.
    #[must_use]
    pub fn problem(&self) -> String {
        format!("{}{}", self.why, Instead(&self.meant))
    }
}

// === impl Quantity ===

impl Quantity {
    /// Reads an amount of a command line: a quantity of Kubernetes, or a text with one meaning (`8GiB`, `8gi`, `8 Gi`). `8GB` is
    /// refused, because it is used for 8Gi and for 8G.
    ///
    /// # Errors
    /// [`QuantityError`], with the possible meanings of the text.
    pub fn typed(text: &str) -> Result<Self, QuantityError> {
        text.parse().or_else(|error: QuantityError| match &error.meant[..] {
            [only] => only.parse(),
            _ => Err(error),
        })
    }

    /// Zero, in decimal form.
    pub const ZERO: Self = Self { nanos: 0, format: Format::DecimalSi };

    /// A whole number of units, printed in `format`.
    #[must_use]
    pub const fn from_units(units: i64, format: Format) -> Self {
        Self { nanos: units as i128 * NANOS_PER_UNIT, format }
    }

    /// A number of nano-units, capped to ±10^28 units.
    #[must_use]
    pub fn from_nanos(nanos: i128, format: Format) -> Self {
        Self { nanos: nanos.clamp(-MAX_NANOS, MAX_NANOS), format }
    }

    /// The exact amount in nano-units.
    #[must_use]
    pub const fn nanos(self) -> i128 {
        self.nanos
    }

    /// The suffix family it prints in.
    #[must_use]
    pub const fn format(self) -> Format {
        self.format
    }

    /// Whole units, fractions rounded away from zero: what Kubernetes' `Value()` returns.
    #[must_use]
    pub fn units_rounded_up(self) -> i64 {
        let whole = self.nanos / NANOS_PER_UNIT;
        let rounded = match self.nanos % NANOS_PER_UNIT {
            0 => whole,
            rest => whole + rest.signum(),
        };
        i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    }

    /// The amount as an integer, if it is one that fits in 64 bits: what Kubernetes' `AsInt64()` returns.
    #[must_use]
    pub fn as_integer(self) -> Option<i64> {
        if self.is_whole() { i64::try_from(self.nanos / NANOS_PER_UNIT).ok() } else { None }
    }

    /// The amount as a double, to the nearest that doubles allow: Kubernetes' `AsApproximateFloat64()`.
    #[must_use]
    pub fn approximate(self) -> f64 {
        if self.is_whole() {
            return (self.nanos / NANOS_PER_UNIT) as f64;
        }
        self.nanos as f64 / NANOS_PER_UNIT as f64
    }

    /// Whether the amount is a whole number of units.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.nanos % NANOS_PER_UNIT == 0
    }

    /// The sum, capped; keeps the left format unless the left side is zero.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self::from_nanos(self.nanos.saturating_add(other.nanos), format)
    }

    /// The difference, capped; keeps the left format unless the left side is zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self::from_nanos(self.nanos.saturating_sub(other.nanos), format)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail =
            |why| QuantityError { text: text.chars().take(64).collect(), why, meant: meant::meant(text) };
        let (negative, body) = match text.as_bytes().first() {
            None => return Err(fail("it is empty")),
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            Some(_) => (false, text),
        };
        let number_end = body.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(body.len());
        let (number, suffix) = body.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') {
            return Err(fail("it has two decimal points"));
        }
        if whole.is_empty() && fraction.is_empty() {
            return Err(fail("it has no digits"));
        }
        let scale = Scale::parse(suffix).ok_or_else(|| fail("its suffix is unknown"))?;
        let nanos = scale.nanos_of(whole, fraction);
        Ok(Self::from_nanos(if negative { -nanos } else { nanos }, scale.format()))
    }
}

impl fmt::Display for Instead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => Ok(()),
            meant => write!(f, "; write {}", meant.join(" or ")),
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        match self.format {
            // Kubernetes prints a binary quantity below 1024 or with a fraction in decimal form.
            Format::BinarySi if self.is_whole() && self.nanos.abs() >= 1024 * NANOS_PER_UNIT => {
                let mut units = self.nanos / NANOS_PER_UNIT;
                let mut step = 0;
                while units % 1024 == 0 && step < BINARY_SUFFIXES.len() - 1 {
                    units /= 1024;
                    step += 1;
                }
                write!(f, "{units}{}", BINARY_SUFFIXES[step])
            }
            Format::BinarySi | Format::DecimalSi => {
                let (mantissa, thousands) = self.decimal_parts();
                write!(f, "{mantissa}{}", DECIMAL_SUFFIXES[usize::try_from(thousands + 3).unwrap_or(3)])
            }
            Format::DecimalExponent => match self.decimal_parts() {
                (mantissa, 0) => write!(f, "{mantissa}"),
                (mantissa, thousands) => write!(f, "{mantissa}e{}", thousands * 3),
            },
        }
    }
}

/// Amounts that are compared, as people read them: binary ones in the largest unit in which all are whole.
#[must_use]
pub fn in_one_unit<const N: usize>(amounts: [Quantity; N]) -> [String; N] {
    let units = |amount: Quantity| {
        let whole = amount.as_integer().filter(|_| amount.format == Format::BinarySi)?;
        (whole == 0 || whole.unsigned_abs() >= 1024).then_some(whole)
    };
    if amounts.iter().any(|amount| units(*amount).is_none()) {
        return amounts.map(|amount| amount.to_string());
    }
    let zeros = |amount: &Quantity| {
        units(*amount).filter(|units| *units != 0).map(|units| units.trailing_zeros() / 10)
    };
    let step = amounts.iter().filter_map(zeros).min().unwrap_or(0);
    amounts.map(|amount| match units(amount) {
        None | Some(0) => "0".to_owned(),
        Some(units) => {
            let suffix = usize::try_from(step).ok().and_then(|step| BINARY_SUFFIXES.get(step)).copied();
            format!("{}{}", units >> (10 * step), suffix.unwrap_or_default())
        }
    })
}

impl Quantity {
    /// Mantissa without trailing zero triples, and the power of 1000 that goes with it: from −3 on, to 6 where it is a suffix.
    fn decimal_parts(self) -> (i128, i32) {
        let largest = match self.format {
            Format::DecimalExponent => i32::MAX,
            Format::BinarySi | Format::DecimalSi => 6,
        };
        let (mut mantissa, mut thousands) = (self.nanos, -3);
        while mantissa % 1000 == 0 && thousands < largest {
            mantissa /= 1000;
            thousands += 1;
        }
        (mantissa, thousands)
    }
}

const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL_SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// What a suffix multiplies by.
#[derive(Clone, Copy)]
enum Scale {
    Binary { power_of_1024: u32 },
    Decimal { exponent: i32, written: Format },
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        if suffix.is_empty() {
            return Some(Self::Decimal { exponent: 0, written: Format::DecimalSi });
        }
        if let Some(power) = BINARY_SUFFIXES.iter().position(|s| *s == suffix) {
            return Some(Self::Binary { power_of_1024: u32::try_from(power).ok()? });
        }
        if let Some(step) = DECIMAL_SUFFIXES.iter().position(|s| *s == suffix) {
            return Some(Self::Decimal {
                exponent: i32::try_from(step).ok()? * 3 - 9,
                written: Format::DecimalSi,
            });
        }
        let digits = suffix.strip_prefix(['e', 'E'])?;
        let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
        if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        // A huge exponent saturates: the amount is capped (or rounds up to one nano-unit) all the same.
        let exponent = digits.parse::<i64>().unwrap_or(if digits.starts_with('-') { -1000 } else { 1000 });
        let exponent = i32::try_from(exponent.clamp(-1000, 1000)).ok()?;
        Some(Self::Decimal { exponent, written: Format::DecimalExponent })
    }

    const fn format(self) -> Format {
        match self {
            Self::Binary { .. } => Format::BinarySi,
            Self::Decimal { written, .. } => written,
        }
    }

    /// Nano-units of `whole.fraction` at this scale; rounds up to a nano-unit, saturates at the cap.
    fn nanos_of(self, whole: &str, fraction: &str) -> i128 {
        let (exponent, nanos_per_one) = match self {
            Self::Binary { power_of_1024 } => (0, NANOS_PER_UNIT * 1024_i128.pow(power_of_1024)),
            Self::Decimal { exponent, .. } => (i64::from(exponent), NANOS_PER_UNIT),
        };
        let digits: Vec<i128> = whole.bytes().chain(fraction.bytes()).map(|b| i128::from(b - b'0')).collect();
        let point = i64::try_from(whole.len()).unwrap_or(i64::MAX).saturating_add(exponent);
        let kept = usize::try_from(point).unwrap_or(0);
        let mut ones: i128 = 0;
        for digit in digits.iter().copied().chain(std::iter::repeat(0)).take(kept) {
            ones = (ones * 10 + digit).min(MAX_NANOS);
        }
        let (mut rest, mut inexact) = (0_i128, false);
        let leading_zeros = usize::try_from(-point).unwrap_or(0);
        for digit in digits.iter().skip(kept).rev().copied().chain(std::iter::repeat_n(0, leading_zeros)) {
            rest += digit * nanos_per_one;
            inexact |= rest % 10 != 0;
            rest /= 10;
        }
        let nanos =
            ones.saturating_mul(nanos_per_one).min(MAX_NANOS).saturating_add(rest + i128::from(inexact));
        match self {
            Self::Binary { .. } => nanos.min(MAX_BINARY_NANOS),
            Self::Decimal { .. } => nanos.min(MAX_NANOS),
        }
    }
}

#[cfg(test)]
mod tests;
