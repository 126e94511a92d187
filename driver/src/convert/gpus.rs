//! Whole GPUs, shares of them and MIG instances: amounts and wishes as requests.

use std::collections::BTreeMap;

use aliquot_core::catalogue::CardModel;
use aliquot_core::id::Vendor;
use aliquot_core::offer::DRIVER;
use aliquot_core::offer::classes::{card_class, share_class, template_class};
use aliquot_core::offer::legacy::{legacy_gpu, legacy_gpu_of_profile, legacy_mig, legacy_slot};

use super::amounts::{Amounts, CardPart, ShareMemory, WHOLE, count};
use super::asker::{ALONE, Became};
use super::cards::{PartSize, is_called, of_models};
use super::claims::{ALTERNATIVES_MAX, Alternative, Asked, CardSpread, capacity};
use super::pod::{Outcome, STAYS};
use super::vocabulary::{System, Unit};
use super::wishes::{ComputeWish, Wishes};
use super::words::{Word, profile_of};
use super::{Conversion, Place};

/// What is wrong with a number of devices.
pub(super) const NO_COUNT: &str = "it is no number from 1 to 32";
impl Conversion<'_> {
    /// MIG instances by profile.
    pub(super) fn instances(
        &mut self,
        words: &[Word],
        wishes: &Wishes,
        at: &Place<'_>,
        name: &str,
    ) -> Outcome {
        if let Some(other) = words.iter().find(|word| word.unit != Unit::MigInstances) {
            let reason = "the container asks for MIG instances and for cards at once";
            self.lose(at.limit(&other.name), &other.value, reason, STAYS);
            return Outcome::Left;
        }
        // Claims are not on one NUMA node together, so that several profiles need none.
        let by_claim = !wishes.selectors.is_empty() || (wishes.numa && words.len() == 1);
        let (mut requests, mut classes) = (Vec::new(), Vec::new());
        for (number, word) in words.iter().enumerate() {
            let (Some(count), Some(profile)) = (count(&word.value), profile_of(&word.name)) else {
                self.lose(at.limit(&word.name), &word.value, NO_COUNT, STAYS);
                return Outcome::Left;
            };
            let name = if number == 0 { name.to_owned() } else { format!("{name}-{number}") };
            requests.push(of_profile(&name, count, &profile, wishes));
            classes.push(legacy_mig(&profile));
        }
        match (by_claim, words.len()) {
            (false, _) => Outcome::Unchanged(classes, Became::ClassesOfInstances),
            (true, 1) => Outcome::Claim(requests, Became::Instances),
            (true, _) => Outcome::Claim(requests, Became::SeveralProfiles),
        }
    }

    /// Number of cards and what each of them is; `None`: an amount is wrong, and that was said.
    fn amounts(&mut self, words: &[Word], wishes: &mut Wishes, at: &Place<'_>) -> Option<(u32, CardPart)> {
        let mut amounts = wishes.amounts.clone();
        for word in words {
            let taken = match word.unit {
                Unit::Priority => priority(wishes, &word.value),
                unit => amounts.take(unit, &word.value),
            };
            if let Err(reason) = taken {
                self.lose(at.limit(&word.name), &word.value, reason, STAYS);
                return None;
            }
        }
        let of_memory = |word: &&Word| matches!(word.unit, Unit::MemoryPercent | Unit::MemoryPercentOfAll);
        let percentage = words.iter().find(of_memory);
        if let (Some(_), Some(word)) = (amounts.memory.or(amounts.memory_of_all), percentage) {
            let reason = "the size in MiB is there as well, and counts";
            self.lose(at.limit(&word.name), &word.value, reason, "remove it");
        }
        match amounts.part() {
            Ok(_) if wishes.torn => None,
            Ok(found) => Some(found),
            Err(reason) => {
                let first = words.first();
                let (name, value) = first.map_or(("", ""), |word| (word.name.as_str(), word.value.as_str()));
                self.lose(at.limit(name), value, reason, STAYS);
                None
            }
        }
    }

    /// Whole cards, shares, replicas.
    pub(super) fn gpus(
        &mut self,
        words: &[Word],
        wishes: &mut Wishes,
        at: &Place<'_>,
        name: &str,
    ) -> Outcome {
        let Some((count, part)) = self.amounts(words, wishes, at) else { return Outcome::Left };
        let only_cards = wishes.amounts == Amounts::default()
            && words.iter().all(|word| matches!(word.unit, Unit::Cards | Unit::Replicas));
        if let Some(profile) = wishes.profile.clone().filter(|_| only_cards) {
            return Outcome::Claim(vec![of_profile(name, count, &profile, wishes)], Became::Instances);
        }
        let part = match (wishes.replicas, part) {
            (Some(replicas @ 2..), CardPart::Whole) if only_cards => {
                self.replica(words, replicas, at);
                wishes.compute = wishes.compute.or(Some(ComputeWish::Burst));
                let cores = u8::try_from(100 / replicas).unwrap_or(1);
                CardPart::Share { memory: ShareMemory::Part(WHOLE / replicas), cores }
            }
            (_, part) => part,
        };
        if part == CardPart::Whole
            && let Some(unchanged) = self.unchanged(words, wishes, at)
        {
            return unchanged;
        }
        let system = words.iter().map(|word| word.system).find(|system| *system != System::Nvidia);
        let system = system.or(wishes.amounts_of).unwrap_or(System::Nvidia);
        let Some(alternatives) = self.alternatives(part, wishes, words, at) else { return Outcome::Left };
        let (settings, spread, became) = match part {
            CardPart::Share { .. } => (settings(wishes, part, system), CardSpread::Distinct, Became::Shares),
            CardPart::Whole => {
                self.moot_priority(words, at);
                (BTreeMap::new(), CardSpread::Any, Became::Cards)
            }
        };
        let same = wishes.numa.then(|| format!("{DRIVER}/numaNode"));
        let asked = Asked { name: name.to_owned(), count, alternatives, settings, spread, same };
        Outcome::Claim(vec![asked], became)
    }

    fn moot_priority(&mut self, words: &[Word], at: &Place<'_>) {
        for word in words.iter().filter(|word| word.unit == Unit::Priority) {
            self.note(&at.limit(&word.name), &word.value, ALONE);
        }
    }

    /// A container whose resource a class can stand for.
    fn unchanged(&mut self, words: &[Word], wishes: &Wishes, at: &Place<'_>) -> Option<Outcome> {
        if let Some(word) = words.iter().find(|word| word.unit == Unit::Replicas) {
            return Some(self.slot(word, at));
        }
        let of_plugin = words.iter().all(|word| word.name == "nvidia.com/gpu") && !words.is_empty();
        if !of_plugin || !wishes.selectors.is_empty() || wishes.numa {
            return None;
        }
        let (class, became) = match (self.replica, &self.settings.profile) {
            (Some(resource @ "nvidia.com/gpu"), _) => (legacy_slot(resource), Became::Slots),
            (_, Some(profile)) => (legacy_gpu_of_profile(profile), Became::ClassesOfInstances),
            _ => (legacy_gpu(), Became::ClassOfCards),
        };
        Some(Outcome::Unchanged(vec![class], became))
    }

    fn replica(&mut self, words: &[Word], replicas: u32, at: &Place<'_>) {
        let (name, value) = words.first().map_or(("", ""), |word| (word.name.as_str(), word.value.as_str()));
        let reason = format!(
            "time slicing has no memory limit, and a share has: 1/{replicas} of the card's, and as much of its compute \
             at least"
        );
        self.lose(
            at.limit(name),
            value,
            reason,
            "check that the program needs no more, or change the capacity",
        );
    }

    /// A replica of the device plugin: a slot of the policy.
    fn slot(&mut self, word: &Word, at: &Place<'_>) -> Outcome {
        if self.replica.is_none() && !self.served.contains(&word.name) {
            self.lose(
                at.limit(&word.name),
                &word.value,
                "time slicing has no memory limit, so a size has to be chosen",
                "convert the plugin's configuration for a policy with slots, or ask for a share in a claim",
            );
        }
        Outcome::Unchanged(vec![legacy_slot(&word.name)], Became::Slots)
    }

    fn alternatives(
        &mut self,
        part: CardPart,
        wishes: &Wishes,
        words: &[Word],
        at: &Place<'_>,
    ) -> Option<Vec<Alternative>> {
        let one = |class: String, capacity| {
            vec![Alternative { name: String::new(), class, selectors: wishes.selectors.clone(), capacity }]
        };
        let (memory, cores) = match part {
            CardPart::Whole => {
                return Vendor::new("nvidia").ok().map(|v| one(card_class(&v), BTreeMap::new()));
            }
            CardPart::Share { memory, cores } => (memory, cores),
        };
        let cores = if wishes.compute == Some(ComputeWish::Unlimited) { 0 } else { cores };
        match memory {
            ShareMemory::All => Some(one(share_class(), capacity(None, cores))),
            ShareMemory::Size(size) => Some(one(share_class(), capacity(Some(size), cores))),
            ShareMemory::Part(part) => self.by_model(part, cores, wishes, words, at),
        }
    }

    /// A part of a card's memory: an amount for each model at hand.
    fn by_model(
        &mut self,
        part: u32,
        cores: u8,
        wishes: &Wishes,
        words: &[Word],
        at: &Place<'_>,
    ) -> Option<Vec<Alternative>> {
        let passes = |model: &CardModel| {
            wishes.products.is_empty() || wishes.products.iter().any(|product| is_called(model, product))
        };
        let mut sizes = self.cards.sizes(part, passes);
        let of_part = |word: &&Word| {
            matches!(word.unit, Unit::MemoryPercent | Unit::MemoryPercentOfAll | Unit::PercentOfCards)
        };
        let word = words.iter().find(of_part).or_else(|| words.first());
        let (field, value) = match word {
            Some(word) => (at.limit(&word.name), word.value.clone()),
            None => wishes.amounts_at.clone(),
        };
        let percent = f64::from(part) / 100.0;
        if sizes.is_empty() {
            let reason = format!("{percent} % of a card's memory is an amount only for known card models");
            let remedy =
                "add --cluster, or --node with a node that has the cards; the container stays as it is";
            self.lose(field, &value, reason, remedy);
            return None;
        }
        let left_out = sizes.len().saturating_sub(ALTERNATIVES_MAX);
        sizes.truncate(ALTERNATIVES_MAX);
        let more = match left_out {
            0 => String::new(),
            more => format!(", and of {more} more sizes of card at hand"),
        };
        let reason = format!("{percent} % of any other card model{more}: a claim asks for amounts");
        self.lose(field, &value, reason, "convert again when the cluster gets other cards");
        let alternative = |size: &PartSize<'_>| {
            let mut selectors = vec![of_models(&size.models)];
            selectors.extend(wishes.selectors.iter().cloned());
            let name = size.models.first().map(|model| model.id.to_string()).unwrap_or_default();
            Alternative {
                name,
                class: share_class(),
                selectors,
                capacity: capacity(Some(size.memory), cores),
            }
        };
        Some(sizes.iter().map(alternative).collect())
    }
}

