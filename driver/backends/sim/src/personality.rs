//! Built-in nodes: node files that come with the program, by name.

use crate::node_file::{NodeFile, NodeFileError};

/// A built-in node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Personality {
    /// Name, as for `--node`.
    pub name: &'static str,
    /// The node file.
    pub text: &'static str,
}

/// All of them, in the order in which they are listed.
const ALL: [Personality; 12] = [
    Personality { name: "h100-8", text: include_str!("../nodes/h100-8.toml") },
    Personality { name: "a100-4", text: include_str!("../nodes/a100-4.toml") },
    Personality { name: "t4-2", text: include_str!("../nodes/t4-2.toml") },
    Personality { name: "h200", text: include_str!("../nodes/h200.toml") },
    Personality { name: "rtx-pro-6000", text: include_str!("../nodes/rtx-pro-6000.toml") },
    Personality { name: "ascend-310p", text: include_str!("../nodes/ascend-310p.toml") },
    Personality { name: "ascend-310p-duo", text: include_str!("../nodes/ascend-310p-duo.toml") },
    Personality { name: "ascend-910a-8", text: include_str!("../nodes/ascend-910a-8.toml") },
    Personality { name: "ascend-910b3-8", text: include_str!("../nodes/ascend-910b3-8.toml") },
    Personality { name: "ascend-910b4", text: include_str!("../nodes/ascend-910b4.toml") },
    Personality { name: "ascend-910c-8", text: include_str!("../nodes/ascend-910c-8.toml") },
    Personality { name: "mixed", text: include_str!("../nodes/mixed.toml") },
];

// === impl Personality ===

impl Personality {
    /// All of them.
    #[must_use]
    pub const fn all() -> &'static [Self] {
        &ALL
    }

    /// Their names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().map(|p| p.name)
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ALL.into_iter().find(|p| p.name == name)
    }

    /// Its node file, read.
    ///
    /// # Errors
    /// None for the built-in ones, which a test reads.
    pub fn load(&self) -> Result<NodeFile, NodeFileError> {
        NodeFile::parse(self.text)
    }
}
