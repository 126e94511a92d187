//! Refusals of the ledger, in words that name the holder in the way.

use std::fmt;

use super::holding::Holding;
use crate::id::{CardUuid, ClaimUid, CounterName};
use crate::partition::Part;
use crate::units::{Bytes, Cores};

/// The holder of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A claim.
    Claim {
        /// Which.
        claim: ClaimUid,
        /// Request of the claim.
        request: String,
        /// What it holds.
        part: Part,
    },
    /// No claim: the part was found on the card.
    Found {
        /// What was found.
        part: Part,
    },
}

/// Why a holding is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldRefusal {
    /// No such card on this node.
    #[error("card {card} is not on this node; rescan the node or place the claim elsewhere")]
    UnknownCard {
        /// As requested.
        card: CardUuid,
    },
    /// The card cannot be cut like that.
    #[error(
        "card {card} has no part `{part}`, expected the card itself or one of {known}; ask for one of these"
    )]
    UnknownPart {
        /// The card.
        card: CardUuid,
        /// As requested.
        part: Part,
        /// Templates it has.
        known: String,
    },
    /// A counter would run over.
    #[error(transparent)]
    Counter(Box<CounterShortage>),
    /// The memory of the device would run over.
    #[error(
        "card {card}: a share of {asked} memory of {part} is asked, {left} of {total} are left; held by {}; ask for at most what is left, or end one of them",
        HolderList(holders)
    )]
    Memory {
        /// The card.
        card: CardUuid,
        /// The device that is shared.
        part: Part,
        /// As requested.
        asked: Bytes,
        /// What is left.
        left: Bytes,
        /// What the device has.
        total: Bytes,
        /// The holders of the rest.
        holders: Vec<Holder>,
    },
    /// The compute of the device would run over.
    #[error(
        "card {card}: a share of {asked} cores of {part} is asked, {left} of {total} are left; held by {}; ask for at most what is left, or end one of them",
        HolderList(holders)
    )]
    Cores {
        /// The card.
        card: CardUuid,
        /// The device that is shared.
        part: Part,
        /// As requested.
        asked: Cores,
        /// What is left.
        left: Cores,
        /// What the device has.
        total: Cores,
        /// The holders of the rest.
        holders: Vec<Holder>,
    },
    /// All of a part is requested that others hold, or a share of a part that one claim holds alone.
    #[error(
        "card {card}: {part} is held by {}; ask for another part, or end what holds it",
        HolderList(holders)
    )]
    Occupied {
        /// The card.
        card: CardUuid,
        /// As requested.
        part: Part,
        /// The holders.
        holders: Vec<Holder>,
    },
    /// No program reaches the card itself.
    #[error("card {card}: {part} cannot be had, its mode gives partitions alone; ask for a template")]
    PartsOnly {
        /// The card.
        card: CardUuid,
        /// As requested.
        part: Part,
    },
    /// Nothing can hold a share of it to its limit.
    #[error("card {card}: {part} cannot be shared, nothing would enforce the limits; ask for all of it")]
    NotShareable {
        /// The card.
        card: CardUuid,
        /// As requested.
        part: Part,
    },
    /// A slot was requested without its size.
    #[error(
        "card {card}: {part} is asked without memory and cores; take them from the policy that defines the slot"
    )]
    SlotWithoutSize {
        /// The card.
        card: CardUuid,
        /// As requested.
        part: Part,
    },
    /// Chips on one board must be all whole or all split.
    #[error(
        "card {card}: {part} would mix whole and split chips with card {other}, which its board does not allow; ask for the same kind, or end what is held there"
    )]
    SameMode {
        /// The card.
        card: CardUuid,
        /// As requested.
        part: Part,
        /// The chip that is in the other mode.
        other: CardUuid,
    },
    /// Unlike cards on one node must not be split.
    #[error(
        "card {card}: {part} would split a card while the unlike card {other} is in the same server, which the vendor does not allow; ask for a whole card or remove one kind"
    )]
    MixedServer {
        /// The card.
        card: CardUuid,
        /// As requested.
        part: Part,
        /// The card that differs.
        other: CardUuid,
    },
    /// Something unknown is on the card.
    #[error(
        "card {card}: `{found}` was found on it and is in no table, so the free capacity is unknown; remove it or add it to the catalogue"
    )]
    Unaccountable {
        /// The card.
        card: CardUuid,
        /// What was found.
        found: Part,
    },
    /// The claim holds it already, but another amount.
    #[error("{holder} is held in another way than asked now; release the claim before it is prepared anew")]
    HeldDifferently {
        /// The claim and its part.
        holder: Holder,
    },
}

