//! The words of other systems, and what each counts or asks for. `rows` says in words what becomes of them.

use std::fmt;

/// A system whose words are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// HAMi: scheduler, webhook and device plugins.
    Hami,
    /// NVIDIA's device plugin.
    Nvidia,
    /// NVIDIA's DRA driver.
    NvidiaDra,
    /// NVIDIA's mig-parted.
    MigParted,
    /// vgpu-manager.
    VgpuManager,
    /// Volcano's vGPU plugin.
    Volcano,
    /// KAI and Run:ai, which share their annotations.
    Kai,
    /// TensorFusion.
    TensorFusion,
    /// Koordinator.
    Koordinator,
    /// Aliyun's gpu-share.
    Aliyun,
    /// Tencent's gpu-manager and qGPU.
    Tencent,
    /// Sharing of GKE.
    Gke,
    /// Huawei's device plugin.
    Huawei,
    /// A vendor without a backend.
    Other,
}

/// What the number of a resource counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Cards, or devices with an equal part of a card each.
    Cards,
    /// Replicas of a card of the device plugin.
    Replicas,
    /// Memory of each card, in units of so many MiB.
    Memory(u64),
    /// Memory of all cards together, in units of so many MiB.
    MemoryOfAll(u64),
    /// Memory of each card as a quantity of bytes.
    MemoryQuantity,
    /// Percent of a card's memory.
    MemoryPercent,
    /// Percent of a card's compute.
    Cores,
    /// Memory of all cards together as a quantity of bytes.
    MemoryQuantityOfAll,
    /// Percent of a card's memory, all cards together.
    MemoryPercentOfAll,
    /// Percent of a card's compute, all cards together.
    CoresOfAll,
    /// Percent of cards' compute; from 100 on, whole cards.
    CoresOfCards,
    /// Percent of cards, memory and compute alike; from 100 on, whole cards.
    PercentOfCards,
    /// HAMi's priority: 0 is high, 1 low.
    Priority,
    /// Instances of a MIG profile.
    MigInstances,
    /// Ascend chips or vNPUs, by the rest of the name.
    Chips,
    /// MiB of an Ascend chip, rounded up to a template.
    ChipMemory,
    /// AI cores of a vNPU.
    ChipCores,
    /// Nothing: the number is 0.
    Zero,
    /// Nothing that can be carried; the text is the reason.
    Nothing(&'static str),
}

/// What an annotation, a label or a variable of the environment asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Product names that contain one of these.
    TypeIn,
    /// Product names that contain none of these.
    TypeNotIn,
    /// Cards with one of these UUIDs.
    UuidIn,
    /// Cards with none of these UUIDs.
    UuidNotIn,
    /// All cards on one NUMA node.
    Numa,
    /// The label of GPU feature discovery for the product.
    Product,
    /// The label of GPU feature discovery for the architecture.
    Family,
    /// HAMi's policy of compute: `default`, `force`, `disable`.
    HamiComputePolicy,
    /// vgpu-manager's policy of compute: `fixed`, `balance`, `none`.
    VgpuComputePolicy,
    /// HAMi's mode; `hami-core` is a share.
    HamiMode,
    /// Part of each card, between 0 and 1.
    Fraction,
    /// MiB of each card.
    MemoryMebibytes,
    /// Memory of each card as a quantity of bytes.
    MemoryQuantity,
    /// Percent of each card's compute.
    Cores,
    /// Number of cards.
    Count,
    /// The container that asks.
    ContainerName,
    /// Order in which idle time is lent.
    Quality,
    /// Replicas of each card.
    Replicas,
    /// GKE's MIG profile.
    Partition,
    /// GKE's strategy of sharing.
    SharingStrategy,
    /// Huawei's level of AI CPUs: `low`, `high`.
    VnpuLevel,
    /// Huawei's use of DVPP: `yes`, `no`, `null`.
    VnpuDvpp,
    /// A state that the old system writes itself; it goes without a word.
    State,
    /// Cannot be carried. JSON is checked for being JSON.
    Lost(Form, &'static str, &'static str),
}

/// What the text of an annotation has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Any text.
    Text,
    /// JSON.
    Json,
}

const MIB: u64 = 1;
const GIB: u64 = 1 << 10;

