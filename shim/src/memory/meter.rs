//! Memory of which only the driver knows the size, in accounting: the pools of [`crate::memory::pools`].
//!
//! ```text
//!   enter: reserve the worst growth ─▶ vendor call ─▶ end: ask the driver, settle, give back what was too much
//!    └─ does not fit: what of it the room serves ─▶ trim all pools ─▶ once more ─▶ the vendor's out-of-memory
//! ```
//!
//! Asking the driver how large a pool is touches no stream and waits for nothing.

mod running;
mod walk;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aliquot_enforce::growth::{Growth, Operation, Promise, Size, Stamp};

use crate::accounting::account::{self, Account, Bytes, InFlightOperation, Ledger, UnaccountedRelease};
use crate::grants::DEVICES_MAX;
use crate::loader::vendor::{self, Device, SUCCESS};
use crate::memory::admission_gate::pass_admission_gate;
use crate::sys::fork_private::{Empty, ForkPrivate, Table};

pub(crate) use walk::{each, each_changed};

/// Meters of one process, a quarter of them left empty.
const METERS_MAX: usize = 4096;
/// Most pools of one process that memory comes from.
const POOLS_MAX: usize = METERS_MAX / 4 * 3 - 2 * DEVICES_MAX;
/// Tries to settle while other threads settle, too.
const TRIES_MAX: u32 = 32;
/// What pools are taken to grow by until the driver shows another unit, in bytes.
const UNIT_FIRST: u64 = 32 << 20;
/// Least and most that the unit may turn out to be, in bytes.
const UNIT_LEAST: u64 = 2 << 20;
const UNIT_MOST: u64 = 1 << 30;
/// What the driver rounds a block to, in bytes.
const BLOCK: u64 = 512;

/// What is metered: a pool, by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meter(pub(crate) u64);

/// What is known of it.
#[derive(Clone, Copy)]
pub(crate) struct MeterRecord {
    /// The card that is charged.
    pub(crate) device: Device,
    pub(crate) state: State,
    growth: Growth,
}

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// Its growth is charged.
    Charged = 0,
    /// It is not in memory of a card.
    Free = 1,
    /// The program destroyed it; blocks are still in use.
    Going = 2,
}

// SAFETY: integers, and an enumeration with a zero.
#[expect(unsafe_code, reason = "zeros are promised to be a value")]
unsafe impl Empty for MeterRecord {}

/// What is metered, and how much of it there is of which kind.
struct Meters {
    table: Table<MeterRecord, METERS_MAX>,
    tally: [u32; KINDS],
}

// SAFETY: a table, and integers.
#[expect(unsafe_code, reason = "zeros are promised to be a value")]
unsafe impl Empty for Meters {}

/// What accounting is to follow without being told; counted, because most programs have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MeterKind {
    /// Pools with something in accounting: they grow or shrink on their own.
    Follows = 0,
    /// Pools that the program destroyed with blocks in use.
    Going = 1,
    /// Pools that are not in memory of a card.
    Free = 2,
}

const KINDS: usize = 3;

static METERS: ForkPrivate<Meters> = ForkPrivate::new();
/// [`Meters::tally`] for the thread that looks without the lock; after a fork too high until the first change.
static TALLY: [AtomicU32; KINDS] = [const { AtomicU32::new(0) }; KINDS];
static UNIT: AtomicU64 = AtomicU64::new(UNIT_FIRST);

/// A vendor call on its way.
pub(crate) struct RunningCall {
    meter: Meter,
    operation: Operation,
    ledger: Ledger,
    /// The moment at which it began; `None`: nothing began.
    begun: Option<Stamp>,
    _moving: InFlightOperation,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// All it took was reserved.
    Fits,
    /// It took more than was reserved, and the limit leaves that.
    Grew,
    /// It took more than the limit leaves. Accounting holds it until it is given back.
    Over,
}

impl Meter {
    /// What is known of it.
    pub(crate) fn known(self) -> Option<MeterRecord> {
        METERS.with(|meters| meters.table.get(self.0).copied()).flatten()
    }

