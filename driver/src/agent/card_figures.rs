//! What the drivers report of cards and of the agent's partitions at a look: memory in use, utilisation, memory outside of grants,
//! the last error, and the containers of the processes on them.
//!
//! ```text
//!  UsageSource of each card and partition ─▶ memory, utilisation, pids ─┬▶ CardFigures ─▶ metrics
//!  kernel: grants and container of a pid, read once a process ──────────┤
//!  health records ─▶ newest error code ─────────────────────────────────┘
//! ```
//!
//! What a driver does not report is absent. The name of a container comes from the kubelet's own mounts in it; a tenant with the
//! right to mount may forge it, so it is a label and decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_core::card::{Card, Inventory};
use aliquot_core::grant::Grant;
use aliquot_core::health::{Cause, Notes, UnixSeconds};
use aliquot_core::id::{CardUuid, ClaimUid, ShareName};
use aliquot_core::partition::Part;
use aliquot_core::ports::CardUsage;
use aliquot_core::units::Bytes;

use super::store::{HeldClaim, NodeView};
use crate::grant_file;
use crate::region::start_time;
use crate::run::cards::{Cards, UsageSource};
use crate::run::processes::{container_of, started_under};

/// Most processes of which the grant and the container are remembered.
const PROCESSES_MAX: usize = 4_096;

/// What was found at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardFigures {
    /// What drivers report, by the UUID of a card or partition; absent: nothing.
    pub used: BTreeMap<CardUuid, PartFigures>,
    /// The newest error of each card that reported one.
    pub errors: BTreeMap<CardUuid, LastError>,
    /// Containers with processes on the part of a share.
    containers: BTreeMap<(ClaimUid, ShareName), BTreeSet<String>>,
}

/// What the driver reports of a card or partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartFigures {
    /// Memory in use by any process.
    pub in_use: Bytes,
    /// Percent of the driver's last sampling period in which it worked.
    pub busy_percent: Option<u32>,
    /// Memory of processes without a grant of the card; `None`: the driver does not report which processes have it.
    pub outside: Option<Bytes>,
}

/// An error that a driver reported of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastError {
    /// The vendor's number.
    pub code: u64,
    /// When it was first reported since the driver was loaded.
    pub at: UnixSeconds,
}

/// Reads the figures of a node's cards.
pub(super) struct FigureReader {
    grants: PathBuf,
    cards: Arc<dyn Cards + Send + Sync>,
    sources: BTreeMap<CardUuid, Box<dyn UsageSource>>,
    /// What is known of processes, by pid and start time.
    origins: BTreeMap<(u32, u64), ProcessOrigin>,
}

/// What the kernel says of a process, which does not change.
#[derive(Clone)]
struct ProcessOrigin {
    /// Grant directories that it was started under.
    started: Vec<PathBuf>,
    container: Option<String>,
}

/// The processes of a look, and the grants that they may have.
struct OriginsOfShares<'o> {
    grants: &'o Path,
    alive: &'o BTreeMap<(u32, u64), ProcessOrigin>,
    claims: &'o [HeldClaim],
}

/// A card or a partition of it, as the driver knows it.
struct VisiblePart<'v> {
    uuid: &'v CardUuid,
    card: &'v Card,
    part: Part,
}

// === impl CardFigures ===

impl CardFigures {
    /// The container whose processes use a share; empty: none does, several do, or they are in none.
    #[must_use]
    pub fn container(&self, grant: &Grant) -> &str {
        let found = self.containers.get(&(grant.claim.clone(), grant.share.clone()));
        match found.map(|names| (names.len(), names.first())) {
            Some((1, Some(name))) => name,
            _ => "",
        }
    }

    /// Adds what the driver reports of a part.
    fn add(&mut self, part: &VisiblePart<'_>, usage: &CardUsage, origins: &OriginsOfShares<'_>) {
        // A driver that lists no process of a card in use does not report processes.
        let is_told = !usage.processes.is_empty() || usage.in_use == Bytes(0);
        let mut outside = is_told.then_some(Bytes(0));
        for (pid, held) in &usage.processes {
            let Some(origin) = origins.origin(*pid) else { continue };
            let mut of_process = origins.grants_of(&part.card.uuid, origin).peekable();
            if of_process.peek().is_none() {
                outside = outside.zip(*held).map(|(sum, held)| Bytes(sum.0.saturating_add(held.0)));
            }
            for grant in of_process {
                let of_share = self.containers.entry((grant.claim.clone(), grant.share.clone())).or_default();
                of_share.extend(origin.container.clone());
            }
        }
        let (in_use, busy_percent) = (usage.in_use, usage.busy_percent);
        self.used.insert(part.uuid.clone(), PartFigures { in_use, busy_percent, outside });
    }
}

