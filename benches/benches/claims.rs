//! What 1,000 prepared claims that nothing uses cost the node agent: the program itself, on a simulated node of eight H100, through
//! the kubelet's socket.
//!
//! The state lies on the disk of the target directory, CDI files among it. On disk counts what the file system allocated, as `du`
//! does. Memory is measured after the agent gave back what it needed for a while, which it does once a minute.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use aliquot_benches::measure::{Effort, figures, timed};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_tests::fake_apiserver::FakeApiServer;
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::local::aliquot;
use serde_json::{Value, json};

/// Claims of one call, as a kubelet has several Pods at once.
const AT_ONCE: usize = 25;
/// Claims with a compute guarantee on each card: one percent each.
const GUARANTEED: usize = 100;

/// The agent, ended with the value.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// What the agent takes of the machine.
struct Cost {
    resident_mib: f64,
    descriptors: usize,
    processor_seconds: f64,
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn start(dir: &Path, server: &FakeApiServer, kubelet: &FakeKubelet) -> Result<Agent, String> {
    let mut command = Command::new(aliquot());
    command.args(["plugin", "--node", "h100-8", "--node-name", "n1", "--metrics-address", "none"]);
    command.arg("--kubeconfig").arg(server.kubeconfig()).arg("--state").arg(dir.join("state"));
    command.arg("--cdi-dir").arg(dir.join("state/cdi"));
    command.arg("--kubelet-root").arg(kubelet.registry().parent().ok_or("no kubelet directory")?);
    for made in ["state", "state/cdi"] {
        fs::create_dir(dir.join(made)).map_err(failed)?;
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(Agent).map_err(failed)
}

impl Agent {
    fn cost(&self) -> Result<Cost, String> {
        let dir = Path::new("/proc").join(self.0.id().to_string());
        let read = |name: &str| fs::read_to_string(dir.join(name)).map_err(failed);
        let status = read("status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let resident: f64 = resident.trim().trim_end_matches(" kB").parse().map_err(failed)?;
        let stat = read("stat")?;
        let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
        // User and system time, in hundredths of a second.
        let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).ok_or("no times");
        let descriptors = fs::read_dir(dir.join("fd")).map_err(failed)?.count();
        let processor_seconds = (ticks(11)? + ticks(12)?) / 100.0;
        Ok(Cost { resident_mib: resident / 1024.0, descriptors, processor_seconds })
    }
}

/// Pool and name of the device of each whole card, in order.
fn cards(slices: &[Value]) -> Vec<(Value, Value)> {
    let devices = slices.iter().flat_map(|slice| {
        let devices = slice["spec"]["devices"].as_array().into_iter().flatten();
        devices.map(|device| (slice["spec"]["pool"]["name"].clone(), device))
    });
    let whole = devices.filter(|(_, device)| device["attributes"]["type"]["string"] == json!("card"));
    whole.map(|(pool, device)| (pool, device["name"].clone())).collect()
}

fn claim(number: usize, cards: &[(Value, Value)]) -> Value {
    let (pool, device) = &cards[number % cards.len()];
    let cores = if number / cards.len() < GUARANTEED { "1" } else { "0" };
    let result = json!({
        "request": "gpu", "driver": "aliquot.dev", "pool": pool, "device": device,
        "shareID": format!("00000000-0000-4000-8000-{number:012}"),
        "consumedCapacity": {"memory": "64Mi", "cores": cores},
    });
    let name = format!("c{number}");
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name, "uid": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "share.aliquot.dev"}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    })
}

async fn prepare(plugin: &Plugin, claims: &[String]) -> Result<(), String> {
    for some in claims.chunks(AT_ONCE) {
        let named: Vec<_> = some.iter().map(|name| ("default", name.as_str(), name.as_str())).collect();
        for (name, answer) in plugin.prepare(&named).await {
            answer.map_err(|error| format!("{name}: {error}"))?;
        }
    }
    Ok(())
}

/// Files, and bytes that they take on disk.
fn on_disk(path: &Path) -> Result<(usize, u64), String> {
    let found = fs::symlink_metadata(path).map_err(failed)?;
    let mut sum = (usize::from(found.is_file()), found.blocks() * 512);
    if found.is_dir() {
        for entry in fs::read_dir(path).map_err(failed)? {
            let (files, bytes) = on_disk(&entry.map_err(failed)?.path())?;
            sum = (sum.0 + files, sum.1 + bytes);
        }
    }
    Ok(sum)
}

fn run(effort: Effort) -> Result<ExitCode, String> {
    let (count, settle, watch) = effort.pick((1_000, 75, 30), (16, 1, 1));
    let dir = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    let (server, kubelet) = (FakeApiServer::start(), FakeKubelet::default());
    let agent = start(dir.path(), &server, &kubelet)?;
    let plugin = runtime.block_on(kubelet.register());
    runtime.block_on(server.wait_for("resourceslices", |slices| cards(slices).len() == 8));
    let state = dir.path().join("state");
    let (before, idle) = (on_disk(&state)?, agent.cost()?);
    let cards = cards(&server.objects("resourceslices"));
    (0..count).for_each(|number| drop(server.put(claim(number, &cards))));
    let names: Vec<String> = (0..count).map(|number| format!("c{number}")).collect();
    let (prepared, seconds) = timed(|| runtime.block_on(prepare(&plugin, &names)));
    prepared?;
    std::thread::sleep(Duration::from_secs(settle));
    let settled = agent.cost()?;
    std::thread::sleep(Duration::from_secs(watch));
    let later = agent.cost()?;
    let after = on_disk(&state)?;
    let percent = (later.processor_seconds - settled.processor_seconds) / watch as f64 * 100.0;
    let kib = (after.1 - before.1) as f64 / 1024.0 / count as f64;

    let mut report = Report::new("Claims that nothing uses, and the agent", effort);
    let row = |name: &str, before: f64, after: f64| [name.to_owned(), figures(before), figures(after)];
    let rows = [
        row("resident, MiB", idle.resident_mib, later.resident_mib),
        row("descriptors", idle.descriptors as f64, later.descriptors as f64),
        row("files of the state", before.0 as f64, after.0 as f64),
        row("state on disk, MiB", before.1 as f64 / 1048576.0, after.1 as f64 / 1048576.0),
    ];
    report.table(
        &format!("{count} claims, prepared in {} s.", figures(seconds)),
        ["", "before", "with them"],
        &rows,
    );
    report.promise("processor while nothing happens, % of a core", percent, Promise::AtMost(2.0));
    report.promise("resident, MiB", later.resident_mib, Promise::AtMost(60.0));
    report.promise("descriptors", later.descriptors as f64, Promise::AtMost(160.0));
    report.promise("KiB on disk of a claim", kib, Promise::AtMost(64.0));
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(run(Effort::from_args()))
}
