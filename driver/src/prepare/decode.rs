//! Decodes a claim of the device API: this driver's devices, their shares, their settings.

use aliquot_core::dra::{Access, AllocatedConfig, AllocationResult, DeviceResult, ResourceClaim};
use aliquot_core::grant::{PartitionDemand, ShareSettings};
use aliquot_core::id::{ClaimUid, NameError, ShareName};
use aliquot_core::plan::{ClaimRequest, DeviceAsk};
use aliquot_core::quantity::Quantity;
use aliquot_core::units::{Bytes, Cores};

use super::settings::{DRIVER, apply};

/// Capacity by which memory is consumed.
const MEMORY: &str = "memory";
/// Capacity by which compute is consumed.
const CORES: &str = "cores";

/// Why a claim cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// A name breaks its rule.
    #[error("claim {claim}: {source}")]
    Name {
        /// Claim.
        claim: String,
        /// Which rule.
        source: NameError,
    },
    /// Nothing is allocated.
    #[error(
        "claim {claim} has no allocation: it is prepared once the scheduler, or `aliquot plan`, has placed it"
    )]
    NotAllocated {
        /// Claim.
        claim: String,
    },
    /// Administrative access.
    #[error(
        "claim {claim}: request `{request}` has admin access, which is for watching cards, not for preparing them: ask without `adminAccess`"
    )]
    AdminAccess {
        /// Claim.
        claim: String,
        /// Request.
        request: String,
    },
    /// A consumed capacity that is no amount.
    #[error("claim {claim}: request `{request}` consumes {found} of `{capacity}`; expected {expected}")]
    Capacity {
        /// Claim.
        claim: String,
        /// Request.
        request: String,
        /// Which.
        capacity: &'static str,
        /// As found.
        found: String,
        /// The rule.
        expected: &'static str,
    },
    /// Configuration that is not ours, or is wrong.
    #[error("claim {claim}: configuration for {requests}: {what}")]
    Config {
        /// Claim.
        claim: String,
        /// Requests it is for.
        requests: String,
        /// What is wrong; names the field.
        what: String,
    },
}

/// The devices to prepare for the claim. Devices of other drivers are left out.
///
/// # Errors
/// The claim is not allocated, or its allocation or configuration is invalid.
pub(crate) fn decode(claim: &ResourceClaim) -> Result<ClaimRequest, DecodeError> {
    let name = format!("{}/{}", claim.namespace, claim.name);
    let uid = ClaimUid::new(claim.uid.as_str());
    let uid = uid.map_err(|source| DecodeError::Name { claim: name.clone(), source })?;
    let Some(allocation) = &claim.allocation else {
        return Err(DecodeError::NotAllocated { claim: name });
    };
    let ours = allocation.devices.iter().enumerate().filter(|(_, result)| result.device.driver == DRIVER);
    let devices: Result<Vec<DeviceAsk>, DecodeError> =
        ours.map(|(place, result)| ask(&name, place, result, allocation)).collect();
    Ok(ClaimRequest { uid, devices: devices?, name })
}

fn ask(
    claim: &str,
    place: usize,
    result: &DeviceResult,
    allocation: &AllocationResult,
) -> Result<DeviceAsk, DecodeError> {
    let request = result.request.clone();
    if result.access == Access::Admin {
        return Err(DecodeError::AdminAccess { claim: claim.to_owned(), request });
    }
    let share = match &result.share_id {
        Some(id) => ShareName::new(id.0.as_str()),
        None => ShareName::new(place.to_string()),
    };
    let share = share.map_err(|source| DecodeError::Name { claim: claim.to_owned(), source })?;
    let wrong = |capacity, found: &Quantity, expected| DecodeError::Capacity {
        claim: claim.to_owned(),
        request: result.request.clone(),
        capacity,
        found: found.to_string(),
        expected,
    };
    let memory = result.consumed_capacity.get(MEMORY).map(|q| {
        let units = whole(q).ok_or_else(|| wrong(MEMORY, q, "a whole number of bytes, more than 0"))?;
        Ok(Bytes(units))
    });
    let cores = result.consumed_capacity.get(CORES).map(|q| {
        let percent = whole(q).and_then(|units| u8::try_from(units).ok()).and_then(Cores::new);
        percent.ok_or_else(|| wrong(CORES, q, "percent of the whole card, 0 to 100"))
    });
    let (settings, demand) = settings(claim, &result.request, &allocation.config)?;
    Ok(DeviceAsk {
        request,
        device: result.device.clone(),
        share,
        memory: memory.transpose()?,
        cores: cores.transpose()?,
        settings,
        demand,
    })
}

/// The settings of one request: defaults, then the class's words, then the claim's.
fn settings(
    claim: &str,
    request: &str,
    configs: &[AllocatedConfig],
) -> Result<(ShareSettings, Option<PartitionDemand>), DecodeError> {
    let mut settings = ShareSettings::default();
    let mut demand = None;
    for config in configs.iter().filter(|c| c.opaque.driver == DRIVER && is_for(c, request)) {
        let wrong = |what: String| DecodeError::Config {
            claim: claim.to_owned(),
            requests: if config.requests.is_empty() {
                "all requests".to_owned()
            } else {
                config.requests.join(", ")
            },
            what,
        };
        apply(&config.opaque.parameters, &mut settings, &mut demand).map_err(wrong)?;
    }
    Ok((settings, demand))
}

/// Whether a configuration applies to a request: to all, to it, or to the request that it is an alternative of.
fn is_for(config: &AllocatedConfig, request: &str) -> bool {
    let main = request.split_once('/').map_or(request, |(main, _)| main);
    config.requests.is_empty() || config.requests.iter().any(|r| r == request || r == main)
}

/// A quantity that is a whole number, not negative.
fn whole(quantity: &Quantity) -> Option<u64> {
    quantity.is_whole().then(|| u64::try_from(quantity.units_rounded_up()).ok())?
}
