//! Requests: counts, all, alternatives, selectors, constraints, limits.

use super::build::*;
use crate::allocate::{Limits, Memory, NodeIndex, Release};
use crate::dra::*;

fn c(requests: &[&str]) -> ResourceClaim {
    claim("c", requests)
}

#[test]
fn the_first_device_in_published_order_is_taken() {
    one(&["a", "b"]).check(&[c(&["any"])], "a");
    one(&["a", "b"]).check_after(&[claim("h", &["any"])], &[c(&["any"])], "b");
    one(&["a"]).check_after(&[claim("h", &["any"])], &[c(&["any"])], "NoFit");
    one(&[]).check(&[c(&["any"])], "NoFit");
    setup().check(&[c(&["any"])], "NoFit");
}

#[test]
fn a_count_takes_different_devices_and_all_or_none() {
    one(&["a", "b", "c"]).check(&[c(&["any*2"])], "a b");
    one(&["a", "b"]).check(&[c(&["any*3"])], "NoFit");
    one(&["a share", "b share"]).check(&[c(&["any*2"])], "a b");
    one(&["a share"]).check(&[c(&["any*2"])], "NoFit");
    one(&["a share"]).check(&[c(&["any", "any"])], "a a");
}

#[test]
fn claims_together_are_served_in_order_or_not_at_all() {
    one(&["a", "b"]).check(&[claim("c", &["any"]), claim("d", &["any"])], "a | b");
    one(&["a"]).check(&[claim("c", &["any"]), claim("d", &["any"])], "NoFit");
    let picky = claim("d", &["any k==x"]);
    one(&["a k=x", "b k=y"]).check(&[claim("c", &["any"]), picky], "b | a");
}

#[test]
fn the_search_goes_back_when_a_later_request_cannot_be_served() {
    one(&["a k=x", "b k=y"]).check(&[c(&["any", "any k==x"])], "b a");
    one(&["a k=x", "b k=y", "c k=x"]).check(&[c(&["any*2", "any k==x"])], "a b c");
    one(&["a k=x", "b k=x", "c k=y"]).check(&[c(&["any*2", "any k==x"])], "a c b");
    one(&["a k=x", "b k=y"]).check(&[c(&["any*2", "any k==x"])], "NoFit");
}

#[test]
fn selectors_of_class_and_request_must_all_hold() {
    let x = format!("device.attributes[\"{DRIVER}\"].k == \"x\"");
    let world = || one(&["a k=y l=1", "b k=x l=2", "c k=x l=1"]).class("x", &[&x]);
    world().check(&[c(&["x"])], "b");
    world().check(&[c(&["x l==1"])], "c");
    world().check(&[c(&["x l==3"])], "NoFit");
    world().check(&[c(&["any k==y", "x l==2"])], "a b");
    world().class("driver", &["device.driver == \"other\""]).check(&[c(&["driver"])], "NoFit");
}

#[test]
fn a_missing_class_and_a_broken_selector_are_errors() {
    one(&["a"]).check(&[c(&["none"])], "MissingClass");
    one(&["a"]).check(&[c(&["any / none"])], "MissingClass");
    one(&["a"]).check(&[c(&["any k==x"])], "Selector");
    one(&["a"]).class("bad", &["device.!!"]).check(&[c(&["bad"])], "Selector");
    one(&[]).class("bad", &["device.!!"]).check(&[c(&["bad"])], "NoFit");
}

#[test]
fn selector_is_evaluated_only_on_devices_the_search_reaches() {
    one(&["a k=x", "b"]).check(&[c(&["any k==x"])], "a");
    one(&["a k=x", "b"]).check_after(&[claim("h", &["any"])], &[c(&["any k==x"])], "Selector");
    one(&["b", "a k=x"]).check_after(&[claim("h", &["any"])], &[c(&["any k==x"])], "a");
    one(&["a k=x", "b"]).check(&[c(&["any*all k==x"])], "Selector");
    let no = ["false"];
    one(&["a"]).class("no", &no).check(&[c(&["no k==x"])], "NoFit");
}

#[test]
fn all_takes_every_matching_device_and_at_least_one() {
    one(&["a", "b"]).check(&[c(&["any*all"])], "a b");
    one(&["a k=x", "b k=y", "c k=x"]).check(&[c(&["any*all k==x"])], "a c");
    one(&["a k=x"]).check(&[c(&["any*all k==y"])], "NoFit");
    one(&["a", "b"]).check_after(&[claim("h", &["any"])], &[c(&["any*all"])], "NoFit");
    one(&["a", "b"]).check(&[c(&["any", "any*all"])], "NoFit");
    one(&["a k=x", "b k=y"]).check(&[c(&["any", "any*all k==x"])], "b a");
    one(&["a taint:t=v", "b"]).check(&[c(&["any*all"])], "NoFit");
    one(&["a taint:t=v", "b"]).check(&[c(&["any*all bears:t"])], "a b");
}

