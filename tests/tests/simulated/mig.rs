//! MIG of the simulated cards: what NVML says and does, what CUDA makes of it, and that an instance is a card of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use aliquot_sim_device::{Card, MemoryKind, MigDevice, Placement};
use aliquot_tests::local::opened_to_everybody;
use aliquot_tests::preload::{Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, Link, StoodAside, said};
use aliquot_tests::talk::Talk;

const CARDS: &str = "mig_access = \"anybody\"\n[[card]]\nmig = \"on\"\n";
const CONTEXT: u64 = 480 << 20;
/// Profile 19 of the card is 1g.10gb, 15 is 1g.20gb, 9 is 3g.40gb, 5 is 4g.40gb, 0 is 7g.80gb.
const SMALL: u32 = 19;

/// Cards, and a program; `None` where there is no compiler, and the test says so.
fn bench(cards: &str, program: &str) -> Option<(Bench, PathBuf)> {
    let bench = Bench::new();
    bench.write("node.toml", cards);
    match bench.compile_as(program, program, &["-ldl", "-DWATCHES"]) {
        Ok(program) => Some((bench, program)),
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            None
        }
    }
}

/// What the program says to words, as lines.
fn asked(command: &mut Command, words: &str) -> Vec<String> {
    said(&command.args(words.split(' ')).output().unwrap()).lines().map(str::to_owned).collect()
}

/// An instance as an administrator makes it.
fn instance(card: &Card, profile: u32, start: u32, size: u32) -> MigDevice {
    let gpu = card.create_gpu_instance(profile, Some(Placement { start, size })).unwrap();
    card.create_compute_instance(gpu.serial, if profile == SMALL { 0 } else { 2 }).unwrap()
}

#[test]
fn card_reports_profiles_and_placements_as_in_the_header() {
    let Some((bench, program)) = bench(CARDS, "sim_mig") else { return };
    let words = "mode count profile 0 profile 4 profile 7 profile 9 profile 8 profile 17 placements 19 placements 9 \
                 placements 77 room 19 room 0 util devices";
    let expected = [
        "0 1 1",
        "0 7",
        "19 MIG 1g.10gb slices 1 instances 7 sms 16 mib 9984 same",
        "0 MIG 7g.80gb slices 7 instances 1 sms 132 mib 81152 same",
        "20 MIG 1g.10gb+me slices 1 instances 1 sms 16 mib 9984 same",
        "15 MIG 1g.20gb slices 1 instances 4 sms 26 mib 20096 same",
        "3 3 3",
        "2 2 2",
        "0 0 0:1 1:1 2:1 3:1 4:1 5:1 6:1",
        "0 0 0:4 4:4",
        "2 2",
        "0 7",
        "0 1",
        "3",
        "6",
    ];
    assert_eq!(asked(&mut bench.command(&program), words), expected);
    // Off: profiles and placements are listed all the same; nothing can be made.
    bench.write("node.toml", "mig_access = \"anybody\"\n[[card]]\n");
    let off = asked(&mut bench.command(&program), "mode profile 0 placements 9 make 19 room 19 devices util");
    let profile = "19 MIG 1g.10gb slices 1 instances 7 sms 16 mib 9984 same";
    assert_eq!(off, ["0 0 0", profile, "0 0 0:4 4:4", "3", "3 99", "3", "0"]);
    // A card without MIG.
    bench.write("node.toml", "[[card]]\nname = \"Tesla T4\"\nmig = \"none\"\n");
    let none = asked(&mut bench.command(&program), "mode count profile 0 make 19 devices");
    assert_eq!(none, ["3 9 9", "0 0", "3 3 3", "3", "0"]);
}

#[test]
fn instances_are_made_where_they_fit_and_seen_by_all_processes() {
    let Some((bench, program)) = bench(CARDS, "sim_mig") else { return };
    let run = |words: &str| asked(&mut bench.command(&program), words);
    // There, at the first place, not there, not twice, no such place.
    assert_eq!(
        run("make 19 2 1 make 9 0 4 make 9 make 9 make 19 2 1 make 19 7 1 make 77"),
        ["0 1 19 at 2:1", "23", "0 2 9 at 4:4", "23", "23", "2", "2"]
    );
    assert_eq!(
        run("room 19 room 14 room 5 devices"),
        ["0 3", "0 1", "0 0", "6"],
        "no device without compute"
    );
    assert_eq!(
        run("compute 1 0 compute 1 0 compute 1 1 compute 2 2 compute 9 0"),
        ["0 0 MIG 1g.10gb sms 16", "23", "3", "0 0 MIG 3g.40gb sms 60", "6"]
    );
    let devices = run("devices");
    let uuid = |line: &str| line.split(' ').next().unwrap().to_owned();
    assert_eq!(
        devices[0][uuid(&devices[0]).len()..],
        *" 1/0 NVIDIA H100 80GB HBM3 MIG 1g.10gb sms 16 mib 9984"
    );
    assert_eq!(
        devices[1][uuid(&devices[1]).len()..],
        *" 2/0 NVIDIA H100 80GB HBM3 MIG 3g.40gb sms 60 mib 40448"
    );
    assert_eq!((devices.len(), devices[2].as_str()), (3, "6"));
    // Compute instances go before their GPU instance, and what is made again is another one.
    assert_eq!(run("undo 1 empty 1 undo 1 undo 1"), ["19 0", "0 ", "0 2", "6"]);
    assert_eq!(run("make 19 2 1 compute 1 0"), ["0 1 19 at 2:1", "0 0 MIG 1g.10gb sms 16"]);
    assert_ne!(uuid(&run("devices")[0]), uuid(&devices[0]));
    // Several compute instances share a GPU instance.
    assert_eq!(
        run("empty 2 compute 2 0 compute 2 1 compute 2 0"),
        ["0 ", "0 0 MIG 1c.3g.40gb sms 20", "0 1 MIG 2c.3g.40gb sms 40", "23"]
    );
}

