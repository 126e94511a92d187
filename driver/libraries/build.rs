//! Builds the libraries that are brought along, each as it ships whatever is being built around it.
//!
//! ```text
//!   cargo build (any profile) ─▶ this ─▶ cargo build --profile shim -p aliquot_shim  ─▶ OUT_DIR/libaliquot.so
//!                                   └──▶ cargo build --release -p aliquot_sim_{cuda,nvml,dcmi} ─▶ OUT_DIR/lib{…}.so
//! ```
//!
//! The inner cargo has a target directory of its own (`<target>/libraries`), so the two never wait for each other's lock,
//! and every profile of the outer build uses the same libraries. It takes none of the outer build's settings: flags,
//! wrappers and profiles are not for these libraries. It uses the lock file, and needs no network if the outer build
//! needs none.
//!
//! | variable, when building | meaning |
//! |---|---|
//! | `ALIQUOT_SHIM_LIBRARY` | take this `libaliquot.so` instead of building one: for packages, built for an older C library |

#![expect(clippy::panic, reason = "a build script that cannot go on fails the build and says why")]

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the libraries are made of, below the workspace.
const SOURCES: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "shim",
    "core/abi/src",
    "core/abi/Cargo.toml",
    "core/enforce/src",
    "core/enforce/Cargo.toml",
    "core/catalogue",
    "driver/backends/sim/exports.rs",
    "driver/backends/sim/pointer.rs",
    "driver/backends/sim/device",
    "driver/backends/sim/cuda",
    "driver/backends/sim/nvml",
    "driver/backends/sim/dcmi",
];

/// Variables of cargo that say how to reach packages and share processors; every other one is of the outer build.
const KEPT: &[&str] =
    &["CARGO_HOME", "CARGO_MAKEFLAGS", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR", "CARGO_SOURCE_"];

fn main() {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let root = manifest.ancestors().nth(2).map(Path::to_owned).unwrap_or_default();
    let out = PathBuf::from(variable("OUT_DIR"));
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    println!("cargo::rerun-if-env-changed=ALIQUOT_SHIM_LIBRARY");
    let shim = match env::var_os("ALIQUOT_SHIM_LIBRARY") {
        Some(file) => {
            println!("cargo::rerun-if-changed={}", file.display());
            PathBuf::from(file)
        }
        None => build(&root, &out, &["aliquot_shim"], "shim").join("libaliquot_shim.so"),
    };
    let simulated =
        build(&root, &out, &["aliquot_sim_cuda", "aliquot_sim_nvml", "aliquot_sim_dcmi"], "release");
    bring(&shim, &out, "libaliquot.so", "ALIQUOT_SHIM_ID");
    bring(&simulated.join("libaliquot_sim_cuda.so"), &out, "libcuda.so", "ALIQUOT_SIM_CUDA_ID");
    bring(&simulated.join("libaliquot_sim_nvml.so"), &out, "libnvml.so", "ALIQUOT_SIM_NVML_ID");
    bring(&simulated.join("libaliquot_sim_dcmi.so"), &out, "libdcmi.so", "ALIQUOT_SIM_DCMI_ID");
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"))
}

/// Target directory of the libraries: one below the outer target directory, whatever the outer profile is.
///
/// `OUT_DIR` is `<target>/<profile>/build/<package>/out`, with the platform before the profile in a cross build.
fn target_dir(out: &Path) -> PathBuf {
    out.ancestors().nth(4).unwrap_or(out).join("libraries")
}

/// Builds packages with a profile; the directory with what was built.
fn build(root: &Path, out: &Path, packages: &[&str], profile: &str) -> PathBuf {
    let target = target_dir(out);
    let mut cargo = Command::new(variable("CARGO"));
    cargo.current_dir(root).args(["build", "--locked", "--quiet", "--profile", profile]);
    cargo.arg("--target-dir").arg(&target);
    for package in packages {
        cargo.args(["--package", package]);
    }
    let cross = variable("TARGET") != variable("HOST");
    if cross {
        cargo.arg("--target").arg(variable("TARGET"));
    }
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let of_cargo = text.starts_with("CARGO") && !KEPT.iter().any(|kept| text.starts_with(kept));
        let of_compiler = ["RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"]
            .iter()
            .any(|name| text.starts_with(name));
        if of_cargo || of_compiler || text.starts_with("CLIPPY") {
            cargo.env_remove(&name);
        }
    }
    cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "false").env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    let status = cargo.status().unwrap_or_else(|error| panic!("{cargo:?}: {error}"));
    assert!(status.success(), "{cargo:?}: {status}");
    let built = if cross { target.join(variable("TARGET")) } else { target };
    built.join(profile)
}

/// Copies a library to where the crate includes it from, and tells the crate what its content is called.
fn bring(library: &Path, out: &Path, name: &str, id: &str) {
    let bytes =
        fs::read(library).unwrap_or_else(|error| panic!("cannot read {}: {error}", library.display()));
    fs::write(out.join(name), &bytes).unwrap_or_else(|error| panic!("cannot write {name}: {error}"));
    // FNV-1a: tells two builds apart; it need not be hard to forge.
    let sum = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    println!("cargo::rustc-env={id}={sum:016x}");
}
