//! Taints of nodes, the tolerations of Pods that bear them, and the rules by which an admin taints devices. Taints of
//! devices have other effects than those of nodes, and other rules.

use aliquot_core::dra::{Taint, TaintEffect, Toleration, TolerationOperator};

use super::field::{Context, Path};
use super::toleration::taint_effect;
use super::tree::{YamlNode, cut};
use super::{TaintRule, name};

/// Key of the taint that a cordoned node has; the node's own switch means the same.
pub(crate) const CORDONED: &str = "node.kubernetes.io/unschedulable";

const TAINTS_MAX: usize = 1_024;

/// Reads the `spec` of a node; of it, what keeps Pods off, or makes the scheduler prefer other nodes.
pub(super) fn of_node(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Vec<Taint> {
    let (mut taints, mut cordoned) = (Vec::new(), false);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "taints" => taints = cx.each(&entry.value, &at, TAINTS_MAX, taint),
            "unschedulable" => cordoned = cx.boolean(&entry.value, &at) == Some(true),
            _ => {}
        }
    }
    if cordoned && !taints.iter().any(|t| t.key == CORDONED) {
        let (key, value) = (CORDONED.to_owned(), String::new());
        taints.insert(0, Taint { key, value, effect: TaintEffect::NoSchedule });
    }
    taints
}

/// Key, value and effect of a taint; `effect_of` knows the effects that it may have.
fn fields(
    cx: &mut Context,
    node: &YamlNode<'_>,
    path: &Path<'_>,
    effect_of: impl Fn(&mut Context, &YamlNode<'_>, &Path<'_>) -> Option<TaintEffect>,
) -> (Option<String>, String, Option<TaintEffect>) {
    let (mut key, mut value, mut effect) = (None, String::new(), None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "key" => key = cx.string(&entry.value, &at),
            "value" => value = cx.string(&entry.value, &at).unwrap_or_default(),
            "effect" => effect = effect_of(cx, &entry.value, &at),
            "timeAdded" => {}
            _ => cx.unknown(&at, &["key", "value", "effect", "timeAdded"]),
        }
    }
    (key, value, effect)
}

fn taint(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<Taint> {
    let (key, value, effect) = fields(cx, node, path, effect_of);
    for (field, what) in [("key", "a label name"), ("effect", "NoSchedule, PreferNoSchedule or NoExecute")] {
        if node.get(field).is_none() {
            cx.required(path, field, what);
        }
    }
    let key = key?;
    name::label_name(cx, &key, &path.missing("key"));
    name::label_value(cx, &value, &path.missing("value"));
    Some(Taint { key, value, effect: effect? })
}

/// `tolerations` of a Pod; one that cannot be understood bears nothing.
pub(super) fn of_pod(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Vec<Toleration> {
    cx.each(node, path, TAINTS_MAX, toleration)
}

fn toleration(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<Toleration> {
    let (mut key, mut operator, mut value) = (None, None, String::new());
    let (mut effect, mut seconds) = (None, None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "key" => key = cx.string(&entry.value, &at).filter(|k| !k.is_empty()),
            "operator" => operator = cx.string(&entry.value, &at),
            "value" => value = cx.string(&entry.value, &at).unwrap_or_default(),
            "effect" if entry.value.text() == Some("") => {}
            // One with an effect that is not understood must not bear all effects.
            "effect" => effect = Some(effect_of(cx, &entry.value, &at)?),
            "tolerationSeconds" => seconds = cx.integer(&entry.value, &at),
            _ => cx.unknown(&at, &["key", "operator", "value", "effect", "tolerationSeconds"]),
        }
    }
    let operator = match operator.as_deref() {
        Some("Exists") => {
            if !value.is_empty() {
                let found = cut(&value);
                cx.rule(
                    &path.missing("value"),
                    format!("found \"{found}\", expected none: the operator is Exists"),
                );
            }
            TolerationOperator::Exists
        }
        None | Some("Equal" | "") if key.is_some() => TolerationOperator::Equal(value),
        None | Some("Equal" | "") => {
            let expected = "expected a taint key; only with operator: Exists may it be left out";
            cx.rule(&path.missing("key"), format!("is missing, {expected}"));
            return None;
        }
        Some(other) => {
            let found = cut(other);
            let expected = "expected Exists or Equal; it bears nothing here";
            cx.rule(&path.missing("operator"), format!("found \"{found}\", {expected}"));
            return None;
        }
    };
    if let Some(key) = &key {
        name::label_name(cx, key, &path.missing("key"));
    }
    Some(Toleration { key, operator, effect, seconds })
}

/// Reads the `spec` of a `DeviceTaintRule`. A rule with a selection that is not understood is left out, since it would taint
/// more than was meant.
pub(super) fn rule(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>, name: &str) -> Option<TaintRule> {
    let (mut selector, mut taint) = (None, None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "deviceSelector" => selector = Some(selected(cx, &entry.value, &at)?),
            "taint" => taint = device_taint(cx, &entry.value, &at),
            _ => cx.unknown(&at, &["deviceSelector", "taint"]),
        }
    }
    if node.get("taint").is_none() {
        cx.required(path, "taint", "key, value and effect");
    }
    if selector.is_none() {
        cx.warn(&path.missing("deviceSelector"), "is missing: the rule taints no device; {} taints all");
    }
    let (driver, pool, device) = selector?;
    Some(TaintRule { name: name.to_owned(), driver, pool, device, taint: taint? })
}

/// Driver, pool and device; `None`: any.
type TaintSelector = (Option<String>, Option<String>, Option<String>);

fn selected(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<TaintSelector> {
    let (mut driver, mut pool, mut device) = (None, None, None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "driver" => driver = Some(name::driver(cx, &entry.value, &at)?),
            "pool" => pool = Some(name::pool(cx, &entry.value, &at)?),
            "device" => device = Some(name::label(cx, &entry.value, &at)?),
            "deviceClassName" | "selectors" => {
                cx.rule(
                    &at,
                    "is of an older API version; expected driver, pool and device. The rule is left out",
                );
                return None;
            }
            _ => {
                cx.unknown(&at, &["driver", "pool", "device"]);
                return None;
            }
        }
    }
    Some((driver, pool, device))
}

fn effect_of(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<TaintEffect> {
    match cx.text(node, path)? {
        "NoSchedule" => Some(TaintEffect::NoSchedule),
        "NoExecute" => Some(TaintEffect::NoExecute),
        other @ "PreferNoSchedule" => Some(TaintEffect::Other(other.to_owned())),
        other => {
            let expected = "expected NoSchedule, PreferNoSchedule or NoExecute";
            cx.rule(path, format!("found \"{}\", {expected}", cut(other)));
            None
        }
    }
}

/// One taint of a device.
pub(super) fn device_taint(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<Taint> {
    let (key, value, effect) = fields(cx, node, path, taint_effect);
    if node.get("key").is_none() {
        cx.required(path, "key", "a label name");
    }
    if effect.is_none() {
        cx.required(path, "effect", "None, NoSchedule or NoExecute");
    }
    if let Some(key) = &key {
        name::label_name(cx, key, &path.missing("key"));
    }
    name::label_value(cx, &value, &path.missing("value"));
    Some(Taint { key: key?, value, effect: effect? })
}
