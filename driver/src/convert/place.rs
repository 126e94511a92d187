//! Where in an object a field is. A place borrows the one above it, and is a text only where something is said about it.

use serde_json::Value;

use crate::printable::line_of;

/// Most bytes of an object, a key or a field in a text: Kubernetes allows no longer name.
const NAME_BYTES_MAX: usize = 253;

/// An object, or something in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'p> {
    object: &'p str,
    above: Option<&'p Place<'p>>,
    key: &'p str,
    entry: Entry<'p>,
}

/// Which entry of a list or of a map.
#[derive(Clone, Copy, Debug)]
enum Entry<'p> {
    All,
    Item(usize),
    Named(&'p str),
}

// === impl Place ===

impl<'p> Place<'p> {
    /// An object, as losses name it.
    pub(super) const fn object(object: &'p str) -> Self {
        Self { object, above: None, key: "", entry: Entry::All }
    }

    pub(super) const fn below(&'p self, key: &'p str) -> Self {
        Self { object: self.object, above: Some(self), key, entry: Entry::All }
    }

    /// An item of a list.
    pub(super) const fn item(&'p self, list: &'p str, index: usize) -> Self {
        Self { entry: Entry::Item(index), ..self.below(list) }
    }

    /// An entry of a map whose keys are chosen freely.
    pub(super) const fn named(&'p self, map: &'p str, name: &'p str) -> Self {
        Self { entry: Entry::Named(name), ..self.below(map) }
    }

    /// A field as losses name it: one line.
    pub(super) fn field(&self, rest: &str) -> String {
        let mut keys = Vec::new();
        let mut at = Some(self);
        while let Some(place) = at {
            if place.above.is_some() {
                keys.push(place.text());
            }
            at = place.above;
        }
        keys.reverse();
        keys.push(line_of(rest, 2 * NAME_BYTES_MAX));
        format!("{} {}", line_of(self.object, NAME_BYTES_MAX), keys.join("."))
    }

    /// The field of a limit of a container.
    pub(super) fn limit(&self, resource: &str) -> String {
        self.field(&format!("resources.limits[{resource}]"))
    }

    fn text(&self) -> String {
        let key = line_of(self.key, NAME_BYTES_MAX);
        match self.entry {
            Entry::All => key,
            Entry::Item(index) if key.is_empty() => index.to_string(),
            Entry::Item(index) => format!("{key}[{index}]"),
            Entry::Named(name) => format!("{key}[{}]", line_of(name, NAME_BYTES_MAX)),
        }
    }
}

/// A scalar as it would be written, anything else as JSON.
pub(super) fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_one_line_of_bounded_length() {
        let huge = "x\n".repeat(100_000);
        let object = Place::object(&huge);
        let below = object.below(&huge);
        let item = below.item("", 3);
        let named = item.named("configs", &huge);
        let field = named.field(&format!("a[{huge}]"));
        assert!(field.len() < 2500 && !field.contains(char::is_control), "{field}");
        assert_eq!(
            Place::object("Pod p").below("spec").item("containers", 1).field("env"),
            "Pod p spec.containers[1].env"
        );
    }
}
