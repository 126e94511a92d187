//! One node, many threads: what concurrent calls of the node agent cost each other, and that they end as calls one after the
//! other would, also if the process is killed among them.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use aliquot_backend_sim::{NodeFile, Personality};
use aliquot_core::catalogue::Catalogue;
use aliquot_core::dra::ResourceClaim;
use aliquot_core::grant::Grant;
use aliquot_core::id::ClaimUid;
use aliquot_core::ledger::Ledger;
use aliquot_core::offer::{CounterNodes, LayoutKind, ServerVersion};
use aliquot_core::ports::DeviceBackend;
use aliquot_driver::node::NodeService;
use aliquot_driver::prepare::{PrepareError, ReleaseOutcome};
use aliquot_tests::fault::Kill;
use aliquot_tests::generate::Random;
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::seed::seed;

const CARDS: u32 = 8;
/// Time that the simulated device takes to make or destroy a partition.
const DEVICE_MILLIS: u64 = 200;

const fn want(card: u32, part: &'static str) -> Want {
    Want { card, part, memory_mib: None, cores: 0 }
}

const fn share(card: u32, part: &'static str, memory_mib: u64) -> Want {
    Want { card, part, memory_mib: Some(memory_mib), cores: 5 }
}

fn uid(text: &str) -> ClaimUid {
    ClaimUid::new(text).unwrap()
}

/// Eight cards, with faults in the form of a node file.
fn eight_cards(faults: &str) -> World {
    let text = format!("{}\n{faults}", Personality::named("h100-8").unwrap().text);
    World::of(NodeFile::parse(&text).unwrap(), "")
}

fn slow(call: &str) -> String {
    slow_by(call, DEVICE_MILLIS)
}

fn slow_by(call: &str, millis: u64) -> String {
    format!("[[fault]]\ncall = \"{call}\"\nnth = 1\ntimes = 1000000\neffect = \"slow\"\nmillis = {millis}\n")
}

/// A claim for each list of devices, by its number.
fn claims(world: &World, wants: &[Vec<Want>]) -> Vec<ResourceClaim> {
    world.publish();
    let node = world.open();
    wants.iter().enumerate().map(|(number, wants)| claim(&node, &format!("c{number}"), wants)).collect()
}

