//! The rules of the CDI format that its shape does not express.
//!
//! Names are right by their types. What is left: the version suffices, there are devices, their names differ, each
//! has edits, and each edit is one that a runtime accepts. All broken rules are found at once, in the order of the
//! file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::spec::{ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec};
use crate::version::{lowest, needs};

/// Longest sum of all annotation keys and values of one object, in bytes.
pub const ANNOTATIONS_BYTES_MAX: usize = 256 << 10;
/// Longest class of service name in bytes, exclusive: a Linux path.
const CLOS_ID_BYTES_LIMIT: usize = 4096;
/// Hooks that the OCI runtime specification knows.
const HOOK_NAMES: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The field, as a path from the root: `devices[0].containerEdits.env[1]`.
    pub field: String,
    /// What is there.
    pub found: String,
    /// What the format wants there.
    pub expected: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}, expected {}", self.field, self.found, self.expected)
    }
}

/// All broken rules of a spec; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    problems: Vec<Problem>,
}

impl Invalid {
    /// The broken rules in the order of the file.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for Invalid {}

/// Checks `spec` against the rules of the format.
///
/// # Errors
/// [`Invalid`] with every broken rule.
pub fn validate(spec: &Spec) -> Result<(), Invalid> {
    let mut report = Report::default();
    report.version(spec);
    report.annotations("annotations", &spec.annotations);
    if spec.devices.is_empty() {
        report.add("devices", "none", "at least one device");
    }
    let mut names = BTreeSet::new();
    for (index, device) in spec.devices.iter().enumerate() {
        let at = format!("devices[{index}]");
        if !names.insert(&device.name) {
            report.add(
                format!("{at}.name"),
                format!("{:?} again", device.name.as_str()),
                "a name of its own",
            );
        }
        report.annotations(&format!("{at}.annotations"), &device.annotations);
        let at = format!("{at}.containerEdits");
        if device.container_edits.is_empty() {
            report.add(&at, "no edits", "at least one edit, or a device would have no effect");
        }
        report.edits(&at, &device.container_edits);
    }
    report.edits("containerEdits", &spec.container_edits);
    if report.problems.is_empty() { Ok(()) } else { Err(Invalid { problems: report.problems }) }
}

/// Collects problems.
#[derive(Default)]
struct Report {
    problems: Vec<Problem>,
}

impl Report {
    fn add(&mut self, field: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) {
        self.problems.push(Problem { field: field.into(), found: found.into(), expected: expected.into() });
    }

    fn version(&mut self, spec: &Spec) {
        let lowest = lowest(spec);
        if spec.cdi_version >= lowest {
            return;
        }
        let above = |needed: &&crate::version::RequiredVersion| needed.version > spec.cdi_version;
        for needed in needs(spec).iter().filter(above) {
            self.add(
                "cdiVersion",
                spec.cdi_version.as_str(),
                format!("{lowest} or higher: {} is in the format since {}", needed.feature, needed.version),
            );
        }
    }

    fn annotations(&mut self, at: &str, annotations: &BTreeMap<String, String>) {
        for key in annotations.keys() {
            if !is_annotation_key(key) {
                self.add(
                    at,
                    format!("the key {key:?}"),
                    "[<DNS subdomain>/]<name>, the name of 1 to 63 letters, digits, '-', '_' or '.'",
                );
            }
        }
        let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > ANNOTATIONS_BYTES_MAX {
            self.add(at, format!("{bytes} bytes"), format!("at most {ANNOTATIONS_BYTES_MAX} bytes in all"));
        }
    }

    fn edits(&mut self, at: &str, edits: &ContainerEdits) {
        self.env(&format!("{at}.env"), &edits.env);
        for (index, node) in edits.device_nodes.iter().enumerate() {
            self.device_node(&format!("{at}.deviceNodes[{index}]"), node);
        }
        self.net_devices(&format!("{at}.netDevices"), &edits.net_devices);
        for (index, hook) in edits.hooks.iter().enumerate() {
            self.hook(&format!("{at}.hooks[{index}]"), hook);
        }
        for (index, mount) in edits.mounts.iter().enumerate() {
            self.mount(&format!("{at}.mounts[{index}]"), mount);
        }
        if let Some(rdt) = &edits.intel_rdt {
            self.intel_rdt(&format!("{at}.intelRdt"), rdt);
        }
    }

