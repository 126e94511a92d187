//! Structures of the vendor's header, LP64. `driver/backends/ascend/src/ffi/layout/measured.rs` compares them
//! with a table that was measured from that header.

/// Most cards and chips that an answer is believed to have.
pub(crate) const CARDS_MAX: usize = 64;
pub(crate) const CHIPS_MAX: u32 = 16;
/// Most vNPUs of one chip in an answer.
pub(crate) const VNPUS_MAX: usize = 32;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ChipInfo {
    pub(crate) kind: [u8; 32],
    pub(crate) name: [u8; 32],
    pub(crate) version: [u8; 32],
    pub(crate) ai_cores: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ChipInfoV2 {
    pub(crate) chip: ChipInfo,
    pub(crate) npu_name: [u8; 32],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BoardInfo {
    pub(crate) board_id: u32,
    pub(crate) others: [u32; 3],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PcieInfo {
    pub(crate) ids: [u32; 4],
    pub(crate) domain: i32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    pub(crate) function: u32,
    pub(crate) reserved: [u8; 32],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct HbmInfo {
    pub(crate) size: u64,
    pub(crate) frequency: u32,
    pub(crate) used: u64,
    pub(crate) temperature: i32,
    pub(crate) bandwidth: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryInfo {
    pub(crate) size: u64,
    pub(crate) available: u64,
    pub(crate) frequency: u32,
    pub(crate) huge_pages: [u64; 3],
    pub(crate) percent: u32,
    pub(crate) reserved: [u8; 60],
}

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

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CreateIn {
    pub(crate) id: u32,
    pub(crate) group: u32,
    pub(crate) template: [u8; 32],
    pub(crate) reserved: [u8; 64],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CreateOut {
    pub(crate) id: u32,
    pub(crate) pcie: [u32; 3],
    pub(crate) group: u32,
    pub(crate) reserved: [u8; 32],
}

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
    pub(crate) base: [u64; 8],
    pub(crate) computing: Computing,
    pub(crate) media: [u64; 7],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Total {
    pub(crate) count: u32,
    pub(crate) ids: [u32; VNPUS_MAX],
    pub(crate) groups: u32,
    pub(crate) group_bits: u32,
    pub(crate) base: [u64; 8],
    pub(crate) computing: Computing,
    pub(crate) media: [u64; 7],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EventFilter {
    pub(crate) flags: u64,
    pub(crate) id: u32,
    pub(crate) severity: u8,
    pub(crate) node_type: u8,
    pub(crate) reserved: [u8; 32],
}

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

#[cfg(test)]
mod measured;
