//! Cards of a cluster, as its slices publish them and its claims hold them.
//!
//! ```text
//!  slices of the newest generation ─▶ devices by card ─┬▶ layout, memory
//!  allocated claims ─▶ held devices, shares, counters ─┴▶ held, free, largest hole
//! ```
//!
//! Other drivers' devices are left out: nothing says what their cards are. A device with a taint against new claims is no hole.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::dra::{
    Access, AttributeValue, Device, DeviceId, NodeSelection, ResourceClaim, ResourceSlice, Sharing,
    TaintEffect,
};
use aliquot_core::offer::{CAPACITY_CORES, CAPACITY_MEMORY, DRIVER, LayoutKind};
use aliquot_core::units::Bytes;

/// One card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterCard {
    pub(super) node: String,
    pub(super) uuid: String,
    pub(super) model: String,
    /// The layout that its devices show.
    pub(super) layout: LayoutKind,
    pub(super) memory: Bytes,
    /// Memory that claims hold.
    pub(super) held: Bytes,
    /// Claims that hold a part of it.
    pub(super) holders: usize,
    /// The largest device or share that a claim could still get, and its memory.
    pub(super) largest: Option<(String, Bytes)>,
    /// Whether every device of it has a taint against new claims.
    pub(super) is_closed: bool,
}

/// What claims hold of one device.
#[derive(Debug, Default)]
struct HeldDevice {
    claims: BTreeSet<String>,
    /// Memory of its shares.
    shares: u64,
    /// A claim has it alone.
    is_exclusive: bool,
}

/// What is held, by device.
type HeldDevices = BTreeMap<DeviceId, HeldDevice>;

/// Amounts of counters, by pool, counter set and counter, in billionths.
type Counters = BTreeMap<(String, String, String), i128>;

/// A device with its place.
struct PublishedDevice<'s> {
    id: DeviceId,
    node: &'s str,
    device: &'s Device,
}

// === impl ClusterCard ===

impl ClusterCard {
    /// Memory that no claim holds; none of a card that takes no claims.
    pub(super) fn free(&self) -> Bytes {
        if self.is_closed { Bytes(0) } else { Bytes(self.memory.0.saturating_sub(self.held.0)) }
    }
}

/// Every card that this driver publishes, by node and UUID.
pub(super) fn cards(slices: &[ResourceSlice], claims: &[ResourceClaim]) -> Vec<ClusterCard> {
    let current = current(slices);
    let devices: Vec<PublishedDevice<'_>> = current.iter().flat_map(|slice| published(slice)).collect();
    let held = held(claims);
    let left = counters_left(&current, &devices, &held);
    let mut by_card = BTreeMap::<(&str, &str), Vec<&PublishedDevice<'_>>>::new();
    for one in &devices {
        let Some(uuid) = text(one.device, "parentUUID") else { continue };
        by_card.entry((one.node, uuid)).or_default().push(one);
    }
    by_card.into_iter().map(|((node, uuid), parts)| card(node, uuid, &parts, &held, &left)).collect()
}

/// Slices of this driver of the newest generation of each pool.
fn current(slices: &[ResourceSlice]) -> Vec<&ResourceSlice> {
    let ours = || slices.iter().filter(|slice| slice.driver == DRIVER);
    let mut newest = BTreeMap::<&str, i64>::new();
    for slice in ours() {
        let known = newest.entry(&slice.pool.name).or_insert(slice.pool.generation);
        *known = (*known).max(slice.pool.generation);
    }
    let is_newest =
        |slice: &&ResourceSlice| newest.get(slice.pool.name.as_str()) == Some(&slice.pool.generation);
    ours().filter(is_newest).collect()
}

fn published(slice: &ResourceSlice) -> impl Iterator<Item = PublishedDevice<'_>> {
    slice.devices.iter().filter_map(move |device| {
        let node = match (&slice.node, &device.node) {
            (NodeSelection::Name(name), _) => name.as_str(),
            (NodeSelection::PerDevice, Some(NodeSelection::Name(name))) => name.as_str(),
            _ => return None,
        };
        let (driver, pool) = (slice.driver.clone(), slice.pool.name.clone());
        Some(PublishedDevice { id: DeviceId { driver, pool, device: device.name.clone() }, node, device })
    })
}

fn held(claims: &[ResourceClaim]) -> HeldDevices {
    let mut held = HeldDevices::new();
    for claim in claims {
        let results = claim.allocation.iter().flat_map(|allocation| &allocation.devices);
        for result in results.filter(|result| result.access == Access::Normal) {
            let one = held.entry(result.device.clone()).or_default();
            one.claims.insert(format!("{}/{}", claim.namespace, claim.name));
            match result.share_id {
                Some(_) => {
                    let memory = result.consumed_capacity.get(CAPACITY_MEMORY);
                    let memory = memory.map_or(0, |memory| units(memory.units_rounded_up()));
                    one.shares = one.shares.saturating_add(memory);
                }
                None => one.is_exclusive = true,
            }
        }
    }
    held
}

