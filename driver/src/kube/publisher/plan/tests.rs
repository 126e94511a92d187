use std::collections::BTreeMap;

use aliquot_core::dra::{Device, NodeSelection, Pool};
use proptest::prelude::*;

use super::*;
use crate::kube::convert;

const DRIVER: &str = "aliquot.dev";

/// A server in memory: writes take effect at once, in order.
struct Server {
    copies: ServerCopies,
    version: u64,
}

impl Server {
    fn new() -> Self {
        Self { copies: ServerCopies::new(DRIVER, "n1"), version: 1 }
    }

    fn put(&mut self, slice: &ResourceSlice, owner: Option<&str>) {
        self.version += 1;
        let uid = match self.copies.get(&slice.name) {
            Some(copy) => copy.uid().to_owned(),
            None => format!("uid-{}", self.version),
        };
        let mut object = convert::to_api(slice).unwrap();
        object.metadata.uid = Some(uid);
        object.metadata.resource_version = Some(self.version.to_string());
        if let Some(owner) = owner {
            object.metadata.owner_references =
                Some(vec![k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
                    kind: "Node".to_owned(),
                    uid: owner.to_owned(),
                    ..Default::default()
                }]);
        }
        self.copies.take(ServerSlice::new(object));
    }

    fn apply(&mut self, write: &Write) {
        match write {
            Write::Delete(name) => self.copies.remove(name),
            Write::Update(slice) => {
                assert!(self.copies.get(&slice.name).is_some(), "update of an absent slice");
                self.put(slice, None);
            }
            Write::Create(slice) => {
                assert!(self.copies.get(&slice.name).is_none(), "create of a present slice");
                self.put(slice, None);
            }
        }
    }

    fn plan(&self, desired: &[ResourceSlice]) -> Vec<Write> {
        plan(&Situation {
            desired,
            copies: &self.copies,
            accepted: &BTreeMap::new(),
            owner: None,
            label: None,
            frozen: &BTreeSet::new(),
        })
    }

    fn converge(&mut self, desired: &[ResourceSlice]) -> Vec<Write> {
        let writes = self.plan(desired);
        for write in &writes {
            self.apply(write);
        }
        assert_eq!(self.plan(desired), []);
        writes
    }

    /// The device names by slice that a reader takes for the pool; `None`: the pool is incomplete.
    fn seen(&self, pool: &str) -> Option<BTreeMap<String, Vec<String>>> {
        let of_pool = || self.copies.iter().filter(|copy| copy.pool() == pool);
        let highest = of_pool().map(ServerSlice::generation).max()?;
        let current: Vec<&ServerSlice> = of_pool().filter(|copy| copy.generation() == highest).collect();
        let complete = current.iter().all(|copy| copy.slice_count() == i64::try_from(current.len()).unwrap());
        complete.then(|| {
            current.iter().map(|copy| (copy.name().to_owned(), devices(copy.content().unwrap()))).collect()
        })
    }
}

fn devices(slice: &ResourceSlice) -> Vec<String> {
    slice.devices.iter().map(|device| device.name.clone()).collect()
}

fn slice(pool: &str, index: usize, content: u8) -> ResourceSlice {
    ResourceSlice {
        name: format!("{pool}-{index}"),
        driver: DRIVER.to_owned(),
        pool: Pool { name: pool.to_owned(), generation: 1, slice_count: 1 },
        node: NodeSelection::Name("n1".to_owned()),
        devices: vec![Device::named(format!("d{index}-{content}"))].into(),
        shared_counters: Vec::new().into(),
    }
}

fn pool_of(pool: &str, contents: &[u8]) -> Vec<ResourceSlice> {
    contents.iter().enumerate().map(|(index, content)| slice(pool, index, *content)).collect()
}

fn words(writes: &[Write]) -> Vec<String> {
    let numbered = |verb: &str, slice: &ResourceSlice| {
        format!("{verb} {} g{} of {}", slice.name, slice.pool.generation, slice.pool.slice_count)
    };
    let word = |write: &Write| match write {
        Write::Delete(name) => format!("delete {name}"),
        Write::Update(slice) => numbered("update", slice),
        Write::Create(slice) => numbered("create", slice),
    };
    writes.iter().map(word).collect()
}

