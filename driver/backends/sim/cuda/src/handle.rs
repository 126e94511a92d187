//! Handles: numbers that look like pointers and are looked up, never followed. A wrong, old or foreign one is an error.

use crate::boundary;
use crate::code::{Answer, Code};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Which kind of object a handle names; part of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Tag {
    Context = 0x51,
    Stream = 0x52,
    Event = 0x53,
    Module = 0x54,
    Function = 0x55,
    Graph = 0x56,
    Node = 0x57,
    Exec = 0x58,
    Pool = 0x59,
    Physical = 0x5a,
    Array = 0x5b,
    Mipmapped = 0x5c,
    External = 0x5d,
    Green = 0x5e,
    Described = 0x5f,
    Other = 0x60,
}

struct Slots<T> {
    entries: Vec<(u64, Option<Arc<T>>)>,
    free: Vec<usize>,
}

/// All objects of one kind.
pub(crate) struct Registry<T> {
    tag: Tag,
    wrong: Code,
    generations: AtomicU64,
    slots: RwLock<Slots<T>>,
}

/// Number of distinct generations in a handle.
const GENERATIONS: u64 = 1 << 12;

impl<T> Registry<T> {
    /// An empty one, which answers `wrong` for handles it does not know.
    pub(crate) const fn new(tag: Tag, wrong: Code) -> Self {
        Self::with(tag, wrong, GENERATIONS)
    }

    /// The same, where the next object gets the handle of the last one that went: so an old handle may name another.
    pub(crate) const fn reusing(tag: Tag, wrong: Code) -> Self {
        Self::with(tag, wrong, 1)
    }

    /// Becomes one of those; as long as nothing went, which names nothing else.
    pub(crate) fn reuse(&self) {
        self.generations.store(1, Ordering::Relaxed);
    }

    const fn with(tag: Tag, wrong: Code, generations: u64) -> Self {
        let slots = RwLock::new(Slots { entries: Vec::new(), free: Vec::new() });
        Self { tag, wrong, generations: AtomicU64::new(generations), slots }
    }

    fn number(&self, index: usize, generation: u64) -> u64 {
        let index = u64::try_from(index).unwrap_or(0) + 1;
        (self.tag as u64) << 40
            | (generation % self.generations.load(Ordering::Relaxed).max(1)) << 28
            | index << 4
    }

    fn index(handle: u64) -> usize {
        usize::try_from((handle >> 4) & 0xff_ffff).unwrap_or(0).wrapping_sub(1)
    }

    /// Adds the object that `make` builds for its handle.
    pub(crate) fn add(&self, make: impl FnOnce(u64) -> T) -> (u64, Arc<T>) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = slots.free.pop().unwrap_or(slots.entries.len());
        if index == slots.entries.len() {
            slots.entries.push((0, None));
        }
        let generation = slots.entries.get(index).map_or(0, |entry| entry.0);
        let handle = self.number(index, generation);
        let object = Arc::new(make(handle));
        if let Some(entry) = slots.entries.get_mut(index) {
            entry.1 = Some(Arc::clone(&object));
        }
        (handle, object)
    }

    /// The object of a handle. The use of a stale handle is logged: the vendor's driver reports no error for
    /// it, and its behaviour is undefined.
    pub(crate) fn get(&self, handle: u64) -> Answer<Arc<T>> {
        self.living(handle).ok_or_else(|| self.wrong(handle))
    }

    /// The same where the object may be gone.
    pub(crate) fn living(&self, handle: u64) -> Option<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let index = Self::index(handle);
        match slots.entries.get(index) {
            Some((generation, Some(object))) if self.number(index, *generation) == handle => {
                Some(Arc::clone(object))
            }
            _ => None,
        }
    }

    /// The answer for a handle that names nothing.
    #[cold]
    fn wrong(&self, handle: u64) -> Code {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        if handle >> 40 == self.tag as u64 && Self::index(handle) < slots.entries.len() {
            boundary::used_after_its_end(self.tag);
        }
        self.wrong
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.entries.len() - slots.free.len()
    }

    /// Takes the object of a handle out; the handle is stale from now on.
    pub(crate) fn remove(&self, handle: u64) -> Answer<Arc<T>> {
        self.take(handle).ok_or_else(|| self.wrong(handle))
    }

    fn take(&self, handle: u64) -> Option<Arc<T>> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = Self::index(handle);
        let (generation, object) = slots.entries.get_mut(index)?;
        if self.number(index, *generation) != handle {
            return None;
        }
        let object = object.take()?;
        *generation += 1;
        slots.free.push(index);
        Some(object)
    }

    /// Takes the object of a handle out, unless another thread took it first.
    pub(crate) fn forget(&self, handle: u64) {
        drop(self.take(handle));
    }

    /// All valid objects that match `wanted`, with their handles.
    pub(crate) fn select(&self, wanted: impl Fn(&T) -> bool) -> Vec<(u64, Arc<T>)> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let living = slots.entries.iter().enumerate().filter_map(|(index, (generation, object))| {
            object.as_ref().map(|object| (self.number(index, *generation), Arc::clone(object)))
        });
        living.filter(|(_, object)| wanted(object)).collect()
    }
}
