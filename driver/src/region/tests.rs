use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aliquot_abi::layout::{slot, usage};
use aliquot_abi::limits::Pages;
use aliquot_backend_sim::{Personality, SimNode};
use aliquot_core::catalogue::Catalogue;
use aliquot_core::grant::ShareSettings;
use aliquot_core::ports::DeviceBackend;
use aliquot_core::units::{Bytes, Cores};
use aliquot_enforce::memory::{FREEZE, MemoryAccounting, Release, Reservation, bytes_in};
use aliquot_enforce::units::Ppm;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::*;

mod ipc_memory;

const MIB: u64 = 1 << 20;
/// The share directory of a test's tenant process.
const TENANT: &str = "ALIQUOT_TEST_TENANT";
/// The lock byte that such a process holds a shared lock on.
const OPENED: &str = "ALIQUOT_TEST_OPENED";
/// Set for a tenant that sleeps.
const RESTS: &str = "ALIQUOT_TEST_RESTS";

/// The action of a tenant until it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// It reserves in a loop, so that the kill may come anywhere.
    Reserves,
    /// It sleeps, as a live process beside exited ones. A busy one could be descheduled inside a reservation.
    Rests,
}

fn card(personality: &str) -> Card {
    let file = Personality::named(personality).unwrap().load().unwrap();
    let node = SimNode::in_memory(&file, &Catalogue::embedded()).unwrap();
    node.discover().unwrap().cards.remove(0)
}

fn grant(card: &Card, part: Part, memory: Bytes, percent: u8) -> Grant {
    Grant {
        claim: "c1a1".parse().unwrap(),
        share: "0".parse().unwrap(),
        request: "gpu".to_owned(),
        device: aliquot_core::dra::DeviceId {
            driver: "aliquot.dev".to_owned(),
            pool: "pool".to_owned(),
            device: "card".to_owned(),
        },
        card: card.uuid.clone(),
        part,
        sharing: aliquot_core::dra::Sharing::Shareable,
        memory,
        cores: Cores::new(percent).unwrap(),
        settings: ShareSettings::default(),
    }
}

fn partition(template: &str) -> Part {
    let placement = aliquot_core::partition::PlacementName("0".to_owned());
    Part::Partition { template: template.parse().unwrap(), placement }
}

#[test]
fn shim_policy_follows_from_the_grant() {
    let h100 = card("h100-8");
    let of = |part: Part, memory: Bytes, percent| {
        let limits = limits_of(&grant(&h100, part, memory, percent), &h100, &h100.uuid).unwrap();
        (limits.memory, limits.policy, limits.share_ppm)
    };
    let bytes = MemoryLimit::Bytes(8192 * MIB);
    let eight = Bytes(8192 * MIB);
    assert_eq!(of(Part::Card, eight, 25), (bytes, abi::ComputePolicy::Cap, 250_000));
    assert_eq!(of(Part::Card, eight, 0), (bytes, abi::ComputePolicy::BestEffort, 0));
    assert_eq!(of(Part::Card, eight, 100), (bytes, abi::ComputePolicy::Unlimited, WHOLE_PPM));
    let all = (MemoryLimit::Unlimited, abi::ComputePolicy::Unlimited, WHOLE_PPM);
    assert_eq!(of(Part::Card, h100.memory, 0), all);
    assert_eq!(of(Part::Card, h100.memory, 30).1, abi::ComputePolicy::Cap);
    // 12 % of the card's time is all of the partition's.
    let of_template = h100.table().unwrap().template(&"1g.10gb".parse().unwrap()).unwrap().memory;
    assert_eq!(of(partition("1g.10gb"), of_template, 14), all);
    let (memory, policy, ppm) = of(partition("1g.10gb"), Bytes(1024 * MIB), 6);
    assert_eq!((memory, policy, ppm), (MemoryLimit::Bytes(1024 * MIB), abi::ComputePolicy::Cap, 500_000));

    let has =
        |part: Part, memory: Bytes, percent| grant(&h100, part, memory, percent).compute(&h100).percent();
    assert_eq!((has(Part::Card, eight, 25), has(Part::Card, eight, 0)), (25, 0));
    assert_eq!((has(Part::Card, h100.memory, 0), has(Part::Card, h100.memory, 30)), (100, 30));
    assert_eq!((has(partition("1g.10gb"), of_template, 0), has(partition("1g.10gb"), eight, 0)), (12, 0));

    let npu = card("ascend-310p");
    assert_eq!(limits_of(&grant(&npu, Part::Card, npu.memory, 0), &npu, &npu.uuid), None);
}

