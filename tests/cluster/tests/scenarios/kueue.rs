//! Kueue as a plain process beside the cluster's components.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;

use aliquot_cluster::{Parts, Start};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Stage};

pub(crate) const QUEUES: &str = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues";
pub(crate) const WORKLOADS: &str = "/apis/kueue.x-k8s.io/v1beta2";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const PROCESS: &str = "kueue";
/// Its metrics' certificate lies below `/etc` without a choice; it needs nothing else there.
const LAID: &str = "mount -t tmpfs kueue /etc && mkdir -p /etc/kueue/metrics/certs && \
    cp \"$1/apiserver.crt\" /etc/kueue/metrics/certs/tls.crt && cp \"$1/apiserver.key\" /etc/kueue/metrics/certs/tls.key && \
    exec \"$0\" --kubeconfig=\"$2\" --config=\"$3\"";

/// A running Kueue.
pub(crate) struct Kueue<'a> {
    stage: &'a Stage,
}

impl<'a> Kueue<'a> {
    /// Starts it with a configuration as users write it. Its admission webhooks are not called.
    pub(crate) fn start(stage: &'a Stage, configuration: &str) -> Self {
        let (cluster, client) = (stage.cluster(), stage.client());
        let parts = Parts::find_kueue().unwrap();
        let definitions = fs::read_to_string(parts.directory().join("definitions.yaml")).unwrap();
        client.kubectl(&["apply", "--server-side", "-f", "-"], &definitions).unwrap();
        let established = |definition: &Value| {
            let conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["type"] == json!("Established") && one["status"] == json!("True"))
        };
        let all = |found: &BTreeMap<String, Value>| found.values().all(established).then_some(());
        stage.api().wait(DEFINITIONS, "Kueue's resources are served", PATIENCE, all).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // Nothing that another process of this machine may use, and one replica.
        let configuration =
            configuration.replace("featureGates:\n", "featureGates:\n  VisibilityOnDemand: false\n");
        let configuration = format!(
            "{configuration}health: {{healthProbeBindAddress: '0'}}\nmetrics: {{bindAddress: '0'}}\n\
             webhook: {{host: 127.0.0.1, port: {port}, certDir: /etc/kueue/metrics/certs}}\n\
             leaderElection: {{leaderElect: false}}\ninternalCertManagement: {{enable: false}}\n"
        );
        let place = cluster.place();
        fs::write(place.path("config/kueue.yaml"), configuration).unwrap();
        let (program, keys) = (parts.program("kueue"), place.text("keys"));
        let (kubeconfig, file) = (place.kubeconfig().display().to_string(), place.text("config/kueue.yaml"));
        let words = [
            "unshare",
            "--mount",
            "--propagation=private",
            "sh",
            "-c",
            LAID,
            &program,
            &keys,
            &kubeconfig,
            &file,
        ];
        let argv = words.map(str::to_owned).to_vec();
        cluster.start_process(Start { name: PROCESS.to_owned(), argv, ..Start::default() }).unwrap();
        Self { stage }
    }

    /// The end of its log.
    pub(crate) fn log(&self) -> String {
        self.stage.cluster().log(PROCESS, 30)
    }

    /// Removes its resources and ends it.
    pub(crate) fn end(self) {
        for kind in ["clusterqueues", "resourceflavors"] {
            self.stage
                .client()
                .kubectl(&["delete", kind, "--all", "--wait=true", "--timeout=60s"], "")
                .unwrap();
        }
        self.stage.cluster().end_process(PROCESS, Signal::SIGTERM).unwrap();
    }
}

impl Drop for Kueue<'_> {
    /// After a failed scenario.
    fn drop(&mut self) {
        let cluster = self.stage.cluster();
        if cluster.runs(PROCESS).unwrap_or(false) {
            eprintln!("{}", self.log());
            drop(cluster.end_process(PROCESS, Signal::SIGKILL));
        }
    }
}
