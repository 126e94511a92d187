//! Memory whose size only the driver knows: a pool grows and shrinks on its own, and reports its size on request.
//!
//! ```text
//!   books.reserve(worst) ─▶ begin(worst) ─▶ vendor call ─▶ size := ask ─▶ settle(stamp, op, size) ─▶ release what was too much
//!        └─denied─▶ promise(stamp, need, …): existing room serves all or most of it
//! ```
//!
//! Several threads use one pool at once. Its accounted size is `held + pending`: the size when last settled, plus the possible
//! growth of operations in flight. A size read from the driver is valid if no operation ended between the call and its
//! use; a [`Stamp`] shows that.
//!
//! Invariants: `size ≤ held + pending` at every moment, if no operation grows a pool by more than it reserved; and with
//! nothing in flight `held` is the size last read. Promised room is covered by reservations of earlier operations, which
//! are not released before the promise ends.

/// Accounting of one pool, in bytes. The lock around it is never held during a driver call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    held: u64,
    pending: u64,
    /// Room that operations in flight count on without a reservation.
    promised: u64,
    ended: u64,
}

/// The moment before a driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

/// One operation in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// Bytes by which it may grow the pool, already reserved.
    pub worst: u64,
    /// Bytes of the pool's room that it counts on.
    pub promised: u64,
}

/// The size of a pool as the driver reports it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Taken from the card.
    pub reserved: u64,
    /// Of that, in use.
    pub used: u64,
}

/// The change that the caller makes to the memory accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountingChange {
    /// Release this many bytes; 0: nothing.
    Release(u64),
    /// The pool grew by this many bytes beyond the reservation: charge them.
    Charge(u64),
    /// Another operation ended meanwhile: read the size again.
    Stale,
}

/// Whether a pool's room serves an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It does.
    Made(Operation),
    /// There is not enough.
    Full,
    /// Read the size again.
    Stale,
}

impl Growth {
    /// The stamp to take before a driver call.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp(self.ended)
    }

    /// Accounted bytes of the pool.
    #[must_use]
    pub fn in_books(&self) -> u64 {
        self.held.saturating_add(self.pending)
    }

    /// An operation begins, with so many bytes reserved.
    pub fn begin(&mut self, worst: u64) -> Operation {
        self.pending = self.pending.saturating_add(worst);
        Operation { worst, promised: 0 }
    }

    /// Room without a promise, in bytes; `None`: read the size again.
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
    pub fn settle(&mut self, stamp: Stamp, operation: Operation, reserved: u64) -> AccountingChange {
        if stamp.0 != self.ended {
            return AccountingChange::Stale;
        }
        let in_books = self.in_books();
        let cap = self.held.saturating_add(operation.worst);
        let before = *self;
        self.pending = self.pending.saturating_sub(operation.worst);
        self.promised = self.promised.saturating_sub(operation.promised);
        if reserved > in_books {
            self.held = reserved - self.pending;
            self.ended = self.ended.wrapping_add(1);
            return AccountingChange::Charge(reserved - in_books);
        }
        // Promised room may be gone: a trim released it, or this operation used it instead of growing the pool. The operation
        // with the promise then grows the pool. So no bytes are released while a promise is open.
        let floor = if self.promised > 0 { cap } else { 0 };
        self.held = cap.min(reserved.max(floor));
        if *self != before {
            self.ended = self.ended.wrapping_add(1);
        }
        AccountingChange::Release(cap - self.held)
    }

    /// The driver refused an operation and did not report the size: the operation allocated nothing, its reservation is released.
    pub fn cancel(&mut self, operation: Operation) {
        self.pending = self.pending.saturating_sub(operation.worst);
        self.promised = self.promised.saturating_sub(operation.promised);
        self.ended = self.ended.wrapping_add(1);
    }

    /// Whether its accounted size is zero, and no operation counts on it.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.in_books() == 0 && self.promised == 0
    }

    /// Whether a size that was read later equals the accounted one, and nothing is in flight.
    #[must_use]
    pub fn is_settled_at(&self, reserved: u64) -> bool {
        (self.held, self.pending, self.promised) == (reserved, 0, 0)
    }

    /// An operation ended and the driver did not report the size: its reservation stays accounted until the next report.
    pub fn keep(&mut self, operation: Operation) {
        self.pending = self.pending.saturating_sub(operation.worst);
        self.promised = self.promised.saturating_sub(operation.promised);
        self.held = self.held.saturating_add(operation.worst);
        self.ended = self.ended.wrapping_add(1);
    }
}
