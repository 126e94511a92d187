//! IPC-shared memory between a process with an earlier library, without a count of holds in its owner words,
//! and one with the present library. The memory is accounted as long as it is on the card, whichever exports
//! it and whichever ends first.
//!
//! The earlier library is played by its protocol, word by word: a program without any library makes its
//! driver calls and has its locks. It knows its slot by the whole owner word as it read it.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::{slot, usage};
use aliquot_sim_device::Card;
use aliquot_tests::local::wait_for;
use aliquot_tests::preload::{GrantFiles, Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

const SIZE: u64 = 8 << 20;
const LIMIT: u64 = 4 * SIZE;

struct Scene {
    bench: Bench,
    card: Card,
    tenant: Tenant,
    files: GrantFiles,
    path: PathBuf,
}

/// A process with the library of now.
struct Present(Talk);

/// A process with an earlier one.
struct Earlier<'a> {
    talk: Talk,
    files: &'a GrantFiles,
}

/// A slot of IPC-shared memory, as an earlier library knows it.
#[derive(Clone, Copy)]
struct Lent {
    at: usize,
    number: u32,
    owner: u64,
}

impl Scene {
    /// `None`: no C compiler here.
    fn new() -> Option<Self> {
        let bench = Bench::new();
        bench.write("node.toml", "context_bytes = 0\nmodule_bytes = 0\n");
        let path = match bench.compile("shim_ipc", Link::Direct) {
            Ok(path) => path,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let card = bench.card();
        let (tenant, files) = Tenant::with(&memory_limit(&card.facts().uuid, LIMIT));
        Some(Self { bench, card, tenant, files, path })
    }

    /// One of now, which has a slot.
    fn present(&self) -> Present {
        let mut process = Present(Talk::start(&mut self.tenant.command(&self.bench, &self.path)));
        process.say(&["alloc 14 512", "free 14"]);
        process
    }

    fn earlier(&self) -> Earlier<'_> {
        let mut talk = Talk::start(&mut self.bench.command(&self.path));
        let told = talk.say(&format!("usage 0 {}", self.files.dir().join("usage").display()));
        assert_eq!(told, "0");
        let mut earlier = Earlier { talk, files: &self.files };
        // As its own slot's, from its first allocation on.
        earlier.say(&format!("share {}", usage::SLOTS + usage::SLOT_BYTES * (usage::SLOT_COUNT - 1)));
        earlier
    }

    /// Accounting and card have so many of `SIZE`.
    #[track_caller]
    fn both(&self, count: u64) {
        let found = (self.files.counter(usage::TOTAL), self.card.in_use());
        assert_eq!(found, (count * SIZE, count * SIZE), "accounting, card");
    }

    /// The same after `looker` has found the exited processes.
    #[track_caller]
    fn soon(&self, looker: &mut Present, count: u64) {
        let free = format!("0 {}", LIMIT - count * SIZE);
        wait_for("exited processes to be found", || looker.0.say("info") == free);
        self.card.reap();
        self.both(count);
    }
}

impl Present {
    #[track_caller]
    fn say(&mut self, lines: &[&str]) {
        for line in lines {
            assert_eq!(self.0.say(line), "0", "{line}");
        }
    }

    #[track_caller]
    fn lend(&mut self, made: u32) -> String {
        self.say(&[&format!("alloc {made} {SIZE}")]);
        handle(&self.0.say(&format!("export {made}")))
    }

    #[track_caller]
    fn open(&mut self, opened: u32, handle: &str) {
        self.say(&[&format!("open {opened} {handle}")]);
    }
}

fn handle(told: &str) -> String {
    let handle = told.strip_prefix("0 ").unwrap_or_default();
    assert!(!handle.is_empty(), "{told}");
    handle.to_owned()
}

/// What the slot of this handle says it is of.
fn tag(handle: &str) -> u64 {
    let bytes = (0..64).map(|at| u64::from_str_radix(&handle[2 * at..2 * at + 2], 16).unwrap());
    let sum = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ byte).wrapping_mul(0x0100_0000_01b3));
    sum.min(slot::CROWD - 1)
}

impl Lent {
    fn lock(&self) -> u64 {
        slot::lock_of_lent(self.number, self.owner, 0)
    }
}

