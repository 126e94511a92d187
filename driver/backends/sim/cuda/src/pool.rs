//! Memory pools: a block costs nothing while the pool has room; the pool grows by whole units. It shrinks to
//! its release threshold at a synchronisation or a trim. Fragmentation inside a pool is not modelled.

use crate::code::{Answer, INVALID_DEVICE, INVALID_VALUE, OUT_OF_MEMORY};
use crate::graph::Store;
use crate::handle::{Registry, Tag};
use crate::location::{self, Location, MemoryLocation};
use crate::process::{self, OurCard, lock};
use aliquot_sim_device::{MemoryKind, Seat};
use std::sync::{Arc, Mutex};

/// A pool.
pub(crate) struct Pool {
    pub(crate) device: usize,
    /// What it says of itself: CU_MEM_ALLOCATION_TYPE, and where it is.
    told: (u32, Location),
    payer: PoolPayer,
    books: Mutex<PoolAccounting>,
    /// Held while the pool grows: two concurrent growths would each count on the other's room.
    growing: Mutex<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PoolAccounting {
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
    threshold: u64,
    reuse: [u64; 3],
}

/// The memory that backs a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolPayer {
    Card,
    Host,
}

/// The pools that belong to a card as such.
#[derive(Default)]
pub(crate) struct Pools {
    /// The default one, and the one set by cuDeviceSetMemPool; 0: not made yet.
    handles: Mutex<(u64, u64)>,
    /// What graphs hold.
    pub(crate) graphs: Store,
}

/// All pools.
pub(crate) static POOLS: Registry<Pool> = Registry::new(Tag::Pool, INVALID_VALUE);

/// Attributes of a pool, by the vendor's numbers.
const ALLOCATION_TYPE: u32 = 9;
const EXPORT_HANDLE_TYPES: u32 = 10;
const LOCATION_ID: u32 = 11;
const LOCATION_TYPE: u32 = 12;
/// CU_MEM_ALLOCATION_TYPE
const PINNED: u32 = 1;
const MANAGED: u32 = 2;
/// From this version on drivers say what a pool is, and have managed ones.
const TOLD_SINCE: u32 = 13_000;
const RELEASE_THRESHOLD: u32 = 4;
const RESERVED_CURRENT: u32 = 5;
const RESERVED_HIGH: u32 = 6;
const USED_CURRENT: u32 = 7;
const USED_HIGH: u32 = 8;

impl PoolAccounting {
    /// Takes a block where there is room; how much there is too little.
    fn take(&mut self, bytes: u64) -> Answer<u64> {
        let wanted = self.used.checked_add(bytes).ok_or(OUT_OF_MEMORY)?;
        if wanted <= self.reserved {
            self.used = wanted;
            self.used_high = self.used_high.max(wanted);
        }
        Ok(wanted.saturating_sub(self.reserved))
    }
}

impl Pool {
    fn new((device, payer): (usize, PoolPayer), told: (u32, Location)) -> Self {
        let books = PoolAccounting { reuse: [1; 3], ..PoolAccounting::default() };
        Self { device, told, payer, books: Mutex::new(books), growing: Mutex::default() }
    }

    /// A card's own.
    fn own(device: usize) -> Self {
        let number = i32::try_from(device).unwrap_or(i32::MAX);
        Self::new((device, PoolPayer::Card), (PINNED, Location { kind: location::CARD, number }))
    }

