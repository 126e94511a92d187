//! The chart and manifests of `deploy/`: rendered as committed, with flags, variables and classes that the program has.
//!
//! Helm's engine renders the chart where Go and its module proxy are there (`tests/helm`); the other tests read the committed
//! manifests.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_tests::command_line::{Ran, ran};

/// Values of a rendering, and its committed result.
const RENDERED: [(&str, &str); 2] = [
    ("deploy/manifests/values.yaml", "deploy/manifests/aliquot.yaml"),
    ("tests/golden/chart/values.yaml", "tests/golden/chart/all.yaml"),
];

/// Nodes with their classes in each file of the chart.
const CLASSES: [(&str, &[&str]); 2] =
    [("nvidia", &["a100-4", "h100-8", "h200"]), ("huawei", &["ascend-310p", "ascend-910b3-8"])];

/// Nodes with the classes of each file of another system's resource names.
const LEGACY: [(&str, &[&str]); 3] = [
    ("nvidia", &["a100-4", "h100-8", "h200"]),
    ("huawei", &["ascend-310p", "ascend-910b3-8"]),
    ("hami", &["h100-8", "ascend-310p", "ascend-910b3-8"]),
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

#[test]
fn chart_renders_as_committed() {
    let Some(helm) = helm() else { return };
    for (values, committed) in RENDERED {
        let mut command = Command::new(&helm);
        command.arg(root().join("deploy/helm/aliquot")).arg(root().join(values));
        let output = command.output().unwrap();
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
            "[nodes] [get]",
            "[events] [create, patch]",
        ]
    );
    assert_eq!(role.matches("resourceNames: [aliquot.dev]").count(), 1);
    assert!(!role.contains('*'), "a wildcard grants more than is needed: {role}");
}

#[test]
fn image_has_stages_paths_and_words_that_exist() {
    let file = text("deploy/Dockerfile");
    let lines =
        |word: &str| -> Vec<&str> { file.lines().filter_map(|line| line.strip_prefix(word)).collect() };
    let [build, base] = lines("FROM ")[..] else { unreachable!("{file}") };
    let (image, stage) = build.split_once(" AS ").unwrap();
    let needed =
        text("Cargo.toml").lines().find_map(|line| line.strip_prefix("rust-version = ").map(str::to_owned));
    let tag = image.rsplit_once(':').unwrap().1;
    assert!(
        tag.starts_with(needed.unwrap().trim_matches('"')),
        "{image} builds with the oldest compiler that can"
    );
    // Both are of one Debian release: the program needs the C library that it was linked to.
    assert!(tag.ends_with("bookworm") && base.ends_with("debian12"), "{image}, {base}");
    let copied: Vec<&str> = lines("COPY ")
        .into_iter()
        .find_map(|copy| copy.strip_prefix("--from="))
        .unwrap()
        .split(' ')
        .collect();
    let [from, made, installed] = copied[..] else { unreachable!("{copied:?}") };
    assert_eq!(from, stage);
    assert!(file.contains(&format!("strip -o {made} target/release/aliquot")), "{made} is made by the build");
    assert_eq!(lines("ENTRYPOINT "), [format!("[\"{installed}\"]")]);
    let command: Vec<String> = serde_json::from_str(lines("CMD ")[0]).unwrap();
    let words: Vec<&str> = std::iter::once("aliquot").chain(command.iter().map(String::as_str)).collect();
    aliquot(&[&words[..], &["--help"]].concat());
    // What is built in the checkout stays out of the image's context.
    assert!(text(".dockerignore").lines().any(|line| line == "target"));
}