#[test]
fn plan_of_each_change_is_minimal() {
    /// Name, contents before and after, writes.
    type Case = (&'static str, &'static [u8], &'static [u8], &'static [&'static str]);
    let cases: &[Case] = &[
        ("first publication", &[], &[0, 0], &["create a-0 g1 of 2", "create a-1 g1 of 2"]),
        ("no change", &[0, 0], &[0, 0], &[]),
        ("one content", &[0, 0], &[0, 1], &["update a-1 g1 of 2"]),
        (
            "two contents",
            &[0, 0, 0],
            &[1, 1, 0],
            &["update a-0 g2 of 3", "update a-1 g2 of 3", "update a-2 g2 of 3"],
        ),
        ("one more", &[0], &[0, 0], &["update a-0 g2 of 2", "create a-1 g2 of 2"]),
        ("one fewer", &[0, 0], &[0], &["delete a-1", "update a-0 g2 of 1"]),
        ("pool gone", &[0, 0], &[], &["delete a-0", "delete a-1"]),
    ];
    for (case, before, after, expected) in cases {
        let mut server = Server::new();
        server.converge(&pool_of("a", before));
        assert_eq!(words(&server.converge(&pool_of("a", after))), *expected, "{case}");
    }
}

#[test]
fn wiped_slices_are_created_at_their_generation() {
    let desired = pool_of("a", &[0, 0, 0]);
    let mut server = Server::new();
    server.converge(&pool_of("a", &[1, 1, 1]));
    server.converge(&desired);
    server.copies.remove("a-1");
    assert_eq!(words(&server.converge(&desired)), ["create a-1 g2 of 3"]);
    for name in ["a-0", "a-1", "a-2"] {
        server.copies.remove(name);
    }
    let all = ["create a-0 g1 of 3", "create a-1 g1 of 3", "create a-2 g1 of 3"];
    assert_eq!(words(&server.converge(&desired)), all);
}

#[test]
fn missing_and_changed_slices_raise_the_generation() {
    let mut server = Server::new();
    server.converge(&pool_of("a", &[0, 0]));
    server.copies.remove("a-0");
    let writes = server.converge(&pool_of("a", &[0, 1]));
    assert_eq!(words(&writes), ["update a-1 g2 of 2", "create a-0 g2 of 2"]);
}

#[test]
fn slices_at_an_older_generation_are_raised_alone() {
    let mut server = Server::new();
    server.converge(&pool_of("a", &[0, 0]));
    let interrupted = server.plan(&pool_of("a", &[1, 1]));
    server.apply(&interrupted[0]);
    assert_eq!(words(&server.converge(&pool_of("a", &[1, 1]))), ["update a-1 g2 of 2"]);
}

#[test]
fn slices_of_unknown_names_are_deleted_first() {
    let mut server = Server::new();
    server.put(&ResourceSlice { name: "zz-older".to_owned(), ..slice("a", 0, 0) }, None);
    let writes = server.converge(&pool_of("a", &[0]));
    assert_eq!(words(&writes), ["delete zz-older", "create a-0 g1 of 1"]);
}

#[test]
fn slice_that_changes_its_pool_is_deleted_and_created() {
    let mut server = Server::new();
    server.put(&slice("a", 0, 0), None);
    let moved = ResourceSlice { name: "a-0".to_owned(), ..slice("b", 0, 0) };
    assert_eq!(words(&server.converge(&[moved])), ["delete a-0", "create a-0 g1 of 1"]);
}

#[test]
fn highest_possible_generation_begins_again() {
    let mut server = Server::new();
    let mut foreign = slice("a", 0, 1);
    foreign.pool = Pool { name: "a".to_owned(), generation: i64::MAX, slice_count: 7 };
    server.put(&foreign, None);
    assert_eq!(words(&server.converge(&pool_of("a", &[0]))), ["delete a-0", "create a-0 g1 of 1"]);
}

#[test]
fn owner_of_another_node_object_is_replaced() {
    let mut server = Server::new();
    let mut desired = slice("a", 0, 0);
    desired.pool.slice_count = 1;
    server.put(&desired, Some("old"));
    let plan_for = |owner| {
        words(&plan(&Situation {
            desired: std::slice::from_ref(&desired),
            copies: &server.copies,
            accepted: &BTreeMap::new(),
            owner,
            label: None,
            frozen: &BTreeSet::new(),
        }))
    };
    assert_eq!(plan_for(Some("new")), ["update a-0 g1 of 1"]);
    assert_eq!(plan_for(Some("old")), Vec::<String>::new());
    assert_eq!(plan_for(None), Vec::<String>::new());
}

#[test]
fn accepted_losses_are_not_written_again() {
    let mut server = Server::new();
    let mut sent = slice("a", 0, 0);
    sent.pool.slice_count = 1;
    server.put(&slice("a", 0, 9), None);
    let version = server.copies.get("a-0").unwrap().resource_version().to_owned();
    let plan_with = |resource_version: &str| {
        let accepted = AcceptedWrite { sent: sent.clone(), resource_version: resource_version.to_owned() };
        words(&plan(&Situation {
            desired: std::slice::from_ref(&sent),
            copies: &server.copies,
            accepted: &BTreeMap::from([("a-0".to_owned(), accepted)]),
            owner: None,
            label: None,
            frozen: &BTreeSet::new(),
        }))
    };
    assert_eq!(plan_with(&version), Vec::<String>::new());
    assert_eq!(plan_with("0"), ["update a-0 g1 of 1"]);
}

#[test]
fn frozen_pools_are_left_as_they_are() {
    let mut server = Server::new();
    server.converge(&[pool_of("a", &[0, 0]), pool_of("b", &[0])].concat());
    let writes = plan(&Situation {
        desired: &[pool_of("a", &[1]), pool_of("b", &[1])].concat(),
        copies: &server.copies,
        accepted: &BTreeMap::new(),
        owner: None,
        label: None,
        frozen: &BTreeSet::from(["a".to_owned()]),
    });
    assert_eq!(words(&writes), ["update b-0 g1 of 1"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Plans are cut off anywhere and slices are wiped at random; a reader never takes a mix for a complete pool.
    #[test]
    fn readers_never_see_a_mix_as_a_complete_pool(
        steps in prop::collection::vec(
            (prop::collection::vec(0_u8..3, 0..4), 0_usize..8, prop::collection::vec(0_usize..4, 0..2)),
            1..10,
        ),
    ) {
        let mut server = Server::new();
        let mut published: Vec<BTreeMap<String, Vec<String>>> = Vec::new();
        for (contents, executed, wiped) in steps {
            let desired = pool_of("a", &contents);
            published.push(desired.iter().map(|slice| (slice.name.clone(), devices(slice))).collect());
            for write in server.plan(&desired).iter().take(executed) {
                server.apply(write);
                if let Some(seen) = server.seen("a") {
                    prop_assert!(published.contains(&seen), "{seen:?} was never desired");
                }
            }
            for index in wiped {
                server.copies.remove(&format!("a-{index}"));
            }
        }
        let last = pool_of("a", &[2, 2, 2]);
        server.converge(&last);
        let seen = server.seen("a").unwrap();
        prop_assert_eq!(seen, last.iter().map(|slice| (slice.name.clone(), devices(slice))).collect());
    }
}
