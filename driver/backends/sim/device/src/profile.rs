//! Which GPU instances a card can be cut into: the catalogue's card models, by product name. Numbers of the vendor's that
//! the catalogue does not have follow from a profile's name.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Catalogue files of the cards with MIG.
const MODELS: [&str; 21] = [
    include_str!("../../../../../core/catalogue/nvidia-a100-40gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-a100-80gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-a30-24gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-a800-40gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-a800-80gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-b200-180gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-b300-269gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-gb200-186gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-gb300-278gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-gh200-144gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-h100-80gb-pcie.toml"),
    include_str!("../../../../../core/catalogue/nvidia-h100-80gb-sxm.toml"),
    include_str!("../../../../../core/catalogue/nvidia-h100-96gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-h100-nvl-94gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-h20-3e-141gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-h20-96gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-h200-141gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-h800-80gb-pcie.toml"),
    include_str!("../../../../../core/catalogue/nvidia-h800-80gb-sxm.toml"),
    include_str!("../../../../../core/catalogue/nvidia-h800-nvl-94gb.toml"),
    include_str!("../../../../../core/catalogue/nvidia-rtx-pro-6000.toml"),
];

/// Numbers of GPU instance profiles as nvml.h has them, by compute slices and what stands behind the size; `""` comes twice
/// for one slice: the second one has double memory.
const INDICES: [(u32, &str, u32); 17] = [
    (1, "", 0),
    (2, "", 1),
    (3, "", 2),
    (4, "", 3),
    (7, "", 4),
    (8, "", 5),
    (6, "", 6),
    (1, "+me", 7),
    (2, "+me", 8),
    (1, "", 9),
    (1, "+gfx", 10),
    (2, "+gfx", 11),
    (4, "+gfx", 12),
    (1, "-me", 13),
    (2, "-me", 14),
    (1, "+me.all", 15),
    (2, "+me.all", 16),
];

/// One behind the largest number of a profile.
pub const PROFILES: u32 = 17;

/// What a GPU instance has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Number in nvml.h, by which callers request it.
    pub index: u32,
    /// The vendor's number for it on this card: what is created.
    pub id: u32,
    /// Name without the vendor's `MIG `.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Copy engines, decoders, encoders, JPEG engines, OFA engines.
    pub engines: [u32; 5],
    /// Further things of which a card has few.
    pub media: u32,
    /// Memory slices at which it may begin, with their number.
    pub placements: Vec<(u32, u32)>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "match")]
    matching: CardMatch,
    partitioning: ProfileTable,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct CardMatch {
    product_names: Vec<String>,
}

#[derive(Deserialize)]
struct ProfileTable {
    template: Vec<Template>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Template {
    name: String,
    vendor_profile: u32,
    memory: String,
    #[serde(default)]
    consumes: BTreeMap<String, toml::Value>,
    placements: Places,
}

#[derive(Deserialize)]
struct Places {
    starts: Vec<u32>,
    size: u32,
}

/// Profiles of the cards of this product name; none: the product is not known to have MIG.
#[must_use]
pub(crate) fn profiles(product: &str) -> &'static [Profile] {
    static KNOWN: OnceLock<Vec<(Vec<String>, Vec<Profile>)>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| MODELS.iter().filter_map(|text| model(text)).collect());
    known.iter().find(|(names, _)| names.iter().any(|name| name == product)).map_or(&[], |(_, found)| found)
}

fn model(text: &str) -> Option<(Vec<String>, Vec<Profile>)> {
    let model: Model = toml::from_str(text).ok()?;
    let mut found: Vec<Profile> = model.partitioning.template.iter().filter_map(profile).collect();
    // Equal numbers are those of one slice and more memory.
    found.sort_by_key(|profile| (profile.index, profile.memory_mib));
    let mut before = None;
    for profile in &mut found {
        if before == Some(profile.index) {
            profile.index = 9;
        }
        before = Some(profile.index);
    }
    Some((model.matching.product_names, found))
}

fn profile(template: &Template) -> Option<Profile> {
    let (slices, rest) = template.name.split_once("g.")?;
    let (_, attribute) = rest.split_once("gb")?;
    let slices = slices.parse().ok()?;
    let (_, _, index) = INDICES.iter().find(|(count, text, _)| (*count, *text) == (slices, attribute))?;
    let amount = |counter: &str| {
        let amount = template.consumes.get(counter).and_then(toml::Value::as_integer);
        u32::try_from(amount.unwrap_or(0)).unwrap_or(0)
    };
    Some(Profile {
        index: *index,
        id: template.vendor_profile,
        name: template.name.clone(),
        slices,
        memory_mib: template.memory.strip_suffix("Mi")?.parse().ok()?,
        multiprocessors: amount("multiprocessors"),
        engines: ["copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines"].map(amount),
        media: amount("media"),
        placements: template
            .placements
            .starts
            .iter()
            .map(|start| (*start, template.placements.size))
            .collect(),
    })
}

// === impl Profile ===

impl Profile {
    /// What can be counted of it: all that a card has to have left.
    pub(crate) fn amounts(&self) -> [u64; 8] {
        let [copy, decoders, encoders, jpeg, ofa] = self.engines.map(u64::from);
        let of_compute = [u64::from(self.multiprocessors), u64::from(self.slices), u64::from(self.media)];
        let [multiprocessors, slices, media] = of_compute;
        [multiprocessors, slices, media, copy, decoders, encoders, jpeg, ofa]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_catalogue_template_is_a_profile_with_its_own_number() {
        for text in MODELS {
            let (names, found) = model(text).unwrap();
            let templates = text.matches("[[partitioning.template]]").count();
            assert_eq!(found.len(), templates, "{names:?}");
            for (number, profile) in found.iter().enumerate() {
                let others = &found[number + 1..];
                assert!(others.iter().all(|o| o.index != profile.index && o.id != profile.id), "{profile:?}");
                assert!(profile.memory_mib > 0 && !profile.placements.is_empty(), "{profile:?}");
            }
        }
    }

    #[test]
    fn numbers_are_those_of_the_vendors_header() {
        let h100 = profiles("NVIDIA H100 80GB HBM3");
        let numbers = |name: &str| h100.iter().find(|p| p.name == name).map(|p| (p.index, p.id, p.slices));
        assert_eq!(numbers("1g.10gb"), Some((0, 19, 1)));
        assert_eq!(numbers("1g.10gb+me"), Some((7, 20, 1)));
        assert_eq!(numbers("1g.20gb"), Some((9, 15, 1)));
        assert_eq!(numbers("7g.80gb"), Some((4, 0, 7)));
        assert!(profiles("Tesla T4").is_empty());
    }
}
