//! Initialisation, devices, and the search for exports.

use super::context::InnerTable;
use super::pointer::{In, Out, Text, write_text};
use crate::code::{self, Answer, INVALID_DEVICE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED};
use crate::location::Location;
use crate::pool::POOLS;
use crate::process::{self, OurCard};
use crate::table::{self, LookupResult, Mode};
use aliquot_sim_device::PciPlace;
use std::ffi::c_char;

/// Flags of cuGetProcAddress.
const FLAG_PER_THREAD: u64 = 2;
/// How a search ended, by the vendor's numbers.
const STATUS_FOUND: u32 = 0;
const STATUS_NO_SYMBOL: u32 = 1;
const STATUS_TOO_NEW: u32 = 2;

type Status = u32;

fn search(symbol: Text, version: i32, flags: u64) -> Answer<(*const (), Status)> {
    let version = u32::try_from(version).map_err(|_| INVALID_VALUE)?;
    if version > process::driver_version() || flags > FLAG_PER_THREAD {
        return Err(INVALID_VALUE);
    }
    let mode = if flags == FLAG_PER_THREAD { Mode::PerThread } else { Mode::Legacy };
    Ok(match table::find(&symbol.get()?.to_string_lossy(), version, mode) {
        LookupResult::At(address) => (address, STATUS_FOUND),
        LookupResult::No => (std::ptr::null(), STATUS_NO_SYMBOL),
        LookupResult::TooNew => (std::ptr::null(), STATUS_TOO_NEW),
    })
}

/// What a card says under the vendor's number of an attribute; 0 for what it has not.
fn attribute(number: i32, ours: &process::OurCard) -> i32 {
    let facts = ours.card.facts();
    let int = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    match number {
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        8 => 49_152,
        9 | 12 | 82 => 65_536,
        10 | 51 => 32,
        106 => 32,
        11 => i32::MAX,
        13 => 1_980_000,
        14 => 512,
        15 | 19 | 31 | 32 | 41 | 78 | 79 | 80 | 83 | 86 | 89 | 90 | 95 | 102 | 115 => 1,
        // Words of both widths can be waited for in every way, by either version of the calls; nothing can be flushed.
        92..=94 | 122 | 123 => 1,
        16 => int(facts.sms),
        20 => facts.compute_mode as i32,
        21..=30 | 42..=49 | 52..=74 => 16_384,
        33 => int(facts.pci().bus),
        34 => int(facts.pci().slot),
        36 => 2_619_000,
        37 => 5_120,
        38 => 52_428_800,
        39 => 2048,
        40 => 3,
        50 => int(facts.pci().domain),
        75 => int(facts.major),
        76 => int(facts.minor),
        81 => 233_472,
        97 => 232_448,
        111 => 1024,
        // POSIX file descriptors, and nothing else, name shared pools.
        119 => 1,
        _ => 0,
    }
}

/// Attributes the vendor has numbers for.
const ATTRIBUTES: std::ops::Range<i32> = 1..160;
/// The card on which pools of pinned memory are; other places and kinds have no pools of their own here.
fn pinned_on(location: In<Location>, kind: u32) -> Answer<(&'static OurCard, usize)> {
    let location = location.get()?;
    if location.kind != 1 || kind != 1 {
        return Err(NOT_SUPPORTED);
    }
    let device = usize::try_from(location.number).map_err(|_| INVALID_DEVICE)?;
    Ok((process::card(location.number)?, device))
}

