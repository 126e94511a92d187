//! `ResourceClaim` and `ResourceClaimTemplate`: the requests, with the API server's defaults and rules.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::cel::Cost;
use aliquot_core::dra::{
    Access, AllocationMode, ConstraintRule, DeviceConstraint, DeviceRequest, ExactRequest, OpaqueConfig,
    RequestConfig, RequestKind, SubRequest, Toleration,
};
use aliquot_core::offer::amounts::{AmountDoubt, doubt};
use aliquot_core::quantity::Quantity;

use super::ClaimSpec;
use super::field::{Context, Origin, Path, SelectorVerdict};
use super::meta::Version;
use super::name;
use super::toleration::tolerations;
use super::tree::{YamlNode, cut};

const REQUESTS_MAX: usize = 32;
const ALTERNATIVES_MAX: usize = 8;
const SELECTORS_MAX: usize = 32;
const CONSTRAINTS_MAX: usize = 32;
const CONFIG_MAX: usize = 32;
/// 10 KiB: longest CEL expression and longest opaque parameters that the API server takes.
const EXPRESSION_BYTES_MAX: usize = 10 * 1024;

/// Fields of `exactly`, of an alternative, and in `v1beta1` of the request itself.
const EXACT_FIELDS: &[&str] = &[
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
    "derivedAttributes",
];

/// The parts of an exact request as they are found.
#[derive(Default)]
struct ExactParts {
    device_class: Option<String>,
    class_at: Class,
    selectors: Vec<String>,
    mode: Option<String>,
    count: Option<i64>,
    access: Access,
    tolerations: Vec<Toleration>,
    capacity: BTreeMap<String, Quantity>,
    found: bool,
}

/// Whether `deviceClassName` is there, sound or not.
#[derive(Default, PartialEq, Eq)]
enum Class {
    #[default]
    Absent,
    Given,
}

/// Reads the `spec` of a claim or of a template's claim.
pub(super) fn spec(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>, version: Version) -> ClaimSpec {
    let mut spec = ClaimSpec::default();
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "devices" => devices(cx, &entry.value, &at, version, &mut spec),
            _ => cx.unknown(&at, &["devices"]),
        }
    }
    spec
}

fn devices(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>, version: Version, spec: &mut ClaimSpec) {
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        let value = &entry.value;
        match entry.key.as_ref() {
            "requests" => {
                spec.requests = cx.each(value, &at, REQUESTS_MAX, |cx, n, p| request(cx, n, p, version));
                unique(cx, &at, "request", spec.requests.iter().map(|r| r.name.as_str()));
            }
            "constraints" => spec.constraints = cx.each(value, &at, CONSTRAINTS_MAX, constraint),
            "config" => spec.config = cx.each(value, &at, CONFIG_MAX, request_config),
            _ => cx.unknown(&at, &["requests", "constraints", "config"]),
        }
    }
    references(cx, path, spec);
}

fn request(
    cx: &mut Context,
    node: &YamlNode<'_>,
    path: &Path<'_>,
    version: Version,
) -> Option<DeviceRequest> {
    let (mut name, mut exactly, mut alternatives) = (None, None, None);
    let mut flat = ExactParts::default();
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        let value = &entry.value;
        match (entry.key.as_ref(), version) {
            ("name", _) => name = name::label(cx, value, &at),
            ("exactly", Version::V1) => exactly = exact(cx, value, &at),
            ("firstAvailable", _) => alternatives = Some(first_available(cx, value, &at)),
            (_, Version::V1Beta1) => flat.take(cx, entry, path),
            (key, Version::V1) if EXACT_FIELDS.contains(&key) => {
                cx.error(&at, format!("belongs one level deeper since resource.k8s.io/v1: exactly.{key}"));
            }
            (_, Version::V1) => cx.unknown(&at, &["name", "exactly", "firstAvailable"]),
        }
    }
    let is_flat = flat.found;
    if is_flat {
        exactly = flat.finish(cx, path);
    } else if name.is_none() && node.get("name").is_none() {
        cx.required(path, "name", "a name that is unique in the claim");
    }
    let kind = match (exactly, alternatives) {
        (Some(exact), None) => RequestKind::Exactly(exact),
        (None, Some(list)) => RequestKind::FirstAvailable(list),
        (Some(_), Some(_)) => {
            cx.error(path, "has both exactly and firstAvailable; expected one of them");
            return None;
        }
        (None, None) => {
            if node.get("exactly").is_none() && !is_flat {
                cx.error(path, "has neither exactly nor firstAvailable; expected one of them");
            }
            return None;
        }
    };
    Some(DeviceRequest { name: name?, kind })
}

