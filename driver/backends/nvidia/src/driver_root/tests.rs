use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

const VERSION: &str = "580.95.05";

/// A host with a driver below `root`, named as an installer names it, in this library directory.
struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn install(&self, root: &str, libraries: &str, version: &str) {
        let root = self.0.path().join(below(Path::new(root)));
        let dir = root.join(libraries);
        let file = |path: PathBuf, mode| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "library").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (family, sonames) in [
            ("libcuda", &["libcuda.so.1", "libcuda.so"][..]),
            ("libnvidia-ml", &["libnvidia-ml.so.1", "libnvidia-ml.so"]),
            ("libnvidia-nvvm", &["libnvidia-nvvm.so.4"]),
            ("libnvidia-ptxjitcompiler", &["libnvidia-ptxjitcompiler.so.1"]),
            ("libnvidia-gpucomp", &[]),
            ("libnvidia-glcore", &[]),
        ] {
            let name = format!("{family}.so.{version}");
            file(dir.join(&name), 0o755);
            for soname in sonames {
                let link = dir.join(soname);
                drop(fs::remove_file(&link));
                symlink(&name, link).unwrap();
            }
        }
        file(root.join("usr/bin/nvidia-smi"), 0o755);
    }

    fn find(&self, driver: Option<&str>) -> Result<DriverFiles, DriverRootError> {
        let driver = driver.map(PathBuf::from);
        DriverFiles::find(&HostRoots { host: self.0.path().to_owned(), driver })
    }
}

fn pairs(files: &DriverFiles) -> Vec<(&str, &str)> {
    files.mounts.iter().map(|mount| (mount.host.as_str(), mount.container.as_str())).collect()
}

#[test]
fn libraries_reach_sonames_of_debian_and_rhel_images() {
    for (root, libraries) in [
        ("/", "usr/lib/x86_64-linux-gnu"),
        ("/", "usr/lib64"),
        ("/run/nvidia/driver", "usr/lib/x86_64-linux-gnu"),
        ("/home/kubernetes/bin/nvidia", "lib64"),
        ("/usr/local/nvidia", "lib64"),
    ] {
        let host = Host::new();
        host.install(root, libraries, VERSION);
        let files = host.find(None).unwrap();
        assert_eq!((files.root.as_path(), files.version.as_str()), (Path::new(root), VERSION));
        assert!(files.management.starts_with(host.0.path()), "{}", files.management.display());
        let on_host = |name: &str| Path::new(root).join(libraries).join(name).display().to_string();
        let mut expected = Vec::new();
        for (file, soname) in [
            ("libcuda.so.580.95.05", "libcuda.so.1"),
            ("libnvidia-gpucomp.so.580.95.05", "libnvidia-gpucomp.so.580.95.05"),
            ("libnvidia-ml.so.580.95.05", "libnvidia-ml.so.1"),
            ("libnvidia-nvvm.so.580.95.05", "libnvidia-nvvm.so.4"),
            ("libnvidia-ptxjitcompiler.so.580.95.05", "libnvidia-ptxjitcompiler.so.1"),
        ] {
            expected
                .extend(container::mounts("", soname).into_iter().map(|at| (on_host(file), at.container)));
        }
        let program = Path::new(root).join("usr/bin/nvidia-smi").display().to_string();
        expected.push((program, "/usr/bin/nvidia-smi".to_owned()));
        expected.sort();
        let mut found = pairs(&files);
        found.sort_unstable();
        let expected: Vec<_> = expected.iter().map(|(host, at)| (host.as_str(), at.as_str())).collect();
        assert_eq!(found, expected);
        assert!(files.mounts.iter().all(|mount| mount.content == MountContent::ReadOnly));
    }
}

#[test]
fn wrong_driver_root_is_refused_with_the_right_one() {
    let host = Host::new();
    host.install("/run/nvidia/driver", "usr/lib64", VERSION);
    let error = host.find(Some("/")).unwrap_err().to_string();
    assert!(error.contains("it is below /run/nvidia/driver") && error.contains("--driver-root"), "{error}");
    assert_eq!(host.find(Some("/run/nvidia/driver")).unwrap().version, VERSION);
    let error = Host::new().find(None).unwrap_err().to_string();
    assert!(error.contains("/home/kubernetes/bin/nvidia"), "{error}");
}

#[test]
fn leftovers_of_another_driver_are_not_mounted() {
    let host = Host::new();
    host.install("/", "usr/lib64", "535.104.05");
    host.install("/", "usr/lib64", VERSION);
    let files = host.find(None).unwrap();
    assert!(pairs(&files).iter().all(|(host, _)| !host.contains("535")), "{:?}", pairs(&files));
}

#[test]
fn library_that_others_can_write_is_refused() {
    let host = Host::new();
    host.install("/", "usr/lib64", VERSION);
    let file = host.0.path().join("usr/lib64/libcuda.so.580.95.05");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o777)).unwrap();
    let error = host.find(None).unwrap_err().to_string();
    assert!(error.contains("/usr/lib64/libcuda.so.580.95.05") && error.contains("777"), "{error}");
}

#[test]
fn links_are_followed_inside_the_driver_root() {
    let host = Host::new();
    host.install("/run/nvidia/driver", "opt/libraries", VERSION);
    let root = host.0.path().join("run/nvidia/driver");
    fs::create_dir_all(root.join("usr")).unwrap();
    // Absolute inside the driver's own file system, and one that would leave it.
    symlink("/opt/libraries", root.join("usr/lib64")).unwrap();
    symlink("../../../../../etc/passwd", root.join("opt/libraries/libnvidia-cfg.so.1")).unwrap();
    symlink("libnvidia-opencl.so.1", root.join("opt/libraries/libnvidia-opencl.so.1")).unwrap();
    let files = host.find(None).unwrap();
    assert!(pairs(&files).iter().all(|(host, _)| host.starts_with("/run/nvidia/driver/")));
    assert!(pairs(&files).iter().any(|(host, _)| host.ends_with("opt/libraries/libcuda.so.580.95.05")));
}

#[test]
fn toolkit_and_driver_limits_are_told() {
    let host = Host::new();
    host.install("/", "usr/lib64", "615.71.09");
    let place = HostRoots { host: host.0.path().to_owned(), driver: None };
    let files = host.find(None).unwrap();
    let told = others(&place, Some(&files));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("615.71.09") && told[0].contains("(misc)"), "{told:?}");
    for (path, text) in [("sys/fs/cgroup/cgroup.controllers", "cpu dmem misc\n"), ("run/cdi/nvidia.yaml", "")]
    {
        let path = host.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let told = others(&place, Some(&files));
    assert!(told[0].contains("/run/cdi/nvidia.yaml") && told[1].contains("(dmem)"), "{told:?}");
    host.install("/", "usr/lib64", VERSION);
    assert_eq!(others(&place, host.find(None).ok().as_ref()).len(), 1);
}
