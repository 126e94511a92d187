//! Health events of cards while runs use them: which runs are refused, which continue, and what clears an
//! event.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use aliquot_core::card::Health as Works;
use aliquot_core::health::{Era, NOTES_OF_A_CARD_MAX};
use aliquot_core::ports::{DeviceBackend as _, ExpectedPartition};
use aliquot_driver::checkpoint::CardHealth;
use aliquot_sim_device::{Card, Health};
use aliquot_tests::local::{Local, aliquot, wait_for};
use aliquot_tests::machine::Machine;
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::silence::falls_silent;
use aliquot_tests::simulated::Bench;
use serde_json::Value;

const FIRST: &str = "GPU-a11c0de0-51a0-4c4d-8000-000000000000";
const SECOND: &str = "GPU-a11c0de0-51a0-4c4d-8000-000000000001";
const MIG: &str = "mig_access = \"anybody\"\n[[card]]\nmig = \"on\"\n";
const BENIGN: [u64; 6] = [13, 31, 43, 45, 68, 109];

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn end(mut child: Child) -> Option<i32> {
    drop(child.stdin.take());
    child.wait().unwrap().code()
}

fn card(machine: &Machine, index: usize) -> Card {
    machine.bench.device().card(index).unwrap().clone()
}

/// Waits until a state has this in its notes.
fn noted(state: &Path, what: &str) {
    let there = || fs::read_to_string(state.join("health")).is_ok_and(|text| text.contains(what));
    wait_for(what, there);
}

