//! From what a search took to what the API stores: results, shares, configuration, node selector.

use std::collections::BTreeMap;
use std::ops::Range;

use super::named::NamedAlternative;
use super::numbers::NodeIndex;
use super::options::Release;
use super::refusal::PlacementRefusal;
use super::search::ReservedDevice;
use super::world::World;
use crate::dra::{
    AllocatedConfig, AllocationResult, ConfigSource, DeviceResult, ExactRequest, NodeRequirement,
    NodeSelection, NodeSelector, NodeSelectorTerm, RequestKind, ResourceClaim, ShareId, Sharing,
};
use crate::quantity::Quantity;
use crate::rounding;

/// The allocation of each claim.
pub(super) fn write(
    world: &World,
    node: NodeIndex,
    claims: &[ResourceClaim],
    trail: &[ReservedDevice],
) -> Result<Vec<AllocationResult>, PlacementRefusal> {
    let mut rest = trail;
    let mut all = Vec::with_capacity(claims.len());
    for (number, claim) in claims.iter().enumerate() {
        let (own, later) = rest.split_at(rest.iter().take_while(|taken| taken.claim == number).count());
        rest = later;
        let devices = own.iter().enumerate().map(|(index, taken)| result(world, claim, index, taken));
        all.push(AllocationResult {
            devices: devices.collect(),
            config: configuration(world, claim, own),
            node_selector: node_selector(world, node, own)?,
        });
    }
    Ok(all)
}

fn result(world: &World, claim: &ResourceClaim, index: usize, taken: &ReservedDevice) -> DeviceResult {
    let at = NamedAlternative { claim, request: taken.request, alternative: taken.alternative };
    let device = world.index.described(taken.entry);
    let request = exact(claim, taken.request, taken.alternative);
    let name = at.name();
    let (share_id, consumed_capacity) = match device.sharing {
        Sharing::Exclusive => (None, BTreeMap::new()),
        Sharing::Shareable => {
            let consumed = device.capacity.iter().filter_map(|(key, capacity)| {
                let asked: Option<Quantity> = request.capacity.get(key).copied();
                Some((key.clone(), rounding::consumption(capacity, asked).ok()?))
            });
            (Some(share_id(&claim.uid, &name, index)), consumed.collect())
        }
    };
    DeviceResult {
        request: name,
        device: world.index.id(world.index.entries[taken.entry.at()].device),
        access: taken.access,
        tolerations: request.tolerations.clone(),
        binding_conditions: device.binding_conditions.clone(),
        binding_failure_conditions: device.binding_failure_conditions.clone(),
        share_id,
        consumed_capacity,
    }
}

fn exact(claim: &ResourceClaim, request: usize, alternative: usize) -> &ExactRequest {
    match &claim.requests[request].kind {
        RequestKind::Exactly(exact) => exact,
        RequestKind::FirstAvailable(subs) => &subs[alternative].request,
    }
}

/// A share's name: a UUID (version 8) of the claim's UID, the request and the place among the results.
fn share_id(uid: &str, request: &str, index: usize) -> ShareId {
    // FNV-1a over 128 bits: offset basis and prime of the published algorithm.
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let index = index.to_string();
    for byte in [uid, "\0", request, "\0", &index].into_iter().flat_map(str::bytes) {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    let hash = hash & !(0xf << 76) & !(0x3 << 62) | 0x8 << 76 | 0x2 << 62;
    let text = format!("{hash:032x}");
    let parts = [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]];
    ShareId(parts.join("-"))
}

