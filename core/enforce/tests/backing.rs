//! Memory of graphs, against a driver as its vendor describes it: what is reserved covers what it takes at every moment, though
//! launches that have their memory reserve nothing.

#![cfg(not(feature = "shuttle"))]

use aliquot_enforce::backing::{
    AllocationLifetime, AllocationTime, BackingSeat, GraphOperation, History, LaunchNeed, Source, StreamLane,
    Trim,
};
use aliquot_enforce::growth::{AccountingChange, Growth, Operation};
use proptest::prelude::*;
use std::num::NonZeroU64;

const UNIT: u64 = 2;
const ROOMS: usize = 2;
const EXECS: usize = 3;

fn up(bytes: u64) -> u64 {
    bytes.next_multiple_of(UNIT)
}

/// Streams whose kept memory a launch may reuse before it allocates from the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    /// Its stream's.
    Own,
    /// That of idle streams as well.
    Idle,
}

/// What a stream keeps.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    size: u64,
    pinned: u64,
    /// What launches that are not done need beside it.
    busy: u64,
}

impl Room {
    fn kept(&self) -> u64 {
        up(self.pinned + self.busy).min(self.size)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Exec {
    whole: u64,
    left: u64,
    seat: BackingSeat,
    /// Where its allocations are that outlived a launch.
    lives_in: Option<usize>,
}

struct Flight {
    exec: usize,
    room: usize,
    asks: Asks,
    begun: GraphOperation,
    operation: Operation,
    before: u64,
    called: Option<bool>,
}

/// What a flight asks of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Launch,
    Upload,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Begin(usize, usize),
    BeginUpload(usize, usize),
    Call(usize),
    End(usize),
    Free(usize),
    Finish(usize),
    Trim,
    BeginTrim,
    CallTrim,
    EndTrim,
}

struct World {
    driver: Driver,
    rooms: [Room; ROOMS],
    execs: Vec<Exec>,
    history: History,
    growth: Growth,
    books: u64,
    flights: Vec<Flight>,
    trims: Vec<(Trim, u64)>,
    backed: u32,
    /// Whether nothing is reserved that need not be.
    tight: bool,
}

impl World {
    fn reserved(&self) -> u64 {
        self.rooms.iter().map(|room| room.size).sum()
    }

    fn trim(&mut self) {
        self.rooms.iter_mut().for_each(|room| room.size = room.kept());
    }

    /// The seat of another one that leaves nothing and wants no less, where that is asked for.
    fn seated(&self, exec: usize, lane: Option<StreamLane>) -> Option<BackingSeat> {
        let wants = self.execs[exec].whole;
        let others = self.execs.iter().enumerate();
        let fits =
            others.filter(|(number, other)| *number != exec && other.left == 0 && other.whole >= wants);
        let seats = fits.map(|(_, other)| other.seat);
        let mut seats = seats.filter(|seat| *seat != BackingSeat::default());
        lane.and_then(|_| if self.tight { seats.next_back() } else { None })
    }

    /// What those want that are backed and under way, theirs from now on.
    fn reserve_for_backed(&mut self) -> u64 {
        let mut sum = 0;
        for flight in self.flights.iter_mut().filter(|flight| flight.begun.way == LaunchNeed::Backed) {
            if flight.operation.worst == 0 {
                flight.operation.worst = up(self.execs[flight.exec].whole);
                sum += flight.operation.worst;
            }
        }
        sum
    }

