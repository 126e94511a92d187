//! Properties over random small worlds: an independent judge, memory that changes nothing, sums that stay true.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::build::*;
use crate::allocate::{Candidates, Change, Limits, Memory, NodeIndex, NodesExplained, SelectorOrigin, World};
use crate::dra::*;
use crate::rounding;

/// One step of a history.
#[derive(Clone, Debug)]
enum Action {
    Place(Vec<ResourceClaim>),
    Release(usize),
}

fn device(index: usize) -> impl Strategy<Value = Device> {
    let text = (
        0..3_u8,
        0..3_u8,
        any::<bool>(),
        prop::option::weighted(0.15, Just("taint:t=v")),
        prop::option::of(1..5_u8),
        prop::collection::vec((0..2_u8, 0..2_u8, 1..4_u8), 0..3),
        prop::option::weighted(0.3, 1..3_u8),
    );
    text.prop_map(move |(k, l, share, taint, capacity, draws, node)| {
        let mut text = format!("d{index}");
        // The value 2 stands for an attribute that is not there.
        [("k", k), ("l", l)].iter().filter(|(_, v)| *v < 2).for_each(|(name, v)| {
            text.push_str(&format!(" {name}=v{v}"));
        });
        if share {
            text.push_str(" share");
        }
        text.push_str(&taint.map(|taint| format!(" {taint}")).unwrap_or_default());
        text.push_str(&capacity.map(|units| format!(" cap:memory={units}")).unwrap_or_default());
        for (set, counter, amount) in draws {
            text.push_str(&format!(" use:s{set}.c{counter}={amount}"));
        }
        text.push_str(&node.map(|node| format!(" on:n{node}")).unwrap_or_default());
        dev(&text)
    })
}

fn world() -> impl Strategy<Value = Setup> {
    let devices = (1..6_usize).prop_flat_map(|count| (0..count).map(device).collect::<Vec<_>>());
    (devices.clone(), devices, prop::collection::vec(1..8_u8, 4)).prop_map(|(near, roaming, totals)| {
        let counters: Vec<String> =
            totals.iter().enumerate().map(|(n, total)| format!("s{}.c{}={total}", n / 2, n % 2)).collect();
        let counters: Vec<&str> = counters.iter().map(String::as_str).collect();
        let mut setup = setup().node("n2").counted("p", &counters, &[]).counted("q", &counters, &[]);
        for (slice, devices) in
            setup.slices.iter_mut().filter(|s| s.shared_counters.is_empty()).zip([near, roaming])
        {
            slice.devices = devices.into();
        }
        if let Some(last) = setup.slices.last_mut() {
            last.node = NodeSelection::PerDevice;
        }
        setup.slices[1].devices.iter_mut().for_each(|device| device.node = None);
        setup
    })
}

/// A world in which most devices are copies of a few others, between them in any order.
fn alike() -> impl Strategy<Value = Setup> {
    let places = prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 2..9);
    (world(), places).prop_map(|(mut setup, places)| {
        for slice in setup.slices.iter_mut().filter(|s| s.shared_counters.is_empty() && !s.devices.is_empty())
        {
            let few = slice.devices.clone();
            let copy = |(number, (place, numbered)): (usize, &(prop::sample::Index, bool))| {
                let mut device = few[place.index(few.len())].clone();
                device.name = format!("copy{number}");
                if *numbered {
                    // No request names it: no difference.
                    let number = i64::try_from(number).unwrap();
                    device.attributes.insert("number".into(), AttributeValue::Int(number));
                }
                device
            };
            slice.devices = places.iter().enumerate().map(copy).collect();
        }
        setup
    })
}

fn exact() -> impl Strategy<Value = String> {
    let mode = prop_oneof![6 => Just(""), 2 => Just("*2"), 1 => Just("*3"), 1 => Just("*all")];
    let words = (
        prop::option::weighted(0.2, Just("bears:t")),
        prop::option::weighted(0.5, 0..4_u8),
        prop::option::weighted(0.1, Just("admin")),
    );
    (mode, words).prop_map(|(mode, (bears, memory, admin))| {
        let mut text = format!("any{mode}");
        text.push_str(&bears.map(|word| format!(" {word}")).unwrap_or_default());
        text.push_str(&memory.map(|units| format!(" memory={units}")).unwrap_or_default());
        text.push_str(&admin.map(|word| format!(" {word}")).unwrap_or_default());
        text
    })
}

