//! Work that is hard to bill is billed: processes that end at once, captures that never end, many contexts, functions of two
//! lengths. Judged by the card's own time against the clock; a machine that is busy only makes less of it.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::usage;
use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_sim_device::{Card, monotonic_nanos};
use aliquot_tests::preload::{Tenant, unlimited};
use aliquot_tests::simulated::{Bench, Link, said};
use std::path::PathBuf;
use std::process::Command;

const MILLI: u64 = 1_000_000;
/// The cap of all scenes, in percent.
const CAP: u64 = 10;

struct Scene {
    bench: Bench,
    program: PathBuf,
}

/// Card time and clock of a stretch, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Spent {
    card: u64,
    clock: u64,
}

/// `None` where there is no compiler, and the test says so.
fn scene() -> Option<Scene> {
    let bench = Bench::new();
    match bench.compile("shim_bills", Link::Direct) {
        Ok(program) => Some(Scene { bench, program }),
        Err(why) => {
            println!("stood aside: {why}");
            None
        }
    }
}

fn cap(card: &Card) -> Limits {
    let ppm = u32::try_from(CAP * 10_000).unwrap();
    Limits { share_ppm: ppm, granted_ppm: ppm, policy: ComputePolicy::Cap, ..unlimited(&card.facts().uuid) }
}

impl Spent {
    /// Whether it is the cap at most, and `once` nanoseconds that may run before anything is known, and 3 points.
    fn is_within_cap(self, once: u64) -> bool {
        self.card <= self.clock / 100 * (CAP + 3) + once
    }
}

impl Scene {
    fn play(&self, command: Command, name: &str, nanos: u64, millis: u64) {
        let _kernels = self.count(command, name, nanos, millis);
    }

    /// What the scene counts: its kernels, or what it says.
    fn count(&self, mut command: Command, name: &str, nanos: u64, millis: u64) -> u64 {
        let words = [nanos.to_string(), millis.to_string()];
        let said = said(&command.arg(name).args(words).output().unwrap());
        said.strip_prefix("ok ").unwrap().trim().parse().unwrap()
    }

    /// What the card does while `work` goes on under the cap, and after it for as long as debt is paid back.
    fn capped(&self, work: impl Fn(&dyn Fn() -> Command)) -> Spent {
        let card = self.bench.card();
        let (tenant, _files) = Tenant::with(&cap(&card));
        self.measured(|| work(&|| tenant.command(&self.bench, &self.program)))
    }

    fn measured(&self, work: impl FnOnce()) -> Spent {
        let card = self.bench.card();
        let (begun, before) = (monotonic_nanos(), card.busy_nanos());
        work();
        Spent { card: card.busy_nanos() - before, clock: monotonic_nanos() - begun }
    }

    /// One process after the other, for so long; each launches one kernel.
    fn in_turns(&self, command: &dyn Fn() -> Command, name: &str, nanos: u64, millis: u64) {
        let begun = monotonic_nanos();
        while monotonic_nanos() - begun < millis * MILLI {
            self.play(command(), name, nanos, 0);
        }
    }
}

#[test]
fn one_kernel_processes_are_held_to_the_share_together() {
    let Some(scene) = scene() else { return };
    let cases = [
        ("once", 200),
        ("once", 20),
        ("once_by_event", 50),
        ("once_by_asking", 50),
        ("once_in_silence", 100),
    ];
    for (name, kernel) in cases {
        let spent = scene.capped(|command| scene.in_turns(command, name, kernel * MILLI, 2_500));
        println!("{name} {kernel} ms: {spent:?}");
        assert!(spent.is_within_cap(kernel * MILLI), "{name} {kernel} ms: {spent:?}");
    }
}

#[test]
fn endless_capture_and_a_tenth_context_do_not_evade_the_share() {
    let Some(scene) = scene() else { return };
    for (name, kernel) in [("captured", 5), ("capture_lost", 5), ("many_contexts", 50)] {
        let spent = scene.capped(|command| scene.play(command(), name, kernel * MILLI, 2_500));
        println!("{name} {kernel} ms: {spent:?}");
        assert!(spent.is_within_cap(6 * kernel * MILLI), "{name} {kernel} ms: {spent:?}");
    }
}

