//! Xids: what the errors mean that a driver reports of its cards, and an admin's own word on it.
//!
//! The table is NVIDIA's catalogue of Xids for Ampere and newer cards (docs.nvidia.com/deploy/xid-errors, the column of immediate
//! actions, as of October 2025), in our words: what asks for nothing, or for the program to be started again, is the program's;
//! what asks for a reset, a restart or a person is the card's. It differs in three things, so that no program takes a card from
//! others:
//!
//! - what NVIDIA's device plugin for Kubernetes takes for errors of programs is that here: 45, on which the catalogue says "follow
//!   the other Xid", and 109, for which it has the card reset;
//! - errors of channels (`ROBUST_CHANNEL_…` in the header `nverror.h` of NVIDIA's open kernel modules) of engines that the
//!   catalogue's cards lack are the program's, as those of the engines are that they have: video encoders (47, 65, 73, 142) and
//!   processors, image compositors (42), accelerators of learning (138), and 159;
//! - of 144 to 148 the catalogue has kinds that ask for nothing and kinds that ask for a reset, and the driver's events do not say
//!   which it was. With nearly all of the second sort an Xid 48 comes; the first sort can be a program's.
//!
//! What is not listed does harm, as it does in that plugin.

use std::collections::BTreeMap;

use aliquot_core::health::{Codes, Harm, Meaning};

/// First, last, to what they do harm, what they are.
type Row = (u64, u64, Harm, &'static str);

/// Xids by number.
const XIDS: &[Row] = &[
    (8, 8, Harm::Program, "a channel of a program stood still"),
    (11, 11, Harm::Program, "a program's commands were damaged"),
    (13, 13, Harm::Program, "an exception in a program's kernel"),
    (14, 14, Harm::Program, "nothing"),
    (25, 25, Harm::Program, "a program's commands were damaged"),
    (27, 29, Harm::Program, "an exception of the video processor"),
    (31, 31, Harm::Program, "a program reached for memory that it does not have"),
    (32, 32, Harm::Program, "a program's commands were damaged"),
    (33, 36, Harm::Program, "an exception of a video engine"),
    (37, 38, Harm::Program, "an error of the driver's firmware"),
    (39, 41, Harm::Program, "an exception of a copy engine"),
    (42, 42, Harm::Program, "an exception of the image compositor"),
    (43, 43, Harm::Program, "a program's channel was reset"),
    (44, 44, Harm::Program, "a fault while contexts were switched"),
    (45, 45, Harm::Program, "a program was removed after an earlier error"),
    (46, 46, Harm::Part, "it stopped processing"),
    (47, 47, Harm::Program, "an error of a video encoder"),
    (48, 48, Harm::Part, "an error of two bits in its memory"),
    (54, 54, Harm::Card, "its auxiliary power is not connected"),
    (60, 60, Harm::Program, "an exception of the video processor"),
    (62, 62, Harm::Card, "its microcontroller halted"),
    (63, 63, Harm::Program, "a row of memory was marked to be remapped"),
    (64, 64, Harm::Card, "a row of memory could not be remapped"),
    (65, 65, Harm::Program, "an error of a video encoder"),
    (66, 67, Harm::Program, "the driver reached for what it may not have"),
    (68, 68, Harm::Program, "an exception of a video decoder"),
    (69, 69, Harm::Program, "a program's commands were of a wrong class"),
    (70, 72, Harm::Program, "an error of a copy engine"),
    (73, 73, Harm::Program, "an error of a video encoder"),
    (74, 74, Harm::Card, "an error of its NVLinks"),
    (75, 77, Harm::Program, "an error of a copy engine"),
    (78, 78, Harm::Card, "a vGPU did not start"),
    (79, 79, Harm::Card, "it has fallen off the bus"),
    (80, 80, Harm::Program, "a program's data came damaged"),
    (82, 86, Harm::Program, "an error of a media or copy engine"),
    (88, 89, Harm::Program, "an error of a video decoder"),
    (92, 92, Harm::Program, "many errors of one bit, all corrected"),
    (93, 93, Harm::Program, "its InfoROM is written to often"),
    (94, 94, Harm::Program, "an error in its memory, contained in one program"),
    (95, 95, Harm::Card, "an error in its memory that was not contained"),
    (96, 105, Harm::Program, "an error of a media engine"),
    (106, 107, Harm::Program, "a test message"),
    (108, 108, Harm::Program, "a program used NVLink as it may not"),
    (109, 109, Harm::Program, "a context could not be switched in time"),
    (110, 110, Harm::Card, "a fault of its security"),
    (119, 119, Harm::Card, "its system processor did not answer in time"),
    (120, 120, Harm::Card, "an error of its system processor"),
    (121, 121, Harm::Program, "an error of the link between chips, corrected"),
    (126, 135, Harm::Program, "an error of a copy engine"),
    (136, 136, Harm::Card, "its links could not be trained"),
    (137, 137, Harm::Program, "a program used NVLink as it may not"),
    (138, 138, Harm::Program, "an error of the deep learning accelerator"),
    (139, 139, Harm::Program, "an error of the optical flow engine"),
    (140, 140, Harm::Part, "an error in its memory that was not recovered"),
    (141, 141, Harm::Program, "an error of a fast path of CUDA"),
    (142, 142, Harm::Program, "an error of a video encoder"),
    (143, 143, Harm::Card, "it could not be initialised"),
    (144, 148, Harm::Program, "an error of its NVLinks of an unknown kind"),
    (149, 150, Harm::Card, "an error of its NVLinks"),
    (151, 151, Harm::Card, "keys could not be rotated"),
    (152, 153, Harm::Program, "an error of the deep learning accelerator"),
    // It repeats the actions of other Xids, and also that nothing is to be done.
    (154, 154, Harm::Program, "what it takes to recover has changed"),
    (155, 155, Harm::Card, "an error of its NVLinks"),
    (156, 156, Harm::Card, "something of it was retired"),
    (157, 157, Harm::Program, "something could not be retired"),
    (158, 158, Harm::Card, "it did not answer in time"),
    (159, 159, Harm::Program, "a program reached for the host's memory in vain"),
    (160, 161, Harm::Program, "a channel of its memory was retired, or was not"),
    (162, 165, Harm::Program, "about the smoothing of its power"),
    (167, 167, Harm::Card, "its bus did not answer in time"),
    (169, 169, Harm::Card, "its microcontroller halted"),
    // They say more of an Xid 48 that came with them.
    (171, 172, Harm::Program, "more about an error in its memory"),
];

/// Longest text of an admin that is read.
pub const OVERRIDES_BYTES_MAX: usize = 16 << 10;

/// NVIDIA's table with an admin's word on top.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Xids {
    own: BTreeMap<u64, Harm>,
}

