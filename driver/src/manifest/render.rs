//! Values → the API's own form: JSON, and YAML as `kubectl` prints it (keys in order, nothing empty).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use aliquot_core::dra::{
    Access, AllocatedConfig, AllocationMode, AllocationResult, AttributeValue, CapacityRestriction,
    ConfigSource, ConstraintRule, CounterConsumption, CounterSet, Device, DeviceCapacity, DeviceClass,
    DeviceRequest, DeviceResult, ExactRequest, NodeRequirement, NodeSelection, NodeSelector, OpaqueConfig,
    RequestKind, ResourceClaim, ResourceSlice, SelectorOperator, Sharing, Taint, TaintEffect, Toleration,
    TolerationOperator,
};
use aliquot_core::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::{ClaimSpec, ClaimTemplate, made_up_uid};

const API: &str = "resource.k8s.io/v1";

/// An object of the device API, to be rendered.
#[derive(Clone, Copy, Debug)]
pub enum Object<'a> {
    /// A claim, with its allocation where it has one.
    Claim(&'a ResourceClaim),
    /// A template of claims.
    Template(&'a ClaimTemplate),
    /// A class.
    Class(&'a DeviceClass),
    /// A slice.
    Slice(&'a ResourceSlice),
}

/// A map under construction that leaves out empty values.
#[derive(Default)]
struct MapBuilder(Map<String, Value>);

// === impl Object ===

impl Object<'_> {
    /// The object as the API writes it.
    #[must_use]
    pub fn json(&self) -> Value {
        match self {
            Self::Claim(claim) => claim_json(claim),
            Self::Template(template) => template_json(template),
            Self::Class(class) => class_json(class),
            Self::Slice(slice) => slice_json(slice),
        }
    }
}

// === impl MapBuilder ===

impl MapBuilder {
    fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Sets unless the value is empty: no items, no keys, no text, null.
    fn some(self, key: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        let empty = match &value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::String(text) => text.is_empty(),
            Value::Bool(_) | Value::Number(_) => false,
        };
        if empty { self } else { self.set(key, value) }
    }

    fn done(self) -> Value {
        Value::Object(self.0)
    }
}

fn list<'t, T: 't>(items: impl IntoIterator<Item = &'t T>, render: impl Fn(&T) -> Value) -> Value {
    items.into_iter().map(render).collect()
}

fn object(kind: &str, metadata: MapBuilder) -> MapBuilder {
    MapBuilder::default().set("apiVersion", API).set("kind", kind).set("metadata", metadata.done())
}

fn claim_json(claim: &ResourceClaim) -> Value {
    let mut metadata =
        MapBuilder::default().set("name", claim.name.as_str()).set("namespace", claim.namespace.as_str());
    if claim.uid != made_up_uid(&claim.namespace, &claim.name) {
        metadata = metadata.set("uid", claim.uid.as_str());
    }
    let spec = spec_json(&claim.requests, &claim.constraints, &claim.config);
    let status = claim.allocation.as_ref().map(|a| json!({ "allocation": allocation_json(a) }));
    object("ResourceClaim", metadata).set("spec", spec).some("status", status.unwrap_or_default()).done()
}

fn template_json(template: &ClaimTemplate) -> Value {
    let metadata = MapBuilder::default()
        .set("name", template.name.as_str())
        .set("namespace", template.namespace.as_str());
    let ClaimSpec { requests, constraints, config } = &template.spec;
    let spec = json!({ "spec": spec_json(requests, constraints, config) });
    object("ResourceClaimTemplate", metadata).set("spec", spec).done()
}

fn spec_json(
    requests: &[DeviceRequest],
    constraints: &[aliquot_core::dra::DeviceConstraint],
    config: &[aliquot_core::dra::RequestConfig],
) -> Value {
    let constraints = list(constraints, |constraint| {
        let fields = MapBuilder::default().some("requests", constraint.requests.clone());
        match &constraint.rule {
            ConstraintRule::Match(attribute) => fields.set("matchAttribute", attribute.as_str()),
            ConstraintRule::Distinct(attribute) => fields.set("distinctAttribute", attribute.as_str()),
        }
        .done()
    });
    let config = list(config, |config| {
        MapBuilder::default()
            .some("requests", config.requests.clone())
            .set("opaque", opaque_json(&config.opaque))
            .done()
    });
    let devices = MapBuilder::default()
        .some("requests", list(requests, request_json))
        .some("constraints", constraints)
        .some("config", config);
    MapBuilder::default().some("devices", devices.done()).done()
}

fn request_json(request: &DeviceRequest) -> Value {
    let fields = MapBuilder::default().set("name", request.name.as_str());
    match &request.kind {
        RequestKind::Exactly(exact) => fields.set("exactly", exact_fields(exact).done()),
        RequestKind::FirstAvailable(alternatives) => fields.set(
            "firstAvailable",
            list(alternatives, |sub| exact_fields(&sub.request).set("name", sub.name.as_str()).done()),
        ),
    }
    .done()
}

fn exact_fields(exact: &ExactRequest) -> MapBuilder {
    let fields = MapBuilder::default()
        .set("deviceClassName", exact.device_class.as_str())
        .some("selectors", selectors_json(&exact.selectors))
        .some("tolerations", list(&exact.tolerations, toleration_json));
    let fields = match exact.mode {
        AllocationMode::ExactCount(count) => fields.set("allocationMode", "ExactCount").set("count", count),
        AllocationMode::All => fields.set("allocationMode", "All"),
    };
    let fields = match exact.access {
        Access::Normal => fields,
        Access::Admin => fields.set("adminAccess", true),
    };
    if exact.capacity.is_empty() {
        return fields;
    }
    fields.set("capacity", json!({ "requests": quantities_json(&exact.capacity) }))
}

fn selectors_json(selectors: &[String]) -> Value {
    list(selectors, |expression| json!({ "cel": { "expression": expression } }))
}

fn toleration_json(toleration: &Toleration) -> Value {
    let fields = MapBuilder::default().some("key", toleration.key.clone());
    let fields = match &toleration.operator {
        TolerationOperator::Exists => fields.set("operator", "Exists"),
        TolerationOperator::Equal(value) => fields.set("operator", "Equal").some("value", value.as_str()),
    };
    fields
        .some("effect", toleration.effect.as_ref().map(effect_text))
        .some("tolerationSeconds", toleration.seconds)
        .done()
}

fn effect_text(effect: &TaintEffect) -> &str {
    match effect {
        TaintEffect::None => "None",
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::NoExecute => "NoExecute",
        TaintEffect::Other(other) => other,
    }
}

fn opaque_json(opaque: &OpaqueConfig) -> Value {
    // Parameters that are no JSON cannot come from the reader; shown as text they are refused by any server.
    let parameters = serde_json::from_str(&opaque.parameters)
        .unwrap_or_else(|_: serde_json::Error| Value::from(opaque.parameters.as_str()));
    json!({ "driver": opaque.driver, "parameters": parameters })
}

fn quantities_json(quantities: &BTreeMap<String, Quantity>) -> Value {
    let entries = quantities.iter().map(|(name, quantity)| (name.clone(), quantity.to_string().into()));
    Value::Object(entries.collect())
}

fn class_json(class: &DeviceClass) -> Value {
    let annotations: Map<String, Value> =
        class.annotations.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
    let metadata = MapBuilder::default().set("name", class.name.as_str()).some("annotations", annotations);
    let spec = MapBuilder::default()
        .some("selectors", selectors_json(&class.selectors))
        .some("config", list(&class.config, |c| json!({ "opaque": opaque_json(c) })))
        .some("extendedResourceName", class.extended_resource_name.clone());
    let spec = match class.extended_resource_capacity.is_empty() {
        true => spec,
        false => spec.set(
            "extendedResourceCapacityRequests",
            json!({ "requests": quantities_json(&class.extended_resource_capacity) }),
        ),
    };
    object("DeviceClass", metadata).set("spec", spec.done()).done()
}

fn slice_json(slice: &ResourceSlice) -> Value {
    let pool = json!({
        "name": slice.pool.name,
        "generation": slice.pool.generation,
        "resourceSliceCount": slice.pool.slice_count,
    });
    let spec = MapBuilder::default().set("driver", slice.driver.as_str()).set("pool", pool);
    let spec = selection_fields(spec, &slice.node)
        .some("devices", list(&slice.devices, device_json))
        .some("sharedCounters", list(&slice.shared_counters, counter_set_json));
    let metadata = MapBuilder::default().set("name", slice.name.as_str());
    object("ResourceSlice", metadata).set("spec", spec.done()).done()
}

fn selection_fields(fields: MapBuilder, selection: &NodeSelection) -> MapBuilder {
    match selection {
        NodeSelection::Name(name) => fields.set("nodeName", name.as_str()),
        NodeSelection::Selector(selector) => fields.set("nodeSelector", selector_json(selector)),
        NodeSelection::All => fields.set("allNodes", true),
        NodeSelection::PerDevice => fields.set("perDeviceNodeSelection", true),
    }
}

fn selector_json(selector: &NodeSelector) -> Value {
    let terms = list(&selector.terms, |term| {
        MapBuilder::default()
            .some("matchExpressions", list(&term.expressions, requirement_json))
            .some("matchFields", list(&term.fields, requirement_json))
            .done()
    });
    json!({ "nodeSelectorTerms": terms })
}

fn requirement_json(requirement: &NodeRequirement) -> Value {
    let operator = match requirement.operator {
        SelectorOperator::In => "In",
        SelectorOperator::NotIn => "NotIn",
        SelectorOperator::Exists => "Exists",
        SelectorOperator::DoesNotExist => "DoesNotExist",
        SelectorOperator::Gt => "Gt",
        SelectorOperator::Lt => "Lt",
    };
    MapBuilder::default()
        .set("key", requirement.key.as_str())
        .set("operator", operator)
        .some("values", requirement.values.clone())
        .done()
}

fn device_json(device: &Device) -> Value {
    let attributes: Map<String, Value> =
        device.attributes.iter().map(|(k, v)| (k.clone(), attribute_json(v))).collect();
    let capacity: Map<String, Value> =
        device.capacity.iter().map(|(k, v)| (k.clone(), capacity_json(v))).collect();
    let mut fields = MapBuilder::default()
        .set("name", device.name.as_str())
        .some("attributes", attributes)
        .some("capacity", capacity)
        .some("consumesCounters", list(&device.consumes, consumption_json))
        .some("taints", list(&device.taints, taint_json))
        .some("bindingConditions", device.binding_conditions.clone())
        .some("bindingFailureConditions", device.binding_failure_conditions.clone());
    if let Some(selection) = &device.node {
        fields = selection_fields(fields, selection);
    }
    if device.binds_to_node {
        fields = fields.set("bindsToNode", true);
    }
    match device.sharing {
        Sharing::Exclusive => fields,
        Sharing::Shareable => fields.set("allowMultipleAllocations", true),
    }
    .done()
}

fn attribute_json(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::Int(value) => json!({ "int": value }),
        AttributeValue::Bool(value) => json!({ "bool": value }),
        AttributeValue::String(value) => json!({ "string": value }),
        AttributeValue::Version(value) => json!({ "version": value }),
        AttributeValue::Ints(values) => json!({ "ints": values }),
        AttributeValue::Bools(values) => json!({ "bools": values }),
        AttributeValue::Strings(values) => json!({ "strings": values }),
        AttributeValue::Versions(values) => json!({ "versions": values }),
    }
}

