//! MIG: profiles of a card, its GPU instances, the compute instances in them, and these as devices.
//!
//! As on a real card what changes instances, and what lists them, is for those whom `mig_access` of the node names.

use super::pointer::Out;
use crate::code::{
    Answer, Code, IN_USE, INSUFFICIENT_RESOURCES, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, UNKNOWN,
    VERSION_MISMATCH,
};
use crate::library::{self, Kind};
use aliquot_sim_device::{
    Card, GpuInstance, Instance, MIG_DEVICES, MigDevice, MigError, MigMode, PROFILES, Placement, Profile,
    compute_slices,
};

/// Profiles of compute instances that nvml.h has numbers for.
const COMPUTE_PROFILES: u32 = 8;
/// Bytes of a name.
const NAME: usize = 96;

/// nvmlGpuInstanceProfileInfo_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProfileInfo {
    id: u32,
    peer_to_peer: u32,
    slices: u32,
    instances: u32,
    multiprocessors: u32,
    engines: [u32; 5],
    memory_mib: u64,
}

/// nvmlGpuInstanceProfileInfo_v2_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProfileInfo2 {
    version: u32,
    id: u32,
    peer_to_peer: u32,
    slices: u32,
    instances: u32,
    multiprocessors: u32,
    engines: [u32; 5],
    memory_mib: u64,
    name: [u8; NAME],
}

/// nvmlGpuInstanceProfileInfo_v3_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProfileInfo3 {
    version: u32,
    id: u32,
    slices: u32,
    instances: u32,
    multiprocessors: u32,
    engines: [u32; 5],
    memory_mib: u64,
    name: [u8; NAME],
    capabilities: u32,
}

/// nvmlGpuInstanceInfo_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct GpuInfo {
    device: u64,
    id: u32,
    profile: u32,
    placement: Placement,
}

/// nvmlComputeInstanceProfileInfo_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ComputeProfileInfo {
    id: u32,
    slices: u32,
    instances: u32,
    multiprocessors: u32,
    engines: [u32; 5],
}

/// nvmlComputeInstanceProfileInfo_v2_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ComputeProfileInfo2 {
    version: u32,
    info: ComputeProfileInfo,
    name: [u8; NAME],
}

/// nvmlComputeInstanceProfileInfo_v3_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ComputeProfileInfo3 {
    second: ComputeProfileInfo2,
    capabilities: u32,
}

/// nvmlComputeInstanceInfo_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ComputeInfo {
    device: u64,
    gpu: u64,
    id: u32,
    profile: u32,
    placement: Placement,
}

/// nvmlDeviceAttributes_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Attributes {
    multiprocessors: u32,
    engines: [u32; 5],
    gpu_slices: u32,
    compute_slices: u32,
    memory_mib: u64,
}

const _: () = assert!(size_of::<ProfileInfo>() == 48 && size_of::<GpuInfo>() == 24);
const _: () = assert!(size_of::<ProfileInfo2>() == 152 && size_of::<ProfileInfo3>() == 152);
const _: () = assert!(size_of::<ComputeProfileInfo>() == 36 && size_of::<ComputeInfo>() == 32);
const _: () = assert!(size_of::<ComputeProfileInfo2>() == 136 && size_of::<ComputeProfileInfo3>() == 140);
const _: () = assert!(size_of::<Attributes>() == 40);

const PROFILE_V2: u32 = 152 | 2 << 24;
const PROFILE_V3: u32 = 152 | 3 << 24;
const COMPUTE_PROFILE_V2: u32 = 136 | 2 << 24;
const COMPUTE_PROFILE_V3: u32 = 140 | 3 << 24;

impl From<MigError> for Code {
    fn from(error: MigError) -> Self {
        match error {
            MigError::NotSupported => NOT_SUPPORTED,
            MigError::Unknown => INVALID_VALUE,
            MigError::NoRoom => INSUFFICIENT_RESOURCES,
            MigError::InUse => IN_USE,
            MigError::Books(_) => UNKNOWN,
        }
    }
}

fn named(text: &str) -> [u8; NAME] {
    let mut bytes = [0; NAME];
    bytes.iter_mut().take(NAME - 1).zip(text.bytes()).for_each(|(place, byte)| *place = byte);
    bytes
}

