//! Virtual memory management: physical handles, address reservations, mappings, sparse arrays.
//!
//! A physical allocation exists until its last reference, mapping, sparse-array tile and shared handle is
//! gone ([`crate::shared`]). The process that made it pays for it; after that process exits no process does.
//! An importer pays nothing. A handle's value is used again as soon as its memory is gone, as the vendor's
//! driver does.

use crate::code::{Answer, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::handle::{Registry, Tag};
use crate::heap::{self, BIG_PAGE, Backing};
use crate::location::{self, Location, MemoryLocation};
use crate::memory::{self, Allocation, Payer};
use crate::multicast::{self, Team};
use crate::process::{self, OurCard, lock};
use crate::shared::{self, Export, ExportDescription, Import, Maker};
use aliquot_sim_device::MemoryKind;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
pub(crate) const FILE_DESCRIPTOR: u32 = 1;

/// What a physical allocation is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    pub(crate) location: Location,
    /// In which forms it may be shared, one bit each.
    pub(crate) handle_types: u32,
}

/// The owner of a physical allocation.
enum PhysicalOwner {
    /// The card's, of which this process pays for it.
    Card,
    /// The host's: free.
    Host,
    /// A multicast object, backed by memory of other allocations.
    Team(Team),
    /// Another process's, which pays; its lock is what counts.
    Other(Mutex<Option<Import>>),
}

/// A physical allocation.
pub(crate) struct Physical {
    pub(crate) device: usize,
    bytes: u64,
    owner: PhysicalOwner,
    backing: Backing,
    pub(crate) properties: Properties,
    life: Mutex<Life>,
}

#[derive(Default)]
struct Life {
    references: u64,
    /// In address ranges and in arrays.
    mappings: u64,
    exports: Vec<Export>,
    /// The card's number for what was shared by a descriptor; 0: nothing was.
    number: u64,
    gone: bool,
}

static PHYSICAL: Registry<Physical> = Registry::reusing(Tag::Physical, INVALID_VALUE);
/// Reservations: address and bytes.
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
/// Mappings: address to handle and physical allocation.
static MAPPED: Mutex<BTreeMap<u64, Hold>> = Mutex::new(BTreeMap::new());
/// What was exported and is still there.
static EXPORTED: Mutex<Vec<Hold>> = Mutex::new(Vec::new());
static EXPORTED_COUNT: AtomicUsize = AtomicUsize::new(0);

/// A physical allocation by its handle.
pub(crate) type Hold = (u64, Arc<Physical>);

impl Life {
    fn is_over(&mut self) -> bool {
        let held = self.references > 0 || self.mappings > 0;
        !held && {
            self.exports.retain(Export::is_open);
            self.exports.is_empty()
        }
    }
}

impl Physical {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A multicast object's cards and memory.
    pub(crate) fn team(&self) -> Option<&Team> {
        match &self.owner {
            PhysicalOwner::Team(team) => Some(team),
            PhysicalOwner::Card | PhysicalOwner::Host | PhysicalOwner::Other(_) => None,
        }
    }

    fn give_back(&self, ours: &OurCard) {
        let number = lock(&self.life).number;
        match ours.seat() {
            Ok(seat) if number != 0 => seat.give_shared(MemoryKind::Physical, self.bytes, number),
            _ => ours.give(MemoryKind::Physical, self.bytes),
        }
    }

    /// One more reference, whether there was one or not; false: it is gone.
    fn life_again(&self) -> bool {
        let mut life = lock(&self.life);
        life.references += u64::from(!life.gone);
        !life.gone
    }
}

/// cuMemGetAllocationGranularity.
pub(crate) fn granularity(properties: Properties) -> Answer<u64> {
    properties.location.find()?;
    Ok(BIG_PAGE)
}

fn add(device: usize, bytes: u64, (owner, backing): (PhysicalOwner, Backing), properties: Properties) -> u64 {
    let life = Mutex::new(Life { references: 1, ..Life::default() });
    PHYSICAL.add(|_| Physical { device, bytes, owner, backing, properties, life }).0
}