/// A part that takes more of a counter than is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "card {card}: {part} needs {} of counter {counter}, {} of {} are left; held by {}; ask for another part, or end one of them",
    AmountText(counter, *asked), AmountText(counter, *left), AmountText(counter, *total), HolderList(holders)
)]
pub struct CounterShortage {
    /// The card.
    pub card: CardUuid,
    /// As requested.
    pub part: Part,
    /// The first counter that would run over.
    pub counter: CounterName,
    /// What the part takes of it.
    pub asked: u64,
    /// What is left.
    pub left: u64,
    /// What the card has.
    pub total: u64,
    /// The holders of the rest.
    pub holders: Vec<Holder>,
}

/// What did not add up when the accounts were opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerProblem {
    /// The same card twice.
    #[error("card {card} is in the inventory twice; the second is left out")]
    TwiceInInventory {
        /// The card.
        card: CardUuid,
    },
    /// A part that the card's table does not have.
    #[error(
        "card {card}: `{found}` was found on it and is in no table; the card hands out nothing until it is removed or added to the catalogue"
    )]
    UnknownFound {
        /// The card.
        card: CardUuid,
        /// What was found.
        found: Part,
    },
    /// Parts that cannot exist together.
    #[error(
        "card {card}: with `{found}` found on it, counter {counter} is used {used} of {total}; the table of its model is wrong, correct the catalogue"
    )]
    FoundTooMuch {
        /// The card.
        card: CardUuid,
        /// The part that is too much.
        found: Part,
        /// The counter that runs over.
        counter: CounterName,
        /// What is used with it.
        used: u64,
        /// What the card has.
        total: u64,
    },
}

/// What a recount found wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ledger does not add up: {0}")]
pub struct BrokenInvariant(pub String);

/// An amount of a counter for people; `memory` is in bytes.
pub(super) struct AmountText<'a>(pub(super) &'a CounterName, pub(super) u64);

/// Holders in a row; a long one is cut.
struct HolderList<'a>(&'a [Holder]);

/// Most holders that one message names.
const HOLDERS_NAMED_MAX: usize = 8;

// === impl HoldRefusal ===

impl HoldRefusal {
    /// The claims that hold what is asked; none where a part that was found is in the way, or where no holder is.
    #[must_use]
    pub fn holding_claims(&self) -> Vec<&ClaimUid> {
        let holders = match self {
            Self::Memory { holders, .. } | Self::Cores { holders, .. } | Self::Occupied { holders, .. } => {
                holders
            }
            Self::Counter(shortage) => &shortage.holders,
            _ => return Vec::new(),
        };
        let claims = holders.iter().map(|holder| match holder {
            Holder::Claim { claim, .. } => Some(claim),
            Holder::Found { .. } => None,
        });
        claims.collect::<Option<Vec<_>>>().unwrap_or_default()
    }
}

// === impl Holder ===

impl Holder {
    /// The claim behind a holding.
    pub(super) fn of(holding: &Holding) -> Self {
        let Holding { claim, request, part, .. } = holding;
        Self::Claim { claim: claim.clone(), request: request.clone(), part: part.clone() }
    }

    /// What is held.
    #[must_use]
    pub const fn part(&self) -> &Part {
        match self {
            Self::Claim { part, .. } | Self::Found { part } => part,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim { claim, request, part } => write!(f, "claim {claim} (request {request}, {part})"),
            Self::Found { part } => write!(f, "{part}, found on the card"),
        }
    }
}

impl fmt::Display for HolderList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no claim");
        }
        for (i, holder) in self.0.iter().take(HOLDERS_NAMED_MAX).enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{holder}")?;
        }
        match self.0.len().saturating_sub(HOLDERS_NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl fmt::Display for AmountText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.as_str() == "memory" { write!(f, "{}", Bytes(self.1)) } else { write!(f, "{}", self.1) }
    }
}
