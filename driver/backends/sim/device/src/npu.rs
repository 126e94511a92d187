//! Simulated Ascend NPUs of one machine: chips, the vNPUs on them, their health and the faults planned for them.
//!
//! ```text
//!   <dir>/npus.toml          the machine: driver, settings, one [[chip]] a chip; templates come from the catalogue
//!   <dir>/npus-state.toml    vNPUs, health, calls; replaced by rename under npus.lock
//!   <dir>/npu-faults.toml    planned faults (absent: none)
//!   <dir>/etc/vnpu.cfg       recovery lines, as the vendor's driver writes them
//!   <dir>/dev/               device nodes, each a link to /dev/null
//!   <dir>/sys/               PCI devices, as the kernel shows them
//! ```
//!
//! The directory is shaped like a file-system root, so that the same paths below `/` serve real hardware. The rules of
//! creation follow the vendor's open driver: chip counters, four vNPU groups on the 310P, at most 16 vNPUs a chip.

mod fault;
mod recovery;
mod store;
mod template;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use fault::{NpuAction, NpuFault};
pub use store::{ChipHealth, FaultEvent, NpuState, Vnpu};
pub use template::{Amounts, NpuTemplate, TemplateTable, knows_model};

/// File that describes the machine.
pub const MACHINE_FILE: &str = "npus.toml";
/// Most vNPUs of one chip.
pub const VNPUS_MAX: u32 = 16;
/// First vNPU id of the first chip.
const ID_FIRST: u32 = 100;
/// vNPU groups of a chip that has them.
pub const GROUPS: u32 = 4;
/// Device nodes that every tenant needs beside its NPU.
const SHARED_NODES: [&str; 3] = ["davinci_manager", "devmm_svm", "hisi_hdc"];

/// A machine with NPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// Version of the driver.
    pub driver: String,
    /// Version of the library.
    pub library: String,
    /// Which users may change vNPUs.
    pub access: Access,
    /// What vNPUs are for.
    pub mode: VnpuMode,
    /// Whether vNPUs come back at boot.
    pub recover: Recover,
    /// The chips, by physical id.
    #[serde(rename = "chip")]
    pub chips: Vec<Chip>,
}

/// One chip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chip {
    /// Model in the catalogue, such as `huawei-310p-24gb`.
    pub model: String,
    /// Product as the library reports it; empty: the library does not support the question.
    #[serde(default)]
    pub product: String,
    /// Chip name, such as `310P3`.
    pub chip: String,
    /// Card number.
    pub card: u32,
    /// Number of the chip on its card.
    #[serde(default)]
    pub device: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Board number.
    #[serde(default)]
    pub board_id: u32,
    /// PCI address.
    pub pci: String,
    /// PCIe root; absent: the kernel shows the chip nowhere.
    #[serde(default)]
    pub pcie_root: Option<String>,
    /// NUMA node; absent: the machine has none.
    #[serde(default)]
    pub numa: Option<u32>,
    /// HCCS group; absent: PCIe alone.
    #[serde(default)]
    pub hccs: Option<String>,
    /// The die's five words.
    pub die: [u32; 5],
}

/// Which users may change vNPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Root.
    Root,
    /// Every user.
    #[default]
    Anybody,
}

/// What vNPUs are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VnpuMode {
    /// Containers.
    #[default]
    Docker,
    /// Virtual machines.
    Vm,
}

/// Whether vNPUs come back at boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recover {
    /// They do, from `/etc/vnpu.cfg`.
    Enabled,
    /// They do not.
    #[default]
    Disabled,
}

/// A request for a vNPU; absent numbers are chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnpuRequest {
    /// Template.
    pub template: String,
    /// vNPU id.
    pub id: Option<u32>,
    /// vNPU group.
    pub group: Option<u32>,
}

/// Why the hardware refuses.
#[derive(Debug, thiserror::Error)]
pub enum NpuError {
    /// The request cannot be.
    #[error("bad parameter")]
    BadParameter,
    /// The user, or the machine's mode, does not allow it.
    #[error("operation not permitted")]
    NotPermitted,
    /// Too little of the chip is left, or the chip is in use.
    #[error("resource occupied")]
    Occupied,
    /// No such chip or vNPU.
    #[error("no such device")]
    NoDevice,
    /// The recovery line cannot be written.
    #[error("recovery configuration cannot be written")]
    Recovery,
    /// A file of the directory cannot be used.
    #[error("cannot use {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Simulated NPUs, opened.
#[derive(Debug)]
pub struct Npus {
    dir: PathBuf,
    machine: Machine,
    tables: Vec<TemplateTable>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            driver: "25.2.0".to_owned(),
            library: "25.2.0".to_owned(),
            access: Access::default(),
            mode: VnpuMode::default(),
            recover: Recover::default(),
            chips: Vec::new(),
        }
    }
}

