//! Code and static data of modules and libraries: measured around the calls that load them.
//!
//! ```text
//!   load ─▶ what the image says that its variables take
//!   first use ─▶ a place in the table ─▶ reserve that ─▶ reading ─▶ vendor call ─▶ reading ─▶ settle
//! ```
//!
//! A driver that loads lazily takes memory when a function is first got, an eager one when the module is loaded; so both are
//! measured, one call of the container at a time (see [`crate::memory::free_memory_delta`]). What is charged:
//!
//! | reading | the call that takes a module | any other |
//! |---|---|---|
//! | sure, likely | the difference, or what its variables take, where that is more | the difference |
//! | doubtful | what its variables take; where the image does not say, the difference | nothing; of a limit, see `limits` |
//!
//! What is got a second time takes nothing and is not measured (see [`crate::memory::lazy_load`]), nor is what is got from a
//! module that an eager driver has loaded. What could not be noted could never be
//! credited: without a place nothing is got, and what was loaded is unloaded.
//!
//! A driver that loads lazily may load a kernel of a library at its first launch, where no thread looks: so it is made ready
//! when it is got, while that is measured, and so are all of a short list of functions or kernels; a kernel in another context
//! than it was got in, and what comes from a long list, before a launch that is looked at (see `later`). What local memory a
//! function needs is charged then, too (see `limits`).

mod limits;
mod loaded_functions;
mod pending_loads;

use core::sync::atomic::{AtomicU32, Ordering};

use crate::accounting::account::{self, Account, Bytes, InFlightOperation, Ledger};
use crate::accounting::alloc_map::{AllocMap, Key, Tie};
use crate::accounting::contexts::{self, Current};
use crate::accounting::credit;
use crate::grants::GRANTS_MAX;
use crate::loader::vendor::{self, OUT_OF_MEMORY, SUCCESS};
use crate::memory::free_memory_delta::{DeltaTurn, MemoryDelta, Patience, Reading, given, read, taken};
use crate::memory::image;
use crate::memory::lazy_load;
use crate::memory::pools::AddressOut;
use crate::sys::KeepErrno;

pub(crate) use limits::{Change, limit};
pub(crate) use loaded_functions::{
    function_of, get, get_function, get_kernel, get_list, load as load_kernel, make_ready,
};
pub(crate) use pending_loads::{Code, Listed, before_launch};

use limits::{Stacks, Step};

/// What an object holds in a context.
#[derive(Clone, Copy)]
struct ObjectCharge {
    of: u64,
    tie: u32,
    grant: u32,
    /// 1: the driver has loaded it there.
    loaded: u32,
    bytes: u64,
    /// Of a context.
    stacks: Stacks,
}

impl ObjectCharge {
    /// What other limits of a context took than that of stacks.
    fn beside_stacks(self) -> u64 {
        self.bytes.saturating_sub(self.stacks.charged())
    }
}

static MODULES: AllocMap<ObjectCharge> = AllocMap::new();
/// What the variables of modules and libraries take, where their images say it.
static VARIABLES: AllocMap<Bytes> = AllocMap::new();

/// A module, a library, or a context for what its limits take: by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object(pub(crate) u64);

/// Which call may take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The module is loaded.
    Load,
    /// Its first function is got, or its first variable.
    First,
    /// Another one is.
    Later,
    /// A limit of a context is changed.
    Limit(Step),
}

/// A call that may take memory.
struct ModuleCall {
    ledger: Ledger,
    current: Current,
    stage: Stage,
    /// What it takes at least, if it is the one that takes the module; reserved.
    least: Bytes,
    /// The image says that.
    is_known: bool,
    patience: Patience,
    before: Option<Reading>,
    // Accounting is right before others look, and look before they have their turn.
    _moving: InFlightOperation,
    _turn: DeltaTurn,
}

/// What is asked for, in the current context.
#[derive(Clone, Copy)]
enum ModuleRequest {
    /// To load an image with variables of that size, if it says it.
    Load(Option<Bytes>),
    /// Something of this object.
    Get(Object),
    /// A change of a limit of this context.
    Limit(Object, Change),
}

