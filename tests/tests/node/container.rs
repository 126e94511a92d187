//! A claim is prepared, a real container runtime reads its CDI file, and programs in the container are held to the share.
//!
//! ```text
//!  Node::prepare ─▶ CDI file ─▶ podman ─▶ crun ─▶ loader ─▶ /etc/ld.so.preload ─▶ shim ─▶ simulated libcuda.so.1
//! ```
//!
//! What stands aside for want of podman, crun, busybox, root or a C compiler says so.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

#[path = "../../../cdi/tests/runtime/bench.rs"]
mod bench;

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use aliquot_backend_sim::Personality;
use aliquot_core::partition::Part;
use aliquot_core::ports::{DeviceBackend as _, MountContent};
use aliquot_driver::agent::simulated::ContainerCards;
use aliquot_driver::disk::Disk;
use aliquot_driver::node::{Access, Dirs, Node, NodeParts};
use aliquot_tests::local::{copy_program, opened_to_everybody};
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::simulated::{self, Link};

/// The script of the container. Programs of its C library run with an environment of their own, as `sudo`,
/// ssh and `env -i` leave it. Only the place of the simulated driver is set again, which a real one does not
/// need.
const IN_CONTAINER: &str = r#"
held() { busybox env -i ALIQUOT_SIM_DIR=/cards LD_LIBRARY_PATH=/driver /opt/sim_probe hold "$1" </dev/null; }
small=$((16 << 20)) large=$((1536 << 20))
echo "small $(held $small)"
echo "large $(held $large)"
LD_PRELOAD= ALIQUOT_GRANTS=/nowhere held $large
busybox env -i /opt/cat /proc/self/maps | busybox grep -c 'r-xp.*/run/aliquot/lib/libaliquot.so'
busybox cat /proc/self/maps | busybox grep -c libaliquot.so
for path in /etc/ld.so.preload /run/aliquot/lib/libaliquot.so; do
    (echo x > $path) 2>/dev/null || echo "$path refuses writing"
    busybox grep -c " $path " /proc/mounts
done
"#;

/// Copies into a root directory what a program or library is linked to, each at its own path.
fn bring_libraries(of: &Path, rootfs: &Path) -> Result<(), simulated::StoodAside> {
    let libraries = simulated::run(Command::new("ldd").arg(of))?;
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let place = rootfs.join(library.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(library, place).unwrap();
    }
    Ok(())
}

/// A root directory with the probe, and `cat` as a program of the C library; or why there is none.
fn fill(cards: &simulated::Bench, rootfs: &Path) -> Result<(), simulated::StoodAside> {
    bring_libraries(&cards.libraries().join("libcuda.so.1"), rootfs)?;
    fs::create_dir(rootfs.join("opt")).unwrap();
    for program in [cards.compile("sim_probe", Link::Opened)?, "/bin/cat".into()] {
        bring_libraries(&program, rootfs)?;
        copy_program(&program, &rootfs.join("opt").join(program.file_name().unwrap()));
    }
    Ok(())
}

#[test]
fn programs_of_a_container_are_held_to_the_share_of_its_claim() {
    let Some(bench) = bench::bench() else { return };
    let cards = simulated::Bench::new();
    if let Err(why) = fill(&cards, &bench.path("rootfs")) {
        return println!("stood aside: {why}");
    }
    fs::create_dir(bench.path("node")).unwrap();
    let world = World::at(&bench.path("node"), Personality::named("t4-2").unwrap().load().unwrap(), "");
    let dirs = Dirs { state: world.state(), cdi: Some(bench.cdi()) };
    let (mut node, _) = Node::open(world.parts(Disk::default()), &dirs, Access::ChangeNow).unwrap();
    let wants = [0, 1].map(|card| Want { card, part: "card", memory_mib: Some(1024), cores: 25 });
    let prepared = node.prepare(&claim(&node, "a", &wants)).unwrap();
    node.invariants().unwrap();

    let mut text = String::new();
    for card in node.inventory().unwrap().cards {
        write!(text, "[[card]]\nuuid = \"{}\"\nmemory_bytes = {}\n", card.uuid, card.memory.0).unwrap();
    }
    cards.write("node.toml", &text);
    let mount = |host: PathBuf, at: &str| format!("--volume={}:{at}", host.display());
    let options = [mount(cards.cards(), "/cards"), mount(cards.libraries(), "/driver:ro")];
    let names: Vec<String> = prepared.devices.into_iter().map(|device| device.cdi_name).collect();
    let refused =
        "/etc/ld.so.preload refuses writing\n1\n/run/aliquot/lib/libaliquot.so refuses writing\n1\n";
    for asked in [&names[..], &names[..1]] {
        let output = bench.run(asked, &options, IN_CONTAINER).unwrap();
        let seen = String::from_utf8_lossy(&output.stdout);
        let expected = format!("small ready\nlarge alloc: 2\nalloc: 2\n1\n0\n{refused}");
        assert_eq!(seen, expected, "{output:?}");
    }

    // Without the claim the same program has the whole card, so that it was the claim that held it.
    let output = bench.run(
        &[],
        &options,
        "ALIQUOT_SIM_DIR=/cards LD_LIBRARY_PATH=/driver /opt/sim_probe hold $((1536 << 20)) </dev/null",
    );
    let output = output.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\n", "{output:?}");
}