/// Writes the machine and its device nodes below `dir`; what vNPUs there are stays.
///
/// # Errors
/// [`NpuError::File`] if the disk refuses.
pub fn install_npus(dir: &Path, machine: &Machine) -> Result<(), NpuError> {
    let path = dir.join(MACHINE_FILE);
    let text = toml::to_string(machine).map_err(|error| store::file(&path, io::Error::other(error)))?;
    for place in ["dev", "etc"] {
        let place = dir.join(place);
        fs::create_dir_all(&place).map_err(|error| store::file(&place, error))?;
    }
    let of_chips = (0..machine.chips.len()).map(|phy| format!("davinci{phy}"));
    for name in of_chips.chain(SHARED_NODES.map(str::to_owned)) {
        add_node(dir, &name)?;
    }
    machine.chips.iter().try_for_each(|chip| show_pci(dir, chip))?;
    store::replace(&path, &text)
}

/// Shows a chip where the kernel shows PCI devices.
fn show_pci(dir: &Path, chip: &Chip) -> Result<(), NpuError> {
    let Some(root) = &chip.pcie_root else { return Ok(()) };
    let (device, bus) = (dir.join("sys/devices").join(root).join(&chip.pci), dir.join("sys/bus/pci/devices"));
    for place in [&device, &bus] {
        fs::create_dir_all(place).map_err(|error| store::file(place, error))?;
    }
    let node = chip.numa.map_or("-1".to_owned(), |node| node.to_string());
    let (file, link) = (device.join("numa_node"), bus.join(&chip.pci));
    let facts = [
        (file, node),
        (device.join("vendor"), "0x19e5".to_owned()),
        (device.join("class"), "0x120000".to_owned()),
    ];
    for (file, fact) in facts {
        fs::write(&file, fact + "\n").map_err(|error| store::file(&file, error))?;
    }
    match std::os::unix::fs::symlink(format!("../../../devices/{root}/{}", chip.pci), &link) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(store::file(&link, error)),
        _ => Ok(()),
    }
}

fn add_node(dir: &Path, name: &str) -> Result<(), NpuError> {
    let path = dir.join("dev").join(name);
    match std::os::unix::fs::symlink("/dev/null", &path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(store::file(&path, error)),
        _ => Ok(()),
    }
}

// === impl Npus ===

