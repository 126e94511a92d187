//! What is wrong with the published objects or with what claims hold: data for people, never a reason to stop.

use std::fmt;

use crate::dra::DeviceId;

/// One thing that is wrong in the input; everything it does not touch stays usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputProblem {
    /// Two slices of one name; the later one is left out.
    #[error("slice `{slice}` is given twice; the second one is left out")]
    DuplicateSlice {
        /// Name of the slice.
        slice: String,
    },
    /// Two classes of one name; the later one is left out.
    #[error("device class `{class}` is given twice; the second one is left out")]
    DuplicateClass {
        /// Name of the class.
        class: String,
    },
    /// Two nodes of one name; the later one is left out.
    #[error("node `{node}` is given twice; the second one is left out")]
    DuplicateNode {
        /// Name of the node.
        node: String,
    },
    /// A slice with both devices and counter sets: its devices cannot be allocated.
    #[error(
        "slice `{slice}` has both devices and sharedCounters; its devices are not used. Publish the counter sets in a slice of their own"
    )]
    MixedSlice {
        /// Name of the slice.
        slice: String,
    },
    /// A pool that cannot be used as it is.
    #[error("pool {driver}/{pool}: {fault}")]
    Pool {
        /// Driver of the pool.
        driver: String,
        /// Name of the pool.
        pool: String,
        /// What is wrong.
        fault: PoolFault,
    },
    /// A class selector that does not compile: every claim that reaches a device with it fails.
    #[error("device class `{class}`, selector {index}: {message}")]
    Selector {
        /// Name of the class.
        class: String,
        /// Which of its selectors, from 0.
        index: usize,
        /// What the compiler says.
        message: String,
    },
    /// A claim holds an unpublished device; its counters cannot be charged.
    #[error("claim {claim} holds {device}, which no slice publishes")]
    UnknownDevice {
        /// The claim, as namespace/name.
        claim: String,
        /// The device it holds.
        device: DeviceId,
    },
}

/// Why a pool, or its use from one node, is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolFault {
    /// Not all slices of the generation are there.
    Incomplete {
        /// The generation.
        generation: i64,
        /// Slices seen.
        seen: usize,
        /// Slices announced.
        announced: i64,
    },
    /// Two devices of one name.
    DuplicateDevice {
        /// The name.
        device: String,
    },
    /// Two counter sets of one name.
    DuplicateCounterSet {
        /// The name.
        set: String,
    },
    /// A device draws on a set that the pool does not have.
    UnknownCounterSet {
        /// The device.
        device: String,
        /// The set it names.
        set: String,
    },
    /// A device draws on a counter that its set does not have.
    UnknownCounter {
        /// The device.
        device: String,
        /// The set it names.
        set: String,
        /// The counter it names.
        counter: String,
    },
}

// === impl InputProblem ===

impl InputProblem {
    pub(super) fn pool(driver: &str, pool: &str, fault: PoolFault) -> Self {
        Self::Pool { driver: driver.to_owned(), pool: pool.to_owned(), fault }
    }
}

// === impl PoolFault ===

impl PoolFault {
    /// The fault of naming a counter that is not among `known` (set, counter) pairs.
    pub(super) fn unknown_counter<'a, 'b: 'a>(
        device: &str,
        set: &str,
        counter: &str,
        mut known: impl Iterator<Item = &'a (&'b str, &'b str)>,
    ) -> Self {
        let (device, set_text) = (device.to_owned(), set.to_owned());
        if known.any(|(name, _)| *name == set) {
            Self::UnknownCounter { device, set: set_text, counter: counter.to_owned() }
        } else {
            Self::UnknownCounterSet { device, set: set_text }
        }
    }
}

impl fmt::Display for PoolFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incomplete { generation, seen, announced } => write!(
                f,
                "generation {generation} announces {announced} slices, {seen} are there; its driver is still publishing"
            ),
            Self::DuplicateDevice { device } => write!(f, "two devices are called `{device}`"),
            Self::DuplicateCounterSet { set } => write!(f, "two counter sets are called `{set}`"),
            Self::UnknownCounterSet { device, set } => {
                write!(f, "device `{device}` draws on counter set `{set}`, which the pool does not have")
            }
            Self::UnknownCounter { device, set, counter } => {
                write!(f, "device `{device}` draws on counter `{counter}`, which set `{set}` does not have")
            }
        }
    }
}
