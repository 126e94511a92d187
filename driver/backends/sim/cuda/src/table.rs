//! Every export, and the rule by which cuGetProcAddress picks one.

use crate::process;

/// Which default stream an ABI means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// The one that waits for the others.
    Legacy,
    /// The one of the calling thread.
    PerThread,
}

/// An export's address.
pub(crate) struct Address(pub(crate) *const ());

/// One ABI of one symbol.
pub(crate) struct Row {
    pub(crate) symbol: &'static str,
    pub(crate) version: u32,
    pub(crate) mode: Mode,
    pub(crate) export: &'static str,
    pub(crate) address: Address,
}

/// How a search ended.
pub(crate) enum LookupResult {
    /// Here it is.
    At(*const ()),
    /// No symbol of this name.
    No,
    /// The symbol is newer than the requested version.
    TooNew,
}

/// Sorted by symbol, then version, legacy first.
pub(crate) static ROWS: &[Row] = include!(concat!(env!("OUT_DIR"), "/table.rs"));

/// The newest ABI of `symbol` that is not newer than `version`; of the same version the per-thread one, if
/// `mode` requests it.
pub(crate) fn find(symbol: &str, version: u32, mode: Mode) -> LookupResult {
    let first = ROWS.partition_point(|row| row.symbol < symbol);
    let rows = ROWS.get(first..).unwrap_or(&[]).iter().take_while(|row| row.symbol == symbol);
    let ours = rows.filter(|row| row.mode <= mode && present(row)).collect::<Vec<_>>();
    if ours.is_empty() {
        return LookupResult::No;
    }
    let fitting = ours.iter().filter(|row| row.version <= version);
    fitting
        .max_by_key(|row| (row.version, row.mode))
        .map_or(LookupResult::TooNew, |row| LookupResult::At(row.address.0))
}

/// Whether this driver has the row: it is not newer than the driver, and no fault takes it away.
fn present(row: &Row) -> bool {
    row.version <= process::driver_version() && !process::lacks(row.export)
}
