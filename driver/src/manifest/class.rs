//! `DeviceClass`: what an admin offers under a name.

use std::collections::BTreeMap;

use aliquot_core::dra::{DeviceClass, OpaqueConfig};

use super::claim;
use super::field::{Context, Origin, Path};
use super::meta::Meta;
use super::tree::{YamlNode, cut};

const CONFIG_MAX: usize = 32;

/// Reads the `spec` of a class.
pub(super) fn class(cx: &mut Context, node: Option<(&YamlNode<'_>, &Path<'_>)>, meta: Meta) -> DeviceClass {
    let mut class = DeviceClass {
        name: meta.name,
        selectors: Vec::new(),
        config: Vec::new(),
        extended_resource_name: None,
        extended_resource_capacity: BTreeMap::new(),
        annotations: meta.annotations,
    };
    let Some((node, path)) = node else { return class };
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "selectors" => class.selectors = claim::selectors(cx, &entry.value, &at),
            "config" => class.config = cx.each(&entry.value, &at, CONFIG_MAX, class_config),
            "extendedResourceName" => {
                class.extended_resource_name = extended_resource(cx, &entry.value, &at);
            }
            // Provisional, for 1.38: only an API server tells whether it keeps the field.
            "extendedResourceCapacityRequests" => match cx.origin {
                Origin::Dump => class.extended_resource_capacity = claim::capacity(cx, &entry.value, &at),
                Origin::Manifest => {
                    cx.without_effect(
                        &at,
                        "servers up to 1.37 drop the field; ask for a size in a claim, or use slots",
                    );
                }
            },
            "managementFields" | "suitableNodes" => {
                cx.without_effect(&at, "the field is not of resource.k8s.io/v1");
            }
            _ => cx.unknown(&at, &["selectors", "config", "extendedResourceName"]),
        }
    }
    class
}

fn class_config(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<OpaqueConfig> {
    let mut config = None;
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "opaque" => config = claim::opaque(cx, &entry.value, &at),
            _ => cx.unknown(&at, &["opaque"]),
        }
    }
    if node.get("opaque").is_none() {
        cx.required(path, "opaque", "driver and parameters");
    }
    config
}

fn extended_resource(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<String> {
    let text = cx.string(node, path)?;
    if is_extended_resource(&text) {
        return Some(text);
    }
    let found = cut(&text);
    cx.error(
        path,
        format!("found \"{found}\", expected domain/name outside kubernetes.io, such as aliquot.dev/share"),
    );
    None
}

/// Whether a resource name is one that a device class may stand for.
pub(super) fn is_extended_resource(text: &str) -> bool {
    let Some((domain, name)) = text.split_once('/') else { return false };
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    super::name::is_subdomain(domain, 253)
        && (domain == "deviceclass.resource.kubernetes.io" || !domain.ends_with("kubernetes.io"))
        && !domain.starts_with("requests.")
        && (1..=63).contains(&name.len())
        && name.bytes().all(plain)
}
