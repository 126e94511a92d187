//! The resources of one container that are about cards: name, number, and the system that defines them.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::amounts::whole;
use super::place::scalar;
use super::vocabulary::{FOREIGN_DOMAINS, RESOURCES, System, Unit};

/// One resource with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// Name of the resource.
    pub(super) name: String,
    /// Its number, as written.
    pub(super) value: String,
    /// The system that defines it.
    pub(super) system: System,
    /// What it counts.
    pub(super) unit: Unit,
}

/// What is wrong with the resources of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contradiction {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) reason: String,
}

const NOT_KNOWN: &str = "it is no resource that is known";
const NO_BACKEND: &str = "Aliquot has no backend for this vendor, so it is left as it is";

/// The system that defines a resource, and the unit of its number; `None`: it is not about cards.
pub(super) fn meaning(name: &str) -> Option<(System, Unit)> {
    if let Some((_, system, unit)) = RESOURCES.iter().find(|(known, ..)| *known == name) {
        return Some((*system, *unit));
    }
    let (domain, rest) = name.split_once('/')?;
    if let Some(profile) = rest.strip_prefix("mig-").filter(|_| domain == "nvidia.com") {
        let unit = if is_profile(profile) { Unit::MigInstances } else { Unit::Nothing(NOT_KNOWN) };
        return Some((System::Nvidia, unit));
    }
    let under = |known: &&str| domain == *known || domain.ends_with(&format!(".{known}"));
    match domain {
        "huawei.com" => Some(of_huawei(rest)),
        "nvidia.com" => Some((System::Nvidia, Unit::Nothing(NOT_KNOWN))),
        "volcano.sh" if rest.starts_with("vgpu") => Some((System::Volcano, Unit::Nothing(NOT_KNOWN))),
        "koordinator.sh" if rest.starts_with("gpu") => Some((System::Koordinator, Unit::Nothing(NOT_KNOWN))),
        "aliyun.com" | "tencent.com" => Some((System::Other, Unit::Nothing(NOT_KNOWN))),
        _ if FOREIGN_DOMAINS.iter().any(under) => Some((System::Other, Unit::Nothing(NO_BACKEND))),
        _ => None,
    }
}

/// Whether the resource is about cards, for a command that was given a manifest of another system.
#[must_use]
pub fn is_about_cards(resource: &str) -> bool {
    meaning(resource).is_some()
}

fn of_huawei(name: &str) -> (System, Unit) {
    let small = name.to_ascii_lowercase();
    if !small.starts_with("ascend") {
        return (System::Huawei, Unit::Nothing(NOT_KNOWN));
    }
    if small.ends_with("-memory") {
        return (System::Hami, Unit::ChipMemory);
    }
    if small.ends_with("-core") {
        let reason = "NPUs have no shim, so a template decides how many AI cores there are";
        return (System::Hami, Unit::Nothing(reason));
    }
    (System::Huawei, Unit::Chips)
}

/// `1g.10gb` and `1g.10gb.me`, with dots for the plus signs.
fn is_profile(text: &str) -> bool {
    let Some((slices, rest)) = text.split_once("g.") else { return false };
    let Some((memory, attributes)) = rest.split_once("gb") else { return false };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let plain = |c: char| c.is_ascii_lowercase() || c == '.' || c == '-';
    digits(slices) && digits(memory) && attributes.len() <= 16 && attributes.chars().all(plain)
}

/// The profile behind a resource: `1g.10gb+me` for `nvidia.com/mig-1g.10gb.me`.
pub(super) fn profile_of(resource: &str) -> Option<String> {
    let profile = resource.strip_prefix("nvidia.com/mig-")?;
    let (size, attributes) = profile.split_once("gb")?;
    let attributes = match attributes.strip_prefix('.') {
        Some(rest) => format!("+{rest}"),
        None => attributes.to_owned(),
    };
    Some(format!("{size}gb{attributes}"))
}

