//! The size of a context on this machine's own cards: which run measures it, and which runs wait meanwhile.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Output, Stdio};

use aliquot_driver::region;
use aliquot_tests::local::wait_for;
use aliquot_tests::machine::Machine;

/// Of the simulated cards, as `driver/backends/sim/README.md` says.
const CONTEXT: u64 = 480 << 20;
const CARD: &str = "GPU-a11c0de0-51a0-4c4d-8000-000000000000";
/// The message for an unknown size.
const UNKNOWN: &str = "what a context takes cannot be measured: ";

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
    // What a context takes is not known when it begins.
    machine.fault("cuDevicePrimaryCtxRetain", "{ error = 999 }");
    let mut before = waiting(&machine);
    let measures = stuck(&machine, &["--card", "0", "--memory", "1Gi"]);
    assert_eq!(machine.claims(), 2);
    drop(before.0.stdin.take());
    let output = before.ended();
    let said = err(&output);
    assert_eq!((output.status.code(), said.lines().count(), machine.claims()), (Some(42), 1, 1), "{said}");
    assert!(said.contains(UNKNOWN), "{said}");
    // Another card is measured beside it.
    let limits = machine.dir().join("seen");
    let script = format!("cat $ALIQUOT_GRANTS/*/limits >{}", limits.display());
    let mut other = machine.aliquot("run", &["--card", "1", "--memory", "1Gi", "--", "sh", "-c", &script]);
    let output = Running(other.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()).ended();
    assert_eq!((output.status.code(), err(&output).as_str(), machine.claims()), (Some(0), "", 1));
    assert_eq!(region::read(&limits).unwrap().context_bytes, CONTEXT);
    drop(measures);
    assert_eq!((machine.told_quietly(), machine.claims()), (CONTEXT, 0));
}

#[test]
fn measured_card_admits_none_and_next_measures_after_a_kill() {
    let machine = Machine::of("[[card]]\n");
    let measures = stuck(&machine, &["--memory", "1Gi"]);
    let seen = machine.dir().join("seen");
    let script = format!("cat $ALIQUOT_GRANTS/*/limits >{}", seen.display());
    let waits = |memory: &str| {
        let nix::pty::OpenptyResult { master, slave } = nix::pty::openpty(None, None).unwrap();
        let mut run = machine.aliquot("run", &["--memory", memory, "--", "sh", "-c", &script]);
        let run = Running(run.stderr(slave).spawn().unwrap());
        let line = BufReader::new(fs::File::from(master)).lines().next().unwrap().unwrap();
        assert_eq!(line, format!("measuring what a context of card {CARD} takes"));
        run
    };
    drop(waits("1Gi"));
    let next = waits("76Gi");
    assert_eq!((machine.claims(), seen.exists(), machine.bench.card().high_water()), (2, false, CONTEXT));
    drop(measures);
    assert_eq!(next.ended().status.code(), Some(0));
    let published = region::read(&seen).unwrap().context_bytes;
    // Never two contexts: one, and the small allocations that tell the pages.
    let highest = machine.bench.card().high_water();
    assert!(published == CONTEXT && highest < CONTEXT + CONTEXT / 4, "{published}, {highest}");
    assert_eq!((machine.told_quietly(), machine.claims()), (CONTEXT, 0));
}

#[test]
fn waiting_process_reuses_the_measured_size() {
    let machine = Machine::of("[[card]]\n");
    let slow = "[[fault]]\nsymbol = \"nvmlDeviceGetGraphicsRunningProcesses_v3\"\ncall = 2\n\
                action = { slow_nanos = 2000000000 }\n";
    machine.bench.write("faults.toml", slow);
    let measures = Running(machine.aliquot("run", &["--memory", "1Gi", "--", "true"]).spawn().unwrap());
    wait_for("the context", || machine.bench.card().in_use() == CONTEXT);
    // No other process can have one.
    machine.fault("cuDevicePrimaryCtxRetain", "{ error = 999 }");
    let holder = measures.0.id();
    let (waited, published) = machine.told(&["--memory", "1Gi"]);
    let said = err(&waited);
    assert!(
        said.starts_with(&format!("waiting for process {holder} (")) && said.lines().count() == 1,
        "{said}"
    );
    assert_eq!((published, measures.ended().status.code()), (CONTEXT, Some(0)));
}
