//! Events and samples of the simulated NVML: every waiter gets a card's reports, and samples show how busy it
//! was.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use aliquot_sim_device::{Card, Health, Placement, WINDOW_NANOS};
use aliquot_tests::local::opened_to_everybody;
use aliquot_tests::simulated::{Bench, Link, StoodAside, said};
use aliquot_tests::talk::Talk;

/// No instance, as the programs print it.
const WHOLE: &str = "ffffffff ffffffff";
/// Longer than any machine is busy, in milliseconds: a wait with an event never takes as long.
const LONG: &str = "120000";

/// Cards and the program; `None` where there is no compiler, and the test says so.
fn bench(cards: &str) -> Option<(Bench, PathBuf)> {
    let bench = Bench::new();
    bench.write("node.toml", cards);
    match bench.compile_as("sim_events", "sim_events", &["-ldl", "-pthread"]) {
        Ok(program) => Some((bench, program)),
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            None
        }
    }
}

fn two_cards() -> Option<(Bench, PathBuf, [Card; 2])> {
    let (bench, program) = bench("")?;
    let device = bench.device();
    let cards = [0, 1].map(|index| device.card(index).unwrap().clone());
    Some((bench, program, cards))
}

#[test]
fn xid_reaches_every_waiter_once() {
    let Some((bench, program, [first, second])) = two_cards() else { return };
    let mut talks = [0, 1].map(|_| Talk::start(&mut bench.command(&program)));
    let [one, two] = &mut talks;
    first.raise_xid(13, None);
    assert_eq!(one.say("supported 0"), "0 11");
    for talk in [&mut *one, &mut *two] {
        assert_eq!((talk.say("register 0 8"), talk.say("wait 0")), ("0".into(), "10".into()), "not what was");
    }
    assert_eq!(one.say("register 1 11"), "0", "with kinds that never come");
    assert_eq!(two.say("register 1 3"), "0", "with these alone");
    // While they wait.
    [&mut *one, &mut *two].into_iter().for_each(|talk| talk.tell(&format!("wait {LONG}")));
    first.raise_xid(31, None);
    let expected = format!("0 0 8 31 {WHOLE}");
    assert_eq!((one.hear(), two.hear()), (expected.clone(), expected));
    // Without a waiter: events of all cards arrive in their order, each once.
    [(&second, 45), (&first, 48), (&first, 48), (&second, 63)]
        .iter()
        .for_each(|(card, n)| card.raise_xid(*n, None));
    for (card, number) in [(1, 45), (0, 48), (0, 48), (1, 63)] {
        assert_eq!(one.say("wait 0"), format!("0 {card} 8 {number} {WHOLE}"));
    }
    assert_eq!(one.say("wait 0"), "10");
    assert_eq!([two.say("first 0"), two.say("first 0"), two.say("first 0")], ["0 0 8 48", "0 0 8 48", "10"]);
    // A set that registers a kind again misses nothing; a set that adds Xids now gets those from now on.
    first.raise_xid(94, None);
    assert_eq!([two.say("register 0 8"), two.say("register 1 8")], ["0", "0"]);
    assert_eq!([two.say("wait 0"), two.say("wait 0")], [format!("0 0 8 94 {WHOLE}"), "10".into()]);
}

#[test]
fn of_threads_that_wait_on_one_set_each_event_wakes_one() {
    let Some((bench, program, [card, _])) = two_cards() else { return };
    let mut talk = Talk::start(&mut bench.command(&program));
    assert_eq!(talk.say("register 0 8"), "0");
    (0..3).for_each(|_| card.raise_xid(31, None));
    assert_eq!(talk.say("many 5 200"), "3 2");
    // A set that is freed during a wait on it.
    assert_eq!(talk.say(&format!("leave {LONG}")), "2 0 2 2 2");
}

#[test]
fn event_wait_is_answered_at_its_timeout() {
    let Some((bench, program, _)) = two_cards() else { return };
    let mut talk = Talk::start(&mut bench.command(&program));
    for registered in [false, true] {
        if registered {
            assert_eq!(talk.say("register 0 8"), "0");
        }
        let start = Instant::now();
        assert_eq!([talk.say("wait 120"), talk.say("first 80")], ["10", "10"]);
        assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
    }
    assert_eq!(talk.say("wrong"), "2 2 2 2 2 2 2 2 3 2 2 1 1 2");
}

#[test]
fn more_than_a_card_keeps_is_told_from_the_oldest_that_is_kept() {
    let Some((bench, program, [card, _])) = two_cards() else { return };
    let mut talk = Talk::start(&mut bench.command(&program));
    assert_eq!(talk.say("register 0 8"), "0");
    (0..100).for_each(|number| card.raise_xid(number, None));
    let told = (0..64).map(|_| talk.say("wait 0")).collect::<Vec<_>>();
    assert_eq!(told, (36..100).map(|number| format!("0 0 8 {number} {WHOLE}")).collect::<Vec<_>>());
    assert_eq!(talk.say("wait 0"), "10");
}

