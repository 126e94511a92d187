//! A process with parts of two cards: what it does on one is that one's, whichever the driver speaks of meanwhile.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::usage;
use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_tests::preload::{GrantFiles, Tenant, unlimited};
use aliquot_tests::simulated::{Bench, Link, said};

const MILLI: u64 = 1_000_000;

/// The accounted time of each card in a scene, and the card's own time, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Billed {
    booked: u64,
    done: u64,
}

/// `None`: no C compiler here.
fn play(node: &str, scene: &str, nanos: u64) -> Option<[Billed; 2]> {
    let bench = Bench::new();
    bench.write("node.toml", node);
    let program =
        bench.compile("shim_cards", Link::Opened).inspect_err(|why| println!("stood aside: {why}")).ok()?;
    let tenant = Tenant::new();
    let cards = [0, 1].map(|card| bench.device().card(card).unwrap().clone());
    let grant = |card: usize| {
        let none = unlimited(&cards[card].facts().uuid);
        let limits = Limits { share_ppm: 900_000, granted_ppm: 900_000, policy: ComputePolicy::Cap, ..none };
        tenant.grant(&card.to_string(), &limits)
    };
    let files: [GrantFiles; 2] = [grant(0), grant(1)];
    let output = tenant.command(&bench, program).args([scene, &nanos.to_string()]).output().unwrap();
    assert_eq!(said(&output), "ok\n");
    let billed = [0, 1].map(|card| Billed {
        booked: files[card].counter(usage::DEVICE_NANOS),
        done: cards[card].busy_nanos(),
    });
    println!("{scene}: {billed:?}");
    Some(billed)
}

/// A driver gives handles again.
#[test]
fn stream_with_a_handle_of_another_card_belongs_to_its_own_card() {
    let Some([_, second]) = play("stream_handles = \"again\"\n", "renewed", 0) else { return };
    // Nothing that the first card's credit pays for.
    assert!(second.done > 0 && second.booked >= second.done / 10 * 9, "{second:?}");
}

#[test]
fn wait_for_a_context_of_another_card_settles_that_card() {
    let Some([first, second]) = play("", "waited", 100 * MILLI) else { return };
    assert!(second.booked >= 100 * MILLI && first.booked == 0, "{first:?} {second:?}");
}

/// The simulated driver logs each use of a context after its end, and the bench checks that log.
#[test]
fn no_context_is_made_current_after_its_end() {
    play("context_bytes = 0\nmodule_bytes = 0\n", "ending", 1_500 * MILLI);
}
