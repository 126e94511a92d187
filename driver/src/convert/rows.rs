//! The equivalences in words: the table of `docs/user/migration.md`, which a test compares with it.

use super::vocabulary::System;

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The system that defines the words.
    pub system: System,
    /// The words.
    pub words: &'static str,
    /// The result of the conversion.
    pub becomes: &'static str,
    /// What is not carried, and named; `-` if nothing.
    pub lost: &'static str,
    /// The document or code that states the equivalence.
    pub source: &'static str,
    /// Name of its pair in `tests/golden/convert`.
    pub golden: &'static str,
}

/// Every equivalence that is claimed.
pub const ROWS: [Row; 26] = [
    Row {
        system: System::Hami,
        words: "`nvidia.com/gpu`, `gpumem`, `gpucores`, `priority`",
        becomes: "claim on `share.aliquot.dev`: memory in MiB, cores, `computePolicy: burst`, priority 0 \
            high, 1 low; cards distinct",
        lost: "schedulerName; an exact percentage above a size in MiB",
        source: "HAMi: docs/userguide/nvidia-device",
        golden: "hami-share",
    },
    Row {
        system: System::Hami,
        words: "`nvidia.com/gpumem-percentage`",
        becomes: "one alternative a card model at hand (`firstAvailable`); 100 % is the whole card",
        lost: "percent of any other model",
        source: "HAMi: pkg/device/nvidia",
        golden: "hami-percentage",
    },
    Row {
        system: System::Hami,
        words: "`nvidia.com/use-gputype`, `nouse-gputype`, `use-gpuuuid`, `nouse-gpuuuid`, `numa-bind`",
        becomes: "selectors on `productName` and `parentUUID`; `matchAttribute: aliquot.dev/numaNode`",
        lost: "-",
        source: "HAMi: pkg/device/nvidia",
        golden: "hami-selectors",
    },
    Row {
        system: System::Hami,
        words: "`GPU_CORE_UTILIZATION_POLICY` `default`, `force`, `disable`",
        becomes: "`computePolicy: burst`, `computePolicy: cap`, cores 0",
        lost: "-",
        source: "HAMi-core: README",
        golden: "hami-compute",
    },
    Row {
        system: System::Hami,
        words: "`CUDA_OVERSUBSCRIBE`, scheduler policies, `vgpu-mode`",
        becomes: "nothing",
        lost: "all: no oversubscription; Kubernetes' scheduler places",
        source: "HAMi: docs/userguide",
        golden: "hami-lost",
    },
    Row {
        system: System::Hami,
        words: "`huawei.com/Ascend310P`, `-memory`",
        becomes: "the smallest vNPU template of that nominal memory, one request",
        lost: "the size that was asked for, where rounded (a note)",
        source: "HAMi: pkg/device/ascend",
        golden: "hami-ascend",
    },
    Row {
        system: System::Hami,
        words: "`cambricon.com/…`, `hygon.com/…` and other vendors",
        becomes: "left as they are",
        lost: "no backend",
        source: "HAMi: pkg/device",
        golden: "no-backend",
    },
    Row {
        system: System::Nvidia,
        words: "`nvidia.com/gpu`",
        becomes: "class under that name, Pod unchanged; a claim where node labels select",
        lost: "-",
        source: "k8s-device-plugin: README",
        golden: "nvidia-gpu",
    },
    Row {
        system: System::Nvidia,
        words: "`nvidia.com/mig-1g.10gb` and others (strategy `mixed`)",
        becomes: "class under that name, Pod unchanged",
        lost: "-",
        source: "k8s-device-plugin: README",
        golden: "nvidia-mig",
    },
    Row {
        system: System::Nvidia,
        words: "`nvidia.com/gpu` under strategy `single`",
        becomes: "class of the profile of `--profile` or of the product label",
        lost: "the profile has to be named",
        source: "k8s-device-plugin: README",
        golden: "nvidia-single",
    },
    Row {
        system: System::Nvidia,
        words: "`nvidia.com/gpu.shared`, time slicing or MPS `replicas: N`",
        becomes: "layout `slots`: N slots of 1/N; Pod unchanged through a class",
        lost: "time slicing limits no memory; MPS runs kernels side by side",
        source: "k8s-device-plugin: README",
        golden: "nvidia-replicas",
    },
    Row {
        system: System::Nvidia,
        words: "`nvidia.com/gpu.product`, `gpu.family` in a nodeSelector",
        becomes: "selectors on `productName`, `architecture`",
        lost: "other labels stay, and are named",
        source: "gpu-feature-discovery: README",
        golden: "nvidia-product",
    },
    Row {
        system: System::NvidiaDra,
        words: "claims on `gpu.nvidia.com` with MPS limits",
        becomes: "claim on `share.aliquot.dev` with memory and cores",
        lost: "MPS runs kernels side by side",
        source: "dra-driver-nvidia-gpu: api/nvidia.com",
        golden: "dra-mps",
    },
    Row {
        system: System::NvidiaDra,
        words: "claims on `mig.nvidia.com`, CEL, `matchAttribute` on `parentUUID`",
        becomes: "the profile's class; names rewritten in the parsed CEL; `aliquot.dev/parentUUID`",
        lost: "attributes that no device has; the time slice",
        source: "dra-driver-nvidia-gpu: demo/specs",
        golden: "dra-mig",
    },
    Row {
        system: System::MigParted,
        words: "`mig-configs`, one by `--select`",
        becomes: "policy file: layouts `split`, `whole`, `dynamic`",
        lost: "the mode: `nvidia-smi -mig 1`; other names than the selected",
        source: "mig-parted: README",
        golden: "mig-parted",
    },
    Row {
        system: System::VgpuManager,
        words: "`nvidia.com/vgpu-number`, `vgpu-memory`, `vgpu-cores`, types, compute policy",
        becomes: "share; selectors; `balance` is burst, `fixed` cap, `none` cores 0",
        lost: "scheduler policies, topology mode",
        source: "vgpu-manager: docs",
        golden: "vgpu-manager",
    },
    Row {
        system: System::Volcano,
        words: "`volcano.sh/vgpu-number`, `vgpu-memory`, `vgpu-cores`",
        becomes: "share",
        lost: "schedulerName, vgpu-mode",
        source: "volcano-vgpu-device-plugin: README",
        golden: "volcano",
    },
    Row {
        system: System::Kai,
        words: "`gpu-fraction`, `gpu-memory`, `gpu-fraction-num-devices`, also of Run:ai",
        becomes: "share of the fraction by card model, or of the MiB; `computePolicy: burst`; distinct cards",
        lost: "queue, scheduler, a limit above the request",
        source: "KAI: docs/gpu-sharing; Run:ai: GPU fractions",
        golden: "kai-fraction",
    },
    Row {
        system: System::TensorFusion,
        words: "`vram-limit`, `compute-percent-limit`, `gpu-count`, `gpu-model`, `qos`",
        becomes: "share, selector, priority",
        lost: "TFLOPS, pools, profiles",
        source: "TensorFusion: reference/workload-annotation",
        golden: "tensor-fusion",
    },
    Row {
        system: System::Koordinator,
        words: "`koordinator.sh/gpu`, `gpu.shared`, `gpu-core`, `gpu-memory`, `gpu-memory-ratio`",
        becomes: "share; amounts are divided among `gpu.shared` cards; 100 and multiples are whole cards",
        lost: "hints of allocation, schedulerName",
        source: "Koordinator: fine-grained-device-scheduling; pkg/scheduler/plugins/deviceshare",
        golden: "koordinator",
    },
    Row {
        system: System::Aliyun,
        words: "`aliyun.com/gpu-mem` (GiB), label `aliyun.com/gpu-count`",
        becomes: "share of that memory, divided among the cards",
        lost: "-",
        source: "gpushare-scheduler-extender: userguide; ACK: multi-GPU sharing",
        golden: "aliyun",
    },
    Row {
        system: System::Tencent,
        words: "`tencent.com/vcuda-core`, `vcuda-memory` (256 MiB)",
        becomes: "share; from 100 on whole cards",
        lost: "`vcuda-core-limit`",
        source: "gpu-manager: README",
        golden: "tencent",
    },
    Row {
        system: System::Gke,
        words: "`gke-gpu-sharing-strategy`, `gke-max-shared-clients-per-gpu`",
        becomes: "share of 1/N; `gke-accelerator` stays",
        lost: "the number of clients; time sharing limits no memory",
        source: "GKE: how-to/timesharing-gpus",
        golden: "gke",
    },
    Row {
        system: System::Huawei,
        words: "`huawei.com/Ascend310P`, `-2c` and other templates",
        becomes: "class under that name, Pod unchanged",
        lost: "-",
        source: "MindCluster: device plugin",
        golden: "huawei-template",
    },
    Row {
        system: System::Huawei,
        words: "`huawei.com/npu-core` with `vnpu-level`, `vnpu-dvpp`",
        becomes: "one vNPU template of so many AI cores",
        lost: "-",
        source: "MindCluster: dynamic vNPU",
        golden: "huawei-cores",
    },
    Row {
        system: System::Other,
        words: "`amd.com/…`, `gpu.intel.com/…` and others",
        becomes: "left as they are",
        lost: "no backend",
        source: "-",
        golden: "other-vendors",
    },
];

// === impl Row ===

impl Row {
    /// The row of a table in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let Self { system, words, becomes, lost, source, .. } = self;
        format!("| {system} | {words} | {becomes} | {lost} | {source} |")
    }
}
