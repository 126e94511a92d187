//! The answer for a claim: which results of its allocation are this driver's, and the prepared device of each.

use aliquot_core::disposition::Disposition;
use aliquot_core::dra::{Access, DeviceResult, ResourceClaim};
use aliquot_core::offer::DRIVER;

use crate::kubelet::dra::WireDevice;
use crate::ports::{AgentError, ClaimReference};
use crate::prepare::{PreparedClaim, PreparedDevice};

/// The results of a claim's allocation that are this driver's.
pub(super) fn own_results<'c>(
    reference: &ClaimReference,
    claim: &'c ResourceClaim,
) -> Result<Vec<&'c DeviceResult>, AgentError> {
    let Some(allocation) = &claim.allocation else {
        let message = format!("claim {reference}: it has no allocation; the scheduler places it first");
        return Err(AgentError { message, disposition: Disposition::Refuse });
    };
    Ok(allocation.devices.iter().filter(|result| result.device.driver == DRIVER).collect())
}

/// The answer for one claim: a device for each of its results, in their order.
pub(super) fn devices(
    reference: &ClaimReference,
    prepared: &PreparedClaim,
    claim: &ResourceClaim,
    access: Access,
) -> Result<Vec<WireDevice>, AgentError> {
    let mut results = own_results(reference, claim)?;
    results.retain(|result| result.access == access);
    if results.len() != prepared.devices.len() {
        let (found, expected) = (prepared.devices.len(), results.len());
        let message = format!(
            "claim {reference}: found {found} prepared devices, expected {expected}; please report this"
        );
        return Err(AgentError { message, disposition: Disposition::Broken });
    }
    let device = |(result, device): (&&DeviceResult, &PreparedDevice)| WireDevice {
        request: base_request(&result.request).to_owned(),
        pool: device.pool.clone(),
        device: device.device.clone(),
        cdi: device.cdi_name.clone(),
        share: result.share_id.as_ref().map(|share| share.0.clone()),
    };
    Ok(results.iter().zip(&prepared.devices).map(device).collect())
}

/// The request that a container names: `req` of `req/sub`.
fn base_request(request: &str) -> &str {
    request.split_once('/').map_or(request, |(base, _)| base)
}