const PLACES: &str =
    "Kubernetes' own scheduler places claims, and Aliquot publishes devices in packing order";
const CHECK_SCHEDULER: &str = "remove it, or set the scheduler's own scoring";
const NO_OVERSUBSCRIPTION: &str = "memory is never promised twice";
const ASK_FOR_LESS: &str = "ask for the memory that the program uses";

/// Resources by their whole name.
pub(super) const RESOURCES: [(&str, System, Unit); 31] = [
    ("nvidia.com/gpu", System::Nvidia, Unit::Cards),
    ("nvidia.com/gpu.shared", System::Nvidia, Unit::Replicas),
    ("nvidia.com/gpumem", System::Hami, Unit::Memory(MIB)),
    ("nvidia.com/gpumem-percentage", System::Hami, Unit::MemoryPercent),
    ("nvidia.com/gpucores", System::Hami, Unit::Cores),
    ("nvidia.com/priority", System::Hami, Unit::Priority),
    ("nvidia.com/vgpu-number", System::VgpuManager, Unit::Cards),
    ("nvidia.com/vgpu-memory", System::VgpuManager, Unit::Memory(MIB)),
    ("nvidia.com/vgpu-cores", System::VgpuManager, Unit::Cores),
    ("volcano.sh/vgpu-number", System::Volcano, Unit::Cards),
    ("volcano.sh/vgpu-memory", System::Volcano, Unit::Memory(MIB)),
    ("volcano.sh/vgpu-memory-percentage", System::Volcano, Unit::MemoryPercent),
    ("volcano.sh/vgpu-cores", System::Volcano, Unit::Cores),
    ("volcano.sh/gpu-number", System::Volcano, Unit::Cards),
    ("volcano.sh/gpu-memory", System::Volcano, Unit::Memory(MIB)),
    ("koordinator.sh/gpu", System::Koordinator, Unit::PercentOfCards),
    ("koordinator.sh/gpu.shared", System::Koordinator, Unit::Cards),
    ("koordinator.sh/gpu-core", System::Koordinator, Unit::CoresOfAll),
    ("koordinator.sh/gpu-memory", System::Koordinator, Unit::MemoryQuantityOfAll),
    ("koordinator.sh/gpu-memory-ratio", System::Koordinator, Unit::MemoryPercentOfAll),
    ("aliyun.com/gpu-mem", System::Aliyun, Unit::MemoryOfAll(GIB)),
    ("aliyun.com/gpu-count", System::Aliyun, Unit::Cards),
    ("aliyun.com/gpu-core.percentage", System::Aliyun, Unit::Cores),
    ("tencent.com/vcuda-core", System::Tencent, Unit::CoresOfCards),
    ("tencent.com/vcuda-memory", System::Tencent, Unit::MemoryOfAll(256 * MIB)),
    ("tke.cloud.tencent.com/qgpu-core", System::Tencent, Unit::CoresOfCards),
    ("tke.cloud.tencent.com/qgpu-memory", System::Tencent, Unit::MemoryOfAll(GIB)),
    ("huawei.com/npu-core", System::Huawei, Unit::ChipCores),
    ("huawei.com/npu", System::Huawei, Unit::Nothing("it names no chip")),
    ("kubernetes.io/batch-gpu", System::Koordinator, Unit::Nothing("it is for jobs that may be evicted")),
    ("volcano.sh/vgpu-mode", System::Volcano, Unit::Nothing("it is no amount")),
];

/// Domains of accelerators that Aliquot has no backend for.
pub(super) const FOREIGN_DOMAINS: [&str; 16] = [
    "amd.com",
    "aws.amazon.com",
    "birentech.com",
    "cambricon.com",
    "enflame.com",
    "google.com",
    "gpu.intel.com",
    "habana.ai",
    "hygon.com",
    "iluvatar.ai",
    "kunlunxin.com",
    "metax-tech.com",
    "mthreads.com",
    "qualcomm.com",
    "rebellions.ai",
    "vastaitech.com",
];