#[test]
fn a_function_of_two_lengths_is_billed_what_it_took() {
    let Some(scene) = scene() else { return };
    for (name, kernel) in [("grows", 5), ("two_lengths", 5), ("two_lengths", 1)] {
        let spent = scene.capped(|command| scene.play(command(), name, kernel * MILLI, 3_000));
        println!("{name} {kernel} ms: {spent:?}");
        assert!(spent.is_within_cap(20 * kernel * MILLI), "{name} {kernel} ms: {spent:?}");
    }
}

/// Plays a scene in which everything is written down, and so nothing is run: nothing is charged for it.
fn costs_nothing(name: &str) {
    let Some(scene) = scene() else { return };
    let card = scene.bench.card();
    let (tenant, files) = Tenant::with(&cap(&card));
    scene.play(tenant.command(&scene.bench, &scene.program), name, 5 * MILLI, 0);
    let charged =
        [usage::CREDIT_NANOS, usage::DEVICE_NANOS, usage::REFILLED_AT].map(|word| files.counter(word));
    assert_eq!((charged, card.busy_nanos()), ([0; 3], 0), "credit, device time, refilled; what the card did");
}

#[test]
fn a_stream_that_joined_a_capture_and_ends_does_not_end_it() {
    costs_nothing("capture_joined");
}

#[test]
fn capture_in_the_default_thread_stream_costs_nothing() {
    costs_nothing("capture_of_thread");
}

#[test]
fn capture_into_an_existing_graph_costs_nothing() {
    costs_nothing("capture_to_graph");
}

#[test]
fn a_launch_on_several_cards_is_charged_to_each_of_them() {
    let Some(scene) = scene() else { return };
    let device = scene.bench.device();
    let tenant = Tenant::new();
    let name_of = |card: &Card| format!("of-card-{}", card.index());
    let grants: Vec<_> = device.cards().iter().map(|card| tenant.grant(&name_of(card), &cap(card))).collect();
    scene.play(tenant.command(&scene.bench, &scene.program), "both_cards", 5 * MILLI, 0);
    for files in &grants {
        assert_ne!(files.counter(usage::REFILLED_AT), 0, "{:?}", files.dir());
        let billed = files.counter(usage::DEVICE_NANOS);
        assert!(billed < 1_000 * MILLI, "{billed} ns");
    }
}

/// What is known to take 100 ms costs nothing where the driver refuses it, on neither card, whichever card's context is current.
#[test]
fn launches_refused_on_several_cards_are_billed_to_none() {
    const KERNEL: u64 = 100 * MILLI;
    let Some(scene) = scene() else { return };
    let device = scene.bench.device();
    let tenant = Tenant::new();
    let name_of = |card: &Card| format!("of-card-{}", card.index());
    let grants: Vec<_> = device.cards().iter().map(|card| tenant.grant(&name_of(card), &cap(card))).collect();
    scene.play(tenant.command(&scene.bench, &scene.program), "refused_on_both", KERNEL, 0);
    for (card, files) in device.cards().iter().zip(&grants) {
        let (billed, busy) = (files.counter(usage::DEVICE_NANOS), card.busy_nanos());
        println!("{billed} ns billed, of {busy} ns that the card worked");
        assert!(busy >= 2 * KERNEL, "{busy} ns");
        assert!(billed <= busy + KERNEL, "{billed} ns billed, of {busy} ns that the card worked");
    }
}

/// A process that queried a capture after its loss would be killed by the driver.
#[test]
fn a_capture_ends_with_the_context_of_its_stream() {
    let Some(scene) = scene() else { return };
    scene.bench.write("faults.toml", "[[fault]]\nsymbol = \"cuStreamIsCapturing\"\naction = \"kill\"\n");
    let (tenant, _files) = Tenant::with(&cap(&scene.bench.card()));
    scene.play(tenant.command(&scene.bench, &scene.program), "capture_lost_with_context", MILLI, 0);
}

