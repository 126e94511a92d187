//! Names of card models: which models a text means, whatever its domain, case and separators.

use super::model::CardModel;
use crate::id::ModelId;

/// Those of the models that go by this text, as [`Catalogue::resolve`] says.
pub(crate) fn called<'a>(
    models: impl Iterator<Item = &'a CardModel> + Clone,
    text: &str,
) -> Vec<&'a CardModel> {
    let wanted = plain_name(text);
    if wanted.is_empty() {
        return Vec::new();
    }
    if let Some(model) = models.clone().find(|m| plain_name(m.id.as_str()) == wanted) {
        return vec![model];
    }
    let named: Vec<&CardModel> = models.clone().filter(|m| m.goes_by(&wanted)).collect();
    if !named.is_empty() {
        return named;
    }
    models.filter(|m| plain_name(&m.family) == wanted).collect()
}

/// Whether `name` of `model` is the id of some other model.
pub(super) fn takes_an_id(name: &str, model: &CardModel, ids: &[ModelId]) -> bool {
    let name = plain_name(name);
    ids.iter().any(|id| *id != model.id && plain_name(id.as_str()) == name)
}

/// A name without domain, case and separators: `huawei.com/Ascend-310P` is `ascend310p`. Everything else stays, so that
/// a text with more in it than a name is no name.
pub(crate) fn plain_name(text: &str) -> String {
    let is_domain = |text: &str| {
        text.contains('.') && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-')
    };
    let text = text.split_once('/').filter(|(domain, _)| is_domain(domain)).map_or(text, |(_, name)| name);
    let separates = |c: &char| c.is_whitespace() || matches!(c, '-' | '_' | '.');
    text.chars().filter(|c| !separates(c)).map(|c| c.to_ascii_lowercase()).collect()
}

/// What a driver reports, without case and punctuation, which differ between drivers.
pub(super) fn plain_sighting(text: &str) -> String {
    let text = text.rsplit_once('/').map_or(text, |(_, last)| last);
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

// === impl CardModel ===

impl CardModel {
    /// Whether a name, a product or a chip of it is this one, as [`plain_name`] writes it.
    pub(crate) fn goes_by(&self, plain: &str) -> bool {
        let names = self.names.iter().chain(&self.matching.product_names).chain(&self.matching.chip_names);
        names.map(|n| plain_name(n)).any(|n| n == plain)
    }
}
