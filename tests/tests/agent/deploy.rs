//! The chart and manifests of `deploy/`: rendered as committed, with flags, variables and classes that the program has.
//!
//! Helm's engine renders the chart where Go and its module proxy are there (`tests/helm`); the other tests read the committed
//! manifests.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use aliquot_driver::kube::listing;
use aliquot_tests::command_line::{Ran, ran};
use serde_json::{Value, json};

/// Values of a rendering, and its committed result.
const RENDERED: [(&str, &str); 2] = [
    ("deploy/manifests/values.yaml", "deploy/manifests/aliquot.yaml"),
    ("tests/golden/chart/values.yaml", "tests/golden/chart/all.yaml"),
];

/// Values for clusters of which docs/user/cluster.md has a row, and what the chart then has.
const CLUSTERS: [(&str, &[&str]); 8] = [
    (
        r#"{"openshift": {"enabled": true}, "createNamespace": true}"#,
        &["name: system:openshift:scc:privileged", "pod-security.kubernetes.io/enforce: privileged"],
    ),
    (
        r#"{"podMonitor": {"enabled": true, "apiVersion": "monitoring.googleapis.com/v1"}}"#,
        &["kind: PodMonitoring\n", "\n  endpoints:\n  - port: metrics\n"],
    ),
    (
        r#"{"podMonitor": {"enabled": true, "apiVersion": "azmonitoring.coreos.com/v1"}}"#,
        &[
            "apiVersion: azmonitoring.coreos.com/v1\nkind: PodMonitor\n",
            "\n  podMetricsEndpoints:\n",
            "    honorLabels: true\n",
        ],
    ),
    (
        r#"{"prometheusRule": {"enabled": true, "labels": {"release": "prometheus"}}}"#,
        &[
            "kind: PrometheusRule\nmetadata:\n  name: aliquot-alerts\n",
            "    release: prometheus\n",
            "    - alert: AliquotAgentGone\n",
            "{{ $labels.UUID }} of node {{ $labels.node }} reported",
        ],
    ),
    (
        r#"{"prometheusRule": {"enabled": true, "alerts": false, "hami": true, "dcgm": true}}"#,
        &[
            "  name: aliquot-hami\n",
            "      record: hami_gpu_memory_limit_bytes\n",
            "  name: aliquot-dcgm\n",
            "      record: DCGM_FI_DEV_FB_USED\n",
        ],
    ),
    (
        r#"{"dashboards": {"enabled": true}}"#,
        &[
            "  name: aliquot-dashboard-fleet\n",
            "    grafana_dashboard: \"1\"\n",
            "  shares.json: |\n    {\n      \"uid\": \"aliquot-shares\",\n",
            "{{namespace}}/{{dra_claim_name}}",
        ],
    ),
    (
        r#"{"networkPolicy": {"apiServerPorts": [7443], "dnsPorts": [53]}}"#,
        &["  - ports:\n    - {protocol: TCP, port: 7443}\n  - ports:\n    - {protocol: UDP, port: 53}\n"],
    ),
    (
        r#"{"networkPolicy": {"apiServerPorts": [6443], "dnsPorts": []}}"#,
        &["  egress:\n  - ports:\n    - {protocol: TCP, port: 6443}\n---"],
    ),
];

/// Nodes with their classes in each file of the chart.
const CLASSES: [(&str, &[&str]); 2] =
    [("nvidia", &["a100-4", "h100-8", "h200"]), ("huawei", &["ascend-310p", "ascend-910b3-8"])];

/// Nodes with the classes of each file of another system's resource names.
const LEGACY: [(&str, &[&str]); 3] = [
    ("nvidia", &["a100-4", "h100-8", "h200"]),
    ("huawei", &["ascend-310p", "ascend-910b3-8"]),
    ("hami", &HAMI_NODES),
];

