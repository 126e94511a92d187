//! Directories of simulated cards below a state directory, and the size of a context on them.

use std::path::{Path, PathBuf};

use aliquot_abi::limits::{PAGE_BITS, Pages};
use aliquot_core::units::Bytes;
use aliquot_sim_device::Node as SimulatedNode;

use crate::region::Footprint;

/// Beginning of the names of directories of partitions.
pub(crate) const PARTITION: &str = "cards-";

/// Directory of the cards of a node.
#[must_use]
pub fn cards_dir(state: &Path) -> PathBuf {
    state.join("cards")
}

/// Directory of the card of one partition.
#[must_use]
pub fn partition_dir(state: &Path, visible: &str) -> PathBuf {
    state.join(format!("{PARTITION}{visible}"))
}

/// What the simulated driver takes of a card, as its node file says.
pub(crate) fn footprint(node: &SimulatedNode) -> Footprint {
    let page = node.slab().max(node.alloc_bytes).trailing_zeros();
    let bits = u8::try_from(page).unwrap_or(u8::MAX).max(*PAGE_BITS.start());
    let pages = Pages::measured(bits, bits).unwrap_or(Pages::ASSUMED);
    Footprint { context: Bytes(node.context_bytes), pages }
}
