//! Classes under the resource names of other systems, so that Pods written for them run unchanged.
//!
//! ```text
//!   nvidia.com/gpu               a whole GPU           huawei.com/Ascend310P      a whole chip
//!   nvidia.com/mig-1g.10gb       that MIG profile      huawei.com/Ascend310P-2c   that vNPU template
//!   nvidia.com/gpu.shared        a slot of a GPU       huawei.com/npu-core        a vNPU of one AI core
//! ```
//!
//! A resource name stands for whole devices: Kubernetes gives a Pod as many as the number says, each with its default
//! size. So a part without a name of its own, such as memory in MiB, needs a claim.

use std::collections::BTreeMap;

use super::DRIVER;
use super::classes::{DESCRIPTION, SPELLING, is, quoted};
use super::names::dns_slug;
use crate::dra::{AttributeValue, Device, DeviceClass, ResourceSlice};
use crate::fraction::{mig_resource, vnpu_resource_size, vnpu_template};

/// The system whose resource names are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyNames {
    /// NVIDIA's device plugin.
    Nvidia,
    /// Huawei's device plugin.
    Huawei,
    /// HAMi.
    Hami,
}

/// What the models behind a resource name of Huawei or HAMi begin with.
#[derive(Clone, Copy)]
enum Models {
    Prefix(&'static str),
    One(&'static str),
}

/// Chips as Huawei's plugin calls them: one name for every chip of a line.
const HUAWEI_CHIPS: [(&str, Models); 2] =
    [("Ascend310P", Models::Prefix("huawei-310p-")), ("Ascend910", Models::Prefix("huawei-910"))];

/// Chips as HAMi calls them.
const HAMI_CHIPS: [(&str, Models); 7] = [
    ("Ascend310P", Models::Prefix("huawei-310p-")),
    ("Ascend910A", Models::Prefix("huawei-910a-")),
    ("Ascend910B2", Models::One("huawei-910b2")),
    ("Ascend910B3", Models::One("huawei-910b3")),
    ("Ascend910B4", Models::One("huawei-910b4")),
    ("Ascend910B4-1", Models::One("huawei-910b4-1")),
    ("Ascend910C", Models::Prefix("huawei-910c-")),
];

/// Template that is one AI core of a chip.
const ONE_CORE: &str = "vir01";

/// The classes of what these slices offer, under the names of a system. Devices of other drivers are passed over.
#[must_use]
pub fn legacy_classes(names: LegacyNames, slices: &[ResourceSlice]) -> Vec<DeviceClass> {
    let mut classes: BTreeMap<String, DeviceClass> = BTreeMap::new();
    let ours = slices.iter().filter(|slice| slice.driver == DRIVER);
    for device in ours.flat_map(|slice| &slice.devices) {
        let Some(facts) = DeviceFacts::of(device) else { continue };
        let found = match names {
            LegacyNames::Nvidia => facts.nvidia(),
            LegacyNames::Huawei => facts.huawei(),
            LegacyNames::Hami => facts.hami(),
        };
        classes.extend(found.into_iter().map(|class| (class.name.clone(), class)));
    }
    classes.into_values().collect()
}

/// The class for a resource name, whatever the cards; `None`: no name of these systems is known.
#[must_use]
pub fn legacy_class_of(resource: &str) -> Option<DeviceClass> {
    match resource {
        "nvidia.com/gpu" => return Some(legacy_gpu()),
        "nvidia.com/gpu.shared" => return Some(legacy_slot(resource)),
        _ => {}
    }
    let name = resource.strip_prefix("huawei.com/")?;
    let mut chips = HUAWEI_CHIPS.iter().chain(&HAMI_CHIPS);
    if let Some((chip, models)) = chips.clone().find(|(chip, _)| *chip == name) {
        return Some(whole_chip(chip, *models));
    }
    chips.find_map(|(chip, models)| {
        let size = name.strip_prefix(chip)?.strip_prefix('-')?;
        let template = vnpu_template(size)?;
        vnpu_resource_size(&template).map(|_| vnpu_class(chip, *models, &template, size))
    })
}

/// `nvidia.com/gpu` as a whole GPU.
#[must_use]
pub fn legacy_gpu() -> DeviceClass {
    let condition = format!("{} && {}", is("type", "card"), is("vendor", "nvidia"));
    class(
        "nvidia-gpu",
        "nvidia.com/gpu",
        &condition,
        None,
        "A whole GPU of nvidia, under the name that Pods know.",
    )
}

/// `nvidia.com/gpu` as a MIG profile: what the plugin's strategy `single` makes of it.
#[must_use]
pub fn legacy_gpu_of_profile(profile: &str) -> DeviceClass {
    let condition =
        format!("{} && {} && {}", is("type", "partition"), is("vendor", "nvidia"), is("profile", profile));
    let about = format!("A {profile} of any nvidia card that has it, under the name of strategy `single`.");
    class("nvidia-gpu", "nvidia.com/gpu", &condition, Some(profile), &about)
}

/// A slot of a GPU under `nvidia.com/gpu.shared`, or under `nvidia.com/gpu` where the plugin does not rename.
#[must_use]
pub fn legacy_slot(resource: &str) -> DeviceClass {
    let condition = format!("{} && {}", is("type", "slot"), is("vendor", "nvidia"));
    let name = resource.split_once('/').map_or(resource, |(_, name)| name);
    let about =
        "A slot of a GPU as the policy draws it up: the part that a replica of the device plugin becomes.";
    class(&format!("nvidia-{name}"), resource, &condition, None, about)
}

/// Any MIG instance: what the claims of NVIDIA's own driver select from.
#[must_use]
pub fn legacy_any_mig() -> DeviceClass {
    let condition = format!("{} && {}", is("type", "partition"), is("vendor", "nvidia"));
    let mut any =
        class("nvidia-mig", "", &condition, None, "Any MIG instance; the claim's selector says which.");
    any.extended_resource_name = None;
    any
}

/// `nvidia.com/mig-…` as that profile.
#[must_use]
pub fn legacy_mig(profile: &str) -> DeviceClass {
    // `+me` and `-me` are different templates and must not be one name.
    let name = format!("nvidia-mig-{}", profile.replace('-', ".without."));
    let condition =
        format!("{} && {} && {}", is("type", "partition"), is("vendor", "nvidia"), is("profile", profile));
    let about = format!("A {profile} of any nvidia card that has it, under the name that Pods know.");
    class(&name, &mig_resource(profile), &condition, Some(profile), &about)
}

fn class(
    name: &str,
    resource: &str,
    condition: &str,
    spelling: Option<&str>,
    description: &str,
) -> DeviceClass {
    let mut annotations = BTreeMap::from([(DESCRIPTION.to_owned(), description.to_owned())]);
    if let Some(spelling) = spelling {
        annotations.insert(SPELLING.to_owned(), spelling.to_owned());
    }
    let name = dns_slug(name);
    DeviceClass {
        name: format!("legacy-{name}.{DRIVER}"),
        selectors: vec![format!("device.driver == \"{DRIVER}\" && {condition}")],
        config: Vec::new(),
        extended_resource_name: Some(resource.to_owned()),
        extended_resource_capacity: BTreeMap::new(),
        annotations,
    }
}

/// What a class reads of a device.
struct DeviceFacts<'a> {
    kind: &'a str,
    vendor: &'a str,
    model: &'a str,
    profile: &'a str,
}

// === impl DeviceFacts ===

impl<'a> DeviceFacts<'a> {
    fn of(device: &'a Device) -> Option<Self> {
        let text = |name: &str| match device.attributes.get(name) {
            Some(AttributeValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        let [kind, vendor, model, profile] = ["type", "vendor", "model", "profile"].map(text);
        Some(Self { kind: kind?, vendor: vendor?, model: model?, profile: profile? })
    }

    fn nvidia(&self) -> Vec<DeviceClass> {
        match (self.vendor, self.kind) {
            ("nvidia", "partition") => vec![legacy_mig(self.profile)],
            ("nvidia", _) => vec![legacy_gpu(), legacy_slot("nvidia.com/gpu.shared")],
            _ => Vec::new(),
        }
    }

    fn huawei(&self) -> Vec<DeviceClass> {
        let of_chip = HUAWEI_CHIPS.iter().filter(|(_, models)| self.is_huawei() && models.are(self.model));
        let mut classes = Vec::new();
        for (chip, models) in of_chip {
            match self.kind {
                "card" => classes.push(whole_chip(chip, *models)),
                "partition" => classes.extend(self.vnpu(chip, *models)),
                _ => {}
            }
        }
        classes
    }

    fn hami(&self) -> Vec<DeviceClass> {
        let of_chip = HAMI_CHIPS.iter().filter(|(_, models)| self.is_huawei() && models.are(self.model));
        match (self.vendor, self.kind) {
            ("nvidia", "card") => vec![legacy_gpu()],
            (_, "card") => of_chip.map(|(chip, models)| whole_chip(chip, *models)).collect(),
            _ => Vec::new(),
        }
    }

    fn is_huawei(&self) -> bool {
        self.vendor == "huawei"
    }

    /// A template under its name of the plugin; that of one core also under `npu-core`.
    fn vnpu(&self, chip: &str, models: Models) -> Vec<DeviceClass> {
        let size = vnpu_resource_size(self.profile);
        let mut classes: Vec<DeviceClass> =
            size.iter().map(|size| vnpu_class(chip, models, self.profile, size)).collect();
        if self.profile == ONE_CORE {
            let condition = format!("{} && {}", of_huawei("partition", models), is("profile", self.profile));
            let about = "A vNPU of one AI core; a Pod that asks for several gets as many of it, not one of that size.";
            classes.push(class("huawei-npu-core", "huawei.com/npu-core", &condition, None, about));
        }
        classes
    }
}

fn vnpu_class(chip: &str, models: Models, profile: &str, size: &str) -> DeviceClass {
    let condition = format!("{} && {}", of_huawei("partition", models), is("profile", profile));
    let about = format!("A {profile} of a chip that Huawei's plugin calls {chip}.");
    let name = format!("{chip}-{size}");
    class(&format!("huawei-{name}"), &format!("huawei.com/{name}"), &condition, Some(profile), &about)
}

fn whole_chip(chip: &str, models: Models) -> DeviceClass {
    let about = format!("A whole {chip}, under the name that Pods know.");
    class(&format!("huawei-{chip}"), &format!("huawei.com/{chip}"), &of_huawei("card", models), None, &about)
}

fn of_huawei(kind: &str, models: Models) -> String {
    format!("{} && {} && {}", is("type", kind), is("vendor", "huawei"), models.condition())
}

// === impl Models ===

impl Models {
    fn are(self, model: &str) -> bool {
        match self {
            Self::Prefix(prefix) => model.starts_with(prefix),
            Self::One(one) => model == one,
        }
    }

    fn condition(self) -> String {
        match self {
            Self::Prefix(prefix) => {
                format!("device.attributes[\"{DRIVER}\"].model.startsWith({})", quoted(prefix))
            }
            Self::One(one) => is("model", one),
        }
    }
}
