//! Shares of a real NVIDIA card in Pods, where the machine has one: memory, computing time, what NVML reports, an agent that
//! is killed. Layout and settings of the card stay as they are, so nothing is asked of partitions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use aliquot_cluster::{EXAMPLE_IMAGE, Image, MadeImage, Namespace};
use aliquot_driver::hardware::vendors::{DriverFiles, HostRoots};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::figures::{start, summary};
use crate::shares::{LIMIT, create, held_to_limit, share};
use crate::stage::{BRIEFLY, Stage, built, checkout, pod, template};
use crate::world::needs_own;

/// The driver's place on this machine, as for the agent.
const ROOT_VARIABLE: &str = "ALIQUOT_DRIVER_ROOT";
/// The tenant's image with the probe of `tests/gpu`, whose kernels a real driver compiles.
const IMAGE: &str = "localhost/aliquot-probe:1";
/// Kernels of a millisecond on every multiprocessor.
const NANOS: &str = "1000000";
const GRID: [&str; 2] = ["1056", "256"];
/// Kernels between two looks at the clock, seconds measured, of a window, and of work before.
const PACE: [&str; 4] = ["8", "5", "0.5", "2"];
/// How far a share of computing time may be off: alone in percent of the card, beside another Pod of what both do.
const ERROR: f64 = 3.0;
const ERROR_BESIDE: f64 = 5.0;
/// What two Pods do together at least, in percent of one alone: an H100 lost 6 to 11 to changes between processes.
const BOTH_MIN: f64 = 80.0;
const ROUNDS: usize = 5;

/// The driver of this machine, or `None` with the reason printed.
fn driver() -> Option<DriverFiles> {
    let root = std::env::var_os(ROOT_VARIABLE).map(PathBuf::from);
    let found = DriverFiles::find(&HostRoots { host: "/".into(), driver: root });
    let aside = match &found {
        _ if !Path::new("/dev/nvidiactl").exists() => "found no /dev/nvidiactl".to_owned(),
        Ok(files) if files.compute.is_some() => return found.ok(),
        Ok(files) => format!("driver root {}: found no libcuda.so.1", files.root.display()),
        Err(error) => error.to_string(),
    };
    println!("stood aside: this scenario needs a real card: {aside}");
    None
}

fn image(driver: &DriverFiles) -> Image {
    let directory = tempfile::tempdir().unwrap();
    let probe = directory.path().join("probe");
    let linked = Command::new(checkout("tests/gpu/link")).arg(&probe).status().unwrap();
    assert!(linked.success(), "tests/gpu/link: found {linked}, expected success");
    let image = MadeImage::tenant(IMAGE, &built("aliquot")).unwrap();
    image.program(&probe, "/bin/probe").unwrap();
    for library in [driver.compute.as_ref().unwrap(), &driver.management] {
        image.libraries_of(library).unwrap();
    }
    Image::Made(image)
}

/// A Pod of the probe's image with a claim.
fn tenant(name: &str, share: &str) -> Value {
    let text = pod(name, &[("gpu", share)]).to_string();
    serde_json::from_str(&text.replace(EXAMPLE_IMAGE, IMAGE)).unwrap()
}

/// Runs the probe in a Pod and returns the last line that begins with a key, without the key.
fn probe(space: &Namespace<'_>, pod: &str, words: &[&str], key: &str) -> Vec<f64> {
    let command: Vec<&str> = ["probe"].iter().chain(words).copied().collect();
    let said = space.exec(pod, &command).unwrap();
    let line = said.out.lines().rev().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    let line = line.unwrap_or_else(|| panic!("{pod} {words:?}: found {said:?}, expected a line of {key}"));
    line.split(' ').map(|word| word.parse().unwrap()).collect()
}

/// Kernels a second of Pods that work at the same time.
fn rates<const N: usize>(space: &Namespace<'_>, pods: [&str; N], units: &str) -> [f64; N] {
    let [batch, seconds, window, warm] = PACE;
    let words = ["spin", units, GRID[0], GRID[1], "plain", batch, seconds, window, warm];
    thread::scope(|scope| {
        let running = pods.map(|pod| scope.spawn(move || probe(space, pod, &words, "whole")));
        running.map(|thread| {
            let done = thread.join().unwrap();
            done[0] * 1e9 / done[1]
        })
    })
}

/// The card's whole rate, and the size of its kernels.
fn whole(space: &Namespace<'_>) -> (f64, String) {
    let whole = create(space, &tenant("whole", "whole"));
    let units = probe(space, &whole, &["calibrate", NANOS, GRID[0], GRID[1]], "units")[0].to_string();
    let [rate] = rates(space, [&whole], &units);
    space.delete_pod(&whole, None).unwrap();
    (rate, units)
}

