//! `/metrics` as a scraper reads it: valid text, every family of the table, labels that dashboards join on.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test that calls them")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::id::ClaimUid;
use aliquot_core::ports::DeviceBackend as _;
use aliquot_driver::agent::metrics::NAMES;
use aliquot_driver::run::simulated::directory_for;
use aliquot_sim_device::{MemoryKind, Seat};
use aliquot_tests::exposition::{Family, Sample, parse};
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::running_agent::{FakeCluster, RunningAgent};
use serde_json::json;

use super::health::eventually;

const SHARE: Want = Want { card: 2, part: "card", memory_mib: Some(2048), cores: 20 };
const PARTITION: Want = Want { card: 0, part: "1g.10gb at 0", memory_mib: None, cores: 0 };
const WHOLE: Want = Want { card: 1, part: "card", memory_mib: None, cores: 0 };
/// An error of a program, which makes no card unhealthy, and one of a card.
const XID: u64 = 13;
const XID_OF_CARD: u64 = 48;
const MIB: u64 = 1 << 20;
/// Labels that dashboards of other exporters join on.
const OF_SHARE: [&str; 10] = [
    "UUID",
    "container",
    "dra_claim_name",
    "dra_claim_request",
    "dra_device_name",
    "dra_mig_profile",
    "dra_pool_name",
    "namespace",
    "node",
    "pod",
];

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0";

