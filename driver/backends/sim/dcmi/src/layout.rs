//! Structures of the vendor's header, LP64. `driver/backends/ascend/src/ffi/layout/measured.rs` compares them
//! with a table that was measured from that header.

/// Kind of chip, its name and version.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ChipInfo {
    pub(crate) kind: [u8; 32],
    pub(crate) name: [u8; 32],
    pub(crate) version: [u8; 32],
    pub(crate) ai_cores: u32,
}

/// The same, with the name of the NPU.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ChipInfoV2 {
    pub(crate) chip: ChipInfo,
    pub(crate) npu_name: [u8; 32],
}

/// Board numbers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BoardInfo {
    pub(crate) board_id: u32,
    pub(crate) pcb_id: u32,
    pub(crate) bom_id: u32,
    pub(crate) slot_id: u32,
}

/// Where the chip is on PCI.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PcieInfo {
    pub(crate) vendor: u32,
    pub(crate) subvendor: u32,
    pub(crate) device_id: u32,
    pub(crate) subdevice: u32,
    pub(crate) domain: i32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    pub(crate) function: u32,
    pub(crate) reserved: [u8; 32],
}

/// High-bandwidth memory, in MiB.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct HbmInfo {
    pub(crate) size: u64,
    pub(crate) frequency: u32,
    pub(crate) used: u64,
    pub(crate) temperature: i32,
    pub(crate) bandwidth: u32,
}

/// Other memory, in MiB.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryInfo {
    pub(crate) size: u64,
    pub(crate) available: u64,
    pub(crate) frequency: u32,
    pub(crate) huge_page: [u64; 3],
    pub(crate) percent: u32,
    pub(crate) reserved: [u8; 60],
}

/// What a vNPU is grouped and scheduled by.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Base {
    pub(crate) token: u64,
    pub(crate) token_max: u64,
    pub(crate) timeout: u64,
    pub(crate) group: u32,
    pub(crate) vip: u8,
    pub(crate) reserved: [u8; 31],
}

/// Compute and memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Computing {
    pub(crate) ai_cores: f32,
    pub(crate) vector_cores: f32,
    pub(crate) queues: [u16; 8],
    pub(crate) memory_mib: u64,
    pub(crate) ids: [u32; 4],
    pub(crate) host_cpus: [u16; 3],
    pub(crate) ai_cpus: u16,
    pub(crate) slot: u16,
    pub(crate) busy_percent: u32,
    pub(crate) memory_total: u64,
    pub(crate) memory_free: u64,
    pub(crate) reserved: [u8; 12],
}

/// Media engines.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Media {
    pub(crate) jpegd: f32,
    pub(crate) jpege: f32,
    pub(crate) vpc: f32,
    pub(crate) vdec: f32,
    pub(crate) pngd: f32,
    pub(crate) venc: f32,
    pub(crate) reserved: [u8; 32],
}

/// A request for a vNPU.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CreateIn {
    pub(crate) id: u32,
    pub(crate) group: u32,
    pub(crate) template: [u8; 32],
    pub(crate) reserved: [u8; 64],
}

/// A vNPU that was created.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CreateOut {
    pub(crate) id: u32,
    pub(crate) pcie_bus: u32,
    pub(crate) pcie_device: u32,
    pub(crate) pcie_function: u32,
    pub(crate) group: u32,
    pub(crate) reserved: [u8; 32],
}

/// One vNPU.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Query {
    pub(crate) id: u32,
    /// What follows is a structure of its own, aligned to its widest field.
    pub(crate) padding: u32,
    pub(crate) name: [u8; 16],
    pub(crate) status: u32,
    pub(crate) used: u32,
    pub(crate) function: u32,
    pub(crate) group: u32,
    pub(crate) container: u64,
    pub(crate) base: Base,
    pub(crate) computing: Computing,
    pub(crate) media: Media,
}

/// All of a chip.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Total {
    pub(crate) count: u32,
    pub(crate) ids: [u32; 32],
    pub(crate) groups: u32,
    pub(crate) group_bits: u32,
    pub(crate) base: Base,
    pub(crate) computing: Computing,
    pub(crate) media: Media,
}

/// What is left of a chip.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Free {
    pub(crate) groups: u32,
    pub(crate) group_bits: u32,
    pub(crate) base: Base,
    pub(crate) computing: Computing,
    pub(crate) media: Media,
}

/// Place in a super-pod.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SuperPod {
    pub(crate) numbers: [u32; 6],
    pub(crate) reserved: [u32; 6],
}

/// Labels of the card.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Label {
    pub(crate) product: [u8; 256],
    pub(crate) model: [u8; 256],
    pub(crate) maker: [u8; 256],
    pub(crate) made: [u8; 256],
    pub(crate) serial: [u8; 256],
}

/// Which fault events are wanted.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EventFilter {
    pub(crate) flags: u64,
    pub(crate) id: u32,
    pub(crate) severity: u8,
    pub(crate) node_type: u8,
    pub(crate) reserved: [u8; 32],
}

/// A fault event.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Event {
    pub(crate) kind: u32,
    /// What follows is a structure of its own, aligned to its widest field.
    pub(crate) padding: u32,
    pub(crate) id: u32,
    pub(crate) device: u16,
    pub(crate) node: [u8; 4],
    pub(crate) severity: u8,
    pub(crate) assertion: u8,
    pub(crate) serial: i32,
    pub(crate) notified: i32,
    pub(crate) raised: u64,
    pub(crate) name: [u8; 256],
    pub(crate) more: [u8; 32],
    pub(crate) reserved: [u8; 32],
}

/// A text in a field, cut where it does not fit, with its final zero.
pub(crate) fn text<const SIZE: usize>(text: &str) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    for (place, byte) in bytes.iter_mut().take(SIZE - 1).zip(text.bytes()) {
        *place = byte;
    }
    bytes
}

/// The text of a field.
pub(crate) fn words(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(field.get(..end).unwrap_or_default()).into_owned()
}
