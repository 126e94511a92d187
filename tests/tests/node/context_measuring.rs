//! The size of a context on this machine's own cards is measured while the node is open to others.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Output, Stdio};

use aliquot_driver::region;
use aliquot_tests::local::wait_for;
use aliquot_tests::machine::Machine;

/// Of the simulated cards, as `driver/backends/sim/README.md` says.
const CONTEXT: u64 = 480 << 20;

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A run that measures for an hour: its context is there, and the card does not tell what it takes. Others ask of that what they
/// like.
fn stuck(machine: &Machine, ask: &[&str]) -> Running {
    let before = machine.bench.card().in_use();
    let fault = "symbol = \"nvmlDeviceGetGraphicsRunningProcesses_v3\"\ncall = 2";
    let hour = "action = { slow_nanos = 3600000000000 }";
    machine.bench.write("faults.toml", &format!("[[fault]]\n{fault}\n{hour}\n"));
    let stuck = Running(machine.aliquot("run", ask).args(["--", "true"]).spawn().unwrap());
    wait_for("the context", || machine.bench.card().in_use() > before);
    machine.no_fault();
    stuck
}

/// A run that does not outlive its test.
struct Running(Child);

impl Running {
    /// How it ends, within the time that tests wait.
    fn ended(mut self) -> Output {
        wait_for("the end of the run", || self.0.try_wait().unwrap().is_some());
        let (mut out, mut err) = (Vec::new(), Vec::new());
        self.0.stdout.iter_mut().for_each(|pipe| assert!(pipe.read_to_end(&mut out).is_ok()));
        self.0.stderr.iter_mut().for_each(|pipe| assert!(pipe.read_to_end(&mut err).is_ok()));
        Output { status: self.0.wait().unwrap(), stdout: out, stderr: err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A run on card 0 that has begun and waits for its input before it ends with code 42.
fn waiting(machine: &Machine) -> Running {
    let mut run = machine.aliquot("run", &["--card", "0", "--memory", "1Gi", "--", "sh", "-c"]);
    run.arg("echo ready; read line; exit 42")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut run = Running(run.spawn().unwrap());
    BufReader::new(run.0.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    run
}

#[test]
fn exit_code_of_a_command_does_not_wait_for_the_state_lock() {
    let machine = Machine::of("[[card]]\n");
    let mut run = waiting(&machine);
    let lock = fs::File::open(machine.state().join("lock")).unwrap();
    lock.lock().unwrap();
    drop(run.0.stdin.take());
    let output = run.ended();
    assert_eq!((output.status.code(), machine.claims()), (Some(42), 1));
    assert!(err(&output).contains("warning: claim not released; the next call does it: "), "{output:?}");
    drop(lock);
    assert_eq!((machine.told_quietly(), machine.claims()), (CONTEXT, 0));
}

#[test]
fn measurement_does_not_block_the_node() {
    let machine = Machine::new();
    let measures = stuck(&machine, &["--card", "0", "--memory", "1Gi"]);
    // Another card is measured beside it.
    let limits = machine.dir().join("seen");
    let script = format!("cat $ALIQUOT_GRANTS/*/limits >{}", limits.display());
    let mut other = machine.aliquot("run", &["--card", "1", "--memory", "1Gi", "--", "sh", "-c", &script]);
    let output = Running(other.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()).ended();
    assert_eq!((output.status.code(), err(&output).as_str(), machine.claims()), (Some(0), "", 1));
    assert_eq!(region::read(&limits).unwrap().context_bytes, CONTEXT);
    // On the same card it does not wait.
    let output = Running(
        machine
            .aliquot("run", &["--card", "0", "--memory", "1Gi", "--", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    )
    .ended();
    assert_eq!((output.status.code(), err(&output).as_str(), machine.claims()), (Some(0), "", 1));
    assert_eq!(region::read(&limits).unwrap().context_bytes, 0);
    drop(measures);
    assert_eq!((machine.told_quietly(), machine.claims()), (CONTEXT, 0));
}

#[test]
fn measurement_beside_a_new_claim_is_discarded() {
    let machine = Machine::of("[[card]]\n");
    machine.bench.write(
        "faults.toml",
        "[[fault]]\nsymbol = \"nvmlDeviceGetGraphicsRunningProcesses_v3\"\ncall = 2\n\
         action = { slow_nanos = 2000000000 }\n",
    );
    let measures = Running(machine.aliquot("run", &["--memory", "1Gi", "--", "true"]).spawn().unwrap());
    wait_for("the context", || machine.bench.card().in_use() == CONTEXT);
    let mut beside = waiting(&machine);
    assert_eq!(measures.ended().status.code(), Some(0));
    assert!(!machine.state().join("contexts").exists(), "the new claim may have falsified the size");
    drop(beside.0.stdin.take());
    let output = beside.ended();
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(42), ""));
    assert_eq!((machine.told_quietly(), machine.claims()), (CONTEXT, 0));
}