impl ModuleRequest {
    /// What the call is in a context.
    fn stage(self, current: Current) -> Stage {
        match self {
            Self::Load(_) => Stage::Load,
            Self::Limit(object, change) => Stage::Limit(change.step(object, current)),
            Self::Get(object) => match object.in_context(current) {
                Some(ObjectCharge { loaded: 1, .. }) => Stage::Later,
                _ => Stage::First,
            },
        }
    }
}

/// There is no place to note something.
struct NoPlace;

impl Object {
    fn key(self, tie: Tie) -> Key {
        // Handles are addresses: what the context adds does not make one of another.
        Key((self.0 ^ u64::from(tie.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)) & u64::MAX >> 1)
    }

    fn in_context(self, current: Current) -> Option<ObjectCharge> {
        MODULES.get(self.key(current.tie))
    }

    /// What its variables take, as far as that is not charged in this context; `None`: that is not known.
    fn least(self, current: Current) -> Option<Bytes> {
        let charged = self.in_context(current).map_or(0, |charged| charged.bytes);
        VARIABLES.get(Key(self.0)).map(|all| Bytes(all.0.saturating_sub(charged)))
    }

    /// Makes a place for what it holds in a context.
    fn enter(self, current: Current, ledger: Ledger) -> Result<(), NoPlace> {
        let key = self.key(current.tie);
        if MODULES.get(key).is_some() {
            return Ok(());
        }
        let grant = u32::try_from(ledger.number()).unwrap_or(u32::MAX);
        let fresh = ObjectCharge {
            of: self.0,
            tie: current.tie.0,
            grant,
            loaded: 0,
            bytes: 0,
            stacks: Stacks::default(),
        };
        let Some(other) = MODULES.insert(key, fresh).map_err(|_| NoPlace)? else { return Ok(()) };
        // Another thread was faster.
        self.change(current, |charged| {
            charged.loaded |= other.loaded;
            charged.bytes = charged.bytes.saturating_add(other.bytes);
            charged.stacks = other.stacks;
        });
        Ok(())
    }

    /// The same, and what its variables take: before anything is got of it.
    fn enter_loaded(self, current: Current, ledger: Ledger, variables: Option<Bytes>) -> Result<(), NoPlace> {
        self.enter(current, ledger)?;
        self.describe(variables);
        Ok(())
    }

    /// Notes what its variables take; where that has no place it is not known.
    fn describe(self, variables: Option<Bytes>) {
        let _before = VARIABLES.take(Key(self.0));
        if let Some(variables) = variables {
            let _noted = VARIABLES.insert(Key(self.0), variables);
        }
    }

    fn change<R>(self, current: Current, change: impl FnOnce(&mut ObjectCharge) -> R) -> Option<R> {
        MODULES.update(self.key(current.tie), change)
    }

    /// The driver has loaded it; whether that is news.
    fn loaded(self, current: Current) -> bool {
        self.change(current, |charged| core::mem::replace(&mut charged.loaded, 1) == 0).unwrap_or(true)
    }

    /// Adds to what it holds. Where it ended meanwhile, what it took is gone with it.
    fn add(self, current: Current, ledger: Ledger, bytes: Bytes) {
        let add = |charged: &mut ObjectCharge| charged.bytes = charged.bytes.saturating_add(bytes.0);
        if self.change(current, add).is_none() {
            ledger.release(bytes);
        }
    }

    /// Gives back part of what it holds; how much.
    fn give_back(self, current: Current, ledger: Ledger, bytes: Bytes) -> Bytes {
        let take = |charged: &mut ObjectCharge| {
            let less = charged.bytes.min(bytes.0);
            charged.bytes -= less;
            less
        };
        let given = Bytes(self.change(current, take).unwrap_or(0));
        ledger.release(given);
        given
    }

    /// Takes out what it holds in all contexts; `each` is told.
    fn take_out(self, mut each: impl FnMut(ObjectCharge)) -> Option<Bytes> {
        pending_loads::ended(self);
        let mut was_there = false;
        MODULES.sweep(
            |_, charged| charged.of == self.0,
            |charged| {
                was_there = true;
                each(charged);
            },
        );
        if was_there {
            lazy_load::ended();
        }
        VARIABLES.take(Key(self.0))
    }

    /// Takes out what it holds in all contexts, and gives it back.
    fn forget(self) {
        let mut sums = Sums::default();
        self.take_out(|charged| sums.add(charged));
        sums.credit();
    }
}