    fn env(&mut self, at: &str, env: &[String]) {
        for (index, entry) in env.iter().enumerate() {
            if entry.find('=').is_none_or(|place| place == 0) {
                self.add(format!("{at}[{index}]"), format!("{entry:?}"), "NAME=value");
            }
        }
    }

    fn not_empty(&mut self, field: String, text: &str, expected: &str) {
        if text.is_empty() {
            self.add(field, "an empty text", expected);
        }
    }

    fn device_node(&mut self, at: &str, node: &DeviceNode) {
        self.not_empty(format!("{at}.path"), &node.path, "a path in the container");
        let node_type = node.node_type.as_deref().unwrap_or("");
        if !["", "b", "c", "u", "p"].contains(&node_type) {
            self.add(format!("{at}.type"), format!("{node_type:?}"), "b, c, u or p");
        }
        let permissions = node.permissions.as_deref().unwrap_or("");
        if permissions != "none" && !permissions.chars().all(|c| "rwm".contains(c)) {
            self.add(format!("{at}.permissions"), format!("{permissions:?}"), "letters of rwm, or none");
        }
    }

    fn net_devices(&mut self, at: &str, devices: &[NetDevice]) {
        let (mut on_host, mut in_container) = (BTreeSet::new(), BTreeSet::new());
        for (index, device) in devices.iter().enumerate() {
            let (host_name, name) = (&device.host_interface_name, &device.name);
            self.not_empty(format!("{at}[{index}].hostInterfaceName"), host_name, "an interface on the host");
            self.not_empty(format!("{at}[{index}].name"), name, "an interface name in the container");
            if !on_host.insert(host_name) {
                let field = format!("{at}[{index}].hostInterfaceName");
                self.add(field, format!("{host_name:?} again"), "each interface once");
            }
            if !in_container.insert(name) {
                self.add(format!("{at}[{index}].name"), format!("{name:?} again"), "a name of its own");
            }
        }
    }

    fn hook(&mut self, at: &str, hook: &Hook) {
        if !HOOK_NAMES.contains(&hook.hook_name.as_str()) {
            let expected = format!("one of {}", HOOK_NAMES.join(", "));
            self.add(format!("{at}.hookName"), format!("{:?}", hook.hook_name), expected);
        }
        self.not_empty(format!("{at}.path"), &hook.path, "the path of a program");
        self.env(&format!("{at}.env"), &hook.env);
    }

    fn mount(&mut self, at: &str, mount: &Mount) {
        self.not_empty(format!("{at}.hostPath"), &mount.host_path, "a path on the host");
        self.not_empty(format!("{at}.containerPath"), &mount.container_path, "a path in the container");
    }

    fn intel_rdt(&mut self, at: &str, rdt: &IntelRdt) {
        let clos = rdt.clos_id.as_deref().unwrap_or("");
        let is_file_name =
            clos.len() < CLOS_ID_BYTES_LIMIT && clos != "." && clos != ".." && !clos.contains(['/', '\n']);
        if clos != "/" && !is_file_name {
            self.add(format!("{at}.closID"), format!("{clos:?}"), "a file name, or / for the root class");
        }
    }
}

/// Whether `key` is a Kubernetes qualified name when its letters are taken as lower case.
fn is_annotation_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let ends_fit = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let name_fits = name.len() <= 63
        && ends_fit(name)
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let label_fits =
        |label: &str| ends_fit(label) && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let prefix_fits = prefix.is_none_or(|text| text.len() <= 253 && text.split('.').all(label_fits));
    name_fits && prefix_fits
}
