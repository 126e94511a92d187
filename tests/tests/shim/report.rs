//! Every call that reports memory, of either library and in every process of the container, answers the same:
//! the grant, and what the accounting leaves of it.

#![expect(clippy::panic, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::usage;
use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_tests::preload::{GrantFiles, Tenant, memory_limit, unlimited};
use aliquot_tests::shown::{lists, numbers, programs};
use aliquot_tests::simulated::Bench;
use aliquot_tests::talk::Talk;
use proptest::prelude::*;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 3 << 30;

struct Scene {
    bench: Bench,
    program: PathBuf,
    /// The same without the driver of CUDA.
    watcher: PathBuf,
    tenant: Tenant,
    files: GrantFiles,
    card: String,
}

/// What drivers keep of a card for themselves, which is no part of a grant.
const NODE: &str = "reserved_bytes = 500000000\n";

/// `None` where there is no compiler, and the test says so.
fn scene(limits: impl Fn(&str) -> Limits) -> Option<Scene> {
    let bench = Bench::new();
    bench.write("node.toml", NODE);
    let [program, watcher] = programs(&bench)?;
    let card = bench.card().facts().uuid.clone();
    let (tenant, files) = Tenant::with(&limits(&card));
    Some(Scene { bench, program, watcher, tenant, files, card })
}

impl Scene {
    /// A process with a context, which is charged, too: it has it when it first answers.
    fn user(&self) -> Talk {
        let mut talk = Talk::start(&mut self.tenant.command(&self.bench, &self.program));
        let _context_is_there = talk.say("cuda");
        talk
    }

    /// A process that uses NVML alone.
    fn monitor(&self) -> Talk {
        Talk::start(self.tenant.command(&self.bench, &self.watcher).arg("nvml"))
    }

    /// One of another container.
    fn stranger(&self) -> Talk {
        Talk::start(&mut self.bench.command(&self.program))
    }

    fn booked(&self) -> u64 {
        self.files.counter(usage::TOTAL)
    }
}

