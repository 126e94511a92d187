//! Rules and dashboards of the chart, and dashboards of HAMi and DCGM's exporter, in a real Prometheus: over a live agent, a
//! recorded one, and DCGM's exporter beside it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test that calls them")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_core::ports::DeviceBackend as _;
use aliquot_tests::prometheus::{Prometheus, Series};
use serde_json::Value;

use super::doctor::serve;
use super::metrics::{Prepared, plain, series};

/// Expressions of HAMi's dashboard (Project-HAMi/HAMi, dashboards/hami-vgpu-dashboard.json), with its variables filled in.
const HAMI: [&str; 20] = [
    "count(hami_gpu_memory_limit_bytes{node=~\".*\"})",
    "sum(hami_gpu_memory_limit_bytes{node=~\".*\"})",
    "sum(hami_gpu_memory_allocated_bytes{node=~\".*\"})",
    "100 * sum(hami_gpu_memory_allocated_bytes{node=~\".*\"}) / sum(hami_gpu_memory_limit_bytes{node=~\".*\"})",
    "sum(hami_gpu_shared_count{node=~\".*\"})",
    "hami_host_gpu_memory_used_bytes and on (device_uuid) hami_gpu_memory_limit_bytes{node=~\".*\"}",
    "hami_host_gpu_utilization_ratio and on (device_uuid) hami_gpu_memory_limit_bytes{node=~\".*\"}",
    "sum by (node) (hami_gpu_memory_allocated_bytes{node=~\".*\"})",
    "sum by (node) (hami_gpu_memory_limit_bytes{node=~\".*\"})",
    "hami_node_gpu_memory_allocated_ratio{node=~\".*\"}",
    "hami_gpu_core_allocated_ratio{node=~\".*\"}",
    "hami_gpu_shared_count{node=~\".*\"}",
    "hami_vgpu_memory_used_bytes{namespace=~\".*\"}",
    "hami_vgpu_memory_limit_bytes{namespace=~\".*\"}",
    "hami_container_device_utilization_ratio{namespace=~\".*\"}",
    "100 * hami_vgpu_memory_used_bytes{namespace=~\".*\"} / hami_vgpu_memory_limit_bytes{namespace=~\".*\"}",
    "topk(10, hami_vgpu_memory_used_bytes{namespace=~\".*\"})",
    // Its variables.
    "count by (node) (hami_gpu_memory_limit_bytes)",
    "count by (namespace) (hami_vgpu_memory_used_bytes)",
    "hami_node_gpu_overview",
];

/// Labels of HAMi's series (cmd/scheduler/metrics.go, cmd/vGPUmonitor/metrics.go), beside the zone.
const HAMI_LABELS: [(&str, &str); 13] = [
    ("hami_gpu_memory_limit_bytes", "device_index device_type device_uuid node"),
    ("hami_gpu_core_limit_ratio", "device_index device_type device_uuid node"),
    ("hami_gpu_memory_allocated_bytes", "device_cores device_index device_type device_uuid node"),
    ("hami_gpu_core_allocated_ratio", "device_index device_type device_uuid node"),
    ("hami_gpu_shared_count", "device_index device_type device_uuid node"),
    ("hami_node_gpu_memory_allocated_ratio", "device_index device_type device_uuid node"),
    ("hami_node_gpu_overview", "device_cores device_index device_memory_limit device_type device_uuid node"),
    ("hami_host_gpu_memory_used_bytes", "device_index device_type device_uuid node"),
    ("hami_host_gpu_utilization_ratio", "device_index device_type device_uuid node"),
    ("hami_vgpu_memory_used_bytes", "device_uuid namespace pod vdevice_index"),
    ("hami_vgpu_memory_limit_bytes", "device_uuid namespace pod vdevice_index"),
    ("hami_container_device_memory_bytes", "device_uuid namespace pod vdevice_index"),
    ("hami_container_device_utilization_ratio", "device_uuid namespace pod vdevice_index"),
];

