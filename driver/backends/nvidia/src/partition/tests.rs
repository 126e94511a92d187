//! Tables of what drivers say.

use aliquot_core::catalogue::Catalogue;
use aliquot_core::id::CardUuid;

use super::*;

fn profile(id: u32, name: &str, slices: u32, multiprocessors: u32, places: &[(u32, u32)]) -> Profile {
    let instances = u32::try_from(places.len()).unwrap();
    Profile {
        id,
        name: Some(name.to_owned()),
        slices,
        instances,
        multiprocessors,
        engines: [slices, 0, 0, 0, 0],
        memory_mib: 10_000 * u64::from(slices),
        placements: places.to_vec(),
    }
}

/// A card of four slices: quarters, one quarter with the media engine, halves, the whole.
fn profiles() -> Vec<Profile> {
    let quarters = [(0, 1), (1, 1), (2, 1), (3, 1)];
    vec![
        profile(14, "1g.6gb", 1, 14, &quarters),
        Profile { instances: 1, ..profile(21, "1g.6gb+me", 1, 14, &quarters) },
        profile(5, "2g.12gb", 2, 28, &[(0, 2), (2, 2)]),
        profile(0, "4g.24gb", 4, 56, &[(0, 4)]),
    ]
}

fn total(table: &PartitionTable, name: &str) -> u64 {
    table.totals.get(&CounterName::new(name).unwrap())
}

#[test]
fn a_table_says_what_the_driver_says() {
    let table = table(&profiles(), None).unwrap();
    let quarter = &table.templates[0];
    assert_eq!((quarter.memory, quarter.cores.percent()), (Bytes(10_000 << 20), 25));
    assert_eq!((quarter.fraction, quarter.vendor_profile), (Fraction::new(1, 4).unwrap(), Some(14)));
    assert_eq!(
        ["mem0", "mem3", "mem4", "multiprocessors", "copy-engines"].map(|name| total(&table, name)),
        [1, 1, 0, 56, 4]
    );
    // Four of them fit and no fifth, and of those with the media engine one.
    let room = |template: &Template| {
        let mut used = CounterVector::default();
        let fits = |placement: &&Placement| {
            let takes = template.consumes.plus(&placement.consumes).unwrap();
            let sum = used.plus(&takes).unwrap();
            let fits = sum.first_excess(&table.totals).is_none();
            if fits {
                used = sum;
            }
            fits
        };
        template.placements.iter().filter(fits).count()
    };
    let rooms: Vec<usize> = table.templates.iter().map(room).collect();
    assert_eq!(rooms, [4, 1, 2, 1]);
}

#[test]
fn names_that_the_driver_lacks_are_the_catalogues() {
    let catalogue = Catalogue::embedded();
    let known = catalogue.resolve("nvidia-a30-24gb")[0].table();
    let unnamed: Vec<Profile> = profiles().into_iter().map(|p| Profile { name: None, ..p }).collect();
    let names = |table: PartitionTable| -> Vec<String> {
        table.templates.iter().map(|template| template.name.to_string()).collect()
    };
    assert_eq!(names(table(&unnamed, known).unwrap()), ["1g.6gb", "1g.6gb+me", "2g.12gb", "4g.24gb"]);
    let refused = table(&unnamed, None).unwrap_err();
    assert!(refused.contains("MIG profile 14: found no name"), "{refused}");
    // What was read wins over what the catalogue says.
    assert_eq!(table(&profiles(), known).unwrap().templates[0].memory, Bytes(10_000 << 20));
}

#[test]
fn answers_that_cannot_be_are_refused() {
    let wide = |start, size| vec![profile(14, "1g.6gb", 1, 14, &[(start, size)])];
    for profiles in [Vec::new(), wide(0, 0), wide(31, 2), wide(u32::MAX, u32::MAX)] {
        assert!(table(&profiles, None).unwrap_err().contains("memory slices"), "{profiles:?}");
    }
    let named = [profile(14, "1g 6gb/../", 1, 14, &[(0, 1)])];
    assert!(table(&named, None).is_err());
    let most = Profile { multiprocessors: u32::MAX, ..profile(14, "1g.6gb", 1, 1, &[(0, 1)]) };
    assert_eq!(table(&[most], None).unwrap().templates[0].cores, Cores::ALL);
}

#[test]
fn instances_are_parts_and_parts_are_places() {
    let profiles = profiles();
    let table = table(&profiles, None).unwrap();
    let instance = |profile, start, size| Instance { id: 3, profile, start, size, uuid: None, compute: 0 };
    let half = part_of(&instance(5, 2, 2), &table).unwrap();
    assert_eq!(half.to_string(), "2g.12gb at 2");
    assert_eq!(part_of(&instance(77, 0, 1), &table).unwrap().to_string(), "profile-77 at 0");
    let at = PartitionAt::of(&CardUuid::new("GPU-1").unwrap(), &half).unwrap();
    let (profile, place) = place_of(&at, &profiles, &table).unwrap();
    assert_eq!((profile.id, place), (5, (2, 2)));
    let nowhere = PartitionAt { placement: PlacementName("1".to_owned()), ..at };
    assert_eq!(place_of(&nowhere, &profiles, &table), None);
    let there = [instance(14, 1, 1), instance(5, 2, 2)];
    let first = |place| taken(&there, place).map(|counter| counter.to_string());
    assert_eq!(
        (first((0, 1)), first((0, 2)), first((3, 1))),
        (None, Some("mem1".into()), Some("mem3".into()))
    );
}