/// cuMemCreate: charged to the card that the properties name.
pub(crate) fn create(bytes: u64, properties: Properties, flags: u64) -> Answer<u64> {
    process::cards()?;
    collect();
    if bytes == 0 || !bytes.is_multiple_of(BIG_PAGE) || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let (device, charged) = match properties.location.find()? {
        MemoryLocation::Card(device) => (device, true),
        MemoryLocation::Host => (0, false),
    };
    let ours = process::cards()?.get(device).ok_or(INVALID_DEVICE)?;
    if charged {
        ours.take(MemoryKind::Physical, bytes)?;
    }
    let (_, backing) = ours.heap()?.take(bytes).inspect_err(|_| {
        if charged {
            ours.give(MemoryKind::Physical, bytes);
        }
    })?;
    let owner = if charged { PhysicalOwner::Card } else { PhysicalOwner::Host };
    Ok(add(device, bytes, (owner, backing), properties))
}

/// A multicast object of that size.
pub(crate) fn create_team(team: Team, bytes: u64, handle_types: u32) -> Answer<u64> {
    let ours = process::card(0)?;
    let (_, backing) = ours.heap()?.take(bytes)?;
    let properties = Properties { location: Location { kind: location::NONE, number: 0 }, handle_types };
    Ok(add(0, bytes, (PhysicalOwner::Team(team), backing), properties))
}

/// One more reference to what `wanted` names, by its handle, if this process has it.
pub(crate) fn find_again(wanted: impl Fn(&Physical) -> bool) -> Option<u64> {
    let found = PHYSICAL.select(wanted).into_iter().find(|(_, physical)| physical.life_again());
    found.map(|(handle, _)| handle)
}

/// What a handle names.
pub(crate) fn get(handle: u64) -> Answer<Arc<Physical>> {
    PHYSICAL.get(handle)
}

/// Ends a hold on `physical`; with the last it goes.
fn let_go((handle, physical): &Hold, change: impl FnOnce(&mut Life)) {
    let over = {
        let mut life = lock(&physical.life);
        change(&mut life);
        let over = !life.gone && life.is_over();
        life.gone |= over;
        over
    };
    if over {
        end(*handle, physical);
    }
}

/// Ends an allocation that no handle, mapping or descriptor reaches any more.
fn end(handle: u64, physical: &Arc<Physical>) {
    let ours = process::cards().ok().and_then(|cards| cards.get(physical.device));
    if let Some(ours) = ours {
        match &physical.owner {
            PhysicalOwner::Card => physical.give_back(ours),
            PhysicalOwner::Other(import) => {
                drop(lock(import).take());
                // It may have been the last to have it.
                ours.card.reap();
            }
            PhysicalOwner::Host | PhysicalOwner::Team(_) => {}
        }
        if !matches!(physical.owner, PhysicalOwner::Other(_))
            && let Ok(heap) = ours.heap()
        {
            heap.give(physical.bytes, &physical.backing);
        }
    }
    multicast::leave(physical);
    let mut exported = lock(&EXPORTED);
    exported.retain(|(_, other)| !Arc::ptr_eq(other, physical));
    EXPORTED_COUNT.store(exported.len(), Ordering::Release);
    drop(exported);
    PHYSICAL.forget(handle);
}

/// Frees memory after its last shared handle closes. Closing a descriptor calls no driver function, so each
/// call that takes or reports memory collects.
pub(crate) fn collect() {
    crate::range::collect();
    multicast::collect();
    if EXPORTED_COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let all = lock(&EXPORTED).clone();
    all.iter().for_each(|hold| let_go(hold, |_| ()));
}

/// cuMemRelease.
pub(crate) fn release(handle: u64) -> Answer {
    process::cards()?;
    let physical = PHYSICAL.get(handle)?;
    let mut had = false;
    let_go(&(handle, physical), |life| {
        had = life.references > 0;
        life.references = life.references.saturating_sub(1);
    });
    collect();
    if had { Ok(()) } else { Err(INVALID_VALUE) }
}

/// cuMemRetainAllocationHandle.
pub(crate) fn retain(address: u64) -> Answer<u64> {
    process::cards()?;
    let mapped = lock(&MAPPED);
    let (start, (handle, physical)) = mapped.range(..=address).next_back().ok_or(INVALID_VALUE)?;
    if address - start >= physical.bytes {
        return Err(INVALID_VALUE);
    }
    lock(&physical.life).references += 1;
    Ok(*handle)
}

/// cuMemExportToShareableHandle: a descriptor that is the caller's to close.
pub(crate) fn export(handle: u64, kind: u32) -> Answer<i32> {
    process::cards()?;
    let physical = PHYSICAL.get(handle)?;
    let is_shareable = kind == FILE_DESCRIPTOR && physical.properties.handle_types & FILE_DESCRIPTOR != 0;
    if !is_shareable {
        return Err(NOT_SUPPORTED);
    }
    if let Some(team) = physical.team() {
        return team.export();
    }
    share(handle, physical, Maker::Physical)
}

