//! The counter `memory`, which counts for readers alone: with it and without it the allocator decides alike.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use aliquot_core::allocate::{NodeIndex, World};
use aliquot_core::dra::{AllocationResult, DeviceResult, ResourceClaim, ResourceSlice};
use aliquot_driver::manifest;
use aliquot_tests::generate::Random;
use aliquot_tests::scenes::{Scene, scenes};
use serde_json::json;

const SEED: u64 = 0x3e30;
/// Claims that are put to each node, and how many percent of the held ones leave before each.
const CLAIMS: usize = 60;
const LEAVING: usize = 15;

#[test]
fn decisions_are_the_same_with_and_without_it() {
    let (mut counted, mut placed, mut refused) = (0, 0, 0);
    let dynamic = |scene: &Scene| scene.name.ends_with("dynamic 1.37");
    for scene in scenes().unwrap().into_iter().filter(dynamic) {
        let without = scene.slices.iter().map(stripped).collect();
        counted += usize::from(scene.slices != without);
        let mut random = Random::new(SEED);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects(&scene, &mut random)});
        let claims = manifest::read("claims", &list.to_string()).0.claims;
        let world = |slices| World::new(slices, scene.classes.clone(), vec![scene.node.clone()]).0;
        let mut worlds = [world(scene.slices.clone()), world(without)];
        let mut held: Vec<&ResourceClaim> = Vec::new();
        for claim in &claims {
            if !held.is_empty() && random.percent(LEAVING) {
                let gone = held.swap_remove(random.below(held.len()));
                worlds.iter_mut().for_each(|world| world.release(&gone.uid).unwrap());
            }
            let [with, without] = worlds.each_mut().map(|world| try_claim(world, claim));
            assert_eq!(with, without, "{}: {}", scene.name, claim.name);
            placed += usize::from(with.is_some());
            refused += usize::from(with.is_none());
            held.extend(with.map(|_| claim));
        }
    }
    assert!(
        counted > 5 && placed > 100 && refused > 100,
        "{counted} nodes, {placed} placed, {refused} refused"
    );
}

fn objects(scene: &Scene, random: &mut Random) -> Vec<serde_json::Value> {
    let mut claims = scene.claims(random, CLAIMS);
    for claim in &mut claims {
        claim["apiVersion"] = json!("resource.k8s.io/v1");
        claim["kind"] = json!("ResourceClaim");
    }
    claims
}

/// What it gets, and holds from now on.
fn try_claim(world: &mut World, claim: &ResourceClaim) -> Option<Vec<String>> {
    let results = world.allocate(NodeIndex(0), std::slice::from_ref(claim)).ok()?;
    let result: &AllocationResult = results.first()?;
    world.hold_as(claim, result).unwrap();
    let name = |result: &DeviceResult| format!("{} {:?}", result.device.device, result.consumed_capacity);
    Some(result.devices.iter().map(name).collect())
}

fn stripped(slice: &ResourceSlice) -> ResourceSlice {
    let mut slice = slice.clone();
    for set in slice.shared_counters.iter_mut() {
        set.counters.remove("memory");
    }
    for takes in slice.devices.iter_mut().flat_map(|device| device.consumes.iter_mut()) {
        takes.counters.remove("memory");
    }
    slice
}
