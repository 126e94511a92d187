use std::fs;

use super::*;
use crate::doctor::{CardsAt, CheckVerdict, NodePaths};

const MAIN: &str = "etc/containerd/config.toml";
const DROP_IN: &str = "etc/containerd/conf.d/50-site.toml";
const LATER: &str = "etc/containerd/conf.d/60-site.toml";
const IMPORTS: &str = "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n";
const CRI: &str = "[plugins.\"io.containerd.cri.v1.runtime\"]\n";
const OLD_CRI: &str = "[plugins.\"io.containerd.grpc.v1.cri\"]\n";

/// What is found on a node with these files.
fn found(files: &[(&str, &str)]) -> Finding {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let site = NodePaths {
        root: dir.path().to_owned(),
        kubelet: "/var/lib/kubelet".into(),
        state: "/var/lib/aliquot".into(),
        cdi: "/var/run/cdi".into(),
        driver: None,
        metrics: None,
        cards: CardsAt::Machine(Err("none".to_owned())),
    };
    runtime(&site, &NodeRoot::new(dir.path()))
}

/// A situation: name, files, verdict, and what the finding says.
struct Case<'a>(&'static str, &'a [(&'a str, &'a str)], CheckVerdict, &'static str);

fn check(cases: &[Case<'_>]) {
    for Case(name, files, verdict, says) in cases {
        let finding = found(files);
        assert_eq!(finding.verdict, *verdict, "{name}: {finding:?}");
        assert!(finding.found.contains(says), "{name}: {finding:?}");
    }
}

#[test]
fn drop_ins_decide_what_the_runtime_does() {
    use CheckVerdict::{Failed, Ok, Warning};
    let old = IMPORTS.replace('3', "2");
    let off = format!("{CRI}enable_cdi = false");
    let on = format!("{CRI}enable_cdi = true");
    let elsewhere = format!("{CRI}cdi_spec_dirs = [\"/opt/cdi\"]");
    let nvidia = format!("{CRI}containerd.default_runtime_name = 'nvidia'");
    let old_on = format!("{OLD_CRI}enable_cdi = true");
    let of_no_container = format!("version = 3\n{OLD_CRI}enable_cdi = false");
    let circle = "version = 3\nimports = ['/etc/containerd/config.toml']";
    let relative = "version = 3\nimports = ['x.toml']";
    check(&[
        Case("disabled", &[(MAIN, IMPORTS), (DROP_IN, &off)], Failed, "50-site.toml"),
        Case("directory", &[(MAIN, IMPORTS), (DROP_IN, &elsewhere)], Failed, "/opt/cdi"),
        Case("default", &[(MAIN, IMPORTS), (DROP_IN, &nvidia)], Warning, "`nvidia`"),
        Case("enabled", &[(MAIN, &old), (DROP_IN, &old_on)], Ok, "reads /var/run/cdi"),
        Case("relative", &[(MAIN, relative), ("etc/containerd/x.toml", &off)], Failed, "x.toml"),
        Case("later", &[(MAIN, IMPORTS), (DROP_IN, &off), (LATER, &on)], Ok, "reads"),
        Case("other plugin", &[(MAIN, IMPORTS), (DROP_IN, &of_no_container)], Ok, "reads"),
        Case("not imported", &[(MAIN, "version = 3\n"), (DROP_IN, &off)], Ok, "reads"),
        Case("circle", &[(MAIN, circle)], Ok, "reads"),
    ]);
}

#[test]
fn drop_ins_that_cannot_be_resolved_are_not_checked() {
    use CheckVerdict::NotChecked;
    let off = format!("{CRI}enable_cdi = false");
    let on = format!("{}{OLD_CRI}enable_cdi = true", IMPORTS.replace('3', "2"));
    let again = format!("{OLD_CRI}x = 1");
    let absent = "version = 3\nimports = ['/run/k0s/containerd-cri.toml']";
    let pattern = "version = 3\nimports = ['/etc/*/x*.toml']";
    check(&[
        Case("absent", &[(MAIN, absent)], NotChecked, "is not there"),
        Case("torn", &[(MAIN, IMPORTS), (DROP_IN, "[plugins")], NotChecked, "not understood"),
        Case("pattern", &[(MAIN, pattern)], NotChecked, "is not followed"),
        Case("replaced", &[(MAIN, &on), (DROP_IN, &again)], NotChecked, "add or replace"),
        Case("no main file", &[(DROP_IN, &off)], NotChecked, "only some versions"),
    ]);
}

#[test]
fn drop_ins_of_crio_decide() {
    use CheckVerdict::{Failed, Warning};
    let elsewhere = "[crio.runtime]\ncdi_spec_dirs = ['/opt/cdi']";
    let runtime = |name: &str| format!("[crio.runtime]\ndefault_runtime = '{name}'");
    let (crun, nvidia) = (runtime("crun"), runtime("nvidia"));
    let dir = "etc/crio/crio.conf.d";
    check(&[
        Case("alone", &[(&format!("{dir}/10-crio.conf"), elsewhere)], Failed, "10-crio.conf"),
        Case(
            "beside",
            &[("etc/crio/crio.conf", &crun), (&format!("{dir}/99-nvidia.conf"), &nvidia)],
            Warning,
            "99-nvidia.conf",
        ),
    ]);
}

/// As their nodes have it: k3s and RKE2 write the import themselves (`config.toml.d` for version 2, `config-v3.toml.d` for 3),
/// and k0s merges `/etc/k0s/containerd.d` into the file that it imports.
#[test]
fn drop_ins_of_distributions_decide() {
    use CheckVerdict::{Failed, NotChecked, Ok, Warning};
    let off = format!("{CRI}enable_cdi = false");
    let old_off = format!("version = 2\n{OLD_CRI}enable_cdi = false");
    let old_on = format!("version = 2\n{OLD_CRI}enable_cdi = true");
    let nvidia = format!("{CRI}containerd.default_runtime_name = 'nvidia'");
    for distribution in ["k3s", "rke2"] {
        let dir = format!("var/lib/rancher/{distribution}/agent/etc/containerd");
        let main = format!("{dir}/config.toml");
        let importing = |version: u32, drop_ins: &str| {
            format!("version = {version}\nimports = [\"/{dir}/{drop_ins}/*.toml\"]\n")
        };
        let (new, old) = (importing(3, "config-v3.toml.d"), importing(2, "config.toml.d"));
        let (new_drop_in, old_drop_in) =
            (format!("{dir}/config-v3.toml.d/a.toml"), format!("{dir}/config.toml.d/a.toml"));
        check(&[
            Case("none", &[(&main, &new)], Ok, "reads /var/run/cdi"),
            Case("off", &[(&main, &new), (&new_drop_in, &off)], Failed, "a.toml"),
            Case("default", &[(&main, &new), (&new_drop_in, &nvidia)], Warning, "`nvidia`"),
            Case("of the other version", &[(&main, &new), (&old_drop_in, &old_off)], Ok, "reads"),
            Case("old off", &[(&main, &old), (&old_drop_in, &old_off)], Failed, "a.toml"),
            Case("old on", &[(&main, &old), (&old_drop_in, &old_on)], Ok, "reads"),
        ]);
    }
    let (k0s, imported) = ("etc/k0s/containerd.toml", "run/k0s/containerd-cri.toml");
    let main = "version = 2\nimports = [\n\t\"/run/k0s/containerd-cri.toml\",\n]\n";
    let microk8s = "var/snap/microk8s/current/args/containerd.toml";
    check(&[
        Case("k0s, off", &[(k0s, main), (imported, &old_off)], Failed, "containerd-cri.toml"),
        Case("k0s, on", &[(k0s, main), (imported, &old_on)], Ok, "reads"),
        Case("k0s that has not run", &[(k0s, main)], NotChecked, "is not there"),
        Case("MicroK8s, off", &[(microk8s, &old_off)], Failed, "MicroK8s"),
        Case("MicroK8s, on", &[(microk8s, &old_on)], Ok, "reads"),
    ]);
}
