//! Containers may read the shim and the limits: SELinux would deny it without a message.

use std::path::Path;

use super::node_root::{NodeObject, NodeRoot};
use super::{CheckVerdict, Finding, NodePaths};
use crate::selinux::{ENFORCE, LABEL, SelinuxMode, fits, in_words, label_commands};

/// The directory of grants has a label that containers may use.
pub(super) fn labels(site: &NodePaths, root: &NodeRoot) -> Finding {
    const CHECK: &str = "selinux";
    let (mode, wrong) = match root.text(&Path::new("/").join(ENFORCE)) {
        NodeObject::Absent => return Finding::ok(CHECK, "off"),
        NodeObject::Unreadable(error) => return Finding::unseen(CHECK, format!("/{ENFORCE}: {error}")),
        NodeObject::Here(text) => match SelinuxMode::of(&Ok(text)) {
            SelinuxMode::Permissive => ("permissive", CheckVerdict::Warning),
            SelinuxMode::Off | SelinuxMode::Enforcing => ("enforcing", CheckVerdict::Failed),
        },
    };
    let grants = site.state.join("grants");
    match root.label(&grants) {
        NodeObject::Absent => {
            Finding::ok(CHECK, format!("{mode}; the agent's start makes and labels {}", grants.display()))
        }
        NodeObject::Unreadable(error) => Finding::unseen(CHECK, format!("{}: {error}", grants.display())),
        NodeObject::Here(Some(label)) if fits(&label) => {
            Finding::ok(CHECK, format!("{mode}; {} has label {label}", grants.display()))
        }
        NodeObject::Here(found) => Finding::new(
            CHECK,
            wrong,
            format!(
                "{mode}; {}: found {}, expected label {LABEL}: limits do not hold in containers",
                grants.display(),
                in_words(found.as_deref())
            ),
            format!(
                "start the agent, which sets it; if its log names the label, {}",
                label_commands(&grants)
            ),
        ),
    }
}
