//! Refusals: what a refused call wanted, and what was in its way.
//!
//! The usage file keeps the last [`REFUSAL_COUNT`](crate::layout::usage::REFUSAL_COUNT) of them. A tenant writes them: a reader
//! shows them and decides nothing by them.

/// What a refused call would have taken memory for. The numbers are in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RefusedKind {
    /// Memory with an address, pitched and managed memory.
    Memory = 1,
    /// An array.
    Array = 2,
    /// A physical allocation of the virtual memory functions.
    Physical = 3,
    /// An allocation from a memory pool.
    Pool = 4,
    /// An executable graph that allocates.
    Graph = 5,
    /// A context.
    Context = 6,
    /// The stacks of a context's threads.
    Stack = 7,
    /// The variables of a module.
    Module = 8,
    /// Memory that processes share by a handle or a descriptor.
    Ipc = 9,
    /// Memory that was allocated by another interface, such as Vulkan.
    External = 10,
}

/// What was in its way. The numbers are in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RefusalCause {
    /// It does not fit beside what is reserved and the residue.
    Limit = 1,
    /// It fits, and a table of the process or of the usage file has no place to account for it.
    Table = 2,
    /// It is exported in a form of which nothing shows the holders.
    Untraceable = 3,
}

/// A refused call, as the shim's code tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedCall {
    /// What it would have taken memory for.
    pub kind: RefusedKind,
    /// What was in its way.
    pub cause: RefusalCause,
    /// Bytes that it would have taken; 0: not known.
    pub wanted_bytes: u64,
}

/// A refused call, and the accounting at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The call.
    pub call: RefusedCall,
    /// Monotonic nanoseconds of the refusal; never 0.
    pub at_nanos: u64,
    /// Bytes that all processes of the grant had reserved.
    pub reserved_bytes: u64,
    /// Bytes of the residue.
    pub residue_bytes: u64,
    /// The limit in bytes; `u64::MAX`: none.
    pub limit_bytes: u64,
    /// The process, in its own pid namespace.
    pub pid: u32,
}

impl RefusedKind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Memory,
        Self::Array,
        Self::Physical,
        Self::Pool,
        Self::Graph,
        Self::Context,
        Self::Stack,
        Self::Module,
        Self::Ipc,
        Self::External,
    ];

    /// A call that wanted so many bytes, which do not fit.
    #[must_use]
    pub const fn over_limit(self, wanted_bytes: u64) -> RefusedCall {
        RefusedCall { kind: self, cause: RefusalCause::Limit, wanted_bytes }
    }

    /// A call that could not be accounted for.
    #[must_use]
    pub const fn without_place(self) -> RefusedCall {
        RefusedCall { kind: self, cause: RefusalCause::Table, wanted_bytes: 0 }
    }

    /// An export that nothing would trace.
    #[must_use]
    pub const fn untraceable(self) -> RefusedCall {
        RefusedCall { kind: self, cause: RefusalCause::Untraceable, wanted_bytes: 0 }
    }

    /// Its name for people and programs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Array => "array",
            Self::Physical => "physical",
            Self::Pool => "pool",
            Self::Graph => "graph",
            Self::Context => "context",
            Self::Stack => "stack",
            Self::Module => "module",
            Self::Ipc => "ipc",
            Self::External => "external",
        }
    }

    pub(crate) fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

impl RefusalCause {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Limit, Self::Table, Self::Untraceable];

    /// Its name for programs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Table => "table",
            Self::Untraceable => "untraceable",
        }
    }

    pub(crate) fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| *cause as u32 == number)
    }
}