/// Annotations and labels of a Pod.
pub(super) const ANNOTATIONS: [(&str, System, Wish); 60] = [
    ("aliyun.com/gpu-count", System::Aliyun, Wish::Count),
    (
        "tencent.com/vcuda-core-limit",
        System::Tencent,
        Wish::Lost(Form::Text, "a share has one percentage, that of vcuda-core", "size it for the peak"),
    ),
    ("nvidia.com/use-gputype", System::Hami, Wish::TypeIn),
    ("nvidia.com/nouse-gputype", System::Hami, Wish::TypeNotIn),
    ("nvidia.com/use-gpuuuid", System::Hami, Wish::UuidIn),
    ("nvidia.com/nouse-gpuuuid", System::Hami, Wish::UuidNotIn),
    ("nvidia.com/numa-bind", System::Hami, Wish::Numa),
    ("nvidia.com/vgpu-mode", System::Hami, Wish::HamiMode),
    ("hami.io/node-scheduler-policy", System::Hami, Wish::Lost(Form::Text, PLACES, CHECK_SCHEDULER)),
    ("hami.io/gpu-scheduler-policy", System::Hami, Wish::Lost(Form::Text, PLACES, CHECK_SCHEDULER)),
    ("hami.io/device-scoring-weights", System::Hami, Wish::Lost(Form::Json, PLACES, CHECK_SCHEDULER)),
    ("hami.io/vgpu-devices-to-allocate", System::Hami, Wish::State),
    ("hami.io/vgpu-devices-allocated", System::Hami, Wish::State),
    ("hami.io/vgpu-mig-allocations", System::Hami, Wish::State),
    ("hami.io/vgpu-node", System::Hami, Wish::State),
    ("hami.io/vgpu-time", System::Hami, Wish::State),
    ("hami.io/bind-phase", System::Hami, Wish::State),
    ("hami.io/bind-time", System::Hami, Wish::State),
    (
        "huawei.com/vnpu-mode",
        System::Hami,
        Wish::Lost(Form::Text, "NPUs have no shim, so only templates divide them", "ask for a template"),
    ),
    ("nvidia.com/include-gpu-type", System::VgpuManager, Wish::TypeIn),
    ("nvidia.com/exclude-gpu-type", System::VgpuManager, Wish::TypeNotIn),
    ("nvidia.com/include-gpu-uuid", System::VgpuManager, Wish::UuidIn),
    ("nvidia.com/exclude-gpu-uuid", System::VgpuManager, Wish::UuidNotIn),
    ("nvidia.com/vgpu-compute-policy", System::VgpuManager, Wish::VgpuComputePolicy),
    (
        "nvidia.com/node-scheduler-policy",
        System::VgpuManager,
        Wish::Lost(Form::Text, PLACES, CHECK_SCHEDULER),
    ),
    (
        "nvidia.com/device-scheduler-policy",
        System::VgpuManager,
        Wish::Lost(Form::Text, PLACES, CHECK_SCHEDULER),
    ),
    (
        "nvidia.com/memory-scheduler-policy",
        System::VgpuManager,
        Wish::Lost(Form::Text, NO_OVERSUBSCRIPTION, ASK_FOR_LESS),
    ),
    (
        "nvidia.com/device-topology-mode",
        System::VgpuManager,
        Wish::Lost(
            Form::Text,
            "a constraint is strict, the mode is a preference",
            "add matchAttribute: aliquot.dev/nvlinkDomain or aliquot.dev/numaNode to the claim",
        ),
    ),
    (
        "volcano.sh/vgpu-mode",
        System::Volcano,
        Wish::Lost(Form::Text, "the class of a request decides how it is cut", "choose the class"),
    ),
    ("gpu-fraction", System::Kai, Wish::Fraction),
    ("gpu-memory", System::Kai, Wish::MemoryMebibytes),
    ("gpu-fraction-num-devices", System::Kai, Wish::Count),
    ("gpu-fraction-container-name", System::Kai, Wish::ContainerName),
    (
        "gpu-memory.limit",
        System::Kai,
        Wish::Lost(Form::Text, "a share has one size, not a request below a limit", "size it for the peak"),
    ),
    ("received-resource-type", System::Kai, Wish::State),
    ("runai/shared-gpu-configmap", System::Kai, Wish::State),
    ("runai-gpu-group", System::Kai, Wish::State),
    ("mps", System::Kai, Wish::Lost(Form::Text, "shares take turns on a card", "remove it")),
    (
        "kai.scheduler/queue",
        System::Kai,
        Wish::Lost(
            Form::Text,
            "a claim has no queue",
            "set a quota, or keep KAI for what is not about cards",
        ),
    ),
    (
        "runai/queue",
        System::Kai,
        Wish::Lost(Form::Text, "a claim has no queue", "set a quota for the namespace"),
    ),
    ("tensor-fusion.ai/vram-limit", System::TensorFusion, Wish::MemoryQuantity),
    (
        "tensor-fusion.ai/vram-request",
        System::TensorFusion,
        Wish::Lost(Form::Text, "a share has one size, that of vram-limit", "size vram-limit for the peak"),
    ),
    ("tensor-fusion.ai/compute-percent-limit", System::TensorFusion, Wish::Cores),
    (
        "tensor-fusion.ai/compute-percent-request",
        System::TensorFusion,
        Wish::Lost(Form::Text, "a share has one percentage, that of the limit", "set compute-percent-limit"),
    ),
    (
        "tensor-fusion.ai/tflops-limit",
        System::TensorFusion,
        Wish::Lost(Form::Text, "compute is a percentage of a card", "set capacity cores in the claim"),
    ),
    (
        "tensor-fusion.ai/tflops-request",
        System::TensorFusion,
        Wish::Lost(Form::Text, "compute is a percentage of a card", "set capacity cores in the claim"),
    ),
    ("tensor-fusion.ai/gpu-count", System::TensorFusion, Wish::Count),
    ("tensor-fusion.ai/gpu-model", System::TensorFusion, Wish::TypeIn),
    ("tensor-fusion.ai/inject-container", System::TensorFusion, Wish::ContainerName),
    ("tensor-fusion.ai/qos", System::TensorFusion, Wish::Quality),
    ("tensor-fusion.ai/enabled", System::TensorFusion, Wish::State),
    ("tensor-fusion.ai/generate-workload", System::TensorFusion, Wish::State),
    (
        "tensor-fusion.ai/gpupool",
        System::TensorFusion,
        Wish::Lost(Form::Text, "cards are not in pools", "select their nodes by a label"),
    ),
    (
        "tensor-fusion.ai/isolation",
        System::TensorFusion,
        Wish::Lost(Form::Text, "the class of a request decides how it is kept apart", "choose the class"),
    ),
    (
        "tensor-fusion.ai/workload-profile",
        System::TensorFusion,
        Wish::Lost(Form::Text, "what the profile says is in another object", "write its amounts here first"),
    ),
    (
        "tensor-fusion.ai/is-local-gpu",
        System::TensorFusion,
        Wish::Lost(Form::Text, "cards are always those of the Pod's node", "remove it"),
    ),
    (
        "scheduling.koordinator.sh/device-allocate-hint",
        System::Koordinator,
        Wish::Lost(Form::Json, PLACES, "add a selector to the claim"),
    ),
    (
        "scheduling.koordinator.sh/device-joint-allocate",
        System::Koordinator,
        Wish::Lost(
            Form::Json,
            "a claim of this driver has no other devices",
            "add matchAttribute to the claim",
        ),
    ),
    ("vnpu-level", System::Huawei, Wish::VnpuLevel),
    ("vnpu-dvpp", System::Huawei, Wish::VnpuDvpp),
];

