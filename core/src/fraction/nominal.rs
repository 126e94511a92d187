//! Nominal sizes of templates: what device plugins round a request for memory by.
//!
//! `vir05_1c_16g` is 16Gi by name and 15Gi on the card, since firmware keeps some. A request of 16384 MiB means that
//! template, so amounts of a device plugin are compared with nominal sizes.

use super::ask::FractionChoice;
use crate::catalogue::CardModel;
use crate::partition::{PartitionTable, Template};
use crate::units::Bytes;

/// Sizes in MiB that HAMi's device plugin gives the templates of the Ascend 910A, which carry none in their names.
const SIZES_910A: [(&str, u64); 4] =
    [("vir02", 2_184), ("vir04", 4_369), ("vir08", 8_738), ("vir16", 17_476)];
/// Family of the Ascend 910A.
const FAMILY_910A: &str = "ascend-910";

/// The smallest templates that have this much by their nominal sizes; else the whole card, if it has.
pub(super) fn choice(model: &CardModel, wanted: Bytes) -> Option<FractionChoice> {
    let smallest = templates(model).map(|t| size(model, t)).filter(|size| *size >= wanted).min();
    match smallest {
        Some(smallest) => {
            let names = templates(model).filter(|t| size(model, t) == smallest).map(|t| t.name.clone());
            Some(FractionChoice::Templates(names.collect()))
        }
        None => (card(model) >= wanted).then_some(FractionChoice::Whole),
    }
}

/// Nominal size of a template.
pub(super) fn size(model: &CardModel, template: &Template) -> Bytes {
    let name = template.name.as_str();
    let of_910a = SIZES_910A.iter().find(|(known, _)| model.family == FAMILY_910A && *known == name);
    let of_910a = of_910a.and_then(|(_, mebibytes)| Bytes::from_mib(*mebibytes));
    of_910a.or_else(|| in_name(template)).unwrap_or(template.memory)
}

/// The size that a template has in its name: `vir05_1c_16g` has 16Gi.
fn in_name(template: &Template) -> Option<Bytes> {
    let mut words = template.name.as_str().split('_');
    let gibibytes = words.find_map(|word| word.strip_suffix('g')?.parse::<u64>().ok())?;
    Bytes::from_mib(gibibytes.checked_mul(1 << 10)?)
}

/// Nominal size of a card: what the names of its templates make up, if that is more than it has.
fn card(model: &CardModel) -> Bytes {
    let all = |template: &Template| {
        let (numerator, denominator) = (template.fraction.numerator(), template.fraction.denominator());
        let all = in_name(template)?.0.checked_mul(u64::from(denominator))?;
        Some(Bytes(all / u64::from(numerator)))
    };
    templates(model).filter_map(all).max().unwrap_or(model.memory).max(model.memory)
}

/// The templates of a model.
pub(super) fn templates(model: &CardModel) -> impl Iterator<Item = &Template> {
    model.table().into_iter().flat_map(|t: &PartitionTable| &t.templates)
}
