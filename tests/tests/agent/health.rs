//! What a card reports of itself reaches the slices, the kubelet and Events; and what it takes until the card counts as well again.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::dra::AttributeValue;
use aliquot_core::ports::{DeviceBackend as _, ExpectedPartition};
use aliquot_driver::agent::pace::AgentPace;
use aliquot_driver::ports::DesiredSlices;
use aliquot_sim_device::{Card, Health};
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::running_agent::{FakeCluster, PACE, RunningAgent};
use parking_lot::Mutex;

const PARTITION: Want = Want { card: 0, part: "1g.10gb at 0", memory_mib: None, cores: 0 };
/// An error of the card's memory, and one of a program.
const OF_THE_CARD: u64 = 48;
const OF_A_PROGRAM: u64 = 13;
/// Longer than a lost card is on trial, and the looks before and behind it.
const BEYOND_TRIAL: Duration = Duration::from_millis(3500);

/// A node without runs, and its agent.
struct Bench {
    world: World,
    cluster: Arc<FakeCluster>,
    _kubelet: FakeKubelet,
    agent: RunningAgent,
    plugin: Plugin,
}

impl Bench {
    async fn new(claims: &[(&str, &[Want])]) -> Self {
        Self::paced(claims, PACE).await
    }

    async fn paced(claims: &[(&str, &[Want])], pace: AgentPace) -> Self {
        let (world, kubelet, cluster) =
            (World::new("mixed", ""), FakeKubelet::default(), Arc::new(FakeCluster::default()));
        let node = world.open();
        for (uid, wants) in claims {
            cluster.put(&claim(&node, uid, wants));
        }
        let agent = RunningAgent::paced(node, &kubelet, &cluster, pace);
        let plugin = kubelet.register().await;
        Self { world, cluster, _kubelet: kubelet, agent, plugin }
    }

    /// A card as hardware that breaks, once the agent has made it.
    async fn hardware(&self, index: usize) -> Card {
        let directory = self.world.state().join("cards");
        eventually(|| directory.join("node.toml").exists()).await;
        aliquot_sim_device::open(&directory).unwrap().card(index).unwrap().clone()
    }

    fn notes(&self) -> String {
        std::fs::read_to_string(self.world.state().join("health")).unwrap_or_default()
    }

    /// Reports an error until it is noted: before the agent watches the card, it is lost.
    async fn report(&self, card: &Card, xid: u64) {
        let noted = format!("code {xid} ");
        eventually(|| {
            card.raise_xid(xid, None);
            self.notes().contains(&noted)
        })
        .await;
    }

    /// Waits until devices of this card, and of no other, are tainted, or none is.
    async fn tainted(&self, card: Option<&str>) {
        let mut desired = self.agent.desired.clone();
        let cards = || card.into_iter().map(str::to_owned).collect::<Vec<_>>();
        let waited = desired.wait_for(|desired| tainted_cards(desired.as_ref()) == cards());
        let waited = tokio::time::timeout(Duration::from_secs(60), waited).await;
        assert!(waited.is_ok(), "tainted: {:?}, expected {card:?}", self.tainted_now());
    }

    fn tainted_now(&self) -> Vec<String> {
        tainted_cards(self.agent.desired.borrow().as_ref())
    }

    fn reasons(&self) -> Vec<&'static str> {
        self.cluster.events.lock().iter().map(|event| event.reason).collect()
    }
}

/// UUIDs of cards with tainted devices.
fn tainted_cards(desired: Option<&DesiredSlices>) -> Vec<String> {
    let devices = desired.into_iter().flat_map(|desired| &desired.slices).flat_map(|slice| &slice.devices);
    let uuids = devices.filter(|device| !device.taints.is_empty()).filter_map(|device| {
        device.attributes.values().find_map(|value| match value {
            AttributeValue::String(text) if text.starts_with("GPU-") => Some(text.clone()),
            _ => None,
        })
    });
    let mut uuids: Vec<String> = uuids.collect();
    uuids.sort();
    uuids.dedup();
    uuids
}

