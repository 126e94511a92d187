//! Random calls, overlapping allocations, kills, reboots, outages of the API server and errors of a card: after each of them
//! hardware, journal, ledger and files of the node agree.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test that calls them")]

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::card::Health as Verdict;
use aliquot_core::id::CardUuid;
use aliquot_core::ports::{DeviceBackend as _, ExpectedPartition};
use aliquot_driver::agent::pace::AgentPace;
use aliquot_sim_device::{Card, Health};
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::running_agent::{FakeCluster, RunningAgent};

const SHARE: Want = Want { card: 2, part: "card", memory_mib: Some(2048), cores: 20 };
const REST: Want = Want { memory_mib: Some(15000), cores: 0, ..SHARE };
const PARTITION: Want = Want { card: 0, part: "1g.10gb at 0", memory_mib: None, cores: 0 };
const SLICE: Want = Want { part: "1g.10gb at 2", ..PARTITION };
const WIDER: Want = Want { part: "2g.20gb at 0", ..PARTITION };

/// Claims; the last three overlap with others, as two schedulers place them.
const CLAIMS: [&[Want]; 7] =
    [&[SHARE], &[PARTITION], &[SHARE, SLICE], &[SHARE, SHARE], &[PARTITION], &[WIDER], &[REST]];
/// Claims that do not go together: the same device, the same slices of a card, more memory than it has.
const OVERLAPS: [[usize; 2]; 6] = [[1, 4], [1, 5], [4, 5], [0, 6], [2, 6], [3, 6]];
/// The card that breaks.
const CARD: u32 = 2;
/// An error of the card's memory.
const OF_THE_CARD: u64 = 48;
const ACTIONS: usize = 100;
/// Fast, so that most of the time is spent on actions.
const PACE: AgentPace = AgentPace {
    look: Duration::from_millis(100),
    read: Duration::from_millis(30),
    overlap: Duration::from_millis(30),
    ..AgentPace::SERVICE
};

/// A number sequence that its seed determines.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

/// What happens between two agents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Nothing.
    Again,
    /// The machine starts anew: the CDI directory is empty, and instances are gone.
    Reboot,
}

/// What must hold of the node and its cluster.
#[derive(Default)]
struct Model {
    /// Prepared claims, and the names of their devices.
    held: BTreeMap<usize, Vec<String>>,
    /// The API server does not answer.
    is_away: bool,
    /// The driver reports the card as broken.
    is_broken: bool,
    /// The card reported an error, or its loss.
    has_failed: bool,
}

/// What a prepare must answer.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Prepared,
    /// The error names these claims.
    Overlaps(Vec<usize>),
    Failed,
}

// === impl Model ===

impl Model {
    fn expected(&self, number: usize) -> Expected {
        let is_unwell = self.is_broken || self.has_failed;
        let rivals = || {
            let pairs = OVERLAPS.iter().filter(|pair| pair.contains(&number));
            pairs.flatten().copied().filter(|other| *other != number && self.held.contains_key(other))
        };
        if self.is_away {
            Expected::Failed
        } else if self.held.contains_key(&number) {
            Expected::Prepared
        } else if is_unwell && CLAIMS[number].iter().any(|want| want.card == CARD) {
            Expected::Failed
        } else if rivals().next().is_some() {
            Expected::Overlaps(rivals().collect())
        } else {
            Expected::Prepared
        }
    }
}

/// A node and its agent, with what must hold of them.
struct Bench {
    world: World,
    kubelet: FakeKubelet,
    cluster: Arc<FakeCluster>,
    agent: RunningAgent,
    plugin: Plugin,
    model: Model,
    card: CardUuid,
    device: Card,
    /// For messages.
    seed: u64,
}

async fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "not within a minute");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Bench {
    async fn new(seed: u64) -> Self {
        let (world, kubelet, cluster) =
            (World::new("mixed", ""), FakeKubelet::default(), Arc::new(FakeCluster::default()));
        let node = world.open();
        for (number, wants) in CLAIMS.iter().enumerate() {
            cluster.put(&claim(&node, &format!("c{number}"), wants));
        }
        let card = node.inventory().unwrap().cards[2].uuid.clone();
        let agent = RunningAgent::paced(node, &kubelet, &cluster, PACE);
        let plugin = kubelet.register().await;
        // The agent makes the cards' files at its first look.
        let cards = world.state().join("cards");
        let device =
            eventually(|| aliquot_sim_device::open(&cards).ok().filter(|_| cards.join("node.toml").exists()));
        let device = device.await.card(2).unwrap().clone();
        Self { world, kubelet, cluster, agent, plugin, model: Model::default(), card, device, seed }
    }

    async fn prepare(&self, number: usize) -> Result<Vec<String>, String> {
        let (name, uid) = (format!("claim-c{number}"), format!("c{number}"));
        let devices = self.plugin.prepare(&[("test", &name, &uid)]).await.remove(&uid).unwrap()?;
        Ok(devices.into_iter().flat_map(|device| device.cdi_device_ids).collect())
    }

    async fn unprepare(&mut self, number: usize) {
        let (name, uid) = (format!("claim-c{number}"), format!("c{number}"));
        let answer = self.plugin.unprepare(&[("test", &name, &uid)]).await.remove(&uid).unwrap();
        assert_eq!(answer, "", "seed {}: {uid}", self.seed);
        self.model.held.remove(&number);
    }

    /// Prepares a claim, and compares the answer with the model; the claims that were in its way.
    async fn try_prepare(&mut self, number: usize) -> Vec<usize> {
        let (expected, answer) = (self.model.expected(number), self.prepare(number).await);
        let scene = format!("seed {}: c{number}: {answer:?}, expected {expected:?}", self.seed);
        match (&expected, answer) {
            (Expected::Prepared, Ok(names)) => {
                assert_eq!(*self.model.held.entry(number).or_insert_with(|| names.clone()), names, "{scene}");
            }
            (Expected::Overlaps(rivals), Err(error)) => {
                assert!(rivals.iter().all(|rival| error.contains(&format!("claim c{rival} "))), "{scene}");
                return rivals.clone();
            }
            (Expected::Failed, Err(_)) => {}
            _ => panic!("{scene}"),
        }
        Vec::new()
    }

    /// Kills the agent and starts another one on what is left.
    async fn restart(self, start: Start) -> Self {
        let Self { world, kubelet, cluster, agent, plugin, model, card, device, seed } = self;
        drop(plugin);
        agent.kill().await;
        if start == Start::Reboot {
            // A directory that no claim has needed yet is absent.
            drop(fs::remove_dir_all(world.state().join("cdi")));
            for live in world.live() {
                world.hardware().destroy_partition(&live.at, &ExpectedPartition::Any).unwrap();
            }
        }
        let (node, recovery) = eventually(|| world.try_open(None).ok()).await;
        assert!(recovery.problems.is_empty(), "seed {seed}: {:?}", recovery.problems);
        node.invariants().unwrap();
        let agent = RunningAgent::paced(node, &kubelet, &cluster, PACE);
        let plugin = kubelet.register().await;
        Self { world, kubelet, cluster, agent, plugin, model, card, device, seed }
    }

    fn notes(&self) -> String {
        fs::read_to_string(self.world.state().join("health")).unwrap_or_default()
    }

    /// The card reports an error.
    async fn fail(&mut self) {
        // Before the agent watches the card, an error is lost.
        eventually(|| {
            self.device.raise_xid(OF_THE_CARD, None);
            self.notes().contains("code 48 ").then_some(())
        })
        .await;
        self.model.has_failed = true;
    }

    /// The card falls off the bus.
    async fn lose(&mut self) {
        let began = Instant::now();
        while !self.notes().contains("lost") {
            assert!(began.elapsed() < Duration::from_secs(60), "seed {}: the loss is not noted", self.seed);
            // A card that is lost already is not watched.
            self.device.set_health(Health::Well);
            tokio::time::sleep(PACE.look * 3).await;
            self.device.set_health(Health::Lost);
            tokio::time::sleep(PACE.look).await;
        }
        self.model.has_failed = true;
    }

    /// The card is reset, as its driver shows it: lost, then well, which ends every error.
    async fn reset(&mut self) {
        self.lose().await;
        self.device.set_health(Health::Well);
        eventually(|| (!self.notes().contains("lost") && !self.notes().contains("code 48 ")).then_some(()))
            .await;
        self.model.has_failed = false;
    }

    fn set_broken(&mut self, is_broken: bool) {
        let broken = || Verdict::Unhealthy("it smells".to_owned());
        let verdict = if is_broken { broken() } else { Verdict::Healthy };
        self.world.hardware().set_health(&self.card, &verdict).unwrap();
        self.model.is_broken = is_broken;
    }

    async fn act(mut self, random: &mut Random) -> Self {
        let number = random.below(CLAIMS.len());
        match random.below(20) {
            0..9 => {
                let rivals = self.try_prepare(number).await;
                if !rivals.is_empty() && random.below(2) == 0 {
                    for rival in rivals {
                        self.unprepare(rival).await;
                    }
                    assert_eq!(self.model.expected(number), Expected::Prepared);
                    self.try_prepare(number).await;
                }
            }
            9..13 => self.unprepare(number).await,
            13..15 => return self.restart(Start::Again).await,
            15 => return self.restart(Start::Reboot).await,
            16 | 17 => {
                self.model.is_away = !self.model.is_away;
                self.cluster.set_away(self.model.is_away);
            }
            18 => self.set_broken(!self.model.is_broken),
            _ => match (self.model.has_failed, random.below(2)) {
                (true, _) => self.reset().await,
                (false, 0) => self.fail().await,
                (false, _) => self.lose().await,
            },
        }
        self
    }

    fn check(&self) {
        let (seed, held) = (self.seed, self.model.held.len());
        let node = self.world.look().unwrap();
        node.invariants().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(node.claims().count(), held, "seed {seed}");
        let cdi = fs::read_dir(self.world.state().join("cdi")).into_iter().flatten().count();
        assert_eq!(cdi, held, "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_calls_kills_outages_and_errors_converge() {
    let seed = aliquot_tests::seed::seed();
    let mut random = Random(seed);
    let mut bench = Bench::new(seed).await;
    for _ in 0..ACTIONS {
        bench = bench.act(&mut random).await;
        bench.check();
    }
    for number in 0..CLAIMS.len() {
        bench.unprepare(number).await;
    }
    assert!(bench.world.live().is_empty());
    bench.agent.stop().await;
    let node = bench.world.open();
    node.invariants().unwrap();
    assert_eq!(fs::read_dir(node.grants_dir()).unwrap().count(), 0);
}
