//! Looks of a governor at a driver's account that the test writes.

use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use aliquot_core::units::Bytes;

use super::*;
use crate::run::cards::CardProcesses;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 1 << 30;

/// A driver's account that the test writes.
#[derive(Debug, Default)]
struct Driver(Mutex<Vec<(u32, Option<Bytes>)>>);

impl Driver {
    fn shows(&self, processes: &[(u32, Option<u64>)]) {
        *self.0.lock().unwrap() = processes.iter().map(|(pid, held)| (*pid, held.map(Bytes))).collect();
    }
}

impl CardProcesses for Driver {
    fn processes(&self) -> Option<Vec<(u32, Option<Bytes>)>> {
        Some(self.0.lock().unwrap().clone())
    }
}

/// A share with a limit of memory alone, in which this process has a slot, and a card whose driver answers as the test says.
struct Scene {
    dir: tempfile::TempDir,
    place: GrantPaths,
    usage: UsageFile,
    driver: Arc<Driver>,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = grant(dir.path(), "burst", &limits(ComputePolicy::Unlimited, 1_000_000, CARD));
        let usage = UsageFile::open(&place.usage()).unwrap();
        has_a_slot(&usage);
        Self { dir, place, usage, driver: Arc::default() }
    }

    fn govern(&self) -> Governor {
        let processes: Arc<dyn CardProcesses> = Arc::<Driver>::clone(&self.driver);
        Governor::start(Scope { processes: Some(processes), ..scope(self.dir.path()) }).unwrap()
    }

    /// This process reserved so much, of which so much is presumed.
    fn reserves(&self, used: u64, presumed: u64) {
        let view = self.usage.view().unwrap();
        let slot = view.slot(0).unwrap();
        slot.used().store(used, Ordering::SeqCst);
        slot.presumed().store(presumed, Ordering::SeqCst);
        view.total().store(used, Ordering::SeqCst);
    }

    fn residue(&self) -> u64 {
        crate::region::residue(&self.place.limits()).0
    }

    /// Of the slot, of the total, presumed.
    fn words(&self) -> [u64; 3] {
        let view = self.usage.view().unwrap();
        let slot = view.slot(0).unwrap();
        [slot.used(), view.total(), slot.presumed()].map(|word| word.load(Ordering::SeqCst))
    }

    /// Waits until a look is over that began after this call.
    fn looked(&self) {
        let live = Live::open(&self.place).unwrap();
        let begun = monotonic();
        wait_for("a look", || live.looked_at().unwrap() >= begun);
    }
}

fn own() -> u32 {
    std::process::id()
}

#[test]
fn bytes_beyond_the_slots_are_the_residue() {
    let scene = Scene::new();
    scene.reserves(100 * MIB, 0);
    scene.driver.shows(&[(own(), Some(300 * MIB)), (1, Some(500 * MIB))]);
    let governor = scene.govern();
    scene.looked();
    assert_eq!(scene.residue(), 200 * MIB, "process 1 is no tenant's");
    scene.driver.shows(&[(own(), Some(60 * MIB))]);
    scene.looked();
    assert_eq!(scene.residue(), 0, "reserved ahead of the driver");
    scene.driver.shows(&[(own(), Some(300 * MIB))]);
    scene.looked();
    drop(governor);
    assert_eq!(scene.residue(), 200 * MIB, "what the last look found stays without a governor");
}

