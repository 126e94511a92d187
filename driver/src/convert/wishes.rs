//! What annotations, labels and variables of a Pod ask for beside amounts.

use aliquot_core::cel::EXPRESSION_BYTES_MAX;
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

/// Whether a word was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was, and goes where the requests have it.
    Taken,
    /// It was not: it stays, and was named.
    Stays,
}

/// What of a request a word is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aspect {
    /// Which card.
    Card,
    /// Which MIG profile.
    Profile,
    /// That the cards are on one NUMA node.
    NumaNode,
    /// How compute is limited.
    Compute,
    /// Whose work goes first.
    Priority,
    /// How much, or of which container.
    Amount,
    /// Nothing: a state of the old system, or a word that was named.
    Nothing,
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
    /// Takes one wish.
    pub(super) fn wish(&mut self, wishes: &mut Wishes, wish: Wish, field: &str, value: &str) -> Fate {
        let list = items(value);
        match wish {
            Wish::TypeIn | Wish::TypeNotIn | Wish::UuidIn | Wish::UuidNotIn if list.is_empty() => {
                return self.unread(field, value, "it names nothing", "name a card, or remove it");
            }
            Wish::TypeIn => {
                let fate = self.selector(wishes, contains_any(&list), field, value);
                wishes.products = if fate == Fate::Taken { list } else { Vec::new() };
                return fate;
            }
            Wish::TypeNotIn => {
                return self.selector(wishes, format!("!({})", contains_any(&list)), field, value);
            }
            Wish::UuidIn => return self.selector(wishes, uuid_in(&list), field, value),
            Wish::UuidNotIn => {
                return self.selector(wishes, format!("!({})", uuid_in(&list)), field, value);
            }
            Wish::Numa => match value {
                "true" => wishes.numa = true,
                "false" => {}
                _ => return self.unread(field, value, "it is neither true nor false", "correct it"),
            },
            Wish::Product => {
                let selector = wishes.product(value);
                return self.selector(wishes, selector, field, value);
            }
            Wish::Family => {
                let family = quoted(&value.to_ascii_lowercase());
                let selector = format!("{family}.startsWith({}.lowerAscii())", attribute("architecture"));
                return self.selector(wishes, selector, field, value);
            }
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
        Fate::Taken
    }

    /// One more selector, if Kubernetes takes one of its length.
    fn selector(&mut self, wishes: &mut Wishes, selector: String, field: &str, value: &str) -> Fate {
        if selector.len() > EXPRESSION_BYTES_MAX {
            let reason = format!(
                "a selector would be longer than the {EXPRESSION_BYTES_MAX} bytes that Kubernetes takes"
            );
            return self.unread(field, value, &reason, "name fewer cards; the word stays");
        }
        wishes.selectors.push(selector);
        Fate::Taken
    }

    fn unread(&mut self, field: &str, value: &str, reason: &str, remedy: &str) -> Fate {
        self.lose(field.to_owned(), value, reason, remedy);
        Fate::Stays
    }

    fn sharing_wish(&mut self, wishes: &mut Wishes, wish: Wish, field: &str, value: &str) -> Fate {
        if wish == Wish::SharingStrategy {
            let mps = "MPS runs kernels side by side, shares take turns";
            match value {
                "time-sharing" => {}
                "mps" => self.lose(field.to_owned(), value, mps, "compare the throughput of the program"),
                _ => return self.unread(field, value, "it is no strategy that is known", "correct it"),
            }
            return Fate::Taken;
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
                Fate::Taken
            }
            _ => {
                wishes.torn = true;
                self.unread(field, value, "it is no number of replicas from 1 to 100", "correct it")
            }
        }
    }

    fn compute_wish(&mut self, wishes: &mut Wishes, wish: Wish, field: &str, value: &str) -> Fate {
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
        Fate::Taken
    }

    fn amount_wish(&mut self, wishes: &mut Wishes, wish: Wish, field: &str, value: &str) -> Fate {
        let amounts = &mut wishes.amounts;
        let of_memory = matches!(wish, Wish::Fraction | Wish::MemoryMebibytes | Wish::MemoryQuantity);
        let taken = match wish {
            _ if of_memory && (amounts.memory.is_some() || amounts.memory_part.is_some()) => {
                Err("another annotation says how much memory".to_owned())
            }
            Wish::Fraction => amounts.take_fraction(value),
            Wish::MemoryMebibytes => amounts.take(Unit::Memory(1), value),
            Wish::MemoryQuantity => amounts.take(Unit::MemoryQuantity, value),
            Wish::Cores => amounts.take(Unit::Cores, value),
            _ => amounts.take(Unit::Cards, value),
        };
        match taken {
            Ok(()) => Fate::Taken,
            Err(reason) => {
                wishes.torn = true;
                self.unread(field, value, &reason, "correct it; the container stays as it is")
            }
        }
    }

    /// An annotation that no row knows, if it is of a system that is.
    pub(super) fn unknown_annotation(&mut self, place: &Place<'_>, key: &str, value: &str) {
        if system_of(key).is_some_and(|system| self.settings.from.is_none_or(|only| only == system)) {
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

fn set_priority(wishes: &mut Wishes, priority: &'static str) -> Fate {
    wishes.priority = Some(priority);
    Fate::Taken
}

// === impl Wishes ===

impl Wishes {
    /// The selector of a product's label. GPU feature discovery writes spaces as dashes, and says behind the name how the
    /// card is shared or cut.
    fn product(&mut self, label: &str) -> String {
        let (product, profile) = label.split_once("-MIG-").unwrap_or((label, ""));
        if !profile.is_empty() {
            self.profile = Some(profile.replace(".me", "+me"));
        }
        let product = product.strip_suffix("-SHARED").unwrap_or(product);
        self.products = vec![product.to_owned()];
        format!("{}.replace(\" \", \"-\") == {}", attribute("productName"), quoted(product))
    }
}

// === impl Wish ===

impl Wish {
    /// Whether it asks for a part of a card.
    pub(super) const fn is_amount(self) -> bool {
        matches!(self, Self::Fraction | Self::MemoryMebibytes | Self::MemoryQuantity | Self::Cores)
    }

    /// What of a request it is about, with this value.
    pub(super) fn aspect(self, value: &str) -> Aspect {
        match self {
            Self::TypeIn | Self::TypeNotIn | Self::UuidIn | Self::UuidNotIn | Self::Family => Aspect::Card,
            Self::Product if value.contains("-MIG-") => Aspect::Profile,
            Self::Product => Aspect::Card,
            Self::Partition => Aspect::Profile,
            Self::Numa if value == "true" => Aspect::NumaNode,
            Self::HamiComputePolicy | Self::VgpuComputePolicy => Aspect::Compute,
            Self::Quality => Aspect::Priority,
            Self::ContainerName | Self::Count => Aspect::Amount,
            _ if self.is_amount() => Aspect::Amount,
            // The others were named, or are labels, which stay.
            _ => Aspect::Nothing,
        }
    }
}
