//! MIG instances, by the vendor's own functions: `nvml-wrapper` has none to make, list or destroy them, and its list of
//! placements is always empty.
//!
//! Handles of instances do not leave a call: each call gets an instance anew, by its number. One that is gone
//! by then is left out, or is not found.

// UNSAFETY: the vendor's functions are C, and write where pointers say.
#![expect(unsafe_code, reason = "raw calls of the vendor's library")]

use std::collections::BTreeMap;
use std::ffi::CStr;

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstance_t, nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t,
};

use super::layout::{Instance, MigLayout, Profile};
use super::{Fault, Library, NOT_FOUND, NOT_SUPPORTED, answered, function};

/// NVML_ERROR_INVALID_ARGUMENT: also of handles of what is gone.
const INVALID_ARGUMENT: u32 = 2;
/// Profile numbers to query: nvml.h has 17, and more are to come. A number without a profile is not
/// supported, or no argument.
const PROFILES: u32 = 32;
/// Numbers of profiles of compute instances in nvml.h.
const COMPUTE_PROFILES: u32 = 8;
/// Compute instances that share all engines of their GPU instance: the only such profile that there is.
const SHARED_ENGINES: u32 = 0;
/// Room for instances and placements of one profile, whatever the library says of their number.
const ROOM: usize = 64;

/// How far the making of an instance came that failed.
#[derive(Debug)]
pub(crate) enum CreateFailure {
    /// Nothing was made: an instance at its place belongs to another program.
    Nothing(Fault),
    /// A GPU instance was made, and neither what programs reach in it nor the way back succeeded.
    Half(Fault),
}

/// One card's handle, and the library's functions.
pub(super) struct Raw<'a> {
    pub(super) lib: &'a NvmlLib,
    pub(super) device: nvmlDevice_t,
}

/// `None` for what is not, or not any more.
fn if_there<T>(answer: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(fault) if [INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND].iter().any(|code| fault.is(*code)) => {
            Ok(None)
        }
        Err(fault) => Err(fault),
    }
}

// === impl Library ===

impl Library {
    /// What a card can be cut into and is.
    pub(crate) fn cut(&self, device: &Device<'_>) -> Result<MigLayout, Fault> {
        let raw = self.raw(device);
        let profiles = raw.profiles()?;
        let devices = mig_devices(device)?;
        let mut found = Vec::new();
        for profile in &profiles {
            for gpu in raw.instances_of(profile.id)? {
                found.extend(if_there(raw.info(gpu))?);
            }
        }
        // A device may belong to an instance with a profile that has no number to query.
        for id in devices.keys() {
            if !found.iter().any(|info: &nvmlGpuInstanceInfo_t| info.id == *id) {
                found.extend(if_there(raw.by_id(*id).and_then(|gpu| raw.info(gpu)))?);
            }
        }
        let instance = |info: nvmlGpuInstanceInfo_t| {
            let device = devices.get(&info.id);
            Instance {
                id: info.id,
                profile: info.profileId,
                start: info.placement.start,
                size: info.placement.size,
                uuid: device.map(|(_, uuid)| uuid.clone()),
                compute: device.map_or(0, |(compute, _)| *compute),
            }
        };
        Ok(MigLayout { profiles, instances: found.into_iter().map(instance).collect() })
    }

    /// Makes a GPU instance at its place, with one compute instance that has all of it. Where the second cannot be made, the
    /// first is destroyed again; where that fails as well, it is to be taken away as any other instance of ours.
    pub(crate) fn make(&self, uuid: &str, profile: &Profile, at: (u32, u32)) -> Result<(), CreateFailure> {
        let nothing = |fault: Fault| CreateFailure::Nothing(fault);
        let device = self.0.device_by_uuid(uuid).map_err(|error| nothing(error.into()))?;
        let raw = self.raw(&device);
        let gpu = raw.create(profile.id, at).map_err(nothing)?;
        let made = raw.compute_profile(gpu, profile.slices).and_then(|whole| raw.create_compute(gpu, whole));
        made.map_err(|fault| match raw.destroy(gpu) {
            Ok(()) => CreateFailure::Nothing(fault),
            Err(_) => CreateFailure::Half(fault),
        })
    }

    /// Destroys a GPU instance with what is in it.
    pub(crate) fn unmake(&self, uuid: &str, id: u32) -> Result<(), Fault> {
        let device = self.0.device_by_uuid(uuid)?;
        let raw = self.raw(&device);
        let gpu = raw.by_id(id)?;
        for index in 0..COMPUTE_PROFILES {
            let Some(profile) = if_there(raw.compute_info(gpu, index))? else { continue };
            for compute in raw.computes_of(gpu, profile.id)? {
                raw.destroy_compute(compute)?;
            }
        }
        raw.destroy(gpu)
    }

