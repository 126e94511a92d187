//! A real container runtime reads our file, and a real container sees what it says.
//!
//! ```text
//!  CdiDir::write ─▶ temp directory ─(bind)─▶ /run/cdi ◀─ podman ─▶ crun ─▶ busybox prints what it sees
//!                                  └────────── a mount namespace of its own ──────────┘
//! ```
//!
//! Podman reads `/var/run/cdi`. The test gives it a mount namespace with a `/run` and a `/dev/shm` of its own, so the
//! host's CDI files, containers and locks are neither seen nor touched. It needs root and the Debian packages `podman`,
//! `crun` and `busybox-static`; without one of them it says so and stands aside. With `ALIQUOT_TEST_RUNTIME=required`
//! in the environment, standing aside is a failure.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use aliquot_cdi::edits::{NodeAccess, NodeType};
use aliquot_cdi::{CdiDir, ClaimSpec, ClaimSpecBuilder, DeviceNode, Edit, Mount, Owner};

/// Packages that the test needs, as the message names them.
const PACKAGES: &str = "podman crun busybox-static";

/// Builds the namespace, then runs podman with the arguments. `$1` is the directory of CDI files, `$2` podman's own.
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
own=$2
shift 2
exec timeout 60 podman --root "$own/root" --runroot "$own/runroot" --tmpdir "$own/tmp" --storage-driver vfs \
    --events-backend none --cgroup-manager cgroupfs --runtime crun \
    run --rm --cgroups disabled --network none --log-driver none --security-opt seccomp=unconfined \
    --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$@"
"#;

/// What the container does: says what it sees of both shares.
const IN_CONTAINER: &str = r#"
for n in 0 1; do
    eval echo "env $n \$SHARE_$n"
    if [ -e /dev/share$n ]; then stat -c "node $n %F %t:%T" /dev/share$n; else echo "node $n none"; fi
    if [ -e /dev/share$n ]; then echo x > /dev/share$n && echo "node $n writable"; fi
done
echo "both $BOTH"
cat /opt/limits
(echo x > /opt/limits) 2>/dev/null && echo "mount writable" || echo "mount refuses writing"
cat /run/aliquot/grants/c/0/grant.json
(echo x > /run/aliquot/grants/c/0/grant.json) 2>/dev/null && echo "grant writable" || echo "grant refuses writing"
echo "from the tenant" > /run/aliquot/grants/c/0/usage && echo "usage writable"
while read -r _ at _ options _; do if [ "$at" = /opt/limits ]; then echo "options $options"; fi; done < /proc/mounts
"#;

/// One temp directory with everything that a container needs.
struct Bench {
    temp: tempfile::TempDir,
    store: CdiDir,
}

impl Bench {
    fn new() -> Result<Self, String> {
        let temp = tempfile::tempdir().map_err(|error| error.to_string())?;
        let store = CdiDir::new(temp.path().join("cdi"));
        fs::create_dir(store.dir()).map_err(|error| error.to_string())?;
        Ok(Self { temp, store })
    }

