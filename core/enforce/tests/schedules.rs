//! The memory accounting under a schedule explorer: any interleaving, any process killed at any access.
//!
//! `cargo test -p aliquot_enforce --features shuttle --test schedules`

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it did not expect")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aliquot_enforce::explore::{AtomicU32, AtomicU64, KilledThread, die_after};
use aliquot_enforce::memory::{MemoryAccounting, Release, Reservation};
use aliquot_enforce::reap::{AccountingFreeze, Owner, Recount, Slot};
use shuttle::rand::{Rng, thread_rng};

const LIMIT: u64 = 10;
const ROUNDS: usize = 3;
/// Polls of a later process for a free slot.
const LOOKS: u32 = 40;

#[derive(Default)]
struct World {
    total: AtomicU64,
    high_water: AtomicU64,
    closings: AtomicU64,
    processes: [Process; 3],
    /// Slots of IPC-shared memory, one for each round of a process.
    apart: [[AtomicU64; ROUNDS]; 3],
    none_inside: AtomicU32,
    /// Their owner words: 0 until they are free; this test does not reuse them.
    words: [[AtomicU64; ROUNDS]; 3],
    /// Actually allocated bytes, as the vendor would count them; plain words of the test, not explored.
    held: std::sync::Mutex<[u64; 3]>,
    /// Number of exited owners of each slot: the owner word counts them, and is even if the slot is free.
    dead: std::sync::Mutex<[u64; 3]>,
    exports: std::sync::Mutex<[[Export; ROUNDS]; 3]>,
}

/// Memory in a slot of its own.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Export {
    /// Its exporter has it, or there is none.
    #[default]
    Own,
    /// A live importer has it open.
    Open(u64),
    /// No process has it any more.
    Closed,
}

#[derive(Default)]
struct Process {
    word: AtomicU64,
    inside: AtomicU32,
    used: AtomicU64,
    own: AtomicU64,
    apart: AtomicU64,
    owed: AtomicU64,
}

impl World {
    fn books(&self, index: usize) -> MemoryAccounting<'_> {
        let process = &self.processes[index];
        MemoryAccounting {
            total: &self.total,
            high_water: &self.high_water,
            inside: &process.inside,
            used: &process.used,
            own: &process.own,
            apart: &process.apart,
            owed: &process.owed,
        }
    }

    fn hold(&self, index: usize, bytes: u64) {
        let mut held = self.held.lock().unwrap();
        held[index] += bytes;
        let sum: u64 = held.iter().sum::<u64>() + self.open();
        assert!(sum <= LIMIT, "{sum} held under {LIMIT}: {held:?}");
    }

    /// Bytes open in importers, of all exporters.
    fn open(&self) -> u64 {
        let bytes = |export: &Export| if let Export::Open(bytes) = export { *bytes } else { 0 };
        self.exports.lock().unwrap().iter().flatten().map(bytes).sum()
    }

    fn slots(&self) -> impl Iterator<Item = Slot<'_>> + Clone {
        let processes = (0..3).filter_map(|index| {
            let process = &self.processes[index];
            let seen = process.word.load(Ordering::SeqCst);
            let (is_free, is_dead) = (seen % 2 == 0, seen / 2 < self.dead.lock().unwrap()[index]);
            let owner = if is_dead { Owner::Dead(seen + 1) } else { Owner::Alive };
            let (inside, used, word) = (&process.inside, &process.used, &process.word);
            (!is_free).then_some(Slot { inside, used, word, seen, owner })
        });
        let apart = (0..3 * ROUNDS).filter_map(|number| {
            let (index, round) = (number / ROUNDS, number % ROUNDS);
            let export = self.exports.lock().unwrap()[index][round];
            let has_exited = self.dead.lock().unwrap()[index] > 0;
            let gone = export == Export::Closed || (has_exited && export == Export::Own);
            let owner = if gone { Owner::Dead(1) } else { Owner::Alive };
            let (inside, used, word) =
                (&self.none_inside, &self.apart[index][round], &self.words[index][round]);
            (word.load(Ordering::SeqCst) == 0).then_some(Slot { inside, used, word, seen: 0, owner })
        });
        processes.chain(apart)
    }

    /// Exports its memory: an importer may have it open, or all processes close it.
    fn export(&self, index: usize, round: usize, bytes: u64) {
        let (books, apart) = (self.books(index), &self.apart[index][round]);
        if books.set_apart(bytes, apart) != Reservation::Granted {
            self.held.lock().unwrap()[index] -= bytes;
            books.release(bytes);
            return;
        }
        let stays_open = thread_rng().gen_bool(0.5);
        shuttle::thread::yield_now();
        self.held.lock().unwrap()[index] -= bytes;
        if stays_open {
            self.exports.lock().unwrap()[index][round] = Export::Open(bytes);
        }
        books.let_go(bytes);
        if !stays_open && books.take_back(apart) == Release::Owed {
            // The reaper releases it.
            self.exports.lock().unwrap()[index][round] = Export::Closed;
        }
    }
}

