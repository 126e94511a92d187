//! The components of a cluster: their command lines and configuration files.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::wire::Start;
use crate::{ClusterError, Name, Parts, Place};

/// The token of the administrator, the user of the kubeconfig.
const ADMINISTRATOR: &str = "administrator";
/// The image that holds a Pod's namespaces open.
pub(crate) const SANDBOX_IMAGE: &str = "localhost/pause:1";

/// Ports on 127.0.0.1, free when they were chosen.
#[derive(Clone, Copy, Debug)]
struct Ports {
    etcd: u16,
    etcd_peers: u16,
    api: u16,
    controllers: u16,
    scheduler: u16,
    kubelet: u16,
}

/// Command lines for one cluster.
#[derive(Clone, Debug)]
pub(crate) struct Components {
    parts: Parts,
    place: Place,
    name: Name,
    ports: Ports,
}

impl Components {
    /// Chooses ports.
    pub(crate) fn new(parts: &Parts, name: &Name) -> Result<Self, ClusterError> {
        // All are open at the same time, so that they differ.
        let listeners: Vec<TcpListener> = (0..6)
            .map(|_| TcpListener::bind("127.0.0.1:0"))
            .collect::<Result<_, _>>()
            .map_err(|error| ClusterError::failed("127.0.0.1", error))?;
        let port = |index: usize| {
            let address = listeners[index].local_addr();
            address.map(|address| address.port()).map_err(|error| ClusterError::failed("127.0.0.1", error))
        };
        let ports = Ports {
            etcd: port(0)?,
            etcd_peers: port(1)?,
            api: port(2)?,
            controllers: port(3)?,
            scheduler: port(4)?,
            kubelet: port(5)?,
        };
        Ok(Self { parts: parts.clone(), place: Place::new(name), name: name.clone(), ports })
    }

    /// Host and port of the API server.
    pub(crate) fn server(&self) -> (String, String) {
        ("127.0.0.1".to_owned(), self.ports.api.to_string())
    }

    /// Writes what the components read. The keys are there already.
    pub(crate) fn write_files(&self) -> Result<(), ClusterError> {
        let tokens = [
            format!("{ADMINISTRATOR},administrator,administrator,system:masters"),
            "controllers,system:kube-controller-manager,controllers".to_owned(),
            "scheduler,system:kube-scheduler,scheduler".to_owned(),
            format!("kubelet,system:node:{},kubelet,system:nodes", self.name),
        ];
        self.write("keys/tokens.csv", &(tokens.join("\n") + "\n"))?;
        for token in [ADMINISTRATOR, "controllers", "scheduler", "kubelet"] {
            let file = if token == ADMINISTRATOR {
                "kubeconfig".to_owned()
            } else {
                format!("config/{token}.kubeconfig")
            };
            self.write(&file, &self.kubeconfig(token).to_string())?;
        }
        self.write("config/scheduler.json", &self.scheduler_configuration().to_string())?;
        self.write("config/kubelet.json", &self.kubelet_configuration().to_string())?;
        self.write("config/containerd.toml", &self.containerd_configuration()?)?;
        let network = self.place.path("cni/net.d");
        fs::create_dir_all(&network).map_err(|error| ClusterError::file(&network, &error))?;
        self.write("cni/net.d/pods.conflist", &self.network().to_string())
    }

    fn write(&self, file: &str, content: &str) -> Result<(), ClusterError> {
        let path = self.place.path(file);
        fs::write(&path, content).map_err(|error| ClusterError::file(&path, &error))
    }

