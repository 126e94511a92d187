//! Names that stay: of devices, counter sets, pools and slices.
//!
//! A device's name comes from the card's UUID, the profile and the placement (for a slot, also its sizes), never from
//! an enumeration index: it survives reboots and re-cabling, and no other hardware can ever get it. In front of the
//! hash stands the profile, for people; programs read attributes.
//!
//! Pools and slices are tried in the order of their names, so their names carry the order in which they should be.
//! A pool has one kind of layout, one model and one profile: its devices are alike, or their counter sets are. Readers
//! such as the cluster autoscaler then know all of it by one of them.
//!
//! ```text
//!  node-1/aliquot-1-slots-024-nvidia-l4-24gb-small      parts of fixed size
//!  node-1/aliquot-2-split-024-nvidia-a30-24gb-1g-6gb    partitions that are always there
//!  node-1/aliquot-3-shared-016-nvidia-t4-16gb           shared cards, those with less memory first
//!  node-1/aliquot-4-whole-141-nvidia-h200-141gb         cards for one holder
//!  node-1/aliquot-5-dynamic-080-nvidia-h100-80gb-sxm    cards with counters: breaking one for a share is the last resort
//! ```
//!
//! The number is the size in the model's id, never what discovery reads, which a driver or ECC may change.
//!
//! Agents of 0.1 had two pools, [`PoolNaming::Old`]. A card that is held under such a name stays in it until it is idle:
//! no device is ever published under two names.

use super::policy::Slot;
use crate::card::Card;
use crate::id::{CardUuid, ModelId, NodeName, TemplateName};
use crate::partition::{Part, PlacementName};

/// Longest pool and slice names.
const SUBDOMAIN_MAX: usize = 253;

/// A pool of any node: what follows the node in its name. Ordered as tried.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PoolKey(String);

/// What the devices of a pool are, in the order in which such pools are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolKind {
    /// Software parts of fixed size.
    Slots,
    /// Partitions that are always there.
    Split,
    /// Shared cards.
    Shared,
    /// Cards for one holder.
    Whole,
    /// Cards with counters: breaking one of these for a share is the last resort.
    Dynamic,
}

/// How the pools of a card are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolNaming {
    /// A pool for each kind of layout, model and profile.
    ByShape,
    /// One pool for cards with counters and one for all others.
    Old,
}

const OLD_PLAIN: &str = "aliquot-1-shared";
const OLD_DYNAMIC: &str = "aliquot-2-dynamic";

// === impl PoolKey ===

impl PoolKey {
    /// The pool of a part of a card.
    pub(super) fn of(naming: PoolNaming, kind: PoolKind, model: &ModelId, part: &Part) -> Self {
        if naming == PoolNaming::Old {
            return if kind == PoolKind::Dynamic { Self::old_dynamic() } else { Self::old_plain() };
        }
        let kind_word = match kind {
            PoolKind::Slots => "1-slots",
            PoolKind::Split => "2-split",
            PoolKind::Shared => "3-shared",
            PoolKind::Whole => "4-whole",
            PoolKind::Dynamic => "5-dynamic",
        };
        let profile = match (kind, part) {
            (PoolKind::Slots, Part::Slot { name, .. }) => Some(name.as_str()),
            (PoolKind::Split, Part::Partition { template, .. }) => Some(template.as_str()),
            _ => None,
        };
        let profile = profile.map(|profile| format!("-{}", dns_slug(profile))).unwrap_or_default();
        let model = model.as_str();
        // Digits come before letters: models without a size are tried last.
        let size = size_in(model).map(|size| format!("{size:03}-")).unwrap_or_default();
        Self(format!("aliquot-{kind_word}-{size}{}{profile}", dns_slug(model)))
    }

    /// The pool of cards with counters, as of 0.1.
    pub(super) fn old_dynamic() -> Self {
        Self(OLD_DYNAMIC.to_owned())
    }

    /// The pool of cards without counters, as of 0.1.
    pub(super) fn old_plain() -> Self {
        Self(OLD_PLAIN.to_owned())
    }

