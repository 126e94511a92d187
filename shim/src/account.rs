//! Memory on account: what this process holds of a grant, in the shared books and in private words that a fork wipes.
//!
//! ```text
//!   of(device) ─▶ Counted(ledger) ─▶ reserve(bytes) ─▶ vendor call ─▶ keep, or release(bytes)
//!              ├▶ Uncounted: nothing is counted
//!              └▶ Closed: the vendor's out-of-memory
//! ```

// UNSAFETY: the private words lie in a mapping of our own.
#![expect(unsafe_code, reason = "private words lie in a mapping")]

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use aliquot_abi::limits::{FailMode, ManagedPolicy, MemoryLimit};
use aliquot_enforce::memory::{Books, Reservation};

use crate::grants::{self, GRANTS_MAX, Grant, Standing, Usage};
use crate::life;
use crate::sys::{self, KeepErrno};
use crate::vendor::Device;

/// Longest wait for somebody else's recount, in steps of a tenth of a millisecond.
const FROZEN_STEPS_MAX: u32 = 1_000;
const FROZEN_STEP_NANOS: u64 = 100_000;

/// Bytes of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(pub(crate) u64);

/// Whose books an allocation goes into.
#[derive(Clone, Copy)]
pub(crate) enum Account {
    /// Nobody's: the memory of this card is not limited.
    Uncounted,
    /// This ledger's.
    Counted(Ledger),
    /// It is refused.
    Closed,
}

/// A grant with a memory limit and usable books.
#[derive(Clone, Copy)]
pub(crate) struct Ledger {
    grant: &'static Grant,
    usage: Usage,
}

/// They do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

/// The words of this process that nobody else can write; a forked child begins with zeros.
pub(crate) struct Private {
    /// The slot's number plus one; 0: none yet; [`REGISTERING`]: a thread is at it.
    slot: AtomicU32,
    own: AtomicU64,
    owed: AtomicU64,
}

const REGISTERING: u32 = u32::MAX;

static PRIVATE: AtomicPtr<Private> = AtomicPtr::new(core::ptr::null_mut());

/// Limits as last read: decoding the page takes longer than an allocation may.
struct Seen {
    /// Odd while somebody writes the other two.
    version: AtomicU32,
    generation: AtomicU64,
    memory: AtomicU64,
}

static SEEN: [Seen; GRANTS_MAX] =
    [const { Seen { version: AtomicU32::new(0), generation: AtomicU64::new(0), memory: AtomicU64::new(0) } };
        GRANTS_MAX];

/// The account of a card.
pub(crate) fn of(device: Device) -> Account {
    match grants::standing(device) {
        Standing::Ungoverned => Account::Uncounted,
        Standing::Closed => Account::Closed,
        Standing::Granted(grant) => of_grant(grant),
    }
}

/// The account of a grant.
pub(crate) fn of_grant(grant: &'static Grant) -> Account {
    let first = grant.first();
    match (first.memory, grant.usage, first.fail_mode) {
        (MemoryLimit::Unlimited, _, _) | (_, None, FailMode::Open) => Account::Uncounted,
        (MemoryLimit::Bytes(_), Some(usage), _) => Account::Counted(Ledger { grant, usage }),
        (MemoryLimit::Bytes(_), None, FailMode::Closed) => Account::Closed,
    }
}

