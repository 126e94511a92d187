//! Memory whose size only the driver knows: a pool grows and shrinks on its own, and tells its size when asked.
//!
//! ```text
//!   books.reserve(worst) ─▶ begin(worst) ─▶ vendor call ─▶ size := ask ─▶ settle(stamp, op, size) ─▶ release what was too much
//!        └─denied─▶ promise(stamp, need, …): the room that is there serves it, or most of it
//! ```
//!
//! Several threads use one pool at once. What is in the books for it is `held + pending`: what it was when last settled, and
//! what operations under way may add. An answer of the driver is good if no operation ended between the question and its
//! use; a [`Stamp`] tells.
//!
//! Invariants: `size ≤ held + pending` at every moment, if no operation grows a pool by more than it reserved; and with
//! nothing under way `held` is the size last read. Room that was promised is covered by what earlier operations reserved,
//! which is not given back before the promise ends.

/// A pool's part of the books, in bytes. Changed under a lock that is never held while the driver is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    held: u64,
    pending: u64,
    /// Room that operations under way count on without having reserved anything.
    promised: u64,
    ended: u64,
}

/// The moment before the driver was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

/// One operation under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// Bytes by which it may grow the pool, reserved in the books.
    pub worst: u64,
    /// Bytes of the pool's room that it counts on.
    pub promised: u64,
}

/// What the driver says of a pool, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Taken from the card.
    pub reserved: u64,
    /// Of that, in use.
    pub used: u64,
}

/// What is to be done with the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Give so many bytes back; 0: nothing.
    Release(u64),
    /// It grew by so many bytes more than was reserved: charge them.
    Charge(u64),
    /// Somebody else's operation ended meanwhile: ask the driver again.
    Stale,
}

/// Whether a pool's room serves an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It does.
    Made(Operation),
    /// There is not enough.
    Full,
    /// Ask the driver again.
    Stale,
}

impl Growth {
    /// Taken before the driver is asked.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp(self.ended)
    }

    /// Bytes in the books for it.
    #[must_use]
    pub fn in_books(&self) -> u64 {
        self.held.saturating_add(self.pending)
    }

    /// An operation begins, with so many bytes reserved.
    pub fn begin(&mut self, worst: u64) -> Operation {
        self.pending = self.pending.saturating_add(worst);
        Operation { worst, promised: 0 }
    }

    /// Room that nobody counts on yet, in bytes; `None`: ask the driver again.
    #[must_use]
    pub fn room(&self, stamp: Stamp, size: Size) -> Option<u64> {
        let sure = size.reserved.min(self.held);
        (stamp.0 == self.ended).then(|| sure.saturating_sub(size.used).saturating_sub(self.promised))
    }

    /// An operation on `need` bytes begins, for which only `worst` bytes of growth are reserved: the room serves the rest.
    pub fn promise(&mut self, stamp: Stamp, need: u64, worst: u64, size: Size) -> Promise {
        let Some(room) = self.room(stamp, size) else { return Promise::Stale };
        let promised = need.saturating_sub(worst);
        if promised > room {
            return Promise::Full;
        }
        self.pending = self.pending.saturating_add(worst);
        self.promised = self.promised.saturating_add(promised);
        Promise::Made(Operation { worst, promised })
    }

    /// An operation ended; `reserved` was read after its vendor call and after the stamp was taken.
    pub fn settle(&mut self, stamp: Stamp, operation: Operation, reserved: u64) -> Settled {
        if stamp.0 != self.ended {
            return Settled::Stale;
        }
        let in_books = self.in_books();
        let cap = self.held.saturating_add(operation.worst);
        let before = *self;
        self.pending = self.pending.saturating_sub(operation.worst);
        self.promised = self.promised.saturating_sub(operation.promised);
        if reserved > in_books {
            self.held = reserved - self.pending;
            self.ended = self.ended.wrapping_add(1);
            return Settled::Charge(reserved - in_books);
        }
        // The room that was promised may be gone: given back by a trim, or taken by this operation, which found it there and
        // grew nothing. Who was promised it then grows the pool, so until nobody counts on room nothing leaves the books.
        let floor = if self.promised > 0 { cap } else { 0 };
        self.held = cap.min(reserved.max(floor));
        if *self != before {
            self.ended = self.ended.wrapping_add(1);
        }
        Settled::Release(cap - self.held)
    }

    /// An operation was refused, and the driver could not be asked: it took nothing, and what it reserved is given back.
    pub fn cancel(&mut self, operation: Operation) {
        self.pending = self.pending.saturating_sub(operation.worst);
        self.promised = self.promised.saturating_sub(operation.promised);
        self.ended = self.ended.wrapping_add(1);
    }

    /// Whether the books hold nothing for it, and no operation counts on it.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.in_books() == 0 && self.promised == 0
    }

    /// Whether a size that was read later says nothing new, and nothing is under way.
    #[must_use]
    pub fn is_settled_at(&self, reserved: u64) -> bool {
        (self.held, self.pending, self.promised) == (reserved, 0, 0)
    }

    /// An operation ended and the driver could not be asked: what it reserved stays in the books until the next answer.
    pub fn keep(&mut self, operation: Operation) {
        self.pending = self.pending.saturating_sub(operation.worst);
        self.promised = self.promised.saturating_sub(operation.promised);
        self.held = self.held.saturating_add(operation.worst);
        self.ended = self.ended.wrapping_add(1);
    }
}
