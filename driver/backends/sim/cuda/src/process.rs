//! This process: whether it called cuInit, its cards, its contexts, and which of them is current on which thread.

use crate::boundary::LOST;
use crate::code::{
    Answer, DEVICE_UNAVAILABLE, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED,
    OUT_OF_MEMORY, UNKNOWN,
};
use crate::event;
use crate::handle::{Registry, Tag};
use crate::heap::{self, Heap};
use crate::line;
use crate::pool::Pools;
use crate::stacks::Stacks;
use crate::stream::{self, Stream};
use aliquot_sim_device::{Card, ComputeMode, Device, FaultPlan, Health, MemoryKind, Node, Seat};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A card as this process uses it.
pub(crate) struct OurCard {
    pub(crate) card: Card,
    seat: OnceLock<Seat>,
    seat_lock: Mutex<()>,
    heap: OnceLock<Heap>,
    /// Marks of launches that may be outstanding, oldest first.
    pub(crate) launches: Mutex<VecDeque<aliquot_sim_device::Mark>>,
    primary: Mutex<Primary>,
    pub(crate) pools: Pools,
}

#[derive(Default)]
struct Primary {
    retained: u64,
    flags: u32,
    context: u64,
}

/// A context.
pub(crate) struct Context {
    pub(crate) handle: u64,
    /// The card's number in this process.
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) primary: bool,
    /// References by cuCtxAttach, beside the creator's.
    pub(crate) attached: AtomicU64,
    /// The context that has its memory: itself, or of a green one the primary one.
    pub(crate) home: u64,
    /// The end of all work in streams that the legacy stream waits for.
    pub(crate) joined: Arc<AtomicU64>,
    pub(crate) legacy: Arc<Stream>,
    pub(crate) of_threads: Mutex<BTreeMap<u64, Arc<Stream>>>,
    pub(crate) limits: Mutex<BTreeMap<u32, usize>>,
    pub(crate) stacks: Mutex<Stacks>,
}

struct Simulation {
    device: Device,
    plan: FaultPlan,
    cards: Vec<OurCard>,
}

static SIMULATION: OnceLock<Option<Simulation>> = OnceLock::new();
static INITIALISED: AtomicBool = AtomicBool::new(false);
/// Set in a child that was forked after cuInit: there nothing works any more, as with the vendor's driver.
static FORKED: AtomicBool = AtomicBool::new(false);

/// All contexts.
pub(crate) static CONTEXTS: Registry<Context> = Registry::new(Tag::Context, INVALID_CONTEXT);

thread_local! {
    static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// Locks; what a panic left behind is as good as before, since every change is a single store.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number for the calling thread.
pub(crate) fn thread_number() -> u64 {
    THREAD.with(|number| *number)
}

extern "C" fn forked() {
    if INITIALISED.load(Ordering::Relaxed) {
        FORKED.store(true, Ordering::Relaxed);
    }
}

fn simulation() -> Option<&'static Simulation> {
    let open = || {
        let device = aliquot_sim_device::open(&aliquot_sim_device::dir_from_env()).ok()?;
        let plan = device.plan().ok()?;
        let cards = crate::visible::visible(&device).into_iter().map(OurCard::new).collect();
        Some(Simulation { device, plan, cards })
    };
    SIMULATION.get_or_init(open).as_ref()
}

/// The driver's version: 1000 × major + 10 × minor.
pub(crate) fn driver_version() -> u32 {
    simulation()
        .map_or_else(|| Node::default().cuda_version, |simulation| simulation.device.node().cuda_version)
}

/// Whether the plan names any fault.
pub(crate) fn faults_planned() -> bool {
    simulation().is_some_and(|simulation| !simulation.plan.is_empty())
}

/// The cards and the plan of faults.
pub(crate) fn faults() -> Option<(&'static Device, &'static FaultPlan)> {
    simulation().map(|simulation| (&simulation.device, &simulation.plan))
}

/// Whether a fault takes `export` away.
pub(crate) fn lacks(export: &str) -> bool {
    simulation().is_some_and(|simulation| simulation.plan.lacks(export))
}

