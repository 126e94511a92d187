//! Kernel data of a process: the name of its program, and the grants that it was started under.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::commands::Commands;

/// Grants directory in a container.
const MOUNTED: &str = "/run/aliquot/grants";
/// Environment variable with the grants directory of a local run.
const VARIABLE: &[u8] = b"ALIQUOT_GRANTS=";
/// Most ancestors of a process that are examined.
const ANCESTORS_MAX: usize = 64;
/// Longest name of a container, as the API has it.
const CONTAINER_NAME_MAX: usize = 63;
/// Greatest part of a process's environment, or of its mounts, that is read.
const BYTES_MAX: u64 = 1 << 20;

/// Name of the program; `None`: the process exited, or may not be read.
pub(crate) fn command(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned())
}

/// Grant directories of a process, or of its nearest ancestor with any: absolute from the environment, `claim/share` from the
/// mounts. Empty if none of them has a grant or may be read. An orphan is a child of process 1, so its earlier ancestors are
/// unknown.
pub(crate) fn grants_of(pid: u32) -> Vec<PathBuf> {
    ancestors(pid).map(own_grants_of).find(|grants| !grants.is_empty()).unwrap_or_default()
}

/// Directory of the grants of the run whose recorded command a process or one of its ancestors is: for a process that cleared its
/// environment.
pub(crate) fn grants_of_run(pid: u32, commands: &Commands) -> Option<PathBuf> {
    ancestors(pid).find_map(|pid| commands.grants_of(pid)).map(Path::to_owned)
}

/// Grant directories that a process was started under; a command that cleared its environment is found by its run's record.
/// `grants` is the directory of all grants.
pub(crate) fn started_under(pid: u32, grants: &Path) -> Vec<PathBuf> {
    let mut started = grants_of(pid);
    if started.is_empty() {
        started.extend(grants_of_run(pid, &Commands::of(grants.parent())));
    }
    started
}

/// Name of the container of a process, from the file that the kubelet mounts into each container for its last words; `None`: it is
/// in no container of a Pod.
pub(crate) fn container_of(pid: u32) -> Option<String> {
    let mounts = bounded(&format!("/proc/{pid}/mountinfo"));
    String::from_utf8_lossy(&mounts).lines().find_map(container_in)
}

/// The container of a line of mounts: its root is `<kubelet>/pods/<uid>/containers/<name>/<file>`.
fn container_in(line: &str) -> Option<String> {
    let mut parts = line.split(' ').nth(3)?.rsplit('/');
    let (_file, name, containers) = (parts.next()?, parts.next()?, parts.next()?);
    let (_uid, pods) = (parts.next()?, parts.next()?);
    let is_name = |name: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        (1..=CONTAINER_NAME_MAX).contains(&name.len()) && name.bytes().all(plain)
    };
    (containers == "containers" && pods == "pods" && is_name(name)).then(|| name.to_owned())
}

/// A process, and those that started it.
fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(pid), |pid| parent(*pid)).take_while(|pid| *pid > 1).take(ANCESTORS_MAX)
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn own_grants_of(pid: u32) -> Vec<PathBuf> {
    let environment = bounded(&format!("/proc/{pid}/environ"));
    let named = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(VARIABLE));
    let named = named.filter(|path| !path.is_empty()).map(|path| PathBuf::from(OsStr::from_bytes(path)));
    let named = named.map(|path| path.canonicalize().unwrap_or(path));
    let mounts = bounded(&format!("/proc/{pid}/mountinfo"));
    let mounted = String::from_utf8_lossy(&mounts).lines().filter_map(mounted).collect::<Vec<_>>();
    named.into_iter().chain(mounted).collect()
}

/// `claim/share` of a line of mounts, if it is one of ours.
fn mounted(line: &str) -> Option<PathBuf> {
    let point = Path::new(line.split(' ').nth(4)?);
    let mut parts = point.strip_prefix(MOUNTED).ok()?.components();
    Some(Path::new(parts.next()?.as_os_str()).join(parts.next()?.as_os_str()))
}

/// The claims that any container on this node was started with, by UID: those whose grants are mounted in a process's root. A
/// container has such a mount for each device of a claim, whole cards included.
///
/// # Errors
/// A process cannot be examined; one that exits meanwhile is none.
pub(crate) fn mounted_claims() -> io::Result<BTreeSet<String>> {
    let (mut claims, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for entry in fs::read_dir("/proc")? {
        let process = entry?;
        let pid = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        // The first process of this one's own space is in no container of a claim, and may be closed to it.
        if pid.is_none_or(|pid| pid == 1) {
            continue;
        }
        match claims_in(&process.path(), &mut seen) {
            Ok(mounted) => claims.extend(mounted),
            Err(error) if has_exited(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(claims)
}

/// Mount namespace and root of a process: processes with the same ones have the same mounts.
type MountPlace = (PathBuf, PathBuf);

/// The claims with grants among the mounts of a process; none if those of its place were read.
fn claims_in(process: &Path, seen: &mut BTreeSet<MountPlace>) -> io::Result<Vec<String>> {
    let place = (fs::read_link(process.join("ns/mnt"))?, fs::read_link(process.join("root"))?);
    if seen.contains(&place) {
        return Ok(Vec::new());
    }
    let mut claims = Vec::new();
    for line in BufReader::new(File::open(process.join("mountinfo"))?).split(b'\n') {
        let grant = mounted(&String::from_utf8_lossy(&line?));
        claims.extend(grant.and_then(|grant| Some(grant.iter().next()?.to_str()?.to_owned())));
    }
    seen.insert(place);
    Ok(claims)
}

/// Whether a process has exited; the kernel keeps the number of one that was not waited for.
fn has_exited(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::ENOENT | Errno::ESRCH | Errno::EINVAL))
}

fn bounded(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => bytes,
        // The process exited meanwhile, or may not be read.
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_is_named_by_the_mount_of_the_kubelet() {
        let line =
            |root: &str| format!("31 29 8:1 {root} /dev/termination-log rw,relatime - ext4 /dev/sda1 rw");
        let of = |root: &str| container_in(&line(root));
        let uid = "6f9c6f0e-5a1b-4f7e-9d6e-0d7f0a1b2c3d";
        assert_eq!(
            of(&format!("/var/lib/kubelet/pods/{uid}/containers/train-1/0a1b")),
            Some("train-1".into())
        );
        assert_eq!(of(&format!("/pods/{uid}/containers/train/0a1b")), Some("train".into()));
        let long = "x".repeat(64);
        for root in [
            "/".to_owned(),
            format!("/var/lib/kubelet/pods/{uid}/etc-hosts"),
            format!("/var/lib/kubelet/pods/{uid}/volumes/train/0a1b"),
            format!("/var/lib/kubelet/pods/{uid}/containers//0a1b"),
            format!("/var/lib/kubelet/pods/{uid}/containers/a\\040\"b/0a1b"),
            format!("/var/lib/kubelet/pods/{uid}/containers/{long}/0a1b"),
        ] {
            assert_eq!(of(&root), None, "{root}");
        }
        assert_eq!(container_in("31 29 8:1"), None);
    }
}
