//! One cluster with a node, on which the scenarios of this process play one after the other, beside those that have a
//! cluster of their own.
//!
//! Each scenario has an agent with its own simulated node and state, and namespaces with its own name as
//! prefix. After it the cluster is as before; a failed scenario is cleaned up before the next one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use aliquot_cluster::{
    AGENT_PROCESSES, Agent, AgentOptions, Api, Client, Cluster, EXAMPLE_IMAGE, Namespace, Scope,
    install_examples,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::given::{Given, given, kubeconfig};
use crate::install::Installed;
use crate::world::{Turn, World, needs_own};

/// How long a Pod may take to start; many times what it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// How long to wait for what must not come.
pub(crate) const BRIEFLY: Duration = Duration::from_secs(3);
pub(crate) const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

static CLUSTER: OnceLock<Option<Mutex<Box<Cluster>>>> = OnceLock::new();

/// Where a scenario plays.
enum Ground {
    /// The cluster of this process.
    Own(MutexGuard<'static, Box<Cluster>>),
    /// The one that `KUBECONFIG` names.
    Given(MutexGuard<'static, Given>),
}

/// The agent of a scenario.
enum Running {
    /// A process on the node of this process's cluster.
    Process(Agent),
    /// The Pod of an installed manifest.
    Pod(Installed),
}

/// A scenario that plays.
pub(crate) struct Stage {
    ground: Ground,
    name: &'static str,
    agent: Option<Running>,
    began: Instant,
    /// Held until the cleanup is done.
    _turn: Turn,
}

/// A file of the checkout.
pub(crate) fn checkout(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

/// A program or library that cargo has built beside this test.
pub(crate) fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join(name);
    let message = "found no such file; run cargo build --package aliquot_driver";
    assert!(path.exists(), "{}: {message}", path.display());
    path
}

/// The cluster of this process, with image and classes; `None`, with the reason printed: this machine has none.
fn cluster() -> Option<MutexGuard<'static, Box<Cluster>>> {
    let started = CLUSTER.get_or_init(|| {
        if needs_own() {
            return None;
        }
        let Some(World::Own(cluster)) = World::start("scenes", Scope::Node) else { return None };
        install_examples(&cluster, &built("aliquot")).unwrap();
        Some(Mutex::new(cluster))
    });
    started.as_ref().map(|cluster| cluster.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Stage {
    /// Begins a scenario without an agent.
    pub(crate) fn empty(name: &'static str) -> Option<Self> {
        Self::begin(name, Turn::beside())
    }

    /// Begins a scenario without an agent, while no other one plays.
    pub(crate) fn alone(name: &'static str) -> Option<Self> {
        Self::begin(name, Turn::alone())
    }

    fn begin(name: &'static str, turn: Turn) -> Option<Self> {
        let ground = match kubeconfig() {
            Some(kubeconfig) => Ground::Given(given(&kubeconfig)),
            None => Ground::Own(cluster()?),
        };
        Some(Self { ground, name, agent: None, began: Instant::now(), _turn: turn })
    }

    /// Begins a scenario with an agent on a simulated node, with one layout for all cards.
    pub(crate) fn with_agent(name: &'static str, node: &str, layout: &str) -> Option<Self> {
        let mut stage = Self::empty(name)?;
        stage.start_agent(node, &format!("default = \"{layout}\"\n"));
        Some(stage)
    }

    /// Starts an agent with a policy.
    pub(crate) fn start_agent(&mut self, node: &str, policy: &str) {
        self.agent = Some(match &self.ground {
            Ground::Own(cluster) => Running::Process(self.start_process(cluster, Some(node), policy)),
            Ground::Given(given) => Running::Pod(given.install(node, policy, self.name)),
        });
    }

    /// Starts an agent for the cards of this machine with a policy; the scenario has a cluster of this process.
    pub(crate) fn start_agent_of_machine(&mut self, policy: &str) {
        self.agent = Some(Running::Process(self.start_process(self.cluster(), None, policy)));
    }

    fn start_process(&self, cluster: &Cluster, node: Option<&str>, policy: &str) -> Agent {
        let file = cluster.place().path("policy.toml");
        fs::write(&file, policy).unwrap();
        let options = AgentOptions {
            program: built("aliquot"),
            node: node.map(str::to_owned),
            policy: Some(file),
            state: self.name.to_owned(),
        };
        Agent::start(cluster, options).unwrap()
    }

    /// The name of the scenario, and of its agent's state.
    pub(crate) fn name(&self) -> &str {
        self.name
    }

    /// The cluster of this process, for scenarios that reach into its node; those begin with [`needs_own`].
    #[track_caller]
    pub(crate) fn cluster(&self) -> &Cluster {
        let Some(cluster) = self.own_cluster() else {
            panic!("{}: found a given cluster, expected one of this process", self.name);
        };
        cluster
    }

    /// The cluster of this process; `None`: a given one.
    pub(crate) fn own_cluster(&self) -> Option<&Cluster> {
        match &self.ground {
            Ground::Own(cluster) => Some(cluster),
            Ground::Given(_) => None,
        }
    }

    /// API server and kubectl.
    pub(crate) fn client(&self) -> &Client {
        match &self.ground {
            Ground::Own(cluster) => cluster.client(),
            Ground::Given(given) => given.client(),
        }
    }

    pub(crate) fn api(&self) -> &Api {
        self.client().api()
    }

    /// The agent's process, for scenarios that reach into the node.
    #[track_caller]
    pub(crate) fn agent(&self) -> &Agent {
        match &self.agent {
            Some(Running::Process(agent)) => agent,
            _ => {
                panic!("{}: found no process of an agent on this process's cluster, expected one", self.name)
            }
        }
    }

    /// Claims that the agent has prepared; `None` while it does not answer.
    fn prepared(&self) -> Option<u64> {
        const NAME: &str = "aliquot_dra_prepared_claims";
        match self.agent.as_ref()? {
            Running::Process(agent) => agent.metric(NAME).ok(),
            Running::Pod(installed) => installed.metric(NAME),
        }
    }

    /// The end of the agent's log.
    fn agent_log(&self) -> String {
        match &self.ground {
            Ground::Own(cluster) => cluster.log(AGENT_PROCESSES[0], 20),
            Ground::Given(given) => {
                let logs = ["-n", "aliquot", "logs", "daemonset/aliquot", "--tail=20"];
                given.client().kubectl(&logs, "").unwrap_or_else(|error| error.to_string())
            }
        }
    }

    /// A namespace of this scenario.
    pub(crate) fn namespace(&self, name: &str) -> Namespace<'_> {
        Namespace::create(self.client(), &format!("{}-{name}", self.name), &json!({"scenario": self.name}))
            .unwrap()
    }

    /// Waits for a condition that has no event.
    #[track_caller]
    pub(crate) fn wait_for(&self, condition: &str, mut holds: impl FnMut() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !holds() {
            assert!(
                Instant::now() < until,
                "waited {} s for {condition}\n{}",
                PATIENCE.as_secs(),
                self.agent_log()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Shows that nothing is left of any claim, and ends the agent.
    pub(crate) fn finish(mut self) {
        if self.agent.is_some() {
            self.wait_for("the agent holds no claim", || self.prepared() == Some(0));
        }
        let agent = self.agent.take();
        let Ground::Own(cluster) = &self.ground else { return };
        if let Some(Running::Process(agent)) = agent {
            let code = agent.end(cluster, Signal::SIGTERM).unwrap();
            assert_eq!(code, 0, "{}", agent.log(cluster, 20));
        }
        assert_eq!(self.files_of_claims(), Vec::<PathBuf>::new(), "CDI files and grants of released claims");
    }

    /// CDI files and grants on the node.
    pub(crate) fn files_of_claims(&self) -> Vec<PathBuf> {
        let states = self.files("aliquot").into_iter().chain([self.cluster().place().path("aliquot")]);
        let grants = states.flat_map(|state| entries(&state.join("grants")));
        self.files("run-cdi").into_iter().chain(grants).collect()
    }

    /// What a directory of the node holds.
    fn files(&self, directory: &str) -> Vec<PathBuf> {
        entries(&self.cluster().place().path(directory))
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

impl Drop for Stage {
    /// Removes what is left of the scenario, also of a failed one.
    fn drop(&mut self) {
        println!("{}: {} s", self.name, self.began.elapsed().as_secs());
        let selector = format!("scenario={}", self.name);
        let left = self.api().get(&format!("/api/v1/namespaces?labelSelector={selector}"));
        if left.is_ok_and(|left| left["items"].as_array().is_none_or(|items| !items.is_empty())) {
            let selector = format!("--selector={selector}");
            let delete = ["delete", "namespaces", &selector, "--wait=true", "--timeout=60s"];
            if let Err(error) = self.client().kubectl(&delete, "") {
                eprintln!("{error}");
            }
        }
        // An installed agent ends with its manifest.
        self.agent = None;
        let cluster = match &self.ground {
            Ground::Own(cluster) => cluster,
            Ground::Given(given) => return given.delete_slices(),
        };
        for process in AGENT_PROCESSES {
            if cluster.runs(process).unwrap_or(false) {
                // A failed scenario is the reason that it still runs; its failure is reported already.
                drop(cluster.end_process(process, Signal::SIGKILL));
            }
        }
        if let Err(error) = self.api().delete(SLICES, None) {
            eprintln!("{error}");
        }
        for directory in ["run-cdi", "aliquot"] {
            for path in self.files(directory) {
                let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                if let Err(error) = removed {
                    eprintln!("{}: {error}", path.display());
                }
            }
        }
    }
}

/// A Pod with claims: (name in the Pod, template). The image is that of the examples; the container names every claim.
pub(crate) fn pod(name: &str, claims: &[(&str, &str)]) -> Value {
    let references: Vec<Value> = claims
        .iter()
        .map(|(name, template)| json!({"name": name, "resourceClaimTemplateName": template}))
        .collect();
    let named: Vec<Value> = claims.iter().map(|(name, _)| json!({"name": name})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "dnsPolicy": "Default",
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": references,
            "containers": [{"name": "main", "image": EXAMPLE_IMAGE, "resources": {"claims": named}}],
        },
    })
}

/// A template with these requests.
pub(crate) fn template(name: &str, requests: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": requests}}},
    })
}
