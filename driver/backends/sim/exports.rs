//! Build scripts of the simulated libraries: which exports of a facts table have behaviour, and stubs for the others.
//!
//! An export has behaviour when a row `fn <export>(` or `fn <export>, <per-thread export> |` stands in the crate's `src/ffi/`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// A line of a facts table.
pub(crate) struct Fact {
    pub(crate) symbol: String,
    pub(crate) version: String,
    pub(crate) mode: String,
    pub(crate) export: String,
}

/// The facts of `shim/symbols/<name>`, and what makes cargo run the script again.
pub(crate) fn facts(name: &str) -> Result<Vec<Fact>, Box<dyn std::error::Error>> {
    let here = std::path::PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let path = here.join("../../../../shim/symbols").join(name);
    println!("cargo::rerun-if-changed={}", path.display());
    println!("cargo::rerun-if-changed=src/ffi");
    let mut facts = Vec::new();
    for line in std::fs::read_to_string(&path)?.lines().filter(|line| !line.starts_with('#')) {
        let [symbol, version, mode, export] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("four columns expected: {line}").into());
        };
        let [symbol, version, mode, export] = [symbol, version, mode, export].map(str::to_owned);
        facts.push(Fact { symbol, version, mode, export });
    }
    Ok(facts)
}

/// Rows for the exports without behaviour.
pub(crate) fn stubs(facts: &[Fact], prefix: &str) -> Result<String, Box<dyn std::error::Error>> {
    let written = behaviour(Path::new("src/ffi"), prefix)?;
    let mut stubs = String::from("exports! {\n");
    for Fact { export, .. } in facts.iter().filter(|fact| !written.contains(&fact.export)) {
        writeln!(stubs, "fn {export}() {{ unsupported(\"{export}\") }}")?;
    }
    Ok(stubs + "}\n")
}

/// Links the library under `soname`, its own calls bound to itself: a preloaded library never gets between them.
pub(crate) fn link_as(soname: &str) {
    for argument in [&format!("-Wl,-soname,{soname}"), "-Wl,-Bsymbolic"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}

fn behaviour(dir: &Path, prefix: &str) -> std::io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        for line in std::fs::read_to_string(entry?.path())?.lines() {
            let Some((_, rest)) = line.split_once("fn ") else { continue };
            if rest.starts_with(prefix) {
                let head = rest.split(['(', '|']).next().unwrap_or_default();
                names.extend(head.split(',').map(|name| name.trim().to_owned()));
            }
        }
    }
    Ok(names)
}
