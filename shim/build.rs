//! Writes the facts of `symbols/*.tsv` as Rust tables, sorted by symbol, version and mode.

use std::fmt::Write as _;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // <target>/<profile>/build/<package>/out. Without the startup files the library has no constructor at all; the std of the
    // other profiles needs them.
    if out.ancestors().nth(3).is_some_and(|profile| profile.ends_with("shim")) {
        println!("cargo::rustc-link-arg-cdylib=-nostartfiles");
    }
    // What this library means by the name of an export is its own, whatever the program defines. Plain -Bsymbolic would also
    // change what the loader finds when it is asked from here.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-Bsymbolic-functions");
    let mut names = String::new();
    for library in ["cuda", "nvml"] {
        let path = format!("symbols/{library}.tsv");
        println!("cargo::rerun-if-changed={path}");
        let mut rows = Vec::new();
        for line in std::fs::read_to_string(&path)?.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [symbol, version, mode, export] = fields[..] else {
                return Err(format!("{path}: four columns expected: {line}").into());
            };
            let mode = match mode {
                "legacy" => "Legacy",
                "ptsz" | "ptds" => "PerThread",
                other => return Err(format!("{path}: unknown mode {other}").into()),
            };
            rows.push((symbol.to_owned(), version.parse::<u32>()?, mode, export.to_owned()));
        }
        rows.sort();
        let mut table = String::from("&[\n");
        for (symbol, version, mode, export) in rows {
            // The export first: mostly the symbol is the beginning of it.
            let export = place(&mut names, &export);
            let symbol = place(&mut names, &symbol);
            writeln!(
                table,
                "Fact {{ symbol: {symbol}, version: {version}, mode: Mode::{mode}, export: {export} }},"
            )?;
        }
        std::fs::write(out.join(format!("{library}.rs")), table + "]\n")?;
    }
    std::fs::write(out.join("names.rs"), format!("\"{names}\""))?;
    Ok(())
}

/// Where a name stands among all names, in which it is put where it does not.
fn place(names: &mut String, name: &str) -> String {
    let at = names.find(name).unwrap_or_else(|| {
        names.push_str(name);
        names.len() - name.len()
    });
    format!("Name {{ at: {at}, length: {} }}", name.len())
}
