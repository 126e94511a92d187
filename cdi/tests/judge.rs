//! Upstream's CDI library as the judge of ours: the Go program in `tests/judge` loads and injects as runtimes do.
//!
//! It judges random claims. Without a Go toolchain, or with `ALIQUOT_ORACLE=none` in the environment, the test says so and stands aside.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use aliquot_cdi::{ClaimSpec, ClaimSpecBuilder, DeviceNode, Edit, Mount, Owner};
use proptest::prelude::*;
use proptest::sample::subsequence;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

/// Random claims that upstream injects.
const CLAIMS: usize = 500;

/// The built judge, once for all tests; or why it does not build.
static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();

fn build_judge() -> Result<PathBuf, String> {
    let temp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (program, own) = (temp.join("cdi-judge"), temp.join(format!("cdi-judge-{}", std::process::id())));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/judge");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&own).arg(".").current_dir(sources);
    let output = build.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    // By rename, because another run of the tests may be using the file.
    fs::rename(&own, &program).map_err(|error| error.to_string())?;
    Ok(program)
}

/// Upstream's verdict on each text; none where the judge stands aside, which is said.
fn verdicts(texts: &[String]) -> Result<Option<Vec<Value>>, Box<dyn Error>> {
    let wanted = std::env::var("ALIQUOT_ORACLE").map_or(true, |value| value != "none");
    let go = Command::new("go").arg("version").output();
    if !wanted || go.is_err() {
        let why = if wanted { "there is no Go toolchain" } else { "ALIQUOT_ORACLE is none" };
        println!("upstream's CDI library stands aside: {why}");
        return Ok(None);
    }
    let program = BUILT.get_or_init(build_judge).as_ref().map_err(|why| format!("go build: {why}"))?;
    let mut questions = tempfile::tempfile()?;
    for text in texts {
        writeln!(questions, "{}", serde_json::to_string(text)?)?;
    }
    std::io::Seek::rewind(&mut questions)?;
    let answers = Command::new(program).stdin(questions).stderr(Stdio::inherit()).output()?;
    let verdicts: Vec<Value> = answers
        .stdout
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    if verdicts.len() != texts.len() {
        return Err(format!("{} answers to {} questions", verdicts.len(), texts.len()).into());
    }
    Ok(Some(verdicts))
}

/// That many random values.
fn sample<T>(strategy: impl Strategy<Value = T>, count: usize) -> Vec<T> {
    let mut runner = TestRunner::default();
    (0..count).filter_map(|_| Some(strategy.new_tree(&mut runner).ok()?.current())).collect()
}

/// Edits in slots of their own, so that any choice of them merges.
fn all_edits() -> Result<Vec<Edit>, Box<dyn Error>> {
    let mut edits = Vec::new();
    for n in 0..4_u32 {
        let at = format!("/dev/card{n}");
        edits.push(Edit::Env(format!("VALUE_{n}").parse()?, format!("{n} \"q\" \\ ü: #").parse()?));
        edits.push(Edit::Mount(Mount::read_only(format!("/run/{n}").parse()?, format!("/h ü/{n}").parse()?)));
        edits.push(Edit::Node(DeviceNode::new(at.parse()?, at.parse()?, (195, n))?));
        let (other, host) = (format!("/dev/other{n}").parse()?, format!("/dev/host{n}").parse()?);
        edits.push(Edit::Node(DeviceNode::new(other, host, (8, n))?));
    }
    Ok(edits)
}

/// A claim with some devices.
fn build(uid: &str, devices: &[Vec<Edit>]) -> Result<ClaimSpec, Box<dyn Error>> {
    let mut builder = ClaimSpecBuilder::new(uid.parse()?);
    for (share, edits) in devices.iter().enumerate() {
        let share = share.to_string();
        builder.device(&"gpu/big".parse()?, &share.parse()?, &Owner::new(share), edits)?;
    }
    Ok(builder.build()?)
}

/// The elements of a list, which may be absent.
fn each<'v>(value: &'v Value, field: &str) -> impl Iterator<Item = &'v Value> {
    value[field].as_array().into_iter().flatten()
}

fn pick(value: &Value, fields: &[&str]) -> String {
    Value::from(fields.iter().map(|field| value[*field].clone()).collect::<Vec<_>>()).to_string()
}

/// Lines for what a container with all devices of the spec should have.
fn expected(spec: &Value) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for edits in each(spec, "devices").map(|device| &device["containerEdits"]) {
        lines.extend(each(edits, "env").map(Value::to_string));
        for node in each(edits, "deviceNodes") {
            lines.insert(pick(node, &["path", "type", "major", "minor"]));
            let (kind, access) = (&node["type"], &node["permissions"]);
            lines.insert(json!([true, kind, node["major"], node["minor"], access]).to_string());
        }
        lines.extend(
            each(edits, "mounts").map(|mount| pick(mount, &["containerPath", "hostPath", "options"])),
        );
    }
    lines
}

/// The same lines for what upstream made.
fn injected(verdict: &Value) -> BTreeSet<String> {
    let mut lines: BTreeSet<String> = each(verdict, "env").map(Value::to_string).collect();
    lines.extend(each(verdict, "nodes").map(|node| pick(node, &["path", "type", "major", "minor"])));
    let rule = ["allow", "type", "major", "minor", "access"];
    lines.extend(each(verdict, "access").map(|access| pick(access, &rule)));
    let mount = ["destination", "source", "options"];
    lines.extend(each(verdict, "mounts").map(|found| pick(found, &mount)));
    lines
}

/// Whether upstream finds the lowest version by the last device alone: compiled by the rules of Go 1.19, its loop for 0.5.0 reads
/// the edits of the last device as often as there are devices.
fn is_overlooked(spec: &Value, verdict: &Value) -> bool {
    let has_host = |device: &Value| {
        each(&device["containerEdits"], "deviceNodes").any(|node| node.get("hostPath").is_some())
    };
    let by_name = each(spec, "devices").any(|device| {
        device["name"].as_str().is_some_and(|name| name.starts_with(|c: char| c.is_ascii_digit()))
    });
    let by_last = each(spec, "devices").last().is_some_and(has_host);
    !by_name && !by_last && each(spec, "devices").any(has_host) && verdict["lowest"] == "0.3.0"
}

#[test]
fn upstream_injects_exactly_what_a_claim_says() {
    let all = all_edits().unwrap();
    let some = || subsequence(all.clone(), 1..8);
    let uid = prop::sample::select(&["4ee7-ab", "c1aa-00"][..]);
    let claims = sample((uid, prop::collection::vec(some(), 1..5)), CLAIMS);
    assert_eq!(claims.len(), CLAIMS);
    let specs: Vec<ClaimSpec> = claims.iter().map(|(uid, devices)| build(uid, devices).unwrap()).collect();
    let texts: Vec<String> = specs.iter().map(|spec| spec.text().to_owned()).collect();
    let Some(verdicts) = verdicts(&texts).unwrap() else { return };
    for (text, verdict) in texts.iter().zip(&verdicts) {
        let spec: Value = serde_json::from_str(text).unwrap();
        assert_eq!(verdict["loaded"], true, "{verdict}\n{text}");
        let agrees = verdict["lowest"] == spec["cdiVersion"] || is_overlooked(&spec, verdict);
        assert!(agrees, "{verdict}\n{text}");
        assert_eq!(verdict["injected"], true, "{verdict}\n{text}");
        assert_eq!(injected(verdict), expected(&spec), "{text}");
    }
}