/// Beginning of KAI's annotations that ask for one container; they are not carried.
pub(super) const OF_ONE_CONTAINER: &str = "nvidia.com/container.";

/// What the annotations of a known system begin with.
pub(super) const ANNOTATION_PREFIXES: [(&str, System); 14] = [
    ("aliyun.com/gpu", System::Aliyun),
    ("tencent.com/", System::Tencent),
    ("gpu-memory", System::Kai),
    ("gpu-sm-cores", System::Kai),
    ("hami.io/", System::Hami),
    (OF_ONE_CONTAINER, System::Kai),
    ("nvidia.com/", System::Hami),
    ("volcano.sh/vgpu", System::Volcano),
    ("tensor-fusion.ai/", System::TensorFusion),
    ("kai.scheduler/", System::Kai),
    ("runai", System::Kai),
    ("gpu-fraction", System::Kai),
    ("scheduling.koordinator.sh/device", System::Koordinator),
    ("huawei.com/", System::Huawei),
];

/// Labels of nodes in a `nodeSelector`.
pub(super) const NODE_LABELS: [(&str, System, Wish); 12] = [
    ("nvidia.com/gpu.product", System::Nvidia, Wish::Product),
    ("nvidia.com/gpu.family", System::Nvidia, Wish::Family),
    ("nvidia.com/gpu.replicas", System::Nvidia, Wish::Replicas),
    ("nvidia.com/gpu.present", System::Nvidia, Wish::State),
    ("nvidia.com/mig.capable", System::Nvidia, Wish::State),
    (
        "nvidia.com/mig.strategy",
        System::Nvidia,
        Wish::Lost(Form::Text, "the resource, or --profile, says the profile", "remove the label from nodes"),
    ),
    (
        "nvidia.com/mig.config",
        System::Nvidia,
        Wish::Lost(Form::Text, "the policy cuts cards", "convert the configuration of mig-parted"),
    ),
    (
        "nvidia.com/gpu.memory",
        System::Nvidia,
        Wish::Lost(Form::Text, "the label has the memory of one product", "select the model in the claim"),
    ),
    (
        "nvidia.com/gpu.sharing-strategy",
        System::Nvidia,
        Wish::Lost(Form::Text, "shares are kept apart by the shim", "remove it"),
    ),
    ("cloud.google.com/gke-gpu-sharing-strategy", System::Gke, Wish::SharingStrategy),
    ("cloud.google.com/gke-max-shared-clients-per-gpu", System::Gke, Wish::Replicas),
    ("cloud.google.com/gke-gpu-partition-size", System::Gke, Wish::Partition),
];

