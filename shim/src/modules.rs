//! Code and static data of modules and libraries: measured around the calls that load them.
//!
//! ```text
//!   first use ─▶ reserve what the last one took ─▶ free memory ─▶ vendor call ─▶ free memory ─▶ settle
//!                                                     └─ something else moved: what the last one took stands
//! ```
//!
//! A driver that loads lazily takes memory when a function is first got, an eager one when the module is loaded; so both are
//! measured, as the difference of free memory, corrected by what the books of this container moved meanwhile. Where something
//! else of this process moved memory meanwhile, or the container has other processes, the difference may be theirs: then the
//! size last measured well on this card stands for the first use of a module, and nothing for later ones; until there is one, the
//! first that was measured while at least nothing was seen to move. What is got a second time takes nothing and is not measured
//! (see [`crate::asked`]), nor is what is got from a module that an eager driver has loaded.
//!
//! A kernel that a program launches without ever having got it, in a context of its own, is not seen.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::account::{self, Account, Bytes, Ledger, Moving};
use crate::alloc_map::Tie;
use crate::asked::{self, Asked};
use crate::contexts::{self, Current};
use crate::grants::GRANTS_MAX;
use crate::kept::{Empty, Kept, Table};
use crate::measured::{Reading, Taken, read, taken};
use crate::plain;
use crate::pools::Place;
use crate::sys::KeepErrno;
use crate::vendor::{self, OUT_OF_MEMORY, SUCCESS};

/// Modules that are charged at once, each in each context.
const MODULES_MAX: usize = 1 << 14;

/// What an object holds in a context.
#[derive(Clone, Copy)]
struct Charged {
    of: u64,
    tie: u32,
    grant: u32,
    /// 1: the driver has loaded it there.
    loaded: u32,
    bytes: u64,
}

// SAFETY: integers.
#[expect(unsafe_code, reason = "zeros are promised to be a value")]
unsafe impl Empty for Charged {}

static MODULES: Kept<Table<Charged, MODULES_MAX>> = Kept::new();
/// Bytes of the last module that was measured well, or else of the first one of which that is likely, by grant; 0: none was.
static LEARNT: [AtomicU64; GRANTS_MAX] = [const { AtomicU64::new(0) }; GRANTS_MAX];

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
    Limit,
}

/// A call that may take memory.
struct Watched {
    ledger: Ledger,
    current: Current,
    stage: Stage,
    worst: Bytes,
    before: Reading,
    /// `None`: the call is over.
    moving: Option<Moving>,
}

impl Object {
    fn key(self, tie: Tie) -> u64 {
        // Handles are addresses: what the context adds does not make one of another.
        (self.0 ^ u64::from(tie.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
    }

    /// Which use in a context the next one is: the first one until the driver is known to have loaded it.
    fn stage(self, current: Current) -> Stage {
        let key = self.key(current.tie);
        let loaded = MODULES.with(|modules| modules.get(key).is_some_and(|charged| charged.loaded != 0));
        if loaded == Some(true) { Stage::Later } else { Stage::First }
    }

    /// Changes what is known of it in a context; `None`: there is no place for that.
    fn note<R>(self, current: Current, ledger: Ledger, change: impl FnOnce(&mut Charged) -> R) -> Option<R> {
        let key = self.key(current.tie);
        let grant = u32::try_from(ledger.number()).unwrap_or(u32::MAX);
        let fresh = Charged { of: self.0, tie: current.tie.0, grant, loaded: 0, bytes: 0 };
        let inside = |modules: &mut Table<Charged, MODULES_MAX>| {
            if modules.get(key).is_none() {
                modules.set(key, fresh);
            }
            modules.get(key).map(change)
        };
        MODULES.with(inside).flatten()
    }

    /// The driver has loaded it; whether that is news. Without a place to note it, it always is.
    fn loaded(self, current: Current, ledger: Ledger) -> bool {
        let news = |charged: &mut Charged| core::mem::replace(&mut charged.loaded, 1) == 0;
        self.note(current, ledger, news).unwrap_or(true)
    }

    /// Adds to what it holds. False: there is no place to note it.
    fn add(self, current: Current, ledger: Ledger, bytes: Bytes) -> bool {
        let add = |charged: &mut Charged| charged.bytes = charged.bytes.saturating_add(bytes.0);
        self.note(current, ledger, add).is_some()
    }

    /// Gives back part of what it holds.
    fn give_back(self, current: Current, ledger: Ledger, bytes: Bytes) {
        let take = |charged: &mut Charged| {
            let less = charged.bytes.min(bytes.0);
            charged.bytes -= less;
            less
        };
        let key = self.key(current.tie);
        let less = MODULES.with(|modules| modules.get(key).map(take)).flatten();
        ledger.release(Bytes(less.unwrap_or(0)));
    }

    /// Takes out what it holds in all contexts, and gives it back.
    fn forget(self) {
        let mut sums = Sums::default();
        let mut was_there = false;
        let each = |_, charged| {
            was_there = true;
            sums.add(charged);
        };
        MODULES.with(|modules| modules.sweep(|charged| charged.of == self.0, each));
        if was_there {
            asked::ended();
        }
        sums.credit();
    }
}

/// Bytes by grant.
#[derive(Default)]
struct Sums([u64; GRANTS_MAX]);

impl Sums {
    fn add(&mut self, charged: Charged) {
        let sum = usize::try_from(charged.grant).ok().and_then(|grant| self.0.get_mut(grant));
        if let Some(sum) = sum {
            *sum = sum.saturating_add(charged.bytes);
        }
    }

    fn credit(self) {
        for (grant, sum) in (0_u32..).zip(self.0).filter(|(_, sum)| *sum > 0) {
            plain::credit(grant, Bytes(sum));
        }
    }
}

/// A context ended, and with it what was loaded into it.
pub(crate) fn context_ended(tie: Tie) {
    asked::ended();
    let mut sums = Sums::default();
    MODULES.with(|modules| modules.sweep(|charged| charged.tie == tie.0, |_, charged| sums.add(charged)));
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
            Self::Later | Self::Limit => false,
        }
    }
}