/// cuInit.
pub(crate) fn init(flags: u32) -> Answer {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    if FORKED.load(Ordering::Relaxed) {
        return Err(NOT_INITIALIZED);
    }
    let simulation = simulation().ok_or(UNKNOWN)?;
    if simulation.cards.is_empty() {
        return Err(NO_DEVICE);
    }
    if !INITIALISED.swap(true, Ordering::AcqRel) {
        heap::in_forked_child(forked);
    }
    Ok(())
}

/// All cards, in this process's order.
pub(crate) fn cards() -> Answer<&'static [OurCard]> {
    if !INITIALISED.load(Ordering::Acquire) || FORKED.load(Ordering::Relaxed) {
        return Err(NOT_INITIALIZED);
    }
    simulation().map(|simulation| &simulation.cards[..]).ok_or(NOT_INITIALIZED)
}

/// A card by its number here.
pub(crate) fn card(device: i32) -> Answer<&'static OurCard> {
    let cards = cards()?;
    usize::try_from(device).ok().and_then(|index| cards.get(index)).ok_or(INVALID_DEVICE)
}

// === impl Primary ===

impl Primary {
    fn release(&mut self) -> Answer {
        match self.retained {
            0 => Err(INVALID_CONTEXT),
            1 => {
                self.retained = 0;
                destroy(std::mem::take(&mut self.context))
            }
            _ => {
                self.retained -= 1;
                Ok(())
            }
        }
    }
}

// === impl OurCard ===

impl OurCard {
    fn new(card: Card) -> Self {
        Self {
            card,
            seat: OnceLock::new(),
            seat_lock: Mutex::default(),
            heap: OnceLock::new(),
            launches: Mutex::default(),
            primary: Mutex::default(),
            pools: Pools::default(),
        }
    }

    /// Fails when the card fell off the bus.
    pub(crate) fn well(&self) -> Answer {
        if self.card.health() == Health::Lost { Err(LOST) } else { Ok(()) }
    }

    /// Whether the card's compute mode lets this process have a context.
    fn admits(&self) -> bool {
        let others = || {
            let processes = self.card.processes().into_iter();
            let with_context = |process: &aliquot_sim_device::Process| {
                process.held_by_kind.get(usize::from(MemoryKind::Context as u8)).is_some_and(|held| *held > 0)
            };
            processes
                .filter(|process| process.pid != std::process::id())
                .any(|process| with_context(&process))
        };
        match self.card.facts().compute_mode {
            ComputeMode::Default => true,
            ComputeMode::Prohibited => false,
            ComputeMode::Exclusive => !others(),
        }
    }

    /// This process's seat; taken at the first use.
    pub(crate) fn seat(&self) -> Answer<&Seat> {
        self.well()?;
        if let Some(seat) = self.seat.get() {
            return Ok(seat);
        }
        let _one = lock(&self.seat_lock);
        if let Some(seat) = self.seat.get() {
            return Ok(seat);
        }
        let seat = self.card.join().map_err(|_| OUT_OF_MEMORY)?;
        Ok(self.seat.get_or_init(|| seat))
    }

    /// Where content lies.
    pub(crate) fn heap(&self) -> Answer<&Heap> {
        if let Some(heap) = self.heap.get() {
            return Ok(heap);
        }
        let seat = self.seat()?;
        let _one = lock(&self.seat_lock);
        if let Some(heap) = self.heap.get() {
            return Ok(heap);
        }
        let heap = Heap::new(&seat.content_file(), self.card.node().slab())?;
        Ok(self.heap.get_or_init(|| heap))
    }

    /// Takes memory; before a refusal, pools release what they hold unused.
    pub(crate) fn take(&self, kind: MemoryKind, bytes: u64) -> Answer {
        let seat = self.seat()?;
        crate::vmm::collect();
        crate::memory::settle_freed();
        if seat.take(kind, bytes).is_ok() {
            return Ok(());
        }
        self.pools.trim_all(seat);
        seat.take(kind, bytes).map_err(|_| OUT_OF_MEMORY)
    }

    /// Gives memory back.
    pub(crate) fn give(&self, kind: MemoryKind, bytes: u64) {
        if let Some(seat) = self.seat.get() {
            seat.give(kind, bytes);
        }
    }
}