fn asked() -> impl Strategy<Value = ResourceClaim> {
    let request = prop_oneof![
        4 => exact(),
        1 => (exact(), exact()).prop_map(|(a, b)| {
            format!("{} / {}", a.replace(" admin", ""), b.replace(" admin", ""))
        }),
    ];
    let constraint = prop::option::weighted(0.4, (any::<bool>(), any::<bool>(), 0..3_usize));
    (prop::collection::vec(request, 1..3), constraint).prop_map(|(requests, constraint)| {
        let texts: Vec<&str> = requests.iter().map(String::as_str).collect();
        let asked = claim("c", &texts);
        match constraint {
            None => asked,
            Some((same, k, covered)) => {
                let names: &[&str] = [&[][..], &["r0"], &["r0/s1", "r1"]][covered];
                let attribute = if k { "k" } else { "l" };
                if same { matching(asked, names, attribute) } else { distinct(asked, names, attribute) }
            }
        }
    })
}

fn history() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        4 => prop::collection::vec(asked(), 1..3).prop_map(Action::Place),
        1 => any::<prop::sample::Index>().prop_map(|index| Action::Release(index.index(64))),
    ];
    prop::collection::vec(action, 1..14)
}

/// Claims under names and UIDs of their own.
fn named(claims: &[ResourceClaim], step: usize) -> Vec<ResourceClaim> {
    let mut claims = claims.to_vec();
    for (number, claim) in claims.iter_mut().enumerate() {
        claim.name = format!("c{step}-{number}");
        claim.uid = format!("uid-{step}-{number}");
    }
    claims
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_never_changes_an_answer_and_the_sums_stay_true(setup in world(), history in history()) {
        let mut kept = setup.clone().world();
        let mut plain = setup.world();
        plain.set_limits(Limits { memory: Memory::Off, ..Limits::default() });
        let mut held: Vec<String> = Vec::new();
        for (step, action) in history.iter().enumerate() {
            match action {
                Action::Place(claims) => {
                    let claims = named(claims, step);
                    let answer = kept.place(&claims, Candidates::All);
                    prop_assert_eq!(&answer, &plain.place(&claims, Candidates::All));
                    prop_assert_eq!(&answer, &kept.place(&claims, Candidates::All));
                    let Ok((_, results)) = answer else { continue };
                    for (claim, result) in claims.iter().zip(&results) {
                        kept.hold_as(claim, result).unwrap();
                        plain.hold_as(claim, result).unwrap();
                        held.push(claim.uid.clone());
                    }
                }
                Action::Release(index) if !held.is_empty() => {
                    let uid = held.remove(index % held.len());
                    kept.release(&uid).unwrap();
                    plain.release(&uid).unwrap();
                }
                Action::Release(_) => {}
            }
            prop_assert_eq!(kept.invariants(), Ok(()));
            prop_assert_eq!(kept.excesses(), vec![]);
        }
        for uid in held {
            kept.release(&uid).unwrap();
        }
        prop_assert_eq!(kept.state.available.clone(), plain_start(&kept));
    }

    #[test]
    fn passing_over_twins_never_changes_an_answer(setup in alike(), history in history()) {
        let mut passing = setup.clone().world();
        let mut trying = setup.world();
        passing.set_limits(Limits { steps_before_twins: 0, memory: Memory::Off, ..Limits::default() });
        trying.set_limits(Limits { steps_before_twins: u64::MAX, memory: Memory::Off, ..Limits::default() });
        for (step, action) in history.iter().enumerate() {
            let Action::Place(claims) = action else { continue };
            let claims = named(claims, step);
            let answer = passing.place(&claims, Candidates::All);
            prop_assert_eq!(&answer, &trying.place(&claims, Candidates::All));
            prop_assert_eq!(passing.invariants(), Ok(()));
            let Ok((_, results)) = answer else { continue };
            for (claim, result) in claims.iter().zip(&results) {
                passing.hold_as(claim, result).unwrap();
                trying.hold_as(claim, result).unwrap();
            }
        }
    }

    #[test]
    fn claims_are_placed_exactly_if_exhaustive_search_places_them(setup in world(), history in history()) {
        let mut world = setup.clone().world();
        let mut judge = Judge::new(&setup);
        for (step, action) in history.iter().enumerate() {
            match action {
                Action::Place(claims) => {
                    let mut claims = named(claims, step);
                    // An error of mode `All` is neither answer; the judge knows counts alone.
                    claims.retain(|claim| !format!("{claim:?}").contains("mode: All"));
                    let answer = world.allocate(NodeIndex(0), &claims);
                    prop_assert_eq!(answer.is_ok(), judge.can_place(&claims), "{:?}", answer);
                    let Ok(results) = answer else { continue };
                    for (claim, result) in claims.iter().zip(results) {
                        world.hold_as(claim, &result).unwrap();
                        judge.hold(&claim.uid, result);
                    }
                }
                Action::Release(index) => {
                    if let Some(uid) = judge.release(*index) {
                        world.release(&uid).unwrap();
                    }
                }
            }
            prop_assert_eq!(world.invariants(), Ok(()));
        }
    }

    #[test]
    fn a_remedy_places_the_claims(setup in world(), history in history()) {
        let mut world = setup.world();
        for (step, action) in history.iter().enumerate() {
            let Action::Place(claims) = action else { continue };
            let claims = named(claims, step);
            let explanation = world.explain(&claims, Candidates::All, NodesExplained::All);
            prop_assert_eq!(world.invariants(), Ok(()));
            match explanation.outcome {
                Ok(node) => {
                    for (claim, result) in claims.iter().zip(world.allocate(node, &claims).unwrap()) {
                        world.hold_as(claim, &result).unwrap();
                    }
                }
                Err(ref refusal) => {
                    let again = world.place(&claims, Candidates::All);
                    prop_assert_eq!(again.as_ref().err(), Some(refusal));
                    for node in &explanation.nodes {
                        let seen = node.requests.iter().map(|r| r.usable.len() + r.rejected.len()).max();
                        prop_assert!(seen.unwrap_or(0) <= 10);
                    }
                    if let Some(change) = explanation.remedy {
                        let mut changed = claims.clone();
                        let released = apply(&change, &mut changed);
                        let lifted = released.map(|uid| (world.take_out(&uid).unwrap(), uid));
                        prop_assert!(world.place(&changed, Candidates::All).is_ok(), "{change}");
                        if let Some((holder, uid)) = lifted {
                            world.put_back(uid, holder);
                        }
                        prop_assert!(world.place(&claims, Candidates::All).is_err());
                    }
                }
            }
        }
    }
}

