//! Memory of a claim's processes, once none of them uses the limits of before a change.
//!
//! ```text
//!   lower limits written ─▶ earlier reservations: the recount waits for them          ┐
//!                        ─▶ earlier calls, charged at their return: each slot is read ├─▶ recount: their memory
//!                           once without a call in flight                             ┘
//! ```
//!
//! A later call reads the written limits, whatever it is charged. If a process always has a call in flight, its calls wait briefly
//! at the admission gate, which measurements also close.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aliquot_abi::view::UsageView;
use aliquot_core::units::Bytes;
use aliquot_enforce::units::Ppm;

use super::liveness::OwnedSlot;
use super::watched::taken;
use super::{ReapOutcome, UsageFile, wake};
use crate::clock::monotonic;

/// Most recounts until the reserved bytes are known: half a second if no thread stays inside.
const TRIES: u32 = 25;
/// Time between two of them.
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
/// First try with a closed admission gate: short calls have ended by then.
const SHUT_FROM: u32 = 2;
/// End of those tries: the tenant's processes treat a gate that is closed for 200 ms as abandoned.
const SHUT_UP_TO: u32 = 9;
/// Reads of the slots between two tries, and time between two of them.
const LOOKS: u32 = 100;
const BETWEEN_LOOKS: Duration = Duration::from_micros(200);
/// Bit of the measuring word: the gate is closed.
const SHUT: u32 = 1;

/// A slot with an owner that was in a call.
struct SlotInCall {
    number: usize,
    owner: u64,
}

/// The closed admission gate of a container's calls; dropping the value opens it.
struct ClosedGate<'v> {
    word: &'v AtomicU32,
    own: u32,
}

// === impl UsageFile ===

impl UsageFile {
    /// Memory of the claim's live processes, once no reservation or charge uses the limits of before a change. Operations in flight
    /// and other reapers are waited for, and memory of exited processes is released. `None`: an operation stays in flight.
    ///
    /// # Errors
    /// As for [`Self::reap`].
    pub fn settled(&self, part: Ppm) -> io::Result<Option<Bytes>> {
        // After the write of the limits: a reservation from here on reads them, or is counted below.
        std::sync::atomic::fence(Ordering::SeqCst);
        let mut calls: Vec<SlotInCall> =
            taken(self.view()?).filter_map(|taken| SlotInCall::of(&taken)).collect();
        let mut door = None;
        for number in 0..TRIES {
            let view = self.view()?;
            calls.retain(|call| call.goes_on(view));
            let is_calm = calls.is_empty();
            let (answer, total) = self.recounted_to_size(part)?;
            match answer {
                ReapOutcome::Torn => return Ok(None),
                ReapOutcome::NoneExited | ReapOutcome::Dead { .. } if is_calm => return Ok(Some(total)),
                ReapOutcome::NoneExited | ReapOutcome::Dead { .. } | ReapOutcome::Later => {}
            }
            door = match number {
                SHUT_FROM..SHUT_UP_TO if !calls.is_empty() => door.or_else(|| ClosedGate::shut(view)),
                _ => None,
            };
            wait_for(&mut calls, view);
        }
        drop(door);
        Ok(None)
    }
}

/// Waits until no call is in flight, at most about [`BETWEEN_TRIES`]; without calls exactly as long.
fn wait_for(calls: &mut Vec<SlotInCall>, view: UsageView<'_>) {
    if calls.is_empty() {
        return std::thread::sleep(BETWEEN_TRIES);
    }
    for _ in 0..LOOKS {
        std::thread::sleep(BETWEEN_LOOKS);
        calls.retain(|call| call.goes_on(view));
        if calls.is_empty() {
            return;
        }
    }
}

// === impl SlotInCall ===

impl SlotInCall {
    fn of(taken: &OwnedSlot<'_>) -> Option<Self> {
        let call = Self { number: taken.number, owner: taken.owner };
        (!taken.is_lent() && taken.is_in_call()).then_some(call)
    }

    /// Whether the same owner is still in a call.
    fn goes_on(&self, view: UsageView<'_>) -> bool {
        taken(view)
            .find(|taken| taken.number == self.number)
            .is_some_and(|taken| taken.owner == self.owner && taken.is_in_call())
    }
}

