//! `aliquot_cluster`: a Kubernetes cluster by hand, and the two processes around every cluster.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{fs, thread};

use aliquot_cluster::{
    Cluster, ClusterError, EXAMPLE_IMAGE, Image, Name, Options, Parts, Place, Scope, start_agent,
};
use clap::{Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

/// How long `up` and `down` wait: many times what they take, but for the first build.
const PATIENCE: Duration = Duration::from_secs(40 * 60);

/// A real Kubernetes cluster as plain processes on 127.0.0.1
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start a cluster in the background and print its kubeconfig
    Up(Up),
    /// Start a cluster with an agent, and show Pods with parts of cards
    Demo(Up),
    /// Take a cluster down
    Down {
        /// The cluster
        #[arg(default_value = "demo")]
        name: Name,
    },
    /// Start a cluster and keep it until SIGTERM
    Serve(Up),
    /// Write the images of agent and Pods for a cluster that runs elsewhere: aliquot.tar, tenant.tar
    Images {
        /// The program `aliquot`
        #[arg(long, value_name = "ALIQUOT", default_value = "target/debug/aliquot")]
        agent: PathBuf,
        /// Where the archives are written
        directory: PathBuf,
    },
    /// Run a command on the node of a cluster, with the cluster's directories
    Enter {
        /// The cluster
        name: Name,
        /// The command
        #[arg(trailing_var_arg = true, required = true)]
        command: Vec<String>,
    },
    /// Keep the namespaces of a cluster until the end of the input
    #[command(hide = true)]
    Hold {
        /// The cluster
        name: Name,
    },
    /// Be the first process of the namespaces
    #[command(hide = true)]
    Init {
        /// The cluster
        name: Name,
    },
}

