//! The vendors of a machine, and the only place that names them.
//!
//! | vendor | library | found |
//! |---|---|---|
//! | NVIDIA | `libnvidia-ml.so.1` | by the loader |
//! | Ascend | `libdcmi.so` | in `LD_LIBRARY_PATH`, else in the driver's directories below `ALIQUOT_ASCEND_ROOT` (default `/`) |
//!
//! For containers NVIDIA's library is looked for on the host, below a [`HostRoots`], and by the loader only where the host has none.
//!
//! Each is opened by itself. One that is absent or broken stops no other: an absent one is no trouble, a broken one is told by
//! [`DeviceBackend::trouble`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_backend_ascend::{AscendNode, FaultCodes, Site};
use aliquot_backend_nvidia::NvidiaNode;
pub use aliquot_backend_nvidia::driver_root::container as cuda_container;
use aliquot_backend_nvidia::driver_root::others;
pub use aliquot_backend_nvidia::driver_root::{DriverFiles, DriverRootError, HostRoots, resolve_within};
use aliquot_backend_nvidia::xid::{self, Xids};
pub use aliquot_backend_nvidia::{Context, Probe};
use aliquot_core::catalogue::Catalogue;
use aliquot_core::health::{Codes, Meaning};
use aliquot_core::id::Vendor;
use aliquot_core::ports::{Composite, DeviceBackend, Member, VendorOnHost};
use nix::sys::signal::{SigSet, SigmaskHow};

use super::HardwareError;
use crate::config;
use crate::error_text::chain;

/// Longest text of an admin on what codes mean.
pub const OVERRIDES_BYTES_MAX: usize = xid::OVERRIDES_BYTES_MAX;
/// The largest Xid. Fault codes of Ascend are larger: their upper half says of which unit they are.
const XID_MAX: u64 = 0xffff;

/// One vendor's cards, opened.
struct VendorCards {
    vendor: Vendor,
    driver: String,
    /// The catalogue with the models of its cards.
    catalogue: Catalogue,
    backend: Arc<dyn DeviceBackend>,
    /// What else on the host gives out or limits the cards, one line each.
    others: Vec<String>,
    /// Says which driver makes contexts, if programs make any.
    contexts: Option<Arc<dyn ContextDrivers>>,
}

/// A driver that makes contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextDriver {
    /// Its version, for which sizes of contexts are kept.
    pub version: String,
    /// The library that makes contexts; `None`: the loader's.
    pub library: Option<PathBuf>,
}

/// The driver that makes contexts, through all its updates.
pub trait ContextDrivers: Send + Sync {
    /// The one that serves the cards now.
    fn now(&self) -> ContextDriver;
}

impl ContextDrivers for NvidiaNode {
    fn now(&self) -> ContextDriver {
        let library = self.files().and_then(|files| files.compute.clone());
        ContextDriver { version: self.driver(), library }
    }
}

/// Why a vendor has no cards here.
enum NoVendorCards {
    /// The machine has no driver of the vendor.
    Absent(String),
    /// It has one, which does not serve.
    Broken(String),
}

/// Opens one vendor: for programs of this machine, or for containers that get the driver's files from a place on the host.
type OpenVendor = fn(&Catalogue, Option<&HostRoots>) -> Result<VendorCards, NoVendorCards>;

/// Finds the files that containers get of a vendor's driver, on a host with its root seen at a path.
type FindFiles = fn(&Path, Option<&Path>) -> Result<DriverFiles, DriverRootError>;

/// What is asked of a vendor.
struct Registered {
    on_host: &'static VendorOnHost,
    open: OpenVendor,
    /// `None`: the driver's directories are mounted as they are.
    files: Option<FindFiles>,
}

/// Every vendor, in the order of its cards on a node.
static VENDORS: [Registered; 2] = [
    Registered { on_host: &aliquot_backend_nvidia::ON_HOST, open: nvidia, files: Some(nvidia_files) },
    Registered { on_host: &aliquot_backend_ascend::ON_HOST, open: ascend, files: None },
];

