//! What limits of a context take of the card.
//!
//! A driver has room for the stacks of all threads that can run at once, which is known before (the vendor's programming guide,
//! local memory): so it is reserved before, and charged; more where more is seen. It may make another limit of what is asked for
//! (the vendor's text of cuCtxSetLimit: clamped, or rounded up), so what is reckoned with afterwards is the limit that it tells
//! then. Stacks that become smaller are credited where the card is seen to get that much back; where that is not seen they stay
//! charged, and the next larger ones take that first. Heaps and the buffers of `printf` are made with the first module that needs
//! them (the guide, dynamic global memory allocation), and take nothing here unless that is seen.
//!
//! Local memory that kernels need is the same memory: of the limit and of what the kernels got in a context need, the most
//! counts.

use super::{ModuleCall, ModuleRequest, Object, ObjectCharge, Stage};
use crate::accounting::account::{self, Account, Bytes, Ledger};
use crate::accounting::contexts::{self, Current};
use crate::loader::vendor::{self, Device, SUCCESS};
use crate::memory::free_memory_delta::{DeltaTurn, MemoryDelta};
use crate::sys::KeepErrno;

/// CU_LIMIT_STACK_SIZE
const STACKS: u32 = 0;
/// CU_LIMIT_PRINTF_FIFO_SIZE
const MESSAGES: u32 = 1;
/// CU_LIMIT_MALLOC_HEAP_SIZE
const HEAP: u32 = 2;
/// CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
const MULTIPROCESSORS: u32 = 16;
/// CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR
const THREADS: u32 = 39;
/// CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
const LOCAL_BYTES: u32 = 3;
/// No thread has more local memory (the guide, technical specifications of compute capabilities): no more is reserved for it.
const STACK_MAX: usize = 512 << 10;

/// A limit, and what it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) limit: u32,
    pub(crate) value: usize,
}

/// A change on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    change: Change,
    /// What the limit was; `None`: the driver did not say.
    from: Option<usize>,
    /// Stacks of this size are in the context's own.
    first: usize,
    /// What kernels need, each thread of them, whatever the limit.
    kernels: usize,
    /// Threads that have a stack.
    threads: Option<u64>,
}

/// What a change takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// So much more than before.
    More(Bytes),
    /// So much less.
    Less(Bytes),
    /// Nothing yet.
    Nothing,
    /// Unknown.
    Unknown,
}

/// What the stacks of a context take beside its own size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stacks {
    /// The limit that was there first; 0: no thread looked yet.
    first: usize,
    /// What each thread of a kernel needs, of those got in it: the most.
    kernels: usize,
    /// What is charged for them.
    charged: u64,
    /// As much of that as larger ones may take without more being charged, as they had it before.
    spare: u64,
}

impl Change {
    /// What the current context has.
    fn now(self) -> Option<usize> {
        let mut value = 0;
        (vendor::cuCtxGetLimit(&raw mut value, self.limit) == Some(SUCCESS)).then_some(value)
    }

    pub(super) fn step(self, context: Object, current: Current) -> Step {
        let from = self.now();
        let stacks = context.change(current, |held| {
            if let (STACKS, Some(from)) = (self.limit, from) {
                held.stacks.begin(from);
            }
            held.stacks
        });
        let Stacks { first, kernels, .. } = stacks.unwrap_or_default();
        Step { change: self, from, first, kernels, threads: threads(current.device) }
    }
}

impl Step {
    /// What it takes that the limit becomes this.
    fn to(self, value: usize) -> Expected {
        match self.change.limit {
            STACKS => self.stacks(value).unwrap_or(Expected::Unknown),
            MESSAGES | HEAP => Expected::Nothing,
            _ => Expected::Unknown,
        }
    }

    fn stacks(self, value: usize) -> Option<Expected> {
        let threads = self.threads?;
        let bytes = |value: usize| {
            let each = value.max(self.kernels).saturating_sub(self.first);
            u64::try_from(each).unwrap_or(u64::MAX).saturating_mul(threads)
        };
        let (before, after) = (bytes(self.from?), bytes(value));
        let difference = Bytes(after.abs_diff(before));
        Some(if after > before { Expected::More(difference) } else { Expected::Less(difference) })
    }

    /// What it may take.
    fn asked(self) -> Expected {
        self.to(self.change.value.min(STACK_MAX.max(self.from.unwrap_or(0))))
    }

