//! Nodes that a unit may not use, with the first reason in words. Taints are named with the refusal itself
//! (`with_kept_off`), as is what keeps it off every node (`waits_for`).

use super::node_test::NodeTest;
use super::nodes::numbered;
use super::obstacle::Obstacle;

/// A node that was not tried.
pub(in crate::cli) struct ExcludedNode {
    pub(in crate::cli) node: String,
    /// Found and wanted.
    pub(in crate::cli) why: String,
}

/// The nodes that a unit may not use for other reasons than taints.
pub(in crate::cli) fn excluded(test: &NodeTest<'_>) -> Vec<ExcludedNode> {
    let excluded = numbered(test.around.world).filter_map(|(index, node)| {
        let obstacles = test.obstacles(index);
        let of_node =
            |obstacle: &&Obstacle<'_>| !obstacle.is_everywhere() && !matches!(obstacle, Obstacle::Taint(_));
        let why = obstacles.iter().find(of_node)?.words(node);
        Some(ExcludedNode { node: node.name.clone(), why })
    });
    excluded.collect()
}

/// What keeps a unit off every node alike, in words.
pub(in crate::cli) fn waits_for(test: &NodeTest<'_>) -> Option<String> {
    let (_, node) = numbered(test.around.world).next()?;
    test.everywhere().first().map(|obstacle| obstacle.words(node))
}
