//! Words beside the amounts are carried, or stay and are named: none is dropped in silence.

use super::{NODE, Ran, convert, gives, pod, pod_with};

const HAMI_MARKS: &str =
    "{annotations: {nvidia.com/use-gputype: H100, nvidia.com/numa-bind: 'true', hami.io/vgpu-node: node1}}";
const FORCE: &str = "    env: [{name: GPU_CORE_UTILIZATION_POLICY, value: force}]\n";
const PRODUCT: &str = "  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}\n";

#[test]
fn words_stay_with_a_container_that_stays() {
    let spec = format!("{FORCE}{PRODUCT}");
    for limits in [
        "nvidia.com/gpumem: 8Gi",
        "nvidia.com/gpucores: 500",
        "nvidia.com/gpumem: 1, volcano.sh/vgpu-memory: 9",
    ] {
        let Ran { code, out, err } = convert(&pod_with(limits, HAMI_MARKS, &spec), &NODE);
        assert_eq!(code, 1, "{err}");
        for word in [
            "nvidia.com/use-gputype: H100",
            "nvidia.com/numa-bind: 'true'",
            "hami.io/vgpu-node: node1",
            "nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3",
            "GPU_CORE_UTILIZATION_POLICY",
        ] {
            assert!(out.contains(word), "{limits}: no {word} in\n{out}\n{err}");
        }
    }
}

#[test]
fn words_of_a_pod_stay_while_one_container_needs_them() {
    let other = "  - {name: d, image: i, resources: {limits: {nvidia.com/gpumem: many}}}\n";
    let Ran { out, .. } = convert(&pod_with("nvidia.com/gpumem: 1000", HAMI_MARKS, other), &NODE);
    assert!(out.contains("memory: 1000Mi") && out.contains("nvidia.com/use-gputype: H100"), "{out}");
    assert!(out.contains("nvidia.com/gpumem: many"), "{out}");
    let Ran { out, .. } = convert(&pod_with("nvidia.com/gpumem: 1000", HAMI_MARKS, ""), &NODE);
    assert!(out.contains("memory: 1000Mi") && !out.contains("nvidia.com/use-gputype"), "{out}");
}

#[test]
fn numa_wish_of_instances_is_a_constraint_or_named() {
    let numa = "{annotations: {nvidia.com/numa-bind: 'true'}}";
    let gone = "nvidia.com/numa-bind: 'true'";
    gives(&[
        (
            pod_with("nvidia.com/mig-1g.10gb: 2", numa, ""),
            &[],
            0,
            &["matchAttribute: aliquot.dev/numaNode"],
            &[],
        ),
        (
            pod_with("nvidia.com/mig-1g.10gb: 2, nvidia.com/mig-2g.20gb: 1", numa, ""),
            &[],
            1,
            &[gone],
            &["numa-bind]: true: not carried"],
        ),
    ]);
}

#[test]
fn words_that_a_class_has_no_place_for_stay_and_are_named() {
    let type_of_gpu = "{annotations: {nvidia.com/use-gputype: H100}}";
    let numa = "{annotations: {nvidia.com/numa-bind: 'true'}}";
    let product = "nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3";
    gives(&[
        (
            pod_with("nvidia.com/gpu.shared: 1", "{}", PRODUCT),
            &[],
            1,
            &[product],
            &["gpu.product]: NVIDIA-H100-80GB-HBM3"],
        ),
        (
            pod_with("huawei.com/Ascend310P: 1", type_of_gpu, ""),
            &[],
            1,
            &["nvidia.com/use-gputype: H100"],
            &["use-gputype]: H100: not carried"],
        ),
        (
            pod_with("huawei.com/npu-core: 2", numa, ""),
            &[],
            1,
            &["nvidia.com/numa-bind: 'true'"],
            &["numa-bind]: true: not carried"],
        ),
        (
            pod_with("nvidia.com/gpu: 1", "{}", FORCE),
            &[],
            0,
            &["GPU_CORE_UTILIZATION_POLICY"],
            &["env[GPU_CORE_UTILIZATION_POLICY]: force: carried as a whole card"],
        ),
    ]);
}

#[test]
fn priority_of_whole_cards_is_said() {
    let whole = "nvidia.com/gpu: 2, nvidia.com/gpucores: 100, nvidia.com/priority: 0";
    let note = "nvidia.com/priority]: 0: carried as a whole card";
    gives(&[(pod(whole), &[], 0, &["card-nvidia.aliquot.dev"], &[note])]);
    let quality =
        "{annotations: {tensor-fusion.ai/qos: high, tensor-fusion.ai/compute-percent-limit: '100'}}";
    let text = pod_with("cpu: 1", quality, "");
    let note = "qos]: high: carried as a whole card";
    gives(&[(text.clone(), &[], 0, &["card-nvidia.aliquot.dev"], &[note])]);
    assert!(!convert(&text, &NODE).out.contains("tensor-fusion.ai/qos"));
}