#[test]
fn presumption_falls_to_what_the_driver_shows() {
    let scene = Scene::new();
    scene.reserves(612 * MIB, 512 * MIB);
    scene.driver.shows(&[(own(), Some(580 * MIB))]);
    let governor = scene.govern();
    scene.looked();
    assert_eq!((scene.words(), scene.residue()), ([580 * MIB, 580 * MIB, 480 * MIB], 0));
    // Pages that no allocation fills are exact bytes that the driver does not show: they hide nothing of the context.
    scene.reserves(620 * MIB, 480 * MIB);
    scene.looked();
    assert_eq!((scene.words(), scene.residue()), ([620 * MIB, 620 * MIB, 480 * MIB], 0));
    scene.reserves(520 * MIB, 480 * MIB);
    scene.looked();
    assert_eq!((scene.words(), scene.residue()), ([520 * MIB, 520 * MIB, 480 * MIB], 60 * MIB));
    assert_eq!(read(&scene.place.limits()).unwrap().context_bytes, 0, "no context is so large");
    drop(governor);
    scene.reserves(512 * MIB, 512 * MIB);
    assert_eq!(scene.words(), [512 * MIB, 512 * MIB, 512 * MIB], "without a governor it stays");
}

#[test]
fn shown_context_lowers_the_size_of_its_own_grant_alone() {
    let scene = Scene::new();
    let share = |claim: &str, context_bytes: u64| {
        let known = Limits { context_bytes, ..limits(ComputePolicy::Unlimited, 1_000_000, CARD) };
        let place = grant(scene.dir.path(), claim, &known);
        has_a_slot(&UsageFile::open(&place.usage()).unwrap());
        place
    };
    let (measured, unknown) = (share("measured", 400 * MIB), share("unknown", 0));
    let sizes = || {
        [&scene.place, &measured, &unknown].map(|place| read(&place.limits()).unwrap().context_bytes / MIB)
    };
    scene.reserves(512 * MIB, 512 * MIB);
    scene.driver.shows(&[(own(), Some(300 * MIB))]);
    let _governor = scene.govern();
    wait_for("the size", || sizes() == [300, 400, 300]);
    // A tenant that presumes more, of a process that shows next to nothing, harms no other.
    scene.reserves(600 * MIB, 600 * MIB);
    scene.driver.shows(&[(own(), Some(20 * MIB))]);
    wait_for("the lower size", || sizes() == [20, 400, 300]);
    scene.looked();
    assert_eq!(sizes(), [20, 400, 300]);
}

/// A program that allocates as soon as it has its context: pages that no allocation fills are not the context's.
#[test]
fn context_of_a_published_size_keeps_it_beside_allocations() {
    let scene = Scene::new();
    let known = Limits { context_bytes: 400 * MIB, ..limits(ComputePolicy::Unlimited, 1_000_000, CARD) };
    scene.place.change(|_| Some(known)).unwrap();
    scene.reserves(500 * MIB, 400 * MIB);
    scene.driver.shows(&[(own(), Some(460 * MIB))]);
    let _governor = scene.govern();
    scene.looked();
    assert_eq!((scene.words(), scene.residue()), ([500 * MIB, 500 * MIB, 400 * MIB], 0));
    scene.reserves(400 * MIB, 400 * MIB);
    scene.driver.shows(&[(own(), Some(300 * MIB))]);
    scene.looked();
    assert_eq!((scene.words(), scene.residue()), ([300 * MIB, 300 * MIB, 300 * MIB], 0));
}

#[test]
fn forged_shared_slots_hide_no_more_than_the_limit() {
    let scene = Scene::new();
    let view = scene.usage.view().unwrap();
    for number in 1..20 {
        let forged = view.slot(number).unwrap();
        forged.owner().store(1 << 32 | 1, Ordering::SeqCst);
        if number % 2 == 0 {
            forged.kind().store(aliquot_abi::layout::slot::LENT, Ordering::SeqCst);
            forged.used().store(u64::MAX / 4, Ordering::SeqCst);
        }
    }
    scene.driver.shows(&[(own(), Some(LIMIT + MIB))]);
    let _governor = scene.govern();
    scene.looked();
    assert!(scene.residue() >= LIMIT, "one process shares with none: {}", scene.residue());
}

