//! `aliquot convert`: each equivalence with its kept answer, the inputs of teams that share cards, and bad input.
//!
//! A pair of `golden/convert` is an input, `NAME.yaml`, and what the command answers to it, `NAME.txt`. The first lines of
//! the input have the command's further arguments and the exit code of `plan` for the output. New answers are written with
//! `ALIQUOT_GOLDEN=write cargo test -p aliquot_tests --test answers convert::` and reviewed as code.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod claims;
mod configurations;
mod losses;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use aliquot_driver::convert::ROWS;
use aliquot_driver::manifest::values;
use aliquot_tests::command_line::{Ran, ran};

const NODE: [&str; 2] = ["--node", "mixed"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn aliquot(words: &[&str]) -> Ran {
    ran(["aliquot"].iter().chain(words).map(OsString::from))
}

/// Converts a text, with the file's path out of the answer.
fn convert(text: &str, words: &[&str]) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("in.yaml");
    fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let Ran { code, out, err } = aliquot(&[&["convert", "-f", &file], words].concat());
    Ran { code, out, err: err.replace(&file, "in.yaml") }
}

/// Plans what a conversion printed: manifests, or a policy for the nodes, or both.
fn plan(out: &str, node: &[&str]) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    if !out.starts_with("---") {
        let policy = write("policy.toml", out);
        return aliquot(&[&["devices", "--policy", &policy], node].concat());
    }
    let manifests = write("out.yaml", out);
    let documents = values(out).unwrap();
    let policy = documents.iter().find_map(|document| document["data"]["policy.toml"].as_str());
    match policy.map(|policy| write("policy.toml", policy)) {
        Some(policy) => aliquot(&[&["plan", "-f", &manifests, "--policy", &policy], node].concat()),
        None => aliquot(&[&["plan", "-f", &manifests], node].concat()),
    }
}

#[test]
fn every_equivalence_has_its_kept_answer() {
    let dir = root().join("tests/golden/convert");
    let write = std::env::var_os("ALIQUOT_GOLDEN").is_some_and(|v| v == "write");
    let mut different = Vec::new();
    for name in ROWS.iter().map(|row| row.golden) {
        let text = fs::read_to_string(dir.join(format!("{name}.yaml"))).unwrap();
        let setting = |line: usize, key: &str| -> Vec<&str> {
            text.lines().nth(line).unwrap().strip_prefix(key).unwrap().split_whitespace().collect()
        };
        let mut words = setting(0, "# convert:");
        let planned: u8 = setting(1, "# plan:")[0].parse().unwrap();
        if !words.contains(&"--node") {
            words.extend(NODE);
        }
        let Ran { code, out, err } = convert(&text, &words);
        let node_at = words.iter().position(|word| *word == "--node").unwrap();
        let plan = plan(&out, &words[node_at..node_at + 2]);
        assert_eq!(plan.code, planned, "{name}: {}{}\n{out}", plan.out, plan.err);
        let err: String = err.lines().map(|line| format!("! {line}\n")).collect();
        let found = format!("exit {code}\n{out}{err}");
        let file = dir.join(format!("{name}.txt"));
        if fs::read_to_string(&file).ok().as_deref() != Some(found.as_str()) {
            different.push(name);
            if write {
                fs::write(&file, found).unwrap();
            }
        }
    }
    assert!(different.is_empty() || write, "ALIQUOT_GOLDEN=write writes them anew: {different:?}");
}

#[test]
fn page_has_every_equivalence_and_readme_the_page() {
    let page = fs::read_to_string(root().join("docs/user/migration.md")).unwrap();
    for row in ROWS {
        assert!(page.contains(&row.markdown()), "docs/user/migration.md lacks\n{}", row.markdown());
    }
    let table = page.split("## Words").nth(1).unwrap();
    assert_eq!(table.lines().filter(|line| line.starts_with("| ")).count(), ROWS.len() + 1);
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains("](docs/user/migration.md)"));
}

fn pod(limits: &str) -> String {
    pod_with(limits, "{}", "")
}

fn pod_with(limits: &str, metadata: &str, spec: &str) -> String {
    let metadata = metadata.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{}{metadata}}}\nspec:\n  containers:\n  - name: c\n    image: \
         i\n    resources: {{limits: {{{limits}}}}}\n{spec}",
        if metadata.is_empty() { "" } else { ", " }
    )
}

