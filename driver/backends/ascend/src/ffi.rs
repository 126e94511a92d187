//! The vendor's management library, DCMI: the only place that knows its functions. Each is looked up when the library is
//! loaded and may be missing. Answers leave this module as plain, checked data; errors say which kind they are.

// UNSAFETY: a C library is loaded and its functions are called.
#![expect(unsafe_code, reason = "the vendor's library is a C library")]

mod answer;
pub(crate) mod event;
mod fault;
mod layout;
mod load;

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use answer::{optional, text, within};
use layout::{
    BoardInfo, CARDS_MAX, CHIPS_MAX, ChipInfo, ChipInfoV2, CreateIn, CreateOut, EventFilter, HbmInfo,
    MemoryInfo, PcieInfo, Query, Total, VNPUS_MAX,
};

pub use fault::Fault;
pub(crate) use fault::words;
pub(crate) use layout::Event;
pub use load::Site;

/// The library chooses the number.
const AUTOMATIC: u32 = u32::MAX;
/// Commands of `dcmi_get_device_info`.
const VNPUS: i32 = 52;
const VNPU_ONE: u32 = 0;
const VNPU_TOTAL: u32 = 1;
/// Types of a utilisation rate.
const RATE_AI_CORE: i32 = 2;
/// Kinds of die.
const DIE_N: i32 = 0;
const DIE_V: i32 = 1;

/// How long a read may take, and how long a change.
const READ_LIMIT: Duration = Duration::from_secs(10);
const CHANGE_LIMIT: Duration = Duration::from_secs(60);

/// Where a chip is: card and number on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChipAt {
    pub(crate) card: i32,
    pub(crate) device: i32,
}

/// What the library says of one chip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) at: ChipAt,
    pub(crate) logic: u32,
    pub(crate) phy: u32,
    pub(crate) die: [u32; 5],
    /// Chip name, such as `310P3`.
    pub(crate) chip: String,
    pub(crate) ai_cores: u32,
    /// Product, such as `Atlas 300I Duo`, where the library tells it.
    pub(crate) product: Option<String>,
    pub(crate) board_id: Option<u32>,
    /// Address as the kernel writes it.
    pub(crate) pci: Option<String>,
    pub(crate) memory_mib: Result<u64, Fault>,
    /// The vendor's health number.
    pub(crate) health: Result<u32, Fault>,
    /// Fault codes.
    pub(crate) codes: Vec<u32>,
    pub(crate) vnpus: Result<Vec<Vnpu>, Fault>,
}

/// One vNPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vnpu {
    pub(crate) id: u32,
    /// Template as this driver spells it.
    pub(crate) template: String,
    pub(crate) group: u32,
}

/// Settings of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// vNPUs are for virtual machines.
    pub(crate) is_for_machines: bool,
    /// vNPUs come back at boot.
    pub(crate) recovers: bool,
}

/// Memory in use, in MiB, and work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) total_mib: u64,
    pub(crate) used_mib: u64,
    pub(crate) busy_percent: Option<u32>,
}

