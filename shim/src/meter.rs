//! Memory of which only the driver knows the size, in the books: the pools of [`crate::pools`], the graphs of
//! [`crate::graphs`].
//!
//! ```text
//!   enter: reserve the worst growth ─▶ vendor call ─▶ end: ask the driver, settle, give back what was too much
//!    └─ does not fit: what of it the room serves ─▶ trim all pools ─▶ once more ─▶ the vendor's out-of-memory
//! ```
//!
//! Asking the driver how large a pool is touches no stream and waits for nothing.

use core::sync::atomic::{AtomicU64, Ordering};

use aliquot_enforce::growth::{Growth, Operation, Promise, Settled, Size};

use crate::account::{self, Account, Bytes, Ledger, Moving};
use crate::kept::{Empty, Kept, Table};
use crate::vendor::{self, Device, SUCCESS};

/// Most pools of one process that memory comes from.
const METERS_MAX: usize = 4096;
/// Tries to settle while other threads settle, too.
const TRIES_MAX: u32 = 32;
/// What pools are taken to grow by until the driver shows another unit, in bytes.
const UNIT_FIRST: u64 = 32 << 20;
/// Least and most that the unit may turn out to be, in bytes.
const UNIT_LEAST: u64 = 2 << 20;
const UNIT_MOST: u64 = 1 << 30;
/// What the driver rounds a block to, in bytes.
const BLOCK: u64 = 512;

/// What is metered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meter {
    /// A pool, by its handle.
    Pool(u64),
    /// The memory of a card's graphs.
    Graphs(Device),
    /// A card's primary context.
    Primary(Device),
}

/// What is known of it.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    /// The card, whose grant pays.
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
unsafe impl Empty for Known {}

static METERS: Kept<Table<Known, METERS_MAX>> = Kept::new();
static UNIT: AtomicU64 = AtomicU64::new(UNIT_FIRST);

/// A vendor call on its way.
pub(crate) struct Running {
    meter: Meter,
    operation: Operation,
    ledger: Ledger,
    /// None: nothing moves by asking.
    _moving: Option<Moving>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All it took is in the books.
    Fits,
    /// It took more than the limit leaves. The books hold it until it is given back.
    Over,
}

impl Meter {
    fn key(self) -> u64 {
        match self {
            Self::Pool(handle) => handle,
            // No handle is so small.
            Self::Graphs(device) => 2 * u64::try_from(device.0).unwrap_or(0) + 1,
            Self::Primary(device) => 2 * u64::try_from(device.0).unwrap_or(0) + 2,
        }
    }

    fn of_key(key: u64, known: &Known) -> Self {
        let all = [Self::Graphs(known.device), Self::Primary(known.device)];
        all.into_iter().find(|meter| meter.key() == key).unwrap_or(Self::Pool(key))
    }

    /// What is known of it.
    pub(crate) fn known(self) -> Option<Known> {
        METERS.with(|meters| meters.get(self.key()).copied()).flatten()
    }

    /// Notes where it is, unless that is known. False: there is no room to note it.
    pub(crate) fn note(self, device: Device, state: State) -> bool {
        let known = Known { device, state, growth: Growth::default() };
        let noted = |meters: &mut Table<Known, METERS_MAX>| {
            meters.get(self.key()).is_some() || meters.set(self.key(), known)
        };
        METERS.with(noted) == Some(true)
    }

    /// Changes how it stands.
    pub(crate) fn stand(self, state: State) {
        METERS.with(|meters| meters.get(self.key()).map(|known| known.state = state));
    }

    /// Forgets it, and gives back what the books hold for it.
    pub(crate) fn forget(self) {
        let known = METERS.with(|meters| meters.take(self.key())).flatten();
        if let Some(known) = known
            && let Account::Counted(ledger) = account::of(known.device)
        {
            ledger.release(Bytes(known.growth.in_books()));
        }
    }

    /// Forgets it if nothing is in the books for it.
    pub(crate) fn forget_idle(self) {
        METERS.with(|meters| {
            if meters.get(self.key()).is_some_and(|known| known.growth.is_idle()) {
                meters.take(self.key());
            }
        });
    }

    fn change<R>(self, inside: impl FnOnce(&mut Growth) -> R) -> Option<R> {
        METERS.with(|meters| meters.get(self.key()).map(|known| inside(&mut known.growth))).flatten()
    }

    /// Asks the driver.
    pub(crate) fn size(self) -> Option<Size> {
        Some(Size { reserved: self.reserved()?, used: self.ask(vendor::POOL_USED, vendor::GRAPHS_USED)? })
    }

    fn reserved(self) -> Option<u64> {
        self.ask(vendor::POOL_RESERVED, vendor::GRAPHS_RESERVED)
    }

    fn is_pool(self) -> bool {
        !matches!(self, Self::Primary(_))
    }

    fn ask(self, of_pool: u32, of_graphs: u32) -> Option<u64> {
        let mut value = 0;
        let answer = match self {
            Self::Pool(handle) => vendor::cuMemPoolGetAttribute(handle, of_pool, &raw mut value),
            Self::Graphs(device) => vendor::cuDeviceGetGraphMemAttribute(device.0, of_graphs, &raw mut value),
            Self::Primary(device) => return crate::overhead::primary_bytes(device).map(|bytes| bytes.0),
        };
        (answer? == SUCCESS).then_some(value)
    }

    /// A call that takes `bytes` begins. `None`: they do not fit, and trimming all pools does not help.
    pub(crate) fn enter(self, ledger: Ledger, bytes: Bytes) -> Option<Running> {
        let need = bytes.0.checked_next_multiple_of(BLOCK)?;
        let worst = need.checked_next_multiple_of(UNIT.load(Ordering::Relaxed))?;
        if ledger.reserve_now(Bytes(worst)).is_ok() {
            return self.begin(ledger, worst);
        }
        let with_room = self.enter_room(ledger, need);
        if with_room.is_some() {
            return with_room;
        }
        crate::pools::relieve(ledger);
        self.enter_room(ledger, need)
    }

