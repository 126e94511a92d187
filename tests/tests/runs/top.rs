//! What `aliquot top` shows of tenants at work, and of tenants that hide.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_tests::local::{self, Local};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::site::{Site, aliquot};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const GIB: u64 = 1 << 30;
/// A site of one card, with the probe.
pub(super) struct Probed {
    pub(super) site: Site,
    program: PathBuf,
}

/// A program that is killed when the test ends.
pub(super) struct Running(pub(super) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Running {
    pub(super) fn ready(command: &mut Command) -> Self {
        let mut child = Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::with_capacity(1, child.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        child
    }
}

impl Probed {
    /// With a share of 4 GiB for each claim; `None` where there is no compiler.
    pub(super) fn with(claims: &[&str]) -> Option<Self> {
        let bench = Bench::new();
        let program = match bench.compile("sim_probe", Link::Opened) {
            Ok(program) => program,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let site = Site::new(bench, 1);
        claims.iter().for_each(|claim| site.prepare(claim, include_str!("../../golden/input/share.yaml")));
        Some(Self { site, program })
    }

    /// The probe on the bench's cards.
    fn probe(&self, arguments: &[&str]) -> Command {
        let mut command = self.site.bench.command(&self.program);
        command.args(arguments);
        command
    }

    /// The probe as a tenant of a claim; with the shim, unless set otherwise.
    pub(super) fn tenant(&self, claim: &Value, arguments: &[&str]) -> Command {
        let grants = self.site.grants().join(claim["claimUid"].as_str().unwrap());
        let mut command = self.site.tenant(grants, &self.program);
        command.args(arguments);
        command
    }

    /// The first card, as it is shown; rates are over so many seconds.
    pub(super) fn top(&self, interval: &str) -> (Value, Value) {
        let mut shown = self.site.top(interval);
        (shown["cards"][0].take(), shown["problems"].take())
    }
}

pub(super) fn of_pid(rows: &Value, pid: u32) -> Value {
    let found = rows.as_array().unwrap().iter().find(|row| row["pid"] == pid);
    found.unwrap_or(&Value::Null).clone()
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

#[test]
fn processes_with_without_shim_and_without_grant_are_told_apart() {
    let Some(probed) = Probed::with(&["one", "two"]) else { return };
    let (card, _) = probed.top("0");
    let (one, two) = (card["shares"][0].clone(), card["shares"][1].clone());
    assert_eq!([&one["enforcement"]["state"], &two["enforcement"]["state"]], ["unseen", "unseen"]);
    assert_eq!(fs::read_dir(probed.site.bench.cards()).unwrap().count(), 0, "looking makes no cards");

    let tenant = Running::ready(&mut probed.tenant(&one, &["hold", &GIB.to_string()]));
    let refused =
        probed.tenant(&one, &["hold", &(4 * GIB).to_string()]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let without = Running::ready(probed.tenant(&two, &["hold", "4096"]).env_remove("LD_PRELOAD"));
    let stranger = Running::ready(&mut probed.probe(&["hold", "8192"]));

    let (card, problems) = probed.top("0");
    assert_eq!(problems, serde_json::json!([]));
    let [one, two] = [&card["shares"][0], &card["shares"][1]];
    assert_eq!([&one["enforcement"]["state"], &two["enforcement"]["state"]], ["observed", "bypassed"]);
    let shown = of_pid(&one["processes"], tenant.0.id());
    assert_eq!((&shown["shim"], &shown["command"]), (&"held".into(), &"sim_probe".into()));
    assert!(bytes(&shown["bookedBytes"]) >= GIB && bytes(&shown["driverBytes"]) >= GIB, "{shown}");
    assert!(bytes(&one["memory"]["usedBytes"]) >= GIB && bytes(&one["memory"]["highWaterBytes"]) >= GIB);
    assert!(bytes(&one["memory"]["deniedAllocations"]) >= 1);
    let last = &one["memory"]["refusals"][0];
    assert_eq!((&last["kind"], &last["cause"]), (&"memory".into(), &"limit".into()), "{last}");
    assert_eq!((bytes(&last["wantedBytes"]), bytes(&last["limitBytes"])), (4 * GIB, 4 * GIB));
    assert!(bytes(&last["reservedBytes"]) >= GIB && last["secondsAgo"].as_f64().unwrap() >= 0.0);
    let shown = probed.site.refusals(one["claim"].as_str().unwrap()).unwrap();
    assert!(shown.contains("1 refused, the last 1:") && shown.contains("over the limit"), "{shown}");
    let shown = probed.site.refusals(two["claimUid"].as_str().unwrap()).unwrap();
    assert!(
        shown.starts_with(two["claim"].as_str().unwrap()) && shown.contains(": nothing was refused"),
        "{shown}"
    );
    let unknown = probed.site.refusals("three").unwrap_err();
    assert!(
        unknown.contains(r#"found "three", expected a claim with a share: default/one, default/two"#),
        "{unknown}"
    );
    assert_eq!(bytes(&one["memory"]["limitBytes"]), 4 * GIB);
    assert_eq!(of_pid(&two["processes"], without.0.id())["shim"], "missing");
    let outside = of_pid(&card["outside"], stranger.0.id());
    assert_eq!(outside["shim"], "outside");
    // Unaccounted memory is the driver's figure beyond the accounting.
    let driver = &card["driver"];
    let beyond = bytes(&driver["usedBytes"]) - bytes(&card["bookedBytes"]);
    assert_eq!(bytes(&driver["unattributedBytes"]), beyond);
    assert!(beyond >= bytes(&outside["driverBytes"]));
}

#[test]
fn device_time_is_measured_between_two_looks() {
    let Some(probed) = Probed::with(&["one"]) else { return };
    let stranger = Running::ready(&mut probed.probe(&["busy", "1000000"]));
    let (card, _) = probed.top("0.5");
    let time = |value: &Value| value.as_f64().unwrap();
    let (busy, own) = (&card["driver"]["busyPercent"], of_pid(&card["outside"], stranger.0.id()));
    // A slow machine hands in less; no machine has more than all.
    assert!((20.0..=110.0).contains(&time(busy)), "{busy}");
    assert!((20.0..=110.0).contains(&time(&own["measuredPercent"])), "{own}");
    assert_eq!(card["shares"][0]["compute"]["measuredPercent"], 0.0);
    assert_eq!(card["shares"][0]["compute"]["guaranteedPercent"], 25.0);
    assert_eq!(probed.top("0").0["driver"]["busyPercent"], Value::Null);
    // Cards that others may write are believed in nothing.
    let file = probed.site.bench.cards().join("card-0");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let (card, problems) = probed.top("0");
    assert_eq!(
        (&card["driver"], &card["shares"][0]["enforcement"]["state"]),
        (&Value::Null, &"unseen".into())
    );
    assert!(
        problems[0]["problem"].as_str().unwrap().contains("others than this user may write"),
        "{problems}"
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    // Only root can give it to another user.
    if std::os::unix::fs::chown(&file, Some(65534), None).is_ok() {
        let (card, problems) = probed.top("0");
        let said = problems[0]["problem"].as_str().unwrap();
        assert!(said.contains("belongs to another user (uid 65534)"), "{problems}");
        assert_eq!(card["driver"], Value::Null);
    }
}

#[test]
fn unusable_region_is_shown_with_its_reason_beside_the_others() {
    let Some(probed) = Probed::with(&["one", "two"]) else { return };
    let (card, _) = probed.top("0");
    let dir = |share: usize| PathBuf::from(card["shares"][share]["directory"].as_str().unwrap());
    let (limits, usage) = (dir(0).join("limits"), dir(0).join("usage"));
    let whole = (fs::read(&limits).unwrap(), fs::read(&usage).unwrap());
    let spoilt = |path: &Path, spoil: &dyn Fn(&Path), why: &str| {
        fs::remove_file(path).unwrap();
        spoil(path);
        let (card, problems) = probed.top("0.01");
        let [one, two] = [&card["shares"][0], &card["shares"][1]];
        assert_eq!(one["enforcement"]["state"], "broken", "{why}");
        assert!(one["enforcement"]["why"].as_str().unwrap().contains(why), "{one}");
        assert_eq!(
            (two["enforcement"]["state"].as_str(), problems.as_array().unwrap().len()),
            (Some("unseen"), 1)
        );
        drop(fs::remove_file(path));
        fs::write(&limits, &whole.0).unwrap();
        fs::write(&usage, &whole.1).unwrap();
    };
    spoilt(&usage, &|path| fs::write(path, [0xAB; 200_000]).unwrap(), "not those of an Aliquot region");
    spoilt(&usage, &|path| fs::write(path, []).unwrap(), "0 bytes mapped");
    spoilt(&usage, &|path| symlink("/dev/zero", path).unwrap(), "symbolic links");
    // The pipe has no writer; an opener would wait for ever.
    let pipe = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    spoilt(&usage, &pipe, "no plain file");
    spoilt(&usage, &|_| {}, "No such file");
    spoilt(&limits, &|path| fs::write(path, &whole.0[..100]).unwrap(), "bytes mapped");
    spoilt(&limits, &pipe, "no plain file");
    let torn: Vec<u8> = whole.0.iter().map(|byte| byte ^ u8::from(*byte == 0x47)).collect();
    spoilt(&limits, &|path| fs::write(path, &torn).unwrap(), "checksum");

    // Slots full of nonsense count as exited processes, and delay no reader.
    let mut random = aliquot_tests::seed::seed();
    let mut bytes = whole.1.clone();
    for word in bytes.chunks_exact_mut(8).skip(8) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.copy_from_slice(&random.to_le_bytes());
    }
    fs::write(&usage, &bytes).unwrap();
    let (card, problems) = probed.top("0.01");
    assert!(card["shares"][0]["processes"].as_array().unwrap().len() <= 1024);
    assert!(problems.to_string().contains("its limit is"), "{problems}");
    let state = probed.site.file("state");
    let table = aliquot(&["top", "--state", &state, "-n", "0"]);
    assert!(table.lines().count() < 80 && table.contains("and 960 more"), "{table}");
}

#[test]
fn local_runs_are_seen_on_their_card_and_in_their_partition() {
    let bench = Bench::new();
    let program = match bench.compile("sim_probe", Link::Opened) {
        Ok(program) => program,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    let local = Local::new("h100-8");
    let hold =
        |part: &[&str]| Running::ready(local.run(part).arg("--").arg(&program).args(["hold", "1048576"]));
    let _on_card = hold(&["--card", "0", "--memory", "1Gi", "--cores", "25"]);
    let _in_partition = hold(&["--card", "1", "--template", "1g.10gb", "--memory", "5Gi"]);
    let state = local.state().display().to_string();
    let shown = aliquot(&["top", "--state", &state, "--node", "h100-8", "-n", "0", "-o", "json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((shown["cards"].as_array().unwrap().len(), &shown["problems"]), (8, &serde_json::json!([])));
    for place in [&shown["cards"][0], &shown["cards"][1]["partitions"][0]] {
        let share = &place["shares"][0];
        assert_eq!(share["enforcement"]["state"], "observed", "{place}");
        let process = &share["processes"][0];
        assert_eq!((&process["shim"], &process["command"]), (&"held".into(), &"sim_probe".into()));
        assert!(bytes(&process["bookedBytes"]) >= 1 << 20, "{place}");
        assert_eq!(process["driverBytes"], place["driver"]["usedBytes"], "{place}");
        assert_eq!(place["outside"], serde_json::json!([]));
    }
}

#[test]
fn named_state_with_unreadable_journal_has_its_own_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let [good, bad] = ["good", "bad"].map(|name| dir.path().join(name));
    fs::create_dir(&good).unwrap();
    fs::create_dir(&bad).unwrap();
    fs::write(bad.join("journal"), "no journal").unwrap();
    let top = |states: &[&Path]| {
        let mut command = Command::new(aliquot_tests::local::aliquot());
        command.args(["top", "--node", "t4-2", "-n", "0", "-o", "json"]);
        let output =
            command.args(states.iter().flat_map(|state| [Path::new("--state"), state])).output().unwrap();
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        let problems = shown["problems"].as_array().unwrap().len();
        (output.status.code(), shown["cards"].as_array().unwrap().len(), problems)
    };
    assert_eq!(top(&[&good]), (Some(0), 2, 0));
    assert_eq!(top(&[&good, &bad]), (Some(3), 2, 1));
}

#[test]
fn looking_changes_nothing_on_disk() {
    let Some(probed) = Probed::with(&["one"]) else { return };
    let contents = || {
        let mut found = Vec::new();
        let mut dirs = vec![probed.site.dir().to_owned(), probed.site.bench.cards()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                }
                let changed = entry.metadata().unwrap().modified().unwrap();
                found.push((entry.path(), changed, fs::read(entry.path()).unwrap_or_default()));
            }
        }
        found.sort();
        found
    };
    let before = contents();
    probed.top("0.01");
    assert!(contents() == before);
}

/// What root keeps is nothing that an ordinary user could mend: no warning of each of its files, at every look.
#[test]
fn state_closed_by_another_user_is_one_note_unless_named() {
    if !nix::unistd::geteuid().is_root() {
        println!("stood aside: only root can leave something that another user cannot read");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let home = place.path().join("aliquot");
    let program = place.path().join("program");
    fs::copy(local::aliquot(), &program).unwrap();
    let state = home.join("simulated/t4-2");
    fs::create_dir_all(state.parent().unwrap()).unwrap();
    let mut run = Command::new(&program);
    run.args(["run", "--node", "t4-2", "--memory", "1Gi", "--state"]).arg(&state).args(["--", "true"]);
    let run = run.output().unwrap();
    assert!(run.status.success(), "{run:?}");
    for dir in [place.path(), &home, &home.join("simulated"), &state, &program] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(home.join("journal"), "").unwrap();
    fs::set_permissions(home.join("journal"), fs::Permissions::from_mode(0o600)).unwrap();
    let top = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["top", "--interval", "0"]).args(words).uid(65534).gid(65534);
        let output = command.env("XDG_STATE_HOME", place.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let note = format!("note: what another user keeps below {} is not shown", home.display());
    let (code, text) = top(&["--once"]);
    let is_warning = |line: &&str| line.starts_with("warning") && line.contains(home.to_str().unwrap());
    assert_eq!(
        (code, text.matches(&note).count(), text.lines().find(is_warning)),
        (Some(0), 1, None),
        "{text}"
    );
    let (_, json) = top(&["-o", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let says = |key: &str| json[key].to_string().contains(home.to_str().unwrap());
    assert_eq!(["closed", "states", "problems", "cards"].map(says), [true, false, false, false], "{json}");
    // A user that names it gets the error.
    let (code, text) = top(&["--once", "--state", state.to_str().unwrap()]);
    assert_eq!(
        (code, text.contains("Permission denied"), text.contains(&note)),
        (Some(3), true, false),
        "{text}"
    );
}