#[test]
fn presumption_of_a_call_under_way_stays() {
    let scene = Scene::new();
    scene.reserves(612 * MIB, 512 * MIB);
    scene.usage.view().unwrap().slot(0).unwrap().begun().store(1, Ordering::SeqCst);
    scene.driver.shows(&[(own(), Some(100 * MIB))]);
    let _governor = scene.govern();
    scene.looked();
    assert_eq!((scene.words(), scene.residue()), ([612 * MIB, 612 * MIB, 512 * MIB], 0));
    scene.usage.view().unwrap().slot(0).unwrap().ended().store(1, Ordering::SeqCst);
    scene.looked();
    assert_eq!(scene.words(), [100 * MIB, 100 * MIB, 0], "the context was not made");
}

#[test]
fn presumption_stays_if_the_driver_reports_no_bytes() {
    let scene = Scene::new();
    scene.reserves(612 * MIB, 512 * MIB);
    let _governor = scene.govern();
    for listed in [Vec::new(), vec![(own(), None)]] {
        scene.driver.shows(&listed);
        scene.looked();
        assert_eq!((scene.words(), scene.residue()), ([612 * MIB, 612 * MIB, 512 * MIB], 0), "{listed:?}");
    }
}

/// A process without the shim, started under the claim of a share.
struct Unshimmed(Child);

impl Unshimmed {
    fn under(place: &GrantPaths) -> Self {
        let mut command = Command::new("/bin/cat");
        command.env("ALIQUOT_GRANTS", place.dir.parent().unwrap()).stdin(Stdio::piped());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Unshimmed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn process_without_a_slot_is_charged_to_its_claim() {
    let scene = Scene::new();
    let other = grant(scene.dir.path(), "other", &limits(ComputePolicy::Unlimited, 1_000_000, CARD));
    has_a_slot(&UsageFile::open(&other.usage()).unwrap());
    let process = Unshimmed::under(&scene.place);
    scene.driver.shows(&[(process.0.id(), Some(700 * MIB))]);
    let _governor = scene.govern();
    scene.looked();
    assert_eq!((scene.residue(), crate::region::residue(&other.limits()).0), (700 * MIB, 0));
}

#[test]
fn process_seen_before_the_first_slot_is_charged_with_it() {
    let scene = Scene::new();
    let later = grant(scene.dir.path(), "later", &limits(ComputePolicy::Unlimited, 1_000_000, CARD));
    let process = Unshimmed::under(&later);
    scene.driver.shows(&[(process.0.id(), Some(700 * MIB))]);
    let _governor = scene.govern();
    scene.looked();
    scene.looked();
    assert_eq!(crate::region::residue(&later.limits()).0, 0, "nothing of the claim is admitted yet");
    has_a_slot(&UsageFile::open(&later.usage()).unwrap());
    wait_for("its residue", || crate::region::residue(&later.limits()).0 == 700 * MIB);
}

#[test]
fn tenants_words_take_no_byte_off_an_exceeded_limit() {
    let scene = Scene::new();
    scene.reserves(u64::MAX, u64::MAX);
    scene.driver.shows(&[(own(), Some(LIMIT + MIB)), (own(), Some(u64::MAX))]);
    let _governor = scene.govern();
    scene.looked();
    assert!(scene.residue() >= LIMIT);
    scene.reserves(u64::MAX, 0);
    scene.looked();
    assert!(scene.residue() >= LIMIT, "a slot that says it has everything");
}

#[test]
fn wanted_looks_come_sooner_than_others() {
    let scene = Scene::new();
    let _governor = scene.govern();
    scene.looked();
    let live = Live::open(&scene.place).unwrap();
    let mut waited = Duration::ZERO;
    for _ in 0..10 {
        let asked = monotonic();
        let word = scene.usage.view().unwrap().look_wanted();
        word.fetch_add(1, Ordering::SeqCst);
        wake(word);
        waited += wait_for("a wanted look", || live.looked_at().unwrap() >= asked);
    }
    assert!(waited < 10 * LOOK, "{waited:?}");
}