    fn kubeconfig(&self, token: &str) -> Value {
        let (host, port) = self.server();
        let server = format!("https://{host}:{port}");
        let cluster = json!({"server": server, "certificate-authority": self.place.text("keys/ca.crt")});
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "aliquot", "cluster": cluster}],
            "users": [{"name": token, "user": {"token": token}}],
            "contexts": [{"name": "aliquot", "context": {"cluster": "aliquot", "user": token}}],
            "current-context": "aliquot",
        })
    }

    fn scheduler_configuration(&self) -> Value {
        json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": false},
            // Not the limit of what is measured.
            "clientConnection": {
                "kubeconfig": self.place.text("config/scheduler.kubeconfig"), "qps": 5000.0, "burst": 5000,
            },
        })
    }

    fn kubelet_configuration(&self) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": self.ports.kubelet,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", self.place.cgroup()),
            "enforceNodeAllocatable": ["pods"],
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "failCgroupV1": false,
            "failSwapOn": false,
            "makeIPTablesUtilChains": false,
            "resolvConf": "",
            // Lowering the score takes a capability that machines in machines may lack.
            "oomScoreAdj": 0,
            "maxPods": 250,
            // How long a Pod waits after a failed preparation; a minute and more by default.
            "syncFrequency": "5s",
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "kubeAPIQPS": 500,
            "kubeAPIBurst": 500,
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        })
    }

    fn containerd_configuration(&self) -> Result<String, ClusterError> {
        let runc = self.parts.program("runc");
        let cni = Parts::cni()?;
        Ok(format!(
            r#"version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
[grpc]
address = '/run/containerd/containerd.sock'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{SANDBOX_IMAGE}'
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
enable_cdi = true
cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{cni}']
conf_dir = '/etc/cni/net.d'
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'runc'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '{runc}'
SystemdCgroup = false
"#
        ))
    }

    /// A bridge without an address: Pods have one each, and reach nothing but each other.
    fn network(&self) -> Value {
        let ranges = json!([[{"subnet": "10.88.0.0/16"}]]);
        let ipam = json!({"type": "host-local", "ranges": ranges, "dataDir": "/var/lib/cni"});
        json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [{"type": "bridge", "bridge": self.place.bridge(), "ipam": ipam}],
        })
    }

    fn start(&self, name: &str, arguments: &[(&str, String)]) -> Start {
        let flags = arguments.iter().map(|(flag, value)| format!("--{flag}={value}"));
        let argv = std::iter::once(self.parts.program(name)).chain(flags).collect();
        Start { name: name.to_owned(), argv, env: BTreeMap::new() }
    }

    /// Writes certificates and keys.
    pub(crate) fn keys(&self) -> Start {
        let argv = vec![self.parts.program("keys"), self.place.text("keys"), "localhost".to_owned()];
        Start { name: "keys".to_owned(), argv, env: BTreeMap::new() }
    }

    pub(crate) fn etcd(&self) -> Start {
        let url = |port| format!("http://127.0.0.1:{port}");
        self.start(
            "etcd",
            &[
                ("data-dir", self.place.text("etcd")),
                ("listen-client-urls", url(self.ports.etcd)),
                ("advertise-client-urls", url(self.ports.etcd)),
                ("listen-peer-urls", url(self.ports.etcd_peers)),
                ("initial-advertise-peer-urls", url(self.ports.etcd_peers)),
                ("initial-cluster", format!("default={}", url(self.ports.etcd_peers))),
                ("unsafe-no-fsync", "true".to_owned()),
                ("log-level", "warn".to_owned()),
            ],
        )
    }

    pub(crate) fn api_server(&self) -> Start {
        let key = |name: &str| self.place.text(&format!("keys/{name}"));
        self.start(
            "kube-apiserver",
            &[
                ("etcd-servers", format!("http://127.0.0.1:{}", self.ports.etcd)),
                ("bind-address", "127.0.0.1".to_owned()),
                ("advertise-address", "127.0.0.1".to_owned()),
                ("endpoint-reconciler-type", "none".to_owned()),
                ("secure-port", self.ports.api.to_string()),
                ("tls-cert-file", key("apiserver.crt")),
                ("tls-private-key-file", key("apiserver.key")),
                ("token-auth-file", key("tokens.csv")),
                ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
                ("service-account-key-file", key("serviceaccount.key")),
                ("service-account-signing-key-file", key("serviceaccount.key")),
                ("service-cluster-ip-range", "10.96.0.0/16".to_owned()),
                ("authorization-mode", "Node,RBAC".to_owned()),
                ("enable-admission-plugins", "NodeRestriction".to_owned()),
                ("kubelet-preferred-address-types", "Hostname".to_owned()),
                ("allow-privileged", "true".to_owned()),
                ("max-requests-inflight", "3000".to_owned()),
                ("max-mutating-requests-inflight", "1000".to_owned()),
            ],
        )
    }

    pub(crate) fn controllers(&self) -> Start {
        self.start(
            "kube-controller-manager",
            &[
                ("kubeconfig", self.place.text("config/controllers.kubeconfig")),
                ("bind-address", "127.0.0.1".to_owned()),
                ("secure-port", self.ports.controllers.to_string()),
                ("cert-dir", self.place.text("keys/controllers")),
                ("leader-elect", "false".to_owned()),
                ("use-service-account-credentials", "true".to_owned()),
                ("service-account-private-key-file", self.place.text("keys/serviceaccount.key")),
                ("root-ca-file", self.place.text("keys/ca.crt")),
                // Nodes without a kubelet stay ready for a whole test.
                ("node-monitor-grace-period", "24h".to_owned()),
                ("kube-api-qps", "2000".to_owned()),
                ("kube-api-burst", "2000".to_owned()),
            ],
        )
    }

    pub(crate) fn scheduler(&self) -> Start {
        self.start(
            "kube-scheduler",
            &[
                ("config", self.place.text("config/scheduler.json")),
                ("bind-address", "127.0.0.1".to_owned()),
                ("secure-port", self.ports.scheduler.to_string()),
                ("cert-dir", self.place.text("keys/scheduler")),
            ],
        )
    }

    pub(crate) fn containerd(&self) -> Start {
        let mut start = self.start("containerd", &[("config", self.place.text("config/containerd.toml"))]);
        let path = std::env::var("PATH").unwrap_or_default();
        start.env.insert("PATH".to_owned(), format!("{}:{path}", self.parts.directory().display()));
        start
    }

    pub(crate) fn kubelet(&self) -> Start {
        self.start(
            "kubelet",
            &[
                ("config", self.place.text("config/kubelet.json")),
                ("kubeconfig", self.place.text("config/kubelet.kubeconfig")),
                ("hostname-override", self.name.to_string()),
                ("root-dir", "/var/lib/kubelet".to_owned()),
                ("cert-dir", self.place.text("keys/kubelet")),
                ("node-labels", "aliquot.dev/test=true".to_owned()),
            ],
        )
    }

    /// The path of kubectl.
    pub(crate) fn kubectl(&self) -> String {
        self.parts.program("kubectl")
    }

    /// The command line of `ctr` in the kubelet's namespace of images and containers.
    pub(crate) fn ctr(&self, arguments: &[&str]) -> Start {
        let fixed = ["--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io"];
        let argv = std::iter::once(self.parts.program("ctr"))
            .chain(fixed.iter().chain(arguments).map(|text| (*text).to_owned()))
            .collect();
        Start { name: "ctr".to_owned(), argv, env: BTreeMap::new() }
    }
}