/// Head and body of the answer to a scraper that accepts this.
fn answer(agent: &RunningAgent, accept: &str) -> (String, String) {
    let mut stream = TcpStream::connect(agent.metrics).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: agent\r\nAccept: {accept}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn scrape(agent: &RunningAgent) -> String {
    let (head, body) = answer(agent, OPENMETRICS);
    assert!(head.contains(OPENMETRICS), "{head}");
    body
}

/// The scrape of a program that takes any form.
pub(super) fn plain(agent: &RunningAgent) -> String {
    let (head, text) = answer(agent, "*/*");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    text
}

fn by_name(text: &str) -> BTreeMap<String, Family> {
    let families = parse(text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    families.into_iter().map(|family| (family.name.clone(), family)).collect()
}

/// Waits until a scrape has every family.
async fn whole(agent: &RunningAgent) -> BTreeMap<String, Family> {
    for _ in 0..1000 {
        let families = by_name(&scrape(agent));
        if NAMES.iter().all(|name| families.contains_key(*name)) {
            return families;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let found = by_name(&scrape(agent));
    let absent: Vec<_> = NAMES.iter().filter(|name| !found.contains_key(**name)).collect();
    panic!("absent: {absent:?}");
}

/// An agent with two prepared claims and one that is refused, and simulated cards with a program in each part, once a scrape has
/// every family.
pub(super) struct Prepared {
    pub(super) world: World,
    _kubelet: FakeKubelet,
    cluster: Arc<FakeCluster>,
    pub(super) agent: RunningAgent,
    plugin: Plugin,
    seats: Vec<Seat>,
}

impl Prepared {
    pub(super) async fn new() -> Self {
        let (world, kubelet) = (World::new("mixed", ""), FakeKubelet::default());
        let cluster = Arc::new(FakeCluster::default());
        let node = world.open();
        cluster.put(&claim(&node, "a", &[SHARE, PARTITION]));
        cluster.put(&claim(&node, "b", &[WHOLE]));
        let agent = RunningAgent::start(node, &kubelet, &cluster, None);
        let plugin = kubelet.register().await;
        for (name, uid) in [("claim-a", "a"), ("claim-b", "b")] {
            plugin.prepare(&[("test", name, uid)]).await[uid].clone().unwrap();
        }
        plugin.prepare(&[("test", "claim-none", "none")]).await["none"].clone().unwrap_err();
        let cards = world.state().join("cards");
        eventually(|| cards.join("node.toml").exists()).await;
        let seats = [(1, MIB), (2, 3 * MIB)].map(|(card, bytes)| seat(&cards, card, bytes)).to_vec();
        let mut prepared = Self { world, _kubelet: kubelet, cluster, agent, plugin, seats };
        prepared.use_partition();
        prepared.report_errors().await;
        whole(&prepared.agent).await;
        prepared
    }

    /// A program in the partition, 5 MiB large.
    fn use_partition(&mut self) {
        let live = self.world.live();
        let [live] = live.as_slice() else { panic!("{live:?}") };
        let inventory = self.world.hardware().discover().unwrap();
        let (state, uuid) = (self.world.state(), &live.handle.uuid);
        let dir = directory_for(&state, &live.at.card, &live.at.part(), uuid, &inventory).unwrap();
        self.seats.push(seat(&dir, 0, 5 * MIB));
    }

    /// An error of a program on the card with the share, and one of an idle card's memory, until they are noted.
    async fn report_errors(&self) {
        let cards = aliquot_sim_device::open(&self.world.state().join("cards")).unwrap();
        let noted = self.world.state().join("health");
        for (card, xid) in [(2, XID), (3, XID_OF_CARD)] {
            eventually(|| {
                cards.card(card).unwrap().raise_xid(xid, None);
                fs::read_to_string(&noted).unwrap_or_default().contains(&format!("code {xid} "))
            })
            .await;
        }
    }
}

/// A program on a card of these, with memory, that has no grant: it is this process.
fn seat(cards: &Path, index: usize, bytes: u64) -> Seat {
    let seat = aliquot_sim_device::open(cards).unwrap().card(index).unwrap().join().unwrap();
    seat.take(MemoryKind::Plain, bytes).unwrap();
    seat
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_valid_whole_and_join_with_others() {
    let prepared = Prepared::new().await;
    let Prepared { cluster, agent, plugin, .. } = &prepared;
    // As the writer of claim statuses notes it: after the node's view has the claim.
    let object = json!({"status": {"reservedFor": [{"resource": "pods", "name": "trainer-0"}]}});
    cluster.pods.note(&ClaimUid::new("a").unwrap(), &object);
    let families = whole(agent).await;
    assert_eq!(families.len(), NAMES.len(), "{:?}", families.keys());

    let of = |name: &str| families[name].samples.clone();
    let of_claim = |name: &str, claim: &str| {
        let of_claim = |sample: &Sample| sample.labels["dra_claim_name"] == claim;
        of(name).into_iter().filter(of_claim).collect::<Vec<_>>()
    };
    let shares = of_claim("aliquot_vgpu_memory_limit_bytes", "claim-a");
    assert_eq!(shares.len(), 2);
    for share in &shares {
        assert_eq!(share.labels.keys().map(String::as_str).collect::<Vec<_>>(), OF_SHARE);
        assert_eq!((share.labels["namespace"].as_str(), share.labels["pod"].as_str()), ("test", "trainer-0"));
        assert_eq!(share.labels["node"], "node-1");
    }
    let profiles: BTreeSet<&str> = shares.iter().map(|s| s.labels["dra_mig_profile"].as_str()).collect();
    assert_eq!(profiles, BTreeSet::from(["", "1g.10gb"]));
    let share = shares.iter().find(|share| share.labels["dra_mig_profile"].is_empty()).unwrap();
    assert_eq!(share.value.to_string(), "2147483648");
    let sum = |name: &str| of(name).iter().map(|sample| sample.value).sum::<f64>().to_string();
    assert_eq!(sum("aliquot_gpu_memory_allocated_bytes"), sum("aliquot_vgpu_memory_limit_bytes"));
    assert_eq!(sum("aliquot_gpu_shared_count"), "3");
    assert_eq!(sum("aliquot_dra_waiting_claims"), "1");
    // One series a card, a partition or a share: nothing else makes new ones.
    let cards = of("aliquot_gpu_memory_limit_bytes").len();
    for (name, family) in &families {
        let of_card = name.starts_with("aliquot_gpu_") && name != "aliquot_gpu_template_room";
        let most = if of_card { cards } else { 64 };
        assert!(family.samples.len() <= most, "{name}: {}", family.samples.len());
    }
    assert_eq!(plugin.unprepare(&[("test", "claim-a", "a")]).await["a"], "");
    prepared.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_what_drivers_report_and_what_still_fits() {
    let prepared = Prepared::new().await;
    let families = whole(&prepared.agent).await;
    // Values by the labels that tell them apart.
    let of = |name: &str, labels: &[&str]| {
        let key =
            |sample: &Sample| labels.iter().map(|label| sample.labels[*label].clone()).collect::<Vec<_>>();
        let samples = families[name].samples.iter();
        samples.map(|sample| (key(sample).join(" "), sample.value)).collect::<BTreeMap<_, _>>()
    };
    let mib = |count: u64| Some(u32::try_from(count * MIB).unwrap().into());

    // The whole card and the partition: the driver's memory, and all their compute.
    let used = of("aliquot_vgpu_memory_used_bytes", &["dra_claim_name", "dra_mig_profile"]);
    let card = |index: &str, name: &str| of(name, &["gpu"]).get(index).copied();
    assert_eq!(used.get("claim-b ").copied(), mib(1));
    assert_eq!(used.get("claim-a 1g.10gb").copied(), mib(5));
    assert_eq!(used.get("claim-a ").copied(), mib(0), "of a share, what the shim counts");
    assert_eq!(card("1", "aliquot_gpu_core_allocated_ratio"), Some(1.0));
    assert_eq!(card("0", "aliquot_gpu_core_allocated_ratio"), Some(0.12));
    assert_eq!(card("2", "aliquot_gpu_core_allocated_ratio"), Some(0.2));
    // Of a whole card the shim counts nothing, so nothing is said of it.
    let denied = of("aliquot_vgpu_memory_denied", &["dra_claim_name"]);
    assert_eq!(denied.keys().map(String::as_str).collect::<Vec<_>>(), ["claim-a"]);

    // The driver's figures; NPUs without a simulated driver have none.
    let driver = of("aliquot_gpu_memory_used_bytes", &["gpu"]);
    assert_eq!(driver.keys().map(String::as_str).collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    assert_eq!(card("2", "aliquot_gpu_memory_used_bytes"), mib(3));
    assert_eq!(card("2", "aliquot_gpu_memory_outside_grants_bytes"), mib(3));
    assert_eq!(card("3", "aliquot_gpu_memory_outside_grants_bytes"), mib(0));
    assert_eq!(card("2", "aliquot_gpu_utilization_ratio"), Some(0.0));
    let errors = of("aliquot_gpu_last_error_code", &["gpu"]);
    assert_eq!(errors, BTreeMap::from([("2".to_owned(), 13.0), ("3".to_owned(), 48.0)]));
    assert!(card("2", "aliquot_gpu_last_error_timestamp_seconds").unwrap() > 1.7e9);

    // What lies on the cards, and what fits beside it.
    let partition = of("aliquot_gpu_partition", &["gpu", "GPU_I_PROFILE", "placement", "holder"]);
    assert_eq!(partition, BTreeMap::from([("0 1g.10gb 0 claim".to_owned(), 1.0)]));
    let id = |name: &str| of(name, &["GPU_I_ID"]).into_keys().next().unwrap();
    assert_eq!(id("aliquot_gpu_partition"), prepared.world.live()[0].handle.id.to_string());
    assert_eq!(of("aliquot_gpu_partition_memory_used_bytes", &["gpu"]).get("0").copied(), mib(5));
    let room = of("aliquot_gpu_template_room", &["gpu", "template"]);
    assert_eq!((room["0 1g.10gb"], room["0 7g.80gb"], room["1 1g.5gb"]), (6.0, 0.0, 0.0));
    let layout = of("aliquot_gpu_layout", &["gpu", "layout"]);
    assert_eq!((layout.len(), layout["2 shared"]), (6, 1.0), "{layout:?}");
    assert_eq!(card("2", "aliquot_gpu_share_room_ratio"), Some(0.8));
    assert_eq!(card("1", "aliquot_gpu_share_room_bytes"), None, "a card that is held whole has no room");
    prepared.agent.stop().await;
}

/// Series of a text form: lines without comments.
pub(super) fn series(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.rsplit_once(' ')).map(|(series, _)| series).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_as_plain_text_pass_the_check_of_prometheus() {
    let prepared = Prepared::new().await;
    let text = plain(&prepared.agent);
    let openmetrics = scrape(&prepared.agent);
    assert_eq!(series(&text), series(&openmetrics));
    let mut check = Command::new("promtool");
    match check
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    {
        Err(error) => println!("stands aside: promtool: {error}"),
        Ok(mut promtool) => {
            promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            let output = promtool.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // Labels as DCGM's exporter has them (`UUID`, `modelName`), so that joins need no renaming; a gauge named as NVIDIA's.
            let is_other = |line: &&str| {
                !line.ends_with("label names should be written in 'snake_case' not 'camelCase'")
                    && !line.starts_with("aliquot_gpu_shared_count ")
            };
            assert_eq!(said.lines().find(is_other), None, "{text}");
            assert!(matches!(output.status.code(), Some(0 | 3)), "{}", output.status);
        }
    }
    prepared.agent.stop().await;
}

#[test]
fn page_of_metrics_has_every_family_and_no_other() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/user/metrics.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `aliquot_")?.split_once('`'));
    let documented: BTreeSet<String> = rows
        .map(|(name, _)| format!("aliquot_{}", name.trim_end_matches("_total").trim_end_matches("_info")))
        .collect();
    let names: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(documented, names);
}
