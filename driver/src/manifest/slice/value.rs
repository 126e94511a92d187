//! Attributes and capacities of devices.

use aliquot_core::dra::{AttributeValue, CapacityPolicy, CapacityRestriction, DeviceCapacity};

use super::super::field::{Context, Origin, Path};
use super::super::tree::{YamlNode, cut};

pub(super) const ATTRIBUTES_MAX: usize = 32;

pub(super) const ATTRIBUTE_BYTES_MAX: usize = 64;

/// A cluster dump may come from a server of a later version with larger limits; this stops what no server takes.
pub(super) const DUMP_MAX: usize = 4_096;

pub(super) fn attribute(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<AttributeValue> {
    let mut found = Vec::new();
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        let value = &entry.value;
        let read = match entry.key.as_ref() {
            "int" => cx.integer(value, &at).map(AttributeValue::Int),
            "bool" => cx.boolean(value, &at).map(AttributeValue::Bool),
            "string" => short_text(cx, value, &at).map(AttributeValue::String),
            "version" => version_text(cx, value, &at).map(AttributeValue::Version),
            "ints" => Some(AttributeValue::Ints(members(cx, value, &at, Context::integer))),
            "bools" => Some(AttributeValue::Bools(members(cx, value, &at, Context::boolean))),
            "strings" => Some(AttributeValue::Strings(members(cx, value, &at, short_text))),
            "versions" => Some(AttributeValue::Versions(members(cx, value, &at, version_text))),
            _ => {
                cx.unknown(
                    &at,
                    &["int", "bool", "string", "version", "ints", "bools", "strings", "versions"],
                );
                None
            }
        };
        found.extend(read);
    }
    if cx.origin == Origin::Manifest && found.first().is_some_and(|value| value.members().is_some()) {
        cx.warn(
            path,
            "is a list, which servers keep with the gate DRAListTypeAttributes alone (alpha, off by default)",
        );
    }
    if found.len() > 1 || cx.entries(node, path).count() == 0 {
        cx.error(path, format!("has {} values; expected one of int, bool, string, version", found.len()));
        return None;
    }
    found.pop()
}

/// The members of a list.
fn members<T>(
    cx: &mut Context,
    node: &YamlNode<'_>,
    path: &Path<'_>,
    read: impl FnMut(&mut Context, &YamlNode<'_>, &Path<'_>) -> Option<T>,
) -> Vec<T> {
    let members = cx.each(node, path, DUMP_MAX, read);
    if cx.items(node, path).is_empty() {
        cx.rule(path, "is empty; expected at least one value");
    }
    members
}

fn short_text(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<String> {
    let text = cx.string(node, path)?;
    if text.len() > ATTRIBUTE_BYTES_MAX {
        let message = format!("is {} bytes long; an attribute has at most {ATTRIBUTE_BYTES_MAX}", text.len());
        cx.rule(path, message);
    }
    Some(text)
}

fn version_text(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<String> {
    let text = short_text(cx, node, path)?;
    let (core, extra) = match text.find(['-', '+']) {
        Some(end) => text.split_at(end),
        None => (text.as_str(), ""),
    };
    let number = |part: &str| {
        let plain = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        plain && (part == "0" || !part.starts_with('0'))
    };
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'+');
    let three = core.split('.').count() == 3 && core.split('.').all(number);
    if !three || !extra.bytes().all(legal) || extra.len() == 1 {
        let found = cut(&text);
        cx.rule(path, format!("found \"{found}\", expected a semantic version such as 570.86.15"));
    }
    Some(text)
}

pub(super) fn capacity(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<DeviceCapacity> {
    let (mut value, mut policy) = (None, None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "value" => value = cx.quantity(&entry.value, &at),
            "requestPolicy" => policy = Some(request_policy(cx, &entry.value, &at)),
            _ => cx.unknown(&at, &["value", "requestPolicy"]),
        }
    }
    if node.get("value").is_none() {
        cx.required(path, "value", "a quantity");
    }
    let value = value?;
    if value.nanos() < 0 {
        cx.rule(&path.missing("value"), format!("found {value}, expected 0 or more"));
    }
    Some(DeviceCapacity { value, policy })
}

fn request_policy(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> CapacityPolicy {
    let (mut default, mut values, mut range) = (None, None, None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "default" => default = cx.quantity(&entry.value, &at),
            "validValues" => {
                values = Some(cx.each(&entry.value, &at, ATTRIBUTES_MAX, Context::quantity));
            }
            "validRange" => range = valid_range(cx, &entry.value, &at),
            _ => cx.unknown(&at, &["default", "validValues", "validRange"]),
        }
    }
    let restriction = match (values, range) {
        (None, None) => CapacityRestriction::None,
        (None, Some(range)) => range,
        (Some(values), None) => CapacityRestriction::Values(values),
        (Some(values), Some(_)) => {
            cx.error(path, "has both validValues and validRange; expected one of them");
            CapacityRestriction::Values(values)
        }
    };
    CapacityPolicy { default, restriction }
}

fn valid_range(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<CapacityRestriction> {
    let (mut min, mut max, mut step) = (None, None, None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "min" => min = cx.quantity(&entry.value, &at),
            "max" => max = cx.quantity(&entry.value, &at),
            "step" => step = cx.quantity(&entry.value, &at),
            _ => cx.unknown(&at, &["min", "max", "step"]),
        }
    }
    if node.get("min").is_none() {
        cx.required(path, "min", "the smallest amount");
    }
    Some(CapacityRestriction::Range { min: min?, max, step })
}
