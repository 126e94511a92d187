//! Every call passes here: the fault plan may strike, and no panic reaches the caller.

use crate::code::{Answer, Code, DEVICE_UNAVAILABLE, NOT_SUPPORTED, UNKNOWN};
use crate::handle::Tag;
use crate::process;
use aliquot_sim_device::Struck;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// What the call used after its end.
    static ENDED: Cell<Option<Tag>> = const { Cell::new(None) };
}

/// Runs a call.
pub(crate) fn enter(export: &'static str, body: impl FnOnce() -> Answer) -> u32 {
    let guarded = AssertUnwindSafe(|| {
        if process::faults_planned() {
            strike(export)?;
        }
        body()
    });
    match catch_unwind(guarded) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => failed(export, code),
        Err(_) => UNKNOWN.0,
    }
}

/// A call failed; where it used what was gone, that is written down.
#[cold]
fn failed(export: &str, Code(code): Code) -> u32 {
    if let (Some(tag), Some((device, _))) = (ENDED.take(), process::faults()) {
        device.note_misuse(export, &format!("{tag:?}"));
    }
    code
}

/// The call names an object that is gone.
#[cold]
pub(crate) fn used_after_its_end(tag: Tag) {
    // Others are looked up in the vendor's driver, too, or are not the shim's to use.
    if matches!(tag, Tag::Context | Tag::Stream | Tag::Event) {
        ENDED.set(Some(tag));
    }
}

#[cold]
fn strike(export: &str) -> Answer {
    let Some((device, plan)) = process::faults() else { return Ok(()) };
    plan.apply(export, device).map_err(|struck| match struck {
        Struck::Error(code) => Code(code),
        Struck::Missing => NOT_SUPPORTED,
        Struck::Lost => LOST,
    })
}

/// The card fell off the bus: what a call on it answers.
pub(crate) const LOST: Code = DEVICE_UNAVAILABLE;

/// The answer of an export without behaviour.
#[cold]
pub(crate) fn unsupported(export: &str) -> Answer {
    aliquot_sim_device::log_unsupported(export);
    Err(NOT_SUPPORTED)
}