// === impl Context ===

impl Context {
    fn new((handle, home): (u64, u64), device: usize, flags: u32, primary: bool) -> Self {
        let joined = Arc::new(AtomicU64::new(0));
        Self {
            handle,
            device,
            flags,
            primary,
            attached: AtomicU64::new(0),
            home,
            legacy: Arc::new(Stream::standard(handle, device, Arc::clone(&joined))),
            joined,
            of_threads: Mutex::default(),
            limits: Mutex::default(),
            stacks: Mutex::default(),
        }
    }

    pub(crate) fn card(&self) -> Answer<&'static OurCard> {
        cards()?.get(self.device).ok_or(INVALID_DEVICE)
    }
}

fn create(device: usize, flags: u32, primary: bool) -> Answer<u64> {
    let ours = cards()?.get(device).ok_or(INVALID_DEVICE)?;
    ours.take(MemoryKind::Context, ours.card.node().context_bytes)?;
    // Checked with the own context accounted: of two concurrent processes both may be refused, never both
    // admitted.
    if !ours.admits() {
        ours.give(MemoryKind::Context, ours.card.node().context_bytes);
        return Err(DEVICE_UNAVAILABLE);
    }
    Ok(CONTEXTS.add(|handle| Context::new((handle, handle), device, flags, primary)).0)
}

/// A context that works with the memory of the primary one, which it retains.
pub(crate) fn green_create(device: i32) -> Answer<u64> {
    let home = primary_retain(device)?;
    let device = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
    Ok(CONTEXTS.add(|handle| Context::new((handle, home), device, 0, false)).0)
}

/// It ends, with its streams; its memory is the primary context's.
pub(crate) fn green_destroy(handle: u64) -> Answer {
    let context = CONTEXTS.remove(handle)?;
    stream::destroy_all_of(handle);
    event::destroy_all_of(handle);
    let ours = context.card()?;
    ours.give(MemoryKind::Context, lock(&context.stacks).taken());
    let mut primary = lock(&ours.primary);
    // After a reset the current primary context has other owners, and this reference is not one of them.
    if primary.context == context.home { primary.release() } else { Ok(()) }
}

/// What was begun in a context may come to its end after it.
pub(crate) fn must_live(handle: u64) -> Answer {
    CONTEXTS.living(handle).map(|_| ()).ok_or(INVALID_CONTEXT)
}

/// The context that has the memory of another.
pub(crate) fn home(handle: u64) -> u64 {
    CONTEXTS.living(handle).map_or(handle, |context| context.home)
}

fn destroy(handle: u64) -> Answer {
    let context = CONTEXTS.remove(handle)?;
    crate::memory::free_all_of(handle);
    crate::external::destroy_all_of(handle);
    crate::array::destroy_all_of(handle);
    crate::module::unload_all_of(handle);
    stream::destroy_all_of(handle);
    event::destroy_all_of(handle);
    let ours = context.card()?;
    ours.give(MemoryKind::Context, ours.card.node().context_bytes + lock(&context.stacks).taken());
    Ok(())
}

/// cuCtxCreate, all versions: the new context is current.
pub(crate) fn context_create(device: i32, flags: u32) -> Answer<u64> {
    card(device)?;
    let handle = create(usize::try_from(device).map_err(|_| INVALID_DEVICE)?, flags, false)?;
    CURRENT.with_borrow_mut(|stack| stack.push(handle));
    Ok(handle)
}

/// cuCtxAttach, of the current context; primary and green ones are kept otherwise.
pub(crate) fn context_attach() -> Answer<u64> {
    let context = current()?;
    if context.primary || context.home != context.handle {
        return Err(INVALID_CONTEXT);
    }
    context.attached.fetch_add(1, Ordering::AcqRel);
    Ok(context.handle)
}

/// cuCtxDetach, of the current context: the last one destroys it.
pub(crate) fn context_detach(handle: u64) -> Answer {
    if current()?.handle != handle {
        return Err(INVALID_CONTEXT);
    }
    let less = |count: u64| count.checked_sub(1);
    let attached = &CONTEXTS.get(handle)?.attached;
    match attached.fetch_update(Ordering::AcqRel, Ordering::Acquire, less) {
        Ok(_) => Ok(()),
        Err(_) => context_destroy(handle),
    }
}

