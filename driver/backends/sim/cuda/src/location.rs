//! Where memory is, in the vendor's words (`CUmemLocation`).

use crate::code::{Answer, INVALID_DEVICE, INVALID_VALUE};
use crate::process;

/// A place.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    /// Its number among those of the kind; of a locality domain its card in the first byte, its own in the second.
    pub(crate) number: i32,
}

/// What there is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemoryLocation {
    /// A card.
    Card(usize),
    /// The host.
    Host,
}

/// CU_MEM_LOCATION_TYPE
pub(crate) const NONE: u32 = 0;
pub(crate) const CARD: u32 = 1;
pub(crate) const HOST: u32 = 2;
pub(crate) const NUMA: u32 = 3;
const NUMA_CURRENT: u32 = 4;
pub(crate) const DOMAIN: u32 = 6;

impl Location {
    /// A card's.
    pub(crate) fn of_card(device: usize) -> Answer<Self> {
        Ok(Self { kind: CARD, number: i32::try_from(device).map_err(|_| INVALID_DEVICE)? })
    }

    /// What is there: an error for what no header names, and for none.
    pub(crate) fn find(self) -> Answer<MemoryLocation> {
        let card = |number: i32| {
            process::card(number)?;
            usize::try_from(number).map(MemoryLocation::Card).map_err(|_| INVALID_DEVICE)
        };
        let [first, second, ..] = self.number.to_le_bytes();
        match self.kind {
            CARD => card(self.number),
            HOST..=NUMA_CURRENT => Ok(MemoryLocation::Host),
            // Each card is one domain.
            DOMAIN if process::driver_version() >= 13_040 && second == 0 => card(i32::from(first)),
            _ => Err(INVALID_VALUE),
        }
    }

    /// The card that is there.
    pub(crate) fn card(self) -> Answer<usize> {
        match self.find()? {
            MemoryLocation::Card(device) => Ok(device),
            MemoryLocation::Host => Err(INVALID_VALUE),
        }
    }
}