/// Expressions of the dashboard of DCGM's exporter (NVIDIA/dcgm-exporter, grafana/dcgm-exporter-dashboard.json) that have a source
/// in the agent, as `dcgm.yaml` records them; the others are temperature, power, clocks and profiling.
const DCGM: [&str; 2] = [
    "DCGM_FI_DEV_GPU_UTIL{instance=~\"node-1\", gpu=~\".*\"}",
    "DCGM_FI_DEV_FB_USED{instance=~\"node-1\", gpu=~\".*\"}",
];

/// The other six.
const DCGM_ALONE: [&str; 6] = [
    "DCGM_FI_DEV_GPU_TEMP{instance=~\".*\", gpu=~\".*\"}",
    "avg(DCGM_FI_DEV_GPU_TEMP{instance=~\".*\", gpu=~\".*\"})",
    "DCGM_FI_DEV_POWER_USAGE{instance=~\".*\", gpu=~\".*\"}",
    "sum(DCGM_FI_DEV_POWER_USAGE{instance=~\".*\", gpu=~\".*\"})",
    "DCGM_FI_DEV_SM_CLOCK{instance=~\".*\", gpu=~\".*\"} * 1000000",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~\".*\", gpu=~\".*\"}",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn rules(name: &str) -> PathBuf {
    root().join("deploy/helm/aliquot/files/rules").join(format!("{name}.yaml"))
}

fn recorded() -> PathBuf {
    root().join("tests/golden/scrape/node.txt")
}

/// Every dashboard of the chart.
fn dashboards() -> Vec<(String, Value)> {
    let dir = fs::read_dir(root().join("deploy/helm/aliquot/dashboards")).unwrap();
    let mut paths: Vec<PathBuf> = dir.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), value)
    };
    paths.into_iter().map(read).collect()
}

/// Every expression of a dashboard with the panel's title, its variables filled in.
fn expressions(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().unwrap();
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().unwrap().clone();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    };
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let names: Vec<String> = variables.map(|one| format!("${}", one["name"].as_str().unwrap())).collect();
    let filled = |(title, text): (String, String)| {
        let text = names.iter().fold(text, |text, name| text.replace(name, ".*"));
        (title, text.replace("$__rate_interval", "10s"))
    };
    panels.iter().flat_map(of_panel).map(filled).collect()
}

/// A second node as it was recorded once, under a name of its own.
fn other_node() -> String {
    let text = fs::read_to_string(recorded()).unwrap();
    text.replace("node=\"node-1\"", "node=\"recorded\"")
}

/// What DCGM's exporter says of the live node's cards, with a MIG instance of the first one: its names, labels and units.
fn of_dcgm(prepared: &Prepared) -> String {
    let mut text = String::new();
    let live = prepared.world.live();
    for card in &prepared.world.hardware().discover().unwrap().cards {
        if card.index > 3 {
            continue;
        }
        let labels = format!(
            "gpu=\"{0}\",UUID=\"{1}\",pci_bus_id=\"x\",device=\"nvidia{0}\",modelName=\"{2}\",Hostname=\"node-1\"",
            card.index, card.uuid, card.product_name
        );
        for (name, value) in
            [("DEV_GPU_TEMP", 40), ("DEV_POWER_USAGE", 300), ("DEV_SM_CLOCK", 1980), ("DEV_XID_ERRORS", 0)]
        {
            text += &format!("DCGM_FI_{name}{{{labels},DCGM_FI_DRIVER_VERSION=\"575.57.8\"}} {value}\n");
        }
        let instance = live.iter().find(|live| live.at.card == card.uuid);
        let id = instance.map(|live| live.handle.id.to_string()).unwrap_or_default();
        text += &format!(
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{labels},GPU_I_PROFILE=\"1g.10gb\",GPU_I_ID=\"{id}\"}} 0.5\n"
        );
    }
    text
}

fn names(found: &[Series], label: &str) -> BTreeSet<String> {
    found.iter().filter_map(|one| one.labels.get(label).cloned()).collect()
}

/// A live node, a recorded one and DCGM's exporter, scraped together; `None`: there is no Prometheus here.
async fn scraped() -> Option<(Prepared, Prometheus)> {
    let prepared = Prepared::new().await;
    let targets = [
        ("aliquot", prepared.agent.metrics),
        ("recorded", serve(other_node())),
        ("dcgm", serve(of_dcgm(&prepared))),
    ];
    let files = ["alerts", "hami", "dcgm"].map(rules);
    let prometheus = Prometheus::start(&targets, &files)?;
    Some((prepared, prometheus))
}

