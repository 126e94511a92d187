//! The agent as the kubelet meets it: registration, claims in and out, bad input, health, stop.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::sync::Arc;
use std::time::Duration;

use aliquot_backend_sim::Personality;
use aliquot_core::dra::{
    Access as DeviceAccess, AllocationMode, AttributeValue, DeviceRequest, ExactRequest, RequestKind,
    ResourceClaim,
};
use aliquot_core::offer::ServerVersion;
use aliquot_core::ports::DeviceBackend as _;
use aliquot_driver::agent::pace::AgentPace;
use aliquot_driver::disk::Disk;
use aliquot_driver::node::{Access, Dirs, Node, NodeParts};
use aliquot_driver::ports::{DesiredSlices, DeviceStatus, EventObject, EventSeverity, Truth};
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::running_agent::{FakeCluster, PACE, RunningAgent, SERVER};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What grpc-go 1.81.1 sends for `GetInfo` to a socket without `@` in its path: preface, SETTINGS, HEADERS,
/// empty DATA.
const GO_CALL: &str = "505249202a20485454502f322e300d0a0d0a534d0d0a0d0a00000004000000000000000004010000000000008b0104000000018386459c62ba2d98d558598c84d83498f52fb4b31909b06931ea63115392a94f41b35458534d6a8b0d96a1340e354587b8ec545868346a8b0f5b632d054aa2c35d16cc6a91158598c84d9e95161f2b58599741c9d75f8b1d75d0620d263d4c4d65647a8a9acac8b4c7602bbc15c340027465864d833505b11f40899acac8b24d494f6a7f8669f7df0b4d5b0000050001000000010000000000";

pub(super) const SHARE: Want = Want { card: 2, part: "card", memory_mib: Some(2048), cores: 20 };
pub(super) const REST: Want = Want { card: 2, part: "card", memory_mib: Some(15000), cores: 0 };
const PARTITION: Want = Want { card: 0, part: "1g.10gb at 0", memory_mib: None, cores: 0 };

/// A node, its agent, a kubelet that registered it.
pub(super) struct Bench {
    pub(super) world: World,
    pub(super) kubelet: FakeKubelet,
    pub(super) cluster: Arc<FakeCluster>,
    pub(super) agent: RunningAgent,
    pub(super) plugin: Plugin,
}

impl Bench {
    pub(super) async fn new(personality: &str, claims: &[(&str, &[Want])]) -> Self {
        Self::paced(personality, claims, PACE).await
    }

    pub(super) async fn paced(personality: &str, claims: &[(&str, &[Want])], pace: AgentPace) -> Self {
        let (world, kubelet) = (World::new(personality, ""), FakeKubelet::default());
        let cluster = Arc::new(FakeCluster::default());
        let node = world.open();
        for (uid, wants) in claims {
            cluster.put(&claim(&node, uid, wants));
        }
        let agent = RunningAgent::paced(node, &kubelet, &cluster, pace);
        let plugin = kubelet.register().await;
        Self { world, kubelet, cluster, agent, plugin }
    }

    /// Prepares one claim of namespace `test`.
    pub(super) async fn prepare(&self, uid: &str) -> Result<Vec<String>, String> {
        let name = format!("claim-{uid}");
        let mut answer = self.plugin.prepare(&[("test", &name, uid)]).await;
        let devices = answer.remove(uid).unwrap()?;
        Ok(devices.into_iter().flat_map(|device| device.cdi_device_ids).collect())
    }

    pub(super) async fn unprepare(&self, uid: &str) -> String {
        let name = format!("claim-{uid}");
        self.plugin.unprepare(&[("test", &name, uid)]).await.remove(uid).unwrap()
    }
}

