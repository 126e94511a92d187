//! The memory limit in force.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aliquot_abi::limits::MemoryLimit;

use super::{Bytes, Ledger};
use crate::grants::GRANTS_MAX;

/// Limits as last read: decoding the page takes longer than an allocation may.
struct CachedLimit {
    /// Odd while a process writes the other two.
    version: AtomicU32,
    generation: AtomicU64,
    memory: AtomicU64,
}

static SEEN: [CachedLimit; GRANTS_MAX] = [const {
    CachedLimit { version: AtomicU32::new(0), generation: AtomicU64::new(0), memory: AtomicU64::new(0) }
}; GRANTS_MAX];

impl Ledger {
    /// The memory limit in force, in bytes; changes of the page are seen at the next call.
    pub(crate) fn limit(self) -> Bytes {
        let generation = self.grant.generation();
        let Some(seen) = SEEN.get(self.grant.number) else { return Bytes(0) };
        let version = seen.version.load(Ordering::Acquire);
        if version & 1 == 0 && seen.generation.load(Ordering::Acquire) == generation {
            let memory = seen.memory.load(Ordering::Acquire);
            // Pairs with the stores below: an even, unchanged version means that both words belong together.
            if seen.version.load(Ordering::Acquire) == version {
                return Bytes(memory);
            }
        }
        self.read_limit(seen, version)
    }

    /// What may be reserved in all: the limit, less what the driver has given to the tenant beyond all accounting
    /// ([`aliquot_enforce::residue`]), as the host's last look found it.
    #[inline]
    pub(crate) fn admissible(self) -> Bytes {
        Bytes(self.limit().0.saturating_sub(self.grant.residue()))
    }

    #[cold]
    fn read_limit(self, seen: &CachedLimit, version: u32) -> Bytes {
        let limits = match self.grant.read() {
            Some(limits) => limits,
            // What was read last stays in force while the page is nonsense.
            None if version & 1 == 0 && seen.generation.load(Ordering::Acquire) != 0 => {
                return Bytes(seen.memory.load(Ordering::Acquire));
            }
            None => *self.grant.first(),
        };
        let memory = match limits.memory {
            MemoryLimit::Bytes(bytes) => bytes,
            // Taken away while the process runs: as much as there is.
            MemoryLimit::Unlimited => u64::MAX >> 1,
        };
        let next = version | 1;
        let ours = version & 1 == 0
            && seen.version.compare_exchange(version, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if ours {
            seen.generation.store(limits.generation, Ordering::Release);
            seen.memory.store(memory, Ordering::Release);
            seen.version.store(next.wrapping_add(1), Ordering::Release);
        }
        Bytes(memory)
    }
}
