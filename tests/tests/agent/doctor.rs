//! `aliquot doctor` on nodes that are made for it: a healthy one, and one for each pain of a first installation.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_core::offer::ServerVersion;
use aliquot_driver::agent::card_figures::CardFigures;
use aliquot_driver::agent::metrics::{Metrics, NodeReadings};
use aliquot_driver::agent::store::NodeStore as _;
use aliquot_driver::ports::Publication;
use aliquot_driver::selinux::{FileLabels as _, LABEL, XattrLabels};
use aliquot_tests::command_line::{Ran, ran};
use aliquot_tests::fake_apiserver::{FakeApiServer, Gate, Gates};
use aliquot_tests::local::{aliquot, copy_program, opened_to_everybody};
use aliquot_tests::node::World;
use aliquot_tests::running_agent::store;
use serde_json::{Value, json};

/// A node's file system, the cluster around it, and the agent's metrics.
struct Patient {
    root: tempfile::TempDir,
    server: FakeApiServer,
    metrics: SocketAddr,
    /// What the command is told beside the root.
    arguments: Vec<String>,
    /// The agent's registration socket, listening.
    _agent: UnixListener,
}

impl Patient {
    /// A node on which nothing is wrong.
    fn healthy() -> Self {
        let root = tempfile::Builder::new().prefix("d").tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for dir in [
            "var/lib/kubelet/plugins_registry",
            "var/lib/kubelet/plugins/aliquot.dev",
            "var/lib/kubelet/device-plugins",
            "var/lib/aliquot/grants",
            "etc/containerd",
            "run/cdi",
            "dev",
        ] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        symlink("/run", at("var/run")).unwrap();
        fs::write(at("etc/containerd/config.toml"), "version = 3\n").unwrap();
        fs::write(at("var/lib/kubelet/device-plugins/kubelet.sock"), "").unwrap();
        let socket = at("var/lib/kubelet/plugins_registry/aliquot.dev@reg.sock");
        let agent = UnixListener::bind(socket).unwrap();
        let server = FakeApiServer::start();
        publish(&server);
        node(&server, "v1.36.3", "containerd://2.1.4");
        let metrics = serve(own_metrics());
        let arguments = vec!["--node".to_owned(), "mixed".to_owned()];
        Self { root, server, metrics, arguments, _agent: agent }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// The command's answer, by check: verdict, and what was found with the remedy.
    fn examine(&self) -> (u8, Vec<(String, String, String)>) {
        let text = |word: &str| word.to_owned();
        let mut words = vec![text("aliquot"), text("doctor"), text("-o"), text("json")];
        words.extend([text("--host-root"), self.root.path().display().to_string()]);
        words.extend([text("--node-name"), text("n1")]);
        words.extend([text("--kubeconfig"), self.server.kubeconfig().display().to_string()]);
        words.extend([text("--metrics-address"), self.metrics.to_string()]);
        words.extend(self.arguments.iter().cloned());
        let Ran { code, out, err } = ran(words.into_iter().map(OsString::from));
        assert!(err.is_empty(), "{err}");
        let answer: Value = serde_json::from_str(&out).unwrap();
        let field = |check: &Value, name: &str| check[name].as_str().unwrap().to_owned();
        let one = |check: &Value| {
            let said = format!("{}; {}", field(check, "found"), field(check, "remedy"));
            (field(check, "check"), field(check, "verdict"), said)
        };
        (code, answer["checks"].as_array().unwrap().iter().map(one).collect())
    }
}

fn node(server: &FakeApiServer, kubelet: &str, runtime: &str) {
    let info = json!({"kubeletVersion": kubelet, "containerRuntimeVersion": runtime});
    server.put(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"nodeInfo": info},
    }));
}

/// The slices of node `mixed`, as if they were of node `n1`.
fn publish(server: &FakeApiServer) {
    let words = ["aliquot", "slices", "--node", "mixed", "-o", "json"];
    let Ran { out, .. } = ran(words.iter().map(OsString::from));
    let mut list: Value = serde_json::from_str(&out).unwrap();
    for slice in list["items"].as_array_mut().unwrap() {
        slice["spec"]["nodeName"] = "n1".into();
        server.put(slice.clone());
    }
}

fn own_metrics() -> String {
    let world = World::new("mixed", "");
    let view = store(world.open()).view(ServerVersion::with_default_gates(37, 2)).unwrap();
    let figures = CardFigures::default();
    let read = NodeReadings { view: Some(&view), uses: &[], figures: &figures };
    Metrics::new().text(&read, &Publication::default()).unwrap()
}

