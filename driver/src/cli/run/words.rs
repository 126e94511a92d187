//! What words of the command line mean, and what would help, in words of the command line.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use aliquot_abi::limits::{CONTEXT_BYTES_PRESUMED, MemoryLimit};
use aliquot_core::allocate::Change;
use aliquot_core::card::{Card, Inventory};
use aliquot_core::catalogue::CardModel;
use aliquot_core::id::{CardUuid, Vendor};
use aliquot_core::offer::amounts::doubt;
use aliquot_core::offer::{CAPACITY_CORES, CAPACITY_MEMORY, DRIVER, LayoutKind, OfferedPart, Offers};
use aliquot_core::quantity::Quantity;
use aliquot_core::units::{Bytes, Cores};

use super::super::failure::Failure;
use crate::run::ask::{Ask, On};

/// An implausible amount of memory: a typing error, or more than any card has.
const MEMORY_TOO_MUCH: Bytes = Bytes(1 << 62);

/// An amount of memory.
pub(super) fn memory(text: &str) -> Result<Bytes, String> {
    let expected = "expected an amount of memory such as 8Gi or 512Mi";
    let quantity = Quantity::typed(text).map_err(|error| match error.meant.join(" or ") {
        meant if meant.is_empty() => expected.to_owned(),
        meant => format!("expected an amount of memory that can mean one only; write {meant}"),
    })?;
    match u64::try_from(quantity.units_rounded_up()) {
        Ok(bytes) if bytes >= MEMORY_TOO_MUCH.0 => {
            Err(format!("these are 4Ei or more, which no card has; {expected}"))
        }
        Ok(bytes) if bytes > 0 => match doubt(CAPACITY_MEMORY, quantity) {
            Some(doubt) => Err(doubt.to_string()),
            None => Ok(Bytes(bytes)),
        },
        _ => Err(expected.to_owned()),
    }
}

/// Compute in percent of the card.
pub(super) fn cores(text: &str) -> Result<Cores, String> {
    let text = text.strip_suffix('%').unwrap_or(text);
    if let Some(cores) = text.parse().ok().and_then(Cores::new) {
        return Ok(cores);
    }
    let doubt = text.parse().ok().and_then(|asked| doubt(CAPACITY_CORES, asked));
    Err(doubt
        .map_or_else(|| "expected whole percent of the card, 0 to 100".to_owned(), |doubt| doubt.to_string()))
}

/// The card that a text means.
pub(super) fn card(text: &str, cards: &Inventory) -> Result<CardUuid, Failure> {
    let by_index = text.parse().ok().and_then(|index: u32| cards.cards.iter().find(|c| c.index == index));
    if let Some(card) = by_index {
        return Ok(card.uuid.clone());
    }
    let begins = |card: &&Card| !text.is_empty() && card.uuid.as_str().starts_with(text);
    let begin: Vec<_> = cards.cards.iter().filter(begins).collect();
    match begin[..] {
        [only] => Ok(only.uuid.clone()),
        [] => {
            let all: Vec<_> = cards.cards.iter().collect();
            Err(Failure::Usage(format!(
                "--card {text}: there is no such card; expected the index of one, its UUID or the beginning of that: {}; correct it, \
                 or leave --card out",
                listed(&all)
            )))
        }
        _ => Err(Failure::Usage(format!(
            "--card {text}: {} cards begin like this; expected the beginning of one: {}",
            begin.len(),
            listed(&begin)
        ))),
    }
}

/// Why there is no run on cards of another vendor, and what there is for them.
pub(super) fn no_run_on(asked: fmt::Arguments<'_>, models: &[&CardModel], vendors: &[Vendor]) -> Failure {
    let mut others: Vec<&str> = models
        .iter()
        .filter(|model| !vendors.contains(&model.vendor))
        .map(|model| model.id.as_str())
        .collect();
    others.dedup();
    let vendors = vendors.iter().map(Vendor::as_str).collect::<Vec<_>>().join(" or ");
    Failure::Usage(format!(
        "{asked}: found {}, expected a card of {vendors}: `aliquot run` has nothing that would hold a program to its part of others \
         in this version; `aliquot prepare` makes such a part ready for a container",
        others.join(", ")
    ))
}

/// Refuses a layout policy that cuts every eligible card into slots. A run uses a card or a partition, and the allocator's refusal
/// would name selectors that the user did not write.
pub(super) fn not_of_slots(
    policy: &Path,
    ask: &Ask,
    cards: &Inventory,
    offers: &Offers,
) -> Result<(), Failure> {
    let is_ours = |card: &CardUuid| cards.card(card).is_some_and(|card| card.vendor == ask.vendor);
    let may = |part: &&OfferedPart| match &ask.on {
        On::Any => is_ours(&part.card),
        On::Card(card) => part.card == *card,
        On::AnyOf(cards) => cards.contains(&part.card),
    };
    let found: Vec<_> = offers.parts.values().filter(may).collect();
    if found.is_empty() || found.iter().any(|part| part.layout != LayoutKind::Slots) {
        return Ok(());
    }
    let cut: BTreeSet<&CardUuid> = found.iter().map(|part| &part.card).collect();
    let cut: Vec<_> = cards.cards.iter().filter(|card| cut.contains(&card.uuid)).collect();
    Err(Failure::input(
        policy.display().to_string(),
        format_args!(
            "`layout` of {}: found slots, expected auto, whole, shared, split or dynamic for a card that the run may have: a run takes a \
             card or a partition, and slots are for claims (`aliquot prepare`); correct the policy, or leave --layouts out",
            listed(&cut)
        ),
    ))
}

