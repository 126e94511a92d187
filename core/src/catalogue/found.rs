//! The catalogue as it is on one machine: what discovery has read wins over the files.

use std::sync::Arc;

use super::{CardModel, Catalogue, Maturity, ModelKeys, TopologyHint};
use crate::card::Partitioning;
use crate::id::{ModelId, NameError, Vendor};
use crate::partition::{PartitionTable, ShareSupport};
use crate::units::Bytes;

/// Longest id of a model.
const ID_BYTES_MAX: usize = 63;

// === impl Catalogue ===

impl Catalogue {
    /// The catalogue with these models in the place of those of their ids.
    #[must_use]
    pub fn with_models(mut self, models: impl IntoIterator<Item = CardModel>) -> Self {
        for model in models {
            self.models.retain(|other| other.id != model.id);
            self.models.push(model);
        }
        self.models.sort_by(|a, b| a.id.cmp(&b.id));
        self
    }
}

// === impl CardModel ===

impl CardModel {
    /// A model that no file describes, as discovery has read it: whole cards and shares, no partitions.
    ///
    /// # Errors
    /// No name can be made of the product's.
    pub fn unlisted(
        vendor: Vendor,
        product_name: &str,
        architecture: &str,
        memory: Bytes,
    ) -> Result<Self, NameError> {
        let id = ModelId::new(id_of(&vendor, product_name))?;
        Ok(Self {
            vendor,
            names: vec![product_name.to_owned()],
            family: id.to_string(),
            architecture: architecture.to_owned(),
            memory,
            maturity: Maturity::Settled,
            notes: vec!["The catalogue does not list it; this is what its driver says.".to_owned()],
            matching: ModelKeys { product_names: vec![product_name.to_owned()], ..ModelKeys::default() },
            shareable: ShareSupport::Enforceable,
            topology: TopologyHint { chips_per_card: 1, link: None },
            partitioning: Partitioning::None,
            driver_spellings: Vec::new(),
            rules: Vec::new(),
            sources: Vec::new(),
            id,
        })
    }

    /// The model on a machine where the driver reports what its cards can be cut into.
    #[must_use]
    pub fn with_table(self, table: PartitionTable) -> Self {
        Self { partitioning: Partitioning::Templates(Arc::new(table)), ..self }
    }

    /// The model on a machine where its cards cannot be cut.
    #[must_use]
    pub fn without_partitions(self) -> Self {
        Self { partitioning: Partitioning::None, driver_spellings: Vec::new(), rules: Vec::new(), ..self }
    }
}

/// `NVIDIA GeForce RTX 4090` as `nvidia-geforce-rtx-4090`.
fn id_of(vendor: &Vendor, product_name: &str) -> String {
    let mut id = String::new();
    let lower = product_name.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let named = lower.starts_with(vendor.as_str());
    for word in (!named).then_some(vendor.as_str()).into_iter().chain(words) {
        if !id.is_empty() {
            id.push('-');
        }
        id.push_str(word);
    }
    id.truncate(ID_BYTES_MAX);
    id.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Sighting;

    #[test]
    fn a_card_that_no_file_describes_has_a_model_of_its_own() {
        let vendor = || Vendor::new("nvidia").unwrap();
        let id =
            |name: &str| CardModel::unlisted(vendor(), name, "Ada", Bytes(1 << 34)).unwrap().id.to_string();
        assert_eq!(id("NVIDIA GeForce RTX 4090"), "nvidia-geforce-rtx-4090");
        assert_eq!(id("Quadro P400 (rev. 2)"), "nvidia-quadro-p400-rev-2");
        assert_eq!(id(""), "nvidia");
        assert_eq!(id(&"x".repeat(200)).len(), ID_BYTES_MAX);
        let model = CardModel::unlisted(vendor(), "NVIDIA GeForce RTX 4090", "Ada", Bytes(1 << 34)).unwrap();
        let known = Catalogue::embedded().with_models([model.clone(), model.clone()]);
        assert_eq!(known.models().len(), Catalogue::embedded().models().len() + 1);
        let seen =
            Sighting { product_name: Some("NVIDIA GeForce RTX 4090".to_owned()), ..Sighting::default() };
        assert_eq!(known.matching(&seen), [&model]);
    }

    #[test]
    fn models_of_one_machine_take_the_place_of_those_of_the_files() {
        let catalogue = Catalogue::embedded();
        let h100 = catalogue.resolve("nvidia-h100-80gb-sxm")[0].clone();
        let here = catalogue.clone().with_models([h100.without_partitions()]);
        assert_eq!(here.models().len(), catalogue.models().len());
        assert_eq!(here.resolve("nvidia-h100-80gb-sxm")[0].table(), None);
    }
}
