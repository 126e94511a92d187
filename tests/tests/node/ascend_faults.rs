//! What goes wrong with Ascend's library, its answers, its chips and its tool, through the program: each trouble is named, and
//! what still works is offered.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Output, Stdio};

use aliquot_sim_device::npu::{Machine, NpuState, Recover, Vnpu, VnpuMode, VnpuRequest};
use aliquot_tests::npus::{NpuMachine, chip_310p};

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn aliquot(machine: &NpuMachine, command: &str, arguments: &[&str]) -> Output {
    machine.aliquot(command, arguments).output().unwrap()
}

/// A run of a command that ends at once.
fn run(machine: &NpuMachine, ask: &[&str]) -> (Option<i32>, String) {
    let output = aliquot(machine, "run", &[ask, &["--", "true"]].concat());
    (output.status.code(), err(&output))
}

/// A run that has its part until its input ends.
fn holding(machine: &NpuMachine, ask: &[&str]) -> Child {
    let mut run = machine.aliquot("run", ask);
    run.args(["--", "sh", "-c", "echo begun; read line || true"]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(BufReader::new(run.stdout.take().unwrap()).lines().next().unwrap().unwrap(), "begun");
    run
}

fn end(mut run: Child) -> (Option<i32>, String) {
    drop(run.stdin.take());
    let output = run.wait_with_output().unwrap();
    (output.status.code(), err(&output))
}

/// What a row breaks.
enum Broken {
    Lacks(&'static [&'static str]),
    Answers(&'static str, &'static str),
    File(fn(&NpuMachine)),
}

/// What is broken, and what is said of it.
const REFUSED: &[(Broken, &[&str])] = &[
    (Broken::Lacks(&["dcmi_init"]), &["install a newer driver", "no such function: dcmi_init"]),
    (
        Broken::Lacks(&["dcmi_get_card_list", "dcmi_get_card_num_list"]),
        &["install a newer driver", "no such function: dcmi_get_card_num_list"],
    ),
    (
        Broken::Answers("dcmi_init", "{ error = -8255 }"),
        &["initialise: not supported by these NPUs", "-8255"],
    ),
    (Broken::Answers("dcmi_init", "{ error = -8005 }"), &["see what npu-smi", "inner error"]),
    (Broken::Answers("dcmi_get_card_list", "\"garbage\""), &["found -1 cards, expected 0 to 64"]),
    (Broken::Answers("dcmi_get_device_num_in_card", "\"garbage\""), &["found -1 chips, expected 0 to 16"]),
    (
        Broken::Answers("dcmi_get_driver_version", "\"garbage\""),
        &["version of the driver", "\\xff", "expected printable text that ends"],
    ),
    (
        Broken::Answers("dcmi_get_device_chip_info_v2", "\"garbage\""),
        &["card 0 chip 0: dcmi_get_device_chip_info", "expected printable text that ends"],
    ),
    (
        Broken::File(|machine| fs::write(machine.library(), "no library").unwrap()),
        &["found no libdcmi.so that can be loaded", "install Huawei's driver"],
    ),
    (
        Broken::File(|machine| fs::remove_file(machine.library()).unwrap()),
        &["found no libdcmi.so that can be loaded", "install Huawei's driver"],
    ),
    (
        Broken::File(|machine| {
            fs::set_permissions(machine.library(), fs::Permissions::from_mode(0o777)).unwrap();
        }),
        &["let root own it (chown root, chmod go-w)", "777"],
    ),
];

#[test]
fn library_that_cannot_serve_is_refused_with_its_reason() {
    for (broken, words) in REFUSED {
        let machine = NpuMachine::of_310p(1);
        match broken {
            Broken::Lacks(functions) => machine.lacks(functions),
            Broken::Answers(function, action) => machine.fault(function, action),
            Broken::File(change) => change(&machine),
        }
        let devices = aliquot(&machine, "devices", &[]);
        let said = err(&devices);
        let has_others = String::from_utf8_lossy(&devices.stdout).contains("NVIDIA driver");
        assert_eq!(devices.status.code(), Some(if has_others { 0 } else { 3 }), "{words:?}: {said}");
        // A driver that is absent is no trouble where another vendor's is there.
        if has_others && said.is_empty() {
            continue;
        }
        for word in *words {
            assert!(said.contains(word), "`{word}` is not in: {said}");
        }
        let (code, said) = run(&machine, &["--template", "vir02"]);
        assert_eq!(code, Some(125), "{words:?}: {said}");
    }
}

#[test]
fn library_of_an_older_driver_serves_what_it_can() {
    let machine = NpuMachine::of_310p(2);
    machine.lacks(&[
        "dcmi_get_card_list",
        "dcmi_get_device_chip_info_v2",
        "dcmi_get_product_type",
        "dcmi_get_topo_info_by_device_id",
        "dcmi_get_vdevice_mode",
        "dcmi_get_vnpu_config_recover_mode",
        "dcmi_get_device_errorcode_v2",
        "dcmi_get_device_health",
        "dcmi_get_device_utilization_rate",
        "dcmi_subscribe_fault_event",
    ]);
    let (code, said) = run(&machine, &["--template", "vir02"]);
    assert!(code == Some(0) && said.contains("does not report its errors"), "{code:?} {said}");
    for command in ["devices", "health"] {
        let output = aliquot(&machine, command, &[]);
        assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), ""), "{command}");
    }
    let top = aliquot(&machine, "top", &["-n", "0", "-o", "json"]);
    assert_eq!(top.status.code(), Some(0), "{top:?}");
}

