//! The accounting of graph memory against a model of a driver: one room a stream that keeps what its graphs had.

use std::collections::BTreeMap;

use aliquot_enforce::graph_store::GraphStore;
use aliquot_enforce::growth::AccountingChange;
use proptest::prelude::*;

/// Executable graphs and streams of the model.
const GRAPHS: usize = 4;
const STREAMS: usize = 3;
/// The first ones leave what they allocate.
const LEAVING: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Step {
    Instantiate(usize, u64),
    Launch(usize, usize),
    /// Frees what the graph's last launch left.
    Free(usize),
    Destroy(usize),
    Trim,
    Settle,
}

/// A driver: a stream keeps memory for the largest graph that ran in it, until a trim, and what launches left allocated, until
/// it is freed.
#[derive(Default)]
struct Driver {
    rooms: BTreeMap<usize, u64>,
    /// Graph, stream and bytes.
    left: Vec<(usize, usize, u64)>,
}

impl Driver {
    fn size(&self) -> u64 {
        self.rooms.values().sum()
    }

    fn left_in(&self, stream: usize) -> u64 {
        self.left.iter().filter(|(_, room, _)| *room == stream).map(|(_, _, bytes)| bytes).sum()
    }

    fn launch(&mut self, stream: usize, bytes: u64) {
        let wanted = self.left_in(stream) + bytes;
        let room = self.rooms.entry(stream).or_default();
        *room = wanted.max(*room);
    }

    fn free(&mut self, graph: usize) {
        self.left.retain(|(other, ..)| *other != graph);
    }

    fn trim(&mut self) {
        self.rooms = (0..STREAMS).map(|stream| (stream, self.left_in(stream))).collect();
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..GRAPHS, 1..50_u64).prop_map(|(graph, bytes)| Step::Instantiate(graph, bytes)),
        (0..GRAPHS, 0..STREAMS).prop_map(|(graph, stream)| Step::Launch(graph, stream)),
        (0..GRAPHS).prop_map(Step::Free),
        (0..GRAPHS).prop_map(Step::Destroy),
        Just(Step::Trim),
        Just(Step::Settle),
    ];
    prop::collection::vec(step, 1..60)
}

fn settle(store: &mut GraphStore, size: u64) -> AccountingChange {
    let asked = store.moment();
    store.settle(asked, size)
}

proptest! {
    #[test]
    fn store_never_exceeds_what_is_charged(steps in steps()) {
        let (mut store, mut driver) = (GraphStore::default(), Driver::default());
        let mut graphs = [None::<(u64, Option<usize>)>; GRAPHS];
        let (mut books, mut pinned) = (0_u64, [0_u64; GRAPHS]);
        for step in steps {
            match step {
                Step::Instantiate(graph, bytes) if graphs[graph].is_none() => {
                    books += bytes;
                    store.add(bytes);
                    graphs[graph] = Some((bytes, None));
                }
                Step::Launch(graph, stream) => {
                    let Some((bytes, lane)) = &mut graphs[graph] else { continue };
                    store.unpin(std::mem::take(&mut pinned[graph]));
                    if lane.is_some_and(|lane| lane != stream) {
                        books += *bytes;
                        store.leave(*bytes);
                    }
                    *lane = Some(stream);
                    if graph < LEAVING {
                        driver.free(graph);
                        driver.launch(stream, *bytes);
                        driver.left.push((graph, stream, *bytes));
                        pinned[graph] = *bytes;
                        store.pin(*bytes);
                    } else {
                        driver.launch(stream, *bytes);
                    }
                }
                Step::Free(graph) => {
                    store.unpin(std::mem::take(&mut pinned[graph]));
                    driver.free(graph);
                }
                Step::Destroy(graph) => {
                    store.unpin(std::mem::take(&mut pinned[graph]));
                    if let Some((bytes, _)) = graphs[graph].take() {
                        store.retire(bytes);
                        // What it left stays, under a number of its own.
                        driver.left.iter_mut().filter(|left| left.0 == graph).for_each(|left| left.0 = GRAPHS);
                    }
                }
                Step::Trim => driver.trim(),
                Step::Settle => match settle(&mut store, driver.size()) {
                    AccountingChange::Release(bytes) => books -= bytes,
                    other => prop_assert!(false, "{other:?}"),
                },
                Step::Instantiate(..) => {}
            }
            prop_assert!(driver.size() <= store.charged(), "{} of {}", driver.size(), store.charged());
            prop_assert_eq!(books, store.charged());
        }
        // What graphs that are gone left is freed: an idle driver that is trimmed leaves the footprints alone.
        driver.free(GRAPHS);
        driver.trim();
        settle(&mut store, driver.size());
        let footprints: u64 = graphs.iter().flatten().map(|(bytes, _)| bytes).sum();
        prop_assert!(store.charged() <= footprints + driver.size() - pinned.iter().sum::<u64>());
        settle(&mut store, 0);
        prop_assert_eq!(store.charged(), footprints);
    }
}

#[test]
fn size_is_adopted_beside_calls_but_not_across_their_end() {
    let mut store = GraphStore::default();
    store.leave(10);
    let before = store.moment();
    store.begin(5);
    store.leave(5);
    assert_eq!(store.settle(before, 4), AccountingChange::Release(6));
    store.end(5);
    assert_eq!(store.settle(before, 0), AccountingChange::Stale);
    assert_eq!(settle(&mut store, 8), AccountingChange::Release(1));
    assert_eq!((store.residue(), store.charged()), (8, 8));
}

#[test]
fn size_read_before_a_smaller_one_was_adopted_charges_nothing() {
    let mut store = GraphStore::default();
    store.leave(10);
    let before = store.moment();
    assert_eq!(settle(&mut store, 0), AccountingChange::Release(10));
    assert_eq!(store.settle(before, 10), AccountingChange::Stale);
}

#[test]
fn graph_that_was_not_destroyed_keeps_its_charge() {
    let mut store = GraphStore::default();
    store.add(10);
    store.begin(10);
    store.retire(10);
    assert_eq!(settle(&mut store, 0), AccountingChange::Release(0));
    store.restore(10);
    store.end(10);
    assert_eq!(settle(&mut store, 0), AccountingChange::Release(0));
    assert_eq!((store.residue(), store.charged()), (0, 10));
}

#[test]
fn residue_ends_beside_what_existing_graphs_left() {
    let mut store = GraphStore::default();
    let before = store.moment();
    store.add(10);
    store.add(10);
    store.pin(10);
    assert_eq!(store.settle(before, 0), AccountingChange::Stale, "it may lack what is pinned");
    store.retire(10);
    assert_eq!(settle(&mut store, 20), AccountingChange::Release(0));
    assert_eq!(settle(&mut store, 10), AccountingChange::Release(10));
    store.retire(10);
    store.unpin(10);
    assert_eq!(settle(&mut store, 10), AccountingChange::Release(0));
}

#[test]
fn growth_beyond_the_model_is_charged() {
    let mut store = GraphStore::default();
    store.add(10);
    assert_eq!(settle(&mut store, 25), AccountingChange::Charge(15));
    assert_eq!(store.charged(), 25);
    assert_eq!(settle(&mut store, 10), AccountingChange::Release(5));
}
