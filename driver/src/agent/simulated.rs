//! Simulated cards for containers: their driver libraries, the cards themselves, and which of them a container has.
//!
//! ```text
//!  host                                        container
//!  <state>/lib/<version>/libcuda.so.1       ─▶ as the vendor's, read-only
//!  <state>/lib/<version>/libnvidia-ml.so.1  ─▶ as the vendor's, read-only
//!  <state>/cards                            ─▶ /run/aliquot/cards                     shared memory of the simulation
//!  /dev/null                                ─▶ /dev/nvidia<index>                     which cards the container has
//! ```
//!
//! A partition has a directory of cards of its own, at the same path of the container: a container has one partition or
//! whole cards, as CUDA programs have.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use aliquot_cdi::edits::SIMULATED_CARDS_AT;
use aliquot_core::card::{Card, Inventory};
use aliquot_core::health::Meaning;
use aliquot_core::id::CardUuid;
use aliquot_core::partition::Part;
use aliquot_core::ports::{
    AccessMount, BackendError, CardEvents, CardUsage, DeviceAccess, DeviceBackend, ExpectedPartition,
    LivePartition, MountContent, PartitionAt, Samples,
};
use aliquot_core::units::Bytes;
use aliquot_sim_device::{CONTENTS, DEVICES_ENV, DIR_ENV};

use nix::libc;
use parking_lot::Mutex;

use crate::hardware::simulated_cards::PARTITION;
use crate::hardware::vendors::{self, cuda_container};
use crate::run::simulated::directory_for;
use crate::state_dir::file::make_dirs;

/// Driver libraries that the simulation has.
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// A simulated node with cards that containers can use.
pub struct ContainerCards {
    inner: Box<dyn DeviceBackend>,
    state: PathBuf,
    libraries: PathBuf,
    /// Directories that are ready. Opening one maps its cards for as long as this process lives.
    ready: Mutex<BTreeSet<PathBuf>>,
}

// === impl ContainerCards ===