    /// What was read of it. What kernels need is charged before it is there: the stacks have that first, which the card gives
    /// now.
    fn seen(self, taken: MemoryDelta) -> MemoryDelta {
        if self.from.is_some_and(|from| self.kernels <= from) {
            taken
        } else {
            MemoryDelta::Doubtful(Bytes(0))
        }
    }

    /// What it came to.
    fn became(self) -> Expected {
        match self.change.now() {
            Some(now) => self.to(now),
            // Larger as it was asked, but not smaller.
            None => self.to(self.change.value.max(self.from.unwrap_or(0))),
        }
    }
}

/// Threads that a card can run at once.
fn threads(device: Device) -> Option<u64> {
    let (processors, each) = attribute(MULTIPROCESSORS, device).zip(attribute(THREADS, device))?;
    Some(processors.saturating_mul(each))
}

fn attribute(number: u32, device: Device) -> Option<u64> {
    let mut value = 0;
    let answer = vendor::cuDeviceGetAttribute(&raw mut value, number, device.0)?;
    (answer == SUCCESS).then(|| u64::try_from(value).ok()).flatten()
}

impl Stacks {
    pub(super) fn charged(self) -> u64 {
        self.charged
    }

    /// The limit is this; where no thread looked before it was so from the first.
    fn begin(&mut self, limit: usize) {
        if self.first == 0 {
            self.first = limit;
        }
    }

    /// What a kernel needs, and the limit as it is now: what becomes of the stacks of so many threads, and what is due for it.
    fn with_kernel(mut self, each: usize, limit: usize, threads: u64) -> (Self, Bytes) {
        self.begin(limit);
        let there = self.first.max(self.kernels).max(limit);
        let more = u64::try_from(each.saturating_sub(there)).unwrap_or(u64::MAX).saturating_mul(threads);
        let due = self.grow(Bytes(more));
        self.kernels = self.kernels.max(each);
        self.charged = self.charged.saturating_add(due.0);
        (self, due)
    }

    /// They take so much more: what of that is not charged, the rest is not spare any longer.
    fn grow(&mut self, more: Bytes) -> Bytes {
        let due = more.0.saturating_sub(self.spare);
        self.spare = self.spare.saturating_sub(more.0);
        Bytes(due)
    }

    /// They take so much less, of which so much was credited.
    fn shrink(&mut self, less: Bytes, credited: Bytes) {
        self.charged = self.charged.saturating_sub(credited.0);
        let spare = self.spare.saturating_add(less.0.saturating_sub(credited.0));
        // What was never charged may not be had later.
        self.spare = spare.min(self.charged);
    }
}

impl Object {
    /// The context, which is one with those that work with its memory. No address is this number.
    fn of_context(current: Current) -> Self {
        Self(!u64::from(current.tie.0))
    }

    /// What a change of a limit takes that is not charged yet; `None`: that is not known.
    pub(super) fn growth(self, current: Current, step: Step) -> Option<Bytes> {
        match step.asked() {
            Expected::More(bytes) => {
                let spare = self.in_context(current).map_or(0, |held| held.stacks.spare);
                Some(Bytes(bytes.0.saturating_sub(spare)))
            }
            Expected::Less(_) | Expected::Nothing => Some(Bytes(0)),
            Expected::Unknown => None,
        }
    }

    /// Its stacks take so much more, which is what the card gave if that was seen; what is to be charged.
    fn grow(self, current: Current, more: Bytes, taken: MemoryDelta) -> Bytes {
        let charge = |stacks: &mut Stacks| {
            let due = stacks.grow(more);
            let bytes = match taken {
                // Never less: what another tenant of the card gave back meanwhile was not had here.
                MemoryDelta::Sure(bytes) | MemoryDelta::Likely(bytes) if bytes != more => {
                    Bytes(bytes.0.max(due.0))
                }
                _ => due,
            };
            stacks.charged = stacks.charged.saturating_add(bytes.0);
            bytes
        };
        self.change(current, |held| charge(&mut held.stacks)).unwrap_or(more)
    }

    /// Its stacks take so much less, of which the card was seen to get so much back.
    fn shrink(self, current: Current, ledger: Ledger, less: Bytes, seen: Bytes) {
        let charged = self.in_context(current).map_or(0, |held| held.stacks.charged);
        let credited = self.give_back(current, ledger, Bytes(seen.0.min(charged)));
        self.change(current, |held| held.stacks.shrink(less, credited));
    }
}

