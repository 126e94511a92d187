//! Commands and local runs on a node with its state owned by the node agent.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_tests::fake_kubelet::FakeKubelet;
use aliquot_tests::local::{Local, aliquot, wait_for};
use aliquot_tests::running_agent::{FakeCluster, RunningAgent};

const NODE: &str = "h200";
const SHARE: &str = "tests/golden/input/share.yaml";

/// A command of `aliquot` on the node's state.
fn command(local: &Local, words: &[&str]) -> Command {
    let mut command = Command::new(aliquot());
    command.args(words).args(["--node", NODE, "--state"]).arg(local.state());
    command.current_dir(aliquot_tests::simulated::root());
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_beside_an_agent_are_refused_at_once_with_remedy() {
    let local = Local::new(NODE);
    std::fs::create_dir(local.state()).unwrap();
    let (kubelet, cluster) = (FakeKubelet::default(), Arc::new(FakeCluster::default()));
    let agent = RunningAgent::start(local.open_as_agent(), &kubelet, &cluster, None);
    let changes = [
        (command(&local, &["prepare", "--filename", SHARE]), 3),
        (command(&local, &["release", "share"]), 3),
        (local.run(&["--memory", "1Gi", "--", "true"]), 125),
    ];
    for (mut change, code) in changes {
        let began = Instant::now();
        let output = change.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("the node agent (process "), "{said}");
        assert!(said.contains("request parts through Kubernetes, or stop the agent first"), "{said}");
        assert!(began.elapsed() < Duration::from_secs(15), "it waited for an agent, which does not end");
    }
    for words in [["devices"].as_slice(), &["top", "--once"]] {
        let output = command(&local, words).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    agent.stop().await;
    let output = local.run(&["--memory", "1Gi", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_that_ends_beside_an_agent_is_given_back_by_it() {
    let local = Local::new(NODE);
    let mut run = local.run(&["--memory", "1Gi", "--", "sh", "-c", "echo started; read line"]);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let mut started = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut started).unwrap();
    assert_eq!(started, "started\n");

    let (kubelet, cluster) = (FakeKubelet::default(), Arc::new(FakeCluster::default()));
    let agent = RunningAgent::start(local.open_as_agent(), &kubelet, &cluster, None);
    assert_eq!(local.records(), 1, "the run goes on beside the agent");
    drop(run.stdin.take());
    let code = run.wait().unwrap().code();
    let mut said = String::new();
    run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("the node agent has started meanwhile and gives the part back"), "{said}");
    assert_eq!(code, Some(1), "the command's own exit code: {said}");
    wait_for("the part to be given back", || local.records() == 0);
    agent.stop().await;
    assert_eq!(local.claims(), 0);
}
