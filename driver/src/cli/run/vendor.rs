//! On cards of which vendor a run goes, and whether shares are held there.

use aliquot_core::card::{Card, Inventory};
use aliquot_core::catalogue::CardModel;
use aliquot_core::fraction::{parse_ask, resolve};
use aliquot_core::id::{NodeName, Vendor};
use aliquot_core::partition::ShareSupport;

use super::super::failure::Failure;
use super::super::nodes::Fleet;
use super::args::Args;
use super::home::Home;
use super::words::{card, no_run_on};

/// The vendor that a run means: that of its card; else the first that has what is asked for; else the first with cards.
pub(super) fn vendor_of(
    args: &Args,
    home: &Home,
    (node, fleet): (&NodeName, &Fleet),
    cards: &Inventory,
) -> Result<Vendor, Failure> {
    let (known, models) = (home.cards.vendors(), fleet.models());
    if let Some(text) = &args.card {
        let uuid = card(text, cards)?;
        let found = cards.card(&uuid).filter(|card| known.contains(&card.vendor));
        let its = |model: &CardModel| cards.card(&uuid).is_some_and(|card| card.model == model.id);
        let others = || models.iter().copied().filter(|model| its(model)).collect::<Vec<_>>();
        let refused = || no_run_on(format_args!("--card {text}"), &others(), &known);
        return found.map(|card| card.vendor.clone()).ok_or_else(refused);
    }
    let has = |vendor: &&Vendor| cards.cards.iter().any(|card| card.vendor == **vendor);
    let here: Vec<&Vendor> = known.iter().filter(has).collect();
    let Some(first) = here.first() else {
        return Err(no_run_on(format_args!("node {node}"), &models, &known));
    };
    let ask = args.template.as_deref().or(args.fraction.as_deref()).and_then(|text| parse_ask(text).ok());
    let answers = |vendor: &&&Vendor| {
        let ours: Vec<&CardModel> =
            models.iter().copied().filter(|model| model.vendor == ***vendor).collect();
        ask.as_ref().is_some_and(|ask| resolve(ask, &ours).is_ok())
    };
    Ok((*here.iter().find(answers).unwrap_or(first)).clone())
}

/// Refuses a share of cards on which nothing holds a program to one.
pub(super) fn not_of_unshared(args: &Args, vendor: &Vendor, cards: &Inventory) -> Result<(), Failure> {
    let asked = match (args.memory, args.cores) {
        (Some(memory), _) => format!("--memory {memory}"),
        (None, Some(cores)) => format!("--cores {}", cores.percent()),
        (None, None) => return Ok(()),
    };
    let ours: Vec<&Card> = cards.cards.iter().filter(|card| card.vendor == *vendor).collect();
    let templates = || ours.iter().filter_map(|card| card.table()).flat_map(|table| &table.templates);
    let is_held = ours.iter().any(|card| card.shareable == ShareSupport::Enforceable)
        || templates().any(|template| template.shareable == ShareSupport::Enforceable);
    if is_held {
        return Ok(());
    }
    let mut products: Vec<&str> = ours.iter().map(|card| card.product_name.as_str()).collect();
    products.dedup();
    let mut names: Vec<&str> = templates().map(|template| template.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let partition = match names.as_slice() {
        [] => String::new(),
        names => format!("ask for a partition with --template ({}), or ", names.join(", ")),
    };
    Err(Failure::Usage(format!(
        "{asked}: found {}, on which nothing holds a program to a share, expected a card with enforced shares: {partition}leave \
         --memory and --cores out for a whole card",
        products.join(", ")
    )))
}
