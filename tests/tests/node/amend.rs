//! `aliquot prepare` of a claim that is prepared: what its manifest says by now is put in force, or refused with the reason.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use aliquot_driver::region;
use aliquot_tests::local::{Local, aliquot};
use aliquot_tests::simulated::{Bench, Link};
use aliquot_tests::talk::Talk;
use nix::libc;

const CARD: &str = "t4-2";

/// The request of a claim.
#[derive(Clone, Copy)]
struct Asked {
    memory: &'static str,
    cores: &'static str,
    policy: &'static str,
}

const FIRST: Asked = Asked { memory: "4Gi", cores: "30", policy: "burst" };

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A command of this program on the state, and its exit code.
fn on_state(local: &Local, words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(aliquot());
    let output = command.args(words).args(["--node", CARD, "--state"]).arg(local.state()).output().unwrap();
    (output.status.code(), said(&output))
}

fn prepare(local: &Local, name: &str, asked: Asked) -> (Option<i32>, String) {
    let Asked { memory, cores, policy } = asked;
    let text = format!(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{name: {name}}}\nspec:\n  devices:\n    requests:\n    \
         - name: gpu\n      exactly:\n        deviceClassName: share.aliquot.dev\n        capacity: {{requests: {{memory: \
         {memory}, cores: {cores}}}}}\n    config:\n    - opaque:\n        driver: aliquot.dev\n        parameters: {{apiVersion: \
         aliquot.dev/v1, kind: ShareConfig, computePolicy: {policy}}}\n"
    );
    let file = local.dir().join(format!("{name}.yaml"));
    fs::write(&file, text).unwrap();
    on_state(local, &["prepare", "-f", file.to_str().unwrap()])
}

/// The share of claim `one`.
fn share(local: &Local) -> PathBuf {
    let node = local.open();
    let record = node.claims().find(|record| record.plan.name == "default/one").unwrap();
    let grant = &record.plan.grants[0];
    node.grants_dir().join(grant.claim.as_str()).join(grant.share.as_str())
}

/// Memory in MiB, parts per million of compute, and policy, as they are in force.
fn in_force(local: &Local) -> (u64, u32, String) {
    let limits = region::read(&share(local).join("limits")).unwrap();
    let aliquot_abi::limits::MemoryLimit::Bytes(bytes) = limits.memory else { panic!("{limits:?}") };
    (bytes >> 20, limits.share_ppm, format!("{:?}", limits.policy))
}

/// The tenant of a container of the claim, which has so many MiB: beside a run, for its environment.
fn tenant(local: &Local, mib: &str) -> Child {
    let grants = share(local).parent().unwrap().to_owned();
    let mut run = local.run(&["--memory", "1Gi", "--card", "1", "--", "sh", "-c"]);
    let card = region::read(&share(local).join("limits")).unwrap().card.as_str().to_owned();
    let script = "CUDA_VISIBLE_DEVICES=$3 ALIQUOT_GRANTS=$1 exec \"$0\" demo-tenant fill $2";
    run.arg(script)
        .arg(aliquot())
        .arg(grants)
        .args([mib, &card])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    run.spawn().unwrap()
}

#[test]
fn a_changed_manifest_changes_the_limits_in_place() {
    let local = Local::new(CARD);
    let (code, text) = prepare(&local, "one", FIRST);
    assert_eq!((code, text.contains("changed")), (Some(0), false), "{text}");
    assert_eq!(in_force(&local), (4096, 300_000, "Burst".to_owned()));
    let books = fs::File::open(share(&local).join("usage")).unwrap();
    let (code, text) = prepare(&local, "one", Asked { memory: "2Gi", cores: "50", policy: "cap" });
    assert_eq!(code, Some(0), "{text}");
    for change in ["memory of `gpu` from 4Gi to 2Gi", "cores of `gpu` from 30% to 50%", "from burst to cap"] {
        assert!(text.contains(change), "{change}: {text}");
    }
    assert_eq!(in_force(&local), (2048, 500_000, "Cap".to_owned()));
    let same = fs::metadata(share(&local).join("usage")).unwrap().ino();
    assert_eq!(books.metadata().unwrap().ino(), same, "a process that has the file mapped keeps it");
    // What was given up can be had, and no more than that.
    assert_eq!(prepare(&local, "two", Asked { memory: "12Gi", cores: "50", policy: "cap" }).0, Some(0));
    assert_eq!(local.claims(), 2);
}

