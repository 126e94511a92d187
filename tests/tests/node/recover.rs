//! Killed anywhere, one restart converges: hardware, journal, ledger and files agree, nothing is lost, nothing leaks.
//!
//! Every effect on disk or hardware is a place to be killed at, and so is every byte of every file that is written.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test that calls them")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use aliquot_abi::limits::MemoryLimit;
use aliquot_backend_sim::Personality;
use aliquot_core::id::{ClaimUid, TemplateName};
use aliquot_core::partition::PlacementName;
use aliquot_core::ports::{DeviceBackend, PartitionAt};
use aliquot_driver::checkpoint::ClaimKind;
use aliquot_driver::prepare::{PrepareError, ReleaseOutcome};
use aliquot_driver::region;
use aliquot_tests::fault::Kill;
use aliquot_tests::generate::Random;
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::seed::seed;

/// A claim, and the node that it is for.
struct Shape {
    personality: &'static str,
    policy: &'static str,
    wants: &'static [Want],
}

const fn want(card: u32, part: &'static str, memory_mib: Option<u64>, cores: u8) -> Want {
    Want { card, part, memory_mib, cores }
}

const SHARE_OF_CARD: Shape =
    Shape { personality: "t4-2", policy: "", wants: &[want(0, "card", Some(4096), 25)] };
const MIG_PARTITION: Shape =
    Shape { personality: "h200", policy: "", wants: &[want(0, "1g.18gb at 2", None, 12)] };
const SHARE_IN_PARTITION: Shape =
    Shape { personality: "h200", policy: "", wants: &[want(0, "3g.71gb at 4", Some(8192), 10)] };
const TWO_PARTITIONS: Shape = Shape {
    personality: "ascend-910b4",
    policy: "",
    wants: &[want(0, "vir05_1c_8g at 0", None, 25), want(1, "vir10_3c_16g at 1", None, 50)],
};
const ASCEND_QUARTER: Shape =
    Shape { personality: "ascend-310p", policy: "", wants: &[want(0, "vir02 at vg1", None, 25)] };
const WHOLE_CARD: Shape =
    Shape { personality: "h200", policy: "default = \"whole\"", wants: &[want(0, "card", None, 100)] };
const SLOT: Shape = Shape {
    personality: "t4-2",
    policy: "[[rule]]\nlayout = \"slots\"\nslots = [\"small\"]\n[[slot]]\nname = \"small\"\nmemory = \"4Gi\"\ncores = 25\ncopies = 3\n",
    wants: &[want(1, "slot small #2", None, 0)],
};

const UID: &str = "c1a1";

/// Kills prepare and release at every place, and restarts.
fn check(shape: &Shape) {
    check_for(shape, ClaimKind::Container);
    check_service(shape);
}

/// The same for the node agent's service: every effect, and bytes in steps.
fn check_service(shape: &Shape) {
    let world = &World::new(shape.personality, shape.policy);
    world.publish();
    let uid = ClaimUid::new(UID).unwrap();
    let node = world.open();
    let request = claim(&node, UID, shape.wants);
    drop(node);
    let empty = world.files();
    let service = world.open().into_service();
    service.prepare(&request).unwrap();
    drop(service);
    let prepared = world.files();
    let mut points = 0;
    for (start, begin) in [(&empty, true), (&prepared, false)] {
        for places in (0..150).chain((150..).step_by(stride())) {
            world.restore(start);
            let kill = Arc::new(Kill::default());
            let service = world.open_on(kill.clone()).into_service();
            kill.after(places);
            let finished = match begin {
                true => unless_killed(&kill, service.prepare(&request)),
                false => unless_killed(&kill, service.release(&uid)),
            };
            drop(service);
            points += 1;
            let service = world.open().into_service();
            service.invariants().unwrap_or_else(|e| panic!("service killed after {places} places: {e}"));
            let known = service.claims().len();
            assert!(!finished || known == usize::from(begin), "killed after {places} places: {known} claims");
            if known == 0 {
                assert!(world.live().is_empty(), "killed after {places} places leaks {:?}", world.live());
            }
            service.release(&uid).unwrap();
            service.invariants().unwrap();
            if finished {
                break;
            }
        }
    }
    println!("{points} points");
    assert!(points > 200, "only {points} points");
}

