//! A machine with Ascend NPUs: the simulated `libdcmi.so` where the vendor's driver has it below a root, and `aliquot` that is told
//! that root.

#![expect(clippy::unwrap_used, reason = "a test world that cannot be made fails the test that wants it")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_sim_device::install;
use aliquot_sim_device::npu::{Chip, Machine, Npus, Vnpu, install_npus};
use tempfile::TempDir;

use crate::local::aliquot;

/// Variable that names the root of Ascend's driver.
pub const ROOT_ENV: &str = "ALIQUOT_ASCEND_ROOT";

/// A machine with NPUs, and state of its own.
#[derive(Debug)]
pub struct NpuMachine {
    place: TempDir,
}

/// An Ascend 310P with 24 GB by its physical id.
#[must_use]
pub fn chip_310p(phy: u32) -> Chip {
    Chip {
        model: "huawei-310p-24gb".to_owned(),
        product: "Atlas 300I Pro".to_owned(),
        chip: "310P3".to_owned(),
        card: phy,
        device: 0,
        memory_mib: 24_576,
        board_id: 0,
        pci: format!("0000:{:02x}:00.0", 0x11 + phy),
        pcie_root: Some(format!("pci0000:{:02x}", 0x11 + phy)),
        numa: Some(0),
        hccs: None,
        die: [0xa11c_0000 + phy, 0x51a0_4c4d, 0x8000_0000, 7, 0],
    }
}

/// An Ascend 910B3 in an HCCS group.
#[must_use]
pub fn chip_910b3(phy: u32, hccs: &str) -> Chip {
    Chip {
        model: "huawei-910b3".to_owned(),
        product: String::new(),
        chip: "910B3".to_owned(),
        memory_mib: 61_440,
        board_id: 0x32,
        hccs: Some(hccs.to_owned()),
        ..chip_310p(phy)
    }
}

// === impl NpuMachine ===

impl NpuMachine {
    /// With these chips.
    #[must_use]
    pub fn of(chips: Vec<Chip>) -> Self {
        Self::with(&Machine { chips, ..Machine::default() })
    }

    /// With chips and settings.
    #[must_use]
    pub fn with(npus: &Machine) -> Self {
        let place = TempDir::new().unwrap();
        let machine = Self { place };
        install_npus(&machine.root(), npus).unwrap();
        aliquot_libraries::install_dcmi(&machine.root()).unwrap();
        // A group of the user that runs the test may write what it makes.
        fs::set_permissions(machine.root().join("usr/local/dcmi"), fs::Permissions::from_mode(0o755))
            .unwrap();
        fs::create_dir(machine.state()).unwrap();
        machine
    }

    /// With this many 310P.
    #[must_use]
    pub fn of_310p(count: u32) -> Self {
        Self::of((0..count).map(chip_310p).collect())
    }

    /// Takes functions out of the library, as older ones lack them.
    pub fn lacks(&self, functions: &[&str]) {
        let library = self.library();
        install(&library, library.parent().unwrap(), "libdcmi.so", functions).unwrap();
    }

    /// Plans what happens to every call of a function.
    pub fn fault(&self, function: &str, action: &str) {
        self.faults(&format!("[[fault]]\nsymbol = \"{function}\"\naction = {action}\n"));
    }

    /// Plans faults, as `npu-faults.toml` writes them.
    pub fn faults(&self, text: &str) {
        fs::write(self.root().join("npu-faults.toml"), text).unwrap();
    }

    /// The driver's library.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.root().join("usr/local/dcmi/libdcmi.so")
    }

    /// The root below which the driver lies.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.place.path().join("root")
    }

    /// The state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.place.path().join("state")
    }

    /// A directory for whatever the test needs.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.place.path()
    }

    /// `aliquot` on this machine and state.
    #[must_use]
    pub fn aliquot(&self, command: &str, arguments: &[&str]) -> Command {
        let mut aliquot = Command::new(aliquot());
        aliquot.env_remove("LD_LIBRARY_PATH").env(ROOT_ENV, self.root());
        aliquot.arg(command).arg("--state").arg(self.state()).args(arguments);
        aliquot
    }

    /// The hardware itself.
    #[must_use]
    pub fn npus(&self) -> Npus {
        Npus::open(&self.root()).unwrap()
    }

    /// vNPUs that exist.
    #[must_use]
    pub fn vnpus(&self) -> Vec<Vnpu> {
        self.npus().state().unwrap().vnpus
    }
}