/// Queries every process, and compares with the accounting: total, free and used.
fn all_agree(scene: &Scene, users: &mut [Talk], monitor: &mut Talk, limit: u64) {
    let booked = scene.booked();
    let (free, used) = (limit.saturating_sub(booked), booked.min(limit));
    for user in users.iter_mut() {
        let narrow = limit.min(u64::from(u32::MAX));
        assert_eq!(numbers(&user.say("cuda")), [free, limit, limit, narrow], "CUDA, {booked} booked");
    }
    let expected = [limit, free, used, limit, free, used, 0, limit, used];
    for talk in users.iter_mut().chain([monitor]) {
        let told = numbers(&talk.say("nvml 0"));
        assert_eq!((&told[..9], told[10]), (&expected[..], limit), "NVML, {booked} booked");
        let lists = lists(&talk.say("processes 0"));
        let (computing, others) = (&lists[..3], &lists[3..9]);
        assert!(computing.iter().all(|list| *list == computing[0]) && lists[9] == computing[0], "{lists:?}");
        assert_eq!(computing[0].iter().map(|(_, bytes)| bytes).sum::<u64>(), booked);
        assert!(others.iter().all(Vec::is_empty), "{others:?}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize, u64),
    Give(usize),
    Limit(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0_usize..2, 1_u64..900 * MIB).prop_map(|(user, bytes)| Step::Take(user, bytes)),
        3 => (0_usize..2).prop_map(Step::Give),
        1 => (1_u64..4096).prop_map(|mib| Step::Limit(mib * MIB)),
    ];
    prop::collection::vec(step, 10..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn all_calls_agree_at_every_pause(steps in steps()) {
        let Some(scene) = scene(|card| memory_limit(card, LIMIT)) else { return Ok(()) };
        let mut limits = memory_limit(&scene.card, LIMIT);
        let (mut users, mut monitor) = ([scene.user(), scene.user()], scene.monitor());
        // Memory of another tenant does not show here, as long as the card has room.
        let mut stranger = scene.stranger();
        prop_assert_eq!(stranger.say("take 5000000000"), "0");
        let mut limit = LIMIT;
        for step in steps {
            match step {
                Step::Take(user, bytes) => {
                    let fits = scene.booked() + bytes.next_multiple_of(512) <= limit;
                    prop_assert_eq!(users[user].say(&format!("take {bytes}")), if fits { "0" } else { "2" });
                }
                Step::Give(user) => prop_assert_eq!(users[user].say("give"), "0"),
                Step::Limit(bytes) => {
                    limit = bytes;
                    limits = Limits { generation: limits.generation + 1, ..memory_limit(&scene.card, bytes) };
                    scene.files.change(&limits);
                }
            }
            all_agree(&scene, &mut users, &mut monitor, limit);
        }
    }
}

#[test]
fn a_card_that_is_short_of_memory_shows_what_it_has() {
    let Some(scene) = scene(|card| memory_limit(card, 70 << 30)) else { return };
    let (mut user, mut stranger) = (scene.user(), scene.stranger());
    assert_eq!(stranger.say("take 60000000000"), "0");
    let card = numbers(&stranger.say("nvml 0"));
    let shown = numbers(&user.say("nvml 0"));
    assert_eq!((shown[0], shown[1], shown[2]), (70 << 30, card[1], (70 << 30) - card[1]));
    assert_eq!(numbers(&user.say("cuda"))[..2], [card[1], 70 << 30]);
}

/// The bare card shows what it has, and what its driver keeps of it.
#[test]
fn a_limit_beyond_the_card_is_shown_as_the_card() {
    let Some(scene) = scene(|card| memory_limit(card, 1 << 40)) else { return };
    let (mut user, mut stranger) = (scene.user(), scene.stranger());
    let bare = stranger.say("cuda");
    assert_eq!(user.say("cuda"), bare);
    let (shown, card) = (numbers(&user.say("nvml 0")), numbers(&stranger.say("nvml 0")));
    assert_eq!(shown[..3], card[..3]);
    assert_eq!((shown[3], shown[6], card[3], card[6]), (card[0], 0, card[0], 500_000_000));
}

/// Those that draw, and those that compute through an MPS server.
#[test]
fn process_lists_have_those_of_the_container_only() {
    let Some(scene) = scene(|card| memory_limit(card, LIMIT)) else { return };
    let (mut user, mut stranger) = (scene.user(), scene.stranger());
    assert_eq!((user.say("take 1000"), stranger.say("take 1000")), ("0".into(), "0".into()));
    let mut node = NODE.to_owned();
    for pid in [user.pid(), stranger.pid()] {
        for (card, does) in [(0, "graphics"), (0, "mps"), (1, "graphics"), (1, "mps")] {
            node += &format!("[[process]]\npid = {pid}\ncard = {card}\ndoes = \"{does}\"\nbytes = 1048576\n");
        }
    }
    scene.bench.write("node.toml", &node);
    let ours = vec![(u64::from(user.pid()), scene.booked())];
    let told = |talk: &mut Talk, card: u32| lists(&talk.say(&format!("processes {card}")));
    let mut monitor = scene.monitor();
    assert!(told(&mut monitor, 0).iter().all(|list| *list == ours));
    assert!(told(&mut monitor, 1).iter().all(Vec::is_empty));
    // As the driver has them.
    let mut bare = Talk::start(scene.bench.command(&scene.watcher).arg("nvml"));
    for card in [0, 1] {
        let lists = told(&mut bare, card);
        assert!(lists[3..9].iter().all(|list| list.len() == 2), "{lists:?}");
    }
}

#[test]
fn a_card_without_a_grant_shows_its_size_and_nothing_free() {
    let Some(scene) = scene(|card| memory_limit(card, LIMIT)) else { return };
    let (mut monitor, mut stranger) = (scene.monitor(), scene.stranger());
    let (shown, card) = (numbers(&monitor.say("nvml 1")), numbers(&stranger.say("nvml 1")));
    assert_eq!((shown[0], shown[1], shown[2]), (card[0], 0, card[0]));
    // Address space is no memory.
    assert_eq!(shown[9], card[9]);
    assert!(lists(&monitor.say("processes 1")).iter().all(Vec::is_empty));
}

/// What both calls tell of what processes did.
fn work(line: &str) -> [Vec<(u64, u64)>; 2] {
    let answered = |call: &str| lists(call.strip_prefix('0').unwrap_or_else(|| panic!("{line}"))).remove(0);
    let (first, second) = line.split_once(" | ").unwrap_or_else(|| panic!("{line}"));
    [answered(first), answered(second)]
}

#[test]
fn work_is_that_of_the_container_as_a_part_of_its_share() {
    let most = |card: &str| Limits {
        policy: ComputePolicy::Cap,
        share_ppm: 800_000,
        granted_ppm: 800_000,
        ..memory_limit(card, LIMIT)
    };
    let Some(scene) = scene(most) else { return };
    let (mut user, mut monitor, mut stranger) = (scene.user(), scene.monitor(), scene.stranger());
    assert_eq!((user.say("take 1000"), stranger.say("take 1000")), ("0".into(), "0".into()));
    let ours = user.pid().into();
    for talk in [&mut user, &mut monitor] {
        assert_eq!(work(&talk.say("work 0")), [[(ours, 0)], [(ours, 0)]]);
    }
    // Each has a kernel that never ends here. So each has half of the card, a turn more or less, at any
    // moment.
    assert_eq!((user.say("run 600000000000"), stranger.say("run 600000000000")), ("0".into(), "0".into()));
    let start = Instant::now();
    for talk in [&mut user, &mut monitor] {
        let as_part = |told: &[(u64, u64)]| matches!(told, [(pid, 60..=65)] if *pid == ours);
        loop {
            let told = work(&talk.say("work 0"));
            if told.iter().all(|told| as_part(told)) {
                break;
            }
            assert!(told.iter().all(|told| matches!(told[..], [(pid, _)] if pid == ours)), "{told:?}");
            assert!(start.elapsed() < Duration::from_secs(60), "half of the card is {told:?} of four fifths");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    // A process without a grant gets the card's figures, of all processes.
    let bare = work(&stranger.say("work 0"));
    assert!(
        bare.iter().all(|told| told.len() == 2 && told.iter().all(|(_, part)| (45..=55).contains(part))),
        "{bare:?}"
    );
    // A card that no grant names is not reported: as NVML says that no process did anything.
    assert_eq!(monitor.say("work 1"), "6 | 6");
}

#[test]
fn accounting_reports_processes_of_the_container_only() {
    let Some(scene) = scene(|card| memory_limit(card, LIMIT)) else { return };
    let (mut user, mut monitor, mut stranger) = (scene.user(), scene.monitor(), scene.stranger());
    assert_eq!((user.say("take 1000"), stranger.say("take 1000")), ("0".into(), "0".into()));
    let (ours, other) = (user.pid(), stranger.pid());
    for talk in [&mut user, &mut monitor] {
        assert_eq!(talk.say(&format!("accounted 0 {ours}")), format!("0 {ours} | 0 0 1"));
        assert_eq!(talk.say(&format!("accounted 0 {other}")), format!("0 {ours} | 6 6 0"));
        // No grant names the other card.
        assert_eq!(talk.say(&format!("accounted 1 {ours}")), "0 | 6 6 0");
    }
    let bare = stranger.say(&format!("accounted 0 {ours}"));
    assert!(bare.ends_with("| 0 0 1") && bare.contains(&other.to_string()), "{bare}");
}

/// If a list is too short, NVML returns the number of all processes on the card.
#[test]
fn how_many_processes_there_are_is_said_of_the_containers_own() {
    let Some(scene) = scene(|card| memory_limit(card, LIMIT)) else { return };
    let (mut user, mut monitor) = (scene.user(), scene.monitor());
    let mut strangers = [scene.stranger(), scene.stranger()];
    for talk in [&mut user].into_iter().chain(&mut strangers) {
        assert_eq!(talk.say("take 1000"), "0");
    }
    let lists = |drawn: &str, there: u32| [drawn; 6].join("|") + &format!("|7 {there}").repeat(4) + "|";
    let ours = lists("0 0", 1) + &format!("0 1 {}", user.pid());
    for talk in [&mut user, &mut monitor] {
        assert_eq!(talk.say("counted 0"), ours);
    }
    assert_eq!(strangers[0].say("counted 0"), lists("0 0", 3) + "7 3 0");
    // A card that no grant names is not reported.
    assert_eq!(monitor.say("counted 1"), "0 0|".repeat(7) + "6 0|6 0|0 0|0 0 0");
}

#[test]
fn refusals_of_nvml_stay_its_own() {
    let Some(scene) = scene(|card| memory_limit(card, LIMIT)) else { return };
    let (mut ours, mut bare) = (scene.monitor(), scene.stranger());
    assert_eq!(ours.say("uninitialised"), "1 1 1");
    assert_eq!(bare.say("uninitialised"), "1 1 1");
    // And afterwards everything is as before.
    assert_eq!(numbers(&ours.say("nvml 0"))[0], LIMIT);
}

/// NVML may give a handle to another card then.
#[test]
fn cards_are_told_apart_anew_after_a_shutdown() {
    let bench = Bench::new();
    let Some([_, watcher]) = programs(&bench) else { return };
    let (device, tenant) = (bench.device(), Tenant::new());
    let limits = [LIMIT, LIMIT / 2];
    let _files: Vec<_> = device
        .cards()
        .iter()
        .zip(limits)
        .map(|(card, limit)| {
            tenant.grant(&format!("of-card-{}", card.index()), &memory_limit(&card.facts().uuid, limit))
        })
        .collect();
    let mut monitor = Talk::start(tenant.command(&bench, &watcher).arg("nvml"));
    for time in 0..3 {
        let told = [0, 1].map(|card| numbers(&monitor.say(&format!("nvml {card}")))[0]);
        assert_eq!(told, limits, "the {time}. time");
        assert_eq!(monitor.say("begin"), "0");
    }
}

#[test]
fn without_a_memory_limit_nothing_is_changed() {
    let Some(scene) = scene(unlimited) else { return };
    let (mut ours, mut bare) = (scene.user(), scene.stranger());
    let _context_is_there = bare.say("cuda");
    assert_eq!(ours.say("take 100000000"), "0");
    for question in ["cuda", "nvml 0", "nvml 1", "processes 0"] {
        assert_eq!(ours.say(question), bare.say(question), "{question}");
    }
}