/// How programs that do not leave it to the loader look for the driver: through Python's standard library, as Triton does, and
/// through the linker.
const LOOKUPS: &str = r#"
python3 -c '
import os
from ctypes.util import find_library
print("found", find_library("cuda"), find_library("nvidia-ml"))
place = os.getenv("TRITON_LIBCUDA_PATH", "")
print("triton", os.path.exists(os.path.join(place, "libcuda.so.1")), os.listdir(place or "/dev/shm"))
'
link() { cc -shared -o /tmp/linked.so -x c /dev/null "$@" 2>/dev/null && echo "linked $1"; }
link -lcuda
link -lnvidia-ml
link -l:libcuda.so.1 "-L$TRITON_LIBCUDA_PATH"
"#;

#[test]
fn lookups_beside_the_loader_find_the_driver_of_a_claim() {
    let Some(bench) = bench::bench() else { return };
    let path = format!("--env=PATH={}", std::env::var("PATH").unwrap());
    let in_host =
        |devices: &[String], script: &str| bench.run(devices, std::slice::from_ref(&path), script).unwrap();
    fs::create_dir(bench.path("host")).unwrap();
    let tools =
        in_host(&[], "python3 -V >/dev/null && cc --version >/dev/null && ! ldconfig -p | grep libcuda");
    if !tools.status.success() {
        return println!("stood aside: no image with python3 and cc, and without a driver: {tools:?}");
    }
    fs::create_dir(bench.path("node")).unwrap();
    let world = World::at(&bench.path("node"), Personality::named("t4-2").unwrap().load().unwrap(), "");
    fs::create_dir(world.state()).unwrap();
    let cards = ContainerCards::new(Box::new(world.hardware()), &world.state()).unwrap();
    let parts = NodeParts { backend: Box::new(cards), ..world.parts(Disk::default()) };
    let dirs = Dirs { state: world.state(), cdi: Some(bench.cdi()) };
    let (mut node, _) = Node::open(parts, &dirs, Access::ChangeNow).unwrap();
    let want = [Want { card: 0, part: "card", memory_mib: Some(1024), cores: 25 }];
    let prepared = node.prepare(&claim(&node, "a", &want)).unwrap();
    let names: Vec<String> = prepared.devices.into_iter().map(|device| device.cdi_name).collect();

    let output = in_host(&names, LOOKUPS);
    let expected = "found libcuda.so.1 libnvidia-ml.so.1\ntriton True ['libcuda.so.1']\n\
                    linked -lcuda\nlinked -lnvidia-ml\nlinked -l:libcuda.so.1\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
    // The image has none of it.
    let output = in_host(&[], LOOKUPS);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("found None None\n"), "{output:?}");
}

/// Every container numbers its processes from 1, so that a process may have number and seat of an exited one of another user.
#[test]
fn simulated_cards_serve_containers_of_several_users() {
    if !nix::unistd::geteuid().is_root() {
        return println!("stood aside: only root can be several users");
    }
    let bench = simulated::Bench::new();
    let probe = match bench.compile("sim_probe", Link::Opened) {
        Ok(probe) => probe,
        Err(why) => return println!("stood aside: {why}"),
    };
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("probe");
    copy_program(&probe, &program);
    opened_to_everybody(&[bench.libraries().parent().unwrap(), &bench.libraries(), &program]);
    let world = World::at(place.path(), Personality::named("t4-2").unwrap().load().unwrap(), "");
    fs::create_dir(world.state()).unwrap();
    let cards = ContainerCards::new(Box::new(world.hardware()), &world.state()).unwrap();
    let card = cards.discover().unwrap().cards[0].uuid.clone();
    let access = cards.access(&card, &Part::Card).unwrap();
    let mount = access.mounts.iter().find(|mount| mount.content == MountContent::SimulatedCards);
    let dir = PathBuf::from(&mount.unwrap().host);
    for user in ["0", "65534", "1000", "0"] {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "setpriv", "--clear-groups"]);
        command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg(&program);
        command.args(["hold", "1048576"]).env("ALIQUOT_SIM_DIR", &dir);
        command.env("LD_LIBRARY_PATH", bench.libraries()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut held = command.spawn().unwrap();
        let line = BufReader::new(held.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        // It leaves its files behind, as a killed container does.
        held.kill().unwrap();
        held.wait().unwrap();
        assert_eq!(line, "ready", "user {user}");
    }
    // Tenants of every user may write the simulated hardware, and nothing else of the state.
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&dir), mode(&dir.join("card-0")), mode(&dir.join("node.toml"))), (0o1777, 0o666, 0o644));
    assert_eq!((mode(&world.state()) & 0o022, mode(&world.state().join("lib")) & 0o022), (0, 0));
}