/// Input, further arguments, exit code, what the output has, what standard error has.
type Stated<'t> = (String, &'t [&'t str], u8, &'t [&'t str], &'t [&'t str]);

fn gives(stated: &[Stated<'_>]) {
    for (text, words, code, outs, errs) in stated {
        let words = if words.contains(&"--node") { words.to_vec() } else { [words, &NODE[..]].concat() };
        let Ran { code: found, out, err } = convert(text, &words);
        assert_eq!(found, *code, "{text}\n{out}\n{err}");
        for word in *outs {
            assert!(out.contains(word), "{text}: no {word} in\n{out}");
        }
        for word in *errs {
            assert!(err.contains(word), "{text}: no {word} in\n{err}");
        }
        let lines = |word: &str| err.lines().filter(|line| line.contains(word)).count();
        assert_eq!(lines(": not carried: "), err.lines().count() - lines("note: "), "{err}");
        assert_eq!(*code == 1, lines(": not carried: ") > 0, "{text}\n{err}");
    }
}

#[test]
fn shares_of_gpus_give_the_stated_result() {
    let hami = "nvidia.com/gpu: 1, nvidia.com/gpumem: 8000, nvidia.com/gpucores: 30";
    let marks = "{annotations: {nvidia.com/use-gputype: H100, nvidia.com/nouse-gpuuuid: GPU-1, \
                 hami.io/gpu-scheduler-policy: binpack}}";
    let scheduler = "  schedulerName: hami-scheduler\n";
    let env = "    env: [{name: CUDA_OVERSUBSCRIBE, value: 'true'}]\n";
    let vgpu = "nvidia.com/vgpu-number: 1, nvidia.com/vgpu-memory: 1000, nvidia.com/vgpu-cores: 30";
    let volcano = "volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 1024, volcano.sh/vgpu-cores: 30";
    gives(&[
        (
            pod_with(&format!("{hami}, nvidia.com/priority: 1"), marks, scheduler),
            &[],
            1,
            &[
                "deviceClassName: share.aliquot.dev",
                "memory: 8000Mi",
                "cores: '30'",
                "productName.lowerAscii().contains(\"h100\")",
                "!(device.attributes[\"aliquot.dev\"].parentUUID in [\"GPU-1\"])",
                "priority: low",
                "computePolicy: burst",
            ],
            &["hami.io/gpu-scheduler-policy]: binpack", "spec.schedulerName: hami-scheduler"],
        ),
        (
            pod("nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50"),
            &[],
            1,
            &[
                "firstAvailable:",
                "nvidia-h100-80gb-sxm",
                "nvidia-a100-40gb",
                "nvidia-t4-16gb",
                "nvidia-l4-24gb",
            ],
            &["gpumem-percentage]: 50: not carried: 50 % of any other card model"],
        ),
        (pod_with(hami, "{}", env), &[], 1, &["memory: 8000Mi"], &["CUDA_OVERSUBSCRIBE]: true"]),
        (
            pod_with(vgpu, "{annotations: {nvidia.com/device-topology-mode: numa}}", ""),
            &[],
            1,
            &["memory: 1000Mi"],
            &["device-topology-mode]: numa"],
        ),
        (pod(volcano), &[], 0, &["memory: 1Gi", "cores: '30'"], &[]),
        (
            pod_with("cpu: 1", "{annotations: {gpu-fraction: '0.5'}}", "  schedulerName: kai-scheduler\n"),
            &[],
            1,
            &["firstAvailable:", "cores: '50'", "cpu: 1"],
            &["50 % of any other card model", "kai-scheduler"],
        ),
        (pod_with("cpu: 1", "{annotations: {gpu-memory: '8192'}}", ""), &[], 0, &["memory: 8Gi"], &[]),
        (pod("aliyun.com/gpu-mem: 3"), &[], 0, &["memory: 3Gi"], &[]),
        (
            pod("tencent.com/vcuda-core: 20, tencent.com/vcuda-memory: 20"),
            &[],
            0,
            &["memory: 5Gi", "'20'"],
            &[],
        ),
    ]);
}

#[test]
fn whole_cards_and_parts_give_the_stated_result() {
    let product = "  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}\n";
    let single = "  nodeSelector: {nvidia.com/mig.strategy: single}\n";
    let gke = "  nodeSelector:\n    cloud.google.com/gke-gpu-sharing-strategy: time-sharing\n    \
               cloud.google.com/gke-max-shared-clients-per-gpu: '4'\n    cloud.google.com/gke-accelerator: nvidia-l4\n";
    let whole = "nvidia.com/gpu: 4, nvidia.com/gpumem-percentage: 100, nvidia.com/gpucores: 100, nvidia.com/priority: 0";
    let nvidia_gpu = &["extendedResourceName: nvidia.com/gpu", "nvidia.com/gpu: 1"];
    gives(&[
        (pod(whole), &[], 0, &["card-nvidia.aliquot.dev", "count: 4"], &[]),
        (pod("nvidia.com/gpu: 1"), &[], 0, nvidia_gpu, &[]),
        (
            pod_with("nvidia.com/gpu: 1", "{}", product),
            &[],
            0,
            &["card-nvidia.aliquot.dev", "productName.replace(\" \", \"-\") == \"NVIDIA-H100-80GB-HBM3\""],
            &[],
        ),
        (pod("nvidia.com/mig-1g.10gb: 1"), &[], 0, &["extendedResourceName: nvidia.com/mig-1g.10gb"], &[]),
        (
            pod_with("nvidia.com/gpu: 1", "{}", single),
            &["--profile", "1g.10gb"],
            1,
            &["extendedResourceName: nvidia.com/gpu", "profile == \"1g.10gb\""],
            &["mig.strategy]: single"],
        ),
        (
            pod("nvidia.com/gpu.shared: 1"),
            &[],
            1,
            &["extendedResourceName: nvidia.com/gpu.shared"],
            &["time slicing has no memory limit, so a size has to be chosen"],
        ),
        (
            "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n".to_owned(),
            &[],
            1,
            &["layout = \"slots\"", "cores = 10\ncopies = 10"],
            &["MPS runs kernels side by side"],
        ),
        (
            pod_with("nvidia.com/gpu: 1", "{}", gke),
            &[],
            1,
            &["share.aliquot.dev", "cores: '25'", "cloud.google.com/gke-accelerator: nvidia-l4"],
            &["gke-max-shared-clients-per-gpu]: 4", "time slicing has no memory limit"],
        ),
        (
            pod("huawei.com/Ascend310P-2c.1cpu: 1"),
            &[],
            0,
            &["huawei.com/Ascend310P-2c.1cpu: 1", "vir02_1c"],
            &[],
        ),
        (pod("huawei.com/Ascend310P: 1"), &[], 0, &["extendedResourceName: huawei.com/Ascend310P"], &[]),
        (pod("huawei.com/Ascend910: 1"), &[], 0, &["extendedResourceName: huawei.com/Ascend910"], &[]),
        (pod("huawei.com/npu-core: 2"), &[], 0, &["vnpu-vir02.aliquot.dev"], &[]),
        (
            pod("huawei.com/Ascend310P: 1, huawei.com/Ascend310P-memory: 6144"),
            &[],
            0,
            &["vnpu-vir02.aliquot.dev"],
            &[
                "note: in.yaml: Pod p spec.containers[0].resources.limits[huawei.com/Ascend310P-memory]: 6144: carried as",
            ],
        ),
        (pod("amd.com/cpx_nps4: 1"), &[], 1, &["amd.com/cpx_nps4: 1"], &["no backend for this vendor"]),
        (pod("gpu.intel.com/xe: 1"), &[], 1, &["gpu.intel.com/xe: 1"], &["no backend for this vendor"]),
    ]);
}

#[test]
fn bad_amounts_are_named_and_leave_the_container() {
    for (limits, metadata, word) in [
        ("nvidia.com/gpumem-percentage: 120", "{}", "it is no whole percentage from 0 to 100"),
        ("nvidia.com/gpucores: -5", "{}", "it is no whole percentage"),
        ("nvidia.com/gpumem: 8Gi", "{}", "without a unit"),
        ("nvidia.com/gpumem: many", "{}", "without a unit"),
        ("nvidia.com/gpu: 1.5", "{}", "it is no number of cards"),
        ("nvidia.com/gpu: 1, volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 9", "{}", "a second time"),
        ("nvidia.com/gpumem: 1, volcano.sh/vgpu-memory: 9", "{}", "words of two systems"),
        ("nvidia.com/mig-1g.10gb: 1, nvidia.com/gpumem: 9", "{}", "words of two systems"),
        ("nvidia.com/gpu: 1, huawei.com/Ascend310P: 1", "{}", "GPUs and NPUs at once"),
        ("huawei.com/Ascend310P: 1, huawei.com/Ascend910B3-memory: 9", "{}", "contradicts"),
        ("huawei.com/Ascend310P-memory: 6144, huawei.com/Ascend910B3-memory: 9", "{}", "contradicts"),
        ("huawei.com/npu-core: 2, huawei.com/Ascend310P: 1", "{}", "contradicts"),
        ("huawei.com/Ascend310P: 0, huawei.com/Ascend310P-memory: 6144", "{}", "contradicts"),
        ("huawei.com/Ascend310P: many", "{}", "it is no number from 1 to 32"),
        ("huawei.com/Ascend310P-2c: 1.5", "{}", "it is no number from 1 to 32"),
        ("nvidia.com/mig-1g.10gb: many", "{}", "it is no number from 1 to 32"),
        ("nvidia.com/gpu: 2, nvidia.com/gpumem: 8000, huawei.com/npu-core: 2", "{}", "words of two systems"),
        ("huawei.com/Ascend999: 1", "{}", "no chip that is known"),
        ("huawei.com/npu-core: 3", "{}", "no template has so many"),
        ("nvidia.com/unheard-of: 1", "{}", "it is no resource that is known"),
        ("cpu: 1", "{annotations: {gpu-fraction: '1.5'}}", "no fraction above 0"),
        ("cpu: 1", "{annotations: {gpu-fraction: half}}", "no fraction above 0"),
        ("nvidia.com/gpu: 1", "{annotations: {gpu-fraction: '0.5'}}", "two vocabularies"),
        ("koordinator.sh/gpu: 150", "{}", "no whole cards"),
    ] {
        let text = pod_with(limits, metadata, "");
        let Ran { code, out, err } = convert(&text, &NODE);
        assert_eq!(code, 1, "{limits}: {out}{err}");
        assert!(err.contains(word) && err.contains(": not carried: "), "{limits}: {err}");
        assert!(!out.contains("resourceClaims"), "{limits}: {out}");
        for amount in limits.split(", ") {
            let (name, value) = amount.split_once(": ").unwrap();
            assert!(
                out.contains(&format!("{name}: {value}")) || out.contains(&format!("{name}: '{value}'")),
                "{out}"
            );
        }
    }
}

#[test]
fn limits_that_contradict_requests_are_named() {
    let text = pod("nvidia.com/gpu: 2").replace("}}\n", "}, requests: {nvidia.com/gpu: 1}}\n");
    let Ran { code, err, .. } = convert(&text, &NODE);
    assert!(code == 1 && err.contains("limit 2, request 1: not carried"), "{err}");
}

#[test]
fn annotations_of_known_systems_are_never_dropped_in_silence() {
    let marks =
        "{annotations: {hami.io/device-scoring-weights: '{torn', hami.io/unheard-of: x, mine/note: stays}}";
    let Ran { code, out, err } = convert(&pod_with("nvidia.com/gpumem: 1000", marks, ""), &NODE);
    assert_eq!(code, 1);
    assert!(err.contains("device-scoring-weights]: {torn: not carried: it is not JSON"), "{err}");
    assert!(err.contains("hami.io/unheard-of]: x: not carried: it is not known, and stays"), "{err}");
    assert!(out.contains("hami.io/unheard-of: x") && out.contains("mine/note: stays"), "{out}");
}

#[test]
fn input_that_is_no_manifest_ends_with_two() {
    for (text, words, problem) in [
        ("a: [1, 2\n", &[][..], "not YAML or JSON"),
        ("- 1\n- 2\n", &[], "no object"),
        ("a: 1\n", &[], "without apiVersion and kind"),
        ("mig-configs: {a: [], b: []}\nversion: v1\n", &[], "name it with --select"),
        ("mig-configs: {a: [], b: []}\nversion: v1\n", &["--select", "c"], "no configuration c"),
    ] {
        let Ran { code, out, err } = convert(text, words);
        assert_eq!((code, out.as_str()), (2, ""), "{text}: {err}");
        assert!(err.contains(problem), "{text}: {err}");
    }
    assert_eq!(aliquot(&["convert", "-f", "/does/not/exist"]).code, 3);
}

#[test]
fn one_system_is_read_where_it_is_named() {
    let both = pod("nvidia.com/gpumem: 1000, volcano.sh/vgpu-memory: 2000");
    let Ran { code, out, err } = convert(&both, &["--from", "volcano"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("memory: 2000Mi") && out.contains("nvidia.com/gpumem: 1000"), "{out}");
}

#[test]
fn objects_without_cards_come_out_as_they_went_in() {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {text: \"a\\n  b: 'c'\\n\", number: '010'}\n";
    let Ran { code, out, err } = convert(text, &[]);
    assert_eq!((code, err.as_str()), (0, ""));
    let again = convert(&out, &[]);
    assert_eq!(again.out, out);
    assert!(out.contains("number: '010'") && out.contains("a\\n  b: 'c'\\n"), "{out}");
}

#[test]
fn custom_resources_with_templates_of_pods_are_converted() {
    let text = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: train, namespace: team}\nspec:\n  \
                pytorchReplicaSpecs:\n    Master: {template: {spec: {containers: [{name: m, image: i, resources: \
                {limits: {nvidia.com/gpumem: 4096}}}]}}}\n    Worker: {replicas: 2, template: {spec: {containers: \
                [{name: m, image: i, resources: {limits: {nvidia.com/gpumem: 8192}}}]}}}\n";
    let Ran { code, out, err } = convert(text, &[]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    for word in ["name: train-m\n", "name: train-m-2\n", "memory: 4Gi", "memory: 8Gi", "namespace: team"] {
        assert!(out.contains(word), "{word}: {out}");
    }
}

/// Equal names are the costly case: each template needs one of its own. A search from the first copy would take hours.
#[test]
fn ten_megabytes_of_equal_pods_are_converted() {
    let one = format!("{}---\n", pod("nvidia.com/gpu: 1, nvidia.com/gpumem: 1000, nvidia.com/gpucores: 30"));
    let count = (10 << 20) / one.len();
    let Ran { code, out, err } = convert(&one.repeat(count), &[]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out.matches("kind: ResourceClaimTemplate\n").count(), count);
    assert_eq!(out.matches(&format!("resourceClaimTemplateName: p-c-{count}\n")).count(), 1);
}

#[test]
fn ten_megabytes_of_one_value_are_converted() {
    let padded = format!("{}# {}\n", pod("nvidia.com/gpumem: 1000"), "x".repeat(10 << 20));
    assert_eq!(convert(&padded, &[]).code, 0);
    let long = "n".repeat(10 << 20);
    let named =
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {long}}}\nspec: {{containers: [{}]}}\n", {
            let container = "{name: c, resources: {limits: {nvidia.com/gpumem: many}}}";
            vec![container; 2000].join(", ")
        });
    let Ran { code, err, .. } = convert(&named, &[]);
    assert_eq!((code, err.lines().count()), (1, 2000));
    assert!(err.len() < 2_000_000, "{} bytes of losses", err.len());
}

#[test]
fn plan_and_explain_name_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.yaml");
    let path = file.display().to_string();
    for (text, asked) in [
        (
            pod("nvidia.com/gpu: 1, nvidia.com/gpumem: 3000"),
            "asks for nvidia.com/gpu: 1, nvidia.com/gpumem: 3000",
        ),
        (
            pod_with("cpu: 1", "{annotations: {gpu-fraction: '0.5'}}", ""),
            "asks by annotation for gpu-fraction: 0.5",
        ),
    ] {
        fs::write(&file, text).unwrap();
        for verb in ["plan", "explain"] {
            let Ran { code, out, .. } = aliquot(&[verb, "-f", &path, "--node", "mixed"]);
            assert_eq!(code, 1, "{verb}: {out}");
            assert!(
                out.contains(asked) && out.contains(&format!("`aliquot convert -f {path}` makes it one")),
                "{out}"
            );
        }
    }
    let claim = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: \
                 [{name: r, exactly: {deviceClassName: gpu.nvidia.com}}]}}\n";
    fs::write(&file, claim).unwrap();
    let Ran { code, out, .. } = aliquot(&["plan", "-f", &path, "--node", "mixed"]);
    assert!(code == 1 && out.contains(&format!("`aliquot convert -f {path}` asks for ours")), "{out}");
    fs::write(&file, "version: v1\nmig-configs: {a: []}\n").unwrap();
    let Ran { code, err, .. } = aliquot(&["plan", "-f", &path, "--node", "mixed"]);
    assert!(code == 2 && err.contains("`aliquot convert` reads configurations"), "{err}");
    fs::write(&file, pod("aliquot.dev/share: 1")).unwrap();
    let Ran { code, out, .. } = aliquot(&["plan", "-f", &path, "--node", "mixed"]);
    assert!(code == 1 && out.contains("a share has no size there"), "{out}");
}