/// The profile under a number of nvml.h.
fn profile(card: &'static Card, index: u32) -> Answer<&'static Profile> {
    if index >= PROFILES {
        return Err(INVALID_VALUE);
    }
    card.profiles().iter().find(|profile| profile.index == index).ok_or(NOT_SUPPORTED)
}

/// The profile under the vendor's number for it on this card.
fn profile_by_id(card: &'static Card, id: u32) -> Answer<&'static Profile> {
    match card.profiles() {
        [] => Err(NOT_SUPPORTED),
        all => all.iter().find(|profile| profile.id == id).ok_or(INVALID_VALUE),
    }
}

fn profile_info(card: &Card, profile: &Profile) -> ProfileInfo {
    ProfileInfo {
        id: profile.id,
        peer_to_peer: 0,
        slices: profile.slices,
        instances: card.most_of(profile),
        multiprocessors: profile.multiprocessors,
        engines: profile.engines,
        memory_mib: profile.memory_mib,
    }
}

/// The second or third version, as its first field asks.
fn versioned(card: &Card, profile: &Profile, info: Out<ProfileInfo2>) -> Answer {
    let ProfileInfo { id, peer_to_peer, slices, instances, multiprocessors, engines, memory_mib } =
        profile_info(card, profile);
    let name = named(&format!("MIG {}", profile.name));
    match info.cast::<u32>().get()? {
        version @ PROFILE_V2 => info.set(ProfileInfo2 {
            version,
            id,
            peer_to_peer,
            slices,
            instances,
            multiprocessors,
            engines,
            memory_mib,
            name,
        }),
        version @ PROFILE_V3 => info.cast().set(ProfileInfo3 {
            version,
            id,
            slices,
            instances,
            multiprocessors,
            engines,
            memory_mib,
            name,
            capabilities: 0,
        }),
        _ => Err(VERSION_MISMATCH),
    }
}

/// Profiles of compute instances that fit into a GPU instance.
fn compute_profile(
    card: &'static Card,
    gpu: &GpuInstance,
    profile: u32,
    engine: u32,
) -> Answer<ComputeProfileInfo> {
    if profile >= COMPUTE_PROFILES || engine != 0 {
        return Err(INVALID_VALUE);
    }
    let of_gpu = profile_by_id(card, gpu.instance.profile)?;
    let slices = compute_slices(profile).filter(|slices| *slices <= of_gpu.slices).ok_or(NOT_SUPPORTED)?;
    Ok(ComputeProfileInfo {
        id: profile,
        slices,
        instances: of_gpu.slices / slices,
        multiprocessors: of_gpu.multiprocessors * slices / of_gpu.slices,
        engines: of_gpu.engines,
    })
}

/// How many more compute instances of so many slices fit into a GPU instance.
fn compute_room(gpu: &GpuInstance, of_gpu: u32, slices: u32) -> u32 {
    let taken = |slice: &u32| {
        let holds = |i: &Instance| (i.placement.start..i.placement.start + i.placement.size).contains(slice);
        gpu.computes().any(|i| holds(&i))
    };
    let (mut room, mut run) = (0, 0);
    for slice in 0..of_gpu {
        run = if taken(&slice) { 0 } else { run + 1 };
        if run == slices {
            (room, run) = (room + 1, 0);
        }
    }
    room
}

fn placements(card: u64, id: u32, list: Out<Placement>, count: Out<u32>) -> Answer {
    library::privileged()?;
    let profile = profile_by_id(library::card(card)?, id)?;
    count.set(u32::try_from(profile.placements.len()).map_err(|_| INVALID_VALUE)?)?;
    if list.is_null() {
        return Ok(());
    }
    let places = profile.placements.iter().enumerate();
    places
        .into_iter()
        .try_for_each(|(at, (start, size))| list.set_at(at, Placement { start: *start, size: *size }))
}

fn create(handle: u64, profile: u32, at: Option<Placement>, made: Out<u64>) -> Answer {
    made.check()?;
    let card = library::card(handle)?;
    if card.facts().mig != MigMode::On {
        return Err(NOT_SUPPORTED);
    }
    library::privileged()?;
    let instance = card.create_gpu_instance(profile, at)?;
    made.set(library::handle_of(card, Kind::Gpu, instance.serial))
}

fn create_compute(handle: u64, profile: u32, made: Out<u64>) -> Answer {
    made.check()?;
    let (card, gpu) = library::gpu(handle)?;
    library::privileged()?;
    let device = card.create_compute_instance(gpu.instance.serial, profile)?;
    made.set(library::handle_of(card, Kind::Compute, device.compute.serial))
}

/// Fills a list that the caller sized by the profile.
fn list_of(handles: impl Iterator<Item = u64>, list: Out<u64>, count: Out<u32>) -> Answer {
    let handles: Vec<u64> = handles.collect();
    count.set(u32::try_from(handles.len()).map_err(|_| INVALID_VALUE)?)?;
    handles.iter().enumerate().try_for_each(|(at, handle)| list.set_at(at, *handle))
}

fn compute_info(handle: u64, info: Out<ComputeInfo>) -> Answer {
    let (card, MigDevice { gpu, compute }) = library::compute(handle)?;
    info.set(ComputeInfo {
        device: library::handle(card),
        gpu: library::handle_of(card, Kind::Gpu, gpu.serial),
        id: compute.id,
        profile: compute.profile,
        placement: compute.placement,
    })
}

exports! {
    fn nvmlDeviceGetMigMode(handle: u64, current: Out<u32>, pending: Out<u32>) {
        let on = match library::card(handle)?.facts().mig {
            MigMode::None => return Err(NOT_SUPPORTED),
            MigMode::Off => 0,
            MigMode::On => 1,
        };
        current.set(on)?;
        pending.set(on)
    }
    fn nvmlDeviceGetGpuInstanceProfileInfo(handle: u64, index: u32, info: Out<ProfileInfo>) {
        let card = library::card(handle)?;
        info.set(profile_info(card, profile(card, index)?))
    }
    fn nvmlDeviceGetGpuInstanceProfileInfoV(handle: u64, index: u32, info: Out<ProfileInfo2>) {
        let card = library::card(handle)?;
        versioned(card, profile(card, index)?, info)
    }
    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(handle: u64, id: u32, info: Out<ProfileInfo2>) {
        let card = library::card(handle)?;
        versioned(card, profile_by_id(card, id)?, info)
    }
    fn nvmlDeviceGetGpuInstancePossiblePlacements(handle: u64, id: u32, list: Out<Placement>, count: Out<u32>) {
        placements(handle, id, list, count)
    }
    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle: u64, id: u32, list: Out<Placement>, count: Out<u32>) {
        placements(handle, id, list, count)
    }
    fn nvmlDeviceGetGpuInstanceRemainingCapacity(handle: u64, id: u32, count: Out<u32>) {
        let card = library::card(handle)?;
        library::privileged()?;
        count.set(card.room_for(id)?)
    }
    fn nvmlDeviceCreateGpuInstance(handle: u64, id: u32, made: Out<u64>) { create(handle, id, None, made) }
    fn nvmlDeviceCreateGpuInstanceWithPlacement(handle: u64, id: u32, at: Out<Placement>, made: Out<u64>) {
        create(handle, id, Some(at.get()?), made)
    }
    fn nvmlGpuInstanceDestroy(handle: u64) {
        let (card, gpu) = library::gpu(handle)?;
        library::privileged()?;
        Ok(card.destroy_gpu_instance(gpu.instance.serial)?)
    }
    fn nvmlDeviceGetGpuInstances(handle: u64, id: u32, list: Out<u64>, count: Out<u32>) {
        let card = library::card(handle)?;
        if card.facts().mig != MigMode::On {
            return Err(NOT_SUPPORTED);
        }
        library::privileged()?;
        profile_by_id(card, id)?;
        let found = card.gpu_instances().into_iter().filter(|gpu| gpu.instance.profile == id);
        list_of(found.map(|gpu| library::handle_of(card, Kind::Gpu, gpu.instance.serial)), list, count)
    }
    fn nvmlDeviceGetGpuInstanceById(handle: u64, id: u32, found: Out<u64>) {
        let card = library::card(handle)?;
        if card.facts().mig != MigMode::On {
            return Err(NOT_SUPPORTED);
        }
        library::privileged()?;
        let gpu = card.gpu_instances().into_iter().find(|gpu| gpu.instance.id == id).ok_or(NOT_FOUND)?;
        found.set(library::handle_of(card, Kind::Gpu, gpu.instance.serial))
    }
    fn nvmlGpuInstanceGetInfo(handle: u64, info: Out<GpuInfo>) {
        let (card, GpuInstance { instance, .. }) = library::gpu(handle)?;
        let Instance { id, profile, placement, .. } = instance;
        info.set(GpuInfo { device: library::handle(card), id, profile, placement })
    }
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        handle: u64,
        profile: u32,
        engine: u32,
        info: Out<ComputeProfileInfo>,
    ) {
        let (card, gpu) = library::gpu(handle)?;
        info.set(compute_profile(card, &gpu, profile, engine)?)
    }
    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        handle: u64,
        profile: u32,
        engine: u32,
        info: Out<ComputeProfileInfo2>,
    ) {
        let (card, gpu) = library::gpu(handle)?;
        let found = compute_profile(card, &gpu, profile, engine)?;
        let of_gpu = &profile_by_id(card, gpu.instance.profile)?;
        // A part of the GPU instance is named by both.
        let name = match found.slices == of_gpu.slices {
            true => format!("MIG {}", of_gpu.name),
            false => format!("MIG {}c.{}", found.slices, of_gpu.name),
        };
        let version = info.cast::<u32>().get()?;
        let second = ComputeProfileInfo2 { version, info: found, name: named(&name) };
        match version {
            COMPUTE_PROFILE_V2 => info.set(second),
            COMPUTE_PROFILE_V3 => info.cast().set(ComputeProfileInfo3 { second, capabilities: 0 }),
            _ => Err(VERSION_MISMATCH),
        }
    }
    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(handle: u64, profile: u32, count: Out<u32>) {
        library::privileged()?;
        let (card, gpu) = library::gpu(handle)?;
        let of_gpu = profile_by_id(card, gpu.instance.profile)?.slices;
        let info = compute_profile(card, &gpu, profile, 0)?;
        count.set(compute_room(&gpu, of_gpu, info.slices))
    }
    fn nvmlGpuInstanceCreateComputeInstance(handle: u64, profile: u32, made: Out<u64>) {
        create_compute(handle, profile, made)
    }
    fn nvmlComputeInstanceDestroy(handle: u64) {
        let (card, device) = library::compute(handle)?;
        library::privileged()?;
        Ok(card.destroy_compute_instance(device.compute.serial)?)
    }
    fn nvmlGpuInstanceGetComputeInstances(handle: u64, profile: u32, list: Out<u64>, count: Out<u32>) {
        library::privileged()?;
        let (card, gpu) = library::gpu(handle)?;
        compute_profile(card, &gpu, profile, 0)?;
        let found = gpu.computes().filter(|compute| compute.profile == profile);
        list_of(found.map(|compute| library::handle_of(card, Kind::Compute, compute.serial)), list, count)
    }
    fn nvmlGpuInstanceGetComputeInstanceById(handle: u64, id: u32, found: Out<u64>) {
        library::privileged()?;
        let (card, gpu) = library::gpu(handle)?;
        let compute = gpu.computes().find(|compute| compute.id == id).ok_or(NOT_FOUND)?;
        found.set(library::handle_of(card, Kind::Compute, compute.serial))
    }
    fn nvmlComputeInstanceGetInfo(handle: u64, info: Out<ComputeInfo>) { compute_info(handle, info) }
    fn nvmlComputeInstanceGetInfo_v2(handle: u64, info: Out<ComputeInfo>) { compute_info(handle, info) }

    fn nvmlDeviceGetMaxMigDeviceCount(handle: u64, count: Out<u32>) {
        let card = library::card(handle)?;
        count.set(if card.profiles().is_empty() { 0 } else { MIG_DEVICES })
    }
    fn nvmlDeviceGetMigDeviceHandleByIndex(handle: u64, index: u32, found: Out<u64>) {
        let card = library::card(handle)?;
        found.check()?;
        if card.facts().mig != MigMode::On {
            return Err(NOT_SUPPORTED);
        }
        if index >= MIG_DEVICES {
            return Err(INVALID_VALUE);
        }
        let index = usize::try_from(index).map_err(|_| INVALID_VALUE)?;
        let device = card.mig_devices().get(index).copied().ok_or(NOT_FOUND)?;
        found.set(library::handle_of(card, Kind::Device, device.compute.serial))
    }
    fn nvmlDeviceIsMigDeviceHandle(handle: u64, is: Out<u32>) {
        is.set(u32::from(library::part(handle)?.1.is_some()))
    }
    fn nvmlDeviceGetGpuInstanceId(handle: u64, id: Out<u32>) { id.set(library::mig_device(handle)?.1.gpu.id) }
    fn nvmlDeviceGetComputeInstanceId(handle: u64, id: Out<u32>) {
        id.set(library::mig_device(handle)?.1.compute.id)
    }
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: u64, card: Out<u64>) {
        card.set(library::handle(library::mig_device(handle)?.0))
    }
    fn nvmlDeviceGetAttributes(handle: u64, attributes: Out<Attributes>) { attributes.set(attributes_of(handle)?) }
    fn nvmlDeviceGetAttributes_v2(handle: u64, attributes: Out<Attributes>) {
        attributes.set(attributes_of(handle)?)
    }
}

/// What a MIG device has of its card.
fn attributes_of(handle: u64) -> Answer<Attributes> {
    let (card, MigDevice { gpu, compute }) = library::mig_device(handle)?;
    let profile = profile_by_id(card, gpu.profile)?;
    Ok(Attributes {
        multiprocessors: library::part(handle)?.0.facts().sms,
        engines: profile.engines,
        gpu_slices: profile.slices,
        compute_slices: compute.placement.size,
        memory_mib: profile.memory_mib,
    })
}
