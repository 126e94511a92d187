//! The ledger against a plain list: random actions for each kind of card (100,000 in `tests/soak`), every answer compared
//! with a recount from scratch that shares no code with the ledger.

use std::collections::BTreeSet;

use super::tests::{card, catalogue};
use super::*;
use crate::dra::ShareId;
use crate::partition::{Part, PartitionTable, ShareSupport};
use crate::units::{Bytes, Cores};

/// Actions for each kind of card.
const ACTIONS: u64 = if option_env!("ALIQUOT_SOAK").is_some() { 100_000 } else { 20_000 };
/// Claims alive at once; more than fit on any card, so that refusals are common.
const CLAIMS: u64 = 24;

/// SplitMix64.
struct Random(u64);

/// A device of the plain list.
struct OracleDevice {
    card: usize,
    part: Part,
    takes: Vec<u64>,
    memory: u64,
    cores: u64,
    shareable: bool,
}

/// Everything held, as a plain list.
struct Plain {
    cards: Vec<Card>,
    totals: Vec<Vec<u64>>,
    devices: Vec<OracleDevice>,
    /// Each with the device that it is on; slots are on the card.
    held: Vec<(usize, Holding)>,
}

// === impl Random ===

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

// === impl Plain ===

impl Plain {
    fn new(cards: Vec<Card>) -> Self {
        let mut plain = Self { cards: Vec::new(), totals: Vec::new(), devices: Vec::new(), held: Vec::new() };
        for (i, card) in cards.iter().enumerate() {
            let names: Vec<_> =
                card.table().map(|t| t.totals.iter().map(|(n, _)| n.clone()).collect()).unwrap_or_default();
            let totals: Vec<u64> =
                card.table().map(|t| t.totals.iter().map(|(_, n)| n).collect()).unwrap_or_default();
            plain.devices.push(OracleDevice {
                card: i,
                part: Part::Card,
                takes: totals.clone(),
                memory: card.memory.0,
                cores: 100,
                shareable: card.shareable == ShareSupport::Enforceable,
            });
            for (template, placement) in card.table().into_iter().flat_map(PartitionTable::partitions) {
                plain.devices.push(OracleDevice {
                    card: i,
                    part: Part::Partition {
                        template: template.name.clone(),
                        placement: placement.name.clone(),
                    },
                    takes: names
                        .iter()
                        .map(|n| template.consumes.get(n) + placement.consumes.get(n))
                        .collect(),
                    memory: template.memory.0,
                    cores: u64::from(template.cores.percent()),
                    shareable: template.shareable == ShareSupport::Enforceable,
                });
            }
            plain.totals.push(totals);
        }
        plain.cards = cards;
        plain
    }

    /// Whether the list with one more holding is within every limit.
    fn allows(&self, device: usize, more: &Holding) -> bool {
        if more.take == Take::Nothing {
            return true;
        }
        let is_slot = matches!(more.part, Part::Slot { .. });
        match more.take {
            Take::Share { .. } if !is_slot && !self.devices[device].shareable => return false,
            Take::Exclusive if is_slot => return false,
            _ => {}
        }
        let held = self.held.iter().filter(|(_, h)| h.take != Take::Nothing).map(|(d, h)| (*d, h));
        let all: Vec<(usize, &Holding)> = held.chain([(device, more)]).collect();
        self.within(&all)
    }

    fn within(&self, all: &[(usize, &Holding)]) -> bool {
        let in_use: BTreeSet<usize> = all.iter().map(|(d, _)| *d).collect();
        for device in &in_use {
            let (mut memory, mut cores, mut alone, mut holdings) = (0, 0, false, 0);
            let mut slots = BTreeSet::new();
            for (_, holding) in all.iter().filter(|(d, _)| d == device) {
                holdings += 1;
                match holding.take {
                    Take::Share { memory: m, cores: c } => {
                        memory += m.0;
                        cores += u64::from(c.percent());
                    }
                    Take::Exclusive | Take::Nothing => alone = true,
                }
                if matches!(holding.part, Part::Slot { .. }) && !slots.insert(&holding.part) {
                    return false;
                }
            }
            let device = &self.devices[*device];
            if (alone && holdings > 1) || memory > device.memory || cores > device.cores {
                return false;
            }
        }
        let sums_fit = (0..self.cards.len()).all(|card| {
            let of_card = || in_use.iter().filter(|d| self.devices[**d].card == card);
            (0..self.totals[card].len())
                .all(|c| of_card().map(|d| self.devices[*d].takes[c]).sum::<u64>() <= self.totals[card][c])
        });
        sums_fit && self.boards_agree(&in_use)
    }

    /// Chips with the same board are all whole or all split.
    fn boards_agree(&self, in_use: &BTreeSet<usize>) -> bool {
        let mut seen: Vec<(&str, bool)> = Vec::new();
        for device in in_use.iter().map(|d| &self.devices[*d]) {
            let Some(board) = self.cards[device.card].topology.card_id.as_deref() else { continue };
            let whole = device.part == Part::Card;
            if seen.contains(&(board, !whole)) {
                return false;
            }
            seen.push((board, whole));
        }
        true
    }
}