/// A run of `true`, with where it would be.
fn run(machine: &Machine, ask: &[&str]) -> Output {
    machine.aliquot("run", ask).args(["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]).output().unwrap()
}

/// On which card a run was.
#[track_caller]
fn ran_on(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    match String::from_utf8_lossy(&output.stdout).trim_end() {
        "0" => FIRST.to_owned(),
        "1" => SECOND.to_owned(),
        // By its UUID while another card cannot be read.
        uuid => uuid.to_owned(),
    }
}

/// Exit code of `aliquot health`, and what is held: card and part.
fn held(machine: &Machine, arguments: &[&str]) -> (Option<i32>, Vec<(String, String)>) {
    let output = machine.aliquot("health", &["-o", "json"]).args(arguments).output().unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let held = value["held"].as_array().into_iter().flatten();
    (output.status.code(), held.map(|held| (text(&held["card"]), text(&held["part"]))).collect())
}

#[test]
fn xid_keeps_new_claims_off_its_card_and_disturbs_no_tenant() {
    let machine = Machine::new();
    let (mut tenant, _) = machine.tenant(&["--memory", "1Gi", "--card", "0"], &["fill", "1"]);
    card(&machine, 0).raise_xid(48, None);
    noted(&machine.state(), "code 48");
    let devices = machine.devices();
    let health =
        |card: usize| (devices[card]["health"]["state"].clone(), devices[card]["health"]["why"].clone());
    let why = health(0).1.as_str().unwrap().to_owned();
    assert_eq!((health(0).0, health(1).0), ("unhealthy".into(), "healthy".into()));
    assert!(why.starts_with("Xid 48: ") && why.contains(", seen on 20"), "{why}");
    assert!(why.contains("nvidia-smi --gpu-reset") && why.contains("aliquot health --clear"), "{why}");
    let refused = run(&machine, &["--memory", "1Gi", "--card", "0"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(
        err(&refused).contains("aliquot.dev/unhealthy") && err(&refused).contains(&why),
        "{}",
        err(&refused)
    );
    assert_eq!(ran_on(&run(&machine, &["--memory", "1Gi"])), SECOND);
    let top = machine.top(&["-n", "0"]);
    assert_eq!(top["cards"][0]["health"]["state"], "unhealthy", "{top}");
    assert_eq!(top["cards"][0]["health"]["why"], why.as_str(), "{top}");
    let table = machine.aliquot("top", &["-n", "0"]).output().unwrap();
    assert!(String::from_utf8_lossy(&table.stdout).contains("Xid 48: an error of two bits"), "{table:?}");
    assert_eq!(held(&machine, &[]), (Some(1), vec![(FIRST.to_owned(), "whole card".to_owned())]));
    assert!(tenant.try_wait().unwrap().is_none(), "a run that has started continues");
    // It goes back as ever, and the card is still held against.
    assert_eq!((end(tenant), machine.claims()), (Some(0), 0));
    assert_eq!(run(&machine, &["--card", "0"]).status.code(), Some(125));
    let unknown = machine.aliquot("health", &["--clear", "GPU-b"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    assert!(err(&unknown).contains(&format!("expected one of {FIRST}")), "{}", err(&unknown));
    assert_eq!(held(&machine, &["--clear", "GPU-a11"]), (Some(0), vec![]));
    assert_eq!(ran_on(&run(&machine, &["--card", "0"])), FIRST);
}

#[test]
fn program_errors_harm_no_card_unless_the_admin_says_so() {
    let machine = Machine::of("[[card]]");
    let (tenant, _) = machine.tenant(&["--memory", "1Gi"], &["fill", "1"]);
    BENIGN.iter().for_each(|xid| card(&machine, 0).raise_xid(*xid, None));
    noted(&machine.state(), "code 109");
    let state = || machine.devices()[0]["health"]["state"].as_str().unwrap().to_owned();
    assert_eq!((state(), held(&machine, &[])), ("healthy".to_owned(), (Some(0), vec![])));
    assert_eq!(ran_on(&run(&machine, &["--memory", "1Gi"])), FIRST);
    // The admin's word counts for what was seen before.
    fs::write(machine.state().join("xids"), "13 card # we know that one\n").unwrap();
    assert_eq!(state(), "unhealthy");
    fs::write(machine.state().join("xids"), "31 never\n48 ignore\n").unwrap();
    let said = run(&machine, &["--memory", "1Gi"]);
    assert_eq!(ran_on(&said), FIRST);
    assert!(
        err(&said).contains("xids: line 1: found `31 never`, expected the number of an Xid"),
        "{}",
        err(&said)
    );
    card(&machine, 0).raise_xid(48, None);
    noted(&machine.state(), "code 48");
    assert_eq!(state(), "healthy");
    fs::remove_file(machine.state().join("xids")).unwrap();
    assert_eq!((state(), end(tenant)), ("unhealthy".to_owned(), Some(0)));
}

#[test]
fn xid_of_an_instance_closes_its_place_alone() {
    let machine = Machine::of(MIG);
    let whole = machine.bench.card();
    let share = ["--template", "1g.10gb", "--memory", "2Gi"];
    let (mut tenant, _) = machine.tenant(&share, &["fill", "1"]);
    let [device] = whole.mig_devices()[..] else { unreachable!("{:?}", whole.mig_devices()) };
    let sick = device.gpu.placement.start;
    whole.raise_xid(48, Some(device));
    noted(&machine.state(), "1g.10gb@");
    let place = format!("1g.10gb at {sick}");
    let of_card = &machine.devices()[0];
    let parts = &of_card["unhealthyParts"];
    assert_eq!(
        (of_card["health"]["state"].as_str(), parts[0]["part"].as_str()),
        (Some("healthy"), Some(&*place))
    );
    assert!(parts[0]["why"].as_str().unwrap().starts_with("Xid 48: "), "{parts}");
    let top = machine.top(&["-n", "0"]);
    let states = (&top["cards"][0]["health"]["state"], &top["cards"][0]["partitions"][0]["health"]["state"]);
    assert_eq!(states, (&"healthy".into(), &"unhealthy".into()), "{top}");
    // The instance has room and accepts no claims; neither does any instance that would overlap it.
    let (other, _) = machine.tenant(&share, &["fill", "1"]);
    let starts = |card: &Card| {
        let instances = card.gpu_instances();
        instances.iter().map(|gpu| gpu.instance.placement.start).collect::<Vec<_>>()
    };
    assert_eq!(starts(&whole).iter().filter(|start| **start == sick).count(), 1);
    assert_eq!(starts(&whole).len(), 2, "{:?}", starts(&whole));
    assert!(tenant.try_wait().unwrap().is_none());
    assert_eq!((end(tenant), end(other), starts(&whole)), (Some(0), Some(0), vec![]));
    // Another instance there would lie over the same memory.
    let refused = run(&machine, &["--template", "7g.80gb"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(err(&refused).contains(&format!("{place} of the card does not work")), "{}", err(&refused));
    let (elsewhere, _) = machine.tenant(&share, &["fill", "1"]);
    assert!(!starts(&whole).contains(&sick), "{:?}", starts(&whole));
    // An Xid of the card makes the whole card unhealthy, whatever instance it names.
    whole.raise_xid(95, whole.mig_devices().first().copied());
    noted(&machine.state(), "code 95");
    assert_eq!(machine.devices()[0]["health"]["state"], "unhealthy");
    assert_eq!(end(elsewhere), Some(0));
}

#[test]
fn a_lost_card_is_noted_and_well_again_when_it_answers() {
    let machine = Machine::new();
    let (tenant, _) = machine.tenant(&["--memory", "1Gi", "--card", "0"], &["fill", "1"]);
    card(&machine, 0).raise_xid(79, None);
    card(&machine, 0).set_health(Health::Lost);
    noted(&machine.state(), "lost");
    let whole = (FIRST.to_owned(), "whole card".to_owned());
    assert_eq!(held(&machine, &[]), (Some(1), vec![whole.clone(), whole]));
    assert_eq!(ran_on(&run(&machine, &["--memory", "1Gi"])), SECOND);
    assert!(end(tenant).is_some());
    card(&machine, 0).set_health(Health::Well);
    assert_eq!(machine.devices()[0]["health"]["state"], "healthy", "it was reset");
    assert_eq!(held(&machine, &[]), (Some(0), vec![]));
    // A later report counts, even if it repeats an earlier one.
    let (tenant, _) = machine.tenant(&["--memory", "1Gi", "--card", "0"], &["fill", "1"]);
    assert!(!fs::read_to_string(machine.state().join("health")).unwrap().contains("lost"));
    card(&machine, 0).raise_xid(79, None);
    noted(&machine.state(), "code 79");
    assert_eq!(end(tenant), Some(0));
    assert_eq!(held(&machine, &[]).1.len(), 1);
    assert_eq!(run(&machine, &["--card", "0"]).status.code(), Some(125));
}

#[test]
fn a_storm_of_errors_of_programs_hides_no_error_of_the_card() {
    let machine = Machine::of("[[card]]");
    let (tenant, _) = machine.tenant(&["--memory", "1Gi"], &["fill", "1"]);
    let harmless = [8, 11, 13, 14, 25, 31, 32, 47, 60, 63, 80, 109, 121, 141, 142].into_iter();
    let harmless = harmless.chain(37..=45).chain(65..=73).chain(75..=77).chain(82..=86).chain(88..=89);
    let harmless: Vec<u64> =
        harmless.chain(92..=94).chain(96..=108).chain(126..=135).chain(137..=139).collect();
    assert!(harmless.len() > NOTES_OF_A_CARD_MAX, "{}", harmless.len());
    // A simulated driver keeps the last 64 reports.
    for some in harmless.chunks(32) {
        some.iter().for_each(|xid| card(&machine, 0).raise_xid(*xid, None));
        noted(&machine.state(), &format!("code {} ", some.last().unwrap()));
    }
    assert_eq!(machine.devices()[0]["health"]["state"], "healthy");
    card(&machine, 0).raise_xid(95, None);
    noted(&machine.state(), "code 95 ");
    assert_eq!(machine.devices()[0]["health"]["state"], "unhealthy");
    // Nor does what comes without a pause, of which each is known.
    for _ in 0..8 {
        (0..32).for_each(|_| card(&machine, 0).raise_xid(13, None));
        std::thread::yield_now();
    }
    card(&machine, 0).raise_xid(119, None);
    noted(&machine.state(), "code 119 ");
    assert_eq!(end(tenant), Some(0));
}

#[test]
fn event_not_recordable_at_once_is_recorded_later() {
    let machine = Machine::of("[[card]]");
    let (tenant, _) = machine.tenant(&["--memory", "1Gi"], &["fill", "1"]);
    // A pipe in place of the lock file: no process gets the lock, and none waits for it.
    let lock = machine.state().join("health.lock");
    assert!(Command::new("mkfifo").arg(&lock).status().unwrap().success());
    card(&machine, 0).raise_xid(64, None);
    let cleared = machine.aliquot("health", &["--clear", "all"]).output().unwrap();
    assert_eq!(cleared.status.code(), Some(3), "{cleared:?}");
    assert!(err(&cleared).contains("health.lock"), "{}", err(&cleared));
    assert!(!machine.state().join("health").exists(), "recorded without the lock");
    fs::remove_file(&lock).unwrap();
    noted(&machine.state(), "code 64");
    assert_eq!(end(tenant), Some(0));
}

#[test]
fn foreign_object_in_place_of_the_health_lock_is_refused() {
    let local = Local::new("t4-2");
    let state = local.state();
    fs::create_dir_all(&state).unwrap();
    let (lock, elsewhere) = (state.join("health.lock"), local.dir().join("elsewhere"));
    let clear = || {
        let output = on_own_state(&local, &["health", "--clear", "all"]);
        (output.status.code(), err(&output))
    };
    // A pipe with a reader can be opened, and is no lock file.
    assert!(Command::new("mkfifo").arg(&lock).status().unwrap().success());
    let mut options = fs::OpenOptions::new();
    let reader = options.read(true).write(true).open(&lock).unwrap();
    let (code, said) = clear();
    assert!(code == Some(3) && said.contains("named pipe"), "{said}");
    drop(reader);
    fs::remove_file(&lock).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &lock).unwrap();
    let (code, said) = clear();
    assert!(code == Some(3) && said.contains("health.lock") && !elsewhere.exists(), "{said}");
    fs::remove_file(&lock).unwrap();
    assert_eq!(clear().0, Some(0));
}

#[test]
fn claim_on_an_unhealthy_card_keeps_its_part_and_gets_no_more() {
    let world = World::new("mixed", "");
    let mut node = world.open();
    let want = |part| [Want { card: 0, part, memory_mib: None, cores: 0 }];
    let (old, new) = (claim(&node, "a", &want("1g.10gb at 0")), claim(&node, "b", &want("1g.10gb at 1")));
    let prepared = node.prepare(&old).unwrap();
    let sick = node.inventory().unwrap().cards[0].uuid.clone();
    let works = |health| world.hardware().set_health(&sick, &health).unwrap();
    works(Works::Unhealthy("it smells".to_owned()));
    assert_eq!(node.take_notes(), [""; 0]);
    assert_eq!(node.prepare(&old).unwrap(), prepared);
    let why = format!("card {sick} is not healthy: it smells");
    assert_eq!(node.take_notes(), [format!("claim test/claim-a: {why}; the claim keeps what it has there")]);
    let refused = node.prepare(&new).unwrap_err().to_string();
    assert!(refused.contains(&why) && refused.contains("1g.10gb at 1 of "), "{refused}");
    // What is gone would be made anew.
    world.hardware().destroy_partition(&world.live()[0].at, &ExpectedPartition::Any).unwrap();
    let refused = node.prepare(&old).unwrap_err().to_string();
    assert!(refused.contains(&why) && refused.contains("it stays prepared with"), "{refused}");
    assert_eq!((world.live().len(), node.take_notes().len()), (0, 0));
    works(Works::Healthy);
    node.prepare(&old).unwrap();
    assert_eq!((world.live().len(), node.take_notes().len()), (1, 0));
}

#[test]
fn event_outlives_the_supervisor_that_received_it() {
    let machine = Machine::of("[[card]]");
    let (mut killed, _) = machine.tenant(&["--memory", "1Gi"], &["fill", "1"]);
    let (other, _) = machine.tenant(&["--memory", "1Gi"], &["fill", "1"]);
    let input = killed.stdin.take();
    killed.kill().unwrap();
    killed.wait().unwrap();
    // No takeover is needed: the other watcher listened all the time.
    card(&machine, 0).raise_xid(95, None);
    noted(&machine.state(), "code 95");
    drop(input);
    let mut other = other;
    let input = other.stdin.take();
    other.kill().unwrap();
    other.wait().unwrap();
    drop(input);
    assert_eq!(machine.devices()[0]["health"]["state"], "unhealthy");
    assert_eq!(run(&machine, &[]).status.code(), Some(125));
    let path = machine.state().join("health");
    let kept = CardHealth::load(&path).unwrap().unwrap();
    // The machine was started again; the driver was loaded anew.
    let eras = [
        Era { boot: "another".to_owned(), ..kept.era.clone() },
        Era { driver: Some("580.65.06/none".to_owned()), ..kept.era.clone() },
    ];
    for era in eras {
        fs::write(&path, CardHealth { era: era.clone(), ..kept.clone() }.encode()).unwrap();
        assert_eq!(machine.devices()[0]["health"]["state"], "healthy", "{era:?}");
        assert_eq!(held(&machine, &[]), (Some(0), vec![]));
    }
    wait_for("everything given back", || {
        run(&machine, &[]).status.code() == Some(0) && machine.claims() == 0
    });
}

#[test]
fn unreadable_notes_are_kept_and_deny_cards_until_cleared() {
    let machine = Machine::of("[[card]]");
    let (tenant, _) = machine.tenant(&["--memory", "1Gi"], &["fill", "1"]);
    card(&machine, 0).raise_xid(48, None);
    noted(&machine.state(), "code 48");
    let path = machine.state().join("health");
    let whole = fs::read(&path).unwrap();
    for (content, words) in [
        (&whole[..whole.len() / 2], "found it damaged"),
        (b"", "found no whole line"),
        (b"aliquot-health 9 0\n", "found version `9` of it"),
        (b"\x7fELF\n", "found another kind of file"),
    ] {
        fs::write(&path, content).unwrap();
        let refused = run(&machine, &["--memory", "1Gi"]);
        assert_eq!(refused.status.code(), Some(125), "{refused:?}");
        let said = err(&refused);
        assert!(said.contains(words) && said.contains("aliquot health --clear all"), "{said}");
        assert!(machine.devices()[0]["health"]["why"].as_str().unwrap().contains(words));
        let health = machine.aliquot("health", &[]).output().unwrap();
        assert!(health.status.code() == Some(3) && err(&health).contains(words), "{health:?}");
        card(&machine, 0).raise_xid(46, None);
        assert_eq!(fs::read(&path).unwrap(), content, "it is kept");
    }
    assert_eq!((end(tenant), machine.claims()), (Some(0), 0), "what is held goes back");
    assert_eq!(held(&machine, &["--clear", "all"]), (Some(0), vec![]));
    assert_eq!(ran_on(&run(&machine, &["--memory", "1Gi"])), FIRST);
}

#[test]
fn a_driver_without_events_is_named_once_and_runs_go_on() {
    let lacking = Machine::with(Bench::without(&["nvmlEventSetWait_v2"]));
    let unsupported = Machine::of("[[card]]");
    unsupported.fault("nvmlDeviceRegisterEvents", "{ error = 3 }");
    for (machine, words) in [(lacking, "no such function: "), (unsupported, "its events: vendor error 3: ")] {
        let first = run(&machine, &["--memory", "1Gi"]);
        assert_eq!(ran_on(&first), FIRST);
        let said = err(&first);
        let begins = format!("note: card {FIRST} does not report its errors (");
        assert!(said.starts_with(&begins) && said.contains(words) && said.lines().count() == 1, "{said}");
        assert_eq!(err(&run(&machine, &["--memory", "1Gi"])), "", "it was said");
        let health = machine.aliquot("health", &[]).output().unwrap();
        assert_eq!(health.status.code(), Some(0), "{health:?}");
        assert!(String::from_utf8_lossy(&health.stdout).contains("does not report its errors"));
    }
    // One that takes the card, and does not wait at first.
    let hasty = Machine::of("[[card]]");
    let fails = |call| {
        format!("[[fault]]\nsymbol = \"nvmlEventSetWait_v2\"\ncall = {call}\naction = {{ error = 999 }}\n")
    };
    hasty.bench.write("faults.toml", &(fails(1) + &fails(2)));
    assert_eq!(err(&run(&hasty, &["--memory", "1Gi"])), "");
    let (tenant, _) = hasty.tenant(&["--memory", "1Gi"], &["fill", "1"]);
    // A report from the meantime is read at the next wait.
    card(&hasty, 0).raise_xid(48, None);
    noted(&hasty.state(), "code 48");
    assert_eq!(end(tenant), Some(0));
}

#[test]
fn nothing_polls_for_a_card_that_tells_nothing() {
    let machine = Machine::of("[[card]]");
    let mut whole = machine.aliquot("run", &[]);
    let mut whole = whole.args(["--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    falls_silent("the supervisor of a whole card", whole.id());
    card(&machine, 0).raise_xid(64, None);
    noted(&machine.state(), "code 64");
    falls_silent("the same, after an Xid", whole.id());
    drop(whole.stdin.take());
    assert!(whole.wait().unwrap().success());
}

/// A command on a state.
fn on_own_state(local: &Local, words: &[&str]) -> Output {
    Command::new(aliquot()).args(words).arg("--state").arg(local.state()).output().unwrap()
}

/// A command on a simulated node's state.
fn on_state(local: &Local, words: &[&str]) -> Output {
    on_own_state(local, &[words, &["--node", "t4-2"]].concat())
}

#[test]
fn a_simulated_card_tells_too_and_what_is_published_says_so() {
    let local = Local::new("t4-2");
    let file = local.dir().join("claim.yaml");
    let claim = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: one}\nspec:\n  devices:\n    requests:\n    \
                 - name: gpu\n      exactly:\n        deviceClassName: share.aliquot.dev\n        capacity: {requests: {memory: \
                 1Gi}}\n";
    fs::write(&file, claim).unwrap();
    let prepare = || on_state(&local, &["prepare", "-f", file.to_str().unwrap()]);
    assert_eq!(prepare().status.code(), Some(0));
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let tenant = local.tenant(&["--card", "0", "--memory", "1Gi"], &["fill", "256"]);
    local.card().raise_xid(119, None);
    noted(&local.state(), "code 119");
    let slices = text(&on_state(&local, &["slices", "-o", "json"]));
    let slices: Value = serde_json::from_str(&slices).unwrap();
    let found = slices.to_string().matches("\"aliquot.dev/unhealthy\"").count();
    assert_eq!(found, 1, "{slices}");
    // A server that drops taints gets no device of the card.
    let devices = |kubernetes: &str| {
        let slices = text(&on_state(&local, &["slices", "-o", "json", "--kubernetes", kubernetes]));
        slices.matches("\"productName\"").count()
    };
    assert_eq!((devices("1.37"), devices("1.35")), (2, 1));
    let refused = local.shell(&["--card", "0", "--memory", "1Gi"], "true");
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(
        err(&refused).contains("Xid 119: its system processor did not answer in time"),
        "{}",
        err(&refused)
    );
    // What is prepared stays prepared, on whichever card it is, and can be repeated.
    let again = prepare();
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert!(err(&again).contains("is not healthy: Xid 119"), "{}", err(&again));
    for (name, code) in [("two", 0), ("three", 1)] {
        fs::write(&file, claim.replace("one", name).replace("1Gi", "15Gi")).unwrap();
        let other = prepare();
        assert_eq!(other.status.code(), Some(code), "one other card is left: {other:?}");
    }
    tenant.end();
}
