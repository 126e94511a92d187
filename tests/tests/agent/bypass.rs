//! A process of a claim that uses the card without the shim: the claim is told why its others get less.

use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_driver::ports::{EventObject, Truth};
use aliquot_tests::fake_kubelet::FakeKubelet;
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::running_agent::{FakeCluster, RunningAgent};
use aliquot_tests::simulated::{Bench, Link, StoodAside};

const HALF: Want = Want { card: 0, part: "card", memory_mib: Some(4096), cores: 50 };

/// A child that is killed with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

async fn until(what: &str, there: impl Fn() -> bool) {
    let begun = Instant::now();
    while !there() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited for: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn event_names_the_process_that_bypasses_the_shim() {
    let bench = Bench::new();
    let program = match bench.compile("sim_probe", Link::Opened) {
        Ok(program) => program,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    let (world, kubelet) = (World::new("t4-2", ""), FakeKubelet::default());
    let cluster = Arc::new(FakeCluster::default());
    let node = world.open();
    cluster.put(&claim(&node, "a", &[HALF]));
    let agent = RunningAgent::start(node, &kubelet, &cluster, None);
    let plugin = kubelet.register().await;
    plugin.prepare(&[("test", "claim-a", "a")]).await["a"].clone().unwrap();
    let cards = world.state().join("cards");
    until("the simulated cards", || cards.join("node.toml").exists()).await;

    // No preload: as a static program, or one that keeps the shim out of itself.
    let mut tenant = bench.command(program);
    tenant.args(["busy", "2000000"]).env("ALIQUOT_GRANTS", world.state().join("grants/a"));
    tenant.env(aliquot_sim_device::DIR_ENV, &cards).stdin(Stdio::piped()).stdout(Stdio::piped());
    let tenant = Killed(tenant.spawn().unwrap());
    let told = || {
        let events = cluster.events.lock();
        events.iter().filter(|event| event.reason == "ShimBypassed").cloned().collect::<Vec<_>>()
    };
    until("the Event", || !told().is_empty()).await;
    let events = told();
    assert!(matches!(&events[0].about, EventObject::Claim(claim) if claim.name == "claim-a"), "{events:?}");
    let named = format!("process {} (sim_probe) uses the card without the shim", tenant.0.id());
    assert!(events[0].message.contains(&named), "{events:?}");
    assert!(events[0].message.contains("charged to the claim"), "{events:?}");
    let enforced = || {
        let statuses = cluster.statuses.lock();
        let conditions = statuses.get("a").into_iter().flatten().flat_map(|device| &device.conditions);
        conditions
            .filter(|condition| condition.kind == "Enforced")
            .map(|condition| condition.status)
            .next_back()
    };
    until("the condition", || enforced() == Some(Truth::False)).await;
    drop(tenant);
    until("the end of it", || enforced().is_some_and(|status| status != Truth::False)).await;
    assert_eq!(told().len(), 1, "told once");
    agent.stop().await;
}
