//! Walks over what is metered. Nothing is locked while something is visited, so the table may change meanwhile: what stays is
//! met, some of it perhaps twice.

use super::{METERS, Meter, MeterRecord, State};
use crate::accounting::account::{self, Account, Ledger};

/// Of what is metered, so much is copied at a time, and so much is looked at for it: most programs have no more.
const PAGE: usize = 4;
const SCAN: usize = 64;

/// Calls `visit` for everything metered on cards of this ledger's grant; nothing is locked meanwhile.
pub(crate) fn each(ledger: Ledger, mut visit: impl FnMut(Meter, MeterRecord)) {
    walk(
        |_, known| known.state != State::Free,
        |meter, known| match account::of(known.device) {
            Account::Counted(other) if other.number() == ledger.number() => visit(meter, *known),
            _ => {}
        },
    );
}

/// The same for what may grow or shrink on its own in any grant, and is not what accounting says: mostly nothing is.
pub(crate) fn each_changed(mut visit: impl FnMut(Meter, MeterRecord, Ledger)) {
    let visit_if_changed = |meter: Meter, known: &MeterRecord| {
        if !meter.is_still(known)
            && let Account::Counted(ledger) = account::of(known.device)
        {
            visit(meter, *known, ledger);
        }
    };
    walk(|meter, known| known.state != State::Free && meter.follows(known), visit_if_changed);
}

fn walk(wanted: impl Fn(Meter, &MeterRecord) -> bool, mut visit: impl FnMut(Meter, &MeterRecord)) {
    let mut end = usize::MAX;
    while end > 0 {
        let (mut page, mut count) = ([None; PAGE], 0);
        let copied = METERS.with(|meters| {
            for _ in 0..SCAN {
                let next = meters.table.before(end);
                end = next.as_ref().map_or(0, |(at, ..)| *at);
                let (Some((_, key, known)), Some(place)) = (next, page.get_mut(count)) else { break };
                let meter = Meter(key);
                if wanted(meter, &known) {
                    *place = Some((meter, known));
                    count += 1;
                }
                if end == 0 || count == PAGE {
                    break;
                }
            }
        });
        if copied.is_none() {
            return;
        }
        for (meter, known) in page.iter().flatten() {
            visit(*meter, known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::vendor::Device;

    #[test]
    fn a_walk_meets_what_is_wanted_once_however_much_there_is() {
        let keys = |from: u64, count: u64| (0..count).map(move |at| from + at * 64);
        let from = 0x5100_0000;
        for (count, every) in [(1, 1), (8, 1), (9, 1), (200, 1), (200, 3), (200, 70), (200, 1000)] {
            keys(from, count).for_each(|key| assert!(Meter(key).note(Device(0), State::Charged)));
            let is_wanted = |key: u64| (key - from) / 64 % every == every - 1;
            let mut met = Vec::new();
            let wanted = |meter: Meter, _: &MeterRecord| is_wanted(meter.0);
            walk(wanted, |meter, _| met.push(meter.0));
            met.sort_unstable();
            let expected: Vec<_> = keys(from, count).filter(|key| is_wanted(*key)).collect();
            assert_eq!(met, expected, "every {every} of {count}");
            keys(from, count).for_each(|key| Meter(key).forget());
        }
    }
}
