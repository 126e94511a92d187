//! Driver figures of simulated cards: memory and device time of each process, independent of grants.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_core::units::Bytes;
use aliquot_sim_device::{Card, CardFacts, Device, Node, OpenError, monotonic_nanos};

use super::chain;
use super::snapshot::{CardAnswer, DriverProcess, DriverView};
use crate::run::processes::{command, grants_of};

/// Open directories of cards. A directory stays open: its mappings last as long as the process, so opening it at each look
/// would use more and more memory.
#[derive(Debug, Default)]
pub(super) struct Drivers {
    opened: BTreeMap<PathBuf, SimulatedView>,
}

#[derive(Debug)]
struct SimulatedView {
    /// Inode of the first card: another one is another set of cards.
    inode: u64,
    device: Device,
}

// === impl Drivers ===

impl Drivers {
    /// Every card of these directories, and the directories that cannot be used.
    pub(super) fn look(
        &mut self,
        dirs: &[(PathBuf, Option<PathBuf>)],
        clock: &impl Fn() -> Duration,
    ) -> (Vec<DriverView>, Vec<(String, String)>) {
        let (mut drivers, mut unusable) = (Vec::new(), Vec::new());
        for (dir, state) in dirs {
            match self.one(dir, clock) {
                Ok(found) => {
                    drivers.extend(found.into_iter().map(|d| DriverView { state: state.clone(), ..d }));
                }
                // The directory was removed with its partition.
                Err(_) if !dir.exists() => {}
                Err(error) => unusable.push((format!("cards in {}", dir.display()), error)),
            }
        }
        (drivers, unusable)
    }

    fn one(&mut self, dir: &Path, clock: &impl Fn() -> Duration) -> Result<Vec<DriverView>, String> {
        fs::read_dir(dir).map_err(|error| error.to_string())?;
        let whole = dir.file_name().is_none_or(|name| !name.to_string_lossy().starts_with("cards-"));
        Ok(match self.device(dir)? {
            Some(device) => {
                // The files have holes: an access to a page without a block raises SIGBUS, under the card's lock.
                device.cards().iter().try_for_each(Card::back).map_err(|error| unusable(&error))?;
                device.cards().iter().map(|card| used(card, whole, clock)).collect()
            }
            None => {
                let node = Node::read(dir).map_err(|error| chain(&error))?;
                node.cards.iter().map(|facts| unused(facts, whole, clock())).collect()
            }
        })
    }

    fn device(&mut self, dir: &Path) -> Result<Option<&Device>, String> {
        let Ok(inode) = fs::symlink_metadata(dir.join("card-0")).map(|found| found.ino()) else {
            self.opened.remove(dir);
            return Ok(None);
        };
        if self.opened.get(dir).is_none_or(|opened| opened.inode != inode) {
            self.opened.remove(dir);
            own(dir)?;
            let looked = aliquot_sim_device::look(dir).map_err(|error| unusable(&error))?;
            let Some(device) = looked else { return Ok(None) };
            self.opened.insert(dir.to_owned(), SimulatedView { inode, device });
        }
        Ok(self.opened.get(dir).map(|opened| &opened.device))
    }
}

/// The reason why a directory of cards cannot be used, with the remedy for a full disk.
fn unusable(error: &OpenError) -> String {
    let full = matches!(error, OpenError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull);
    let advice = if full { ": these cards are not shown; free space on their file system" } else { "" };
    format!("{}{advice}", chain(error))
}

/// Refuses cards that another user may write: their files hold a C library lock with trusted pointers.
fn own(dir: &Path) -> Result<(), String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let user = nix::unistd::geteuid().as_raw();
    for path in std::iter::once(dir.to_owned()).chain(entries) {
        // A file that was removed meanwhile cannot be written.
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        if found.uid() != user {
            return Err(format!(
                "{} belongs to another user (uid {}), and a simulated card is shown to its own user alone",
                path.display(),
                found.uid()
            ));
        }
        if found.mode() & 0o002 != 0 {
            return Err(format!(
                "others than this user may write {}; its cards are not asked",
                path.display()
            ));
        }
    }
    Ok(())
}

/// A card that some process has used.
fn used(card: &Card, whole: bool, clock: &impl Fn() -> Duration) -> DriverView {
    let moment = card.moment();
    // The figures are of that moment, however long this process waited for its processor since.
    let since = Duration::from_nanos(monotonic_nanos().saturating_sub(moment.at));
    let at = clock().saturating_sub(since);
    let processes = moment.processes.into_iter().map(|process| DriverProcess {
        pid: process.pid,
        held: Some(Bytes(process.held_bytes)),
        device_nanos: Some(process.device_nanos),
        command: command(process.pid),
        grants: grants_of(process.pid),
    });
    DriverView {
        in_use: Bytes(moment.in_use),
        high_water: Some(Bytes(moment.high_water)),
        busy_nanos: Some(moment.busy_nanos),
        health: match card.health() {
            aliquot_sim_device::Health::Well | aliquot_sim_device::Health::Hung => CardAnswer::Well,
            aliquot_sim_device::Health::Lost => CardAnswer::Lost,
        },
        processes: processes.collect(),
        ..unused(card.facts(), whole, at)
    }
}

fn unused(facts: &CardFacts, whole: bool, at: Duration) -> DriverView {
    DriverView {
        state: None,
        uuid: facts.uuid.clone(),
        name: facts.name.clone(),
        memory: Bytes(facts.memory_bytes),
        whole,
        in_use: Bytes(0),
        high_water: Some(Bytes(0)),
        busy_nanos: Some(0),
        health: CardAnswer::Well,
        processes: Vec::new(),
        at,
    }
}
