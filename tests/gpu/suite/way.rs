//! A path to what was carried that a preload may have: the loader takes `LD_PRELOAD` apart at spaces and colons, and puts
//! something else for dollar signs.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The path, and what has to last as long as it.
#[derive(Debug)]
pub(crate) struct Way {
    path: PathBuf,
    _link: Option<TempDir>,
}

fn is_plain(path: &Path) -> bool {
    path.to_str().is_some_and(|text| !text.contains([' ', '\t', '\n', ':', ';', '$']))
}

/// Finds one: the directory itself, or a link to it from where temporary files are.
///
/// # Errors
/// There is none; the text says what to do.
pub(crate) fn open(carried: &Path) -> Result<Way, String> {
    let whole = carried.canonicalize().map_err(|error| format!("{}: {error}", carried.display()))?;
    if is_plain(&whole) {
        return Ok(Way { path: whole, _link: None });
    }
    let places = [std::env::temp_dir(), "/tmp".into(), "/dev/shm".into(), "/var/tmp".into()];
    let made = places.iter().filter(|place| is_plain(place)).find_map(|place| {
        let link = tempfile::Builder::new().prefix("aliquot-gpu-").tempdir_in(place).ok()?;
        let path = link.path().join("bin");
        symlink(&whole, &path).ok()?;
        Some(Way { path, _link: Some(link) })
    });
    made.ok_or_else(|| {
        format!("the loader cannot preload from {}: unpack the archive at a path without spaces, colons, semicolons and dollar signs", whole.display())
    })
}

impl Way {
    /// The path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