/// Serves a text to every client until the test ends.
pub(super) fn serve(text: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // A connection closed with unread bytes is reset, and the client loses the answer.
            let (mut request, mut part) = (Vec::new(), [0; 1024]);
            while !request.ends_with(b"\r\n\r\n") {
                let count = stream.read(&mut part).unwrap();
                assert!(count > 0, "the request ended early");
                request.extend_from_slice(&part[..count]);
            }
            write!(stream, "HTTP/1.0 200 OK\r\n\r\n{text}").unwrap();
        }
    });
    address
}

/// An NVIDIA card on the bus, in the place of simulated ones.
fn real_card(patient: &mut Patient) {
    patient.write("sys/bus/pci/devices/0000:81:00.0/vendor", "0x10de\n");
    patient.write("sys/bus/pci/devices/0000:81:00.0/class", "0x030200\n");
    patient.arguments.clear();
}

/// A driver as its installer leaves it below a directory.
fn driver(patient: &Patient, root: &str) {
    for family in ["libcuda", "libnvidia-ml"] {
        let file = format!("{root}/usr/lib64/{family}.so.580.95.05");
        patient.write(&file, "library");
        fs::set_permissions(patient.at(&file), fs::Permissions::from_mode(0o755)).unwrap();
        let link = patient.at(&format!("{root}/usr/lib64/{family}.so.1"));
        symlink(format!("{family}.so.580.95.05"), link).unwrap();
    }
}

fn webhook(patient: &Patient) {
    patient.server.put(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "hami-webhook"},
        "webhooks": [{
            "name": "vgpu.hami.io", "failurePolicy": "Fail",
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "clientConfig": {"service": {"namespace": "kube-system", "name": "hami-scheduler"}},
        }],
    }));
}

/// One pain of a first installation: how the node comes to it, and what the command says.
struct Pain {
    pain: &'static str,
    make: fn(&mut Patient),
    check: &'static str,
    verdict: &'static str,
    says: &'static [&'static str],
}

