//! Physical memory stays accounted as long as it is on the card, whatever its handle names or imports it.

mod exports;
mod objects;
mod releases;

use aliquot_abi::layout::{slot, usage};
use aliquot_abi::limits::Limits;
use aliquot_abi::refusal::{Refusal, RefusedKind};
use aliquot_driver::region::{ReapOutcome, USAGE, UsageFile};
use aliquot_enforce::units::Ppm;
use aliquot_sim_device::Card;
use aliquot_tests::local::wait_for;
use aliquot_tests::preload::{GrantFiles, Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::time::Duration;

const SIZE: u64 = 8 << 20;
const LIMIT: u64 = 4 * SIZE;
/// What a small allocation takes of a card where nothing else is.
const PAGE: u64 = 2 << 20;

struct Scene {
    program: Talk,
    files: GrantFiles,
    card: Card,
    bench: Bench,
    tenant: Tenant,
    path: PathBuf,
}

impl Scene {
    /// `None`: no C compiler here.
    fn new() -> Option<Self> {
        Self::with_faults("")
    }

    fn with_faults(faults: &str) -> Option<Self> {
        Self::with_contexts(faults, 0)
    }

    /// Where each context takes so much.
    fn with_contexts(faults: &str, context_bytes: u64) -> Option<Self> {
        let bench = Bench::new();
        bench.write("faults.toml", faults);
        bench.write("node.toml", &format!("context_bytes = {context_bytes}\nmodule_bytes = 0\n"));
        let path = match bench.compile("shim_physical", Link::Direct) {
            Ok(path) => path,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let card = bench.card();
        let limits = Limits { context_bytes, ..memory_limit(&card.facts().uuid, LIMIT) };
        let (tenant, files) = Tenant::with(&limits);
        let mut program = Talk::start(&mut tenant.command(&bench, &path));
        // Its context is there: the next process knows how large contexts are, and presumes no more.
        program.say("info");
        Some(Self { program, files, card, bench, tenant, path })
    }

    /// Says each line, which does well.
    #[track_caller]
    fn say(&mut self, lines: &[&str]) {
        for line in lines {
            assert_eq!(self.program.say(line), "0", "{line}");
        }
    }

    /// A handle of so many bytes that may be exported.
    #[track_caller]
    fn create(&mut self, handle: u32) {
        self.say(&[&format!("create {handle} {SIZE} 1")]);
    }

    #[track_caller]
    fn map(&mut self, range: u32, handle: u32) {
        self.say(&[&format!("map {range} {handle} {SIZE}")]);
    }

    /// Another process of the same container.
    fn sibling(&self) -> Talk {
        Talk::start(&mut self.tenant.command(&self.bench, &self.path))
    }

    /// Queries free memory, which updates the accounting; the bytes accounted, and those on the card.
    fn books_and_card(&mut self) -> (u64, u64) {
        let told = self.program.say("info");
        let books = self.files.counter(usage::TOTAL);
        assert_eq!(told, format!("0 {}", LIMIT - books));
        (books, self.card.in_use())
    }

    /// Both have so many times the size.
    #[track_caller]
    fn both(&mut self, times: u64) {
        assert_eq!(self.books_and_card(), (times * SIZE, times * SIZE));
    }
}

#[test]
fn reused_handle_names_its_present_object() {
    let Some(mut scene) = Scene::new() else { return };
    scene.create(1);
    scene.say(&["release 1"]);
    scene.create(2);
    scene.say(&["same 1 2"]);
    scene.map(1, 2);
    scene.both(1);
    scene.say(&["release 2"]);
    scene.both(1);
    // Still mapped: the value is not free.
    scene.create(3);
    assert_eq!(scene.program.say("same 2 3"), "1");
    scene.both(2);
    scene.say(&["unmap 1"]);
    scene.both(1);
    assert_eq!(scene.program.say("release 2"), "1");
    scene.create(4);
    scene.say(&["same 2 4", "release 3", "release 4"]);
    scene.both(0);
    scene.program.end();
}

#[test]
fn every_reference_to_a_handle_counts() {
    let Some(mut scene) = Scene::new() else { return };
    scene.create(1);
    scene.map(1, 1);
    scene.say(&["retain 2 1", "retain 3 1", "same 1 2", "same 1 3", "release 1", "release 2", "unmap 1"]);
    scene.both(1);
    scene.map(2, 3);
    scene.say(&["release 3"]);
    scene.both(1);
    assert_eq!(scene.program.say("release 3"), "1", "a reference that is not there");
    scene.both(1);
    scene.say(&["retain 4 2", "unmap 2"]);
    scene.both(1);
    scene.say(&["release 4"]);
    scene.both(0);
    scene.program.end();
}

#[test]
fn memory_released_while_mapped_and_reimported_is_charged_once() {
    let Some(mut scene) = Scene::new() else { return };
    scene.create(1);
    scene.map(1, 1);
    assert!(scene.program.say("export 1 1").starts_with("0 "));
    scene.say(&["release 1", "import 2 1", "same 1 2", "close 1", "unmap 1"]);
    scene.both(1);
    scene.map(2, 2);
    scene.say(&["release 2"]);
    scene.both(1);
    scene.say(&["unmap 2"]);
    scene.both(0);
    scene.program.end();
}

#[test]
fn exported_memory_is_charged_until_the_card_gives_it_back() {
    let Some(mut scene) = Scene::new() else { return };
    // No other process has it when it is released: the release detects that.
    scene.create(1);
    assert!(scene.program.say("export 1 1").starts_with("0 "));
    scene.say(&["close 1", "release 1"]);
    scene.both(0);
    // The descriptor keeps it, and is imported again.
    scene.create(1);
    assert!(scene.program.say("export 1 1").starts_with("0 "));
    scene.say(&["release 1"]);
    scene.both(1);
    scene.create(2);
    scene.say(&["release 2"]);
    scene.both(1);
    scene.say(&["import 3 1", "close 1", "release 3"]);
    scene.both(0);
    scene.program.end();
}

/// What was in the way of each refused call, the newest first: its kind, the bytes it wanted, and those that were reserved.
#[test]
fn refused_calls_are_recorded_with_what_they_wanted() {
    let Some(mut scene) = Scene::new() else { return };
    scene.create(1);
    assert_eq!(scene.program.say(&format!("create 2 {LIMIT} 1")), "2");
    let mut other = scene.sibling();
    assert_eq!(other.say(&format!("plain 1 {}", 3 * SIZE + 1)), "2");
    let seen = scene.files.refusals();
    let [plain, physical] = seen.as_slice() else { panic!("{seen:?}") };
    let pids = (scene.program.pid(), other.pid());
    let of = |call, pid, at_nanos| Refusal {
        call,
        at_nanos,
        reserved_bytes: SIZE,
        residue_bytes: 0,
        limit_bytes: LIMIT,
        pid,
    };
    let expected = of(RefusedKind::Physical.over_limit(LIMIT), pids.0, physical.refusal.at_nanos);
    assert_eq!(physical.refusal, expected);
    // Memory with an address is charged by whole pages.
    let expected = of(RefusedKind::Memory.over_limit(3 * SIZE + PAGE), pids.1, plain.refusal.at_nanos);
    assert_eq!(plain.refusal, expected);
    assert!(plain.ago <= physical.ago && physical.ago < Duration::from_secs(600));
    assert_eq!(scene.files.counter(usage::DENIED), 2);
    other.end();
    scene.program.end();
}
