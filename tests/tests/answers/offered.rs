//! `plan`, `explain` and `classes` answer from what nodes publish under policy and version, and say where nothing does.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use aliquot_tests::command_line::{Ran, ran};
use serde_json::{Value, json};

/// Runs a command; words are separated by `|`.
fn aliquot(line: &str) -> Ran {
    ran(["aliquot"].into_iter().chain(line.split('|')).map(OsString::from))
}

fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples").join(name).display().to_string()
}

/// A directory with files, and the path of each.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn with(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn policy(&self, layout: &str) -> String {
        self.with(&format!("{layout}.toml"), &format!("default = \"{layout}\"\n"))
    }
}

fn pod(name: &str, limits: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i, resources: \
         {{limits: {{{limits}}}}}}}]}}\n---\n"
    )
}

fn claim(name: &str, class: &str) -> String {
    format!(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{name: {name}}}\nspec: {{devices: {{requests: \
         [{{name: part, exactly: {{deviceClassName: {class}}}}}]}}}}\n---\n"
    )
}

const DYNAMIC: &str = "policy `default = \"dynamic\"` would place it";

#[test]
fn refusal_names_the_layout_that_has_a_place() {
    let files = Files::new();
    let (shared, dynamic) = (files.policy("shared"), files.policy("dynamic"));
    let by_resource = files.with("pod.yaml", &pod("a", "aliquot.dev/mig-1g-10gb: 1"));
    for manifest in [example("mig.yaml"), by_resource] {
        let command = |verb: &str, policy: &str| {
            aliquot(&format!("{verb}|-f|{manifest}|--node|h100-8*2|--kubernetes|1.36|--policy|{policy}"))
        };
        let plan = command("plan", &shared);
        assert_eq!((plan.code, plan.err.as_str()), (1, ""), "{manifest}");
        let cause = format!("node h100-8-0 publishes shares only; {DYNAMIC}");
        assert!(plan.out.contains(&cause), "{}", plan.out);
        let explained = command("explain", &shared);
        let remedy = "It would fit if you publish node h100-8-0 with policy `default = \"dynamic\"`: this node publishes \
                      shares only";
        assert!(explained.code == 1 && explained.out.contains(remedy), "{}", explained.out);
        // The policy holds what the refusal says.
        assert_eq!(command("plan", &dynamic).code, 0, "{manifest}");
    }
}

#[test]
fn class_of_another_model_is_known_and_has_no_layout() {
    let files = Files::new();
    let (policy, file) =
        (files.policy("shared"), files.with("c.yaml", &claim("a", "mig-1g-5gb.aliquot.dev")));
    let plan = aliquot(&format!("plan|-f|{file}|--node|h100-8|--policy|{policy}"));
    assert!(plan.code == 1 && plan.out.contains("no combination of devices on node h100-8"), "{}", plan.out);
    assert!(!plan.out.contains("does not exist") && !plan.out.contains("would place"), "{}", plan.out);
    let file = files.with("d.yaml", &claim("a", "mig-9g-90gb.aliquot.dev"));
    let plan = aliquot(&format!("plan|-f|{file}|--node|h100-8"));
    assert!(plan.out.contains("device class `mig-9g-90gb.aliquot.dev` does not exist"), "{}", plan.out);
}

#[test]
fn layout_is_found_for_idle_cards_of_a_dumped_cluster() {
    let files = Files::new();
    let shared = files.policy("shared");
    let slices = aliquot(&format!("slices|--node|1xh100|-o|yaml|--policy|{shared}")).out;
    let classes = aliquot("classes|--node|1xh100|-o|yaml").out;
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: 1xh100-80gb-sxm}\n---\n";
    let cluster = format!("{slices}\n---\n{classes}---\n{node}");
    let wanted = claim("wanted", "mig-1g-10gb.aliquot.dev");
    let idle = files.with("idle.yaml", &format!("{cluster}{wanted}"));
    let explained = aliquot(&format!("explain|-f|{idle}|default/wanted"));
    assert!(
        explained.out.contains("policy `default = \"dynamic\"`: this node publishes shares only"),
        "{explained:?}"
    );
    let only = files.with("share.yaml", &format!("{cluster}{}", claim("holder", "share.aliquot.dev")));
    let held = aliquot(&format!("plan|-f|{only}|-o|yaml")).out;
    let busy = files.with("busy.yaml", &format!("{cluster}{held}\n---\n{wanted}"));
    let explained = aliquot(&format!("explain|-f|{busy}|default/wanted"));
    assert_eq!(explained.code, 1, "{explained:?}");
    assert!(!explained.out.contains("policy `"), "the card is held: {}", explained.out);
}