fn learnt(ledger: Ledger) -> Bytes {
    Bytes(LEARNT.get(ledger.number()).map_or(0, |learnt| learnt.load(Ordering::Acquire)))
}

fn learn(ledger: Ledger, bytes: Bytes) {
    if let Some(learnt) = LEARNT.get(ledger.number()) {
        learnt.store(bytes.0, Ordering::Release);
    }
}

impl Watched {
    /// Before the call. `Ok(None)`: there is nothing to watch.
    fn begin(stage: impl FnOnce(Current) -> Stage) -> Result<Option<Self>, i32> {
        let _errno = KeepErrno::new();
        let Some(current) = contexts::current() else { return Ok(None) };
        let ledger = match account::of(current.device) {
            Account::Counted(ledger) => ledger,
            Account::Uncounted => return Ok(None),
            Account::Closed => return Err(OUT_OF_MEMORY),
        };
        let stage = stage(current);
        if stage == Stage::Later && is_eager() {
            // All of it is there.
            return Ok(None);
        }
        let worst = if stage.takes_module() { learnt(ledger) } else { Bytes(0) };
        ledger.reserve(worst).map_err(|_| ledger.refuse())?;
        let Some(before) = read(ledger) else {
            ledger.release(worst);
            return Ok(None);
        };
        Ok(Some(Self { ledger, current, stage, worst, before, moving: Some(ledger.moving()) }))
    }

    /// What the call took, by what was read before and after.
    fn took(&self, object: Object, taken: Taken, answer: i32) -> Bytes {
        let Self { ledger, current, stage, .. } = *self;
        let is_module = stage.takes_module();
        match taken {
            Taken::Sure(bytes) => {
                if bytes.0 > 0 && stage != Stage::Limit {
                    learn(ledger, bytes);
                }
                if is_module && (bytes.0 > 0 || answer == SUCCESS) {
                    let _news = object.loaded(current, ledger);
                }
                bytes
            }
            Taken::Given(bytes) => {
                if stage == Stage::Limit {
                    object.give_back(current, ledger, bytes);
                }
                Bytes(0)
            }
            // What the driver had no memory for is not there. Else one call of several at once pays.
            Taken::Likely(_) | Taken::Doubtful(_)
                if !is_module || answer == OUT_OF_MEMORY || !object.loaded(current, ledger) =>
            {
                Bytes(0)
            }
            Taken::Likely(measured) if learnt(ledger).0 == 0 => {
                learn(ledger, measured);
                measured
            }
            Taken::Doubtful(measured) if learnt(ledger).0 == 0 => measured,
            Taken::Likely(_) | Taken::Doubtful(_) => learnt(ledger),
        }
    }

