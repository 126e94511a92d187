//! Executable graphs with memory nodes, the stores that have their memory, and what both are charged.

use aliquot_abi::refusal::RefusedKind;
use aliquot_enforce::graph_store::GraphStore;
use aliquot_enforce::growth::AccountingChange;

use super::demand::{CARDS_MAX, GraphDemand, PAGE};
use crate::accounting::account::{self, Account, Bytes, InFlightOperation, Ledger};
use crate::accounting::alloc_map::Tie;
use crate::grants::DEVICES_MAX;
use crate::loader::vendor::{self, Device, OUT_OF_MEMORY, SUCCESS, Target};
use crate::memory::meter;
use crate::sys::KeepErrno;
use crate::sys::fork_private::{Empty, ForkPrivate, Table};

/// Executable graphs with memory nodes in one process, a quarter of them left empty.
const EXECS_MAX: usize = 4096;
/// Tries to settle while other threads change the store.
const TRIES_MAX: u32 = 32;

/// An executable graph with memory nodes.
#[derive(Clone, Copy)]
pub(super) struct Exec {
    pub(super) footprint: GraphDemand,
    /// The stream of its last launch or upload; zeros: there was none.
    pub(super) lane: Lane,
    /// Its context.
    pub(super) tie: Tie,
    /// What a launch leaves allocated, in bytes ([`super::left`]), and how much of it is pinned.
    pub(super) left: u64,
    pub(super) pinned: u64,
    pub(super) launches: u64,
}

/// A stream, by the driver's number of it, which is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lane(u64);

pub(super) struct Execs {
    pub(super) table: Table<Exec, EXECS_MAX>,
    /// By card.
    stores: [GraphStore; DEVICES_MAX],
}

// SAFETY: integers.
#[expect(unsafe_code, reason = "zeros are promised to be a value")]
unsafe impl Empty for Exec {}
// SAFETY: a table, and integers.
#[expect(unsafe_code, reason = "zeros are promised to be a value")]
unsafe impl Empty for Execs {}

pub(super) static EXECS: ForkPrivate<Execs> = ForkPrivate::new();

/// Why nothing was reserved.
pub(super) enum Refusal {
    /// The card is closed.
    Closed,
    /// These bytes do not fit in this ledger.
    Full(Ledger, Bytes),
}

/// A vendor call that may add to the stores of some cards, with what it may take in accounting.
pub(super) struct Flight<'a> {
    demand: &'a GraphDemand,
    _moving: [InFlightOperation; CARDS_MAX],
}

impl Refusal {
    pub(super) fn answer(self) -> i32 {
        match self {
            Self::Closed => OUT_OF_MEMORY,
            Self::Full(ledger, bytes) => ledger.refuse(RefusedKind::Graph.over_limit(bytes.0)),
        }
    }
}

impl Lane {
    pub(super) const NONE: Self = Self(0);
    /// The driver does not tell it apart.
    pub(super) const UNKNOWN: Self = Self(u64::MAX);

    pub(super) fn of(target: Target) -> Self {
        let number = vendor::stream_id(target.stream, target.mode);
        number.map(Self).filter(|lane| *lane != Self::NONE).unwrap_or(Self::UNKNOWN)
    }
}

impl Execs {
    pub(super) fn store(&mut self, card: i32) -> Option<&mut GraphStore> {
        self.stores.get_mut(usize::try_from(card).ok()?)
    }

    pub(super) fn each(&mut self, demand: &GraphDemand, change: impl Fn(&mut GraphStore, u64)) {
        for (card, bytes) in demand.each() {
            self.store(card).into_iter().for_each(|store| change(store, bytes));
        }
    }

    pub(super) fn take(&mut self, exec: u64) -> Option<Exec> {
        self.unpin(exec);
        let known = self.table.take(exec)?;
        self.each(&known.footprint, GraphStore::retire);
        Some(known)
    }

    /// Nothing of a graph is known to be in the store.
    pub(super) fn unpin(&mut self, exec: u64) {
        self.change_pinned(exec, |known| known.pinned = 0);
    }

    /// The same from now on, whatever its launches leave.
    pub(super) fn forget_left(&mut self, exec: u64) {
        self.change_pinned(exec, |known| (known.left, known.pinned) = (0, 0));
    }

    /// Changes a graph, and what of it is pinned in its store: whole pages, as everything that is charged.
    pub(super) fn change_pinned(&mut self, exec: u64, change: impl FnOnce(&mut Exec)) {
        let Some(known) = self.table.get(exec) else { return };
        let before = known.pinned / PAGE;
        change(known);
        let (now, card) = (known.pinned / PAGE, known.footprint.only_card());
        let Some(store) = card.filter(|_| now != before).and_then(|card| self.store(card)) else { return };
        if now > before { store.pin((now - before) * PAGE) } else { store.unpin((before - now) * PAGE) }
    }

