//! The shim's file that the agent shares between claims: leases of tenants on it, claims with a copy of their own, its size on disk.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use aliquot_backend_sim::Personality;
use aliquot_core::dra::ResourceClaim;
use aliquot_core::id::ClaimUid;
use aliquot_driver::disk::Disk;
use aliquot_driver::node::{Access, Dirs, Node};
use aliquot_tests::local::wait_for;
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::simulated::{Bench, Link};
use aliquot_tests::talk::Talk;
use nix::libc;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

const SHIM: &str = "/run/aliquot/lib/libaliquot.so";

fn share(node: &Node, name: &str) -> ResourceClaim {
    claim(node, name, &[Want { card: 0, part: "card", memory_mib: Some(1024), cores: 5 }])
}

fn uid(text: &str) -> ClaimUid {
    ClaimUid::new(text).unwrap()
}

/// The file that containers of a claim load the shim from.
fn library(world: &World, claim: &str) -> PathBuf {
    let text = fs::read(world.state().join(format!("cdi/aliquot.dev-claim-{claim}.json"))).unwrap();
    let spec: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let mounts = spec["devices"][0]["containerEdits"]["mounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["containerPath"] == SHIM).unwrap();
    PathBuf::from(mount["hostPath"].as_str().unwrap())
}

/// A process that asked for a write lease on a file, and whether it has one.
fn ask_for_lease(bench: &Bench, file: &Path) -> Option<(Talk, bool)> {
    let program =
        bench.compile("lease", Link::Opened).inspect_err(|why| println!("stood aside: {why}")).ok()?;
    let mut holder = Talk::start(Command::new(program).arg("write").arg(file));
    let has = holder.hear() == "1";
    Some((holder, has))
}

fn opens_at_once(path: &Path) -> bool {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).is_ok()
}

/// A program of a container that has the shim loaded.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn lease_on_the_shared_shim_is_refused_or_outlasted() {
    let (world, bench) = (World::new("t4-2", ""), Bench::new());
    let node = world.open();
    let all = ["one", "two", "three"].map(|name| share(&node, name));
    let service = node.into_service();
    service.prepare(&all[0]).unwrap();
    service.prepare(&all[1]).unwrap();
    let shim = library(&world, "one");
    assert_eq!(library(&world, "two"), shim);
    // What a container of claim `one` has mounted, whatever takes the name later.
    let mounted = world.state().join("mounted");
    fs::hard_link(&shim, &mounted).unwrap();
    let Some((holder, has)) = ask_for_lease(&bench, &mounted) else { return };
    assert!(!has, "while the agent runs");
    drop((holder, service));
    let program = Program(Command::new("sleep").arg("1000").env("LD_PRELOAD", &shim).spawn().unwrap());
    let is_loaded = || {
        let maps = fs::read_to_string(format!("/proc/{}/maps", program.0.id())).unwrap_or_default();
        maps.contains("libaliquot.so")
    };
    wait_for("a program that loads the shim", is_loaded);
    let (holder, has) = ask_for_lease(&bench, &mounted).unwrap();
    assert!(!has, "while a program has it loaded");
    drop((holder, program));

    let (holder, has) = ask_for_lease(&bench, &mounted).unwrap();
    if !has {
        println!("stood aside: no lease can be had here");
        return;
    }
    assert!(!opens_at_once(&shim));
    let service = world.open().into_service();
    service.prepare(&all[2]).unwrap();
    for claim in ["one", "two", "three"] {
        assert!(opens_at_once(&library(&world, claim)), "{claim}: its next container is not delayed");
    }
    assert_ne!(fs::metadata(&shim).unwrap().ino(), fs::metadata(&mounted).unwrap().ino());
    // The kernel ends it after 45 s; here its holder does.
    drop(holder);
    wait_for("the agent's descriptor of the earlier file", || !ask_for_lease(&bench, &mounted).unwrap().1);
    service.invariants().unwrap();
}

#[test]
fn claims_with_a_copy_of_the_shim_stay_and_leave_nothing() {
    let world = World::new("t4-2", "");
    let mut node = world.open();
    let all = ["current", "earlier", "new"].map(|name| share(&node, name));
    node.prepare(&all[0]).unwrap();
    node.prepare(&all[1]).unwrap();
    let copy = |claim: &str| world.state().join("grants").join(claim).join("libaliquot.so");
    drop(node);
    // As an agent of an earlier version left it.
    fs::remove_file(copy("earlier")).unwrap();
    fs::write(copy("earlier"), "the shim of an earlier version").unwrap();
    let running = fs::metadata(copy("earlier")).unwrap().ino();
    let dirs = Dirs::in_state(world.state());
    let opened = Node::open(world.parts(Disk::default()), &dirs, Access::Own(Duration::from_secs(30)));
    let service = opened.unwrap().0.into_service();
    service.prepare(&all[2]).unwrap();
    service.invariants().unwrap();
    assert_eq!(library(&world, "current"), copy("current"));
    assert_eq!(library(&world, "earlier"), library(&world, "new"), "it is not written a thousand times");
    assert!(library(&world, "new").starts_with(world.state().join("shims")) && !copy("new").exists());
    assert_eq!(fs::metadata(copy("earlier")).unwrap().ino(), running, "its containers have it mounted");
    drop(service);
    // A command that finds claims of the agent leaves them as they are.
    let node = world.open();
    node.invariants().unwrap();
    assert!(!copy("new").exists());
    let service = node.into_service();
    for claim in ["current", "earlier", "new"] {
        service.release(&uid(claim)).unwrap();
    }
    service.invariants().unwrap();
    assert_eq!(fs::read_dir(world.state().join("grants")).unwrap().count(), 0);
}

#[test]
fn claim_of_the_agent_takes_at_most_64_kib_on_disk() {
    fn blocks(path: &Path) -> u64 {
        let found = fs::symlink_metadata(path).unwrap();
        let inside = fs::read_dir(path).into_iter().flatten();
        found.blocks() + inside.map(|entry| blocks(&entry.unwrap().path())).sum::<u64>()
    }
    // On tmpfs a usage file has all its blocks.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if statfs(dir.path()).unwrap().filesystem_type() == TMPFS_MAGIC {
        println!("stood aside: {} is on tmpfs", dir.path().display());
        return;
    }
    let world = World::at(dir.path(), Personality::named("t4-2").unwrap().load().unwrap(), "");
    let node = world.open();
    let request = share(&node, "one");
    let service = node.into_service();
    let before = blocks(&world.state());
    service.prepare(&request).unwrap();
    let bytes = (blocks(&world.state()) - before) * 512;
    assert!(bytes <= 64 << 10, "found {bytes} bytes, expected at most 64 KiB");
}