impl Earlier<'_> {
    #[track_caller]
    fn say(&mut self, line: &str) {
        assert_eq!(self.talk.say(line), "0", "{line}");
    }

    fn slots() -> impl Iterator<Item = (u32, usize)> {
        (0_u32..).zip((0..usage::SLOT_COUNT).map(|number| usage::SLOTS + number * usage::SLOT_BYTES))
    }

    /// It allocates and exports: a slot of its own, locked before any other process sees it.
    fn lend(&mut self, made: u32) -> (Lent, String) {
        self.say(&format!("alloc {made} {SIZE}"));
        let handle = handle(&self.talk.say(&format!("export {made}")));
        let word = |at: usize| self.files.counter(at);
        let (number, at) = Self::slots().find(|(_, at)| slot::pid_in(word(*at)) == 0).unwrap();
        let pid = self.talk.pid();
        let owner = ((word(at + slot::OWNER) >> 32) + 1) << 32 | u64::from(pid);
        let lent = Lent { at, number, owner };
        self.say(&format!("share {}", lent.lock()));
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let start = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
        let namespace = std::fs::metadata("/proc/self/ns/pid").unwrap().ino();
        let words = [
            (slot::START_TIME, start),
            (slot::PID_NAMESPACE, namespace),
            (slot::INSIDE, u64::from(slot::LENT) << 32),
            (slot::USED, SIZE),
            (slot::TAG, tag(&handle)),
            (slot::SIGN, 0),
            (slot::OWED, 0),
            (slot::OWNER, owner),
        ];
        words.into_iter().for_each(|(word, value)| self.files.set_counter(at + word, value));
        self.files.set_counter(usage::TOTAL, self.files.counter(usage::TOTAL) + SIZE);
        (lent, handle)
    }

    /// The slot, if it is still what was seen.
    fn is_known(&self, lent: Lent) -> bool {
        self.files.counter(lent.at + slot::OWNER) == lent.owner
    }

    /// It has the lock no longer; with the last the slot is emptied, if its maker let go.
    fn drop_hold(&mut self, lent: Lent) {
        let kind = self.files.counter(lent.at + slot::INSIDE) >> 32;
        let is_last = self.talk.say(&format!("held {}", lent.lock())) == "0";
        if self.is_known(lent) && kind == u64::from(slot::LET_GO) && is_last {
            let used = self.files.counter(lent.at + slot::USED);
            self.files.set_counter(lent.at + slot::USED, 0);
            self.files.set_counter(usage::TOTAL, self.files.counter(usage::TOTAL) - used);
            self.files.set_counter(lent.at + slot::OWNER, slot::freed(lent.owner));
        }
        self.say(&format!("drop {}", lent.lock()));
    }

    /// The maker's free.
    fn free(&mut self, made: u32, lent: Lent) {
        self.say(&format!("free {made}"));
        if self.is_known(lent) {
            self.files.set_counter(lent.at + slot::INSIDE, u64::from(slot::LET_GO) << 32);
        }
        self.drop_hold(lent);
    }

    fn open(&mut self, opened: u32, handle: &str) -> Lent {
        let word = |at: usize| self.files.counter(at);
        let is_it = |at: usize| word(at) & 0xffff_ffff != 0 && word(at + slot::TAG) == tag(handle);
        let (number, at) = Self::slots().find(|(_, at)| is_it(*at)).unwrap();
        let lent = Lent { at, number, owner: word(at + slot::OWNER) };
        self.say(&format!("share {}", lent.lock()));
        assert!(self.is_known(lent));
        self.say(&format!("open {opened} {handle}"));
        lent
    }

    fn close(&mut self, opened: u32, lent: Lent) {
        self.say(&format!("close {opened}"));
        self.drop_hold(lent);
    }
}

#[test]
fn memory_of_an_earlier_exporter_is_charged_until_all_released() {
    let Some(scene) = Scene::new() else { return };
    let (mut maker, mut one, mut other) = (scene.earlier(), scene.present(), scene.present());
    // Its free, then the last close.
    let (lent, handle) = maker.lend(0);
    scene.both(1);
    one.open(0, &handle);
    one.open(1, &handle);
    scene.both(1);
    maker.free(0, lent);
    scene.both(1);
    assert_eq!(one.0.say(&format!("alloc 15 {}", LIMIT - SIZE + 1)), "2", "it is still there");
    one.say(&["close 0"]);
    scene.both(1);
    one.say(&["close 1"]);
    scene.both(0);
    // The other way round, and opened again in between.
    let (lent, handle) = maker.lend(0);
    for _ in 0..3 {
        one.open(0, &handle);
        one.say(&["close 0"]);
        other.open(0, &handle);
        other.say(&["close 0"]);
        scene.both(1);
    }
    maker.free(0, lent);
    scene.both(0);
    // Of several one is the last.
    let (lent, handle) = maker.lend(0);
    one.open(0, &handle);
    other.open(0, &handle);
    maker.free(0, lent);
    one.say(&["close 0"]);
    scene.both(1);
    other.say(&["close 0"]);
    scene.both(0);
    one.say(&[&format!("alloc 0 {LIMIT}"), "free 0"]);
}

