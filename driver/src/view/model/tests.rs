use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_abi::limits::{ComputePolicy, FailMode, Limits, ManagedPolicy, MemoryLimit, Pages, Text};
use aliquot_core::dra::{DeviceId, Sharing};
use aliquot_core::grant::{Grant, ShareSettings};
use aliquot_core::partition::{Part, PlacementName};
use aliquot_core::units::{Bytes, Cores};
use proptest::prelude::*;

use super::*;
use crate::region::{Life, SeenProcess, UsageCopy};
use crate::view::snapshot::{
    DriverProcess, DriverView, Files, JournalView, PartitionView, Region, StateView,
};

const CARD: &str = "GPU-c6358f19-ae39-feb5-26ba-7f8d1a14d9ef";
const MIG: &str = "MIG-c6358f19-ae39-feb5-26ba-7f8d1a14d9ef";
const LIMIT: u64 = 4 << 30;

fn limits() -> Limits {
    Limits {
        generation: 1,
        memory: MemoryLimit::Bytes(LIMIT),
        share_ppm: 250_000,
        granted_ppm: 300_000,
        own_ppm: 1_000_000,
        context_bytes: 0,
        pages: Pages::ASSUMED,
        policy: ComputePolicy::Burst,
        priority: 1,
        fail_mode: FailMode::Closed,
        managed: ManagedPolicy::Charge,
        card: Text::new(CARD).unwrap(),
        claim: Text::new("claim-0").unwrap(),
    }
}

fn seen(total: u64, device_nanos: u64, processes: Vec<SeenProcess>) -> UsageCopy {
    UsageCopy {
        length: Bytes(135_168),
        total: Bytes(total),
        high_water: Bytes(total),
        denied: 2,
        reaped: 0,
        unknown_symbols: 0,
        device_nanos,
        processes,
        refusals: Vec::new(),
    }
}

fn in_books(pid: u32, life: Life, used: u64) -> SeenProcess {
    SeenProcess { pid, life, used: Bytes(used), device_nanos: 0 }
}

fn share(claim: &str, part: Part, usage: UsageCopy, at: Duration) -> ShareView {
    let dir = Path::new("/state/grants").join(claim).join("0");
    let (card, visible) = match part {
        Part::Partition { .. } => (CARD, MIG),
        Part::Card | Part::Slot { .. } => (CARD, CARD),
    };
    ShareView {
        claim: format!("default/{claim}"),
        phase: Phase::Prepared,
        grant: Grant {
            claim: claim.parse().unwrap(),
            share: "0".parse().unwrap(),
            request: "gpu".to_owned(),
            device: DeviceId { driver: "d".into(), pool: "p".into(), device: "c".into() },
            card: card.parse().unwrap(),
            part,
            sharing: Sharing::Shareable,
            memory: Bytes(LIMIT),
            cores: Cores::new(25).unwrap(),
            settings: ShareSettings::default(),
        },
        visible: Some(visible.to_owned()),
        dir,
        region: Region::There(Box::new(Files {
            limits: Ok(Limits {
                claim: Text::new(claim).unwrap(),
                card: Text::new(visible).unwrap(),
                ..limits()
            }),
            usage: Ok(usage),
            commands: BTreeMap::new(),
            at,
        })),
    }
}

fn driver(uuid: &str, processes: &[(u32, u64, Option<&str>)], busy_nanos: u64, at: Duration) -> DriverView {
    let processes: Vec<DriverProcess> = processes
        .iter()
        .map(|(pid, held, grants)| DriverProcess {
            pid: *pid,
            held: Some(Bytes(*held)),
            device_nanos: Some(busy_nanos),
            command: Some("python".to_owned()),
            grants: grants.iter().map(PathBuf::from).collect(),
        })
        .collect();
    DriverView {
        state: None,
        uuid: uuid.to_owned(),
        name: "Tesla T4".to_owned(),
        memory: Bytes(16 << 30),
        whole: true,
        in_use: Bytes(processes.iter().filter_map(|process| process.held).map(|held| held.0).sum()),
        high_water: Some(Bytes(1 << 30)),
        busy_nanos: Some(busy_nanos),
        health: CardAnswer::Well,
        processes,
        at,
    }
}

fn partition() -> Part {
    Part::Partition { template: "1g.10gb".parse().unwrap(), placement: PlacementName("0".to_owned()) }
}

