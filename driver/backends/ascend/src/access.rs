//! How a container reaches an NPU: device nodes and driver files. No vendor runtime and no hook is involved.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use aliquot_core::ports::{AccessMount, DeviceNode, MountContent};

/// Device nodes that every tenant needs beside its NPU.
const SHARED: [&str; 4] = ["davinci_manager", "devmm_svm", "hisi_hdc", "dvpp_cmdlist"];
/// The one without which nothing works.
const MANAGER: &str = "davinci_manager";
/// Where 310B boards have it for containers.
const MANAGER_OF_CONTAINERS: &str = "davinci_manager_docker";

/// Files and directories of the driver, read-only at the same place in the container, as far as the machine has them.
const FILES: [&str; 9] = [
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/include",
    "/usr/local/Ascend/driver/version.info",
    "/usr/local/Ascend/driver/topo",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/var/queue_schedule",
    "/etc/ascend_install.info",
    "/etc/hccl_rootinfo.json",
];

/// What of an NPU is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NpuAccess {
    /// The chip with this physical id.
    Chip(u32),
    /// The vNPU with this id.
    Vnpu(u32),
}

/// Device nodes for a tenant, or the path of the one that is missing.
pub(crate) fn nodes(root: &Path, reached: NpuAccess) -> Result<Vec<DeviceNode>, String> {
    let (host, inside) = match reached {
        NpuAccess::Chip(phy) => (format!("davinci{phy}"), format!("davinci{phy}")),
        NpuAccess::Vnpu(id) => (format!("vdavinci{id}"), format!("davinci{id}")),
    };
    let missing = |name: &str| root.join("dev").join(name).display().to_string();
    let mut nodes = vec![node(root, &host, &inside).ok_or_else(|| missing(&host))?];
    for name in SHARED {
        let found = if name == MANAGER {
            let found = node(root, MANAGER_OF_CONTAINERS, MANAGER).or_else(|| node(root, MANAGER, MANAGER));
            Some(found.ok_or_else(|| missing(MANAGER))?)
        } else {
            node(root, name, name)
        };
        nodes.extend(found);
    }
    Ok(nodes)
}

/// Driver files that exist below this place, by their paths on the host, which is seen at `host`.
pub(crate) fn files(below: &Path, host: &Path) -> Vec<AccessMount> {
    let one = |inside: &&str| {
        let seen = fs::canonicalize(below.join(inside.trim_start_matches('/'))).ok()?;
        let host = Path::new("/").join(seen.strip_prefix(host).ok()?);
        let (host, container) = (host.to_str()?.to_owned(), (*inside).to_owned());
        Some(AccessMount { host, container, content: MountContent::ReadOnly })
    };
    FILES.iter().filter_map(one).collect()
}

/// A device node, if it is there. Container runtimes refuse links, so that the node itself is named.
fn node(root: &Path, name: &str, inside: &str) -> Option<DeviceNode> {
    let path = fs::canonicalize(root.join("dev").join(name)).ok()?;
    let found = fs::metadata(&path).ok().filter(|found| found.file_type().is_char_device())?;
    // As the C library takes the number apart.
    let number = found.rdev();
    let part = |high: u64, low: u64| u32::try_from(high | low).ok();
    let major = part((number >> 32) & 0xffff_f000, (number >> 8) & 0xfff)?;
    let minor = part((number >> 12) & 0xffff_ff00, number & 0xff)?;
    Some(DeviceNode { host: path.to_str()?.to_owned(), container: format!("/dev/{inside}"), major, minor })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn vnpu_is_named_as_an_npu_inside() {
        let root = tempfile::tempdir().unwrap();
        let dev = root.path().join("dev");
        fs::create_dir(&dev).unwrap();
        let add = |name: &str| symlink("/dev/null", dev.join(name)).unwrap();
        assert!(nodes(root.path(), NpuAccess::Vnpu(101)).unwrap_err().ends_with("/dev/vdavinci101"));
        add("vdavinci101");
        assert!(nodes(root.path(), NpuAccess::Vnpu(101)).unwrap_err().ends_with("/dev/davinci_manager"));
        ["davinci_manager", "devmm_svm", "hisi_hdc"].into_iter().for_each(add);
        let inside = |reached| -> Vec<String> {
            nodes(root.path(), reached).unwrap().into_iter().map(|node| node.container).collect()
        };
        let shared = ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"];
        assert_eq!(inside(NpuAccess::Vnpu(101))[0], "/dev/davinci101");
        assert_eq!(inside(NpuAccess::Vnpu(101))[1..], shared);
        add("davinci3");
        add("dvpp_cmdlist");
        assert_eq!(inside(NpuAccess::Chip(3)).first().unwrap(), "/dev/davinci3");
        assert_eq!(inside(NpuAccess::Chip(3)).last().unwrap(), "/dev/dvpp_cmdlist");
        let first = &nodes(root.path(), NpuAccess::Chip(3)).unwrap()[0];
        assert_eq!((first.host.as_str(), first.major, first.minor), ("/dev/null", 1, 3));
    }

    #[test]
    fn driver_files_are_those_that_exist() {
        let root = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(root.path()).unwrap();
        assert_eq!(files(&place, Path::new("/")), []);
        fs::create_dir_all(place.join("usr/local/dcmi")).unwrap();
        fs::create_dir_all(place.join("etc")).unwrap();
        symlink("/dev/null", place.join("etc/ascend_install.info")).unwrap();
        let mounted = |host: &Path| -> Vec<(String, String)> {
            files(&place, host).into_iter().map(|mount| (mount.host, mount.container)).collect()
        };
        let dcmi = "/usr/local/dcmi".to_owned();
        let below = |path: &str| place.join(path).display().to_string();
        let linked = ("/dev/null".to_owned(), "/etc/ascend_install.info".to_owned());
        assert_eq!(mounted(Path::new("/")), [(below("usr/local/dcmi"), dcmi.clone()), linked]);
        // In a container, which sees the host there: what leads out of it is none of the host's files.
        assert_eq!(mounted(&place), [(dcmi.clone(), dcmi)]);
    }
}
