//! GPU instances and the compute instances in them: a table in the card's shared state, so that every process sees it, and
//! for each GPU instance a card of its own with memory, seats and device time.
//!
//! ```text
//!   card-0 ── table: GPU instance 1 (1g.10gb at 0) ── compute instance 0    instance-0-<serial>   its state file
//!                    GPU instance 2 (3g.40gb at 4) ── (none yet)            instance-0-<serial>
//! ```
//!
//! Each instance has a serial number that its card never uses again; it makes the UUID, the handle and the
//! file. A GPU instance without compute instances is closed: no process gets a seat in it.

use crate::card::{Card, State};
use crate::mapping::OpenError;
use crate::node::{CardFacts, MigMode};
use crate::profile::{Profile, profiles};

/// GPU instances of one card, and compute instances of one GPU instance.
pub const INSTANCES: usize = 8;
/// MIG devices of one card.
pub const MIG_DEVICES: u32 = 7;

/// Memory slices and where they begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Placement {
    /// The first.
    pub start: u32,
    /// How many.
    pub size: u32,
}

/// An instance; all zero: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Instance {
    /// Distinguishes it from every other one of its card; from 1.
    pub serial: u64,
    /// The vendor's number: unique among those that there are.
    pub id: u32,
    /// Number of its profile: of the card, or of compute instances.
    pub profile: u32,
    /// Of a GPU instance in memory slices, of a compute instance in compute slices.
    pub placement: Placement,
}

/// A GPU instance with what is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GpuInstance {
    /// Itself.
    pub instance: Instance,
    /// Its compute instances; places without one are all zero.
    pub compute: [Instance; INSTANCES],
}

/// All instances of a card.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct InstanceTable {
    made: u64,
    places: [GpuInstance; INSTANCES],
}

/// A compute instance, which is what programs see as a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigDevice {
    /// The GPU instance that it is in.
    pub gpu: Instance,
    /// Itself.
    pub compute: Instance,
}

/// Why instances were not made or destroyed.
#[derive(Debug, thiserror::Error)]
pub enum MigError {
    /// The card has no MIG, is not in the mode, or does not know the profile.
    #[error("not supported by the card as it is")]
    NotSupported,
    /// No such profile, placement or instance.
    #[error("no such profile, placement or instance")]
    Unknown,
    /// What is left does not suffice.
    #[error("not enough of the card is left")]
    NoRoom,
    /// Processes or compute instances are in it.
    #[error("it is in use")]
    InUse,
    /// Its state file cannot be created.
    #[error("its books cannot be made")]
    Books(#[source] OpenError),
}

// === impl GpuInstance ===

impl GpuInstance {
    /// Compute instances that there are.
    pub fn computes(&self) -> impl Iterator<Item = Instance> {
        self.compute.into_iter().filter(Instance::is_there)
    }
}

// === impl Instance ===

impl Instance {
    fn is_there(&self) -> bool {
        self.serial != 0
    }
}

// === impl Placement ===

impl Placement {
    fn overlaps(self, other: Self) -> bool {
        self.start < other.start + other.size && other.start < self.start + self.size
    }
}

// === impl InstanceTable ===

impl InstanceTable {
    fn there(&self) -> impl Iterator<Item = &GpuInstance> {
        self.places.iter().filter(|gpu| gpu.instance.is_there())
    }

    fn next_serial(&mut self) -> u64 {
        self.made += 1;
        self.made
    }
}

/// The lowest number that none of these has.
fn free_id(first: u32, taken: &[Instance]) -> u32 {
    (first..).find(|id| !taken.iter().any(|other| other.id == *id)).unwrap_or(first)
}

/// Whether a profile at a placement fits beside these instances.
fn fits<'a>(
    all: &[Profile],
    wanted: &Profile,
    at: Placement,
    there: impl Iterator<Item = &'a Instance> + Clone,
) -> bool {
    let mut used = wanted.amounts();
    for other in there.clone().filter_map(|there| all.iter().find(|profile| profile.id == there.profile)) {
        used.iter_mut().zip(other.amounts()).for_each(|(sum, more)| *sum += more);
    }
    let has =
        |counter: usize| all.iter().filter_map(|p| p.amounts().get(counter).copied()).max().unwrap_or(0);
    let enough = used.iter().enumerate().all(|(counter, sum)| *sum <= has(counter));
    enough
        && there.clone().count() < INSTANCES
        && there.into_iter().all(|other| !other.placement.overlaps(at))
}

/// Where a profile may lie.
fn places(profile: &Profile) -> impl Iterator<Item = Placement> + '_ {
    profile.placements.iter().map(|(start, size)| Placement { start: *start, size: *size })
}

/// How many more of a profile fit, filled in the order of its placements.
fn room(all: &[Profile], wanted: &Profile, there: &[Instance]) -> u32 {
    let mut there = there.to_vec();
    let before = there.len();
    for at in places(wanted) {
        if fits(all, wanted, at, there.iter()) {
            there.push(Instance { profile: wanted.id, placement: at, ..Instance::default() });
        }
    }
    u32::try_from(there.len() - before).unwrap_or(0)
}

