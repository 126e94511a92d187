//! Every call passes here: the fault plan may strike, and no panic reaches the caller.

use crate::code::{Answer, Code, DEVICE_UNAVAILABLE, NOT_SUPPORTED, UNKNOWN};
use crate::process;
use aliquot_sim_device::{Action, Health};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Names a file to which calls without behaviour are written, one a line.
const LOG_ENV: &str = "ALIQUOT_SIM_LOG";

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
    let card = device.card(0);
    for action in plan.strike(export) {
        match action {
            Action::Error(code) => return Err(Code(code)),
            Action::SlowNanos(nanos) => std::thread::sleep(std::time::Duration::from_nanos(nanos)),
            Action::Missing => return Err(NOT_SUPPORTED),
            Action::Kill => crate::heap::kill_self(),
            Action::Xid(xid) => card.into_iter().for_each(|card| card.raise_xid(xid)),
            Action::Lost => card.into_iter().for_each(|card| card.set_health(Health::Lost)),
        }
    }
    Ok(())
}

/// The card fell off the bus: what a call on it answers.
pub(crate) const LOST: Code = DEVICE_UNAVAILABLE;

/// The answer of an export without behaviour.
#[cold]
pub(crate) fn unsupported(export: &str) -> Answer {
    if let Some(path) = std::env::var_os(LOG_ENV)
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        // The log is an aid: without it the answer is the same.
        writeln!(file, "{export}").map_err(|_| NOT_SUPPORTED)?;
    }
    Err(NOT_SUPPORTED)
}
