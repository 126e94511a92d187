//! Writes the exports that have no behaviour, from the facts in `shim/symbols/nvml.tsv`.

#[expect(dead_code, reason = "one source for all simulated libraries; here names are all that is needed")]
#[path = "../exports.rs"]
mod exports;

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    exports::link_as("libnvidia-ml.so.1");
    let facts = exports::facts("nvml.tsv")?;
    std::fs::write(out.join("stubs.rs"), exports::stubs(&facts, "nvml")?)?;
    Ok(())
}
