//! A prepared claim that is prepared again: applies its present manifest to the devices that it holds.

use aliquot_core::cel::{DeviceView, Selector};
use aliquot_core::dra::{
    AllocatedConfig, AllocationMode, AllocationResult, ConfigSource, Device, DeviceRequest, DeviceResult,
    ExactRequest, RequestKind, ResourceClaim,
};
use aliquot_core::id::ClaimUid;
use aliquot_core::rounding::consumption;

use crate::node::Node;

use super::super::cluster::Cluster;
use crate::error_text::chain;

/// The claim with its present request for each device that it holds; unchanged if it holds none yet.
///
/// # Errors
/// It requests other devices, or an amount that its device does not offer.
pub(in crate::cli) fn as_asked(
    claim: &ResourceClaim,
    node: &Node,
    cluster: &Cluster,
) -> Result<ResourceClaim, String> {
    let is_held = ClaimUid::new(claim.uid.as_str()).is_ok_and(|uid| node.claim(&uid).is_some());
    let Some(held) = claim.allocation.as_ref().filter(|_| is_held) else { return Ok(claim.clone()) };
    same_devices(claim, held)?;
    let mut allocation = held.clone();
    for result in &mut allocation.devices {
        let Some(exact) = request(claim, &result.request) else { continue };
        let Some(device) = device(node, result)? else { continue };
        is_selected(&device, exact, result, cluster)?;
        for (name, amount) in &mut result.consumed_capacity {
            let Some(there) = device.capacity.get(name) else { continue };
            *amount = consumption(there, exact.capacity.get(name).copied())
                .map_err(|why| format!("request `{}`, `{name}`: {why}", result.request))?;
        }
    }
    allocation.config = config(claim, held, cluster);
    Ok(ResourceClaim { allocation: Some(allocation), ..claim.clone() })
}

/// Refuses a claim with more, fewer or other requests than those that it holds devices for.
fn same_devices(claim: &ResourceClaim, held: &AllocationResult) -> Result<(), String> {
    let of = |request: &DeviceRequest| {
        let is_its = |result: &&DeviceResult| main(&result.request) == request.name;
        u32::try_from(held.devices.iter().filter(is_its).count()).unwrap_or(u32::MAX)
    };
    for request in &claim.requests {
        let (found, wanted) = (of(request), count(request));
        if wanted.is_some_and(|wanted| wanted != found) || found == 0 {
            return Err(format!(
                "it is prepared with {found} devices for request `{}`, and asked is {}: release it first",
                request.name,
                wanted.map_or_else(|| "every one that matches".to_owned(), |wanted| wanted.to_string())
            ));
        }
    }
    match held.devices.iter().find(|result| request(claim, &result.request).is_none()) {
        Some(result) => Err(format!(
            "it is prepared with a device for request `{}`, which is not asked for: release it first",
            result.request
        )),
        None => Ok(()),
    }
}

/// Number of devices; `None`: any.
fn count(request: &DeviceRequest) -> Option<u32> {
    match &request.kind {
        RequestKind::Exactly(exact) => match exact.mode {
            AllocationMode::ExactCount(count) => Some(count),
            AllocationMode::All => None,
        },
        RequestKind::FirstAvailable(_) => None,
    }
}

/// The request of a result, without its alternative.
fn main(name: &str) -> &str {
    name.split_once('/').map_or(name, |(main, _)| main)
}

/// The request with the name of a result, `req` or `req/sub`.
fn request<'c>(claim: &'c ResourceClaim, name: &str) -> Option<&'c ExactRequest> {
    let found = claim.requests.iter().find(|request| request.name == main(name))?;
    match (&found.kind, name.split_once('/')) {
        (RequestKind::Exactly(exact), None) => Some(exact),
        (RequestKind::FirstAvailable(subs), Some((_, sub))) => {
            subs.iter().find(|alternative| alternative.name == sub).map(|alternative| &alternative.request)
        }
        _ => None,
    }
}

/// The device of a result, as it is offered now.
fn device(node: &Node, result: &DeviceResult) -> Result<Option<Device>, String> {
    let offers = node.offers().map_err(|error| chain(&error))?;
    let slices = offers.slices.iter().filter(|slice| slice.pool.name == result.device.pool);
    let mut devices = slices.flat_map(|slice| &slice.devices);
    Ok(devices.find(|device| device.name == result.device.device).cloned())
}

/// Refuses a claim if the class or selectors of a request do not select its device. A deleted class refuses nothing.
fn is_selected(
    device: &Device,
    exact: &ExactRequest,
    result: &DeviceResult,
    cluster: &Cluster,
) -> Result<(), String> {
    let view = DeviceView::new(&result.device.driver, device);
    let class = cluster.world.class(&exact.device_class);
    let of_class =
        class.into_iter().flat_map(|class| class.selectors.iter().map(move |text| (Some(class), text)));
    for (class, text) in of_class.chain(exact.selectors.iter().map(|text| (None, text))) {
        let why = match Selector::compile(text).map(|selector| selector.matches(&view)) {
            Ok(Ok(true)) => continue,
            Ok(Ok(false)) => String::new(),
            Ok(Err(error)) => format!(" ({error})"),
            Err(error) => format!(" ({error})"),
        };
        let source = class.map_or_else(|| "it".to_owned(), |class| format!("class {}", class.name));
        return Err(format!(
            "it is prepared with device {} for request `{}`, which is not what {source} asks for by now: `{text}`{why}; \
             release it first",
            device.name, result.request
        ));
    }
    Ok(())
}

/// The settings: the present ones of the classes, then those of the claim. For a deleted class, those that the claim was prepared
/// with.
fn config(claim: &ResourceClaim, held: &AllocationResult, cluster: &Cluster) -> Vec<AllocatedConfig> {
    let mut config = Vec::new();
    for result in &held.devices {
        let Some(exact) = request(claim, &result.request) else { continue };
        let is_of = |config: &&AllocatedConfig| {
            config.source == ConfigSource::Class && config.requests.contains(&result.request)
        };
        let given = cluster.manifests.classes.iter().find(|class| class.name == exact.device_class);
        match given {
            Some(class) => config.extend(class.config.iter().map(|opaque| AllocatedConfig {
                source: ConfigSource::Class,
                requests: vec![result.request.clone()],
                opaque: opaque.clone(),
            })),
            None if cluster.has_class(&exact.device_class) => {}
            None => config.extend(held.config.iter().filter(is_of).cloned()),
        }
    }
    config.extend(held.config.iter().filter(|config| config.source == ConfigSource::Claim).cloned());
    config
}
