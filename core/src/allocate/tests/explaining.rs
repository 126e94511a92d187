//! The first reason of each device, and a single change that helps.

use std::sync::Arc;

use super::build::*;
use crate::allocate::{Candidates, Change, ChangesTried, NodeIndex, NodesExplained, World};
use crate::dra::*;

fn c(requests: &[&str]) -> ResourceClaim {
    claim("c", requests)
}

/// The reasons of the first request that cannot be served on `n1`, as `device: text`, and the remedy.
#[track_caller]
fn check(world: &mut World, claims: &[ResourceClaim], reasons: &[&str], remedy: Option<&str>) {
    let before = world.allocate(NodeIndex(0), claims);
    let explanation = world.explain(claims, Candidates::Only(&[NodeIndex(0)]), NodesExplained::All);
    let node = &explanation.nodes[0];
    let shown: Vec<String> = node
        .requests
        .iter()
        .flat_map(|request| &request.rejected)
        .map(|rejection| format!("{}: {}", rejection.device.device, rejection.reason))
        .collect();
    assert_eq!(shown, reasons);
    assert_eq!(explanation.remedy.as_ref().map(ToString::to_string).as_deref(), remedy);
    assert_eq!(world.invariants(), Ok(()));
    assert_eq!(world.allocate(NodeIndex(0), claims), before, "explaining changes nothing");
}

#[test]
fn a_placed_claim_needs_no_reasons() {
    let explanation = one(&["a"]).world().explain(&[c(&["any"])], Candidates::All, NodesExplained::All);
    assert_eq!((explanation.outcome, explanation.nodes.len()), (Ok(NodeIndex(0)), 0));
}

#[test]
fn selectors_are_named_with_their_owner() {
    let mut world = one(&["a k=x", "b k=y"]).class("y", &["device.driver == \"other\""]).world();
    let no = "device.attributes[\"gpu.example.com\"].k == \"z\"";
    let text = format!("selector 0 of the request says no: {no}");
    check(
        &mut world,
        &[c(&["any k==z"])],
        &[&format!("a: {text}"), &format!("b: {text}")],
        Some(&format!("drop the selector {no} from request `r0` of default/c")),
    );
    let text = "selector 0 of class `y` says no: device.driver == \"other\"";
    check(&mut world, &[c(&["y"])], &[&format!("a: {text}"), &format!("b: {text}")], None);
}

#[test]
fn holders_are_named_and_the_least_of_them_would_have_to_go() {
    let mut world = one(&["a", "b", "c"]).world();
    hold(&mut world, &claim("big", &["any*2"]));
    hold(&mut world, &claim("small", &["any"]));
    check(
        &mut world,
        &[c(&["any"])],
        &["a: held by default/big", "b: held by default/big", "c: held by default/small"],
        Some("release default/small, which holds 1 device"),
    );
}

#[test]
fn capacities_show_what_is_asked_and_left() {
    let grid = range("1Gi", None, Some("1Gi"));
    let device = policy(dev("a share cap:memory=8Gi"), "memory", Some("1Gi"), grid);
    let mut world = setup().devices("p", vec![device, dev("b cap:memory=2Gi")]).world();
    hold(&mut world, &claim("h", &["any memory=5Gi"]));
    check(
        &mut world,
        &[c(&["any memory=3500Mi"])],
        &[
            "a: `memory`: 4Gi asked, 3Gi left of 8Gi, the rest held by default/h",
            "b: `memory`: 3500Mi asked, 2048Mi left of 2048Mi",
        ],
        Some("let request `r0` of default/c ask for 3Gi of `memory` instead of 3500Mi"),
    );
    check(
        &mut world,
        &[c(&["any gpu.example.com/memory=1Gi"])],
        &[
            "a: it has no capacity `gpu.example.com/memory`; it has memory",
            "b: it has no capacity `gpu.example.com/memory`; it has memory",
        ],
        None,
    );
}