fn random_holding(random: &mut Random, plain: &Plain, claim: ClaimUid) -> (usize, Holding) {
    // Whole cards are rarer than their parts, else nothing else would ever be held.
    let any = |random: &mut Random| usize::try_from(random.below(plain.devices.len() as u64)).unwrap();
    let mut index = any(random);
    if plain.devices[index].part == Part::Card && random.below(3) > 0 {
        index = any(random);
    }
    let device = &plain.devices[index];
    let share = Take::Share {
        memory: Bytes(device.memory / (1 + random.below(6))),
        cores: Cores::new(u8::try_from(random.below(device.cores + 3).min(100)).unwrap()).unwrap(),
    };
    let (part, take) = match (random.below(20), &device.part) {
        (0, part) => (part.clone(), Take::Nothing),
        (1..=4, Part::Card) => {
            let copy = u32::try_from(random.below(3)).unwrap();
            (Part::Slot { name: "slot".to_owned(), copy }, share)
        }
        (5..=12, part) => (part.clone(), share),
        (_, part) => (part.clone(), Take::Exclusive),
    };
    let share = matches!(take, Take::Share { .. }).then(|| ShareId(random.next().to_string()));
    let card = plain.cards[device.card].uuid.clone();
    (index, Holding { claim, request: "gpu".to_owned(), share, card, part, take })
}

/// Runs the actions and compares every answer; gives how many were accepted and how many refused.
fn agree(cards: Vec<Card>, seed: u64) -> (u64, u64) {
    let (mut ledger, problems) = Ledger::new(&Inventory { cards: cards.clone() }, &catalogue());
    assert_eq!(problems, []);
    let (mut plain, mut random) = (Plain::new(cards), Random(seed));
    let (mut accepted, mut refused) = (0, 0);
    for action in 0..ACTIONS {
        let at = || format!("seed {seed}, action {action}");
        let claim: ClaimUid = format!("claim-{}", random.below(CLAIMS)).parse().unwrap();
        if random.below(5) < 2 {
            let released = ledger.release(&claim).len();
            let before = plain.held.len();
            plain.held.retain(|(_, h)| h.claim != claim);
            assert_eq!(released, before - plain.held.len(), "{}", at());
        } else {
            let (device, holding) = random_holding(&mut random, &plain, claim);
            let same = |h: &Holding| {
                (&h.claim, &h.share, &h.card, &h.part)
                    == (&holding.claim, &holding.share, &holding.card, &holding.part)
            };
            let expected = match plain.held.iter().map(|(_, h)| h).find(|h| same(h)) {
                Some(held) if held.take == holding.take => Some(HoldOutcome::Already),
                Some(_) => None,
                None => plain.allows(device, &holding).then_some(HoldOutcome::New),
            };
            let answer = ledger.hold(holding.clone());
            assert_eq!(answer.as_ref().ok(), expected.as_ref(), "{}: {holding:?} {answer:?}", at());
            if expected == Some(HoldOutcome::New) {
                plain.held.push((device, holding));
            }
            accepted += u64::from(expected.is_some());
            refused += u64::from(expected.is_none());
        }
        if let Err(broken) = ledger.invariants() {
            panic!("{}: {broken}", at());
        }
    }
    assert_eq!(ledger.holdings().count(), plain.held.len(), "seed {seed}");
    (accepted, refused)
}

#[track_caller]
fn check(seed: u64, cards: Vec<Card>) {
    let (accepted, refused) = agree(cards, seed);
    assert!(
        accepted > ACTIONS / 100 && refused > ACTIONS / 100,
        "seed {seed}: {accepted} accepted, {refused} refused"
    );
}

fn on_board(model: &str, index: u32, board: &str) -> Card {
    let mut chip = card(model, index);
    chip.topology.card_id = Some(board.to_owned());
    chip
}

macro_rules! agree_on {
    ($($test:ident: $seed:literal, $cards:expr;)*) => {
        $(
            #[test]
            fn $test() {
                check($seed, $cards);
            }
        )*
    };
}

agree_on! {
    h100: 1, vec![card("nvidia-h100-80gb-sxm", 0)];
    h200: 2, vec![card("nvidia-h200-141gb", 0)];
    a100_40: 3, vec![card("nvidia-a100-40gb", 0)];
    a30: 4, vec![card("nvidia-a30-24gb", 0)];
    rtx_pro_6000: 5, vec![card("nvidia-rtx-pro-6000", 0)];
    t4: 6, vec![card("nvidia-t4-16gb", 0)];
    ascend_310p: 7, vec![card("huawei-310p-24gb", 0)];
    ascend_310p_duo: 8, vec![
        on_board("huawei-310p-duo-24gb", 0, "x"), on_board("huawei-310p-duo-24gb", 1, "x"),
    ];
    ascend_910a: 9, vec![card("huawei-910a-32c", 0)];
    ascend_910b3: 10, vec![card("huawei-910b3", 0)];
    ascend_910b4: 11, vec![card("huawei-910b4", 0)];
    ascend_910c: 12, vec![card("huawei-910c-24c", 0)];
    b200: 13, vec![card("nvidia-b200-180gb", 0)];
    a_mixed_node: 14, vec![
        card("nvidia-a30-24gb", 0), card("nvidia-t4-16gb", 1), card("huawei-310p-24gb", 2), card("huawei-910b4", 3),
    ];
}