    /// After the call, and what it answered: charges what it took to `object`. An error: so much does not fit; it is charged all
    /// the same.
    fn end(mut self, object: Object, answer: i32) -> Result<(), Bytes> {
        let _errno = KeepErrno::new();
        drop(self.moving.take());
        let bytes = read(self.ledger).map(|after| self.took(object, taken(&self.before, &after), answer));
        let bytes = bytes.unwrap_or(Bytes(0));
        let Self { ledger, current, worst, .. } = self;
        let more = Bytes(bytes.0.saturating_sub(worst.0));
        let fits = ledger.reserve(more).is_ok();
        if !fits {
            ledger.charge(more);
        }
        ledger.release(Bytes(worst.0.saturating_sub(bytes.0)));
        if bytes.0 > 0 && !object.add(current, ledger, bytes) {
            // Without a place it could never be credited.
            ledger.release(bytes);
        }
        if fits { Ok(()) } else { Err(bytes) }
    }

    /// After a call that took nothing.
    fn failed(self) {
        self.ledger.release(self.worst);
    }
}

/// A module or library is loaded; `unload` is the vendor's way back.
pub(crate) fn load(handle: Place, real: impl Fn() -> i32, unload: impl Fn(u64) -> i32) -> i32 {
    if handle.is_null() {
        return real();
    }
    let watched = match Watched::begin(|_| Stage::Load) {
        Ok(Some(watched)) => watched,
        Ok(None) => return real(),
        Err(answer) => return answer,
    };
    let before = handle.read();
    let answer = real();
    if answer != SUCCESS {
        watched.failed();
        return answer;
    }
    let (object, ledger) = (Object(handle.read()), watched.ledger);
    // One that ended unseen may have had this handle.
    object.forget();
    if watched.end(object, answer).is_ok() {
        return SUCCESS;
    }
    let _answer = unload(object.0);
    object.forget();
    handle.write(before);
    ledger.refuse()
}

/// Something is got from a module or library, or made ready in it; what was had before takes nothing.
pub(crate) fn get(object: Object, asked: Option<Asked>, place: Option<Place>, real: impl Fn() -> i32) -> i32 {
    if asked.is_some_and(Asked::is_known) {
        return real();
    }
    let answer = get_watched(object, place, real);
    if answer == SUCCESS
        && let Some(asked) = asked
    {
        asked.note();
    }
    answer
}

fn get_watched(object: Object, place: Option<Place>, real: impl Fn() -> i32) -> i32 {
    let watched = match Watched::begin(|current| object.stage(current)) {
        Ok(Some(watched)) => watched,
        Ok(None) => return real(),
        Err(answer) => return answer,
    };
    let place = place.filter(|place| !place.is_null());
    let (before, ledger) = (place.map(Place::read), watched.ledger);
    let answer = real();
    // Asked for a name that is not there, the driver may have loaded the module all the same.
    if watched.end(object, answer).is_ok() || answer != SUCCESS {
        return answer;
    }
    if let (Some(place), Some(before)) = (place, before) {
        place.write(before);
    }
    ledger.refuse()
}

/// A limit of the current context is changed; `undo` puts the old one back.
pub(crate) fn limit(real: impl Fn() -> i32, undo: impl Fn() -> i32) -> i32 {
    let Some(context) = vendor::current_context() else { return real() };
    let watched = match Watched::begin(|_| Stage::Limit) {
        Ok(Some(watched)) => watched,
        Ok(None) => return real(),
        Err(answer) => return answer,
    };
    let answer = real();
    if answer != SUCCESS {
        watched.failed();
        return answer;
    }
    // The context's own handle names nothing else here.
    let object = Object(context);
    let (ledger, current) = (watched.ledger, watched.current);
    let Err(bytes) = watched.end(object, answer) else { return SUCCESS };
    let _undone = undo();
    object.give_back(current, ledger, bytes);
    ledger.refuse()
}

/// A module or library is unloaded. Always forwarded.
pub(crate) fn unload(object: Object, real: impl FnOnce() -> i32) -> i32 {
    let moving = match contexts::current().map(|current| account::of(current.device)) {
        Some(Account::Counted(ledger)) => Some(ledger.moving()),
        _ => None,
    };
    // Out before the driver may give the handle to another thread.
    asked::ended();
    let mut sums = Sums::default();
    let mut kept = None;
    MODULES.with(|modules| {
        modules.sweep(
            |charged| charged.of == object.0,
            |key, charged| {
                sums.add(charged);
                kept = Some((key, charged));
            },
        );
    });
    let answer = real();
    match kept {
        Some((key, charged)) if answer != SUCCESS => {
            // It is still there: its bytes stay, under one context where it was in several.
            let bytes = sums.0.iter().sum();
            MODULES.with(|modules| modules.set(key, Charged { bytes, ..charged }));
        }
        _ => sums.credit(),
    }
    drop(moving);
    answer
}
