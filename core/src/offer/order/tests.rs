//! The packing order against the plain one, under churn: a node, claims that come and go, first fit.

use super::*;
use crate::catalogue::Catalogue;

/// Seeds a model is tried with.
const SEEDS: u64 = 200;
/// Claims that arrive in one run.
const ARRIVALS: usize = 1_500;

/// A generator of random numbers, small and the same everywhere (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A table as numbers alone.
struct Shape {
    totals: Vec<u64>,
    /// By template, by placement: what it takes.
    takes: Vec<Vec<Vec<u64>>>,
    sizes: Vec<u64>,
}

impl Shape {
    fn of(table: &PartitionTable) -> Self {
        let names: Vec<_> = table.totals.iter().map(|(name, _)| name.clone()).collect();
        let numbers = |vector: &CounterVector| names.iter().map(|name| vector.get(name)).collect::<Vec<u64>>();
        let takes = (0..table.templates.len())
            .map(|template| {
                let count = table.templates[template].placements.len();
                let at = |placement| numbers(&takes(table, Place { template, placement }).unwrap());
                (0..count).map(at).collect()
            })
            .collect();
        let sizes = (0..table.templates.len()).map(|template| size(table, Place { template, placement: 0 })).collect();
        Self { totals: numbers(&table.totals), takes, sizes }
    }
}

/// One run: the claims of a seed, placed by first fit in this order. The sum over all arrivals of the size that is held.
fn packed(shape: &Shape, order: &[Place], cards: usize, seed: u64) -> u64 {
    let mut random = Random(seed);
    let by_template: Vec<Vec<usize>> = (0..shape.takes.len())
        .map(|t| order.iter().filter(|place| place.template == t).map(|place| place.placement).collect())
        .collect();
    // Each seed has a mix of its own: some templates are wanted more than others.
    let weights: Vec<u64> = shape.sizes.iter().map(|size| (1 + random.below(8)) * (5_040 / size).max(1)).collect();
    let all: u64 = weights.iter().sum();
    // Offered load: one to three times what there is.
    let mean: u64 = shape.sizes.iter().zip(&weights).map(|(size, weight)| size * weight).sum::<u64>() / all;
    let stay = (5_040 * cards as u64 * (10 + random.below(20)) / 10 / mean).max(1);
    let mut free: Vec<Vec<u64>> = vec![shape.totals.clone(); cards];
    let mut held: Vec<(usize, usize, usize, usize)> = Vec::new();
    let (mut now, mut sum) = (0, 0);
    for arrival in 0..ARRIVALS {
        let mut pick = random.below(all);
        let template = weights.iter().position(|weight| {
            let here = pick < *weight;
            pick = pick.saturating_sub(*weight);
            here
        });
        let template = template.unwrap();
        let until = arrival + 1 + random.below(2 * stay) as usize;
        held.retain(|(end, card, template, placement)| {
            let stays = *end > arrival;
            if !stays {
                now -= shape.sizes[*template];
                for (free, takes) in free[*card].iter_mut().zip(&shape.takes[*template][*placement]) {
                    *free += takes;
                }
            }
            stays
        });
        let place = (0..cards).find_map(|card| {
            let fits = |placement: &&usize| {
                free[card].iter().zip(&shape.takes[template][**placement]).all(|(free, takes)| free >= takes)
            };
            by_template[template].iter().find(fits).map(|placement| (card, *placement))
        });
        if let Some((card, placement)) = place {
            for (free, takes) in free[card].iter_mut().zip(&shape.takes[template][placement]) {
                *free -= takes;
            }
            now += shape.sizes[template];
            held.push((until, card, template, placement));
        }
        sum += now;
    }
    sum
}

fn plain_order(table: &PartitionTable) -> Vec<Place> {
    let places = |(template, entry): (usize, &crate::partition::Template)| {
        (0..entry.placements.len()).map(move |placement| Place { template, placement }).collect::<Vec<_>>()
    };
    table.templates.iter().enumerate().flat_map(places).collect()
}

#[test]
fn packed_capacity_under_churn_is_better_than_in_the_plain_order() {
    let catalogue = Catalogue::embedded();
    for model in catalogue.models() {
        let Some(table) = model.table() else { continue };
        let shape = Shape::of(table);
        for cards in [1, 4] {
            let (mut worst, mut sum) = (f64::MAX, 0.0);
            for seed in 0..SEEDS {
                let plain = packed(&shape, &plain_order(table), cards, seed);
                let ours = packed(&shape, &publication_order(table), cards, seed);
                let gain = ours as f64 / plain as f64 - 1.0;
                worst = gain.min(worst);
                sum += gain;
            }
            println!("{} × {cards}: mean {:+.2} %, worst {:+.2} %", model.id, sum / SEEDS as f64 * 100.0, worst * 100.0);
        }
    }
}
