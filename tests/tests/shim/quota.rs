//! Many threads of many processes at the limit, and processes that are killed at any instruction: not a byte
//! above the limit, no refusal of free memory, nothing lost.
//!
//! `ALIQUOT_OPERATIONS` and `ALIQUOT_KILLS` set how long this takes; by default it is short.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::{slot, usage};
use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_tests::local::wait_for;
use aliquot_tests::preload::{GrantFiles, Tenant, memory_limit, unpaged};
use aliquot_tests::seed::seed;
use aliquot_tests::simulated::{Bench, Link, StoodAside, said};
use aliquot_tests::talk::Talk;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

const PROCESSES: u64 = 16;
const THREADS: u64 = 64;
/// Most that one thread holds; all together the limit of the first test.
const KEEP: u64 = 16 << 20;

/// The processes pause so often.
const ROUNDS: u64 = 2;

/// Each of these tests has the machine for itself.
static ALONE: Mutex<()> = Mutex::new(());

struct Scene {
    _alone: MutexGuard<'static, ()>,
    bench: Bench,
    tenant: Tenant,
    files: GrantFiles,
    program: PathBuf,
}

/// Bytes of a context on the card of the quota tests, as the host publishes them: measured beside fifteen processes that move
/// memory it would come out too large.
const CONTEXT: u64 = 64 << 10;

/// A card on which nothing but allocations takes memory.
const BARE: &str = "context_bytes = 0\nmodule_bytes = 0\npage_bytes = 512\n";

/// A large card on which everything does, and graphs have memory at `graphs`.
fn full(graphs: &str) -> String {
    format!(
        "context_bytes = {CONTEXT}\nmodule_bytes = 0\npool_bytes = {UNIT}\ngraph_memory = \"{graphs}\"\npage_bytes = 512\n\
         [[card]]\nname = \"large\"\n\
         uuid = \"GPU-a11c0de0-51a0-4c4d-8000-000000000000\"\nmemory_bytes = {CARD}\nsms = 8\n"
    )
}

/// Operations of all threads together.
const OPERATIONS: u64 = 24_000;

/// What pools and graphs grow by.
const UNIT: u64 = 2 << 20;
const CARD: u64 = 1 << 40;

/// What a process mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mix {
    /// Families with a cost known from the request.
    Plain,
    /// Blocks of pools, graphs, contexts, modules and memory that others open as well.
    All,
    /// And memory that another interface to the card made, which is on the card before any process is
    /// charged.
    Elsewhere,
    /// Plain ones, and families that stay accounted for longer than on the card.
    Lasting,
}

impl Mix {
    /// Bytes that another interface made.
    fn elsewhere(self) -> u64 {
        if matches!(self, Self::Elsewhere) { PROCESSES * 8 * UNIT } else { 0 }
    }
}

/// The source of the context size of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The limits.
    ByTheHost,
    /// No source, as on a real card.
    Unpublished,
}

/// `None`: no C compiler here. What contexts of the node take, the limits say.
fn scene(program: &str, limit: u64, node: &str) -> Option<Scene> {
    scene_of(program, node, Told::ByTheHost, &|card| memory_limit(card, limit))
}

/// The same with other limits.
fn scene_of(program: &str, node: &str, told: Told, limits: &dyn Fn(&str) -> Limits) -> Option<Scene> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bench = Bench::new();
    bench.write("node.toml", node);
    let context = if told == Told::ByTheHost { bench.card().node().context_bytes } else { 0 };
    match bench.compile(program, Link::Direct) {
        Ok(program) => {
            let limits = limits(&bench.card().facts().uuid);
            let (tenant, files) = Tenant::with(&Limits { context_bytes: context, ..unpaged(limits) });
            Some(Scene { _alone: alone, bench, tenant, files, program })
        }
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            None
        }
    }
}

/// The number of operations or kills, if the environment sets it.
fn asked(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().unwrap())
}

impl Scene {
    /// What all slots say that have an owner, which is what the total says.
    fn in_slots(&self) -> u64 {
        let word = |number, word| self.files.counter(usage::SLOTS + number * usage::SLOT_BYTES + word);
        let taken = (0..usage::SLOT_COUNT).filter(|number| slot::pid_in(word(*number, slot::OWNER)) != 0);
        taken.map(|number| word(number, slot::USED)).sum()
    }