/// Makes the change in the claims, or names the UID to release.
fn apply(change: &Change, claims: &mut [ResourceClaim]) -> Option<String> {
    let mut request = |claim: &str, request: &str, edit: &dyn Fn(&mut ExactRequest)| {
        let claim = claims.iter_mut().find(|known| format!("default/{}", known.name) == claim).unwrap();
        let (parent, sub) = request.split_once('/').unwrap_or((request, ""));
        match &mut claim.requests.iter_mut().find(|known| known.name == parent).unwrap().kind {
            RequestKind::Exactly(exact) => edit(exact),
            RequestKind::FirstAvailable(subs) => {
                edit(&mut subs.iter_mut().find(|known| known.name == sub).unwrap().request);
            }
        }
    };
    match change {
        Change::TolerateTaint { claim, request: name, taint } => request(claim, name, &|exact| {
            let (key, operator) = (Some(taint.key.clone()), TolerationOperator::Exists);
            exact.tolerations.push(Toleration { key, operator, effect: None, seconds: None });
        }),
        Change::LowerCapacity { claim, request: name, capacity, to, .. } => request(claim, name, &|exact| {
            exact.capacity.insert(capacity.clone(), *to);
        }),
        Change::LowerCount { claim, request: name, to, .. } => request(claim, name, &|exact| {
            exact.mode = AllocationMode::ExactCount(*to);
        }),
        Change::GuardSelector { claim, request: name, origin: SelectorOrigin::Request { index }, guard } => {
            request(claim, name, &|exact| {
                let guarded = format!("{guard} && ({})", exact.selectors[*index]);
                exact.selectors[*index] = guarded;
            });
        }
        Change::GuardSelector { origin, .. } => {
            unreachable!("the selectors of this world's classes read no key: {origin}")
        }
        Change::DropSelector { claim, request: name, expression } => request(claim, name, &|exact| {
            exact.selectors.retain(|known| known != expression);
        }),
        Change::DropConstraint { claim, index, .. } => {
            let claim = claims.iter_mut().find(|known| format!("default/{}", known.name) == *claim).unwrap();
            claim.constraints.remove(*index);
        }
        Change::ReleaseClaim { claim, .. } => return Some(claim.replace("default/c", "uid-")),
        Change::CompletePools { .. } => {}
    }
    None
}

