//! Shares that no process uses, under the governor of the process that owns all grants.

use std::os::fd::AsFd as _;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::*;

/// What of a directory this process has open and mapped.
fn open_and_mapped(dir: &Path) -> (usize, usize) {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = open.filter(|entry| fs::read_link(entry.path()).is_ok_and(|path| path.starts_with(dir)));
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    (open.count(), maps.lines().filter(|line| line.contains(&*dir.to_string_lossy())).count())
}

fn registered(places: &[GrantPaths]) -> BTreeSet<PathBuf> {
    places.iter().map(|place| place.dir.clone()).collect()
}

/// What the shim does when a process begins to use its grant.
fn touch(place: &GrantPaths) {
    let now = crate::clock::wall();
    OpenOptions::new().write(true).open(place.usage()).unwrap().set_modified(now).unwrap();
}

#[test]
fn unused_shares_are_neither_open_nor_mapped_and_wake_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let grants = dir.path().join("grants");
    let names = (0..60).map(|number| format!("idle-{number}"));
    let mut places: Vec<GrantPaths> =
        names.map(|name| grant(dir.path(), &name, &limits(ComputePolicy::Burst, 10_000, CARD))).collect();
    places.push(grant(dir.path(), "burst", &limits(ComputePolicy::Burst, 250_000, CARD)));
    let burst = places.last().unwrap();
    let governor = Governor::start_of_owner(scope(dir.path()), registered(&places)).unwrap();
    let dormant = || governor.dormant().len();
    wait_for("the first look", || dormant() == places.len());
    assert_eq!(open_and_mapped(&grants), (0, 0));
    let number = governor.dormant()[&burst.dir];

    let usage = UsageFile::open(&burst.usage()).unwrap();
    let granted = || read(&burst.limits()).unwrap().granted_ppm;
    has_a_slot(&usage);
    is_limited(&usage);
    touch(burst);
    let woken = wait_for("a loan", || granted() == 1_000_000);
    // Not by the look for locks: it comes once a second.
    assert!(woken < Duration::from_millis(700), "{woken:?}");
    wait_for("the report", || dormant() == places.len() - 1);
    usage.view().unwrap().slot(0).unwrap().owner().store(0, Ordering::SeqCst);
    drop(usage);
    wait_for("its rest", || dormant() == places.len());
    assert_ne!(governor.dormant()[&burst.dir], number);
    assert_eq!((granted(), open_and_mapped(&grants)), (250_000, (0, 0)));
}

/// As processes do whose shim is of an earlier version.
#[test]
fn process_that_touches_nothing_is_found_by_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    let place = grant(dir.path(), "one", &limits(ComputePolicy::Cap, 500_000, CARD));
    let governor =
        Governor::start_of_owner(scope(dir.path()), registered(std::slice::from_ref(&place))).unwrap();
    wait_for("the first look", || governor.dormant().len() == 1);
    let file = OpenOptions::new().read(true).write(true).open(place.usage()).unwrap();
    let lock = libc::flock {
        l_type: libc::c_short::try_from(libc::F_WRLCK).unwrap(),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap(),
        l_start: 4096,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    wait_for("the look for locks", || governor.dormant().is_empty());
}

#[test]
fn length_of_a_dormant_usage_file_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let place = grant(dir.path(), "one", &limits(ComputePolicy::Cap, 500_000, CARD));
    let length = || fs::metadata(place.usage()).unwrap().len();
    let before = length();
    let governor =
        Governor::start_of_owner(scope(dir.path()), registered(std::slice::from_ref(&place))).unwrap();
    wait_for("the first look", || governor.dormant().len() == 1);
    OpenOptions::new().write(true).open(place.usage()).unwrap().set_len(1 << 30).unwrap();
    wait_for("the length", || length() == before);
}
