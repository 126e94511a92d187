//! The amounts that one container asks for, as numbers of one kind, and the part of a card that they make.

use aliquot_core::quantity::Quantity;
use aliquot_core::units::Bytes;

use super::vocabulary::Unit;

/// Hundredths of a percent in all of a card.
pub(super) const WHOLE: u32 = 10_000;
/// Most cards of one request that Kubernetes allocates.
const CARDS_MAX: u64 = 32;

/// What was asked for, each amount at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Amounts {
    /// Number of cards.
    pub(super) cards: Option<u64>,
    /// Memory of each card.
    pub(super) memory: Option<Bytes>,
    /// Memory of all cards together.
    pub(super) memory_of_all: Option<Bytes>,
    /// Part of a card's memory, in hundredths of a percent.
    pub(super) memory_part: Option<u32>,
    /// Percent of a card's compute.
    pub(super) cores: Option<u64>,
    /// Part of a card's memory, in hundredths of a percent, all cards together.
    pub(super) memory_part_of_all: Option<u64>,
    /// Percent of a card's compute, all cards together.
    pub(super) cores_of_all: Option<u64>,
    /// Percent of cards' compute, above 100 that of several.
    pub(super) cores_of_cards: Option<u64>,
    /// Percent of cards, memory and compute alike.
    pub(super) percent_of_cards: Option<u64>,
}

/// Memory of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShareMemory {
    /// All of the card.
    All,
    /// So much.
    Size(Bytes),
    /// So many hundredths of a percent: it depends on the card.
    Part(u32),
}

/// What each card of the request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CardPart {
    /// All of it.
    Whole,
    /// A share.
    Share {
        /// Its memory.
        memory: ShareMemory,
        /// Percent of compute; 0 is best effort.
        cores: u8,
    },
}

// === impl Amounts ===

impl Amounts {
    /// Takes one more amount.
    ///
    /// # Errors
    /// The text is no amount of this unit, or the amount was there already; the text says what was expected.
    pub(super) fn take(&mut self, unit: Unit, text: &str) -> Result<(), String> {
        let percent = |most: u64| match whole(text) {
            Some(percent) if percent <= most => Ok(percent),
            _ => Err(format!("it is no whole percentage from 0 to {most}")),
        };
        let mebibytes = |each: u64| {
            let number = whole(text).and_then(|number| number.checked_mul(each));
            let bytes = number.and_then(Bytes::from_mib).filter(|bytes| bytes.0 > 0);
            bytes.ok_or_else(|| match each {
                1 => "it is no whole number of MiB above 0, without a unit".to_owned(),
                each => format!("it is no whole number above 0, in units of {each} MiB"),
            })
        };
        match unit {
            Unit::Cards | Unit::Replicas => {
                let cards = whole(text).filter(|cards| (1..=CARDS_MAX).contains(cards));
                let cards = cards.ok_or_else(|| format!("it is no number of cards from 1 to {CARDS_MAX}"))?;
                set(&mut self.cards, cards)
            }
            Unit::Memory(each) => set(&mut self.memory, mebibytes(each)?),
            Unit::MemoryOfAll(each) => set(&mut self.memory_of_all, mebibytes(each)?),
            Unit::MemoryQuantity => set(&mut self.memory, quantity(text)?),
            Unit::MemoryPercent => {
                let part = u32::try_from(percent(100)?).unwrap_or(0) * 100;
                // HAMi reads none as all.
                set(&mut self.memory_part, if part == 0 { WHOLE } else { part })
            }
            Unit::MemoryQuantityOfAll => set(&mut self.memory_of_all, quantity(text)?),
            Unit::MemoryPercentOfAll => set(&mut self.memory_part_of_all, percent(100 * CARDS_MAX)? * 100),
            Unit::CoresOfAll => set(&mut self.cores_of_all, percent(100 * CARDS_MAX)?),
            Unit::Cores => set(&mut self.cores, percent(100)?),
            Unit::CoresOfCards => set(&mut self.cores_of_cards, percent(100 * CARDS_MAX)?),
            Unit::PercentOfCards => set(&mut self.percent_of_cards, percent(100 * CARDS_MAX)?),
            _ => Ok(()),
        }
    }