/// Runs these calls at once, and measures how long all of them take.
fn at_once<T: Send>(calls: Vec<Box<dyn FnOnce() -> T + Send + '_>>) -> (Vec<T>, Duration) {
    let start = Barrier::new(calls.len() + 1);
    thread::scope(|scope| {
        let start = &start;
        let running: Vec<_> = calls
            .into_iter()
            .map(|call| {
                scope.spawn(move || {
                    start.wait();
                    call()
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        let answers = running.into_iter().map(|thread| thread.join().unwrap()).collect();
        (answers, began.elapsed())
    })
}

/// No claim holds what another one has, at this very moment.
fn check_ledger(world: &World, service: &NodeService) {
    let mut cards = world.hardware().discover().unwrap();
    cards.cards.iter_mut().for_each(|card| card.found.clear());
    let (mut ledger, _) = Ledger::new(&cards, &Catalogue::embedded());
    for record in service.claims() {
        ledger.hold_all(record.plan.grants.iter().map(Grant::holding).collect()).unwrap();
    }
    ledger.invariants().unwrap();
}

#[test]
fn prepare_on_eight_cards_costs_one_cards_time() {
    // So long that the processor's part of eight prepares is small beside it on a busy machine.
    let millis = 4 * DEVICE_MILLIS;
    let world = eight_cards(&(slow_by("create", millis) + &slow_by("destroy", millis)));
    let all = claims(&world, &(0..CARDS).map(|card| vec![want(card, "1g.10gb at 0")]).collect::<Vec<_>>());
    let service = &world.open().into_service();
    let began = Instant::now();
    service.prepare(&all[0]).unwrap();
    let of_one = began.elapsed();
    assert!(of_one >= Duration::from_millis(millis), "{of_one:?}");
    service.release(&uid("c0")).unwrap();
    let prepare =
        |claim| -> Box<dyn FnOnce() + Send + '_> { Box::new(move || drop(service.prepare(claim).unwrap())) };
    let (_, of_all) = at_once(all.iter().map(prepare).collect());
    service.invariants().unwrap();
    assert_eq!(world.live().len(), 8);
    let release = |n: u32| -> Box<dyn FnOnce() -> ReleaseOutcome + Send + '_> {
        let uid = uid(&format!("c{n}"));
        Box::new(move || service.release(&uid).unwrap())
    };
    let (_, of_releases) = at_once((0..CARDS).map(release).collect());
    service.invariants().unwrap();
    println!("one card {of_one:?}, eight cards {of_all:?}, eight releases {of_releases:?}");
    assert!(of_all < of_one * 3, "eight cards took {of_all:?}, one took {of_one:?}");
    assert!(of_releases < of_one * 3, "eight releases took {of_releases:?}, one card took {of_one:?}");
}

#[test]
fn prepare_beside_a_slow_device_does_not_wait() {
    let world = eight_cards(&(slow("create") + &slow("destroy")));
    let wants = [vec![want(0, "1g.10gb at 0")], vec![share(1, "card", 4096)], vec![want(0, "1g.10gb at 1")]];
    let all = claims(&world, &wants);
    let service = world.open().into_service();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            service.prepare(&all[0]).unwrap();
            service.release(&uid("c0")).unwrap();
            done.store(true, Ordering::SeqCst);
        });
        thread::sleep(Duration::from_millis(DEVICE_MILLIS / 4));
        let mut rounds = 0;
        while !done.load(Ordering::SeqCst) {
            service.prepare(&all[1]).unwrap();
            service.snapshot(ServerVersion::with_default_gates(36, 2)).unwrap();
            service.release(&uid("c1")).unwrap();
            rounds += 1;
        }
        // In the time of two device calls; one after the other it would be one round.
        assert!(rounds >= 4, "{rounds} rounds beside two calls of {DEVICE_MILLIS} ms");
    });
    service.invariants().unwrap();
}

/// The scheduler allocated the claims while layout `auto` used counters, and the number of nodes changed that since.
#[test]
fn prepare_after_auto_changed_an_idle_card_succeeds() {
    let world = eight_cards("");
    let all = claims(&world, &[vec![want(0, "1g.10gb at 0")], vec![share(0, "card", 4096)]]);
    let service = world.open().into_service();
    let many = ServerVersion::with_default_gates(36, 3).among(CounterNodes::Many(21));
    let first = service.snapshot(many).unwrap().offers;
    assert!(first.parts.values().all(|part| part.layout == LayoutKind::Shared));
    service.prepare(&all[0]).unwrap();
    let held = &all[0].allocation.as_ref().unwrap().devices[0].device;
    // Now the claim decides the card's layout, and the repeated call finds its device.
    let offers = service.snapshot(many).unwrap().offers;
    assert!(offers.parts.contains_key(held) && !first.parts.contains_key(held));
    service.prepare(&all[0]).unwrap();
    let mut other = all[1].clone();
    let shared = first.parts.iter().find(|(_, part)| part.card == offers.parts[held].card).unwrap().0;
    other.allocation.as_mut().unwrap().devices[0].device = shared.clone();
    assert!(service.prepare(&other).unwrap_err().to_string().contains("is not offered by this node"));
    service.release(&uid("c0")).unwrap();
    service.snapshot(many).unwrap();
    service.prepare(&other).unwrap();
    service.invariants().unwrap();
}

#[test]
fn prepare_of_one_claim_by_many_callers_is_done_once() {
    let world = eight_cards("");
    let all = claims(&world, &[vec![want(0, "1g.10gb at 0"), want(3, "2g.20gb at 2")]]);
    let service = world.open().into_service();
    let call = |_| -> Box<dyn FnOnce() -> _ + Send + '_> { Box::new(|| service.prepare(&all[0]).unwrap()) };
    let (answers, _) = at_once((0..8).map(call).collect());
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(world.live().len(), 2);
    service.invariants().unwrap();
    let call =
        |_| -> Box<dyn FnOnce() -> _ + Send + '_> { Box::new(|| service.release(&uid("c0")).unwrap()) };
    let (answers, _) = at_once((0..8).map(call).collect());
    assert_eq!(answers.iter().filter(|answer| **answer == ReleaseOutcome::Released).count(), 1);
    assert!(world.live().is_empty());
    service.invariants().unwrap();
}

