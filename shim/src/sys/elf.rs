//! Finds functions in the libraries that are loaded, past our own exports, and tells which library an address is of.
//!
//! The loader's own search would find ours first, and `dlvsym`, which could ask for an older version, is ours as well; besides,
//! its failures overwrite what `dlerror` says. So the symbol tables of the loaded libraries are read as the loader reads them.
//!
//! | question | asked of |
//! |---|---|
//! | the C library's `dlsym`, `dlvsym`, `dl_iterate_phdr`, … | the loader's list from us on, without a lock: what a program starts with is never unloaded |
//! | anything else | `dl_iterate_phdr`, the C library's own: programs replace it, with functions that call `dlsym` |

// UNSAFETY: the tables of loaded libraries are raw memory that the loader describes.
#![expect(unsafe_code, reason = "symbol tables of loaded libraries are raw memory")]

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::sys::c_library;

const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_DEBUG: i64 = 21;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// An entry of a dynamic section.
#[derive(Clone, Copy)]
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// A symbol, as ELF-64 has it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// The public beginning of the loader's record of a library.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LinkMap {
    base: u64,
    name: *const c_char,
    dynamic: u64,
    next: *const LinkMap,
}

/// The public beginning of what a loader tells debuggers.
#[derive(Clone, Copy)]
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const LinkMap,
    break_point: u64,
    state: c_int,
    loader: u64,
}

const _: () = assert!(size_of::<Symbol>() == 24 && size_of::<Dynamic>() == 16);

/// A loaded library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// What its addresses are counted from.
    pub(crate) base: u64,
    /// Where its dynamic section lies.
    pub(crate) dynamic: u64,
}

/// Reads a value of a loaded library's tables.
///
/// # Safety
/// `address` lies inside a table that the loader mapped for a library, aligned for `T`.
unsafe fn at<T: Copy>(address: u64) -> T {
    let pointer = core::ptr::with_exposed_provenance::<T>(usize::try_from(address).unwrap_or(0));
    // SAFETY: by the contract.
    unsafe { pointer.read() }
}

/// A C string, without a call of the C library: what measures and compares there may be another library's function, which is
/// looked up just now.
///
/// # Safety
/// As for [`CStr::from_ptr`].
pub(crate) unsafe fn text<'a>(start: *const c_char) -> &'a CStr {
    let mut end = start;
    // SAFETY: by the contract there is a zero byte, behind which nothing is read.
    while unsafe { end.read_volatile() } != 0 {
        // SAFETY: not beyond that byte.
        end = unsafe { end.add(1) };
    }
    let bytes = end.addr() - start.addr() + 1;
    // SAFETY: so many bytes were read, of which the last one alone is zero.
    unsafe { CStr::from_bytes_with_nul_unchecked(core::slice::from_raw_parts(start.cast(), bytes)) }
}

/// An address in this library.
fn here() -> u64 {
    (here as *const ()).addr() as u64
}

// === The loader's list ===

/// The first function of this name behind this library, in load order. Only for names that some library has with which the
/// program started: the search ends there, before anything that another thread could unload.
pub(crate) fn behind_us(name: &CStr) -> Option<*const ()> {
    let mut map = debug()?.first;
    let mut seen = false;
    loop {
        // SAFETY: the loader's list, whose entries up to the last library of the start stay.
        let entry = unsafe { map.read() };
        let object = Object { base: entry.base, dynamic: entry.dynamic };
        if seen && let Some(found) = object.function(name) {
            return Some(found);
        }
        seen = seen || object.is_ours();
        map = (!entry.next.is_null()).then_some(entry.next)?;
    }
}

/// The C library's own function of this name, even if another library stands in for it; for names as above.
pub(crate) fn of_c_library(name: &CStr) -> Option<*const ()> {
    let mut map = debug()?.first;
    loop {
        // SAFETY: a node of the loader's list, which lasts as long as the process: the C library is never unloaded.
        let entry = unsafe { map.read() };
        let object = Object { base: entry.base, dynamic: entry.dynamic };
        if object.goes_by(c"libc.so.") {
            return object.function(name);
        }
        map = (!entry.next.is_null()).then_some(entry.next)?;
    }
}

