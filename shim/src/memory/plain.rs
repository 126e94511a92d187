//! Allocations that stand for themselves: reserved before the vendor is asked, recorded after, credited when freed.
//!
//! An entry is taken out *before* the vendor frees: the driver may hand the address to another thread the moment it has it
//! back. Where the driver refuses the free the entry is put back.

use aliquot_abi::refusal::RefusedKind;

use crate::accounting::account::{
    self, Account, Bytes, Family, InFlightOperation, Ledger, UnaccountedRelease,
};
use crate::accounting::alloc_map::{AllocEntry, AllocMap, Key, NoRoom, Tie};
use crate::accounting::contexts;
use crate::accounting::credit::{Sums, leave};
use crate::accounting::pages::{self, Cover, Edges};
use crate::loader::vendor::{OUT_OF_MEMORY, SUCCESS};
use crate::memory::admission_gate::pass_admission_gate;

/// Device pointers.
pub(crate) static POINTERS: AllocMap = AllocMap::new();
/// Arrays, by handle.
pub(crate) static ARRAYS: AllocMap = AllocMap::new();
/// Mipmapped arrays, by handle.
pub(crate) static MIPMAPPED: AllocMap = AllocMap::new();
/// What is charged, by number.
pub(crate) static IMPORTED: AllocMap = AllocMap::new();

/// What the vendor made: under which key, and how many bytes it takes, or was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VendorAllocation {
    pub(crate) key: Key,
    pub(crate) bytes: Bytes,
}

/// How bytes of an allocation become bytes of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    /// They are.
    Exact,
    /// Whole pages, as no address tells which.
    Whole,
    /// The pages that they cover from the key on.
    Covered,
}

impl Charge {
    fn family(self) -> Family {
        if self == Self::Whole { Family::Arrays } else { Family::Pointers }
    }

    /// What a refusal calls it.
    fn kind(self) -> RefusedKind {
        match self {
            Self::Exact => RefusedKind::External,
            Self::Whole => RefusedKind::Array,
            Self::Covered => RefusedKind::Memory,
        }
    }

    /// The most that so many bytes take.
    fn most(self, ledger: Ledger, bytes: Bytes) -> Option<Bytes> {
        if self == Self::Exact { Some(bytes) } else { ledger.page(self.family()).rounded(bytes) }
    }

    /// What was made takes.
    fn cover(self, ledger: Ledger, made: VendorAllocation) -> Option<Cover> {
        let whole = |own| Cover { own, edges: Edges::default() };
        match self {
            Self::Exact => Some(whole(made.bytes)),
            Self::Whole => ledger.page(Family::Arrays).rounded(made.bytes).map(whole),
            Self::Covered => ledger.page(Family::Pointers).cover(made.key.0, made.bytes.0),
        }
    }
}

/// What was made, with the pages that it shares noted: its entry, and what it has to be charged.
fn hold(
    ledger: Ledger,
    charge: Charge,
    made: VendorAllocation,
    tie: Tie,
) -> Result<(AllocEntry, Bytes), NoRoom> {
    let cover = charge.cover(ledger, made).ok_or(NoRoom)?;
    let held = AllocEntry::new(cover.own, ledger.number(), tie).ok_or(NoRoom)?.with_edges(cover.edges);
    if !cover.edges.is_any() {
        return Ok((held, cover.own));
    }
    let more = held.owner(ledger.page(charge.family())).join(made.key.0, cover)?;
    Ok((held, Bytes(cover.own.0.saturating_add(more.0))))
}

