//! Limits as they were last read: what stays in force while the page is noise. Memory has a word of its own
//! (`account/limit.rs`), which allocations look at.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aliquot_abi::limits::{ComputePolicy, Limits, ManagedPolicy};

/// How often another process's writing is waited for.
const TURNS_MAX: u32 = 64;
/// Bits of a share: a million at most.
const SHARE_BITS: u32 = 20;

/// What of them can change.
pub(super) struct Last {
    /// Odd while a process writes the others; 0: nothing was read yet.
    version: AtomicU32,
    generation: AtomicU64,
    /// Guaranteed, granted and own share.
    shares: AtomicU64,
    /// Policy, above how managed memory is charged.
    kinds: AtomicU32,
}

impl Last {
    pub(super) const fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            generation: AtomicU64::new(0),
            shares: AtomicU64::new(0),
            kinds: AtomicU32::new(0),
        }
    }

    /// Changes with each note.
    pub(super) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// These were read, at this version. Where another thread noted since what it read, that is as good, and may be newer.
    pub(super) fn note(&self, version: u32, limits: &Limits) {
        if version != 0 && self.generation.load(Ordering::Acquire) == limits.generation {
            return;
        }
        let next = version | 1;
        let ours = version & 1 == 0
            && self.version.compare_exchange(version, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if ours {
            let shares = [limits.share_ppm, limits.granted_ppm, limits.own_ppm];
            self.generation.store(limits.generation, Ordering::Release);
            self.shares.store(
                shares.iter().fold(0, |word, share| word << SHARE_BITS | u64::from(*share)),
                Ordering::Release,
            );
            self.kinds
                .store(policy_code(limits.policy) << 1 | managed_code(limits.managed), Ordering::Release);
            self.version.store(next.wrapping_add(1).max(2), Ordering::Release);
        }
    }

    /// Those of the beginning, with what was read last since.
    pub(super) fn over(&self, first: &Limits) -> Limits {
        for _ in 0..TURNS_MAX {
            let version = self.version.load(Ordering::Acquire);
            if version == 0 {
                break;
            }
            let generation = self.generation.load(Ordering::Acquire);
            let shares = self.shares.load(Ordering::Acquire);
            let kinds = self.kinds.load(Ordering::Acquire);
            // Pairs with the stores above: an even, unchanged version means that all words belong together.
            if version & 1 == 0 && self.version.load(Ordering::Acquire) == version {
                let share = |at: u32| {
                    let bits = shares >> (at * SHARE_BITS) & ((1 << SHARE_BITS) - 1);
                    u32::try_from(bits).unwrap_or(0)
                };
                let (policy, managed) = (policy_of(kinds >> 1), managed_of(kinds & 1));
                let (share_ppm, granted_ppm, own_ppm) = (share(2), share(1), share(0));
                return Limits { generation, share_ppm, granted_ppm, own_ppm, policy, managed, ..*first };
            }
            core::hint::spin_loop();
        }
        *first
    }
}

const fn policy_code(policy: ComputePolicy) -> u32 {
    match policy {
        ComputePolicy::Cap => 0,
        ComputePolicy::Burst => 1,
        ComputePolicy::BestEffort => 2,
        ComputePolicy::Unlimited => 3,
    }
}

const fn policy_of(code: u32) -> ComputePolicy {
    match code {
        1 => ComputePolicy::Burst,
        2 => ComputePolicy::BestEffort,
        3 => ComputePolicy::Unlimited,
        _ => ComputePolicy::Cap,
    }
}

const fn managed_code(managed: ManagedPolicy) -> u32 {
    match managed {
        ManagedPolicy::Charge => 0,
        ManagedPolicy::Free => 1,
    }
}

const fn managed_of(code: u32) -> ManagedPolicy {
    if code == 1 { ManagedPolicy::Free } else { ManagedPolicy::Charge }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aliquot_abi::limits::{FailMode, MemoryLimit, Pages, Text};

    fn limits(generation: u64, share: u32, policy: ComputePolicy, managed: ManagedPolicy) -> Limits {
        Limits {
            generation,
            memory: MemoryLimit::Bytes(1 << 30),
            share_ppm: share,
            granted_ppm: share + 1,
            own_ppm: 1_000_000 - share,
            policy,
            priority: 1,
            fail_mode: FailMode::Closed,
            managed,
            context_bytes: 0,
            pages: Pages::ASSUMED,
            card: Text::new("GPU-0").unwrap(),
            claim: Text::new("c").unwrap(),
        }
    }

    #[test]
    fn last_read_value_stays() {
        let (last, first) = (Last::new(), limits(1, 500_000, ComputePolicy::Cap, ManagedPolicy::Charge));
        assert_eq!(last.over(&first), first, "nothing was read since");
        let policies =
            [ComputePolicy::Cap, ComputePolicy::Burst, ComputePolicy::BestEffort, ComputePolicy::Unlimited];
        let mut generation = 1;
        for policy in policies {
            for managed in [ManagedPolicy::Charge, ManagedPolicy::Free] {
                for share in [0, 1, 100_000, 999_999] {
                    generation += 1;
                    let read = limits(generation, share, policy, managed);
                    let version = last.version();
                    last.note(version, &read);
                    last.note(last.version(), &read);
                    let older = limits(generation - 1, share, policy, managed);
                    last.note(version, &older);
                    assert_eq!(last.over(&first), read);
                }
            }
        }
    }
}