// === impl Xids ===

impl Xids {
    /// Reads an admin's lines, `NUMBER ignore`, `NUMBER part` or `NUMBER card`, `#` before what is for people; and says what is
    /// wrong with those that it leaves out.
    #[must_use]
    pub fn parse(text: &str) -> (Self, Vec<String>) {
        let (mut own, mut problems) = (BTreeMap::new(), Vec::new());
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
            let harm = match words.get(1) {
                Some(&"ignore") => Some(Harm::Program),
                Some(&"part") => Some(Harm::Part),
                Some(&"card") => Some(Harm::Card),
                _ => None,
            };
            match (words.as_slice(), words.first().and_then(|word| word.parse().ok()), harm) {
                ([], ..) => {}
                ([_, _], Some(xid), Some(harm)) => drop(own.insert(xid, harm)),
                _ => problems.push(format!(
                    "line {}: found `{}`, expected the number of an Xid and one of ignore, part, card; the line is left out",
                    number + 1,
                    words.join(" ").chars().take(60).collect::<String>().escape_debug()
                )),
            }
        }
        (Self { own }, problems)
    }
}

impl Codes for Xids {
    fn meaning(&self, code: u64) -> Meaning {
        let row = XIDS.iter().find(|(first, last, ..)| (*first..=*last).contains(&code));
        let (harm, what) = row.map_or((Harm::Part, "of no known kind"), |(_, _, harm, what)| (*harm, *what));
        let harm = self.own.get(&code).copied().unwrap_or(harm);
        Meaning { name: format!("Xid {code}"), what, harm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_and_do_not_overlap() {
        for pair in XIDS.windows(2) {
            assert!(pair[0].1 < pair[1].0 && pair[0].0 <= pair[0].1, "{pair:?}");
        }
    }

    #[test]
    fn errors_of_programs_and_of_cards_are_told_apart() {
        let harm = |xid| Xids::default().meaning(xid).harm;
        for xid in [13, 31, 43, 45, 68, 109, 63, 94] {
            assert_eq!(harm(xid), Harm::Program, "{xid}");
        }
        // Engines and links that work for programs, on cards that the catalogue is not about as well.
        for xid in [27, 42, 47, 65, 73, 108, 137, 138, 142, 145, 159] {
            assert_eq!(harm(xid), Harm::Program, "{xid}");
        }
        for xid in [62, 64, 74, 79, 95, 119, 120, 149, 158, 167, 169] {
            assert_eq!(harm(xid), Harm::Card, "{xid}");
        }
        // An unknown code may mean any harm.
        for xid in [46, 48, 140, 0, 500, u64::MAX] {
            assert_eq!(harm(xid), Harm::Part, "{xid}");
        }
    }

    #[test]
    fn an_admins_word_goes_first_and_what_is_none_is_named() {
        let (xids, problems) = Xids::parse("# ours\n 48 ignore\n13 card # that one\n\n 500 part\r\n");
        assert_eq!(problems, [""; 0]);
        let harm = |xid| xids.meaning(xid).harm;
        assert_eq!([48, 13, 500, 79].map(harm), [Harm::Program, Harm::Card, Harm::Part, Harm::Card]);
        let (xids, problems) =
            Xids::parse("48\n79 never\n-1 ignore\n31 card please\n\u{1b}[2J ignore\n48 ignore");
        assert_eq!(problems.len(), 5, "{problems:?}");
        assert!(problems[0].starts_with("line 1: found `48`, expected the number of an Xid"), "{problems:?}");
        assert!(problems.iter().all(|problem| !problem.contains('\u{1b}')), "{problems:?}");
        assert_eq!((xids.meaning(48).harm, xids.meaning(79).harm), (Harm::Program, Harm::Card));
    }
}