/// cuCtxDestroy.
pub(crate) fn context_destroy(handle: u64) -> Answer {
    let context = CONTEXTS.get(handle)?;
    if context.primary || context.home != handle {
        return Err(INVALID_CONTEXT);
    }
    destroy(handle)?;
    CURRENT.with_borrow_mut(|stack| {
        if stack.last() == Some(&handle) {
            stack.pop();
        }
    });
    Ok(())
}

/// cuDevicePrimaryCtxRetain.
pub(crate) fn primary_retain(device: i32) -> Answer<u64> {
    let ours = card(device)?;
    let mut primary = lock(&ours.primary);
    if primary.context == 0 {
        primary.context = create(usize::try_from(device).map_err(|_| INVALID_DEVICE)?, primary.flags, true)?;
    }
    primary.retained += 1;
    Ok(primary.context)
}

/// cuDevicePrimaryCtxRelease.
pub(crate) fn primary_release(device: i32) -> Answer {
    lock(&card(device)?.primary).release()
}

/// cuDevicePrimaryCtxReset.
pub(crate) fn primary_reset(device: i32) -> Answer {
    let ours = card(device)?;
    let mut primary = lock(&ours.primary);
    primary.retained = 0;
    match std::mem::take(&mut primary.context) {
        0 => Ok(()),
        context => destroy(context),
    }
}

/// cuDevicePrimaryCtxSetFlags.
pub(crate) fn primary_set_flags(device: i32, flags: u32) -> Answer {
    lock(&card(device)?.primary).flags = flags;
    Ok(())
}

/// Flags, and whether the primary context is there.
pub(crate) fn primary_state(device: i32) -> Answer<(u32, i32)> {
    let primary = lock(&card(device)?.primary);
    Ok((primary.flags, i32::from(primary.context != 0)))
}

/// cuCtxGetCurrent; 0 where there is none.
pub(crate) fn current_handle() -> Answer<u64> {
    cards()?;
    Ok(CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0)))
}

/// The current context.
pub(crate) fn current() -> Answer<Arc<Context>> {
    match current_handle()? {
        0 => Err(INVALID_CONTEXT),
        // It may have been destroyed by another thread, which is no fault.
        handle => CONTEXTS.living(handle).ok_or(INVALID_CONTEXT),
    }
}

/// The current context's card.
pub(crate) fn current_card() -> Answer<&'static OurCard> {
    current()?.card()
}

/// cuCtxSetCurrent: 0 takes the top off.
pub(crate) fn set_current(handle: u64) -> Answer {
    cards()?;
    if handle != 0 {
        CONTEXTS.get(handle)?;
    }
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
    Ok(())
}

/// cuCtxPushCurrent.
pub(crate) fn push_current(handle: u64) -> Answer {
    cards()?;
    CONTEXTS.get(handle)?;
    CURRENT.with_borrow_mut(|stack| stack.push(handle));
    Ok(())
}

/// cuCtxPopCurrent.
pub(crate) fn pop_current() -> Answer<u64> {
    cards()?;
    CURRENT.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)
}

/// A context by handle; 0 is the current one.
pub(crate) fn context_or_current(handle: u64) -> Answer<Arc<Context>> {
    if handle == 0 { current() } else { CONTEXTS.get(handle) }
}

/// cuCtxSynchronize.
pub(crate) fn synchronize(context: &Context) -> Answer {
    let ours = context.card()?;
    stream::refuse_in_captures_of(context.handle)?;
    line::wait_for_all_of(context.handle)?;
    let seat = ours.seat()?;
    seat.wait(seat.submitted());
    ours.well()?;
    crate::memory::settle_freed();
    ours.pools.settle(seat);
    Ok(())
}

/// The card a stream works on.
pub(crate) fn card_of(stream: &Stream) -> Answer<&'static OurCard> {
    cards()?.get(stream.device).ok_or(INVALID_DEVICE)
}
