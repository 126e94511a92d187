//! What a driver may load at a launch, where no thread looks for memory: kernels, in contexts in which they were not got, and
//! what comes from a long list. Where launches are looked at, as compute is limited, it is made ready before its first one in
//! a context.

use core::sync::atomic::{AtomicBool, Ordering};

use super::limits::need;
use super::loaded_functions::{function_of, load, make_ready};
use super::{Object, ObjectCharge};
use crate::accounting::alloc_map::{AllocMap, Key};
use crate::accounting::contexts;
use crate::loader::vendor::{self, SUCCESS};
use crate::memory::lazy_load::{LoadKey, LoadSubject};
use crate::memory::pools::AddressOut;
use crate::sys::KeepErrno;

/// What is launched, by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u64);

/// What a list is of, and what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// A module's functions, which belong to its context.
    Functions(Object),
    /// A library's kernels, which are launched in any.
    Kernels(Object),
}

/// All that may be loaded late. What has no place is not seen.
static LATER: AllocMap<Listed> = AllocMap::new();
/// There is any, or was.
static ANY: AtomicBool = AtomicBool::new(false);

impl Listed {
    #[inline(never)]
    pub(super) fn note(self, place: AddressOut) {
        ANY.store(true, Ordering::Release);
        let _unseen = LATER.insert(Key(place.read() & u64::MAX >> 1), self);
    }

    fn object(self) -> Object {
        match self {
            Self::Functions(object) | Self::Kernels(object) => object,
        }
    }

    /// Whether it was made ready in a context, as far as that is remembered.
    fn asked(self, code: Code, context: u64) -> Option<LoadKey> {
        match self {
            Self::Functions(_) => LoadKey::of_module(LoadSubject::Itself, Object(code.0), core::ptr::null()),
            Self::Kernels(_) => LoadKey::in_context(LoadSubject::Itself, Object(code.0), context),
        }
    }

    /// Has the driver load it in the current context.
    #[cold]
    #[inline(never)]
    fn make_ready(self, code: Code, asked: Option<LoadKey>) -> i32 {
        let function = || match self {
            Self::Functions(_) => Some(code.0),
            Self::Kernels(_) => function_of(code.0),
        };
        let loaded = |function: &u64| is_loaded(*function);
        if self.object().is_charged_here()
            && let Some(function) = function().filter(loaded)
        {
            // Made ready earlier, and forgotten since.
            let answer = need(function);
            asked.filter(|_| answer == SUCCESS).into_iter().for_each(LoadKey::note);
            return answer;
        }
        make_ready(self.object(), asked, function, || match self {
            Self::Functions(_) => vendor::cuFuncLoad(code.0).unwrap_or(SUCCESS),
            Self::Kernels(_) => load(code.0),
        })
    }
}

impl Object {
    /// Whether the driver has loaded it in the current context, and what that took is charged.
    fn is_charged_here(self) -> bool {
        let here = contexts::current().and_then(|current| self.in_context(current));
        matches!(here, Some(ObjectCharge { loaded: 1, .. }))
    }
}

fn is_loaded(function: u64) -> bool {
    let mut state = 0;
    vendor::cuFuncIsLoaded(&raw mut state, function) == Some(SUCCESS) && state == vendor::FUNCTION_LOADED
}

/// A module or library is unloaded.
pub(super) fn ended(object: Object) {
    if ANY.load(Ordering::Acquire) {
        LATER.sweep(|_, of| of.object() == object, |_| {});
    }
}

/// Before a launch on a stream: what the driver would load then is loaded now, and charged. An error: it does not fit.
#[cold]
#[inline(never)]
pub(crate) fn before_launch(code: Code, lane: u64) -> i32 {
    if !ANY.load(Ordering::Acquire) {
        return SUCCESS;
    }
    let _errno = KeepErrno::new();
    let Some(listed) = LATER.get(Key(code.0 & u64::MAX >> 1)) else { return SUCCESS };
    let current = vendor::current_context();
    let context = if vendor::is_named(lane) { vendor::context_of(lane) } else { current };
    // Without one the driver refuses.
    let Some(context) = context else { return SUCCESS };
    let asked = listed.asked(code, context);
    if asked.is_some_and(LoadKey::is_known) {
        return SUCCESS;
    }
    let Some(_inside) = vendor::CurrentContext::of(context, current) else { return SUCCESS };
    vendor::relaxed(|| listed.make_ready(code, asked))
}
