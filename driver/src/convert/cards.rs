//! The cards that a conversion is for: what a percentage of their memory is, and what goes by a name.

use aliquot_core::catalogue::CardModel;
use aliquot_core::offer::DRIVER;
use aliquot_core::partition::ShareSupport;
use aliquot_core::units::Bytes;

use super::amounts::WHOLE;

/// One model among the cards at hand.
#[derive(Clone, Copy, Debug)]
pub struct KnownCard<'c> {
    /// The model.
    pub model: &'c CardModel,
    /// Memory that its cards are published with.
    pub memory: Bytes,
}

/// The cards at hand, each model once, and every model of the catalogue.
#[derive(Clone, Debug, Default)]
pub struct Cards<'c> {
    /// Models of the nodes or of the cluster; none if they were not named.
    pub at_hand: Vec<KnownCard<'c>>,
    /// Every model that is known.
    pub catalogue: Vec<&'c CardModel>,
}

/// Models whose part has one size.
pub(super) struct PartSize<'c> {
    pub(super) models: Vec<&'c CardModel>,
    pub(super) memory: Bytes,
}

// === impl Cards ===

impl<'c> Cards<'c> {
    /// Models at hand; those of the catalogue where none is.
    pub(super) fn models(&self) -> Vec<&'c CardModel> {
        match self.at_hand.is_empty() {
            true => self.catalogue.clone(),
            false => self.at_hand.iter().map(|card| card.model).collect(),
        }
    }

    /// What so many hundredths of a percent are of each shareable NVIDIA card at hand whose model passes: rounded down to
    /// 1Mi, the largest last.
    pub(super) fn sizes(&self, part: u32, passes: impl Fn(&CardModel) -> bool) -> Vec<PartSize<'c>> {
        let mut sizes: Vec<PartSize<'c>> = Vec::new();
        let shared = |card: &&KnownCard<'_>| {
            card.model.vendor.as_str() == "nvidia"
                && card.model.shareable == ShareSupport::Enforceable
                && passes(card.model)
        };
        for card in self.at_hand.iter().filter(shared) {
            let memory = u128::from(card.memory.0) * u128::from(part) / u128::from(WHOLE);
            let memory = Bytes(u64::try_from(memory).unwrap_or(0) / Bytes::MIB.0 * Bytes::MIB.0);
            match sizes.iter_mut().find(|size| size.memory == memory) {
                Some(size) => size.models.push(card.model),
                None => sizes.push(PartSize { models: vec![card.model], memory }),
            }
        }
        sizes.retain(|size| size.memory >= Bytes::MIB);
        sizes.sort_by_key(|size| size.memory);
        sizes
    }

    /// Models with this PCI device id, as mig-parted writes it: `0x233010DE`.
    pub(super) fn of_pci_id(&self, id: &str) -> Vec<&'c CardModel> {
        let digits = id.trim_start_matches("0x").to_ascii_lowercase();
        let Some((device, vendor)) = digits.is_ascii().then(|| digits.split_at_checked(4)).flatten() else {
            return Vec::new();
        };
        let wanted = format!("{vendor}:{device}");
        let has =
            |model: &&CardModel| model.matching.pci_ids.iter().any(|id| id.eq_ignore_ascii_case(&wanted));
        self.catalogue.iter().copied().filter(has).collect()
    }
}

/// Whether a model may be meant by a part of a product's name, in any case.
pub(super) fn is_called(model: &CardModel, part: &str) -> bool {
    let plain = |text: &str| text.to_ascii_lowercase().replace([' ', '_'], "-");
    let wanted = plain(part);
    let products = model.matching.product_names.iter();
    products.chain(&model.names).any(|name| plain(name).contains(&wanted))
}

/// A selector for these models.
pub(super) fn of_models(models: &[&CardModel]) -> String {
    let attribute = format!("device.attributes[\"{DRIVER}\"].model");
    match models {
        [only] => format!("{attribute} == \"{}\"", only.id),
        several => {
            let several: Vec<String> = several.iter().map(|model| format!("\"{}\"", model.id)).collect();
            format!("{attribute} in [{}]", several.join(", "))
        }
    }
}
