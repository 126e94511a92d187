//! Real NVIDIA cards, as their driver's management library tells of them.
//!
//! ```text
//!   libnvidia-ml.so.1 ──ffi──▶ facts ──probe + catalogue──▶ cards ─┐
//!                       │      MIG mode ──partition──▶ what of it  ├──▶ NvidiaNode: DeviceBackend
//!                       └────▶ faults ──health──▶ what to do ──────┘
//! ```
//!
//! A backend like every vendor's, with the same five files. It changes nothing on a card: no mode is switched, no instance
//! made or destroyed; shares are held by the shim in the tenants' processes.
//!
//! - The library is asked anew at each call; a card that does not answer is named with the reason, and the others are told.
//! - A card whose MIG mode is on, or that does not say, takes nobody.
//! - Cards that the catalogue does not have are cards all the same: models are made up of what was read.

#![forbid(unsafe_code)]

mod ffi;
mod health;
mod partition;
mod probe;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use aliquot_core::card::Inventory;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::id::{CardUuid, Vendor};
use aliquot_core::partition::Part;
use aliquot_core::ports::{
    BackendError, DeviceAccess, DeviceBackend, DeviceNode, Expected, LivePartition, PartitionAt,
};
use aliquot_core::units::Bytes;

pub use ffi::Fault;
pub use health::{DRIVER_MIN, OpenError};
pub use partition::MigMode;

use ffi::Library;
use probe::Found;

/// Device files that every tenant needs, beside the card's own.
const COMMON_NODES: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];

/// The NVIDIA cards of this machine.
#[derive(Debug)]
pub struct NvidiaNode {
    library: Library,
    driver: String,
    catalogue: Catalogue,
    trouble: Vec<String>,
    /// Why no card gives partitions, a card each.
    no_partitions: Vec<String>,
}

/// What a card and the processes on it hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Memory that can be had.
    pub memory: Bytes,
    /// In use by anybody.
    pub in_use: Bytes,
    /// Percent of the driver's last sampling period in which it worked; `None`: the driver does not say.
    pub busy_percent: Option<u32>,
    /// Processes by number, with what they hold where the driver says.
    pub processes: Vec<(u32, Option<Bytes>)>,
}

/// What processes had of a card's time, when they were sampled last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// Number and percent; processes that are not listed had none.
    pub processes: Vec<(u32, u32)>,
    /// The driver's time of the newest sample, in microseconds; 0: there is none.
    pub newest_micros: u64,
}

// === impl NvidiaNode ===

impl NvidiaNode {
    /// Loads the driver's library and looks for cards.
    ///
    /// # Errors
    /// There is no driver, it is too old or damaged, or it has no card for us.
    pub fn open(catalogue: &Catalogue) -> Result<Self, OpenError> {
        let library = Library::load().map_err(|fault| OpenError::of("initialise", fault))?;
        let driver = library.driver().map_err(|fault| OpenError::of("version of the driver", fault))?;
        let major = driver.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_none_or(|major| major < DRIVER_MIN) {
            return Err(OpenError::TooOld { found: driver });
        }
        let mut node = Self {
            library,
            driver,
            catalogue: catalogue.clone(),
            trouble: Vec::new(),
            no_partitions: Vec::new(),
        };
        let found = node.look().map_err(|fault| OpenError::of("number of cards", fault))?;
        let Found { cards, models, facts, trouble } = found;
        if cards.is_empty() {
            return Err(OpenError::NoCards { trouble });
        }
        let why = |facts: &ffi::Facts| {
            let mode =
                facts.mig.as_ref().map_or("it does not tell its MIG mode", |mode| mode.no_partitions());
            format!("card {} ({}): {mode}", facts.index, facts.name)
        };
        node.no_partitions = facts.iter().map(why).collect();
        node.catalogue = node.catalogue.with_models(models);
        node.trouble = trouble;
        Ok(node)
    }

    fn look(&self) -> Result<Found, Fault> {
        let mut found = Found::default();
        for index in 0..self.library.count()? {
            match self.library.facts(index) {
                // It is missing of every card alike.
                Err(fault @ Fault::NoFunction(_)) => return Err(fault),
                facts => found.add(index, facts, &self.driver, &self.catalogue),
            }
        }
        Ok(found)
    }

    /// Whose cards these are.
    #[must_use]
    pub fn vendor() -> Vendor {
        probe::vendor()
    }

    /// Version of the driver.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// The catalogue as it is here: models of these cards have no partitions, and cards that it does not list have one.
    #[must_use]
    pub const fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// What is wrong with cards that are left out, as it was found first.
    #[must_use]
    pub fn trouble(&self) -> &[String] {
        &self.trouble
    }