macro_rules! functions {
    ($( $name:ident ( $($ty:ty),* ); )*) => {
        /// The functions of the library, as far as it has them.
        #[derive(Debug)]
        struct Functions { $( $name: Option<unsafe extern "C" fn($($ty),*) -> i32>, )* }

        impl Functions {
            fn of(library: &libloading::Library) -> Self {
                Self { $(
                    // SAFETY: the vendor's header gives this function this signature; it is called only while the library,
                    // which is never unloaded, is there.
                    $name: unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .ok()
                        .map(|found: libloading::Symbol<'_, unsafe extern "C" fn($($ty),*) -> i32>| *found),
                )* }
            }
        }
    };
}

functions! {
    dcmi_init();
    dcmi_get_driver_version(*mut u8, u32);
    dcmi_get_card_list(*mut i32, *mut i32, i32);
    dcmi_get_card_num_list(*mut i32, *mut i32, i32);
    dcmi_get_device_num_in_card(i32, *mut i32);
    dcmi_get_device_type(i32, i32, *mut i32);
    dcmi_get_device_logic_id(*mut i32, i32, i32);
    dcmi_get_device_phyid_from_logicid(u32, *mut u32);
    dcmi_get_device_chip_info(i32, i32, *mut ChipInfo);
    dcmi_get_device_chip_info_v2(i32, i32, *mut ChipInfoV2);
    dcmi_get_product_type(i32, i32, *mut u8, i32);
    dcmi_get_device_board_info(i32, i32, *mut BoardInfo);
    dcmi_get_device_memory_info_v3(i32, i32, *mut MemoryInfo);
    dcmi_get_device_hbm_info(i32, i32, *mut HbmInfo);
    dcmi_get_device_health(i32, i32, *mut u32);
    dcmi_get_device_errorcode_v2(i32, i32, *mut i32, *mut u32, u32);
    dcmi_get_device_pcie_info_v2(i32, i32, *mut PcieInfo);
    dcmi_get_device_die_v2(i32, i32, i32, *mut [u32; 5]);
    dcmi_get_device_utilization_rate(i32, i32, i32, *mut u32);
    dcmi_get_topo_info_by_device_id(i32, i32, i32, i32, *mut i32);
    dcmi_get_device_info(i32, i32, i32, u32, *mut u8, *mut u32);
    dcmi_create_vdevice(i32, i32, *mut CreateIn, *mut CreateOut);
    dcmi_set_destroy_vdevice(i32, i32, u32);
    dcmi_get_vdevice_mode(*mut i32);
    dcmi_get_vnpu_config_recover_mode(*mut u32);
    dcmi_subscribe_fault_event(i32, i32, EventFilter, extern "C" fn(*const Event));
}

/// Calls a function that the library may lack.
macro_rules! call {
    ($functions:expr, $name:ident ( $($argument:expr),* )) => {
        match $functions.$name {
            None => Err(Fault::NoFunction(stringify!($name))),
            // SAFETY: the arguments are those of the vendor's header; pointers are to live places of the stated sizes.
            Some(function) => match unsafe { function($($argument),*) } {
                0 => Ok(()),
                code => Err(Fault::Code { code, call: stringify!($name) }),
            },
        }
    };
}

/// The library, initialised. It may run threads of its own, so that it stays loaded.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    functions: Arc<Functions>,
    _loaded: Arc<ManuallyDrop<libloading::Library>>,
}

/// A place for an answer: all zero.
fn blank<T: Copy>() -> T {
    // SAFETY: used for this module's structures and numbers only, each of which is plain data and may be all zero.
    unsafe { std::mem::zeroed() }
}

fn size<T>() -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX)
}

// === impl Library ===

impl Library {
    /// Loads and initialises it.
    pub(crate) fn load(site: &Site) -> Result<Self, Fault> {
        let path = site.library()?;
        // SAFETY: the file is the driver's: root owns it and no other user can write it.
        let loaded = unsafe { libloading::Library::new(&path) };
        let loaded = loaded.map_err(|error| Fault::NotLoaded(error.to_string()))?;
        let functions = Arc::new(Functions::of(&loaded));
        let library = Self { functions, _loaded: Arc::new(ManuallyDrop::new(loaded)) };
        let first = library.clone();
        within(READ_LIMIT, "dcmi_init", move || call!(first.functions, dcmi_init()))?;
        Ok(library)
    }

    /// Version of the driver.
    pub(crate) fn driver(&self) -> Result<String, Fault> {
        let mut version = [0_u8; 64];
        let written = u32::try_from(version.len()).unwrap_or(0);
        call!(self.functions, dcmi_get_driver_version(version.as_mut_ptr(), written))?;
        text("dcmi_get_driver_version", &version)
    }

    /// Every NPU chip, by card and number on it.
    pub(crate) fn chips(&self) -> Result<Vec<ChipAt>, Fault> {
        let library = self.clone();
        within(READ_LIMIT, "dcmi_get_card_list", move || library.list())
    }

