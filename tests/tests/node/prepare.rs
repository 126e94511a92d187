//! Claims are prepared and released: the same answer at every repetition, mended where something is missing,
//! refused with the holder's name, undone when the hardware fails.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aliquot_backend_sim::{NodeFile, Personality, SimNode};
use aliquot_core::dra::{Access as ResultAccess, AllocatedConfig, ConfigSource, OpaqueConfig, ResourceClaim};
use aliquot_core::grant::{ComputePolicy, FailMode, Priority};
use aliquot_core::id::{ClaimUid, TemplateName};
use aliquot_core::partition::PlacementName;
use aliquot_core::ports::{DeviceBackend, ExpectedPartition, PartitionAt};
use aliquot_driver::disk::Seam;
use aliquot_driver::node::{Node, OpenError};
use aliquot_driver::prepare::ReleaseOutcome;
use aliquot_tests::node::{Want, World, claim};

pub(crate) const fn want(card: u32, part: &'static str, memory_mib: Option<u64>, cores: u8) -> Want {
    Want { card, part, memory_mib, cores }
}

const QUARTER: Want = want(0, "vir02 at vg0", None, 25);
const SHARE: Want = want(0, "3g.71gb at 0", Some(4096), 10);

fn uid(text: &str) -> ClaimUid {
    ClaimUid::new(text).unwrap()
}

/// Why the claim is not prepared; nothing may have changed.
fn refusal(world: &World, node: &mut Node, request: &ResourceClaim) -> String {
    let before = world.files();
    let error = node.prepare(request).unwrap_err().to_string();
    node.invariants().unwrap();
    assert_eq!(world.files(), before, "refused, and yet something changed");
    error
}

/// A built-in node with more lines in its file.
fn with_lines(personality: &str, lines: &str) -> World {
    let text = Personality::named(personality).unwrap().text;
    World::of(NodeFile::parse(&format!("{text}\n{lines}")).unwrap(), "")
}

#[test]
fn prepare_twice_gives_the_same_answer_and_the_same_bytes() {
    let world = World::new("mixed", "");
    let mut node = world.open();
    let wants = [
        want(0, "1g.10gb at 0", None, 0),
        want(2, "card", Some(2048), 20),
        want(4, "vir02 at vg0", None, 25),
    ];
    let request = claim(&node, "a", &wants);
    let first = node.prepare(&request).unwrap();
    node.invariants().unwrap();
    let before = world.files();
    assert_eq!(node.prepare(&request).unwrap(), first);
    assert_eq!(world.files(), before);
    drop(node);
    let mut node = world.open();
    assert_eq!(node.prepare(&request).unwrap(), first, "after a restart");
    assert_eq!(first.devices.len(), 3);
    let share = first.devices[1].share.as_str();
    assert_eq!(first.devices[1].cdi_name, format!("aliquot.dev/claim=a-r1-{share}"));

    assert_eq!(node.release(&uid("a")).unwrap(), ReleaseOutcome::Released);
    node.invariants().unwrap();
    assert_eq!(node.release(&uid("a")).unwrap(), ReleaseOutcome::Unknown);
    assert!(world.live().is_empty());
    assert_eq!(fs::read_dir(node.cdi_dir()).unwrap().count(), 0);
    assert_eq!(fs::read_dir(node.grants_dir()).unwrap().count(), 0);
}

/// Host path and options of what a claim's CDI file mounts at a path of the container, once for each device.
fn mounts_at(node: &Node, claim: &str, path: &str) -> Vec<(PathBuf, String)> {
    let text = fs::read_to_string(node.cdi_dir().join(format!("aliquot.dev-claim-{claim}.json"))).unwrap();
    let spec: serde_json::Value = serde_json::from_str(&text).unwrap();
    let devices = spec["devices"].as_array().unwrap().iter();
    let mounts = devices.flat_map(|device| device["containerEdits"]["mounts"].as_array().unwrap());
    let there = mounts.filter(|mount| mount["containerPath"] == path);
    let of = |mount: &serde_json::Value| {
        (PathBuf::from(mount["hostPath"].as_str().unwrap()), mount["options"].to_string())
    };
    there.map(of).collect()
}

