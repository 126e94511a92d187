//! The policy file: strict TOML, read once at the edge and parsed here.
//!
//! ```toml
//! default = "auto"                       # where no rule matches
//! evict = ["lost"]                       # also "card", "part": Pods on what is broken so end
//!
//! [[rule]]                               # the first rule that matches a card decides
//! model = "nvidia-h100-*"                # also vendor, uuid (globs) and index (a number or a list)
//! layout = "split"
//! partitions = ["1x3g.40gb", "4x1g.10gb"]
//!
//! [[rule]]
//! vendor = "nvidia"
//! layout = "shared"
//! default-memory = "8Gi"                 # also min-memory, max-memory, default-cores
//!
//! [[rule]]
//! uuid = "GPU-8f4e*"
//! layout = "slots"
//! slots = ["small", "large"]
//!
//! [[slot]]
//! name = "small"
//! memory = "8Gi"
//! cores = 10
//! copies = 4
//! # …
//!
//! [[recipe]]                             # a split with a name, for `recipe = "sevenths"`
//! name = "sevenths"
//! partitions = ["7x1g.10gb"]
//! ```
//!
//! What is wrong is named with its field, what was found, what was expected and what to do. Whether a template exists
//! depends on the card, so that is said by [`super::offers`]; [`check`] compares a file with the models of a catalogue.

mod check;
mod error;
mod line;
mod value;

use serde::Deserialize;
use toml::Value;

use super::policy::{
    CardSelector, Glob, Layout, LayoutKind, LayoutPolicy, LayoutRule, ShareTerms, Slot, SplitPiece,
    SplitPlace, SplitRecipe,
};
use crate::card::NotedFault;
use crate::id::{TemplateName, is_dns_label};
use crate::partition::PlacementName;
use crate::units::{Bytes, Cores};
pub use check::check;
pub use error::PolicyError;
use value::{cores, duplicate, field, memory, unknown, whole};

/// Most copies of a slot or of a partition on one card.
const COPIES_MAX: u32 = 64;
/// Longest name of a slot: it becomes part of object names.
const SLOT_NAME_MAX: usize = 32;