#[test]
fn an_amount_that_the_policy_forbids_says_what_is_allowed() {
    let values = CapacityRestriction::Values(vec![q("2Gi"), q("4Gi")]);
    let device = policy(dev("a share cap:memory=8Gi"), "memory", Some("2Gi"), values);
    check(
        &mut setup().devices("p", vec![device]).world(),
        &[c(&["any memory=5Gi"])],
        &["a: `memory`: asked 5Gi, but the largest of the 2 values that may be asked is 4Gi"],
        Some("let request `r0` of default/c ask for 4Gi of `memory` instead of 5Gi"),
    );
}

#[test]
fn counters_show_the_rest_and_its_consumers() {
    let devices = ["half1 use:s.mem=5", "half2 use:s.mem=5", "whole k=x use:s.mem=10"];
    let mut world = setup().counted("p", &["s.mem=10"], &devices).world();
    hold(&mut world, &claim("h", &["any"]));
    check(
        &mut world,
        &[c(&["any*2"])],
        &[
            "half1: held by default/h",
            "whole: counter `mem` of `s`: 10 needed, 5 left of 10, the rest drawn by default/h",
        ],
        Some("let request `r0` of default/c ask for 1 device instead of 2"),
    );
}

#[test]
fn taints_and_constraints_show_both_sides() {
    check(
        &mut one(&["a taint:t=v"]).world(),
        &[c(&["any"])],
        &["a: taint t=v:NoSchedule is not tolerated"],
        Some("let request `r0` of default/c tolerate the taint t=v"),
    );
    check(
        &mut one(&["a taint:aliquot.dev/occupied=", "b taint:aliquot.dev/unhealthy="]).world(),
        &[c(&["any"])],
        &[
            "a: taint aliquot.dev/occupied=:NoSchedule is not tolerated",
            "b: taint aliquot.dev/unhealthy=:NoSchedule is not tolerated",
        ],
        None,
    );
    check(
        &mut one(&["a k=x", "b k=y", "d"]).world(),
        &[matching(c(&["any", "any"]), &[], "k")],
        &[
            "a: held by default/c",
            "b: matchAttribute gpu.example.com/k: it has `y`, but has gpu.example.com/p/a with `x`",
            "d: matchAttribute gpu.example.com/k: it does not carry the attribute",
        ],
        Some("drop constraint 0 (gpu.example.com/k) from default/c"),
    );
    check(
        &mut one(&["a k=x", "b k=x"]).world(),
        &[distinct(c(&["any*2"]), &[], "k")],
        &["b: distinctAttribute gpu.example.com/k: it has `x`, and so has gpu.example.com/p/a with `x`"],
        Some("let request `r0` of default/c ask for 1 device instead of 2"),
    );
}

#[test]
fn pools_that_cannot_be_used_are_listed() {
    let half = |slice: &mut ResourceSlice| slice.pool.slice_count = 2;
    let mut world = setup().slice("s", "p", &["a"], half).world();
    let explanation = world.explain(&[c(&["any"])], Candidates::All, NodesExplained::All);
    let pools: Vec<String> =
        explanation.nodes[0].pools.iter().map(|(pool, fault)| format!("{pool}: {fault}")).collect();
    let text =
        "gpu.example.com/p: generation 1 announces 2 slices, 1 are there; its driver is still publishing";
    assert_eq!(pools, [text]);
    let expected = Change::CompletePools { pools: vec!["gpu.example.com/p".into()] };
    assert_eq!(explanation.remedy, Some(expected));
    assert_eq!(read(&world.allocate(NodeIndex(0), &[c(&["any"])])), "NoFit");
}

#[test]
fn groups_count_devices_by_reason() {
    let mut world = one(&["a taint:t=v", "b", "c taint:t=w"]).world();
    hold(&mut world, &claim("h", &["any"]));
    let explanation = world.explain(&[c(&["any"])], Candidates::All, NodesExplained::All);
    let groups = explanation.nodes[0].requests[0].groups();
    let shown: Vec<String> = groups.iter().map(|(group, count)| format!("{count} {group}")).collect();
    assert_eq!(shown, ["1 held by a claim", "2 taint `t` not tolerated"]);
}

