//! Administrative access: a claim that monitors devices. It reads them and holds nothing, so the journal does not know it.
//!
//! Its CDI file is `<claim UID>-admin`, apart from that of the devices which the same claim may hold. The kubelet prepares the
//! claim again after a reboot, which makes the file again.

use aliquot_cdi::{ClaimSpecBuilder, Edit, Owner, QualifiedName, RequestName};
use aliquot_core::dra::{DeviceResult, ResourceClaim};
use aliquot_core::id::{ClaimUid, ShareName};
use aliquot_core::offer::Offers;
use aliquot_core::partition::Part;
use aliquot_core::plan::PlanRefusal;
use aliquot_core::ports::{BackendError, DeviceAccess};

use super::site::Site;
use crate::prepare::{PrepareError, PreparedClaim, PreparedDevice, access_edits, host_paths};

/// End of the name of a file for monitoring.
pub(super) const SUFFIX: &str = "-admin";

// === impl Site ===

impl Site {
    /// As [`Node::monitor`].
    pub(super) fn monitor(
        &self,
        claim: &ResourceClaim,
        results: &[&DeviceResult],
        offers: &Offers,
    ) -> Result<PreparedClaim, PrepareError> {
        let name = format!("{}/{}", claim.namespace, claim.name);
        let wrong = |what: &dyn std::fmt::Display| PrepareError::Edits {
            claim: name.clone(),
            what: what.to_string(),
        };
        let uid = ClaimUid::new(claim.uid.as_str()).map_err(|e| wrong(&e))?;
        let file: aliquot_cdi::ClaimUid = format!("{uid}{SUFFIX}").parse().map_err(|e| wrong(&e))?;
        let mut builder = ClaimSpecBuilder::new(file.clone());
        let mut devices = Vec::with_capacity(results.len());
        for (place, result) in results.iter().enumerate() {
            let access = self.admin_access(&name, result, offers)?;
            let request: RequestName = result.request.parse().map_err(|e| wrong(&e))?;
            let share: aliquot_cdi::ShareName = place.to_string().parse().map_err(|e| wrong(&e))?;
            let edits: Vec<Edit> = access_edits(&access).map_err(|e| wrong(&e))?;
            let owner = Owner::new(format!("request {request}, device {}", result.device));
            builder.device(&request, &share, &owner, &edits).map_err(|e| wrong(&e))?;
            devices.push(PreparedDevice {
                request: result.request.clone(),
                pool: result.device.pool.clone(),
                device: result.device.device.clone(),
                share: ShareName::new(place.to_string()).map_err(|e| wrong(&e))?,
                cdi_name: QualifiedName::of_share(&file, &request, &share).to_string(),
            });
        }
        let spec = builder.build().map_err(|e| wrong(&e))?;
        host_paths::check(&spec, &self.parts.host)
            .map_err(|source| PrepareError::Hardware { claim: name.clone(), source: Box::new(source) })?;
        let failed = |source| PrepareError::Cdi { claim: name.clone(), source: Box::new(source) };
        self.cdi.write(&spec).map_err(failed)?;
        self.monitors.lock().insert(uid.clone(), spec);
        Ok(PreparedClaim { uid, devices })
    }

    /// As [`Node::end_monitoring`].
    pub(super) fn end_monitoring(&self, uid: &ClaimUid) -> Result<(), PrepareError> {
        let name = format!("{uid}{SUFFIX}");
        // A UID that leaves no room for the end of the name never had such a file.
        let Ok(file) = name.parse::<aliquot_cdi::ClaimUid>() else { return Ok(()) };
        let failed = |source| PrepareError::Cdi { claim: uid.to_string(), source: Box::new(source) };
        self.monitors.lock().remove(uid);
        self.cdi.remove(&file).map(drop).map_err(failed)
    }

    /// A monitor's access to a device. A partition without a claim does not exist: then only its card can be read.
    fn admin_access(
        &self,
        claim: &str,
        result: &DeviceResult,
        offers: &Offers,
    ) -> Result<DeviceAccess, PrepareError> {
        let hardware = |source| PrepareError::Hardware { claim: claim.to_owned(), source: Box::new(source) };
        let Some(part) = offers.parts.get(&result.device) else {
            let (claim, device) = (claim.to_owned(), result.device.clone());
            return Err(Box::new(PlanRefusal::UnknownDevice { claim, device }).into());
        };
        match self.parts.backend.access(&part.card, &part.part) {
            Err(BackendError::Absent { .. }) => {
                self.parts.backend.access(&part.card, &Part::Card).map_err(hardware)
            }
            answer => answer.map_err(hardware),
        }
    }
}
