//! `aliquot bundle` on a machine with cards and a cluster: what is in the archive, and what is not.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use aliquot_tests::fake_apiserver::{Effect, FakeApiServer, Fault};
use aliquot_tests::local::aliquot;
use aliquot_tests::machine::Machine;
use serde_json::{Value, json};

fn bundle(machine: &Machine, server: &FakeApiServer, file: &Path) -> Output {
    let mut bundle = machine.aliquot("bundle", &["--node-name", "h100-8"]);
    bundle.arg("--kubeconfig").arg(server.kubeconfig()).arg("--host-root").arg(machine.dir().join("host"));
    bundle.arg(file).output().unwrap()
}

/// A file of the archive.
fn part(archive: &Path, name: &str) -> String {
    let mut tar = Command::new("tar");
    tar.arg("-xzOf").arg(archive).arg(format!("aliquot-bundle-h100-8/{name}"));
    let output = tar.output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "team", "name": name, "uid": name},
        "spec": {
            "nodeName": node, "resourceClaims": [{"name": "gpu", "resourceClaimName": "half"}],
            "containers": [{"name": "main", "image": "i", "env": [{"name": "TOKEN", "value": "a-secret"}]}],
        },
        "status": {"phase": "Running"},
    })
}

#[test]
fn bundle_has_the_parts_and_names_the_absent_ones() {
    let (machine, server) = (Machine::of("[[card]]"), FakeApiServer::start());
    let host = machine.dir().join("host");
    let logs = host.join("var/log/pods/aliquot_aliquot-x1_uid/agent");
    let others = host.join("var/log/pods/team_p_uid/main");
    for (dir, text) in [(&logs, "what the agent logged"), (&others, "a-secret")] {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("0.log"), text).unwrap();
    }
    server.put(pod("p", "h100-8"));
    server.put(pod("waiting", ""));
    server.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "h100-8"}}));
    let mut slices = machine.bench.command(aliquot());
    let slices = slices.args(["slices", "--node", "h100-8", "-o", "json"]).output().unwrap().stdout;
    let slices: Value = serde_json::from_slice(&slices).unwrap();
    slices["items"].as_array().unwrap().iter().for_each(|slice| drop(server.put(slice.clone())));
    server.put(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "team", "name": "s"},
        "data": {"key": "a-secret"}}));
    server.inject(Fault::once("list", "events", Effect::Status(403)));

    let file = machine.dir().join("archive.tar.gz");
    let ended = bundle(&machine, &server, &file);
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));

    let readme = part(&file, "README.txt");
    assert_eq!(part(&file, "logs/aliquot_aliquot-x1_uid/agent/0.log"), "what the agent logged");
    assert!(part(&file, "commands/doctor.txt").contains("driver libraries"), "{readme}");
    // A check failed, which is said beside the answer.
    let doctor: Value = serde_json::from_str(&part(&file, "commands/doctor.json")).unwrap();
    assert!(doctor["checks"].as_array().unwrap().iter().any(|check| check["verdict"] == "failed"));
    assert_eq!(part(&file, "commands/doctor.json.stderr"), "exit status: 1\n");
    let devices: Value = serde_json::from_str(&part(&file, "commands/devices.json")).unwrap();
    assert_eq!(devices["nodes"][0]["cards"].as_array().unwrap().len(), 1);
    let pods: Value = serde_json::from_str(&part(&file, "cluster/pods.json")).unwrap();
    assert_eq!(pods["items"][0]["spec"]["resourceClaims"][0]["resourceClaimName"], "half");
    assert!(readme.contains("absent  cluster/events.json: events: get is forbidden"), "{readme}");

    let all = Command::new("tar").arg("-xzOf").arg(&file).output().unwrap().stdout;
    assert!(!String::from_utf8_lossy(&all).contains("a-secret"));

    // Its Lists are dumps.
    let mut explain = machine.bench.command(aliquot());
    explain.arg("explain");
    for list in ["node", "pods", "pods-without-node", "resourceclaims", "resourceslices", "deviceclasses"] {
        let dump = machine.dir().join(format!("{list}.json"));
        fs::write(&dump, part(&file, &format!("cluster/{list}.json"))).unwrap();
        explain.arg("-f").arg(dump);
    }
    let explained = explain.output().unwrap();
    let said = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(said.contains("team/waiting"), "{said}{}", String::from_utf8_lossy(&explained.stderr));

    // A second one does not replace it, and leaves nothing beside it.
    let again = bundle(&machine, &server, &file);
    assert_eq!(again.status.code(), Some(3));
    assert!(!machine.dir().join("archive.tar.gz.partial").exists());
}
