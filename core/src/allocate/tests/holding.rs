//! Holding, releasing, and what the results carry.

use super::build::*;
use crate::allocate::{Candidates, Excess, HoldError, InputProblem, Limits, Memory, NodeIndex};
use crate::dra::*;

fn c(requests: &[&str]) -> ResourceClaim {
    claim("c", requests)
}

#[test]
fn a_released_device_can_be_had_again() {
    let mut world = setup().counted("p", &["s.mem=1"], &["a share cap:memory=2 use:s.mem=1"]).world();
    hold(&mut world, &claim("one", &["any memory=1"]));
    hold(&mut world, &claim("two", &["any memory=1"]));
    assert_eq!(read(&world.allocate(NodeIndex(0), &[c(&["any memory=1"])])), "NoFit");
    world.release("uid-one").unwrap();
    assert_eq!(world.invariants(), Ok(()));
    assert_eq!(read(&world.allocate(NodeIndex(0), &[c(&["any memory=1"])])), "a");
    assert_eq!(read(&world.allocate(NodeIndex(0), &[c(&["any memory=2"])])), "NoFit");
    world.release("uid-two").unwrap();
    assert_eq!(read(&world.allocate(NodeIndex(0), &[c(&["any memory=2"])])), "a");
    assert_eq!(world.release("uid-two").unwrap_err().uid, "uid-two");
}

#[test]
fn a_claim_is_held_once_and_only_with_an_allocation() {
    let mut world = one(&["a"]).world();
    assert!(matches!(world.hold(&c(&["any"])), Err(HoldError::NotAllocated { .. })));
    let mut allocated = c(&["any"]);
    allocated.allocation = Some(hold(&mut world, &allocated));
    assert!(matches!(world.hold(&allocated), Err(HoldError::AlreadyHeld { .. })));
    assert!(world.holds("uid-c"));
    world.release("uid-c").unwrap();
    world.hold(&allocated).unwrap();
    assert_eq!(read(&world.allocate(NodeIndex(0), &[claim("d", &["any"])])), "NoFit");
}

#[test]
fn unknown_devices_are_kept_as_problems_and_charge_nothing() {
    let mut world = one(&["a"]).world();
    let mut result = world.allocate(NodeIndex(0), &[c(&["any"])]).unwrap().remove(0);
    result.devices[0].device.device = "gone".into();
    world.hold_as(&c(&["any"]), &result).unwrap();
    assert!(
        matches!(&world.lost()[..], [InputProblem::UnknownDevice { device, .. }] if device.device == "gone")
    );
    assert_eq!(read(&world.allocate(NodeIndex(0), &[claim("d", &["any"])])), "a");
    world.release("uid-c").unwrap();
    assert_eq!(world.lost(), []);
}

#[test]
fn device_held_twice_is_reported() {
    let mut world = one(&["a", "s share cap:memory=1"]).world();
    let result = hold(&mut world, &claim("one", &["any"]));
    world.hold_as(&claim("two", &["any"]), &result).unwrap();
    assert!(matches!(&world.excesses()[..], [Excess::Device { holders: 2, .. }]));
    let share = hold_share(&mut world);
    world.hold_as(&claim("four", &["any"]), &share).unwrap();
    assert!(matches!(&world.excesses()[..], [_, Excess::Capacity { capacity, .. }] if capacity == "memory"));
    assert_eq!(world.invariants(), Ok(()));
}

fn hold_share(world: &mut crate::allocate::World) -> AllocationResult {
    let three = claim("three", &["any memory=1"]);
    let result = world.allocate(NodeIndex(0), std::slice::from_ref(&three)).unwrap().remove(0);
    world.hold_as(&three, &result).unwrap();
    result
}

#[test]
fn share_ids_are_uuids_and_the_same_every_time() {
    let ids = || {
        let mut world = one(&["a share"]).world();
        let result = hold(&mut world, &c(&["any", "any"]));
        result.devices.into_iter().map(|d| d.share_id.unwrap().0).collect::<Vec<_>>()
    };
    let (first, second) = (ids(), ids());
    assert_eq!(first, second);
    assert_ne!(first[0], first[1]);
    for id in first {
        let dashes: Vec<_> = id.char_indices().filter(|(_, c)| *c == '-').map(|(at, _)| at).collect();
        assert_eq!((id.len(), dashes), (36, vec![8, 13, 18, 23]), "{id}");
        assert!(id.bytes().all(|b| b == b'-' || b.is_ascii_digit() || (b'a'..=b'f').contains(&b)), "{id}");
        assert_eq!((&id[14..15], "89ab".contains(&id[19..20])), ("8", true), "{id}");
    }
}