/// Bytes by grant.
#[derive(Default)]
struct Sums([u64; GRANTS_MAX]);

impl Sums {
    fn add(&mut self, charged: ObjectCharge) {
        let sum = usize::try_from(charged.grant).ok().and_then(|grant| self.0.get_mut(grant));
        if let Some(sum) = sum {
            *sum = sum.saturating_add(charged.bytes);
        }
    }

    fn credit(&self) {
        for (grant, sum) in (0_u32..).zip(&self.0).filter(|(_, sum)| **sum > 0) {
            credit::credit(grant, Bytes(*sum));
        }
    }
}

/// A context ended, and with it what was loaded into it.
#[inline(never)]
pub(crate) fn context_ended(tie: Tie) {
    lazy_load::ended();
    let mut sums = Sums::default();
    MODULES.sweep(|_, charged| charged.tie == tie.0, |charged| sums.add(charged));
    sums.credit();
}

/// How the driver loads, by its own numbers, which never changes; 0: it was not asked yet.
static LOADING: AtomicU32 = AtomicU32::new(0);

fn is_eager() -> bool {
    let mut mode = LOADING.load(Ordering::Relaxed);
    if mode == 0 && vendor::cuModuleGetLoadingMode(&raw mut mode) == Some(SUCCESS) {
        LOADING.store(mode, Ordering::Relaxed);
    }
    mode == vendor::LOADING_EAGER
}

impl Stage {
    /// Whether the call is the one that takes a whole module.
    fn takes_module(self) -> bool {
        match self {
            Self::Load => is_eager(),
            Self::First => !is_eager(),
            Self::Later | Self::Limit(_) => false,
        }
    }
}

impl ModuleCall {
    /// Before the call. `Ok(None)`: there is nothing to watch.
    fn begin(asking: ModuleRequest) -> Result<Option<Self>, i32> {
        let _errno = KeepErrno::new();
        let Some(current) = contexts::current() else { return Ok(None) };
        let ledger = match account::of(current.device) {
            Account::Counted(ledger) => ledger,
            Account::Uncounted => return Ok(None),
            Account::Closed => return Err(OUT_OF_MEMORY),
        };
        if let ModuleRequest::Get(object) | ModuleRequest::Limit(object, _) = asking {
            object.enter(current, ledger).map_err(|NoPlace| ledger.refuse())?;
            if is_eager() && asking.stage(current) == Stage::Later {
                // All of it is there.
                return Ok(None);
            }
        }
        // A thread that had the turn before may have loaded it.
        let _turn = DeltaTurn::take(ledger);
        let stage = asking.stage(current);
        let least = match asking {
            ModuleRequest::Load(variables) => variables,
            ModuleRequest::Get(object) => object.least(current),
            ModuleRequest::Limit(object, _) => match stage {
                Stage::Limit(step) => object.growth(current, step),
                _ => None,
            },
        };
        let is_known = least.is_some();
        let is_limit = matches!(stage, Stage::Limit(_));
        let may_be_much = (is_limit || stage.takes_module()) && !is_known;
        let patience = if may_be_much { Patience::Much } else { Patience::Little };
        let least = least.filter(|_| is_limit || stage.takes_module()).unwrap_or(Bytes(0));
        let _moving = ledger.moving();
        ledger.reserve(least).map_err(|_| ledger.refuse())?;
        let before = read(ledger, patience);
        Ok(Some(Self { ledger, current, stage, least, is_known, patience, before, _moving, _turn }))
    }

