//! The size of a context on this machine's own cards is measured while the node is open to others.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Output, Stdio};
use std::sync::{Arc, Mutex, Weak};

use aliquot_abi::limits::Pages;
use aliquot_core::card::Health;
use aliquot_core::dra::ResourceClaim;
use aliquot_core::id::{CardUuid, ClaimUid};
use aliquot_core::units::Bytes;
use aliquot_driver::checkpoint::{ContextDevice, ContextSizes};
use aliquot_driver::clock::Moment;
use aliquot_driver::contexts::{ContextGauge, ContextSizeError};
use aliquot_driver::disk::Disk;
use aliquot_driver::node::{Access, Dirs, Node, NodeParts, NodeService};
use aliquot_driver::region::{self, Footprint};
use aliquot_tests::local::wait_for;
use aliquot_tests::machine::Machine;
use aliquot_tests::node::{Want, World, claim};

/// Of the simulated cards, as `driver/backends/sim/README.md` says.
const CONTEXT: u64 = 480 << 20;

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A run that measures for an hour: its context is there, and the card does not tell what it takes. Others ask of that what they
/// like.
fn stuck(machine: &Machine, ask: &[&str]) -> Running {
    let before = machine.bench.card().in_use();
    let fault = "symbol = \"nvmlDeviceGetGraphicsRunningProcesses_v3\"\ncall = 2";
    let hour = "action = { slow_nanos = 3600000000000 }";
    machine.bench.write("faults.toml", &format!("[[fault]]\n{fault}\n{hour}\n"));
    let stuck = Running(machine.aliquot("run", ask).args(["--", "true"]).spawn().unwrap());
    wait_for("the context", || machine.bench.card().in_use() > before);
    machine.no_fault();
    stuck
}

/// A run that does not outlive its test.
struct Running(Child);