#[test]
fn results_name_the_request_or_the_alternative() {
    let mut world = one(&["a k=x", "b k=y"]).world();
    let result = hold(&mut world, &c(&["any k==z / any k==y", "any"]));
    let names: Vec<_> = result.devices.iter().map(|d| d.request.as_str()).collect();
    assert_eq!(names, ["r0/s1", "r1"]);
    assert_eq!(result.devices[0].device.to_string(), format!("{DRIVER}/p/b"));
}

fn opaque(text: &str) -> OpaqueConfig {
    OpaqueConfig { driver: DRIVER.into(), parameters: text.into() }
}

#[test]
fn class_configuration_comes_once_before_that_of_the_claim() {
    let mut setup = one(&["a", "b", "c"]).class("other", &[]);
    setup.classes[0].config = vec![opaque("class")];
    setup.classes[1].config = vec![opaque("other")];
    let mut world = setup.world();
    let mut asked = c(&["any", "other", "any / other"]);
    let config = |requests: &[&str], text: &str| RequestConfig {
        requests: requests.iter().map(ToString::to_string).collect(),
        opaque: opaque(text),
    };
    asked.config = vec![
        config(&[], "all"),
        config(&["r0", "r1"], "two"),
        config(&["r2/s1"], "not chosen"),
        config(&["r2/s0"], "chosen"),
        config(&["r2"], "parent"),
    ];
    let result = hold(&mut world, &asked);
    let shown: Vec<_> = result
        .config
        .iter()
        .map(|c| (c.source, c.opaque.parameters.as_str(), c.requests.join(",")))
        .collect();
    let expected = [
        (ConfigSource::Class, "class", "r0,r2/s0"),
        (ConfigSource::Class, "other", "r1"),
        (ConfigSource::Claim, "all", ""),
        (ConfigSource::Claim, "two", "r0,r1"),
        (ConfigSource::Claim, "two", "r0,r1"),
        (ConfigSource::Claim, "chosen", "r2/s0"),
        (ConfigSource::Claim, "parent", "r2"),
    ];
    assert_eq!(shown, expected.map(|(source, text, requests)| (source, text, requests.to_owned())));
}