fn look(shares: Vec<ShareView>, partitions: Vec<PartitionView>, drivers: Vec<DriverView>) -> Snapshot {
    let promised = Ok(JournalView { shares, partitions });
    Snapshot {
        states: vec![StateView { dir: "/state".into(), promised, against: Ok(CardRecords::default()) }],
        drivers,
        ..Snapshot::default()
    }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn process_belongs_to_its_slot_then_its_name_then_its_grants() {
    let held = in_books(5, Life::Held { pid: Some(500) }, 100);
    // Another tenant names the first one's process in its own usage file.
    let forged = in_books(500, Life::Named { pid: Some(500) }, 7);
    let shares = vec![
        share("claim-0", Part::Card, seen(7, 0, vec![forged]), seconds(0)),
        share("claim-1", Part::Card, seen(100, 0, vec![held]), seconds(0)),
    ];
    let processes = [
        (500, 120, Some("/state/grants/claim-0")),
        (600, 50, Some("/state/grants/claim-0")),
        (700, 30, Some("claim-1/0")),
        (800, 20, Some("/other/grants/claim-0")),
        (900, 10, None),
    ];
    let drawn = picture(None, &look(shares, Vec::new(), vec![driver(CARD, &processes, 0, seconds(0))]));
    let [card] = drawn.cards.as_slice() else { panic!("{drawn:?}") };
    let of = |share: usize| -> Vec<(Option<u32>, Shim, Option<Bytes>)> {
        card.place.shares[share].processes.iter().map(|p| (p.pid, p.shim, p.driver)).collect()
    };
    assert_eq!(of(0), [(Some(500), Shim::Named, None), (Some(600), Shim::Missing, Some(Bytes(50)))]);
    assert_eq!(
        of(1),
        [(Some(500), Shim::Held, Some(Bytes(120))), (Some(700), Shim::Missing, Some(Bytes(30)))]
    );
    let outside: Vec<Option<u32>> = card.place.outside.iter().map(|process| process.pid).collect();
    assert_eq!(outside, [Some(800), Some(900)]);
    let states: Vec<&str> = card.place.shares.iter().map(|share| share.enforcement.word()).collect();
    assert_eq!(states, ["bypassed", "bypassed"]);
    let driver = card.place.driver.unwrap();
    assert_eq!((card.place.books, driver.in_use, driver.unattributed), (Bytes(107), Bytes(230), Bytes(123)));
}

#[test]
fn driver_figures_beyond_the_usage_file_contradict_it() {
    const MIB: u64 = 1 << 20;
    let word = |total: u64, slot: u64, held: u64| {
        let process = in_books(5, Life::Held { pid: Some(5) }, slot);
        let shares = vec![share("claim-0", Part::Card, seen(total, 0, vec![process]), seconds(0))];
        let drawn =
            picture(None, &look(shares, Vec::new(), vec![driver(CARD, &[(5, held, None)], 0, seconds(0))]));
        (drawn.cards[0].place.shares[0].enforcement.word(), drawn.problems.len())
    };
    assert_eq!(word(100 * MIB, 100 * MIB, 116 * MIB), ("observed", 0), "pages and contexts differ a little");
    assert_eq!(word(4 * MIB, 4 * MIB, 4060 * MIB), ("contradicted", 1), "lowered totals");
    // A context without an allocation is not charged yet; beyond the limit that is no excuse.
    assert_eq!(word(0, 0, 480 * MIB), ("observed", 0));
    assert_eq!(word(0, 0, LIMIT + 17 * MIB), ("contradicted", 1));
}

#[test]
fn driver_time_beyond_a_cap_contradicts_its_credit() {
    let at = |nanos: u64, at: u64, policy| {
        let process = in_books(5, Life::Held { pid: Some(5) }, 0);
        let mut share = share("claim-0", Part::Card, seen(0, 0, vec![process]), seconds(at));
        let Region::There(files) = &mut share.region else { panic!() };
        files.limits = Ok(Limits { policy, granted_ppm: 250_000, ..files.limits.clone().unwrap() });
        look(vec![share], Vec::new(), vec![driver(CARD, &[(5, 1, None)], nanos, seconds(at))])
    };
    let word = |percent: u64, policy| {
        let drawn = picture(Some(&at(0, 1, policy)), &at(percent * 10_000_000, 2, policy));
        drawn.cards[0].place.shares[0].enforcement.word()
    };
    assert_eq!(word(42, ComputePolicy::Cap), "observed");
    assert_eq!(word(98, ComputePolicy::Cap), "contradicted");
    assert_eq!(word(98, ComputePolicy::Burst), "observed", "borrowed time");
}

#[test]
fn share_counts_as_held_only_after_a_live_slot_was_seen() {
    let word = |life: Option<Life>, change: fn(&mut Files)| {
        let processes = life.map(|life| in_books(5, life, 0)).into_iter().collect();
        let mut share = share("claim-0", Part::Card, seen(0, 0, processes), seconds(0));
        let Region::There(files) = &mut share.region else { panic!() };
        change(files);
        let drawn = picture(None, &look(vec![share], Vec::new(), Vec::new()));
        (drawn.cards[0].place.shares[0].enforcement.word(), drawn.problems.len())
    };
    assert_eq!(word(None, |_| {}), ("unseen", 0));
    assert_eq!(word(Some(Life::Dead), |_| {}), ("unseen", 0));
    assert_eq!(word(Some(Life::Held { pid: None }), |_| {}), ("observed", 0));
    assert_eq!(word(Some(Life::Named { pid: None }), |_| {}), ("observed", 0));
    assert_eq!(word(None, |files| files.usage = Err("torn".into())), ("broken", 1));
    assert_eq!(word(None, |files| files.limits = Err("torn".into())), ("broken", 1));
    let unlimited = |files: &mut Files| {
        let (memory, policy) = (MemoryLimit::Unlimited, ComputePolicy::Unlimited);
        files.limits = Ok(Limits { memory, policy, ..files.limits.clone().unwrap() });
    };
    assert_eq!(word(Some(Life::Held { pid: Some(5) }), unlimited), ("unlimited", 0));
    let bare = |memory: u64, cores: u8, part: Part, region: Region| {
        let mut share = share("claim-0", part, seen(0, 0, Vec::new()), seconds(0));
        share.grant.memory = Bytes(memory);
        share.grant.cores = Cores::new(cores).unwrap();
        let share = ShareView { region, ..share };
        let drawn = picture(None, &look(vec![share], Vec::new(), vec![driver(CARD, &[], 0, seconds(0))]));
        let [card] = drawn.cards.as_slice() else { panic!("{drawn:?}") };
        let mut places = std::iter::once(&card.place).chain(card.partitions.iter().map(|part| &part.place));
        places.find_map(|place| place.shares.first()).unwrap().enforcement.word()
    };
    let all = 16 << 30;
    assert_eq!(bare(LIMIT, 25, Part::Card, Region::Absent), "absent", "a part that needs limits");
    assert_eq!(bare(LIMIT, 0, Part::Card, Region::Absent), "absent");
    assert_eq!(bare(all, 0, Part::Card, Region::Missing), "absent", "its directory is lost");
    assert_eq!(bare(all, 25, Part::Card, Region::Absent), "absent");
    assert_eq!([0, 100].map(|cores| bare(all, cores, Part::Card, Region::Absent)), ["unlimited"; 2]);
    assert_eq!(bare(LIMIT, 0, partition(), Region::Absent), "hardware");
}

#[test]
fn percent_inside_a_partition_are_of_the_whole_card() {
    // 10 % of the card in a part that has 24 % of it.
    let at = |nanos: u64, at: Duration, policy: ComputePolicy| {
        let held = in_books(5, Life::Held { pid: Some(5) }, 0);
        let mut inside = share("claim-0", partition(), seen(0, nanos, vec![held]), at);
        inside.grant.cores = Cores::new(10).unwrap();
        let Region::There(files) = &mut inside.region else { panic!() };
        let terms =
            Limits { share_ppm: 416_666, granted_ppm: 416_666, policy, ..files.limits.clone().unwrap() };
        files.limits = Ok(terms);
        let made = PartitionView { at: inside.grant.partition().unwrap(), uuid: Some(MIG.to_owned()) };
        let part = DriverView { whole: false, ..driver(MIG, &[(5, 1, None), (6, 1, None)], nanos, at) };
        look(vec![inside], vec![made], vec![driver(CARD, &[], nanos, at), part])
    };
    let half = |policy| picture(Some(&at(0, seconds(1), policy)), &at(1_000_000_000, seconds(3), policy));
    let drawn = half(ComputePolicy::Burst);
    let [card] = drawn.cards.as_slice() else { panic!("{drawn:?}") };
    assert_eq!(card.place.driver.unwrap().busy, TimeRate::Ppm(500_000), "the card's own time");
    let place = &card.partitions[0].place;
    let share = &place.shares[0];
    assert_eq!((share.guaranteed, share.granted), (Some(100_000), Some(100_000)));
    assert_eq!(place.driver.unwrap().busy, TimeRate::Ppm(120_000));
    assert_eq!((share.measured, place.outside[0].measured), (TimeRate::Ppm(120_000), TimeRate::Ppm(120_000)));
    let forged = picture(
        Some(&at(0, seconds(1), ComputePolicy::Cap)),
        &at(2_000_000_000, seconds(3), ComputePolicy::Cap),
    );
    let [problem] = forged.problems.as_slice() else { panic!("{forged:?}") };
    assert!(problem.text.contains("reports 24 % of the card's time"), "{problem:?}");
    assert!(problem.text.contains("granted are 10 %"), "{problem:?}");
}

#[test]
fn device_time_is_a_rate_of_two_reads_and_nonsense_is_named() {
    let at = |nanos, at| {
        let share = share("claim-0", Part::Card, seen(0, nanos, Vec::new()), at);
        look(vec![share], Vec::new(), vec![driver(CARD, &[(5, 1, None)], nanos, at)])
    };
    let measured = |before: &Snapshot, now: &Snapshot| {
        let drawn = picture(Some(before), now);
        let place = &drawn.cards[0].place;
        let all = [place.shares[0].measured, place.driver.unwrap().busy, place.outside[0].measured];
        (all, drawn.problems.len())
    };
    let first = at(1_000, seconds(10));
    assert_eq!(measured(&first, &at(500_001_000, seconds(12))), ([TimeRate::Ppm(250_000); 3], 0));
    assert_eq!(measured(&first, &first), ([TimeRate::Unknown; 3], 0));
    assert_eq!(measured(&first, &at(0, seconds(12))), ([TimeRate::Implausible; 3], 1));
    assert_eq!(measured(&first, &at(u64::MAX, seconds(12))), ([TimeRate::Implausible; 3], 1));
    assert_eq!(picture(None, &first).cards[0].place.shares[0].measured, TimeRate::Unknown);
    // A share that came or went between two looks is no error.
    let empty = look(Vec::new(), Vec::new(), Vec::new());
    assert_eq!(measured(&empty, &first), ([TimeRate::Unknown; 3], 0));
    assert!(picture(Some(&first), &empty).cards.is_empty());
}

#[test]
fn a_region_that_says_what_cannot_be_is_shown_with_the_reason() {
    let mut forged = share("claim-0", Part::Card, seen(LIMIT + 1, 0, Vec::new()), seconds(0));
    let Region::There(files) = &mut forged.region else { panic!() };
    files.limits =
        Ok(Limits { claim: Text::new("other").unwrap(), card: Text::new(MIG).unwrap(), ..limits() });
    let mut usage = files.usage.clone().unwrap();
    usage.length = Bytes(1 << 40);
    files.usage = Ok(usage);
    let drawn = picture(None, &look(vec![forged], Vec::new(), Vec::new()));
    let texts: Vec<&str> = drawn.problems.iter().map(|problem| problem.text.as_str()).collect();
    assert_eq!(texts.len(), 4, "{texts:?}");
    for (text, part) in texts.iter().zip(["claim other", MIG, "1099511627776 bytes", "its limit is"]) {
        assert!(text.contains(part), "{text} lacks {part}");
    }
}

#[test]
fn partition_content_stays_in_it_and_namespaces_stay_apart() {
    let inside = share("claim-0", partition(), seen(10, 0, Vec::new()), seconds(0));
    let at = inside.grant.partition().unwrap();
    let made = PartitionView { at, uuid: Some(MIG.to_owned()) };
    let beside = share("claim-1", Part::Card, seen(20, 0, Vec::new()), seconds(0));
    let drivers = vec![
        driver(CARD, &[], 0, seconds(0)),
        DriverView { whole: false, ..driver(MIG, &[(1, 5, None)], 0, seconds(0)) },
    ];
    let mut now = look(vec![inside, beside], vec![made], drivers);
    let drawn = picture(None, &now);
    let [card] = drawn.cards.as_slice() else { panic!("{drawn:?}") };
    let [partition] = card.partitions.as_slice() else { panic!("{card:?}") };
    assert_eq!((card.place.books, partition.place.books), (Bytes(20), Bytes(10)));
    assert_eq!(partition.place.outside.len(), 1);

    // The same names in another state directory, simulated there: another card.
    let other = driver(CARD, &[(9, 9, None)], 0, seconds(0));
    now.drivers.push(DriverView { state: Some("/other".into()), ..other });
    let mut away = share("claim-2", Part::Card, seen(30, 0, Vec::new()), seconds(0));
    away.dir = "/other/grants/claim-2/0".into();
    let promised = Ok(JournalView { shares: vec![away], partitions: Vec::new() });
    now.states.push(StateView { dir: "/other".into(), promised, against: Ok(CardRecords::default()) });
    now.states.push(StateView {
        dir: "/closed".into(),
        promised: Err("not allowed".to_owned()),
        against: Ok(CardRecords::default()),
    });
    let drawn = picture(None, &now);
    let books: Vec<(Option<&Path>, Bytes)> =
        drawn.cards.iter().map(|card| (card.state.as_deref(), card.place.books)).collect();
    assert_eq!(books, [(None, Bytes(20)), (Some(Path::new("/other")), Bytes(30))]);
    assert_eq!(drawn.problems, [ViewProblem::new("state directory /closed", "not allowed")]);
}

fn any_life() -> impl Strategy<Value = Life> {
    prop_oneof![
        proptest::option::of(0..12_u32).prop_map(|pid| Life::Held { pid }),
        proptest::option::of(0..12_u32).prop_map(|pid| Life::Named { pid }),
        Just(Life::Dead),
    ]
}

prop_compose! {
    fn any_share()(
        claim in 0..4_u8,
        total in prop_oneof![0..LIMIT, any::<u64>()],
        nanos in any::<u64>(),
        processes in proptest::collection::vec((0..12_u32, any_life(), any::<u64>()), 0..6),
        at in 0..5_u64,
    ) -> ShareView {
        let processes = processes.into_iter().map(|(pid, life, used)| in_books(pid, life, used)).collect();
        share(&format!("claim-{claim}"), Part::Card, seen(total, nanos, processes), seconds(at))
    }
}

prop_compose! {
    fn any_look()(
        shares in proptest::collection::vec(any_share(), 0..5),
        processes in proptest::collection::vec((0..12_u32, 0..u64::from(u32::MAX), proptest::option::of(0..5_u8)), 0..8),
        busy in any::<u64>(),
        at in 0..5_u64,
    ) -> Snapshot {
        let grants: Vec<Option<String>> =
            processes.iter().map(|(_, _, claim)| claim.map(|claim| format!("/state/grants/claim-{claim}"))).collect();
        let processes: Vec<(u32, u64, Option<&str>)> =
            processes.iter().zip(&grants).map(|((pid, held, _), grants)| (*pid, *held, grants.as_deref())).collect();
        look(shares, Vec::new(), vec![driver(CARD, &processes, busy, seconds(at))])
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_share_and_every_byte_of_the_driver_is_shown_once(before in any_look(), now in any_look()) {
        let drawn = picture(Some(&before), &now);
        prop_assert_eq!(drawn.cards.len(), 1);
        let place = &drawn.cards[0].place;
        prop_assert_eq!(place.shares.len(), now.states[0].promised.as_ref().unwrap().shares.len());
        let inside = place.shares.iter().flat_map(|share| &share.processes);
        let shown: u64 = inside.chain(&place.outside).filter_map(|process| process.driver).map(|held| held.0).sum();
        let driver = place.driver.unwrap();
        prop_assert_eq!(shown, driver.in_use.0);
        prop_assert!(driver.unattributed.0 == driver.in_use.0.saturating_sub(place.books.0));
        for share in &place.shares {
            let missing = share.processes.iter().any(|process| process.shim == Shim::Missing);
            prop_assert_eq!(share.enforcement == Enforcement::Bypassed, missing);
        }
        let measured = place.shares.iter().map(|share| share.measured).chain([driver.busy]);
        for one in measured {
            prop_assert!(!matches!(one, TimeRate::Ppm(10_000_001..)));
        }
    }
}
