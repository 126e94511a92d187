//! Killed anywhere, one restart converges: hardware, journal, ledger and files agree, nothing is lost, nothing leaks.
//!
//! Every effect on disk or hardware is a place to be killed at, and so is every byte of every file that is written.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test that calls them")]

use std::sync::Arc;

use aliquot_core::id::ClaimUid;
use aliquot_driver::prepare::{PrepareError, Released};
use aliquot_tests::fault::Kill;
use aliquot_tests::node::{Want, World, claim};

/// A claim, and the node that it is for.
struct Shape {
    personality: &'static str,
    policy: &'static str,
    wants: &'static [Want],
}

const fn want(card: u32, part: &'static str, memory_mib: Option<u64>, cores: u8) -> Want {
    Want { card, part, memory_mib, cores }
}

const SHARE_OF_CARD: Shape =
    Shape { personality: "t4-2", policy: "", wants: &[want(0, "card", Some(4096), 25)] };
const MIG_PARTITION: Shape =
    Shape { personality: "h200", policy: "", wants: &[want(0, "1g.18gb at 2", None, 12)] };
const SHARE_IN_PARTITION: Shape =
    Shape { personality: "h200", policy: "", wants: &[want(0, "3g.71gb at 4", Some(8192), 10)] };
const TWO_PARTITIONS: Shape = Shape {
    personality: "ascend-310p-duo",
    policy: "",
    wants: &[want(0, "vir02 at vg0", None, 25), want(3, "vir04 at vg3", None, 50)],
};
const ASCEND_QUARTER: Shape =
    Shape { personality: "ascend-310p", policy: "", wants: &[want(0, "vir02 at vg1", None, 25)] };
const WHOLE_CARD: Shape =
    Shape { personality: "h200", policy: "default = \"whole\"", wants: &[want(0, "card", None, 100)] };
const SLOT: Shape = Shape {
    personality: "t4-2",
    policy: "[[rule]]\nlayout = \"slots\"\nslots = [\"small\"]\n[[slot]]\nname = \"small\"\nmemory = \"4Gi\"\ncores = 25\ncopies = 3\n",
    wants: &[want(1, "slot small #2", None, 0)],
};

const UID: &str = "c1a1";

/// Kills prepare and release at every place, and restarts.
fn check(shape: &Shape) {
    let world = World::new(shape.personality, shape.policy);
    world.publish();
    let uid = ClaimUid::new(UID).unwrap();
    let node = world.open();
    let request = claim(&node, UID, shape.wants);
    drop(node);
    let empty = world.files();

    let killed = prepare_killed_everywhere(&world, shape, &request);
    assert!(killed > 1000, "only {killed} places: the journal was not among them");

    world.restore(&empty);
    let mut node = world.open();
    node.prepare(&request).unwrap();
    drop(node);
    let prepared = world.files();
    let mut places = 0;
    loop {
        world.restore(&prepared);
        let kill = Arc::new(Kill::default());
        let mut node = world.open_on(kill.clone());
        kill.after(places);
        let finished = unless_killed(&kill, node.release(&uid));
        drop(node);
        let mut node = world.open();
        node.invariants().unwrap_or_else(|e| panic!("release killed after {places} places: {e}"));
        let again = node.release(&uid).unwrap();
        assert!(!finished || again == Released::Unknown, "released, yet known after a restart");
        node.invariants().unwrap();
        assert!(world.live().is_empty(), "release killed after {places} places leaks {:?}", world.live());
        if finished {
            break;
        }
        places += 1;
    }
    assert!(places > 300, "only {places} places: the journal was not among them");
}

/// Whether the call ended by itself; an error that no kill explains is the test's failure.
fn unless_killed<T>(kill: &Kill, result: Result<T, PrepareError>) -> bool {
    match result {
        Ok(_) => true,
        Err(error) if kill.left() > 0 => panic!("not killed, and yet: {error}"),
        Err(_) => false,
    }
}

/// Kills prepare at every place; the number of places.
fn prepare_killed_everywhere(
    world: &World,
    shape: &Shape,
    request: &aliquot_core::dra::ResourceClaim,
) -> usize {
    let empty = world.files();
    let mut places = 0;
    loop {
        world.restore(&empty);
        let kill = Arc::new(Kill::default());
        let mut node = world.open_on(kill.clone());
        kill.after(places);
        let finished = unless_killed(&kill, node.prepare(request));
        drop(node);
        // A killed CDI writer leaves its temp file.
        let cdi = world.state().join("cdi");
        if cdi.is_dir() {
            let temp = format!(".aliquot.dev-claim-{UID}.json.0123456789abcdef.tmp");
            std::fs::write(cdi.join(temp), "{").unwrap();
        }
        let node = world.open();
        node.invariants().unwrap_or_else(|e| panic!("prepare killed after {places} places: {e}"));
        let known = node.claims().count();
        if finished {
            assert_eq!(known, 1, "prepared, and lost by a restart");
            assert_eq!(node.grants().count(), shape.wants.len());
            return places;
        }
        // The kill may come after the claim is on disk as prepared and before anybody is told.
        assert!(known <= 1);
        if known == 0 {
            assert!(world.live().is_empty(), "prepare killed after {places} places leaks {:?}", world.live());
        }
        places += 1;
    }
}

#[test]
fn a_share_of_a_card_survives_every_kill() {
    check(&SHARE_OF_CARD);
}

#[test]
fn a_mig_partition_survives_every_kill() {
    check(&MIG_PARTITION);
}

#[test]
fn a_share_inside_a_partition_survives_every_kill() {
    check(&SHARE_IN_PARTITION);
}

#[test]
fn two_partitions_survive_every_kill() {
    check(&TWO_PARTITIONS);
}

#[test]
fn a_quarter_of_an_ascend_card_survives_every_kill() {
    check(&ASCEND_QUARTER);
}

#[test]
fn a_whole_card_survives_every_kill() {
    check(&WHOLE_CARD);
}

#[test]
fn a_slot_survives_every_kill() {
    check(&SLOT);
}