/// What the loader tells debuggers, by the program's dynamic section. Its list begins with the program.
fn debug() -> Option<Debug> {
    // SAFETY: a question to the C library; 0 where the kernel told nothing.
    let (headers, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
    let headers = core::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(usize::try_from(headers).ok()?);
    if headers.is_null() {
        return None;
    }
    // SAFETY: the kernel says where the program's headers lie and how many there are.
    let headers = unsafe { core::slice::from_raw_parts(headers, usize::try_from(count).ok()?) };
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR)?;
    let base = (headers.as_ptr().addr() as u64).wrapping_sub(own.p_vaddr);
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
    let debug = Object { base, dynamic: base.wrapping_add(dynamic.p_vaddr) }.entry(DT_DEBUG)?;
    // SAFETY: the loader has put the address of its record there before any code ran; 0 is left out.
    let debug: Debug = unsafe { at((debug != 0).then_some(debug)?) };
    (!debug.first.is_null()).then_some(debug)
}

// === The loaded libraries, under the loader's lock ===

type Visit = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
type Walk = unsafe extern "C" fn(Option<Visit>, *mut c_void) -> c_int;

/// One library, as the walk shows it.
struct Loaded<'a> {
    object: Object,
    headers: &'a [libc::Elf64_Phdr],
}

impl Loaded<'_> {
    fn contains(&self, address: u64) -> bool {
        self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
            let start = self.object.base.wrapping_add(header.p_vaddr);
            (start..start.wrapping_add(header.p_memsz)).contains(&address)
        })
    }
}

/// Calls `look` for each loaded library in load order until it answers.
fn search<T>(mut look: impl FnMut(&Loaded<'_>) -> Option<T>) -> Option<T> {
    struct Search<'a, T> {
        look: &'a mut dyn FnMut(&Loaded<'_>) -> Option<T>,
        found: Option<T>,
    }
    unsafe extern "C" fn visit<T>(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
        // SAFETY: the pointer that is handed over below, and no other reference to it lives.
        let search = unsafe { &mut *data.cast::<Search<'_, T>>() };
        // SAFETY: the loader's record, valid during the callback.
        let info = unsafe { &*info };
        if info.dlpi_phdr.is_null() {
            return 0;
        }
        // SAFETY: the loader says where the program headers lie and how many there are.
        let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else { return 0 };
        let object = Object { base: info.dlpi_addr, dynamic: info.dlpi_addr.wrapping_add(dynamic.p_vaddr) };
        search.found = (search.look)(&Loaded { object, headers });
        c_int::from(search.found.is_some())
    }
    let walk = c_library::WALK.get(c"dl_iterate_phdr");
    if walk.is_null() {
        return None;
    }
    // SAFETY: the address of the C library's function.
    let walk = unsafe { core::mem::transmute::<*const (), Walk>(walk) };
    let mut search = Search { look: &mut look, found: None };
    // SAFETY: the callback gets the pointer to `search`, which outlives the walk.
    unsafe { walk(Some(visit::<T>), (&raw mut search).cast()) };
    search.found
}

/// The loaded library that goes by a name which begins so.
pub(crate) fn named(stem: &CStr) -> Option<Object> {
    search(|loaded| loaded.object.goes_by(stem).then_some(loaded.object))
}

/// Whether the running program loaded the library that goes by a name which begins so, and could unload it.
pub(crate) fn is_late(stem: &CStr) -> bool {
    let (loader, mut late) = (last_of_start(), false);
    let found = search(|loaded| {
        late |= loaded.object.base == loader;
        loaded.object.goes_by(stem).then_some(late)
    });
    found == Some(true)
}

/// Where the last library lies with which the program started: the loader itself, as the C library needs it.
fn last_of_start() -> u64 {
    debug().map_or(0, |debug| debug.loader)
}

