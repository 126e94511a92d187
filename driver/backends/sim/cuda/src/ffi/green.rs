//! Green contexts, and the parts of a card that they are made from.

use super::pointer::{In, Out};
use crate::code::{INVALID_VALUE, NOT_SUPPORTED};
use crate::green;
use crate::process;

/// The vendor's description of a part of a card: multiprocessors.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Resource {
    kind: u32,
    /// The vendor's own: here which card, and one more.
    inner: [u32; 23],
    multiprocessors: u32,
    least: u32,
    alignment: u32,
    flags: u32,
    domain: u32,
    oversize: [u32; 5],
    next: u64,
}

const _: () = assert!(size_of::<Resource>() == 144);

/// CU_DEV_RESOURCE_TYPE_SM
const MULTIPROCESSORS: u32 = 1;

exports! {
    fn cuDeviceGetDevResource(device: i32, resource: Out<Resource>, kind: u32) {
        resource.check()?;
        let multiprocessors = process::card(device)?.card.facts().sms;
        if kind != MULTIPROCESSORS {
            return Err(NOT_SUPPORTED);
        }
        let mut inner = [0; 23];
        inner[0] = device.unsigned_abs() + 1;
        let (least, alignment, oversize) = (2, 2, [0; 5]);
        resource.set(Resource {
            kind, inner, multiprocessors, least, alignment, flags: 0, domain: 0, oversize, next: 0
        })
    }
    fn cuDevResourceGenerateDesc(described: Out<u64>, resources: In<Resource>, count: u32) {
        described.check()?;
        process::cards()?;
        let given = resources.get()?;
        let device = given.inner[0].checked_sub(1).ok_or(INVALID_VALUE)?;
        if count != 1 || given.kind != MULTIPROCESSORS || given.multiprocessors == 0 {
            return Err(INVALID_VALUE);
        }
        described.set(green::describe(i32::try_from(device).map_err(|_| INVALID_VALUE)?)?)
    }
    fn cuGreenCtxCreate(green: Out<u64>, described: u64, device: i32, flags: u32) {
        green.check()?;
        green.set(green::create(described, device, flags)?)
    }
    fn cuGreenCtxDestroy(green: u64) { green::destroy(green) }
    fn cuCtxFromGreenCtx(context: Out<u64>, green: u64) {
        context.check()?;
        context.set(green::context(green)?)
    }
}