/// Variables of a container's environment.
pub(super) const VARIABLES: [(&str, System, Wish); 9] = [
    ("GPU_CORE_UTILIZATION_POLICY", System::Hami, Wish::HamiComputePolicy),
    ("CUDA_OVERSUBSCRIBE", System::Hami, Wish::Lost(Form::Text, NO_OVERSUBSCRIPTION, ASK_FOR_LESS)),
    (
        "CUDA_DISABLE_CONTROL",
        System::Hami,
        Wish::Lost(Form::Text, "a share is always limited", "ask for a whole card"),
    ),
    (
        "CUDA_TASK_PRIORITY",
        System::Hami,
        Wish::Lost(Form::Text, "the claim's priority decides", "set priority in its ShareConfig"),
    ),
    (
        "ACTIVE_OOM_KILLER",
        System::Hami,
        Wish::Lost(Form::Text, "an allocation beyond the share fails; no process is ended", "remove it"),
    ),
    (
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        System::Nvidia,
        Wish::Lost(Form::Text, "shares take turns on a card", "set capacity cores in the claim"),
    ),
    (
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        System::Nvidia,
        Wish::Lost(Form::Text, "shares take turns on a card", "set capacity memory in the claim"),
    ),
    ("CUDA_MEM_OVERSOLD", System::VgpuManager, Wish::Lost(Form::Text, NO_OVERSUBSCRIPTION, ASK_FOR_LESS)),
    ("CUDA_MEM_RATIO", System::VgpuManager, Wish::Lost(Form::Text, NO_OVERSUBSCRIPTION, ASK_FOR_LESS)),
];

/// Schedulers that place the resources of these systems, of several of them where none is named.
pub(super) const SCHEDULERS: [(&str, Option<System>); 8] = [
    ("hami-scheduler", Some(System::Hami)),
    ("kai-scheduler", Some(System::Kai)),
    ("koord-scheduler", Some(System::Koordinator)),
    ("runai-scheduler", Some(System::Kai)),
    ("tensor-fusion-scheduler", Some(System::TensorFusion)),
    ("vgpu-scheduler", Some(System::VgpuManager)),
    ("volcano", None),
    ("volcano-scheduler", None),
];

// === impl System ===

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hami => "HAMi",
            Self::Nvidia => "NVIDIA device plugin",
            Self::NvidiaDra => "NVIDIA DRA driver",
            Self::MigParted => "mig-parted",
            Self::VgpuManager => "vgpu-manager",
            Self::Volcano => "Volcano",
            Self::Kai => "KAI, Run:ai",
            Self::TensorFusion => "TensorFusion",
            Self::Koordinator => "Koordinator",
            Self::Aliyun => "Aliyun",
            Self::Tencent => "Tencent",
            Self::Gke => "GKE",
            Self::Huawei => "Huawei",
            Self::Other => "other vendors",
        })
    }
}
