//! Device nodes of the driver. The kernel makes none: NVIDIA's own programs do, when they are first needed, so that after a boot
//! some are absent. The agent makes those of which the kernel has the number, and has `nvidia-modprobe` load the module of others.

// UNSAFETY: a child changes its root before it starts a program, for which the standard library has a raw hook alone.
#![expect(unsafe_code, reason = "chroot of a child before its exec")]

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use aliquot_core::ports::DeviceNode;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::driver_root::{HostRoots, USUAL_ROOTS, below, resolve_within};

/// Where device nodes are.
const DEV: &str = "dev";
/// Where the kernel lists the numbers of its drivers.
const NUMBERS: &str = "proc/devices";
/// Where the driver has its parameters.
const PARAMETERS: &str = "proc/driver/nvidia/params";
/// The program that loads modules of the driver and makes their nodes.
const MAKER: &str = "usr/bin/nvidia-modprobe";
/// Time between two starts of it, and the longest wait for one.
const MAKE_AGAIN: Duration = Duration::from_secs(30);
const MAKE_LIMIT: Duration = Duration::from_secs(5);
/// Minor number of the node that every program opens.
const CONTROL_MINOR: u64 = 255;
/// Bits of a mode that let the group or everybody else write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Where device nodes are looked for and made.
#[derive(Debug)]
pub(crate) struct NodeFiles {
    /// For containers: the host as this process sees it.
    place: Option<HostRoots>,
    /// Whether the driver's program was started a short time ago.
    is_resting: Arc<AtomicBool>,
}

// === impl NodeFiles ===

impl NodeFiles {
    /// Those of a host, for containers; `None`: those of this machine, for its programs.
    pub(crate) fn of(place: Option<HostRoots>) -> Self {
        Self { place, is_resting: Arc::default() }
    }

    pub(crate) const fn are_for_containers(&self) -> bool {
        self.place.is_some()
    }

    /// Where this process may see the host's root. A container has the host's `/dev` at its own.
    fn roots(&self) -> impl Iterator<Item = &Path> {
        let host = self.place.as_ref().map(|place| place.host.as_path());
        host.into_iter().chain([Path::new("/")])
    }

    /// A device node, if it is there.
    pub(crate) fn find(&self, name: &str) -> Option<DeviceNode> {
        self.roots().find_map(|root| node_at(&root.join(DEV).join(name), name))
    }

    /// Makes a node; the driver's program makes those of the card with this minor number, too. `None`: it cannot be made now.
    pub(crate) fn make(&self, name: &str, card: Option<u32>) -> Option<DeviceNode> {
        let place = self.place.as_ref().filter(|_| self.may_make())?;
        if self.make_by_number(name).is_none() && !self.is_resting.swap(true, Ordering::AcqRel) {
            run_maker(place, card, Arc::clone(&self.is_resting));
            if self.find(name).is_none() {
                // The module is there now, and the program has another root's `/dev`.
                self.make_by_number(name)?;
            }
        }
        self.find(name)
    }

    /// Makes a node whose number the kernel lists, beside the driver's other nodes.
    fn make_by_number(&self, name: &str) -> Option<()> {
        let numbers = self.roots().find_map(|root| fs::read_to_string(root.join(NUMBERS)).ok())?;
        let (major, minor) = number_of(name, &numbers)?;
        let beside = |root: &&Path| root.join(DEV).join("nvidiactl").exists();
        let root = self.roots().find(beside).or_else(|| self.roots().next())?;
        let path = root.join(DEV).join(name);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).ok()?;
        }
        // As the driver's program makes them.
        let mode = if name.contains('/') { 0o400 } else { 0o666 };
        mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(mode), makedev(major, minor)).ok()?;
        // The mode given at creation is cut by the umask.
        fs::set_permissions(&path, Permissions::from_mode(mode)).ok()
    }

    /// Whether nodes may be made: an admin can reserve that for udev, or give them another mode.
    fn may_make(&self) -> bool {
        let text = self.roots().find_map(|root| fs::read_to_string(root.join(PARAMETERS)).ok());
        let value = |name: &str| {
            let text = text.as_deref().unwrap_or_default();
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        value("ModifyDeviceFiles").is_none_or(|value| value != "0")
            && value("DeviceFileMode").is_none_or(|value| value == "438")
    }
}