// === impl ClosedGate ===

impl<'v> ClosedGate<'v> {
    /// `None`: a measurement is in progress and keeps the gate closed.
    fn shut(view: UsageView<'v>) -> Option<Self> {
        let millis = u32::try_from((monotonic().0 / 1_000_000) & u64::from(u32::MAX)).unwrap_or(0).max(2);
        let (word, own) = (view.measuring(), (millis - 1) | SHUT);
        let shut = word.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
        shut.is_ok().then_some(Self { word, own })
    }
}

impl Drop for ClosedGate<'_> {
    fn drop(&mut self) {
        if self.word.compare_exchange(self.own, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            wake(self.word);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use aliquot_abi::layout::usage;

    use super::*;
    use crate::disk::Disk;
    use crate::region::{GrantPaths, bytes_of, start_time};

    /// A usage file in which this process has a slot and `used` bytes.
    fn books(dir: &tempfile::TempDir, used: u64) -> UsageFile {
        let place = GrantPaths { dir: dir.path().to_owned(), lock: dir.path().join("lock") };
        let mut image = crate::region::Image::of_usage().unwrap();
        Disk::default().place(&place.usage(), image.bytes(), crate::disk::Mode::Tenant).unwrap();
        assert_eq!(std::fs::metadata(place.usage()).unwrap().len(), bytes_of(usage::BYTES));
        let watched = UsageFile::open(&place.usage()).unwrap();
        let (view, pid) = (watched.view().unwrap(), std::process::id());
        let slot = view.slot(3).unwrap();
        slot.start_time().store(start_time(pid).unwrap(), Ordering::SeqCst);
        slot.used().store(used, Ordering::SeqCst);
        slot.owner().store(1 << 32 | u64::from(pid), Ordering::SeqCst);
        view.total().store(used, Ordering::SeqCst);
        watched
    }

    /// The result of the first successful try of twenty: the other thread may not run during half a second.
    fn settled(watched: &UsageFile) -> Option<Bytes> {
        (0..20).find_map(|_| watched.settled(Ppm::ALL).unwrap())
    }

    #[test]
    fn call_charged_at_return_is_awaited_within_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let watched = books(&dir, 100);
        let view = watched.view().unwrap();
        let slot = view.slot(3).unwrap();
        assert_eq!(watched.settled(Ppm::ALL).unwrap(), Some(Bytes(100)));
        slot.begun().store(7, Ordering::SeqCst);
        slot.ended().store(6, Ordering::SeqCst);
        let begun = Instant::now();
        assert_eq!(watched.settled(Ppm::ALL).unwrap(), None, "it goes on");
        assert!(
            begun.elapsed() > BETWEEN_TRIES * (TRIES - 1) && view.measuring().load(Ordering::SeqCst) == 0
        );
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                // As in the shim: a call is charged before it ends.
                view.total().fetch_add(30, Ordering::SeqCst);
                slot.used().fetch_add(30, Ordering::SeqCst);
                slot.ended().fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(settled(&watched), Some(Bytes(130)));
        });
    }

    /// A program with calls that overlap without end, as in the shim: they wait at a closed gate.
    #[test]
    fn process_always_in_a_call_is_kept_from_the_next_one_briefly() {
        let dir = tempfile::tempdir().unwrap();
        let watched = books(&dir, 100);
        let view = watched.view().unwrap();
        let slot = view.slot(3).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        slot.begun().store(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    if view.measuring().load(Ordering::SeqCst) & SHUT == 0 {
                        slot.begun().fetch_add(1, Ordering::SeqCst);
                        slot.ended().fetch_add(1, Ordering::SeqCst);
                    } else if slot.ended().load(Ordering::SeqCst) != slot.begun().load(Ordering::SeqCst) {
                        slot.ended().fetch_add(1, Ordering::SeqCst);
                    }
                    std::thread::sleep(Duration::from_micros(100));
                    if slot.ended().load(Ordering::SeqCst) == slot.begun().load(Ordering::SeqCst)
                        && view.measuring().load(Ordering::SeqCst) & SHUT == 0
                    {
                        slot.begun().fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            let settled = settled(&watched);
            over.store(true, Ordering::SeqCst);
            assert_eq!(settled, Some(Bytes(100)));
        });
    }
}
