//! Allocations that stand for themselves: reserved before the vendor is asked, recorded after, credited when freed.
//!
//! An entry is taken out *before* the vendor frees: the driver may hand the address to another thread the moment it has it
//! back. Where the driver refuses the free the entry is put back.

use crate::account::{self, Account, Bytes, Ledger, Loose, Moving};
use crate::alloc_map::{AllocMap, Held, Key, Tie};
use crate::contexts;
use crate::external::{self, IMPORTED};
use crate::grants::{self, GRANTS_MAX};
use crate::measured::wait_at_door;
use crate::vendor::{OUT_OF_MEMORY, SUCCESS};

/// Device pointers.
pub(crate) static POINTERS: AllocMap = AllocMap::new();
/// Arrays, by handle.
pub(crate) static ARRAYS: AllocMap = AllocMap::new();
/// Mipmapped arrays, by handle.
pub(crate) static MIPMAPPED: AllocMap = AllocMap::new();

/// What the vendor made: under which key, and how many bytes it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) key: Key,
    pub(crate) bytes: Bytes,
}

/// Makes something on the current card: reserves `most` (`None`: more than any card has), calls `make`, records what it took.
/// `unmake` is the vendor's way back, for what cannot be recorded. Answers the key or the vendor's number of the error.
pub(crate) fn make(
    map: &AllocMap,
    most: Option<Bytes>,
    make: impl FnOnce() -> Result<Made, i32>,
    unmake: impl FnOnce(Key) -> i32,
) -> Result<Key, i32> {
    let Some(current) = contexts::current() else {
        // Without a context the driver refuses, and knows best with which number.
        let made = make()?;
        let _charged_nobody = unmake(made.key);
        return Err(OUT_OF_MEMORY);
    };
    let ledger = match account::of(current.device) {
        Account::Uncounted => return make().map(|made| made.key),
        Account::Closed => return Err(OUT_OF_MEMORY),
        Account::Counted(ledger) => ledger,
    };
    let Some(most) = most else { return Err(ledger.refuse()) };
    wait_at_door(ledger);
    let _moving = ledger.moving();
    ledger.reserve(most).map_err(|_| ledger.refuse())?;
    let made = make().inspect_err(|_| ledger.release(most))?;
    if made.bytes < most {
        ledger.release(Bytes(most.0 - made.bytes.0));
    }
    let more = made.bytes.0.saturating_sub(most.0);
    let held = Held::new(made.bytes, ledger.number(), current.tie);
    let settled = more == 0 || ledger.reserve(Bytes(more)).is_ok();
    let charged = if settled { made.bytes } else { most };
    let recorded = held.filter(|_| settled).and_then(|held| map.insert(made.key, held).ok());
    match recorded {
        Some(stale) => {
            credit_if_any(made.key, stale);
            Ok(made.key)
        }
        None => {
            // What is still there stays charged.
            if unmake(made.key) == SUCCESS {
                ledger.release(charged);
            }
            Err(ledger.refuse())
        }
    }
}

fn credit_if_any(key: Key, held: Option<Held>) {
    if let Some(held) = held {
        held.give_back(key);
    }
}

/// The ledger of the grant of this number.
pub(crate) fn ledger(grant: u32) -> Option<Ledger> {
    match account::of_grant(grants::grant(usize::try_from(grant).ok()?)?) {
        Account::Counted(ledger) => Some(ledger),
        _ => None,
    }
}

/// Gives bytes back to the grant of this number.
pub(crate) fn credit(grant: u32, bytes: Bytes) {
    if let Some(ledger) = ledger(grant) {
        ledger.release(bytes);
    }
}

/// Something charged that the vendor is about to be asked to free.
#[must_use]
pub(crate) struct Freeing {
    map: &'static AllocMap,
    key: Key,
    held: Held,
    _moving: Option<Moving>,
}

/// Before a free. `None`: nothing of this key is charged here.
pub(crate) fn before_free(map: &'static AllocMap, key: Key) -> Option<Freeing> {
    let held = map.take(key)?;
    let ledger = held.ledger();
    ledger.into_iter().for_each(wait_at_door);
    Some(Freeing { map, key, held, _moving: ledger.map(Ledger::moving) })
}

impl Freeing {
    /// The vendor freed it.
    pub(crate) fn freed(self) {
        self.held.give_back(self.key);
    }

    /// The vendor did not.
    pub(crate) fn stays(self) {
        // Its place may be gone: then it stays charged until the process ends.
        if let Ok(newer) = self.map.insert(self.key, self.held) {
            credit_if_any(self.key, newer);
        }
    }

    /// Whether its bytes are in a slot of their own.
    pub(crate) fn is_apart(&self) -> bool {
        self.held.is_apart()
    }

    /// What it is charged to gives memory back outside of calls.
    pub(crate) fn loosen(&self, by: Loose) {
        self.held.ledger().into_iter().for_each(|ledger| ledger.loosen(by));
    }

    /// It is freed later, if `record` can tell of it.
    pub(crate) fn leaves(self, record: impl FnOnce(Held) -> bool) -> Result<(), Self> {
        if record(self.held) { Ok(()) } else { Err(self) }
    }

    /// As the vendor answered.
    pub(crate) fn settle(self, answer: i32) {
        if answer == SUCCESS { self.freed() } else { self.stays() }
    }
}

/// Bytes of each grant.
#[derive(Default)]
pub(crate) struct Sums([u64; GRANTS_MAX]);

impl Sums {
    /// Only reckons. What is lent has its own slot, of which it is credited elsewhere.
    pub(crate) fn add(&mut self, held: Held) {
        let sum = usize::try_from(held.grant()).ok().and_then(|grant| self.0.get_mut(grant));
        if let Some(sum) = sum.filter(|_| !held.is_apart()) {
            *sum = sum.saturating_add(held.bytes().0);
        }
    }

    pub(crate) fn credit(self) {
        for (grant, sum) in (0_u32..).zip(&self.0).filter(|(_, sum)| **sum > 0) {
            credit(grant, Bytes(*sum));
        }
    }
}

/// Credits everything that was allocated in a context.
pub(crate) fn credit_all_of(tie: Tie) {
    crate::modules::context_ended(tie);
    crate::sparse::context_ended(tie);
    crate::leaving::context_ended(tie);
    crate::lent::context_ended(tie);
    external::context_ended(tie);
    crate::ranges::context_ended(tie);
    let mut sums = Sums::default();
    for map in [&POINTERS, &ARRAYS, &MIPMAPPED, &IMPORTED] {
        map.sweep(|_, held| held.tie() == tie, |held| sums.add(held));
    }
    sums.credit();
}