#[test]
fn all_skips_full_shares_and_absent_capacities() {
    let world = || one(&["a share cap:memory=8Gi", "b share cap:memory=4Gi"]);
    world().check(&[c(&["any*all memory=4Gi"])], "a b");
    world().check(&[c(&["any*all memory=6Gi"])], "a");
    world().check(&[c(&["any*all memory=9Gi"])], "NoFit");
    world().check_after(&[claim("h", &["any memory=5Gi"])], &[c(&["any*all memory=4Gi"])], "b");
    world().check(&[c(&["any*all disk=1"])], "NoFit");
    world().check(&[c(&["any memory=8Gi", "any*all memory=4Gi"])], "NoFit");
}

#[test]
fn an_allocation_holds_at_most_32_results() {
    let names: Vec<String> = (0..40).map(|n| format!("d{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    one(&names).check(&[c(&["any*33"])], "TooManyDevices");
    one(&names).check(&[c(&["any*20", "any*13"])], "TooManyDevices");
    one(&names).check(&[c(&["any*all"])], "TooManyDevices");
    one(&names[..3]).check(&[c(&["any*33 / any*2"])], "d0 d1");
    one(&names).check(&[claim("c", &["any*20"]), claim("d", &["any*20"])], &{
        let text = |range: std::ops::Range<usize>| names[range].join(" ");
        format!("{} | {}", text(0..20), text(20..40))
    });
    let mixed = c(&["any*30 / any*1", "any*5"]);
    one(&names).check(&[mixed], &names[..6].join(" "));
}

#[test]
fn the_first_alternative_that_can_be_had_is_taken() {
    one(&["a k=x", "b k=y"]).check(&[c(&["any k==x / any k==y"])], "a");
    one(&["b k=y"]).check(&[c(&["any k==x / any k==y"])], "b");
    one(&["b k=y"]).check(&[c(&["any k==x / any k==z"])], "NoFit");
    let world = || one(&["a k=x", "b k=y", "c k=y"]);
    world().check(&[c(&["any*2 k==x / any*2 k==y"])], "b c");
    world().check(&[c(&["any k==x / any k==y", "any k==x"])], "b a");
    world().check(&[c(&["any k==x / any k==y", "any k==x / any k==z"])], "b a");
    world().check(&[c(&["any*all k==z / any*all k==y"])], "b c");
}

#[test]
fn match_attribute_keeps_devices_together() {
    let world = || one(&["a k=x", "b k=y", "c k=y", "d"]);
    world().check(&[matching(c(&["any*2"]), &[], "k")], "b c");
    world().check(&[matching(c(&["any", "any"]), &["r0", "r1"], "k")], "b c");
    world().check(&[matching(c(&["any", "any"]), &["r0"], "k")], "a b");
    world().check(&[matching(c(&["any*3"]), &[], "k")], "NoFit");
    one(&["d", "a k=x"]).check(&[matching(c(&["any"]), &[], "k")], "a");
    one(&["a k=1", "b k=x", "c k=1"]).check(&[matching(c(&["any*2"]), &[], "k")], "a c");
    let two = matching(matching(c(&["any*2"]), &[], "k"), &[], "l");
    one(&["a k=x l=1", "b k=x l=2", "c k=x l=1"]).check(&[two], "a c");
}

#[test]
fn attributes_are_found_with_and_without_the_drivers_domain() {
    let qualified = format!("b {DRIVER}/k=x");
    one(&["a k=x", &qualified]).check(&[matching(c(&["any*2"]), &[], "k")], "a b");
    let both = format!("b k=x {DRIVER}/k=y");
    one(&["a k=x", &both, "c k=x"]).check(&[matching(c(&["any*2"]), &[], "k")], "a c");
    let mut foreign = c(&["any"]);
    let rule = ConstraintRule::Match("other.example.com/k".into());
    foreign.constraints.push(DeviceConstraint { requests: Vec::new(), rule });
    one(&["a k=x"]).check(&[foreign.clone()], "NoFit");
    one(&["a other.example.com/k=x"]).check(&[foreign], "a");
}

#[test]
fn distinct_attribute_keeps_devices_apart_however_many() {
    let world = || one(&["a k=x", "b k=x", "c k=y", "d k=z"]);
    world().check(&[distinct(c(&["any*2"]), &[], "k")], "a c");
    world().check(&[distinct(c(&["any*3"]), &[], "k")], "a c d");
    world().check(&[distinct(c(&["any*4"]), &[], "k")], "NoFit");
    world().check(&[distinct(c(&["any*2", "any"]), &[], "k")], "a c d");
    one(&["a share k=x", "b share k=y"]).check(&[distinct(c(&["any", "any"]), &[], "k")], "a b");
    one(&["a", "b k=y"]).check(&[distinct(c(&["any"]), &[], "k")], "b");
}

#[test]
fn constraints_name_subrequests_too() {
    let world = || one(&["a k=x", "b k=y", "c k=x"]);
    let text = ["any k==x / any k==y", "any"];
    world().check(&[matching(c(&text), &["r0/s0", "r1"], "k")], "a c");
    world().check(&[matching(c(&text), &["r0/s1", "r1"], "k")], "a b");
    world().check(&[matching(c(&text), &["r0", "r1"], "k")], "a c");
    world().check(&[distinct(c(&text), &["r0/s0", "r1"], "k")], "a b");
}

/// A device with a list of texts.
fn listed(name: &str, members: &[&str]) -> Device {
    let mut device = dev(name);
    let members = members.iter().map(ToString::to_string).collect();
    device.attributes.insert("k".into(), AttributeValue::Strings(members));
    device
}

#[test]
fn list_attributes_are_not_compared_to_1_36() {
    let devices = || vec![listed("a", &["x"]), listed("b", &["x"]), dev("c k=x"), dev("d k=x")];
    let world = || setup().devices("p", devices());
    world().check(&[matching(c(&["any"]), &[], "k")], "a");
    world().check(&[matching(c(&["any*2"]), &[], "k")], "c d");
    world().check(&[distinct(c(&["any*2"]), &[], "k")], "a c");
}

#[test]
fn list_attributes_are_sets_from_1_37_on() {
    let answer = |claim: ResourceClaim| {
        let devices = vec![
            listed("a", &["x", "y"]),
            listed("b", &["y", "z"]),
            listed("d", &["x", "z"]),
            dev("e k=z"),
            dev("f k=1"),
        ];
        let mut world = setup().devices("p", devices).world();
        world.follow(Release::V1_37);
        read(&world.allocate(NodeIndex(0), &[claim]))
    };
    assert_eq!(answer(matching(c(&["any*2"]), &[], "k")), "a b");
    assert_eq!(answer(matching(c(&["any*3"]), &[], "k")), "b d e", "a, b and d have no value in common");
    assert_eq!(answer(matching(c(&["any*4"]), &[], "k")), "NoFit");
    assert_eq!(answer(distinct(c(&["any*2"]), &[], "k")), "a e");
    assert_eq!(answer(distinct(c(&["any*3"]), &[], "k")), "a e f");
}

#[test]
fn all_against_a_constraint_is_an_error() {
    one(&["a k=x", "b k=y"]).check(&[matching(c(&["any*all"]), &[], "k")], "AllAgainstConstraint");
    one(&["a k=x", "b k=x"]).check(&[matching(c(&["any*all"]), &[], "k")], "a b");
}

#[test]
fn admin_access_sees_held_devices_and_holds_nothing() {
    one(&["a", "b"]).check(&[c(&["any*all admin"])], "a b");
    one(&["a"]).check_after(&[claim("h", &["any"])], &[c(&["any admin"])], "a");
    one(&["a"]).check_after(&[claim("h", &["any admin"])], &[c(&["any"])], "a");
    one(&["a", "b"]).check(&[c(&["any admin", "any admin"])], "a b");
    one(&["a"]).check(&[c(&["any admin", "any admin"])], "NoFit");
    one(&["a"]).check(&[claim("c", &["any admin"]), claim("d", &["any admin"])], "a | a");
    one(&["a"]).check(&[claim("c", &["any admin"]), claim("d", &["any"])], "NoFit");
    one(&["a share cap:memory=8Gi"]).check_after(
        &[claim("h", &["any"])],
        &[c(&["any admin memory=1Gi"])],
        "NoFit",
    );
}

#[test]
fn nine_distinct_values_of_eight_are_refused_without_a_search() {
    let devices: Vec<String> = (0..24).map(|n| format!("d{n} slot={}", n % 8)).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    let mut world = one(&devices).world();
    world.set_limits(Limits { steps_max: 100, steps_before_twins: u64::MAX, memory: Memory::Off });
    let mut answer = |request| {
        let claim = distinct(claim("c", &[request]), &[], "slot");
        read(&world.allocate(NodeIndex(0), &[claim]))
    };
    assert_eq!(answer("any*8"), "d0 d1 d2 d3 d4 d5 d6 d7");
    assert_eq!(answer("any*9"), "NoFit");
}