    /// Each graph that is `wanted`, which `change` may take out.
    pub(super) fn each_exec(&mut self, wanted: impl Fn(&Exec) -> bool, change: impl Fn(&mut Self, u64)) {
        let mut end = usize::MAX;
        while let Some((at, exec, known)) = self.table.before(end) {
            end = at;
            if wanted(&known) {
                change(self, exec);
            }
        }
    }
}

/// The ledger of a card, if it is counted.
pub(super) fn ledger_of(card: i32) -> Option<Ledger> {
    match account::of(Device(card)) {
        Account::Counted(ledger) => Some(ledger),
        Account::Uncounted | Account::Closed => None,
    }
}

pub(super) fn moving(demand: &GraphDemand) -> [InFlightOperation; CARDS_MAX] {
    let mut all = [const { InFlightOperation::NOTHING }; CARDS_MAX];
    for (place, (card, _)) in all.iter_mut().zip(demand.each()) {
        *place = ledger_of(card).map_or(InFlightOperation::NOTHING, Ledger::moving);
    }
    all
}

/// Reserves all of it, or nothing.
fn reserve(demand: &GraphDemand) -> Result<(), Refusal> {
    for (number, (card, bytes)) in demand.each().enumerate() {
        let refusal = match account::of(Device(card)) {
            Account::Uncounted => continue,
            Account::Closed => Refusal::Closed,
            Account::Counted(ledger) => match ledger.reserve(Bytes(bytes)) {
                Ok(()) => continue,
                Err(_) => Refusal::Full(ledger, Bytes(bytes)),
            },
        };
        for (card, bytes) in demand.each().take(number) {
            ledger_of(card).into_iter().for_each(|ledger| ledger.release(Bytes(bytes)));
        }
        return Err(refusal);
    }
    Ok(())
}

impl<'a> Flight<'a> {
    /// Reserves what a call may take, and has the stores of its cards hold it as `record` says.
    #[inline(never)]
    pub(super) fn begin(demand: &'a GraphDemand, record: fn(&mut GraphStore, u64)) -> Result<Self, Refusal> {
        let _errno = KeepErrno::new();
        let moving = moving(demand);
        reserve(demand)?;
        let begin = |store: &mut GraphStore, bytes| {
            store.begin(bytes);
            record(store, bytes);
        };
        EXECS.with(|execs| execs.each(demand, begin));
        Ok(Self { demand, _moving: moving })
    }

    /// The call is over. A ledger that holds more now than its limit leaves.
    pub(super) fn end(self) -> Option<Ledger> {
        EXECS.with(|execs| execs.each(self.demand, GraphStore::end));
        settle_each(self.demand)
    }
}

/// Bytes that the driver holds for the graphs of a card.
fn reserved(card: i32) -> Option<u64> {
    let mut value = 0;
    let answer = vendor::cuDeviceGetGraphMemAttribute(card, vendor::GRAPHS_RESERVED, &raw mut value);
    (answer? == SUCCESS).then_some(value)
}

/// Brings accounting to what the driver says of a card's store; the ledger, if it holds more now than its limit leaves.
pub(super) fn settle(card: i32) -> Option<Ledger> {
    let ledger = ledger_of(card)?;
    for _ in 0..TRIES_MAX {
        let asked = EXECS.with(|execs| execs.store(card).map(|store| store.moment())).flatten()?;
        let size = reserved(card)?;
        match EXECS.with(|execs| execs.store(card).map(|store| store.settle(asked, size))).flatten()? {
            AccountingChange::Release(bytes) => {
                meter::learn(size);
                ledger.release(Bytes(bytes));
                return None;
            }
            // The driver took more than any model says: charged, whatever the limit.
            AccountingChange::Charge(bytes) if ledger.reserve_now(Bytes(bytes)).is_ok() => return None,
            AccountingChange::Charge(bytes) => {
                ledger.charge(Bytes(bytes));
                return Some(ledger);
            }
            AccountingChange::Stale => {}
        }
    }
    None
}

pub(super) fn settle_each(demand: &GraphDemand) -> Option<Ledger> {
    demand.each().fold(None, |over, (card, _)| settle(card).or(over))
}

/// The cards with stores as `wanted`, a bit each.
pub(super) fn cards(wanted: impl Fn(&GraphStore) -> bool) -> impl Iterator<Item = i32> {
    let all = EXECS.with(|execs| {
        let marked = execs.stores.iter().map(|store| u64::from(wanted(store)));
        marked.rev().fold(0_u64, |all, one| all << 1 | one)
    });
    (0..64).filter(move |card| all.unwrap_or(0) >> card & 1 == 1)
}

const _: () = assert!(DEVICES_MAX <= 64, "a bit for each card");

/// There is an executable graph. False: there is no place to note it.
pub(super) fn note(exec: u64, known: Exec) -> bool {
    let noted = |execs: &mut Execs| {
        // An earlier graph of this handle ended without us.
        let _earlier = execs.take(exec);
        execs.table.set(exec, known)
    };
    EXECS.with(noted) == Some(true)
}