    pub(super) fn raw(&self, device: &Device<'_>) -> Raw<'_> {
        // SAFETY: the handle is used with the library that gave it, and not after it is shut down: `Raw` borrows that.
        let device = unsafe { device.handle() };
        Raw { lib: self.0.lib(), device }
    }
}

/// UUIDs of compute instances by the number of their GPU instance: of the first in each.
fn mig_devices(device: &Device<'_>) -> Result<BTreeMap<u32, (u32, String)>, Fault> {
    let mut found = BTreeMap::new();
    for index in 0..device.mig_device_count()? {
        let Some(mig) = if_there(device.mig_device_by_index(index).map_err(Fault::from))? else { continue };
        let Some(uuid) = if_there(mig.uuid().map_err(Fault::from))? else { continue };
        let Some((gpu, compute)) = if_there(numbers(&mig))? else { continue };
        let first: &mut (u32, String) = found.entry(gpu).or_insert((compute, uuid.clone()));
        if compute < first.0 {
            *first = (compute, uuid);
        }
    }
    Ok(found)
}

/// Numbers of GPU instance and compute instance of a MIG device.
fn numbers(mig: &Device<'_>) -> Result<(u32, u32), Fault> {
    let lib = mig.nvml().lib();
    let (of_gpu, of_compute) =
        (function!(lib, nvmlDeviceGetGpuInstanceId)?, function!(lib, nvmlDeviceGetComputeInstanceId)?);
    let (mut gpu, mut compute) = (0, 0);
    // SAFETY: the handle is used with the library that gave it, while `mig` borrows that.
    let handle = unsafe { mig.handle() };
    // SAFETY: a handle of this library, and a place for the answer.
    answered(unsafe { of_gpu(handle, &raw mut gpu) })?;
    // SAFETY: a handle of this library, and a place for the answer.
    answered(unsafe { of_compute(handle, &raw mut compute) })?;
    Ok((gpu, compute))
}

// === impl Raw ===

impl Raw<'_> {
    fn profiles(&self) -> Result<Vec<Profile>, Fault> {
        let mut found = Vec::new();
        for index in 0..PROFILES {
            let Some(info) = if_there(self.profile(index))? else { continue };
            found.push(Profile {
                id: info.id,
                name: self.name(index)?,
                slices: info.sliceCount,
                instances: info.instanceCount,
                multiprocessors: info.multiprocessorCount,
                engines: [
                    info.copyEngineCount,
                    info.decoderCount,
                    info.encoderCount,
                    info.jpegCount,
                    info.ofaCount,
                ],
                memory_mib: info.memorySizeMB,
                placements: self.placements(info.id)?,
            });
        }
        Ok(found)
    }

    fn profile(&self, index: u32) -> Result<nvmlGpuInstanceProfileInfo_t, Fault> {
        let ask = function!(self.lib, nvmlDeviceGetGpuInstanceProfileInfo)?;
        // SAFETY: plain integers, of which zero is a value.
        let mut info: nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: a handle of this library, and a place for the answer.
        answered(unsafe { ask(self.device, index, &raw mut info) })?;
        Ok(info)
    }

    fn name(&self, index: u32) -> Result<Option<String>, Fault> {
        let Ok(ask) = function!(self.lib, nvmlDeviceGetGpuInstanceProfileInfoV) else { return Ok(None) };
        // SAFETY: plain integers, of which zero is a value.
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
        let size = u32::try_from(size_of::<nvmlGpuInstanceProfileInfo_v2_t>()).unwrap_or(0);
        info.version = size | 2 << 24;
        // SAFETY: a handle of this library, and a place that says its size and version.
        if if_there(answered(unsafe { ask(self.device, index, &raw mut info) }))?.is_none() {
            return Ok(None);
        }
        let bytes = info.name.iter().flat_map(|letter| letter.to_ne_bytes()).collect::<Vec<u8>>();
        let text = CStr::from_bytes_until_nul(&bytes).ok().and_then(|text| text.to_str().ok());
        Ok(text.map(|text| text.strip_prefix("MIG ").unwrap_or(text).to_owned()))
    }

