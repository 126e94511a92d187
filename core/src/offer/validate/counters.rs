//! Counter sets of a slice, and what devices draw on them.

use std::collections::BTreeMap;

use super::names;
use super::report::{Fault, SliceReport};
use crate::dra::CounterSet;
use crate::id::is_dns_label;
use crate::quantity::Quantity;

/// Counter sets of a slice.
const COUNTER_SETS_MAX: usize = 8;

/// Counters of a set, and of what a device takes from one.
const COUNTERS_MAX: usize = 32;

pub(super) fn check_counter_sets(sets: &[CounterSet], report: &mut SliceReport) {
    report.at_most("spec.sharedCounters", sets.len(), COUNTER_SETS_MAX);
    report.unique(
        |index| format!("spec.sharedCounters[{index}].name"),
        sets.iter().map(|set| set.name.as_str()),
    );
    for (index, set) in sets.iter().enumerate() {
        let path = format!("spec.sharedCounters[{index}]");
        report.form(format!("{path}.name"), &set.name, is_dns_label, names::LABEL);
        check_counters(&set.counters, &format!("{path}.counters"), report);
    }
}

pub(super) fn check_counters(counters: &BTreeMap<String, Quantity>, path: &str, report: &mut SliceReport) {
    if counters.is_empty() {
        report.add(path, Fault::Missing("at least one counter"));
    }
    report.at_most(path, counters.len(), COUNTERS_MAX);
    for name in counters.keys() {
        report.form(format!("{path}[{name}]"), name, is_dns_label, names::LABEL);
    }
}