exports! {
    fn cuInit(flags: u32) { process::init(flags) }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(i32::try_from(process::driver_version()).map_err(|_| INVALID_VALUE)?)
    }

    fn cuGetErrorName(error: u32, text: Out<*const c_char>) {
        let found = code::texts(error);
        text.set(found.map_or(std::ptr::null(), |texts| texts.0.as_ptr()))?;
        found.map(|_| ()).ok_or(INVALID_VALUE)
    }

    fn cuGetErrorString(error: u32, text: Out<*const c_char>) {
        let found = code::texts(error);
        text.set(found.map_or(std::ptr::null(), |texts| texts.1.as_ptr()))?;
        found.map(|_| ()).ok_or(INVALID_VALUE)
    }

    fn cuGetProcAddress(symbol: Text, function: Out<*const ()>, version: i32, flags: u64) {
        function.check()?;
        let (address, status) = search(symbol, version, flags)?;
        function.set(address)?;
        if status == STATUS_FOUND { Ok(()) } else { Err(NOT_FOUND) }
    }

    fn cuGetProcAddress_v2(symbol: Text, function: Out<*const ()>, version: i32, flags: u64, status: Out<u32>) {
        function.check()?;
        let (address, found) = search(symbol, version, flags)?;
        status.set_if_wanted(found);
        function.set(address)
    }

    fn cuGetExportTable(table: Out<*const ()>, id: In<[u8; 16]>) {
        let id = id.get()?;
        if id == InnerTable::ID {
            return table.set(std::ptr::from_ref(InnerTable::TABLE).cast());
        }
        table.set(std::ptr::null())?;
        let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        aliquot_sim_device::log_unsupported(&format!("cuGetExportTable {digits}"));
        Err(NOT_FOUND)
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        count.set(i32::try_from(process::cards()?.len()).map_err(|_| INVALID_VALUE)?)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        device.check()?;
        process::card(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(name: Out<u8>, size: i32, device: i32) {
        write_text(name, size, &process::card(device)?.card.facts().name)
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) {
        // The card's, also where the process has a part of it; the second version returns the part's.
        uuid.set(process::card(device)?.card.facts_of_card().uuid_bytes().ok_or(INVALID_DEVICE)?)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(process::card(device)?.card.facts().uuid_bytes().ok_or(INVALID_DEVICE)?)
    }

    fn cuDeviceGetLuid(luid: Out<u64>, mask: Out<u32>, device: i32) {
        process::card(device)?;
        luid.set(0)?;
        mask.set(0)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<u64>, device: i32) {
        bytes.set(process::card(device)?.card.facts().memory_bytes)
    }

    fn cuDeviceTotalMem(bytes: Out<u32>, device: i32) {
        let all = process::card(device)?.card.facts().memory_bytes;
        bytes.set(u32::try_from(all).unwrap_or(u32::MAX))
    }

    fn cuDeviceGetAttribute(value: Out<i32>, number: i32, device: i32) {
        value.check()?;
        let ours = process::card(device)?;
        if !ATTRIBUTES.contains(&number) {
            return Err(INVALID_VALUE);
        }
        value.set(attribute(number, ours))
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let ours = process::card(device)?;
        major.set(attribute(75, ours))?;
        minor.set(attribute(76, ours))
    }

    fn cuDeviceGetPCIBusId(text: Out<u8>, size: i32, device: i32) {
        let place = process::card(device)?.card.facts().pci();
        write_text(text, size, &place.text(4).to_lowercase())
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text) {
        device.check()?;
        let asked = PciPlace::parse(&text.get()?.to_string_lossy()).ok_or(INVALID_VALUE)?;
        let place = process::cards()?.iter().position(|ours| ours.card.facts().pci() == asked);
        device.set(place.and_then(|place| i32::try_from(place).ok()).ok_or(INVALID_DEVICE)?)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        process::card(device)?;
        process::card(peer)?;
        can.set(0)
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<u64>, device: i32) {
        pool.check()?;
        let ours = process::card(device)?;
        pool.set(ours.pools.default_handle(usize::try_from(device).map_err(|_| INVALID_DEVICE)?))
    }

    fn cuDeviceGetMemPool(pool: Out<u64>, device: i32) {
        pool.check()?;
        let ours = process::card(device)?;
        pool.set(ours.pools.current_handle(usize::try_from(device).map_err(|_| INVALID_DEVICE)?))
    }

    fn cuDeviceSetMemPool(device: i32, pool: u64) {
        let ours = process::card(device)?;
        if i32::try_from(POOLS.get(pool)?.device) != Ok(device) {
            return Err(INVALID_VALUE);
        }
        ours.pools.set_current(pool);
        Ok(())
    }

    fn cuMemGetDefaultMemPool(pool: Out<u64>, location: In<Location>, kind: u32) {
        pool.check()?;
        let (ours, device) = pinned_on(location, kind)?;
        pool.set(ours.pools.default_handle(device))
    }

    fn cuMemGetMemPool(pool: Out<u64>, location: In<Location>, kind: u32) {
        pool.check()?;
        let (ours, device) = pinned_on(location, kind)?;
        pool.set(ours.pools.current_handle(device))
    }

    fn cuMemSetMemPool(location: In<Location>, kind: u32, pool: u64) {
        let (ours, device) = pinned_on(location, kind)?;
        if POOLS.get(pool)?.device != device {
            return Err(INVALID_VALUE);
        }
        ours.pools.set_current(pool);
        Ok(())
    }

    fn cuDeviceGraphMemTrim(device: i32) {
        let ours = process::card(device)?;
        ours.pools.graphs.trim(ours)
    }

    fn cuDeviceGetGraphMemAttribute(device: i32, number: u32, value: Out<u64>) {
        let (used, reserved) = process::card(device)?.pools.graphs.usage();
        match number {
            0 | 1 => value.set(used),
            2 | 3 => value.set(reserved),
            _ => Err(INVALID_VALUE),
        }
    }
}