pub(super) async fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..2000 {
        if let Some(found) = look() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    look().unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn registration_names_services_and_endpoint() {
    let bench = Bench::new("mixed", &[]).await;
    let info = &bench.plugin.info;
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "aliquot.dev"));
    assert_eq!(info.supported_versions[..2], ["v1.DRAPlugin", "v1beta1.DRAPlugin"]);
    assert_eq!(info.endpoint, bench.kubelet.plugin_dir().join("dra.sock").display().to_string());
    let socket = bench.kubelet.registrations().remove(0);
    assert!(socket.ends_with("aliquot.dev@reg.sock"), "{}", socket.display());
    bench.agent.stop().await;
    assert!(bench.kubelet.registrations().is_empty());
    assert!(!bench.kubelet.plugin_dir().join("dra.sock").exists());
}

/// The reason for the `@` in the socket's name. Once this stream is answered, the name can be a plain one.
#[tokio::test(flavor = "multi_thread")]
async fn go_authority_without_at_sign_is_reset() {
    let bench = Bench::new("mixed", &[]).await;
    let mut stream = tokio::net::UnixStream::connect(bench.kubelet.registrations().remove(0)).await.unwrap();
    stream.write_all(&bytes(GO_CALL)).await.unwrap();
    let mut answer = Vec::new();
    let frame = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            // Frames: length (3 bytes), type, flags, stream (4 bytes).
            let mut head = [0_u8; 9];
            stream.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            answer.resize(usize::try_from(length).unwrap(), 0);
            stream.read_exact(&mut answer).await.unwrap();
            if head[8] == 1 {
                return head[3];
            }
        }
    });
    assert_eq!(frame.await.unwrap(), 3, "expected RST_STREAM");
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_are_prepared_and_given_back() {
    let claims: &[(&str, &[Want])] = &[("a", &[SHARE, PARTITION]), ("b", &[SHARE])];
    let bench = Bench::new("mixed", claims).await;
    let named = [("test", "claim-a", "a"), ("test", "claim-b", "b")];
    let answer = bench.plugin.prepare(&named).await;
    let devices = answer["a"].clone().unwrap();
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[0].request_names, ["r0"]);
    assert_eq!(devices[0].share_id.as_deref(), Some("00000000-0000-4000-8000-000000000000"));
    assert_eq!(devices[0].cdi_device_ids, ["aliquot.dev/claim=a-r0-00000000-0000-4000-8000-000000000000"]);
    assert_eq!(answer["b"].clone().unwrap().len(), 1);
    assert_eq!(bench.plugin.prepare(&named).await, answer, "again");
    let beta = bench.plugin.prepare_beta(&named).await;
    assert_eq!(beta["a"].len(), 2);
    let status = eventually(|| bench.cluster.statuses.lock().get("a").cloned()).await;
    assert_eq!(status.len(), 2);
    let conditions: Vec<_> = status[0].conditions.iter().map(|c| (c.kind, c.status)).collect();
    assert_eq!(conditions, [("Ready", Truth::True), ("Enforced", Truth::Unknown)]);
    // Of the share what it names, of the partition what its profile has.
    let cores: Vec<_> = status.iter().map(|device| device.data["coresPercent"].as_u64()).collect();
    assert_eq!(cores, [Some(20), Some(12)]);
    let twice = bench.plugin.prepare(&[named[0], named[1], named[0], ("test", "claim-b", "a")]).await;
    assert_eq!(twice, answer, "one entry for each UID, from its first place in the call");
    for uid in ["a", "b", "a", "never"] {
        assert_eq!(bench.unprepare(uid).await, "", "{uid}");
    }
    assert!(bench.world.live().is_empty());
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_claims_are_refused_and_every_one_has_an_entry() {
    let bench = Bench::new("mixed", &[("a", &[SHARE])]).await;
    let node_claim = |change: &dyn Fn(&mut ResourceClaim)| {
        let mut made = bench.cluster.claim("test", "claim-a");
        change(&mut made);
        bench.cluster.put(&made);
        (made.namespace.clone(), made.name.clone(), made.uid.clone())
    };
    let renamed = |uid: &'static str| {
        move |claim: &mut ResourceClaim| {
            claim.name = format!("claim-{uid}");
            claim.uid = uid.to_owned();
        }
    };
    node_claim(&|claim| {
        renamed("unallocated")(claim);
        claim.allocation = None;
    });
    node_claim(&|claim| {
        renamed("vanished")(claim);
        claim.allocation.as_mut().unwrap().devices[0].device.device = "card-gone".to_owned();
    });
    node_claim(&|claim| {
        renamed("malformed")(claim);
        let opaque = aliquot_core::dra::OpaqueConfig {
            driver: "aliquot.dev".to_owned(),
            parameters: r#"{"apiVersion":"aliquot.dev/v1","kind":"ShareConfig","prio":"low"}"#.to_owned(),
        };
        claim.allocation.as_mut().unwrap().config = vec![aliquot_core::dra::AllocatedConfig {
            source: aliquot_core::dra::ConfigSource::Claim,
            requests: Vec::new(),
            opaque,
        }];
    });
    let long = "x".repeat(300);
    let table: &[(&str, &str, &str, &str)] = &[
        ("test", "claim-unknown", "unknown", "not found"),
        ("test", "claim-a", "other", "found UID a, expected other"),
        ("test", "claim-unallocated", "unallocated", "has no allocation"),
        ("test", "claim-vanished", "vanished", "is not offered by this node"),
        ("test", "claim-malformed", "malformed", "unknown field `prio`"),
        ("test", "claim-x", "../../etc/passwd", "claim UID"),
        ("test", "claim-x", "", "claim UID"),
        ("../..", "claim-x", "n1", "namespace: found `../..`"),
        ("test", "a\n\u{1b}[31m", "n2", "name: found `a\\n\\u{1b}[31m`"),
        ("test", &long, "n3", "expected 1 to 253"),
    ];
    let named: Vec<_> = table.iter().map(|(namespace, name, uid, _)| (*namespace, *name, *uid)).collect();
    let answer = bench.plugin.prepare(&named).await;
    assert_eq!(answer.len(), table.len());
    for (_, _, uid, expected) in table {
        let error = answer[*uid].clone().unwrap_err();
        assert!(error.contains(expected), "{uid}: {error}");
        assert!(!error.contains(['\n', '\u{1b}']), "{error:?}");
    }
    let reasons: Vec<_> = bench.cluster.events.lock().iter().map(|e| (e.severity, e.reason)).collect();
    assert!(reasons.contains(&(EventSeverity::Warning, "PrepareRefused")), "{reasons:?}");
    let many: Vec<String> = (0..400).map(|n| format!("m{n}")).collect();
    let named: Vec<_> = many.iter().map(|uid| ("test", "claim-a", uid.as_str())).collect();
    let answer = bench.plugin.prepare(&named).await;
    assert_eq!(answer.len(), 400);
    let too_many =
        answer.values().filter(|result| result.as_ref().unwrap_err().contains("more than 256")).count();
    assert_eq!(too_many, 144);
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doubtful_amount_is_an_event_of_the_claim() {
    let bench = Bench::new("mixed", &[("a", &[SHARE])]).await;
    let mut claim = bench.cluster.claim("test", "claim-a");
    let ask = |name: &str, amounts: &[(&str, &str)]| DeviceRequest {
        name: name.to_owned(),
        kind: RequestKind::Exactly(ExactRequest {
            device_class: "share.aliquot.dev".to_owned(),
            selectors: Vec::new(),
            mode: AllocationMode::ExactCount(1),
            access: DeviceAccess::Normal,
            tolerations: Vec::new(),
            capacity: amounts.iter().map(|(n, a)| ((*n).to_owned(), a.parse().unwrap())).collect(),
        }),
    };
    // The second is another driver's: nothing of this one was allocated for it.
    claim.requests = vec![ask("r0", &[("memory", "8000"), ("cores", "0.3")]), ask("r1", &[("memory", "7")])];
    bench.cluster.put(&claim);
    bench.prepare("a").await.unwrap();
    let texts = eventually(|| {
        let events = bench.cluster.events.lock();
        let doubtful = events.iter().filter(|event| event.reason == "AmountDoubtful");
        let texts: Vec<_> = doubtful.map(|event| event.message.clone()).collect();
        (texts.len() > 1).then_some(texts)
    })
    .await;
    assert_eq!(
        texts,
        [
            "claim test/claim-a (a): request `r0`: cores: found 300m, expected whole percent of a card; 1 is the next, \
             and 30 is that part of a card",
            "claim test/claim-a (a): request `r0`: memory: found 8000 bytes, less than 1Mi, which a share has at least; \
             write it with its unit, such as 8000Mi",
        ]
    );
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_access_reads_devices_and_holds_nothing() {
    let claims: &[(&str, &[Want])] = &[("m", &[REST, SHARE]), ("full", &[REST])];
    let bench = Bench::new("mixed", claims).await;
    let mut monitor = bench.cluster.claim("test", "claim-m");
    for result in &mut monitor.allocation.as_mut().unwrap().devices {
        result.access = aliquot_core::dra::Access::Admin;
    }
    bench.cluster.put(&monitor);
    bench.prepare("full").await.unwrap();
    let names = bench.prepare("m").await.unwrap();
    assert_eq!(names, ["aliquot.dev/claim=m-admin-r0-0", "aliquot.dev/claim=m-admin-r1-1"]);
    let text =
        std::fs::read_to_string(bench.world.state().join("cdi/aliquot.dev-claim-m-admin.json")).unwrap();
    assert!(text.contains("/dev/nvidia2") && !text.contains("grants") && !text.contains("preload"), "{text}");
    let began = std::time::Instant::now();
    let status = eventually(|| bench.cluster.statuses.lock().get("m").cloned()).await;
    assert!(began.elapsed() < Duration::from_secs(5), "it waits for no claim of the ledger");
    let conditions = |device: &DeviceStatus| device.conditions.iter().map(|c| c.reason.clone()).collect();
    let reasons: Vec<Vec<String>> = status.iter().map(conditions).collect();
    assert_eq!(reasons, [["Monitored"], ["Monitored"]]);
    assert_eq!(bench.unprepare("m").await, "");
    assert!(!bench.world.state().join("cdi/aliquot.dev-claim-m-admin.json").exists());
    assert_eq!(bench.unprepare("full").await, "");
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_missed_in_an_outage_is_written_afterwards() {
    let bench = Bench::new("mixed", &[("a", &[SHARE]), ("b", &[SHARE])]).await;
    bench.cluster.set_statuses_away(true);
    for uid in ["a", "b"] {
        bench.prepare(uid).await.unwrap();
    }
    tokio::time::sleep(PACE.look * 3).await;
    assert!(bench.cluster.statuses.lock().is_empty());
    // The first of them is changed by others all the time, which keeps the second one waiting no longer than itself.
    bench.cluster.contend("a");
    bench.cluster.set_statuses_away(false);
    eventually(|| bench.cluster.statuses.lock().contains_key("b").then_some(())).await;
    bench.cluster.contend("none");
    eventually(|| bench.cluster.statuses.lock().contains_key("a").then_some(())).await;
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_calls_for_one_claim_agree() {
    let bench = Bench::new("mixed", &[("a", &[PARTITION])]).await;
    let calls = (0..16).map(|_| bench.prepare("a"));
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| *answer == answers[0] && answer.is_ok()), "{answers:?}");
    assert_eq!(bench.world.live().len(), 1);
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_agent_continues_after_a_reboot() {
    let bench = Bench::new("mixed", &[("a", &[SHARE, PARTITION])]).await;
    let first = bench.prepare("a").await.unwrap();
    let Bench { world, kubelet, cluster, agent, plugin } = bench;
    drop(plugin);
    agent.kill().await;
    let cdi = world.state().join("cdi");
    for file in std::fs::read_dir(&cdi).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let node = eventually(|| world.try_open(None).ok()).await.0;
    let agent = RunningAgent::start(node, &kubelet, &cluster, None);
    let plugin = kubelet.register().await;
    let bench = Bench { world, kubelet, cluster, agent, plugin };
    assert_eq!(std::fs::read_dir(&cdi).unwrap().count(), 1);
    assert_eq!(bench.prepare("a").await.unwrap(), first);
    assert_eq!(bench.unprepare("a").await, "");
    assert!(bench.world.live().is_empty());
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_lists_every_device_and_follows_a_card() {
    let bench = Bench::new("mixed", &[]).await;
    let (mut stable, mut alpha) = (bench.plugin.health().await, bench.plugin.health_alpha().await);
    let all = loop {
        let report = stable.message().await.unwrap().unwrap();
        if !report.devices.is_empty() {
            break report.devices;
        }
    };
    assert!(all.len() > 10 && all.iter().all(|d| d.health == 1 && d.health_check_timeout_seconds == 30));
    assert!(alpha.message().await.unwrap().is_some());
    let card = bench.world.hardware().discover().unwrap().cards[2].uuid.clone();
    let lost = aliquot_core::card::Health::Unhealthy("it fell off the bus".to_owned());
    bench.world.hardware().set_health(&card, &lost).unwrap();
    let report = tokio::time::timeout(Duration::from_secs(20), stable.message()).await.unwrap();
    let ill: Vec<_> = report.unwrap().unwrap().devices.into_iter().filter(|d| d.health == 2).collect();
    assert_eq!(ill.len(), 1);
    assert!(ill[0].message.contains("it fell off the bus"), "{}", ill[0].message);
    bench.agent.stop().await;
    assert!(matches!(stable.message().await, Ok(None) | Err(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn desired_slices_wait_for_the_server_and_follow_it() {
    let bench = Bench::new("mixed", &[]).await;
    let mut desired = bench.agent.desired.clone();
    let slices = desired.wait_for(Option::is_some).await.unwrap().clone().unwrap().slices;
    assert!(slices.iter().any(|slice| !slice.shared_counters.is_empty()));
    let old = ServerVersion::with_default_gates(35, 0);
    bench.agent.publication.send_modify(|publication| publication.server = Some(old));
    let exclusive = |slices: &Option<aliquot_driver::ports::DesiredSlices>| {
        slices.as_ref().is_some_and(|desired| desired.slices.iter().all(|s| s.shared_counters.is_empty()))
    };
    tokio::time::timeout(Duration::from_secs(20), desired.wait_for(exclusive)).await.unwrap().unwrap();
    bench.agent.stop().await;
}

/// For the server that it assumes at first, the node would not offer the partition.
#[tokio::test(flavor = "multi_thread")]
async fn claims_wait_until_an_agent_knows_the_server() {
    let (world, kubelet) = (World::new("mixed", ""), FakeKubelet::default());
    let cluster = Arc::new(FakeCluster::default());
    cluster.hide_version();
    cluster.put(&claim(&world.open(), "a", &[PARTITION]));
    let assumed =
        NodeParts { server: ServerVersion::with_default_gates(35, 0), ..world.parts(Disk::default()) };
    let (node, _) = Node::open(assumed, &Dirs::in_state(world.state()), Access::ChangeNow).unwrap();
    let agent = RunningAgent::start(node, &kubelet, &cluster, None);
    let plugin = kubelet.register().await;
    let call = tokio::spawn(async move { plugin.prepare(&[("test", "claim-a", "a")]).await });
    tokio::time::sleep(PACE.look).await;
    agent.publication.send_modify(|publication| publication.server = Some(SERVER));
    assert_eq!(call.await.unwrap()["a"].as_ref().map(Vec::len), Ok(1));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_wait_for_the_kubelets_registration() {
    let (world, kubelet) = (World::new("mixed", ""), FakeKubelet::default());
    let cluster = Arc::new(FakeCluster::default());
    let agent = RunningAgent::start(world.open(), &kubelet, &cluster, None);
    let mut candidate = kubelet.find().await;
    let mut health = candidate.plugin().health().await;
    let mut devices = 0;
    while devices == 0 {
        devices = health.message().await.unwrap().unwrap().devices.len();
    }
    // Health leaves the agent after the slices do: they were wanted, and nothing was published.
    assert!(agent.desired.borrow().is_none());
    candidate.refuse("the endpoint does not answer").await;
    assert!(agent.desired.borrow().is_none());
    candidate.accept().await;
    let mut desired = agent.desired.clone();
    let began = std::time::Instant::now();
    let published = tokio::time::timeout(Duration::from_secs(5), desired.wait_for(Option::is_some)).await;
    let slices = published.unwrap().unwrap().clone().unwrap().slices;
    assert!(slices.iter().any(|slice| !slice.devices.is_empty()), "{slices:?}");
    println!("published {:?} after the registration", began.elapsed());
    agent.stop().await;
}

/// Reasons of the node's Events so far.
fn node_reasons(cluster: &FakeCluster) -> Vec<&'static str> {
    let events = cluster.events.lock();
    events.iter().filter(|event| event.about == EventObject::Node).map(|event| event.reason).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn node_events_tell_of_an_idle_card_and_its_recovery() {
    let bench = Bench::new("mixed", &[]).await;
    let card = bench.world.hardware().discover().unwrap().cards[2].uuid.clone();
    let lost = aliquot_core::card::Health::Unhealthy("it fell off\u{1b}[31m the bus".to_owned());
    bench.world.hardware().set_health(&card, &lost).unwrap();
    let cluster = &bench.cluster;
    let told = |reason| eventually(move || node_reasons(cluster).contains(&reason).then_some(()));
    told("CardUnhealthy").await;
    bench.world.hardware().set_health(&card, &aliquot_core::card::Health::Healthy).unwrap();
    told("CardRecovered").await;
    let events = bench.cluster.events.lock().clone();
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!((events[0].severity, events[1].severity), (EventSeverity::Warning, EventSeverity::Normal));
    assert!(events[0].message.contains(card.as_str()) && events[0].message.contains("aliquot health"));
    assert!(!events[0].message.contains('\u{1b}'), "{:?}", events[0].message);
    bench.agent.stop().await;
}

/// Devices of a card that are wanted, by name, and whether each is tainted.
fn devices_of(desired: &Option<DesiredSlices>, card: &str) -> Vec<(String, bool)> {
    let of_card = |device: &&aliquot_core::dra::Device| {
        let is = |value: &AttributeValue| matches!(value, AttributeValue::String(text) if text == card);
        device.attributes.values().any(is)
    };
    let slices = desired.iter().flat_map(|desired| &desired.slices);
    let devices = slices.flat_map(|slice| slice.devices.iter()).filter(of_card);
    devices.map(|device| (device.name.clone(), !device.taints.is_empty())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn layout_changes_when_the_last_claim_leaves() {
    let claims: &[(&str, &[Want])] = &[("a", &[Want { card: 0, ..SHARE }])];
    let bench = Bench::new("t4-2", claims).await;
    bench.prepare("a").await.unwrap();
    let Bench { world, kubelet, cluster, agent, plugin } = bench;
    drop(plugin);
    agent.stop().await;
    let slots = include_str!("../../golden/input/slots.toml");
    let file = Personality::named("t4-2").unwrap().load().unwrap();
    let changed = World::at(world.state().parent().unwrap(), file, slots);
    let card = changed.hardware().discover().unwrap().cards[0].uuid.clone();
    let agent = RunningAgent::start(changed.open(), &kubelet, &cluster, None);
    let plugin = kubelet.register().await;
    let mut desired = agent.desired.clone();
    let held = desired.wait_for(Option::is_some).await.unwrap().clone();
    let waiting = devices_of(&held, card.as_str());
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert!(waiting[0].1, "it takes no new claims while it waits");
    eventually(|| node_reasons(&cluster).contains(&"LayoutWaits").then_some(())).await;
    assert_eq!(plugin.unprepare(&[("test", "claim-a", "a")]).await["a"], "");
    let switched = |desired: &Option<DesiredSlices>| devices_of(desired, card.as_str()).len() == 3;
    let new = tokio::time::timeout(Duration::from_secs(20), desired.wait_for(switched)).await;
    let new = devices_of(&new.unwrap().unwrap().clone(), card.as_str());
    assert!(new.iter().all(|(name, tainted)| !tainted && *name != waiting[0].0), "{new:?}");
    eventually(|| node_reasons(&cluster).contains(&"LayoutChanged").then_some(())).await;
    agent.stop().await;
}
