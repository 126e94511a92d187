//! Files for the archive: plain ones alone, of bounded size and number; links are not followed, pipes and devices not opened.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{ENTRY_BYTES_MAX, Entry, Sink};
use crate::error_text::chain;

/// Deepest directory below the one that is walked, and most files of a walk.
const DEPTH_MAX: usize = 6;
const FILES_MAX: usize = 5_000;

/// What is kept of a file that is larger than this many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Its beginning.
    First(usize),
    /// Its end: of a log.
    Last(usize),
}

impl Kept {
    /// The beginning, as much of it as an entry may have.
    pub const FIRST: Self = Self::First(ENTRY_BYTES_MAX);
    /// The end, as much of it as an entry may have.
    pub const LAST: Self = Self::Last(ENTRY_BYTES_MAX);
}

/// A plain file of the machine.
#[must_use]
pub fn file(path: &str, from: &Path, kept: Kept) -> Entry {
    match read(from, kept) {
        Ok((bytes, whole)) => Entry { whole: whole.max(bytes.len()), ..Entry::of(path, bytes) },
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

/// What is kept of a file, and its size. Files of the kernel have the size 0 and content all the same.
fn read(from: &Path, kept: Kept) -> io::Result<(Vec<u8>, usize)> {
    let mut file = open_plain(from)?;
    let size = file.metadata()?.len();
    let (Kept::First(most) | Kept::Last(most)) = kept;
    if matches!(kept, Kept::Last(_)) {
        file.seek(SeekFrom::Start(size.saturating_sub(most as u64)))?;
    }
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok((bytes, usize::try_from(size).unwrap_or(usize::MAX)))
}

/// The plain files below a directory of which `wanted` keeps something, by their path relative to it, in the order of their names.
///
/// # Errors
/// Those of the sink.
pub fn tree(
    path: &str,
    from: &Path,
    wanted: &dyn Fn(&str) -> Option<Kept>,
    sink: &mut Sink<'_>,
) -> io::Result<()> {
    let mut room = FILES_MAX;
    let mut visit = |relative: &str, at: &Path| match wanted(relative) {
        Some(kept) if room > 0 => {
            room -= 1;
            sink(file(&format!("{path}/{relative}"), at, kept))
        }
        _ => Ok(()),
    };
    let walked = match fs::read_dir(from) {
        Ok(entries) => walk(entries, "", 0, &mut visit),
        Err(error) => return sink(Entry::absent(path, format!("{}: {error}", from.display()))),
    };
    walked?;
    match room {
        0 => sink(Entry::absent(
            format!("{path}/…"),
            format!("more than {FILES_MAX} files: the others are left out"),
        )),
        _ => Ok(()),
    }
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

/// Visits plain files; directories that vanish or cannot be read are passed over.
fn walk(
    entries: fs::ReadDir,
    below: &str,
    depth: usize,
    visit: &mut dyn FnMut(&str, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let mut entries: Vec<fs::DirEntry> = entries.filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else { continue };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@+".contains(&byte);
        // Names with other characters are of no program of ours.
        if !name.bytes().all(is_plain) {
            continue;
        }
        let relative = if below.is_empty() { name } else { format!("{below}/{name}") };
        if kind.is_dir() && depth < DEPTH_MAX {
            if let Ok(inner) = fs::read_dir(entry.path()) {
                walk(inner, &relative, depth + 1, visit)?;
            }
        } else if kind.is_file() {
            visit(&relative, &entry.path())?;
        }
    }
    Ok(())
}
