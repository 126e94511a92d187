//! What of a node's cards answers what a run asks for.

use std::fmt;

use aliquot_core::catalogue::CardModel;
use aliquot_core::fraction::{FractionChoice, FractionMatch, parse_ask, resolve};
use aliquot_core::id::{TemplateName, Vendor};

use crate::run::ask::Alternative;

use super::super::failure::Failure;
use super::super::nodes::Fleet;
use super::home::Home;
use super::words::no_run_on;

/// A template as the cards of the node spell it.
pub(super) fn template(
    text: &str,
    vendor: &Vendor,
    home: &Home,
    fleet: &Fleet,
) -> Result<TemplateName, Failure> {
    let why = home.cards.no_partitions();
    if !why.is_empty() {
        return Err(Failure::Usage(format!(
            "--template {text}: found no card that gives partitions, expected one: {}; ask for a share with --memory and \
             --cores, or with --fraction",
            why.join("; ")
        )));
    }
    let answers = answers("--template", text, vendor, fleet)?;
    let mut named = answers.into_iter().filter_map(|answer| match answer.choice {
        FractionChoice::Templates(names) => names.into_iter().next(),
        FractionChoice::Whole | FractionChoice::Share { .. } => None,
    });
    named
        .next()
        .ok_or_else(|| Failure::Usage(format!("--template {text}: no card of the node has such a template")))
}

/// What of the node's cards answers an option, of those that runs can be on.
fn answers(option: &str, text: &str, vendor: &Vendor, fleet: &Fleet) -> Result<Vec<FractionMatch>, Failure> {
    let asked = format_args!("{option} {text}").to_string();
    let wrong = |why: &dyn fmt::Display| Failure::Usage(format!("{asked}: {why}"));
    let ask = parse_ask(text).map_err(|error| wrong(&error))?;
    if ask.count > 1 {
        return Err(wrong(&format_args!("found {} of it, expected 1: a run has one part", ask.count)));
    }
    let models = fleet.models();
    let ours: Vec<&CardModel> = models.iter().copied().filter(|model| model.vendor == *vendor).collect();
    resolve(&ask, &ours).map_err(|error| match resolve(&ask, &models) {
        Ok(others) => {
            let has = |model: &&CardModel| others.iter().any(|answer| answer.model == model.id);
            let others: Vec<&CardModel> = models.into_iter().filter(has).collect();
            no_run_on(format_args!("{asked}"), &others, std::slice::from_ref(vendor))
        }
        Err(_) => wrong(&error),
    })
}

/// What of the node's cards answers a fraction.
pub(super) fn fraction(text: &str, vendor: &Vendor, fleet: &Fleet) -> Result<Vec<Alternative>, Failure> {
    let answers = answers("--fraction", text, vendor, fleet)?;
    let of = |answer: FractionMatch| {
        let model = Some(answer.model);
        let one = |template, memory, cores| Alternative { model: model.clone(), template, memory, cores };
        match answer.choice {
            FractionChoice::Whole => vec![one(None, None, None)],
            FractionChoice::Templates(names) => {
                names.into_iter().map(|name| one(Some(name), None, None)).collect()
            }
            FractionChoice::Share { memory, cores } => vec![one(None, Some(memory), Some(cores))],
        }
    };
    Ok(answers.into_iter().flat_map(of).collect())
}
