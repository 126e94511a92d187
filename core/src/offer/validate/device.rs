//! What is checked in one device.

use std::collections::BTreeSet;

use super::counters::check_counters;
use super::names;
use super::report::{Fault, SliceReport};
use crate::dra::{AttributeValue, CapacityRestriction, Device, TaintEffect};
use crate::id::is_dns_label;
use crate::rounding::policy_problems;

/// Attributes and capacities of a device together.
const PROPERTIES_MAX: usize = 32;
/// Values of all attributes of a device, members of lists counted one by one.
const VALUES_MAX: usize = 48;
/// Longest text or version.
const TEXT_MAX: usize = 64;
/// Counter sets that a device takes from.
const CONSUMES_MAX: usize = 2;
/// Taints of a device.
const TAINTS_MAX: usize = 16;
/// Binding conditions, and binding failure conditions.
const CONDITIONS_MAX: usize = 4;

pub(super) fn check(device: &Device, path: &str, report: &mut SliceReport) {
    report.form(format!("{path}.name"), &device.name, is_dns_label, names::LABEL);
    report.at_most(path, device.attributes.len() + device.capacity.len(), PROPERTIES_MAX);
    let values = device.attributes.values().map(|value| value.members().unwrap_or(1)).sum();
    report.at_most(format!("{path}.attributes"), values, VALUES_MAX);
    for (name, value) in device.attributes.iter() {
        let path = format!("{path}.attributes[{name}]");
        report.form(&path, name, names::is_qualified, names::QUALIFIED);
        check_value(value, &path, report);
    }
    for (name, capacity) in &device.capacity {
        let path = format!("{path}.capacity[{name}]");
        report.form(&path, name, names::is_qualified, names::QUALIFIED);
        if let Some(policy) = &capacity.policy
            && let CapacityRestriction::Values(values) = &policy.restriction
            && values.is_empty()
        {
            report.add(format!("{path}.requestPolicy.validValues"), Fault::Missing("at least one value"));
        }
        for problem in policy_problems(capacity, device.sharing) {
            report.add(format!("{path}.{}", problem.field), Fault::Policy(problem.fault.to_string()));
        }
    }
    check_consumes(device, path, report);
    report.at_most(format!("{path}.taints"), device.taints.len(), TAINTS_MAX);
    for (index, taint) in device.taints.iter().enumerate() {
        let path = format!("{path}.taints[{index}]");
        report.form(format!("{path}.key"), &taint.key, names::is_label_name, names::LABEL_NAME);
        report.form(format!("{path}.value"), &taint.value, names::is_label_value, names::LABEL_VALUE);
        if let TaintEffect::Other(found) = &taint.effect {
            let expected = "NoSchedule, NoExecute or None";
            report.add(format!("{path}.effect"), Fault::Form { found: found.clone(), expected });
        }
    }
    check_conditions(device, path, report);
}

fn check_value(value: &AttributeValue, path: &str, report: &mut SliceReport) {
    let short = |text: &str| text.len() <= TEXT_MAX;
    let version = |text: &str| text.len() <= TEXT_MAX && names::is_semantic_version(text);
    match value {
        AttributeValue::String(text) => report.form(path, text, short, "at most 64 bytes"),
        AttributeValue::Version(text) => {
            report.form(path, text, version, "a semantic version of at most 64 bytes");
        }
        AttributeValue::Strings(list) => {
            list.iter().for_each(|text| report.form(path, text, short, "at most 64 bytes"));
        }
        AttributeValue::Versions(list) => {
            list.iter()
                .for_each(|text| report.form(path, text, version, "a semantic version of at most 64 bytes"));
        }
        AttributeValue::Int(_)
        | AttributeValue::Bool(_)
        | AttributeValue::Ints(_)
        | AttributeValue::Bools(_) => {}
    }
    if value.members() == Some(0) {
        report.add(path, Fault::Missing("at least one member"));
    }
}

fn check_consumes(device: &Device, path: &str, report: &mut SliceReport) {
    report.at_most(format!("{path}.consumesCounters"), device.consumes.len(), CONSUMES_MAX);
    let set_path = |index: usize| format!("{path}.consumesCounters[{index}].counterSet");
    report.unique(set_path, device.consumes.iter().map(|consumption| consumption.counter_set.as_str()));
    for (index, consumption) in device.consumes.iter().enumerate() {
        report.form(set_path(index), &consumption.counter_set, is_dns_label, names::LABEL);
        check_counters(&consumption.counters, &format!("{path}.consumesCounters[{index}].counters"), report);
    }
}

fn check_conditions(device: &Device, path: &str, report: &mut SliceReport) {
    let (wanted, failed) = (&device.binding_conditions, &device.binding_failure_conditions);
    for (name, list) in [("bindingConditions", wanted), ("bindingFailureConditions", failed)] {
        report.at_most(format!("{path}.{name}"), list.len(), CONDITIONS_MAX);
        report.unique(|index| format!("{path}.{name}[{index}]"), list.iter().map(String::as_str));
        for (index, condition) in list.iter().enumerate() {
            report.form(
                format!("{path}.{name}[{index}]"),
                condition,
                names::is_label_name,
                names::LABEL_NAME,
            );
        }
    }
    match (wanted.is_empty(), failed.is_empty()) {
        (false, true) => {
            report.add(
                format!("{path}.bindingFailureConditions"),
                Fault::Missing("one for the binding conditions"),
            );
        }
        (true, false) => {
            report.add(
                format!("{path}.bindingConditions"),
                Fault::Missing("one for the binding failure conditions"),
            );
        }
        (true, true) | (false, false) => {}
    }
    let wanted: BTreeSet<&String> = wanted.iter().collect();
    for condition in failed.iter().filter(|condition| wanted.contains(condition)) {
        let fault = Fault::Duplicate(format!("{condition} among the binding conditions and here"));
        report.add(format!("{path}.bindingFailureConditions"), fault);
    }
}
