//! Scenario 6: the agent is replaced by another program and back, while Pods come and go. No preparation fails, no
//! container starts a second time, and each Pod keeps the shim that it started with.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use aliquot_cluster::Namespace;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::disruptions::{create, held, space};
use crate::stage::{PATIENCE, Stage, built};
use crate::world::needs_own;

/// Threads that create and delete Pods.
const CREATORS: usize = 2;
/// Pods that each of them leaves running.
const KEPT: usize = 2;
/// Pods that start with each agent.
const STARTED: usize = 6;
/// Letters that the compiler leaves in the shim, and others instead.
const COMPILER: [&[u8]; 2] = [b"rustc version", b"other version"];

/// Replaces every occurrence of some bytes by as many others; how many there are.
fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) -> usize {
    assert_eq!(from.len(), to.len());
    let found: Vec<usize> =
        bytes.windows(from.len()).enumerate().filter(|(_, part)| *part == from).map(|(at, _)| at).collect();
    for at in &found {
        bytes[*at..*at + to.len()].copy_from_slice(to);
    }
    found.len()
}

/// A program of another path and content: its shim has other bytes, and so another directory.
fn other_program(stage: &Stage) -> PathBuf {
    let path = stage.cluster().place().path("other/aliquot");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let stripped = Command::new("strip").arg("-o").arg(&path).arg(built("aliquot")).status().unwrap();
    assert!(stripped.success(), "strip: {stripped}");
    let mut bytes = fs::read(&path).unwrap();
    let shim = aliquot_libraries::SHIM;
    let at = bytes.windows(shim.len()).position(|part| part == shim).unwrap();
    let changed = replace(&mut bytes[at..at + shim.len()], COMPILER[0], COMPILER[1]);
    assert!(changed > 0, "the shim names no compiler");
    let directory = aliquot_libraries::shim_dir(Path::new("")).display().to_string();
    let (version, content) = directory.split_once('-').unwrap();
    let other = format!("{version}-{}", content.chars().rev().collect::<String>());
    assert_ne!(directory, other);
    assert!(replace(&mut bytes, directory.as_bytes(), other.as_bytes()) > 0, "found no {directory}");
    fs::write(&path, bytes).unwrap();
    path
}

/// Pods that come and go.
struct Load<'a> {
    space: &'a Namespace<'a>,
    started: AtomicUsize,
    stops: AtomicBool,
}

/// Ends the threads of a [`Load`], also after a failure.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Load<'_> {
    /// Creates Pods, one after the other, and deletes the oldest ones, until the end.
    fn come_and_go(&self, creator: usize) {
        let name = |number: usize| format!("pod-{creator}-{number:03}");
        let mut number = 0;
        while !self.stops.load(Ordering::Relaxed) {
            create(self.space, &name(number));
            self.space.running(&name(number), 1, PATIENCE).unwrap();
            self.started.fetch_add(1, Ordering::Relaxed);
            if number >= KEPT {
                self.space.delete_pod(&name(number - KEPT), None).unwrap();
            }
            number += 1;
        }
    }

    /// Waits until so many more Pods have started.
    fn wait_for_more(&self, stage: &Stage) {
        let enough = self.started.load(Ordering::Relaxed) + STARTED;
        stage.wait_for("Pods have started", || self.started.load(Ordering::Relaxed) >= enough);
    }
}

/// How often each Pod's container started, and what failed.
fn events(space: &Namespace<'_>, stage: &Stage) -> (BTreeMap<String, u64>, Vec<String>) {
    let list = stage.api().get(&space.core("events")).unwrap();
    let (mut started, mut failed) = (BTreeMap::new(), Vec::new());
    for event in list["items"].as_array().cloned().unwrap_or_default() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (reason, pod) = (text(&event["reason"]), text(&event["involvedObject"]["name"]));
        if reason == "Started" {
            *started.entry(pod).or_default() += event["count"].as_u64().unwrap_or(1);
        } else if reason.starts_with("Failed") && reason != "FailedScheduling" {
            failed.push(format!("{pod}: {reason}: {}", text(&event["message"])));
        }
    }
    (started, failed)
}

/// The digest of the shim in a Pod.
fn shim_in(space: &Namespace<'_>, pod: &str) -> String {
    let said = space.exec(pod, &["sh", "-c", "sha256sum < \"$(cat /etc/ld.so.preload)\""]).unwrap();
    assert_eq!(said.code, 0, "{pod}: {said:?}");
    said.out
}

#[test]
fn update_under_load_fails_no_pod_and_runs_none_twice() {
    if needs_own() {
        return;
    }
    let Some(stage) = Stage::with_agent("update", "t4-2", "shared") else { return };
    let space = space(&stage);
    let other = other_program(&stage);
    let load = Load { space: &space, started: AtomicUsize::new(0), stops: AtomicBool::new(false) };
    create(&space, "first");
    space.running("first", 1, PATIENCE).unwrap();
    thread::scope(|scope| {
        for creator in 0..CREATORS {
            let load = &load;
            scope.spawn(move || load.come_and_go(creator));
        }
        let _stop = StopAtEnd(&load.stops);
        load.wait_for_more(&stage);
        let updated = stage.agent().update(stage.cluster(), &other).unwrap();
        load.wait_for_more(&stage);
        create(&space, "second");
        space.running("second", 1, PATIENCE).unwrap();
        updated.update(stage.cluster(), &built("aliquot")).unwrap();
        load.wait_for_more(&stage);
    });
    create(&space, "third");
    space.running("third", 1, PATIENCE).unwrap();
    let [first, second, third] = ["first", "second", "third"].map(|pod| {
        held(&space, pod);
        shim_in(&space, pod)
    });
    assert!(first != second && first == third, "shims of the Pods: {first} {second} {third}");
    let (started, failed) = events(&space, &stage);
    assert_eq!(failed, Vec::<String>::new());
    assert_eq!(started.len(), load.started.load(Ordering::Relaxed) + 3, "{started:?}");
    println!("{} Pods started, none twice, none failed", started.len());
    assert!(started.values().all(|count| *count == 1), "{started:?}");

    // Without an agent beside it the end of an agent is seen: the count of failures is no decoration.
    assert_eq!(stage.agent().end(stage.cluster(), Signal::SIGTERM).unwrap(), 0);
    create(&space, "unserved");
    let unserved = format!("{}?fieldSelector=involvedObject.name=unserved", space.core("events"));
    let noticed = stage.api().wait(&unserved, "the failure is noticed", PATIENCE, |found| {
        found.values().any(|event| event["reason"] == json!("FailedPrepareDynamicResources")).then_some(())
    });
    noticed.unwrap();
    assert_eq!(events(&space, &stage).1.len(), 1);
    stage.agent().start_again(stage.cluster()).unwrap();
    stage.agent().wait_until_ready(stage.cluster()).unwrap();
    space.delete().unwrap();
    stage.finish();
}