fn capacity_json(capacity: &DeviceCapacity) -> Value {
    let text = |quantity: &Quantity| quantity.to_string();
    let policy = capacity.policy.as_ref().map(|policy| {
        let fields = MapBuilder::default().some("default", policy.default.as_ref().map(text));
        match &policy.restriction {
            CapacityRestriction::None => fields,
            CapacityRestriction::Range { min, max, step } => fields.set(
                "validRange",
                MapBuilder::default()
                    .set("min", text(min))
                    .some("max", max.as_ref().map(text))
                    .some("step", step.as_ref().map(text))
                    .done(),
            ),
            CapacityRestriction::Values(values) => {
                fields.set("validValues", list(values, |v| text(v).into()))
            }
        }
        .done()
    });
    let fields = MapBuilder::default().set("value", text(&capacity.value));
    match policy {
        Some(policy) => fields.set("requestPolicy", policy).done(),
        None => fields.done(),
    }
}

fn counter_set_json(set: &CounterSet) -> Value {
    json!({ "name": set.name, "counters": counters_json(&set.counters) })
}

fn consumption_json(consumption: &CounterConsumption) -> Value {
    let CounterConsumption { counter_set, counters, compatibility_groups: groups } = consumption;
    let fields = MapBuilder::default().set("counterSet", counter_set.as_str());
    fields.set("counters", counters_json(counters)).some("compatibilityGroups", groups.as_slice()).done()
}