fn nvidia(catalogue: &Catalogue, place: Option<&HostRoots>) -> Result<VendorCards, NoVendorCards> {
    let node = match place {
        Some(place) => NvidiaNode::open_for_containers(catalogue, place),
        None => NvidiaNode::open(catalogue),
    };
    let node = node.map_err(|error| match error.is_absence() {
        true => NoVendorCards::Absent(chain(&error)),
        false => NoVendorCards::Broken(chain(&error)),
    })?;
    let (driver, catalogue) = (node.driver(), node.catalogue().clone());
    let others = place.map(|place| others(place, node.files().as_deref())).unwrap_or_default();
    let contexts: Arc<dyn ContextDrivers> = Arc::<NvidiaNode>::clone(&node);
    Ok(VendorCards { vendor: cuda(), driver, catalogue, backend: node, others, contexts: Some(contexts) })
}

fn ascend(catalogue: &Catalogue, place: Option<&HostRoots>) -> Result<VendorCards, NoVendorCards> {
    let host = place.map_or_else(|| PathBuf::from("/"), |place| place.host.clone());
    let site = Site { root: config::ascend_root(), search: config::library_directories(), host };
    let node = AscendNode::open(catalogue, &site).map_err(|error| match error.is_absence() {
        true => NoVendorCards::Absent(chain(&error)),
        false => NoVendorCards::Broken(chain(&error)),
    })?;
    let (driver, catalogue) = (node.driver().to_owned(), node.catalogue().clone());
    Ok(VendorCards { vendor: dcmi(), driver, catalogue, backend: node, others: Vec::new(), contexts: None })
}

/// NPUs of a machine below another root than this machine's, such as simulated ones.
///
/// # Errors
/// Why there are none.
pub(super) fn open_dcmi(root: PathBuf, catalogue: &Catalogue) -> Result<Arc<dyn DeviceBackend>, String> {
    let opened = without_signals(|| AscendNode::open(catalogue, &Site::below(root)));
    let node = opened.map_err(|error| chain(&error))?;
    Ok(node)
}

/// The vendor of cards that CUDA programs use.
#[must_use]
pub fn cuda() -> Vendor {
    NvidiaNode::vendor()
}

/// The vendor of NPUs that DCMI manages.
#[must_use]
pub fn dcmi() -> Vendor {
    AscendNode::vendor()
}

/// Every vendor's identity, in the order of its cards on a node.
#[must_use]
pub fn all() -> Vec<Vendor> {
    vec![cuda(), dcmi()]
}

fn nvidia_files(host: &Path, driver: Option<&Path>) -> Result<DriverFiles, DriverRootError> {
    DriverFiles::find(&HostRoots { host: host.to_owned(), driver: driver.map(Path::to_owned) })
}

/// Every vendor as a host shows it, in the order of its cards on a node.
pub fn on_host() -> impl Iterator<Item = &'static VendorOnHost> {
    VENDORS.iter().map(|vendor| vendor.on_host)
}

/// The files that containers get of a vendor's driver, on a host with its root seen at `host`; `None`: the vendor's driver has
/// no such list.
///
/// # Errors
/// [`DriverRootError`]: there is no driver, or it is half installed.
pub fn driver_files(
    vendor: &VendorOnHost,
    host: &Path,
    driver: Option<&Path>,
) -> Option<Result<DriverFiles, DriverRootError>> {
    let registered = VENDORS.iter().find(|registered| registered.on_host == vendor)?;
    registered.files.map(|find| find(host, driver))
}

/// Calls a vendor's library with all signals blocked in this thread. Threads that the library starts inherit that, so that none of
/// them takes a signal for which this process waits, such as the end of a run's command.
pub(crate) fn without_signals<T>(call: impl FnOnce() -> T) -> T {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let answer = call();
    // The mask was valid before, so that setting it again cannot fail.
    let _restored = before.and_then(|before| before.thread_set_mask());
    answer
}

/// The cards of this machine, of every vendor.
pub struct MachineCards {
    cards: Arc<Composite>,
    vendors: Vec<Vendor>,
    /// Version of each vendor's driver, by the vendor's name for people.
    drivers: Vec<(&'static str, String)>,
    contexts: Option<Arc<dyn ContextDrivers>>,
    catalogue: Catalogue,
    others: Vec<String>,
}

/// Why this machine has no cards for us.
#[derive(Debug, thiserror::Error)]
#[error("{}", reasons.join("\n"))]
pub struct NoCards {
    /// One line a vendor.
    reasons: Vec<String>,
    /// Whether there is simply no driver.
    is_absence: bool,
}

// === impl MachineCards ===

impl MachineCards {
    /// Opens every vendor's driver.
    ///
    /// # Errors
    /// [`NoCards`] if no vendor has a card.
    pub fn open(catalogue: &Catalogue) -> Result<Arc<Self>, NoCards> {
        Self::of(catalogue, None)
    }