fn place(dir: &tempfile::TempDir) -> GrantPaths {
    GrantPaths { dir: dir.path().to_owned(), lock: dir.path().join("lock") }
}

fn wanted(bytes: u64) -> Limits {
    let card = card("h100-8");
    limits_of(&grant(&card, Part::Card, Bytes(bytes), 25), &card, &card.uuid).unwrap()
}

#[test]
fn second_prepare_changes_limits_in_place_and_keeps_usage() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&dir);
    let disk = Disk::default();
    assert_eq!(place.ensure(&disk, &wanted(8 * MIB)).unwrap(), WriteOutcome::Something);
    let first = read(&place.limits()).unwrap();
    assert_eq!((first.generation, first.memory), (1, MemoryLimit::Bytes(8 * MIB)));
    let watched = UsageFile::open(&place.usage()).unwrap();
    watched.view().unwrap().total().store(77, Ordering::SeqCst);
    // A governor's grant since is no reason to write.
    place.change(|now| now.map(|now| Limits { granted_ppm: 500_000, ..*now })).unwrap();
    assert_eq!(place.ensure(&disk, &wanted(8 * MIB)).unwrap(), WriteOutcome::Nothing);
    assert_eq!(read(&place.limits()).unwrap().granted_ppm, 500_000);

    // Nor is a measured context size, which stays through other changes.
    place.publish_context(Footprint { context: Bytes(480 * MIB), pages: Pages::ASSUMED }).unwrap();
    place.publish_context(Footprint { context: Bytes(480 * MIB), pages: Pages::ASSUMED }).unwrap();
    assert_eq!(place.ensure(&disk, &wanted(8 * MIB)).unwrap(), WriteOutcome::Nothing);
    assert_eq!(read(&place.limits()).unwrap().generation, 3, "published once");

    let inode = |path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let before = inode(place.limits());
    assert_eq!(place.ensure(&disk, &wanted(4 * MIB)).unwrap(), WriteOutcome::Something);
    let second = read(&place.limits()).unwrap();
    assert_eq!((second.generation, second.memory), (4, MemoryLimit::Bytes(4 * MIB)));
    assert_eq!(second.context_bytes, 480 * MIB);
    assert_eq!(inode(place.limits()), before, "every mapping shows the change");
    assert_eq!(UsageCopy::of(&place.usage()).unwrap().total, Bytes(77));

    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(place.limits()), mode(place.usage())), (0o644, 0o666));
    use std::os::unix::fs::MetadataExt as _;
    let on_disk = fs::metadata(place.usage()).unwrap().blocks() * 512;
    assert!((bytes_of(usage::FIRST_BYTES)..=24_576).contains(&on_disk), "found {on_disk} bytes on disk");
}