/// Class configuration once a class, for every request that uses it; then the claim's, once for each request it names.
fn configuration(world: &World, claim: &ResourceClaim, own: &[ReservedDevice]) -> Vec<AllocatedConfig> {
    let mut all: Vec<AllocatedConfig> = Vec::new();
    let mut of_class: BTreeMap<&str, Range<usize>> = BTreeMap::new();
    let chosen = |request: usize| own.iter().find(|t| t.request == request).map_or(0, |t| t.alternative);
    for request in 0..claim.requests.len() {
        let alternative = chosen(request);
        let name = NamedAlternative { claim, request, alternative }.name();
        let Some(class) = world.class(&exact(claim, request, alternative).device_class) else { continue };
        if let Some(known) = of_class.get(class.name.as_str()) {
            all[known.clone()].iter_mut().for_each(|config| config.requests.push(name.clone()));
            continue;
        }
        let start = all.len();
        all.extend(class.config.iter().map(|opaque| AllocatedConfig {
            source: ConfigSource::Class,
            requests: vec![name.clone()],
            opaque: opaque.clone(),
        }));
        of_class.insert(&class.name, start..all.len());
    }
    for config in &claim.config {
        let applies = |(number, request): (usize, &crate::dra::DeviceRequest)| {
            config.requests.contains(&request.name)
                || config.requests.contains(
                    &NamedAlternative { claim, request: number, alternative: chosen(number) }.name(),
                )
        };
        let uses = claim.requests.iter().enumerate().filter(|r| applies(*r)).count();
        let times = match (config.requests.is_empty(), world.release) {
            (true, _) => 1,
            (false, Release::V1_36) => uses,
            (false, Release::V1_37) => uses.min(1),
        };
        all.extend(std::iter::repeat_n(
            AllocatedConfig {
                source: ConfigSource::Claim,
                requests: config.requests.clone(),
                opaque: config.opaque.clone(),
            },
            times,
        ));
    }
    if world.release == Release::V1_37 {
        let names = |number: usize, known: &[String]| {
            let whole = &claim.requests[number].name;
            known.contains(whole)
                || known.contains(
                    &NamedAlternative { claim, request: number, alternative: chosen(number) }.name(),
                )
        };
        for config in &mut all {
            // An empty list says "all of them".
            if (0..claim.requests.len()).all(|number| names(number, &config.requests)) {
                config.requests.clear();
            }
        }
    }
    all
}

/// The one node as soon as any device is local to it; else what all the devices' selectors ask together.
fn node_selector(
    world: &World,
    node: NodeIndex,
    own: &[ReservedDevice],
) -> Result<Option<NodeSelector>, PlacementRefusal> {
    let mut merged = NodeSelectorTerm::default();
    for taken in own {
        let device = world.index.described(taken.entry);
        let entry = &world.index.entries[taken.entry.at()];
        let selection = match (world.index.selection(entry.slice), &device.node) {
            (NodeSelection::PerDevice, Some(own)) => own,
            (of_slice, _) => of_slice,
        };
        if matches!(selection, NodeSelection::Name(_)) || device.binds_to_node {
            let name = world.nodes.get(node.0 as usize).map(|node| node.name.as_str()).unwrap_or_default();
            return Ok(Some(NodeSelector::for_node(name)));
        }
        match selection {
            NodeSelection::Selector(selector) => match selector.terms.as_slice() {
                [] => {}
                [term] => {
                    add_new(&mut merged.fields, &term.fields);
                    add_new(&mut merged.expressions, &term.expressions);
                }
                terms => {
                    let device = world.index.id(entry.device);
                    return Err(PlacementRefusal::SeveralTerms { device, terms: terms.len() });
                }
            },
            NodeSelection::Name(_) | NodeSelection::All | NodeSelection::PerDevice => {}
        }
    }
    let empty = merged.fields.is_empty() && merged.expressions.is_empty();
    Ok((!empty).then(|| NodeSelector { terms: vec![merged] }))
}

fn add_new(into: &mut Vec<NodeRequirement>, from: &[NodeRequirement]) {
    for requirement in from {
        let same_values = |known: &NodeRequirement| {
            known.values.iter().all(|value| requirement.values.contains(value))
                && requirement.values.iter().all(|value| known.values.contains(value))
        };
        let known = into.iter().any(|known| {
            known.key == requirement.key && known.operator == requirement.operator && same_values(known)
        });
        if !known {
            into.push(requirement.clone());
        }
    }
}
