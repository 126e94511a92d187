//! Discovery: a node file becomes cards, with everything the file does not say taken from the catalogue.

use std::borrow::Cow;
use std::collections::BTreeSet;

use aliquot_core::card::Health;
use aliquot_core::catalogue::{CardIdentity, CardModel, Catalogue};
use aliquot_core::id::{CardUuid, PciAddress, TemplateName, Vendor};
use aliquot_core::partition::PlacementName;
use aliquot_core::ports::PartitionAt;
use aliquot_core::quantity::Quantity;
use aliquot_core::units::Bytes;

use crate::ffi::State;
use crate::node_file::{CardGroup, NodeFile, NodeFileError, name};
use crate::partition::{self, SimCard, uuid_of};

/// Every card of the file, and the state in which the hardware is found first.
pub(crate) fn probe(file: &NodeFile, catalogue: &Catalogue) -> Result<(Vec<SimCard>, State), NodeFileError> {
    let catalogue = with_own_models(file, catalogue)?;
    let mut cards: Vec<SimCard> = Vec::new();
    let mut state = State::default();
    let (mut seen, mut places) = (BTreeSet::<CardUuid>::new(), BTreeSet::<PciAddress>::new());
    for (number, group) in file.groups.iter().enumerate() {
        check_members(group, number)?;
        let model = model_of(group, number, &catalogue)?;
        for member in 0..group.len() {
            let index = u32::try_from(cards.len()).unwrap_or(u32::MAX);
            let card = sim_card(file, group, model, (number, member), index)?;
            if !seen.insert(card.card.uuid.clone()) {
                return Err(NodeFileError::DuplicateUuid(card.card.uuid));
            }
            if let Some(pci) = card.card.pci.clone().filter(|pci| !places.insert(pci.clone())) {
                return Err(NodeFileError::DuplicatePci(pci));
            }
            found_first(group, (number, member), &card, &mut state)?;
            cards.push(card);
        }
    }
    Ok((cards, state))
}

/// Entries about single cards must be about cards that there are.
fn check_members(group: &CardGroup, number: usize) -> Result<(), NodeFileError> {
    let health = group.health.iter().map(|h| ("health.card", h.card));
    let found = group.found.iter().map(|f| ("found.card", f.card));
    match health.chain(found).find(|(_, card)| *card >= group.len()) {
        None => Ok(()),
        Some((field, card)) => Err(NodeFileError::Value {
            field,
            card: number,
            found: card.to_string(),
            expected: "a card of the group, counted from 0",
        }),
    }
}

/// What the vendor's own UUIDs begin with: programs look at it, and the simulated driver libraries show no other cards.
fn prefix_of(vendor: &Vendor) -> &'static str {
    match vendor.as_str() {
        "nvidia" => "GPU-",
        "huawei" => "NPU-",
        _ => "SIM-",
    }
}

fn sim_card(
    file: &NodeFile,
    group: &CardGroup,
    model: &CardModel,
    (number, member): (usize, usize),
    index: u32,
) -> Result<SimCard, NodeFileError> {
    let uuid: CardUuid = match group.entry(&group.uuid, member, "uuid", number)? {
        Some(text) if group.uuid.len() == group.len() => name(text, "uuid", number)?,
        Some(_) => return Err(length("uuid", number, group)),
        None => {
            let words = format!("{}/{}/{index}", file.name, group.model);
            let prefix = group.uuid_prefix.as_deref().unwrap_or_else(|| prefix_of(&model.vendor));
            name(&format!("{prefix}{}", uuid_of(&words)), "uuid-prefix", number)?
        }
    };
    let pci = match group.entry(&group.pci, member, "pci", number)? {
        Some(_) if group.pci.len() != group.len() => return Err(length("pci", number, group)),
        Some(text) => Some(name(text, "pci", number)?),
        None => None,
    };
    let memory = group.memory.as_deref().map(|text| bytes(text, "memory", number)).transpose()?;
    let card = model.card(CardIdentity {
        uuid,
        index,
        product_name: group.product_name.clone(),
        memory,
        driver_version: group.driver_version.clone().unwrap_or_default(),
        pci,
        pcie_root: group.entry(&group.pcie_root, member, "pcie-root", number)?.cloned(),
        numa_node: group.entry(&group.numa, member, "numa", number)?.copied(),
        topology: group.topology(member, number)?,
        mode: group.mode.clone(),
        health: Health::Healthy,
        found: Vec::new(),
    });
    let ids_before = group.partition_ids_a_card.saturating_mul(index);
    Ok(SimCard {
        card,
        device_nodes: group.device_nodes.clone(),
        partition_nodes: group.partition_nodes.clone(),
        partition_id_first: group.partition_id_first.saturating_add(ids_before),
    })
}