    /// Takes a part of each card, such as `0.5`.
    ///
    /// # Errors
    /// It is no number between 0 and 1 with four decimals at most.
    pub(super) fn take_fraction(&mut self, text: &str) -> Result<(), String> {
        let expected = || "it is no fraction above 0 and up to 1, with four decimals at most".to_owned();
        let (whole, decimals) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !(digits(whole) && digits(decimals) && decimals.len() <= 4 && whole.len() <= 2) {
            return Err(expected());
        }
        let part: u32 = format!("{whole}{decimals:0<4}").parse().map_err(|_| expected())?;
        if part == 0 || part > WHOLE {
            return Err(expected());
        }
        let cores = u64::from(part / 100);
        set(&mut self.memory_part, part)?;
        set(&mut self.cores, cores)
    }

    /// Number of cards, and what each of them is.
    ///
    /// # Errors
    /// The amounts contradict each other.
    pub(super) fn part(&self) -> Result<(u32, CardPart), String> {
        // Koordinator: without a number of cards, a multiple of 100 percent of memory is as many.
        let whole_parts = self.memory_part_of_all.filter(|part| part % u64::from(WHOLE) == 0);
        let count = self.cards.or(whole_parts.map(|part| part / u64::from(WHOLE))).unwrap_or(1).max(1);
        let each = |of_all: Option<u64>, what: &str| match of_all {
            Some(all) if all % count > 0 => Err(format!("its {what} does not divide among {count} cards")),
            of_all => Ok(of_all.map(|all| all / count)),
        };
        let mut cores = self.cores.or(each(self.cores_of_all, "compute")?);
        let part_of_all = each(self.memory_part_of_all, "percentage of memory")?;
        let part_of_all = part_of_all.map(|part| u32::try_from(part).unwrap_or(u32::MAX));
        let mut part = self.memory_part.or(part_of_all);
        if cores.is_some_and(|cores| cores > 100) || part.is_some_and(|part| part > WHOLE) {
            return Err("it is more than all of a card, and no number of whole ones".to_owned());
        }
        if part == Some(WHOLE) && self.cores_of_all.is_some_and(|all| all != 100 * count) {
            return Err("its compute is not that of the cards whose memory it is".to_owned());
        }
        for percent in [self.cores_of_cards, self.percent_of_cards].into_iter().flatten() {
            if percent >= 100 {
                if percent % 100 > 0 || self.cards.is_some_and(|cards| cards != percent / 100) {
                    return Err(format!("{percent} percent are no whole cards, and more than one"));
                }
                let whole = u32::try_from(percent / 100).unwrap_or(1);
                return Ok((whole, CardPart::Whole));
            }
            cores = Some(percent);
            if self.percent_of_cards.is_some() {
                part = part.or(u32::try_from(percent).ok().map(|percent| percent * 100));
            }
        }
        let of_each = each(self.memory_of_all.map(|all| all.0), "memory")?.map(Bytes);
        let memory = match (self.memory.or(of_each), part) {
            // HAMi, Volcano: the size counts where both are there.
            (Some(size), _) => ShareMemory::Size(size),
            (None, Some(WHOLE) | None) => ShareMemory::All,
            (None, Some(part)) => ShareMemory::Part(part),
        };
        let percent = u8::try_from(cores.unwrap_or(0).min(100)).unwrap_or(100);
        let count = u32::try_from(count).unwrap_or(1);
        Ok(match memory {
            ShareMemory::All if cores.is_none_or(|cores| cores == 100) => (count, CardPart::Whole),
            memory => (count, CardPart::Share { memory, cores: percent }),
        })
    }
}

fn quantity(text: &str) -> Result<Bytes, String> {
    let bytes = text.parse::<Quantity>().ok().and_then(|q| u64::try_from(q.units_rounded_up()).ok());
    let bytes = bytes.filter(|bytes| *bytes > 0);
    Ok(Bytes(bytes.ok_or("it is no quantity above 0, such as 8Gi")?))
}