/// The ten that users of other drivers report, and those of our own agent.
const PAINS: &[Pain] = &[
    Pain {
        pain: "1 a webhook is unreachable, so nothing is scheduled",
        make: |patient| webhook(patient),
        check: "webhooks",
        verdict: "failed",
        says: &["hami-webhook", "kube-system/hami-scheduler", "no ready endpoint", "delete"],
    },
    Pain {
        pain: "2 versions do not match",
        make: |patient| node(&patient.server, "v1.31.4", "containerd://2.1.4"),
        check: "versions",
        verdict: "failed",
        says: &["kubelet v1.31.4", "1.36.3", "update the kubelet"],
    },
    Pain {
        pain: "3 the default container runtime is the vendor's",
        make: |patient| {
            let text = "version = 3\n[plugins.x.containerd]\n  default_runtime_name = \"nvidia\"\n";
            patient.write("etc/containerd/config.toml", text);
        },
        check: "container runtime",
        verdict: "warning",
        says: &["`nvidia`", "runc"],
    },
    Pain {
        pain: "4 another driver has the same cards",
        make: |patient| patient.write("var/lib/kubelet/device-plugins/nvidia-gpu.sock", ""),
        check: "other drivers",
        verdict: "failed",
        says: &["NVIDIA's device plugin", "nvidia-gpu.sock", "keep it off"],
    },
    Pain {
        pain: "4 NVIDIA's DRA driver has them",
        make: |patient| patient.write("var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock", ""),
        check: "other drivers",
        verdict: "failed",
        says: &["NVIDIA's DRA driver"],
    },
    Pain {
        pain: "5 CDI devices are unresolvable",
        make: |patient| {
            let text = "version = 3\ncdi_spec_dirs = [\n  '/etc/cdi',\n  '/opt/cdi',\n]\n";
            patient.write("etc/containerd/config.toml", text);
        },
        check: "container runtime",
        verdict: "failed",
        says: &["/etc/cdi, /opt/cdi", "unresolvable CDI devices", "--cdi-dir", "/etc/cdi"],
    },
    Pain {
        pain: "5 CDI is switched off",
        make: |patient| patient.write("etc/containerd/config.toml", "version = 2\nenable_cdi = false\n"),
        check: "container runtime",
        verdict: "failed",
        says: &["enable_cdi = true"],
    },
    Pain {
        pain: "5 containerd 1.7 without CDI",
        make: |patient| patient.write("etc/containerd/config.toml", "version = 2\n"),
        check: "container runtime",
        verdict: "warning",
        says: &["containerd 1.7", "enable_cdi = true"],
    },
    Pain {
        pain: "6 the driver root is wrong",
        make: |patient| {
            real_card(patient);
            driver(patient, "run/nvidia/driver");
            patient.arguments.extend(["--driver-root".to_owned(), "/".to_owned()]);
        },
        check: "driver libraries",
        verdict: "failed",
        says: &["it is below /run/nvidia/driver", "--driver-root"],
    },
    Pain {
        pain: "6 the device files are absent",
        make: |patient| {
            real_card(patient);
            patient.write("dev/nvidiactl", "");
        },
        check: "device files",
        verdict: "failed",
        says: &["/dev/nvidia-uvm", "1 of 1 files /dev/nvidia<number>", "modprobe"],
    },
    Pain {
        pain: "7 gates are off on a managed cluster",
        make: |patient| {
            let lost = Gates { counters: Gate::Off, shares: Gate::Off, ..Gates::default() };
            patient.server.set_gates(lost);
        },
        check: "feature gates",
        verdict: "warning",
        says: &["DRAPartitionableDevices, DRAConsumableCapacity", "update to 1.36"],
    },
    Pain {
        pain: "8 Pods hang after a reboot",
        make: |patient| {
            fs::create_dir(patient.at("var/lib/aliquot/grants/11111111-2222-4333-8444-555555555555"))
                .unwrap();
        },
        check: "prepared claims",
        verdict: "failed",
        says: &["1 of 1", "11111111-2222-4333-8444-555555555555", "start the agent"],
    },
    Pain {
        pain: "9 the dashboard is empty",
        make: |patient| patient.metrics = serve("# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n".to_owned()),
        check: "metrics",
        verdict: "warning",
        says: &["no metric of the agent", "--metrics-address"],
    },
    Pain {
        pain: "10 documents and agent are of different versions",
        make: |patient| {
            let own = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
            patient.metrics = serve(own_metrics().replace(&own, "version=\"9.9.9\""));
        },
        check: "metrics",
        verdict: "warning",
        says: &["another version", "update"],
    },
    Pain {
        pain: "the kubelet is elsewhere",
        make: |patient| {
            fs::create_dir_all(patient.at("var/lib/k0s")).unwrap();
            fs::rename(patient.at("var/lib/kubelet"), patient.at("var/lib/k0s/kubelet")).unwrap();
        },
        check: "kubelet",
        verdict: "failed",
        says: &["/var/lib/k0s/kubelet", "--kubelet-root"],
    },
    Pain {
        pain: "others can write the state directory",
        make: |patient| {
            let open = fs::Permissions::from_mode(0o777);
            fs::set_permissions(patient.at("var/lib/aliquot"), open).unwrap();
        },
        check: "permissions",
        verdict: "failed",
        says: &["777", "chmod go-w /var/lib/aliquot"],
    },
    Pain {
        pain: "the agent was killed",
        make: |patient| {
            let socket = patient.at("var/lib/kubelet/plugins_registry/aliquot.dev@reg.sock");
            fs::remove_file(&socket).unwrap();
            drop(UnixListener::bind(socket).unwrap());
        },
        check: "sockets",
        verdict: "failed",
        says: &["no process listens", "logs --previous"],
    },
    Pain {
        pain: "the node publishes nothing",
        make: |patient| patient.server.wipe_slices(),
        check: "published slices",
        verdict: "failed",
        says: &["node n1 has none", "start the agent"],
    },
    Pain {
        pain: "the cards are others than the published ones",
        make: |patient| patient.arguments = vec!["--node".to_owned(), "t4-2".to_owned()],
        check: "published slices",
        verdict: "failed",
        says: &["is published, and this node does not have it"],
    },
    Pain {
        pain: "SELinux keeps containers from the shim",
        make: |patient| patient.write("sys/fs/selinux/enforce", "1"),
        check: "selinux",
        verdict: "failed",
        says: &[
            "enforcing",
            "/var/lib/aliquot/grants: found no label",
            "container_file_t",
            "start the agent",
            "chcon",
        ],
    },
    Pain {
        pain: "SELinux would keep containers from the shim",
        make: |patient| patient.write("sys/fs/selinux/enforce", "0"),
        check: "selinux",
        verdict: "warning",
        says: &["permissive", "found no label"],
    },
    Pain {
        pain: "no process listens for metrics",
        make: |patient| {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            patient.metrics = free.local_addr().unwrap();
        },
        check: "metrics",
        verdict: "warning",
        says: &["does not answer"],
    },
];