#[test]
fn printed_part_has_a_place_under_policy_and_version() {
    let files = Files::new();
    let parts = [
        ("25% H100", "h100-8"),
        ("8Gi 25% H100", "h100-8"),
        ("9984Mi H100", "h100-8"),
        ("nvidia.com/mig-1g.10gb: 1", "h100-8"),
        ("nvidia.com/gpu: 1", "mixed"),
        ("1/4 Ascend310P", "ascend-310p"),
        ("huawei.com/Ascend310P: 1", "ascend-310p"),
        ("huawei.com/Ascend910B3-memory: 16384", "ascend-910b3-8"),
    ];
    let (mut placed, mut refused) = (0, 0);
    for layout in ["auto", "shared", "whole", "dynamic"] {
        let policy = files.policy(layout);
        for ((part, node), version) in
            parts.iter().flat_map(|part| ["1.35", "1.36", "1.37"].map(|v| (part, v)))
        {
            let at = format!("--node|{node}|--kubernetes|{version}|--policy|{policy}");
            let printed = aliquot(&format!("classes|{part}|-o|json|{at}"));
            if printed.code == 1 {
                assert!(
                    printed.err.contains(&format!("on Kubernetes {version}")),
                    "{part} {at}: {}",
                    printed.err
                );
                refused += 1;
                continue;
            }
            assert_eq!(printed.code, 0, "{part} {at}: {}", printed.err);
            let list: Value = serde_json::from_str(&printed.out).unwrap();
            for item in list["items"].as_array().unwrap() {
                let mut item = item.clone();
                if item["kind"] == "ResourceClaimTemplate" {
                    item["kind"] = json!("ResourceClaim");
                    item["spec"] = item["spec"]["spec"].clone();
                    let file = files.with("claim.json", &item.to_string());
                    let plan = aliquot(&format!("plan|-f|{file}|{at}"));
                    assert_eq!(plan.code, 0, "{part} {at}: {}", plan.out);
                    placed += 1;
                }
            }
        }
    }
    assert!(placed > 40 && refused > 20, "{placed} placed, {refused} refused");
}

#[test]
fn classes_of_a_part_are_its_partition_and_its_exact_share() {
    for (words, expected) in [
        ("25% H100|--node|h100-8", &["h100-quarter", "share"] as &[&str]),
        ("25% H100|--node|h100-8|--kubernetes|1.35", &[]),
        ("1/4 Ascend310P", &["ascend310p-quarter"]),
        ("nvidia.com/mig-1g.10gb: 1|--node|h100-8", &["mig-1g-10gb"]),
        ("huawei.com/Ascend310P: 1", &["card-huawei"]),
        ("nvidia.com/gpu: 1", &["card-nvidia"]),
        ("huawei.com/Ascend910B3-memory: 16384", &["vnpu-vir05-1c-16g"]),
        ("Ascend310P-memory: 4096|--node|ascend-310p", &["vnpu-vir02"]),
        ("8Gi 25% H100", &["share"]),
    ] {
        let printed = aliquot(&format!("classes|{words}|-o|json"));
        let list: Value = serde_json::from_str(&printed.out).unwrap_or_default();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let classes = items.iter().filter(|item| item["kind"] == "DeviceClass");
        let names: Vec<&str> = classes.map(|class| class["metadata"]["name"].as_str().unwrap()).collect();
        let expected: Vec<String> = expected.iter().map(|name| format!("{name}.aliquot.dev")).collect();
        assert_eq!(names, expected, "{words}: {}", printed.err);
    }
    let rounded = aliquot("classes|huawei.com/Ascend910B3-memory: 16384").out;
    assert!(rounded.contains("16Gi rounded up to vir05_1c_16g (15Gi,"), "{rounded}");
}

