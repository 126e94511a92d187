//! Ascend chips, vNPUs and their memory, as Huawei and HAMi name them.

use aliquot_core::catalogue::CardModel;
use aliquot_core::fraction::{AskError, FractionChoice, FractionMatch, ResolveError, parse_ask, resolve};
use aliquot_core::offer::classes::{card_class, template_class};
use aliquot_core::offer::legacy::legacy_class_of;

use super::asker::Became;
use super::cards::of_models;
use super::claims::{ALTERNATIVES_MAX, Alternative, Asked, CardSpread};
use super::gpus::NO_COUNT;
use super::pod::{Outcome, STAYS};
use super::vocabulary::Unit;
use super::wishes::Wishes;
use super::words::{Word, has_template};
use super::{Conversion, Place, amounts};

impl Conversion<'_> {
    /// What a container's chips, memory of chips or cores of a vNPU become.
    pub(super) fn chips(&mut self, words: &[Word], wishes: &Wishes, at: &Place<'_>, name: &str) -> Outcome {
        let (chips, parts): (Vec<&Word>, Vec<&Word>) =
            words.iter().partition(|word| word.unit == Unit::Chips);
        match (parts.as_slice(), chips.as_slice()) {
            ([], _) => {}
            ([memory], _) if memory.unit == Unit::ChipMemory => {
                return self.chip_memory(memory, &chips, at, name);
            }
            ([cores], []) => return self.chip_cores(cores, wishes, at, name),
            ([part], [other, ..]) | ([part, other, ..], _) => {
                let reason = format!("it contradicts {}: each says how much of a chip", other.name);
                self.lose(at.limit(&part.name), &part.value, reason, STAYS);
                return Outcome::Left;
            }
        }
        let mut classes = Vec::new();
        for word in chips {
            if amounts::count(&word.value).is_none() {
                self.lose(at.limit(&word.name), &word.value, NO_COUNT, STAYS);
                return Outcome::Left;
            }
            match legacy_class_of(&word.name) {
                Some(class) => classes.push(class),
                None => {
                    let reason = match has_template(&word.name) {
                        true => "no chip that is known has this template",
                        false => "it is no chip that is known",
                    };
                    self.lose(
                        at.limit(&word.name),
                        &word.value,
                        reason,
                        "ask `aliquot classes` for the part",
                    );
                }
            }
        }
        if classes.is_empty() { Outcome::Left } else { Outcome::Unchanged(classes, Became::Chips) }
    }

    /// HAMi rounds memory up to the smallest template that has it; two resources become one request.
    fn chip_memory(&mut self, memory: &Word, chips: &[&Word], at: &Place<'_>, name: &str) -> Outcome {
        let chip = memory.name.strip_suffix("-memory").unwrap_or(&memory.name);
        let others = chips.iter().any(|word| word.name != chip);
        let count =
            chips.iter().find(|word| word.name == chip).map_or(Some(1), |word| amounts::count(&word.value));
        let Some(count) = count.filter(|_| !others) else {
            self.lose(at.limit(&memory.name), &memory.value, "its number of chips contradicts it", STAYS);
            return Outcome::Left;
        };
        let text = format!("{}: {}", memory.name, memory.value);
        let Some(alternatives) = self.resolved(&text, &memory.name, &memory.value, at) else {
            return Outcome::Left;
        };
        let classes: Vec<&str> = alternatives.iter().map(|one| one.class.as_str()).collect();
        self.note(
            &at.limit(&memory.name),
            &memory.value,
            &format!("{} with the chip's count, in one request", classes.join(" or ")),
        );
        Outcome::Claim(vec![asked(name, count, alternatives)], Became::Chips)
    }

    /// So many AI cores in one vNPU, with the labels that choose among templates of one size.
    fn chip_cores(&mut self, cores: &Word, wishes: &Wishes, at: &Place<'_>, name: &str) -> Outcome {
        let field = at.limit(&cores.name);
        let level = wishes.level.as_deref().unwrap_or("high");
        let dvpp = wishes.dvpp.as_deref().unwrap_or("null");
        let template = match (cores.value.as_str(), level, dvpp) {
            ("1", "low" | "high", _) => "vir01",
            ("2", "low", _) => "vir02_1c",
            ("2", "high", _) => "vir02",
            ("4", _, "yes") => "vir04_4c_dvpp",
            ("4", _, "no") => "vir04_3c_ndvpp",
            ("4", "low", "null") => "vir04_3c",
            ("4", "high", "null") => "vir04",
            ("8", _, _) => "Ascend310P",
            ("16", _, _) => "vir16",
            _ => {
                let reason = "no template has so many AI cores with these labels";
                self.lose(field, &cores.value, reason, "ask for 1, 2, 4, 8 or 16 cores; it stays as it is");
                return Outcome::Left;
            }
        };
        match self.resolved(template, &cores.name, &cores.value, at) {
            Some(alternatives) => Outcome::Claim(vec![asked(name, 1, alternatives)], Became::Chips),
            None => Outcome::Left,
        }
    }

    /// What of the chips at hand answers a part, one alternative a class.
    fn resolved(
        &mut self,
        part: &str,
        resource: &str,
        value: &str,
        at: &Place<'_>,
    ) -> Option<Vec<Alternative>> {
        let models: Vec<&CardModel> =
            self.cards.models().into_iter().filter(|model| model.vendor.as_str() == "huawei").collect();
        let found = parse_ask(part)
            .map_err(|error: AskError| error.problem.to_owned())
            .and_then(|ask| resolve(&ask, &models).map_err(|error| short(&error)));
        let matches = match found {
            Ok(matches) => matches,
            Err(reason) => {
                self.lose(at.limit(resource), value, reason, STAYS);
                return None;
            }
        };
        let mut by_class: Vec<(String, Vec<&CardModel>)> = Vec::new();
        for FractionMatch { model, choice } in &matches {
            let Some(model) = models.iter().copied().find(|known| known.id == *model) else { continue };
            let class = match choice {
                FractionChoice::Whole => card_class(&model.vendor),
                FractionChoice::Templates(names) => match names.first() {
                    Some(first) => template_class(model.vendor.as_str(), first.as_str()),
                    None => continue,
                },
                FractionChoice::Share { .. } => continue,
            };
            match by_class.iter_mut().find(|(known, _)| *known == class) {
                Some((_, models)) => models.push(model),
                None => by_class.push((class, vec![model])),
            }
        }
        by_class.truncate(ALTERNATIVES_MAX);
        let alternative = |(number, (class, models)): (usize, (String, Vec<&CardModel>))| Alternative {
            name: format!("part-{number}"),
            class,
            selectors: vec![of_models(&models)],
            capacity: std::collections::BTreeMap::new(),
        };
        let alternatives: Vec<Alternative> = by_class.into_iter().enumerate().map(alternative).collect();
        if alternatives.is_empty() {
            self.lose(at.limit(resource), value, "no chip at hand has such a part", STAYS);
            return None;
        }
        Some(alternatives)
    }
}

fn asked(name: &str, count: u32, alternatives: Vec<Alternative>) -> Asked {
    Asked {
        name: name.to_owned(),
        count,
        alternatives,
        settings: std::collections::BTreeMap::new(),
        spread: CardSpread::Any,
        same: None,
    }
}

/// The reason without the list of everything that there is.
fn short(error: &ResolveError) -> String {
    match error {
        ResolveError::Unknown { .. } => "no chip at hand goes by this name".to_owned(),
        ResolveError::NoSuchPart { .. } => "no chip at hand has such a part".to_owned(),
    }
}
