//! Finds a function in the libraries that are loaded, past our own exports: the way to the real `dlsym` and `dlvsym`.
//!
//! The loader's own search would find ours first, and `dlvsym`, which could ask for an older version, is ours as well. So the
//! symbol tables of the loaded libraries are read, in load order, as the loader reads them.

// UNSAFETY: the tables of loaded libraries are raw memory that the loader describes.
#![expect(unsafe_code, reason = "symbol tables of loaded libraries are raw memory")]

use core::ffi::{CStr, c_int, c_void};

const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
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

const _: () = assert!(size_of::<Symbol>() == 24 && size_of::<Dynamic>() == 16);

struct Search<'a> {
    name: &'a CStr,
    found: *const (),
}

/// The first function of this name in a loaded library other than this one.
pub(crate) fn find(name: &CStr) -> Option<*const ()> {
    let mut search = Search { name, found: core::ptr::null() };
    // SAFETY: the callback gets the pointer to `search`, which outlives the walk.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    (!search.found.is_null()).then_some(search.found)
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the pointer that `find` gave, and no other reference to it lives.
    let search = unsafe { &mut *data.cast::<Search<'_>>() };
    // SAFETY: the loader's record, valid during the callback.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader says where the program headers lie and how many there are.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let here = (find as *const ()).addr() as u64;
    let ours = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
        (start..start.wrapping_add(header.p_memsz)).contains(&here)
    });
    if ours {
        return 0;
    }
    let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else { return 0 };
    let tables = Tables::read(info.dlpi_addr, info.dlpi_addr.wrapping_add(dynamic.p_vaddr));
    match tables.and_then(|tables| tables.function(search.name)) {
        Some(address) => {
            search.found = address;
            1
        }
        None => 0,
    }
}

/// The tables of one library.
struct Tables {
    base: u64,
    strings: u64,
    symbols: u64,
    gnu_hash: u64,
    hash: u64,
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

impl Tables {
    fn read(base: u64, mut dynamic: u64) -> Option<Self> {
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
        let text = core::ptr::with_exposed_provenance(usize::try_from(text).ok()?);
        // SAFETY: names in the string table end with a zero byte.
        let same = unsafe { CStr::from_ptr(text) } == name;
        let address = usize::try_from(self.base.wrapping_add(symbol.value)).ok()?;
        same.then(|| core::ptr::with_exposed_provenance(address))
    }
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn the_real_functions_are_found_and_a_name_that_nobody_has_is_not() {
        let real = find(c"dlsym").map(<*const ()>::addr);
        assert_eq!(real, Some((libc::dlsym as *const ()).addr()));
        assert!(find(c"aliquot_has_no_such_function").is_none());
    }
}
