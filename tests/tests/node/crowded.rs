//! Many claims at once, and local runs that begin together: how long each delays the next.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use aliquot_core::card::{Card, Health, Inventory};
use aliquot_core::id::{CardUuid, ClaimUid, TemplateName};
use aliquot_core::offer::ServerVersion;
use aliquot_core::partition::{Part, PlacementName};
use aliquot_core::ports::{
    BackendError, DeviceAccess, DeviceBackend, ExpectedPartition, LivePartition, PartitionAt,
};
use aliquot_driver::checkpoint::ClaimKind;
use aliquot_driver::disk::{Disk, Seam};
use aliquot_driver::node::{Access, Dirs, Node, NodeParts};
use aliquot_driver::prepare::ReleaseOutcome;
use aliquot_tests::node::{Want, World, claim};

const RUN: &str = "run-1-2-0";

/// Hardware that counts the queries for its state.
struct Asked {
    hardware: Box<dyn DeviceBackend>,
    times: Arc<AtomicUsize>,
    /// The same of one card.
    cards: Arc<AtomicUsize>,
    signs: Signs,
}

/// Whether changes of the hardware have a sign.
#[derive(Clone, Copy)]
enum Signs {
    /// Each has one.
    All,
    /// Those that other programs make have none.
    Own,
}

/// A disk that goes on, and notes what is done to it.
#[derive(Default)]
struct Noted(Mutex<Vec<String>>);

// === impl Asked ===

impl DeviceBackend for Asked {
    fn discover(&self) -> Result<Inventory, BackendError> {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.hardware.discover()
    }

    /// Of one card, which enumerates none.
    fn discover_card(&self, card: &CardUuid) -> Result<Card, BackendError> {
        self.cards.fetch_add(1, Ordering::Relaxed);
        self.hardware.discover_card(card)
    }

    fn generation(&self) -> Option<u64> {
        match self.signs {
            Signs::All => self.hardware.generation(),
            Signs::Own => Some(0),
        }
    }

    fn partitions(&self) -> Result<Vec<LivePartition>, BackendError> {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.hardware.partitions()
    }

    fn create_partition(&self, at: &PartitionAt) -> Result<LivePartition, BackendError> {
        self.hardware.create_partition(at)
    }

    fn destroy_partition(&self, at: &PartitionAt, handle: &ExpectedPartition) -> Result<(), BackendError> {
        self.hardware.destroy_partition(at, handle)
    }

    fn access(&self, card: &CardUuid, part: &Part) -> Result<DeviceAccess, BackendError> {
        self.hardware.access(card, part)
    }
}

// === impl Noted ===

impl Seam for Noted {
    fn before(&self, effect: &str) -> io::Result<()> {
        self.0.lock().unwrap().push(effect.to_owned());
        Ok(())
    }

    fn bytes(&self, _effect: &str, length: usize) -> usize {
        length
    }
}

impl Noted {
    /// Waits for the disk since the last call.
    fn waits(&self) -> usize {
        let done = std::mem::take(&mut *self.0.lock().unwrap());
        done.iter().filter(|effect| effect.starts_with("sync") || effect.ends_with("CDI file")).count()
    }
}

const fn share(memory_mib: u64) -> Want {
    Want { card: 0, part: "card", memory_mib: Some(memory_mib), cores: 1 }
}

/// How often opening a node for changes queries the hardware, as a whole and by card.
fn asked_by_opening(world: &World) -> [usize; 2] {
    let (times, cards) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let parts = world.parts(Disk::default());
    let (all, one) = (Arc::clone(&times), Arc::clone(&cards));
    let backend = Box::new(Asked { hardware: parts.backend, times: all, cards: one, signs: Signs::All });
    let (node, recovery) =
        Node::open(NodeParts { backend, ..parts }, &Dirs::in_state(world.state()), Access::Change).unwrap();
    assert!(recovery.problems.is_empty(), "{recovery:?}");
    drop(node);
    [times, cards].map(|times| times.load(Ordering::Relaxed))
}

#[test]
fn node_reads_hardware_once_however_many_claims() {
    let world = World::new("t4-2", "");
    let mut asked = Vec::new();
    for number in 0..8 {
        let mut node = world.open();
        let request = claim(&node, &format!("c{number}"), &[share(512)]);
        node.prepare(&request).unwrap();
        drop(node);
        asked.push(asked_by_opening(&world));
    }
    assert_eq!(asked, [[0, 1]; 8], "the card of the claims, once");
}

