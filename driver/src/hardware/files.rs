//! Files that an admin gives a node: card models and the layout policy.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use aliquot_core::catalogue::Catalogue;
use aliquot_core::offer::{LayoutPolicy, text};

use super::HardwareError;

/// Longest policy, card model or node file; the largest embedded one has a hundredth of it.
const WRITTEN_BYTES_MAX: u64 = 1 << 20;

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

/// The text of a file that a person writes: a policy, a card model, a node.
///
/// # Errors
/// [`HardwareError::Path`] with `advice`; [`HardwareError::Description`] if it is too long or no text.
pub fn read_text(path: &Path, advice: &'static str) -> Result<String, HardwareError> {
    let failed = |source| HardwareError::path("read", path, source, advice);
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(WRITTEN_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    let wrong = |message: String| HardwareError::description(path.display().to_string(), message);
    if u64::try_from(bytes.len()).is_ok_and(|length| length > WRITTEN_BYTES_MAX) {
        return Err(wrong(format!(
            "found more than {WRITTEN_BYTES_MAX} bytes, expected no more; name another file"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        wrong(format!("found no UTF-8 text from byte {at} on, expected TOML; name another file"))
    })
}
