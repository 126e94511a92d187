//! Writes the table of exports, and the exports that have no behaviour, from the facts in `shim/symbols/cuda.tsv`.

#[path = "../exports.rs"]
mod exports;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed=src/codes.tsv");
    exports::link_as("libcuda.so.1");
    let facts = exports::facts("cuda.tsv")?;
    let mut table = String::from("&[\n");
    for exports::Fact { symbol, version, mode, export } in &facts {
        let mode = if mode == "legacy" { "Legacy" } else { "PerThread" };
        writeln!(
            table,
            "Row {{ symbol: \"{symbol}\", version: {version}, mode: Mode::{mode}, export: \"{export}\", \
             address: Address(crate::ffi::{export} as *const ()) }},"
        )?;
    }
    std::fs::write(out.join("table.rs"), table + "]\n")?;
    std::fs::write(out.join("stubs.rs"), exports::stubs(&facts, "cu")?)?;
    std::fs::write(out.join("codes.rs"), codes(Path::new("src/codes.tsv"))?)?;
    Ok(())
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
