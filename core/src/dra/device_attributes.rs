//! The attributes of a device: those that equal devices of other nodes have as well, and the few values of its own node.

use std::collections::BTreeMap;
use std::ops::Index;

use super::shared::SharedValue;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AttributeValue {
    /// `int`
    Int(i64),
    /// `bool`
    Bool(bool),
    /// `string`, at most 64 bytes
    String(String),
    /// `version`: strict semantic version 2.0.0, as text
    Version(String),
    /// `ints` (list types gate)
    Ints(Vec<i64>),
    /// `bools` (list types gate)
    Bools(Vec<bool>),
    /// `strings` (list types gate)
    Strings(Vec<String>),
    /// `versions` (list types gate)
    Versions(Vec<String>),
}

impl AttributeValue {
    /// How many members a list has; `None`: it is no list.
    #[must_use]
    pub fn members(&self) -> Option<usize> {
        match self {
            Self::Int(_) | Self::Bool(_) | Self::String(_) | Self::Version(_) => None,
            Self::Ints(list) => Some(list.len()),
            Self::Bools(list) => Some(list.len()),
            Self::Strings(list) | Self::Versions(list) => Some(list.len()),
        }
    }

    /// The members of a list, or the one value, each by itself.
    pub(crate) fn each(&self) -> Vec<Self> {
        match self {
            Self::Ints(list) => list.iter().copied().map(Self::Int).collect(),
            Self::Bools(list) => list.iter().copied().map(Self::Bool).collect(),
            Self::Strings(list) => list.iter().cloned().map(Self::String).collect(),
            Self::Versions(list) => list.iter().cloned().map(Self::Version).collect(),
            Self::Int(_) | Self::Bool(_) | Self::String(_) | Self::Version(_) => vec![self.clone()],
        }
    }
}

/// DeviceAttributes by name, in order of names.
#[derive(Clone, Debug, Default)]
pub struct DeviceAttributes {
    all: SharedValue<BTreeMap<String, AttributeValue>>,
    /// Values that stand for those of `all`, each under a name that `all` has.
    own: Vec<(String, AttributeValue)>,
}

impl DeviceAttributes {
    /// The value of an attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&AttributeValue> {
        self.all.get(name).map(|value| self.present(name, value))
    }

    /// Whether there is an attribute of this name.
    #[must_use]
    pub fn contains_key(&self, name: &str) -> bool {
        self.all.contains_key(name)
    }

    /// Number of attributes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &AttributeValue)> {
        self.all.iter().map(|(name, value)| (name, self.present(name, value)))
    }

    /// Values.
    pub fn values(&self) -> impl Iterator<Item = &AttributeValue> {
        self.iter().map(|(_, value)| value)
    }

    /// Sets an attribute.
    pub fn insert(&mut self, name: String, value: AttributeValue) {
        self.own.retain(|(own, _)| *own != name);
        self.all.insert(name, value);
    }

    /// Changes the value of an attribute that is there; everything else stays shared with other copies.
    pub fn replace(&mut self, name: &str, value: AttributeValue) {
        if let Some((_, known)) = self.own.iter_mut().find(|(own, _)| own == name) {
            *known = value;
        } else if self.all.contains_key(name) {
            self.own.push((name.to_owned(), value));
        }
    }

    fn present<'a>(&'a self, name: &str, value: &'a AttributeValue) -> &'a AttributeValue {
        self.own.iter().find(|(own, _)| own == name).map_or(value, |(_, value)| value)
    }
}

impl PartialEq for DeviceAttributes {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for DeviceAttributes {}

impl Index<&str> for DeviceAttributes {
    type Output = AttributeValue;

    fn index(&self, name: &str) -> &AttributeValue {
        self.present(name, &self.all[name])
    }
}

impl From<BTreeMap<String, AttributeValue>> for DeviceAttributes {
    fn from(all: BTreeMap<String, AttributeValue>) -> Self {
        Self { all: all.into(), own: Vec::new() }
    }
}

impl FromIterator<(String, AttributeValue)> for DeviceAttributes {
    fn from_iter<I: IntoIterator<Item = (String, AttributeValue)>>(items: I) -> Self {
        Self::from(items.into_iter().collect::<BTreeMap<_, _>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(value: i64) -> AttributeValue {
        AttributeValue::Int(value)
    }

    #[test]
    fn a_replaced_value_changes_one_copy_alone() {
        let first: DeviceAttributes =
            [("a".to_owned(), int(1)), ("b".to_owned(), int(2))].into_iter().collect();
        let mut second = first.clone();
        second.replace("b", int(3));
        second.replace("absent", int(4));
        assert_eq!((first.get("b"), second.get("b")), (Some(&int(2)), Some(&int(3))));
        assert_eq!(second.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(second.values().collect::<Vec<_>>(), [&int(1), &int(3)]);
        assert_ne!(first, second);
        second.insert("b".to_owned(), int(2));
        assert_eq!(first, second);
    }
}