#[test]
fn containers_of_limited_shares_load_the_shim_and_others_do_not() {
    const LIST: &str = "/etc/ld.so.preload";
    const SHIM: &str = "/run/aliquot/lib/libaliquot.so";
    let world = World::new("mixed", "");
    let mut node = world.open();
    let unlimited = [want(0, "1g.10gb at 0", None, 0), want(4, "vir02 at vg0", None, 25)];
    node.prepare(&claim(&node, "free", &unlimited)).unwrap();
    assert_eq!([LIST, SHIM].map(|path| mounts_at(&node, "free", path).len()), [0, 0]);
    let beside = |claim: &str| fs::read_dir(node.grants_dir().join(claim)).unwrap().count();
    assert_eq!(beside("free"), unlimited.len(), "no claim needs the shim yet");

    let limited = [want(2, "card", Some(2048), 20), want(3, "card", None, 10)];
    let request = claim(&node, "held", &limited);
    node.prepare(&request).unwrap();
    node.invariants().unwrap();
    let read_only = r#"["ro","nosuid","nodev","bind"]"#;
    let found = [LIST, SHIM].map(|path| mounts_at(&node, "held", path));
    for mounts in &found {
        assert_eq!(mounts.len(), 2, "one for each device: {found:?}");
        assert!(mounts.iter().all(|mount| *mount == mounts[0] && mount.1 == read_only), "{found:?}");
    }
    let [list, shim] = [&found[0][0].0, &found[1][0].0];
    assert_eq!(fs::read_to_string(list).unwrap(), format!("{SHIM}\n"));
    assert_eq!(fs::read(shim).unwrap()[..4], *b"\x7fELF");
    let of = |path: &PathBuf| fs::metadata(path).unwrap();
    assert_eq!([list, shim].map(|path| of(path).permissions().mode() & 0o777), [0o444, 0o444]);

    let inode = of(shim).ino();
    node.prepare(&claim(&node, "too", &[want(2, "card", Some(1024), 0)])).unwrap();
    let too = mounts_at(&node, "too", SHIM)[0].0.clone();
    assert!(of(&too).ino() != inode && of(shim).ino() == inode, "each claim has its own");
    let running = fs::File::open(shim).unwrap();
    for damage in [b"".as_slice(), b"spoilt"] {
        for path in [list, shim] {
            fs::remove_file(path).unwrap();
            fs::write(path, damage).unwrap();
            assert!(node.invariants().is_err(), "the damage was not detected");
            node.prepare(&request).unwrap();
            node.invariants().unwrap();
        }
    }
    let is_whole = || running.metadata().unwrap().len() > 6;
    assert!(is_whole(), "what a container has mapped is as it was");
    for uid in ["held", "too", "free"].map(uid) {
        node.release(&uid).unwrap();
        node.invariants().unwrap();
    }
    assert!(!list.exists() && !too.exists() && is_whole(), "containers that still end have them mapped");
}

#[test]
fn missing_or_altered_files_are_made_again() {
    let world = World::new("ascend-310p", "");
    let mut node = world.open();
    let request = claim(&node, "a", &[QUARTER]);
    let first = node.prepare(&request).unwrap();
    let share = node.grants_dir().join("a").join(first.devices[0].share.as_str());
    let (record, cdi) = (share.join("grant.json"), node.cdi_dir().join("aliquot.dev-claim-a.json"));
    let (record_text, cdi_text) = (fs::read(&record).unwrap(), fs::read(&cdi).unwrap());
    assert_eq!(
        fs::metadata(&record).unwrap().permissions().mode() & 0o777,
        0o444,
        "tenants may only read it"
    );

    let damages: [fn(&PathBuf); 3] = [
        |path| fs::remove_file(path).unwrap(),
        |path| {
            fs::remove_file(path).unwrap();
            fs::write(path, "{\"memoryBytes\": 99999999999}").unwrap();
        },
        |path| {
            fs::remove_file(path).unwrap();
            fs::write(path, "").unwrap();
        },
    ];
    for damage in damages {
        for path in [&record, &cdi] {
            damage(path);
            assert!(node.invariants().is_err(), "the damage was not detected");
            assert_eq!(node.prepare(&request).unwrap(), first);
            node.invariants().unwrap();
            damage(path);
            drop(node);
            node = world.open();
            node.invariants().unwrap();
            assert_eq!(fs::read(&record).unwrap(), record_text);
            assert_eq!(fs::read(&cdi).unwrap(), cdi_text);
        }
    }
    fs::remove_dir_all(node.grants_dir()).unwrap();
    drop(node);
    world.open().invariants().unwrap();
}