// === impl LastError ===

impl LastError {
    /// The newest error of each card; a loss has no number.
    pub(super) fn of(notes: &Notes) -> BTreeMap<CardUuid, Self> {
        let mut newest = BTreeMap::<CardUuid, Self>::new();
        for (card, _, cause, at) in notes.all() {
            let Cause::Code(code) = cause else { continue };
            let noted = Self { code, at };
            let known = newest.entry(card.clone()).or_insert(noted);
            if (at, code) > (known.at, known.code) {
                *known = noted;
            }
        }
        newest
    }
}

// === impl FigureReader ===

impl FigureReader {
    pub(super) fn new(grants: PathBuf, cards: Arc<dyn Cards + Send + Sync>) -> Self {
        Self { grants, cards, sources: BTreeMap::new(), origins: BTreeMap::new() }
    }

    /// Asks the drivers once, and the kernel about processes that were not there before.
    pub(super) fn read(&mut self, view: &NodeView, notes: &Notes) -> CardFigures {
        let parts = visible_parts(view);
        self.sources.retain(|uuid, _| parts.iter().any(|part| part.uuid == uuid));
        let mut figures = CardFigures { errors: LastError::of(notes), ..CardFigures::default() };
        let mut alive = BTreeMap::new();
        for part in &parts {
            let Some(usage) = self.usage(part, &view.inventory) else { continue };
            self.note_origins(&usage, &mut alive);
            figures.add(
                part,
                &usage,
                &OriginsOfShares { grants: &self.grants, alive: &alive, claims: &view.claims },
            );
        }
        self.origins = alive;
        figures
    }

    /// What the driver reports of a part now.
    fn usage(&mut self, part: &VisiblePart<'_>, cards: &Inventory) -> Option<CardUsage> {
        if !self.sources.contains_key(part.uuid) {
            let source = self.cards.usage_source(&part.card.uuid, &part.part, part.uuid, cards)?;
            self.sources.insert(part.uuid.clone(), source);
        }
        self.sources.get(part.uuid)?.usage()
    }

    /// Asks the kernel about processes that were not there before.
    fn note_origins(&self, usage: &CardUsage, alive: &mut BTreeMap<(u32, u64), ProcessOrigin>) {
        for (pid, _) in &usage.processes {
            // One that exited meanwhile uses nothing.
            let Some(start) = start_time(*pid) else { continue };
            if alive.len() < PROCESSES_MAX && !alive.contains_key(&(*pid, start)) {
                let known = self.origins.get(&(*pid, start)).cloned();
                alive.insert((*pid, start), known.unwrap_or_else(|| ProcessOrigin::of(*pid, &self.grants)));
            }
        }
    }
}

// === impl OriginsOfShares ===

impl<'o> OriginsOfShares<'o> {
    /// What is known of a live process.
    fn origin(&self, pid: u32) -> Option<&'o ProcessOrigin> {
        self.alive.range((pid, 0)..=(pid, u64::MAX)).next().map(|(_, origin)| origin)
    }

    /// The grants of a card under which a process was started.
    fn grants_of(&self, card: &'o CardUuid, origin: &'o ProcessOrigin) -> impl Iterator<Item = &'o Grant> {
        let grants = self.claims.iter().flat_map(|claim| &claim.grants);
        let dir = self.grants;
        grants.filter(move |grant| grant.card == *card && origin.is_under(dir, grant))
    }
}

// === impl ProcessOrigin ===

impl ProcessOrigin {
    fn of(pid: u32, grants: &Path) -> Self {
        Self { started: started_under(pid, grants), container: container_of(pid) }
    }

    fn is_under(&self, grants: &Path, grant: &Grant) -> bool {
        let share = grant_file::place(grants, &grant.claim, &grant.share).dir;
        self.started.iter().any(
            |dir| {
                if dir.is_absolute() { share.starts_with(dir) } else { share.ends_with(dir) }
            },
        )
    }
}

/// Cards and the partitions on them that the agent made.
fn visible_parts(view: &NodeView) -> Vec<VisiblePart<'_>> {
    let cards = &view.inventory.cards;
    let whole = cards.iter().map(|card| VisiblePart { uuid: &card.uuid, card, part: Part::Card });
    let partitions = view.partitions.iter().filter_map(|live| {
        let card = view.inventory.card(&live.at.card)?;
        Some(VisiblePart { uuid: &live.handle.uuid, card, part: live.at.part() })
    });
    whole.chain(partitions).collect()
}

