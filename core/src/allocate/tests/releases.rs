//! Where 1.36 and 1.37 decide differently.

use super::build::*;
use crate::allocate::{NodeIndex, Release, World};
use crate::dra::*;

fn in_release(mut world: World, release: Release, requests: &[&str]) -> String {
    world.follow(release);
    read(&world.allocate(NodeIndex(0), &[claim("c", requests)]))
}

#[test]
fn all_with_used_up_device_fails_from_1_37_on() {
    let world = || {
        let mut world = one(&["a share cap:memory=1", "b share cap:memory=1"]).world();
        hold(&mut world, &claim("one", &["any memory=1"]));
        world
    };
    assert_eq!(in_release(world(), Release::V1_36, &["any*all memory=1"]), "b");
    assert_eq!(in_release(world(), Release::V1_37, &["any*all memory=1"]), "NoFit");
}

#[test]
fn second_share_without_capacity_uses_counters_once_since_1_37() {
    let world = || {
        let mut world = setup().counted("p", &["s.mem=1"], &["a share use:s.mem=1"]).world();
        hold(&mut world, &claim("one", &["any"]));
        world
    };
    assert_eq!(in_release(world(), Release::V1_36, &["any"]), "NoFit");
    assert_eq!(in_release(world(), Release::V1_37, &["any"]), "a");
}

#[test]
fn negative_amount_ends_the_search_from_1_37_on() {
    let world = || one(&["a share cap:memory=1"]).world();
    assert_eq!(in_release(world(), Release::V1_36, &["any memory=-1"]), "a");
    assert_eq!(in_release(world(), Release::V1_37, &["any memory=-1"]), "OutOfRange");
}

#[test]
fn configuration_for_several_requests_appears_once_from_1_37_on() {
    let config = |release, names: &[&str]| {
        let mut world = one(&["a", "b", "c"]).world();
        world.follow(release);
        let mut claim = claim("c", &["any", "any", "any"]);
        claim.config = vec![RequestConfig {
            requests: names
                .iter()
                .map(|number| claim.requests[number.parse::<usize>().unwrap()].name.clone())
                .collect(),
            opaque: OpaqueConfig { driver: "d".into(), parameters: "{}".into() },
        }];
        let result = world.allocate(NodeIndex(0), &[claim]).unwrap().remove(0);
        result.config.iter().map(|config| config.requests.len()).collect::<Vec<_>>()
    };
    assert_eq!(config(Release::V1_36, &["0", "1"]), [2, 2]);
    assert_eq!(config(Release::V1_37, &["0", "1"]), [2]);
    assert_eq!(config(Release::V1_37, &["0", "1", "2"]), [0], "an empty list is all of them");
}