impl Running {
    /// How it ends, within the time that tests wait.
    fn ended(mut self) -> Output {
        wait_for("the end of the run", || self.0.try_wait().unwrap().is_some());
        let (mut out, mut err) = (Vec::new(), Vec::new());
        self.0.stdout.iter_mut().for_each(|pipe| assert!(pipe.read_to_end(&mut out).is_ok()));
        self.0.stderr.iter_mut().for_each(|pipe| assert!(pipe.read_to_end(&mut err).is_ok()));
        Output { status: self.0.wait().unwrap(), stdout: out, stderr: err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A run on card 0 that has begun and waits for its input before it ends with code 42.
fn waiting(machine: &Machine) -> Running {
    let mut run = machine.aliquot("run", &["--card", "0", "--memory", "1Gi", "--", "sh", "-c"]);
    run.arg("echo ready; read line; exit 42")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut run = Running(run.spawn().unwrap());
    BufReader::new(run.0.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    run
}

#[test]
fn exit_code_of_a_command_does_not_wait_for_the_state_lock() {
    let machine = Machine::of("[[card]]\n");
    let mut run = waiting(&machine);
    let lock = fs::File::open(machine.state().join("lock")).unwrap();
    lock.lock().unwrap();
    drop(run.0.stdin.take());
    let output = run.ended();
    assert_eq!((output.status.code(), machine.claims()), (Some(42), 1));
    assert!(err(&output).contains("warning: claim not released; the next call does it: "), "{output:?}");
    drop(lock);
    assert_eq!((machine.told_quietly(), machine.claims()), (CONTEXT, 0));
}

#[test]
fn measurement_does_not_block_the_node() {
    let machine = Machine::new();
    let measures = stuck(&machine, &["--card", "0", "--memory", "1Gi"]);
    // Another card is measured beside it.
    let limits = machine.dir().join("seen");
    let script = format!("cat $ALIQUOT_GRANTS/*/limits >{}", limits.display());
    let mut other = machine.aliquot("run", &["--card", "1", "--memory", "1Gi", "--", "sh", "-c", &script]);
    let output = Running(other.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()).ended();
    assert_eq!((output.status.code(), err(&output).as_str(), machine.claims()), (Some(0), "", 1));
    assert_eq!(region::read(&limits).unwrap().context_bytes, CONTEXT);
    // On the same card it does not wait.
    let output = Running(
        machine
            .aliquot("run", &["--card", "0", "--memory", "1Gi", "--", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    )
    .ended();
    assert_eq!((output.status.code(), err(&output).as_str(), machine.claims()), (Some(0), "", 1));
    assert_eq!(region::read(&limits).unwrap().context_bytes, 0);
    drop(measures);
    assert_eq!((machine.told_quietly(), machine.claims()), (CONTEXT, 0));
}

#[test]
fn measurement_beside_a_new_claim_is_discarded() {
    let machine = Machine::of("[[card]]\n");
    machine.bench.write(
        "faults.toml",
        "[[fault]]\nsymbol = \"nvmlDeviceGetGraphicsRunningProcesses_v3\"\ncall = 2\n\
         action = { slow_nanos = 2000000000 }\n",
    );
    let measures = Running(machine.aliquot("run", &["--memory", "1Gi", "--", "true"]).spawn().unwrap());
    wait_for("the context", || machine.bench.card().in_use() == CONTEXT);
    let mut beside = waiting(&machine);
    assert_eq!(measures.ended().status.code(), Some(0));
    assert!(!machine.state().join("contexts").exists(), "the new claim may have falsified the size");
    drop(beside.0.stdin.take());
    let output = beside.ended();
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(42), ""));
    assert_eq!((machine.told_quietly(), machine.claims()), (CONTEXT, 0));
}

const DRIVER: &str = "580.65.06";

/// Measures at once, notes where, and prepares a claim meanwhile.
#[derive(Debug, Default)]
struct Gauge {
    measured: Mutex<Vec<CardUuid>>,
    fails: Mutex<bool>,
    meanwhile: Mutex<Option<ResourceClaim>>,
    node: Mutex<Weak<NodeService>>,
}

impl ContextGauge for Gauge {
    fn driver(&self) -> Option<String> {
        Some(DRIVER.to_owned())
    }

    fn measure(&self, visible: &CardUuid) -> Result<Footprint, ContextSizeError> {
        self.measured.lock().unwrap().push(visible.clone());
        // An agent that is killed now does not begin again at once.
        let state = self.node.lock().unwrap().upgrade().unwrap().state_dir().join("contexts");
        let ground = ContextDevice { card: visible.clone(), template: None };
        assert!(ContextSizes::load(&state, DRIVER).failure(&ground, &Moment::now()).is_some());
        if let Some(claim) = self.meanwhile.lock().unwrap().take() {
            let node = self.node.lock().unwrap().upgrade().unwrap();
            node.prepare(&claim).unwrap();
            node.release(&ClaimUid::new(claim.uid.as_str()).unwrap()).unwrap();
        }
        match *self.fails.lock().unwrap() {
            true => Err(ContextSizeError::Ended),
            false => Ok(Footprint { context: Bytes(CONTEXT), pages: Pages::ASSUMED }),
        }
    }
}

/// A node with idle cards, its gauge, and claims on its first two cards.
fn idle_node(world: &World) -> (Arc<NodeService>, Arc<Gauge>, [ResourceClaim; 2], Vec<CardUuid>) {
    let gauge: Arc<Gauge> = Arc::default();
    let parts = NodeParts { gauge: Some(gauge.clone()), ..world.parts(Disk::default()) };
    let node = Node::open(parts, &Dirs::in_state(world.state()), Access::Change).unwrap().0;
    let want = |card| Want { card, part: "card", memory_mib: Some(1024), cores: 1 };
    let claims = [0, 1].map(|card| claim(&node, &format!("c{card}"), &[want(card)]));
    let cards = node.inventory().unwrap().cards.into_iter().map(|card| card.uuid).collect();
    let service = Arc::new(node.into_service());
    *gauge.node.lock().unwrap() = Arc::downgrade(&service);
    (service, gauge, claims, cards)
}

#[test]
fn idle_cards_are_measured_once_for_claims_to_come() {
    let world = World::new("t4-2", "");
    let (node, gauge, [first, second], cards) = idle_node(&world);
    let measured = || std::mem::take(&mut *gauge.measured.lock().unwrap());
    node.prepare(&first).unwrap();
    node.measure_idle_cards();
    assert_eq!(measured(), [cards[1].clone()], "the other card has a claim");
    node.prepare(&second).unwrap();
    let files = fs::read_dir(node.grants_dir().join("c1")).unwrap();
    let share = files.map(|file| file.unwrap().path()).find(|path| path.is_dir()).unwrap();
    assert_eq!(region::read(&share.join("limits")).unwrap().context_bytes, CONTEXT);
    node.release(&ClaimUid::new(first.uid.as_str()).unwrap()).unwrap();
    node.measure_idle_cards();
    node.measure_idle_cards();
    assert_eq!(measured(), [cards[0].clone()], "each is measured once");
}

#[test]
fn idle_cards_that_break_or_get_a_claim_stay_unmeasured() {
    let world = World::new("t4-2", "");
    let (node, gauge, [first, _], cards) = idle_node(&world);
    let kept = |card: &CardUuid| {
        let ground = ContextDevice { card: card.clone(), template: None };
        ContextSizes::load(&world.state().join("contexts"), DRIVER).of(&ground).is_some()
    };
    let broken = Health::Unhealthy("it fell off the bus".to_owned());
    world.hardware().set_health(&cards[1], &broken).unwrap();
    *gauge.meanwhile.lock().unwrap() = Some(first);
    node.measure_idle_cards();
    assert_eq!((gauge.measured.lock().unwrap().len(), kept(&cards[0])), (1, false), "a claim came and went");
    node.measure_idle_cards();
    assert_eq!((gauge.measured.lock().unwrap().len(), kept(&cards[0])), (2, true));
    // A failure is not repeated at once.
    world.hardware().set_health(&cards[1], &Health::Healthy).unwrap();
    *gauge.fails.lock().unwrap() = true;
    node.measure_idle_cards();
    node.measure_idle_cards();
    assert_eq!((gauge.measured.lock().unwrap().len(), kept(&cards[1])), (3, false));
}