fn first_available(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Vec<SubRequest> {
    let list = cx.each(node, path, ALTERNATIVES_MAX, |cx, node, path| {
        let (mut name, mut parts) = (None, ExactParts::default());
        for entry in cx.entries(node, path) {
            let at = path.key(entry);
            match entry.key.as_ref() {
                "name" => name = name::label(cx, &entry.value, &at),
                "adminAccess" => cx.error(&at, "is not allowed in an alternative; ask with exactly instead"),
                _ => parts.take(cx, entry, path),
            }
        }
        if node.get("name").is_none() {
            cx.required(path, "name", "a name that is unique in the request");
        }
        let request = parts.finish(cx, path)?;
        Some(SubRequest { name: name?, request })
    });
    if list.is_empty() && cx.items(node, path).is_empty() {
        cx.error(path, "is empty; expected at least one alternative");
    }
    unique(cx, path, "alternative", list.iter().map(|s| s.name.as_str()));
    list
}

fn exact(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<ExactRequest> {
    let mut parts = ExactParts::default();
    for entry in cx.entries(node, path) {
        parts.take(cx, entry, path);
    }
    parts.finish(cx, path)
}

// === impl ExactParts ===

impl ExactParts {
    fn take(&mut self, cx: &mut Context, entry: &super::tree::MapEntry<'_>, path: &Path<'_>) {
        self.found = true;
        let at = path.key(entry);
        let value = &entry.value;
        match entry.key.as_ref() {
            "deviceClassName" => {
                self.class_at = Class::Given;
                self.device_class = name::subdomain(cx, value, &at);
            }
            "selectors" => self.selectors = selectors(cx, value, &at),
            // An empty word is as good as none: the server puts its default there.
            "allocationMode" => self.mode = cx.string(value, &at).filter(|mode| !mode.is_empty()),
            "count" => self.count = cx.integer(value, &at),
            "adminAccess" if cx.boolean(value, &at) == Some(true) => self.access = Access::Admin,
            "adminAccess" => {}
            "tolerations" => self.tolerations = tolerations(cx, value, &at),
            "capacity" => self.capacity = capacity(cx, value, &at),
            "derivedAttributes" => {
                cx.without_effect(&at, "derived attributes are of a later API version (alpha in 1.37)");
            }
            _ => cx.unknown(&at, EXACT_FIELDS),
        }
    }

    fn finish(self, cx: &mut Context, path: &Path<'_>) -> Option<ExactRequest> {
        let mode = self.mode(cx, path)?;
        let Some(device_class) = self.device_class else {
            if self.class_at == Class::Given {
                return None;
            }
            if self.found {
                cx.required(path, "deviceClassName", "the name of a DeviceClass");
            } else {
                cx.error(path, "is empty; expected deviceClassName and what else is wanted");
            }
            return None;
        };
        Some(ExactRequest {
            device_class,
            selectors: self.selectors,
            mode,
            access: self.access,
            tolerations: self.tolerations,
            capacity: self.capacity,
        })
    }

    fn mode(&self, cx: &mut Context, path: &Path<'_>) -> Option<AllocationMode> {
        match (self.mode.as_deref(), self.count) {
            (None | Some("ExactCount"), None) => Some(AllocationMode::ExactCount(1)),
            (None | Some("ExactCount"), Some(count)) => match u32::try_from(count) {
                Ok(count) if count > 0 => Some(AllocationMode::ExactCount(count)),
                _ => {
                    let expected = if count > 0 { "a count that fits in 32 bits" } else { "1 or more" };
                    cx.rule(&path.missing("count"), format!("found {count}, expected {expected}"));
                    // The server stores 0 as 1. More than 32 devices are refused, however many.
                    Some(AllocationMode::ExactCount(if count > 0 { u32::MAX } else { 1 }))
                }
            },
            (Some("All"), None | Some(0)) => Some(AllocationMode::All),
            (Some("All"), Some(count)) => {
                let message = format!("found {count}, expected no count: allocationMode is All");
                cx.error(&path.missing("count"), message);
                None
            }
            (Some(other), _) => {
                let at = path.missing("allocationMode");
                cx.error(&at, format!("found \"{other}\", expected ExactCount or All"));
                None
            }
        }
    }
}

/// `selectors`: CEL expressions.
pub(super) fn selectors(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Vec<String> {
    cx.each(node, path, SELECTORS_MAX, |cx, node, path| {
        let mut expression = None;
        for entry in cx.entries(node, path) {
            let at = path.key(entry);
            match entry.key.as_ref() {
                "cel" => expression = cel(cx, &entry.value, &at),
                _ => cx.unknown(&at, &["cel"]),
            }
        }
        if node.get("cel").is_none() {
            cx.required(path, "cel", "expression: …");
        }
        expression
    })
}

/// What to say of a selector that compiles and is not stored.
fn too_costly(text: &str, cost: Cost) -> String {
    let found = match cost {
        Cost(cost) if Cost(cost) < Cost::UNBOUNDED => format!("an estimated cost of {cost}"),
        _ => "an estimated cost without a bound".to_owned(),
    };
    format!(
        "`{}` may cost too much on a device: found {found}, expected at most {}; compare attributes as they are, and leave \
         out walks within walks (exists, all, map) and functions of texts that other functions make",
        cut(text),
        Cost::MAX.0
    )
}

fn cel(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<String> {
    let mut expression = None;
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "expression" => expression = cx.string(&entry.value, &at),
            _ => cx.unknown(&at, &["expression"]),
        }
    }
    let at = path.missing("expression");
    match &expression {
        None if node.get("expression").is_none() => {
            cx.error(&at, "is missing; expected a CEL expression such as device.driver == \"aliquot.dev\"");
        }
        Some(text) if text.len() > EXPRESSION_BYTES_MAX => {
            let bytes = text.len();
            cx.rule(&at, format!("is {bytes} bytes long; at most {EXPRESSION_BYTES_MAX} are allowed"));
        }
        Some(text) => match cx.selector_verdict(text) {
            SelectorVerdict::Sound => {}
            SelectorVerdict::NeedsLists(_) if cx.origin == Origin::Dump => {}
            SelectorVerdict::NeedsLists(fault) => {
                let gate =
                    "compiles only on servers with the gate DRAListTypeAttributes (alpha, off by default)";
                cx.warn(&at, format!("{gate}: {fault}"));
            }
            SelectorVerdict::Faulty(fault) => cx.rule(&at, format!("does not compile: {fault}")),
            SelectorVerdict::TooCostly(cost) => cx.rule(&at, too_costly(text, cost)),
        },
        None => {}
    }
    expression
}

pub(super) fn capacity(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> BTreeMap<String, Quantity> {
    let mut capacity = BTreeMap::new();
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "requests" => {
                for entry in cx.entries(&entry.value, &at) {
                    let at = at.key(entry);
                    name::qualified(cx, &entry.key, &at);
                    if let Some(size) = cx.quantity(&entry.value, &at) {
                        requested_size(cx, &at, &entry.key, size);
                        capacity.insert(entry.key.to_string(), size);
                    }
                }
            }
            _ => cx.unknown(&at, &["requests"]),
        }
    }
    capacity
}

/// Sizes are not negative, and meant as they are written. A part of a byte or of a percent is an error: the API server lets it pass
/// and the scheduler rounds it up. Less memory than a share has is a warning.
fn requested_size(cx: &mut Context, path: &Path<'_>, key: &str, size: Quantity) {
    if size.nanos() < 0 {
        cx.rule(path, format!("found {size}, expected a size of 0 or more"));
    }
    match doubt(key, size) {
        None => {}
        Some(doubt @ AmountDoubt::MemoryBelowLeast(_)) => cx.warn(path, doubt.to_string()),
        Some(doubt @ (AmountDoubt::PartOfByte(_) | AmountDoubt::PartOfPercent(_))) => {
            cx.rule(path, doubt.to_string());
        }
    }
}

fn constraint(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<DeviceConstraint> {
    let (mut requests, mut same, mut distinct) = (Vec::new(), None, None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "requests" => requests = cx.strings(&entry.value, &at, REQUESTS_MAX),
            "matchAttribute" => same = attribute(cx, &entry.value, &at),
            "distinctAttribute" => distinct = attribute(cx, &entry.value, &at),
            _ => cx.unknown(&at, &["requests", "matchAttribute", "distinctAttribute"]),
        }
    }
    let rule = match (same, distinct) {
        (Some(attribute), None) => ConstraintRule::Match(attribute),
        (None, Some(attribute)) => ConstraintRule::Distinct(attribute),
        (Some(_), Some(_)) => {
            cx.error(path, "has both matchAttribute and distinctAttribute; expected one of them");
            return None;
        }
        (None, None) => {
            if node.get("matchAttribute").is_none() && node.get("distinctAttribute").is_none() {
                cx.error(path, "has no rule; expected matchAttribute or distinctAttribute");
            }
            return None;
        }
    };
    Some(DeviceConstraint { requests, rule })
}

fn attribute(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<String> {
    let text = cx.string(node, path)?;
    if !text.contains('/') {
        let message = format!("found \"{text}\", expected a qualified name such as aliquot.dev/{text}");
        cx.error(path, message);
        return None;
    }
    name::qualified(cx, &text, path);
    Some(text)
}

fn request_config(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<RequestConfig> {
    let (mut requests, mut opaque_config) = (Vec::new(), None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "requests" => requests = cx.strings(&entry.value, &at, REQUESTS_MAX),
            "opaque" => opaque_config = opaque(cx, &entry.value, &at),
            _ => cx.unknown(&at, &["requests", "opaque"]),
        }
    }
    if node.get("opaque").is_none() {
        cx.required(path, "opaque", "driver and parameters");
    }
    Some(RequestConfig { requests, opaque: opaque_config? })
}

/// `opaque`: a driver's name and its parameters as compact JSON.
pub(super) fn opaque(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<OpaqueConfig> {
    let (mut driver, mut parameters) = (None, None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "driver" => driver = name::driver(cx, &entry.value, &at),
            "parameters" => parameters = super::json::object(cx, &entry.value, &at),
            _ => cx.unknown(&at, &["driver", "parameters"]),
        }
    }
    if node.get("driver").is_none() {
        cx.required(path, "driver", "the name of the driver that understands the parameters");
    }
    if node.get("parameters").is_none() {
        cx.required(path, "parameters", "an object");
    }
    let parameters = parameters?;
    let bytes = sent_bytes(&parameters);
    if bytes > EXPRESSION_BYTES_MAX {
        let at = path.missing("parameters");
        cx.rule(&at, format!("is {bytes} bytes of JSON; at most {EXPRESSION_BYTES_MAX} are allowed"));
    }
    let config = OpaqueConfig { driver: driver?, parameters };
    // The API server does not validate it, and the preparation of the claim would fail.
    if let Some(fault) = crate::prepare::fault(&config) {
        cx.rule(&path.missing("parameters"), fault);
    }
    Some(config)
}

/// Bytes of compact JSON as `kubectl` sends it, which escapes some characters.
fn sent_bytes(json: &str) -> usize {
    let sent = |character: char| match character {
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => "\\u0000".len(),
        other => other.len_utf8(),
    };
    json.chars().map(sent).sum()
}

/// No name may stand twice.
pub(super) fn unique<'n>(
    cx: &mut Context,
    path: &Path<'_>,
    what: &str,
    names: impl Iterator<Item = &'n str>,
) {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            cx.error(path, format!("the {what} name \"{name}\" appears twice; names must be unique"));
        }
    }
}