    /// Notes where it is, unless that is known. False: there is no room to note it.
    pub(crate) fn note(self, device: Device, state: State) -> bool {
        let known = MeterRecord { device, state, growth: Growth::default() };
        let noted = |meters: &mut Meters| {
            let is_crowded = meters.table.count() >= POOLS_MAX;
            meters.table.get(self.0).is_some()
                || !is_crowded && {
                    let is_set = meters.table.set(self.0, known);
                    if is_set {
                        meters.count([0; KINDS], self.kinds(&known));
                    }
                    is_set
                }
        };
        let is_noted = METERS.with(noted) == Some(true);
        if is_noted && let Account::Counted(ledger) = account::of(device) {
            ledger.loosen(UnaccountedRelease::Memory);
        }
        is_noted
    }

    /// Changes how it stands.
    pub(crate) fn stand(self, state: State) {
        self.change_known(|known| known.state = state);
    }

    /// Forgets it, and gives back what accounting holds for it.
    pub(crate) fn forget(self) {
        let taken = |meters: &mut Meters| {
            let known = meters.table.take(self.0)?;
            meters.count(self.kinds(&known), [0; KINDS]);
            Some(known)
        };
        if let Some(known) = METERS.with(taken).flatten()
            && let Account::Counted(ledger) = account::of(known.device)
        {
            ledger.release(Bytes(known.growth.in_books()));
        }
    }

    fn change<R>(self, inside: impl FnOnce(&mut Growth) -> R) -> Option<R> {
        self.change_known(|known| inside(&mut known.growth))
    }

    fn change_known<R>(self, inside: impl FnOnce(&mut MeterRecord) -> R) -> Option<R> {
        let changed = |meters: &mut Meters| {
            let known = meters.table.get(self.0)?;
            let before = self.kinds(known);
            let answer = inside(known);
            let after = self.kinds(known);
            meters.count(before, after);
            Some(answer)
        };
        METERS.with(changed).flatten()
    }

    /// What it counts as.
    fn kinds(self, known: &MeterRecord) -> [u32; KINDS] {
        let follows = self.follows(known);
        let [is_going, is_free] = [State::Going, State::Free].map(|state| known.state == state);
        [follows, is_going, is_free].map(u32::from)
    }

    /// Whether it grows or shrinks without a call that tells: a pool that has something.
    fn follows(self, known: &MeterRecord) -> bool {
        known.in_books() > 0
    }

    /// Asks the driver.
    pub(crate) fn size(self) -> Option<Size> {
        Some(Size { reserved: self.reserved()?, used: self.ask(vendor::POOL_USED)? })
    }

    /// Bytes that the driver holds for it.
    pub(crate) fn reserved(self) -> Option<u64> {
        self.ask(vendor::POOL_RESERVED)
    }

    fn ask(self, of_pool: u32) -> Option<u64> {
        let mut value = 0;
        let answer = vendor::cuMemPoolGetAttribute(self.0, of_pool, &raw mut value);
        (answer? == SUCCESS).then_some(value)
    }

    /// A call begins that takes `bytes` of a pool of this card, if the pool is known and charged and accounting has room for the
    /// worst. `None`: otherwise; nothing has changed.
    pub(crate) fn enter_at_once(self, device: Device, ledger: Ledger, bytes: Bytes) -> Option<RunningCall> {
        let (_, worst) = worst_of(bytes)?;
        pass_admission_gate(ledger);
        let moving = ledger.moving();
        // Nothing is reserved for what may cost nothing: it would be missing elsewhere for a moment.
        if MeterKind::Free.is_there() || !ledger.reserve_at_once(Bytes(worst)) {
            return None;
        }
        let is_here = |known: &MeterRecord| known.state == State::Charged && known.device == device;
        self.begin((ledger, moving), worst, is_here)
    }

    /// A call that takes `bytes` begins. `None`: they do not fit, and trimming all pools does not help.
    pub(crate) fn enter(self, ledger: Ledger, bytes: Bytes) -> Option<RunningCall> {
        let (need, worst) = worst_of(bytes)?;
        pass_admission_gate(ledger);
        let moving = ledger.moving();
        if ledger.reserve_now(Bytes(worst)).is_ok() {
            return self.begin((ledger, moving), worst, |_| true);
        }
        drop(moving);
        let with_room = self.enter_room(ledger, need);
        if with_room.is_some() {
            return with_room;
        }
        ledger.relieve();
        self.enter_room(ledger, need).or_else(|| {
            let later = ledger.look_again(Bytes(need)).then(|| self.enter_room(ledger, need));
            later.flatten()
        })
    }

