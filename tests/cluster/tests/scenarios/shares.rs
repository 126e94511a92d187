//! Scenario 1: Pods with shares are held to them, also with an empty environment, by `kubectl exec` and without root.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_cluster::Namespace;
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Stage, pod, template};

pub(crate) const LIMIT: u64 = 4 << 30;
const OUT_OF_MEMORY: u64 = 2;
/// Where a container finds simulated cards. Real ones are found by their device nodes, so no variable is left there.
pub(crate) const HARDWARE: [&str; 2] = ["ALIQUOT_SIM_DIR=/run/aliquot/cards", "ALIQUOT_SIM_DEVICES=present"];
/// How long shares are measured, and how long before that both Pods work already.
const MEASURED: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_secs(3);
/// How far a share may be off, in percent of the card, and how often it is measured until it fits: both Pods need a
/// processor of the machine to ask for their share.
const SHARE_ERROR: f64 = 5.0;
const ATTEMPTS: usize = 8;
/// How often they are measured after that, and how far they may be off; one may be off further, as beside other work of
/// the machine.
const AGAIN: usize = 4;
const AGAIN_ERROR: f64 = 10.0;

/// A request for a share of a card.
pub(crate) fn share(memory: u64, cores: u32) -> Value {
    json!([{"name": "gpu", "exactly": {
        "deviceClassName": "share.aliquot.dev",
        "capacity": {"requests": {"memory": memory.to_string(), "cores": cores.to_string()}},
    }}])
}

pub(crate) fn create(space: &Namespace<'_>, pod: &Value) -> String {
    space.create_object(&space.core("pods"), pod).unwrap();
    space.running(pod["metadata"]["name"].as_str().unwrap(), 1, PATIENCE).unwrap().remove(0)
}

/// Fills a Pod's memory and compares it with the limit.
pub(crate) fn held_to_limit(space: &Namespace<'_>, pod: &str, command: &[&str]) -> Result<(), String> {
    let said = space.exec(pod, command).map_err(|error| error.to_string())?;
    let numbers: Vec<u64> = said.out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [total, got, code] = numbers[..] else {
        return Err(format!("{pod} {command:?}: found {said:?}, expected three numbers"));
    };
    // The context of the client is charged to its limit, too.
    let near = (LIMIT / 4 * 3..=LIMIT).contains(&got);
    (total == LIMIT && near && code == OUT_OF_MEMORY)
        .then_some(())
        .ok_or_else(|| format!("{pod} {command:?}: found {said:?}, expected a limit of {LIMIT}"))
}

/// The percent of what all Pods did that each one did, while they compute at the same time.
fn computed(space: &Namespace<'_>, pods: [&str; 2]) -> Result<[f64; 2], String> {
    let from = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + WARM_UP;
    let times = [from, from + MEASURED].map(|time| time.as_millis().to_string());
    let work = |pod: &str| -> Result<f64, String> {
        let said =
            space.exec(pod, &["tenant", "work", &times[0], &times[1]]).map_err(|error| error.to_string())?;
        let done = said.out.trim().strip_prefix("done ").and_then(|count| count.parse().ok());
        done.ok_or_else(|| format!("{pod}: found {said:?}, expected a count"))
    };
    let [first, second] = thread::scope(|scope| {
        let running = pods.map(|pod| scope.spawn(move || work(pod)));
        running.map(|thread| thread.join().unwrap_or_else(|_| Err("a thread ended".to_owned())))
    });
    let (first, second) = (first?, second?);
    let all = (first + second).max(1.0);
    Ok([first * 100.0 / all, second * 100.0 / all])
}

/// Waits until the agent's metrics name the container of each share, while both Pods compute.
fn containers_are_named(stage: &Stage, space: &Namespace<'_>, pods: [&str; 2]) {
    let mut found = String::new();
    for _ in 0..ATTEMPTS {
        let named = thread::scope(|scope| {
            let working = scope.spawn(|| computed(space, pods));
            let mut is_named = false;
            while !is_named && !working.is_finished() {
                thread::sleep(Duration::from_millis(200));
                found = stage.agent().metrics().unwrap();
                let shares =
                    found.lines().filter(|line| line.starts_with("aliquot_vgpu_memory_limit_bytes{"));
                is_named = shares.filter(|line| line.contains(",container=\"main\",")).count() == pods.len();
            }
            drop(working.join());
            is_named
        });
        if named {
            // A counter that began anew under the name would hide its growth.
            let mut counters =
                found.lines().filter(|line| line.starts_with("aliquot_vgpu_device_seconds_total{"));
            assert!(counters.all(|line| line.contains(",container=\"\",")), "{found}");
            return;
        }
    }
    panic!("found no container of each share among the metrics:\n{found}");
}