#[test]
fn a_lost_card_is_told_of_behind_what_it_reported() {
    let Some((bench, program, [lost, well])) = two_cards() else { return };
    let mut talk = Talk::start(&mut bench.command(&program));
    assert_eq!([talk.say("register 0 8"), talk.say("register 1 8")], ["0", "0"]);
    talk.tell(&format!("wait {LONG}"));
    lost.set_health(Health::Lost);
    assert_eq!(talk.hear(), "15", "while it waited");
    assert_eq!(
        [talk.say("register 0 8"), talk.say("supported 0"), talk.say("samples 0 1")],
        ["15", "15 0", "15 0"]
    );
    lost.raise_xid(79, None);
    well.raise_xid(13, None);
    let expected = [format!("0 0 8 79 {WHOLE}"), format!("0 1 8 13 {WHOLE}"), "15".to_owned()];
    assert_eq!(
        [talk.say("wait 0"), talk.say(&format!("wait {LONG}")), talk.say(&format!("wait {LONG}"))],
        expected
    );
    assert_eq!(talk.say("register 1 8"), "0", "the other card goes on");
}

#[test]
fn instance_xid_has_its_numbers_for_permitted_readers_only() {
    let Some((bench, program)) = bench("[[card]]\nmig = \"on\"\n") else { return };
    let card = bench.card();
    let make = |profile, start, size, compute| {
        let gpu = card.create_gpu_instance(profile, Some(Placement { start, size })).unwrap();
        card.create_compute_instance(gpu.serial, compute).unwrap()
    };
    // The second compute instance of GPU instance 2: no number is taken for another one.
    let (_, _, part) = (make(19, 0, 1, 0), make(9, 4, 4, 0), card.gpu_instances()[1].instance);
    let part = card.create_compute_instance(part.serial, 0).unwrap();
    assert_eq!((part.gpu.id, part.compute.id), (2, 1));
    let fault = |call: u32, action: &str, card: &str| {
        format!("[[fault]]\nsymbol = \"cuMemAlloc_v2\"\ncall = {call}\naction = {action}\ncard = {card}\n")
    };
    let uuid = format!("\"{}\"", card.mig_uuid(part.compute));
    let plan = [fault(1, "{ xid = 43 }", &uuid), fault(1, "{ xid = 95 }", "0"), fault(2, "\"lost\"", &uuid)];
    bench.write("faults.toml", &plan.concat());
    let probe = bench.compile("sim_probe", Link::Opened).unwrap();
    let mut talk = Talk::start(&mut bench.command(&program));
    assert_eq!([talk.say("part"), talk.say("register 0 8"), talk.say("samples 0 1")], ["3", "0", "3 0"]);
    // A user without access to all of the card: `mig_access`.
    let root = aliquot_sim_device::effective_user() == 0;
    let mut command = bench.command(&program);
    if root {
        opened_to_everybody(&[bench.cards().parent().unwrap(), &bench.libraries(), &bench.cards(), &program]);
        command.uid(65534).gid(65534);
    }
    let mut other = Talk::start(&mut command);
    assert_eq!(other.say("register 0 8"), "0");
    let mut command = bench.command(&probe);
    let struck = command.args(["allocs", "2"]).env("CUDA_VISIBLE_DEVICES", uuid.trim_matches('"'));
    assert_eq!(said(&struck.output().unwrap()), "0\n46\n", "an instance is lost with its card");
    let of_card = [format!("0 0 8 95 {WHOLE}"), "15".into()];
    if root {
        assert_eq!(talk.say("wait 0"), "0 0 8 43 2 1");
    }
    assert_eq!([talk.say("wait 0"), talk.say("wait 0")], of_card);
    assert_eq!([other.say("wait 0"), other.say("wait 0")], of_card);
}

#[test]
fn samples_tell_of_the_last_windows_how_busy_the_card_was() {
    let Some((bench, program, [card, _])) = two_cards() else { return };
    let mut talk = Talk::start(&mut bench.command(&program));
    let seat = card.join().unwrap();
    seat.submit(600_000_000_000);
    let start = Instant::now();
    // Eight windows: the oldest of the seven reported ones is full, too.
    while start.elapsed() < Duration::from_nanos(9 * WINDOW_NANOS) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let parts = |line: String| line.split(" | ").map(str::to_owned).collect::<Vec<_>>();
    for (question, value) in [("samples 0 1", 100), ("samples 1 1", 0), ("samples 0 2", 0)] {
        let told = parts(talk.say(question));
        assert_eq!((&*told[0], &*told[1]), ("0 7", "2"), "{question}");
        let one_a_window = (0..7).map(|n| format!(" {}:{value}", u32::from(n > 0))).collect::<String>();
        assert_eq!(told[2], format!("0 1 1{one_a_window}"), "{question}");
        assert_eq!((&*told[3], &*told[4]), ("6", "0 2 1"), "{question}");
    }
    assert_eq!([talk.say("samples 0 0"), talk.say("samples 0 10")], ["3 0", "2 0"]);
    seat.leave();
}