    fn begin(&mut self, exec: usize, room: usize, asks: Asks) {
        let Some(known) = self.execs.get(exec) else { return };
        let leaves = match asks {
            _ if known.left == 0 => AllocationLifetime::Nothing,
            Asks::Launch => AllocationLifetime::Something,
            Asks::Upload => AllocationLifetime::Earlier,
        };
        let lane = NonZeroU64::new(room as u64 + 1).map(StreamLane);
        let beside = (leaves == AllocationLifetime::Nothing).then(|| self.seated(exec, lane)).flatten();
        let known = &mut self.execs[exec];
        let begun = beside
            .and_then(|other| self.history.begin_beside(&mut known.seat, lane, other))
            .unwrap_or_else(|| self.history.begin(&mut known.seat, lane, leaves));
        let worst = match begun.way {
            LaunchNeed::Backed => 0,
            LaunchNeed::Unbacked => up(self.execs[exec].whole) + self.reserve_for_backed(),
        };
        self.backed += u32::from(begun.way == LaunchNeed::Backed);
        self.books += worst;
        let mut operation = self.growth.begin(worst);
        operation.worst = operation.worst.min(up(self.execs[exec].whole));
        let before = self.reserved();
        self.flights.push(Flight { exec, room, asks, begun, operation, before, called: None });
    }

    /// The driver launches it, unless allocations of the last launch are still there, or makes it ready beside them.
    fn call(&mut self, at: usize) {
        let Some(flight) = self.flights.get_mut(at).filter(|flight| flight.called.is_none()) else { return };
        let exec = &mut self.execs[flight.exec];
        let is_launch = flight.asks == Asks::Launch;
        flight.called = Some(!is_launch || exec.lives_in.is_none());
        if flight.called == Some(false) {
            return;
        }
        let own = self.rooms[flight.room];
        let mut lacks = up(exec.whole.saturating_sub(own.size - own.pinned));
        self.rooms[flight.room].size += lacks;
        if self.driver == Driver::Idle {
            let others = self.rooms.iter_mut().enumerate().filter(|(number, _)| *number != flight.room);
            for (_, other) in others {
                let pulled = (other.size - other.kept()).min(lacks);
                other.size -= pulled;
                lacks -= pulled;
            }
        }
        if !is_launch {
            return;
        }
        let room = &mut self.rooms[flight.room];
        room.busy = room.busy.max(exec.whole - exec.left);
        if exec.left > 0 {
            exec.lives_in = Some(flight.room);
            room.pinned += exec.left;
        }
    }

    fn end(&mut self, at: usize) {
        let Some(called) = self.flights.get(at).and_then(|flight| flight.called) else { return };
        let flight = self.flights.remove(at);
        let reserved = self.reserved();
        let settled = self.growth.settle(self.growth.stamp(), flight.operation, reserved);
        assert!(matches!(settled, AccountingChange::Release(_)), "{settled:?}: more than was reserved");
        if let AccountingChange::Release(bytes) = settled {
            self.books -= bytes;
        }
        let exec = &mut self.execs[flight.exec];
        let source = match reserved.saturating_sub(flight.before) {
            0 if reserved == flight.before => Source::Kept,
            grew if grew >= exec.whole => Source::Card,
            _ => Source::Anywhere,
        };
        self.history.end(flight.begun, &mut exec.seat, called.then_some(source));
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Begin(exec, room) => self.begin(exec, room, Asks::Launch),
            Action::BeginUpload(exec, room) => self.begin(exec, room, Asks::Upload),
            Action::Call(at) => self.call(at),
            Action::End(at) => self.end(at),
            Action::Free(exec) => {
                let Some(exec) = self.execs.get_mut(exec) else { return };
                if let Some(room) = exec.lives_in.take() {
                    self.rooms[room].pinned -= exec.left;
                }
            }
            Action::Finish(room) => self.rooms[room].busy = 0,
            Action::Trim => {
                self.act(Action::BeginTrim);
                self.act(Action::CallTrim);
                self.act(Action::EndTrim);
            }
            Action::BeginTrim => {
                let begun = self.history.begin_trim();
                self.trims.extend(begun.map(|trim| (trim, self.rooms.iter().map(|room| room.size).sum())));
            }
            Action::CallTrim if self.trims.is_empty() => {}
            Action::CallTrim => self.trim(),
            Action::EndTrim => {
                if let Some((trim, before)) = self.trims.pop() {
                    self.history.end_trim(trim, before == self.reserved());
                }
            }
        }
    }
}

/// All of a launch.
fn launch((exec, room): (usize, usize)) -> Vec<Action> {
    vec![Action::Begin(exec, room), Action::Call(0), Action::End(0)]
}

