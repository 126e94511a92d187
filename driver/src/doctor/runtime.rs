//! The container runtime reads CDI files, from the directory that the agent writes.

mod settings;

use std::path::{Path, PathBuf};

use self::settings::{Layers, RuntimeSettings, Unresolved};
use super::node_root::NodeRoot;
use super::{CheckVerdict, Finding, NodePaths};
use crate::hardware::vendors::on_host;

/// Configurations of containerd, in the order in which they are looked for.
const CONTAINERD: [(&str, &str); 5] = [
    ("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "containerd of k3s"),
    ("/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "containerd of RKE2"),
    ("/var/snap/microk8s/current/args/containerd.toml", "containerd of MicroK8s"),
    ("/etc/k0s/containerd.toml", "containerd of k0s"),
    ("/etc/containerd/config.toml", "containerd"),
];
/// Files that some versions of containerd read without a configuration.
const CONTAINERD_DROP_INS: &str = "/etc/containerd/conf.d";
/// CRI-O's configuration, and its drop-ins.
const CRIO: &str = "/etc/crio/crio.conf";
const CRIO_DROP_INS: &str = "/etc/crio/crio.conf.d";
/// Where runtimes look for CDI files without a configuration.
const CDI_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
const CHECK: &str = "container runtime";

/// A container runtime and how it treats CDI without a setting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuntimeKind {
    Containerd,
    Crio,
}

/// The runtime gives containers the devices of CDI files.
pub(super) fn runtime(site: &NodePaths, root: &NodeRoot) -> Finding {
    if let Some((path, name)) = CONTAINERD.iter().find(|(path, _)| root.exists(Path::new(path))) {
        let layers = Layers::of_containerd(root, Path::new(path));
        return resolved(layers, |settings| judge(RuntimeKind::Containerd, name, path, settings, site));
    }
    match crio(root) {
        Ok(layers) if layers.is_empty() => without_configuration(site, root),
        layers => resolved(layers, |settings| judge(RuntimeKind::Crio, "CRI-O", "/etc/crio", settings, site)),
    }
}

fn crio(root: &NodeRoot) -> Result<Layers, Unresolved> {
    let main = match root.exists(Path::new(CRIO)) {
        true => Layers::of_file(root, Path::new(CRIO))?,
        false => Layers::default(),
    };
    Ok(main.then(Layers::of_directory(root, Path::new(CRIO_DROP_INS), "")?))
}

/// One finding, if every way to read the files comes to the same.
fn resolved(layers: Result<Layers, Unresolved>, judge: impl Fn(&RuntimeSettings) -> Finding) -> Finding {
    match layers {
        Ok(layers) => {
            let [added, replaced] = layers.readings().map(|settings| judge(&settings));
            match added.verdict == replaced.verdict {
                true => added,
                false => unclear(
                    "a drop-in has a section of the main file again, which versions of containerd add or replace",
                ),
            }
        }
        Err(Unresolved::Unreadable(what)) => Finding::unseen(CHECK, what),
        Err(Unresolved::Unclear(what)) => unclear(what),
    }
}

fn unclear(what: impl Into<String>) -> Finding {
    let remedy = "look for enable_cdi, cdi_spec_dirs and the default runtime in what `containerd config dump` or \
                  `crio status config` prints on the node";
    Finding::new(CHECK, CheckVerdict::NotChecked, what, remedy)
}

/// The defaults of a runtime that has no configuration, with the drop-ins that only some versions of containerd read.
fn without_configuration(site: &NodePaths, root: &NodeRoot) -> Finding {
    let dir = Path::new(CONTAINERD_DROP_INS);
    match Layers::of_directory(root, dir, ".toml") {
        Ok(layers) if layers.is_empty() => {}
        layers => {
            let judged = |settings: &RuntimeSettings| {
                judge(RuntimeKind::Containerd, "containerd", CONTAINERD_DROP_INS, settings, site)
            };
            let found = resolved(layers, judged);
            let unread = judged(&RuntimeSettings { version: Some(3), ..RuntimeSettings::default() });
            return match found.verdict == unread.verdict {
                true => found,
                false => unclear(format!("only some versions of containerd read {CONTAINERD_DROP_INS}")),
            };
        }
    }
    let sockets =
        ["/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock"];
    match sockets.into_iter().find(|socket| root.exists(Path::new(socket))) {
        Some(socket) => {
            let found =
                format!("{socket}, without a configuration file; containerd 2 and CRI-O read CDI files then");
            in_dirs(&found, &CDI_DIRS.map(str::to_owned), site)
        }
        None => Finding::new(
            CHECK,
            CheckVerdict::NotChecked,
            "found no configuration of containerd or CRI-O",
            "check that the runtime reads CDI files: containerd 2.0, containerd 1.7 with enable_cdi, or CRI-O 1.28",
        ),
    }
}

fn judge(kind: RuntimeKind, name: &str, path: &str, said: &RuntimeSettings, site: &NodePaths) -> Finding {
    if let Some(disabled) = said.enabled.as_ref().filter(|enabled| !enabled.value) {
        let found = format!("{name}: {} has enable_cdi = false", disabled.file);
        return Finding::new(
            CHECK,
            CheckVerdict::Failed,
            found,
            "set enable_cdi = true and restart the runtime",
        );
    }
    let is_containerd = kind == RuntimeKind::Containerd;
    let old = said.enabled.is_none() && is_containerd && said.version.is_none_or(|version| version < 3);
    let finding = match &said.dirs {
        Some(dirs) => in_dirs(&format!("{name}: {}", dirs.file), &dirs.value, site),
        None => in_dirs(&format!("{name}: {path}"), &CDI_DIRS.map(str::to_owned), site),
    };
    if finding.verdict != CheckVerdict::Ok {
        return finding;
    }
    if old {
        let found = format!("{name}: {path} does not set enable_cdi; containerd 1.7 then ignores CDI files");
        let remedy = "containerd 2.0 needs nothing; for 1.7 set enable_cdi = true and restart it";
        return Finding::new(CHECK, CheckVerdict::Warning, found, remedy);
    }
    let of_a_vendor = |name: &str| on_host().any(|vendor| name.contains(vendor.runtime));
    match said.default_runtime.as_ref().filter(|default| of_a_vendor(&default.value)) {
        Some(vendor) => Finding::new(
            CHECK,
            CheckVerdict::Warning,
            format!(
                "{name}: the default runtime is `{}` ({}), whose hook gives containers cards beside the agent",
                vendor.value, vendor.file
            ),
            "make runc the default runtime; Aliquot needs no vendor runtime",
        ),
        None => finding,
    }
}

/// Whether the agent's directory is among those that the runtime reads.
fn in_dirs(found: &str, dirs: &[String], site: &NodePaths) -> Finding {
    let same = |dir: &String| canonical(Path::new(dir)) == canonical(&site.cdi);
    if dirs.iter().any(same) {
        return Finding::ok(CHECK, format!("{found}; it reads {}", site.cdi.display()));
    }
    let found = format!(
        "{found}: it reads CDI files in {}, the agent writes them to {}; Pods fail with unresolvable CDI devices",
        dirs.join(", "),
        site.cdi.display()
    );
    let remedy =
        format!("set --cdi-dir (cdiDir of the chart) to {}", dirs.first().map_or("", String::as_str));
    Finding::new(CHECK, CheckVerdict::Failed, found, remedy)
}

/// `/var/run` is `/run`.
fn canonical(path: &Path) -> PathBuf {
    path.strip_prefix("/var/run").map_or_else(|_| path.to_owned(), |rest| Path::new("/run").join(rest))
}

#[cfg(test)]
mod tests;
