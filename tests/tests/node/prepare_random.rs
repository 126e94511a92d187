//! Random users prepare, release, restart and lose partitions: hardware, journal, ledger and files agree after every action.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use aliquot_core::id::ClaimUid;
use aliquot_core::ports::{DeviceBackend, ExpectedPartition};
use aliquot_tests::node::{Want, World, claim};
use proptest::prelude::*;

use super::prepare::want;

fn uid(text: &str) -> ClaimUid {
    ClaimUid::new(text).unwrap()
}

/// What a random user does next.
#[derive(Clone, Debug)]
enum Action {
    Prepare { claim: usize, wants: Vec<usize> },
    Release { claim: usize },
    Restart,
    Lose,
}

/// Parts that random claims ask for; several overlap.
const PARTS: [Want; 12] = [
    want(0, "vir01 at vg0a", None, 0),
    want(0, "vir01 at vg0b", Some(1024), 5),
    want(0, "vir02 at vg0", Some(1024), 5),
    want(0, "vir02 at vg1", None, 25),
    want(0, "vir02_1c at vg2", Some(2048), 0),
    want(0, "vir04 at vg3", Some(1024), 10),
    want(1, "card", Some(4096), 30),
    want(1, "card", None, 0),
    want(1, "vir02 at vg0", Some(512), 10),
    want(1, "vir02 at vg0", Some(512), 1),
    want(1, "vir04 at vg1", None, 0),
    want(2, "card", Some(1024), 60),
];

fn action() -> impl Strategy<Value = Action> {
    let claim = 0..6_usize;
    prop_oneof![
        6 => (claim.clone(), prop::collection::vec(0..PARTS.len(), 1..3))
            .prop_map(|(claim, wants)| Action::Prepare { claim, wants }),
        4 => claim.prop_map(|claim| Action::Release { claim }),
        1 => Just(Action::Restart),
        1 => Just(Action::Lose),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hardware_journal_ledger_and_files_agree_after_every_action(
        actions in prop::collection::vec(action(), 1..25)
    ) {
        let world = World::new("ascend-310p-duo", "");
        world.publish();
        let mut node = world.open();
        for action in actions {
            match action {
                Action::Prepare { claim: number, wants } => {
                    let wants: Vec<Want> = wants.iter().map(|w| PARTS[*w]).collect();
                    let request = claim(&node, &format!("c{number}"), &wants);
                    let before = world.files();
                    if node.prepare(&request).is_err() {
                        prop_assert_eq!(world.files(), before, "refused, and yet something changed");
                    }
                }
                Action::Release { claim } => {
                    node.release(&uid(&format!("c{claim}"))).unwrap();
                }
                Action::Restart => {
                    drop(node);
                    node = world.open();
                }
                Action::Lose => {
                    drop(node);
                    if let Some(live) = world.live().first() {
                        world.hardware().destroy_partition(&live.at, &ExpectedPartition::Any).unwrap();
                    }
                    node = world.open();
                }
            }
            node.invariants().unwrap();
        }
        for number in 0..6 {
            node.release(&uid(&format!("c{number}"))).unwrap();
            node.invariants().unwrap();
        }
        prop_assert!(world.live().is_empty());
    }
}
