//! `tolerations` of requests and results, and the effects that they share with taints.

use aliquot_core::dra::{TaintEffect, Toleration, TolerationOperator};

use super::field::{Context, Path};
use super::name;
use super::tree::{YamlNode, cut};

const TOLERATIONS_MAX: usize = 16;

/// `tolerations` of a request or of a result.
pub(super) fn tolerations(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Vec<Toleration> {
    cx.each(node, path, TOLERATIONS_MAX, |cx, node, path| {
        let (mut key, mut operator, mut value) = (None, None, String::new());
        let (mut effect, mut seconds) = (None, None);
        for entry in cx.entries(node, path) {
            let at = path.key(entry);
            match entry.key.as_ref() {
                "key" => key = cx.string(&entry.value, &at).filter(|k| !k.is_empty()),
                "operator" => operator = cx.string(&entry.value, &at),
                "value" => value = cx.string(&entry.value, &at).unwrap_or_default(),
                "effect" => effect = taint_effect(cx, &entry.value, &at),
                "tolerationSeconds" => seconds = cx.integer(&entry.value, &at),
                _ => cx.unknown(&at, &["key", "operator", "value", "effect", "tolerationSeconds"]),
            }
        }
        if let Some(key) = &key {
            name::label_name(cx, key, &path.missing("key"));
        }
        name::label_value(cx, &value, &path.missing("value"));
        let operator = match operator.as_deref() {
            Some("Exists") if value.is_empty() => TolerationOperator::Exists,
            Some("Exists") => {
                let at = path.missing("value");
                cx.rule(&at, format!("found \"{}\", expected none: the operator is Exists", cut(&value)));
                TolerationOperator::Exists
            }
            None | Some("Equal" | "") => {
                if key.is_none() {
                    let of = if value.is_empty() {
                        "no value".to_owned()
                    } else {
                        format!("value \"{}\"", cut(&value))
                    };
                    cx.warn(
                        path,
                        format!("has no key and tolerates every taint with {of}; name a key, or use Exists"),
                    );
                }
                TolerationOperator::Equal(value)
            }
            Some(other) => {
                let at = path.missing("operator");
                cx.rule(
                    &at,
                    format!("found \"{}\", expected Exists or Equal; it tolerates nothing here", cut(other)),
                );
                return None;
            }
        };
        Some(Toleration { key, operator, effect, seconds })
    })
}

/// `effect` of a taint or toleration; empty is none.
pub(super) fn taint_effect(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<TaintEffect> {
    match cx.text(node, path)? {
        "" => None,
        "NoSchedule" => Some(TaintEffect::NoSchedule),
        "NoExecute" => Some(TaintEffect::NoExecute),
        "None" => Some(TaintEffect::None),
        other => {
            let found = cut(other);
            cx.rule(
                path,
                format!("found \"{found}\", expected NoSchedule, NoExecute or None; it counts as None"),
            );
            Some(TaintEffect::Other(other.to_owned()))
        }
    }
}
