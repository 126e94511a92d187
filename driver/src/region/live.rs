//! Limits that change often while their tenants run: mapped once, written in place.

use std::io;
use std::path::PathBuf;

use crate::state_dir::{file, wait};
use aliquot_abi::layout::limits;
use aliquot_abi::limits::Limits;
use aliquot_core::units::Bytes;
use aliquot_enforce::term::LoanExpiry;
use aliquot_enforce::units::Nanos;

use super::GrantPaths;
use super::mapping::Mapping;
use super::opening::{bytes_of, fault, open};

/// The limits of one grant, kept open and mapped for frequent changes.
#[derive(Debug)]
pub struct Live {
    mapping: Mapping,
    /// Locked during each change: others may change limits as well. Opened for it, so that many grants need no descriptor each.
    lock: PathBuf,
}

// === impl Live ===

impl Live {
    /// Opens and maps the limits of a grant.
    ///
    /// # Errors
    /// The file does not exist, or is no limits file.
    pub fn open(place: &GrantPaths) -> io::Result<Self> {
        let file = open(&place.limits())?;
        if file.metadata()?.len() != bytes_of(limits::BYTES) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not the size of a limits file"));
        }
        let mapping = Mapping::of(&file, limits::BYTES)?;
        mapping.limits().map_err(fault)?;
        Ok(Self { mapping, lock: place.lock.clone() })
    }

    /// The present limits.
    ///
    /// # Errors
    /// No record is complete.
    pub fn read(&self) -> io::Result<Limits> {
        let view = self.mapping.limits().map_err(fault)?;
        view.read().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no limits record is whole"))
    }

    /// When borrowed compute time expires.
    ///
    /// # Errors
    /// The file is no limits file any more.
    pub fn lent_until(&self) -> io::Result<LoanExpiry> {
        Ok(LoanExpiry(self.mapping.limits().map_err(fault)?.lent_until()))
    }

    /// Publishes when borrowed compute time expires. No lock is needed: the word's only writer is the card's governor.
    ///
    /// # Errors
    /// As for [`Self::lent_until`].
    pub fn lend(&mut self, until: LoanExpiry) -> io::Result<()> {
        self.mapping.limits_writer().map_err(fault)?.lend_until(until.0);
        Ok(())
    }

    /// When the last look began whose results are published.
    ///
    /// # Errors
    /// As for [`Self::lent_until`].
    #[cfg(test)]
    pub(crate) fn looked_at(&self) -> io::Result<Nanos> {
        Ok(Nanos(self.mapping.limits().map_err(fault)?.looked_at()))
    }

    /// Publishes the bytes beyond the shim's accounting. As for [`Self::lend`], no lock is needed.
    ///
    /// # Errors
    /// As for [`Self::lent_until`].
    pub(crate) fn publish_residue(&mut self, residue: Bytes) -> io::Result<()> {
        self.mapping.limits_writer().map_err(fault)?.publish_residue(residue.0);
        Ok(())
    }

    /// Publishes that a look is over that began then, with this value of the tenant's word before it.
    ///
    /// # Errors
    /// As for [`Self::lent_until`].
    pub(crate) fn publish_look(&mut self, began: Nanos, wanted: u32) -> io::Result<()> {
        self.mapping.limits_writer().map_err(fault)?.publish_look(began.0, wanted);
        Ok(())
    }

    /// Changes the limits: `change` returns the new ones, `None`: no change. This function increments the generation.
    ///
    /// # Errors
    /// No record is complete, or the lock cannot be taken.
    pub fn change(&mut self, change: impl FnOnce(&Limits) -> Option<Limits>) -> io::Result<LimitsWritten> {
        let lock = wait::lock(file::to_lock(&self.lock)?, wait::LONGEST, |_| {})?;
        let now = self.read()?;
        let Some(next) = change(&now) else { return Ok(LimitsWritten::No) };
        let next = Limits { generation: now.generation + 1, ..next };
        self.mapping.limits_writer().map_err(fault)?.write(&next);
        drop(lock);
        Ok(LimitsWritten::Yes)
    }
}

/// Whether something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitsWritten {
    /// It did.
    Yes,
    /// It did not.
    No,
}