pub(super) async fn eventually(mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "not within a minute");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn error_of_a_card_is_published_before_the_next_timer() {
    // The first look begins the watch; the second one would come after the test.
    let bench = Bench::paced(&[], AgentPace { look: Duration::from_secs(600), ..PACE }).await;
    let card = bench.hardware(0).await;
    bench.report(&card, OF_THE_CARD).await;
    bench.tainted(Some(&card.facts().uuid)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_of_an_idle_card_ends_with_a_reset_alone() {
    let bench = Bench::new(&[]).await;
    let card = bench.hardware(2).await;
    let uuid = card.facts().uuid.clone();
    bench.report(&card, OF_A_PROGRAM).await;
    bench.report(&card, OF_THE_CARD).await;
    bench.tainted(Some(&uuid)).await;
    eventually(|| bench.reasons() == ["CardUnhealthy"]).await;
    tokio::time::sleep(BEYOND_TRIAL).await;
    assert_eq!(bench.tainted_now(), [uuid.as_str()], "silence is no proof of a reset");
    // A reset, as its driver shows it.
    card.set_health(Health::Lost);
    eventually(|| bench.notes().contains("lost")).await;
    card.set_health(Health::Well);
    bench.tainted(None).await;
    eventually(|| bench.reasons().last() == Some(&"CardRecovered")).await;
    // The card is watched again.
    bench.report(&card, OF_THE_CARD).await;
    bench.tainted(Some(&uuid)).await;
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_card_without_its_partitions_stays_tainted() {
    let bench = Bench::new(&[("a", &[PARTITION])]).await;
    let named = [("test", "claim-a", "a")];
    bench.plugin.prepare(&named).await["a"].clone().unwrap();
    let card = bench.hardware(0).await;
    let uuid = card.facts().uuid.clone();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (mut health, hears) = (bench.plugin.health().await, Arc::clone(&told));
    tokio::spawn(async move {
        while let Ok(Some(report)) = health.message().await {
            hears.lock().push(report.devices.iter().any(|device| device.health == 2));
        }
    });
    // The agent watches the card from its first look on.
    bench.report(&card, OF_A_PROGRAM).await;
    card.set_health(Health::Lost);
    bench.tainted(Some(&uuid)).await;
    // The reset destroys what was made on the card.
    let partition = bench.world.live().remove(0);
    bench.world.hardware().destroy_partition(&partition.at, &ExpectedPartition::Any).unwrap();
    card.set_health(Health::Well);
    tokio::time::sleep(BEYOND_TRIAL).await;
    assert_eq!(bench.tainted_now(), [uuid.as_str()], "a claim has a partition that is gone");
    assert_eq!(bench.plugin.unprepare(&named).await["a"], "");
    bench.tainted(None).await;
    assert!(!bench.notes().contains("lost"), "{}", bench.notes());
    // The kubelet hears of both.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let told = told.lock().clone();
    assert!(told.contains(&true) && told.last() == Some(&false), "{told:?}");
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_on_trial_keeps_the_card_unhealthy() {
    let bench = Bench::new(&[]).await;
    let card = bench.hardware(2).await;
    let uuid = card.facts().uuid.clone();
    bench.report(&card, OF_THE_CARD).await;
    card.set_health(Health::Lost);
    eventually(|| bench.notes().contains("lost")).await;
    card.set_health(Health::Well);
    // What was noted before the loss is gone; the same error again is news.
    eventually(|| !bench.notes().contains("code 48 ")).await;
    bench.report(&card, OF_THE_CARD).await;
    eventually(|| !bench.notes().contains("lost")).await;
    tokio::time::sleep(BEYOND_TRIAL / 2).await;
    assert_eq!(bench.tainted_now(), [uuid.as_str()]);
    assert!(!bench.reasons().contains(&"CardRecovered"), "{:?}", bench.reasons());
    bench.agent.stop().await;
}
