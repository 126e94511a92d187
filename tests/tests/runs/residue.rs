//! The driver's account beside the shim's: what bypasses the shim is charged to its tenant within one look.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_abi::limits::Limits;
use aliquot_core::units::Bytes;
use aliquot_driver::region::GrantPaths;
use aliquot_driver::run::cards::CardProcesses;
use aliquot_driver::run::governor::{Governor, Scope};
use aliquot_sim_device::Card;
use aliquot_tests::simulated::{Link, StoodAside};
use aliquot_tests::talk::Talk;

use super::top::{Probed, Running};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const LIMIT: u64 = 4 * GIB;
const CONTEXT: u64 = 480 * MIB;
const PRESUMED: u64 = 512 * MIB;
/// Longest time until what is there is charged, on a machine with other work: one look is 50 ms.
const CHARGED: Duration = Duration::from_millis(1_000);

#[derive(Debug)]
struct OfCard(Card);

impl CardProcesses for OfCard {
    fn processes(&self) -> Option<Vec<(u32, Option<Bytes>)>> {
        let held = |process: aliquot_sim_device::Process| (process.pid, Some(Bytes(process.held_bytes)));
        Some(self.0.processes().into_iter().map(held).collect())
    }
}

/// A prepared share of 4 GiB, and the governor of its card.
struct Scene {
    probed: Probed,
    program: PathBuf,
    grants: PathBuf,
    share: PathBuf,
}

impl Scene {
    /// `None`: no C compiler here.
    fn new() -> Option<Self> {
        let probed = Probed::with(&["one"])?;
        let program = match probed.site.bench.compile("shim_overhead", Link::Opened) {
            Ok(program) => program,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let share = probed.top("0").0["shares"][0].clone();
        let grants = probed.site.grants().join(share["claimUid"].as_str().unwrap());
        let share = PathBuf::from(share["directory"].as_str().unwrap());
        Some(Self { probed, program, grants, share })
    }

    fn govern(&self) -> Governor {
        let card = self.probed.site.bench.card();
        let state = PathBuf::from(self.probed.site.file("state"));
        let visible = card.facts().uuid.clone();
        let scope = Scope {
            grants: state.join("grants"),
            writers: state.join("limits.lock"),
            share: self.share.clone(),
            election: state.join("governors").join(&visible),
            visible,
            meter: None,
            processes: Some(Arc::new(OfCard(card))),
        };
        Governor::start(scope).unwrap()
    }

    /// The host knows no better size of a context than this.
    fn presume(&self, bytes: u64) {
        let state = PathBuf::from(self.probed.site.file("state"));
        let place = GrantPaths { dir: self.share.clone(), lock: state.join("limits.lock") };
        place.change(|now| Some(Limits { context_bytes: bytes, ..*now? })).unwrap();
    }

    fn command(&self) -> Command {
        self.probed.site.tenant(&self.grants, &self.program)
    }

    /// A process of the tenant with a context.
    fn tenant(&self) -> Talk {
        let mut tenant = Talk::start(&mut self.command());
        assert_eq!(tenant.say("retain 0"), "0");
        tenant
    }

    /// A process of the tenant without the shim that holds so much.
    fn unshimmed(&self, bytes: u64) -> Running {
        let share = self.probed.top("0").0["shares"][0].clone();
        Running::ready(self.probed.tenant(&share, &["hold", &bytes.to_string()]).env_remove("LD_PRELOAD"))
    }
}

fn free(program: &mut Talk) -> u64 {
    program.say("info").split(' ').nth(1).unwrap().parse().unwrap()
}

#[track_caller]
fn wait_until(what: &str, mut there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !there() {
        assert!(begun.elapsed() < CHARGED, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn memory_past_the_shim_is_charged_to_its_tenant() {
    let Some(scene) = Scene::new() else { return };
    let _governor = scene.govern();
    let mut tenant = scene.tenant();
    assert_eq!(free(&mut tenant), LIMIT - CONTEXT);
    let unshimmed = scene.unshimmed(3 * GIB);
    wait_until("it is charged", || free(&mut tenant) < GIB);
    assert_eq!(tenant.say(&format!("alloc {GIB}")), "2");
    let left = free(&mut tenant);
    assert_eq!(tenant.say(&format!("alloc {}", left / 2)), "0", "what fits beside it is granted");
    drop(unshimmed);
    // No look since: the refusal waits for one.
    assert_eq!(tenant.say(&format!("alloc {}", 2 * GIB)), "0");
    tenant.end();
}

#[test]
fn tenant_above_its_limit_by_the_driver_gets_nothing() {
    let Some(scene) = Scene::new() else { return };
    let _governor = scene.govern();
    let mut tenant = scene.tenant();
    let unshimmed = scene.unshimmed(5 * GIB);
    wait_until("it is charged", || free(&mut tenant) == 0);
    assert_eq!(tenant.say("alloc 512"), "2");
    drop(unshimmed);
    assert_eq!(tenant.say("alloc 512"), "0");
    tenant.end();
}

#[test]
fn sleeping_process_is_charged_what_the_driver_shows() {
    let Some(scene) = Scene::new() else { return };
    scene.presume(PRESUMED);
    let sleeping = scene.tenant();
    let mut tenant = scene.tenant();
    assert_eq!(free(&mut tenant), LIMIT - 2 * PRESUMED);
    let governor = scene.govern();
    wait_until("presumptions fall", || free(&mut tenant) == LIMIT - 2 * CONTEXT);
    // The next context is presumed to take what the driver showed of these.
    let third = scene.tenant();
    assert_eq!(free(&mut tenant), LIMIT - 3 * CONTEXT);
    drop(governor);
    let fourth = scene.tenant();
    assert_eq!(free(&mut tenant), LIMIT - 4 * CONTEXT);
    [sleeping, tenant, third, fourth].into_iter().for_each(Talk::end);
}

#[test]
fn code_of_modules_and_listed_kernels_is_charged_within_a_look() {
    let Some(scene) = Scene::new() else { return };
    scene.presume(CONTEXT);
    let _governor = scene.govern();
    let mut tenant = scene.tenant();
    wait_until("the context is known", || free(&mut tenant) == LIMIT - CONTEXT);
    // A file, which the shim does not read; a kernel of a list, which the driver loads at its launch.
    for lines in [&["load 1 5 104857600", "function 1 1"][..], &["kernels 2 4 3", "list 2 3", "launch 2"]] {
        let before = free(&mut tenant);
        for line in lines {
            assert!(tenant.say(line).starts_with('0'), "{line}");
        }
        wait_until("its memory is charged", || free(&mut tenant) < before);
    }
    let left = free(&mut tenant);
    assert!(left <= LIMIT - CONTEXT - 100 * MIB, "{left}");
    assert_eq!(tenant.say(&format!("alloc {}", left + MIB)), "2");
    // Unloaded, it refuses nothing.
    assert_eq!(tenant.say("unload 1"), "0");
    assert_eq!(tenant.say(&format!("alloc {}", left + 90 * MIB)), "0");
    tenant.end();
}
