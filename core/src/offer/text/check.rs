//! A policy compared with the models of a catalogue: what parses and yet gives no card what its author meant.

use super::line::placed;
use super::value::field;
use super::{LayoutPolicy, PolicyError, parse};
use crate::catalogue::{CardModel, Catalogue};
use crate::offer::policy::{CardSelector, Glob, Layout, SplitPlace};

/// Reads a policy file, and says what no model of the catalogue can have: a rule for models that do not exist, a partition or
/// placement that no model of the rule has. A model that the catalogue lacks may have it.
///
/// # Errors
/// As [`parse`].
pub fn check(text: &str, catalogue: &Catalogue) -> Result<(LayoutPolicy, Vec<PolicyError>), PolicyError> {
    let policy = parse(text)?;
    let mut doubts = Vec::new();
    for (number, rule) in policy.rules.iter().enumerate() {
        let at = format!("rule[{}]", number + 1);
        let models: Vec<&CardModel> =
            catalogue.models().iter().filter(|model| may_be(&rule.selector, model)).collect();
        match models.is_empty() {
            true => doubts.push(no_model(&rule.selector, &at, catalogue)),
            false => doubts.extend(no_template(&rule.layout, &at, &models)),
        }
    }
    let all: Vec<&CardModel> = catalogue.models().iter().collect();
    doubts.extend(no_template(&policy.default, "default", &all));
    let doubts = doubts.into_iter().map(|doubt| placed(text, doubt)).collect();
    Ok((policy, doubts))
}

/// Whether the rule may be for a card of this model.
fn may_be(selector: &CardSelector, model: &CardModel) -> bool {
    let fits = |glob: &Option<Glob>, text: &str| glob.as_ref().is_none_or(|glob| glob.matches(text));
    fits(&selector.vendor, model.vendor.as_str()) && fits(&selector.model, model.id.as_str())
}

fn no_model(selector: &CardSelector, at: &str, catalogue: &Catalogue) -> PolicyError {
    let name = if selector.model.is_some() { "model" } else { "vendor" };
    let known: Vec<&str> = match name {
        "model" => catalogue.models().iter().map(|model| model.id.as_str()).collect(),
        _ => {
            let mut vendors: Vec<&str> =
                catalogue.models().iter().map(|model| model.vendor.as_str()).collect();
            vendors.sort_unstable();
            vendors.dedup();
            vendors
        }
    };
    let expected = format!("a model of the catalogue: {}", known.join(", "));
    field(
        &format!("{at}.{name}"),
        &format!("{selector}, which matches none"),
        &expected,
        "correct it, or remove the rule",
    )
}

/// Partitions that none of the models has.
fn no_template(layout: &Layout, at: &str, models: &[&CardModel]) -> Vec<PolicyError> {
    let Layout::Split { recipe: Some(recipe), .. } = layout else { return Vec::new() };
    let tables = || models.iter().flat_map(|model| model.tables());
    let lacking = recipe.pieces.iter().filter(|piece| {
        let mut templates = tables().filter_map(|table| table.template(&piece.template));
        match &piece.place {
            SplitPlace::Anywhere { .. } => templates.next().is_none(),
            SplitPlace::At(name) => {
                !templates.any(|template| template.placements.iter().any(|p| p.name == *name))
            }
        }
    });
    let mut known: Vec<&str> =
        tables().flat_map(|table| &table.templates).map(|template| template.name.as_str()).collect();
    known.sort_unstable();
    known.dedup();
    let expected = match known.is_empty() {
        true => "another layout: no model of the rule has partitions".to_owned(),
        false => format!("a partition of the models: {}", known.join(", ")),
    };
    let doubt = |piece| field(&format!("{at}.partitions"), &format!("`{piece}`"), &expected, "correct it");
    lacking.map(doubt).collect()
}