/// Instances of a profile on cards that the wishes select.
fn of_profile(name: &str, count: u32, profile: &str, wishes: &Wishes) -> Asked {
    let one = Alternative {
        name: String::new(),
        class: template_class("nvidia", profile),
        selectors: wishes.selectors.clone(),
        capacity: BTreeMap::new(),
    };
    Asked {
        name: name.to_owned(),
        count,
        alternatives: vec![one],
        settings: BTreeMap::new(),
        spread: CardSpread::Any,
        same: wishes.numa.then(|| format!("{DRIVER}/numaNode")),
    }
}

/// HAMi's priority: 0 is high, 1 low.
fn priority(wishes: &mut Wishes, value: &str) -> Result<(), String> {
    wishes.priority = match value {
        "0" => Some("high"),
        "1" => Some("low"),
        _ => return Err("it is neither 0 (high) nor 1 (low)".to_owned()),
    };
    Ok(())
}

/// The settings of a share: HAMi lets a task that is alone pass its percentage, unless it is forced not to; KAI limits no
/// compute.
fn settings(wishes: &Wishes, part: CardPart, system: System) -> BTreeMap<&'static str, &'static str> {
    let mut settings = BTreeMap::new();
    let limited = matches!(part, CardPart::Share { cores: 1.., .. });
    let usual = match system {
        System::Hami | System::Kai => Some(ComputeWish::Burst),
        _ => None,
    };
    match wishes.compute.or(usual).filter(|_| limited) {
        Some(ComputeWish::Burst) => settings.insert("computePolicy", "burst"),
        Some(ComputeWish::Cap) => settings.insert("computePolicy", "cap"),
        Some(ComputeWish::Unlimited) | None => None,
    };
    if let Some(priority) = wishes.priority {
        settings.insert("priority", priority);
    }
    settings
}
