//! Files for the archive: plain ones alone, of bounded size and number; links are not followed, pipes and devices not opened.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{ENTRY_BYTES_MAX, Entry};
use crate::error_text::chain;

/// Deepest directory below the one that is walked, and most files of a walk.
const DEPTH_MAX: usize = 6;
const FILES_MAX: usize = 5_000;

/// Which end of a file is kept if it is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Its beginning.
    First,
    /// Its end: of a log.
    Last,
}

/// A plain file of the machine.
#[must_use]
pub fn file(path: &str, from: &Path, kept: Kept) -> Entry {
    match read(from, kept) {
        Ok(bytes) => Entry::of(path, bytes),
        Err(error) => Entry::absent(path, format!("{}: {}", from.display(), chain(&error))),
    }
}

/// Opens a file if it is a plain one. The last component is not a link, and no pipe or device is waited for.
fn open_plain(from: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(from)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("found no plain file, expected one")),
    }
}

fn read(from: &Path, kept: Kept) -> io::Result<Vec<u8>> {
    let mut file = open_plain(from)?;
    let size = file.metadata()?.len();
    let most = ENTRY_BYTES_MAX as u64;
    if kept == Kept::Last && size > most {
        file.seek(SeekFrom::Start(size - most))?;
    }
    let mut bytes = Vec::new();
    // One more, so that a file that is cut says so.
    let limit = if kept == Kept::First { most + 1 } else { most };
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The plain files below a directory that `wanted` accepts by their path relative to it, in the order of their names.
#[must_use]
pub fn tree(path: &str, from: &Path, kept: Kept, wanted: &dyn Fn(&str) -> bool) -> Vec<Entry> {
    let mut found = Vec::new();
    walk(path, from, "", 0, &mut |entry, relative, at| {
        if wanted(relative) && found.len() < FILES_MAX {
            found.push(file(&entry, at, kept));
        }
    })
    .unwrap_or_else(|error| found.push(Entry::absent(path, format!("{}: {error}", from.display()))));
    found
}

/// The names below a directory, with the kind of each: of places whose contents are of no use or not ours.
#[must_use]
pub fn names(path: &str, from: &Path) -> Entry {
    let mut text = String::new();
    let listed = fs::read_dir(from).map(|entries| {
        let mut lines: Vec<String> = entries
            .filter_map(Result::ok)
            .take(FILES_MAX)
            .map(|entry| {
                let kind = entry.file_type().map_or("unknown", |kind| match () {
                    () if kind.is_dir() => "directory",
                    () if kind.is_file() => "file",
                    () if kind.is_symlink() => "link",
                    () => "special",
                });
                format!(
                    "{kind:<10} {}\n",
                    crate::printable::line_of(&entry.file_name().to_string_lossy(), 255)
                )
            })
            .collect();
        lines.sort_unstable();
        text = lines.concat();
    });
    match listed {
        Ok(()) => Entry::of(path, text),
        Err(error) => Entry::absent(path, format!("{}: {error}", from.display())),
    }
}

/// Visits plain files; directories that vanish or cannot be read below the first one are passed over.
fn walk(
    path: &str,
    from: &Path,
    relative: &str,
    depth: usize,
    visit: &mut dyn FnMut(String, &str, &Path),
) -> io::Result<()> {
    let mut entries: Vec<fs::DirEntry> = fs::read_dir(from)?.filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else { continue };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@+".contains(&byte);
        // Names with other characters are of no program of ours.
        if !name.bytes().all(is_plain) {
            continue;
        }
        let below = if relative.is_empty() { name } else { format!("{relative}/{name}") };
        if kind.is_dir() && depth < DEPTH_MAX {
            // One that vanished meanwhile has nothing to show.
            drop(walk(path, &entry.path(), &below, depth + 1, visit));
        } else if kind.is_file() {
            visit(format!("{path}/{below}"), &below, &entry.path());
        }
    }
    Ok(())
}