#[test]
fn files_that_were_cut_or_spoilt_are_mended_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&dir);
    let disk = Disk::default();
    place.ensure(&disk, &wanted(8 * MIB)).unwrap();
    for (path, damage) in [(place.limits(), 100), (place.usage(), 8192), (place.usage(), 1 << 24)] {
        OpenOptions::new().write(true).open(&path).unwrap().set_len(damage).unwrap();
        assert_eq!(
            place.ensure(&disk, &wanted(8 * MIB)).unwrap(),
            WriteOutcome::Something,
            "{path:?} {damage}"
        );
        assert_eq!(place.ensure(&disk, &wanted(8 * MIB)).unwrap(), WriteOutcome::Nothing);
        assert_eq!(fs::metadata(place.usage()).unwrap().len(), 135_168);
        assert_eq!(read(&place.limits()).unwrap().memory, MemoryLimit::Bytes(8 * MIB));
    }
    let open = || OpenOptions::new().write(true).open(place.limits()).unwrap();
    open().write_all(&[0xFF; 1200]).unwrap();
    assert!(read(&place.limits()).is_err());
    assert_eq!(place.ensure(&disk, &wanted(8 * MIB)).unwrap(), WriteOutcome::Something);
    assert_eq!(read(&place.limits()).unwrap().memory, MemoryLimit::Bytes(8 * MIB));
}

#[test]
fn usage_cut_short_by_a_tenant_ends_that_tenant_only() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&dir);
    place.ensure(&Disk::default(), &wanted(8 * MIB)).unwrap();
    let watched = UsageFile::open(&place.usage()).unwrap();
    let view = watched.view().unwrap();
    view.total().store(5, Ordering::SeqCst);
    OpenOptions::new().write(true).open(place.usage()).unwrap().set_len(0).unwrap();
    assert_eq!(view.total().load(Ordering::SeqCst), 0, "a vanished page reads as zeros");
    assert_eq!(watched.reap(Ppm::ALL).unwrap(), ReapOutcome::Torn);
    assert_eq!(fs::metadata(place.usage()).unwrap().len(), 135_168, "it has its length again");
    assert_eq!(place.ensure(&Disk::default(), &wanted(8 * MIB)).unwrap(), WriteOutcome::Something);
    assert_eq!(UsageFile::open(&place.usage()).unwrap().reap(Ppm::ALL).unwrap(), ReapOutcome::NoneExited);
}

/// A tenant process with memory in the share of `dir`; does nothing unless a test starts it as one.
#[test]
fn tenant() {
    let Some(dir) = std::env::var_os(TENANT) else { return };
    let watched = UsageFile::open(&Path::new(&dir).join(USAGE)).unwrap();
    let view = watched.view().unwrap();
    let pid = std::process::id();
    let number = usize::try_from(pid).unwrap() % usage::SLOT_COUNT;
    let slot = view.slot(number).unwrap();
    let at = usage::SLOTS + number * usage::SLOT_BYTES;
    // Never closed: that would drop the lock.
    let file = open(&Path::new(&dir).join(USAGE)).unwrap();
    fcntl(file.as_fd(), FcntlArg::F_SETLK(&liveness::byte_lock(libc::F_WRLCK, at))).unwrap();
    if let Some(byte) = std::env::var(OPENED).ok().and_then(|byte| byte.parse().ok()) {
        fcntl(file.as_fd(), FcntlArg::F_SETLK(&liveness::byte_lock(libc::F_RDLCK, byte))).unwrap();
    }
    slot.owner().store(u64::from(pid) | 7 << 32, Ordering::SeqCst);
    slot.start_time().store(liveness::start_time(pid).unwrap(), Ordering::SeqCst);
    slot.pid_namespace().store(liveness::own_namespace(), Ordering::SeqCst);
    let [own, apart, owed] = [const { AtomicU64::new(0) }; 3];
    let books = MemoryAccounting {
        total: view.total(),
        high_water: view.high_water(),
        inside: slot.inside(),
        used: slot.used(),
        own: &own,
        apart: &apart,
        owed: &owed,
    };
    assert_eq!(books.reserve(100, 1000), Reservation::Granted);
    println!("\nholds {number}");
    while std::env::var_os(RESTS).is_some() {
        std::thread::park();
    }
    loop {
        if books.reserve(3, 1000) == Reservation::Granted {
            // Bytes owed during a recount are released with the next reservation.
            let (Release::Done | Release::Owed) = books.release(3);
        }
    }
}