/// Whether the rest of a Huawei resource is a chip with a template's size: `Ascend310P-2c`.
pub(super) fn has_template(name: &str) -> bool {
    let size = name.rsplit_once('-').map_or("", |(_, size)| size);
    let cores = size.split('.').next().and_then(|cores| cores.strip_suffix('c'));
    cores.is_some_and(|cores| cores.parse::<u8>().is_ok())
}

/// The words of a container, each once.
///
/// # Errors
/// Limits and requests of a resource differ.
pub(super) fn of_container(
    container: &Map<String, Value>,
    only: Option<System>,
) -> Result<Vec<Word>, Contradiction> {
    let Some(resources) = container.get("resources") else { return Ok(Vec::new()) };
    let list = |key| resources.get(key).and_then(Value::as_object);
    let (limits, requests) = (list("limits"), list("requests"));
    let names: BTreeSet<&String> = [limits, requests].into_iter().flatten().flat_map(Map::keys).collect();
    let mut words = Vec::new();
    for name in names {
        let Some((system, unit)) = meaning(name) else { continue };
        if only.is_some_and(|only| !is_word_of(only, system, unit)) {
            continue;
        }
        let value = |list: Option<&Map<String, Value>>| list.and_then(|list| list.get(name)).map(scalar);
        let (limit, request) = (value(limits), value(requests));
        if let (Some(limit), Some(request)) = (&limit, &request)
            && limit != request
        {
            let value = format!("limit {limit}, request {request}");
            let reason = "limit and request of a resource have to be equal".to_owned();
            return Err(Contradiction { name: name.clone(), value, reason });
        }
        let value = limit.or(request).unwrap_or_default();
        words.push(Word { name: name.clone(), value, system, unit });
    }
    no_amount_of_nothing(&words)?;
    for word in words.iter_mut().filter(|word| word.unit != Unit::Priority && whole(&word.value) == Some(0)) {
        word.unit = Unit::Zero;
    }
    one_system(&words)?;
    if words.iter().all(|word| word.unit == Unit::Zero) {
        words.clear();
    }
    Ok(words)
}

/// Whether a resource counts for a system; names that several systems have do for each of them.
pub(super) fn is_word_of(only: System, system: System, unit: Unit) -> bool {
    only == system
        || (only == System::Hami && system == System::Nvidia && unit == Unit::Cards)
        || (only == System::Gke && system == System::Nvidia)
        || (only == System::Hami && system == System::Huawei && unit == Unit::Chips)
}

/// An amount of 0 is none, and devices of which there are 0 have no amount.
fn no_amount_of_nothing(words: &[Word]) -> Result<(), Contradiction> {
    let counts = |word: &&Word| matches!(word.unit, Unit::Cards | Unit::Chips | Unit::MigInstances);
    let is_zero = |word: &&Word| whole(&word.value) == Some(0);
    let mut counted = words.iter().filter(counts);
    let amount = words.iter().find(|word| {
        !counts(word) && !is_zero(word) && !matches!(word.unit, Unit::Priority | Unit::Nothing(_))
    });
    let (Some(zero), Some(amount)) = (counted.clone().find(is_zero), amount) else { return Ok(()) };
    if !counted.all(|word| is_zero(&word)) {
        return Ok(());
    }
    let reason = format!("it contradicts {}: no device, and an amount of one", amount.name);
    Err(Contradiction { name: zero.name.clone(), value: zero.value.clone(), reason })
}

fn one_system(words: &[Word]) -> Result<(), Contradiction> {
    let own = |word: &&Word| {
        let shared = matches!((word.system, word.unit), (System::Nvidia, Unit::Cards) | (_, Unit::Chips));
        !shared && !matches!(word.unit, Unit::Nothing(_) | Unit::Zero)
    };
    let mut own = words.iter().filter(own);
    let Some(first) = own.next() else { return Ok(()) };
    match own.find(|word| word.system != first.system) {
        None => Ok(()),
        Some(other) => Err(Contradiction {
            name: other.name.clone(),
            value: other.value.clone(),
            reason: format!("{} is in the same container: they are words of two systems", first.name),
        }),
    }
}