/// Makes something on the current card: reserves `most` (`None`: more than any card has), calls `make`, records what it took.
/// `unmake` is the vendor's way back, for what cannot be recorded. Answers the key or the vendor's number of the error.
pub(crate) fn make(
    (map, charge): (&AllocMap, Charge),
    most: Option<Bytes>,
    make: impl FnOnce() -> Result<VendorAllocation, i32>,
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
    let most = most.and_then(|most| charge.most(ledger, most));
    let Some(most) = most else { return Err(ledger.refuse(charge.kind().over_limit(u64::MAX))) };
    pass_admission_gate(ledger);
    let _moving = ledger.moving();
    ledger.reserve_beside(most).map_err(|_| ledger.refuse(charge.kind().over_limit(most.0)))?;
    let made = make().inspect_err(|_| ledger.release(most))?;
    let held = hold(ledger, charge, made, current.tie);
    let takes = held.map_or(most, |(_, takes)| takes);
    if takes < most {
        ledger.release(Bytes(most.0 - takes.0));
    }
    let more = takes.0.saturating_sub(most.0);
    let settled = more == 0 || ledger.reserve(Bytes(more)).is_ok();
    let recorded = held.ok().filter(|_| settled).and_then(|(held, _)| map.insert(made.key, held).ok());
    if let Some(stale) = recorded {
        credit_if_any(made.key, stale);
        return Ok(made.key);
    }
    // What is still there stays charged.
    if unmake(made.key) == SUCCESS {
        // Pages that other allocations came to cover meanwhile stay charged.
        let gone = held.map_or(most, |(held, _)| leave(ledger, made.key, held).0);
        let unreserved = if settled { 0 } else { more };
        ledger.release(Bytes(gone.0.saturating_sub(unreserved)));
    }
    let kind = charge.kind();
    Err(ledger.refuse(if settled { kind.without_place() } else { kind.over_limit(takes.0) }))
}

/// The driver has freed what is held under a key, and its bytes are in no slot of their own.
pub(crate) fn credit_held(key: Key, held: AllocEntry) {
    let Some(ledger) = held.ledger() else { return };
    let (bytes, stays) = leave(ledger, key, held);
    ledger.release(bytes);
    if let Some(held) = stays {
        // Credited when its address is in use again; without a place for it, when its context ends.
        let _stale = POINTERS.insert(key, held);
    }
}

/// Makes an allocation the only one that is charged its pages, as it may outlive the others. What it holds then; `None`: it was
/// freed meanwhile.
pub(crate) fn detach(key: Key) -> Option<AllocEntry> {
    loop {
        let held = POINTERS.get(key)?;
        let edges = held.edges();
        let Some(ledger) = held.ledger().filter(|_| edges.is_any()) else { return Some(held) };
        let owner = held.owner(ledger.page(Family::Pointers));
        let more = Bytes(edges.count() * owner.size.bytes());
        let bytes = Bytes(held.bytes().0.saturating_add(more.0));
        let Some(whole) = AllocEntry::new(bytes, ledger.number(), held.tie()) else { return Some(held) };
        ledger.charge(more);
        let swapped = POINTERS.update(key, |now| {
            let is_it = *now == held;
            if is_it {
                *now = whole;
            }
            is_it
        });
        if swapped == Some(true) {
            // A page that cannot be left stays charged until its context ends.
            ledger.release(owner.leave(key.0, held.bytes(), edges).0);
            return Some(whole);
        }
        ledger.release(more);
    }
}

fn credit_if_any(key: Key, held: Option<AllocEntry>) {
    if let Some(held) = held {
        held.give_back(key);
    }
}

/// Something charged that the vendor is about to be asked to free.
#[must_use]
pub(crate) struct Freeing {
    map: &'static AllocMap,
    key: Key,
    held: AllocEntry,
    _moving: Option<InFlightOperation>,
}

/// Before a free. `None`: nothing of this key is charged here.
pub(crate) fn before_free(map: &'static AllocMap, key: Key) -> Option<Freeing> {
    let held = map.take(key)?;
    let ledger = held.ledger();
    ledger.into_iter().for_each(pass_admission_gate);
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
    pub(crate) fn loosen(&self, by: UnaccountedRelease) {
        self.held.ledger().into_iter().for_each(|ledger| ledger.loosen(by));
    }

    /// It is freed later, if `record` can tell of it.
    pub(crate) fn leaves(self, record: impl FnOnce(Key, AllocEntry) -> bool) -> Result<(), Self> {
        if record(self.key, self.held) { Ok(()) } else { Err(self) }
    }

    /// As the vendor answered.
    pub(crate) fn settle(self, answer: i32) {
        if answer == SUCCESS { self.freed() } else { self.stays() }
    }
}

/// A context ended, and with it what was allocated in it.
pub(crate) fn context_ended(tie: Tie) {
    let mut sums = Sums::default();
    for map in [&POINTERS, &ARRAYS, &MIPMAPPED, &IMPORTED] {
        map.sweep(|_, held| held.tie() == tie, |held| sums.add(held));
    }
    pages::context_ended(tie, &mut sums);
    sums.credit();
}