    /// Accounting and card agree to the byte, but for imported memory, which is on the card in any case, and
    /// for memory that may stay accounted longer, or of graphs that exist.
    fn agreed_with(&self, processes: &mut [Talk], mix: Mix) -> u64 {
        // The accounting of pools and graphs is as of each process's last query; a query updates it.
        for process in &mut *processes {
            process.say("info");
        }
        let mut sum =
            |what: &str| processes.iter_mut().map(|talk| talk.say(what).parse::<u64>().unwrap()).sum::<u64>();
        let (imported, longer, graphs) = (sum("had"), sum("let"), sum("graphs"));
        let total = self.files.counter(usage::TOTAL);
        let (card, books) = (self.bench.card().in_use(), total - imported + mix.elsewhere());
        assert!(
            card <= books && books - card <= longer + graphs,
            "{card} on the card, {books} accounted, {longer} given back, {graphs} of graphs"
        );
        assert!(longer == 0 || mix == Mix::Lasting);
        assert_eq!(self.in_slots(), total, "the slots and the total");
        total
    }

    /// All processes at once, until each has done its work, with pauses; allocations granted and refused.
    fn mixed(&self, limit: u64, mix: Mix, operations: u64) -> (u64, u64) {
        let operations = asked("ALIQUOT_OPERATIONS", operations).div_ceil(PROCESSES * THREADS * ROUNDS);
        let seed = seed();
        let start = |number: u64| {
            let numbers = [THREADS, operations, KEEP, seed + number].map(|number| number.to_string());
            let mix = format!("{mix:?}").to_lowercase();
            let mut command = self.tenant.command(&self.bench, &self.program);
            let mut process = Talk::start(command.args(numbers).arg(mix).arg(self.files.dir().join("lent")));
            assert_eq!(process.hear(), "ready");
            // A pool of which nothing is known is taken to grow by more.
            assert_eq!(process.say("pool"), "0");
            process
        };
        let mut processes: Vec<Talk> = (0..PROCESSES).map(start).collect();
        let begun = Instant::now();
        let mut sums = [0; 5];
        for _ in 0..ROUNDS {
            processes.iter_mut().for_each(|process| process.tell("go"));
            sums = [0; 5];
            for process in &mut processes {
                let told = process.hear();
                let numbers = told.split(' ').map(|number| number.parse::<u64>().unwrap());
                sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
                assert_eq!(sums[2], 0, "seed {seed}: a call failed with {told}");
            }
            assert!(self.agreed_with(&mut processes, mix) > PROCESSES * CONTEXT, "seed {seed}");
            let larger = processes[0].say("stacks 1088");
            self.agreed_with(&mut processes, mix);
            assert_eq!(processes[0].say("stacks 1024"), "0", "seed {seed}, after {larger}");
            self.agreed_with(&mut processes, mix);
        }
        let [granted, refused, _, opened, judged] = sums;
        assert!(
            (opened > 0 && judged <= refused) || mix == Mix::Plain,
            "seed {seed}: no process opened memory of another"
        );
        assert_eq!(processes[0].say("rest"), "0", "seed {seed}: what is free can be had, and no more");
        for process in &mut processes {
            assert_eq!(process.say("give"), "0", "seed {seed}");
        }
        let contexts = PROCESSES * self.bench.card().node().context_bytes;
        let lasting = self.agreed_with(&mut processes, mix) - contexts;
        assert!(lasting == 0 || mix == Mix::Lasting, "seed {seed}: {lasting} bytes have no holder");
        println!("{operations} operations a thread and round in {:.1} s", begun.elapsed().as_secs_f64());
        let (driver, books) = (self.bench.card().high_water(), self.files.counter(usage::HIGH_WATER));
        println!(
            "granted {granted}, refused {refused}, {judged} looked into, opened {opened}, at most {driver} of {limit} on the card, {books} accounted, \
             {lasting} at the end"
        );
        let elsewhere = mix.elsewhere();
        assert!(
            driver <= limit + elsewhere && driver <= books + elsewhere && books <= limit,
            "seed {seed}: {driver} {books}"
        );
        processes.into_iter().for_each(Talk::end);
        (granted, refused)
    }

