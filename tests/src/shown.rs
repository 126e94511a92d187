//! A container with processes that take memory of any family on two cards, and every source that reports it:
//! each answer agrees with the accounting.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test world that does not answer is a failed test")]

use aliquot_abi::layout::{slot, usage};
use aliquot_abi::limits::{ComputePolicy, Limits, MemoryLimit};
use aliquot_enforce::memory::bytes_in;
use std::path::{Path, PathBuf};

use crate::generate::Random;
use crate::preload::GrantFiles;
use crate::seed::seed;
use crate::simulated::{Bench, Link, StoodAside};
use crate::site::Site;
use crate::talk::Talk;

const MIB: u64 = 1 << 20;
/// Cards, each with a grant.
pub const CARDS: usize = 2;
/// Processes that take memory.
pub const USERS: usize = 3;
/// Of each grant.
pub const LIMIT: u64 = 10 << 30;
/// Of memory of another interface, as `tests/programs/shim_mixed.h` makes it: so much of each process on each card.
pub const PIECE: u64 = 2 * MIB;

/// Families have the numbers of `tests/programs/shim_families.h` and of the headers that go on with them.
pub const PLAIN: usize = 0;
/// Graphs with memory nodes, written down or captured, which are charged whether the driver has that memory or not.
const GRAPHS: [usize; 2] = [10, 11];
/// Most that one of them is charged.
const GRAPH_BYTES_MAX: u64 = 128 * MIB;
/// An export.
pub const LENT: usize = 15;
/// What is opened of another process.
pub const OPENED: usize = 16;
/// What is imported of another interface.
pub const IMPORTED: usize = 17;
/// No family: the stacks of a context.
pub const STACKS: usize = 24;

/// A share of most of a card, so that the second one is on the other card.
const CLAIM: &str = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata:\n  name: share\nspec:\n  devices:\n    requests:\n    \
                     - name: gpu\n      exactly:\n        deviceClassName: share.aliquot.dev\n        capacity:\n          requests:\n            \
                     memory: 10Gi\n";

/// Cards on which accounting and card agree to the byte: a module's image gives its size.
fn node() -> String {
    let card = |number| {
        format!(
            "[[card]]\nuuid = \"GPU-a11c0de0-51a0-4c4d-8000-{number:012}\"\nmemory_bytes = {}\nsms = 8\n",
            64_u64 << 30
        )
    };
    format!("module_bytes = 0\npool_bytes = {}\n{}{}", 2 * MIB, card(0), card(1))
}

/// What a process has at a place of its own.
#[derive(Clone, Debug)]
pub struct Held {
    /// Where.
    pub card: usize,
    /// Of which family.
    pub family: usize,
    /// The handle by which others open it, if it is exported.
    pub handle: Option<String>,
}

/// A process that takes memory.
#[derive(Debug)]
pub struct User {
    /// It.
    pub talk: Talk,
    /// By the number of the place.
    pub held: Vec<Option<Held>>,
}

/// All of it.
#[derive(Debug)]
pub struct Scene {
    /// Cards, claims and `aliquot top`.
    pub site: Site,
    /// Of each card.
    pub files: Vec<GrantFiles>,
    /// Processes that take memory.
    pub users: Vec<User>,
    /// One that has NVML alone.
    pub monitor: Talk,
    /// Of the seed that was printed.
    pub random: Random,
}

/// `shim_shown` with the driver of CUDA and without it. `None`: no C compiler here.
#[must_use]
pub fn programs(bench: &Bench) -> Option<[PathBuf; 2]> {
    let program = bench.compile("shim_shown", Link::Direct);
    match program
        .and_then(|program| Ok([program, bench.compile_as("shim_shown", "watcher", &["-ldl", "-DWATCHES"])?]))
    {
        Ok(both) => Some(both),
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            None
        }
    }
}

