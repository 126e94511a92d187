//! The same books under a schedule explorer: any interleaving, any process killed at any access.
//!
//! `cargo test -p aliquot_enforce --features shuttle --test schedules`

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it did not expect")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use aliquot_enforce::explore::{AtomicU32, AtomicU64, Killed, die_after};
use aliquot_enforce::memory::{Books, Release, Reservation};
use aliquot_enforce::reap::{Owner, Recount, Slot, give_back, recount, thaw};
use shuttle::rand::{Rng, thread_rng};

const LIMIT: u64 = 10;
const ROUNDS: usize = 3;

#[derive(Default)]
struct World {
    total: AtomicU64,
    high_water: AtomicU64,
    processes: [Process; 3],
    /// Slots of memory that is lent, one for each round of a process.
    apart: [[AtomicU64; ROUNDS]; 3],
    nobody_inside: AtomicU32,
    nothing: AtomicU64,
    /// What is really held, as the vendor would count it; plain words of the test, not explored.
    held: std::sync::Mutex<[u64; 3]>,
    dead: std::sync::Mutex<[bool; 3]>,
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

    fn slots(&self, dead: [bool; 3]) -> Vec<Slot<'_>> {
        let owner = |gone| if gone { Owner::Dead } else { Owner::Alive };
        let lent = *self.lent.lock().unwrap();
        let apart = self.apart.iter().flatten().zip(lent.iter().flatten()).enumerate();
        let apart = apart.map(|(number, (used, lent))| {
            let gone = *lent == Lent::LetGo || (dead[number / ROUNDS] && *lent == Lent::Had);
            Slot { inside: &self.nobody_inside, used, owed: &self.nothing, owner: owner(gone) }
        });
        let processes = self.processes.iter().zip(dead);
        processes
            .map(|(p, gone)| Slot { inside: &p.inside, used: &p.used, owed: &p.owed, owner: owner(gone) })
            .chain(apart)
            .collect()
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

fn scenario() {
    let world = Arc::new(World::default());
    let threads: Vec<_> = (0..3)
        .map(|who| {
            let world = Arc::clone(&world);
            let killed_at = thread_rng().gen_bool(0.5).then(|| thread_rng().gen_range(0..24));
            shuttle::thread::spawn(move || {
                let end = catch_unwind(AssertUnwindSafe(|| process(&world, who, killed_at)));
                if let Err(payload) = end {
                    assert!(payload.is::<Killed>(), "a process failed by itself");
                    // The driver takes a dead process's memory back by itself.
                    world.held.lock().unwrap()[who] = 0;
                    world.dead.lock().unwrap()[who] = true;
                }
            })
        })
        .collect();
    let reaper = {
        let world = Arc::clone(&world);
        shuttle::thread::spawn(move || {
            for _ in 0..4 {
                // Who dies while we wait is seen as dead at the next look.
                loop {
                    let dead = *world.dead.lock().unwrap();
                    if recount(&world.total, world.slots(dead).into_iter()) != Recount::Busy {
                        break;
                    }
                    if thread_rng().gen_bool(0.2) {
                        // Somebody may have been stopped inside: the dead give back without him.
                        give_back(&world.total, world.slots(dead).into_iter());
                        thaw(&world.total);
                        break;
                    }
                    shuttle::thread::yield_now();
                }
                shuttle::thread::yield_now();
            }
        })
    };
    for thread in threads {
        thread.join().unwrap();
    }
    reaper.join().unwrap();
    // Who owes something may never call again.
    let dead = *world.dead.lock().unwrap();
    let expected = world.held.lock().unwrap().iter().sum::<u64>() + world.open();
    match recount(&world.total, world.slots(dead).into_iter()) {
        Recount::Done { total, .. } => assert_eq!(total, expected, "books and truth differ at the end"),
        Recount::Busy => panic!("a living process is still inside"),
    }
}

#[test]
fn no_schedule_and_no_kill_breaks_the_books() {
    shuttle::check_random(scenario, 10_000);
    shuttle::check_pct(scenario, 10_000, 3);
}
