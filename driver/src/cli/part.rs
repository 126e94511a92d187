//! A part of a card as people ask for it → class and claim template for it, ready to apply.
//!
//! ```text
//!   `1/4 Ascend310P` ─ core::fraction ─▶ matches, one a model ─▶ class of that part, template that asks for it
//!                                              │                         │ placed on what the model is published as
//!                                              └── what is published ────┴─▶ only what has a place is an answer
//! ```

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::catalogue::CardModel;
use aliquot_core::dra::DeviceClass;
use aliquot_core::fraction::{
    Ask, AskedPart, FractionChoice, FractionMatch, ResolveError, parse_ask, resolve, shares_beside_templates,
};
use aliquot_core::id::TemplateName;
use aliquot_core::offer::classes::{SPELLING, card_class, share_class};
use aliquot_core::offer::{CAPACITY_CORES, CAPACITY_MEMORY, LayoutKind};
use aliquot_core::partition::Template;
use aliquot_core::quantity::{Format, Quantity};
use aliquot_core::units::{Bytes, Cores, Fraction};

use super::failure::Failure;
use super::layouts::policies;
use super::node_args::ServerVersionArg;
use super::nodes::Fleet;
use draft::PartDraft;
pub(super) use draft::RequestedPart;
use published::Published;

mod draft;
mod published;

/// Finds the parts that answer a text, on the cards of the nodes, or without nodes on every card of the catalogue, as
/// policy and version publish them. `Ok(Err(…))`: it is understood, and no card has it, or none is published with it.
pub(super) fn parts(text: &str, fleet: &Fleet) -> Result<Result<Vec<RequestedPart>, String>, Failure> {
    let ask = parse_ask(text).map_err(|error| Failure::Usage(error.to_string()))?;
    let models: Vec<&CardModel> = fleet.models();
    let mut matches = match resolve(&ask, &models) {
        Ok(matches) => matches,
        Err(error @ ResolveError::Unknown { .. }) => return Err(Failure::Usage(error.to_string())),
        Err(error) => return Ok(Err(error.to_string())),
    };
    for share in shares_beside_templates(&ask, &models) {
        if !matches.contains(&share) {
            matches.push(share);
        }
    }
    let mut drafts: Vec<PartDraft> = Vec::new();
    for found in &matches {
        if let Some(draft) = draft(&ask, found, fleet)? {
            match drafts.iter_mut().find(|known| known.takes(&draft, found)) {
                Some(known) => known.merge(draft),
                None => drafts.push(draft),
            }
        }
    }
    if drafts.is_empty() {
        return Ok(Err(unpublished(text, &ask, &matches, fleet)?));
    }
    Ok(Ok(drafts.into_iter().map(|draft| draft.finish(ask.count)).collect()))
}

/// What of the model answers, as the model is published here; none where nothing of it has a place.
fn draft(ask: &Ask, found: &FractionMatch, fleet: &Fleet) -> Result<Option<PartDraft>, Failure> {
    let published = Published::of(&found.model, fleet)?;
    Ok(published.iter().find_map(|on| draft_on(ask, found, on, fleet)))
}