#[test]
fn healthy_node_has_no_finding() {
    let (code, checks) = Patient::healthy().examine();
    let wrong: Vec<_> = checks.iter().filter(|(_, verdict, _)| verdict != "ok").collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!((code, checks.len()), (0, 19));
}

#[test]
fn pains_of_a_first_installation_are_named_with_remedies() {
    for Pain { pain, make, check, verdict, says } in PAINS {
        let mut patient = Patient::healthy();
        make(&mut patient);
        let (code, checks) = patient.examine();
        let (_, found, said) = checks.iter().find(|(name, ..)| name == check).unwrap();
        assert_eq!(found, verdict, "{pain}: {said}");
        for word in *says {
            assert!(said.contains(word), "{pain}: `{word}` is not in: {said}");
        }
        assert_eq!(code, u8::from(checks.iter().any(|(_, verdict, _)| verdict == "failed")), "{pain}");
    }
}

#[test]
fn full_disk_of_the_state_fails_before_claims_do() {
    let patient = Patient::healthy();
    let state = patient.at("var/lib/aliquot");
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"]).arg(&state).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return println!("stood aside: cannot mount a small disk");
    }
    let disk = || patient.examine().1.into_iter().find(|(name, ..)| name == "disk").unwrap();
    let (_, little, said) = disk();
    fs::create_dir(state.join("grants")).unwrap();
    drop(fs::write(state.join("filler"), vec![0; 1 << 21]));
    let (_, full, why) = disk();
    assert!(Command::new("umount").arg(&state).status().unwrap().success());
    assert_eq!((little.as_str(), full.as_str()), ("warning", "failed"), "{said} {why}");
    for word in ["/var/lib/aliquot", "10 claims", "free space"] {
        assert!(said.contains(word) && why.contains(word), "{said} {why}");
    }
    assert_eq!(disk().1, "ok");
}

#[test]
fn grants_with_the_label_of_containers_are_ok() {
    let patient = Patient::healthy();
    patient.write("sys/fs/selinux/enforce", "1");
    if let Err(error) = XattrLabels.write(&patient.at("var/lib/aliquot/grants"), LABEL) {
        return println!("stood aside: security.selinux cannot be set: {error}");
    }
    let (code, checks) = patient.examine();
    let (_, verdict, said) = checks.iter().find(|(name, ..)| name == "selinux").unwrap();
    assert_eq!((code, verdict.as_str()), (0, "ok"), "{said}");
    assert!(said.contains(LABEL), "{said}");
}

#[test]
fn cluster_out_of_reach_is_not_checked() {
    let mut patient = Patient::healthy();
    patient.server.stop();
    let (code, checks) = patient.examine();
    let of_cluster = ["versions", "feature gates", "layout auto", "webhooks", "published slices"];
    for (check, verdict, said) in &checks {
        let expected = if of_cluster.contains(&check.as_str()) { "not checked" } else { "ok" };
        assert_eq!(verdict, expected, "{check}: {said}");
    }
    assert_eq!(code, 0);
}

#[test]
fn ordinary_user_is_told_what_could_not_be_checked() {
    if !nix::unistd::geteuid().is_root() {
        println!("stood aside (needs root, to become another user)");
        return;
    }
    let patient = Patient::healthy();
    opened_to_everybody(&[patient.root.path()]);
    for dir in ["var/lib/kubelet/plugins_registry", "var/lib/aliquot/grants"] {
        fs::set_permissions(patient.at(dir), fs::Permissions::from_mode(0o700)).unwrap();
    }
    // The program lies where that user may not go.
    let program = patient.at("aliquot");
    copy_program(aliquot(), &program);
    let mut command = Command::new(program);
    command.args(["doctor", "--node", "mixed", "--metrics-address", "none", "--host-root"]);
    command.arg(patient.root.path()).env_clear().uid(65534).gid(65534).current_dir(Path::new("/"));
    let ended = command.output().unwrap();
    let text = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    for check in ["kubelet", "sockets", "prepared claims", "metrics", "versions", "published slices"] {
        let line =
            text.lines().find(|line| line.contains(&format!("  {check}  ")) || line[13..].starts_with(check));
        let line = line.unwrap_or_default();
        assert!(line.starts_with("not checked"), "{check}: {text}");
    }
    assert!(text.contains("run it as root"), "{text}");
}
