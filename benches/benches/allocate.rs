//! Decisions of the allocator: a node of 8 H100 filled claim by claim, and whole clusters planned at once.
//!
//! The node is published as in layout `dynamic`: per card one device for the card and one for each MIG placement, 26
//! in all, every one shareable and drawing on the card's counters. A decision is one `allocate` and one `hold`; a plan
//! starts with the published objects and has an own search for every claim.

#![expect(clippy::expect_used, reason = "a bench that cannot place what it was written for must stop")]

use std::collections::BTreeMap;

use aliquot_core::allocate::{Candidates, NodeIndex, World};
use aliquot_core::dra::{
    Access, AllocationMode, AttributeValue, CapacityPolicy, CapacityRestriction, CounterConsumption,
    CounterSet, Device, DeviceCapacity, DeviceClass, DeviceRequest, ExactRequest, Node, NodeSelection, Pool,
    RequestKind, ResourceClaim, ResourceSlice, Sharing,
};
use aliquot_core::quantity::{Format, Quantity};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const DRIVER: &str = "aliquot.dev";
const GIB: i64 = 1 << 30;
/// MIG profiles of H100-80: name, memory slices, memory in GiB, where they may start.
const PROFILES: [(&str, i64, i64, &[i64]); 7] = [
    ("1g.10gb", 1, 10, &[0, 1, 2, 3, 4, 5, 6]),
    ("1g.10gb.me", 1, 10, &[0, 1, 2, 3, 4, 5, 6]),
    ("1g.20gb", 2, 20, &[0, 2, 4, 6]),
    ("2g.20gb", 2, 20, &[0, 2, 4]),
    ("3g.40gb", 4, 40, &[0, 4]),
    ("4g.40gb", 4, 40, &[0]),
    ("7g.80gb", 8, 80, &[0]),
];

fn whole(units: i64) -> Quantity {
    Quantity::from_units(units, Format::BinarySi)
}

fn capacity(units: i64, default: i64, step: i64) -> DeviceCapacity {
    let restriction = CapacityRestriction::Range { min: whole(0), max: None, step: Some(whole(step)) };
    let policy = CapacityPolicy { default: Some(whole(default)), restriction };
    DeviceCapacity { value: whole(units), policy: Some(policy) }
}