/// A node of every kind of card that HAMi has a name for.
const HAMI_NODES: [&str; 8] = [
    "h100-8",
    "ascend-310p",
    "1xhuawei-910a-32c",
    "1xhuawei-910b2",
    "1xhuawei-910b3",
    "1xhuawei-910b4",
    "1xhuawei-910b4-1",
    "1xhuawei-910c-24c",
];

/// First line of a rendered file.
const HEADER: &str =
    "# Rendered from deploy/helm/aliquot by tests/helm; tests/tests/agent/deploy.rs compares it.\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

fn aliquot(words: &[&str]) -> String {
    let Ran { code, out, err } = ran(words.iter().map(OsString::from));
    assert_eq!(code, 0, "{words:?}: {err}");
    out
}

/// Helm's engine, built once into the target directory; `None`, with the reason printed: this machine cannot build it.
fn helm() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build_helm).clone()
}

fn build_helm() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("aliquot-helm");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(root().join("tests/helm"));
    match build.output() {
        Ok(built) if built.status.success() => Some(program),
        Ok(built) => {
            let why = String::from_utf8_lossy(&built.stderr).into_owned();
            let machine = ["proxy", "dial tcp", "lookup ", "no such host", "timeout"];
            assert!(machine.iter().any(|word| why.contains(word)), "tests/helm does not build: {why}");
            println!("stood aside (needs the modules of tests/helm, once): {why}");
            None
        }
        Err(why) => {
            println!("stood aside (needs Go 1.26 or newer): {why}");
            None
        }
    }
}

/// The chart with the values of a file.
fn rendered(helm: &Path, values: &Path) -> Output {
    Command::new(helm).arg(root().join("deploy/helm/aliquot")).arg(values).output().unwrap()
}

#[test]
fn packed_chart_renders_as_the_chart_of_the_checkout() {
    let Some(release) = std::env::var_os("ALIQUOT_RELEASE").map(PathBuf::from) else {
        return println!("stood aside: ALIQUOT_RELEASE does not name what deploy/release made");
    };
    let Some(helm) = helm() else { return };
    let packed = release.join(format!("aliquot-chart-{}.tgz", env!("CARGO_PKG_VERSION")));
    let manifests = |chart: &Path| {
        let output = Command::new(&helm).arg(chart).output().unwrap();
        assert!(output.status.success(), "{}: {output:?}", chart.display());
        output.stdout
    };
    assert!(manifests(&packed) == manifests(&root().join("deploy/helm/aliquot")), "{}", packed.display());
    // Its schema came along.
    let values = tempfile::NamedTempFile::new().unwrap();
    fs::write(values.path(), "metricsPort: true").unwrap();
    let refused = Command::new(&helm).arg(&packed).arg(values.path()).output().unwrap();
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("metricsPort"));
}