/// The first function of this name in load order behind the library that `address` lies in, ours left out.
pub(crate) fn behind(address: u64, name: &CStr) -> Option<*const ()> {
    let mut seen = false;
    search(|loaded| {
        if !seen {
            seen = loaded.contains(address);
            return None;
        }
        if loaded.object.is_ours() { None } else { loaded.object.function(name) }
    })
}

/// The same behind this library.
pub(crate) fn behind_here(name: &CStr) -> Option<*const ()> {
    behind(here(), name)
}

/// Where a caller stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Loaded before us, or unknown to the loader.
    Before,
    /// Loaded behind us with the program.
    Behind,
    /// The same, and it has itself a function of that name.
    Rival,
    /// Loaded by the running program: it may see libraries that others do not see.
    Late,
}

/// Where the library that `address` lies in stands, as to a function name.
pub(crate) fn caller(address: u64, name: &CStr) -> Caller {
    let loader = last_of_start();
    let (mut behind, mut late) = (false, false);
    let found = search(|loaded| {
        if loaded.contains(address) {
            return Some(match (late, behind, loaded.object.function(name)) {
                (true, _, _) => Caller::Late,
                (_, false, _) => Caller::Before,
                (_, true, None) => Caller::Behind,
                (_, true, Some(_)) => Caller::Rival,
            });
        }
        behind |= loaded.object.is_ours();
        late |= loaded.object.base == loader;
        None
    });
    found.unwrap_or(Caller::Before)
}

// === One library ===

impl Object {
    /// The library of a loader's record.
    ///
    /// # Safety
    /// `map` is a record of a library that stays loaded meanwhile.
    pub(crate) unsafe fn of(map: *const LinkMap) -> Self {
        // SAFETY: by the contract.
        let map = unsafe { map.read() };
        Self { base: map.base, dynamic: map.dynamic }
    }

    /// The value of a tag of its dynamic section.
    fn entry(self, tag: i64) -> Option<u64> {
        let mut place = self.dynamic;
        loop {
            // SAFETY: a dynamic section ends with a zero tag, before which we are.
            let entry: Dynamic = unsafe { at(place) };
            match entry.tag {
                0 => return None,
                found if found == tag => return Some(entry.value),
                _ => place = place.wrapping_add(16),
            }
        }
    }

    /// Whether it is the one that this code lies in: it has its own function.
    fn is_ours(self) -> bool {
        // The linker's name for the start of this library's dynamic section.
        let own = &raw const DYNAMIC;
        own.addr() as u64 == self.dynamic
    }

    /// Whether the name under which others ask for it begins so.
    pub(crate) fn goes_by(self, stem: &CStr) -> bool {
        let (Some(tables), Some(name)) = (Tables::read(self), self.entry(DT_SONAME)) else { return false };
        let text = tables.strings.wrapping_add(name);
        let text = core::ptr::with_exposed_provenance(usize::try_from(text).unwrap_or(0));
        // SAFETY: names in the string table end with a zero byte.
        unsafe { CStr::from_ptr(text) }.to_bytes().starts_with(stem.to_bytes())
    }

    /// Its function of this name.
    pub(crate) fn function(self, name: &CStr) -> Option<*const ()> {
        Tables::read(self)?.function(name)
    }
}

unsafe extern "C" {
    #[link_name = "_DYNAMIC"]
    static DYNAMIC: u8;
}

/// The tables of one library.
struct Tables {
    base: u64,
    strings: u64,
    symbols: u64,
    gnu_hash: u64,
    hash: u64,
}

impl Tables {
    fn read(object: Object) -> Option<Self> {
        let (base, mut dynamic) = (object.base, object.dynamic);
        let mut tables = Self { base, strings: 0, symbols: 0, gnu_hash: 0, hash: 0 };
        loop {
            // SAFETY: a dynamic section ends with a zero tag, before which we are.
            let entry: Dynamic = unsafe { at(dynamic) };
            // Some loaders leave offsets, others have added the base already.
            let address = if entry.value < base { base.wrapping_add(entry.value) } else { entry.value };
            match entry.tag {
                0 => break,
                DT_STRTAB => tables.strings = address,
                DT_SYMTAB => tables.symbols = address,
                DT_GNU_HASH => tables.gnu_hash = address,
                DT_HASH => tables.hash = address,
                _ => {}
            }
            dynamic = dynamic.wrapping_add(16);
        }
        (tables.strings != 0 && tables.symbols != 0).then_some(tables)
    }

