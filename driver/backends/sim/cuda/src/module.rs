//! Modules, libraries, functions, kernels. Every image is accepted, and has every requested kernel.
//!
//! A module's memory is charged when the first function is got from it, as with lazy loading; a library's when the function of a
//! kernel is got in a context, or the kernel itself is launched there. A list of functions or kernels loads none of them: each is
//! loaded when it is launched, or made ready. With `CUDA_MODULE_LOADING=EAGER` both are charged at once.
//! It is the node's `module_bytes` and the variables of the image.

use crate::code::{Answer, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND};
use crate::handle::{Registry, Tag};
use crate::image::{Image, Kernel, Local, Other, Variables};
use crate::process::{self, CONTEXTS, Context, lock};
use aliquot_sim_device::{MemoryKind, Node};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A module of one context, or a library of all.
pub(crate) struct Module {
    /// 0: a library.
    context: u64,
    variables: Variables,
    /// Card and bytes charged, by context: a library is loaded into each on its own.
    charged: Mutex<BTreeMap<u64, (usize, u64)>>,
    functions: Mutex<BTreeMap<String, u64>>,
    others: Vec<(Other, String, u64)>,
}

/// How long a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// So many nanoseconds.
    Whole(u64),
    /// So many nanoseconds for each block.
    Block(u64),
    /// As many nanoseconds as the first parameter says.
    Parameter,
}

/// A function or kernel.
pub(crate) struct Function {
    pub(crate) module: u64,
    pub(crate) name: CString,
    pub(crate) length: Length,
    pub(crate) local: Local,
    /// The context in which it was last seen to be loaded.
    ready_in: AtomicU64,
}

static MODULES: Registry<Module> = Registry::new(Tag::Module, INVALID_HANDLE);
/// What else is got by name.
static OTHERS: Registry<()> = Registry::new(Tag::Other, INVALID_HANDLE);
/// All functions.
pub(crate) static FUNCTIONS: Registry<Function> = Registry::new(Tag::Function, INVALID_HANDLE);

impl Length {
    /// What a name says; see the library's story.
    pub(crate) fn of(name: &str, node: &Node) -> Self {
        let number = |prefix| name.strip_prefix(prefix).and_then(|text: &str| text.parse().ok());
        let told = number("k_").map(Self::Whole).or_else(|| number("kb_").map(Self::Block));
        let told = told.or_else(|| (name == "kp").then_some(Self::Parameter));
        told.unwrap_or_else(|| Self::Whole(node.kernels.get(name).copied().unwrap_or(node.kernel_nanos)))
    }
}

/// cuModuleLoad and its kind.
pub(crate) fn load(image: Image) -> Answer<u64> {
    let context = process::current()?;
    add(context.home, image, Some(&context))
}

/// Loads; an eager driver does it whole, where there is a context.
fn add(of: u64, image: Image, current: Option<&Arc<Context>>) -> Answer<u64> {
    let (handle, module) = MODULES.add(|_| Module::new(of, image.variables, image.others));
    if eager()
        && let Some(context) = current
        && let Err(error) = module.charge(context)
    {
        MODULES.remove(handle)?;
        return Err(error);
    }
    image.kernels.into_iter().try_for_each(|kernel| module.function(handle, kernel).map(|_| ()))?;
    Ok(handle)
}

fn eager() -> bool {
    std::env::var_os("CUDA_MODULE_LOADING").is_some_and(|mode| mode == "EAGER")
}

/// cuLibraryLoadData and its kind.
pub(crate) fn load_library(image: Image) -> Answer<u64> {
    process::cards()?;
    add(0, image, process::current().ok().as_ref())
}

/// cuModuleUnload, cuLibraryUnload.
pub(crate) fn unload(handle: u64) -> Answer {
    process::cards()?;
    let module = MODULES.remove(handle)?;
    module.clear();
    Ok(())
}

/// A context goes: its modules go, and what was loaded into it of libraries.
pub(crate) fn unload_all_of(context: u64) {
    for (_, library) in MODULES.select(|module| module.context == 0) {
        let charged = lock(&library.charged).remove(&context);
        give_back(charged);
    }
    for (handle, _) in MODULES.select(|module| module.context == context) {
        if let Ok(module) = MODULES.remove(handle) {
            module.clear();
        }
    }
}

/// cuModuleGetFunction, cuLibraryGetKernel: the same name gives the same handle.
pub(crate) fn function(handle: u64, name: CString) -> Answer<u64> {
    let module = MODULES.get(handle)?;
    if (module.context != 0 || eager())
        && let Ok(context) = process::current()
    {
        module.charge(&context)?;
    }
    module.function(handle, Kernel { name, local: Local::default() })
}

