//! Words of memory that streams wait for and write: of a card, also another process's, or of the host, where it is pinned.
//!
//! A change of a word raises no notification: a waiter polls it, on the thread of its line alone.

use crate::code::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::graph::Op;
use crate::heap::Backing;
use crate::line::Turn;
use crate::memory::{self, Payer};
use crate::process;
use crate::stream::Stream;
use aliquot_sim_device::{MemoryKind, monotonic_nanos};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Four,
    Eight,
}

#[derive(Clone)]
enum WordAddress {
    Device(Backing, u64),
    Host(u64),
}

/// When a word is what is waited for, by the vendor's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    AtLeast,
    Equal,
    Shares,
    LacksOne,
}

/// What is done to a word.
#[derive(Clone)]
enum WordOperation {
    Wait(Until),
    Write,
}

/// One operation; `None`: a barrier, which in an order as strict as this one's is nothing.
#[derive(Clone)]
pub(crate) struct WordOp(Option<(WordOperation, WordAddress, Width, u64)>);

/// Operations of one call, and how many are done.
#[derive(Clone)]
pub(crate) struct Batch {
    ops: Arc<[WordOp]>,
    done: usize,
}

/// The vendor's description of an operation, word by word: kind; address; value; flags; an alias, which is
/// unused.
pub(crate) type OperationWords = [u64; 6];

/// Most operations of one call.
const BATCH_MAX: usize = 256;
/// CU_STREAM_WAIT_VALUE_FLUSH, which these cards cannot do, as most.
const FLUSH: u32 = 1 << 30;
/// CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER
const NO_BARRIER: u32 = 1;
/// Shortest and longest time between two polls.
const LOOKS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

impl Width {
    /// In bytes.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// What of a value fits.
    pub(crate) fn cut(self, value: u64) -> u64 {
        match self {
            Self::Four => value & u64::from(u32::MAX),
            Self::Eight => value,
        }
    }

    /// Its highest bit.
    fn sign(self) -> u64 {
        1 << (self.bytes() * 8 - 1)
    }
}

impl WordAddress {
    fn of(address: u64, width: Width) -> Answer<Self> {
        if !address.is_multiple_of(width.bytes()) {
            return Err(INVALID_VALUE);
        }
        match memory::find(address) {
            Some(found) if matches!(found.payer, Payer::Card(MemoryKind::Managed, _)) => Err(INVALID_VALUE),
            Some(_) => memory::range(address, width.bytes()).map(|(backing, at)| Self::Device(backing, at)),
            None => memory::host_word(address, width, None).map(|_| Self::Host(address)),
        }
    }

    /// What stands there.
    fn load(&self, width: Width) -> Answer<u64> {
        match self {
            Self::Host(address) => memory::host_word(*address, width, None),
            Self::Device(backing, at) => backing.load(*at, width),
        }
    }

    fn store(&self, width: Width, value: u64) -> Answer {
        match self {
            Self::Host(address) => memory::host_word(*address, width, Some(value)).map(|_| ()),
            Self::Device(backing, at) => backing.store(*at, width, value),
        }
    }
}

impl Until {
    fn holds(self, width: Width, found: u64, value: u64) -> bool {
        let (found, value) = (width.cut(found), width.cut(value));
        match self {
            Self::AtLeast => width.cut(found.wrapping_sub(value)) & width.sign() == 0,
            Self::Equal => found == value,
            Self::Shares => found & value != 0,
            Self::LacksOne => width.cut(!(found | value)) != 0,
        }
    }
}

impl WordOp {
    /// A wait, with the vendor's flags.
    pub(crate) fn wait(address: u64, width: Width, value: u64, flags: u32) -> Answer<Self> {
        let until = match flags {
            0 => Until::AtLeast,
            1 => Until::Equal,
            2 => Until::Shares,
            3 => Until::LacksOne,
            flags if flags & FLUSH != 0 => return Err(NOT_SUPPORTED),
            _ => return Err(INVALID_VALUE),
        };
        Ok(Self(Some((WordOperation::Wait(until), WordAddress::of(address, width)?, width, value))))
    }

    /// A write, with the vendor's flags.
    pub(crate) fn write(address: u64, width: Width, value: u64, flags: u32) -> Answer<Self> {
        if flags & !NO_BARRIER != 0 {
            return Err(INVALID_VALUE);
        }
        Ok(Self(Some((WordOperation::Write, WordAddress::of(address, width)?, width, value))))
    }

    /// One as described.
    fn described([kind, address, value, flags, _alias, _]: OperationWords) -> Answer<Self> {
        let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
        match low(kind) {
            1 => Self::wait(address, Width::Four, value, low(flags)),
            2 => Self::write(address, Width::Four, value, low(flags)),
            3 => Err(NOT_SUPPORTED),
            4 => Self::wait(address, Width::Eight, value, low(flags)),
            5 => Self::write(address, Width::Eight, value, low(flags)),
            6 => Ok(Self(None)),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Whether it is done: a write is, a wait is when it holds.
    fn go(&self) -> bool {
        let Self(Some((what, place, width, value))) = self else { return true };
        match what {
            WordOperation::Wait(until) => {
                place.load(*width).is_ok_and(|found| until.holds(*width, found, *value))
            }
            WordOperation::Write => {
                // Memory that is gone by now takes nothing; the card would stop with a fault.
                let _unreported = place.store(*width, *value);
                true
            }
        }
    }
}

impl Batch {
    /// Of so many at most.
    pub(crate) fn of(described: &[OperationWords]) -> Answer<Self> {
        if described.is_empty() || described.len() > BATCH_MAX {
            return Err(INVALID_VALUE);
        }
        let ops = described.iter().map(|one| WordOp::described(*one)).collect::<Answer<Vec<_>>>()?;
        Ok(Self { ops: ops.into(), done: 0 })
    }

    /// Of one.
    pub(crate) fn one(op: WordOp) -> Self {
        Self { ops: [op].into(), done: 0 }
    }

    /// Does what can be done now; whether that is all.
    pub(crate) fn go(&mut self) -> bool {
        while let Some(op) = self.ops.get(self.done) {
            if !op.go() {
                return false;
            }
            self.done += 1;
        }
        true
    }
}

/// Until the next look at a word that is waited for since `begun`, on the monotonic clock in nanoseconds.
pub(crate) fn pause(begun: u64) {
    let waited = Duration::from_nanos(monotonic_nanos().saturating_sub(begun));
    std::thread::sleep((waited / 16).clamp(LOOKS.0, LOOKS.1));
}

/// Puts a batch into a stream, or into its capture. Where the stream is there and nothing has to be waited for it is done at once.
pub(crate) fn put(stream: &Stream, mut batch: Batch) -> Answer {
    if let Some(capture) = stream.capture() {
        return capture.add(stream.id, Op::Words(batch));
    }
    let seat = process::card_of(stream)?.seat()?;
    if stream.line.is_free() && stream.point().is_done(seat) && batch.go() {
        return Ok(());
    }
    let held = move |turn: &Turn<'_>| {
        turn.wait(turn.before);
        let begun = monotonic_nanos();
        while !batch.go() && !turn.is_over() {
            pause(begun);
        }
        turn.before
    };
    stream.line.put(Vec::new(), Box::new(held))
}
