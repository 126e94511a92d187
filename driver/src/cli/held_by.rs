//! A claim that a node holds, and the command that ends it.

use aliquot_core::id::ClaimUid;

use super::node_args::NodeArgs;
use crate::checkpoint::{ClaimKind, ClaimRecord};

/// A claim that the state of a node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldBy {
    /// `namespace/name`.
    pub(super) name: String,
    uid: String,
    kind: ClaimKind,
    /// Options of the node and its state.
    options: String,
}

/// The options that name a node and its state again.
fn options(args: &NodeArgs) -> String {
    let nodes = args.nodes.iter().map(|node| ("--node", quoted(node)));
    let dirs = [("--catalogue", &args.catalogue), ("--state", &args.state)];
    let dirs =
        dirs.into_iter().filter_map(|(option, dir)| Some((option, quoted(&dir.as_ref()?.to_string_lossy()))));
    nodes
        .chain(dirs)
        .flat_map(|(option, value)| [" ".to_owned(), option.to_owned(), " ".to_owned(), value])
        .collect()
}

/// `aliquot stop` for a run of this state.
pub(super) fn stop(name: &str, uid: &ClaimUid, args: &NodeArgs) -> String {
    HeldBy { name: name.to_owned(), uid: uid.to_string(), kind: ClaimKind::Run, options: options(args) }.act()
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./@%+=:,".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

// === impl HeldBy ===

impl HeldBy {
    pub(super) fn of(record: &ClaimRecord, args: &NodeArgs) -> Self {
        let (name, uid) = (record.plan.name.clone(), record.plan.claim.to_string());
        Self { name, uid, kind: record.kind, options: options(args) }
    }

    /// The command that ends it.
    pub(super) fn act(&self) -> String {
        let Self { name, uid, kind, options } = self;
        match kind {
            // Names of runs may be equal.
            ClaimKind::Run => format!("`aliquot stop {uid}{options}` ends the run {name}"),
            ClaimKind::Container => format!("`aliquot release {name}{options}` releases it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_special_characters_are_quoted() {
        let cases = [
            ("/tmp/node", "/tmp/node"),
            ("8xh100*2", "'8xh100*2'"),
            ("/tmp/it's here", "'/tmp/it'\\''s here'"),
            ("", "''"),
        ];
        for (word, expected) in cases {
            assert_eq!(quoted(word), expected);
        }
    }
}
