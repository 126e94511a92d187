//! Stacks and local memory of a context: what its limit and its kernels need for all threads that the card can run at once.
//!
//! ```text
//!   charged = threads × (most of: the first limit, the limit, what kernels need) − threads × the first limit
//! ```
//!
//! A driver has room for them from the call that changes the limit, and from the first launch of a kernel that needs more (the
//! vendor's programming guide, local memory): so it is reserved before the limit changes, and when the kernel is got. It may make
//! another limit of what is asked for (the vendor's text of cuCtxSetLimit: clamped, or rounded up): what it tells afterwards
//! counts. The first limit is in the context's own size. Heaps and the buffers of `printf`, and kernels that are launched in
//! another context than they were got in, the governor finds at the driver's ([`aliquot_enforce::residue`]).

use core::sync::atomic::{AtomicU64, Ordering};

use aliquot_abi::refusal::RefusedKind;

use crate::accounting::account::{self, Account, Bytes, Ledger, OutOfMemory};
use crate::accounting::alloc_map::{AllocMap, Key, Tie};
use crate::accounting::contexts::{self, Current};
use crate::accounting::credit;
use crate::loader::vendor::{self, Device, OUT_OF_MEMORY, SUCCESS};
use crate::memory::address_out::AddressOut;
use crate::memory::admission_gate::moving_here;
use crate::sys::KeepErrno;
use crate::sys::fork_private::NotedNumbers;

/// CU_LIMIT_STACK_SIZE
const STACKS: u32 = 0;
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

/// Bytes of each thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stacks {
    /// The limit that was there first.
    first: usize,
    limit: usize,
    /// What kernels need, of those got in it: the most.
    kernels: usize,
}

/// What a context holds for them.
#[derive(Clone, Copy)]
struct StackCharge {
    tie: u32,
    grant: u32,
    threads: u64,
    stacks: Stacks,
}

static CHARGES: AllocMap<StackCharge> = AllocMap::new();

/// Functions and kernels that were got before, of which nothing is asked again.
static SEEN: NotedNumbers<SEEN_MAX> = NotedNumbers::new();
const SEEN_MAX: usize = 1 << 13;
/// Counts ends of modules and contexts: a handle that comes again after one is another's.
static AGE: AtomicU64 = AtomicU64::new(1);

fn seen_as(handle: u64) -> u64 {
    (handle.rotate_left(20) ^ AGE.load(Ordering::Acquire)).wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1)
}

/// A module or a context ended.
pub(super) fn ended() {
    AGE.fetch_add(1, Ordering::AcqRel);
}

impl Stacks {
    fn each(self) -> usize {
        self.limit.max(self.kernels).saturating_sub(self.first)
    }
}

impl StackCharge {
    fn bytes(self) -> u64 {
        u64::try_from(self.stacks.each()).unwrap_or(u64::MAX).saturating_mul(self.threads)
    }
}

/// The current context's, whose limit is this now.
#[derive(Clone, Copy)]
struct ContextStacks {
    key: Key,
    ledger: Ledger,
    limit: usize,
}

/// So much more does not fit.
struct StackShortage {
    ledger: Ledger,
    more: Bytes,
}

impl StackShortage {
    fn refuse(self) -> i32 {
        self.ledger.refuse(RefusedKind::Stack.over_limit(self.more.0))
    }
}

impl ContextStacks {
    /// `Ok(None)`: nothing is charged here, or the driver says nothing.
    fn current() -> Result<Option<Self>, i32> {
        let Some(current) = contexts::current() else { return Ok(None) };
        let ledger = match account::of(current.device) {
            Account::Counted(ledger) => ledger,
            Account::Uncounted => return Ok(None),
            Account::Closed => return Err(OUT_OF_MEMORY),
        };
        let Some((limit, threads)) = limit_now().zip(threads(current.device)) else { return Ok(None) };
        let here = Self { key: Key(u64::from(current.tie.0)), ledger, limit };
        here.enter(current, threads).map(|()| Some(here))
    }

    fn enter(self, current: Current, threads: u64) -> Result<(), i32> {
        let stacks = Stacks { first: self.limit, limit: self.limit, kernels: 0 };
        let grant = u32::try_from(self.ledger.number()).unwrap_or(u32::MAX);
        let fresh = StackCharge { tie: current.tie.0, grant, threads, stacks };
        match CHARGES.get(self.key) {
            Some(_) => Ok(()),
            None => CHARGES
                .insert_or(self.key, fresh, |there| there)
                .map(drop)
                .map_err(|_| self.ledger.refuse(RefusedKind::Stack.without_place())),
        }
    }

