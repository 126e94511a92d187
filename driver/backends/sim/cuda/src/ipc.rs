//! Memory of one process in another: the exporter pays, the opener sees the same bytes.

use crate::code::{Answer, INVALID_CONTEXT, INVALID_VALUE, MAP_FAILED};
use crate::heap::{self, Backing, Content};
use crate::memory::{self, Allocation, Payer};
use crate::process;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Tells a handle of ours.
const MAGIC: u64 = u64::from_be_bytes(*b"ALQSIMI\x01");
/// Bytes of a handle.
pub(crate) const HANDLE_BYTES: usize = 64;

/// cuIpcGetMemHandle.
pub(crate) fn export(address: u64) -> Answer<[u8; HANDLE_BYTES]> {
    process::cards()?;
    let found = memory::find(address).ok_or(INVALID_VALUE)?;
    if !matches!(found.payer, Payer::Card(..)) {
        return Err(INVALID_VALUE);
    }
    let seat = process::cards()?.get(found.device).ok_or(INVALID_VALUE)?.seat()?;
    let card = seat.card().number();
    let words = [
        MAGIC,
        u64::from(std::process::id()),
        u64::try_from(seat.index()).map_err(|_| INVALID_VALUE)?,
        found.backing.offset,
        found.bytes,
        card,
    ];
    let mut handle = [0_u8; HANDLE_BYTES];
    for (place, word) in handle.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    Ok(handle)
}

/// cuIpcOpenMemHandle.
pub(crate) fn open(handle: &[u8; HANDLE_BYTES]) -> Answer<u64> {
    let context = process::current()?;
    let mut words =
        handle.chunks_exact(8).map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    let mut next = || words.next().ok_or(INVALID_VALUE);
    let (magic, pid, seat, offset, bytes, card) = (next()?, next()?, next()?, next()?, next()?, next()?);
    if magic != MAGIC || bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let pid = u32::try_from(pid).map_err(|_| INVALID_VALUE)?;
    if pid == std::process::id() {
        return Err(INVALID_CONTEXT);
    }
    let ours = |card_number| process::cards().ok()?.iter().position(|ours| ours.card.number() == card_number);
    let device = ours(card).ok_or(INVALID_VALUE)?;
    let ours = process::cards()?.get(device).ok_or(INVALID_VALUE)?;
    let seat = usize::try_from(seat).map_err(|_| INVALID_VALUE)?;
    let content = Content::of_process(&ours.card.content_file_of(seat, pid));
    let backing = Backing {
        content: Arc::new(content.map_err(|_| MAP_FAILED)?),
        offset,
        touched: Arc::new(AtomicBool::new(true)),
    };
    let address = heap::reserve(bytes)?;
    let payer = Payer::Exporter;
    memory::insert(Allocation { address, bytes, device, context: context.handle, payer, backing, id: 0 });
    Ok(address)
}

/// cuIpcCloseMemHandle.
pub(crate) fn close(address: u64) -> Answer {
    process::cards()?;
    let closed = memory::remove(address, |payer| matches!(payer, Payer::Exporter))?;
    heap::unmap(address, closed.bytes.next_multiple_of(4096));
    Ok(())
}