    /// The pool of a node without cards.
    pub(super) fn nothing() -> Self {
        Self("aliquot-0-nothing".to_owned())
    }

    /// Of a pool's name.
    pub(super) fn of_name(pool: &str) -> Self {
        Self(pool.rsplit_once('/').map_or(pool, |(_, key)| key).to_owned())
    }

    /// Whether its devices draw on counters.
    pub(super) fn is_dynamic(&self) -> bool {
        self.0 == OLD_DYNAMIC || self.0.starts_with("aliquot-5-dynamic")
    }

    /// Whether it has a name as of 0.1.
    pub(super) fn is_old(&self) -> bool {
        self.0 == OLD_DYNAMIC || self.0 == OLD_PLAIN
    }
}

/// The gigabytes in a model's id: 80 of `nvidia-h100-80gb-sxm`.
fn size_in(model: &str) -> Option<u16> {
    let mut sizes = model.split('-').filter_map(|word| word.strip_suffix("gb")?.parse().ok());
    sizes.next().map(|size: u16| size.min(999))
}

/// The identity of a part of a card, as 12 hexadecimal digits: few, since every device says them three times, and enough
/// for the devices of one node. Should two of them ever meet, the second is left out and reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PartHash(String);

// === impl PartHash ===

impl PartHash {
    pub(super) fn of_card(card: &CardUuid) -> Self {
        Self::of(&["card", card.as_str()])
    }

    pub(super) fn of_partition(card: &CardUuid, template: &TemplateName, placement: &PlacementName) -> Self {
        Self::of(&["partition", card.as_str(), template.as_str(), &placement.0])
    }

    /// A slot of another size is another device, whatever its name.
    pub(super) fn of_slot(card: &CardUuid, slot: &Slot, copy: u32) -> Self {
        let sizes = format!("{}/{}", slot.memory.0, slot.cores.percent());
        Self::of(&["slot", card.as_str(), &slot.name, &sizes, &copy.to_string()])
    }

