//! The same books under a schedule explorer: any interleaving, any process killed at any access.
//!
//! `cargo test -p aliquot_enforce --features shuttle --test schedules`

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it did not expect")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use aliquot_enforce::explore::{AtomicU32, AtomicU64, Killed, die_after};
use aliquot_enforce::memory::{Books, Reservation};
use aliquot_enforce::reap::{Owner, Recount, Slot, give_back, recount, thaw};
use shuttle::rand::{Rng, thread_rng};

const LIMIT: u64 = 10;

#[derive(Default)]
struct World {
    total: AtomicU64,
    high_water: AtomicU64,
    processes: [Process; 3],
    /// What is really held, as the vendor would count it; plain words of the test, not explored.
    held: std::sync::Mutex<[u64; 3]>,
    dead: std::sync::Mutex<[bool; 3]>,
}

#[derive(Default)]
struct Process {
    inside: AtomicU32,
    used: AtomicU64,
    own: AtomicU64,
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
            owed: &process.owed,
        }
    }

    fn hold(&self, who: usize, bytes: u64) {
        let mut held = self.held.lock().unwrap();
        held[who] += bytes;
        let sum: u64 = held.iter().sum();
        assert!(sum <= LIMIT, "{sum} held under {LIMIT}: {held:?}");
    }

    fn slots(&self, dead: [bool; 3]) -> Vec<Slot<'_>> {
        let owner = |gone| if gone { Owner::Dead } else { Owner::Alive };
        self.processes
            .iter()
            .zip(dead)
            .map(|(p, gone)| Slot { inside: &p.inside, used: &p.used, owner: owner(gone) })
            .collect()
    }
}

/// A process: reserves and releases at random, and may be killed at any access.
fn process(world: &World, who: usize, killed_at: Option<u32>) {
    if let Some(accesses) = killed_at {
        die_after(accesses);
    }
    let books = world.books(who);
    for _ in 0..3 {
        let bytes = thread_rng().gen_range(1..6_u64);
        if books.reserve(bytes, LIMIT) == Reservation::Granted {
            world.hold(who, bytes);
            shuttle::thread::yield_now();
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
    let dead = *world.dead.lock().unwrap();
    for who in (0..3).filter(|who| !dead[*who]) {
        world.books(who).release(0);
    }
    let expected: u64 = world.held.lock().unwrap().iter().sum();
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