#[test]
fn survivor_of_earlier_exporter_and_importer_is_charged() {
    let Some(scene) = Scene::new() else { return };
    let mut looker = scene.present();
    for is_freed in [true, false] {
        let (mut maker, mut opener) = (scene.earlier(), scene.present());
        let (lent, handle) = maker.lend(0);
        opener.open(0, &handle);
        if is_freed {
            maker.free(0, lent);
        }
        drop(opener);
        scene.soon(&mut looker, u64::from(!is_freed));
        if !is_freed {
            maker.free(0, lent);
        }
        scene.both(0);
    }
    let (mut maker, mut opener) = (scene.earlier(), scene.present());
    let (_, handle) = maker.lend(0);
    opener.open(0, &handle);
    drop(maker);
    scene.soon(&mut looker, 1);
    assert_eq!(looker.0.say(&format!("alloc 15 {}", LIMIT - SIZE + 1)), "2", "it is still there");
    opener.say(&["close 0"]);
    scene.soon(&mut looker, 0);
}

#[test]
fn memory_open_in_an_earlier_process_is_charged_until_released() {
    let Some(scene) = Scene::new() else { return };
    let (mut maker, mut opener, mut other) = (scene.present(), scene.earlier(), scene.present());
    // Alone, in either order.
    for is_freed_first in [true, false] {
        let handle = maker.lend(0);
        let lent = opener.open(0, &handle);
        scene.both(1);
        if is_freed_first {
            maker.say(&["free 0"]);
            scene.both(1);
        }
        opener.close(0, lent);
        scene.both(u64::from(!is_freed_first));
        if !is_freed_first {
            maker.say(&["free 0"]);
        }
        scene.both(0);
    }
    // With one of now beside it, which closes before it or after it, and opened before it or after it.
    for (is_other_first, is_other_last) in [(true, true), (true, false), (false, true), (false, false)] {
        let handle = maker.lend(0);
        if is_other_first {
            other.open(0, &handle);
        }
        let lent = opener.open(0, &handle);
        if !is_other_first {
            other.open(0, &handle);
        }
        maker.say(&["free 0"]);
        if is_other_last {
            opener.close(0, lent);
            scene.both(1);
            other.say(&["close 0"]);
        } else {
            other.say(&["close 0"]);
            scene.both(1);
            opener.close(0, lent);
        }
        scene.soon(&mut maker, 0);
    }
    // Its end, and its maker's.
    let handle = maker.lend(0);
    let _lent = opener.open(0, &handle);
    maker.say(&["free 0"]);
    drop(opener);
    scene.soon(&mut maker, 0);
    let (handle, mut opener) = (maker.lend(0), scene.earlier());
    let lent = opener.open(0, &handle);
    drop(maker);
    scene.soon(&mut other, 1);
    opener.close(0, lent);
    scene.soon(&mut other, 0);
}

/// The bound of this protocol. If an importer had locks before its exporter, the kernel names the importer as
/// holder; the next importer then counts itself, and the exporter no longer knows its slot. The memory stays
/// accounted until the exporter ends, and never leaves the accounting before the card has it back.
#[test]
fn memory_open_in_older_processes_is_charged_to_exporter_end() {
    let Some(scene) = Scene::new() else { return };
    let (mut older, mut maker, mut younger) = (scene.present(), scene.earlier(), scene.present());
    let (lent, handle) = maker.lend(0);
    older.open(0, &handle);
    younger.open(0, &handle);
    maker.free(0, lent);
    scene.both(1);
    older.say(&["close 0"]);
    scene.both(1);
    younger.say(&["close 0"]);
    assert_eq!((scene.files.counter(usage::TOTAL), scene.card.in_use()), (SIZE, 0), "accounting, card");
    drop(maker);
    scene.soon(&mut older, 0);
}
