//! Names that stay: of devices, counter sets, pools and slices.
//!
//! A device's name comes from the card's UUID, the profile and the placement (for a slot, also its sizes), never from
//! an enumeration index: it survives reboots and re-cabling, and no other hardware can ever get it. In front of the
//! hash stands the profile, for people; programs read attributes.
//!
//! Pools and slices are tried in the order of their names, so their names carry the order in which they should be.

use super::policy::Slot;
use crate::card::Card;
use crate::id::{CardUuid, NodeName, TemplateName};
use crate::partition::PlacementName;

/// Longest pool and slice names.
const SUBDOMAIN_MAX: usize = 253;

/// The two pools of a node, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Cards without counters: slots, fixed partitions, shared and whole cards.
    Plain,
    /// Cards with counters: breaking one of these for a share is the last resort.
    Dynamic,
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
pub fn pool_name(node: &NodeName, kind: PoolKind) -> String {
    let segment = match kind {
        PoolKind::Plain => "/aliquot-1-shared",
        PoolKind::Dynamic => "/aliquot-2-dynamic",
    };
    format!("{}{segment}", shortened(node, SUBDOMAIN_MAX - segment.len()))
}

/// Name of a slice: within its pool the order of names is the order of indexes.
pub(super) fn slice_name(node: &NodeName, kind: PoolKind, index: usize) -> String {
    let tail = match kind {
        PoolKind::Plain => format!("-aliquot-1-shared-{index:04}"),
        PoolKind::Dynamic => format!("-aliquot-2-dynamic-{index:04}"),
    };
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
    use crate::id::is_dns_label;

    #[test]
    fn the_hash_is_the_published_one() {
        // Reference value of FNV-1a/128 for "a", here followed by the closing byte of the part.
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let a: u128 = 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964;
        assert_eq!(fnv1a(&["a"]), (a ^ 0xff).wrapping_mul(PRIME));
    }

    #[test]
    fn long_node_names_still_give_legal_and_different_names() {
        let long = |last: &str| NodeName::new(format!("{}{last}", "abcdefgh.".repeat(28))).unwrap();
        let names: Vec<String> = [long("a"), long("b")]
            .iter()
            .flat_map(|n| [pool_name(n, PoolKind::Dynamic), slice_name(n, PoolKind::Dynamic, 7)])
            .collect();
        for name in &names {
            assert!(name.len() <= SUBDOMAIN_MAX, "{name}");
            assert!(name.split('/').all(|s| s.split('.').all(is_dns_label)), "{name}");
        }
        assert_ne!(names[0], names[2]);
        assert_ne!(names[1], names[3]);
    }

    #[test]
    fn slugs_are_labels() {
        for (text, slug) in [("1g.10gb+me", "1g-10gb-me"), ("vir02_1c", "vir02-1c"), ("---", "part")] {
            assert_eq!(dns_slug(text), slug);
        }
    }
}