#[test]
fn node_discovers_its_cards_again_after_a_change_alone() {
    let (world, times) = (World::new("mixed", ""), Arc::new(AtomicUsize::new(0)));
    let parts = world.parts(Disk::default());
    let backend = Box::new(Asked {
        hardware: parts.backend,
        times: Arc::clone(&times),
        cards: Arc::default(),
        signs: Signs::All,
    });
    let dirs = Dirs::in_state(world.state());
    let node = Node::open(NodeParts { backend, ..parts }, &dirs, Access::Change).unwrap().0;
    let request = claim(&world.look().unwrap(), "a", &[Want { card: 2, ..share(512) }]);
    let service = node.into_service();
    let look = || service.snapshot(ServerVersion::with_default_gates(37, 2)).unwrap().inventory;
    let cards = look().cards;
    let asked = || times.swap(0, Ordering::Relaxed);
    let _opened = asked();
    look();
    service.prepare(&request).unwrap();
    look();
    assert_eq!(asked(), 0, "nothing has changed");

    let lost = Health::Unhealthy("it fell off the bus".to_owned());
    world.hardware().set_health(&cards[0].uuid, &lost).unwrap();
    assert_eq!((look().cards[0].health.clone(), asked()), (lost, 1));
    let (card, template) = (cards[0].uuid.clone(), TemplateName::new("1g.10gb").unwrap());
    let foreign = PartitionAt { card, template, placement: PlacementName("2".to_owned()) };
    world.hardware().create_partition(&foreign).unwrap();
    assert_eq!((look().cards[0].found.clone(), asked()), (vec![foreign.part()], 1));
    look();
    assert_eq!(asked(), 0);
}

#[test]
fn prepare_sees_what_another_program_has_made_of_its_card() {
    let (world, times) = (World::new("h100-8", ""), Arc::new(AtomicUsize::new(0)));
    let parts = world.parts(Disk::default());
    let backend = Box::new(Asked {
        hardware: parts.backend,
        times: Arc::clone(&times),
        cards: Arc::default(),
        signs: Signs::Own,
    });
    let dirs = Dirs::in_state(world.state());
    let node = Node::open(NodeParts { backend, ..parts }, &dirs, Access::Change).unwrap().0;
    let offered = world.look().unwrap();
    let [cut, other] =
        [0, 1].map(|card| claim(&offered, &format!("c{card}"), &[Want { card, ..share(512) }]));
    let service = node.into_service();
    let look = || service.snapshot(ServerVersion::with_default_gates(37, 2)).unwrap().inventory;
    let (card, template) = (look().cards[0].uuid.clone(), TemplateName::new("1g.10gb").unwrap());
    let foreign = PartitionAt { card, template, placement: PlacementName("2".to_owned()) };
    world.hardware().create_partition(&foreign).unwrap();
    assert_eq!(look().cards[0].found, [], "the snapshot is of before");

    let refusal = service.prepare(&cut).unwrap_err().to_string();
    assert!(refusal.contains("1g.10gb"), "{refusal}");
    let _so_far = times.swap(0, Ordering::Relaxed);
    service.prepare(&other).unwrap();
    assert_eq!(times.load(Ordering::Relaxed), 0, "its card is as it was");
    assert_eq!(look().cards[0].found, [foreign.part()], "the look of the refusal counts for all");
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_local_run_waits_for_the_disk_with_its_promise_alone() {
    let (world, noted) = (World::new("t4-2", ""), Arc::new(Noted::default()));
    let mut node = world.open_on(noted.clone());
    let [container, run] = ["c", RUN].map(|uid| claim(&node, uid, &[share(512)]));
    noted.waits();
    node.prepare(&container).unwrap();
    let of_container = noted.waits();
    node.prepare_for(&run, ClaimKind::Run).unwrap();
    // The journal before and behind.
    assert_eq!((of_container > 10, noted.waits()), (true, 2), "{of_container}");
    node.invariants().unwrap();

    // No container runtime gets a file of it.
    assert_eq!(names(node.cdi_dir()), ["aliquot.dev-claim-c.json"]);
    let shares = names(&node.grants_dir().join(RUN));
    assert_eq!(shares.len(), 1, "{shares:?}");
    let dir = node.grants_dir().join(RUN).join(&shares[0]);
    assert_eq!(names(&dir), ["grant.json", "limits", "usage"]);

    // A power failure may leave any of these states; the next process that opens the node makes the files
    // again.
    let whole = names(&dir).into_iter().map(|name| fs::read(dir.join(name)).unwrap()).collect::<Vec<_>>();
    drop(node);
    for (left, length) in [("nothing", 0), ("half", 64), ("zeros", 4096)] {
        for (name, bytes) in names(&dir).iter().zip(&whole) {
            fs::remove_file(dir.join(name)).unwrap();
            let kept = match left {
                "half" => bytes[..length].to_vec(),
                _ => vec![0; length],
            };
            fs::write(dir.join(name), kept).unwrap();
        }
        let node = world.open();
        node.invariants().unwrap();
        let grant = fs::read(dir.join("grant.json")).unwrap();
        assert_eq!(grant, whole[0], "{left}");
        drop(node);
    }
    let mut node = world.open();
    assert_eq!(node.release(&ClaimUid::new(RUN).unwrap()).unwrap(), ReleaseOutcome::Released);
    node.invariants().unwrap();
    assert!(!dir.exists());
}
