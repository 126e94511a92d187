//! Memory of other processes that this one has open.

use super::{Books, Had, Lent, Place, Room, Tag, crowd, take_of};
use crate::account::{Bytes, Ledger};
use crate::alloc_map::{AllocMap, Fate, Key, NoRoom, Tie};
use crate::contexts;
use crate::plain;
use crate::sys::KeepErrno;
use crate::vendor::{OUT_OF_MEMORY, SUCCESS};

/// By the opener's address.
static OPENED: AllocMap<Place> = AllocMap::new();

/// What an opener holds.
#[derive(Clone, Copy)]
enum Hold {
    /// The memory's own slot.
    One(Lent, Ledger),
    /// The crowds of all grants: one of them may have it.
    Crowds,
}

impl Hold {
    /// `None`: no grant of this process lends such memory.
    fn of(tag: Tag) -> Option<Self> {
        let own = crowd::ledgers().find_map(|ledger| Some(Self::One(Lent::find(ledger, tag)?, ledger)));
        own.or_else(|| crowd::hold_all().then_some(Self::Crowds))
    }

    fn drop(self, had: Had) {
        match self {
            Self::One(lent, ledger) => lent.drop_hold(ledger, had),
            Self::Crowds => crowd::drop_all(),
        }
    }

    /// For what is open now.
    fn place(self) -> Place {
        let tie = contexts::current().map_or(Tie(0), |current| current.tie);
        let (number, grant, owner, room) = match self {
            Self::One(lent, ledger) => {
                (lent.number, u32::try_from(ledger.number()).unwrap_or(u32::MAX), lent.owner, Room::One)
            }
            Self::Crowds => (u32::MAX, u32::MAX, 0, Room::Crowd),
        };
        Place { bytes: Bytes(0), grant, tie, number, references: 1, owner, room, books: Books::Apart }
    }
}

impl Place {
    /// An opener's last close.
    fn closed(self) {
        let _errno = KeepErrno::new();
        match (self.room, self.lent()) {
            (Room::Crowd, _) => crowd::drop_all(),
            (Room::One, Some((lent, ledger))) => lent.drop_hold(ledger, Had::Memory),
            (Room::One, None) => {}
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
    let address = call().inspect_err(|_| hold.drop(Had::Nothing))?;
    let fresh = hold.place();
    let again = OPENED.update(Key(address), |place| {
        let same = (place.number, place.owner) == (fresh.number, fresh.owner);
        place.references = place.references.saturating_add(u32::from(same));
        same
    });
    if again == Some(true) {
        hold.drop(Had::Memory);
        return Ok(address);
    }
    match OPENED.insert(Key(address), fresh) {
        Ok(stale) => {
            if let Some(stale) = stale {
                stale.closed();
            }
            Ok(address)
        }
        Err(NoRoom) => {
            if close(address) == SUCCESS {
                hold.drop(Had::Memory);
            }
            Err(OUT_OF_MEMORY)
        }
    }
}

/// cuIpcCloseMemHandle.
pub(crate) fn close(address: u64, call: impl FnOnce() -> i32) -> i32 {
    let closing = OPENED.decide(Key(address), |place| {
        place.references = place.references.saturating_sub(1);
        if place.references == 0 { Fate::Goes } else { Fate::Stays }
    });
    let Some((fate, place)) = closing else { return call() };
    let _moving = plain::ledger(place.grant).map(Ledger::moving);
    let answer = call();
    match (fate, answer) {
        (Fate::Goes, SUCCESS) => place.closed(),
        (Fate::Stays, SUCCESS) => {}
        (Fate::Goes, _) => {
            // Without a place for it the lock stays until the process ends.
            let _stale = OPENED.insert(Key(address), Place { references: 1, ..place });
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
