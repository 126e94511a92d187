//! What limits of a context take of the card.
//!
//! A driver has room for the stacks of all threads that can run at once, which is known before (the vendor's programming guide,
//! local memory): so it is reserved before, and charged; more where more is seen. It may make another limit of what is asked for
//! (the vendor's text of cuCtxSetLimit: clamped, or rounded up), so what is reckoned with afterwards is the limit that it tells
//! then. Stacks that become smaller are credited where the card is seen to get that much back; where that is not seen they stay
//! charged, and the next larger ones take that first. Heaps and the buffers of `printf` are made with the first module that needs
//! them (the guide, dynamic global memory allocation), and take nothing here unless that is seen.

use super::{Asking, Charged, Object, Stage, Watched};
use crate::account::{Bytes, Ledger};
use crate::contexts::Current;
use crate::measured::Taken;
use crate::vendor::{self, Device, SUCCESS};

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
    /// Nobody knows.
    Unknown,
}

/// What the stacks of a context take beside its own size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stacks {
    /// The limit that was there first.
    first: usize,
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
        let threads = attribute(MULTIPROCESSORS, current.device).zip(attribute(THREADS, current.device));
        let threads = threads.map(|(processors, each)| processors.saturating_mul(each));
        let first = context.change(current, |held| {
            if let (STACKS, 0, Some(from)) = (self.limit, held.stacks.first, from) {
                held.stacks.first = from;
            }
            held.stacks.first
        });
        Step { change: self, from, first: first.unwrap_or(0), threads }
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
            let each = u64::try_from(value.saturating_sub(self.first)).unwrap_or(u64::MAX);
            each.saturating_mul(threads)
        };
        let (before, after) = (bytes(self.from?), bytes(value));
        let difference = Bytes(after.abs_diff(before));
        Some(if after > before { Expected::More(difference) } else { Expected::Less(difference) })
    }

    /// What it may take.
    fn asked(self) -> Expected {
        self.to(self.change.value.min(STACK_MAX.max(self.from.unwrap_or(0))))
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

fn attribute(number: u32, device: Device) -> Option<u64> {
    let mut value = 0;
    let answer = vendor::cuDeviceGetAttribute(&raw mut value, number, device.0)?;
    (answer == SUCCESS).then(|| u64::try_from(value).ok()).flatten()
}

impl Stacks {
    pub(super) fn charged(self) -> u64 {
        self.charged
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
    fn grow(self, current: Current, more: Bytes, taken: Taken) -> Bytes {
        let charge = |stacks: &mut Stacks| {
            let due = stacks.grow(more);
            let bytes = match taken {
                // Never less: what another tenant of the card gave back meanwhile was not had here.
                Taken::Sure(bytes) | Taken::Likely(bytes) if bytes != more => Bytes(bytes.0.max(due.0)),
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

impl Watched {
    /// What a change of a limit took, by what was read; `came_back`: what the card got back, if nobody else moved anything.
    pub(super) fn took_by_limit(
        &self,
        context: Object,
        step: Step,
        taken: Taken,
        came_back: Option<Bytes>,
    ) -> Bytes {
        let (current, ledger) = (self.current, self.ledger);
        match (step.became(), taken) {
            (Expected::More(more), _) => context.grow(current, more, taken),
            // What another tenant of the card gave back is not ours.
            (Expected::Less(less), Taken::Given(seen)) => {
                context.shrink(current, ledger, less, seen.min(less));
                Bytes(0)
            }
            (Expected::Less(less), _) => {
                let seen = if came_back == Some(less) { less } else { Bytes(0) };
                context.shrink(current, ledger, less, seen);
                Bytes(0)
            }
            (_, Taken::Given(bytes)) => {
                let others = context.in_context(current).map_or(0, Charged::beside_stacks);
                context.give_back(current, ledger, bytes.min(Bytes(others)));
                Bytes(0)
            }
            (_, Taken::Sure(bytes)) | (Expected::Unknown, Taken::Likely(bytes) | Taken::Doubtful(bytes)) => {
                bytes
            }
            (Expected::Nothing, _) => Bytes(0),
        }
    }
}

/// A limit of the current context is changed; `undo` puts the old one back.
pub(crate) fn limit(change: Change, real: impl Fn() -> i32, undo: impl Fn(usize) -> i32) -> i32 {
    let Some(context) = vendor::current_context() else { return real() };
    // The context's own handle names nothing else here.
    let object = Object(context);
    let watched = match Watched::begin(Asking::Limit(object, change)) {
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