/// A driver that will not say when markers passed has no more of them than a context ever has at once.
#[test]
fn markers_of_which_the_driver_says_nothing_are_destroyed() {
    let Some(scene) = scene() else { return };
    scene
        .bench
        .write("faults.toml", "[[fault]]\nsymbol = \"cuEventElapsedTime\"\naction = { error = 400 }\n");
    let (tenant, _files) = Tenant::with(&cap(&scene.bench.card()));
    let events = scene.count(tenant.command(&scene.bench, &scene.program), "events", MILLI, 0);
    println!("{events} events");
    assert!(events <= 8, "{events} events are left");
}

/// Work that no marker is behind is billed by the clock until it is done, and no longer: where each launch waits for its turn, none
/// comes by that could show it. The program gives up after 90 s; such launches waited for half an hour each.
#[test]
fn launches_without_markers_do_not_stop_the_program() {
    let Some(scene) = scene() else { return };
    let spent = scene.capped(|command| scene.play(command(), "contexts_at_work", 10 * MILLI, 0));
    println!("contexts at work: {spent:?}");
    // A thread that is in the driver for so long while it has the markers is not waited for.
    scene.bench.write(
        "faults.toml",
        "[[fault]]\nsymbol = \"cuEventRecord\"\naction = { slow_nanos = 40_000_000 }\n",
    );
    let spent = scene.capped(|command| scene.play(command(), "unknown_by_threads", MILLI, 0));
    println!("unknown by threads: {spent:?}");
}

/// What the driver refuses is no work, also where no marker could be behind it: the clock billed 20 s of the card for each, and the
/// next one waited until they were paid back. The program gives up after 90 s.
#[test]
fn launch_refused_without_context_is_not_billed() {
    let Some(scene) = scene() else { return };
    let card = scene.bench.card();
    let (tenant, files) = Tenant::with(&cap(&card));
    scene.play(tenant.command(&scene.bench, &scene.program), "refused", MILLI, 0);
    let billed = files.counter(usage::DEVICE_NANOS);
    println!("{billed} ns billed, of {} ns that the card worked", card.busy_nanos());
    assert!(billed < 1_000 * MILLI, "{billed} ns");
}

/// A driver that uploads a graph in two seconds: that is no device time, and is not billed.
#[test]
fn the_first_launch_of_a_graph_is_billed_what_the_card_took() {
    let Some(scene) = scene() else { return };
    scene.bench.write("node.toml", "graph_upload_nanos = 2_000_000_000\n");
    let card = scene.bench.card();
    let (tenant, files) = Tenant::with(&cap(&card));
    scene.play(tenant.command(&scene.bench, &scene.program), "graphs", 2 * MILLI, 0);
    let (billed, busy) = (files.counter(usage::DEVICE_NANOS), card.busy_nanos());
    println!("{billed} ns billed, of {busy} ns that the card worked");
    assert!(busy >= 80 * MILLI, "twenty launches each: {busy} ns");
    assert!((busy / 100 * 98..busy + 1_000 * MILLI).contains(&billed), "{billed} of {busy} ns");
}

/// Without the shim the same scenes fill the card.
#[test]
fn without_the_shim_the_same_checks_fail() {
    let Some(scene) = scene() else { return };
    let command = || scene.bench.command(&scene.program);
    // A program that hardly has a processor fills no card: one of three tries is enough.
    let fills = |name: &str, play: &dyn Fn()| {
        let mut tries = (0..3).map(|_| scene.measured(play));
        let full = tries.any(|spent| {
            println!("{name}: {spent:?}");
            !spent.is_within_cap(200 * MILLI)
        });
        assert!(full, "{name}");
    };
    fills("once", &|| scene.in_turns(&command, "once", 200 * MILLI, 2_500));
    for name in ["captured", "many_contexts", "two_lengths"] {
        fills(name, &|| scene.play(command(), name, 5 * MILLI, 2_000));
    }
}
