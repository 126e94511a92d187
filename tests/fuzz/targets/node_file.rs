//! Any text: a simulated node or an error; a node that is read discovers its cards.

#![no_main]

use std::sync::LazyLock;

use aliquot_backend_sim::{NodeFile, SimNode};
use aliquot_core::catalogue::Catalogue;
use libfuzzer_sys::fuzz_target;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::embedded);

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(file) = NodeFile::parse(text) else { return };
    let Ok(node) = SimNode::in_memory(&file, &CATALOGUE) else { return };
    assert!(!node.name().as_str().is_empty());
});
