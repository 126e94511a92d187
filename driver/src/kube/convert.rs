//! Plain values ⇄ the API's types. Slices that are sent go by way of the API's JSON, which [`crate::manifest`] renders; their
//! copies are read field by field.

use std::collections::BTreeMap;

use aliquot_core::dra::{
    AttributeValue, CapacityPolicy, CapacityRestriction, CounterConsumption, CounterSet, Device,
    DeviceCapacity, DeviceDescription, NodeRequirement, NodeSelection, NodeSelector, NodeSelectorTerm, Pool,
    ResourceClaim, ResourceSlice, SelectorOperator, Sharing, Taint, TaintEffect,
};
use aliquot_core::quantity::Quantity;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::manifest::{self, Object, ProblemSeverity};

/// A slice as the client sends it.
pub(super) fn to_api(slice: &ResourceSlice) -> Result<api::ResourceSlice, serde_json::Error> {
    serde_json::from_value(Object::Slice(slice).json())
}

/// A slice as the server sent it; `None` if it has what no reader of Aliquot's understands.
pub(super) fn from_api(object: &api::ResourceSlice) -> Option<ResourceSlice> {
    let spec = &object.spec;
    let pool = &spec.pool;
    let switches =
        [(spec.all_nodes, NodeSelection::All), (spec.per_device_node_selection, NodeSelection::PerDevice)];
    let [node] =
        <[_; 1]>::try_from(selections(spec.node_name.as_ref(), spec.node_selector.as_ref(), switches)?)
            .ok()?;
    Some(ResourceSlice {
        name: object.metadata.name.clone()?,
        driver: spec.driver.clone(),
        pool: Pool {
            name: pool.name.clone(),
            generation: pool.generation,
            slice_count: pool.resource_slice_count,
        },
        node,
        devices: spec.devices.iter().flatten().map(device).collect::<Option<_>>()?,
        shared_counters: spec.shared_counters.iter().flatten().map(counter_set).collect::<Option<_>>()?,
    })
}

/// A claim from the server's answer.
///
/// # Errors
/// The faults of the claim, one after the other.
pub(super) fn claim(text: &str) -> Result<Option<ResourceClaim>, String> {
    let (manifests, problems) = manifest::read("API server", text);
    let errors: Vec<String> =
        problems.iter().filter(|p| p.severity == ProblemSeverity::Error).map(ToString::to_string).collect();
    if errors.is_empty() { Ok(manifests.claims.into_iter().next()) } else { Err(errors.join("; ")) }
}

fn device(found: &api::Device) -> Option<Device> {
    let mut node = selections(
        found.node_name.as_ref(),
        found.node_selector.as_ref(),
        [(found.all_nodes, NodeSelection::All)],
    )?;
    if node.len() > 1 {
        return None;
    }
    let attributes = found.attributes.iter().flatten();
    let capacity = found.capacity.iter().flatten();
    let is_shareable = found.allow_multiple_allocations == Some(true);
    let description = DeviceDescription {
        name: found.name.clone(),
        attributes: attributes
            .map(|(name, value)| Some((name.clone(), attribute(value)?)))
            .collect::<Option<_>>()?,
        capacity: capacity
            .map(|(name, amount)| Some((name.clone(), device_capacity(amount)?)))
            .collect::<Option<_>>()?,
        consumes: found.consumes_counters.iter().flatten().map(consumption).collect::<Option<_>>()?,
        node: node.pop(),
        taints: found.taints.iter().flatten().map(taint).collect::<Option<_>>()?,
        binds_to_node: found.binds_to_node.unwrap_or_default(),
        binding_conditions: found.binding_conditions.clone().unwrap_or_default(),
        binding_failure_conditions: found.binding_failure_conditions.clone().unwrap_or_default(),
        sharing: if is_shareable { Sharing::Shareable } else { Sharing::Exclusive },
    };
    Some(description.into())
}

/// All places that a slice or device names, of which it should name one.
fn selections<const N: usize>(
    name: Option<&String>,
    by_labels: Option<&core::NodeSelector>,
    switches: [(Option<bool>, NodeSelection); N],
) -> Option<Vec<NodeSelection>> {
    let mut found: Vec<NodeSelection> = name.cloned().map(NodeSelection::Name).into_iter().collect();
    if let Some(by_labels) = by_labels {
        found.push(NodeSelection::Selector(selector(by_labels)?));
    }
    found.extend(switches.into_iter().filter(|(on, _)| *on == Some(true)).map(|(_, selection)| selection));
    Some(found)
}