#[test]
fn twelve_equal_devices_of_eleven_are_refused_at_once() {
    let names: Vec<String> = (0..500).map(|n| format!("d{n} uuid=u{n} use:s.mem=1")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = setup().counted("p", &["s.mem=11"], &names).world();
    let refusal = world.allocate(NodeIndex(0), &[c(&["any*12"])]).unwrap_err();
    assert_eq!(kind(&refusal), "NoFit");
    assert_eq!(read(&world.allocate(NodeIndex(0), &[c(&["any*2"])])), "d0 d1");
    // The constraint names an attribute that differs: each has a value of its own, so none is passed over.
    let alike = matching(c(&["any*2"]), &[], "uuid");
    assert_eq!(kind(&world.allocate(NodeIndex(0), &[alike]).unwrap_err()), "NoFit");
    assert_eq!(world.invariants(), Ok(()));
}

#[test]
fn choices_that_do_not_matter_are_not_all_tried() {
    // Eight of 56 equal partitions, and a device that does not exist: 56 choose 8 are 1,420 million.
    let names: Vec<String> = (0..56).map(|n| format!("d{n} cap:memory=10")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = setup().pool("p", &names).world();
    let refusal = world.allocate(NodeIndex(0), &[c(&["any*8", "any memory=11"])]).unwrap_err();
    assert_eq!(kind(&refusal), "NoFit");
    let placed = read(&world.allocate(NodeIndex(0), &[c(&["any*8", "any memory=10"])]));
    assert_eq!(placed, "d0 d1 d2 d3 d4 d5 d6 d7 d8");
}

#[test]
fn distinguishing_attributes_keep_both_devices_in_the_search() {
    // Each time d0 is in the way of d2, which alone serves the second request, and d1 is not.
    let counters: &[&str] = &["s.a=1", "s.b=1"];
    let by_counter = ["d0 use:s.a=1", "d1 use:s.b=1", "d2 use:s.a=1 cap:memory=5"];
    let by_amount = ["d0 use:s.a=1", "d1 use:s.a=0", "d2 use:s.a=1 cap:memory=5"];
    let by_value = ["d0 k=1", "d1 k=2", "d2 k=2 cap:memory=5"];
    let by_capacity = ["d0 cap:memory=5", "d1 cap:memory=4"];
    let plain = c(&["any", "any memory=5"]);
    let alike = matching(plain.clone(), &[], "k");
    for (devices, claim, expected) in [
        (&by_counter[..], &plain, "d1 d2"),
        (&by_amount[..], &plain, "d1 d2"),
        (&by_value[..], &alike, "d1 d2"),
        (&by_capacity[..], &plain, "d1 d0"),
    ] {
        let mut world = setup().counted("p", counters, devices).world();
        world.set_limits(Limits { steps_before_twins: 0, ..Limits::default() });
        assert_eq!(read(&world.allocate(NodeIndex(0), std::slice::from_ref(claim))), expected);
    }
}

#[test]
fn a_hopeless_search_ends_at_its_bound() {
    // Ten devices of one kind, of which the counters allow five: ten choose six, times what follows.
    let names: Vec<String> = (0..24).map(|n| format!("d{n} use:s.c{}=1 use:s.mem=1", n % 2)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = setup().counted("p", &["s.c0=12", "s.c1=12", "s.mem=11"], &names).world();
    world.set_limits(Limits { steps_max: 10_000, steps_before_twins: u64::MAX, memory: Memory::Kept });
    let refusal = world.allocate(NodeIndex(0), &[c(&["any*12"])]).unwrap_err();
    assert_eq!(kind(&refusal), "SearchBound");
    assert_eq!(world.invariants(), Ok(()));
    assert_eq!(read(&world.allocate(NodeIndex(0), &[c(&["any*2"])])), "d0 d1");
}

#[test]
fn a_refusal_is_remembered_only_until_a_release() {
    let mut world = setup().node("n2").pool("p", &["a"]).slice("q", "q", &["b"], |s| {
        s.node = NodeSelection::Name("n2".into());
    });
    world.classes.push(world.classes[0].clone());
    let (mut world, problems) = world.build();
    assert!(matches!(&problems[..], [InputProblem::DuplicateClass { .. }]));
    for (name, expected) in [("one", Some(0)), ("two", Some(1)), ("three", None)] {
        let asked = claim(name, &["any"]);
        let answer = world.place(std::slice::from_ref(&asked), Candidates::All);
        assert_eq!(answer.as_ref().ok().map(|(node, _)| node.0), expected);
        if let Ok((_, results)) = answer {
            world.hold_as(&asked, &results[0]).unwrap();
        }
    }
    world.release("uid-two").unwrap();
    assert_eq!(world.place(&[claim("four", &["any"])], Candidates::All).unwrap().0, NodeIndex(1));
    world.release("uid-one").unwrap();
    assert_eq!(world.place(&[claim("four", &["any"])], Candidates::All).unwrap().0, NodeIndex(0));
}

#[test]
fn devices_of_one_counter_set_have_a_group_in_common() {
    let world = || {
        let devices = [
            "a use:s.n=1 group:mig",
            "b use:s.n=1 group:time",
            "c use:s.n=1 group:mig group:time",
            "d use:s.n=1 group:time group:mps",
            "e use:s.n=1",
            "f use:s.n=1",
            "g use:t.n=1 group:other",
        ];
        setup().counted("p", &["s.n=9", "t.n=9"], &devices)
    };
    world().check(&[c(&["any*2"])], "a c");
    world().check(&[c(&["any*3"])], "a c g");
    world().check(&[c(&["any*4"])], "b c d g");
    world().check(&[c(&["any*5"])], "NoFit");
    world().check(&[c(&["any"]), claim("d", &["any*3"])], "b | c d g");
    world().check_after(&[claim("h", &["any"])], &[c(&["any*2"])], "c g");
    world().check_after(&[claim("h", &["any"])], &[c(&["any*3"])], "NoFit");
    let mut world = world().world();
    hold(&mut world, &claim("one", &["any*2"]));
    world.release("uid-one").unwrap();
    assert_eq!(world.invariants(), Ok(()));
    hold(&mut world, &claim("two", &["any*4"]));
}

#[test]
fn devices_without_groups_go_with_each_other_alone() {
    let devices = ["e use:s.n=1", "a use:s.n=1 group:mig", "f use:s.n=1"];
    let world = || setup().counted("p", &["s.n=9"], &devices);
    world().check(&[c(&["any*2"])], "e f");
    world().check_after(&[claim("h", &["any"])], &[c(&["any"])], "f");
    world().check_after(&[claim("h", &["any*2"])], &[c(&["any"])], "NoFit");
}
