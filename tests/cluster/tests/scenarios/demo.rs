//! `aliquot demo --cluster` brings a cluster up, shows Pods with parts of cards, and takes the cluster down.

use std::path::Path;
use std::process::{Command, Output};

use aliquot_cluster::Place;
use tempfile::TempDir;

use crate::stage::{built, checkout};
use crate::world::{Turn, needs_own};

fn demo(directory: &Path, words: &[&str]) -> Output {
    let program = built("aliquot");
    let target = program.ancestors().nth(2).unwrap();
    let mut command = Command::new(&program);
    command.args(["demo", "--cluster"]).args(words).current_dir(directory).env("CARGO_TARGET_DIR", target);
    command.output().unwrap()
}

#[test]
fn demo_on_a_cluster_shows_pods_and_goes() {
    if needs_own() {
        return;
    }
    let _turn = Turn::beside();
    let place = Place::new(&"demo".parse().unwrap());
    let elsewhere = demo(TempDir::new().unwrap().path(), &[]);
    assert_eq!(elsewhere.status.code(), Some(2), "{elsewhere:?}");
    let shown = demo(&checkout("deploy"), &[]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let kubeconfig = place.kubeconfig();
    let stays = kubeconfig.exists();
    let down = demo(&checkout("deploy"), &["--down"]);
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    for part in [
        "demo-aliquot-",
        "quarter",
        "davinci_manager",
        "total 8589934592",
        "code 2",
        &kubeconfig.display().to_string(),
    ] {
        assert!(text.contains(part), "found no {part} in {text}");
    }
    assert!(stays, "{} is gone before --down", kubeconfig.display());
    assert_eq!(down.status.code(), Some(0), "{down:?}");
    assert!(!kubeconfig.exists(), "{} is left", kubeconfig.display());
}
