//! Consumable capacity, counters, and both.

use super::build::*;
use crate::allocate::NodeIndex;
use crate::dra::*;

fn c(requests: &[&str]) -> ResourceClaim {
    claim("c", requests)
}

fn h(requests: &[&str]) -> ResourceClaim {
    claim("h", requests)
}

#[test]
fn shares_stack_until_a_capacity_is_used_up() {
    let world = || one(&["a share cap:memory=8Gi", "b share cap:memory=8Gi"]);
    world().check(&[c(&["any memory=8Gi", "any memory=1"])], "a b");
    world().check_after(&[h(&["any memory=6Gi"])], &[c(&["any memory=2Gi"])], "a");
    world().check_after(&[h(&["any memory=6Gi"])], &[c(&["any memory=3Gi"])], "b");
    world().check_after(&[h(&["any memory=6Gi", "any memory=6Gi"])], &[c(&["any memory=3Gi"])], "NoFit");
    world().check(&[c(&["any memory=5Gi", "any memory=5Gi", "any memory=5Gi"])], "NoFit");
    world().check(&[c(&["any memory=5Gi", "any memory=5Gi", "any memory=3Gi", "any memory=3Gi"])], "a b a b");
    world().check(&[c(&["any memory=5Gi", "any memory=3Gi", "any memory=8Gi"])], "a a b");
}

#[test]
fn an_unnamed_capacity_is_taken_by_default_or_whole() {
    one(&["a share cap:memory=8Gi"]).check(&[c(&["any", "any"])], "NoFit");
    let half = || policy(dev("a share cap:memory=8Gi"), "memory", Some("4Gi"), CapacityRestriction::None);
    setup().devices("p", vec![half()]).check(&[c(&["any", "any"])], "a a");
    setup().devices("p", vec![half()]).check(&[c(&["any", "any", "any"])], "NoFit");
    setup().devices("p", vec![half()]).check(&[c(&["any", "any memory=5Gi"])], "NoFit");
    one(&["a share cap:memory=8Gi cap:cores=100"])
        .check(&[c(&["any memory=1Gi", "any memory=1Gi"])], "NoFit");
    one(&["a share"]).check(&[c(&["any", "any", "any"])], "a a a");
}

#[test]
fn requests_are_rounded_before_they_are_charged() {
    let grid = range("1Gi", Some("6Gi"), Some("1Gi"));
    let device = || policy(dev("a share cap:memory=8Gi"), "memory", Some("1Gi"), grid.clone());
    let world = || setup().devices("p", vec![device()]);
    world().check(&[c(&["any memory=3500Mi", "any memory=4Gi"])], "a a");
    world().check(&[c(&["any memory=3500Mi", "any memory=4097Mi"])], "NoFit");
    world().check(&[c(&["any memory=7Gi"])], "NoFit");
    world().check(&[c(&["any memory=1"])], "a");
    let values = CapacityRestriction::Values(vec![q("2Gi"), q("4Gi")]);
    let device = || policy(dev("a share cap:memory=8Gi"), "memory", Some("2Gi"), values.clone());
    let world = || setup().devices("p", vec![device()]);
    world().check(&[c(&["any memory=3Gi", "any memory=3Gi"])], "a a");
    world().check(&[c(&["any memory=3Gi", "any memory=3Gi", "any memory=1"])], "NoFit");
    world().check(&[c(&["any memory=5Gi"])], "NoFit");
}

#[test]
fn consumed_capacity_is_written_as_kubernetes_would() {
    let grid = range("1Gi", None, Some("1Gi"));
    let device = policy(dev("a share cap:memory=80Gi cap:cores=100"), "memory", Some("1Gi"), grid);
    let device = policy(device, "cores", Some("0"), CapacityRestriction::None);
    let mut world = setup().devices("p", vec![device]).world();
    let result = hold(&mut world, &c(&["any memory=10500Mi cores=2e1"]));
    let shown: Vec<_> =
        result.devices[0].consumed_capacity.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    assert_eq!(shown, ["cores=20", "memory=11Gi"]);
    assert!(result.devices[0].share_id.is_some());
}

#[test]
fn an_exclusive_device_only_has_to_be_large_enough() {
    let world = || one(&["a cap:memory=8Gi", "b cap:memory=16Gi"]);
    world().check(&[c(&["any memory=9Gi"])], "b");
    world().check(&[c(&["any memory=1Gi", "any memory=1Gi"])], "a b");
    world().check(&[c(&["any memory=17Gi"])], "NoFit");
    world().check(&[c(&["any disk=1"])], "NoFit");
    let mut world = world().world();
    let result = hold(&mut world, &c(&["any memory=1Gi"]));
    assert!(result.devices[0].consumed_capacity.is_empty() && result.devices[0].share_id.is_none());
}

#[test]
fn capacity_names_are_compared_as_written() {
    one(&["a share cap:memory=8Gi"]).check(&[c(&[&format!("any {DRIVER}/memory=1Gi")])], "NoFit");
    one(&[&format!("a share cap:{DRIVER}/memory=8Gi")]).check(&[c(&["any memory=1Gi"])], "NoFit");
}

