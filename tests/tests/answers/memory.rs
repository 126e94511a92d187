//! Memory of commands over many nodes: equal nodes share what they have in common, and output is written as it is
//! produced.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use aliquot_tests::local::aliquot as program;

const NODES: usize = 1_000;
const CLAIMS: usize = 10_000;
/// Of `slices`, which renders every slice.
const NODES_PUBLISHED: usize = 400;
/// What a command takes with next to no nodes and claims: the program itself.
const ALONE: u64 = 40 << 20;
/// Bytes of a node of eight H100 in the layout `dynamic`, 208 devices.
const NODE: u64 = 28 << 10;
/// Bytes of a claim and its allocation.
const CLAIM: u64 = 6 << 10;
/// More than a pipe holds: so many bytes before its end, a process has not ended.
const PIPE: usize = 64 << 10;

/// The most memory that a process has had, in bytes; `None` after its end.
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().unwrap() << 10)
}

/// The memory of a command with more output than a pipe holds, and that output.
fn memory_of(arguments: &[&str]) -> (u64, String) {
    let mut child = Command::new(program()).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let (mut text, mut chunk, mut most) = (Vec::new(), vec![0; PIPE / 2], 0);
    let mut out = child.stdout.take().unwrap();
    loop {
        let count = out.read(&mut chunk).unwrap();
        most = most.max(peak(child.id()).unwrap_or(0));
        if count == 0 {
            break;
        }
        text.extend_from_slice(&chunk[..count]);
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(text.len() > 2 * PIPE && most > 0, "{} bytes of output, {most} of memory", text.len());
    (most, String::from_utf8(text).unwrap())
}

/// Two claims of three ask for a share, one for a partition.
fn claims(file: &Path) {
    let mut text = String::new();
    for number in 0..CLAIMS {
        let asks = match number % 3 {
            2 => "deviceClassName: mig-1g-10gb.aliquot.dev",
            _ => "deviceClassName: share.aliquot.dev, capacity: {requests: {memory: 10Gi, cores: '10'}}",
        };
        writeln!(
            text,
            "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{name: claim-{number}}}\n\
             spec: {{devices: {{requests: [{{name: gpu, exactly: {{{asks}}}}}]}}}}\n---"
        )
        .unwrap();
    }
    fs::write(file, text).unwrap();
}

#[test]
fn plan_of_many_nodes_and_claims_takes_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("claims.yaml");
    claims(&file);
    let (file, node) = (file.display().to_string(), format!("8xh100*{NODES}"));
    let allowed = ALONE + NODES as u64 * NODE + CLAIMS as u64 * CLAIM;
    for form in [["--limit", "0"], ["-o", "json"]] {
        let (taken, text) = memory_of(&[&["plan", "-f", &file, "--node", &node], &form[..]].concat());
        assert!(text.contains("claim-9999"), "{form:?}");
        assert!(taken <= allowed, "{form:?}: {taken} bytes, allowed are {allowed}");
    }
}

#[test]
fn slices_of_many_nodes_take_little_memory() {
    let node = format!("8xh100*{NODES_PUBLISHED}");
    let (taken, text) = memory_of(&["slices", "--node", &node]);
    let allowed = ALONE + NODES_PUBLISHED as u64 * NODE;
    assert!(text.contains("h100-8-399-"));
    assert!(taken <= allowed, "{taken} bytes, allowed are {allowed}");
}

/// A `List` as `kubectl get` prints it, its kind behind its items: a claim, and objects of many small fields that no
/// command uses.
fn dump(file: &Path, form: &str) -> u64 {
    let fields: serde_json::Map<String, serde_json::Value> =
        (0..300).map(|number| (format!("field-{number}"), number.into())).collect();
    let object = |number| serde_json::json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": format!("t-{number}")}, "data": fields});
    let claim = serde_json::json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "share.aliquot.dev"}}]}},
    });
    let items: Vec<_> = (0..1_800).map(object).chain([claim]).collect();
    let list = serde_json::json!({"apiVersion": "v1", "items": items, "kind": "List"});
    let text = match form {
        "json" => format!("{list:#}"),
        _ => serde_saphyr::to_string(&list).unwrap(),
    };
    fs::write(file, &text).unwrap();
    text.len() as u64
}

#[test]
fn dump_takes_little_more_memory_than_its_text() {
    let dir = tempfile::tempdir().unwrap();
    for form in ["json", "yaml"] {
        let file = dir.path().join(form);
        let bytes = dump(&file, form);
        let mut command = Command::new(program());
        command.args(["plan", "--node", "8xh100", "-f"]).arg(&file).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut most = 0;
        while child.try_wait().unwrap().is_none() {
            most = most.max(peak(child.id()).unwrap_or(0));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(bytes > 8 << 20 && most > bytes, "{bytes} bytes of {form}, {most} of memory");
        assert!(most <= ALONE + 2 * bytes, "{bytes} bytes of {form} took {most} of memory");
    }
}
