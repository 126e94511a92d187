//! The `DeviceClass`es of what a node offers: for cards, for cards of a vendor, for shares, one a template, one a fraction.
//!
//! ```text
//!  card.aliquot.dev                 any card of any vendor, all of it where nothing else is asked
//!  share.aliquot.dev                a card that is handed out in shares
//!  card-nvidia.aliquot.dev          a card of this vendor: what a program for its driver needs
//!  mig-1g-10gb.aliquot.dev          this template, on any card that has it
//!  ascend310p-quarter.aliquot.dev   any template that has this part of this family's memory or AI cores
//!  slot-small.aliquot.dev           an admin's slot
//! ```
//!
//! A class name is a legal object name; the spelling that users know (`huawei.com/ascend-310p-1/4`) stands in the
//! annotation [`SPELLING`]. Each class but that of shares also has an extended resource name, so that a Pod can ask for it
//! in `resources.limits`; such a claim gets the default size.
//!
//! Selectors never fail on another driver's device: the driver is compared first, and CEL stops there. They read `driver`
//! and attributes alone, because quota controllers evaluate classes without the other fields.

use std::collections::BTreeMap;

use super::DRIVER;
use super::attributes::SHAREABLE;
use super::names::dns_slug;
use crate::dra::{AttributeValue, Device, DeviceClass, ResourceSlice, Sharing};
use crate::id::Vendor;

/// Annotation with the spelling that users of the vendor's own names know.
pub const SPELLING: &str = "aliquot.dev/spelling";
/// Annotation with one sentence for people.
pub const DESCRIPTION: &str = "aliquot.dev/description";

/// Name of the class of all cards, without its domain.
const CARD: &str = "card";
/// Name of the class of shares, without its domain.
const SHARE: &str = "share";

/// Words of a vendor; for one that is not listed its name serves.
struct VendorWords {
    vendor: &'static str,
    /// What people call one of its cards.
    card: &'static str,
    /// What its partitions are called.
    partition: &'static str,
    /// What people call its cards before the model, if anything.
    marque: Option<&'static str>,
    /// Domain of its resource names.
    domain: &'static str,
    /// Of what the fraction of a partition is.
    fraction_of: &'static str,
}

const VENDORS: [VendorWords; 2] = [
    VendorWords {
        vendor: "nvidia",
        card: "GPU of nvidia",
        partition: "mig",
        marque: None,
        domain: "nvidia.com",
        fraction_of: "memory",
    },
    VendorWords {
        vendor: "huawei",
        card: "NPU of huawei",
        partition: "vnpu",
        marque: Some("ascend"),
        domain: "huawei.com",
        fraction_of: "AI cores",
    },
];

/// Name of the class of shares.
#[must_use]
pub fn share_class() -> String {
    format!("{SHARE}.{DRIVER}")
}

/// Name of the class of a vendor's cards.
#[must_use]
pub fn card_class(vendor: &Vendor) -> String {
    format!("{CARD}-{}.{DRIVER}", dns_slug(vendor.as_str()))
}

/// Name of the class of a vendor's template.
#[must_use]
pub fn template_class(vendor: &str, profile: &str) -> String {
    let partition =
        VENDORS.iter().find(|words| words.vendor == vendor).map_or(vendor, |words| words.partition);
    format!("{}.{DRIVER}", template_name(partition, profile))
}

/// `+me` and `-me` are different templates and must not be one name.
fn template_name(partition: &str, profile: &str) -> String {
    format!("{partition}-{}", dns_slug(&profile.replace('-', ".without.")))
}

/// The classes of what these slices offer; devices of other drivers are passed over. Cards and shares first, then by
/// name. The name and meaning of a class never depend on what else is offered, so classes of several nodes agree.
#[must_use]
pub fn classes(slices: &[ResourceSlice]) -> Vec<DeviceClass> {
    let mut drafts: BTreeMap<(u8, String), ClassDraft> = BTreeMap::new();
    let ours = slices.iter().filter(|slice| slice.driver == DRIVER);
    for device in ours.flat_map(|slice| &slice.devices) {
        let Some(face) = ClassInput::of(device) else { continue };
        for draft in face.classes(device.sharing) {
            drafts.entry((draft.rank, draft.name.clone())).or_insert(draft);
        }
    }
    drafts.into_values().map(ClassDraft::finish).collect()
}

/// What a class reads of a device.
struct ClassInput<'a> {
    kind: &'a str,
    vendor: &'a str,
    model: &'a str,
    profile: &'a str,
    fraction: Option<&'a str>,
}

struct ClassDraft {
    rank: u8,
    name: String,
    condition: String,
    spelling: Option<String>,
    description: String,
}