fn start_tenant(dir: &Path, does: Does) -> (Child, usize) {
    start_opener(dir, None, does)
}

/// A tenant that has memory with this lock byte open.
fn start_opener(dir: &Path, lent: Option<u64>, does: Does) -> (Child, usize) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "region::tests::tenant", "--nocapture"])
        .env(TENANT, dir)
        .envs(lent.map(|byte| (OPENED, byte.to_string())))
        .envs((does == Does::Rests).then_some((RESTS, "")))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let number = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("holds ")?.parse().ok());
    (child, number.unwrap())
}

#[test]
fn exited_processes_are_credited_and_live_ones_keep_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&dir);
    place.ensure(&Disk::default(), &wanted(8 * MIB)).unwrap();
    let watched = UsageFile::open(&place.usage()).unwrap();
    let view = watched.view().unwrap();
    let (mut living, held) = start_tenant(dir.path(), Does::Rests);
    let rounds = 8;
    for round in 0..rounds {
        let (mut child, number) = start_tenant(dir.path(), Does::Reserves);
        assert!(view.slot(number).unwrap().used().load(Ordering::SeqCst) >= 100);
        child.kill().unwrap();
        // A zombie counts as exited, like a reaped child.
        let bound = Instant::now() + Duration::from_secs(10);
        let reaped = loop {
            match watched.reap(Ppm::ALL).unwrap() {
                ReapOutcome::NoneExited | ReapOutcome::Later => {
                    assert!(Instant::now() < bound, "round {round}");
                }
                reaped => break reaped,
            }
        };
        let ReapOutcome::Dead { processes: 1, returned: Bytes(100 | 103) } = reaped else {
            panic!("{reaped:?}")
        };
        child.wait().unwrap();
        let slot = view.slot(number).unwrap();
        assert_eq!(slot.owner().load(Ordering::SeqCst), 7 << 32, "free, and the generation stays");
        let total = view.total().load(Ordering::SeqCst);
        assert!([100, 103].contains(&bytes_in(total)), "the live process's alone: {total}");
    }
    assert!(view.slot(held).unwrap().used().load(Ordering::SeqCst) >= 100);
    assert_eq!(view.reaped().load(Ordering::SeqCst), rounds);
    living.kill().unwrap();
    living.wait().unwrap();
    assert!(matches!(watched.reap(Ppm::ALL).unwrap(), ReapOutcome::Dead { processes: 1, .. }));
    assert_eq!(UsageCopy::of(&place.usage()).unwrap().total, Bytes(0));
}

/// The stopped reaper holds the reapers' lock and has frozen the accounting.
#[test]
fn a_reaper_that_was_stopped_keeps_nothing_from_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&dir);
    place.ensure(&Disk::default(), &wanted(8 * MIB)).unwrap();
    let watched = UsageFile::open(&place.usage()).unwrap();
    let total = watched.view().unwrap().total();
    let (mut stopped, held) = start_opener(dir.path(), Some(0), Does::Rests);
    let (mut dead, _) = start_beside(dir.path(), (None, Does::Reserves), held);
    dead.kill().unwrap();
    dead.wait().unwrap();
    assert!(matches!(reap_exited(&watched), ReapOutcome::Dead { processes: 1, returned: Bytes(100 | 103) }));
    total.fetch_or(FREEZE | 0x77 << 48, Ordering::SeqCst);
    assert!(matches!(watched.settled(Ppm::ALL).unwrap(), Some(Bytes(100 | 103))));
    stopped.kill().unwrap();
    stopped.wait().unwrap();
}

/// Reaps until an exited process was found; returns that result.
fn reap_exited(watched: &UsageFile) -> ReapOutcome {
    let bound = Instant::now() + Duration::from_secs(10);
    loop {
        match watched.reap(Ppm::ALL).unwrap() {
            ReapOutcome::NoneExited | ReapOutcome::Later => assert!(Instant::now() < bound),
            reaped => return reaped,
        }
    }
}