#[test]
fn instances_are_changed_and_listed_with_rights_only() {
    let Some((bench, program)) = bench("[[card]]\nmig = \"on\"\n", "sim_mig") else { return };
    let card = bench.card();
    let made = instance(&card, SMALL, 0, 1);
    let uuid = card.mig_uuid(made.compute);
    let words = format!("make 19 placements 19 room 19 undo 1 memory {} memory {uuid}", card.facts().uuid);
    let mut command = bench.command(&program);
    if Command::new("id").arg("-u").output().unwrap().stdout == b"0\n" {
        opened_to_everybody(&[bench.cards().parent().unwrap(), &bench.libraries(), &bench.cards(), &program]);
        command.uid(65534).gid(65534);
    }
    assert_eq!(asked(&mut command, &words), ["4", "4 4", "4 99", "4", "4 0 0", "0 9984 0"]);
}

/// A program that holds memory until its input ends.
fn holder(bench: &Bench, program: &PathBuf, bytes: u64, uuid: &str) -> Child {
    let mut command = bench.command(program);
    command.args(["hold", &bytes.to_string()]).env("CUDA_VISIBLE_DEVICES", uuid);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(child.stdout.as_mut().unwrap()).lines().next().unwrap().unwrap();
    assert_eq!(line, "ready");
    child
}

#[test]
fn an_instance_has_memory_and_time_of_its_own() {
    let Some((bench, program)) = bench(CARDS, "sim_probe") else { return };
    let card = bench.card();
    let (one, two) = (instance(&card, SMALL, 0, 1), instance(&card, SMALL, 1, 1));
    let [first, second] = [one, two].map(|device| card.mig_card(device).unwrap());
    let uuid = |card: &Card| card.facts().uuid.clone();
    let mut child = holder(&bench, &program, 4 << 30, &uuid(&first));
    assert_eq!((first.in_use(), second.in_use(), card.in_use()), ((4 << 30) + CONTEXT, 0, 0));
    let seat = second.join().unwrap();
    assert!(seat.take(MemoryKind::Plain, 9_985 << 20).is_err(), "an instance has its own size");
    seat.take(MemoryKind::Plain, 9_984 << 20).unwrap();
    // 16 of 132 multiprocessors slow its own work, and no other.
    assert_eq!((seat.submit(16_000).0, card.join().unwrap().submit(16_000).0), (132_000, 16_000));
    let nvml = bench.compile("sim_mig", Link::Opened).unwrap();
    let words = format!("memory {} memory {}", uuid(&first), card.facts().uuid);
    let used = (4 << 10) + 480;
    assert_eq!(
        asked(&mut bench.command(&nvml), &words),
        [format!("0 9984 {used}"), format!("0 81559 {}", used + 9_984)]
    );
    // A process in an instance keeps it; a process that is killed does not.
    assert!(card.destroy_compute_instance(one.compute.serial).is_err());
    child.kill().unwrap();
    child.wait().unwrap();
    card.destroy_compute_instance(one.compute.serial).unwrap();
    card.destroy_gpu_instance(one.gpu.serial).unwrap();
    assert!(card.mig_card(one).is_err() && first.join().is_err(), "a destroyed instance accepts no process");
    assert!(card.destroy_gpu_instance(two.gpu.serial).is_err(), "compute instances are in it");
    seat.leave();
}

