//! Versions and bounds of the journal.

/// Version that this code writes.
pub const VERSION: u32 = 1;
/// Lowest version with readers that understand what this code writes.
pub const MIN_READER: u32 = 1;
/// Longest line, in bytes: a claim of 32 devices takes less than 16 KiB.
pub const RECORD_BYTES_MAX: usize = 64 << 10;
/// Most claims: eight cards with seven partitions and ten shares each are 560.
pub const CLAIMS_MAX: usize = 4096;
/// Longest file, in bytes; checked before anything is read.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
