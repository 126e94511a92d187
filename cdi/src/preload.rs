//! What makes the programs of a container load the shim: its library, and the loader's own list with the library's path.
//!
//! ```text
//!  host                                      container, read-only
//!  <state>/shims/<version>/libaliquot.so    ─▶ /run/aliquot/lib/libaliquot.so
//!  <state>/grants/<claim uid>/ld.so.preload ─▶ /etc/ld.so.preload: "/run/aliquot/lib/libaliquot.so"
//! ```
//!
//! Why the file, and not `LD_PRELOAD` among the edits of the environment: the environment belongs to the tenant. A program
//! clears it (`env -i`, `sudo`, a login shell), and where the Pod or the image sets `LD_PRELOAD` itself, as those do that
//! bring an allocator, a runtime keeps one of the two values and drops the other. Of the file the loader asks in every
//! program, setuid ones included, and no program of the container can take a read-only mount away. The price: a list that
//! the image brings at the same path is hidden, and its libraries are not loaded; such images are rare.
//!
//! The paths are the same for every claim and every version, so that a container with several devices, of several claims,
//! has one mount at each: runtimes keep one mount a path, and whichever they keep names a library that is there. Which
//! files are a claim's own, `driver/src/prepare/preload.rs` says.

use crate::edits::{Edit, EditError, Mount, PlainPath};

/// Where a container finds the shim.
pub const SHIM_AT: &str = "/run/aliquot/lib/libaliquot.so";
/// The list that the loader of glibc reads.
pub const LIST_AT: &str = "/etc/ld.so.preload";
/// What is in it.
pub const LIST: &str = "/run/aliquot/lib/libaliquot.so\n";

/// The two mounts, of these files of the host.
///
/// # Errors
/// None: the paths in the container are constants that [`PlainPath`] takes, as a test shows.
pub fn preload(shim: PlainPath, list: PlainPath) -> Result<[Edit; 2], EditError> {
    let shim = Mount::read_only(SHIM_AT.parse()?, shim);
    let list = Mount::read_only(LIST_AT.parse()?, list);
    Ok([Edit::Mount(shim), Edit::Mount(list)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owners::{MergedEdits, Owner};

    #[test]
    fn preload_list_matches_mounts_and_devices_of_a_container_agree() {
        assert_eq!(LIST, format!("{SHIM_AT}\n"));
        let of = |dir: &str| {
            let path = |name| format!("{dir}/{name}").parse().unwrap();
            preload(path("libaliquot.so"), path("ld.so.preload")).unwrap()
        };
        let mut merged = MergedEdits::new();
        for share in ["0", "1"] {
            merged.add(&Owner::new(share), &of("/var/lib/aliquot/lib/1")).unwrap();
        }
        let mounts = merged.to_spec().mounts;
        let found: Vec<_> = mounts.iter().map(|m| (m.container_path.as_str(), m.options)).collect();
        let options = &["ro", "nosuid", "nodev", "bind"][..];
        assert_eq!(found, [(LIST_AT, options), (SHIM_AT, options)]);
        let conflict = merged.add(&Owner::new("2"), &of("/elsewhere")).unwrap_err().to_string();
        assert!(conflict.contains(SHIM_AT), "{conflict}");
    }
}