impl<'a> ClassInput<'a> {
    fn of(device: &'a Device) -> Option<Self> {
        let text = |name: &str| match device.attributes.get(name) {
            Some(AttributeValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        Some(Self {
            kind: text("type")?,
            vendor: text("vendor")?,
            model: text("model")?,
            profile: text("profile")?,
            fraction: text("fraction"),
        })
    }

    fn classes(&self, sharing: Sharing) -> Vec<ClassDraft> {
        match self.kind {
            "card" => {
                let mut drafts = vec![card(), self.card_of_vendor()];
                drafts.extend((sharing == Sharing::Shareable).then(share));
                drafts
            }
            "partition" => {
                let mut drafts = vec![self.template()];
                drafts.extend(self.fraction());
                drafts
            }
            "slot" => vec![self.slot()],
            _ => Vec::new(),
        }
    }

    fn words(&self) -> Option<&'static VendorWords> {
        VENDORS.iter().find(|words| words.vendor == self.vendor)
    }

    fn card_of_vendor(&self) -> ClassDraft {
        let card =
            self.words().map_or_else(|| format!("{} card", self.vendor), |words| words.card.to_owned());
        ClassDraft {
            rank: 2,
            name: format!("{CARD}-{}", dns_slug(self.vendor)),
            condition: format!("{} && {}", is("type", "card"), is("vendor", self.vendor)),
            spelling: None,
            description: format!("A whole {card}; less of its memory where the request says how much."),
        }
    }

    fn template(&self) -> ClassDraft {
        let partition = self.words().map_or(self.vendor, |words| words.partition);
        ClassDraft {
            rank: 3,
            name: template_name(partition, self.profile),
            condition: format!(
                "{} && {} && {}",
                is("type", "partition"),
                is("vendor", self.vendor),
                is("profile", self.profile)
            ),
            spelling: Some(self.profile.to_owned()),
            description: format!("A {} of any {} card that has it.", self.profile, self.vendor),
        }
    }

    fn fraction(&self) -> Option<ClassDraft> {
        let fraction = self.fraction.filter(|fraction| *fraction != "1")?;
        let family = self.family();
        let domain =
            self.words().map_or_else(|| format!("{}.com", self.vendor), |words| words.domain.to_owned());
        let whole = self.words().map_or_else(String::new, |words| format!(" of the {}", words.fraction_of));
        let prefix = quoted(&family.prefix);
        let longer = quoted(&format!("{}-", family.prefix));
        let model = format!("device.attributes[\"{DRIVER}\"].model");
        Some(ClassDraft {
            rank: 3,
            name: format!("{}-{}", family.slug, fraction_word(fraction)),
            condition: format!(
                "{} && {} && ({model} == {prefix} || {model}.startsWith({longer}))",
                is("type", "partition"),
                is("fraction", fraction)
            ),
            spelling: Some(format!("{domain}/{}-{fraction}", family.spelling)),
            description: format!("Any partition with {fraction}{whole} of one {}.", family.spelling),
        })
    }

    fn family(&self) -> Family {
        let has_digit = |word: &str| word.bytes().any(|b| b.is_ascii_digit());
        let words: Vec<&str> = self.model.split('-').collect();
        let own = words.strip_prefix(&[self.vendor]).filter(|own| !own.is_empty()).unwrap_or(&words);
        let end = own.iter().position(|word| has_digit(word)).map_or(own.len(), |first| first + 1);
        let skipped = words.len() - own.len();
        let marque = self.words().and_then(|words| words.marque);
        let named: Vec<&str> = marque.into_iter().chain(own[..end].iter().copied()).collect();
        Family { prefix: words[..skipped + end].join("-"), slug: named.concat(), spelling: named.join("-") }
    }

    fn slot(&self) -> ClassDraft {
        ClassDraft {
            rank: 3,
            name: format!("slot-{}", dns_slug(self.profile)),
            condition: format!("{} && {}", is("type", "slot"), is("profile", self.profile)),
            spelling: None,
            description: format!("A slot {} as the admin drew it up.", self.profile),
        }
    }
}

fn card() -> ClassDraft {
    ClassDraft {
        rank: 0,
        name: CARD.to_owned(),
        condition: is("type", "card"),
        spelling: None,
        description:
            "Any card, GPU or NPU alike; a program for one vendor needs a class such as card-nvidia."
                .to_owned(),
    }
}

fn share() -> ClassDraft {
    let shareable = format!("device.attributes[\"{DRIVER}\"].{SHAREABLE}");
    ClassDraft {
        rank: 1,
        name: SHARE.to_owned(),
        // Devices of one claim lack the attribute, as do slices of an older agent; reading an absent one fails the Pod everywhere.
        condition: format!("{} && has({shareable}) && {shareable}", is("type", "card")),
        spelling: None,
        description: "Part of a card: say how much memory and cores in capacity.requests.".to_owned(),
    }
}

impl ClassDraft {
    fn finish(self) -> DeviceClass {
        let mut annotations = BTreeMap::from([(DESCRIPTION.to_owned(), self.description)]);
        if let Some(spelling) = self.spelling {
            annotations.insert(SPELLING.to_owned(), spelling);
        }
        DeviceClass {
            name: format!("{}.{DRIVER}", self.name),
            selectors: vec![format!("device.driver == \"{DRIVER}\" && {}", self.condition)],
            config: Vec::new(),
            // A share asked for by a number alone would be all of a card.
            extended_resource_capacity: BTreeMap::new(),
            extended_resource_name: (self.name != SHARE).then(|| format!("{DRIVER}/{}", self.name)),
            annotations,
        }
    }
}

/// `device.attributes["aliquot.dev"].name == "value"`.
pub(super) fn is(name: &str, value: &str) -> String {
    format!("device.attributes[\"{DRIVER}\"].{name} == {}", quoted(value))
}

/// A CEL string. Values are names of templates, models and slots: of letters, digits and `._-+` alone.
pub(super) fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A family of models: those with names equal up to the first word with a digit.
struct Family {
    /// What the model names begin with: `huawei-310p`.
    prefix: String,
    /// In class names: `ascend310p`.
    slug: String,
    /// For people: `ascend-310p`.
    spelling: String,
}

/// The word for a fraction in a class name.
fn fraction_word(fraction: &str) -> String {
    const WORDS: [(&str, &str); 7] = [
        ("1/2", "half"),
        ("1/3", "third"),
        ("1/4", "quarter"),
        ("1/7", "seventh"),
        ("1/8", "eighth"),
        ("1/12", "twelfth"),
        ("1/16", "sixteenth"),
    ];
    match WORDS.iter().find(|(digits, _)| *digits == fraction) {
        Some((_, word)) => (*word).to_owned(),
        None => fraction.replace('/', "-of-"),
    }
}
