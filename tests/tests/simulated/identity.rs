//! What distinguishes the cards of a node: addresses, UUIDs and serial numbers, as both libraries report them.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_tests::simulated::{Bench, Link, StoodAside, said};

/// What the program prints of a node's cards; `None` where there is no compiler, and the test says so.
fn identities(node: &str) -> Option<Vec<String>> {
    let bench = Bench::new();
    bench.write("node.toml", node);
    match bench.compile("sim_identity", Link::Opened) {
        Ok(program) => {
            Some(said(&bench.command(program).output().unwrap()).lines().map(str::to_owned).collect())
        }
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            None
        }
    }
}

#[test]
fn cards_without_identity_get_one_each() {
    let node = "[[card]]\n[[card]]\nname = \"NVIDIA A100-SXM4-40GB\"\nmajor = 8\n[[card]]\nbus = 17\n[[card]]\nbus = 449\nslot = 5\n";
    let Some(lines) = identities(node) else { return };
    let uuid = |index: u32| format!("GPU-a11c0de0-51a0-4c4d-8000-00000000000{index} 165000000000{index}");
    let expected = [
        format!("{} 0000:10:00.0 00000000:10:00.0 9 0", uuid(0)),
        format!("{} 0000:12:00.0 00000000:12:00.0 7 0", uuid(1)),
        format!("{} 0000:11:00.0 00000000:11:00.0 9 0", uuid(2)),
        format!("{} 0001:c1:05.0 00000001:C1:05.0 9 0", uuid(3)),
    ];
    assert_eq!(lines[..4], expected);
}

#[test]
fn profiler_functions_answer_as_without_a_tool() {
    let Some(lines) = identities("[[card]]\n") else { return };
    // Without a context: invalid context. The initialisation has no effect since CUDA 12: not supported.
    assert_eq!(lines.last().unwrap(), "profiler 201 201 801 0 0");
}

#[test]
fn two_cards_with_one_identity_are_refused() {
    for (node, field) in [
        ("[[card]]\nbus = 16\n[[card]]\nbus = 16\n", "card.bus is 16 (0000:10:00.0) for two cards"),
        ("[[card]]\nbus = 16777216\n", "card.bus is 16777216"),
        ("[[card]]\nbus = 1\nslot = 32\n", "card.slot is 32"),
        (
            "[[card]]\nuuid = \"GPU-a11c0de0-51a0-4c4d-8000-000000000001\"\n[[card]]\n",
            "card.uuid is GPU-a11c0de0-51a0-4c4d-8000-000000000001 for two cards",
        ),
    ] {
        let bench = Bench::new();
        bench.write("node.toml", node);
        let error = aliquot_sim_device::Node::read(&bench.cards()).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}