/// What allocated devices leave of counters; a shared device takes its own once.
fn counters_left(slices: &[&ResourceSlice], devices: &[PublishedDevice<'_>], held: &HeldDevices) -> Counters {
    let mut left = Counters::new();
    for slice in slices {
        for set in slice.shared_counters.iter() {
            for (name, total) in &set.counters {
                left.insert((slice.pool.name.clone(), set.name.clone(), name.clone()), total.nanos());
            }
        }
    }
    for one in devices.iter().filter(|one| held.contains_key(&one.id)) {
        for (key, amount) in taken(one) {
            *left.entry(key).or_default() -= amount;
        }
    }
    left
}

/// What a device takes of counters.
fn taken<'d>(one: &'d PublishedDevice<'_>) -> impl Iterator<Item = ((String, String, String), i128)> + 'd {
    one.device.consumes.iter().flat_map(move |consumes| {
        consumes.counters.iter().map(move |(name, amount)| {
            ((one.id.pool.clone(), consumes.counter_set.clone(), name.clone()), amount.nanos())
        })
    })
}

fn card(
    node: &str,
    uuid: &str,
    parts: &[&PublishedDevice<'_>],
    held: &HeldDevices,
    left: &Counters,
) -> ClusterCard {
    let whole = parts.iter().find(|one| text(one.device, "type") == Some("card"));
    let total = match whole {
        Some(whole) => memory(whole.device),
        None => sum(parts.iter().map(|one| memory(one.device))),
    };
    let used = |one: &&PublishedDevice<'_>| match held.get(&one.id) {
        Some(held) if held.is_exclusive => memory(one.device),
        held => held.map_or(0, |held| held.shares),
    };
    let claims: BTreeSet<&String> =
        parts.iter().filter_map(|one| held.get(&one.id)).flat_map(|held| &held.claims).collect();
    let open = || parts.iter().filter(|one| !is_closed(one.device));
    // By memory, then compute; of equal ones the first by name.
    let room = open().filter_map(|one| {
        let name = profile(one.device);
        Some((room(one, held, left)?, amount(one.device, CAPACITY_CORES), Reverse(name)))
    });
    let largest = room.max().map(|(room, _, Reverse(profile))| (profile.to_owned(), Bytes(room)));
    ClusterCard {
        node: node.to_owned(),
        uuid: uuid.to_owned(),
        model: parts.iter().find_map(|one| text(one.device, "model")).unwrap_or("unknown").to_owned(),
        layout: layout(parts),
        memory: Bytes(total),
        held: Bytes(sum(parts.iter().map(used)).min(total)),
        holders: claims.len(),
        largest,
        is_closed: open().next().is_none(),
    }
}

/// The layout that the devices of a card show.
fn layout(parts: &[&PublishedDevice<'_>]) -> LayoutKind {
    let has = |kind: &str| parts.iter().any(|one| text(one.device, "type") == Some(kind));
    let is_shared = parts.iter().any(|one| one.device.sharing == Sharing::Shareable);
    match (has("card"), has("partition"), has("slot")) {
        (_, _, true) => LayoutKind::Slots,
        (true, true, _) => LayoutKind::Dynamic,
        (false, true, _) => LayoutKind::Split,
        (_, false, _) if is_shared => LayoutKind::Shared,
        (_, false, _) => LayoutKind::Whole,
    }
}

/// Memory that a claim could get of a device now; `None`: it gets nothing.
fn room(one: &PublishedDevice<'_>, held: &HeldDevices, left: &Counters) -> Option<u64> {
    let held = held.get(&one.id);
    let memory = memory(one.device);
    match (held, one.device.sharing) {
        (Some(held), _) if held.is_exclusive => None,
        (Some(held), Sharing::Shareable) => Some(memory.saturating_sub(held.shares)).filter(|room| *room > 0),
        (Some(_), Sharing::Exclusive) => None,
        (None, _) => taken(one)
            .all(|(key, amount)| left.get(&key).is_some_and(|left| *left >= amount))
            .then_some(memory),
    }
}

fn is_closed(device: &Device) -> bool {
    device.taints.iter().any(|taint| matches!(taint.effect, TaintEffect::NoSchedule | TaintEffect::NoExecute))
}

fn profile(device: &Device) -> &str {
    text(device, "profile").filter(|profile| !profile.is_empty()).unwrap_or("card")
}

fn memory(device: &Device) -> u64 {
    amount(device, CAPACITY_MEMORY)
}

fn amount(device: &Device, capacity: &str) -> u64 {
    device.capacity.get(capacity).map_or(0, |amount| units(amount.value.units_rounded_up()))
}

/// A sum of amounts that others wrote.
pub(super) fn sum(amounts: impl Iterator<Item = u64>) -> u64 {
    amounts.fold(0, u64::saturating_add)
}

fn units(units: i64) -> u64 {
    u64::try_from(units).unwrap_or(0)
}

fn text<'d>(device: &'d Device, name: &str) -> Option<&'d str> {
    match device.attributes.get(name)? {
        AttributeValue::String(text) => Some(text),
        _ => None,
    }
}