    /// What was accounted reached the limit to a tenth, and the card held most of it. The rest is footprints of graphs between two
    /// launches, whose number at one instant is the schedule's.
    fn came_near(&self, limit: u64) {
        let (driver, books) = (self.bench.card().high_water(), self.files.counter(usage::HIGH_WATER));
        assert!(books > limit / 10 * 9 && driver > limit / 4 * 3, "{driver} on the card, {books} accounted");
    }
}

#[test]
fn process_within_its_part_is_never_refused() {
    let limit = PROCESSES * THREADS * KEEP;
    let Some(scene) = scene("shim_quota", limit, BARE) else { return };
    let (granted, refused) = scene.mixed(limit, Mix::Plain, OPERATIONS);
    assert_eq!(refused, 0);
    assert!(granted > 1_000);
}

/// What a thread may take of the card at once, so that with as much for each a refusal is a false one.
fn most_of_a_thread() -> u64 {
    // Its part, in blocks of its process's pool or not; the room of a whole part which that pool keeps; what its graphs keep; what
    // the pool of its own keeps, which one thread in four has.
    let held_and_kept = 3 * KEEP + KEEP / 4;
    // A call under way has reserved the worst: a quarter of a part, in whole units.
    let under_way = KEEP / 4 + UNIT;
    // Of 24 contexts, beside what is in them.
    let contexts = 24 * CONTEXT;
    held_and_kept + under_way + contexts
}

fn room_for_everything(graphs: &str, operations: u64) {
    // Each process has a context, and the last unit of its pool.
    let limit = PROCESSES * (THREADS * most_of_a_thread() + CONTEXT + UNIT);
    let Some(scene) = scene("shim_quota", limit, &full(graphs)) else { return };
    let (granted, refused) = scene.mixed(limit, Mix::Elsewhere, operations);
    assert_eq!(refused, 0);
    assert!(granted > 1_000);
}

#[test]
fn allocations_with_room_for_all_are_never_refused() {
    room_for_everything("launch", OPERATIONS);
}

fn at_the_limit(graphs: &str, told: Told, mix: Mix, operations: u64) {
    let limit = PROCESSES * THREADS * KEEP / 4;
    let limits = |card: &str| memory_limit(card, limit);
    let Some(scene) = scene_of("shim_quota", &full(graphs), told, &limits) else { return };
    let (granted, refused) = scene.mixed(limit, mix, operations);
    assert!(granted.min(refused) > operations / 12, "{granted} granted, {refused} refused");
    scene.came_near(limit);
}

#[test]
fn at_the_limit_not_a_byte_is_had_above_it() {
    at_the_limit("launch", Told::ByTheHost, Mix::All, OPERATIONS);
    at_the_limit("launch", Told::Unpublished, Mix::Elsewhere, OPERATIONS);
}

#[test]
fn lasting_charges_are_never_short_and_end_with_their_exporter() {
    let limit = PROCESSES * THREADS * KEEP / 4;
    let Some(scene) = scene("shim_quota", limit, &full("launch")) else { return };
    let (granted, refused) = scene.mixed(limit, Mix::Lasting, OPERATIONS);
    assert!(granted > 1_000 && refused > 1_000);
    scene.came_near(limit);
    // No process is left that made any of it; the next query finds that.
    let lent = scene.files.dir().join("lent");
    let words = ["1", "1", "1", "1", "plain"];
    let mut last = Talk::start(scene.tenant.command(&scene.bench, &scene.program).args(words).arg(lent));
    assert_eq!(last.hear(), "ready");
    wait_for("memory without a holder", || {
        let _free = last.say("info");
        scene.bench.card().reap();
        scene.files.counter(usage::TOTAL) == CONTEXT && scene.bench.card().in_use() == CONTEXT
    });
}

#[test]
fn with_drivers_that_back_graphs_otherwise_it_is_the_same() {
    for graphs in ["instantiation", "idle"] {
        at_the_limit(graphs, Told::ByTheHost, Mix::All, OPERATIONS / 4);
        room_for_everything(graphs, OPERATIONS / 8);
    }
}

/// What of a scene in which processes are killed changes with the family.
struct Family {
    name: &'static str,
    node: &'static str,
    policy: ComputePolicy,
    /// One kill in so many of the requested ones: where thousands of steps lead to a place, fewer are
    /// possible.
    part: u64,
}