/// A process: reserves and releases at random, and may be killed at any access.
fn process(world: &World, index: usize, killed_at: Option<u32>) {
    if let Some(accesses) = killed_at {
        die_after(accesses);
    }
    let books = world.books(index);
    for round in 0..ROUNDS {
        let bytes = thread_rng().gen_range(1..6_u64);
        if books.reserve(bytes, LIMIT) == Reservation::Granted {
            world.hold(index, bytes);
            shuttle::thread::yield_now();
            if thread_rng().gen_bool(0.5) {
                world.export(index, round, bytes);
                continue;
            }
            world.held.lock().unwrap()[index] -= bytes;
            books.release(bytes);
        }
    }
}

/// A later process takes the slot of a killed one, once it is free; it neither exports nor is killed.
fn successor(world: &World, index: usize) {
    let slot = &world.processes[index];
    for _ in 0..LOOKS {
        let seen = slot.word.load(Ordering::SeqCst);
        if seen % 2 != 0 {
            shuttle::thread::yield_now();
            continue;
        }
        slot.used.store(0, Ordering::SeqCst);
        slot.inside.store(0, Ordering::SeqCst);
        slot.owed.store(0, Ordering::SeqCst);
        assert!(slot.word.compare_exchange(seen, seen + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok());
        let (own, apart) = (AtomicU64::new(0), AtomicU64::new(0));
        let books = MemoryAccounting { own: &own, apart: &apart, ..world.books(index) };
        for _ in 0..ROUNDS {
            let bytes = thread_rng().gen_range(1..6_u64);
            if books.reserve(bytes, LIMIT) == Reservation::Granted {
                world.hold(index, bytes);
                shuttle::thread::yield_now();
                world.held.lock().unwrap()[index] -= bytes;
                books.release(bytes);
            }
        }
        let _owed = books.release(0);
        return;
    }
}

/// Reapers do not wait for each other: each may be killed at any access, or stopped until others have done the same work.
fn reaper(world: &World, killed_at: Option<u32>) {
    if let Some(accesses) = killed_at {
        die_after(accesses);
    }
    for _ in 0..3 {
        let closing = AccountingFreeze::begin(&world.total, &world.closings);
        // A process that is killed meanwhile counts as exited at the next recount.
        while closing.recount(&world.total, world.slots()) == Recount::Busy {
            if thread_rng().gen_bool(0.2) {
                // A process may be stopped inside: the memory of exited processes is released all the same.
                closing.give_back(&world.total, world.slots());
                break;
            }
            shuttle::thread::yield_now();
        }
        shuttle::thread::yield_now();
    }
}

/// Runs it until it ends or is killed.
fn survives(act: impl FnOnce()) -> bool {
    let end = catch_unwind(AssertUnwindSafe(act));
    if let Err(payload) = &end {
        assert!(payload.is::<KilledThread>(), "a panic other than the kill");
    }
    end.is_ok()
}

fn scenario() {
    let world = Arc::new(World::default());
    world.processes.iter().for_each(|process| process.word.store(1, Ordering::SeqCst));
    let killed_at = |most| thread_rng().gen_bool(0.5).then(|| thread_rng().gen_range(0..most));
    let mut threads: Vec<_> = (0..3)
        .map(|index| {
            let (world, killed_at) = (Arc::clone(&world), killed_at(24));
            shuttle::thread::spawn(move || {
                if survives(|| process(&world, index, killed_at)) {
                    return;
                }
                // The driver takes a dead process's memory back by itself.
                world.held.lock().unwrap()[index] = 0;
                world.dead.lock().unwrap()[index] = 1;
                let after = Arc::clone(&world);
                shuttle::thread::spawn(move || successor(&after, index)).join().unwrap();
            })
        })
        .collect();
    threads.extend((0..2).map(|_| {
        let (world, killed_at) = (Arc::clone(&world), killed_at(60));
        shuttle::thread::spawn(move || {
            survives(|| reaper(&world, killed_at));
        })
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    // Owed bytes are released with the next call; each live process makes one.
    let closing = AccountingFreeze::begin(&world.total, &world.closings);
    match closing.recount(&world.total, world.slots()) {
        Recount::Done { .. } => {}
        other => panic!("{other:?} with no thread inside and no other reaper"),
    }
    for (index, process) in world.processes.iter().enumerate() {
        let word = process.word.load(Ordering::SeqCst);
        if word % 2 != 0 {
            assert_eq!(world.books(index).release(0), Release::Done);
        }
    }
    let expected = world.held.lock().unwrap().iter().sum::<u64>() + world.open();
    let total = world.total.load(Ordering::SeqCst);
    assert_eq!(total, expected, "the total differs from the allocated bytes at the end");
}

#[test]
fn no_schedule_and_no_kill_breaks_the_books() {
    shuttle::check_random(scenario, 10_000);
    shuttle::check_pct(scenario, 10_000, 3);
}
