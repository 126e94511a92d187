//! The library's state: how often it was initialised, its cards, the faults planned for it.

use crate::code::{
    Answer, Code, DRIVER_NOT_LOADED, GPU_IS_LOST, INVALID_VALUE, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED,
    UNINITIALIZED, UNKNOWN,
};
use aliquot_sim_device::{
    Card, Device, FaultPlan, GpuInstance, Health, MigAccess, MigDevice, Struck, effective_user,
};
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

static SIMULATION: OnceLock<Option<(Device, FaultPlan)>> = OnceLock::new();
/// nvmlInit calls without their nvmlShutdown.
static INITIALISED: AtomicU64 = AtomicU64::new(0);

/// nvmlInit calls that found it at rest: after each, handles of cards are another's.
static BEGUN: AtomicUsize = AtomicUsize::new(0);

/// The driver's load at the last nvmlInit that found the library at rest; 0: its loads are not simulated.
static LOAD: AtomicU64 = AtomicU64::new(0);

/// What makes a card's index a handle: it looks like a pointer and is never followed.
const HANDLE_BASE: u64 = 0x4e00_0000_0000;
/// Distance of two handles.
const HANDLE_STEP: u64 = 16;
/// Bits of a handle of an instance below its card's index, with the serial number in steps.
const SERIAL_BITS: u32 = 32;
/// Bits below what says of which kind an instance is.
const KIND_BITS: u32 = 40;

/// Handles of what is on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A GPU instance.
    Gpu = 0x4f,
    /// A compute instance.
    Compute = 0x50,
    /// A compute instance as a device.
    Device = 0x51,
}

fn simulation() -> Option<&'static (Device, FaultPlan)> {
    let open = || {
        let device = aliquot_sim_device::open(&aliquot_sim_device::dir_from_env()).ok()?;
        let plan = device.plan().ok()?;
        Some((device, plan))
    };
    SIMULATION.get_or_init(open).as_ref()
}

/// Runs a call: the fault plan may strike, and no panic reaches the caller.
pub(crate) fn enter(export: &'static str, body: impl FnOnce() -> Answer) -> u32 {
    let guarded = AssertUnwindSafe(|| {
        if let Some((device, plan)) = simulation()
            && !plan.is_empty()
        {
            plan.apply(export, device).map_err(|struck| match struck {
                Struck::Error(code) => Code(code),
                Struck::Missing => NOT_SUPPORTED,
                Struck::Lost => GPU_IS_LOST,
            })?;
        }
        body()
    });
    match catch_unwind(guarded) {
        Ok(Ok(())) => 0,
        Ok(Err(Code(code))) => code,
        Err(_) => UNKNOWN.0,
    }
}

/// nvmlInit.
pub(crate) fn init() -> Answer {
    let (device, _) = simulation().ok_or(DRIVER_NOT_LOADED)?;
    if INITIALISED.fetch_add(1, Ordering::AcqRel) == 0 {
        LOAD.store(load_of(device), Ordering::Release);
        BEGUN.fetch_add(1, Ordering::AcqRel);
    }
    Ok(())
}

/// nvmlShutdown; whether it was the last user's.
pub(crate) fn shutdown() -> Answer<bool> {
    let less = |count: u64| count.checked_sub(1);
    let before = INITIALISED.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    Ok(before.map_err(|_| UNINITIALIZED)? == 1)
}

/// The cards, once initialised.
pub(crate) fn device() -> Answer<&'static Device> {
    if INITIALISED.load(Ordering::Acquire) == 0 {
        return Err(UNINITIALIZED);
    }
    let (device, _) = simulation().ok_or(UNINITIALIZED)?;
    let load = LOAD.load(Ordering::Acquire);
    if load != 0 && load != load_of(device) { Err(UNINITIALIZED) } else { Ok(device) }
}

/// Which load of the driver serves the cards: another file in the place of `driver-load` stands for another one.
fn load_of(device: &Device) -> u64 {
    std::fs::metadata(device.dir().join("driver-load")).map_or(0, |file| file.ino())
}

/// How far the handles of so many cards have moved on since the first nvmlInit.
fn moved(cards: usize) -> usize {
    BEGUN.load(Ordering::Acquire).saturating_sub(1).checked_rem(cards).unwrap_or(0)
}

/// The handle of a card.
pub(crate) fn handle(card: &Card) -> u64 {
    let cards = simulation().map_or(1, |(device, _)| device.cards().len().max(1));
    let place = (card.index() + moved(cards)) % cards;
    HANDLE_BASE + u64::try_from(place).unwrap_or(0) * HANDLE_STEP
}

