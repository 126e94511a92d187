//! What a container needs of the driver, and whether the host has it.
//!
//! | kind of claim | device nodes | files |
//! |---|---|---|
//! | a card, or a share of one | `nvidiactl`, `nvidia<minor>`, `nvidia-uvm` | those of the loaded driver |
//! | an instance, or a share of one | the same, and both capability nodes of the instance | the same |
//!
//! `nvidia-uvm-tools` serves profilers: a container gets it if it is there. Programs outside of containers need no check, as
//! the driver makes nodes for them.

mod node_files;

use std::sync::Arc;

use aliquot_core::card::{Card, Health};
use aliquot_core::disposition::Disposition;
use aliquot_core::id::CardUuid;
use aliquot_core::partition::Part;
use aliquot_core::ports::{BackendError, DeviceAccess, DeviceNode, PartitionAt};

use crate::NvidiaNode;
use crate::driver_root::{DriverFiles, NO_HOOK, container};
use crate::ffi::Facts;
use crate::partition::OneCard;
use crate::probe;
use crate::session::ContainerFiles;

pub(crate) use node_files::NodeFiles;

/// Device nodes that every tenant needs, beside the card's own.
const COMMON_NODES: [&str; 2] = ["nvidiactl", "nvidia-uvm"];
/// A device node that some tenants can use.
const PROFILERS: &str = "nvidia-uvm-tools";

// === impl NvidiaNode ===

impl NvidiaNode {
    /// How a container, or a program, reaches a part of a card.
    pub(crate) fn reach(&self, card: &CardUuid, part: &Part) -> Result<DeviceAccess, BackendError> {
        let (found, facts) = self.card(card)?;
        let Some(at) = PartitionAt::of(card, part) else {
            let nodes = self.nodes(card, &facts, Vec::new())?;
            return self.equipped(DeviceAccess::by_nodes(card.clone(), nodes));
        };
        let one = OneCard { card: &found, facts: &facts };
        let instance = one.at(&at).and_then(|instance| Some((instance, one.handle(instance)?)));
        let (instance, handle) = instance.ok_or_else(|| BackendError::Absent { at: at.clone() })?;
        let capabilities = probe::capability_nodes(facts.minor, instance.id, instance.compute);
        let nodes = self.nodes(card, &facts, capabilities)?;
        self.equipped(DeviceAccess::by_nodes(handle.uuid, nodes))
    }

    /// Marks cards that can serve no container.
    pub(crate) fn judge<'c>(&self, cards: impl IntoIterator<Item = &'c mut Card>, facts: &[Facts]) {
        for card in cards.into_iter().filter(|card| card.health == Health::Healthy) {
            let Some(facts) = facts.iter().find(|facts| facts.uuid == card.uuid.as_str()) else { continue };
            let served = self.files_of_driver().and_then(|_| self.nodes(&card.uuid, facts, Vec::new()));
            if let Err(error) = served {
                card.health = Health::Unhealthy(error.to_string());
            }
        }
    }

    /// Whether what containers of every card need is on the host. Nothing is made.
    pub(crate) fn serves_containers(&self) -> bool {
        let has_nodes = || COMMON_NODES.iter().all(|name| self.node_files.find(name).is_some());
        !self.node_files.are_for_containers() || self.session.missing_file().is_none() && has_nodes()
    }

    /// The nodes of a card, and of an instance with these capabilities.
    fn nodes(
        &self,
        card: &CardUuid,
        facts: &Facts,
        capabilities: Vec<String>,
    ) -> Result<Vec<DeviceNode>, BackendError> {
        let files = &self.node_files;
        let own = facts.minor.map(|minor| format!("nvidia{minor}"));
        if own.is_none() && files.are_for_containers() {
            return Err(no_node(card, "nvidia<its minor number, which the driver does not tell>"));
        }
        let required = own.into_iter().chain(COMMON_NODES.map(str::to_owned)).chain(capabilities);
        let mut nodes = Vec::new();
        for name in required {
            match files.find(&name).or_else(|| files.make(&name, facts.minor)) {
                Some(node) => nodes.push(node),
                None if files.are_for_containers() => return Err(no_node(card, &name)),
                None => {}
            }
        }
        nodes.extend(files.find(PROFILERS));
        Ok(nodes)
    }

    /// The files of the loaded driver; `None`: containers bring their own.
    fn files_of_driver(&self) -> Result<Option<Arc<DriverFiles>>, BackendError> {
        let Some(missing) = self.session.missing_file() else {
            return Ok(match self.session.files() {
                ContainerFiles::Found(files) => Some(files),
                ContainerFiles::Own | ContainerFiles::Missing(_) => None,
            });
        };
        let driver = self.session.driver();
        let there = missing.there.map(|version| format!(" (those of {version} are there)"));
        Err(BackendError::NotOnHost {
            what: format!("driver file {}", missing.path),
            found: format!("none{}", there.unwrap_or_default()),
            expected: format!("the one of driver {driver}, which the kernel has loaded"),
            remedy: format!("restart the machine, load its driver anew, or install {driver} again"),
            disposition: Disposition::Broken,
        })
    }

    /// Adds the driver's files to the device files, where containers get them from here.
    fn equipped(&self, access: DeviceAccess) -> Result<DeviceAccess, BackendError> {
        let Some(files) = self.files_of_driver()? else { return Ok(access) };
        let environment = [NO_HOOK, container::ENVIRONMENT];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Ok(DeviceAccess { mounts: files.mounts.clone(), environment, ..access })
    }
}

/// The driver makes its nodes on demand, so that one may be there at the next try.
fn no_node(card: &CardUuid, name: &str) -> BackendError {
    BackendError::NotOnHost {
        what: format!("card {card}: device node /dev/{name}"),
        found: "none".to_owned(),
        expected: "a character device".to_owned(),
        remedy: format!("{}; it is looked for again", probe::ON_HOST.make),
        disposition: Disposition::Retry,
    }
}