/// Places from one kill to the next, behind the first ones; `ALIQUOT_STRIDE` sets another number.
fn stride() -> usize {
    std::env::var("ALIQUOT_STRIDE").map_or(13, |text| text.parse().unwrap())
}

fn check_for(shape: &Shape, kind: ClaimKind) {
    let world = &World::new(shape.personality, shape.policy);
    world.publish();
    let uid = ClaimUid::new(UID).unwrap();
    let node = world.open();
    let request = claim(&node, UID, shape.wants);
    drop(node);
    let empty = world.files();

    let killed = prepare_killed_everywhere(world, shape, (&request, kind));
    assert!(killed > 800, "only {killed} places: the journal was not among them");

    world.restore(&empty);
    let mut node = world.open();
    node.prepare_for(&request, kind).unwrap();
    drop(node);
    let prepared = world.files();
    let mut places = 0;
    loop {
        world.restore(&prepared);
        let kill = Arc::new(Kill::default());
        let mut node = world.open_on(kill.clone());
        kill.after(places);
        let finished = unless_killed(&kill, node.release(&uid));
        drop(node);
        let mut node = world.open();
        node.invariants().unwrap_or_else(|e| panic!("release killed after {places} places: {e}"));
        let again = node.release(&uid).unwrap();
        assert!(!finished || again == ReleaseOutcome::Unknown, "released, yet known after a restart");
        node.invariants().unwrap();
        assert!(world.live().is_empty(), "release killed after {places} places leaks {:?}", world.live());
        if finished {
            break;
        }
        places += 1;
    }
    assert!(places > 100, "only {places} places: the journal was not among them");
}

/// Whether the call ended by itself; an error that no kill explains is the test's failure.
fn unless_killed<T>(kill: &Kill, result: Result<T, PrepareError>) -> bool {
    match result {
        Ok(_) => true,
        Err(error) if kill.left() > 0 => panic!("not killed, and yet: {error}"),
        Err(_) => false,
    }
}

/// Kills prepare at every place; the number of places.
fn prepare_killed_everywhere(
    world: &World,
    shape: &Shape,
    (request, kind): (&aliquot_core::dra::ResourceClaim, ClaimKind),
) -> usize {
    let empty = world.files();
    let mut places = 0;
    loop {
        world.restore(&empty);
        let kill = Arc::new(Kill::default());
        let mut node = world.open_on(kill.clone());
        kill.after(places);
        let finished = unless_killed(&kill, node.prepare_for(request, kind));
        drop(node);
        // A killed CDI writer leaves its temp file.
        let cdi = world.state().join("cdi");
        if cdi.is_dir() {
            let temp = format!(".aliquot.dev-claim-{UID}.json.0123456789abcdef.tmp");
            std::fs::write(cdi.join(temp), "{").unwrap();
        }
        let node = world.open();
        node.invariants().unwrap_or_else(|e| panic!("prepare killed after {places} places: {e}"));
        let known = node.claims().count();
        if finished {
            assert_eq!(known, 1, "prepared, and lost by a restart");
            assert_eq!(node.grants().count(), shape.wants.len());
            return places;
        }
        // The kill may come after the claim is on disk as prepared and before the caller gets its answer.
        assert!(known <= 1);
        if known == 0 {
            assert!(world.live().is_empty(), "prepare killed after {places} places leaks {:?}", world.live());
        }
        places += 1;
    }
}