    /// What the call took, by what was read before and after.
    fn took(&self, object: Object, answer: i32) -> Bytes {
        let Self { current, stage, least, .. } = *self;
        let after = self.before.as_ref().and_then(|_| read(self.ledger, self.patience));
        let taken = match (&self.before, &after) {
            (Some(before), Some(after)) => taken(before, after),
            _ => MemoryDelta::Doubtful(Bytes(0)),
        };
        if let Stage::Limit(step) = stage {
            let came_back = self.before.as_ref().zip(after.as_ref()).and_then(|(then, now)| given(then, now));
            return self.took_by_limit(object, step, taken, came_back);
        }
        let (measured, is_doubtful) = match taken {
            MemoryDelta::Sure(bytes) | MemoryDelta::Likely(bytes) => (bytes, false),
            MemoryDelta::Given(_) => (Bytes(0), false),
            MemoryDelta::Doubtful(bytes) => (bytes, true),
        };
        if !stage.takes_module() {
            return if is_doubtful { Bytes(0) } else { measured };
        }
        // What the driver had no memory for is not there; a name that is not there may have had the module loaded.
        let is_there = answer == SUCCESS || (answer != OUT_OF_MEMORY && (is_doubtful || measured.0 > 0));
        if !is_there {
            return if is_doubtful { Bytes(0) } else { measured };
        }
        // Of several at once, one pays.
        match (object.loaded(current), is_doubtful) {
            (false, true) => Bytes(0),
            (false, false) => measured,
            (true, true) if self.is_known => least,
            (true, _) => measured.max(least),
        }
    }

    /// After the call, and what it answered: charges what it took to `object`. An error: so much does not fit; it is charged all
    /// the same.
    fn end(self, object: Object, answer: i32) -> Result<(), Bytes> {
        let _errno = KeepErrno::new();
        let bytes = self.took(object, answer);
        let Self { ledger, current, least, .. } = self;
        let more = Bytes(bytes.0.saturating_sub(least.0));
        let fits = ledger.reserve(more).is_ok();
        if !fits {
            ledger.charge(more);
        }
        ledger.release(Bytes(least.0.saturating_sub(bytes.0)));
        object.add(current, ledger, bytes);
        if fits { Ok(()) } else { Err(bytes) }
    }

    /// After a call that took nothing.
    fn failed(self) {
        self.ledger.release(self.least);
    }
}

/// Where an image lies that is loaded; 0: not in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image(pub(crate) u64);

/// A module or library is loaded; `unload` is the vendor's way back.
pub(crate) fn load(
    handle: AddressOut,
    image: Image,
    real: impl Fn() -> i32,
    unload: impl Fn(u64) -> i32,
) -> i32 {
    if handle.is_null() {
        return real();
    }
    let variables = {
        let _errno = KeepErrno::new();
        image::variables(image.0)
    };
    let watched = match ModuleCall::begin(ModuleRequest::Load(variables)) {
        Ok(Some(watched)) => watched,
        Ok(None) => {
            let answer = real();
            if answer == SUCCESS {
                // A library without a context: it takes memory where it is used.
                Object(handle.read()).describe(variables);
            }
            return answer;
        }
        Err(answer) => return answer,
    };
    let before = handle.before();
    let answer = real();
    if answer != SUCCESS {
        watched.failed();
        return answer;
    }
    let (object, ledger) = (Object(handle.read()), watched.ledger);
    // One that ended unseen may have had this handle.
    object.forget();
    let fits = match object.enter_loaded(watched.current, ledger, variables) {
        Ok(()) => watched.end(object, answer),
        Err(NoPlace) => {
            if unload(object.0) == SUCCESS {
                watched.failed();
            }
            handle.write(before);
            return ledger.refuse();
        }
    };
    if fits.is_ok() {
        return SUCCESS;
    }
    let _moving = ledger.moving();
    let _answer = unload(object.0);
    object.forget();
    handle.write(before);
    ledger.refuse()
}

/// A module or library is unloaded. Always forwarded.
pub(crate) fn unload(object: Object, real: impl FnOnce() -> i32) -> i32 {
    let moving = match contexts::current().map(|current| account::of(current.device)) {
        Some(Account::Counted(ledger)) => Some(ledger.moving()),
        _ => None,
    };
    // Out before the driver may give the handle to another thread.
    lazy_load::ended();
    let mut sums = Sums::default();
    let mut kept = None;
    let variables = object.take_out(|charged| {
        sums.add(charged);
        kept = Some(charged);
    });
    let answer = real();
    match kept {
        Some(charged) if answer != SUCCESS => {
            // It is still there: its bytes stay, under one context where it was in several. Where its place is gone they stay
            // until the process ends.
            let bytes = sums.0.iter().sum();
            let _stays = MODULES.insert(object.key(Tie(charged.tie)), ObjectCharge { bytes, ..charged });
            let _stays = variables.map(|variables| VARIABLES.insert(Key(object.0), variables));
        }
        _ => sums.credit(),
    }
    drop(moving);
    answer
}
