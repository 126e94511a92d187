//! `aliquot doctor` on machines without Kubernetes, which run `aliquot run` alone.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use aliquot_tests::command_line::{Ran, ran};
use aliquot_tests::local::{aliquot, copy_program};
use serde_json::Value;

/// Names of the checks of a machine without Kubernetes.
const LOCAL: [&str; 7] =
    ["device files", "disk", "driver libraries", "kubernetes", "records", "shim", "state directory"];
/// An ordinary user.
const USER: u32 = 65534;

/// The file system of a machine.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let root = tempfile::Builder::new().prefix("d").tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let machine = Self(root);
        machine.make("var/lib");
        machine.make("dev");
        machine
    }

    fn make(&self, dir: &str) {
        fs::create_dir_all(self.0.path().join(dir)).unwrap();
    }

    fn write(&self, path: &str, text: &str, mode: u32) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn words(&self, more: &[&str]) -> Vec<OsString> {
        let root = self.0.path().to_str().unwrap();
        let words = ["aliquot", "doctor", "-o", "json", "--host-root", root];
        words.iter().chain(more).map(OsString::from).collect()
    }

    fn examine(&self, more: &[&str]) -> (u8, BTreeMap<String, (String, String)>) {
        let Ran { code, out, err } = ran(self.words(more));
        assert!(err.is_empty(), "{err}");
        (code, checks(&out))
    }

    /// The same as an ordinary user.
    fn examine_as_user(&self, more: &[&str]) -> (Option<i32>, BTreeMap<String, (String, String)>) {
        let program = self.0.path().join("aliquot");
        copy_program(aliquot(), &program);
        let mut command = Command::new(program);
        command.args(&self.words(more)[1..]).env_clear().env("HOME", "/users/one");
        let ended = command.uid(USER).gid(USER).current_dir(Path::new("/")).output().unwrap();
        (ended.status.code(), checks(&String::from_utf8(ended.stdout).unwrap()))
    }
}

/// Verdict, and what was found with the remedy, by check.
fn checks(answer: &str) -> BTreeMap<String, (String, String)> {
    let answer: Value = serde_json::from_str(answer).unwrap();
    let text = |check: &Value, name: &str| check[name].as_str().unwrap().to_owned();
    let one = |check: &Value| {
        let said = format!("{}; {}", text(check, "found"), text(check, "remedy"));
        (text(check, "check"), (text(check, "verdict"), said))
    };
    answer["checks"].as_array().unwrap().iter().map(one).collect()
}

#[test]
fn machine_without_kubelet_has_checks_of_local_runs() {
    let machine = Machine::new();
    let (code, checks) = machine.examine(&["--node", "h100-8"]);
    assert_eq!(checks.keys().map(String::as_str).collect::<Vec<_>>(), LOCAL);
    let wrong: Vec<_> = checks.iter().filter(|(_, (verdict, _))| verdict != "ok").collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(code, 0);
}

#[test]
fn trace_of_a_cluster_or_its_options_has_checks_of_a_node() {
    for dir in ["var/lib/kubelet", "etc/kubernetes", "var/lib/rancher/k3s/agent/kubelet"] {
        let machine = Machine::new();
        machine.make(dir);
        let (code, checks) = machine.examine(&["--node", "h100-8", "--metrics-address", "none"]);
        assert_eq!((code, checks.contains_key("kubelet")), (1, true), "{dir}");
        assert_eq!(machine.examine(&["--node", "h100-8", "--local"]).0, 0, "{dir}");
    }
    let machine = Machine::new();
    let (code, checks) = machine.examine(&["--node", "h100-8", "--kubelet-root", "/data/kubelet"]);
    assert_eq!((code, checks["kubelet"].0.as_str()), (1, "failed"));
}

#[test]
fn state_that_runs_refuse_is_named_with_a_remedy() {
    type Make = fn(&Machine);
    let pains: [(&str, Make, &[&str]); 5] = [
        ("state directory", |machine| machine.write("var/lib/aliquot", "", 0o644), &["a file", "--state"]),
        (
            "state directory",
            |machine| {
                machine.make("var/lib/aliquot");
                let dir = machine.0.path().join("var/lib/aliquot");
                fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
            },
            &["every user may write it", "--state"],
        ),
        (
            "state directory",
            |machine| {
                machine.make("var/lib/a:b");
                symlink("a:b", machine.0.path().join("var/lib/aliquot")).unwrap();
            },
            &["found ':'", "separator", "--state"],
        ),
        (
            "records",
            |machine| machine.write("var/lib/aliquot/journal", "aliquot journal 1\nnonsense\n", 0o600),
            &["journal", "no run starts"],
        ),
        (
            "records",
            |machine| machine.write("var/lib/aliquot/health", "nonsense\n", 0o600),
            &["health", "aliquot health --clear all"],
        ),
    ];
    for (check, make, says) in pains {
        let machine = Machine::new();
        make(&machine);
        let (code, checks) = machine.examine(&["--local", "--state", "/var/lib/aliquot"]);
        let (verdict, said) = &checks[check];
        assert_eq!((code, verdict.as_str()), (1, "failed"), "{check}: {said}");
        for word in says {
            assert!(said.contains(word), "`{word}` is not in: {said}");
        }
    }
}

#[test]
fn device_file_closed_to_the_user_is_named_with_a_remedy() {
    if !nix::unistd::geteuid().is_root() {
        println!("stood aside (needs root, to become another user)");
        return;
    }
    let machine = Machine::new();
    machine.write("sys/bus/pci/devices/0000:81:00.0/vendor", "0x10de\n", 0o644);
    machine.write("sys/bus/pci/devices/0000:81:00.0/class", "0x030200\n", 0o644);
    for (file, mode) in [("nvidiactl", 0o666), ("nvidia-uvm", 0o666), ("nvidia0", 0o660)] {
        machine.write(&format!("dev/{file}"), "", mode);
    }
    let (code, checks) = machine.examine_as_user(&[]);
    let (verdict, said) = &checks["device files"];
    assert_eq!((code, verdict.as_str()), (Some(1), "failed"), "{said}");
    for word in ["/dev/nvidia0", "mode 660", "user 65534", "usermod -aG 0"] {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
    let (verdict, said) = &checks["state directory"];
    assert_eq!(verdict, "failed", "{said}");
    assert!(said.contains("no write permission for user 65534"), "{said}");
    machine.write("dev/nvidia0", "", 0o666);
    assert_eq!(machine.examine_as_user(&[]).1["device files"].0, "ok");
}
