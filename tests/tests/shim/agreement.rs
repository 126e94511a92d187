//! Memory of every family on two cards, allocated and freed by several processes of a container. Every
//! process, library and order of queries gives the same answer: that of the accounting, of `aliquot top` and
//! of the card.
//!
//! `ALIQUOT_SEED` names the run; it is printed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it did not expect")]

use aliquot_abi::limits::{Limits, MemoryLimit};
use aliquot_tests::shown::{
    CARDS, Held, IMPORTED, LENT, LIMIT, OPENED, PLAIN, STACKS, Scene, USERS, numbers, shuffle,
};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// The same from outside, and of accounting.
fn outside_agrees(scene: &mut Scene, card: usize, holders: &[(u64, u64)]) {
    let shown = scene.site.top("0");
    let is_over = (0..CARDS).any(|card| scene.booked(card) > scene.limit(card));
    assert_eq!(shown["problems"].as_array().unwrap().is_empty(), !is_over, "{}", shown["problems"]);
    let share = &shown["cards"][card]["shares"][0];
    let bytes = |value: &Value| value.as_u64().unwrap();
    assert_eq!(bytes(&share["memory"]["usedBytes"]), scene.booked(card));
    assert_eq!(bytes(&share["memory"]["limitBytes"]), scene.limit(card));
    let processes = share["processes"].as_array().unwrap().iter();
    let mut booked: Vec<_> = processes.map(|row| (bytes(&row["pid"]), bytes(&row["bookedBytes"]))).collect();
    booked.sort_unstable();
    assert_eq!(booked, holders, "card {card}");
    let pids: Vec<u64> = holders.iter().map(|(pid, _)| *pid).collect();
    let told = scene.monitor.say(&format!("accounted {card} {}", pids[0]));
    let (list, one) = told.split_once(" | ").unwrap_or_else(|| panic!("{told}"));
    let mut accounted = numbers(list).split_off(1);
    accounted.sort_unstable();
    assert_eq!((accounted, one), (pids.clone(), "0 0 1"), "{told}");
    let worked = scene.monitor.say(&format!("work {card}"));
    let pairs = worked.split_whitespace().filter_map(|word| word.split_once(':'));
    assert!(pairs.clone().all(|(pid, _)| pids.contains(&pid.parse().unwrap())), "{worked}");
}

fn step(scene: &mut Scene) -> usize {
    let (user, card) = (scene.random.below(USERS), scene.random.below(CARDS));
    assert_eq!(scene.say(user, &format!("on {card}")), "0");
    match scene.random.below(100) {
        0..50 => take(scene, user, card),
        50..75 => lose(scene, user),
        75..82 => lend(scene, user),
        82..88 => open(scene, user),
        88..91 => {
            assert_eq!(scene.say(user, "wait"), "0");
            card
        }
        91..94 => {
            let keeps = *scene.random.pick(&[0, 4 * MIB, u64::MAX]);
            assert_eq!(scene.say(user, &format!("pool {keeps}")), "0");
            card
        }
        94..97 => {
            let stacks = 1024 + scene.random.between(0, 64) * 64;
            let told = scene.say(user, &format!("have 0 {STACKS} {stacks}"));
            assert!(["0", "2"].contains(&told.as_str()), "{told}");
            card
        }
        _ => {
            let (limits, bytes) = (scene.files[card].limits(), scene.random.between(1, 10 << 10));
            let memory =
                MemoryLimit::Bytes(if bytes % 2 == 0 { LIMIT } else { u64::try_from(bytes).unwrap() * MIB });
            scene.files[card].change(&Limits { generation: limits.generation + 1, memory, ..limits });
            card
        }
    }
}

fn take(scene: &mut Scene, user: usize, card: usize) -> usize {
    let family = *scene.random.pick(&families());
    // The first place is that of what is no allocation.
    let Some(at) = (1..64).find(|at| scene.users[user].held[*at].is_none()) else {
        return lose(scene, user);
    };
    let told = have(scene, user, at, Held { card, family, handle: None });
    assert!(["0", "2"].contains(&told.as_str()), "family {family}: {told}");
    card
}

fn have(scene: &mut Scene, user: usize, at: usize, held: Held) -> String {
    let bytes = 1 + scene.random.below(usize::try_from(96 * MIB).unwrap());
    let told = scene.say(user, &format!("have {at} {} {bytes}", held.family));
    if told == "0" {
        scene.users[user].held[at] = Some(held);
    }
    told
}

/// One of what a process has.
fn any(scene: &mut Scene, user: usize, is_it: impl Fn(&Held) -> bool) -> Option<(usize, Held)> {
    let held = scene.users[user].held.iter().enumerate();
    let found: Vec<_> = held.filter_map(|(at, held)| Some((at, held.clone().filter(&is_it)?))).collect();
    (!found.is_empty()).then(|| scene.random.pick(&found).clone())
}

fn lose(scene: &mut Scene, user: usize) -> usize {
    let Some((at, held)) = any(scene, user, |_| true) else { return 0 };
    assert_eq!(scene.say(user, &format!("on {}", held.card)), "0");
    assert_eq!(scene.say(user, &format!("lose {at}")), "0", "{held:?}");
    scene.users[user].held[at] = None;
    held.card
}

fn lend(scene: &mut Scene, user: usize) -> usize {
    let Some((at, held)) = any(scene, user, |held| held.family == PLAIN) else { return 0 };
    let told = scene.say(user, &format!("lend {at}"));
    let handle = told.strip_prefix("0 ").unwrap_or_else(|| panic!("{told}")).to_owned();
    scene.users[user].held[at] = Some(Held { family: LENT, handle: Some(handle), ..held.clone() });
    held.card
}

fn open(scene: &mut Scene, user: usize) -> usize {
    let maker = (user + 1 + scene.random.below(USERS - 1)) % USERS;
    let lent = any(scene, maker, |held| held.family == LENT);
    let Some(at) = (1..64).find(|at| scene.users[user].held[*at].is_none()) else { return 0 };
    let Some((_, Held { card, handle: Some(handle), .. })) = lent else { return 0 };
    assert_eq!(scene.say(user, &format!("on {card}")), "0");
    assert_eq!(scene.say(user, &format!("open {at} {handle}")), "0");
    scene.users[user].held[at] = Some(Held { card, family: OPENED, handle: None });
    card
}

/// Families that one process uses without another one.
fn families() -> Vec<usize> {
    (0..=IMPORTED).filter(|family| ![LENT, OPENED].contains(family)).collect()
}

#[test]
fn every_family_is_told_alike_by_everybody_on_every_card() {
    let Some(mut scene) = Scene::new() else { return };
    // There is room for one of each.
    let mut all = families();
    shuffle(&mut scene.random, &mut all);
    for (at, family) in (1..).zip(all) {
        let (user, card) = (scene.random.below(USERS), scene.random.below(CARDS));
        assert_eq!(scene.say(user, &format!("on {card}")), "0");
        assert_eq!(have(&mut scene, user, at, Held { card, family, handle: None }), "0", "family {family}");
        scene.all_agree(card);
    }
    for number in 0..1_000 {
        let card = step(&mut scene);
        let holders = scene.all_agree(card);
        if number % 20 == 0 {
            outside_agrees(&mut scene, card, &holders);
        }
    }
    for user in 0..USERS {
        while any(&mut scene, user, |_| true).is_some() {
            lose(&mut scene, user);
        }
    }
    (0..CARDS).for_each(|card| drop(scene.all_agree(card)));
}
