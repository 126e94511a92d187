//! What acts on a cluster from outside: requests to its API server, kubectl, and commands with the cluster's kubeconfig.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use crate::captured::Captured;
use crate::wire::Output;
use crate::{Api, ClusterError};

/// How long kubectl may take; many times what it takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster with the rights of a kubeconfig.
#[derive(Clone, Debug)]
pub struct Client {
    api: Api,
    kubeconfig: PathBuf,
    kubectl: String,
}

impl Client {
    /// Connects; `kubectl` is a path, or a name in `PATH`. Nothing is sent yet.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub fn connect(kubeconfig: &Path, kubectl: &str) -> Result<Self, ClusterError> {
        let api = Api::connect(kubeconfig)?;
        Ok(Self { api, kubeconfig: kubeconfig.to_owned(), kubectl: kubectl.to_owned() })
    }

    /// The API server.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The file with address and rights.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Path or name of kubectl.
    #[must_use]
    pub fn kubectl_program(&self) -> &str {
        &self.kubectl
    }

    /// Runs kubectl; `input` is for `-f -`.
    ///
    /// # Errors
    /// It ends with an exit code other than 0.
    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, ClusterError> {
        let output = self.kubectl_output(arguments, input)?;
        output.expect_success(&format!("kubectl {}", arguments.join(" ")))?;
        Ok(output.out)
    }

    /// Runs kubectl; its exit code is part of the output.
    ///
    /// # Errors
    /// It cannot be run or does not end.
    pub fn kubectl_output(&self, arguments: &[&str], input: &str) -> Result<Output, ClusterError> {
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig.display());
        let words: Vec<&str> =
            [self.kubectl.as_str(), &kubeconfig].into_iter().chain(arguments.iter().copied()).collect();
        self.run(&words, input, PATIENCE)
    }

    /// Runs a command on this machine to its end, with the cluster's kubeconfig in its environment.
    ///
    /// # Errors
    /// It cannot be run or does not end within `patience`. An exit code is part of the output.
    pub fn run(&self, argv: &[&str], input: &str, patience: Duration) -> Result<Output, ClusterError> {
        let Some((program, arguments)) = argv.split_first() else {
            return Err(ClusterError::failed("argv", "found nothing, expected a program"));
        };
        let failed = |error: std::io::Error| ClusterError::failed(*program, error);
        let captured = Captured::with_input(input).map_err(failed)?;
        let [given, out, err] = captured.streams().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig).stdin(given).stdout(out).stderr(err);
        let mut child = command.spawn().map_err(failed)?;
        let status = ended(&mut child, patience).map_err(failed)?.ok_or_else(|| {
            let message = format!("found it running after {} s, expected its end", patience.as_secs());
            ClusterError::failed(*program, message)
        })?;
        Ok(captured.output(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))))
    }
}

/// Waits for a child; one that does not end in time is killed.
fn ended(child: &mut Child, patience: Duration) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + patience;
    // A few milliseconds are little beside the start of a program.
    let pause = Duration::from_millis(5);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(pause);
    }
}
