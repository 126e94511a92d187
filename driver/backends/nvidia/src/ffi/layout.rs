//! What a card in MIG mode can be cut into, and is: plain data.

/// What a GPU instance of some profile has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    /// The vendor's number for it on this card.
    pub(crate) id: u32,
    /// Name without the vendor's `MIG `; `None`: the library is older than the function that returns it.
    pub(crate) name: Option<String>,
    /// Compute slices.
    pub(crate) slices: u32,
    /// Most of them on an empty card.
    pub(crate) instances: u32,
    pub(crate) multiprocessors: u32,
    /// Copy engines, decoders, encoders, JPEG engines, OFA engines.
    pub(crate) engines: [u32; 5],
    pub(crate) memory_mib: u64,
    /// First memory slice, and how many.
    pub(crate) placements: Vec<(u32, u32)>,
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) id: u32,
    pub(crate) profile: u32,
    /// First memory slice.
    pub(crate) start: u32,
    /// How many.
    pub(crate) size: u32,
    /// UUID of its first compute instance; `None`: it has none.
    pub(crate) uuid: Option<String>,
    /// Number of that compute instance.
    pub(crate) compute: u32,
}

/// What a card in MIG mode can be cut into, and is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MigLayout {
    pub(crate) profiles: Vec<Profile>,
    pub(crate) instances: Vec<Instance>,
}
