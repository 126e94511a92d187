//! A real container runtime on a bench of its own: podman, crun, and a root directory with little in it.
//!
//! Podman reads `/var/run/cdi`. The bench gives it a mount namespace with a `/run` and a `/dev/shm` of its own, so the
//! host's CDI files, containers and locks are neither seen nor touched. It needs root and the Debian packages `podman`,
//! `crun` and `busybox-static`; without one of them a test says so and stands aside. With `ALIQUOT_TEST_RUNTIME=required`
//! in the environment, standing aside is a failure.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Packages that the test needs, as the message names them.
const PACKAGES: &str = "podman crun busybox-static";

/// Builds the namespace, then runs podman with the arguments. `$1` is the directory of CDI files, `$2` podman's own, `$3`
/// the place of an image that is this machine's root, if it is there; what a container changes goes with it.
///
/// crun does not run where a version 2 hierarchy is mounted inside a version 1 one, and the container uses no cgroup:
/// there the hierarchy is covered.
const IN_NAMESPACE: &str = r#"
set -eu
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm
[ /run -ef /var/run ] || mount --bind /run /var/run
mkdir /run/cdi
mount --bind "$1" /run/cdi
if [ -d /etc/cdi ]; then mount -t tmpfs none /etc/cdi; fi
if [ -d /sys/fs/cgroup/unified ]; then mount -t tmpfs none /sys/fs/cgroup; fi
own=$2 host=$3
shift 3
if [ -d "$host" ]; then
    mount -t tmpfs none "$host"
    mkdir "$host/upper" "$host/work" "$host/root"
    mount -t overlay none -o "lowerdir=/,upperdir=$host/upper,workdir=$host/work" "$host/root"
fi
exec timeout 300 podman --root "$own/root" --runroot "$own/runroot" --tmpdir "$own/tmp" --storage-driver vfs \
    --events-backend none --cgroup-manager cgroupfs --runtime crun \
    run --rm --cgroups disabled --network none --log-driver none --security-opt seccomp=unconfined \
    --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$@"
"#;

/// One temp directory with everything that a container needs.
pub(crate) struct Bench {
    temp: tempfile::TempDir,
}

impl Bench {
    fn new() -> Result<Self, String> {
        let bench = Self { temp: tempfile::tempdir().map_err(|error| error.to_string())? };
        fs::create_dir(bench.cdi()).map_err(|error| error.to_string())?;
        Ok(bench)
    }

    /// The directory of CDI files that containers are made from.
    pub(crate) fn cdi(&self) -> PathBuf {
        self.path("cdi")
    }

    /// A place beside it; `rootfs` is the root directory of the containers. With a directory `host` their image is this machine's
    /// own root.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// A root directory with nothing but a shell; or why there is none.
    fn fill_rootfs(&self) -> Result<(), String> {
        let bin = self.path("rootfs/bin");
        fs::create_dir_all(&bin).map_err(|error| error.to_string())?;
        let found = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
        let busybox = found.ok_or("there is no busybox")?;
        fs::copy(busybox, bin.join("busybox")).map_err(|error| error.to_string())?;
        fs::set_permissions(bin.join("busybox"), fs::Permissions::from_mode(0o755))
            .map_err(|error| error.to_string())?;
        for tool in ["sh", "cat", "stat"] {
            std::os::unix::fs::symlink("busybox", bin.join(tool)).map_err(|error| error.to_string())?;
        }
        let mut chroot = Command::new("chroot");
        chroot.arg(self.path("rootfs")).args(["/bin/busybox", "true"]);
        succeeds(&mut chroot).map_err(|why| format!("busybox is not statically linked ({why})"))
    }

    /// Runs `script` in a container that asks for `devices`, made with more `options`.
    pub(crate) fn run(&self, devices: &[String], options: &[String], script: &str) -> Result<Output, String> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", IN_NAMESPACE, "sh"]).arg(self.cdi()).arg(self.path("podman"));
        let host = self.path("host");
        let rootfs = if host.is_dir() { host.join("root") } else { self.path("rootfs") };
        command.arg(host);
        for device in devices {
            command.args(["--device", device]);
        }
        command.args(options);
        command.arg("--rootfs").arg(rootfs).args(["/bin/sh", "-c", script]);
        command.output().map_err(|error| error.to_string())
    }
}

fn succeeds(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// A bench on which containers run. `None`, with the reason said, where none can and that is no failure.
pub(crate) fn bench() -> Option<Bench> {
    let why = match try_bench() {
        Ok(bench) => return Some(bench),
        Err(why) => why,
    };
    let line = format!("runtime test stands aside: {why}; it needs root and: apt-get install {PACKAGES}");
    let required = std::env::var("ALIQUOT_TEST_RUNTIME").is_ok_and(|value| value == "required");
    assert!(!required, "{line}");
    println!("{line}");
    None
}

fn try_bench() -> Result<Bench, String> {
    let me = fs::metadata("/proc/self").map_err(|error| error.to_string())?;
    if me.uid() != 0 {
        return Err(format!("it needs root for a mount namespace, and runs as user {}", me.uid()));
    }
    for program in ["podman", "crun", "unshare"] {
        let mut version = Command::new(program);
        succeeds(version.arg("--version")).map_err(|why| format!("{program} does not run ({why})"))?;
    }
    let bench = Bench::new()?;
    bench.fill_rootfs()?;
    let probe = bench.run(&[], &[], "echo up")?;
    if probe.stdout != b"up\n" {
        let why = String::from_utf8_lossy(&probe.stderr).trim().to_owned();
        return Err(format!("podman cannot run a plain container here ({why})"));
    }
    Ok(bench)
}
