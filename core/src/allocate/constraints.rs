//! `matchAttribute` and `distinctAttribute` over the devices that a search has taken.
//!
//! Attribute values are interned, so a comparison is one of numbers. Types never mix: the string `1` is not the
//! integer 1. From 1.37 on a list is the set of its members, and a value a set of one: devices match if all of them
//! have a member in common, and are distinct if no two have. To 1.36 the scheduler compares no lists, so that one can only
//! be the first and only device.

use std::collections::HashMap;

use super::index::{EntryNo, Index, numbered};
use super::options::Release;
use crate::dra::{AttributeValue, ConstraintRule};

numbered! {
    /// An attribute that constraints name.
    AttributeNo,
    /// A distinct list of members.
    ListNo,
}

/// Values of the attributes that constraints have named, by device.
#[derive(Debug, Default)]
pub(super) struct AttributeValues {
    numbers: HashMap<String, AttributeNo>,
    columns: Vec<Vec<Value>>,
    values: HashMap<AttributeValue, u32>,
    /// Members of each list.
    lists: Vec<Vec<u32>>,
}

/// A device's value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Value {
    Absent,
    One(u32),
    List(ListNo),
}

/// One constraint of a claim during a search.
#[derive(Clone, Debug)]
pub(super) struct Constraint {
    pub(super) attribute: AttributeNo,
    rule: ConstraintKind,
    release: Release,
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
            Some(list) if list.members().is_some() => {
                let members = list.each().into_iter().map(|value| self.interned(value)).collect();
                self.lists.push(members);
                Value::List(ListNo::after(self.lists.len() - 1))
            }
            Some(value) => Value::One(self.interned(value.clone())),
        }
    }

    fn interned(&mut self, value: AttributeValue) -> u32 {
        let next = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        *self.values.entry(value).or_insert(next)
    }

    /// Whether `all` have a member in common with each other and with `value`.
    fn have_common_member(&self, all: &[Value], value: Value) -> bool {
        let has = |of: &Value, member: u32| match of {
            Value::Absent => false,
            Value::One(only) => *only == member,
            Value::List(list) => self.lists[list.at()].contains(&member),
        };
        let in_all = |member: &u32| all.iter().all(|other| has(other, *member));
        match value {
            Value::Absent => false,
            Value::One(only) => in_all(&only),
            Value::List(list) => self.lists[list.at()].iter().any(in_all),
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
    pub(super) fn new(
        rule: &ConstraintRule,
        attributes: &mut AttributeValues,
        index: &Index,
        release: Release,
    ) -> Self {
        let (rule, name) = match rule {
            ConstraintRule::Match(name) => (ConstraintKind::Match, name),
            ConstraintRule::Distinct(name) => (ConstraintKind::Distinct, name),
        };
        Self { attribute: attributes.number(name, index), rule, release, taken: Vec::new() }
    }

    /// Takes a device with this value; `false`, and nothing taken, if the rule forbids it.
    pub(super) fn add(&mut self, value: Value, attributes: &AttributeValues) -> bool {
        let common = |others: &[Value]| match (self.release, value) {
            (Release::V1_36, Value::Absent | Value::List(_)) => false,
            (Release::V1_36, Value::One(_)) => others.iter().all(|other| *other == value),
            (Release::V1_37, _) => attributes.have_common_member(others, value),
        };
        let allowed = match (self.rule, value) {
            (_, Value::Absent) => false,
            _ if self.taken.is_empty() => true,
            (ConstraintKind::Match, _) => common(&self.taken),
            (ConstraintKind::Distinct, Value::List(_)) if self.release == Release::V1_36 => false,
            (ConstraintKind::Distinct, _) => !self.taken.iter().any(|other| common(&[*other])),
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
