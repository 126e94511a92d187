//! The vendor's management library, NVML: the only place that knows it. `nvml-wrapper` finds it when it is needed, and
//! each of its functions when that is called; what comes out is plain data, and errors that say which kind they are.

pub(crate) mod context;
mod event;
mod layout;
mod mig;

use std::path::Path;

use aliquot_core::ports::{CardSample, Samples};
use nvml_wrapper::enum_wrappers::device::Sampling;
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

pub(crate) use event::{Event, EventSet};
pub(crate) use layout::{Instance, MigLayout, Profile};
pub(crate) use mig::CreateFailure;

/// Result codes of NVML that mean something of their own here.
const UNINITIALIZED: u32 = 1;
const NOT_SUPPORTED: u32 = 3;
const NO_PERMISSION: u32 = 4;
const NOT_FOUND: u32 = 6;
const DRIVER_NOT_LOADED: u32 = 9;
const TIMEOUT: u32 = 10;
const GPU_IS_LOST: u32 = 15;
const RESET_REQUIRED: u32 = 16;
const IN_USE: u32 = 19;
const INSUFFICIENT_RESOURCES: u32 = 23;

/// A function of the library, if it has it.
macro_rules! function {
    ($lib:expr, $name:ident) => {
        match &$lib.$name {
            Ok(function) => Ok(*function),
            Err(_) => Err(Fault::NoFunction(stringify!($name).to_owned())),
        }
    };
}
use function;

/// Why the library gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It cannot be loaded.
    #[error("{0}")]
    NotLoaded(String),
    /// The driver is being loaded anew.
    #[error("the driver was loaded anew, and the library not yet")]
    Unloaded,
    /// It lacks a function.
    #[error("no such function: {0}")]
    NoFunction(String),
    /// It answered with an error.
    #[error("NVML error {code}: {text}")]
    Code {
        /// The vendor's code.
        code: u32,
        /// What it means.
        text: String,
    },
}

/// The library, initialised until dropped.
#[derive(Debug)]
pub(crate) struct Library(Nvml);

/// What the library says of one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) index: u32,
    pub(crate) uuid: String,
    pub(crate) name: String,
    /// Number in the name of its device file.
    pub(crate) minor: Option<u32>,
    /// Address as the library writes it, such as `00000000:81:00.0`.
    pub(crate) pci: String,
    /// Device number in the upper half, vendor's in the lower.
    pub(crate) pci_id: u32,
    /// Bytes that tenants and their contexts can have: all but what the driver keeps for itself.
    pub(crate) memory: Result<u64, Fault>,
    /// Compute capability.
    pub(crate) capability: (i32, i32),
    pub(crate) mig: Result<MigMode, Fault>,
}

/// How a card is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MigMode {
    /// It has no such mode.
    None,
    /// It could be partitioned, and is not.
    Off,
    /// It consists of MIG instances, of which there may be none.
    On(Result<MigLayout, Fault>),
}

/// Bytes of a card and of the processes on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    pub(crate) total: u64,
    pub(crate) in_use: u64,
    /// Number and bytes; `None`: the driver does not say.
    pub(crate) processes: Vec<(u32, Option<u64>)>,
}

// === impl Facts ===

impl Facts {
    /// What the card can be cut into and is; `None`: it is not in MIG mode, as far as it says.
    pub(crate) fn cut(&self) -> Option<&Result<MigLayout, Fault>> {
        match &self.mig {
            Ok(MigMode::On(cut)) => Some(cut),
            Ok(MigMode::None | MigMode::Off) | Err(_) => None,
        }
    }
}

// === impl Fault ===

impl Fault {
    fn is(&self, wanted: u32) -> bool {
        matches!(self, Self::Code { code, .. } if *code == wanted)
    }

    /// Whether the card has no such thing.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.is(NOT_SUPPORTED)
    }

    /// Whether this user may not do it.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.is(NO_PERMISSION)
    }

    /// Whether processes are in the way.
    pub(crate) fn is_in_use(&self) -> bool {
        self.is(IN_USE)
    }

    /// Whether too little of the card is left.
    pub(crate) fn is_no_room(&self) -> bool {
        self.is(INSUFFICIENT_RESOURCES)
    }

    /// Whether there is nothing to tell.
    pub(crate) fn is_nothing(&self) -> bool {
        self.is(NOT_FOUND)
    }

    /// Whether the card is there no more, or no use until it is reset.
    pub(crate) fn is_lost(&self) -> bool {
        self.is(GPU_IS_LOST) || self.is(RESET_REQUIRED)
    }

    /// Whether the library serves another load of the driver than there is.
    pub(crate) fn is_uninitialised(&self) -> bool {
        matches!(self, Self::Unloaded) || self.is(UNINITIALIZED) || self.is(DRIVER_NOT_LOADED)
    }

    /// Whether the library found no driver in the kernel.
    pub(crate) fn is_no_driver(&self) -> bool {
        self.is(DRIVER_NOT_LOADED)
    }
}

impl From<NvmlError> for Fault {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::LibloadingError(why) => Self::NotLoaded(why.to_string()),
            NvmlError::FailedToLoadSymbol(why) => Self::NoFunction(why),
            other => {
                let text = other.to_string();
                Self::Code { code: u32::from(other), text }
            }
        }
    }
}

// === impl Library ===

impl Library {
    /// Loads and initialises it.
    pub(crate) fn load() -> Result<Self, Fault> {
        Ok(Self(Nvml::init()?))
    }

