//! Allocations: what stands behind every device address of this process.

use crate::code::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::external::External;
use crate::graph;
use crate::heap::{self, Backing};
use crate::ipc;
use crate::line::{Point, Turn};
use crate::pool::{POOLS, Pool};
use crate::process::{self, OurCard, lock};
use crate::room::{self, Footprint};
use crate::stream::Stream;
use crate::word::Width;
use aliquot_sim_device::{AsyncFrees, MemoryKind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What an allocation is charged to.
#[derive(Clone)]
pub(crate) enum Payer {
    /// The card's accounting.
    Card(MemoryKind, Footprint),
    /// A pool, so many bytes; its handle.
    Pool(Arc<Pool>, u64, u64),
    /// Another process: opened by an IPC handle.
    Exporter,
    /// A physical handle that is mapped here.
    Mapping,
    /// The interface that made it.
    Interface(#[expect(dead_code, reason = "it is there as long as this is")] Arc<External>),
    /// A graph that owns it.
    Graph,
}

/// What stands behind a range of addresses.
#[derive(Clone)]
pub(crate) struct Allocation {
    pub(crate) address: u64,
    /// As requested.
    pub(crate) bytes: u64,
    pub(crate) device: usize,
    pub(crate) context: u64,
    pub(crate) payer: Payer,
    pub(crate) backing: Backing,
    /// A number that no other allocation of this process ever has.
    pub(crate) id: u64,
}

#[derive(Default)]
struct AllocationMap {
    by_address: BTreeMap<u64, Allocation>,
    next_id: u64,
}

static DEVICE: Mutex<AllocationMap> = Mutex::new(AllocationMap { by_address: BTreeMap::new(), next_id: 0 });
/// Host memory made or registered here, by address: bytes, and whether it was made.
static HOST: Mutex<BTreeMap<u64, (u64, Origin)>> = Mutex::new(BTreeMap::new());

/// Where pinned host memory comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From here.
    Made,
    /// From the caller.
    Registered,
}

/// Records an allocation; its number.
pub(crate) fn insert(mut allocation: Allocation) -> u64 {
    let mut ranges = lock(&DEVICE);
    ranges.next_id += 1;
    let id = ranges.next_id;
    allocation.id = id;
    ranges.by_address.insert(allocation.address, allocation);
    id
}

/// Frees an allocation if its context ended before the allocation was recorded. An allocation recorded before
/// that end is freed with its context.
fn with_its_context(address: u64, id: u64, context: u64) -> Answer<u64> {
    let Err(gone) = process::must_live(context) else { return Ok(address) };
    let late = {
        let mut ranges = lock(&DEVICE);
        let is_it = ranges.by_address.get(&address).is_some_and(|found| found.id == id);
        if is_it { ranges.by_address.remove(&address) } else { None }
    };
    late.iter().for_each(release);
    Err(gone)
}

/// The allocation that begins at `address`, taken out.
pub(crate) fn remove(address: u64, wanted: impl Fn(&Payer) -> bool) -> Answer<Allocation> {
    let mut ranges = lock(&DEVICE);
    if !ranges.by_address.get(&address).is_some_and(|found| wanted(&found.payer)) {
        return Err(INVALID_VALUE);
    }
    ranges.by_address.remove(&address).ok_or(INVALID_VALUE)
}

/// The allocation that holds `address`.
pub(crate) fn find(address: u64) -> Option<Allocation> {
    let ranges = lock(&DEVICE);
    let (_, found) = ranges.by_address.range(..=address).next_back()?;
    (address - found.address < found.bytes.max(1)).then(|| found.clone())
}

/// Content of `bytes` bytes from `address`; an error where they are not all inside one allocation.
pub(crate) fn range(address: u64, bytes: u64) -> Answer<(Backing, u64)> {
    let found = find(address).ok_or(INVALID_VALUE)?;
    let at = address - found.address;
    if bytes > found.bytes - at {
        return Err(INVALID_VALUE);
    }
    Ok((found.backing, at))
}

fn place(ours: &OurCard, device: usize, context: u64, bytes: u64, payer: Payer) -> Answer<(u64, u64)> {
    let (address, backing) = ours.heap()?.take(bytes)?;
    Ok((address, insert(Allocation { address, bytes, device, context, payer, backing, id: 0 })))
}

/// cuMemAlloc and its kind on the current card.
pub(crate) fn allocate(kind: MemoryKind, bytes: u64) -> Answer<u64> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let context = process::current()?;
    let ours = context.card()?;
    let (device, context) = (context.device, context.home);
    let (address, backing, room) = room::take(ours, (device, context), kind, bytes)?;
    let payer = Payer::Card(kind, room);
    let id = insert(Allocation { address, bytes, device, context, payer, backing, id: 0 });
    let address = with_its_context(address, id, context)?;
    if kind == MemoryKind::Managed {
        let (backing, _) = range(address, bytes)?;
        if let Err(error) = backing.map_for_host(address, bytes) {
            free(address)?;
            return Err(error);
        }
    }
    Ok(address)
}

