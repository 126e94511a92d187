//! The kubelet's directories, our sockets in them, other drivers of the same cards, and write permissions.

use std::path::Path;

use aliquot_core::offer::DRIVER;
use nix::unistd::geteuid;

use super::node_root::{NodeObject, NodeRoot};
use super::{CheckVerdict, Finding, NodePaths};
use crate::hardware::card_owners::other_owners;

/// Bits of a mode that let the group or everybody else write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The bit of a directory that is for all users, such as /tmp.
const STICKY: u32 = 0o1000;
/// Where other distributions have their kubelet.
const OTHER_KUBELETS: [&str; 4] = [
    "/var/lib/kubelet",
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
    "/var/lib/rancher/k3s/agent/kubelet",
];
/// Where nodes have the kubelet's configuration, wherever the kubelet itself is.
const CLUSTER_SETTINGS: [&str; 3] = ["/etc/kubernetes", "/etc/rancher", "/etc/k0s"];

/// Whether the machine is a node of a cluster: it has directories of a kubelet or of its configuration, or they cannot be seen.
pub(super) fn is_of_cluster(root: &NodeRoot) -> bool {
    let mut dirs = OTHER_KUBELETS.iter().chain(&CLUSTER_SETTINGS);
    dirs.any(|dir| !matches!(root.names(Path::new(dir)), NodeObject::Absent))
}

/// The kubelet's directories are where the agent looks for them.
pub(super) fn kubelet(site: &NodePaths, root: &NodeRoot) -> Finding {
    const CHECK: &str = "kubelet";
    let registry = site.kubelet.join("plugins_registry");
    match root.names(&registry) {
        NodeObject::Here(_) => {
            Finding::ok(CHECK, format!("{} has its plugin directories", site.kubelet.display()))
        }
        NodeObject::Unreadable(error) => Finding::unseen(CHECK, format!("{}: {error}", registry.display())),
        NodeObject::Absent => {
            let found = format!("found no {}", registry.display());
            let is_other = |dir: &&&str| {
                Path::new(**dir) != site.kubelet && root.exists(&Path::new(**dir).join("plugins_registry"))
            };
            let remedy = match OTHER_KUBELETS.iter().find(is_other) {
                Some(other) => {
                    format!("the kubelet uses {other}: set --kubelet-root (kubeletRoot of the chart) to it")
                }
                None => "start the kubelet, or name its --root-dir with --kubelet-root".to_owned(),
            };
            Finding::new(CHECK, CheckVerdict::Failed, found, remedy)
        }
    }
}

/// No other driver hands out the same cards.
pub(super) fn owners(site: &NodePaths, root: &NodeRoot) -> Finding {
    const CHECK: &str = "other drivers";
    let found = match other_owners(|dir| root.find(&site.kubelet.join(dir))) {
        Ok(found) => found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        Err(error) => return Finding::unseen(CHECK, format!("{}/{error}", site.kubelet.display())),
    };
    if found.is_empty() {
        return Finding::ok(CHECK, "none hands out this node's cards");
    }
    let remedy =
        "never two for the same cards: keep it off this node (nodeSelector), or keep the agent off it";
    Finding::new(CHECK, CheckVerdict::Failed, format!("found {}", found.join(", ")), remedy)
}

/// Directories of the agent belong to root alone.
pub(super) fn permissions(site: &NodePaths, root: &NodeRoot) -> Finding {
    const CHECK: &str = "permissions";
    let plugin = site.kubelet.join("plugins").join(DRIVER);
    let mut missing = Vec::new();
    for dir in [&site.state, &site.cdi, &site.kubelet.join("plugins_registry"), &plugin] {
        match root.owner(dir) {
            NodeObject::Here(owner) if owner.user != 0 && owner.user != geteuid().as_raw() => {
                let found = format!("{}: found owner {}, expected root", dir.display(), owner.user);
                return Finding::new(
                    CHECK,
                    CheckVerdict::Failed,
                    found,
                    format!("chown root {}", dir.display()),
                );
            }
            NodeObject::Here(owner) if owner.mode & WRITABLE_BY_OTHERS != 0 => {
                let found = format!(
                    "{}: found mode {:03o}, expected no write permission for group and others",
                    dir.display(),
                    owner.mode
                );
                let remedy = match owner.mode & STICKY {
                    0 => format!("chmod go-w {}", dir.display()),
                    _ => format!("name another directory than {}, which is for all users", dir.display()),
                };
                return Finding::new(CHECK, CheckVerdict::Failed, found, remedy);
            }
            NodeObject::Here(_) => {}
            NodeObject::Absent => missing.push(dir.display().to_string()),
            NodeObject::Unreadable(error) => {
                return Finding::unseen(CHECK, format!("{}: {error}", dir.display()));
            }
        }
    }
    match missing.is_empty() {
        true => Finding::ok(CHECK, "the agent's directories belong to root"),
        false => Finding::ok(CHECK, format!("the agent's start makes {}", missing.join(", "))),
    }
}

/// The agent listens where the kubelet looks.
pub(super) fn sockets(site: &NodePaths, root: &NodeRoot) -> Finding {
    const CHECK: &str = "sockets";
    let registry = site.kubelet.join("plugins_registry");
    let names = match root.names(&registry) {
        NodeObject::Here(names) => names,
        NodeObject::Absent => Vec::new(),
        NodeObject::Unreadable(error) => {
            return Finding::unseen(CHECK, format!("{}: {error}", registry.display()));
        }
    };
    let ours: Vec<&String> = names.iter().filter(|name| name.starts_with(DRIVER)).collect();
    let mut dead = Vec::new();
    for name in &ours {
        match root.answers(&registry.join(name)) {
            NodeObject::Here(true) => {}
            NodeObject::Here(false) | NodeObject::Absent => dead.push(name.as_str()),
            NodeObject::Unreadable(error) => return Finding::unseen(CHECK, format!("{name}: {error}")),
        }
    }
    match (ours.len() - dead.len(), dead.first()) {
        (0, None) => Finding::new(
            CHECK,
            CheckVerdict::Failed,
            format!("found no socket {DRIVER}* in {}", registry.display()),
            "start the agent: `kubectl -n aliquot get pods -o wide` names the one of this node",
        ),
        (0, Some(name)) => Finding::new(
            CHECK,
            CheckVerdict::Failed,
            format!("{name}: no process listens"),
            "the agent was killed: `kubectl -n aliquot logs --previous` of its Pod says why",
        ),
        (live, Some(name)) => Finding::new(
            CHECK,
            CheckVerdict::Warning,
            format!("{live} live, and {name} of an agent that was killed"),
            format!("rm {}", registry.join(name).display()),
        ),
        (live, None) => Finding::ok(CHECK, format!("{live} agent listens for the kubelet")),
    }
}