/// cuModuleGetTexRef and its kind, which load what they are of in the current context.
pub(crate) fn other(handle: u64, kind: Other, name: &CString) -> Answer<u64> {
    let module = MODULES.get(handle)?;
    module.charge(&process::current()?)?;
    let mut others = module.others.iter();
    let found = others.find(|(other, own, _)| *other == kind && own.as_bytes() == name.as_bytes());
    found.map(|(.., handle)| *handle).ok_or(NOT_FOUND)
}

/// cuModuleEnumerateFunctions, cuLibraryEnumerateKernels: what its image names and what was got of it, which loads none of them.
pub(crate) fn functions(handle: u64, room: u32) -> Answer<Vec<u64>> {
    let module = MODULES.get(handle)?;
    let known = lock(&module.functions);
    Ok(known.values().copied().take(usize::try_from(room).unwrap_or(usize::MAX)).collect())
}

/// The driver loads a function, or a kernel, in a context: at its first launch there at the latest.
pub(crate) fn load_in(function: &Function, handle: u64) -> Answer {
    if function.ready_in.load(Ordering::Relaxed) == handle {
        return Ok(());
    }
    let module = MODULES.get(function.module)?;
    let its = if module.context == 0 { handle } else { module.context };
    module.charge(&CONTEXTS.get(its)?)?;
    function.ready_in.store(handle, Ordering::Relaxed);
    Ok(())
}

/// cuKernelGetFunction, cuFuncLoad: in the current context.
pub(crate) fn load_function(handle: u64) -> Answer {
    let function = FUNCTIONS.get(handle)?;
    load_in(&function, process::current()?.handle)
}

/// cuFuncIsLoaded: in the current context.
pub(crate) fn is_loaded(handle: u64) -> Answer<bool> {
    let module = MODULES.get(FUNCTIONS.get(handle)?.module)?;
    let context = process::current()?;
    Ok(lock(&module.charged).contains_key(&context.home))
}

/// Whether a handle is a valid module or library.
pub(crate) fn check(handle: u64) -> Answer {
    process::cards()?;
    MODULES.get(handle).map(|_| ())
}

/// How many functions its image names, and were got from it besides.
pub(crate) fn function_count(handle: u64) -> Answer<u32> {
    let module = MODULES.get(handle)?;
    let count = lock(&module.functions).len();
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

fn give_back(charged: impl IntoIterator<Item = (usize, u64)>) {
    for (device, bytes) in charged {
        if let Some(ours) = process::cards().ok().and_then(|cards| cards.get(device)) {
            ours.give(MemoryKind::Module, bytes);
        }
    }
}

impl Module {
    fn new(context: u64, variables: Variables, others: Vec<(Other, String)>) -> Self {
        let others = others.into_iter().map(|(kind, name)| (kind, name, OTHERS.add(|_| ()).0)).collect();
        Self { context, variables, charged: Mutex::default(), functions: Mutex::default(), others }
    }

    /// The same name gives the same handle.
    fn function(&self, handle: u64, Kernel { name, local }: Kernel) -> Answer<u64> {
        let node = process::cards()?.first().ok_or(INVALID_DEVICE)?.card.node();
        let text = name.to_string_lossy().into_owned();
        if text.is_empty() {
            return Err(INVALID_VALUE);
        }
        let mut functions = lock(&self.functions);
        if let Some(known) = functions.get(&text) {
            return Ok(*known);
        }
        let length = Length::of(&text, node);
        let (function, _) =
            FUNCTIONS.add(|_| Function { module: handle, name, length, local, ready_in: AtomicU64::new(0) });
        functions.insert(text, function);
        Ok(function)
    }

    fn charge(&self, context: &Arc<Context>) -> Answer {
        let mut charged = lock(&self.charged);
        if charged.contains_key(&context.home) {
            return Ok(());
        }
        let ours = context.card()?;
        let bytes = ours.card.node().module_bytes.saturating_add(self.variables.charged());
        ours.take(MemoryKind::Module, bytes)?;
        // The call that ends the context collects charges after that end, and waits for this one.
        process::must_live(context.home).inspect_err(|_| ours.give(MemoryKind::Module, bytes))?;
        charged.insert(context.home, (context.device, bytes));
        Ok(())
    }

    fn clear(&self) {
        give_back(std::mem::take(&mut *lock(&self.charged)).into_values());
        for function in std::mem::take(&mut *lock(&self.functions)).into_values() {
            FUNCTIONS.forget(function);
        }
        self.others.iter().for_each(|(.., handle)| OTHERS.forget(*handle));
    }
}
