//! The card catalogue: what each product is, what it may be cut into, and how sure we are of it.
//!
//! ```text
//!   core/catalogue/*.toml ──┐
//!   an admin's directory ───┴─ text (shape) ─▶ check (meaning) ─▶ CardModel ─▶ Catalogue ─▶ Card
//! ```
//!
//! One file a product. A file carries its sources and the certainty of each part; unknown facts are left out
//! of the counters rather than guessed. An edge reads the files and passes their text. What discovery reads
//! on a real card takes precedence over a file: the catalogue serves simulation, planning, and facts that a
//! backend cannot read.
//!
//! Invariants of a [`CardModel`]: every partition fits the totals of its table, every template has a placement and a
//! fraction that agrees with what it takes, names are unique, no table has more than [`COUNTERS_MAX`] counters.

mod check;
mod embedded;
mod error;
mod found;
mod matching;
mod model;
mod names;
mod source_file;
mod table;
mod text;

use crate::id::ModelId;

pub use error::CatalogueError;
pub use model::{
    COUNTERS_MAX, CardIdentity, CardModel, CardRule, DriverSpelling, LinkHint, LinkKind, LinkShape, Maturity,
    ModelKeys, RuleAttribute, RuleScope, Sighting, Source, TopologyHint,
};
use names::takes_an_id;
pub(crate) use names::{called, plain_name};

/// Card models by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    models: Vec<CardModel>,
}

// === impl Catalogue ===

impl Catalogue {
    /// The files that come with Aliquot.
    #[must_use]
    pub fn embedded() -> Self {
        let (catalogue, _refused) = Self::load(embedded::FILES.iter().copied());
        catalogue
    }

    /// A catalogue of these files, and the files that were refused.
    #[must_use]
    pub fn load<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> (Self, Vec<CatalogueError>) {
        let mut models: Vec<(&str, CardModel)> = Vec::new();
        let mut errors = Vec::new();
        for (file, text) in files {
            match CardModel::parse(file, text) {
                Err(error) => errors.push(error),
                Ok(model) => match models.iter().find(|(_, m)| m.id == model.id) {
                    None => models.push((file, model)),
                    Some((other, _)) => errors.push(CatalogueError::DuplicateModel {
                        file: file.to_owned(),
                        other: (*other).to_owned(),
                        id: model.id,
                    }),
                },
            }
        }
        let ids: Vec<ModelId> = models.iter().map(|(_, m)| m.id.clone()).collect();
        models.retain(|(file, model)| match model.names.iter().find(|n| takes_an_id(n, model, &ids)) {
            None => true,
            Some(name) => {
                let (file, name) = ((*file).to_owned(), name.clone());
                errors.push(CatalogueError::NameIsId { file, name });
                false
            }
        });
        models.sort_by(|(_, a), (_, b)| a.id.cmp(&b.id));
        (Self { models: models.into_iter().map(|(_, m)| m).collect() }, errors)
    }

    /// This catalogue with an admin's files on top: a file replaces the model of its id or adds one. Files that are
    /// refused leave what was there.
    #[must_use]
    pub fn with_overrides(self, files: &[(String, String)]) -> (Self, Vec<CatalogueError>) {
        let (added, errors) = Self::load(files.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        let mut models = self.models;
        models.retain(|model| added.model(&model.id).is_none());
        models.extend(added.models);
        models.sort_by(|a, b| a.id.cmp(&b.id));
        (Self { models }, errors)
    }

    /// All models, by id.
    #[must_use]
    pub fn models(&self) -> &[CardModel] {
        &self.models
    }

    /// The model of this id.
    #[must_use]
    pub fn model(&self, id: &ModelId) -> Option<&CardModel> {
        self.models.iter().find(|m| m.id == *id)
    }

    /// Every model that goes by this text: its id, a name, a product or chip name, else its family. Case, separators
    /// and a domain in front (`huawei.com/`) do not count. An id is alone; a shared name gives all that share it.
    #[must_use]
    pub fn resolve(&self, text: &str) -> Vec<&CardModel> {
        called(self.models.iter(), text)
    }
}

// === impl CardModel ===

impl CardModel {
    /// Reads a model from the text of its file; `file` is only for messages.
    ///
    /// # Errors
    /// The text is not a card model; the error names file, field, found, expected and what to do.
    pub fn parse(file: &str, text: &str) -> Result<Self, CatalogueError> {
        check::model(file, &text::read(file, text)?)
    }
}

#[cfg(test)]
mod tests;
