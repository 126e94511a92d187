//! Switches for single heuristics of the controller and the governor, so that each can be measured on a card by itself.
//!
//! Only builds with the feature `ablation` have them; otherwise every heuristic is on, and no code is left of the question.
//! Exactness, bounds of waits and protection against hostile words are no heuristics and cannot be switched off.
//!
//! A thread starts with the heuristics off that the environment variable `ALIQUOT_ABLATE` names, separated by commas;
//! `without` switches one off for a call. An unknown name is reported on standard error, with all names.

/// One decision that could also be made without what the controller knows. Each comment says what happens when it is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Heuristic {
    /// A process launches as far ahead of the card as its credit allows.
    LaunchAhead,
    /// Launches of unknown cost go one at a time, however short they were.
    FewUnmeasured,
    /// No launch of known cost gets a marker of its own.
    Probes,
    /// A marker is always behind a launch, never before it.
    MarkerBefore,
    /// A launch pays its cost alone, whatever longer ones the function had.
    Deposits,
    /// Beside other tenants no more credit is saved than alone.
    SavedRoom,
    /// Unfinished work is not charged beyond its charges before its bill.
    Lateness,
    /// Time in which the card surely worked is charged only as far as charges predicted it.
    SureTime,
    /// Turns of other processes of the tenant are not suspected in a measured time.
    Siblings,
    /// Launches of several turns are measured like short ones.
    LongTurns,
    /// A function that never ran in this shape has an unknown cost.
    Guesses,
    /// Beside other tenants the least sample is the cost, also of functions of varying length.
    MeanCosts,
    /// Any amount of work may be launched behind a held stream.
    HeldBound,
    /// A waiting launch sleeps until its credit is earned, whatever the governor may correct meanwhile.
    EarlyWake,
    /// Beside other tenants bills are not corrected by the vendor's windows.
    Correction,
    /// The same while the tenant is alone on the card.
    CorrectionAlone,
    /// Bills are corrected in every window, also before a bill has come.
    QuietWindows,
    /// The own part is the card divided by the number of active tenants.
    MeasuredPart,
    /// Time lost to others' long work is not repaid from idle time.
    Owed,
    /// The lead that borrowed time gave stays when it is withdrawn.
    LoanLead,
    /// An active tenant that is not limited reserves its whole guarantee.
    Headroom,
    /// The vendor's percentages are taken as they are.
    Rounding,
    /// Launches that run side by side are billed each by itself, and go as soon as there is credit for one.
    SideBySide,
}

impl Heuristic {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 23] = [
        (Self::LaunchAhead, "launch-ahead"),
        (Self::FewUnmeasured, "few-unmeasured"),
        (Self::Probes, "probes"),
        (Self::MarkerBefore, "marker-before"),
        (Self::Deposits, "deposits"),
        (Self::SavedRoom, "saved-room"),
        (Self::Lateness, "lateness"),
        (Self::SureTime, "sure-time"),
        (Self::Siblings, "siblings"),
        (Self::LongTurns, "long-turns"),
        (Self::Guesses, "guesses"),
        (Self::MeanCosts, "mean-costs"),
        (Self::HeldBound, "held-bound"),
        (Self::EarlyWake, "early-wake"),
        (Self::Correction, "correction"),
        (Self::CorrectionAlone, "correction-alone"),
        (Self::QuietWindows, "quiet-windows"),
        (Self::MeasuredPart, "measured-part"),
        (Self::Owed, "owed"),
        (Self::LoanLead, "loan-lead"),
        (Self::Headroom, "headroom"),
        (Self::Rounding, "rounding"),
        (Self::SideBySide, "side-by-side"),
    ];
}

#[cfg(not(feature = "ablation"))]
impl Heuristic {
    /// Always: this build has no switches.
    #[inline(always)]
    pub(crate) const fn is_on(self) -> bool {
        true
    }
}

#[cfg(feature = "ablation")]
pub use switches::without;

#[cfg(feature = "ablation")]
mod switches {
    use super::Heuristic;
    use core::cell::Cell;
    use std::sync::Once;

    std::thread_local! {
        /// One bit for each heuristic that is off.
        static OFF: Cell<u32> = Cell::new(named_off());
    }

    impl Heuristic {
        const fn bit(self) -> u32 {
            1 << self as u32
        }

        /// Whether this thread uses it. A thread that ends uses all.
        pub(crate) fn is_on(self) -> bool {
            OFF.try_with(Cell::get).unwrap_or(0) & self.bit() == 0
        }
    }

    /// Calls `run` with one more heuristic off on this thread, also if `run` panics.
    pub fn without<T>(heuristic: Heuristic, run: impl FnOnce() -> T) -> T {
        struct Restore(u32);
        impl Drop for Restore {
            fn drop(&mut self) {
                OFF.set(self.0);
            }
        }
        let before = Restore(OFF.get());
        OFF.set(before.0 | heuristic.bit());
        run()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a switch of measurements, for programs whose settings this crate does not see"
    )]
    fn named_off() -> u32 {
        static REPORTED: Once = Once::new();
        let names = std::env::var("ALIQUOT_ABLATE").unwrap_or_default();
        let mut off = 0;
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match Heuristic::ALL.iter().find(|(_, known)| *known == name) {
                Some((heuristic, _)) => off |= heuristic.bit(),
                None => REPORTED.call_once(|| {
                    let known = Heuristic::ALL.map(|(_, name)| name).join(", ");
                    std::eprintln!("ALIQUOT_ABLATE: \"{name}\" is no heuristic; expected some of {known}");
                }),
            }
        }
        off
    }
}