/// The device node at a path of this process, as the host has it.
fn node_at(path: &Path, name: &str) -> Option<DeviceNode> {
    let found = fs::metadata(path).ok().filter(|found| found.file_type().is_char_device())?;
    // As the C library takes the number apart.
    let number = found.rdev();
    let part = |high: u64, low: u64| u32::try_from(high | low).ok();
    let major = part((number >> 32) & 0xffff_f000, (number >> 8) & 0xfff)?;
    let minor = part((number >> 12) & 0xffff_ff00, number & 0xff)?;
    let at = format!("/{DEV}/{name}");
    Some(DeviceNode { host: at.clone(), container: at, major, minor })
}

/// The number of a node, from the kernel's list of drivers.
fn number_of(name: &str, drivers: &str) -> Option<(u64, u64)> {
    let digits = |text: &str| text.parse::<u32>().ok().map(u64::from);
    let (names, minor): (&[&str], u64) = match name {
        "nvidia-uvm" => (&["nvidia-uvm"], 0),
        "nvidia-uvm-tools" => (&["nvidia-uvm"], 1),
        "nvidiactl" => (&["nvidia", "nvidia-frontend"], CONTROL_MINOR),
        _ => match name.strip_prefix("nvidia-caps/nvidia-cap") {
            Some(minor) => (&["nvidia-caps"], digits(minor)?),
            None => (&["nvidia", "nvidia-frontend"], digits(name.strip_prefix("nvidia")?)?),
        },
    };
    let characters = drivers.split("Block devices").next()?;
    let line = |line: &str| {
        let (major, driver) = line.trim().split_once(' ')?;
        names.contains(&driver.trim()).then(|| digits(major)).flatten()
    };
    Some((characters.lines().find_map(line)?, minor))
}

/// Has the driver's program load modules and make their nodes, below the root that has the program.
fn run_maker(place: &HostRoots, card: Option<u32>, is_resting: Arc<AtomicBool>) {
    let usual = USUAL_ROOTS.map(PathBuf::from);
    let mut roots = place.driver.iter().chain(&usual).map(|root| place.host.join(below(root)));
    let Some(root) = roots.find(|root| is_safe_program(root)) else {
        return is_resting.store(false, Ordering::Release);
    };
    let (ended, waits) = mpsc::channel();
    thread::spawn(move || {
        let mut command = Command::new(Path::new("/").join(MAKER));
        command.args(["-u", "-c", &card.unwrap_or_default().to_string()]).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if root != Path::new("/") {
            let enter = move || -> io::Result<()> {
                nix::unistd::chroot(&root)?;
                Ok(nix::unistd::chdir("/")?)
            };
            // SAFETY: the hook makes two system calls with a path from before the fork, and takes no lock.
            unsafe {
                command.pre_exec(enter);
            }
        }
        // The caller may have given up.
        drop(ended.send(command.status()));
        thread::sleep(MAKE_AGAIN);
        is_resting.store(false, Ordering::Release);
    });
    drop(waits.recv_timeout(MAKE_LIMIT));
}

