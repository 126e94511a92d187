//! Exact memory under threads, on the processor's own atomics.

#![cfg(not(feature = "shuttle"))]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aliquot_enforce::memory::{FREEZE, MemoryAccounting, Release, Reservation};
use aliquot_enforce::reap::{AccountingFreeze, Owner, Recount, Slot};
use proptest::prelude::*;

#[derive(Default)]
struct Shared {
    total: AtomicU64,
    high_water: AtomicU64,
    closings: AtomicU64,
}

impl Shared {
    fn close(&self) -> AccountingFreeze {
        AccountingFreeze::begin(&self.total, &self.closings)
    }

    fn recount<'a>(&self, slots: impl Iterator<Item = Slot<'a>> + Clone) -> Recount {
        self.close().recount(&self.total, slots)
    }
}

/// Its slot is free then.
const DEAD: Owner = Owner::Dead(0);

#[derive(Default)]
struct Process {
    word: AtomicU64,
    inside: AtomicU32,
    used: AtomicU64,
    own: AtomicU64,
    apart: AtomicU64,
    owed: AtomicU64,
}

impl Process {
    fn books<'a>(&'a self, shared: &'a Shared) -> MemoryAccounting<'a> {
        MemoryAccounting {
            total: &shared.total,
            high_water: &shared.high_water,
            inside: &self.inside,
            used: &self.used,
            own: &self.own,
            apart: &self.apart,
            owed: &self.owed,
        }
    }

    fn slot(&self, owner: Owner) -> Slot<'_> {
        let seen = self.word.load(Ordering::SeqCst);
        Slot { inside: &self.inside, used: &self.used, word: &self.word, seen, owner }
    }
}

#[test]
fn the_limit_is_exact_to_the_byte() {
    let (shared, process) = (Shared::default(), Process::default());
    let books = process.books(&shared);
    assert_eq!(books.reserve(100, 100), Reservation::Granted);
    assert_eq!(books.reserve(1, 100), Reservation::Denied { free: 0 });
    assert_eq!(books.release(40), Release::Done);
    assert_eq!(books.reserve(41, 100), Reservation::Denied { free: 40 });
    assert_eq!(books.reserve(40, 100), Reservation::Granted);
    assert_eq!(books.reserve(u64::MAX, u64::MAX), Reservation::Denied { free: u64::MAX - 100 });
    assert_eq!(shared.high_water.into_inner(), 100);
}

#[test]
fn a_limit_lowered_below_use_refuses_and_reads_as_nothing_free() {
    let (shared, process) = (Shared::default(), Process::default());
    let books = process.books(&shared);
    assert_eq!(books.reserve(100, 100), Reservation::Granted);
    assert_eq!((books.free(50), books.reserve(1, 50)), (0, Reservation::Denied { free: 0 }));
    assert_eq!(books.release(100), Release::Done);
    assert_eq!(books.free(50), 50);
}

#[test]
fn frozen_books_owe_what_is_released_and_pay_later() {
    let (shared, process) = (Shared::default(), Process::default());
    let books = process.books(&shared);
    assert_eq!(books.reserve(10, 100), Reservation::Granted);
    let closing = shared.close();
    assert_eq!(books.reserve(1, 100), Reservation::Frozen);
    assert_eq!(books.release(10), Release::Owed);
    assert_eq!(books.free(100), 90, "reserved bytes are reported while frozen");
    closing.open_as_they_are(&shared.total);
    assert_eq!(books.reserve(100, 100), Reservation::Granted);
    assert_eq!(shared.total.load(Ordering::Relaxed), 100);
}

/// A tenant that zeroes the shared words gains nothing for its own process.
#[test]
fn shared_words_cannot_lift_the_limit_of_one_process() {
    let (shared, process) = (Shared::default(), Process::default());
    let books = process.books(&shared);
    assert_eq!(books.reserve(90, 100), Reservation::Granted);
    for hostile in [0, 5, u64::MAX, FREEZE, FREEZE - 1] {
        shared.total.store(hostile, Ordering::Relaxed);
        process.used.store(hostile, Ordering::Relaxed);
        assert_ne!(books.reserve(11, 100), Reservation::Granted, "total {hostile}");
        assert!(books.free(100) <= 10);
    }
}