fn plain_start(world: &World) -> Vec<i128> {
    world.index.slots.iter().map(|slot| world.index.counter(*slot).total.nanos()).collect()
}

/// Tries everything: every alternative, every device for every place, no order, no memory, no short cuts.
struct Judge {
    devices: Vec<(String, Device)>,
    totals: BTreeMap<(String, String, String), i128>,
    held: Vec<(String, AllocationResult)>,
}

/// One place to fill: the claim, the request's full name, the request.
type Place<'a> = (usize, String, &'a ExactRequest);

impl Judge {
    fn new(setup: &Setup) -> Self {
        let mut devices = Vec::new();
        let mut totals = BTreeMap::new();
        for slice in &setup.slices {
            for set in &slice.shared_counters {
                for (counter, total) in &set.counters {
                    let key = (slice.pool.name.clone(), set.name.clone(), counter.clone());
                    totals.insert(key, total.nanos());
                }
            }
            let on_n1 = |device: &&Device| match slice.node {
                NodeSelection::PerDevice => device.node == Some(NodeSelection::Name("n1".into())),
                _ => true,
            };
            devices.extend(slice.devices.iter().filter(on_n1).map(|d| (slice.pool.name.clone(), d.clone())));
        }
        Self { devices, totals, held: Vec::new() }
    }

    fn hold(&mut self, uid: &str, result: AllocationResult) {
        self.held.push((uid.to_owned(), result));
    }

    fn release(&mut self, index: usize) -> Option<String> {
        let at = index.checked_rem(self.held.len())?;
        Some(self.held.remove(at).0)
    }

    fn can_place(&self, claims: &[ResourceClaim]) -> bool {
        self.expand(claims, 0, 0, &mut Vec::new())
    }

