//! Where devices can be used, in which order they are tried, which pools count.

use super::build::*;
use crate::allocate::{Candidates, InputProblem, NodeIndex, PoolFault};
use crate::dra::*;

fn c(requests: &[&str]) -> ResourceClaim {
    claim("c", requests)
}

fn only(label: &str) -> NodeSelection {
    let values = vec![label.to_owned()];
    let requirement = NodeRequirement { key: "name".into(), operator: SelectorOperator::In, values };
    let term = NodeSelectorTerm { expressions: vec![requirement], fields: Vec::new() };
    NodeSelection::Selector(NodeSelector { terms: vec![term] })
}

#[test]
fn pools_go_by_driver_and_name_slices_by_name_devices_as_listed() {
    setup().pool("q", &["b"]).pool("p", &["a"]).check(&[c(&["any*2"])], "a b");
    let two = |slice: &mut ResourceSlice| slice.pool.slice_count = 2;
    setup().slice("z", "p", &["c"], two).slice("y", "p", &["b", "a"], two).check(&[c(&["any*3"])], "b a c");
    setup()
        .pool("a", &["late"])
        .slice("x", "z", &["early"], |slice| slice.driver = "a.example.com".into())
        .check(&[c(&["any*2"])], "early late");
}

#[test]
fn pools_with_binding_conditions_are_tried_last() {
    setup().pool("p", &["a waits", "b"]).pool("q", &["c"]).check(&[c(&["any*3"])], "c a b");
    let mut world = one(&["a waits"]).world();
    assert_eq!(hold(&mut world, &c(&["any"])).devices[0].binding_conditions, ["Ready"]);
}

#[test]
fn slices_count_where_their_node_selection_says() {
    let on = |selection: NodeSelection| move |slice: &mut ResourceSlice| slice.node = selection;
    setup().slice("s", "p", &["a"], on(NodeSelection::Name("n2".into()))).check(&[c(&["any"])], "NoFit");
    setup().slice("s", "p", &["a"], on(NodeSelection::All)).check(&[c(&["any"])], "a");
    setup().slice("s", "p", &["a"], on(only("n1"))).check(&[c(&["any"])], "a");
    setup().slice("s", "p", &["a"], on(only("n2"))).check(&[c(&["any"])], "NoFit");
    let each = || on(NodeSelection::PerDevice);
    setup().slice("s", "p", &["a on:n2", "b on:n1"], each()).check(&[c(&["any"])], "b");
    setup().slice("s", "p", &["a on:n2"], each()).check(&[c(&["any"])], "NoFit");
    setup().slice("s", "p", &["a"], each()).check(&[c(&["any"])], "NoFit");
    setup().slice("s", "p", &["a k=x on:n2", "b k=x on:n1"], each()).check(&[c(&["any*all k==x"])], "b");
    setup().slice("s", "p", &["a on:n2", "b k=x on:n1"], each()).check(&[c(&["any k==x"])], "Selector");
}

#[test]
fn node_selector_is_as_wide_as_the_devices_allow() {
    let selector = |setup: Setup, requests: &[&str]| hold(&mut setup.world(), &c(requests)).node_selector;
    let on = |selection: NodeSelection| move |slice: &mut ResourceSlice| slice.node = selection;
    assert_eq!(selector(one(&["a"]), &["any"]), Some(NodeSelector::for_node("n1")));
    assert_eq!(selector(setup().slice("s", "p", &["a"], on(NodeSelection::All)), &["any"]), None);
    let bound = setup().slice("s", "p", &["a binds"], on(NodeSelection::All));
    assert_eq!(selector(bound, &["any"]), Some(NodeSelector::for_node("n1")));
    let NodeSelection::Selector(expected) = only("n1") else { panic!() };
    let wide = || setup().slice("s", "p", &["a", "b"], on(only("n1")));
    assert_eq!(selector(wide(), &["any*2"]), Some(expected.clone()));
    let mixed = wide().slice("t", "q", &["c"], on(NodeSelection::Name("n1".into())));
    assert_eq!(selector(mixed, &["any*3"]), Some(NodeSelector::for_node("n1")));
}

#[test]
fn a_selector_with_several_terms_is_an_error_once_it_is_chosen() {
    let NodeSelection::Selector(mut selector) = only("n1") else { panic!() };
    selector.terms.push(selector.terms[0].clone());
    let world = setup().slice("s", "p", &["a"], |slice| slice.node = NodeSelection::Selector(selector));
    world.check(&[c(&["any"])], "SeveralTerms");
}

#[test]
fn only_the_highest_generation_counts() {
    let newer = |slice: &mut ResourceSlice| slice.pool.generation = 2;
    one(&["old"]).slice("new", "p", &["new"], newer).check(&[c(&["any*all"])], "new");
    let elsewhere = |slice: &mut ResourceSlice| {
        slice.pool.generation = 2;
        slice.node = NodeSelection::Name("n2".into());
    };
    one(&["old"]).slice("new", "p", &["new"], elsewhere).check(&[c(&["any"])], "old");
    let half = |slice: &mut ResourceSlice| slice.pool.slice_count = 2;
    setup()
        .slice("s", "p", &["old"], half)
        .slice("t", "p", &["new"], elsewhere)
        .check(&[c(&["any"])], "NoFit");
}

