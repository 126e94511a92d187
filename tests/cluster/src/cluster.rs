//! A running cluster, from outside its namespaces.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::components::{Components, SANDBOX_IMAGE};
use crate::wire::{Answer, Numbered, Output, Request, Start};
use crate::{Api, Client, ClusterError, Image, Name, Parts, Place};

/// How long a component may take to start or end; many times what it takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// How much of a cluster to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// etcd, API server, controllers and scheduler; nodes are objects without a kubelet.
    ControlPlane,
    /// These, containerd and a kubelet; the node has the cluster's name.
    Node,
}

/// A cluster to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name; one cluster of a name runs at a time.
    pub name: Name,
    /// Its extent.
    pub scope: Scope,
    /// The program with the `hold` and `init` commands: `aliquot_cluster`.
    pub program: PathBuf,
}

/// A running cluster; it is taken down when this is dropped or when the process ends, however it ends.
#[derive(Debug)]
pub struct Cluster {
    place: Place,
    name: Name,
    components: Components,
    client: Client,
    line: Line,
}

impl Cluster {
    /// Starts a cluster and waits until it is ready.
    ///
    /// # Errors
    /// [`ClusterError::Missing`] on a machine that cannot run one, [`ClusterError::Failed`] for a component that fails.
    pub fn start(options: &Options) -> Result<Self, ClusterError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(ClusterError::Missing("found an ordinary user, expected root".to_owned()));
        }
        let parts = Parts::find()?;
        let place = Place::new(&options.name);
        let line = Line::open(options)?;
        let components = Components::new(&parts, &options.name)?;
        line.run(components.keys(), "", PATIENCE)?.expect_success("keys")?;
        components.write_files()?;
        line.start(components.etcd())?;
        line.start(components.api_server())?;
        if options.scope == Scope::Node {
            line.start(components.containerd())?;
        }
        let client = Client::connect(&place.kubeconfig(), &components.kubectl())?;
        let cluster = Self { place, name: options.name.clone(), components, client, line };
        cluster.wait_for_api()?;
        cluster.line.start(cluster.components.controllers())?;
        cluster.line.start(cluster.components.scheduler())?;
        if options.scope == Scope::Node {
            cluster.line.start(cluster.components.kubelet())?;
            cluster.import(&Image::busybox(SANDBOX_IMAGE, &["sleep", "infinity"])?)?;
            cluster.wait_for_node()?;
        }
        cluster.wait_for_account()?;
        Ok(cluster)
    }

    /// API server and kubectl, with all rights.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The API server, with all rights.
    #[must_use]
    pub fn api(&self) -> &Api {
        self.client.api()
    }

    /// The files of the cluster.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The name of the node with a kubelet.
    #[must_use]
    pub fn node(&self) -> String {
        self.name.to_string()
    }

    /// Host and port of the API server.
    #[must_use]
    pub fn server(&self) -> (String, String) {
        self.components.server()
    }

    /// Starts a process on the node: inside the namespaces, with the cluster's directories.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start_process(&self, start: Start) -> Result<(), ClusterError> {
        self.line.start(start)
    }

    /// Sends a signal to a process on the node and returns its exit code when it has ended.
    ///
    /// # Errors
    /// There is no such process, or it does not end.
    pub fn end_process(&self, name: &str, signal: Signal) -> Result<i32, ClusterError> {
        self.line.end(name, signal)
    }

    /// Whether a process that was started on the node still runs.
    ///
    /// # Errors
    /// Init does not answer.
    pub fn runs(&self, name: &str) -> Result<bool, ClusterError> {
        match self.line.ask(Request::Runs(name.to_owned()), PATIENCE)? {
            Answer::Runs(runs) => Ok(runs),
            other => Err(unexpected(name, &other)),
        }
    }

    /// Starts a component again that was ended: `kubelet`, `containerd`, `kube-apiserver`, `kube-scheduler`.
    ///
    /// # Errors
    /// There is no component of that name, or it does not start.
    pub fn start_component(&self, name: &str) -> Result<(), ClusterError> {
        let all = [
            self.components.etcd(),
            self.components.api_server(),
            self.components.controllers(),
            self.components.scheduler(),
            self.components.containerd(),
            self.components.kubelet(),
        ];
        let start = all.into_iter().find(|start| start.name == name);
        let missing = || {
            ClusterError::failed(name, "found no component of that name, expected etcd, kubelet or the like")
        };
        self.line.start(start.ok_or_else(missing)?)?;
        if name == "kube-apiserver" {
            self.wait_for_api()?;
        }
        Ok(())
    }

    /// Runs a command on the node to its end.
    ///
    /// # Errors
    /// The command cannot be run or does not end within `patience`. An exit code is part of the output.
    pub fn run(&self, argv: &[&str], input: &str, patience: Duration) -> Result<Output, ClusterError> {
        let argv = argv.iter().map(|text| (*text).to_owned()).collect();
        self.line.run(Start { name: "command".to_owned(), argv, ..Start::default() }, input, patience)
    }

    /// Makes an image known to the node.
    ///
    /// # Errors
    /// containerd does not answer or refuses the archive.
    pub fn import(&self, image: &Image) -> Result<(), ClusterError> {
        let archive = self.place.path("image.tar");
        image.write(&archive)?;
        let until = Instant::now() + PATIENCE;
        let file = archive.display().to_string();
        loop {
            let import = self.components.ctr(&["images", "import", &file]);
            let output = self.line.run(import, "", PATIENCE)?;
            // containerd makes its socket some time after it has started, and listens a little later.
            let not_yet = ["no such file", "connection refused"].iter().any(|word| output.err.contains(word));
            if output.code != 0 && !self.runs("containerd")? {
                return Err(ClusterError::failed(
                    "containerd",
                    format!("it has ended: {}", self.log("containerd", 5)),
                ));
            }
            if output.code != 0 && not_yet && Instant::now() < until {
                thread::sleep(Duration::from_millis(100));
                continue;
            }
            return output.expect_success("ctr images import");
        }
    }

    /// Ends all containers on the node, as a reboot does.
    ///
    /// # Errors
    /// containerd does not answer.
    pub fn end_containers(&self) -> Result<(), ClusterError> {
        let tasks = self.line.run(self.components.ctr(&["tasks", "list", "--quiet"]), "", PATIENCE)?;
        tasks.expect_success("ctr tasks list")?;
        for task in tasks.out.lines() {
            let kill = self.line.run(
                self.components.ctr(&["tasks", "kill", "--signal=KILL", task]),
                "",
                PATIENCE,
            )?;
            kill.expect_success("ctr tasks kill")?;
        }
        Ok(())
    }

    /// The end of the log of a component or process.
    #[must_use]
    pub fn log(&self, name: &str, lines: usize) -> String {
        let text = std::fs::read_to_string(self.place.path(&format!("logs/{name}.log"))).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    fn wait_for_api(&self) -> Result<(), ClusterError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.api().text("/readyz") {
                Ok(_) => return Ok(()),
                Err(_) if Instant::now() < until && self.runs("kube-apiserver")? => {
                    thread::sleep(Duration::from_millis(50));
                }
                Err(error) => {
                    let message = format!("{error}\n{}", self.log("kube-apiserver", 20));
                    return Err(ClusterError::failed("kube-apiserver", message));
                }
            }
        }
    }

    fn wait_for_node(&self) -> Result<(), ClusterError> {
        let name = self.node();
        let ready =
            self.api().wait("/api/v1/nodes", "the node is ready and without taints", PATIENCE, |nodes| {
                let node = nodes.get(&name)?;
                let conditions = node["status"]["conditions"].as_array()?;
                let ready =
                    conditions.iter().any(|c| c["type"] == json!("Ready") && c["status"] == json!("True"));
                (ready && node["spec"]["taints"].is_null()).then_some(())
            });
        ready
            .map_err(|error| ClusterError::failed("kubelet", format!("{error}\n{}", self.log("kubelet", 20))))
    }

    /// Pods are refused until their namespace has an account.
    fn wait_for_account(&self) -> Result<(), ClusterError> {
        let path = "/api/v1/namespaces/default/serviceaccounts";
        let there = |accounts: &std::collections::BTreeMap<String, Value>| {
            accounts.contains_key("default/default").then_some(())
        };
        Ok(self.api().wait(path, "the default account exists", PATIENCE, there)?)
    }
}

