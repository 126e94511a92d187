//! What a card and its processes held and used, at one moment.

/// What device memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MemoryKind {
    /// cuMemAlloc, cuMemAllocPitch.
    Plain,
    /// cuMemAllocManaged, taken to be resident in full.
    Managed,
    /// cuArrayCreate and its kind.
    Array,
    /// cuMemCreate.
    Physical,
    /// Reserved by memory pools.
    Pool,
    /// Reserved for memory nodes of graphs.
    Graph,
    /// Contexts.
    Context,
    /// Loaded modules.
    Module,
}

impl MemoryKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Plain,
        Self::Managed,
        Self::Array,
        Self::Physical,
        Self::Pool,
        Self::Graph,
        Self::Context,
        Self::Module,
    ];
}

/// A stretch of card time a process had, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// From when.
    pub start: u64,
    /// Till when.
    pub end: u64,
}

/// A process on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number where it runs.
    pub pid: u32,
    /// Bytes it holds.
    pub held_bytes: u64,
    /// The same by [`MemoryKind::ALL`].
    pub held_by_kind: [u64; 8],
    /// The most it ever held, in bytes.
    pub high_water_bytes: u64,
    /// Card time it had, in nanoseconds.
    pub device_nanos: u64,
    /// Percent of the last full utilisation window.
    pub utilization: u32,
}

/// A card at one moment: figures that were read at different times do not fit each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When, in nanoseconds of the monotonic clock; the card has been played up to then.
    pub at: u64,
    /// Bytes in use by live processes.
    pub in_use: u64,
    /// The most bytes ever in use at once.
    pub high_water: u64,
    /// Card time used since the card was made, in nanoseconds.
    pub busy_nanos: u64,
    /// The processes on the card, by seat.
    pub processes: Vec<Process>,
}

// === impl Moment ===

impl Moment {
    /// Card time process `pid` had so far, in nanoseconds; 0 for one that is not on the card.
    #[must_use]
    pub fn device_nanos(&self, pid: u32) -> u64 {
        self.processes.iter().filter(|process| process.pid == pid).map(|process| process.device_nanos).sum()
    }
}
