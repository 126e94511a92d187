//! What limits of a context take of the card.
//!
//! A driver has room for the stacks of all threads that can run at once, which is known before (the vendor's programming guide,
//! local memory): so it is reserved before, and charged where what is read is not sure. Stacks that become smaller are credited where the card is
//! seen to get back just that; where that is not seen they stay charged, and the next larger ones take that first. Heaps and the
//! buffers of `printf` are made with the first module that needs them (the guide, dynamic global memory allocation), and take
//! nothing here unless that is seen.

use super::{Asking, Object, Stage, Watched};
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

/// A limit, and what it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) limit: u32,
    pub(crate) value: usize,
}

/// What a change takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// So much more than before.
    More(Bytes),
    /// So much less.
    Less(Bytes),
    /// Nothing yet.
    Nothing,
    /// Nobody knows.
    Unknown,
}

impl Change {
    /// What the current context has.
    fn before(self) -> Option<usize> {
        let mut value = 0;
        (vendor::cuCtxGetLimit(&raw mut value, self.limit) == Some(SUCCESS)).then_some(value)
    }

    pub(super) fn expected(self, device: Device) -> Expected {
        match self.limit {
            STACKS => self.stacks(device).unwrap_or(Expected::Unknown),
            MESSAGES | HEAP => Expected::Nothing,
            _ => Expected::Unknown,
        }
    }

    fn stacks(self, device: Device) -> Option<Expected> {
        let before = self.before()?;
        let threads = attribute(MULTIPROCESSORS, device)?.saturating_mul(attribute(THREADS, device)?);
        let difference = u64::try_from(self.value.abs_diff(before)).ok()?;
        let bytes = Bytes(difference.saturating_mul(threads));
        Some(if self.value > before { Expected::More(bytes) } else { Expected::Less(bytes) })
    }
}

fn attribute(number: u32, device: Device) -> Option<u64> {
    let mut value = 0;
    let answer = vendor::cuDeviceGetAttribute(&raw mut value, number, device.0)?;
    (answer == SUCCESS).then(|| u64::try_from(value).ok()).flatten()
}

impl Object {
    /// What a change of a limit takes that is not charged yet; `None`: that is not known.
    pub(super) fn growth(self, current: Current, stage: Stage) -> Option<Bytes> {
        match stage {
            Stage::Limit(Expected::More(bytes)) => {
                let spare = self.in_context(current).map_or(0, |charged| charged.spare);
                Some(Bytes(bytes.0.saturating_sub(spare)))
            }
            Stage::Limit(Expected::Less(_) | Expected::Nothing) => Some(Bytes(0)),
            _ => None,
        }
    }

    /// Limits take so much less, of which so much was credited.
    fn spare(self, current: Current, less: Bytes, credited: Bytes) {
        let spare = less.0.saturating_sub(credited.0);
        self.change(current, |charged| charged.spare = charged.spare.saturating_add(spare));
    }

    /// And so much more, or what was spare of it.
    fn use_spare(self, current: Current, more: Bytes) {
        self.change(current, |charged| charged.spare = charged.spare.saturating_sub(more.0));
    }
}

impl Watched {
    /// What a change of a limit took, by what was read; `came_back`: what the card got back, if nobody else moved anything.
    pub(super) fn took_by_limit(
        &self,
        context: Object,
        expected: Expected,
        taken: Taken,
        came_back: Option<Bytes>,
    ) -> Bytes {
        let (current, ledger, least) = (self.current, self.ledger, self.least);
        let give_back = |bytes| context.give_back(current, ledger, bytes);
        match (expected, taken) {
            (Expected::More(all), _) => {
                context.use_spare(current, all);
                match taken {
                    // Without what is spare, which is charged already.
                    Taken::Sure(bytes) if bytes != all => bytes,
                    Taken::Likely(bytes) if bytes != all => Bytes(bytes.0.max(least.0)),
                    _ => least,
                }
            }
            (Expected::Less(all), Taken::Given(bytes)) => {
                context.spare(current, all, give_back(bytes));
                Bytes(0)
            }
            (Expected::Less(all), _) => {
                let credited = if came_back == Some(all) { give_back(all) } else { Bytes(0) };
                context.spare(current, all, credited);
                Bytes(0)
            }
            (_, Taken::Given(bytes)) => {
                give_back(bytes);
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
    let before = change.before();
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
    let Err(bytes) = watched.end(object, answer) else { return SUCCESS };
    let _undone = before.map(undo);
    object.give_back(current, ledger, bytes);
    ledger.refuse()
}