    fn list(&self) -> Result<Vec<ChipAt>, Fault> {
        let (mut count, mut cards) = (0_i32, [0_i32; CARDS_MAX]);
        let most = i32::try_from(CARDS_MAX).unwrap_or(0);
        let listed = call!(self.functions, dcmi_get_card_list(&raw mut count, cards.as_mut_ptr(), most));
        match listed {
            // Older libraries have another name for it.
            Err(Fault::NoFunction(_)) => {
                call!(self.functions, dcmi_get_card_num_list(&raw mut count, cards.as_mut_ptr(), most))?;
            }
            listed => listed?,
        }
        let count =
            usize::try_from(count).ok().filter(|found| *found <= CARDS_MAX).ok_or(Fault::Garbage {
                call: "dcmi_get_card_list",
                found: format!("{count} cards"),
                expected: "0 to 64",
            })?;
        let mut chips = Vec::new();
        for card in cards.iter().take(count).copied() {
            let mut devices = 0;
            call!(self.functions, dcmi_get_device_num_in_card(card, &raw mut devices))?;
            if u32::try_from(devices).ok().is_none_or(|devices| devices > CHIPS_MAX) {
                let found = format!("{devices} chips");
                let call = "dcmi_get_device_num_in_card";
                return Err(Fault::Garbage { call, found, expected: "0 to 16" });
            }
            chips.extend((0..devices).map(|device| ChipAt { card, device }));
        }
        // Beside NPUs a card may have controllers.
        chips.retain(|at| self.is_npu(*at));
        Ok(chips)
    }

    fn is_npu(&self, at: ChipAt) -> bool {
        let mut kind = 0;
        match call!(self.functions, dcmi_get_device_type(at.card, at.device, &raw mut kind)) {
            Ok(()) => kind == 0,
            // Its facts say what is wrong with it.
            Err(_) => true,
        }
    }

    /// What a chip says of itself.
    pub(crate) fn facts(&self, at: ChipAt) -> Result<Facts, Fault> {
        let library = self.clone();
        within(READ_LIMIT, "facts of a chip", move || library.read(at))
    }

    fn read(&self, at: ChipAt) -> Result<Facts, Fault> {
        let (mut logic, mut phy) = (0, 0);
        call!(self.functions, dcmi_get_device_logic_id(&raw mut logic, at.card, at.device))?;
        let logic = u32::try_from(logic).map_err(|_| Fault::Garbage {
            call: "dcmi_get_device_logic_id",
            found: logic.to_string(),
            expected: "0 or more",
        })?;
        call!(self.functions, dcmi_get_device_phyid_from_logicid(logic, &raw mut phy))?;
        if phy > 1_023 {
            let call = "dcmi_get_device_phyid_from_logicid";
            return Err(Fault::Garbage { call, found: phy.to_string(), expected: "0 to 1023" });
        }
        let (chip, ai_cores) = self.chip(at)?;
        Ok(Facts {
            at,
            logic,
            phy,
            die: self.die(at)?,
            chip,
            ai_cores,
            product: optional(self.product(at))?,
            board_id: optional(self.board(at))?,
            pci: optional(self.pci(at))?,
            memory_mib: self.memory(at).map(|load| load.total_mib),
            health: self.health(at),
            codes: self.codes(at),
            vnpus: self.vnpus(at),
        })
    }

    fn chip(&self, at: ChipAt) -> Result<(String, u32), Fault> {
        let name = "dcmi_get_device_chip_info";
        let mut newer: ChipInfoV2 = blank();
        let info =
            match call!(self.functions, dcmi_get_device_chip_info_v2(at.card, at.device, &raw mut newer)) {
                Ok(()) => {
                    // Later chips name the NPU apart from the chip.
                    let npu = text(name, &newer.npu_name)?;
                    if !npu.is_empty() {
                        return Ok((npu, newer.chip.ai_cores));
                    }
                    newer.chip
                }
                Err(fault) if fault.is_unsupported() => {
                    let mut info: ChipInfo = blank();
                    call!(self.functions, dcmi_get_device_chip_info(at.card, at.device, &raw mut info))?;
                    info
                }
                Err(fault) => return Err(fault),
            };
        Ok((text(name, &info.name)?, info.ai_cores))
    }