fn private(number: usize) -> Option<&'static Private> {
    let mut base = PRIVATE.load(Ordering::Acquire);
    if base.is_null() {
        let _errno = KeepErrno::new();
        let made = sys::map_wiped_on_fork(GRANTS_MAX * size_of::<Private>())?.cast::<Private>().as_ptr();
        let first =
            PRIVATE.compare_exchange(core::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        // Two threads at once leave one page behind, once.
        base = first.err().unwrap_or(made);
    }
    if number >= GRANTS_MAX {
        return None;
    }
    // SAFETY: a mapping of that many zeroed values, of which zero is a value; it is never unmapped.
    Some(unsafe { &*base.add(number) })
}

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

    #[cold]
    fn read_limit(self, seen: &Seen, version: u32) -> Bytes {
        let limits = self.grant.limits();
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

    /// Reserves before the vendor is asked. Where that does not fit, pools give back what they only keep, and whoever died
    /// meanwhile gives back what it held; so a refusal is a true one.
    pub(crate) fn reserve(self, bytes: Bytes) -> Result<(), OutOfMemory> {
        self.reserve_now(bytes).or_else(|OutOfMemory| {
            crate::pools::relieve(self);
            self.reserve_now(bytes)
        })
    }

    /// The same, without asking the pools.
    pub(crate) fn reserve_now(self, bytes: Bytes) -> Result<(), OutOfMemory> {
        let books = self.books().ok_or(OutOfMemory)?;
        match books.reserve(bytes.0, self.limit().0) {
            Reservation::Granted => Ok(()),
            Reservation::Denied { .. } | Reservation::Frozen => self.reserve_again(&books, bytes),
        }
    }

    #[cold]
    fn reserve_again(self, books: &Books<'_>, bytes: Bytes) -> Result<(), OutOfMemory> {
        let _errno = KeepErrno::new();
        let mut looked = false;
        for _ in 0..FROZEN_STEPS_MAX {
            match books.reserve(bytes.0, self.limit().0) {
                Reservation::Granted => return Ok(()),
                Reservation::Denied { .. } if looked => return Err(OutOfMemory),
                Reservation::Denied { .. } => {
                    // The second answer is the true one only if the reaper's work is done.
                    looked = life::reap(self.usage) != life::Reaped::Elsewhere;
                }
                Reservation::Frozen => self.wait_for_reaper(),
            }
        }
        Err(OutOfMemory)
    }

    /// Frozen books: reaps, or waits for who does.
    fn wait_for_reaper(self) {
        if life::reap(self.usage) == life::Reaped::Elsewhere {
            let wake = self.usage.view.wake();
            sys::wait_while(wake, wake.load(Ordering::Acquire), FROZEN_STEP_NANOS);
        }
    }

    /// Puts into the books what is held already and was not foreseen, whatever the limit: nothing more is granted until it is
    /// given back.
    #[cold]
    pub(crate) fn charge(self, bytes: Bytes) {
        let _errno = KeepErrno::new();
        let Some(books) = self.books() else { return };
        for _ in 0..FROZEN_STEPS_MAX {
            if books.reserve(bytes.0, u64::MAX >> 1) != Reservation::Frozen {
                return;
            }
            self.wait_for_reaper();
        }
    }

    /// Gives back what was reserved.
    pub(crate) fn release(self, bytes: Bytes) {
        if let Some(books) = self.books() {
            // What a recount holds up goes off with the next operation.
            let _done_or_owed = books.release(bytes.0);
        }
    }

    /// Bytes that could be reserved now.
    pub(crate) fn free(self) -> Bytes {
        self.books().map_or(Bytes(0), |books| Bytes(books.free(self.limit().0)))
    }

    /// How managed memory is charged, as the page says now.
    pub(crate) fn managed(self) -> ManagedPolicy {
        self.grant.limits().managed
    }

    /// The number of the grant: what a table of allocations keeps.
    pub(crate) fn number(self) -> usize {
        self.grant.number
    }

    /// The books of this process in this grant; `None` while it can have none.
    fn books(self) -> Option<Books<'static>> {
        let private = private(self.grant.number)?;
        let slot = match private.slot.load(Ordering::Acquire) {
            0 | REGISTERING => self.register(private)?,
            number => number - 1,
        };
        let view = self.usage.view;
        let slot = view.slot(usize::try_from(slot).ok()?)?;
        Some(Books {
            total: view.total(),
            high_water: view.high_water(),
            denied: view.denied(),
            inside: slot.inside(),
            used: slot.used(),
            own: &private.own,
            owed: &private.owed,
        })
    }

    #[cold]
    fn register(self, private: &Private) -> Option<u32> {
        let _errno = KeepErrno::new();
        loop {
            match private.slot.compare_exchange(0, REGISTERING, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(REGISTERING) => sys::yield_now(),
                Err(number) => return Some(number - 1),
            }
        }
        let slot = life::take_slot(self.usage);
        private.slot.store(slot.map_or(0, |slot| slot + 1), Ordering::Release);
        slot
    }
}
