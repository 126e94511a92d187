//! Which cards a process has: `CUDA_VISIBLE_DEVICES`, and what MIG mode leaves of it.
//!
//! | entry | means |
//! |---|---|
//! | index, `GPU-<uuid>` or a unique beginning of it | the card; in MIG mode its first compute instance |
//! | `MIG-<uuid>` or a unique beginning of it | a compute instance |
//! | `MIG-GPU-<uuid>/<GPU instance>/<compute instance>` | the same, as drivers before 470 name it |
//!
//! The first entry that names nothing ends the list. A process has one compute instance at most, and no other card beside it:
//! the first of all where no variable chooses.

use aliquot_sim_device::{Card, Device, MigDevice, MigMode};

/// The cards of this process, in its order.
pub(crate) fn visible(device: &Device) -> Vec<Card> {
    let chosen = match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(text) => named(device, &text),
        Err(_) => device.cards().iter().filter_map(as_device).collect(),
    };
    match chosen.iter().find(|card| card.gpu_instance().is_some()) {
        Some(instance) => vec![instance.clone()],
        None => chosen,
    }
}

/// What the entries of the variable name; nothing at all where one card is named twice.
fn named(device: &Device, text: &str) -> Vec<Card> {
    let mut chosen = Vec::<Card>::new();
    for entry in text.split(',').map(str::trim) {
        let Some(card) = one(device, entry) else { break };
        if chosen.iter().any(|other| other.facts().uuid == card.facts().uuid) {
            return Vec::new();
        }
        chosen.push(card);
    }
    chosen
}

fn one(device: &Device, entry: &str) -> Option<Card> {
    if let Some(path) = entry.strip_prefix("MIG-").filter(|path| path.contains('/')) {
        return by_path(device, path);
    }
    if !entry.starts_with("GPU-") && !entry.starts_with("MIG-") {
        let index: usize = entry.parse().ok()?;
        return as_device(device.cards().get(index)?);
    }
    let cards = device.cards().iter().filter(|card| card.facts().uuid.starts_with(entry));
    let cards = cards.map(as_device);
    let begins = |card: &&(&Card, MigDevice)| card.0.mig_uuid(card.1.compute).starts_with(entry);
    let instances = instances(device);
    let instances = instances.iter().filter(begins).map(|(card, mig)| card.mig_card(*mig).ok());
    let mut fitting = cards.chain(instances);
    match (fitting.next(), fitting.next()) {
        (Some(only), None) => only,
        _ => None,
    }
}

/// `GPU-<uuid>/<GPU instance>/<compute instance>`.
fn by_path(device: &Device, path: &str) -> Option<Card> {
    let [uuid, gpu, compute] = path.split('/').collect::<Vec<_>>()[..] else { return None };
    let (gpu, compute): (u32, u32) = (gpu.parse().ok()?, compute.parse().ok()?);
    let (card, mig) = instances(device)
        .into_iter()
        .find(|(card, mig)| card.facts().uuid == uuid && (mig.gpu.id, mig.compute.id) == (gpu, compute))?;
    card.mig_card(mig).ok()
}

fn instances(device: &Device) -> Vec<(&Card, MigDevice)> {
    let of = |card| Card::mig_devices(card).into_iter().map(move |mig| (card, mig));
    device.cards().iter().flat_map(of).collect()
}

/// A card as programs see it: none in MIG mode without compute instances.
fn as_device(card: &Card) -> Option<Card> {
    match card.facts().mig {
        MigMode::On => card.mig_card(*card.mig_devices().first()?).ok(),
        MigMode::None | MigMode::Off => Some(card.clone()),
    }
}
