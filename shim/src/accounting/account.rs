//! Memory on account: what this process holds of a grant, in shared accounting and in private words that a fork wipes.
//!
//! ```text
//!   of(device) ─▶ Counted(ledger) ─▶ reserve(bytes) ─▶ vendor call ─▶ keep, or release(bytes)
//!              ├▶ Uncounted: nothing is counted
//!              └▶ Closed: the vendor's out-of-memory
//! ```

// UNSAFETY: the private words lie in a mapping of our own.
#![expect(unsafe_code, reason = "private words lie in a mapping")]

mod limit;
mod own;
mod refusal;
mod residue;

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use aliquot_abi::limits::{FailMode, ManagedPolicy, MemoryLimit};
use aliquot_abi::view::SlotView;
use aliquot_enforce::memory::{MemoryAccounting, Release, Reservation, bytes_in};
use aliquot_enforce::units::Ppm;

use crate::accounting::life::{self, Calls, Contention, OwnSlot, Reaped};
use crate::accounting::listeners::listeners;
use crate::accounting::pages::PageSize;
use crate::grants::{self, CardStatus, GRANTS_MAX, Grant, Usage};
use crate::loader::vendor::Device;
use crate::sys::{self, KeepErrno};

/// Longest wait for another process's recount, in steps of a tenth of a millisecond.
const FROZEN_STEPS_MAX: u32 = 1_000;
const FROZEN_STEP_NANOS: u64 = 100_000;

/// Longest wait for calls of others that are under way, in steps.
const BESIDE_STEPS_MAX: u32 = 50;
const BESIDE_STEP_NANOS: u64 = 50_000;

/// Bytes of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(pub(crate) u64);

/// By what memory of a process comes back to the card before its accounting says so; bits of its slot's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum UnaccountedRelease {
    /// Pools, graphs, sparse arrays, what is freed in the order of a stream: at any time, in any amount.
    Memory = 1,
    /// A context that a runtime library has past the hooks: no less than its size at once.
    Context = 2,
}

/// Allocations for which a driver has pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Those that have an address.
    Pointers,
    /// Arrays and mipmapped arrays.
    Arrays,
}

/// The grant in whose accounting an allocation goes.
#[derive(Clone, Copy)]
pub(crate) enum Account {
    /// Free: the memory of this card is not limited.
    Uncounted,
    /// This ledger's.
    Counted(Ledger),
    /// It is refused.
    Closed,
}

/// A grant with a memory limit and usable accounting.
#[derive(Clone, Copy)]
pub(crate) struct Ledger {
    grant: &'static Grant,
    usage: &'static Usage,
}

/// They do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

/// The words of this process that no other process can write; a forked child begins with zeros.
pub(crate) struct Private {
    /// The slot's number plus one; 0: none yet; [`REGISTERING`]: a thread is at it.
    slot: AtomicU32,
    /// A thread of this process reaps.
    reaping: AtomicU32,
    /// The slot's owner word while the slot is this process's.
    owner: AtomicU64,
    own: AtomicU64,
    /// The part of `own` that is presumed, as far as this process has seen.
    presumed: AtomicU64,
    apart: AtomicU64,
    /// When the last look at exited processes began, in nanoseconds of the monotonic clock.
    looked: AtomicU64,
    /// And since when another process has been at it, and did not get on; 0: no process was.
    elsewhere: AtomicU64,
    /// How often accounting was closed then.
    closings: AtomicU64,
}

/// A call that moves memory is on its way, until what it moved is in accounting.
#[must_use]
pub(crate) struct InFlightOperation(Option<&'static AtomicU32>);

/// What this container's memory did at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryStamp {
    pub(crate) total: Bytes,
    pub(crate) calls: Calls,
    /// Processes that were found dead so far.
    pub(crate) reaped: u64,
}

const REGISTERING: u32 = u32::MAX;
/// A process that died longer ago than this has given back when a process is refused.
const LOOK_NANOS: u64 = 1_000_000;
/// And when a process asks what is free.
const LOOK_FOR_REPORT_NANOS: u64 = 50_000_000;
/// Longest wait for another process that looks for exited processes, before its work is done over: it may have been stopped.
const ELSEWHERE_NANOS_MAX: u64 = 5_000_000;

