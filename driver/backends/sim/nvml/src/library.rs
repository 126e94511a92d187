//! The library's state: how often it was initialised, its cards, the faults planned for it.

use crate::code::{
    Answer, Code, DRIVER_NOT_LOADED, GPU_IS_LOST, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, UNINITIALIZED,
    UNKNOWN,
};
use aliquot_sim_device::{Card, Device, Health, Plan, Struck};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

static SIMULATION: OnceLock<Option<(Device, Plan)>> = OnceLock::new();
/// nvmlInit calls without their nvmlShutdown.
static INITIALISED: AtomicU64 = AtomicU64::new(0);

/// What makes a card's index a handle: it looks like a pointer and is never followed.
const HANDLE_BASE: u64 = 0x4e00_0000_0000;
/// Distance of two handles.
const HANDLE_STEP: u64 = 16;

fn simulation() -> Option<&'static (Device, Plan)> {
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
    simulation().ok_or(DRIVER_NOT_LOADED)?;
    INITIALISED.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// nvmlShutdown.
pub(crate) fn shutdown() -> Answer {
    let less = |count: u64| count.checked_sub(1);
    INITIALISED.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).map(|_| ()).map_err(|_| UNINITIALIZED)
}

/// The cards, once initialised.
pub(crate) fn device() -> Answer<&'static Device> {
    if INITIALISED.load(Ordering::Acquire) == 0 {
        return Err(UNINITIALIZED);
    }
    simulation().map(|(device, _)| device).ok_or(UNINITIALIZED)
}

/// The handle of a card.
pub(crate) fn handle(card: &Card) -> u64 {
    HANDLE_BASE + u64::try_from(card.index()).unwrap_or(0) * HANDLE_STEP
}

/// The card of a handle.
pub(crate) fn card(handle: u64) -> Answer<&'static Card> {
    let cards = device()?.cards();
    let place = handle.checked_sub(HANDLE_BASE).filter(|place| place.is_multiple_of(HANDLE_STEP));
    let index = place.and_then(|place| usize::try_from(place / HANDLE_STEP).ok());
    let card = index.and_then(|index| cards.get(index)).ok_or(INVALID_VALUE)?;
    if card.health() == Health::Lost { Err(GPU_IS_LOST) } else { Ok(card) }
}

/// The card that `wanted` says yes to.
pub(crate) fn find(wanted: impl Fn(&Card) -> bool) -> Answer<&'static Card> {
    device()?.cards().iter().find(|card| wanted(card)).ok_or(NOT_FOUND)
}

/// The answer of an export without behaviour.
#[cold]
pub(crate) fn unsupported(export: &str) -> Answer {
    aliquot_sim_device::log_unsupported(export);
    Err(NOT_SUPPORTED)
}
