//! Memory of other processes that this one has open.

use super::descriptor::{DescriptorMark, adopt};
use super::{HoldState, IpcEntry, IpcSlot, Tag, take_of};
use crate::accounting::account::{self, Account, Bytes, Ledger};
use crate::accounting::alloc_map::{AllocMap, Fate, Key, NoRoom, Tie};
use crate::accounting::contexts;
use crate::accounting::credit;
use crate::grants;
use crate::loader::vendor::{OUT_OF_MEMORY, SUCCESS};
use crate::memory::admission_gate::pass_admission_gate;
use crate::sys::KeepErrno;

/// By the opener's address.
static OPENED: AllocMap<IpcEntry> = AllocMap::new();

/// What an opener holds: the memory's slot.
#[derive(Clone, Copy)]
pub(crate) struct Hold(IpcSlot, Ledger);

/// Accounting of this process.
fn ledgers() -> impl Iterator<Item = Ledger> {
    grants::all().filter_map(|grant| match account::of_grant(grant) {
        Account::Counted(ledger) => Some(ledger),
        _ => None,
    })
}

impl Hold {
    /// `None`: no grant of this process lends such memory.
    fn of(tag: Tag) -> Option<Self> {
        ledgers().find_map(|ledger| Some(Self(IpcSlot::find(ledger, tag)?, ledger)))
    }

    /// The grant that has the slot.
    pub(crate) fn grant(self) -> u32 {
        u32::try_from(self.1.number()).unwrap_or(u32::MAX)
    }

    /// The vendor did not import it, or has it for this process anyhow.
    pub(crate) fn unneeded(self, is_there: bool) {
        self.drop(if is_there { HoldState::Memory } else { HoldState::Nothing });
    }

    fn drop(self, had: HoldState) {
        self.0.drop_hold(self.1, had);
    }

    /// For what is open now.
    fn place(self, tie: Tie) -> IpcEntry {
        self.0.place(self.1, Bytes(0), tie)
    }
}

impl IpcEntry {
    /// Whether both are of the same memory.
    fn is_of(&self, other: &Self) -> bool {
        (self.number, self.owner) == (other.number, other.owner)
    }

    /// An opener's last close.
    fn closed(self) {
        let _errno = KeepErrno::new();
        if let Some((lent, ledger)) = self.lent() {
            lent.drop_hold(ledger, HoldState::Memory);
        }
    }
}

/// cuIpcOpenMemHandle: the address, and how it is closed.
pub(crate) fn open(
    tag: Tag,
    call: impl FnOnce() -> Result<u64, i32>,
    close: impl FnOnce(u64) -> i32,
) -> Result<u64, i32> {
    let Some(hold) = Hold::of(tag) else { return call() };
    let address = call().inspect_err(|_| hold.drop(HoldState::Nothing))?;
    let tie = contexts::current().map_or(Tie(0), |current| current.tie);
    match note(Key(address), hold.place(tie), hold) {
        Ok(()) => Ok(address),
        Err(NoRoom) => {
            if close(address) == SUCCESS {
                hold.drop(HoldState::Memory);
            }
            Err(OUT_OF_MEMORY)
        }
    }
}

/// Before cuMemImportFromShareableHandle of what has this mark: what the importer has to hold. An error: it is refused.
pub(crate) fn importing(mark: Option<DescriptorMark>) -> Result<Option<Hold>, i32> {
    let _errno = KeepErrno::new();
    let Some(mark) = mark else { return Ok(None) };
    match Hold::of(mark.tag()) {
        None => Ok(adopt(mark, ledgers())?.map(|(lent, ledger)| Hold(lent, ledger))),
        found => Ok(found),
    }
}

/// The vendor imported it, and this process has it under this key.
pub(crate) fn imported(key: Key, hold: Hold) {
    // Without a place for it the lock stays until the process ends.
    let _stale = OPENED.insert(key, hold.place(Tie(0)));
}

/// It has it no longer.
pub(crate) fn import_ended(key: Key) {
    if let Some(place) = OPENED.take(key) {
        place.closed();
    }
}

/// Writes down that the vendor opened it once more. Other threads may be between the vendor's answer for the same address and
/// here, and every one of them is to close it once.
fn note(key: Key, fresh: IpcEntry, hold: Hold) -> Result<(), NoRoom> {
    let mut mine = fresh;
    loop {
        let more = |place: &mut IpcEntry| {
            let is_same = place.is_of(&mine);
            place.references = place.references.saturating_add(if is_same { mine.references } else { 0 });
            is_same
        };
        if OPENED.update(key, more) == Some(true) {
            // One hold for all of them.
            hold.drop(HoldState::Memory);
            return Ok(());
        }
        match OPENED.insert(key, mine)? {
            // Another thread was faster: what it wrote down is added, or goes back where ours was closed meanwhile.
            Some(other) if other.is_of(&mine) => mine = other,
            Some(stale) => {
                stale.closed();
                return Ok(());
            }
            None => return Ok(()),
        }
    }
}

/// cuIpcCloseMemHandle.
pub(crate) fn close(address: u64, call: impl FnOnce() -> i32) -> i32 {
    let closing = OPENED.decide(Key(address), |place| {
        place.references = place.references.saturating_sub(1);
        if place.references == 0 { Fate::Goes } else { Fate::Stays }
    });
    // What is known of no grant lies on the current card.
    let known = closing.and_then(|(_, place)| credit::ledger(place.grant));
    let ledger = known.or_else(crate::memory::physical::current_ledger);
    ledger.into_iter().for_each(pass_admission_gate);
    let _moving = ledger.map(Ledger::moving);
    let answer = call();
    let Some((fate, place)) = closing else { return answer };
    match (fate, answer) {
        (Fate::Goes, SUCCESS) => place.closed(),
        (Fate::Stays, SUCCESS) => {}
        (Fate::Goes, _) => {
            // Without a place for it the lock stays until the process ends.
            let _stale = OPENED.insert(Key(address), IpcEntry { references: 1, ..place });
        }
        (Fate::Stays, _) => {
            OPENED.update(Key(address), |place| place.references = place.references.saturating_add(1));
        }
    }
    answer
}

/// A context ended, and with it what was opened in it.
pub(super) fn context_ended(tie: Tie) {
    while let Some(opened) = take_of(&OPENED, tie) {
        opened.closed();
    }
}
