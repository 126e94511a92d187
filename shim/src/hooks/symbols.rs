//! The table: every symbol of the vendors' interfaces with its versions, and which exports are intercepted.
//!
//! The facts come from `symbols/*.tsv`, which a script regenerates from the vendor's headers; the hooks from the families in
//! [`crate::hooks`]. A hook is found by its export's name in a table that is computed when this is compiled.

use crate::hooks;
use crate::hooks::hook::Hook;
use crate::loader::library::Library;

/// Which default stream an ABI means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The one that waits for the others.
    Legacy,
    /// The one of the calling thread.
    PerThread,
}

/// A name in the text of all names. A table of addresses would be relocated in every process.
#[derive(Clone, Copy)]
pub struct Name {
    at: u16,
    length: u8,
}

impl Name {
    /// The name.
    #[must_use]
    pub fn text(self) -> &'static str {
        let at = usize::from(self.at);
        TEXT.get(at..at + usize::from(self.length)).unwrap_or_default()
    }

    fn bytes(self) -> &'static [u8] {
        self.text().as_bytes()
    }
}

impl core::fmt::Debug for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.text().fmt(f)
    }
}

/// One ABI of one symbol.
#[derive(Clone, Copy, Debug)]
pub struct Fact {
    /// Name by which `cuGetProcAddress` is asked.
    pub symbol: Name,
    /// First version with this ABI, 1000 × major + 10 × minor; NVML's own numbers for NVML.
    pub version: u32,
    /// Default stream.
    pub mode: Mode,
    /// Name under which the library exports it.
    pub export: Name,
}

/// All names, one behind the other, each once.
static TEXT: &str = include!(concat!(env!("OUT_DIR"), "/names.rs"));

/// CUDA's symbols, sorted by symbol, version, mode.
pub static CUDA: &[Fact] = include!(concat!(env!("OUT_DIR"), "/cuda.rs"));

/// NVML's symbols.
pub static NVML: &[Fact] = include!(concat!(env!("OUT_DIR"), "/nvml.rs"));

/// Newest version that the facts know.
pub const NEWEST: u32 = 13_050;

/// Places of the name table; a power of two, at most half full (checked below).
const PLACES: usize = 1024;

/// Hash of a name.
#[expect(clippy::cast_possible_truncation, reason = "the low bits are what is wanted")]
const fn hash(name: &[u8]) -> usize {
    let (mut h, mut at) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while at < name.len() {
        h = (h ^ name[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    ((h ^ (h >> 29)) as usize) & (PLACES - 1)
}

/// `family << 8 | row`, plus one; 0 is an empty place.
#[expect(
    clippy::cast_possible_truncation,
    reason = "there are fewer than 256 families, and rows are counted below"
)]
const TABLE: [u16; PLACES] = {
    let mut table = [0_u16; PLACES];
    let (mut family, mut count) = (0, 0);
    while family < hooks::NAMES.len() {
        let mut row = 0;
        while row < hooks::NAMES[family].len() {
            let mut place = hash(hooks::NAMES[family][row].as_bytes());
            while table[place] != 0 {
                place = (place + 1) % PLACES;
            }
            table[place] = ((family << 8 | row) + 1) as u16;
            row += 1;
            count += 1;
        }
        assert!(row < 256);
        family += 1;
    }
    assert!(count * 2 <= PLACES);
    table
};

/// The hook of an export.
#[must_use]
pub fn hook(export: &[u8]) -> Option<&'static Hook> {
    let mut place = hash(export);
    loop {
        let found = usize::from(*TABLE.get(place)?).checked_sub(1)?;
        let hook = hooks::FAMILIES.get(found >> 8)?.get(found & 0xff)?;
        if hook.export.to_bytes() == export {
            return Some(hook);
        }
        place = (place + 1) & (PLACES - 1);
    }
}

/// All hooks.
pub fn all() -> impl Iterator<Item = &'static Hook> {
    hooks::FAMILIES.iter().flat_map(|family| family.iter().copied())
}

/// The ABIs of a symbol, oldest first, legacy before per-thread.
#[must_use]
pub fn abis(library: Library, symbol: &[u8]) -> &'static [Fact] {
    let facts = match library {
        Library::Cuda => CUDA,
        Library::Nvml => NVML,
    };
    let first = facts.partition_point(|fact| fact.symbol.bytes() < symbol);
    let rest = facts.get(first..).unwrap_or(&[]);
    let count = rest.partition_point(|fact| fact.symbol.bytes() == symbol);
    rest.get(..count).unwrap_or(&[])
}

