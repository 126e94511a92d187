//! Where a container finds the libraries of the driver, in images of every kind and without a hook.
//!
//! | a program looks up a library by | what answers |
//! |---|---|
//! | `dlopen`, `DT_NEEDED` | the soname, in directories that loaders search without a configuration |
//! | `cc -lcuda`; `ctypes.util.find_library` in an image with a compiler | the link name, in the same directories |
//! | `TRITON_LIBCUDA_PATH`, before the loader's cache | a directory with nothing else in it |
//! | the loader's cache alone (`ldconfig -p`) | the vendor's CDI hook, if the admin names one |
//!
//! The cache is the image's own file. No mount adds to it, and one that takes its place hides the libraries that the image
//! has in directories of `/etc/ld.so.conf`, such as `/usr/local/lib` and those of CUDA images.

use aliquot_core::ports::{AccessMount, MountContent};

/// Library directories that loaders search without a configuration: Debian's, and that of RHEL and SUSE.
const LIBRARY_DIRS: [&str; 2] = [DEBIAN_DIR, "/usr/lib64"];
#[cfg(target_arch = "aarch64")]
const DEBIAN_DIR: &str = "/usr/lib/aarch64-linux-gnu";
#[cfg(not(target_arch = "aarch64"))]
const DEBIAN_DIR: &str = "/usr/lib/x86_64-linux-gnu";
/// The library of compute programs, by its soname.
pub(crate) const COMPUTE: &str = "libcuda.so.1";
/// The directory of a container with that library alone.
const COMPUTE_DIR: &str = "/run/aliquot/driver";
/// Libraries that programs are linked to by name: those with a header in the vendor's toolkits.
const LINKED: [&str; 5] =
    ["libcuda", "libnvcuvid", "libnvidia-encode", "libnvidia-ml", "libnvidia-opticalflow"];

/// What tells programs where the library of compute programs is.
pub const ENVIRONMENT: (&str, &str) = ("TRITON_LIBCUDA_PATH", COMPUTE_DIR);

/// The places in a container of a library that lies at `host` and has this soname.
pub fn mounts(host: &str, soname: &str) -> Vec<AccessMount> {
    let link = soname.split_once(".so.").map(|(family, _)| family);
    let link = link.filter(|family| LINKED.contains(family)).map(|family| format!("{family}.so"));
    let names: Vec<&str> = [soname].into_iter().chain(link.as_deref()).collect();
    let of_dir = |dir: &&str| names.iter().map(|name| format!("{dir}/{name}")).collect::<Vec<_>>();
    let alone = (soname == COMPUTE).then(|| format!("{COMPUTE_DIR}/{soname}"));
    let paths = LIBRARY_DIRS.iter().flat_map(of_dir).chain(alone);
    paths
        .map(|container| AccessMount { host: host.to_owned(), container, content: MountContent::ReadOnly })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_have_sonames_link_names_and_triton_a_directory() {
        let at = |soname: &str| -> Vec<String> {
            let found = mounts("/lib/file", soname);
            assert!(found.iter().all(|mount| mount.host == "/lib/file"));
            found.into_iter().map(|mount| mount.container).collect()
        };
        let both = |name: &str| LIBRARY_DIRS.map(|dir| format!("{dir}/{name}"));
        let compute = at("libcuda.so.1");
        for path in both("libcuda.so.1").into_iter().chain(both("libcuda.so")) {
            assert!(compute.contains(&path), "{path}");
        }
        // Triton takes the value for a directory with the library in it.
        assert!(compute.contains(&format!("{}/libcuda.so.1", ENVIRONMENT.1)));
        assert_eq!(compute.len(), 5);
        assert_eq!(at("libnvidia-nvvm.so.4"), both("libnvidia-nvvm.so.4"));
        // Without a soname it is asked for by its own name.
        assert_eq!(at("libnvidia-gpucomp.so.580.95.05"), both("libnvidia-gpucomp.so.580.95.05"));
        assert_eq!(at("libnvidia-ml.so.1").len(), 4);
    }
}