/// Numbers of a line.
///
/// # Panics
///
/// There is something else in it.
#[must_use]
pub fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().map(|word| word.parse().unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// The lists of processes of a line, each by number.
///
/// # Panics
///
/// There is something else in it.
#[must_use]
pub fn lists(line: &str) -> Vec<Vec<(u64, u64)>> {
    let pair = |word: &str| {
        let (pid, bytes) = word.split_once(':').unwrap_or_else(|| panic!("{line}"));
        (pid.parse().unwrap(), bytes.parse().unwrap())
    };
    let sorted = |list: &str| {
        let mut list: Vec<_> = list.split_whitespace().map(pair).collect();
        list.sort_unstable();
        list
    };
    line.split('|').map(sorted).collect()
}

impl Scene {
    /// With a context of each process on each card. `None`: no C compiler here.
    ///
    /// # Panics
    ///
    /// It cannot be made.
    #[must_use]
    pub fn new() -> Option<Self> {
        let bench = Bench::new();
        bench.write("node.toml", &node());
        let [program, watcher] = programs(&bench)?;
        let site = Site::new(bench, CARDS);
        ["one", "two"].iter().for_each(|claim| site.prepare(claim, CLAIM));
        let shown = site.top("0");
        let dir =
            |card: usize| PathBuf::from(shown["cards"][card]["shares"][0]["directory"].as_str().unwrap());
        let files: Vec<_> = (0..CARDS).map(|card| GrantFiles::open(&dir(card))).collect();
        for files in &files {
            // Compute time does not matter here, and no governor runs.
            let limits = files.limits();
            files.change(&Limits {
                generation: limits.generation + 1,
                policy: ComputePolicy::Unlimited,
                ..limits
            });
        }
        let start =
            |program: &Path, words: &[&str]| Talk::start(site.tenant(site.grants(), program).args(words));
        let users =
            (0..USERS).map(|_| User { talk: start(&program, &[]), held: vec![None; 64] }).collect::<Vec<_>>();
        let monitor = start(&watcher, &["nvml"]);
        let seed = seed();
        let mut scene = Self { site, files, users, monitor, random: Random::new(seed) };
        for user in 0..USERS {
            (0..CARDS).for_each(|card| assert_eq!(scene.say(user, &format!("on {card}")), "0"));
        }
        Some(scene)
    }

    /// What a process that takes memory answers.
    ///
    /// # Panics
    ///
    /// It does not.
    pub fn say(&mut self, user: usize, line: &str) -> String {
        self.users[user].talk.say(line)
    }

    /// The accounted bytes, without the bit that marks a recount.
    ///
    /// # Panics
    ///
    /// They cannot be read.
    #[must_use]
    pub fn booked(&self, card: usize) -> u64 {
        bytes_in(self.files[card].counter(usage::TOTAL))
    }

    /// The limit in force.
    ///
    /// # Panics
    ///
    /// There is none.
    #[must_use]
    pub fn limit(&self, card: usize) -> u64 {
        match self.files[card].limits().memory {
            MemoryLimit::Bytes(bytes) => bytes,
            MemoryLimit::Unlimited => panic!("no limit"),
        }
    }

    /// What was freed by its maker while others have it open: in the grant's use and in no process's.
    ///
    /// # Panics
    ///
    /// The usage file cannot be read.
    #[must_use]
    pub fn without_holder(&self, card: usize) -> u64 {
        let files = &self.files[card];
        let slots = (0..usage::SLOT_COUNT).map(|number| usage::SLOTS + number * usage::SLOT_BYTES);
        let let_go = slots.filter(|at| {
            slot::pid_in(files.counter(at + slot::OWNER)) != 0
                && files.counter(at + slot::INSIDE) >> 32 == u64::from(slot::LET_GO)
        });
        let_go.map(|at| files.counter(at + slot::USED)).sum()
    }

    /// Sends one query to one process: its answer is the accounting of this moment; the holders.
    ///
    /// # Panics
    ///
    /// The answer differs from the accounting.
    pub fn question(&mut self, process: usize, card: usize, which: usize) -> Option<Vec<(u64, u64)>> {
        let is_user = process < USERS;
        let talk = if is_user { &mut self.users[process].talk } else { &mut self.monitor };
        let told = match which {
            0 if is_user => talk.say("cuda"),
            0 => return None,
            1 => talk.say(&format!("nvml {card}")),
            _ => talk.say(&format!("processes {card}")),
        };
        let (booked, limit) = (self.booked(card), self.limit(card));
        let (free, used) = (limit.saturating_sub(booked), booked.min(limit));
        let context = format!("process {process}, card {card}, {booked} booked of {limit}");
        match which {
            0 => assert_eq!(
                numbers(&told),
                [free, limit, limit, limit.min(u32::MAX.into())],
                "CUDA, {context}"
            ),
            1 => {
                let expected = [limit, free, used, limit, free, used, 0, limit, used];
                assert_eq!(numbers(&told)[..9], expected, "NVML, {context}");
            }
            _ => {
                let mut lists = lists(&told);
                let (computing, others) = (&lists[..3], &lists[3..9]);
                assert!(
                    computing.iter().all(|list| *list == computing[0]) && lists[9] == computing[0],
                    "{lists:?}"
                );
                assert!(others.iter().all(Vec::is_empty), "{others:?}");
                let sum = computing[0].iter().map(|(_, bytes)| bytes).sum::<u64>();
                assert_eq!(sum + self.without_holder(card), booked, "processes, {context}");
                return Some(lists.swap_remove(0));
            }
        }
        None
    }

    /// Sends every query to every process, in random order. The first answer of a process stands for its
    /// others, and at last the card agrees with the accounting. The holders.
    ///
    /// # Panics
    ///
    /// They do not agree.
    pub fn all_agree(&mut self, card: usize) -> Vec<(u64, u64)> {
        let mut order: Vec<usize> = (0..=USERS).collect();
        shuffle(&mut self.random, &mut order);
        let mut holders = Vec::new();
        for process in order {
            if process < USERS {
                assert_eq!(self.say(process, &format!("on {card}")), "0");
            }
            let mut questions = [0, 1, 2];
            shuffle(&mut self.random, &mut questions);
            let mut first = None;
            for which in questions {
                holders = self.question(process, card, which).unwrap_or(holders);
                let booked = self.booked(card);
                if which != 0 || process < USERS {
                    assert_eq!(
                        *first.get_or_insert(booked),
                        booked,
                        "process {process}, card {card}: {questions:?}, at {which}"
                    );
                }
            }
        }
        // Every process has by now queried the driver about its pools.
        let held = |family| {
            let of = |user: &User| user.held.iter().flatten().filter(|held| held.is(card, family)).count();
            u64::try_from(self.users.iter().map(of).sum::<usize>()).unwrap()
        };
        let graphs = GRAPHS.into_iter().map(held).sum::<u64>() * GRAPH_BYTES_MAX;
        let device = self.site.bench.device();
        let on_card = device.card(card).unwrap().in_use();
        let pieces = u64::try_from(USERS).unwrap() * PIECE;
        let booked = self.booked(card) - held(IMPORTED) * PIECE + pieces;
        let is_right = on_card <= booked && booked - on_card <= graphs;
        assert!(is_right, "card {card}: {on_card} on it, {booked} booked, {graphs} of graphs at most");
        holders.sort_unstable();
        holders
    }

    /// The same for any process, the one with NVML alone being the last.
    ///
    /// # Panics
    ///
    /// The process does not answer.
    pub fn raw(&mut self, process: usize, line: &str) -> String {
        if process < USERS { self.say(process, line) } else { self.monitor.say(line) }
    }
}

impl Held {
    /// Whether it is of this family, there.
    #[must_use]
    pub fn is(&self, card: usize, family: usize) -> bool {
        (self.card, self.family) == (card, family)
    }
}

/// Puts items into another order.
pub fn shuffle<T>(random: &mut Random, items: &mut [T]) {
    (1..items.len()).for_each(|at| items.swap(at, random.below(at + 1)));
}
