//! A part of a card as people ask for it → class and claim template for it, ready to apply.
//!
//! ```text
//!   `1/4 Ascend310P` ─ core::fraction ─▶ answers, one a model ─▶ class of that part, template that asks for it
//! ```

use std::collections::BTreeMap;

use aliquot_core::catalogue::CardModel;
use aliquot_core::dra::{
    Access, AllocationMode, DeviceClass, DeviceRequest, ExactRequest, RequestKind, ResourceSlice,
};
use aliquot_core::fraction::{
    Ask, AskedPart, FractionChoice, FractionMatch, ResolveError, parse_ask, resolve,
};
use aliquot_core::id::TemplateName;
use aliquot_core::offer::classes::{SPELLING, classes};
use aliquot_core::offer::{CAPACITY_CORES, CAPACITY_MEMORY, DRIVER};
use aliquot_core::partition::Template;
use aliquot_core::quantity::{Format, Quantity};
use aliquot_core::units::{Bytes, Cores};

use crate::manifest::{ClaimSpec, ClaimTemplate};

use super::failure::Failure;
use super::nodes::Fleet;
use crate::hardware::node_spec;

/// The request, as objects.
#[derive(Debug)]
pub(super) struct RequestedPart {
    /// What it is, for people.
    pub(super) about: String,
    /// The class; one that generated classes contain.
    pub(super) class: DeviceClass,
    /// A template that asks for one.
    pub(super) template: ClaimTemplate,
}

/// Finds the parts that answer a text, on the cards of the nodes, or without nodes on every card of the catalogue.
/// `Ok(Err(…))`: it is understood, and no card has it.
pub(super) fn parts(text: &str, fleet: &Fleet) -> Result<Result<Vec<RequestedPart>, ResolveError>, Failure> {
    let ask = parse_ask(text).map_err(|error| Failure::Usage(error.to_string()))?;
    let models: Vec<&CardModel> = fleet.models();
    let answers = match resolve(&ask, &models) {
        Ok(answers) => answers,
        Err(error @ ResolveError::Unknown { .. }) => return Err(Failure::Usage(error.to_string())),
        Err(error) => return Ok(Err(error)),
    };
    let mut parts: Vec<RequestedPart> = Vec::new();
    for answer in &answers {
        if let Some(part) = part(&ask, answer, fleet)? {
            match parts.iter_mut().find(|known| known.template == part.template) {
                Some(known) => known.about = format!("{}; {}", known.about, part.about),
                None => parts.push(part),
            }
        }
    }
    Ok(Ok(parts))
}

fn part(ask: &Ask, answer: &FractionMatch, fleet: &Fleet) -> Result<Option<RequestedPart>, Failure> {
    let known = classes(&slices_of(answer, fleet)?);
    let of_model = format!("device.attributes[\"{DRIVER}\"].model == \"{}\"", answer.model);
    let (class, about, capacity) = match &answer.choice {
        FractionChoice::Whole => (named(&known, "card"), format!("all of {}", answer.model), BTreeMap::new()),
        FractionChoice::Templates(templates) => {
            let names: Vec<&str> = templates.iter().map(TemplateName::as_str).collect();
            let fraction = match &ask.part {
                AskedPart::Fraction(fraction) => {
                    let ending = format!("-{fraction}");
                    known.iter().find(|c| spelling(c).is_some_and(|s| s.ends_with(&ending)))
                }
                _ => None,
            };
            let template = || known.iter().find(|c| spelling(c).is_some_and(|s| names.first() == Some(&s)));
            let class = fraction.or_else(template);
            (class, format!("{} of {}", with_sizes(templates, answer, fleet), answer.model), BTreeMap::new())
        }
        FractionChoice::Share { memory, cores } => {
            let percent = Quantity::from_units(i64::from(cores.percent()), Format::DecimalSi);
            let sizes = BTreeMap::from([
                (CAPACITY_MEMORY.to_owned(), memory.quantity()),
                (CAPACITY_CORES.to_owned(), percent),
            ]);
            (
                named(&known, "share"),
                match *cores {
                    Cores::NONE => format!("a share of {memory} and best-effort compute of {}", answer.model),
                    cores => format!("a share of {memory} and {cores} of the compute of {}", answer.model),
                },
                sizes,
            )
        }
    };
    let Some(class) = class.cloned() else { return Ok(None) };
    // One class is enough for one fraction of one family; the others stand for every model.
    let about_one_family = spelling(&class).is_some_and(|s| s.contains('/'));
    let selectors = if about_one_family { Vec::new() } else { vec![of_model] };
    let template = template(&class, selectors, capacity);
    Ok(Some(RequestedPart { about, class, template }))
}

/// The templates, those of one size together with their memory and compute behind them.
fn with_sizes(templates: &[TemplateName], answer: &FractionMatch, fleet: &Fleet) -> String {
    let model = fleet.models().into_iter().find(|model| model.id == answer.model);
    type Group<'t> = (Vec<&'t str>, Option<(Bytes, Cores)>);
    let mut groups: Vec<Group<'_>> = Vec::new();
    for name in templates {
        let of = |t: &&Template| t.name == *name;
        let template = model.and_then(CardModel::table).and_then(|table| table.templates.iter().find(of));
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

fn named<'c>(classes: &'c [DeviceClass], name: &str) -> Option<&'c DeviceClass> {
    classes.iter().find(|c| c.name == format!("{name}.{DRIVER}"))
}

fn spelling(class: &DeviceClass) -> Option<&str> {
    class.annotations.get(SPELLING).map(String::as_str)
}

/// What a card of the answer's model offers in the layout that has most of it.
fn slices_of(answer: &FractionMatch, fleet: &Fleet) -> Result<Vec<ResourceSlice>, Failure> {
    let mut one = Fleet::with(fleet.catalogue().clone());
    let spec = node_spec(&format!("1x{}", answer.model), fleet.catalogue())?;
    one.add_spec(&spec)?;
    Ok(one.nodes.into_iter().flat_map(|n| n.slices).collect())
}

fn template(
    class: &DeviceClass,
    selectors: Vec<String>,
    capacity: BTreeMap<String, Quantity>,
) -> ClaimTemplate {
    let exact = ExactRequest {
        device_class: class.name.clone(),
        selectors,
        mode: AllocationMode::ExactCount(1),
        access: Access::Normal,
        tolerations: Vec::new(),
        capacity,
    };
    let request = DeviceRequest { name: "part".to_owned(), kind: RequestKind::Exactly(exact) };
    let name = class.name.strip_suffix(&format!(".{DRIVER}")).unwrap_or(&class.name);
    ClaimTemplate {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        spec: ClaimSpec { requests: vec![request], ..ClaimSpec::default() },
    }
}