/// Cards as people name them.
pub(super) fn listed(cards: &[&Card]) -> String {
    cards.iter().map(|card| format!("{} ({})", card.index, card.uuid)).collect::<Vec<_>>().join(", ")
}

/// A change that would give the run a place, as options say it; `None`: no option stands for it.
pub(super) fn in_options(change: &Change) -> Option<String> {
    let expression = match change {
        Change::LowerCapacity { capacity, from, to, .. } => {
            let options = [(CAPACITY_MEMORY, "--memory"), (CAPACITY_CORES, "--cores")];
            let (_, option) = options.into_iter().find(|(name, _)| name == capacity)?;
            let instead = from.map(|from| format!(" instead of {from}")).unwrap_or_default();
            return Some(format!("ask for {option} {to}{instead}"));
        }
        Change::DropSelector { expression, .. } => expression,
        _ => return Some(change.to_string()),
    };
    let of = |test: &str| expression.starts_with(&format!("device.attributes[\"{DRIVER}\"].{test} "));
    let words = [
        ("parentUUID ==", "leave out --card"),
        ("parentUUID in", "let CUDA_VISIBLE_DEVICES show other cards"),
        ("profile ==", "leave out --template"),
    ];
    words.into_iter().find(|(test, _)| of(test)).map(|(_, words)| words.to_owned())
}

/// What to say where a part may have no room for a context of its card: nothing runs in it then.
pub(super) fn too_small(memory: MemoryLimit, context: Option<Bytes>) -> Option<String> {
    let MemoryLimit::Bytes(memory) = memory else { return None };
    let (memory, presumed) = (Bytes(memory), Bytes(CONTEXT_BYTES_PRESUMED));
    let why = match context {
        Some(context) if memory <= context => {
            format!(
                "a context of this card alone takes {context}: every program will be refused at its start"
            )
        }
        None if memory < presumed => format!(
            "what a context of this card takes is not known: with less than {presumed} programs are refused at their start, \
             unless all that is in use of the card then is no more than the part"
        ),
        _ => return None,
    };
    Some(format!("warning: the part has {memory} of memory, and {why}; ask for more with --memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_as_people_type_them_are_read_or_answered_with_a_tip() {
        for text in ["8Gi", "8GiB", "8gi", "8 GiB"] {
            assert_eq!(memory(text), Ok(Bytes(8 << 30)), "{text}");
        }
        assert!(memory("8GB").unwrap_err().ends_with("write 8Gi or 8G"));
        assert!(memory("8g").unwrap_err().ends_with("write 8Gi or 8G"));
        assert!(memory("lots").unwrap_err().contains("such as 8Gi"));
    }

    #[test]
    fn hints_name_options_of_this_command_or_say_nothing() {
        let drop = |test: &str| {
            let expression = format!("device.attributes[\"{DRIVER}\"].{test}");
            in_options(&Change::DropSelector {
                claim: "local/a".to_owned(),
                request: "run".to_owned(),
                expression,
            })
        };
        assert_eq!(drop("parentUUID == \"x\"").as_deref(), Some("leave out --card"));
        let shown = "let CUDA_VISIBLE_DEVICES show other cards";
        assert_eq!(drop("parentUUID in [\"x\"]").as_deref(), Some(shown));
        assert_eq!(drop("profile == \"x\"").as_deref(), Some("leave out --template"));
        assert_eq!(["vendor == 1", "type == 1", "model == 1"].map(drop), [None, None, None]);
        let lower = |capacity: &str, from: Option<&str>, to: &str| {
            in_options(&Change::LowerCapacity {
                claim: "local/a".to_owned(),
                request: "run".to_owned(),
                capacity: capacity.to_owned(),
                from: from.map(|from| from.parse().unwrap()),
                to: to.parse().unwrap(),
            })
        };
        let memory = lower("memory", Some("16Gi"), "15Gi");
        assert_eq!(memory.as_deref(), Some("ask for --memory 15Gi instead of 16Gi"));
        assert_eq!(lower("cores", None, "30").as_deref(), Some("ask for --cores 30"));
        assert_eq!(lower("planes", None, "30"), None);
        let other = Change::ReleaseClaim { claim: "local/b".to_owned(), holds: 1 };
        assert_eq!(in_options(&other), Some(other.to_string()));
    }
}