/// What others do on the card is never a reason to refuse what fits beside it.
#[test]
fn prepare_beside_changing_neighbours_is_never_refused() {
    let world = eight_cards("");
    let parts = ["1g.10gb at 0", "1g.10gb at 1", "1g.10gb at 2", "3g.40gb at 4"];
    let all = claims(&world, &parts.map(|part| vec![want(0, part)]));
    let service = world.open().into_service();
    let call = |number: usize| -> Box<dyn FnOnce() + Send + '_> {
        let (service, claim) = (&service, &all[number]);
        Box::new(move || {
            for round in 0..40 {
                service.prepare(claim).unwrap_or_else(|e| panic!("c{number}, round {round}: {e}"));
                service.release(&uid(&claim.uid)).unwrap();
            }
        })
    };
    at_once((0..parts.len()).map(call).collect());
    assert!(world.live().is_empty());
    service.invariants().unwrap();
}

/// A partition that several claims share is made by the first of them; if that one fails, by the next.
#[test]
fn shared_partition_survives_the_failure_of_its_maker() {
    for effect in ["error", "lost-answer"] {
        let fault = format!(
            "[[fault]]\ncall = \"create\"\nnth = 1\neffect = \"{effect}\"\ncode = 15\nmessage = \"lost\"\n"
        );
        let world = eight_cards(&fault);
        let part = "3g.40gb at 0";
        let all = claims(
            &world,
            &[vec![share(0, part, 4096)], vec![share(0, part, 4096)], vec![share(0, part, 4096)]],
        );
        let service = &world.open().into_service();
        let call = |claim| -> Box<dyn FnOnce() -> bool + Send + '_> {
            Box::new(move || service.prepare(claim).is_ok())
        };
        let (answers, _) = at_once(all.iter().map(call).collect());
        let failed = answers.iter().filter(|done| !**done).count();
        assert_eq!(failed, usize::from(effect == "error"), "{answers:?}");
        service.invariants().unwrap();
        assert_eq!(world.live().len(), 1);
        for claim in &all {
            service.release(&uid(&claim.uid)).unwrap();
        }
        assert!(world.live().is_empty(), "{effect}: {:?}", world.live());
        service.invariants().unwrap();
    }
}

/// The file that containers of all claims of the agent load the shim from.
fn shared_shim(world: &World) -> PathBuf {
    let version = fs::read_dir(world.state().join("shims")).unwrap().next().unwrap().unwrap();
    version.path().join("libaliquot.so")
}

/// Files of a claim are not synced; the journal is, and the next start compares each file with it.
#[test]
fn files_lost_with_the_power_are_made_again() {
    let world = eight_cards("");
    let all = claims(&world, &[vec![share(0, "card", 4096)]]);
    let service = world.open().into_service();
    service.prepare(&all[0]).unwrap();
    service.invariants().unwrap();
    let claim = service.grants_dir().join("c0");
    let share =
        fs::read_dir(&claim).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    drop(service);
    let mut files = vec![claim.join("ld.so.preload"), shared_shim(&world)];
    files.extend(["grant.json", "limits", "usage"].iter().map(|name| share.join(name)));
    files.push(world.state().join("cdi/aliquot.dev-claim-c0.json"));
    for path in files {
        let whole = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for left in
            [None, Some(Vec::new()), Some(whole[..whole.len() / 2].to_vec()), Some(vec![0; whole.len()])]
        {
            fs::remove_file(&path).unwrap();
            if let Some(bytes) = &left {
                fs::write(&path, bytes).unwrap();
            }
            let service = world.open().into_service();
            service.invariants().unwrap();
            drop(service);
            if !path.ends_with("limits") && !path.ends_with("usage") {
                assert!(fs::read(&path).unwrap() == whole, "{}", path.display());
            }
        }
    }
}