#[test]
fn share_of_a_real_card_is_held_in_a_pod() {
    let Some(driver) = driver() else { return };
    if needs_own() {
        return;
    }
    let Some(mut stage) = Stage::alone("realcard") else { return };
    stage.cluster().import(&image(&driver)).unwrap();
    stage.start_agent_of_machine("default = \"shared\"\n");
    let space = stage.namespace("all");
    for (name, cores) in [("quarter", 25), ("rest", 75), ("whole", 100)] {
        space
            .create_object(&space.devices("resourceclaimtemplates"), &template(name, &share(LIMIT, cores)))
            .unwrap();
    }
    let (all, units) = whole(&space);
    let quarter = create(&space, &tenant("quarter", "quarter"));
    assert_limit(&space, &quarter);
    let [alone] = rates(&space, [&quarter], &units);
    let mut user = tenant("rest", "rest");
    user["spec"]["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1000});
    let rest = create(&space, &user);
    held_to_limit(&space, &rest, &["tenant", "fill"]).unwrap();
    let beside = rates(&space, [&quarter, &rest], &units);
    let [alone, of_quarter, of_rest] = [alone, beside[0], beside[1]].map(|rate| rate * 100.0 / all);
    println!(
        "{all:.0} kernels of {units} units a second; 25 % alone {alone:.1}, beside {of_quarter:.1} and {of_rest:.1}"
    );
    survives_kill(&stage, &space, &quarter);
    println!("{}", stage.agent().log(stage.cluster(), 100));
    for pod in [&quarter, &rest] {
        space.delete_pod(pod, None).unwrap();
    }
    assert_catches_pod_without_claim(&space);
    starts(&stage, &space);
    space.delete().unwrap();
    stage.finish();
    assert!((alone - 25.0).abs() <= ERROR, "found {alone:.1} % alone, expected 25");
    // A card that changes between processes does less in all, whatever divides it.
    let both = of_quarter + of_rest;
    let part = of_quarter * 100.0 / both;
    assert!(
        (part - 25.0).abs() <= ERROR_BESIDE && both >= BOTH_MIN,
        "found {of_quarter:.1} and {of_rest:.1} %, expected 25 and 75 of what both do, and {BOTH_MIN} in all"
    );
}

/// The limit, with and without an environment, and what NVML reports.
fn assert_limit(space: &Namespace<'_>, pod: &str) {
    held_to_limit(space, pod, &["tenant", "fill"]).unwrap();
    held_to_limit(space, pod, &["busybox", "env", "-i", "/bin/tenant", "fill"]).unwrap();
    let shown = space.exec(pod, &["tenant", "smi"]).unwrap().out;
    let one_card = shown.lines().count() == 1 && shown.contains(&format!(" total {LIMIT} "));
    assert!(one_card, "NVML: found {shown:?}, expected one card of {LIMIT} bytes");
    println!("NVML: {}", shown.trim());
    let smi = space.exec(pod, &["nvidia-smi"]).unwrap();
    println!("{}{}", smi.out, smi.err);
}

/// A container that does not name its claim has to be caught.
fn assert_catches_pod_without_claim(space: &Namespace<'_>) {
    let mut broken = tenant("broken", "quarter");
    broken["spec"]["containers"][0]["resources"] = json!({});
    let broken = create(space, &broken);
    let held = held_to_limit(space, &broken, &["tenant", "fill"]);
    assert!(held.is_err(), "a container without its claim passed");
    space.delete_pod(&broken, None).unwrap();
}

/// Limits hold while no agent runs, and the next agent continues with the Pod.
fn survives_kill(stage: &Stage, space: &Namespace<'_>, pod: &str) {
    stage.agent().end(stage.cluster(), Signal::SIGKILL).unwrap();
    held_to_limit(space, pod, &["tenant", "fill"]).unwrap();
    stage.agent().start_again(stage.cluster()).unwrap();
    stage.agent().wait_until_ready(stage.cluster()).unwrap();
    held_to_limit(space, pod, &["tenant", "fill"]).unwrap();
    thread::sleep(BRIEFLY);
}

/// How long Pods take to start, with a share and without a claim.
fn starts(stage: &Stage, space: &Namespace<'_>) {
    for (kind, claims) in [("share", &[("gpu", "quarter")][..]), ("none", &[])] {
        let times: Vec<Duration> = (0..ROUNDS)
            .map(|round| {
                let name = format!("{kind}-{round}");
                let took = start(space, stage, &name, claims);
                space.delete_pod(&name, None).unwrap();
                took
            })
            .collect();
        println!("created to Running, {kind}: {}", summary(times));
    }
}
