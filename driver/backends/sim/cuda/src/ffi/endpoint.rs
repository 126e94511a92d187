//! Logical endpoints.

use super::pointer::{In, Out};
use crate::code::{Answer, INVALID_VALUE};
use crate::endpoint::{self, EndpointKind, EndpointRange};
use crate::heap::BIG_PAGE;
use crate::process;
use crate::vmm;

/// The vendor's description of a logical endpoint.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EndpointProp {
    kind: u32,
    /// A card, or how many.
    cards: u32,
    bytes: u64,
    handle_types: u32,
    flags: u32,
}

const _: () = assert!(size_of::<EndpointProp>() == 24);

/// Most bytes of one.
const BYTES_MAX: u64 = 1 << 40;

impl EndpointProp {
    fn kind(self) -> Answer<EndpointKind> {
        match (self.kind, self.handle_types) {
            (1, 0) => Ok(EndpointKind::Unicast(i32::try_from(self.cards).map_err(|_| INVALID_VALUE)?)),
            (2, 0) => Ok(EndpointKind::Multicast(self.cards)),
            _ => Err(INVALID_VALUE),
        }
    }
}

fn none(flags: u64) -> Answer {
    if flags == 0 { Ok(()) } else { Err(INVALID_VALUE) }
}

exports! {
    fn cuLogicalEndpointIdReserve(first: Out<u32>, count: u32) {
        first.check()?;
        first.set(endpoint::reserve(count)?)
    }
    fn cuLogicalEndpointIdRelease(first: u32, count: u32) { endpoint::release(first, count) }
    fn cuLogicalEndpointCreate(id: u32, prop: In<EndpointProp>) {
        let prop = prop.get()?;
        endpoint::create(id, prop.kind()?, prop.bytes)
    }
    fn cuLogicalEndpointAddDevice(id: u32, device: i32) { endpoint::add(id, device) }
    fn cuLogicalEndpointDestroy(id: u32) { endpoint::destroy(id) }
    fn cuLogicalEndpointBindAddr(id: u32, device: i32, from: u64, address: u64, bytes: u64, flags: u64) {
        none(flags)?;
        endpoint::bind(EndpointRange { id, from, bytes }, device, vmm::hold_at(address)?)
    }
    fn cuLogicalEndpointBindMem(
        id: u32, device: i32, from: u64, handle: u64, offset: u64, bytes: u64, flags: u64
    ) {
        none(flags)?;
        endpoint::bind(EndpointRange { id, from, bytes }, device, (vmm::hold(handle)?, offset))
    }
    fn cuLogicalEndpointUnbind(id: u32, device: i32, from: u64, bytes: u64) {
        endpoint::unbind(EndpointRange { id, from, bytes }, device)
    }
    fn cuLogicalEndpointGetLimits(alignment: Out<u64>, most: Out<u64>, prop: In<EndpointProp>) {
        process::cards()?;
        prop.get()?.kind()?;
        alignment.set(BIG_PAGE)?;
        most.set(BYTES_MAX)
    }
    fn cuLogicalEndpointQuery(first: u32, count: u32, status: Out<i32>) {
        status.check()?;
        status.set(i32::from(endpoint::query(first, count)?))
    }
}
