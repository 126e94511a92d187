//! A disk that is full, or may not be written: nothing is lost, the message says what to do, and once there is room
//! again everything goes on.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitStatus};

use aliquot_backend_sim::Personality;
use aliquot_core::id::ClaimUid;
use aliquot_tests::local::aliquot;
use aliquot_tests::node::{Want, World, claim};
use nix::fcntl::{FallocateFlags, fallocate};

const WANTS: [Want; 2] = [
    Want { card: 0, part: "3g.71gb at 0", memory_mib: Some(4096), cores: 10 },
    Want { card: 0, part: "1g.18gb at 5", memory_mib: None, cores: 0 },
];

/// Room for the shim, twice while one takes the other's place, and for some claims.
const SMALL_KIB: u32 = 4096;

/// A small disk of its own; unmounted with the value.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    /// A disk of this many KiB; `None`, with the reason on the terminal, where mounting is not allowed.
    fn mount(kib: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={kib}k");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir.path()).output();
        match mount {
            Ok(done) if done.status.success() => Some(Self { dir }),
            Ok(done) => {
                eprintln!(
                    "stood aside: cannot mount a small disk: {}",
                    String::from_utf8_lossy(&done.stderr)
                );
                None
            }
            Err(error) => {
                eprintln!("stood aside: cannot run mount: {error}");
                None
            }
        }
    }

    fn remount(&self, options: &str) {
        let done = Command::new("mount").args(["-o", options]).arg(self.dir.path()).status().unwrap();
        assert!(done.success());
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Fills the disk but for this many bytes.
    fn fill(&self, but: usize) {
        let filler = self.path().join("filler");
        let mut file = fs::File::create(&filler).unwrap();
        let page = [0_u8; 4096];
        let mut size = 0_u64;
        while file.write_all(&page).is_ok() {
            size += 4096;
        }
        file.set_len(size.saturating_sub(u64::try_from(but).unwrap())).unwrap();
    }

    fn empty(&self) {
        fs::remove_file(self.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("-l").arg(self.dir.path()).status();
        assert!(done.is_ok_and(|status| status.success()), "{} stays mounted", self.path().display());
    }
}

/// An error with everything behind it.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

#[test]
fn a_disk_that_fills_up_anywhere_loses_nothing() {
    let Some(disk) = SmallDisk::mount(SMALL_KIB) else { return };
    let world = World::at(disk.path(), Personality::named("h200").unwrap().load().unwrap(), "");
    let mut node = world.open();
    let request = claim(&node, "a", &WANTS);
    let second = claim(&node, "b", &WANTS[..1]);
    node.prepare(&second).unwrap();
    let mut refused = 0;
    // A share takes some 35 pages, for its region, and the claim has two; the shim of its containers takes 254.
    for pages in (0..16).map(|step| step * 24) {
        disk.fill(pages * 4096);
        match node.prepare(&request) {
            Ok(_) => {
                node.invariants().unwrap();
                node.release(&ClaimUid::new("a").unwrap()).unwrap();
            }
            Err(error) => {
                refused += 1;
                let text = chain(&error);
                assert!(
                    text.contains("No space left") && text.contains("free space"),
                    "{pages} pages: {text}"
                );
            }
        }
        // A present claim can be looked up on a full disk.
        assert!(world.look().unwrap().claim(&ClaimUid::new("b").unwrap()).is_some());
        disk.empty();
        drop(node);
        node = world.open();
        node.invariants().unwrap();
        assert_eq!(node.claims().count(), 1, "{pages} pages");
        assert_eq!(world.live().len(), 1, "{pages} pages");
    }
    assert!((1..16).contains(&refused), "{refused} of 16 refused: the disk was never full, or always");
    node.prepare(&request).unwrap();
    node.invariants().unwrap();
}

/// The journal finds room on a page of its own, or in the files of the claim.
#[test]
fn release_on_a_full_disk_leaves_nothing() {
    let Some(disk) = SmallDisk::mount(SMALL_KIB) else { return };
    let world = World::at(disk.path(), Personality::named("h200").unwrap().load().unwrap(), "");
    let uid = ClaimUid::new("a").unwrap();
    for pages in (0..4).cycle().take(24) {
        let mut node = world.open();
        node.prepare(&claim(&node, "a", &WANTS)).unwrap();
        disk.fill(pages * 4096);
        node.release(&uid).unwrap();
        disk.empty();
        node.invariants().unwrap();
        assert!(world.live().is_empty());
    }
}

/// As the agent's own thread does, without a call of the kubelet: the Pod may be gone.
#[test]
fn prepares_that_a_full_disk_interrupted_are_given_back() {
    let Some(disk) = SmallDisk::mount(SMALL_KIB) else { return };
    let world = World::at(disk.path(), Personality::named("h200").unwrap().load().unwrap(), "");
    let node = world.open();
    let request = claim(&node, "a", &WANTS);
    let service = node.into_service();
    let mut interrupted = 0;
    // The two shares of the claim take some 80 pages.
    for pages in (0..40).map(|step| step * 3) {
        disk.fill(pages * 4096);
        if service.prepare(&request).is_ok() {
            disk.empty();
            service.release(&ClaimUid::new("a").unwrap()).unwrap();
            continue;
        }
        interrupted += 1;
        disk.empty();
        service.tend();
        service.invariants().unwrap();
        assert_eq!((service.claims().len(), world.live().len()), (0, 0), "{pages} pages");
    }
    assert!((1..40).contains(&interrupted), "{interrupted} of 40: the disk was never full, or always");
}

#[test]
fn unwritable_directory_is_refused_by_name_but_readable() {
    let Some(disk) = SmallDisk::mount(SMALL_KIB) else { return };
    let world = World::at(disk.path(), Personality::named("h200").unwrap().load().unwrap(), "");
    let mut node = world.open();
    node.prepare(&claim(&node, "a", &WANTS)).unwrap();
    drop(node);
    let before = world.files();
    disk.remount("remount,ro");
    let text = world.try_open(None).err().map(|e| chain(&e)).unwrap();
    assert!(text.contains("Read-only file system") && text.contains("name another directory"), "{text}");
    let onlooker = world.look().unwrap();
    assert_eq!(onlooker.claims().count(), 1);
    onlooker.invariants().unwrap();
    drop(onlooker);
    disk.remount("remount,rw");
    assert_eq!(world.files(), before);
    world.open().invariants().unwrap();
}

/// What `aliquot top` says of the state on the disk, and how it ended.
fn shown(state: &Path) -> (ExitStatus, String) {
    let mut top = Command::new(aliquot());
    let output = top.args(["top", "--once", "--interval", "0", "--state"]).arg(state).output().unwrap();
    (output.status, String::from_utf8(output.stdout).unwrap())
}

/// The files of simulated cards have holes: to touch one that no block can be put behind ends a process by SIGBUS.
#[test]
fn full_disk_is_reported_while_reading_simulated_cards() {
    let Some(disk) = SmallDisk::mount(4 * SMALL_KIB) else { return };
    let state = disk.path().join("state");
    let run = || {
        let mut run = Command::new(aliquot());
        run.args(["run", "--node", "t4-2", "--memory", "1Gi", "--state"]).arg(&state).args(["--", "true"]);
        run.output().unwrap()
    };
    let first = run();
    assert!(first.status.success(), "{first:?}");
    disk.fill(0);
    let (status, text) = shown(&state);
    assert!(status.success(), "{status}: {text}");
    assert_eq!((text.matches("Tesla T4").count(), text.contains("warning")), (2, false), "{text}");

    // So an earlier version left them: nothing but the first page is there.
    disk.empty();
    for card in ["card-0", "card-1"].map(|card| state.join("cards").join(card)) {
        let file = OpenOptions::new().write(true).open(card).unwrap();
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&file, mode, 4096, i64::try_from(file.metadata().unwrap().len()).unwrap() - 4096).unwrap();
    }
    disk.fill(0);
    let (status, text) = shown(&state);
    assert!(status.success(), "{status}: {text}");
    let told =
        "No space left on device (os error 28): these cards are not shown; free space on their file system";
    // Warnings are wrapped to the width of the screen.
    let unwrapped = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(unwrapped.matches(told).count(), 1, "{text}");
    disk.empty();
    let (status, text) = shown(&state);
    assert_eq!((status.success(), text.contains("warning")), (true, false), "{text}");
    let again = run();
    assert!(again.status.success(), "{again:?}");
}