fn selector(found: &core::NodeSelector) -> Option<NodeSelector> {
    let requirements = |list: &Option<Vec<core::NodeSelectorRequirement>>| {
        list.iter().flatten().map(requirement).collect::<Option<Vec<_>>>()
    };
    let term = |term: &core::NodeSelectorTerm| {
        let (expressions, fields) =
            (requirements(&term.match_expressions)?, requirements(&term.match_fields)?);
        Some(NodeSelectorTerm { expressions, fields })
    };
    Some(NodeSelector { terms: found.node_selector_terms.iter().map(term).collect::<Option<_>>()? })
}

fn requirement(found: &core::NodeSelectorRequirement) -> Option<NodeRequirement> {
    let operator = match found.operator.as_str() {
        "In" => SelectorOperator::In,
        "NotIn" => SelectorOperator::NotIn,
        "Exists" => SelectorOperator::Exists,
        "DoesNotExist" => SelectorOperator::DoesNotExist,
        "Gt" => SelectorOperator::Gt,
        "Lt" => SelectorOperator::Lt,
        _ => return None,
    };
    Some(NodeRequirement {
        key: found.key.clone(),
        operator,
        values: found.values.clone().unwrap_or_default(),
    })
}

/// The one value of an attribute.
fn attribute(found: &api::DeviceAttribute) -> Option<AttributeValue> {
    let values = [
        found.int.map(AttributeValue::Int),
        found.bool.map(AttributeValue::Bool),
        found.string.clone().map(AttributeValue::String),
        found.version.clone().map(AttributeValue::Version),
        found.ints.clone().map(AttributeValue::Ints),
        found.bools.clone().map(AttributeValue::Bools),
        found.strings.clone().map(AttributeValue::Strings),
        found.versions.clone().map(AttributeValue::Versions),
    ];
    let mut values = values.into_iter().flatten();
    values.next().filter(|_| values.next().is_none())
}

fn quantity(found: &ApiQuantity) -> Option<Quantity> {
    found.0.parse().ok()
}

fn device_capacity(found: &api::DeviceCapacity) -> Option<DeviceCapacity> {
    let policy = match &found.request_policy {
        Some(policy) => Some(request_policy(policy)?),
        None => None,
    };
    Some(DeviceCapacity { value: quantity(&found.value)?, policy })
}

fn request_policy(found: &api::CapacityRequestPolicy) -> Option<CapacityPolicy> {
    let optional = |amount: &Option<ApiQuantity>| match amount {
        Some(amount) => quantity(amount).map(Some),
        None => Some(None),
    };
    let restriction = match (&found.valid_range, &found.valid_values) {
        (None, None) => CapacityRestriction::None,
        (Some(range), None) => CapacityRestriction::Range {
            min: quantity(&range.min)?,
            max: optional(&range.max)?,
            step: optional(&range.step)?,
        },
        (None, Some(values)) => {
            CapacityRestriction::Values(values.iter().map(quantity).collect::<Option<_>>()?)
        }
        (Some(_), Some(_)) => return None,
    };
    Some(CapacityPolicy { default: optional(&found.default)?, restriction })
}

fn counters(found: &BTreeMap<String, api::Counter>) -> Option<BTreeMap<String, Quantity>> {
    found.iter().map(|(name, counter)| Some((name.clone(), quantity(&counter.value)?))).collect()
}

fn counter_set(found: &api::CounterSet) -> Option<CounterSet> {
    Some(CounterSet { name: found.name.clone(), counters: counters(&found.counters)? })
}

fn consumption(found: &api::DeviceCounterConsumption) -> Option<CounterConsumption> {
    Some(CounterConsumption {
        counter_set: found.counter_set.clone(),
        counters: counters(&found.counters)?,
        compatibility_groups: found.compatibility_groups.clone().unwrap_or_default(),
    })
}

fn taint(found: &api::DeviceTaint) -> Option<Taint> {
    let effect = match found.effect.as_str() {
        "" => return None,
        "None" => TaintEffect::None,
        "NoSchedule" => TaintEffect::NoSchedule,
        "NoExecute" => TaintEffect::NoExecute,
        other => TaintEffect::Other(other.to_owned()),
    };
    Some(Taint { key: found.key.clone(), value: found.value.clone().unwrap_or_default(), effect })
}

#[cfg(test)]
mod tests;