    /// Why no card gives partitions, a card each.
    #[must_use]
    pub fn no_partitions(&self) -> &[String] {
        &self.no_partitions
    }

    /// The cards as they are now, and what is wrong with those that are left out.
    ///
    /// # Errors
    /// The library does not answer.
    pub fn cards(&self) -> Result<(Inventory, Vec<String>), BackendError> {
        let found = self.look().map_err(|fault| health::error("discover NVIDIA cards".to_owned(), fault))?;
        Ok((Inventory { cards: found.cards }, found.trouble))
    }

    /// Who holds what on a card, and how much it works.
    ///
    /// # Errors
    /// The card does not answer.
    pub fn usage(&self, card: &CardUuid) -> Result<Usage, BackendError> {
        let failed = |fault| health::error(format!("usage of card {card}"), fault);
        let held = self.library.held(card.as_str()).map_err(failed)?;
        let processes = held.processes.into_iter().map(|(pid, bytes)| (pid, bytes.map(Bytes)));
        let busy_percent = match self.library.busy(card.as_str()) {
            Err(fault) if fault.is_unsupported() => None,
            busy => Some(busy.map_err(failed)?),
        };
        Ok(Usage {
            memory: Bytes(held.total),
            in_use: Bytes(held.in_use),
            busy_percent,
            processes: processes.collect(),
        })
    }

    /// What processes had of a card's time, as far as the driver sampled it after a time of its own; `None`: it does not
    /// say such things of this card.
    ///
    /// # Errors
    /// The card does not answer.
    pub fn samples(&self, card: &CardUuid, since_micros: u64) -> Result<Option<Samples>, BackendError> {
        let sampled = match self.library.sampled(card.as_str(), since_micros) {
            Err(fault) if fault.is_unsupported() => return Ok(None),
            sampled => sampled.map_err(|fault| health::error(format!("processes of card {card}"), fault))?,
        };
        let newest_micros = sampled.iter().map(|sample| sample.micros).max().unwrap_or(0);
        let processes = sampled.iter().map(|sample| (sample.pid, sample.percent)).collect();
        Ok(Some(Samples { processes, newest_micros }))
    }
}

impl DeviceBackend for NvidiaNode {
    fn discover(&self) -> Result<Inventory, BackendError> {
        Ok(self.cards()?.0)
    }

    fn partitions(&self) -> Result<Vec<LivePartition>, BackendError> {
        Ok(Vec::new())
    }

    fn create_partition(&self, at: &PartitionAt) -> Result<LivePartition, BackendError> {
        Err(BackendError::UnknownPlace { at: at.clone() })
    }

    fn destroy_partition(&self, at: &PartitionAt, _: &Expected) -> Result<(), BackendError> {
        Err(BackendError::Absent { at: at.clone() })
    }

    fn access(&self, card: &CardUuid, part: &Part) -> Result<DeviceAccess, BackendError> {
        if let Some(at) = PartitionAt::of(card, part) {
            return Err(BackendError::Absent { at });
        }
        let found = self.look().map_err(|fault| health::error(format!("find card {card}"), fault))?;
        let facts = found.facts.iter().find(|facts| facts.uuid == card.as_str());
        let facts = facts.ok_or_else(|| BackendError::UnknownCard(card.clone()))?;
        let own = facts.minor.map(|minor| format!("/dev/nvidia{minor}"));
        let nodes = own.into_iter().chain(COMMON_NODES.map(str::to_owned)).filter_map(device_node).collect();
        Ok(DeviceAccess { visible_uuid: card.clone(), nodes })
    }
}

/// A device file, if it is there: which ones are depends on the parts of the driver that are loaded.
fn device_node(path: String) -> Option<DeviceNode> {
    let found = fs::metadata(&path).ok().filter(|found| found.file_type().is_char_device())?;
    // As the C library takes the number apart.
    let number = found.rdev();
    let part = |high: u64, low: u64| u32::try_from(high | low).ok();
    let major = part((number >> 32) & 0xffff_f000, (number >> 8) & 0xfff)?;
    let minor = part((number >> 12) & 0xffff_ff00, number & 0xff)?;
    Some(DeviceNode { host: path.clone(), container: path, major, minor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_files_are_told_with_their_numbers_and_nothing_else_is_one() {
        let null = device_node("/dev/null".to_owned()).unwrap();
        assert_eq!((null.major, null.minor, null.host.as_str()), (1, 3, "/dev/null"));
        assert_eq!(device_node("/dev".to_owned()), None);
        assert_eq!(device_node("/dev/no-such-card".to_owned()), None);
    }
}
