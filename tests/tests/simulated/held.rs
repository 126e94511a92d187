//! Streams of the simulated cards that wait for the host: functions on the host, words of memory, events behind them, graphs of them.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_tests::simulated::{Bench, Link, StoodAside};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Many times what any scene takes: what hangs is a failure, too.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Gone is gone: it may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn start(command: &mut Command) -> Running {
    Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
}

/// Waits for a level, with a bound.
fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn held(node: &str) -> Option<(Bench, std::path::PathBuf)> {
    let bench = Bench::new();
    bench.write("node.toml", node);
    match bench.compile("sim_held", Link::Direct) {
        Ok(program) => Some((bench, program)),
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            None
        }
    }
}

fn check(node: &str, scenes: &[&str]) {
    let Some((bench, program)) = held(node) else { return };
    for scene in scenes {
        let mut running = start(bench.command(&program).arg(scene));
        until(&format!("{scene} ends"), || running.0.try_wait().unwrap().is_some());
        let mut told = String::new();
        running.0.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(told, "OK\n", "{scene}");
    }
    bench.card().reap();
    assert_eq!(bench.card().in_use(), 0);
}

#[test]
fn host_function_holds_its_stream_and_nothing_else() {
    check("", &["order", "destroyed", "quiet"]);
}

#[test]
fn the_default_streams_are_held_by_others_and_hold_them() {
    check("", &["legacy", "waited"]);
}

#[test]
fn full_queue_of_a_held_stream_blocks_its_submitter() {
    check("queue_depth = 64\n", &["threads"]);
}

#[test]
fn memory_word_holds_a_stream_until_written_in_stream_order() {
    check("", &["words", "errors", "writes", "batch"]);
}

#[test]
fn graphs_follow_node_order_and_hold_no_sibling_branch() {
    check("", &["graph", "branches", "captured", "memory"]);
}

#[test]
fn memory_freed_in_a_held_stream_is_back_as_configured() {
    check("", &["frees"]);
    check("async_frees = \"call\"\n", &["at_once"]);
}

#[test]
fn event_wait_behind_held_work_waits_on_any_card() {
    check("", &["event", "cards"]);
}

#[test]
fn a_context_that_ends_takes_along_what_is_held_in_it() {
    check("", &["ended"]);
}

#[test]
fn process_killed_while_held_leaves_nothing_and_ran_nothing() {
    let Some((bench, program)) = held("") else { return };
    let card = bench.card();
    let mut running = start(bench.command(&program).arg("stay"));
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    // It has a hundred kernels in line, and the card none.
    let pid = running.0.id();
    assert_eq!(card.moment().processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [pid]);
    assert_eq!(card.moment().device_nanos(pid), 0);
    drop(running);
    card.reap();
    assert_eq!((card.in_use(), card.processes().len()), (0, 0));
}
