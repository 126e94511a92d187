//! Room for the files of further claims: a full disk fails prepare and release alike.

use std::path::{Path, PathBuf};

use aliquot_core::offer::DRIVER;
use aliquot_core::units::Bytes;

use super::node_root::{DiskRoom, NodeObject, NodeRoot};
use super::{CheckVerdict, Finding, NodePaths};

/// Claims for which there should be room.
const CLAIMS: u64 = 10;
/// Files and directories of a claim.
const INODES: u64 = 16;
/// Regions, records and the journal's part of a claim.
const STATE: u64 = 64 << 10;
/// The CDI file of a claim, twice while one takes the other's place.
const CDI: u64 = 64 << 10;
/// The journal of a start, and a socket.
const SOCKETS: u64 = 4 << 10;

/// A directory, and what one claim takes there.
struct Needs {
    dir: PathBuf,
    bytes: u64,
}

/// Containers mount the shim from the state directory, with what its file system forbids.
fn no_programs(state: &Path) -> Finding {
    let found = format!(
        "{}: found a file system from which no program runs (noexec), expected one that runs them: shims of containers do not \
         load, and limits are not held",
        state.display()
    );
    let remedy = "name another state directory (--state, the chart's stateDir), on Container-Optimized OS one below \
                  /var/lib/google";
    Finding::new("disk", CheckVerdict::Failed, found, remedy)
}

/// The disks of the agent's directories have room for ten claims.
pub(super) fn room_of_agent(site: &NodePaths, root: &NodeRoot) -> Finding {
    if let NodeObject::Here(room) = found(root, &site.state)
        && !room.runs_programs
    {
        return no_programs(&site.state);
    }
    let needs = [
        Needs { dir: site.state.clone(), bytes: STATE },
        Needs { dir: site.cdi.clone(), bytes: CDI },
        Needs { dir: site.kubelet.join("plugins_registry"), bytes: SOCKETS },
        Needs { dir: site.kubelet.join("plugins").join(DRIVER), bytes: SOCKETS },
    ];
    let remedy = "free space on that file system (images and logs of containers are the usual cause): on a full one no claim is \
                  prepared";
    judge(root, &needs, "claims", "the agent's directories have", remedy)
}

/// The disk of the local runs' state has room for ten runs.
pub(super) fn room_of_runs(site: &NodePaths, root: &NodeRoot) -> Finding {
    // Each run has a copy of the shim.
    let shim = u64::try_from(aliquot_libraries::SHIM.len()).unwrap_or(u64::MAX >> 8);
    let needs = [Needs { dir: site.state.clone(), bytes: shim + STATE }];
    let remedy =
        "free space on that file system, or name another directory with --state: on a full one no run starts";
    judge(root, &needs, "runs", "the state directory has", remedy)
}

fn judge(root: &NodeRoot, needs: &[Needs], users: &str, owner: &str, remedy: &str) -> Finding {
    const CHECK: &str = "disk";
    let (mut least, mut full) = (None, Vec::new());
    for need in needs {
        match found(root, &need.dir) {
            NodeObject::Here(room) => {
                let claims = claims(&room, need.bytes);
                if claims < CLAIMS {
                    let wanted = Bytes(need.bytes.saturating_mul(CLAIMS));
                    let (dir, bytes) = (need.dir.display(), Bytes(room.bytes));
                    full.push(format!(
                        "{dir}: found {bytes} and {} files free, expected {wanted} and {} for {CLAIMS} {users}",
                        room.inodes.map_or_else(|| "enough".to_owned(), |inodes| inodes.to_string()),
                        INODES * CLAIMS,
                    ));
                }
                least = Some(least.map_or(claims, |least: u64| least.min(claims)));
            }
            NodeObject::Absent => {}
            NodeObject::Unreadable(error) => {
                return Finding::unseen(CHECK, format!("{}: {error}", need.dir.display()));
            }
        }
    }
    let verdict = match least {
        Some(0) => CheckVerdict::Failed,
        Some(_) if !full.is_empty() => CheckVerdict::Warning,
        Some(_) | None => {
            return Finding::ok(CHECK, format!("{owner} room for {CLAIMS} {users}"));
        }
    };
    Finding::new(CHECK, verdict, full.join("; "), remedy)
}

/// The room at a directory, or where it will be made.
fn found(root: &NodeRoot, dir: &Path) -> NodeObject<DiskRoom> {
    for place in dir.ancestors() {
        match root.room(place) {
            NodeObject::Absent => {}
            answer => return answer,
        }
    }
    NodeObject::Absent
}

/// How many claims have room.
fn claims(room: &DiskRoom, bytes: u64) -> u64 {
    let by_bytes = room.bytes / bytes;
    room.inodes.map_or(by_bytes, |inodes| by_bytes.min(inodes / INODES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_bytes_and_inodes_allow() {
        let room = |bytes, inodes| claims(&DiskRoom { bytes, inodes, runs_programs: true }, 100);
        assert_eq!(room(999, None), 9);
        assert_eq!(room(1000, Some(INODES * CLAIMS)), CLAIMS);
        assert_eq!(room(100_000, Some(INODES - 1)), 0);
    }
}