/// Neighbours of a killed claim: a share of the same partition, a partition beside it, one of a stranger.
#[test]
fn neighbours_of_a_killed_claim_keep_what_they_have() {
    let world = World::new("h200", "");
    let hardware = world.hardware();
    let strangers = PartitionAt {
        card: hardware.discover().unwrap().cards[0].uuid.clone(),
        template: TemplateName::new("1g.18gb").unwrap(),
        placement: PlacementName("6".to_owned()),
    };
    let strangers = hardware.create_partition(&strangers).unwrap();
    world.publish();
    let mut node = world.open();
    let share = want(0, "3g.71gb at 0", Some(4096), 10);
    node.prepare(&claim(&node, "sharer", &[share])).unwrap();
    node.prepare(&claim(&node, "beside", &[want(0, "1g.18gb at 4", None, 0)])).unwrap();
    let request = claim(&node, UID, &[share, want(0, "1g.18gb at 5", None, 0)]);
    let uid = ClaimUid::new(UID).unwrap();
    drop(node);
    let (without, live_without) = (world.files(), world.live());
    let mut node = world.open();
    node.prepare(&request).unwrap();
    drop(node);
    let (with, live_with) = (world.files(), world.live());
    assert_eq!((live_without.len(), live_with.len()), (3, 4));
    // Every place of the first files; then a stride that is prime to their lengths.
    let places = || (0..40).chain((40..).step_by(37));
    for (start, begin) in [(&without, true), (&with, false)] {
        for places in places() {
            world.restore(start);
            let kill = Arc::new(Kill::default());
            let mut node = world.open_on(kill.clone());
            kill.after(places);
            let finished = match begin {
                true => unless_killed(&kill, node.prepare(&request)),
                false => unless_killed(&kill, node.release(&uid)),
            };
            drop(node);
            let node = world.open();
            node.invariants().unwrap_or_else(|e| panic!("killed after {places} places: {e}"));
            let expected = if node.claim(&uid).is_some() { &live_with } else { &live_without };
            let mut live = world.live();
            // The claim's own partition may have been made anew; everything else must be what it was.
            live.retain(|l| live_without.contains(l) || !live_with.contains(l));
            let kept = live.iter().filter(|l| live_without.contains(l)).count();
            assert_eq!(kept, live_without.len(), "killed after {places} places: {live:?}");
            assert_eq!(world.live().len(), expected.len());
            assert!(world.live().contains(&strangers));
            if finished {
                break;
            }
        }
    }
}

#[test]
fn a_kill_during_recovery_changes_nothing_about_where_it_ends() {
    let world = World::new(TWO_PARTITIONS.personality, "");
    world.publish();
    let node = world.open();
    let request = claim(&node, UID, TWO_PARTITIONS.wants);
    drop(node);
    let empty = world.files();
    for first in (0..).step_by(211) {
        world.restore(&empty);
        let kill = Arc::new(Kill::default());
        let mut node = world.open_on(kill.clone());
        kill.after(first);
        let finished = unless_killed(&kill, node.prepare(&request));
        drop(node);
        let killed = world.files();
        for second in (0..).step_by(29) {
            world.restore(&killed);
            let kill = Arc::new(Kill::default());
            kill.after(second);
            drop(world.try_open(Some(kill.clone())));
            let node = world.open();
            node.invariants().unwrap_or_else(|e| panic!("killed after {first}, then {second} places: {e}"));
            let expected = if node.claim(&ClaimUid::new(UID).unwrap()).is_some() { 2 } else { 0 };
            assert_eq!(world.live().len(), expected);
            if kill.left() > 0 {
                break;
            }
        }
        if finished {
            break;
        }
    }
}

