//! Allocations that overlap, as a scheduler makes them that counts a device twice: each is refused with a holder's
//! name, and nothing that fits is refused.
//!
//! What fits is decided here from the tables of the H100 (memory slices, compute slices, capacities), without the ledger.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::collections::BTreeMap;

use aliquot_core::dra::ResourceClaim;
use aliquot_core::id::ClaimUid;
use aliquot_driver::prepare::PrepareError;
use aliquot_tests::generate::Random;
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::seed::seed;

/// A part of an H100: its name, the memory slices that it occupies of eight, its compute slices of seven.
struct Shape {
    part: &'static str,
    first: u32,
    slices: u32,
    compute: u32,
}

const fn shape(part: &'static str, first: u32, slices: u32, compute: u32) -> Shape {
    Shape { part, first, slices, compute }
}

static SHAPES: [Shape; 12] = [
    shape("1g.10gb at 0", 0, 1, 1),
    shape("1g.10gb at 3", 3, 1, 1),
    shape("1g.10gb at 6", 6, 1, 1),
    shape("1g.20gb at 4", 4, 2, 1),
    shape("1g.20gb at 6", 6, 2, 1),
    shape("2g.20gb at 0", 0, 2, 2),
    shape("2g.20gb at 4", 4, 2, 2),
    shape("3g.40gb at 0", 0, 4, 3),
    shape("3g.40gb at 4", 4, 4, 3),
    shape("4g.40gb at 0", 0, 4, 4),
    shape("7g.80gb at 0", 0, 8, 7),
    shape(CARD, 0, 8, 7),
];
const CARD: &str = "card";
/// Memory that shares of a part may have in all, in MiB, in round numbers.
const SHARED: [(&str, u64); 3] = [(CARD, 80_000), ("3g.40gb at 0", 40_000), ("3g.40gb at 4", 40_000)];
const CARDS: u32 = 2;

/// What a claim holds of one card.
#[derive(Clone, Copy)]
struct Holding {
    card: u32,
    shape: &'static Shape,
    /// Memory of a share in MiB; `None`: the whole part.
    memory_mib: Option<u64>,
    cores: u8,
}

impl Holding {
    fn draw(random: &mut Random) -> Self {
        let shape = &SHAPES[random.below(SHAPES.len())];
        let capacity = SHARED.iter().find(|(part, _)| *part == shape.part).map(|(_, capacity)| *capacity);
        // Sums are tenths of the part: none lies between the capacity here and the card's own, which is a little larger.
        let tenths = 1 + u64::try_from(random.below(4)).unwrap();
        let memory_mib = capacity.map(|capacity| capacity / 10 * tenths);
        let cores = if shape.part == CARD { [5, 20, 45][random.below(3)] } else { 1 };
        let card = u32::try_from(random.below(CARDS.try_into().unwrap())).unwrap();
        Self { card, shape, memory_mib, cores: if memory_mib.is_some() { cores } else { 0 } }
    }

    fn want(&self) -> Want {
        Want { card: self.card, part: self.shape.part, memory_mib: self.memory_mib, cores: self.cores }
    }

    /// Two different parts cannot exist side by side, or two holders cannot have the same undivided one.
    fn excludes(&self, other: &Self) -> bool {
        let (a, b) = (self.shape, other.shape);
        if self.card != other.card {
            return false;
        }
        if a.part == b.part {
            return self.memory_mib.is_none();
        }
        a.first < b.first + b.slices && b.first < a.first + a.slices
    }
}

/// Whether the card can carry all of these at once.
fn fit(card: u32, all: &[Holding]) -> bool {
    let here: Vec<&Holding> = all.iter().filter(|one| one.card == card).collect();
    let apart = |(at, one): (usize, &&Holding)| here[..at].iter().all(|other| !one.excludes(other));
    if !here.iter().enumerate().all(apart) {
        return false;
    }
    let mut parts: BTreeMap<&str, (u32, u64, u64)> = BTreeMap::new();
    for one in here {
        let sums = parts.entry(one.shape.part).or_default();
        *sums =
            (one.shape.compute, sums.1 + one.memory_mib.unwrap_or_default(), sums.2 + u64::from(one.cores));
    }
    let within = |(part, sums): (&&str, &(u32, u64, u64))| {
        SHARED
            .iter()
            .filter(|(shared, _)| shared == part)
            .all(|(_, memory)| sums.1 <= *memory && sums.2 <= 100)
    };
    parts.iter().all(within) && parts.values().map(|sums| sums.0).sum::<u32>() <= 7
}

#[test]
fn overlapping_allocations_are_refused_and_only_they() {
    let seed = seed();
    let mut random = Random::new(seed);
    let world = World::new("h100-8", "");
    world.publish();
    let node = world.open();
    let pool: Vec<(Vec<Holding>, ResourceClaim)> = (0..300)
        .map(|number| {
            let holdings: Vec<Holding> =
                (0..1 + random.below(5) / 4).map(|_| Holding::draw(&mut random)).collect();
            let wants: Vec<Want> = holdings.iter().map(Holding::want).collect();
            let claim = claim(&node, &format!("c{number}"), &wants);
            (holdings, claim)
        })
        .collect();
    let service = node.into_service();
    let mut held: BTreeMap<usize, &[Holding]> = BTreeMap::new();
    let (mut prepared, mut refused) = (0, 0);
    while prepared < 1_000 || refused < 1_000 {
        let number = random.below(pool.len());
        let (holdings, claim) = &pool[number];
        let full = held.len() > random.below(8);
        if full && let Some(leaving) = held.keys().nth(random.below(held.len())).copied() {
            service.release(&ClaimUid::new(&pool[leaving].1.uid).unwrap()).unwrap();
            held.remove(&leaving);
        }
        if held.contains_key(&number) {
            continue;
        }
        let all: Vec<Holding> = held.values().copied().flatten().chain(holdings).copied().collect();
        let fits = (0..CARDS).all(|card| fit(card, &all));
        let answer = service.prepare(claim);
        let before = held.clone();
        let scene = || {
            let one = |h: &Holding| format!("{}/{} {:?} {}%", h.card, h.shape.part, h.memory_mib, h.cores);
            let text = |all: &[Holding]| all.iter().map(one).collect::<Vec<_>>().join(", ");
            format!(
                "seed {seed}: {} beside {:?}",
                text(holdings),
                before.iter().map(|(n, h)| (n, text(h))).collect::<Vec<_>>()
            )
        };
        match answer {
            Ok(_) => {
                assert!(fits, "prepared in spite of an overlap: {}", scene());
                held.insert(number, holdings);
                prepared += 1;
            }
            Err(PrepareError::Refused(refusal)) => {
                assert!(!fits, "refused though it fits: {refusal}: {}", scene());
                let text = refusal.to_string();
                let names = |holder: &usize| text.contains(&format!("claim c{holder} "));
                let own = holdings.len() > 1 && !(0..CARDS).all(|card| fit(card, holdings));
                assert!(own || held.keys().any(names), "no holder's name: {text}: {}", scene());
                refused += 1;
            }
            Err(other) => panic!("{other}: {}", scene()),
        }
        if (prepared + refused) % 100 == 0 {
            service.invariants().unwrap_or_else(|e| panic!("{e}: {}", scene()));
        }
    }
    service.invariants().unwrap();
    println!("{prepared} prepared, {refused} refused");
}
