//! The same books under a schedule explorer: any interleaving, any process killed at any access.
//!
//! `cargo test -p aliquot_enforce --features shuttle --test schedules`

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it did not expect")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aliquot_enforce::explore::{AtomicU32, AtomicU64, Killed, die_after};
use aliquot_enforce::memory::{Books, Release, Reservation};
use aliquot_enforce::reap::{Closing, Owner, Recount, Slot};
use shuttle::rand::{Rng, thread_rng};

const LIMIT: u64 = 10;
const ROUNDS: usize = 3;
/// Looks of a later process whether a slot is free.
const LOOKS: u32 = 40;

#[derive(Default)]
struct World {
    total: AtomicU64,
    high_water: AtomicU64,
    closings: AtomicU64,
    processes: [Process; 3],
    /// Slots of memory that is lent, one for each round of a process.
    apart: [[AtomicU64; ROUNDS]; 3],
    nobody_inside: AtomicU32,
    /// Their words: 0 until they are free, which nobody takes anew here.
    words: [[AtomicU64; ROUNDS]; 3],
    /// What is really held, as the vendor would count it; plain words of the test, not explored.
    held: std::sync::Mutex<[u64; 3]>,
    /// How many owners of each slot died: the owner word counts them, and is even where the slot is free.
    dead: std::sync::Mutex<[u64; 3]>,
    lent: std::sync::Mutex<[[Lent; ROUNDS]; 3]>,
}

/// Memory in a slot of its own.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Lent {
    /// Its maker has it, or there is none.
    #[default]
    Had,
    /// Somebody has it open, who lives.
    Open(u64),
    /// Nobody has it any more.
    LetGo,
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
    fn books(&self, who: usize) -> Books<'_> {
        let process = &self.processes[who];
        Books {
            total: &self.total,
            high_water: &self.high_water,
            inside: &process.inside,
            used: &process.used,
            own: &process.own,
            apart: &process.apart,
            owed: &process.owed,
        }
    }

    fn hold(&self, who: usize, bytes: u64) {
        let mut held = self.held.lock().unwrap();
        held[who] += bytes;
        let sum: u64 = held.iter().sum::<u64>() + self.open();
        assert!(sum <= LIMIT, "{sum} held under {LIMIT}: {held:?}");
    }

    /// Bytes that are open, whoever made them.
    fn open(&self) -> u64 {
        let bytes = |lent: &Lent| if let Lent::Open(bytes) = lent { *bytes } else { 0 };
        self.lent.lock().unwrap().iter().flatten().map(bytes).sum()
    }

    fn slots(&self) -> impl Iterator<Item = Slot<'_>> + Clone {
        let processes = (0..3).filter_map(|who| {
            let process = &self.processes[who];
            let seen = process.word.load(Ordering::SeqCst);
            let (is_free, is_dead) = (seen % 2 == 0, seen / 2 < self.dead.lock().unwrap()[who]);
            let owner = if is_dead { Owner::Dead(seen + 1) } else { Owner::Alive };
            let (inside, used, word) = (&process.inside, &process.used, &process.word);
            (!is_free).then_some(Slot { inside, used, word, seen, owner })
        });
        let apart = (0..3 * ROUNDS).filter_map(|number| {
            let (who, round) = (number / ROUNDS, number % ROUNDS);
            let lent = self.lent.lock().unwrap()[who][round];
            let gone = lent == Lent::LetGo || (self.dead.lock().unwrap()[who] > 0 && lent == Lent::Had);
            let owner = if gone { Owner::Dead(1) } else { Owner::Alive };
            let (inside, used, word) =
                (&self.nobody_inside, &self.apart[who][round], &self.words[who][round]);
            (word.load(Ordering::SeqCst) == 0).then_some(Slot { inside, used, word, seen: 0, owner })
        });
        processes.chain(apart)
    }

    /// Lends what it holds: others may have it open, and somebody lets go of it.
    fn lend(&self, who: usize, round: usize, bytes: u64) {
        let (books, apart) = (self.books(who), &self.apart[who][round]);
        if books.set_apart(bytes, apart) != Reservation::Granted {
            self.held.lock().unwrap()[who] -= bytes;
            books.release(bytes);
            return;
        }
        let stays_open = thread_rng().gen_bool(0.5);
        shuttle::thread::yield_now();
        self.held.lock().unwrap()[who] -= bytes;
        if stays_open {
            self.lent.lock().unwrap()[who][round] = Lent::Open(bytes);
        }
        books.let_go(bytes);
        if !stays_open && books.take_back(apart) == Release::Owed {
            // The reaper's.
            self.lent.lock().unwrap()[who][round] = Lent::LetGo;
        }
    }
}