/// The limits in force are those of the journal again, old or new.
#[test]
fn a_change_of_limits_survives_every_kill() {
    let world = World::new(SHARE_OF_CARD.personality, "");
    world.publish();
    let mut node = world.open();
    node.prepare(&claim(&node, UID, SHARE_OF_CARD.wants)).unwrap();
    let less_and_more = claim(&node, UID, &[want(0, "card", Some(2048), 40)]);
    drop(node);
    let prepared = world.files();
    // Every place of the first files; then a stride that is prime to their lengths.
    for places in (0..40).chain((40..).step_by(23)) {
        world.restore(&prepared);
        let kill = Arc::new(Kill::default());
        let mut node = world.open_on(kill.clone());
        kill.after(places);
        let finished = unless_killed(&kill, node.prepare(&less_and_more));
        drop(node);
        let node = world.open();
        node.invariants().unwrap_or_else(|e| panic!("killed after {places} places: {e}"));
        let grant = node.grants().next().unwrap();
        let held = (grant.memory.0 >> 20, u32::from(grant.cores.percent()) * 10_000);
        let dir = node.grants_dir().join(UID).join(grant.share.as_str());
        let limits = region::read(&dir.join(region::LIMITS)).unwrap();
        let MemoryLimit::Bytes(bytes) = limits.memory else { panic!("{limits:?}") };
        assert_eq!((bytes >> 20, limits.share_ppm), held, "killed after {places} places");
        assert!([(4096, 250_000), (2048, 400_000)].contains(&held), "{held:?}");
        if finished {
            assert_eq!(held, (2048, 400_000));
            assert!(places > 100, "only {places} places: the journal was not among them");
            break;
        }
    }
}

/// Says to the child of [`killed_process_leaves_nothing_a_restart_cannot_repair`] where to work.
const CHILD: &str = "ALIQUOT_TEST_KILLED_CHILD";

/// The child: prepares and releases until it is killed, and says so after each.
#[test]
fn the_child_that_is_killed() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let world = World::at(Path::new(&dir), Personality::named("h200").unwrap().load().unwrap(), "");
    let mut node = world.open();
    let wants = [want(0, "3g.71gb at 0", Some(4096), 10), want(0, "1g.18gb at 5", None, 0)];
    for round in 0_u32.. {
        let uid = format!("c{}", round % 3);
        node.prepare(&claim(&node, &uid, &wants[..1])).unwrap();
        println!("prepared {uid}");
        node.prepare(&claim(&node, "steady", &wants[1..])).unwrap();
        node.release(&ClaimUid::new(format!("c{}", (round + 1) % 3)).unwrap()).unwrap();
        println!("released");
    }
}

#[test]
fn killed_process_leaves_nothing_a_restart_cannot_repair() {
    let seed = seed();
    let mut random = Random::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let file = || Personality::named("h200").unwrap().load().unwrap();
    for _ in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "recover::the_child_that_is_killed", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = 1 + random.below(12);
        for _ in 0..said {
            while !lines.next().unwrap().unwrap().contains("ed") {}
        }
        // The child runs on while this process gets here: the kill hits it anywhere.
        child.kill().unwrap();
        child.wait().unwrap();
        let world = World::at(dir.path(), file(), "");
        let node = world.open();
        node.invariants().unwrap_or_else(|e| panic!("seed {seed}, killed after {said} lines: {e}"));
        let steady = ClaimUid::new("steady").unwrap();
        assert!(said < 3 || node.claim(&steady).is_some(), "seed {seed}: a prepared claim was lost");
    }
    let world = World::at(dir.path(), file(), "");
    let mut node = world.open();
    let uids: Vec<ClaimUid> = node.claims().map(|r| r.plan.claim.clone()).collect();
    for uid in uids {
        node.release(&uid).unwrap();
    }
    node.invariants().unwrap();
    assert!(world.live().is_empty(), "seed {seed}: {:?} leaked", world.live());
}

#[test]
fn a_share_of_a_card_survives_every_kill() {
    check(&SHARE_OF_CARD);
}

#[test]
fn a_share_of_a_local_run_survives_every_kill() {
    check_for(&SHARE_OF_CARD, ClaimKind::Run);
}

#[test]
fn a_mig_partition_survives_every_kill() {
    check(&MIG_PARTITION);
}

#[test]
fn a_share_inside_a_partition_survives_every_kill() {
    check(&SHARE_IN_PARTITION);
}

#[test]
fn two_partitions_survive_every_kill() {
    check(&TWO_PARTITIONS);
}

#[test]
fn a_quarter_of_an_ascend_card_survives_every_kill() {
    check(&ASCEND_QUARTER);
}

#[test]
fn a_whole_card_survives_every_kill() {
    check(&WHOLE_CARD);
}

#[test]
fn a_slot_survives_every_kill() {
    check(&SLOT);
}