#[tokio::test(flavor = "multi_thread")]
async fn dashboards_of_others_and_ours_show_a_live_agent() {
    let Some((prepared, prometheus)) = scraped().await else { return };
    // The last group has rates, which need two scrapes.
    let _rates = prometheus.until("hami_container_device_utilization_ratio", |_| true);
    for expression in HAMI.iter().chain(&DCGM).chain(&DCGM_ALONE) {
        let found = prometheus.until(expression, |found| found.iter().all(|one| one.value.is_finite()));
        assert!(!found.is_empty(), "{expression}");
    }
    hami_is_exact(&prometheus);
    dcgm_joins(&prometheus);
    for (file, dashboard) in dashboards() {
        for (title, expression) in expressions(&dashboard) {
            assert!(!expression.contains('$'), "{file}: {title}: an undeclared variable: {expression}");
            // Both nodes, where it tells nodes apart.
            let _found = prometheus.until(&expression, |found| names(found, "node").len() != 1);
        }
    }
    prepared.agent.stop().await;
}

/// Names, labels, units and values of HAMi's series.
fn hami_is_exact(prometheus: &Prometheus) {
    for (name, labels) in HAMI_LABELS {
        for one in prometheus.query(name) {
            let mut found: BTreeSet<&str> = one.labels.keys().map(String::as_str).collect();
            assert_eq!(one.labels["zone"], "vGPU", "{name}");
            // Empty labels are none to Prometheus.
            for label in ["__name__", "zone", "container", "pod"] {
                found.remove(label);
            }
            let expected: BTreeSet<&str> = labels.split(' ').filter(|label| *label != "pod").collect();
            assert_eq!(found, expected, "{name}");
        }
    }
    let of = |name: &str, index: &str| {
        let selected = format!("{name}{{node=\"node-1\", device_index=\"{index}\"}}");
        let found = prometheus.query(&selected);
        let [one] = found.as_slice() else { panic!("{selected}: {found:?}") };
        (one.labels["device_type"].clone(), one.value.to_string())
    };
    let nvidia = |model: &str, value: &str| (format!("NVIDIA-{model}"), value.to_owned());
    assert_eq!(of("hami_gpu_core_allocated_ratio", "1").1, "100");
    assert_eq!(of("hami_gpu_core_allocated_ratio", "2"), nvidia("Tesla T4", "20"));
    assert_eq!(of("hami_gpu_core_limit_ratio", "2"), nvidia("Tesla T4", "100"));
    assert_eq!(of("hami_gpu_memory_allocated_bytes", "2"), nvidia("Tesla T4", "2147483648"));
    assert_eq!(of("hami_host_gpu_memory_used_bytes", "2"), nvidia("Tesla T4", "3145728"));
    assert_eq!(of("hami_gpu_shared_count", "0").1, "1");
    assert_eq!(of("hami_node_gpu_memory_allocated_ratio", "1").1, "1");
    assert!(!of("hami_gpu_core_limit_ratio", "4").0.starts_with("NVIDIA"), "an NPU");
    let whole = prometheus.query("hami_vgpu_core_allocated_ratio{node=\"node-1\"}");
    assert_eq!(whole.iter().map(|one| one.value).fold(0.0, f64::max).to_string(), "100");
}