/// All of an upload.
fn upload((exec, room): (usize, usize)) -> Vec<Action> {
    vec![Action::BeginUpload(exec, room), Action::Call(0), Action::End(0)]
}

fn world(driver: Driver, sizes: &[(u64, u64)]) -> World {
    let exec =
        |(whole, left): &(u64, u64)| Exec { whole: *whole, left: (*left).min(*whole), ..Exec::default() };
    World {
        driver,
        rooms: [Room::default(); ROOMS],
        execs: sizes.iter().map(exec).collect(),
        history: History::default(),
        growth: Growth::default(),
        books: 0,
        flights: Vec::new(),
        trims: Vec::new(),
        backed: 0,
        tight: false,
    }
}

fn action() -> impl Strategy<Value = Vec<Action>> {
    prop_oneof![
        12 => (0..EXECS, 0..ROOMS).prop_map(launch),
        2 => (0..EXECS, 0..ROOMS).prop_map(|(exec, room)| vec![Action::Begin(exec, room)]),
        3 => (0..EXECS, 0..ROOMS).prop_map(upload),
        1 => (0..EXECS, 0..ROOMS).prop_map(|(exec, room)| vec![Action::BeginUpload(exec, room)]),
        3 => (0..3_usize).prop_map(|at| vec![Action::Call(at)]),
        3 => (0..3_usize).prop_map(|at| vec![Action::End(at)]),
        6 => (0..EXECS).prop_map(|exec| vec![Action::Free(exec)]),
        4 => (0..ROOMS).prop_map(|room| vec![Action::Finish(room)]),
        1 => Just(vec![Action::Trim]),
        1 => Just(vec![Action::BeginTrim]),
        1 => Just(vec![Action::CallTrim]),
        1 => Just(vec![Action::EndTrim]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn reserved_memory_covers_graph_memory_at_every_moment(
        driver in prop_oneof![Just(Driver::Own), Just(Driver::Idle)],
        sizes in proptest::collection::vec((1..9_u64, prop_oneof![Just(0), 0..9_u64]), EXECS),
        steps in proptest::collection::vec(action(), 1..60),
        tight in any::<bool>(),
    ) {
        let mut world = World { tight, ..world(driver, &sizes) };
        if tight {
            // Graphs of a stream are seen to have the same memory.
            launch((0, 0)).into_iter().chain([Action::Free(0)]).chain(launch((1, 0))).for_each(|action| world.act(action));
        }
        for action in steps.into_iter().flatten() {
            world.act(action);
            prop_assert!(world.reserved() <= world.books, "{action:?}: {} under {}", world.reserved(), world.books);
        }
    }
}

/// Runs all actions; the accounted bytes cover the driver's memory all the time.
fn covered(sizes: &[(u64, u64)], steps: Vec<Vec<Action>>) -> World {
    let mut world = world(Driver::Own, sizes);
    for action in steps.into_iter().flatten() {
        world.act(action);
        assert!(world.reserved() <= world.books, "{action:?}: {} under {}", world.reserved(), world.books);
    }
    world
}

#[test]
fn nobody_trims_what_a_launch_under_way_counts_on() {
    let steps = vec![
        launch((0, 0)),
        vec![Action::Finish(0), Action::Begin(0, 0), Action::Trim, Action::Call(0), Action::End(0)],
    ];
    assert_eq!(covered(&[(8, 0)], steps).backed, 1);
}

#[test]
fn memory_left_by_a_launch_avoids_memory_of_launches_in_flight() {
    let steps = vec![
        launch((0, 0)),
        vec![Action::Free(0)],
        launch((1, 0)),
        vec![Action::Begin(1, 0), Action::Begin(0, 0), Action::Call(1), Action::Call(0)],
        vec![Action::Finish(0), Action::End(0), Action::End(0)],
    ];
    assert_eq!(covered(&[(8, 8), (8, 0)], steps).backed, 1);
}

/// Launches one after the other, and how many of them reserved nothing.
fn backed_of(driver: Driver, sizes: &[(u64, u64)], launches: &[(usize, usize)]) -> u32 {
    let mut world = world(driver, sizes);
    for at in launches {
        launch(*at).into_iter().for_each(|action| world.act(action));
        world.act(Action::Free(at.0));
        world.act(Action::Finish(at.1));
    }
    world.backed
}

#[test]
fn relaunch_without_change_keeps_its_memory() {
    for driver in [Driver::Own, Driver::Idle] {
        let again = [(0, 0); 6];
        assert_eq!(backed_of(driver, &[(8, 0)], &again), 5, "alone, {driver:?}");
        assert_eq!(backed_of(driver, &[(8, 3)], &again), 5, "alone, with something left, {driver:?}");
        let turns: Vec<_> = (0..12).map(|turn| (turn % 3, 0)).collect();
        assert_eq!(backed_of(driver, &[(8, 0), (5, 0), (6, 0)], &turns), 9, "together, {driver:?}");
        let apart: Vec<_> = (0..12).map(|turn| (turn % 2, turn % 2)).collect();
        let fresh = backed_of(driver, &[(8, 0), (8, 0)], &apart);
        assert_eq!(fresh, if driver == Driver::Own { 10 } else { 0 }, "each in its stream, {driver:?}");
    }
}

#[test]
fn instantiation_driver_reserves_nothing_at_launch_until_seen() {
    let (mut history, mut seat) = (History::default(), BackingSeat::default());
    history.learn(AllocationTime::AtInstantiation);
    let begun = history.begin(&mut seat, None, AllocationLifetime::Nothing);
    assert_eq!((begun.way, history.begin_trim().is_some()), (LaunchNeed::Backed, false));
    history.end(begun, &mut seat, Some(Source::Anywhere));
    assert!(history.begin_trim().is_some());
    history.doubt();
    // Neither is believed any more, whatever is seen: what takes nothing now may take something then.
    for seen in [AllocationTime::AtLaunch, AllocationTime::AtInstantiation] {
        assert_eq!(history.taken(), AllocationTime::AtEither);
        assert_eq!(history.begin(&mut seat, None, AllocationLifetime::Nothing).way, LaunchNeed::Unbacked);
        history.learn(seen);
    }
}

#[test]
fn launch_driver_seen_once_keeps_reserving_at_launches() {
    let mut history = History::default();
    history.learn(AllocationTime::AtLaunch);
    history.doubt();
    assert_eq!(history.taken(), AllocationTime::AtLaunch);
    history.learn(AllocationTime::AtEither);
    history.learn(AllocationTime::AtLaunch);
    assert_eq!(history.taken(), AllocationTime::AtEither);
}

#[test]
fn an_upload_needs_memory_beside_what_its_graph_left() {
    let steps = vec![launch((0, 0)), upload((0, 0)), vec![Action::Free(0)], launch((0, 0))];
    // But where it left nothing it has its own.
    assert_eq!(covered(&[(8, 8)], steps).backed, 1);
    assert_eq!(covered(&[(8, 0)], vec![launch((0, 0)), upload((0, 0))]).backed, 1);
    let (mut history, mut seat) = (History::default(), BackingSeat::default());
    history.learn(AllocationTime::AtInstantiation);
    assert_eq!(history.begin(&mut seat, None, AllocationLifetime::Earlier).way, LaunchNeed::Unbacked);
}

#[test]
fn quiet_since_a_moment_requires_no_operation_in_flight() {
    let (mut history, mut seat) = (History::default(), BackingSeat::default());
    let before = history.moment();
    assert!(history.was_quiet(before));
    let begun = history.begin(&mut seat, None, AllocationLifetime::Nothing);
    let during = history.moment();
    assert!(!history.was_quiet(before) && !history.was_quiet(during));
    history.end(begun, &mut seat, Some(Source::Anywhere));
    assert!(!history.was_quiet(before) && !history.was_quiet(during));
    assert!(history.was_quiet(history.moment()));
}
