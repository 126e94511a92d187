//! `matchAttribute` and `distinctAttribute` over the devices that a search has taken.
//!
//! Attribute values are interned, so a comparison is one of numbers. Types never mix: the string `1` is not the
//! integer 1. Lists are not compared (their gate is off in 1.36): one can only be the first and only device.

use std::collections::HashMap;

use super::index::{EntryNo, Index, numbered};
use crate::dra::{AttributeValue, ConstraintRule};

numbered! {
    /// An attribute that constraints name.
    AttributeNo,
}

/// Values of the attributes that constraints have named, by device.
#[derive(Debug, Default)]
pub(super) struct AttributeValues {
    numbers: HashMap<String, AttributeNo>,
    columns: Vec<Vec<Value>>,
    values: HashMap<AttributeValue, u32>,
}

/// A device's value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Value {
    Absent,
    One(u32),
    List,
}

/// One constraint of a claim during a search.
#[derive(Clone, Debug)]
pub(super) struct Constraint {
    pub(super) attribute: AttributeNo,
    rule: ConstraintKind,
    /// Values of the devices taken, in order.
    taken: Vec<Value>,
}

#[derive(Clone, Copy, Debug)]
enum ConstraintKind {
    Match,
    Distinct,
}

// === impl AttributeValues ===

impl AttributeValues {
    /// The number of a fully qualified attribute; reads it off every device the first time.
    pub(super) fn number(&mut self, name: &str, index: &Index) -> AttributeNo {
        if let Some(known) = self.numbers.get(name) {
            return *known;
        }
        let number = AttributeNo::after(self.columns.len());
        let entries = (0..index.entries.len()).map(EntryNo::after);
        let column = entries.map(|entry| self.read(name, entry, index)).collect();
        self.columns.push(column);
        self.numbers.insert(name.to_owned(), number);
        number
    }

    fn read(&mut self, name: &str, entry: EntryNo, index: &Index) -> Value {
        match lookup(name, entry, index) {
            None => Value::Absent,
            Some(
                AttributeValue::Ints(_)
                | AttributeValue::Bools(_)
                | AttributeValue::Strings(_)
                | AttributeValue::Versions(_),
            ) => Value::List,
            Some(value) => {
                let next = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
                Value::One(*self.values.entry(value.clone()).or_insert(next))
            }
        }
    }

    /// The value that a device has.
    pub(super) fn value(&self, attribute: AttributeNo, entry: EntryNo) -> Value {
        self.columns[attribute.at()][entry.at()]
    }
}

/// The attribute as written in full, else without its domain where that is the driver.
pub(super) fn lookup<'a>(name: &str, entry: EntryNo, index: &'a Index) -> Option<&'a AttributeValue> {
    let attributes = &index.described(entry).attributes;
    attributes.get(name).or_else(|| {
        let (domain, bare) = name.split_once('/')?;
        let slice = index.entries[entry.at()].slice;
        (domain == index.slices[slice.at()].driver).then(|| attributes.get(bare)).flatten()
    })
}

// === impl Constraint ===

impl Constraint {
    pub(super) fn new(rule: &ConstraintRule, attributes: &mut AttributeValues, index: &Index) -> Self {
        let (rule, name) = match rule {
            ConstraintRule::Match(name) => (ConstraintKind::Match, name),
            ConstraintRule::Distinct(name) => (ConstraintKind::Distinct, name),
        };
        Self { attribute: attributes.number(name, index), rule, taken: Vec::new() }
    }

    /// Takes a device with this value; `false`, and nothing taken, if the rule forbids it.
    pub(super) fn add(&mut self, value: Value) -> bool {
        let allowed = match (self.rule, value) {
            (_, Value::Absent) => false,
            (ConstraintKind::Match, _) if self.taken.is_empty() => true,
            (ConstraintKind::Match, Value::One(_)) => self.taken[0] == value,
            (ConstraintKind::Distinct, Value::One(_)) => !self.taken.contains(&value),
            (ConstraintKind::Match, Value::List) => false,
            (ConstraintKind::Distinct, Value::List) => self.taken.is_empty(),
        };
        if allowed {
            self.taken.push(value);
        }
        allowed
    }

    /// Gives back the device taken last.
    pub(super) fn remove_last(&mut self) {
        self.taken.pop();
    }
}
