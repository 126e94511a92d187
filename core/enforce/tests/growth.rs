//! Pools whose size only the driver knows, used by several threads at once: the accounted size is never below the pool's size,
//! and equals it when no operation is in flight.

#![cfg(not(feature = "shuttle"))]

use aliquot_enforce::growth::{AccountingChange, Growth, Operation, Promise, Size, Stamp};
use proptest::prelude::*;

const UNIT: u64 = 32;

/// A pool as the driver keeps it.
#[derive(Default)]
struct Pool {
    size: Size,
}

impl Pool {
    fn take(&mut self, need: u64) {
        self.size.used += need;
        self.size.reserved = self.size.reserved.max(self.size.used.next_multiple_of(UNIT));
    }

    fn trim(&mut self) {
        self.size.reserved = self.size.used.next_multiple_of(UNIT);
    }
}

/// An allocation on its way.
struct Running {
    operation: Operation,
    need: u64,
    taken: bool,
    /// Asked, not settled yet.
    read: Option<(Stamp, u64)>,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Begin(u64),
    Promise(u64, u64),
    Take(usize),
    Read(usize),
    Settle(usize),
    Cancel(usize),
    Free,
    Trim,
    Refresh,
}

struct World {
    pool: Pool,
    growth: Growth,
    books: u64,
    running: Vec<Running>,
    blocks: Vec<u64>,
}

impl World {
    fn begin(&mut self, operation: Operation, need: u64) {
        self.running.push(Running { operation, need, taken: false, read: None });
    }

    fn settle(&mut self, at: usize) -> AccountingChange {
        let running = &self.running[at];
        let (stamp, reserved) = running.read.unwrap_or((self.growth.stamp(), self.pool.size.reserved));
        let settled = self.growth.settle(stamp, running.operation, reserved);
        match settled {
            AccountingChange::Release(bytes) => self.books -= bytes,
            AccountingChange::Charge(bytes) => self.books += bytes,
            AccountingChange::Stale => {
                self.running[at].read = None;
                return settled;
            }
        }
        let done = self.running.remove(at);
        self.blocks.push(done.need);
        settled
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Begin(need) => {
                let worst = need.next_multiple_of(UNIT);
                self.books += worst;
                let operation = self.growth.begin(worst);
                self.begin(operation, need);
            }
            Action::Promise(need, worst) => {
                let worst = worst.min(need).next_multiple_of(UNIT);
                let stamp = self.growth.stamp();
                if let Promise::Made(operation) = self.growth.promise(stamp, need, worst, self.pool.size) {
                    self.books += worst;
                    self.begin(operation, need);
                }
            }
            Action::Take(at) => {
                if let Some(running) = self.running.get_mut(at).filter(|running| !running.taken) {
                    running.taken = true;
                    self.pool.take(running.need);
                }
            }
            Action::Read(at) => {
                let (stamp, reserved) = (self.growth.stamp(), self.pool.size.reserved);
                if let Some(running) = self.running.get_mut(at).filter(|running| running.taken) {
                    running.read = Some((stamp, reserved));
                }
            }
            Action::Settle(at) => {
                if self.running.get(at).is_some_and(|running| running.taken) {
                    assert!(
                        !matches!(self.settle(at), AccountingChange::Charge(_)),
                        "more than was reserved"
                    );
                }
            }
            Action::Cancel(at) => {
                if self.running.get(at).is_some_and(|running| !running.taken) {
                    let operation = self.running.remove(at).operation;
                    self.growth.cancel(operation);
                    self.books -= operation.worst;
                }
            }
            Action::Free => self.pool.size.used -= self.blocks.pop().unwrap_or(0),
            Action::Trim => self.pool.trim(),
            Action::Refresh => {
                let (stamp, reserved) = (self.growth.stamp(), self.pool.size.reserved);
                if let AccountingChange::Release(bytes) =
                    self.growth.settle(stamp, Operation::default(), reserved)
                {
                    self.books -= bytes;
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn accounting_covers_the_pool_at_every_step_and_ends_exact(
        actions in proptest::collection::vec(prop_oneof![
            3 => (1..100_u64).prop_map(Action::Begin),
            2 => (1..100_u64, 0..64_u64).prop_map(|(need, worst)| Action::Promise(need, worst)),
            4 => (0..4_usize).prop_map(Action::Take),
            2 => (0..4_usize).prop_map(Action::Read),
            3 => (0..4_usize).prop_map(Action::Settle),
            1 => (0..4_usize).prop_map(Action::Cancel),
            2 => Just(Action::Free),
            2 => Just(Action::Trim),
            2 => Just(Action::Refresh),
        ], 1..120)
    ) {
        let (pool, growth) = (Pool::default(), Growth::default());
        let mut world = World { pool, growth, books: 0, running: Vec::new(), blocks: Vec::new() };
        for action in actions {
            world.act(action);
            prop_assert_eq!(world.growth.in_books(), world.books);
            prop_assert!(world.pool.size.reserved <= world.books, "{:?}: {:?} under {}", action, world.pool.size, world.books);
        }
        while !world.running.is_empty() {
            world.act(Action::Take(0));
            world.settle(0);
        }
        world.act(Action::Refresh);
        prop_assert_eq!(world.books, world.pool.size.reserved);
        prop_assert_eq!(world.growth.is_idle(), world.books == 0);
    }
}

#[test]
fn growth_beyond_what_was_reserved_is_charged_and_remembered() {
    let mut growth = Growth::default();
    let operation = growth.begin(32);
    assert_eq!(growth.settle(growth.stamp(), operation, 64), AccountingChange::Charge(32));
    assert_eq!(
        (growth.in_books(), growth.settle(growth.stamp(), Operation::default(), 0)),
        (64, AccountingChange::Release(64))
    );
}

#[test]
fn an_answer_from_before_anothers_end_is_not_used() {
    let mut growth = Growth::default();
    let (first, second) = (growth.begin(32), growth.begin(32));
    let early = growth.stamp();
    assert_eq!(growth.settle(growth.stamp(), first, 64), AccountingChange::Release(0));
    assert_eq!(growth.settle(early, second, 32), AccountingChange::Stale);
    assert_eq!(growth.settle(growth.stamp(), second, 64), AccountingChange::Release(0));
    assert_eq!(growth.in_books(), 64);
}

#[test]
fn unreadable_growth_stays_charged() {
    let mut growth = Growth::default();
    let operation = growth.begin(32);
    growth.keep(operation);
    assert_eq!(growth.in_books(), 32);
}

#[test]
fn promised_room_that_another_operation_took_is_still_covered() {
    let mut growth = Growth::default();
    let first = growth.begin(32);
    assert_eq!(growth.settle(growth.stamp(), first, 32), AccountingChange::Release(0));
    // 12 of 32 are in use. One comes with room of its own, and one counts on what is there.
    let with_room = growth.begin(32);
    let size = Size { reserved: 32, used: 12 };
    let Promise::Made(promised) = growth.promise(growth.stamp(), 20, 0, size) else {
        panic!("there is room")
    };
    // The first one finds its 10 in the pool, which does not grow; so the second one makes it grow.
    assert_eq!(growth.settle(growth.stamp(), with_room, 32), AccountingChange::Release(0));
    assert_eq!(growth.settle(growth.stamp(), promised, 64), AccountingChange::Release(0));
    assert_eq!(growth.in_books(), 64);
}
