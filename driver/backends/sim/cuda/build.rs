//! Writes the table of exports, and the exports that have no behaviour, from the facts in `shim/symbols/cuda.tsv`.
//!
//! An export has behaviour when a row `fn <export>(` or `fn <export>, <per-thread export> |` stands in `src/ffi/`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let facts = here.join("../../../../shim/symbols/cuda.tsv");
    println!("cargo::rerun-if-changed={}", facts.display());
    println!("cargo::rerun-if-changed=src/ffi");
    println!("cargo::rerun-if-changed=src/codes.tsv");
    for argument in ["-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    let written = behaviour(&here.join("src/ffi"))?;
    let (mut table, mut stubs) = (String::from("&[\n"), String::from("exports! {\n"));
    for line in std::fs::read_to_string(&facts)?.lines().filter(|line| !line.starts_with('#')) {
        let [symbol, version, mode, export] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("four columns expected: {line}").into());
        };
        let mode = if mode == "legacy" { "Legacy" } else { "PerThread" };
        writeln!(
            table,
            "Row {{ symbol: \"{symbol}\", version: {version}, mode: Mode::{mode}, export: \"{export}\", \
             address: Address(crate::ffi::{export} as *const ()) }},"
        )?;
        if !written.contains(export) {
            writeln!(stubs, "fn {export}() {{ unsupported(\"{export}\") }}")?;
        }
    }
    std::fs::write(out.join("table.rs"), table + "]\n")?;
    std::fs::write(out.join("stubs.rs"), stubs + "}\n")?;
    std::fs::write(out.join("codes.rs"), codes(&here.join("src/codes.tsv"))?)?;
    Ok(())
}

fn behaviour(dir: &Path) -> std::io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        for line in std::fs::read_to_string(entry?.path())?.lines() {
            let Some(rest) = line.trim_start().strip_prefix("fn cu") else { continue };
            let head = rest.split(['(', '|']).next().unwrap_or_default();
            names.extend(format!("cu{head}").split(',').map(|name| name.trim().to_owned()));
        }
    }
    Ok(names)
}

/// `(code, name, description)` for every code, as C strings.
fn codes(path: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let mut rows = String::from("&[\n");
    for line in std::fs::read_to_string(path)?.lines().filter(|line| !line.starts_with('#')) {
        let (code, name) = line.split_once('\t').ok_or("two columns expected")?;
        let words = name.trim_start_matches("CUDA_ERROR_").trim_start_matches("CUDA_");
        let words = words.to_lowercase().replace('_', " ");
        writeln!(rows, "({code}, c\"{name}\", c\"{words}\"),")?;
    }
    Ok(rows + "]\n")
}