/// Each way to name an instance leads to its grant; the card itself has none.
#[test]
fn an_instance_is_held_to_its_grant_however_it_is_named() {
    let Some((bench, program)) = bench(CARDS, "shim_shown") else { return };
    let card = bench.card();
    let (one, two) = (instance(&card, SMALL, 0, 1), instance(&card, SMALL, 1, 1));
    let (first, second) = (card.mig_uuid(one.compute), card.mig_uuid(two.compute));
    let tenant = Tenant::new();
    let limit = 2_u64 << 30;
    let _files =
        [(1, &first), (2, &second)].map(|(n, uuid)| tenant.grant(uuid, &memory_limit(uuid, n * limit)));
    let path =
        |device: MigDevice| format!("MIG-{}/{}/{}", card.facts().uuid, device.gpu.id, device.compute.id);
    let begins = second[..second.len() - 1].to_owned();
    for (visible, grant) in [
        (first.clone(), 1),
        (second.clone(), 2),
        (begins, 2),
        (path(one), 1),
        (path(two), 2),
        ("0".to_owned(), 1),
        (card.facts().uuid.clone(), 1),
    ] {
        let mut talk = Talk::start(tenant.command(&bench, &program).env("CUDA_VISIBLE_DEVICES", &visible));
        let total = grant * limit;
        let told = talk.say("cuda");
        assert!(told.contains(&format!(" {total} {total} ")), "{visible}: {told}");
        assert_eq!(talk.say(&format!("take {total}")), "2", "{visible}: the context is in it");
        assert_eq!(talk.say("take 1073741824"), "0", "{visible}");
        let (device, uuid) = if grant == 1 { (one, &first) } else { (two, &second) };
        let there = format!("{}:{}/{}", talk.pid(), device.gpu.id, device.compute.id);
        assert_eq!(talk.say(&format!("instances {uuid}")), there, "{visible}");
    }
}

#[test]
fn cuda_sees_one_compute_instance_at_most() {
    let cards = "mig_access = \"anybody\"\n\
                 [[card]]\nuuid = \"GPU-aaaa0000-0000-0000-0000-000000000001\"\nmig = \"on\"\n\
                 [[card]]\nuuid = \"GPU-bbbb0000-0000-0000-0000-000000000002\"\n";
    let Some((bench, program)) = bench(cards, "sim_probe") else { return };
    let card = bench.card();
    let digits = |uuid: &str| uuid.bytes().filter(|b| *b != b'-').skip(3).map(char::from).collect::<String>();
    let visible = |visible: Option<&str>| {
        let mut command = bench.command(&program);
        command.arg("devices");
        if let Some(visible) = visible {
            command.env("CUDA_VISIBLE_DEVICES", visible);
        }
        said(&command.output().unwrap())
    };
    let plain = "bbbb0000000000000000000000000002\n";
    assert_eq!(visible(None), plain, "in the mode without an instance: no device");
    assert_eq!((visible(Some("0")), visible(Some("0,1"))), ("100\n".to_owned(), "100\n".to_owned()));
    let (one, two) = (instance(&card, SMALL, 3, 1), instance(&card, 9, 4, 4));
    let [first, second] = [one, two].map(|device| card.mig_uuid(device.compute));
    let line = |uuid: &str| digits(uuid) + "\n";
    let path =
        |device: MigDevice| format!("MIG-{}/{}/{}", card.facts().uuid, device.gpu.id, device.compute.id);
    for (entries, expected) in [
        (None, line(&first)),
        (Some(first.as_str()), line(&first)),
        (Some(second.as_str()), line(&second)),
        (Some(&second[..12]), line(&second)),
        (Some(&format!("{second},{first},1")), line(&second)),
        (Some(&path(two)), line(&second)),
        (Some("MIG-GPU-aaaa0000-0000-0000-0000-000000000001/7/0"), "100\n".to_owned()),
        (Some("0"), line(&first)),
        (Some("GPU-aaaa"), line(&first)),
        (Some("1"), plain.to_owned()),
        (Some("1,0"), line(&first)),
        (Some("MIG-00000000-0000-0000-0000-000000000000,1"), "100\n".to_owned()),
    ] {
        assert_eq!(visible(entries), expected, "{entries:?}");
    }
}

#[test]
fn a_maker_that_is_killed_at_any_time_leaves_whole_instances() {
    let Some((bench, program)) = bench(CARDS, "sim_mig") else { return };
    let card = bench.card();
    let words = "make 19 0 1 compute 1 0 make 19 1 1 compute 2 0 empty 1 undo 1 empty 2 undo 2";
    for pause in 0..40_u64 {
        let mut maker = bench.command(&program);
        let mut maker = maker.args(words.split(' ')).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(pause * 250));
        maker.kill().unwrap();
        maker.wait().unwrap();
        for gpu in card.gpu_instances() {
            assert!([1, 2].contains(&gpu.instance.id) && gpu.instance.profile == SMALL, "{gpu:?}");
            for compute in gpu.computes() {
                card.destroy_compute_instance(compute.serial).unwrap();
            }
            card.destroy_gpu_instance(gpu.instance.serial).unwrap();
        }
        assert_eq!((card.gpu_instances(), card.room_for(SMALL).unwrap()), (vec![], 7));
    }
}