/// What a caller knows of a claim when the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It was told that the claim is prepared.
    Prepared,
    /// It was told that the claim is given back, or never asked.
    Gone,
    /// A call ended without an answer that counts.
    Open,
}

/// Claims of every shape, several of which exclude each other.
fn mixed_claims(world: &World, random: &mut Random) -> Vec<ResourceClaim> {
    let parts = ["1g.10gb at 0", "1g.10gb at 1", "2g.20gb at 0", "3g.40gb at 0", "3g.40gb at 4", "card"];
    let wants = (0..24).map(|_| {
        let devices = 1 + random.below(2);
        let first = u32::try_from(random.below(3)).unwrap();
        let wants = (0..devices).map(|place| {
            let part = parts[random.below(parts.len())];
            match part {
                "card" | "3g.40gb at 0" | "3g.40gb at 4" => {
                    share(first + u32::try_from(place).unwrap(), part, 2048)
                }
                part => want(first + u32::try_from(place).unwrap(), part),
            }
        });
        wants.collect()
    });
    claims(world, &wants.collect::<Vec<Vec<Want>>>())
}

/// One caller: random calls for its own claims until the process is killed or the calls are used up.
fn caller(
    service: &NodeService,
    own: &[ResourceClaim],
    mut random: Random,
    kill: &Kill,
) -> BTreeMap<String, Known> {
    let mut known: BTreeMap<String, Known> = own.iter().map(|c| (c.uid.clone(), Known::Gone)).collect();
    for _ in 0..30 {
        let claim = &own[random.below(own.len())];
        let before = known[&claim.uid];
        let after = if random.below(5) < 3 {
            match service.prepare(claim) {
                Ok(_) => Known::Prepared,
                // It was decided against before anything was done.
                Err(PrepareError::Refused(_)) => before,
                Err(_) => Known::Open,
            }
        } else {
            match service.release(&uid(&claim.uid)) {
                Ok(_) => Known::Gone,
                Err(_) => Known::Open,
            }
        };
        known.insert(claim.uid.clone(), after);
        if kill.left() == 0 {
            break;
        }
    }
    known
}

#[test]
fn random_callers_killed_anywhere_converge_after_one_restart() {
    let seed = seed();
    let (mut kills, mut kept) = (0, 0);
    for round in 0..40 {
        let mut random = Random::new(seed.wrapping_add(round));
        let world = eight_cards("");
        let all = mixed_claims(&world, &mut random);
        let kill = Arc::new(Kill::default());
        let service = world.open_on(kill.clone()).into_service();
        // Every fourth round ends by itself.
        if round % 4 != 0 {
            kill.after(random.below(20_000));
        }
        let known: BTreeMap<String, Known> = thread::scope(|scope| {
            let (service, kill) = (&service, &kill);
            let callers = all.chunks(6).map(|own| {
                let random = Random::new(u64::try_from(random.below(usize::MAX)).unwrap());
                scope.spawn(move || caller(service, own, random, kill))
            });
            let callers: Vec<_> = callers.collect();
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        });
        check_ledger(&world, &service);
        if kill.left() > 0 {
            service.invariants().unwrap_or_else(|e| panic!("seed {seed}, round {round}: {e}"));
        } else {
            kills += 1;
        }
        drop(service);
        let service = world.open().into_service();
        service.invariants().unwrap_or_else(|e| panic!("seed {seed}, round {round}, restarted: {e}"));
        let there: Vec<String> = service.claims().iter().map(|r| r.plan.claim.to_string()).collect();
        for (uid, known) in known {
            let is_there = there.contains(&uid);
            let fits = match known {
                Known::Prepared => is_there,
                Known::Gone => !is_there,
                Known::Open => true,
            };
            assert!(fits, "seed {seed}, round {round}: claim {uid} is {known:?}, and there: {is_there}");
            kept += usize::from(known == Known::Prepared);
        }
        for claim in &all {
            service.release(&uid(&claim.uid)).unwrap();
        }
        service.invariants().unwrap();
        assert!(world.live().is_empty(), "seed {seed}, round {round}: {:?} leaked", world.live());
    }
    assert!(kills >= 5 && kept >= 40, "{kills} kills, {kept} claims were prepared");
}