/// Local memory of a kernel, for all threads that the card can run at once, which a driver makes at the first launch that needs
/// it, where no thread looks for memory, and keeps for the context: charged as soon as the kernel can be launched there. What
/// does not fit is not charged.
#[inline(never)]
pub(super) fn need(function: u64) -> i32 {
    let _errno = KeepErrno::new();
    let mut each = 0;
    let told = vendor::cuFuncGetAttribute(&raw mut each, LOCAL_BYTES, function) == Some(SUCCESS);
    let each = usize::try_from(each).unwrap_or(0).min(STACK_MAX);
    if !told || each == 0 {
        return SUCCESS;
    }
    let Some(current) = contexts::current() else { return SUCCESS };
    let Account::Counted(ledger) = account::of(current.device) else { return SUCCESS };
    let context = Object::of_context(current);
    let limit = || Change { limit: STACKS, value: 0 }.now().unwrap_or(0);
    let first = context.in_context(current).map_or(0, |held| held.stacks.first);
    if each <= if first == 0 { limit() } else { first } {
        // In the context's own.
        return SUCCESS;
    }
    let Some(threads) = threads(current.device) else { return SUCCESS };
    if context.enter(current, ledger).is_err() {
        return ledger.refuse();
    }
    // Limits change one after the other, and this.
    let _turn = DeltaTurn::take(ledger);
    loop {
        let Some(before) = context.in_context(current).map(|held| held.stacks) else { return SUCCESS };
        let (after, due) = before.with_kernel(each, limit(), threads);
        if ledger.reserve(due).is_err() {
            return ledger.refuse();
        }
        let noted = context.change(current, |held| {
            let is_as_before = held.stacks == before;
            if is_as_before {
                held.stacks = after;
                held.bytes = held.bytes.saturating_add(due.0);
            }
            is_as_before
        });
        if noted == Some(true) {
            return SUCCESS;
        }
        // Another thread was faster, or the context ended.
        ledger.release(due);
    }
}

impl ModuleCall {
    /// What a change of a limit took, by what was read; `came_back`: what the card got back, if no other thread moved anything.
    pub(super) fn took_by_limit(
        &self,
        context: Object,
        step: Step,
        taken: MemoryDelta,
        came_back: Option<Bytes>,
    ) -> Bytes {
        let (current, ledger) = (self.current, self.ledger);
        match (step.became(), taken) {
            (Expected::More(more), _) => context.grow(current, more, step.seen(taken)),
            // What another tenant of the card gave back is not ours.
            (Expected::Less(less), MemoryDelta::Given(seen)) => {
                context.shrink(current, ledger, less, seen.min(less));
                Bytes(0)
            }
            (Expected::Less(less), _) => {
                let seen = if came_back == Some(less) { less } else { Bytes(0) };
                context.shrink(current, ledger, less, seen);
                Bytes(0)
            }
            (_, MemoryDelta::Given(bytes)) => {
                let others = context.in_context(current).map_or(0, ObjectCharge::beside_stacks);
                context.give_back(current, ledger, bytes.min(Bytes(others)));
                Bytes(0)
            }
            (_, MemoryDelta::Sure(bytes))
            | (Expected::Unknown, MemoryDelta::Likely(bytes) | MemoryDelta::Doubtful(bytes)) => bytes,
            (Expected::Nothing, _) => Bytes(0),
        }
    }
}

/// A limit of the current context is changed; `undo` puts the old one back.
pub(crate) fn limit(change: Change, real: impl Fn() -> i32, undo: impl Fn(usize) -> i32) -> i32 {
    let Some(object) = contexts::current().map(Object::of_context) else { return real() };
    let watched = match ModuleCall::begin(ModuleRequest::Limit(object, change)) {
        Ok(Some(watched)) => watched,
        Ok(None) => return real(),
        Err(answer) => return answer,
    };
    let answer = real();
    if answer != SUCCESS {
        watched.failed();
        return answer;
    }
    let (ledger, current): (Ledger, Current) = (watched.ledger, watched.current);
    let before = if let Stage::Limit(step) = watched.stage { step.from } else { None };
    let stacks = object.in_context(current).map(|held| held.stacks).unwrap_or_default();
    let Err(bytes) = watched.end(object, answer) else { return SUCCESS };
    let _undone = before.map(undo);
    // Where it could not be undone it stays charged.
    if before.is_some() && change.now() == before {
        object.give_back(current, ledger, bytes);
        object.change(current, |held| held.stacks = stacks);
    }
    ledger.refuse()
}