/// A descriptor of one or several mappings in a row, from `address` on; it keeps what is behind them.
pub(crate) fn export_range(address: u64, bytes: u64) -> Answer<Option<i32>> {
    let mapped = lock(&MAPPED);
    let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
    let (mut at, mut holds) = (address, Vec::new());
    while at < end {
        let found = mapped.range(..=at).next_back();
        let inside = found.filter(|(start, (_, physical))| at - **start < physical.bytes);
        let Some((start, hold)) = inside else { break };
        at = start + hold.1.bytes;
        holds.push(hold.clone());
    }
    let Some((_, first)) = holds.first() else { return Ok(None) };
    let is_of_one = holds.iter().all(|(_, other)| other.device == first.device && other.team().is_none());
    if at < end || !is_of_one {
        return Err(INVALID_VALUE);
    }
    let seat = process::cards()?.get(first.device).ok_or(INVALID_DEVICE)?.seat()?;
    let (descriptor, _) =
        shared::export(&ExportDescription::of(seat, Maker::Range, (first.backing.offset, bytes)))?;
    for hold in holds {
        lock(&hold.1.life).exports.push(Export::of(&descriptor)?);
        note_exported(hold);
    }
    Ok(Some(shared::give_away(descriptor)))
}

/// Memory that another interface to the card makes in this process. It exists as long as the descriptor is
/// open or a process has it imported.
pub(crate) fn make_elsewhere(bytes: u64, device: i32) -> Answer<i32> {
    let properties = Properties {
        location: Location { kind: location::CARD, number: device },
        handle_types: FILE_DESCRIPTOR,
    };
    let handle = create(bytes, properties, 0)?;
    let shared = share(handle, PHYSICAL.get(handle)?, Maker::Interface);
    release(handle)?;
    shared
}

fn share(handle: u64, physical: Arc<Physical>, maker: Maker) -> Answer<i32> {
    let seat = process::cards()?.get(physical.device).ok_or(INVALID_DEVICE)?.seat()?;
    let mut life = lock(&physical.life);
    if life.references == 0 {
        return Err(INVALID_VALUE);
    }
    if life.number == 0 {
        life.number = seat.share(physical.bytes).ok_or(OUT_OF_MEMORY)?;
    }
    let told =
        ExportDescription::of(seat, maker, (physical.backing.offset, physical.bytes)).under(life.number);
    let (descriptor, export) = shared::export_numbered(seat, &told)?;
    life.exports.push(export);
    drop(life);
    note_exported((handle, physical));
    Ok(shared::give_away(descriptor))
}

fn note_exported(hold: Hold) {
    let mut exported = lock(&EXPORTED);
    if !exported.iter().any(|(_, other)| Arc::ptr_eq(other, &hold.1)) {
        exported.push(hold);
    }
    EXPORTED_COUNT.store(exported.len(), Ordering::Release);
}

/// cuMemImportFromShareableHandle: this process's own memory under its own handle, another's under a new one.
pub(crate) fn import(descriptor: i32, kind: u32) -> Answer<u64> {
    let cards = process::cards()?;
    if kind != FILE_DESCRIPTOR {
        return Err(NOT_SUPPORTED);
    }
    if let Ok(object) = multicast::import(descriptor) {
        return Ok(object);
    }
    let (told, import) = shared::import(descriptor, Maker::Physical)?;
    let device = cards.iter().position(|ours| told.is_on(&ours.card)).ok_or(INVALID_DEVICE)?;
    if told.is_own() {
        let all = lock(&EXPORTED).clone();
        let is_it = |other: &Physical| other.device == device && other.backing.offset == told.offset;
        let own = all.into_iter().find(|(_, other)| is_it(other) && other.life_again());
        return own.map(|(handle, _)| handle).ok_or(INVALID_VALUE);
    }
    let ours = cards.get(device).ok_or(INVALID_DEVICE)?;
    let properties = Properties { location: Location::of_card(device)?, handle_types: FILE_DESCRIPTOR };
    let owner = PhysicalOwner::Other(Mutex::new(Some(import)));
    Ok(add(device, told.bytes, (owner, told.backing(&ours.card)?), properties))
}

/// cuMemGetAllocationPropertiesFromHandle.
pub(crate) fn properties(handle: u64) -> Answer<Properties> {
    PHYSICAL.get(handle).map(|physical| physical.properties)
}