fn fits(had: &[f64; 2], wanted: [f64; 2], error: f64) -> bool {
    (had[0] - wanted[0]).abs() <= error
}

/// Measures until the shares are as wanted.
fn converges(
    space: &Namespace<'_>,
    pods: [&str; 2],
    wanted: [f64; 2],
    attempts: usize,
) -> Result<(), String> {
    let mut last = Err("never measured".to_owned());
    for _ in 0..attempts {
        last = computed(space, pods);
        if last.as_ref().is_ok_and(|had| fits(had, wanted, SHARE_ERROR)) {
            println!("{pods:?} had {last:?} percent, wanted {wanted:?}");
            return Ok(());
        }
    }
    Err(format!("{pods:?}: found {last:?} percent, expected {wanted:?}"))
}

#[test]
fn pods_with_shares_are_held_to_their_limits() {
    let Some(mut stage) = Stage::alone("shares") else { return };
    stage.start_agent("h200", "default = \"shared\"\n");
    let space = stage.namespace("all");
    for (name, cores) in [("quarter", 25), ("half", 50), ("rest", 75)] {
        space
            .create_object(&space.devices("resourceclaimtemplates"), &template(name, &share(LIMIT, cores)))
            .unwrap();
    }
    let quarter = create(&space, &pod("quarter", &[("gpu", "quarter")]));
    held_to_limit(&space, &quarter, &["tenant", "fill"]).unwrap();
    let empty = ["busybox", "env", "-i", HARDWARE[0], HARDWARE[1], "/bin/tenant", "fill"];
    held_to_limit(&space, &quarter, &empty).unwrap();
    let shown = space.exec(&quarter, &["tenant", "smi"]).unwrap().out;
    let one_card = shown.lines().count() == 1 && shown.contains(&format!(" total {LIMIT} "));
    assert!(one_card, "NVML: found {shown:?}, expected one card of {LIMIT} bytes");
    let mut user = pod("rest", &[("gpu", "rest")]);
    user["spec"]["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1000});
    let rest = create(&space, &user);
    held_to_limit(&space, &rest, &["tenant", "fill"]).unwrap();
    converges(&space, [&quarter, &rest], [25.0, 75.0], ATTEMPTS).unwrap();
    containers_are_named(&stage, &space, [&quarter, &rest]);
    // Each time in new processes; their numbers in the two containers may be equal.
    let again: Vec<_> = (0..AGAIN).map(|_| computed(&space, [&quarter, &rest])).collect();
    println!("again: {again:?}");
    let fit = again.iter().flatten().filter(|had| fits(had, [25.0, 75.0], AGAIN_ERROR)).count();
    assert!(fit + 1 >= AGAIN, "found {again:?} percent, expected 25 and 75, but for one");
    // A manifest with a container that does not name its claim has to be caught.
    space.delete_pod(&rest, None).unwrap();
    let mut broken = pod("broken", &[("gpu", "rest")]);
    broken["spec"]["containers"][0]["resources"] = json!({});
    let broken = create(&space, &broken);
    assert!(
        held_to_limit(&space, &broken, &["tenant", "fill"]).is_err(),
        "a container without its claim passed"
    );
    // So have Pods with other shares.
    for pod in [&broken, &quarter] {
        space.delete_pod(pod, None).unwrap();
    }
    let halves = ["half-1", "half-2"].map(|name| create(&space, &pod(name, &[("gpu", "half")])));
    let other = converges(&space, [&halves[0], &halves[1]], [25.0, 75.0], 1);
    assert!(other.is_err(), "two Pods with a half each passed as 25 and 75 percent");
    space.delete().unwrap();
    stage.finish();
}
