//! Files that an admin gives a node: card models and the layout policy.

use std::fs;
use std::path::Path;

use aliquot_core::catalogue::Catalogue;
use aliquot_core::offer::{LayoutPolicy, text};

use super::HardwareError;

/// The built-in catalogue with the card models (`*.toml`) of a directory on top.
///
/// # Errors
/// [`HardwareError::Path`] if a file is unreadable; [`HardwareError::Choice`] if one is refused.
pub fn read_catalogue(dir: Option<&Path>) -> Result<Catalogue, HardwareError> {
    let Some(dir) = dir else { return Ok(Catalogue::embedded()) };
    let advice = "Check the directory given with --catalogue";
    let fail = |source| HardwareError::path("list", dir, source, advice);
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            files.push((path.display().to_string(), read_text(&path, "Check the catalogue directory")?));
        }
    }
    files.sort();
    let (catalogue, errors) = Catalogue::embedded().with_overrides(&files);
    match errors.first() {
        None => Ok(catalogue),
        Some(_) => {
            let list: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Err(HardwareError::Choice(list.join("\n")))
        }
    }
}

/// The layout policy of a file; without one, every card is `auto`.
///
/// # Errors
/// [`HardwareError::Path`] if the file is unreadable; [`HardwareError::Description`] if its text is refused.
pub fn read_policy(file: Option<&Path>) -> Result<LayoutPolicy, HardwareError> {
    let Some(file) = file else { return Ok(LayoutPolicy::default()) };
    let policy = read_text(file, "Check the name of the layout policy")?;
    text::parse(&policy).map_err(|error| HardwareError::description(file.display().to_string(), error))
}

/// The text of a file.
///
/// # Errors
/// [`HardwareError::Path`] with `advice`.
pub fn read_text(path: &Path, advice: &'static str) -> Result<String, HardwareError> {
    fs::read_to_string(path).map_err(|source| HardwareError::path("read", path, source, advice))
}