const PLAIN: Family = Family { name: "plain", node: BARE, policy: ComputePolicy::Unlimited, part: 1 };
/// Bytes of a context, where they count.
const OVERHEAD: u64 = 4 << 20;
/// Bytes that the querying sibling exports, where it does.
const LENT: u64 = 4096;
/// A card on which contexts and modules take memory.
const OVERHEADS: &str = "context_bytes = 4194304\nmodule_bytes = 2097152\npage_bytes = 512\n";

/// Kills, and counts the places; free memory is queried after each.
fn kill(mode: &str, kills: u64, family: &Family) {
    let free = 64 << 20;
    // One context is the asking sibling's, to the end.
    let limit = free
        + match family.name {
            "lent" => LENT,
            _ if family.node == OVERHEADS => OVERHEAD,
            _ => 0,
        };
    let limits = |card: &str| {
        let half = Limits {
            share_ppm: 500_000,
            granted_ppm: 500_000,
            own_ppm: 500_000,
            ..memory_limit(card, limit)
        };
        Limits { policy: family.policy, ..half }
    };
    let Some(scene) = scene_of("shim_kill", family.node, Told::ByTheHost, &limits) else { return };
    let kills = (kills / family.part).max(1);
    let numbers = [kills, seed(), free].map(|number| number.to_string());
    let mut command = scene.tenant.command(&scene.bench, &scene.program);
    let output = command.arg(mode).args(numbers).arg(family.name).output().unwrap();
    if String::from_utf8_lossy(&output.stdout).contains("it may not be traced") {
        return println!("stood aside: {}", String::from_utf8_lossy(&output.stdout));
    }
    let told = said(&output);
    let numbers: Vec<u64> = told.split_whitespace().map(|number| number.parse().unwrap()).collect();
    println!(
        "{mode}, {}: {} kills, {} places, all free again after {} us at most, {} times later than a tenth of a second",
        family.name, numbers[0], numbers[1], numbers[2], numbers[3]
    );
    assert_eq!(numbers[0], kills);
    assert!(mode == "random" || numbers[1] > 0);
    scene.bench.card().reap();
    assert_eq!(scene.bench.card().in_use(), 0);
    assert!(scene.bench.card().high_water() <= limit && scene.files.counter(usage::HIGH_WATER) <= limit);
    // A first write to a page of the usage file may wait for other writes of the machine to its disk.
    assert!(numbers[3] <= (kills / 3_000).max(1), "{} late", numbers[3]);
    // Else some places were not reached.
    assert!(mode != "steps" || family.name != "plain" || numbers[1] <= kills, "{} places", numbers[1]);
}

#[test]
fn killed_at_random_a_process_loses_nothing_for_the_others() {
    kill("random", asked("ALIQUOT_KILLS", 300), &PLAIN);
}

#[test]
fn kill_at_any_shim_instruction_costs_other_processes_nothing() {
    // There are some 1,100 of them in an allocation and a free.
    kill("steps", asked("ALIQUOT_KILLS", 1_600), &PLAIN);
}

#[test]
fn kill_in_any_call_family_costs_other_processes_nothing() {
    let policy = ComputePolicy::Unlimited;
    for family in [
        Family { name: "pool", node: BARE, policy, part: 32 },
        Family { name: "physical", node: BARE, policy, part: 8 },
        Family { name: "pitched", node: BARE, policy, part: 32 },
        Family { name: "managed", node: BARE, policy, part: 32 },
        Family { name: "array", node: BARE, policy, part: 32 },
        Family { name: "mipmapped", node: BARE, policy, part: 32 },
        Family { name: "graph", node: BARE, policy, part: 32 },
        Family { name: "context", node: OVERHEADS, policy, part: 16 },
        Family { name: "module", node: OVERHEADS, policy, part: 32 },
        Family { name: "lent", node: BARE, policy, part: 16 },
        Family { name: "launch", node: BARE, policy: ComputePolicy::Cap, part: 16 },
    ] {
        kill("steps", asked("ALIQUOT_KILLS", 400), &family);
    }
}

#[test]
fn kill_in_the_first_allocation_costs_other_processes_nothing() {
    kill("first", asked("ALIQUOT_KILLS", 320) / 40, &PLAIN);
}
