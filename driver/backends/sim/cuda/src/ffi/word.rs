//! Waiting for and writing words of memory, in the order of a stream.

use super::pointer::In;
use crate::code::{Answer, INVALID_VALUE};
use crate::stream;
use crate::table::Mode;
use crate::word::{self, Batch, OperationWords, Width, WordOp};

fn one(stream: u64, mode: Mode, op: Answer<WordOp>) -> Answer {
    let stream = stream::find(stream, mode)?;
    word::put(&stream, Batch::one(op?))
}

/// The operations of a call, which takes no flags.
pub(super) fn batch(described: In<OperationWords>, count: u32, flags: u32) -> Answer<Batch> {
    if flags != 0 || described.is_null() || count > 256 {
        return Err(INVALID_VALUE);
    }
    Batch::of(&described.list(usize::try_from(count).map_err(|_| INVALID_VALUE)?)?)
}

fn several(stream: u64, mode: Mode, batch: Answer<Batch>) -> Answer {
    let stream = stream::find(stream, mode)?;
    word::put(&stream, batch?)
}

streamed! {
    fn cuStreamWaitValue32, cuStreamWaitValue32_ptsz |mode| (stream: u64, address: u64, value: u32, flags: u32) {
        one(stream, mode, WordOp::wait(address, Width::Four, value.into(), flags))
    }
    fn cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz |mode| (stream: u64, address: u64, value: u32, flags: u32) {
        one(stream, mode, WordOp::wait(address, Width::Four, value.into(), flags))
    }
    fn cuStreamWaitValue64, cuStreamWaitValue64_ptsz |mode| (stream: u64, address: u64, value: u64, flags: u32) {
        one(stream, mode, WordOp::wait(address, Width::Eight, value, flags))
    }
    fn cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz |mode| (stream: u64, address: u64, value: u64, flags: u32) {
        one(stream, mode, WordOp::wait(address, Width::Eight, value, flags))
    }
    fn cuStreamWriteValue32, cuStreamWriteValue32_ptsz |mode| (stream: u64, address: u64, value: u32, flags: u32) {
        one(stream, mode, WordOp::write(address, Width::Four, value.into(), flags))
    }
    fn cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz |mode| (stream: u64, address: u64, value: u32, flags: u32) {
        one(stream, mode, WordOp::write(address, Width::Four, value.into(), flags))
    }
    fn cuStreamWriteValue64, cuStreamWriteValue64_ptsz |mode| (stream: u64, address: u64, value: u64, flags: u32) {
        one(stream, mode, WordOp::write(address, Width::Eight, value, flags))
    }
    fn cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz |mode| (stream: u64, address: u64, value: u64, flags: u32) {
        one(stream, mode, WordOp::write(address, Width::Eight, value, flags))
    }
    fn cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz |mode| (stream: u64, count: u32, described: In<OperationWords>, flags: u32) {
        several(stream, mode, batch(described, count, flags))
    }
    fn cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz |mode| (stream: u64, count: u32, described: In<OperationWords>, flags: u32) {
        several(stream, mode, batch(described, count, flags))
    }
}