    /// The same for containers, which get the driver's files from a place on the host.
    ///
    /// # Errors
    /// As [`MachineCards::open`]. A vendor with a named driver root and no driver there counts as one without cards.
    pub fn open_for_containers(catalogue: &Catalogue, place: &HostRoots) -> Result<Arc<Self>, NoCards> {
        Self::of(catalogue, Some(place))
    }

    /// A machine without cards, on which claims of earlier cards can be released.
    #[must_use]
    pub fn none(catalogue: Catalogue) -> Arc<Self> {
        Arc::new(Self {
            cards: Arc::new(Composite::new(Vec::new())),
            vendors: Vec::new(),
            drivers: Vec::new(),
            contexts: None,
            catalogue,
            others: Vec::new(),
        })
    }

    fn of(catalogue: &Catalogue, place: Option<&HostRoots>) -> Result<Arc<Self>, NoCards> {
        let mut catalogue = catalogue.clone();
        let (mut members, mut vendors, mut drivers) = (Vec::new(), Vec::new(), Vec::new());
        let (mut broken, mut reasons, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let mut contexts = None;
        for vendor in &VENDORS {
            let name = vendor.on_host.name;
            match without_signals(|| (vendor.open)(&catalogue, place)) {
                Ok(opened) => {
                    contexts = contexts.or(opened.contexts);
                    catalogue = opened.catalogue;
                    vendors.push(opened.vendor);
                    drivers.push((name, opened.driver));
                    others.extend(opened.others);
                    members.push(Member { name: name.to_owned(), backend: opened.backend });
                }
                Err(NoVendorCards::Absent(why)) => reasons.push(why),
                Err(NoVendorCards::Broken(why)) => {
                    reasons.push(why.clone());
                    broken.push(why);
                }
            }
        }
        if members.is_empty() {
            return Err(NoCards { reasons, is_absence: broken.is_empty() });
        }
        let cards = Arc::new(Composite::new(members).without(broken));
        Ok(Arc::new(Self { cards, vendors, drivers, contexts, catalogue, others }))
    }

    /// The cards, behind one backend.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn DeviceBackend> {
        Arc::<Composite>::clone(&self.cards)
    }

    /// Vendors that have cards here, in the order of their cards.
    #[must_use]
    pub fn vendors(&self) -> &[Vendor] {
        &self.vendors
    }

    /// The catalogue as it is here: with what the cards found can be, and with models that it does not list.
    #[must_use]
    pub const fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Which driver makes contexts; `None`: no card has contexts to measure.
    #[must_use]
    pub fn contexts(&self) -> Option<Arc<dyn ContextDrivers>> {
        self.contexts.clone()
    }

    /// What else on the host gives out or limits the cards, one line each; told only where they were opened for containers.
    #[must_use]
    pub fn others(&self) -> &[String] {
        &self.others
    }

    /// The drivers in one line.
    #[must_use]
    pub fn about(&self) -> String {
        let one = |(name, version): &(&str, String)| format!("{name} driver {version}");
        self.drivers.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

// === impl NoCards ===

impl NoCards {
    /// One line a vendor.
    #[must_use]
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// Whether the machine simply has no driver of any vendor.
    #[must_use]
    pub const fn is_absence(&self) -> bool {
        self.is_absence
    }
}

impl From<NoCards> for HardwareError {
    fn from(error: NoCards) -> Self {
        let advice = "Without cards, --node names simulated ones, such as --node h100-8";
        let behind = if error.reasons.len() > 1 { "\n" } else { ". " };
        Self::Cards(format!("{error}{behind}{advice}"))
    }
}

/// The tables of all vendors, with an admin's word on top. Their numbers are disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VendorCodes(Xids);

// === impl VendorCodes ===

impl VendorCodes {
    /// The tables with an admin's text on top, and what is wrong with the text.
    #[must_use]
    pub fn parse(text: &str) -> (Self, Vec<String>) {
        let (xids, problems) = Xids::parse(text);
        (Self(xids), problems)
    }
}

impl Codes for VendorCodes {
    fn meaning(&self, code: u64) -> Meaning {
        if code > XID_MAX { FaultCodes.meaning(code) } else { self.0.meaning(code) }
    }
}
