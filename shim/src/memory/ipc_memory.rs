//! Memory that its maker lets other processes open (`cuIpcGetMemHandle`). A driver keeps it until the maker has freed it and
//! every opener has closed it, or exited, in any order.
//!
//! ```text
//!   maker:  export ─▶ a slot of its own: the bytes move there from the maker's slot, with a tag of the handle
//!                └─ slots are short ─▶ it is not exported
//!   opener: open   ─▶ the slot with the handle's tag
//!   both hold a shared record lock on a byte that belongs to this slot and owner word; the kernel drops it at their death
//! ```
//!
//! So accounting has the bytes once, and as long as the driver does, whichever process is killed: a slot whose lock no process
//! holds is dead, and goes back as a process's does ([`crate::accounting::life`]). An opener locks before it asks the vendor
//! and unlocks after the vendor closed; the maker unlocks after the vendor freed. A process that unlocks last, of those that
//! let go, empties the slot; of two at once, which see each other, neither does, and the slot is dead.
//!
//! No process can look whether there is a lock and act by it at one moment. So a process that has locked counts itself in the
//! owner word, and a process that found no lock (a reaper, or the last that lets go) marks that word only as it was before it
//! looked: one of the two fails, and knows.
//!
//! Physical memory that was exported ([`descriptor`]) goes the same way, and its importers are openers.
//!
//! An opener whose grant has no such slot is of another grant, or the maker is: it pays nothing, and when the maker has freed
//! the memory, no process pays.

mod descriptor;
mod opened;

use core::sync::atomic::Ordering;

use aliquot_abi::layout::slot::{CLOSING, GONE, LET_GO, freed, held_again, lock_of_lent};
use aliquot_abi::refusal::RefusedKind;
use aliquot_abi::view::SlotView;

pub(crate) use descriptor::{DescriptorMark, lend_physical, mark_again};
pub(crate) use opened::{close, import_ended, imported, importing, open};

use crate::accounting::account::{Bytes, Ledger};
use crate::accounting::alloc_map::{AllocEntry, AllocMap, Key, NoRoom, Tie};
use crate::accounting::credit;
use crate::accounting::life::{self, AcquiredSlot};
use crate::grants::Usage;
use crate::memory::plain::{self, POINTERS};
use crate::sys::{self, KeepErrno};

/// A slot of IPC-shared memory, under one owner word.
#[derive(Clone, Copy)]
pub(crate) struct IpcSlot {
    usage: Usage,
    number: u32,
    /// The word without its process and marks.
    owner: u64,
}

/// What this process made and lends, or has open.
#[derive(Clone, Copy, Debug)]
struct IpcEntry {
    bytes: Bytes,
    grant: u32,
    tie: Tie,
    number: u32,
    /// How often the program has to close it.
    references: u32,
    owner: u64,
    books: ChargedSlot,
}

/// Which slot has the bytes of what this process made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargedSlot {
    /// One that is the memory's.
    Apart,
    /// The process's again, as that one was taken away.
    Joined,
}

/// What a hold stood for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoldState {
    /// The vendor had it for this process: the slot was never dead.
    Memory,
    /// Nothing, as the vendor did not open it: the slot may have been found dead before it was held, and is the reaper's.
    Nothing,
}

/// The number by which makers and openers find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

/// By the maker's address.
static MADE: AllocMap<IpcEntry> = AllocMap::new();
/// How often this process holds a lock, by the lock.
static HOLDS: AllocMap<u32> = AllocMap::new();

impl Tag {
    /// Of the vendor's handle.
    pub(crate) fn of(handle: &[u8; 64]) -> Self {
        let sum = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Self(handle.iter().fold(0xcbf2_9ce4_8422_2325, sum))
    }
}

// === impl Held ===

impl AllocEntry {
    /// What the vendor has freed goes back; what is shared, when no process has it open.
    pub(crate) fn give_back(self, key: Key) {
        if self.is_apart() {
            give_back(key);
        } else {
            plain::credit_held(key, self);
        }
    }
}

// === impl IpcSlot ===

impl IpcSlot {
    /// One that was taken, or found.
    fn at(usage: Usage, taken: AcquiredSlot) -> Self {
        Self { usage, number: taken.number, owner: freed(taken.owner) }
    }