    /// A call begins that takes `worst` at most. `None`: that does not fit.
    pub(crate) fn enter_worst(self, ledger: Ledger, worst: Bytes) -> Option<Running> {
        ledger.reserve(worst).ok()?;
        self.begin(ledger, worst.0)
    }

    fn begin(self, ledger: Ledger, worst: u64) -> Option<Running> {
        let operation = self.change(|growth| growth.begin(worst));
        if operation.is_none() {
            ledger.release(Bytes(worst));
        }
        Some(self.running(ledger, operation?))
    }

    fn running(self, ledger: Ledger, operation: Operation) -> Running {
        Running { meter: self, operation, ledger, _moving: Some(ledger.moving()) }
    }

    /// The same, as far as the room of the pool goes.
    #[cold]
    fn enter_room(self, ledger: Ledger, need: u64) -> Option<Running> {
        for _ in 0..TRIES_MAX {
            let stamp = self.change(|growth| growth.stamp())?;
            let size = self.size()?;
            let Some(room) = self.change(|growth| growth.room(stamp, size))? else { continue };
            let worst = need.saturating_sub(room).checked_next_multiple_of(UNIT.load(Ordering::Relaxed))?;
            ledger.reserve_now(Bytes(worst)).ok()?;
            match self.change(|growth| growth.promise(stamp, need, worst, size)) {
                Some(Promise::Made(operation)) => return Some(self.running(ledger, operation)),
                Some(Promise::Full | Promise::Stale) => ledger.release(Bytes(worst)),
                None => {
                    ledger.release(Bytes(worst));
                    return None;
                }
            }
        }
        None
    }

    /// Puts into the books what the driver says now.
    pub(crate) fn refresh(self, ledger: Ledger) -> Ended {
        // More than the books say is charged, whatever the limit: it is held.
        Running { meter: self, operation: Operation::default(), ledger, _moving: None }.end(SUCCESS)
    }
}

impl Running {
    /// The vendor's call is over, with this answer.
    pub(crate) fn end(self, answer: i32) -> Ended {
        for _ in 0..TRIES_MAX {
            let Some(stamp) = self.meter.change(|growth| growth.stamp()) else { break };
            let Some(reserved) = self.meter.reserved() else { break };
            match self.meter.change(|growth| growth.settle(stamp, self.operation, reserved)) {
                Some(Settled::Release(bytes)) => {
                    if self.meter.is_pool() {
                        learn(reserved);
                    }
                    if bytes > 0 {
                        self.ledger.release(Bytes(bytes));
                    }
                    return Ended::Fits;
                }
                Some(Settled::Charge(bytes)) => return self.charge(Bytes(bytes)),
                Some(Settled::Stale) => {}
                None => break,
            }
        }
        self.end_unasked(answer);
        Ended::Fits
    }

    /// The driver does not tell: what it refused took nothing, and what it granted may have taken the worst.
    #[cold]
    fn end_unasked(&self, answer: i32) {
        let end = if answer == SUCCESS { Growth::keep } else { Growth::cancel };
        let is_known = self.meter.change(|growth| end(growth, self.operation)).is_some();
        if answer != SUCCESS || !is_known {
            self.ledger.release(Bytes(self.operation.worst));
        }
    }

    /// It grew by more than was reserved: a pool, because the unit is larger than was known.
    #[cold]
    fn charge(&self, bytes: Bytes) -> Ended {
        if self.meter.is_pool() {
            let unit = UNIT.load(Ordering::Relaxed);
            UNIT.store(unit.saturating_mul(2).min(UNIT_MOST), Ordering::Relaxed);
        }
        if self.ledger.reserve_now(bytes).is_ok() {
            return Ended::Fits;
        }
        self.ledger.charge(bytes);
        Ended::Over
    }
}

/// Pools grow by whole units: a size that is no multiple of ours shows a smaller one.
fn learn(reserved: u64) {
    let unit = UNIT.load(Ordering::Relaxed);
    if reserved != 0 && !reserved.is_multiple_of(unit) {
        let shown = 1_u64.checked_shl(reserved.trailing_zeros()).unwrap_or(UNIT_LEAST);
        UNIT.store(shown.max(UNIT_LEAST).min(unit), Ordering::Relaxed);
    }
}

/// Calls `visit` for everything metered on cards of this ledger's grant; nothing is locked meanwhile.
pub(crate) fn each(ledger: Ledger, mut visit: impl FnMut(Meter, Known)) {
    let mut place = 0;
    while let Some((next, key, known)) = METERS.with(|meters| meters.from(place)).flatten() {
        place = next;
        if known.state != State::Free
            && let Account::Counted(other) = account::of(known.device)
            && other.number() == ledger.number()
        {
            visit(Meter::of_key(key, &known), known);
        }
    }
}

/// The same for all grants.
pub(crate) fn each_charged(mut visit: impl FnMut(Meter, Known, Ledger)) {
    let mut place = 0;
    while let Some((next, key, known)) = METERS.with(|meters| meters.from(place)).flatten() {
        place = next;
        if known.state != State::Free
            && let Account::Counted(ledger) = account::of(known.device)
        {
            visit(Meter::of_key(key, &known), known, ledger);
        }
    }
}

impl Known {
    /// Bytes in the books for it.
    pub(crate) fn in_books(&self) -> u64 {
        self.growth.in_books()
    }
}

/// Whether nothing is metered: most programs have no pool.
pub(crate) fn none() -> bool {
    METERS.with(|meters| meters.count()) == Some(0)
}
