//! Upstream's CDI library as the judge of ours: the Go program in `tests/judge` loads and injects as runtimes do.
//!
//! Asked about every fixture, about random files with and without faults, and about random claims. Without a Go
//! toolchain, or with `ALIQUOT_ORACLE=none` in the environment, the test says so and stands aside.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use aliquot_cdi::edits::{NodeAccess, NodeType};
use aliquot_cdi::spec::Spec;
use aliquot_cdi::validate::validate;
use aliquot_cdi::version::{SpecVersion, lowest, needs};
use aliquot_cdi::{ClaimSpec, ClaimSpecBuilder, DeviceNode, Edit, Mount, Owner};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};

/// Random files that both judge.
const FILES: usize = 2_000;
/// Random claims that upstream injects.
const CLAIMS: usize = 500;

/// Where ours refuses and upstream does not.
const STRICTER: &[(&str, &str)] = &[
    ("annotation_key", "upstream means to check the keys of annotations, and never does"),
    ("annotation_prefix", "upstream means to check the keys of annotations, and never does"),
    ("annotation_not_text", "upstream reads JSON as YAML and turns a number into a text"),
    ("node_major_fraction", "upstream reads JSON as YAML and cuts a fraction off"),
];

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

/// What the two disagree on, in words.
fn disagreement(text: &str, verdict: &Value) -> Option<String> {
    match Spec::parse(text) {
        Ok(spec) if verdict["loaded"] == true && verdict["lowest"] == lowest(&spec).as_str() => None,
        Ok(spec) => Some(format!("ours: accepted, lowest {}; upstream: {verdict}\n{text}", lowest(&spec))),
        Err(_) if verdict["loaded"] == false => None,
        Err(error) => Some(format!("ours: {error}: {:?}; upstream: {verdict}\n{text}", error.source())),
    }
}

/// Whether the two differ only by what upstream overlooks: it is compiled by the rules of Go 1.19, under which its loop
/// for 0.4.0 and 0.5.0 sees the edits of the last device as often as there are devices, and no others.
fn overlooked(text: &str, verdict: &Value) -> bool {
    let Ok(spec) = serde_json::from_str::<Spec>(text) else { return false };
    let last = format!("devices[{}]", spec.devices.len().saturating_sub(1));
    let unseen = |feature: &str| {
        let by_edits = feature.ends_with("].type") || feature.ends_with("].hostPath");
        by_edits && feature.starts_with("devices[") && !feature.starts_with(&last)
    };
    let needs = needs(&spec);
    let seen = needs.iter().filter(|needed| !unseen(&needed.feature)).map(|needed| needed.version).max();
    let seen = seen.unwrap_or(SpecVersion::V0_3_0);
    let else_valid = validate(&Spec { cdi_version: SpecVersion::V1_1_0, ..spec.clone() }).is_ok();
    else_valid && verdict["loaded"] == true && verdict["lowest"] == seen.as_str() && spec.cdi_version >= seen
}

#[test]
fn upstream_takes_and_refuses_the_same_fixtures() {
    let mut names = Vec::new();
    let mut texts = Vec::new();
    for which in ["good", "bad"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(which);
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
            texts.push(fs::read_to_string(path).unwrap());
        }
    }
    assert!(texts.len() > 70, "the fixtures are there");
    let Some(verdicts) = verdicts(&texts).unwrap() else { return };
    for ((name, text), verdict) in names.iter().zip(&texts).zip(&verdicts) {
        let stricter = STRICTER.iter().find(|(stricter, _)| stricter == name);
        match (disagreement(text, verdict), stricter) {
            (None, None) => {}
            (Some(_), Some(_)) => assert_eq!(verdict["loaded"], true, "{name}: ours is only ever stricter"),
            (None, Some((_, why))) => panic!("{name}: upstream agrees now; it was that {why}"),
            (Some(what), None) => panic!("{name}: {what}"),
        }
    }
}

/// A value that is mostly in order.
fn mostly(good: &'static [&'static str], bad: &'static [&'static str]) -> impl Strategy<Value = Value> {
    prop_oneof![30 => select(good), 1 => select(bad)].prop_map(Value::from)
}

/// An object with some of the fields, and now and then one that the format does not have.
fn object(
    fields: Vec<(&'static str, BoxedStrategy<Value>)>,
    always: &'static [&'static str],
) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| {
            let given = if always.contains(&name) { 0.99 } else { 0.25 };
            prop::option::weighted(given, value).prop_map(move |value| value.map(|value| (name, value)))
        })
        .collect();
    (fields, prop::option::weighted(0.004, Just(("surprise", json!(1)))))
        .prop_map(|(fields, surprise)| {
            let pairs = fields.into_iter().chain([surprise]).flatten();
            Value::from(pairs.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
        })
        .boxed()
}

