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
//!               │                 accounting, grants: the region of the card that the call means
//!               ▼
//!            usage, limits (aliquot_abi), verdicts (aliquot_enforce)
//! ```
//!
//! # Folders
//!
//! A folder uses the folders before it in this table, and itself; `tests/tests/repository/tidy.rs` checks that.
//!
//! | folder | responsibility | uses |
//! |---|---|---|
//! | `sys` | system calls, the C library, loaded libraries, locks, fork-private tables | |
//! | `loader` | addresses and calls of the vendor's functions | `sys` |
//! | `grants` | grants of this process, matched with cards | `sys`, `loader` |
//! | `accounting` | reserved bytes in the region, process slots, contexts, tables of what is charged | `sys` to `grants` |
//! | `memory` | what each family of memory calls is charged | `sys` to `accounting` |
//! | `compute` | launches under a share, captures | `sys` to `memory` |
//! | `reporting` | memory and processes as reported to the tenant | `sys` to `accounting` |
//! | `hooks` | the intercepted functions by family, and their table | all |
//!
//! Accounting notifies the folders above it through one table of listeners (`accounting/listeners.rs`), which the first hook
//! installs: `on_pressure` before a refusal, `on_context_end` when a context ends.
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

mod sys;
#[macro_use]
mod loader;
mod accounting;
mod compute;
mod grants;
pub mod hooks;
mod memory;
mod reporting;
#[cfg(panic = "abort")]
mod unwind;

pub use hooks::symbols;

/// There is nothing to unwind to and nothing to say: the code has no panicking path (a test looks for them in the built
/// library), so this is never reached.
#[cfg(panic = "abort")]
#[panic_handler]
fn never(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