#[test]
fn amounts_of_all_cards_are_divided_among_them() {
    let label = "{labels: {aliyun.com/gpu-count: '3'}}";
    let limit = "{annotations: {tencent.com/vcuda-core-limit: '50', aliyun.com/gpu-unheard-of: x}}";
    let all = "koordinator.sh/gpu.shared: 2, koordinator.sh/gpu-core: 100, koordinator.sh/gpu-memory";
    gives(&[
        (
            pod(&format!("{all}: 16Gi")),
            &[],
            0,
            &["cores: '50'", "memory: 8Gi", "count: 2", "distinctAttribute: aliquot.dev/parentUUID"],
            &[],
        ),
        (pod(&format!("{all}-ratio: 100")), &[], 1, &["cores: '50'", "count: 2"], &["50 % of any other"]),
        (
            pod("koordinator.sh/gpu-core: 200, koordinator.sh/gpu-memory-ratio: 200"),
            &[],
            0,
            &["card-nvidia.aliquot.dev", "count: 2"],
            &[],
        ),
        (pod_with("aliyun.com/gpu-mem: 6", label, ""), &[], 0, &["memory: 2Gi", "count: 3"], &[]),
        (
            pod_with("aliyun.com/gpu-mem: 7", label, ""),
            &[],
            1,
            &["aliyun.com/gpu-mem: 7"],
            &["divide among 3"],
        ),
        (
            pod_with("tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 30", limit, ""),
            &[],
            1,
            &["cores: '30'", "memory: 7680Mi", "aliyun.com/gpu-unheard-of: x"],
            &["vcuda-core-limit]: 50: not carried", "aliyun.com/gpu-unheard-of]: x: not carried"],
        ),
    ]);
    for limits in [
        "koordinator.sh/gpu.shared: 3, koordinator.sh/gpu-core: 100",
        "koordinator.sh/gpu-core: 150, koordinator.sh/gpu-memory-ratio: 150",
        "koordinator.sh/gpu-core: 50, koordinator.sh/gpu-memory-ratio: 200",
    ] {
        let Ran { code, out, err } = convert(&pod(limits), &NODE);
        assert!(code == 1 && !out.contains("resourceClaims"), "{limits}: {out}{err}");
    }
}

#[test]
fn amounts_of_a_pod_are_not_replaced_by_a_label() {
    let fraction = "{annotations: {gpu-memory: '1024'}}";
    let label = "  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3-MIG-1g.10gb}\n";
    let gke = "  nodeSelector: {cloud.google.com/gke-max-shared-clients-per-gpu: '4'}\n";
    gives(&[
        (
            pod_with("cpu: 1", fraction, label),
            &[],
            1,
            &["memory: 1Gi", "share.aliquot.dev", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"],
            &["gpu.product]: NVIDIA-H100-80GB-HBM3-MIG-1g.10gb: not carried"],
        ),
        (
            pod_with("cpu: 1", fraction, gke),
            &[],
            1,
            &["memory: 1Gi"],
            &["gke-max-shared-clients-per-gpu]: 4"],
        ),
    ]);
}

#[test]
fn two_amounts_of_memory_by_annotation_contradict() {
    let both = "{annotations: {gpu-fraction: '0.5', gpu-memory: '1024'}}";
    let Ran { code, out, err } = convert(&pod_with("cpu: 1", both, ""), &NODE);
    assert!(code == 1 && err.contains("gpu-memory") && !out.contains("resourceClaims"), "{out}{err}");
    assert!(out.contains("gpu-fraction: '0.5'") && out.contains("gpu-memory: '1024'"), "{out}");
}

#[test]
fn selector_longer_than_kubernetes_takes_is_named() {
    let uuids = vec!["GPU-11111111-2222-3333-4444-555555555555"; 400].join(",");
    let marks = format!("{{annotations: {{nvidia.com/use-gpuuuid: '{uuids}'}}}}");
    let Ran { code, out, err } = convert(&pod_with("nvidia.com/gpumem: 1000", &marks, ""), &NODE);
    assert!(code == 1 && err.contains("longer than") && out.contains(&uuids), "{err}");
}

#[test]
fn loss_of_hostile_names_is_one_line() {
    let name = format!("\"p\\nin.yaml: b: c: not carried: \\e[31m{}\"", "x".repeat(5000));
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, resources: \
         {{limits: {{\"nvidia.com/g\\tu\": 1}}}}}}]}}\n"
    );
    let Ran { code, err, .. } = convert(&text, &NODE);
    assert_eq!((code, err.lines().count()), (1, 1), "{err}");
    assert!(err.trim_end().chars().all(|c| !c.is_control()) && err.len() < 1500, "{err}");
}

#[test]
fn another_system_is_left_alone_where_one_is_named() {
    let env = "    env: [{name: CUDA_OVERSUBSCRIBE, value: 'true'}]\n";
    let koordinator = pod_with("koordinator.sh/gpu: 50", "{annotations: {hami.io/unheard-of: x}}", env);
    let Ran { out, err, .. } = convert(&koordinator, &["--from", "koordinator", "--node", "mixed"]);
    assert!(out.contains("CUDA_OVERSUBSCRIBE") && out.contains("hami.io/unheard-of"), "{out}");
    assert!(!err.contains("CUDA_OVERSUBSCRIBE") && !err.contains("hami.io"), "{err}");
    let quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {requests.nvidia.com/gpumem: 1}}\n";
    assert_eq!(convert(quota, &["--from", "huawei"]).err, "");
    assert_eq!(convert(quota, &["--from", "hami"]).code, 1);
}

#[test]
fn amount_of_one_container_by_annotation_is_named() {
    let marks = "{annotations: {nvidia.com/container.c.gpu-memory.limit: '1024'}}";
    let Ran { code, out, err } = convert(&pod_with("cpu: 1", marks, ""), &NODE);
    assert_eq!(code, 1, "{out}");
    assert!(err.contains("nvidia.com/container.c.gpu-memory.limit]: 1024: not carried"), "{err}");
    assert!(out.contains("nvidia.com/container.c.gpu-memory.limit"), "{out}");
}