    fn placements(&self, profile: u32) -> Result<Vec<(u32, u32)>, Fault> {
        let ask = function!(self.lib, nvmlDeviceGetGpuInstancePossiblePlacements_v2)?;
        let mut places = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; ROOM];
        let mut count = 0;
        // SAFETY: a handle of this library; without a list it returns the number alone.
        answered(unsafe { ask(self.device, profile, std::ptr::null_mut(), &raw mut count) })?;
        let known = usize::try_from(count).ok().filter(|count| *count <= ROOM);
        let known = known.ok_or_else(|| too_many("placements", count))?;
        // SAFETY: a handle of this library, and a list with room for at least as many as it said.
        answered(unsafe { ask(self.device, profile, places.as_mut_ptr(), &raw mut count) })?;
        Ok(places.iter().take(known).map(|place| (place.start, place.size)).collect())
    }

    fn instances_of(&self, profile: u32) -> Result<Vec<nvmlGpuInstance_t>, Fault> {
        let ask = function!(self.lib, nvmlDeviceGetGpuInstances)?;
        let mut found: [nvmlGpuInstance_t; ROOM] = [std::ptr::null_mut(); ROOM];
        let mut count = u32::try_from(ROOM).unwrap_or(0);
        // SAFETY: a handle of this library, and room for more instances than a card has.
        answered(unsafe { ask(self.device, profile, found.as_mut_ptr(), &raw mut count) })?;
        let known = usize::try_from(count).ok().filter(|count| *count <= ROOM);
        Ok(found.into_iter().take(known.ok_or_else(|| too_many("GPU instances", count))?).collect())
    }

    fn by_id(&self, id: u32) -> Result<nvmlGpuInstance_t, Fault> {
        let ask = function!(self.lib, nvmlDeviceGetGpuInstanceById)?;
        let mut gpu = std::ptr::null_mut();
        // SAFETY: a handle of this library, and a place for the answer.
        answered(unsafe { ask(self.device, id, &raw mut gpu) })?;
        Ok(gpu)
    }

    fn info(&self, gpu: nvmlGpuInstance_t) -> Result<nvmlGpuInstanceInfo_t, Fault> {
        let ask = function!(self.lib, nvmlGpuInstanceGetInfo)?;
        // SAFETY: integers and a pointer that is not followed, of which zero is a value.
        let mut info: nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: a handle that this library gave, which it checks, and a place for the answer.
        answered(unsafe { ask(gpu, &raw mut info) })?;
        Ok(info)
    }

    fn create(&self, profile: u32, (start, size): (u32, u32)) -> Result<nvmlGpuInstance_t, Fault> {
        let make = function!(self.lib, nvmlDeviceCreateGpuInstanceWithPlacement)?;
        let place = nvmlGpuInstancePlacement_t { start, size };
        let mut gpu = std::ptr::null_mut();
        // SAFETY: a handle of this library, a placement, and a place for the answer.
        answered(unsafe { make(self.device, profile, &raw const place, &raw mut gpu) })?;
        Ok(gpu)
    }

    fn destroy(&self, gpu: nvmlGpuInstance_t) -> Result<(), Fault> {
        let destroy = function!(self.lib, nvmlGpuInstanceDestroy)?;
        // SAFETY: a handle that this library gave, which it checks; it is not used again.
        answered(unsafe { destroy(gpu) })
    }

    fn compute_info(
        &self,
        gpu: nvmlGpuInstance_t,
        index: u32,
    ) -> Result<nvmlComputeInstanceProfileInfo_t, Fault> {
        let ask = function!(self.lib, nvmlGpuInstanceGetComputeInstanceProfileInfo)?;
        // SAFETY: plain integers, of which zero is a value.
        let mut info: nvmlComputeInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: a handle that this library gave, which it checks, and a place for the answer.
        answered(unsafe { ask(gpu, index, SHARED_ENGINES, &raw mut info) })?;
        Ok(info)
    }

    /// The profile of compute instances that has all of a GPU instance.
    fn compute_profile(&self, gpu: nvmlGpuInstance_t, slices: u32) -> Result<u32, Fault> {
        for index in 0..COMPUTE_PROFILES {
            if let Some(info) = if_there(self.compute_info(gpu, index))?
                && info.sliceCount == slices
            {
                return Ok(info.id);
            }
        }
        let text = format!("no profile of compute instances has all {slices} slices");
        Err(Fault::Code { code: NOT_SUPPORTED, text })
    }

    fn create_compute(&self, gpu: nvmlGpuInstance_t, profile: u32) -> Result<(), Fault> {
        let make = function!(self.lib, nvmlGpuInstanceCreateComputeInstance)?;
        let mut compute = std::ptr::null_mut();
        // SAFETY: a handle that this library gave, which it checks, and a place for the answer.
        answered(unsafe { make(gpu, profile, &raw mut compute) })
    }

    fn computes_of(&self, gpu: nvmlGpuInstance_t, profile: u32) -> Result<Vec<nvmlComputeInstance_t>, Fault> {
        let ask = function!(self.lib, nvmlGpuInstanceGetComputeInstances)?;
        let mut found: [nvmlComputeInstance_t; ROOM] = [std::ptr::null_mut(); ROOM];
        let mut count = u32::try_from(ROOM).unwrap_or(0);
        // SAFETY: a handle that this library gave, which it checks, and room for more than a GPU instance has.
        answered(unsafe { ask(gpu, profile, found.as_mut_ptr(), &raw mut count) })?;
        let known = usize::try_from(count).ok().filter(|count| *count <= ROOM);
        Ok(found.into_iter().take(known.ok_or_else(|| too_many("compute instances", count))?).collect())
    }

    fn destroy_compute(&self, compute: nvmlComputeInstance_t) -> Result<(), Fault> {
        let destroy = function!(self.lib, nvmlComputeInstanceDestroy)?;
        // SAFETY: a handle that this library gave, which it checks; it is not used again.
        answered(unsafe { destroy(compute) })
    }
}

/// An answer that cannot be.
fn too_many(what: &str, count: u32) -> Fault {
    Fault::Code { code: 999, text: format!("{count} {what}, expected at most {ROOM}") }
}