fn unexpected(name: &str, answer: &Answer) -> ClusterError {
    match answer {
        Answer::Failed(message) => ClusterError::failed(name, message),
        other => ClusterError::failed(name, format!("init answered {other:?}")),
    }
}

/// The pipes to init.
#[derive(Debug)]
struct Line {
    child: Child,
    input: Mutex<Option<ChildStdin>>,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    asked: u64,
    answers: HashMap<u64, Sender<Answer>>,
}

impl Line {
    fn open(options: &Options) -> Result<Self, ClusterError> {
        let mut child = Command::new(&options.program)
            .args(["hold", &options.name.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // An interrupt at the terminal reaches this process alone, and the place is still swept.
            .process_group(0)
            .spawn()
            .map_err(|error| ClusterError::file(&options.program, &error))?;
        let input = Mutex::new(child.stdin.take());
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        if let Some(out) = child.stdout.take() {
            let waiting = Arc::clone(&waiting);
            thread::spawn(move || deliver(out, &waiting));
        }
        Ok(Self { child, input, waiting })
    }

    fn ask(&self, request: Request, patience: Duration) -> Result<Answer, ClusterError> {
        let answer = self.post(request)?;
        // A little more than init itself has, so that its own message arrives.
        answer.recv_timeout(patience + Duration::from_secs(5)).map_err(|_| {
            ClusterError::failed(
                "init",
                "found no answer, expected one; the cluster has ended or is overloaded",
            )
        })
    }

    fn post(&self, request: Request) -> Result<Receiver<Answer>, ClusterError> {
        let (sender, receiver) = channel();
        let id = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.asked += 1;
            let id = waiting.asked;
            waiting.answers.insert(id, sender);
            id
        };
        let line = serde_json::to_string(&Numbered { id, body: request })
            .map_err(|error| ClusterError::failed("init", error))?;
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        let pipe = input.as_mut().ok_or_else(|| ClusterError::failed("init", "the pipe is closed"))?;
        writeln!(pipe, "{line}").map_err(|error| ClusterError::failed("init", error))?;
        Ok(receiver)
    }

    fn start(&self, start: Start) -> Result<(), ClusterError> {
        let name = start.name.clone();
        match self.ask(Request::Start(start), PATIENCE)? {
            Answer::Started(_) => Ok(()),
            other => Err(unexpected(&name, &other)),
        }
    }

    fn end(&self, name: &str, signal: Signal) -> Result<i32, ClusterError> {
        let patience_ms = u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX);
        let request = Request::End { name: name.to_owned(), signal: signal as i32, patience_ms };
        match self.ask(request, PATIENCE)? {
            Answer::Ended(code) => Ok(code),
            other => Err(unexpected(name, &other)),
        }
    }

    fn run(&self, start: Start, input: &str, patience: Duration) -> Result<Output, ClusterError> {
        let name = start.name.clone();
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        match self.ask(Request::Run { start, input: input.to_owned(), patience_ms }, patience)? {
            Answer::Ran(output) => Ok(output),
            other => Err(unexpected(&name, &other)),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // The end of the pipe ends init, and with it everything in its namespaces.
        drop(self.input.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Err(error) = self.child.wait() {
            eprintln!("cluster: {error}");
        }
    }
}

/// Passes answers on until the pipe ends; after that no request gets one.
fn deliver(out: ChildStdout, waiting: &Mutex<Waiting>) {
    for line in BufReader::new(out).lines() {
        let Ok(line) = line else { break };
        let Ok(Numbered { id, body }) = serde_json::from_str::<Numbered<Answer>>(&line) else { continue };
        let sender = waiting.lock().unwrap_or_else(PoisonError::into_inner).answers.remove(&id);
        // A request past its deadline has no receiver.
        let _late = sender.map(|sender| sender.send(body));
    }
    waiting.lock().unwrap_or_else(PoisonError::into_inner).answers.clear();
}
