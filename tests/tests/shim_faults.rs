//! Cards that fail under a tenant with the shim: it meets what a program without the shim meets, on the card that failed alone.

use aliquot_sim_device::{Card, Health};
use aliquot_tests::preload::{Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, Link, StoodAside, said};
use std::process::Command;

/// On the second of three allocations this happens to this card.
fn fault(action: &str, card: &str) -> String {
    format!("[[fault]]\nsymbol = \"cuMemAlloc_v2\"\ncall = 2\naction = {action}\ncard = {card}\n")
}

fn uuid(card: &Card) -> String {
    format!("\"{}\"", card.facts().uuid)
}

#[test]
fn a_fault_strikes_the_card_that_it_names_and_is_passed_on() {
    let bench = Bench::new();
    let program = match bench.compile("sim_probe", Link::Opened) {
        Ok(program) => program,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    let device = aliquot_sim_device::open(&bench.cards()).unwrap();
    let (first, second) = (device.card(0).unwrap(), device.card(1).unwrap());
    let (tenant, _files) = Tenant::with(&memory_limit(&first.facts().uuid, 8 << 30));
    let ways = || [bench.command(&program), tenant.command(&bench, &program)];
    let allocs = |mut command: Command| said(&command.args(["allocs", "3"]).output().unwrap());

    bench.write("faults.toml", &(fault("{ xid = 31 }", "1") + &fault("\"lost\"", &uuid(second))));
    for command in ways() {
        second.set_health(Health::Well);
        assert_eq!(allocs(command), "0\n0\n0\n", "the other card goes on");
        assert_eq!((first.health(), second.health()), (Health::Well, Health::Lost));
        assert_eq!((first.last_xid(), second.last_xid()), (0, 31));
    }
    for card in ["0".to_owned(), uuid(first)] {
        bench.write("faults.toml", &fault("\"lost\"", &card));
        for command in ways() {
            [first, second].into_iter().for_each(|card| card.set_health(Health::Well));
            assert_eq!(allocs(command), "0\n46\n46\n", "{card}");
            assert_eq!((first.health(), second.health()), (Health::Lost, Health::Well), "{card}");
        }
    }
}
