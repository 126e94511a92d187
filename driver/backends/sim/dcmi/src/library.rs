//! The library's state: its NPUs, and the faults that strike its calls.

// UNSAFETY: dladdr is a C function.
#![expect(unsafe_code, reason = "the library asks the loader for its own path")]

use std::cell::Cell;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aliquot_sim_device::npu::{MACHINE_FILE, NpuAction, Npus};

use crate::code::{Answer, Code, INNER, NOT_READY, NOT_THERE, TIMEOUT};

static NPUS: OnceLock<Option<Npus>> = OnceLock::new();
static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Answers of the running call are garbage.
    static GARBAGE: Cell<bool> = const { Cell::new(false) };
}

/// Where a container has the machine of its node.
const CONTAINER: &str = "/run/aliquot/npus";

/// The machine: below the root that the library itself lies in, else a container's, else the directory that the environment names.
fn place() -> PathBuf {
    let own = own_path().and_then(|path| {
        // <root>/usr/local/dcmi/libdcmi.so
        let root = path.ancestors().nth(4)?;
        root.join(MACHINE_FILE).is_file().then(|| root.to_owned())
    });
    let container = || Some(PathBuf::from(CONTAINER)).filter(|root| root.join(MACHINE_FILE).is_file());
    own.or_else(container).unwrap_or_else(aliquot_sim_device::dir_from_env)
}

fn own_path() -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let here = own_path as *const libc::c_void;
    // SAFETY: `here` is an address of this library, `info` a place for the answer.
    let found = unsafe { libc::dladdr(here, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's text ends with a zero and lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    std::fs::canonicalize(Path::new(OsStr::from_bytes(name.to_bytes()))).ok()
}

fn simulation() -> Option<&'static Npus> {
    NPUS.get_or_init(|| Npus::open(&place()).ok()).as_ref()
}

/// Runs a call: planned faults may strike, and no panic reaches the caller.
pub(crate) fn enter(export: &'static str, body: impl FnOnce() -> Answer) -> i32 {
    let guarded = AssertUnwindSafe(|| {
        let mut lost = false;
        let struck = simulation().map(|npus| npus.strike(export)).transpose()?;
        for action in struck.unwrap_or_default() {
            match action {
                NpuAction::Error(code) => return Err(Code(code)),
                NpuAction::SlowMillis(millis) => std::thread::sleep(Duration::from_millis(millis)),
                NpuAction::Garbage => GARBAGE.set(true),
                NpuAction::LoseAnswer => lost = true,
                NpuAction::Kill => std::process::abort(),
                NpuAction::Vanish => npus()?.change(|state| {
                    state.vnpus.clear();
                    Ok(())
                })?,
            }
        }
        body()?;
        if lost { Err(TIMEOUT) } else { Ok(()) }
    });
    let answer = catch_unwind(guarded);
    GARBAGE.set(false);
    match answer {
        Ok(Ok(())) => 0,
        Ok(Err(Code(code))) => code,
        Err(_) => INNER.0,
    }
}

/// Whether the running call answers garbage.
pub(crate) fn is_garbage() -> bool {
    GARBAGE.get()
}

/// `dcmi_init`.
pub(crate) fn init() -> Answer {
    simulation().ok_or(NOT_THERE)?;
    INITIALISED.store(true, Ordering::Release);
    Ok(())
}

/// The NPUs, once initialised.
pub(crate) fn npus() -> Answer<&'static Npus> {
    if !INITIALISED.load(Ordering::Acquire) {
        return Err(NOT_READY);
    }
    simulation().ok_or(NOT_READY)
}

/// Physical id of a chip.
pub(crate) fn phy(card: i32, device: i32) -> Answer<usize> {
    let number = |number: i32| u32::try_from(number).map_err(|_| NOT_THERE);
    Ok(npus()?.phy(number(card)?, number(device)?)?)
}