fn length(field: &'static str, card: usize, group: &CardGroup) -> NodeFileError {
    NodeFileError::Length { field, card, found: 1, count: group.len() }
}

/// The catalogue, with the models that the file brings along on top.
fn with_own_models<'a>(
    file: &NodeFile,
    catalogue: &'a Catalogue,
) -> Result<Cow<'a, Catalogue>, NodeFileError> {
    if file.models.is_empty() {
        return Ok(Cow::Borrowed(catalogue));
    }
    let own: Vec<(String, String)> = file
        .models
        .iter()
        .enumerate()
        .map(|(number, table)| (format!("{} [[model]] {number}", file.name), table.to_string()))
        .collect();
    let (catalogue, refused) = catalogue.clone().with_overrides(&own);
    match refused.into_iter().next() {
        None => Ok(Cow::Owned(catalogue)),
        Some(error) => Err(NodeFileError::Model(Box::new(error))),
    }
}

/// The one model that goes by the group's name.
fn model_of<'a>(
    group: &CardGroup,
    number: usize,
    catalogue: &'a Catalogue,
) -> Result<&'a CardModel, NodeFileError> {
    let list = |models: &mut dyn Iterator<Item = &CardModel>| {
        models.map(|m| m.id.to_string()).collect::<Vec<_>>().join(", ")
    };
    let (model, card) = (group.model.clone(), number);
    match catalogue.resolve(&group.model).as_slice() {
        [one] => Ok(one),
        [] => {
            let known = list(&mut catalogue.models().iter());
            Err(NodeFileError::UnknownModel { model, card, known })
        }
        several => {
            let several = list(&mut several.iter().copied());
            Err(NodeFileError::AmbiguousModel { model, card, several })
        }
    }
}

fn bytes(text: &str, field: &'static str, card: usize) -> Result<Bytes, NodeFileError> {
    let read = text.parse::<Quantity>();
    let unclear = read.as_ref().err().filter(|error| !error.meant.is_empty());
    let problem = unclear.map(|error| format!(" ({})", error.problem())).unwrap_or_default();
    let quantity = read.ok().filter(|quantity| quantity.is_whole());
    // Below 1Mi a unit was forgotten.
    let units = quantity
        .and_then(|q| u64::try_from(q.units_rounded_up()).ok())
        .filter(|units| *units >= Bytes::MIB.0);
    units.map(Bytes).ok_or_else(|| NodeFileError::Value {
        field,
        card,
        found: format!("`{text}`{problem}"),
        expected: "a whole number of bytes, 1Mi or more, such as 80Gi",
    })
}

/// Puts the partitions and the illness that the file states for one card into the first state.
fn found_first(
    group: &CardGroup,
    (number, member): (usize, usize),
    card: &SimCard,
    state: &mut State,
) -> Result<(), NodeFileError> {
    for health in group.health.iter().filter(|h| h.card == member) {
        state.unhealthy.insert(card.card.uuid.to_string(), health.unhealthy.clone());
    }
    for found in group.found.iter().filter(|f| f.card == member) {
        let template: TemplateName = name(&found.template, "found.template", number)?;
        let at = PartitionAt {
            card: card.card.uuid.clone(),
            template,
            placement: PlacementName(found.placement.clone()),
        };
        partition::make(card, &at, state).map_err(|e| NodeFileError::Value {
            field: "found",
            card: number,
            found: e.to_string(),
            expected: "partitions that can exist together on the card",
        })?;
    }
    Ok(())
}