/// A tenant with a slot number other than `other`.
fn start_beside(dir: &Path, (lent, does): (Option<u64>, Does), other: usize) -> (Child, usize) {
    loop {
        let (mut child, number) = start_opener(dir, lent, does);
        if number != other {
            return (child, number);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn process_of_another_pid_namespace_lives_with_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&dir);
    place.ensure(&Disk::default(), &wanted(8 * MIB)).unwrap();
    let watched = UsageFile::open(&place.usage()).unwrap();
    let view = watched.view().unwrap();
    let (slot, me) = (view.slot(5).unwrap(), std::process::id());
    let sign = slot::SIGNS.start + 77;
    let file = open(&place.usage()).unwrap();
    let lock = liveness::byte_lock(libc::F_WRLCK, usize::try_from(sign).unwrap());
    fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    slot.start_time().store(liveness::start_time(me).unwrap(), Ordering::SeqCst);
    slot.pid_namespace().store(liveness::own_namespace() + 1, Ordering::SeqCst);
    slot.used().store(50, Ordering::SeqCst);
    view.total().store(50, Ordering::SeqCst);
    slot.owner().store(1 << 32 | u64::from(me), Ordering::SeqCst);
    for shown in [0, 7, u64::MAX, sign] {
        slot.sign().store(shown, Ordering::SeqCst);
        assert_eq!(watched.reap(Ppm::ALL).unwrap(), ReapOutcome::NoneExited, "{shown}");
    }
    drop(file);
    assert!(matches!(reap_exited(&watched), ReapOutcome::Dead { processes: 1, returned: Bytes(50) }));
}

#[test]
fn owner_of_another_pid_namespace_has_its_pid_here() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&dir);
    place.ensure(&Disk::default(), &wanted(8 * MIB)).unwrap();
    let watched = UsageFile::open(&place.usage()).unwrap();
    let (mut child, number) = start_tenant(dir.path(), Does::Reserves);
    let slot = watched.view().unwrap().slot(number).unwrap();
    let began = slot.start_time().load(Ordering::SeqCst);
    assert_eq!(watched.owners().collect::<Vec<_>>(), [(child.id(), began)]);
    // In a container it has another pid, which may be one of another process here.
    slot.pid_namespace().store(liveness::own_namespace() + 1, Ordering::SeqCst);
    slot.owner().store(1 << 32 | 7, Ordering::SeqCst);
    assert_eq!(watched.owners().collect::<Vec<_>>(), [(child.id(), began)]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(watched.owners().count(), 0, "the kernel names no holder");
}

#[test]
fn leaked_card_memory_of_exited_processes_is_billed() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&dir);
    place.ensure(&Disk::default(), &wanted(8 * MIB)).unwrap();
    let watched = UsageFile::open(&place.usage()).unwrap();
    let view = watched.view().unwrap();
    let (mut child, number) = start_tenant(dir.path(), Does::Reserves);
    let left = crate::clock::monotonic().0 - 300_000_000;
    view.slot(number).unwrap().unbilled_since().store(left, Ordering::SeqCst);
    assert_eq!(watched.reap(Ppm::ALL).unwrap(), ReapOutcome::NoneExited);
    assert_eq!(view.device_nanos().load(Ordering::SeqCst), 0, "it is alive, and bills itself");
    child.kill().unwrap();
    child.wait().unwrap();
    let bound = Instant::now() + Duration::from_secs(10);
    while !matches!(watched.reap(Ppm::new(500_000)).unwrap(), ReapOutcome::Dead { processes: 1, .. }) {
        assert!(Instant::now() < bound);
    }
    let billed = view.device_nanos().load(Ordering::SeqCst);
    assert!(billed >= 150_000_000, "half of the time is the tenant's: {billed}");
    assert_eq!(view.credit_nanos().load(Ordering::SeqCst), -i64::try_from(billed).unwrap());
    assert_eq!(watched.reap(Ppm::ALL).unwrap(), ReapOutcome::NoneExited);
    assert_eq!(view.device_nanos().load(Ordering::SeqCst), billed, "once");
}