impl Npus {
    /// Opens the machine of `dir`.
    ///
    /// # Errors
    /// [`NpuError::File`] if the description cannot be used or names a model that the catalogue does not have.
    pub fn open(dir: &Path) -> Result<Self, NpuError> {
        let path = dir.join(MACHINE_FILE);
        let text = fs::read_to_string(&path).map_err(|error| store::file(&path, error))?;
        let bad = |error: String| store::file(&path, io::Error::other(error));
        let machine: Machine = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
        let table = |chip: &Chip| {
            let found = template::table(&chip.model, &machine.driver);
            found.ok_or_else(|| bad(format!("model: found {}, expected one of the catalogue", chip.model)))
        };
        let tables = machine.chips.iter().map(table).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { dir: dir.to_owned(), machine, tables })
    }

    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A chip by physical id.
    ///
    /// # Errors
    /// [`NpuError::NoDevice`].
    pub fn chip(&self, phy: usize) -> Result<(&Chip, &TemplateTable), NpuError> {
        self.machine.chips.get(phy).zip(self.tables.get(phy)).ok_or(NpuError::NoDevice)
    }

    /// Physical id of a chip by card and number on it.
    ///
    /// # Errors
    /// [`NpuError::NoDevice`].
    pub fn phy(&self, card: u32, device: u32) -> Result<usize, NpuError> {
        let is = |chip: &Chip| chip.card == card && chip.device == device;
        self.machine.chips.iter().position(is).ok_or(NpuError::NoDevice)
    }

    /// The state as it is now.
    ///
    /// # Errors
    /// [`NpuError::File`].
    pub fn state(&self) -> Result<NpuState, NpuError> {
        store::read(&self.dir)
    }

    /// Changes the state, alone.
    ///
    /// # Errors
    /// [`NpuError::File`], or what `change` answers; the state is kept either way.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut NpuState) -> Result<T, NpuError>,
    ) -> Result<T, NpuError> {
        store::change(&self.dir, change)
    }

    /// The planned faults that hit this call of `symbol`, which is counted over all processes.
    ///
    /// # Errors
    /// [`NpuError::File`].
    pub fn strike(&self, symbol: &str) -> Result<Vec<NpuAction>, NpuError> {
        let faults = fault::read(&self.dir)?;
        if faults.iter().all(|fault| fault.symbol != symbol) {
            return Ok(Vec::new());
        }
        let count = self.change(|state| Ok(state.count(symbol)))?;
        let hit = faults.into_iter().filter(|fault| fault.hits(symbol, count));
        Ok(hit.map(|fault| fault.action).collect())
    }

    /// Creates a vNPU.
    ///
    /// # Errors
    /// As the vendor's driver refuses.
    pub fn create(&self, phy: usize, request: &VnpuRequest) -> Result<Vnpu, NpuError> {
        let (chip, table) = self.chip(phy)?;
        self.permit()?;
        let template = table.template(&request.template).ok_or(NpuError::BadParameter)?;
        let wanted = |state: &NpuState| {
            let there: Vec<&Vnpu> = state.on(phy).collect();
            if state.whole.contains(&phy) || !table.fits(&there, template) {
                return Err(NpuError::Occupied);
            }
            let group = table.group(&there, template, request.group)?;
            let id = free_id(phy, &there, request.id)?;
            Ok(Vnpu { phy, id, template: template.name.clone(), group, used: false, container: 0 })
        };
        self.change(|state| {
            let made = wanted(state)?;
            if self.machine.recover == Recover::Enabled {
                let path = self.dir.join("etc/vnpu.cfg");
                if state.recovery_fails {
                    return Err(NpuError::Recovery);
                }
                recovery::add(&path, &recovery::line(chip, &made))?;
            }
            add_node(&self.dir, &format!("vdavinci{}", made.id))?;
            state.vnpus.push(made.clone());
            Ok(made)
        })
    }

    /// Destroys one vNPU of a chip, or all of them.
    ///
    /// # Errors
    /// As the vendor's driver refuses.
    pub fn destroy(&self, phy: usize, id: Option<u32>) -> Result<(), NpuError> {
        self.chip(phy)?;
        self.permit()?;
        self.change(|state| {
            let goes = |vnpu: &&Vnpu| vnpu.phy == phy && id.is_none_or(|id| vnpu.id == id);
            let going: Vec<Vnpu> = state.vnpus.iter().filter(goes).cloned().collect();
            if going.is_empty() && id.is_some() {
                return Err(NpuError::NoDevice);
            }
            if going.iter().any(|vnpu| vnpu.used) {
                return Err(NpuError::Occupied);
            }
            for vnpu in &going {
                recovery::remove(&self.dir.join("etc/vnpu.cfg"), vnpu)?;
                drop(fs::remove_file(self.dir.join(format!("dev/vdavinci{}", vnpu.id))));
            }
            state.vnpus.retain(|vnpu| !going.contains(vnpu));
            Ok(())
        })
    }

    /// Sets the health of a chip, and reports the change as a fault event.
    ///
    /// # Errors
    /// [`NpuError::File`].
    pub fn set_health(&self, phy: usize, ailment: &ChipHealth) -> Result<(), NpuError> {
        self.chip(phy)?;
        self.change(|state| {
            state.report(phy, ailment);
            Ok(())
        })
    }

    fn permit(&self) -> Result<(), NpuError> {
        let root = crate::mapping::effective_user() == 0;
        match (self.machine.mode, self.machine.access) {
            (VnpuMode::Vm, _) => Err(NpuError::NotPermitted),
            (VnpuMode::Docker, Access::Root) if !root => Err(NpuError::NotPermitted),
            (VnpuMode::Docker, Access::Root | Access::Anybody) => Ok(()),
        }
    }
}

/// First vNPU id of a chip.
#[must_use]
pub fn first_id(phy: usize) -> u32 {
    u32::try_from(phy).unwrap_or(u32::MAX).saturating_mul(VNPUS_MAX).saturating_add(ID_FIRST)
}

/// The requested id, or the lowest free one.
fn free_id(phy: usize, there: &[&Vnpu], asked: Option<u32>) -> Result<u32, NpuError> {
    let ids = first_id(phy)..first_id(phy).saturating_add(VNPUS_MAX);
    let is_free = |id: u32| there.iter().all(|vnpu| vnpu.id != id);
    match asked {
        Some(id) if !ids.contains(&id) => Err(NpuError::BadParameter),
        Some(id) => is_free(id).then_some(id).ok_or(NpuError::Occupied),
        None => ids.into_iter().find(|id| is_free(*id)).ok_or(NpuError::Occupied),
    }
}

#[cfg(test)]
mod tests;
