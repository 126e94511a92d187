//! What one claim holds on one card.

use crate::dra::ShareId;
use crate::id::{CardUuid, ClaimUid};
use crate::partition::Part;
use crate::units::{Bytes, Cores};

/// One thing held by one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The claim that holds it.
    pub claim: ClaimUid,
    /// Request of the claim, `request` or `request/subrequest`.
    pub request: String,
    /// Share, where the device is shared.
    pub share: Option<ShareId>,
    /// On which card.
    pub card: CardUuid,
    /// Which part of it.
    pub part: Part,
    /// How much of the part.
    pub take: Take,
}

/// How much of a part is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// All of it, alone.
    Exclusive,
    /// A bounded share beside others; slots are held so too.
    Share {
        /// Memory of the share.
        memory: Bytes,
        /// Compute in percent of the whole card; 0 is best effort and holds none.
        cores: Cores,
    },
    /// Admin access: seen, not held.
    Nothing,
}