    /// Begins what `worst` is reserved for, where it is known and as `wanted`; gives that back where it is not.
    fn begin(
        self,
        (ledger, moving): (Ledger, InFlightOperation),
        worst: u64,
        wanted: impl FnOnce(&MeterRecord) -> bool,
    ) -> Option<RunningCall> {
        let began = self
            .change_known(|known| wanted(known).then(|| (known.growth.stamp(), known.growth.begin(worst))));
        let Some((stamp, operation)) = began.flatten() else {
            ledger.release(Bytes(worst));
            return None;
        };
        Some(self.running((ledger, moving), stamp, operation))
    }

    /// `moving` is from before accounting changed, as the thread that measures looks at both.
    fn running(
        self,
        (ledger, moving): (Ledger, InFlightOperation),
        stamp: Stamp,
        operation: Operation,
    ) -> RunningCall {
        RunningCall { meter: self, operation, ledger, begun: Some(stamp), _moving: moving }
    }

    /// The same, as far as the room of the pool goes.
    #[cold]
    fn enter_room(self, ledger: Ledger, need: u64) -> Option<RunningCall> {
        for _ in 0..TRIES_MAX {
            let stamp = self.change(|growth| growth.stamp())?;
            let size = self.size()?;
            let Some(room) = self.change(|growth| growth.room(stamp, size))? else { continue };
            let worst = need.saturating_sub(room).checked_next_multiple_of(UNIT.load(Ordering::Relaxed))?;
            let moving = ledger.moving();
            ledger.reserve_now(Bytes(worst)).ok()?;
            match self.change(|growth| growth.promise(stamp, need, worst, size)) {
                Some(Promise::Made(operation)) => {
                    return Some(self.running((ledger, moving), stamp, operation));
                }
                Some(Promise::Full | Promise::Stale) => ledger.release(Bytes(worst)),
                None => {
                    ledger.release(Bytes(worst));
                    return None;
                }
            }
        }
        None
    }

    /// Whether accounting has what the driver says now, where `known` was copied a moment ago; takes no lock.
    fn is_still(self, known: &MeterRecord) -> bool {
        known.state == State::Charged
            && self.reserved().is_some_and(|reserved| known.growth.is_settled_at(reserved))
    }

    /// Puts into accounting what the driver says now.
    pub(crate) fn refresh(self, ledger: Ledger) -> CallEnd {
        // More than accounting says is charged, whatever the limit: it is held. Nothing moves by asking.
        let (operation, moving) = (Operation::default(), InFlightOperation::NOTHING);
        RunningCall { meter: self, operation, ledger, begun: None, _moving: moving }.end(SUCCESS)
    }
}

/// By how much a store of graphs may grow for so many bytes.
pub(crate) fn rounded(bytes: u64) -> u64 {
    worst_of(Bytes(bytes)).map_or(u64::MAX, |(_, worst)| worst)
}

/// A block of so many bytes: what it takes of a pool, and by how much that may grow.
fn worst_of(bytes: Bytes) -> Option<(u64, u64)> {
    let need = bytes.0.checked_next_multiple_of(BLOCK)?;
    Some((need, need.checked_next_multiple_of(UNIT.load(Ordering::Relaxed))?))
}

/// Pools grow by whole units: a size that is no multiple of ours shows a smaller one.
pub(crate) fn learn(reserved: u64) {
    let unit = UNIT.load(Ordering::Relaxed);
    if reserved != 0 && !reserved.is_multiple_of(unit) {
        let shown = 1_u64.checked_shl(reserved.trailing_zeros()).unwrap_or(UNIT_LEAST);
        UNIT.store(shown.max(UNIT_LEAST).min(unit), Ordering::Relaxed);
    }
}

impl Meters {
    /// Something that counted as `before` counts as `after` now.
    fn count(&mut self, before: [u32; KINDS], after: [u32; KINDS]) {
        for (number, (before, after)) in
            before.into_iter().zip(after).enumerate().filter(|(_, (b, a))| b != a)
        {
            if let (Some(tally), Some(told)) = (self.tally.get_mut(number), TALLY.get(number)) {
                *tally = tally.wrapping_sub(before).wrapping_add(after);
                told.store(*tally, Ordering::Release);
            }
        }
    }
}

impl MeterKind {
    /// Whether there is one; takes no lock.
    pub(crate) fn is_there(self) -> bool {
        TALLY.get(self as usize).is_none_or(|tally| tally.load(Ordering::Acquire) != 0)
    }
}

impl MeterRecord {
    /// Bytes in accounting for it.
    pub(crate) fn in_books(&self) -> u64 {
        self.growth.in_books()
    }
}
