//! The residue of a share, as its limits file has it.

use std::path::Path;

use aliquot_abi::layout;
use aliquot_abi::view::LimitsView;
use aliquot_core::units::Bytes;

use super::mapping::Image;

/// Bytes beyond the shim's accounting, as the governor's last look found them; 0 if the file cannot be read.
#[must_use]
pub fn residue(limits: &Path) -> Bytes {
    let image = Image::read(limits, layout::limits::BYTES);
    Bytes(image.map_or(0, |image| image.limits().map_or(0, LimitsView::residue)))
}
