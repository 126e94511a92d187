//! Which cards the caller's programs see: `CUDA_VISIBLE_DEVICES`, as a batch system sets it for a job, and as a run sets it for
//! its command.
//!
//! The vendor's rules: entries are indices, UUIDs and unique beginnings of these; the first that names no card ends the list, and
//! a list that names one card twice shows none. Indices are in bus order, as `--card` has them.

use std::ffi::OsStr;

use aliquot_core::card::{Card, Inventory};
use aliquot_core::id::{CardUuid, Vendor};

use crate::config::VISIBLE_CARDS;

use super::super::failure::Failure;
use super::words::listed;

/// The cards of this vendor that a text shows.
pub(super) fn shown(text: &OsStr, vendor: &Vendor, cards: &Inventory) -> Result<Vec<CardUuid>, Failure> {
    let text = text.to_string_lossy();
    let cards: Vec<&Card> = cards.cards.iter().filter(|card| card.vendor == *vendor).collect();
    let mut shown: Vec<CardUuid> = Vec::new();
    for entry in text.split(',').map(str::trim) {
        if entry.starts_with("MIG-") {
            return Err(Failure::Usage(format!(
                "{VISIBLE_CARDS}={text}: {entry} is an instance of a card in MIG mode, and no part is taken of one; choose a card \
                 with --card, or unset the variable"
            )));
        }
        let Some(card) = named(entry, &cards) else { break };
        if shown.contains(&card.uuid) {
            shown.clear();
            break;
        }
        shown.push(card.uuid.clone());
    }
    if shown.is_empty() {
        return Err(Failure::Usage(format!(
            "{VISIBLE_CARDS}={text}: shows no card; there are {}; choose one with --card, or unset the variable",
            listed(&cards)
        )));
    }
    Ok(shown)
}

fn named<'c>(entry: &str, cards: &[&'c Card]) -> Option<&'c Card> {
    if !entry.starts_with("GPU-") {
        let index: u32 = entry.parse().ok()?;
        return cards.iter().find(|card| card.index == index).copied();
    }
    let mut fitting = cards.iter().filter(|card| card.uuid.as_str().starts_with(entry));
    match (fitting.next(), fitting.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}