/// Series of DCGM's exporter joined with ours, as the page of metrics writes it.
fn dcgm_joins(prometheus: &Prometheus) {
    let page = fs::read_to_string(root().join("docs/user/metrics.md")).unwrap();
    let joins = page.split("```promql\n").nth(1).unwrap().split("```").next().unwrap();
    let joins: Vec<&str> = joins.split("\n\n").map(str::trim).collect();
    let [power, tensor, difference] = joins.as_slice() else { panic!("{joins:?}") };
    let by = |expression: &str, label: &str| -> BTreeMap<String, f64> {
        let found = prometheus.until(expression, |_| true);
        found.iter().map(|one| (one.labels[label].clone(), one.value)).collect()
    };
    let power = by(power, "dra_device_name");
    assert_eq!(power.len(), 3, "{power:?}");
    assert!(power.values().any(|watts| watts.to_string() == "300"), "the whole card: {power:?}");
    assert!(power.values().any(|watts| watts.to_string() == "60"), "a fifth of a card: {power:?}");
    assert_eq!(by(tensor, "placement"), BTreeMap::from([("0".to_owned(), 0.5)]));
    assert!(by(difference, "gpu").values().all(|bytes| *bytes == 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_scrape_has_the_series_of_a_live_agent() {
    let prepared = Prepared::new().await;
    let live = plain(&prepared.agent);
    if std::env::var("ALIQUOT_GOLDEN").is_ok_and(|mode| mode == "write") {
        fs::create_dir_all(recorded().parent().unwrap()).unwrap();
        fs::write(recorded(), &live).unwrap();
    }
    let text = fs::read_to_string(recorded()).unwrap();
    assert_eq!(series(&text), series(&live), "ALIQUOT_GOLDEN=write renews tests/golden/scrape/node.txt");
    prepared.agent.stop().await;
}

#[test]
fn alerts_fire_for_a_bad_node_and_for_no_other() {
    let tests = root().join("tests/rules/alerts.yaml");
    let written = fs::read_to_string(rules("alerts")).unwrap();
    let tested = fs::read_to_string(&tests).unwrap();
    for alert in written.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tested.contains(&format!("alertname=\"{alert}\"")), "{alert} is not tested");
    }
    match Command::new("promtool").args(["test", "rules"]).arg(tests).output() {
        Err(error) => println!("stood aside: promtool: {error}"),
        Ok(ran) => {
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
            for name in ["alerts", "hami", "dcgm"] {
                let checked = Command::new("promtool").args(["check", "rules"]).arg(rules(name)).output();
                let checked = checked.unwrap();
                assert!(checked.status.success(), "{name}: {}", String::from_utf8_lossy(&checked.stderr));
            }
        }
    }
}

#[test]
fn dashboards_have_the_schema_of_grafana() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("aliquot-dashboards");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(root().join("tests/dashboards"));
    let built = match build.output() {
        Ok(built) => built,
        Err(why) => return println!("stood aside (needs Go 1.26 or newer): {why}"),
    };
    if !built.status.success() {
        let why = String::from_utf8_lossy(&built.stderr).into_owned();
        let machine = ["proxy", "dial tcp", "lookup ", "no such host", "timeout"];
        assert!(machine.iter().any(|word| why.contains(word)), "tests/dashboards does not build: {why}");
        return println!("stood aside (needs the module of tests/dashboards, once): {why}");
    }
    let dir = root().join("deploy/helm/aliquot/dashboards");
    let check = |files: &[PathBuf]| Command::new(&program).args(files).output().unwrap();
    let files: Vec<PathBuf> = dashboards().iter().map(|(name, _)| dir.join(name)).collect();
    assert!(files.len() >= 4, "{files:?}");
    let checked = check(&files);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    // A field that Grafana does not have is found.
    let bad = tempfile::NamedTempFile::new().unwrap();
    let text = fs::read_to_string(&files[0]).unwrap().replacen("\"expr\"", "\"exprr\"", 1);
    fs::write(bad.path(), text).unwrap();
    assert!(!check(&[bad.path().to_owned()]).status.success());
}

#[test]
fn dashboards_differ_in_id_and_have_titles_and_units() {
    let all = dashboards();
    let ids: BTreeSet<&str> = all.iter().map(|(_, one)| one["uid"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), all.len());
    for (file, dashboard) in &all {
        let panels = dashboard["panels"].as_array().unwrap();
        let mut numbers = BTreeSet::new();
        for panel in panels {
            let title = panel["title"].as_str().unwrap();
            assert!(numbers.insert(panel["id"].as_u64()), "{file}: {title}");
            assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{file}: {title}");
            let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(place("x") + place("w") <= 24, "{file}: {title}");
            for target in panel["targets"].as_array().unwrap() {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{file}: {title}");
                let expression = target["expr"].as_str().unwrap();
                let is_limited = expression.contains("$node") || expression.contains("$namespace");
                assert!(is_limited || title == "Nodes", "{file}: {title}: {expression}");
            }
        }
    }
}
