//! Broken input is reported and left out; the rest stays usable.

use super::build::*;
use crate::allocate::InputProblem;
use crate::dra::*;

#[test]
fn duplicate_objects_are_skipped_and_reported() {
    let mut twice = one(&["a"]).node("n1").class("any", &["false"]);
    twice.slices.push(twice.slices[0].clone());
    let (mut world, problems) = twice.build();
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "slice `p-0` is given twice; the second one is left out",
            "device class `any` is given twice; the second one is left out",
            "node `n1` is given twice; the second one is left out",
        ]
    );
    assert_eq!(hold(&mut world, &claim("c", &["any"])).devices.len(), 1);
}

#[test]
fn a_class_that_does_not_compile_is_said_at_once() {
    let (_, problems) = one(&["a"]).class("bad", &["true", "device.!!"]).build();
    assert!(matches!(&problems[..], [InputProblem::Selector { class, index: 1, .. }] if class == "bad"));
}

#[test]
fn slice_with_devices_and_counters_is_not_allocated_from() {
    let mixed = one(&["a"]).slice("m", "m", &["b"], |slice| {
        let counters = [("mem".to_owned(), q("1"))].into();
        slice.shared_counters = vec![CounterSet { name: "s".into(), counters }].into();
    });
    let (mut world, problems) = mixed.build();
    assert!(matches!(&problems[..], [InputProblem::MixedSlice { slice }] if slice == "m"));
    assert_eq!(read(&world.allocate(crate::allocate::NodeIndex(0), &[claim("c", &["any*2"])])), "NoFit");
}

#[test]
fn a_pools_fault_is_said_once_for_all_nodes() {
    let everywhere = setup().node("n2").node("n3").slice("s", "p", &["a", "a"], |slice| {
        slice.node = NodeSelection::All;
    });
    let (_, problems) = everywhere.build();
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["pool gpu.example.com/p: two devices are called `a`"]);
}