fn counters_json(counters: &BTreeMap<String, Quantity>) -> Value {
    let entry = |(name, value): (&String, &Quantity)| (name.clone(), json!({ "value": value.to_string() }));
    Value::Object(counters.iter().map(entry).collect())
}

fn taint_json(taint: &Taint) -> Value {
    MapBuilder::default()
        .set("key", taint.key.as_str())
        .some("value", taint.value.as_str())
        .set("effect", effect_text(&taint.effect))
        .done()
}

/// An allocation as `status.allocation` has it.
#[must_use]
pub fn allocation_json(allocation: &AllocationResult) -> Value {
    let devices = MapBuilder::default()
        .some("results", list(&allocation.devices, result_json))
        .some("config", list(&allocation.config, allocated_config_json));
    MapBuilder::default()
        .some("devices", devices.done())
        .some("nodeSelector", allocation.node_selector.as_ref().map(selector_json).unwrap_or_default())
        .done()
}

fn result_json(result: &DeviceResult) -> Value {
    let fields = MapBuilder::default()
        .set("request", result.request.as_str())
        .set("driver", result.device.driver.as_str())
        .set("pool", result.device.pool.as_str())
        .set("device", result.device.device.as_str())
        .some("tolerations", list(&result.tolerations, toleration_json))
        .some("bindingConditions", result.binding_conditions.clone())
        .some("bindingFailureConditions", result.binding_failure_conditions.clone())
        .some("shareID", result.share_id.as_ref().map(|id| id.0.clone()))
        .some("consumedCapacity", quantities_json(&result.consumed_capacity));
    match result.access {
        Access::Normal => fields,
        Access::Admin => fields.set("adminAccess", true),
    }
    .done()
}

