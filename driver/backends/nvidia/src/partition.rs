//! What MIG mode means for a card. Nothing here switches it: a switch resets the card under everybody who is on it, and is
//! its administrator's to make.
//!
//! | mode | shares | partitions |
//! |---|---|---|
//! | the card has none | yes | none |
//! | off | yes | none: they need the mode |
//! | on | none: programs reach instances alone, and what holds shares knows cards | not made in this version |

/// How a card is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigMode {
    /// It has no such mode.
    None,
    /// It could be partitioned, and is not.
    Off,
    /// It consists of MIG instances, of which there may be none.
    On,
}

// === impl MigMode ===

impl MigMode {
    /// Why the card takes nobody; `None`: it does.
    pub(crate) fn trouble(self, index: u32) -> Option<String> {
        match self {
            Self::None | Self::Off => None,
            Self::On => Some(format!(
                "MIG mode: found on, expected off: this version gives no parts of real cards in MIG mode. Once nobody \
                 uses it, its administrator may switch it: nvidia-smi -i {index} -mig 0"
            )),
        }
    }

    /// Why there are no partitions, in words behind a card's name.
    pub(crate) const fn no_partitions(self) -> &'static str {
        match self {
            Self::None => "has no MIG",
            Self::Off => "its MIG mode is off, and nothing here switches it",
            Self::On => "its MIG mode is on, and this version makes no partitions on real cards",
        }
    }
}
