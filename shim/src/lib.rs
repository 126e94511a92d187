//! The library in the tenant's process: holds its limits, shows its grant, stays out of the way.
//!
//! ```text
//!  tenant ─▶ dlsym, dlvsym, cuGetProcAddress, a linked symbol
//!               │ hooks::dl, hooks::proc_address: ask the vendor's library first, then put the hook in place of what it gave
//!               ▼
//!            Hook::entry ──no policy needs it──▶ the vendor's function itself
//!               │
//!               ▼
//!            hooks::{memory, …}: reserve ─▶ vendor call ─▶ keep or give back
//!               │                 account, life, grants: the region of the card that the call means
//!               ▼
//!            usage, limits (aliquot_abi), verdicts (aliquot_enforce)
//! ```
//!
//! Rules of a guest in a foreign process:
//!
//! - no panic, exit or abort; no heap, no stdio, no thread, no signal handler, no change of the environment;
//! - nothing happens before the first look at a vendor symbol: no constructor;
//! - no lock is held across a vendor call, and no allocation happens under one;
//! - `errno` is as it was after every call of ours;
//! - a vendor library that is absent, older or newer than known is not our error: what is unknown is passed on and counted;
//! - a free always reaches the vendor's library.
//!
//! Built with `--profile shim` this is `libaliquot.so`: no std, exports as in the hook table. In every other profile it is an
//! ordinary library that exports nothing, so that tests can call its inside.

#![cfg_attr(panic = "abort", no_std)]

#[macro_use]
mod hook;

mod account;
mod alloc_map;
mod asked;
mod captures;
mod closed;
mod contexts;
mod elf;
mod external;
mod grants;
mod graphs;
mod green;
pub mod hooks;
mod image;
mod kept;
mod leaving;
mod lent;
mod life;
mod measured;
mod meter;
mod modules;
mod monitored;
mod multicast;
mod overhead;
mod pacing;
mod pages;
mod physical;
mod plain;
mod pools;
mod presence;
mod process;
mod processes;
mod ranges;
mod resolve;
mod short;
mod shown;
mod sizes;
mod sparse;
pub mod symbols;
mod sys;
#[cfg(panic = "abort")]
mod unwind;
mod vendor;

/// There is nothing to unwind to and nothing to say: the code has no panicking path (a test looks for them in the built
/// library), so this is never reached.
#[cfg(panic = "abort")]
#[panic_handler]
fn never(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