    fn path(&self, name: &str) -> PathBuf {
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

    /// Runs `script` in a container that asks for `devices`.
    fn run(&self, devices: &[String], script: &str) -> Result<Output, String> {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", IN_NAMESPACE, "sh"])
            .arg(self.store.dir())
            .arg(self.path("podman"));
        for device in devices {
            command.args(["--device", device]);
        }
        command.arg("--rootfs").arg(self.path("rootfs")).args(["/bin/sh", "-c", script]);
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

/// A bench on which containers run; or why none can.
fn bench() -> Result<Bench, String> {
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
    let probe = bench.run(&[], "echo up")?;
    if probe.stdout != b"up\n" {
        let why = String::from_utf8_lossy(&probe.stderr).trim().to_owned();
        return Err(format!("podman cannot run a plain container here ({why})"));
    }
    Ok(bench)
}

/// The claim `4ee7` with two shares; a mount, a value and a grant for both.
fn claim_spec(limits: &Path, grant: &Path) -> Result<ClaimSpec, Box<dyn std::error::Error>> {
    let mut builder = ClaimSpecBuilder::new("4ee7-ab".parse()?);
    let limits = limits.to_str().ok_or("the temp directory has a name that is not text")?;
    let mount = Mount::read_only("/opt/limits".parse()?, limits.parse()?);
    let in_container = "/run/aliquot/grants/c/0";
    let grant = grant.to_str().ok_or("the temp directory has a name that is not text")?;
    let shown = Mount::read_only(in_container.parse()?, grant.parse()?);
    let usage =
        Mount::usage_file(format!("{in_container}/usage").parse()?, format!("{grant}/usage").parse()?)?;
    let both = Edit::Env("BOTH".parse()?, "yes".parse()?);
    builder
        .common(&Owner::new("claim"), &[Edit::Mount(mount), both, Edit::Mount(shown), Edit::Mount(usage)])?;
    for (share, host, minor) in [("0", "/dev/null", 3), ("1", "/dev/zero", 5)] {
        let container = format!("/dev/share{share}");
        let (node_type, access) = (NodeType::Character, NodeAccess::ReadWrite);
        let node = DeviceNode::new(container.parse()?, host.parse()?, node_type, (1, minor), access)?;
        let value = Edit::Env(format!("SHARE_{share}").parse()?, format!("value {share}").parse()?);
        let owner = Owner::new(format!("share {share}"));
        builder.device(&"gpu/big".parse()?, &share.parse()?, &owner, &[Edit::Node(node), value])?;
    }
    Ok(builder.build()?)
}

#[test]
fn a_real_runtime_injects_what_the_file_says_and_no_more() {
    let bench = match bench() {
        Ok(bench) => bench,
        Err(why) => {
            let line =
                format!("runtime test stands aside: {why}; it needs root and: apt-get install {PACKAGES}");
            let required = std::env::var("ALIQUOT_TEST_RUNTIME").is_ok_and(|value| value == "required");
            assert!(!required, "{line}");
            return println!("{line}");
        }
    };
    let limits = bench.path("limits");
    fs::write(&limits, "limits of the host\n").unwrap();
    let grant = bench.path("grant");
    fs::create_dir(&grant).unwrap();
    fs::write(grant.join("grant.json"), "grant of the host\n").unwrap();
    fs::write(grant.join("usage"), "").unwrap();
    let claim_spec = claim_spec(&limits, &grant).unwrap();
    bench.store.write(&claim_spec).unwrap();
    let names: Vec<String> = claim_spec.qualified_names().map(|name| name.to_string()).collect();
    assert_eq!(names, ["aliquot.dev/claim=4ee7-ab-gpu.big-0", "aliquot.dev/claim=4ee7-ab-gpu.big-1"]);

    let both = bench.run(&names, IN_CONTAINER).unwrap();
    let seen = String::from_utf8_lossy(&both.stdout);
    let (lines, options) = seen.trim_end().rsplit_once("\noptions ").unwrap_or((&seen, ""));
    assert_eq!(
        lines,
        "env 0 value 0\nnode 0 character special file 1:3\nnode 0 writable\n\
         env 1 value 1\nnode 1 character special file 1:5\nnode 1 writable\n\
         both yes\nlimits of the host\nmount refuses writing\n\
         grant of the host\ngrant refuses writing\nusage writable",
        "{both:?}"
    );
    for option in ["ro", "nosuid", "nodev"] {
        assert!(options.split(',').any(|found| found == option), "{option} in {options}");
    }
    assert_eq!(fs::read_to_string(&limits).unwrap(), "limits of the host\n");
    assert_eq!(fs::read_to_string(grant.join("usage")).unwrap(), "from the tenant\n");

    let one = bench.run(&names[1..], IN_CONTAINER).unwrap();
    let seen = String::from_utf8_lossy(&one.stdout);
    assert!(
        seen.starts_with("env 0\nnode 0 none\nenv 1 value 1\nnode 1 character special file 1:5\n"),
        "{one:?}"
    );

    bench.store.remove(claim_spec.claim()).unwrap();
    let gone = bench.run(&names, IN_CONTAINER).unwrap();
    assert!(!gone.status.success(), "{gone:?}");
    assert!(String::from_utf8_lossy(&gone.stderr).contains("4ee7-ab-gpu.big-0"), "{gone:?}");
}