/// cuMemAddressReserve.
pub(crate) fn reserve(bytes: u64, alignment: u64) -> Answer<u64> {
    process::cards()?;
    if bytes == 0 || !bytes.is_multiple_of(BIG_PAGE) || (alignment != 0 && !alignment.is_power_of_two()) {
        return Err(INVALID_VALUE);
    }
    let address = heap::reserve(bytes)?;
    lock(&RESERVED).insert(address, bytes);
    Ok(address)
}

/// cuMemAddressFree.
pub(crate) fn unreserve(address: u64, bytes: u64) -> Answer {
    process::cards()?;
    let mut reserved = lock(&RESERVED);
    let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
    if reserved.get(&address) != Some(&bytes) || lock(&MAPPED).range(address..end).next().is_some() {
        return Err(INVALID_VALUE);
    }
    reserved.remove(&address);
    heap::unmap(address, bytes);
    Ok(())
}

/// Whether a range lies inside one reservation.
fn is_reserved(address: u64, bytes: u64) -> bool {
    let reserved = lock(&RESERVED);
    let found = reserved.range(..=address).next_back();
    found.is_some_and(|(start, length)| address.checked_add(bytes).is_some_and(|end| end <= start + length))
}

/// One more mapping of what a handle names.
pub(crate) fn hold(handle: u64) -> Answer<Hold> {
    let physical = PHYSICAL.get(handle)?;
    let mut life = lock(&physical.life);
    if life.references == 0 {
        return Err(INVALID_VALUE);
    }
    life.mappings += 1;
    drop(life);
    Ok((handle, physical))
}

/// One more mapping of what is mapped at an address, and how far behind its beginning that is.
pub(crate) fn hold_at(address: u64) -> Answer<(Hold, u64)> {
    let mapped = lock(&MAPPED);
    let (start, (handle, physical)) = mapped.range(..=address).next_back().ok_or(INVALID_VALUE)?;
    if address - start >= physical.bytes {
        return Err(INVALID_VALUE);
    }
    lock(&physical.life).mappings += 1;
    Ok(((*handle, Arc::clone(physical)), address - start))
}

/// That mapping ends.
pub(crate) fn drop_hold(hold: &Hold) {
    let_go(hold, |life| life.mappings -= 1);
}

/// cuMemMap.
pub(crate) fn map(address: u64, bytes: u64, offset: u64, handle: u64) -> Answer {
    process::cards()?;
    let physical = PHYSICAL.get(handle)?;
    let is_ready = physical.team().is_none_or(Team::is_complete);
    let whole = bytes == physical.bytes && offset == 0 && is_ready;
    if !whole || !address.is_multiple_of(BIG_PAGE) || !is_reserved(address, bytes) {
        return Err(INVALID_VALUE);
    }
    let mut mapped = lock(&MAPPED);
    let end = address + bytes;
    let below = mapped.range(..end).next_back();
    if below.is_some_and(|(start, (_, other))| start + other.bytes > address) {
        return Err(INVALID_VALUE);
    }
    let hold = hold(handle)?;
    memory::insert(Allocation {
        address,
        bytes,
        device: physical.device,
        context: 0,
        payer: Payer::Mapping,
        backing: physical.backing.clone(),
        id: 0,
    });
    mapped.insert(address, hold);
    Ok(())
}

/// cuMemUnmap: whole mappings, one or several in a row.
pub(crate) fn unmap(address: u64, bytes: u64) -> Answer {
    process::cards()?;
    let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
    let gone = {
        let mut mapped = lock(&MAPPED);
        let inside = mapped.range(address..end);
        let covered = inside.map(|(_, (_, physical))| physical.bytes).sum::<u64>();
        if covered != bytes || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let starts = mapped.range(address..end).map(|(start, _)| *start).collect::<Vec<_>>();
        starts.into_iter().filter_map(|start| mapped.remove_entry(&start)).collect::<Vec<_>>()
    };
    for (address, hold) in gone {
        memory::remove(address, |payer| matches!(payer, Payer::Mapping))?;
        drop_hold(&hold);
    }
    collect();
    Ok(())
}

/// cuMemSetAccess, cuMemGetAccess: a mapped range can be reached, nothing else can.
pub(crate) fn check_mapped(address: u64, bytes: u64) -> Answer {
    process::cards()?;
    let mapped = lock(&MAPPED);
    let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
    let inside = mapped.range(address..end).map(|(_, (_, physical))| physical.bytes).sum::<u64>();
    if inside == bytes && bytes > 0 { Ok(()) } else { Err(INVALID_VALUE) }
}
