//! What programs that belong to no claim use of this machine's cards.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use aliquot_core::card::Inventory;
use aliquot_core::id::CardUuid;
use aliquot_core::units::Bytes;
use serde_json::{Value, json};

use crate::hardware::MachineCards;
use crate::printable;
use crate::view::look::Looker;
use crate::view::model::{ProcessRow, picture};

/// Most programs that are named.
const NAMES_MAX: usize = 4;

/// Other programs, by the card's UUID.
#[derive(Debug, Default)]
pub(super) struct Strangers(BTreeMap<String, StrangersOfCard>);

/// Those of one card.
#[derive(Debug)]
pub(super) struct StrangersOfCard {
    /// Memory that the driver reports of them; some report none.
    pub(super) memory: Bytes,
    processes: Vec<(u32, String)>,
}

// === impl Strangers ===

impl Strangers {
    /// Programs on the machine's cards that belong to no claim of this state directory.
    pub(super) fn on(machine: &MachineCards, state: Option<&Path>) -> Self {
        let states = state.map(Path::to_owned).into_iter().collect();
        let mut looker =
            Looker::new(states, Vec::new(), Vec::new(), Inventory::default()).with_cards_of(machine);
        let picture = picture(None, &looker.look());
        let of_card = picture.cards.into_iter().filter(|card| card.state.is_none());
        let used = of_card.map(|card| (card.uuid, StrangersOfCard::of(&card.place.outside)));
        Self(used.filter(|(_, of_card)| !of_card.processes.is_empty()).collect())
    }

    /// Those of one card.
    pub(super) fn of(&self, card: &CardUuid) -> Option<&StrangersOfCard> {
        self.0.get(card.as_str())
    }
}

// === impl StrangersOfCard ===

impl StrangersOfCard {
    fn of(processes: &[ProcessRow]) -> Self {
        let name = |process: &ProcessRow| Some((process.pid?, process.command.clone().unwrap_or_default()));
        let memory = processes.iter().filter_map(|process| process.driver).map(|held| held.0);
        Self {
            memory: Bytes(memory.fold(0, u64::saturating_add)),
            processes: processes.iter().filter_map(name).collect(),
        }
    }

    pub(super) fn json(&self) -> Value {
        let one = |(pid, command): &(u32, String)| json!({ "pid": pid, "command": command });
        let processes: Vec<Value> = self.processes.iter().map(one).collect();
        json!({ "memory": self.memory.to_string(), "processes": processes })
    }
}

impl fmt::Display for StrangersOfCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self
            .processes
            .iter()
            .take(NAMES_MAX)
            .map(|(pid, name)| format!("{} ({pid})", printable::line(name)));
        write!(
            f,
            "programs that belong to no claim use {} of it: {}",
            self.memory,
            named.collect::<Vec<_>>().join(", ")
        )?;
        match self.processes.len().saturating_sub(NAMES_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