#[cfg(test)]
mod tests {
    use aliquot_core::catalogue::Catalogue;
    use aliquot_core::dra::{DeviceId, Sharing};
    use aliquot_core::grant::ShareSettings;
    use aliquot_core::units::Cores;

    use super::*;
    use crate::checkpoint::ClaimKind;
    use crate::hardware::{Hardware, node_spec};

    fn grant(card: &CardUuid, share: &str) -> Grant {
        let device = DeviceId { driver: "d".into(), pool: "p".into(), device: "card".into() };
        Grant {
            claim: ClaimUid::new("c").unwrap(),
            share: ShareName::new(share).unwrap(),
            request: share.to_owned(),
            device,
            card: card.clone(),
            part: Part::Card,
            sharing: Sharing::Shareable,
            memory: Bytes(1),
            cores: Cores::NONE,
            settings: ShareSettings::default(),
        }
    }

    /// Figures of a card with these processes, each with a share that it was started under and a container.
    fn figures(processes: &[(Option<u64>, &str, &str)], in_use: u64) -> (CardFigures, CardUuid, Vec<Grant>) {
        let (catalogue, state) = (Catalogue::embedded(), tempfile::tempdir().unwrap());
        let spec = node_spec("t4-2", &catalogue).unwrap();
        let hardware = Hardware::simulated(&spec, &catalogue, state.path()).unwrap();
        let cards = hardware.backend.discover().unwrap().cards;
        let (card, other) = (cards[0].clone(), cards[1].uuid.clone());
        let grants = vec![grant(&card.uuid, "one"), grant(&card.uuid, "two"), grant(&other, "elsewhere")];
        let (uid, name) = (ClaimUid::new("c").unwrap(), "n/c".to_owned());
        let claims = [HeldClaim { uid, name, kind: ClaimKind::Container, grants: grants.clone() }];
        let numbered = || (1_u32..).zip(processes);
        let origin = |share: &str, container: &str| ProcessOrigin {
            started: if share.is_empty() { Vec::new() } else { vec![Path::new("c").join(share)] },
            container: (!container.is_empty()).then(|| container.to_owned()),
        };
        let alive = numbered().map(|(pid, (_, share, name))| ((pid, 7), origin(share, name))).collect();
        let usage = CardUsage {
            memory: card.memory,
            in_use: Bytes(in_use),
            busy_percent: None,
            processes: numbered().map(|(pid, (held, ..))| (pid, held.map(Bytes))).collect(),
        };
        let origins = OriginsOfShares { grants: Path::new("/grants"), alive: &alive, claims: &claims };
        let mut figures = CardFigures::default();
        let part = VisiblePart { uuid: &card.uuid, card: &card, part: Part::Card };
        figures.add(&part, &usage, &origins);
        (figures, card.uuid.clone(), grants)
    }

    #[test]
    fn memory_outside_of_grants_is_that_of_other_processes() {
        let outside = |processes: &[_], in_use| {
            let (figures, card, _) = figures(processes, in_use);
            figures.used[&card].outside
        };
        assert_eq!(outside(&[(Some(3), "one", ""), (Some(4), "", ""), (None, "two", "")], 9), Some(Bytes(4)));
        // A grant of another card is none of this one.
        assert_eq!(outside(&[(Some(5), "elsewhere", "x")], 5), Some(Bytes(5)));
        assert_eq!(outside(&[(Some(5), "", ""), (None, "", "")], 9), None, "one without a figure");
        assert_eq!(outside(&[], 9), None, "no process is listed, and memory is in use");
        assert_eq!(outside(&[], 0), Some(Bytes(0)));
    }

    #[test]
    fn container_is_named_if_there_is_one() {
        let processes = [
            (Some(1), "one", "train"),
            (Some(1), "one", "train"),
            (Some(1), "two", "a"),
            (Some(1), "two", "b"),
        ];
        let (figures, _, grants) = figures(&processes, 4);
        let of = |index: usize| figures.container(&grants[index]).to_owned();
        assert_eq!([of(0), of(1), of(2)], ["train", "", ""]);
    }

    #[test]
    fn last_error_is_the_newest_number() {
        let (card, mut notes) = (CardUuid::new("GPU-1").unwrap(), Notes::default());
        let of = || aliquot_core::health::Subject { card: card.clone(), part: Part::Card };
        for (cause, at) in
            [(Cause::Code(48), 5), (Cause::Code(13), 9), (Cause::Lost, 11), (Cause::Silent, 12)]
        {
            let _new = notes.note(of(), cause, UnixSeconds(at));
        }
        let errors = LastError::of(&notes);
        assert_eq!(errors, BTreeMap::from([(card.clone(), LastError { code: 13, at: UnixSeconds(9) })]));
    }
}