    /// The words by which a die is told from every other.
    fn die(&self, at: ChipAt) -> Result<[u32; 5], Fault> {
        let call = "dcmi_get_device_die_v2";
        for kind in [DIE_V, DIE_N] {
            let mut die = [0; 5];
            let told = call!(self.functions, dcmi_get_device_die_v2(at.card, at.device, kind, &raw mut die));
            let is_blank = die.iter().all(|word| *word == 0) || die.iter().all(|word| *word == u32::MAX);
            match told {
                Ok(()) if !is_blank => return Ok(die),
                Ok(()) => {}
                Err(fault) if fault.is_unsupported() => {}
                Err(fault) => return Err(fault),
            }
        }
        Err(Fault::Garbage { call, found: "no identity".to_owned(), expected: "the words of a die" })
    }

    fn product(&self, at: ChipAt) -> Result<String, Fault> {
        let mut name = [0_u8; 64];
        let most = i32::try_from(name.len()).unwrap_or(0);
        call!(self.functions, dcmi_get_product_type(at.card, at.device, name.as_mut_ptr(), most))?;
        text("dcmi_get_product_type", &name)
    }

    fn board(&self, at: ChipAt) -> Result<u32, Fault> {
        let mut board: BoardInfo = blank();
        call!(self.functions, dcmi_get_device_board_info(at.card, at.device, &raw mut board))?;
        Ok(board.board_id)
    }