/// The handle of something on a card. Serial numbers end with the bits that there are for them.
pub(crate) fn handle_of(card: &Card, kind: Kind, serial: u64) -> u64 {
    let index = u64::try_from(card.index()).unwrap_or(0);
    ((kind as u64) << KIND_BITS) | (index << SERIAL_BITS) | (serial * HANDLE_STEP) & u64::from(u32::MAX)
}

/// Card and serial number of a handle of this kind.
fn take_apart(handle: u64, kind: Kind) -> Answer<(&'static Card, u64)> {
    let cards = device()?.cards();
    if handle >> KIND_BITS != kind as u64 || !handle.is_multiple_of(HANDLE_STEP) {
        return Err(INVALID_VALUE);
    }
    let index = usize::try_from(handle >> SERIAL_BITS & 0xff).map_err(|_| INVALID_VALUE)?;
    let card = answering(cards.get(index).ok_or(INVALID_VALUE)?)?;
    Ok((card, (handle & u64::from(u32::MAX)) / HANDLE_STEP))
}

/// The card of a handle; those of MIG devices are none here.
pub(crate) fn card(handle: u64) -> Answer<&'static Card> {
    let cards = device()?.cards();
    if handle >> KIND_BITS == Kind::Device as u64 {
        return Err(NOT_SUPPORTED);
    }
    let place = handle.checked_sub(HANDLE_BASE).filter(|place| place.is_multiple_of(HANDLE_STEP));
    let place = place.and_then(|place| usize::try_from(place / HANDLE_STEP).ok());
    let place = place.filter(|place| *place < cards.len()).ok_or(INVALID_VALUE)?;
    let index = (place + cards.len() - moved(cards.len())) % cards.len();
    answering(cards.get(index).ok_or(INVALID_VALUE)?)
}

/// The card if it answers; waits as long as it hangs.
fn answering(card: &'static Card) -> Answer<&'static Card> {
    card.wait_while_hung();
    if card.health() == Health::Lost { Err(GPU_IS_LOST) } else { Ok(card) }
}

/// The GPU instance of a handle; none once it is destroyed.
pub(crate) fn gpu(handle: u64) -> Answer<(&'static Card, GpuInstance)> {
    let (card, serial) = take_apart(handle, Kind::Gpu)?;
    let found = card.gpu_instances().into_iter().find(|gpu| gpu.instance.serial == serial);
    Ok((card, found.ok_or(INVALID_VALUE)?))
}

fn of_compute(handle: u64, kind: Kind) -> Answer<(&'static Card, MigDevice)> {
    let (card, serial) = take_apart(handle, kind)?;
    let found = card.mig_devices().into_iter().find(|device| device.compute.serial == serial);
    Ok((card, found.ok_or(INVALID_VALUE)?))
}

/// The compute instance of a handle.
pub(crate) fn compute(handle: u64) -> Answer<(&'static Card, MigDevice)> {
    of_compute(handle, Kind::Compute)
}

/// The MIG device of a handle.
pub(crate) fn mig_device(handle: u64) -> Answer<(&'static Card, MigDevice)> {
    of_compute(handle, Kind::Device)
}

/// A card, or a MIG device as a card.
pub(crate) fn part(handle: u64) -> Answer<(Card, Option<MigDevice>)> {
    if handle >> KIND_BITS != Kind::Device as u64 {
        return Ok((card(handle)?.clone(), None));
    }
    let (card, device) = mig_device(handle)?;
    Ok((card.mig_card(device).map_err(|_| INVALID_VALUE)?, Some(device)))
}

/// The card that `wanted` says yes to.
pub(crate) fn find(wanted: impl Fn(&Card) -> bool) -> Answer<&'static Card> {
    device()?.cards().iter().find(|card| wanted(card)).ok_or(NOT_FOUND)
}

/// The handle of the card or MIG device with this UUID.
pub(crate) fn by_uuid(uuid: &[u8]) -> Answer<u64> {
    let instances = |card: &'static Card| card.mig_devices().into_iter().map(move |device| (card, device));
    let mut instances = device()?.cards().iter().flat_map(instances);
    match instances.find(|(card, device)| card.mig_uuid(device.compute).as_bytes() == uuid) {
        Some((card, device)) => Ok(handle_of(card, Kind::Device, device.compute.serial)),
        None => find(|card| card.facts().uuid.as_bytes() == uuid).map(handle),
    }
}

/// Fails for a user without the rights to change MIG instances or to read all of a card in MIG mode.
pub(crate) fn privileged() -> Answer {
    match device()?.node().mig_access {
        MigAccess::Root if effective_user() != 0 => Err(NO_PERMISSION),
        MigAccess::Root | MigAccess::Anybody => Ok(()),
    }
}

/// The answer of an export without behaviour.
#[cold]
pub(crate) fn unsupported(export: &str) -> Answer {
    aliquot_sim_device::log_unsupported(export);
    Err(NOT_SUPPORTED)
}