#[derive(clap::Args)]
struct Up {
    /// The cluster, and its node
    #[arg(default_value = "demo")]
    name: Name,
    /// Start no node: neither containerd nor kubelet
    #[arg(long)]
    control_plane: bool,
    /// Start this program as the node's agent, on simulated cards, with the classes and the image of deploy/examples
    #[arg(long, value_name = "ALIQUOT", conflicts_with = "control_plane")]
    agent: Option<PathBuf>,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Verb::Up(up) => start(&up),
        Verb::Demo(up) => demo(&up),
        Verb::Down { name } => stop(&name),
        Verb::Serve(up) => serve(&up),
        Verb::Images { agent, directory } => write_images(&agent, &directory),
        Verb::Enter { name, command } => return enter(&name, &command),
        Verb::Hold { name } => program().and_then(|program| aliquot_cluster::hold(&program, &name)),
        Verb::Init { name } => aliquot_cluster::serve_namespace(&name),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn program() -> Result<PathBuf, ClusterError> {
    std::env::current_exe().map_err(|error| ClusterError::Missing(error.to_string()))
}

#[expect(clippy::needless_pass_by_value, reason = "texts and errors are passed alike")]
fn failed(object: &str, message: impl ToString) -> ClusterError {
    ClusterError::Failed { object: object.to_owned(), message: message.to_string() }
}

/// The images that the committed manifest and `deploy/examples` name, as archives.
fn write_images(agent: &Path, directory: &Path) -> Result<(), ClusterError> {
    fs::create_dir_all(directory).map_err(|error| failed(&directory.display().to_string(), error))?;
    let images = [
        ("aliquot.tar", Image::agent(agent, directory)?),
        ("tenant.tar", Image::tenant(EXAMPLE_IMAGE, agent)?),
    ];
    for (file, image) in images {
        let path = directory.join(file);
        image.write(&path)?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Starts `serve` in a session of its own and waits until it is ready.
fn start(up: &Up) -> Result<(), ClusterError> {
    let place = Place::new(&up.name);
    let ready = place.path("ready");
    let directory = place.path("");
    fs::create_dir_all(&directory).map_err(|error| failed(&directory.display().to_string(), error))?;
    if ready.exists() && serving(&place).is_some() {
        return Err(failed(&format!("cluster {}", up.name), "found it running; take it down first"));
    }
    // Beside the cluster's directory, which is emptied at the start.
    let log = serve_log(&place);
    let file = fs::File::create(&log).map_err(|error| failed(&log.display().to_string(), error))?;
    let errors = file.try_clone().map_err(|error| failed("log", error))?;
    let mut command = std::process::Command::new("setsid");
    command.arg(program()?).args(["serve", &up.name.to_string()]);
    if up.control_plane {
        command.arg("--control-plane");
    }
    if let Some(agent) = &up.agent {
        command.arg("--agent").arg(agent);
    }
    command.stdin(std::process::Stdio::null()).stdout(file).stderr(errors);
    let mut child = command.spawn().map_err(|error| failed("setsid", error))?;
    let until = Instant::now() + PATIENCE;
    while !ready.exists() || serving(&place).is_none() {
        let ended = child.try_wait().map_err(|error| failed("serve", error))?;
        if ended.is_some() || Instant::now() > until {
            return Err(failed("cluster", fs::read_to_string(&log).unwrap_or_default()));
        }
        thread::sleep(Duration::from_millis(50));
    }
    println!("{}", place.kubeconfig().display());
    Ok(())
}

/// Starts a cluster with an agent and shows the demo's Pods. One that fails is taken down.
fn demo(up: &Up) -> Result<(), ClusterError> {
    println!("Starting Kubernetes on this machine; the first time builds it, which takes some minutes.");
    let parts = Parts::find()?;
    start(up)?;
    aliquot_cluster::show(&Place::new(&up.name), &parts).inspect_err(|_| {
        if let Err(error) = stop(&up.name) {
            eprintln!("{error}");
        }
    })
}

/// The process that serves a cluster.
fn serving(place: &Place) -> Option<Pid> {
    let pid = Pid::from_raw(fs::read_to_string(place.path("ready")).ok()?.trim().parse().ok()?);
    kill(pid, None).ok().map(|()| pid)
}

fn serve(up: &Up) -> Result<(), ClusterError> {
    // Blocked before the first thread is made, so that the signal waits for `wait` below.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().map_err(|error| failed("signals", error))?;
    let scope = if up.control_plane { Scope::ControlPlane } else { Scope::Node };
    let cluster = Cluster::start(&Options { name: up.name.clone(), scope, program: program()? })?;
    let _agent = up.agent.as_deref().map(|agent| start_agent(&cluster, agent)).transpose()?;
    let ready = cluster.place().path("ready");
    fs::write(&ready, std::process::id().to_string()).map_err(|error| failed("ready", error))?;
    signals.wait().map_err(|error| failed("signals", error))?;
    Ok(())
}

fn stop(name: &Name) -> Result<(), ClusterError> {
    let place = Place::new(name);
    if let Some(pid) = serving(&place) {
        kill(pid, Signal::SIGTERM).map_err(|error| failed("serve", error))?;
        let until = Instant::now() + Duration::from_secs(60);
        while kill(pid, None).is_ok() && Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
        }
    }
    drop(fs::remove_file(serve_log(&place)));
    place.sweep()
}

/// What the serving process says.
fn serve_log(place: &Place) -> PathBuf {
    place.path("").with_extension("log")
}

/// Runs a command in the namespaces of init; the place keeps its process ID.
fn enter(name: &Name, command: &[String]) -> ExitCode {
    let place = Place::new(name);
    let init = fs::read_to_string(place.path("init.pid")).unwrap_or_default();
    let status = std::process::Command::new("nsenter")
        .args(["--target", init.trim(), "--mount", "--pid", "--"])
        .args(command)
        .env("KUBECONFIG", place.kubeconfig())
        .status();
    match status {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(error) => {
            eprintln!("nsenter: {error}");
            ExitCode::FAILURE
        }
    }
}
