//! Claims and classes of NVIDIA's DRA driver, and what was converted before.

use super::{NODE, Ran, convert, pod};

fn claim(request: &str, config: &str) -> String {
    format!(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{name: c}}\nspec:\n  devices:\n    requests:\n    - \
         name: gpu\n      exactly: {{deviceClassName: gpu.nvidia.com{request}}}\n    config: [{config}]\n"
    )
}

fn mps(memory: &str) -> String {
    format!(
        "{{opaque: {{driver: gpu.nvidia.com, parameters: {{apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: \
         {{strategy: MPS, mpsConfig: {{defaultActiveThreadPercentage: 50, defaultPinnedDeviceMemoryLimit: {memory}}}}}}}}}}}"
    )
}

#[test]
fn configuration_of_a_class_is_named() {
    let text = format!(
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {{name: mine}}\nspec:\n  selectors: [{{cel: {{expression: \
         \"device.driver == 'gpu.nvidia.com'\"}}}}]\n  config: [{}]\n",
        mps("10Gi")
    );
    let Ran { code, out, err } = convert(&text, &NODE);
    assert!(code == 1 && err.contains("DeviceClass mine spec.config[0].opaque.parameters"), "{err}");
    assert!(err.contains("a class has no capacity"), "{err}");
    assert!(!out.contains("mpsConfig") && out.contains("device.driver == \"aliquot.dev\""), "{out}");
}

#[test]
fn capacity_of_a_request_is_merged() {
    let own = ", capacity: {requests: {gpu.nvidia.com/memory: 20Gi, multiprocessors: 14}}";
    let Ran { code, out, err } = convert(&claim(own, &mps("10Gi")), &NODE);
    assert_eq!(code, 1);
    assert!(out.contains("memory: 20Gi") && out.contains("cores: '50'") && !out.contains("10Gi"), "{out}");
    assert!(err.contains("multiprocessors]: 14: not carried"), "{err}");
    assert!(
        err.contains("memory: 10Gi: not carried") || err.contains("MemoryLimit: 10Gi: not carried"),
        "{err}"
    );
}

#[test]
fn own_output_converts_to_itself() {
    for limits in [
        "nvidia.com/gpu: 1",
        "nvidia.com/mig-1g.10gb: 1",
        "nvidia.com/gpumem: 1000",
        "huawei.com/Ascend310P: 1",
    ] {
        let once = convert(&pod(limits), &NODE).out;
        let twice = convert(&once, &NODE);
        assert_eq!(twice.out, once, "{limits}");
        assert_eq!((twice.code, twice.err.as_str()), (0, ""), "{limits}");
    }
}

#[test]
fn class_of_the_input_for_the_resource_serves_the_pod() {
    let class = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: mine}\nspec: {extendedResourceName: \
                 RESOURCE}\n---\n";
    for resource in ["nvidia.com/gpu", "nvidia.com/gpu.shared", "huawei.com/Ascend310P"] {
        let text = format!("{}{}", class.replace("RESOURCE", resource), pod(&format!("{resource}: 1")));
        let Ran { code, out, err } = convert(&text, &NODE);
        assert_eq!((code, err.as_str(), out.matches("kind: DeviceClass").count()), (0, "", 1), "{out}");
    }
}

#[test]
fn class_of_the_input_with_a_name_of_ours_counts() {
    let class = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: legacy-nvidia-gpu.aliquot.dev}\nspec: \
                 {extendedResourceName: mine.example/gpu}\n---\n";
    let Ran { code, out, err } = convert(&format!("{class}{}", pod("nvidia.com/gpu: 1")), &NODE);
    assert_eq!((code, out.matches("kind: DeviceClass").count()), (1, 1), "{out}");
    assert!(out.contains("mine.example/gpu") && err.contains("legacy-nvidia-gpu.aliquot.dev"), "{err}");
}
