//! Names that are taken, and the next free one of a stem.

use std::collections::{BTreeMap, BTreeSet};

/// The names of one kind of object in one place.
#[derive(Debug, Default)]
pub(super) struct Names {
    taken: BTreeSet<String>,
    /// The first copy of each stem that was not tried.
    next: BTreeMap<String, usize>,
    /// Names that were tried.
    #[cfg(test)]
    tried: usize,
}

// === impl Names ===

impl Names {
    /// Notes a name that exists.
    pub(super) fn take(&mut self, name: &str) {
        self.taken.insert(name.to_owned());
    }

    /// The stem if it is free, else with the lowest number from 2 on that is. A taken name is tried at most once for each
    /// of its stems, so that equal stems cost no more than different ones.
    pub(super) fn free(&mut self, stem: &str) -> String {
        let mut copy = self.next.get(stem).copied().unwrap_or(1);
        loop {
            let name = if copy == 1 { stem.to_owned() } else { format!("{stem}-{copy}") };
            copy += 1;
            #[cfg(test)]
            {
                self.tried += 1;
            }
            if self.taken.insert(name.clone()) {
                self.next.insert(stem.to_owned(), copy);
                return name;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stems_cost_no_more_than_others() {
        let mut names = Names::default();
        for number in 2..5000 {
            names.take(&format!("pod-{number}"));
        }
        let free: Vec<String> = (0..5000).map(|_| names.free("pod")).collect();
        assert_eq!((free[0].as_str(), free[1].as_str()), ("pod", "pod-5000"));
        assert_eq!(BTreeSet::from_iter(&free).len(), 5000);
        // One try for each name that was taken or is new.
        assert!(names.tried <= 10_000, "{} names tried for 5000", names.tried);
    }
}