/// A process: reserves and releases at random, and may be killed at any access.
fn process(world: &World, who: usize, killed_at: Option<u32>) {
    if let Some(accesses) = killed_at {
        die_after(accesses);
    }
    let books = world.books(who);
    for round in 0..ROUNDS {
        let bytes = thread_rng().gen_range(1..6_u64);
        if books.reserve(bytes, LIMIT) == Reservation::Granted {
            world.hold(who, bytes);
            shuttle::thread::yield_now();
            if thread_rng().gen_bool(0.5) {
                world.lend(who, round, bytes);
                continue;
            }
            world.held.lock().unwrap()[who] -= bytes;
            books.release(bytes);
        }
    }
}

/// A later process takes the slot of one that was killed, once that is free; it neither lends nor dies.
fn successor(world: &World, who: usize) {
    let slot = &world.processes[who];
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
        let books = Books { own: &own, apart: &apart, ..world.books(who) };
        for _ in 0..ROUNDS {
            let bytes = thread_rng().gen_range(1..6_u64);
            if books.reserve(bytes, LIMIT) == Reservation::Granted {
                world.hold(who, bytes);
                shuttle::thread::yield_now();
                world.held.lock().unwrap()[who] -= bytes;
                books.release(bytes);
            }
        }
        let _owed = books.release(0);
        return;
    }
}

/// Reapers wait for nobody: each may be killed at any access, or stopped until others have done the same work.
fn reaper(world: &World, killed_at: Option<u32>) {
    if let Some(accesses) = killed_at {
        die_after(accesses);
    }
    for _ in 0..3 {
        let closing = Closing::begin(&world.total, &world.closings);
        // Who dies while we wait is seen as dead at the next look.
        while closing.recount(&world.total, world.slots()) == Recount::Busy {
            if thread_rng().gen_bool(0.2) {
                // Somebody may have been stopped inside: the dead give back without him.
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
        assert!(payload.is::<Killed>(), "it failed by itself");
    }
    end.is_ok()
}

fn scenario() {
    let world = Arc::new(World::default());
    world.processes.iter().for_each(|process| process.word.store(1, Ordering::SeqCst));
    let killed_at = |most| thread_rng().gen_bool(0.5).then(|| thread_rng().gen_range(0..most));
    let mut threads: Vec<_> = (0..3)
        .map(|who| {
            let (world, killed_at) = (Arc::clone(&world), killed_at(24));
            shuttle::thread::spawn(move || {
                if survives(|| process(&world, who, killed_at)) {
                    return;
                }
                // The driver takes a dead process's memory back by itself.
                world.held.lock().unwrap()[who] = 0;
                world.dead.lock().unwrap()[who] = 1;
                let after = Arc::clone(&world);
                shuttle::thread::spawn(move || successor(&after, who)).join().unwrap();
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
    // Who owes something pays it with its next call; one that lives makes one.
    let closing = Closing::begin(&world.total, &world.closings);
    match closing.recount(&world.total, world.slots()) {
        Recount::Done { .. } => {}
        other => panic!("{other:?} where nobody is inside and nobody else reaps"),
    }
    for (who, process) in world.processes.iter().enumerate() {
        let word = process.word.load(Ordering::SeqCst);
        if word % 2 != 0 {
            assert_eq!(world.books(who).release(0), Release::Done);
        }
    }
    let expected = world.held.lock().unwrap().iter().sum::<u64>() + world.open();
    let total = world.total.load(Ordering::SeqCst);
    assert_eq!(total, expected, "books and truth differ at the end");
}

#[test]
fn no_schedule_and_no_kill_breaks_the_books() {
    shuttle::check_random(scenario, 10_000);
    shuttle::check_pct(scenario, 10_000, 3);
}
