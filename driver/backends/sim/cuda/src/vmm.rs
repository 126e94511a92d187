//! Virtual memory management: physical handles, address reservations, mappings.
//!
//! A physical allocation lives until the last of its handle references and its mappings goes; until then it is charged.

use crate::code::{Answer, INVALID_DEVICE, INVALID_VALUE};
use crate::handle::{Registry, Tag};
use crate::heap::{self, BIG_PAGE, Backing};
use crate::memory::{self, Allocation, Payer};
use crate::process::{self, lock};
use aliquot_sim_device::Kind;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Location types, by the vendor's numbers.
const LOCATION_DEVICE: u32 = 1;
const LOCATIONS_HOST: std::ops::RangeInclusive<u32> = 2..=4;

/// What a physical allocation is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    pub(crate) location_type: u32,
    pub(crate) location: i32,
}

/// A physical allocation.
struct Physical {
    device: usize,
    bytes: u64,
    /// Whether a card pays; host locations are free.
    charged: bool,
    backing: Backing,
    properties: Properties,
    life: Mutex<Life>,
}

#[derive(Clone, Copy)]
struct Life {
    references: u64,
    mappings: u64,
}

static PHYSICAL: Registry<Physical> = Registry::new(Tag::Physical, INVALID_VALUE);
/// Reservations: address and bytes.
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
/// Mappings: address to handle and physical allocation.
static MAPPED: Mutex<BTreeMap<u64, (u64, Arc<Physical>)>> = Mutex::new(BTreeMap::new());

/// cuMemGetAllocationGranularity.
pub(crate) fn granularity(properties: Properties) -> Answer<u64> {
    device_of(properties)?;
    Ok(BIG_PAGE)
}

fn device_of(properties: Properties) -> Answer<usize> {
    match properties.location_type {
        LOCATION_DEVICE => {
            process::card(properties.location)?;
            usize::try_from(properties.location).map_err(|_| INVALID_DEVICE)
        }
        kind if LOCATIONS_HOST.contains(&kind) => Ok(0),
        _ => Err(INVALID_VALUE),
    }
}

/// cuMemCreate: charged to the card that the properties name.
pub(crate) fn create(bytes: u64, properties: Properties, flags: u64) -> Answer<u64> {
    process::cards()?;
    if bytes == 0 || !bytes.is_multiple_of(BIG_PAGE) || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let device = device_of(properties)?;
    let charged = properties.location_type == LOCATION_DEVICE;
    let ours = process::cards()?.get(device).ok_or(INVALID_DEVICE)?;
    if charged {
        ours.take(Kind::Physical, bytes)?;
    }
    let (_, backing) = ours.heap()?.take(bytes).inspect_err(|_| {
        if charged {
            ours.give(Kind::Physical, bytes);
        }
    })?;
    let life = Mutex::new(Life { references: 1, mappings: 0 });
    Ok(PHYSICAL.add(|_| Physical { device, bytes, charged, backing, properties, life }).0)
}

/// Ends one hold on `physical`; with the last it goes.
fn let_go(handle: u64, physical: &Physical, change: impl FnOnce(&mut Life)) {
    let life = {
        let mut life = lock(&physical.life);
        change(&mut life);
        *life
    };
    if life.references == 0 && PHYSICAL.get(handle).is_ok() && life.mappings == 0 {
        // Nobody can come by it any more.
        if PHYSICAL.remove(handle).is_err() {
            return;
        }
        if let Some(ours) = process::cards().ok().and_then(|cards| cards.get(physical.device)) {
            if physical.charged {
                ours.give(Kind::Physical, physical.bytes);
            }
            if let Ok(heap) = ours.heap() {
                heap.give(physical.bytes, &physical.backing);
            }
        }
    }
}

/// cuMemRelease.
pub(crate) fn release(handle: u64) -> Answer {
    process::cards()?;
    let physical = PHYSICAL.get(handle)?;
    if lock(&physical.life).references == 0 {
        return Err(INVALID_VALUE);
    }
    let_go(handle, &physical, |life| life.references -= 1);
    Ok(())
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

/// cuMemMap.
pub(crate) fn map(address: u64, bytes: u64, offset: u64, handle: u64) -> Answer {
    process::cards()?;
    let physical = PHYSICAL.get(handle)?;
    let whole = bytes == physical.bytes && offset == 0;
    if !whole || !address.is_multiple_of(BIG_PAGE) || !is_reserved(address, bytes) {
        return Err(INVALID_VALUE);
    }
    let mut mapped = lock(&MAPPED);
    let end = address + bytes;
    let below = mapped.range(..end).next_back();
    if below.is_some_and(|(start, (_, other))| start + other.bytes > address) {
        return Err(INVALID_VALUE);
    }
    lock(&physical.life).mappings += 1;
    memory::insert(Allocation {
        address,
        bytes,
        device: physical.device,
        context: 0,
        payer: Payer::Mapping,
        backing: physical.backing.clone(),
        id: 0,
    });
    mapped.insert(address, (handle, physical));
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
    for (address, (handle, physical)) in gone {
        memory::remove(address, |payer| matches!(payer, Payer::Mapping))?;
        let_go(handle, &physical, |life| life.mappings -= 1);
    }
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