/// What of the model answers on what one node publishes, if it has a place there.
fn draft_on(ask: &Ask, found: &FractionMatch, on: &Published, fleet: &Fleet) -> Option<PartDraft> {
    let model = fleet.catalogue.model(&found.model)?;
    let (of_model, mut capacity) = (vec![found.model.clone()], BTreeMap::new());
    let (class, about, models) = match &found.choice {
        FractionChoice::Whole => {
            let of_vendor = ask.vendor.filter(|_| ask.model.is_none());
            let about = match of_vendor {
                Some(vendor) => format!("a whole card of {vendor}"),
                None => format!("all of {}", found.model),
            };
            let models = if of_vendor.is_some() { Vec::new() } else { of_model };
            (on.class(|class| class.name == card_class(&model.vendor))?, about, models)
        }
        FractionChoice::Templates(templates) => {
            let there: Vec<TemplateName> = templates.iter().filter(|t| on.has(t)).cloned().collect();
            let first = there.first()?;
            let of_fraction = match &ask.part {
                AskedPart::Fraction(fraction) => {
                    let ending = format!("-{fraction}");
                    on.class(|class| spelling(class).is_some_and(|s| s.ends_with(&ending)))
                }
                _ => None,
            };
            let class = of_fraction
                .or_else(|| on.class(|class| spelling(class).is_some_and(|s| s == first.as_str())))?;
            // One class is enough for one fraction of one family; the others stand for every model.
            let about_one_family = spelling(class).is_some_and(|s| s.contains('/'));
            let models = if about_one_family { Vec::new() } else { of_model };
            (class, format!("{} of {}", with_sizes(&there, model), found.model), models)
        }
        FractionChoice::Share { memory, cores } => {
            let percent = Quantity::from_units(i64::from(cores.percent()), Format::DecimalSi);
            capacity.insert(CAPACITY_MEMORY.to_owned(), memory.quantity());
            capacity.insert(CAPACITY_CORES.to_owned(), percent);
            let compute = match *cores {
                Cores::NONE => "best-effort compute".to_owned(),
                cores => format!("{cores} of the compute"),
            };
            let about = format!("a share of {memory} and {compute} of {}", found.model);
            (on.class(|class| class.name == share_class())?, about, of_model)
        }
    };
    let about = match ask.part {
        AskedPart::Nominal(memory) => format!("{memory} rounded up to {about}"),
        AskedPart::ShareOf { memory, .. } if memory != Fraction::WHOLE => {
            let percent = 100 * memory.numerator() / memory.denominator();
            format!("{percent}% of the memory of {}, {}, rounded down to {about}", found.model, model.memory)
        }
        _ => about,
    };
    let draft = PartDraft { about, class: class.clone(), models, capacity };
    on.places(&draft).then_some(draft)
}

/// The templates, those of one size together with their memory and compute behind them.
fn with_sizes(templates: &[TemplateName], model: &CardModel) -> String {
    type Group<'t> = (Vec<&'t str>, Option<(Bytes, Cores)>);
    let mut groups: Vec<Group<'_>> = Vec::new();
    for name in templates {
        let of = |t: &&Template| t.name == *name;
        let template = model.table().and_then(|table| table.templates.iter().find(of));
        let size = template.map(|t| (t.memory, t.cores));
        match groups.last_mut() {
            Some((names, known)) if *known == size => names.push(name.as_str()),
            _ => groups.push((vec![name.as_str()], size)),
        }
    }
    let words = |(names, size): &Group<'_>| match size {
        Some((memory, cores)) => format!("{} ({memory}, {cores} of the compute)", names.join(" or ")),
        None => names.join(" or "),
    };
    groups.iter().map(words).collect::<Vec<String>>().join(" or ")
}

fn spelling(class: &DeviceClass) -> Option<&str> {
    class.annotations.get(SPELLING).map(String::as_str)
}

/// Why parts that the models have are no answer: how the models are published, and which policy would publish the parts.
fn unpublished(text: &str, ask: &Ask, matches: &[FractionMatch], fleet: &Fleet) -> Result<String, Failure> {
    let mut layouts: BTreeSet<LayoutKind> = BTreeSet::new();
    for found in matches {
        layouts.extend(Published::of(&found.model, fleet)?.into_iter().flat_map(|on| on.layouts));
    }
    let layouts: Vec<&str> = layouts.iter().map(|layout| layout.as_str()).collect();
    let found =
        if layouts.is_empty() { "nothing".to_owned() } else { format!("layout {}", layouts.join(" and ")) };
    let minor = fleet.server.minor;
    let remedy = remedy(ask, matches, fleet)?;
    Ok(format!(
        "part `{text}`: found {found} of its cards on Kubernetes 1.{minor}, expected one that publishes the part; {remedy}"
    ))
}

/// A policy of one line, or the default version, that has been seen to place one of the parts.
fn remedy(ask: &Ask, matches: &[FractionMatch], fleet: &Fleet) -> Result<String, Failure> {
    for server in [fleet.server, ServerVersionArg::default().0] {
        for (line, policy) in policies() {
            for found in matches {
                let on = Published::under(&found.model, policy.clone(), server, fleet)?;
                if on.is_none_or(|on| draft_on(ask, found, &on, fleet).is_none()) {
                    continue;
                }
                return Ok(match server == fleet.server {
                    true => format!("policy `{line}` would place it"),
                    false => format!("Kubernetes 1.{} with policy `{line}` would place it", server.minor),
                });
            }
        }
    }
    Ok("ask for another part".to_owned())
}