static PRIVATE: AtomicPtr<Private> = AtomicPtr::new(core::ptr::null_mut());

/// The account of a card.
pub(crate) fn of(device: Device) -> Account {
    standing_as(grants::standing(device))
}

/// The account of a card that stands so.
pub(crate) fn standing_as(standing: CardStatus) -> Account {
    match standing {
        CardStatus::Ungoverned => Account::Uncounted,
        CardStatus::Closed => Account::Closed,
        CardStatus::Granted(grant) => of_grant(grant),
    }
}

/// The account of a grant.
pub(crate) fn of_grant(grant: &'static Grant) -> Account {
    let first = grant.first();
    match (first.memory, &grant.usage, first.fail_mode) {
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

/// This process's slot in a grant, and a number that no other process of the tenant has; `None` while it can have none.
pub(crate) fn slot(grant: &'static Grant) -> Option<(u32, SlotView<'static>)> {
    let private = private(grant.number)?;
    let ledger = Ledger { grant, usage: grant.usage.as_ref()? };
    let seen = private.slot.load(Ordering::Acquire);
    let slot = ledger.own_slot(private, seen).or_else(|| ledger.register(private))?;
    Some((private.slot.load(Ordering::Acquire), slot))
}

impl InFlightOperation {
    /// Nothing is on its way.
    pub(crate) const NOTHING: Self = Self(None);
}

impl Drop for InFlightOperation {
    fn drop(&mut self) {
        if let Some(ended) = self.0 {
            ended.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Private {
    /// Takes bytes off one of these words.
    fn less(&self, word: &AtomicU64, bytes: Bytes) {
        let less = |held: u64| Some(held.saturating_sub(bytes.0));
        let _before = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

impl Ledger {
    /// Reserves before the vendor is asked. Where that does not fit, pools give back what they only keep, and processes that
    /// exited meanwhile give back what they held; so a refusal is a true one.
    pub(crate) fn reserve(self, bytes: Bytes) -> Result<(), OutOfMemory> {
        if bytes.0 == 0 {
            return Ok(());
        }
        self.reserve_now(bytes).or_else(|OutOfMemory| {
            self.relieve();
            self.reserve_now(bytes).or_else(|OutOfMemory| self.reserve_after_look(bytes))
        })
    }

    /// Memory is short: what is only kept, or was freed without notice, goes back.
    #[cold]
    pub(crate) fn relieve(self) {
        let _errno = KeepErrno::new();
        let known = listeners().into_iter().flat_map(|listeners| listeners.on_pressure);
        known.for_each(|give_back| give_back(self));
    }

    /// The same beside calls that reserve more than they keep, as an allocation that finds its page charged does: as long as
    /// calls of others are under way, what they give back is waited for. Not for long.
    pub(crate) fn reserve_beside(self, bytes: Bytes) -> Result<(), OutOfMemory> {
        self.reserve(bytes).or_else(|OutOfMemory| self.reserve_behind(bytes))
    }

    #[cold]
    fn reserve_behind(self, bytes: Bytes) -> Result<(), OutOfMemory> {
        let _errno = KeepErrno::new();
        for _ in 0..BESIDE_STEPS_MAX {
            // Read first: what a call that is over by then gave back is there.
            let under_way = self.still().calls.under_way;
            if self.reserve_at_once(bytes) {
                return Ok(());
            }
            if under_way <= 1 || bytes > self.limit() {
                break;
            }
            let wake = self.usage.view.wake();
            sys::wait_while(wake, wake.load(Ordering::Acquire), BESIDE_STEP_NANOS);
        }
        Err(OutOfMemory)
    }

    /// The same, without asking the pools.
    pub(crate) fn reserve_now(self, bytes: Bytes) -> Result<(), OutOfMemory> {
        let books = self.books().ok_or(OutOfMemory)?;
        match books.reserve_under(bytes.0, || self.admissible().0) {
            Reservation::Granted => Ok(()),
            Reservation::Denied { .. } | Reservation::Frozen => self.reserve_again(&books, bytes),
        }
    }

    /// The same where there is room at once; nothing is tried for it, and a process that is told no is not refused yet.
    pub(crate) fn reserve_at_once(self, bytes: Bytes) -> bool {
        let reserved = self.books().map(|books| books.reserve_under(bytes.0, || self.admissible().0));
        reserved == Some(Reservation::Granted)
    }

    #[cold]
    fn reserve_again(self, books: &MemoryAccounting<'_>, bytes: Bytes) -> Result<(), OutOfMemory> {
        let _errno = KeepErrno::new();
        let mut looked = !self.is_time_to_look(LOOK_NANOS);
        for _ in 0..FROZEN_STEPS_MAX {
            match books.reserve_under(bytes.0, || self.admissible().0) {
                Reservation::Granted => return Ok(()),
                Reservation::Denied { .. } if looked => return Err(OutOfMemory),
                Reservation::Denied { .. } => {
                    // The second answer is the true one only if the reaper's work is done.
                    looked = self.wait_for_reaper() == Reaped::Done;
                }
                Reservation::Frozen => {
                    self.wait_for_reaper();
                }
            }
        }
        Err(OutOfMemory)
    }

    /// Reaps, or waits for the process that does.
    fn wait_for_reaper(self) -> Reaped {
        let answer = self.look();
        if answer == Reaped::Elsewhere {
            let wake = self.usage.view.wake();
            sys::wait_while(wake, wake.load(Ordering::Acquire), FROZEN_STEP_NANOS);
        }
        answer
    }

    /// Has exited processes give back what they held, if no other process is at it, or has been for long.
    pub(crate) fn look(self) -> Reaped {
        let Some(private) = private(self.grant.number) else { return Reaped::Done };
        let begun = sys::now();
        let own = match private.slot.load(Ordering::Acquire) {
            0 | REGISTERING => OwnSlot::Unknown,
            number => OwnSlot::Slot(number - 1),
        };
        // A process that closed accounting since is not stopped, or was not long ago: overtaking it, no process would ever
        // finish.
        let closings = self.usage.view.closings().load(Ordering::Acquire);
        let is_new = private.closings.swap(closings, Ordering::AcqRel) != closings;
        let since = match private.elsewhere.load(Ordering::Acquire) {
            since if since != 0 && !is_new => since,
            _ => begun,
        };
        let is_patient = begun.saturating_sub(since) <= ELSEWHERE_NANOS_MAX;
        let manners = if is_patient { Contention::Waits } else { Contention::Goes };
        let answer = life::reap(*self.usage, self.part(), own, (&private.reaping, manners));
        if answer == Reaped::Done {
            private.looked.store(begun, Ordering::Release);
        }
        private.elsewhere.store(if answer == Reaped::Done { 0 } else { since }, Ordering::Release);
        answer
    }

    /// The part of the card that is this tenant's while others work, too.
    fn part(self) -> Ppm {
        Ppm::new(self.grant.limits().own_ppm.max(1))
    }

    fn is_time_to_look(self, nanos: u64) -> bool {
        let Some(private) = private(self.grant.number) else { return false };
        sys::now().saturating_sub(private.looked.load(Ordering::Acquire)) > nanos
    }

    /// Puts into accounting what is held already and was not foreseen, whatever the limit: nothing more is granted until it is
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
        if bytes.0 == 0 {
            return;
        }
        if let Some(books) = self.books() {
            if books.release(bytes.0) == Release::Owed {
                self.pay(&books);
            }
        } else if let Some(private) = private(self.grant.number) {
            // The slot was taken away and there is none left: shared accounting does not have it any more.
            private.less(&private.own, bytes);
        }
    }

    /// Subtracts what a recount held up, as it is over in a moment.
    #[cold]
    fn pay(self, books: &MemoryAccounting<'_>) {
        let _errno = KeepErrno::new();
        let mut steps = 0..FROZEN_STEPS_MAX;
        while steps.next().is_some() && books.release(0) == Release::Owed {
            self.wait_for_reaper();
        }
    }

    /// Moves what this process reserved into the slot of IPC-shared memory. False: accounting stays closed.
    pub(crate) fn set_apart(self, bytes: Bytes, apart: &AtomicU64) -> bool {
        self.until_open(self.books(), |books| books.set_apart(bytes.0, apart) == Reservation::Granted)
    }

    /// Gives back what no process has any more of such memory. False: accounting stays closed, or this process has no slot any
    /// more, and takes none, as its caller keeps other threads from taking one.
    pub(crate) fn take_back(self, apart: &AtomicU64) -> bool {
        self.until_open(self.books_had(), |books| books.take_back(apart) == Release::Done)
    }

    /// What this process set apart is not its own any more.
    pub(crate) fn let_go(self, bytes: Bytes) {
        if let Some(books) = self.books() {
            books.let_go(bytes.0);
        } else if let Some(private) = private(self.grant.number) {
            private.less(&private.apart, bytes);
            private.less(&private.own, bytes);
        }
    }

    /// Whether this process has a slot, or gets one now.
    pub(crate) fn has_books(self) -> bool {
        self.books().is_some()
    }

    fn until_open(
        self,
        books: Option<MemoryAccounting<'_>>,
        mut done: impl FnMut(&MemoryAccounting<'_>) -> bool,
    ) -> bool {
        let Some(books) = books else { return false };
        (0..FROZEN_STEPS_MAX).any(|_| {
            done(&books) || {
                self.wait_for_reaper();
                false
            }
        })
    }

    /// Held from before accounting changes until the vendor has taken or given back the memory and they say so: a process that
    /// measures then, in any process, knows that they differ from the card.
    pub(crate) fn moving(self) -> InFlightOperation {
        let slot = self.slot();
        if let Some(slot) = slot {
            slot.begun().fetch_add(1, Ordering::SeqCst);
        }
        InFlightOperation(slot.map(SlotView::ended))
    }

    /// From now on memory of this process may come back to the card before accounting says so.
    pub(crate) fn loosen(self, by: UnaccountedRelease) {
        if let Some(slot) = self.slot() {
            slot.loose().fetch_or(by as u32, Ordering::SeqCst);
        }
    }

    /// What moves at this moment.
    pub(crate) fn still(self) -> MemoryStamp {
        let view = self.usage.view;
        MemoryStamp {
            total: Bytes(bytes_in(view.total().load(Ordering::SeqCst))),
            calls: life::calls(*self.usage, self.own_number()),
            reaped: view.reaped().load(Ordering::SeqCst),
        }
    }

    /// Whether all other processes of the container are seen to live.
    pub(crate) fn all_live(self) -> bool {
        life::all_live(*self.usage, self.own_number())
    }

    /// The number of this process's slot, or one that none has.
    fn own_number(self) -> u32 {
        let own = private(self.grant.number).map_or(0, |private| private.slot.load(Ordering::Acquire));
        own.wrapping_sub(1)
    }

    /// Bytes that a context takes on this card, as the driver showed the host; 0: unknown.
    pub(crate) fn context_bytes(self) -> Bytes {
        Bytes(self.grant.limits().context_bytes)
    }

    /// Pages of device memory of a family on this card.
    pub(crate) fn page(self, family: Family) -> PageSize {
        let pages = self.grant.first().pages;
        PageSize(match family {
            Family::Pointers => pages.pointer_bits(),
            Family::Arrays => pages.array_bits(),
        })
    }

    /// Bytes that could be reserved now, for reports: a process that only reads takes no slot. A total that a process has
    /// overwritten shows no less than what this process holds itself.
    pub(crate) fn free(self) -> Bytes {
        let Some(private) = private(self.grant.number) else { return Bytes(0) };
        let total = || bytes_in(self.usage.view.total().load(Ordering::Acquire));
        let slot = self.own_slot(private, private.slot.load(Ordering::Acquire));
        slot.into_iter().for_each(|slot| residue::see_lowered(private, slot));
        let own = private.own.load(Ordering::Acquire);
        // Where no other process holds anything, no exited process does.
        if total() > own && self.is_time_to_look(LOOK_FOR_REPORT_NANOS) {
            let _errno = KeepErrno::new();
            // Another process at it is as good.
            let _done_or_elsewhere = self.look();
        }
        let limit = self.admissible().0;
        Bytes(limit.saturating_sub(total()).min(limit.saturating_sub(own)))
    }

    /// The accounting words themselves.
    pub(crate) fn usage(self) -> Usage {
        *self.usage
    }

    /// How managed memory is charged, as the page says now.
    pub(crate) fn managed(self) -> ManagedPolicy {
        self.grant.limits().managed
    }

    /// The number of the grant: what a table of allocations keeps.
    pub(crate) fn number(self) -> usize {
        self.grant.number
    }
}