    /// What this process made, and has there.
    fn place(self, ledger: Ledger, bytes: Bytes, tie: Tie) -> IpcEntry {
        let (number, owner) = (self.number, self.owner);
        let grant = u32::try_from(ledger.number()).unwrap_or(u32::MAX);
        IpcEntry { bytes, grant, tie, number, references: 1, owner, books: ChargedSlot::Apart }
    }

    /// The byte with the lock that says that a process has it.
    pub(crate) fn lock(self) -> u64 {
        lock_of_lent(self.number, self.owner)
    }

    fn key(self) -> Key {
        Key(self.usage.number() << 48 | self.lock())
    }

    /// The slot, if it is still this memory's.
    fn slot(self) -> Option<SlotView<'static>> {
        self.slot_and_word().map(|(slot, _)| slot)
    }

    /// The same, and its owner word.
    fn slot_and_word(self) -> Option<(SlotView<'static>, u64)> {
        let slot = self.usage.view.slot(usize::try_from(self.number).ok()?)?;
        let word = slot.owner().load(Ordering::SeqCst);
        (freed(word) == self.owner && word != self.owner && word & GONE == 0).then_some((slot, word))
    }

    /// One more hold of this process; the caller keeps other threads out. False: it cannot be had.
    fn hold(self) -> bool {
        let more = HOLDS.update(self.key(), |count| *count = count.saturating_add(1));
        if more.is_some() {
            return true;
        }
        // Written down first: this process's own reaper does not see its locks.
        if HOLDS.insert(self.key(), 1).is_err() {
            return false;
        }
        let shared = self.usage.file().is_some_and(|file| sys::share_byte(file, self.lock()));
        if !shared {
            HOLDS.take(self.key());
        }
        shared
    }

    fn unlock(self) {
        if let Some(file) = self.usage.file() {
            sys::unlock_byte(file, self.lock());
        }
        HOLDS.take(self.key());
    }

    /// One hold less; whether it was the last of this process, which still has the lock. The caller keeps other threads out.
    fn is_last_hold(self) -> bool {
        let left = HOLDS.update(self.key(), |count| {
            let left = count.saturating_sub(1);
            *count = left.max(1);
            left
        });
        left == Some(0)
    }

    /// One hold less. With the last of all processes the slot is emptied, if its maker let go.
    fn drop_hold(self, ledger: Ledger, had: HoldState) {
        // A slot for this process is taken before other threads are kept from taking one.
        if !ledger.has_books() {
            return;
        }
        let is_last = life::one_at_a_time(|| {
            if !self.is_last_hold() {
                return false;
            }
            // While the lock is held no process takes the slot for dead, so that it is emptied once.
            if had == HoldState::Memory && self.is_let_go() && self.closes() {
                self.empty(ledger);
            }
            self.unlock();
            true
        });
        // Another process let go at the same time.
        if is_last && self.is_let_go() && !self.is_held_elsewhere() {
            let _done_or_elsewhere = ledger.look();
        }
    }

    /// Its maker does not have it any more.
    fn let_go(self, ledger: Ledger) {
        // None: it was taken for dead, and what was in it is off shared accounting.
        if let Some(slot) = self.slot() {
            slot.kind().store(LET_GO, Ordering::SeqCst);
        }
        self.drop_hold(ledger, HoldState::Memory);
    }

    /// Whether this process, which has the lock, is the last that had it: then no process takes hold of it any more.
    fn closes(self) -> bool {
        let Some((slot, word)) = self.slot_and_word() else { return false };
        let close =
            || slot.owner().compare_exchange(word, word | CLOSING, Ordering::SeqCst, Ordering::SeqCst);
        !self.is_held_elsewhere() && close().is_ok()
    }

    /// Whether it is still this memory's and stays so, now that this process has the lock.
    fn stays(self, tag: Tag) -> bool {
        let Some(slot) = self.slot().filter(|slot| slot.tag().load(Ordering::SeqCst) == tag.0) else {
            return false;
        };
        let counted = |word: u64| {
            let is_it = freed(word) == self.owner && word != self.owner && word & (GONE | CLOSING) == 0;
            is_it.then(|| held_again(word))
        };
        slot.owner().fetch_update(Ordering::SeqCst, Ordering::SeqCst, counted).is_ok()
    }

    fn is_let_go(self) -> bool {
        self.slot().is_some_and(|slot| slot.kind().load(Ordering::SeqCst) == LET_GO)
    }

    fn is_held_elsewhere(self) -> bool {
        self.usage.file().is_none_or(|file| sys::locked_by_another(file, self.lock()))
    }

    /// No process has it any more: its bytes go back, and others may have the slot. What cannot be done while accounting is
    /// closed is left to the process that looks for exited processes.
    fn empty(self, ledger: Ledger) {
        let Some((slot, word)) = self.slot_and_word() else { return };
        if ledger.take_back(slot.used()) {
            // Another process wrote over it, and owns it.
            let _freed = slot.owner().compare_exchange(word, self.owner, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// The slot with this tag, held; `None`: this grant lends no such memory.
    fn find(ledger: Ledger, tag: Tag) -> Option<Self> {
        let usage = ledger.usage();
        let found = life::lent(usage, tag.0)?;
        let lent = Self::at(usage, found);
        // A slot is taken before there is any lock: with the first one the process shows its sign, and drops all locks for that.
        let _has_sign = ledger.has_books();
        if !life::one_at_a_time(|| lent.hold()) {
            return None;
        }
        let stays = lent.stays(tag);
        if !stays {
            lent.drop_hold(ledger, HoldState::Nothing);
        }
        stays.then_some(lent)
    }
}

/// Whether this process or another one holds the memory of a slot, which has this owner word.
pub(crate) fn is_held((usage, file): (Usage, i32), number: usize, owner: u64) -> bool {
    u32::try_from(number).is_ok_and(|number| {
        let lent = IpcSlot { usage, number, owner: freed(owner) };
        HOLDS.get(lent.key()).is_some() || sys::locked_by_another(file, lent.lock())
    })
}

// === impl IpcEntry ===

impl IpcEntry {
    fn lent(&self) -> Option<(IpcSlot, Ledger)> {
        let ledger = credit::ledger(self.grant)?;
        let (usage, number, owner) = (ledger.usage(), self.number, self.owner);
        Some((IpcSlot { usage, number, owner }, ledger))
    }

    /// The maker's free.
    fn let_go(self) {
        let _errno = KeepErrno::new();
        let Some((lent, ledger)) = self.lent() else { return };
        match self.books {
            ChargedSlot::Apart => ledger.let_go(self.bytes),
            ChargedSlot::Joined => ledger.release(self.bytes),
        }
        lent.let_go(ledger);
    }
}

/// An entry of what this process holds, in the map that has it.
pub(crate) trait Entry {
    /// Its bytes move to a slot of their own. False: another thread was faster, or it is gone.
    fn set_apart(&self) -> bool;
    /// They come back. False: it was freed meanwhile, by the process that took it for lent.
    fn join(&self) -> bool;
    /// Whether it is there, and its bytes are not in the process's slot.
    fn is_apart(&self) -> bool;
}

/// An allocation, as it was found.
struct Pointer(Key, AllocEntry);

impl Entry for Pointer {
    fn set_apart(&self) -> bool {
        // Not what came to this address since.
        POINTERS.update(self.0, |now| *now == self.1 && now.set_apart()) == Some(true)
    }

    fn join(&self) -> bool {
        let was_there = POINTERS.update(self.0, |now| {
            let was_apart = now.is_apart();
            now.join();
            was_apart
        });
        was_there == Some(true)
    }

    fn is_apart(&self) -> bool {
        POINTERS.get(self.0).is_some_and(AllocEntry::is_apart)
    }
}

/// Memory of this process that others may open from now on. An error: it cannot be written down, and is not to be lent.
pub(crate) fn lend(address: u64, tag: Tag) -> Result<(), i32> {
    let _errno = KeepErrno::new();
    let key = Key(address);
    if POINTERS.get(key).is_none_or(AllocEntry::is_apart) {
        return Ok(());
    }
    let Some(held) = plain::detach(key).filter(|held| !held.is_apart()) else { return Ok(()) };
    let Some(ledger) = held.ledger() else { return Ok(()) };
    let Some(lent) = take_any(ledger, tag) else {
        return Err(ledger.refuse(RefusedKind::Ipc.without_place()));
    };
    let place = lent.place(ledger, held.bytes(), held.tie());
    move_out(&Pointer(key, held), key, (ledger, lent), place)
}

/// A slot under this tag, held by this process.
fn take_any(ledger: Ledger, tag: Tag) -> Option<IpcSlot> {
    let take = || life::one_at_a_time(|| take_slot(ledger.usage(), tag));
    take().or_else(|| {
        let _done_or_elsewhere = ledger.look();
        take()
    })
}

/// The bytes of an entry go to a slot that was taken for them.
fn move_out(
    entry: &impl Entry,
    key: Key,
    (ledger, lent): (Ledger, IpcSlot),
    place: IpcEntry,
) -> Result<(), i32> {
    if !entry.set_apart() {
        lent.let_go(ledger);
        return Ok(());
    }
    if !move_bytes(ledger, lent, place.bytes) {
        if !entry.join() {
            ledger.release(place.bytes);
        }
        lent.let_go(ledger);
        return Err(ledger.refuse(RefusedKind::Ipc.without_place()));
    }
    // Without a place for it, its slot stays until the process ends.
    let stale = MADE.insert(key, place).map_err(|NoRoom| ledger.refuse(RefusedKind::Ipc.without_place()))?;
    // Memory that was there before.
    stale.into_iter().for_each(IpcEntry::let_go);
    if !entry.is_apart() {
        // Freed while it was being lent.
        give_back(key);
    }
    Ok(())
}

/// The vendor has freed what this process lent under this key.
pub(crate) fn give_back(key: Key) {
    if let Some(place) = MADE.take(key) {
        place.let_go();
    }
}

fn move_bytes(ledger: Ledger, lent: IpcSlot, bytes: Bytes) -> bool {
    lent.slot().is_some_and(|slot| ledger.set_apart(bytes, slot.used()))
}

/// A slot for IPC-shared memory, held by this process.
fn take_slot(usage: Usage, tag: Tag) -> Option<IpcSlot> {
    // Without a descriptor there are no locks.
    usage.file()?;
    let mut held: Option<IpcSlot> = None;
    let mut hold = |taken: AcquiredSlot| {
        if let Some(earlier) = held.take() {
            earlier.unlock();
        }
        let lent = IpcSlot::at(usage, taken);
        held = lent.hold().then_some(lent);
        held.is_some()
    };
    let taken = life::take_for_lent(usage, tag.0, &mut hold);
    match (taken, held) {
        (None, Some(lent)) => {
            lent.unlock();
            None
        }
        (taken, held) => taken.and(held),
    }
}

/// This process takes a slot anew: what it lends of this grant, and has no slot of its own any more, goes there, too. `join`
/// is told of each once.
pub(crate) fn each_without_slot(ledger: Ledger, join: &dyn Fn(Bytes)) {
    let is_without = |place: &IpcEntry| {
        let is_its = usize::try_from(place.grant) == Ok(ledger.number()) && place.books == ChargedSlot::Apart;
        is_its && place.lent().is_some_and(|(lent, _)| lent.slot().is_none())
    };
    while let Some(key) = MADE.find(|key, place| is_without(place).then_some(key)) {
        let joined = MADE.update(key, |place| {
            let was = core::mem::replace(&mut place.books, ChargedSlot::Joined);
            (was == ChargedSlot::Apart).then_some(place.bytes)
        });
        joined.flatten().into_iter().for_each(join);
    }
}

/// A context ended: with it what was made or opened in it.
pub(crate) fn context_ended(tie: Tie) {
    while let Some(made) = take_of(&MADE, tie) {
        made.let_go();
    }
    opened::context_ended(tie);
}

fn take_of(map: &AllocMap<IpcEntry>, tie: Tie) -> Option<IpcEntry> {
    let key = map.find(|key, place| (place.tie == tie).then_some(key))?;
    map.take(key)
}
