//! How much of a card a context takes, measured by the host before tenants come, on this machine's own cards. What is judged is
//! the card's side, and what the limits of a grant say.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use aliquot_abi::layout::usage;
use aliquot_abi::limits::Pages;
use aliquot_core::units::Bytes;
use aliquot_driver::region::{self, Footprint, GrantPaths};
use aliquot_tests::local::{aliquot, copy_program, opened_to_everybody, wait_for};
use aliquot_tests::machine::Machine;
use aliquot_tests::preload::shim;
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;

const MIB: u64 = 1 << 20;
/// Of the simulated cards, as `driver/backends/sim/README.md` says.
const CONTEXT: u64 = 480 * MIB;
const CARD: &str = "GPU-a11c0de0-51a0-4c4d-8000-000000000000";
/// The message for an unknown size.
const UNKNOWN: &str = "what a context takes cannot be measured: ";

/// One card on which contexts take so much.
fn machine(context: u64) -> Machine {
    Machine::of(&format!("context_bytes = {context}\n[[card]]\n"))
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn kept(machine: &Machine) -> PathBuf {
    machine.state().join("contexts")
}

/// A process without a grant that holds so many MiB and a context.
fn stranger(machine: &Machine, mib: u64) -> Child {
    let mut stranger = machine.bench.command(aliquot());
    stranger.args(["demo-tenant", "fill", &mib.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut stranger = stranger.spawn().unwrap();
    BufReader::new(stranger.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    stranger
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// A tenant that runs commands from its input; `None`: no C compiler here.
fn tenant(machine: &Machine, memory: u64) -> Option<Talk> {
    let program = match machine.bench.compile("shim_overhead", Link::Opened) {
        Ok(program) => program,
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            return None;
        }
    };
    let mut run = machine.aliquot("run", &["--memory", &format!("{memory}")]);
    Some(Talk::start(run.arg("--").arg(program)))
}

/// Without a size that is known the first context counts for 512 MiB here, as there are no two of them to be measured.
#[test]
fn context_larger_than_assumed_never_passes_the_limit() {
    let (context, limit) = (700 * MIB, 1020 * MIB);
    let machine = machine(context);
    let Some(mut tenant) = tenant(&machine, limit) else { return };
    assert_eq!(tenant.say("retain 0"), "0");
    let mut held = context;
    while tenant.say(&format!("alloc {}", 16 * MIB)) == "0" {
        held += 16 * MIB;
    }
    let highest = machine.bench.card().high_water();
    assert!(held <= limit && limit - held < 16 * MIB && highest == held, "{held}, {highest} of {limit}");
    tenant.end();
}

#[test]
fn context_over_limit_is_refused_even_for_the_first_process() {
    let machine = machine(700 * MIB);
    let Some(mut tenant) = tenant(&machine, 600 * MIB) else { return };
    machine.fault("cuCtxCreate_v2", "\"kill\"");
    assert_eq!((tenant.say("retain 0"), machine.bench.card().in_use()), ("2".to_owned(), 0));
    tenant.end();
}

#[test]
fn a_small_part_of_a_card_that_others_use_has_its_context() {
    let machine = machine(100 * MIB);
    let stranger = stranger(&machine, 2048);
    let strangers = machine.bench.card().in_use();
    let Some(mut tenant) = tenant(&machine, 256 * MIB) else { return end(stranger) };
    assert_eq!(tenant.say("retain 0"), "0");
    assert_eq!(tenant.say(&format!("alloc {}", 156 * MIB)), "0");
    assert_eq!(tenant.say("alloc 512"), "2");
    assert_eq!(machine.bench.card().in_use() - strangers, 256 * MIB);
    tenant.end();
    end(stranger);
}

#[test]
fn measured_size_is_kept_until_the_driver_changes() {
    let machine = machine(700 * MIB);
    assert_eq!(machine.told_quietly(), 700 * MIB);
    machine.fault("cuDevicePrimaryCtxRetain", "{ error = 999 }");
    assert_eq!(machine.told_quietly(), 700 * MIB, "a known size is not measured again");
    machine.no_fault();
    machine.bench.write("node.toml", "driver = \"590.10.01\"\ncontext_bytes = 734003201\n[[card]]\n");
    assert_eq!(machine.told_quietly(), 734_003_201);
}

#[test]
fn damaged_sizes_are_measured_again() {
    let machine = machine(CONTEXT);
    assert_eq!(machine.told_quietly(), CONTEXT);
    let (path, right) = (kept(&machine), fs::read_to_string(kept(&machine)).unwrap());
    assert!(right.contains(&format!("{CARD} whole {CONTEXT} 21 21\n")), "{right}");
    let wrong = right.replacen("503316480", "103316480", 1);
    let texts =
        ["", "aliquot-contexts", &right[..right.len() - 1], &wrong, "\0\u{fffd}", &"a".repeat(1 << 20)];
    for text in texts {
        fs::write(&path, text).unwrap();
        let (output, published) = machine.told(&["--memory", "1Gi"]);
        let (said, begins) = (err(&output), format!("warning: {}: kept context", path.display()));
        assert!(said.starts_with(&begins) && said.contains("found") && said.lines().count() == 1, "{said}");
        assert_eq!(published, CONTEXT);
        assert_eq!(fs::read_to_string(&path).unwrap(), right, "written anew");
    }
}

#[test]
fn damaged_sizes_without_a_measurement_leave_2_mib_pages() {
    let machine = Machine::of("page_bytes = 65536\n[[card]]\n");
    let pages =
        |(output, _): (Output, u64)| (err(&output), region::read(&machine.dir().join("seen")).unwrap().pages);
    assert_eq!(pages(machine.told(&["--memory", "1Gi"])), (String::new(), Pages::measured(16, 16).unwrap()));
    let right = fs::read_to_string(kept(&machine)).unwrap();
    fs::write(kept(&machine), right.replace("16 16", "12 12")).unwrap();
    machine.fault("cuDevicePrimaryCtxRetain", "{ error = 2 }");
    let (said, found) = pages(machine.told(&["--memory", "1Gi"]));
    assert_eq!(found, Pages::ASSUMED);
    assert!(said.contains(": content: found ") && said.contains("pages of 2 MiB are assumed"), "{said}");
}

#[test]
fn unmeasurable_part_is_given_with_one_line_of_reason() {
    for (node, symbol, action, why) in [
        ("[[card]]", "cuInit", "{ error = 100 }", "cuInit: CUDA_ERROR_NO_DEVICE"),
        ("[[card]]", "cuDevicePrimaryCtxRetain", "{ error = 2 }", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("[[card]]", "cuDevicePrimaryCtxRetain", "\"kill\"", "the process ended before it had a context"),
        (
            "[[card]]\ncompute_mode = \"prohibited\"",
            "none",
            "\"kill\"",
            "cuDevicePrimaryCtxRetain: CUDA_ERROR",
        ),
    ] {
        let machine = Machine::of(node);
        machine.fault(symbol, action);
        let (output, published) = machine.told(&["--memory", "1Gi"]);
        let said = err(&output);
        let is_said = said.starts_with(&format!("warning: card {CARD}: {UNKNOWN}")) && said.contains(why);
        assert!(is_said && said.lines().count() == 1 && published == 0, "{why}: {said}, {published}");
        assert!(!kept(&machine).exists(), "{why}");
    }
    let broken = machine(CONTEXT);
    fs::remove_file(broken.bench.libraries().join("libcuda.so.1")).unwrap();
    fs::write(broken.bench.libraries().join("libcuda.so.1"), "no library").unwrap();
    let old = Machine::with(Bench::without(&["cuDeviceGetUuid_v2"]));
    for (machine, why) in [(broken, "libcuda.so.1: "), (old, "libcuda.so.1 has no cuDeviceGetUuid_v2")] {
        let (output, published) = machine.told(&["--memory", "1Gi"]);
        let said = err(&output);
        assert!(said.contains(UNKNOWN) && said.contains(why) && published == 0, "{why}: {said}");
    }
}

#[test]
fn card_in_use_by_foreign_processes_is_measured_afterwards() {
    for (mode, mib, why) in [("default", 80_896, "OUT_OF_MEMORY"), ("exclusive", 1, "DEVICE_UNAVAILABLE")] {
        let machine = Machine::of(&format!("[[card]]\ncompute_mode = \"{mode}\"\n"));
        let stranger = stranger(&machine, mib);
        let (output, published) = machine.told(&["--memory", "1Gi"]);
        let said = err(&output);
        assert!(said.contains(UNKNOWN) && said.contains(why) && published == 0, "{mode}: {said}");
        end(stranger);
        assert_eq!(machine.told_quietly(), CONTEXT, "{mode}");
    }
}

#[test]
fn context_is_measured_only_by_a_run_that_is_alone() {
    let machine = machine(CONTEXT);
    machine.fault("cuDevicePrimaryCtxRetain", "{ error = 999 }");
    let mut other = machine.aliquot("run", &["--memory", "40Gi", "--", "sh", "-c", "echo ready; read line"]);
    let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let line = BufReader::new(other.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    assert_eq!(line, "ready");
    machine.no_fault();
    assert_eq!((machine.told_quietly(), machine.bench.card().high_water()), (0, 0), "no context was made");
    end(other);
    assert_eq!((machine.told_quietly(), machine.claims()), (CONTEXT, 0));
    // One context, and the small allocations that tell the pages.
    let highest = machine.bench.card().high_water();
    assert!((CONTEXT..CONTEXT + 128 * MIB).contains(&highest), "{highest}");
}

#[test]
fn driver_without_process_list_is_measured_by_memory_deltas() {
    let machine = machine(700 * MIB);
    let stranger = stranger(&machine, 1024);
    machine.fault("nvmlDeviceGetComputeRunningProcesses_v3", "{ error = 3 }");
    assert_eq!(machine.told_quietly(), 700 * MIB);
    end(stranger);
}

#[test]
fn shares_of_an_instance_are_measured_there_whole_ones_are_not() {
    let card = "mig_access = \"anybody\"\ncontext_bytes = 209715200\n[[card]]\nmig = \"on\"\n";
    let machine = Machine::of(card);
    let (output, published) = machine.told(&["--template", "1g.10gb"]);
    assert_eq!((published, err(&output).as_str(), kept(&machine).exists()), (0, "", false));
    let (output, published) = machine.told(&["--template", "1g.10gb", "--memory", "2Gi"]);
    assert_eq!((published, err(&output).as_str()), (209_715_200, ""));
    let text = fs::read_to_string(kept(&machine)).unwrap();
    assert!(text.contains(&format!("{CARD} 1g.10gb 209715200 21 21\n")), "{text}");
    assert_eq!(machine.bench.card().mig_devices(), []);
}

#[test]
fn a_driver_that_does_not_answer_is_not_waited_for_long() {
    let machine = machine(CONTEXT);
    machine.fault("cuDevicePrimaryCtxRetain", "{ slow_nanos = 3600000000000 }");
    let (output, published) = machine.told(&["--memory", "1Gi"]);
    let said = err(&output);
    assert!(said.contains(UNKNOWN) && said.contains("no context was there within 20 s"), "{said}");
    assert_eq!((published, machine.bench.card().processes().len()), (0, 0));
    // It would be known now; no run tries so soon again, and each says why.
    machine.no_fault();
    for _ in 0..2 {
        let (output, published) = machine.told(&["--memory", "1Gi"]);
        let said = err(&output);
        let is_said = said.contains(UNKNOWN) && said.contains("no context was there within 20 s (tried ");
        assert!(is_said && said.lines().count() == 1 && published == 0, "{said}, {published}");
    }
    assert_eq!(machine.bench.card().high_water(), 0, "no context was made");
    let node = format!("driver = \"590.10.01\"\ncontext_bytes = {CONTEXT}\n[[card]]\n");
    machine.bench.write("node.toml", &node);
    assert_eq!(machine.told_quietly(), CONTEXT, "another driver may answer");
}

/// Standard error is a terminal, as a person has it.
#[test]
fn long_measurement_is_announced() {
    let machine = machine(CONTEXT);
    machine.fault("cuDevicePrimaryCtxRetain", "{ slow_nanos = 1500000000 }");
    let nix::pty::OpenptyResult { master, slave } = nix::pty::openpty(None, None).unwrap();
    let mut run = machine.aliquot("run", &["--memory", "1Gi", "--", "true"]);
    assert_eq!(run.stderr(slave).status().unwrap().code(), Some(0));
    // A reader of a terminal without writers reads no end of a file, but an error.
    drop(run);
    let mut said = Vec::new();
    drop(fs::File::from(master).read_to_end(&mut said));
    let line = format!("measuring what a context of card {CARD} takes\r\n");
    assert_eq!(String::from_utf8_lossy(&said), line);
}

#[test]
fn containers_of_a_simulated_node_get_its_context_size() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let share = include_str!("../../golden/input/share.yaml");
    let shares = || {
        let claims = fs::read_dir(dir.path().join("state/grants")).unwrap();
        let shares = claims.flat_map(|claim| fs::read_dir(claim.unwrap().path()).unwrap());
        // Beside them lies what its containers load.
        let shares = shares.map(|share| share.unwrap().path()).filter(|share| share.is_dir());
        shares.map(|share| GrantPaths { dir: share, lock: dir.path().join("state/limits.lock") })
    };
    let prepared = |claim: &str| {
        fs::write(at("claim.yaml"), share.replace("name: share\n", &format!("name: {claim}\n"))).unwrap();
        let mut prepare = Command::new(aliquot());
        prepare.args(["prepare", "-f", &at("claim.yaml"), "--node", "h100-8", "--state", &at("state")]);
        let output = prepare.output().unwrap();
        assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()));
        let told = |place: GrantPaths| region::read(&place.limits()).unwrap().context_bytes;
        let mut told: Vec<u64> = shares().map(told).collect();
        told.sort_unstable();
        told
    };
    assert_eq!(prepared("first"), [CONTEXT]);
    fs::create_dir(dir.path().join("state/cards")).unwrap();
    fs::write(dir.path().join("state/cards/node.toml"), "context_bytes = 734003200").unwrap();
    assert_eq!(prepared("second"), [CONTEXT, 700 * MIB]);
    // As a version before this one, or a kill, leaves them.
    shares().for_each(|place| {
        place.publish_context(Footprint { context: Bytes(0), pages: Pages::ASSUMED }).unwrap();
    });
    assert_eq!(prepared("third"), [700 * MIB; 3]);
    assert!(!dir.path().join("state/contexts").exists());
}

/// Processes that were started by this one.
fn children(pid: u32) -> Vec<u32> {
    let of = |entry: fs::DirEntry| {
        let child = entry.file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let parent =
            status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse::<u32>().ok()?;
        (parent == pid).then_some(child)
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| of(entry.ok()?)).collect()
}

fn is_holder(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains("hold-context")
}

/// A run that measures, and the process that is to have a context.
fn measuring(machine: &Machine) -> (Child, u32) {
    let mut run = machine.aliquot("run", &["--memory", "1Gi", "--", "true"]);
    run.env("LD_PRELOAD", shim()).env("CUDA_MODULE_LOADING", "EAGER").env("ALIQUOT_GRANTS", machine.dir());
    let run = run.spawn().unwrap();
    let mut holder = None;
    wait_for("the process with a context", || {
        holder = children(run.id()).into_iter().find(|pid| is_holder(*pid));
        holder.is_some()
    });
    (run, holder.unwrap())
}

#[test]
fn killed_measurement_leaves_no_process_context_or_claim() {
    const HOUR: &str = "action = { slow_nanos = 3600000000000 }";
    for (fault, there) in [
        ("symbol = \"cuDevicePrimaryCtxRetain\"", 0),
        // A query while the context exists.
        ("symbol = \"nvmlDeviceGetGraphicsRunningProcesses_v3\"\ncall = 2", CONTEXT),
    ] {
        let machine = machine(CONTEXT);
        machine.bench.write("faults.toml", &format!("[[fault]]\n{fault}\n{HOUR}\n"));
        let (mut killed, holder) = measuring(&machine);
        wait_for("its context", || machine.bench.card().in_use() == there);
        let environment = fs::read(format!("/proc/{holder}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let named = |name: &str| environment.split('\0').any(|entry| entry.starts_with(name));
        let others = ["LD_PRELOAD", "CUDA_MODULE", "ALIQUOT_GRANTS"].map(named);
        assert!(named(&format!("CUDA_VISIBLE_DEVICES={CARD}")) && others == [false; 3], "{environment}");
        killed.kill().unwrap();
        killed.wait().unwrap();
        wait_for("its end", || {
            let stat = fs::read_to_string(format!("/proc/{holder}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
        machine.no_fault();
        assert_eq!((machine.bench.card().processes().len(), kept(&machine).exists()), (0, false));
        let (output, published) = machine.told(&["--memory", "1Gi"]);
        assert_eq!((published, machine.claims()), (CONTEXT, 0), "{}", err(&output));
    }
}

/// Its parent was killed before it could set its parent-death signal.
#[test]
fn measured_process_does_not_start_without_its_measurer() {
    let machine = machine(CONTEXT);
    machine.fault("cuInit", "{ slow_nanos = 3600000000000 }");
    let (input, starter) = std::io::pipe().unwrap();
    drop(starter);
    let mut holder = machine.bench.command(aliquot());
    holder.args(["hold-context", CARD]).env("CUDA_VISIBLE_DEVICES", CARD).stdin(input);
    let mut holder = holder.spawn().unwrap();
    wait_for("its end", || holder.try_wait().unwrap().is_some());
    assert_eq!(holder.wait().unwrap().code(), Some(1));
}

#[test]
fn an_ordinary_user_measures_for_itself() {
    let machine = machine(700 * MIB);
    let home = machine.dir().join("home");
    fs::create_dir(&home).unwrap();
    // The build directory may be closed to others.
    let program = machine.dir().join("aliquot");
    copy_program(aliquot(), &program);
    let bench = machine.bench.cards();
    opened_to_everybody(&[machine.dir(), bench.parent().unwrap(), &machine.bench.libraries(), &bench, &home]);
    let mut run = machine.bench.command(&program);
    run.args(["run", "--memory", "1Gi", "--", "sh", "-c", "cat $ALIQUOT_GRANTS/*/limits >limits"]);
    run.current_dir(&home).env("HOME", &home).env_remove("XDG_STATE_HOME");
    if Command::new("id").arg("-u").output().unwrap().stdout == b"0\n" {
        run.uid(65534).gid(65534);
    }
    let output = run.output().unwrap();
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), ""));
    assert_eq!(region::read(&home.join("limits")).unwrap().context_bytes, 700 * MIB);
    assert!(home.join(".local/state/aliquot/contexts").exists());
}

/// The page size in the limits of a run, and what accounting and the card hold after three small allocations.
fn pages_and_holdings(machine: &Machine) -> Option<(Pages, u64, u64)> {
    let mut tenant = tenant(machine, 1 << 30)?;
    assert_eq!(tenant.say("retain 0"), "0");
    (0..3).for_each(|_| assert_eq!(tenant.say("alloc 100000"), "0"));
    let mut grants = vec![machine.state().join("grants")];
    for _ in 0..2 {
        let below = grants.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
        grants = below.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    }
    let [share] = &grants[..] else { panic!("not one grant: {grants:?}") };
    let pages = region::read(&share.join("limits")).unwrap().pages;
    let bytes = fs::read(share.join("usage")).unwrap();
    let total = u64::from_le_bytes(bytes[usage::TOTAL..][..8].try_into().unwrap());
    let held = machine.bench.card().in_use();
    tenant.end();
    Some((pages, total, held))
}

#[test]
fn page_size_is_measured_and_the_shim_charges_by_it() {
    // Simulated arrays take blocks of 64 KiB at least.
    for (node, pointers, arrays) in [
        ("page_bytes = 2097152", 21, 21),
        ("page_bytes = 4194304", 22, 22),
        ("page_bytes = 65536", 16, 16),
        ("page_bytes = 65536\nslab_bytes = 2097152", 21, 21),
        ("page_bytes = 512", 9, 16),
    ] {
        let machine = Machine::of(&format!("{node}\n[[card]]\n"));
        let Some((pages, total, held)) = pages_and_holdings(&machine) else { return };
        assert_eq!(Some(pages), Pages::measured(pointers, arrays), "{node}");
        assert_eq!(total, held, "{node}: accounting and card");
    }
}
