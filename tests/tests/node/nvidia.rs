//! This machine's own NVIDIA cards, without `--node`: found through the vendor's management library, handed out, held. What
//! is judged is the card's side.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use aliquot_sim_device::{Card, Health};
use aliquot_tests::local::{aliquot, copy_program, wait_for};
use aliquot_tests::machine::{CARDS, Machine};
use aliquot_tests::shares::share_becomes;
use aliquot_tests::simulated::Bench;
use serde_json::Value;

pub(crate) const GIB: u64 = 1 << 30;

/// The one that a list has.
pub(crate) fn only(list: &Value) -> &Value {
    match list.as_array().map(Vec::as_slice) {
        Some([one]) => one,
        _ => panic!("not one: {list}"),
    }
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn end(mut child: Child) -> Option<i32> {
    drop(child.stdin.take());
    child.wait().unwrap().code()
}

#[test]
fn cards_are_found_with_what_their_driver_says_of_them() {
    let machine = Machine::of(CARDS);
    let cards = machine.devices();
    let found = |card: &Value| {
        ["uuid", "model", "memory", "productName", "layout"].map(|key| card[key].as_str().unwrap().to_owned())
    };
    let found: Vec<[String; 5]> = cards.iter().map(found).collect();
    let h100 = "GPU-a11c0de0-51a0-4c4d-8000-000000000000";
    assert_eq!(found[0], [h100, "nvidia-h100-80gb-sxm", "81559Mi", "NVIDIA H100 80GB HBM3", "shared"]);
    let t4 = "GPU-74740000-0000-0000-0000-000000000001";
    assert_eq!(found[1], [t4, "nvidia-t4-16gb", "15Gi", "Tesla T4", "shared"]);
    let rtx = ["GPU-40900000-0000-0000-0000-000000000002", "nvidia-geforce-rtx-4090", "24564Mi"];
    assert_eq!(found[2], [rtx[0], rtx[1], rtx[2], "NVIDIA GeForce RTX 4090", "shared"]);
    let table = machine.aliquot("devices", &[]).output().unwrap();
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(
        table.starts_with("Node machine: NVIDIA driver 580.65.06 (3 cards, this machine's own)\n"),
        "{table}"
    );
}

#[test]
fn a_command_gets_its_part_of_a_card_and_no_more() {
    let machine = Machine::of(CARDS);
    let script = r#"echo "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER|${LD_PRELOAD##*/}|$LD_LIBRARY_PATH"; ls $ALIQUOT_GRANTS/*; exit 7"#;
    let output = machine
        .aliquot("run", &["--memory", "8Gi", "--cores", "25", "--card", "1", "--", "sh", "-c", script])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let libraries = machine.bench.libraries();
    let expected = format!("1 PCI_BUS_ID|libaliquot.so|{}\ngrant.json\nlimits\nusage\n", libraries.display());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        expected,
        "the vendor's libraries are where they were"
    );
    assert_eq!((machine.claims(), err(&output)), (0, String::new()));

    let card = machine.bench.card();
    let (child, words) = machine.tenant(&["--memory", "4Gi", "--card", "0"], &["fill", "16384"]);
    assert_eq!((words[0].as_str(), words[4].as_str()), ("filled", "CUDA_ERROR_OUT_OF_MEMORY"), "{words:?}");
    assert_eq!(words[6].parse::<u64>().unwrap(), 4 * GIB, "the part is shown as the card: {words:?}");
    let held = card.high_water();
    assert!(held <= 4 * GIB && held > 3 * GIB, "{held} bytes of {}", 4 * GIB);
    let in_use = &machine.devices()[0]["inUse"][0];
    assert_eq!((in_use["memoryUsed"].as_str(), in_use["memory"].as_str()), (Some("4Gi"), Some("81559Mi")));
    // Without the shim the same program gets its whole request.
    let mut bare = machine.bench.command(aliquot());
    let mut bare = bare
        .args(["demo-tenant", "fill", "16384"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(bare.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(card.high_water() > 16 * GIB, "{}", card.high_water());
    assert_eq!(end(bare), Some(0));
    assert_eq!(end(child), Some(0));
}

/// Keeps `aliquot` from finding out how much of the card a context takes; programs on the card do not ask this.
fn keep_the_size_of_contexts_unknown(machine: &Machine) {
    let fault =
        "[[fault]]\nsymbol = \"nvmlDeviceGetGraphicsRunningProcesses_v3\"\naction = { error = 999 }\n";
    machine.bench.write("faults.toml", fault);
}

#[test]
fn process_beside_a_full_part_is_refused_before_its_context() {
    let machine = Machine::of("[[card]]");
    keep_the_size_of_contexts_unknown(&machine);
    let script = r#"exec 3<&0; "$0" demo-tenant fill 16384 <&3 >first &
        until grep -qs filled first; do sleep 0.1; done; cat first
        for late in 1 2; do "$0" demo-tenant fill 1 </dev/null; done; echo over; wait"#;
    let mut run = machine.aliquot("run", &["--memory", "3Gi", "--", "sh", "-c", script]);
    run.arg(aliquot()).current_dir(machine.dir()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let lines = BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said: Vec<String> = lines.take_while(|line| line != "over").collect();
    let refused = |line: &String| line.starts_with("failed") && line.contains("CUDA_ERROR_OUT_OF_MEMORY");
    assert!(said.len() == 3 && said[1..].iter().all(refused), "{said:?}");
    let highest = machine.bench.card().high_water();
    assert!(highest <= 3 * GIB && highest > 2 * GIB, "{highest} bytes of {}", 3 * GIB);
    assert_eq!(end(run), Some(0));
}

#[test]
fn part_without_room_for_a_context_is_given_with_a_warning() {
    let machine = Machine::of("[[card]]");
    let run = |memory: &str| machine.aliquot("run", &["--memory", memory, "--", "true"]).output().unwrap();
    let too_small = "the part has 511Mi of memory, and what a context of this card takes is not known: with less than 512Mi";
    let unknown = "what a context takes cannot be measured: ";
    keep_the_size_of_contexts_unknown(&machine);
    for (memory, warnings) in [("511Mi", &[unknown, too_small][..]), ("512Mi", &[unknown])] {
        let output = run(memory);
        let said = err(&output);
        let are_said = warnings.iter().zip(said.lines()).all(|(warning, line)| line.contains(warning));
        assert!(output.status.success() && are_said && said.lines().count() == warnings.len(), "{said}");
    }
    fs::remove_file(machine.bench.cards().join("faults.toml")).unwrap();
    assert_eq!(err(&run("481Mi")), "");
    let warning = "the part has 480Mi of memory, and a context of this card alone takes 480Mi";
    assert!(err(&run("480Mi")).contains(warning));
}

#[test]
fn runs_share_a_card_on_one_ledger() {
    let machine = Machine::of("[[card]]");
    let (one, _) = machine.tenant(&["--memory", "55Gi", "--cores", "60"], &["fill", "1"]);
    for (ask, words) in
        [(["--memory", "30Gi"], "too little `memory` left"), (["--cores", "50"], "too little `cores` left")]
    {
        let refused = machine.aliquot("run", &ask).args(["--", "true"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(125), "{refused:?}");
        assert!(err(&refused).contains(words), "{}", err(&refused));
    }
    let quarter = machine
        .aliquot("run", &["--fraction", "1/4", "--", "sh", "-c", "cat $ALIQUOT_GRANTS/*/grant.json"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&quarter.stdout).into_owned();
    assert!(said.contains("25") && quarter.status.success(), "{quarter:?}");
    assert_eq!(end(one), Some(0));
}

#[test]
fn nested_run_keeps_the_outer_limit_and_sees_the_whole_card() {
    let machine = Machine::of("[[card]]");
    // The inner one is there while a program of the outer one takes what it can get.
    let script = r#"limits=$(echo $ALIQUOT_GRANTS/*/limits); cp $limits before; mkfifo hold
        "$0" devices --state "$1" -o json >devices; "$0" top --state "$1" -o json --interval 0 >top
        "$0" run --state "$1" --memory 1Gi -- sh -c 'echo; read end' <hold >inner & exec 3>hold
        until [ -s inner ]; do sleep 0.1; done
        "$0" demo-tenant fill 16384; cmp $limits before; exec 3>&-; wait"#;
    let mut run = machine.aliquot("run", &["--memory", "4Gi", "--", "sh", "-c", script]);
    run.arg(aliquot()).arg(machine.state()).current_dir(machine.dir()).stdin(Stdio::null());
    let output = run.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with("filled") && said.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{said}");
    assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()));
    let highest = machine.bench.card().high_water();
    assert!(highest <= 4 * GIB && highest > 3 * GIB, "{highest} bytes of {}", 4 * GIB);

    let seen =
        |file: &str| serde_json::from_slice::<Value>(&fs::read(machine.dir().join(file)).unwrap()).unwrap();
    let card = &seen("devices")["nodes"][0]["cards"][0];
    assert_eq!(
        (card["memory"].as_str(), card["inUse"][0]["memory"].as_str()),
        (Some("81559Mi"), Some("81559Mi"))
    );
    let card = &seen("top")["cards"][0];
    assert_eq!(
        (card["memoryBytes"].as_u64(), card["driver"]["usedBytes"].as_u64()),
        (Some(81_559 << 20), Some(0))
    );
    let share = &card["shares"][0];
    assert_eq!(
        (share["memory"]["limitBytes"].as_u64(), share["unknownSymbols"].as_u64()),
        (Some(4 * GIB), Some(0))
    );
}

#[test]
fn holder_of_promised_memory_is_named() {
    let machine = Machine::of("[[card]]");
    let run = |memory: &str| machine.aliquot("run", &["--memory", memory, "--", "true"]).output().unwrap();
    let mut stranger = machine.bench.command(aliquot());
    stranger.args(["demo-tenant", "fill", "51200"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut stranger = stranger.spawn().unwrap();
    BufReader::new(stranger.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let short = run("40Gi");
    let words = format!(
        "of 81559Mi in all; the card may refuse granted memory until these processes end: {}",
        stranger.id()
    );
    assert_eq!(short.status.code(), Some(0), "{short:?}");
    assert!(
        err(&short).contains("40Gi granted in this state and") && err(&short).contains(&words),
        "{}",
        err(&short)
    );
    // A tenant that fits beside it causes no message, and a process with a grant is no stranger.
    let (held, _) = machine.tenant(&["--memory", "20Gi"], &["fill", "10240"]);
    let beside = run("5Gi");
    assert_eq!((beside.status.code(), err(&beside)), (Some(0), String::new()));
    assert_eq!((end(stranger).is_some(), end(held).is_some()), (true, true));
}

#[test]
fn part_of_a_killed_supervisor_is_released_with_the_next_call() {
    let machine = Machine::of("[[card]]");
    let (mut child, words) = machine.tenant(&["--memory", "60Gi"], &["fill", "1"]);
    let tenant = words[1].clone();
    // Its input stays open, so that the command continues without its supervisor.
    let input = child.stdin.take();
    child.kill().unwrap();
    child.wait().unwrap();
    let refused = machine.aliquot("run", &["--memory", "60Gi", "--", "true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(125), "the command still runs: {refused:?}");
    drop(input);
    wait_for("its end", || !Path::new(&format!("/proc/{tenant}")).exists());
    let next = machine.aliquot("run", &["--memory", "60Gi", "--", "sh", "-c", "exit 3"]).output().unwrap();
    assert_eq!((next.status.code(), machine.claims()), (Some(3), 0), "{next:?}");
}

#[test]
fn card_with_unreadable_mig_mode_takes_no_claim() {
    let silent = Machine::with(Bench::without(&["nvmlDeviceGetMigMode"]));
    for card in silent.devices() {
        assert!(card["health"]["why"].as_str().unwrap().contains("MIG mode: found no answer"), "{card}");
    }
    let refused = silent.aliquot("run", &["--memory", "1Gi", "--", "true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(err(&refused).contains("aliquot.dev/unhealthy"), "{}", err(&refused));
}

#[test]
fn a_lost_card_is_named_and_the_others_serve() {
    let machine = Machine::new();
    let card = |index: usize| -> Card { machine.bench.device().card(index).unwrap().clone() };
    card(0).set_health(Health::Lost);
    let output = machine
        .aliquot("run", &["--memory", "1Gi", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 4"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "GPU-a11c0de0-51a0-4c4d-8000-000000000001\n");
    assert!(err(&output).starts_with("warning: card 0: NVML error 15: "), "{}", err(&output));
    assert!(err(&output).contains("reset it"), "{}", err(&output));
    let refused = machine.aliquot("run", &["--card", "0", "--", "true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(
        err(&refused).contains("--card 0: there is no such card; expected the index of one, its UUID or the beginning of that: 1 (GPU-"),
        "{}",
        err(&refused)
    );
    card(1).set_health(Health::Lost);
    let refused = machine.aliquot("devices", &[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    assert!(
        err(&refused).contains("NVIDIA cards: found none, expected at least one; card 0: NVML error 15"),
        "{}",
        err(&refused)
    );
    // A claim outlives the loss of its card, and goes back with it gone.
    card(1).set_health(Health::Well);
    let (child, _) = machine.tenant(&["--memory", "1Gi"], &["fill", "1"]);
    card(1).set_health(Health::Lost);
    card(0).set_health(Health::Well);
    assert!(end(child).is_some());
    let next = machine.aliquot("run", &["--memory", "1Gi", "--", "sh", "-c", "exit 5"]).output().unwrap();
    assert_eq!((next.status.code(), machine.claims()), (Some(5), 0), "{next:?}");
}

#[test]
fn a_driver_that_cannot_be_used_is_refused_with_what_to_do() {
    let broken = Machine::new();
    fs::remove_file(broken.bench.libraries().join("libnvidia-ml.so.1")).unwrap();
    fs::write(broken.bench.libraries().join("libnvidia-ml.so.1"), "no library").unwrap();
    let fails = Machine::new();
    fails
        .bench
        .write("faults.toml", "[[fault]]\nsymbol = \"nvmlDeviceGetCount_v2\"\naction = { error = 999 }\n");
    let without = |symbol: &str| Machine::with(Bench::without(&[symbol]));
    for (machine, words) in [
        (
            broken,
            "NVIDIA driver library: found no libnvidia-ml.so.1 that can be loaded, expected that of driver 510",
        ),
        (
            Machine::of("driver = \"470.57.02\""),
            "NVIDIA driver: found version 470.57.02, expected 510 or newer: install",
        ),
        (Machine::of("driver = \"none\""), "NVIDIA driver: found version none, expected 510"),
        (
            Machine::of("no node file"),
            "NVIDIA driver: found its library, and none in the kernel, expected 510",
        ),
        (Machine::of("card = []"), "NVIDIA cards: found none, expected at least one"),
        (without("nvmlInit_v2"), "nvmlInit_v2"),
        (without("nvmlDeviceGetUUID"), "nvmlDeviceGetUUID"),
        (without("nvmlDeviceGetMemoryInfo_v2"), "memory: found no size, expected bytes"),
        (fails, "number of cards: found an error, expected an answer"),
    ] {
        for (command, code) in [("devices", 3), ("run", 125)] {
            let rest: &[&str] = if command == "run" { &["--", "true"] } else { &[] };
            let output = machine.aliquot(command, rest).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{words}: {output:?}");
            let said = err(&output);
            assert!(said.starts_with("error: NVIDIA ") && said.contains(words), "{words}: {said}");
            assert!(said.contains("--node h100-8"), "{said}");
        }
    }
}

#[test]
fn a_machine_without_nvidia_is_told_so() {
    let listed = Command::new("sh").args(["-c", "PATH=$PATH:/sbin ldconfig -p"]).output().unwrap();
    if String::from_utf8_lossy(&listed.stdout).contains("libnvidia-ml.so.1") {
        println!("stood aside: this machine has NVIDIA's library");
        return;
    }
    let output = Command::new(aliquot()).env_remove("LD_LIBRARY_PATH").arg("devices").output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(err(&output).contains("install NVIDIA's driver, or name the directory"), "{}", err(&output));
}

#[test]
fn runs_have_their_parts_of_a_cards_time() {
    let machine = Machine::of("[[card]]");
    let work = ["work", "1000000"];
    let pid = |words: &[String]| words[1].parse::<u32>().unwrap();
    let (quarter, first) = machine.tenant(&["--memory", "1Gi", "--cores", "25"], &work);
    let (rest, second) = machine.tenant(&["--memory", "1Gi", "--cores", "50"], &work);
    let card = machine.bench.card();
    share_becomes(&card, pid(&first), 22, 28);
    share_becomes(&card, pid(&second), 47, 53);
    assert_eq!((end(quarter).is_some(), end(rest).is_some()), (true, true));
}

/// The part of the card's time that a tenant has under 50 %, from the start of one kernel of 524 ms to the start of another.
fn half_of_long_kernels(process_samples: &str) -> f64 {
    const KERNELS: usize = 16;
    let machine = Machine::of(&format!("process_samples = \"{process_samples}\"\n[[card]]\n"));
    let work = ["work", "524000000"];
    let (tenant, words) = machine.tenant(&["--memory", "1Gi", "--cores", "50"], &work);
    let (card, pid) = (machine.bench.card(), words[1].parse::<u32>().unwrap());
    let kernels =
        || card.trace(pid).into_iter().map(|run| (run.start, run.end - run.start)).collect::<Vec<_>>();
    wait_for("the first kernels", || kernels().len() > 3);
    let before = kernels().len();
    wait_for("sixteen kernels more", || kernels().len() > before + KERNELS);
    let run = kernels();
    end(tenant);
    let (first, last) = (run[before].0, run[before + KERNELS].0);
    let busy: u64 = run[before..before + KERNELS].iter().map(|(_, length)| length).sum();
    busy as f64 * 100.0 / (last - first) as f64
}

#[test]
fn long_kernels_keep_their_share_under_both_kinds_of_samples() {
    let shares = std::thread::scope(|scope| {
        ["average", "last"]
            .map(|kind| scope.spawn(move || (kind, half_of_long_kernels(kind))))
            .map(|run| run.join().unwrap())
    });
    for (kind, share) in shares {
        println!("{kind}: {share:.1} %");
        assert!((48.0..=52.0).contains(&share), "{kind}: {share:.1} %");
    }
}

#[test]
fn an_ordinary_users_runs_are_known_to_all_of_its_commands() {
    let machine = Machine::of(CARDS);
    let home = machine.dir().join("home");
    fs::create_dir(&home).unwrap();
    // The build directory, and those of a test, may be closed to others.
    let program = machine.dir().join("aliquot");
    copy_program(aliquot(), &program);
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let bench = machine.bench.cards();
    for path in [machine.dir(), bench.parent().unwrap(), &machine.bench.libraries(), &bench, &home, &program]
    {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let command = |words: &[&str]| {
        let mut command = machine.bench.command(&program);
        command.args(words).current_dir(&home).env("HOME", &home).env_remove("XDG_STATE_HOME");
        if root {
            command.uid(65534).gid(65534);
        }
        command
    };
    let run = ["run", "--memory", "2Gi", "--card", "1", "--", "sh", "-c", "echo ready; read line; exit 9"];
    let mut child = command(&run).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap(), "ready");
    assert!(
        home.join(".local/state/aliquot/journal").exists() && home.join(".local/state/aliquot/lib").exists()
    );
    let said = |words: &[&str]| {
        let output = command(words).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let devices = said(&["devices", "-o", "json"]);
    assert_eq!(devices["nodes"][0]["cards"][1]["inUse"][0]["memoryUsed"], "2Gi", "{devices}");
    // Without --state every card is shown, and what is promised on it.
    let top = said(&["top", "-n", "0", "-o", "json"]);
    let granted = |uuid: &str| {
        let cards = top["cards"].as_array().unwrap();
        cards.iter().find(|card| card["uuid"] == uuid).map(|card| card["grantedBytes"].as_u64())
    };
    assert_eq!(granted("GPU-74740000-0000-0000-0000-000000000001"), Some(Some(2 * GIB)), "{top}");
    assert_eq!(granted("GPU-40900000-0000-0000-0000-000000000002"), Some(Some(0)), "{top}");
    assert_eq!(end(child), Some(9));
}
