//! Commands of the program, run in this process over a file of claims.

use std::ffi::OsString;
use std::fs;

use aliquot_core::dra::ResourceClaim;
use aliquot_driver::manifest::Object;
use aliquot_tests::command_line::{Ran, ran};

use crate::fleet::yaml;
use crate::measure::{Spread, computed};

/// `aliquot <verb> -f claims.yaml <more>`, so many times: its seconds of the processor, and what it wrote the last time.
///
/// # Errors
///
/// The command did not run to its end, or the file cannot be written; the message says why.
pub fn of_claims(
    verb: &str,
    claims: &[ResourceClaim],
    more: &[&str],
    rounds: usize,
) -> Result<(Spread, String), String> {
    let said = |error: std::io::Error| error.to_string();
    let directory = tempfile::tempdir().map_err(said)?;
    let file = directory.path().join("claims.yaml");
    fs::write(&file, yaml(claims.iter().map(|claim| Object::Claim(claim).json()))).map_err(said)?;
    let mut arguments: Vec<OsString> = vec!["aliquot".into(), verb.into(), "-f".into(), file.into()];
    arguments.extend(more.iter().map(OsString::from));
    let (mut samples, mut written) = (Vec::new(), String::new());
    for _ in 0..rounds {
        let (Ran { code, out, err }, seconds) = computed(|| ran(arguments.clone()));
        if code > 1 {
            return Err(format!("aliquot {verb} ended with {code}: {err}"));
        }
        samples.push(seconds);
        written = out;
    }
    let spread = Spread::of(&samples).ok_or("nothing was measured")?;
    Ok((spread, written))
}