impl ContainerCards {
    /// The cards of `inner`, for containers. Driver libraries are installed below the state directory.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn new(inner: Box<dyn DeviceBackend>, state: &Path) -> io::Result<Self> {
        let state = state.canonicalize()?;
        let libraries = aliquot_libraries::install_simulated(&state.join("lib"))?.canonicalize()?;
        Ok(Self { inner, state, libraries, ready: Mutex::default() })
    }

    /// What a container needs beside device files.
    fn equip(&self, card: &CardUuid, part: &Part, access: &mut DeviceAccess) -> Result<(), BackendError> {
        let cards = self.inner.discover()?;
        if cards.card(card).is_none_or(|card| card.vendor != vendors::cuda()) {
            return Ok(());
        }
        let failed = |source: io::Error| BackendError::Unreachable {
            what: format!("simulated card {card}: its directory cannot be made"),
            source: Box::new(source),
        };
        let dir = directory_for(&self.state, card, part, &access.visible_uuid, &cards).map_err(failed)?;
        if !dir.exists() || !self.ready.lock().contains(&dir) {
            open_to_tenants(&dir).map_err(failed)?;
            self.ready.lock().insert(dir.clone());
        }
        if !LIBRARIES.iter().all(|library| self.libraries.join(library).is_file()) {
            aliquot_libraries::install_simulated(&self.state.join("lib")).map_err(failed)?;
        }
        for library in LIBRARIES {
            let host = self.libraries.join(library).display().to_string();
            access.mounts.extend(cuda_container::mounts(&host, library));
        }
        let (name, value) = cuda_container::ENVIRONMENT;
        access.environment.push((name.to_owned(), value.to_owned()));
        access.mounts.push(AccessMount {
            host: dir.display().to_string(),
            container: SIMULATED_CARDS_AT.to_owned(),
            content: MountContent::SimulatedCards,
        });
        access.environment.push((DIR_ENV.to_owned(), SIMULATED_CARDS_AT.to_owned()));
        access.environment.push((DEVICES_ENV.to_owned(), "present".to_owned()));
        Ok(())
    }

    /// Removes the cards of partitions that are gone.
    fn forget_partitions(&self) -> io::Result<()> {
        let live = self.inner.partitions().map_err(io::Error::other)?;
        for entry in fs::read_dir(&self.state)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(uuid) = name.to_str().and_then(|name| name.strip_prefix(PARTITION)) else { continue };
            if !live.iter().any(|live| live.handle.uuid.as_str() == uuid) {
                self.ready.lock().remove(&entry.path());
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

impl DeviceBackend for ContainerCards {
    fn discover(&self) -> Result<Inventory, BackendError> {
        self.inner.discover()
    }

    fn discover_card(&self, card: &CardUuid) -> Result<Card, BackendError> {
        self.inner.discover_card(card)
    }

    fn partitions(&self) -> Result<Vec<LivePartition>, BackendError> {
        self.inner.partitions()
    }

    fn partitions_on(&self, card: &CardUuid) -> Result<Vec<LivePartition>, BackendError> {
        self.inner.partitions_on(card)
    }

    fn create_partition(&self, at: &PartitionAt) -> Result<LivePartition, BackendError> {
        self.inner.create_partition(at)
    }

    fn destroy_partition(&self, at: &PartitionAt, handle: &ExpectedPartition) -> Result<(), BackendError> {
        self.inner.destroy_partition(at, handle)?;
        if let Err(error) = self.forget_partitions() {
            tracing::warn!("cards of destroyed partitions cannot be removed: {error}");
        }
        Ok(())
    }

    fn driver_load(&self) -> Option<String> {
        self.inner.driver_load()
    }

    fn generation(&self) -> Option<u64> {
        self.inner.generation()
    }

    fn trouble(&self) -> Vec<String> {
        self.inner.trouble()
    }

    fn no_partitions(&self) -> Vec<String> {
        self.inner.no_partitions()
    }

    fn usage(&self, visible: &CardUuid) -> Result<CardUsage, BackendError> {
        self.inner.usage(visible)
    }

    fn samples(&self, visible: &CardUuid, since_micros: u64) -> Result<Option<Samples>, BackendError> {
        self.inner.samples(visible, since_micros)
    }

    fn events(&self, card: &CardUuid) -> Result<Box<dyn CardEvents>, BackendError> {
        self.inner.events(card)
    }

    fn context_size(&self, visible: &CardUuid) -> Option<Bytes> {
        self.inner.context_size(visible)
    }

    fn meaning(&self, card: &CardUuid, code: u64) -> Meaning {
        self.inner.meaning(card, code)
    }

    fn variables(&self, card: &CardUuid, part: &Part) -> Result<Vec<(String, String)>, BackendError> {
        self.inner.variables(card, part)
    }

    fn access(&self, card: &CardUuid, part: &Part) -> Result<DeviceAccess, BackendError> {
        let mut access = self.inner.access(card, part)?;
        self.equip(card, part, &mut access)?;
        Ok(access)
    }
}

/// Makes the cards' files, writable for tenants of any user: they are the simulated hardware. What tenants make lies in
/// [`CONTENTS`], where each may remove what a process of another user left; the agent opens nothing there. Tenants write the
/// directory, so no link in it is followed.
fn open_to_tenants(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let is_expected = kind.is_file() || kind.is_dir() && entry.file_name() == CONTENTS;
        if !is_expected {
            let path = entry.path();
            let message =
                format!("{}: found a link or directory, expected a file; remove it", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
    }
    let contents = dir.join(CONTENTS);
    make_dirs(&contents)?;
    fs::set_permissions(&contents, Permissions::from_mode(0o777))?;
    drop(aliquot_sim_device::open(dir).map_err(io::Error::other)?);
    fs::set_permissions(dir, Permissions::from_mode(0o1777))?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name == "alive" || name.starts_with("card-") {
            let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&path)?;
            file.set_permissions(Permissions::from_mode(0o666))?;
        }
    }
    Ok(())
}
