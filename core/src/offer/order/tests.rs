//! The packing order against the plain one, under churn: a node, claims that come and go, first fit.

use super::*;
use crate::catalogue::Catalogue;
use crate::partition::Template;

/// Seeds that each model and node size is tried with.
const SEEDS: u64 = 200;
/// Claims that arrive in one run: enough that chance alone does not make 2 %.
const ARRIVALS: usize = 12_000;

/// A generator of random numbers, small and the same everywhere (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// A table as numbers: all counters of a card side by side in one word, each with a guard bit above it that a
/// subtraction borrows from where the counter runs short.
#[derive(Clone, PartialEq, Eq)]
struct Shape {
    totals: u128,
    guards: u128,
    /// By template, by placement: what it takes.
    takes: Vec<Vec<u128>>,
    sizes: Vec<u64>,
}

impl Shape {
    fn of(table: &PartitionTable) -> Self {
        let binding = binding_counters(table);
        let mut lanes = Vec::new();
        let mut end = 0;
        for (name, total) in binding.totals().iter() {
            let amounts = table.partitions().map(|(t, p)| t.consumes.get(name) + p.consumes.get(name));
            let unit = amounts.fold(total, gcd);
            lanes.push((name.clone(), unit, end));
            end += u64::BITS - (total / unit).leading_zeros() + 1;
        }
        assert!(end <= u128::BITS, "the counters do not fit into one word");
        let word = |vector: &CounterVector| -> u128 {
            lanes.iter().map(|(name, unit, at)| u128::from(vector.get(name) / unit) << at).sum()
        };
        let ends = lanes.iter().map(|(_, _, at)| *at).skip(1).chain([end]);
        let of_template = |(template, entry): (usize, &Template)| {
            let at = |placement| word(&takes(table, TemplatePlacement { template, placement }).unwrap());
            (0..entry.placements.len()).map(at).collect()
        };
        Self {
            totals: word(binding.totals()),
            guards: ends.map(|end| 1_u128 << (end - 1)).sum(),
            takes: table.templates.iter().enumerate().map(of_template).collect(),
            sizes: (0..table.templates.len())
                .map(|template| size(table, TemplatePlacement { template, placement: 0 }))
                .collect(),
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A claim: which template, and how many arrivals it stays for.
struct Claim {
    template: usize,
    stays: usize,
}

/// The claims of a seed. Each seed has a mix and a load of its own; small parts are wanted more often than large ones.
fn claims(shape: &Shape, cards: usize, load_percent: std::ops::Range<u64>, seed: u64) -> Vec<Claim> {
    let mut random = Random(seed);
    let weights: Vec<u64> =
        shape.sizes.iter().map(|size| (1 + random.below(8)) * (CARD / size).max(1)).collect();
    let all: u64 = weights.iter().sum();
    let wanted: u64 = shape.sizes.iter().zip(&weights).map(|(size, weight)| size * weight).sum();
    let load = load_percent.start + random.below(load_percent.end - load_percent.start);
    let stays_mean = (CARD * cards as u64 * load * all / (100 * wanted)).max(1);
    (0..ARRIVALS)
        .map(|_| {
            let mut pick = random.below(all);
            let template = weights.iter().position(|weight| {
                let here = pick < *weight;
                pick = pick.saturating_sub(*weight);
                here
            });
            let stays = 1 + usize::try_from(random.below(2 * stays_mean)).unwrap();
            Claim { template: template.unwrap(), stays }
        })
        .collect()
}

/// Places the claims by first fit in an order (by template) and gives the sum over all arrivals of the size that is
/// held. A claim that does not fit is lost.
fn packed(shape: &Shape, order: &[Vec<usize>], cards: usize, claims: &[Claim]) -> u64 {
    let mut free = vec![shape.totals; cards];
    let mut ends: Vec<Vec<(usize, u128, u64)>> = vec![Vec::new(); claims.len()];
    let (mut held, mut sum) = (0, 0);
    for (now, claim) in claims.iter().enumerate() {
        for (card, takes, size) in std::mem::take(&mut ends[now]) {
            free[card] += takes;
            held -= size;
        }
        let takes = &shape.takes[claim.template];
        let place = (0..cards).find_map(|card| {
            let guarded = free[card] | shape.guards;
            let fits = |placement: &&usize| (guarded - takes[**placement]) & shape.guards == shape.guards;
            order[claim.template].iter().find(fits).map(|placement| (card, takes[*placement]))
        });
        if let Some((card, takes)) = place {
            free[card] -= takes;
            held += shape.sizes[claim.template];
            if let Some(end) = ends.get_mut(now + claim.stays) {
                end.push((card, takes, shape.sizes[claim.template]));
            }
        }
        sum += held;
    }
    sum
}

fn by_template(table: &PartitionTable, order: &[TemplatePlacement]) -> Vec<Vec<usize>> {
    let of = |template| order.iter().filter(|p| p.template == template).map(|p| p.placement).collect();
    (0..table.templates.len()).map(of).collect()
}

fn plain(table: &PartitionTable) -> Vec<Vec<usize>> {
    table.templates.iter().map(|template| (0..template.placements.len()).collect()).collect()
}

#[test]
fn the_order_is_a_permutation_and_small_parts_come_first() {
    for model in Catalogue::embedded().models() {
        for table in model.tables() {
            let order = publication_order(table);
            let mut sorted = order.clone();
            sorted.sort();
            let all: Vec<TemplatePlacement> = table
                .templates
                .iter()
                .enumerate()
                .flat_map(|(template, t)| {
                    (0..t.placements.len()).map(move |p| TemplatePlacement { template, placement: p })
                })
                .collect();
            assert_eq!(sorted, all, "{}", model.id);
            assert!(order.is_sorted_by_key(|place| size(table, *place)), "{}", model.id);
        }
    }
}

#[test]
fn the_half_that_only_3g_can_use_goes_first() {
    let catalogue = Catalogue::embedded();
    for model in catalogue.models() {
        let Some(table) = model.table() else { continue };
        let order = by_template(table, &publication_order(table));
        // Seven compute slices in eight memory slices: the only tables that are not blocks in blocks.
        let seven = table.templates.iter().any(|template| template.name.as_str().starts_with("7g."));
        if seven {
            let small = vec![4, 5, 6, 0, 1, 2, 3];
            let starts =
                [small.clone(), small, vec![3, 2, 0, 1], vec![2, 0, 1], vec![1, 0], vec![0], vec![0]];
            assert_eq!(order, starts, "{}", model.id);
        } else {
            assert_eq!(order, plain(table), "{}", model.id);
        }
    }
}

#[test]
fn packing_order_beats_plain_order_under_churn() {
    let catalogue = Catalogue::embedded();
    let mut seen: Vec<Shape> = Vec::new();
    for model in catalogue.models() {
        let Some(table) = model.table() else { continue };
        let (ours, plain) = (by_template(table, &publication_order(table)), plain(table));
        if ours == plain {
            println!("{}: the plain order", model.id);
            continue;
        }
        println!("{}: {ours:?}", model.id);
        let shape = Shape::of(table);
        if seen.contains(&shape) {
            continue;
        }
        for (cards, load_percent) in [(1, 40..100), (4, 40..130), (8, 40..130)] {
            let gains: Vec<f64> = (0..SEEDS)
                .map(|seed| {
                    let claims = claims(&shape, cards, load_percent.clone(), seed);
                    let plain = packed(&shape, &plain, cards, &claims);
                    packed(&shape, &ours, cards, &claims) as f64 / plain as f64 * 100.0 - 100.0
                })
                .collect();
            let mean = gains.iter().sum::<f64>() / gains.len() as f64;
            let (seed, worst) =
                gains.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).map(|(s, g)| (s, *g)).unwrap();
            println!(
                "  {cards} cards, load {load_percent:?} %: mean {mean:+.2} %, worst {worst:+.2} % (seed {seed})"
            );
            assert!(mean > 0.0, "{}: {mean:+.2} % on average", model.id);
            assert!(worst > -2.0, "{}: {worst:+.2} % with seed {seed}", model.id);
        }
        seen.push(shape);
    }
    assert!(!seen.is_empty());
}
