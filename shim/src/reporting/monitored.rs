//! NVML's cards and this container's grants. NVML comes before CUDA or without it, so a card is known by the UUID that NVML
//! says for a handle; what was found is kept until the program shuts NVML down.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::accounting::account::{self, Account};
use crate::grants::{self, CardStatus};
use crate::loader::vendor::{
    SUCCESS, nvmlDeviceGetComputeInstanceId, nvmlDeviceGetGpuInstanceId, nvmlDeviceGetUUID,
};
use crate::reporting::processes::Instances;
use crate::sys::KeepErrno;

/// A card, as NVML names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) *mut c_void);

/// Handles that are remembered; a power of two.
const HANDLES_MAX: usize = 128;
/// Places that are looked at for one handle.
const STEPS_MAX: usize = 8;
/// Longest UUID that NVML tells, with its zero byte.
const UUID_MAX: usize = 96;

struct MonitoredCard {
    handle: AtomicUsize,
    /// 0: nothing is known; else [`CardStatus::code`].
    code: AtomicU32,
}

static KNOWN: [MonitoredCard; HANDLES_MAX] =
    [const { MonitoredCard { handle: AtomicUsize::new(0), code: AtomicU32::new(0) } }; HANDLES_MAX];

/// The place of a handle, or a free one.
fn place(handle: usize) -> Option<&'static MonitoredCard> {
    let home = (handle >> 4) ^ (handle >> 12);
    (0..STEPS_MAX).find_map(|step| {
        let known = KNOWN.get(home.wrapping_add(step) & (HANDLES_MAX - 1))?;
        let found = known.handle.load(Ordering::Acquire);
        (found == handle || found == 0).then_some(known)
    })
}

/// How a card stands.
#[inline]
pub(crate) fn standing(card: Handle) -> CardStatus {
    let handle = card.0.addr();
    let code = place(handle)
        .filter(|known| known.handle.load(Ordering::Acquire) == handle)
        .map_or(0, |known| known.code.load(Ordering::Acquire));
    if code == 0 { look_at(card) } else { CardStatus::from_code(code) }
}

#[cold]
fn look_at(card: Handle) -> CardStatus {
    let _errno = KeepErrno::new();
    let mut text = [0_u8; UUID_MAX];
    // Without a UUID nothing is remembered: NVML may not be initialised, which the caller's call will say.
    if nvmlDeviceGetUUID(card.0, text.as_mut_ptr(), 96) != Some(SUCCESS) {
        return CardStatus::Closed;
    }
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(UUID_MAX);
    let Some(uuid) = text.get(..end).and_then(grants::parse_uuid) else { return CardStatus::Closed };
    let standing = grants::standing_of(&uuid);
    remember(card.0.addr(), standing);
    standing
}

fn remember(handle: usize, standing: CardStatus) {
    let Some(known) = place(handle) else { return };
    let taken = known.handle.compare_exchange(0, handle, Ordering::AcqRel, Ordering::Acquire);
    if taken.map_or_else(|found| found == handle, |_| true) {
        known.code.store(standing.code(), Ordering::Release);
    }
}

/// The MIG instances that a handle stands for.
pub(crate) fn instances(card: Handle) -> Instances {
    let _errno = KeepErrno::new();
    let mut found = Instances::NONE;
    // NVML refuses it of a whole card.
    let is_part = nvmlDeviceGetGpuInstanceId(card.0, &raw mut found.gpu) == Some(SUCCESS)
        && nvmlDeviceGetComputeInstanceId(card.0, &raw mut found.compute) == Some(SUCCESS);
    if is_part { found } else { Instances::NONE }
}

/// Forgets everything: the next NVML may use handles in another way.
pub(crate) fn forget() {
    for known in &KNOWN {
        known.code.store(0, Ordering::Release);
    }
}

/// The account of a card.
pub(crate) fn account(card: Handle) -> Account {
    account::standing_as(standing(card))
}