#[test]
fn partition_lost_by_hardware_is_made_again_with_a_new_uuid() {
    let world = World::new("ascend-310p", "");
    let mut node = world.open();
    let request = claim(&node, "a", &[QUARTER]);
    let share = node.prepare(&request).unwrap().devices[0].share.to_string();
    let lost = world.live();
    world.hardware().destroy_partition(&lost[0].at, &ExpectedPartition::Any).unwrap();
    drop(node);
    let (node, recovery) = world.try_open(None).unwrap();
    assert_eq!(recovery.repaired, [uid("a")]);
    node.invariants().unwrap();
    assert_ne!(world.live(), lost);
    let record = fs::read_to_string(node.grants_dir().join("a").join(share).join("grant.json"));
    assert!(record.unwrap().contains(world.live()[0].handle.uuid.as_str()));
}

#[test]
fn a_partition_that_took_the_place_of_ours_is_left_alone() {
    let world = World::new("ascend-310p", "");
    let mut node = world.open();
    let request = claim(&node, "a", &[QUARTER]);
    node.prepare(&request).unwrap();
    let hardware = world.hardware();
    let ours = world.live();
    hardware.destroy_partition(&ours[0].at, &ExpectedPartition::Any).unwrap();
    let strangers = hardware.create_partition(&ours[0].at).unwrap();
    let error = node.prepare(&request).unwrap_err().to_string();
    assert!(error.contains("is another partition by now"), "{error}");
    assert_eq!(node.release(&uid("a")).unwrap(), ReleaseOutcome::Released);
    node.invariants().unwrap();
    assert_eq!(world.live(), [strangers], "what we did not make is not destroyed");
}

/// Another program that makes a partition right before an effect of ours, once.
#[derive(Debug)]
struct Stranger {
    hardware: Arc<SimNode>,
    at: PartitionAt,
    effect: &'static str,
    armed: AtomicBool,
}

impl Seam for Stranger {
    fn before(&self, effect: &str) -> io::Result<()> {
        if effect == self.effect && self.armed.swap(false, Ordering::Relaxed) {
            self.hardware.create_partition(&self.at).unwrap();
        }
        Ok(())
    }

    fn bytes(&self, _: &str, length: usize) -> usize {
        length
    }
}

#[test]
fn partition_of_another_tool_made_meanwhile_stays_theirs() {
    // While the plan is journalled, and after the last read of the hardware.
    for (theirs, effect) in [
        ("vir02", "create partition"),
        ("vir04", "create partition"),
        ("vir02", "sync journal"),
        ("vir04", "sync journal"),
    ] {
        let world = World::new("ascend-310p", "");
        let hardware = world.hardware();
        let at = PartitionAt {
            card: hardware.discover().unwrap().cards[0].uuid.clone(),
            template: TemplateName::new(theirs).unwrap(),
            placement: PlacementName("vg0".to_owned()),
        };
        let armed = AtomicBool::new(false);
        let stranger = Arc::new(Stranger { hardware, at: at.clone(), effect, armed });
        let mut node = world.open_on(Arc::clone(&stranger) as Arc<dyn Seam>);
        stranger.armed.store(true, Ordering::Relaxed);
        let error = node.prepare(&claim(&node, "a", &[QUARTER])).unwrap_err().to_string();
        assert!(error.contains("exists already") || error.contains("does not fit"), "{error}");
        node.invariants().unwrap();
        assert_eq!(node.claims().count(), 0);
        assert_eq!(world.live().iter().map(|live| &live.at).collect::<Vec<_>>(), [&at]);
        drop(node);
        drop(world.open());
        assert_eq!(world.live().len(), 1, "nor does the next start take it away");
    }
}

#[test]
fn a_refusal_names_the_holder_and_touches_nothing() {
    let world = World::new("h200", "");
    let mut node = world.open();
    node.prepare(&claim(&node, "first", &[want(0, "card", Some(1024), 0)])).unwrap();
    let partition = claim(&node, "second", &[want(0, "1g.18gb at 0", None, 0)]);
    let error = refusal(&world, &mut node, &partition);
    assert!(error.contains("claim first") && error.contains("second"), "{error}");
    let much = claim(&node, "third", &[want(0, "card", Some(143_000), 0)]);
    let error = refusal(&world, &mut node, &much);
    assert!(error.contains("claim first") && error.contains("are left"), "{error}");
    node.release(&uid("first")).unwrap();
    node.prepare(&partition).unwrap();
    node.invariants().unwrap();
}

#[test]
fn shares_of_a_partition_keep_it_until_the_last_one_goes() {
    let world = World::new("h200", "");
    for order in [["a", "b"], ["b", "a"]] {
        let mut node = world.open();
        node.prepare(&claim(&node, "a", &[SHARE])).unwrap();
        node.invariants().unwrap();
        node.prepare(&claim(&node, "b", &[SHARE])).unwrap();
        node.invariants().unwrap();
        assert_eq!(world.live().len(), 1);
        node.release(&uid(order[0])).unwrap();
        node.invariants().unwrap();
        assert_eq!(world.live().len(), 1, "{} still uses it", order[1]);
        node.release(&uid(order[1])).unwrap();
        node.invariants().unwrap();
        assert!(world.live().is_empty());
    }
}