// === impl Card ===

impl Card {
    /// Profiles of the card, whether or not it is in MIG mode; none: it has no MIG.
    #[must_use]
    pub fn profiles(&self) -> &'static [Profile] {
        match self.facts().mig {
            MigMode::None => &[],
            MigMode::Off | MigMode::On => profiles(&self.facts().name),
        }
    }

    fn profile(&self, id: u32) -> Result<&'static Profile, MigError> {
        self.profiles().iter().find(|profile| profile.id == id).ok_or(MigError::Unknown)
    }

    fn must_be_on(&self) -> Result<(), MigError> {
        if self.facts().mig == MigMode::On { Ok(()) } else { Err(MigError::NotSupported) }
    }

    /// GPU instances, by their numbers.
    #[must_use]
    pub fn gpu_instances(&self) -> Vec<GpuInstance> {
        let mut found: Vec<GpuInstance> = self.with(|state| state.mig.there().copied().collect());
        found.sort_by_key(|gpu| gpu.instance.id);
        found
    }

    /// Compute instances, by the numbers of their GPU instances and their own: what programs see as devices.
    #[must_use]
    pub fn mig_devices(&self) -> Vec<MigDevice> {
        let of = |gpu: &GpuInstance| {
            let mut found: Vec<Instance> = gpu.computes().collect();
            found.sort_by_key(|compute| compute.id);
            let gpu = gpu.instance;
            found.into_iter().map(move |compute| MigDevice { gpu, compute }).collect::<Vec<_>>()
        };
        self.gpu_instances().iter().flat_map(of).collect()
    }

    /// Most instances of a profile on an empty card.
    #[must_use]
    pub fn most_of(&self, profile: &Profile) -> u32 {
        room(self.profiles(), profile, &[])
    }

    /// How many more instances of a profile fit.
    ///
    /// # Errors
    /// The card is not in MIG mode, or has no such profile.
    pub fn room_for(&self, profile: u32) -> Result<u32, MigError> {
        self.must_be_on()?;
        let profile = self.profile(profile)?;
        let there: Vec<Instance> = self.gpu_instances().iter().map(|gpu| gpu.instance).collect();
        Ok(room(self.profiles(), profile, &there))
    }

    /// Makes a GPU instance: there, or at the first place that it fits.
    ///
    /// # Errors
    /// The card is not in MIG mode, has no such profile or placement, or not enough left.
    pub fn create_gpu_instance(&self, profile: u32, at: Option<Placement>) -> Result<Instance, MigError> {
        self.must_be_on()?;
        let wanted = self.profile(profile)?;
        if at.is_some_and(|at| !places(wanted).any(|place| place == at)) {
            return Err(MigError::Unknown);
        }
        let all = self.profiles();
        let largest = all.iter().map(|profile| profile.memory_mib).max();
        self.with(|state| {
            let table = &mut state.mig;
            let there: Vec<Instance> = table.there().map(|gpu| gpu.instance).collect();
            let mut candidates = places(wanted).filter(|place| at.is_none_or(|at| at == *place));
            let found = candidates.find(|place| fits(all, wanted, *place, there.iter()));
            let placement = found.ok_or(MigError::NoRoom)?;
            let first = u32::from(Some(wanted.memory_mib) != largest);
            let id = free_id(first, &there);
            let serial = table.next_serial();
            let made = Instance { serial, id, profile, placement };
            let books = Instance { serial: 0, ..made };
            let gpu = GpuInstance { instance: books, ..GpuInstance::default() };
            let place =
                table.places.iter_mut().find(|gpu| !gpu.instance.is_there()).ok_or(MigError::NoRoom)?;
            *place = gpu;
            // Last: a maker that is killed before has made nothing.
            place.instance.serial = serial;
            Ok(made)
        })
    }

    /// Destroys a GPU instance.
    ///
    /// # Errors
    /// There is none, or a process uses it.
    pub fn destroy_gpu_instance(&self, serial: u64) -> Result<(), MigError> {
        self.with(|state| {
            let gpu = state.gpu(serial)?;
            if gpu.computes().next().is_some() {
                return Err(MigError::InUse);
            }
            self.close_books(serial)?;
            gpu.instance = Instance::default();
            Ok(())
        })?;
        // A process that has the state file open keeps it, closed.
        drop(std::fs::remove_file(self.books_of(serial)));
        Ok(())
    }

    /// Makes a compute instance of so many compute slices; its profile says how many, as the vendor counts them.
    ///
    /// # Errors
    /// There is no such GPU instance, it has no such profile, or not enough left.
    pub fn create_compute_instance(&self, gpu: u64, profile: u32) -> Result<MigDevice, MigError> {
        let slices = compute_slices(profile).ok_or(MigError::Unknown)?;
        self.with(|state| {
            let table = &mut state.mig;
            let serial = table.made + 1;
            let (instance, made) = {
                let gpu = table.gpu(gpu)?;
                let of_gpu = self.profile(gpu.instance.profile)?.slices;
                if slices > of_gpu {
                    return Err(MigError::NotSupported);
                }
                let there: Vec<Instance> = gpu.computes().collect();
                let free = |start: &u32| {
                    let at = Placement { start: *start, size: slices };
                    there.iter().all(|other| !other.placement.overlaps(at))
                };
                let start = (0..=of_gpu - slices).find(free).ok_or(MigError::NoRoom)?;
                let id = free_id(0, &there);
                let placement = Placement { start, size: slices };
                (gpu.instance, Instance { serial, id, profile, placement })
            };
            self.open_books(instance)?;
            table.next_serial();
            let gpu = table.gpu(instance.serial)?;
            let place = gpu.compute.iter_mut().find(|place| !place.is_there()).ok_or(MigError::NoRoom)?;
            *place = Instance { serial: 0, ..made };
            place.serial = serial;
            Ok(MigDevice { gpu: instance, compute: made })
        })
    }

    /// Destroys a compute instance.
    ///
    /// # Errors
    /// There is none, or a process uses it.
    pub fn destroy_compute_instance(&self, serial: u64) -> Result<(), MigError> {
        self.with(|state| {
            let gpus = &mut state.mig.places;
            let holds = |gpu: &&mut GpuInstance| gpu.computes().any(|compute| compute.serial == serial);
            let gpu = gpus.iter_mut().find(holds).ok_or(MigError::Unknown)?;
            // The accounting does not record which of several compute instances a process uses.
            self.close_books(gpu.instance.serial)?;
            gpu.compute.iter_mut().filter(|c| c.serial == serial).for_each(|c| *c = Instance::default());
            if gpu.computes().next().is_some() {
                self.open_books(gpu.instance)?;
            }
            Ok(())
        })
    }

    /// The UUID of a compute instance.
    #[must_use]
    pub fn mig_uuid(&self, compute: Instance) -> String {
        // The finalizer of splitmix64 gives each number another one.
        let mut mixed = compute.serial.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let card = u128::from_be_bytes(self.facts().uuid_bytes().unwrap_or_default());
        let both = format!("{:032x}", card ^ (u128::from(mixed ^ (mixed >> 31)) << 40));
        let part = |from: usize, to: usize| both.get(from..to).unwrap_or_default();
        format!("MIG-{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
    }

    /// A MIG device as a card: its memory, its part of the compute.
    ///
    /// # Errors
    /// Its state file cannot be opened.
    pub fn mig_card(&self, device: MigDevice) -> Result<Self, OpenError> {
        let MigDevice { gpu, compute } = device;
        let whole = self.facts();
        let profile = self.profiles().iter().find(|profile| profile.id == gpu.profile);
        let slices = |profile: &Profile| u64::from(profile.slices.max(1));
        let all = self.profiles().iter().map(slices).max().unwrap_or(1);
        let of_gpu = profile.map_or(1, slices);
        let sms = profile.map(|p| u64::from(p.multiprocessors)).filter(|sms| *sms > 0);
        let sms =
            sms.unwrap_or(u64::from(whole.sms) * of_gpu / all) * u64::from(compute.placement.size) / of_gpu;
        let memory_mib = profile.map_or(0, |profile| profile.memory_mib);
        let facts = CardFacts {
            name: format!("{} MIG {}", whole.name, profile.map_or("", |profile| profile.name.as_str())),
            uuid: self.mig_uuid(compute),
            memory_bytes: memory_mib << 20,
            sms: u32::try_from(sms).unwrap_or(whole.sms).max(1),
            mig: MigMode::None,
            ..whole.clone()
        };
        let books = self.books_of(gpu.serial);
        // Not made here: it may have been destroyed by now.
        std::fs::symlink_metadata(&books).map_err(|source| OpenError::io(&books, source))?;
        self.part(gpu.serial, facts)
    }

    /// Lets processes into a GPU instance.
    fn open_books(&self, gpu: Instance) -> Result<(), MigError> {
        let books = self.part(gpu.serial, self.facts().clone()).map_err(MigError::Books)?;
        books.set_health(crate::card::Health::Well);
        Ok(())
    }

    /// Lets no process into a GPU instance any more, unless one is in it.
    fn close_books(&self, serial: u64) -> Result<(), MigError> {
        if !self.books_of(serial).exists() {
            // The instance was never open to processes.
            return Ok(());
        }
        let books = self.part(serial, self.facts().clone()).map_err(MigError::Books)?;
        if books.close_if_empty() { Ok(()) } else { Err(MigError::InUse) }
    }
}

/// Compute slices of a profile of compute instances, by the vendor's number.
#[must_use]
pub const fn compute_slices(profile: u32) -> Option<u32> {
    match profile {
        0..=3 => Some(profile + 1),
        4 => Some(7),
        5 => Some(8),
        6 => Some(6),
        _ => None,
    }
}

impl InstanceTable {
    fn gpu(&mut self, serial: u64) -> Result<&mut GpuInstance, MigError> {
        let mut all = self.places.iter_mut();
        all.find(|gpu| serial != 0 && gpu.instance.serial == serial).ok_or(MigError::Unknown)
    }
}

impl State {
    fn gpu(&mut self, serial: u64) -> Result<&mut GpuInstance, MigError> {
        self.mig.gpu(serial)
    }
}