    fn pci(&self, at: ChipAt) -> Result<String, Fault> {
        let mut info: PcieInfo = blank();
        call!(self.functions, dcmi_get_device_pcie_info_v2(at.card, at.device, &raw mut info))?;
        let PcieInfo { domain, bus, device, function, .. } = info;
        Ok(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
    }

    /// Memory of a chip: high-bandwidth memory where it has that.
    fn memory(&self, at: ChipAt) -> Result<Load, Fault> {
        let mut hbm: HbmInfo = blank();
        let told = call!(self.functions, dcmi_get_device_hbm_info(at.card, at.device, &raw mut hbm));
        if optional(told)?.is_some() && hbm.size > 0 {
            return Ok(Load { total_mib: hbm.size, used_mib: hbm.used, busy_percent: None });
        }
        let mut info: MemoryInfo = blank();
        call!(self.functions, dcmi_get_device_memory_info_v3(at.card, at.device, &raw mut info))?;
        let used_mib = info.size.saturating_sub(info.available);
        Ok(Load { total_mib: info.size, used_mib, busy_percent: None })
    }

    /// Memory in use, and how much the AI cores work.
    pub(crate) fn busy(&self, at: ChipAt) -> Result<Load, Fault> {
        let library = self.clone();
        within(READ_LIMIT, "utilisation of a chip", move || {
            let (load, mut percent) = (library.memory(at)?, 0);
            let rate = RATE_AI_CORE;
            let told = call!(
                library.functions,
                dcmi_get_device_utilization_rate(at.card, at.device, rate, &raw mut percent)
            );
            let told = match told {
                // A chip that is split does not tell.
                Err(fault) if fault.is_forbidden() => None,
                told => optional(told)?,
            };
            Ok(Load { busy_percent: told.map(|()| percent).filter(|percent| *percent <= 100), ..load })
        })
    }

    fn health(&self, at: ChipAt) -> Result<u32, Fault> {
        let mut health = 0;
        call!(self.functions, dcmi_get_device_health(at.card, at.device, &raw mut health))?;
        Ok(health)
    }

    /// Fault codes of a chip; none where it does not tell.
    fn codes(&self, at: ChipAt) -> Vec<u32> {
        let (mut count, mut codes) = (0, [0_u32; 128]);
        let most = u32::try_from(codes.len()).unwrap_or(0);
        let told = call!(
            self.functions,
            dcmi_get_device_errorcode_v2(at.card, at.device, &raw mut count, codes.as_mut_ptr(), most)
        );
        let count =
            told.ok().and_then(|()| usize::try_from(count).ok()).filter(|count| *count <= codes.len());
        codes.iter().take(count.unwrap_or(0)).copied().collect()
    }

    /// vNPUs of a chip. One that disappears meanwhile is left out.
    fn vnpus(&self, at: ChipAt) -> Result<Vec<Vnpu>, Fault> {
        let call = "dcmi_get_device_info";
        let (mut total, mut bytes): (Total, u32) = (blank(), size::<Total>());
        let place = (&raw mut total).cast();
        call!(
            self.functions,
            dcmi_get_device_info(at.card, at.device, VNPUS, VNPU_TOTAL, place, &raw mut bytes)
        )?;
        let count = usize::try_from(total.count).unwrap_or(usize::MAX);
        if count > VNPUS_MAX {
            let found = format!("{} vNPUs", total.count);
            return Err(Fault::Garbage { call, found, expected: "0 to 32" });
        }
        let mut vnpus = Vec::new();
        for id in total.ids.iter().take(count).copied() {
            let (mut one, mut bytes): (Query, u32) = (blank(), size::<Query>());
            one.id = id;
            let place = (&raw mut one).cast();
            let told = call!(
                self.functions,
                dcmi_get_device_info(at.card, at.device, VNPUS, VNPU_ONE, place, &raw mut bytes)
            );
            match told {
                Err(fault) if fault.is_absent() => {}
                told => {
                    told?;
                    vnpus.push(Vnpu { id, template: text(call, &one.name)?, group: one.group });
                }
            }
        }
        Ok(vnpus)
    }

    /// How two chips are wired, in the vendor's numbers; `None`: the library does not tell that of these chips.
    pub(crate) fn wire(&self, one: ChipAt, other: ChipAt) -> Option<i32> {
        let mut kind = 0;
        let (a, b) = (one, other);
        let told = call!(
            self.functions,
            dcmi_get_topo_info_by_device_id(a.card, a.device, b.card, b.device, &raw mut kind)
        );
        told.ok().map(|()| kind)
    }

    /// Settings of the node.
    pub(crate) fn settings(&self) -> Result<Settings, Fault> {
        let (mut mode, mut recovers) = (0, 0);
        optional(call!(self.functions, dcmi_get_vdevice_mode(&raw mut mode)))?;
        optional(call!(self.functions, dcmi_get_vnpu_config_recover_mode(&raw mut recovers)))?;
        Ok(Settings { is_for_machines: mode == 1, recovers: recovers == 1 })
    }

    /// Creates a vNPU with this id, in this group where the chip has groups.
    pub(crate) fn create(
        &self,
        at: ChipAt,
        template: &str,
        id: u32,
        group: Option<u32>,
    ) -> Result<(), Fault> {
        let mut name = [0_u8; 32];
        for (place, byte) in name.iter_mut().take(31).zip(template.bytes()) {
            *place = byte;
        }
        let library = self.clone();
        within(CHANGE_LIMIT, "dcmi_create_vdevice", move || {
            let group = group.unwrap_or(AUTOMATIC);
            let mut wanted = CreateIn { id, group, template: name, reserved: [0; 64] };
            let mut made: CreateOut = blank();
            call!(library.functions, dcmi_create_vdevice(at.card, at.device, &raw mut wanted, &raw mut made))
        })
    }

    /// Destroys a vNPU.
    pub(crate) fn destroy(&self, at: ChipAt, id: u32) -> Result<(), Fault> {
        let library = self.clone();
        within(CHANGE_LIMIT, "dcmi_set_destroy_vdevice", move || {
            call!(library.functions, dcmi_set_destroy_vdevice(at.card, at.device, id))
        })
    }

    /// Has fault events of a chip delivered from now on.
    pub(crate) fn subscribe(&self, at: ChipAt) -> Result<(), Fault> {
        let filter: EventFilter = blank();
        call!(self.functions, dcmi_subscribe_fault_event(at.card, at.device, filter, event::deliver))
    }
}