fn device(card: usize, name: String, profile: &str, kind: &str, gib: i64, slices: &[i64], me: i64) -> Device {
    let mut device = Device::named(name);
    device.sharing = Sharing::Shareable;
    let text = |value: &str| AttributeValue::String(value.to_owned());
    device.attributes = [
        ("type", text(kind)),
        ("profile", text(profile)),
        ("vendor", text("nvidia")),
        ("productName", text("NVIDIA H100 80GB HBM3")),
        ("parentUUID", AttributeValue::String(format!("GPU-{card:08}"))),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    device.capacity.insert("memory".to_owned(), capacity(gib * GIB, gib * GIB, 1 << 20));
    device.capacity.insert("cores".to_owned(), capacity(100, 0, 1));
    let mut counters: BTreeMap<String, Quantity> =
        slices.iter().map(|slice| (format!("memory-slice-{slice}"), whole(1))).collect();
    counters.insert("media-extensions".to_owned(), whole(me));
    device.consumes = vec![CounterConsumption {
        counter_set: format!("card-{card}"),
        counters,
        compatibility_groups: Vec::new(),
    }]
    .into();
    device
}

fn devices(card: usize) -> Vec<Device> {
    let mut all = Vec::new();
    for (profile, size, gib, starts) in PROFILES {
        for start in starts {
            let slices: Vec<i64> = (*start..(start + size).min(8)).collect();
            let name = format!("gpu-{card}-{}-{start}", profile.replace('.', "-"));
            let me = i64::from(profile.ends_with("me"));
            all.push(device(card, name, profile, "partition", gib, &slices, me));
        }
    }
    let every: Vec<i64> = (0..8).collect();
    all.push(device(card, format!("gpu-{card}"), "whole", "card", 80, &every, 1));
    all
}

/// What a node of 8 cards publishes: one slice of counters, one of devices for each card.
fn slices(node: &str) -> Vec<ResourceSlice> {
    let slice = |name: String| ResourceSlice {
        name,
        driver: DRIVER.to_owned(),
        pool: Pool { name: format!("{node}/dynamic"), generation: 1, slice_count: 9 },
        node: NodeSelection::Name(node.to_owned()),
        devices: Vec::new().into(),
        shared_counters: Vec::new().into(),
    };
    let mut all = vec![slice(format!("{node}-counters"))];
    all[0].shared_counters = (0..8)
        .map(|card| CounterSet {
            name: format!("card-{card}"),
            counters: (0..8)
                .map(|slice| (format!("memory-slice-{slice}"), whole(1)))
                .chain([("media-extensions".to_owned(), whole(1))])
                .collect(),
        })
        .collect();
    for card in 0..8 {
        all.push(ResourceSlice { devices: devices(card).into(), ..slice(format!("{node}-card-{card}")) });
    }
    all
}

fn class(name: &str, selector: &str) -> DeviceClass {
    DeviceClass {
        name: name.to_owned(),
        selectors: vec![format!("device.driver == \"{DRIVER}\""), selector.to_owned()],
        config: Vec::new(),
        extended_resource_name: None,
        extended_resource_capacity: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

/// What is published, as a world is made from it.
type Published = (Vec<ResourceSlice>, Vec<DeviceClass>, Vec<Node>);

fn published(nodes: usize) -> Published {
    let names: Vec<String> = (0..nodes).map(|node| format!("node-{node:05}")).collect();
    let classes = vec![
        class("share", "device.attributes[\"aliquot.dev\"].type == \"card\""),
        class("mig-1g", "device.attributes[\"aliquot.dev\"].profile == \"1g.10gb\""),
    ];
    let slices = names.iter().flat_map(|name| slices(name)).collect();
    let nodes = names.into_iter().map(|name| Node { name, labels: BTreeMap::new() }).collect();
    (slices, classes, nodes)
}

fn world((slices, classes, nodes): Published) -> World {
    let (world, problems) = World::new(slices, classes, nodes);
    assert_eq!(problems, []);
    world
}

fn claim(number: usize, class: &str, capacity: &[(&str, i64)]) -> ResourceClaim {
    let request = ExactRequest {
        device_class: class.to_owned(),
        selectors: Vec::new(),
        mode: AllocationMode::ExactCount(1),
        access: Access::Normal,
        tolerations: Vec::new(),
        capacity: capacity.iter().map(|(name, units)| ((*name).to_owned(), whole(*units))).collect(),
    };
    ResourceClaim {
        namespace: "default".to_owned(),
        name: format!("claim-{number}"),
        uid: format!("00000000-0000-4000-8000-{number:012}"),
        requests: vec![DeviceRequest { name: "gpu".to_owned(), kind: RequestKind::Exactly(request) }],
        constraints: Vec::new(),
        config: Vec::new(),
        allocation: None,
    }
}

/// Ten of these fill a card.
fn share(number: usize) -> ResourceClaim {
    claim(number, "share", &[("memory", 8 * GIB), ("cores", 10)])
}

fn partition(number: usize) -> ResourceClaim {
    claim(number, "mig-1g", &[])
}

/// Allocates and holds one claim after the other on the one node.
fn fill(world: &mut World, claims: &[ResourceClaim]) {
    for claim in claims {
        let results = world.allocate(NodeIndex(0), std::slice::from_ref(claim));
        let results = results.expect("the node has room for all of them");
        world.hold_as(claim, &results[0]).expect("it is held once");
    }
}

fn one_node(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("node of 8 H100");
    let shares: Vec<ResourceClaim> = (0..80).map(share).collect();
    let partitions: Vec<ResourceClaim> = (0..56).map(partition).collect();
    for (name, claims) in [("shares", &shares), ("1g partitions", &partitions)] {
        group.throughput(Throughput::Elements(claims.len() as u64));
        let mut warm = world(published(1));
        // Filled and emptied again: a release costs less than a decision and is counted with it.
        group.bench_function(format!("{name}, warm"), |bench| {
            bench.iter(|| {
                fill(&mut warm, claims);
                for claim in claims {
                    warm.release(&claim.uid).expect("it was held");
                }
            });
        });
        group.bench_function(format!("{name}, from the slices"), |bench| {
            bench.iter_batched(
                || published(1),
                |published| {
                    let mut world = world(published);
                    fill(&mut world, claims);
                    world
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

/// Everything placed and held, one claim after the other, over all nodes.
fn plan(published: Published, claims: &[ResourceClaim]) -> World {
    let mut world = world(published);
    for claim in claims {
        if let Ok((_, results)) = world.place(std::slice::from_ref(claim), Candidates::All) {
            world.hold_as(claim, &results[0]).expect("it is held once");
        }
    }
    world
}

fn clusters(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10);
    for (nodes, count) in [(125, 10_000), (1250, 100_000)] {
        // Two thirds shares, one third partitions: the last partitions find no room.
        let claims: Vec<ResourceClaim> =
            (0..count).map(|n| if n % 3 == 2 { partition(n) } else { share(n) }).collect();
        group.throughput(Throughput::Elements(claims.len() as u64));
        group.bench_function(format!("{} cards, {count} claims", nodes * 8), |bench| {
            bench.iter_batched(|| published(nodes), |input| plan(input, &claims), BatchSize::PerIteration);
        });
    }
    // Every claim asks for another amount: nothing learnt from one claim helps the next.
    let claims: Vec<ResourceClaim> = (0..10_000)
        .zip(0..)
        .map(|(n, mib)| claim(n, "share", &[("memory", 8 * GIB - mib * (1 << 19))]))
        .collect();
    group.throughput(Throughput::Elements(claims.len() as u64));
    group.bench_function("1000 cards, 10000 different claims", |bench| {
        bench.iter_batched(|| published(125), |input| plan(input, &claims), BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(benches, one_node, clusters);
criterion_main!(benches);