/// Why the chart refuses values, which are JSON; `None`: it takes them.
fn refusal(helm: &Path, values: &Value) -> Option<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), values.to_string()).unwrap();
    let output = rendered(helm, file.path());
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn chart_refuses_typing_errors_in_policies_by_line() {
    let Some(helm) = helm() else { return };
    for (policy, says) in [
        ("[[rules]]\nlayout = \"whole\"", "line 1: found `[[rules]]`, expected [[rule]], [[slot]]"),
        ("\n\n# x\n[[rule]]\nmodle = \"*\"", "line 5: found `modle = \"*\"`, expected one of the fields"),
        ("default = \"hole\"", "line 1: found `default = \"hole\"`, expected a layout: auto, whole, shared"),
        ("default = \"whole\"\n  layout='hole'", "line 2: found `layout='hole'`, expected a layout"),
        ("default \"whole\"", "line 1: found `default \"whole\"`, expected default = VALUE"),
    ] {
        let why = refusal(&helm, &json!({ "policy": policy })).unwrap();
        assert!(why.contains(says), "{policy}: {why}");
        assert!(aliquot_core::offer::text::parse(policy).is_err(), "{policy}: the agent takes it");
    }
    // What the agent takes, the chart takes as well.
    let page = text("docs/user/policy-files.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap().to_owned();
    let files = ["policy", "slots", "split-policy", "impossible-policy"];
    let files = files.map(|name| text(&format!("tests/golden/input/{name}.toml")));
    let written = [
        "",
        "[ default ] # of all\r\nlayout = 'shared'\r\n",
        "default.layout = \"shared\"\n\"evict\" = [\n  \"lost\",\n]\n",
        "rule = [{ model = \"*\", layout = \"whole\" }]\n",
        "[[rule]]\nindex = [\n  0,\n  1,\n]\nlayout = \"whole\"\n",
        "[[ \"rule\" ]]\nmodel = \"\"\"*\"\"\"\nlayout = \"\"\"whole\"\"\"\n",
    ];
    for policy in written.map(str::to_owned).into_iter().chain(files).chain([example]) {
        aliquot_core::offer::text::parse(&policy).unwrap();
        assert_eq!(refusal(&helm, &json!({ "policy": policy })), None, "{policy}");
    }
}

#[test]
fn schema_of_the_chart_knows_every_value() {
    let schema: Value = serde_json::from_str(&text("deploy/helm/aliquot/values.schema.json")).unwrap();
    let known: BTreeSet<&str> =
        schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    let values = text("deploy/helm/aliquot/values.yaml");
    let is_name = |line: &&str| line.starts_with(|c: char| c.is_ascii_lowercase());
    let written = values.lines().filter(is_name).filter_map(|line| line.split(':').next());
    assert_eq!(written.chain(["global"]).collect::<BTreeSet<&str>>(), known);
    let Some(helm) = helm() else { return };
    for (values, says) in [
        (json!({"polcy": ""}), "'polcy' not allowed"),
        (json!({"policy": {"default": "whole"}}), "/policy"),
        (json!({"logVerbosity": "debgu"}), "/logVerbosity"),
        (json!({"metricsPort": 94_650}), "/metricsPort"),
        (json!({"stateDir": "var/lib/aliquot"}), "/stateDir"),
        (json!({"ascend": {"enable": true}}), "'enable' not allowed"),
    ] {
        let why = refusal(&helm, &values);
        assert!(why.as_ref().is_some_and(|why| why.contains(says)), "{values}: {why:?}");
    }
}

#[test]
fn chart_has_what_managed_clusters_need() {
    let Some(helm) = helm() else { return };
    for (values, says) in CLUSTERS {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), values).unwrap();
        let output = rendered(&helm, file.path());
        let manifest = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{values}: {}", String::from_utf8_lossy(&output.stderr));
        for part in says {
            assert!(manifest.contains(part), "{values}: `{part}` is not in:\n{manifest}");
        }
    }
    // Off by default: a cluster without the operator or OpenShift's API refuses such objects.
    let manifest = text("deploy/manifests/aliquot.yaml");
    for kind in ["PodMonitor", "PrometheusRule", "dashboard", "openshift"] {
        assert!(!manifest.contains(kind), "{kind}: {manifest}");
    }
}

#[test]
fn chart_renders_as_committed() {
    let Some(helm) = helm() else { return };
    for (values, committed) in RENDERED {
        let output = rendered(&helm, &root().join(values));
        assert!(output.status.success(), "{values}: {}", String::from_utf8_lossy(&output.stderr));
        let rendered = format!("{HEADER}{}", String::from_utf8(output.stdout).unwrap());
        if std::env::var("ALIQUOT_GOLDEN").is_ok_and(|mode| mode == "write") {
            fs::write(root().join(committed), &rendered).unwrap();
        }
        assert_eq!(
            rendered,
            text(committed),
            "{committed} differs from the chart; ALIQUOT_GOLDEN=write renews it"
        );
    }
}