    /// Chooses an alternative for each request, then fills the places.
    fn expand<'a>(
        &self,
        claims: &'a [ResourceClaim],
        claim: usize,
        request: usize,
        places: &mut Vec<Place<'a>>,
    ) -> bool {
        let Some(asked) = claims.get(claim) else {
            return self.fill(claims, places, &mut Vec::new());
        };
        let Some(wanted) = asked.requests.get(request) else {
            return self.expand(claims, claim + 1, 0, places);
        };
        let alternatives: Vec<(String, &ExactRequest)> = match &wanted.kind {
            RequestKind::Exactly(exact) => vec![(wanted.name.clone(), exact)],
            RequestKind::FirstAvailable(subs) => {
                subs.iter().map(|sub| (format!("{}/{}", wanted.name, sub.name), &sub.request)).collect()
            }
        };
        alternatives.into_iter().any(|(name, exact)| {
            let AllocationMode::ExactCount(count) = exact.mode else { return false };
            let before = places.len();
            places.extend((0..count).map(|_| (claim, name.clone(), exact)));
            let found = self.expand(claims, claim, request + 1, places);
            places.truncate(before);
            found
        })
    }

    fn fill(&self, claims: &[ResourceClaim], places: &[Place<'_>], chosen: &mut Vec<usize>) -> bool {
        if chosen.len() == places.len() {
            return self.is_sound(claims, places, chosen);
        }
        // A choice that is wrong already stays wrong: prune, or the product is too large.
        (chosen.is_empty() || self.is_sound(claims, &places[..chosen.len()], chosen))
            && (0..self.devices.len()).any(|device| {
                chosen.push(device);
                let found = self.fill(claims, places, chosen);
                chosen.pop();
                found
            })
    }

    fn is_sound(&self, claims: &[ResourceClaim], places: &[Place<'_>], chosen: &[usize]) -> bool {
        let picked: Vec<(&Place<'_>, &(String, Device))> =
            places.iter().zip(chosen.iter().map(|device| &self.devices[*device])).collect();
        picked
            .iter()
            .enumerate()
            .all(|(at, (place, device))| self.serves(place.2, device) && self.is_free(at, &picked))
            && self.counters_hold(&picked)
            && claims.iter().enumerate().all(|(claim, asked)| constraints_hold(claim, asked, &picked))
    }

    fn serves(&self, asked: &ExactRequest, (_, device): &(String, Device)) -> bool {
        let bears = device.taints.is_empty() || !asked.tolerations.is_empty();
        bears && asked.capacity.keys().all(|name| device.capacity.contains_key(name))
    }

    fn results(&self) -> impl Iterator<Item = &DeviceResult> {
        self.held.iter().flat_map(|(_, result)| &result.devices).filter(|r| r.access == Access::Normal)
    }

    fn is_free(&self, at: usize, picked: &[(&Place<'_>, &(String, Device))]) -> bool {
        let (place, (pool, device)) = picked[at];
        let same =
            |other: &&(&Place<'_>, &(String, Device))| other.1.0 == *pool && other.1.1.name == device.name;
        let earlier = || picked[..at].iter().filter(same);
        if earlier().any(|(other, _)| other.0 == place.0 && other.1 == place.1) {
            return false;
        }
        let holders = || self.results().filter(|r| r.device.pool == *pool && r.device.device == device.name);
        if device.sharing == Sharing::Exclusive {
            return match place.2.access {
                Access::Normal => {
                    holders().count() == 0 && earlier().count() == 0 && enough(place.2, device, 0)
                }
                Access::Admin => {
                    !earlier().any(|(other, _)| other.0 == place.0) && enough(place.2, device, 0)
                }
            };
        }
        let held: i128 = holders().filter_map(|r| r.consumed_capacity.get("memory")).map(|q| q.nanos()).sum();
        let taken: i128 = earlier().map(|(other, _)| takes(other.2, device)).sum();
        enough(place.2, device, held + taken)
    }

    /// Every device that is held or picked draws once; one without capacity draws again if it was held before.
    fn counters_hold(&self, picked: &[(&Place<'_>, &(String, Device))]) -> bool {
        let mut left = self.totals.clone();
        let mut draw = |pool: &str, device: &Device| {
            for consumption in &device.consumes {
                for (counter, amount) in &consumption.counters {
                    let key = (pool.to_owned(), consumption.counter_set.clone(), counter.clone());
                    *left.get_mut(&key).unwrap() -= amount.nanos();
                }
            }
        };
        let held =
            |pool: &str, name: &str| self.results().any(|r| r.device.pool == pool && r.device.device == name);
        for (pool, device) in self.devices.iter().filter(|(pool, device)| held(pool, &device.name)) {
            draw(pool, device);
        }
        let mut drawn: Vec<(&str, &str)> = Vec::new();
        for (_, (pool, device)) in picked {
            let shared = device.sharing == Sharing::Shareable;
            let paid = shared && !device.capacity.is_empty() && held(pool, &device.name);
            let again = shared && drawn.contains(&(pool, &device.name));
            if !(paid || again) {
                draw(pool, device);
            }
            drawn.push((pool, &device.name));
        }
        let touched: Vec<&str> =
            picked.iter().filter(|(_, d)| !d.1.consumes.is_empty()).map(|(_, d)| d.0.as_str()).collect();
        left.iter().all(|((pool, ..), left)| *left >= 0 || !touched.contains(&pool.as_str()))
    }
}

fn takes(asked: &ExactRequest, device: &Device) -> i128 {
    let Some(capacity) = device.capacity.get("memory") else { return 0 };
    rounding::consumption(capacity, asked.capacity.get("memory").copied()).unwrap().nanos()
}

fn enough(asked: &ExactRequest, device: &Device, used: i128) -> bool {
    device.capacity.get("memory").is_none_or(|capacity| used + takes(asked, device) <= capacity.value.nanos())
}

fn constraints_hold(claim: usize, asked: &ResourceClaim, picked: &[(&Place<'_>, &(String, Device))]) -> bool {
    asked.constraints.iter().all(|constraint| {
        let covered = picked.iter().filter(|(place, _)| {
            let parent = place.1.split('/').next().unwrap();
            let named = constraint.requests.iter().any(|name| *name == place.1 || name == parent);
            place.0 == claim && (constraint.requests.is_empty() || named)
        });
        let (ConstraintRule::Match(name) | ConstraintRule::Distinct(name)) = &constraint.rule;
        let bare = name.split_once('/').unwrap().1;
        let values: Vec<_> = covered.map(|(_, (_, device))| device.attributes.get(bare)).collect();
        let pairs = || (0..values.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        values.iter().all(Option::is_some)
            && match constraint.rule {
                ConstraintRule::Match(_) => pairs().all(|(a, b)| values[a] == values[b]),
                ConstraintRule::Distinct(_) => pairs().all(|(a, b)| values[a] != values[b]),
            }
    })
}
