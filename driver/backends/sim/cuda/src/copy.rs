//! Copies and fills: content moves when the call is made, device time passes as the card says.
//!
//! That is what an ordered stream shows: kernels here change no content, so nothing that comes earlier is still to happen.

use crate::array::ARRAYS;
use crate::code::{Answer, INVALID_VALUE};
use crate::graph::{Effect, WorkKind};
use crate::heap::{self, Backing};
use crate::memory;
use crate::process;
use crate::stream::{Stream, Wait};
use std::sync::Arc;

/// One end of a copy.
#[derive(Clone)]
pub(crate) enum End {
    /// Host memory at an address.
    Host(u64),
    /// Device content from an offset.
    Device(Backing, u64, u64),
}

impl End {
    /// What an address means: device memory where there is such, else the host's.
    pub(crate) fn of(address: u64, bytes: u64) -> Answer<Self> {
        match memory::find(address) {
            Some(_) => Self::device(address, bytes),
            None => Ok(Self::Host(address)),
        }
    }

    /// Device memory at an address.
    pub(crate) fn device(address: u64, bytes: u64) -> Answer<Self> {
        // Pinned host memory is reached under its own address from the card, too.
        match memory::range(address, bytes) {
            Ok((backing, at)) => Ok(Self::Device(backing, at, bytes)),
            Err(_) if memory::find_host(address).is_some() => Ok(Self::Host(address)),
            Err(error) => Err(error),
        }
    }

    /// An array's content from an offset.
    pub(crate) fn array(handle: u64, offset: u64) -> Answer<Self> {
        Ok(Self::Device(ARRAYS.get(handle)?.backing.clone(), offset, u64::MAX))
    }

    fn at(&self, offset: u64) -> Self {
        match self {
            Self::Host(address) => Self::Host(address + offset),
            Self::Device(backing, at, bytes) => {
                Self::Device(backing.clone(), at + offset, bytes.saturating_sub(offset))
            }
        }
    }

    fn is_pageable(&self) -> bool {
        matches!(self, Self::Host(address) if memory::find_host(*address).is_none())
    }

    fn is_host(&self) -> bool {
        matches!(self, Self::Host(_))
    }
}

fn move_bytes(target: &End, source: &End, bytes: u64) -> Answer {
    match (target, source) {
        (End::Host(target), End::Host(source)) => heap::copy_host(*target, *source, bytes),
        (End::Host(target), End::Device(backing, at, _)) => backing.read(*at, *target, bytes),
        (End::Device(backing, at, _), End::Host(source)) => backing.write(*at, *source, bytes),
        (End::Device(backing, at, _), End::Device(from, from_at, _)) => {
            backing.copy_from(*at, from, *from_at, bytes)
        }
    }
}

/// A copy of rows: one row for a plain one.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) target: End,
    pub(crate) source: End,
    /// Bytes of a row.
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
    /// Bytes from row to row and from slice to slice, at the target.
    pub(crate) target_pitch: (u64, u64),
    /// The same at the source.
    pub(crate) source_pitch: (u64, u64),
}

impl Copy {
    /// A plain copy.
    pub(crate) fn plain(target: End, source: End, bytes: u64) -> Self {
        let pitch = (bytes, bytes);
        Self { target, source, width: bytes, height: 1, depth: 1, target_pitch: pitch, source_pitch: pitch }
    }

    /// Moves the bytes.
    pub(crate) fn perform(&self) -> Answer {
        for slice in 0..self.depth {
            for row in 0..self.height {
                let place = |pitch: (u64, u64)| row * pitch.0 + slice * pitch.1;
                let target = self.target.at(place(self.target_pitch));
                let source = self.source.at(place(self.source_pitch));
                move_bytes(&target, &source, self.width)?;
            }
        }
        Ok(())
    }

    fn bytes(&self) -> Answer<u64> {
        let rows = self.height.checked_mul(self.depth).ok_or(INVALID_VALUE)?;
        self.width.checked_mul(rows).ok_or(INVALID_VALUE)
    }
}

/// Puts a copy into a stream.
pub(crate) fn copy(stream: &Arc<Stream>, copy: Copy, wait: Wait) -> Answer {
    let bytes = copy.bytes()?;
    if bytes == 0 {
        return Ok(());
    }
    let node = process::card_of(stream)?.card.node();
    // Between two places of the host no card works.
    let nanos = if copy.target.is_host() && copy.source.is_host() { 0 } else { node.copy_nanos(bytes) };
    // A driver stages what is not pinned, and waits for the stream where that is not there yet.
    if stream.capture().is_none()
        && !stream.line.is_free()
        && (copy.target.is_pageable() || copy.source.is_pageable())
    {
        stream.sync()?;
    }
    stream.run(WorkKind::Copy, nanos, Some(Arc::new(move || copy.perform())))?;
    stream.after(wait)
}

/// A fill of rows.
#[derive(Clone, Copy)]
pub(crate) struct Fill {
    pub(crate) address: u64,
    /// Bytes of one element: 1, 2 or 4.
    pub(crate) unit: u64,
    pub(crate) value: u32,
    /// Elements of a row.
    pub(crate) width: u64,
    pub(crate) height: u64,
    /// Bytes from row to row.
    pub(crate) pitch: u64,
}

impl Fill {
    /// Bytes it sets.
    pub(crate) fn bytes(&self) -> Answer<u64> {
        let row = self.width.checked_mul(self.unit).ok_or(INVALID_VALUE)?;
        row.checked_mul(self.height).ok_or(INVALID_VALUE)
    }

    /// What it does, checked: the whole of it lies in one allocation.
    pub(crate) fn effect(self) -> Answer<Effect> {
        let row = self.width.checked_mul(self.unit).ok_or(INVALID_VALUE)?;
        let apart = self.height.saturating_sub(1).checked_mul(self.pitch).ok_or(INVALID_VALUE)?;
        let span = apart.checked_add(row).ok_or(INVALID_VALUE)?;
        if !matches!(self.unit, 1 | 2 | 4) || !self.address.is_multiple_of(self.unit) {
            return Err(INVALID_VALUE);
        }
        let (backing, at) = memory::range(self.address, span)?;
        let pattern = self.value.to_le_bytes();
        let width = usize::try_from(self.unit).unwrap_or(1);
        Ok(Arc::new(move || {
            let (pattern, _) = pattern.split_at(width);
            (0..self.height).try_for_each(|number| backing.fill(at + number * self.pitch, pattern, row))
        }))
    }
}

/// Puts a fill into a stream.
pub(crate) fn fill(stream: &Arc<Stream>, fill: Fill) -> Answer {
    let bytes = fill.bytes()?;
    if bytes == 0 {
        return Ok(());
    }
    let nanos = process::card_of(stream)?.card.node().copy_nanos(bytes);
    stream.run(WorkKind::Fill, nanos, Some(fill.effect()?))
}