#[test]
fn partitions_of_strangers_are_used_counted_and_never_destroyed() {
    let world = World::new("ascend-310p", "");
    let hardware = world.hardware();
    let place = PartitionAt {
        card: hardware.discover().unwrap().cards[0].uuid.clone(),
        template: TemplateName::new("vir04").unwrap(),
        placement: PlacementName("vg3".to_owned()),
    };
    let strangers = hardware.create_partition(&place).unwrap();
    let mut node = world.open();
    let half = claim(&node, "a", &[want(0, "vir04 at vg0", None, 50)]);
    let error = refusal(&world, &mut node, &half);
    assert!(error.contains("found on the card"), "{error}");
    let on_it = claim(&node, "b", &[want(0, "vir04 at vg3", None, 50)]);
    node.prepare(&on_it).unwrap();
    node.invariants().unwrap();
    node.release(&uid("b")).unwrap();
    node.invariants().unwrap();
    assert_eq!(world.live(), [strangers]);
}

#[test]
fn hardware_that_refuses_leaves_nothing_behind() {
    let lines =
        "[[fault]]\ncall = \"create\"\nnth = 2\neffect = \"error\"\ncode = 15\nmessage = \"GPU is lost\"\n";
    let world = with_lines("h200", lines);
    let mut node = world.open();
    let wants = [want(0, "1g.18gb at 0", None, 0), want(0, "1g.18gb at 1", None, 0)];
    let request = claim(&node, "a", &wants);
    let error = node.prepare(&request).unwrap_err().to_string();
    assert!(error.contains("vendor error 15: GPU is lost") && error.contains("1g.18gb"), "{error}");
    node.invariants().unwrap();
    assert!(world.live().is_empty() && node.claims().next().is_none());
    node.prepare(&request).unwrap();
    node.invariants().unwrap();
    assert_eq!(world.live().len(), 2);
}

#[test]
fn a_lost_answer_is_looked_up_and_not_believed() {
    for call in ["create", "destroy"] {
        let lines = format!("[[fault]]\ncall = \"{call}\"\nnth = 1\neffect = \"lost-answer\"\n");
        let world = with_lines("h200", &lines);
        let mut node = world.open();
        node.prepare(&claim(&node, "a", &[SHARE])).unwrap();
        node.invariants().unwrap();
        node.release(&uid("a")).unwrap();
        node.invariants().unwrap();
        assert!(world.live().is_empty());
    }
}

#[test]
fn a_release_that_hardware_refuses_goes_on_later() {
    let lines = "[[fault]]\ncall = \"destroy\"\nnth = 1\ntimes = 2\neffect = \"busy\"\n";
    let world = with_lines("h200", lines);
    let mut node = world.open();
    let request = claim(&node, "a", &[SHARE]);
    node.prepare(&request).unwrap();
    let error = node.release(&uid("a")).unwrap_err().to_string();
    assert!(error.contains("busy"), "{error}");
    drop(node);
    let (mut node, recovery) = world.try_open(None).unwrap();
    assert_eq!(recovery.problems.len(), 1, "still busy: the claim stays to be undone");
    assert_eq!(node.release(&uid("a")).unwrap(), ReleaseOutcome::Released);
    node.invariants().unwrap();
    assert!(world.live().is_empty());
    node.prepare(&request).unwrap();
    node.invariants().unwrap();
}