#[test]
fn variables_exist_in_plugin_and_doctor() {
    let words = |verb: &str| -> BTreeSet<String> {
        let help = aliquot(&["aliquot", verb, "--help"]);
        help.split(|c: char| c.is_whitespace() || "=[],".contains(c)).map(str::to_owned).collect()
    };
    let (plugin, doctor) = (words("plugin"), words("doctor"));
    for (_, file) in RENDERED {
        let manifest = text(file);
        let daemon = manifest.split("kind: DaemonSet").nth(1).unwrap();
        assert!(daemon.contains("        args: [plugin]\n"), "{file}: settings are variables");
        let env = daemon.split("        env:\n").nth(1).unwrap().split("        ports:").next().unwrap();
        let name = |line: &str| {
            let line = line.trim().trim_start_matches("- ").trim_start_matches('{');
            line.strip_prefix("name: ").map(|rest| rest.split(',').next().unwrap().to_owned())
        };
        let names: Vec<String> = env.lines().filter_map(name).collect();
        assert!(names.len() >= 8, "{file}: found variables {names:?}");
        // The loader reads this one.
        for name in names.into_iter().filter(|name| name != "LD_LIBRARY_PATH") {
            assert!(plugin.contains(&name), "{file}: `aliquot plugin` reads no variable {name}");
            // What decides where the node's parts are, doctor has to know in the same container.
            let is_agents = ["POD_UID", "ALIQUOT_LOG", "ALIQUOT_POLICY"].contains(&name.as_str());
            assert!(is_agents || doctor.contains(&name), "{file}: `aliquot doctor` reads no variable {name}");
        }
    }
}