fn allocated_config_json(config: &AllocatedConfig) -> Value {
    let source = match config.source {
        ConfigSource::Class => "FromClass",
        ConfigSource::Claim => "FromClaim",
    };
    MapBuilder::default()
        .set("source", source)
        .some("requests", config.requests.clone())
        .set("opaque", opaque_json(&config.opaque))
        .done()
}

/// A value as one YAML document, without `---`.
#[must_use]
pub fn yaml_document(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => yaml_map(fields, 0, &mut out),
        Value::Array(items) if !items.is_empty() => yaml_list(items, 0, &mut out),
        other => {
            yaml_scalar(other, &mut out);
            out.push('\n');
        }
    }
    out
}

/// Writes the fields of a map; the first stands where the text already is.
fn yaml_map(fields: &Map<String, Value>, depth: usize, out: &mut String) {
    for (index, (key, value)) in fields.iter().enumerate() {
        if index > 0 {
            indent(depth, out);
        }
        yaml_text(key, out);
        out.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push('\n');
                indent(depth + 1, out);
                yaml_map(inner, depth + 1, out);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                indent(depth, out);
                yaml_list(items, depth, out);
            }
            other => {
                out.push(' ');
                yaml_scalar(other, out);
                out.push('\n');
            }
        }
    }
}

fn yaml_list(items: &[Value], depth: usize, out: &mut String) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            indent(depth, out);
        }
        out.push_str("- ");
        match item {
            Value::Object(fields) if !fields.is_empty() => yaml_map(fields, depth + 1, out),
            Value::Array(items) if !items.is_empty() => yaml_list(items, depth + 1, out),
            other => {
                yaml_scalar(other, out);
                out.push('\n');
            }
        }
    }
}

fn indent(depth: usize, out: &mut String) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

fn yaml_scalar(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => yaml_text(text, out),
        other => out.push_str(&other.to_string()),
    }
}

/// Text stays plain only where no reader of any YAML version could take it for something else.
fn yaml_text(text: &str, out: &mut String) {
    const WORDS: [&str; 10] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan"];
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '_' | '-');
    let digits_then_letters = text.bytes().next().is_some_and(|b| b.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_alphanumeric())
        && text.ends_with(['i', 'G', 'M', 'k'])
        && !text.starts_with("0");
    let word = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
    let safe = (word || digits_then_letters)
        && text.chars().all(plain)
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if safe {
        out.push_str(text);
        return;
    }
    if text.chars().all(|c| matches!(c, ' '..='~')) {
        out.push('\'');
        out.push_str(&text.replace('\'', "''"));
        out.push('\'');
        return;
    }
    out.push('"');
    for c in text.chars() {
        let written = match c {
            '"' => out.write_str("\\\""),
            '\\' => out.write_str("\\\\"),
            '\n' => out.write_str("\\n"),
            '\t' => out.write_str("\\t"),
            ' '..='~' => out.write_char(c),
            c if c.is_alphanumeric() => out.write_char(c),
            c => write!(out, "\\U{:08X}", u32::from(c)),
        };
        debug_assert!(written.is_ok(), "writing to a String does not fail");
    }
    out.push('"');
}