/// Whether some version of a vendor's library is known to export this.
#[must_use]
pub fn knows(library: Library, export: &[u8]) -> bool {
    // The name by which cuGetProcAddress is asked is the export's, less what tells ABIs apart.
    let mut symbol = export;
    loop {
        if abis(library, symbol).iter().any(|fact| fact.export.bytes() == export) {
            return true;
        }
        let Some(end) = symbol.iter().rposition(|byte| *byte == b'_') else { return false };
        symbol = symbol.get(..end).unwrap_or(&[]);
    }
}

/// The vendor's rule: the newest ABI not newer than `version`; of that version the per-thread one, where `mode` asks for it.
#[must_use]
pub fn by_rule(symbol: &[u8], version: u32, mode: Mode) -> Option<&'static Fact> {
    let fitting = abis(Library::Cuda, symbol).iter();
    fitting
        .filter(|fact| fact.version <= version && fact.mode <= mode)
        .max_by_key(|fact| (fact.version, fact.mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hook_is_found_by_its_name_and_nothing_else_is() {
        let mut count = 0;
        for hook in all() {
            count += 1;
            assert!(core::ptr::eq(super::hook(hook.export.to_bytes()).unwrap_or(hook), hook));
            assert!(super::hook(hook.export.to_bytes()).is_some(), "{hook:?}");
        }
        assert!(count > 0);
        assert!(super::hook(b"cuNoSuchFunction").is_none());
        assert!(super::hook(b"").is_none());
    }

    #[test]
    fn every_export_of_the_facts_is_known_and_nothing_else_is() {
        for (library, facts) in [(Library::Cuda, CUDA), (Library::Nvml, NVML)] {
            assert!(facts.iter().all(|fact| knows(library, fact.export.bytes())));
        }
        for unknown in ["", "cu", "cuMemAlloc_v9", "cuMemAlloc_", "cuNoSuchFunction_v2_ptsz", "nvmlInit_v2"] {
            assert!(!knows(Library::Cuda, unknown.as_bytes()), "{unknown}");
        }
    }

    /// What moves or fills memory takes the card's time: no form of it goes by unmetered, but those of before CUDA 3.2.
    #[test]
    fn every_copy_fill_and_prefetch_is_metered() {
        let stems =
            ["cuMemcpy", "cuMemset", "cuMemPrefetch", "cuMemDiscard", "cuMemBatchDecompress", "cuFabricCpy"];
        let is_first = |fact: &Fact| fact.version < 3020;
        let moves =
            |fact: &&Fact| !is_first(fact) && stems.iter().any(|stem| fact.symbol.text().starts_with(stem));
        let mut count = 0;
        for fact in CUDA.iter().filter(moves) {
            count += 1;
            let need = super::hook(fact.export.bytes()).map(|hook| hook.need);
            assert_eq!(need, Some(crate::grants::Need::Compute), "{fact:?}");
        }
        assert!(count > 90, "{count}");
    }

    /// What takes a card's memory or runs on it by name: no form of it goes by, of whichever version.
    #[test]
    fn every_form_of_what_takes_memory_or_runs_is_hooked() {
        let stems = [
            "cuMemAlloc",
            "cuMemCreate",
            "cuMemMap",
            "cuMemGetHandleForAddressRange",
            "cuMulticastBind",
            "cuMulticastUnbind",
            "cuLogicalEndpointBind",
            "cuLogicalEndpointUnbind",
            "cuMemPoolCreate",
            "cuArrayCreate",
            "cuArray3DCreate",
            "cuMipmappedArrayCreate",
            "cuCtxCreate",
            "cuDevicePrimaryCtxRetain",
            "cuGreenCtxCreate",
            "cuModuleLoad",
            "cuModuleGetFunction",
            "cuLibraryLoad",
            "cuLibraryGetKernel",
            "cuImportExternalMemory",
            "cuExternalMemoryGetMapped",
            "cuGraphAddMemAlloc",
            "cuGraphAddNode",
            "cuGraphInstantiate",
            "cuGraphUpload",
            "cuGraphLaunch",
            "cuLaunch",
        ];
        // Memory and functions of the host, and a number.
        let others =
            ["cuMemAllocHost", "cuLaunchHostFunc", "cuModuleGetFunctionCount", "cuLibraryGetKernelCount"];
        let takes =
            |symbol: &str| stems.iter().any(|stem| symbol.starts_with(stem)) && !others.contains(&symbol);
        let mut count = 0;
        for fact in CUDA.iter().filter(|fact| takes(fact.symbol.text())) {
            count += 1;
            assert!(super::hook(fact.export.bytes()).is_some(), "{fact:?}");
        }
        assert!(count > 50, "{count}");
    }

    #[test]
    fn every_hook_is_an_export_that_the_facts_know() {
        for hook in all() {
            let facts = if hook.library == Library::Cuda { CUDA } else { NVML };
            let known = facts.iter().any(|fact| fact.export.bytes() == hook.export.to_bytes());
            assert!(known, "{hook:?}");
        }
    }
}
