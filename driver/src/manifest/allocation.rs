//! `status` of a claim: what it holds already.

use std::collections::BTreeMap;

use aliquot_core::dra::{
    Access, AllocatedConfig, AllocationResult, ConfigSource, DeviceId, DeviceResult, ShareId,
};
use aliquot_core::quantity::Quantity;

use super::field::{Context, Path};
use super::tree::YamlNode;
use super::{claim, name, node, toleration};

const RESULTS_MAX: usize = 32;
const CONFIG_MAX: usize = 64;
const CONDITIONS_MAX: usize = 4;

/// Reads `status`; of it, the allocation.
pub(super) fn status(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<AllocationResult> {
    let mut result = None;
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "allocation" => result = Some(allocation(cx, &entry.value, &at)),
            "reservedFor" | "devices" => {}
            _ => cx.unknown(&at, &["allocation", "reservedFor", "devices"]),
        }
    }
    result
}

fn allocation(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) -> AllocationResult {
    let mut result = AllocationResult::default();
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "devices" => {
                for entry in cx.entries(&entry.value, &at) {
                    let at = at.key(entry);
                    match entry.key.as_ref() {
                        "results" => result.devices = cx.each(&entry.value, &at, RESULTS_MAX, device),
                        "config" => result.config = cx.each(&entry.value, &at, CONFIG_MAX, config),
                        _ => cx.unknown(&at, &["results", "config"]),
                    }
                }
            }
            "nodeSelector" => result.node_selector = Some(node::selector(cx, &entry.value, &at)),
            "allocationTimestamp" => {}
            _ => cx.unknown(&at, &["devices", "nodeSelector", "allocationTimestamp"]),
        }
    }
    result
}

fn device(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) -> Option<DeviceResult> {
    let (mut request, mut driver, mut pool, mut device) = (None, None, None, None);
    let (mut access, mut tolerations, mut share_id) = (Access::Normal, Vec::new(), None);
    let (mut binding, mut failure, mut consumed) = (Vec::new(), Vec::new(), BTreeMap::new());
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        let value = &entry.value;
        match entry.key.as_ref() {
            "request" => request = cx.string(value, &at),
            "driver" => driver = name::driver(cx, value, &at),
            "pool" => pool = name::pool(cx, value, &at),
            "device" => device = name::label(cx, value, &at),
            "adminAccess" if cx.boolean(value, &at) == Some(true) => access = Access::Admin,
            "adminAccess" => {}
            "tolerations" => tolerations = toleration::tolerations(cx, value, &at),
            "bindingConditions" => binding = cx.strings(value, &at, CONDITIONS_MAX),
            "bindingFailureConditions" => failure = cx.strings(value, &at, CONDITIONS_MAX),
            "shareID" => share_id = cx.string(value, &at).map(ShareId),
            "consumedCapacity" => consumed = quantities(cx, value, &at),
            "skipNodeOperations" => {
                cx.without_effect(&at, "the field is of a later API version (1.37)");
            }
            _ => cx.unknown(&at, &["request", "driver", "pool", "device", "shareID", "consumedCapacity"]),
        }
    }
    for field in ["request", "driver", "pool", "device"] {
        if value.get(field).is_none() {
            cx.required(path, field, "what the scheduler wrote");
        }
    }
    Some(DeviceResult {
        request: request?,
        device: DeviceId { driver: driver?, pool: pool?, device: device? },
        access,
        tolerations,
        binding_conditions: binding,
        binding_failure_conditions: failure,
        share_id,
        consumed_capacity: consumed,
    })
}

fn quantities(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) -> BTreeMap<String, Quantity> {
    let mut quantities = BTreeMap::new();
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        if let Some(quantity) = cx.quantity(&entry.value, &at) {
            quantities.insert(entry.key.to_string(), quantity);
        }
    }
    quantities
}

fn config(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) -> Option<AllocatedConfig> {
    let (mut source, mut requests, mut opaque) = (None, Vec::new(), None);
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "source" => {
                source = match cx.text(&entry.value, &at) {
                    Some("FromClass") => Some(ConfigSource::Class),
                    Some("FromClaim") => Some(ConfigSource::Claim),
                    Some(other) => {
                        cx.error(&at, format!("found \"{other}\", expected FromClass or FromClaim"));
                        None
                    }
                    None => None,
                };
            }
            "requests" => requests = cx.strings(&entry.value, &at, RESULTS_MAX),
            "opaque" => opaque = claim::opaque(cx, &entry.value, &at),
            _ => cx.unknown(&at, &["source", "requests", "opaque"]),
        }
    }
    if value.get("source").is_none() {
        cx.required(path, "source", "FromClass or FromClaim");
    }
    Some(AllocatedConfig { source: source?, requests, opaque: opaque? })
}