    fn function(&self, name: &CStr) -> Option<*const ()> {
        if self.gnu_hash != 0 {
            self.by_gnu_hash(name)
        } else if self.hash != 0 {
            self.by_hash(name)
        } else {
            None
        }
    }

    fn by_gnu_hash(&self, name: &CStr) -> Option<*const ()> {
        let hash = name
            .to_bytes()
            .iter()
            .fold(5381_u32, |h, byte| h.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        let word = |index: u64| -> u32 {
            // SAFETY: the header's four words, buckets and chains of the table.
            unsafe { at(self.gnu_hash.wrapping_add(index.wrapping_mul(4))) }
        };
        let (buckets, first, bloom) = (u64::from(word(0)), u64::from(word(1)), u64::from(word(2)));
        if buckets == 0 {
            return None;
        }
        let bucket_words = 4 + bloom.wrapping_mul(2);
        let mut index = u64::from(word(bucket_words + u64::from(hash) % buckets));
        if index < first {
            return None;
        }
        loop {
            let chained = word(bucket_words + buckets + (index - first));
            if chained | 1 == hash | 1
                && let Some(address) = self.symbol(index, name)
            {
                return Some(address);
            }
            if chained & 1 == 1 {
                return None;
            }
            index += 1;
        }
    }

    fn by_hash(&self, name: &CStr) -> Option<*const ()> {
        // SAFETY: the table's second word is the number of symbols.
        let count: u32 = unsafe { at(self.hash.wrapping_add(4)) };
        (1..u64::from(count)).find_map(|index| self.symbol(index, name))
    }

    /// The address of symbol `index`, where it is a defined function of this name.
    fn symbol(&self, index: u64, name: &CStr) -> Option<*const ()> {
        // SAFETY: an index from the table's own hash.
        let symbol: Symbol = unsafe { at(self.symbols.wrapping_add(index.wrapping_mul(24))) };
        let (function, defined) = (symbol.info & 0xf == 2, symbol.section != 0 && symbol.value != 0);
        if !function || !defined {
            return None;
        }
        let text = self.strings.wrapping_add(u64::from(symbol.name));
        let text = core::ptr::with_exposed_provenance::<u8>(usize::try_from(text).ok()?);
        // By bytes, as in [`text`].
        let same = name.to_bytes_with_nul().iter().enumerate().all(|(place, byte)| {
            // SAFETY: names in the string table end with a zero byte, behind which nothing is read.
            unsafe { text.add(place).read_volatile() == *byte }
        });
        let address = usize::try_from(self.base.wrapping_add(symbol.value)).ok()?;
        same.then(|| core::ptr::with_exposed_provenance(address))
    }
}

#[cfg(test)]
mod tests {
    use super::{Caller, behind_us, caller, here, named};

    #[test]
    fn real_functions_are_found_and_an_unknown_name_is_not() {
        let real = behind_us(c"dlsym").map(<*const ()>::addr);
        assert_eq!(real, Some((libc::dlsym as *const ()).addr()));
        assert!(behind_us(c"aliquot_has_no_such_function").is_none());
    }

    #[test]
    fn a_library_is_found_by_its_name_and_tells_its_functions() {
        let c_library = named(c"libc.so.").unwrap();
        let real = c_library.function(c"getpid").map(<*const ()>::addr);
        assert_eq!(real, Some((libc::getpid as *const ()).addr()));
        assert!(named(c"libaliquot_nobody").is_none());
        assert_eq!(caller((libc::getpid as *const ()).addr() as u64, c"getpid"), Caller::Rival);
        assert_eq!(caller((libc::getpid as *const ()).addr() as u64, c"dlsym_nobody"), Caller::Behind);
        assert_eq!(caller(here(), c"getpid"), Caller::Before);
    }
}