/// cuMemAllocPitch: the address, and the distance of two rows in bytes.
pub(crate) fn allocate_pitch(width: u64, height: u64) -> Answer<(u64, u64)> {
    let pitch = width.checked_next_multiple_of(512).ok_or(OUT_OF_MEMORY)?;
    let bytes = pitch.checked_mul(height).ok_or(OUT_OF_MEMORY)?;
    Ok((allocate(MemoryKind::Plain, bytes)?, pitch))
}

/// cuMemAllocAsync, from a pool.
pub(crate) fn allocate_from(pool: u64, context: u64, bytes: u64) -> Answer<u64> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let handle = pool;
    let pool = POOLS.get(handle)?;
    let (device, charged) = (pool.device, bytes.checked_next_multiple_of(512).ok_or(OUT_OF_MEMORY)?);
    pool.take(charged)?;
    let ours = process::cards()?.get(device).ok_or(INVALID_VALUE)?;
    let payer = Payer::Pool(Arc::clone(&pool), charged, handle);
    let (address, id) = place(ours, device, context, bytes, payer).inspect_err(|_| pool.give(charged))?;
    with_its_context(address, id, context)
}

/// cuMemFree, and cuMemFreeAsync: either takes what the other side made.
pub(crate) fn free(address: u64) -> Answer {
    if address == 0 {
        return Ok(());
    }
    if is_of_graph(address) {
        return graph::free_left(address);
    }
    let ends = |payer: &Payer| matches!(payer, Payer::Card(..) | Payer::Pool(..) | Payer::Interface(_));
    let freed = remove(address, ends)?;
    release(&freed);
    Ok(())
}

/// What was freed in the order of a stream that is not there yet: until then it is on the card.
static LEAVING: Mutex<Vec<(Point, Allocation)>> = Mutex::new(Vec::new());
static ANY_LEAVING: AtomicBool = AtomicBool::new(false);

/// cuMemFreeAsync. Memory of cuMemAlloc is back at once, or when the stream is there; blocks of pools are the pool's at once.
pub(crate) fn free_in_order(address: u64, stream: &Stream) -> Answer {
    let ours = process::card_of(stream)?;
    let point = stream.point();
    let is_plain = |payer: &Payer| matches!(payer, Payer::Card(..));
    let waits = ours.card.node().async_frees == AsyncFrees::Stream
        && lock(&DEVICE).by_address.get(&address).is_some_and(|found| is_plain(&found.payer))
        && !point.is_done(ours.seat()?);
    if !waits {
        return free(address);
    }
    let freed = remove(address, is_plain)?;
    lock(&LEAVING).push((point.clone(), freed));
    ANY_LEAVING.store(true, Ordering::Release);
    let gone = |turn: &Turn<'_>| {
        turn.wait(turn.before);
        settle_freed();
        turn.before
    };
    stream.aside().put(vec![point], Box::new(gone))
}

/// Gives back memory freed in streams that have reached the free; a concurrent caller waits for it.
pub(crate) fn settle_freed() {
    if !ANY_LEAVING.load(Ordering::Acquire) {
        return;
    }
    let is_there = |point: &Point| {
        let card = process::cards().ok().and_then(|cards| cards.get(point.device()));
        card.and_then(|ours| ours.seat().ok()).is_none_or(|seat| point.is_done(seat))
    };
    let mut leaving = lock(&LEAVING);
    leaving.extract_if(.., |(point, _)| is_there(point)).for_each(|(_, freed)| release(&freed));
}

