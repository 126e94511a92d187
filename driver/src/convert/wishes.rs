//! What annotations, labels and variables of a Pod ask for beside amounts.

use aliquot_core::offer::DRIVER;
use serde_json::Value;

use super::amounts::{Amounts, whole};
use super::vocabulary::{ANNOTATION_PREFIXES, Form, System, Unit, Wish};
use super::{Conversion, Place};

/// What holds for the requests of a Pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Wishes {
    /// Selectors in CEL.
    pub(super) selectors: Vec<String>,
    /// Parts of product names of which one is in the card's.
    pub(super) products: Vec<String>,
    /// Whether all cards are on one NUMA node.
    pub(super) numa: bool,
    /// `computePolicy` of the share.
    pub(super) compute: Option<ComputeWish>,
    /// `priority` of the share.
    pub(super) priority: Option<&'static str>,
    /// The container that the Pod's amounts are for.
    pub(super) container: Option<String>,
    /// Amounts of the Pod, and whose words they are.
    pub(super) amounts: Amounts,
    /// Whose words the amounts are, if there are any.
    pub(super) amounts_of: Option<System>,
    /// The field that has the part, and its value.
    pub(super) amounts_at: (String, String),
    /// Replicas of each card.
    pub(super) replicas: Option<u32>,
    /// MIG profile.
    pub(super) profile: Option<String>,
    /// Huawei's words for the vNPU.
    pub(super) level: Option<String>,
    pub(super) dvpp: Option<String>,
    /// Whether an amount of the Pod cannot be read.
    pub(super) torn: bool,
}

/// How compute is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComputeWish {
    /// To the percentage.
    Cap,
    /// Idle compute as well.
    Burst,
    /// Not at all.
    Unlimited,
}

/// What becomes of a word after it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// It goes.
    Taken,
    /// It stays.
    Stays,
}

/// The system that an annotation which is not known belongs to.
pub(super) fn system_of(annotation: &str) -> Option<System> {
    let of = ANNOTATION_PREFIXES.iter().find(|(prefix, _)| annotation.starts_with(prefix));
    of.map(|(_, system)| *system)
}

/// A list with commas, each item trimmed.
fn items(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

fn attribute(name: &str) -> String {
    format!("device.attributes[\"{DRIVER}\"].{name}")
}

/// A CEL string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push(' '),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn contains_any(products: &[String]) -> String {
    let name = attribute("productName");
    let one = |product: &String| {
        // HAMi puts the vendor before the product.
        let product = product.strip_prefix("NVIDIA-").unwrap_or(product).to_lowercase();
        format!("{name}.lowerAscii().contains({})", quoted(&product))
    };
    products.iter().map(one).collect::<Vec<String>>().join(" || ")
}

fn uuid_in(uuids: &[String]) -> String {
    let uuids: Vec<String> = uuids.iter().map(|uuid| quoted(uuid)).collect();
    format!("{} in [{}]", attribute("parentUUID"), uuids.join(", "))
}

