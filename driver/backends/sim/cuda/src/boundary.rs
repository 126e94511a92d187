//! Every call passes here: the fault plan may strike, and no panic reaches the caller.

use crate::code::{Answer, Code, DEVICE_UNAVAILABLE, NOT_SUPPORTED, UNKNOWN};
use crate::process;
use aliquot_sim_device::Struck;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
        Ok(Err(Code(code))) => code,
        Err(_) => UNKNOWN.0,
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