#[test]
fn chips_that_tell_no_vnpus_are_used_whole() {
    let machine = NpuMachine::of_310p(1);
    machine.fault("dcmi_get_device_info", "{ error = -8255 }");
    let (code, said) = run(&machine, &["--template", "vir02"]);
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains("it does not tell its vNPUs"), "{said}");
    assert_eq!(run(&machine, &["--card", "0"]), (Some(0), String::new()));
    // With a wrong count it is unknown which vNPUs there are, so that nothing new is given.
    machine.fault("dcmi_get_device_info", "\"garbage\"");
    let (code, said) = run(&machine, &["--card", "0"]);
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains("found 4294967295 vNPUs, expected 0 to 32"), "{said}");
}

#[test]
fn machine_in_vm_mode_keeps_its_chips_whole() {
    let npus = Machine { mode: VnpuMode::Vm, chips: vec![chip_310p(0)], ..Machine::default() };
    let machine = NpuMachine::with(&npus);
    let (code, said) = run(&machine, &["--template", "vir02"]);
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains("vNPU mode: found VM, expected docker") && said.contains("-d 0"), "{said}");
    assert_eq!(run(&machine, &["--card", "0"]), (Some(0), String::new()));
}

/// Replaces all vNPUs without notice to any program.
fn set_vnpus(machine: &NpuMachine, vnpus: Vec<Vnpu>) {
    let set = |state: &mut NpuState| {
        state.vnpus = vnpus;
        Ok(())
    };
    machine.npus().change(set).unwrap();
}

#[test]
fn chip_in_recovery_takes_no_run_until_its_vnpu_is_back() {
    let npus = Machine { recover: Recover::Enabled, chips: vec![chip_310p(0)], ..Machine::default() };
    let machine = NpuMachine::with(&npus);
    let request = VnpuRequest { template: "vir02".to_owned(), id: None, group: None };
    machine.npus().create(0, &request).unwrap();
    let of_admin = machine.vnpus();
    // The machine restarts its chip: the recovery file names a vNPU that is not there yet.
    set_vnpus(&machine, Vec::new());
    let (code, said) = run(&machine, &["--template", "vir01"]);
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains("recovery: found no vNPU 100, expected the one of template vir02"), "{said}");
    set_vnpus(&machine, of_admin.clone());
    let (code, said) = run(&machine, &["--template", "vir01"]);
    assert!(code == Some(0) && said.contains("parts that this agent did not make (1)"), "{code:?} {said}");
    assert_eq!(machine.vnpus(), of_admin);
}

#[test]
fn vnpu_that_disappears_comes_back_while_its_run_lives() {
    let machine = NpuMachine::of_310p(1);
    let held = holding(&machine, &["--template", "vir04"]);
    let before = machine.vnpus();
    set_vnpus(&machine, Vec::new());
    // Every command that changes the node makes what live claims hold, under the same number.
    assert_eq!(run(&machine, &["--template", "vir01"]), (Some(0), String::new()));
    assert_eq!(machine.vnpus(), before);
    set_vnpus(&machine, Vec::new());
    assert_eq!(end(held), (Some(0), String::new()));
    assert_eq!(machine.vnpus(), []);
    assert_eq!(run(&machine, &["--template", "vir04_4c_dvpp"]), (Some(0), String::new()));
}

#[test]
fn vnpu_that_disappears_at_any_look_leaves_nothing() {
    let mut refused = 0;
    for look in 1..=12 {
        let machine = NpuMachine::of_310p(1);
        let plan =
            format!("[[fault]]\nsymbol = \"dcmi_get_device_info\"\ncall = {look}\naction = \"vanish\"\n");
        machine.faults(&plan);
        let (code, said) = run(&machine, &["--template", "vir02"]);
        assert!(
            code == Some(0) || code == Some(125) && said.contains("vir02"),
            "look {look}: {code:?} {said}"
        );
        refused += u32::from(code != Some(0));
        machine.faults("");
        assert_eq!(run(&machine, &["--template", "vir04_4c_dvpp"]), (Some(0), String::new()), "look {look}");
        assert_eq!(machine.vnpus(), [], "look {look}");
    }
    assert!(refused > 0, "no plan hit a run");
}

/// The text of `npu-smi info -t template-info` with these templates.
fn table(templates: &[&str]) -> String {
    let (rule, double) = (format!("+{}+\n", "-".repeat(90)), format!("|{}|\n", "=".repeat(90)));
    let rows = templates.iter().map(|name| format!("|{name} 2 6 2 3 1 4|\n| 0 3 2|\n{rule}"));
    let head = "|NPU instance template info is:|\n|Name AICORE Memory AICPU VPC VENC JPEGD|\n| GB PNGD VDEC JPEGE|\n";
    format!("{rule}{head}{double}{}", rows.collect::<String>())
}

#[test]
fn npu_smi_table_is_believed_only_whole_and_of_its_kind() {
    let machine = NpuMachine::of_310p(1);
    let tool = machine.root().join("usr/local/bin/npu-smi");
    fs::create_dir_all(tool.parent().unwrap()).unwrap();
    let good = table(&["vir02", "vir04"]);
    let cut = good[..good.len() - 20].to_owned();
    let foreign = "+-----+\n| NVIDIA-SMI 580.65.06 |\n+-----+\n".to_owned();
    for (text, offered) in [(good, false), (cut, true), (foreign, true), (String::new(), true)] {
        fs::write(&tool, format!("#!/bin/sh\ncat <<'END'\n{text}END\n")).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let (code, said) = run(&machine, &["--template", "vir02_1c"]);
        assert_eq!(code, Some(if offered { 0 } else { 125 }), "{text}: {said}");
        assert!(offered || said.contains("says no: ") && said.contains("vir02_1c"), "{said}");
        assert_eq!(run(&machine, &["--template", "vir04"]), (Some(0), String::new()), "{text}");
    }
}
