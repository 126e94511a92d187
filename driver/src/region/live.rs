//! Limits that change again and again while their tenants run: mapped once, written in place.

use std::fs::{File, OpenOptions};
use std::io;

use aliquot_abi::layout::limits;
use aliquot_abi::limits::Limits;
use aliquot_enforce::term::Until;
use nix::fcntl::{Flock, FlockArg};

use super::mapping::Mapping;
use super::{Place, bytes_of, fault, open};

/// The limits of one grant, held open by who changes them often.
#[derive(Debug)]
pub struct Live {
    mapping: Mapping,
    /// Locked during each change: others may change limits as well.
    lock: File,
}

// === impl Live ===

impl Live {
    /// Opens and maps the limits of a grant.
    ///
    /// # Errors
    /// They are not there, or no limits file.
    pub fn open(place: &Place) -> io::Result<Self> {
        let file = open(&place.limits())?;
        if file.metadata()?.len() != bytes_of(limits::BYTES) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not the size of a limits file"));
        }
        let mapping = Mapping::of(&file, limits::BYTES)?;
        mapping.limits().map_err(fault)?;
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(&place.lock)?;
        Ok(Self { mapping, lock })
    }

    /// The limits in force.
    ///
    /// # Errors
    /// No record is whole.
    pub fn read(&self) -> io::Result<Limits> {
        let view = self.mapping.limits().map_err(fault)?;
        view.read().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no limits record is whole"))
    }

    /// Until when what is granted beyond guarantees is.
    ///
    /// # Errors
    /// The file is no limits file any more.
    pub fn lent_until(&self) -> io::Result<Until> {
        Ok(Until(self.mapping.limits().map_err(fault)?.lent_until()))
    }

    /// Says until when it is, beside whoever writes a record: the word has one writer, who governs the card.
    ///
    /// # Errors
    /// As for [`Self::lent_until`].
    pub fn lend(&mut self, until: Until) -> io::Result<()> {
        self.mapping.limits_writer().map_err(fault)?.lend_until(until.0);
        Ok(())
    }

    /// Puts other limits in force; `change` answers what shall be, `None`: as it is. The generation is counted here. True
    /// where something changed.
    ///
    /// # Errors
    /// No record is whole, or the lock cannot be taken.
    pub fn change(&mut self, change: impl FnOnce(&Limits) -> Option<Limits>) -> io::Result<Changed> {
        let lock = Flock::lock(self.lock.try_clone()?, FlockArg::LockExclusive)
            .map_err(|(_, errno)| io::Error::from(errno))?;
        let now = self.read()?;
        let Some(next) = change(&now) else { return Ok(Changed::No) };
        let next = Limits { generation: now.generation + 1, ..next };
        self.mapping.limits_writer().map_err(fault)?.write(&next);
        drop(lock);
        Ok(Changed::Yes)
    }
}

/// Whether something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It did.
    Yes,
    /// It did not.
    No,
}