/// A process is killed anywhere, with work on the card, while another process has its files open.
#[test]
fn exited_processes_with_open_files_are_billed_and_keep_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&dir);
    place.ensure(&Disk::default(), &wanted(8 * MIB)).unwrap();
    let watched = UsageFile::open(&place.usage()).unwrap();
    let view = watched.view().unwrap();
    let (mut child, number) = start_tenant(dir.path(), Does::Reserves);
    let slot = view.slot(number).unwrap();
    let sign = slot::SIGNS.start + 77;
    let file = open(&place.usage()).unwrap();
    let byte = usize::try_from(slot::lock_of_files(sign).unwrap()).unwrap();
    fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&liveness::byte_lock(libc::F_WRLCK, byte))).unwrap();
    slot.sign().store(sign, Ordering::SeqCst);
    slot.begun().store(5, Ordering::SeqCst);
    child.kill().unwrap();
    child.wait().unwrap();
    slot.unbilled_since().store(crate::clock::monotonic().0 - 300_000_000, Ordering::SeqCst);
    slot.inside().store(1, Ordering::SeqCst);
    for _ in 0..2 {
        assert_eq!(watched.reap(Ppm::new(500_000)).unwrap(), ReapOutcome::NoneExited);
        let words = (slot.ended().load(Ordering::SeqCst), slot.unbilled_since().load(Ordering::SeqCst));
        assert_eq!(words, (5, 0), "it is in no call");
    }
    let billed = view.device_nanos().load(Ordering::SeqCst);
    assert!(billed >= 150_000_000, "half of the time is the tenant's: {billed}");
    let seen = UsageCopy::of(&place.usage()).unwrap();
    assert!(watched.any_alive().unwrap(), "its memory is still allocated");
    assert!(seen.total >= Bytes(100) && seen.processes.len() == 1, "{seen:?}");
    assert_eq!(
        seen.processes.first().map(|process| process.life),
        Some(Life::Dead),
        "no process has its pid"
    );
    drop(file);
    // An invalid liveness byte keeps no memory.
    slot.sign().store(u64::MAX, Ordering::SeqCst);
    assert!(matches!(reap_exited(&watched), ReapOutcome::Dead { processes: 1, .. }));
    assert_eq!(view.total().load(Ordering::SeqCst), 0);
    assert_eq!(view.device_nanos().load(Ordering::SeqCst), billed, "once");
}

#[test]
fn any_bytes_in_usage_are_shown_or_refused_and_reaping_ends() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&dir);
    place.ensure(&Disk::default(), &wanted(8 * MIB)).unwrap();
    let header = fs::read(place.usage()).unwrap();
    let given = std::env::var("ALIQUOT_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = given.unwrap_or_else(|| std::process::id().into());
    println!("ALIQUOT_SEED={seed}");
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for _ in 0..20 {
        let mut bytes = header.clone();
        for word in bytes.chunks_exact_mut(8).skip(8) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Half of the words are zero, so that some slots look plausible.
            let value = if random >> 63 == 0 { 0 } else { random >> 7 };
            word.copy_from_slice(&value.to_le_bytes());
        }
        fs::write(place.usage(), &bytes).unwrap();
        assert!(UsageCopy::of(&place.usage()).unwrap().processes.len() <= usage::SLOT_COUNT);
        let watched = UsageFile::open(&place.usage()).unwrap();
        let begun = Instant::now();
        watched.reap(Ppm::ALL).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    fs::write(place.usage(), [0xAB; 200_000]).unwrap();
    assert!(UsageCopy::of(&place.usage()).is_err() && UsageFile::open(&place.usage()).is_err());
}