/// Whether a root has the program, and only root can change it.
fn is_safe_program(root: &Path) -> bool {
    let file = resolve_within(root, Path::new(MAKER)).map(|file| root.join(file));
    let found = file.and_then(fs::metadata);
    found.is_ok_and(|found| found.is_file() && found.uid() == 0 && found.mode() & WRITABLE_BY_OTHERS == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVERS: &str = "Character devices:\n  1 mem\n195 nvidia\n508 nvidia-caps\n511 nvidia-uvm\n\n\
                           Block devices:\n  7 nvidia-uvm\n";

    #[test]
    fn numbers_of_nodes_are_those_of_their_driver() {
        for (name, number) in [
            ("nvidia-uvm", Some((511, 0))),
            ("nvidia-uvm-tools", Some((511, 1))),
            ("nvidiactl", Some((195, 255))),
            ("nvidia7", Some((195, 7))),
            ("nvidia-caps/nvidia-cap30", Some((508, 30))),
            ("nvidia-modeset", None),
            ("null", None),
        ] {
            assert_eq!(number_of(name, DRIVERS), number, "{name}");
        }
        assert_eq!(number_of("nvidia-uvm", "Character devices:\n195 nvidia\n"), None);
    }

    #[test]
    fn only_device_files_are_nodes_with_their_numbers() {
        let null = node_at(Path::new("/dev/null"), "null").unwrap();
        assert_eq!((null.major, null.minor, null.host.as_str()), (1, 3, "/dev/null"));
        assert_eq!(node_at(Path::new("/dev"), ""), None);
        assert_eq!(node_at(Path::new("/dev/no-such-card"), "no-such-card"), None);
    }

    #[test]
    fn absent_node_is_made_from_the_number_of_its_module() {
        if !nix::unistd::geteuid().is_root() {
            return println!("stood aside: only root makes device nodes");
        }
        let host = tempfile::tempdir().unwrap();
        for dir in ["dev", "proc/driver/nvidia"] {
            fs::create_dir_all(host.path().join(dir)).unwrap();
        }
        let files = NodeFiles::of(Some(HostRoots { host: host.path().to_owned(), driver: None }));
        let write = |path: &str, text: &str| fs::write(host.path().join(path), text).unwrap();
        // The module is not loaded.
        write(NUMBERS, "Character devices:\n195 nvidia\n");
        assert_eq!(files.make("nvidia-uvm", Some(0)), None);
        write(NUMBERS, DRIVERS);
        // Nodes are udev's on this host.
        write(PARAMETERS, "ModifyDeviceFiles: 0\nDeviceFileMode: 438\n");
        assert_eq!(files.make("nvidia-uvm", Some(0)), None);
        write(PARAMETERS, "ModifyDeviceFiles: 1\nDeviceFileMode: 438\n");
        if mknod(&host.path().join("dev/probe"), SFlag::S_IFCHR, Mode::S_IRUSR, makedev(511, 0)).is_err() {
            return println!("stood aside: no device nodes can be made here");
        }
        for (name, number, mode) in
            [("nvidia-uvm", (511, 0), 0o666), ("nvidia-caps/nvidia-cap3", (508, 3), 0o400)]
        {
            let node = files.make(name, Some(0)).unwrap();
            assert_eq!(((node.major, node.minor), node.host), (number, format!("/dev/{name}")));
            let made = fs::metadata(host.path().join("dev").join(name)).unwrap();
            assert_eq!(made.mode() & 0o777, mode);
        }
    }

    /// The program stands in for NVIDIA's: it makes the node below its own root.
    #[test]
    fn drivers_program_makes_nodes_of_modules_that_are_not_loaded() {
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
        let (true, Some(busybox)) = (nix::unistd::geteuid().is_root(), busybox) else {
            return println!("stood aside: it needs root and a static busybox");
        };
        let host = tempfile::tempdir().unwrap();
        for dir in ["dev", "usr/bin", "bin", "proc"] {
            fs::create_dir_all(host.path().join(dir)).unwrap();
        }
        fs::write(host.path().join(NUMBERS), "Character devices:\n195 nvidia\n").unwrap();
        fs::copy(busybox, host.path().join("bin/sh")).unwrap();
        fs::copy(busybox, host.path().join("bin/mknod")).unwrap();
        let maker = host.path().join(MAKER);
        let script = "#!/bin/sh\necho \"$@\" >/dev/arguments\nmknod /dev/nvidia-uvm c 511 0\n";
        fs::write(&maker, script).unwrap();
        let files = NodeFiles::of(Some(HostRoots { host: host.path().to_owned(), driver: None }));
        // Another user could change it.
        fs::set_permissions(&maker, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(files.make("nvidia-uvm", Some(3)), None);
        fs::set_permissions(&maker, Permissions::from_mode(0o755)).unwrap();
        let files = NodeFiles::of(files.place);
        let made = files.make("nvidia-uvm", Some(3));
        let arguments = fs::read_to_string(host.path().join("dev/arguments"));
        let Ok(arguments) = arguments else {
            return println!("stood aside: busybox is not static, or chroot is not allowed");
        };
        assert_eq!(arguments, "-u -c 3\n");
        assert_eq!(made.map(|node| (node.major, node.minor)), Some((511, 0)));
        // It is not started again at once.
        fs::remove_file(host.path().join("dev/nvidia-uvm")).unwrap();
        assert_eq!(files.make("nvidia-uvm", Some(3)), None);
    }
}
