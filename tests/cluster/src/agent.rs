//! The node agent on the node of a cluster, over simulated cards or those of the machine.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::{Cluster, ClusterError, Start};

/// How long an agent may take to be ready; many times what it takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Names of the agent's process and log: during an update two run.
pub const AGENT_PROCESSES: [&str; 2] = ["agent", "agent-next"];
/// Answers that are longer are no answers of an agent.
const ANSWER_MAX: u64 = 16 << 20;

/// An agent to start.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The program `aliquot`.
    pub program: PathBuf,
    /// Simulated node: built-in name or node file. `None`: the cards of this machine.
    pub node: Option<String>,
    /// Layout policy.
    pub policy: Option<PathBuf>,
    /// Its state directory, below `/var/lib/aliquot` of the node.
    pub state: String,
}

/// A running agent: where it answers.
#[derive(Clone, Debug)]
pub struct Agent {
    options: AgentOptions,
    /// Of each process.
    ports: [u16; 2],
    /// Which process of [`AGENT_PROCESSES`] it is.
    process: usize,
}

impl Agent {
    /// Starts an agent on the node and waits until it is registered and its slices are published.
    ///
    /// # Errors
    /// It ends or is not ready in time; the message has the end of its log.
    pub fn start(cluster: &Cluster, options: AgentOptions) -> Result<Self, ClusterError> {
        let agent = Self { options, ports: free_ports()?, process: 0 };
        agent.start_again(cluster)?;
        agent.wait_until_ready(cluster)?;
        Ok(agent)
    }

    /// Starts the agent with the same options, after it ended, and does not wait.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start_again(&self, cluster: &Cluster) -> Result<(), ClusterError> {
        let mut argv = vec![self.options.program.display().to_string(), "plugin".to_owned()];
        let mut flag = |name: &str, value: String| argv.extend([format!("--{name}"), value]);
        flag("node-name", cluster.node());
        if let Some(node) = &self.options.node {
            flag("node", node.clone());
        }
        flag("kubeconfig", cluster.place().kubeconfig().display().to_string());
        flag("state", self.state());
        // As in a DaemonSet: agents that run beside each other have sockets of different names.
        flag("pod-uid", self.name().to_owned());
        flag("metrics-address", format!("{}:{}", Ipv4Addr::LOCALHOST, self.ports[self.process]));
        if let Some(policy) = &self.options.policy {
            flag("policy", policy.display().to_string());
        }
        cluster.start_process(Start { name: self.name().to_owned(), argv, ..Start::default() })
    }

    /// Waits until the agent is registered with the kubelet and its slices are published.
    ///
    /// # Errors
    /// It ends or is not ready in time; the message has the end of its log.
    pub fn wait_until_ready(&self, cluster: &Cluster) -> Result<(), ClusterError> {
        self.wait_until_probe(cluster, "slices: in sync")
    }

    /// Replaces the agent by another program, as a rolling update does: both run until the new one is ready, and the new
    /// one is returned. The next update brings a program back under the first process name.
    ///
    /// # Errors
    /// One of them does not start or end as it should; the message has the end of its log.
    pub fn update(&self, cluster: &Cluster, program: &Path) -> Result<Self, ClusterError> {
        let options = AgentOptions { program: program.to_owned(), ..self.options.clone() };
        let next = Self { options, ports: self.ports, process: 1 - self.process };
        next.start_again(cluster)?;
        next.wait_until_probe(cluster, "calls wait")?;
        let code = self.end(cluster, Signal::SIGTERM)?;
        if code != 0 {
            let message = format!("found exit code {code}, expected 0\n{}", self.log(cluster, 20));
            return Err(ClusterError::failed(self.name(), message));
        }
        next.wait_until_ready(cluster)?;
        Ok(next)
    }

    /// The name of its process.
    fn name(&self) -> &'static str {
        AGENT_PROCESSES[self.process]
    }

    /// Waits until the agent is ready and its probe has these words.
    fn wait_until_probe(&self, cluster: &Cluster, words: &str) -> Result<(), ClusterError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let said = self.read("/readyz").unwrap_or_else(|error| error);
            if said.starts_with("HTTP/1.1 200") && said.contains(words) {
                return Ok(());
            }
            if Instant::now() > until || !cluster.runs(self.name())? {
                let log = self.log(cluster, 20);
                return Err(ClusterError::failed(self.name(), format!("not ready: {}\n{log}", said.trim())));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the agent and returns its exit code.
    ///
    /// # Errors
    /// It does not end.
    pub fn end(&self, cluster: &Cluster, signal: Signal) -> Result<i32, ClusterError> {
        cluster.end_process(self.name(), signal)
    }

    /// The value of a metric that has one sample, a whole number.
    ///
    /// # Errors
    /// The agent does not answer, or has no such metric.
    pub fn metric(&self, name: &str) -> Result<u64, ClusterError> {
        let text = self.metrics()?;
        let found = sample(&text, name);
        found.ok_or_else(|| {
            ClusterError::failed(self.name(), format!("metric {name}: found no sample, expected one"))
        })
    }

    /// All metrics, as text.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn metrics(&self) -> Result<String, ClusterError> {
        self.read("/metrics").map_err(|error| ClusterError::failed(self.name(), error))
    }

    /// The state directory, as the node sees it.
    #[must_use]
    pub fn state(&self) -> String {
        format!("/var/lib/aliquot/{}", self.options.state)
    }

    /// The end of its log.
    #[must_use]
    pub fn log(&self, cluster: &Cluster, lines: usize) -> String {
        cluster.log(self.name(), lines)
    }

    /// An HTTP answer with its head. The cluster has the machine's network.
    fn read(&self, path: &str) -> Result<String, String> {
        let answered = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[self.process]))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.take(ANSWER_MAX).read_to_string(&mut text)?;
            Ok(text)
        };
        answered().map_err(|error| format!("{path}: {error}"))
    }
}

/// Ports on 127.0.0.1 that are free now.
fn free_ports() -> Result<[u16; 2], ClusterError> {
    let failed = |error| ClusterError::failed("127.0.0.1", error);
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed);
    // Both are open at the same time, so that they differ.
    let (one, other) = (listen()?, listen()?);
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port()).map_err(failed);
    Ok([port(&one)?, port(&other)?])
}

/// The first whole number of a metric in a text of metrics, whatever its labels.
#[must_use]
pub fn sample(text: &str, name: &str) -> Option<u64> {
    let samples = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(['{', ' ']));
    samples.filter_map(|sample| sample.rsplit(' ').next()?.trim().parse().ok()).next()
}
