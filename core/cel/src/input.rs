//! Values of the variable, built by the user of an expression.

use std::sync::Arc;

use super::quantity::Quantity;
use super::value::{Map, Missing, Value};
use super::version::Version;

/// A value of the variable, or of a field of it. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Input(Value);

// === impl Input ===

impl Input {
    /// A bool.
    #[must_use]
    pub const fn bool(value: bool) -> Self {
        Self(Value::Bool(value))
    }

    /// An integer.
    #[must_use]
    pub const fn int(value: i64) -> Self {
        Self(Value::Int(value))
    }

    /// A string.
    #[must_use]
    pub fn text(value: &str) -> Self {
        Self(Value::text(value))
    }

    /// A quantity.
    #[must_use]
    pub const fn quantity(value: Quantity) -> Self {
        Self(Value::Quantity(value))
    }

    /// A semantic version.
    ///
    /// # Errors
    /// The text is none; the error says why.
    pub fn version(text: &str) -> Result<Self, String> {
        Ok(Self(Value::Version(Arc::new(Version::parse(text)?))))
    }

    /// A list.
    #[must_use]
    pub fn list(items: impl IntoIterator<Item = Self>) -> Self {
        Self(Value::list(items.into_iter().map(|Self(value)| value).collect()))
    }

    /// A map, or the variable with its fields. An absent key is an error of the evaluation.
    #[must_use]
    pub fn map<'a>(entries: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        Self::of(Missing::Error, entries)
    }

    /// A map of maps. An absent key is an empty map.
    #[must_use]
    pub fn map_of_maps<'a>(entries: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        Self::of(Missing::EmptyMap, entries)
    }

    pub(super) const fn value(&self) -> &Value {
        &self.0
    }

    fn of<'a>(missing: Missing, entries: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        let mut map = Map::new(missing);
        for (name, Self(value)) in entries {
            map.set(name, value);
        }
        Self(Value::Map(Arc::new(map)))
    }
}
