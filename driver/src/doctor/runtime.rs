//! The container runtime reads CDI files, from the directory that the agent writes.

use std::path::{Path, PathBuf};

use super::node_root::{NodeObject, NodeRoot};
use super::{CheckVerdict, Finding, NodePaths};
use crate::hardware::vendors::on_host;

/// Configurations of runtimes, in the order in which they are looked for.
const CONFIGS: [(&str, &str); 6] = [
    ("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "containerd of k3s"),
    ("/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "containerd of RKE2"),
    ("/var/snap/microk8s/current/args/containerd.toml", "containerd of MicroK8s"),
    ("/etc/k0s/containerd.toml", "containerd of k0s"),
    ("/etc/containerd/config.toml", "containerd"),
    ("/etc/crio/crio.conf", "CRI-O"),
];
/// Where runtimes look for CDI files without a configuration.
const CDI_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// What a runtime's configuration says of CDI.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    /// `enable_cdi`; `None`: nothing.
    enabled: Option<bool>,
    /// `cdi_spec_dirs`; empty: nothing.
    dirs: Vec<String>,
    /// `default_runtime_name` or `default_runtime`.
    default_runtime: Option<String>,
    /// Version of containerd's configuration: 3 is that of containerd 2.
    version: Option<u32>,
}

/// The runtime gives containers the devices of CDI files.
pub(super) fn runtime(site: &NodePaths, root: &NodeRoot) -> Finding {
    const CHECK: &str = "container runtime";
    for (path, name) in CONFIGS {
        match root.text(Path::new(path)) {
            NodeObject::Here(text) => return judge(CHECK, name, path, &read(&text), site),
            NodeObject::Unreadable(error) => return Finding::unseen(CHECK, format!("{path}: {error}")),
            NodeObject::Absent => {}
        }
    }
    let sockets =
        ["/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock"];
    match sockets.into_iter().find(|socket| root.exists(Path::new(socket))) {
        Some(socket) => {
            let found =
                format!("{socket}, without a configuration file; containerd 2 and CRI-O read CDI files then");
            in_dirs(CHECK, &found, &CDI_DIRS.map(str::to_owned), site)
        }
        None => Finding::new(
            CHECK,
            CheckVerdict::NotChecked,
            "found no configuration of containerd or CRI-O",
            "check that the runtime reads CDI files: containerd 2.0, containerd 1.7 with enable_cdi, or CRI-O 1.28",
        ),
    }
}

fn judge(check: &'static str, name: &str, path: &str, said: &Said, site: &NodePaths) -> Finding {
    if said.enabled == Some(false) {
        let found = format!("{name}: {path} has enable_cdi = false");
        return Finding::new(
            check,
            CheckVerdict::Failed,
            found,
            "set enable_cdi = true and restart the runtime",
        );
    }
    let is_crio = name == "CRI-O";
    let old = said.enabled.is_none() && !is_crio && said.version.is_none_or(|version| version < 3);
    let dirs = if said.dirs.is_empty() { CDI_DIRS.map(str::to_owned).to_vec() } else { said.dirs.clone() };
    let finding = in_dirs(check, &format!("{name}: {path}"), &dirs, site);
    if finding.verdict != CheckVerdict::Ok {
        return finding;
    }
    if old {
        let found = format!("{name}: {path} does not set enable_cdi; containerd 1.7 then ignores CDI files");
        let remedy = "containerd 2.0 needs nothing; for 1.7 set enable_cdi = true and restart it";
        return Finding::new(check, CheckVerdict::Warning, found, remedy);
    }
    let of_a_vendor = |name: &&str| on_host().any(|vendor| name.contains(vendor.runtime));
    match said.default_runtime.as_deref().filter(of_a_vendor) {
        Some(vendor) => Finding::new(
            check,
            CheckVerdict::Warning,
            format!(
                "{name}: the default runtime is `{vendor}`, whose hook gives containers cards beside the agent"
            ),
            "make runc the default runtime; Aliquot needs no vendor runtime",
        ),
        None => finding,
    }
}

/// Whether the agent's directory is among those that the runtime reads.
fn in_dirs(check: &'static str, found: &str, dirs: &[String], site: &NodePaths) -> Finding {
    let same = |dir: &String| canonical(Path::new(dir)) == canonical(&site.cdi);
    if dirs.iter().any(same) {
        return Finding::ok(check, format!("{found}; it reads {}", site.cdi.display()));
    }
    let found = format!(
        "{found}: it reads CDI files in {}, the agent writes them to {}; Pods fail with unresolvable CDI devices",
        dirs.join(", "),
        site.cdi.display()
    );
    let remedy =
        format!("set --cdi-dir (cdiDir of the chart) to {}", dirs.first().map_or("", String::as_str));
    Finding::new(check, CheckVerdict::Failed, found, remedy)
}

/// `/var/run` is `/run`.
fn canonical(path: &Path) -> PathBuf {
    path.strip_prefix("/var/run").map_or_else(|_| path.to_owned(), |rest| Path::new("/run").join(rest))
}

/// Lines `key = value` of a configuration, wherever they stand: tables differ between versions, names do not.
fn read(text: &str) -> Said {
    let mut said = Said { enabled: None, dirs: Vec::new(), default_runtime: None, version: None };
    let mut open = String::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        // A list may go on for several lines.
        let whole = format!("{open}{line}");
        if whole.contains('[') && whole.contains('=') && !whole.contains(']') {
            open = whole;
            continue;
        }
        open.clear();
        let Some((key, value)) = whole.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        let words = || value.split(['"', '\'']).skip(1).step_by(2).map(str::to_owned);
        match key {
            "enable_cdi" => said.enabled = Some(value == "true"),
            "cdi_spec_dirs" => said.dirs = words().collect(),
            "default_runtime_name" | "default_runtime" => said.default_runtime = words().next(),
            "version" => said.version = value.parse().ok(),
            _ => {}
        }
    }
    said
}