// === the file as it is written ===

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyText {
    #[serde(default)]
    default: Option<DefaultText>,
    #[serde(default)]
    evict: Vec<String>,
    #[serde(default)]
    rule: Vec<RuleText>,
    #[serde(default)]
    slot: Vec<SlotText>,
    #[serde(default)]
    recipe: Vec<RecipeText>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a layout such as \"auto\", or a table such as { layout = \"shared\", default-memory = \"8Gi\" }"
)]
enum DefaultText {
    Name(String),
    Layout(LayoutText),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RuleText {
    vendor: Option<String>,
    model: Option<String>,
    uuid: Option<String>,
    index: Option<Value>,
    layout: String,
    partitions: Option<Vec<String>>,
    recipe: Option<String>,
    slots: Option<Vec<String>>,
    default_memory: Option<Value>,
    min_memory: Option<Value>,
    max_memory: Option<Value>,
    default_cores: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LayoutText {
    layout: String,
    partitions: Option<Vec<String>>,
    recipe: Option<String>,
    slots: Option<Vec<String>>,
    default_memory: Option<Value>,
    min_memory: Option<Value>,
    max_memory: Option<Value>,
    default_cores: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SlotText {
    name: String,
    memory: Value,
    cores: Option<Value>,
    copies: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeText {
    name: String,
    partitions: Vec<String>,
}

// === reading ===

/// Reads a policy file.
///
/// # Errors
/// The first thing that is wrong; nothing is guessed.
pub fn parse(text: &str) -> Result<LayoutPolicy, PolicyError> {
    let file: PolicyText = toml::from_str(text).map_err(|error| line::syntax(text, &error))?;
    read(file).map_err(|error| line::placed(text, error))
}

/// Reads what the file says; the lines of errors are not known here.
fn read(file: PolicyText) -> Result<LayoutPolicy, PolicyError> {
    let named = RuleNames::read(&file)?;
    let mut rules = Vec::new();
    for (number, rule) in file.rule.into_iter().enumerate() {
        let at = format!("rule[{}]", number + 1);
        let selector = selector(&rule, &at)?;
        rules.push(LayoutRule { selector, layout: named.layout(rule.into_layout(), &at)? });
    }
    let default = match file.default {
        None => Layout::default(),
        Some(DefaultText::Layout(layout)) => named.layout(layout, "default")?,
        Some(DefaultText::Name(name)) => named.layout(LayoutText::only(name), "default")?,
    };
    let evict = file.evict.iter().map(|name| fault(name)).collect::<Result<_, _>>()?;
    Ok(LayoutPolicy { rules, default, evict })
}

/// A fault by its name in `evict`.
fn fault(name: &str) -> Result<NotedFault, PolicyError> {
    match name {
        "part" => Ok(NotedFault::Part),
        "card" => Ok(NotedFault::Card),
        "lost" => Ok(NotedFault::Lost),
        other => {
            Err(field("evict", &format!("`{other}`"), "part, card or lost", "name faults that end Pods"))
        }
    }
}

/// What rules may refer to by name.
struct RuleNames {
    slots: Vec<Slot>,
    recipes: Vec<(String, SplitRecipe)>,
}

impl RuleNames {
    fn read(file: &PolicyText) -> Result<Self, PolicyError> {
        let mut named = Self { slots: Vec::new(), recipes: Vec::new() };
        for (number, text) in file.slot.iter().enumerate() {
            let at = format!("slot[{}]", number + 1);
            let slot = slot(text, &at)?;
            if named.slots.iter().any(|other| other.name == slot.name) {
                return Err(duplicate(&at, &slot.name));
            }
            named.slots.push(slot);
        }
        for (number, text) in file.recipe.iter().enumerate() {
            let at = format!("recipe[{}]", number + 1);
            if named.recipes.iter().any(|(other, _)| *other == text.name) {
                return Err(duplicate(&at, &text.name));
            }
            named.recipes.push((text.name.clone(), pieces(&text.partitions, &format!("{at}.partitions"))?));
        }
        Ok(named)
    }

    fn layout(&self, text: LayoutText, at: &str) -> Result<Layout, PolicyError> {
        let kind =
            LayoutKind::ALL.into_iter().find(|kind| kind.as_str() == text.layout).ok_or_else(|| {
                let known: Vec<&str> = LayoutKind::ALL.iter().map(|kind| kind.as_str()).collect();
                field(&format!("{at}.layout"), &text.layout, &known.join(", "), "choose one of them")
            })?;
        let splits = kind == LayoutKind::Split;
        let shares = !matches!(kind, LayoutKind::Whole | LayoutKind::Slots);
        let slots = kind == LayoutKind::Slots;
        let sharing = "auto, shared, split or dynamic";
        let uses = [
            ("partitions", text.partitions.is_some() && !splits, "split"),
            ("recipe", text.recipe.is_some() && !splits, "split"),
            ("slots", text.slots.is_some() && !slots, "slots"),
            ("default-memory", text.default_memory.is_some() && !shares, sharing),
            ("min-memory", text.min_memory.is_some() && !shares, sharing),
            ("max-memory", text.max_memory.is_some() && !shares, sharing),
            ("default-cores", text.default_cores.is_some() && !shares, sharing),
        ];
        if let Some((name, _, needs)) = uses.iter().find(|(_, misplaced, _)| *misplaced) {
            return Err(field(
                &format!("{at}.{name}"),
                &format!("it beside layout {kind}"),
                &format!("it only beside layout {needs}"),
                "remove it, or change the layout",
            ));
        }
        let terms = terms(&text, at)?;
        Ok(match kind {
            LayoutKind::Auto => Layout::Auto(terms),
            LayoutKind::Whole => Layout::Whole,
            LayoutKind::Shared => Layout::Shared(terms),
            LayoutKind::Dynamic => Layout::Dynamic(terms),
            LayoutKind::Split => Layout::Split { recipe: self.recipe(&text, at)?, terms },
            LayoutKind::Slots => Layout::Slots(self.slots(text.slots, at)?),
        })
    }

    fn recipe(&self, text: &LayoutText, at: &str) -> Result<Option<SplitRecipe>, PolicyError> {
        match (&text.partitions, &text.recipe) {
            (None, None) => Ok(None),
            (Some(list), None) => pieces(list, &format!("{at}.partitions")).map(Some),
            (None, Some(name)) => match self.recipes.iter().find(|(other, _)| other == name) {
                Some((_, recipe)) => Ok(Some(recipe.clone())),
                None => {
                    let known: Vec<&str> = self.recipes.iter().map(|(name, _)| name.as_str()).collect();
                    Err(unknown(&format!("{at}.recipe"), name, "recipe", &known))
                }
            },
            (Some(_), Some(name)) => Err(field(
                &format!("{at}.recipe"),
                &format!("`{name}` beside `partitions`"),
                "one of the two",
                "remove one",
            )),
        }
    }

    fn slots(&self, names: Option<Vec<String>>, at: &str) -> Result<Vec<Slot>, PolicyError> {
        let at = format!("{at}.slots");
        let names = names.filter(|names| !names.is_empty()).ok_or_else(|| {
            field(&at, "nothing", "names of slots", "add `slots = [\"…\"]` and a [[slot]] for each")
        })?;
        let mut slots: Vec<Slot> = Vec::new();
        for name in &names {
            let Some(slot) = self.slots.iter().find(|slot| slot.name == *name) else {
                let known: Vec<&str> = self.slots.iter().map(|slot| slot.name.as_str()).collect();
                return Err(unknown(&at, name, "slot", &known));
            };
            if slots.contains(slot) {
                return Err(duplicate(&at, name));
            }
            slots.push(slot.clone());
        }
        Ok(slots)
    }
}

impl RuleText {
    fn into_layout(self) -> LayoutText {
        LayoutText {
            layout: self.layout,
            partitions: self.partitions,
            recipe: self.recipe,
            slots: self.slots,
            default_memory: self.default_memory,
            min_memory: self.min_memory,
            max_memory: self.max_memory,
            default_cores: self.default_cores,
        }
    }
}

impl LayoutText {
    fn only(layout: String) -> Self {
        Self {
            layout,
            partitions: None,
            recipe: None,
            slots: None,
            default_memory: None,
            min_memory: None,
            max_memory: None,
            default_cores: None,
        }
    }
}

// === parts ===

fn selector(rule: &RuleText, at: &str) -> Result<CardSelector, PolicyError> {
    let glob = |name: &str, text: &Option<String>| match text.as_deref() {
        None => Ok(None),
        Some(text) if text.is_empty() || text.len() > 128 || text.contains(char::is_whitespace) => {
            Err(field(
                &format!("{at}.{name}"),
                &format!("`{text}`"),
                "1 to 128 characters without spaces, `*` for any run and `?` for one",
                "correct it, or remove it to match every card",
            ))
        }
        Some(text) => Ok(Some(Glob(text.to_owned()))),
    };
    let mut indexes = Vec::new();
    if let Some(value) = &rule.index {
        let listed = match value {
            Value::Array(values) => values.clone(),
            single => vec![single.clone()],
        };
        for value in listed {
            indexes.push(whole(
                &value,
                &format!("{at}.index"),
                u32::MAX.into(),
                "an index from 0 or a list of them",
            )?);
        }
        if indexes.is_empty() {
            return Err(field(
                &format!("{at}.index"),
                "an empty list",
                "at least one index",
                "remove it to match all",
            ));
        }
    }
    Ok(CardSelector {
        vendor: glob("vendor", &rule.vendor)?,
        model: glob("model", &rule.model)?,
        uuid: glob("uuid", &rule.uuid)?,
        indexes,
    })
}

fn terms(text: &LayoutText, at: &str) -> Result<ShareTerms, PolicyError> {
    let size = |name: &str, value: &Option<Value>| {
        value.as_ref().map(|value| memory(value, &format!("{at}.{name}"))).transpose()
    };
    let mut terms = ShareTerms {
        memory_default: size("default-memory", &text.default_memory)?,
        memory_max: size("max-memory", &text.max_memory)?,
        ..ShareTerms::default()
    };
    if let Some(min) = size("min-memory", &text.min_memory)? {
        terms.memory_min = min;
    }
    if let Some(value) = &text.default_cores {
        terms.cores_default = cores(value, &format!("{at}.default-cores"))?;
    }
    let max = terms.memory_max.unwrap_or(Bytes(u64::MAX));
    if terms.memory_min > max {
        let expected = format!("at most max-memory, {max}");
        return Err(field(&format!("{at}.min-memory"), &terms.memory_min.to_string(), &expected, "lower it"));
    }
    if let Some(default) = terms.memory_default.filter(|d| *d > max || *d < terms.memory_min) {
        let expected = format!("between min-memory and max-memory ({} to {max})", terms.memory_min);
        return Err(field(
            &format!("{at}.default-memory"),
            &default.to_string(),
            &expected,
            "change one of them",
        ));
    }
    Ok(terms)
}

fn slot(text: &SlotText, at: &str) -> Result<Slot, PolicyError> {
    if !is_dns_label(&text.name) || text.name.len() > SLOT_NAME_MAX {
        let expected = "1 to 32 lower-case letters, digits or dashes, not beginning or ending with a dash";
        return Err(field(&format!("{at}.name"), &format!("`{}`", text.name), expected, "rename it"));
    }
    let copies = match &text.copies {
        None => 1,
        Some(value) => whole(value, &format!("{at}.copies"), COPIES_MAX.into(), "1 to 64 copies")?,
    };
    if copies == 0 {
        return Err(field(
            &format!("{at}.copies"),
            "0",
            "1 to 64 copies",
            "remove the slot if you want none",
        ));
    }
    let cores = match &text.cores {
        None => Cores::NONE,
        Some(value) => cores(value, &format!("{at}.cores"))?,
    };
    Ok(Slot {
        name: text.name.clone(),
        memory: memory(&text.memory, &format!("{at}.memory"))?,
        cores,
        copies,
    })
}

/// `7x1g.10gb`, `1g.10gb`, `3g.40gb@4`.
fn pieces(list: &[String], at: &str) -> Result<SplitRecipe, PolicyError> {
    if list.is_empty() {
        return Err(field(
            at,
            "an empty list",
            "partitions such as \"7x1g.10gb\"",
            "add some, or use layout whole",
        ));
    }
    let pieces = list.iter().map(|text| piece(text, at)).collect::<Result<Vec<_>, _>>()?;
    Ok(SplitRecipe { pieces })
}

fn piece(text: &str, at: &str) -> Result<SplitPiece, PolicyError> {
    let wrong = || {
        let expected = "`1g.10gb`, `7x1g.10gb` (1 to 64 of them) or `3g.40gb@4` (one at a placement)";
        field(at, &format!("`{text}`"), expected, "correct it")
    };
    let text = text.trim();
    if let Some((template, placement)) = text.split_once('@') {
        let template = TemplateName::new(template.trim()).map_err(|_| wrong())?;
        let placement = placement.trim();
        if !is_dns_label(placement) {
            return Err(wrong());
        }
        return Ok(SplitPiece { template, place: SplitPlace::At(PlacementName(placement.to_owned())) });
    }
    let counted = text.split_once(['x', '×']).and_then(|(count, template)| {
        let digits = !count.trim().is_empty() && count.trim().bytes().all(|b| b.is_ascii_digit());
        digits.then(|| (count.trim().parse::<u32>(), template.trim()))
    });
    let (copies, template) = match counted {
        None => (1, text),
        Some((copies, template)) => (copies.map_err(|_| wrong())?, template),
    };
    if !(1..=COPIES_MAX).contains(&copies) {
        return Err(wrong());
    }
    let template = TemplateName::new(template).map_err(|_| wrong())?;
    Ok(SplitPiece { template, place: SplitPlace::Anywhere { copies } })
}

#[cfg(test)]
mod tests;
