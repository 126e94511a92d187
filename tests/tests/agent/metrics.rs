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
use aliquot_driver::agent::metrics::NAMES;
use aliquot_tests::exposition::{Family, parse};
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::running_agent::{FakeCluster, RunningAgent};
use serde_json::json;

const SHARE: Want = Want { card: 2, part: "card", memory_mib: Some(2048), cores: 20 };
const PARTITION: Want = Want { card: 0, part: "1g.10gb at 0", memory_mib: None, cores: 0 };
/// Labels that dashboards of other exporters join on.
const OF_SHARE: [&str; 8] = [
    "UUID",
    "dra_claim_name",
    "dra_claim_request",
    "dra_device_name",
    "dra_mig_profile",
    "dra_pool_name",
    "namespace",
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

/// An agent with one prepared claim and one that is refused, once a scrape has every family.
struct Prepared {
    _world: World,
    _kubelet: FakeKubelet,
    cluster: Arc<FakeCluster>,
    agent: RunningAgent,
    plugin: Plugin,
}

impl Prepared {
    async fn new() -> Self {
        let (world, kubelet) = (World::new("mixed", ""), FakeKubelet::default());
        let cluster = Arc::new(FakeCluster::default());
        let node = world.open();
        cluster.put(&claim(&node, "a", &[SHARE, PARTITION]));
        let agent = RunningAgent::start(node, &kubelet, &cluster, None);
        let plugin = kubelet.register().await;
        plugin.prepare(&[("test", "claim-a", "a")]).await["a"].clone().unwrap();
        plugin.prepare(&[("test", "claim-none", "none")]).await["none"].clone().unwrap_err();
        whole(&agent).await;
        Self { _world: world, _kubelet: kubelet, cluster, agent, plugin }
    }
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
    let shares = of("aliquot_vgpu_memory_limit_bytes");
    assert_eq!(shares.len(), 2);
    for share in &shares {
        assert_eq!(share.labels.keys().map(String::as_str).collect::<Vec<_>>(), OF_SHARE);
        assert_eq!((share.labels["namespace"].as_str(), share.labels["pod"].as_str()), ("test", "trainer-0"));
    }
    let profiles: BTreeSet<&str> = shares.iter().map(|s| s.labels["dra_mig_profile"].as_str()).collect();
    assert_eq!(profiles, BTreeSet::from(["", "1g.10gb"]));
    let share = shares.iter().find(|share| share.labels["dra_mig_profile"].is_empty()).unwrap();
    assert_eq!(share.value.to_string(), "2147483648");
    let sum = |name: &str| of(name).iter().map(|sample| sample.value).sum::<f64>().to_string();
    assert_eq!(sum("aliquot_gpu_memory_allocated_bytes"), sum("aliquot_vgpu_memory_limit_bytes"));
    assert_eq!(sum("aliquot_gpu_shared_count"), "2");
    // One series a card or a share: nothing else makes new ones.
    let cards = of("aliquot_gpu_memory_limit_bytes").len();
    for (name, family) in &families {
        let most = if name.starts_with("aliquot_gpu_") { cards } else { 64 };
        assert!(family.samples.len() <= most, "{name}: {}", family.samples.len());
    }
    assert_eq!(plugin.unprepare(&[("test", "claim-a", "a")]).await["a"], "");
    prepared.agent.stop().await;
}

/// Series of a text form: lines without comments.
fn series(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.rsplit_once(' ')).map(|(series, _)| series).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_as_plain_text_pass_the_check_of_prometheus() {
    let prepared = Prepared::new().await;
    let (head, text) = answer(&prepared.agent, "*/*");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
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