fn set<T>(amount: &mut Option<T>, value: T) -> Result<(), String> {
    if amount.is_some() {
        return Err("the same amount is there a second time".to_owned());
    }
    *amount = Some(value);
    Ok(())
}

/// A number of devices.
pub(super) fn count(text: &str) -> Option<u32> {
    whole(text).filter(|count| (1..=CARDS_MAX).contains(count)).and_then(|count| u32::try_from(count).ok())
}

/// A whole number as Kubernetes has it: `2`, and `2k` or `2000m` too.
pub(super) fn whole(text: &str) -> Option<u64> {
    let quantity: Quantity = text.parse().ok()?;
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    let number = quantity.is_whole().then(|| quantity.units_rounded_up());
    u64::try_from(number?).ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(words: &[(Unit, &str)]) -> Result<(u32, CardPart), String> {
        let mut amounts = Amounts::default();
        words.iter().try_for_each(|(unit, text)| amounts.take(*unit, text))?;
        amounts.part()
    }

    fn share(memory: ShareMemory, cores: u8) -> CardPart {
        CardPart::Share { memory, cores }
    }

    #[test]
    fn amounts_make_the_part_that_their_system_gives() {
        let gib = |gib: u64| ShareMemory::Size(Bytes(gib << 30));
        for (words, expected) in [
            (&[(Unit::Cards, "2")][..], (2, CardPart::Whole)),
            (&[(Unit::MemoryPercent, "100"), (Unit::Cores, "100")], (1, CardPart::Whole)),
            (&[(Unit::MemoryPercent, "100"), (Unit::Cores, "50")], (1, share(ShareMemory::All, 50))),
            (&[(Unit::Memory(1), "8192")], (1, share(gib(8), 0))),
            (&[(Unit::Cores, "30")], (1, share(ShareMemory::All, 30))),
            (&[(Unit::Memory(1), "8192"), (Unit::MemoryPercent, "50")], (1, share(gib(8), 0))),
            (&[(Unit::Cards, "2"), (Unit::MemoryOfAll(1024), "8")], (2, share(gib(4), 0))),
            (&[(Unit::CoresOfCards, "200"), (Unit::MemoryOfAll(256), "4")], (2, CardPart::Whole)),
            (&[(Unit::CoresOfCards, "20"), (Unit::MemoryOfAll(256), "4")], (1, share(gib(1), 20))),
            (&[(Unit::PercentOfCards, "50")], (1, share(ShareMemory::Part(5000), 50))),
            (&[(Unit::MemoryQuantity, "8Gi")], (1, share(gib(8), 0))),
        ] {
            assert_eq!(amounts(words), Ok(expected), "{words:?}");
        }
    }

    #[test]
    fn amounts_out_of_bounds_are_refused() {
        for (unit, text) in [
            (Unit::MemoryPercent, "101"),
            (Unit::Cores, "-1"),
            (Unit::Cores, "120"),
            (Unit::Memory(1), "8Gi"),
            (Unit::Memory(1), "0"),
            (Unit::Memory(1), "99999999999999999999"),
            (Unit::Cards, "0"),
            (Unit::Cards, "4294967296"),
            (Unit::PercentOfCards, "150"),
            (Unit::MemoryQuantity, "eight"),
        ] {
            assert!(amounts(&[(unit, text)]).is_err(), "{unit:?} {text}");
        }
        assert!(amounts(&[(Unit::Cards, "3"), (Unit::MemoryOfAll(1), "8")]).is_err());
        assert!(amounts(&[(Unit::Cores, "3"), (Unit::Cores, "8")]).is_err());
        let fraction = |text: &str| Amounts::default().take_fraction(text);
        assert!(["0.5", "1", "0.3333", "1.0"].iter().all(|text| fraction(text).is_ok()));
        assert!(["0", "1.5", "-0.5", "0.33333", "x", "", "."].iter().all(|text| fraction(text).is_err()));
    }
}