#[test]
fn counters_are_drawn_on_by_every_device_of_the_set() {
    let world = || {
        setup().counted("p", &["s.mem=10"], &["whole use:s.mem=10", "half1 use:s.mem=5", "half2 use:s.mem=5"])
    };
    world().check(&[c(&["any"])], "whole");
    world().check(&[c(&["any*2"])], "half1 half2");
    world().check(&[c(&["any*3"])], "NoFit");
    world().check_after(&[h(&["any"])], &[c(&["any"])], "NoFit");
    world().check_after(&[h(&["any*2"])], &[c(&["any"])], "NoFit");
    world().check(&[c(&["any", "any"])], "half1 half2");
}

#[test]
fn a_device_may_draw_on_two_sets_and_needs_both() {
    let counters = ["s.mem=10", "t.mem=4"];
    let devices = ["a use:s.mem=6 use:t.mem=3", "b use:t.mem=2", "c use:s.mem=4"];
    setup().counted("p", &counters, &devices).check(&[c(&["any*2"])], "a c");
    setup().counted("p", &counters, &devices).check_after(&[h(&["any"])], &[c(&["any"])], "c");
}

#[test]
fn the_rollback_returns_counters() {
    let devices = ["a k=x use:s.mem=6", "b k=y use:s.mem=4", "c k=y use:s.mem=6"];
    let world = || setup().counted("p", &["s.mem=10"], &devices);
    world().check(&[matching(c(&["any*2"]), &[], "k")], "b c");
    let tainted = ["a taint:t=v use:s.mem=10", "b use:s.mem=10"];
    setup().counted("p", &["s.mem=10"], &tainted).check(&[c(&["any"])], "b");
}

#[test]
fn a_share_pays_counters_once() {
    let devices = [
        "card share cap:memory=8Gi use:s.mem=10",
        "part use:s.mem=5",
        "other share cap:memory=4Gi use:s.mem=5",
    ];
    let world = || setup().counted("p", &["s.mem=10"], &devices);
    world().check(&[c(&["any memory=4Gi", "any memory=4Gi"])], "card card");
    world().check_after(&[h(&["any memory=4Gi"])], &[c(&["any memory=4Gi"])], "card");
    world().check_after(&[h(&["any memory=4Gi"])], &[c(&["any memory=5Gi"])], "NoFit");
    world().check_after(&[h(&["any*2"])], &[c(&["any memory=1Gi"])], "NoFit");
}

#[test]
fn share_without_capacity_pays_counters_again_as_in_kubernetes() {
    let world = || setup().counted("p", &["s.mem=10"], &["card share use:s.mem=6"]);
    world().check(&[c(&["any", "any"])], "card card");
    world().check_after(&[h(&["any"])], &[c(&["any"])], "NoFit");
}

#[test]
fn an_overdrawn_counter_stops_the_counted_devices_of_its_pool() {
    let devices = ["a use:s.mem=10", "b use:s.mem=10", "c use:t.mem=1", "free"];
    let mut world = setup().counted("p", &["s.mem=10", "t.mem=1"], &devices).world();
    let result = hold(&mut world, &h(&["any"]));
    let mut stolen = result.clone();
    stolen.devices[0].device.device = "b".into();
    assert_eq!(read(&world.allocate(NodeIndex(0), &[c(&["any"])])), "c");
    world.hold_as(&claim("thief", &["any"]), &stolen).unwrap();
    assert_eq!(world.excesses().len(), 1);
    assert_eq!(read(&world.allocate(NodeIndex(0), &[c(&["any"])])), "free");
    world.release("uid-thief").unwrap();
    assert_eq!(read(&world.allocate(NodeIndex(0), &[c(&["any"])])), "c");
    assert_eq!(world.invariants(), Ok(()));
}

#[test]
fn pools_of_two_drivers_with_one_name_keep_their_own_counters() {
    let world = setup()
        .counted("p", &["s.mem=1"], &["a use:s.mem=1"])
        .slice("q-c", "p", &[], |slice| {
            slice.driver = "npu.example.com".into();
            slice.pool.slice_count = 2;
            let counters = [("mem".to_owned(), q("1"))].into();
            slice.shared_counters = vec![CounterSet { name: "s".into(), counters }].into();
        })
        .slice("q-d", "p", &["b use:s.mem=1"], |slice| {
            slice.driver = "npu.example.com".into();
            slice.pool.slice_count = 2;
        });
    world.check(&[c(&["any*2"])], "a b");
}

#[test]
fn admin_access_uses_counters_only_while_allocated() {
    let world = || setup().counted("p", &["s.mem=1"], &["a use:s.mem=1", "b use:s.mem=1"]);
    world().check(&[c(&["any admin", "any"])], "NoFit");
    world().check_after(&[h(&["any admin"])], &[c(&["any"])], "a");
    world().check_after(&[h(&["any"])], &[c(&["any admin"])], "NoFit");
}
