//! Modules and libraries: charged with the variables that their image names, to the context that loads them.
//!
//! ```text
//!   load ─▶ what the image says that its variables take ─▶ reserve ─▶ vendor call ─▶ note, or give back
//! ```
//!
//! What an image does not say (code, compressed images, files, a library in further contexts) the governor finds at the driver's
//! ([`aliquot_enforce::residue`]).

use aliquot_abi::refusal::RefusedKind;

use crate::accounting::account::{self, Account, Bytes, Ledger};
use crate::accounting::alloc_map::{AllocMap, Key, Tie};
use crate::accounting::contexts::{self, Current};
use crate::accounting::credit;
use crate::loader::vendor::{OUT_OF_MEMORY, SUCCESS};
use crate::memory::address_out::AddressOut;
use crate::memory::admission_gate::moving_here;
use crate::memory::image;
use crate::memory::stacks;
use crate::sys::KeepErrno;

/// A module or library, by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object(pub(crate) u64);

/// Where an image lies that is loaded; 0: not in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image(pub(crate) u64);

/// What an object holds in the context that loaded it.
#[derive(Clone, Copy)]
struct ObjectCharge {
    tie: u32,
    grant: u32,
    bytes: u64,
}

static MODULES: AllocMap<ObjectCharge> = AllocMap::new();

impl Object {
    fn key(self) -> Key {
        Key(self.0 & u64::MAX >> 1)
    }
}

impl ObjectCharge {
    fn credit(self) {
        credit::credit(self.grant, Bytes(self.bytes));
    }
}

/// Reserves what the variables of an image take. `None`: there is nothing to charge.
fn reserve(image: Image) -> Result<Option<(Current, Ledger, Bytes)>, i32> {
    let _errno = KeepErrno::new();
    let Some(current) = contexts::current() else { return Ok(None) };
    let ledger = match account::of(current.device) {
        Account::Counted(ledger) => ledger,
        Account::Uncounted => return Ok(None),
        Account::Closed => return Err(OUT_OF_MEMORY),
    };
    let Some(variables) = image::variables(image.0).filter(|variables| variables.0 > 0) else {
        return Ok(None);
    };
    ledger.reserve(variables).map_err(|_| ledger.refuse(RefusedKind::Module.over_limit(variables.0)))?;
    Ok(Some((current, ledger, variables)))
}

/// A module or library is loaded; `unload` is the vendor's way back.
pub(crate) fn load(
    handle: AddressOut,
    image: Image,
    real: impl Fn() -> i32,
    unload: impl Fn(u64) -> i32,
) -> i32 {
    if handle.is_null() {
        return real();
    }
    let _moving = moving_here();
    let (current, ledger, bytes) = match reserve(image) {
        Ok(Some(reserved)) => reserved,
        Ok(None) => return real(),
        Err(answer) => return answer,
    };
    let before = handle.before();
    let answer = real();
    let _errno = KeepErrno::new();
    if answer != SUCCESS {
        ledger.release(bytes);
        return answer;
    }
    let object = Object(handle.read());
    let grant = u32::try_from(ledger.number()).unwrap_or(u32::MAX);
    match MODULES.insert(object.key(), ObjectCharge { tie: current.tie.0, grant, bytes: bytes.0 }) {
        Ok(ended_unseen) => {
            ended_unseen.into_iter().for_each(ObjectCharge::credit);
            SUCCESS
        }
        Err(_) => {
            // What is not noted could never be credited.
            if unload(object.0) == SUCCESS {
                ledger.release(bytes);
            }
            handle.write(before);
            ledger.refuse(RefusedKind::Module.without_place())
        }
    }
}

/// A module or library is unloaded. Always forwarded.
pub(crate) fn unload(object: Object, real: impl FnOnce() -> i32) -> i32 {
    let _moving = moving_here();
    // Out before the driver may give the handle to another thread.
    stacks::ended();
    let held = MODULES.take(object.key());
    let answer = real();
    let _errno = KeepErrno::new();
    match held {
        Some(held) if answer == SUCCESS => held.credit(),
        // It is still there. Where its place is gone its bytes stay until the process ends.
        Some(held) => drop(MODULES.insert(object.key(), held)),
        None => {}
    }
    answer
}

/// A context ended, and with it what was loaded into it.
#[inline(never)]
pub(crate) fn context_ended(tie: Tie) {
    MODULES.sweep(|_, held| held.tie == tie.0, ObjectCharge::credit);
}