#[test]
fn the_claim_that_helps_is_found_among_thousands() {
    const DEVICES: usize = 2_100;
    let devices: Vec<String> = (0..DEVICES).map(|n| format!("d{n} share cap:memory=8")).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    let mut world = one(&devices).world();
    hold(&mut world, &claim("all", &["any memory=8"]));
    for number in 0..2 * (DEVICES - 1) {
        hold(&mut world, &claim(&format!("half-{number}"), &["any memory=4"]));
    }
    let whole = claim("whole", &["any memory=8"]);
    let explanation = world.explain(&[whole], Candidates::All, NodesExplained::First(1));
    let change = explanation.remedy.map(|change| change.to_string());
    assert_eq!(change.as_deref(), Some("release default/all, which holds 1 device"));
}

#[test]
fn holders_are_ordered_once_until_something_is_held_or_released() {
    let mut world = one(&["a", "b", "c"]).world();
    hold(&mut world, &claim("big", &["any*2"]));
    hold(&mut world, &claim("small", &["any"]));
    let order = |world: &mut World, remedy: &str| {
        check_remedy(world, remedy);
        world.release_order.clone().unwrap()
    };
    let first = order(&mut world, "release default/small, which holds 1 device");
    let second = order(&mut world, "release default/small, which holds 1 device");
    assert!(Arc::ptr_eq(&first, &second), "a question ordered all holders again");
    world.release(&claim("small", &[]).uid).unwrap();
    hold(&mut world, &claim("also-small", &["any"]));
    order(&mut world, "release default/also-small, which holds 1 device");
}

#[track_caller]
fn check_remedy(world: &mut World, remedy: &str) {
    let explanation = world.explain(&[c(&["any"])], Candidates::All, NodesExplained::All);
    assert_eq!(explanation.remedy.map(|change| change.to_string()).as_deref(), Some(remedy));
}

#[test]
fn lower_amount_is_found_on_the_one_node_that_has_it() {
    let device = ["a share cap:memory=8"];
    let on =
        |name: &'static str| move |slice: &mut ResourceSlice| slice.node = NodeSelection::Name(name.into());
    let setup = one(&device).node("n2").node("n3");
    let mut world = setup.slice("q-0", "q", &device, on("n2")).slice("r-0", "r", &device, on("n3")).world();
    for (name, amount) in [("h1", 7), ("h2", 4), ("h3", 6)] {
        let held = claim(name, &[&format!("any memory={amount}")]);
        let (_, results) = world.place(std::slice::from_ref(&held), Candidates::All).unwrap();
        world.hold_as(&held, &results[0]).unwrap();
    }
    let explanation = world.explain(&[c(&["any memory=8"])], Candidates::All, NodesExplained::First(1));
    let expected = "let request `r0` of default/c ask for 4 of `memory` instead of 8";
    assert_eq!(explanation.remedy.map(|change| change.to_string()).as_deref(), Some(expected));
}

#[test]
fn as_many_nodes_are_explained_as_are_asked_for() {
    let mut world = one(&["a taint:t=v"]).node("n2").node("n3").world();
    for (asked, explained, left_out) in
        [(NodesExplained::All, 3, 0), (NodesExplained::First(1), 1, 2), (NodesExplained::First(9), 3, 0)]
    {
        let explanation = world.explain(&[c(&["any"])], Candidates::All, asked);
        assert_eq!((explanation.nodes.len(), explanation.nodes_left_out), (explained, left_out));
        assert_eq!(explanation.changes_tried, ChangesTried::All);
    }
}

#[test]
fn compatibility_groups_are_named_with_their_holder() {
    let devices = ["e use:s.n=1", "a use:s.n=1 group:mig"];
    let mut world = setup().counted("p", &["s.n=9"], &devices).world();
    hold(&mut world, &claim("h", &["any"]));
    let text = "a: counter set `s`: it has no compatibility group (mig) in common with what default/h holds";
    let remedy = Some("release default/h, which holds 1 device");
    check(&mut world, &[c(&["any"])], &["e: held by default/h", text], remedy);
}