/// What constraints and configuration name must exist: a request, or an alternative as `request/alternative`.
fn references(cx: &mut Context, path: &Path<'_>, spec: &ClaimSpec) {
    let constraints = spec.constraints.iter().enumerate().map(|(i, c)| ("constraints", i, &c.requests));
    let config = spec.config.iter().enumerate().map(|(i, c)| ("config", i, &c.requests));
    for (list, index, names) in constraints.chain(config) {
        let at = path.missing(list);
        let at = at.missing_item(index);
        let at = at.missing("requests");
        unique(cx, &at, "request", names.iter().map(String::as_str));
        for name in names {
            if !exists(&spec.requests, name) {
                let known: Vec<&str> = spec.requests.iter().map(|r| r.name.as_str()).collect();
                let known = known.join(", ");
                let message = format!("found \"{name}\", which is no request of this claim; it has {known}");
                cx.error(&at, message);
            }
        }
    }
}

fn exists(requests: &[DeviceRequest], name: &str) -> bool {
    let (request, alternative) = match name.split_once('/') {
        Some((request, alternative)) => (request, Some(alternative)),
        None => (name, None),
    };
    let Some(found) = requests.iter().find(|r| r.name == request) else { return false };
    match (alternative, &found.kind) {
        (None, _) => true,
        (Some(alternative), RequestKind::FirstAvailable(list)) => list.iter().any(|s| s.name == alternative),
        (Some(_), RequestKind::Exactly(_)) => false,
    }
}
