//! Files of the vendors' drivers on the host, for containers and for `aliquot doctor`.

use std::path::Path;
use std::sync::Arc;

use aliquot_backend_nvidia::NvidiaNode;
use aliquot_backend_nvidia::driver_root::others;
pub use aliquot_backend_nvidia::driver_root::{DriverFiles, DriverRootError, Place, resolve_within};
use aliquot_core::catalogue::Catalogue;

use super::HardwareError;
use crate::error_text::chain;

/// Opens this machine's own cards for containers, which get the driver's files from a place on the host; with what else on
/// the host gives out or limits the cards, one line each.
///
/// # Errors
/// As [`super::open_machine`]; and the driver root that is named has no driver.
pub fn open_machine_for_containers(
    catalogue: &Catalogue,
    place: &Place,
) -> Result<(Arc<NvidiaNode>, Vec<String>), HardwareError> {
    let advice = "Without cards, --node names simulated ones, such as --node h100-8";
    let opened = NvidiaNode::open_for_containers(catalogue, place);
    let node = opened.map_err(|error| HardwareError::Cards(format!("{}. {advice}", chain(&error))))?;
    let others = others(place, node.files());
    Ok((node, others))
}

/// The driver's files on a host whose root is seen at `host`.
///
/// # Errors
/// [`DriverRootError`]: there is no driver, or it is half installed.
pub fn driver_files(host: &Path, driver: Option<&Path>) -> Result<DriverFiles, DriverRootError> {
    DriverFiles::find(&Place { host: host.to_owned(), driver: driver.map(Path::to_owned) })
}