#[test]
fn configuration_is_strict_and_the_claims_word_wins() {
    let world = World::new("t4-2", "");
    let mut node = world.open();
    let mut request = claim(&node, "a", &[want(0, "card", Some(1024), 10)]);
    let config = |source, requests: &[&str], parameters: &str| AllocatedConfig {
        source,
        requests: requests.iter().map(|r| (*r).to_owned()).collect(),
        opaque: OpaqueConfig { driver: "aliquot.dev".to_owned(), parameters: parameters.to_owned() },
    };
    let share =
        |fields: &str| format!("{{\"apiVersion\":\"aliquot.dev/v1\",\"kind\":\"ShareConfig\"{fields}}}");
    let wrong = [
        (share(",\"prioriti\":\"high\""), "prioriti"),
        (share(",\"priority\":\"highest\""), "priority is `highest`; expected low, normal or high"),
        ("{\"apiVersion\":\"aliquot.dev/v2\",\"kind\":\"ShareConfig\"}".to_owned(), "aliquot.dev/v2"),
        ("{\"apiVersion\":\"aliquot.dev/v1\",\"kind\":\"GpuConfig\"}".to_owned(), "GpuConfig"),
        ("[]".to_owned(), "configuration for r0"),
        ("{\"apiVersion\":\"aliquot.dev/v1\",\"kind\":\"PartitionConfig\",\"minimumIsolation\":\"hardware\"}".to_owned(),
            "demands isolation `hardware`, but there it is `cooperative`"),
    ];
    for (parameters, word) in wrong {
        request.allocation.as_mut().unwrap().config = vec![config(ConfigSource::Claim, &["r0"], &parameters)];
        let error = refusal(&world, &mut node, &request);
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    request.allocation.as_mut().unwrap().config = vec![
        config(ConfigSource::Class, &[], &share(",\"computePolicy\":\"burst\",\"failMode\":\"open\"")),
        config(ConfigSource::Claim, &["r0"], &share(",\"failMode\":\"closed\"")),
        config(ConfigSource::Claim, &["other"], &share(",\"priority\":\"low\"")),
    ];
    node.prepare(&request).unwrap();
    let settings = node.grants().next().unwrap().settings;
    let found = (settings.compute, settings.priority, settings.fail_mode);
    assert_eq!(found, (ComputePolicy::Burst, Priority::Normal, FailMode::Closed));
}

#[test]
fn claims_that_cannot_be_understood_are_refused_by_name() {
    let world = World::new("t4-2", "");
    let mut node = world.open();
    let good = claim(&node, "a", &[want(0, "card", Some(1024), 10)]);
    let changed = |change: fn(&mut ResourceClaim)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    let cases = [
        (changed(|c| c.allocation = None), "has no allocation"),
        (changed(|c| c.uid = "../../etc".to_owned()), "claim UID"),
        (changed(|c| c.allocation.as_mut().unwrap().devices.clear()), "has 0 devices"),
        (
            changed(|c| c.allocation.as_mut().unwrap().devices[0].device.device = "gone".to_owned()),
            "not offered",
        ),
        (changed(|c| c.allocation.as_mut().unwrap().devices[0].access = ResultAccess::Admin), "adminAccess"),
        (
            changed(|c| {
                c.allocation.as_mut().unwrap().devices[0].share_id.as_mut().unwrap().0 = "a/b".to_owned();
            }),
            "share `a/b`",
        ),
        (
            changed(|c| {
                let devices = &mut c.allocation.as_mut().unwrap().devices;
                devices.push(devices[0].clone());
            }),
            "is there twice",
        ),
        (
            changed(|c| {
                let consumed = &mut c.allocation.as_mut().unwrap().devices[0].consumed_capacity;
                consumed.insert("memory".to_owned(), "500m".parse().unwrap());
            }),
            "consumes 500m of `memory`",
        ),
        (
            changed(|c| {
                let consumed = &mut c.allocation.as_mut().unwrap().devices[0].consumed_capacity;
                consumed.insert("cores".to_owned(), "101".parse().unwrap());
            }),
            "consumes 101 of `cores`",
        ),
        (
            changed(|c| {
                let consumed = &mut c.allocation.as_mut().unwrap().devices[0].consumed_capacity;
                consumed.insert("memory".to_owned(), "100Gi".parse().unwrap());
            }),
            "100Gi of memory",
        ),
    ];
    for (request, word) in cases {
        let error = refusal(&world, &mut node, &request);
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    node.prepare(&good).unwrap();
    let other = claim(&node, "a", &[want(1, "card", Some(1024), 10)]);
    let error = refusal(&world, &mut node, &other);
    assert!(error.contains("another allocation"), "{error}");
}

#[test]
fn two_processes_never_change_one_node_at_once() {
    let world = World::new("t4-2", "");
    let mut node = world.open();
    let Err(error @ OpenError::Locked { .. }) = world.try_open(None) else { panic!("both opened") };
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    let request = claim(&node, "a", &[want(0, "card", Some(1024), 10)]);
    let mut onlooker = world.look().unwrap();
    assert!(onlooker.prepare(&request).unwrap_err().to_string().contains("open it for changes"));
    node.prepare(&request).unwrap();
    assert_eq!(onlooker.claims().count(), 0, "what it saw when it looked");
    assert_eq!(world.look().unwrap().claims().count(), 1);
    drop(node);
    world.open().invariants().unwrap();
}