    /// The library at a path of its own, as a driver outside of this process's file system has it.
    pub(crate) fn load_from(path: &Path) -> Result<Self, Fault> {
        Ok(Self(Nvml::builder().lib_path(path.as_os_str()).init()?))
    }

    /// Version of the driver, such as `580.65.06`.
    pub(crate) fn driver(&self) -> Result<String, Fault> {
        Ok(self.0.sys_driver_version()?)
    }

    /// Number of cards.
    pub(crate) fn count(&self) -> Result<u32, Fault> {
        Ok(self.0.device_count()?)
    }

    /// What the card at an index says of itself.
    pub(crate) fn facts(&self, index: u32) -> Result<Facts, Fault> {
        self.told(index, &self.0.device_by_index(index)?)
    }

    /// What one card says of itself; no other card is asked.
    pub(crate) fn facts_of(&self, uuid: &str) -> Result<Facts, Fault> {
        let device = self.0.device_by_uuid(uuid)?;
        self.told(device.index()?, &device)
    }

    fn told(&self, index: u32, device: &Device<'_>) -> Result<Facts, Fault> {
        let pci = device.pci_info()?;
        let capability = device.cuda_compute_capability()?;
        Ok(Facts {
            index,
            uuid: device.uuid()?,
            name: device.name()?,
            minor: optional(device.minor_number())?,
            pci: pci.bus_id,
            pci_id: pci.pci_device_id,
            memory: memory(device),
            capability: (capability.major, capability.minor),
            mig: self.mig(device),
        })
    }

    fn mig(&self, device: &Device<'_>) -> Result<MigMode, Fault> {
        Ok(match optional(device.mig_mode())? {
            None => MigMode::None,
            Some(mode) if mode.current == 0 => MigMode::Off,
            Some(_) => MigMode::On(self.cut(device)),
        })
    }

    /// Memory use of a card, by process.
    pub(crate) fn held(&self, uuid: &str) -> Result<MemoryUse, Fault> {
        let device = self.0.device_by_uuid(uuid)?;
        let memory = device.memory_info()?;
        let bytes = |memory: UsedGpuMemory| match memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        let mut processes = Vec::new();
        for process in optional(device.running_compute_processes())?
            .unwrap_or_default()
            .into_iter()
            .chain(optional(device.running_graphics_processes())?.unwrap_or_default())
        {
            // A process with both compute and graphics work is in both lists, with the same bytes.
            if !processes.iter().any(|(pid, _)| *pid == process.pid) {
                processes.push((process.pid, bytes(process.used_gpu_memory)));
            }
        }
        Ok(MemoryUse { total: memory.total.saturating_sub(memory.reserved), in_use: memory.used, processes })
    }

    /// Percent of the driver's last sampling period in which anything ran on the card.
    pub(crate) fn busy(&self, uuid: &str) -> Result<u32, Fault> {
        Ok(self.0.device_by_uuid(uuid)?.utilization_rates()?.gpu)
    }

    /// Samples of the card and of its processes that are newer than a time of the driver's.
    pub(crate) fn samples(&self, uuid: &str, since_micros: u64) -> Result<Samples, Fault> {
        let device = self.0.device_by_uuid(uuid)?;
        let of_card = newer(device.samples(Sampling::GpuUtilization, since_micros))?;
        let of_card = of_card.into_iter().filter(|sample| sample.timestamp > since_micros);
        let mut card: Vec<CardSample> = of_card
            .filter_map(|sample| {
                let percent = whole_percent(&sample.value)?;
                Some(CardSample { ended_micros: sample.timestamp, percent })
            })
            .collect();
        card.sort_by_key(|sample| sample.ended_micros);
        let of_processes = newer(device.process_utilization_stats(since_micros))?.into_iter();
        // The driver fills places that it has no sample for with what lay there.
        let sampled = of_processes.filter(|s| s.pid != 0 && s.sm_util <= 100 && s.timestamp > since_micros);
        Ok(Samples { card, processes: sampled.map(|s| (s.pid, s.sm_util)).collect() })
    }
}

/// Samples; none if the driver says that it has no newer ones.
fn newer<T>(answer: Result<Vec<T>, NvmlError>) -> Result<Vec<T>, Fault> {
    match answer.map_err(Fault::from) {
        Err(fault) if fault.is_nothing() => Ok(Vec::new()),
        answer => answer,
    }
}

/// A percentage; `None` if it is not one.
fn whole_percent(value: &SampleValue) -> Option<u32> {
    let percent = match value {
        SampleValue::U32(value) => *value,
        SampleValue::U64(value) => u32::try_from(*value).ok()?,
        SampleValue::I64(value) => u32::try_from(*value).ok()?,
        SampleValue::F64(_) => return None,
    };
    (percent <= 100).then_some(percent)
}

/// What an answer means.
fn answered(code: u32) -> Result<(), Fault> {
    match code {
        0 => Ok(()),
        23 => Err(Fault::Code { code, text: "not enough of the card is left".to_owned() }),
        code => Err(Fault::Code { code, text: NvmlError::from(code).to_string() }),
    }
}

/// An answer that a card need not have.
fn optional<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, Fault> {
    match answer.map_err(Fault::from) {
        Ok(answer) => Ok(Some(answer)),
        Err(fault) if fault.is_unsupported() => Ok(None),
        Err(fault) => Err(fault),
    }
}

fn memory(device: &Device<'_>) -> Result<u64, Fault> {
    let memory = device.memory_info()?;
    Ok(memory.total.saturating_sub(memory.reserved))
}