    fn card(&self) -> Answer<&'static OurCard> {
        process::cards()?.get(self.device).ok_or(INVALID_DEVICE)
    }

    /// Takes a block, growing by whole units where needed.
    pub(crate) fn take(&self, bytes: u64) -> Answer {
        if lock(&self.books).take(bytes)? == 0 {
            return Ok(());
        }
        let ours = self.card()?;
        let _growing = lock(&self.growing);
        loop {
            // Unlocked meanwhile: a refusal trims all pools, this one too.
            let lacks = lock(&self.books).take(bytes)?;
            if lacks == 0 {
                return Ok(());
            }
            let growth = lacks.checked_next_multiple_of(ours.card.node().pool_bytes).ok_or(OUT_OF_MEMORY)?;
            if self.payer == PoolPayer::Card {
                ours.take(MemoryKind::Pool, growth)?;
            }
            let mut books = lock(&self.books);
            books.reserved += growth;
            books.reserved_high = books.reserved_high.max(books.reserved);
            // Before a trim takes it again; others may have taken some of the room before it came.
            if books.take(bytes)? == 0 {
                return Ok(());
            }
        }
    }

    /// Gives a block back to the pool.
    pub(crate) fn give(&self, bytes: u64) {
        let mut books = lock(&self.books);
        books.used = books.used.saturating_sub(bytes);
    }

    /// Shrinks to `keep` bytes, and never below what is in use.
    pub(crate) fn trim(&self, seat: &Seat, unit: u64, keep: u64) {
        let mut books = lock(&self.books);
        let floor = books.used.max(keep.min(books.reserved)).next_multiple_of(unit);
        if books.reserved > floor {
            if self.payer == PoolPayer::Card {
                seat.give(MemoryKind::Pool, books.reserved - floor);
            }
            books.reserved = floor;
        }
    }

    /// cuMemPoolTrimTo.
    pub(crate) fn trim_to(&self, keep: u64) -> Answer {
        let ours = self.card()?;
        self.trim(ours.seat()?, ours.card.node().pool_bytes, keep);
        Ok(())
    }

    /// cuMemPoolGetAttribute.
    pub(crate) fn attribute(&self, which: u32) -> Answer<u64> {
        if which >= ALLOCATION_TYPE && process::driver_version() < TOLD_SINCE {
            return Err(INVALID_VALUE);
        }
        let books = lock(&self.books);
        match which {
            1..=3 => Ok(books.reuse[usize::try_from(which - 1).unwrap_or(0)]),
            RELEASE_THRESHOLD => Ok(books.threshold),
            RESERVED_CURRENT => Ok(books.reserved),
            RESERVED_HIGH => Ok(books.reserved_high),
            USED_CURRENT => Ok(books.used),
            USED_HIGH => Ok(books.used_high),
            ALLOCATION_TYPE => Ok(u64::from(self.told.0)),
            EXPORT_HANDLE_TYPES => Ok(0),
            LOCATION_ID => Ok(u64::from(u32::from_le_bytes(self.told.1.number.to_le_bytes()))),
            LOCATION_TYPE => Ok(u64::from(self.told.1.kind)),
            _ => Err(INVALID_VALUE),
        }
    }

    /// cuMemPoolSetAttribute: marks can only be set to 0.
    pub(crate) fn set_attribute(&self, which: u32, value: u64) -> Answer {
        let mut books = lock(&self.books);
        match (which, value) {
            (1..=3, value) => books.reuse[usize::try_from(which - 1).unwrap_or(0)] = value,
            (RELEASE_THRESHOLD, value) => books.threshold = value,
            (RESERVED_HIGH, 0) => books.reserved_high = books.reserved,
            (USED_HIGH, 0) => books.used_high = books.used,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}

/// Whether an attribute is a 32-bit number; the others are 64-bit.
pub(crate) fn attribute_is_short(which: u32) -> bool {
    (1..=3).contains(&which) || (ALLOCATION_TYPE..=LOCATION_TYPE).contains(&which)
}

/// cuMemPoolCreate: on a card, or in host memory, which is no card's business. What is managed and prefers no card is taken of the
/// current one, or the first, and stays there.
pub(crate) fn create(allocation: u32, location: Location) -> Answer<u64> {
    let place = match (allocation, location.kind) {
        (PINNED, location::CARD..=location::NUMA | location::DOMAIN) => Some(location.find()?),
        (MANAGED, _) if process::driver_version() < TOLD_SINCE => return Err(INVALID_VALUE),
        (MANAGED, location::CARD) => Some(location.find()?),
        (MANAGED, location::NONE | location::HOST | location::NUMA) => None,
        _ => return Err(INVALID_VALUE),
    };
    let current = || process::current().map_or(0, |context| context.device);
    let pool = match place {
        // A card of one domain is that domain.
        Some(MemoryLocation::Card(device)) => {
            Pool::new((device, PoolPayer::Card), (allocation, Location::of_card(device)?))
        }
        Some(MemoryLocation::Host) => Pool::new((0, PoolPayer::Host), (allocation, location)),
        None => Pool::new((current(), PoolPayer::Card), (allocation, location)),
    };
    Ok(POOLS.add(|_| pool).0)
}

/// cuMemPoolDestroy: what is still in use stays charged until it is freed.
pub(crate) fn destroy(handle: u64) -> Answer {
    let pool = POOLS.get(handle)?;
    let ours = pool.card()?;
    if ours.pools.default_handle(pool.device) == handle {
        return Err(INVALID_VALUE);
    }
    let pool = POOLS.remove(handle)?;
    pool.trim_to(0)?;
    // A block that is freed later leaves at once what it used.
    lock(&pool.books).threshold = 0;
    Ok(())
}

impl Pools {
    /// The card's default pool.
    pub(crate) fn default_handle(&self, device: usize) -> u64 {
        let mut handles = lock(&self.handles);
        if handles.0 == 0 {
            handles.0 = POOLS.add(|_| Pool::own(device)).0;
        }
        handles.0
    }

    /// The pool that cuMemAllocAsync takes from.
    pub(crate) fn current_handle(&self, device: usize) -> u64 {
        let default = self.default_handle(device);
        let set = lock(&self.handles).1;
        if POOLS.get(set).is_ok() { set } else { default }
    }

    /// cuDeviceSetMemPool.
    pub(crate) fn set_current(&self, handle: u64) {
        lock(&self.handles).1 = handle;
    }

    fn ours(&self) -> Vec<Arc<Pool>> {
        let same = |ours: &OurCard| std::ptr::eq(&raw const ours.pools, self);
        let device = process::cards().ok().and_then(|cards| cards.iter().position(same));
        let pools = POOLS.select(|pool| Some(pool.device) == device);
        pools.into_iter().map(|(_, pool)| pool).collect()
    }

    /// After a synchronisation: every pool shrinks to its threshold.
    pub(crate) fn settle(&self, seat: &Seat) {
        let unit = seat.card().node().pool_bytes;
        for pool in self.ours() {
            let threshold = lock(&pool.books).threshold;
            pool.trim(seat, unit, threshold.min(u64::MAX - unit));
        }
    }

    /// Memory is short: every pool shrinks to what is in use.
    pub(crate) fn trim_all(&self, seat: &Seat) {
        let unit = seat.card().node().pool_bytes;
        for pool in self.ours() {
            pool.trim(seat, unit, 0);
        }
    }
}