fn release(freed: &Allocation) {
    let Some(ours) = process::cards().ok().and_then(|cards| cards.get(freed.device)) else { return };
    if let Payer::Card(MemoryKind::Managed, _) = freed.payer
        && heap::unmap_from_host(freed.address, freed.bytes).is_err()
    {
        return;
    }
    match &freed.payer {
        Payer::Card(MemoryKind::Plain, room) if crate::range::keeps(freed, *room) => return,
        Payer::Card(kind, room) => return room::give(ours, *kind, (freed.id, *room, &freed.backing)),
        Payer::Pool(pool, charged, handle) => {
            pool.give(*charged);
            // A destroyed pool keeps nothing.
            if POOLS.get(*handle).is_err()
                && let Ok(seat) = ours.seat()
            {
                pool.trim(seat, ours.card.node().pool_bytes, 0);
            }
        }
        Payer::Exporter => return ipc::end_with_context(freed),
        Payer::Mapping => return,
        Payer::Interface(_) => {
            return heap::unmap(freed.address, freed.bytes.next_multiple_of(heap::BIG_PAGE));
        }
        Payer::Graph => {}
    }
    if let Ok(heap) = ours.heap() {
        heap.give(freed.bytes, &freed.backing);
    }
}

/// A context goes: with it everything allocated in it.
pub(crate) fn free_all_of(context: u64) {
    let ours = {
        let mut ranges = lock(&DEVICE);
        let all = std::mem::take(&mut ranges.by_address);
        let (ours, others) = all.into_iter().partition::<BTreeMap<_, _>, _>(|(_, allocation)| {
            allocation.context == context && !matches!(allocation.payer, Payer::Mapping)
        });
        ranges.by_address = others;
        ours
    };
    ours.values().for_each(release);
    let leaving = lock(&LEAVING).extract_if(.., |(_, freed)| freed.context == context).collect::<Vec<_>>();
    leaving.iter().for_each(|(_, freed)| release(freed));
}

/// Addresses and content that a graph's memory node stands for.
pub(crate) fn place_for_graph(device: usize, bytes: u64) -> Answer<u64> {
    let ours = process::cards()?.get(device).ok_or(INVALID_VALUE)?;
    place(ours, device, 0, bytes, Payer::Graph).map(|(address, _)| address)
}

/// Whether a graph's memory node has this address.
pub(crate) fn is_of_graph(address: u64) -> bool {
    lock(&DEVICE).by_address.get(&address).is_some_and(|found| matches!(found.payer, Payer::Graph))
}

/// A graph's memory node goes.
pub(crate) fn release_of_graph(address: u64) {
    if let Ok(freed) = remove(address, |payer| matches!(payer, Payer::Graph)) {
        release(&freed);
    }
}

/// cuMemAllocHost, cuMemHostAlloc.
pub(crate) fn allocate_host(bytes: u64) -> Answer<u64> {
    process::current()?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let address = heap::host_memory(bytes)?;
    lock(&HOST).insert(address, (bytes, Origin::Made));
    Ok(address)
}

/// cuMemHostRegister.
pub(crate) fn register_host(address: u64, bytes: u64) -> Answer {
    process::current()?;
    if address == 0 || bytes == 0 {
        return Err(INVALID_VALUE);
    }
    lock(&HOST).insert(address, (bytes, Origin::Registered));
    Ok(())
}

/// cuMemFreeHost or cuMemHostUnregister.
pub(crate) fn forget_host(address: u64, origin: Origin) -> Answer {
    let mut host = lock(&HOST);
    match host.get(&address) {
        Some((bytes, found)) if *found == origin => {
            if origin == Origin::Made {
                heap::unmap(address, *bytes);
            }
            host.remove(&address);
            Ok(())
        }
        _ => Err(INVALID_VALUE),
    }
}

/// The pinned host range that holds `address`: where it begins and how long it is.
pub(crate) fn find_host(address: u64) -> Option<(u64, u64)> {
    let host = lock(&HOST);
    let (start, (bytes, _)) = host.range(..=address).next_back()?;
    (address - start < *bytes).then_some((*start, *bytes))
}

/// The word at an address of pinned host memory, after it was written where there is something to write.
pub(crate) fn host_word(address: u64, width: Width, write: Option<u64>) -> Answer<u64> {
    // Locked meanwhile: what was made here is not unmapped.
    let host = lock(&HOST);
    let (start, (bytes, _)) = host.range(..=address).next_back().ok_or(INVALID_VALUE)?;
    if (address - start).saturating_add(width.bytes()) > *bytes {
        return Err(INVALID_VALUE);
    }
    heap::host_word(address, width, write)
}

/// cuMemGetInfo: free and total bytes.
pub(crate) fn info() -> Answer<(u64, u64)> {
    let ours = process::current_card()?;
    ours.well()?;
    crate::vmm::collect();
    settle_freed();
    let total = ours.card.facts().memory_bytes;
    Ok((total.saturating_sub(ours.card.in_use()), total))
}
