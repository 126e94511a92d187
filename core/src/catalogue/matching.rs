//! Which models a card may be of, by what discovery has read of it.
//!
//! A driver has one name and one PCI id for a product, and new boards bring new ones of either. So the two stand in for
//! each other: a name or an id that no file lists says nothing. One that another model has contradicts. Where name or id
//! is all that a model is known by, its size must also be about that of the card, since parts of a card that a
//! hypervisor hands out have its PCI id.

use super::names::plain_sighting;
use super::{CardModel, Catalogue, ModelKeys, Sighting};
use crate::units::Bytes;

/// How far the memory of a card may be from its model's, in percent: error correction takes up to 7.
const MEMORY_TOLERANCE: u64 = 8;

/// What one key of a model says of a card.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Agrees,
    Contradicts,
    Silent,
}

// === impl Catalogue ===

impl Catalogue {
    /// Models that what was seen may be of, the one with most agreements first.
    #[must_use]
    pub fn matching(&self, seen: &Sighting) -> Vec<&CardModel> {
        let known = self.known(seen);
        let mut found: Vec<(usize, &CardModel)> =
            self.models.iter().filter_map(|m| Some((agreements(m, &known)?, m))).collect();
        found.sort_by_key(|(agreements, _)| std::cmp::Reverse(*agreements));
        found.into_iter().map(|(_, model)| model).collect()
    }

    /// What was seen, without a product name or PCI id that no model has.
    fn known(&self, seen: &Sighting) -> Sighting {
        let listed = |of: fn(&ModelKeys) -> &[String], text: &Option<String>| {
            let has = |model: &CardModel| same(of(&model.matching), text) == Verdict::Agrees;
            text.clone().filter(|_| self.models.iter().any(has))
        };
        Sighting {
            product_name: listed(|keys| &keys.product_names, &seen.product_name),
            pci_id: listed(|keys| &keys.pci_ids, &seen.pci_id),
            ..seen.clone()
        }
    }
}

/// How many keys of the model agree with what was seen; `None` if one contradicts, or none but the size agrees.
fn agreements(model: &CardModel, seen: &Sighting) -> Option<usize> {
    let keys = &model.matching;
    let product = [same(&keys.product_names, &seen.product_name), same(&keys.pci_ids, &seen.pci_id)];
    let board = seen.board_id.filter(|_| !keys.board_ids.is_empty()).map(|b| keys.board_ids.contains(&b));
    let chip = [same(&keys.chip_names, &seen.chip_name), verdict(board)];
    let size = [memory(keys, seen)];
    let count = |of: &[Verdict]| of.iter().filter(|v| **v == Verdict::Agrees).count();
    let identity = count(&product) + count(&chip);
    let contradicted = product.iter().chain(&chip).chain(&size).any(|v| *v == Verdict::Contradicts);
    let by_one_key = identity == 1 && count(&product) == 1;
    let wrong_size = by_one_key && seen.memory.is_some_and(|seen| !is_about(seen, model.memory));
    (identity > 0 && !contradicted && !wrong_size).then(|| identity + count(&size))
}

fn memory(keys: &ModelKeys, seen: &Sighting) -> Verdict {
    let bounded = seen.memory.filter(|_| keys.memory_min.is_some() || keys.memory_max.is_some());
    verdict(bounded.map(|seen| {
        keys.memory_min.is_none_or(|least| seen >= least) && keys.memory_max.is_none_or(|most| seen <= most)
    }))
}

/// A key that was not seen, or that the model does not have, says nothing.
fn same(list: &[String], seen: &Option<String>) -> Verdict {
    let seen = seen.as_deref().filter(|_| !list.is_empty()).map(plain_sighting);
    verdict(seen.map(|seen| list.iter().any(|listed| plain_sighting(listed) == seen)))
}

const fn verdict(agrees: Option<bool>) -> Verdict {
    match agrees {
        Some(true) => Verdict::Agrees,
        Some(false) => Verdict::Contradicts,
        None => Verdict::Silent,
    }
}

fn is_about(seen: Bytes, nominal: Bytes) -> bool {
    u128::from(seen.0.abs_diff(nominal.0)) * 100 <= u128::from(nominal.0) * u128::from(MEMORY_TOLERANCE)
}