/// 16 processes of 4 threads over one limit: never a byte above it, and the total ends at zero.
#[test]
fn many_threads_and_processes_never_pass_the_limit() {
    const LIMIT: u64 = 1 << 20;
    let shared = Shared::default();
    let processes: Vec<Process> = (0..16).map(|_| Process::default()).collect();
    let held = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (number, process) in processes.iter().enumerate() {
            for thread in 0..4 {
                let (shared, held) = (&shared, &held);
                scope.spawn(move || {
                    let books = process.books(shared);
                    let mut random = 0x9e37_79b9_u64.wrapping_mul(number as u64 * 4 + thread + 1);
                    // Several at a time, so that the limit is reached however few threads happen to run at once.
                    let mut mine = VecDeque::new();
                    let give = |bytes| {
                        held.fetch_sub(bytes, Ordering::SeqCst);
                        books.release(bytes);
                    };
                    for _ in 0..20_000 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let bytes = (random >> 33) % (LIMIT / 8) + 1;
                        if books.reserve(bytes, LIMIT) == Reservation::Granted {
                            let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
                            assert!(now <= LIMIT, "{now} bytes held under {LIMIT}");
                            mine.push_back(bytes);
                        } else {
                            mine.pop_front().into_iter().for_each(give);
                        }
                    }
                    mine.into_iter().for_each(give);
                });
            }
        }
    });
    let high_water = shared.high_water.into_inner();
    assert!(high_water <= LIMIT && high_water > LIMIT / 2, "high water {high_water}");
    assert_eq!(shared.total.into_inner(), 0);
    assert!(processes.iter().all(|p| p.used.load(Ordering::Relaxed) == 0));
}

#[test]
fn the_dead_give_back_everything_and_the_living_keep_theirs() {
    let shared = Shared::default();
    let (live, dead) = (Process::default(), Process::default());
    assert_eq!(live.books(&shared).reserve(30, 100), Reservation::Granted);
    assert_eq!(dead.books(&shared).reserve(60, 100), Reservation::Granted);
    // Killed between moving `total` and recording it.
    dead.inside.store(1, Ordering::Relaxed);
    shared.total.fetch_add(10, Ordering::Relaxed);
    let slots = [live.slot(Owner::Alive), dead.slot(DEAD)];
    assert_eq!(shared.recount(slots.into_iter()), Recount::Done { total: 30, returned: 60 });
    assert_eq!(live.books(&shared).reserve(70, 100), Reservation::Granted);
    live.inside.store(1, Ordering::Relaxed);
    assert_eq!(shared.recount([live.slot(Owner::Alive)].into_iter()), Recount::Busy);
    assert_eq!(live.books(&shared).reserve(0, 100), Reservation::Frozen);
}

/// A reaper is stopped during its recount, and continues after another reaper finished.
#[test]
fn a_reaper_that_goes_on_late_changes_nothing() {
    let shared = Shared::default();
    let (live, dead) = (Process::default(), Process::default());
    assert_eq!(live.books(&shared).reserve(30, 100), Reservation::Granted);
    assert_eq!(dead.books(&shared).reserve(60, 100), Reservation::Granted);
    dead.word.store(7, Ordering::Relaxed);
    let slots = || [live.slot(Owner::Alive), Slot { seen: 7, ..dead.slot(DEAD) }].into_iter();
    let (first, second, third) = (shared.close(), shared.close(), slots());
    assert_eq!(first.recount(&shared.total, slots()), Recount::Overtaken);
    // The exited process's slot is free by then, and its bytes are in no sum.
    assert_eq!(second.recount(&shared.total, slots()), Recount::Done { total: 30, returned: 0 });
    assert_eq!(live.books(&shared).reserve(70, 100), Reservation::Granted);
    for late in [first, second] {
        assert_eq!(late.recount(&shared.total, third.clone()), Recount::Overtaken);
        assert_eq!(late.give_back(&shared.total, third.clone()), 0);
        late.open_as_they_are(&shared.total);
        // Also if another reaper froze meanwhile, with an equal total.
        let closing = shared.close();
        assert_eq!(late.recount(&shared.total, third.clone()), Recount::Overtaken);
        assert_eq!(live.books(&shared).reserve(0, 100), Reservation::Frozen);
        closing.open_as_they_are(&shared.total);
    }
    assert_eq!(shared.total.load(Ordering::Relaxed), 100);
}

/// A hostile total does not stay frozen for ever.
#[test]
fn accounting_of_any_content_can_be_closed_and_reopened() {
    for hostile in [0, 1, FREEZE, FREEZE - 1, u64::MAX, FREEZE | 0xffff << 47] {
        let shared = Shared::default();
        shared.total.store(hostile, Ordering::Relaxed);
        shared.closings.store(hostile, Ordering::Relaxed);
        assert_eq!(shared.recount(std::iter::empty()), Recount::Done { total: 0, returned: 0 });
        assert_eq!(shared.total.load(Ordering::Relaxed), 0);
    }
}