    /// Reserves what more they take after a change, or gives back what less.
    fn become_by(self, change: impl Fn(Stacks) -> Stacks) -> Result<(), StackShortage> {
        // `None`: the context ended.
        while let Some(before) = CHARGES.get(self.key) {
            let after = StackCharge { stacks: change(before.stacks), ..before };
            let more = Bytes(after.bytes().saturating_sub(before.bytes()));
            self.ledger.reserve(more).map_err(|OutOfMemory| StackShortage { ledger: self.ledger, more })?;
            let noted = CHARGES.update(self.key, |held| {
                let is_as_before = held.stacks == before.stacks && held.tie == before.tie;
                if is_as_before {
                    *held = after;
                }
                is_as_before
            });
            if noted == Some(true) {
                self.ledger.release(Bytes(before.bytes().saturating_sub(after.bytes())));
                return Ok(());
            }
            // Another thread was faster.
            self.ledger.release(more);
        }
        Ok(())
    }

    /// The limit is what the driver tells.
    fn settle(self) -> Result<(), StackShortage> {
        limit_now().map_or(Ok(()), |limit| self.become_by(|stacks| Stacks { limit, ..stacks }))
    }

    /// A kernel can be launched that needs so much.
    fn need(self, each: usize) -> i32 {
        let due = self.become_by(|stacks| Stacks { kernels: stacks.kernels.max(each), ..stacks });
        due.map_or_else(StackShortage::refuse, |()| SUCCESS)
    }
}

/// What the current context has.
fn limit_now() -> Option<usize> {
    let mut value = 0;
    (vendor::cuCtxGetLimit(&raw mut value, STACKS) == Some(SUCCESS)).then_some(value)
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

/// A limit of the current context is changed; `undo` puts the old one back.
pub(crate) fn limit(change: Change, real: impl Fn() -> i32, undo: impl Fn(usize) -> i32) -> i32 {
    if change.limit != STACKS {
        return real();
    }
    let _moving = moving_here();
    let here = {
        let _errno = KeepErrno::new();
        match ContextStacks::current() {
            Ok(Some(here)) => here,
            Ok(None) => return real(),
            Err(answer) => return answer,
        }
    };
    let asked = change.value.min(STACK_MAX);
    if let Err(short) = here.become_by(|stacks| Stacks { limit: stacks.limit.max(asked), ..stacks }) {
        return short.refuse();
    }
    let answer = real();
    let _errno = KeepErrno::new();
    let Err(short) = here.settle() else { return answer };
    // Rounded up, it does not fit. Where it cannot be undone, what was reserved stays.
    let _undone = undo(here.limit);
    let _fits = here.settle();
    short.refuse()
}

/// A function is got, or a kernel; where the local memory that it needs at a launch does not fit it is not had.
pub(crate) fn got(place: AddressOut, of: LocalMemoryOf, real: impl Fn() -> i32) -> i32 {
    if place.is_null() {
        return real();
    }
    let before = place.before();
    let answer = real();
    if answer != SUCCESS {
        return answer;
    }
    let seen = seen_as(place.read());
    if of != LocalMemoryOf::FunctionHere && SEEN.has(seen) {
        return SUCCESS;
    }
    let _errno = KeepErrno::new();
    let answer = of.reserve(place.read());
    if answer == SUCCESS {
        SEEN.note(seen);
    } else {
        place.put_back(before);
    }
    answer
}

/// What has local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalMemoryOf {
    Function,
    /// Of a library.
    Kernel,
    /// Of a kernel, in whichever context is current.
    FunctionHere,
}

impl LocalMemoryOf {
    /// Bytes of each thread; 0: none, or the driver does not say.
    fn each(self, handle: u64) -> usize {
        let mut each = 0;
        let answer = match self {
            Self::Function | Self::FunctionHere => {
                vendor::cuFuncGetAttribute(&raw mut each, LOCAL_BYTES, handle)
            }
            Self::Kernel => contexts::current().and_then(|current| {
                vendor::cuKernelGetAttribute(&raw mut each, LOCAL_BYTES, handle, current.device.0)
            }),
        };
        if answer == Some(SUCCESS) { usize::try_from(each).unwrap_or(0).min(STACK_MAX) } else { 0 }
    }

    fn reserve(self, handle: u64) -> i32 {
        match ContextStacks::current() {
            Ok(Some(here)) => here.need(self.each(handle)),
            Ok(None) => SUCCESS,
            Err(answer) => answer,
        }
    }
}

/// A context ended.
#[inline(never)]
pub(crate) fn context_ended(tie: Tie) {
    ended();
    CHARGES.sweep(|_, held| held.tie == tie.0, |held| credit::credit(held.grant, Bytes(held.bytes())));
}