#[test]
fn cluster_without_slices_is_told_so() {
    let files = Files::new();
    let objects = "apiVersion: v1\nkind: Node\nmetadata: {name: cpu-1}\n---\napiVersion: resource.k8s.io/v1\n\
                   kind: DeviceClass\nmetadata: {name: gpu.example.com}\nspec: {}\n---\n";
    let file = files.with("c.yaml", &format!("{objects}{}", claim("a", "gpu.example.com")));
    for verb in ["plan", "explain"] {
        let answer = aliquot(&format!("{verb}|-f|{file}"));
        assert_eq!(answer.code, 1, "{answer:?}");
        let found = "no driver publishes devices: found node cpu-1 and DeviceClass gpu.example.com without a ResourceSlice";
        assert!(answer.out.contains(found), "{}", answer.out);
    }
    // Without a cluster there is nothing to read nodes from.
    let file = files.with("alone.yaml", &claim("a", "gpu.example.com"));
    assert_eq!(aliquot(&format!("plan|-f|{file}")).code, 2);
}

#[test]
fn nodes_that_selectors_exclude_are_named_with_reasons() {
    let files = Files::new();
    let nodes = ["pool-2", "cpu"].map(|pool| {
        format!("apiVersion: v1\nkind: Node\nmetadata: {{name: n-{pool}, labels: {{pool: {pool}}}}}\n---\n")
    });
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {nodeSelector: {pool: pool}, resourceClaims: \
               [{name: g, resourceClaimName: a}], containers: [{name: c, image: i}]}\n---\n";
    let claim = claim("a", "card-nvidia.aliquot.dev");
    let file = files.with("c.yaml", &format!("{}{claim}{pod}", nodes.concat()));
    for verb in ["plan", "explain"] {
        let answer = aliquot(&format!("{verb}|-f|{file}|--node|t4-2"));
        assert_eq!(answer.code, 1);
        for reason in
            ["nodeSelector wants pool=pool; found pool=pool-2", "found pool=cpu", "found no label pool"]
        {
            assert!(answer.out.contains(reason), "{verb}: {}", answer.out);
        }
    }
}

#[test]
fn device_plugins_requests_are_refused_unless_served() {
    let files = Files::new();
    for limits in [
        "nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30",
        "nvidia.com/gpu.shared: 1",
        "aliyun.com/gpu-mem: 3",
        "huawei.com/Ascend910: 1",
        "huawei.com/npu-core: 2",
        "tencent.com/vcuda-core: 20",
        "volcano.sh/vgpu-number: 1",
        "aliquot.dev/nothing: 1",
        "example.com/fpga: 1",
    ] {
        let file = files.with("p.yaml", &pod("old", limits));
        for verb in ["plan", "explain"] {
            let answer = aliquot(&format!("{verb}|-f|{file}|--node|mixed"));
            assert_eq!(answer.code, 1, "{verb} {limits}: {}", answer.out);
            assert!(
                answer.out.contains("found no DeviceClass and no device plugin for it"),
                "{}",
                answer.out
            );
        }
    }
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nstatus: {allocatable: {nvidia.com/gpu: \"8\"}}\n---\n";
    let file = files.with("p.yaml", &format!("{node}{}", pod("old", "nvidia.com/gpu: 1")));
    let answer = aliquot(&format!("plan|-f|{file}|--node|mixed"));
    assert_eq!(answer.code, 0, "{}", answer.out);
    assert!(answer.err.contains("nvidia.com/gpu: no DeviceClass stands for it"), "{}", answer.err);
    // A claim of our own does not make up for the resource beside it.
    let both = pod("both", "aliquot.dev/card: 1, nvidia.com/gpumem: 3000");
    let file = files.with("p.yaml", &both);
    assert_eq!(aliquot(&format!("plan|-f|{file}|--node|mixed")).code, 1);
}

#[test]
fn input_without_an_object_is_an_error() {
    let files = Files::new();
    let commented =
        format!("// for the demo\n{}", json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}));
    for (name, text) in [
        ("empty.yaml", ""),
        ("comments.yaml", "# nothing\n---\n# here\n"),
        ("null.json", "null\n"),
        ("commented.json", &commented),
        (
            "inside.json",
            "{ // a pod\n\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"p\"}}",
        ),
    ] {
        let file = files.with(name, text);
        for verb in ["plan", "explain", "prepare"] {
            let state = if verb == "prepare" {
                format!("|--state|{}/s", files.0.path().display())
            } else {
                String::new()
            };
            let answer = aliquot(&format!("{verb}|-f|{file}|--node|t4-2{state}"));
            assert_eq!(answer.code, 2, "{verb} {name}: {answer:?}");
            assert!(answer.err.contains(name), "{}", answer.err);
        }
    }
    for verb in ["plan", "explain"] {
        // Nothing to read, as where standard input is closed.
        let answer = aliquot(&format!("{verb}|-f|-|--node|t4-2"));
        assert_eq!(answer.code, 2);
        assert!(
            answer.err.contains("standard input: found no object, expected Kubernetes manifests"),
            "{answer:?}"
        );
    }
}

