//! Settings from outside: each key once, with what it means.
//!
//! | key | from | meaning |
//! |---|---|---|
//! | `NO_COLOR` | environment | not empty: answers carry no colours, wherever they go (no-color.org) |
//! | `TERM` | environment | `dumb`: the terminal cannot be drawn on and has no colours |
//! | `XDG_STATE_HOME`, `HOME` | environment of an ordinary user | where local runs keep their state: `aliquot` below the first, else `.local/state/aliquot` below the second; root's is in `/var/lib/aliquot` |
//! | `LD_PRELOAD`, `LD_LIBRARY_PATH` | environment of `aliquot run` | kept for the command, behind what the run puts there |
//! | all but `LD_PRELOAD`, `LD_AUDIT`, `ALIQUOT_GRANTS` and `CUDA_…` | environment | that of the process that shows what a context takes |
//! | `ALIQUOT_GRANTS` | environment of every command | left behind: what is started in a run asks the driver itself about its cards, not the shim |
//! | `CUDA_VISIBLE_DEVICES` | environment of `aliquot run` | the cards among which a run without `--card` chooses; the command is shown its own |

// UNSAFETY: the environment has no lock; who may change it, `leave_grants` leaves to its caller.
#![expect(unsafe_code, reason = "a variable of the environment is taken away")]

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::cli::{Colour, Screen};
use crate::run::record::GRANTS_VARIABLE;

/// Where root keeps the state of local runs.
const ROOT_STATE: &str = "/var/lib/aliquot";

/// The vendor's list of the cards that programs see.
pub const VISIBLE_CARDS: &str = "CUDA_VISIBLE_DEVICES";

/// Whether the environment lets answers have colours.
#[must_use]
pub fn colours() -> Colour {
    match std::env::var_os("NO_COLOR") {
        Some(value) if !value.is_empty() => Colour::Off,
        _ if screen() == Screen::None => Colour::Off,
        _ => Colour::On,
    }
}

/// Whether the environment lets a terminal be drawn on.
#[must_use]
pub fn screen() -> Screen {
    match std::env::var_os("TERM") {
        Some(kind) if kind != "dumb" && !kind.is_empty() => Screen::Drawable,
        _ => Screen::None,
    }
}

/// Where this user's local runs keep their state; `None`: the environment does not say where home is.
#[must_use]
pub fn state_home() -> Option<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Some(PathBuf::from(ROOT_STATE));
    }
    let place = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = place("XDG_STATE_HOME").or_else(|| Some(place("HOME")?.join(".local/state")));
    state.map(|state| state.join("aliquot"))
}

/// The cards that whoever started this program shows to programs; `None`: all.
#[must_use]
pub fn visible_cards() -> Option<OsString> {
    std::env::var_os(VISIBLE_CARDS)
}

/// The environment without what has a program load more than it asks for, limits what it has of a card, or makes contexts of
/// another size than others have.
pub fn without_preloads() -> impl Iterator<Item = (OsString, OsString)> {
    let is_other = |name: &OsStr| {
        !matches!(name.to_str(), Some("LD_PRELOAD" | "LD_AUDIT" | "ALIQUOT_GRANTS"))
            && !name.as_encoded_bytes().starts_with(b"CUDA_")
    };
    std::env::vars_os().filter(move |(name, _)| is_other(name))
}

/// Leaves the grants of the run in which this program was started: the shim in this process then hides nothing of a card, whose
/// size and processes would else be the grant's, and be taken for the card's by the ledger.
///
/// # Safety
/// No other thread reads or changes the environment meanwhile.
pub unsafe fn leave_grants() {
    // SAFETY: the caller's word.
    unsafe { std::env::remove_var(GRANTS_VARIABLE) };
}

/// A list variable of the environment with something before what stands there.
#[must_use]
pub fn prepended(name: &str, first: &OsStr) -> OsString {
    let mut list = first.to_owned();
    if let Some(rest) = std::env::var_os(name).filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}

/// Where state may lie that this user can look at: the user's own, and root's.
#[must_use]
pub fn state_homes() -> Vec<PathBuf> {
    let mut homes: Vec<PathBuf> = state_home().into_iter().collect();
    if !homes.iter().any(|home| home.as_os_str() == ROOT_STATE) {
        homes.push(PathBuf::from(ROOT_STATE));
    }
    homes
}
