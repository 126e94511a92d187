//! `aliquot stop`: what it ends, what it leaves alone, and that a refusal's remedy can be carried out.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use aliquot_abi::layout::usage::SLOTS;
use aliquot_tests::fake_kubelet::FakeKubelet;
use aliquot_tests::local::{Local, aliquot, wait_for};
use aliquot_tests::running_agent::{FakeCluster, RunningAgent};

const NODE: &str = "h200";

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), output.stderr.as_slice()].concat()).into_owned()
}

fn stop(local: &Local, words: &[&str]) -> Output {
    let mut command = Command::new(aliquot());
    command.arg("stop").args(words).args(["--node", NODE, "--state"]).arg(local.state()).output().unwrap()
}

/// Asserts that these runs were stopped, and that nothing of them is left.
fn stops(local: &Local, words: &[&str], expected: &str) {
    let output = stop(local, words);
    assert_eq!((output.status.code(), said(&output).as_str()), (Some(0), expected), "{words:?}");
    assert_eq!((local.claims(), local.records()), (0, 0));
}

/// A run with a script that prints its process id first, and that id.
fn run(local: &Local, name: &str, script: &str) -> (Child, u32) {
    let script = format!("echo $$; {script}");
    let mut run = local.run(&["--name", name, "--memory", "100Gi", "--", "sh", "-c", &script]);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    (child, line.parse().unwrap())
}

fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

fn only_in(dir: PathBuf) -> PathBuf {
    fs::read_dir(dir).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn run_is_ended_by_its_command_and_its_part_is_free() {
    let local = Local::new(NODE);
    let (mut child, _) = run(&local, "b", "trap 'exit 7' TERM; while :; do sleep 0.05; done");
    stops(&local, &["b"], "local/b: stopped\n");
    assert_eq!(child.wait().unwrap().code(), Some(7), "the command has ended in order");
    assert_eq!(local.shell(&["--memory", "100Gi"], "exit 0").status.code(), Some(0));
}

#[test]
fn processes_that_ignore_the_request_are_killed() {
    let local = Local::new(NODE);
    // The second process is a daemon in a session of its own, without the grants in its environment.
    let daemon =
        "setsid env -i PATH=\"$PATH\" sh -c 'trap \"\" TERM; echo $$ > \"$0\"; exec sleep 600' \"$0\"";
    let file = local.dir().join("pid");
    let script = format!(
        "{} & trap '' TERM; while :; do sleep 0.05; done",
        daemon.replace("$0", file.to_str().unwrap())
    );
    let (mut child, command) = run(&local, "b", &script);
    wait_for("the daemon", || fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')));
    let daemon: u32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    stops(&local, &["local/b", "--grace", "1"], "local/b: stopped\n");
    assert!(has_ended(command) && has_ended(daemon));
    assert_eq!(child.wait().unwrap().code(), Some(137));
}

#[test]
fn run_without_a_supervisor_is_ended() {
    let local = Local::new(NODE);
    let (mut child, command) = run(&local, "b", "read line");
    let _input = child.stdin.take();
    child.kill().unwrap();
    child.wait().unwrap();
    stops(&local, &["--all"], "local/b: stopped\n");
    assert!(has_ended(command));
    stops(&local, &["--all"], "no local run is in this state directory\n");
}

#[test]
fn other_names_claims_and_the_own_run_are_refused() {
    let local = Local::new(NODE);
    let share = aliquot_tests::simulated::root().join("tests/golden/input/share.yaml");
    let mut prepare = Command::new(aliquot());
    prepare.args(["prepare", "--node", NODE, "--state"]).arg(local.state()).arg("-f").arg(share);
    assert_eq!(prepare.output().unwrap().status.code(), Some(0));
    let inside = format!(
        "{} stop b --node {NODE} --state {}; read line",
        aliquot().display(),
        local.state().display()
    );
    let mut run = local.run(&["--name", "b", "--memory", "1Gi", "--", "sh", "-c", &inside]);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(line.starts_with("local/b: not stopped: this command was started inside of the run"), "{line}");
    for (name, words) in [
        ("c", "found no such run, expected one of local/b"),
        (
            "share",
            "found a claim for containers, expected a local run; `aliquot release default/share` releases it",
        ),
    ] {
        let output = stop(&local, &[name]);
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains(words), "{}", said(&output));
    }
    assert!(child.try_wait().unwrap().is_none(), "the run goes on");
    assert_eq!(stop(&local, &["b"]).status.code(), Some(0));
    child.wait().unwrap();
}

#[test]
fn process_that_a_tenant_names_is_not_signalled() {
    let local = Local::new(NODE);
    let (mut child, _) = run(&local, "b", "trap '' TERM; while :; do sleep 0.05; done");
    let mut innocent = Command::new("sleep").arg("600").spawn().unwrap();
    let usage = only_in(only_in(local.state().join("grants"))).join("usage");
    let usage = fs::OpenOptions::new().write(true).open(usage).unwrap();
    let slot = u64::try_from(SLOTS).unwrap();
    usage.write_all_at(&u64::from(innocent.id()).to_le_bytes(), slot).unwrap();
    drop(stop(&local, &["b", "--grace", "0"]));
    child.wait().unwrap();
    assert!(innocent.try_wait().unwrap().is_none(), "a process that only the tenant names was ended");
    innocent.kill().unwrap();
    innocent.wait().unwrap();
    assert_eq!(stop(&local, &["--all"]).status.code(), Some(0));
    assert_eq!((local.claims(), local.records()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_beside_an_agent_is_ended_and_given_back() {
    let local = Local::new(NODE);
    let (mut child, _) = run(&local, "b", "read line");
    let (kubelet, cluster) = (FakeKubelet::default(), Arc::new(FakeCluster::default()));
    let agent = RunningAgent::start(local.open_as_agent(), &kubelet, &cluster, None);
    let output = stop(&local, &["b"]);
    assert_eq!((output.status.code(), said(&output).as_str()), (Some(0), "local/b: stopped\n"));
    child.wait().unwrap();
    assert_eq!(local.records(), 0);
    agent.stop().await;
    assert_eq!(local.claims(), 0);
}

/// The command in a text that ends a run, between backticks.
fn command_in(text: &str) -> String {
    let named = text.split('`').find(|part| part.starts_with("aliquot stop "));
    named.unwrap_or_else(|| panic!("no command in: {text}")).to_owned()
}

#[test]
fn remedies_of_refusals_can_be_carried_out() {
    let local = Local::new(NODE);
    // All of the card: a smaller request would not help.
    let mut run = local.run(&["--name", "b", "--", "sh", "-c", "echo started; read line"]);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let refused = local.shell(&["--memory", "1Gi"], "exit 0");
    assert_eq!(refused.status.code(), Some(125));
    let release = Command::new(aliquot())
        .args(["release", "b", "--node", NODE, "--state"])
        .arg(local.state())
        .output()
        .unwrap();
    assert_eq!(command_in(&said(&refused)), command_in(&said(&release)));
    let remedy = command_in(&said(&refused)).replacen("aliquot", aliquot().to_str().unwrap(), 1);
    let done = Command::new("sh").args(["-c", &remedy]).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", said(&done));
    child.wait().unwrap();
    assert_eq!(local.shell(&["--memory", "1Gi"], "exit 0").status.code(), Some(0));
}