fn list(of: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
    prop::collection::vec(of, 0..3).prop_map(Value::from).boxed()
}

fn any_edits() -> BoxedStrategy<Value> {
    let path = || mostly(&["/dev/a", "/b", "c"], &[""]).boxed();
    let number = || select(vec![json!(0), json!(1), json!(4_294_967_295_u32)]).boxed();
    let node = object(
        vec![
            ("path", path()),
            ("hostPath", select(&["", "/dev/b"][..]).prop_map(Value::from).boxed()),
            ("type", mostly(&["c", "b", "u", "p", ""], &["char"]).boxed()),
            ("major", number()),
            ("minor", number()),
            ("fileMode", number()),
            ("permissions", mostly(&["", "r", "rwm", "none", "mrr"], &["rx", "None"]).boxed()),
            ("uid", number()),
            ("gid", number()),
        ],
        &["path"],
    );
    let mount = object(
        vec![
            ("hostPath", path()),
            ("containerPath", path()),
            ("options", list(select(vec![json!("ro"), json!("bind")]))),
            ("type", select(&["", "none"][..]).prop_map(Value::from).boxed()),
        ],
        &["hostPath", "containerPath"],
    );
    let hook = object(
        vec![
            ("hookName", mostly(&["prestart", "poststop", "createContainer"], &["stop", ""]).boxed()),
            ("path", path()),
            ("args", list(Just(json!("x")))),
            ("env", list(mostly(&["A=1"], &["A"]))),
            ("timeout", number()),
        ],
        &["hookName", "path"],
    );
    let net = object(
        vec![
            ("hostInterfaceName", mostly(&["e0", "e1", "e2", "e3", "e4"], &[""]).boxed()),
            ("name", mostly(&["n0", "n1", "n2", "n3", "n4"], &[""]).boxed()),
        ],
        &["hostInterfaceName", "name"],
    );
    let rdt = object(
        vec![
            ("closID", mostly(&["a", "/", "", "..."], &["a/b", ".", "..", "a\nb"]).boxed()),
            ("l3CacheSchema", Just(json!("L3:0=f")).boxed()),
            ("memBwSchema", Just(json!("MB:0=1")).boxed()),
            ("schemata", list(Just(json!("L3:0=f")))),
            ("enableMonitoring", any::<bool>().prop_map(Value::from).boxed()),
        ],
        &[],
    );
    object(
        vec![
            ("env", list(mostly(&["A=1", "B=", "C=d=e", "_ x=1"], &["", "A", "=1"]))),
            ("deviceNodes", list(node)),
            ("netDevices", list(net)),
            ("hooks", list(hook)),
            ("mounts", list(mount)),
            ("intelRdt", rdt),
            ("additionalGids", list(number())),
        ],
        &["env"],
    )
}

fn any_file() -> BoxedStrategy<Value> {
    let annotations = || prop::collection::btree_map("[a-z]{1,3}(/[A-Z][a-z]{0,2})?", "[a-z]{0,2}", 0..2);
    let annotations = move || annotations().prop_map(|map| json!(map)).boxed();
    let device = object(
        vec![
            (
                "name",
                mostly(&["a", "b", "0", "1:x", "a.b_c-d", "Z"], &["", "-a", "a-", "a/b", "ü", "aü", "a b"])
                    .boxed(),
            ),
            ("annotations", annotations()),
            ("containerEdits", any_edits()),
        ],
        &["name", "containerEdits"],
    );
    let versions =
        &["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0", "1.1.0", "v1.1.0"];
    let kinds = &["v.com/d", "v.com/d", "v_A-1/d_e-1", "v.com/d.e"];
    object(
        vec![
            ("cdiVersion", mostly(versions, &["", "0.2.0", "1.2.0", "1.1"]).boxed()),
            (
                "kind",
                mostly(kinds, &["", "v.com", "/d", "v/", "1v/d", "v/1d", "v-/d", "v/d/e", "v/d=e", "ü/d"])
                    .boxed(),
            ),
            ("annotations", annotations()),
            ("devices", prop::collection::vec(device, 0..4).prop_map(Value::from).boxed()),
            ("containerEdits", any_edits()),
        ],
        &["cdiVersion", "kind", "devices"],
    )
}

/// That many random values.
fn sample<T>(strategy: impl Strategy<Value = T>, count: usize) -> Vec<T> {
    let mut runner = TestRunner::default();
    (0..count).filter_map(|_| Some(strategy.new_tree(&mut runner).ok()?.current())).collect()
}