#[test]
fn cuda_pods_on_a_mixed_cluster_get_no_npu() {
    let files = Files::new();
    let claims: String = (0..5).map(|n| claim(&format!("cuda-{n}"), "card-nvidia.aliquot.dev")).collect();
    let file = files.with("c.yaml", &claims);
    let plan = aliquot(&format!("plan|-f|{file}|--node|mixed|-o|json"));
    let plan: Value = serde_json::from_str(&plan.out).unwrap();
    assert_eq!(
        plan["summary"],
        json!({"placed": 4, "held": 0, "refused": 1}),
        "the node has four GPUs and two NPUs"
    );
    for (example, class) in [("two-npus.yaml", "card-huawei"), ("too-large.yaml", "card-nvidia")] {
        let text = fs::read_to_string(self::example(example)).unwrap();
        let classes = text.lines().filter_map(|line| line.trim().strip_prefix("deviceClassName: "));
        let expected = format!("{class}.aliquot.dev");
        assert!(classes.clone().count() > 0 && classes.clone().all(|found| found == expected), "{example}");
    }
}

#[test]
fn version_that_no_scheduler_was_compared_with_is_refused() {
    for command in ["plan|-f|x.yaml", "explain|-f|x.yaml", "classes|--legacy|nvidia|--node|8xh100"] {
        let ran = aliquot(&format!("{command}|--kubernetes|1.38"));
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{command}");
        for word in ["at most 1.37", "none of 1.38", "use 1.37"] {
            assert!(ran.err.contains(word), "{command}: no {word} in {}", ran.err);
        }
    }
}

#[test]
fn pasted_percentage_prints_the_rounding() {
    let ran = aliquot("classes|nvidia.com/gpumem-percentage: 25|--node|mixed");
    assert_eq!(ran.code, 0, "{}", ran.err);
    let about = "# nvidia.com/gpumem-percentage: 25: 25% of the memory of nvidia-l4-24gb, 23034Mi, rounded down to a \
                 share of 5758Mi and best-effort compute of nvidia-l4-24gb\n";
    assert!(ran.out.contains(about) && ran.out.contains("memory: 5758Mi\n"), "{}", ran.out);
    let ran = aliquot("classes|tencent.com/vcuda-core: 30|--node|mixed");
    assert!(ran.out.contains("cores: '30'\n") && ran.out.contains("memory: 23034Mi\n"), "{}", ran.out);
    let ran = aliquot("classes|koordinator.sh/gpu: 200|--node|mixed");
    assert!(ran.out.contains("count: 2\n") && ran.out.contains("card-nvidia.aliquot.dev"), "{}", ran.out);
}

#[test]
fn newer_kubelet_counts_as_the_newest_release_and_says_so() {
    let files = Files::new();
    let node = |version: &str| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: n1}}\nstatus: {{nodeInfo: {{kubeletVersion: {version}}}}}\n---\n"
        )
    };
    let text = claim("a", "share.aliquot.dev");
    let newer = files.with("newer.yaml", &(node("v1.38.1") + &text));
    let warning = "warning: the newest kubelet is v1.38.1, newer than 1.37";
    for command in ["plan", "explain"] {
        let ran = aliquot(&format!("{command}|-f|{newer}|--node|8xh100"));
        assert!(ran.err.contains(warning), "{command}: {}", ran.err);
    }
    let stated = aliquot(&format!("plan|-f|{newer}|--node|8xh100|--kubernetes|1.37"));
    let known = files.with("known.yaml", &(node("v1.37.2") + &text));
    let known = aliquot(&format!("plan|-f|{known}|--node|8xh100"));
    assert!(!stated.err.contains(warning) && !known.err.contains("newest kubelet"), "{}", stated.err);
    assert_eq!(stated.out, known.out);
}
