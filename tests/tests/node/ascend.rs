//! This machine's own Ascend NPUs, without `--node`, and simulated ones: both through `libdcmi.so`. What is judged is the
//! library's side.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Output, Stdio};

use aliquot_sim_device::npu::{ChipHealth, Npus};
use aliquot_tests::fake_apiserver::FakeApiServer;
use aliquot_tests::fake_kubelet::FakeKubelet;
use aliquot_tests::local::wait_for;
use aliquot_tests::machine::Machine;
use aliquot_tests::npus::{NpuMachine, ROOT_ENV, chip_910b3};
use serde_json::{Value, json};

const UID: &str = "11111111-2222-3333-4444-555555555555";
const FIRST: &str = "NPU-a11c0000-51a0-4c4d-8000-000000000007";

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn parsed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A run of a command that says its variables and waits for the end of its input.
fn waiting(machine: &NpuMachine, ask: &[&str]) -> (Child, String) {
    let mut run = machine.aliquot("run", ask);
    run.args(["--", "sh", "-c", "echo $ASCEND_VISIBLE_DEVICES; read line || true"]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(run.stdout.take().unwrap()).lines().next();
    (run, line.map(Result::unwrap).unwrap_or_default())
}

fn end(mut child: Child) -> Option<i32> {
    drop(child.stdin.take());
    child.wait().unwrap().code()
}

#[test]
fn devices_shows_npus_of_the_machine() {
    let machine = NpuMachine::of_310p(2);
    let table = machine.aliquot("devices", &[]).output().unwrap();
    assert_eq!((table.status.code(), err(&table).as_str()), (Some(0), ""));
    let head = "Node machine: Ascend driver 25.2.0 (2 cards, this machine's own)\n";
    assert!(out(&table).starts_with(head), "{}", out(&table));
    let node = &parsed(&machine.aliquot("devices", &["-o", "json"]).output().unwrap())["nodes"][0];
    let card = &node["cards"][0];
    assert_eq!((card["uuid"].as_str(), card["model"].as_str()), (Some(FIRST), Some("huawei-310p-24gb")));
    assert_eq!(card["layout"], "dynamic", "{card}");
}

#[test]
fn run_of_a_template_has_a_vnpu_until_it_ends() {
    let machine = NpuMachine::of_310p(1);
    let state = machine.root().join("npus-state.toml");
    let script = format!(
        "echo $ASCEND_VISIBLE_DEVICES $ASCEND_RUNTIME_OPTIONS ${{LD_PRELOAD-none}} ${{CUDA_VISIBLE_DEVICES-none}}; \
         grep template {}",
        state.display()
    );
    let output =
        machine.aliquot("run", &["--template", "vir02", "--", "sh", "-c", &script]).output().unwrap();
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), ""));
    assert_eq!(out(&output), "100 VIRTUAL none none\ntemplate = \"vir02\"\n");
    assert_eq!(machine.vnpus(), []);
    let whole =
        machine.aliquot("run", &["--card", FIRST, "--", "sh", "-c", "echo $ASCEND_RT_VISIBLE_DEVICES"]);
    let whole = { whole }.output().unwrap();
    assert_eq!((whole.status.code(), out(&whole).as_str()), (Some(0), "0\n"), "{}", err(&whole));
}

#[test]
fn four_quarters_fit_one_npu_and_a_fifth_is_refused() {
    let machine = NpuMachine::of_310p(1);
    let quarters: Vec<(Child, String)> = (0..4).map(|_| waiting(&machine, &["--fraction", "1/4"])).collect();
    let mut templates: Vec<String> = machine.vnpus().into_iter().map(|vnpu| vnpu.template).collect();
    templates.sort();
    // Seven AI CPUs: the fourth has one.
    assert_eq!(templates, ["vir02", "vir02", "vir02", "vir02_1c"]);
    let fifth = machine.aliquot("run", &["--fraction", "1/4", "--", "true"]).output().unwrap();
    assert_eq!(fifth.status.code(), Some(125), "{fifth:?}");
    assert!(!err(&fifth).is_empty() && machine.vnpus().len() == 4, "{fifth:?}");
    for (child, id) in quarters {
        assert!(id.parse::<u32>().is_ok_and(|id| (100..108).contains(&id)), "{id}");
        assert_eq!(end(child), Some(0));
    }
    assert_eq!(machine.vnpus(), []);
}