#[derive(Clone, Debug)]
enum Action {
    Reserve(u64),
    Release(u64),
    Lower(u64),
    /// This many of its bytes are set apart; no importer has them open.
    Export(u64),
    /// Its set-apart memory is freed.
    TakeBack,
    /// A reaper frees its slot although it is alive.
    Rob,
    Kill,
}

proptest! {
    #[test]
    fn books_match_a_plain_sum(actions in proptest::collection::vec(prop_oneof![
        4 => (0..200_u64).prop_map(Action::Reserve),
        3 => (0..200_u64).prop_map(Action::Release),
        1 => (0..1_000_u64).prop_map(Action::Lower),
        2 => (0..100_u64).prop_map(Action::Export),
        1 => Just(Action::TakeBack),
        1 => Just(Action::Rob),
        1 => Just(Action::Kill),
    ], 1..200)) {
        let shared = Shared::default();
        let mut processes: Vec<Process> = (0..3).map(|_| Process::default()).collect();
        let apart: [AtomicU64; 3] = Default::default();
        let (none_inside, word) = (AtomicU32::new(0), AtomicU64::new(0));
        let (mut model, mut exported, mut limit) = ([0_u64; 3], [0_u64; 3], 500);
        for (at, action) in actions.into_iter().enumerate() {
            let index = at % 3;
            let books = processes[index].books(&shared);
            // Its own slot counts as exited; and so does its set-apart memory if no importer has it open.
            let slots = |gone: Owner| -> Vec<Slot<'_>> {
                let judged = |number, owner| if number == index { owner } else { Owner::Alive };
                let own = processes.iter().enumerate().map(|(n, p)| p.slot(judged(n, DEAD)));
                let others = apart.iter().enumerate().map(|(n, used)| Slot { inside: &none_inside, used, word: &word, seen: 0, owner: judged(n, gone) });
                own.chain(others).collect()
            };
            match action {
                Action::Reserve(bytes) => {
                    let sum: u64 = model.iter().chain(&exported).sum();
                    let fits = sum + bytes <= limit;
                    prop_assert_eq!(books.reserve(bytes, limit) == Reservation::Granted, fits, "{} of {}", bytes, limit);
                    if fits { model[index] += bytes; }
                }
                Action::Release(bytes) => {
                    // Set-apart memory is released in another way.
                    let bytes = if exported[index] == 0 { bytes } else { bytes.min(model[index]) };
                    prop_assert_eq!(books.release(bytes), Release::Done);
                    model[index] = model[index].saturating_sub(bytes);
                }
                Action::Lower(to) => limit = to,
                Action::Export(bytes) => {
                    let bytes = bytes.min(model[index]);
                    prop_assert_eq!(books.set_apart(bytes, &apart[index]), Reservation::Granted);
                    model[index] -= bytes;
                    exported[index] += bytes;
                }
                Action::TakeBack => {
                    books.let_go(std::mem::take(&mut exported[index]));
                    prop_assert_eq!(books.take_back(&apart[index]), Release::Done);
                }
                Action::Rob => {
                    let (returned, total) = (model[index], model.iter().chain(&exported).sum::<u64>() - model[index]);
                    prop_assert_eq!(shared.recount(slots(Owner::Alive).into_iter()), Recount::Done { total, returned });
                    // A new owner sets a slot's bytes to zero.
                    processes[index].used.store(0, Ordering::Relaxed);
                    prop_assert_eq!(books.restore(), Reservation::Granted);
                }
                Action::Kill => {
                    let returned = std::mem::take(&mut model[index]) + std::mem::take(&mut exported[index]);
                    let total = model.iter().chain(&exported).sum();
                    prop_assert_eq!(shared.recount(slots(DEAD).into_iter()), Recount::Done { total, returned });
                    processes[index] = Process::default();
                    apart[index].store(0, Ordering::Relaxed);
                }
            }
            prop_assert_eq!(shared.total.load(Ordering::Relaxed), model.iter().chain(&exported).sum::<u64>());
            prop_assert!(processes[index].own.load(Ordering::Relaxed) == model[index] + exported[index]);
            for (process, expected) in processes.iter().zip(model) {
                prop_assert_eq!(process.used.load(Ordering::Relaxed), expected);
            }
        }
    }
}
