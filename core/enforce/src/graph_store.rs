//! The memory that a driver keeps for the graphs of one card, as accounting holds it.
//!
//! ```text
//!   charged = footprints of all executable graphs + residue      invariant: the store's size ≤ charged
//!
//!   instantiate: + footprint      destroy: footprint ─▶ residue      to another stream: + residue
//!   settle: residue := min(residue, the store's size − pinned + what calls in flight may add)
//! ```
//!
//! The driver backs memory nodes at instantiation, upload or launch, keeps that memory until a trim, and reports the size of
//! the store alone. The residue covers memory that a graph may have left in the store: that of a destroyed graph, and that of a
//! stream in which a graph ran before. Pinned are allocations of existing graphs that outlived their launch: they are in the
//! store, and no residue.

use crate::growth::AccountingChange;

/// Accounting of one card's store, in bytes. The lock around it is never held during a driver call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphStore {
    footprints: u64,
    residue: u64,
    pinned: u64,
    /// Bytes that calls in flight may add.
    pending: u64,
    ended: u64,
}

/// The moment before the driver is asked for the store's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreMoment(u64);

impl GraphStore {
    /// A driver call begins that may add so much to the store, or removes a graph of that footprint.
    pub fn begin(&mut self, bytes: u64) {
        self.pending = self.pending.saturating_add(bytes);
    }

    /// It is over.
    pub fn end(&mut self, bytes: u64) {
        self.pending = self.pending.saturating_sub(bytes);
        self.ended += 1;
    }

    /// A graph with this footprint exists; its bytes are reserved.
    pub fn add(&mut self, bytes: u64) {
        self.footprints = self.footprints.saturating_add(bytes);
    }

    /// A graph with this footprint runs in another stream than before; its bytes are reserved once more.
    pub fn leave(&mut self, bytes: u64) {
        self.residue = self.residue.saturating_add(bytes);
    }

    /// A graph is gone; its memory may still be in the store.
    pub fn retire(&mut self, bytes: u64) {
        self.footprints = self.footprints.saturating_sub(bytes);
        self.leave(bytes);
        // A size that was read before may lack what it has taken since.
        self.ended += 1;
    }

    /// It is not gone. To be called before the end of the operation in which it was retired.
    pub fn restore(&mut self, bytes: u64) {
        self.residue = self.residue.saturating_sub(bytes);
        self.add(bytes);
    }

    /// A launch ended, and allocations of it are in the store until they are freed.
    pub fn pin(&mut self, bytes: u64) {
        self.pinned = self.pinned.saturating_add(bytes);
        // A size that was read before may lack them.
        self.ended += 1;
    }

    /// They are about to be freed, or their graph to be launched or destroyed.
    pub fn unpin(&mut self, bytes: u64) {
        self.pinned = self.pinned.saturating_sub(bytes);
    }

    /// Bytes in accounting.
    #[must_use]
    pub fn charged(&self) -> u64 {
        self.footprints.saturating_add(self.residue)
    }

    /// Bytes of these that a trim may free.
    #[must_use]
    pub fn residue(&self) -> u64 {
        self.residue
    }

    /// Now: a size that is read from here on is valid until another call ends, or a smaller one is adopted.
    #[must_use]
    pub fn moment(&self) -> StoreMoment {
        StoreMoment(self.ended)
    }

    /// Adopts the size that the driver reported since `asked`. A store that is larger than accounted is charged.
    pub fn settle(&mut self, asked: StoreMoment, size: u64) -> AccountingChange {
        if self.moment() != asked {
            return AccountingChange::Stale;
        }
        let surplus = size.saturating_sub(self.charged());
        if surplus > 0 {
            self.leave(surplus);
            return AccountingChange::Charge(surplus);
        }
        let unpinned = size.saturating_sub(self.pinned);
        let freed = self.residue.saturating_sub(unpinned.saturating_add(self.pending));
        self.residue -= freed;
        // A larger size that another thread read before is past.
        self.ended += u64::from(freed > 0);
        AccountingChange::Release(freed)
    }
}