#[test]
fn upstream_takes_and_refuses_the_same_random_files() {
    let texts: Vec<String> = sample(any_file(), FILES).iter().map(Value::to_string).collect();
    assert_eq!(texts.len(), FILES);
    let accepted = texts.iter().filter(|text| Spec::parse(text).is_ok()).count();
    assert!(
        (FILES / 10..FILES * 9 / 10).contains(&accepted),
        "{accepted} of {FILES}: both verdicts are tried"
    );
    let Some(verdicts) = verdicts(&texts).unwrap() else { return };
    for (text, verdict) in texts.iter().zip(&verdicts) {
        if let Some(what) = disagreement(text, verdict)
            && !overlooked(text, verdict)
        {
            panic!("{what}");
        }
    }
}

/// Edits in slots of their own, so that any choice of them merges.
fn all_edits() -> Result<Vec<Edit>, Box<dyn Error>> {
    let mut edits = Vec::new();
    for n in 0..4_u32 {
        let at = format!("/dev/card{n}");
        edits.push(Edit::Env(format!("VALUE_{n}").parse()?, format!("{n} \"q\" \\ ü: #").parse()?));
        edits.push(Edit::Mount(Mount::read_only(format!("/run/{n}").parse()?, format!("/h ü/{n}").parse()?)));
        edits.push(Edit::Node(DeviceNode::character(at.parse()?, 195, n)?));
        let (other, host) = (format!("/dev/other{n}").parse()?, format!("/dev/host{n}").parse()?);
        edits.push(Edit::Node(DeviceNode::new(other, host, NodeType::Block, (8, n), NodeAccess::Read)?));
    }
    Ok(edits)
}

/// A claim with common edits and some devices.
fn build(common: &[Edit], devices: &[Vec<Edit>]) -> Result<ClaimSpec, Box<dyn Error>> {
    let mut builder = ClaimSpecBuilder::new("4ee7-ab".parse()?);
    builder.common(&Owner::new("claim"), common)?;
    for (share, edits) in devices.iter().enumerate() {
        let share = share.to_string();
        builder.device(&"gpu/big".parse()?, &share.parse()?, &Owner::new(share), edits)?;
    }
    Ok(builder.build()?)
}

/// Lines for what a container with all devices of the spec should have.
fn expected(spec: &Spec) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for edits in spec.devices.iter().map(|device| &device.container_edits).chain([&spec.container_edits]) {
        lines.extend(edits.env.iter().map(|entry| json!(entry).to_string()));
        for node in &edits.device_nodes {
            lines.insert(json!([node.path, node.node_type, node.major, node.minor]).to_string());
            lines.insert(json!([true, node.node_type, node.major, node.minor, node.permissions]).to_string());
        }
        for mount in &edits.mounts {
            lines.insert(json!([mount.container_path, mount.host_path, mount.options]).to_string());
        }
    }
    lines
}

/// The same lines for what upstream made.
fn injected(verdict: &Value) -> BTreeSet<String> {
    let each = |field: &str| verdict[field].as_array().cloned().unwrap_or_default();
    let mut lines: BTreeSet<String> = each("env").iter().map(Value::to_string).collect();
    let pick = |value: &Value, fields: &[&str]| {
        Value::from(fields.iter().map(|field| value[*field].clone()).collect::<Vec<_>>()).to_string()
    };
    lines.extend(each("nodes").iter().map(|node| pick(node, &["path", "type", "major", "minor"])));
    lines
        .extend(each("access").iter().map(|rule| pick(rule, &["allow", "type", "major", "minor", "access"])));
    lines.extend(each("mounts").iter().map(|mount| pick(mount, &["destination", "source", "options"])));
    lines
}

#[test]
fn upstream_injects_exactly_what_a_claim_says() {
    let all = all_edits().unwrap();
    let some = || subsequence(all.clone(), 1..8);
    let claims = sample((some(), prop::collection::vec(some(), 1..4)), CLAIMS);
    assert_eq!(claims.len(), CLAIMS);
    let specs: Vec<ClaimSpec> =
        claims.iter().map(|(common, devices)| build(common, devices).unwrap()).collect();
    let texts: Vec<String> = specs.iter().map(|spec| spec.text().to_owned()).collect();
    let Some(verdicts) = verdicts(&texts).unwrap() else { return };
    for (spec, verdict) in specs.iter().zip(&verdicts) {
        assert_eq!(disagreement(spec.text(), verdict), None);
        assert_eq!(verdict["lowest"], spec.spec().cdi_version.as_str(), "{}", spec.text());
        assert_eq!(verdict["injected"], true, "{verdict}\n{}", spec.text());
        assert_eq!(injected(verdict), expected(spec.spec()), "{}", spec.text());
    }
}
