//! Selectors near the cost limit: evaluated once for all devices of which they read the same, and within one budget.

use super::build::*;
use crate::allocate::{Candidates, NodeIndex, NodesExplained, PlacementRefusal, World};

/// About a million steps, whatever the device is.
const DEAR: &str = "range.all(a, range.all(b, range.all(c, a + b + c < 0 || true)))";

/// An expression that takes 800,000 steps after `test`, which may read the device.
fn dear(test: &str) -> String {
    let range = (0..46).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    format!("{test} && cel.bind(range, [{range}], {DEAR})")
}

fn spent(world: &World) -> u64 {
    world.selectors.spent.0
}

#[test]
fn dear_selectors_run_once_for_equal_values() {
    let devices: Vec<String> = (0..400).map(|n| format!("d{n} k={} id={n}", n % 2)).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    let reads_nothing = dear("device.driver != \"\"");
    let reads_k = dear("device.attributes[\"gpu.example.com\"].k == 1");
    let mut world =
        one(&devices).class("nothing", &[&reads_nothing]).class("k", &[&reads_k, "false"]).world();
    let before = spent(&world);
    assert_eq!(read(&world.allocate(NodeIndex(0), &[claim("c", &["nothing"])])), "d0");
    let one_run = spent(&world) - before;
    assert!((500_000..1_000_000).contains(&one_run), "{one_run}");
    assert!(world.place(&[claim("c", &["k"])], Candidates::All).is_err());
    // The value 0 ends at the first term, which is cheap.
    assert!(spent(&world) - before <= 3 * one_run, "{}", spent(&world));
}

#[test]
fn dear_selectors_have_one_budget() {
    let devices: Vec<String> = (0..2_000).map(|n| format!("d{n} id={n}")).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    let text = dear("device.attributes[\"gpu.example.com\"].id >= 0");
    let mut world = one(&devices)
        .class("id", &[&format!("!({text})")])
        .class("odd", &["device.attributes[\"gpu.example.com\"].id == 1999"])
        .world();
    let refusal = world.place(&[claim("c", &["id"])], Candidates::All).unwrap_err();
    let PlacementRefusal::Selector(failure) = &refusal else { panic!("{refusal}") };
    assert!(
        failure.message.starts_with("the selectors of this command have taken 250000000 steps"),
        "{refusal}"
    );
    assert!(!refusal.to_string().contains("has(…"), "{refusal}");
    assert!(spent(&world) < 252_000_000, "{}", spent(&world));
    // An explanation says the same, and evaluates nothing again.
    let cost = spent(&world);
    let explanation = world.explain(&[claim("c", &["id"])], Candidates::All, NodesExplained::All);
    assert_eq!(explanation.outcome, Err(refusal));
    assert!(spent(&world) - cost < 1_000_000);
    // What people write is evaluated as before.
    assert_eq!(read(&world.allocate(NodeIndex(0), &[claim("c", &["odd"])])), "d1999");
}
