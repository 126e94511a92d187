//! Cards that fail under a tenant with the shim: it meets what a program without the shim meets, on the card that failed alone.

use aliquot_sim_device::{Card, Health};
use aliquot_tests::machine::Machine;
use aliquot_tests::preload::{Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, Link, StoodAside, root, said, small_python};
use aliquot_tests::talk::Talk;
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

/// On the machine's own cards, as `aliquot run` finds them: another process's call raises the fault, then the
/// command's own.
#[test]
fn a_run_is_told_of_an_xid_and_of_the_loss_of_its_card() {
    let machine = Machine::of("[[card]]");
    let bench = &machine.bench;
    let call = |number: u32, action: &str| {
        format!("[[fault]]\nsymbol = \"cuMemAlloc_v2\"\ncall = {number}\naction = {action}\ncard = 0\n")
    };
    let grant = ["--memory", "4Gi", "--cores", "50", "--card", "0", "--"];
    // The first run measures the card's contexts and pages, with allocations of its own that the faults would meet.
    let measured = machine.aliquot("run", &grant).arg("true").output().unwrap();
    assert!(measured.status.success(), "{measured:?}");
    bench.write("faults.toml", &(call(2, "{ xid = 31 }") + &call(3, "\"lost\"")));
    let compiled = bench.compile_as("sim_events", "sim_events", &["-ldl", "-pthread"]);
    let (events, probe) =
        match compiled.and_then(|events| Ok((events, bench.compile("sim_probe", Link::Opened)?))) {
            Ok(both) => both,
            Err(StoodAside(why)) => return println!("stood aside: {why}"),
        };
    let allocs = |count: &str| said(&bench.command(&probe).args(["allocs", count]).output().unwrap());
    let mut talk = Talk::start(machine.aliquot("run", &grant).arg(events));
    assert_eq!(talk.say("register 0 8"), "0");
    let xid = "0 0 8 31 ffffffff ffffffff";
    talk.tell("wait 120000");
    assert_eq!(allocs("2"), "0\n0\n");
    assert_eq!(talk.hear(), xid);
    talk.tell("wait 120000");
    assert_eq!(allocs("3"), "0\n0\n46\n");
    assert_eq!(talk.hear(), xid);
    assert_eq!(talk.say("wait 120000"), "15");
    talk.end();
    assert_eq!(machine.claims(), 0, "a claim goes back, its card lost or not");

    bench.card().set_health(Health::Well);
    let python = match small_python() {
        Ok(python) => python,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    let mut client = machine.aliquot("run", &grant);
    client.arg(python).arg(root().join("tests/programs/xid_client.py"));
    assert_eq!(said(&client.output().unwrap()), "OK\n");
    assert_eq!((bench.card().health(), bench.card().last_xid()), (Health::Lost, 31));
}