#[test]
fn unchangeable_field_is_refused_and_stays() {
    let local = Local::new(CARD);
    assert_eq!(prepare(&local, "one", FIRST).0, Some(0));
    for (asked, words) in [
        (
            Asked { memory: "40Gi", ..FIRST },
            "has 40Gi of memory, the part has 15Gi; it stays prepared with 4Gi",
        ),
        (Asked { cores: "0", ..FIRST }, ""),
        (FIRST, ""),
    ] {
        let (code, text) = prepare(&local, "one", asked);
        assert_eq!(code, Some(i32::from(!words.is_empty())), "{text}");
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(in_force(&local), (4096, 300_000, "Burst".to_owned()));
    // Another claim on the same card, then there is no room.
    assert_eq!(prepare(&local, "two", Asked { memory: "10Gi", cores: "60", policy: "cap" }).0, Some(0));
    for asked in [Asked { memory: "6Gi", ..FIRST }, Asked { cores: "50", ..FIRST }] {
        let (code, text) = prepare(&local, "one", asked);
        assert_eq!(code, Some(1), "{text}");
        for words in
            ["not prepared", "left; held by claim", "it stays prepared with 4Gi and 30% of card GPU-"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    let held = on_state(&local, &["devices"]).1;
    assert!(held.contains("14Gi of 15Gi") && held.contains("90% of 100%"), "{held}");
    assert_eq!(local.claims(), 2);
}

#[test]
fn more_requests_are_refused_before_anything_is_touched() {
    let local = Local::new(CARD);
    assert_eq!(prepare(&local, "one", FIRST).0, Some(0));
    let file = local.dir().join("one.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let other = text.replace(
        "    config:",
        "    - name: more\n      exactly: {deviceClassName: share.aliquot.dev}\n    config:",
    );
    for (text, words) in [
        (other, "with 0 devices for request `more`"),
        (text.replace("name: gpu", "name: npu"), "with 0 devices for request `npu`"),
    ] {
        fs::write(&file, text).unwrap();
        let (code, said) = on_state(&local, &["prepare", "-f", file.to_str().unwrap()]);
        assert_eq!((code, said.contains(words)), (Some(1), true), "{said}");
    }
    assert_eq!(in_force(&local), (4096, 300_000, "Burst".to_owned()));
}

/// What is held is not exchanged under a container.
#[test]
fn class_or_selector_unmatched_by_the_held_device_is_refused() {
    let local = Local::new(CARD);
    assert_eq!(prepare(&local, "one", FIRST).0, Some(0));
    let file = local.dir().join("one.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let class = |expression: &str| {
        let class = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: other}\nspec:\n  selectors:\n  - cel:\n";
        let claim = text.replace("deviceClassName: share.aliquot.dev", "deviceClassName: other");
        format!("{class}      expression: '{expression}'\n---\n{claim}")
    };
    let selector = |expression: &str| {
        let selected = format!(
            "selectors: [{{cel: {{expression: '{expression}'}}}}]\n        capacity: {{requests: {{memory"
        );
        text.replace("capacity: {requests: {memory", &selected)
    };
    let (is, is_not) = ("device.driver == \"aliquot.dev\"", "device.driver == \"gpu.example.com\"");
    for (asked, words) in [
        (
            class(is_not),
            "is not what class other asks for by now: `device.driver == \"gpu.example.com\"`; release it first",
        ),
        (
            selector(is_not),
            "is not what it asks for by now: `device.driver == \"gpu.example.com\"`; release it first",
        ),
        (class(is), ""),
        (selector(is), ""),
        (text.clone(), ""),
    ] {
        fs::write(&file, asked).unwrap();
        let (code, said) = on_state(&local, &["prepare", "-f", file.to_str().unwrap()]);
        assert_eq!(code, Some(i32::from(!words.is_empty())), "{said}");
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!((in_force(&local), local.claims()), ((4096, 300_000, "Burst".to_owned()), 1));
}

/// A claim with all of a card has no limit in its processes that could change.
#[test]
fn limit_without_effect_is_refused() {
    let local = Local::new(CARD);
    let all = Asked { memory: "15Gi", cores: "100", policy: "cap" };
    assert_eq!(prepare(&local, "one", all).0, Some(0));
    let (code, text) = prepare(&local, "one", FIRST);
    assert_eq!((code, text.contains("holds 15Gi and 100% of card GPU-")), (Some(1), true), "{text}");
    assert!(text.contains("asked is 4Gi and 30% of card") && text.contains("would not feel it"), "{text}");
    assert_eq!(prepare(&local, "one", all).0, Some(0));
}

#[test]
fn memory_in_use_is_not_taken_away() {
    let local = Local::new(CARD);
    assert_eq!(prepare(&local, "one", FIRST).0, Some(0));
    let mut child = tenant(&local, "3000");
    let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let (code, text) = prepare(&local, "one", Asked { memory: "2Gi", ..FIRST });
    assert_eq!(code, Some(1), "{line}: {text}");
    assert!(text.contains("holds 4Gi, asked is 2Gi, and its processes use 3"), "{line}: {text}");
    assert_eq!(in_force(&local), (4096, 300_000, "Burst".to_owned()));
    // As much as is left and no more.
    let (code, text) = prepare(&local, "one", Asked { memory: "3800Mi", ..FIRST });
    assert_eq!(code, Some(0), "{text}");
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(prepare(&local, "one", Asked { memory: "1Gi", ..FIRST }).0, Some(0));
}

/// Leases of a process on files, until it is dropped; `None`: none can be had here.
fn leased(local: &Local, bench: &Bench, kind: &str, files: &[PathBuf]) -> Option<Talk> {
    let program =
        bench.compile("lease", Link::Opened).inspect_err(|why| println!("stood aside: {why}")).ok()?;
    let mut holder = Talk::start(Command::new(program).arg(kind).args(files).current_dir(local.dir()));
    let taken = holder.hear();
    if taken == files.len().to_string() {
        return Some(holder);
    }
    println!("stood aside: {taken} leases on {files:?}");
    None
}

/// The kernel lets a tenant's lease delay an opener of its file for a minute, and the node is locked
/// meanwhile.
#[test]
fn file_lease_of_a_tenant_delays_no_other_call() {
    let (local, bench) = (Local::new(CARD), Bench::new());
    assert_eq!(prepare(&local, "one", FIRST).0, Some(0));
    let share = share(&local);
    let Some(holder) = leased(&local, &bench, "read", &[share.join("usage")]) else { return };
    // A caller that waits for the lock gets it in the end.
    let (code, text) = prepare(&local, "one", Asked { memory: "2Gi", ..FIRST });
    assert_eq!((code, text.contains("has a lease on them")), (Some(1), true), "{text}");
    assert_eq!(in_force(&local), (4096, 300_000, "Burst".to_owned()));
    drop(holder);
    let [record, limits] = ["grant.json", "limits"].map(|name| share.join(name));
    let Some(holder) = leased(&local, &bench, "write", &[limits, record.clone()]) else { return };
    let (code, text) = prepare(&local, "two", FIRST);
    assert_eq!(code, Some(0), "{text}");
    drop(holder);
    // What cannot be opened is there again for containers of the claim that start from now on.
    let files = ["ld.so.preload", "libaliquot.so"].map(|name| share.with_file_name(name));
    let files = [record, files[0].clone(), files[1].clone()];
    let Some(holder) = leased(&local, &bench, "write", &files) else { return };
    let inodes = || files.clone().map(|path| fs::metadata(path).unwrap().ino());
    let before = inodes();
    let (code, text) = prepare(&local, "one", FIRST);
    assert_eq!(code, Some(0), "{text}");
    assert!(inodes().iter().zip(before).all(|(now, before)| *now != before), "{text}");
    drop(holder);
    assert_eq!(prepare(&local, "one", Asked { memory: "2Gi", ..FIRST }).0, Some(0));
}

/// Files of the host that the CDI file of a claim mounts, with those in directories that it mounts.
fn mounted(local: &Local, claim: &str) -> Vec<PathBuf> {
    let uid = local.open().claims().find(|record| record.plan.name == claim).unwrap().plan.claim.clone();
    let cdi = fs::read(local.state().join(format!("cdi/aliquot.dev-claim-{uid}.json"))).unwrap();
    let cdi: serde_json::Value = serde_json::from_slice(&cdi).unwrap();
    let mounts = cdi["devices"][0]["containerEdits"]["mounts"].as_array().unwrap();
    let paths = mounts.iter().map(|mount| PathBuf::from(mount["hostPath"].as_str().unwrap()));
    let inside = |path: PathBuf| match fs::read_dir(&path) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
        Err(_) => vec![path],
    };
    let files: BTreeSet<PathBuf> = paths.flat_map(inside).collect();
    files.into_iter().collect()
}

/// A lease on what the containers of several claims have mounted would keep the programs of all of them from starting for 45 s.
#[test]
fn tenant_with_leases_on_its_files_blocks_no_other_claim() {
    let (local, bench) = (Local::new(CARD), Bench::new());
    for claim in ["one", "two"] {
        assert_eq!(prepare(&local, claim, FIRST).0, Some(0));
    }
    let [one, two] = ["default/one", "default/two"].map(|claim| mounted(&local, claim));
    let names: Vec<_> = two.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names.len(), 5, "{names:?}");
    let Some(holder) = leased(&local, &bench, "write", &one) else { return };
    let open = |path: &PathBuf| OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    for path in &two {
        assert!(open(path).is_ok(), "{}: {:?}", path.display(), open(path));
    }
    let kept = one.iter().filter(|path| open(path).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    assert_eq!(kept.count(), one.len(), "there is no lease");
    drop(holder);
}
