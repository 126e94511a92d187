//! Published slices as text, for an agent that leaves them published while it does not see the cards.

use aliquot_core::offer::CounterStance;
use serde_json::{Value, json};

use crate::manifest::{self, Object};
use crate::ports::DesiredSlices;

/// Where the list says whether the node is one of those with counters.
const COUNTERS: &str = "/metadata/counters";
const PUBLISHED: &str = "published";
const WITHHELD: &str = "withheld";

/// These slices as a list of the API.
#[must_use]
pub fn text(kept: &DesiredSlices) -> String {
    let items: Vec<Value> = kept.slices.iter().map(|slice| Object::Slice(slice).json()).collect();
    let counters = kept.counter_stance.map(|stance| match stance {
        CounterStance::Published => PUBLISHED,
        CounterStance::Withheld => WITHHELD,
    });
    json!({ "apiVersion": "v1", "kind": "List", "metadata": { "counters": counters }, "items": items })
        .to_string()
}

/// The slices of such a text; what cannot be read is left out.
#[must_use]
pub fn read(text: &str) -> DesiredSlices {
    let list: Value = serde_json::from_str(text).unwrap_or_default();
    let counter_stance = match list.pointer(COUNTERS).and_then(Value::as_str) {
        Some(PUBLISHED) => Some(CounterStance::Published),
        Some(WITHHELD) => Some(CounterStance::Withheld),
        _ => None,
    };
    DesiredSlices { slices: manifest::read("kept slices", text).0.slices, counter_stance }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_slices_are_read_back() {
        for counter_stance in [None, Some(CounterStance::Published), Some(CounterStance::Withheld)] {
            let kept = DesiredSlices { slices: Vec::new(), counter_stance };
            assert_eq!(read(&text(&kept)), kept);
        }
        assert_eq!(read("{").counter_stance, None);
    }
}