    fn of(parts: &[&str]) -> Self {
        let hash = fnv1a(parts);
        Self(format!("{:012x}", (hash >> 80) ^ (hash & 0xffff_ffff_ffff)))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// FNV-1a with 128 bits (offset and prime as published by its authors). Every part is closed by a byte that no UTF-8
/// text contains, so that no two lists of parts read the same.
fn fnv1a(parts: &[&str]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = parts.iter().flat_map(|part| part.bytes().chain(std::iter::once(0xff)));
    bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

// === names ===

/// A device name: the profile in front of its identity.
pub(super) fn device_name(profile: &str, hash: &PartHash) -> String {
    format!("{}-{}", dns_slug(profile), hash.as_str())
}

/// The name of a card's counter set.
pub(super) fn counter_set_name(card: &Card) -> String {
    format!("card-{}", PartHash::of_card(&card.uuid).as_str())
}

/// Lower-case letters and digits, everything else as single dashes; at most 40 characters and never empty.
pub(super) fn dns_slug(text: &str) -> String {
    let mut slug = String::new();
    for c in text.chars().map(|c| c.to_ascii_lowercase()) {
        if c.is_ascii_alphanumeric() {
            slug.push(c);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
        if slug.len() == 40 {
            break;
        }
    }
    let slug = slug.trim_end_matches('-');
    if slug.is_empty() { "part".to_owned() } else { slug.to_owned() }
}

/// Name of a pool of this node: two segments, so that no other driver's pool has it by habit (a scheduler to
/// 1.36.3 confuses counters of equally named pools, even of different drivers).
#[must_use]
pub(super) fn pool_name(node: &NodeName, key: &PoolKey) -> String {
    format!("{}/{}", shortened(node, SUBDOMAIN_MAX - key.0.len() - 1), key.0)
}

/// Whether a pool of this name is one of this node.
#[must_use]
pub fn is_pool_of(node: &NodeName, pool: &str) -> bool {
    let key = PoolKey::of_name(pool);
    key.0.len() < SUBDOMAIN_MAX / 2 && pool == pool_name(node, &key)
}

/// The pool of another node that is what this pool is of its own.
#[must_use]
pub fn pool_on(pool: &str, node: &NodeName) -> String {
    pool_name(node, &PoolKey::of_name(pool))
}

/// Name of a slice: within its pool the order of names is the order of indexes.
pub(super) fn slice_name(node: &NodeName, key: &PoolKey, index: usize) -> String {
    let tail = format!("-{}-{index:04}", key.0);
    format!("{}{tail}", shortened(node, SUBDOMAIN_MAX - tail.len()))
}

/// The node's name, or as much of it as fits with the hash of all of it.
fn shortened(node: &NodeName, room: usize) -> String {
    let name = node.as_str();
    if name.len() <= room {
        return name.to_owned();
    }
    let hash = hash_text(name);
    let kept: String = name.chars().take(room - hash.len() - 1).collect();
    format!("{}-{hash}", kept.trim_end_matches(['-', '.']))
}

/// 12 hexadecimal digits that stand for a text that is too long.
pub(super) fn hash_text(text: &str) -> String {
    PartHash::of(&[text]).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offer::validate::names::is_pool;

    #[test]
    fn the_hash_is_the_published_one() {
        // Reference value of FNV-1a/128 for "a", here followed by the closing byte of the part.
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let a: u128 = 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964;
        assert_eq!(fnv1a(&["a"]), (a ^ 0xff).wrapping_mul(PRIME));
    }

    #[test]
    fn long_node_names_still_give_legal_and_different_names() {
        let (model, template) =
            (ModelId::new("m".repeat(63)).unwrap(), TemplateName::new("t".repeat(32)).unwrap());
        let part = Part::Partition { template, placement: PlacementName("0".to_owned()) };
        let longest = PoolKey::of(PoolNaming::ByShape, PoolKind::Split, &model, &part);
        let long = |last: &str| NodeName::new(format!("{}{last}", "abcdefgh.".repeat(28))).unwrap();
        let names: Vec<String> = [long("a"), long("b")]
            .iter()
            .flat_map(|n| [pool_name(n, &longest), slice_name(n, &longest, 7)])
            .collect();
        for name in &names {
            // The API bounds a name as a whole, not its labels.
            assert!(name.len() <= SUBDOMAIN_MAX && is_pool(name), "{name}");
        }
        assert_ne!(names[0], names[2]);
        assert_ne!(names[1], names[3]);
        assert!(is_pool_of(&long("a"), &names[0]) && !is_pool_of(&long("b"), &names[0]));
        assert_eq!(pool_on(&names[0], &long("b")), names[2]);
        assert!(!is_pool_of(&long("a"), &"/".repeat(300)) && !is_pool_of(&long("a"), &"é".repeat(300)));
    }

    #[test]
    fn pools_are_tried_by_kind_and_then_small_cards_first() {
        let key = |kind, model: &str| {
            PoolKey::of(PoolNaming::ByShape, kind, &ModelId::new(model).unwrap(), &Part::Card)
        };
        let keys = [
            key(PoolKind::Shared, "nvidia-t4-16gb"),
            key(PoolKind::Shared, "nvidia-l4-24gb"),
            key(PoolKind::Shared, "nvidia-h200-141gb"),
            key(PoolKind::Shared, "nvidia-rtx-pro-6000"),
            key(PoolKind::Whole, "nvidia-t4-16gb"),
            key(PoolKind::Dynamic, "nvidia-a100-40gb"),
            key(PoolKind::Dynamic, "nvidia-h100-80gb-sxm"),
        ];
        assert!(keys.is_sorted(), "{keys:?}");
        let dynamic: Vec<bool> = keys.iter().map(PoolKey::is_dynamic).collect();
        assert_eq!(dynamic, [false, false, false, false, false, true, true]);
    }

    #[test]
    fn slugs_are_labels() {
        for (text, slug) in [("1g.10gb+me", "1g-10gb-me"), ("vir02_1c", "vir02-1c"), ("---", "part")] {
            assert_eq!(dns_slug(text), slug);
        }
    }
}
