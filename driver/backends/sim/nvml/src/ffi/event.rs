//! Events of cards, as programs wait for them: Xids are all that ever happens.

use super::pointer::Out;
use crate::code::Answer;
use crate::{events, library};
use std::time::Duration;

/// nvmlEventData_t before MIG
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EventV1 {
    device: u64,
    kind: u64,
    data: u64,
}

/// nvmlEventData_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EventV2 {
    first: EventV1,
    gpu_instance: u32,
    compute_instance: u32,
}

const _: () = assert!(size_of::<EventV1>() == 24 && size_of::<EventV2>() == 32);

/// No MIG instance.
const NO_INSTANCE: u32 = u32::MAX;

fn wait(set: u64, millis: u32) -> Answer<EventV2> {
    let (device, xid) = events::wait(set, Duration::from_millis(millis.into()))?;
    let (gpu_instance, compute_instance) = xid.instance.unwrap_or((NO_INSTANCE, NO_INSTANCE));
    let first = EventV1 { device, kind: events::XID, data: xid.number };
    Ok(EventV2 { first, gpu_instance, compute_instance })
}

exports! {
    fn nvmlEventSetCreate(set: Out<u64>) {
        set.check()?;
        set.set(events::create()?)
    }
    fn nvmlDeviceRegisterEvents(handle: u64, kinds: u64, set: u64) { events::register(handle, kinds, set) }
    fn nvmlDeviceGetSupportedEventTypes(handle: u64, kinds: Out<u64>) {
        library::card(handle)?;
        kinds.set(events::SUPPORTED)
    }
    fn nvmlEventSetWait(set: u64, event: Out<EventV1>, millis: u32) {
        event.check()?;
        event.set(wait(set, millis)?.first)
    }
    fn nvmlEventSetWait_v2(set: u64, event: Out<EventV2>, millis: u32) {
        event.check()?;
        event.set(wait(set, millis)?)
    }
    fn nvmlEventSetFree(set: u64) { events::free(set) }
}
