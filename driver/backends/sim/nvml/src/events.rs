//! Event sets: the cards that a program watches, and its position in their reports.
//!
//! A set keeps its own position in the reports of each card, so every set in every process gets every event.
//! Of several threads that wait on one set, one gets an event. A wait on one card sleeps until the card has a
//! report; a wait on several polls each millisecond.

use crate::code::{Answer, GPU_IS_LOST, INVALID_VALUE, NOT_SUPPORTED, TIMEOUT};
use crate::library;
use aliquot_sim_device::{Card, Health, ReportPosition, Xid, monotonic_nanos};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Kinds of events that a simulated card has: errors of one and of two bits, which never come, and Xids.
pub(crate) const SUPPORTED: u64 = 0x1 | 0x2 | XID;
/// nvmlEventTypeXidCriticalError
pub(crate) const XID: u64 = 0x8;
/// All that nvml.h has numbers for.
const KNOWN: u64 = 0xff9f;

/// What makes a set's number a handle, above those of cards and instances; it is never followed.
const HANDLE_BASE: u64 = 0x5200_0000_0000;
/// Distance of two handles.
const HANDLE_STEP: u64 = 16;
/// Pause between two polls of several cards, or of none.
const LOOK: Duration = Duration::from_millis(1);
/// Longest sleep where one card is watched: nothing but the end of the library is found out late by it.
const SLEEP: Duration = Duration::from_millis(60_000);

/// A card in a set.
struct WatchedCard {
    card: &'static Card,
    kinds: u64,
    seen: ReportPosition,
}

/// The sets, by handle; handles are not given again.
struct Sets {
    made: u64,
    there: BTreeMap<u64, Vec<WatchedCard>>,
}

static SETS: Mutex<Sets> = Mutex::new(Sets { made: 0, there: BTreeMap::new() });

fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a set in which nothing is watched; its handle.
pub(crate) fn create() -> Answer<u64> {
    library::device()?;
    let mut sets = sets();
    let handle = HANDLE_BASE + sets.made * HANDLE_STEP;
    sets.made += 1;
    sets.there.insert(handle, Vec::new());
    Ok(handle)
}

/// Frees a set; a thread that waits on it wakes with an error.
pub(crate) fn free(set: u64) -> Answer {
    library::device()?;
    let freed = sets().there.remove(&set);
    freed.map(|watched| watched.iter().for_each(|watched| watched.card.stir())).ok_or(INVALID_VALUE)
}

/// Ends all of them.
pub(crate) fn free_all() {
    let freed = std::mem::take(&mut sets().there);
    freed.values().flatten().for_each(|watched| watched.card.stir());
}

/// Watches a card for more kinds of events: those that happen from now on. MIG devices are not watched each for itself.
pub(crate) fn register(card: u64, kinds: u64, set: u64) -> Answer {
    let card = library::card(card)?;
    let mut sets = sets();
    let set = sets.there.get_mut(&set).ok_or(INVALID_VALUE)?;
    if kinds == 0 || kinds & !KNOWN != 0 {
        return Err(INVALID_VALUE);
    }
    if kinds & !SUPPORTED != 0 {
        return Err(NOT_SUPPORTED);
    }
    match set.iter_mut().find(|watched| watched.card.index() == card.index()) {
        Some(watched) => {
            if watched.kinds & XID == 0 {
                watched.seen = card.xids_until_now();
            }
            watched.kinds |= kinds;
        }
        None => set.push(WatchedCard { card, kinds, seen: card.xids_until_now() }),
    }
    // A thread that sleeps on another card alone has to start watching this one.
    set.iter().for_each(|watched| watched.card.stir());
    Ok(())
}

/// The next Xid of a set's cards, with its card's handle.
pub(crate) fn wait(set: u64, limit: Duration) -> Answer<(u64, Xid)> {
    let end = monotonic_nanos() + u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX >> 1);
    loop {
        // Before the look: what comes after it ends the sleep.
        let only = only(set).map(|card| (card, card.stirred()));
        library::device()?;
        if let Some((card, xid)) = next(set)? {
            return Ok((library::handle(card), xid));
        }
        let left = end.checked_sub(monotonic_nanos()).filter(|left| *left > 0).ok_or(TIMEOUT)?;
        let left = Duration::from_nanos(left);
        match only {
            Some((card, stirred)) => card.sleep_while(stirred, left.min(SLEEP)),
            None => std::thread::sleep(left.min(LOOK)),
        }
    }
}

/// The card of a set that has no other.
fn only(set: u64) -> Option<&'static Card> {
    match sets().there.get(&set)?.as_slice() {
        [watched] => Some(watched.card),
        _ => None,
    }
}

/// The oldest report that the set has not returned; a lost card is reported after its remaining events.
fn next(set: u64) -> Answer<Option<(&'static Card, Xid)>> {
    let everything = library::privileged().is_ok();
    let mut sets = sets();
    let set = sets.there.get_mut(&set).ok_or(INVALID_VALUE)?;
    let pending = set.iter_mut().filter(|watched| watched.kinds & XID != 0);
    let pending = pending.filter_map(|watched| Some((watched.next(everything)?, watched)));
    if let Some(((seen, xid), watched)) = pending.min_by_key(|((_, xid), _)| xid.at) {
        watched.seen = seen;
        return Ok(Some((watched.card, xid)));
    }
    match set.iter().any(|watched| watched.card.health() == Health::Lost) {
        true => Err(GPU_IS_LOST),
        false => Ok(None),
    }
}

impl WatchedCard {
    /// A caller without access to the instances of a card in MIG mode gets events of the whole card alone.
    fn next(&mut self, everything: bool) -> Option<(ReportPosition, Xid)> {
        loop {
            let (seen, xid) = self.card.xid_after(self.seen)?;
            if everything || xid.instance.is_none() {
                return Some((seen, xid));
            }
            self.seen = seen;
        }
    }
}
