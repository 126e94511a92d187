//! Puts a built library where a loader finds it: under its soname, without the symbols that it shall lack.
//!
//! A symbol is taken away by making its entry in the dynamic symbol table undefined: to the loader it is as if the library had
//! never defined it. 64-bit little-endian ELF only.

use std::path::{Path, PathBuf};

/// Why a library was not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A file cannot be read or written.
    #[error("cannot use {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is no library this can change.
    #[error("{path} is not a 64-bit little-endian ELF library with a dynamic symbol table")]
    NotElf {
        /// Which.
        path: PathBuf,
    },
}

/// Section type of a dynamic symbol table.
const SHT_DYNSYM: u64 = 11;
/// Bytes of a symbol.
const SYMBOL_BYTES: usize = 24;

/// Copies `library` to `dir`/`soname`, without `missing`. The copy replaces an older one in one step.
///
/// # Errors
///
/// [`InstallError`] where a file cannot be used or, with symbols to take away, is no such library.
pub fn install(library: &Path, dir: &Path, soname: &str, missing: &[&str]) -> Result<PathBuf, InstallError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| InstallError::Io { path, source }
    };
    let mut bytes = std::fs::read(library).map_err(io(library))?;
    if !missing.is_empty() && hide(&mut bytes, missing).is_none() {
        return Err(InstallError::NotElf { path: library.to_owned() });
    }
    std::fs::create_dir_all(dir).map_err(io(dir))?;
    let target = dir.join(soname);
    let fresh = dir.join(format!(".{soname}.{}", std::process::id()));
    std::fs::write(&fresh, &bytes).map_err(io(&fresh))?;
    std::fs::rename(&fresh, &target).map_err(io(&target))?;
    Ok(target)
}

/// A little-endian number of `width` bytes at `at`.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(width)?)?;
    Some(field.iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte)))
}

fn place(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    usize::try_from(number(bytes, at, width)?).ok()
}

fn hide(bytes: &mut [u8], missing: &[&str]) -> Option<()> {
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (sections, size, count) = (place(bytes, 40, 8)?, place(bytes, 58, 2)?, place(bytes, 60, 2)?);
    let header = |index: usize| sections.checked_add(index.checked_mul(size)?);
    let dynsym = (0..count).filter_map(header).find(|at| number(bytes, at + 4, 4) == Some(SHT_DYNSYM))?;
    let (start, length, link) =
        (place(bytes, dynsym + 24, 8)?, place(bytes, dynsym + 32, 8)?, place(bytes, dynsym + 40, 4)?);
    let names = place(bytes, header(link)? + 24, 8)?;
    for symbol in (start..start.checked_add(length)?).step_by(SYMBOL_BYTES) {
        let name = bytes.get(names.checked_add(place(bytes, symbol, 4)?)?..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        if missing.iter().any(|hidden| hidden.as_bytes() == name) {
            // st_shndx, st_value, st_size
            bytes.get_mut(symbol + 6..symbol + SYMBOL_BYTES)?.fill(0);
        }
    }
    Some(())
}