impl Conversion<'_> {
    /// Takes one wish; whether the word goes or stays.
    pub(super) fn wish(&mut self, wishes: &mut Wishes, wish: Wish, field: &str, value: &str) -> Word {
        let list = items(value);
        match wish {
            Wish::TypeIn | Wish::TypeNotIn | Wish::UuidIn | Wish::UuidNotIn if list.is_empty() => {
                return self.unread(field, value, "it names nothing", "name a card, or remove it");
            }
            Wish::TypeIn => {
                wishes.selectors.push(contains_any(&list));
                wishes.products = list;
            }
            Wish::TypeNotIn => wishes.selectors.push(format!("!({})", contains_any(&list))),
            Wish::UuidIn => wishes.selectors.push(uuid_in(&list)),
            Wish::UuidNotIn => wishes.selectors.push(format!("!({})", uuid_in(&list))),
            Wish::Numa => match value {
                "true" => wishes.numa = true,
                "false" => {}
                _ => return self.unread(field, value, "it is neither true nor false", "correct it"),
            },
            Wish::Product => wishes.product(value),
            Wish::Family => wishes.selectors.push(format!(
                "{}.startsWith({}.lowerAscii())",
                quoted(&value.to_ascii_lowercase()),
                attribute("architecture")
            )),
            Wish::HamiMode if value == "hami-core" => {}
            Wish::HamiMode => {
                let reason = "the class of a request decides how it is cut";
                self.lose(
                    field.to_owned(),
                    value,
                    reason,
                    "ask for a profile, such as mig-1g-10gb.aliquot.dev",
                );
            }
            Wish::ContainerName => wishes.container = Some(value.to_owned()),
            Wish::Partition => wishes.profile = Some(value.to_owned()),
            Wish::VnpuLevel => wishes.level = Some(value.to_owned()),
            Wish::VnpuDvpp => wishes.dvpp = Some(value.to_owned()),
            Wish::State => {}
            Wish::Lost(form, reason, remedy) => {
                let torn = form == Form::Json && serde_json::from_str::<Value>(value).is_err();
                let reason = if torn { "it is not JSON" } else { reason };
                self.lose(field.to_owned(), value, reason, remedy);
            }
            Wish::Replicas | Wish::SharingStrategy => return self.sharing_wish(wishes, wish, field, value),
            Wish::HamiComputePolicy | Wish::VgpuComputePolicy | Wish::Quality => {
                return self.compute_wish(wishes, wish, field, value);
            }
            Wish::Fraction | Wish::MemoryMebibytes | Wish::MemoryQuantity | Wish::Cores | Wish::Count => {
                return self.amount_wish(wishes, wish, field, value);
            }
        }
        Word::Taken
    }

    fn unread(&mut self, field: &str, value: &str, reason: &str, remedy: &str) -> Word {
        self.lose(field.to_owned(), value, reason, remedy);
        Word::Stays
    }

    fn sharing_wish(&mut self, wishes: &mut Wishes, wish: Wish, field: &str, value: &str) -> Word {
        if wish == Wish::SharingStrategy {
            let mps = "MPS runs kernels side by side, shares take turns";
            match value {
                "time-sharing" => {}
                "mps" => self.lose(field.to_owned(), value, mps, "compare the throughput of the program"),
                _ => return self.unread(field, value, "it is no strategy that is known", "correct it"),
            }
            return Word::Taken;
        }
        match whole(value).and_then(|replicas| u32::try_from(replicas).ok()) {
            Some(replicas @ 1..=100) => {
                wishes.replicas = Some(replicas);
                let reason = "the number of claims on a card is not limited, its memory and compute are";
                self.lose(
                    field.to_owned(),
                    value,
                    reason,
                    "check that the size of the share is what is needed",
                );
                Word::Taken
            }
            _ => {
                wishes.torn = true;
                self.unread(field, value, "it is no number of replicas from 1 to 100", "correct it")
            }
        }
    }

    fn compute_wish(&mut self, wishes: &mut Wishes, wish: Wish, field: &str, value: &str) -> Word {
        let compute = match (wish, value.to_ascii_lowercase().as_str()) {
            (Wish::HamiComputePolicy, "default") | (Wish::VgpuComputePolicy, "balance") => ComputeWish::Burst,
            (Wish::HamiComputePolicy, "force") | (Wish::VgpuComputePolicy, "fixed") => ComputeWish::Cap,
            (Wish::HamiComputePolicy, "disable") | (Wish::VgpuComputePolicy, "none") => {
                ComputeWish::Unlimited
            }
            (Wish::Quality, "low") => return set_priority(wishes, "low"),
            (Wish::Quality, "medium") => return set_priority(wishes, "normal"),
            (Wish::Quality, "high" | "critical") => return set_priority(wishes, "high"),
            _ => return self.unread(field, value, "it is no word that is known here", "correct it"),
        };
        wishes.compute = Some(compute);
        Word::Taken
    }

    fn amount_wish(&mut self, wishes: &mut Wishes, wish: Wish, field: &str, value: &str) -> Word {
        let amounts = &mut wishes.amounts;
        let taken = match wish {
            Wish::Fraction => amounts.take_fraction(value),
            Wish::MemoryMebibytes => amounts.take(Unit::Memory(1), value),
            Wish::MemoryQuantity => amounts.take(Unit::MemoryQuantity, value),
            Wish::Cores => amounts.take(Unit::Cores, value),
            _ => amounts.take(Unit::Cards, value),
        };
        match taken {
            Ok(()) => Word::Taken,
            Err(reason) => {
                wishes.torn = true;
                self.unread(field, value, &reason, "correct it; the container stays as it is")
            }
        }
    }

    /// An annotation that no row knows, if it is of a system that is.
    pub(super) fn unknown_annotation(&mut self, place: &Place, key: &str, value: &str) {
        if system_of(key).is_some() {
            let field = place.field(&format!("metadata.annotations[{key}]"));
            self.lose(
                field,
                value,
                "it is not known, and stays as it is",
                "check what reads it, or remove it",
            );
        }
    }
}

fn set_priority(wishes: &mut Wishes, priority: &'static str) -> Word {
    wishes.priority = Some(priority);
    Word::Taken
}

// === impl Wishes ===

impl Wishes {
    /// GPU feature discovery writes spaces as dashes, and says behind the name how the card is shared or cut.
    fn product(&mut self, label: &str) {
        let (product, profile) = label.split_once("-MIG-").unwrap_or((label, ""));
        if !profile.is_empty() {
            self.profile = Some(profile.replace(".me", "+me"));
        }
        let product = product.strip_suffix("-SHARED").unwrap_or(product);
        self.selectors.push(format!(
            "{}.replace(\" \", \"-\") == {}",
            attribute("productName"),
            quoted(product)
        ));
        self.products = vec![product.to_owned()];
    }
}
