//! IPC-shared memory: the importer sees the same bytes. The card has them again when the exporter has freed
//! them and every importer has closed them, or exited.

use crate::code::{Answer, INVALID_CONTEXT, INVALID_VALUE, MAP_FAILED, OUT_OF_MEMORY};
use crate::heap::{self, Backing, Content};
use crate::memory::{self, Allocation, Payer};
use crate::process::{self, OurCard, lock};
use aliquot_sim_device::{LetGo, MemoryKind, Seat};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Identifies a handle of this library.
const MAGIC: u64 = u64::from_be_bytes(*b"ALQSIMI\x02");
/// Bytes of a handle.
pub(crate) const HANDLE_BYTES: usize = 64;
const WORDS: usize = 7;

/// What was exported, by the number of the allocation or slab: the card's number for it.
static LENT: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
static ANY_LENT: AtomicBool = AtomicBool::new(false);
/// What this process has open, by address.
static OPENED: Mutex<BTreeMap<u64, ImportedMemory>> = Mutex::new(BTreeMap::new());

/// Memory of another process.
#[derive(Clone, Copy)]
struct ImportedMemory {
    /// The card's number for it.
    number: u64,
    /// Where it begins in its maker's content.
    offset: u64,
    device: usize,
    context: u64,
    /// How often it has to be closed.
    references: u64,
}

/// cuIpcGetMemHandle.
pub(crate) fn export(address: u64) -> Answer<[u8; HANDLE_BYTES]> {
    process::cards()?;
    let found = memory::find(address).ok_or(INVALID_VALUE)?;
    let Payer::Card(_, room) = found.payer else { return Err(INVALID_VALUE) };
    let seat = process::cards()?.get(found.device).ok_or(INVALID_VALUE)?.seat()?;
    let words: [u64; WORDS] = [
        MAGIC,
        u64::from(std::process::id()),
        u64::try_from(seat.index()).map_err(|_| INVALID_VALUE)?,
        found.backing.offset,
        found.bytes,
        seat.card().number(),
        lend(seat, room.lent(found.id))?,
    ];
    let mut handle = [0_u8; HANDLE_BYTES];
    for (place, word) in handle.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    Ok(handle)
}

/// The card's number for an allocation, which is exported from now on.
fn lend(seat: &Seat, (id, charged): (u64, u64)) -> Answer<u64> {
    let mut lent = lock(&LENT);
    if let Some(number) = lent.get(&id) {
        return Ok(*number);
    }
    let number = seat.lend(charged).ok_or(OUT_OF_MEMORY)?;
    lent.insert(id, number);
    ANY_LENT.store(true, Ordering::Release);
    Ok(number)
}

/// Gives an allocation, or a slab, back to the card. Its content stays while another process has it open.
pub(crate) fn give(ours: &OurCard, id: u64, (kind, charged): (MemoryKind, u64)) -> LetGo {
    let number = if ANY_LENT.load(Ordering::Acquire) { lock(&LENT).remove(&id) } else { None };
    match (number, ours.seat()) {
        (Some(number), Ok(seat)) => seat.give_lent(kind, charged, number),
        _ => {
            ours.give(kind, charged);
            LetGo::Gone
        }
    }
}

/// cuIpcOpenMemHandle: what the context has open already is opened once more.
pub(crate) fn open(handle: &[u8; HANDLE_BYTES]) -> Answer<u64> {
    let context = process::current()?;
    let mut words = [0_u64; WORDS];
    for (word, bytes) in words.iter_mut().zip(handle.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    }
    let [magic, pid, seat, offset, bytes, card, number] = words;
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
    let mut opened = lock(&OPENED);
    let same = |(_, other): &(&u64, &mut ImportedMemory)| {
        (other.number, other.offset) == (number, offset)
            && (other.device, other.context) == (device, context.home)
    };
    if let Some((address, again)) = opened.iter_mut().find(same) {
        again.references += 1;
        return Ok(*address);
    }
    let seat = usize::try_from(seat).map_err(|_| INVALID_VALUE)?;
    let content = Content::of_process(&ours.card.content_file_of(seat, pid)).map_err(|_| MAP_FAILED)?;
    if !ours.seat()?.open_lent(number) {
        return Err(INVALID_VALUE);
    }
    let touched = Arc::new(AtomicBool::new(true));
    let backing = Backing { content: Arc::new(content), offset, touched };
    let address = heap::reserve(bytes)?;
    let (payer, context) = (Payer::Exporter, context.home);
    memory::insert(Allocation { address, bytes, device, context, payer, backing, id: 0 });
    opened.insert(address, ImportedMemory { number, offset, device, context, references: 1 });
    Ok(address)
}

/// cuIpcCloseMemHandle.
pub(crate) fn close(address: u64) -> Answer {
    process::cards()?;
    let mut opened = lock(&OPENED);
    let found = opened.get_mut(&address).ok_or(INVALID_VALUE)?;
    found.references = found.references.saturating_sub(1);
    if found.references == 0 {
        let closed = memory::remove(address, |payer| matches!(payer, Payer::Exporter))?;
        end(&mut opened, &closed);
    }
    Ok(())
}

/// It was opened in a context that ended.
pub(crate) fn end_with_context(closed: &Allocation) {
    end(&mut lock(&OPENED), closed);
}

/// This process does not have it any more, in this context.
fn end(opened: &mut BTreeMap<u64, ImportedMemory>, closed: &Allocation) {
    heap::unmap(closed.address, closed.bytes.next_multiple_of(4096));
    let Some(gone) = opened.remove(&closed.address) else { return };
    let is_elsewhere =
        opened.values().any(|other| (other.number, other.device) == (gone.number, gone.device));
    let seat = process::cards().ok().and_then(|cards| cards.get(gone.device)?.seat().ok());
    if let Some(seat) = seat.filter(|_| !is_elsewhere) {
        seat.close_lent(gone.number);
    }
}