#[test]
fn an_incomplete_pool_is_passed_over_and_fails_all() {
    let half = |slice: &mut ResourceSlice| slice.pool.slice_count = 2;
    let world = || setup().slice("s", "p", &["a"], half).pool("q", &["b"]);
    world().check(&[c(&["any"])], "b");
    world().check(&[c(&["any*all"])], "AllOfUnusablePool");
    let fault = PoolFault::Incomplete { generation: 1, seen: 1, announced: 2 };
    assert_eq!(world().build().1, [InputProblem::Pool { driver: DRIVER.into(), pool: "p".into(), fault }]);
    let elsewhere = |slice: &mut ResourceSlice| {
        slice.pool.slice_count = 2;
        slice.node = NodeSelection::Name("n2".into());
    };
    setup().slice("s", "p", &["a"], half).slice("t", "p", &["b"], elsewhere).check(&[c(&["any*all"])], "a");
}

#[test]
fn invalid_pool_is_skipped_and_named_if_nothing_else_fits() {
    let faults = |setup: Setup| setup.build().1.len();
    one(&["a", "a"]).pool("q", &["b"]).check(&[c(&["any"])], "b");
    one(&["a", "a"]).check(&[c(&["any"])], "InvalidPool");
    one(&["a", "a"]).pool("q", &["b"]).check(&[c(&["any*all"])], "AllOfUnusablePool");
    let lost = || setup().counted("p", &["s.mem=1"], &["a use:t.mem=1"]);
    lost().check(&[c(&["any"])], "InvalidPool");
    assert_eq!(faults(lost()), 1);
    setup().counted("p", &["s.mem=1"], &["a use:s.cores=1"]).check(&[c(&["any"])], "InvalidPool");
    one(&["a use:s.mem=1"]).check(&[c(&["any"])], "InvalidPool");
}

#[test]
fn a_foreign_pools_broken_counters_fail_all_here_too() {
    let foreign = |count: i64| {
        move |slice: &mut ResourceSlice| {
            slice.pool.slice_count = count;
            slice.node = NodeSelection::Name("n2".into());
            let counters = [("mem".to_owned(), q("1"))].into();
            slice.shared_counters = vec![CounterSet { name: "s".into(), counters }].into();
        }
    };
    one(&["a"]).slice("f", "f", &[], foreign(2)).check(&[c(&["any"])], "a");
    one(&["a"]).slice("f", "f", &[], foreign(2)).check(&[c(&["any*all"])], "AllOfUnusablePool");
    one(&["a"]).slice("f", "f", &[], foreign(1)).check(&[c(&["any*all"])], "a");
}

#[test]
fn counters_are_charged_for_devices_of_other_nodes() {
    let two = |node: &str| {
        let node = node.to_owned();
        move |slice: &mut ResourceSlice| {
            slice.pool.slice_count = 3;
            slice.node = NodeSelection::Name(node);
        }
    };
    let world = setup()
        .node("n2")
        .slice("c", "p", &[], |slice| {
            slice.pool.slice_count = 3;
            let counters = [("mem".to_owned(), q("1"))].into();
            slice.shared_counters = vec![CounterSet { name: "s".into(), counters }].into();
        })
        .slice("d1", "p", &["a use:s.mem=1"], two("n1"))
        .slice("d2", "p", &["b use:s.mem=1"], two("n2"));
    let mut world = world.world();
    hold(&mut world, &claim("h", &["any"]));
    assert_eq!(read(&world.allocate(NodeIndex(1), &[c(&["any"])])), "NoFit");
    world.release("uid-h").unwrap();
    assert_eq!(read(&world.allocate(NodeIndex(1), &[c(&["any"])])), "b");
}

#[test]
fn taints_keep_requests_off_unless_they_are_borne() {
    one(&["a taint:t=v", "b"]).check(&[c(&["any"])], "b");
    one(&["a taint:t=v", "b"]).check(&[c(&["any bears:t"])], "a");
    one(&["a taint:t=v taint:u=w", "b"]).check(&[c(&["any bears:t"])], "b");
    one(&["a taint:t=v"]).check(&[c(&["any"])], "NoFit");
    let mut world = one(&["a taint:t=v"]).world();
    assert_eq!(hold(&mut world, &c(&["any bears:t"])).devices[0].tolerations.len(), 1);
}

#[test]
fn nodes_are_tried_in_order() {
    let on = |node: &str| {
        let node = NodeSelection::Name(node.to_owned());
        move |slice: &mut ResourceSlice| slice.node = node
    };
    let world = || {
        setup().node("n2").node("n3").slice("s2", "p2", &["b"], on("n2")).slice("s3", "p3", &["c"], on("n3"))
    };
    let mut first = world().world();
    let (node, _) = first.place(&[c(&["any"])], Candidates::All).unwrap();
    assert_eq!(first.nodes()[node.0 as usize].name, "n2");
    let n3 = first.node("n3").unwrap();
    let (node, _) = first.place(&[c(&["any"])], Candidates::Only(&[NodeIndex(0), n3])).unwrap();
    assert_eq!(node, n3);
    let mut steps = Vec::new();
    let none = first.place_with(&[c(&["any*2"])], Candidates::All, &mut |step| steps.push(step.nodes_done));
    assert_eq!((kind(&none.unwrap_err()), steps), ("NoFit", vec![1, 2, 3]));
    assert_eq!(kind(&first.place(&[c(&["any"])], Candidates::Only(&[])).unwrap_err()), "NoNodes");
    assert_eq!(kind(&first.place(&[c(&["none"])], Candidates::All).unwrap_err()), "MissingClass");
    assert_eq!(kind(&first.allocate(NodeIndex(9), &[c(&["any"])]).unwrap_err()), "UnknownNode");
}
