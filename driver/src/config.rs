//! Settings from outside: each key once, with what it means.
//!
//! | key | from | meaning |
//! |---|---|---|
//! | `NO_COLOR` | environment | not empty: answers carry no colours, wherever they go (no-color.org) |
//! | `TERM` | environment | `dumb`: the terminal cannot be drawn on and has no colours |
//! | `XDG_STATE_HOME`, `HOME` | environment of an ordinary user | where local runs keep their state: `aliquot` below the first, else `.local/state/aliquot` below the second; root's is in `/var/lib/aliquot` |
//! | `LD_PRELOAD`, `LD_LIBRARY_PATH` | environment of `aliquot run` | kept for the command, behind the entries of the run |
//! | all but `LD_PRELOAD`, `LD_AUDIT`, `ALIQUOT_GRANTS` and `CUDA_…` | environment | passed to the process that measures a context |
//! | `ALIQUOT_GRANTS` | environment of every command | removed: `aliquot` started in a run queries the driver about its cards, not the shim |
//! | `KUBECONFIG` | environment | the kubeconfigs that `--cluster` reads, as kubectl does |
//! | `ALIQUOT_ASCEND_ROOT` | environment | the directory below which Ascend's driver, its device nodes and settings lie; `/` if it is not set. Containers mount from it, so that it is a path of the host |
//! | `LD_LIBRARY_PATH` | environment | also searched for Ascend's library, before the driver's own directories |
//! | `CUDA_VISIBLE_DEVICES` | environment of `aliquot run` | the cards among which a run without `--card` chooses; the command gets its own card there, by its number in the order of `CUDA_DEVICE_ORDER=PCI_BUS_ID` |

// UNSAFETY: the environment has no lock; the caller of `leave_grants` ensures that no other thread uses it.
#![expect(unsafe_code, reason = "a variable of the environment is taken away")]

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Environment variable with the directory of a process's grants.
pub const GRANTS_VARIABLE: &str = "ALIQUOT_GRANTS";

/// Directory of root's local runs.
const ROOT_STATE: &str = "/var/lib/aliquot";

/// The vendor's list of the cards that programs see.
pub const VISIBLE_CARDS: &str = "CUDA_VISIBLE_DEVICES";
/// How programs number the vendor's cards.
pub const CARD_ORDER: &str = "CUDA_DEVICE_ORDER";
/// The order of [`CARD_ORDER`] in which a node lists its cards.
pub const BUS_ORDER: &str = "PCI_BUS_ID";

/// Root of the file system that has Ascend's driver.
const ASCEND_ROOT: &str = "ALIQUOT_ASCEND_ROOT";

/// Whether an answer may be drawn again and again in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedrawMode {
    /// It goes to a terminal that can move its cursor.
    Drawable,
    /// It does not.
    None,
}

/// Whether colours are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// They are.
    On,
    /// They are not: no terminal, or `NO_COLOR` is set.
    Off,
}

/// Whether the environment lets answers have colours.
#[must_use]
pub fn colours() -> Colour {
    match std::env::var_os("NO_COLOR") {
        Some(value) if !value.is_empty() => Colour::Off,
        _ if screen() == RedrawMode::None => Colour::Off,
        _ => Colour::On,
    }
}

/// Whether the environment lets a terminal be drawn on.
#[must_use]
pub fn screen() -> RedrawMode {
    match std::env::var_os("TERM") {
        Some(kind) if kind != "dumb" && !kind.is_empty() => RedrawMode::Drawable,
        _ => RedrawMode::None,
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

/// The kubeconfigs that kubectl reads: those of `KUBECONFIG`, else the user's own.
pub(crate) fn kubeconfig_files() -> Vec<PathBuf> {
    match std::env::var_os("KUBECONFIG").filter(|named| !named.is_empty()) {
        Some(named) => std::env::split_paths(&named).collect(),
        None => std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect(),
    }
}

/// The cards that are visible by the inherited environment; `None`: all.
#[must_use]
pub fn visible_cards() -> Option<OsString> {
    std::env::var_os(VISIBLE_CARDS)
}

/// The directory below which Ascend's driver lies.
#[must_use]
pub fn ascend_root() -> PathBuf {
    let root = std::env::var_os(ASCEND_ROOT).map(PathBuf::from);
    root.filter(|root| root.is_absolute()).unwrap_or_else(|| PathBuf::from("/"))
}

/// Directories that this process's loader searches first; relative ones are left out.
#[must_use]
pub fn library_directories() -> Vec<PathBuf> {
    let list = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&list).filter(|dir| dir.is_absolute()).collect()
}

/// The environment without variables that preload libraries, limit the use of a card, or change the size of contexts.
pub fn without_preloads() -> impl Iterator<Item = (OsString, OsString)> {
    let is_other = |name: &OsStr| {
        !matches!(name.to_str(), Some("LD_PRELOAD" | "LD_AUDIT" | "ALIQUOT_GRANTS"))
            && !name.as_encoded_bytes().starts_with(b"CUDA_")
    };
    std::env::vars_os().filter(move |(name, _)| is_other(name))
}

/// Removes the grants of the run in which this program was started. Otherwise the shim in this process would report the grant's
/// size and processes, and the ledger would take them for the card's.
///
/// # Safety
/// No other thread reads or changes the environment meanwhile.
pub unsafe fn leave_grants() {
    // SAFETY: the caller ensures it.
    unsafe { std::env::remove_var(GRANTS_VARIABLE) };
}

/// A list variable of the environment with a new first entry.
#[must_use]
pub fn prepended(name: &str, first: &OsStr) -> OsString {
    let mut list = first.to_owned();
    if let Some(rest) = std::env::var_os(name).filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}

/// Directories of local runs' state: the user's own, and root's.
#[must_use]
pub fn state_homes() -> Vec<PathBuf> {
    let mut homes: Vec<PathBuf> = state_home().into_iter().collect();
    if !homes.iter().any(|home| home.as_os_str() == ROOT_STATE) {
        homes.push(PathBuf::from(ROOT_STATE));
    }
    homes
}