#[test]
fn share_of_an_npu_is_refused_with_its_templates() {
    for machine in [NpuMachine::of_310p(1), NpuMachine::of(vec![chip_910b3(0, "mesh-0")])] {
        for share in [["--memory", "4Gi"], ["--cores", "25"]] {
            let refused = machine.aliquot("run", &share).args(["--", "true"]).output().unwrap();
            assert_eq!(refused.status.code(), Some(125), "{refused:?}");
            let said = err(&refused);
            let begins = format!("error: {} {}: found ", share[0], share[1]);
            assert!(said.starts_with(&begins), "{said}");
            assert!(
                said.contains("nothing holds a program to a share") && said.contains("--template (vir0"),
                "{said}"
            );
        }
    }
}

#[test]
fn critical_fault_of_an_npu_keeps_new_runs_off() {
    let machine = NpuMachine::of_310p(1);
    let (child, id) = waiting(&machine, &["--template", "vir01"]);
    assert_eq!(id, "100");
    machine.npus().set_health(0, &ChipHealth { health: 3, codes: vec![0x80c9_8001] }).unwrap();
    let notes = machine.state().join("health");
    wait_for("the note", || fs::read_to_string(&notes).is_ok_and(|text| text.contains("2160689153")));
    let health = machine.aliquot("health", &["-o", "json"]).output().unwrap();
    assert_eq!(health.status.code(), Some(1), "{health:?}");
    let held = &parsed(&health)["held"][0];
    assert_eq!((held["card"].as_str(), held["part"].as_str()), (Some(FIRST), Some("whole card")));
    assert!(held["why"].as_str().unwrap().starts_with("fault 80C98001: "), "{held}");
    let refused = machine.aliquot("run", &["--template", "vir01", "--", "true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert_eq!(end(child), Some(0));
    machine.npus().set_health(0, &ChipHealth::default()).unwrap();
    let cleared = machine.aliquot("health", &["--clear", "all"]).output().unwrap();
    assert_eq!(cleared.status.code(), Some(0), "{cleared:?}");
    let again = machine.aliquot("run", &["--template", "vir01", "--", "true"]).output().unwrap();
    assert_eq!(again.status.code(), Some(0), "{again:?}");
}

#[test]
fn top_shows_an_npu_and_the_claim_on_it() {
    let machine = NpuMachine::of_310p(1);
    let (child, _) = waiting(&machine, &["--template", "vir02", "--name", "mine"]);
    let top = parsed(&machine.aliquot("top", &["-n", "0", "-o", "json"]).output().unwrap());
    let card = &top["cards"][0];
    assert_eq!(
        (card["uuid"].as_str(), card["health"]["state"].as_str()),
        (Some(FIRST), Some("healthy")),
        "{top}"
    );
    assert!(top.to_string().contains("local/mine"), "{top}");
    assert_eq!(end(child), Some(0));
}

#[test]
fn vendors_of_a_machine_stand_side_by_side() {
    let (npus, gpus) = (NpuMachine::of_310p(2), Machine::of("[[card]]\n"));
    let both = |command: &str, arguments: &[&str]| {
        gpus.aliquot(command, arguments).env(ROOT_ENV, npus.root()).output().unwrap()
    };
    let devices = both("devices", &["-o", "json"]);
    assert_eq!(err(&devices), "");
    let cards: Vec<(u64, String)> = parsed(&devices)["nodes"][0]["cards"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| (card["index"].as_u64().unwrap(), card["model"].as_str().unwrap().to_owned()))
        .collect();
    let models = ["nvidia-h100-80gb-sxm", "huawei-310p-24gb", "huawei-310p-24gb"];
    assert_eq!(cards, [0, 1, 2].into_iter().zip(models.map(str::to_owned)).collect::<Vec<_>>());
    for (ask, variable, seen) in [
        (&["--memory", "1Gi"][..], "CUDA_VISIBLE_DEVICES", "0\n"),
        (&["--card", "1", "--template", "vir02"], "ASCEND_VISIBLE_DEVICES", "100\n"),
        (&["--card", "2", "--template", "vir01"], "ASCEND_VISIBLE_DEVICES", "116\n"),
    ] {
        let mut arguments = ask.to_vec();
        let script = format!("echo ${variable}");
        arguments.extend(["--", "sh", "-c", &script]);
        let run = both("run", &arguments);
        assert_eq!((run.status.code(), out(&run).as_str()), (Some(0), seen), "{ask:?}: {}", err(&run));
    }
    // One that is broken stops no other, and is told.
    let broken = NpuMachine::of_310p(1);
    broken.fault("dcmi_init", "{ error = -8005 }");
    let devices = gpus.aliquot("devices", &["-o", "json"]).env(ROOT_ENV, broken.root()).output().unwrap();
    assert_eq!(devices.status.code(), Some(0), "{devices:?}");
    assert_eq!(parsed(&devices)["nodes"][0]["cards"].as_array().unwrap().len(), 1);
    let said = err(&devices);
    assert!(said.starts_with("warning: Ascend driver library: ") && said.contains("-8005"), "{said}");
}

/// Verdict of a check of `aliquot doctor` on a machine, and what was found with the remedy.
fn checked(machine: &NpuMachine, check: &str) -> (String, String) {
    let mut doctor = machine.aliquot("doctor", &["-o", "json", "--metrics-address", "none"]);
    let doctor = parsed(&doctor.arg("--host-root").arg(machine.root()).output().unwrap());
    let of = |found: &&Value| found["check"] == check;
    let found = doctor["checks"].as_array().unwrap().iter().find(of).unwrap();
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    (text("verdict"), format!("{}; {}", text("found"), text("remedy")))
}

#[test]
fn doctor_examines_npus_and_names_a_broken_driver() {
    let machine = NpuMachine::of_310p(2);
    let (verdict, said) = checked(&machine, "driver libraries");
    assert_eq!((verdict.as_str(), said.as_str()), ("ok", "2 cards answer; "));
    let (verdict, said) = checked(&machine, "device files");
    assert_eq!((verdict.as_str(), said.as_str()), ("ok", "2 Ascend cards have theirs; "));
    fs::remove_file(machine.root().join("dev/davinci1")).unwrap();
    fs::remove_file(machine.root().join("dev/hisi_hdc")).unwrap();
    let (verdict, said) = checked(&machine, "device files");
    assert_eq!(verdict, "failed");
    assert!(said.starts_with("Ascend: absent /dev/hisi_hdc, 1 of 2 files /dev/davinci<number>; "), "{said}");
    // One chip does not answer, so that the other one alone is offered.
    machine
        .faults("[[fault]]\nsymbol = \"dcmi_get_device_logic_id\"\ncall = 3\naction = { error = -8005 }\n");
    let (verdict, said) = checked(&machine, "driver libraries");
    assert_eq!(verdict, "warning", "{said}");
    assert!(
        said.starts_with("1 cards answer; no new claims: card 0 chip 0: ") && said.contains("-8005"),
        "{said}"
    );
    machine.fault("dcmi_init", "{ error = -8005 }");
    let (verdict, said) = checked(&machine, "driver libraries");
    assert!(verdict == "failed" || said.contains("NVIDIA driver"), "{said}");
    assert!(said.contains("Ascend driver library: initialise: ") && said.contains("-8005"), "{said}");
}

#[test]
fn machine_without_cards_names_every_vendor() {
    let machine = Machine::new();
    let empty = tempfile::tempdir().unwrap();
    let mut devices = machine.aliquot("devices", &[]);
    let output = devices.env("LD_LIBRARY_PATH", "/nowhere").env(ROOT_ENV, empty.path()).output().unwrap();
    let said = err(&output);
    if output.status.success() {
        println!("stood aside: this machine has NVIDIA's library");
        return;
    }
    assert_eq!(output.status.code(), Some(3), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("error: NVIDIA driver library: found no libnvidia-ml.so.1"), "{said}");
    assert!(lines[1].trim_start().starts_with("Ascend driver library: found no libdcmi.so"), "{said}");
    assert!(lines[2].contains("--node h100-8") && lines.len() == 3, "{said}");
}

/// The first device of the slices that is a partition of a template, with its pool.
fn device_of(slices: &[Value], template: &str) -> Option<(String, String)> {
    let is = |device: &&Value| device["attributes"].to_string().contains(&format!("\"{template}\""));
    let mut found = slices.iter().filter_map(|slice| {
        let device = slice["spec"]["devices"].as_array()?.iter().find(is)?;
        Some((slice["spec"]["pool"]["name"].as_str()?.to_owned(), device["name"].as_str()?.to_owned()))
    });
    found.next()
}

fn claim_on(pool: &str, device: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": "quarter", "uid": UID},
        "spec": {"devices": {"requests": [{"name": "npu", "exactly": {"deviceClassName": "npu"}}]}},
        "status": {"allocation": {"devices": {"results": [
            {"request": "npu", "driver": "aliquot.dev", "pool": pool, "device": device},
        ]}}},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_prepares_a_quarter_through_the_library() {
    let (machine, server, kubelet) = (NpuMachine::of_310p(1), FakeApiServer::start(), FakeKubelet::default());
    // Before 1.37 `auto` publishes whole NPUs.
    server.set_version(37, 0);
    let cdi = machine.dir().join("cdi");
    let root = kubelet.registry().parent().unwrap().to_owned();
    let mut plugin = machine.aliquot("plugin", &["--node-name", "n1", "--metrics-address", "none"]);
    plugin.arg("--kubeconfig").arg(server.kubeconfig()).arg("--cdi-dir").arg(&cdi);
    plugin.arg("--kubelet-root").arg(root).stderr(Stdio::null());
    let mut plugin = plugin.spawn().unwrap();
    // Devices are published once the kubelet knows the plugin.
    let service = kubelet.register().await;
    server.wait_for("resourceslices", |slices| device_of(slices, "vir02").is_some()).await;
    let (pool, device) = device_of(&server.objects("resourceslices"), "vir02").unwrap();
    server.put(claim_on(&pool, &device));
    let named = [("default", "quarter", UID)];
    let prepared = service.prepare(&named).await;
    assert!(prepared[UID].is_ok(), "{prepared:?}");
    let vnpus = machine.vnpus();
    assert_eq!((vnpus.len(), vnpus[0].template.as_str()), (1, "vir02"));
    let spec = fs::read_to_string(cdi.join(format!("aliquot.dev-claim-{UID}.json"))).unwrap();
    for edit in
        [format!("/dev/davinci{}", vnpus[0].id), "/dev/davinci_manager".into(), "/usr/local/dcmi".into()]
    {
        assert!(spec.contains(&format!("\"{edit}\"")), "{edit}: {spec}");
    }
    assert!(!spec.contains("ld.so.preload"), "nothing is enforced by a shim: {spec}");
    assert_eq!(service.unprepare(&named).await[UID], "");
    assert_eq!(machine.vnpus(), []);
    plugin.kill().unwrap();
    plugin.wait().unwrap();
}

/// vNPUs of a simulated node's state.
fn vnpus_of(state: &Path) -> Vec<String> {
    let npus = Npus::open(&state.join("npus")).unwrap();
    npus.state().unwrap().vnpus.into_iter().map(|vnpu| vnpu.template).collect()
}

#[test]
fn run_on_a_simulated_npu_calls_the_library() {
    let place = tempfile::tempdir().unwrap();
    let state = place.path().join("state");
    let run = |arguments: &[&str], script: &str| {
        let mut aliquot = std::process::Command::new(aliquot_tests::local::aliquot());
        aliquot.args(["run", "--node", "mixed", "--state"]).arg(&state).args(arguments);
        aliquot.args(["--", "sh", "-c", script]).output().unwrap()
    };
    let seen =
        format!("echo $ASCEND_VISIBLE_DEVICES; grep -c vir02_1c {}/npus/npus-state.toml", state.display());
    let output = run(&["--card", "4", "--template", "vir02_1c"], &seen);
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(0), "100\n1\n"), "{}", err(&output));
    assert_eq!(vnpus_of(&state), [""; 0]);
    // The library refuses, so the claim does.
    let fault = "[[fault]]\nsymbol = \"dcmi_create_vdevice\"\naction = { error = -8005 }\n";
    fs::write(state.join("npus/npu-faults.toml"), fault).unwrap();
    let refused = run(&["--template", "vir02"], "true");
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(err(&refused).contains("vendor error -8005"), "{}", err(&refused));
    assert_eq!(vnpus_of(&state), [""; 0]);
}

/// `aliquot` on a simulated node with examples.
fn on_simulated(command: &str, node: &str, state: &Path, examples: &[&str]) -> Output {
    let mut aliquot = std::process::Command::new(aliquot_tests::local::aliquot());
    aliquot.args([command, "--node", node, "--state"]).arg(state);
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples");
    for example in examples {
        aliquot.arg("-f").arg(dir.join(example));
    }
    aliquot.output().unwrap()
}

#[test]
fn example_of_four_quarters_makes_four_vnpus_and_no_fifth() {
    let place = tempfile::tempdir().unwrap();
    let state = place.path().join("state");
    let quarter = "ascend-310p-quarter.yaml";
    let prepared =
        on_simulated("prepare", "ascend-310p", &state, &["ascend-310p-four-quarters.yaml", quarter]);
    // The claim of the other example finds no place beside four quarters.
    assert_eq!(prepared.status.code(), Some(1), "{prepared:?}");
    let mut vnpus = vnpus_of(&state);
    vnpus.sort();
    assert_eq!(vnpus, ["vir02", "vir02", "vir02", "vir02_1c"], "{prepared:?}");
    let mut release = std::process::Command::new(aliquot_tests::local::aliquot());
    let release =
        release.args(["release", "--all", "--node", "ascend-310p", "--state"]).arg(&state).output().unwrap();
    assert_eq!(release.status.code(), Some(0), "{release:?}");
    assert_eq!(vnpus_of(&state), [""; 0]);
}

#[test]
fn example_of_two_npus_reaches_two_of_one_ring() {
    let place = tempfile::tempdir().unwrap();
    let state = place.path().join("state");
    let prepared = on_simulated("prepare", "ascend-910a-8", &state, &["two-npus.yaml"]);
    assert_eq!(prepared.status.code(), Some(0), "{prepared:?}");
    let specs: String = fs::read_dir(state.join("cdi"))
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let reached = |phy: &usize| specs.contains(&format!("\"/dev/davinci{phy}\""));
    let phys: Vec<usize> = (0..8).filter(reached).collect();
    let npus = Npus::open(&state.join("npus")).unwrap();
    let rings: Vec<&Option<String>> = phys.iter().map(|phy| &npus.machine().chips[*phy].hccs).collect();
    assert!(rings.len() == 2 && rings[0].is_some() && rings[0] == rings[1], "{phys:?} {rings:?}");
}