#[test]
fn classes_of_the_chart_are_those_of_the_program() {
    let classes = |nodes: &[&str]| {
        let nodes = nodes.iter().flat_map(|node| ["--node", node]);
        let words: Vec<&str> = ["aliquot", "classes", "-o", "yaml"].into_iter().chain(nodes).collect();
        let all = aliquot(&words);
        all.split("---\n")
            .map(str::trim)
            .filter(|class| !class.is_empty())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let kept = |group: &str| {
        let file = text(&format!("deploy/helm/aliquot/files/classes-{group}.yaml"));
        file.split("---\n")
            .map(str::trim)
            .filter(|class| !class.is_empty())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let common: Vec<String> = classes(&["h100-8"]).into_iter().take(2).collect();
    assert_eq!(kept("common"), common);
    for (group, nodes) in CLASSES {
        let own: Vec<String> = classes(nodes).into_iter().filter(|class| !common.contains(class)).collect();
        assert_eq!(kept(group), own, "{group}");
    }
}

#[test]
fn legacy_classes_of_the_chart_are_those_of_the_program() {
    let values = text("deploy/helm/aliquot/values.yaml");
    let group = values.split("\nlegacyClasses:\n").nth(1).unwrap();
    for (system, nodes) in LEGACY {
        let nodes = nodes.iter().flat_map(|node| ["--node", node]);
        let words: Vec<&str> =
            ["aliquot", "classes", "--legacy", system, "-o", "yaml"].into_iter().chain(nodes).collect();
        assert_eq!(
            aliquot(&words),
            text(&format!("deploy/helm/aliquot/files/legacy-{system}.yaml")),
            "{system}"
        );
        assert!(
            group.lines().take(3).any(|line| line.starts_with(&format!("  {system}: false "))),
            "{group}"
        );
    }
}

#[test]
fn agent_may_do_no_more_than_it_does() {
    let manifest = text("deploy/manifests/aliquot.yaml");
    let role = manifest.split("kind: ClusterRole\n").nth(1).unwrap().split("---").next().unwrap();
    let rule = |line: &str, key: &str| line.trim().strip_prefix(key).map(str::to_owned);
    let resources: Vec<String> = role.lines().filter_map(|line| rule(line, "resources: ")).collect();
    let verbs: Vec<String> = role.lines().filter_map(|line| rule(line, "verbs: ")).collect();
    let rules: Vec<String> = resources.iter().zip(&verbs).map(|(on, may)| format!("{on} {may}")).collect();
    assert_eq!(
        rules,
        [
            "[resourceclaims] [get]",
            "[resourceclaims/status] [patch]",
            "[resourceclaims/driver] [\"associated-node:patch\"]",
            "[resourceslices] [get, list, watch, create, update, delete]",
            "[nodes] [get, list, watch]",
            "[events] [create, patch]",
        ]
    );
    assert_eq!(role.matches("resourceNames: [aliquot.dev]").count(), 1);
    assert!(!role.contains('*'), "a wildcard grants more than is needed: {role}");
}

#[test]
fn readers_may_read_what_explain_reads_and_write_nothing() {
    let manifest = text("deploy/manifests/aliquot.yaml");
    let role = |name: &str| {
        let named = format!("\n  name: {name}\n");
        let mut roles = manifest.split("\n---\n").filter(|object| object.contains("kind: ClusterRole\n"));
        roles.find(|object| object.contains(&named)).unwrap().to_owned()
    };
    let resources = |role: &str| -> BTreeSet<String> {
        let lines =
            role.lines().filter_map(|line| line.trim().strip_prefix("resources: [")?.strip_suffix(']'));
        lines.flat_map(|line| line.split(", ")).map(str::to_owned).collect()
    };
    let [viewer, claims, admin] = ["aliquot-viewer", "aliquot-claims-viewer", "aliquot-admin"].map(role);
    // What has no namespace, for all tenants; what has one, by the roles that they have in it.
    assert_eq!(resources(&viewer), BTreeSet::from(["deviceclasses".to_owned(), "resourceslices".to_owned()]));
    assert_eq!(resources(&claims).len(), 2);
    assert!(claims.contains("aggregate-to-view: \"true\"") && !viewer.contains("aggregate"), "{manifest}");
    let read: BTreeSet<String> = listing::resources().map(str::to_owned).collect();
    assert_eq!(resources(&admin), read);
    assert!(resources(&viewer).union(&resources(&claims)).all(|one| read.contains(one)));
    for role in [&viewer, &claims, &admin] {
        let verbs = role.lines().filter(|line| line.contains("verbs: "));
        assert!(verbs.into_iter().all(|line| line.trim() == "verbs: [get, list, watch]"), "{role}");
        assert!(!role.contains('*'), "{role}");
    }
}

#[test]
fn image_has_arguments_paths_and_words_that_exist() {
    let file = text("deploy/Dockerfile");
    let lines =
        |word: &str| -> Vec<&str> { file.lines().filter_map(|line| line.strip_prefix(word)).collect() };
    assert_eq!(lines("FROM "), ["${BASE}"], "one stage, of a base that is an argument");
    let maker = text("deploy/image");
    for argument in lines("ARG ") {
        let (name, default) = argument.split_once('=').unwrap_or((argument, ""));
        assert!(maker.contains(&format!("--build-arg {name}=")), "deploy/image does not say {name}");
        assert_eq!(name == "BASE", !default.is_empty(), "{argument}: only a base of a registry has a name");
    }
    let copied = lines("COPY ");
    let [copied] = copied[..] else { unreachable!("{file}") };
    let (from, installed) = copied.split_once(' ').unwrap();
    assert_eq!(from, "${TARGETARCH}/aliquot");
    assert_eq!(lines("ENTRYPOINT "), [format!("[\"{installed}\"]")]);
    let command: Vec<String> = serde_json::from_str(lines("CMD ")[0]).unwrap();
    let words: Vec<&str> = std::iter::once("aliquot").chain(command.iter().map(String::as_str)).collect();
    aliquot(&[&words[..], &["--help"]].concat());
    // Commands run as a user without rights, so the chart says what the agent runs as.
    assert_eq!(lines("USER "), ["65532:65532"]);
    assert!(text("deploy/helm/aliquot/templates/daemonset.yaml").contains("runAsUser: 0"));
    // What is built in the checkout stays out of the image's context.
    assert!(text(".dockerignore").lines().any(|line| line == "target"));
}
